"""provenance: the aggregates of protected rows that an output column hands on as they are.

Rule: where a column's value might be anything else, there is no origin, and no error is told.
"""

from dataclasses import dataclass

from dpsql.compiler.ir.nodes import (
    AggregateCall,
    Call,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Join,
    Literal,
    Project,
    Relation,
    Release,
    Scalar,
    SetOperation,
    Sort,
)


@dataclass(frozen=True)
class AggregateOrigin:
    """A field of a release that is one of its aggregates, or a key that it picks."""

    release: Release
    field: Field

    @property
    def call(self) -> AggregateCall:
        """The aggregate."""
        return self.release.aggregate.aggregates[self._place]

    @property
    def limits(self) -> tuple[Field, Field]:
        """The release's fields with the limits of its 95 % interval."""
        return self.release.limits[self._place]

    @property
    def _place(self) -> int:
        fields = self.release.aggregate.aggregate_fields
        return fields.index(self.field) if self.field in fields else 0  # keys are picked by the only one


def origins(relation: Relation, field: Field) -> tuple[AggregateOrigin, ...]:
    """Where the values of a relation's field come from: one origin, one for each arm of a union, or none."""
    match relation:
        case Release():
            told = (*relation.aggregate.aggregate_fields, *relation.picked_fields)
            return (AggregateOrigin(relation, field),) if field in told else ()
        case Project():
            return _written(relation, relation.expressions[relation.fields.index(field)])
        case Filter() | Sort() | Distinct():
            return origins(relation.input, field)
        case Join():
            return origins(relation.left if field in relation.left.fields else relation.right, field)
        case SetOperation(kind="union"):
            place = relation.fields.index(field)
            left, right = (origins(arm, arm.fields[place]) for arm in (relation.left, relation.right))
            return left + right if left and right else ()
        case _:
            return ()


def _written(relation: Project, expression: Expr) -> tuple[AggregateOrigin, ...]:
    if isinstance(expression, Scalar):
        return origins(expression.relation, expression.relation.fields[0])
    if (
        isinstance(expression, Call)
        and expression.function == "date_add"
        and isinstance(expression.arguments[0], Literal)
    ):
        expression = expression.arguments[1]  # days since a constant day
    # A field of the row outside a subquery is not one of the input's.
    if isinstance(expression, Column) and expression.field in relation.input.fields:
        return origins(relation.input, expression.field)
    return ()
