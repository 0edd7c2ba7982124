"""verify: the guarantee of a finished plan, computed again from the plan alone and compared with its price.

Rule: nothing here shares code with plan or with the calibration of mechanisms; the compiler does not trust itself.
"""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from dpsql.compiler.catalog import Catalog
from dpsql.compiler.parts import Part, PartKind
from dpsql.compiler.planned import CompiledQuery, PlannedRelease, PublicRead
from dpsql.compiler.pricing import Noise, PlannedPart
from dpsql.compiler.schema import BoundedCopy
from dpsql.compiler.settings import QuerySettings
from dpsql.errors import GuaranteeMismatch
from dpsql.privacy.accounting import Spent
from dpsql.privacy.choice import RankChoice
from dpsql.privacy.cost import Accountant, Mechanism
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.picking import Picking
from dpsql.privacy.selection import GaussianThreshold
from dpsql.privacy.sensitivity import Adjacency


def verify(compiled: CompiledQuery, catalog: Catalog, settings: QuerySettings) -> None:
    """Check that a plan costs no more than its price and is noised for what its SQL enforces.

    Raises:
        GuaranteeMismatch: It does not; the query is not run.
    """
    adjacency = catalog.policy.dataset.adjacency
    if len({release.key for release in compiled.releases}) < len(compiled.releases):
        raise GuaranteeMismatch("two releases of the plan are one, and would be charged as one")
    _check_order(compiled)
    _check_public(compiled, catalog)
    for release in compiled.releases:
        _check_rows(release, catalog)
        _check_lists(release)
        _check_shares(release)
        for planned in release.parts:
            _check_noise(planned, release, adjacency)
        _check_selection(release, adjacency)
    events = [event for release in compiled.releases for event in release.events]
    if not events:
        return
    if compiled.price is None or compiled.price.epsilon > catalog.role.query.max_epsilon:
        raise GuaranteeMismatch("the plan has no price, or one above the limit for one query")
    spent = Spent.zero().add(events)
    slack = Fraction(1, 10**20)  # a running total is rounded up on its own, finer grid
    price = compiled.price
    by_rho = spent.rho <= price.epsilon**2 / 2 + slack
    by_pairs = (
        spent.basic_epsilon is not None
        and spent.basic_epsilon <= price.epsilon + slack
        and spent.basic_delta <= price.delta + slack
    )
    within = {
        Accountant.PURE: spent.pure_epsilon is not None
        and spent.pure_epsilon <= price.epsilon + slack
        and spent.delta == 0,
        Accountant.BASIC: by_pairs,
        Accountant.ADVANCED: by_pairs,
        Accountant.ZCDP: by_rho and spent.delta <= price.delta + slack,
        Accountant.RDP: by_rho and spent.delta == 0,
    }
    if not within[price.accountant]:
        raise GuaranteeMismatch("the plan costs more than its price")


def _check_order(compiled: CompiledQuery) -> None:
    """Whatever a release is made of is a release of the same plan, charged with it, and made before it."""
    made: set[str] = set()
    for release in compiled.releases:
        if not {inner.key for made_first in release.inputs for inner in made_first.releases} <= made:
            raise GuaranteeMismatch("a release is made of one that is not made before it")
        made.add(release.key)


_QUOTED = re.compile(r'"(?:[^"]|"")*"(?:\."(?:[^"]|"")*")*|\'(?:[^\']|\'\')*\'')
"""A name with its qualifiers, or a string constant."""


def _check_public(compiled: CompiledQuery, catalog: Catalog) -> None:
    """What is read without noise names no protected table."""
    private = _protected_names(catalog) | _copy_names(catalog).keys()
    for read in _public_reads(compiled):
        if not private.isdisjoint(_QUOTED.findall(read.sql)):
            raise GuaranteeMismatch("a protected table would be read without noise")


def _protected_names(catalog: Catalog) -> set[str]:
    return {_quoted(catalog.schema.tables[table.name].path) for table in catalog.policy.tables if not table.public}


def _copy_names(catalog: Catalog) -> dict[str, BoundedCopy]:
    """Bounded copies that may be read, by name."""
    return {_quoted(copy.path): copy for copy in catalog.schema.copies.values() if not isinstance(copy, str)}


def _quoted(path: tuple[str, ...]) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in path)


