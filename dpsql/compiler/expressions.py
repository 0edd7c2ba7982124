"""expressions: the lowering of every kind of expression, from the files that each know one family of them."""

from collections.abc import Mapping

from sqlglot import exp

from dpsql.compiler import aggregates, arithmetic, casts, logic, moments, names, texts
from dpsql.compiler.coerce import Coercion
from dpsql.compiler.lowering import Constants, Lowering, Method
from dpsql.compiler.resolve import Scope

METHODS: Mapping[type[exp.Expr], Method] = (
    names.METHODS
    | logic.METHODS
    | arithmetic.METHODS
    | texts.METHODS
    | moments.METHODS
    | casts.METHODS
    | aggregates.METHODS
)


def lowering(scope: Scope, coercion: Coercion, constants: Constants, clause: str) -> Lowering:
    """A lowering for the expressions of one clause; aggregates and windows must be allowed by `replace`."""
    return Lowering(scope, coercion, constants, METHODS, clause=clause)
