"""Values as PostgreSQL reads them from text: SQL constants, text parameters, the elements of arrays, and settings."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dpsql.errors import InvalidParameter, InvalidText, NumberOutOfRange
from dpsql.sqltypes import INTEGER_RANGES, Span, SqlType

_SHOWN: Final = 64
"""Characters of a text that an error repeats."""
_WHITE: Final = " \t\n\r\f\v"
TRUE_WORDS: Final = ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1")
FALSE_WORDS: Final = ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]++(\.[0-9]*+)?|\.[0-9]++)(e[+-]?[0-9]+)?|nan|[+-]?inf(inity)?", re.I | re.A)
_CLOCK: Final = r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(\.[0-9]+)?)?"
_OFFSET: Final = r"(?: ?(?:(Z)|([+-])([0-9]{2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?))?"
_MOMENT: Final = re.compile(
    rf"(?:([0-9]{{4}})-([0-9]{{1,2}})-([0-9]{{1,2}})|([0-9]{{4}})([0-9]{{2}})([0-9]{{2}}))(?:[ T]{_CLOCK})?{_OFFSET}",
    re.I | re.A,
)
_MONTH_NAMES: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH_NUMBERS: Final = {name: number for number, full in enumerate(_MONTH_NAMES, 1) for name in (full, full[:3])} | {
    "sept": 9
}
_DAY, _YEAR = "(?P<day>[0-9]{1,2})", "(?P<year>[0-9]{4})"
_MONTH: Final = f"(?P<month>{'|'.join(_MONTH_NUMBERS)})"
_WEEKDAYS: Final = (
    *("mon", "monday", "tue", "tues", "tuesday", "wed", "weds", "wednesday", "thu", "thur", "thurs", "thursday"),
    *("fri", "friday", "sat", "saturday", "sun", "sunday"),
)
_SPELLED: Final = tuple(
    re.compile(rf"(?:(?:{'|'.join(_WEEKDAYS)}),? )?{day}(?P<rest>(?:[ T]{_CLOCK})?{_OFFSET})", re.I | re.A)
    for day in (
        rf"{_DAY}[ -]{_MONTH}(?:, ?|[ -]){_YEAR}",
        rf"{_MONTH}[ -]{_DAY}(?:, ?|[ -]){_YEAR}",
        rf"{_YEAR}[ -]{_MONTH}[ -]{_DAY}",
        rf"(?P<month>[0-9]{{1,2}})(?P<sign>[-/.]){_DAY}(?P=sign){_YEAR}",
        rf"{_YEAR}(?P<sign>[/.])(?P<month>[0-9]{{1,2}})(?P=sign){_DAY}",
    )
)
"""Days with the name of their month, or with the month first, as PostgreSQL reads them where DateStyle is MDY."""
_ZONED: Final = re.compile(r"(.*\S) +((?:[a-z_]+/)+[a-z_+0-9-]+|[a-z]{3,4}|[a-z]{3}[5-8][a-z]{3})", re.I | re.A)
ZONE_ABBREVIATIONS: Final = {
    **{"utc": 0, "gmt": 0, "wet": 0, "bst": 1, "cet": 1, "cest": 2, "eet": 2, "eest": 3, "msk": 3},
    **{"est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6, "pst": -8, "pdt": -7, "hst": -10},
    **{"akst": -9, "akdt": -8, "hkt": 8, "sgt": 8, "jst": 9, "kst": 9, "aest": 10, "aedt": 11, "nzst": 12, "nzdt": 13},
}
"""Hours east of Greenwich: the abbreviations that PostgreSQL knows by default and that mean one thing."""
POSIX_ZONES: Final = frozenset({"EST5EDT", "CST6CDT", "MST7MDT", "PST8PDT"})
_HALF_DAY: Final = re.compile(
    r"(.*[ T])?([0-9]{1,2})(:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?) ?([ap])m(?![a-z])(.*)", re.I | re.A
)
_TIME: Final = re.compile(_CLOCK + _OFFSET, re.I | re.A)
DAYS: Final = {"now": None, "yesterday": -1, "today": 0, "tomorrow": 1}
"""Words for moments: how many days from the beginning of this day; None for the moment itself."""
_INFINITE: Final = frozenset({"infinity", "+infinity", "-infinity"})
_UUID: Final = re.compile(r"([0-9a-f]{4}-?){8}|\{([0-9a-f]{4}-?){8}\}", re.I | re.A)
_DIGITS_BEFORE_POINT: Final = 131_072
_DIGITS_BEHIND_POINT: Final = 16_383
UNREADABLE_JSON: Final = r"\\u(?:0000|[dD][89a-fA-F])|(?:^|[:,]|\[|\s)-?(?:[0-9.]{255}|[0-9.]+[eE][+-]?[0-9]{4})"
"""In JSON: characters that no text has, or that may lack their other half; numbers that may be no numeric."""
_UNREADABLE: Final = re.compile(UNREADABLE_JSON)
_JSON_DEPTH: Final = 100
_JSON_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
_NAMES: Final = {SqlType.TIMESTAMP: "timestamp", SqlType.TIME: "time"}
"""Types that PostgreSQL's errors about constants call otherwise."""
_EXAMPLES: Final = {
    SqlType.DATE: "A date is written '2026-01-31'.",
    SqlType.TIMESTAMP: "A timestamp is written '2026-01-31 12:00:00'.",
    SqlType.TIMESTAMPTZ: "A timestamp is written '2026-01-31 12:00:00+00'.",
    SqlType.TIME: "A time is written '12:00:00'.",
    SqlType.INTERVAL: "An interval is written '1 day 02:00:00' or '3 months'.",
    SqlType.BOOLEAN: "Write true or false.",
}


