"""Accepted queries, without noise, have PostgreSQL's values and types, whichever engine answers; and what each costs.

DPSQL_UPDATE_FIXTURES=1 pytest tests/compiler/test_accepted.py writes the prices in tests/fixtures/accepted.sql anew.
"""

import ast
import os
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import set_json_loads

from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session, Statement
from dpsql.privacy.accounting import Spent
from dpsql.sqltypes import SqlType
from tests.conftest import OpenedWides
from tests.engines import HOSTS
from tests.fixtures.load import HERE, Case, load
from tests.postgres import Server
from tests.world import postgres_oracle

FIXTURE = "accepted.sql"
CASES = load(FIXTURE)

AVERAGES = re.compile(r"\b(AVG|VAR_\w+|VARIANCE|STDDEV\w*)\s*\(", re.IGNORECASE)
"""Aggregates that are double precision where PostgreSQL's are numeric, as docs/sql.md tells."""

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def oracle(
    wide_policy: Path, postgres_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with postgres_oracle(
        wide_policy.with_suffix(".duckdb"), tmp_path_factory.mktemp("oracle"), postgres_server
    ) as connection:
        set_json_loads(lambda text: text if isinstance(text, str) else text.decode(), connection)
        yield connection


@pytest.fixture
def analyst(wide_engine: Engine) -> Session:
    return asking_anew(wide_engine)


@pytest.fixture
def others(opened_wides: OpenedWides, no_noise: None) -> list[Session]:
    """The analyst on every other engine; not on files, of which DuckDB makes the same."""
    return [asking_anew(opened_wides(name)) for name in HOSTS if name not in ("duckdb", "parquet")]


def asking_anew(engine: Engine) -> Session:
    """A session whose answers are derived of none that other cases have paid for."""
    session = Session(engine, "ana")
    (statement,) = session.parse("SET dpsql.reuse = exact")
    session.execute(statement)
    return session


def test_the_fixture_is_as_long_as_it_should_be() -> None:
    assert len(CASES) >= 400
    assert {key for case in CASES for key in case.marks} <= {"ordered", "within", "raw", "parameters", "names", "price"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_accepted(
    case: Case, analyst: Session, oracle: psycopg.Connection[tuple[Any, ...]], updates: dict[int, str]
) -> None:
    statement, values, result = answered(case, analyst, oracle)
    if "DPSQL_UPDATE_FIXTURES" in os.environ:
        updates[case.line] = price(result)
    else:
        assert case.marks["price"] == price(result)
    # Describe tells what executing gives.
    if not values:
        assert analyst.describe(statement).columns == result.columns


@pytest.mark.parametrize("case", CASES, ids=str)
def test_engines_add_up_the_same_integers(case: Case, analyst: Session, others: list[Session]) -> None:
    values = ast.literal_eval(case.marks.get("parameters", "[]"))
    (statement,) = analyst.parse(case.sql)
    result = analyst.execute(statement, values)
    for other in others:
        again = other.execute(statement, values)
        assert (again.columns, price(again)) == (result.columns, price(result))
        assert_same(list(again.rows), list(result.rows), 1e-14, "ordered" in case.marks)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_accepted_on_files(
    case: Case, opened_wides: OpenedWides, no_noise: None, oracle: psycopg.Connection[tuple[Any, ...]]
) -> None:
    _, _, result = answered(case, asking_anew(opened_wides("parquet")), oracle)
    assert case.marks["price"] == price(result)


def answered(
    case: Case, analyst: Session, oracle: psycopg.Connection[tuple[Any, ...]]
) -> tuple[Statement, list[object], Result]:
    """Ask a case, whose answer must be that of PostgreSQL; returns the statement, its parameters and the answer."""
    values = ast.literal_eval(case.marks.get("parameters", "[]"))
    (statement,) = analyst.parse(case.sql)
    result = analyst.execute(statement, values)
    assert result.columns is not None
    with psycopg.RawCursor(oracle) as cursor:
        cursor.execute(case.marks.get("raw", case.sql).encode(), None if "raw" in case.marks else values or None)
        truth = cursor.fetchall()
        names = [column.name for column in cursor.description or ()]
        types = [column.type_code for column in cursor.description or ()]
    if "names" in case.marks:
        names = case.marks["names"].split(", ")
    assert [column.name for column in result.columns] == names
    for column, oid in zip(result.columns, types, strict=True):
        is_average = column.type is SqlType.DOUBLE and oid == SqlType.NUMERIC.oid and AVERAGES.search(case.sql)
        assert column.type.oid == oid or is_average, f"{column.name} is of type {column.type.value}"
    assert_same(list(result.rows), truth, float(case.marks.get("within", "1e-9")), "ordered" in case.marks)
    return statement, values, result


def price(result: Result) -> str:
    """What the user is charged with, and over how many noisy parts it is split."""
    query = result.answer.query if result.answer is not None else None
    if query is None or query.price is None:
        return "nothing"
    spent = Spent.zero().add([event for planned in query.releases for event in planned.events])
    parts = sum(len(planned.events) for planned in query.releases)
    delta = f", delta {float(spent.delta):g}" if spent.delta else ""
    return f"epsilon {float(query.price.epsilon):g}{delta}; parts {parts}"


@pytest.fixture(scope="module")
def updates() -> Iterator[dict[int, str]]:
    """Prices by the line of the query, written into the fixture at the end."""
    found: dict[int, str] = {}
    yield found
    lines = (HERE / FIXTURE).read_text(encoding="utf-8").split("\n")
    for line, text in sorted(found.items(), reverse=True):
        start = line - 1
        while start > 0 and lines[start - 1].startswith("--"):
            start -= 1
        marks = [mark for mark in lines[start : line - 1] if not mark.startswith("-- price: ")]
        lines[start : line - 1] = [*marks, f"-- price: {text}"]
    if found:
        (HERE / FIXTURE).write_text("\n".join(lines), encoding="utf-8")


def assert_same(found: Rows, truth: Rows, within: float, ordered: bool) -> None:
    if not ordered:
        found, truth = sorted(found, key=sort_key), sorted(truth, key=sort_key)
    assert len(found) == len(truth)
    for mine, theirs in zip(found, truth, strict=True):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert is_same(a, b, within), f"{mine} is not {theirs}"


def is_same(a: object, b: object, within: float) -> bool:
    if is_number(a) and is_number(b):
        x, y = float(a), float(b)  # type: ignore[arg-type]
        return abs(x - y) <= within * max(1.0, abs(y))
    return type(a) is type(b) and a == b


def is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def sort_key(row: tuple[Any, ...]) -> list[tuple[int, Any]]:
    def key(value: object) -> tuple[int, Any]:
        if value is None:
            return (3, 0)
        if is_number(value):
            return (1, round(float(value), 6))  # type: ignore[arg-type]
        return (2, str(value))

    return [key(value) for value in row]
