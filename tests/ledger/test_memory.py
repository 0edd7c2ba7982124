"""What a process remembers of the ledger is what it would read: the same acts end in the same records without it."""

import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import BudgetExhausted, Error, LedgerUnavailable, PolicyViolation
from dpsql.ledger import BudgetScope, Charge, Holder, SqliteLedger
from dpsql.ledger.chain import GroupShare, OpenRead, Receipt, ReceiptItem, canonical, digest, sha256, write_events
from dpsql.ledger.derived_tables import MOST, Memory, Total, charged, price, write_total
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.transaction import LedgerClock
from dpsql.policy import RenewalWindow
from dpsql.privacy.accounting import Accountant, Spent
from tests.ledger.test_group_commit import no_commits
from tests.ledger.world import (
    ANY,
    SQL,
    Clock,
    Place,
    budget,
    charge_only,
    gaussian,
    laplace,
    new_ledger,
    opened,
    policy,
    request,
    requests,
    selection,
    tamper,
)

POLICY = policy()
DELTA = Fraction(1, 10**6)


def zcdp(epsilon: Fraction | int, window: RenewalWindow | None = None) -> Any:
    return budget(epsilon, Accountant.ZCDP, DELTA, window)


POLICIES = (
    policy(zcdp(1, RenewalWindow(20)), zcdp(3), team=zcdp(1, RenewalWindow(None))),
    policy(zcdp(Fraction(1, 2)), zcdp(3), team=zcdp(1)),
    policy(budget(2, Accountant.RDP, DELTA), zcdp(2), name="lab"),
)
EVENTS = (laplace(Fraction(1, 10)), gaussian(Fraction(1, 50)), selection(Fraction(1, 20), DELTA / 100))


class Forgetful(SqliteLedger):
    """A ledger that reads everything again for each transaction."""

    def _begin(self) -> Any:
        self._memory.forget()
        return super()._begin()


Act = Callable[[Ledger], object]
USERS = st.sampled_from(["ana", "ana", "ben", "eva"])
HOLDERS = st.one_of(
    st.builds(Holder, st.just(BudgetScope.USER), USERS),
    st.builds(Holder, st.just(BudgetScope.GROUP), st.just("team")),
    st.just(Holder(BudgetScope.ALL)),
)
BUDGETED = HOLDERS.filter(lambda holder: holder.scope is not BudgetScope.ALL)


def charging(user: str, number: int, keys: list[int], reuse: bool, store: bool) -> Act:
    def act(ledger: Ledger) -> Charge:
        asked = [request(key, EVENTS[key % len(EVENTS)]) for key in keys]
        charge = charge_only(ledger, user, POLICIES[number], asked, sql=SQL, reuse=reuse)
        for release in charge.releases:
            if store and release.payload is None:
                ledger.store(release.release_id, b"rows")
        return charge

    return act


ACTS: st.SearchStrategy[Act] = st.one_of(
    *[
        st.builds(
            charging,
            USERS,
            st.sampled_from([0, 0, 0, 1, 2]),
            st.lists(st.integers(0, 5), max_size=3),
            st.booleans(),
            st.booleans(),
        )
    ]
    * 4,
    st.builds(lambda user: lambda ledger: ledger.record_failure(user, ["0"]), USERS),
    st.builds(lambda holder: lambda ledger: ledger.freeze(holder, "why"), HOLDERS),
    st.builds(lambda holder: lambda ledger: ledger.unfreeze(holder, "why"), HOLDERS),
    st.builds(lambda user: lambda ledger: ledger.set_role(user, "guest"), USERS),
    st.builds(lambda user, group: lambda ledger: ledger.set_group(user, group), USERS, st.sampled_from(["team", None])),
    st.builds(lambda user: lambda ledger: ledger.remove_account(user), USERS),
    st.builds(lambda user: lambda ledger: ledger.add_account(user, "analyst"), USERS),
    st.builds(lambda holder: lambda ledger: ledger.reset(holder, POLICIES[0], "why"), BUDGETED),
    st.builds(
        lambda holder: lambda ledger: ledger.grant(holder, POLICIES[0], Fraction(1, 10), Fraction(0), "why"), BUDGETED
    ),
)


def done(act: Act, ledger: Ledger) -> object:
    try:
        return act(ledger)
    except Error as error:
        return type(error), error.message, error.hint


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(ACTS, st.sampled_from([0, 0, 0, 0, 1, 24, 500]), st.booleans()), max_size=25))
def test_memory_changes_nothing(acts: list[tuple[Act, int, bool]]) -> None:
    """Against a ledger without memory; some acts come from another process, whose memory is another."""
    with tempfile.TemporaryDirectory() as directory:
        clock = Clock()
        path = Path(directory) / "remembering.sqlite"
        with (
            closing(new_ledger(path, clock)) as one,
            closing(SqliteLedger(path, clock=clock, clock_limit=ANY)) as other,
            closing(Forgetful(Path(directory) / "forgetful.sqlite", clock=clock, clock_limit=ANY)) as forgetful,
        ):
            for name in ("ana", "ben"):
                forgetful.add_account(name, "analyst")
            for act, hours, elsewhere in acts:
                clock.now += timedelta(hours=hours)
                assert done(act, other if elsewhere else one) == done(act, forgetful)
            assert list(one.export()) == list(forgetful.export())
            assert one.verify().ok