def read_text(raw: bytes) -> str:
    """Return the text of bytes; those that are not UTF-8, and zero bytes, are refused."""
    try:
        shown = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidText(f'invalid byte sequence for encoding "UTF8": 0x{raw[error.start]:02x}') from None
    if "\0" in shown:
        raise InvalidText('invalid byte sequence for encoding "UTF8": 0x00')
    return shown


def read(kind: SqlType, text: str) -> Any:
    """Return the value that a text stands for, as PostgreSQL reads it.

    Args:
        kind: A type that is no array.
        text: What stands between quotes, or is sent for a parameter.

    Returns:
        A value of the Python type that results have, an interval as a `Span`. The zone that an offset names is kept
        for timestamptz alone; one without an offset has none, and means the session's. Of other types the text itself.

    Raises:
        InvalidText: The text is none of the type.
        NumberOutOfRange: It is, but of no value that the type has.
        InvalidParameter: It is an infinite date, moment or interval.
    """
    reader = _READERS.get(kind)
    if reader is None:
        return text
    word = text if kind is SqlType.BYTEA else text.strip(_WHITE)
    if kind in _ENDLESS and word.lower() in _INFINITE:
        raise infinite(kind)
    try:
        return reader(word)
    except ArithmeticError:  # too large for Python's type, or its exponent is
        raise _out_of_range(kind, text) from None
    except ValueError:
        raise _invalid(kind, text) from None


def day_word(kind: SqlType, text: str) -> str | None:
    """Return the word in `DAYS` that a text of a type is, if any; only who knows the time can read it."""
    word = text.strip(_WHITE).lower()
    return word if kind.is_moment and word in DAYS else None


def read_json(kind: SqlType, text: str) -> str:
    """Check JSON, and return its text unchanged.

    Raises:
        InvalidText: It is no JSON, or such as `jsonb` cannot hold.
    """
    try:
        json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise _invalid(kind, text) from None
    if _UNREADABLE.search(text):
        raise InvalidText(
            f'unsupported escape sequence or number in {kind.value}: "{_cut(text)}"',
            hint="Write characters themselves, and numbers with fewer than 255 digits.",
        )
    steps = ((each in "[{") - (each in "]}") for each in _JSON_STRING.sub("", text))
    if max(accumulate(steps), default=0) > _JSON_DEPTH:
        raise InvalidText(f"{kind.value} nests deeper than {_JSON_DEPTH} levels")
    return text


