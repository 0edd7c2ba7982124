"""Accounts: names, roles, verifiers; a name never gets a fresh budget."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from dpsql.errors import BudgetExhausted, InvalidParameter, PolicyViolation
from dpsql.ledger import Account, BudgetScope, Holder
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.model import Charge, Reading, ReleaseRequest
from tests.ledger.world import ANA, SQL, Clock, charge_only, laplace, policy, request, requests

POLICY = policy()
VERIFIER = "SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy"


def test_accounts_are_listed_by_name(ledger: Ledger, clock: Clock) -> None:
    ledger.add_account("Zoë with blank", "guest", VERIFIER)
    assert [account.name for account in ledger.accounts()] == ["Zoë with blank", "ana", "ben"]
    assert ledger.account("Zoë with blank") == Account("Zoë with blank", "guest", VERIFIER, False, clock.now)
    assert ledger.account("eve") is None


def test_an_expected_user_is_added_by_the_first_charge(ledger: Ledger, clock: Clock) -> None:
    def charge(*asked: ReleaseRequest) -> Charge:
        return ledger.charge("eve", POLICY, asked, sql=SQL, reading=Reading(100, lambda: None))

    records = len(list(ledger.export()))
    ledger.expect("eve", "analyst")
    assert ledger.account("eve") == Account("eve", "analyst", None, False, clock.now)
    assert ledger.budget("eve", POLICY).spent.pure_epsilon == 0
    with pytest.raises(BudgetExhausted):
        charge(request("a", laplace(100)))
    assert len(list(ledger.export())) == records, "a refusal adds nobody"
    assert charge(request("a")).reads
    assert [account.name for account in ledger.accounts()] == ["ana", "ben", "eve"]
    ledger.remove_account("eve")
    assert ledger.account("eve") is None, "the ledger does not expect a user who was removed since"
    with pytest.raises(PolicyViolation, match="no account"):
        charge(request("b"))
    assert ledger.verify().ok


def test_an_expected_user_is_added_once(ledger: Ledger) -> None:
    ledger.expect("eve", "analyst")
    for _ in range(2):
        ledger.add_expected("eve")
    assert [account.name for account in ledger.accounts()] == ["ana", "ben", "eve"]
    ledger.expect("ana", "guest")
    ledger.add_expected("ana")
    account = ledger.account("ana")
    assert account is not None
    assert account.role == "analyst", "another process has added the user"
    with pytest.raises(InvalidParameter):
        ledger.expect("a\nb", "analyst")


def test_an_expected_user_who_was_removed_has_what_was_spent(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, requests("a", "b"), sql=SQL)
    ledger.record_failure("ana", ["c"])
    ledger.remove_account("ana")
    ledger.expect("ana", "analyst")
    budgets = ledger.budgets("ana", POLICY)
    assert budgets.own.spent.pure_epsilon == Fraction(2, 10)
    assert budgets.failures == 1


def test_a_verifier_is_changed_and_taken_away(ledger: Ledger) -> None:
    for verifier in (VERIFIER, VERIFIER + "2", None):
        ledger.set_verifier("ana", verifier)
        account = ledger.account("ana")
        assert account is not None
        assert account.verifier == verifier
    assert ledger.verify().ok


def test_whose_sessions_end_is_told_once(ledger: Ledger) -> None:
    ledger.set_verifier("ana", VERIFIER)
    last, users = ledger.ended_sessions(None)
    assert users == frozenset()
    ledger.end_sessions("ana")
    account = ledger.account("ana")
    assert account is not None
    assert account.verifier == VERIFIER, "it stays"
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    ledger.remove_account("ben")
    later, users = ledger.ended_sessions(last)
    assert users == {"ana", "ben"}
    assert ledger.ended_sessions(later) == (later, frozenset())
    with pytest.raises(InvalidParameter):
        ledger.end_sessions("ben")
    assert ledger.verify().ok


def test_the_records_hold_no_verifier(ledger: Ledger) -> None:
    ledger.add_account("eve", "analyst", VERIFIER)
    ledger.set_verifier("ana", VERIFIER)
    records = list(ledger.export())
    assert VERIFIER not in str(records)
    assert records[-1]["body"]["verifier"] == records[-2]["body"]["verifier"]


def test_a_removed_name_comes_back_with_its_spent_budget(ledger: Ledger, clock: Clock) -> None:
    begun = clock.now
    ledger.set_verifier("ana", VERIFIER)
    charge_only(ledger, "ana", POLICY, requests("a", "b"), sql=SQL)
    ledger.remove_account("ana")
    assert ledger.account("ana") is None
    with pytest.raises(PolicyViolation, match="no account"):
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    with pytest.raises(InvalidParameter, match="no account"):
        ledger.budget("ana", POLICY)
    clock.move(days=1)
    ledger.add_account("ana", "analyst")
    assert ledger.account("ana") == Account("ana", "analyst", None, False, begun)
    assert ledger.budget("ana", POLICY).spent.pure_epsilon == Fraction(2, 10)
    assert len(ledger.history("ana")) == 1
    assert ledger.verify().ok


def test_a_removed_name_comes_back_frozen(ledger: Ledger) -> None:
    for key in "abc":
        ledger.record_failure("ana", [key])
    ledger.remove_account("ana")
    ledger.add_account("ana", "analyst")
    with pytest.raises(PolicyViolation, match="frozen"):
        charge_only(ledger, "ana", POLICY, requests("d"), sql=SQL)


def test_another_role_has_another_limit_on_the_same_spending(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    ledger.set_role("ana", "guest")
    status = ledger.budget("ana", POLICY)
    assert (status.limit.epsilon, status.spent.pure_epsilon) == (Fraction(1, 10), Fraction(1, 10))
    assert status.remaining.epsilon == 0


def test_a_name_is_taken_once(ledger: Ledger) -> None:
    with pytest.raises(InvalidParameter, match="exists"):
        ledger.add_account("ana", "analyst")


@pytest.mark.parametrize("name", ["", "a" * 64, "a\0b", "a\nb", "\u200b", "\ud800"])
def test_names_are_printable_and_short(ledger: Ledger, name: str) -> None:
    with pytest.raises(InvalidParameter, match="name of a user"):
        ledger.add_account(name, "analyst")
    with pytest.raises(InvalidParameter, match="name of a role"):
        ledger.add_account("eve", name)
    with pytest.raises(InvalidParameter, match="name of a role"):
        ledger.set_role("ana", name)
    assert len(ledger.accounts()) == 2


def test_the_longest_name_is_accepted(ledger: Ledger) -> None:
    ledger.add_account("ö" * 63, "analyst")
    assert ledger.account("ö" * 63) is not None


def test_what_concerns_no_account_is_refused(ledger: Ledger) -> None:
    acts: tuple[Callable[[], None], ...] = (
        lambda: ledger.set_verifier("eve", VERIFIER),
        lambda: ledger.set_role("eve", "guest"),
        lambda: ledger.remove_account("eve"),
        lambda: ledger.unfreeze(Holder(BudgetScope.USER, "eve"), "why"),
    )
    for act in acts:
        with pytest.raises(InvalidParameter, match='no account "eve"'):
            act()


def test_only_a_frozen_account_is_unfrozen_and_for_a_reason(ledger: Ledger) -> None:
    with pytest.raises(InvalidParameter, match="not frozen"):
        ledger.unfreeze(ANA, "why")
    with pytest.raises(InvalidParameter, match="reason"):
        ledger.unfreeze(ANA, " ")
