"""containment: what arrays and JSON contain, by the operators @>, <@, &&, ?, ?| and ?&.

Rule 1: what JSON must contain is a constant.
Rule 2: an element of an array that is NULL is contained in none, and equal to none.
"""

import json
from collections.abc import Iterator
from decimal import Decimal

from sqlglot import exp

from dpsql.compiler.expressions.arrays import array_items, where_known
from dpsql.compiler.ir.conditions import FALSE, TRUE, all_of, any_of, negated
from dpsql.compiler.ir.nodes import Call, Expr, Literal
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.compiler.sql.rewriting import joined_by_and, replaced
from dpsql.errors import LimitExceeded, UndefinedFunction, UnsupportedQuery
from dpsql.sqltypes import SqlType

_SIGNS: dict[type[exp.Expr], str] = {
    exp.ArrayContainsAll: "@>",
    exp.ArrayContainedBy: "<@",
    exp.ArrayOverlaps: "&&",
    exp.JSONBContainsTopKey: "?",
}
_ELEMENT = exp.to_identifier(" element", quoted=True)
"""A name that no query has for a column."""
_MAX_PARTS = 50
"""Values in a constant that JSON must contain: DuckDB reads all elements of an array for each of them."""
_MAX_ARRAYS = 4
"""Arrays within each other in such a constant: with each, DuckDB takes twice the time to plan."""
_TOO_LARGE = 10**23
"""The least number that is NULL where DuckDB compares with it."""


def _type(lowering: Lowering, side: exp.Expr) -> SqlType:
    """The type of a side; unknown for a constant or a parameter."""
    if isinstance(side, exp.Parameter | exp.Null) or (isinstance(side, exp.Literal) and side.is_string):
        return SqlType.UNKNOWN
    return SqlType.ARRAY if array_items(lowering, side) is not None else lowering.lower(side).type


def _sign(node: exp.Expr) -> str:
    return str(node.args["operator"]) if isinstance(node, exp.Operator) else _SIGNS[type(node)]


def _undefined(lowering: Lowering, node: exp.Binary) -> UndefinedFunction:
    """The error for sides of other types than an operator has."""
    sides = (node.this, node.expression)
    left, right = (_type(lowering, side) for side in sides)
    texts = [side for side, kind in zip(sides, (left, right), strict=True) if kind.is_text]
    is_overlap = _sign(node) == "&&"
    hint = (
        "&& compares arrays. AND joins conditions." if is_overlap else "Text must be cast to jsonb." if texts else None
    )
    return UndefinedFunction(
        f"operator does not exist: {left.value} {_sign(node)} {right.value}",
        hint=hint,
        position=lowering.at(node),
        queries=joined_by_and(node) if is_overlap else replaced(texts[0], "CAST({} AS jsonb)") if texts else (),
    )


# Arrays


def _are_arrays(lowering: Lowering, node: exp.Binary) -> bool:
    """Whether the sides are arrays; else they are JSON."""
    known = {_type(lowering, side) for side in (node.this, node.expression)} - {SqlType.UNKNOWN}
    if not (all(each.is_array for each in known) or all(each.is_json for each in known)):
        raise _undefined(lowering, node)
    return all(each.is_array for each in known)


def _contains(lowering: Lowering, node: exp.Binary) -> Expr:
    return _contained(lowering, node, node.expression, node.this)


def _is_contained(lowering: Lowering, node: exp.Binary) -> Expr:
    return _contained(lowering, node, node.this, node.expression)


def _contained(lowering: Lowering, node: exp.Binary, part: exp.Expr, whole: exp.Expr) -> Expr:
    if not _are_arrays(lowering, node):
        return _json_contains(lowering, node, part, whole)
    return _where_known(lowering, node, _compared(lowering, part, whole, every=True))


def _overlap(lowering: Lowering, node: exp.Binary) -> Expr:
    if not _are_arrays(lowering, node):
        raise _undefined(lowering, node)
    sides = (node.this, node.expression)
    is_written = array_items(lowering, node.expression) is not None
    found = _compared(lowering, *(sides[::-1] if is_written else sides), every=False)
    return _where_known(lowering, node, found)


