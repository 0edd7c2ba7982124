"""queries: PostgreSQL's queries into DuckDB's, with the names and types of their columns.

Rule: inside, every entry of FROM and every column of a subquery has a name of its own, so that DuckDB's rules for
names decide nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from dpsql.catalog import syntax
from dpsql.catalog.calls import order_key
from dpsql.catalog.expressions import Expressions
from dpsql.catalog.functions import RELATION_FUNCTIONS
from dpsql.catalog.literals import quote
from dpsql.catalog.operations import shown_kind
from dpsql.catalog.relations import INT8, OID, TEXT, UNKNOWN, Kind, Relation, kind_of, named, system_relations
from dpsql.catalog.rowsets import rowset, session_rows
from dpsql.catalog.scope import Binding, NameScope, Out, Rendered
from dpsql.catalog.typed import Typed, coerced, common_kind, quote_name, settled
from dpsql.catalog.views import VIEWS, view_query
from dpsql.errors import (
    GroupingError,
    InvalidSyntax,
    LimitExceeded,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
)

_SEARCHED: Final = ("pg_catalog",)
_MOST_COLUMNS: Final = 1664
"""As PostgreSQL has it."""
_NONE, _WEAK, _STRONG = range(3)
"""How strongly an expression suggests a name."""


def system_relation(parts: Sequence[str]) -> Relation | None:
    """The relation of PostgreSQL's own that a name means; without a schema it is one of pg_catalog."""
    if len(parts) > 3:
        return None
    schema = parts[-2] if len(parts) > 1 else _SEARCHED[0]  # the database before it can only be the one there is
    return system_relations().get((schema, parts[-1]))


