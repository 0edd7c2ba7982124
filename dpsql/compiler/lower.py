"""lower: a query's syntax tree into relations, each with its privacy status.

Rule 1: every clause of a node is handled or refused by name; none is dropped.
Rule 2: an aggregation of protected rows becomes a Release; rows of a protected relation never reach the output.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.compiler.catalog import SYSTEM_TABLES, Catalog
from dpsql.compiler.coerce import Coercion, common_type
from dpsql.compiler.expressions import lowering
from dpsql.compiler.ir import (
    Aggregate,
    AggregateCall,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Literal,
    Order,
    Project,
    Protected,
    Public,
    Relation,
    Release,
    Released,
    Scan,
    SetOperation,
    Sort,
    Status,
    SystemScan,
    UnitScan,
    Values,
    fields_in,
    rewrite_expression,
)
from dpsql.compiler.literals import Parameters
from dpsql.compiler.lowering import Aggregates, Constants, Fields, Lowering, refuse_other_arguments
from dpsql.compiler.position import position
from dpsql.compiler.resolve import Scope, Source, identifier, undefined_table
from dpsql.errors import (
    DatatypeMismatch,
    GroupingError,
    InvalidParameter,
    InvalidSyntax,
    PolicyViolation,
    UndefinedColumn,
    UnsupportedQuery,
)
from dpsql.policy import Table
from dpsql.sqltypes import SqlType

MAX_ROWS_OF_VALUES = 10_000
MAX_RELATIONS = 32


@dataclass(frozen=True)
class Lowered:
    """A relation with its privacy status and the names that stand over its columns."""

    status: Status
    columns: tuple[tuple[str, Field], ...]

    @property
    def relation(self) -> Relation:
        """The rows."""
        return self.status.relation


def lower(
    tree: exp.Expr, catalog: Catalog, parameters: Parameters, constants: Constants, offset: int = 0
) -> tuple[Lowered, Fields]:
    """Lower a whole query; its status is Public or Released.

    Returns:
        The lowered query, and the source of further fields.

    Raises:
        Error: A typed refusal.
    """
    lowerer = QueryLowerer(catalog, Coercion(parameters), constants, Fields(), offset)
    lowered = lowerer.query(tree, {})
    if isinstance(lowered.status, Protected):
        raise _rows_refused(catalog, lowered, position(tree, offset))
    return lowered, lowerer.fields


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

    catalog: Catalog
    coercion: Coercion
    constants: Constants
    fields: Fields
    offset: int
    relations: int = 0

    def query(self, node: exp.Expr, ctes: Mapping[str, Lowered]) -> Lowered:
        """Lower SELECT, VALUES, a set operation, or one of these in parentheses."""
        self._count(node)
        ctes = self._with(node, ctes)
        if isinstance(node, exp.Subquery):
            refuse_other_arguments(node, "this", "with_", "order", "limit", "offset", "alias", offset=self.offset)
            return self._ordered(self.query(node.this, ctes), node)
        if isinstance(node, exp.SetOperation):
            return self._ordered(self._set_operation(node, ctes), node)
        if isinstance(node, exp.Values):
            return self._values(node)
        if isinstance(node, exp.Select):
            return SelectLowerer(self, node, ctes).lower()
        raise UnsupportedQuery(f"{node.key.upper()} is not a query", position=self.at(node))

    def at(self, node: exp.Expr) -> int | None:
        """The position of a node in the analyst's text."""
        return position(node, self.offset)

    def expressions(self, sources: tuple[Source, ...], clause: str) -> Lowering:
        """A lowerer of expressions over these sources."""
        return lowering(Scope(sources, self.offset), self.coercion, self.constants, clause)

    def _count(self, node: exp.Expr) -> None:
        self.relations += 1
        if self.relations > MAX_RELATIONS:
            raise UnsupportedQuery(f"a query may have {MAX_RELATIONS} subqueries and tables", position=self.at(node))

    def _with(self, node: exp.Expr, ctes: Mapping[str, Lowered]) -> Mapping[str, Lowered]:
        with_ = node.args.get("with_")
        if with_ is None:
            return ctes
        refuse_other_arguments(with_, "expressions", offset=self.offset)
        known = dict(ctes)
        for cte in with_.expressions:
            refuse_other_arguments(cte, "this", "alias", "materialized", offset=self.offset)
            name = identifier(cte.args["alias"].this)
            known[name] = self._renamed(self.query(cte.this, known), cte.args["alias"])
        return known

    def _renamed(self, lowered: Lowered, alias: exp.TableAlias) -> Lowered:
        names = [identifier(column) for column in alias.args.get("columns") or ()]
        if len(names) > len(lowered.columns):
            raise InvalidSyntax("more column aliases than columns", position=self.at(alias))
        renamed = tuple((name, field) for name, (_, field) in zip(names, lowered.columns, strict=False))
        return replace(lowered, columns=renamed + lowered.columns[len(names) :])

    # FROM

    def source(self, node: exp.Expr, ctes: Mapping[str, Lowered]) -> tuple[Source, Status]:
        """Lower one entry of FROM."""
        self._count(node)
        alias_node = node.args.get("alias")
        alias = identifier(alias_node.this) if alias_node is not None and alias_node.this is not None else None
        if isinstance(node, exp.Table):
            refuse_other_arguments(node, "this", "db", "alias", "only", offset=self.offset)
            return self._table_source(node, alias, ctes)
        if isinstance(node, exp.Subquery | exp.Values):
            inner = node if isinstance(node, exp.Values) else node.this
            lowered = self._fresh(self.query(inner, ctes))
            if isinstance(node, exp.Subquery):
                refuse_other_arguments(node, "this", "alias", offset=self.offset)
            if alias_node is not None:
                lowered = self._renamed(lowered, alias_node)
            return Source(alias or "", lowered.columns), lowered.status
        raise UnsupportedQuery(f"{node.key.upper()} is not supported in FROM", position=self.at(node))

    def _table_source(self, node: exp.Table, alias: str | None, ctes: Mapping[str, Lowered]) -> tuple[Source, Status]:
        if not isinstance(node.this, exp.Identifier):
            raise UnsupportedQuery("functions are not supported in FROM", position=self.at(node))
        name = identifier(node.this)
        schema = identifier(node.args["db"]) if node.args.get("db") is not None else None
        alias_node = node.args.get("alias")
        if schema is None and name in ctes:
            lowered = self._fresh(ctes[name])
            if alias_node is not None:
                lowered = self._renamed(lowered, alias_node)
            return Source(alias or name, lowered.columns), lowered.status
        source, status = self._base_table(node, schema, name)
        lowered = Lowered(status, source.columns)
        if alias_node is not None:
            lowered = self._renamed(lowered, alias_node)
        return Source(alias or name, lowered.columns, source.hidden), status

    def _base_table(self, node: exp.Table, schema: str | None, name: str) -> tuple[Source, Status]:
        if schema == "dpsql" and name in SYSTEM_TABLES:
            columns = tuple((column, self.fields.new(type_)) for column, type_ in SYSTEM_TABLES[name].columns)
            return Source(name, columns), Released(SystemScan(name, tuple(field for _, field in columns)))
        own_schema = schema in (None, self.catalog.policy.dataset.schema, "public")
        table = self.catalog.table(name if own_schema else f"{schema}.{name}")
        if table is None:
            full = name if schema is None else f"{schema}.{name}"
            raise undefined_table(full, self.catalog.names(), self.at(node))
        columns = tuple((column.name, self.fields.new(column.type)) for column in table.columns)
        fields = tuple(field for _, field in columns)
        if table.public:
            return Source(name, columns), Public(Scan(table, table.columns, fields))
        return self._protected(table, columns)

    def _protected(self, table: Table, columns: tuple[tuple[str, Field], ...]) -> tuple[Source, Status]:
        unit_name, unit_type = self._unit(table)
        unit = self.fields.new(unit_type)
        is_own = table.unit_key is not None
        columns = tuple((name, unit if is_own and name == unit_name else field) for name, field in columns)
        scanned = [
            (column, field) for column, (_, field) in zip(table.columns, columns, strict=True) if field is not unit
        ]
        relation = UnitScan(table, tuple(c for c, _ in scanned), tuple(f for _, f in scanned), unit)
        one_row = table.unit_key is not None and self.catalog.schema.tables[table.name].is_unique(
            frozenset({table.unit_key})
        )
        limits = (1, 1, 1) if one_row else (table.max_rows, table.max_groups, table.max_rows_per_group)
        max_rows, max_groups, per_group = (limit or 1 for limit in limits)
        status = Protected(relation, unit, max_rows, max_groups, per_group, one_row)
        listed = any(name == unit_name for name, _ in columns)
        return Source(table.name, columns, () if listed else ((unit_name, unit),)), status

    def _unit(self, table: Table) -> tuple[str, SqlType]:
        while table.unit_via is not None:
            parent = self.catalog.policy.table(table.unit_via.table)
            if parent is None:  # the policy loader has made sure of it
                raise PolicyViolation(f'the unit of table "{table.name}" is not reachable')
            table = parent
        name = table.unit_key or ""
        column = table.column(name)
        own = self.catalog.schema.tables[table.name].columns[name]
        return name, column.type if column is not None else own.sql_type

    def _fresh(self, lowered: Lowered) -> Lowered:
        """The same rows under new fields, so that a relation may stand in FROM twice."""
        relation = lowered.relation
        fields = tuple(self.fields.new(field.type) for field in relation.fields)
        projected = Project(relation, fields, tuple(Column(field) for field in relation.fields))
        renewed = dict(zip(relation.fields, fields, strict=True))
        columns = tuple((name, renewed[field]) for name, field in lowered.columns)
        status = lowered.status
        if isinstance(status, Protected):
            return Lowered(replace(status, relation=projected, unit=renewed[status.unit]), columns)
        return Lowered(replace(status, relation=projected), columns)

    # VALUES and set operations

    def _values(self, node: exp.Values) -> Lowered:
        refuse_other_arguments(node, "expressions", "alias", "with_", offset=self.offset)
        if len(node.expressions) > MAX_ROWS_OF_VALUES:
            raise UnsupportedQuery(f"VALUES may have {MAX_ROWS_OF_VALUES:,} rows", position=self.at(node))
        lowerer = self.expressions((), "in VALUES")
        rows = [
            [lowerer.lower(cell) for cell in (row.expressions if isinstance(row, exp.Tuple) else [row])]
            for row in node.expressions
        ]
        if len({len(row) for row in rows}) != 1:
            raise InvalidSyntax("VALUES lists must all be the same length", position=self.at(node))
        columns = [self.coercion.unify(column, self.at(node)) for column in zip(*rows, strict=True)]
        if not all(isinstance(cell, Literal) for column in columns for cell in column):
            relation: Relation = Values((), ((),))
            for row in range(len(rows)):
                fields = tuple(self.fields.new(column[row].type) for column in columns)
                part: Relation = Project(Values((), ((),)), fields, tuple(column[row] for column in columns))
                relation = part if row == 0 else SetOperation("union", True, relation, part, relation.fields)
        else:
            fields = tuple(self.fields.new(column[0].type) for column in columns)
            relation = Values(fields, tuple(zip(*columns, strict=True)))
        names = tuple((f"column{i}", field) for i, field in enumerate(relation.fields, 1))
        return Lowered(Public(relation), names)

    def _set_operation(self, node: exp.SetOperation, ctes: Mapping[str, Lowered]) -> Lowered:
        refuse_other_arguments(
            node, "this", "expression", "distinct", "with_", "order", "limit", "offset", offset=self.offset
        )
        left, right = self.query(node.this, ctes), self.query(node.expression, ctes)
        kinds = {exp.Union: "union", exp.Intersect: "intersect", exp.Except: "except"}
        for side, text in ((left, node.this), (right, node.expression)):
            if isinstance(side.status, Protected):
                raise _rows_refused(self.catalog, side, self.at(text))
        if len(left.columns) != len(right.columns):
            raise InvalidSyntax("each side of a set operation must have the same columns", position=self.at(node))
        pairs = list(zip(left.columns, right.columns, strict=True))
        types = [common_type((Column(a), Column(b)), self.at(node)) for (_, a), (_, b) in pairs]
        left_relation, right_relation = self._cast_to(left, types), self._cast_to(right, types)
        fields = tuple(self.fields.new(type_) for type_ in types)
        relation = SetOperation(kinds[type(node)], not node.args.get("distinct"), left_relation, right_relation, fields)
        columns = tuple((name, field) for ((name, _), _), field in zip(pairs, fields, strict=True))
        return Lowered(_combined(relation, left.status, right.status), columns)

    def _cast_to(self, lowered: Lowered, types: list[SqlType]) -> Relation:
        columns = [field for _, field in lowered.columns]
        expressions = tuple(self.coercion.to(Column(f), t) for f, t in zip(columns, types, strict=True))
        return Project(lowered.relation, tuple(self.fields.new(t) for t in types), expressions)

    def _ordered(self, lowered: Lowered, node: exp.Expr) -> Lowered:
        """ORDER BY, LIMIT and OFFSET over a finished query: by output names and ordinals."""
        order = node.args.get("order")
        limit, offset = self.limits(node)
        if order is None and limit is None and offset == 0:
            return lowered
        if isinstance(lowered.status, Protected):
            raise _rows_refused(self.catalog, lowered, self.at(node))
        lowerer = self.expressions((Source("", lowered.columns),), "in ORDER BY")
        terms = []
        for term in order.expressions if order is not None else ():
            inner = term.this if isinstance(term, exp.Ordered) else term
            ordinal = self.ordinal(inner, len(lowered.columns))
            terms.append(lowerer.order(term))
            if ordinal is not None:
                terms[-1] = replace(terms[-1], expression=Column(lowered.columns[ordinal][1]))
        fields = tuple(dict.fromkeys(field for _, field in lowered.columns))
        relation = Sort(lowered.relation, fields, tuple(terms), limit, offset)
        return replace(lowered, status=replace(lowered.status, relation=relation))

    def ordinal(self, node: exp.Expr, width: int) -> int | None:
        """The 0-based output column that a bare number in GROUP BY or ORDER BY means."""
        if not isinstance(node, exp.Literal) or node.is_string:
            return None
        text = str(node.this)
        if not text.isdecimal() or not 1 <= int(text[:9]) <= width:
            raise InvalidSyntax(f"position {text[:20]} is not in select list", position=self.at(node))
        return int(text) - 1

    def limits(self, node: exp.Expr) -> tuple[int | None, int]:
        """LIMIT (or FETCH FIRST) and OFFSET."""
        limit = node.args.get("limit")
        offset = node.args.get("offset")
        rows = None
        if isinstance(limit, exp.Fetch):
            self._plain_limit(limit)
            rows = self._row_count(limit.args.get("count") or exp.Literal.number(1), "FETCH")
        elif limit is not None:
            self._plain_limit(limit)
            if not (isinstance(limit.expression, exp.Var) and str(limit.expression.this).upper() == "ALL"):
                rows = self._row_count(limit.expression, "LIMIT")
        skipped = self._row_count(offset.expression, "OFFSET") if offset is not None else 0
        return rows, skipped or 0

    def _plain_limit(self, limit: exp.Expr) -> None:
        options = limit.args.get("limit_options")
        if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
            raise UnsupportedQuery("PERCENT and WITH TIES are not supported", position=self.at(limit))
        refuse_other_arguments(limit, "expression", "count", "direction", "limit_options", offset=self.offset)

    def _row_count(self, node: exp.Expr, clause: str) -> int | None:
        lowered = self.coercion.to(self.expressions((), f"in {clause}").lower(node), SqlType.BIGINT, self.at(node))
        constant = lowered.argument if isinstance(lowered, Cast) else lowered
        if not isinstance(constant, Literal):
            raise UnsupportedQuery(f"{clause} takes a constant", position=self.at(node))
        value = constant.value
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise InvalidParameter(f"{clause} must not be negative", position=self.at(node))
        return value


