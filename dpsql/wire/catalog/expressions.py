"""expressions: PostgreSQL's expressions into DuckDB's, each with its type.

Rule 1: what is written is built here from names, constants and templates; no text of the query is passed on.
Rule 2: an operator or function that has no entry does not exist, as PostgreSQL says it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from dpsql.errors import (
    DatatypeMismatch,
    InvalidParameter,
    UndefinedFunction,
    UndefinedObject,
    UnsupportedQuery,
)
from dpsql.wire.catalog.functions import (
    Function,
    aggregates,
    argument_kinds,
    chosen,
    functions,
    result_kind,
    window_functions,
)
from dpsql.wire.catalog.kinds import (
    BOOL,
    FLOAT8,
    INT4,
    INT8,
    NUMERIC,
    OID,
    OID_TYPES,
    TEXT,
    UNKNOWN,
    Kind,
    array_of,
    kind_of,
    named,
    record,
)
from dpsql.wire.catalog.literals import null, quote
from dpsql.wire.catalog.rowfunctions import empty_functions
from dpsql.wire.catalog.scope import Rendered, Scope
from dpsql.wire.catalog.syntax import (
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
    Order,
    Parameter,
    Quantified,
    Query,
    Row,
    Scalar,
    Star,
    Subscript,
    Test,
    TypeName,
    Window,
)
from dpsql.wire.catalog.typed import (
    Statement,
    Typed,
    as_text,
    coerced,
    common_kind,
    element_texts,
    integer_kind,
    is_text,
    path,
    placeholder,
    settled,
)

_COMPARISONS: Final = frozenset({"=", "<>", "<", ">", "<=", ">="})
_ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%", "^"})
_BITS: Final = {"&": "&", "|": "|", "#": "xor", "<<": "<<", ">>": ">>"}
_PATTERNS: Final = {"~": (False, False), "~*": (True, False), "!~": (False, True), "!~*": (True, True)}
_LIKES: Final = {"~~": (False, False), "~~*": (True, False), "!~~": (False, True), "!~~*": (True, True)}
_NUMBERS: Final = ("int2", "int4", "int8", "numeric", "float4", "float8")
_HINT: Final = "matches the given name and argument types. You might need to add explicit type casts."
_LONG: Final = {
    **{"int2": "smallint", "int4": "integer", "int8": "bigint", "bool": "boolean", "varchar": "character varying"},
    **{"bpchar": "character", "float8": "double precision", "char": '"char"', "float4": "real"},
}


def shown_kind(kind: Kind) -> str:
    """The name of a type as messages have it."""
    if kind.is_array and kind.name.startswith("_"):
        return shown_kind(kind_of(kind.element)) + "[]"
    return _LONG.get(kind.name, kind.name)


class Expressions(ABC):
    """Translates expressions; queries inside them are translated by a class below.

    Args:
        statement: What the translation is about.
    """

    def __init__(self, statement: Statement) -> None:
        self.statement = statement
        self._special = {
            "pg_typeof": self._typeof,
            "json_build_object": self._json_object,
            "jsonb_build_object": self._json_object,
            "to_json": self._to_json,
            "to_jsonb": self._to_json,
        }

    @abstractmethod
    def query(self, query: Query, outer: Scope | None) -> Rendered:
        """Translate a query."""

    def expr(self, node: Expr, scope: Scope) -> Typed:
        """Translate an expression; its type is UNKNOWN where its place decides."""
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

    # Helpers for all

    def text(self, typed: Typed) -> str:
        """The SQL of an expression as text."""
        return coerced(self.statement, typed, TEXT).sql

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

    # Constants and names

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

    # Operators

    def _operation(self, operator: str, operands: Sequence[Typed], at: int) -> Typed:
        if len(operands) == 1:
            return self._prefix(operator, operands[0], at)
        left, right = operands
        if operator in _COMPARISONS:
            return self._compare(operator, left, right, at)
        if operator in _PATTERNS:
            ignore_case, negated = _PATTERNS[operator]
            options = ", 'i'" if ignore_case else ""
            matched = f"regexp_matches({self.text(left)}, {self.text(right)}{options})"
            return Typed(f"(NOT {matched})" if negated else matched, BOOL)
        if operator in _LIKES:
            return self._like(left, right, None, *_LIKES[operator])
        if operator == "||":
            return self._concatenate(left, right, at)
        if operator == "^@":
            return Typed(f"starts_with({self.text(left)}, {self.text(right)})", BOOL)
        if operator in ("->", "->>") and left.kind.name in ("json", "jsonb"):
            kind = TEXT if operator == "->>" else left.kind
            sql = f"catalog_json_part({left.sql}, {self.text(right)}, {quote(left.kind.name)}, {operator == '->>'})"
            return Typed(sql, kind)
        if operator in _ARITHMETIC:
            return self._arithmetic(operator, left, right, at)
        if operator in _BITS:
            kind = common_kind([left.kind, right.kind], operator)
            a, b = (coerced(self.statement, side, kind).sql for side in (left, right))
            sql = f"xor({a}, {b})" if operator == "#" else f"({a} {_BITS[operator]} {b})"
            return Typed(f"CAST({sql} AS {kind.storage})", kind)
        if operator in ("@>", "<@", "&&") and (left.kind.is_array or right.kind.is_array):
            return self._array_test(operator, left, right)
        raise self._no_operator(operator, operands, at)

    def _prefix(self, operator: str, operand: Typed, at: int) -> Typed:
        if operator not in ("-", "~", "@") or operand.kind.name not in _NUMBERS:
            raise self._no_operator(operator, [operand], at)
        return Typed(
            {"-": f"(-{operand.sql})", "~": f"(~{operand.sql})", "@": f"abs({operand.sql})"}[operator], operand.kind
        )

    def _no_operator(self, operator: str, operands: Sequence[Typed], at: int) -> UndefinedFunction:
        sides = [shown_kind(one.kind) for one in operands]
        text = f"{sides[0]} {operator} {sides[1]}" if len(sides) == 2 else f"{operator} {sides[0]}"
        return UndefinedFunction(
            f"operator does not exist: {text}",
            hint=f"No operator {_HINT}",
            position=at + 1,
        )

    def _compare(self, operator: str, left: Typed, right: Typed, at: int) -> Typed:
        if left.kind.fields and right.kind.fields:
            return Typed(f"({left.sql} {operator} {right.sql})", BOOL)
        a, b = self._alike(left, right, operator, at)
        return Typed(f"({a.sql} {operator} {b.sql})", BOOL)

    def _alike(self, left: Typed, right: Typed, operator: str, at: int) -> tuple[Typed, Typed]:
        """Both sides with one type, as a comparison takes them."""
        if left.kind == UNKNOWN and right.kind == UNKNOWN:
            kind = TEXT
        elif UNKNOWN in (left.kind, right.kind):
            kind = right.kind if left.kind == UNKNOWN else left.kind
            kind = OID if kind.name in OID_TYPES and kind.name != "regclass" else kind
        elif not self._comparable(left.kind, right.kind):
            raise self._no_operator(operator, [left, right], at)
        else:
            kind = common_kind([left.kind, right.kind], operator)
            if kind.name in OID_TYPES:
                kind = OID
            elif is_text(kind):
                kind = TEXT
        return coerced(self.statement, left, kind), coerced(self.statement, right, kind)

    def _comparable(self, left: Kind, right: Kind) -> bool:
        if left == right or (is_text(left) and is_text(right)):
            return True
        groups = (_NUMBERS, (*OID_TYPES, "int2", "int4", "int8"), ("date", "timestamp", "timestamptz"))
        if any(left.name in group and right.name in group for group in groups):
            return True
        if "regclass" in (left.name, right.name) and (is_text(left) or is_text(right)):
            return True
        return left.is_array and right.is_array and self._comparable(kind_of(left.element), kind_of(right.element))

    def _concatenate(self, left: Typed, right: Typed, at: int) -> Typed:
        if left.kind.is_array or right.kind.is_array:
            return self._concatenate_arrays(left, right)
        if not any(is_text(one.kind) or one.kind == UNKNOWN for one in (left, right)):
            raise self._no_operator("||", [left, right], at)
        return Typed(f"({self.text(left)} || {self.text(right)})", TEXT)

    def _concatenate_arrays(self, left: Typed, right: Typed) -> Typed:
        kind = left.kind if left.kind.is_array else right.kind
        whole = [one.kind.is_array or one.kind == UNKNOWN for one in (left, right)]
        element = kind_of(kind.element)
        a, b = (
            coerced(self.statement, one, kind if is_whole else element).sql
            for one, is_whole in zip((left, right), whole, strict=True)
        )
        if all(whole):
            both = f"CASE WHEN {a} IS NULL THEN {b} WHEN {b} IS NULL THEN {a} ELSE list_concat({a}, {b}) END"
            return Typed(f"({both})", kind)
        return Typed(f"list_append({a}, {b})" if whole[0] else f"list_prepend({a}, {b})", kind)

    def _array_test(self, operator: str, left: Typed, right: Typed) -> Typed:
        kind = left.kind if left.kind.is_array else right.kind
        a, b = (coerced(self.statement, one, kind).sql for one in (left, right))
        name = {"@>": f"list_has_all({a}, {b})", "<@": f"list_has_all({b}, {a})", "&&": f"list_has_any({a}, {b})"}
        return Typed(name[operator], BOOL)

    def _arithmetic(self, operator: str, left: Typed, right: Typed, at: int) -> Typed:
        if {left.kind.category, right.kind.category} & {"D", "T"}:
            return self._moments(operator, left, right, at)
        kinds = [
            kind if kind != UNKNOWN else other for kind, other in ((left.kind, right.kind), (right.kind, left.kind))
        ]
        if any(kind.name not in (*_NUMBERS, "oid") for kind in kinds) or UNKNOWN in kinds:
            raise self._no_operator(operator, [left, right], at)
        kind = common_kind(kinds, operator)
        a, b = (coerced(self.statement, one, kind).sql for one in (left, right))
        if kind.name == "float4" or operator == "^":
            kind = FLOAT8
        if operator == "^":
            return Typed(f"pow({a}, {b})", FLOAT8)
        sign = "//" if operator == "/" and kind.name in ("int2", "int4", "int8") else operator
        # The wider type, so that an overflow is none of the engine's; the result is cut back to its own.
        return Typed(f"CAST(({a} {sign} {b}) AS {kind.storage})", kind)

    def _moments(self, operator: str, left: Typed, right: Typed, at: int) -> Typed:
        kind = left.kind if left.kind.category == "D" else right.kind
        if operator not in ("+", "-") or not {left.kind.name, right.kind.name} & {"interval", "date", "timestamptz"}:
            raise self._no_operator(operator, [left, right], at)
        if left.kind.category == right.kind.category == "D" and operator == "-":
            kind = named("interval")
        a, b = (settled(self.statement, one).sql for one in (left, right))
        return Typed(f"CAST(({a} {operator} {b}) AS {kind.storage})", kind)

    # Conditions

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

    def _like(self, left: Typed, right: Typed, escape: str | None, ignore_case: bool, negated: bool) -> Typed:
        name = "ilike_escape" if ignore_case else "like_escape"
        sign = quote("\\") if escape is None else escape
        sql = f"{name}({self.text(left)}, {self.text(right)}, {sign})"
        return Typed(f"(NOT {sql})" if negated else sql, BOOL)

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

    # Values made of values

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

    # Calls

    def _call(self, node: Call, scope: Scope) -> Typed:
        name = node.name
        if name in ("coalesce", "greatest", "least"):
            return self._first_of(name, [self.expr(arg, scope) for arg in node.args])
        if name == "nullif" and len(node.args) == 2:
            left, right = (self.expr(arg, scope) for arg in node.args)
            a, b = self._alike(left, right, "=", node.at)
            result = settled(self.statement, left)
            return Typed(f"(CASE WHEN ({a.sql} = {b.sql}) THEN NULL ELSE {result.sql} END)", result.kind)
        if name == "set_config":
            return self._set_config(node)
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
        function, args = self._chosen(node, functions().get(name, ()), scope)
        return self._unnested(self._applied(function, args)) if function.is_set else self._applied(function, args)

    def _nothing(self, node: Call, scope: Scope) -> Typed:
        """A function that gives rows of a record, and here none."""
        count, kind = empty_functions()[node.name]
        args = [self.expr(arg, scope) for arg in node.args]
        if len(args) != count:
            shown = ", ".join(shown_kind(arg.kind) for arg in args)
            raise UndefinedFunction(
                f"function {'.'.join(node.parts)}({shown}) does not exist",
                hint=f"No function {_HINT}",
                position=node.at + 1,
            )
        return Typed(f"CAST([] AS {kind.storage}[])", kind)

    def _unnested(self, listed: Typed) -> Typed:
        return Typed(f"unnest({listed.sql})", listed.kind)

    def _expanded(self, node: Call, scope: Scope) -> Typed:
        array = self.expr(node.args[0], scope)
        element = kind_of(array.kind.element)
        packed = f"lambda e, i: struct_pack(x := CAST(e AS {element.storage}), n := CAST(i AS INTEGER))"
        return Typed(f"list_transform({array.sql}, {packed})", record(("x", element), ("n", INT4)))

    def listed(self, node: Call, scope: Scope) -> Typed:
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

    def _applied(self, function: Function, args: Sequence[Typed]) -> Typed:
        """A call; a list of the rows where the function gives several."""
        kind = result_kind(function, [arg.kind for arg in args])
        suffix = "[]" if function.is_set else ""
        return Typed(f"CAST({self._filled(function, args)} AS {kind.storage}{suffix})", kind)

    def _first_of(self, name: str, args: Sequence[Typed]) -> Typed:
        kind = common_kind([arg.kind for arg in args], name.upper())
        return Typed(f"{name}({', '.join(coerced(self.statement, arg, kind).sql for arg in args)})", kind)

    def _chosen(self, node: Call, candidates: Sequence[Function], scope: Scope) -> tuple[Function, list[Typed]]:
        args = [self.expr(arg, scope) for arg in node.args]
        if node.name.startswith("pg_stat_get_") and not candidates:
            candidates = (Function(node.name, ("any",), False, "int8", False, "NULL"),)
        kinds = [arg.kind for arg in args]
        function = chosen(candidates, kinds)
        if function is None:
            shown = ", ".join(shown_kind(kind) for kind in kinds)
            raise UndefinedFunction(
                f"function {'.'.join(node.parts)}({shown}) does not exist",
                hint=f"No function {_HINT}",
                position=node.at + 1,
            )
        wanted = argument_kinds(function, kinds)
        return function, [self._argument(function, arg, kind) for arg, kind in zip(args, wanted, strict=True)]

    def _argument(self, function: Function, arg: Typed, kind: Kind) -> Typed:
        if kind.name == "regclass" and arg.kind.name in ("int2", "int4", "int8"):
            kind = OID
        return coerced(self.statement, arg, kind)

    def _filled(self, function: Function, args: Sequence[Typed]) -> str:
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

    def _set_config(self, node: Call) -> Typed:
        if len(node.args) != 3:
            raise UndefinedFunction("function set_config does not exist", position=node.at + 1)
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

    def _plain_value(self, node: Expr, kind: Kind) -> object:
        """The value of a constant or placeholder: set_config acts before the query runs, once."""
        while isinstance(node, Cast):
            node = node.expr
        match node:
            case Constant("null"):
                return None
            case Constant("bool", text):
                return text == "true"
            case Constant(_, text):
                return text
            case Parameter(index):
                self.statement.declare(index, kind) if index in self.statement.parameters else (
                    self.statement.parameters.setdefault(index, kind)
                )
                values = self.statement.values
                return values[index] if values is not None and index < len(values) else None
            case _:
                raise UnsupportedQuery("set_config takes constants", hint="SELECT set_config('work_mem', '8MB', false)")

    def _typeof(self, node: Call, scope: Scope) -> Typed:
        kind = self.expr(node.args[0], scope).kind
        return Typed(f"CAST({kind.oid} AS BIGINT)", named("regtype"))

    def _json_object(self, node: Call, scope: Scope) -> Typed:
        args = [settled(self.statement, self.expr(arg, scope)) for arg in node.args]
        parts = [
            f"CAST({as_text(self.statement, arg)} AS VARCHAR)"
            if number % 2 == 0
            else f"CAST(to_json({arg.sql}) AS VARCHAR)"
            for number, arg in enumerate(args)
        ]
        return Typed(f"catalog_json_object([{', '.join(parts)}])", named(node.name.removesuffix("_build_object")))

    def _to_json(self, node: Call, scope: Scope) -> Typed:
        arg = settled(self.statement, self.expr(node.args[0], scope))
        return Typed(self._json_text(arg), named(node.name.removeprefix("to_")))

    def _json_text(self, arg: Typed) -> str:
        """A value as JSON; one that is JSON stays what it is."""
        shown = arg.sql if arg.kind.name in ("json", "jsonb") else f"CAST(to_json({arg.sql}) AS VARCHAR)"
        return f"coalesce({shown}, 'null')"

    # Aggregates and windows

    def _json_array(self, node: Call, scope: Scope) -> Typed:
        text = self._json_text(settled(self.statement, self.expr(node.args[0], scope)))
        distinct = "DISTINCT " if node.distinct else ""
        listed = f"string_agg({distinct}{text}, ', '{self.order_by(node.order, scope)}){self._behind(node, scope)}"
        return Typed(f"('[' || {listed} || ']')", named(node.name.removesuffix("_agg")))

    def _aggregate(self, node: Call, scope: Scope) -> Typed:
        if node.star:
            if node.name != "count":
                raise UndefinedFunction(f"{node.name}(*) does not exist", position=node.at + 1)
            return Typed("count(*)" + self._behind(node, scope), INT8)
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

    def _behind(self, node: Call, scope: Scope) -> str:
        shown = ""
        if node.filter is not None:
            shown = f" FILTER (WHERE {self.condition(node.filter, scope, 'FILTER')})"
        if node.over is not None:
            shown += f" OVER ({self.window(node.over, scope)})"
        return shown

    def window(self, window: Window, scope: Scope) -> str:
        """What stands in a window's parentheses."""
        if window.base is not None:
            if window.base not in scope.windows:
                raise UndefinedObject(f'window "{window.base}" does not exist')
            return scope.windows[window.base]
        partition = ", ".join(settled(self.statement, self.expr(one, scope)).sql for one in window.partition)
        frame = f" {window.frame}" if window.frame else ""
        return (f"PARTITION BY {partition}" if partition else "") + self.order_by(window.order, scope) + frame

    def order_by(self, order: Sequence[Order], scope: Scope) -> str:
        """ORDER BY over the columns of FROM; nothing for no keys."""
        keys = [order_key(settled(self.statement, self.expr(one.expr, scope)).sql, one) for one in order]
        return f" ORDER BY {', '.join(keys)}" if keys else ""


def order_key(sql: str, order: Order) -> str:
    """One key of ORDER BY in DuckDB's SQL."""
    direction = "DESC" if order.descending else "ASC"
    return f"{sql} {direction} NULLS {'FIRST' if order.nulls_first else 'LAST'}"
