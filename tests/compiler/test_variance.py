"""What is computed of noisy sums: right without noise, and within the announced interval in 95 % of repeats with it."""

import math
from collections.abc import Sequence
from fractions import Fraction

import duckdb
import numpy as np
import pytest
import sqlglot
from numpy.typing import NDArray
from sqlglot import exp

from dpsql.compiler.aggregates.release_leaf import in_layers
from dpsql.compiler.aggregates.variance import Moment, VarianceEstimate, needs, statistic
from dpsql.compiler.ir.nodes import Grid
from dpsql.privacy.cost import Accountant, Sensitivity, Share
from dpsql.privacy.mechanisms import DiscreteGaussian, gaussian

REPEATS = 2000
GRIDS = {"y": Grid(Fraction(1, 10), 0, 2000), "x": Grid(Fraction(1, 2), -100, 300)}
LETTERS = ("y", "x", "yy", "xx", "xy")
FUNCTIONS = (
    *("var_pop", "var_samp", "stddev_pop", "stddev_samp", "covar_pop", "covar_samp", "corr", "regr_slope"),
    *("regr_intercept", "regr_r2", "regr_sxx", "regr_syy", "regr_sxy"),
)


def product_grid(word: str) -> Grid:
    one, two = (GRIDS[letter] for letter in word)
    half = max(one.upper - one.centre, one.centre - one.lower) * max(two.upper - two.centre, two.centre - two.lower)
    return Grid(one.step * two.step, 0 if one == two else -half, half)


def moment(name: str) -> Moment:
    return Moment(1 + LETTERS.index(name), GRIDS[name] if len(name) == 1 else product_grid(name))


def output(function: str) -> VarianceEstimate:
    wanted = needs(function) | ({"y", "yy"} if function == "regr_syy" else set())
    return VarianceEstimate(function, 0, **{name: moment(name) for name in wanted})


def sums(y: NDArray[np.int64], x: NDArray[np.int64]) -> list[int]:
    """The exact cells of rows on the grids."""
    far = {"y": y - GRIDS["y"].centre, "x": x - GRIDS["x"].centre}
    squares = [int(np.sum(far[word[0]] * far[word[1]] - product_grid(word).centre)) for word in LETTERS[2:]]
    return [len(y), int(far["y"].sum()), int(far["x"].sum()), *squares]


def computed(
    function: str, cells: Sequence[Sequence[int]], widths: Sequence[float] | None
) -> list[tuple[float, float, float]]:
    """Value and limits for each vector of cells."""
    found = statistic(output(function), "s", widths)
    with duckdb.connect() as connection:
        connection.register("cells", {f"p{i}": np.array(column) for i, column in enumerate(zip(*cells, strict=True))})
        query = f"SELECT {found.value}, {', '.join(found.limits)} FROM {in_layers('cells', found.columns)}"
        return connection.execute(query).fetchall()


def rows(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    draw = np.random.default_rng(7)
    x = np.clip(draw.normal(80, 40, size), -100, 300).astype(np.int64)
    y = np.clip(900 + 3 * x + draw.normal(0, 150, size), 0, 2000).astype(np.int64)
    return y, x


def truth(function: str, y: NDArray[np.float64], x: NDArray[np.float64]) -> float:
    """By the definitions."""
    n, cov = len(y), np.cov(y, x, bias=True)
    slope = cov[0, 1] / cov[1, 1]
    return float(
        {
            "var_pop": cov[0, 0],
            "var_samp": cov[0, 0] * n / (n - 1),
            "stddev_pop": math.sqrt(cov[0, 0]),
            "stddev_samp": math.sqrt(cov[0, 0] * n / (n - 1)),
            "covar_pop": cov[0, 1],
            "covar_samp": cov[0, 1] * n / (n - 1),
            "corr": cov[0, 1] / math.sqrt(cov[0, 0] * cov[1, 1]),
            "regr_slope": slope,
            "regr_intercept": y.mean() - slope * x.mean(),
            "regr_r2": cov[0, 1] ** 2 / (cov[0, 0] * cov[1, 1]),
            "regr_sxx": n * cov[1, 1],
            "regr_syy": n * cov[0, 0],
            "regr_sxy": n * cov[0, 1],
        }[function]
    )


def noises() -> list[DiscreteGaussian]:
    share = Share(Accountant.ZCDP, Fraction(0), Fraction(1, 100), Fraction(0))
    found = []
    for grid in (None, *(moment(name).grid for name in LETTERS)):
        reach = 1 if grid is None else max(grid.upper - grid.centre, grid.centre - grid.lower)
        found.append(gaussian(Sensitivity(1, reach, reach, reach**2), share))
    return found


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_announced_interval_holds(function: str) -> None:
    y, x = rows(4000)
    exact = sums(y, x)
    expected = truth(function, y / 10, x / 2)
    ((value, *nothing),) = computed(function, [exact], None)
    assert value == pytest.approx(expected, rel=1e-9) and nothing == [None, None]
    laws = noises()
    drawn = np.array(exact)[:, np.newaxis] + np.array([law.sample(REPEATS) for law in laws])
    found = computed(function, drawn.T.tolist(), [law.half_width() for law in laws])
    inside = sum(low <= expected <= high for _, low, high in found)
    # Five standard deviations of a binomial around 95 %, and half a per cent for what is beyond the first order.
    assert 0.92 < inside / REPEATS < 0.98


@pytest.mark.parametrize("function", FUNCTIONS)
def test_small_and_empty_groups_are_null_or_numbers(function: str) -> None:
    """Never negative, never NaN, never an error, whatever the noise was."""
    laws = noises()
    drawn = np.array([law.sample(REPEATS) for law in laws])
    drawn[0] = np.arange(REPEATS) // 100 - 5
    for value, low, high in computed(function, drawn.T.tolist(), [law.half_width() for law in laws]):
        assert value is None or math.isfinite(value)
        assert low is None or low <= value <= high
        if value is not None and function.startswith(("var", "stddev", "regr_r2", "regr_sxx", "regr_syy")):
            assert value >= 0 and (low is None or low >= 0)
        if value is not None and function in ("corr", "regr_r2"):
            assert abs(value) <= 1 and (low is None or (low >= -1 and high <= 1))
    assert all(set(row) == {None} for row in computed(function, drawn.T.tolist()[:500], None))


def test_of_one_value_there_is_no_regression() -> None:
    for size in (1, 2, 50):
        y, x = np.arange(size) * 7 + 3, np.full(size, 77)
        cells = [sums(y, x)]
        assert [computed(name, cells, None)[0][0] for name in ("regr_slope", "regr_intercept", "corr", "regr_r2")] == [
            None
        ] * 4
        assert computed("regr_sxx", cells, None)[0][0] == 0
        assert (computed("var_samp", cells, None)[0][0] is None) == (size == 1)
    assert computed("regr_r2", [sums(np.full(9, 5), np.arange(9))], None)[0][0] == 1
    assert computed("corr", [sums(np.full(9, 5), np.arange(9))], None)[0][0] is None


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_column_names_another_of_its_own_select(function: str) -> None:
    """DuckDB would write that one out in its place, and what it names in turn."""
    text = in_layers("cells", statistic(output(function), "s", [1.0] * 6).columns)
    layers = list(sqlglot.parse_one(text[1:-1], dialect="duckdb").find_all(exp.Select))
    assert len(layers) > 2
    for layer in layers:
        named = {column.name for item in layer.expressions for column in item.find_all(exp.Column)}
        assert not named & {item.alias for item in layer.expressions if item.alias}
