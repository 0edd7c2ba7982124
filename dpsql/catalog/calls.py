"""calls: calls of functions and aggregates, and windows.

Rule: a function that has no entry does not exist, as PostgreSQL says it; the name of a type is called as a cast to it.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

from dpsql.catalog import syntax
from dpsql.catalog.functions import (
    CatalogFunction,
    aggregates,
    argument_kinds,
    chosen,
    empty_functions,
    functions,
    result_kind,
    window_functions,
)
from dpsql.catalog.literals import null, quote
from dpsql.catalog.operations import HINT, Operations, shown_kind
from dpsql.catalog.relations import (
    BOOL,
    INT4,
    INT8,
    OID,
    OID_TYPES,
    TEXT,
    Kind,
    kind_of,
    named,
    record,
    value_kind,
)
from dpsql.catalog.scope import NameScope
from dpsql.catalog.typed import (
    TranslationContext,
    Typed,
    as_text,
    coerced,
    common_kind,
    element_texts,
    path,
    settled,
)
from dpsql.errors import (
    InvalidParameter,
    UndefinedFunction,
    UndefinedObject,
    UnsupportedQuery,
)

_MOST_GROUPS = 9
"""Groups of a regular expression that regexp_matches gives."""


class Calls(Operations, ABC):
    """Translates calls; expressions inside them are translated by a class below."""

    def __init__(self, statement: TranslationContext) -> None:
        super().__init__(statement)
        self._special = {
            "pg_typeof": self._typeof,
            "json_build_object": self._json_object,
            "jsonb_build_object": self._json_object,
            "to_json": self._to_json,
            "to_jsonb": self._to_json,
            "row_to_json": self._row_to_json,
        }

    @abstractmethod
    def expr(self, node: syntax.Expr, scope: NameScope) -> Typed:
        """Translate an expression; its type is UNKNOWN where its place decides."""

    @abstractmethod
    def condition(self, node: syntax.Expr, scope: NameScope, place: str) -> str:
        """The SQL of a condition.

        Raises:
            DatatypeMismatch: It is none.
        """

    def _call(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        name = node.name
        if name in ("coalesce", "greatest", "least"):
            return self._first_of(name, [self.expr(arg, scope) for arg in node.args])
        if name == "nullif" and len(node.args) == 2:
            left, right = (self.expr(arg, scope) for arg in node.args)
            a, b = self._alike(left, right, "=", node.at)
            result = settled(self.statement, left)
            return Typed(f"(CASE WHEN ({a.sql} = {b.sql}) THEN NULL ELSE {result.sql} END)", result.kind)
        if name == "set_config":
            return self._set_config(node, scope)
        if name in ("json_agg", "jsonb_agg") and len(node.args) == 1:
            return self._json_array(node, scope)
        if node.star or name in aggregates() or name in window_functions():
            return self._aggregate(node, scope)
        if node.distinct or node.order or node.filter is not None or node.over is not None:
            raise UndefinedFunction(f"{name} is not an aggregate function", position=node.at + 1)
        if name in self._special:
            return self._special[name](node, scope)
        if name in empty_functions():
            return self._unnested(self._nothing(node, scope))
        if name == "_pg_expandarray":
            return self._unnested(self._expanded(node, scope))
        known = functions().get(name, ())
        if not known and len(node.args) == 1 and (kind := value_kind(name)) is not None:
            return coerced(self.statement, self.expr(node.args[0], scope), kind)
        function, args = self._chosen(node, known, scope)
        return self._unnested(self._applied(function, args)) if function.is_set else self._applied(function, args)

    def _nothing(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        """A function that gives rows of a record, and here none."""
        count, kind = empty_functions()[node.name]
        args = [self.expr(arg, scope) for arg in node.args]
        if len(args) != count:
            shown = ", ".join(shown_kind(arg.kind) for arg in args)
            raise UndefinedFunction(
                f"function {'.'.join(node.parts)}({shown}) does not exist",
                hint=f"No function {HINT}",
                position=node.at + 1,
            )
        return Typed(f"CAST([] AS {kind.storage}[])", kind)

    def _unnested(self, listed: Typed) -> Typed:
        return Typed(f"unnest({listed.sql})", listed.kind)

    def _expanded(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        array = self.expr(node.args[0], scope)
        element = kind_of(array.kind.element)
        packed = f"lambda e, i: struct_pack(x := CAST(e AS {element.storage}), n := CAST(i AS INTEGER))"
        return Typed(f"list_transform({array.sql}, {packed})", record(("x", element), ("n", INT4)))

    def listed(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        """What a function in FROM gives, as a list of rows; its type is that of one row."""
        if node.name in empty_functions():
            return self._nothing(node, scope)
        if node.name == "_pg_expandarray":
            return self._expanded(node, scope)
        candidates = functions().get(node.name, ())
        if not candidates or node.name in self._special:
            plain = self.expr(node, scope)
            return Typed(f"[{plain.sql}]", plain.kind)
        function, args = self._chosen(node, candidates, scope)
        applied = self._applied(function, args)
        return applied if function.is_set else Typed(f"[{applied.sql}]", applied.kind)

    def _applied(self, function: CatalogFunction, args: Sequence[Typed]) -> Typed:
        """A call; a list of the rows where the function gives several."""
        kind = result_kind(function, [arg.kind for arg in args])
        suffix = "[]" if function.is_set else ""
        return Typed(f"CAST({self._filled(function, args)} AS {kind.storage}{suffix})", kind)

    def _first_of(self, name: str, args: Sequence[Typed]) -> Typed:
        kind = common_kind([arg.kind for arg in args], name.upper())
        return Typed(f"{name}({', '.join(coerced(self.statement, arg, kind).sql for arg in args)})", kind)

    def _chosen(
        self, node: syntax.CallExpr, candidates: Sequence[CatalogFunction], scope: NameScope
    ) -> tuple[CatalogFunction, list[Typed]]:
        args = [self.expr(arg, scope) for arg in node.args]
        if node.name.startswith("pg_stat_get_") and not candidates:
            candidates = (CatalogFunction(node.name, ("any",), False, "int8", False, "NULL"),)
        kinds = [arg.kind for arg in args]
        function = chosen(candidates, kinds)
        if function is None:
            shown = ", ".join(shown_kind(kind) for kind in kinds)
            raise UndefinedFunction(
                f"function {'.'.join(node.parts)}({shown}) does not exist",
                hint=f"No function {HINT}",
                position=node.at + 1,
            )
        wanted = argument_kinds(function, kinds)
        return function, [self._argument(function, arg, kind) for arg, kind in zip(args, wanted, strict=True)]

    def _argument(self, function: CatalogFunction, arg: Typed, kind: Kind) -> Typed:
        if kind.name == "regclass" and arg.kind.name in ("int2", "int4", "int8"):
            kind = OID
        return coerced(self.statement, arg, kind)

    def _filled(self, function: CatalogFunction, args: Sequence[Typed]) -> str:
        """The template with its arguments and what the session says."""
        snapshot, visitor = self.statement.snapshot, self.statement.visitor
        named_schemas = visitor.named_schemas(snapshot)
        array = next((arg for arg in args if arg.kind.is_array), None)
        texts = [as_text(self.statement, arg) for arg in args] if function.args[-1:] == ("any",) else []
        first = args[0].sql if args else "NULL"
        words = {
            "path": path(self.statement),
            "version": quote(visitor.version),
            "database": quote(visitor.database),
            "user": quote(visitor.user),
            "role_oid": quote(str(visitor.role_oid)),
            "now": f"TIMESTAMP {quote(str(visitor.now.replace(tzinfo=None)))}",
            "schema": quote(named_schemas[0]) if named_schemas else "NULL",
            "schemas": f"[{', '.join(map(quote, visitor.path(snapshot)))}]",
            "named": f"CAST([{', '.join(map(quote, named_schemas))}] AS VARCHAR[])",
            "role": self._role(first),
            "vector": " - 1" if array is not None and array.kind.is_vector else "",
            "all": ", ".join(texts),
            "rest": ", ".join(texts[1:]),
        }
        if function.name == "regexp_matches":
            words["matches"] = _matches([arg.sql for arg in args])
        if array is not None:
            first_index, last_index = (0, "") if array.kind.is_vector else (1, " + 1")
            words["subscripts"] = f"range({first_index}, len({array.sql}){last_index})"
            words["texts"] = element_texts(self.statement, array)
        if function.name == "current_setting":
            words["setting"] = self._setting(args)
        return function.sql.format(*(arg.sql for arg in args), **words)

    def _role(self, oid: str) -> str:
        cases = " ".join(f"WHEN {known} THEN {quote(name)}" for known, name in self.statement.visitor.roles.items())
        return f"CASE {oid} {cases} ELSE 'unknown (OID=' || {oid} || ')' END"

    def _setting(self, args: Sequence[Typed]) -> str:
        settings = self.statement.visitor.settings
        cases = " ".join(f"WHEN {quote(name.lower())} THEN {quote(value)}" for name, value in settings.items())
        missing = "NULL" if len(args) > 1 else f"catalog_no_setting({args[0].sql})"
        return f"CASE lower({args[0].sql}) {cases} ELSE {missing} END"

    def _set_config(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        if len(node.args) != 3:
            raise UndefinedFunction("function set_config does not exist", position=node.at + 1)
        if any(_of_row(arg) for arg in node.args):
            return Typed(f"catalog_no_change({self.text(self.expr(node.args[0], scope))})", TEXT)
        name, value, local = (
            self._plain_value(arg, kind) for arg, kind in zip(node.args, (TEXT, TEXT, BOOL), strict=True)
        )
        if self.statement.values is None:
            return Typed(null(TEXT), TEXT)
        if name is None:
            raise InvalidParameter("SET requires parameter name")
        now = self.statement.visitor.change(
            str(name), "" if value is None else str(value), local in (True, "t", "true")
        )
        return Typed(quote(now), TEXT)

    def _plain_value(self, node: syntax.Expr, kind: Kind) -> object:
        """The value of a constant or placeholder: set_config acts before the query runs, once."""
        while isinstance(node, syntax.CastExpr):
            node = node.expr
        match node:
            case syntax.Constant("null"):
                return None
            case syntax.Constant("bool", text):
                return text == "true"
            case syntax.Constant(_, text):
                return text
            case syntax.Parameter(index):
                self.statement.check_given(node)
                self.statement.declare(index, kind) if index in self.statement.parameters else (
                    self.statement.parameters.setdefault(index, kind)
                )
                values = self.statement.values
                return values[index] if values is not None else None
            case _:
                raise UnsupportedQuery("set_config takes constants", hint="SELECT set_config('work_mem', '8MB', false)")

    def _typeof(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        kind = self.expr(node.args[0], scope).kind
        return Typed(f"CAST({kind.oid} AS BIGINT)", named("regtype"))

    def _json_object(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        args = [settled(self.statement, self.expr(arg, scope)) for arg in node.args]
        parts = [
            f"CAST({as_text(self.statement, arg)} AS VARCHAR)"
            if number % 2 == 0
            else f"CAST(to_json({arg.sql}) AS VARCHAR)"
            for number, arg in enumerate(args)
        ]
        return Typed(f"catalog_json_object([{', '.join(parts)}])", named(node.name.removesuffix("_build_object")))

    def _to_json(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        arg = settled(self.statement, self.expr(node.args[0], scope))
        return Typed(self._json_text(arg), named(node.name.removeprefix("to_")))

    def _row_to_json(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        """The columns of an entry of FROM, which the one argument names."""
        columns = (
            scope.entry(node.args[0].parts) if len(node.args) == 1 and isinstance(node.args[0], syntax.Name) else None
        )
        if columns is None:
            shown = ", ".join(shown_kind(self.expr(arg, scope).kind) for arg in node.args)
            raise UndefinedFunction(
                f"function row_to_json({shown}) does not exist",
                hint="Name an entry of FROM: SELECT row_to_json(t) FROM (SELECT 1 AS one) AS t",
                position=node.at + 1,
            )
        parts = []
        for before, column in zip(("{", *[","] * len(columns)), columns, strict=False):
            key = json.dumps(column.name, ensure_ascii=False)
            parts += [quote(f"{before}{key}:"), self._json_text(Typed(column.sql, column.kind))]
        return Typed(f"catalog_join([{', '.join([*parts, quote('}')])}], '', NULL)", named("json"))

    def _json_text(self, arg: Typed) -> str:
        """A value as JSON; one that is JSON stays what it is."""
        if arg.kind.name in ("json", "jsonb"):
            return f"coalesce({arg.sql}, 'null')"
        value = as_text(self.statement, arg) if arg.kind.name in OID_TYPES else arg.sql  # an OID is no number there
        return f"coalesce(catalog_text(CAST(to_json({value}) AS VARCHAR)), 'null')"

    def _json_array(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        text = self._json_text(settled(self.statement, self.expr(node.args[0], scope)))
        distinct = "DISTINCT " if node.distinct else ""
        listed = f"string_agg({distinct}{text}, ', '{self.order_by(node.order, scope)}){self._behind(node, scope)}"
        return Typed(f"('[' || {listed} || ']')", named(node.name.removesuffix("_agg")))

    def _aggregate(self, node: syntax.CallExpr, scope: NameScope) -> Typed:
        if node.star:
            if node.name != "count":
                raise UndefinedFunction(f"{node.name}(*) does not exist", position=node.at + 1)
            return Typed("count(*)" + self._behind(node, scope), INT8)
        if node.name == "count" and not node.distinct and len(node.args) == 1 and isinstance(node.args[0], syntax.Star):
            return self._count_rows(node, node.args[0], scope)
        known = (*aggregates().get(node.name, ()), *window_functions().get(node.name, ()))
        function, args = self._chosen(node, known, scope)
        order = self.order_by(node.order, scope)
        inside = ", ".join(arg.sql for arg in args)
        call = function.sql.partition("(")
        body = f"{call[0]}({'DISTINCT ' if node.distinct else ''}{inside}{order})"
        if call[0] == "CAST":
            inner = function.sql[5 : function.sql.rindex(" AS ")].partition("(")[0]
            plain = f"{inner}({'DISTINCT ' if node.distinct else ''}{inside}{order}){self._behind(node, scope)}"
            kind = result_kind(function, [arg.kind for arg in args])
            return Typed(f"CAST({plain} AS {kind.storage})", kind)
        return Typed(body + self._behind(node, scope), result_kind(function, [arg.kind for arg in args]))

    def _count_rows(self, node: syntax.CallExpr, star: syntax.Star, scope: NameScope) -> Typed:
        """How many rows of an entry of FROM there are, those aside that an outer join has made of NULLs."""
        there = " OR ".join(f"{column.sql} IS NOT NULL" for column in scope.star(star))
        return Typed(f"count(CASE WHEN {there} THEN 1 END)" + self._behind(node, scope), INT8)

    def _behind(self, node: syntax.CallExpr, scope: NameScope) -> str:
        shown = ""
        if node.filter is not None:
            shown = f" FILTER (WHERE {self.condition(node.filter, scope, 'FILTER')})"
        if node.over is not None:
            shown += f" OVER ({self.window(node.over, scope)})"
        return shown

    def window(self, window: syntax.WindowDefinition, scope: NameScope) -> str:
        """What stands in a window's parentheses."""
        if window.base is not None:
            if window.base not in scope.windows:
                raise UndefinedObject(f'window "{window.base}" does not exist')
            return scope.windows[window.base]
        partition = ", ".join(settled(self.statement, self.expr(one, scope)).sql for one in window.partition)
        frame = f" {window.frame}" if window.frame else ""
        return (f"PARTITION BY {partition}" if partition else "") + self.order_by(window.order, scope) + frame

    def order_by(self, order: Sequence[syntax.SortKey], scope: NameScope) -> str:
        """ORDER BY over the columns of FROM; nothing for no keys."""
        keys = [order_key(settled(self.statement, self.expr(one.expr, scope)).sql, one) for one in order]
        return f" ORDER BY {', '.join(keys)}" if keys else ""


