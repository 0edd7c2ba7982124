"""What a charge costs whom, when it is refused, and when an earlier release answers."""

from fractions import Fraction

import pytest

from dpsql.errors import BudgetExhausted, InvalidParameter, PolicyViolation
from dpsql.ledger import SqliteLedger
from dpsql.ledger.ledger import Ledger
from dpsql.privacy.accounting import Accountant, Spent, create_limit
from dpsql.privacy.cost import Event, Mechanism
from tests.ledger.world import (
    ANA,
    SQL,
    UNIT,
    Place,
    budget,
    charge_only,
    gaussian,
    laplace,
    opened,
    peopled,
    policy,
    request,
    requests,
    selection,
)

TENTH = Fraction(1, 10)
POLICY = policy()


def spent(ledger: Ledger, user: str = "ana") -> Fraction | None:
    return ledger.budget(user, POLICY).spent.pure_epsilon


def cap_spent(ledger: Ledger) -> Fraction | None:
    return ledger.cap(POLICY).spent.pure_epsilon


def ask(ledger: Ledger, key: object, user: str = "ana") -> int:
    """Charge, make and store a release."""
    (release,) = charge_only(ledger, user, POLICY, requests(key), sql=SQL).releases
    ledger.store(release.release_id, f"rows of {key} for {user}".encode())
    return release.release_id


def test_a_charge_is_taken_from_the_user_and_from_the_cap(ledger: Ledger) -> None:
    charge = charge_only(ledger, "ana", POLICY, requests("a", "b"), sql=SQL)
    assert [(release.key, release.payload, release.reused) for release in charge.releases] == [
        ("a", None, False),
        ("b", None, False),
    ]
    assert charge.price.pure_epsilon == 2 * TENTH
    assert charge.remaining.epsilon == 8 * TENTH
    assert not charge.free
    assert charge.user == "ana"
    assert (spent(ledger), spent(ledger, "ben"), cap_spent(ledger)) == (2 * TENTH, Fraction(0), 2 * TENTH)
    status = ledger.budget("ana", POLICY)
    assert status.charges == 1
    assert status.remaining.epsilon == 8 * TENTH
    assert ledger.verify().ok


def test_a_charge_fits_to_the_last_and_a_refusal_writes_nothing(ledger: Ledger) -> None:
    for key in range(10):
        charge_only(ledger, "ana", POLICY, requests(key), sql=SQL)
    before = list(ledger.export())
    with pytest.raises(BudgetExhausted) as refusal:
        charge_only(ledger, "ana", POLICY, [request("x", laplace(Fraction(1, 10**12)))], sql=SQL)
    assert refusal.value.requested == Fraction(1, 10**12)
    assert refusal.value.remaining == 0
    assert "dpsql.budget" in str(refusal.value.hint)
    assert list(ledger.export()) == before
    assert charge_only(ledger, "ben", POLICY, requests("x"), sql=SQL).price.pure_epsilon == TENTH


def test_a_refusal_says_what_is_asked_what_is_left_and_what_would_fit(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, [request("a", laplace(Fraction(1, 3)))], sql=SQL)
    with pytest.raises(BudgetExhausted) as refusal:
        charge_only(ledger, "ana", POLICY, [request("b", laplace(Fraction(3, 4)))], sql=SQL)
    error = refusal.value
    assert (error.requested, error.sqlstate) == (Fraction(3, 4), "53400")
    assert error.remaining is not None
    assert Fraction(666, 1000) < error.remaining <= Fraction(2, 3)
    assert error.message == (
        'the budget of "ana" does not cover this query: it costs epsilon 0.75; at most 0.666 is left for one query'
    )
    assert error.hint == "Write: SET dpsql.epsilon = 0.666"  # rounded down: 0.667 would not fit
    assert charge_only(ledger, "ana", POLICY, [request("b", laplace(Fraction("0.666")))], sql=SQL)


