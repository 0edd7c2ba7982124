"""What the owner changes by command: each a reasoned record, none of it gives back what is spent but a reset."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from dpsql.errors import BudgetExhausted, InvalidParameter, PolicyViolation
from dpsql.ledger import Account, BudgetScope, Holder
from dpsql.ledger.ledger import Ledger
from dpsql.policy import RenewalWindow
from dpsql.privacy.accounting import Accountant, create_limit
from tests.ledger.world import ANA, BEN, SQL, TEAM, Clock, budget, charge_only, gaussian, policy, request, requests

TENTH = Fraction(1, 10)
MICRO = Fraction(1, 10**6)
ZERO = Fraction(0)
ALL = Holder(BudgetScope.ALL)
POLICY = policy(budget(2 * TENTH))


def fits(ledger: Ledger, rules: Any = POLICY, user: str = "ana") -> bool:
    """Tell whether a fresh query of epsilon 0.1 fits, and charge it."""
    try:
        charge_only(ledger, user, rules, requests(object()), sql=SQL)
    except BudgetExhausted:
        return False
    return True


def last(ledger: Ledger, *kinds: str) -> list[dict[str, Any]]:
    """Return what the last records say, which are of these kinds."""
    records = list(ledger.export())[-len(kinds) :]
    assert [record["kind"] for record in records] == list(kinds)
    return [record["body"] for record in records]


def test_a_grant_raises_one_budget(ledger: Ledger) -> None:
    status = ledger.grant(ANA, POLICY, TENTH, ZERO, "one more table")
    assert (status.limit.epsilon, status.spent.pure_epsilon, status.charges) == (3 * TENTH, ZERO, 0)
    said, terms = last(ledger, "budget.granted", "budget.terms")
    assert said == {
        "budget": 1,
        "scope": "user",
        "name": "ana",
        "dataset": "clinic",
        "epsilon": "1/10",
        "delta": "0",
        "reason": "one more table",
    }
    assert terms["limit"]["epsilon"] == "3/10"
    assert [fits(ledger) for _ in range(4)] == [True, True, True, False]
    assert [fits(ledger, user="ben") for _ in range(3)] == [True, True, False]
    assert ledger.verify().ok


def test_what_is_lowered_may_be_less_than_what_is_spent(ledger: Ledger) -> None:
    assert fits(ledger)
    status = ledger.lower(ANA, POLICY, TENTH * 3 / 2, ZERO, "too much")
    assert (status.limit.epsilon, status.remaining.epsilon, status.spent.pure_epsilon) == (TENTH / 2, ZERO, TENTH)
    assert last(ledger, "budget.lowered", "budget.terms")[0]["epsilon"] == "3/20"
    assert not fits(ledger)
    assert ledger.grant(ANA, POLICY, TENTH * 3 / 2, ZERO, "back").limit.epsilon == 2 * TENTH
    assert [fits(ledger), fits(ledger)] == [True, False]
    assert ledger.verify().ok


def test_differences_add_up_and_follow_the_policy(ledger: Ledger) -> None:
    ledger.grant(ANA, POLICY, TENTH, ZERO, "one")
    ledger.grant(ANA, POLICY, TENTH, ZERO, "two")
    ledger.lower(ANA, POLICY, TENTH / 2, ZERO, "less")
    assert ledger.budget("ana", POLICY).limit.epsilon == 2 * TENTH + TENTH * 3 / 2
    assert ledger.budget("ana", policy(budget(1))).limit.epsilon == 1 + TENTH * 3 / 2
    ledger.set_role("ana", "guest")
    assert ledger.budget("ana", POLICY).limit.epsilon == TENTH + TENTH * 3 / 2
    assert [fits(ledger) for _ in range(3)] == [True, True, False]
    other = policy(budget(2 * TENTH), name="trials")
    assert ledger.budget("ana", other).limit.epsilon == TENTH  # of another dataset, another budget


def test_no_change_of_the_policy_makes_a_lowered_budget_negative(ledger: Ledger) -> None:
    ledger.lower(ANA, policy(budget(5)), Fraction(4), ZERO, "too much")
    assert ledger.budget("ana", policy(budget(3))).limit.epsilon == Fraction(1, 10**9)
    assert not fits(ledger, policy(budget(3)))
    assert fits(ledger, policy(budget(5)))


def test_a_grant_of_delta(ledger: Ledger) -> None:
    zcdp = policy(budget(1, Accountant.ZCDP, MICRO), budget(20, Accountant.ZCDP, MICRO))
    limit = ledger.grant(ANA, zcdp, Fraction(1), 3 * MICRO, "more groups").limit
    assert limit == create_limit(Accountant.ZCDP, Fraction(2), 4 * MICRO, Fraction(1, 2))
    assert ledger.lower(ANA, zcdp, TENTH, 2 * MICRO, "fewer").limit.delta == 2 * MICRO
    assert ledger.budget("ana", policy(budget(1))).limit.delta == 0  # the pure accountant has none
    basic = policy(budget(1, Accountant.BASIC))
    assert ledger.grant(BEN, basic, TENTH, MICRO, "some").limit.delta == MICRO


def test_a_group_is_granted_lowered_and_reset(ledger: Ledger) -> None:
    ledger.set_group("ana", "team")
    rules = policy(team=budget(2 * TENTH))
    assert [fits(ledger, rules) for _ in range(3)] == [True, True, False]
    assert ledger.grant(TEAM, rules, TENTH, ZERO, "more").limit.epsilon == 3 * TENTH
    assert [fits(ledger, rules), fits(ledger, rules)] == [True, False]
    assert ledger.lower(TEAM, rules, TENTH, ZERO, "less").limit.epsilon == 2 * TENTH
    status = ledger.reset(TEAM, rules, "a new study")
    assert (status.resets, status.spent.pure_epsilon, status.limit.epsilon) == (1, ZERO, 2 * TENTH)
    assert ledger.budget("ana", rules).spent.pure_epsilon == 3 * TENTH
    assert [fits(ledger, rules) for _ in range(3)] == [True, True, False]
    assert ledger.verify().ok


def test_after_a_reset_copies_are_charged_to_the_group_again(ledger: Ledger) -> None:
    for name in ("ana", "ben"):
        ledger.set_group(name, "team")
    (release,) = charge_only(ledger, "ana", policy(), requests("a"), sql=SQL).releases
    ledger.store(release.release_id, b"rows")
    ledger.reset(TEAM, policy(), "a new study")
    charge_only(ledger, "ben", policy(), requests("a"), sql=SQL)
    assert ledger.group_budget("team", policy()).spent.pure_epsilon == TENTH
    assert ledger.verify().ok


def test_a_reset_gives_back_one_budget_and_is_counted(ledger: Ledger, clock: Clock) -> None:
    assert [fits(ledger), fits(ledger), fits(ledger)] == [True, True, False]
    begun = clock.now
    clock.move(days=1)
    status = ledger.reset(ANA, POLICY, "a new study")
    assert (status.resets, status.spent.pure_epsilon, status.charges) == (1, ZERO, 0)
    assert status.window_start == begun
    assert last(ledger, "budget.reset")[0]["reason"] == "a new study"
    assert [fits(ledger), fits(ledger), fits(ledger)] == [True, True, False]
    assert ledger.reset(ANA, POLICY, "another").resets == 2
    assert ledger.cap(POLICY).spent.pure_epsilon == 4 * TENTH  # the cap counts it all
    assert ledger.verify().ok


def test_a_reset_keeps_the_window_and_the_order(ledger: Ledger, clock: Clock) -> None:
    rdp = budget(5, Accountant.RDP, MICRO, RenewalWindow(30))
    rules = policy(rdp, budget(20, Accountant.ZCDP, MICRO))
    limit = charge_only(ledger, "ana", rules, [request("a", gaussian(MICRO))], sql=SQL).limit
    clock.move(days=7)
    ledger.grant(ANA, rules, Fraction(1), ZERO, "more")
    status = ledger.reset(ANA, rules, "a new study")
    assert (status.limit.order, status.limit.epsilon) == (limit.order, Fraction(6))
    assert [order for order, _ in status.spent.renyi] == [limit.order]
    clock.move(days=23)
    assert ledger.budget("ana", rules).window_start == clock.now
    assert ledger.verify().ok


def test_a_change_renews_what_is_due_first(ledger: Ledger, clock: Clock) -> None:
    rules = policy(budget(2 * TENTH, window=RenewalWindow(30)))
    assert fits(ledger, rules)
    clock.move(days=31)
    with pytest.raises(InvalidParameter, match='nothing has been spent from the budget of user "ana"'):
        ledger.reset(ANA, rules, "a new study")
    ledger.grant(ANA, rules, TENTH, ZERO, "more")
    last(ledger, "budget.renewed", "budget.granted", "budget.terms")
    clock.move(days=30)
    assert ledger.budget("ana", rules).limit.epsilon == 3 * TENTH  # a grant is not of one window


@pytest.mark.parametrize(
    ("holder", "epsilon", "delta", "reason", "told"),
    [
        (Holder(BudgetScope.USER, "zoe"), TENTH, ZERO, "why", 'no account "zoe"'),
        (Holder(BudgetScope.GROUP, "staff"), TENTH, ZERO, "why", 'the policy has no group "staff"'),
        (ALL, TENTH, ZERO, "why", "the cap over all users cannot be changed by a command"),
        (ANA, ZERO, ZERO, "why", "epsilon must be between"),
        (ANA, -TENTH, ZERO, "why", "epsilon must be between"),
        (ANA, Fraction(1, 10**12), ZERO, "why", "epsilon must be between"),
        (ANA, Fraction(10**308), ZERO, "why", "a number is out of range"),
        (ANA, TENTH, -MICRO, "why", "delta must be 0"),
        (ANA, TENTH, Fraction(1), "why", "delta must be 0"),
        (ANA, TENTH, Fraction(1, 10**400), "why", "a number is out of range"),
        (ANA, TENTH, ZERO, " \n", "a reason is required"),
        (ANA, TENTH, MICRO, "why", "would leave the range"),
    ],
)
def test_nonsense_is_refused_and_writes_nothing(
    ledger: Ledger, holder: Holder, epsilon: Fraction, delta: Fraction, reason: str, told: str
) -> None:
    before = list(ledger.export())
    for change in (ledger.grant, ledger.lower):
        with pytest.raises(InvalidParameter, match=told):
            change(holder, POLICY, epsilon, delta, reason)
    assert list(ledger.export()) == before


@pytest.mark.parametrize(
    ("holder", "reason", "told"),
    [
        (Holder(BudgetScope.USER, "zoe"), "why", 'no account "zoe"'),
        (Holder(BudgetScope.GROUP, "staff"), "why", "no group"),
        (ALL, "why", "the cap over all users cannot be changed by a command"),
        (ANA, "", "a reason is required"),
        (ANA, "why", "nothing has been spent"),
        (TEAM, "why", 'nothing has been spent from the budget of group "team"'),
    ],
)
def test_a_reset_of_nothing_is_refused_and_writes_nothing(
    ledger: Ledger, holder: Holder, reason: str, told: str
) -> None:
    before = list(ledger.export())
    with pytest.raises(InvalidParameter, match=told):
        ledger.reset(holder, POLICY, reason)
    assert list(ledger.export()) == before


def test_a_policy_without_groups_says_so(ledger: Ledger) -> None:
    bare = policy()
    object.__setattr__(bare, "groups", ())
    with pytest.raises(InvalidParameter, match='no group "team"') as refusal:
        ledger.grant(TEAM, bare, TENTH, ZERO, "why")
    assert refusal.value.hint == "It has no groups."


def test_a_user_without_a_role_of_the_policy_has_no_budget_to_change(ledger: Ledger) -> None:
    ledger.set_role("ana", "owner")
    with pytest.raises(PolicyViolation, match='no role "owner"'):
        ledger.grant(ANA, POLICY, TENTH, ZERO, "why")


@pytest.mark.parametrize("beyond", [2 * TENTH, Fraction(7)])
def test_nothing_is_lowered_to_nothing(ledger: Ledger, beyond: Fraction) -> None:
    ledger.lower(ANA, POLICY, TENTH, ZERO, "less")
    before = list(ledger.export())
    with pytest.raises(InvalidParameter, match=r"is epsilon 0\.1 and delta 0 \(pure\)") as refusal:
        ledger.lower(ANA, POLICY, beyond, ZERO, "nothing left")
    assert "dpsql budget freeze" in str(refusal.value.hint)
    assert list(ledger.export()) == before


def test_nothing_is_granted_beyond_what_a_policy_could_say(ledger: Ledger) -> None:
    ledger.grant(ANA, POLICY, Fraction(5000), ZERO, "much")
    with pytest.raises(InvalidParameter, match="would leave the range"):
        ledger.grant(ANA, POLICY, Fraction(5000), ZERO, "more")
    zcdp = policy(budget(1, Accountant.ZCDP, MICRO), budget(20, Accountant.ZCDP, MICRO))
    for delta in (MICRO, Fraction(1, 20)):
        with pytest.raises(InvalidParameter, match="would leave the range"):
            ledger.lower(BEN, zcdp, TENTH, delta, "no delta left")
    with pytest.raises(InvalidParameter, match="would leave the range"):
        ledger.grant(BEN, zcdp, TENTH, TENTH, "too much delta")


def test_a_frozen_user_is_refused_with_what_was_paid_for_too(ledger: Ledger) -> None:
    (release,) = charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).releases
    ledger.store(release.release_id, b"rows")
    ledger.freeze(ANA, "left")
    for key in ("a", "b"):
        with pytest.raises(PolicyViolation, match='the account "ana" is frozen by the data owner') as refusal:
            charge_only(ledger, "ana", POLICY, requests(key), sql=SQL)
        assert (refusal.value.sqlstate, "data owner" in str(refusal.value.hint)) == ("42501", True)
    assert fits(ledger, user="ben")
    ledger.unfreeze(ANA, "came back")
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).free
    assert ledger.verify().ok


def test_a_frozen_group_and_everybody(ledger: Ledger) -> None:
    ledger.set_group("ana", "team")
    ledger.freeze(TEAM, "approval ended")
    with pytest.raises(PolicyViolation, match='the group "team" is frozen by the data owner'):
        fits(ledger)
    assert [account.frozen for account in ledger.accounts()] == [True, False]
    assert fits(ledger, user="ben")
    ledger.freeze(ALL, "being checked")
    with pytest.raises(PolicyViolation, match="all accounts are frozen by the data owner"):
        fits(ledger, user="ben")
    assert [account.frozen for account in ledger.accounts()] == [True, True]
    ledger.unfreeze(TEAM, "approved")
    ledger.unfreeze(ALL, "checked")
    assert [fits(ledger), fits(ledger, user="ben")] == [True, True]
    assert [account.frozen for account in ledger.accounts()] == [False, False]
    assert ledger.verify().ok


def test_a_freeze_after_failures_and_one_by_the_owner_are_one_state(ledger: Ledger) -> None:
    ledger.freeze(ANA, "left")
    for key in "abc":
        ledger.record_failure("ana", [key])
    with pytest.raises(PolicyViolation, match="by the data owner"):
        fits(ledger)
    ledger.unfreeze(ANA, "found and fixed")
    assert fits(ledger)
    for key in "abc":  # and the failures are counted from zero
        assert not ledger.accounts()[0].frozen
        ledger.record_failure("ana", [key])
    with pytest.raises(PolicyViolation, match="too many of its queries failed"):
        fits(ledger)
    with pytest.raises(InvalidParameter, match='user "ana" is frozen already'):
        ledger.freeze(ANA, "that too")
    ledger.record_failure("zoe", ["d"])  # of a name that is gone
    assert ledger.verify().ok


def test_freezes_of_nobody_are_refused_and_write_nothing(ledger: Ledger) -> None:
    zoe, staff = Holder(BudgetScope.USER, "zoe"), Holder(BudgetScope.GROUP, "staff")
    before = list(ledger.export())
    refused: list[tuple[Callable[[Holder, str], None], Holder, str, str]] = [
        (ledger.freeze, zoe, "why", 'no account "zoe"'),
        (ledger.unfreeze, zoe, "why", 'no account "zoe"'),
        (ledger.freeze, staff, "why", 'no user is or was in a group "staff"'),
        (ledger.freeze, ALL, " ", "a reason is required"),
        (ledger.unfreeze, ALL, "", "a reason is required"),
        (ledger.unfreeze, ALL, "why", "everybody is not frozen"),
        (ledger.unfreeze, ANA, "why", 'user "ana" is not frozen'),
    ]
    for act, holder, reason, message in refused:
        with pytest.raises(InvalidParameter, match=message):
            act(holder, reason)
    assert list(ledger.export()) == before


def test_a_group_that_has_a_budget_is_known_without_members(ledger: Ledger) -> None:
    ledger.set_group("ana", "team")
    assert fits(ledger)
    ledger.set_group("ana", None)
    ledger.freeze(TEAM, "all have left")
    assert fits(ledger)  # who is in no group any more


def test_a_removed_user_is_nobody(ledger: Ledger) -> None:
    assert fits(ledger)
    ledger.remove_account("ana")
    acts: tuple[Callable[[], object], ...] = (
        lambda: ledger.reset(ANA, POLICY, "why"),
        lambda: ledger.grant(ANA, POLICY, TENTH, ZERO, "why"),
        lambda: ledger.freeze(ANA, "why"),
    )
    for act in acts:
        with pytest.raises(InvalidParameter, match='no account "ana"'):
            act()


def test_a_name_that_comes_back_is_frozen_as_it_was(ledger: Ledger, clock: Clock) -> None:
    ledger.freeze(ANA, "left")
    ledger.remove_account("ana")
    ledger.add_account("ana", "analyst")
    assert ledger.account("ana") == Account("ana", "analyst", None, True, clock.now, None)


def test_the_owner_reads_what_was_changed_and_why(ledger: Ledger) -> None:
    ledger.set_group("ana", "team")
    assert fits(ledger)
    ledger.grant(ANA, POLICY, TENTH, ZERO, "more")
    ledger.lower(TEAM, POLICY, TENTH, ZERO, "less")
    ledger.reset(ANA, POLICY, "anew")
    ledger.set_group("ana", None)
    ledger.freeze(TEAM, "stop")
    ledger.unfreeze(TEAM, "go")
    ledger.freeze(ALL, "stop all")
    for key in "abc":
        ledger.record_failure("ben", [key])
    ledger.unfreeze(BEN, "fixed")
    found = [
        (record.kind, record.holder, record.dataset, record.epsilon, record.delta, record.reason)
        for record in ledger.owner_history()
    ]
    assert found == [
        ("account.group", ANA, None, None, None, 'now in group "team"'),
        ("budget.granted", ANA, "clinic", TENTH, 0, "more"),
        ("budget.lowered", TEAM, "clinic", TENTH, 0, "less"),
        ("budget.reset", ANA, "clinic", None, None, "anew"),
        ("account.group", ANA, None, None, None, "now in no group"),
        ("group.frozen", TEAM, None, None, None, "stop"),
        ("group.unfrozen", TEAM, None, None, None, "go"),
        ("all.frozen", ALL, None, None, None, "stop all"),
        ("account.frozen", BEN, None, None, None, "too many queries failed while they read private data"),
        ("account.unfrozen", BEN, None, None, None, "fixed"),
    ]
    ids = [record.id for record in ledger.owner_history()]
    assert ids == sorted(ids)
