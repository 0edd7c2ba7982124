"""grids: which numbers are surely whole, and the grid that values are put on before they are added up.

A grid follows from the bounds and steps of the values.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    Field,
    Grid,
    Join,
    Literal,
    Project,
    Relation,
    Scalar,
    SetOperation,
    UnitScan,
    UnitWindows,
)
from dpsql.compiler.ir.walk import inputs
from dpsql.compiler.values.bounds import Interval, bounds_of, interval, narrow
from dpsql.errors import LimitExceeded, PolicyViolation
from dpsql.sqltypes import ARRAYS, SqlType

_ROUNDINGS = frozenset({"floor", "ceil", "trunc", "round", "sign"})
_KEEPING = frozenset(
    {
        *("add", "subtract", "multiply", "negate", "abs", "modulo", "numeric_modulo"),
        *("coalesce", "nullif", "least", "greatest"),
    }
)
"""Functions that give whole numbers of whole numbers; beyond 2^53 every floating-point number is whole."""


def is_whole(expression: Expr, relation: Relation | None = None) -> bool:
    """True if an expression is a whole number or NULL in every row.

    Args:
        expression: An expression over the fields of the relation.
        relation: The relation that shows which fields are whole; without it, only integer types count as whole.
    """
    return _is_whole(expression, whole_fields(relation) if relation is not None else frozenset())


def whole_fields(relation: Relation) -> frozenset[Field]:
    """The numeric fields of a relation that are whole in every row, those of an integer type left out."""
    match relation:
        case Project():
            written = tuple(zip(relation.fields, relation.expressions, strict=True))
        case Aggregate():
            written = tuple(zip(relation.key_fields, relation.keys, strict=True))
        case SetOperation():
            left, right = whole_fields(relation.left), whole_fields(relation.right)
            sides = zip(relation.fields, relation.left.fields, relation.right.fields, strict=True)
            return frozenset(f for f, a, b in sides if _is_whole(Column(a), left) and _is_whole(Column(b), right))
        case Join():
            return whole_fields(relation.left) | whole_fields(relation.right)
        case _:
            # These relations pass on fields of their inputs; subqueries in conditions have fields of their own.
            return frozenset[Field]().union(*map(whole_fields, inputs(relation))) & frozenset(relation.fields)
    inner = whole_fields(relation.input)
    return frozenset(field for field, expression in written if _is_whole(expression, inner))


def _is_whole(expression: Expr, fields: frozenset[Field]) -> bool:
    if expression.type.is_integer:
        return True
    if not expression.type.is_number:
        return False
    match expression:
        case Column():
            return expression.field in fields
        case Literal():
            return _is_whole_value(expression.value)
        case Cast():
            rounds = expression.type is SqlType.NUMERIC and expression.scale == 0
            return rounds or _is_whole(expression.argument, fields)
        case Case():
            values = (*(value for _, value in expression.branches), expression.default)
            return all(_is_whole(value, fields) for value in values)
        case Call() if expression.function in _KEEPING:
            return all(_is_whole(argument, fields) for argument in expression.arguments)
        case Call():
            return expression.function in _ROUNDINGS
    return False


def _is_whole_value(value: object) -> bool:
    return value is None or (isinstance(value, int | float | Decimal) and value == int(value))


_NOT_KEYS = ARRAYS | {SqlType.REAL, SqlType.DOUBLE, SqlType.INTERVAL, SqlType.JSON, SqlType.JSONB, SqlType.BYTEA}


def can_be_key(expression: Expr, relation: Relation) -> bool:
    """True where equal values over a relation have one spelling: floating-point numbers only where they are whole."""
    return expression.type not in _NOT_KEYS or is_whole(expression, relation)


MAX_ADDED = 2**50
"""The greatest value one unit may add to a cell, in grid units; totals are clamped by bounding/printer.py."""
MAX_NUMBER = Fraction(10**30)
"""The greatest limit of a sum, and one over the least step."""

_Known = TypeVar("_Known")

_CHOOSING = frozenset({"min", "max", "lag", "lead", "first_value", "last_value", "nth_value"})
"""Functions whose value is one of their argument's."""


def grid_of(call: AggregateCall, relation: Relation, rows: int) -> Grid:
    """The grid for the argument of SUM or AVG, if one unit contributes this number of rows.

    Raises:
        PolicyViolation: The argument has no finite bounds.
        LimitExceeded: The sum has more digits than can be added exactly.
    """
    argument = call.argument
    if argument is None:
        raise TypeError("a sum has an argument")
    bounds = bounds_of(relation)
    if call.filter is not None:
        bounds = narrow(bounds, call.filter)
    found = interval(argument, bounds)
    if found.lower is None or found.upper is None:
        raise _unbounded(call, argument, relation)
    step = step_of(argument, relation, found)
    if max(abs(found.lower), abs(found.upper)) > MAX_NUMBER or not 1 / MAX_NUMBER <= step <= MAX_NUMBER:
        raise LimitExceeded(
            f"the bounds of this {call.function.upper()} are too large or too close to 0",
            hint="Narrow them with LEAST and GREATEST.",
        )
    lower, upper = (found.lower / step).__ceil__(), (found.upper / step).__floor__()
    grid = Grid(step, min(lower, upper), max(lower, upper))
    if rows * max(abs(grid.lower), abs(grid.upper)) > MAX_ADDED:
        raise LimitExceeded(
            f"{call.function.upper()} over this range needs more digits than a sum has",
            hint="Narrow the bounds with LEAST and GREATEST. The data owner can set a larger step in the policy.",
        )
    return grid


