"""consistency: makes noisy totals equal the sums of their noisy parts, by least squares and controlled rounding.

Let y be the noisy cells of all releases of a query, with variances Σ. Let C·x = 0 state that the exact totals equal the
sums of their parts. Least squares give x̂ = y − ΣCᵀ(CΣCᵀ)⁻¹C·y, with variance Σ − ΣCᵀ(CΣCᵀ)⁻¹CΣ, which is never more
than Σ. This equals (AᵀΣ⁻¹A)⁻¹AᵀΣ⁻¹y, where the matrix A computes all cells from the finest ones.

Rule 1: consistent cells are computed for each answer from released cells, and are not stored.
Rule 2: cells stay integers. Totals are rounded first; then their parts are rounded up or down to add up to them.
Rule 3: which cells are made consistent, and the announced errors, depend on the plan and on public keys. They do not
depend on noisy values, with one exception: cells too large to be summed as 64-bit integers are left unchanged.

Guarantee: none is needed: it is post-processing of released cells (Dwork & Roth 2014, proposition 2.1).
Assumes: nothing for privacy. For accuracy: the noise of cells is independent, and exact cells add up, as
    `dpsql/compiler/derivation/cell_sums.py` finds. If the noise has less variance than Σ says, x̂ has less variance
    than is announced.
Reference: Hay et al., Boosting the Accuracy of Differentially Private Histograms, 2010, section 4; Cox, A Constructive
    Procedure for Unbiased Controlled Rounding, JASA 1987, for rounding down a hierarchy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product, repeat

import numpy as np
from numpy.typing import NDArray

from dpsql.backends.backend import Cancellation, Texts
from dpsql.compiler.ir.primitives import MAX_CELL
from dpsql.compiler.plan.query_plan import CellSum, CompiledQuery
from dpsql.gateway.release import ReleasedCells
from dpsql.privacy.mechanisms import added, combined, variance

MOST_WORK = 2 * 10**9
"""The most processor time for one answer, in estimated nanoseconds: matrix operations cannot be interrupted."""
ROUNDING = 0.25
"""The most variance that rounding adds to a cell."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CellGroups:
    """Cells that are sums of others.

    Attributes:
        whole: The release of the sums, by its place in the plan.
        part: The release of the parts, by its place in the plan.
        keys: The places of the sums' keys among the keys of the parts.
        groups: For each part, the place of its sum.
    """

    whole: int
    part: int
    keys: frozenset[int]
    groups: NDArray[np.intp]


@dataclass(frozen=True)
class AddedUp:
    """Cells that add up.

    Attributes:
        cells: The cells, by the releases' places in the plan.
        least: The greatest variance of a cell, for each release.
        whole: The same, where cells of several releases are combined as if they were independent. The original
            variances suffice: Σ − ΣCᵀ(CΣCᵀ)⁻¹CΣ is at most Σ for any weighted sum of cells.
    """

    cells: Mapping[int, Ints]
    least: Mapping[int, float]
    whole: Mapping[int, float]


def made_consistent(
    query: CompiledQuery, released: Sequence[ReleasedCells], cancellation: Cancellation
) -> tuple[CompiledQuery, tuple[ReleasedCells, ...]]:
    """Make the cells of a query consistent as far as the time limit allows; cells of a history already are.

    Returns:
        The query, with intervals for cells that are more exact, and the cells of its releases.

    Raises:
        QueryCanceled: The user or the time limit stopped it.
    """
    if query.histories:
        return query, tuple(released)
    room = MOST_WORK
    changed: list[dict[int, Ints]] = [{} for _ in released]
    noises = [list(planned.noises) for planned in query.releases]
    left = False
    for sums in query.sums:
        if _of_one_source(query, sums):
            continue  # they add up already
        cancellation.check()
        solved = _solved(query, released, sums, room)
        left |= solved is None
        if solved is None:
            continue
        room -= work_of(_cells(released, sums), sums)
        places = _places(sums)
        own = {release: added(query.releases[release].noises[cell]) for release, cell in places.items()}
        # Columns that combine several cells treat them as independent.
        variances = solved.whole if query.combines_cells else solved.least
        for release, cell in places.items():
            changed[release][cell] = solved.cells[release]
            noises[release][cell] = combined([own[release], *own.values()], Fraction(variances[release]))
    if not any(changed):
        return replace(query, sums_differ=query.sums_differ or left), tuple(released)
    releases = tuple(
        replace(planned, announced=tuple(noise)) if made else planned
        for planned, noise, made in zip(query.releases, noises, changed, strict=True)
    )
    cells = tuple(each.changed(made) for each, made in zip(released, changed, strict=True))
    return replace(query.announcing(releases), sums_differ=query.sums_differ or left), cells


