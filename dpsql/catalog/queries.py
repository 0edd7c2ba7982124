"""queries: translates PostgreSQL's queries into DuckDB's, with the names and types of their columns.

Rule: in the translation, every entry of FROM and every column of a subquery has a unique name, so that DuckDB's name
resolution does not matter.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from dpsql.catalog.calls import order_key
from dpsql.catalog.casts import Typed
from dpsql.catalog.expressions import Expressions, type_parts
from dpsql.catalog.functions import RELATION_FUNCTIONS
from dpsql.catalog.kinds import INT8, OID, TEXT, UNKNOWN, Kind, common_kind, kind_of, named
from dpsql.catalog.literals import null, quote, quote_name
from dpsql.catalog.reading import AROUND, CatalogCall, call_of, name_of, parts_of, place, refusal
from dpsql.catalog.relations import PG_CATALOG, Relation, keyword_kinds, system_relations, view_query
from dpsql.catalog.rowsets import rowset, session_rows
from dpsql.catalog.scope import Binding, NameScope, Out, Rendered
from dpsql.errors import (
    GroupingError,
    InvalidSyntax,
    LimitExceeded,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
)

_MOST_COLUMNS: Final = 1664
"""As PostgreSQL has it."""
_SIDES: Final = {"": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}
_NONE, _WEAK, _STRONG = range(3)
"""How strongly an expression suggests a name."""
_SYSTEM_COLUMNS: Final = (
    Out("ctid", named("tid"), "'(0,1)'"),
    *(Out(column, named("xid"), "'1'") for column in ("xmin", "xmax")),
    *(Out(column, named("cid"), "'0'") for column in ("cmin", "cmax")),
)
"""System columns, which * does not show; rows of the catalog have no location and no age."""


def system_relation(parts: Sequence[str]) -> Relation | None:
    """The relation of PostgreSQL's own that a name means; without a schema it is one of pg_catalog."""
    if len(parts) > 3:
        return None
    # A database before the schema must be the current one.
    return system_relations().get((parts[-2] if len(parts) > 1 else PG_CATALOG, parts[-1]))


