"""json_values: values as JSON, in the text that PostgreSQL gives them; post-processing alone computes it.

Rule: the combined parts are already JSON text, with NULL as the word null, so nothing is quoted twice.
"""

from collections.abc import Sequence

from sqlglot import exp

from dpsql.compiler.expressions.casts import printed
from dpsql.compiler.ir.conditions import any_of
from dpsql.compiler.ir.nodes import Call, Case, Column, Expr, Literal
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.errors import DatatypeMismatch, Error, UnsupportedQuery
from dpsql.sqltypes import SqlType

_NULL = Literal("null", SqlType.TEXT)


def json_of(lowering: Lowering, node: exp.Expr, kind: SqlType) -> Expr:
    """Return a value, or a whole row of FROM under its alias, as JSON.

    Args:
        lowering: The lowering of the query.
        node: The value.
        kind: The type of the JSON value that contains it, JSON or JSONB.

    Raises:
        DatatypeMismatch: Values of this type cannot be converted to JSON here.
        UnsupportedQuery: The row is joined with others, and an outer join may make it NULL.
    """
    columns = row_columns(lowering, node)
    if columns is None:
        return _present(_value(lowering, lowering.value(node), node, kind))
    pairs = [(_quoted(Literal(name, SqlType.TEXT)), _value(lowering, column, node, kind)) for name, column in columns]
    return _object(pairs, kind, ":", ",")


def row_columns(lowering: Lowering, node: exp.Expr) -> list[tuple[str, Column]] | None:
    """Return the columns of a FROM entry that is named as a whole row; None for other expressions."""
    found = lowering.scope.whole_row(node)
    if found is None:
        return None
    if len(lowering.scope.sources) > 1:
        raise UnsupportedQuery(
            "a whole row is only supported where FROM has one entry",
            hint="Join in a subquery, or name the columns in JSON_BUILD_OBJECT.",
            position=lowering.at(node),
        )
    return [(column, Column(field)) for column, field in found.columns]


def member(lowering: Lowering, key: exp.Expr, value: exp.Expr, kind: SqlType) -> Expr:
    """Return a key with its value, as a member of a JSON object."""
    return _joined((json_key(lowering, key), Literal(" : ", SqlType.TEXT), json_of(lowering, value, kind)), kind)


def json_key(lowering: Lowering, node: exp.Expr) -> Expr:
    """A value as the key of an object: its text, quoted; it is an error that a key is NULL."""
    text = printed(lowering, lowering.value(node), node)
    return Call("json_key", (_quoted(text),), SqlType.TEXT)


def _value(lowering: Lowering, value: Expr, node: exp.Expr, kind: SqlType) -> Expr:
    """A value as JSON; NULL stays NULL."""
    if value.type is kind or (value.type is SqlType.JSON and kind is SqlType.JSONB):
        return value
    if value.type.is_json or value.type.is_array:
        raise _no_json(lowering, value, node)
    try:
        text = printed(lowering, value, node)
    except DatatypeMismatch:
        raise _no_json(lowering, value, node) from None
    if value.type is SqlType.BOOLEAN or value.type.is_number:
        return text
    if value.type in (SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ):
        text = Call("replace", (text, Literal(" ", SqlType.TEXT), Literal("T", SqlType.TEXT)), SqlType.TEXT)
    return _quoted(_with_minutes(text) if value.type is SqlType.TIMESTAMPTZ else text)


def _no_json(lowering: Lowering, value: Expr, node: exp.Expr) -> Error:
    return DatatypeMismatch(
        f"values of type {value.type.value} cannot be made JSON here",
        hint="Cast it to text or double precision, or use the functions of json or of jsonb throughout.",
        position=lowering.at(node),
    )


def _with_minutes(moment: Expr) -> Expr:
    """A moment whose offset has minutes, as in 12:00+01:00."""
    sign = Call("left", (Call("right", (moment, _count(3)), SqlType.TEXT), _count(1)), SqlType.TEXT)
    hours_only = any_of(*(Call("eq", (sign, _text(each)), SqlType.BOOLEAN) for each in "+-"))
    return Case(((hours_only, _joined((moment, _text(":00")), SqlType.TEXT)),), moment, SqlType.TEXT)


def _count(number: int) -> Literal:
    return Literal(number, SqlType.BIGINT)


def _text(text: str) -> Literal:
    return Literal(text, SqlType.TEXT)


def _quoted(text: Expr) -> Call:
    return Call("json_string", (text,), SqlType.TEXT)


def _present(value: Expr) -> Expr:
    return Call("coalesce", (value, _NULL), value.type)


def _joined(parts: Sequence[Expr], kind: SqlType) -> Call:
    return Call("json_joined", tuple(parts), kind)


def _object(pairs: Sequence[tuple[Expr, Expr]], kind: SqlType, colon: str, comma: str) -> Expr:
    parts: list[Expr] = []
    for key, value in pairs:
        parts += [_text(comma), key, _text(colon), _present(value)]
    return _joined((_text("{"), *parts[1:], _text("}")), kind)


def _build_object(kind: SqlType) -> Method:
    """JSON_BUILD_OBJECT(key, value, …)."""

    def lower(lowering: Lowering, node: exp.Anonymous) -> Expr:
        lowering.only(node, "this", "expressions")
        if len(node.expressions) % 2:
            raise DatatypeMismatch(
                "argument list must have even number of elements",
                hint="The arguments of JSON_BUILD_OBJECT must consist of alternating keys and values.",
                position=lowering.at(node),
            )
        written = zip(node.expressions[::2], node.expressions[1::2], strict=True)
        pairs = [(json_key(lowering, key), json_of(lowering, value, kind)) for key, value in written]
        return _object(pairs, kind, " : ", ", ")

    return lower


def _build_array(kind: SqlType) -> Method:
    """JSON_BUILD_ARRAY(value, …)."""

    def lower(lowering: Lowering, node: exp.Anonymous) -> Expr:
        lowering.only(node, "this", "expressions")
        parts = [part for each in node.expressions for part in (_text(", "), json_of(lowering, each, kind))]
        return _joined((_text("["), *parts[1:], _text("]")), kind)

    return lower


def _to_json(kind: SqlType, *, rows_only: bool) -> Method:
    """TO_JSON(value) and ROW_TO_JSON(row); NULL stays NULL."""

    def lower(lowering: Lowering, node: exp.Anonymous) -> Expr:
        lowering.only(node, "this", "expressions")
        (argument,) = node.expressions if len(node.expressions) == 1 else (None,)
        if argument is None or (rows_only and row_columns(lowering, argument) is None):
            wanted = "the alias of a table or subquery of FROM" if rows_only else "one argument"
            raise UnsupportedQuery(f"{str(node.this).upper()} takes {wanted}", position=lowering.at(node))
        if row_columns(lowering, argument) is not None:
            return json_of(lowering, argument, kind)
        value = lowering.value(argument)
        return _joined((_value(lowering, value, argument, kind),), kind)

    return lower


BY_NAME: dict[str, Method] = {
    "json_build_object": _build_object(SqlType.JSON),
    "jsonb_build_object": _build_object(SqlType.JSONB),
    "json_build_array": _build_array(SqlType.JSON),
    "jsonb_build_array": _build_array(SqlType.JSONB),
    "to_json": _to_json(SqlType.JSON, rows_only=False),
    "to_jsonb": _to_json(SqlType.JSONB, rows_only=False),
    "row_to_json": _to_json(SqlType.JSON, rows_only=True),
}