def _combined(relation: Relation, *statuses: Status) -> Public | Released:
    """The status of rows made from rows of these statuses, none of them protected."""
    return Public(relation) if all(isinstance(status, Public) for status in statuses) else Released(relation)


@dataclass
class SelectLowerer:
    """Lowers one SELECT."""

    outer: QueryLowerer
    node: exp.Select
    ctes: Mapping[str, Lowered]

    def lower(self) -> Lowered:
        """FROM, WHERE, then either rows or groups, then DISTINCT, ORDER BY and LIMIT."""
        refuse_other_arguments(
            self.node,
            *("expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset"),
            *("distinct", "with_"),
            offset=self.outer.offset,
        )
        sources, status = self._from()
        where = self.node.args.get("where")
        if where is not None:
            condition = self.outer.expressions(sources, "in WHERE").condition(where.this)
            self.refuse_hidden_unit(condition, sources, where)
            status = replace(status, relation=Filter(status.relation, condition))
        items = self._items(sources)
        return Selection(self, sources, status, items).lower()

    def _from(self) -> tuple[tuple[Source, ...], Status]:
        from_ = self.node.args.get("from_")
        if from_ is None:
            return (), Public(Values((), ((),)))
        source, status = self.outer.source(from_.this, self.ctes)
        sources: tuple[Source, ...] = (source,)
        for join in (*(from_.this.args.get("joins") or ()), *(self.node.args.get("joins") or ())):
            sources, status = self._join(join, sources, status)
        return sources, status

    def _join(self, join: exp.Join, sources: tuple[Source, ...], status: Status) -> tuple[tuple[Source, ...], Status]:
        at = self.outer.at(join)
        refuse_other_arguments(join, "this", "side", "kind", "on", offset=self.outer.offset)
        source, right = self.outer.source(join.this, self.ctes)
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
        condition = self.outer.expressions(sources, "in JOIN conditions").condition(on)
        return sources, _combined(Join(side or "inner", status.relation, right.relation, condition), status, right)

    def refuse_hidden_unit(self, expression: Expr, sources: tuple[Source, ...], node: exp.Expr) -> None:
        """A unit key that the policy does not list as a column stands in COUNT(DISTINCT …) and nowhere else."""
        hidden = {field for source in sources for _, field in source.hidden}
        if hidden & fields_in(expression):
            raise UndefinedColumn(
                "the unit key may only stand in COUNT(DISTINCT …) by itself",
                hint="The data owner can list it as a column in the policy to allow more.",
                position=self.outer.at(node),
            )

    def _items(self, sources: tuple[Source, ...]) -> tuple["Item", ...]:
        """The SELECT list with `*` written out."""
        items: list[Item] = []
        for node in self.node.expressions:
            if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
                refuse_other_arguments(node, "this", "table", offset=self.outer.offset)
                if not sources:
                    raise InvalidSyntax("SELECT * with no tables specified is not valid", position=self.outer.at(node))
                items += [Item(name, node, field) for name, field in Scope(sources, self.outer.offset).star(node)]
            elif isinstance(node, exp.Alias):
                items.append(Item(identifier(node.args["alias"]), node.this, None))
            else:
                items.append(Item(output_name(node), node, None))
        if not items:
            raise InvalidSyntax("SELECT needs a list of columns", position=self.outer.at(self.node))
        return tuple(items)


