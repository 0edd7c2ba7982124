"""bounded_releases: the bounded engine queries of a query's releases, in order of dependency; not yet priced.

Rule 1: equal releases are one release: computed once, paid once, and with the same cells everywhere in the query.
Rule 2: inputs from other releases are computed first, by post-processing, and read as a table of unknown rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from dpsql.compiler.aggregates.base import Estimate, Primitives, error_weights
from dpsql.compiler.aggregates.randomized_response import Responses
from dpsql.compiler.aggregates.release_leaf import ReleasedLeaf, input_leaf, text_leaf, to_text
from dpsql.compiler.aggregates.top_k import picked
from dpsql.compiler.aggregates.wide_totals import (
    WIDTH,
    WideTotals,
    counted_with,
    place_of,
    sampled,
    sampled_of,
    totalled,
)
from dpsql.compiler.bounding.printer import printed
from dpsql.compiler.bounding.rewrite import Bounding, rewrite
from dpsql.compiler.bounding.steps import PrintedQuery
from dpsql.compiler.dialects import DIALECTS, POST_PROCESSING
from dpsql.compiler.dialects.render import Leaf, Renderer
from dpsql.compiler.ir.nodes import Aggregate, Call, Cast, Expr, Filter, Project, Protected, Relation, Release, UnitScan
from dpsql.compiler.ir.primitives import Contribution, Primitive
from dpsql.compiler.ir.schema import EngineSchema, InputTable
from dpsql.compiler.ir.walk import calls_in, expressions, min_units, nodes
from dpsql.compiler.plan.pricing import UnpricedRelease
from dpsql.compiler.plan.profiled_bounds import PreparedForm, PreparedForms, ProfiledBounds, chosen_bounds
from dpsql.compiler.plan.query_plan import PublicRead, WideTotal, cuts, made_first
from dpsql.compiler.relations.joins import copies
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.values.bounds import Bounds, bounds_of, interval
from dpsql.compiler.values.dependencies import in_one_group
from dpsql.compiler.values.domain import enumerate_keys
from dpsql.errors import LimitExceeded, PolicyViolation
from dpsql.privacy.exponential_mechanism import Places
from dpsql.sqltypes import SqlType


def public_read(relation: Relation, table: str, catalog: Catalog) -> PublicRead:
    """Return the query for a relation of public rows, which post-processing reads as `table`."""
    dialect = DIALECTS[catalog.schema.engine]
    renderer = Renderer(dialect, catalog.schema, catalog.policy, shows_rows=True)
    inner = renderer.relation(relation, frozenset(relation.fields))
    texts = [dialect.as_text(renderer.name(field), field.type) for field in relation.fields]
    casts = ", ".join(f"{text} AS v{i}" for i, text in enumerate(texts)) or "1 AS one"
    return PublicRead(table, relation, f"SELECT {casts} FROM {dialect.derived(inner)}", len(relation.fields))


@dataclass(frozen=True)
class ReleaseInput:
    """An input of a release; `releases` are the indexes of the releases it is computed from."""

    sql: str
    types: tuple[SqlType, ...]
    releases: tuple[int, ...]
    public_reads: tuple[PublicRead, ...]

    @property
    def width(self) -> int:
        """How many columns it is handed over in; one tells its number of rows where it has none."""
        return max(1, len(self.types))


@dataclass(frozen=True)
class BoundedRelease:
    """A bounded engine query, not yet priced; each input comes with whether it stands for one value.

    `copied` is the query over a bounded copy, or why there is none; None
    where nothing was prepared. `profiled` are its bounds where a profile chose them.
    """

    release: Release
    query: PrintedQuery
    inputs: tuple[tuple[ReleaseInput, bool], ...]
    keys: int
    unpriced: UnpricedRelease
    copied: PreparedForm | str | None
    profiled: ProfiledBounds | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """The identity of an engine query: what it reads, and which ranks or groups it chooses."""
        chosen = tuple((primitive.rank, primitive.places) for primitive in self.unpriced.primitives)
        return self.query.sql, self.inputs, chosen, self.unpriced.contribution.lists


@dataclass
class BoundedReleases:
    """Bounds the releases of one query.

    Attributes:
        releases: The engine queries bounded so far, each after those it needs.
        leaves: The releases bounded so far, each in its canonical form, with its place in `releases`.
        wide_totals: The wide totals of their cells.
        like: A release of another plan; the one release of this plan has its bounds, and no wide totals. None for a
            whole query.
    """

    catalog: Catalog
    fields: Fields
    settings: QuerySettings
    like: BoundedRelease | None = None
    releases: list[BoundedRelease] = field(default_factory=list)
    leaves: dict[Release, tuple[int, ReleasedLeaf]] = field(default_factory=dict)
    wide_totals: set[WideTotal] = field(default_factory=set)

    def bound(self, release: Release) -> int:
        """Return the index of a release's engine query, which is bounded after those it needs."""
        if release in self.leaves:
            return self.leaves[release][0]
        is_wide = self.like is not None and self.like.unpriced.is_wide
        index, unpriced, leaf = self._bounded(release, self._unbounded if is_wide else self.settings, is_wide=is_wide)
        self.leaves[release] = index, leaf
        if self.like is None:
            self._add_wide_totals(index, unpriced, leaf)
        return index

    @property
    def _unbounded(self) -> QuerySettings:
        """The settings for wide totals, which have bounds of their own."""
        return replace(self.settings, max_rows=None, max_groups=None, max_rows_per_group=None)

    def _bounded(
        self, release: Release, settings: QuerySettings, *, is_wide: bool
    ) -> tuple[int, UnpricedRelease, ReleasedLeaf]:
        """The index of a release's engine query, its primitives, and the estimates from its cells."""
        protected, keys = release.protected, release.aggregate.keys
        domain = enumerate_keys(keys, protected.relation, self.catalog, self.fields) if keys else None
        listed, groups = domain if domain is not None else (None, None)
        private = bool(keys) and domain is None
        inputs, leaves = self._inputs(made_first(release.aggregate, listed))

        def drawn_under(narrower: QuerySettings) -> tuple[UnpricedRelease, tuple[Estimate, ...]]:
            return self._drawn(release, groups, narrower, private=private, is_wide=is_wide)

        profiled = self.like.profiled if self.like is not None else None
        if not is_wide and self.like is None:
            profiled = chosen_bounds(release, groups, self.catalog, settings, lambda each: drawn_under(each)[0])
        unpriced, estimates = drawn_under(profiled.narrowed(settings) if profiled is not None else settings)
        drawn, contribution = unpriced.primitives, unpriced.contribution
        bounds = bounds_of(protected.relation)
        fine = any(_is_fine(key, bounds) for key in keys)
        again = _may_be_read_again(release.aggregate, self.catalog.schema)
        bounding = Bounding(protected, keys, drawn, contribution, listed, fine, unpriced.selects, again)
        # A copy has lost the rows that a wide total is there to count.
        forms = PreparedForms(self.catalog, self.fields, settings)
        copied = None if is_wide else forms.of(release, bounding, unpriced, estimates, leaves, groups)
        if self._samples(release, profiled, is_wide=is_wide) and not isinstance(copied, PreparedForm):
            drawn += sampled(drawn, estimates, totalled(drawn, estimates, contribution, protected.relation))
            unpriced = replace(unpriced, primitives=drawn, weights=error_weights(drawn, estimates))
            bounding = replace(bounding, primitives=drawn)
        schema, policy = self.catalog.schema, self.catalog.policy
        query = printed(rewrite(bounding, leaves), DIALECTS[schema.engine], schema, policy)
        index = self._index(BoundedRelease(release, query, inputs, len(keys), unpriced, copied, profiled))
        return index, unpriced, ReleasedLeaf(release, estimates, private, unpriced.selects)

    def _drawn(
        self, release: Release, groups: int | None, settings: QuerySettings, *, private: bool, is_wide: bool
    ) -> tuple[UnpricedRelease, tuple[Estimate, ...]]:
        """The primitives of a release under the settings, and the estimates from its cells."""
        protected, keys = release.protected, release.aggregate.keys
        least = min_units(release.aggregate)
        contribution = self._contribution(release, groups, settings)
        primitives = Primitives(protected, contribution, keys, selects_groups=private or least > 1)
        estimates = self._estimates(release, primitives)
        drawn = tuple(primitives.added)
        # Public keys alone are listed without a protected row, and tell of no unit.
        least = least if drawn or private else 1
        if keys and not private and release.picks is None and least == 1:
            contribution = in_any_groups(contribution, drawn, groups, protected, settings)
        return UnpricedRelease(drawn, contribution, private, error_weights(drawn, estimates), least, is_wide), estimates

    def _buys_totals(self, release: Release, profiled: ProfiledBounds | None) -> bool:
        """Whether a release measures what its bounds drop: no profile expects little, and the query makes no rows.

        If series, VALUES or arrays make rows, in a subquery per unit too, a wide total can lack most of them itself.
        """
        asked = bool(self.catalog.role.query.wide_share) and self.settings.wide_totals and release.picks is None
        drops_little = profiled is not None and profiled.drops_little
        aggregated = (node.input for node in nodes(release.aggregate) if isinstance(node, Aggregate))
        return asked and not drops_little and all(copies(rows) == 1 for rows in aggregated)

    def _samples(self, release: Release, profiled: ProfiledBounds | None, *, is_wide: bool) -> bool:
        """Whether a release counts the rows of units of whose rows some are left out."""
        if self.like is not None:
            return any(primitive.sampled for primitive in self.like.unpriced.primitives)
        return bool(release.aggregate.keys) and not is_wide and self._buys_totals(release, profiled)

    def _add_wide_totals(self, index: int, unpriced: UnpricedRelease, leaf: ReleasedLeaf) -> None:
        """Bound the wide totals of a release, each with the bounded one if groups do not add up to it."""
        if not self._buys_totals(leaf.release, self.releases[index].profiled):
            return
        rows = leaf.release.protected.relation
        cells = totalled(unpriced.primitives, leaf.estimates, unpriced.contribution, rows)
        # Groups of a unit are rows of another relation.
        units = [(cell,) for cell in cells if unpriced.primitives[cell].counts_units]
        others = tuple(cell for cell in cells if not unpriced.primitives[cell].counts_units)
        for together in [*units, *([others] if others else [])]:
            self._add_totals_of(index, together, unpriced, leaf)

    def _add_totals_of(self, index: int, cells: tuple[int, ...], unpriced: UnpricedRelease, leaf: ReleasedLeaf) -> None:
        release, chosen = leaf.release, [unpriced.primitives[cell] for cell in cells]
        totals = WideTotals(release, self.settings, self.catalog, self.fields)
        widths = (WIDTH, 1) if unpriced.selects and release.aggregate.keys else (WIDTH,)
        made = [totals.of(chosen, unpriced.contribution, width) for width in widths]
        try:
            (wide, found, _), *bounded = [self._bounded(each, self._unbounded, is_wide=True) for each in made]
        except LimitExceeded:  # its sum has too many digits
            return
        beneath = bounded[0][0] if bounded else None
        for cell, primitive in zip(cells, chosen, strict=True):
            total = place_of(primitive, made[0])
            if _step(primitive) != _step(found.primitives[total]):
                continue  # what is counted in other steps is no total of it
            sample = sampled_of(primitive)
            place = unpriced.primitives.index(sample) if sample in unpriced.primitives else None
            counted = counted_with(cell, leaf.estimates)
            self.wide_totals.add(WideTotal(index, cell, wide, total, beneath, place, counted))

    def _index(self, bounded: BoundedRelease) -> int:
        """The place of an engine query in `releases`, or of an equal one."""
        alike = (i for i, other in enumerate(self.releases) if other.identity == bounded.identity)
        index = next(alike, len(self.releases))
        self.releases += [bounded] if index == len(self.releases) else []
        return index

    def _contribution(self, release: Release, groups: int | None, settings: QuerySettings) -> Contribution:
        """What one unit may contribute to groups, or to lists of groups to pick from."""
        aggregate, protected, schema = release.aggregate, release.protected, self.catalog.schema
        if release.picks is None:
            one_group = in_one_group(protected, aggregate.keys, schema)
            return contribution_of(release, groups, settings, one_group=one_group)
        lists = tuple(place for place, each in enumerate(aggregate.key_fields) if each not in release.picked_fields)
        keys = tuple(aggregate.keys[place] for place in lists)
        domain = enumerate_keys(keys, protected.relation, self.catalog, self.fields) if keys else None
        size = domain[1] if domain is not None else None
        one_list = in_one_group(protected, keys, schema)
        return of_lists(release, lists, size, settings, one_list=one_list)

    def _estimates(self, release: Release, primitives: Primitives) -> tuple[Estimate, ...]:
        """What is made of the cells, which are added to the list."""
        calls = release.aggregate.aggregates
        responses = Responses.of(release)
        responses.check(selects_groups=primitives.selects_groups)
        if release.picks is None:
            return tuple(responses.estimate(primitives, call) for call in calls)
        if primitives.selects_groups or not release.aggregate.keys:
            raise _nothing_public(min_units(release.aggregate))
        responses.refuse_picks()
        places = Places(release.picks.count, release.picks.least)
        return tuple(picked(call, places, primitives) for call in calls)

    # What is made first

    def _inputs(
        self, relations: Mapping[Relation, bool]
    ) -> tuple[tuple[tuple[ReleaseInput, bool], ...], dict[Relation, Leaf]]:
        """What is made before an engine query, each once, and where the engine finds it."""
        dialect = DIALECTS[self.catalog.schema.engine]
        inputs: dict[ReleaseInput, bool] = {}
        leaves: dict[Relation, Leaf] = {}
        for relation, single in relations.items():
            made = self._input(relation)
            inputs[made] = single or inputs.get(made, False)
            index = list(inputs).index(made)
            table = InputTable(index, sum(each.width for each in list(inputs)[:index]), len(made.types))
            leaves[relation] = input_leaf(relation.fields, dialect, table)
        return tuple(inputs.items()), leaves

    def _input(self, relation: Relation) -> ReleaseInput:
        leaves: dict[Relation, Leaf] = {}
        releases: list[int] = []
        public: list[PublicRead] = []
        for cut in cuts(relation):
            if isinstance(cut, Release):
                leaves[cut] = self._released(cut, releases)
            else:
                public.append(public_read(cut, f"q{len(public)}", self.catalog))
                leaves[cut] = text_leaf(cut.fields, public[-1].table)
        renderer = Renderer(POST_PROCESSING, self.catalog.schema, self.catalog.policy, leaves)
        text = renderer.relation(relation, frozenset(relation.fields))
        items = [f"{to_text(renderer.name(f), f.type)} AS v{i}" for i, f in enumerate(relation.fields)]
        sql = f"SELECT {', '.join(items) or '1 AS one'} FROM ({text})"
        types = tuple(field.type for field in relation.fields)
        return ReleaseInput(sql, types, tuple(releases), tuple(public))

    def _released(self, release: Release, releases: list[int]) -> Leaf:
        """A release as an input reads it; its index is added to those that the input needs."""
        index = self.bound(release)
        if index not in releases:
            releases.append(index)
        return self.leaves[release][1].at(f"r{releases.index(index)}", None, release)


