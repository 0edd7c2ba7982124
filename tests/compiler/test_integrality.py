"""Which numbers are surely whole, and so may be group keys though their type is double precision."""

from decimal import Decimal

import pytest

from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Case,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Literal,
    Project,
    Scalar,
    SetOperation,
    UnitWindows,
    Values,
    Window,
)
from dpsql.compiler.values.grids import is_whole, whole_fields
from dpsql.sqltypes import SqlType

DOUBLE, NUMERIC, INTEGER = SqlType.DOUBLE, SqlType.NUMERIC, SqlType.INTEGER
NUMBER = Column(Field(1, DOUBLE))
COUNT = Column(Field(2, INTEGER))
TEXT = Column(Field(3, SqlType.TEXT))
YES = Literal(True, SqlType.BOOLEAN)


def call(name: str, *arguments: Expr) -> Call:
    return Call(name, arguments, DOUBLE)


FLOOR = call("floor", call("divide", NUMBER, Literal(10.0, DOUBLE)))


@pytest.mark.parametrize(
    ("expression", "whole"),
    [
        (COUNT, True),
        (NUMBER, False),
        (TEXT, False),
        (Literal(None, DOUBLE), True),
        (Literal(2.0, DOUBLE), True),
        (Literal(2.5, DOUBLE), False),
        (Literal(Decimal("2.00"), NUMERIC), True),
        (FLOOR, True),
        (call("multiply", FLOOR, Literal(10.0, DOUBLE)), True),
        (call("multiply", FLOOR, Literal(0.1, DOUBLE)), False),
        (call("divide", FLOOR, Literal(2.0, DOUBLE)), False),
        (call("negate", call("add", FLOOR, Cast(COUNT, DOUBLE))), True),
        (call("sqrt", FLOOR), False),
        (call("coalesce", FLOOR, NUMBER), False),
        (call("coalesce", FLOOR, call("round", NUMBER)), True),
        (Cast(TEXT, DOUBLE), False),
        (Cast(NUMBER, NUMERIC, 0), True),
        (Cast(NUMBER, NUMERIC, 1), False),
        (Cast(FLOOR, NUMERIC, 1), True),
        (Case(((YES, FLOOR),), Literal(None, DOUBLE), DOUBLE), True),
        (Case(((YES, FLOOR),), NUMBER, DOUBLE), False),
        (Scalar(Values((Field(9, DOUBLE),), ()), DOUBLE), False),
    ],
)
def test_expressions(expression: Expr, whole: bool) -> None:
    assert is_whole(expression) is whole


def test_fields_of_relations() -> None:
    def fields(first: int) -> tuple[Field, Field]:
        return Field(first, DOUBLE), Field(first + 1, DOUBLE)

    source = Values((NUMBER.field, COUNT.field), ())
    below = Project(source, fields(10), (FLOOR, NUMBER))
    floors, numbers = map(Column, below.fields)
    assert not is_whole(floors)
    assert is_whole(floors, below)
    assert not is_whole(numbers, below)
    assert whole_fields(Distinct(Filter(below, YES))) == {floors.field}
    # A subquery's fields are not the relation's.
    among = Call("eq", (Scalar(below, DOUBLE), NUMBER), SqlType.BOOLEAN)
    assert whole_fields(Filter(source, among)) == frozenset()
    window = Window("sum", (floors,), (), (), None, DOUBLE)
    assert whole_fields(UnitWindows(below, (Field(20, DOUBLE),), (window,), 1)) == {floors.field}
    total = AggregateCall("sum", floors, False, None, DOUBLE)
    grouped = Aggregate(below, fields(30), (floors, numbers), (Field(32, DOUBLE),), (total,))
    assert whole_fields(grouped) == {Field(30, DOUBLE)}
    joined = Join("cross", below, grouped, None)
    assert whole_fields(joined) == {floors.field, Field(30, DOUBLE)}
    union = SetOperation("union", True, below, Project(source, fields(40), (FLOOR, FLOOR)), fields(50))
    assert whole_fields(union) == {Field(50, DOUBLE)}
