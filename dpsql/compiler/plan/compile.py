"""compile: SQL text, policy and settings into a planned query; pure, and always the same for the same input.

A lowered query is cut at its release boundaries; its releases are bounded and priced; the SQL above is written.

Rule 1: above the boundary everything is post-processing, run on released cells and public rows.
Rule 2: a price is fixed here, before any data is read, and depends on SQL, policy and settings alone.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from fractions import Fraction
from functools import partial
from typing import TypeVar

from sqlglot import exp

from dpsql.compiler.aggregates.base import CellTotals, ColumnError, Drawn, TotalCell
from dpsql.compiler.aggregates.error_propagation import with_margins
from dpsql.compiler.aggregates.release_leaf import ReleasedLeaf, origins, text_leaf
from dpsql.compiler.canonical.descriptions import described
from dpsql.compiler.canonical.releases import Canonical
from dpsql.compiler.dialects import POST_PROCESSING
from dpsql.compiler.dialects.render import CopiedText, Leaf, Renderer
from dpsql.compiler.ir.nodes import (
    Aggregate,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    Field,
    Project,
    Relation,
    Release,
    Released,
    Sort,
    SystemScan,
    Window,
)
from dpsql.compiler.ir.walk import expressions, nodes, windows_in
from dpsql.compiler.plan.advice import advise
from dpsql.compiler.plan.bounded_releases import BoundedRelease, BoundedReleases, public_read
from dpsql.compiler.plan.pricing import Calibrated, PlannedPrimitive, Pricing, calibrate
from dpsql.compiler.plan.profiled_bounds import PreparedForm, read_form
from dpsql.compiler.plan.query_plan import (
    MAX_RESULT_ROWS,
    CompiledQuery,
    CopiedOrder,
    CopiedRows,
    OtherRelease,
    OutputColumn,
    PlannedInput,
    PlannedRelease,
    PublicRead,
    SystemRead,
    WideTotal,
    Written,
    cuts,
)
from dpsql.compiler.plan.verify import verify
from dpsql.compiler.relations.empty_results import has_no_rows, without_rows
from dpsql.compiler.relations.joins import copies
from dpsql.compiler.relations.lower import lower
from dpsql.compiler.scope.lowering import Constants, Fields, Lowered
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.literals import Parameters, element_of
from dpsql.compiler.sql.parse import parse_query
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import Error, LimitExceeded, UnsupportedQuery, log_bug
from dpsql.privacy.cost import Price
from dpsql.sqltypes import SqlType


def priced(
    bounded: Sequence[BoundedRelease],
    price: Price,
    catalog: Catalog,
    settings: QuerySettings,
    wide_share: Fraction,
    parts: Sequence[Fraction] = (),
) -> tuple[PlannedRelease, ...]:
    """Return all releases with their shares of one price, inner ones as much as outer ones, in their order.

    Args:
        bounded: The releases.
        price: The price.
        catalog: Policy, schema and role.
        settings: What is asked for.
        wide_share: As `calibrate` takes it.
        parts: As `calibrate` takes them.

    Raises:
        PolicyViolation: Private keys have no δ to be selected with.
    """
    adjacency = catalog.policy.dataset.adjacency
    plain = [each.unpriced for each in bounded]
    either = [d.copied.unpriced if isinstance(d.copied, PreparedForm) else d.unpriced for d in bounded]
    drawn = calibrate(plain, price, settings, adjacency, wide_share, parts)
    over_copies = drawn if either == plain else calibrate(either, price, settings, adjacency, wide_share, parts)
    releases: list[PlannedRelease] = []
    for each, without, over_copy in zip(bounded, drawn, over_copies, strict=True):
        copied, form = read_form(each.copied, over_copy, without, settings.max_error_ratio)
        chosen = each
        if copied is not None:
            chosen = replace(each, query=copied.query, unpriced=copied.unpriced, profiled=None)
        taken = over_copy if copied is not None else without
        planned = _release(chosen, _inputs(each, releases), taken, form, catalog.policy.fingerprint)
        releases.append(_with_description(planned, chosen, catalog))
    return tuple(releases)


def _inputs(bounded: BoundedRelease, releases: Sequence[PlannedRelease]) -> tuple[PlannedInput, ...]:
    return tuple(
        PlannedInput(
            f"input.{index}",
            item.sql,
            item.types,
            single,
            tuple(releases[inner] for inner in item.releases),
            item.public_reads,
        )
        for index, (item, single) in enumerate(bounded.inputs)
    )


def _release(
    bounded: BoundedRelease, inputs: tuple[PlannedInput, ...], drawn: Calibrated, form: str | None, fingerprint: str
) -> PlannedRelease:
    identity = json.dumps(
        [
            fingerprint,
            bounded.query.sql,
            [_drawn_as(planned, bounded.unpriced.contribution.lists) for planned in drawn.primitives],
            repr(drawn.selection),
            [
                [made.sql, [inner.key for inner in made.releases], [read.sql for read in made.public_reads]]
                for made in inputs
            ],
            *([] if bounded.profiled is None else [bounded.profiled.profile]),
        ]
    )
    return PlannedRelease(
        bounded.query,
        inputs,
        bounded.keys,
        drawn.primitives,
        drawn.selection,
        drawn.threshold_primitive,
        bounded.unpriced.contribution,
        bounded.unpriced.private_keys,
        bounded.unpriced.min_units,
        hashlib.sha256(identity.encode()).hexdigest(),
        form,
        bounded.profiled,
    )


def _with_description(planned: PlannedRelease, bounded: BoundedRelease, catalog: Catalog) -> PlannedRelease:
    """A release with its description, by whose family its key begins, where its cells add up over groups."""
    if bounded.inputs or bounded.unpriced.selects or bounded.release.picks is not None:
        return planned
    bounds = planned.contribution
    facts = (catalog.policy.fingerprint, catalog.schema.engine.name, bounds.copied)
    bias = planned.profiled.bias if planned.profiled is not None else None
    found = described(bounded.release, bounded.unpriced.primitives, bounds, facts, bias)
    if found is None:
        return planned
    return replace(planned, key=f"{found.description.family}.{planned.key}", described=found)


def _drawn_as(planned: PlannedPrimitive, lists: tuple[int, ...] | None) -> dict[str, object]:
    """All that the law of a primitive's cell depends on, apart from the data."""
    event = planned.noise.event.to_json()
    return event | {"choice": repr(planned.noise), "lists": lists} if planned.primitive.is_chosen else event


