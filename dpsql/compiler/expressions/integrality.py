"""integrality: which numbers are surely whole, whatever the row, so that equal ones have one spelling."""

from decimal import Decimal

from dpsql.compiler.ir.nodes import (
    Aggregate,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    Field,
    Join,
    Literal,
    Project,
    Relation,
    SetOperation,
)
from dpsql.compiler.ir.walk import inputs
from dpsql.sqltypes import ARRAYS, SqlType

_ROUNDINGS = frozenset({"floor", "ceil", "trunc", "round", "sign"})
_KEEPING = frozenset(
    {"add", "subtract", "multiply", "negate", "abs", "modulo", "coalesce", "nullif", "least", "greatest"}
)
"""Functions that give whole numbers of whole numbers; beyond 2^53 every floating-point number is whole."""


def is_whole(expression: Expr, relation: Relation | None = None) -> bool:
    """True where an expression is a number that is whole, or NULL, in every row.

    Args:
        expression: An expression over the fields of the relation.
        relation: Where fields that are not of an integer type are looked up; without it they do not count as whole.
    """
    return _is_whole(expression, whole_fields(relation) if relation is not None else frozenset())


def whole_fields(relation: Relation) -> frozenset[Field]:
    """The numeric fields of a relation that are whole in every row, those of an integer type left out."""
    match relation:
        case Project():
            written = tuple(zip(relation.fields, relation.expressions, strict=True))
        case Aggregate():
            written = tuple(zip(relation.key_fields, relation.keys, strict=True))
        case SetOperation():
            left, right = whole_fields(relation.left), whole_fields(relation.right)
            sides = zip(relation.fields, relation.left.fields, relation.right.fields, strict=True)
            return frozenset(f for f, a, b in sides if _is_whole(Column(a), left) and _is_whole(Column(b), right))
        case Join():
            return whole_fields(relation.left) | whole_fields(relation.right)
        case _:
            # What neither computes nor scans hands its input's fields on; subqueries of its conditions have others.
            return frozenset[Field]().union(*map(whole_fields, inputs(relation))) & frozenset(relation.fields)
    inner = whole_fields(relation.input)
    return frozenset(field for field, expression in written if _is_whole(expression, inner))


def _is_whole(expression: Expr, fields: frozenset[Field]) -> bool:
    if expression.type.is_integer:
        return True
    if not expression.type.is_number:
        return False
    match expression:
        case Column():
            return expression.field in fields
        case Literal():
            return _is_whole_value(expression.value)
        case Cast():
            rounds = expression.type is SqlType.NUMERIC and expression.scale == 0
            return rounds or _is_whole(expression.argument, fields)
        case Case():
            values = (*(value for _, value in expression.branches), expression.default)
            return all(_is_whole(value, fields) for value in values)
        case Call() if expression.function in _KEEPING:
            return all(_is_whole(argument, fields) for argument in expression.arguments)
        case Call():
            return expression.function in _ROUNDINGS
    return False


def _is_whole_value(value: object) -> bool:
    return value is None or (isinstance(value, int | float | Decimal) and value == int(value))


_NOT_KEYS = ARRAYS | {SqlType.REAL, SqlType.DOUBLE, SqlType.INTERVAL, SqlType.JSON, SqlType.BYTEA}


def can_be_key(expression: Expr, relation: Relation) -> bool:
    """True where equal values over a relation have one spelling: floating-point numbers only where they are whole."""
    return expression.type not in _NOT_KEYS or is_whole(expression, relation)