def _step(primitive: Primitive) -> Fraction | None:
    return primitive.grid.step if primitive.grid is not None else None


def _nothing_public(least: int) -> PolicyViolation:
    if least > 1:
        return PolicyViolation(
            f"MODE() may show a value that fewer than {least} units have",
            hint="Group by the value, too, and count: groups of fewer units are left out.",
        )
    return PolicyViolation(
        "the values to choose from are not public",
        hint="Use columns whose domain the policy declares, or count by group: private groups are then selected.",
    )


def _is_fine(key: Expr, bounds: Bounds) -> bool:
    """True if a key has so many values that most rows of a unit have different ones.

    Measured on DuckDB 2.0 with a million rows: ranking rows wins from about three pairs (unit, key) in four rows.
    """
    if key.type.is_moment:
        inner = key.argument if isinstance(key, Cast) else key
        return not (isinstance(inner, Call) and inner.function in ("date_trunc_year", "date_trunc_quarter"))
    if not key.type.is_number:
        return False
    found = interval(key, bounds)
    return found.lower is None or found.upper is None or found.upper - found.lower > 1000


_COMPARING: Final = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "between", "distinct_from", "is_null", "coalesce"))
"""Facts about texts that need no search in them."""


def _may_be_read_again(aggregate: Aggregate, schema: EngineSchema) -> bool:
    """True where each read of its rows finds the same ones, and is cheap compared with grouping them by unit.

    They are those of one stored table that has the unit in a column, and nothing is computed of texts.
    """
    own, *beneath = nodes(aggregate)
    tables = [node.table for node in beneath if isinstance(node, UnitScan)]
    if [table.unit_key is not None and schema.tables[table.name].is_stored for table in tables] != [True]:
        return False
    if not all(isinstance(node, UnitScan | Filter | Project) for node in beneath):
        return False
    calls = (call for node in (own, *beneath) for part in expressions(node) for call in calls_in(part))
    computing = (call for call in calls if call.function not in _COMPARING)
    return not any(argument.type.is_text for call in computing for argument in call.arguments)