def _no_number(word: str) -> None:
    """Refuse NaN and infinities, which Python reads in JSON."""
    raise ValueError(word)


def infinite(kind: SqlType) -> InvalidParameter:
    """The error for an end of a type's time line, which neither text nor bytes can stand for."""
    name = _NAMES.get(kind, kind.value)
    return InvalidParameter(
        f"a constant or parameter cannot be an infinite {name}",
        hint=f"Leave the condition out: no {name} that is counted is infinite.",
    )


def read_whole(name: str, low: int, high: int, text: str) -> int:
    """Return a whole number of a type that has those from `low` to `high`.

    Raises:
        InvalidText: The text is no whole number.
        NumberOutOfRange: It is another.
    """
    word = text.strip(_WHITE)
    if not _INTEGER.fullmatch(word):
        raise InvalidText(f'invalid input syntax for type {name}: "{_cut(text)}"')
    # Numbers of more characters than are shown are too large, and Python would refuse the longest.
    if len(word.lstrip("+-0")) > _SHOWN or not low <= int(word) <= high:
        raise NumberOutOfRange(f'value "{_cut(text)}" is out of range for type {name}')
    return int(word)


# No part of it gives back what it took, or blanks would be tried in every division.
_ELEMENT: Final = re.compile(r'\s*+(?:"((?:[^"\\]|\\.)*+)"\s*+|([^,{}"\\]++))(,|$)', re.S | re.A)


def array_elements(text: str) -> list[str | None]:
    """Return the texts of an array of one dimension; None is NULL.

    Raises:
        InvalidText: It is not written as PostgreSQL writes arrays.
    """
    inner = text.strip(_WHITE)
    if not (inner.startswith("{") and inner.endswith("}")):
        raise InvalidText(f'malformed array literal: "{_cut(text)}"')
    inner, found, at = inner[1:-1], list[str | None](), 0
    while inner.strip(_WHITE):
        match = _ELEMENT.match(inner, at)
        if match is None:
            raise InvalidText(f'malformed array literal: "{_cut(text)}"')
        plain = (match[2] or "").rstrip(_WHITE)
        quoted = None if match[1] is None else re.sub(r"\\(.)", r"\1", match[1], flags=re.S)
        found.append(quoted if quoted is not None else None if plain.upper() == "NULL" else plain)
        at = match.end()
        if not match[3]:
            break
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _invalid(kind: SqlType, text: str) -> InvalidText:
    name = _NAMES.get(kind, kind.value)
    return InvalidText(f'invalid input syntax for type {name}: "{_cut(text)}"', hint=_EXAMPLES.get(kind))


def _out_of_range(kind: SqlType, text: str) -> NumberOutOfRange:
    return NumberOutOfRange(f'value "{_cut(text)}" is out of range for type {_NAMES.get(kind, kind.value)}')


def _boolean(text: str) -> bool:
    word = text.lower()
    if word not in TRUE_WORDS + FALSE_WORDS:
        raise ValueError(text)
    return word in TRUE_WORDS


