"""Sensitivity formulas against every small vector that one unit can contribute."""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsql.errors import InvalidParameter
from dpsql.privacy.cost import Adjacency, Sensitivity, cell_sensitivity, row_sensitivity

BOUNDS = [(0, 1), (0, 3), (-2, 1), (-1, 3), (1, 3), (2, 2), (-3, -1), (0, 0), (-2, 0)]


def contributions(groups: int, l0: int, lower: int, upper: int) -> Iterator[tuple[int, ...]]:
    """Yield every vector that is 0 but in at most l0 groups, where it lies in [lower, upper]."""
    for touched in range(l0 + 1):
        for places in combinations(range(groups), touched):
            for values in product(range(lower, upper + 1), repeat=touched):
                vector = [0] * groups
                for place, value in zip(places, values, strict=True):
                    vector[place] = value
                yield tuple(vector)


def worst(differences: NDArray[np.int64]) -> Sensitivity:
    sizes = np.abs(differences)
    return Sensitivity(
        l0=max(1, int((sizes > 0).sum(axis=1).max())),
        linf=int(sizes.max()),
        l1=int(sizes.sum(axis=1).max()),
        l2_squared=int((sizes**2).sum(axis=1).max()),
    )


@pytest.mark.parametrize(("lower", "upper"), BOUNDS)
@pytest.mark.parametrize("l0", [1, 2])
def test_add_remove_is_the_worst_case(l0: int, lower: int, upper: int) -> None:
    vectors = np.array(list(contributions(2 * l0, l0, lower, upper)))
    claimed = cell_sensitivity(Adjacency.ADD_REMOVE, l0=l0, lower=lower, upper=upper, grouped=True)
    found = worst(vectors)
    assert (claimed.linf, claimed.l1, claimed.l2_squared) == (found.linf, found.l1, found.l2_squared)
    assert claimed.l0 >= found.l0


@pytest.mark.parametrize(("lower", "upper"), BOUNDS)
@pytest.mark.parametrize("l0", [1, 2])
def test_substitute_is_the_worst_case(l0: int, lower: int, upper: int) -> None:
    vectors = np.array(sorted(set(contributions(2 * l0, l0, lower, upper))))
    differences = (vectors[:, np.newaxis] - vectors[np.newaxis]).reshape(-1, 2 * l0)
    claimed = cell_sensitivity(Adjacency.SUBSTITUTE, l0=l0, lower=lower, upper=upper, grouped=True)
    found = worst(differences)
    assert (claimed.linf, claimed.l1, claimed.l2_squared) == (found.linf, found.l1, found.l2_squared)
    assert claimed.l0 == 2 * l0 >= found.l0


@pytest.mark.parametrize(("lower", "upper"), BOUNDS)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_ungrouped_is_the_worst_case_of_one_cell(adjacency: Adjacency, lower: int, upper: int) -> None:
    values = np.array(list(contributions(1, 1, lower, upper)))
    others = values[:, np.newaxis] if adjacency is Adjacency.SUBSTITUTE else np.zeros((1, 1, 1), dtype=np.int64)
    claimed = cell_sensitivity(adjacency, l0=1, lower=lower, upper=upper, grouped=False)
    assert claimed == worst((values[np.newaxis] - others).reshape(-1, 1))


def test_substitute_of_a_mean_centred_cell() -> None:
    claimed = cell_sensitivity(Adjacency.SUBSTITUTE, l0=3, lower=-10, upper=10, grouped=True)
    assert claimed == Sensitivity(l0=6, linf=20, l1=60, l2_squared=3 * 400)


@pytest.mark.parametrize(("l0", "lower", "upper", "grouped"), [(0, 0, 1, True), (2, 0, 1, False), (1, 2, 1, True)])
def test_impossible_bounds_are_refused(l0: int, lower: int, upper: int, grouped: bool) -> None:
    with pytest.raises(InvalidParameter):
        cell_sensitivity(Adjacency.ADD_REMOVE, l0=l0, lower=lower, upper=upper, grouped=grouped)


@pytest.mark.parametrize("fields", [(0, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, -1)])
def test_a_sensitivity_is_not_negative(fields: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidParameter):
        Sensitivity(*fields)


