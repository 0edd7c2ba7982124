"""expressions: PostgreSQL's expressions into DuckDB's, each with its type.

Rule 1: what is written is built here from names, constants and templates; no text of the query is passed on.
Rule 2: an operator or function that has no entry does not exist, as PostgreSQL says it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dpsql.catalog import syntax
from dpsql.catalog.calls import Calls
from dpsql.catalog.literals import null, quote
from dpsql.catalog.operations import shown_kind
from dpsql.catalog.relations import (
    BOOL,
    INT4,
    NUMERIC,
    TEXT,
    UNKNOWN,
    Kind,
    array_of,
    kind_of,
    named,
    record,
)
from dpsql.catalog.scope import NameScope, Rendered
from dpsql.catalog.typed import (
    Typed,
    coerced,
    common_kind,
    integer_kind,
    placeholder,
    settled,
)
from dpsql.errors import (
    DatatypeMismatch,
    UndefinedObject,
    UnsupportedQuery,
)


class Expressions(Calls, ABC):
    """Translates expressions; queries inside them are translated by a class below."""

    @abstractmethod
    def query(self, query: syntax.ParsedQuery, outer: NameScope | None) -> Rendered:
        """Translate a query."""

    def expr(self, node: syntax.Expr, scope: NameScope) -> Typed:
        """Translate an expression; its type is UNKNOWN where its place decides."""
        return self.statement.counted(self._plain(node, scope))

    def _plain(self, node: syntax.Expr, scope: NameScope) -> Typed:
        match node:
            case syntax.Constant():
                return self._constant(node)
            case syntax.Parameter(index):
                self.statement.check_given(node)
                return self._parameter(index)
            case syntax.Name():
                found = scope.find(node)
                return Typed(found.sql, found.kind)
            case syntax.Star():
                raise UnsupportedQuery("row expansion via * is not supported here", position=node.at + 1)
            case syntax.CastExpr(inner, to):
                return self._cast(inner, to, scope)
            case syntax.CallExpr():
                return self._call(node, scope)
            case syntax.Operation(operator, operands, at):
                return self._operation(operator, [self.expr(one, scope) for one in operands], at)
            case syntax.Logic(word, operands):
                return self._logic(word, operands, scope)
            case syntax.Test():
                return self._test(node, scope)
            case syntax.CaseExpr():
                return self._case(node, scope)
            case syntax.Collate():
                return self._collate(node, scope)
            case syntax.Subscript():
                return self._subscript(node, scope)
            case syntax.FieldExpr(inner, name):
                return self._field(self.expr(inner, scope), name)
            case _:
                return self._compound(node, scope)

    def _compound(self, node: syntax.Expr, scope: NameScope) -> Typed:
        match node:
            case syntax.Between():
                return self._between(node, scope)
            case syntax.Among():
                return self._among(node, scope)
            case syntax.AmongRows():
                return self._among_rows(node, scope)
            case syntax.Quantified():
                return self._quantified(node, scope)
            case syntax.ArrayOf(items):
                return self._array([self.expr(item, scope) for item in items])
            case syntax.ArrayRows(query):
                rendered = self._one_column(query, scope)
                kind = rendered.columns[0].kind
                return Typed(f"coalesce(ARRAY({rendered.sql}), [])", array_of(kind))
            case syntax.Row(items):
                return self._row([settled(self.statement, self.expr(item, scope)) for item in items])
            case syntax.ExistsExpr(query):
                return Typed(f"EXISTS ({self.query(query, scope).sql})", BOOL)
            case syntax.ScalarExpr(query):
                rendered = self._one_column(query, scope)
                return Typed(f"({rendered.sql})", rendered.columns[0].kind)
            case _:
                raise TypeError(f"no such expression: {type(node).__name__}")

    def condition(self, node: syntax.Expr, scope: NameScope, place: str) -> str:
        """The SQL of a condition.

        Raises:
            DatatypeMismatch: It is none.
        """
        typed = (
            coerced(self.statement, self.expr(node, scope), BOOL)
            if isinstance(node, syntax.Parameter | syntax.Constant)
            else None
        )
        typed = typed or self.expr(node, scope)
        if typed.kind == UNKNOWN:
            typed = coerced(self.statement, typed, BOOL)
        if typed.kind != BOOL:
            raise DatatypeMismatch(f"argument of {place} must be type boolean, not type {shown_kind(typed.kind)}")
        return typed.sql

    def _one_column(self, query: syntax.ParsedQuery, scope: NameScope) -> Rendered:
        rendered = self.query(query, scope)
        if len(rendered.columns) != 1:
            raise UnsupportedQuery("subquery must return only one column")
        return rendered

    def _constant(self, node: syntax.Constant) -> Typed:
        match node.kind:
            case "string":
                return Typed(quote(node.text), UNKNOWN, constant=node)
            case "null":
                return Typed(null(TEXT), UNKNOWN, constant=node)
            case "bool":
                return Typed(node.text.upper(), BOOL)
            case "integer":
                kind = integer_kind(node.text)
                return Typed(f"CAST({int(node.text)} AS {kind.storage})" if kind != NUMERIC else node.text, kind)
            case _:
                return Typed(f"({node.text})", NUMERIC)

    def _parameter(self, index: int) -> Typed:
        kind = self.statement.parameters.setdefault(index, UNKNOWN)
        if kind != UNKNOWN:
            return Typed(placeholder(index, kind), kind)
        return Typed(placeholder(index, TEXT), UNKNOWN, parameter=index)

    def _cast(self, inner: syntax.Expr, to: syntax.TypeName, scope: NameScope) -> Typed:
        kind = self.type_named(to)
        modifier = to.modifiers[0] if to.modifiers and kind.name in ("varchar", "bpchar", "bit") else -1
        if kind.name == "bpchar" and to.parts == ("bpchar",) and not to.modifiers:
            modifier = 1  # CHAR alone is char(1)
        if isinstance(inner, syntax.ArrayOf) and not inner.items:
            return Typed(f"CAST([] AS {kind.storage})", kind)
        return coerced(self.statement, self.expr(inner, scope), kind, modifier=modifier)

    def type_named(self, to: syntax.TypeName) -> Kind:
        """The type of a name.

        Raises:
            UndefinedObject: There is none.
        """
        try:
            kind = named(to.parts[-1])
        except KeyError:
            raise UndefinedObject(f'type "{".".join(to.parts)}" does not exist') from None
        return array_of(kind) if to.array else kind

    def _logic(self, word: str, operands: Sequence[syntax.Expr], scope: NameScope) -> Typed:
        conditions = [self.condition(one, scope, word.upper()) for one in operands]
        if word == "not":
            return Typed(f"(NOT {conditions[0]})", BOOL)
        return Typed(f"({f' {word.upper()} '.join(conditions)})", BOOL)

    def _test(self, node: syntax.Test, scope: NameScope) -> Typed:
        typed = self.expr(node.expr, scope)
        typed = settled(self.statement, typed) if node.what == "null" else coerced(self.statement, typed, BOOL)
        what = "NULL" if node.what == "unknown" else node.what.upper()
        return Typed(f"({typed.sql} IS {what})", BOOL)

    def _between(self, node: syntax.Between, scope: NameScope) -> Typed:
        expr, low, high = (self.expr(one, scope) for one in (node.expr, node.low, node.high))
        above, below = self._compare(">=", expr, low, 0), self._compare("<=", expr, high, 0)
        return Typed(f"({above.sql} AND {below.sql})", BOOL)

    def _among(self, node: syntax.Among, scope: NameScope) -> Typed:
        left = self.expr(node.expr, scope)
        equal = [self._compare("=", left, self.expr(item, scope), 0).sql for item in node.items]
        return Typed(f"({' OR '.join(equal)})", BOOL)

    def _among_rows(self, node: syntax.AmongRows, scope: NameScope) -> Typed:
        rendered = self.query(node.query, scope)
        sides = [
            self.expr(one, scope) for one in (node.expr.items if isinstance(node.expr, syntax.Row) else (node.expr,))
        ]
        if len(sides) != len(rendered.columns):
            raise UnsupportedQuery("subquery has too many columns")
        pairs = [
            self._alike(side, Typed(f"q.{column.sql}", column.kind), "=", 0)
            for side, column in zip(sides, rendered.columns, strict=True)
        ]
        left = ", ".join(a.sql for a, _ in pairs)
        right = ", ".join(b.sql for _, b in pairs)
        left = f"({left})" if len(pairs) > 1 else left
        return Typed(f"({left} IN (SELECT {right} FROM ({rendered.sql}) AS q))", BOOL)

    def _quantified(self, node: syntax.Quantified, scope: NameScope) -> Typed:
        left = self.expr(node.expr, scope)
        if isinstance(node.over, syntax.ParsedQuery):
            rendered = self._one_column(node.over, scope)
            listed = f"coalesce(ARRAY({rendered.sql}), [])"
            over = Typed(listed, array_of(rendered.columns[0].kind))
        else:
            over = self.expr(node.over, scope)
            if over.kind == UNKNOWN:
                over = coerced(self.statement, over, array_of(left.kind if left.kind != UNKNOWN else TEXT))
        if not over.kind.is_array:
            raise DatatypeMismatch("op ANY/ALL (array) requires array on right side", position=node.at + 1)
        element = Typed("e", kind_of(over.kind.element))
        asked = left.sql if isinstance(node.expr, syntax.ScalarExpr) else None
        if asked is not None:  # DuckDB takes no subquery within a lambda
            left = Typed("asked.it", left.kind)
        test = self._operation(node.operator, [left, element], node.at)
        tests = f"list_transform({over.sql}, lambda e: {test.sql})"
        decided, decides, otherwise = ("and", "FALSE", "TRUE") if node.every else ("or", "TRUE", "FALSE")
        unknown = f"WHEN list_count({tests}) < len({tests}) THEN NULL"
        sql = f"WHEN list_bool_{decided}({tests}) = {decides} THEN {decides} {unknown} ELSE {otherwise}"
        whole = f"CASE WHEN {over.sql} IS NULL THEN NULL {sql} END"
        return Typed(f"({whole})" if asked is None else f"(SELECT {whole} FROM (SELECT {asked} AS it) AS asked)", BOOL)

    def _case(self, node: syntax.CaseExpr, scope: NameScope) -> Typed:
        results = [self.expr(result, scope) for _, result in node.branches]
        results += [] if node.default is None else [self.expr(node.default, scope)]
        # ELSE comes first where it is about the type.
        kinds = [result.kind for result in results]
        kind = common_kind(kinds if node.default is None else [kinds[-1], *kinds[:-1]], "CASE")
        values = [coerced(self.statement, result, kind).sql for result in results]
        if node.operand is None:
            conditions = [self.condition(condition, scope, "CASE/WHEN") for condition, _ in node.branches]
        else:
            operand = settled(self.statement, self.expr(node.operand, scope))
            conditions = [self._compare("=", operand, self.expr(one, scope), 0).sql for one, _ in node.branches]
        branches = " ".join(f"WHEN {c} THEN {v}" for c, v in zip(conditions, values, strict=False))
        default = f" ELSE {values[-1]}" if node.default is not None else ""
        return Typed(f"(CASE {branches}{default} END)", kind)

    def _collate(self, node: syntax.Collate, scope: NameScope) -> Typed:
        if node.collation[-1] not in ("default", "C", "c", "POSIX", "posix", "ucs_basic", "en_US", "en-x-icu"):
            raise UndefinedObject(f'collation "{node.collation[-1]}" for encoding "UTF8" does not exist')
        typed = self.expr(node.expr, scope)
        return settled(self.statement, typed)

    def _subscript(self, node: syntax.Subscript, scope: NameScope) -> Typed:
        array = self.expr(node.expr, scope)
        if array.kind.name == "name" and node.low is not None and not node.slice:  # a name is its characters, from 0
            at = coerced(self.statement, self.expr(node.low, scope), INT4).sql
            return Typed(f"substr({array.sql}, {at} + 1, 1)", named("char"))
        if not array.kind.is_array:
            raise DatatypeMismatch(
                f"cannot subscript type {shown_kind(array.kind)} because it does not support subscripting"
            )
        shift = 1 if array.kind.is_vector else 0
        low, high = (
            None if one is None else coerced(self.statement, self.expr(one, scope), INT4).sql
            for one in (node.low, node.high)
        )
        if node.slice:
            begin, end = low or "1", high or f"len({array.sql})"
            return Typed(f"list_slice({array.sql}, greatest({begin} + {shift}, 1), {end} + {shift})", array.kind)
        index = f"({low} + {shift})"
        return Typed(f"(CASE WHEN {index} > 0 THEN {array.sql}[{index}] END)", kind_of(array.kind.element))

    def _field(self, typed: Typed, name: str) -> Typed:
        for field, kind in typed.kind.fields:
            if field == name:
                return Typed(f"struct_extract({typed.sql}, {quote(name)})", kind)
        raise DatatypeMismatch(
            f"column notation .{name} applied to type {shown_kind(typed.kind)}, which is not a composite type"
        )

    def _array(self, items: Sequence[Typed]) -> Typed:
        if not items:
            raise DatatypeMismatch("cannot determine type of empty array", hint="ARRAY[]::integer[]")
        kind = common_kind([item.kind for item in items], "ARRAY")
        if kind.is_array:
            raise UnsupportedQuery("arrays of arrays are not supported here")
        listed = ", ".join(coerced(self.statement, item, kind).sql for item in items)
        return Typed(f"[{listed}]", array_of(kind))

    def _row(self, items: Sequence[Typed]) -> Typed:
        fields = tuple((f"f{number}", item.kind) for number, item in enumerate(items, 1))
        packed = ", ".join(f'"f{number}" := {item.sql}' for number, item in enumerate(items, 1))
        return Typed(f"struct_pack({packed})" if items else "NULL", record(*fields))
