"""total: SUM and AVG, of all values or of distinct ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import hypot
from typing import ClassVar

from sqlglot import exp

from dpsql.compiler.aggregates.base import (
    ALIKE,
    AggregateFunction,
    Drawn,
    Estimate,
    Formula,
    PlainCall,
    Primitives,
    always,
    argument_of,
    in_steps,
    times,
)
from dpsql.compiler.aggregates.calibration import Calibration, Cell, calibration, variance_of
from dpsql.compiler.dialects.render import CopiedText
from dpsql.compiler.ir.nodes import AggregateCall, Expr, Grid
from dpsql.compiler.ir.primitives import Primitive, PrimitiveKind
from dpsql.compiler.values.grids import decimal_places, grid_of
from dpsql.sqltypes import SqlType

_OFF_CENTRE = Fraction(1, 3)
"""The mean square of a mean's distance from the centre, in half ranges, if it may lie anywhere."""


@dataclass(frozen=True)
class SumEstimate(Estimate):
    """A cell times its step."""

    kind: ClassVar[str] = "a sum"
    cell: int
    step: Fraction

    @property
    def cells(self) -> tuple[int, ...]:
        """The sum."""
        return (self.cell,)

    @property
    def raised_cell(self) -> int:
        """The sum."""
        return self.cell

    @property
    def unit(self) -> Fraction:
        """The step."""
        return self.step

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The cell times its step; the cell may be calibrated."""
        places = decimal_places(self.step)
        value = in_steps(f"p{self.cell}", self.step, places, sql_type)
        if self.step == 1 and sql_type is SqlType.BIGINT:
            value = CopiedText.of_cell(self.cell)
        if drawn is None:
            return Formula(value)
        found = calibration(self.cell, drawn, prefix)
        if found is not None and drawn.calibrates:
            value = in_steps(f"CAST(round({found.raised}) AS DECIMAL(20, 0))", self.step, places, sql_type)
        if found is not None:
            least = found.low if drawn.calibrates else found.least
            low, high = (times(limit, self.step) for limit in (least, found.high))
            return Formula(value, (low, high), found.columns)
        number, width = times(f"p{self.cell}", self.step), drawn.widths[self.cell] * float(self.step)
        if self.step == 1:
            return Formula(value, (CopiedText.of_cell(self.cell, -width), CopiedText.of_cell(self.cell, width)))
        text = f"CAST('{width!r}' AS DOUBLE)"
        return Formula(value, (f"{number} - {text}", f"{number} + {text}"))

    def released_type(self, call: AggregateCall) -> SqlType:
        """Double precision where no number of digits is enough for the step."""
        return decimal_or_double(call.type, self.step)

    def weights(self, primitives: Sequence[Primitive]) -> Mapping[int, Fraction]:
        """From 1 to 4: the square of the largest value over the size that values have by the policy."""
        grid = primitives[self.cell].grid
        if grid is None:
            raise TypeError("a sum has a grid")
        largest = max(abs(grid.lower), abs(grid.upper))
        size = Fraction(max(abs(grid.lower + grid.upper), grid.upper - grid.lower), 2)
        return {self.cell: (largest / size) ** 2 if size else ALIKE}


@dataclass(frozen=True)
class MeanEstimate(Estimate):
    """(centre + sum / count) · step, within the grid's bounds; the sum is of distances from the centre.

    It is NULL where the noisy count is not positive, as PostgreSQL has for no rows.
    """

    kind: ClassVar[str] = "a mean"
    has_constant_error: ClassVar[bool] = False
    sum_cell: int
    count_cell: int
    grid: Grid

    @property
    def cells(self) -> tuple[int, ...]:
        """The sum, and the count."""
        return self.sum_cell, self.count_cell

    @property
    def raised_cell(self) -> int:
        """The sum: a count that is larger makes no mean larger."""
        return self.sum_cell

    @property
    def unit(self) -> Fraction:
        """The step."""
        return self.grid.step

    @property
    def greatest_error(self) -> float:
        """Half the range."""
        return float((self.grid.upper - self.grid.lower) * self.grid.step / 2)

    @property
    def noisy(self) -> str:
        """One sum."""
        return "a centred sum and a count"

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The mean with Fieller's limits; if the count may be noise alone, the interval is the whole grid.

        All are NULL where the count is not positive.
        """
        grid, total, count = self.grid, f"CAST(p{self.sum_cell} AS DOUBLE)", f"CAST(p{self.count_cell} AS DOUBLE)"
        mean = f"{grid.centre} + {total} / {count}"
        value = times(f"CASE WHEN {count} > 0 THEN {self._inside(mean)} END", grid.step)
        if drawn is None:
            return Formula(value)
        found = calibration(self.sum_cell, drawn, prefix, self._sum_of_values(drawn))
        if found is not None:
            return self._calibrated(found, drawn)
        of_sum, of_count = drawn.widths[self.sum_cell], drawn.widths[self.count_cell]
        least, most = (f"{grid.centre} + {end}" for end in fieller(total, count, repr(of_sum**2), of_count))
        ends = map(self._inside, moved_ends((least, most), mean, self._inside(mean)))
        low, high = (
            times(f"CASE WHEN {count} > {of_count!r} THEN {end} WHEN {count} > 0 THEN {limit} END", grid.step)
            for end, limit in zip(ends, (grid.lower, grid.upper), strict=True)
        )
        return Formula(value, (low, high))

    def _sum_of_values(self, drawn: Drawn) -> Cell:
        """The sum of the values, not of their distances from the centre: it adds the centre times the count.

        Divided by the count, its noise variance exceeds that of the mean, in which the count's variance has the weight
        (mean - centre)²: no value is negative.
        """
        of_sum, of_count = (variance_of(drawn.noises[cell]) for cell in self.cells)
        value = f"(CAST(p{self.sum_cell} AS DOUBLE) + {self.grid.centre} * CAST(p{self.count_cell} AS DOUBLE))"
        variance = of_sum + self.grid.centre**2 * of_count
        width = hypot(drawn.widths[self.sum_cell], self.grid.centre * drawn.widths[self.count_cell])
        return Cell(value, variance, width)

    def _calibrated(self, found: Calibration, drawn: Drawn) -> Formula:
        """The calibrated sum of values over the count, no more than `ratio` times the grid's bound."""
        count, of_count = f"CAST(p{self.count_cell} AS DOUBLE)", drawn.widths[self.count_cell]
        most = f"{found.ratio} * {self.grid.upper}" if drawn.calibrates else str(self.grid.upper)
        total, least = (found.raised, found.low) if drawn.calibrates else (found.kept, found.least)
        raw = f"{total} / {count}"
        shown = f"greatest(least({raw}, {most}), {self.grid.lower})"
        low, high = moved_ends((f"{least} / {count}", f"{found.high} / {count}"), raw, shown)
        ends = (f"greatest({low}, {self.grid.lower})", high)
        low, high = (
            times(f"CASE WHEN {count} > {of_count!r} THEN {end} WHEN {count} > 0 THEN {limit} END", self.grid.step)
            for end, limit in zip(ends, (str(self.grid.lower), f"{found.ratio} * {self.grid.upper}"), strict=True)
        )
        mean = f"CASE WHEN {count} > 0 THEN {shown} END"
        return Formula(times(mean, self.grid.step), (low, high), found.columns)

    def weights(self, primitives: Sequence[Primitive]) -> Mapping[int, Fraction]:
        """The mean moves by noise/n with the sum, and by m/n where the count moves by 1: m is its distance."""
        return {self.sum_cell: ALIKE, self.count_cell: _OFF_CENTRE}

    def _inside(self, mean: str) -> str:
        return f"greatest(least({mean}, {self.grid.upper}), {self.grid.lower})"