class Queries(Expressions):
    """Translates queries and their parts."""

    def query(self, node: exp.Expr, outer: NameScope | None) -> Rendered:
        """Translate a query; its columns of unknown type are text."""
        return self._typed(self._query(node, outer))

    def _typed(self, rendered: Rendered, kinds: Sequence[Kind] | None = None) -> Rendered:
        """The query with columns of these types, or with texts for the unknown ones."""
        wanted = kinds or [TEXT if column.kind == UNKNOWN else column.kind for column in rendered.columns]
        pairs = list(zip(rendered.columns, wanted, strict=True))
        if all(column.kind == kind for column, kind in pairs):
            return rendered
        items = [f"{self._column_as(column, kind)} AS {column.sql}" for column, kind in pairs]
        columns = tuple(replace(column, kind=kind) for column, kind in pairs)
        return Rendered(f"SELECT {', '.join(items)} FROM ({rendered.sql})", columns)

    def _column_as(self, column: Out, kind: Kind) -> str:
        return self.coerced(Typed(column.sql, TEXT if column.kind == UNKNOWN else column.kind), kind).sql

    def _query(self, node: exp.Expr, outer: NameScope | None) -> Rendered:
        scope = NameScope(outer)
        with_, order, limit, offset = (node.args.get(name) for name in AROUND)
        recursive = with_ is not None and bool(with_.args.get("recursive"))
        ctes = [] if with_ is None else [self._cte(one, recursive, scope) for one in with_.expressions]
        keys = () if order is None else order.expressions
        if isinstance(node, exp.Select):
            rendered = self._select(node, scope, keys)
        else:
            rendered = self._ordered(self._body(node, scope), keys)
        sql = rendered.sql + self._limit("LIMIT", limit, scope) + self._limit("OFFSET", offset, scope)
        before = f"WITH {'RECURSIVE ' if recursive else ''}{', '.join(ctes)} " if ctes else ""
        return Rendered(before + sql, rendered.columns)

    def _body(self, node: exp.Expr, scope: NameScope) -> Rendered:
        match node:
            case exp.Subquery():
                return self._query(node.this, scope)
            case exp.Values():
                return self._values(node, scope)
            case exp.SetOperation():
                return self._set_operation(node, scope)
        raise refusal(node)

    def _limit(self, word: str, node: exp.Expr | None, scope: NameScope) -> str:
        if isinstance(node, exp.Fetch):
            if node.args.get("limit_options") is not None and not node.args["limit_options"].args.get("rows"):
                raise refusal(node)
            count = node.args.get("count") or exp.Literal.number(1)
        else:
            count = node and node.expression
        if count is None or isinstance(count, exp.Var | exp.Null):  # LIMIT ALL
            return ""
        return f" {word} {self.coerced(self.expr(count, NameScope(scope.outer)), INT8).sql}"

    def _cte(self, node: exp.Expr, recursive: bool, scope: NameScope) -> str:
        name, alias, query = self.statement.fresh("w"), node.args["alias"], node.this
        renamed = list(map(name_of, alias.args.get("columns") or ()))
        if recursive and isinstance(query, exp.Union) and not any(query.args.get(part) for part in AROUND):
            # It may refer to itself in its second half, whose types are those of the first.
            first = self._typed(self._query(query.this, scope))
            scope.ctes[name_of(alias.this)] = Rendered(name, _renamed(first.columns, renamed))
            second = self._query(query.expression, scope)
            _check_width(first, second, "UNION")
            second = self._typed(second, [column.kind for column in first.columns])
            rendered = Rendered(f"({first.sql}) {_operator(query)} ({second.sql})", first.columns)
        else:
            rendered = self.query(query, scope)
        columns = _renamed(rendered.columns, renamed)
        scope.ctes[name_of(alias.this)] = Rendered(name, columns)
        return f"{name}({', '.join(column.sql for column in columns)}) AS ({rendered.sql})"

    def _set_operation(self, node: exp.SetOperation, scope: NameScope) -> Rendered:
        left, right = self._query(node.this, scope), self._query(node.expression, scope)
        word = type(node).__name__.upper()
        _check_width(left, right, word)
        kinds = [common_kind([a.kind, b.kind], word) for a, b in zip(left.columns, right.columns, strict=True)]
        left, right = self._typed(left, kinds), self._typed(right, kinds)
        # The columns get new names: those of the sides may also be names of an outer query.
        columns = tuple(replace(column, sql=self.statement.fresh("c")) for column in left.columns)
        return self._listed(f"({left.sql}) {_operator(node)} ({right.sql})", columns)

    def _listed(self, sql: str, columns: tuple[Out, ...]) -> Rendered:
        """All of a query whose columns get these names."""
        named_columns = ", ".join(column.sql for column in columns)
        return Rendered(f"SELECT * FROM ({sql}) AS {self.statement.fresh('u')}({named_columns})", columns)

    def _values(self, node: exp.Values, scope: NameScope) -> Rendered:
        rows = [self._exprs(row.expressions, scope) for row in node.expressions]
        if len({len(row) for row in rows}) > 1:
            raise InvalidSyntax("VALUES lists must all be the same length")
        cells = [[cell.kind for cell in column] for column in zip(*rows, strict=True)]
        kinds = [UNKNOWN if set(column) == {UNKNOWN} else common_kind(column, "VALUES") for column in cells]
        wanted = [TEXT if kind == UNKNOWN else kind for kind in kinds]
        shown = (", ".join(self.coerced(*pair).sql for pair in zip(row, wanted, strict=True)) for row in rows)
        columns = tuple(Out(f"column{number}", kind, self.statement.fresh("c")) for number, kind in enumerate(kinds, 1))
        return self._listed("VALUES " + ", ".join(f"({row})" for row in shown), columns)

    def _ordered(self, rendered: Rendered, order: Sequence[exp.Expr]) -> Rendered:
        """A set operation or VALUES in an order: by names or numbers of its columns."""
        keys = []
        for one in order:
            number = _position(one.this, rendered.columns)
            if number is None:
                raise InvalidSyntax("invalid UNION/INTERSECT/EXCEPT ORDER BY clause", hint="ORDER BY 1")
            keys.append(order_key(str(number), one))
        return Rendered(rendered.sql + (f" ORDER BY {', '.join(keys)}" if keys else ""), rendered.columns)

    # SELECT

    def _select(self, node: exp.Select, scope: NameScope, order: Sequence[exp.Expr]) -> Rendered:
        source, where, having = (node.args.get(name) for name in ("from_", "where", "having"))
        sources = [] if source is None else self._sources(source.this, node.args.get("joins") or (), scope)
        rest = f" FROM {', '.join(sources)}" if sources else ""
        rest += "" if where is None else f" WHERE {self.condition(where.this, scope, 'WHERE')}"
        scope.windows = {name_of(one.this): self.window(one, scope) for one in node.args.get("windows") or ()}
        outs = self._items(node, scope)
        columns = tuple(replace(out, sql=self.statement.fresh("c")) for out in outs)
        shown = [f"{out.sql} AS {column.sql}" for out, column in zip(outs, columns, strict=True)]
        rest += self._group(node, outs, scope)
        rest += "" if having is None else f" HAVING {self.condition(having.this, scope, 'HAVING')}"
        keys = [self._order_key(one, node, outs, scope) for one in order]
        rest += f" ORDER BY {', '.join(keys)}" if keys else ""
        # Without columns there are rows all the same; DuckDB needs something to show.
        shown = shown or ["NULL AS nothing"]
        return Rendered(f"SELECT {self._distinct(node, outs, scope)}{', '.join(shown)}{rest}", columns)

    def _items(self, node: exp.Select, scope: NameScope) -> list[Out]:
        outs: list[Out] = []
        for item in node.expressions:
            outs += self._item(item, scope)
            if len(outs) > _MOST_COLUMNS:
                raise LimitExceeded(f"target lists can have at most {_MOST_COLUMNS} entries")
        return outs

    def _item(self, node: exp.Expr, scope: NameScope) -> Sequence[Out]:
        value = node.this if isinstance(node, exp.Alias) else node
        if isinstance(value, exp.Star) or (isinstance(value, exp.Column) and isinstance(value.this, exp.Star)):
            return scope.star(value)
        typed = self.expr(value, scope)
        if typed.parameter is not None:
            typed = self.settled(typed)
        name = name_of(node.args["alias"]) if isinstance(node, exp.Alias) else _figured(value)[0] or "?column?"
        return [Out(name, typed.kind, typed.sql)]

    def _distinct(self, node: exp.Select, outs: Sequence[Out], scope: NameScope) -> str:
        distinct = node.args.get("distinct")
        if distinct is None:
            return ""
        on = distinct.args.get("on")
        keys = dict.fromkeys(self._key(one, outs, scope) for one in (on.expressions if on else ()))
        return f"DISTINCT ON ({', '.join(keys)}) " if keys else "DISTINCT "

    def _group(self, node: exp.Select, outs: Sequence[Out], scope: NameScope) -> str:
        group = node.args.get("group")
        keys = dict.fromkeys(self._group_key(one, outs, scope) for one in (group.expressions if group else ()))
        return f" GROUP BY {', '.join(keys)}" if keys else ""

    def _group_key(self, node: exp.Expr, outs: Sequence[Out], scope: NameScope) -> str:
        """A key of GROUP BY: a column of FROM before one of the list."""
        if isinstance(node, exp.Column) and len(node.parts) == 1:
            try:
                return scope.find(node).sql
            except UndefinedColumn:
                pass
        return self._key(node, outs, scope)

    def _key(self, node: exp.Expr, outs: Sequence[Out], scope: NameScope) -> str:
        number = _position(node, outs)
        return outs[number - 1].sql if number is not None else self.settled(self.expr(node, scope)).sql

    def _order_key(self, order: exp.Expr, node: exp.Select, outs: Sequence[Out], scope: NameScope) -> str:
        number = _position(order.this, outs)
        if number is not None:
            return order_key(str(number), order)
        sql = self.settled(self.expr(order.this, scope)).sql
        same = next((str(number) for number, out in enumerate(outs, 1) if out.sql == sql), None)
        distinct = node.args.get("distinct")
        if same is None and distinct is not None and not distinct.args.get("on"):
            raise GroupingError("for SELECT DISTINCT, ORDER BY expressions must appear in select list")
        return order_key(same or sql, order)

    # FROM

    def _sources(self, first: exp.Expr, joins: Sequence[exp.Expr], scope: NameScope) -> list[str]:
        """The entries of FROM that commas part; their names are in the scope from here on."""
        begun = len(scope.bindings)
        found = [self._source(first, scope)]
        for join in joins:
            if any(join.args.get(name) for name in ("method", "side", "kind", "on", "using")):
                found[-1] = self._join(found[-1], begun, join, scope)
            else:
                begun = len(scope.bindings)
                found.append(self._source(join.this, scope))
        return found

    def _source(self, node: exp.Expr, scope: NameScope) -> str:
        """An entry of FROM with the joins that it begins."""
        begun = len(scope.bindings)
        sql = self._plain_source(node, scope)
        for join in node.args.get("joins") or ():
            sql = self._join(sql, begun, join, scope)
        return sql

    def _plain_source(self, node: exp.Expr, scope: NameScope) -> str:
        lateral = isinstance(node, exp.Lateral)
        inner, alias = node.this if lateral else node, _Alias(node.args.get("alias"))
        match inner:
            case exp.Subquery() if isinstance(inner.this, exp.Table | exp.Subquery) and _is_bare(node):
                return self._source(inner.this, scope)
            case exp.Subquery() | exp.Values():
                # It sees CTEs and outer queries; it sees other entries of FROM only if it is LATERAL.
                rendered = self.query(inner, scope if lateral else NameScope(scope.outer, ctes=scope.ctes))
                sql = f"{'LATERAL ' if lateral else ''}({rendered.sql})"
                return self._bound(sql, rendered.columns, alias, scope)
            case exp.Table() if isinstance(inner.this, exp.Identifier):
                return self._table(inner, alias, scope)
        call = call_of(inner)
        if call is None:
            raise refusal(node)
        return self._function(inner, call, bool(node.args.get("ordinality")), alias, scope)

    def _table(self, node: exp.Table, alias: "_Alias", scope: NameScope) -> str:
        parts = parts_of(node)
        cte = scope.cte(parts[0]) if len(parts) == 1 else None
        if cte is not None:
            return self._bound(cte.sql, cte.columns, alias.called(parts[0]), scope)
        relation = system_relation(parts)
        if relation is None:
            raise UndefinedTable(f'relation "{".".join(parts)}" does not exist', position=place(node))
        return self._system_table(relation, alias, scope)

    def _system_table(self, relation: Relation, alias: "_Alias", scope: NameScope) -> str:
        columns = tuple(Out(one.name, one.kind, quote_name(one.name)) for one in relation.attributes)
        shown = self._bound(self._relation_sql(relation), columns, alias.called(relation.name), scope)
        binding = scope.bindings[-1]
        names = binding.names if alias.name else (*binding.names, (relation.schema, relation.name))
        hidden = (Out("tableoid", OID, f"CAST({relation.oid} AS BIGINT)"), *_SYSTEM_COLUMNS)
        scope.bindings[-1] = replace(binding, names=names, hidden=hidden)
        return shown

    def _relation_sql(self, relation: Relation) -> str:
        """A table of the engine, a view over others, or rows of the session."""
        view = view_query(relation.key)
        if view is not None:
            return self._view(relation, view)
        rows = session_rows(self.session, relation.key)
        if rows is None and relation.schema == PG_CATALOG and relation.name in self.session.snapshot.rows:
            return quote_name(relation.key)
        return rowset(self.statement, relation, rows or ())

    def _view(self, relation: Relation, view: exp.Expr) -> str:
        """A view's columns by name, with PostgreSQL's types; missing columns are NULL."""
        rendered = self.query(view, None)
        by_name = {column.name: column for column in rendered.columns}
        items = []
        for one in relation.attributes:
            column = by_name.get(one.name)
            sql = null(one.kind) if column is None else self._column_as(column, one.kind)
            items.append(f"{sql} AS {quote_name(one.name)}")
        return f"(SELECT {', '.join(items)} FROM ({rendered.sql}))"

    def _bound(self, sql: str, columns: Sequence[Out], alias: "_Alias", scope: NameScope) -> str:
        """Give an entry of FROM an inner name, and note the names of its columns."""
        inner = self.statement.fresh("t")
        outs = tuple(replace(column, sql=f"{inner}.{column.sql}") for column in _renamed(columns, alias.columns))
        scope.bindings.append(Binding(((alias.name or inner,),), outs))
        return f"{sql} AS {inner}"

    def _function(self, node: exp.Expr, call: CatalogCall, ordinality: bool, alias: "_Alias", scope: NameScope) -> str:
        alias = alias.called(call.name)
        if call.name in RELATION_FUNCTIONS:
            return self._system_table(system_relations()[PG_CATALOG, RELATION_FUNCTIONS[call.name]], alias, scope)
        if call.name == "pg_get_keywords":
            keywords = [Out(name, kind, quote_name(name)) for name, kind in keyword_kinds().items()]
            return self._bound('"keywords"', keywords, alias, scope)
        if call.name == "unnest" and len(call.args) > 1:
            lists = self._exprs(call.args, scope)
            for one in lists:
                if not one.kind.is_array:
                    raise UndefinedFunction(f"function unnest({one.kind.shown}) does not exist")
            kinds = [("unnest", kind_of(one.kind.element)) for one in lists]
        else:
            lists = [self.listed(node, scope)]
            kinds = [(alias.name or call.name, lists[0].kind)]
        return self._unnested([one.sql for one in lists], kinds, ordinality, alias, scope)

    def _unnested(
        self,
        lists: Sequence[str],
        kinds: Sequence[tuple[str, Kind]],
        ordinality: bool,
        alias: "_Alias",
        scope: NameScope,
    ) -> str:
        """Lists row by row, NULL where one has ended."""
        columns = [Out(name, kind, self.statement.fresh("c")) for name, kind in kinds]
        items = [f"unnest({one}) AS {column.sql}" for one, column in zip(lists, columns, strict=True)]
        if ordinality:
            longest = ", ".join(f"len({one})" for one in lists)
            items.append(f"unnest(range(1, greatest({longest}) + 1)) AS ordinality")
        sql = f"SELECT {', '.join(items)}"
        fields = columns[0].kind.fields
        if fields:
            parts = [f"struct_extract({columns[0].sql}, {quote(name)}) AS {quote_name(name)}" for name, _ in fields]
            sql = f"SELECT {', '.join(parts)}{', ordinality' if ordinality else ''} FROM ({sql})"
            columns = [Out(name, kind, quote_name(name)) for name, kind in fields]
        if ordinality:
            columns.append(Out("ordinality", INT8, "ordinality"))
        return self._bound(f"LATERAL ({sql})", columns, alias, scope)

    # Joins

    def _join(self, left: str, begun: int, node: exp.Expr, scope: NameScope) -> str:
        """Return a join with the entries before it, from `begun` on."""
        method, side, kind = (str(node.args.get(name) or "").lower() for name in ("method", "side", "kind"))
        on, using = node.args.get("on"), node.args.get("using") or ()
        is_known = method in ("", "natural") and kind in ("", "inner", "outer", "cross") and side in _SIDES
        if not is_known or not (method or kind == "cross" or on or using):
            raise refusal(node)
        middle = len(scope.bindings)
        right = self._source(node.this, scope)
        if kind == "cross":
            return f"({left} CROSS JOIN {right})"
        sides = scope.bindings[begun:middle], scope.bindings[middle:]
        if on is not None:
            # A join's condition sees its two sides and outer queries, but not other entries of FROM.
            seen = NameScope(scope.outer, scope.bindings[begun:], list(scope.merged), scope.ctes)
            condition = self.condition(on, seen, "JOIN/ON")
            if side == "left" and len(sides[1]) == 1 and on.find(exp.Select) and not right.startswith("LATERAL"):
                # Older versions of DuckDB do not allow a subquery in the condition of an outer join.
                name = right.rpartition(" ")[2]
                return f"({left} LEFT JOIN LATERAL (SELECT * FROM {right} WHERE {condition}) AS {name} ON TRUE)"
        else:
            names = list(map(name_of, using)) or _shared(*sides)
            condition = " AND ".join([self._merged(name, side, sides, node, scope) for name in names]) or "TRUE"
        return f"({left} {_SIDES[side]} {right} ON {condition})"

    def _merged(
        self, name: str, side: str, sides: tuple[Sequence[Binding], Sequence[Binding]], node: exp.Expr, scope: NameScope
    ) -> str:
        """The condition that a column of both sides is equal; it is one column from here on."""
        a, b = (_column_of(name, where, bindings) for where, bindings in zip(("left", "right"), sides, strict=True))
        merged = {"right": b.sql, "full": f"coalesce({a.sql}, {b.sql})"}.get(side, a.sql)
        scope.merged.append(Out(name, a.kind, merged))
        return self._compare("=", Typed(a.sql, a.kind), Typed(b.sql, b.kind), node).sql


