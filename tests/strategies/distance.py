"""How far the exact cells of two neighbours are apart, and how far their plan says that they may be."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsql.backends import ExactCells
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.privacy.cost import Adjacency, Sensitivity, cell_sensitivity
from dpsql.privacy.exponential_mechanism import Picking, RankChoice

Vector = dict[tuple[str | None, ...], Any]


class TooFar(AssertionError):
    """One unit moves cells further than the noise is made for."""


def _keys(cells: ExactCells) -> list[tuple[str | None, ...]]:
    return list(zip(*cells.keys, strict=True)) if cells.keys else [()]


def in_order(text: str) -> str:
    """The text of a histogram, which engines write in any order."""
    return ",".join(sorted(text.split(",")))


def vectors(cells: ExactCells) -> list[Vector]:
    """The number of units, then each primitive's cells, by key; of values that are ranked the text, in one order."""
    keys = _keys(cells)
    return [
        {
            key: in_order(value) if isinstance(value, str) else int(value)
            for key, value in zip(keys, column, strict=True)
        }
        for column in (cells.units, *cells.cells)
    ]


def _pairs(text: str) -> list[tuple[int, int]]:
    """Values in order, and how often each is there."""
    found = (pair.split(":") for pair in text.split(",")) if text else ()
    return sorted((int(value), int(count)) for value, count in found)


def _losses(choice: RankChoice, text: str, grid: NDArray[np.int64]) -> NDArray[np.int64]:
    """The loss of each of some values of the grid, by its definition."""
    rows = np.array([value for value, count in _pairs(text) for _ in range(count)], dtype=np.int64)
    below, upto = np.searchsorted(rows, grid, "left"), np.searchsorted(rows, grid, "right")
    rank, total = choice.rank, len(rows)
    taken = min(2 * choice.inset + 1, total) * (1 if rank.below else -1) if rank.is_extreme else 0
    low = rank.below * below - rank.above * (total - below) - taken
    high = rank.above * (total - upto) - rank.below * upto + taken
    moved: NDArray[np.int64] = np.maximum(0, np.maximum(low, high))
    return moved


def ranked(choice: RankChoice, left: Vector, right: Vector) -> Vector:
    """By how much the loss of any value moves in each group: all values at which a loss changes are tried."""
    moved: Vector = {}
    for key in left.keys() | right.keys():
        one, other = (str(side.get(key, "")) for side in (left, right))
        values = {choice.lower, choice.upper}
        values |= {value + step for text in (one, other) for value, _ in _pairs(text) for step in (-1, 0, 1)}
        if not all(choice.lower <= value <= choice.upper for text in (one, other) for value, _ in _pairs(text)):
            raise TooFar("a value lies outside the grid that is chosen from")
        grid = np.array(sorted(value for value in values if choice.lower <= value <= choice.upper), dtype=np.int64)
        moved[key] = int(np.max(np.abs(_losses(choice, one, grid) - _losses(choice, other, grid))))
    return moved


def picked(planned: PlannedRelease, left: Vector, right: Vector) -> Vector:
    """How far the scores of each list move apart: by twice the least that is left after any shift of all of them."""
    moved: dict[tuple[str | None, ...], list[int]] = {}
    for key in left.keys() | right.keys():
        within = tuple(key[place] for place in planned.contribution.lists or ())
        moved.setdefault(within, []).append(left.get(key, 0) - right.get(key, 0))
    return {key: max(steps) - min(steps) for key, steps in moved.items()}


def assert_within(what: str, left: Vector, right: Vector, limit: Sensitivity) -> None:
    """Two vectors differ by no more than `limit`, in all of its norms; a key that is not there counts as 0."""
    moved = [abs(left.get(key, 0) - right.get(key, 0)) for key in left.keys() | right.keys()]
    moved = [step for step in moved if step]
    found = (len(moved), max(moved, default=0), sum(moved), sum(step**2 for step in moved))
    allowed = (limit.l0, limit.linf, limit.l1, limit.l2_squared)
    if any(have > may for have, may in zip(found, allowed, strict=True)):
        raise TooFar(f"{what}: (L0, L∞, L1, L2²) is {found}, and {allowed} was claimed")


def assert_neighbours(
    planned: PlannedRelease, left: ExactCells, right: ExactCells, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> None:
    """The cells of two neighbours keep the promise of the plan they came from.

    Raises:
        TooFar: They do not.
    """
    for side in (left, right):
        twice = [key for key, count in Counter(_keys(side)).items() if count > 1]
        if twice:
            raise TooFar(f"the group {twice[0]} stands twice, and each time is noised by itself")
    if not planned.private_keys and _keys(left) != _keys(right):
        raise TooFar("which public groups are there depends on the data")
    bounds = planned.contribution
    unit = cell_sensitivity(adjacency, l0=bounds.groups_per_unit, lower=0, upper=1, grouped=bounds.grouped)
    (units, *ones), (other_units, *others) = vectors(left), vectors(right)
    if bounds.lists is None and planned.limits_groups:
        assert_within("units", units, other_units, unit)
    for index, (primitive, one, other) in enumerate(zip(planned.primitives, ones, others, strict=True)):
        if isinstance(primitive.noise, RankChoice):
            one, other = ranked(primitive.noise, one, other), {}
        limit = primitive.noise.sensitivity
        if isinstance(primitive.noise, Picking):
            # Every pick sees the same scores.
            one, other, times = picked(planned, one, other), {}, primitive.noise.places.count
            limit = Sensitivity(limit.l0 // times, limit.linf, limit.l1 // times, limit.l2_squared // times)
        assert_within(f"primitive {index} ({primitive.primitive.kind.value})", one, other, limit)


def assert_same(left: ExactCells, right: ExactCells) -> None:
    """The same cells, whatever the order of private groups."""
    if vectors(left) != vectors(right):
        raise TooFar("the same rows gave other cells")