def _check_rows(release: PlannedRelease, catalog: Catalog) -> None:
    """What relies on the rows of a bounded copy reads them alone, once, and nothing else reads them."""
    names, copies = _QUOTED.findall(release.sql), _copy_names(catalog)
    read = [name for name in names if name in copies]
    if not release.contribution.copied:
        if read:
            raise GuaranteeMismatch("a bounded copy is read as if it were the table")
        return
    if len(read) != 1 or not _protected_names(catalog).isdisjoint(names):
        raise GuaranteeMismatch("rows that nothing bounds are read beside those of a bounded copy")
    if copies[read[0]].max_rows > release.contribution.max_rows:
        raise GuaranteeMismatch("a unit has more rows in the bounded copy than the noise is made for")
    parts = [planned.part for planned in release.parts]
    _check_grids(parts, names, copies[read[0]])
    counted = [part for part in parts if part.kind is not PartKind.COUNT or part.cap != 1]
    if any(part.cap != release.contribution.max_rows for part in counted):
        raise GuaranteeMismatch("the rows of a bounded copy are limited over all groups, not in each")
    chooses = any(part.rank is not None or part.places is not None for part in parts)
    if chooses or any(part.kind.is_distinct or part.kind is PartKind.CUT for part in parts):
        raise GuaranteeMismatch("more is done to the rows of a bounded copy than to add them up")


def _check_grids(parts: Sequence[Part], names: Sequence[str], copy: BoundedCopy) -> None:
    """Values that a copy has on their grid, which nothing clamps anew, are within the limits that noise is made for."""
    grids = {each.grid for part in parts for each in (part.factors or (part,))}
    for stored in copy.grids:
        if _quoted((stored.name,)) in names and stored.grid not in grids:
            raise GuaranteeMismatch("values of a bounded copy are on another grid than the noise is made for")


def _public_reads(compiled: CompiledQuery) -> Iterator[PublicRead]:
    yield from compiled.public_reads
    for release in compiled.releases:
        for made_first in release.inputs:
            yield from made_first.public_reads


def _cell_range(part: Part) -> tuple[int, int]:
    """What one unit can add to a cell, read from the part as the rewrite enforces it."""
    if part.rank is not None:
        return -part.cap * part.rank.above, part.cap * part.rank.below
    if part.kind is PartKind.CUT:
        return 0, 1
    if part.kind in (PartKind.COUNT, PartKind.DISTINCT) or part.grid is None:
        return 0, part.cap
    lower, upper = part.grid.lower, part.grid.upper
    if part.factors:
        low, high = _product_range(part)
        if low < lower or high > upper:
            raise GuaranteeMismatch("products lie outside the grid that their sum is noised for")
    if part.kind in (PartKind.MEAN, PartKind.DISTINCT_MEAN):
        return part.cap * (lower - part.grid.centre), part.cap * (upper - part.grid.centre)
    ends = [rows * end for rows in (0, part.cap) for end in (lower, upper)]
    return min(ends), max(ends)


def _product_range(part: Part) -> tuple[int, int]:
    """What a product can be, with each factor measured from its grid's centre, as the rewrite measures it."""
    one, two = part.factors
    sides = [[end - each.grid.centre for end in (each.grid.lower, each.grid.upper)] for each in (one, two)]
    if one == two:
        return 0, max(end**2 for end in sides[0])
    ends = [left * right for left in sides[0] for right in sides[1]]
    return min(ends), max(ends)


def _check_noise(planned: PlannedPart, release: PlannedRelease, adjacency: Adjacency) -> None:
    low, high = _cell_range(planned.part)
    largest, spread = max(abs(low), abs(high)), max(high, 0) - min(low, 0)
    groups, in_all = release.contribution.max_groups, _rows_in_all(release)
    # Rows that are so few in all groups together fill so many groups, and none beside; a unit counts once in each.
    filled = in_all is not None and not _counts_units(planned.part, release)
    cells = Fraction(in_all or 0, planned.part.cap) if filled else Fraction(groups)
    claimed = planned.noise.sensitivity
    needed: tuple[int, int, Fraction, Fraction]
    times = 1
    if planned.part.places is not None:
        # What all losses of a list move by together does not count, so the middle of the range is taken off them.
        largest, spread, times = spread, 2 * spread, planned.part.places.count
    if adjacency is Adjacency.ADD_REMOVE:
        needed = (groups, largest, cells * largest, cells * largest**2)
    elif release.contribution.grouped:
        squared = cells * max(spread**2, 2 * largest**2)
        needed = (2 * groups, spread, 2 * cells * largest, squared)
    else:
        needed = (1, spread, Fraction(spread), Fraction(spread**2))
    needed = (needed[0] * times, needed[1], needed[2] * times, needed[3] * times)
    l0, linf, l1, l2_squared = needed
    if claimed.l0 < l0 or claimed.linf < linf or claimed.l1 < l1 or claimed.l2_squared < l2_squared:
        raise GuaranteeMismatch("noise is calibrated to less than one unit may change")
    noise, part = planned.noise, planned.part
    scale = noise.variance if isinstance(noise, DiscreteGaussian) else noise.scale
    if noise.event.scale != scale or scale <= 0 or noise.event.mechanism is not _charged(noise):
        raise GuaranteeMismatch("the noise drawn is not the noise charged")
    if isinstance(noise, Picking) != (part.places is not None) or (
        isinstance(noise, Picking) and noise.places != part.places
    ):
        raise GuaranteeMismatch("other groups are picked than are asked for")
    if isinstance(noise, RankChoice) != (part.rank is not None):
        raise GuaranteeMismatch("values are chosen by their ranks, and sums are noised")
    if isinstance(noise, RankChoice):
        grid = part.grid
        if grid is None or (noise.rank, noise.lower, noise.upper) != (part.rank, grid.lower, grid.upper):
            raise GuaranteeMismatch("a value is chosen from another grid, or by another rank")


