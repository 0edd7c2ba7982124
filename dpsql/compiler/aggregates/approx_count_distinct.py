"""approx_count_distinct: APPROX_COUNT_DISTINCT(x) is COUNT(DISTINCT x): the count is exact before noise is added."""

from dataclasses import replace

from sqlglot import exp

from dpsql.compiler.aggregates.base import AggregateFunction, PlainCall, always
from dpsql.compiler.ir.nodes import AggregateCall, Expr
from dpsql.compiler.scope.lowering import Lowering
from dpsql.sqltypes import SqlType

_COUNT = PlainCall("count", always(SqlType.BIGINT))


def _call(lowering: Lowering, node: exp.ApproxDistinct, condition: Expr | None) -> AggregateCall:
    return replace(_COUNT(lowering, node, condition), distinct=True)


FUNCTIONS = (AggregateFunction("approx_count_distinct", _call, nodes=(exp.ApproxDistinct,)),)
