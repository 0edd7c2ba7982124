"""expressions: translates PostgreSQL's expressions into DuckDB's, each with its type.

Rule 1: the SQL is built from names, constants and templates; no text of the query is passed on.
Rule 2: an operator or function without an entry does not exist, as in PostgreSQL.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from dpsql.catalog.calls import Calls
from dpsql.catalog.casts import Typed, placeholder
from dpsql.catalog.kinds import (
    BOOL,
    INT4,
    NUMERIC,
    TEXT,
    UNKNOWN,
    Kind,
    array_of,
    common_kind,
    integer_kind,
    kind_of,
    named,
    record,
)
from dpsql.catalog.literals import interval, null, quote
from dpsql.catalog.reading import SIGNS, name_of, only_query, parts_of, place, refusal
from dpsql.catalog.scope import NameScope, Rendered
from dpsql.errors import DatatypeMismatch, UndefinedObject, UnsupportedQuery
from dpsql.sqltypes.textinput import read_fields

_NUMBER: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TYPES: Final = {
    **{exp.DType.BIGINT: "int8", exp.DType.INT: "int4", exp.DType.SMALLINT: "int2", exp.DType.FLOAT: "float4"},
    **{exp.DType.DOUBLE: "float8", exp.DType.BOOLEAN: "bool", exp.DType.DECIMAL: "numeric", exp.DType.CHAR: "bpchar"},
    **{exp.DType.NCHAR: "bpchar", exp.DType.VARBINARY: "bytea"},
}
"""Types that the parser calls otherwise than PostgreSQL does."""
_COLLATIONS: Final = frozenset({"default", "C", "c", "POSIX", "posix", "ucs_basic", "en_US", "en-x-icu"})


class Expressions(Calls, ABC):
    """Translates expressions; queries inside them are translated by a class below."""

    @abstractmethod
    def query(self, node: exp.Expr, outer: NameScope | None) -> Rendered:
        """Translate a query."""

    def expr(self, node: exp.Expr, scope: NameScope) -> Typed:
        """Translate an expression; its type is UNKNOWN where its place decides."""
        translate = _TRANSLATIONS.get(type(node))
        if translate is None:
            raise refusal(node)
        return self.statement.counted(translate(self, node, scope))

    def condition(self, node: exp.Expr, scope: NameScope, place: str) -> str:
        """The SQL of a condition.

        Raises:
            DatatypeMismatch: It is none.
        """
        typed = self.expr(node, scope)
        if typed.kind == UNKNOWN:
            typed = self.coerced(typed, BOOL)
        if typed.kind != BOOL:
            raise DatatypeMismatch(f"argument of {place} must be type boolean, not type {typed.kind.shown}")
        return typed.sql

    def _one_column(self, node: exp.Expr, scope: NameScope) -> Typed:
        """A query that gives one value, or the values of one column."""
        rendered = self.query(node, scope)
        if len(rendered.columns) != 1:
            raise UnsupportedQuery("subquery must return only one column")
        return Typed(rendered.sql, rendered.columns[0].kind)

    def _all_of(self, node: exp.Expr, scope: NameScope) -> Typed:
        """The values of a query's one column as an array."""
        column = self._one_column(node, scope)
        return Typed(f"coalesce(ARRAY({column.sql}), [])", array_of(column.kind))

    # Constants and names

    def _literal(self, node: exp.Literal, _: NameScope) -> Typed:
        text = node.name
        if node.is_string:
            return Typed(quote(text), UNKNOWN, constant=node)
        if _NUMBER.fullmatch(text.removeprefix("-")) is None:
            raise refusal(node)
        kind = integer_kind(text) if text.removeprefix("-").isdecimal() else NUMERIC
        return Typed(f"({text})" if kind == NUMERIC else f"CAST({int(text)} AS {kind.storage})", kind)

    def _parameter(self, node: exp.Parameter, _: NameScope) -> Typed:
        index = self.index_of(node)
        kind = self.statement.parameters.setdefault(index, UNKNOWN)
        return Typed(placeholder(index, TEXT if kind == UNKNOWN else kind), kind, parameter=index)

    def _column(self, node: exp.Column, scope: NameScope) -> Typed:
        if isinstance(node.this, exp.Star):
            return self._row_star(node, scope)
        found = scope.find(node)
        return Typed(found.sql, found.kind)

    def _row_star(self, node: exp.Expr, _: NameScope) -> Typed:
        raise UnsupportedQuery("row expansion via * is not supported here", position=place(node))

    def _dot(self, node: exp.Dot, scope: NameScope) -> Typed:
        """A call of a function of a schema, or a field of a record."""
        if isinstance(node.expression, exp.Anonymous):
            return self._call(node, scope)
        record, name = self.expr(node.this, scope), name_of(node.expression)
        for field, kind in record.kind.fields:
            if field == name:
                return Typed(f"struct_extract({record.sql}, {quote(name)})", kind)
        raise DatatypeMismatch(
            f"column notation .{name} applied to type {record.kind.shown}, which is not a composite type"
        )

    # Casts

    def _cast_to(self, node: exp.Cast, scope: NameScope) -> Typed:
        inner, to = node.this, node.args["to"]
        if isinstance(to.this, exp.Interval) and isinstance(inner, exp.Literal):
            fields = tuple(word.name.lower() for word in to.this.find_all(exp.Var))
            return Typed(interval(read_fields(inner.name, fields)), named("interval"))
        kind = _type_named(to)
        sizes = [] if kind.is_array else [_size(one) for one in to.expressions]
        if isinstance(inner, exp.Array) and not inner.expressions:
            return Typed(f"CAST([] AS {kind.storage})", kind)
        modifier = sizes[0] if sizes and kind.name in ("varchar", "bpchar", "bit") else -1
        if to.this in (exp.DType.CHAR, exp.DType.NCHAR) and not sizes:
            modifier = 1  # CHAR alone is char(1)
        return self.coerced(self.expr(inner, scope), kind, modifier=modifier)

    def _collate(self, node: exp.Collate, scope: NameScope) -> Typed:
        name = node.expression
        last = str(name.this).lower() if isinstance(name, exp.Var) else parts_of(name)[-1]
        if last not in _COLLATIONS:
            raise UndefinedObject(f'collation "{last}" for encoding "UTF8" does not exist')
        return self.settled(self.expr(node.this, scope))

    # Operators

    def _operator(self, node: exp.Expr, scope: NameScope) -> Typed:
        sign = SIGNS[type(node)][0] if type(node) in SIGNS else str(node.args["operator"]).rpartition(".")[2]
        sign = "<>" if sign == "!=" else sign
        if node.args.get("expression") is None:
            return self._operation(sign, [self.expr(node.this, scope)], node)
        if isinstance(node.expression, exp.Any | exp.All):
            typed = self._quantified(sign, node, scope)
        else:
            typed = self._operation(sign, self._exprs((node.this, node.expression), scope), node)
        return Typed(f"(NOT {typed.sql})", BOOL) if node.args.get("negate") else typed

    def _escaped(self, node: exp.Escape, scope: NameScope) -> Typed:
        like = node.this
        if not isinstance(like, exp.Like | exp.ILike):
            raise refusal(node)
        operands = self._exprs((like.this, like.expression, node.expression), scope)
        typed = self._operation(SIGNS[type(like)][0], operands, like)
        return Typed(f"(NOT {typed.sql})", BOOL) if like.args.get("negate") else typed

    def _logic(self, node: exp.Connector, scope: NameScope) -> Typed:
        word = type(node).__name__.upper()
        return Typed(f"({f' {word} '.join(self.condition(one, scope, word) for one in node.flatten())})", BOOL)

    def _not(self, node: exp.Not, scope: NameScope) -> Typed:
        return Typed(f"(NOT {self.condition(node.this, scope, 'NOT')})", BOOL)

    def _is(self, node: exp.Is, scope: NameScope) -> Typed:
        what = node.expression
        word = what.sql(comments=False).upper() if isinstance(what, exp.Null | exp.Boolean | exp.Column) else ""
        if word not in ("NULL", "TRUE", "FALSE", "UNKNOWN"):
            raise refusal(node)
        typed = self.expr(node.this, scope)
        typed = self.settled(typed) if word == "NULL" else self.coerced(typed, BOOL)
        return Typed(f"({typed.sql} IS {_not(node)}{'NULL' if word == 'UNKNOWN' else word})", BOOL)

    def _distinctness(self, node: exp.Expr, scope: NameScope) -> Typed:
        distinct = self._operation("IS DISTINCT FROM", self._exprs((node.this, node.expression), scope), node)
        return distinct if isinstance(node, exp.NullSafeNEQ) else Typed(f"(NOT {distinct.sql})", BOOL)

    def _between(self, node: exp.Between, scope: NameScope) -> Typed:
        value, low, high = (self.expr(node.args[name], scope) for name in ("this", "low", "high"))
        ways = [(low, high), (high, low)] if node.args.get("symmetric") else [(low, high)]
        within = (
            f"({self._compare('>=', value, low, node).sql} AND {self._compare('<=', value, high, node).sql})"
            for low, high in ways
        )
        return Typed(f"({' OR '.join(within)})", BOOL)

    def _in(self, node: exp.In, scope: NameScope) -> Typed:
        query = node.args.get("query") or only_query(node.expressions)
        if query is not None:
            return self._in_query(node, query, scope)
        left = self.expr(node.this, scope)
        equal = [self._compare("=", left, self.expr(item, scope), node).sql for item in node.expressions]
        return Typed(f"({' OR '.join(equal)})", BOOL)

    def _in_query(self, node: exp.Expr, query: exp.Expr, scope: NameScope) -> Typed:
        rendered = self.query(query, scope)
        sides = self._exprs(node.this.expressions if isinstance(node.this, exp.Tuple) else (node.this,), scope)
        if len(sides) != len(rendered.columns):
            raise UnsupportedQuery("subquery has too many columns")
        pairs = [
            self._alike(side, Typed(f"q.{column.sql}", column.kind), "=", node)
            for side, column in zip(sides, rendered.columns, strict=True)
        ]
        left, right = (", ".join(one.sql for one in side) for side in zip(*pairs, strict=True))
        left = f"({left})" if len(pairs) > 1 else left
        return Typed(f"({left} IN (SELECT {right} FROM ({rendered.sql}) AS q))", BOOL)

    def _quantified(self, operator: str, node: exp.Expr, scope: NameScope) -> Typed:
        """A comparison with ANY or ALL of an array or a query."""
        over, every = node.expression.this, isinstance(node.expression, exp.All)
        is_in = (operator, every) in (("=", False), ("<>", True))
        is_query = isinstance(over, exp.Query | exp.Values)
        if is_in and is_query:
            among = self._in_query(node, over, scope)
            return Typed(f"(NOT {among.sql})", BOOL) if every else among
        left, array = self.expr(node.this, scope), self._all_of(over, scope) if is_query else self.expr(over, scope)
        if array.kind == UNKNOWN:
            array = self.coerced(array, array_of(left.kind if left.kind != UNKNOWN else TEXT))
        if not array.kind.is_array:
            raise DatatypeMismatch("op ANY/ALL (array) requires array on right side", position=place(node))
        asked = left.sql if isinstance(node.this, exp.Subquery) else None
        if asked is not None:  # DuckDB takes no subquery within a lambda
            left = Typed("asked.it", left.kind)
        element = Typed("e", kind_of(array.kind.element))
        value, other = self._alike(left, element, "=", node) if is_in else (left, Typed("", UNKNOWN))
        tests = f"list_transform({array.sql}, lambda e: {self._operation(operator, [left, element], node).sql})"
        decides, otherwise = ("FALSE", "TRUE") if every else ("TRUE", "FALSE")
        decided, unknown = f"list_bool_{'and' if every else 'or'}({tests}) = {decides}", f"list_count({tests})"
        if other.sql == "e":  # without a lambda, in which older versions of DuckDB find no columns of a subquery
            decided = f"list_contains({array.sql}, {value.sql})"
            unknown = f"CASE WHEN {value.sql} IS NULL THEN 0 ELSE list_count({array.sql}) END"
        sql = f"WHEN {decided} THEN {decides} WHEN {unknown} < len({array.sql}) THEN NULL ELSE {otherwise}"
        whole = f"CASE WHEN {array.sql} IS NULL THEN NULL {sql} END"
        return Typed(f"({whole})" if asked is None else f"(SELECT {whole} FROM (SELECT {asked} AS it) AS asked)", BOOL)

    def _case(self, node: exp.Case, scope: NameScope) -> Typed:
        branches, operand, default = node.args["ifs"], node.args.get("this"), node.args.get("default")
        # ELSE comes first where it is about the type.
        first = [] if default is None else [self.expr(default, scope)]
        results = self._exprs([one.args["true"] for one in branches], scope)
        kind = common_kind([one.kind for one in (*first, *results)], "CASE")
        if operand is None:
            conditions = [self.condition(one.this, scope, "CASE/WHEN") for one in branches]
        else:
            value = self.settled(self.expr(operand, scope))
            conditions = [self._compare("=", value, self.expr(one.this, scope), node).sql for one in branches]
        values = [self.coerced(one, kind).sql for one in (*results, *first)]
        whens = " ".join(f"WHEN {c} THEN {v}" for c, v in zip(conditions, values, strict=False))
        return Typed(f"(CASE {whens}{f' ELSE {values[-1]}' if first else ''} END)", kind)

    # Arrays, rows and queries

    def _array(self, node: exp.Array, scope: NameScope) -> Typed:
        query = only_query(node.expressions)
        if query is not None:
            return self._all_of(query, scope)
        items = self._exprs(node.expressions, scope)
        if not items:
            raise DatatypeMismatch("cannot determine type of empty array", hint="ARRAY[]::integer[]")
        kind = common_kind([item.kind for item in items], "ARRAY")
        if kind.is_array:
            raise UnsupportedQuery("arrays of arrays are not supported here")
        return Typed(f"[{', '.join(self.coerced(item, kind).sql for item in items)}]", array_of(kind))

    def _subscript(self, node: exp.Bracket, scope: NameScope) -> Typed:
        if len(node.expressions) != 1:
            raise refusal(node)
        array, (index,) = self.expr(node.this, scope), node.expressions
        ends = (index.args.get("this"), index.args.get("expression")) if isinstance(index, exp.Slice) else (index,)
        low, *high = (one if one is None else self.coerced(self.expr(one, scope), INT4).sql for one in ends)
        if array.kind.name == "name" and not high:  # a name is its characters, from 0
            return Typed(f"substr({array.sql}, {low} + 1, 1)", named("char"))
        if not array.kind.is_array:
            raise DatatypeMismatch(f"cannot subscript type {array.kind.shown} because it does not support subscripting")
        shift = 1 if array.kind.is_vector else 0
        if high:
            begin, end = low or "1", high[0] or f"len({array.sql})"
            return Typed(f"list_slice({array.sql}, greatest({begin} + {shift}, 1), {end} + {shift})", array.kind)
        place_from_1 = f"({low} + {shift})"
        sql = f"(CASE WHEN {place_from_1} > 0 THEN {array.sql}[{place_from_1}] END)"
        return Typed(sql, kind_of(array.kind.element))

    def _row(self, node: exp.Tuple, scope: NameScope) -> Typed:
        items = list(enumerate(map(self.settled, self._exprs(node.expressions, scope)), 1))
        packed = ", ".join(f'"f{number}" := {item.sql}' for number, item in items)
        kind = record(*((f"f{number}", item.kind) for number, item in items))
        return Typed(f"struct_pack({packed})" if items else "NULL", kind)

    def _scalar(self, node: exp.Expr, scope: NameScope) -> Typed:
        column = self._one_column(node, scope)
        return Typed(f"({column.sql})", column.kind)


