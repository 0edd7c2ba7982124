"""bounds: how large a value can be, from column bounds narrowed by the query; a choice of limits, never a guard.

Rule: the engine clamps every aggregated value to the limits chosen here, so a wrong interval costs accuracy and
never privacy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from math import copysign, exp, log, log10, sqrt
from typing import TypeGuard

from dpsql.compiler.ir.conditions import TRUE, all_of, conjuncts
from dpsql.compiler.ir.functions import EXTRACT_PARTS, PAIRS, SPREADS
from dpsql.compiler.ir.nodes import (
    COMPUTED_SCALE,
    Aggregate,
    Call,
    Case,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Grid,
    InList,
    Join,
    Literal,
    Project,
    Relation,
    Release,
    Scalar,
    Scan,
    Series,
    SetOperation,
    Sort,
    UnitScan,
    UnitWindows,
    Values,
    Window,
)
from dpsql.compiler.ir.walk import relations_in
from dpsql.policy import PolicyColumn
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class Interval:
    """Numbers from lower to upper; None is unbounded."""

    lower: Fraction | None = None
    upper: Fraction | None = None

    def intersect(self, other: "Interval") -> "Interval":
        """The numbers in both; this interval where there are none, for limits must not cross."""
        lowers = [end for end in (self.lower, other.lower) if end is not None]
        uppers = [end for end in (self.upper, other.upper) if end is not None]
        both = Interval(max(lowers, default=None), min(uppers, default=None))
        if both.lower is not None and both.upper is not None and both.lower > both.upper:
            return self
        return both

    def hull(self, other: "Interval") -> "Interval":
        """The smallest interval around both."""
        lower = min(self.lower, other.lower) if self.lower is not None and other.lower is not None else None
        upper = max(self.upper, other.upper) if self.upper is not None and other.upper is not None else None
        return Interval(lower, upper)


UNBOUNDED = Interval()
Bounded = Field | Call | Case | Cast
"""What conditions say something of: a column, or what a query computes."""
Bounds = Mapping[Bounded, Interval]
_UNKNOWN: Bounds = {}


def as_fraction(value: object) -> Fraction | None:
    """The value of a numeric constant, or None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        return Fraction(repr(value))  # the decimal digits of its shortest form
    return Fraction(value) if isinstance(value, int | Fraction | Decimal) else None


def bounds_of(relation: Relation, outer: Bounds = _UNKNOWN) -> dict[Bounded, Interval]:
    """The interval of every numeric field of a relation, from policy and query; moments are in days since the year 1.

    Args:
        relation: The relation.
        outer: The intervals of fields that a LATERAL relation refers to.
    """
    match relation:
        case UnitScan():
            return dict(zip(relation.column_fields, map(_declared, relation.columns), strict=True))
        case Scan():
            return dict(zip(relation.fields, map(_declared, relation.columns), strict=True))
        case Filter():
            return narrow(bounds_of(relation.input, outer), relation.condition)
        case Project():
            inner = {**outer, **bounds_of(relation.input, outer)}
            return {
                field: interval(expression, inner)
                for field, expression in zip(relation.fields, relation.expressions, strict=True)
            }
        case Join():
            return _joined(relation)
        case Aggregate():
            return _aggregated(relation)
        case Release():
            return _released(relation.aggregate)
        case UnitWindows():
            inner = bounds_of(relation.input)
            return inner | {
                f: _window(w, inner, relation) for f, w in zip(relation.window_fields, relation.windows, strict=True)
            }
        case SetOperation():
            return _combined(relation, outer)
        case Distinct() | Sort():
            return bounds_of(relation.input)
        case Values() if relation.rows:
            columns = zip(*relation.rows, strict=True)
            return dict(zip(relation.fields, map(_listed, columns), strict=True))
        case Series():
            return dict.fromkeys(relation.fields, _around([relation.start, relation.stop]))
        case _:
            return {}


