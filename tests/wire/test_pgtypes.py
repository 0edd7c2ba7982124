"""Values in both formats: written as PostgreSQL writes them, read as PostgreSQL reads them."""

import random
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import pq

from dpsql.errors import Error, InvalidParameter, InvalidText, NumberOutOfRange, UnsupportedQuery
from dpsql.sqltypes import Span, SqlType
from dpsql.sqltypes.textformat import jsonb_text
from dpsql.wire.oidtypes import of_sql_type
from dpsql.wire.pgtypes import BINARY, TEXT, by_oid, of_parameter, of_type, spread_formats

OFFSETS = st.integers(-900, 900).map(lambda minutes: timezone(timedelta(minutes=minutes)))
FLOATS4 = st.floats(width=32)
VALUES: dict[SqlType, st.SearchStrategy[object]] = {
    SqlType.BOOLEAN: st.booleans(),
    SqlType.SMALLINT: st.integers(-(2**15), 2**15 - 1),
    SqlType.INTEGER: st.integers(-(2**31), 2**31 - 1),
    SqlType.BIGINT: st.integers(-(2**63), 2**63 - 1),
    SqlType.NUMERIC: st.decimals(allow_nan=False, places=4) | st.decimals(allow_nan=False, allow_infinity=False),
    SqlType.REAL: FLOATS4,
    SqlType.DOUBLE: st.floats(),
    SqlType.TEXT: st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    SqlType.DATE: st.dates(),
    SqlType.TIME: st.times(),
    SqlType.TIMESTAMP: st.datetimes(),
    SqlType.TIMESTAMPTZ: st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=OFFSETS),
    SqlType.INTERVAL: st.timedeltas(timedelta(days=-(10**6)), timedelta(days=10**6)),
    SqlType.UUID: st.uuids(),
    SqlType.BYTEA: st.binary(),
}


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_round_trip(kind: SqlType, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])
    for code in (TEXT, BINARY):
        written = of_type(kind).write[code](value)
        back = of_type(kind).read[code](written)
        assert back == value or (value != value and back != back), (code, written)
        assert of_type(kind).size in (-1, len(written)) or code == TEXT


