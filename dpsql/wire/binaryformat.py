"""Values in PostgreSQL's binary format: network byte order, dates and times counted from 2000-01-01.

psycopg's adapters are not used: they are for what a server sends, make an int4 of three bytes by reading one beyond
them, or of six, and 30 days of a month. They take a type from a value too (1 is an int2), where a column has its own.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from dpsql.errors import InvalidText, NumberOutOfRange
from dpsql.sqltypes import Span, SqlType
from dpsql.sqltypes.textformat import json_text, whole
from dpsql.sqltypes.textinput import infinite, read_text
from dpsql.wire.messages.fields import int32, sized, uint32

_EPOCH_DAY: Final = date(2000, 1, 1)
_FIRST_DAY: Final = _EPOCH_DAY.toordinal()
_EPOCH: Final = datetime(2000, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)

_NAN: Final = 0xC000
_INFINITY: Final = 0xD000
_NEGATIVE_INFINITY: Final = 0xF000
_NEGATIVE: Final = 0x4000
_NUMERIC: Final = struct.Struct("!HhHH")
_INTERVAL: Final = struct.Struct("!qii")


def boolean(value: object) -> bytes:
    """Return one byte."""
    return b"\1" if value else b"\0"


def integer(layout: str) -> Callable[[int | float | Decimal], bytes]:
    """Return the writer of an integer type that has a struct layout."""
    packer = struct.Struct(layout)

    def write(value: int | float | Decimal) -> bytes:
        try:
            return packer.pack(whole(value))
        except struct.error:
            raise NumberOutOfRange(f"value is out of range for an integer of {packer.size} bytes") from None

    return write


def read_integer(layout: str) -> Callable[[bytes], int]:
    """Return the reader of an integer type that has a struct layout."""

    def read(raw: bytes) -> int:
        return int(_unpack(layout, raw)[0])

    return read


def floating(layout: str) -> Callable[[float], bytes]:
    """Return the writer of a floating-point type that has a struct layout."""
    packer = struct.Struct(layout)

    def write(value: float) -> bytes:
        try:
            return packer.pack(value)
        except OverflowError:
            raise NumberOutOfRange('value is out of range for type "real"') from None

    return write


def read_floating(layout: str) -> Callable[[bytes], float]:
    """Return the reader of a floating-point type that has a struct layout."""

    def read(raw: bytes) -> float:
        return float(_unpack(layout, raw)[0])

    return read


def numeric(value: int | float | Decimal) -> bytes:
    """Return base-10000 digits behind their number, the weight of the first, the sign and the scale."""
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if number.is_nan():
        return _NUMERIC.pack(0, 0, _NAN, 0)
    if number.is_infinite():
        return _NUMERIC.pack(0, 0, _NEGATIVE_INFINITY if number.is_signed() else _INFINITY, 0)
    sign, digits, exponent = number.as_tuple()
    scale = max(0, -int(exponent))
    shown = "".join(map(str, digits)) + "0" * max(0, int(exponent))
    before, behind = (shown[:-scale], shown[-scale:].rjust(scale, "0")) if scale else (shown, "")
    before = before.rjust(-(-len(before) // 4) * 4, "0")
    behind = behind.ljust(-(-len(behind) // 4) * 4, "0")
    groups = [int((before + behind)[at : at + 4]) for at in range(0, len(before + behind), 4)]
    weight = len(before) // 4 - 1
    while groups and not groups[0]:
        del groups[0]
        weight -= 1
    while groups and not groups[-1]:
        del groups[-1]
    if not groups:
        weight = sign = 0
    head = _NUMERIC.pack(len(groups), weight, _NEGATIVE if sign else 0, scale)
    return head + struct.pack(f"!{len(groups)}H", *groups)


def read_numeric(raw: bytes) -> Decimal:
    """Return the exact number."""
    count, weight, sign, scale = _unpack("!HhHH", raw[:8])
    groups = _unpack(f"!{count}H", raw[8:])
    if sign in (_NAN, _INFINITY, _NEGATIVE_INFINITY):
        return Decimal({_NAN: "NaN", _INFINITY: "Infinity", _NEGATIVE_INFINITY: "-Infinity"}[sign])
    if sign not in (0, _NEGATIVE) or any(group > 9999 for group in groups) or scale > 16_383:
        raise _malformed()
    digits = "".join(f"{group:04d}" for group in groups)
    number = Decimal(("-" if sign else "") + (digits or "0") + f"E{4 * (weight + 1 - count)}")
    shown = format(number, "f")
    before, _, behind = shown.partition(".")
    # PostgreSQL, too, cuts or pads what is behind the point to the scale that is sent along.
    return Decimal(before + "." + behind[:scale].ljust(scale, "0")) if scale else Decimal(before)


def text(value: object) -> bytes:
    """Return UTF-8."""
    return str(value).encode("utf-8", "replace")


def letter(value: object) -> bytes:
    """Return the one byte of a "char", which is zero where there is no letter."""
    return text(value)[:1] or b"\0"


def read_letter(raw: bytes) -> str:
    """Return the letter of a "char", if there is one."""
    return read_text(raw.rstrip(b"\0"))


def json(value: object) -> bytes:
    """Return JSON as UTF-8."""
    return text(json_text(value))


def jsonb(value: object) -> bytes:
    """Return jsonb's text behind its version byte."""
    return b"\1" + json(value)


def read_jsonb(raw: bytes) -> str:
    """Return jsonb's text, which stands behind a version byte."""
    if raw[:1] != b"\1":
        raise _malformed()
    return read_text(raw[1:])


