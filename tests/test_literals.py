"""One reader of literals: a constant, a text parameter and an element of an array are read alike, and refused alike."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
import pytest

from dpsql.catalog.kinds import kind_of
from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.nodes import Literal
from dpsql.compiler.sql.literals import Parameters, number, parse_text
from dpsql.compiler.sql.parse import parse
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import DataError, Error, InvalidParameter, InvalidText, NumberOutOfRange
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.gateway.settings import Settings
from dpsql.sqltypes import Span, SqlType
from dpsql.sqltypes.textformat import without_filling
from dpsql.sqltypes.textinput import array_elements, read, read_fields
from dpsql.wire.oidtypes import of_sql_type
from dpsql.wire.pgtypes import TEXT
from tests.test_engine import compiled
from tests.wire.conftest import RunningServer

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2024, 7, 5, 7, 8, 9, tzinfo=BERLIN)

ACCEPTED: list[tuple[SqlType, str, object]] = [
    (SqlType.BOOLEAN, " TRU ", True),
    (SqlType.BOOLEAN, "of", False),
    (SqlType.SMALLINT, "-32768", -32768),
    (SqlType.BIGINT, " +007 ", 7),
    (SqlType.DOUBLE, ".5e1", 5.0),
    (SqlType.REAL, "0.5", 0.5),
    (SqlType.NUMERIC, "1e3", Decimal(1000)),
    (SqlType.DATE, "2024-1-5", date(2024, 1, 5)),
    (SqlType.DATE, "20240105", date(2024, 1, 5)),
    (SqlType.DATE, "2024-01-05 23:00+14", date(2024, 1, 5)),
    (SqlType.TIMESTAMP, "2024-1-5 7:08", datetime(2024, 1, 5, 7, 8)),
    (SqlType.TIMESTAMP, "2024-01-05t07:08:09.1234567-03", datetime(2024, 1, 5, 7, 8, 9, 123457)),
    (SqlType.TIMESTAMPTZ, "2024-07-05 07:08", datetime(2024, 7, 5, 5, 8, tzinfo=UTC)),
    (SqlType.TIMESTAMPTZ, "2024-07-05 07:08 -0330", datetime(2024, 7, 5, 10, 38, tzinfo=UTC)),
    (SqlType.TIMESTAMPTZ, "2024-07-05 07:08z", datetime(2024, 7, 5, 7, 8, tzinfo=UTC)),
    (SqlType.TIME, "7:08", time(7, 8)),
    (SqlType.TIME, "07:08:09.5+02", time(7, 8, 9, 500_000)),
    (SqlType.TIMESTAMPTZ, "2024-07-05 07:08 America/New_York", datetime(2024, 7, 5, 11, 8, tzinfo=UTC)),
    (SqlType.TIMESTAMPTZ, "2024-07-05  utc", datetime(2024, 7, 5, tzinfo=UTC)),
    # In standard time, where clocks are set forth and back.
    (SqlType.TIMESTAMPTZ, "2024-03-31 02:30 Europe/Berlin", datetime(2024, 3, 31, 1, 30, tzinfo=UTC)),
    (SqlType.TIMESTAMPTZ, "2024-10-27 02:30 Europe/Berlin", datetime(2024, 10, 27, 1, 30, tzinfo=UTC)),
    (SqlType.DATE, "epoch", date(1970, 1, 1)),
    (SqlType.TIMESTAMPTZ, " EPOCH ", datetime(1970, 1, 1, tzinfo=UTC)),
    # As Go's lib/pq writes a time.
    (SqlType.TIMESTAMPTZ, "2024-01-02 03:04:05.678901234Z", datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    (SqlType.TIMESTAMPTZ, "2024-01-02T03:04:05.678+05:30:00", datetime(2024, 1, 1, 21, 34, 5, 678000, tzinfo=UTC)),
    (SqlType.TIMESTAMP, "2024-07-05 07:08 America/New_York", datetime(2024, 7, 5, 7, 8)),
    (SqlType.INTERVAL, "@ 1 year 2 mons ago", Span(-14, 0, 0)),
    (SqlType.INTERVAL, "1 year -2 mons", Span(10, 0, 0)),
    (SqlType.INTERVAL, "3 days, 4:05:06.5", Span(0, 3, 14_706_500_000)),
    (SqlType.INTERVAL, "P1Y2M3DT4H", Span(14, 3, 14_400_000_000)),
    (SqlType.INTERVAL, "1.5 weeks ago", Span(0, -10, -43_200_000_000)),
    (SqlType.UUID, "{00000000000000000000000000000001}", UUID(int=1)),
]
REFUSED: list[tuple[SqlType, str, type[DataError]]] = [
    (SqlType.BOOLEAN, "maybe", InvalidText),
    (SqlType.INTEGER, "1_000", InvalidText),
    (SqlType.INTEGER, "\u0661", InvalidText),
    (SqlType.SMALLINT, "32768", NumberOutOfRange),
    (SqlType.BIGINT, "9" * 5000, NumberOutOfRange),
    (SqlType.DOUBLE, "1_0", InvalidText),
    (SqlType.DOUBLE, "1e999", NumberOutOfRange),
    (SqlType.DOUBLE, "1" * 100_000 + "x", InvalidText),
    (SqlType.DOUBLE, "NaN", NumberOutOfRange),
    (SqlType.REAL, "-inf", NumberOutOfRange),
    (SqlType.NUMERIC, "NaN", NumberOutOfRange),
    (SqlType.NUMERIC, "0x10", InvalidText),
    (SqlType.NUMERIC, "1e999999", NumberOutOfRange),
    (SqlType.NUMERIC, "1e-" + "9" * 50, NumberOutOfRange),
    (SqlType.DATE, "2023-02-29", InvalidText),
    (SqlType.DATE, "2024-W01-1", InvalidText),
    (SqlType.DATE, "-infinity", InvalidParameter),
    (SqlType.TIMESTAMP, "infinity", InvalidParameter),
    (SqlType.TIMESTAMP, "2024-01-05 25:00", InvalidText),
    (SqlType.TIMESTAMP, "9999-12-31 23:59:59.9999999", NumberOutOfRange),
    (SqlType.TIMESTAMPTZ, "2024-01-05 12:00+24", InvalidText),
    (SqlType.TIMESTAMPTZ, "2024-01-05 12:00+02 Europe/Berlin", InvalidText),
    (SqlType.TIMESTAMPTZ, "2024-01-05 12:00 No/Zone", InvalidText),
    (SqlType.TIMESTAMPTZ, "2024-01-05 12:00 America/", InvalidText),
    (SqlType.TIMESTAMPTZ, "2024-01-05 12:00 Europe/../Europe/Berlin", InvalidText),
    (SqlType.TIMESTAMPTZ, "2024-01-05 12:00 Etc", InvalidText),
    (SqlType.TIMESTAMPTZ, "x Europe/Berlin", InvalidText),
    (SqlType.INTERVAL, "@", InvalidText),
    (SqlType.INTERVAL, "@ ago", InvalidText),
    (SqlType.TIMESTAMPTZ, "0001-01-01 00:00+10", NumberOutOfRange),
    (SqlType.TIME, "24:61", InvalidText),
    (SqlType.TIME, "7", InvalidText),
    (SqlType.TIME, "23:59:59.9999999", NumberOutOfRange),
    (SqlType.INTERVAL, "1 fortnight", InvalidText),
    (SqlType.INTERVAL, "x", InvalidText),
    (SqlType.INTERVAL, "", InvalidText),
    (SqlType.INTERVAL, "1 wee\u212a", InvalidText),
    (SqlType.INTERVAL, "999999999 weeks", NumberOutOfRange),
    (SqlType.INTERVAL, "infinity", InvalidParameter),
    (SqlType.UUID, "urn:uuid:00000000-0000-0000-0000-000000000001", InvalidText),
]


def constant(kind: SqlType, text: str) -> Literal:
    """What a quoted constant is."""
    return parse_text(Literal(text, kind), 7, BERLIN)


def untyped(kind: SqlType, text: str) -> Literal:
    """What a parameter is that comes as text from the DB-API."""
    return Parameters(BERLIN, (text,), {0: kind}, now=lambda: NOW).literal(0, 7)


def typed(kind: SqlType, text: str) -> Literal:
    """What a parameter is that comes in the wire's text format."""
    value = of_sql_type(kind).read[TEXT](text.encode())
    return Parameters(BERLIN, (value,), {0: kind}, now=lambda: NOW).literal(0, 7)


