"""verify: the guarantee of a finished plan, computed again from the plan alone and compared with its price.

Rule 1: this file shares no code with the planner or with the calibration of mechanisms; the compiler does not trust
itself. Reads and bounds are taken from trees, never from SQL text.
Rule 2: the tail of a threshold's noise is recomputed from its distribution, and rounded up.
"""

from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache

from dpsql.compiler.ir.primitives import Primitive
from dpsql.compiler.plan.pricing import PlannedPrimitive
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedRelease, PublicRead
from dpsql.compiler.plan.tree_bounds import Moves, Tree, is_protected, readings
from dpsql.compiler.scope.tables import Catalog
from dpsql.errors import GuaranteeMismatch
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Accountant, Adjacency, Mechanism
from dpsql.privacy.exponential_mechanism import CellMechanism, Picking, RankChoice
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.selection import GaussianThreshold, Threshold, TruncatedGeometric

_UP = Context(prec=60, rounding=ROUND_CEILING, Emin=MIN_EMIN, Emax=MAX_EMAX)
_DOWN = Context(prec=60, rounding=ROUND_FLOOR, Emin=MIN_EMIN, Emax=MAX_EMAX)
_ROOM = Decimal(1) + Decimal(10) ** -50
"""A factor far above the rounding errors of 60 digits; exp and square root are rounded to the nearest."""
_TERMS = 256


@lru_cache(maxsize=1024)
def tail_of(mechanism: Mechanism, scale: Fraction, least: int) -> Fraction:
    """Return an upper bound of P[Z ≥ least] for integer noise Z; 1 if `least` is not positive.

    Guarantee: Laplace: qᵗ/(1 + q), q = e^(−1/b). Gaussian: Σ e^(−z²/2σ²) over z ≥ t by the largest of sum and √(2πσ²);
        the first terms are added up, and the rest is less than a geometric series, because the ratios fall.
    Reference: the distributions of Canonne, Kamath & Steinke 2020; Poisson summation for the Gaussian normaliser.

    Raises:
        GuaranteeMismatch: The noise has another distribution.
    """
    if least <= 0:
        return Fraction(1)
    if mechanism is Mechanism.LAPLACE:
        q = _power(1, 1 / scale)
        return Fraction(_UP.multiply(_UP.divide(_power(least, 1 / scale), _DOWN.add(1, _less(q))), _ROOM))
    if mechanism is Mechanism.GAUSSIAN:
        return min(Fraction(1), _gaussian(scale, least))
    raise GuaranteeMismatch("the threshold of groups needs noise of another distribution")


def _gaussian(variance: Fraction, least: int) -> Fraction:
    rate = 1 / (2 * variance)
    term, ratio, falls = _power(least * least, rate), _power(2 * least + 1, rate), _power(2, rate)
    total = Decimal(0)
    for _ in range(_TERMS):
        total = _UP.add(total, term)
        term, ratio = _UP.multiply(term, ratio), _UP.multiply(ratio, falls)
    total = _UP.add(total, _UP.divide(term, _DOWN.subtract(1, ratio)))
    circle = Decimal("6.2831853071795864769252867665590057683943387987502116419498")
    root = _DOWN.multiply(circle, _DOWN.divide(variance.numerator, variance.denominator)).sqrt(_DOWN)
    middle = _DOWN.add(1, _DOWN.multiply(2, _less(_power(1, rate))))  # of z from −1 to 1
    return Fraction(_UP.multiply(_UP.divide(total, max(_less(root), middle)), _ROOM))


def _power(factor: int, rate: Fraction) -> Decimal:
    """e^(−factor·rate), not below it."""
    exponent = factor * rate
    return _UP.multiply(_UP.exp(-_DOWN.divide(exponent.numerator, exponent.denominator)), _ROOM)


def _less(value: Decimal) -> Decimal:
    """A lower bound of a rounded value."""
    return _DOWN.divide(value, _UP.multiply(_ROOM, _ROOM))


def verify(compiled: CompiledQuery, catalog: Catalog) -> None:
    """Check that a plan costs no more than its price, and that its noise fits the bounds that its SQL enforces.

    Raises:
        GuaranteeMismatch: It does not; the query is not run.
    """
    adjacency = catalog.policy.dataset.adjacency
    if len({release.key for release in compiled.releases}) < len(compiled.releases):
        raise GuaranteeMismatch("two releases of the plan have the same key, so only one would be charged")
    _check_order(compiled)
    _check_public(compiled, catalog)
    for release in compiled.releases:
        if not release.events:
            _check_free(release, catalog)
            continue
        tree = Tree(release.query.tree, catalog, _compared_groups(release))
        _check_rows(release, tree)
        _check_groups(release, tree)
        moves = tree.moves([planned.primitive for planned in release.primitives])
        for planned, moved in zip(release.primitives, moves, strict=True):
            _check_noise(planned, moved, release, adjacency)
        _check_selection(release, tree, moves, adjacency)
    totals = {place for each in compiled.wide_totals for place in (each.wide, each.bounded) if place is not None}
    if any(compiled.releases[place].keys for place in totals):
        raise GuaranteeMismatch("a wide total has groups")
    events = [event for release in compiled.releases for event in release.events]
    if not events:
        return
    if compiled.price is None or compiled.price.epsilon > catalog.role.query.max_epsilon:
        raise GuaranteeMismatch("the plan has no price, or a price above the limit for one query")
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
    """Check that a release reads only releases of the same plan that are computed before it."""
    made: set[str] = set()
    for release in compiled.releases:
        if not {inner.key for made_first in release.inputs for inner in made_first.releases} <= made:
            raise GuaranteeMismatch("a release reads another one that is not computed before it")
        made.add(release.key)


