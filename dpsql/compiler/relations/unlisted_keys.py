"""unlisted_keys: keys that lead to the unit and are not listed: they join, group by unit, and count units."""

from dpsql.compiler.ir.nodes import Call, Expr, Field, InRelation, Window
from dpsql.compiler.ir.walk import operands
from dpsql.compiler.relations.joins import plain_column
from dpsql.compiler.scope.resolve import Scope
from dpsql.errors import UndefinedColumn


def refuse_unlisted(expression: Expr, scope: Scope, at: int | None, links: frozenset[Field] = frozenset()) -> None:
    """Refuse an expression that looks at a hidden key.

    Args:
        expression: What is looked through; subqueries in it have been looked through before.
        scope: Where it stands.
        at: Where it stands in the text.
        links: Fields that hidden keys may be equated with.

    Raises:
        UndefinedColumn: It does.
    """
    hidden = scope.hidden
    if hidden and _looks_at(expression, hidden, links | hidden):
        raise UndefinedColumn(
            "this key may only be used in joins, GROUP BY, COUNT(DISTINCT …) and IS NULL",
            hint="It is a key to the privacy unit, and the policy does not list it as a column.",
            position=at,
        )


def _looks_at(expression: Expr, hidden: frozenset[Field], links: frozenset[Field]) -> bool:
    if isinstance(expression, Call) and expression.function == "eq":
        sides = [plain_column(side) for side in expression.arguments]
        if all(side is not None and side in links for side in sides):
            return False
    is_null = isinstance(expression, Call) and expression.function == "is_null"
    if is_null and plain_column(operands(expression)[0]) in hidden:
        return False
    if isinstance(expression, InRelation) and plain_column(expression.argument) in hidden:
        return False  # looked at when it was lowered: it is among the keys of its own unit
    parts = operands(expression)
    if isinstance(expression, Window):
        parts = tuple(part for part in parts if part not in expression.partition or plain_column(part) not in hidden)
    if not parts:
        return plain_column(expression) in hidden
    return any(_looks_at(part, hidden, links) for part in parts)
