"""wide_totals: how many rows there are in all, so that an answer can tell how many of them its bounds drop.

A release counts at most R rows of a unit, and fewer where its groups are bounded. Its wide total is a release of its
own without groups, over the same rows, which counts at most WIDTH · R rows of a unit. What the groups of the first
lack of the second, the bounds have dropped.

Rule 1: a wide total is a release as any other: bounded, verified, charged, and noised by itself.
Rule 2: it is asked of rows that are in some group: those whose keys have values of public lists, if these are public.
"""

from collections.abc import Sequence
from dataclasses import replace

from dpsql.compiler.aggregates.base import Estimate
from dpsql.compiler.aggregates.count import CountEstimate
from dpsql.compiler.aggregates.total import MeanEstimate, SumEstimate
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Column,
    Exists,
    Expr,
    Filter,
    InRelation,
    Relation,
    Release,
)
from dpsql.compiler.ir.primitives import Primitive, PrimitiveKind
from dpsql.compiler.scope.catalog import Catalog
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.values.domain import enumerate_keys
from dpsql.sqltypes import SqlType

WIDTH = 4
"""How many times as many rows of one unit a wide total counts."""


def totalled(primitives: Sequence[Primitive], estimates: Sequence[Estimate]) -> tuple[int, ...]:
    """The cells that a wide total is bought for: counts of rows, or sums of no negative values where there are none."""
    counts = [cell for estimate in estimates if (cell := _counted(estimate)) is not None]
    rows = [cell for cell in counts if _counts_rows(primitives[cell])]
    sums = [estimate.cell for estimate in estimates if isinstance(estimate, SumEstimate)]
    return tuple(dict.fromkeys(rows or (cell for cell in sums if _adds_up(primitives[cell]))))


def _counted(estimate: Estimate) -> int | None:
    match estimate:
        case CountEstimate():
            return estimate.cell
        case MeanEstimate():
            return estimate.count_cell
        case _:
            return None


def _counts_rows(primitive: Primitive) -> bool:
    return primitive.kind is PrimitiveKind.COUNT and not primitive.counts_units


def _adds_up(primitive: Primitive) -> bool:
    """True of sums that grow with each row: of values of both signs, what is dropped may cancel out."""
    return primitive.kind is PrimitiveKind.SUM and primitive.lower == 0


def widened(
    release: Release, primitives: Sequence[Primitive], settings: QuerySettings, catalog: Catalog, fields: Fields
) -> Release:
    """The release without groups whose cells are the wide totals of some primitives.

    Args:
        release: The release.
        primitives: Those of its cells that are to be totalled.
        settings: Narrower bounds of the release.
        catalog: Policy and schema.
        fields: The source of further fields.
    """
    protected, keys = release.protected, release.aggregate.keys
    relation = protected.relation
    if keys and enumerate_keys(keys, relation, catalog, fields) is not None:
        domains = [(key, enumerate_keys((key,), relation, catalog, fields)) for key in keys]
        for condition in [_is_listed(key, domain[0]) for key, domain in domains if domain is not None]:
            relation = Filter(relation, condition)
    rows = WIDTH * min(protected.rows_per_unit, settings.max_rows or protected.rows_per_unit)
    calls = tuple(map(_call, primitives))
    aggregate = Aggregate(relation, (), (), tuple(fields.new(call.type) for call in calls), calls)
    limits = tuple((fields.new(SqlType.DOUBLE), fields.new(SqlType.DOUBLE)) for _ in calls)
    wide = replace(protected, relation=relation, rows_per_unit=rows, groups_per_unit=1, rows_per_group=rows)
    return Release(wide, aggregate, limits)


def _is_listed(key: Expr, domain: Relation) -> Expr:
    """True of rows whose key is one of a public list; NULL is on it where a group of it is shown."""
    (field,) = domain.fields
    absent = Call("is_null", (key,), SqlType.BOOLEAN)
    null_is_listed = Exists(Filter(domain, Call("is_null", (Column(field),), SqlType.BOOLEAN)))
    null = Call("and", (absent, null_is_listed), SqlType.BOOLEAN)
    return Call("or", (InRelation(key, domain), null), SqlType.BOOLEAN)


def _call(primitive: Primitive) -> AggregateCall:
    if primitive.kind is PrimitiveKind.SUM and primitive.argument is not None:
        return AggregateCall("sum", primitive.argument, False, primitive.filter, primitive.argument.type)
    return AggregateCall("count", primitive.argument, False, primitive.filter, SqlType.BIGINT)
