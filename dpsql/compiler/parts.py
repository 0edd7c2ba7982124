"""parts: the exact cells that an aggregation needs, and what one unit may add to each.

Rule 1: aggregates share what is the same expression, so that the price is split over the fewest noisy cells.
Rule 2: a part's range is what its SQL enforces, by clamping; policy bounds only choose it.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from dpsql.compiler.bound import Interval, bounds_of, interval, narrow
from dpsql.compiler.functions import PAIRS, PERCENTILES, RANKS, SPREADS, TRUTHS
from dpsql.compiler.ir import (
    Aggregate,
    AggregateCall,
    Call,
    Cast,
    Column,
    Expr,
    Field,
    Grid,
    Literal,
    Project,
    Protected,
    Relation,
    Scalar,
    UnitScan,
    UnitWindows,
)
from dpsql.compiler.spreads import Moment, SpreadOutput, needs
from dpsql.compiler.walk import inputs
from dpsql.errors import PolicyViolation, QueryTooComplex
from dpsql.policy import RandomizedResponse
from dpsql.privacy.choice import Rank
from dpsql.privacy.picking import Places
from dpsql.sqltypes import SqlType

MAX_CELL = 2**50
"""The greatest value one unit may add to a cell, in grid units; totals are clamped to 2^62."""
MAX_PARTS = 64
MAX_DISTINCT_PARTS = 8


MAX_SQUARE = 2**42
"""The greatest product of two distances from their centres that one unit may add up to, in grid units."""
MAX_NUMBER = Fraction(10**30)
"""The greatest limit of a sum, and one over the least step."""


class PartKind(enum.Enum):
    """What a cell adds up over the units: rows, grid values, or distinct values."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    DISTINCT = "distinct"
    DISTINCT_SUM = "distinct sum"
    DISTINCT_MEAN = "distinct mean"
    RANK = "rank"
    CUT = "cut"

    @property
    def is_distinct(self) -> bool:
        """True where a value that several rows have counts once."""
        return self in (PartKind.DISTINCT, PartKind.DISTINCT_SUM, PartKind.DISTINCT_MEAN)


@dataclass(frozen=True)
class Factor:
    """A number in a product, which is measured from the centre of its grid."""

    argument: Expr
    grid: Grid

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest distance from the centre."""
        return self.grid.lower - self.grid.centre, self.grid.upper - self.grid.centre


@dataclass(frozen=True)
class Part:
    """One integer a group: the sum over units of a value clamped to [lower, upper].

    Attributes:
        kind: COUNT: rows of the unit (where `argument` is not NULL), `cap` at most. SUM: grid values of the unit,
            clamped. MEAN: the same scaled to min(rows, cap) rows and measured from the grid's centre. DISTINCT:
            values no other unit brings, `cap` at most; DISTINCT_SUM and DISTINCT_MEAN: such values added up, from 0
            or from the grid's centre. RANK: how often there is each grid value, `cap` rows of a unit at most; what it
            adds is what it moves the loss of a value by. CUT: 1 for a unit of whom bounding cut something, of its rows
            beyond `cap`, or in rows that pass the filter.
        argument: What is counted or summed; None counts rows.
        filter: Rows for which it is not true add nothing.
        cap: Rows of one unit that count in one group.
        grid: The grid of the argument, for sums and means, and for distinct values that are told apart on it.
        factors: For a MEAN of products: the two numbers, of which the first is the argument.
        rank: For RANK: the rank of the value that is chosen.
        places: Where groups are picked by their cells: which.
    """

    kind: PartKind
    argument: Expr | None
    filter: Expr | None
    cap: int
    grid: Grid | None = None
    factors: tuple[Factor, ...] = ()
    rank: Rank | None = None
    places: Places | None = None

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The expressions that it is made of."""
        found = (self.argument, self.filter, *(factor.argument for factor in self.factors))
        return tuple(each for each in found if each is not None)

    @property
    def counts_units(self) -> bool:
        """True where a unit counts once in a group, however many rows it has."""
        return self.kind is PartKind.CUT or (self.kind is PartKind.COUNT and self.cap == 1)

    @property
    def lower(self) -> int:
        """The least that one unit adds to a cell."""
        if self.rank is not None:
            return -self.cap * self.rank.above
        if self.grid is None or self.kind is PartKind.DISTINCT:
            return 0
        if self.kind in (PartKind.MEAN, PartKind.DISTINCT_MEAN):
            return self.cap * (self.grid.lower - self.grid.centre)
        return self.cap * min(self.grid.lower, 0)

    @property
    def upper(self) -> int:
        """The most that one unit adds to a cell."""
        if self.rank is not None:
            return self.cap * self.rank.below
        if self.kind is PartKind.CUT:
            return 1
        if self.grid is None or self.kind is PartKind.DISTINCT:
            return self.cap
        if self.kind in (PartKind.MEAN, PartKind.DISTINCT_MEAN):
            return self.cap * (self.grid.upper - self.grid.centre)
        return self.cap * max(self.grid.upper, 0)


