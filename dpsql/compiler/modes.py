"""modes: MODE() of protected rows: in each group one pick among the public values of a column, by their rows.

A MODE is what GROUP BY keys, x ORDER BY COUNT(*) DESC LIMIT 1 would say for each group; so the rows of one unit that
count for one value are those that count in one group.
"""

from collections.abc import Mapping
from dataclasses import replace

from dpsql.compiler.choosing import picked
from dpsql.compiler.ir import (
    Aggregate,
    AggregateCall,
    Call,
    Column,
    Expr,
    Field,
    Filter,
    Join,
    Literal,
    Picks,
    Project,
    Protected,
    Relation,
    Release,
    Values,
)
from dpsql.compiler.lowering import Fields
from dpsql.sqltypes import SqlType

_TRUE = Literal(True, SqlType.BOOLEAN)


def with_modes(
    base: Relation | None, aggregate: Aggregate, modes: Mapping[AggregateCall, Field], status: Protected, fields: Fields
) -> Relation:
    """The groups of an aggregation with a MODE or several beside what else is known of them.

    Args:
        base: The release of all other aggregates, if there are any.
        aggregate: The aggregation; its keys are the groups'.
        modes: Calls of MODE, and the field that each gives.
        status: The rows.
        fields: The source of further fields.
    """
    relation = base
    if relation is None and not aggregate.keys:
        # One row, whatever there is to choose from.
        relation = Values((fields.new(SqlType.BOOLEAN),), ((_TRUE,),))
    for call, field in modes.items():
        keys = tuple(fields.new(key.type) for key in aggregate.keys) if relation is not None else aggregate.key_fields
        mode = _mode(call, field, keys, aggregate.keys, status, fields)
        relation = mode if relation is None else Join("left", relation, mode, _same(aggregate.key_fields, keys))
    if relation is None:
        raise TypeError("there is an aggregate")
    return relation


def _mode(
    call: AggregateCall,
    field: Field,
    key_fields: tuple[Field, ...],
    keys: tuple[Expr, ...],
    status: Protected,
    fields: Fields,
) -> Relation:
    """One row a group: its keys, and the value picked."""
    if call.argument is None:
        raise TypeError("MODE has an argument")
    absent = Call("is_null", (call.argument,), SqlType.BOOLEAN)
    known = Filter(status.relation, Call("not", (absent,), SqlType.BOOLEAN))
    count, place = AggregateCall("count", None, False, call.filter, SqlType.BIGINT), fields.new(SqlType.BIGINT)
    counted = Aggregate(known, (*key_fields, field), (*keys, call.argument), (place,), (count,))
    limits = fields.new(SqlType.DOUBLE), fields.new(SqlType.DOUBLE)
    picks = Picks(1, False, frozenset(key_fields))
    # Rows of nobody have no value.
    release = Release(replace(status, relation=known, absent=None), counted, (limits,), picks)
    shown = (*key_fields, field)
    return Project(picked(release), shown, tuple(map(Column, shown)))


def _same(left: tuple[Field, ...], right: tuple[Field, ...]) -> Expr:
    """True where two groups are one, NULLs included."""
    condition: Expr = _TRUE
    for pair in zip(left, right, strict=True):
        differ = Call("distinct_from", tuple(map(Column, pair)), SqlType.BOOLEAN)
        condition = Call("and", (condition, Call("not", (differ,), SqlType.BOOLEAN)), SqlType.BOOLEAN)
    return condition
