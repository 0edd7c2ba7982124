"""Values under DateStyle, TimeZone, IntervalStyle, bytea_output and extra_float_digits: as PostgreSQL prints them."""

import json
import struct
from array import array
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import pq

from dpsql.errors import Error, NumberOutOfRange
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import ResultColumn
from dpsql.gateway.session import Session
from dpsql.gateway.settings import Settings
from dpsql.limits.result_memory import RowBlock
from dpsql.sqltypes import Span, SqlType
from dpsql.wire.messages.backend import DataRow
from dpsql.wire.messages.rows import data_rows
from dpsql.wire.oidtypes import of_column, of_oid
from dpsql.wire.pgtypes import BINARY, TEXT, of_type
from dpsql.wire.styles import PLAIN, Style
from tests.wire.conftest import RunningServer

STYLES = st.fixed_dictionaries(
    {
        "DateStyle": st.builds(
            "{}, {}".format,
            st.sampled_from(["ISO", "SQL", "Postgres", "German"]),
            st.sampled_from(["MDY", "DMY", "YMD"]),
        ),
        "TimeZone": st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Dubai", "Africa/Monrovia"]),
        "IntervalStyle": st.sampled_from(["postgres", "postgres_verbose", "sql_standard", "iso_8601"]),
        "bytea_output": st.sampled_from(["hex", "escape"]),
        "extra_float_digits": st.integers(-15, 3).map(str),
    }
)
_SMALL = st.integers(-40, 40)
_MICROS = st.sampled_from([0, 1, -1, 500_000, -1_500_000, 61_000_000, -3_600_000_000, 86_400_000_000]) | st.integers(
    -(10**12), 10**12
)
# Python's offsets from before there were time zones may differ from PostgreSQL's by whole names; not from 1900 on.
_MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2037, 12, 31))
VALUES: dict[SqlType, st.SearchStrategy[Any]] = {
    SqlType.DATE: st.dates(date(1, 1, 2)),
    SqlType.TIMESTAMP: st.datetimes(datetime(1, 1, 2)),
    SqlType.TIMESTAMPTZ: _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    SqlType.INTERVAL: st.builds(Span, _SMALL, _SMALL, _MICROS),
    SqlType.BYTEA: st.binary(max_size=20),
    SqlType.DOUBLE: st.floats(allow_nan=True).filter(lambda value: abs(value) < 2.0**53 or value != value),
    SqlType.REAL: st.floats(width=32).filter(lambda value: abs(value) < 2.0**24 or value != value),
}
ARRAYS = {1182: 1082, 1115: 1114, 1185: 1184, 1187: 1186, 1001: 17, 1022: 701, 1021: 700}


def set_up(connection: psycopg.Connection, chosen: dict[str, str]) -> None:
    connection.execute(";".join(f"SET {name} = '{value}'" for name, value in chosen.items()).encode())


def printed(connection: psycopg.Connection, oid: int, raw: bytes) -> bytes:
    """What PostgreSQL prints of a value that it is given in binary."""
    result = connection.pgconn.exec_params(b"SELECT $1", [raw], [oid], [BINARY], result_format=TEXT)
    assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
    shown = result.get_value(0, 0)
    assert shown is not None
    return shown


@pytest.fixture
def other(postgres: psycopg.Connection) -> Any:
    yield postgres
    postgres.execute("RESET ALL; SET TimeZone = 'UTC'")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=STYLES, values=st.tuples(*VALUES.values()))
def test_values_are_printed_as_postgresql_prints_them(
    other: psycopg.Connection, chosen: dict[str, str], values: tuple[Any, ...]
) -> None:
    set_up(other, chosen)
    style = Style.of(chosen)
    for kind, value in zip(VALUES, values, strict=True):
        plain, styled = of_type(kind), of_column(ResultColumn("x", kind), style)
        assert styled.write[TEXT](value) == printed(other, plain.oid, plain.write[BINARY](value)), kind
        assert styled.write[BINARY](value) == plain.write[BINARY](value)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=STYLES, data=st.data())
@pytest.mark.parametrize("oid", ARRAYS)
def test_arrays_too(other: psycopg.Connection, oid: int, chosen: dict[str, str], data: st.DataObject) -> None:
    set_up(other, chosen)
    element = of_oid(ARRAYS[oid])
    values = data.draw(st.lists(st.none() | VALUES[element.type], max_size=3))
    raw = of_oid(oid).write[BINARY](values)
    assert of_oid(oid, Style.of(chosen)).write[TEXT](values) == printed(other, oid, raw)
    if not any(element.type is kind for kind in (SqlType.REAL, SqlType.BYTEA)):  # Python has no such type of its own
        assert of_column(ResultColumn("x", SqlType.ARRAY), Style.of(chosen)).write[TEXT](values) == printed(
            other, oid, raw
        )