def order_key(sql: str, order: syntax.SortKey) -> str:
    """One key of ORDER BY in DuckDB's SQL."""
    direction = "DESC" if order.descending else "ASC"
    return f"{sql} {direction} NULLS {'FIRST' if order.nulls_first else 'LAST'}"


def _of_row(node: syntax.Expr) -> bool:
    """Whether an argument is a column's value."""
    while isinstance(node, syntax.CastExpr):
        node = node.expr
    return isinstance(node, syntax.Name)


def _matches(args: Sequence[str]) -> str:
    """What regexp_matches finds: a list of the groups of each match, or of the match where the pattern has no group.

    DuckDB wants a constant as the number of a group, and refuses one that the pattern lacks: empty groups stand behind.
    """
    text, pattern, *flags = args
    searched = " || ".join(["'(?s)'", *(f"CASE WHEN contains({flag}, 'i') THEN '(?i)' ELSE '' END" for flag in flags)])
    searched = f"{searched} || {pattern}"
    bare = f"regexp_replace(regexp_replace({pattern}, '\\\\.', '', 'g'), '\\[[^]]*\\]', '', 'g')"
    groups = f"len(regexp_extract_all({bare}, '\\(([^?]|$)'))"
    found = f"regexp_extract_all(catalog_text({text}), {searched})"
    each = ", ".join(
        f"regexp_extract_all({text}, {searched} || '{'()' * _MOST_GROUPS}', {group})[i]"
        for group in range(1, _MOST_GROUPS + 1)
    )
    return (
        f"(CASE WHEN {groups} = 0 THEN list_transform({found}, lambda m: [m]) "
        f"ELSE list_transform(range(1, len({found}) + 1), lambda i: ([{each}])[:{groups}]) END)"
    )