@dataclass(frozen=True)
class Item:
    """One output column: its name, its text, and the field it is where `*` stood."""

    name: str
    node: exp.Expr
    field: Field | None


def output_name(node: exp.Expr) -> str:
    """The name PostgreSQL gives a column without an alias."""
    match node:
        case exp.Column():
            return identifier(node.this)
        case exp.Paren() | exp.Filter() | exp.Window():
            return output_name(node.this)
        case exp.Cast():
            inner = output_name(node.this)
            return inner if inner != "?column?" else str(node.args["to"].this.value).lower()
        case exp.Case():
            return "case"
        case exp.Extract():
            return "extract"
        case exp.TimestampTrunc():
            return "date_trunc"
        case exp.Exists():
            return "exists"
        case exp.CurrentVersion():
            return "version"
        case exp.CurrentTimestamp():
            return "now"
        case exp.Substring():
            return "substring"
        case exp.Trim():
            return "btrim"
        case exp.Connector() | exp.Binary() | exp.Not() | exp.Neg() | exp.Literal() | exp.Null():
            return "?column?"
        case exp.Func():
            return node.sql_name().lower()
        case exp.Boolean():
            return "bool"
    return "?column?"


@dataclass
class Selection:
    """The part of a SELECT after WHERE: rows or groups."""

    select: SelectLowerer
    sources: tuple[Source, ...]
    status: Status
    items: tuple[Item, ...]

    def lower(self) -> Lowered:
        """Project rows, or aggregate groups."""
        outer, node = self.select.outer, self.select.node
        aggregates = Aggregates(outer.fields)
        grouped = node.args.get("group") is not None
        protected = isinstance(self.status, Protected)
        selected = outer.expressions(self.sources, "in the SELECT list")
        lowerer = replace(selected, aggregates=aggregates, windows=True)
        outputs = [Column(i.field) if i.field is not None else lowerer.value(i.node) for i in self.items]
        having = node.args.get("having")
        condition = lowerer.condition(having.this) if having is not None else None
        order = self._order(lowerer, outputs)
        keys = self._keys(outputs) if grouped else ()
        distinct = self._distinct()
        if grouped or aggregates.calls or condition is not None:
            outputs, order = self._aggregate(keys, aggregates, outputs, condition, order)
        elif protected and distinct:
            outputs, order = self._aggregate(tuple(dict.fromkeys(outputs)), aggregates, outputs, None, order)
            distinct = False
        if isinstance(self.status, Protected):
            return self._protected_rows(outputs)
        return self._finish(outputs, order, distinct)

    def _distinct(self) -> bool:
        distinct = self.select.node.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            raise UnsupportedQuery(
                "DISTINCT ON is not supported", hint="Use GROUP BY.", position=self.select.outer.at(distinct)
            )
        return distinct is not None

    def _keys(self, outputs: list[Expr]) -> tuple[Expr, ...]:
        outer, group = self.select.outer, self.select.node.args["group"]
        refuse_other_arguments(group, "expressions", offset=outer.offset)
        lowerer = outer.expressions(self.sources, "in GROUP BY")
        keys: list[Expr] = []
        for node in group.expressions:
            if isinstance(node, exp.Tuple):
                keys += [lowerer.value(part) for part in node.expressions]
                continue
            if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
                raise UnsupportedQuery(f"{node.key.upper()} is not supported", position=outer.at(node))
            ordinal = outer.ordinal(node, len(self.items))
            alias = self._alias(node) if ordinal is None else None
            index = ordinal if ordinal is not None else alias
            if index is None:
                keys.append(lowerer.value(node))
                continue
            item = self.items[index]
            keys.append(Column(item.field) if item.field is not None else lowerer.value(item.node))
        return tuple(dict.fromkeys(keys))

    def _alias(self, node: exp.Expr) -> int | None:
        """The output a bare name means: in GROUP BY an input column of that name comes first."""
        if not isinstance(node, exp.Column) or node.args.get("table") is not None:
            return None
        name = identifier(node.this)
        if any(name == column for source in self.sources for column, _ in source.columns):
            return None
        found = [index for index, item in enumerate(self.items) if item.name == name]
        return found[0] if found else None

    def _order(self, lowerer: Lowering, outputs: list[Expr]) -> tuple[Order, ...]:
        order = self.select.node.args.get("order")
        if order is None:
            return ()
        refuse_other_arguments(order, "expressions", offset=self.select.outer.offset)
        lowerer = replace(lowerer, clause="in ORDER BY")
        terms = []
        for term in order.expressions:
            inner = term.this if isinstance(term, exp.Ordered) else term
            index = self.select.outer.ordinal(inner, len(self.items))
            if index is None and isinstance(inner, exp.Column) and inner.args.get("table") is None:
                name = identifier(inner.this)
                named = [i for i, item in enumerate(self.items) if item.name == name]
                index = named[0] if named else None
            if index is None:
                terms.append(lowerer.order(term))
            else:
                descending = bool(term.args.get("desc")) if isinstance(term, exp.Ordered) else False
                first = bool(term.args.get("nulls_first")) if isinstance(term, exp.Ordered) else False
                terms.append(Order(outputs[index], descending, first))
        return tuple(terms)

    def _aggregate(
        self,
        keys: tuple[Expr, ...],
        aggregates: Aggregates,
        outputs: list[Expr],
        condition: Expr | None,
        order: tuple[Order, ...],
    ) -> tuple[list[Expr], tuple[Order, ...]]:
        """Cut here: what stands above refers to groups only."""
        outer = self.select.outer
        key_fields = tuple(outer.fields.new(key.type) for key in keys)
        calls = tuple(aggregates.calls)
        aggregate = Aggregate(self.status.relation, key_fields, keys, tuple(aggregates.calls.values()), calls)
        if isinstance(self.status, Protected):
            self._check_protected(self.status, keys, calls)
            self.status = Released(Release(self.status, aggregate))
        else:
            self.status = replace(self.status, relation=aggregate)
        by_key = dict(zip(keys, key_fields, strict=True))

        def regroup(expression: Expr, node: exp.Expr) -> Expr:
            regrouped = rewrite_expression(expression, lambda part: Column(by_key[part]) if part in by_key else None)
            if not fields_in(regrouped) <= set(aggregate.fields):
                raise GroupingError(
                    "a column must appear in the GROUP BY clause or be used in an aggregate function",
                    hint="Add it to GROUP BY, or put it into COUNT, SUM or AVG.",
                    position=outer.at(node),
                )
            return regrouped

        if condition is not None:
            grouped = regroup(condition, self.select.node.args["having"])
            self.status = replace(self.status, relation=Filter(self.status.relation, grouped))
        outputs = [regroup(e, item.node) for e, item in zip(outputs, self.items, strict=True)]
        node = self.select.node.args.get("order") or self.select.node
        return outputs, tuple(replace(term, expression=regroup(term.expression, node)) for term in order)

    def _check_protected(self, status: Protected, keys: tuple[Expr, ...], calls: tuple[AggregateCall, ...]) -> None:
        outer = self.select.outer
        group = self.select.node.args.get("group") or self.select.node
        unit = status.unit
        for key in keys:
            if unit in fields_in(key):
                raise PolicyViolation(
                    f"a group of one {outer.catalog.policy.dataset.privacy_unit} may not be shown",
                    hint="Leave the unit out of GROUP BY; COUNT(DISTINCT …) counts units.",
                    position=outer.at(group),
                )
            if key.type in _NOT_KEYS:
                raise PolicyViolation(
                    f"a value of type {key.type.value} cannot be a group key",
                    hint="Group by a rounded or truncated value, as in FLOOR(x)::int or DATE_TRUNC('month', x).",
                    position=outer.at(group),
                )
        for call in calls:
            self._check_call(call, unit)

    def _check_call(self, call: AggregateCall, unit: Field) -> None:
        outer = self.select.outer
        where = outer.at(self.select.node)
        if call.function in ("min", "max"):
            raise UnsupportedQuery(
                f"{call.function.upper()} of protected rows is not supported",
                hint="Use AVG, or counts by ranges of the value.",
                position=where,
            )
        if call.distinct and call.function != "count":
            raise UnsupportedQuery(
                f"{call.function.upper()}(DISTINCT …) of protected rows is not supported", position=where
            )
        is_unit = call.argument == Column(unit)
        parts = ([] if is_unit or call.argument is None else [call.argument]) + ([call.filter] if call.filter else [])
        for part in parts:
            self.select.refuse_hidden_unit(part, self.sources, self.select.node)
        if is_unit and not call.distinct:
            return
        if call.distinct and call.argument is not None and call.argument.type in _NOT_KEYS:
            raise DatatypeMismatch(
                f"values of type {call.argument.type.value} are not counted as distinct", position=where
            )

    def _protected_rows(self, outputs: list[Expr]) -> Lowered:
        """A subquery that only filters and projects stays protected: its unit travels along."""
        outer, node, status = self.select.outer, self.select.node, self.status
        if not isinstance(status, Protected):
            raise TypeError("protected rows expected")
        for clause in ("order", "limit", "offset"):
            if node.args.get(clause) is not None:
                raise UnsupportedQuery(
                    f"{clause.upper()} over rows of protected tables is not supported",
                    hint="Aggregate first, then order and limit the result.",
                    position=outer.at(node.args[clause]) or outer.at(node),
                )
        unit = outer.fields.new(status.unit.type)
        assigned: dict[Field, Expr] = {unit: Column(status.unit)}
        columns = []
        for item, expression in zip(self.items, outputs, strict=True):
            is_unit = expression == Column(status.unit)
            if not is_unit:
                self.select.refuse_hidden_unit(expression, self.sources, item.node)
            field = unit if is_unit else outer.fields.new(expression.type)
            assigned[field] = expression
            columns.append((item.name, field))
        projected = Project(status.relation, tuple(assigned), tuple(assigned.values()))
        return Lowered(replace(status, relation=projected, unit=unit), tuple(columns))

    def _finish(self, outputs: list[Expr], order: tuple[Order, ...], distinct: bool) -> Lowered:
        outer = self.select.outer
        fields = tuple(outer.fields.new(e.type) for e in outputs)
        limit, offset = outer.limits(self.select.node)
        hidden = tuple(dict.fromkeys(term.expression for term in order if term.expression not in outputs))
        if distinct and hidden:
            raise InvalidSyntax(
                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                position=outer.at(self.select.node.args["order"]),
            )
        hidden_fields = tuple(outer.fields.new(e.type) for e in hidden)
        relation: Relation = Project(self.status.relation, fields + hidden_fields, (*outputs, *hidden))
        if distinct:
            relation = Distinct(relation)
        if order or limit is not None or offset:
            by_expression = dict(zip((*hidden, *outputs), hidden_fields + fields, strict=True))
            terms = tuple(replace(term, expression=Column(by_expression[term.expression])) for term in order)
            relation = Sort(relation, fields, terms, limit, offset)
        names = tuple(item.name for item in self.items)
        return Lowered(replace(self.status, relation=relation), tuple(zip(names, fields, strict=True)))


_NOT_KEYS = frozenset({SqlType.REAL, SqlType.DOUBLE, SqlType.INTERVAL, SqlType.JSON, SqlType.BYTEA, SqlType.ARRAY})
