"""profile_plan: how many rows units have, as one query over the protected tables, planned and priced like any other.

The rows of each unit are numbered, in all and in each group of each public key, and counted by their number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpsql.compiler.aggregates.wide_totals import WIDTH
from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.render import Renderer
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Case,
    Column,
    Expr,
    Field,
    Link,
    Literal,
    Project,
    Protected,
    Relation,
    Release,
    Released,
    SetOperation,
    UnitWindows,
    Window,
)
from dpsql.compiler.plan.bounded_releases import public_read
from dpsql.compiler.plan.compile import plan
from dpsql.compiler.plan.query_plan import CompiledQuery, PublicRead
from dpsql.compiler.plan.suggestion import MOST_ROWS, ROWS, is_category, leads_to_unit
from dpsql.compiler.plan.verify import verify
from dpsql.compiler.scope.lowering import Fields, Lowered
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog, Tables
from dpsql.compiler.values.domain import enumerate_keys
from dpsql.policy import Table
from dpsql.policy.profile import RankGroups, coarse_bounds
from dpsql.sqltypes import SqlType

PARTS = ("year", "month")
"""Parts of dates and timestamps that rows are commonly grouped by."""


@dataclass(frozen=True)
class RankedTable:
    """A table whose units may have several rows, and one way of numbering them.

    Attributes:
        table: The table.
        bounds: Between which ranks are told apart.
        grouping: The groups in which rows are numbered.
        listed: The query that lists the public groups; None where all rows of a unit are numbered together.
    """

    table: Table
    bounds: tuple[int, ...]
    grouping: RankGroups
    listed: PublicRead | None = None


@dataclass(frozen=True)
class PlannedProfile:
    """A planned profile; release i of the query counts the rows of `ranked[i]` by rank."""

    query: CompiledQuery
    ranked: tuple[RankedTable, ...]


@dataclass(frozen=True)
class ExactRanks:
    """The same without noise, for the data owner only: SQL with one row of bigints, as in RowRanks."""

    sql: str
    names: tuple[str, ...]
    ranked: RankedTable


def plan_profile(catalog: Catalog, settings: QuerySettings) -> PlannedProfile | None:
    """Plan the profile of a policy; None if each unit has one row in every table.

    Guarantee: that of the query: of a unit, WIDTH · max_rows rows are counted in each of its releases.
    Assumes: nothing of the values.
    Reference: Wilson et al. 2020, section 3, for bounded rows; Amin et al. 2019 for bounds that are chosen by what they
        drop.

    Args:
        catalog: The policy, with a role that sees every table and is charged as the cap is.
        settings: The price.
    """
    fields = Fields()
    ranked = tuple(_all_ranked(catalog, fields))
    arms = [_counted(each, place, catalog, fields) for place, each in enumerate(ranked)]
    if not arms:
        return None
    whole = arms[0]
    for arm in arms[1:]:
        whole = SetOperation("union", True, whole, arm, tuple(fields.new(field.type) for field in arm.fields))
    columns = tuple(zip(("place", "rank", "rows"), whole.fields, strict=True))
    named = ", ".join(dict.fromkeys(each.table.name for each in ranked))
    query = plan(f"policy profile: {named}", Lowered(Released(whole), columns), catalog, fields, settings)
    verify(query, catalog)
    return PlannedProfile(query, ranked)


def exact_ranks(catalog: Catalog) -> Iterator[ExactRanks]:
    """Write the same counts without noise and without a bound, one query each."""
    fields = Fields()
    renderer = Renderer(DIALECTS[catalog.schema.engine], catalog.schema, catalog.policy)
    for each in _all_ranked(catalog, fields):
        numbered = _numbered(each, catalog, fields)
        rank = fields.new(SqlType.INTEGER)
        placed = Project(numbered, (rank,), (_rank(numbered.window_fields[0], each.bounds),))
        calls = tuple(_of_rank(rank, place) for place in range(len(each.bounds) + 1))
        numbers = tuple(fields.new(SqlType.BIGINT) for _ in calls)
        sql = renderer.relation(Aggregate(placed, (), (), numbers, calls), frozenset(numbers))
        yield ExactRanks(sql, tuple(map(renderer.name, numbers)), each)


def _all_ranked(catalog: Catalog, fields: Fields) -> Iterator[RankedTable]:
    for table in catalog.policy.tables:
        if table.public:
            continue
        rows = _rows(table, catalog, fields)
        if rows.rows_per_unit > 1:
            bounds = tuple(sorted({*coarse_bounds(rows.rows_per_unit), rows.rows_per_group}))
            yield RankedTable(table, bounds, RankGroups())
            for grouping, listed in _public_keys(table, catalog, fields):
                yield RankedTable(table, bounds, grouping, listed)


def _public_keys(table: Table, catalog: Catalog, fields: Fields) -> Iterator[tuple[RankGroups, PublicRead]]:
    """The columns that rows are commonly grouped by, where their values, or years and months, are public."""
    for column in table.columns:
        if leads_to_unit(table, column) or not is_category(column):
            continue
        for part in PARTS if column.type.is_moment else (None,):
            grouping = RankGroups(column.name, part)
            key, rows = _key(table, grouping, catalog, fields)
            domain = enumerate_keys((key,), rows.relation, catalog, fields)
            if domain is not None:
                yield grouping, public_read(domain[0], "groups", catalog)


def _rows(table: Table, catalog: Catalog, fields: Fields) -> Protected:
    return _scan(table, catalog, fields)[0]


def _scan(table: Table, catalog: Catalog, fields: Fields) -> tuple[Protected, dict[str, Field]]:
    """The table's rows with their unit, and its columns by name."""
    lowered = Tables(catalog, fields).find(None, table.name, None)
    if not isinstance(lowered.status, Protected):
        raise TypeError("rows of units are in protected tables")
    return lowered.status, dict(lowered.columns)


