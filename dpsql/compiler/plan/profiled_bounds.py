"""profiled_bounds: the form in which a release is read: bounds that a profile chooses, and prepared tables.

Fewer rows mean less noise and more bias. Among the policy's bounds and some smaller ones, dpsql takes those with the
least expected squared error. Bounds that the analyst has set are left unchanged.

Rule: a prepared table is read only if it gives the same cells as the table, because prices are shared by cell.

Guarantee: none is needed: the bounds are enforced, and their noise is made, as if the policy said them; `verify` reads
    them from the plan. They are a function of SQL, policy, settings, schema and profile.
Assumes: a filter leaves each group its share of what is dropped, or less. Where it does not, an answer is less exact.
Reference: Amin, Kulesza, Muñoz Medina & Vassilvitskii, Bounding User Contributions, ICML 2019.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod, sqrt

from dpsql.compiler.aggregates.base import Estimate, Primitives, error_weights
from dpsql.compiler.aggregates.registry import estimate_of
from dpsql.compiler.bounding.prepared_grids import StoredGrids
from dpsql.compiler.bounding.prepared_reads import PreparedRead, kept_scan, prepared_read
from dpsql.compiler.bounding.prepared_tables import prepared_leaf
from dpsql.compiler.bounding.printer import printed
from dpsql.compiler.bounding.rewrite import Bounding, rewrite
from dpsql.compiler.bounding.steps import PrintedQuery
from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.dialect import standard_name
from dpsql.compiler.dialects.render import Leaf
from dpsql.compiler.ir.nodes import Call, Cast, Column, Expr, Protected, Relation, Release, UnitScan
from dpsql.compiler.ir.primitives import UNITS, Contribution, Primitive
from dpsql.compiler.plan.pricing import Calibrated, UnpricedRelease, calibrate, error_ratio
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.errors import LimitExceeded
from dpsql.policy.profile import RankGroups, RowRanks, TableProfile
from dpsql.privacy.cost import Price
from dpsql.privacy.mechanisms import added, variance
from dpsql.sqltypes import SqlType

_NONE = Fraction(0)
_PARTS = ("hour", "day", "month", "quarter", "year")
"""Parts of timestamps, each of which determines the next."""
_TRUNCATED = {f"date_trunc_{part}": part for part in _PARTS} | {"extract_year": "year"}


@dataclass(frozen=True)
class ProfiledBounds:
    """Bounds that a profile chose.

    Attributes:
        profile: The profile's name.
        rows: Rows of one unit that count in all.
        per_group: Rows of one unit that count in one group.
        dropped: What they are expected to drop, in words.
        instead: What is expected of other bounds, in words.
        bias: The square of the number of rows that they are expected to drop, with its uncertainty.
        drops_little: Whether what they drop is expected to be a smaller error than wide totals, which would tell it,
            add to the noise by their part of the price.
    """

    profile: str
    rows: int
    per_group: int
    dropped: str
    instead: str
    bias: Fraction
    drops_little: bool = False

    @property
    def why(self) -> str:
        """Why they were chosen."""
        return f"they drop {self.dropped}; {self.instead}"

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
        bias: The square of that, with its uncertainty.
        loss: The expected square of what they drop in a group.
        noise: The variance of the noise, over that of a row.
    """

    rows: int
    per_group: int
    dropped: Fraction
    bias: Fraction
    loss: Fraction
    noise: Fraction

    @property
    def error(self) -> Fraction:
        """The expected square of bias and noise."""
        return self.loss + self.noise


def chosen_bounds(
    release: Release,
    groups: int | None,
    catalog: Catalog,
    settings: QuerySettings,
    unpriced: Callable[[QuerySettings], UnpricedRelease],
) -> ProfiledBounds | None:
    """The bounds that a profile chooses for a release; None if it has no data about its rows, or does not apply.

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
    share = catalog.role.query.wide_share
    drops_little = best.loss <= best.noise * share / (1 - share)
    dropped, instead = choice.dropped(best), choice.instead(best, candidates[-1])
    return ProfiledBounds(catalog.profile.id, best.rows, best.per_group, dropped, instead, best.bias, drops_little)


@dataclass(frozen=True)
class _Choice:
    table: TableProfile
    known: list[RowRanks]
    groups: Fraction
    in_groups: bool
    catalog: Catalog
    settings: QuerySettings
    unpriced: Callable[[QuerySettings], UnpricedRelease]

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
        bias = dropped**2 + uncertain
        narrowed = replace(self.settings, max_rows=rows, max_rows_per_group=per_group)
        drawn = self.unpriced(narrowed)
        price = Price(self.catalog.role.budget.accountant, self.settings.epsilon, self.settings.delta)
        (calibrated,) = calibrate([drawn], price, self.settings, self.catalog.policy.dataset.adjacency)
        noises = [variance(added(each.noise)) / _size(each.primitive) ** 2 for each in calibrated.primitives]
        weights = [primitive.row_weight or _NONE for primitive in drawn.primitives]
        noise, weight = sum(noises, _NONE), sum((each**2 for each in weights), _NONE)
        return _Candidate(rows, per_group, dropped, bias, weight * bias / self.groups**2, noise)

    def dropped(self, best: _Candidate) -> str:
        """How much a choice drops."""
        share = min(1.0, float(best.dropped / max(1, sum(self.known[0].rows))))
        return f"about {100 * share:.2g} % of the rows of {self.table.table}"

    def instead(self, best: _Candidate, widest: _Candidate) -> str:
        """What is expected of the widest bounds, or of narrower ones than these."""
        if best == widest:
            return "narrower bounds would make the error larger"
        times = sqrt(widest.noise / best.noise)
        wide = f"{widest.rows} rows" + (f", {widest.per_group} in each group" if best.rows != best.per_group else "")
        return f"with {wide}, the noise would be {times:.2g} times as large"


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
    """The part of a timestamp that a key is, and the timestamp; None for other keys."""
    if isinstance(key, Call) and key.function in _TRUNCATED:
        return _TRUNCATED[key.function], key.arguments[0]
    if isinstance(key, Cast) and key.argument.type.is_moment:
        return "day" if key.type is SqlType.DATE else None, key.argument
    if isinstance(key, Cast) and key.argument.type.is_integer:
        return None, key.argument
    return None, None


def _coarseness(part: str | None) -> int:
    """The place of a part in the order of parts, from the whole timestamp to the coarsest."""
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


@dataclass(frozen=True)
class PreparedForm:
    """The same cells, added up from a bounded copy, which has some columns on their grid."""

    table: str
    on_grid: tuple[str, ...]
    query: PrintedQuery
    unpriced: UnpricedRelease

    @property
    def loses_of_sums(self) -> bool:
        """True if values are added up: over a table, a unit's sum of all rows is clamped, and no row is dropped."""
        return any(primitive.sums_values for primitive in self.unpriced.primitives)