OF_COLUMNS = VALUES | {
    SqlType.BOOLEAN: st.booleans() | st.integers(0, 1),
    SqlType.SMALLINT: st.integers(-(2**15), 2**15 - 1),
    SqlType.INTEGER: st.integers(-(2**31), 2**31 - 1),
    SqlType.BIGINT: st.integers(-(2**62), 2**62) | st.integers(-9, 9).map(Decimal) | st.booleans(),
    SqlType.DOUBLE: st.floats()
    | st.integers(-(10**9), 10**9).map(lambda number: number / 1000)
    | st.sampled_from([-0.0, 1e15, -1e15, 999999999999999.9, 1e16, 1e-4, 9.99e-5, 2.5e-310])
    | st.integers(-9, 9).map(float),
    SqlType.TEXT: st.text() | st.integers(),
    SqlType.DATE: st.dates() | st.datetimes(),
    SqlType.TIME: st.times(),
    SqlType.UUID: st.uuids(),
    SqlType.JSONB: st.text().map(json.dumps),
    SqlType.NUMERIC: st.decimals(allow_nan=False, allow_infinity=False, places=3),
    SqlType.ARRAY: st.lists(st.none() | st.floats() | st.dates(), max_size=3),
}


@settings(max_examples=25, deadline=None)
@given(chosen=STYLES, data=st.data())
@pytest.mark.parametrize("kind", OF_COLUMNS)
def test_a_column_is_written_as_its_values(kind: SqlType, chosen: dict[str, str], data: st.DataObject) -> None:
    several = OF_COLUMNS[kind]
    alike = several.flatmap(lambda one: st.lists(several.filter(lambda other: type(other) is type(one)), max_size=4))
    values = data.draw(alike | st.lists(st.none() | several, max_size=4))
    for written in (of_column(ResultColumn("x", kind), Style.of(chosen)), of_type(kind)):
        for code in (TEXT, BINARY):
            one_by_one = [None if value is None else written.write[code](value) for value in values]
            row_by_row = b"".join(DataRow((value,)).encode() for value in one_by_one)
            assert data_rows([written.column(code, values)], len(values)) == row_by_row


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (SqlType.BIGINT, [-(2**63), 2**63 - 1, 0, -1, 10, 99, 10**18]),
        (SqlType.SMALLINT, [-(2**15), 2**15 - 1]),
        (SqlType.DOUBLE, [0.0, -0.0, -0.5, 12.25, 0.0001, -99999999999.1234, 100.0]),
        (SqlType.DOUBLE, [0.5, 99999999999999.5]),
        (SqlType.DOUBLE, [0.5, 999999999999999.0]),
        (SqlType.DOUBLE, [0.5, 0.00001]),
        (SqlType.DOUBLE, [0.5, 1 / 3, -7.0, -0.0]),
        (SqlType.DOUBLE, [float("nan"), 0.5]),
        (SqlType.DOUBLE, [float("inf"), 0.5]),
        (SqlType.DOUBLE, [1 / 3, 1e15]),
        (SqlType.DOUBLE, [1 / 3, -1e15]),
        (SqlType.DOUBLE, [0.5, 1e15, -1e300]),
        (SqlType.DOUBLE, [0.5, float("nan"), float("inf"), float("-inf")]),
        (SqlType.DOUBLE, [2.0**53, 5e-324]),
    ],
)
def test_numbers_in_an_array_are_written_as_their_values(kind: SqlType, values: list[float]) -> None:
    written = of_type(kind)
    (column,) = RowBlock.of([(value,) for value in values]).columns
    assert isinstance(column, array)
    for code in (TEXT, BINARY):
        row_by_row = b"".join(DataRow((written.write[code](value),)).encode() for value in values)
        assert data_rows([written.column(code, column)], len(values)) == row_by_row


def test_whole_numbers_beyond_64_bits_are_written_as_text() -> None:
    assert of_type(SqlType.BIGINT).column(TEXT, [2**64, -1]).data == b"18446744073709551616-1"


@pytest.mark.parametrize(
    ("kind", "least"), [(SqlType.SMALLINT, 2**15), (SqlType.INTEGER, 2**31), (SqlType.BIGINT, 2**63)]
)
def test_a_column_with_a_number_too_great_for_it_is_refused(kind: SqlType, least: int) -> None:
    with pytest.raises(NumberOutOfRange):
        of_type(kind).column(BINARY, [0, least])