def _places(sums: Sequence[CellSum]) -> dict[int, int]:
    """Return the place of the cell of each release."""
    return {each.whole: each.whole_cell for each in sums} | {each.part: each.part_cell for each in sums}


def _sources(query: CompiledQuery, release: int) -> frozenset[str]:
    """Return the keys of the releases whose noise the cells of one release contain."""
    return frozenset(source.key for source in query.releases[release].sources)


def _of_one_source(query: CompiledQuery, sums: Sequence[CellSum]) -> bool:
    """True if all cells are sums of the cells of the same release."""
    sources = {_sources(query, release) for release in _places(sums)}
    return len(sources) == 1 and len(next(iter(sources))) == 1


def work_of(cells: Mapping[int, Ints], sums: Sequence[CellSum | CellGroups]) -> int:
    """Estimate the nanoseconds of least squares: a matrix inverse with one row per total, and each pair of sums."""
    totals = sum(len(cells[each.whole]) for each in sums)
    parts = max((len(cells[each.part]) for each in sums), default=0)
    return totals**3 // 7 + len(sums) ** 2 * (15_000 + 12 * parts)


def _cells(released: Sequence[ReleasedCells], sums: Sequence[CellSum]) -> dict[int, Ints]:
    """The cells of one system, by the releases' places in the plan."""
    return {release: released[release].cells[cell] for release, cell in _places(sums).items()}


def _solved(
    query: CompiledQuery, released: Sequence[ReleasedCells], sums: Sequence[CellSum], room: int
) -> AddedUp | None:
    """Return the cells of one system; None if noise is not independent, or if a cell would become less exact."""
    places = _places(sums)
    drawn_of = [source for release in places for source in _sources(query, release)]
    if len(set(drawn_of)) < len(drawn_of):
        return None
    cells = _cells(released, sums)
    drawn = {r: float(variance(added(query.releases[r].noises[cell]))) for r, cell in places.items()}
    keys = {release: released[release].keys for release in places}
    found = added_up(cells, drawn, [with_groups(each, keys) for each in sums], room)
    # The user did not ask for consistency, so no cell may become less exact by it.
    lost = found is not None and any(each > drawn[release] + ROUNDING for release, each in found.least.items())
    return None if lost else found


def added_up(
    cells: Mapping[int, Ints], drawn: Mapping[int, float], sums: Sequence[CellGroups | None], room: int
) -> AddedUp | None:
    """Make cells add up.

    Args:
        cells: The noisy cells of each release.
        drawn: The variance of their noise.
        sums: Which cells are sums of which others.
        room: The most work.

    Returns:
        The cells; None if a part has no listed total, if it would take too long, or if their sums would overflow.
    """
    known = [each for each in sums if each is not None]
    if len(known) < len(sums) or work_of(cells, known) > room:
        return None
    if sum(float(np.abs(each).astype(np.float64).sum()) for each in cells.values()) >= MAX_CELL:
        return None  # sums of integers would overflow
    shifts, least = least_squares(cells, drawn, known)
    made, rounding = rounded(cells, shifts, known)
    most = {release: float(each.max(initial=0.0)) + rounding[release] for release, each in least.items()}
    return AddedUp(made, most, {release: each + rounding[release] for release, each in drawn.items()})


def with_groups(each: CellSum, keys: Mapping[int, tuple[Texts, ...]]) -> CellGroups | None:
    """A sum, with the group of each part; None if a part is in no listed group.

    Args:
        each: The sum.
        keys: The group keys of each release.
    """
    whole, part = keys[each.whole], keys[each.part]
    listed = {key: place for place, key in enumerate(zip(*whole, strict=True))} if each.keys else {(): 0}
    found = zip(*(part[place] for place in each.keys), strict=True) if each.keys else repeat((), len(part[0]))
    groups = [listed.get(key, -1) for key in found]
    if -1 in groups:
        return None
    return CellGroups(each.whole, each.part, frozenset(each.keys), np.array(groups, dtype=np.intp))


