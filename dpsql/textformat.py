"""Values as PostgreSQL prints and reads them in text format, under DateStyle ISO and the like; see wire/styles.py."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy

from dpsql.errors import InvalidText, NumberOutOfRange
from dpsql.sqltypes import Span

_DAY: Final = timedelta(days=1)
_SHOWN: Final = 64
_ALIKE: Final = 15
"""Digits before the point up to which nobody turns to an exponent; the sign may be one of them."""


def boolean(value: object) -> str:
    """Return t or f."""
    return "t" if value else "f"


def integer(value: int | float | Decimal) -> str:
    """Return the digits of a whole number, whatever Python type it has."""
    return str(value if type(value) is int else whole(value))


def whole(value: int | float | Decimal) -> int:
    """Return a whole number as an int; one with a fraction is a mistake of ours, not to be rounded away."""
    number = int(value)
    if number != value:
        raise ValueError("an integer column holds a fraction")
    return number


def numeric(value: int | float | Decimal) -> str:
    """Return plain digits, never an exponent; trailing zeros are kept, for they are the value's scale."""
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if number.is_nan():
        return "NaN"
    return format(number if number else number.copy_abs(), "f")


def double(value: float) -> str:
    """Return the shortest digits that read back as the same float8."""
    # Python and PostgreSQL print alike, but for the point where they turn to an exponent: 1e16 there, 1e15 here.
    text = repr(float(value))
    whole, _, fraction = text.partition(".")
    if len(whole) <= _ALIKE and fraction.isdigit():
        return whole if fraction == "0" else text
    return _special(text) or _shortest(text, 15)


def real(value: float) -> str:
    """Return the shortest digits that read back as the same float4."""
    text = str(numpy.float32(value))
    return _special(text) or _shortest(text, 6)


def _special(text: str) -> str | None:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text)


def _shortest(text: str, first_exponent: int) -> str:
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    shown = "".join(map(str, digits))
    power = len(shown) - 1 + int(exponent)
    minus = "-" if sign else ""
    if -4 <= power < first_exponent:
        return minus + format(Decimal(text).normalize().copy_abs(), "f")
    fraction = f".{shown[1:]}" if len(shown) > 1 else ""
    return f"{minus}{shown[0]}{fraction}e{power:+03d}"


def text(value: object) -> str:
    """Return a string as it is."""
    return str(value)


def json_text(value: object) -> str:
    """Return JSON, which may come as text already."""
    return value if isinstance(value, str) else json.dumps(value)


def bytea(value: bytes) -> str:
    """Return the hex form."""
    return "\\x" + bytes(value).hex()


def day(value: date) -> str:
    """Return YYYY-MM-DD."""
    return (value.date() if isinstance(value, datetime) else value).isoformat()


def time_of_day(value: time) -> str:
    """Return HH:MM:SS and the fraction without trailing zeros."""
    return f"{value:%H:%M:%S}" + _fraction(value.microsecond)


def timestamp(value: datetime) -> str:
    """Return date and time."""
    return f"{day(value)} {time_of_day(value.time())}"


def timestamptz(value: datetime) -> str:
    """Return date, time and the offset of the value's own time zone; a value without one is in UTC."""
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    seconds = round((aware.utcoffset() or timedelta()) / timedelta(seconds=1))
    hours, rest = divmod(abs(seconds), 3600)
    offset = f"{'-' if seconds < 0 else '+'}{hours:02d}"
    if rest:
        offset += f":{rest // 60:02d}" + (f":{rest % 60:02d}" if rest % 60 else "")
    return timestamp(aware) + offset


def interval(value: timedelta | Span) -> str:
    """Return years, months, days and time, each with its own sign."""
    return str(Span.of(value) if isinstance(value, timedelta) else value)


def array(value: Sequence[object], show: Callable[[object], str] | None = None) -> str:
    """Return a PostgreSQL array literal; the elements are printed by their Python types, or as `show` does it."""
    return "{" + ",".join(_element(one, show or by_python_type) for one in value) + "}"


_PLAIN_ELEMENT: Final = re.compile(r'[^\s{}",\\]+')


def _element(value: object, show: Callable[[object], str]) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return array(value, show)
    shown = show(value)
    if _PLAIN_ELEMENT.fullmatch(shown) and shown.upper() != "NULL":
        return shown
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'