def _not(node: exp.Expr) -> str:
    return "NOT " if node.args.get("negate") else ""


def type_parts(node: exp.Expr) -> tuple[str, ...]:
    """The name of a type, of an array's elements, which may be qualified."""
    match node.this:
        case exp.DType.ARRAY:
            return type_parts(node.expressions[0])
        case exp.DType.USERDEFINED:
            return parts_of(node.args["kind"])
        case exp.Interval():
            return ("interval",)
        case name:  # one of the parser's, a type of names or a pseudo-type
            return (_TYPES.get(name) or str(getattr(name, "value", name)).lower(),)


def _type_named(node: exp.Expr) -> Kind:
    parts = type_parts(node)
    try:
        kind = named(parts[-1])
    except KeyError:
        raise UndefinedObject(f'type "{".".join(parts)}" does not exist') from None
    return array_of(kind) if node.this == exp.DType.ARRAY else kind


def _size(node: exp.Expr) -> int:
    """The length in the name of a type."""
    if not node.name.isdecimal():
        raise refusal(node)
    return int(node.name[:9])


_TRANSLATIONS: Final[dict[type[exp.Expr], Callable[[Expressions, Any, NameScope], Typed]]] = {
    exp.Literal: Expressions._literal,
    exp.Null: lambda _, node, __: Typed(null(TEXT), UNKNOWN, constant=node),
    exp.Boolean: lambda _, node, __: Typed(str(bool(node.this)).upper(), BOOL),
    exp.Parameter: Expressions._parameter,
    exp.Column: Expressions._column,
    exp.Star: Expressions._row_star,
    exp.Dot: Expressions._dot,
    **dict.fromkeys((exp.Anonymous, exp.Filter, exp.Window), Expressions._call),
    exp.Cast: Expressions._cast_to,
    exp.Collate: Expressions._collate,
    **dict.fromkeys((*SIGNS, exp.Operator), Expressions._operator),
    exp.Escape: Expressions._escaped,
    **dict.fromkeys((exp.And, exp.Or), Expressions._logic),
    exp.Not: Expressions._not,
    exp.Is: Expressions._is,
    **dict.fromkeys((exp.NullSafeEQ, exp.NullSafeNEQ), Expressions._distinctness),
    exp.Between: Expressions._between,
    exp.In: Expressions._in,
    exp.Case: Expressions._case,
    exp.Array: Expressions._array,
    exp.Bracket: Expressions._subscript,
    exp.Tuple: Expressions._row,
    exp.Exists: lambda self, node, scope: Typed(f"EXISTS ({self.query(node.this, scope).sql})", BOOL),
    exp.Subquery: Expressions._scalar,
}
"""How each expression is translated; there are no others."""
