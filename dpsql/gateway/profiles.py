"""profiles: make a profile at the data owner's command, by which bounds are chosen.

Rule 1: the cap is charged durably before a private row is read, and nothing gives it back.
Rule 2: a profile is in the ledger, durably, before anything is made of it.
Rule 3: exact counts are recorded, durably too, before they are read, as what no guarantee covers; they go to the owner
who asked, and into no ledger and no log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpsql.backends import Backend
from dpsql.backends.backend import Cancellation
from dpsql.compiler.plan.profile_plan import PlannedProfile, RankedTable, exact_ranks, plan_profile
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.errors import InvalidParameter
from dpsql.gateway.bounds_search import owner_catalog, owner_settings
from dpsql.gateway.prices import Cost, together
from dpsql.gateway.release import ReleasedCells, release
from dpsql.ledger import BudgetStatus, Ledger
from dpsql.policy import Policy, Table
from dpsql.policy.profile import Profile, RowRanks, TableProfile, table_facts
from dpsql.privacy.cell_mechanism import added
from dpsql.privacy.conversion import check_epsilon
from dpsql.privacy.mechanisms import variance

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