def rows_of(protected: Protected, settings: QuerySettings) -> int:
    """How many rows of one unit may count in all groups together."""
    return min(protected.rows_per_unit, settings.max_rows or protected.rows_per_unit)


def contribution_of(release: Release, groups: int | None, settings: QuerySettings, *, one_group: bool) -> Contribution:
    """What one unit may contribute to the groups of a release.

    Args:
        release: The release.
        groups: How many public groups there are; None where they are private, or where there are none.
        settings: Narrower bounds.
        one_group: True where the unit determines the keys; then the rows in its group are all of its rows.
    """
    protected = release.protected
    rows = rows_of(protected, settings)
    if not release.aggregate.keys:
        return Contribution(False, 1, rows, protected.one_row)
    if one_group:
        per_group = min(settings.max_rows_per_group or rows, rows)
        return Contribution(True, 1, per_group, protected.one_row, one_group=True)
    allowed = min(protected.groups_per_unit, settings.max_groups or protected.groups_per_unit, rows)
    per_group = min(protected.rows_per_group, settings.max_rows_per_group or rows, rows)
    all_fit = groups is not None and groups <= allowed
    touched = max(1, groups) if all_fit and groups is not None else allowed
    limits_rows = rows < touched * per_group and not protected.one_row
    return Contribution(
        True,
        touched,
        per_group,
        protected.one_row,
        ranked=not (all_fit or protected.one_row),
        rows_per_unit=rows if limits_rows else None,
    )