def plan(
    sql: str,
    lowered: Lowered,
    catalog: Catalog,
    fields: Fields,
    settings: QuerySettings,
    parts: Sequence[Fraction] = (),
    like: BoundedRelease | None = None,
    wide_share: Fraction | None = None,
) -> CompiledQuery:
    """Plan a lowered query.

    Args:
        sql: The query's text, for the ledger's history.
        lowered: The query.
        catalog: Policy, schema and role.
        fields: The source of further fields.
        settings: Price, mechanism and narrower bounds.
        parts: Which parts of their shares primitives get, as `calibrate` takes them.
        like: The release whose bounds its one release has; None for a query with bounds of its own.
        wide_share: The part of its price for cells that tell what bounds drop; None for that of the role.

    Raises:
        PolicyViolation: A sum has no bounds, or private keys have no δ to be selected with.
        UnsupportedQuery: A release cannot be made before what needs it.
    """
    bounded = BoundedReleases(catalog, fields, settings, like)
    found = cuts(lowered.relation)
    canonical = Canonical(fields)
    is_formed = like is not None and like.unpriced.is_wide  # wide totals are made of canonical releases
    formed = {cut: cut if is_formed else canonical.release(cut) for cut in found if isinstance(cut, Release)}
    for release in formed.values():
        bounded.bound(release)
    price = Price(catalog.role.budget.accountant, settings.epsilon, settings.delta) if bounded.releases else None
    share = catalog.role.query.wide_share if wide_share is None else wide_share
    releases = priced(bounded.releases, price, catalog, settings, share, parts) if price is not None else ()
    wide = tuple(sorted(bounded.wide_totals, key=lambda each: (each.release, each.cell)))
    public, system = _read_above(found, catalog)
    others = {cut: text_leaf(cut.fields, read.table) for cut, read in (public | system).items()}
    placed = {cut: bounded.leaves[release] for cut, release in formed.items()}
    above = AboveReleases(lowered, placed, others, wide, catalog, settings)
    post_sql, columns, copied = above.written(releases)
    reads = (tuple(public.values()), tuple(system.values()))
    listed = {cut for cut, (_, leaf) in placed.items() if leaf.lists_all}
    adds_up = any(_combines(node) and listed.intersection(nodes(node)) for node in nodes(lowered.relation))
    unit = catalog.policy.dataset.privacy_unit
    query = CompiledQuery(
        sql, columns, releases, *reads, post_sql, price, unit, wide, lowered.limited, lowered.invented
    )
    passes_on = bool(public) and lowered.relation in others
    query = replace(query, withheld=lowered.withheld, max_error_ratio=settings.max_error_ratio)
    numbered = fields.count

    def planned(epsilon: Fraction, alone: OtherRelease | None, parts: Sequence[Fraction]) -> CompiledQuery:
        priced_at = replace(settings, epsilon=epsilon)
        if alone is None or price is None:
            other = plan(sql, lowered, catalog, Fields(numbered), priced_at, parts, like, wide_share)
        else:
            pricing = Pricing(price, settings, catalog.policy.dataset.adjacency, share)
            own = pricing.wide_share_of([each.unpriced for each in bounded.releases], alone.like)
            mine = bounded.releases[alone.like]
            other = plan(sql, _alone(alone.release), catalog, Fields(numbered), priced_at, parts, mine, own)
        verify(other, catalog)
        return other

    made = max((copies(each.release.aggregate.input) for each in bounded.releases if _is_cut(each)), default=1)
    query = replace(query, adds_up_listed=adds_up, copies=made, passes_on=passes_on, copied=copied)
    return replace(query, written=above.written, planned=planned)


