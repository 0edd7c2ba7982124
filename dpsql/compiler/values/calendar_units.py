"""calendar_units: hours, days, months, quarters and years: their first instants, and functions computed from them."""

from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta

from dpsql.compiler.ir.conditions import compared
from dpsql.compiler.ir.nodes import Call, Cast, Column, Expr, Field
from dpsql.compiler.ir.walk import operands
from dpsql.sqltypes import SqlType

UNITS = ("hour", "day", "month", "quarter", "year")
"""Finest first: the instants of each unit tell those of the units after it."""
_NEEDED = {
    **{f"extract_{unit}": unit for unit in ("year", "quarter", "month", "hour")},
    **{f"extract_{part}": "day" for part in ("isoyear", "week", "day", "doy", "dow", "isodow")},
    **{f"date_trunc_{unit}": unit for unit in UNITS},
    "date_trunc_week": "day",
}
"""By function of a moment, the coarsest unit whose instants tell its value."""
Moments = tuple[date | datetime | None, date | datetime | None]
"""The first and the last moment that a value may be, None where that is open."""

_DAY, _INSTANT = timedelta(days=1), timedelta(microseconds=1)


def unit_of(expression: Expr) -> tuple[Field, str] | None:
    """The date or timestamp that an expression depends on, and the coarsest unit whose first instants determine it."""
    if isinstance(expression, Column) and expression.type is SqlType.DATE:
        return expression.field, "day"
    inner: Expr | None = None
    needed = "day"
    if isinstance(expression, Cast) and expression.type is SqlType.DATE:
        inner = expression.argument
    elif isinstance(expression, Call) and expression.function in _NEEDED:
        inner, needed = expression.arguments[0], _NEEDED[expression.function]
    return (inner.field, needed) if isinstance(inner, Column) else None


def finest_units(expressions: Iterable[Expr]) -> dict[Field, str]:
    """For each field, the coarsest unit that determines all expressions over it; fields without one are left out."""
    found: dict[Field, str | None] = {}
    for expression in expressions:
        for each, unit in _uses(expression):
            before = found.get(each, unit)
            found[each] = min(before, unit, key=UNITS.index) if before is not None and unit is not None else None
    return {each: unit for each, unit in found.items() if unit is not None}


def _uses(expression: Expr) -> Iterator[tuple[Field, str | None]]:
    use = unit_of(expression)
    if use is not None:
        yield use
    elif isinstance(expression, Column):
        yield expression.field, None
    else:
        for part in operands(expression):
            yield from _uses(part)


def narrow_moments(moments: dict[Field, Moments], condition: Expr) -> None:
    """Narrow the limits of a date or timestamp that a condition compares with constants."""
    function, moment, values = compared(condition) or ("", None, ())
    ends = [instant(value) if isinstance(value, date) else None for value in values]
    if moment is None or moment.type not in (SqlType.DATE, SqlType.TIMESTAMP):
        return
    low, high = moments.get(moment, (None, None))
    step = _DAY if moment.type is SqlType.DATE else _INSTANT
    first = _shifted(ends[0], step) if function == "gt" else ends[0] if function not in ("lt", "le") else None
    last = _shifted(ends[-1], -_INSTANT) if function == "lt" else ends[-1] if function not in ("gt", "ge") else None
    lows = [instant(end) for end in (low, first) if end is not None]
    highs = [instant(end) for end in (high, last) if end is not None]
    moments[moment] = (max(lows, default=None), min(highs, default=None))


def instant(moment: date) -> datetime:
    """A date's first instant, or a timestamp itself."""
    return moment if isinstance(moment, datetime) else datetime(moment.year, moment.month, moment.day)


def _shifted(moment: datetime | None, by: timedelta) -> datetime | None:
    """The moment plus a time span, or None beyond the calendar."""
    try:
        return moment + by if moment is not None else None
    except OverflowError:
        return None


def truncated(moment: date | datetime, unit: str) -> datetime:
    """The first instant of the year, quarter, month, day or hour that holds a moment."""
    at = moment if isinstance(moment, datetime) else datetime(moment.year, moment.month, moment.day)
    if unit == "hour":
        return at.replace(minute=0, second=0, microsecond=0)
    day = datetime(at.year, at.month, at.day)
    firsts = {"year": (1, 1), "quarter": (3 * ((day.month - 1) // 3) + 1, 1), "month": (day.month, 1)}
    month, first = firsts.get(unit, (day.month, day.day))
    return day.replace(month=month, day=first)


def series_length(start: int | date, stop: int | date, unit: str | None) -> int:
    """How many values a series has at the most."""
    if isinstance(start, int) and isinstance(stop, int):
        return max(0, stop - start + 1)
    if not isinstance(start, date) or not isinstance(stop, date):
        raise TypeError("a series runs between numbers or between dates")
    days = stop.toordinal() - start.toordinal()
    months = 12 * (stop.year - start.year) + stop.month - start.month
    steps = {"YEAR": months // 12, "QUARTER": months // 3, "MONTH": months, "WEEK": days // 7, "HOUR": 24 * days + 23}
    return max(0, steps.get(unit or "DAY", days) + 1)
