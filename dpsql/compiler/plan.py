"""plan: cut a lowered query at its release boundaries, form, bound and price every release, and write the SQL.

Rule 1: a price is fixed here, before any data is read, and depends on SQL, policy and settings alone.
Rule 2: above the boundary everything is post-processing, run on released cells and public rows.
Rule 3: what a release needs of other releases is made first, by post-processing, and read as a table of unknown rows.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from dpsql.compiler.bound import Bounds, bounds_of, interval
from dpsql.compiler.bounded_copies import copy_leaf
from dpsql.compiler.canonical import Canonical
from dpsql.compiler.catalog import Catalog
from dpsql.compiler.cuts import cuts, made_first
from dpsql.compiler.domain import enumerate_keys
from dpsql.compiler.engines import DIALECTS, POST_PROCESSING
from dpsql.compiler.engines.dialect import Dialect, quote_name
from dpsql.compiler.from_copies import FromCopy, from_copy
from dpsql.compiler.ir import Call, Cast, Expr, Field, Relation, Release, SystemScan
from dpsql.compiler.lowered import Lowered
from dpsql.compiler.lowering import Fields
from dpsql.compiler.parts import UNITS, Contribution, Output, Part, PartList
from dpsql.compiler.pricing import Calibrated, PlannedPart, Selection, Unpriced, calibrate, error_ratio
from dpsql.compiler.provenance import origins
from dpsql.compiler.released import ColumnError, Drawn, ReleasedLeaf, input_leaf, text_leaf, to_text
from dpsql.compiler.render import Leaf, Renderer
from dpsql.compiler.responses import Responses
from dpsql.compiler.rewrite import Bounding, rewrite
from dpsql.compiler.settings import QuerySettings
from dpsql.compiler.stored_grids import StoredGrids
from dpsql.compiler.visible import weights
from dpsql.errors import PolicyViolation, QueryTooComplex
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Event, Price
from dpsql.privacy.picking import Places
from dpsql.privacy.selection import Threshold
from dpsql.sqltypes import SqlType

MAX_RESULT_ROWS = 1_000_000
"""Rows of a result, or of what is made first."""


@dataclass(frozen=True)
class PublicRead:
    """A query over public tables alone, answered by the engine as it is."""

    table: str
    sql: str
    width: int


@dataclass(frozen=True)
class PlannedInput:
    """What is made of releases and public rows before an engine query, and read there as a table of texts.

    Attributes:
        table: Its name for the engine: no table of a policy has a dot in its name.
        sql: Post-processing SQL with columns v0, v1 …, over the releases as r0, r1 … and the public rows.
        types: The types that the texts are read as.
        single: True where it stands for one value, and may have one row at the most.
        releases: The releases it is made of.
        public_reads: The public rows it is made of, each under its own name.
    """

    table: str
    sql: str
    types: tuple[SqlType, ...]
    single: bool
    releases: "tuple[PlannedRelease, ...]"
    public_reads: tuple[PublicRead, ...]


@dataclass(frozen=True)
class PlannedRelease:
    """One bounded engine query, and everything that is done to its cells before they may leave.

    Attributes:
        sql: Engine SQL: keys as text, the number of units, one bigint a part.
        inputs: What is made before it.
        keys: Number of group keys.
        parts: The cells with their noise.
        selection: How private groups are kept; None where all groups are public.
        threshold_part: The part whose noisy cell the selection cuts off; None for a selection of its own.
        contribution: What one unit may contribute.
        private_keys: True where a group is shown only if it passes the selection.
        key: Names this release for reuse: equal keys are equal computations on equal data and equal inputs.
        form: Whether its rows are those of a prepared copy, and why; None where nothing was prepared.
    """

    sql: str
    inputs: tuple[PlannedInput, ...]
    keys: int
    parts: tuple[PlannedPart, ...]
    selection: Selection | None
    threshold_part: int | None
    contribution: Contribution
    private_keys: bool
    key: str
    form: str | None = None

    @property
    def limits_groups(self) -> bool:
        """True where the noise is made for so many groups of a unit, and not for its rows in whatever groups."""
        rows = self.contribution.all_rows
        if rows is None or self.contribution.max_groups < rows or self.private_keys:
            return True
        return any(planned.part.counts_units for planned in self.parts)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """What the ledger is charged with."""
        noise = tuple(planned.noise.event for planned in self.parts)
        if self.selection is None:
            return noise
        if isinstance(self.selection, Threshold):
            return (*noise, self.selection.event)
        return noise + self.selection.events


@dataclass(frozen=True)
class SystemRead:
    """A relation of schema dpsql that the post-processing needs."""

    table: str
    name: str
    width: int


@dataclass(frozen=True)
class OutputColumn:
    """One column of the result; `error` is None where it is not itself a noisy aggregate."""

    name: str
    type: SqlType
    error: ColumnError | None


@dataclass(frozen=True)
class CompiledQuery:
    """A query wholly planned: what is read, what is added to it, what it costs, what leaves.

    Attributes:
        sql: The text it came from.
        columns: The result's columns.
        releases: Engine queries over protected tables, each released with noise, each after those it needs.
        public_reads: Engine queries over public tables that post-processing needs.
        system_reads: Relations of schema dpsql.
        post_sql: What is run on all of these, in an engine that has no data; release i is table ri there.
        price: What the user is asked for; None where nothing is released.
        limited: Places of the columns that are followed by the two limits of their 95 % interval.
        invented: Whether the rows are made up of the policy's bounds and domains.
    """

    sql: str
    columns: tuple[OutputColumn, ...]
    releases: tuple[PlannedRelease, ...]
    public_reads: tuple[PublicRead, ...]
    system_reads: tuple[SystemRead, ...]
    post_sql: str
    price: Price | None
    limited: tuple[int, ...] = ()
    invented: bool = False

    @cached_property
    def spends(self) -> Spent:
        """What its releases cost one who has none of them."""
        return Spent.zero().add(event for planned in self.releases for event in planned.events)

    def reads(self, releases: Iterable[PlannedRelease]) -> tuple[PublicRead, ...]:
        """Engine queries over public tables, each once: for post-processing, and for what these releases need."""
        inner = (read for planned in releases for made in planned.inputs for read in made.public_reads)
        return tuple({read.sql: read for read in (*self.public_reads, *inner)}.values())


def plan(sql: str, lowered: Lowered, catalog: Catalog, fields: Fields, settings: QuerySettings) -> CompiledQuery:
    """Plan a lowered query.

    Args:
        sql: The query's text, for the ledger's history.
        lowered: The query.
        catalog: Policy, schema and role.
        fields: The source of further fields.
        settings: Price, mechanism and narrower bounds.

    Raises:
        PolicyViolation: A sum has no bounds, or private keys have no δ to be selected with.
        UnsupportedQuery: A release cannot be made before what needs it.
    """
    return Planner(sql, lowered, catalog, fields, settings).plan()


@dataclass(frozen=True)
class _InputDraft:
    """An input of a release; `releases` are the indexes of those it is made of."""

    sql: str
    types: tuple[SqlType, ...]
    releases: tuple[int, ...]
    public_reads: tuple[PublicRead, ...]


@dataclass(frozen=True)
class _Copied:
    """The same cells, added up from a bounded copy, which has some columns on their grid."""

    table: str
    on_grid: tuple[str, ...]
    sql: str
    unpriced: Unpriced


@dataclass(frozen=True)
class _Draft:
    """A bounded engine query, not yet priced; each input comes with whether it stands for one value.

    `copied` is the query over a bounded copy, or why there is none; None where nothing was prepared.
    """

    sql: str
    inputs: tuple[tuple[_InputDraft, bool], ...]
    keys: int
    unpriced: Unpriced
    copied: _Copied | str | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes two drafts one: what is read, and which ranks or groups are chosen of it."""
        chosen = tuple((part.rank, part.places) for part in self.unpriced.parts)
        return self.sql, self.inputs, chosen, self.unpriced.contribution.lists


