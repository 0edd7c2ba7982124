"""null_rejection: the value of an expression for a row without a unit, whose protected columns are all NULL.

An outer join that keeps public rows makes such rows where there is no match. dpsql does not make them: their presence
would reveal whether there was a match. So a query must have the same result without them.
"""

from dpsql.compiler.ir.nodes import Call, Case, Cast, Column, Expr, Field, InList, InRelation, Literal
from dpsql.sqltypes import SqlType

_NULL_AWARE = frozenset({"and", "or", "is_null", "is_true", "is_false", "distinct_from", "concat", "concat_ws"})
"""Functions that may give a value though an argument is NULL."""


def becomes_null(expression: Expr, absent: frozenset[Field]) -> bool:
    """True where an expression is surely NULL when all `absent` fields are."""
    match expression:
        case Column():
            return expression.field in absent
        case Literal():
            return expression.value is None and expression.parameter is None
        case Cast() | InList():
            return becomes_null(expression.argument, absent)
        case Case():
            taken = [value for condition, value in expression.branches if not is_not_true(condition, absent)]
            return all(becomes_null(value, absent) for value in (*taken, expression.default))
        case Call() if expression.function in ("nullif", "between"):
            return becomes_null(expression.arguments[0], absent)
        case Call() if expression.function in ("coalesce", "least", "greatest"):
            return all(becomes_null(argument, absent) for argument in expression.arguments)
        case Call() if expression.function not in _NULL_AWARE:
            return any(becomes_null(argument, absent) for argument in expression.arguments)
    return False


def is_not_true(condition: Expr, absent: frozenset[Field]) -> bool:
    """True where a condition is surely false or NULL when all `absent` fields are NULL."""
    if isinstance(condition, Call):
        if condition.function == "and":
            return any(is_not_true(term, absent) for term in condition.arguments)
        if condition.function == "or":
            return all(is_not_true(term, absent) for term in condition.arguments)
        if condition.function in ("is_true", "is_false"):
            return becomes_null(condition.arguments[0], absent)
        if condition.function == "between":
            return any(becomes_null(argument, absent) for argument in condition.arguments)
        if condition.function == "not":
            return becomes_null(condition.arguments[0], absent) or _is_true(condition.arguments[0], absent)
    if isinstance(condition, InRelation):
        return becomes_null(condition.argument, absent)
    if isinstance(condition, Literal) and condition.type is SqlType.BOOLEAN:
        return condition.value is False
    return becomes_null(condition, absent)


def _is_true(condition: Expr, absent: frozenset[Field]) -> bool:
    is_test = isinstance(condition, Call) and condition.function == "is_null"
    return is_test and isinstance(condition, Call) and becomes_null(condition.arguments[0], absent)
