"""literals: constants of the analyst's text, and parameters, as typed values."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from math import isfinite
from typing import cast
from uuid import UUID

from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.functions import MAX_ELEMENTS
from dpsql.compiler.ir.nodes import Literal, Value
from dpsql.errors import DataError, DatatypeMismatch, InvalidText, NumberOutOfRange, UndefinedParameter
from dpsql.sqltypes import INTEGER_RANGES, Span, SqlType
from dpsql.sqltypes.textformat import jsonb_text
from dpsql.sqltypes.textinput import DAYS, array_elements, day_word, read, read_json

MAX_DIGITS = 30
"""Digits a numeric constant may have before and after its point together."""


@dataclass
class Parameters:
    """The parameters $1, $2 … of one query: their values if known, else their inferred types.

    Attributes:
        zone: The time zone for a timestamptz without an offset.
        values: The values in order, or None while a statement is only described.
        types: Types, declared or inferred, by 0-based index; UNKNOWN until they are inferred.
        now: The time, for constants such as 'today'.
    """

    zone: tzinfo
    values: tuple[object, ...] | None = None
    types: dict[int, SqlType] = field(default_factory=dict)
    now: Callable[[], datetime] = field(kw_only=True)
    _elements: dict[int, object] = field(default_factory=dict)

    def read(self, literal: Literal, at: int | None) -> Literal:
        """Return a quoted constant in its type; words such as 'today' are moments.

        Raises:
            DataError: The text is not of that type.
        """
        return parse_text(literal, at, self.zone, self._read)

    def _read(self, kind: SqlType, text: str) -> object:
        word = day_word(kind, text)
        if word is None:
            return read(kind, text)
        days, moment = DAYS[word], self.now()
        if days is not None:
            moment = moment.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=days)
        return read(kind, moment.isoformat(" "))

    def elements(self, index: int, at: int | None) -> tuple[int, ...]:
        """Return the parameters for the items of the array parameter `index`; one item while it is only described.

        Raises:
            UndefinedParameter: The parameter has no value.
            DatatypeMismatch: The value is not a list.
        """
        if self.types.setdefault(index, SqlType.ARRAY) is SqlType.UNKNOWN:
            self.types[index] = SqlType.ARRAY
        if self.values is None:
            self._elements[element_of(index)] = None
            return (element_of(index),)
        self._check_there(index, at)
        # A comparison with a NULL array equals one with an array that contains only NULL: both are NULL.
        value = [None] if self.values[index] is None else self.values[index]
        if not isinstance(value, list | tuple):
            raise DatatypeMismatch(
                f"the value of ${index + 1} must be an array", hint="Pass a list of values.", position=at
            )
        places = tuple(element_of(index) + number for number in range(len(value)))
        self._elements.update(zip(places, value, strict=True))
        return places

    def is_array(self, index: int) -> bool:
        """Whether placeholder `index` is an array by its declared type, or by its value."""
        is_list = self.values is not None and index < len(self.values) and isinstance(self.values[index], list | tuple)
        return is_list or self.types.get(index, SqlType.UNKNOWN).is_array

    def is_element(self, index: int) -> bool:
        """Return whether parameter `index` is an item of an array."""
        return index in self._elements

    def _check_there(self, index: int, at: int | None) -> None:
        if self.values is not None and index >= len(self.values):
            raise UndefinedParameter(f"there is no parameter ${index + 1}", position=at)

    def literal(self, index: int, at: int | None) -> Literal:
        """Return the constant of parameter `index` (0-based).

        Raises:
            UndefinedParameter: The parameter has no value.
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
            raise InvalidText("text must not contain a NUL character or half of a surrogate pair", position=at)
        if isinstance(value, str) or value is None:
            return Literal(value, declared) if declared is SqlType.UNKNOWN else self.read(Literal(value, declared), at)
        return self._as_declared(typed(value, at), declared, at)

    def _as_declared(self, literal: Literal, declared: SqlType, at: int | None) -> Literal:
        """A value with the type its placeholder was described with, so that answer and description agree."""
        value = literal.value
        if isinstance(value, datetime) and declared is SqlType.TIMESTAMPTZ:
            return Literal(_instant(value, self.zone, at), declared)
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
                return Literal(_decimal(Decimal(str(value)), at), declared)
            raise DatatypeMismatch(f"a number was given where {declared.value} was declared", position=at)
        return literal