@dataclass
class Planner:
    """Plans one query.

    Attributes:
        drafts: The engine queries bounded so far, each after those it needs.
        leaves: The releases bounded so far, each in its canonical form, with the index of its draft.
    """

    sql: str
    lowered: Lowered
    catalog: Catalog
    fields: Fields
    settings: QuerySettings
    drafts: list[_Draft] = field(default_factory=list)
    leaves: dict[Release, tuple[int, ReleasedLeaf]] = field(default_factory=dict)

    def plan(self) -> CompiledQuery:
        """Cut, bound, price, and write."""
        found = cuts(self.lowered.relation)
        canonical = Canonical(self.fields)
        formed = {cut: canonical.release(cut) for cut in found if isinstance(cut, Release)}
        for release in formed.values():
            self._bound(release)
        accountant = self.catalog.role.budget.accountant
        price = Price(accountant, self.settings.epsilon, self.settings.delta) if self.drafts else None
        releases = self._priced(price) if price is not None else ()
        leaves: dict[Relation, Leaf] = {}
        public: list[PublicRead] = []
        system: list[SystemRead] = []
        for cut in found:
            if isinstance(cut, Release):
                index, leaf = self.leaves[formed[cut]]
                leaves[cut] = leaf.at(f"r{index}", _drawn(releases[index]), cut)
            elif isinstance(cut, SystemScan):
                system.append(SystemRead(f"s{len(system)}", cut.name, len(cut.fields)))
                leaves[cut] = text_leaf(cut.fields, system[-1].table)
            else:
                public.append(self._public_read(cut, f"q{len(public)}"))
                leaves[cut] = text_leaf(cut.fields, public[-1].table)
        post_sql = self._post_sql(leaves)
        columns = self._columns(releases)
        limited, invented = self.lowered.limited, self.lowered.invented
        reads = (tuple(public), tuple(system))
        return CompiledQuery(self.sql, columns, releases, *reads, post_sql, price, limited, invented)

    @property
    def _bias_share(self) -> Fraction:
        """The part of the price that tells what bounding cuts."""
        return self.catalog.role.query.bias_share

    @property
    def dialect(self) -> Dialect:
        """The SQL of the engine that holds the data."""
        return DIALECTS[self.catalog.schema.engine]

    def _renderer(self, dialect: Dialect, leaves: Mapping[Relation, Leaf] | None = None) -> Renderer:
        return Renderer(dialect, self.catalog.schema, self.catalog.policy, leaves)

    def _public_read(self, relation: Relation, table: str) -> PublicRead:
        renderer = self._renderer(self.dialect)
        inner = renderer.relation(relation, frozenset(relation.fields))
        texts = [self.dialect.as_text(renderer.name(field), field.type) for field in relation.fields]
        casts = ", ".join(f"{text} AS v{i}" for i, text in enumerate(texts)) or "1 AS one"
        return PublicRead(table, f"SELECT {casts} FROM {self.dialect.derived(inner)}", len(relation.fields))

    # Bounding

    def _bound(self, release: Release) -> int:
        """The index of a release's engine query, which is bounded after those it needs."""
        if release in self.leaves:
            return self.leaves[release][0]
        protected, aggregate = release.protected, release.aggregate
        grouped = bool(aggregate.keys)
        domain = enumerate_keys(aggregate.keys, protected.relation, self.catalog, self.fields) if grouped else None
        listed = domain[0] if domain is not None else None
        inputs, leaves = self._inputs(made_first(aggregate, listed))
        size = domain[1] if domain is not None else None
        contribution = self._contribution(release, size) if release.picks is None else self._of_lists(release)
        part_list = PartList(protected, contribution)
        responses = Responses.of(release)
        responses.check(private_keys=grouped and domain is None)
        outputs: tuple[Output, ...]
        if release.picks is None:
            outputs = tuple(responses.output(part_list, call) for call in aggregate.aggregates)
        elif domain is None:
            raise _nothing_public()
        else:
            responses.refuse_picks()
            places = Places(release.picks.count, release.picks.least)
            outputs = tuple(part_list.picked(call, places) for call in aggregate.aggregates)
        if self._bias_share and part_list.parts and release.picks is None:
            part_list.count_cuts()
        parts = tuple(part_list.parts)
        bounds = bounds_of(protected.relation)
        fine = any(_is_fine(key, bounds) for key in aggregate.keys)
        contribution = _in_any_groups(contribution, parts, size) if domain is not None else contribution
        unpriced = Unpriced(parts, contribution, grouped and domain is None, weights(parts, outputs))
        bounding = Bounding(protected, aggregate.keys, parts, contribution, listed, fine, unpriced.private_keys)
        copied = self._copied(release, bounding, outputs, leaves, domain[1] if domain is not None else None)
        sql = rewrite(bounding, self._renderer(self.dialect, leaves))
        draft = _Draft(sql, inputs, len(aggregate.keys), unpriced, copied)
        # Equal releases are one: made once, paid once, the same wherever the query names it.
        alike = (i for i, other in enumerate(self.drafts) if other.identity == draft.identity)
        index = next(alike, len(self.drafts))
        self.drafts += [draft] if index == len(self.drafts) else []
        self.leaves[release] = index, ReleasedLeaf(release, outputs, unpriced.private_keys)
        return index

    def _inputs(
        self, relations: Mapping[Relation, bool]
    ) -> tuple[tuple[tuple[_InputDraft, bool], ...], dict[Relation, Leaf]]:
        """What is made before an engine query, each once, and where the engine finds it."""
        inputs: dict[_InputDraft, bool] = {}
        leaves: dict[Relation, Leaf] = {}
        for relation, single in relations.items():
            draft = self._input(relation)
            inputs[draft] = single or inputs.get(draft, False)
            index = list(inputs).index(draft)
            table = self.dialect.input_table(index, sum(map(_width_of, list(inputs)[:index])), len(draft.types))
            leaves[relation] = input_leaf(relation.fields, self.dialect, table)
        return tuple(inputs.items()), leaves

    def _input(self, relation: Relation) -> _InputDraft:
        leaves: dict[Relation, Leaf] = {}
        releases: list[int] = []
        public: list[PublicRead] = []
        for cut in cuts(relation):
            if isinstance(cut, Release):
                leaves[cut] = self._released(cut, releases)
            else:
                public.append(self._public_read(cut, f"q{len(public)}"))
                leaves[cut] = text_leaf(cut.fields, public[-1].table)
        renderer = self._renderer(POST_PROCESSING, leaves)
        text = renderer.relation(relation, frozenset(relation.fields))
        items = [f"{to_text(renderer.name(f), f.type)} AS v{i}" for i, f in enumerate(relation.fields)]
        sql = f"SELECT {', '.join(items) or '1 AS one'} FROM ({text})"
        types = tuple(field.type for field in relation.fields)
        return _InputDraft(sql, types, tuple(releases), tuple(public))

    def _released(self, release: Release, releases: list[int]) -> Leaf:
        """A release as an input reads it; its index is added to those that the input needs."""
        index = self._bound(release)
        if index not in releases:
            releases.append(index)
        return self.leaves[release][1].at(f"r{releases.index(index)}", None, release)

    def _contribution(self, release: Release, groups: int | None) -> Contribution:
        protected, settings = release.protected, self.settings
        rows = min(protected.max_rows, settings.max_rows or protected.max_rows)
        if not release.aggregate.keys:
            return Contribution(False, 1, rows, protected.one_row)
        allowed = min(protected.max_groups, settings.max_groups or protected.max_groups, rows)
        per_group = min(protected.max_rows_per_group, settings.max_rows_per_group or rows, rows)
        all_fit = groups is not None and groups <= allowed
        touched = max(1, groups) if all_fit and groups is not None else allowed
        limits_rows = rows < touched * per_group and not protected.one_row
        return Contribution(
            True,
            touched,
            per_group,
            protected.one_row,
            ranked=not (all_fit or protected.one_row),
            all_rows=rows if limits_rows else None,
        )

    def _of_lists(self, release: Release) -> Contribution:
        """What one unit may contribute to lists that groups are picked from: it may touch every group of a list."""
        aggregate, protected = release.aggregate, release.protected
        lists = tuple(place for place, each in enumerate(aggregate.key_fields) if each not in release.picked_fields)
        keys = tuple(aggregate.keys[place] for place in lists)
        domain = enumerate_keys(keys, protected.relation, self.catalog, self.fields) if keys else None
        bounds = replace(self._contribution(release, domain[1] if domain is not None else None), all_rows=None)
        if not keys:
            bounds = replace(bounds, grouped=False, max_groups=1, ranked=False)
        return replace(bounds, lists=lists)

    # Bounded copies

    def _copied(
        self,
        release: Release,
        bounding: Bounding,
        outputs: tuple[Output, ...],
        leaves: Mapping[Relation, Leaf],
        groups: int | None,
    ) -> _Copied | str | None:
        """The same cells of a copy, if it may be read; they must be the same, for prices are shared by cell."""
        if bounding.contribution.one_row:
            return None
        found = from_copy(release, self.catalog)
        if not isinstance(found, FromCopy):
            return found
        if release.picks is not None:
            return "keys that are picked are bounded unit by unit"
        if self._bias_share:
            return "what bounding cuts is counted unit by unit"
        settings = self.settings
        if (settings.max_rows, settings.max_groups, settings.max_rows_per_group) != (None, None, None):
            return "the bounds that were set are narrower than the copy's"
        rows, grouped = found.copy.max_rows, bool(bounding.keys)
        touched = min(rows, max(1, groups)) if grouped and groups is not None else rows if grouped else 1
        contribution = Contribution(grouped, touched, rows, one_row=False, ranked=touched == rows, copied=True)
        part_list = PartList(release.protected, contribution)
        try:
            same = tuple(part_list.output(call) for call in release.aggregate.aggregates) == outputs
        except QueryTooComplex:
            return "sums over its rows need more digits than are added up exactly"
        parts = tuple(part_list.parts)
        if any(part.kind.is_distinct or part.rank is not None for part in parts):
            return "distinct values and values chosen by rank are bounded unit by unit"
        if not same or len(parts) != len(bounding.parts) or (UNITS in parts) != (UNITS in bounding.parts):
            return "other cells would be needed than without it"
        unpriced = Unpriced(parts, contribution, bounding.counts_units, weights(parts, outputs))
        grids = StoredGrids(release.protected.relation, found, self.fields)
        cells, protected = grids.of(parts), replace(release.protected, relation=grids.relation)
        stored = grids.read_by(cells)
        over = replace(bounding, protected=protected, parts=cells, contribution=contribution, stored=stored)
        leaf = copy_leaf(found.scan, found.copy, self.catalog)
        sql = rewrite(over, self._renderer(self.dialect, {**leaves, grids.scan: leaf}))
        on_grid = tuple(sorted({each.column for each in stored.values()}))
        return _Copied(found.scan.table.name, on_grid, sql, unpriced)

    def _formed(self, draft: _Draft, plain: Calibrated, copied: Calibrated) -> tuple[_Draft, Calibrated, str | None]:
        """The form of a release whose error is small enough, and why it is that one."""
        if not isinstance(draft.copied, _Copied):
            form = None if draft.copied is None else f"not from a prepared copy: {draft.copied}"
            return draft, plain, form
        ratio, allowed = error_ratio(copied, plain), self.settings.max_error_ratio
        told = f"the error is {ratio:.3g} times that without it, and max_error_ratio is {float(allowed):.3g}"
        if ratio > allowed:
            return draft, plain, f"not from a prepared copy: {told}"
        chosen = replace(draft, sql=draft.copied.sql, unpriced=draft.copied.unpriced)
        columns = ", ".join(quote_name(column) for column in draft.copied.on_grid)
        values = f", with the values of {columns} on their grid" if columns else ""
        return chosen, copied, f'from the prepared copy of "{draft.copied.table}"{values}: {told}'

    # Pricing

    def _priced(self, price: Price) -> tuple[PlannedRelease, ...]:
        """All releases with their shares of one price, inner ones as much as outer ones."""
        adjacency = self.catalog.policy.dataset.adjacency
        plain = [draft.unpriced for draft in self.drafts]
        either = [d.copied.unpriced if isinstance(d.copied, _Copied) else d.unpriced for d in self.drafts]
        drawn_by = (calibrate(each, price, self.settings, adjacency, self._bias_share) for each in (plain, either))
        pairs = zip(*drawn_by, strict=True)
        releases: list[PlannedRelease] = []
        for written, (first, second) in zip(self.drafts, pairs, strict=True):
            draft, drawn, form = self._formed(written, first, second)
            inputs = tuple(
                PlannedInput(
                    _input_name(index),
                    item.sql,
                    item.types,
                    single,
                    tuple(releases[inner] for inner in item.releases),
                    item.public_reads,
                )
                for index, (item, single) in enumerate(draft.inputs)
            )
            releases.append(self._release(draft, inputs, drawn, form))
        return tuple(releases)

    def _release(
        self, draft: _Draft, inputs: tuple[PlannedInput, ...], drawn: Calibrated, form: str | None
    ) -> PlannedRelease:
        identity = json.dumps(
            [
                self.catalog.policy.fingerprint,
                draft.sql,
                [_drawn_as(planned, draft.unpriced.contribution.lists) for planned in drawn.parts],
                repr(drawn.selection),
                [
                    [made.sql, [inner.key for inner in made.releases], [read.sql for read in made.public_reads]]
                    for made in inputs
                ],
            ]
        )
        return PlannedRelease(
            draft.sql,
            inputs,
            draft.keys,
            drawn.parts,
            drawn.selection,
            drawn.threshold_part,
            draft.unpriced.contribution,
            draft.unpriced.private_keys,
            hashlib.sha256(identity.encode()).hexdigest(),
            form,
        )

    # Output

    def _post_sql(self, leaves: Mapping[Relation, Leaf]) -> str:
        renderer = self._renderer(POST_PROCESSING, leaves)
        fields = [field for _, field in self.lowered.columns]
        text = renderer.relation(self.lowered.relation, frozenset(fields))
        items = [f"{_outgoing(renderer.name(field), field.type)} AS o{index}" for index, field in enumerate(fields)]
        # One row more than a result may have is enough to see that it has too many.
        return f"SELECT {', '.join(items)} FROM ({text}) LIMIT {MAX_RESULT_ROWS + 1}"

    def _columns(self, releases: tuple[PlannedRelease, ...]) -> tuple[OutputColumn, ...]:
        errors: dict[Field, ColumnError] = {}
        for index, leaf in self.leaves.values():
            errors |= leaf.errors([part.noise for part in releases[index].parts], index)
        columns = []
        for name, shown in self.lowered.columns:
            found = [errors[origin.field] for origin in origins(self.lowered.relation, shown) if origin.field in errors]
            columns.append(OutputColumn(name, shown.type, max(found, key=_width) if found else None))
        return tuple(columns)


