"""grids: the grid that values are put on before they are added up, from their bounds and steps."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeVar

from dpsql.compiler.expressions.integrality import is_whole
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Cast,
    Column,
    Expr,
    Field,
    Grid,
    Project,
    Relation,
    Scalar,
    UnitScan,
    UnitWindows,
)
from dpsql.compiler.ir.walk import inputs
from dpsql.compiler.values.bounds import Interval, bounds_of, interval, narrow
from dpsql.errors import PolicyViolation, QueryTooComplex
from dpsql.sqltypes import SqlType

MAX_CELL = 2**50
"""The greatest value one unit may add to a cell, in grid units; totals are clamped to 2^62."""
MAX_NUMBER = Fraction(10**30)
"""The greatest limit of a sum, and one over the least step."""

_Known = TypeVar("_Known")

_CHOOSING = frozenset({"min", "max", "lag", "lead", "first_value", "last_value", "nth_value"})
"""Functions whose value is one of their argument's."""


def grid_of(call: AggregateCall, relation: Relation, rows: int) -> Grid:
    """The grid that the argument of a SUM or AVG is put on, of which one unit brings so many rows.

    Raises:
        PolicyViolation: The argument has no finite bounds.
        QueryTooComplex: Its sum has more digits than are added up exactly.
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
        raise QueryTooComplex(
            f"the bounds of this {call.function.upper()} are too large or too close to 0",
            hint="Narrow them with LEAST and GREATEST.",
        )
    lower, upper = (found.lower / step).__ceil__(), (found.upper / step).__floor__()
    grid = Grid(step, min(lower, upper), max(lower, upper))
    if rows * max(abs(grid.lower), abs(grid.upper)) > MAX_CELL:
        raise QueryTooComplex(
            f"{call.function.upper()} over this range needs more digits than a sum has",
            hint="Narrow the bounds with LEAST and GREATEST. The data owner can set a larger step in the policy.",
        )
    return grid


def _unbounded(call: AggregateCall, argument: Expr, relation: Relation) -> PolicyViolation:
    if (
        isinstance(argument, Cast)
        and isinstance(argument.argument, Call)
        and argument.argument.function == "days_between"
    ):
        return PolicyViolation(
            f"{call.function.upper()} needs bounds, and these dates have none",
            hint="The data owner can declare lower and upper of the column in the policy.",
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
    """The digits after the point that multiples of a step need, or None where no number of digits is enough."""
    for places in range(16):
        if (step * 10**places).denominator == 1:
            return places
    return None


def carried(relation: Relation, begin: Callable[[Relation], Mapping[Field, _Known]]) -> dict[Field, _Known]:
    """What is known of fields where they begin, for the fields of a relation that hand them on as they are."""
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