def _combines(relation: Relation) -> bool:
    """True where rows that are 0 may change what others give: in groups of them, and in windows."""
    windows = (window for expression in expressions(relation) for window in windows_in(expression))
    return isinstance(relation, Aggregate) or any(not _is_unmoved(window) for window in windows)


def _is_unmoved(window: Window) -> bool:
    """True of window functions that rows of 0 hardly change: totals, and places that begin with the largest."""
    if window.function in ("row_number", "rank", "dense_rank"):
        return all(term.descending for term in window.order[:1])
    return window.function in ("sum", "max")


def _is_cut(bounded: BoundedRelease) -> bool:
    """Whether bounds can cut a unit's groups, or rows that a release counts."""
    calls, protected = bounded.release.aggregate.aggregates, bounded.release.protected
    counts_rows = any(not (call.distinct and call.argument and protected.is_unit(call.argument)) for call in calls)
    contribution = bounded.unpriced.contribution
    return contribution.ranked or (counts_rows and not contribution.one_row)


def _read_above(
    found: Sequence[Relation], catalog: Catalog
) -> tuple[dict[Relation, PublicRead], dict[Relation, SystemRead]]:
    """What post-processing reads besides releases, by the relations that it is read for."""
    public: dict[Relation, PublicRead] = {}
    system: dict[Relation, SystemRead] = {}
    for cut in found:
        if isinstance(cut, SystemScan):
            system[cut] = SystemRead(f"s{len(system)}", cut.name, len(cut.fields))
        elif not isinstance(cut, Release):
            public[cut] = public_read(cut, f"q{len(public)}", catalog)
    return public, system


def _alone(release: Release) -> Lowered:
    """A query that shows the cells of a release."""
    return Lowered(Released(release), tuple((f"column{place}", each) for place, each in enumerate(release.fields)))