def element_of(index: int) -> int:
    """The place of the first item of the array that is placeholder `index`: beyond all that can be written."""
    return (index + 1) << 20


def _is_clean(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


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
            return Literal(_decimal(Decimal(value), at), SqlType.NUMERIC)
        case float():
            return Literal(_finite(value, at), SqlType.DOUBLE)
        case Decimal():
            return Literal(_decimal(value, at), SqlType.NUMERIC)
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
        f"Python type {type(value).__name__} is not supported for parameters",
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
    return parse_text(Literal(text, SqlType.NUMERIC), at)


def _finite(value: float, at: int | None = None) -> float:
    if not isfinite(value):
        raise NumberOutOfRange("a constant or parameter must be a finite number", position=at)
    return value


def _decimal(value: Decimal, at: int | None = None) -> Decimal:
    if not value.is_finite():
        raise NumberOutOfRange("a constant or parameter must be a finite number", position=at)
    digits = len(value.as_tuple().digits)
    if value.adjusted() > MAX_DIGITS or digits > MAX_DIGITS or (value and value.adjusted() < -MAX_DIGITS):
        raise NumberOutOfRange(f"a number may have at most {MAX_DIGITS} digits", position=at)
    return value


def parse_text(
    literal: Literal, at: int | None, zone: tzinfo = UTC, value_of: Callable[[SqlType, str], object] = read
) -> Literal:
    """Return a quoted constant in its type; a timestamptz without an offset is in `zone`.

    Raises:
        DataError: The text is not of that type.
    """
    text, target = literal.value, literal.type
    if not isinstance(text, str) or (target not in _HELD and target.element is None):
        return literal
    try:
        if target.element is not None:
            return replace(literal, value=_array(target.element, text, at, value_of))
        if target.is_json:
            written = read_json(target, text)
            return replace(literal, value=jsonb_text(written) if target is SqlType.JSONB else written)
        return replace(literal, value=_held(value_of(target, text), target, zone))
    except DataError as error:
        error.position = at
        raise


def _array(element: SqlType, text: str, at: int | None, value_of: Callable[[SqlType, str], object]) -> str:
    """An array as JSON of its elements' texts, as engines hold arrays."""
    items = array_elements(text)
    if element not in _PLAIN or len(items) > MAX_ELEMENTS:
        raise DatatypeMismatch(
            f"a constant of type {element.array.value} is only supported after ANY and ALL and in UNNEST",
            hint=f"Elsewhere it may have {MAX_ELEMENTS:,} texts, whole numbers, booleans, dates or uuids.",
            position=at,
        )
    values = (None if item is None else value_of(element, item) for item in items)
    texts = (str(each).lower() if isinstance(each, bool) else each for each in values)
    return json.dumps([None if each is None else str(each) for each in texts])


def _held(value: object, target: SqlType, zone: tzinfo) -> Value:
    """A value as constants of the intermediate form have it."""
    match value:
        case Span():
            return intervals.constant(value)
        case Decimal():
            return _decimal(value)
        case float():
            return _finite(value)
        case datetime() if target is SqlType.TIMESTAMPTZ:
            return _instant(value, zone)
        case _:
            return cast(Value, value)


def _instant(moment: datetime, zone: tzinfo, at: int | None = None) -> datetime:
    try:
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)).astimezone(UTC)
    except OverflowError:
        raise NumberOutOfRange(
            "timestamp out of range: supported are the years 1 to 9999 in UTC", position=at
        ) from None


_PLAIN = frozenset(
    {
        *(SqlType.TEXT, SqlType.VARCHAR, SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT),
        *(SqlType.BOOLEAN, SqlType.DATE, SqlType.UUID),
    }
)
"""Types whose values are printed here as in every engine."""
_HELD = frozenset(
    {
        *(SqlType.BOOLEAN, SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT, SqlType.NUMERIC, SqlType.REAL),
        *(SqlType.DOUBLE, SqlType.DATE, SqlType.TIME, SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ, SqlType.INTERVAL),
        *(SqlType.UUID, SqlType.JSON, SqlType.JSONB),
    }
)
"""Types whose constants are read here; those of others stay the texts that they are."""
