"""wide_totals: totals with wide bounds, which show how many rows the contribution bounds of an answer drop.

A release counts at most R rows of a unit, and fewer if its groups are bounded. The wide total of a cell is a release of
its own without groups, over the same rows, which counts at most WIDTH · R rows of a unit. If units are counted in at
most L0 groups each, the wide total counts them in at most WIDTH · L0. The difference between the wide total and the sum
of the groups is what the bounds dropped. For values computed from a unit's rows, the wide total is the sum of the same
values with WIDTH times the expected number of rows. If groups are selected, those that are shown do not add up to the
total; the bounded total is then also a release of its own, which is the wide one with a WIDTH of 1.

Rule 1: a total is a release like any other: bounded, verified, charged, and with noise of its own.
Rule 2: it covers rows that are in some group: if the keys are public, rows whose keys are listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dpsql.compiler.aggregates.base import Estimate
from dpsql.compiler.aggregates.count import CountEstimate
from dpsql.compiler.aggregates.total import MeanEstimate, SumEstimate
from dpsql.compiler.ir.conditions import all_of, any_of, is_null, negated
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Column,
    Distinct,
    Exists,
    Expr,
    Field,
    Filter,
    InRelation,
    Join,
    Link,
    Project,
    Protected,
    Relation,
    Release,
    Scalar,
    Scan,
    SetOperation,
    Sort,
    UnitWindows,
)
from dpsql.compiler.ir.primitives import Contribution, Primitive, PrimitiveKind
from dpsql.compiler.ir.walk import fields_in, is_plain, rewrite_expression, rewrite_relation
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.values.bounds import bounds_of, interval
from dpsql.compiler.values.domain import enumerate_keys
from dpsql.sqltypes import SqlType

_COUNT = AggregateCall("count", None, False, None, SqlType.BIGINT)
WIDTH = 4
"""How many times as many rows or groups of one unit a wide total counts."""


def totalled(
    primitives: Sequence[Primitive], estimates: Sequence[Estimate], contribution: Contribution, rows: Relation
) -> tuple[int, ...]:
    """Return the cells that get a wide total: counts that lose rows to bounds, else sums of nonnegative values.

    Args:
        primitives: The cells.
        estimates: The estimates that use them.
        contribution: The contribution bounds of one unit.
        rows: The aggregated rows.
    """
    counted = (cell for estimate in estimates if (cell := _counted(estimate)) is not None)
    # Counts of units lose groups only.
    counts = [cell for cell in counted if _counts(primitives[cell]) and _is_cut(primitives[cell], contribution)]
    sums = [estimate.cell for estimate in estimates if isinstance(estimate, SumEstimate)]
    means = [estimate.sum_cell for estimate in estimates if isinstance(estimate, MeanEstimate)]
    summed = [cell for cell in sums if _adds_up(primitives[cell]) and _is_cut(primitives[cell], contribution)]
    expected = [cell for cell in (*sums, *means) if _adds_up(primitives[cell]) and _is_expected(primitives[cell], rows)]
    return tuple(dict.fromkeys(counts or (*summed, *expected)))


def _is_cut(primitive: Primitive, contribution: Contribution) -> bool:
    return contribution.ranked if primitive.counts_units else not contribution.one_row


def _is_expected(primitive: Primitive, rows: Relation) -> bool:
    """True of values that would be larger if more rows of a unit were expected than are: these may be there."""
    return primitive.argument is not None and _grows(primitive.argument, rows)


def _grows(value: Expr, rows: Relation) -> bool:
    narrow, wide = interval(value, bounds_of(rows)), interval(_of_more(value), bounds_of(_widened(rows)))
    return narrow.lower == wide.lower and narrow.upper != wide.upper


def _widened(rows: Relation) -> Relation:
    """The same rows where WIDTH times as many of a unit are expected."""
    return _expecting_more(rewrite_relation(rows, _in_subquery))


def _of_more(value: Expr) -> Expr:
    """The same value where WIDTH times as many rows of a unit are expected in its subqueries."""
    return rewrite_expression(value, _in_subquery)


def _in_subquery(part: Expr) -> Expr | None:
    return replace(part, relation=_widened(part.relation)) if isinstance(part, Scalar) else None


def _expecting_more(rows: Relation) -> Relation:
    match rows:
        case Aggregate(rows=int(expected)) | UnitWindows(rows=expected):
            return replace(rows, input=_expecting_more(rows.input), rows=WIDTH * expected)
        case Join() | SetOperation():
            return replace(rows, left=_expecting_more(rows.left), right=_expecting_more(rows.right))
        case Aggregate() | Filter() | Project() | Sort() | Distinct():
            return replace(rows, input=_expecting_more(rows.input))
        case _:
            return rows


def _counted(estimate: Estimate) -> int | None:
    match estimate:
        case CountEstimate():
            return estimate.cell
        case MeanEstimate():
            return estimate.count_cell
        case _:
            return None


def _counts(primitive: Primitive) -> bool:
    return primitive.kind is PrimitiveKind.COUNT


def _adds_up(primitive: Primitive) -> bool:
    """True for sums that grow with each row; with values of both signs, dropped values may cancel."""
    sums = primitive.kind in (PrimitiveKind.SUM, PrimitiveKind.MEAN)
    return sums and primitive.grid is not None and primitive.grid.lower >= 0


def sampled(
    primitives: Sequence[Primitive], estimates: Sequence[Estimate], cells: Sequence[int]
) -> tuple[Primitive, ...]:
    """Return cells that count, in each group, the rows of units with dropped rows, one for each count of rows.

    Args:
        primitives: The cells.
        estimates: The estimates that use them.
        cells: The cells that have a wide total.
    """
    shown = {estimate.cell for estimate in estimates if isinstance(estimate, CountEstimate)}
    counts = [primitives[cell] for cell in cells if cell in shown]
    return tuple(sampled_of(primitive) for primitive in counts if not primitive.counts_units)


def counted_with(cell: int, estimates: Sequence[Estimate]) -> int | None:
    """Return the count of the values whose distances from a centre a cell sums; None for other cells."""
    means = (estimate for estimate in estimates if isinstance(estimate, MeanEstimate))
    return next((mean.count_cell for mean in means if mean.sum_cell == cell), None)


def sampled_of(primitive: Primitive) -> Primitive:
    """The same count, of the rows of units of whose rows some are left out."""
    return replace(primitive, sampled=True)


@dataclass(frozen=True)
class WideTotals:
    """Makes the totals of the cells of one release.

    Attributes:
        release: The release.
        settings: Narrower bounds of the release.
        catalog: Policy and schema.
        fields: The source of further fields.
    """

    release: Release
    settings: QuerySettings
    catalog: Catalog
    fields: Fields

    def of(self, primitives: Sequence[Primitive], contribution: Contribution, width: int) -> Release:
        """The release without groups whose cells are the totals of some cells: of several that count rows, or of one.

        Args:
            primitives: The cells.
            contribution: What one unit may contribute to them.
            width: How many times as many rows of a unit count, or of its groups where units are counted.
        """
        protected, (first, *_) = self._listed(), primitives
        if first.counts_units:
            pairs = self._pairs(protected, first)
            return self._ungrouped(pairs, [_COUNT], width * contribution.groups_per_unit)
        calls = [_call(primitive, width) for primitive in primitives]
        if width > 1:
            protected = replace(protected, relation=_widened(protected.relation))
        rows = width * min(protected.rows_per_unit, self.settings.max_rows or protected.rows_per_unit)
        return self._ungrouped(protected, list(dict.fromkeys(calls)), 1 if protected.one_row else rows)

    def _ungrouped(self, protected: Protected, calls: Sequence[AggregateCall], rows: int) -> Release:
        aggregate = Aggregate(
            protected.relation, (), (), tuple(self.fields.new(call.type) for call in calls), tuple(calls)
        )
        limits = tuple((self.fields.new(SqlType.DOUBLE), self.fields.new(SqlType.DOUBLE)) for _ in calls)
        bounded = replace(protected, rows_per_unit=rows, groups_per_unit=1, rows_per_group=rows)
        return Release(bounded, aggregate, limits)

    def _listed(self) -> Protected:
        """The rows that are in some group."""
        protected, keys = self.release.protected, self.release.aggregate.keys
        relation = protected.relation
        if keys and enumerate_keys(keys, relation, self.catalog, self.fields) is not None:
            # Keys of joined public rows are listed anyway: the list consists of these rows.
            listed = frozenset(_joined_public(relation))
            beside = [key for key in keys if not (is_plain(key) and fields_in(key) and fields_in(key) <= listed)]
            domains = [(key, enumerate_keys((key,), relation, self.catalog, self.fields)) for key in beside]
            for condition in [_is_listed(key, domain[0]) for key, domain in domains if domain is not None]:
                relation = Filter(relation, condition)
        return replace(protected, relation=relation)

    def _pairs(self, protected: Protected, primitive: Primitive) -> Protected:
        """One row for each unit and each group that it is counted in."""
        relation = protected.relation
        if primitive.argument is not None:
            absent = is_null(primitive.argument)
            relation = Filter(relation, negated(absent))
        if primitive.filter is not None:
            relation = Filter(relation, primitive.filter)
        keys = (Column(protected.unit), *self.release.aggregate.keys)
        key_fields = tuple(self.fields.new(key.type) for key in keys)
        pairs = Aggregate(relation, key_fields, keys, (), (), protected.rows_per_unit)
        return replace(protected, relation=pairs, unit=key_fields[0], links=frozenset({Link((), key_fields[:1])}))


def _joined_public(relation: Relation) -> Iterator[Field]:
    """Yield the fields of public tables that each row is joined with."""
    match relation:
        case Filter():
            yield from _joined_public(relation.input)
        case Join(kind="inner" | "cross"):
            yield from _joined_public(relation.left)
            yield from _joined_public(relation.right)
        case Scan():
            yield from relation.fields


def _is_listed(key: Expr, domain: Relation) -> Expr:
    """True for rows whose key is in a public list; NULL is in it if a NULL group is shown."""
    (field,) = domain.fields
    absent = is_null(key)
    null_is_listed = Exists(Filter(domain, is_null(Column(field))))
    null = all_of(absent, null_is_listed)
    return any_of(InRelation(key, domain), null)


def place_of(primitive: Primitive, total: Release) -> int:
    """Which cell of a release is the wide total of another cell: a sum and a mean of the same values have one."""
    calls = total.aggregate.aggregates
    return 0 if primitive.counts_units else calls.index(_call(primitive, WIDTH))


def _call(primitive: Primitive, width: int) -> AggregateCall:
    narrow = primitive.argument
    argument = narrow if width == 1 or narrow is None else _of_more(narrow)
    if primitive.grid is not None and argument is not None:
        return AggregateCall("sum", argument, False, primitive.filter, argument.type)
    return AggregateCall("count", argument, False, primitive.filter, SqlType.BIGINT)