def _listed(cells: Sequence[Literal]) -> Interval:
    """The interval of a column of VALUES."""
    return _around([cell.value for cell in cells if cell.value is not None])


def _around(values: Sequence[object]) -> Interval:
    """The interval of some values; it has no ends unless all are numbers, or all are moments."""
    for kinds in ((int, float, Decimal), date):
        if values and all(isinstance(value, kinds) and not isinstance(value, bool) for value in values):
            ends = min(values), max(values)  # type: ignore[type-var]  # of one kind
            return Interval(*(_days(end) if isinstance(end, date) else as_fraction(end) for end in ends))
    return UNBOUNDED


def _joined(relation: Join) -> dict[Bounded, Interval]:
    left = bounds_of(relation.left)
    bounds = left | bounds_of(relation.right, left)
    holds = relation.condition is not None and relation.kind in ("inner", "matched")
    return narrow(bounds, relation.condition) if holds and relation.condition is not None else bounds


def _combined(relation: SetOperation, outer: Bounds) -> dict[Bounded, Interval]:
    left, right = bounds_of(relation.left, outer), bounds_of(relation.right, outer)
    pairs = zip(relation.fields, relation.left.fields, relation.right.fields, strict=True)
    return {field: left.get(a, UNBOUNDED).hull(right.get(b, UNBOUNDED)) for field, a, b in pairs}


def _aggregated(relation: Aggregate) -> dict[Bounded, Interval]:
    """Bounds of keys, and of aggregates over the rows of one unit."""
    inner = bounds_of(relation.input)
    found: dict[Bounded, Interval] = {
        field: interval(key, inner) for field, key in zip(relation.key_fields, relation.keys, strict=True)
    }
    for field, call in zip(relation.aggregate_fields, relation.aggregates, strict=True):
        bounds = narrow(inner, call.filter) if call.filter is not None else inner
        least = 1 if relation.keys and call.argument is None and call.filter is None else 0
        found[field] = _of_rows(call.function, call.argument, call.grid, bounds, (least, relation.rows))
    return found


def _released(groups: Aggregate) -> dict[Bounded, Interval]:
    """Bounds of released values that lie among those of their arguments; noisy counts and sums have none."""
    inner = bounds_of(groups.input)
    found: dict[Bounded, Interval] = {}
    for field, call in zip(groups.aggregate_fields, groups.aggregates, strict=True):
        if call.function in _AMONG and call.argument is not None and not call.type.is_array:
            bounds = narrow(inner, call.filter) if call.filter is not None else inner
            found[field] = interval(call.argument, bounds)
    return found


_AMONG = frozenset({"avg", "min", "max", "median", "percentile_cont", "percentile_disc"})


def _of_rows(
    function: str, argument: Expr | None, grid: Grid | None, bounds: Bounds, rows: tuple[int, int | None]
) -> Interval:
    """The interval of an aggregate over rows[0] to rows[1] rows."""
    most = Fraction(rows[1]) if rows[1] is not None else None
    if function in ("count", "count_rows") or argument is None:
        return Interval(Fraction(rows[0]), most)
    if function in SPREADS | PAIRS:
        return UNBOUNDED
    each = interval(argument, bounds)
    if grid is not None:
        each = Interval(grid.lower * grid.step, grid.upper * grid.step)
    if function != "sum":
        return each
    if most is None or each.lower is None or each.upper is None:
        return UNBOUNDED
    return Interval(min(most * each.lower, each.lower), max(most * each.upper, each.upper))


def _window(window: Window, bounds: Bounds, relation: UnitWindows) -> Interval:
    if window.function in ("row_number", "rank", "dense_rank", "ntile"):
        return Interval(Fraction(1), Fraction(relation.rows))
    if window.function in ("percent_rank", "cume_dist"):
        return Interval(Fraction(0), Fraction(1))
    argument = window.arguments[0] if window.arguments else None
    found = _of_rows(window.function, argument, window.grid, bounds, (0, relation.rows))
    for default in window.arguments[2:]:
        found = found.hull(interval(default, bounds))
    return found


