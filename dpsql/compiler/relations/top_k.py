"""top_k: the first keys by a count or a sum of protected rows that is not itself asked for are picked, not counted.

SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3 is three picks from the public values of icd. One
unit moves a count by no more than its rows in that group, whatever groups it touches besides; a histogram would have to
bound the groups. Where counts are shown, keys are private, or noisy counts know more, there is a histogram.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpsql.compiler.aggregates.mode import picked_groups
from dpsql.compiler.aggregates.registry import FUNCTIONS
from dpsql.compiler.ir.nodes import Column, Expr, Field, Order, Picks, Relation, Release
from dpsql.compiler.ir.walk import fields_in, min_units, relations_in, windows_in
from dpsql.compiler.scope.catalog import Catalog
from dpsql.compiler.scope.lowering import Fields
from dpsql.compiler.values.domain import enumerate_keys
from dpsql.privacy.top_k import worth_top_k
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class Ordered:
    """Groups in an order, of which some are shown.

    Attributes:
        relation: The groups.
        outputs: What is shown of them.
        order: Their order.
        limit: How many are shown; None for all.
        offset: How many before them are not.
    """

    relation: Relation
    outputs: tuple[Expr, ...]
    order: tuple[Order, ...]
    limit: int | None
    offset: int

    def chosen(self, catalog: Catalog, fields: Fields) -> "Ordered":
        """The same, with groups picked where their score orders them and is not shown; else as it is."""
        release = self.relation
        if not isinstance(release, Release) or not self._shows_keys(release) or self.limit is None:
            return self
        count, aggregate = self.limit + self.offset, release.aggregate
        if count < 1 or not _is_worth_it(count, release, catalog, fields):
            return self
        score, *others = self.order
        place = fields.new(SqlType.BIGINT)
        picking = replace(
            release,
            aggregate=replace(aggregate, aggregate_fields=(place,)),
            picks=Picks(count, least=not score.descending),
        )
        order = (replace(score, expression=Column(place), descending=False), *others)
        return replace(self, relation=picked_groups(picking), order=order)

    def _shows_keys(self, release: Release) -> bool:
        """True where one count or sum comes first in the order, and nothing else is made of it."""
        aggregate = release.aggregate
        if not aggregate.keys or len(aggregate.aggregates) != 1 or not self.order:
            return False
        score, *others = (term.expression for term in self.order)
        is_score = (
            score == Column(aggregate.aggregate_fields[0]) and FUNCTIONS[aggregate.aggregates[0].function].orders_groups
        )
        return is_score and _are_of((*self.outputs, *others), aggregate.key_fields)


def _are_of(expressions: Sequence[Expr], keys: Sequence[Field]) -> bool:
    """True for expressions of one row's keys alone."""
    found = frozenset[Field]().union(*map(fields_in, expressions))
    return found <= frozenset(keys) and not any(windows_in(each) or relations_in(each) for each in expressions)


def _is_worth_it(count: int, release: Release, catalog: Catalog, fields: Fields) -> bool:
    """True where picks of public keys are better than noisy counts, by policy and SQL alone."""
    protected = release.protected
    domain = enumerate_keys(release.aggregate.keys, protected.relation, catalog, fields)
    if domain is None or min_units(release.aggregate) > 1:
        return False
    (score,) = release.aggregate.aggregates
    of_units = score.distinct and score.argument is not None and protected.is_unit_or_null(score.argument)
    # The noise of a histogram is for the groups that a unit's rows can fill, where these are fewer.
    filled = protected.groups_per_unit if of_units else protected.rows_per_unit // protected.rows_per_group
    touched = filled if domain[1] is None else min(filled, domain[1])
    fits = domain[1] is None or count <= domain[1]
    policy = catalog.policy.dataset
    return fits and worth_top_k(count, max(1, touched), catalog.role.budget.accountant, policy.adjacency)