@dataclass(frozen=True)
class AboveReleases:
    """The post-processing above the releases of a query.

    Attributes:
        lowered: The query.
        releases: Its releases as it writes them, each with its place in the plan, and what is made of its cells.
        others: What else is read.
        wide: The wide totals of cells.
        catalog: Policy and schema.
        settings: What intervals are made for.
    """

    lowered: Lowered
    releases: Mapping[Release, tuple[int, ReleasedLeaf]]
    others: Mapping[Relation, Leaf]
    wide: Sequence[WideTotal]
    catalog: Catalog
    settings: QuerySettings

    def written(self, planned: Sequence[PlannedRelease]) -> Written:
        """Its SQL, its columns with the errors of the planned releases, and its rows where they are only copied."""
        leaves = dict(self.others)
        for cut, (index, leaf) in self.releases.items():
            leaves[cut] = leaf.at(f"r{index}", _drawn(index, planned, self.wide, self.settings), cut)
        renderer = Renderer(POST_PROCESSING, self.catalog.schema, self.catalog.policy, leaves)
        return _post_sql(self.lowered, renderer), self._columns(planned), self._copied(leaves)

    def _copied(self, leaves: Mapping[Relation, Leaf]) -> CopiedRows | None:
        """Its rows, if they are those of one release, ordered and cut once, and nothing is computed but intervals."""
        columns, relation = [field for _, field in self.lowered.columns], self.lowered.relation
        above: list[Project | Sort] = []
        while isinstance(relation, Project | Sort):
            above.append(relation)
            relation = relation.input
        if not isinstance(relation, Release) or leaves[relation].table != f"r{self.releases[relation][0]}":
            return None  # its own order is not that of its groups, or further columns are computed of them
        known: Mapping[Field, str] = dict(zip(relation.fields, leaves[relation].columns, strict=True))
        made = CopiedRows(self.releases[relation][0], ())
        for each in reversed(above):
            if isinstance(each, Project):
                pairs = zip(each.fields, each.expressions, strict=True)
                known = {field: _same(expression, known) for field, expression in pairs}
                continue
            order = _copied_order(each, known)
            if len(order) < len(each.order) or made != CopiedRows(made.release, ()):
                return None  # by something computed, or rows that are ordered and cut already
            made = replace(made, order=order, limit=each.limit, offset=each.offset)
        copied = tuple(text for column in columns if isinstance(text := known[column], CopiedText))
        return replace(made, columns=copied) if len(copied) == len(columns) else None

    def _columns(self, planned: Sequence[PlannedRelease]) -> tuple[OutputColumn, ...]:
        errors: dict[Field, ColumnError] = {}
        for index, leaf in self.releases.values():
            errors |= leaf.errors(planned[index].noises, index)
        columns = []
        for name, shown in self.lowered.columns:
            found = (errors[origin.field] for origin in origins(self.lowered.relation, shown) if origin.field in errors)
            columns.append(OutputColumn(name, shown.type, tuple(dict.fromkeys(found))))
        return tuple(columns)


def _same(expression: Expr, known: Mapping[Field, str]) -> str:
    """What an expression copies of the columns below it; an empty text if it is computed, or from elsewhere."""
    match expression:
        case Column():
            return known[expression.field]
        case Cast(argument=argument, type=SqlType.DOUBLE) if argument.type is SqlType.DOUBLE:
            return _same(argument, known)
        case Case(branches=((Call(function="is_null", arguments=(tested,)), _),), default=default):
            absent = _same(tested, known)
            # A cell of a release is never NULL.
            return _same(default, known) if isinstance(absent, CopiedText) and not absent.is_key else ""
        case _:
            return ""


def _copied_order(sort: Sort, known: Mapping[Field, str]) -> tuple[CopiedOrder, ...]:
    """The terms by which rows are ordered, without those that are computed."""
    terms = ((_same(term.expression, known), term) for term in sort.order)
    return tuple(
        CopiedOrder(text, term.expression.type, term.descending, term.nulls_first)
        for text, term in terms
        if isinstance(text, CopiedText)
    )


def _post_sql(lowered: Lowered, renderer: Renderer) -> str:
    fields = [field for _, field in lowered.columns]
    text = renderer.relation(lowered.relation, frozenset(fields))
    items = [f"{_outgoing(renderer.name(field), field.type)} AS o{index}" for index, field in enumerate(fields)]
    # One row more than a result may have is enough to see that it has too many.
    return f"SELECT {', '.join(items)} FROM ({text}) LIMIT {MAX_RESULT_ROWS + 1}"


def _drawn(index: int, releases: Sequence[PlannedRelease], wide: Sequence[WideTotal], settings: QuerySettings) -> Drawn:
    planned = releases[index]
    cutoff = planned.smallest_likely or 0
    totals = {total.cell: _totals(total, releases) for total in wide if total.release == index}
    return Drawn(planned.noises, planned.threshold_primitive, cutoff, totals, settings.calibrate, planned.min_units)


def _totals(total: WideTotal, releases: Sequence[PlannedRelease]) -> CellTotals:
    def read(release: int) -> TotalCell:
        return TotalCell(f"r{release}", total.wide_cell, releases[release].primitives[total.wide_cell].noise)

    bounded = read(total.bounded) if total.bounded is not None else None
    return CellTotals(read(total.wide), bounded, total.sampled, not releases[total.release].contribution.grouped)


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


T = TypeVar("T")