UNITS = Part(PartKind.COUNT, None, None, 1)


@dataclass(frozen=True)
class CountOutput:
    """A cell as it is."""

    cell: int


@dataclass(frozen=True)
class SumOutput:
    """A cell times its step."""

    cell: int
    step: Fraction


@dataclass(frozen=True)
class MeanOutput:
    """(centre + sum / count) · step, within the grid's limits."""

    sum_cell: int
    count_cell: int
    grid: Grid


@dataclass(frozen=True)
class TruthOutput:
    """`decided` where there surely are units for it; the opposite where there surely are units for that; else NULL."""

    decided: bool
    cell: int
    other_cell: int


@dataclass(frozen=True)
class RankOutput:
    """A grid value that was chosen by its rank, times the step."""

    cell: int
    step: Fraction


@dataclass(frozen=True)
class RanksOutput:
    """An array of grid values that were chosen by their ranks, in order, times the step.

    Attributes:
        cells: The cells.
        places: Which of the values in ascending order each one is; equal ranks are one cell.
        step: What the values are multiples of.
    """

    cells: tuple[int, ...]
    places: tuple[int, ...]
    step: Fraction


@dataclass(frozen=True)
class ResponseOutput:
    """How many, or what share, of those who answered are truly of a value that so many named."""

    cell: int
    total_cell: int
    response: RandomizedResponse
    is_share: bool


@dataclass(frozen=True)
class GroupOutput:
    """How many are truly of the value of a group's randomized key, which so many named."""

    cell: int
    key: int
    response: RandomizedResponse


@dataclass(frozen=True)
class PlaceOutput:
    """The place of a group that was picked, 0 for others; scores are in steps."""

    cell: int
    step: Fraction


Output = (
    PlaceOutput
    | RankOutput
    | RanksOutput
    | CountOutput
    | SumOutput
    | MeanOutput
    | SpreadOutput
    | TruthOutput
    | ResponseOutput
    | GroupOutput
)


@dataclass(frozen=True)
class Contribution:
    """What one unit may contribute to one aggregation; all of it is enforced in SQL.

    Attributes:
        grouped: False where there is one cell, whoever is in it.
        max_groups: Groups it may touch; where groups are picked, lists that it may stand in.
        max_rows: Rows that count in one group.
        all_rows: Rows that count in all groups together, where SQL limits them, too; None where it need not.
        one_row: True where the engine's schema, or SQL beneath, lets a unit have one row only.
        ranked: True where SQL keeps that many of a unit's groups; else there are no more groups than that.
        copied: True where the rows are those of a bounded copy: then `max_rows` count in all groups together.
        lists: Where groups are picked: the keys, by their places, for each of whose values there is a list of groups to
            pick from; () for one list, of which a unit may touch every group. None where cells are shown.
    """

    grouped: bool
    max_groups: int
    max_rows: int
    one_row: bool
    ranked: bool = False
    copied: bool = False
    lists: tuple[int, ...] | None = None
    all_rows: int | None = None