def _rows_in_all(release: PlannedRelease) -> int | None:
    """Rows of one unit that count in all groups together, where they are limited so."""
    return release.contribution.max_rows if release.contribution.copied else release.contribution.all_rows


def _counts_units(part: Part, release: PlannedRelease) -> bool:
    """True of what is 1 at most in each group that a unit is in."""
    return part.kind is PartKind.CUT or (part.kind is PartKind.COUNT and part.cap == 1 < release.contribution.max_rows)


def _charged(noise: Noise) -> Mechanism:
    """The mechanism that a draw is of."""
    if isinstance(noise, Picking) and noise.flips:
        return Mechanism.PERMUTE_AND_FLIP
    return _CHARGED[type(noise)]


_CHARGED: dict[type[Noise], Mechanism] = {
    DiscreteLaplace: Mechanism.LAPLACE,
    DiscreteGaussian: Mechanism.GAUSSIAN,
    RankChoice: Mechanism.EXPONENTIAL,
    Picking: Mechanism.EXPONENTIAL,
}


def _check_lists(release: PlannedRelease) -> None:
    """One unit may touch every group of a list: so nothing but picks may be made of it, and keys must be public.

    Everywhere else a release with keys bounds the groups of one unit.
    """
    lists, grouped = release.contribution.lists, release.contribution.grouped
    if lists is None:
        if grouped != (release.keys > 0) or any(planned.part.places is not None for planned in release.parts):
            raise GuaranteeMismatch("the groups of one unit are not bounded")
        return
    is_one = len(release.parts) == 1 and release.parts[0].part.places is not None
    if not is_one or release.private_keys or release.contribution.copied or grouped != (len(lists) > 0):
        raise GuaranteeMismatch("groups are picked from public lists, and nothing else is told of them")
    if not set(lists) < set(range(release.keys)):
        raise GuaranteeMismatch("there is no key to pick")


def _check_shares(release: PlannedRelease) -> None:
    """Where rows are limited in all groups together, SQL shares just so many out among the groups of a unit."""
    bounds = release.contribution
    if bounds.all_rows is None:
        return
    if not bounds.grouped or bounds.copied or bounds.one_row or bounds.lists is not None:
        raise GuaranteeMismatch("rows are limited over groups where none are bounded")
    limits = (
        rf" HAVING sum\(n\) > {bounds.all_rows}\)",
        rf"\* {bounds.all_rows} \+ u\)",
        rf" least\(a\d+, {bounds.max_rows}\) AS n\b",
    )
    if not all(re.search(limit, release.sql) for limit in limits):
        raise GuaranteeMismatch("the rows of a unit are not limited over all groups as the noise is made for")
    parts = [planned.part for planned in release.parts]
    if any(part.cap != bounds.max_rows for part in parts if not _counts_units(part, release)):
        raise GuaranteeMismatch("the rows of a unit are limited otherwise than over all groups")
    if release.private_keys and not bounds.ranked:
        raise GuaranteeMismatch("private groups are selected by units, whose groups are not limited")


def _check_selection(release: PlannedRelease, adjacency: Adjacency) -> None:
    if release.private_keys != (release.selection is not None):
        raise GuaranteeMismatch("private groups need a selection, and public ones none")
    if not release.private_keys:
        return
    touched = release.contribution.max_groups * (2 if adjacency is Adjacency.SUBSTITUTE else 1)
    chosen = [e for e in release.events if e.mechanism in (Mechanism.SELECTION, Mechanism.THRESHOLD)]
    if isinstance(release.selection, GaussianThreshold) and release.selection.noise.sensitivity.l0 < touched:
        raise GuaranteeMismatch("the selection's own noise is calibrated to fewer groups than one unit may touch")
    if len(chosen) != 1 or chosen[0].sensitivity.l0 < touched or chosen[0].delta <= 0:
        raise GuaranteeMismatch("the selection of groups is not calibrated to the groups one unit may touch")