def _in_any_groups(contribution: Contribution, parts: Sequence[Part], groups: int | None) -> Contribution:
    """Without a limit of groups where rows are limited over all of them, and nothing counts units.

    It would save no noise then: what a unit adds is bounded by its rows, wherever they lie.
    """
    rows = contribution.all_rows
    if rows is None or any(part.counts_units for part in parts):
        return contribution
    return replace(contribution, max_groups=min(rows, groups or rows), ranked=False)


def _width(error: ColumnError) -> float:
    """What the least exact arm of a union is found by; of a mean it is not known beforehand."""
    return float("inf") if error.plus_minus_95 is None else error.plus_minus_95


def _width_of(draft: _InputDraft) -> int:
    """How many columns an input is handed over in; one tells its number of rows where it has none."""
    return max(1, len(draft.types))


def _input_name(index: int) -> str:
    return f"input.{index}"


def _drawn(planned: PlannedRelease) -> Drawn:
    cutoff = planned.selection.cutoff if isinstance(planned.selection, Threshold) else 0
    return Drawn(tuple(part.noise for part in planned.parts), planned.threshold_part, cutoff)


def _drawn_as(planned: PlannedPart, lists: tuple[int, ...] | None) -> dict[str, object]:
    """All that the law of a part's cell depends on, beside the data."""
    event = planned.noise.event.to_json()
    is_sum = planned.part.rank is None and planned.part.places is None
    return event if is_sum else event | {"choice": repr(planned.noise), "lists": lists}


