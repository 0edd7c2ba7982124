"""lower: a query's syntax tree into relations, each with its privacy status.

Rule 1: every clause of a node is handled or refused by name; none is dropped.
Rule 2: rows of a protected relation never reach the output.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sqlglot import exp

from dpsql.compiler.ir.nodes import (
    Aggregate,
    Column,
    Expr,
    Field,
    Join,
    Literal,
    Project,
    Protected,
    Public,
    Relation,
    Release,
    Released,
    SetOperation,
    Sort,
    UnitScan,
    Values,
)
from dpsql.compiler.ir.walk import expressions, inputs, nodes, relations_in
from dpsql.compiler.relations.clauses import Clauses, select_list
from dpsql.compiler.relations.empty_results import has_no_rows, no_rows_of, without_rows
from dpsql.compiler.relations.filtering import Filtering
from dpsql.compiler.relations.from_clause import From, renamed
from dpsql.compiler.relations.joins import refuse_too_much_work, refuse_unlisted
from dpsql.compiler.relations.recursion import names_itself, recursive
from dpsql.compiler.relations.select import SelectOutput
from dpsql.compiler.relations.series import is_series, listed_in_rows, moved_to_from, series, unnested
from dpsql.compiler.relations.unions import combined
from dpsql.compiler.relations.unit_rows import group_of_one
from dpsql.compiler.scope.coercion import Coercion, common_type
from dpsql.compiler.scope.lowering import Constants, Fields, Lowered, moved, refuse_other_arguments
from dpsql.compiler.scope.preview import invented, unlimited
from dpsql.compiler.scope.resolve import Scope, close_names, identifier, quoted
from dpsql.compiler.scope.tables import Catalog, Tables
from dpsql.compiler.sql.literals import Parameters
from dpsql.compiler.sql.parse import position
from dpsql.compiler.sql.rewriting import counted, grouped, replaced
from dpsql.errors import Error, InvalidSyntax, PolicyViolation, UndefinedTable, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_RELATIONS = 256
"""Subqueries and tables as written: each query of WITH counts once."""
MAX_EXPANDED = 1_024
"""Subqueries and tables where each name of WITH is replaced by its query, as engines see them."""
MAX_JOINS = 64
"""Joins of one engine query, or of one side of a UNION: engines take more time for each than for all before it."""
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
    lowerer = QueryLowerer(Clauses(catalog, Coercion(parameters), constants, Fields(), offset, sql, _no_subquery))
    if catalog.policy.dataset.preview == "synthetic" and (shown := _preview(lowerer, tree)) is not None:
        return shown, lowerer.clauses.fields
    try:
        lowered = replace(lowerer, relations=0, expanded=0).query(tree, {})
    except UnsupportedQuery:
        columns = _columns_alone(replace(lowerer, relations=0, expanded=0), tree)
        if columns is None:
            raise
        return columns, lowerer.clauses.fields
    _check_size(lowered, tree, lowerer.clauses)
    if isinstance(lowered.status, Protected):
        if not has_no_rows(lowered.relation):
            raise _rows_refused(lowerer.clauses, lowered, tree)
        lowered = without_rows(lowered)
    return lowered, lowerer.clauses.fields


def _preview(lowerer: "QueryLowerer", tree: exp.Expr) -> Lowered | None:
    """Return invented rows in place of those of a protected table; None if the query is no preview."""
    rows = unlimited(tree)
    if rows is None:
        return None
    try:
        lowered = lowerer.query(rows, {})
    except Error:
        return None  # lowering the query itself reports the error
    protected = isinstance(lowered.status, Protected) and not has_no_rows(lowered.relation)
    made = invented(lowered) if protected else None
    return None if made is None else lowerer.ordered(made, tree)


def _columns_alone(lowerer: "QueryLowerer", tree: exp.Expr) -> Lowered | None:
    """Return the columns of `SELECT columns FROM table LIMIT n`, which clients use to view tables; else None."""
    rows = unlimited(tree) if tree.args.get("limit") is not None and tree.args.get("order") is None else None
    if rows is None:
        return None
    try:
        lowered = lowerer.query(rows, {})
    except Error:
        return None  # lowering the query itself reports the error
    found = list(nodes(lowered.relation))
    named = all(isinstance(e, Column) for node in found if isinstance(node, Project) for e in node.expressions)
    if not (isinstance(lowered.status, Protected) and named and all(isinstance(n, UnitScan | Project) for n in found)):
        return None
    return replace(without_rows(lowered), withheld=True)


def _rows_refused(clauses: Clauses, lowered: Lowered, node: exp.Expr) -> PolicyViolation:
    unit, at = clauses.catalog.policy.dataset.privacy_unit, clauses.at(node)
    name, is_grouped = _origin(lowered.relation)
    if is_grouped:
        return group_of_one(clauses, at, node)
    return PolicyViolation(
        "rows of protected tables are not shown",
        detail=f'Each row of "{name}" belongs to one {unit}.',
        hint="Aggregate them.",
        queries=(*grouped(node), *counted(node)) if isinstance(node, exp.Select) else (),
        position=at,
    )


def _origin(relation: Relation) -> tuple[str, bool]:
    """The first protected table that rows come from, and whether they are groups."""
    if isinstance(relation, UnitScan):
        return relation.table.name, False
    below = [part for expression in expressions(relation) for part in relations_in(expression)]
    found = [_origin(part) for part in inputs(relation) if part not in below]
    name = next((name for name, _ in found if name), "")
    return name, isinstance(relation, Aggregate) or any(is_grouped for _, is_grouped in found)


@dataclass
class QueryLowerer:
    """Lowers the queries, subqueries and CTEs of one statement."""

    clauses: Clauses
    relations: int = 0
    expanded: int = 0
    _sizes: dict[tuple[tuple[str, Field], ...], int] = field(default_factory=dict)

    def query(self, node: exp.Expr, ctes: Mapping[str, Lowered], outer: Scope | None = None) -> Lowered:
        """Lower SELECT, VALUES, a set operation, or one of these in parentheses.

        Args:
            node: The query.
            ctes: What WITH names, here and around.
            outer: The scope around a subquery, whose columns it may name.
        """
        self._count(node)
        ctes = self._with(node, ctes, outer)
        if isinstance(node, exp.Subquery):
            refuse_other_arguments(
                node, "this", "with_", "order", "limit", "offset", "alias", offset=self.clauses.offset
            )
            return self.ordered(self.query(node.this, ctes, outer), node)
        if isinstance(node, exp.SetOperation):
            return self.ordered(self._set_operation(node, ctes, outer), node)
        if isinstance(node, exp.Values):
            return self._values(node, outer)
        if isinstance(node, exp.Select):
            return self._select(node, ctes, outer)
        raise UnsupportedQuery(f"{node.key.upper()} is not a query", position=self.clauses.at(node))

    def _count(self, node: exp.Expr, written: int = 1, expanded: int = 1) -> None:
        """Count a subquery or table; a name of WITH is one as written, and expands to those of its query."""
        self.relations += written
        self.expanded += expanded
        if self.relations > MAX_RELATIONS:
            raise UnsupportedQuery(
                f"a query may have at most {MAX_RELATIONS} subqueries and tables", position=self.clauses.at(node)
            )
        if self.expanded > MAX_EXPANDED:
            raise UnsupportedQuery(
                f"a query may have at most {MAX_EXPANDED:,} subqueries and tables "
                "where each name of WITH is replaced by its query",
                position=self.clauses.at(node),
            )

    def _with(self, node: exp.Expr, ctes: Mapping[str, Lowered], outer: Scope | None) -> Mapping[str, Lowered]:
        with_ = node.args.get("with_")
        if with_ is None:
            return ctes
        refuse_other_arguments(with_, "expressions", "recursive", offset=self.clauses.offset)
        known = dict(ctes)
        for cte in with_.expressions:
            refuse_other_arguments(cte, "this", "alias", "materialized", offset=self.clauses.offset)
            name = identifier(cte.args["alias"].this)
            before = self.expanded
            if with_.args.get("recursive") and names_itself(cte):
                query = partial(self.query, outer=outer)
                known[name] = recursive(self.clauses, cte, known, query)
            else:
                known[name] = renamed(self.clauses, self.query(cte.this, known, outer), cte.args["alias"])
            self._sizes[known[name].columns] = self.expanded - before
        return known

    # FROM

    def _entry(self, node: exp.Expr, ctes: Mapping[str, Lowered], scope: Scope | None) -> Lowered:
        """Lower a table, a subquery or VALUES of FROM; a LATERAL one in the scope of those before it."""
        self._count(node)
        if isinstance(node, exp.Table):
            refuse_other_arguments(node, "this", "db", "catalog", "alias", "only", offset=self.clauses.offset)
            return self._named(node, ctes)
        if isinstance(node, exp.Unnest):
            return self._unnested(node, scope if scope is not None else Scope(()))
        if isinstance(node, exp.Values):
            return self._fresh(self.query(node, ctes, scope))
        if isinstance(node, exp.Subquery):
            refuse_other_arguments(node, "this", "alias", offset=self.clauses.offset)
            return self._fresh(self.query(node.this, ctes, scope))
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
            refuse_other_arguments(node, "this", "alias", offset=self.clauses.offset)
            return self._fresh(self.query(node.this.this, ctes, scope))
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Unnest):
            refuse_other_arguments(node, "this", "alias", offset=self.clauses.offset)
            return self._unnested(node.this, scope if scope is not None else Scope(()))
        if isinstance(node, exp.Lateral):
            at = self.clauses.at(node)
            raise UnsupportedQuery(
                "LATERAL must be followed by a subquery or UNNEST",
                hint="Use LATERAL (SELECT …) or LATERAL UNNEST (array).",
                position=at,
            )
        raise UnsupportedQuery(f"{node.key.upper()} is not supported in FROM", position=self.clauses.at(node))

    def _unnested(self, node: exp.Unnest, scope: Scope) -> Lowered:
        found, at = unnested(self.clauses, node, scope), self.clauses.at(node)
        if isinstance(found, list):
            read = (item for column in found for item in column)
        else:
            read = (part for each in nodes(found) for part in expressions(each))
        for part in read:
            refuse_unlisted(part, scope, at)
        if isinstance(found, list):
            relation = self._listed([column or [Literal(None, SqlType.TEXT)] for column in found], at)
            found = relation if found[0] else no_rows_of(relation)
        place = node.args.get("offset")
        names = ["unnest"] * len(node.expressions)
        names += [identifier(place) if isinstance(place, exp.Identifier) else "ordinality"] if place else []
        return Lowered(Public(found), tuple(zip(names, found.fields, strict=True)))

    def _named(self, node: exp.Table, ctes: Mapping[str, Lowered]) -> Lowered:
        if is_series(node.this):
            return series(self.clauses, node.this)
        if not isinstance(node.this, exp.Identifier):
            raise UnsupportedQuery(
                "generate_series and UNNEST are the only set-returning functions allowed in FROM",
                hint="Select from a table, a subquery, VALUES or generate_series.",
                position=self.clauses.at(node),
                queries=replaced(node, "generate_series(1, 12) AS s(month)"),
            )
        name = identifier(node.this)
        database, schema = (
            identifier(node.args[part]) if node.args.get(part) is not None else None for part in ("catalog", "db")
        )
        own = self.clauses.catalog.policy.dataset.name
        if database not in (None, own):
            raise UnsupportedQuery(
                f'cross-database references are not implemented: "{database}.{schema}.{name}"',
                hint=f"This connection is to database {own}.",
                position=self.clauses.at(node),
            )
        if schema is None and name in ctes:
            self._count(node, 0, self._sizes.get(ctes[name].columns, 0))  # a recursive query reads its own rows
            return self._fresh(ctes[name])
        try:
            clauses = self.clauses
            tables = Tables(clauses.catalog, clauses.fields, clauses.constants.schemas)
            return tables.find(schema, name, clauses.at(node))
        except UndefinedTable as error:
            known = self.clauses.catalog.names()
            alias = f" AS {node.alias}" if node.alias else ""
            error.queries = tuple(
                query
                for close in close_names(name if schema is None else f"{schema}.{name}", known)
                for query in replaced(node, quoted(close) + alias)
            )
            raise

    def _fresh(self, lowered: Lowered) -> Lowered:
        """Return the same rows under new fields, so that a relation can appear in FROM twice."""
        relation, status = lowered.relation, lowered.status
        renewed = {field: self.clauses.fields.new(field.type) for field in relation.fields}
        projected = Project(relation, tuple(renewed.values()), tuple(Column(field) for field in renewed))
        columns = tuple((name, renewed[field]) for name, field in lowered.columns)
        if not isinstance(status, Protected):
            return Lowered(replace(status, relation=projected), columns)
        hidden = tuple((name, renewed[field]) for name, field in lowered.hidden)
        unlisted = frozenset(renewed[field] for field in lowered.unlisted)
        return Lowered(moved(status, projected, renewed), columns, hidden, unlisted)

    # SELECT

    def _select(self, node: exp.Select, ctes: Mapping[str, Lowered], outer: Scope | None) -> Lowered:
        """FROM, WHERE, then either rows or groups, then DISTINCT, ORDER BY and LIMIT."""
        refuse_other_arguments(
            node,
            *("expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset"),
            *("distinct", "with_", "windows"),
            offset=self.clauses.offset,
        )
        clauses = self._within(ctes)
        node = listed_in_rows(moved_to_from(clauses, node))
        from_, where = node.args.get("from_"), node.args.get("where")
        entry = partial(self._from_entry, ctes, outer)
        reader = From(clauses, entry, outer, where.this if where is not None else None)
        joined = reader.lower(from_.this if from_ is not None else None, node.args.get("joins") or ())
        scope = clauses.scope(joined.sources, outer, joined.status)
        status = joined.status
        if where is not None:
            condition = clauses.expressions(scope, "in WHERE").condition(where.this)
            status = Filtering(clauses, scope).where(status, condition, where)
        scope = clauses.scope(joined.sources, outer, status)
        items = select_list(clauses, node, scope)
        return SelectOutput(clauses, node, scope, status, items).lower()

    def _from_entry(
        self, ctes: Mapping[str, Lowered], outer: Scope | None, node: exp.Expr, scope: Scope | None
    ) -> Lowered:
        return self._entry(node, ctes, scope if scope is not None else outer)

    def _within(self, ctes: Mapping[str, Lowered]) -> Clauses:
        """The clauses of a query whose subqueries may name these CTEs."""

        def subquery(node: exp.Expr, scope: Scope) -> Lowered:
            self._count(node)
            lowered = self.query(node, ctes, scope)
            # At once: a comparison with ALL has its subquery several times, and one within another many times.
            _check_size(lowered, node, self.clauses)
            return lowered

        return replace(self.clauses, subquery=subquery)

    # VALUES and set operations

    def _values(self, node: exp.Values, outer: Scope | None) -> Lowered:
        refuse_other_arguments(node, "expressions", "alias", "with_", offset=self.clauses.offset)
        scope = self.clauses.scope((), outer)
        lowerer = self.clauses.expressions(scope, "in VALUES")
        rows = [
            [lowerer.lower(cell) for cell in (row.expressions if isinstance(row, exp.Tuple) else [row])]
            for row in node.expressions
        ]
        at = self.clauses.at(node)
        for cell in (cell for row in rows for cell in row):
            refuse_unlisted(cell, scope, at)
        if {len(row) for row in rows} == {0}:
            raise InvalidSyntax("VALUES lists must not be empty", position=self.clauses.at(node))
        if len({len(row) for row in rows}) != 1:
            raise InvalidSyntax("VALUES lists must all be the same length", position=self.clauses.at(node))
        relation = self._listed([self.clauses.coercion.unify(column, at) for column in zip(*rows, strict=True)], at)
        names = tuple((f"column{i}", field) for i, field in enumerate(relation.fields, 1))
        return Lowered(Public(relation), names)

    def _listed(self, columns: Sequence[Sequence[Expr]], at: int | None) -> Relation:
        """Rows of values that refer to nothing, by their columns."""
        rows = list(zip(*columns, strict=True))
        constants = [[cell for cell in row if isinstance(cell, Literal)] for row in rows]
        if [len(row) for row in rows] == [len(row) for row in constants]:
            fields = tuple(self.clauses.fields.new(column[0].type) for column in columns)
            return Values(fields, tuple(map(tuple, constants)))
        if len(rows) > MAX_COMPUTED_ROWS:
            raise UnsupportedQuery(
                f"there may be at most {MAX_COMPUTED_ROWS} rows of values that are not constants", position=at
            )
        parts = []
        for row in rows:
            fields = tuple(self.clauses.fields.new(cell.type) for cell in row)
            parts.append(Project(Values((), ((),)), fields, row))
        relation: Relation = parts[0]
        for part in parts[1:]:
            relation = SetOperation("union", True, relation, part, relation.fields)
        return relation

    def _set_operation(self, node: exp.SetOperation, ctes: Mapping[str, Lowered], outer: Scope | None) -> Lowered:
        refuse_other_arguments(
            node, "this", "expression", "distinct", "with_", "order", "limit", "offset", offset=self.clauses.offset
        )
        written = _arms(node)
        arms = [self.query(arm, ctes, outer) for arm in written]
        if len({isinstance(arm.status, Protected) for arm in arms}) > 1:
            people = next(place for place, arm in enumerate(arms) if isinstance(arm.status, Protected))
            raise _rows_refused(self.clauses, arms[people], written[people])
        while len(arms) > 1:  # in pairs, and pairs of pairs, so that a long chain does not nest
            pairs = list(zip(arms[::2], arms[1::2], strict=False))
            arms = [self._paired(node, left, right) for left, right in pairs] + arms[2 * len(pairs) :]
        return arms[0]

    def _paired(self, node: exp.SetOperation, left: Lowered, right: Lowered) -> Lowered:
        """Combine the two sides of a set operation; both are protected, or both are not."""
        kinds = {exp.Union: "union", exp.Intersect: "intersect", exp.Except: "except"}
        kind, keeps_all = kinds[type(node)], not node.args.get("distinct")
        if len(left.columns) != len(right.columns):
            raise InvalidSyntax(
                "each side of a set operation must have the same number of columns", position=self.clauses.at(node)
            )
        pairs = list(zip(left.columns, right.columns, strict=True))
        types = [self._common_type((left, a), (right, b), self.clauses.at(node)) for (_, a), (_, b) in pairs]
        arms = tuple(self._cast_to(side, types) for side in (left, right))
        names = tuple(name for name, _ in left.columns)
        if isinstance(left.status, Protected) and isinstance(right.status, Protected):
            return combined(self.clauses, node, (kind, keeps_all), (left, right), arms, names)
        fields = tuple(self.clauses.fields.new(type_) for type_ in types)
        relation = SetOperation(kind, keeps_all, arms[0], arms[1], fields)
        public = all(isinstance(side.status, Public) for side in (left, right))
        return Lowered(Public(relation) if public else Released(relation), tuple(zip(names, fields, strict=True)))

    def _common_type(self, left: tuple[Lowered, Field], right: tuple[Lowered, Field], at: int | None) -> SqlType:
        """The type that a column of both sides takes; one that is NULL throughout takes the other's."""
        known = [Column(field) for lowered, field in (left, right) if not _is_null(lowered.relation, field)]
        return common_type(known or [Column(left[1])], at)

    def _cast_to(self, lowered: Lowered, types: list[SqlType]) -> Project:
        """The columns in these types, and after them the unit where there is one."""
        columns = [field for _, field in lowered.columns]
        nulls = [_is_null(lowered.relation, field) for field in columns]
        expressions = tuple(
            Literal(None, t) if null else self._as(Column(f), t)
            for f, t, null in zip(columns, types, nulls, strict=True)
        )
        fields = tuple(self.clauses.fields.new(t) for t in types)
        if isinstance(lowered.status, Protected):
            fields += (self.clauses.fields.new(lowered.status.unit.type),)
            expressions += (Column(lowered.status.unit),)
        return Project(lowered.relation, fields, expressions)

    def _as(self, column: Column, target: SqlType) -> Expr:
        coercion = self.clauses.coercion
        return coercion.scaled(column) if target is SqlType.NUMERIC else coercion.to(column, target)

    def ordered(self, lowered: Lowered, node: exp.Expr) -> Lowered:
        """ORDER BY, LIMIT and OFFSET over a finished query: by output names and ordinals."""
        order = node.args.get("order")
        limit, offset = self.clauses.limits(node)
        if order is None and limit is None and offset == 0:
            return lowered
        if isinstance(lowered.status, Protected):
            if limit == 0 or has_no_rows(lowered.relation):
                return replace(lowered, status=replace(lowered.status, relation=no_rows_of(lowered.relation)))
            raise _rows_refused(self.clauses, lowered, node)
        lowerer = self.clauses.expressions(self.clauses.scope((lowered.source(""),), None), "in ORDER BY")
        terms = []
        for term in order.expressions if order is not None else ():
            inner = term.this if isinstance(term, exp.Ordered) else term
            ordinal = self.clauses.ordinal(inner, len(lowered.columns), "ORDER BY")
            terms.append(lowerer.order(term))
            if ordinal is not None:
                terms[-1] = replace(terms[-1], expression=Column(lowered.columns[ordinal][1]))
        fields = tuple(dict.fromkeys(field for _, field in lowered.columns))
        relation = Sort(lowered.relation, fields, tuple(terms), limit, offset)
        return replace(lowered, status=replace(lowered.status, relation=relation))