class _Alias:
    """AS name (columns)."""

    def __init__(self, node: exp.Expr | None, name: str | None = None) -> None:
        given = None if node is None else node.this
        self._node = node
        self.name = name if given is None else name_of(given)
        self.columns = [] if node is None else list(map(name_of, node.args.get("columns") or ()))

    def called(self, name: str) -> "_Alias":
        """The alias with a name, if it has none."""
        return _Alias(self._node, name)


def _is_bare(node: exp.Expr) -> bool:
    """True for parentheses around an entry of FROM and its joins, which have no name and no clauses."""
    return isinstance(node, exp.Subquery) and not any(node.args.get(part) for part in ("alias", *AROUND))


def _operator(node: exp.SetOperation) -> str:
    return f"{type(node).__name__.upper()}{'' if node.args.get('distinct') else ' ALL'}"


def _check_width(left: Rendered, right: Rendered, word: str) -> None:
    if len(left.columns) != len(right.columns):
        raise InvalidSyntax(f"each {word} query must have the same number of columns")


def _shared(left: Sequence[Binding], right: Sequence[Binding]) -> list[str]:
    there = {column.name for binding in right for column in binding.columns}
    return list(dict.fromkeys(one.name for binding in left for one in binding.columns if one.name in there))


def _column_of(name: str, side: str, bindings: Sequence[Binding]) -> Out:
    column = next((one for binding in bindings for one in binding.columns if one.name == name), None)
    if column is None:
        raise UndefinedColumn(f'column "{name}" specified in USING clause does not exist in {side} table')
    return column


