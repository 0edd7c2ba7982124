"""constant_folding: one spelling for each constant, and the values of expressions of constants.

Rule: an expression is replaced by a constant only if every engine would compute exactly this value.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.nodes import Call, Cast, Expr, Literal, Value
from dpsql.sqltypes import INTEGER_RANGES, Span, SqlType

_MIDNIGHT = time()
_EXACT = 2**53
"""Below it a whole number and the double next to it are the same."""

_PLAIN = (int, float, str, date, UUID)
"""Types whose values are equal, and less or greater, here and in every engine alike; a bool is an int."""

_COMPARED: dict[str, Callable[[object, object], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    **{"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge},  # type: ignore[dict-item]  # of one type
}
COMPARISONS = frozenset(_COMPARED)
"""The functions that `compared` knows."""
_COMPUTED: dict[str, Callable[..., int]] = {
    "int_add": operator.add,
    "int_subtract": operator.sub,
    "int_multiply": operator.mul,
    "int_negate": operator.neg,
}
_TEXTS: dict[str, Callable[[Sequence[str]], str]] = {
    "concat_operator": "".join,
    "upper": lambda texts: texts[0].upper(),
    "lower": lambda texts: texts[0].lower(),
}
_INTERVALS: dict[str, Callable[..., Sequence[float]]] = {
    "interval_add": lambda one, other: list(map(operator.add, one, other)),
    "interval_subtract": lambda one, other: list(map(operator.sub, one, other)),
    "interval_negate": lambda one: list(map(operator.neg, one)),
    "interval_multiply": lambda one, factor: [number * factor for number in one],
    "interval_divide": lambda one, factor: [number / factor for number in one],
}
"""Of the months, days and microseconds of intervals."""
_MODERATE = (12_000, 1_000_000, 10**15)
"""So many of each are exact in every engine, and within its range."""


def spelled(literal: Literal) -> Literal:
    """Return a constant in the one spelling of its value; numerics keep their digits, which are shown."""
    value = literal.value
    if literal.type in (SqlType.DOUBLE, SqlType.REAL) and isinstance(value, int | float | Decimal):
        return replace(literal, value=float(value) + 0.0)  # 0 has no sign
    if isinstance(value, datetime) and value.tzinfo is not None:
        return replace(literal, value=_in_utc(value))
    return literal


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # at the ends of the calendar
        return moment


def converted(cast: Cast) -> Expr:
    """A conversion, made at once where it is one of a constant."""
    literal, target = cast.argument, cast.type
    if literal.type is target and cast.scale is None:
        return literal
    if not isinstance(literal, Literal) or cast.scale is not None or literal.parameter is not None:
        return cast
    value = literal.value if literal.type.is_text and target.is_text else _value_as(literal.value, target)
    return cast if value is None else spelled(Literal(value, target))


def _value_as(value: Value, target: SqlType) -> Value:
    """Return a value in another type; None if the engine must convert it."""
    if target in INTEGER_RANGES and isinstance(value, int):
        low, high = INTEGER_RANGES[target]
        return int(value) if low <= value <= high else None
    if target is SqlType.BOOLEAN and isinstance(value, int):
        return bool(value)
    if target is SqlType.DOUBLE and isinstance(value, int | float | Decimal):
        return float(value)
    if target is SqlType.TIMESTAMP and isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, _MIDNIGHT)
    if target is SqlType.DATE and isinstance(value, datetime) and value.tzinfo is None:
        return value.date()
    return None


def computed(call: Call) -> Expr:
    """Arithmetic of whole numbers, done at once where all of them are constants and the result fits."""
    values = [part.value for part in call.arguments if isinstance(part, Literal) and isinstance(part.value, int)]
    if call.function not in _COMPUTED or len(values) < len(call.arguments):
        return call
    found = _COMPUTED[call.function](*values)
    low, high = INTEGER_RANGES[call.type]
    return Literal(found, call.type) if low <= found <= high else call


def computed_text(text: Expr) -> Expr:
    """`||`, UPPER and LOWER of constants of ASCII letters, or of parameters, done at once; NULL where one is NULL."""
    if isinstance(text, Cast) and text.type.is_text and text.scale is None:
        return computed_text(text.argument) if text.argument.type.is_text else text
    if not isinstance(text, Call) or text.function not in _TEXTS:
        return text
    values = [part.value for part in map(computed_text, text.arguments) if isinstance(part, Literal)]
    texts = [value for value in values if isinstance(value, str) and value.isascii()]
    if len(values) < len(text.arguments) or len(texts) + values.count(None) < len(values):
        return text
    return Literal(None if None in values else _TEXTS[text.function](texts), SqlType.TEXT)


def computed_interval(call: Call) -> Expr:
    """Arithmetic of constant intervals, done at once where each number of the result is whole and moderate."""
    values = [_of_interval(converted(part) if isinstance(part, Cast) else part) for part in call.arguments]
    known = [value for value in values if value is not None]
    numbers = _INTERVALS[call.function](*known) if len(known) == len(values) else (0.5,)
    if any(number % 1 for number in numbers) or not _is_moderate(numbers):
        return call
    return Literal(intervals.constant(Span(*map(int, numbers))), SqlType.INTERVAL)


def _of_interval(part: Expr) -> Sequence[int] | float | None:
    """The three numbers of a constant interval, or the factor of one; None for anything else."""
    if not isinstance(part, Literal) or part.parameter is not None:
        return None
    if part.type is SqlType.INTERVAL and isinstance(part.value, str):
        span = intervals.span(part.value)
        numbers = (span.months, span.days, span.microseconds)
        return numbers if _is_moderate(numbers) else None
    return part.value if isinstance(part.value, float) and part.value else None


def _is_moderate(numbers: Sequence[float]) -> bool:
    return all(abs(number) <= most for number, most in zip(numbers, _MODERATE, strict=True))


def compared(function: str, left: Literal, right: Literal) -> Literal | None:
    """What comparing two constants gives, where their order is the same everywhere."""
    if left.value is None or right.value is None:
        return Literal(None, SqlType.BOOLEAN)
    alike = left.type is right.type and type(left.value) is type(right.value)
    if not alike or not isinstance(left.value, _PLAIN) or (isinstance(left.value, str) and not left.type.is_text):
        return None
    return Literal(_COMPARED[function](left.value, right.value), SqlType.BOOLEAN)


def tested(call: Call) -> Expr:
    """IS NULL, IS TRUE or IS FALSE of a constant."""
    (argument,) = call.arguments
    if not isinstance(argument, Literal) or argument.parameter is not None:
        return call
    wanted = {"is_null": None, "is_true": True, "is_false": False}[call.function]
    return Literal(argument.value is wanted, SqlType.BOOLEAN)


def narrowed(expression: Expr, constants: Sequence[Literal]) -> tuple[Expr, tuple[Literal, ...]]:
    """Return a compared expression without the casts that only widen its type, with the constants in its own type."""
    found = tuple(constants)
    while isinstance(expression, Cast) and expression.scale is None:
        fitting = [_fitting(constant, expression.argument.type, expression.type) for constant in found]
        known = tuple(constant for constant in fitting if constant is not None)
        if len(known) < len(found):
            break
        expression, found = expression.argument, known
    return expression, found


def _fitting(constant: Literal, source: SqlType, target: SqlType) -> Literal | None:
    """A constant of a wider type as one of `source`, to which its place among all values is the same."""
    value: Value = constant.value
    if source.is_text and target.is_text and SqlType.CHAR not in (source, target):
        return replace(constant, type=source)
    if source is SqlType.DATE and target is SqlType.TIMESTAMP and isinstance(value, datetime):
        return Literal(value.date(), source) if value.time() == _MIDNIGHT else None
    if source in INTEGER_RANGES and isinstance(value, int | float) and value == int(value):
        whole = Literal(int(value), source)
        return whole if _keeps_places(source, target, value) else None
    return None


def _keeps_places(source: SqlType, target: SqlType, value: float) -> bool:
    """True where whole numbers of one type are less than, equal to or greater than a value in the other type too."""
    low, high = INTEGER_RANGES[source]
    if not low <= value <= high:
        return False
    if target is SqlType.DOUBLE:
        return abs(value) < _EXACT
    return target in INTEGER_RANGES and INTEGER_RANGES[target][1] >= high
