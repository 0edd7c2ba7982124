"""mode: MODE() over protected rows: in each group, one public value of a column is selected by its number of rows.

MODE is GROUP BY keys, x ORDER BY COUNT(*) DESC LIMIT 1 for each group. So the contribution bound of a value is the
bound of a group.
"""

from dataclasses import replace

from sqlglot import exp

from dpsql.compiler.aggregates.base import AggregateFunction, argument_of
from dpsql.compiler.ir.conditions import is_null, negated
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Column,
    Expr,
    Field,
    Filter,
    Literal,
    Picks,
    Project,
    Protected,
    Relation,
    Release,
)
from dpsql.compiler.scope.lowering import Fields, Lowering
from dpsql.compiler.values.grids import can_be_key
from dpsql.errors import PolicyViolation
from dpsql.sqltypes import SqlType


def picked_groups(release: Release) -> Relation:
    """The groups that a release has picked."""
    place = release.aggregate.aggregate_fields[0]
    return Filter(release, Call("gt", (Column(place), Literal(0, SqlType.BIGINT)), SqlType.BOOLEAN))


def known_rows(argument: Expr, relation: Relation) -> Filter:
    """The rows in which an argument is there."""
    absent = is_null(argument)
    return Filter(relation, negated(absent))


def _mode(
    call: AggregateCall,
    field: Field,
    key_fields: tuple[Field, ...],
    keys: tuple[Expr, ...],
    status: Protected,
    fields: Fields,
) -> Relation:
    """One row a group: its keys, and the value picked."""
    argument = argument_of(call)
    known = known_rows(argument, status.relation)
    count, place = AggregateCall("count", None, False, call.filter, SqlType.BIGINT), fields.new(SqlType.BIGINT)
    counted = Aggregate(known, (*key_fields, field), (*keys, argument), (place,), (count,))
    limits = fields.new(SqlType.DOUBLE), fields.new(SqlType.DOUBLE)
    picks = Picks(1, False, frozenset(key_fields))
    # Rows without a unit have no value.
    release = Release(replace(status, relation=known, absent=None), counted, (limits,), picks)
    shown = (*key_fields, field)
    return Project(picked_groups(release), shown, tuple(map(Column, shown)))


def _call(lowering: Lowering, node: exp.WithinGroup, condition: Expr | None) -> AggregateCall:
    function, terms = node.this, node.expression.expressions
    if function.this is not None or len(terms) != 1:
        raise lowering.refusal(function)
    lowering.only(terms[0], "this", "nulls_first")
    argument = lowering.value(terms[0].this)
    lowering.need_comparable(argument.type, node)
    return AggregateCall("mode", argument, False, condition, argument.type)


def _check(call: AggregateCall, status: Protected, position: int | None) -> None:
    argument = argument_of(call)
    if not can_be_key(argument, status.relation):
        raise PolicyViolation(
            f"MODE() of type {argument.type.value} is not supported: its values cannot be listed",
            hint="Round the value, or use MEDIAN.",
            position=position,
        )


FUNCTIONS = (AggregateFunction("mode", _call, within_group=(exp.Mode,), separate=_mode, check=_check),)