def _engine_queries(relation: Relation) -> Iterator[Relation]:
    """The relation itself, and the groups of each of its releases, which an engine query of its own reads."""
    yield relation
    for node in nodes(relation):
        if isinstance(node, Release):
            yield from _engine_queries(node.aggregate)


def _check_size(lowered: Lowered, node: exp.Expr, clauses: Clauses) -> None:
    if max(map(_joins, _engine_queries(lowered.relation))) > MAX_JOINS:
        raise UnsupportedQuery(
            f"a query may have at most {MAX_JOINS} joins and subqueries in expressions on each side of a UNION",
            position=clauses.at(node),
        )
    for relation in _engine_queries(lowered.relation):
        refuse_too_much_work(relation, clauses.at(node))


def _joins(relation: Relation) -> int:
    """The joins that an engine plans together: sides of UNION are planned apart, subqueries in expressions as joins."""
    below = map(_joins, inputs(relation))
    if isinstance(relation, SetOperation):
        return max(below)
    subqueries = sum(len(relations_in(expression)) for expression in expressions(relation))
    return sum(below) + subqueries + isinstance(relation, Join)


def _no_subquery(node: exp.Expr, _scope: Scope) -> Lowered:
    """What VALUES, LIMIT and the like make of a query inside them."""
    raise UnsupportedQuery("subqueries are not allowed here", position=position(node))


def _arms(node: exp.SetOperation) -> list[exp.Expr]:
    """The sides of a set operation: all those of a chain of UNION, or of UNION ALL, which go together in any order."""
    arms: list[exp.Expr] = [node.expression]
    left = node.this
    while _continues(node, left):
        arms.append(left.expression)
        left = left.this
    return [left, *reversed(arms)]


def _continues(node: exp.SetOperation, left: exp.Expr) -> bool:
    same = isinstance(node, exp.Union) and isinstance(left, exp.Union)
    own = any(left.args.get(part) for part in ("with_", "order", "limit", "offset"))
    return same and not own and bool(left.args.get("distinct")) == bool(node.args.get("distinct"))


def _is_null(relation: Relation, field: Field) -> bool:
    """True where a column is the constant NULL."""
    if not isinstance(relation, Project) or field not in relation.fields:
        return False
    written = relation.expressions[relation.fields.index(field)]
    return isinstance(written, Literal) and written.value is None