def _key(table: Table, grouping: RankGroups, catalog: Catalog, fields: Fields) -> tuple[Expr, Protected]:
    rows, names = _scan(table, catalog, fields)
    column = Column(names[grouping.column or ""])
    return column if grouping.part is None else Call(f"date_trunc_{grouping.part}", (column,), column.type), rows


def _numbered(ranked: RankedTable, catalog: Catalog, fields: Fields) -> UnitWindows:
    """The rows of a table, with their unit and their number among those of the unit in their group."""
    keys: tuple[Expr, ...] = ()
    rows = _rows(ranked.table, catalog, fields)
    if ranked.grouping.column is not None:
        key, rows = _key(ranked.table, ranked.grouping, catalog, fields)
        keys = (key,)
    parts: Sequence[Expr] = (Column(rows.unit), *keys)
    narrow = Project(rows.relation, tuple(fields.new(part.type) for part in parts), tuple(parts))
    number = fields.new(SqlType.BIGINT)
    window = Window("row_number", (), tuple(map(Column, narrow.fields)), (), None, SqlType.BIGINT)
    return UnitWindows(narrow, (number,), (window,), MOST_ROWS)


def _rank(number: Field, bounds: tuple[int, ...]) -> Expr:
    """The place of the first bound that a number is not above."""
    branches = tuple(
        (Call("le", (Column(number), Literal(bound, SqlType.BIGINT)), SqlType.BOOLEAN), _integer(place))
        for place, bound in enumerate(bounds)
    )
    return Case(branches, _integer(len(bounds)), SqlType.INTEGER)


def _of_rank(rank: Field, place: int) -> AggregateCall:
    condition = Call("eq", (Column(rank), _integer(place)), SqlType.BOOLEAN)
    return AggregateCall("count", None, False, condition, SqlType.BIGINT)


def _counted(ranked: RankedTable, place: int, catalog: Catalog, fields: Fields) -> Relation:
    """The rows of a table, counted by rank: the place, the rank and the number of rows."""
    numbered = _numbered(ranked, catalog, fields)
    unit, rank = fields.new(numbered.fields[0].type), fields.new(SqlType.INTEGER)
    ranks = (Column(numbered.fields[0]), _rank(numbered.window_fields[0], ranked.bounds))
    relation = Project(numbered, (unit, rank), ranks)
    most = WIDTH * ranked.bounds[-1]
    protected = Protected(relation, unit, most, most, most, one_row=False, links=frozenset({Link((), (unit,))}))
    key, number = fields.new(SqlType.INTEGER), fields.new(SqlType.BIGINT)
    limits = (fields.new(SqlType.DOUBLE), fields.new(SqlType.DOUBLE))
    release = Release(protected, Aggregate(relation, (key,), (Column(rank),), (number,), (ROWS,)), (limits,))
    shown = (_integer(place), Column(key), Column(number))
    return Project(release, tuple(fields.new(each.type) for each in shown), shown)


def _integer(value: int) -> Literal:
    return Literal(value, SqlType.INTEGER)