SHOWN: list[tuple[SqlType, object, str]] = [
    (SqlType.BOOLEAN, True, "t"),
    (SqlType.BOOLEAN, False, "f"),
    (SqlType.BIGINT, Decimal("12"), "12"),
    (SqlType.DOUBLE, 1e20, "1e+20"),
    (SqlType.DOUBLE, 1e15, "1e+15"),
    (SqlType.DOUBLE, 123456789012345.0, "123456789012345"),
    (SqlType.DOUBLE, -0.0, "-0"),
    (SqlType.DOUBLE, 0.0001, "0.0001"),
    (SqlType.DOUBLE, 0.00001, "1e-05"),
    (SqlType.DOUBLE, 0.1 + 0.2, "0.30000000000000004"),
    (SqlType.DOUBLE, 1.5e300, "1.5e+300"),
    (SqlType.DOUBLE, 3, "3"),
    (SqlType.DOUBLE, float("nan"), "NaN"),
    (SqlType.DOUBLE, float("inf"), "Infinity"),
    (SqlType.DOUBLE, float("-inf"), "-Infinity"),
    (SqlType.REAL, 0.1, "0.1"),
    (SqlType.REAL, 1234567.0, "1.234567e+06"),
    (SqlType.NUMERIC, Decimal("1E+3"), "1000"),
    (SqlType.NUMERIC, Decimal("0.00000001"), "0.00000001"),
    (SqlType.NUMERIC, Decimal("1.50"), "1.50"),
    (SqlType.NUMERIC, Decimal("-0"), "0"),
    (SqlType.NUMERIC, Decimal("NaN"), "NaN"),
    (SqlType.NUMERIC, 0.1, "0.1"),
    (SqlType.DATE, date(20, 1, 2), "0020-01-02"),
    (SqlType.DATE, datetime(2020, 1, 2, 3), "2020-01-02"),
    (SqlType.TIME, time(1, 2, 3, 40_000), "01:02:03.04"),
    (SqlType.TIMESTAMP, datetime(2020, 1, 2), "2020-01-02 00:00:00"),
    (SqlType.TIMESTAMPTZ, datetime(2020, 1, 2), "2020-01-02 00:00:00+00"),
    (SqlType.TIMESTAMPTZ, datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=-3.5))), "2020-01-02 00:00:00-03:30"),
    (
        SqlType.TIMESTAMPTZ,
        datetime(2020, 1, 2, tzinfo=timezone(timedelta(seconds=3661))),
        "2020-01-02 00:00:00+01:01:01",
    ),
    (SqlType.INTERVAL, timedelta(), "00:00:00"),
    (SqlType.INTERVAL, timedelta(days=1), "1 day"),
    (SqlType.INTERVAL, timedelta(days=-1, seconds=-61), "-1 days -00:01:01"),
    (SqlType.INTERVAL, timedelta(days=2, hours=30, microseconds=10), "3 days 06:00:00.00001"),
    (SqlType.UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (SqlType.BYTEA, b"\0\xff", "\\x00ff"),
    (SqlType.JSON, {"a": None}, '{"a": null}'),
    (SqlType.JSON, "[1 ]", "[1 ]"),
    (SqlType.UNKNOWN, "x", "x"),
    (SqlType.CHAR, "x ", "x "),
    (
        SqlType.ARRAY,
        [1, None, "a b", "NULL", 'q"\\', "", True, 1.0, Decimal("1.0")],
        '{1,NULL,"a b","NULL","q\\"\\\\","",t,1,1.0}',
    ),
    (SqlType.ARRAY, ["a", "ß", "nul"], "{a,ß,nul}"),
    (SqlType.ARRAY, ["", "a"], '{"",a}'),
    (SqlType.ARRAY, ["a,b"], '{"a,b"}'),
    (SqlType.ARRAY, ["a b", "c"], '{"a b",c}'),
    (SqlType.ARRAY, ["}", "{", "c"], '{"}","{",c}'),
    (SqlType.ARRAY, ["\\", '"', "c"], '{"\\\\","\\"",c}'),
    (SqlType.ARRAY, ["Null", "annulled", None], '{"Null",annulled,NULL}'),
    (SqlType.ARRAY, ["Null", "annulled"], '{"Null",annulled}'),
    (SqlType.ARRAY, [[""], ["a"]], '{{""},{a}}'),
    (SqlType.ARRAY, [[date(2020, 1, 1)], [datetime(2020, 1, 1)]], '{{2020-01-01},{"2020-01-01 00:00:00"}}'),
    (
        SqlType.ARRAY,
        [time(1), timedelta(1), b"\1", datetime(2020, 1, 1, tzinfo=UTC)],
        '{01:00:00,"1 day","\\\\x01","2020-01-01 00:00:00+00"}',
    ),
]


@pytest.mark.parametrize(("kind", "value", "shown"), SHOWN)
def test_text(kind: SqlType, value: object, shown: str) -> None:
    assert of_type(kind).write[TEXT](value).decode() == shown


def test_arrays_in_binary() -> None:
    write = of_type(SqlType.ARRAY).write[BINARY]
    head = struct.pack("!iii", 1, 1, 25) + struct.pack("!ii", 2, 1)
    assert write(["a", None]) == head + b"\0\0\0\1a" + b"\xff\xff\xff\xff"
    assert write([]) == struct.pack("!iii", 0, 0, 25)
    assert write([[1], [2]])[:12] == struct.pack("!iii", 2, 0, 25)


