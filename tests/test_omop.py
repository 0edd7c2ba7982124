"""The questions of examples/omop.sql mean over made-up OMOP records what they mean in PostgreSQL, on each engine."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from examples.load_omop import load
from tests.compiler.test_accepted import is_same, sort_key
from tests.conftest import ROOT, silent_engine
from tests.engines import HOSTS, Host

QUESTIONS = [part.strip() for part in (ROOT / "examples" / "omop.sql").read_text(encoding="utf-8").split(";\n\n")]
OWNED = (
    "(cost_domain_id, cost_event_id) IN (SELECT 'Visit', visit_occurrence_id FROM visit_occurrence UNION "
    "SELECT 'Drug', drug_exposure_id FROM drug_exposure)"
)
"""The costs that lead to a person."""
OF_PERSONS = """cost AS c JOIN (SELECT 'Visit' AS domain, visit_occurrence_id AS event, person_id FROM visit_occurrence
    UNION SELECT 'Drug', drug_exposure_id, person_id FROM drug_exposure) AS w
    ON (w.domain, w.event) = (c.cost_domain_id, c.cost_event_id)"""
RAW = {
    "FROM cost GROUP BY": f"FROM cost WHERE {OWNED} GROUP BY",
    "FROM cost AS c\nWHERE": f"FROM {OF_PERSONS}\nWHERE",
    "o.person_id = c.person_id": "o.person_id = w.person_id",
}
"""What the policy says, as PostgreSQL must be told it."""
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("omop") / "omop.duckdb"
    load(file, persons=300)
    return file


@pytest.fixture(scope="module")
def served(hosts: Mapping[str, Host], records: Path) -> Iterator[str]:
    """The records in PostgreSQL."""
    with hosts["postgresql"].serve(records) as url:
        yield url


@pytest.fixture(scope="module")
def truth(served: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(served, options="-c search_path=main") as connection:
        yield connection


@pytest.fixture(scope="module", params=HOSTS)
def engine(
    request: pytest.FixtureRequest, records: Path, served: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    text = (ROOT / "policies" / "omop.toml").read_text(encoding="utf-8")
    url = f'"duckdb:///{records}"' if request.param == "duckdb" else f'"{served}"\nschema = "main"'
    text = text.replace('"duckdb:///omop.duckdb"', url)
    (folder / "omop.toml").write_text(text, encoding="utf-8")
    with silent_engine(folder / "omop.toml", folder) as opened:
        yield opened


def test_there_are_twenty() -> None:
    assert len(QUESTIONS) == 20


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda text: re.findall("-- (.*[?])", text)[0])
def test_a_question(engine: Engine, truth: psycopg.Connection[tuple[Any, ...]], question: str) -> None:
    session = Session(engine, "ana")
    (statement,) = session.parse(question)
    result = session.execute(statement)
    assert result.answer is not None and result.answer.query.releases
    raw = question
    for ours, theirs in RAW.items():
        raw = raw.replace(ours, theirs)
    found, expected = told(list(result.rows)), told(truth.execute(raw.encode()).fetchall())
    assert len(found) == len(expected)
    for row, true in zip(found, expected, strict=True):
        assert all(is_same(a, b, 1e-6) for a, b in zip(row, true, strict=True)), f"{row} is not {true}"


def told(rows: Rows) -> Rows:
    """Rows in one order, without those of groups that nobody is in."""
    return sorted((row for row in rows if row[-1] not in (0, None)), key=sort_key)