def _unbounded(call: AggregateCall, argument: Expr, relation: Relation) -> PolicyViolation:
    inner = argument.argument if isinstance(argument, Cast) else argument
    inner = inner.arguments[0] if isinstance(inner, Call) and inner.function == "floor" else inner
    if isinstance(inner, Call) and inner.function in ("days_between", "extract_epoch"):
        return PolicyViolation(
            f"{call.function.upper()} needs bounds, and these dates have none",
            hint="Give bounds with LEAST and GREATEST. The data owner can also declare lower and upper in the policy.",
        )
    names = dict(_column_names(relation))
    named = names.get(argument.field) if isinstance(argument, Column) else None
    what = f'column "{named}"' if named else "the expression"
    return PolicyViolation(
        f"{call.function.upper()} needs bounds, and {what} has none",
        hint="Give bounds with LEAST and GREATEST. The data owner can also declare lower and upper in the policy.",
    )


def step_of(argument: Expr, relation: Relation, found: Interval) -> Fraction:
    """The grid an argument is put on: its column's step, 1 for whole numbers, else a millionth of its range or less."""
    if argument.type.is_integer or (argument.type is SqlType.NUMERIC and is_whole(argument, relation)):
        return Fraction(1)
    declared = _steps(relation).get(argument.field) if isinstance(argument, Column) else None
    if declared is not None:
        return declared
    if found.lower is None or found.upper is None or found.lower == found.upper:
        return Fraction(1, 1_000_000)
    width = max(found.upper - found.lower, abs(found.lower), abs(found.upper))
    step = Fraction(1)
    while step * 1_000_000 > width:
        step /= 10
    while step * 10_000_000 <= width:
        step *= 10
    return step


def _steps(relation: Relation) -> Mapping[Field, Fraction]:
    def begin(part: Relation) -> Mapping[Field, Fraction]:
        if isinstance(part, UnitScan):
            pairs = zip(part.columns, part.column_fields, strict=True)
            return {f: column.step for column, f in pairs if column.step is not None}
        if isinstance(part, Aggregate):
            sums = zip(part.aggregate_fields, part.aggregates, strict=True)
            return {f: call.grid.step for f, call in sums if call.grid is not None and call.function == "sum"}
        if isinstance(part, UnitWindows):
            windows = zip(part.window_fields, part.windows, strict=True)
            return {f: w.grid.step for f, w in windows if w.grid is not None and w.function == "sum"}
        return {}

    return carried(relation, begin)


def decimal_places(step: Fraction) -> int | None:
    """The decimal places that multiples of a step need, or None if no number of places suffices."""
    for places in range(16):
        if (step * 10**places).denominator == 1:
            return places
    return None


def carried(relation: Relation, begin: Callable[[Relation], Mapping[Field, _Known]]) -> dict[Field, _Known]:
    """Known properties of fields, carried on to the fields of a relation that pass them on unchanged."""
    known = dict(begin(relation))
    for part in inputs(relation):
        known |= carried(part, begin)
    sources = {field: _source(expression) for field, expression in _handed_on(relation)}
    return known | {field: known[source] for field, source in sources.items() if source in known}


def _source(expression: Expr | None) -> Field | None:
    """The field whose values an expression has."""
    if isinstance(expression, Scalar):
        return expression.relation.fields[0]
    return expression.field if isinstance(expression, Column) else None


def _handed_on(relation: Relation) -> list[tuple[Field, Expr | None]]:
    """Fields of a relation, and the expression below whose values they have."""
    match relation:
        case Project():
            return list(zip(relation.fields, relation.expressions, strict=True))
        case Aggregate():
            chosen = [call.argument if call.function in _CHOOSING else None for call in relation.aggregates]
            return list(zip(relation.fields, (*relation.keys, *chosen), strict=True))
        case UnitWindows():
            firsts = [next(iter(w.arguments), None) if w.function in _CHOOSING else None for w in relation.windows]
            return list(zip(relation.window_fields, firsts, strict=True))
        case _:
            return []


def _column_names(relation: Relation) -> Mapping[Field, str]:
    def begin(scan: Relation) -> Mapping[Field, str]:
        if not isinstance(scan, UnitScan):
            return {}
        return {f: column.name for column, f in zip(scan.columns, scan.column_fields, strict=True)}

    return carried(relation, begin)