def element(kind: SqlType, text: str) -> Literal:
    """What an element of a parameter is that is an array."""
    array: object = of_sql_type(kind.array).read[TEXT](f'{{"{text}"}}'.encode())
    parameters = Parameters(BERLIN, (array,), {0: kind.array}, now=lambda: NOW)
    (place,) = parameters.elements(0, 7)
    parameters.types[place] = kind
    return parameters.literal(place, 7)


WAYS = (constant, untyped, typed, element)


@pytest.mark.parametrize(("kind", "text", "value"), ACCEPTED)
def test_a_text_is_the_same_value_everywhere(kind: SqlType, text: str, value: object) -> None:
    held = intervals.constant(value) if isinstance(value, Span) else value
    assert [(found.type, found.value) for found in (way(kind, text) for way in WAYS)] == [(kind, held)] * len(WAYS)


@pytest.mark.parametrize(("kind", "text", "error"), REFUSED, ids=lambda case: str(case)[:40])
def test_a_text_is_refused_alike_everywhere(kind: SqlType, text: str, error: type[DataError]) -> None:
    told = set()
    for way in WAYS:
        with pytest.raises(error) as refused:
            way(kind, text)
        assert len(refused.value.message) < 150
        told.add((refused.value.message, refused.value.hint))
    assert len(told) == 1
    with pytest.raises(error) as refused:
        constant(kind, text)
    assert refused.value.position == 7


