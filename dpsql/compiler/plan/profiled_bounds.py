"""profiled_bounds: how many rows of a unit count in one release, by what a profile expects bounds to drop.

Fewer rows are less noise and more bias. Of the policy's bounds and coarser ones below them, those are taken for which
the expected square of bias and noise is least. Bounds that the analyst has set are left as they are.

Guarantee: none is needed: the bounds are enforced, and their noise is made, as if the policy said them; `verify` reads
    them from the plan. They are a function of SQL, policy, settings, schema and profile.
Assumes: a filter leaves each group its share of what is dropped, or less. Where it does not, an answer is less exact.
Reference: Amin, Kulesza, Muñoz Medina & Vassilvitskii, Bounding User Contributions, ICML 2019.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod, sqrt

from dpsql.compiler.bounding.prepared_reads import kept_scan
from dpsql.compiler.ir.nodes import Call, Cast, Column, Expr, Protected, Release, UnitScan
from dpsql.compiler.ir.primitives import Primitive
from dpsql.compiler.plan.pricing import Unpriced, calibrate
from dpsql.compiler.scope.catalog import Catalog
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.policy.profile import RankGroups, RowRanks, TableProfile
from dpsql.privacy.cell_mechanism import added
from dpsql.privacy.cost import Price
from dpsql.privacy.mechanisms import variance
from dpsql.sqltypes import SqlType

_NONE = Fraction(0)
_PARTS = ("hour", "day", "month", "quarter", "year")
"""Parts of moments, each of which tells the next."""
_TRUNCATED = {f"date_trunc_{part}": part for part in _PARTS} | {"extract_year": "year"}


@dataclass(frozen=True)
class ProfiledBounds:
    """Bounds that a profile chose.

    Attributes:
        profile: The profile's name.
        rows: Rows of one unit that count in all.
        per_group: Rows of one unit that count in one group.
        why: What is expected of them, in words.
    """

    profile: str
    rows: int
    per_group: int
    why: str

    def narrowed(self, settings: QuerySettings) -> QuerySettings:
        """The settings with these bounds."""
        return replace(settings, max_rows=self.rows, max_rows_per_group=self.per_group)


@dataclass(frozen=True)
class _Candidate:
    """Two bounds, with the error that is expected of them in a group, in rows.

    Attributes:
        rows: Rows of one unit that count in all.
        per_group: Rows of one unit that count in one group.
        dropped: Rows of the table that they drop.
        noise: The variance of the noise, over that of a row.
        error: The expected square of bias and noise.
    """

    rows: int
    per_group: int
    dropped: Fraction
    noise: Fraction
    error: Fraction


def chosen_bounds(
    release: Release,
    groups: int | None,
    catalog: Catalog,
    settings: QuerySettings,
    unpriced: Callable[[QuerySettings], Unpriced],
) -> ProfiledBounds | None:
    """The bounds that a profile chooses for a release; None where it tells nothing of its rows, or has no say.

    Args:
        release: The release.
        groups: How many public groups there are; None where they are private, not counted yet, or where there are none.
        catalog: The policy with its profile.
        settings: Price and mechanism.
        unpriced: What the release draws noise for, under settings.
    """
    if catalog.profile is None or release.picks is not None or settings.narrows:
        return None
    scan = kept_scan(release.protected.relation, catalog.schema)
    table = catalog.profile.of(catalog.policy, scan.table) if scan is not None else None
    if scan is None or table is None:
        return None
    widest = unpriced(settings)
    adds_rows = all(map(_adds_rows, widest.primitives)) and bool(widest.primitives)
    if widest.contribution.one_row or widest.selects or not adds_rows:
        return None
    keys = [_key_of(key, scan) for key in release.aggregate.keys]
    known = [ranks for ranks in table.ranks if any(_is_finer(key, ranks.grouping) for key in (RankGroups(), *keys))]
    sizes = {ranks.grouping: ranks.groups for ranks in known}
    listed = prod(sizes.get(key, 1) for key in keys if key is not None)
    in_groups = bool(keys) and not widest.contribution.one_group
    choice = _Choice(table, known, Fraction(max(1, groups or listed)), in_groups, catalog, settings, unpriced)
    candidates = list(choice.candidates(release.protected))
    best = min(candidates, key=lambda each: (each.error, -each.rows, -each.per_group))
    return ProfiledBounds(catalog.profile.id, best.rows, best.per_group, choice.why(best, candidates[-1]))


@dataclass(frozen=True)
class _Choice:
    table: TableProfile
    known: list[RowRanks]
    groups: Fraction
    in_groups: bool
    catalog: Catalog
    settings: QuerySettings
    unpriced: Callable[[QuerySettings], Unpriced]

    def candidates(self, protected: Protected) -> Iterator[_Candidate]:
        """The bounds to choose from, in rising order: those of the policy are the last.

        One row in each of several groups is none of them: it counts units, of which max_groups drops what is not known.
        """
        bounds = self.table.bounds
        for place in (place for place, rows in enumerate(bounds) if rows <= protected.rows_per_unit):
            for inner in range(min(1, place), place + 1) if self.in_groups else (place,):
                if not self.in_groups or bounds[inner] <= protected.rows_per_group:
                    yield self._candidate(place, inner)

    def _candidate(self, place: int, inner: int) -> _Candidate:
        """Two bounds by their places.

        Together they drop no more than the sum of what each drops. Finer groups drop no more rows than coarser ones:
        what a unit has beyond a bound in parts of a group, it has beyond it in the group. So the least that is known is
        taken.
        """
        rows, per_group = self.table.bounds[place], self.table.bounds[inner]
        dropped, uncertain = self.known[0].dropped(place)
        if inner < place:
            more, also = min(ranks.dropped(inner) for ranks in self.known)
            dropped, uncertain = dropped + more, uncertain + also
        bias = (dropped**2 + uncertain) / self.groups**2
        narrowed = replace(self.settings, max_rows=rows, max_rows_per_group=per_group)
        drawn = self.unpriced(narrowed)
        price = Price(self.catalog.role.budget.accountant, self.settings.epsilon, self.settings.delta)
        (calibrated,) = calibrate([drawn], price, self.settings, self.catalog.policy.dataset.adjacency)
        noises = [variance(added(each.noise)) / _size(each.primitive) ** 2 for each in calibrated.primitives]
        weights = [primitive.row_weight or _NONE for primitive in drawn.primitives]
        noise, weight = sum(noises, _NONE), sum((each**2 for each in weights), _NONE)
        return _Candidate(rows, per_group, dropped, noise, weight * bias + noise)

    def why(self, best: _Candidate, widest: _Candidate) -> str:
        """What is expected of a choice, beside the widest bounds."""
        total = max(1, sum(self.known[0].rows))
        share = min(1.0, float(best.dropped / total))
        told = f"they drop about {100 * share:.2g} % of the rows of {self.table.table}"
        if best == widest:
            return f"{told}; with narrower bounds the error would be larger"
        times = sqrt(widest.noise / best.noise)
        wide = f"{widest.rows} rows" + (f", {widest.per_group} in each group" if best.rows != best.per_group else "")
        return f"{told}; with {wide}, noise would be {times:.2g} times as large"


def _size(primitive: Primitive) -> int:
    """The most that one row adds to a cell."""
    return max(1, max(-primitive.lower, primitive.upper) // primitive.cap)


def _adds_rows(primitive: Primitive) -> bool:
    return primitive.row_weight is not None and not primitive.counts_units


def _is_finer(key: RankGroups | None, other: RankGroups) -> bool:
    """True where rows that agree on a key agree on another."""
    if key is None or other.column not in (None, key.column):
        return False
    return other.column is None or _coarseness(key.part) <= _coarseness(other.part)


def _part_of(key: Expr) -> tuple[str | None, Expr | None]:
    """Which part a key is of a moment, and of which; None for no moment."""
    if isinstance(key, Call) and key.function in _TRUNCATED:
        return _TRUNCATED[key.function], key.arguments[0]
    if isinstance(key, Cast) and key.argument.type.is_moment:
        return "day" if key.type is SqlType.DATE else None, key.argument
    if isinstance(key, Cast) and key.argument.type.is_integer:
        return None, key.argument
    return None, None


def _coarseness(part: str | None) -> int:
    """The place of a part among those that each tell the next; the whole moment comes first."""
    return -1 if part is None else _PARTS.index(part)


def _key_of(key: Expr, scan: UnitScan) -> RankGroups | None:
    """What a key groups rows by: a column, or the year, month, day or hour of one; None for anything else.

    In the canonical form of a release, keys are written over the columns of its tables.
    """
    names = dict(zip(scan.column_fields, (column.name for column in scan.columns), strict=True))
    part: str | None = None
    while not (isinstance(key, Column) and key.field in names):
        coarser, whole = _part_of(key)
        if whole is None:
            return None
        part, key = max((part, coarser), key=_coarseness), whole
    return RankGroups(names[key.field], part)