def test_every_type_has_an_oid() -> None:
    assert all(of_sql_type(kind).oid for kind in SqlType)


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (SqlType.BOOLEAN, b" Yes ", True),
        (SqlType.BOOLEAN, b"off", False),
        (SqlType.INTEGER, b" +7 ", 7),
        (SqlType.DOUBLE, b"-infinity", float("-inf")),
        (SqlType.DOUBLE, b".5e1", 5.0),
        (SqlType.NUMERIC, b"1e3", Decimal(1000)),
        (SqlType.DATE, b"2020-02-29 01:00", date(2020, 2, 29)),
        (SqlType.TIMESTAMP, b"2020-01-01T01:02:03.5+05", datetime(2020, 1, 1, 1, 2, 3, 500_000)),
        (SqlType.TIMESTAMPTZ, b"2020-01-01 00:00 +05:30", datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=5.5)))),
        (SqlType.TIMESTAMPTZ, b"2020-01-01 00:00z", datetime(2020, 1, 1, tzinfo=UTC)),
        (SqlType.TIMESTAMPTZ, b"2020-01-01", datetime(2020, 1, 1)),
        (SqlType.UUID, b"{00000000000000000000000000000001}", UUID(int=1)),
        (SqlType.BYTEA, b"a\\\\b\\001", b"a\\b\x01"),
        (SqlType.BYTEA, b"\\xAb", b"\xab"),
        (SqlType.INTERVAL, b"1 day, 2:03:04", timedelta(days=1, hours=2, minutes=3, seconds=4)),
        (SqlType.INTERVAL, b"-1 week 2.5 hours -0:00:01", timedelta(days=-7, hours=2, minutes=29, seconds=59)),
        (SqlType.INTERVAL, b"90 minutes", timedelta(minutes=90)),
        (
            SqlType.INTERVAL,
            b"1 days 7384 seconds -500 microseconds",
            timedelta(days=1, seconds=7384, microseconds=-500),
        ),
        (SqlType.INTERVAL, b"3 Milliseconds", timedelta(milliseconds=3)),
        (SqlType.INTERVAL, b"1 year -2 mons", Span(10, 0, 0)),
        (SqlType.INTERVAL, b"3 mons 2 days -00:00:01", Span(3, 2, -1_000_000)),
    ],
)
def test_text_parameters(kind: SqlType, raw: bytes, value: object) -> None:
    read = of_type(kind).read[TEXT](raw)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (SqlType.BOOLEAN, b"maybe"),
        (SqlType.INTEGER, b""),
        (SqlType.INTEGER, b"1_000"),
        (SqlType.INTEGER, "١".encode()),
        (SqlType.INTEGER, b"1.0"),
        (SqlType.INTEGER, b"\x1c0"),
        (SqlType.DOUBLE, b"1_0"),
        (SqlType.DOUBLE, b"0x10"),
        (SqlType.DOUBLE, "ınf".encode()),
        (SqlType.INTERVAL, "1 wee\u212a".encode()),
        (SqlType.NUMERIC, b"sNaN"),
        (SqlType.NUMERIC, b"x" * 1000),
        (SqlType.DATE, b"2021-02-29"),
        (SqlType.DATE, b"2020-W01-1"),
        (SqlType.TIMESTAMP, b"2020-01-01 25:00"),
        (SqlType.TIME, b"24:61"),
        (SqlType.TIME, b"x"),
        (SqlType.UUID, b"1"),
        (SqlType.BYTEA, b"\\x0"),
        (SqlType.BYTEA, b"a\\b"),
        (SqlType.BYTEA, b"\\"),
        (SqlType.INTERVAL, b"1 month 1 fortnight"),
        (SqlType.INTERVAL, b" "),
        (SqlType.TEXT, b"\xff"),
        (SqlType.TEXT, b"a\0"),
    ],
)
def test_what_is_not_of_the_type_is_refused(kind: SqlType, raw: bytes) -> None:
    with pytest.raises(InvalidText) as refused:
        of_type(kind).read[TEXT](raw)
    assert len(refused.value.message) < 150


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (SqlType.SMALLINT, b"32768"),
        (SqlType.BIGINT, b"-9223372036854775809"),
        (SqlType.INTEGER, b"9" * 5000),
        (SqlType.DOUBLE, b"1e999"),
        (SqlType.REAL, b"1e39"),
        (SqlType.NUMERIC, b"1e131072"),
        (SqlType.NUMERIC, b"1e-16384"),
        (SqlType.NUMERIC, b"1e999999999"),
        (SqlType.INTERVAL, b"999999999 weeks"),
        (SqlType.INTERVAL, b"999999999 days 24:00:00"),
    ],
)
def test_what_does_not_fit_is_refused(kind: SqlType, raw: bytes) -> None:
    with pytest.raises(NumberOutOfRange):
        of_type(kind).read[TEXT](raw)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (SqlType.DATE, struct.pack("!i", 2**31 - 2)),
        (SqlType.TIMESTAMP, struct.pack("!q", 2**63 - 2)),
        (SqlType.TIMESTAMPTZ, struct.pack("!q", 1 - 2**63)),
        (SqlType.TIME, struct.pack("!q", 86_400_000_000)),
        (SqlType.INTERVAL, struct.pack("!qii", 0, 2**31 - 1, 0)),
    ],
)
def test_binary_parameters_beyond_the_calendar_are_refused(kind: SqlType, raw: bytes) -> None:
    with pytest.raises(NumberOutOfRange):
        of_type(kind).read[BINARY](raw)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("kind", "layout", "sizes"),
    [
        (SqlType.DATE, "!i", [31]),
        (SqlType.TIMESTAMP, "!q", [63]),
        (SqlType.TIMESTAMPTZ, "!q", [63]),
        (SqlType.INTERVAL, "!qii", [63, 31, 31]),
    ],
)
def test_infinite_moments_and_intervals_are_no_parameters(
    kind: SqlType, layout: str, sizes: list[int], sign: int
) -> None:
    ends = (2**size - 1 if sign > 0 else -(2**size) for size in sizes)
    with pytest.raises(InvalidParameter, match="parameter cannot be an infinite") as refused:
        of_type(kind).read[BINARY](struct.pack(layout, *ends))
    assert refused.value.hint
    with pytest.raises(InvalidParameter, match=re.escape(refused.value.message)):
        of_type(kind).read[TEXT](b" Infinity" if sign > 0 else b"-infinity")


