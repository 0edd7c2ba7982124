"""How far the exact cells of two neighbours are apart, and how far their plan says that they may be."""

from collections import Counter

from dpsql.backends import ExactCells
from dpsql.compiler.plan import PlannedRelease
from dpsql.privacy.sensitivity import Adjacency, Sensitivity, cell_sensitivity

Vector = dict[tuple[str | None, ...], int]


class TooFar(AssertionError):
    """One unit moves cells further than the noise is made for."""


def _keys(cells: ExactCells) -> list[tuple[str | None, ...]]:
    return list(zip(*cells.keys, strict=True)) if cells.keys else [()]


def vectors(cells: ExactCells) -> list[Vector]:
    """The number of units, then each part's cells, by key."""
    keys = _keys(cells)
    return [
        {key: int(value) for key, value in zip(keys, column, strict=True)} for column in (cells.units, *cells.cells)
    ]


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
    unit = cell_sensitivity(adjacency, l0=bounds.max_groups, lower=0, upper=1, grouped=bounds.grouped)
    limits = [unit, *(part.noise.sensitivity for part in planned.parts)]
    names = ["units", *(f"part {index} ({part.part.kind.value})" for index, part in enumerate(planned.parts))]
    for name, one, other, limit in zip(names, vectors(left), vectors(right), limits, strict=True):
        assert_within(name, one, other, limit)


def assert_same(left: ExactCells, right: ExactCells) -> None:
    """The same cells, whatever the order of private groups."""
    if vectors(left) != vectors(right):
        raise TooFar("the same rows gave other cells")
