"""dropped: what released cells tell of an answer beyond its rows.

That is how much contribution bounds drop, by wide totals, and how many of the groups that rows are compared with may be
noise alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpsql.compiler.aggregates.calibration import is_told, variance_of
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.privacy.conversion import NORMAL_95

Cells = Sequence[NDArray[np.int64]]
"""The released cells of one release, one array a primitive."""


@dataclass(frozen=True)
class Dropped:
    """How much of a wide total the groups of its release lack, of released cells alone.

    Attributes:
        release: The release, by its place in the plan.
        cell: The cell, by its place in the release.
        share: The part of the total that bounds drop.
        margin: Half the width of its 95 % interval.
        announced: Half the width of a cell's interval, over the mean of the cells.
        is_material: Whether it is more than noise alone makes of nothing; then values are raised by it.
    """

    release: int
    cell: int
    share: float
    margin: float
    announced: float
    is_material: bool

    @property
    def is_hidden(self) -> bool:
        """True where noise hides whether more is dropped than an interval allows for."""
        return not self.is_material and self.share + self.margin > self.announced


def dropped_shares(query: CompiledQuery, released: Sequence[Cells]) -> Iterator[Dropped]:
    """What the cells of groups lack of their wide totals; nothing where a total may be noise alone.

    Of private groups, what those lack that are not shown is no part of it. The variance of 1 - B/W is
    (s_B² + (B/W)²·s_W²)/W², to first order.
    """
    for total in query.wide_totals:
        cells = shown, of_each = _values(query, released, total.release, total.cell, total.counted)
        if total.bounded is not None:
            cells = _values(query, released, total.bounded, total.wide_cell)
        (each, of_cell), (whole, of_wide) = cells, _values(query, released, total.wide, total.wide_cell)
        bounded, of_bounded, wide = float(each.sum()), len(each) * of_cell, float(whole.sum())  # 0 if it is not shown
        if not len(each) or wide <= NORMAL_95 * of_wide**0.5:
            continue
        share, margin = 1 - bounded / wide, NORMAL_95 * (of_bounded + (bounded / wide) ** 2 * of_wide) ** 0.5 / wide
        mean = abs(float(shown.mean())) if len(shown) else 0.0
        announced = NORMAL_95 * of_each**0.5 / mean if mean else math.inf
        told = is_told(bounded, of_bounded, wide, of_wide)
        yield Dropped(total.release, total.cell, min(max(share, 0.0), 1.0), margin, announced, told)


def compared_groups(query: CompiledQuery, released: Sequence[Cells]) -> tuple[int, int] | None:
    """Of released groups that other releases read, those that may be noise alone, and all; None if none are read.

    Such a group has no cell beyond a 95 % interval of noise.
    """
    read = {inner.key for planned in query.releases for made in planned.inputs for inner in made.releases}
    found: list[NDArray[np.bool_]] = []
    for planned, cells in zip(query.releases, released, strict=True):
        adds_up = planned.primitives and not any(each.primitive.is_chosen for each in planned.primitives)
        if planned.key not in read or not planned.keys or not adds_up:
            continue
        limits = [NORMAL_95 * variance_of(each.noise) ** 0.5 for each in planned.primitives]
        near = [np.abs(cell) <= limit for cell, limit in zip(cells, limits, strict=True)]
        found.append(np.logical_and.reduce(near))
    return (sum(int(each.sum()) for each in found), sum(map(len, found))) if found else None


def _values(
    query: CompiledQuery, released: Sequence[Cells], place: int, cell: int, counted: int | None = None
) -> tuple[NDArray[np.float64], float]:
    """The values of a cell and the variance of their noise; where it has distances from a centre, of what these are."""
    planned, cells = query.releases[place].primitives, released[place]
    values, variance = cells[cell].astype(np.float64), variance_of(planned[cell].noise)
    grid = planned[cell].primitive.grid
    if counted is not None and grid is not None:
        values += grid.centre * cells[counted]
        variance += grid.centre**2 * variance_of(planned[counted].noise)
    return values, variance