def of_rows(rows: int, cells: int, lower: int, upper: int) -> NDArray[np.int64]:
    """What a unit may add to some cells by so many rows, each in one of them or left out."""
    one = [(0,) * cells]
    one += [(0,) * at + (value,) + (0,) * (cells - at - 1) for at in range(cells) for value in range(lower, upper + 1)]
    return np.unique(np.array([np.sum(chosen, axis=0) for chosen in product(one, repeat=rows)]), axis=0)


@pytest.mark.parametrize(("lower", "upper"), [(0, 1), (-1, 2), (-2, -1), (1, 2)])
@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_worst_case_of_rows_is_claimed(
    adjacency: Adjacency, grouped: bool, rows: int, lower: int, upper: int
) -> None:
    cells = 2 * rows if grouped else 1
    values = of_rows(rows, cells, lower, upper)
    others = values if adjacency is Adjacency.SUBSTITUTE else np.zeros((1, cells), dtype=np.int64)
    found = worst((values[:, np.newaxis] - others[np.newaxis]).reshape(-1, cells))
    groups = rows if grouped else 1
    claimed = row_sensitivity(adjacency, l0=groups, rows=rows, per_cell=rows, lower=lower, upper=upper, grouped=grouped)
    assert claimed == found


def of_shares(rows: int, per_cell: int, cells: int, lower: int, upper: int) -> NDArray[np.int64]:
    """What a unit may add to some cells by so many rows, so many in each: all at an end of their range."""
    held = [each for each in product(range(per_cell + 1), repeat=cells) if sum(each) <= rows]
    ends = product((lower, upper), repeat=cells)
    return np.unique([np.multiply(each, values) for each, values in product(held, ends)], axis=0)


@pytest.mark.parametrize(("lower", "upper"), [(0, 1), (-1, 2), (-2, -1), (-5, 2)])
@pytest.mark.parametrize(("rows", "per_cell"), [(2, 1), (3, 2), (4, 2), (4, 3), (5, 2)])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_worst_case_of_rows_in_each_cell_is_claimed(
    adjacency: Adjacency, rows: int, per_cell: int, lower: int, upper: int
) -> None:
    cells = 4 if adjacency is Adjacency.SUBSTITUTE else 5
    values = of_shares(rows, per_cell, cells, lower, upper)
    others = values if adjacency is Adjacency.SUBSTITUTE else np.zeros((1, cells), dtype=np.int64)
    found = worst((values[:, np.newaxis] - others[np.newaxis]).reshape(-1, cells))
    claimed = row_sensitivity(adjacency, l0=rows, rows=rows, per_cell=per_cell, lower=lower, upper=upper)
    assert found.linf <= claimed.linf and found.l1 <= claimed.l1 and found.l2_squared <= claimed.l2_squared
    if adjacency is Adjacency.ADD_REMOVE:
        assert (found.linf, found.l1) == (claimed.linf, claimed.l1)
        assert found.l2_squared == claimed.l2_squared or rows % per_cell


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("lower", "upper"), [(0, 7), (-3, 4), (-9, -2)])
def test_full_groups_are_as_many_rows(adjacency: Adjacency, lower: int, upper: int) -> None:
    claimed = row_sensitivity(adjacency, l0=4, rows=20, per_cell=5, lower=lower, upper=upper)
    assert claimed == cell_sensitivity(adjacency, l0=4, lower=5 * lower, upper=5 * upper)


@pytest.mark.parametrize(("rows", "per_cell"), [(3, 0), (3, 4), (0, 0)])
def test_impossible_rows_are_refused(rows: int, per_cell: int) -> None:
    with pytest.raises(InvalidParameter):
        row_sensitivity(Adjacency.ADD_REMOVE, l0=3, rows=rows, per_cell=per_cell, lower=0, upper=1)


@pytest.mark.parametrize(("l0", "rows", "grouped"), [(0, 2, True), (2, 2, False), (1, 3, False)])
def test_impossible_groups_of_rows_are_refused(l0: int, rows: int, grouped: bool) -> None:
    with pytest.raises(InvalidParameter):
        row_sensitivity(Adjacency.ADD_REMOVE, l0=l0, rows=rows, per_cell=2, lower=0, upper=1, grouped=grouped)
