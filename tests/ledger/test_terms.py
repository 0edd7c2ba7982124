"""Windows, and changes of the policy: nothing that is spent comes back but by a window's end."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest

from dpsql.errors import BudgetExhausted, InvalidPolicy
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.transaction import window_end, window_start
from dpsql.policy import Policy, RenewalWindow
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.cost import Adjacency
from tests.ledger.world import SQL, Clock, budget, charge_only, gaussian, policy, request, requests

TENTH = Fraction(1, 10)
MICRO = Fraction(1, 10**6)
MONTH = RenewalWindow(None)


def windowed(window: RenewalWindow | None, **dataset: Any) -> Policy:
    return policy(budget(TENTH, window=window), **dataset)


def fits(ledger: Ledger, rules: Policy, user: str = "ana") -> bool:
    """Tell whether a fresh query fits, and charge it."""
    try:
        charge_only(ledger, user, rules, requests(object()), sql=SQL)
    except BudgetExhausted:
        return False
    return True


def kinds(ledger: Ledger) -> list[str]:
    return [record["kind"] for record in ledger.export() if not record["kind"].startswith("account")]


def test_a_budget_renews_every_so_many_days_from_its_first_charge(ledger: Ledger, clock: Clock) -> None:
    rules = windowed(RenewalWindow(30))
    begun = clock.now
    status = ledger.budget("ana", rules)
    assert (status.window_start, status.window_end, status.charges) == (None, None, 0)
    assert [fits(ledger, rules), fits(ledger, rules)] == [True, False]
    clock.move(days=30, microseconds=-1)
    assert not fits(ledger, rules)
    clock.move(microseconds=1)
    status = ledger.budget("ana", rules)
    assert (status.window_start, status.spent.pure_epsilon, status.charges) == (clock.now, Fraction(0), 0)
    assert [fits(ledger, rules), fits(ledger, rules)] == [True, False]
    clock.move(days=75)  # windows are counted from the first charge, not from the last one
    assert fits(ledger, rules)
    status = ledger.budget("ana", rules)
    assert status.window_start is not None
    assert status.window_end is not None
    assert ((status.window_start - begun).days, (status.window_end - begun).days) == (90, 120)
    assert ledger.cap(rules).spent.pure_epsilon == 3 * TENTH  # the cap never renews
    assert ledger.verify().ok


def test_a_refused_charge_does_not_renew(ledger: Ledger, clock: Clock) -> None:
    rules = windowed(RenewalWindow(30))
    assert fits(ledger, rules)
    clock.move(days=31)
    with pytest.raises(BudgetExhausted) as refusal:
        charge_only(ledger, "ana", rules, requests("a", "b"), sql=SQL)
    assert refusal.value.remaining == TENTH
    assert "budget.renewed" not in kinds(ledger)


def test_a_budget_renews_with_the_calendar_month(ledger: Ledger, clock: Clock) -> None:
    rules = windowed(MONTH)
    assert fits(ledger, rules)
    clock.now = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    assert not fits(ledger, rules)
    assert ledger.budget("ana", rules).window_end == datetime(2026, 2, 1, tzinfo=UTC)
    clock.now = datetime(2026, 2, 1, tzinfo=UTC)
    assert [fits(ledger, rules), fits(ledger, rules)] == [True, False]
    assert ledger.budget("ana", rules).window_start == datetime(2026, 2, 1, tzinfo=UTC)


def test_the_month_is_that_of_the_policys_zone(ledger: Ledger, clock: Clock) -> None:
    rules = windowed(MONTH, timezone="Europe/Berlin")
    assert fits(ledger, rules)
    clock.now = datetime(2026, 1, 31, 22, 59, tzinfo=UTC)
    assert not fits(ledger, rules)
    clock.now = datetime(2026, 1, 31, 23, 0, tzinfo=UTC)
    assert fits(ledger, rules)


def test_months_end_where_the_next_begins() -> None:
    for zone in ("UTC", "Europe/Berlin", "Pacific/Auckland"):
        start = window_start(MONTH, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 15, tzinfo=UTC), zone)
        for _ in range(12):
            end = window_end(MONTH, start, zone)
            assert 27 < (end - start).total_seconds() / 86400 < 32
            assert window_start(MONTH, start, end, zone) == end
            start = end


def test_a_clock_that_moved_back_renews_nothing(ledger: Ledger, clock: Clock) -> None:
    for rules in (windowed(RenewalWindow(30)), windowed(MONTH, name="lab")):
        assert fits(ledger, rules)
        clock.move(days=40)
        assert fits(ledger, rules)
        clock.move(days=-40)
        assert not fits(ledger, rules)
        assert ledger.budget("ana", rules).spent.pure_epsilon == TENTH
        clock.move(days=-400)
        assert not fits(ledger, rules)
        assert fits(ledger, rules, "ben")  # a charge now is dated like the last one
        clock.move(days=440)
        assert not fits(ledger, rules)
    times = [record["at"] for record in ledger.export()]
    assert times == sorted(times)
    assert ledger.verify().ok


def test_another_window_keeps_what_is_spent(ledger: Ledger, clock: Clock) -> None:
    assert fits(ledger, windowed(RenewalWindow(30)))
    clock.move(days=20)
    # Windows of one day, counted from the first charge, would have begun anew; so would a calendar month.
    for window in (RenewalWindow(1), MONTH, RenewalWindow(10), None, RenewalWindow(7)):
        assert not fits(ledger, windowed(window))
        assert ledger.budget("ana", windowed(window)).spent.pure_epsilon == TENTH
    # A refusal writes nothing; a charge adopts the window, which begins now.
    charge_only(ledger, "ana", windowed(RenewalWindow(7)), [], sql="SELECT 1")
    begun = clock.now
    status = ledger.budget("ana", windowed(RenewalWindow(7)))
    assert (status.window_start, status.spent.pure_epsilon) == (begun, TENTH)
    clock.move(days=7, microseconds=-1)
    assert not fits(ledger, windowed(RenewalWindow(7)))
    clock.move(microseconds=1)
    assert fits(ledger, windowed(RenewalWindow(7)))
    assert ledger.verify().ok


def test_the_status_under_another_window_begins_now(ledger: Ledger, clock: Clock) -> None:
    assert fits(ledger, windowed(None))
    clock.move(days=3)
    assert ledger.budget("ana", windowed(RenewalWindow(30))).window_start == clock.now


def test_a_window_that_ended_renews_before_the_next_one_is_adopted(ledger: Ledger, clock: Clock) -> None:
    assert fits(ledger, windowed(RenewalWindow(30)))
    clock.move(days=30)
    assert fits(ledger, windowed(RenewalWindow(60)))
    assert kinds(ledger)[-3:] == ["budget.renewed", "budget.terms", "charge"]
    clock.move(days=59)
    assert not fits(ledger, windowed(RenewalWindow(60)))


def test_the_time_zone_matters_to_months_only(ledger: Ledger) -> None:
    assert fits(ledger, windowed(RenewalWindow(30)))
    before = len(kinds(ledger))
    assert not fits(ledger, windowed(RenewalWindow(30), timezone="Asia/Tokyo"))
    charge_only(ledger, "ana", windowed(RenewalWindow(30), timezone="Asia/Tokyo"), [], sql="SELECT 1")
    assert kinds(ledger)[before:] == ["reuse"]


def test_another_limit_applies_to_what_is_spent(ledger: Ledger) -> None:
    charge_only(ledger, "ana", policy(), requests("a", "b", "c"), sql=SQL)
    lower, higher = policy(budget(TENTH * 3)), policy(budget(TENTH * 4))
    status = ledger.budget("ana", lower)
    assert status.limit.epsilon == TENTH * 3
    assert status.remaining.epsilon == 0
    assert not fits(ledger, lower)
    assert kinds(ledger)[-1] == "charge"
    assert [fits(ledger, higher), fits(ledger, higher)] == [True, False]
    assert kinds(ledger)[-2:] == ["budget.terms", "charge"]
    assert ledger.budget("ana", higher).spent.pure_epsilon == TENTH * 4
    assert ledger.verify().ok


def test_another_accountant_applies_to_what_is_spent(ledger: Ledger) -> None:
    zcdp = policy(budget(1, Accountant.ZCDP, MICRO), budget(20, Accountant.ZCDP, MICRO))
    pure = policy(budget(1), budget(20, Accountant.ZCDP, MICRO))
    charge_only(ledger, "ana", zcdp, requests("a"), sql=SQL)
    assert charge_only(ledger, "ana", pure, requests("b"), sql=SQL).spent.pure_epsilon == 2 * TENTH
    assert charge_only(ledger, "ana", zcdp, [request("c", gaussian(MICRO))], sql=SQL).spent.rho == TENTH**2 + MICRO
    assert not fits(ledger, pure)  # what was spent on Gaussian noise has no pure price
    assert fits(ledger, zcdp)


def test_the_limit_stays_as_it_was_fixed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    zcdp = policy(budget(1, Accountant.ZCDP, MICRO), budget(20, Accountant.ZCDP, MICRO))
    limit = charge_only(ledger, "ana", zcdp, requests("a"), sql=SQL).limit
    monkeypatch.setattr("dpsql.ledger.budgets._fix", None)  # a later release of dpsql may round otherwise
    assert charge_only(ledger, "ana", zcdp, requests("b"), sql=SQL).limit == limit
    assert ledger.budget("ana", zcdp).limit == limit
    assert ledger.cap(zcdp).limit.epsilon == 20


def test_another_limit_of_the_cap_applies_to_what_is_spent(ledger: Ledger) -> None:
    rules = [policy(cap=budget(TENTH * tenths)) for tenths in (1, 2)]
    assert ledger.cap(rules[0]).window_start is None
    assert [fits(ledger, each) for each in (rules[0], rules[0], rules[1], rules[1])] == [True, False, True, False]
    assert ledger.cap(rules[0]).limit.epsilon == TENTH
    assert ledger.cap(rules[1]).spent.pure_epsilon == 2 * TENTH
    assert ledger.cap(rules[1]).charges == 2
    assert ledger.verify().ok


def test_each_policy_of_a_shared_cap_keeps_its_own_limit(ledger: Ledger) -> None:
    clinic, lab = policy(cap=budget(TENTH * 2)), policy(cap=budget(TENTH * 3), name="lab")
    assert [fits(ledger, each) for each in (clinic, lab, clinic, lab, lab)] == [True, True, False, True, False]
    assert kinds(ledger).count("budget.terms") == 4  # ana in clinic, ana in lab, and the cap under each


def test_a_renamed_cap_is_no_fresh_cap(ledger: Ledger) -> None:
    old, new = policy(cap=budget(TENTH * 2)), policy(cap=budget(TENTH * 2), cap_name="persons")
    assert fits(ledger, old)
    assert ledger.cap(new) == ledger.cap(old)  # before a charge finds the new name, too
    assert fits(ledger, new)
    assert ledger.cap(new).spent.pure_epsilon == 2 * TENTH
    for rules in (old, new, old):  # and back again: one cap under two names, charged once
        assert not fits(ledger, rules)
    assert ledger.cap(old).spent.pure_epsilon == 2 * TENTH
    charge_only(ledger, "ana", old, [], sql="SELECT 1")
    assert kinds(ledger)[-2:] == ["dataset.joined", "reuse"]
    assert ledger.verify().ok


def test_a_dataset_that_joins_anothers_cap_brings_what_it_spent(ledger: Ledger) -> None:
    cap = budget(TENTH * 5)
    clinic, lab = policy(cap=cap), policy(cap=cap, name="lab", cap_name="lab")
    assert [fits(ledger, each) for each in (clinic, clinic, lab)] == [True] * 3
    joined = policy(cap=cap, name="lab")
    assert (ledger.cap(joined).spent.pure_epsilon, ledger.cap(joined).charges) == (TENTH * 3, 3)
    assert ledger.cap(joined).numbers == ledger.cap(clinic).numbers + ledger.cap(lab).numbers
    assert fits(ledger, joined)
    assert ledger.cap(clinic).spent.pure_epsilon == TENTH * 4
    assert (ledger.cap(joined).charges, ledger.cap(clinic).charges) == (4, 4)
    assert [fits(ledger, each) for each in (clinic, lab)] == [True, False]
    assert ledger.verify().ok


def test_neighbours_of_another_kind_have_no_place_in_a_cap(ledger: Ledger) -> None:
    assert fits(ledger, policy())
    swapped: dict[str, Any] = {"adjacency": Adjacency.SUBSTITUTE}
    for rules in (
        policy(**swapped),
        policy(**swapped, cap_name="persons"),  # a rename does not help
        policy(**swapped, name="lab"),
    ):
        with pytest.raises(InvalidPolicy, match="do not add up"):
            charge_only(ledger, "ana", rules, requests("b"), sql=SQL)
    assert charge_only(ledger, "ana", policy(**swapped, name="lab", cap_name="lab"), requests("c"), sql=SQL)
