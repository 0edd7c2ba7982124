"""intervals: INTERVAL constants, as PostgreSQL reads them; a constant carries its three numbers as text."""

import re
from decimal import Decimal

from dpsql.sqltypes import Span

_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_MONTHS = {"month": 1, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}
_NAMES = {
    **{name: name for name in (*_MICROSECONDS, *_MONTHS)},
    **{f"{name}s": name for name in (*_MICROSECONDS, *_MONTHS)},
    **{"centuries": "century", "millennia": "millennium", "mon": "month", "mons": "month", "y": "year", "yr": "year"},
    **{"yrs": "year", "d": "day", "w": "week", "h": "hour", "hr": "hour", "hrs": "hour", "m": "minute"},
    **{"min": "minute", "mins": "minute", "s": "second", "sec": "second", "secs": "second", "us": "microsecond"},
    **{"usec": "microsecond", "usecs": "microsecond", "ms": "millisecond", "msec": "millisecond"},
    **{"msecs": "millisecond", "c": "century", "dec": "decade", "decs": "decade", "mil": "millennium"},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))\s*([a-z]+)\b\s*", re.ASCII)
_CLOCK = re.compile(r"([+-]?)(\d+):(\d\d?)(?::(\d\d?(?:\.\d{0,6})?))?(?![\w.:])\s*", re.ASCII)
_ISO = re.compile(
    r"p(?=.)(?:(-?\d+)y)?(?:(-?\d+)m)?(?:(-?\d+)w)?(?:(-?\d+)d)?"
    r"(?:t(?=.)(?:(-?\d+)h)?(?:(-?\d+)m)?(?:(-?\d+(?:\.\d+)?)s)?)?",
    re.ASCII,
)
_DAYS = re.compile(r"([+-]?\d+)\s+(?=[+-]?\d+:)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
_YEARS_MONTHS = re.compile(r"([+-]?)(\d+)-(\d\d?)", re.ASCII)
_CONSTANT = re.compile(r"(-?\d+) months (-?\d+) days (-?\d+) microseconds")
_FIELDS: dict[tuple[str, ...], re.Pattern[str]] = {
    **{(unit,): re.compile(r"[+-]?\d+", re.ASCII) for unit in ("year", "month", "day", "hour", "minute")},
    ("second",): _NUMBER,
    ("year", "month"): _YEARS_MONTHS,
    ("day", "minute"): re.compile(r"[+-]?\d+ [+-]?\d+:\d\d?", re.ASCII),
    ("day", "second"): re.compile(r"[+-]?\d+ [+-]?\d+:\d\d?:\d\d?(\.\d{0,6})?", re.ASCII),
    ("hour", "minute"): re.compile(r"[+-]?\d+:\d\d?", re.ASCII),
    ("hour", "second"): re.compile(r"[+-]?\d+:\d\d?:\d\d?(\.\d{0,6})?", re.ASCII),
}
MAX_CHARACTERS = 200
_LARGEST = 2**31
_LARGEST_TIME = 2**63


def read(text: str, field: str | None = None) -> str:
    """Read the text of an INTERVAL.

    Args:
        text: As in INTERVAL '1 day 02:00'.
        field: The unit of a number that has none, as in INTERVAL '5' DAY.

    Returns:
        The constant's own form, which `span` reads again.

    Raises:
        ValueError: It is no interval, or too large.
    """
    words = text.strip().lower()
    if not words or len(words) > MAX_CHARACTERS:
        raise ValueError(text)
    iso = _ISO.fullmatch(words)
    if iso is not None:
        return constant(_from_iso(iso))
    return constant(_from_words(words, field or "second"))


def read_fields(text: str, fields: tuple[str, ...]) -> str:
    """Read the text of an INTERVAL of which the query names the fields: one, or the first and the last.

    Raises:
        ValueError: The text has other fields.
    """
    words = text.strip().lower()
    if len(words) > MAX_CHARACTERS or fields not in _FIELDS or not _FIELDS[fields].fullmatch(words):
        raise ValueError(text)
    return read(words, fields[0])


def constant(span: Span) -> str:
    """The form in which a constant carries a span, for literals and for the engine.

    Raises:
        ValueError: It is too large.
    """
    if max(abs(span.months), abs(span.days)) >= _LARGEST or abs(span.microseconds) >= _LARGEST_TIME:
        raise ValueError("interval out of range")
    return f"{span.months} months {span.days} days {span.microseconds} microseconds"


def span(text: str) -> Span:
    """The span that a constant carries."""
    found = _CONSTANT.fullmatch(text)
    if found is None:
        raise TypeError("no constant of an interval")
    months, days, micros = (int(part) for part in found.groups())
    return Span(months, days, micros)


def _from_iso(found: re.Match[str]) -> Span:
    years, months, weeks, days, hours, minutes = (int(part or 0) for part in found.groups()[:6])
    micros = round(Decimal(found[7] or 0) * _MICROSECONDS["second"])
    micros += hours * _MICROSECONDS["hour"] + minutes * _MICROSECONDS["minute"]
    return Span(12 * years + months, 7 * weeks + days, micros)


def _from_words(words: str, field: str) -> Span:
    """Quantities with their units, a clock, years-months, a lone number of `field`, and "ago" at the end."""
    rest = words.removesuffix(" ago")
    sign = -1 if rest != words else 1
    total = Span(0, 0, 0)
    while rest:
        if quantity := _QUANTITY.match(rest):
            if quantity[2] not in _NAMES:
                raise ValueError(words)
            total, rest = _plus(total, Decimal(quantity[1]), _NAMES[quantity[2]]), rest[quantity.end() :]
        elif clock := _CLOCK.match(rest):
            total, rest = _plus_clock(total, clock), rest[clock.end() :]
        elif days := _DAYS.match(rest):
            total, rest = _plus(total, Decimal(days[1]), "day"), rest[days.end() :]
        elif pair := _YEARS_MONTHS.fullmatch(rest):
            months = 12 * int(pair[2]) + int(pair[3])
            total, rest = _plus(total, Decimal(-months if pair[1] == "-" else months), "month"), ""
        elif _NUMBER.fullmatch(rest):
            total, rest = _plus(total, Decimal(rest), field), ""
        else:
            raise ValueError(words)
    return Span(sign * total.months, sign * total.days, sign * total.microseconds)


def _plus_clock(total: Span, clock: re.Match[str]) -> Span:
    micros = int(clock[2]) * _MICROSECONDS["hour"] + int(clock[3]) * _MICROSECONDS["minute"]
    micros += round(Decimal(clock[4] or 0) * _MICROSECONDS["second"])
    return Span(total.months, total.days, total.microseconds + (-micros if clock[1] == "-" else micros))


def _plus(total: Span, count: Decimal, unit: str) -> Span:
    """More by so many units; a fraction goes on to the units below: a month is 30 days, a day 24 hours."""
    months, days, micros = total.months, total.days, total.microseconds
    if unit == "month":
        whole = int(count)
        return _plus(Span(months + whole, days, micros), (count - whole) * 30, "day")
    if unit in _MONTHS:
        return Span(months + round(count * _MONTHS[unit]), days, micros)
    if unit == "week":
        return _plus(total, 7 * count, "day")
    if unit == "day":
        whole = int(count)
        return Span(months, days + whole, micros + round((count - whole) * _MICROSECONDS["day"]))
    return Span(months, days, micros + round(count * _MICROSECONDS[unit]))