def test_an_offset_is_kept_of_moments_alone() -> None:
    assert read(SqlType.TIMESTAMPTZ, "2024-01-05 12:00-03:30:15") == datetime(
        2024, 1, 5, 12, tzinfo=timezone(-timedelta(hours=3, minutes=30, seconds=15))
    )
    assert read(SqlType.TIMESTAMPTZ, "2024-01-05 12:00") == datetime(2024, 1, 5, 12)
    assert read(SqlType.TEXT, " a ") == " a "
    assert read(SqlType.BYTEA, " \\\\") == b" \\"


@pytest.mark.parametrize(("text", "error"), [("1e", InvalidText), ("1e400", NumberOutOfRange)])
def test_what_is_no_number_is_none_without_quotes_either(text: str, error: type[DataError]) -> None:
    with pytest.raises(error) as refused:
        number(text, 7)
    assert refused.value.position == 7


def test_an_interval_of_named_fields() -> None:
    assert read_fields(" -1-2 ", ("year", "month")) == Span(-14, 0, 0)
    for text, fields, error in (
        ("1", ("day", "year"), InvalidText),
        ("1" * 201, ("day",), InvalidText),
        ("9999999999", ("day",), NumberOutOfRange),
    ):
        with pytest.raises(error):
            read_fields(text, fields)


def test_arrays_are_read() -> None:
    assert array_elements(' { a b , "a\\"\\\\", NULL,"NULL","" } ') == ["a b", 'a"\\', None, "NULL", ""]
    assert array_elements("{ }") == []


@pytest.mark.parametrize("text", ["", "1", "{1", "{1,}", "{,1}", "{1,,2}", "{{1}}", '{"a}', '{"a"b}', "{a\\b}"])
def test_what_is_no_array_of_one_dimension_is_refused(text: str) -> None:
    with pytest.raises(InvalidText, match="malformed array literal"):
        array_elements(text)


def test_long_texts_are_refused_in_one_pass() -> None:
    # Patterns that try each division of blanks or digits would not end within a day.
    for inner in (" " * 100_000 + "{", "a" * 100_000 + "{", '"' + "a" * 100_000):
        with pytest.raises(Error):
            array_elements(f"{{{inner}}}")
    for kind in {kind for kind, _, _ in ACCEPTED}:
        for text in ("1" * 100_000 + "x", " " * 100_000 + "x", "1 day " * 20_000 + "x"):
            with pytest.raises(DataError):
                read(kind, text)


