"""build: cut a lowered query at its release boundaries, have its releases bounded and priced, and write the SQL above.

Rule: above the boundary everything is post-processing, run on released cells and public rows.
"""

from collections.abc import Sequence
from dataclasses import replace

from dpsql.compiler.aggregates.base import CellTotals, ColumnError, Drawn, TotalCell
from dpsql.compiler.aggregates.provenance import origins
from dpsql.compiler.aggregates.release_leaf import text_leaf
from dpsql.compiler.canonical.releases import Canonical
from dpsql.compiler.dialects import POST_PROCESSING
from dpsql.compiler.dialects.render import Leaf, Renderer
from dpsql.compiler.ir.nodes import Aggregate, Field, Relation, Release, SystemScan
from dpsql.compiler.ir.walk import nodes
from dpsql.compiler.plan.priced import priced
from dpsql.compiler.plan.public_reads import public_read
from dpsql.compiler.plan.query_plan import (
    MAX_RESULT_ROWS,
    CompiledQuery,
    OutputColumn,
    PlannedRelease,
    PublicRead,
    SystemRead,
    WideTotal,
)
from dpsql.compiler.plan.release_boundaries import cuts
from dpsql.compiler.plan.unpriced import Drafts
from dpsql.compiler.scope.catalog import Catalog
from dpsql.compiler.scope.lowering import Fields, Lowered
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.privacy.cost import Price
from dpsql.sqltypes import SqlType


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
    drafts = Drafts(catalog, fields, settings)
    found = cuts(lowered.relation)
    canonical = Canonical(fields)
    formed = {cut: canonical.release(cut) for cut in found if isinstance(cut, Release)}
    for release in formed.values():
        drafts.bound(release)
    price = Price(catalog.role.budget.accountant, settings.epsilon, settings.delta) if drafts.drafts else None
    releases = priced(drafts.drafts, price, catalog, settings) if price is not None else ()
    wide = tuple(sorted(drafts.wide_totals, key=lambda each: (each.release, each.cell)))
    leaves: dict[Relation, Leaf] = {}
    public: list[PublicRead] = []
    system: list[SystemRead] = []
    for cut in found:
        if isinstance(cut, Release):
            index, leaf = drafts.leaves[formed[cut]]
            leaves[cut] = leaf.at(f"r{index}", _drawn(index, releases, wide, settings), cut)
        elif isinstance(cut, SystemScan):
            system.append(SystemRead(f"s{len(system)}", cut.name, len(cut.fields)))
            leaves[cut] = text_leaf(cut.fields, system[-1].table)
        else:
            public.append(public_read(cut, f"q{len(public)}", catalog))
            leaves[cut] = text_leaf(cut.fields, public[-1].table)
    post_sql = _post_sql(lowered, Renderer(POST_PROCESSING, catalog.schema, catalog.policy, leaves))
    columns = _columns(lowered, drafts, releases)
    reads = (tuple(public), tuple(system))
    listed = {cut for cut, release in formed.items() if drafts.leaves[release][1].lists_all}
    adds_up = any(isinstance(node, Aggregate) and listed.intersection(nodes(node)) for node in nodes(lowered.relation))
    query = CompiledQuery(sql, columns, releases, *reads, post_sql, price, wide, lowered.limited, lowered.invented)
    return replace(query, adds_up_listed=adds_up, passes_on=bool(public) and lowered.relation in leaves)


def _post_sql(lowered: Lowered, renderer: Renderer) -> str:
    fields = [field for _, field in lowered.columns]
    text = renderer.relation(lowered.relation, frozenset(fields))
    items = [f"{_outgoing(renderer.name(field), field.type)} AS o{index}" for index, field in enumerate(fields)]
    # One row more than a result may have is enough to see that it has too many.
    return f"SELECT {', '.join(items)} FROM ({text}) LIMIT {MAX_RESULT_ROWS + 1}"


def _columns(lowered: Lowered, drafts: Drafts, releases: tuple[PlannedRelease, ...]) -> tuple[OutputColumn, ...]:
    errors: dict[Field, ColumnError] = {}
    for index, leaf in drafts.leaves.values():
        errors |= leaf.errors([primitive.noise for primitive in releases[index].primitives], index)
    columns = []
    for name, shown in lowered.columns:
        found = [errors[origin.field] for origin in origins(lowered.relation, shown) if origin.field in errors]
        columns.append(OutputColumn(name, shown.type, max(found, key=_width) if found else None))
    return tuple(columns)


def _width(error: ColumnError) -> float:
    """What the least exact arm of a union is found by; of a mean it is not known beforehand."""
    return float("inf") if error.plus_minus_95 is None else error.plus_minus_95


def _drawn(index: int, releases: Sequence[PlannedRelease], wide: Sequence[WideTotal], settings: QuerySettings) -> Drawn:
    planned = releases[index]
    cutoff = planned.smallest_likely or 0
    noises = tuple(primitive.noise for primitive in planned.primitives)
    totals = {total.cell: _totals(total, releases) for total in wide if total.release == index}
    return Drawn(noises, planned.threshold_primitive, cutoff, totals, settings.calibrate, planned.min_units)


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