def test_a_charge_that_is_like_the_last_reads_nothing_but_the_head_and_what_is_stored(
    sqlite_ledger: SqliteLedger,
) -> None:
    ledger = sqlite_ledger
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    statements: list[str] = []
    ledger._storage.writer.set_trace_callback(statements.append)
    charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)
    ledger._storage.writer.set_trace_callback(None)
    read = [text for text in statements if text.startswith("SELECT")]
    assert [text.partition(" FROM ")[2].split()[0] for text in read] == ["records", "stored"]


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger: ledger.freeze(Holder(BudgetScope.USER, "ana"), "why"),
        lambda ledger: ledger.freeze(Holder(BudgetScope.ALL), "why"),
        lambda ledger: ledger.remove_account("ana"),
        lambda ledger: ledger.record_failure("ben", ["b"]),
        lambda ledger: ledger.set_role("ana", "nobody"),
        lambda ledger: ledger.set_group("ana", "no such group"),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_anybody_changes_is_known_at_the_next_charge(
    ledger: Ledger, place: Place, clock: Clock, change: Callable[[Ledger], None], elsewhere: bool
) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    with closing(opened(place, clock)) as other:
        change(other if elsewhere else ledger)
    with pytest.raises(PolicyViolation):
        charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)


def test_what_another_process_spent_is_known(ledger: Ledger, place: Place, clock: Clock) -> None:
    with closing(opened(place, clock)) as other:
        for number in range(10):
            charge_only(other if number % 2 else ledger, "ana", POLICY, requests(number), sql=SQL)
        for each in (ledger, other):
            with pytest.raises(BudgetExhausted):
                charge_only(each, "ana", POLICY, requests("one more"), sql=SQL)
    assert ledger.verify().ok


def test_releases_are_numbered_on(ledger: Ledger) -> None:
    keys = iter("abcdefghi")
    numbers = []
    for count in (2, 1, 2, 1):
        charge = charge_only(ledger, "ana", POLICY, requests(*(next(keys) for _ in range(count))), sql=SQL)
        numbers += [release.release_id for release in charge.releases]
        charge_only(ledger, "ana", POLICY, [], sql=SQL)
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_another_policy_is_adopted_at_once(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    with pytest.raises(BudgetExhausted):
        charge_only(ledger, "ana", policy(budget(Fraction(1, 10))), requests("b"), sql=SQL)
    assert charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL).limit.epsilon == 1


@pytest.mark.parametrize("window", [RenewalWindow(30), RenewalWindow(None)])
def test_a_window_ends_at_its_very_end(ledger: Ledger, clock: Clock, window: RenewalWindow) -> None:
    rules = policy(budget(Fraction(2, 10), window=window))
    charge_only(ledger, "ana", rules, requests("a"), sql=SQL)
    end = ledger.budget("ana", rules).window_end
    assert end is not None
    clock.now = end - timedelta(microseconds=1)
    assert charge_only(ledger, "ana", rules, requests("b"), sql=SQL).spent.pure_epsilon == Fraction(2, 10)
    clock.now = end
    assert charge_only(ledger, "ana", rules, requests("c"), sql=SQL).spent.pure_epsilon == Fraction(1, 10)
    assert ledger.verify().ok


def test_the_window_of_a_group_ends_too(ledger: Ledger, clock: Clock) -> None:
    rules = policy(team=budget(Fraction(2, 10), window=RenewalWindow(30)))
    ledger.set_group("ana", "team")
    charge_only(ledger, "ana", rules, requests("a"), sql=SQL)
    clock.move(days=29)
    charge_only(ledger, "ana", rules, requests("b"), sql=SQL)
    clock.move(days=1)
    charge_only(ledger, "ana", rules, requests("c"), sql=SQL)
    assert ledger.group_budget("team", rules).spent.pure_epsilon == Fraction(1, 10)


def test_nothing_is_remembered_of_a_commit_that_failed(ledger: Ledger, place: Place) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    with no_commits(ledger, place), pytest.raises(LedgerUnavailable):
        charge_only(ledger, "ana", POLICY, [request("b", laplace(Fraction(9, 10)))], sql=SQL)
    charge = charge_only(ledger, "ana", POLICY, [request("b", laplace(Fraction(9, 10)))], sql=SQL)
    assert charge.spent.pure_epsilon == 1
    assert ledger.verify().ok


def test_nothing_is_remembered_of_a_refusal(ledger: Ledger) -> None:
    with pytest.raises(BudgetExhausted):  # the budget was made, and taken back
        charge_only(ledger, "ana", POLICY, [request("a", laplace(2))], sql=SQL)
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).spent.pure_epsilon == Fraction(1, 10)
    assert ledger.verify().ok


