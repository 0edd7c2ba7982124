"""dpsql.budget: as many more queries fit as the gate would admit one after another; and what a budget leaves out."""

from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.gateway.system_relations import budget_note, default_query, queries_that_fit
from dpsql.ledger import BudgetStatus
from dpsql.policy import Budget, MechanismChoice, QueryDefaults, RenewalWindow, Role
from dpsql.privacy.accounting import Accountant, Spent, admits, create_limit
from dpsql.privacy.cost import Event
from tests.ledger.world import gaussian, laplace, selection

MICRO = Fraction(1, 10**6)
START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)
AMOUNTS = st.fractions(Fraction(1, 50), 3, max_denominator=100)
EVENTS = st.one_of(
    st.builds(laplace, AMOUNTS),
    st.builds(lambda epsilon: gaussian(epsilon**2 / 2), AMOUNTS),
    st.builds(lambda epsilon, micros: selection(epsilon, micros * MICRO / 20), AMOUNTS, st.integers(1, 4)),
)


def status(accountant: Accountant, events: Sequence[Event] = (), **facts: Any) -> BudgetStatus:
    delta = Fraction(0) if accountant is Accountant.PURE else MICRO
    limit = create_limit(accountant, Fraction(5), delta, Fraction(1, 2))
    spent = Spent.zero().keeping(limit.order) if limit.order else Spent.zero()
    known = {"window_start": START, "window_end": None, "window": None, "resets": 0, **facts}
    return BudgetStatus(limit, spent.add(events), charges=1, **known)


def one_after_another(budget: BudgetStatus, events: list[Event]) -> int:
    spent, count = budget.spent, 0
    while admits(budget.limit, spent := spent.add(events)):
        count += 1
    return count


@pytest.mark.parametrize("accountant", Accountant)
@settings(max_examples=25, deadline=None)
@given(spent=st.lists(EVENTS, max_size=2), events=st.lists(EVENTS, min_size=1, max_size=3))
def test_the_number_is_what_the_gate_admits(accountant: Accountant, spent: list[Event], events: list[Event]) -> None:
    budget = status(accountant, spent)
    assert queries_that_fit(budget, events) == one_after_another(budget, events)


@pytest.mark.parametrize(
    ("accountant", "count"),
    [
        (Accountant.PURE, 50),
        (Accountant.BASIC, 50),
        (Accountant.ADVANCED, 73),
        (Accountant.ZCDP, 88),
        (Accountant.RDP, 92),
    ],
)
def test_the_default_query(accountant: Accountant, count: int) -> None:
    budget = Budget(Fraction(5), MICRO, accountant, None, Fraction(1, 2))
    query = QueryDefaults(Fraction(1, 10), Fraction(0), MechanismChoice.AUTO, Fraction(1))
    events = [default_query(Role("analyst", budget, query, frozenset()))]
    assert queries_that_fit(status(accountant), events) == one_after_another(status(accountant), events) == count


def test_an_order_that_is_not_kept_yet_is_counted_as_it_will_be() -> None:
    adopted = status(Accountant.RDP)
    fresh = BudgetStatus(adopted.limit, Spent.zero(), None, None, 0, None, 0)
    events = [laplace(Fraction(1, 2))]
    assert queries_that_fit(fresh, events) == queries_that_fit(adopted, events)


def test_what_costs_nothing_fits_as_often_as_can_be_told() -> None:
    assert queries_that_fit(status(Accountant.ZCDP), []) == 2**63 - 1


def test_what_is_overspent_admits_nothing() -> None:
    assert queries_that_fit(status(Accountant.PURE, [laplace(6)]), [laplace(Fraction(1, 10**9))]) == 0


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({}, "never renews"),
        (
            {"window": RenewalWindow(30), "window_end": END},
            "renews every 30 days, next on 2026-01-31 00:00 UTC; windows add up: w windows may lose w times this, "
            "and a period as long as one window may lose it twice",
        ),
        (
            {"window": RenewalWindow(None), "resets": 1},
            "renews every calendar month; windows add up: w windows may lose w times this, "
            "and a period as long as one window may lose it twice; "
            "reset once by the data owner: spending before a reset adds to spending after it",
        ),
        (
            {"resets": 3},
            "never renews; reset 3 times by the data owner: spending before a reset adds to spending after it",
        ),
    ],
)
def test_the_note_says_what_the_budget_does_not_promise(facts: dict[str, Any], note: str) -> None:
    assert budget_note(status(Accountant.PURE, **facts)) == note
