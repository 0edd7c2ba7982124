"""part_list: the parts of one aggregation, each once, and what is made of them.

Rule: aggregates share what is the same expression, so that the price is split over the fewest noisy cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dpsql.compiler.functions import PAIRS, PERCENTILES, RANKS, SPREADS, TRUTHS
from dpsql.compiler.grids import grid_of
from dpsql.compiler.ir import AggregateCall, Call, Cast, Expr, Grid, Literal, Protected
from dpsql.compiler.outputs import (
    CountOutput,
    MeanOutput,
    Output,
    PlaceOutput,
    RankOutput,
    RanksOutput,
    SumOutput,
    TruthOutput,
)
from dpsql.compiler.parts import Contribution, Factor, Part, PartKind
from dpsql.compiler.spreads import Moment, SpreadOutput, needs
from dpsql.errors import QueryTooComplex
from dpsql.privacy.choice import Rank
from dpsql.privacy.picking import Places
from dpsql.sqltypes import SqlType

MAX_PARTS = 64
MAX_DISTINCT_PARTS = 8
MAX_SQUARE = 2**42
"""The greatest product of two distances from their centres that one unit may add up to, in grid units."""

_EXTREMES = {"min": Rank.least(), "max": Rank.greatest()}


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
