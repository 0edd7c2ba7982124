"""bounds_search: search for limits in the data, for the data owner: plan, charge the cap, read, release.

Rule 1: the cap is charged durably before a private row is read, and nothing gives it back.
Rule 2: an exact search is recorded, durably too, before it reads, as what no guarantee covers.
Rule 3: what is found goes to the owner who asked, and into no ledger and no log.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

from dpsql.backends import Backend
from dpsql.backends.backend import Cancellation
from dpsql.compiler.ir.schema import EngineSchema
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.plan.suggestion import NO_VALUE, SearchedLimit, Wanted, exact_searches, plan_search, positive
from dpsql.compiler.scope.catalog import Catalog
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.errors import InvalidParameter
from dpsql.gateway.prices import Cost, together
from dpsql.gateway.release import PostProcessor, release
from dpsql.ledger import BudgetStatus, Ledger
from dpsql.policy import Bound, Policy
from dpsql.privacy.conversion import check_epsilon

_NONE = Fraction(0)


@dataclass(frozen=True)
class Suggestion:
    """A limit that was found.

    Attributes:
        limit: Which.
        value: The limit; None where no value was found.
        ranks: How many units, at 95 %, it may lie from the one that was wanted; None of an exact one.
    """

    limit: SearchedLimit
    value: Bound | None
    ranks: int | None


@dataclass(frozen=True)
class Suggested:
    """What a search with noise found.

    Attributes:
        suggestions: In the order of the policy.
        cost: What the cap was charged.
        cap: The cap after it.
    """

    suggestions: tuple[Suggestion, ...]
    cost: Cost
    cap: BudgetStatus


@dataclass(frozen=True)
class Suggester:
    """Searches for limits of one policy.

    Attributes:
        policy: The policy.
        ledger: Where its cap is.
        backend: Where its data are.
    """

    policy: Policy
    ledger: Ledger
    backend: Backend

    def search(self, wanted: Sequence[Wanted], epsilon: Fraction, fraction: Decimal) -> Suggested:
        """Search with noise, at the cap's expense.

        Guarantee: that of the charged events, which the cap adds to all that users are told.
        Assumes: the cap's adjacency is the policy's; the ledger sees to it.
        Reference: plan_search.

        Args:
            wanted: What for.
            epsilon: The price, in the cap's currency, of all of it together.
            fraction: The part of the units that is not to have more rows or groups than the limit.

        Raises:
            BudgetExhausted: The cap does not cover it; nothing was charged or read.
            BackendFailure: The engine failed after the charge, which stands.
        """
        check_epsilon(epsilon)
        _check_fraction(fraction)
        catalog = owner_catalog(self.policy, self.backend.schema, epsilon)
        settings = owner_settings(self.policy, epsilon)
        search = plan_search(wanted, fraction, catalog, settings, _purpose(wanted))
        query = search.query
        with closing(PostProcessor(self.policy.dataset.timezone)) as post:
            post.check(query, Cancellation())
            self.backend.check(query.releases, (), Cancellation())
            events = [event for planned in query.releases for event in planned.events]
            cap = self.ledger.charge_cap(self.policy, events, query.sql)
            cells = self._released(query, post)
        suggestions = tuple(
            Suggestion(
                limit,
                None if cell is None else _value(limit, cell),
                column.error.ranks if column.error is not None else None,
            )
            for limit, cell, column in zip(search.limits, cells, query.columns, strict=True)
        )
        return Suggested(suggestions, together(cap.limit, [query.spends]), cap)

    def _released(self, query: CompiledQuery, post: PostProcessor) -> Sequence[int | None]:
        """Read and release, one relation after another; the cells of the query's one row."""
        released = []
        for planned in query.releases:
            exact = self.backend.fetch({0: planned}, (), Cancellation())
            released.append(release(planned, exact.releases[0]))
        (row,) = post.run(query, released, {}, {}, Cancellation()).rows
        return row

    def exact(self, wanted: Sequence[Wanted]) -> Iterator[Suggestion]:
        """Search without noise, which the ledger records first: what is found is covered by no guarantee."""
        searches = exact_searches(
            wanted, owner_catalog(self.policy, self.backend.schema, self.policy.dataset.budget.epsilon)
        )
        self.ledger.record_exact(self.policy, f"exactly, WITHOUT a guarantee: {_purpose(wanted)}")
        for search in searches:
            for limit, cell in zip(search.limits, self.backend.count(search.sql, search.names), strict=True):
                yield Suggestion(limit, None if cell == NO_VALUE else _value(limit, cell), None)


def owner_catalog(policy: Policy, schema: EngineSchema, epsilon: Fraction) -> Catalog:
    """The policy as the data owner sees it: every table, at the price and in the currency of the cap.

    Its minimum frequencies are for users: what is found goes to the owner alone, or bounds queries.
    """
    role = policy.roles[0]
    everything = replace(
        role,
        budget=policy.dataset.budget,
        query=replace(role.query, max_epsilon=epsilon, wide_share=_NONE),
        tables=frozenset(table.name for table in policy.tables),
    )
    tables = tuple(replace(table, min_units=1) for table in policy.tables)
    return Catalog(replace(policy, tables=tables), schema, everything)


def owner_settings(policy: Policy, epsilon: Fraction) -> QuerySettings:
    """The settings of what the data owner asks."""
    return QuerySettings(epsilon, _NONE, "auto", datetime.now(ZoneInfo(policy.dataset.timezone)))


def _value(limit: SearchedLimit, cell: int) -> Bound:
    value = limit.value(cell)
    return value if limit.column is not None else Fraction(positive(value))


def _purpose(wanted: Sequence[Wanted]) -> str:
    """What is searched for, in the words of the ledger's history."""
    parts = []
    for each in wanted:
        named = [f"{each.table.name}.{column.name}" for column in each.columns]
        named += [f"{each.table.name} max_rows"] * each.rows
        named += [f"{each.table.name} max_groups, max_rows_per_group"] * bool(each.keys)
        parts += named
    return f"policy suggest: {'; '.join(parts)}"


def _check_fraction(fraction: Decimal) -> None:
    if not 0 < fraction < 1 or fraction != round(fraction, 3):
        raise InvalidParameter(
            f"{fraction} is no part of the units",
            hint="--quantile 0.95, for example: up to three digits between 0 and 1",
        )
