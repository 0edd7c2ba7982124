"""variance: variance, covariance, correlation and regression, as SQL of released sums.

Rule 1: statistics depend on released cells and the distribution of the noise only: they are post-processing.
Rule 2: numbers are measured in steps from the centres of their grids, where noise has the least effect on squares.
Rule 3: where PostgreSQL returns NULL, so does dpsql: too few rows, and regressions on constant values.

Margins are first-order: each cell's noise changes the statistic by its derivative; the changes add in quadrature.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar

from sqlglot import exp

from dpsql.compiler.aggregates.base import (
    AggregateFunction,
    Drawn,
    Estimate,
    Formula,
    PlainCall,
    Primitives,
    always,
    argument_of,
)
from dpsql.compiler.aggregates.count import CountEstimate
from dpsql.compiler.aggregates.total import mean_estimate
from dpsql.compiler.ir.conditions import all_of, is_null, negated
from dpsql.compiler.ir.nodes import AggregateCall, Grid
from dpsql.compiler.ir.primitives import Factor, Primitive, PrimitiveKind
from dpsql.compiler.values.grids import grid_of
from dpsql.errors import LimitExceeded
from dpsql.sqltypes import SqlType

MAX_SQUARE = 2**42
"""The greatest product of two distances from their centres that one unit may add up to, in grid units."""

_ROUNDING = 1e-13
"""Of the largest variance that a grid has: below it a difference of two sums is 0."""

Slopes = Mapping[int, str]
"""By how much a statistic moves when a cell does, by cell, as SQL."""


@dataclass(frozen=True)
class Moment:
    """A cell that adds up grid values, or products of such, each measured from its grid's centre."""

    cell: int
    grid: Grid


@dataclass(frozen=True)
class VarianceEstimate(Estimate):
    """A statistic of numbers y, or of pairs (y, x), and the sums that it needs: of y, x, y², x² and yx."""

    has_constant_error: ClassVar[bool] = False
    function: str
    count_cell: int
    y: Moment | None = None
    x: Moment | None = None
    yy: Moment | None = None
    xx: Moment | None = None
    xy: Moment | None = None

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The sums, those of products first."""
        return tuple(each for each in (self.xy, self.yy, self.xx, self.y, self.x) if each is not None)

    @property
    def cells(self) -> tuple[int, ...]:
        """The sums, and the count."""
        return (*(each.cell for each in self.moments), self.count_cell)

    @property
    def unit(self) -> Fraction:
        """The step of the first product."""
        return self.moments[0].grid.step

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The statistic; its interval is to first order in the noise."""
        return statistic(self, prefix, None if drawn is None else drawn.widths)


def needs(function: str) -> frozenset[str]:
    """The sums that a statistic needs, by the names of VarianceEstimate."""
    match function:
        case "covar_pop" | "covar_samp" | "regr_sxy":
            return frozenset({"y", "x", "xy"})
        case "corr" | "regr_r2":
            return frozenset({"y", "x", "yy", "xx", "xy"})
        case "regr_slope" | "regr_intercept":
            return frozenset({"y", "x", "xx", "xy"})
        case "regr_sxx":
            return frozenset({"x", "xx"})
        case _:
            return frozenset({"y", "yy"})


def statistic(output: VarianceEstimate, prefix: str, widths: Sequence[float] | None) -> Formula:
    """Write a statistic over the cells p0, p1 … of a release.

    Args:
        output: The statistic.
        prefix: What the names of its columns begin with.
        widths: Half the width of a 95 % interval of each cell's noise; without them there is no margin.
    """
    writer = _Writer(output, prefix)
    found, least = _VALUES[output.function](writer)
    low = high = "NULL"
    if widths is not None:
        squares = " + ".join(f"pow({slope} * {widths[cell]!r}, 2)" for cell, slope in found.slopes.items())
        margin = found.margin.format(writer.named(f"sqrt({squares})"))
        low, high = (found.told(writer.named(f"{found.value} {sign} {margin}")) for sign in "-+")
    value, *limits = (
        _scaled(f"CASE WHEN p{output.count_cell} >= {least} THEN {text} END", found.scale)
        for text in (found.told(found.value), low, high)
    )
    return Formula(value, (limits[0], limits[1]), dict(writer.columns))


def _scaled(text: str, scale: Fraction) -> str:
    return f"CAST({text} AS DOUBLE) * {float(scale)!r}"


