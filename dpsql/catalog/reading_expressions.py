"""reading_expressions: the parser's tree of an expression into the catalog's own.

Rule: what has no entry here is refused; nothing is skipped and nothing is guessed.
"""

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sqlglot import exp

from dpsql.catalog import syntax
from dpsql.compiler.sql.parse import tokenize
from dpsql.errors import InvalidSyntax

_BINARY: Final[dict[type[exp.Expr], tuple[str, ...]]] = {
    **{exp.EQ: ("=",), exp.NEQ: ("<>", "!="), exp.LT: ("<",), exp.GT: (">",), exp.LTE: ("<=",), exp.GTE: (">=",)},
    **{exp.Add: ("+",), exp.Sub: ("-",), exp.Mul: ("*",), exp.Div: ("/",), exp.Mod: ("%",), exp.Pow: ("^",)},
    **{exp.BitwiseAnd: ("&",), exp.BitwiseOr: ("|",), exp.BitwiseXor: ("#",), exp.DPipe: ("||",)},
    **{exp.BitwiseLeftShift: ("<<", "<"), exp.BitwiseRightShift: (">>", ">")},
    **{exp.RegexpLike: ("~",), exp.RegexpILike: ("~*",)},
}
"""Operators, each with the words that it is written with."""
_TYPES: Final = {
    **{exp.DType.BIGINT: "int8", exp.DType.INT: "int4", exp.DType.SMALLINT: "int2", exp.DType.FLOAT: "float4"},
    **{exp.DType.DOUBLE: "float8", exp.DType.BOOLEAN: "bool", exp.DType.DECIMAL: "numeric", exp.DType.CHAR: "bpchar"},
    **{exp.DType.NCHAR: "bpchar", exp.DType.VARBINARY: "bytea"},
}
"""Types that the parser calls otherwise than PostgreSQL does."""
AROUND: Final = ("with_", "order", "limit", "offset")
"""What may stand around a query."""
_NUMBER: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class ExpressionReader(ABC):
    """Reads the expressions of one tree in the order of its text; a subclass reads the queries in them.

    Args:
        sql: The text.
    """

    def __init__(self, sql: str) -> None:
        self._tokens = tokenize(sql)
        self._starts = [token.start for token in self._tokens]
        self._at = 0

    @abstractmethod
    def query(self, node: exp.Expr) -> syntax.ParsedQuery:
        """A query, with WITH before it and ORDER BY and LIMIT behind it."""

    def _nested(self, node: exp.Expr) -> syntax.ParsedQuery:
        """A query that may stand in parentheses."""
        plain = isinstance(node, exp.Subquery) and not any(node.args.get(name) for name in AROUND)
        return self.query(node.this if plain else node)

    def _order(self, node: exp.Expr | None) -> tuple[syntax.SortKey, ...]:
        return () if node is None else self._all(self._key, node.expressions)

    def _key(self, node: exp.Expr) -> syntax.SortKey:
        self._known(node, "this", "desc", "nulls_first")
        return syntax.SortKey(self.expr(node.this), bool(node.args.get("desc")), bool(node.args.get("nulls_first")))

    def expr(self, node: exp.Expr) -> syntax.Expr:
        """An expression."""
        words = _BINARY.get(type(node))
        if words is not None:
            self._known(node, "this", "expression", "typed", "safe")
            return self._operation(words[0], node, *words)
        read = _READERS.get(type(node))
        if read is None:
            raise self._refusal(node)
        names, method = read
        self._known(node, *names)
        return method(self, node)

    def _exprs(self, nodes: Iterable[exp.Expr]) -> tuple[syntax.Expr, ...]:
        return self._all(self.expr, nodes)

    def _operation(self, operator: str, node: exp.Expr, *words: str) -> syntax.Expr:
        left = self.expr(node.this)
        at = self._find(*words)
        return self._over(operator, left, node.expression, at) or syntax.Operation(
            operator, (left, self.expr(node.expression)), at
        )

    def _over(self, operator: str, left: syntax.Expr, right: exp.Expr, at: int) -> syntax.Expr | None:
        """What an operator compares with ANY or ALL of; None where its right side is neither."""
        called = (
            isinstance(right, exp.Anonymous)
            and str(right.this).lower() in ("all", "some")
            and len(right.expressions) == 1
        )
        if not called and not isinstance(right, exp.Any | exp.All):
            return None
        over = right.expressions[0] if called else right.this
        while isinstance(over, exp.Paren):
            over = over.this
        read = self._nested(over) if isinstance(over, exp.Query | exp.Values) else self.expr(over)
        every = isinstance(right, exp.All) or (called and str(right.this).lower() == "all")
        return syntax.Quantified(operator, left, read, every, at)

    def _named_operation(self, node: exp.Expr) -> syntax.Expr:
        operator = str(node.args["operator"]).rpartition(".")[2]
        return self._operation("<>" if operator == "!=" else operator, node, "operator", operator)

    def _prefix(self, node: exp.Expr) -> syntax.Expr:
        sign = "-" if isinstance(node, exp.Neg) else "~"
        at = self._find(sign)
        operand = self.expr(node.this)
        if sign == "-" and isinstance(operand, syntax.Constant) and operand.kind in ("integer", "numeric"):
            negated = operand.text.removeprefix("-")
            return syntax.Constant(operand.kind, negated if negated != operand.text else f"-{negated}")
        return syntax.Operation(sign, (operand,), at)

    def _connected(self, node: exp.Expr) -> syntax.Expr:
        kind, stack, operands = type(node), [node], list[syntax.Expr]()
        while stack:
            one = stack.pop()
            if type(one) is kind:
                stack += [one.expression, one.this]
            else:
                operands.append(self.expr(one))
        return syntax.Logic(kind.__name__.lower(), tuple(operands))

    def _is(self, node: exp.Expr) -> syntax.Expr:
        expr, what = self.expr(node.this), node.expression
        word = what.sql(comments=False).lower() if isinstance(what, exp.Null | exp.Boolean | exp.Column) else ""
        if word not in ("null", "true", "false", "unknown"):
            raise self._refusal(node)
        return syntax.Logic("not", (syntax.Test(expr, word),)) if node.args.get("negate") else syntax.Test(expr, word)

    def _distinctness(self, node: exp.Expr) -> syntax.Expr:
        sides = self._exprs((node.this, node.expression))
        distinct = syntax.Operation("IS DISTINCT FROM", sides, self._at)
        return syntax.Logic("not", (distinct,)) if isinstance(node, exp.NullSafeEQ) else distinct

    def _between(self, node: exp.Expr) -> syntax.Expr:
        expr, low, high = (self.expr(node.args[name]) for name in ("this", "low", "high"))
        if not node.args.get("symmetric"):
            return syntax.Between(expr, low, high)
        return syntax.Logic("or", (syntax.Between(expr, low, high), syntax.Between(expr, high, low)))

    def _like(self, node: exp.Expr) -> syntax.Expr:
        like = node.this if isinstance(node, exp.Escape) else node
        if not isinstance(like, exp.Like | exp.ILike):
            raise self._refusal(node)
        read = self._operation("~~" if isinstance(like, exp.Like) else "~~*", like, "like", "ilike", "~~", "~~*")
        if isinstance(node, exp.Escape) and isinstance(read, syntax.Operation):
            read = syntax.Operation(read.operator, (*read.operands, self.expr(node.expression)), read.at)
        return syntax.Logic("not", (read,)) if like.args.get("negate") else read

    def _in(self, node: exp.Expr) -> syntax.Expr:
        left, query = self.expr(node.this), node.args.get("query") or _lone_query(node.expressions)
        if query is None:
            return syntax.Among(left, self._exprs(node.expressions))
        return syntax.AmongRows(left, self._nested(query))

    def _column(self, node: exp.Expr) -> syntax.Expr:
        parts = node.parts  # type: ignore[attr-defined]
        if isinstance(parts[-1], exp.Star):
            at, names = self._parts(parts[:-1])
            return syntax.Star(names, at)
        at, names = self._parts(parts)
        return syntax.Name(names, at)

    def _dot(self, node: exp.Expr) -> syntax.Expr:
        """A call of a function of a schema, or a field of a record."""
        inner, last = node.this, node.expression
        if isinstance(last, exp.Anonymous):
            at, names = self._parts(_flat(inner))
            call = self._call(last)
            return syntax.CallExpr((*names, *call.parts), call.args, at, call.star, call.distinct, call.order)
        if isinstance(last, exp.Identifier):
            return syntax.FieldExpr(self.expr(inner), self._name(last))
        raise self._refusal(node)

    def _literal(self, node: exp.Expr) -> syntax.Expr:
        self._place(node)
        if node.is_string or isinstance(node, exp.ByteString | exp.RawString | exp.Heredoc):
            return syntax.Constant("string", str(node.this))
        text = str(node.this)
        if _NUMBER.fullmatch(text) is None:
            raise self._refusal(node)
        return syntax.Constant("integer" if text.isdecimal() else "numeric", text)

    def _bits(self, node: exp.Expr) -> syntax.Expr:
        return syntax.CastExpr(syntax.Constant("string", str(node.this)), syntax.TypeName(("bit",)))

    def _joined(self, node: exp.Expr) -> syntax.Expr:
        """Constants beside one another are one."""
        parts = self._exprs(node.expressions)
        return syntax.Constant("string", "".join(part.text for part in parts if isinstance(part, syntax.Constant)))

    def _parameter(self, node: exp.Expr) -> syntax.Expr:
        at = self._place(node.this) - 1
        text = str(node.this.this)
        if not text.isdecimal() or not 1 <= int(text[:9]) <= 65535:
            raise InvalidSyntax(f"there is no parameter ${text}", position=at + 1)
        return syntax.Parameter(int(text) - 1, at)

    def _cast(self, node: exp.Expr) -> syntax.Expr:
        inner = self.expr(node.this)
        to = node.args["to"]
        if isinstance(to.this, exp.Interval) and isinstance(inner, syntax.Constant):
            return syntax.CastExpr(
                syntax.Constant("string", f"{inner.text} {str(to.this.args['unit']).lower()}"),
                syntax.TypeName(("interval",)),
            )
        return syntax.CastExpr(inner, self._type(to))

    def _type(self, node: exp.Expr) -> syntax.TypeName:
        self._known(node, "this", "expressions", "nested", "kind")
        kind = node.this
        if kind == exp.DType.ARRAY:
            inner = self._type(node.expressions[0])
            return syntax.TypeName(inner.parts, inner.modifiers, True)
        if kind == exp.DType.USERDEFINED:
            parts = self._names(_flat(node.args["kind"]))
        else:  # one of the parser's, a type of names or a pseudo-type
            parts = (_TYPES.get(kind) or str(getattr(kind, "value", kind)).lower(),)
        modifiers = self._all(self._modifier, node.expressions)
        return syntax.TypeName(parts, modifiers)

    def _modifier(self, node: exp.Expr) -> int:
        text = node.name
        if not text.isdecimal():
            raise self._refusal(node)
        return int(text[:9])

    def _case(self, node: exp.Expr) -> syntax.Expr:
        operand, default = node.args.get("this"), node.args.get("default")
        first = operand and self.expr(operand)
        branches = self._all(lambda one: (self.expr(one.this), self.expr(one.args["true"])), node.args["ifs"])
        return syntax.CaseExpr(first, branches, default and self.expr(default))

    def _array(self, node: exp.Expr) -> syntax.Expr:
        query = _lone_query(node.expressions)
        return syntax.ArrayOf(self._exprs(node.expressions)) if query is None else syntax.ArrayRows(self.query(query))

    def _bracket(self, node: exp.Expr) -> syntax.Expr:
        expr = self.expr(node.this)
        if len(node.expressions) != 1:
            raise self._refusal(node)
        (index,) = node.expressions
        if isinstance(index, exp.Slice):
            low, high = index.args.get("this"), index.args.get("expression")
            return syntax.Subscript(expr, low and self.expr(low), high and self.expr(high), slice=True)
        return syntax.Subscript(expr, self.expr(index))

    def _collate(self, node: exp.Expr) -> syntax.Expr:
        expr, name = self.expr(node.this), node.expression
        if isinstance(name, exp.Var):
            return syntax.Collate(expr, (str(name.this).lower(),))
        return syntax.Collate(
            expr, tuple(self._name(part) for part in (name.parts if isinstance(name, exp.Column) else (name,)))
        )

    def _at_time_zone(self, node: exp.Expr) -> syntax.Expr:
        moment = self.expr(node.this)
        at = self._find("at")
        return syntax.CallExpr(("timezone",), (self.expr(node.args["zone"]), moment), at)

    # Calls

    def _call(self, node: exp.Expr) -> syntax.CallExpr:
        name = node.this
        at = self._place(node)
        args, order, distinct = list(node.expressions), None, False
        if args and isinstance(args[-1], exp.Order):
            order, args[-1] = args[-1], args[-1].this
        if args and isinstance(args[0], exp.Distinct):
            distinct, args[:1] = True, args[0].expressions
        named = self._name(name) if isinstance(name, exp.Identifier) else str(name).lower()[:63]
        star = len(args) == 1 and isinstance(args[0], exp.Star)
        if star:
            self._find("*")
        return syntax.CallExpr((named,), () if star else self._exprs(args), at, star, distinct, self._order(order))

    def _anonymous(self, node: exp.Expr) -> syntax.Expr:
        if str(node.this).lower() == "row":
            return syntax.Row(self._exprs(node.expressions))
        return self._call(node)

    def _filtered(self, node: exp.Expr) -> syntax.Expr:
        call = self._function(node.this)
        return syntax.CallExpr(
            call.parts, call.args, call.at, call.star, call.distinct, call.order, self.expr(node.expression.this)
        )

    def _windowed(self, node: exp.Expr) -> syntax.Expr:
        call = self._function(node.this)
        over = self._window(node)
        return syntax.CallExpr(call.parts, call.args, call.at, call.star, call.distinct, call.order, call.filter, over)

    def _function(self, node: exp.Expr) -> syntax.CallExpr:
        call = self.expr(node)
        if not isinstance(call, syntax.CallExpr):
            raise self._refusal(node)
        return call

    def _window(self, node: exp.Expr) -> syntax.WindowDefinition:
        self._known(node, "this", "partition_by", "order", "spec", "alias", "over")
        base, spec = node.args.get("alias"), node.args.get("spec")
        partition = self._exprs(node.args.get("partition_by") or ())
        order = self._order(node.args.get("order"))
        return syntax.WindowDefinition(
            None if base is None else self._name(base), partition, order, "" if spec is None else self._frame(spec)
        )

    def _frame(self, node: exp.Expr) -> str:
        """Which rows around the current one a window takes, in so few words that they can be passed on."""
        self._known(node, "kind", "start", "start_side", "end", "end_side")
        bounds = [self._bound(node, side) for side in ("start", "end") if node.args.get(side)]
        kind = str(node.args["kind"]).lower()
        if kind not in ("rows", "range", "groups"):
            raise self._refusal(node)
        return f"{kind} BETWEEN {bounds[0]} AND {bounds[1]}" if len(bounds) > 1 else f"{kind} {bounds[0]}"

    def _bound(self, node: exp.Expr, side: str) -> str:
        bound, behind = node.args[side], str(node.args.get(f"{side}_side") or "").lower()
        if bound == "CURRENT ROW":
            return "CURRENT ROW"
        count = bound if isinstance(bound, str) else bound.name
        is_count = count == "UNBOUNDED" or (count.isascii() and count.isdecimal())
        if not is_count or behind not in ("preceding", "following"):
            raise self._refusal(node)
        return f"{count} {behind}"

    def _extract(self, node: exp.Expr) -> syntax.Expr:
        at = self._find("extract")
        return syntax.CallExpr(
            ("extract",), (syntax.Constant("string", node.this.name.lower()), self.expr(node.expression)), at
        )

    def _substring(self, node: exp.Expr) -> syntax.Expr:
        at = self._find("substring")
        text, start, length = (node.args.get(name) for name in ("this", "start", "length"))
        first = self.expr(text)  # type: ignore[arg-type]
        begin = syntax.Constant("integer", "1") if start is None else self.expr(start)
        return syntax.CallExpr(("substring",), (first, begin, *(() if length is None else (self.expr(length),))), at)

    def _trim(self, node: exp.Expr) -> syntax.Expr:
        at = self._find("trim")
        side = str(node.args.get("position") or "both").lower()
        name = {"both": "btrim", "leading": "ltrim", "trailing": "rtrim"}[side]
        args = [node.this, *([node.expression] if node.args.get("expression") else [])]
        return syntax.CallExpr((name,), self._exprs(args), at)

    def _position(self, node: exp.Expr) -> syntax.Expr:
        at = self._find("position")
        part = self.expr(node.args["substr"])
        return syntax.CallExpr(("position",), (self.expr(node.this), part), at)

    # Names and places

    def _parts(self, nodes: Sequence[exp.Expr]) -> tuple[int, tuple[str, ...]]:
        """Where a name that may be qualified begins, and its parts."""
        places = [self._place(node) for node in nodes]
        return places[0], tuple(self._name(node) for node in nodes)

    def _names(self, nodes: Iterable[exp.Expr]) -> tuple[str, ...]:
        return self._all(self._name, nodes)

    def _name(self, node: exp.Expr) -> str:
        if not isinstance(node, exp.Identifier):
            raise self._refusal(node)
        text = str(node.this)
        return (text if node.args.get("quoted") else text.lower())[:63]

    def _place(self, node: exp.Expr) -> int:
        """Where a node begins; what is read from here on stands behind it."""
        start = int(node.meta.get("start", self._at))
        self._at = max(self._at, start)
        return start

    def _find(self, *words: str) -> int:
        """Where the next of these words stands, which the parser keeps no place of."""
        for index in range(bisect_left(self._starts, self._at), len(self._tokens)):
            if self._tokens[index].text.lower() in words:
                self._at = self._starts[index] + 1
                return self._starts[index]
        return self._at

    def _all(self, read: Callable[[exp.Expr], Any], nodes: Iterable[exp.Expr]) -> tuple[Any, ...]:
        return tuple(read(node) for node in nodes)

    def _known(self, node: exp.Expr, *names: str) -> None:
        """Refuse a node that has more than these parts."""
        for name in filled(node):
            if name not in names:
                raise self._refusal(node, node.args[name])

    def _refusal(self, node: exp.Expr, *parts: object) -> InvalidSyntax:
        """The error at the first word of one of these parts; of the node where they have no place."""
        inside = [part for part in parts if isinstance(part, exp.Expr)] or [node]
        starts = [one.meta["start"] for part in inside for one in part.walk() if "start" in one.meta]
        at = min(starts, default=self._at)
        return InvalidSyntax(f'syntax error at or near "{self._word(at)}"', position=at + 1)

    def _word(self, at: int) -> str:
        """The word that stands at or behind a place."""
        return self._tokens[min(bisect_left(self._starts, at), len(self._tokens) - 1)].text


