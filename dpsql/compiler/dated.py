"""dated: the least, the greatest and other dates of protected rows, by their rank among the days since 1970."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from dpsql.compiler.functions import RANKS
from dpsql.compiler.ir import AggregateCall, Call, Cast, Column, Expr, Field, Literal, Project, Relation
from dpsql.compiler.lowering import Fields
from dpsql.sqltypes import SqlType

_EPOCH = Literal(date(1970, 1, 1), SqlType.DATE)


def in_days(
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


def as_dates(relation: Relation, days: Mapping[Field, Field]) -> Relation:
    """A relation with the dates that numbers of days stand for; the same where there are none."""
    if not days:
        return relation
    written: dict[Field, Expr] = {field: Column(field) for field in relation.fields}
    written |= {field: Call("date_add", (_EPOCH, Column(day)), SqlType.DATE) for field, day in days.items()}
    return Project(relation, tuple(written), tuple(written.values()))


def _chooses_date(call: AggregateCall) -> bool:
    return call.function in RANKS and call.type is SqlType.DATE
