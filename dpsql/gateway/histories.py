"""histories: the cells of an answer, made to add up with those of all releases that its user has.

All releases of a user with the same conditions and bounds that tell a cell are one system: those with the same keys are
replaced by their mean, weighed by inverse variances, and least squares make totals and parts add up, as in
`dpsql/gateway/consistency.py`. Two answers that are made of one system add up, whatever was asked for first.

Rule 1: it is computed when an answer is made, of raw cells that the ledger hands to this user, and stored nowhere.
Rule 2: releases are in an order of their own, so that the same releases give the same cells, whoever of them is asked.

Guarantee: none is needed: it is post-processing of what this user was told (Dwork & Roth 2014, proposition 2.1).
Assumes: nothing for privacy. That exact cells add up, as `dpsql/compiler/derivation/cell_sums.py` finds; that noises
    are independent, since each release counts once.
Reference: Hay et al., Boosting the Accuracy of Differentially Private Histograms, 2010, section 4. Least squares have
    the least variance of all unbiased linear estimates (Gauss and Markov): what is announced for means holds for them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dpsql.backends.backend import Cancellation, Texts
from dpsql.compiler.canonical.descriptions import DescribedCell, DescribedRelease, ReleaseDescription
from dpsql.compiler.derivation.cell_sums import told_sums
from dpsql.compiler.plan.query_plan import CellHistory, CompiledQuery, HeldRelease, PlannedRelease, SourceCell
from dpsql.compiler.scope.tables import Catalog
from dpsql.gateway.consistency import MOST_WORK, ROUNDING, AddedUp, Ints, added_up, with_groups, work_of
from dpsql.gateway.release import ReleasedCells, weighed_mean
from dpsql.privacy.mechanisms import AddedNoise, added, combined, variance

_UNTOLD = 1e6
"""The assumed variance of a total that was never released, relative to the sum of all cells: it has no weight."""


@dataclass(frozen=True)
class ToldRelease:
    """A release that a user has or buys, with its description and the noise of its cells."""

    release: HeldRelease | PlannedRelease
    description: ReleaseDescription
    noises: tuple[AddedNoise, ...]

    @property
    def system(self) -> tuple[object, ...]:
        """The properties that all releases of one consistent system share."""
        told = self.description
        return told.family, told.terms, told.rows, told.per_group

    def cell(self, cell: DescribedCell) -> SourceCell:
        """Return the source of one of its cells."""
        place = self.description.cells.index(cell)
        keys = tuple(key.text for key in self.description.keys)
        return SourceCell(self.release.key, place, keys, self.noises[place])


def with_histories(
    query: CompiledQuery, told_of: Callable[[str], Sequence[ToldRelease]], catalog: Catalog, cancellation: Cancellation
) -> CompiledQuery:
    """Return a query with all releases of its user whose cells must be consistent with its sources.

    Args:
        query: The query over its sources.
        told_of: The releases of a family that the user has.
        catalog: The relations that the user may name.
        cancellation: Stops it.
    """
    histories: dict[tuple[object, ...], CellHistory] = {}
    earlier: dict[str, HeldRelease] = {}
    differ = query.sums_differ
    own = {source.key for source in query.sources}
    raised = {place for each in query.wide_totals for place in (each.release, each.wide, each.bounded)}
    for place, planned in enumerate(query.releases):
        asked = planned.described
        if asked is None or place in raised:
            continue  # cells with wide totals are calibrated on their own
        bought = [_told(each, each.described) for each in query.bought if each.described is not None]
        told = {each.release.key: each for each in (*told_of(asked.description.family), *bought)}
        used = {made.source.key: made.places for made in planned.derived}
        for source in (told[each.key] for each in planned.sources if each.key in told):
            cells = source.description.cells
            places = used.get(source.release.key, range(len(cells)))
            for cell in (cells[each] for each in places if each is not None):
                if (*source.system, cell) in histories:
                    continue
                cancellation.check()
                alike = [e for e in told.values() if e.system == source.system and cell in e.description.cells]
                made, apart = _history(alike, cell, asked, catalog)
                histories[(*source.system, cell)] = made
                differ |= apart
                found = (each.release for each in alike)
                earlier |= {each.key: each for each in found if isinstance(each, HeldRelease) and each.key not in own}
    return replace(query, earlier=tuple(earlier.values()), histories=tuple(histories.values()), sums_differ=differ)


def _told(planned: PlannedRelease, described: DescribedRelease) -> ToldRelease:
    return ToldRelease(planned, described.description, tuple(added(each.noise) for each in planned.primitives))


def _history(
    told: Sequence[ToldRelease], cell: DescribedCell, asked: DescribedRelease, catalog: Catalog
) -> tuple[CellHistory, bool]:
    """Return a cell in all releases that contain it, and whether some totals of it stay inconsistent."""
    by_keys: dict[tuple[str, ...], list[ToldRelease]] = {}
    for each in sorted(told, key=lambda each: each.release.key):
        by_keys.setdefault(tuple(sorted(key.text for key in each.description.keys)), []).append(each)
    ordered = [by_keys[keys] for keys in sorted(by_keys, key=lambda keys: (len(keys), keys))]
    count, sums, differ = told_sums([each[0].description for each in ordered], cell, asked, catalog)
    cells = [tuple(one.cell(cell) for one in each) for each in ordered]
    return CellHistory((*cells, *[()] * (count - len(cells))), sums), differ


def made_of_histories(
    query: CompiledQuery, cells: Mapping[str, ReleasedCells], cancellation: Cancellation
) -> tuple[CompiledQuery, Mapping[str, ReleasedCells]]:
    """Make the cells of all sources of a query consistent with those of the user's other releases.

    Returns:
        The query, with intervals for these cells, and the cells of its sources by their keys. If they cannot be made
        consistent, the query without histories, which reports that, and the raw cells.
    """
    changed: dict[str, dict[int, Ints]] = {key: {} for key in cells}
    announced: dict[tuple[str, int], AddedNoise] = {}
    room = MOST_WORK
    for history in query.histories:
        cancellation.check()
        means = [_mean(each, cells) for each in history.told]
        solved, room = _solved(history, means, room)
        if solved is None:
            return replace(query, earlier=(), histories=(), sums_differ=True), cells
        noises = [each.noise for told in history.told for each in told]
        variances = solved.whole if query.combines_cells else solved.least
        for place, (told, mean) in enumerate(zip(history.told, means, strict=True)):
            for each, order in zip(told, () if mean is None else mean.orders, strict=True):
                changed[each.release][each.place] = solved.cells[place][order]
                announced[each.release, each.place] = combined([each.noise, *noises], Fraction(variances[place]))
    if not query.histories:
        return query, cells
    systems = {each.release: place for place, h in enumerate(query.histories) for told in h.told for each in told}
    releases = tuple(_announcing(planned, announced, systems) for planned in query.releases)
    return query.announcing(releases), {key: each.changed(changed[key]) for key, each in cells.items()}


def _announcing(
    planned: PlannedRelease, noises: Mapping[tuple[str, int], AddedNoise], systems: Mapping[str, int]
) -> PlannedRelease:
    """Return a release that announces the noise of its cells after they were made consistent.

    Cells derived from consistent ones have at most the variance of the mean of raw ones, plus their rounding. Releases
    of one system give the same sums, so the one with the fewest cells determines the rounding.
    """
    if not planned.derived:
        found = (noises.get((planned.key, place), each) for place, each in enumerate(planned.noises))
        return replace(planned, announced=tuple(found))
    if not all(each.source.key in systems for each in planned.derived):
        return planned
    told = []
    for place, noise in enumerate(map(added, planned.noises)):
        fewest: dict[int, int] = {}
        for each in (each for each in planned.derived if each.places[place] is not None):
            system, count = systems[each.source.key], each.terms[place]
            fewest[system] = min(count, fewest.get(system, count))
        told.append(combined([noise], variance(noise) + max(fewest.values()) * Fraction(ROUNDING)))
    return replace(planned, announced=tuple(told))


@dataclass(frozen=True)
class _Mean:
    """The combined estimate of releases with the same keys.

    Attributes:
        keys: The groups.
        cell: The mean.
        variance: Its variance.
        orders: For each release, the place in the mean of each of its groups.
    """

    keys: tuple[Texts, ...]
    cell: Ints
    variance: float
    orders: tuple[Ints, ...]


def _mean(told: Sequence[SourceCell], cells: Mapping[str, ReleasedCells]) -> _Mean | None:
    """The mean of a cell; None if no release has it, or if their groups differ."""
    if not told:
        return None
    first = cells[told[0].release]
    listed = {key: place for place, key in enumerate(zip(*first.keys, strict=True))} if first.keys else {(): 0}
    parts, orders = [], []
    for each in told:
        own = cells[each.release]
        keys = [own.keys[each.keys.index(key)] for key in told[0].keys]
        order = np.array([listed.get(key, -1) for key in zip(*keys, strict=True)] if keys else [0], dtype=np.int64)
        if len(order) != len(listed) or set(order.tolist()) != set(listed.values()):
            return None
        cell = np.empty(len(order), dtype=np.int64)
        cell[order] = own.cells[each.place]
        parts.append(cell)
        orders.append(order)
    variances = [variance(each.noise) for each in told]
    rounding = ROUNDING if len(told) > 1 else 0.0
    spread = float(1 / sum(1 / each for each in variances)) + rounding
    return _Mean(first.keys, weighed_mean(parts, variances), spread, tuple(orders))


def _solved(history: CellHistory, means: Sequence[_Mean | None], room: int) -> tuple[AddedUp | None, int]:
    """Return the consistent cells of a history, None if they cannot be made consistent, and the work that is left."""
    known = {place: mean for place, mean in enumerate(means) if mean is not None}
    if len(known) < sum(map(bool, history.told)):
        return None, room
    for each in history.sums:
        if each.whole not in known:
            known[each.whole] = _untold(known[each.part], each.keys)
    tied = {place for each in history.sums for place in (each.whole, each.part)}
    groups = {place: mean.keys for place, mean in known.items()}
    drawn = {place: known[place].variance for place in tied}
    sums = [with_groups(each, groups) for each in history.sums]
    noisy = {place: known[place].cell for place in tied}
    solved = added_up(noisy, drawn, sums, room)
    if solved is None:
        return None, room
    alone = {place: mean for place, mean in known.items() if place not in tied}
    cells = {place: mean.cell for place, mean in alone.items()}
    variances = {place: mean.variance for place, mean in alone.items()}
    whole = AddedUp(cells | dict(solved.cells), variances | dict(solved.least), variances | dict(solved.whole))
    return whole, room - work_of(noisy, history.sums)


def _untold(part: _Mean, keys: tuple[int, ...]) -> _Mean:
    """Return totals of cells by some of their keys, with so large a variance that they have no weight."""
    groups: dict[tuple[str | None, ...], int] = {}
    rows = zip(*(part.keys[place] for place in keys), strict=True) if keys else [()] * len(part.cell)
    order = [groups.setdefault(key, len(groups)) for key in rows]
    totals = np.zeros(len(groups), dtype=np.int64)
    np.add.at(totals, order, part.cell)
    columns = tuple(np.array(column, dtype=object) for column in zip(*groups, strict=True))
    return _Mean(columns, totals, _UNTOLD * part.variance * len(order), ())
