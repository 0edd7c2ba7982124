"""expressions: PostgreSQL's expressions into DuckDB's, each with its type.

Rule 1: what is written is built here from names, constants and templates; no text of the query is passed on.
Rule 2: an operator or function that has no entry does not exist, as PostgreSQL says it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dpsql.catalog.calls import Calls
from dpsql.catalog.kinds import (
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
from dpsql.catalog.literals import null, quote
from dpsql.catalog.operations import shown_kind
from dpsql.catalog.scope import Rendered, Scope
from dpsql.catalog.syntax import (
    Among,
    AmongRows,
    ArrayOf,
    ArrayRows,
    Between,
    Call,
    Case,
    Cast,
    Collate,
    Constant,
    Distinctness,
    Exists,
    Expr,
    Field,
    Like,
    Logic,
    Name,
    Operation,
    Parameter,
    Quantified,
    Query,
    Row,
    Scalar,
    Star,
    Subscript,
    Test,
    TypeName,
)
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
    def query(self, query: Query, outer: Scope | None) -> Rendered:
        """Translate a query."""

    def expr(self, node: Expr, scope: Scope) -> Typed:
        """Translate an expression; its type is UNKNOWN where its place decides."""
        return self.statement.counted(self._plain(node, scope))

    def _plain(self, node: Expr, scope: Scope) -> Typed:
        match node:
            case Constant():
                return self._constant(node)
            case Parameter(index):
                return self._parameter(index)
            case Name():
                found = scope.find(node)
                return Typed(found.sql, found.kind)
            case Star():
                raise UnsupportedQuery("row expansion via * is not supported here", position=node.at + 1)
            case Cast(inner, to):
                return self._cast(inner, to, scope)
            case Call():
                return self._call(node, scope)
            case Operation(operator, operands, at):
                return self._operation(operator, [self.expr(one, scope) for one in operands], at)
            case Logic(word, operands):
                return self._logic(word, operands, scope)
            case Test():
                return self._test(node, scope)
            case Case():
                return self._case(node, scope)
            case Collate():
                return self._collate(node, scope)
            case Subscript():
                return self._subscript(node, scope)
            case Field(inner, name):
                return self._field(self.expr(inner, scope), name)
            case _:
                return self._compound(node, scope)

    def _compound(self, node: Expr, scope: Scope) -> Typed:
        match node:
            case Distinctness(left, right, negated):
                a, b = self._alike(self.expr(left, scope), self.expr(right, scope), "=", 0)
                return Typed(f"({a.sql} IS {'NOT ' if negated else ''}DISTINCT FROM {b.sql})", BOOL)
            case Between():
                return self._between(node, scope)
            case Like(expr, pattern, escape, ignore_case, negated):
                sides = self.expr(expr, scope), self.expr(pattern, scope)
                sign = None if escape is None else self.text(self.expr(escape, scope))
                return self._like(*sides, sign, ignore_case, negated)
            case Among():
                return self._among(node, scope)
            case AmongRows():
                return self._among_rows(node, scope)
            case Quantified():
                return self._quantified(node, scope)
            case ArrayOf(items):
                return self._array([self.expr(item, scope) for item in items])
            case ArrayRows(query):
                rendered = self._one_column(query, scope)
                kind = rendered.columns[0].kind
                return Typed(f"coalesce(ARRAY({rendered.sql}), [])", array_of(kind))
            case Row(items):
                return self._row([settled(self.statement, self.expr(item, scope)) for item in items])
            case Exists(query):
                return Typed(f"EXISTS ({self.query(query, scope).sql})", BOOL)
            case Scalar(query):
                rendered = self._one_column(query, scope)
                return Typed(f"({rendered.sql})", rendered.columns[0].kind)
            case _:
                raise TypeError(f"no such expression: {type(node).__name__}")

    def condition(self, node: Expr, scope: Scope, place: str) -> str:
        """The SQL of a condition.

        Raises:
            DatatypeMismatch: It is none.
        """
        typed = (
            coerced(self.statement, self.expr(node, scope), BOOL) if isinstance(node, Parameter | Constant) else None
        )
        typed = typed or self.expr(node, scope)
        if typed.kind == UNKNOWN:
            typed = coerced(self.statement, typed, BOOL)
        if typed.kind != BOOL:
            raise DatatypeMismatch(f"argument of {place} must be type boolean, not type {shown_kind(typed.kind)}")
        return typed.sql

    def _one_column(self, query: Query, scope: Scope) -> Rendered:
        rendered = self.query(query, scope)
        if len(rendered.columns) != 1:
            raise UnsupportedQuery("subquery must return only one column")
        return rendered

    def _constant(self, node: Constant) -> Typed:
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

    def _cast(self, inner: Expr, to: TypeName, scope: Scope) -> Typed:
        kind = self.type_named(to)
        modifier = to.modifiers[0] if to.modifiers and kind.name in ("varchar", "bpchar") else -1
        if kind.name == "bpchar" and to.parts == ("bpchar",) and not to.modifiers:
            modifier = 1  # CHAR alone is char(1)
        if isinstance(inner, ArrayOf) and not inner.items:
            return Typed(f"CAST([] AS {kind.storage})", kind)
        return coerced(self.statement, self.expr(inner, scope), kind, modifier=modifier)

    def type_named(self, to: TypeName) -> Kind:
        """The type of a name.

        Raises:
            UndefinedObject: There is none.
        """
        try:
            kind = named(to.parts[-1])
        except KeyError:
            raise UndefinedObject(f'type "{".".join(to.parts)}" does not exist') from None
        return array_of(kind) if to.array else kind

    def _logic(self, word: str, operands: Sequence[Expr], scope: Scope) -> Typed:
        conditions = [self.condition(one, scope, word.upper()) for one in operands]
        if word == "not":
            return Typed(f"(NOT {conditions[0]})", BOOL)
        return Typed(f"({f' {word.upper()} '.join(conditions)})", BOOL)

    def _test(self, node: Test, scope: Scope) -> Typed:
        typed = self.expr(node.expr, scope)
        typed = settled(self.statement, typed) if node.what == "null" else coerced(self.statement, typed, BOOL)
        what = "NULL" if node.what == "unknown" else node.what.upper()
        return Typed(f"({typed.sql} IS {'NOT ' if node.negated else ''}{what})", BOOL)

    def _between(self, node: Between, scope: Scope) -> Typed:
        expr, low, high = (self.expr(one, scope) for one in (node.expr, node.low, node.high))
        above, below = self._compare(">=", expr, low, 0), self._compare("<=", expr, high, 0)
        return Typed(f"({'NOT ' if node.negated else ''}({above.sql} AND {below.sql}))", BOOL)

    def _among(self, node: Among, scope: Scope) -> Typed:
        left = self.expr(node.expr, scope)
        equal = [self._compare("=", left, self.expr(item, scope), 0).sql for item in node.items]
        sql = f"({' OR '.join(equal)})"
        return Typed(f"(NOT {sql})" if node.negated else sql, BOOL)

    def _among_rows(self, node: AmongRows, scope: Scope) -> Typed:
        rendered = self.query(node.query, scope)
        sides = [self.expr(one, scope) for one in (node.expr.items if isinstance(node.expr, Row) else (node.expr,))]
        if len(sides) != len(rendered.columns):
            raise UnsupportedQuery("subquery has too many columns")
        pairs = [
            self._alike(side, Typed(f"q.{column.sql}", column.kind), "=", 0)
            for side, column in zip(sides, rendered.columns, strict=True)
        ]
        left = ", ".join(a.sql for a, _ in pairs)
        right = ", ".join(b.sql for _, b in pairs)
        left = f"({left})" if len(pairs) > 1 else left
        sql = f"({left} IN (SELECT {right} FROM ({rendered.sql}) AS q))"
        return Typed(f"(NOT {sql})" if node.negated else sql, BOOL)

    def _quantified(self, node: Quantified, scope: Scope) -> Typed:
        left = self.expr(node.expr, scope)
        if isinstance(node.over, Query):
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
        test = self._operation(node.operator, [left, element], node.at)
        tests = f"list_transform({over.sql}, lambda e: {test.sql})"
        decided, decides, otherwise = ("and", "FALSE", "TRUE") if node.every else ("or", "TRUE", "FALSE")
        unknown = f"WHEN list_count({tests}) < len({tests}) THEN NULL"
        sql = f"WHEN list_bool_{decided}({tests}) = {decides} THEN {decides} {unknown} ELSE {otherwise}"
        return Typed(f"(CASE WHEN {over.sql} IS NULL THEN NULL {sql} END)", BOOL)

    def _case(self, node: Case, scope: Scope) -> Typed:
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

    def _collate(self, node: Collate, scope: Scope) -> Typed:
        if node.collation[-1] not in ("default", "C", "c", "POSIX", "posix", "ucs_basic", "en_US", "en-x-icu"):
            raise UndefinedObject(f'collation "{node.collation[-1]}" for encoding "UTF8" does not exist')
        typed = self.expr(node.expr, scope)
        return settled(self.statement, typed)

    def _subscript(self, node: Subscript, scope: Scope) -> Typed:
        array = self.expr(node.expr, scope)
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