def of_lists(
    release: Release, lists: tuple[int, ...], groups: int | None, settings: QuerySettings, *, one_list: bool
) -> Contribution:
    """What one unit may contribute to lists that groups are picked from: it may touch every group of a list.

    Args:
        release: The release, whose groups are picked.
        lists: The keys, by their places, for each of whose values there is a list.
        groups: How many lists there are, by public values of these keys.
        settings: Narrower bounds.
        one_list: True where the unit determines these keys.
    """
    allowed = contribution_of(release, groups, settings, one_group=False)
    bounds = replace(allowed, rows_per_unit=None, lists=lists)
    if not lists:
        return replace(bounds, grouped=False, groups_per_unit=1, ranked=False)
    return replace(bounds, groups_per_unit=1, ranked=False, one_group=True) if one_list else bounds


def in_any_groups(
    contribution: Contribution,
    primitives: Sequence[Primitive],
    groups: int | None,
    protected: Protected,
    settings: QuerySettings,
) -> Contribution:
    """Without a limit of groups where nothing counts units: rows are limited over all of them instead.

    It would save no noise then: what a unit adds is bounded by its rows, wherever they lie. Groups are limited only for
    an analyst who asks for so few that they hold no more than these rows.

    Args:
        contribution: What one unit may contribute with a limit of groups.
        primitives: The cells.
        groups: How many public groups there are; None where a public table decides.
        protected: The rows.
        settings: Narrower bounds.
    """
    if contribution.one_row or contribution.one_group or any(primitive.counts_units for primitive in primitives):
        return contribution
    if settings.max_groups is not None and contribution.rows_per_unit is None:
        return contribution
    rows = rows_of(protected, settings)
    all_fit = groups is not None and groups * contribution.rows_per_group <= rows
    touched = min(rows, max(1, groups)) if groups is not None else rows
    return replace(contribution, groups_per_unit=touched, ranked=False, rows_per_unit=None if all_fit else rows)