def test_the_table_of_types_says_what_pg_type_says() -> None:
    scalars = [kind for kind in SqlType if kind not in (SqlType.UNKNOWN, SqlType.ARRAY)]
    assert len({kind.oid for kind in scalars}) == len(scalars)
    for kind in scalars:
        catalogs = kind_of(kind.oid)
        assert catalogs.oid == kind.oid
        assert kind.element is None or catalogs.element == kind.element.oid
        assert of_sql_type(kind).oid == kind.oid and of_sql_type(kind).size == kind.size
    # What is of no type goes as text, and an array of such as one of texts.
    assert (SqlType.UNKNOWN.oid, SqlType.ARRAY.oid) == (SqlType.TEXT.oid, SqlType.TEXT_ARRAY.oid)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *(("1.500000000000000", "1.5"), ("100.000000000000000", "100"), ("0E-15", "0"), ("12.50", "12.50")),
        *(("12345678901234567890123.123456780000000", "12345678901234567890123.12345678"), ("NaN", "NaN")),
        ("202001.000000000000000", "202001"),
    ],
)
def test_zeros_that_storage_adds_are_not_shown(value: str, shown: str) -> None:
    assert str(without_filling(Decimal(value), 15)) == shown


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (SqlType.DATE, "today", date(2024, 7, 5)),
        (SqlType.TIMESTAMP, " Yesterday ", datetime(2024, 7, 4)),
        (SqlType.TIMESTAMPTZ, "tomorrow", datetime(2024, 7, 5, 22, tzinfo=UTC)),
        (SqlType.TIMESTAMPTZ, "now", datetime(2024, 7, 5, 5, 8, 9, tzinfo=UTC)),
        (SqlType.TEXT, "now", "now"),
    ],
)
def test_days_have_names_where_a_moment_is_wanted(kind: SqlType, text: str, value: object) -> None:
    assert {untyped(kind, text).value, typed(kind, text).value, element(kind, text).value} == {value}


def test_days_have_names_in_arrays() -> None:
    assert untyped(SqlType.DATE.array, '{today,NULL,"Tomorrow ",2024-01-05}').value == (
        '["2024-07-05", null, "2024-07-06", "2024-01-05"]'
    )


@pytest.mark.parametrize(("word", "is_kept"), [("today", False), ("2024-01-05", True), ("epoch", True)])
def test_a_plan_with_the_name_of_a_day_is_not_kept(wide_engine: Engine, word: str, is_kept: bool) -> None:
    sql = f"SELECT COUNT(*) FROM visits WHERE visited_on < '{word}'"
    assert (compiled(wide_engine, sql) is compiled(wide_engine, sql)) is is_kept
    (statement,) = parse("SELECT COUNT(*) FROM visits WHERE visited_on < $1")
    assert isinstance(statement, QueryStatement)
    settings = Settings(wide_engine.policy, wide_engine.role("ana")).query(wide_engine.now(), "ana")
    one, other = (wide_engine.compile("ana", statement, settings, (word,), (SqlType.DATE,)) for _ in range(2))
    assert (one is other) is is_kept


def test_a_driver_sends_the_names_of_days(wide_engine: Engine) -> None:
    server = RunningServer(open_session=lambda user, database: Session(wide_engine, user))
    count = "SELECT COUNT(*) FROM visits WHERE visited_on"
    try:
        with psycopg.connect(server.dsn, autocommit=True) as client:
            for word in ("today", " Yesterday ", "now", "tomorrow"):
                written = client.execute(f"{count} < '{word}'").fetchall()
                assert client.execute(f"{count} < %s", (word,)).fetchall() == written
                assert client.execute(f"{count} < ALL (%s)", ([word],)).fetchall() == written
                array = f"SELECT ARRAY_AGG(d) @> '{{{word}}}' FROM (VALUES (%s::date)) t(d)"
                assert client.execute(array, (word,)).fetchall() == [(True,)]
            with pytest.raises(psycopg.errors.InvalidTextRepresentation):
                client.execute(f"{count} < %s", ("someday",))
    finally:
        server.close()
