"""reading: parses a query into a tree of known nodes, with one node for each meaning.

Rule: what has no entry here is refused; nothing is skipped and nothing is guessed.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlglot import exp

from dpsql.compiler.sql.parse import parse_catalog_query, position, tokenize
from dpsql.errors import Error, InvalidSyntax

_KEPT: Final = 128
_MAX_KEPT: Final = 5_000
"""The number of trees that are kept, and the longest text of a kept tree."""
_TEXT: Final = "text"
"""The key of a tree's text in the meta of its root."""
AROUND: Final = ("with_", "order", "limit", "offset")
"""The clauses that can surround a query."""
SIGNS: Final[dict[type[exp.Expr], tuple[str, ...]]] = {
    **{exp.EQ: ("=",), exp.NEQ: ("<>", "!="), exp.LT: ("<",), exp.GT: (">",), exp.LTE: ("<=",), exp.GTE: (">=",)},
    **{exp.Add: ("+",), exp.Sub: ("-",), exp.Mul: ("*",), exp.Div: ("/",), exp.Mod: ("%",), exp.Pow: ("^",)},
    **{exp.BitwiseAnd: ("&",), exp.BitwiseOr: ("|",), exp.BitwiseXor: ("#",), exp.DPipe: ("||",)},
    **{exp.BitwiseLeftShift: ("<<", "<"), exp.BitwiseRightShift: (">>", ">")},
    **{exp.RegexpLike: ("~",), exp.RegexpILike: ("~*",), exp.Like: ("~~", "like"), exp.ILike: ("~~*", "ilike")},
    **{exp.Neg: ("-",), exp.BitwiseNot: ("~",)},
}
"""Operators: the first word is the name, and all are ways to write it."""
_JOINED: Final = ("this", "alias", "joins")
_KNOWN: Final[dict[type[exp.Expr], tuple[str, ...]]] = {
    # Queries
    exp.Select: ("distinct", "expressions", "from_", "joins", "where", "group", "having", "windows", *AROUND),
    exp.Subquery: (*_JOINED, *AROUND),
    exp.Values: ("expressions", "alias", "joins", *AROUND),
    **dict.fromkeys((exp.Union, exp.Intersect, exp.Except), ("this", "expression", "distinct", *AROUND)),
    exp.With: ("expressions", "recursive"),
    exp.CTE: ("this", "alias", "materialized"),
    exp.Distinct: ("expressions", "on"),
    **dict.fromkeys((exp.From, exp.Where, exp.Having), ("this",)),
    exp.Group: ("expressions",),
    exp.Order: ("this", "expressions"),
    exp.Ordered: ("this", "desc", "nulls_first"),
    **dict.fromkeys((exp.Limit, exp.Offset), ("expression",)),
    exp.Fetch: ("direction", "count", "limit_options"),
    exp.LimitOptions: ("rows",),
    exp.Join: ("this", "method", "side", "kind", "on", "using"),
    exp.Table: (*_JOINED, "db", "catalog", "only", "ordinality"),
    exp.Lateral: (*_JOINED, "ordinality"),
    exp.TableAlias: ("this", "columns"),
    exp.Alias: ("this", "alias"),
    # Names and types
    exp.Identifier: ("this", "quoted"),
    exp.Column: ("this", "table", "db", "catalog"),
    **dict.fromkeys((exp.Var, exp.PseudoType, exp.ObjectIdentifier), ("this",)),
    exp.DataType: ("this", "expressions", "nested", "kind"),
    exp.DataTypeParam: ("this",),
    exp.Interval: ("unit",),
    exp.IntervalSpan: ("this", "expression"),
    # Expressions
    **dict.fromkeys((exp.Star, exp.Null), ()),
    **dict.fromkeys((exp.Literal, exp.ByteString, exp.RawString, exp.Heredoc), ("this", "is_string")),
    **dict.fromkeys((exp.BitString, exp.Boolean, exp.Parameter, exp.Paren, exp.Variadic), ("this",)),
    exp.Concat: ("expressions", "safe", "coalesce"),
    exp.Tuple: ("expressions",),
    exp.Cast: ("this", "to"),
    **dict.fromkeys(SIGNS, ("this", "expression", "typed", "safe", "negate")),
    exp.Operator: ("this", "operator", "expression"),
    **dict.fromkeys((exp.And, exp.Or, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Dot), ("this", "expression")),
    **dict.fromkeys((exp.Not, exp.Exists, exp.Any, exp.All), ("this",)),
    **dict.fromkeys((exp.Is, exp.Escape), ("this", "expression", "negate")),
    exp.Between: ("this", "low", "high", "symmetric"),
    exp.In: ("this", "expressions", "query"),
    exp.Case: ("this", "ifs", "default"),
    exp.If: ("this", "true"),
    exp.Array: ("expressions", "value_constructor"),
    exp.Bracket: ("this", "expressions"),
    **dict.fromkeys((exp.Slice, exp.Collate, exp.Filter, exp.Extract), ("this", "expression")),
    exp.AtTimeZone: ("this", "zone"),
    exp.Anonymous: ("this", "expressions"),
    exp.Window: ("this", "partition_by", "order", "spec", "alias", "over"),
    exp.WindowSpec: ("kind", "start", "start_side", "end", "end_side"),
    exp.Substring: ("this", "start", "length"),
    exp.Trim: ("this", "expression", "position"),
    exp.StrPosition: ("this", "substr"),
}
"""The nodes that are known, and the parts that each may have."""


