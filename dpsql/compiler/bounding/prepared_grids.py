"""prepared_grids: reads the grid values that a prepared table stores, instead of the columns that they come from.

Rule 1: they are read only if their grid is that of the noisy cell; for other limits, the column is clamped in SQL.
Rule 2: a field counts as a column only if it is passed on unchanged; a grid value is NULL exactly where the column is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpsql.compiler.bounding.prepared_reads import PreparedRead
from dpsql.compiler.ir.nodes import Column, Expr, Field, Filter, Grid, Join, Project, Relation, UnitScan
from dpsql.compiler.ir.primitives import Primitive
from dpsql.compiler.ir.schema import StoredGrid
from dpsql.compiler.scope.lowering import Fields
from dpsql.policy import PolicyColumn
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class _Twin:
    """What has the values of a field on their grid."""

    field: Field
    stored: StoredGrid


class StoredGrids:
    """Reads one copy.

    Attributes:
        scan: The scan in whose place the copy stands, with a field more for each column that is on its grid.
        relation: The rows over it, which have the values on their grid beside those of the columns.
    """

    def __init__(self, relation: Relation, found: PreparedRead, fields: Fields) -> None:
        """Replace a relation's scan by the prepared table, and add its grid fields."""
        scan, grids = found.scan, found.copy.grids
        self._fields = fields
        by_name = dict(zip((column.name for column in scan.columns), scan.column_fields, strict=True))
        twins = tuple(_Twin(fields.new(SqlType.BIGINT), stored) for stored in grids)
        self._twins = {by_name[twin.stored.column]: twin for twin in twins}
        self.scan = replace(
            scan,
            columns=scan.columns + tuple(PolicyColumn(stored.name, SqlType.BIGINT) for stored in grids),
            column_fields=scan.column_fields + tuple(twin.field for twin in twins),
        )
        self.relation = self._over(relation)

    def _over(self, relation: Relation) -> Relation:
        match relation:
            case UnitScan():
                return self.scan
            case Filter():
                return replace(relation, input=self._over(relation.input))
            case Join():
                return replace(relation, left=self._over(relation.left), right=self._over(relation.right))
            case Project():
                return self._projected(replace(relation, input=self._over(relation.input)))
        return relation

    def _projected(self, relation: Project) -> Project:
        fields, expressions = relation.fields, relation.expressions
        for field, expression in zip(relation.fields, relation.expressions, strict=True):
            if isinstance(expression, Column) and (twin := self._twins.get(expression.field)):
                self._twins[field] = replace(twin, field=self._fields.new(SqlType.BIGINT))
                fields += (self._twins[field].field,)
                expressions += (Column(twin.field),)
        return replace(relation, fields=fields, expressions=expressions)

    def of(self, primitives: tuple[Primitive, ...]) -> tuple[Primitive, ...]:
        """The same cells, which read and count grid values where the prepared table has them."""
        return tuple(self._of(primitive, primitives) for primitive in primitives)

    def _of(self, primitive: Primitive, primitives: tuple[Primitive, ...]) -> Primitive:
        if primitive.factors:
            factors = tuple(
                replace(each, argument=self._read(each.argument, {each.grid})) for each in primitive.factors
            )
            return replace(primitive, argument=factors[0].argument, factors=factors)
        if primitive.argument is None:
            return primitive
        beside = {each.grid for each in primitives if each.argument == primitive.argument and not each.factors}
        return replace(
            primitive,
            argument=self._read(primitive.argument, {primitive.grid} if primitive.grid is not None else beside),
        )

    def _read(self, argument: Expr, grids: set[Grid | None] | set[Grid]) -> Expr:
        """The field with an argument's values on one of the grids, or else the argument."""
        twin = self._twins.get(argument.field) if isinstance(argument, Column) else None
        return Column(twin.field) if twin is not None and twin.stored.grid in grids else argument

    def read_by(self, primitives: tuple[Primitive, ...]) -> Mapping[Field, StoredGrid]:
        """The fields with grid values that the cells use."""
        read = {each.field for primitive in primitives for each in primitive.operands if isinstance(each, Column)}
        return {twin.field: twin.stored for twin in self._twins.values() if twin.field in read}
