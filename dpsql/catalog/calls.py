"""calls: calls of functions and aggregates, and windows.

Rule: a function without an entry does not exist, as in PostgreSQL; the name of a type can be called as a cast to it.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from dpsql.catalog.casts import TranslationContext, Typed
from dpsql.catalog.functions import (
    CatalogFunction,
    argument_kinds,
    chosen,
    functions,
    result_kind,
)
from dpsql.catalog.kinds import BOOL, INT8, INTEGERS, OID, OID_TYPES, TEXT, Kind, common_kind, named, value_kind
from dpsql.catalog.literals import null, quote
from dpsql.catalog.operations import HINT, Operations
from dpsql.catalog.reading import CatalogCall, call_of, name_of, parts_of, place, refusal
from dpsql.catalog.scope import NameScope
from dpsql.errors import (
    InvalidParameter,
    InvalidSyntax,
    UndefinedFunction,
    UndefinedObject,
    UndefinedParameter,
    UnsupportedQuery,
)
from dpsql.gateway.engine import VERSION_TEXT

_MOST_PARAMETERS: Final = 65_535
_MOST_GROUPS: Final = 9
"""Groups of a regular expression that regexp_matches gives."""


class Calls(Operations, ABC):
    """Translates calls; expressions inside them are translated by a class below."""

    def __init__(self, statement: TranslationContext) -> None:
        super().__init__(statement)
        methods = (
            *((self._first_of, None, name) for name in ("coalesce", "greatest", "least")),
            (self._nullif, 2, "nullif"),
            (self._set_config, 3, "set_config"),
            (self._typeof, 1, "pg_typeof"),
            *((self._json_array, 1, name) for name in ("json_agg", "jsonb_agg")),
            *((self._json_object, None, name) for name in ("json_build_object", "jsonb_build_object")),
            *((self._to_json, 1, name) for name in ("to_json", "to_jsonb")),
            (self._row_to_json, 1, "row_to_json"),
        )
        self._special = {name: (method, count) for method, count, name in methods}

    @abstractmethod
    def expr(self, node: exp.Expr, scope: NameScope) -> Typed:
        """Translate an expression; its type is UNKNOWN where its place decides."""

    @abstractmethod
    def condition(self, node: exp.Expr, scope: NameScope, place: str) -> str:
        """The SQL of a condition.

        Raises:
            DatatypeMismatch: It is none.
        """

    def _exprs(self, nodes: Sequence[exp.Expr], scope: NameScope) -> list[Typed]:
        return [self.expr(node, scope) for node in nodes]

    def _call(self, node: exp.Expr, scope: NameScope) -> Typed:
        call = call_of(node)
        if call is None:
            raise refusal(node)
        known = functions().get(call.name, ())
        if call.star or (known and known[0].manner in ("aggregate", "window")):
            return self._aggregate(call, known, scope)
        if not call.is_plain and call.name not in ("json_agg", "jsonb_agg"):
            raise UndefinedFunction(f"{call.name} is not an aggregate function", position=place(call.node))
        if call.name in self._special:
            method, count = self._special[call.name]
            if count not in (None, len(call.args)):
                raise self._no_function(call, self._exprs(call.args, scope))
            return method(call, scope)
        kind = value_kind(call.name)
        if not known and len(call.args) == 1 and kind is not None:
            return self.coerced(self.expr(call.args[0], scope), kind)
        applied, is_set = self._applied(call, scope)
        return Typed(f"unnest({applied.sql})", applied.kind) if is_set else applied

    def listed(self, node: exp.Expr, scope: NameScope) -> Typed:
        """The result of a function in FROM, as a list of rows; its type is that of one row."""
        call = call_of(node)
        known = () if call is None else functions().get(call.name, ())
        if call is not None and known and known[0].manner in (None, "setof"):
            applied, is_set = self._applied(call, scope)
        else:
            applied, is_set = self._call(node, scope), False
        return applied if is_set else Typed(f"[{applied.sql}]", applied.kind)

    def _applied(self, call: CatalogCall, scope: NameScope) -> tuple[Typed, bool]:
        """A call, and whether it is a list of rows."""
        function, args = self._chosen(call, functions().get(call.name, ()), scope)
        kind, is_set = result_kind(function, [arg.kind for arg in args]), function.manner == "setof"
        storage = f"{kind.storage}[]" if is_set else kind.storage
        return Typed(f"CAST({self._filled(function, args)} AS {storage})", kind), is_set

    def _no_function(self, call: CatalogCall, args: Sequence[Typed]) -> UndefinedFunction:
        shown = ", ".join(arg.kind.shown for arg in args)
        message = f"function {'.'.join(call.parts)}({shown}) does not exist"
        return UndefinedFunction(message, hint=f"No function {HINT}", position=place(call.node))

    def _chosen(
        self, call: CatalogCall, candidates: Sequence[CatalogFunction], scope: NameScope
    ) -> tuple[CatalogFunction, list[Typed]]:
        args = self._exprs(call.args, scope)
        if call.name.startswith("pg_stat_get_") and not candidates:
            candidates = (CatalogFunction(call.name, ("any",), "int8", "NULL"),)
        kinds = [arg.kind for arg in args]
        function = chosen(candidates, kinds)
        if function is None:
            raise self._no_function(call, args)
        wanted = argument_kinds(function, kinds)
        return function, [self._argument(arg, kind) for arg, kind in zip(args, wanted, strict=True)]

    def _argument(self, arg: Typed, kind: Kind) -> Typed:
        return self.coerced(arg, OID if kind.name == "regclass" and arg.kind.name in INTEGERS else kind)

    def _filled(self, function: CatalogFunction, args: Sequence[Typed]) -> str:
        """Return the template with its arguments and the session's values."""
        session = self.session
        sqls = [arg.sql for arg in args]
        words = {
            "path": quote(session.path_text),
            "version": quote(VERSION_TEXT),
            "database": quote(session.context.database),
            "user": quote(session.context.user),
            "role_oid": quote(str(session.role_oid)),
            "now": f"TIMESTAMP {quote(str(session.context.now.replace(tzinfo=None)))}",
            "schema": quote(session.named_schemas[0]) if session.named_schemas else "NULL",
            "schemas": _texts(session.path),
            "named": _texts(session.named_schemas),
        }
        if function.args[-1:] == ("any",):
            texts = list(map(self.as_text, args))
            words |= {"all": ", ".join(texts), "rest": ", ".join(texts[1:])}
        array = next((arg for arg in args if arg.kind.is_array), None)
        if array is not None:
            first, last, vector = (0, "", " - 1") if array.kind.is_vector else (1, " + 1", "")
            words |= {"vector": vector, "subscripts": f"range({first}, len({array.sql}){last})"}
            words["texts"] = self.element_texts(array)
        match function.name:
            case "regexp_matches":
                words["matches"] = _matches(sqls)
            case "current_setting":
                words["setting"] = self._setting(sqls)
            case "pg_get_userbyid":
                words["role"] = self._role(sqls[0])
        return function.sql.format(*sqls, **words)

    def _role(self, oid: str) -> str:
        cases = " ".join(f"WHEN {known} THEN {quote(name)}" for known, name in self.session.roles.items())
        return f"CASE {oid} {cases} ELSE 'unknown (OID=' || {oid} || ')' END"

    def _setting(self, args: Sequence[str]) -> str:
        settings = self.session.settings.items()
        cases = " ".join(f"WHEN {quote(name.lower())} THEN {quote(value)}" for name, value in settings)
        return f"CASE lower({args[0]}) {cases} ELSE {'NULL' if args[1:] else f'catalog_no_setting({args[0]})'} END"

    # Functions whose arguments or result follow rules of their own

    def _first_of(self, call: CatalogCall, scope: NameScope) -> Typed:
        args = self._exprs(call.args, scope)
        kind = common_kind([arg.kind for arg in args], call.name.upper())
        return Typed(f"{call.name}({', '.join(self.coerced(arg, kind).sql for arg in args)})", kind)

    def _nullif(self, call: CatalogCall, scope: NameScope) -> Typed:
        left, right = self._exprs(call.args, scope)
        a, b = self._alike(left, right, "=", call.node)
        result = self.settled(left)
        return Typed(f"(CASE WHEN ({a.sql} = {b.sql}) THEN NULL ELSE {result.sql} END)", result.kind)

    def _set_config(self, call: CatalogCall, scope: NameScope) -> Typed:
        if any(isinstance(_inside(arg), exp.Column) for arg in call.args):
            return Typed(f"catalog_no_change({self.text(self.expr(call.args[0], scope))})", TEXT)
        values = [self._plain_value(arg, kind) for arg, kind in zip(call.args, (TEXT, TEXT, BOOL), strict=True)]
        if self.statement.values is None:
            return Typed(null(TEXT), TEXT)
        name, value, local = values
        if name is None:
            raise InvalidParameter("SET requires parameter name")
        text = "" if value is None else str(value)
        return Typed(quote(self.session.context.change(str(name), text, local in (True, "t", "true"))), TEXT)

    def _plain_value(self, node: exp.Expr, kind: Kind) -> object:
        """The value of a constant or placeholder: set_config acts before the query runs, once."""
        node = _inside(node)
        match node:
            case exp.Null():
                return None
            case exp.Boolean():
                return bool(node.this)
            case exp.Literal():
                return node.name
            case exp.Parameter():
                index = self.index_of(node)
                self.statement.declare(index, kind)
                return None if self.statement.values is None else self.statement.values[index]
        raise UnsupportedQuery("set_config takes constants", hint="SELECT set_config('work_mem', '8MB', false)")

    def index_of(self, node: exp.Expr) -> int:
        """The number of a placeholder, from 0.

        Raises:
            InvalidSyntax: It is no number of a placeholder.
            UndefinedParameter: It has no value, and the statement is to be executed.
        """
        text, values = str(node.this.name), self.statement.values
        if not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_PARAMETERS:
            raise InvalidSyntax(f"there is no parameter ${text}", position=place(node))
        index = int(text) - 1
        if values is not None and index >= len(values):
            raise UndefinedParameter(f"there is no parameter ${index + 1}", position=place(node))
        return index

    def _typeof(self, call: CatalogCall, scope: NameScope) -> Typed:
        return Typed(f"CAST({self.expr(call.args[0], scope).kind.oid} AS BIGINT)", named("regtype"))

    def _json_object(self, call: CatalogCall, scope: NameScope) -> Typed:
        args = list(map(self.settled, self._exprs(call.args, scope)))
        parts = [
            f"CAST({self.as_text(arg) if number % 2 == 0 else f'to_json({arg.sql})'} AS VARCHAR)"
            for number, arg in enumerate(args)
        ]
        return Typed(f"catalog_json_object([{', '.join(parts)}])", named(call.name.removesuffix("_build_object")))

    def _to_json(self, call: CatalogCall, scope: NameScope) -> Typed:
        arg = self.settled(self.expr(call.args[0], scope))
        return Typed(self._json_text(arg), named(call.name.removeprefix("to_")))

    def _row_to_json(self, call: CatalogCall, scope: NameScope) -> Typed:
        """Return a row of FROM, which the argument names, as JSON."""
        columns = scope.entry(parts_of(call.args[0])) if isinstance(call.args[0], exp.Column) else None
        if columns is None:
            error = self._no_function(call, self._exprs(call.args, scope))
            error.hint = "Name an entry of FROM: SELECT row_to_json(t) FROM (SELECT 1 AS one) AS t"
            raise error
        parts = []
        for before, column in zip(("{", *[","] * len(columns)), columns, strict=False):
            key = json.dumps(column.name, ensure_ascii=False)
            parts += [quote(f"{before}{key}:"), self._json_text(Typed(column.sql, column.kind))]
        return Typed(f"catalog_join([{', '.join([*parts, quote('}')])}], '', NULL)", named("json"))

    def _json_text(self, arg: Typed) -> str:
        """A value as JSON text; JSON values are unchanged."""
        if arg.kind.name in ("json", "jsonb"):
            return f"coalesce({arg.sql}, 'null')"
        value = self.as_text(arg) if arg.kind.name in OID_TYPES else arg.sql  # an OID is no number there
        return f"coalesce(catalog_text(CAST(to_json({value}) AS VARCHAR)), 'null')"

    def _json_array(self, call: CatalogCall, scope: NameScope) -> Typed:
        text = self._json_text(self.settled(self.expr(call.args[0], scope)))
        inside = f"{'DISTINCT ' if call.distinct else ''}{text}, ', '{self.order_by(call.order, scope)}"
        listed = f"string_agg({inside}){self._behind(call, scope)}"
        return Typed(f"('[' || {listed} || ']')", named(call.name.removesuffix("_agg")))

    # Aggregates and windows

    def _aggregate(self, call: CatalogCall, known: Sequence[CatalogFunction], scope: NameScope) -> Typed:
        behind = self._behind(call, scope)
        if call.star:
            if call.name != "count":
                raise UndefinedFunction(f"{call.name}(*) does not exist", position=place(call.node))
            return Typed(f"count(*){behind}", INT8)
        lone = call.args[0] if len(call.args) == 1 and not call.distinct else None
        if call.name == "count" and isinstance(lone, exp.Column) and isinstance(lone.this, exp.Star):
            # The rows of an entry of FROM, without those that an outer join fills with NULLs.
            there = " OR ".join(f"{column.sql} IS NOT NULL" for column in scope.star(lone))
            return Typed(f"count(CASE WHEN {there} THEN 1 END){behind}", INT8)
        function, args = self._chosen(call, known, scope)
        inside = f"{'DISTINCT ' if call.distinct else ''}{', '.join(arg.sql for arg in args)}"
        kind = result_kind(function, [arg.kind for arg in args])
        called = f"{function.sql}({inside}{self.order_by(call.order, scope)}){behind}"
        return Typed(f"CAST({called} AS {kind.storage})", kind)

    def _behind(self, call: CatalogCall, scope: NameScope) -> str:
        shown = "" if call.filter is None else f" FILTER (WHERE {self.condition(call.filter, scope, 'FILTER')})"
        return shown if call.over is None else f"{shown} OVER ({self.window(call.over, scope)})"

    def window(self, node: exp.Window, scope: NameScope) -> str:
        """Return the SQL inside a window's parentheses."""
        base, spec = node.args.get("alias"), node.args.get("spec")
        if base is not None:
            if name_of(base) not in scope.windows:
                raise UndefinedObject(f'window "{name_of(base)}" does not exist')
            return scope.windows[name_of(base)]
        keys = [self.settled(one).sql for one in self._exprs(node.args.get("partition_by") or (), scope)]
        order = node.args.get("order")
        shown = f"PARTITION BY {', '.join(keys)}" if keys else ""
        shown += "" if order is None else self.order_by(order.expressions, scope)
        return shown if spec is None else f"{shown} {_frame(spec)}"

    def order_by(self, order: Sequence[exp.Expr], scope: NameScope) -> str:
        """ORDER BY over the columns of FROM; nothing for no keys."""
        keys = [order_key(self.settled(self.expr(one.this, scope)).sql, one) for one in order]
        return f" ORDER BY {', '.join(keys)}" if keys else ""