def test_months_are_no_number_of_days() -> None:
    assert of_type(SqlType.INTERVAL).read[BINARY](struct.pack("!qii", 5, 3, 1)) == Span(1, 3, 5)


def test_parameters_that_dpsql_cannot_hold_are_refused() -> None:
    with pytest.raises(UnsupportedQuery):
        of_type(SqlType.ARRAY).read[TEXT](b"{}")


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("!HhHH", 1, 0, 0, 0),
        struct.pack("!HhHHH", 1, 0, 0, 0, 10_000),
        struct.pack("!HhHHH", 1, 0, 1, 0, 1),
        struct.pack("!HhHHH", 1, 0, 0, 16_384, 1),
        b"",
    ],
)
def test_malformed_binary_numerics_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidText):
        of_type(SqlType.NUMERIC).read[BINARY](raw)


@pytest.mark.parametrize("kind", SqlType)
@given(raw=st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(kind: SqlType, raw: bytes) -> None:
    for code in (TEXT, BINARY):
        try:
            of_sql_type(kind).read[code](raw)
        except Error as refused:
            assert isinstance(refused, InvalidText | InvalidParameter | NumberOutOfRange | UnsupportedQuery)


def test_a_fraction_is_no_integer() -> None:
    for code in (TEXT, BINARY):
        with pytest.raises(ValueError, match="fraction"):
            of_type(SqlType.BIGINT).write[code](1.5)


def test_an_integer_that_does_not_fit_is_refused() -> None:
    with pytest.raises(NumberOutOfRange):
        of_type(SqlType.SMALLINT).write[BINARY](2**15)


def test_declared_types() -> None:
    assert of_parameter(0) is None and of_parameter(705) is None
    for oid, raw, value in (
        (26, b"\xff" * 4, 2**32 - 1),
        (3802, b'\1{"a":1}', '{"a":1}'),
        (19, b"x", "x"),
        (18, b"x", "x"),
    ):
        declared = of_parameter(oid)
        assert declared is not None and declared.oid == oid
        assert declared.read[BINARY](raw) == value
    with pytest.raises(UnsupportedQuery, match="600"):
        of_parameter(600)


def test_jsonb_has_a_version() -> None:
    jsonb = of_parameter(3802)
    assert jsonb is not None
    with pytest.raises(InvalidText):
        jsonb.read[BINARY](b"\2{}")


def test_jsonb_as_postgres_prints_it() -> None:
    made = jsonb_text('{"bb" : 1.50, "a" : [1e20, null, true, "\\u00e9\\u001F/"], "é": {}, "a" : [-0.5e-3]}')
    assert made == '{"a": [-0.0005], "bb": 1.50, "é": {}}'
    assert jsonb_text('["\\u00e9\\u001F/", 1e20]') == '["é\\u001f/", 100000000000000000000]'
    assert of_type(SqlType.JSONB).write[BINARY](made) == b"\1" + made.encode()


def test_formats() -> None:
    assert spread_formats((), 2) == (0, 0)
    assert spread_formats((1,), 3) == (1, 1, 1)
    assert spread_formats((0, 1), 2) == (0, 1)
    assert spread_formats((1,), 0) == ()
    for formats, count in (((2,), 1), ((0, 1), 3)):
        with pytest.raises(InvalidParameter):
            spread_formats(formats, count)


_RANDOM = random.Random(7)


def _moment() -> datetime:
    return datetime(1, 1, 2) + timedelta(microseconds=_RANDOM.randrange(3 * 10**17))


SAMPLES: dict[SqlType, Callable[[], object]] = {
    SqlType.BOOLEAN: lambda: _RANDOM.random() < 0.5,
    SqlType.SMALLINT: lambda: _RANDOM.randrange(-(2**15), 2**15),
    SqlType.INTEGER: lambda: _RANDOM.randrange(-(2**31), 2**31),
    SqlType.BIGINT: lambda: _RANDOM.randrange(-(2**63), 2**63),
    SqlType.NUMERIC: lambda: Decimal(_RANDOM.randrange(-(10**30), 10**30)).scaleb(-_RANDOM.randrange(40)),
    # Beyond 2^53 PostgreSQL prints one digit more than is needed where a float lies between two decimals.
    SqlType.DOUBLE: lambda: _RANDOM.choice((1, -1)) * _RANDOM.random() * 10.0 ** _RANDOM.randrange(-300, 15),
    SqlType.REAL: lambda: struct.unpack("!f", struct.pack("!f", _RANDOM.random() * 10.0 ** _RANDOM.randrange(-30, 6)))[
        0
    ],
    SqlType.TEXT: lambda: "é" * _RANDOM.randrange(3),
    SqlType.DATE: lambda: _moment().date(),
    SqlType.TIME: lambda: _moment().time(),
    SqlType.TIMESTAMP: _moment,
    SqlType.TIMESTAMPTZ: lambda: _moment().replace(tzinfo=UTC),
    SqlType.INTERVAL: lambda: timedelta(days=_RANDOM.randrange(-3, 3), microseconds=_RANDOM.randrange(10**11)),
    SqlType.UUID: lambda: UUID(int=_RANDOM.getrandbits(128)),
    SqlType.BYTEA: lambda: _RANDOM.randbytes(_RANDOM.randrange(9)),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_real_postgres_writes_the_same_bytes(kind: SqlType, postgres: psycopg.Connection) -> None:
    """What we write, in either format, PostgreSQL reads, and writes back, in either format, as we do."""
    our = of_type(kind)
    for _ in range(40):
        written = _both(our.write, SAMPLES[kind]())
        for given_code in (TEXT, BINARY):
            for code in (TEXT, BINARY):
                result = postgres.pgconn.exec_params(
                    b"SELECT $1", [written[given_code]], [our.oid], [given_code], result_format=code
                )
                assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
                assert result.get_value(0, 0) == written[code]
                assert (result.ftype(0), result.fsize(0)) == (our.oid, our.size)


def _both(write: tuple[Callable[[object], bytes], Callable[[object], bytes]], value: object) -> tuple[bytes, bytes]:
    return write[TEXT](value), write[BINARY](value)


def test_a_letter_is_one_byte() -> None:
    kind = by_oid(18)
    assert kind is not None
    assert [kind.write[BINARY](value) for value in ("r", "", "ra")] == [b"r", b"\0", b"r"]
    assert [kind.read[BINARY](raw) for raw in (b"r", b"\0", b"")] == ["r", "", ""]
    assert [kind.write[TEXT](value) for value in ("r", "")] == [b"r", b""]
