"""binding: PEP 249's pyformat: placeholders become $1, $2 …, and their values plain ones.

Rule 1: a value is bound, never written into the text.
Rule 2: whatever a caller's objects do when they are read (raise, count wrongly) ends in a typed refusal, before
    anything is compiled or charged.
Rule 3: what goes on is of Python's own types, so that no method of a caller's class is called later.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import cast
from uuid import UUID

import numpy as np

from dpsql.errors import (
    DatatypeMismatch,
    Error,
    InterfaceError,
    InvalidSyntax,
    LimitExceeded,
    NumberOutOfRange,
    UndefinedParameter,
)
from dpsql.sqltypes import Span

Values = Sequence[object] | Mapping[str, object]

MAX_ITEMS = 100_000
"""Items of one list, as on the wire."""
_MAX_BITS = 128
"""Of a whole number; numeric ends before."""
_FINE = frozenset({"ns", "ps", "fs", "as"})
"""numpy's units below a microsecond."""
_TYPES = "Pass None, bool, int, float, Decimal, str, bytes, date, datetime, time, timedelta, UUID, or a list of them."
_PLACEHOLDER = re.compile(r"%(?:%|s|\((\w+)\)s|(.|\Z))", re.DOTALL)


def bind(operation: str, parameters: Values | None) -> tuple[str, tuple[object, ...]]:
    """Turn pyformat placeholders into $1, $2 … and their values.

    Args:
        operation: SQL with %s or %(name)s; %% is a percent sign. Without parameters it is taken as it is.
        parameters: A sequence for %s, a mapping for %(name)s.

    Raises:
        ProgrammingError: Placeholders and parameters do not fit, or a value has no SQL type.
        DataError: A value is out of range.
        InterfaceError: The parameters cannot be read.
    """
    if not isinstance(operation, str):
        raise DatatypeMismatch(f"a statement must be a str, not {type(operation).__name__}", hint='execute("SELECT 1")')
    text = str.__str__(operation)
    if parameters is None:
        return text, ()
    with _reading():
        if isinstance(parameters, Mapping):
            text, names = _numbered(text, named=True)
            return text, tuple(plain(_named(parameters, name)) for name in names)
        if isinstance(parameters, Sequence) and not isinstance(parameters, str | bytes | bytearray | memoryview):
            text, names = _numbered(text, named=False)
            _check_count(len(names), len(parameters))
            return text, tuple(plain(parameters[place]) for place in range(len(names)))
    raise DatatypeMismatch(
        f"parameters must be a sequence or a mapping, not {type(parameters).__name__}",
        hint='execute("SELECT %s", [value]), or execute("SELECT %(name)s", {"name": value})',
    )


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except Error:
        raise
    except Exception as error:
        raise InterfaceError(f"the parameters cannot be read: they raise {type(error).__name__}") from error


def _numbered(operation: str, *, named: bool) -> tuple[str, list[str]]:
    """The text with $1, $2 …, and a name for each of these: that of the placeholder, or its number."""
    places: dict[str, int] = {}

    def place(match: re.Match[str]) -> str:
        name, other = match.group(1), match.group(2)
        if match.group(0) == "%%":
            return "%"
        if other is not None or named != (name is not None):
            raise InvalidSyntax(
                f"the placeholder {match.group(0)} does not fit the parameters",
                hint="Use %s with a sequence or %(name)s with a mapping; write %% for a percent sign.",
                position=match.start() + 1,
            )
        return f"${places.setdefault(name or str(len(places)), len(places) + 1)}"

    text = _PLACEHOLDER.sub(place, operation)
    return text, list(places)


def _named(parameters: Mapping[str, object], name: str) -> object:
    try:
        return parameters[name]
    except KeyError:
        raise UndefinedParameter(f'there is no parameter "{name}"', hint=f'Pass {{"{name}": value}}.') from None


def _check_count(placeholders: int, parameters: int) -> None:
    if placeholders != parameters:
        raise UndefinedParameter(
            f"there are {'more' if placeholders > parameters else 'fewer'} placeholders than parameters",
            detail=f"placeholders: {placeholders}, parameters: {parameters}",
            hint='execute("SELECT %s, %s", [1, 2])',
        )


def plain(value: object) -> object:
    """A parameter as a value of one of Python's own types, or a `Span`.

    Raises:
        NumberOutOfRange: It is a number or a moment of no SQL type's range.
        DatatypeMismatch: It has no SQL type, is a moment that is none, or a time of day with a zone.
        LimitExceeded: It is a list of too many items.
    """
    if isinstance(value, list | tuple):
        items = [*(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))]
        if len(items) > MAX_ITEMS:
            raise LimitExceeded(f"a list may have at most {MAX_ITEMS:,} items", hint="Pass it in parts.")
        return [item if isinstance(item, list | tuple) else plain(item) for item in items]
    if isinstance(value, np.generic):
        value = _of_numpy(value)
    match value:
        case bool():
            return value
        case int():
            return _whole(value)
        case float():
            return float.__float__(value)
        case str():
            return str.__str__(value)
        case Decimal():
            return Decimal(value)
        case date() | time():
            return _moment(value)
        case timedelta():
            return timedelta(value.days, value.seconds, value.microseconds)
        case UUID():
            return UUID(int=value.int)
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case None | Span():
            return value
    raise DatatypeMismatch(f"a parameter of the Python type {type(value).__name__} has no SQL type", hint=_TYPES)


def _of_numpy(value: np.generic) -> object:
    """Python's value for one of numpy's; for moments and spans the one it has to the microsecond, if it has one."""
    if not isinstance(value, np.datetime64 | np.timedelta64):
        return cast(object, value.item())
    if np.datetime_data(value.dtype)[0] in _FINE:  # item() would be a bare number
        value = value.astype(f"{value.dtype.kind}8[us]")
    found = value.item()
    return found if isinstance(found, date | timedelta) else value


def _whole(value: int) -> int:
    whole = int.__index__(value)
    if whole.bit_length() > _MAX_BITS:
        raise NumberOutOfRange("a whole number has too many digits", hint="Pass a number with at most 30 digits.")
    return whole


def _moment(value: date | time) -> object:
    try:
        if isinstance(value, datetime):
            day = value.year, value.month, value.day
            moment = datetime(*day, value.hour, value.minute, value.second, value.microsecond, fold=value.fold)
            if value.utcoffset() is None:
                return moment
            return moment.replace(tzinfo=value.tzinfo).astimezone(UTC)
        if isinstance(value, date):
            return date(value.year, value.month, value.day)
        if value.tzinfo is None:
            return time(value.hour, value.minute, value.second, value.microsecond)
    except OverflowError:
        raise NumberOutOfRange("a timestamp is outside the years 1 to 9999 in UTC") from None
    except (TypeError, ValueError):  # as pandas' NaT, which has no year
        raise DatatypeMismatch(
            f"{type(value).__name__} is not a date or timestamp", hint="Pass None for NULL."
        ) from None
    raise DatatypeMismatch("time with time zone is not supported", hint="value.replace(tzinfo=None)")
