"""group_releases: the groups of protected rows: one release, and one more for each aggregate that is released apart."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from dpsql.compiler.aggregates.registry import FUNCTIONS
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Cast,
    Column,
    Expr,
    Field,
    Join,
    Literal,
    Project,
    Protected,
    Relation,
    Release,
    Values,
)
from dpsql.compiler.scope.lowering import Fields
from dpsql.sqltypes import SqlType

_TRUE = Literal(True, SqlType.BOOLEAN)


def released_groups(
    status: Protected, aggregate: Aggregate, calls: Mapping[AggregateCall, Field], fields: Fields
) -> Relation:
    """The groups of an aggregation of protected rows.

    Args:
        status: The rows.
        aggregate: The aggregation.
        calls: Its aggregates, and the field that each gives.
        fields: The source of further fields.
    """
    separate = {call: field for call, field in calls.items() if FUNCTIONS[call.function].separate is not None}
    others = {call: field for call, field in calls.items() if call not in separate}
    chosen, days = _in_days(others, fields)
    limits = tuple((fields.new(SqlType.DOUBLE), fields.new(SqlType.DOUBLE)) for _ in chosen)
    rest = replace(aggregate, aggregate_fields=tuple(chosen.values()), aggregates=tuple(chosen))
    base = _as_dates(Release(status, rest, limits), days) if others or not separate else None
    return _with_separate(base, aggregate, separate, status, fields) if base is None or separate else base


def _with_separate(
    base: Relation | None, aggregate: Aggregate, calls: Mapping[AggregateCall, Field], status: Protected, fields: Fields
) -> Relation:
    """The groups of an aggregation, each with the values of such aggregates.

    Args:
        base: The release of all other aggregates, if there are any.
        aggregate: The aggregation; its keys are the groups'.
        calls: Aggregates that are releases of their own, and the field that each gives.
        status: The rows.
        fields: The source of further fields.
    """
    relation = base
    if relation is None and not aggregate.keys:
        # One row, whatever there is to choose from.
        relation = Values((fields.new(SqlType.BOOLEAN),), ((_TRUE,),))
    for call, field in calls.items():
        keys = tuple(fields.new(key.type) for key in aggregate.keys) if relation is not None else aggregate.key_fields
        separate = FUNCTIONS[call.function].separate
        if separate is None:
            raise TypeError(f"{call.function} is released with others")
        groups = separate(call, field, keys, aggregate.keys, status, fields)
        relation = groups if relation is None else Join("left", relation, groups, _same(aggregate.key_fields, keys))
    if relation is None:
        raise TypeError("there is an aggregate")
    return relation


def _same(left: tuple[Field, ...], right: tuple[Field, ...]) -> Expr:
    """True where two groups are one, NULLs included."""
    condition: Expr = _TRUE
    for pair in zip(left, right, strict=True):
        differ = Call("distinct_from", tuple(map(Column, pair)), SqlType.BOOLEAN)
        condition = Call("and", (condition, Call("not", (differ,), SqlType.BOOLEAN)), SqlType.BOOLEAN)
    return condition


_EPOCH = Literal(date(1970, 1, 1), SqlType.DATE)


def _in_days(
    calls: Mapping[AggregateCall, Field], fields: Fields
) -> tuple[dict[AggregateCall, Field], dict[Field, Field]]:
    """The calls, those of dates as calls of numbers of days, and for each field of a date that of its days."""
    found = {call: field for call, field in calls.items() if not _chooses_date(call)}
    days: dict[Field, Field] = {}
    for call, field in calls.items():
        if call.argument is not None and _chooses_date(call):
            counted = Cast(Call("days_between", (call.argument, _EPOCH), SqlType.BIGINT), SqlType.INTEGER)
            chosen = replace(call, argument=counted, type=SqlType.INTEGER)
            days[field] = found.setdefault(chosen, fields.new(SqlType.INTEGER))
    return found, days


def _as_dates(relation: Relation, days: Mapping[Field, Field]) -> Relation:
    """A relation with the dates that numbers of days stand for; the same where there are none."""
    if not days:
        return relation
    written: dict[Field, Expr] = {field: Column(field) for field in relation.fields}
    written |= {field: Call("date_add", (_EPOCH, Column(day)), SqlType.DATE) for field, day in days.items()}
    return Project(relation, tuple(written), tuple(written.values()))


def _chooses_date(call: AggregateCall) -> bool:
    return FUNCTIONS[call.function].is_ranked and call.type is SqlType.DATE