def least_squares(
    cells: Mapping[int, Ints], variances: Mapping[int, float], sums: Sequence[CellGroups]
) -> tuple[dict[int, Floats], dict[int, Floats]]:
    """Compute the correction of each cell, and its variance after the correction.

    Args:
        cells: The noisy cells of each release.
        variances: The variance of their noise.
        sums: Which cells are sums of which others.
    """
    ends = np.cumsum([0, *(len(cells[each.whole]) for each in sums)])
    rows = [slice(start, end) for start, end in pairwise(ends.tolist())]
    matrix, gaps = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1])
    void = np.zeros(ends[-1], dtype=bool)
    for (i, one), (j, other) in product(enumerate(sums), repeat=2):
        block = matrix[rows[i], rows[j]]
        if one.whole == other.whole:
            block += variances[one.whole] * np.eye(len(block))
        if one.part == other.part:
            np.add.at(block, (one.groups, other.groups), variances[one.part])
    for i, each in enumerate(sums):
        gaps[rows[i]] = cells[each.whole] - _totals(cells[each.part], each.groups, len(cells[each.whole]))
        if each.whole in (other.whole for other in sums[:i]):
            # An earlier sum already states that a group without parts is empty.
            void[rows[i]] = np.bincount(each.groups, minlength=len(cells[each.whole])) == 0
    matrix[void], matrix[:, void] = 0.0, 0.0
    matrix[void, void] = 1.0
    inverse = np.linalg.inv(matrix)
    inverse[void], inverse[:, void] = 0.0, 0.0
    weights = inverse @ gaps
    shifts = {release: np.zeros(len(each)) for release, each in cells.items()}
    least = {release: np.full(len(each), variances[release]) for release, each in cells.items()}
    for i, one in enumerate(sums):
        shifts[one.whole] -= variances[one.whole] * weights[rows[i]]
        shifts[one.part] += variances[one.part] * weights[rows[i]][one.groups]
        for j, other in enumerate(sums):
            block = inverse[rows[i], rows[j]]
            if one.whole == other.whole:
                least[one.whole] -= variances[one.whole] ** 2 * np.diag(block)
            if one.part == other.part:
                least[one.part] -= variances[one.part] ** 2 * block[one.groups, other.groups]
    return shifts, least


def rounded(
    cells: Mapping[int, Ints], shifts: Mapping[int, Floats], sums: Sequence[CellGroups]
) -> tuple[dict[int, Ints], dict[int, float]]:
    """Round the corrected cells so that they add up; also return the variance that rounding adds in each release.

    Sums that refine each other are rounded from the coarsest to the finest: each cell becomes one of its two
    neighbouring integers. Sums over other keys are then computed from the rounded cells.
    """
    found: dict[int, Ints] = {}
    rounding: dict[int, float] = {}
    for part in dict.fromkeys(each.part for each in sums):
        # Sums that are rounded come first, then those of the most cells, which would lose most by rounding.
        own = [each for each in sums if each.part == part]
        own.sort(key=lambda each: (each.whole not in found, len(cells[each.whole])))
        above = own[0]
        if above.whole not in found:
            found[above.whole] = cells[above.whole] + np.rint(shifts[above.whole]).astype(np.int64)
            rounding[above.whole] = ROUNDING
        for each in own[1:]:
            if above.keys < each.keys and each.whole not in found:
                within = np.full(len(cells[each.whole]), -1, dtype=np.intp)
                within[each.groups] = above.groups
                found[each.whole] = _apportioned(cells[each.whole], shifts[each.whole], within, found[above.whole])
                rounding[each.whole], above = ROUNDING, each
        found[part] = _apportioned(cells[part], shifts[part], above.groups, found[above.whole])
        rounding[part] = ROUNDING
        for each in own:
            if each.whole not in found:
                size = len(cells[each.whole])
                found[each.whole] = _totals(found[part], each.groups, size)
                rounding[each.whole] = ROUNDING * float(np.bincount(each.groups, minlength=size).max(initial=0))
    return found, rounding


def _apportioned(cell: Ints, shift: Floats, groups: NDArray[np.intp], totals: Ints) -> Ints:
    """Round cells so that each group adds up to its total; the largest fractions are rounded up.

    Args:
        cell: The cells.
        shift: The correction of each cell.
        groups: The group of each cell; -1 for a cell without parts, which is 0.
        totals: The total of each group.
    """
    inside = groups >= 0
    low = np.where(inside, cell + np.floor(shift).astype(np.int64), 0)
    of_groups, members = groups[inside], np.flatnonzero(inside)
    sizes = np.bincount(of_groups, minlength=len(totals))
    each, rest = np.divmod(totals - _totals(low[inside], of_groups, len(totals)), np.maximum(sizes, 1))
    fractions = (shift - np.floor(shift))[inside]
    order = np.lexsort((-fractions, of_groups))
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - starts[of_groups[order]]
    low[members] += each[of_groups] + (rank < rest[of_groups])
    return low


def _totals(cell: Ints, groups: NDArray[np.intp], count: int) -> Ints:
    """The exact sums of cells by group."""
    found = np.zeros(count, dtype=np.int64)
    np.add.at(found, groups, cell)
    return found
