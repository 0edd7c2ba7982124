"""styles: how values are printed under DateStyle, TimeZone, IntervalStyle, bytea_output and extra_float_digits.

Reference: the PostgreSQL manual, "Date/Time Output", "Interval Output", "bytea Escape Format" and the pages of these
settings; `EncodeDateTime` and `EncodeInterval` in its source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import numpy

from dpsql.sqltypes import Span, SqlType, textformat
from dpsql.sqltypes.textinput import zone
from dpsql.wire.pgtypes import PgType, Writer

_ZONE_LETTERS: Final = 10
_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class Style:
    """How values are printed.

    Attributes:
        dates: ISO, SQL, Postgres or German.
        order: MDY, DMY or YMD: what comes first where dates are not ISO.
        zone: In which time zone a moment is shown; None for that of the value.
        intervals: postgres, postgres_verbose, sql_standard or iso_8601.
        escapes: True to print bytes as text with escapes, not in hexadecimal.
        float_digits: How many more digits floating-point numbers have than are sure; from 1 on as few as are exact.
    """

    dates: str = "ISO"
    order: str = "MDY"
    zone: str | None = None
    intervals: str = "postgres"
    escapes: bool = False
    float_digits: int = 1

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "Style":
        """The style of a session's settings, by PostgreSQL's names of them."""
        dates, _, order = settings["DateStyle"].partition(", ")
        return cls(
            dates,
            order,
            settings["TimeZone"],
            settings["IntervalStyle"],
            settings["bytea_output"] == "escape",
            # All values above 0 mean the same.
            min(int(settings["extra_float_digits"]), 1),
        )

    def differing(self) -> dict[SqlType, Callable[[Any], str]]:
        """What prints the values of those types that the type table may print otherwise."""
        found: dict[SqlType, Callable[[Any], str]] = {}
        if self == PLAIN:
            return found
        if self.dates != PLAIN.dates:
            found |= {SqlType.DATE: self.day, SqlType.TIMESTAMP: self.timestamp}
        if self.intervals != PLAIN.intervals:
            found |= {SqlType.INTERVAL: self.interval}
        if self.escapes:
            found |= {SqlType.BYTEA: self.bytea}
        if self.float_digits <= 0:
            found |= {SqlType.DOUBLE: self.double, SqlType.REAL: self.real}
        # A moment, alone or in an array, is shown in the style's zone.
        return found | {SqlType.TIMESTAMPTZ: self.timestamptz, SqlType.ARRAY: self.array}

    def day(self, value: date) -> str:
        """A date."""
        month, day, year = f"{value.month:02d}", f"{value.day:02d}", f"{value.year:04d}"
        first, second = (day, month) if self.order == "DMY" else (month, day)
        match self.dates:
            case "SQL":
                return f"{first}/{second}/{year}"
            case "German":
                return f"{day}.{month}.{year}"
            case "Postgres":
                return f"{first}-{second}-{year}"
            case _:
                return textformat.day(value)

    def timestamp(self, value: datetime) -> str:
        """A date and a time."""
        return f"{self._moment(value)} {value.year:04d}" if self.dates == "Postgres" else self._moment(value)

    def timestamptz(self, value: datetime) -> str:
        """A moment, with its offset or the name of its time zone."""
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        local = aware if self.zone is None else aware.astimezone(zone(self.zone))
        if self.dates == "ISO":
            return textformat.timestamptz(local)
        return f"{self.timestamp(local)} {(local.tzname() or '')[:_ZONE_LETTERS]}"

    def _moment(self, value: datetime) -> str:
        clock = textformat.time_of_day(value.time())
        if self.dates != "Postgres":
            return f"{self.day(value.date())} {clock}"
        day, month = f"{value.day:02d}", _MONTHS[value.month - 1]
        first, second = (day, month) if self.order == "DMY" else (month, day)
        return f"{_WEEKDAYS[value.weekday()]} {first} {second} {clock}"

    def interval(self, value: timedelta | Span) -> str:
        """An interval."""
        span = Span.of(value) if isinstance(value, timedelta) else value
        match self.intervals:
            case "postgres_verbose":
                return _verbose(span)
            case "sql_standard":
                return _standard(span)
            case "iso_8601":
                return _iso(span)
            case _:
                return str(span)

    def bytea(self, value: bytes) -> str:
        """Bytes."""
        if not self.escapes:
            return textformat.bytea(value)
        plain = (chr(byte) if 0x20 <= byte <= 0x7E else f"\\{byte:03o}" for byte in bytes(value))
        return "".join("\\\\" if shown == "\\" else shown for shown in plain)

    def double(self, value: float) -> str:
        """A number of eight bytes."""
        return textformat.double(value) if self.float_digits > 0 else _rounded(float(value), 15 + self.float_digits)

    def real(self, value: float) -> str:
        """A number of four bytes."""
        if self.float_digits > 0:
            return textformat.real(value)
        return _rounded(float(numpy.float32(value)), 6 + self.float_digits)

    def array(self, value: Any) -> str:
        """An array whose elements are printed by their Python types."""
        return textformat.array(value, self._element)

    def _element(self, value: object) -> str:
        match value:
            case bool():
                return textformat.boolean(value)
            case float():
                return self.double(value)
            case datetime():
                return self.timestamptz(value) if value.tzinfo else self.timestamp(value)
            case date():
                return self.day(value)
            case timedelta() | Span():
                return self.interval(value)
            case bytes():
                return self.bytea(value)
            case _:
                return textformat.by_python_type(value)


PLAIN: Final = Style()
"""What the type table prints."""


@lru_cache(maxsize=4096)
def styled(kind: PgType, style: Style) -> PgType:
    """A type whose values are printed in some style."""
    printers = style.differing()
    printer: Any = printers.get(kind.type)
    if printer is None:
        return kind

    def write(value: Any) -> bytes:
        return str(printer(value)).encode("utf-8", "replace")

    text: Writer = write
    return replace(kind, write=(text, kind.write[1]), at_once=({}, kind.at_once[1]))


def _rounded(value: float, digits: int) -> str:
    shown = f"{value:.{max(digits, 1)}g}"
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(shown, shown)


def _parts(span: Span) -> tuple[list[tuple[int, str]], int]:
    """Years to minutes with their units, and the seconds in microseconds; each has the sign of what it is a part of."""

    def split(value: int, size: int) -> tuple[int, int]:
        sign = -1 if value < 0 else 1
        return sign * (abs(value) // size), sign * (abs(value) % size)

    years, months = split(span.months, 12)
    hours, rest = split(span.microseconds, 3_600_000_000)
    minutes, micros = split(rest, 60_000_000)
    return [(years, "year"), (months, "mon"), (span.days, "day"), (hours, "hour"), (minutes, "min")], micros


def _seconds(micros: int, width: int = 0) -> str:
    whole, fraction = divmod(abs(micros), 1_000_000)
    return f"{whole:0{width}d}" + (f".{fraction:06d}".rstrip("0") if fraction else "")


def _verbose(span: Span) -> str:
    """@ 1 year 2 mons ago: the first part that is not zero decides what is negative."""
    parts, micros = _parts(span)
    values = [value for value, _ in parts if value] + ([micros] if micros else [])
    sign = -1 if values and values[0] < 0 else 1
    shown = [f"{sign * value} {unit}{'' if sign * value == 1 else 's'}" for value, unit in parts if value]
    if micros:
        minus = "-" if sign * micros < 0 else ""
        shown.append(f"{minus}{_seconds(micros)} sec{'' if abs(micros) == 1_000_000 else 's'}")
    return " ".join(["@", *(shown or ["0"]), *(["ago"] if sign < 0 else [])])


def _standard(span: Span) -> str:
    """SQL's own literals; where a value is none of them, every part has a sign."""
    parts, micros = _parts(span)
    years, months, days, hours, minutes = (value for value, _ in parts)
    numbers = (years, months, days, hours, minutes, micros)
    if not any(numbers):
        return "0"
    clock = f"{abs(hours)}:{abs(minutes):02d}:{_seconds(micros, 2)}"
    mixed = min(numbers) < 0 < max(numbers)
    if mixed or (span.months and (span.days or span.microseconds)):
        signs = ["-" if value < 0 else "+" for value in (span.months, span.days, span.microseconds)]
        return f"{signs[0]}{abs(years)}-{abs(months)} {signs[1]}{abs(days)} {signs[2]}{clock}"
    minus = "-" if min(numbers) < 0 else ""
    if span.months:
        return f"{minus}{abs(years)}-{abs(months)}"
    return minus + (f"{abs(days)} {clock}" if days else clock)


def _iso(span: Span) -> str:
    """ISO 8601 with designators."""
    parts, micros = _parts(span)
    letters = [f"{value}{letter}" if value else "" for (value, _), letter in zip(parts, "YMDHM", strict=True)]
    seconds = f"{'-' if micros < 0 else ''}{_seconds(micros)}S" if micros else ""
    before, clock = "".join(letters[:3]), "".join(letters[3:]) + seconds
    return f"P{before}" + (f"T{clock}" if clock else "") if before or clock else "PT0S"