def _float(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    number = float(text)
    if number in (float("inf"), float("-inf")) and "inf" not in text.lower():
        raise OverflowError(text)
    return number


def _numeric(text: str) -> Decimal:
    """An exact number within the digits PostgreSQL's numeric has."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    number = Decimal(text)
    if number.is_finite() and not (
        number.adjusted() < _DIGITS_BEFORE_POINT and -int(number.as_tuple().exponent) <= _DIGITS_BEHIND_POINT
    ):
        raise OverflowError(text)
    return number


def _bytea(text: str) -> bytes:
    """Bytes from the hex or the escape form."""
    return bytes.fromhex(text[2:]) if text.startswith("\\x") else _ESCAPE.sub(_unescaped, text.encode())


_ESCAPE: Final = re.compile(rb"\\(?:([0-3][0-7]{2})|(\\)|)")


def _unescaped(match: re.Match[bytes]) -> bytes:
    if not match[0][1:]:
        raise ValueError("a lone backslash")
    return bytes([int(match[1], 8)]) if match[1] else b"\\"


def _moment(text: str) -> datetime:
    """A day, with a time and an offset or a zone perhaps; the epoch has its name."""
    if text.lower() == "epoch":
        return datetime(1970, 1, 1, tzinfo=UTC)
    text = _in_whole_days(text)
    match = _MOMENT.fullmatch(_in_numbers(text))
    if match is None:
        return _zoned(text)
    year, month, day = (int(part) for part in match.groups()[:6] if part is not None)
    return datetime(year, month, day, tzinfo=_offset(match.groups()[10:])) + _since_midnight(match.groups()[6:10])


def _in_whole_days(text: str) -> str:
    """A text with the hour of a clock of twelve hours, as in 10:00 PM, as one of 24; any other text unchanged."""
    match = _HALF_DAY.fullmatch(text)
    if match is None:
        return text
    before, hour, rest, half, behind = match.groups()
    if int(hour) > 12:
        raise ValueError(text)
    return f"{before or ''}{int(hour) % 12 + 12 * (half in 'pP'):02}{rest}{behind}"


def _in_numbers(text: str) -> str:
    """A moment whose month has its name, or comes first, as 2024-01-05; any other text unchanged."""
    match = next(filter(None, (form.fullmatch(text) for form in _SPELLED)), None)
    if match is None:
        return text
    month = _MONTH_NUMBERS.get(match["month"].lower(), match["month"])
    return f"{match['year']}-{month}-{match['day']}{match['rest']}"


def _zoned(text: str) -> datetime:
    """A moment in a zone, as in PostgreSQL in standard time where clocks are set forth or back."""
    match = _ZONED.fullmatch(text)
    found = (
        _MOMENT.fullmatch(_in_numbers(match[1])) if match is not None and len(match[2]) <= _MOST_CHARACTERS else None
    )
    if match is None or found is None:
        raise ValueError(text)
    moment = _moment(match[1])
    if moment.tzinfo is not None:
        raise ValueError(text)
    hours, name = ZONE_ABBREVIATIONS.get(match[2].lower()), match[2]
    if hours is not None:
        return moment.replace(tzinfo=timezone(timedelta(hours=hours)))
    if "/" not in name and name not in POSIX_ZONES:
        raise ValueError(text)
    try:
        local = moment.replace(tzinfo=ZoneInfo(name))
    except (ZoneInfoNotFoundError, OSError):
        raise ValueError(text) from None
    offsets = (local.replace(fold=fold).utcoffset() or timedelta() for fold in (0, 1))
    return moment.replace(tzinfo=timezone(min(offsets)))


def _since_midnight(parts: Sequence[str | None]) -> timedelta:
    hour, minute, second = (int(part or 0) for part in parts[:3])
    clock = time(hour, minute, second)
    micros = round(Decimal(parts[3] or 0) * 1_000_000)
    return timedelta(hours=clock.hour, minutes=clock.minute, seconds=clock.second, microseconds=micros)


def _offset(parts: Sequence[str | None]) -> tzinfo | None:
    zulu, sign, *numbers = parts
    if zulu is not None or sign is None:
        return None if zulu is None else UTC
    east = _since_midnight([*numbers, None])
    return timezone(-east if sign == "-" else east)


def _time_of_day(text: str) -> time:
    match = _TIME.fullmatch(_in_whole_days(text))
    if match is None:
        raise ValueError(text)
    _offset(match.groups()[4:])
    passed = _since_midnight(match.groups()[:4])
    if passed >= timedelta(days=1):
        raise OverflowError(text)
    return (datetime.min + passed).time()


def _uuid(text: str) -> UUID:
    if not _UUID.fullmatch(text):
        raise ValueError(text)
    return UUID(text)


# Intervals: quantities with their units, clocks, years-months, ISO 8601

_MICROSECONDS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_MONTHS: Final = {"month": 1, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}
_UNITS: Final = {
    **{name: name for name in (*_MICROSECONDS, *_MONTHS)},
    **{f"{name}s": name for name in (*_MICROSECONDS, *_MONTHS)},
    **{"centuries": "century", "millennia": "millennium", "mon": "month", "mons": "month", "y": "year", "yr": "year"},
    **{"yrs": "year", "d": "day", "w": "week", "h": "hour", "hr": "hour", "hrs": "hour", "m": "minute"},
    **{"min": "minute", "mins": "minute", "s": "second", "sec": "second", "secs": "second", "us": "microsecond"},
    **{"usec": "microsecond", "usecs": "microsecond", "ms": "millisecond", "msec": "millisecond"},
    **{"msecs": "millisecond", "c": "century", "dec": "decade", "decs": "decade", "mil": "millennium"},
}
_SIGN: Final = re.compile(r"([+-])\s++(?=[\d.])", re.A)
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))\s*([a-z]+)\b,?\s*", re.A)
_SPAN_CLOCK: Final = re.compile(r"([+-]?)(\d+):([0-5]?\d)(?::([0-5]?\d(?:\.\d{0,6})?))?(?![\w.:])\s*", re.A)
_ISO: Final = re.compile(
    r"p(?=.)(?:(-?\d+)y)?(?:(-?\d+)m)?(?:(-?\d+)w)?(?:(-?\d+)d)?"
    r"(?:t(?=.)(?:(-?\d+)h)?(?:(-?\d+)m)?(?:(-?\d+(?:\.\d+)?)s)?)?",
    re.A,
)
_DAYS: Final = re.compile(r"([+-]?\d+)\s+(?=[+-]?\d+:)", re.A)
_COUNT: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.A)
_YEARS_MONTHS: Final = re.compile(r"([+-]?)(\d+)-(\d\d?)", re.A)
_FIELDS: Final[dict[tuple[str, ...], re.Pattern[str]]] = {
    **{(unit,): re.compile(r"[+-]?\d+", re.A) for unit in ("year", "month", "day", "hour", "minute")},
    ("second",): _COUNT,
    ("year", "month"): _YEARS_MONTHS,
    ("day", "minute"): re.compile(r"[+-]?\d+ [+-]?\d+:\d\d?", re.A),
    ("day", "second"): re.compile(r"[+-]?\d+ [+-]?\d+:\d\d?:\d\d?(\.\d{0,6})?", re.A),
    ("hour", "minute"): re.compile(r"[+-]?\d+:\d\d?", re.A),
    ("hour", "second"): re.compile(r"[+-]?\d+:\d\d?:\d\d?(\.\d{0,6})?", re.A),
}
_MOST_CHARACTERS: Final = 200


def read_fields(text: str, fields: tuple[str, ...]) -> Span:
    """Return the span of an INTERVAL of which the query names the fields: one, or the first and the last.

    Raises:
        InvalidText: The text has other fields.
        NumberOutOfRange: It is too large.
    """
    words = text.strip(_WHITE)
    if len(words) > _MOST_CHARACTERS or fields not in _FIELDS or not _FIELDS[fields].fullmatch(words):
        raise _invalid(SqlType.INTERVAL, text)
    try:
        return _span(words, fields[0])
    except OverflowError:
        raise _out_of_range(SqlType.INTERVAL, text) from None


def _span(text: str, unit: str = "second") -> Span:
    """A span; `unit` is that of a number that has none."""
    words = _SIGN.sub(r"\1", text.lower())
    if not words or not text.isascii() or len(words) > _MOST_CHARACTERS:
        raise ValueError(text)
    iso = _ISO.fullmatch(words)
    span = _from_words(words, unit) if iso is None else _from_iso(iso)
    if max(abs(span.months), abs(span.days)) >= 2**31 or abs(span.microseconds) >= 2**63:
        raise OverflowError(text)
    return span


def _from_iso(found: re.Match[str]) -> Span:
    years, months, weeks, days, hours, minutes = (int(part or 0) for part in found.groups()[:6])
    micros = round(Decimal(found[7] or 0) * _MICROSECONDS["second"])
    micros += hours * _MICROSECONDS["hour"] + minutes * _MICROSECONDS["minute"]
    return Span(12 * years + months, 7 * weeks + days, micros)


def _from_words(words: str, unit: str) -> Span:
    """Quantities with their units, a clock, years-months, a lone number of `unit`, and "ago" at the end."""
    rest = words.removesuffix(" ago")
    sign = -1 if rest != words else 1
    if rest.startswith("@"):  # PostgreSQL writes it so in its style "verbose", before something
        rest = rest[1:].lstrip()
        if not rest:
            raise ValueError(words)
    total = Span(0, 0, 0)
    while rest:
        if quantity := _QUANTITY.match(rest):
            if quantity[2] not in _UNITS:
                raise ValueError(words)
            total, rest = _plus(total, Decimal(quantity[1]), _UNITS[quantity[2]]), rest[quantity.end() :]
        elif clock := _SPAN_CLOCK.match(rest):
            total, rest = _plus_clock(total, clock), rest[clock.end() :]
        elif days := _DAYS.match(rest):
            total, rest = _plus(total, Decimal(days[1]), "day"), rest[days.end() :]
        elif pair := _YEARS_MONTHS.fullmatch(rest):
            months = 12 * int(pair[2]) + int(pair[3])
            total, rest = _plus(total, Decimal(-months if pair[1] == "-" else months), "month"), ""
        elif _COUNT.fullmatch(rest):
            total, rest = _plus(total, Decimal(rest), unit), ""
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


_READERS: Final[dict[SqlType, Callable[[str], object]]] = {
    SqlType.BOOLEAN: _boolean,
    **{kind: partial(read_whole, kind.value, *limits) for kind, limits in INTEGER_RANGES.items()},
    SqlType.NUMERIC: _numeric,
    SqlType.REAL: _float,
    SqlType.DOUBLE: _float,
    SqlType.DATE: lambda text: _moment(text).date(),
    SqlType.TIME: _time_of_day,
    SqlType.TIMESTAMP: lambda text: _moment(text).replace(tzinfo=None),
    SqlType.TIMESTAMPTZ: _moment,
    SqlType.INTERVAL: _span,
    SqlType.UUID: _uuid,
    SqlType.BYTEA: _bytea,
}
_ENDLESS: Final = frozenset({SqlType.DATE, SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ, SqlType.INTERVAL})


# Time zones of sessions: IANA names, and fixed offsets as PostgreSQL spells them: <+05:30>-05:30

_FIXED: Final = re.compile(r"<([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?>[+-][\d:]{2,8}")
_DAY_SECONDS: Final = 86_400


@lru_cache(maxsize=1000)
def zone(name: str) -> tzinfo:
    """The zone of a name that is an IANA name or was given by `offset_name`.

    Raises:
        ValueError, OSError, ZoneInfoNotFoundError: It is neither.
    """
    match = _FIXED.fullmatch(name)
    if match is None:
        return ZoneInfo(name)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    span = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    offset = -span if match[1] == "-" else span
    if offset_name(offset // timedelta(seconds=1)) != name:
        raise ValueError("not an offset as PostgreSQL spells it")
    return timezone(offset, name[1 : name.index(">")])


def offset_name(seconds: int) -> str:
    """How PostgreSQL names the zone that is so many seconds east of UTC; its second sign counts to the west.

    Raises:
        ValueError: It is a day or more.
    """
    if abs(seconds) >= _DAY_SECONDS:
        raise ValueError("an offset of a day or more")
    minutes, rest = divmod(abs(seconds), 60)
    parts = [minutes // 60, minutes % 60, rest]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    shown = ":".join(f"{part:02d}" for part in parts)
    return f"<-{shown}>+{shown}" if seconds < 0 else f"<+{shown}>-{shown}"