def order_key(sql: str, order: exp.Expr) -> str:
    """One key of ORDER BY in DuckDB's SQL."""
    direction = "DESC" if order.args.get("desc") else "ASC"
    return f"{sql} {direction} NULLS {'FIRST' if order.args.get('nulls_first') else 'LAST'}"


def _inside(node: exp.Expr) -> exp.Expr:
    """The expression without the casts around it."""
    while isinstance(node, exp.Cast):
        node = node.this
    return node


def _texts(texts: Sequence[str]) -> str:
    return f"CAST([{', '.join(map(quote, texts))}] AS VARCHAR[])"


def _frame(node: exp.Expr) -> str:
    """Which rows around the current one a window takes, in so few words that they can be passed on."""
    kind = str(node.args["kind"]).lower()
    if kind not in ("rows", "range", "groups"):
        raise refusal(node)
    bounds = [_frame_bound(node, side) for side in ("start", "end") if node.args.get(side)]
    return f"{kind} BETWEEN {bounds[0]} AND {bounds[1]}" if len(bounds) > 1 else f"{kind} {bounds[0]}"


def _frame_bound(node: exp.Expr, side: str) -> str:
    bound, behind = node.args[side], str(node.args.get(f"{side}_side") or "").lower()
    if bound == "CURRENT ROW":
        return "CURRENT ROW"
    count = bound if isinstance(bound, str) else bound.name
    is_count = count == "UNBOUNDED" or (count.isascii() and count.isdecimal())
    if not is_count or behind not in ("preceding", "following"):
        raise refusal(node, bound)
    return f"{count} {behind}"


def _matches(args: Sequence[str]) -> str:
    """The SQL of regexp_matches: for each match, the list of its groups, or the match if the pattern has no group.

    DuckDB requires a constant group number, and refuses one that the pattern lacks: so empty groups are appended.
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