def test_zcdp_admits_what_fits_the_sum_of_rho(ledger: Ledger) -> None:
    limit = create_limit(Accountant.ZCDP, Fraction(5), Fraction(1, 10**6), Fraction(1, 2))
    rules = policy(budget(5, Accountant.ZCDP, Fraction(1, 10**6)), budget(50, Accountant.ZCDP, Fraction(1, 10**6)))
    charge_only(ledger, "ana", rules, [request("a", gaussian(limit.capacity * 2 / 3))], sql=SQL)
    with pytest.raises(BudgetExhausted) as refusal:
        charge_only(ledger, "ana", rules, [request("b", gaussian(limit.capacity / 2))], sql=SQL)
    fitting = refusal.value.remaining
    assert fitting is not None
    assert refusal.value.requested > fitting > 0
    assert str(refusal.value.hint).startswith("Write: SET dpsql.epsilon = 0.5")
    charge_only(ledger, "ana", rules, [request("b", gaussian(fitting**2 / 2))], sql=SQL)


def test_zcdp_admits_pure_charges_that_fit_the_sum_of_epsilon(ledger: Ledger) -> None:
    # Under rho*(0.1, 1e-6) this would not be admitted: it has more rho, but no more than epsilon.
    rules = policy(budget(TENTH, Accountant.ZCDP, Fraction(1, 10**6)), budget(50, Accountant.ZCDP, Fraction(1, 10**6)))
    charge = charge_only(ledger, "ana", rules, [request("a", laplace(TENTH * 9 / 10))], sql=SQL)
    assert charge.price.rho > charge.limit.capacity
    with pytest.raises(BudgetExhausted) as refusal:
        charge_only(ledger, "ana", rules, [request("b", laplace(TENTH / 2))], sql=SQL)
    fitting = Fraction(str(refusal.value.hint).removeprefix("Write: SET dpsql.epsilon = "))
    assert Fraction("0.0099") < fitting <= TENTH / 10
    charge_only(ledger, "ana", rules, [request("b", laplace(fitting))], sql=SQL)
    with pytest.raises(BudgetExhausted):
        charge_only(ledger, "ana", rules, [request("c", gaussian(Fraction(1, 10**9)))], sql=SQL)


@pytest.mark.parametrize(
    ("accountant", "delta", "left", "hint"),
    [
        (Accountant.ZCDP, Fraction(1, 10**6), "5e-7", " Write: SET dpsql.delta = 5e-7"),
        (Accountant.BASIC, Fraction(1, 10**6), "1e-6", " Write: SET dpsql.delta = 0.000001"),
        (Accountant.PURE, Fraction(0), "0", ""),
    ],
)
def test_a_refusal_for_want_of_delta_says_so(
    ledger: Ledger, accountant: Accountant, delta: Fraction, left: str, hint: str
) -> None:
    rules = policy(budget(5, accountant, delta), budget(50, Accountant.ZCDP, Fraction(1, 10**5)))
    with pytest.raises(BudgetExhausted) as refusal:
        charge_only(ledger, "ana", rules, [request("a", selection(TENTH, Fraction(1, 10**5)))], sql=SQL)
    assert "costs delta 0.00001 for private keys" in refusal.value.message
    assert refusal.value.hint == f"Columns with a declared domain need no delta.{hint}"


def test_basic_counts_its_own_epsilon(ledger: Ledger) -> None:
    rules = policy(budget(1, Accountant.BASIC, Fraction(1, 10**6)), budget(50, Accountant.ZCDP, Fraction(1, 10**5)))
    charge_only(ledger, "ana", rules, [request("a", laplace(Fraction(3, 4)))], sql=SQL)
    with pytest.raises(BudgetExhausted, match=r"costs epsilon 0\.5; at most 0\.25 is left for one query"):
        charge_only(ledger, "ana", rules, [request("b", laplace(Fraction(1, 2)))], sql=SQL)


def test_what_has_no_price_in_the_currency_is_refused(ledger: Ledger) -> None:
    for accountant in (Accountant.PURE, Accountant.BASIC):
        rules = policy(budget(1, accountant), name=accountant.value)
        with pytest.raises(BudgetExhausted) as refusal:
            charge_only(ledger, "ana", rules, [request("a", gaussian(Fraction(1, 10**9)))], sql=SQL)
        assert refusal.value.requested == 0


def test_a_charge_of_delta_alone_is_admitted_by_zcdp(ledger: Ledger) -> None:
    zcdp = budget(1, Accountant.ZCDP, Fraction(1, 10**6))
    rules = policy(zcdp, zcdp)
    threshold = Event(Mechanism.THRESHOLD, UNIT, Fraction(0), Fraction(1, 10**9))
    assert not charge_only(ledger, "ana", rules, [request("a", threshold)], sql=SQL).free


