"""magnitude: how large and how small a floating-point number may be, by its expression alone.

Rule: only what types and constants say counts; what tables hold, and what policies declare, does not.
"""

from math import frexp

from dpsql.compiler.ir.nodes import Call, Case, Cast, Expr, Literal
from dpsql.sqltypes import SqlType

FULL = (-1074, 1024)
"""Any floating-point number."""
_BY_TYPE = {
    SqlType.SMALLINT: (0, 15),
    SqlType.INTEGER: (0, 31),
    SqlType.BIGINT: (0, 63),
    SqlType.NUMERIC: (-130, 130),  # of 38 digits
}
_PRECISION = 53

Magnitude = tuple[int, int]


def magnitude(expression: Expr) -> Magnitude:
    """Exponents (low, high): whatever the row, a value is NULL, 0, or of a size from 2^low to 2^high."""
    match expression:
        case Literal():
            return _of_constant(expression)
        case Cast() if expression.type is SqlType.DOUBLE:
            return magnitude(expression.argument)
        case Case():
            return _hull([magnitude(value) for value in (*(v for _, v in expression.branches), expression.default)])
        case Call() if expression.function in _RULES:
            return _inside(_RULES[expression.function]([magnitude(part) for part in expression.arguments]))
    return _BY_TYPE.get(expression.type, FULL)


def _of_constant(literal: Literal) -> Magnitude:
    if not literal.type.is_number or not literal.value:
        return (0, 0)
    _, exponent = frexp(float(str(literal.value)))
    return (exponent - 1, exponent)


def _inside(found: Magnitude) -> Magnitude:
    return max(found[0], FULL[0]), min(found[1], FULL[1])


def _hull(parts: list[Magnitude]) -> Magnitude:
    return min(low for low, _ in parts), max(high for _, high in parts)


def _sum(parts: list[Magnitude]) -> Magnitude:
    """What is left where numbers nearly cancel is no smaller than the last digit of either."""
    low, high = _hull(parts)
    return low - _PRECISION, high + 1


def _product(parts: list[Magnitude]) -> Magnitude:
    (low, high), (other_low, other_high) = parts
    return low + other_low - 1, high + other_high + 1


def _quotient(parts: list[Magnitude]) -> Magnitude:
    (low, high), (other_low, other_high) = parts
    return low - other_high - 1, high - other_low + 1


def _rounded(parts: list[Magnitude]) -> Magnitude:
    return 0, max(parts[0][1] + 1, 1)


_RULES = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _product,
    "divide": _quotient,
    **dict.fromkeys(("negate", "abs", "coalesce", "nullif", "least", "greatest"), _hull),
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), _rounded),
}
_NORMAL = (-1020, 1022)
"""Exponents that leave room for rounding."""


def stays_normal(call: Call) -> bool:
    """True where a sum, product or quotient neither grows too large nor vanishes."""
    low, high = _RULES[call.function]([magnitude(part) for part in call.arguments])
    vanishes = call.function in ("multiply", "divide") and low < _NORMAL[0]
    return high <= _NORMAL[1] and not vanishes
