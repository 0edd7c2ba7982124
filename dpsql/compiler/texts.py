"""texts: functions of character strings."""

from sqlglot import exp

from dpsql.compiler.casts import as_text
from dpsql.compiler.ir import Call, Case, Cast, Expr, Literal
from dpsql.compiler.lowering import Lowering, Method
from dpsql.errors import QueryTooComplex, UndefinedFunction, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_REPLACEMENT = 100

_TEXT_FUNCTIONS: dict[type[exp.Expr], tuple[str, SqlType]] = {
    exp.Lower: ("lower", SqlType.TEXT),
    exp.Upper: ("upper", SqlType.TEXT),
    exp.Length: ("length", SqlType.INTEGER),
    exp.Reverse: ("reverse", SqlType.TEXT),
}


def _text_function(lowering: Lowering, node: exp.Expr) -> Expr:
    lowering.only(node, "this")
    name, result = _TEXT_FUNCTIONS[type(node)]
    call = Call(name, (lowering.text(node.this),), SqlType.BIGINT if result is SqlType.INTEGER else result)
    return Cast(call, result) if result is SqlType.INTEGER else call


def _left(lowering: Lowering, node: exp.Expr) -> Expr:
    name = "left" if isinstance(node, exp.Left) else "right"
    lowering.only(node, "this", "expression")
    count = lowering.whole(node.args["expression"], name.upper(), -10_000, 10_000)
    return Call(name, (lowering.text(node.this), count), SqlType.TEXT)


def _substring(lowering: Lowering, node: exp.Substring) -> Expr:
    lowering.only(node, "this", "start", "length")
    start = node.args.get("start")
    first = lowering.whole(start, "SUBSTRING", 1, 10_000) if start is not None else Literal(1, SqlType.INTEGER)
    arguments: list[Expr] = [lowering.text(node.this), first]
    if node.args.get("length") is not None:
        arguments.append(lowering.whole(node.args["length"], "SUBSTRING", 0, 10_000))
    return Call("substring", tuple(arguments), SqlType.TEXT)


def _trim(lowering: Lowering, node: exp.Trim) -> Expr:
    lowering.only(node, "this", "position", "expression")
    names = {"LEADING": "ltrim", "TRAILING": "rtrim", "BOTH": "trim", "": "trim"}
    name = names[str(node.args.get("position") or "").upper()]
    arguments = [lowering.text(node.this)]
    if node.args.get("expression") is not None:
        arguments.append(lowering.text(node.args["expression"]))
    return Call(name, tuple(arguments), SqlType.TEXT)


def _replace(lowering: Lowering, node: exp.Replace) -> Expr:
    lowering.only(node, "this", "expression", "replacement")
    if node.args.get("replacement") is None:
        raise UndefinedFunction("REPLACE takes three arguments", position=lowering.at(node))
    parts = [lowering.text(node.args[name]) for name in ("expression", "replacement")]
    if not all(isinstance(part, Literal) for part in parts):
        raise UnsupportedQuery("REPLACE takes constants to search and to put", position=lowering.at(node))
    if any(isinstance(part, Literal) and len(str(part.value)) > MAX_REPLACEMENT for part in parts):
        raise QueryTooComplex(f"REPLACE takes constants of {MAX_REPLACEMENT} characters at the most")
    return Call("replace", (lowering.text(node.this), *parts), SqlType.TEXT)


def _strpos(lowering: Lowering, node: exp.StrPosition) -> Expr:
    lowering.only(node, "this", "substr")
    arguments = (lowering.text(node.this), lowering.text(node.args["substr"]))
    return Cast(Call("strpos", arguments, SqlType.BIGINT), SqlType.INTEGER)


def _starts_with(lowering: Lowering, node: exp.StartsWith) -> Expr:
    return Call("starts_with", (lowering.text(node.this), lowering.text(node.expression)), SqlType.BOOLEAN)


def _concat(lowering: Lowering, node: exp.Concat) -> Expr:
    lowering.only(node, "expressions", "safe", "coalesce")
    return Call("concat", tuple(_concatenated(lowering, part) for part in node.expressions), SqlType.TEXT)


def _concatenated(lowering: Lowering, node: exp.Expr) -> Expr:
    """A part of CONCAT, which prints booleans as t and f."""
    value = lowering.value(node)
    if value.type is not SqlType.BOOLEAN:
        return as_text(lowering, node)
    negated = Call("not", (value,), SqlType.BOOLEAN)
    letters = ((value, Literal("t", SqlType.TEXT)), (negated, Literal("f", SqlType.TEXT)))
    return Case(letters, Literal(None, SqlType.TEXT), SqlType.TEXT)


def _concat_operator(lowering: Lowering, node: exp.DPipe) -> Expr:
    lowering.only(node, "this", "expression", "safe")
    return Call("concat_operator", (as_text(lowering, node.this), as_text(lowering, node.expression)), SqlType.TEXT)


METHODS: dict[type[exp.Expr], Method] = {
    **dict.fromkeys(_TEXT_FUNCTIONS, _text_function),
    exp.Left: _left,
    exp.Right: _left,
    exp.Substring: _substring,
    exp.Trim: _trim,
    exp.Replace: _replace,
    exp.StrPosition: _strpos,
    exp.StartsWith: _starts_with,
    exp.Concat: _concat,
    exp.DPipe: _concat_operator,
}