def _check_public(compiled: CompiledQuery, catalog: Catalog) -> None:
    """Check that reads without noise are of public tables only."""
    for read in _public_reads(compiled):
        tables = list(readings([read.relation], catalog, {}))
        if any(map(is_protected, tables)):
            raise GuaranteeMismatch("a protected table would be read without noise")
        if not tables:
            raise GuaranteeMismatch("a read without noise names no public table")


def _public_reads(compiled: CompiledQuery) -> Iterator[PublicRead]:
    yield from compiled.public_reads
    for release in compiled.releases:
        for made_first in release.inputs:
            yield from made_first.public_reads


def _check_free(release: PlannedRelease, catalog: Catalog) -> None:
    """Check that a release without a price lists public groups and reads no protected rows."""
    statement = release.query.tree
    listed = [statement.enumeration.relation] if statement.enumeration is not None else []
    tables = readings(listed, catalog, dict(statement.leaves))
    if statement.totals is not None or any(map(is_protected, tables)):
        raise GuaranteeMismatch("a plan without a price reads a protected table")


def _compared_groups(release: PlannedRelease) -> int | None:
    """The limit for the number of public groups that `release` compares with the listed ones; None for none."""
    bounds = release.contribution
    is_compared = bounds.grouped and release.limits_groups and not (bounds.ranked or bounds.one_row or bounds.one_group)
    return bounds.groups_per_unit if is_compared else None


def _check_rows(release: PlannedRelease, tree: Tree) -> None:
    """Check that the tree reads protected tables, or one prepared table if and only if the plan says so."""
    read, bounds = [each for each in tree.readings if is_protected(each)], release.contribution
    if not read:
        raise GuaranteeMismatch("a release reads no protected table")
    if tree.copies and not bounds.copied:
        raise GuaranteeMismatch("a prepared table is read where the plan reads the table itself")
    if bounds.copied and (len(read) != 1 or len(tree.copies) != 1):
        raise GuaranteeMismatch("a release of a prepared table also reads unbounded rows")
    if tree.rows.one_row != bounds.one_row:
        raise GuaranteeMismatch("a unit can have more rows than the plan allows")


def _check_noise(planned: PlannedPrimitive, moved: Moves, release: PlannedRelease, adjacency: Adjacency) -> None:
    """Check that the noise covers what a unit can add by the tree, and that the plan allows no less."""
    noise, primitive = planned.noise, planned.primitive
    said = _said(primitive, release)
    if not moved.within(said):
        raise GuaranteeMismatch("one unit can change a cell by more than the plan allows")
    if not (_covers(planned, moved, release, adjacency) and _covers(planned, said, release, adjacency)):
        raise GuaranteeMismatch("the noise is calibrated to a smaller sensitivity than one unit can cause")
    scale = noise.variance if isinstance(noise, DiscreteGaussian) else noise.scale
    if noise.event.scale != scale or scale <= 0 or noise.event.mechanism is not _charged(noise):
        raise GuaranteeMismatch("the noise drawn differs from the noise charged")
    if isinstance(noise, Picking) != (primitive.places is not None) or (
        isinstance(noise, Picking) and noise.places != primitive.places
    ):
        raise GuaranteeMismatch("the number or order of the selected groups differs from the query")
    if isinstance(noise, RankChoice) != (primitive.rank is not None):
        raise GuaranteeMismatch("a choice by rank and a noisy sum do not fit together")
    if isinstance(noise, RankChoice):
        grid = primitive.grid
        if grid is None or (noise.rank, noise.lower, noise.upper) != (primitive.rank, grid.lower, grid.upper):
            raise GuaranteeMismatch("a value is chosen from another grid or by another rank than the plan says")


def _said(primitive: Primitive, release: PlannedRelease) -> Moves:
    """What one unit may add to a cell according to the plan."""
    bounds, in_all = release.contribution, _rows_in_all(release)
    # A unit with n rows in all groups together is in at most n groups, and counts once in each.
    filled = in_all is not None and not primitive.counts_units
    full = Fraction(in_all or 0, primitive.cap) if filled else Fraction(bounds.groups_per_unit)
    return Moves(bounds.groups_per_unit, primitive.lower, primitive.upper, full)


