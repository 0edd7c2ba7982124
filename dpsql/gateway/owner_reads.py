"""owner_reads: noisy bounds and profiles for the data owner's commands, charged to the cap.

Rule 1: the cap is charged durably before a private row is read, and nothing gives it back.
Rule 2: a profile is in the ledger, durably, before anything is made of it.
Rule 3: exact counts are recorded, durably too, before they are read, as what no guarantee covers.
Rule 4: what is found goes to the owner who asked, and into no log; but for profiles, into no ledger.
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
from dpsql.compiler.plan.profile_plan import PlannedProfile, RankedTable, exact_ranks, plan_profile
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedRelease
from dpsql.compiler.plan.suggestion import NO_VALUE, SearchedLimit, Wanted, exact_searches, plan_search, positive
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.errors import InvalidParameter
from dpsql.gateway.prices import Cost, together
from dpsql.gateway.release import PostProcessor, ReleasedCells, release
from dpsql.ledger import BudgetStatus, Ledger
from dpsql.policy import Bound, Policy, Table
from dpsql.policy.profile import Profile, RowRanks, TableProfile, table_facts
from dpsql.privacy.conversion import check_epsilon
from dpsql.privacy.mechanisms import added, variance

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
            f"the quantile must be between 0 and 1, with at most three digits, not {fraction}",
            hint="Write: --quantile 0.95",
        )


_EXACT = Fraction(0)


@dataclass(frozen=True)
class MadeProfile:
    """A profile that was made.

    Attributes:
        profile: The profile.
        cost: What the cap was charged.
        cap: The cap after it.
    """

    profile: Profile
    cost: Cost
    cap: BudgetStatus


def make_profile(policy: Policy, ledger: Ledger, backend: Backend, epsilon: Fraction) -> MadeProfile:
    """Release a profile at the expense of the cap, and keep it in the ledger.

    Guarantee: that of the charged events, which the cap adds to all that users are told.
    Assumes: the cap's adjacency is the policy's; the ledger sees to it.
    Reference: plan_profile.

    Args:
        policy: The policy.
        ledger: Where its cap is.
        backend: Where its data are.
        epsilon: The price, in the cap's currency.

    Raises:
        InvalidParameter: In every table of the policy each unit has one row.
        BudgetExhausted: The cap does not cover it; nothing was charged or read.
        BackendFailure: The engine failed after the charge, which stands.
    """
    check_epsilon(epsilon)
    catalog = owner_catalog(policy, backend.schema, epsilon)
    planned = plan_profile(catalog, owner_settings(policy, epsilon))
    if planned is None:
        raise InvalidParameter(
            "there is nothing to profile: the engine or max_rows = 1 lets each unit have one row in every table",
            hint="Bounds need no profile then.",
        )
    releases = planned.query.releases
    backend.check(releases, (), Cancellation())
    events = tuple(event for each in releases for event in each.events)
    cap = ledger.charge_cap(policy, events, planned.query.sql)
    ranks = _released(planned, backend)
    profile = Profile(_tables(policy, planned.ranked, ranks), events)
    ledger.store_profile(policy, profile.to_json())
    return MadeProfile(profile, together(cap.limit, [planned.query.spends]), cap)


def exact_profile(policy: Policy, ledger: Ledger, backend: Backend) -> tuple[TableProfile, ...]:
    """Count the same without noise, which the ledger records first: it is covered by no guarantee."""
    searches = tuple(exact_ranks(owner_catalog(policy, backend.schema, policy.dataset.budget.epsilon)))
    ledger.record_exact(policy, "exactly, WITHOUT a guarantee: what the policy's bounds drop")
    ranks = [
        RowRanks(each.ranked.grouping, tuple(backend.count(each.sql, each.names)), _EXACT, groups)
        for each, groups in ((each, _groups(each.ranked, backend)) for each in searches)
    ]
    return _tables(policy, [each.ranked for each in searches], ranks)


def _released(planned: PlannedProfile, backend: Backend) -> list[RowRanks]:
    """Read and release, one relation after another."""
    ranks = []
    for ranked, each in zip(planned.ranked, planned.query.releases, strict=True):
        exact = backend.fetch({0: each}, (), Cancellation())
        ranks.append(_ranks(ranked, each, release(each, exact.releases[0]), _groups(ranked, backend)))
    return ranks


def _groups(ranked: RankedTable, backend: Backend) -> int:
    """The number of public groups."""
    if ranked.listed is None:
        return 1
    return backend.fetch({}, (ranked.listed,), Cancellation()).public[ranked.listed.sql].count


def _ranks(ranked: RankedTable, planned: PlannedRelease, cells: ReleasedCells, groups: int) -> RowRanks:
    rows = dict(zip(cells.keys[0], cells.cells[0], strict=True))
    counted = tuple(int(rows[str(place)]) for place in range(len(ranked.bounds) + 1))
    return RowRanks(ranked.grouping, counted, variance(added(planned.primitives[0].noise)), groups)


def _tables(policy: Policy, ranked: Sequence[RankedTable], ranks: Sequence[RowRanks]) -> tuple[TableProfile, ...]:
    """The counts of each table together."""
    found: dict[tuple[Table, tuple[int, ...]], list[RowRanks]] = {}
    for each, counted in zip(ranked, ranks, strict=True):
        found.setdefault((each.table, each.bounds), []).append(counted)
    return tuple(
        TableProfile(table.name, table_facts(policy, table), bounds, tuple(counted))
        for (table, bounds), counted in found.items()
    )