def read_query(sql: str) -> exp.Query:
    """Return the tree of a query, which must not be changed.

    Raises:
        InvalidSyntax: The text is not a query, or has syntax that is not supported here.
        LimitExceeded: The query is nested too deeply, or takes too long to parse.
    """
    return _kept(sql) if len(sql) <= _MAX_KEPT else _read(sql)


def _read(sql: str) -> exp.Query:
    tree = parse_catalog_query(sql)
    tree.meta[_TEXT] = sql
    nodes = list(tree.walk())
    for node in nodes:
        known = _KNOWN.get(type(node))
        if known is None:
            raise refusal(node)
        for name, value in node.args.items():
            if name not in known and value is not None and value is not False and value != []:
                raise refusal(node, value)
    try:
        for node in reversed(nodes):
            plain = _PLAIN.get(type(node))
            if plain is not None:
                node.replace(plain(node))
    except Error:
        raise
    except Exception:  # the parser returned a tree of an unknown shape
        raise InvalidSyntax("syntax error") from None
    return tree


_kept = lru_cache(maxsize=_KEPT)(_read)


def refusal(node: exp.Expr, part: object = None) -> InvalidSyntax:
    """Return the syntax error at a part, or at the node or its parent if the part has no position."""
    near: exp.Expr | None = node
    at = position(part) if isinstance(part, exp.Expr) else None
    while at is None and near is not None:
        at, near = position(near), near.parent
    if at is None:
        return InvalidSyntax("syntax error")
    tokens = tokenize(node.root().meta[_TEXT])
    word = tokens[min(bisect_left(tokens, at - 1, key=lambda token: token.start), len(tokens) - 1)].text
    return InvalidSyntax(f'syntax error at or near "{word}"', position=at)


def place(node: exp.Expr) -> int | None:
    """Return the 1-based position of a name or an operator."""
    if isinstance(node, exp.Anonymous) and "start" not in node.meta:
        return _before(node, node, ("extract", "position", "substring", "trim"))
    if type(node) not in SIGNS and not isinstance(node, exp.Operator):
        return position(node)
    words = SIGNS.get(type(node)) or (str(node.args["operator"]).rpartition(".")[2],)
    return _before(node, node.args.get("expression") or node.this, words)


def _before(node: exp.Expr, part: exp.Expr, words: Sequence[str]) -> int | None:
    """Return the position of the last of these words before a part; the parser does not keep it."""
    behind = position(part)
    if behind is None:
        return position(node)
    tokens = tokenize(node.root().meta[_TEXT])
    return max(
        (one.start + 1 for one in tokens if one.start + 1 < behind and one.text.lower() in words), default=behind
    )


# Nodes with one meaning


def _negative(node: exp.Neg) -> exp.Expr:
    """A number with its sign as one constant."""
    number = node.this
    if not isinstance(number, exp.Literal) or number.is_string:
        return node
    text = number.name.removeprefix("-")
    number.set("this", text if text != number.name else f"-{text}")
    return number


def _array_type(node: exp.DataType) -> exp.Expr:
    if node.this == exp.DType.ARRAY and not node.expressions:
        raise refusal(node)
    return node


def _string(node: exp.Expr, text: str) -> exp.Literal:
    made = exp.Literal.string(text)
    made.meta.update(node.meta)
    return made


def _called(name: str, parts: Callable[[Any], Sequence[exp.Expr | None]]) -> Callable[[Any], exp.Expr]:
    """A function with words between its arguments, as a plain call."""

    def plain(node: exp.Expr) -> exp.Expr:
        return exp.Anonymous(this=name, expressions=[part for part in parts(node) if part is not None])

    return plain


def _trimmed(node: exp.Trim) -> exp.Expr:
    name = {"both": "btrim", "leading": "ltrim", "trailing": "rtrim"}[str(node.args.get("position") or "both").lower()]
    return _called(name, lambda node: (node.this, node.args.get("expression")))(node)