@dataclass
class PartList:
    """Collects the parts of one aggregation, each once."""

    protected: Protected
    contribution: Contribution
    parts: list[Part] = field(default_factory=list)

    def output(self, call: AggregateCall) -> Output:
        """The formula that makes an aggregate's value of its cells.

        Raises:
            PolicyViolation: The argument has no finite bounds.
        """
        cap = self.contribution.max_rows
        if call.function == "count":
            return CountOutput(self.cell(self._count(call)))
        if call.argument is None:
            raise TypeError(f"{call.function} has an argument")
        if call.function in TRUTHS:
            return self._truth(call.function == "bool_or", call.argument, call.filter)
        if call.function in PAIRS and call.other is not None:
            return self._of_pairs(call, call.argument, call.other)
        grid = grid_of(call, self.protected.relation, cap)
        if call.function in RANKS:
            part = Part(PartKind.RANK, call.argument, call.filter, cap, grid)
            cells = tuple(self.cell(replace(part, rank=rank)) for rank in ranks_of(call))
            return self._array(call, cells, grid) if call.type.is_array else RankOutput(cells[0], grid.step)
        if call.function in SPREADS:
            return self._spread(call, {"y": Factor(call.argument, self._spread_grid(grid))})
        if call.function == "sum":
            kind = PartKind.DISTINCT_SUM if call.distinct else PartKind.SUM
            return SumOutput(self.cell(Part(kind, call.argument, call.filter, cap, grid)), grid.step)
        return self._mean(call, call.argument, grid)

    def count_cuts(self) -> None:
        """Add a count of the units of whom bounding cuts something, unless it cuts nothing."""
        outside: Expr | None = None
        for part in self.parts:
            terms = ((part.argument, part.grid),) if not part.factors else ((f.argument, f.grid) for f in part.factors)
            for argument, grid in terms:
                if argument is None or grid is None:
                    continue
                beyond = both(_beyond(argument, grid), part.filter)
                outside = beyond if outside is None else Call("or", (beyond, outside), SqlType.BOOLEAN)
        if outside is not None or not self.contribution.one_row:
            self.cell(Part(PartKind.CUT, None, outside, self.contribution.max_rows))

    @staticmethod
    def _array(call: AggregateCall, cells: tuple[int, ...], grid: Grid) -> "RanksOutput":
        """The values of an array of fractions, of which the least one has the least value."""
        ascending = sorted(set(call.fractions))
        return RanksOutput(cells, tuple(ascending.index(each) for each in call.fractions), grid.step)

    def picked(self, call: AggregateCall, places: Places) -> PlaceOutput:
        """The place of each group by the cell of a count or a sum, which is the only one.

        Raises:
            PolicyViolation: The argument has no finite bounds.
        """
        output = self.output(call)
        if not isinstance(output, CountOutput | SumOutput) or len(self.parts) > 1:
            raise TypeError("groups are picked by one count or sum")
        self.parts[output.cell] = replace(self.parts[output.cell], places=places)
        return PlaceOutput(output.cell, output.step if isinstance(output, SumOutput) else Fraction(1))

    def _mean(self, call: AggregateCall, argument: Expr, grid: Grid) -> MeanOutput:
        cap = self.contribution.max_rows
        if call.distinct:
            total = Part(PartKind.DISTINCT_MEAN, argument, call.filter, cap, grid)
            count = Part(PartKind.DISTINCT, argument, call.filter, cap, grid)
        else:
            total = Part(PartKind.MEAN, argument, call.filter, cap, grid)
            count = Part(PartKind.COUNT, argument, call.filter, cap)
        return MeanOutput(self.cell(total), self.cell(count), grid)

    def _truth(self, decided: bool, argument: Expr, condition: Expr | None) -> TruthOutput:
        """Units with a row for one answer, and units with one for the other."""
        cells = []
        for function in ("is_true", "is_false") if decided else ("is_false", "is_true"):
            term = Call(function, (argument,), SqlType.BOOLEAN)
            cells.append(self.cell(Part(PartKind.COUNT, None, both(term, condition), 1)))
        return TruthOutput(decided, *cells)

    def _of_pairs(self, call: AggregateCall, first: Expr, second: Expr) -> Output:
        """A statistic of the rows in which both numbers are there."""
        condition = call.filter
        for each in (first, second):
            absent = Call("is_null", (each,), SqlType.BOOLEAN)
            condition = both(Call("not", (absent,), SqlType.BOOLEAN), condition)
        call = replace(call, filter=condition)
        if call.function == "regr_count":
            return CountOutput(self.cell(Part(PartKind.COUNT, None, condition, self.contribution.max_rows)))
        grids = {
            name: grid_of(replace(call, argument=each), self.protected.relation, self.contribution.max_rows)
            for name, each in (("y", first), ("x", second))
        }
        if call.function in ("regr_avgx", "regr_avgy"):
            name = call.function[-1]
            return self._mean(call, second if name == "x" else first, grids[name])
        numbers = {"y": Factor(first, self._spread_grid(grids["y"]))}
        return self._spread(call, numbers | {"x": Factor(second, self._spread_grid(grids["x"]))})

    def _spread(self, call: AggregateCall, numbers: Mapping[str, Factor]) -> SpreadOutput:
        """The sums of some numbers, of their squares and of their products that a statistic needs."""
        cap = self.contribution.max_rows
        wanted, moments = needs(call.function), {}
        for name in ("y", "x", "yy", "xx", "xy"):
            if name not in wanted:
                continue
            factors = tuple(numbers[letter] for letter in name)
            grid = factors[0].grid if len(factors) == 1 else product_grid(*factors)
            part = Part(PartKind.MEAN, factors[0].argument, call.filter, cap, grid, factors if len(name) > 1 else ())
            moments[name] = Moment(self.cell(part), grid)
        counted = numbers[min(wanted & numbers.keys())].argument if call.other is None else None
        count = self.cell(Part(PartKind.COUNT, counted, call.filter, cap))
        return SpreadOutput(call.function, count, **moments)

    def _spread_grid(self, grid: Grid) -> Grid:
        """A grid on which the squares of one unit can be added up: the same, or a coarser one."""
        step = grid.step
        while self.contribution.max_rows * (grid.upper - grid.lower + 2) ** 2 > 4 * MAX_SQUARE:
            step *= 10
            factor = step / grid.step
            grid = Grid(step, (grid.lower / factor).__floor__(), (grid.upper / factor).__ceil__())
        return grid

    def _count(self, call: AggregateCall) -> Part:
        is_unit = call.argument is not None and self.protected.is_unit(call.argument)
        if call.distinct and is_unit:
            return Part(PartKind.COUNT, None, call.filter, 1)
        if call.distinct and call.argument is not None and self.protected.is_unit_or_null(call.argument):
            return Part(PartKind.COUNT, call.argument, call.filter, 1)
        if call.distinct:
            return Part(PartKind.DISTINCT, call.argument, call.filter, self.contribution.max_rows)
        argument = None if is_unit else call.argument
        return Part(PartKind.COUNT, argument, call.filter, self.contribution.max_rows)

    def cell(self, part: Part) -> int:
        """The place of a part, which is added if it is not there."""
        if part not in self.parts:
            self.parts.append(part)
        distinct = sum(part.kind.is_distinct for part in self.parts)
        if distinct > MAX_DISTINCT_PARTS:
            raise QueryTooComplex(
                f"a query may have {MAX_DISTINCT_PARTS} COUNT(DISTINCT …)", hint="Ask for fewer at a time."
            )
        if len(self.parts) > MAX_PARTS:
            raise QueryTooComplex(f"a query may have {MAX_PARTS} aggregates", hint="Ask for fewer at a time.")
        return self.parts.index(part)