def bytea(value: bytes) -> bytes:
    """Return the bytes."""
    return bytes(value)


def day(value: date) -> bytes:
    """Return days since 2000-01-01."""
    return int32(day_number(value))


def day_number(value: date) -> int:
    """Return days since 2000-01-01 as a number."""
    return value.toordinal() - _FIRST_DAY


def read_date(raw: bytes) -> date:
    """Return a date of the years 1 to 9999."""
    days = _finite(read_integer("!i")(raw), 31, SqlType.DATE)
    try:
        return _EPOCH_DAY + timedelta(days=days)
    except OverflowError:
        raise NumberOutOfRange("date out of range") from None


def timestamp(value: datetime) -> bytes:
    """Return microseconds since 2000-01-01."""
    return struct.pack("!q", (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND)


def timestamptz(value: datetime) -> bytes:
    """Return microseconds since 2000-01-01 UTC; a value without a time zone is in UTC."""
    return timestamp(value.astimezone(UTC) if value.tzinfo else value)


def read_timestamp(raw: bytes, kind: SqlType = SqlType.TIMESTAMP) -> datetime:
    """Return a timestamp of the years 1 to 9999."""
    micros = _finite(read_integer("!q")(raw), 63, kind)
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise NumberOutOfRange("timestamp out of range") from None


def read_timestamptz(raw: bytes) -> datetime:
    """Return a timestamp in UTC."""
    return read_timestamp(raw, SqlType.TIMESTAMPTZ).replace(tzinfo=UTC)


def time_of_day(value: time) -> bytes:
    """Return microseconds since midnight."""
    moment = datetime.combine(_EPOCH_DAY, value.replace(tzinfo=None))
    return struct.pack("!q", (moment - _EPOCH) // _MICROSECOND)


def read_time(raw: bytes) -> time:
    """Return a time of day."""
    micros = read_integer("!q")(raw)
    if not 0 <= micros < _DAY // _MICROSECOND:
        raise NumberOutOfRange("time out of range")
    return (_EPOCH + timedelta(microseconds=micros)).time()


def interval(value: timedelta | Span) -> bytes:
    """Return microseconds, days and months."""
    span = Span.of(value) if isinstance(value, timedelta) else value
    try:
        return _INTERVAL.pack(span.microseconds, span.days, span.months)
    except struct.error:
        raise NumberOutOfRange("interval out of range") from None


def read_interval(raw: bytes) -> timedelta | Span:
    """Return an interval: a span of fixed length, or one with months."""
    micros, days, months = _unpack("!qii", raw)
    _finite(months, 31, SqlType.INTERVAL)
    return fixed(Span(months, days, micros))


def fixed(span: Span) -> timedelta | Span:
    """Return a span without months as what Python has for it."""
    if span.months:
        return span
    try:
        return timedelta(days=span.days, microseconds=span.microseconds)
    except OverflowError:
        raise NumberOutOfRange("interval out of range") from None


def uuid(value: UUID | str) -> bytes:
    """Return the 16 bytes."""
    return (value if isinstance(value, UUID) else UUID(value)).bytes


def read_uuid(raw: bytes) -> UUID:
    """Return the UUID of 16 bytes."""
    if len(raw) != 16:
        raise _malformed()
    return UUID(bytes=raw)


def read_boolean(raw: bytes) -> bool:
    """Return a boolean of one byte."""
    if len(raw) != 1:
        raise _malformed()
    return raw != b"\0"


def array(oid: int, write: Callable[[Any], bytes], *, lower_bound: int = 1) -> Callable[[Sequence[object]], bytes]:
    """Return the writer of arrays whose elements have a type and a writer; the subscripts of vectors begin at 0."""

    def write_array(value: Sequence[object]) -> bytes:
        sizes, elements = flattened(value)
        sizes = sizes or ([] if lower_bound else [0])
        head = int32(len(sizes)) + int32(any(one is None for one in elements)) + uint32(oid)
        bounds = b"".join(int32(size) + int32(lower_bound) for size in sizes)
        return head + bounds + b"".join(sized(None if one is None else write(one)) for one in elements)

    return write_array


def flattened(value: Sequence[object]) -> tuple[list[int], list[object]]:
    """Return the sizes of an array's dimensions, outermost first, and its elements in order.

    Raises:
        InvalidText: The parts of a dimension differ in size, as those of an engine's lists may.
    """
    if not value:
        return [], []
    if not any(isinstance(part, list | tuple) for part in value):
        return [len(value)], list(value)
    parts = [flattened(part) if isinstance(part, list | tuple) else ([], []) for part in value]
    if any(sizes != parts[0][0] for sizes, _ in parts):
        raise InvalidText("multidimensional arrays must have sub-arrays with matching dimensions")
    return [len(value), *parts[0][0]], [element for _, elements in parts for element in elements]


def _finite(number: int, bits: int, kind: SqlType) -> int:
    """Return a number that is neither the least nor the greatest of its bits, which stand for the infinities.

    Raises:
        InvalidParameter: It is one of them.
    """
    if number in (-(2**bits), 2**bits - 1):
        raise infinite(kind)
    return number


def _unpack(layout: str, raw: bytes) -> tuple[int, ...]:
    try:
        return struct.unpack(layout, raw)
    except struct.error:
        raise _malformed() from None


def _malformed() -> InvalidText:
    return InvalidText("incorrect binary data format in a parameter")
