"""histogram: HISTOGRAM(x, low, high, n): counts of n buckets of equal width, and of the values below and above them.

It returns the counts of GROUP BY keys, WIDTH_BUCKET(x, low, high, n) as one array for each group. Each row is in one
count only, so the noise does not grow with n.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sqlglot import exp

from dpsql.compiler.aggregates.base import (
    AggregateFunction,
    ColumnError,
    Drawn,
    Estimate,
    Formula,
    Primitives,
    argument_of,
)
from dpsql.compiler.aggregates.mode import known_rows
from dpsql.compiler.dialects import POST_PROCESSING
from dpsql.compiler.expressions import arithmetic, calls
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Column,
    Distinct,
    Expr,
    Field,
    Literal,
    Project,
    Protected,
    Relation,
    Release,
)
from dpsql.compiler.ir.primitives import Primitive, PrimitiveKind
from dpsql.compiler.scope.lowering import Fields, Lowering
from dpsql.compiler.sql.postgres_syntax import print_sql
from dpsql.compiler.sql.rewriting import replaced
from dpsql.errors import InvalidParameter, PolicyViolation
from dpsql.sqltypes import SqlType

MAX_BUCKETS = 100


@dataclass(frozen=True)
class HistogramEstimate(Estimate):
    """The counts of a group's buckets; each is a cell of its own group in the release.

    Attributes:
        cell: The count.
        key: The index of the key that is the bucket.
        buckets: The number of buckets between the limits.
    """

    kind: ClassVar[str] = "counts"
    cell: int
    key: int
    buckets: int

    @property
    def cells(self) -> tuple[int, ...]:
        """The count."""
        return (self.cell,)

    def formula(self, sql_type: SqlType, prefix: str, drawn: Drawn | None, keys: int) -> Formula:
        """The counts in the order of the buckets, equal in all rows of a group; 0 for a bucket without a cell."""
        others = ", ".join(f"k{place}" for place in range(keys) if place != self.key)
        over = f"OVER ({f'PARTITION BY {others}' if others else ''})"
        counts = (
            f"coalesce(sum(p{self.cell}) FILTER (WHERE k{self.key} = '{bucket}') {over}, 0)"
            for bucket in range(self.buckets + 2)
        )
        return Formula(POST_PROCESSING.array(f"[{', '.join(counts)}]"))

    def explained(self, error: ColumnError) -> str:
        """The error of one count."""
        return f"each count {super().explained(error)}"


def _estimate(call: AggregateCall, primitives: Primitives) -> HistogramEstimate:
    """Return an estimate that counts by buckets.

    Raises:
        PolicyViolation: Counts with too few units would have to be hidden.
    """
    if primitives.selects_groups:
        raise PolicyViolation(
            "HISTOGRAM requires public group keys and no min_units",
            hint="Group by the bucket too, with WIDTH_BUCKET, and count.",
        )
    if not isinstance(call.other, Literal) or not isinstance(call.other.value, int):
        raise TypeError("the number of buckets is constant")
    cell = primitives.cell(Primitive(PrimitiveKind.COUNT, None, call.filter, primitives.cap))
    return HistogramEstimate(cell, primitives.keys.index(argument_of(call)), call.other.value)


def _groups(
    call: AggregateCall,
    field: Field,
    key_fields: tuple[Field, ...],
    keys: tuple[Expr, ...],
    status: Protected,
    fields: Fields,
) -> Relation:
    """One row a group: its keys, and the counts. Rows without a value are in no bucket."""
    bucket = argument_of(call)
    known = known_rows(bucket, status.relation)
    place, limits = fields.new(bucket.type), (fields.new(SqlType.DOUBLE), fields.new(SqlType.DOUBLE))
    counted = Aggregate(known, (*key_fields, place), (*keys, bucket), (field,), (call,))
    release = Release(replace(status, relation=known, absent=None), counted, (limits,))
    shown = (*key_fields, field)
    return Distinct(Project(release, shown, tuple(map(Column, shown))))


def _call(lowering: Lowering, node: exp.Anonymous, condition: Expr | None) -> AggregateCall:
    """HISTOGRAM(x, low, high, n); limits and count are those of WIDTH_BUCKET."""
    lowering.only(node, "this", "expressions")
    call = calls.arguments(lowering, node, "histogram", node.expressions)
    if len(call) != 4:
        raise call.mismatch()
    count = call.whole(3, 1, MAX_BUCKETS)
    bucket = arithmetic.CALLED["width_bucket"](call)
    if isinstance(bucket, Literal):
        if not any(_is_awaited(each) for each in call.values[1:]):
            raise InvalidParameter(
                "the bounds of HISTOGRAM must not be NULL",
                hint="Usage: HISTOGRAM(number, low, high, count).",
                position=lowering.at(node),
                queries=replaced(node, f"HISTOGRAM({print_sql(node.expressions[0])}, 0, 100, 10)"),
            )
        zero, one = Literal(0, SqlType.INTEGER), Literal(1, SqlType.INTEGER)
        count, bucket = 1, arithmetic.CALLED["width_bucket"](replace(call, values=(call.values[0], zero, one, one)))
    buckets = Literal(count, SqlType.INTEGER)
    return AggregateCall("histogram", bucket, False, condition, SqlType.BIGINT.array, other=buckets)


def _is_awaited(value: Expr) -> bool:
    """True of a placeholder whose value is not known yet."""
    return isinstance(value, Literal) and value.parameter is not None and value.value is None


FUNCTIONS = (
    AggregateFunction("histogram", _call, build=_estimate, separate=_groups, has_interval=False, of_public_rows=False),
)