class Queries(Expressions):
    """Translates queries, and what stands in them."""

    def query(self, query: syntax.ParsedQuery, outer: NameScope | None) -> Rendered:
        """Translate a query; its columns of unknown type are text."""
        return self._typed(self._query(query, outer))

    def _typed(self, rendered: Rendered, kinds: Sequence[Kind] | None = None) -> Rendered:
        """The query with columns of these types, or with texts for the unknown ones."""
        wanted = kinds or [TEXT if column.kind == UNKNOWN else column.kind for column in rendered.columns]
        if all(column.kind == kind for column, kind in zip(rendered.columns, wanted, strict=True)):
            return rendered
        columns, items = [], []
        for column, kind in zip(rendered.columns, wanted, strict=True):
            source = Typed(column.sql, TEXT if column.kind == UNKNOWN else column.kind)
            items.append(f"{coerced(self.statement, source, kind).sql} AS {column.sql}")
            columns.append(replace(column, kind=kind))
        return Rendered(f"SELECT {', '.join(items)} FROM ({rendered.sql})", tuple(columns))

    def _query(self, query: syntax.ParsedQuery, outer: NameScope | None) -> Rendered:
        scope = NameScope(outer)
        ctes = [self._cte(cte, query.recursive, scope) for cte in query.ctes]
        body = query.body
        if isinstance(body, syntax.Select):
            rendered = self._select(body, scope, query.order)
        else:
            rendered = self._ordered(self._body(body, scope), query.order)
        sql = rendered.sql + self._limits(query, scope)
        if ctes:
            sql = f"WITH {'RECURSIVE ' if query.recursive else ''}{', '.join(ctes)} {sql}"
        return Rendered(sql, rendered.columns)

    def _limits(self, query: syntax.ParsedQuery, scope: NameScope) -> str:
        shown = ""
        for word, node in (("LIMIT", query.limit), ("OFFSET", query.offset)):
            if node is not None and not (isinstance(node, syntax.Constant) and node.kind == "null"):
                shown += f" {word} {coerced(self.statement, self.expr(node, NameScope(scope.outer)), INT8).sql}"
        return shown

    def _cte(self, cte: syntax.Cte, recursive: bool, scope: NameScope) -> str:
        name = self.statement.fresh("w")
        body = cte.query.body
        if recursive and isinstance(body, syntax.CombinedQuery) and body.word == "union" and not cte.query.ctes:
            rendered = self._recursive(cte, body, name, scope)
        else:
            rendered = self.query(cte.query, scope)
        columns = _renamed(rendered.columns, cte.columns)
        scope.ctes[cte.name] = Rendered(name, columns)
        listed = ", ".join(column.sql for column in columns)
        return f"{name}({listed}) AS ({rendered.sql})"

    def _recursive(self, cte: syntax.Cte, body: syntax.CombinedQuery, name: str, scope: NameScope) -> Rendered:
        """A query that may refer to itself in its second half, whose types are those of the first."""
        first = self._typed(self._body(body.left, scope))
        columns = _renamed(first.columns, cte.columns)
        scope.ctes[cte.name] = Rendered(name, columns)
        second = self._body(body.right, scope)
        if len(second.columns) != len(first.columns):
            raise InvalidSyntax("each UNION query must have the same number of columns")
        second = self._typed(second, [column.kind for column in first.columns])
        return Rendered(f"({first.sql}) UNION {'ALL ' if body.all else ''}({second.sql})", first.columns)

    def _body(self, body: syntax.Body, scope: NameScope) -> Rendered:
        match body:
            case syntax.ParsedQuery():
                return self._query(body, scope)
            case syntax.Select():
                return self._select(body, NameScope(scope), ())
            case syntax.ValuesList():
                return self._values(body, scope)
            case syntax.CombinedQuery():
                return self._set_operation(body, scope)

    def _set_operation(self, body: syntax.CombinedQuery, scope: NameScope) -> Rendered:
        sides = [self._body(body.left, scope), self._body(body.right, scope)]
        word = body.word.upper()
        if len(sides[0].columns) != len(sides[1].columns):
            raise InvalidSyntax(f"each {word} query must have the same number of columns")
        kinds = [common_kind([a.kind, b.kind], word) for a, b in zip(sides[0].columns, sides[1].columns, strict=True)]
        left, right = (self._typed(side, kinds) for side in sides)
        # The columns get names of their own: those of the sides may stand for something outside.
        columns = tuple(replace(column, sql=self.statement.fresh("c")) for column in left.columns)
        listed = ", ".join(column.sql for column in columns)
        united = f"({left.sql}) {word} {'ALL ' if body.all else ''}({right.sql})"
        alias = self.statement.fresh("u")
        return Rendered(f"SELECT * FROM ({united}) AS {alias}({listed})", columns)

    def _values(self, body: syntax.ValuesList, scope: NameScope) -> Rendered:
        rows = [[self.expr(node, scope) for node in row] for row in body.rows]
        if len({len(row) for row in rows}) > 1:
            raise InvalidSyntax("VALUES lists must all be the same length")
        kinds = [
            UNKNOWN if all(cell.kind == UNKNOWN for cell in cells) else common_kind([c.kind for c in cells], "VALUES")
            for cells in zip(*rows, strict=True)
        ]
        shown = [
            "(" + ", ".join(self._cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)) + ")" for row in rows
        ]
        columns = tuple(Out(f"column{number}", kind, self.statement.fresh("c")) for number, kind in enumerate(kinds, 1))
        listed, alias = ", ".join(column.sql for column in columns), self.statement.fresh("v")
        return Rendered(f"SELECT * FROM (VALUES {', '.join(shown)}) AS {alias}({listed})", columns)

    def _cell(self, typed: Typed, kind: Kind) -> str:
        return coerced(self.statement, typed, TEXT if kind == UNKNOWN else kind).sql

    def _ordered(self, rendered: Rendered, order: Sequence[syntax.SortKey]) -> Rendered:
        """A set operation or VALUES in an order: by names or numbers of its columns."""
        keys = []
        for one in order:
            number = _position(one.expr, rendered.columns)
            if number is None:
                raise InvalidSyntax("invalid UNION/INTERSECT/EXCEPT ORDER BY clause", hint="ORDER BY 1")
            keys.append(order_key(str(number), one))
        return Rendered(rendered.sql + (f" ORDER BY {', '.join(keys)}" if keys else ""), rendered.columns)

    # SELECT

    def _select(self, select: syntax.Select, scope: NameScope, order: Sequence[syntax.SortKey]) -> Rendered:
        sources = [self._source(source, scope) for source in select.sources]
        where = "" if select.where is None else f" WHERE {self.condition(select.where, scope, 'WHERE')}"
        scope.windows = self._windows(select.windows, scope)
        outs = self._items(select, scope)
        columns = tuple(replace(out, sql=self.statement.fresh("c")) for out in outs)
        shown = [f"{out.sql} AS {column.sql}" for out, column in zip(outs, columns, strict=True)]
        group = self._group(select, outs, scope)
        having = "" if select.having is None else f" HAVING {self.condition(select.having, scope, 'HAVING')}"
        keys = [self._order_key(one, select, outs, scope) for one in order]
        distinct = self._distinct(select, outs, scope)
        # Without columns there are rows all the same; DuckDB needs something to show.
        sql = f"SELECT {distinct}{', '.join(shown) or 'NULL AS nothing'}"
        sql += (f" FROM {', '.join(sources)}" if sources else "") + where + group + having
        return Rendered(sql + (f" ORDER BY {', '.join(keys)}" if keys else ""), columns)

    def _windows(self, windows: Sequence[tuple[str, syntax.WindowDefinition]], scope: NameScope) -> Mapping[str, str]:
        return {name: self.window(window, scope) for name, window in windows}

    def _items(self, select: syntax.Select, scope: NameScope) -> Sequence[Out]:
        outs: list[Out] = []
        for item in select.items:
            outs += self._item(item, scope)
            if len(outs) > _MOST_COLUMNS:
                raise LimitExceeded(f"target lists can have at most {_MOST_COLUMNS} entries")
        return outs

    def _item(self, item: syntax.SelectItem, scope: NameScope) -> Sequence[Out]:
        if isinstance(item.expr, syntax.Star):
            return scope.star(item.expr)
        typed = self.expr(item.expr, scope)
        if typed.parameter is not None:
            typed = settled(self.statement, typed)
        return [Out(item.alias or _column_name(item.expr), typed.kind, typed.sql)]

    def _distinct(self, select: syntax.Select, outs: Sequence[Out], scope: NameScope) -> str:
        if select.distinct is None:
            return ""
        keys = dict.fromkeys(self._key(node, outs, scope) for node in select.distinct)
        return f"DISTINCT ON ({', '.join(keys)}) " if keys else "DISTINCT "

    def _group(self, select: syntax.Select, outs: Sequence[Out], scope: NameScope) -> str:
        if not select.group:
            return ""
        keys = dict.fromkeys(self._group_key_sql(node, outs, scope) for node in select.group)
        return f" GROUP BY {', '.join(keys)}"

    def _group_key_sql(self, node: syntax.Expr, outs: Sequence[Out], scope: NameScope) -> str:
        """A key of GROUP BY: a column of FROM before one of the list."""
        if isinstance(node, syntax.Name) and len(node.parts) == 1:
            try:
                return scope.find(node).sql
            except UndefinedColumn:
                pass
        return self._key(node, outs, scope)

    def _key(self, node: syntax.Expr, outs: Sequence[Out], scope: NameScope) -> str:
        number = _position(node, outs)
        if number is not None:
            return outs[number - 1].sql
        return settled(self.statement, self.expr(node, scope)).sql

    def _order_key(self, order: syntax.SortKey, select: syntax.Select, outs: Sequence[Out], scope: NameScope) -> str:
        number = _position(order.expr, outs)
        if number is not None:
            return order_key(str(number), order)
        sql = settled(self.statement, self.expr(order.expr, scope)).sql
        same = next((place for place, out in enumerate(outs, 1) if out.sql == sql), None)
        if same is None and select.distinct == ():
            raise GroupingError("for SELECT DISTINCT, ORDER BY expressions must appear in select list")
        return order_key(sql if same is None else str(same), order)

    # FROM

    def _source(self, source: syntax.Source, scope: NameScope) -> str:
        """An entry of FROM; its names are in the scope from here on."""
        match source:
            case syntax.TableSource():
                return self._table(source, scope)
            case syntax.QuerySource(query, alias, lateral):
                inner = scope if lateral else _beside(scope)
                return self._aliased(self.query(query, inner), alias, scope, "LATERAL " if lateral else "")
            case syntax.CallSource():
                return self._function(source, scope)
            case syntax.JoinSource():
                return self._join(source, scope)

    def _table(self, source: syntax.TableSource, scope: NameScope) -> str:
        cte = scope.cte(source.parts[0]) if len(source.parts) == 1 else None
        if cte is not None:
            name = source.alias.name or source.parts[0]
            return self._bound(cte.sql, cte.columns, replace(source.alias, name=name), scope)
        relation = system_relation(source.parts)
        if relation is None:
            raise UndefinedTable(f'relation "{".".join(source.parts)}" does not exist', position=source.at + 1)
        return self._system_table(relation, source, scope)

    def _system_table(self, relation: Relation, source: syntax.TableSource, scope: NameScope) -> str:
        columns = tuple(Out(one.name, one.kind, quote_name(one.name)) for one in relation.attributes)
        name = source.alias.name or relation.name
        sql = self._relation_sql(relation)
        shown = self._bound(sql, columns, replace(source.alias, name=name), scope)
        binding = scope.bindings[-1]
        names = binding.names if source.alias.name else (*binding.names, (relation.schema, relation.name))
        hidden = (
            Out("tableoid", OID, f"CAST({relation.oid} AS BIGINT)"),
            *(Out(column, named(kind), quote(value)) for column, kind, value in _SYSTEM_COLUMNS),
        )
        scope.bindings[-1] = replace(binding, names=names, hidden=hidden)
        return shown

    def _relation_sql(self, relation: Relation) -> str:
        """A table of the engine, a view over others, or rows of the session."""
        if relation.key in VIEWS:
            return self._view(relation)
        rows = session_rows(self.statement.visitor, relation.key)
        if rows is not None:
            return rowset(self.statement, relation, rows)
        stored = relation.schema == "pg_catalog" and relation.name in self.statement.snapshot.rows
        return quote_name(relation.key) if stored else rowset(self.statement, relation, ())

    def _view(self, relation: Relation) -> str:
        """A view's columns by name, with the types that they have in PostgreSQL; what it leaves out is NULL."""
        rendered = self.query(view_query(relation.key), None)
        by_name = {column.name: column for column in rendered.columns}
        items = []
        for attribute in relation.attributes:
            column = by_name.get(attribute.name)
            if column is None:
                sql = f"CAST(NULL AS {attribute.kind.storage})"
            else:
                sql = coerced(self.statement, Typed(column.sql, column.kind), attribute.kind).sql
            items.append(f"{sql} AS {quote_name(attribute.name)}")
        return f"(SELECT {', '.join(items)} FROM ({rendered.sql}))"

    def _aliased(self, rendered: Rendered, alias: syntax.Alias, scope: NameScope, before: str) -> str:
        return before + self._bound(f"({rendered.sql})", rendered.columns, alias, scope)

    def _bound(self, sql: str, columns: Sequence[Out], alias: syntax.Alias, scope: NameScope) -> str:
        """Give an entry of FROM its inner name, and note what its columns are called."""
        inner = self.statement.fresh("t")
        renamed = _renamed(columns, alias.columns)
        outs = tuple(replace(column, sql=f"{inner}.{column.sql}") for column in renamed)
        scope.bindings.append(Binding(((alias.name or inner,),), outs))
        return f"{sql} AS {inner}"

    def _function(self, source: syntax.CallSource, scope: NameScope) -> str:
        call = source.call
        name = source.alias.name or call.name
        alias = replace(source.alias, name=name)
        if call.name in RELATION_FUNCTIONS:
            relation = system_relations()["pg_catalog", RELATION_FUNCTIONS[call.name]]
            return self._system_table(relation, syntax.TableSource((relation.name,), alias, call.at), scope)
        if call.name == "pg_get_keywords":
            columns = [Out(field, kind, quote_name(field)) for field, kind in _KEYWORDS]
            return self._bound('"keywords"', columns, alias, scope)
        if call.name == "unnest" and len(call.args) > 1:
            return self._side_by_side(source, alias, scope)
        listed = self.listed(call, scope)
        value = self.statement.fresh("c")
        sql = f"SELECT unnest({listed.sql}) AS {value}"
        columns = [Out(name, listed.kind, value)]
        if source.ordinality:
            sql += f", unnest(range(1, len({listed.sql}) + 1)) AS ordinality"
        if listed.kind.fields:
            columns = [Out(field, kind, quote_name(field)) for field, kind in listed.kind.fields]
            parts = [
                f"struct_extract({value}, {quote(field)}) AS {quote_name(field)}" for field, _ in listed.kind.fields
            ]
            sql = f"SELECT {', '.join(parts)}{', ordinality' if source.ordinality else ''} FROM ({sql})"
        if source.ordinality:
            columns.append(Out("ordinality", INT8, "ordinality"))
        return self._bound(f"LATERAL ({sql})", columns, alias, scope)

    def _side_by_side(self, source: syntax.CallSource, alias: syntax.Alias, scope: NameScope) -> str:
        """Unnest of several arrays: row by row, NULL where one has ended."""
        arrays = [self.expr(arg, scope) for arg in source.call.args]
        for array in arrays:
            if not array.kind.is_array:
                raise UndefinedFunction(f"function unnest({shown_kind(array.kind)}) does not exist")
        columns = [Out("unnest", kind_of(one.kind.element), self.statement.fresh("c")) for one in arrays]
        items = [f"unnest({one.sql}) AS {column.sql}" for one, column in zip(arrays, columns, strict=True)]
        if source.ordinality:
            longest = ", ".join(f"len({one.sql})" for one in arrays)
            items.append(f"unnest(range(1, greatest({longest}) + 1)) AS ordinality")
            columns.append(Out("ordinality", INT8, "ordinality"))
        return self._bound(f"LATERAL (SELECT {', '.join(items)})", columns, alias, scope)

    # Joins

    def _join(self, source: syntax.JoinSource, scope: NameScope) -> str:
        before = len(scope.bindings)
        left = self._source(source.left, scope)
        middle = len(scope.bindings)
        right = self._source(source.right, scope)
        if source.kind == "cross":
            return f"({left} CROSS JOIN {right})"
        word = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}[source.kind]
        if source.on is not None:
            # A join's condition sees the two sides and what is around, not what stands beside it in FROM.
            seen = NameScope(scope.outer, scope.bindings[before:], list(scope.merged), scope.ctes)
            return f"({left} {word} {right} ON {self.condition(source.on, seen, 'JOIN/ON')})"
        names = source.using or self._shared(scope.bindings[before:middle], scope.bindings[middle:])
        pairs = [self._pair(name, scope.bindings[before:middle], scope.bindings[middle:]) for name in names]
        for name, (a, b) in zip(names, pairs, strict=True):
            merged = {"right": b.sql, "full": f"coalesce({a.sql}, {b.sql})"}.get(source.kind, a.sql)
            scope.merged.append(Out(name, a.kind, merged))
        on = " AND ".join(self._compare("=", Typed(a.sql, a.kind), Typed(b.sql, b.kind), 0).sql for a, b in pairs)
        return f"({left} {word} {right} ON {on or 'TRUE'})"

    def _shared(self, left: Sequence[Binding], right: Sequence[Binding]) -> tuple[str, ...]:
        there = {column.name for binding in right for column in binding.columns}
        names = [column.name for binding in left for column in binding.columns if column.name in there]
        return tuple(dict.fromkeys(names))

    def _pair(self, name: str, left: Sequence[Binding], right: Sequence[Binding]) -> tuple[Out, Out]:
        found = []
        for side, bindings in (("left", left), ("right", right)):
            column = next((c for binding in bindings for c in binding.columns if c.name == name), None)
            if column is None:
                raise UndefinedColumn(f'column "{name}" specified in USING clause does not exist in {side} table')
            found.append(column)
        return found[0], found[1]