def declared(column: PolicyColumn) -> Interval:
    """The interval the policy declares for a column's numbers."""
    if column.values is not None and all(isinstance(value, int | Fraction) for value in column.values):
        numbers = [Fraction(value) for value in column.values if isinstance(value, int | Fraction)]
        return Interval(min(numbers), max(numbers))
    if column.type.is_number:
        return Interval(as_fraction(column.lower), as_fraction(column.upper))
    return UNBOUNDED


def _declared(column: PolicyColumn) -> Interval:
    """The interval of a column's numbers, or of its moments."""
    limits = moment_bounds(column)
    return declared(column) if limits is None else Interval(*map(_days, limits))


def narrow(bounds: Bounds, condition: Expr) -> dict[Bounded, Interval]:
    """The bounds of the rows for which a condition is true."""
    narrowed = dict(bounds)
    for term in conjuncts(condition):
        for subject, allowed in _allowed(term):
            narrowed[subject] = narrowed.get(subject, UNBOUNDED).intersect(allowed)
    return narrowed


def _allowed(term: Expr) -> list[tuple[Bounded, Interval]]:
    """The intervals of the operands of a true comparison with constants."""
    if isinstance(term, InList):
        subject = _compared(term.argument)
        numbers = [number for number in (as_fraction(item.value) for item in term.items) if number is not None]
        return [(subject, Interval(min(numbers), max(numbers)))] if isinstance(subject, Bounded) and numbers else []
    if not isinstance(term, Call):
        return []
    if term.function == "between":
        subject, low, high = (_compared(part) for part in term.arguments)
        if isinstance(subject, Bounded) and isinstance(low, Fraction) and isinstance(high, Fraction):
            return [(subject, Interval(low, high))]
        return []
    if term.function not in _COMPARISONS:
        return []
    # The canonical form has constants on the right.
    left, right = (_compared(part) for part in term.arguments)
    function = term.function
    if isinstance(left, Bounded) and isinstance(right, Fraction):
        # Whole numbers above 17 are 18 or more.
        step = 1 if left.type.is_integer and right.denominator == 1 else 0
        lower = right + step * (function == "gt") if function in ("eq", "gt", "ge") else None
        upper = right - step * (function == "lt") if function in ("eq", "lt", "le") else None
        return [(left, Interval(lower, upper))]
    return []


_COMPARISONS = frozenset({"eq", "lt", "le", "gt", "ge"})


def _compared(expression: Expr) -> Bounded | Fraction | None:
    """The field or expression that is compared, without conversions that keep a number, or the constant."""
    while isinstance(expression, Cast) and _keeps_number(expression):
        expression = expression.argument
    if isinstance(expression, Column):
        return expression.field
    if isinstance(expression, Literal):
        return as_fraction(expression.value)
    return expression if _is_known(expression) else None


def _keeps_number(cast: Cast) -> bool:
    """True of a conversion between number types that rounds to no fewer digits than all computed numbers have."""
    if not cast.type.is_number or not cast.argument.type.is_number:
        return False
    return cast.argument.type.is_integer or (not cast.type.is_integer and cast.scale in (None, COMPUTED_SCALE))


def _is_known(expression: Expr) -> TypeGuard[Call | Case | Cast]:
    """True if conditions on an expression are looked up; expressions with subqueries are too large for that."""
    return isinstance(expression, Call | Case | Cast) and not relations_in(expression)


def interval(expression: Expr, bounds: Bounds) -> Interval:
    """The interval that contains an expression's value wherever it is not NULL."""
    found = _interval(expression, bounds)
    return found.intersect(bounds.get(expression, UNBOUNDED)) if _is_known(expression) else found


