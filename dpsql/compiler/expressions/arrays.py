"""arrays: elements and slices of arrays, and the items of those that the query writes.

Rule: an array of a table, or one that a function makes, is JSON of its elements' texts.
"""

import re
from collections.abc import Sequence

from sqlglot import exp

from dpsql.compiler.expressions.calls import Arguments, Called
from dpsql.compiler.expressions.casts import cast_to
from dpsql.compiler.ir.conditions import any_of, is_null
from dpsql.compiler.ir.nodes import COMPUTED_SCALE, Call, Case, Cast, Expr, Literal
from dpsql.compiler.scope.lowering import MAX_PARAMETERS, Lowering, Method, placeholder
from dpsql.errors import DatatypeMismatch, InvalidParameter, InvalidText, LimitExceeded, UnsupportedQuery
from dpsql.sqltypes import INTEGER_RANGES, SqlType

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


def _subscript(lowering: Lowering, node: exp.Bracket) -> Expr:
    """`(array)[2]` and `(array)[2:3]`; NULL where there is no such element."""
    lowering.only(node, "this", "expressions")
    array = lowering.value(node.this)
    (place,) = node.expressions if len(node.expressions) == 1 else (None,)
    if not array.type.is_array or place is None:
        raise _not_constant(lowering, node)
    if isinstance(place, exp.Slice):
        lowering.only(place, "this", "expression")
        ends = (_place(lowering, place.args.get("this"), 1), _place(lowering, place.args.get("expression"), _LAST))
        # Places before the first are no elements.
        start, end = (Literal(max(each, least), SqlType.BIGINT) for each, least in zip(ends, (1, 0), strict=True))
        return Call("array_slice", (array, start, end), array.type)
    element, index = element_type(lowering, array, node), _place(lowering, place, 1)
    if index < 1:
        return Literal(None, element)
    return of_text(Call("array_element", (array, Literal(index - 1, SqlType.BIGINT)), SqlType.TEXT), element)


_LAST = INTEGER_RANGES[SqlType.INTEGER][1]


def _place(lowering: Lowering, node: exp.Expr | None, left_out: int) -> int:
    """A constant subscript, or what it is where it is left out."""
    if node is None:
        return left_out
    number = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(number, exp.Literal) or not number.is_int:
        raise _not_constant(lowering, node)
    index = int(number.this) if number is node else -int(number.this)
    if abs(index) > _LAST:
        raise InvalidParameter("integer out of range", position=lowering.at(node))
    return index


def _not_constant(lowering: Lowering, node: exp.Expr) -> UnsupportedQuery:
    return UnsupportedQuery(
        "a subscript must be a whole number after an array",
        hint="Write (array)[2] or (array)[2:3].",
        position=lowering.at(node),
    )


_UNREAD = frozenset({SqlType.BYTEA, SqlType.INTERVAL, SqlType.JSON, SqlType.JSONB})
"""Types that an element's text is not read as: JSON that was cut is no JSON."""


def element_type(lowering: Lowering, array: Expr, node: exp.Expr) -> SqlType:
    """The type of an array's elements.

    Raises:
        DatatypeMismatch: Elements of this type cannot be read.
    """
    element = array.type.element
    if element is None or element in _UNREAD:
        raise DatatypeMismatch(
            f"an element of type {element.value if element else SqlType.UNKNOWN.value} cannot be read from its array",
            position=lowering.at(node),
        )
    return element


def of_text(text: Expr, element: SqlType) -> Expr:
    """An element, of the text that the engine made of it."""
    return (
        text if element is SqlType.TEXT else Cast(text, element, COMPUTED_SCALE if element is SqlType.NUMERIC else None)
    )


def has_element(lowering: Lowering, item: exp.Expr, array: Expr, node: exp.Expr) -> Expr | None:
    """`item = ANY (array)`, with SQL's meaning of NULL; None where the texts of equal elements may differ."""
    element = element_type(lowering, array, node)
    sides = lowering.coercion.unify_compared(
        [lowering.lower(item), Literal(None, element)], [lowering.at(item), lowering.at(node)]
    )
    if element not in _ALIKE or not sides[0].type.is_alike(element):
        return None
    return Call("array_has", (array, cast_to(lowering, sides[0], SqlType.TEXT, item)), SqlType.BOOLEAN)


def where_known(arrays: Sequence[Expr], found: Expr) -> Expr:
    """A condition that is NULL where one of the arrays is."""
    missing = any_of(*map(is_null, arrays))
    return Case(((missing, Literal(None, SqlType.BOOLEAN)),), found, SqlType.BOOLEAN) if arrays else found


_ALIKE = frozenset(
    {
        *(SqlType.TEXT, SqlType.VARCHAR, SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT),
        *(SqlType.BOOLEAN, SqlType.DATE, SqlType.UUID),
    }
)
"""Types of elements that are equal where their texts are."""


def _size(call: Arguments) -> Expr:
    """CARDINALITY(array), and ARRAY_LENGTH(array, 1), which is NULL where it is 0."""
    array = call.values[0]
    if not array.type.is_array:
        raise call.mismatch()
    size = Call("array_size", (array,), SqlType.INTEGER)
    if call.name == "cardinality":
        return size
    if call.whole(1, 1, 1) is None:
        return Literal(None, SqlType.INTEGER)
    return Call("nullif", (size, Literal(0, SqlType.INTEGER)), SqlType.INTEGER)


def _split(call: Arguments) -> Expr:
    """STRING_TO_ARRAY(text, separator)."""
    text, separator = call.text(0), call.fixed(1)
    if not separator:
        raise UnsupportedQuery(
            "STRING_TO_ARRAY needs a separator that is not empty",
            hint="Usage: STRING_TO_ARRAY(text, ',').",
            position=call.at(1),
        )
    return Call("string_to_array", (text, Literal(separator, SqlType.TEXT)), SqlType.TEXT.array)


METHODS: dict[type[exp.Expr], Method] = {exp.Bracket: _subscript}
CALLED: dict[str, Called] = {"cardinality": _size, "array_length": _size, "string_to_array": _split}