def _nothing_public() -> PolicyViolation:
    return PolicyViolation(
        "there is no public list of values to choose from",
        hint="Choose a column whose values the policy declares, and group by such columns; "
        "or count, which selects private groups: SELECT x, COUNT(*) FROM … GROUP BY x ORDER BY 2 DESC LIMIT 1",
    )


def _is_fine(key: Expr, bounds: Bounds) -> bool:
    """True where a key has so many values that most rows of a unit have one of their own.

    Measured on DuckDB 2.0 with a million rows: ranking rows wins from about three pairs (unit, key) in four rows.
    """
    if key.type.is_moment:
        inner = key.argument if isinstance(key, Cast) else key
        return not (isinstance(inner, Call) and inner.function in ("date_trunc_year", "date_trunc_quarter"))
    if not key.type.is_number:
        return False
    found = interval(key, bounds)
    return found.lower is None or found.upper is None or found.upper - found.lower > 1000


def _outgoing(name: str, sql_type: SqlType) -> str:
    """A moment with a time zone leaves as microseconds since 1970, so that no time zone data is asked for.

    An interval leaves as its months, days and microseconds.
    """
    if sql_type is SqlType.INTERVAL:
        months, days = f"date_part('year', {name}) * 12 + date_part('month', {name})", f"date_part('day', {name})"
        clock = [f"date_part('{part}', {name})" for part in ("hour", "minute", "microsecond")]
        micros = f"{clock[0]} * 3600000000 + {clock[1]} * 60000000 + {clock[2]}"
        return f"CASE WHEN {name} IS NOT NULL THEN [{months}, {days}, {micros}] END"
    return f"epoch_us({name})" if sql_type is SqlType.TIMESTAMPTZ else name
