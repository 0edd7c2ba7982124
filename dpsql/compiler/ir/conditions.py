"""conditions: how conditions are made of others, and taken apart again."""

from dpsql.compiler.ir.nodes import Call, Expr, Literal
from dpsql.sqltypes import SqlType

TRUE = Literal(True, SqlType.BOOLEAN)
FALSE = Literal(False, SqlType.BOOLEAN)


def all_of(*terms: Expr | None) -> Expr:
    """The condition that all terms are true; a term that is None asks for nothing."""
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