_KEYWORDS: Final = (
    *(("word", TEXT), ("catcode", named("char")), ("barelabel", named("bool")), ("catdesc", TEXT), ("baredesc", TEXT)),
)
_SYSTEM_COLUMNS: Final = (
    ("ctid", "tid", "(0,1)"),
    *((column, "xid", "1") for column in ("xmin", "xmax")),
    *((column, "cid", "0") for column in ("cmin", "cmax")),
)
"""Columns that every table has and no * shows: nothing here has a place or an age."""


def _renamed(columns: Sequence[Out], names: Sequence[str]) -> tuple[Out, ...]:
    if len(names) > len(columns):
        raise InvalidSyntax(f"table has {len(columns)} columns available but {len(names)} columns specified")
    return tuple(
        replace(column, name=names[place]) if place < len(names) else column for place, column in enumerate(columns)
    )


def _beside(scope: NameScope) -> NameScope:
    """What a query in FROM sees: WITH and what is around, not what stands beside it."""
    return NameScope(scope.outer, [], [], scope.ctes)


def _position(node: syntax.Expr, columns: Sequence[Out]) -> int | None:
    """The number of the column of the list that a key names, by number or by name; None where it does not."""
    if isinstance(node, syntax.Constant) and node.kind == "integer":
        if not 1 <= int(node.text) <= len(columns):
            raise InvalidSyntax(f"ORDER BY position {node.text} is not in select list")
        return int(node.text)
    if isinstance(node, syntax.Name) and len(node.parts) == 1:
        return next((place for place, out in enumerate(columns, 1) if out.name == node.parts[0]), None)
    return None