def decimal_or_double(sql_type: SqlType, step: Fraction) -> SqlType:
    """A type, or double precision for a numeric whose step needs more digits than there are."""
    if sql_type is SqlType.NUMERIC and decimal_places(step) is None:
        return SqlType.DOUBLE
    return sql_type


def mean_estimate(call: AggregateCall, argument: Expr, grid: Grid, primitives: Primitives) -> MeanEstimate:
    """The mean of an argument on a grid."""
    cap = primitives.cap
    if call.distinct:
        total = Primitive(PrimitiveKind.DISTINCT_MEAN, argument, call.filter, cap, grid)
        count = Primitive(PrimitiveKind.DISTINCT, argument, call.filter, cap, grid)
    else:
        total = Primitive(PrimitiveKind.MEAN, argument, call.filter, cap, grid)
        count = Primitive(PrimitiveKind.COUNT, argument, call.filter, cap)
    return MeanEstimate(primitives.cell(total), primitives.cell(count), grid)


def _sum(call: AggregateCall, primitives: Primitives) -> SumEstimate:
    grid = grid_of(call, primitives.protected.relation, primitives.cap)
    kind = PrimitiveKind.DISTINCT_SUM if call.distinct else PrimitiveKind.SUM
    return SumEstimate(
        primitives.cell(Primitive(kind, argument_of(call), call.filter, primitives.cap, grid)), grid.step
    )


