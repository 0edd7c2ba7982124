"""empty_results: queries that have no rows whatever the data, by which clients ask for columns: LIMIT 0, WHERE 1 = 0.

Rule: that there are no rows follows from the query alone; then nothing is read, and nothing charged.
"""

from dataclasses import replace

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
    Public,
    Relation,
    Release,
    SetOperation,
    Sort,
    UnitWindows,
    Values,
)
from dpsql.compiler.scope.lowering import Lowered
from dpsql.compiler.sql.constant_folding import COMPARISONS, compared
from dpsql.sqltypes import SqlType

_FALSE = Literal(False, SqlType.BOOLEAN)


def no_rows_of(relation: Relation) -> Filter:
    """None of a relation's rows."""
    return Filter(relation, _FALSE)


def has_no_rows(relation: Relation) -> bool:
    """True where SQL alone says that there are no rows."""
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
    return replace(lowered, status=Public(no_rows_of(one)), hidden=frozenset(), invented=False)


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
    """What IN gives for a constant: lists are also made of comparisons that stand side by side."""
    argument, items = _constant(among.argument), [_constant(item) for item in among.items]
    equal = [argument and item and compared("eq", argument, item) for item in items]
    told = {each.value for each in equal if each is not None}
    if None in equal:
        return None
    return Literal(True if True in told else None if None in told else False, SqlType.BOOLEAN)


def _constant(condition: Expr) -> Literal | None:
    """What a comparison of constants gives, or NOT of it."""
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