def test_the_cap_is_shared_and_its_refusal_shows_no_number(ledger: Ledger) -> None:
    rules = policy(cap=budget(Fraction(15, 10)))
    for key in range(10):
        charge_only(ledger, "ana", rules, requests(key), sql=SQL)
    for key in range(10, 15):
        charge_only(ledger, "ben", rules, requests(key), sql=SQL)
    with pytest.raises(BudgetExhausted) as refusal:
        charge_only(ledger, "ben", rules, requests(15), sql=SQL)
    error = refusal.value
    assert error.remaining is None
    assert error.requested == TENTH
    assert not any(character.isdigit() for character in f"{error.message}{error.detail}{error.hint}")
    assert ledger.budget("ben", rules).charges == 5


def test_datasets_that_name_one_cap_share_it(ledger: Ledger) -> None:
    cap = budget(Fraction(3, 10))
    clinic, lab = policy(cap=cap), policy(cap=cap, name="lab")
    charge_only(ledger, "ana", clinic, requests("a", "b"), sql=SQL)
    charge_only(ledger, "ana", lab, requests("c"), sql=SQL)
    assert ledger.budget("ana", lab).spent.pure_epsilon == TENTH
    for rules in (clinic, lab):
        with pytest.raises(BudgetExhausted, match="over all users"):
            charge_only(ledger, "ben", rules, requests("d"), sql=SQL)


def test_an_own_release_is_free_and_told_so(ledger: Ledger) -> None:
    number = ask(ledger, "a")
    charge = charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    (release,) = charge.releases
    assert (release.release_id, release.payload, release.reused) == (number, b"rows of a for ana", True)
    assert charge.free
    assert charge.price == Spent.zero()
    assert (spent(ledger), cap_spent(ledger)) == (TENTH, TENTH)
    assert ledger.budget("ana", POLICY).charges == 1
    assert [record.reused for record in ledger.releases("ana", POLICY.dataset.name)] == [1]


def test_releases_are_those_of_a_dataset(ledger: Ledger) -> None:
    other = policy(name="lab")
    ask(ledger, "a")
    charge_only(ledger, "ana", other, requests("b"), sql="SELECT 2")
    for rules, sql in ((POLICY, SQL), (other, "SELECT 2")):
        assert [record.sql for record in ledger.releases("ana", rules.dataset.name)] == [sql]


def test_an_own_release_stays_free_when_the_budget_is_spent(ledger: Ledger) -> None:
    ask(ledger, "a")
    for key in range(9):
        ask(ledger, key)
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).free


def test_a_release_is_reusable_only_once_it_is_stored(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    charge = charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    assert charge.releases[0].payload is None
    assert (spent(ledger), cap_spent(ledger)) == (2 * TENTH, 2 * TENTH)


def test_a_release_of_another_user_is_charged_to_the_user_but_not_to_the_cap(ledger: Ledger) -> None:
    made = ask(ledger, "a")
    charge = charge_only(ledger, "ben", POLICY, requests("a"), sql="SELECT 1")
    (release,) = charge.releases
    assert (release.payload, release.reused) == (b"rows of a for ana", False)
    assert release.release_id > made  # an older number would tell that it is another's
    assert not charge.free
    assert (spent(ledger, "ben"), cap_spent(ledger)) == (TENTH, TENTH)
    (again,) = charge_only(ledger, "ben", POLICY, requests("a"), sql=SQL).releases
    assert (again.release_id, again.payload, again.reused) == (release.release_id, b"rows of a for ana", True)
    assert spent(ledger, "ben") == TENTH
    (record,) = ledger.releases("ben", POLICY.dataset.name)
    assert (record.release_id, record.sql, record.reused) == (release.release_id, "SELECT 1", 1)
    assert ledger.verify().ok


def test_a_release_of_another_user_needs_budget(ledger: Ledger) -> None:
    ask(ledger, "a")
    charge_only(ledger, "ben", POLICY, [request("b", laplace(Fraction(19, 20)))], sql=SQL)
    with pytest.raises(BudgetExhausted):
        charge_only(ledger, "ben", POLICY, requests("a"), sql=SQL)


def test_a_release_of_another_user_is_handed_out_when_the_cap_is_spent(ledger: Ledger) -> None:
    rules = policy(cap=budget(TENTH))
    (release,) = charge_only(ledger, "ana", rules, requests("a"), sql=SQL).releases
    ledger.store(release.release_id, b"rows")
    assert charge_only(ledger, "ben", rules, requests("a"), sql=SQL).releases[0].payload == b"rows"


def test_a_release_at_another_price_is_another_release(ledger: Ledger) -> None:
    ask(ledger, "a")
    (release,) = charge_only(ledger, "ben", POLICY, [request("a", laplace(TENTH / 2))], sql=SQL).releases
    assert release.payload is None
    ledger.store(release.release_id, b"noisier rows")
    assert cap_spent(ledger) == TENTH * 3 / 2
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).releases[0].payload == b"rows of a for ana"