def ranks_of(call: AggregateCall) -> tuple[Rank, ...]:
    """The ranks of the values that an aggregate is."""
    if call.function in PERCENTILES:
        return tuple(Rank.quantile(Fraction(each)) for each in call.fractions)
    return (_EXTREMES[call.function],)


def product_grid(one: Factor, two: Factor) -> Grid:
    """The grid of the products of two distances from their centres."""
    corners = [left * right for left in one.ends for right in two.ends]
    least = 0 if one == two else min(corners)
    return Grid(one.grid.step * two.grid.step, least, max(corners))


def both(term: Expr, condition: Expr | None) -> Expr:
    """A condition, and another if there is one."""
    return term if condition is None else Call("and", (term, condition), SqlType.BOOLEAN)


def _beyond(argument: Expr, grid: Grid) -> Expr:
    """True of a value that is moved to a limit."""
    value = Cast(argument, SqlType.DOUBLE)
    low, high = (Literal(float(end * grid.step), SqlType.DOUBLE) for end in (grid.lower, grid.upper))
    sides = Call("lt", (value, low), SqlType.BOOLEAN), Call("gt", (value, high), SqlType.BOOLEAN)
    return Call("or", sides, SqlType.BOOLEAN)


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
            f"the limits of this {call.function.upper()} are too large or too close to 0",
            hint="Narrow them: SUM(LEAST(GREATEST(x, low), high)).",
        )
    lower, upper = (found.lower / step).__ceil__(), (found.upper / step).__floor__()
    grid = Grid(step, min(lower, upper), max(lower, upper))
    if rows * max(abs(grid.lower), abs(grid.upper)) > MAX_CELL:
        raise QueryTooComplex(
            f"{call.function.upper()} over this range needs more digits than its sum has",
            hint="Narrow it: SUM(LEAST(GREATEST(x, low), high)), or give the column a larger step in the policy.",
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
            hint="The data owner declares lower and upper of the column in the policy; or count dates: GROUP BY x.",
        )
    names = dict(_column_names(relation))
    named = names.get(argument.field) if isinstance(argument, Column) else None
    what = f'column "{named}"' if named else "the expression"
    shown = named or "x"
    return PolicyViolation(
        f"{call.function.upper()} needs bounds, and {what} has none",
        hint=f"Say them in the query: {call.function.upper()}(LEAST(GREATEST({shown}, 0), 100)); "
        "or the data owner declares lower and upper in the policy.",
    )


_Known = TypeVar("_Known")


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


_EXTREMES = {"min": Rank.least(), "max": Rank.greatest()}
_CHOOSING = frozenset({"min", "max", "lag", "lead", "first_value", "last_value", "nth_value"})
"""Functions whose value is one of their argument's."""


def _column_names(relation: Relation) -> Mapping[Field, str]:
    def begin(scan: Relation) -> Mapping[Field, str]:
        if not isinstance(scan, UnitScan):
            return {}
        return {f: column.name for column, f in zip(scan.columns, scan.column_fields, strict=True)}

    return carried(relation, begin)


def step_of(argument: Expr, relation: Relation, found: Interval) -> Fraction:
    """The grid an argument is put on: its column's step, 1 for integers, else a millionth of its range or less."""
    if argument.type.is_integer:
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


def output_type(call: AggregateCall, output: Output) -> SqlType:
    """The type of an aggregate's released value."""
    if isinstance(output, SumOutput | RankOutput) and call.type is SqlType.NUMERIC:
        return SqlType.NUMERIC if decimal_places(output.step) is not None else SqlType.DOUBLE
    return call.type
