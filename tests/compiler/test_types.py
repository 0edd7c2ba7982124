"""Columns of types that are good for little: what they are not good for is refused where it is used."""

import struct
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from dpsql.compiler.sql.formats import MAX_FORMAT, pieces
from dpsql.errors import Error, LimitExceeded, NumberOutOfRange
from dpsql.gateway.session import Session
from dpsql.sqltypes import Span, SqlType, textformat
from dpsql.wire import binaryformat
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


COMPARISONS = (
    "SELECT COUNT(*) FROM odd WHERE {0} = {0}",
    "SELECT COUNT(*) FROM odd WHERE {0} < {0}",
    "SELECT COUNT(*) FROM odd WHERE {0} IS DISTINCT FROM {0}",
    "SELECT COUNT(*) FROM odd WHERE {0} BETWEEN {0} AND {0}",
    "SELECT COUNT(*) FROM odd WHERE greatest({0}, {0}) IS NULL",
    "SELECT COUNT(*) FROM odd WHERE nullif({0}, {0}) IS NULL",
)
OTHER_USES = (
    "SELECT COUNT(*) FROM odd WHERE {0} IN ({0})",
    "SELECT {0}, COUNT(*) FROM odd GROUP BY {0}",
    "SELECT DISTINCT {0} FROM odd",
    "SELECT COUNT(DISTINCT {0}) FROM odd",
    "SELECT SUM({0}) FROM odd",
    "SELECT AVG({0}) FROM odd",
    "SELECT MAX({0}) FROM shelf",
    "SELECT {0} FROM odd",
)


@pytest.mark.parametrize(
    ("column", "sql"),
    [(column, sql) for column in ("blob", "js", "items") for sql in COMPARISONS + OTHER_USES]
    + [("span", sql) for sql in OTHER_USES],
)
def test_other_uses_are_refused(analyst: Session, column: str, sql: str) -> None:
    with pytest.raises(Error) as caught:
        run(analyst, sql.format(column))
    assert caught.value.sqlstate in ("42804", "42501", "42883", "0A000")
    assert "the engine cannot run" not in caught.value.message


@pytest.mark.parametrize(
    "condition",
    ["{0} = {0}", "{0} < {0}", "{0} IS DISTINCT FROM {0}", "{0} BETWEEN {0} AND {0}", "{0} > INTERVAL '1 h'"],
)
def test_intervals_are_compared(analyst: Session, condition: str) -> None:
    text = condition.format("span")
    assert run(analyst, f"SELECT COUNT(*) > -1000 FROM odd WHERE {text}") == [(True,)]
    assert run(analyst, "SELECT greatest(span, INTERVAL '1 day'), nullif(span, span) FROM shelf WHERE id = 1") == [
        (Span(0, 3, 0), None)
    ]


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


def test_a_whole_constant_is_numeric_if_that_is_said(analyst: Session) -> None:
    ((one, other, large),) = run(analyst, "SELECT 5000::numeric, CAST(7 AS numeric), 5000000000::numeric")
    assert [one, other, large] == [Decimal(5000), Decimal(7), Decimal(5_000_000_000)]
    assert all(isinstance(each, Decimal) for each in (one, other, large))


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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (timedelta(days=1, hours=2), "1 day 02:00:00"),
        (timedelta(microseconds=-1500000), "-00:00:01.5"),
        (Span(14, -3, 1), "1 year 2 mons -3 days +00:00:00.000001"),
        (Span(-1, 2, 0), "-1 mons +2 days"),
        (Span(0, 0, 0), "00:00:00"),
    ],
)
def test_intervals_come_and_go(analyst: Session, value: timedelta | Span, shown: str) -> None:
    (statement,) = analyst.parse("SELECT $1 + INTERVAL '0 days' AS span")
    ((found,),) = analyst.execute(statement, [value]).rows
    assert str(found) == shown
    assert textformat.interval(value) == shown
    span = Span.of(value) if isinstance(value, timedelta) else value
    assert binaryformat.interval(value) == struct.pack("!qii", span.microseconds, span.days, span.months)


def test_an_interval_that_no_client_could_read() -> None:
    with pytest.raises(NumberOutOfRange):
        binaryformat.interval(Span(2**31, 0, 0))


def test_a_text_that_is_an_interval_by_its_place(analyst: Session) -> None:
    (statement,) = analyst.parse("SELECT $1::interval + INTERVAL '1 day' AS span")
    assert [column.type for column in analyst.describe(statement).columns or ()] == [SqlType.INTERVAL]
    ((found,),) = analyst.execute(statement, ["2 mons"]).rows
    assert found == Span(2, 1, 0)


def test_a_format_has_a_limit() -> None:
    assert len(pieces("YYYY" * (MAX_FORMAT // 4))) == MAX_FORMAT // 4
    with pytest.raises(LimitExceeded, match="characters"):
        pieces("Y" * (MAX_FORMAT + 1))