def test_a_balance_that_was_changed_without_a_record_is_not_charged(ledger: Ledger, place: Place) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    before = list(ledger.export())
    tamper(place, "UPDATE budgets SET spent = replace(spent, '1/10', '1/100') WHERE holder = 'ana'")
    with pytest.raises(LedgerUnavailable, match="left no record") as error:
        charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)
    assert "dpsql ledger verify" in str(error.value.hint)
    assert list(ledger.export()) == before
    assert not ledger.verify().ok


def cut(place: Place, last: int) -> None:
    """Take records back, as a failover to a standby that lags does, or an old backup."""
    file = isinstance(place, Path)
    unguarded = "DROP TRIGGER records_keep_deletes" if file else "SET session_replication_role = replica"
    tamper(place, unguarded, f"DELETE FROM records WHERE seq > {last}")


WRITES: list[Callable[[Ledger], object]] = [
    lambda ledger: charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL),
    lambda ledger: ledger.set_role("ana", "analyst"),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_record_that_was_written_must_stay(ledger: Ledger, place: Place, write: Callable[[Ledger], object]) -> None:
    first = charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).id or 0
    write(ledger)
    cut(place, first)
    for again in WRITES:
        with pytest.raises(LedgerUnavailable, match="not in the ledger any more") as error:
            again(ledger)
        assert "verify --head" in str(error.value.hint)
    assert len(list(ledger.export())) == first


def test_a_record_of_another_gateway_that_was_met_must_stay(ledger: Ledger, place: Place, clock: Clock) -> None:
    with closing(opened(place, clock)) as other:
        first = charge_only(other, "ana", POLICY, requests("a"), sql=SQL).id or 0
        charge_only(other, "ana", POLICY, [], sql=SQL)
        with pytest.raises(BudgetExhausted):  # it met it, and wrote nothing
            charge_only(ledger, "ana", POLICY, [request("b", laplace(2))], sql=SQL)
        cut(place, first)
        with pytest.raises(LedgerUnavailable, match="not in the ledger any more"):
            charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)


def test_what_was_only_in_doubt_need_not_stay(ledger: Ledger, place: Place) -> None:
    with no_commits(ledger, place), pytest.raises(LedgerUnavailable):
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    assert charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)


def test_so_much_is_remembered_and_no_more() -> None:
    memory = Memory()
    memory.meet("head")
    memory.facts.update(dict.fromkeys(range(MOST)))
    memory.totals[1] = Total("{}", Spent.zero())
    memory.meet("head")
    assert len(memory.facts) == MOST
    memory.facts["one more"] = None
    memory.meet("head")
    assert (memory.facts, memory.totals) == ({}, {})


ITEMS = st.builds(
    ReceiptItem,
    st.integers(1, 10**9),
    st.text(max_size=5),
    st.integers(1, 10**9),
    st.lists(st.sampled_from(EVENTS), max_size=3).map(lambda events: write_events(tuple(events))),
)
NUMBERS = st.lists(st.integers(1, 10**9), max_size=3).map(tuple)
RECEIPTS = st.builds(
    Receipt,
    st.text(max_size=5),
    st.text(max_size=5),
    st.text(),
    st.integers(1, 99),
    st.integers(1, 99),
    st.lists(ITEMS, max_size=3).map(tuple),
    NUMBERS,
    st.none() | st.builds(GroupShare, st.text(max_size=5), st.integers(1, 99), NUMBERS),
    st.none() | st.builds(OpenRead, st.text(max_size=5), st.text(max_size=5)),
)


@given(RECEIPTS)
def test_a_receipt_is_canonical_json_and_reads_back(receipt: Receipt) -> None:
    text = receipt.text()
    assert text == canonical(json.loads(text))
    assert Receipt.read(json.loads(text)) == receipt


@given(st.integers(1), st.text(), st.text(), st.text(), st.text())
def test_a_digest_is_of_the_canonical_list(seq: int, at: str, kind: str, body: str, previous: str) -> None:
    assert digest(seq, at, kind, body, previous) == sha256(canonical([seq, at, kind, body, previous]))


@given(
    st.lists(st.lists(st.sampled_from(EVENTS), max_size=3), max_size=4), st.lists(st.sampled_from([2, 8]), max_size=2)
)
def test_a_total_grows_as_the_events_say(charges: list[list[Any]], orders: list[int]) -> None:
    spent = Spent.zero()
    for order in orders:
        spent = spent.keeping(Fraction(order))
    total = write_total(spent)
    for events in charges:
        total = charged(total, write_events(tuple(events)))
        spent = spent.add(events)
    assert total.spent == spent
    assert total.text == canonical(spent.to_json())
    assert price(write_events(tuple(EVENTS))) == Spent.zero().add(EVENTS)


def test_the_clock_of_a_transaction_is_read_once(ledger: Ledger) -> None:
    moments = iter(datetime(2026, 2, day, tzinfo=UTC) for day in range(1, 9))
    ledger._clock = LedgerClock(lambda: next(moments), ANY)
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    stamps = {record["at"][:10] for record in ledger.export() if not record["kind"].startswith("account")}
    assert stamps == {"2026-02-01"}
