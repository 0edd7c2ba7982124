"""evaluation: expressions of constants, computed when a query is compiled: ends of series, and rows of WITH RECURSIVE.

Rule: an expression that is not surely computed as in PostgreSQL is no constant.
"""

import calendar
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo

from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.conditions import all_of
from dpsql.compiler.ir.nodes import Call, Case, Cast, Column, Expr, Field, InList, Literal, Value
from dpsql.compiler.sql.constant_folding import COMPARISONS, compared
from dpsql.compiler.values.calendar_units import instant, truncated
from dpsql.sqltypes import INTEGER_RANGES, Span, SqlType

_OF_NUMBERS: Mapping[str, Callable[[int, int], int]] = {
    "int_add": operator.add,
    "int_subtract": operator.sub,
    "int_multiply": operator.mul,
}


class NotConstant(Exception):
    """The value cannot be computed when the query is compiled."""


def evaluated(expression: Expr, known: Mapping[Field, Value], zone: tzinfo) -> Value:
    """The value of an expression.

    Args:
        expression: The expression.
        known: The values of fields.
        zone: The session's time zone.

    Raises:
        NotConstant: It is made of something else, or computed in a way that is not known here.
        OverflowError: The value is out of the range of its type.
        ValueError: It is a moment outside the years 1 to 9999.
    """

    def value(part: Expr) -> Value:
        return evaluated(part, known, zone)

    match expression:
        case Literal():
            return expression.value
        case Column() if expression.field in known:
            return known[expression.field]
        case Cast():
            return _converted(value(expression.argument), expression, zone)
        case Case():
            for condition, result in expression.branches:
                if value(condition) is True:
                    return value(result)
            return value(expression.default)
        case InList():
            subject = Literal(value(expression.argument), expression.argument.type)
            return _any(_compare("eq", subject, item) for item in expression.items)
        case Call(function="and" | "or"):
            found = [value(part) for part in expression.arguments]
            return _any(found) if expression.function == "or" else _negated(_any(map(_negated, found)))
        case Call(function="between", arguments=(subject, low, high)):
            ends = (Call("ge", (subject, low), expression.type), Call("le", (subject, high), expression.type))
            return value(all_of(*ends))
        case Call(function="coalesce"):
            return next((each for each in map(value, expression.arguments) if each is not None), None)
        case Call() if expression.arguments:
            return _called(expression, [value(part) for part in expression.arguments], zone)
        case _:
            raise NotConstant


def _called(call: Call, values: Sequence[Value], zone: tzinfo) -> Value:
    """What a function gives for some arguments."""
    name, first, other = call.function, values[0], values[-1]
    if name == "is_null":
        return first is None
    if None in values:
        return None
    if name == "not":
        return _negated(first)
    if name in COMPARISONS:
        left, right = (Literal(value, part.type) for value, part in zip(values, call.arguments, strict=True))
        return _compare(name, left, right)
    if name in _OF_NUMBERS and isinstance(first, int) and isinstance(other, int):
        return _in_range(_OF_NUMBERS[name](first, other), call.type)
    if name.startswith("date_trunc_") and isinstance(first, date):
        return _truncated(first, name.removeprefix("date_trunc_"), zone)
    sign = -1 if name.endswith("_subtract") else 1
    if name in ("date_add", "date_subtract") and isinstance(first, date) and isinstance(other, int):
        return first + timedelta(days=sign * other)
    if name in ("moment_add", "moment_subtract") and isinstance(first, date) and isinstance(other, str):
        span = intervals.span(other)
        return after(instant(first), Span(sign * span.months, sign * span.days, sign * span.microseconds), zone)
    raise NotConstant


def _negated(condition: Value) -> Value:
    return None if condition is None else not condition


def _any(conditions: Iterable[Value]) -> Value:
    """Whether one of some conditions is true; NULL where none is and one is not known."""
    found = list(conditions)
    return True if True in found else None if None in found else False


def _compare(function: str, left: Literal, right: Literal) -> Value:
    found = compared(function, left, right)
    if found is None:
        raise NotConstant
    return found.value


def _in_range(number: int, kind: SqlType) -> int:
    low, high = INTEGER_RANGES[kind]
    if not low <= number <= high:
        raise OverflowError
    return number


def after(moment: datetime, step: Span, zone: tzinfo) -> datetime:
    """A moment and an interval: months and days by the clock of the zone, the rest by elapsed time."""
    local = moment if moment.tzinfo is None else moment.astimezone(zone).replace(tzinfo=None)
    year, month = divmod(12 * local.year + local.month - 1 + step.months, 12)
    day = min(local.day, calendar.monthrange(year, month + 1)[1])
    local = local.replace(year=year, month=month + 1, day=day) + timedelta(days=step.days)
    at = local if moment.tzinfo is None else local.replace(tzinfo=zone).astimezone(UTC)
    return at + timedelta(microseconds=step.microseconds)


def _truncated(moment: date, unit: str, zone: tzinfo) -> datetime:
    aware = isinstance(moment, datetime) and moment.tzinfo is not None
    local = moment.astimezone(zone).replace(tzinfo=None) if isinstance(moment, datetime) and aware else moment
    at = truncated(local, "day" if unit == "week" else unit)
    if unit == "week":
        at -= timedelta(days=at.weekday())
    return at.replace(tzinfo=zone).astimezone(UTC) if aware else at


def _converted(value: Value, cast: Cast, zone: tzinfo) -> Value:
    """An integer, a date or a moment in another type."""
    kind = cast.type
    if value is None or kind is cast.argument.type:
        return value
    if kind in INTEGER_RANGES and cast.argument.type in INTEGER_RANGES and isinstance(value, int):
        return _in_range(value, kind)
    if not isinstance(value, date) or not kind.is_moment:
        raise NotConstant
    at = instant(value)
    if kind is SqlType.TIMESTAMPTZ:
        return at if at.tzinfo is not None else at.replace(tzinfo=zone).astimezone(UTC)
    at = at if at.tzinfo is None else at.astimezone(zone).replace(tzinfo=None)
    return at.date() if kind is SqlType.DATE else at
