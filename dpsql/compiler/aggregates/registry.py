"""registry: every family of aggregates. A new family is a file, and a line here."""

from collections.abc import Mapping

from sqlglot import exp

from dpsql.compiler.aggregates import (
    approx_count_distinct,
    boolean,
    collected,
    count,
    histogram,
    mode,
    quantile,
    total,
    variance,
)
from dpsql.compiler.aggregates.base import AggregateFunction, Estimate, Primitives
from dpsql.compiler.ir.nodes import AggregateCall

_FUNCTIONS = (
    *count.FUNCTIONS,
    *total.FUNCTIONS,
    *variance.FUNCTIONS,
    *quantile.FUNCTIONS,
    *boolean.FUNCTIONS,
    *mode.FUNCTIONS,
    *approx_count_distinct.FUNCTIONS,
    *histogram.FUNCTIONS,
    *collected.FUNCTIONS,
)
FUNCTIONS: Mapping[str, AggregateFunction] = {each.name: each for each in _FUNCTIONS}
"""By the names that calls have."""
BY_NODE: Mapping[type[exp.Expr], AggregateFunction] = {node: each for each in _FUNCTIONS for node in each.nodes}
WITHIN_GROUP: Mapping[type[exp.Expr], AggregateFunction] = {
    node: each for each in _FUNCTIONS for node in each.within_group
}
BY_NAME: Mapping[str, AggregateFunction] = {
    each.name: each for each in _FUNCTIONS if not each.nodes and not each.within_group
}
"""Those that are called as any function is, by the names that stand there."""


def estimate_of(call: AggregateCall, primitives: Primitives) -> Estimate:
    """The estimate of an aggregate call, whose primitives are added to the list.

    Raises:
        PolicyViolation: An argument has no finite bounds.
        LimitExceeded: There are too many primitives.
    """
    build = FUNCTIONS[call.function].build
    if build is None:
        raise TypeError(f"{call.function} is a release of its own")
    return build(call, primitives)
