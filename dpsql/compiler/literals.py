"""literals: constants of the analyst's text, and parameters, as typed values."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from math import isfinite
from uuid import UUID

from dpsql.compiler import intervals
from dpsql.compiler.ir import Literal, Value
from dpsql.errors import DatatypeMismatch, InvalidText, NumberOutOfRange, UndefinedParameter
from dpsql.sqltypes import Span, SqlType

INTEGER_RANGES = {
    SqlType.SMALLINT: (-(2**15), 2**15 - 1),
    SqlType.INTEGER: (-(2**31), 2**31 - 1),
    SqlType.BIGINT: (-(2**63), 2**63 - 1),
}
MAX_DIGITS = 30
"""Digits a numeric constant may have before and after its point together."""


@dataclass
class Parameters:
    """The placeholders $1, $2 … of one query: their values where known, else the types inferred for them.

    Attributes:
        zone: The zone that a timestamptz without an offset is read in.
        values: Values in order, or None while a statement is only described.
        types: Types, declared or inferred, by 0-based index; UNKNOWN until its place tells.
    """

    zone: tzinfo
    values: tuple[object, ...] | None = None
    types: dict[int, SqlType] = field(default_factory=dict)
    _elements: dict[int, object] = field(default_factory=dict)

    def elements(self, index: int, at: int | None) -> tuple[int, ...]:
        """The placeholders that stand for the items of the array that is placeholder `index`; one while described.

        Raises:
            UndefinedParameter: There are fewer values.
            DatatypeMismatch: The value is no list.
        """
        if self.types.setdefault(index, SqlType.ARRAY) is SqlType.UNKNOWN:
            self.types[index] = SqlType.ARRAY
        if self.values is None:
            self._elements[element_of(index)] = None
            return (element_of(index),)
        self._check_there(index, at)
        # What is compared with no array, and with one that holds NULL alone, is the same: NULL.
        value = [None] if self.values[index] is None else self.values[index]
        if not isinstance(value, list | tuple):
            raise DatatypeMismatch(f"the value of ${index + 1} is no array", hint="Pass a list of values.", position=at)
        places = tuple(element_of(index) + number for number in range(len(value)))
        self._elements.update(zip(places, value, strict=True))
        return places

    def is_array(self, index: int) -> bool:
        """Whether placeholder `index` is an array by its declared type, or by its value."""
        is_list = self.values is not None and index < len(self.values) and isinstance(self.values[index], list | tuple)
        return is_list or self.types.get(index, SqlType.UNKNOWN).is_array

    def is_element(self, index: int) -> bool:
        """Whether placeholder `index` stands for an item of an array."""
        return index in self._elements

    def _check_there(self, index: int, at: int | None) -> None:
        if self.values is not None and index >= len(self.values):
            raise UndefinedParameter(f"there is no parameter ${index + 1}", position=at)

    def literal(self, index: int, at: int | None) -> Literal:
        """The constant that placeholder `index` (0-based) stands for.

        Raises:
            UndefinedParameter: There are fewer values.
        """
        declared = self.types.setdefault(index, SqlType.UNKNOWN)
        if self.values is None:
            return Literal(None, declared, index)
        if index in self._elements:
            value = self._elements[index]
        else:
            self._check_there(index, at)
            value = self.values[index]
        if isinstance(value, str) and not _is_clean(value):
            raise InvalidText("a text may not hold a NUL character or half a character", position=at)
        if isinstance(value, str) or value is None:
            return (
                Literal(value, declared)
                if declared is SqlType.UNKNOWN
                else parse_text(Literal(value, declared), at, self.zone)
            )
        return _as_declared(typed(value, at), declared, at)


def element_of(index: int) -> int:
    """The place of the first item of the array that is placeholder `index`: beyond all that can be written."""
    return (index + 1) << 20


def _is_clean(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _as_declared(literal: Literal, declared: SqlType, at: int | None) -> Literal:
    """A value with the type its placeholder was described with, so that answer and description agree."""
    value = literal.value
    if declared in (SqlType.UNKNOWN, literal.type):
        return literal
    if isinstance(value, int) and not isinstance(value, bool) and declared in INTEGER_RANGES:
        low, high = INTEGER_RANGES[declared]
        if not low <= value <= high:
            raise NumberOutOfRange(f"{value} is out of range for type {declared.value}", position=at)
        return replace(literal, type=declared)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        if declared in (SqlType.REAL, SqlType.DOUBLE):
            return Literal(float(value), declared)
        if declared is SqlType.NUMERIC:
            return Literal(_decimal(str(value), at), declared)
        raise DatatypeMismatch(f"a number was given where {declared.value} was declared", position=at)
    return literal


def typed(value: object, at: int | None = None) -> Literal:
    """The literal for a Python value that came as a parameter.

    Raises:
        DatatypeMismatch: Values of its type have no place in SQL.
        NumberOutOfRange: It is no finite number, or has too many digits.
        InvalidText: It holds a NUL character.
    """
    match value:
        case bool():
            return Literal(value, SqlType.BOOLEAN)
        case int():
            if -(2**63) <= value < 2**63:
                return number(str(value), at) if value >= 0 else Literal(value, _integer_type(value))
            return Literal(_decimal(str(value), at), SqlType.NUMERIC)
        case float():
            if not isfinite(value):
                raise NumberOutOfRange("a parameter must be a finite number", position=at)
            return Literal(value, SqlType.DOUBLE)
        case Decimal():
            return Literal(_decimal(str(value), at), SqlType.NUMERIC)
        case datetime():
            return Literal(value, SqlType.TIMESTAMP if value.tzinfo is None else SqlType.TIMESTAMPTZ)
        case date():
            return Literal(value, SqlType.DATE)
        case time():
            return Literal(value, SqlType.TIME)
        case UUID():
            return Literal(value, SqlType.UUID)
        case timedelta():
            return Literal(intervals.constant(Span.of(value)), SqlType.INTERVAL)
        case Span():
            return Literal(intervals.constant(value), SqlType.INTERVAL)
    raise DatatypeMismatch(
        f"a parameter of the Python type {type(value).__name__} has no SQL type",
        hint="Pass None, bool, int, float, Decimal, str, date, datetime, time, timedelta or UUID.",
        position=at,
    )


def _integer_type(value: int) -> SqlType:
    return SqlType.INTEGER if value >= INTEGER_RANGES[SqlType.INTEGER][0] else SqlType.BIGINT


def number(text: str, at: int | None) -> Literal:
    """The literal for a number as written: integer, bigint or numeric, as PostgreSQL types it."""
    if text.isdecimal():
        value = int(text) if len(text) < MAX_DIGITS else 2**63
        for sql_type in (SqlType.INTEGER, SqlType.BIGINT):
            if value <= INTEGER_RANGES[sql_type][1]:
                return Literal(value, sql_type)
    return Literal(_decimal(text, at), SqlType.NUMERIC)


def _decimal(text: str, at: int | None) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise InvalidText(f'invalid input syntax for type numeric: "{text[:40]}"', position=at) from None
    if not value.is_finite():
        raise InvalidText(f'"{text[:40]}" is not a finite number', position=at)
    digits = len(value.as_tuple().digits)
    if value.adjusted() > MAX_DIGITS or digits > MAX_DIGITS or (value and value.adjusted() < -MAX_DIGITS):
        raise NumberOutOfRange(f"a number may have {MAX_DIGITS} digits at the most", position=at)
    return value


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in ("t", "true", "y", "yes", "on", "1"):
        return True
    if word in ("f", "false", "n", "no", "off", "0"):
        return False
    raise ValueError(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d{1,19}\s*", text, re.ASCII):
        raise ValueError(text)
    return int(text)


_DAY = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)(?!\d)", re.ASCII)


def _moment(text: str) -> datetime:
    """A day, and a time perhaps; a month or a day may be written with one digit."""
    return datetime.fromisoformat(_DAY.sub(lambda day: f"{day[1]}-{day[2]:0>2}-{day[3]:0>2}", text.strip(), count=1))


def _timestamp(text: str) -> datetime:
    return _moment(text).replace(tzinfo=None)  # a zone is passed over, as in PostgreSQL


def _finite(text: str) -> float:
    value = float(text)
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value


_READERS: dict[SqlType, Callable[[str], Value]] = {
    SqlType.BOOLEAN: _boolean,
    SqlType.SMALLINT: _integer,
    SqlType.INTEGER: _integer,
    SqlType.BIGINT: _integer,
    SqlType.REAL: _finite,
    SqlType.DOUBLE: _finite,
    SqlType.DATE: _timestamp,
    SqlType.TIME: lambda text: time.fromisoformat(text.strip()),
    SqlType.TIMESTAMP: _timestamp,
    SqlType.TIMESTAMPTZ: _moment,
    SqlType.INTERVAL: intervals.read,
    SqlType.UUID: lambda text: UUID(text.strip()),
}


def parse_text(literal: Literal, at: int | None, zone: tzinfo = UTC) -> Literal:
    """Read a quoted constant as the type its place asks for; a timestamptz without an offset lies in `zone`.

    Raises:
        InvalidText: The text is not of that type.
        NumberOutOfRange: The number does not fit.
    """
    text, target = literal.value, literal.type
    if not isinstance(text, str):
        return literal
    if target is SqlType.NUMERIC:
        return replace(literal, value=_decimal(text.strip(), at))
    reader = _READERS.get(target)
    if reader is None:
        return literal
    try:
        value = reader(text)
        if target is SqlType.TIMESTAMPTZ and isinstance(value, datetime):
            value = (value if value.tzinfo is not None else value.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidText(
            f'invalid input syntax for type {target.value}: "{text[:40]}"', position=at, hint=_EXAMPLES.get(target)
        ) from None
    if isinstance(value, datetime) and target is SqlType.DATE:
        value = value.date()
    if target in INTEGER_RANGES and isinstance(value, int):
        low, high = INTEGER_RANGES[target]
        if not low <= value <= high:
            raise NumberOutOfRange(f'value "{text[:40]}" is out of range for type {target.value}', position=at)
    return replace(literal, value=value)


_EXAMPLES = {
    SqlType.DATE: "A date is written '2026-01-31'.",
    SqlType.TIMESTAMP: "A timestamp is written '2026-01-31 12:00:00'.",
    SqlType.TIMESTAMPTZ: "A timestamp is written '2026-01-31 12:00:00+00'.",
    SqlType.TIME: "A time is written '12:00:00'.",
    SqlType.INTERVAL: "An interval is written '1 day 02:00:00' or '3 months'.",
    SqlType.BOOLEAN: "Write true or false.",
}