def _anonymous(node: exp.Anonymous) -> exp.Expr:
    """ROW (…) and ALL (array) are no functions."""
    name = str(node.this).lower() if isinstance(node.this, str) else ""
    if name == "row":
        return exp.Tuple(expressions=node.expressions)
    if name in ("all", "some") and len(node.expressions) == 1:
        return (exp.All if name == "all" else exp.Any)(this=node.expressions[0])
    return node


_PLAIN: Final[dict[type[exp.Expr], Callable[[Any], exp.Expr]]] = {
    **dict.fromkeys((exp.Paren, exp.Variadic), lambda node: node.this),
    exp.Neg: _negative,
    exp.DataType: _array_type,
    **dict.fromkeys((exp.ByteString, exp.RawString, exp.Heredoc), lambda node: _string(node, str(node.this))),
    exp.BitString: lambda node: exp.Cast(this=_string(node, str(node.this)), to=exp.ObjectIdentifier(this="bit")),
    exp.Concat: lambda node: _string(node.expressions[0], "".join(one.name for one in node.expressions)),
    exp.Anonymous: _anonymous,
    exp.Trim: _trimmed,
    exp.Substring: _called(
        "substring",
        lambda node: (node.this, node.args.get("start") or exp.Literal.number(1), node.args.get("length")),
    ),
    exp.StrPosition: _called("position", lambda node: (node.this, node.args["substr"])),
    exp.Extract: _called("extract", lambda node: (exp.Literal.string(node.this.name.lower()), node.expression)),
    exp.AtTimeZone: _called("timezone", lambda node: (node.args["zone"], node.this)),
}


# Names and calls


def name_of(node: exp.Expr) -> str:
    """A name as PostgreSQL keeps it.

    Raises:
        InvalidSyntax: It is none.
    """
    if not isinstance(node, exp.Identifier):
        raise refusal(node)
    text = str(node.this)
    return (text if node.args.get("quoted") else text.lower())[:63]


def parts_of(node: exp.Expr) -> tuple[str, ...]:
    """The parts of a name that may be qualified."""
    if isinstance(node, exp.Column | exp.Table):
        return tuple(map(name_of, node.parts))
    return (*parts_of(node.this), name_of(node.expression)) if isinstance(node, exp.Dot) else (name_of(node),)


def only_query(nodes: Sequence[exp.Expr]) -> exp.Expr | None:
    """Return the only query of a list, if it has no parentheses of its own; else None."""
    lone = len(nodes) == 1 and isinstance(nodes[0], exp.Query | exp.Values) and not isinstance(nodes[0], exp.Subquery)
    return nodes[0] if lone else None


@dataclass(frozen=True)
class CatalogCall:
    """A function call with its arguments and clauses; `node` is the position of errors."""

    node: exp.Expr
    parts: tuple[str, ...]
    args: Sequence[exp.Expr]
    star: bool = False
    distinct: bool = False
    order: Sequence[exp.Expr] = ()
    filter: exp.Expr | None = None
    over: exp.Window | None = None

    @property
    def name(self) -> str:
        """The name without its schema."""
        return self.parts[-1]

    @property
    def is_plain(self) -> bool:
        """Whether it has no clause of aggregates or window functions."""
        return not (self.distinct or self.order or self.filter is not None or self.over is not None)


def call_of(node: exp.Expr) -> CatalogCall | None:
    """The call that a node is; None if it is none."""
    over, condition, function = None, None, node
    schema: tuple[str, ...] = ()
    if isinstance(function, exp.Window):
        over, function = function, function.this
    if isinstance(function, exp.Filter):
        condition, function = function.expression.this, function.this
    written = function
    if isinstance(function, exp.Table) and isinstance(function.this, exp.Anonymous):
        schema = tuple(name_of(function.args[name]) for name in ("catalog", "db") if function.args.get(name))
        function = function.this
    elif isinstance(function, exp.Dot) and isinstance(function.expression, exp.Anonymous):
        schema, function = parts_of(function.this), function.expression
    if not isinstance(function, exp.Anonymous):
        return None
    args, order, distinct = list(function.expressions), None, False
    if args and isinstance(args[-1], exp.Order):
        order, args[-1] = args[-1], args[-1].this
    if args and isinstance(args[0], exp.Distinct):
        distinct, args[:1] = True, args[0].expressions
    star = len(args) == 1 and isinstance(args[0], exp.Star)
    name = name_of(function.this) if isinstance(function.this, exp.Identifier) else str(function.this).lower()[:63]
    keys = () if order is None else order.expressions
    return CatalogCall(written, (*schema, name), () if star else args, star, distinct, keys, condition, over)