@dataclass(frozen=True)
class Described:
    """The result of Describe: the types of placeholders and columns; for arrays, the types of their items."""

    parameters: tuple[SqlType, ...]
    columns: tuple[tuple[str, SqlType], ...]
    elements: tuple[SqlType | None, ...]


def compile_query(
    statement: QueryStatement,
    catalog: Catalog,
    settings: QuerySettings,
    constants: Constants,
    values: Sequence[object] = (),
    types: Sequence[SqlType | None] = (),
) -> CompiledQuery:
    """Compile one query.

    Args:
        statement: The query.
        catalog: What the user may name.
        settings: Price, mechanism and narrower bounds.
        constants: What now() and CURRENT_USER mean.
        values: Values of $1, $2 …
        types: Their declared types, where declared.

    Raises:
        Error: A typed refusal that depends on SQL, policy and settings alone.
    """
    parameters = Parameters(settings.now.tzinfo or UTC, tuple(values), _declared(types), now=lambda: constants.now)

    def compiled(query: QueryStatement, tree: exp.Query) -> CompiledQuery:
        with _closed():
            lowered, fields = lower(tree, catalog, parameters, constants, query.sql, query.offset)
            if settings.intervals or settings.row_intervals:
                lowered = with_margins(lowered, fields, every=settings.intervals)
            if has_no_rows(lowered.relation):
                lowered = without_rows(lowered)
            planned = plan(query.sql, lowered, catalog, fields, settings)
        verify(planned, catalog)
        return planned

    return _advised(compiled, statement, catalog)


def _advised(run: Callable[[QueryStatement, exp.Query], T], statement: QueryStatement, catalog: Catalog) -> T:
    """Compile or describe a query; the hint of a refusal gets a query that is accepted."""
    tree: exp.Query | None = None
    try:
        tree = parse_query(statement)
        return run(statement, tree)
    except Error as error:
        advise(error, tree, statement.offset, catalog, partial(_is_accepted, run))
        raise


def _is_accepted(run: Callable[[QueryStatement, exp.Query], object], sql: str) -> bool:
    """Whether a query that a hint may hold is read and run without a refusal."""
    statement = QueryStatement(sql)
    try:
        run(statement, parse_query(statement))
    except Error:
        return False
    return True


def describe_query(
    statement: QueryStatement,
    catalog: Catalog,
    constants: Constants,
    types: Sequence[SqlType | None] = (),
    *,
    intervals: bool = False,
) -> Described:
    """Tell the types of a query's placeholders and columns, without their values.

    Args:
        statement: The query.
        catalog: What the user may name.
        constants: What now() and CURRENT_USER mean.
        types: Declared types of $1, $2 …, where declared.
        intervals: Whether limits are added next to noisy columns.

    Raises:
        Error: A typed refusal of names, types or clauses; what depends on bounds or prices is refused on compiling.
    """

    def described(query: QueryStatement, tree: exp.Query) -> Described:
        parameters = Parameters(constants.clock.tzinfo or UTC, None, _declared(types), now=lambda: constants.now)
        with _closed():
            lowered, fields = lower(tree, catalog, parameters, constants, query.sql, query.offset)
            if intervals:
                lowered = with_margins(lowered, fields)
        found = parameters.types
        count = max([len(types), *(index + 1 for index in found if index < element_of(0))], default=0)
        elements = (found.get(element_of(index)) for index in range(count))
        return Described(
            tuple(_known(found.get(index)) for index in range(count)),
            tuple((name, field.type) for name, field in lowered.columns),
            tuple(None if element is None else _known(element) for element in elements),
        )

    return _advised(described, statement, catalog)


def _known(inferred: SqlType | None) -> SqlType:
    """An inferred type; text if nothing determines it."""
    return SqlType.TEXT if inferred is None or inferred is SqlType.UNKNOWN else inferred


@contextmanager
def _closed() -> Iterator[None]:
    """Refuse a tree that no rule expected: every such failure is closed."""
    try:
        yield
    except Error:
        raise
    except RecursionError:
        raise LimitExceeded("the query nests too deeply") from None
    except Exception as error:
        log_bug(error)
        raise UnsupportedQuery(
            "this query shape is not supported",
            hint="Please report it, and write the query in smaller steps, with WITH.",
        ) from None


def _declared(types: Sequence[SqlType | None]) -> dict[int, SqlType]:
    return {index: sql_type for index, sql_type in enumerate(types) if sql_type is not None}
