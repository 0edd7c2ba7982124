"""margins: <column>_low and <column>_high beside each noisy column, from what is released anyway.

Rule: a margin is made of the noise's law and of released cells, so it costs nothing and tells nothing more.
"""

from dataclasses import replace

from dpsql.compiler.clauses import Lowered
from dpsql.compiler.ir import Call, Cast, Column, Expr, Field, Filter, Project, Relation, Release, Sort
from dpsql.compiler.lowering import Fields
from dpsql.sqltypes import SqlType


def with_margins(lowered: Lowered, fields: Fields) -> Lowered:
    """Add the limits of a 95 % interval after each column that is an aggregate of protected rows as it is."""
    relation = lowered.relation
    columns: list[tuple[str, Field]] = []
    limits: dict[Field, Expr] = {}
    for name, field in lowered.columns:
        columns.append((name, field))
        carried = _carry(relation, field, fields)
        if carried is None:
            continue
        relation, margin = carried
        value = Cast(Column(field), SqlType.DOUBLE)
        for suffix, function in (("low", "subtract"), ("high", "add")):
            limit = fields.new(SqlType.DOUBLE)
            limits[limit] = Call(function, (value, Column(margin)), SqlType.DOUBLE)
            columns.append((f"{name}_{suffix}", limit))
    kept = dict.fromkeys(field for _, field in lowered.columns)
    written = {field: Column(field) for field in kept} | limits
    projected = Project(relation, tuple(written), tuple(written.values()))
    return Lowered(replace(lowered.status, relation=projected), tuple(columns))


def _carry(relation: Relation, field: Field, fields: Fields) -> tuple[Relation, Field] | None:
    """The same relation with the margin of `field` as a further column, where the field is an aggregate as it is."""
    if isinstance(relation, Release):
        aggregates = relation.aggregate.aggregate_fields
        return (relation, relation.margins[aggregates.index(field)]) if field in aggregates else None
    if isinstance(relation, Filter):
        carried = _carry(relation.input, field, fields)
        return (replace(relation, input=carried[0]), carried[1]) if carried is not None else None
    if isinstance(relation, Sort):
        carried = _carry(relation.input, field, fields)
        if carried is None:
            return None
        return replace(relation, input=carried[0], fields=(*relation.fields, carried[1])), carried[1]
    if isinstance(relation, Project):
        expression = relation.expressions[relation.fields.index(field)]
        carried = _carry(relation.input, expression.field, fields) if isinstance(expression, Column) else None
        if carried is None:
            return None
        margin = fields.new(SqlType.DOUBLE)
        return (
            Project(carried[0], (*relation.fields, margin), (*relation.expressions, Column(carried[1]))),
            margin,
        )
    return None
