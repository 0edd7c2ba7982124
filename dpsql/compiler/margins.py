"""margins: <column>_low and <column>_high beside each noisy column, from what is released anyway.

Rule: a margin is made of the noise's law and of released cells, so it costs nothing and tells nothing more.
"""

from dataclasses import replace

from dpsql.compiler.functions import RANKS, TRUTHS
from dpsql.compiler.ir import (
    Call,
    Cast,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Project,
    Relation,
    Release,
    SetOperation,
    Sort,
)
from dpsql.compiler.lowered import Lowered
from dpsql.compiler.lowering import Fields
from dpsql.compiler.provenance import origins
from dpsql.sqltypes import SqlType


def with_margins(lowered: Lowered, fields: Fields) -> Lowered:
    """Add the limits of a 95 % interval after each column that is an aggregate of protected rows as it is."""
    relation = lowered.relation
    columns: list[tuple[str, Field]] = []
    limits: dict[Field, Expr] = {}
    limited: list[int] = []
    for name, field in lowered.columns:
        columns.append((name, field))
        carried = _carry(relation, field, fields)
        if carried is None:
            continue
        relation, margin = carried
        limited.append(len(columns) - 1)
        value = Cast(Column(field), SqlType.DOUBLE)
        for suffix, function in (("low", "subtract"), ("high", "add")):
            limit = fields.new(SqlType.DOUBLE)
            limits[limit] = Call(function, (value, Column(margin)), SqlType.DOUBLE)
            columns.append((f"{name}_{suffix}", limit))
    kept = dict.fromkeys(field for _, field in lowered.columns)
    written = {field: Column(field) for field in kept} | limits
    projected = Project(relation, tuple(written), tuple(written.values()))
    return Lowered(replace(lowered.status, relation=projected), tuple(columns), limited=tuple(limited))


def _carry(relation: Relation, field: Field, fields: Fields) -> tuple[Relation, Field] | None:
    """The same rows with the margin of `field` as a further column.

    None where the field is no aggregate as it is, or where a further column would make two rows of one.
    """
    match relation:
        case Release():
            found = origins(relation, field)
            told = bool(found) and relation.picks is None and found[0].call.function not in RANKS | TRUTHS
            return (relation, found[0].margin) if told else None
        case Project():
            return _projected(relation, field, fields)
        case SetOperation(kind="union", all=True):
            return _united(relation, field, fields)
        case Join():
            return _joined(relation, field, fields)
        case Filter() | Sort() | Distinct():
            carried = _carry(relation.input, field, fields) if _is_even(relation, field) else None
            return (_over(relation, *carried), carried[1]) if carried is not None else None
        case _:
            return None


def _is_even(relation: Filter | Sort | Distinct, field: Field) -> bool:
    """False where rows that are alike may differ in their margins, and would not be alike with them."""
    if not isinstance(relation, Distinct):
        return True
    found = origins(relation, field)
    return len(found) == 1 and found[0].call.function in ("count", "sum", "regr_count")


def _over(relation: Filter | Sort | Distinct, below: Relation, margin: Field) -> Relation:
    if isinstance(relation, Sort):
        return replace(relation, input=below, fields=(*relation.fields, margin))
    return replace(relation, input=below)


def _projected(relation: Project, field: Field, fields: Fields) -> tuple[Relation, Field] | None:
    expression = relation.expressions[relation.fields.index(field)]
    if not isinstance(expression, Column) or expression.field not in relation.input.fields:
        return None
    carried = _carry(relation.input, expression.field, fields)
    if carried is None:
        return None
    margin = fields.new(SqlType.DOUBLE)
    return Project(carried[0], (*relation.fields, margin), (*relation.expressions, Column(carried[1]))), margin


def _joined(relation: Join, field: Field, fields: Fields) -> tuple[Relation, Field] | None:
    if field in relation.left.fields:
        carried = _carry(relation.left, field, fields)
        return (replace(relation, left=carried[0]), carried[1]) if carried is not None else None
    carried = _carry(relation.right, field, fields)
    return (replace(relation, right=carried[0]), carried[1]) if carried is not None else None


def _united(relation: SetOperation, field: Field, fields: Fields) -> tuple[Relation, Field] | None:
    """Each arm brings its own margin, as its last column."""
    place = relation.fields.index(field)
    arms = []
    for arm in (relation.left, relation.right):
        carried = _carry(arm, arm.fields[place], fields)
        if carried is None:
            return None
        handed_on = (*arm.fields, carried[1])
        arms.append(Project(carried[0], handed_on, tuple(map(Column, handed_on))))
    margin = fields.new(SqlType.DOUBLE)
    return replace(relation, left=arms[0], right=arms[1], fields=(*relation.fields, margin)), margin
