"""determinism: whether the rows of a subquery are the same, whichever way an engine goes about making them.

An engine joins a subquery that refers to the row around it with all such rows at once, so that what it leaves open
(which of equal rows comes first, in which order numbers are added up) may be decided by the rows of others.
"""

from dpsql.compiler.ir.functions import PAIRS, SPREADS
from dpsql.compiler.ir.nodes import Aggregate, Distinct, Project, Protected, Relation, SetOperation, Sort
from dpsql.compiler.ir.walk import expressions, free_fields, nodes, scalars_in, windows_in
from dpsql.compiler.relations.joins import is_single
from dpsql.compiler.scope.lowering import Lowered
from dpsql.compiler.scope.resolve import Scope
from dpsql.errors import UnsupportedQuery
from dpsql.sqltypes import SqlType


def is_beside_people(scope: Scope) -> bool:
    """True where a row around, however far out, is a protected one."""
    return any(each.protected is not None for each in (scope, *scope.around()))


def refuse_undetermined(lowered: Lowered, scope: Scope, at: int | None) -> None:
    """Refuse a subquery over public rows that refers to a protected row, and leaves something open.

    Raises:
        UnsupportedQuery: It does.
    """
    if isinstance(lowered.status, Protected) or not is_beside_people(scope):
        return
    if any(leaves_open(node) and free_fields(node) for node in nodes(lowered.relation)):
        raise UnsupportedQuery(
            "LIMIT, windows, SUM and AVG of public rows are not supported in a subquery about a protected row",
            hint="Compute them in a separate CTE, and join its result.",
            position=at,
        )


def leaves_open(relation: Relation) -> bool:
    """True where what a node gives may depend on more than the rows that it is given, or be an error."""
    values = (value for expression in expressions(relation) for value in scalars_in(expression))
    if any(free_fields(value) and not is_single(value) for value in values):
        return True
    match relation:
        case Sort():
            return relation.limit is not None or relation.offset > 0
        case Project():
            return any(windows_in(expression) for expression in relation.expressions)
        case Aggregate():
            added = (c.argument for c in relation.aggregates if c.function in ("sum", "avg") and c.grid is None)
            inexact = any(part is not None and not part.type.is_integer for part in added)
            inexact = inexact or any(call.function in SPREADS | PAIRS for call in relation.aggregates)
            # A month and 30 days are one group, and either may stand for it.
            return inexact or any(key.type is SqlType.INTERVAL for key in relation.keys)
        case Distinct() | SetOperation():
            return any(field.type is SqlType.INTERVAL for field in relation.fields)
        case _:
            return False
