"""expressions: the lowering of every kind of expression, from the files that each know one family of them."""

from collections.abc import Mapping

from sqlglot import exp

from dpsql.compiler import (
    aggregates,
    arithmetic,
    calls,
    casts,
    formats,
    logic,
    moments,
    names,
    patterns,
    subqueries,
    texts,
)
from dpsql.compiler.coerce import Coercion
from dpsql.compiler.lowering import Constants, Fields, Lowering, Method, Subquery
from dpsql.compiler.resolve import Scope

CALLED: Mapping[str, calls.Called] = (
    logic.CALLED | arithmetic.CALLED | texts.CALLED | patterns.CALLED | formats.CALLED | moments.CALLED
)
METHODS: Mapping[type[exp.Expr], Method] = (
    names.METHODS
    | logic.METHODS
    | arithmetic.METHODS
    | texts.METHODS
    | patterns.METHODS
    | moments.METHODS
    | casts.METHODS
    | aggregates.METHODS
    | subqueries.METHODS
    | {exp.Anonymous: calls.method(CALLED, moments.BY_NAME | aggregates.BY_NAME)}
)


def lowering(
    scope: Scope, coercion: Coercion, constants: Constants, fields: Fields, subquery: Subquery, clause: str
) -> Lowering:
    """A lowering for the expressions of one clause; aggregates and windows must be allowed by `replace`."""
    return Lowering(scope, coercion, constants, fields, subquery, METHODS, clause=clause)