def _compared(lowering: Lowering, part: exp.Expr, whole: exp.Expr, *, every: bool) -> Expr:
    """Whether every element of an array is one of another, or at least one is."""
    if isinstance(part, exp.Null) or isinstance(whole, exp.Null):
        return Literal(None, SqlType.BOOLEAN)
    items = array_items(lowering, part)
    if items is not None:
        terms = [lowering.lower(_among(item, whole)) for item in items]
        return (all_of if every else any_of)(*terms) if terms else TRUE if every else FALSE
    alias = exp.TableAlias(this=_ELEMENT.copy(), columns=[_ELEMENT.copy()])
    rows = exp.Unnest(expressions=[part.copy()], alias=alias)
    found = _among(exp.Column(this=_ELEMENT.copy()), whole)
    where = exp.Where(this=exp.Not(this=found) if every else found)
    query = exp.Select(expressions=[exp.Literal.number(1)], from_=exp.From(this=rows), where=where)
    exists = lowering.lower(exp.Exists(this=query))
    return negated(exists) if every else exists


def _among(item: exp.Expr, array: exp.Expr) -> exp.Expr:
    equal = exp.EQ(this=item.copy(), expression=exp.Any(this=exp.Paren(this=array.copy())))
    return exp.Is(this=exp.Paren(this=equal), expression=exp.Boolean(this=True))


def _where_known(lowering: Lowering, node: exp.Binary, found: Expr) -> Expr:
    read = (side for side in (node.this, node.expression) if array_items(lowering, side) is None)
    return where_known([lowering.lower(side) for side in read if not isinstance(side, exp.Null)], found)


# JSON


def _json(lowering: Lowering, node: exp.Binary, side: exp.Expr) -> Expr:
    value = lowering.lower(side)
    if not value.type.is_json and value.type is not SqlType.UNKNOWN:
        raise _undefined(lowering, node)
    return lowering.coercion.to(value, SqlType.JSONB, lowering.at(side))


def _json_contains(lowering: Lowering, node: exp.Binary, part: exp.Expr, whole: exp.Expr) -> Expr:
    value, wanted = _json(lowering, node, whole), _json(lowering, node, part)
    if not isinstance(wanted, Literal):
        raise UnsupportedQuery(
            "what JSON must contain must be a constant",
            hint="Write data @> '{\"key\": \"value\"}', or compare data ->> 'key'.",
            position=lowering.at(node),
        )
    if wanted.value is None:
        return Literal(None, SqlType.BOOLEAN)
    parts = list(_parts(json.loads(str(wanted.value), parse_int=Decimal, parse_float=Decimal), 0))
    large = (part for part, _ in parts if isinstance(part, Decimal) and abs(part) >= _TOO_LARGE)
    if len(parts) > _MAX_PARTS or max(depth for _, depth in parts) > _MAX_ARRAYS or any(large):
        raise LimitExceeded(
            f"what JSON must contain may have at most {_MAX_PARTS} values, {_MAX_ARRAYS} arrays within each other and "
            "numbers below 10^23",
            hint="Ask for less, or compare data ->> 'key'.",
            position=lowering.at(node),
        )
    return Call("json_contains", (value, wanted), SqlType.BOOLEAN)


def _parts(value: object, depth: int) -> Iterator[tuple[object, int]]:
    """JSON and all values in it, each with the number of arrays around it, itself included."""
    depth += isinstance(value, list)
    yield value, depth
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _parts(each, depth)


def _has_key(lowering: Lowering, node: exp.Binary) -> Expr:
    return _key_among(lowering, node, node.expression)


def _key_among(lowering: Lowering, node: exp.Binary, key: exp.Expr) -> Expr:
    return Call("json_has_key", (_json(lowering, node, node.this), lowering.text(key)), SqlType.BOOLEAN)


def _has_keys(*, every: bool) -> Method:
    """`data ?| ARRAY[…]` and `data ?& ARRAY[…]`."""

    def lower(lowering: Lowering, node: exp.Binary) -> Expr:
        items = array_items(lowering, node.expression)
        if not items:
            raise UnsupportedQuery(
                f"{_sign(node)} takes an array of keys that the query writes",
                hint="Write ARRAY['key', 'other'].",
                position=lowering.at(node),
            )
        return (all_of if every else any_of)(*(_key_among(lowering, node, item) for item in items))

    return lower


METHODS: dict[type[exp.Expr], Method] = {
    exp.ArrayContainsAll: _contains,
    exp.ArrayContainedBy: _is_contained,
    exp.ArrayOverlaps: _overlap,
    exp.JSONBContainsTopKey: _has_key,
}
OPERATORS: dict[str, Method] = {
    "@>": _contains,
    "<@": _is_contained,
    "&&": _overlap,
    "?": _has_key,
    "?|": _has_keys(every=False),
    "?&": _has_keys(every=True),
}
"""Operators by their symbols, as in OPERATOR(@>)."""
