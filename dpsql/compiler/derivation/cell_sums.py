"""cell_sums: finds cells of a query that are sums of its other cells, as in ROLLUP, CUBE and GROUPING SETS.

Let W and P be two releases of the same rows, where the keys of W are some of those of P. If each row of W has key
values that P lists, and the bounds let the same rows of each unit into both, each exact cell of W is the sum of the
exact cells of P in its group. The noisy ones are made to add up, too (`dpsql/gateway/consistency.py`).

Guarantee: none is needed: the plan alone decides.
Assumes: nothing for privacy. That cells are sums follows from one of these, of bounds that are equal in both:
    all rows of a unit are in one group of P, and so in one of W, where the same bounds apply to the same rows;
    of a count of rows over all of them: a unit with n rows adds min(n, R) to the total W, and R of its rows, or all
    of fewer, count in the groups of P together, as `RowSampling` has it.
Reference: Hay et al., Boosting the Accuracy of Differentially Private Histograms, 2010, for consistent histograms.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

from dpsql.compiler.canonical.descriptions import DescribedCell, DescribedRelease, ReleaseDescription
from dpsql.compiler.derivation.derivation import lists_every_row
from dpsql.compiler.plan.query_plan import CellSum, PlannedRelease, WideTotal
from dpsql.compiler.scope.tables import Catalog

_MOST_TOLD = 64
"""Releases and totals that nobody was told, of one cell: each pair of them is looked at."""


def cell_sums(
    releases: Sequence[PlannedRelease], wide: Sequence[WideTotal], catalog: Catalog
) -> tuple[tuple[tuple[CellSum, ...], ...], bool]:
    """The cells of releases that are sums of others, cell by cell; and whether there are totals that are not.

    Args:
        releases: The releases of a query.
        wide: Their wide totals. What has one is raised or announced by itself, and is left as it is.
        catalog: What the user may name.
    """
    apart = {place for each in wide for place in (each.release, each.wide, each.bounded)}
    found: dict[DescribedCell, list[CellSum]] = {}
    differ = False
    for whole, part in permutations(range(len(releases)), 2):
        have, asked = releases[part].described, releases[whole].described
        if have is None or asked is None:
            continue
        keys = _key_places(asked.description, have.description)
        if keys is None:
            continue
        lists = not apart & {whole, part} and lists_every_row(have.description, asked.description.keys, asked, catalog)
        for cell, places in _shared_cells(asked.description, have.description).items():
            counts = asked.primitives[places[0]].counts_all_rows
            if lists and _keeps_the_same_rows(asked.description, have.description, counts_all_rows=counts):
                found.setdefault(cell, []).append(CellSum(whole, places[0], part, places[1], keys))
            else:
                differ = True
    chosen = {cell: tuple(_independent(sums)) for cell, sums in found.items()}
    differ = differ or any(_releases(sums) > _releases(chosen[cell]) for cell, sums in found.items())
    return tuple(chosen.values()), differ


def told_sums(
    told: Sequence[ReleaseDescription], cell: DescribedCell, asked: DescribedRelease, catalog: Catalog
) -> tuple[int, tuple[CellSum, ...], bool]:
    """The sums of one cell among releases with the same conditions and bounds, each with keys of its own.

    Two releases of which neither is a total of the other have totals by the keys that both have. Where no release has
    these keys, totals that nobody was told tie the two together.

    Args:
        told: The releases.
        cell: The cell, as each of them describes it.
        asked: A query that has their conditions among its own.
        catalog: What the user may name.

    Returns:
        How many releases there are, with those that nobody was told; the sums, by places among these, each of a release
        of one cell; and whether there are totals that are not made to add up.
    """
    own = replace(asked, terms=tuple(term for term in asked.terms if asked.text(term) in told[0].terms))
    same = (mine for mine, each in zip(asked.primitives, asked.description.cells, strict=True) if each == cell)
    counts = any(primitive.counts_all_rows for primitive in same)
    every = [*told, *_common_totals(told)]
    found, differ = [], False
    if len(every) > _MOST_TOLD:
        return len(told), (), True
    for whole, part in permutations(range(len(every)), 2):
        keys = _key_places(every[whole], every[part])
        if keys is None:
            continue
        lists = lists_every_row(every[part], every[whole].keys, own, catalog)
        if lists and _keeps_the_same_rows(every[whole], every[part], counts_all_rows=counts):
            found.append(CellSum(whole, 0, part, 0, keys))
        else:
            differ = True
    chosen = tuple(_independent(found))
    return len(every), chosen, differ or _releases(found) > _releases(chosen)


def _common_totals(told: Sequence[ReleaseDescription]) -> Iterator[ReleaseDescription]:
    """Totals by the keys that two of the finest releases have in common, where no release has these."""
    known = [{key.text for key in each.keys} for each in told]
    finest = [each for each, mine in zip(told, known, strict=True) if not any(mine < other for other in known)]
    for one, other in combinations(finest, 2):
        common = {key.text for key in one.keys} & {key.text for key in other.keys}
        if common not in known:
            known.append(common)
            yield replace(one, keys=tuple(key for key in one.keys if key.text in common))


def _releases(sums: Sequence[CellSum]) -> frozenset[int]:
    return frozenset(place for each in sums for place in (each.whole, each.part))


def _key_places(whole: ReleaseDescription, part: ReleaseDescription) -> tuple[int, ...] | None:
    """The places of a release's keys among those of a finer release over the same rows; None if they do not fit."""
    if whole.family != part.family or whole.terms != part.terms or len(whole.keys) >= len(part.keys):
        return None
    places: Mapping[str, int] = {key.text: place for place, key in enumerate(part.keys)}
    found = tuple(places[key.text] for key in whole.keys if key.text in places)
    return found if len(found) == len(whole.keys) else None


def _shared_cells(whole: ReleaseDescription, part: ReleaseDescription) -> dict[DescribedCell, tuple[int, int]]:
    places = {cell: place for place, cell in enumerate(part.cells)}
    return {cell: (place, places[cell]) for place, cell in enumerate(whole.cells) if cell in places}


def _keeps_the_same_rows(whole: ReleaseDescription, part: ReleaseDescription, *, counts_all_rows: bool) -> bool:
    """True where bounds let the same rows of each unit into a cell of both."""
    if (whole.rows, whole.per_group) != (part.rows, part.per_group):
        return False
    if part.one_group and whole.one_group:
        return True
    return counts_all_rows and not whole.keys and part.per_group == part.rows


def _independent(sums: Sequence[CellSum]) -> Iterator[CellSum]:
    """Sums of one cell, none of which follows from the others.

    They are those of the finest releases. Where two of these have totals in common, the finest of these totals ties
    them together, and the others follow. Where those totals are not each finer than the last, nothing is said of the
    second.
    """
    tied: set[int] = set()
    for part in sorted({each.part for each in sums} - {each.whole for each in sums}):
        own = sorted((each for each in sums if each.part == part), key=lambda each: (len(each.keys), each.whole))
        common = [each for each in own if each.whole in tied]
        if all(set(one.keys) < set(other.keys) for one, other in pairwise(common)):
            yield from common[-1:]
            yield from (each for each in own if each.whole not in tied)
            tied |= {each.whole for each in own}