def by_python_type(value: object) -> str:
    """Return the text of a value as its Python type says."""
    for kind, printer in _PRINTERS:
        if isinstance(value, kind):
            return printer(value)
    return str(value)


def element_text(value: object) -> str | None:
    """Return the text of one element of an array of texts."""
    return None if value is None else by_python_type(value)


_PRINTERS: Final[tuple[tuple[type, Callable[[Any], str]], ...]] = (
    (bool, boolean),
    (float, double),
    (Decimal, numeric),
    (datetime, lambda value: timestamptz(value) if value.tzinfo else timestamp(value)),
    (date, day),
    (time, time_of_day),
    (timedelta, interval),
    (Span, interval),
    (bytes, bytea),
)


def _fraction(micros: int) -> str:
    return f".{micros:06d}".rstrip("0") if micros else ""


_WHITE: Final = " \t\n\r\f\v"
_TRUE: Final = frozenset({"1", "t", "tr", "tru", "true", "y", "ye", "yes", "on"})
_FALSE: Final = frozenset({"0", "f", "fa", "fal", "fals", "false", "n", "no", "of", "off"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|[+-]?inf(inity)?", re.I | re.A)
_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?"
    r"( ?(Z|[+-][0-9]{2}(:?[0-9]{2}(:?[0-9]{2})?)?))?",
    re.I | re.A,
)
_TIME: Final = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?")
_UUID: Final = re.compile(r"([0-9a-f]{4}-?){8}|\{([0-9a-f]{4}-?){8}\}", re.I | re.A)
_DIGITS_BEFORE_POINT: Final = 131_072
_DIGITS_BEHIND_POINT: Final = 16_383


def _invalid(type_name: str, shown: str) -> InvalidText:
    short = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
    return InvalidText(f'invalid input syntax for type {type_name}: "{short}"')


def read_text(raw: bytes) -> str:
    """Return a text value; bytes that are not UTF-8, and zero bytes, are refused."""
    try:
        shown = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidText(f'invalid byte sequence for encoding "UTF8": 0x{raw[error.start]:02x}') from None
    if "\0" in shown:
        raise InvalidText('invalid byte sequence for encoding "UTF8": 0x00')
    return shown


def read_boolean(raw: bytes) -> bool:
    """Return a boolean of any spelling PostgreSQL knows."""
    shown = read_text(raw)
    word = shown.strip(_WHITE).lower()
    if word not in _TRUE | _FALSE:
        raise _invalid("boolean", shown)
    return word in _TRUE


def read_integer(raw: bytes) -> int:
    """Return a whole number of any size; its range is for the type to say."""
    shown = read_text(raw)
    word = shown.strip(_WHITE)
    if not _INTEGER.fullmatch(word):
        raise _invalid("integer", shown)
    if len(word) > _SHOWN:
        raise NumberOutOfRange("value is out of range for type integer")
    return int(word)


def read_float(raw: bytes) -> float:
    """Return a floating-point number."""
    shown = read_text(raw)
    word = shown.strip(_WHITE)
    if not _NUMBER.fullmatch(word):
        raise _invalid("double precision", shown)
    number = float(word)
    if number in (float("inf"), float("-inf")) and "inf" not in word.lower():
        raise NumberOutOfRange("value is out of range for type double precision")
    return number


def read_numeric(raw: bytes) -> Decimal:
    """Return an exact number within the digits PostgreSQL's numeric has."""
    shown = read_text(raw)
    if not _NUMBER.fullmatch(shown.strip(_WHITE)):
        raise _invalid("numeric", shown)
    number = Decimal(shown.strip(_WHITE))
    if number.is_finite() and not (
        number.adjusted() < _DIGITS_BEFORE_POINT and -int(number.as_tuple().exponent) <= _DIGITS_BEHIND_POINT
    ):
        raise NumberOutOfRange("value overflows numeric format")
    return number


def read_bytea(raw: bytes) -> bytes:
    """Return bytes from the hex or the escape form."""
    shown = read_text(raw)
    try:
        if shown.startswith("\\x"):
            return bytes.fromhex(shown[2:])
        return _unescape(shown)
    except ValueError:
        raise _invalid("bytea", shown) from None


_ESCAPE: Final = re.compile(rb"\\(?:([0-3][0-7]{2})|(\\)|)")


def _unescape(shown: str) -> bytes:
    def replace(match: re.Match[bytes]) -> bytes:
        if not match[0][1:]:
            raise ValueError("a lone backslash")
        return bytes([int(match[1], 8)]) if match[1] else b"\\"

    return _ESCAPE.sub(replace, shown.encode())


def _read_moment(raw: bytes, type_name: str) -> datetime:
    shown = read_text(raw)
    word = shown.strip(_WHITE)
    if not _MOMENT.fullmatch(word):
        raise _invalid(type_name, shown)
    try:
        return datetime.fromisoformat(word.upper().replace(" +", "+").replace(" -", "-").replace(" Z", "Z"))
    except ValueError:
        raise _invalid(type_name, shown) from None


def read_date(raw: bytes) -> date:
    """Return an ISO date; a time behind it is dropped, as PostgreSQL drops it."""
    return _read_moment(raw, "date").date()


def read_timestamp(raw: bytes) -> datetime:
    """Return an ISO timestamp; an offset is dropped, as PostgreSQL drops it."""
    return _read_moment(raw, "timestamp").replace(tzinfo=None)


def read_timestamptz(raw: bytes) -> datetime:
    """Return an ISO timestamp; without an offset it has no time zone, and means the session's."""
    return _read_moment(raw, "timestamp with time zone")


def read_time(raw: bytes) -> time:
    """Return a time of day."""
    shown = read_text(raw)
    try:
        if _TIME.fullmatch(shown.strip(_WHITE)):
            return time.fromisoformat(shown.strip(_WHITE))
    except ValueError:
        pass
    raise _invalid("time", shown)


def read_uuid(raw: bytes) -> UUID:
    """Return a UUID, with or without hyphens and braces."""
    shown = read_text(raw)
    if not _UUID.fullmatch(shown.strip(_WHITE)):
        raise _invalid("uuid", shown)
    return UUID(shown.strip(_WHITE))


_UNITS: Final = {
    "week": timedelta(weeks=1),
    "day": _DAY,
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
    "millisecond": timedelta(milliseconds=1),
    "microsecond": timedelta(microseconds=1),
}
_MONTHS: Final = {"year": 12, "month": 1, "mon": 1}
_UNIT: Final = re.compile(
    r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,6})?) *(week|day|hour|minute|(?:milli|micro)?second)s?\b,? *", re.I | re.A
)
_MONTH_UNIT: Final = re.compile(r"([+-]?[0-9]{1,6}) *(year|month|mon)s?\b,? *", re.I | re.A)
_CLOCK: Final = re.compile(r"([+-]?)([0-9]{1,9}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]{1,6})?)")