@dataclass(frozen=True)
class _Found:
    """A statistic in units of `scale`.

    Attributes:
        value: SQL of the statistic, or of its square.
        slopes: The derivatives of `value`.
        scale: The factor that `value` is multiplied by.
        margin: A template for the margin of the slopes.
        least: The lower bound of the statistic.
        greatest: The upper bound of the statistic.
        rooted: Whether the statistic is the square root of `value`; its limits then are, too.
    """

    value: str
    slopes: Slopes
    scale: Fraction
    margin: str = "{0}"
    least: int | None = None
    greatest: int | None = None
    rooted: bool = False

    def told(self, text: str) -> str:
        """SQL of a value or limit, clamped to the possible range; NULL stays NULL."""
        inside = text if self.least is None else f"CASE WHEN {text} < {self.least} THEN {self.least} ELSE {text} END"
        if self.greatest is not None:
            inside = f"CASE WHEN {text} > {self.greatest} THEN {self.greatest} ELSE {inside} END"
        return f"sqrt({inside})" if self.rooted else inside


@dataclass
class _Writer:
    """Names computed expressions, each once."""

    output: VarianceEstimate
    prefix: str
    columns: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def named(self, text: str) -> str:
        """The name of the column that has this value."""
        if text not in self._names:
            self._names[text] = f"{self.prefix}{len(self._names)}"
            self.columns[self._names[text]] = text
        return self._names[text]

    @property
    def count(self) -> str:
        """The number of rows, 1 at least."""
        return self.named(f"CAST(greatest(p{self.output.count_cell}, 1) AS DOUBLE)")

    def mean(self, moment: Moment) -> tuple[str, Slopes]:
        """The mean of a cell's values, as the cell measures them."""
        mean = self.named(f"p{moment.cell} / {self.count}")
        return mean, {moment.cell: f"(1 / {self.count})", self.output.count_cell: f"(-{mean} / {self.count})"}

    def sum(self, *terms: tuple[str, Slopes]) -> Slopes:
        """Slopes of a weighted sum."""
        cells = dict.fromkeys(cell for _, slopes in terms for cell in slopes)
        return {
            cell: self.named(" + ".join(f"({weight}) * {slopes[cell]}" for weight, slopes in terms if cell in slopes))
            for cell in cells
        }

    def central(self, product: Moment | None, one: Moment | None, two: Moment | None) -> tuple[str, Slopes]:
        """The mean product of the distances from two means."""
        if product is None or one is None or two is None:
            raise TypeError("a statistic has the sums that it needs")
        (mean, of_mean), (other, of_other) = self.mean(one), self.mean(two)
        raw, of_raw = self.mean(product)
        value = self.named(f"{product.grid.centre} + {raw} - {mean} * {other}")
        return value, self.sum(("1", of_raw), (f"-{other}", of_mean), (f"-{mean}", of_other))

    def variance(self, square: Moment | None, one: Moment | None) -> tuple[str, Slopes]:
        """A variance that is never negative, and 0 where only rounding is left."""
        value, slopes = self.central(square, one, one)
        least = _ROUNDING * (square.grid.upper if square is not None else 0)
        return self.named(f"CASE WHEN {value} > {least!r} THEN {value} ELSE 0 END"), slopes

    @property
    def of_y(self) -> tuple[str, Slopes]:
        """The variance of y."""
        return self.variance(self.output.yy, self.output.y)

    @property
    def of_x(self) -> tuple[str, Slopes]:
        """The variance of x."""
        return self.variance(self.output.xx, self.output.x)

    @property
    def of_both(self) -> tuple[str, Slopes]:
        """The covariance."""
        return self.central(self.output.xy, self.output.y, self.output.x)

    @property
    def steps(self) -> tuple[Fraction, Fraction]:
        """What a step of y and one of x are worth; 1 where there is none."""
        y, x = self.output.y, self.output.x
        return y.grid.step if y is not None else Fraction(1), x.grid.step if x is not None else Fraction(1)


def _variance(writer: _Writer) -> tuple[_Found, int]:
    value, slopes = writer.of_y
    square = writer.output.yy
    margin = f"least({{0}}, {square.grid.upper})" if square is not None else "{0}"
    return _Found(value, slopes, writer.steps[0] ** 2, margin, least=0), 1


def _of_sample(writer: _Writer, found: _Found) -> tuple[_Found, int]:
    """Return the sample statistic of a population statistic: n/(n - 1) times as large."""
    factor = writer.named(f"{writer.count} / greatest({writer.count} - 1, 1)")
    margin = found.margin.replace("{0}", f"{factor} * {{0}}")
    return replace(found, value=writer.named(f"{factor} * {found.value}"), margin=margin), 2


def _sample_variance(writer: _Writer) -> tuple[_Found, int]:
    return _of_sample(writer, _variance(writer)[0])


def _root(writer: _Writer, found: tuple[_Found, int]) -> tuple[_Found, int]:
    """A standard deviation."""
    variance, least = found
    return replace(variance, scale=writer.steps[0], rooted=True), least


