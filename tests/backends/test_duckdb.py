"""DuckDB as the engine: one zone, bounded in rows and in time; typed failures that tell nothing of a row."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from dpsql.backends import DuckDBBackend
from dpsql.backends import duckdb as duckdb_module
from dpsql.errors import BackendFailure, InvalidPolicy, QueryCanceled, QueryTooComplex
from dpsql.policy import load_policy
from tests.backends.test_postgres import read

POLICY = """
version = 1
[dataset]
name = "people"
url = "duckdb:///people.duckdb"
privacy_unit = "person"
timezone = "{zone}"
budget = {{ epsilon = 1, accountant = "pure" }}
[roles.analyst]
budget = {{ epsilon = 1, accountant = "pure" }}
query = {{ epsilon = 1 }}
[tables.people]
unit_key = "id"
max_rows = 1
"""
ENDLESS = "SELECT CAST(SUM(a.range * b.range) AS VARCHAR) AS v0 FROM range(100000) AS a, range(100000) AS b"


def opened(folder: Path, zone: str = "UTC") -> DuckDBBackend:
    policy = folder / "people.toml"
    policy.write_text(POLICY.format(zone=zone), encoding="utf-8")
    return DuckDBBackend(str(folder / "people.duckdb"), load_policy(policy))


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[DuckDBBackend]:
    with duckdb.connect(str(tmp_path / "people.duckdb")) as database:
        database.execute("CREATE TABLE people AS SELECT i AS id, 'of 4711' AS note FROM range(30) r (i)")
    made = opened(tmp_path)
    yield made
    made.close()


def test_a_failure_tells_nothing_of_its_row(backend: DuckDBBackend, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BackendFailure) as failed:
        read(backend, "SELECT CAST(CAST(note AS INTEGER) AS VARCHAR) AS v0 FROM people")
    assert caplog.messages == ["engine query failed: ConversionException"]
    assert "4711" not in f"{failed.value!r} {failed.value.detail} {failed.value.hint}"
    assert failed.value.__cause__ is None and failed.value.__suppress_context__


def test_too_many_public_rows(backend: DuckDBBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT note AS v0 FROM people"
    monkeypatch.setattr(duckdb_module, "MAX_PUBLIC_ROWS", 30)
    assert read(backend, sql).count == 30
    monkeypatch.setattr(duckdb_module, "MAX_PUBLIC_ROWS", 29)
    with pytest.raises(QueryTooComplex, match="more than 29 rows"):
        read(backend, sql)


def test_statements_are_limited_in_time(backend: DuckDBBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_module, "STATEMENT_SECONDS", 0.1)
    with pytest.raises(QueryCanceled):
        read(backend, ENDLESS)


def test_a_file_is_read_in_one_zone(backend: DuckDBBackend, tmp_path: Path) -> None:
    """Its configuration is that of the process, which is locked."""
    opened(tmp_path).close()
    with pytest.raises(InvalidPolicy, match="open in this process already, in UTC"):
        opened(tmp_path, "Europe/Berlin")