def _interval(expression: Expr, bounds: Bounds) -> Interval:
    match expression:
        case Column():
            return bounds.get(expression.field, UNBOUNDED)
        case Literal():
            told = expression.value
            value = _days(told) if isinstance(told, date) else as_fraction(told)
            return Interval(value, value) if value is not None else UNBOUNDED
        case Cast():
            return _cast(expression, bounds)
        case Case():
            return _case(expression, bounds)
        case Call():
            return _call(expression, bounds)
        case Scalar():
            return bounds_of(expression.relation).get(expression.relation.fields[0], UNBOUNDED)
        case _:
            return UNBOUNDED


def _cast(expression: Cast, bounds: Bounds) -> Interval:
    if expression.argument.type is SqlType.BOOLEAN and expression.type.is_integer:
        return Interval(Fraction(0), Fraction(1))
    if expression.type.is_moment and expression.argument.type.is_moment:
        return _converted(expression, interval(expression.argument, bounds))
    if not expression.argument.type.is_number:
        return UNBOUNDED
    inner = interval(expression.argument, bounds)
    if expression.argument.type.is_integer or expression.is_computed:
        return inner
    digits = 0 if expression.type.is_integer else expression.scale
    return inner if digits is None else _to_digits([inner, Interval(Fraction(digits))])


def _converted(expression: Cast, found: Interval) -> Interval:
    """Moments of another type: a time zone moves them by less than a day, and a date has no time."""
    kinds = {expression.type, expression.argument.type}
    if SqlType.TIMESTAMPTZ in kinds and len(kinds) > 1:
        found = _add([found, _WITHIN_A_DAY])
    if expression.type is not SqlType.DATE:
        return found
    return Interval(*(None if end is None else Fraction(end.__floor__()) for end in (found.lower, found.upper)))


def _whole(end: Fraction | None, direction: int) -> Fraction | None:
    if end is None:
        return None
    return Fraction(end.__floor__() if direction < 0 else end.__ceil__())


def _case(expression: Case, bounds: Bounds) -> Interval:
    """The hull of the branches, each under its own condition and not those before; NULL branches are left out."""
    parts: list[tuple[Expr, Bounds]] = []
    for condition, value in expression.branches:
        parts.append((value, narrow(bounds, condition)))
        bounds = narrow(bounds, _failed(condition))
    parts.append((expression.default, bounds))
    hull: Interval | None = None
    for value, inner in parts:
        if isinstance(value, Literal) and value.value is None:
            continue
        found = interval(value, inner)
        hull = found if hull is None else hull.hull(found)
    return hull or UNBOUNDED


_OPPOSITES = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}


def _failed(condition: Expr) -> Expr:
    """What holds of the values that are not NULL where a comparison, or each of several, is not true."""
    if isinstance(condition, Call) and condition.function == "or":
        return all_of(*map(_failed, condition.arguments))
    opposite = _OPPOSITES.get(condition.function) if isinstance(condition, Call) else None
    return replace(condition, function=opposite) if isinstance(condition, Call) and opposite is not None else TRUE


def _call(expression: Call, bounds: Bounds) -> Interval:
    name = expression.function.removeprefix("int_")
    if name.startswith("extract_"):
        return _extracted(expression, name.removeprefix("extract_"), bounds)
    if name in _RANGES:
        return _RANGES[name]
    if name == "days_between":
        return _subtract([interval(argument, bounds) for argument in expression.arguments])
    if name == "nullif":
        return _without(expression, bounds)
    parts = [interval(argument, bounds) for argument in expression.arguments]
    if name == "divide":
        return _quotient(expression, parts)
    if name in ("least", "greatest"):
        return _extreme(
            name, parts, [part for e, part in zip(expression.arguments, parts, strict=True) if _is_constant(e)]
        )
    rule = _RULES.get(name)
    has_order = expression.type.is_number or expression.type.is_moment
    return rule(parts) if rule is not None and has_order else UNBOUNDED