def _column_name(expr: syntax.Expr) -> str:
    """The name that PostgreSQL gives a column of this expression, where the query gives none."""
    return _figured(expr)[0] or "?column?"


def _figured(expr: syntax.Expr) -> tuple[str | None, int]:
    """A name, and how strongly the expression suggests it."""
    match expr:
        case syntax.Name(parts):
            return parts[-1], _STRONG
        case syntax.FieldExpr(_, name):
            return name, _STRONG
        case syntax.CallExpr():
            return expr.name, _STRONG
        case syntax.Subscript(inner) | syntax.Collate(inner):
            return _figured(inner)
        case syntax.CastExpr(inner, to):
            figured = _figured(inner)
            return figured if figured[1] == _STRONG else (to.parts[-1], _WEAK)
        case syntax.CaseExpr(_, _, default):
            figured = (None, _NONE) if default is None else _figured(default)
            return figured if figured[1] == _STRONG else ("case", _WEAK)
        case syntax.ExistsExpr():
            return "exists", _STRONG
        case syntax.ArrayOf() | syntax.ArrayRows():
            return "array", _STRONG
        case syntax.Row():
            return "row", _STRONG
        case syntax.ScalarExpr(query):
            return _query_name(query)
        case _:
            return None, _NONE


def _query_name(query: syntax.ParsedQuery) -> tuple[str | None, int]:
    """The name of a subquery's one column: that of its first SELECT."""
    body = query.body
    while isinstance(body, syntax.ParsedQuery | syntax.CombinedQuery):
        body = body.body if isinstance(body, syntax.ParsedQuery) else body.left
    if not isinstance(body, syntax.Select) or not body.items:
        return "column1", _STRONG
    item = body.items[0]
    return (item.alias, _STRONG) if item.alias is not None else _figured(item.expr)
