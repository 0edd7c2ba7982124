"""The audit with PostgreSQL as the engine: what holds is not refuted, a fault is, and nothing is left on the server."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from dpsql.auditing import Extent, audit
from dpsql.auditing.neighbours import NotAuditable
from dpsql.policy import Policy, load_policy
from tests.auditing.conftest import write
from tests.auditing.test_mutants import CONFIDENCE, scale_of_a_half
from tests.cli.conftest import Run, run  # noqa: F401
from tests.copies import copied
from tests.postgres import Server

EXTENT = Extent(units=200, runs=6, single_runs=6, confidence=CONFIDENCE, only=("COUNT people", "selection"))
DATABASES = "SELECT datname FROM pg_database WHERE datname LIKE 'dpsql-audit-%'"


@pytest.fixture(scope="module")
def of_postgres(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server) -> Iterator[Path]:
    """The small world's policy, over its tables on a server."""
    folder = tmp_path_factory.mktemp("served")
    path = write(folder)
    with duckdb.connect(str(folder / "small.duckdb")) as database:
        database.execute("INSERT INTO people VALUES (1, 2, 'Ulm')")
    with copied(folder / "small.duckdb", postgres_server) as url:
        text = path.read_text(encoding="utf-8").replace('"duckdb:///small.duckdb"', f'"{url}"\nschema = "main"')
        path.write_text(text, encoding="utf-8")
        yield path


@pytest.mark.statistical
def test_what_holds_is_not_refuted(of_postgres: Path, postgres_server: Server) -> None:
    """Refuted with a probability of 10⁻⁷ at the most; nothing is left on the server."""
    there: list[object] = []
    names = (
        "COUNT people",
        "quantile drugs",
        "selection",
        "join people",
        "reuse",
        "failure",
        "rows without a unit visits",
    )
    extent = replace(EXTENT, units=40, runs=3, only=names, mechanisms=("laplace",))
    report = audit(
        load_policy(of_postgres), extent, lambda _: there.extend(postgres_server.run(DATABASES)), postgres_server.url
    )
    assert [finding for finding in report.findings if not finding.holds] == []
    assert len(report.findings) == len(names)
    assert there
    assert postgres_server.run(DATABASES) == []


@pytest.mark.statistical
def test_a_planted_fault_is_refuted(
    of_postgres: Path, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_of_a_half(monkeypatch)
    report = audit(load_policy(of_postgres), EXTENT, server=postgres_server.url)
    assert {finding.name for finding in report.findings if not finding.holds} >= {"COUNT people"}


def test_a_policy_of_a_server_is_audited_in_duckdb_without_another(of_postgres: Path) -> None:
    report = audit(load_policy(of_postgres), replace(EXTENT, units=40, only=("COUNT people",)))
    assert report.holds


def test_rows_are_not_copied_to_a_server(small: Policy) -> None:
    with pytest.raises(NotAuditable, match="rows"):
        audit(small, replace(EXTENT, with_rows=True), server="postgresql://host/db")


def test_a_server_that_is_not_there_is_told(run: Run, of_postgres: Path, tmp_path: Path) -> None:  # noqa: F811
    told = run("audit", of_postgres, "--only", "COUNT", "--server", f"postgresql://?host={tmp_path}", status=1)
    assert "databases cannot be made on the server" in told.output