def _covariance(writer: _Writer) -> tuple[_Found, int]:
    value, slopes = writer.of_both
    return _Found(value, slopes, writer.steps[0] * writer.steps[1]), 1


def _sums(writer: _Writer, found: tuple[str, Slopes], scale: Fraction) -> tuple[_Found, int]:
    """A sum of products instead of their mean."""
    value, slopes = found
    moves = writer.sum((writer.count, slopes), ("1", {writer.output.count_cell: value}))
    return _Found(writer.named(f"{writer.count} * {value}"), moves, scale), 1


def _squares(writer: _Writer, found: tuple[str, Slopes], scale: Fraction) -> tuple[_Found, int]:
    """A sum of squares instead of their mean."""
    total, least = _sums(writer, found, scale)
    return replace(total, least=0), least


def _line(writer: _Writer) -> tuple[str, str, Slopes]:
    """The variance of x, and the slope of a regression, with what moves it."""
    (variance, of_variance), (both, of_both) = writer.of_x, writer.of_both
    slope = writer.named(f"CASE WHEN {variance} > 0 THEN {both} / {variance} END")
    return variance, slope, writer.sum((f"1 / {variance}", of_both), (f"-{slope} / {variance}", of_variance))


def _slope(writer: _Writer) -> tuple[_Found, int]:
    _, slope, slopes = _line(writer)
    return _Found(slope, slopes, writer.steps[0] / writer.steps[1]), 1


def _intercept(writer: _Writer) -> tuple[_Found, int]:
    y, x = writer.output.y, writer.output.x
    if y is None or x is None:
        raise TypeError("a statistic has the sums that it needs")
    _, slope, slopes = _line(writer)
    (at_y, of_y), (at_x, of_x) = writer.mean(y), writer.mean(x)
    value = f"{y.grid.centre} + {at_y} - {slope} * ({x.grid.centre} + {at_x})"
    moves = writer.sum(("1", of_y), (f"-{slope}", of_x), (f"-({x.grid.centre} + {at_x})", slopes))
    return _Found(writer.named(value), moves, writer.steps[0]), 1


def _correlation(writer: _Writer) -> tuple[_Found, int]:
    (of_y, by_y), (of_x, by_x), (both, by_both) = writer.of_y, writer.of_x, writer.of_both
    root = writer.named(f"CASE WHEN {of_y} > 0 AND {of_x} > 0 THEN sqrt({of_y} * {of_x}) END")
    value = writer.named(f"greatest(least({both} / {root}, 1), -1)")
    weights = (f"1 / {root}", by_both), (f"-{value} / (2 * {of_y})", by_y), (f"-{value} / (2 * {of_x})", by_x)
    # LEAST passes over NULL.
    told = writer.named(f"CASE WHEN {root} > 0 THEN {value} END")
    return _Found(told, writer.sum(*weights), Fraction(1), least=-1, greatest=1), 1


def _determination(writer: _Writer) -> tuple[_Found, int]:
    """R²: NULL if x is constant, 1 if only y is constant."""
    found, least = _correlation(writer)
    root = found.value
    (of_y, _), (of_x, _) = writer.of_y, writer.of_x
    value = f"CASE WHEN {of_x} > 0 THEN CASE WHEN {of_y} > 0 THEN pow({root}, 2) ELSE 1 END END"
    moves = writer.sum((f"2 * {root}", found.slopes))
    return replace(found, value=writer.named(value), slopes=moves, least=0), least


_VALUES = {
    "var_pop": _variance,
    "var_samp": _sample_variance,
    "stddev_pop": lambda writer: _root(writer, _variance(writer)),
    "stddev_samp": lambda writer: _root(writer, _sample_variance(writer)),
    "covar_pop": _covariance,
    "covar_samp": lambda writer: _of_sample(writer, _covariance(writer)[0]),
    "regr_sxx": lambda writer: _squares(writer, writer.of_x, writer.steps[1] ** 2),
    "regr_syy": lambda writer: _squares(writer, writer.of_y, writer.steps[0] ** 2),
    "regr_sxy": lambda writer: _sums(writer, writer.of_both, writer.steps[0] * writer.steps[1]),
    "regr_slope": _slope,
    "regr_intercept": _intercept,
    "corr": _correlation,
    "regr_r2": _determination,
}


def _of_numbers(call: AggregateCall, primitives: Primitives) -> Estimate:
    """A statistic of one number."""
    grid = grid_of(call, primitives.protected.relation, primitives.cap)
    coarse = _coarse(grid, primitives.cap)
    if call.distinct and coarse != grid:
        raise LimitExceeded(
            f"{call.function.upper()}(DISTINCT …) over this range needs more digits than a sum of squares has",
            hint="Narrow the bounds with LEAST and GREATEST. The data owner can set a larger step in the policy.",
        )
    return _estimate(call, {"y": Factor(argument_of(call), coarse)}, primitives)


