"""Values as PostgreSQL writes them in text format, under DateStyle ISO and the like; see wire/styles.py."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import numpy

from dpsql.sqltypes import Span

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


_DIGITS: Final = Context(prec=40)
"""More digits than a number of an engine has: none is rounded away."""


def without_filling(value: Decimal, scale: int) -> Decimal:
    """Return a number without the zeros at its end, if it has the scale that storage fills numbers up to."""
    if value.as_tuple().exponent != -scale:
        return value
    whole = value.to_integral_value()
    return whole if value == whole else value.normalize(_DIGITS)


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


def jsonb_text(text: str, number: Callable[[str], object] = Decimal) -> str:
    """Return JSON as PostgreSQL prints jsonb: shorter keys first, of equal keys the last, numbers without exponents.

    Args:
        text: JSON.
        number: Reads a number; for text that clients wrote, it must refuse what has too many digits.
    """
    return _jsonb(json.loads(text, parse_int=number, parse_float=number))


def _jsonb(value: object) -> str:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{_jsonb(key)}: {_jsonb(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_jsonb, value)) + "]"
    return numeric(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


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


def array(value: Sequence[Any], show: Callable[[object], str] | None = None) -> str:
    """Return a PostgreSQL array literal; elements that are no texts are printed by their Python types, or by `show`."""
    if set(map(type, value)) == {str}:
        joined = ",".join(value)
        # To search them all at once takes a tenth of the time.
        if joined.count(",") < len(value) and not _QUOTED.search(joined):
            return "{" + (",".join([one or '""' for one in value]) if "" in value else joined) + "}"
    return "{" + ",".join([_element(one, show or by_python_type) for one in value]) + "}"


_QUOTED: Final = re.compile(r'[\s{}"\\]|null', re.IGNORECASE)
_PLAIN_ELEMENT: Final = re.compile(r'(?!null\Z)[^\s{}",\\]+', re.IGNORECASE)


def _element(value: object, show: Callable[[object], str]) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return array(value, show)
    shown = value if type(value) is str else show(value)
    if _PLAIN_ELEMENT.fullmatch(shown):
        return shown
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'


def by_python_type(value: object) -> str:
    """Return the text of a value as its Python type says."""
    for kind, printer in _PRINTERS:
        if isinstance(value, kind):
            return printer(value)
    return str(value)


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