def test_a_release_of_another_dataset_is_not_handed_out(ledger: Ledger) -> None:
    ask(ledger, "a")
    assert charge_only(ledger, "ana", policy(name="lab"), requests("a"), sql=SQL).releases[0].payload is None


def test_without_reuse_every_release_is_fresh_and_paid(ledger: Ledger) -> None:
    ask(ledger, "a")
    charge = charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL, reuse=False)
    assert (charge.releases[0].payload, charge.releases[0].reused) == (None, False)
    assert (spent(ledger), cap_spent(ledger)) == (2 * TENTH, 2 * TENTH)
    ledger.store(charge.releases[0].release_id, b"second rows")
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).releases[0].payload == b"rows of a for ana"


def test_without_reuse_the_first_release_is_stored_all_the_same(ledger: Ledger) -> None:
    (release,) = charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL, reuse=False).releases
    ledger.store(release.release_id, b"rows")
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).releases[0].payload == b"rows"


@pytest.mark.parametrize("reuse", [True, False])
def test_one_key_asked_twice_is_charged_once(ledger: Ledger, reuse: bool) -> None:
    charge = charge_only(ledger, "ana", POLICY, requests("a", "b", "a"), sql=SQL, reuse=reuse)
    first, second, third = charge.releases
    assert first == third != second
    assert (spent(ledger), cap_spent(ledger)) == (2 * TENTH, 2 * TENTH)


def test_one_charge_may_mix_free_paid_and_fresh(ledger: Ledger) -> None:
    ask(ledger, "own")
    ask(ledger, "other", "ben")
    charge = charge_only(ledger, "ana", POLICY, requests("own", "other", "new", "own"), sql=SQL)
    assert [(release.payload is None, release.reused) for release in charge.releases] == [
        (False, True),
        (False, False),
        (True, False),
        (False, True),
    ]
    assert charge.price.pure_epsilon == 2 * TENTH
    assert cap_spent(ledger) == 3 * TENTH
    assert [record.reused for record in ledger.releases("ana", POLICY.dataset.name)] == [1, 0, 0]
    assert ledger.verify().ok


def test_a_charge_of_nothing_is_free(ledger: Ledger) -> None:
    assert charge_only(ledger, "ana", POLICY, [], sql="SELECT 1").free
    assert ledger.history() == []


def test_the_oldest_releases_are_dropped_beyond_the_bound(place: Place) -> None:
    small = peopled(opened(place, max_stored_bytes=10))
    numbers = [charge_only(small, "ana", POLICY, requests(key), sql=SQL).releases[0].release_id for key in range(5)]
    small.store(numbers[0], b"12345")
    small.store(numbers[1], b"12345")
    small.store(numbers[2], b"123456")
    small.store(numbers[3], b"x" * 11)  # it would not fit alone
    payloads = [
        charge_only(small, "ana", POLICY, requests(key), sql=SQL, reuse=True).releases[0].payload for key in range(4)
    ]
    assert payloads == [None, None, b"123456", None]
    kept = [record.kept for record in small.releases("ana", POLICY.dataset.name)]
    assert kept == [False, False, True, False, False, False, False, False]
    assert spent(small) == 8 * TENTH
    assert small.verify().ok
    small.close()


def test_storing_twice_keeps_the_first(ledger: Ledger) -> None:
    number = ask(ledger, "a")
    ledger.store(number, b"others")
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).releases[0].payload == b"rows of a for ana"


def test_only_what_was_charged_to_be_made_can_be_stored(ledger: Ledger) -> None:
    ask(ledger, "a")
    handed = charge_only(ledger, "ben", POLICY, requests("a"), sql=SQL).releases[0].release_id
    for number in (handed, 99):
        with pytest.raises(InvalidParameter):
            ledger.store(number, b"rows")


