"""conditions: conditions combined with AND and OR, split into terms, and read as equations and comparisons.

Rule: fields and constants are equal only where equal values have one spelling, so that one may replace the other.
"""

from collections.abc import Iterable

from dpsql.compiler.ir.nodes import Call, Cast, Column, Expr, Field, InList, Literal, Value
from dpsql.sqltypes import SqlType

TRUE = Literal(True, SqlType.BOOLEAN)
FALSE = Literal(False, SqlType.BOOLEAN)


def all_of(*terms: Expr | None) -> Expr:
    """Return the condition that all terms are true; None means no condition."""
    asked = tuple(term for term in terms if term is not None)
    return Call("and", asked, SqlType.BOOLEAN) if len(asked) > 1 else asked[0] if asked else TRUE


def any_of(*terms: Expr) -> Expr:
    """The condition that one term is true."""
    return Call("or", terms, SqlType.BOOLEAN) if len(terms) > 1 else terms[0] if terms else FALSE


def negated(condition: Expr) -> Call:
    """The condition that another one is false."""
    return Call("not", (condition,), SqlType.BOOLEAN)


def is_null(expression: Expr) -> Call:
    """The condition that a value is missing."""
    return Call("is_null", (expression,), SqlType.BOOLEAN)


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The terms that are all true where `condition` is true."""
    if isinstance(condition, Call) and condition.function == "and":
        return tuple(term for part in condition.arguments for term in conjuncts(part))
    return (condition,)


# The values that conditions allow

_EXACT = frozenset(
    {
        *(SqlType.BOOLEAN, SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT, SqlType.TEXT, SqlType.VARCHAR),
        *(SqlType.CHAR, SqlType.DATE, SqlType.TIME, SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ, SqlType.UUID),
    }
)


def equation(condition: Expr) -> tuple[Expr, Expr] | None:
    """The two sides of an equation, if equal values of their type always have the same text; else None."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return None
    left, right = condition.arguments
    return (left, right) if left.type in _EXACT and left.type is right.type else None


def constants(condition: Expr) -> tuple[Expr, tuple[Literal, ...]] | None:
    """An expression and the constants that a condition allows for it; None for other conditions."""
    if isinstance(condition, InList):
        argument, items = condition.argument, condition.items
        fits = argument.type in _EXACT and all(item.type is argument.type for item in items)
        return (argument, items) if fits else None
    for one, other in both_ways(equation(condition)):
        if isinstance(other, Literal):
            return one, (other,)
    return None


def compared(condition: Expr) -> tuple[str, Field, tuple[Value, ...]] | None:
    """A comparison, between included, of a column with constants, as if the column stood at its left."""
    if not isinstance(condition, Call) or condition.function not in (*_MIRRORED, "between"):
        return None
    function, (subject, *others) = condition.function, (bare(argument)[0] for argument in condition.arguments)
    if function in _MIRRORED and isinstance(subject, Literal):
        function, subject, others = _MIRRORED[function], others[0], [subject]
    literals = [other for other in others if isinstance(other, Literal)]
    if not isinstance(subject, Column) or len(literals) < len(others):
        return None
    return function, subject.field, tuple(literal.value for literal in literals)


_MIRRORED = {"eq": "eq", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def bare(expression: Expr) -> tuple[Expr, tuple[SqlType, ...]]:
    """An expression without conversions that keep values apart, and the types to convert back to, in order."""
    types: list[SqlType] = []
    while isinstance(expression, Cast) and _keeps_values(expression.argument.type, expression.type):
        expression = expression.argument
        types.append(expression.type)
    return expression, tuple(types)


def converted(expression: Expr, types: Iterable[SqlType]) -> Expr:
    """What equals a converted expression, converted back."""
    for sql_type in types:
        expression = expression if expression.type is sql_type else Cast(expression, sql_type)
    return expression


def _keeps_values(source: SqlType, target: SqlType) -> bool:
    same_kind = (source.is_integer and target.is_integer) or (source.is_text and target.is_text)
    return same_kind or (source is SqlType.DATE and target is SqlType.TIMESTAMP)


def both_ways(pair: tuple[Expr, Expr] | None) -> tuple[tuple[Expr, Expr], ...]:
    """An equation read from the left and from the right."""
    return (pair, pair[::-1]) if pair is not None else ()
