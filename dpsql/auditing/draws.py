"""draws: draws the noise of one release many times for the same exact cells.

Rule: the gateway's own `release` draws. Each group gets its own noise, so n copies of a group are n draws.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpsql.backends import ExactCells
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.gateway.release import ReleasedCells, release

Cells = NDArray[np.float64]
"""Runs × units × groups of a unit × cells of a group; NaN for missing groups."""
Places = NDArray[np.intp]
"""Units × groups: the row of each unit's group; -1 for missing groups."""


@dataclass(frozen=True)
class Drawable:
    """The exact cells of one release."""

    planned: PlannedRelease
    exact: ExactCells

    def lies_in(self, groups: Sequence[Sequence[object]]) -> bool:
        """Whether its groups can be assigned to units by `groups`."""
        return self.planned.contribution.lists is not None or not groups or len(self.exact.keys) == 1

    def drawn(self, groups: Sequence[Sequence[object]], times: int) -> Cells:
        """Draw the noisy cells of all groups.

        Args:
            groups: The group keys of each unit; empty if all rows belong to one trial.
            times: The number of draws.

        Returns:
            Draws × units × groups × cells: 1 for a private group that is shown, and its noisy cells; NaN for groups
            that are missing or not shown. For top-k, which candidate of a list is first.
        """
        if self.planned.contribution.lists is not None:
            return self._picked(groups, times)
        if not groups:
            rows = len(self.exact.units)
            return self._copies(np.arange(rows), times).reshape(times, 1, 1, -1)
        places = places_of(self.exact.keys[0], groups)
        needed = np.unique(places[places >= 0])
        cells = self._copies(needed, times)
        missing = np.full((times, 1, cells.shape[2]), np.nan)
        within = np.where(places >= 0, np.searchsorted(needed, places), len(needed))
        return np.concatenate([cells, missing], axis=1)[:, within]

    def _copies(self, rows: Places, times: int) -> Cells:
        """Draws × rows × cells."""
        shown = [np.nan] * (self.planned.selection is not None)
        found = np.full((times * len(rows), len(shown) + len(self.exact.cells)), np.nan)
        for first, kept, cells in self._released(rows, times):
            at = first + kept
            found[at, : len(shown)] = 1
            found[at, len(shown) :] = np.array(cells.cells, dtype=np.float64).reshape(len(cells.cells), len(at)).T
        return found.reshape(times, len(rows), found.shape[1])

    def _released(self, rows: Places, times: int) -> Iterator[tuple[int, NDArray[np.intp], ReleasedCells]]:
        """Yield released copies of rows: the index of the first copy, the indexes of those shown, and their cells."""
        bounds = self.planned.contribution
        apart = (
            bounds.grouped and not (bounds.ranked or bounds.one_row or bounds.one_group) and self.planned.limits_groups
        )
        # If the number of groups is the bound of a unit's groups, `release` accepts no copies.
        for first, copies in ((each * len(rows), 1) for each in range(times)) if apart else [(0, times)]:
            size = copies * len(rows)
            names = np.array([f"{place:012d}" for place in range(size)], dtype=object)
            exact = ExactCells(
                (names,),
                np.tile(self.exact.units[rows], copies),
                tuple(np.tile(cell[rows], copies) for cell in self.exact.cells),
            )
            cells = release(self.planned, exact)
            yield first, cells.keys[0].astype(np.intp), cells

    def _picked(self, groups: Sequence[Sequence[object]], times: int) -> Cells:
        """Draws × units × 1 × 1: the candidate of each list that is first; the first key of lists is the unit's."""
        lists = self.planned.contribution.lists or ()
        wanted = {str(keys[0]): unit for unit, keys in enumerate(groups)}
        units = [wanted.get(key, -1) for key in self.exact.keys[lists[0]]] if lists else [0] * len(self.exact.units)
        rows = np.flatnonzero(np.array(units) >= 0)
        keys = tuple(key[rows] for key in self.exact.keys)
        exact = ExactCells(keys, self.exact.units[rows], tuple(cell[rows] for cell in self.exact.cells))
        of_unit = np.array(units)[rows]
        picked = [key for place, key in enumerate(keys) if place not in lists]
        names = np.array([zlib.crc32("".join(map(str, row)).encode()) for row in zip(*picked, strict=True)])
        found = np.full((times, max(1, len(groups)), 1, 1), np.nan)
        for draw in found:
            first = release(self.planned, exact).cells[0] == 1
            draw[of_unit[first], 0, 0] = names[first]
        return found


def places_of(keys: NDArray[np.object_], groups: Sequence[Sequence[object]]) -> Places:
    """The row of each unit's group in a release."""
    rows = {key: row for row, key in enumerate(keys)}
    return np.array([[rows.get(str(key), -1) for key in each] for each in groups], dtype=np.intp)