@pytest.mark.parametrize("chosen", ["postgres", "postgres_verbose", "sql_standard", "iso_8601"])
def test_intervals_of_every_kind(other: psycopg.Connection, chosen: str) -> None:
    set_up(other, {"IntervalStyle": chosen})
    style = Style(intervals=chosen)
    signs = (-1, 0, 1)
    for months in (0, 1, -14):
        for days in (0, *signs):
            for micros in (0, 1_000_000, -1_000_000, 3_661_500_000, -59_000_000, -1):
                span = Span(months, days, micros)
                raw = of_type(SqlType.INTERVAL).write[BINARY](span)
                assert style.interval(span).encode() == printed(other, 1186, raw)
    assert style.interval(timedelta(days=1)) == style.interval(Span(0, 1, 0))


def test_the_style_of_the_type_table_is_that_of_a_new_session(engine: Engine) -> None:
    session = Session(engine, "ana")
    style = Style.of(session.output_settings)
    assert style == Style(zone="UTC")
    moment = datetime(2024, 2, 29, 12, tzinfo=UTC)
    for chosen in (PLAIN, style):
        assert chosen.timestamptz(moment) == chosen.timestamptz(moment.replace(tzinfo=None)) == "2024-02-29 12:00:00+00"


SPELLINGS = st.lists(
    st.sampled_from(
        [
            *("ISO", "sql", "Postgres", "postgresql", "German", "DMY", "mdy", "YMD", "us", "European", "euro"),
            *("NonEuro", "noneuropean", "", "x"),
        ]
    ),
    min_size=1,
    max_size=3,
).map(",".join)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=SPELLINGS, value=SPELLINGS)
@example("German", "ISO")
@example("DMY", "german,mdy")
def test_date_styles_are_read_as_postgresql_reads_them(
    other: psycopg.Connection, engine: Engine, before: str, value: str
) -> None:
    ours = Settings(engine.policy, engine.role("ana"))
    other.execute("SET DateStyle = 'ISO, MDY'")
    for text in (before, value):
        assert _ours(ours, text) == _theirs(other, text)


def _ours(found: Settings, text: str) -> str | None:
    try:
        found.set("DateStyle", text)
    except Error:
        return None
    return found.show("DateStyle")


def _theirs(connection: psycopg.Connection, text: str) -> str | None:
    try:
        connection.execute(f"SET DateStyle = '{text}'".encode())
    except psycopg.errors.InvalidParameterValue:
        return None
    row = connection.execute("SHOW DateStyle").fetchone()
    return str(row[0]) if row is not None else None


CONSTANTS = """SELECT date '2024-02-29', timestamp '2024-02-29 12:30:00.5', timestamptz '2024-07-01 12:30:00+00',
    interval '1 year 2 mons -3 days 04:05:06.7', 0.1::real, 0.1::double precision, 'x'"""


@pytest.fixture
def gateway(engine: Engine, serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(open_session=lambda user, _database: Session(engine, user))


def test_a_session_prints_in_its_style_and_tells_of_it(gateway: RunningServer, other: psycopg.Connection) -> None:
    chosen = {
        "DateStyle": "SQL, DMY",
        "TimeZone": "Europe/Berlin",
        "IntervalStyle": "iso_8601",
        "extra_float_digits": "-2",
    }
    with psycopg.connect(gateway.dsn, autocommit=True) as ours:
        for connection in (ours, other):
            set_up(connection, chosen)
        assert _row(ours) == _row(other)
        for name in ("DateStyle", "TimeZone", "IntervalStyle"):
            assert ours.info.parameter_status(name) == chosen[name]
        for options in ("", "(FORMAT csv)"):
            assert _copied(ours, options) == _copied(other, options)


def _copied(connection: psycopg.Connection, options: str) -> bytes:
    with connection.cursor().copy(f"COPY ({CONSTANTS}) TO STDOUT {options}".encode()) as copy:
        return b"".join(map(bytes, copy))


def _row(connection: psycopg.Connection) -> list[bytes | None]:
    result = connection.pgconn.exec_(CONSTANTS.encode())
    assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
    return [result.get_value(0, column) for column in range(result.nfields)]


def test_numbers_of_four_bytes_are_rounded_as_such() -> None:
    (single,) = struct.unpack("!f", struct.pack("!f", 0.1))
    assert (Style(float_digits=0).real(single), Style().real(single)) == ("0.1", "0.1")