def _days(moment: date) -> Fraction:
    """A moment in days, the first of the year 1 being one; those with a time zone are in UTC."""
    if not isinstance(moment, datetime):
        return Fraction(moment.toordinal())
    clock = moment.astimezone(UTC) if moment.tzinfo is not None else moment
    passed = clock - datetime(clock.year, clock.month, clock.day, tzinfo=clock.tzinfo)
    return clock.toordinal() + Fraction(passed // timedelta(microseconds=1), _DAY * 1_000_000)


def _extracted(expression: Call, part: str, bounds: Bounds) -> Interval:
    """The interval of a part of a moment; a part of a difference is bounded by the difference."""
    (subject,) = expression.arguments
    if isinstance(subject, Call) and subject.function in _DIFFERENCES:
        days = _subtract([interval(argument, bounds) for argument in subject.arguments])
        return _part_of_days(part, _add([days, _WITHIN_A_DAY]))
    if part == "epoch" and subject.type.is_moment:
        return _part_of_days(part, _subtract([interval(subject, bounds), Interval(_EPOCH, _EPOCH)]))
    if subject.type is SqlType.INTERVAL or part not in EXTRACT_PARTS:
        return UNBOUNDED
    low, high = EXTRACT_PARTS[part]
    of_any = Interval(Fraction(low), Fraction(high))
    # The year of an instant is that of the session's time zone.
    shift = _WITHIN_A_DAY if subject.type is SqlType.TIMESTAMPTZ else _between(0, 0)
    return of_any.intersect(_years(_add([interval(subject, bounds), shift]))) if part == "year" else of_any


def _years(moments: Interval) -> Interval:
    """The years of moments."""
    ends = (None if end is None or not 1 <= end < _LAST else int(end) for end in (moments.lower, moments.upper))
    return Interval(*(None if end is None else Fraction(date.fromordinal(end).year) for end in ends))


def _part_of_days(part: str, days: Interval) -> Interval:
    """A part of an interval of a number of days; a year has 365 days or more, and a day of 24 hours 86,400 seconds."""
    if part == "year":
        return _rounded([_divide([days, Interval(Fraction(365), Fraction(365))])])
    if part == "epoch":
        return _multiply([days, Interval(Fraction(_DAY), Fraction(_DAY))])
    if part == "day":
        return days
    if part == "month":
        return Interval(Fraction(0 if days.lower is not None and days.lower >= 0 else -11), Fraction(11))
    return UNBOUNDED


def _without(expression: Call, bounds: Bounds) -> Interval:
    """NULLIF takes an end away from whole numbers: x / NULLIF(n, 0) divides by 1 at least."""
    subject, constant = (interval(argument, bounds) for argument in expression.arguments)
    if not expression.type.is_integer or constant.lower is None or constant.lower != constant.upper:
        return subject
    lower = None if subject.lower is None else subject.lower + (subject.lower == constant.lower)
    upper = None if subject.upper is None else subject.upper - (subject.upper == constant.lower)
    return subject if lower is not None and upper is not None and lower > upper else Interval(lower, upper)


def _add(parts: list[Interval]) -> Interval:
    left, right = parts
    lower = left.lower + right.lower if left.lower is not None and right.lower is not None else None
    upper = left.upper + right.upper if left.upper is not None and right.upper is not None else None
    return Interval(lower, upper)


def _negate(parts: list[Interval]) -> Interval:
    (part,) = parts
    return Interval(-part.upper if part.upper is not None else None, -part.lower if part.lower is not None else None)


def _subtract(parts: list[Interval]) -> Interval:
    return _add([parts[0], _negate([parts[1]])])


def _multiply(parts: list[Interval]) -> Interval:
    left, right = parts
    if left.lower is None or left.upper is None or right.lower is None or right.upper is None:
        return UNBOUNDED
    products = [a * b for a in (left.lower, left.upper) for b in (right.lower, right.upper)]
    return Interval(min(products), max(products))


def _divide(parts: list[Interval]) -> Interval:
    left, right = parts
    if right.lower is None or right.upper is None or right.lower <= 0 <= right.upper:
        return UNBOUNDED
    return _multiply([left, Interval(1 / right.upper, 1 / right.lower)])


def _quotient(expression: Call, parts: list[Interval]) -> Interval:
    """The interval of a quotient; integer division truncates towards zero, which keeps the order."""
    dividend, divisor = parts
    found = _multiply([dividend, _reciprocal(divisor)]) if _is_whole(expression.arguments[1]) else _divide(parts)
    if expression.function != "int_divide":
        return found
    return Interval(*(None if end is None else Fraction(end.__trunc__()) for end in (found.lower, found.upper)))


def _is_whole(expression: Expr) -> bool:
    """True of an integer, of any number type to which it is converted."""
    while isinstance(expression, Cast) and expression.argument.type.is_number:
        expression = expression.argument
    return expression.type.is_integer


def _reciprocal(whole: Interval) -> Interval:
    """1 / n of whole numbers; they are at least 1 in size, for division by 0 is NULL."""
    ends: list[Fraction] = []
    for sign, least, most in ((1, whole.lower, whole.upper), (-1, whole.upper, whole.lower)):
        if most is None or sign * most >= 1:
            smallest = Fraction(1) if least is None else max(Fraction(1), sign * least)
            ends += [sign / smallest, Fraction(0) if most is None else 1 / most]
    return Interval(min(ends), max(ends)) if ends else UNBOUNDED


def _modulo(parts: list[Interval]) -> Interval:
    left, right = parts
    if right.lower is None or right.upper is None:
        return UNBOUNDED
    size = max(abs(right.lower), abs(right.upper))
    return Interval(Fraction(0) if left.lower is not None and left.lower >= 0 else -size, size)


def _absolute(parts: list[Interval]) -> Interval:
    (part,) = parts
    if part.lower is None or part.upper is None:
        return Interval(Fraction(0), None)
    crosses = part.lower <= 0 <= part.upper
    return Interval(
        Fraction(0) if crosses else min(abs(part.lower), abs(part.upper)), max(abs(part.lower), abs(part.upper))
    )


def _rounded(parts: list[Interval]) -> Interval:
    return Interval(_whole(parts[0].lower, -1), _whole(parts[0].upper, 1))


def _hull(parts: list[Interval]) -> Interval:
    found = parts[0]
    for part in parts[1:]:
        found = found.hull(part)
    return found


def _extreme(name: str, parts: list[Interval], constants: list[Interval]) -> Interval:
    """LEAST and GREATEST skip NULLs: of their arguments, only constants, which are never NULL, bound the result."""
    found = _hull(parts)
    for constant in constants:
        found = found.intersect(Interval(None, constant.upper) if name == "least" else Interval(constant.lower))
    return found


def _is_constant(expression: Expr) -> bool:
    """True of a constant that is not NULL, of any type to which it is converted."""
    while isinstance(expression, Cast):
        expression = expression.argument
    return isinstance(expression, Literal) and expression.value is not None


def _increasing(
    function: Callable[[float], float], least: Interval = UNBOUNDED
) -> Callable[[list[Interval]], Interval]:
    """The rule of a function that increases with its argument.

    Args:
        function: The function; it raises ValueError or OverflowError for arguments outside its domain.
        least: An interval that contains all values of the function.
    """

    def end(argument: Fraction | None, direction: int) -> Fraction | None:
        try:
            found = None if argument is None else function(float(argument))
        except (ValueError, OverflowError):
            return None
        return None if found is None else _significant(found, direction)

    def rule(parts: list[Interval]) -> Interval:
        return least.intersect(Interval(end(parts[0].lower, -1), end(parts[0].upper, 1)))

    return rule


def _significant(number: float, direction: int) -> Fraction:
    """A number moved outward to six digits, which is beyond any error of floating-point functions."""
    digits = Context(prec=6, rounding=ROUND_FLOOR if direction < 0 else ROUND_CEILING)
    return Fraction(digits.create_decimal(repr(number)))


def _power(parts: list[Interval]) -> Interval:
    """Of a number that is not negative, to a constant power; of a positive one, to any."""
    base, exponent = parts
    power = exponent.lower
    if power is None or power <= 0 or power != exponent.upper:
        if base.lower is None or base.lower <= 0:
            return UNBOUNDED
        # ln(base) times exponent, which is bilinear, has its extremes where both have theirs.
        logarithm = _multiply([_increasing(log)([base]), exponent])
        return _increasing(exp, _between(0, None))([logarithm])
    if power.denominator == 1 and power % 2 == 0:
        base = _absolute([base])
    if base.lower is None or base.lower < 0:
        return UNBOUNDED
    return _increasing(lambda number: number ** float(power), _between(0, None))([base])


def _of_year(parts: list[Interval]) -> Interval:
    """Dates that are made of a year, a month and a day: those of the years."""
    first, last = parts[0].lower, parts[0].upper
    lower = None if first is None or first > MAXYEAR else _days(date(max(int(first), MINYEAR), 1, 1))
    upper = None if last is None or last < MINYEAR else _days(date(min(int(last), MAXYEAR), 12, 31))
    return Interval(lower, upper)


def _to_digits(parts: list[Interval]) -> Interval:
    """Rounding to a number of digits moves a number by less than one of the last."""
    number, digits = parts
    if digits.lower is None:
        raise TypeError("a count of digits is a constant")
    step = Fraction(10) ** -int(digits.lower)
    return Interval(
        None if number.lower is None else (number.lower / step).__floor__() * step,
        None if number.upper is None else (number.upper / step).__ceil__() * step,
    )


def _bucket(parts: list[Interval]) -> Interval:
    """Buckets are numbered from 1; 0 and count + 1 hold the values outside the range."""
    count = parts[3].upper
    return Interval(Fraction(0), None if count is None else count + 1)


def _between(low: int, high: int | None) -> Interval:
    return Interval(Fraction(low), None if high is None else Fraction(high))


_DAY = 86_400
"""Seconds."""
_LAST = date.max.toordinal()
_EPOCH = Fraction(date(1970, 1, 1).toordinal())
_WITHIN_A_DAY = _between(-1, 1)
_DIFFERENCES = frozenset({"days_between", "moments_between", "age"})
"""Calls that tell how far two moments are apart."""

_RANGES = {
    **dict.fromkeys(("length", "octet_length", "bit_length", "strpos", "regexp_count"), _between(0, None)),
    **dict.fromkeys(("sign", "sin", "cos", "tanh"), _between(-1, 1)),
    **dict.fromkeys(("atan", "asin"), _between(-2, 2)),
    **dict.fromkeys(("acos",), _between(0, 4)),
    "atan2": _between(-4, 4),
    "ascii": _between(0, 0x10FFFF),
}
"""What functions return for all arguments."""

_RULES = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    **dict.fromkeys(("modulo", "numeric_modulo"), _modulo),
    "negate": _negate,
    "abs": _absolute,
    "floor": _rounded,
    "ceil": _rounded,
    "trunc": _rounded,
    "round": _rounded,
    "coalesce": _hull,
    "sqrt": _increasing(sqrt, _between(0, None)),
    "cbrt": _increasing(lambda number: copysign(abs(number) ** (1 / 3), number)),
    "ln": _increasing(log),
    "log10": _increasing(log10),
    "exp": _increasing(exp, _between(0, None)),
    "power": _power,
    "round_digits": _to_digits,
    "trunc_digits": _to_digits,
    "make_date": _of_year,
    "date_add": _add,
    "date_subtract": _subtract,
    "date_at": lambda parts: _add([parts[0], _between(0, 1)]),
    "numeric_within": lambda parts: parts[0],
    **dict.fromkeys(("width_bucket", "numeric_width_bucket"), _bucket),
}


def moment_bounds(column: PolicyColumn) -> tuple[date | datetime, date | datetime] | None:
    """The declared bounds of a date or timestamp column."""
    if isinstance(column.lower, date) and isinstance(column.upper, date):
        return column.lower, column.upper
    return None
