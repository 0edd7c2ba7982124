"""empty_results: queries that have no rows on any data, and subqueries whose rows an engine may choose.

Clients send queries without rows to learn the columns: LIMIT 0, WHERE 1 = 0. The query alone shows that there are no
rows, so nothing is read and nothing is charged.

An engine may answer a correlated subquery for all outer rows in one join. The rows of others may then decide what SQL
leaves open: which of several equal rows comes first, and in which order numbers are added.
"""

from dataclasses import replace

from dpsql.compiler.ir.conditions import FALSE
from dpsql.compiler.ir.functions import COLLECTED, PAIRS, SPREADS
from dpsql.compiler.ir.nodes import (
    Aggregate,
    Call,
    Distinct,
    Expr,
    Filter,
    InList,
    Join,
    Literal,
    Project,
    Protected,
    Public,
    Relation,
    Release,
    SetOperation,
    Sort,
    UnitWindows,
    Values,
)
from dpsql.compiler.ir.walk import expressions, free_fields, nodes, scalars_in, windows_in
from dpsql.compiler.relations.joins import is_single
from dpsql.compiler.scope.lowering import Lowered
from dpsql.compiler.scope.resolve import Scope
from dpsql.compiler.sql.constant_folding import COMPARISONS, compared
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
            inexact = inexact or any(call.function in SPREADS | PAIRS | COLLECTED for call in relation.aggregates)
            # A month and 30 days are equal and form one group; the engine may show either value.
            return inexact or any(key.type is SqlType.INTERVAL for key in relation.keys)
        case Distinct() | SetOperation():
            return any(field.type is SqlType.INTERVAL for field in relation.fields)
        case _:
            return False


def no_rows_of(relation: Relation) -> Filter:
    """The relation without any of its rows."""
    return Filter(relation, FALSE)


def has_no_rows(relation: Relation) -> bool:
    """True if the SQL alone shows that there are no rows."""
    match relation:
        case Filter():
            return _is_never_true(relation.condition) or has_no_rows(relation.input)
        case Sort():
            return relation.limit == 0 or has_no_rows(relation.input)
        case Project() | Distinct() | UnitWindows():
            return has_no_rows(relation.input)
        case Aggregate():
            return bool(relation.keys) and has_no_rows(relation.input)
        case Release():
            return has_no_rows(relation.aggregate)
        case Join() | SetOperation():
            return _combines_nothing(relation)
    return False


def without_rows(lowered: Lowered) -> Lowered:
    """The same columns, of no relation that is read."""
    fields = tuple(dict.fromkeys(field for _, field in lowered.columns))
    one = Values(fields, (tuple(Literal(None, field.type) for field in fields),))
    return replace(lowered, status=Public(no_rows_of(one)), hidden=(), unlisted=frozenset(), invented=False)


def _combines_nothing(relation: Join | SetOperation) -> bool:
    left, right = has_no_rows(relation.left), has_no_rows(relation.right)
    match relation.kind:
        case "union" | "full":
            return left and right
        case "left" | "except":
            return left
        case "right":
            return right
        case _:
            return left or right


def _is_never_true(condition: Expr) -> bool:
    """True where a condition is computed of constants, and is false or NULL."""
    if isinstance(condition, Call) and condition.function == "and":
        return any(map(_is_never_true, condition.arguments))
    if isinstance(condition, Call) and condition.function == "or":
        return all(map(_is_never_true, condition.arguments))
    known = _constant(condition)
    return known is not None and not known.value


def _found(among: InList) -> Literal | None:
    """The value of IN for constants, or None if it is unknown; lists are also made of comparisons joined by OR."""
    argument, items = _constant(among.argument), [_constant(item) for item in among.items]
    equal = [argument and item and compared("eq", argument, item) for item in items]
    told = {each.value for each in equal if each is not None}
    if None in equal:
        return None
    return Literal(True if True in told else None if None in told else False, SqlType.BOOLEAN)


def _constant(condition: Expr) -> Literal | None:
    """The value of a comparison of constants, or of its NOT; None if it is unknown."""
    if isinstance(condition, Literal):
        return condition if condition.parameter is None else None
    if isinstance(condition, InList):
        return _found(condition)
    if not isinstance(condition, Call):
        return None
    known = [_constant(part) for part in condition.arguments]
    constants = [part for part in known if part is not None]
    if len(constants) < len(known):
        return None
    if condition.function == "not":
        (value,) = (part.value for part in constants)
        return Literal(None if value is None else not value, SqlType.BOOLEAN)
    return compared(condition.function, *constants) if condition.function in COMPARISONS else None