def _mean(call: AggregateCall, primitives: Primitives) -> MeanEstimate:
    grid = grid_of(call, primitives.protected.relation, primitives.cap)
    return mean_estimate(call, argument_of(call), grid, primitives)


def _type_of_sum(argument: SqlType) -> SqlType:
    """The type of a sum, as PostgreSQL has it."""
    integers = {SqlType.SMALLINT: SqlType.BIGINT, SqlType.INTEGER: SqlType.BIGINT, SqlType.BIGINT: SqlType.NUMERIC}
    return integers.get(argument, argument)


FUNCTIONS = (
    AggregateFunction(
        "sum",
        PlainCall("sum", _type_of_sum, numbers=True),
        nodes=(exp.Sum,),
        build=_sum,
        even_interval=True,
        orders_groups=True,
        in_windows=True,
        of_one_unit=True,
    ),
    AggregateFunction(
        "avg",
        PlainCall("avg", always(SqlType.DOUBLE), numbers=True),
        nodes=(exp.Avg,),
        build=_mean,
        in_windows=True,
        of_one_unit=True,
    ),
)


def moved_ends(ends: tuple[str, str], value: str, inside: str) -> tuple[str, str]:
    """Return the ends of the interval of a value that is moved to its bounds: the interval moves with it.

    If it stayed, what it has inside of the bounds could be a point, as if there were no noise. The moved interval still
    has all that was inside of the bounds. So it holds at least as often.

    Args:
        ends: The interval of the value, which lies in it.
        value: The value.
        inside: The value within the bounds.
    """
    (low, high), moved = ends, f"({inside} - ({value}))"
    return f"{low} + least({moved}, 0)", f"{high} + greatest({moved}, 0)"


def fieller(total: str, count: str, squared: str, of_count: float) -> tuple[str, str]:
    """Return the least and greatest ratio r for which total - r·count is within the 95 % interval of noise around zero.

    That is exact for every count that exceeds the half width of its noise.

    Args:
        total: A noisy sum.
        count: A noisy count.
        squared: The square of half the width of the sum's 95 % interval.
        of_count: Half the width of the count's 95 % interval.

    Reference: Fieller 1954; the widths of two independent noises add up by squares.
    """
    rest = f"({count} * {count} - {of_count**2!r})"
    root = f"sqrt({squared} * {rest} + pow({of_count!r} * {total}, 2))"
    low, high = (f"(({total} * {count} {sign} {root}) / {rest})" for sign in "-+")
    return low, high