def _covers(planned: PlannedPrimitive, moved: Moves, release: PlannedRelease, adjacency: Adjacency) -> bool:
    """True if the noise of a cell covers what one unit can add to it."""
    largest, spread = max(-moved.lower, moved.upper), moved.upper - moved.lower
    claimed, places = planned.noise.sensitivity, planned.primitive.places
    times = 1
    if places is not None:
        # A change that is common to all losses of a list does not count, so the range is centred.
        largest, spread, times = spread, 2 * spread, places.count
    needed: tuple[int, int, Fraction, Fraction]
    if adjacency is Adjacency.ADD_REMOVE:
        needed = (moved.groups, largest, moved.full * largest, moved.full * largest**2)
    elif release.contribution.grouped:
        squared = moved.full * max(spread**2, 2 * largest**2)
        needed = (2 * moved.groups, spread, 2 * moved.full * largest, squared)
    else:
        needed = (1, spread, Fraction(spread), Fraction(spread**2))
    l0, linf, l1, l2_squared = (needed[0] * times, needed[1], needed[2] * times, needed[3] * times)
    return claimed.l0 >= l0 and claimed.linf >= linf and claimed.l1 >= l1 and claimed.l2_squared >= l2_squared


def _rows_in_all(release: PlannedRelease) -> int | None:
    """The limit of one unit's rows in all groups together; None if rows are limited per group."""
    return release.contribution.rows_per_group if release.contribution.copied else release.contribution.rows_per_unit


def _charged(noise: CellMechanism) -> Mechanism:
    """The mechanism of a draw."""
    if isinstance(noise, Picking) and noise.flips:
        return Mechanism.PERMUTE_AND_FLIP
    return _CHARGED[type(noise)]


_CHARGED: dict[type[CellMechanism], Mechanism] = {
    DiscreteLaplace: Mechanism.LAPLACE,
    DiscreteGaussian: Mechanism.GAUSSIAN,
    RankChoice: Mechanism.EXPONENTIAL,
    Picking: Mechanism.EXPONENTIAL,
}


def _check_groups(release: PlannedRelease, tree: Tree) -> None:
    """Check that the plan has the keys of its tree, and that the groups of one unit are bounded.

    The groups of a list are not bounded: one unit may be in all of them. Only top-k may read lists.
    """
    bounds = release.contribution
    if tree.keys != release.keys or tree.private_keys != release.private_keys or tree.lists != bounds.lists:
        raise GuaranteeMismatch("the groups of the plan differ from those of its tree")
    picks = [planned.primitive.places is not None for planned in release.primitives]
    if bounds.lists is None:
        if bounds.grouped != (release.keys > 0) or any(picks):
            raise GuaranteeMismatch("the groups of one unit are not bounded")
    elif picks != [True] or bounds.copied or bounds.grouped != (len(bounds.lists) > 0):
        raise GuaranteeMismatch("top-k needs a public list of groups and no other cells")
    elif not set(bounds.lists) < set(range(release.keys)):
        raise GuaranteeMismatch("top-k has no key")


def _check_selection(release: PlannedRelease, tree: Tree, moves: list[Moves], adjacency: Adjacency) -> None:
    if release.min_units < tree.min_units:
        raise GuaranteeMismatch("groups of fewer units than min_units would be shown")
    if (release.private_keys or release.min_units > 1) != (release.selection is not None):
        raise GuaranteeMismatch("a selection of groups is missing, or is not needed")
    if release.selection is None:
        return
    groups = max(tree.counted_groups(), release.contribution.groups_per_unit)
    touched = groups * (2 if adjacency is Adjacency.SUBSTITUTE else 1)
    chosen = [e for e in release.events if e.mechanism in (Mechanism.SELECTION, Mechanism.THRESHOLD)]
    if isinstance(release.selection, GaussianThreshold) and release.selection.noise.sensitivity.l0 < touched:
        raise GuaranteeMismatch("the selection's own noise is calibrated to fewer groups than one unit can be in")
    if len(chosen) != 1 or chosen[0].sensitivity.l0 < touched or chosen[0].delta <= 0:
        raise GuaranteeMismatch("the selection of groups is not calibrated to the groups that one unit can be in")
    cut = release.threshold_primitive
    if cut is not None and (moves[cut].lower, moves[cut].upper) != (0, 1):
        raise GuaranteeMismatch("the threshold is on a cell that does not count units")
    _check_tail(release, touched)


def _check_tail(release: PlannedRelease, touched: int) -> None:
    """Check that groups of one unit alone pass a threshold with a total probability of at most δ."""
    selection, cut = release.selection, release.threshold_primitive
    if isinstance(selection, TruncatedGeometric):
        if cut is not None or selection.l0 < touched:
            raise GuaranteeMismatch("the selection of groups is not calibrated to the groups that one unit can be in")
        return
    if isinstance(selection, GaussianThreshold) and cut is None:
        noise: CellMechanism = selection.noise
        threshold = selection.threshold
    elif isinstance(selection, Threshold) and cut is not None:
        noise, threshold = release.primitives[cut].noise, selection
    else:
        raise GuaranteeMismatch("unknown kind of selection")
    passes = tail_of(noise.event.mechanism, noise.event.scale, threshold.cutoff - 1)
    if passes * touched > threshold.event.delta:
        raise GuaranteeMismatch("a group of one unit passes the threshold with a probability above its delta")
