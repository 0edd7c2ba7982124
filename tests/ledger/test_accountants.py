"""Every accountant gates a real ledger exactly where its theorem does, over windows and changes of the policy."""

from fractions import Fraction
from typing import Any

import pytest

from dpsql.errors import BudgetExhausted, InvalidParameter
from dpsql.ledger.ledger import Ledger
from dpsql.policy import Policy, RenewalWindow
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.cost import Event
from tests.ledger.world import SQL, Clock, budget, charge_only, gaussian, laplace, policy, request, selection

MICRO = Fraction(1, 10**6)
LAPLACE, GAUSSIAN = laplace(Fraction(1, 10)), gaussian(Fraction(1, 400))


def rules(accountant: Accountant, epsilon: int = 8, window: RenewalWindow | None = None, **more: Any) -> Policy:
    return policy(budget(epsilon, accountant, MICRO, window), budget(100, Accountant.ZCDP, MICRO), **more)


def charge(ledger: Ledger, rules: Policy, event: Event, times: int) -> int:
    """Return how many of so many charges fit."""
    for done in range(times):
        try:
            charge_only(ledger, "ana", rules, [request(object(), event)], sql=SQL)
        except BudgetExhausted:
            return done
    return times


@pytest.mark.parametrize(
    ("accountant", "event", "fits"),
    [
        (Accountant.BASIC, LAPLACE, 80),
        (Accountant.ADVANCED, LAPLACE, 174),
        (Accountant.ZCDP, LAPLACE, 201),
        (Accountant.ZCDP, GAUSSIAN, 403),
        (Accountant.RDP, LAPLACE, 215),
        (Accountant.RDP, GAUSSIAN, 420),
    ],
    ids=str,
)
def test_the_limit_refuses_where_the_theorem_does(
    ledger: Ledger, accountant: Accountant, event: Event, fits: int
) -> None:
    assert charge(ledger, rules(accountant), event, 500) == fits
    left = ledger.budget("ana", rules(accountant)).remaining.epsilon
    assert 0 <= left < Fraction(1, 10)
    assert ledger.verify().ok


def test_selection_has_no_price_in_a_renyi_divergence(ledger: Ledger) -> None:
    event = selection(Fraction(1, 100), Fraction(1, 10**12))
    assert charge(ledger, rules(Accountant.RDP), event, 1) == 0
    assert charge(ledger, rules(Accountant.ADVANCED), event, 1) == 1


def test_a_renewed_budget_counts_at_its_order_again(ledger: Ledger, clock: Clock) -> None:
    monthly = rules(Accountant.RDP, window=RenewalWindow(30))
    assert charge(ledger, monthly, LAPLACE, 500) == 215
    clock.move(days=30)
    assert charge(ledger, monthly, LAPLACE, 500) == 215
    assert ledger.verify().ok


def test_the_order_stays_when_the_policy_changes(ledger: Ledger) -> None:
    assert charge(ledger, rules(Accountant.RDP, 8), LAPLACE, 100) == 100
    before = ledger.budget("ana", rules(Accountant.RDP, 8))
    raised = ledger.budget("ana", rules(Accountant.RDP, 9))
    assert raised.limit.order == before.limit.order
    assert raised.spent == before.spent
    assert charge(ledger, rules(Accountant.RDP, 9), LAPLACE, 1) == 1
    assert ledger.budget("ana", rules(Accountant.RDP, 9)).limit == raised.limit
    with pytest.raises(InvalidParameter, match="is too small for a budget of order"):
        charge_only(ledger, "ana", policy(budget(Fraction(1, 10), Accountant.RDP, MICRO)), [request("x")], sql=SQL)


def test_what_was_spent_before_rdp_counts_by_a_bound(ledger: Ledger) -> None:
    """100 charges of ρ = 1/200 before; at the order α they count α/2, a little more than as Rényi divergences."""
    assert charge(ledger, rules(Accountant.ZCDP), LAPLACE, 100) == 100
    after = rules(Accountant.RDP)
    status = ledger.budget("ana", after)
    assert status.spent.at(status.limit.order) == status.limit.order / 2
    assert charge(ledger, after, LAPLACE, 500) == 113  # not 115
    assert ledger.verify().ok


def test_a_cap_merged_of_two_keeps_its_order(ledger: Ledger) -> None:
    def lab(name: str, cap: str) -> Policy:
        budgets = budget(8, Accountant.RDP, MICRO), budget(9, Accountant.RDP, MICRO)
        return policy(*budgets, name=name, cap_name=cap)

    for name in ("north", "south"):
        assert charge(ledger, lab(name, name), LAPLACE, 100) == 100
    alone = ledger.cap(lab("north", "north"))
    charge_only(ledger, "ana", lab("south", "north"), [request("one", GAUSSIAN)], sql=SQL)
    both = ledger.cap(lab("north", "north"))
    first, second = alone.spent.at(alone.limit.order), both.spent.at(both.limit.order)
    assert first is not None
    assert second is not None
    assert second == 2 * first + both.limit.order * Fraction(1, 400)
    assert ledger.verify().ok