@dataclass(frozen=True)
class PreparedForms:
    """Where a query's releases look for copies."""

    catalog: Catalog
    fields: Fields
    settings: QuerySettings

    def of(
        self,
        release: Release,
        bounding: Bounding,
        unpriced: UnpricedRelease,
        estimates: tuple[Estimate, ...],
        leaves: Mapping[Relation, Leaf],
        groups: int | None,
    ) -> PreparedForm | str | None:
        """The cells of a release over a prepared table, or the reason against it; None if no table was prepared.

        Args:
            release: The release.
            bounding: How it is bounded without a copy.
            unpriced: What it draws noise for without a copy.
            estimates: What is made of its cells.
            leaves: Where the engine finds what is made first.
            groups: How many public groups there are; None where they are private, or where there are none.
        """
        if bounding.contribution.one_row or bounding.reads_nobody:
            return None
        found = prepared_read(release, self.catalog)
        if not isinstance(found, PreparedRead):
            return found
        if release.picks is not None:
            return "top-k keys need bounding per unit"
        if self.settings.narrows:
            return "the session's bounds are narrower than those of the prepared table"
        contribution = _contribution(found.copy.rows_per_unit, bool(bounding.keys), groups)
        primitives = Primitives(release.protected, contribution, bounding.keys, unpriced.selects)
        try:
            same = tuple(estimate_of(call, primitives) for call in release.aggregate.aggregates) == estimates
        except LimitExceeded:
            return "sums over its rows need more digits than exact sums have"
        drawn = tuple(primitives.added)
        if not all(primitive.sums_rows for primitive in drawn):
            return "distinct values and quantiles need bounding per unit"
        if not same or len(drawn) != len(bounding.primitives) or (UNITS in drawn) != (UNITS in bounding.primitives):
            return "it needs other primitives"
        weights = error_weights(drawn, estimates)
        over_copy = replace(unpriced, primitives=drawn, contribution=contribution, weights=weights)
        return self._over(found, bounding, over_copy, leaves)

    def _over(
        self, found: PreparedRead, bounding: Bounding, unpriced: UnpricedRelease, leaves: Mapping[Relation, Leaf]
    ) -> PreparedForm:
        grids = StoredGrids(bounding.protected.relation, found, self.fields)
        cells, protected = grids.of(unpriced.primitives), replace(bounding.protected, relation=grids.relation)
        stored = grids.read_by(cells)
        over = replace(
            bounding, protected=protected, primitives=cells, contribution=unpriced.contribution, stored=stored
        )
        leaf = prepared_leaf(found.scan, found.copy, self.catalog)
        schema, policy = self.catalog.schema, self.catalog.policy
        query = printed(rewrite(over, {**leaves, grids.scan: leaf}), DIALECTS[schema.engine], schema, policy)
        on_grid = tuple(sorted({each.column for each in stored.values()}))
        return PreparedForm(found.scan.table.name, on_grid, query, unpriced)


def _contribution(rows: int, grouped: bool, groups: int | None) -> Contribution:
    """What one unit may contribute by the rows that a copy has of it."""
    touched = min(rows, max(1, groups)) if grouped and groups is not None else rows if grouped else 1
    return Contribution(grouped, touched, rows, one_row=False, ranked=touched == rows, copied=True)


def read_form(
    copied: PreparedForm | str | None, over_copy: Calibrated, without: Calibrated, allowed: Fraction
) -> tuple[PreparedForm | None, str | None]:
    """The form over a copy if its error is small enough for it to be read, and why; no why where nothing was prepared.

    Args:
        copied: The form over a copy, or why there is none.
        over_copy: Its noise.
        without: The noise of the other form.
        allowed: How many times the error of the other form it may have.
    """
    if not isinstance(copied, PreparedForm):
        return None, None if copied is None else f"not from a prepared table: {copied}"
    ratio = error_ratio(over_copy, without)
    told = f"the error is {ratio:.3g} times that of the table, and max_error_ratio is {float(allowed):.3g}"
    if ratio > allowed:
        return None, f"not from a prepared table: {told}"
    columns = ", ".join(standard_name(column) for column in copied.on_grid)
    values = f", with the values of {columns} on their grid" if columns else ""
    lost = "; sums lack the rows that the prepared table drops" if copied.loses_of_sums else ""
    return copied, f'from the prepared table of "{copied.table}"{values}: {told}{lost}'
