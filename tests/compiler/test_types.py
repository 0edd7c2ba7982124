"""Columns of types that are good for little: what they are not good for is refused where it is used."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from dpsql.errors import Error
from dpsql.session import Session
from tests.conftest import open_engine

POLICY = """
version = 1
[dataset]
name = "odd"
url = "duckdb:///odd.duckdb"
privacy_unit = "person"
budget = { epsilon = 10000, delta = 1e-3 }
[roles.analyst]
budget = { epsilon = 10000, delta = 1e-3 }
query = { epsilon = 1, delta = 1e-9, max_epsilon = 10 }
[tables.odd]
unit_key = "who"
max_rows = 2
[tables.odd.columns]
blob = { type = "bytea" }
js = { type = "json" }
span = { type = "interval" }
items = { type = "integer[]" }
whole = { type = "numeric", lower = 0, upper = 100, step = 1 }
fixed = { type = "char" }
short = { type = "varchar" }
[tables.shelf]
public = true
[tables.shelf.columns]
id = { type = "integer" }
blob = { type = "bytea" }
js = { type = "json" }
span = { type = "interval" }
items = { type = "integer[]" }
whole = { type = "numeric" }
fixed = { type = "char" }
short = { type = "varchar" }
"""
COLUMNS = "blob BLOB, js JSON, span INTERVAL, items INTEGER[], whole INTEGER, fixed VARCHAR, short VARCHAR"
ROW = "'abc'::BLOB, '{\"a\": 1}', INTERVAL 3 DAY, [1, 2], 7, 'f', 's'"


@pytest.fixture(scope="module")
def analyst(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder: Path = tmp_path_factory.mktemp("odd")
    with duckdb.connect(str(folder / "odd.duckdb")) as connection:
        connection.execute(f"CREATE TABLE odd (who INTEGER, {COLUMNS})")
        connection.execute(f"CREATE TABLE shelf (id INTEGER, {COLUMNS})")
        connection.execute(f"INSERT INTO odd SELECT range, {ROW} FROM range(100)")
        connection.execute(f"INSERT INTO shelf SELECT 1, {ROW}")
        connection.execute("INSERT INTO shelf (id) VALUES (2)")
    (folder / "odd.toml").write_text(POLICY, encoding="utf-8")
    engine = open_engine(folder / "odd.toml", folder / "ledger.sqlite")
    yield Session(engine, "ana")
    engine.close()
    engine.ledger.close()


def run(session: Session, sql: str) -> list[tuple[object, ...]]:
    (statement,) = session.parse(sql)
    result = session.execute(statement)
    assert session.describe(statement).columns == result.columns
    return list(result.rows)


@pytest.mark.parametrize("column", ["blob", "js", "span", "items", "whole", "fixed", "short"])
def test_every_column_can_be_counted_and_missed(analyst: Session, column: str) -> None:
    assert run(analyst, f"SELECT COUNT({column}) > -1000 FROM odd WHERE {column} IS NOT NULL") == [(True,)]


@pytest.mark.parametrize("column", ["blob", "js", "span", "items"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM odd WHERE {0} = {0}",
        "SELECT COUNT(*) FROM odd WHERE {0} < {0}",
        "SELECT COUNT(*) FROM odd WHERE {0} IS DISTINCT FROM {0}",
        "SELECT COUNT(*) FROM odd WHERE {0} BETWEEN {0} AND {0}",
        "SELECT COUNT(*) FROM odd WHERE {0} IN ({0})",
        "SELECT COUNT(*) FROM odd WHERE greatest({0}, {0}) IS NULL",
        "SELECT COUNT(*) FROM odd WHERE nullif({0}, {0}) IS NULL",
        "SELECT {0}, COUNT(*) FROM odd GROUP BY {0}",
        "SELECT DISTINCT {0} FROM odd",
        "SELECT COUNT(DISTINCT {0}) FROM odd",
        "SELECT SUM({0}) FROM odd",
        "SELECT AVG({0}) FROM odd",
        "SELECT MAX({0}) FROM shelf",
        "SELECT {0} FROM odd",
    ],
)
def test_other_uses_are_refused(analyst: Session, column: str, sql: str) -> None:
    with pytest.raises(Error) as caught:
        run(analyst, sql.format(column))
    assert caught.value.sqlstate in ("42804", "42501", "42883", "0A000")
    assert "the engine cannot run" not in caught.value.message


@pytest.mark.parametrize("column", ["whole", "fixed", "short"])
def test_columns_whose_type_is_not_the_engines(analyst: Session, column: str) -> None:
    assert run(analyst, f"SELECT COUNT(DISTINCT {column}) > -1000 FROM odd") == [(True,)]
    assert len(run(analyst, f"SELECT {column}, COUNT(*) FROM odd GROUP BY {column}")) <= 2
    (first, second) = run(analyst, f"SELECT {column} FROM shelf ORDER BY id")
    assert str(first[0]).removesuffix(".0000000000") == {"whole": "7", "fixed": "f", "short": "s"}[column]
    assert second == (None,)


def test_a_numeric_over_an_integer_column_is_summed(analyst: Session) -> None:
    ((total,),) = run(analyst, "SELECT SUM(whole) FROM odd")
    assert abs(float(str(total)) - 700) < 5000


@pytest.mark.parametrize("column", ["blob", "js", "span", "items"])
def test_public_rows_are_shown_or_refused(analyst: Session, column: str) -> None:
    try:
        rows = run(analyst, f"SELECT {column} FROM shelf ORDER BY id")
    except Error as error:
        assert error.sqlstate in ("42804", "0A000")
        assert "the engine cannot run" not in error.message
    else:
        assert rows[0][0] is not None
        assert rows[1][0] is None