def _renamed(columns: Sequence[Out], names: Sequence[str]) -> tuple[Out, ...]:
    if len(names) > len(columns):
        raise InvalidSyntax(f"table has {len(columns)} columns available but {len(names)} columns specified")
    renamed = (replace(column, name=name) for column, name in zip(columns, names, strict=False))
    return (*renamed, *columns[len(names) :])


def _position(node: exp.Expr, columns: Sequence[Out]) -> int | None:
    """Return the number of the output column that a key gives, by number or name; None if it is another expression."""
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal():
        number = int(node.name.lstrip("0")[:9] or "0")
        if not 1 <= number <= len(columns):
            raise InvalidSyntax(f"ORDER BY position {node.name} is not in select list")
        return number
    if isinstance(node, exp.Column) and len(node.parts) == 1 and isinstance(node.this, exp.Identifier):
        name = name_of(node.this)
        return next((place for place, out in enumerate(columns, 1) if out.name == name), None)
    return None


def _figured(node: exp.Expr) -> tuple[str | None, int]:
    """The name that PostgreSQL gives a column of this expression, and how strongly the expression suggests it."""
    call = call_of(node)
    if call is not None:
        return call.name, _STRONG
    match node:
        case exp.Column():
            return name_of(node.this), _STRONG
        case exp.Dot():
            return name_of(node.expression), _STRONG
        case exp.Bracket() | exp.Collate():
            return _figured(node.this)
        case exp.Cast():
            figured = _figured(node.this)
            return figured if figured[1] == _STRONG else (type_parts(node.args["to"])[-1], _WEAK)
        case exp.Case():
            default = node.args.get("default")
            figured = (None, _NONE) if default is None else _figured(default)
            return figured if figured[1] == _STRONG else ("case", _WEAK)
        case exp.Exists() | exp.Array() | exp.Tuple():
            return {exp.Exists: "exists", exp.Array: "array", exp.Tuple: "row"}[type(node)], _STRONG
        case exp.Subquery():
            return _query_name(node)
        case _:
            return None, _NONE


def _query_name(node: exp.Expr) -> tuple[str | None, int]:
    """The name of a subquery's one column: that of its first SELECT."""
    while isinstance(node, exp.Subquery | exp.SetOperation):
        node = node.this
    if not isinstance(node, exp.Select) or not node.expressions:
        return "column1", _STRONG
    item = node.expressions[0]
    return (name_of(item.args["alias"]), _STRONG) if isinstance(item, exp.Alias) else _figured(item)
