"""lower: a query's syntax tree into relations, each with its privacy status.

Rule 1: every clause of a node is handled or refused by name; none is dropped.
Rule 2: rows of a protected relation never reach the output, and meet no other relation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.compiler.catalog import SYSTEM_TABLES, Catalog
from dpsql.compiler.clauses import Clauses, Lowered
from dpsql.compiler.coerce import Coercion, common_type
from dpsql.compiler.ir import (
    Column,
    Distinct,
    Field,
    Filter,
    Join,
    Literal,
    Project,
    Protected,
    Public,
    Relation,
    Released,
    Scan,
    SetOperation,
    Sort,
    Status,
    SystemScan,
    UnitScan,
    Values,
)
from dpsql.compiler.literals import Parameters
from dpsql.compiler.lowering import Constants, Fields, refuse_other_arguments
from dpsql.compiler.position import position
from dpsql.compiler.resolve import Source, identifier, undefined_table
from dpsql.compiler.select import Selection, refuse_hidden_unit, select_list
from dpsql.errors import InvalidSyntax, PolicyViolation, UnsupportedQuery
from dpsql.policy import Table
from dpsql.sqltypes import SqlType

MAX_RELATIONS = 64
MAX_COMPUTED_ROWS = 100


def lower(
    tree: exp.Expr, catalog: Catalog, parameters: Parameters, constants: Constants, sql: str, offset: int = 0
) -> tuple[Lowered, Fields]:
    """Lower a whole query; its status is Public or Released.

    Returns:
        The lowered query, and the source of further fields.

    Raises:
        Error: A typed refusal.
    """
    lowerer = QueryLowerer(Clauses(catalog, Coercion(parameters), constants, Fields(), offset, sql))
    lowered = lowerer.query(tree, {})
    if isinstance(lowered.status, Protected):
        raise _rows_refused(catalog, lowered, position(tree, offset))
    return lowered, lowerer.clauses.fields


def _rows_refused(catalog: Catalog, lowered: Lowered, at: int | None) -> PolicyViolation:
    tables = [t.name for t in catalog.policy.tables if not t.public and t.name in catalog.role.tables]
    name = _table_of(lowered.relation) or tables[0]
    return PolicyViolation(
        "rows of protected tables are not shown",
        detail=f'Each row of "{name}" belongs to one {catalog.policy.dataset.privacy_unit}.',
        hint=f"Aggregate them: SELECT COUNT(*) FROM {name}",
        position=at,
    )


def _table_of(relation: Relation) -> str | None:
    while isinstance(relation, Filter | Project | Sort | Distinct):
        relation = relation.input
    return relation.table.name if isinstance(relation, UnitScan) else None


@dataclass
class QueryLowerer:
    """Lowers the queries, subqueries and CTEs of one statement."""

    clauses: Clauses
    relations: int = 0
    _sizes: dict[tuple[tuple[str, Field], ...], int] = field(default_factory=dict)

    def query(self, node: exp.Expr, ctes: Mapping[str, Lowered]) -> Lowered:
        """Lower SELECT, VALUES, a set operation, or one of these in parentheses."""
        self._count(node)
        ctes = self._with(node, ctes)
        if isinstance(node, exp.Subquery):
            refuse_other_arguments(
                node, "this", "with_", "order", "limit", "offset", "alias", offset=self.clauses.offset
            )
            return self._ordered(self.query(node.this, ctes), node)
        if isinstance(node, exp.SetOperation):
            return self._ordered(self._set_operation(node, ctes), node)
        if isinstance(node, exp.Values):
            return self._values(node)
        if isinstance(node, exp.Select):
            return self._select(node, ctes)
        raise UnsupportedQuery(f"{node.key.upper()} is not a query", position=self.clauses.at(node))

    def _count(self, node: exp.Expr, added: int = 1) -> None:
        """Count relations as they will stand when every WITH is written out, for WITH may double at each step."""
        self.relations += added
        if self.relations > MAX_RELATIONS:
            raise UnsupportedQuery(
                f"a query may have {MAX_RELATIONS} subqueries and tables", position=self.clauses.at(node)
            )

    def _with(self, node: exp.Expr, ctes: Mapping[str, Lowered]) -> Mapping[str, Lowered]:
        with_ = node.args.get("with_")
        if with_ is None:
            return ctes
        refuse_other_arguments(with_, "expressions", offset=self.clauses.offset)
        known = dict(ctes)
        for cte in with_.expressions:
            refuse_other_arguments(cte, "this", "alias", "materialized", offset=self.clauses.offset)
            name = identifier(cte.args["alias"].this)
            before = self.relations
            known[name] = self._renamed(self.query(cte.this, known), cte.args["alias"])
            self._sizes[known[name].columns] = self.relations - before
        return known

    def _renamed(self, lowered: Lowered, alias: exp.TableAlias) -> Lowered:
        names = [identifier(column) for column in alias.args.get("columns") or ()]
        if len(names) > len(lowered.columns):
            raise InvalidSyntax("more column aliases than columns", position=self.clauses.at(alias))
        renamed = tuple((name, field) for name, (_, field) in zip(names, lowered.columns, strict=False))
        return replace(lowered, columns=renamed + lowered.columns[len(names) :])

    # FROM

    def source(self, node: exp.Expr, ctes: Mapping[str, Lowered]) -> tuple[Source, Status]:
        """Lower one entry of FROM."""
        self._count(node)
        alias_node = node.args.get("alias")
        alias = identifier(alias_node.this) if alias_node is not None and alias_node.this is not None else None
        if isinstance(node, exp.Table):
            refuse_other_arguments(node, "this", "db", "alias", "only", offset=self.clauses.offset)
            return self._table_source(node, alias, ctes)
        if isinstance(node, exp.Subquery | exp.Values):
            inner = node if isinstance(node, exp.Values) else node.this
            lowered = self._fresh(self.query(inner, ctes))
            if isinstance(node, exp.Subquery):
                refuse_other_arguments(node, "this", "alias", offset=self.clauses.offset)
            if alias_node is not None:
                lowered = self._renamed(lowered, alias_node)
            return lowered.source(alias or ""), lowered.status
        raise UnsupportedQuery(f"{node.key.upper()} is not supported in FROM", position=self.clauses.at(node))

    def _table_source(self, node: exp.Table, alias: str | None, ctes: Mapping[str, Lowered]) -> tuple[Source, Status]:
        if not isinstance(node.this, exp.Identifier):
            raise UnsupportedQuery("functions are not supported in FROM", position=self.clauses.at(node))
        name = identifier(node.this)
        schema = identifier(node.args["db"]) if node.args.get("db") is not None else None
        alias_node = node.args.get("alias")
        if schema is None and name in ctes:
            self._count(node, self._sizes[ctes[name].columns])
            lowered = self._fresh(ctes[name])
            if alias_node is not None:
                lowered = self._renamed(lowered, alias_node)
            return lowered.source(alias or name), lowered.status
        source, status = self._base_table(node, schema, name)
        lowered = Lowered(status, source.columns)
        if alias_node is not None:
            lowered = self._renamed(lowered, alias_node)
        return Source(alias or name, lowered.columns, source.hidden), status

    def _base_table(self, node: exp.Table, schema: str | None, name: str) -> tuple[Source, Status]:
        if schema == "dpsql" and name in SYSTEM_TABLES:
            columns = tuple((column, self.clauses.fields.new(type_)) for column, type_ in SYSTEM_TABLES[name].columns)
            return Source(name, columns), Released(SystemScan(name, tuple(field for _, field in columns)))
        own_schema = schema in (None, self.clauses.catalog.policy.dataset.schema, "public")
        table = self.clauses.catalog.table(name if own_schema else f"{schema}.{name}")
        if table is None:
            full = name if schema is None else f"{schema}.{name}"
            raise undefined_table(full, self.clauses.catalog.names(), self.clauses.at(node))
        columns = tuple((column.name, self.clauses.fields.new(column.type)) for column in table.columns)
        fields = tuple(field for _, field in columns)
        if table.public:
            return Source(name, columns), Public(Scan(table, table.columns, fields))
        return self._protected(table, columns)

    def _protected(self, table: Table, columns: tuple[tuple[str, Field], ...]) -> tuple[Source, Status]:
        unit_name, unit_type = self._unit(table)
        unit = self.clauses.fields.new(unit_type)
        is_own = table.unit_key is not None
        columns = tuple((name, unit if is_own and name == unit_name else field) for name, field in columns)
        scanned = [
            (column, field) for column, (_, field) in zip(table.columns, columns, strict=True) if field is not unit
        ]
        relation = UnitScan(table, tuple(c for c, _ in scanned), tuple(f for _, f in scanned), unit)
        one_row = table.unit_key is not None and self.clauses.catalog.schema.tables[table.name].is_unique(
            frozenset({table.unit_key})
        )
        limits = (1, 1, 1) if one_row else (table.max_rows, table.max_groups, table.max_rows_per_group)
        max_rows, max_groups, per_group = (limit or 1 for limit in limits)
        status = Protected(relation, unit, max_rows, max_groups, per_group, one_row)
        listed = any(name == unit_name for name, _ in columns)
        return Source(table.name, columns, () if listed else ((unit_name, unit),)), status

    def _unit(self, table: Table) -> tuple[str, SqlType]:
        while table.unit_via is not None:
            parent = self.clauses.catalog.policy.table(table.unit_via.table)
            if parent is None:
                raise TypeError("the policy loader lets no path lead nowhere")
            table = parent
        name = table.unit_key or ""
        column = table.column(name)
        own = self.clauses.catalog.schema.tables[table.name].columns[name]
        return name, column.type if column is not None else own.sql_type

    def _fresh(self, lowered: Lowered) -> Lowered:
        """The same rows under new fields, so that a relation may stand in FROM twice."""
        relation = lowered.relation
        fields = tuple(self.clauses.fields.new(field.type) for field in relation.fields)
        projected = Project(relation, fields, tuple(Column(field) for field in relation.fields))
        renewed = dict(zip(relation.fields, fields, strict=True))
        columns = tuple((name, renewed[field]) for name, field in lowered.columns)
        status = lowered.status
        hidden = renewed[lowered.hidden] if lowered.hidden is not None else None
        if isinstance(status, Protected):
            return Lowered(replace(status, relation=projected, unit=renewed[status.unit]), columns, hidden)
        return Lowered(replace(status, relation=projected), columns)

    # SELECT

    def _select(self, node: exp.Select, ctes: Mapping[str, Lowered]) -> Lowered:
        """FROM, WHERE, then either rows or groups, then DISTINCT, ORDER BY and LIMIT."""
        refuse_other_arguments(
            node,
            *("expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset"),
            *("distinct", "with_"),
            offset=self.clauses.offset,
        )
        sources, status = self._from(node, ctes)
        where = node.args.get("where")
        if where is not None:
            condition = self.clauses.expressions(sources, "in WHERE").condition(where.this)
            refuse_hidden_unit(self.clauses, condition, sources, where)
            status = replace(status, relation=Filter(status.relation, condition))
        items = select_list(self.clauses, node, sources)
        return Selection(self.clauses, node, sources, status, items).lower()

    def _from(self, node: exp.Select, ctes: Mapping[str, Lowered]) -> tuple[tuple[Source, ...], Status]:
        from_ = node.args.get("from_")
        if from_ is None:
            return (), Public(Values((), ((),)))
        source, status = self.source(from_.this, ctes)
        sources: tuple[Source, ...] = (source,)
        for join in node.args.get("joins") or ():
            sources, status = self._join(join, ctes, sources, status)
        return sources, status

    def _join(
        self, join: exp.Join, ctes: Mapping[str, Lowered], sources: tuple[Source, ...], status: Status
    ) -> tuple[tuple[Source, ...], Status]:
        at = self.clauses.at(join)
        refuse_other_arguments(join, "this", "side", "kind", "on", offset=self.clauses.offset)
        source, right = self.source(join.this, ctes)
        if isinstance(status, Protected) or isinstance(right, Protected):
            raise UnsupportedQuery(
                "joins with protected tables are not supported",
                hint="Aggregate the protected table in a CTE and join its result: "
                "WITH t AS (SELECT …, COUNT(*) FROM … GROUP BY …) SELECT … FROM t JOIN …",
                position=at,
            )
        if source.alias in {other.alias for other in sources}:
            raise InvalidSyntax(f'table name "{source.alias}" specified more than once', position=at)
        sources = (*sources, source)
        side = str(join.args.get("side") or "").lower()
        kind = str(join.args.get("kind") or "").lower()
        on = join.args.get("on")
        if kind not in ("", "inner", "outer", "cross") or side not in ("", "left", "right", "full"):
            raise UnsupportedQuery(f"{kind.upper()} joins are not supported", position=at)
        if on is None:
            if side or kind == "inner":
                raise InvalidSyntax("a join needs ON", position=at)
            return sources, _combined(Join("cross", status.relation, right.relation, None), status, right)
        condition = self.clauses.expressions(sources, "in JOIN conditions").condition(on)
        return sources, _combined(Join(side or "inner", status.relation, right.relation, condition), status, right)

    # VALUES and set operations

    def _values(self, node: exp.Values) -> Lowered:
        refuse_other_arguments(node, "expressions", "alias", "with_", offset=self.clauses.offset)
        lowerer = self.clauses.expressions((), "in VALUES")
        rows = [
            [lowerer.lower(cell) for cell in (row.expressions if isinstance(row, exp.Tuple) else [row])]
            for row in node.expressions
        ]
        if {len(row) for row in rows} == {0}:
            raise InvalidSyntax("VALUES lists must not be empty", position=self.clauses.at(node))
        if len({len(row) for row in rows}) != 1:
            raise InvalidSyntax("VALUES lists must all be the same length", position=self.clauses.at(node))
        columns = [self.clauses.coercion.unify(column, self.clauses.at(node)) for column in zip(*rows, strict=True)]
        if not all(isinstance(cell, Literal) for column in columns for cell in column):
            if len(rows) > MAX_COMPUTED_ROWS:
                raise UnsupportedQuery(
                    f"VALUES may have {MAX_COMPUTED_ROWS} rows that are not constants", position=self.clauses.at(node)
                )
            relation: Relation = Values((), ((),))
            for row in range(len(rows)):
                fields = tuple(self.clauses.fields.new(column[row].type) for column in columns)
                part: Relation = Project(Values((), ((),)), fields, tuple(column[row] for column in columns))
                relation = part if row == 0 else SetOperation("union", True, relation, part, relation.fields)
        else:
            fields = tuple(self.clauses.fields.new(column[0].type) for column in columns)
            relation = Values(fields, tuple(zip(*columns, strict=True)))
        names = tuple((f"column{i}", field) for i, field in enumerate(relation.fields, 1))
        return Lowered(Public(relation), names)

    def _set_operation(self, node: exp.SetOperation, ctes: Mapping[str, Lowered]) -> Lowered:
        refuse_other_arguments(
            node, "this", "expression", "distinct", "with_", "order", "limit", "offset", offset=self.clauses.offset
        )
        left, right = self.query(node.this, ctes), self.query(node.expression, ctes)
        kinds = {exp.Union: "union", exp.Intersect: "intersect", exp.Except: "except"}
        for side, text in ((left, node.this), (right, node.expression)):
            if isinstance(side.status, Protected):
                raise _rows_refused(self.clauses.catalog, side, self.clauses.at(text))
        if len(left.columns) != len(right.columns):
            raise InvalidSyntax(
                "each side of a set operation must have the same columns", position=self.clauses.at(node)
            )
        pairs = list(zip(left.columns, right.columns, strict=True))
        types = [self._common_type((left, a), (right, b), self.clauses.at(node)) for (_, a), (_, b) in pairs]
        left_relation, right_relation = self._cast_to(left, types), self._cast_to(right, types)
        fields = tuple(self.clauses.fields.new(type_) for type_ in types)
        relation = SetOperation(kinds[type(node)], not node.args.get("distinct"), left_relation, right_relation, fields)
        columns = tuple((name, field) for ((name, _), _), field in zip(pairs, fields, strict=True))
        return Lowered(_combined(relation, left.status, right.status), columns)

    def _common_type(self, left: tuple[Lowered, Field], right: tuple[Lowered, Field], at: int | None) -> SqlType:
        """The type that a column of both sides takes; one that is NULL throughout takes the other's."""
        known = [Column(field) for lowered, field in (left, right) if not _is_null(lowered.relation, field)]
        return common_type(known or [Column(left[1])], at)

    def _cast_to(self, lowered: Lowered, types: list[SqlType]) -> Relation:
        columns = [field for _, field in lowered.columns]
        nulls = [_is_null(lowered.relation, field) for field in columns]
        expressions = tuple(
            Literal(None, t) if null else self.clauses.coercion.to(Column(f), t)
            for f, t, null in zip(columns, types, nulls, strict=True)
        )
        return Project(lowered.relation, tuple(self.clauses.fields.new(t) for t in types), expressions)

    def _ordered(self, lowered: Lowered, node: exp.Expr) -> Lowered:
        """ORDER BY, LIMIT and OFFSET over a finished query: by output names and ordinals."""
        order = node.args.get("order")
        limit, offset = self.clauses.limits(node)
        if order is None and limit is None and offset == 0:
            return lowered
        if isinstance(lowered.status, Protected):
            raise _rows_refused(self.clauses.catalog, lowered, self.clauses.at(node))
        lowerer = self.clauses.expressions((Source("", lowered.columns),), "in ORDER BY")
        terms = []
        for term in order.expressions if order is not None else ():
            inner = term.this if isinstance(term, exp.Ordered) else term
            ordinal = self.clauses.ordinal(inner, len(lowered.columns))
            terms.append(lowerer.order(term))
            if ordinal is not None:
                terms[-1] = replace(terms[-1], expression=Column(lowered.columns[ordinal][1]))
        fields = tuple(dict.fromkeys(field for _, field in lowered.columns))
        relation = Sort(lowered.relation, fields, tuple(terms), limit, offset)
        return replace(lowered, status=replace(lowered.status, relation=relation))


def _is_null(relation: Relation, field: Field) -> bool:
    """True where a column is the constant NULL."""
    if not isinstance(relation, Project) or field not in relation.fields:
        return False
    written = relation.expressions[relation.fields.index(field)]
    return isinstance(written, Literal) and written.value is None


def _combined(relation: Relation, *statuses: Status) -> Public | Released:
    """The status of rows made from rows of these statuses, none of them protected."""
    return Public(relation) if all(isinstance(status, Public) for status in statuses) else Released(relation)
