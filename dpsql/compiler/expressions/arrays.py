"""arrays: elements of arrays, and the items of an array after ANY or ALL: a constructor, a literal or a parameter."""

import re

from sqlglot import exp

from dpsql.compiler.expressions.casts import cast_to
from dpsql.compiler.ir.nodes import Call, Expr, Literal
from dpsql.compiler.ir.walk import as_numeric
from dpsql.compiler.scope.lowering import MAX_PARAMETERS, Lowering, Method, placeholder
from dpsql.errors import DatatypeMismatch, InvalidText, LimitExceeded, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_ITEMS = 5_000
_ITEM = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^,{}"\\]+?))\s*(,|$)', re.S)


def array_items(lowering: Lowering, node: exp.Expr) -> list[exp.Expr] | None:
    """Return the items of an array; None for other expressions.

    Raises:
        InvalidText: A literal cannot be read.
        LimitExceeded: The array has too many items.
        DatatypeMismatch: The value of a parameter is not a list.
    """
    items = _items(lowering, node)
    if items is not None and len(items) > MAX_ITEMS:
        raise LimitExceeded(f"an array may have at most {MAX_ITEMS:,} items here", position=lowering.at(node))
    return items


def _items(lowering: Lowering, node: exp.Expr) -> list[exp.Expr] | None:
    if isinstance(node, exp.Array):
        return list(node.expressions)
    if isinstance(node, exp.Literal) and node.is_string:
        return [exp.Null() if item is None else exp.Literal.string(item) for item in _read(lowering, node)]
    given = placeholder(node)
    if given is not None and given < MAX_PARAMETERS:
        found = lowering.parameters.elements(given, lowering.at(node))
        return [exp.Parameter(this=exp.Literal.number(index + 1)) for index in found]
    if isinstance(node, exp.Cast) and isinstance(node.to, exp.DataType) and node.to.this == exp.DType.ARRAY:
        items = _items(lowering, node.this)
        (element,) = node.to.expressions
        return None if items is None else [exp.Cast(this=item, to=element.copy()) for item in items]
    return None


def _read(lowering: Lowering, node: exp.Literal) -> list[str | None]:
    """The items of '{a,"b c",NULL}'."""
    text = str(node.this).strip()
    inner, found, at = text[1:-1], list[str | None](), 0
    if not (text.startswith("{") and text.endswith("}") and len(text) > 1):
        raise InvalidText(f'malformed array literal: "{text[:64]}"', position=lowering.at(node))
    while inner.strip() and at <= len(inner):
        match = _ITEM.match(inner, at)
        if match is None:
            raise InvalidText(f'malformed array literal: "{text[:64]}"', position=lowering.at(node))
        quoted, plain, more = match.groups()
        found.append(
            re.sub(r"\\(.)", r"\1", quoted, flags=re.S) if plain is None else None if plain.upper() == "NULL" else plain
        )
        at = match.end() if more else len(inner) + 1
    return found


def _element(lowering: Lowering, node: exp.Bracket) -> Expr:
    """`(array)[2]`, of an array that was released or is public; NULL where there is no such element."""
    lowering.only(node, "this", "expressions")
    array = lowering.value(node.this)
    element = array.type.element
    (place,) = node.expressions if len(node.expressions) == 1 else (None,)
    if element is None or not isinstance(place, exp.Literal) or not place.is_int:
        raise UnsupportedQuery(
            "a subscript must be a whole number after an array", hint="Write (array)[2].", position=lowering.at(node)
        )
    if element is not SqlType.NUMERIC and element not in _READ:
        raise DatatypeMismatch(
            f"an element of type {element.value} cannot be read from its array", position=lowering.at(node)
        )
    if int(place.this) == 0:
        return Literal(None, element)
    path = Literal(f"$[{int(place.this) - 1}]", SqlType.TEXT)
    text = Call("array_element", (array, path), SqlType.TEXT)
    if element is SqlType.NUMERIC:
        return as_numeric(cast_to(lowering, text, SqlType.DOUBLE, node))
    return cast_to(lowering, text, element, node)


_READ = frozenset(
    {
        *(SqlType.BOOLEAN, SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT, SqlType.REAL, SqlType.DOUBLE),
        *(SqlType.TEXT, SqlType.VARCHAR, SqlType.DATE, SqlType.TIME, SqlType.TIMESTAMP),
    }
)
"""Types of elements, and numeric, which their texts are read as."""
METHODS: dict[type[exp.Expr], Method] = {exp.Bracket: _element}
