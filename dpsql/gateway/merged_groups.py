"""merged_groups: estimates the cells of a release from several releases of its groups, some of which merge groups.

Let S be a release with cells x, and let each other release R tell PR·x, where PR adds up the groups that R merges and
leaves out those that R does not list. All noises are independent, with one variance in each release. The least squares
estimate of x is x̂ = N⁻¹ Σ PRᵀ·yR/vR with N = Σ PRᵀ·PR/vR, over S and all R, and the variance of a sum aᵀ·x̂ is aᵀN⁻¹a.
With D for the groups that are told alone, and a column of U for each merged group, N = D + U·C·Uᵀ, whose inverse is
D⁻¹ − D⁻¹U·(C⁻¹ + UᵀD⁻¹U)⁻¹·UᵀD⁻¹ (Woodbury).

Rule: which releases are used, and their weights, depend on plans and public keys, never on noisy values.

Guarantee: none is needed: it is post-processing of released cells (Dwork & Roth 2014, proposition 2.1).
Assumes: nothing for privacy. For accuracy: the noises are independent, since each release counts once; the same rows of
    each unit count in all of the releases, as `fits` requires; each row of a merged group is in a group of S, which
    `DescribedKey.merged` requires.
Reference: Hay et al., Boosting the Accuracy of Differentially Private Histograms, 2010, section 4, for least squares.
    The sum has the least variance of all unbiased linear estimates (Gauss and Markov).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsql.compiler.canonical.descriptions import DescribedKey, ReleaseDescription
from dpsql.compiler.plan.query_plan import DerivedCells, MergedGroups
from dpsql.gateway.release import ReleasedCells
from dpsql.privacy.mechanisms import AddedNoise, variance

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_TRUE = "true"
"""How a released key spells it."""


def fits(have: ReleaseDescription, other: ReleaseDescription) -> bool:
    """Whether the groups of another release are those of the first one, some of them merged, over the same rows."""
    if (have.family, have.terms, have.rows, have.per_group) != (other.family, other.terms, other.rows, other.per_group):
        return False
    conditions = {key.merged[0] for key in other.keys if key.merged is not None}
    if not (have.one_group and other.one_group) or len(conditions) > 1:
        return False
    told = sorted(_elsewhere(key) for key in other.keys if key.text not in conditions)
    return bool(told) and told == sorted(key.text for key in have.keys)


def groups_of(have: ReleaseDescription, cells: ReleasedCells, other: ReleaseDescription, merged: ReleasedCells) -> Ints:
    """For each group of a release, its place among the groups of another one that fits; -1 if that has no place for it.

    Args:
        have: The description of the release.
        cells: Its groups.
        other: The description of the other one.
        merged: Its groups.
    """
    conditions = {key.merged[0] for key in other.keys if key.merged is not None}
    told = {_elsewhere(key): place for place, key in enumerate(other.keys) if key.text not in conditions}
    columns = [told[key.text] for key in have.keys]
    plain = [place for place, at in enumerate(columns) if other.keys[at].merged is None]
    is_merged = np.zeros(merged.count, dtype=np.bool_)
    for place, key in enumerate(other.keys):
        if key.text in conditions:
            is_merged = merged.keys[place] == _TRUE
    rows = list(zip(*(merged.keys[at] for at in columns), strict=True))
    alone = {rows[place]: place for place in np.flatnonzero(~is_merged).tolist()}
    together = {tuple(rows[at][each] for each in plain): at for at in np.flatnonzero(is_merged).tolist()}
    mine = list(zip(*cells.keys, strict=True))
    places = (alone.get(row, together.get(tuple(row[each] for each in plain), -1)) for row in mine)
    return np.fromiter(places, np.int64, cells.count)


def _elsewhere(key: DescribedKey) -> str:
    return key.text if key.merged is None else key.merged[1]


@dataclass(frozen=True)
class SumsOfGroups:
    """Which groups of a release are added up for the cells of another one.

    Attributes:
        sums: For each cell: for each group, the place of its sum; -1 for groups in none.
        merged: For each group, its place in a release that merges the groups of each sum.
    """

    sums: tuple[Ints, ...]
    merged: Ints


def sums_of_groups(rows: Sequence[tuple[Any, ...]], cells: ReleasedCells, width: int) -> SumsOfGroups:
    """Read the rows of `Derivation.members`.

    Args:
        rows: The rows.
        cells: The groups of the release.
        width: The number of cells of the other one.
    """
    keys = len(cells.keys)
    places = {row[:keys]: row[keys:] for row in rows}
    told = [places[tuple(column[place] for column in cells.keys)] for place in range(cells.count)]
    known: dict[tuple[str | None, ...], int] = {}
    groups = np.array([known.setdefault(row[1 + width :], len(known)) for row in told], dtype=np.int64)
    used = np.array([row[: 1 + width] for row in told], dtype=np.bool_)
    sums = tuple(np.where(used[:, 1 + cell], groups, -1) for cell in range(width))
    return SumsOfGroups(sums, np.where(used[:, 0], cells.count + groups, np.arange(cells.count)))


@dataclass(frozen=True)
class LeastSquares:
    """Least squares for one cell of a release.

    Attributes:
        groups: The number of its groups.
        drawn: The variance of its noise.
        others: For each other release: for each group of the first one, its place there, -1 if it has none; and the
            variance of the noise.
    """

    groups: int
    drawn: float
    others: tuple[tuple[Ints, float], ...]

    @cached_property
    def _alone(self) -> Floats:
        """The diagonal of D."""
        found = np.full(self.groups, 1 / self.drawn)
        for groups, drawn in self.others:
            found[(groups >= 0) & ~_is_merged(groups)] += 1 / drawn
        return found

    @cached_property
    def _merged(self) -> list[tuple[NDArray[np.bool_], float]]:
        """For each merged group of another release: the groups that it is made of, and the variance of its noise."""
        return [(groups == place, drawn) for groups, drawn in self.others for place in merged_places(groups)]

    @cached_property
    def _together(self) -> Floats:
        """The columns of U."""
        return np.array([made for made, _ in self._merged], dtype=np.float64).reshape(-1, self.groups).T

    @cached_property
    def _middle(self) -> Floats:
        """C⁻¹ + UᵀD⁻¹U."""
        columns = self._together
        # A library of linear algebra would use several threads, which costs more than it gains for so few columns.
        shared: Floats = np.einsum("ij,ik->jk", columns, columns / self._alone[:, None])
        return shared + np.diag([drawn for _, drawn in self._merged])

    def variance(self, sums: Ints) -> float:
        """The greatest variance of some sums: for each group, the place of its sum; -1 for groups in none."""
        used = sums >= 0
        if not used.any():
            return 0.0
        each = np.bincount(sums[used], 1 / self._alone[used])
        columns = self._together[used] / self._alone[used][:, None]
        shared = np.zeros((len(each), len(self._middle)))
        np.add.at(shared, sums[used], columns)
        return float((each - (shared.T * np.linalg.solve(self._middle, shared.T)).sum(axis=0)).max())

    def estimates(self, cell: Ints, told: Sequence[Ints]) -> Floats:
        """The estimates of all groups.

        Args:
            cell: What the release tells.
            told: What each other release tells.
        """
        right = np.zeros(len(cell))
        for (groups, drawn), other in zip(self.others, told, strict=True):
            listed = groups >= 0
            sums = np.zeros(len(other), dtype=np.int64)
            np.add.at(sums, groups[listed], cell[listed])
            # What two releases tell differs by noise alone: a small number, of which a float is exact enough.
            right[listed] += (other - sums)[groups[listed]] / drawn
        alone = right / self._alone
        shift = alone - self._together @ np.linalg.solve(self._middle, self._together.T @ alone) / self._alone
        found: Floats = cell + shift
        return found


def least_squares(
    description: ReleaseDescription,
    noises: Sequence[AddedNoise],
    place: int,
    others: Sequence[tuple[MergedGroups, Ints]],
) -> LeastSquares:
    """Least squares for one cell of a release, from all releases that tell it.

    Args:
        description: The description of the release.
        noises: The noise of its cells.
        place: The place of the cell.
        others: The other releases, each with the places of the groups there; at least one.
    """
    told = ((groups, each.noises, each.place(description.cells[place])) for each, groups in others)
    known = ((groups, float(variance(drawn[other]))) for groups, drawn, other in told if other is not None)
    return LeastSquares(len(others[0][1]), float(variance(noises[place])), tuple(known))


def estimates(made: DerivedCells, cells: Mapping[str, ReleasedCells]) -> dict[int, Floats]:
    """Estimate the cells of a source that are added up, by their places; none if no other release tells them.

    Args:
        made: How they are added up.
        cells: The cells of all releases, by their keys.
    """
    own = cells[made.source.key]
    told = [(each, cells[each.source.key]) for each in made.merged]
    others = [(each, groups_of(made.description, own, each.description, other)) for each, other in told]
    found: dict[int, Floats] = {}
    for place in {place for place in made.places if place is not None} if others else ():
        cell = made.description.cells[place]
        known = [other.cells[at] for each, other in told if (at := each.place(cell)) is not None]
        found[place] = least_squares(made.description, made.noises, place, others).estimates(own.cells[place], known)
    return found


def merged_places(groups: Ints) -> list[int]:
    """The places of merged groups, of the places of all groups."""
    return [int(place) for place in np.unique(groups[_is_merged(groups)])]


def _is_merged(groups: Ints) -> NDArray[np.bool_]:
    """Which groups share their place with another one."""
    listed = groups >= 0
    counts = np.bincount(groups[listed], minlength=1)
    return listed & (counts[np.maximum(groups, 0)] > 1)