def _lone_query(nodes: Sequence[exp.Expr]) -> exp.Expr | None:
    """The query that is all there is, without parentheses of its own."""
    lone = len(nodes) == 1 and isinstance(nodes[0], exp.Query | exp.Values) and not isinstance(nodes[0], exp.Subquery)
    return nodes[0] if lone else None


def _flat(node: exp.Expr) -> list[exp.Expr]:
    """The parts of a name with dots between."""
    return [*_flat(node.this), node.expression] if isinstance(node, exp.Dot) else [node]


def filled(node: exp.Expr) -> list[str]:
    """The parts that a node has."""
    return [name for name, value in node.args.items() if value is not None and value is not False and value != []]


_READERS: Final[dict[type[exp.Expr], tuple[tuple[str, ...], Callable[[ExpressionReader, Any], syntax.Expr]]]] = {
    exp.Column: (("this", "table", "db", "catalog"), ExpressionReader._column),
    exp.Star: ((), lambda _, __: syntax.Star()),
    exp.Dot: (("this", "expression"), ExpressionReader._dot),
    **{
        kind: (("this", "is_string"), ExpressionReader._literal)
        for kind in (exp.Literal, exp.ByteString, exp.RawString, exp.Heredoc)
    },
    exp.BitString: (("this",), ExpressionReader._bits),
    exp.Concat: (("expressions", "safe", "coalesce"), ExpressionReader._joined),
    exp.Null: ((), lambda _, __: syntax.Constant("null", "")),
    exp.Boolean: (("this",), lambda _, node: syntax.Constant("bool", "true" if node.this else "false")),
    exp.Parameter: (("this",), ExpressionReader._parameter),
    exp.Paren: (("this",), lambda self, node: self.expr(node.this)),
    exp.Tuple: (("expressions",), lambda self, node: syntax.Row(self._exprs(node.expressions))),
    exp.Cast: (("this", "to"), ExpressionReader._cast),
    exp.Operator: (("this", "operator", "expression"), ExpressionReader._named_operation),
    **{kind: (("this",), ExpressionReader._prefix) for kind in (exp.Neg, exp.BitwiseNot)},
    **{kind: (("this", "expression"), ExpressionReader._connected) for kind in (exp.And, exp.Or)},
    exp.Not: (("this",), lambda self, node: syntax.Logic("not", (self.expr(node.this),))),
    exp.Is: (("this", "expression", "negate"), ExpressionReader._is),
    **{kind: (("this", "expression"), ExpressionReader._distinctness) for kind in (exp.NullSafeEQ, exp.NullSafeNEQ)},
    exp.Between: (("this", "low", "high", "symmetric"), ExpressionReader._between),
    **{kind: (("this", "expression", "negate"), ExpressionReader._like) for kind in (exp.Like, exp.ILike, exp.Escape)},
    exp.In: (("this", "expressions", "query"), ExpressionReader._in),
    exp.Case: (("this", "ifs", "default"), ExpressionReader._case),
    exp.Array: (("expressions", "value_constructor"), ExpressionReader._array),
    exp.Exists: (("this",), lambda self, node: syntax.ExistsExpr(self.query(node.this))),
    exp.Subquery: (("this", *AROUND), lambda self, node: syntax.ScalarExpr(self._nested(node))),
    exp.Bracket: (("this", "expressions"), ExpressionReader._bracket),
    exp.Collate: (("this", "expression"), ExpressionReader._collate),
    exp.AtTimeZone: (("this", "zone"), ExpressionReader._at_time_zone),
    exp.Anonymous: (("this", "expressions"), ExpressionReader._anonymous),
    exp.Filter: (("this", "expression"), ExpressionReader._filtered),
    exp.Window: (("this", "partition_by", "order", "spec", "alias", "over"), ExpressionReader._windowed),
    exp.Extract: (("this", "expression"), ExpressionReader._extract),
    exp.Substring: (("this", "start", "length"), ExpressionReader._substring),
    exp.Trim: (("this", "expression", "position"), ExpressionReader._trim),
    exp.StrPosition: (("this", "substr"), ExpressionReader._position),
    exp.Variadic: (("this",), lambda self, node: self.expr(node.this)),
}
"""How each expression is read, and the parts that it may have."""
