"""json_access: what is read out of JSON, by constant keys and places.

Rule: `->>` is the text of the scalar that `->` gives; objects and arrays have no text, which could be of any length.
"""

import re

from sqlglot import exp

from dpsql.compiler.expressions.calls import Arguments, Called
from dpsql.compiler.expressions.containment import OPERATORS
from dpsql.compiler.ir.nodes import Call, Expr, Literal
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.errors import DatatypeMismatch, InvalidText, UnsupportedQuery
from dpsql.sqltypes import INTEGER_RANGES, SqlType

_PLACE = re.compile(r"-?[0-9]{1,9}")
_PATH = re.compile(r"\{\s*(.*?)\s*\}", re.S)


def _operator(lowering: Lowering, node: exp.Operator) -> Expr:
    """The operators ->, ->>, #> and #>>."""
    lowering.only(node, "this", "operator", "expression")
    symbol, place = str(node.args["operator"]), node.expression
    if symbol in OPERATORS:
        return OPERATORS[symbol](lowering, node)
    if symbol not in ("->", "->>", "#>", "#>>"):
        raise UnsupportedQuery(f"operator {symbol} is not supported", position=lowering.at(node))
    found = _json(lowering, f"operator {symbol}", lowering.lower(node.this), node)
    if symbol.startswith("#"):
        for key in _keys(lowering, node, place):
            found = _either(found, key)
    else:
        found = _step(lowering, found, node, place)
    return _scalar(found) if symbol.endswith(">>") else found


def _json(lowering: Lowering, what: str, value: Expr, node: exp.Expr) -> Expr:
    if not value.type.is_json:
        raise DatatypeMismatch(f"{what} needs json, not {value.type.value}", position=lowering.at(node))
    return value


def _step(lowering: Lowering, value: Expr, node: exp.Expr, place: exp.Expr) -> Expr:
    """The member of an object, or the element of an array."""
    number = place.this if isinstance(place, exp.Neg) else place
    if isinstance(number, exp.Literal) and number.is_int:
        index = -int(number.this) if number is not place else int(number.this)
        if abs(index) <= INTEGER_RANGES[SqlType.INTEGER][1]:
            return Call("json_element", (value, Literal(index, SqlType.BIGINT)), value.type)
    if not isinstance(place, exp.Literal) or not place.is_string:
        raise UnsupportedQuery(
            "a key of JSON must be a constant text or integer",
            hint="Put what comes before another operator in parentheses, as in (data ->> 'key') || 'x'.",
            position=lowering.at(node),
        )
    return Call("json_get", (value, Literal(_plain_key(lowering, place), SqlType.TEXT)), value.type)


def _plain_key(lowering: Lowering, place: exp.Literal) -> str:
    """Keys that engines would read as more than a key are not supported."""
    key = str(place.this)
    if '"' in key or "\\" in key:
        raise UnsupportedQuery('keys with " and \\ are not supported', position=lowering.at(place))
    return key


def _keys(lowering: Lowering, node: exp.Expr, path: exp.Expr) -> list[str]:
    """The keys of a path such as '{a,0,b}'."""
    text = str(path.this) if isinstance(path, exp.Literal) and path.is_string else None
    if isinstance(path, exp.Array) and all(isinstance(key, exp.Literal) and key.is_string for key in path.expressions):
        return [_plain_key(lowering, key) for key in path.expressions]
    if text is None:
        raise UnsupportedQuery(
            "a path into JSON must be a constant", hint="Write '{key,0}'.", position=lowering.at(node)
        )
    match = _PATH.fullmatch(text.strip())
    if match is None or re.search(r'["\\{}]', match[1]):
        raise InvalidText(f'malformed path: "{text[:64]}"', hint="Write '{key,0}'.", position=lowering.at(path))
    return [key.strip() for key in match[1].split(",")] if match[1] else []


def _either(value: Expr, key: str) -> Expr:
    """A step of a path, where a number is a place in an array and a key of an object."""
    function = "json_either" if _PLACE.fullmatch(key) else "json_get"
    return Call(function, (value, Literal(key, SqlType.TEXT)), value.type)


def _scalar(value: Expr) -> Expr:
    return Call("json_scalar", (value,), SqlType.TEXT)


def _extracted(*, as_text: bool) -> Called:
    """JSON_EXTRACT_PATH(json, 'key', …) and JSON_EXTRACT_PATH_TEXT."""

    def lower(call: Arguments) -> Expr:
        found = call.json(0)
        for index in range(1, len(call)):
            found = _either(found, _plain_path(call, index))
        return _scalar(found) if as_text else found

    return lower


def _plain_path(call: Arguments, index: int) -> str:
    key = call.fixed(index)
    node = call.nodes[index]
    if key is None or not isinstance(node, exp.Literal):
        raise UnsupportedQuery("a key of JSON must be a constant text", position=call.at(index))
    return _plain_key(call.lowering, node)


def _typeof(call: Arguments) -> Expr:
    return Call("json_typeof", (call.json(0),), SqlType.TEXT)


def _length(call: Arguments) -> Expr:
    return Call("json_length", (call.json(0),), SqlType.INTEGER)


METHODS: dict[type[exp.Expr], Method] = {exp.Operator: _operator}
CALLED: dict[str, Called] = {
    f"{kind}{name}": called
    for kind in ("json_", "jsonb_")
    for name, called in (
        ("extract_path", _extracted(as_text=False)),
        ("extract_path_text", _extracted(as_text=True)),
        ("typeof", _typeof),
        ("array_length", _length),
    )
}