def test_a_failed_key_is_not_run_again_by_anyone(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    ledger.record_failure("ana", ["a", "b"])
    ledger.record_failure("ana", ["a"])
    for user, key in (("ana", "a"), ("ben", "b")):
        with pytest.raises(PolicyViolation, match="failed before"):
            charge_only(ledger, user, POLICY, requests("new", key), sql=SQL)
    assert (spent(ledger), cap_spent(ledger)) == (TENTH, TENTH)


def test_three_failures_freeze_the_user_until_unfrozen(ledger: Ledger) -> None:
    for key in range(2):
        ledger.record_failure("ana", [f"{key}"])
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    ledger.record_failure("ana", ["2"])
    ledger.record_failure("ana", ["3"])
    assert [record["kind"] for record in ledger.export()].count("account.frozen") == 1
    account = ledger.account("ana")
    assert account is not None
    assert account.frozen
    with pytest.raises(PolicyViolation, match="frozen"):
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    assert charge_only(ledger, "ben", POLICY, requests("a"), sql=SQL)
    ledger.unfreeze(ANA, "a cast in the view, fixed")
    ledger.record_failure("ana", ["4"])
    assert charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)
    assert [record["body"]["reason"] for record in ledger.export() if record["kind"] == "account.unfrozen"] == [
        "a cast in the view, fixed"
    ]
    assert ledger.verify().ok


def test_a_failure_of_a_user_the_ledger_does_not_know_still_quarantines(ledger: Ledger) -> None:
    ledger.record_failure("nobody", ["a"])
    with pytest.raises(PolicyViolation, match="failed before"):
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)


def test_a_charge_needs_an_account_with_a_role_of_the_policy(ledger: Ledger) -> None:
    with pytest.raises(PolicyViolation, match='no account "eve"'):
        charge_only(ledger, "eve", POLICY, requests("a"), sql=SQL)
    ledger.set_role("ana", "director")
    with pytest.raises(PolicyViolation, match='no role "director"'):
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    assert not [record for record in ledger.export() if record["kind"] != "account.added"][1:]


def test_no_statement_of_a_charge_reads_more_as_the_ledger_grows(sqlite_ledger: SqliteLedger) -> None:
    ledger = sqlite_ledger
    ask(ledger, "a")
    ask(ledger, "other", "ben")
    statements: list[str] = []
    ledger._storage.writer.set_trace_callback(statements.append)
    ask(ledger, "b")
    ledger._memory.forget()
    charge_only(ledger, "ana", POLICY, requests("a", "other"), sql=SQL)
    ledger._storage.writer.set_trace_callback(None)
    plans = [
        (statement, plan)
        for statement in statements
        if statement.split()[0] in {"SELECT", "INSERT", "UPDATE"}
        for *_, plan in ledger._storage.writer.execute(f"EXPLAIN QUERY PLAN {statement}")
    ]
    assert len(plans) > 15
    limited = ("LIMIT 1", "totals")  # one step from the end of a table, and a table of one row
    assert [plan for plan in plans if plan[1].startswith("SCAN") and not any(it in plan[0] for it in limited)] == []


def test_history_and_releases_tell_what_was_charged(ledger: Ledger) -> None:
    ask(ledger, "a")
    ask(ledger, "a")
    charge_only(ledger, "ben", POLICY, [request("b", laplace(TENTH), laplace(TENTH / 2))], sql="SELECT 2")
    first, second = ledger.history()
    assert (first.user, first.dataset, first.sql, first.price) == ("ana", "clinic", SQL, (laplace(TENTH),))
    assert first.at.isoformat() == "2026-01-15T12:00:00+00:00"
    assert second.price == (laplace(TENTH), laplace(TENTH / 2))
    assert ledger.history("ben") == [second]
    assert ledger.history("eve") == []
    (release,) = ledger.releases("ben", POLICY.dataset.name)
    assert (release.key, release.sql, release.price, release.created) == ("b", "SELECT 2", second.price, second.at)


def test_any_sql_text_can_be_recorded(ledger: Ledger) -> None:
    text = "SELECT '\ud800\x00é\n'"
    charge_only(ledger, "ana", POLICY, requests("a"), sql=text)
    assert ledger.history()[0].sql == text
    assert ledger.verify().ok