def read_interval(raw: bytes) -> timedelta | Span:
    """Return an interval: years and months, weeks to seconds, then HH:MM:SS; a span of fixed length without months."""
    shown = read_text(raw)
    rest, months = shown.strip(_WHITE), 0
    while match := _MONTH_UNIT.match(rest):
        months += int(match[1]) * _MONTHS[match[2].lower()]
        rest = rest[match.end() :]
    try:
        days, clock = _fixed(shown, rest) if rest or not months else (timedelta(), timedelta())
        if not months:
            return days + clock
        return Span(months, days.days, (clock + days - timedelta(days=days.days)) // timedelta(microseconds=1))
    except OverflowError:
        raise NumberOutOfRange("interval out of range") from None


def _fixed(shown: str, rest: str) -> tuple[timedelta, timedelta]:
    """Weeks and days, and what is shorter."""
    days, clock = timedelta(), timedelta()
    while match := _UNIT.match(rest):
        unit = match[2].lower()
        span = float(match[1]) * _UNITS[unit]
        days, clock = (days + span, clock) if _UNITS[unit] >= _DAY else (days, clock + span)
        rest = rest[match.end() :]
    if found := _CLOCK.fullmatch(rest):
        span = timedelta(hours=int(found[2]), minutes=int(found[3]), seconds=float(found[4]))
        return days, clock - span if found[1] == "-" else clock + span
    if rest or not shown.strip(_WHITE):
        raise _invalid("interval", shown)
    return days, clock
