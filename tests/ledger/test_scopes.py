"""Groups of users who share a budget: what is charged to it, what is not, and what is refused for want of it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import BudgetExhausted, InvalidParameter, PolicyViolation
from dpsql.ledger import Charge, GroupBalance, SqliteLedger
from dpsql.ledger.ledger import Ledger
from dpsql.policy import Budget, Policy, RenewalWindow
from dpsql.privacy.accounting import Accountant, group_privacy
from dpsql.privacy.cost import Adjacency, Event, Mechanism
from tests.ledger.test_concurrency import end, go, told
from tests.ledger.world import (
    ROOT,
    SQL,
    TEAM,
    UNIT,
    Clock,
    budget,
    charge_only,
    gaussian,
    laplace,
    new_ledger,
    policy,
    request,
    requests,
    selection,
)

TENTH = Fraction(1, 10)
MICRO = Fraction(1, 10**6)
POLICY = policy()
MONTHLY = policy(budget(20), team=budget(3 * TENTH, window=RenewalWindow(30)))


@pytest.fixture
def team(ledger: Ledger) -> Ledger:
    """A ledger with ana and ben in group team, and eva in none."""
    ledger.add_account("eva", "analyst")
    for name in ("ana", "ben"):
        ledger.set_group(name, "team")
    return ledger


def ask(ledger: Ledger, user: str, key: str, rules: Policy = POLICY, **options: Any) -> Charge:
    """Charge, make and store one release."""
    charge = charge_only(ledger, user, rules, requests(key), sql=SQL, **options)
    (release,) = charge.releases
    if release.payload is None:
        ledger.store(release.release_id, b"rows")
    return charge


def spent(ledger: Ledger, rules: Policy = POLICY) -> list[Fraction | None]:
    """Return what ana, ben, eva, the team, the lab and all users have spent, in tenths."""
    statuses = [ledger.budget(user, rules) for user in ("ana", "ben", "eva")]
    statuses += [ledger.group_budget(name, rules) for name in ("team", "lab")] + [ledger.cap(rules)]
    return [None if status.spent.pure_epsilon is None else status.spent.pure_epsilon * 10 for status in statuses]


def test_a_members_query_is_charged_to_three_budgets(team: Ledger) -> None:
    ask(team, "ana", "a")
    ask(team, "eva", "b")
    assert spent(team) == [1, 0, 1, 1, 0, 2]
    status = team.group_budget("team", POLICY)
    charge = ask(team, "ana", "a")
    assert charge.shared == GroupBalance("team", status.limit, status.spent)
    assert charge.shared.remaining == status.remaining
    assert ask(team, "eva", "b").shared is None
    assert (status.charges, status.limit.epsilon, status.remaining.epsilon) == (1, 3 * TENTH, 2 * TENTH)
    assert team.verify().ok


def test_the_shared_budget_is_spent_by_all_members_together(team: Ledger) -> None:
    for user, key in (("ana", "a"), ("ben", "b"), ("ana", "c")):
        ask(team, user, key)
    before = list(team.export())
    with pytest.raises(BudgetExhausted) as refusal:
        ask(team, "ben", "d")
    error = refusal.value
    assert error.sqlstate == "53400"
    assert error.message == (
        'the budget of group "team" does not cover this query: it costs epsilon 0.1; at most 0 is left for one query'
    )
    assert "SELECT * FROM dpsql.budget" in str(error.hint)
    assert (error.requested, error.remaining) == (TENTH, Fraction(0))
    assert list(team.export()) == before
    assert spent(team) == [2, 1, 0, 3, 0, 3]
    ask(team, "eva", "d")  # who is in no group


def test_a_copy_for_another_member_is_free_for_the_group_alone(team: Ledger) -> None:
    ask(team, "ana", "a")
    again = ask(team, "ben", "a")
    assert again.releases[0].payload is not None
    assert not again.releases[0].reused
    assert again.price.pure_epsilon == TENTH  # as though it were fresh
    assert spent(team) == [1, 1, 0, 1, 0, 1]
    assert ask(team, "ben", "a").free
    assert spent(team) == [1, 1, 0, 1, 0, 1]
    assert team.verify().ok


def test_what_is_free_for_a_group_is_answered_when_its_budget_is_spent(team: Ledger) -> None:
    for key in "abc":
        ask(team, "ana", key)
    ask(team, "ben", "a")
    assert ask(team, "ana", "a").free
    assert spent(team) == [3, 1, 0, 3, 0, 3]
    with pytest.raises(BudgetExhausted, match='group "team"'):
        ask(team, "ben", "b", reuse=False)  # a fresh one is another release


def test_only_what_is_new_to_the_group_is_charged_to_it(team: Ledger) -> None:
    ask(team, "ana", "a")
    ask(team, "eva", "b")
    charge_only(team, "ben", POLICY, requests("a", "b", "c"), sql=SQL)
    assert spent(team) == [1, 3, 1, 3, 0, 3]
    assert team.group_budget("team", POLICY).charges == 2
    assert team.verify().ok


def test_a_release_that_nobody_could_store_is_charged_again(team: Ledger) -> None:
    charge_only(team, "ana", POLICY, requests("a"), sql=SQL)
    charge_only(team, "ben", POLICY, requests("a"), sql=SQL)
    assert spent(team) == [1, 1, 0, 2, 0, 2]


def test_a_release_from_outside_is_charged_to_the_group_once(team: Ledger) -> None:
    ask(team, "eva", "a")
    ask(team, "ana", "a")
    ask(team, "ben", "a")
    assert spent(team) == [1, 1, 1, 1, 0, 1]


def test_what_a_member_brings_along_was_charged_elsewhere(team: Ledger) -> None:
    ask(team, "eva", "a")
    team.set_group("eva", "team")
    assert ask(team, "eva", "a").free
    assert spent(team) == [0, 0, 1, 0, 0, 1]
    ask(team, "ana", "a")  # now the other member learns it
    assert spent(team) == [1, 0, 1, 1, 0, 1]


def test_what_was_charged_stays_with_the_former_group(team: Ledger) -> None:
    ask(team, "ana", "a")
    team.set_group("ana", "lab")
    ask(team, "ana", "b")
    assert ask(team, "ana", "a").free
    assert spent(team) == [2, 0, 0, 1, 1, 2]
    ask(team, "ben", "b")  # from another group, it is new to this one
    assert spent(team) == [2, 1, 0, 2, 1, 2]
    team.set_group("ana", None)
    ask(team, "ana", "c")
    assert spent(team) == [3, 1, 0, 2, 1, 3]
    team.set_group("ana", "team")
    with pytest.raises(BudgetExhausted, match='group "team"'):
        charge_only(team, "ana", POLICY, requests("d", "e"), sql=SQL)
    assert team.verify().ok


def test_a_removed_user_is_in_no_group(team: Ledger) -> None:
    team.remove_account("ana")
    team.add_account("ana", "analyst")
    assert [account.group for account in team.accounts()] == [None, "team", None]
    team.remove_account("ana")
    team.add_account("ana", "analyst", None, "lab")
    ask(team, "ana", "a")
    assert spent(team) == [1, 0, 0, 0, 1, 1]
    assert team.verify().ok


def test_a_copy_is_charged_to_the_group_again_in_its_next_window(team: Ledger, clock: Clock) -> None:
    ask(team, "ana", "a", MONTHLY)
    clock.move(days=30, microseconds=-1)
    ask(team, "eva", "b", MONTHLY)
    assert spent(team, MONTHLY) == [1, 0, 1, 1, 0, 2]
    clock.move(microseconds=1)
    assert spent(team, MONTHLY)[3] == 0
    assert ask(team, "ana", "a", MONTHLY).free  # her own, from the last window
    assert spent(team, MONTHLY)[3] == 0
    ask(team, "ben", "a", MONTHLY)
    assert spent(team, MONTHLY) == [1, 1, 1, 1, 0, 2]
    assert team.verify().ok


def test_a_groups_window_is_its_own(team: Ledger, clock: Clock) -> None:
    rules = policy(budget(TENTH, window=RenewalWindow(7)), team=budget(3 * TENTH, window=RenewalWindow(30)))
    for week in range(3):
        ask(team, "ana", f"{week}", rules)
        clock.move(days=7)
    with pytest.raises(BudgetExhausted, match='group "team"'):
        ask(team, "ana", "d", rules)
    clock.move(days=9)
    status = team.group_budget("team", rules)
    assert (status.window_start, status.spent.pure_epsilon, status.window) == (
        clock.now,
        Fraction(0),
        RenewalWindow(30),
    )
    ask(team, "ana", "d", rules)


def test_the_own_budget_is_refused_first_and_the_cap_tells_no_number(team: Ledger) -> None:
    with pytest.raises(BudgetExhausted, match='the budget of "ana"'):
        charge_only(team, "ana", policy(budget(TENTH), team=budget(TENTH)), requests("a", "b"), sql=SQL)
    with pytest.raises(BudgetExhausted, match="the cap of") as refusal:
        charge_only(team, "ana", policy(cap=budget(TENTH)), requests("a", "b"), sql=SQL)
    assert refusal.value.remaining is None


def test_a_group_that_a_policy_does_not_name_is_refused(team: Ledger) -> None:
    team.set_group("ana", "staff")
    with pytest.raises(PolicyViolation, match='has no group "staff"') as refusal:
        ask(team, "ana", "a")
    assert refusal.value.sqlstate == "42501"
    assert "[groups.staff]" in str(refusal.value.hint)
    with pytest.raises(PolicyViolation, match='has no group "staff"'):
        team.budgets("ana", POLICY)
    assert team.history() == []


def test_a_group_has_a_budget_for_each_dataset(team: Ledger) -> None:
    other = policy(name="trials")
    ask(team, "ana", "a")
    ask(team, "ana", "a", other)
    assert (spent(team)[3], spent(team, other)[3]) == (Fraction(1), Fraction(1))


def test_who_joins_which_group(team: Ledger) -> None:
    with pytest.raises(InvalidParameter, match='user "ana" is in group "team"'):
        team.set_group("ana", "team")
    with pytest.raises(InvalidParameter, match='user "eva" is in no group'):
        team.set_group("eva", None)
    with pytest.raises(InvalidParameter, match='no account "zoe"'):
        team.set_group("zoe", "team")
    with pytest.raises(InvalidParameter, match="name of a group"):
        team.set_group("ana", "a\nb")
    with pytest.raises(InvalidParameter, match="name of a group"):
        team.add_account("zoe", "analyst", None, "")
    assert team.account("zoe") is None


@pytest.mark.parametrize(
    ("role", "shared", "event"),
    [
        (Accountant.PURE, Accountant.PURE, laplace),
        (Accountant.PURE, Accountant.ZCDP, laplace),
        (Accountant.PURE, Accountant.BASIC, laplace),
        (Accountant.PURE, Accountant.ADVANCED, laplace),
        (Accountant.PURE, Accountant.RDP, laplace),
        (Accountant.BASIC, Accountant.ZCDP, laplace),
        (Accountant.ZCDP, Accountant.ZCDP, lambda epsilon: gaussian(epsilon**2 / 2)),
        (Accountant.RDP, Accountant.ZCDP, lambda epsilon: gaussian(epsilon**2 / 2)),
    ],
)
def test_the_hint_of_a_groups_refusal_would_fit(team: Ledger, role: Accountant, shared: Accountant, event: Any) -> None:
    def terms(epsilon: int, accountant: Accountant) -> Budget:
        return budget(epsilon, accountant, 0 if accountant is Accountant.PURE else MICRO)

    def events(epsilon: Fraction) -> list[Event]:
        return [event(epsilon / 4)] * 4 if event is laplace else [event(epsilon / 2)] * 4  # four parts share a price

    rules = policy(terms(5000, role), terms(9000, Accountant.ZCDP), team=terms(2, shared))
    charge_only(team, "ana", rules, [request("a", *events(Fraction(1, 5)))], sql=SQL)
    with pytest.raises(BudgetExhausted, match='group "team"') as refusal:
        charge_only(team, "ben", rules, [request("b", *events(Fraction(40)))], sql=SQL)
    assert refusal.value.requested == 40
    assert str(refusal.value.hint).startswith("Write: SET dpsql.epsilon = ")
    fitting = Fraction(str(refusal.value.hint).removeprefix("Write: SET dpsql.epsilon = "))
    if shared not in (Accountant.ADVANCED, Accountant.RDP):  # of which what surely fits is told, with room to spare
        with pytest.raises(BudgetExhausted):
            charge_only(team, "ben", rules, [request("b", *events(fitting * Fraction(51, 50)))], sql=SQL)
    charge_only(team, "ben", rules, [request("b", *events(fitting))], sql=SQL)
    assert team.verify().ok


def test_laplace_noise_is_named_only_while_nothing_else_was_asked(team: Ledger) -> None:
    rules = policy(budget(5, Accountant.ZCDP, MICRO), budget(50, Accountant.ZCDP, MICRO), team=budget(50))
    for noise in (laplace(3), laplace(1)):
        charge_only(team, "eva", rules, [request(noise, noise)], sql=SQL)
    with pytest.raises(BudgetExhausted) as refusal:
        charge_only(team, "eva", rules, [request("b", gaussian(TENTH))], sql=SQL)
    assert str(refusal.value.hint).startswith("Epsilon 1 is left for Laplace noise. Write: SET")
    with pytest.raises(BudgetExhausted) as refusal:  # Laplace noise itself is told its number
        charge_only(team, "eva", rules, [request("b", laplace(2))], sql=SQL)
    assert refusal.value.hint == "Write: SET dpsql.epsilon = 1"
    charge_only(team, "eva", rules, [request("b", laplace(1))], sql=SQL)
    with pytest.raises(BudgetExhausted) as refusal:
        charge_only(team, "eva", rules, [request("c", gaussian(TENTH))], sql=SQL)
    assert "Ask the data owner" in str(refusal.value.hint)


def test_no_number_is_told_where_the_group_counts_gaussian_noise_otherwise(team: Ledger) -> None:
    """At a smaller epsilon of the same query its rho would not be smaller in proportion."""
    rules = policy(
        budget(5, Accountant.BASIC, MICRO),
        budget(50, Accountant.ZCDP, MICRO),
        team=budget(Fraction(1, 100), Accountant.ZCDP, MICRO),
    )
    noise = Event(Mechanism.GAUSSIAN, UNIT, Fraction(800), conversion_delta=MICRO / 10)
    with pytest.raises(
        BudgetExhausted, match=r"costs epsilon 0\.\d+; less than that is left, as the zcdp accountant"
    ) as refusal:
        charge_only(team, "ana", rules, [request("a", noise)], sql=SQL)
    assert refusal.value.remaining is None
    assert "SELECT * FROM dpsql.budget" in str(refusal.value.hint)


def test_a_group_without_delta_says_so(team: Ledger) -> None:
    zcdp, big = budget(5, Accountant.ZCDP, 10 * MICRO), budget(50, Accountant.ZCDP, 100 * MICRO)
    rules = policy(zcdp, big, team=budget(5, Accountant.ZCDP, 2 * MICRO))
    with pytest.raises(BudgetExhausted, match=r"costs delta 0\.000002 for private keys") as refusal:
        charge_only(team, "ana", rules, [request("a", selection(TENTH, 2 * MICRO))], sql=SQL)
    assert str(refusal.value.hint).endswith("Write: SET dpsql.delta = 0.000001")


def test_what_has_no_price_for_the_group_is_refused(team: Ledger) -> None:
    rules = policy(budget(5, Accountant.ZCDP, MICRO), budget(50, Accountant.ZCDP, MICRO), team=budget(5))
    with pytest.raises(BudgetExhausted, match=r'group "team" .* costs epsilon 0\.1; at most 0 is'):
        charge_only(team, "ana", rules, [request("a", gaussian(TENTH**2 / 2))], sql=SQL)


def test_a_user_is_told_of_both_budgets_and_of_the_last_charge(team: Ledger) -> None:
    fresh = team.budgets("ana", POLICY)
    assert (fresh.group, fresh.last) == ("team", None)
    assert fresh.shared is not None
    assert (fresh.shared.limit.epsilon, fresh.shared.charges) == (3 * TENTH, 0)
    ask(team, "ben", "b")
    first = charge_only(team, "ana", POLICY, [request("a", laplace(TENTH / 2))], sql="SELECT 1")
    ask(team, "ben", "c")
    found = team.budgets("ana", POLICY)
    assert found.last is not None
    assert (found.last.id, found.last.sql, found.last.price) == (first.id, "SELECT 1", (laplace(TENTH / 2),))
    assert found.own == team.budget("ana", POLICY)
    assert found.shared == team.group_budget("team", POLICY)
    copy = ask(team, "ana", "c")  # no fresh one, but paid for
    assert ask(team, "ana", "c").free
    last = team.budgets("ana", POLICY).last
    assert last is not None
    assert last.id == copy.id
    alone = team.budgets("eva", POLICY)
    assert (alone.group, alone.shared, alone.last) == (None, None, None)
    assert team.budgets("ana", policy(name="trials")).last is None


def test_neighbours_that_are_replaced_have_budgets_of_their_own(team: Ledger) -> None:
    zcdp = budget(5, Accountant.ZCDP, MICRO)
    rules = policy(zcdp, zcdp, team=zcdp, adjacency=Adjacency.SUBSTITUTE)
    charge = charge_only(team, "ana", rules, [request("a", gaussian(Fraction(1, 50)))], sql=SQL)
    for status in (team.budget("ana", rules), team.group_budget("team", rules), team.cap(rules)):
        assert status.spent.rho == Fraction(1, 50)
        assert group_privacy(status.limit, 2) == group_privacy(charge.limit, 2)
        assert group_privacy(status.limit, 2)[0] == 10
    with pytest.raises(Exception, match="do not add up"):
        ask(team, "ben", "a")  # the same people, by units that come and go
    assert team.verify().ok


def test_threads_cannot_overspend_a_shared_budget(team: Ledger) -> None:
    def ask_fresh(number: int) -> bool:
        try:
            ask(team, ("ana", "ben")[number % 2], f"{number}")
        except BudgetExhausted:
            return False
        return True

    with ThreadPoolExecutor(32) as pool:
        assert sum(pool.map(ask_fresh, range(32))) == 3
    assert spent(team)[3:] == [3, 0, 3]
    assert team.verify().ok


CHILD = f"""
import sys
from pathlib import Path
from tests.ledger.world import charge_only, policy, request
from dpsql.errors import BudgetExhausted
from dpsql.ledger import SqliteLedger
ledger = SqliteLedger(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
granted = 0
for number in range(5):
    try:
        charge_only(ledger, sys.argv[2], policy(), [request(sys.argv[2] + str(number))], sql={SQL!r})
        granted += 1
    except BudgetExhausted:
        pass
print(granted, flush=True)
sys.stdin.readline()
"""


def test_processes_cannot_overspend_a_shared_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = new_ledger(path)
    for name in ("ana", "ben"):
        ledger.set_group(name, "team")
    ledger.close()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("ana", "ben")
    ]
    try:
        assert [told(child) for child in children] == ["ready"] * 2
        for child in children:
            go(child)
        assert sum(int(told(child)) for child in children) == 3
    finally:
        for child in children:
            end(child)
    ledger = SqliteLedger(path)
    assert ledger.group_budget("team", POLICY).spent.pure_epsilon == 3 * TENTH
    assert len(ledger.history()) == 3
    assert ledger.verify().ok
    ledger.close()


def test_holders_name_themselves() -> None:
    assert str(TEAM) == 'group "team"'
