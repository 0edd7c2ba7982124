"""What the data owner looks at: charged to the cap alone, or recorded as covered by nothing; on both ledgers."""

from fractions import Fraction

import pytest

from dpsql.errors import BudgetExhausted
from dpsql.ledger import BudgetScope, Holder
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.spending import spending
from dpsql.privacy.accounting import Accountant, Spent
from tests.ledger.world import SQL, Clock, Place, budget, charge_only, gaussian, laplace, opened, policy, requests

TENTH = Fraction(1, 10)
POLICY = policy()


def epsilon(spent: Spent) -> Fraction | None:
    return spent.pure_epsilon


def test_the_cap_alone_pays(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    status = ledger.charge_cap(POLICY, (laplace(1), laplace(TENTH)), "limits of visits.cost")
    assert status == ledger.cap(POLICY)
    assert epsilon(status.spent) == Fraction(12, 10)
    assert status.charges == 2
    assert epsilon(ledger.budget("ana", POLICY).spent) == TENTH
    # What is remembered from one charge to the next holds no total that came before.
    charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)
    assert epsilon(ledger.cap(POLICY).spent) == Fraction(13, 10)
    assert ledger.verify().ok
    numbers = ledger.cap(POLICY).numbers
    assert [len(events) for events in spending(ledger.export())[numbers[0]]] == [1, 2, 1]


def test_it_is_durable_and_told(ledger: Ledger, place: Place, clock: Clock) -> None:
    ledger.charge_cap(POLICY, (laplace(1),), "limits of visits.cost")
    ledger.record_exact(POLICY, "exactly: visits.cost")
    ledger.close()
    again = opened(place, clock)
    looked, exact = again.owner_history()
    assert (looked.kind, looked.reason, looked.dataset) == ("cap.charged", "limits of visits.cost", "clinic")
    assert looked.holder == exact.holder == Holder(BudgetScope.ALL)
    assert looked.price == (laplace(1),)
    assert (exact.kind, exact.reason, exact.price) == ("values.exact", "exactly: visits.cost", ())
    assert epsilon(again.cap(POLICY).spent) == 1
    assert again.history() == []
    assert again.verify().ok
    again.close()


def test_what_does_not_fit_is_refused_and_leaves_no_record(ledger: Ledger) -> None:
    ledger.charge_cap(POLICY, (laplace(19),), "much")
    head = ledger.verify().head
    with pytest.raises(BudgetExhausted, match=r"costs epsilon 2; at most 1 is left") as refused:
        ledger.charge_cap(POLICY, (laplace(2),), "more")
    assert refused.value.hint == "Write: --epsilon 1"
    assert ledger.verify().head == head
    ledger.charge_cap(POLICY, (laplace(1),), "the rest")
    with pytest.raises(BudgetExhausted, match="at most 0 is left") as refused:
        ledger.charge_cap(POLICY, (laplace(1),), "more")
    assert refused.value.hint is not None
    assert "never renews" in refused.value.hint


def test_users_are_refused_for_what_the_owner_spent(ledger: Ledger) -> None:
    ledger.charge_cap(POLICY, (laplace(20),), "all of it")
    with pytest.raises(BudgetExhausted, match="cap"):
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)


def test_it_is_counted_as_the_cap_counts(ledger: Ledger) -> None:
    rules = policy(cap=budget(1, Accountant.ZCDP, Fraction(1, 10**6)))
    status = ledger.charge_cap(rules, (gaussian(Fraction(1, 1000)),), "limits")
    assert status.spent.rho == Fraction(1, 1000)
    with pytest.raises(BudgetExhausted, match="is left"):
        ledger.charge_cap(rules, (gaussian(1),), "limits")


def test_profiles_are_kept_by_dataset(ledger: Ledger, place: Place, clock: Clock) -> None:
    other = policy(name="other")
    assert ledger.profiles(POLICY) == ()
    ledger.store_profile(POLICY, "first")
    ledger.store_profile(other, "others")
    ledger.store_profile(POLICY, "second")
    ledger.close()
    again = opened(place, clock)
    assert again.profiles(POLICY) == ("first", "second")
    assert again.profiles(other) == ("others",)
    assert again.owner_history() == []
    assert again.verify().ok
    again.close()