def _of_pairs(call: AggregateCall, primitives: Primitives) -> Estimate:
    """A statistic of the rows in which both numbers are there."""
    if call.other is None:
        raise TypeError(f"{call.function} has two arguments")
    first, second, cap = argument_of(call), call.other, primitives.cap
    condition = call.filter
    for each in (first, second):
        absent = is_null(each)
        condition = all_of(negated(absent), condition)
    call = replace(call, filter=condition)
    if call.function == "regr_count":
        return CountEstimate(primitives.cell(Primitive(PrimitiveKind.COUNT, None, condition, cap)))
    grids = {
        name: grid_of(replace(call, argument=each), primitives.protected.relation, cap)
        for name, each in (("y", first), ("x", second))
    }
    if call.function in ("regr_avgx", "regr_avgy"):
        name = call.function[-1]
        return mean_estimate(call, second if name == "x" else first, grids[name], primitives)
    numbers = {"y": Factor(first, _coarse(grids["y"], cap)), "x": Factor(second, _coarse(grids["x"], cap))}
    return _estimate(call, numbers, primitives)


def _estimate(call: AggregateCall, numbers: Mapping[str, Factor], primitives: Primitives) -> VarianceEstimate:
    """The sums of some numbers, of their squares and of their products that a statistic needs."""
    wanted, moments, cap = needs(call.function), {}, primitives.cap
    added = PrimitiveKind.DISTINCT_MEAN if call.distinct else PrimitiveKind.MEAN
    for name in ("y", "x", "yy", "xx", "xy"):
        if name not in wanted:
            continue
        factors = tuple(numbers[letter] for letter in name)
        grid = factors[0].grid if len(factors) == 1 else _product_grid(*factors)
        products = factors if len(name) > 1 else ()
        primitive = Primitive(added, factors[0].argument, call.filter, cap, grid, products)
        moments[name] = Moment(primitives.cell(primitive), grid)
    if call.distinct:
        count = Primitive(PrimitiveKind.DISTINCT, call.argument, call.filter, cap, numbers["y"].grid)
    else:
        counted = call.argument if call.other is None else None
        count = Primitive(PrimitiveKind.COUNT, counted, call.filter, cap)
    return VarianceEstimate(call.function, primitives.cell(count), **moments)


def _coarse(grid: Grid, rows: int) -> Grid:
    """A grid on which the squares of one unit can be added up: the same, or a coarser one."""
    step = grid.step
    while rows * (grid.upper - grid.lower + 2) ** 2 > 4 * MAX_SQUARE:
        step *= 10
        factor = step / grid.step
        grid = Grid(step, (grid.lower / factor).__floor__(), (grid.upper / factor).__ceil__())
    return grid


def _product_grid(one: Factor, two: Factor) -> Grid:
    """The grid of the products of two distances from their centres."""
    corners = [left * right for left in one.ends for right in two.ends]
    least = 0 if one == two else min(corners)
    return Grid(one.grid.step * two.grid.step, least, max(corners))


def _spread(name: str, *nodes: type[exp.Expr]) -> AggregateFunction:
    call = PlainCall(name, always(SqlType.DOUBLE), numbers=True)
    return AggregateFunction(name, call, nodes, build=_of_numbers, in_windows=True)


def _pair(name: str, node: type[exp.Expr]) -> AggregateFunction:
    is_count = name == "regr_count"
    of_type = always(SqlType.BIGINT if is_count else SqlType.DOUBLE)
    call = PlainCall(name, of_type, arguments=2, numbers=True, distinct=False)
    return AggregateFunction(name, call, (node,), build=_of_pairs, even_interval=is_count, in_windows=True)


FUNCTIONS = (
    _spread("var_samp", exp.Variance),
    _spread("var_pop", exp.VariancePop),
    _spread("stddev_samp", exp.Stddev, exp.StddevSamp),
    _spread("stddev_pop", exp.StddevPop),
    _pair("covar_pop", exp.CovarPop),
    _pair("covar_samp", exp.CovarSamp),
    _pair("corr", exp.Corr),
    _pair("regr_slope", exp.RegrSlope),
    _pair("regr_intercept", exp.RegrIntercept),
    _pair("regr_r2", exp.RegrR2),
    _pair("regr_count", exp.RegrCount),
    _pair("regr_avgx", exp.RegrAvgx),
    _pair("regr_avgy", exp.RegrAvgy),
    _pair("regr_sxx", exp.RegrSxx),
    _pair("regr_syy", exp.RegrSyy),
    _pair("regr_sxy", exp.RegrSxy),
)
