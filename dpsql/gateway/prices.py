"""prices: what queries cost a user, one after another, told before they are asked; nothing is read or spent here.

Rule: the user's own earlier releases are free, equal releases are charged once, and another user's release is priced
as a fresh one: who else has asked is not told.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from dpsql.compiler.plan.query_plan import CompiledQuery, HeldRelease, PlannedRelease
from dpsql.errors import PolicyViolation
from dpsql.ledger import BudgetStatus, GroupBalance, Ledger, ReleaseRequest, UserBudgets
from dpsql.ledger.reads import check_price
from dpsql.policy import Policy
from dpsql.privacy.accounting import Limit, Remaining, Spent, admits, asked_epsilon, remaining
from dpsql.privacy.cost import Accountant, Event

_GRID = 10**12


@dataclass(frozen=True)
class Cost:
    """What is charged, in the words of a budget's currency.

    Attributes:
        accountant: The currency.
        epsilon: ε in it: what one query asks, or that of one query that costs as much as several together.
        spent: The charge in every currency; nothing where all is free.
    """

    accountant: Accountant
    epsilon: Fraction
    spent: Spent

    @property
    def free(self) -> bool:
        """Whether nothing is charged."""
        return self.spent == Spent.zero()

    @property
    def delta(self) -> Fraction:
        """δ of the charge."""
        return self.spent.basic_delta if self.accountant.converts else self.spent.delta


@dataclass(frozen=True)
class Quotation:
    """What statements would be charged, one after another.

    Attributes:
        status: The user's budget before them.
        charges: For each statement, what it would be charged.
        spent: The budget's totals after all of them.
        shared: What the user's group has spent; None without a group.
        after: The same after all of them, if no other user of the group has any of it.
        refused: Index of the first statement that the budget, or that of the user's group, would not cover; None where
            all are covered.
        cheap: The refusal of the first statement that costs too little to be read; None where none does.
    """

    status: BudgetStatus
    charges: tuple[Cost, ...]
    spent: Spent
    shared: GroupBalance | None
    after: GroupBalance | None
    refused: int | None
    cheap: PolicyViolation | None = None

    @property
    def fits(self) -> bool:
        """Whether all of them would be answered."""
        return self.refused is None and self.cheap is None

    @property
    def cost(self) -> Cost:
        """What they would be charged together."""
        return together(self.status.limit, [charge.spent for charge in self.charges])

    @property
    def remaining(self) -> Remaining:
        """What would be left after them."""
        return remaining(self.status.limit, self.spent)


def quote(
    ledger: Ledger, user: str, policy: Policy, statements: Sequence[Sequence[CompiledQuery]], *, reuse: bool
) -> Quotation:
    """Price statements as if they ran now, one after another, and ask the gates of the user's and the group's budget.

    A group pays once for what several members ask. Who of them asked is not told, so the gate is asked as if none had.
    The cap's gate is not asked: what is left of a cap is never told to users.

    Args:
        ledger: Asked for the budgets and for what the user has, and left unchanged.
        user: Who would ask.
        policy: Whose budgets would be charged.
        statements: The queries of each, which are charged one after another.
        reuse: Whether earlier releases may answer.
    """
    budgets = ledger.budgets(user, policy)
    statuses = [budgets.own, *([budgets.shared] if budgets.shared is not None else [])]
    totals = [_running(status) for status in statuses]
    paid = _paid(ledger, user, policy, list(itertools.chain.from_iterable(statements)), reuse)
    refused: int | None = None
    cheap: PolicyViolation | None = None
    charges: list[Cost] = []
    for index, queries in enumerate(statements):
        each: list[Spent] = []
        for requests in itertools.islice(paid, len(queries)):
            events = [event for one in requests for event in one.events]
            each.append(Spent.zero().add(events))
            cheap = cheap or too_cheap_to_read(budgets, [one.events for one in requests])
            totals = [total.add(events) for total in totals]
            fits = all(admits(status.limit, spent) for status, spent in zip(statuses, totals, strict=True))
            if refused is None and requests and not fits:
                refused = index
        charges.append(together(budgets.own.limit, each))
    shared, after = None, None
    if budgets.shared is not None:
        shared = GroupBalance(str(budgets.group), budgets.shared.limit, budgets.shared.spent)
        after = replace(shared, spent=totals[1])
    return Quotation(budgets.own, tuple(charges), totals[0], shared, after, refused, cheap)


def too_cheap_to_read(budgets: UserBudgets, releases: Iterable[tuple[Event, ...]]) -> PolicyViolation | None:
    """Return the refusal of a query of which a release costs too little to be read; None where none does.

    Args:
        budgets: The user's, who would ask.
        releases: The events of each release that would be paid for.
    """
    limit = budgets.own.limit
    nothing = _running(replace(budgets.own, spent=Spent.zero()))
    prices = [nothing.add(events) for events in releases if events]
    asked = Spent.zero()
    for each in prices:
        asked = asked.merge(each)
    try:
        for each in prices:
            check_price(limit, each, asked, budgets.failures)
    except PolicyViolation as refusal:
        return refusal
    return None


def _running(status: BudgetStatus) -> Spent:
    """The totals that a charge would be added to: kept at the order of the budget's gate."""
    return status.spent.keeping(status.limit.order) if status.limit.order else status.spent


def _paid(
    ledger: Ledger, user: str, policy: Policy, queries: Sequence[CompiledQuery], reuse: bool
) -> Iterator[list[ReleaseRequest]]:
    """For each query, what it would pay for: what the user does not have, from before or from a query before it."""
    asked = [list(map(request, query.sources)) for query in queries]
    if not reuse:
        yield from asked
        return
    flat = [one for requests in asked for one in requests]
    owned = {_identity(one) for one, held in zip(flat, ledger.held(user, policy, flat), strict=True) if held}
    for requests in asked:
        fresh = [one for one in requests if _identity(one) not in owned]
        owned |= {_identity(one) for one in fresh}
        yield fresh


def together(limit: Limit, charges: Iterable[Spent]) -> Cost:
    """What several charges come to, as the cost of one query, rounded up."""
    spent = Spent.zero()
    for charge in charges:
        spent = spent.merge(charge)
    return Cost(limit.accountant, Fraction(ceil(asked_epsilon(limit, spent) * _GRID), _GRID), spent)


def of_query(query: CompiledQuery, spent: Spent, limit: Limit) -> Cost:
    """What a query's charge comes to; where nothing of it is free, that is the price it was compiled for."""
    if query.price is None or spent != query.spends:
        return together(limit, [spent])
    return Cost(limit.accountant, query.price.epsilon, spent)


def request(planned: PlannedRelease | HeldRelease) -> ReleaseRequest:
    """A release as the ledger is asked for it; one that the user has is to be free."""
    if isinstance(planned, HeldRelease):
        return ReleaseRequest(planned.key, planned.events, held=True)
    inner = dict.fromkeys(release.key for made in planned.inputs for release in made.releases)
    return ReleaseRequest(planned.key, planned.events, tuple(inner))


def _identity(asked: ReleaseRequest) -> tuple[str, tuple[Event, ...]]:
    return asked.key, asked.events
