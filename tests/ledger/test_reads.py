"""Of a user's reads of private rows, those that failed and those that are open are three, over all gateways."""

import inspect
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path

import psycopg
import pytest

from dpsql.errors import BudgetExhausted, LedgerUnavailable, PolicyViolation, QueryCanceled, TooManyStatements
from dpsql.ledger import Charge, Ledger, Reading, ReleaseRequest, SqliteLedger
from dpsql.ledger.postgres import PostgresLedger
from dpsql.ledger.sqlite import GatewayLock
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.cost import Event
from tests.ledger.world import (
    ANA,
    SQL,
    TEAM,
    Clock,
    Place,
    budget,
    gaussian,
    laplace,
    new_ledger,
    opened,
    peopled,
    policy,
    request,
)
from tests.waiting import HANG_SECONDS

POLICY = policy()
TENTH = Fraction(1, 10)
SECONDS = HANG_SECONDS


def proceed() -> None:
    """Wait on."""


def begin(
    ledger: Ledger, key: object, *events: Event, user: str = "ana", check: Callable[[], None] = proceed
) -> Charge:
    """Charge a release that is to be read within 100 seconds."""
    return ledger.charge(
        user, POLICY, [request(key, *(events or (laplace(TENTH),)))], sql=SQL, reading=Reading(100, check)
    )


def finish(ledger: Ledger, charge: Charge) -> None:
    assert charge.id is not None
    ledger.store(charge.releases[0].release_id, b"cells", ends=charge.id)


def fail(ledger: Ledger, charge: Charge) -> None:
    ledger.record_failure(charge.user, [charge.releases[0].key], charge.id)


def stop(ledger: Ledger, charge: Charge) -> None:
    assert charge.id is not None
    ledger.end(charge.id)


def give_up() -> None:
    """Wait for nothing."""
    raise QueryCanceled("enough")


def is_full(ledger: Ledger, user: str = "ana") -> bool:
    """Whether a further read would have to wait; nothing is charged for the attempt."""

    before = ledger.cap(POLICY).spent
    try:
        stop(ledger, begin(ledger, f"attempt {before.units}", user=user, check=give_up))
    except QueryCanceled:
        assert ledger.cap(POLICY).spent == before
        return True
    return False


@pytest.fixture
def other(ledger: Ledger, place: Place, clock: Clock) -> Iterator[Ledger]:
    """Another gateway on the same ledger."""
    second = opened(place, clock)
    yield second
    second.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def waits(ledger: Ledger, number: int, user: str = "ana") -> None:
    """Return when so many queries of a user wait."""
    deadline = time.monotonic() + SECONDS
    while len(ledger._lines.waiting.get(user, ())) != number:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("ending", [finish, fail, stop])
def test_the_fourth_waits_until_one_ends(
    ledger: Ledger, pool: ThreadPoolExecutor, ending: Callable[[Ledger, Charge], None]
) -> None:
    one, two, three = (begin(ledger, key) for key in range(3))
    fourth = pool.submit(begin, ledger, "fourth")
    waits(ledger, 1)
    assert len(ledger.history()) == 3
    ending(ledger, one)
    if ending is fail:  # its place is gone for good
        finish(ledger, two)
    assert fourth.result(SECONDS).releases[0].payload is None
    for charge in (two, three, fourth.result()):
        finish(ledger, charge)
    assert ledger.verify().ok


@pytest.mark.parametrize("ending", [finish, fail, stop])
def test_gateways_count_together(
    ledger: Ledger,
    other: Ledger,
    pool: ThreadPoolExecutor,
    ending: Callable[[Ledger, Charge], None],
) -> None:
    one, two = begin(ledger, "1"), begin(ledger, "2")
    begin(other, "3")
    assert is_full(ledger) and is_full(other)
    assert not is_full(ledger, "ben")
    fourth = pool.submit(begin, other, "fourth")
    waits(other, 1)
    ending(ledger, one)
    finish(ledger, two)
    assert fourth.result(SECONDS).releases[0].payload is None


def test_each_failure_takes_a_place_until_the_owner_acts(ledger: Ledger, other: Ledger) -> None:
    for failed in range(3):
        charges = [begin(ledger, f"{failed} {key}", laplace(TENTH)) for key in range(3 - failed)]
        assert is_full(ledger) and is_full(other)
        for charge in charges[1:]:
            finish(ledger, charge)
        fail(other, charges[0])
    with pytest.raises(PolicyViolation, match="frozen"):
        begin(other, "later")
    ledger.unfreeze(ANA, "looked at")
    for key in range(3):
        begin(other, f"later {key}")
    assert ledger.verify().ok


def test_the_owner_acts_before_a_freeze_as_well(ledger: Ledger) -> None:
    fail(ledger, begin(ledger, "a"))
    begin(ledger, "b")
    ledger.unfreeze(ANA, "the disk was full")
    assert not ledger.accounts()[0].frozen
    for key in range(3):
        begin(ledger, key)
    assert ledger.verify().ok
    ledger.unfreeze(ANA, "open ones alone")
    with pytest.raises(Exception, match="not frozen"):
        ledger.unfreeze(ANA, "nothing to do")
    ledger.set_group("ana", "team")
    with pytest.raises(Exception, match="not frozen"):
        ledger.unfreeze(TEAM, "a group has no failures")


def test_they_have_their_turn_in_their_order(ledger: Ledger, pool: ThreadPoolExecutor) -> None:
    charges = [begin(ledger, key) for key in range(3)]
    waiting: list[Future[Charge]] = []
    for key in range(3, 6):
        waiting.append(pool.submit(begin, ledger, key))
        waits(ledger, len(waiting))
    for first in range(3):
        assert not any(future.done() for future in waiting[first:])
        finish(ledger, charges[first])
        charges.append(waiting[first].result(SECONDS))
        assert is_full(ledger)  # whoever comes now does not overtake those who wait
    assert [charge.releases[0].key for charge in charges] == [f"{key}" for key in range(6)]


def test_what_does_not_fit_is_refused_at_once(ledger: Ledger) -> None:
    for key in range(3):
        begin(ledger, key)
    with pytest.raises(BudgetExhausted):
        begin(ledger, "too much", laplace(1))


def test_one_waits_not_for_ever(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.ledger.reads._WAIT", 0.2)
    for key in range(3):
        begin(ledger, key)
    with pytest.raises(TooManyStatements, match="3 queries of this user"):
        begin(ledger, "fourth")
    assert len(ledger.history()) == 3
    assert not ledger._lines.waiting


def test_what_is_had_already_needs_no_place(ledger: Ledger) -> None:
    finish(ledger, begin(ledger, "a"))
    for key in range(3):
        begin(ledger, key)
    again = begin(ledger, "a")
    assert (again.free, again.releases[0].payload) == (True, b"cells")
    assert not is_full(ledger, "ben")


def test_what_another_user_has_takes_a_place_as_what_is_read(ledger: Ledger, pool: ThreadPoolExecutor) -> None:
    """A user whose places are taken would else learn for nothing what others have asked: only that is answered."""
    finish(ledger, begin(ledger, "a", user="ben"))
    charges = [begin(ledger, key) for key in range(3)]
    with pytest.raises(QueryCanceled):
        begin(ledger, "a", check=give_up)
    assert ledger.budget("ana", POLICY).charges == 3
    handed = pool.submit(begin, ledger, "a")
    waits(ledger, 1)
    finish(ledger, charges[0])
    assert (handed.result(SECONDS).free, handed.result().releases[0].payload) == (False, b"cells")
    assert is_full(ledger)
    stop(ledger, handed.result())
    assert not is_full(ledger)
    assert ledger.verify().ok


def test_the_reads_of_one_query_end_with_its_last(ledger: Ledger) -> None:
    asked = [request("a", laplace(TENTH)), request("b", laplace(TENTH))]
    charge = ledger.charge("ana", POLICY, asked, sql=SQL, reading=Reading(100, proceed))
    begin(ledger, "c")
    begin(ledger, "d")
    ledger.store(charge.releases[0].release_id, b"a")
    assert is_full(ledger)
    ledger.store(charge.releases[1].release_id, b"b", ends=charge.id)
    assert not is_full(ledger)


def test_what_is_not_stored_ends_a_read_too(place: Place, ledger: Ledger, clock: Clock) -> None:
    with closing(opened(place, clock, max_stored_bytes=3)) as small:
        charges = [begin(small, key) for key in range(3)]
        finish(small, charges[0])
        assert not is_full(small)
        assert small.verify().ok


def without_lock(place: Place, clock: Clock) -> Ledger:
    """Return a gateway of which nobody can tell that it died, as behind a pooler."""
    gateway = opened(place, clock)
    name = f"{time.time_ns()}"
    gateway._storage.gateway = lambda: name  # type: ignore[method-assign]
    return gateway


def test_what_a_gateway_read_that_nobody_knows_to_be_dead_is_one_failure_after_its_time(
    ledger: Ledger, place: Place, clock: Clock
) -> None:
    """However many there were: what is told of them is that the gateway died."""
    for reads in (3, 2):
        dead = without_lock(place, clock)
        for key in range(reads):
            begin(dead, f"{reads} {key}", laplace(TENTH))
        dead.close()
        assert is_full(ledger)
        clock.move(seconds=161)
        finish(ledger, begin(ledger, f"after {reads}", laplace(Fraction(1, 19))))
    kinds = [record["kind"] for record in ledger.export()]
    assert kinds.count("read.lost") == 2
    dead = without_lock(place, clock)
    begin(dead, "last", laplace(TENTH))
    dead.close()
    clock.move(seconds=161)
    with pytest.raises(PolicyViolation, match="frozen"):
        begin(ledger, "frozen", laplace(TENTH))
    assert ledger.accounts()[0].frozen
    assert ledger.verify().ok


def test_each_gateway_that_dies_is_a_failure(ledger: Ledger, place: Place, clock: Clock) -> None:
    for key in range(3):
        dead = opened(place, clock)
        begin(dead, key)
        dead.close()
    clock.move(seconds=161)
    with pytest.raises(PolicyViolation, match="frozen"):
        begin(ledger, "later")


def test_a_read_that_fails_after_its_time_counts_twice(ledger: Ledger, other: Ledger, clock: Clock) -> None:
    """To count it once would let two late failures be one."""
    late = begin(ledger, "late")
    clock.move(seconds=161)
    finish(other, begin(other, "next"))
    with pytest.raises(LedgerUnavailable, match="its charge is kept"):
        fail(ledger, late)
    begin(other, "another")
    assert is_full(other)


def test_a_place_is_free_at_once_when_its_gateway_is_dead(ledger: Ledger, place: Place, clock: Clock) -> None:
    for failed, reads in enumerate((3, 2)):
        dead = opened(place, clock)
        for key in range(reads):
            begin(dead, f"{reads} {key}", laplace(TENTH))
        assert is_full(ledger), "it lives"
        dead.close()
        finish(ledger, begin(ledger, f"after {reads}", laplace(TENTH)))
        assert [record["kind"] for record in ledger.export()].count("read.lost") == failed + 1
    dead = opened(place, clock)
    begin(dead, "last", laplace(TENTH))
    dead.close()
    with pytest.raises(PolicyViolation, match="frozen"):
        begin(ledger, "frozen", laplace(TENTH))
    assert ledger.verify().ok


def test_a_place_that_is_not_needed_is_not_asked_for(ledger: Ledger, place: Place, clock: Clock) -> None:
    """A lock may be lost for reasons of a network: that is to be a failure only where a place is wanted."""
    dead = opened(place, clock)
    begin(dead, "a")
    begin(dead, "b")
    dead.close()
    finish(ledger, begin(ledger, "c"))
    assert "read.lost" not in [record["kind"] for record in ledger.export()]


def lose_lock(ledger: Ledger) -> None:
    """Have a gateway that lives look dead."""
    if isinstance(ledger, SqliteLedger):
        ledger._storage._gateway_lock.close()
    else:
        assert isinstance(ledger, PostgresLedger)
        ledger._storage.writer._drop()


def test_a_gateway_that_was_taken_for_dead_tells_nobody_how_its_reads_ended(ledger: Ledger, other: Ledger) -> None:
    good, bad, third = (begin(ledger, key) for key in range(3))
    lose_lock(ledger)
    begin(other, "other")
    told = []
    for ending, charge in ((finish, good), (fail, bad)):
        with pytest.raises(LedgerUnavailable) as error:
            ending(ledger, charge)
        told.append((str(error.value), error.value.hint))
    assert told[0] == told[1]
    stop(ledger, third)
    kinds = [record["kind"] for record in ledger.export()]
    assert (kinds.count("read.lost"), kinds.count("release.stored"), kinds.count("failure")) == (1, 0, 1)
    assert ledger.verify().ok


def test_what_the_owner_forgave_is_told_all_the_same(ledger: Ledger) -> None:
    """That an owner's act has ended a read does not make it a lost one."""
    fail(ledger, begin(ledger, "a"))
    charge = begin(ledger, "b")
    ledger.unfreeze(ANA, "the disk was full")
    finish(ledger, charge)


def test_a_gateway_behind_a_pooler_is_found_dead_by_the_time_alone(
    postgres_ledgers: list[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that would hold its lock is the pooler's, and outlives it; a pooler tells numbers of its own."""
    ledger = peopled(opened(postgres_ledgers[0], clock))
    with monkeypatch.context() as patch:
        patch.setattr(psycopg.ConnectionInfo, "backend_pid", 1)
        dead = opened(postgres_ledgers[0], clock)
    for key in range(3):
        begin(dead, key)
    dead.close()
    assert is_full(ledger)
    clock.move(seconds=161)
    assert not is_full(ledger)
    ledger.close()


def test_a_ledger_in_another_place_tells_nothing_of_a_gateway(tmp_path: Path, clock: Clock) -> None:
    """A copy of a ledger names gateways that hold their locks beside the first; and so does one beside a new file."""
    path = tmp_path / "ledger.sqlite"
    ledger = new_ledger(path, clock)
    other = opened(path, clock)
    finish(other, begin(other, "a"))
    path.with_name("ledger.sqlite-gateways").unlink()
    for key in range(3):
        begin(ledger, key)
    assert is_full(other), "the file is another one, in which nobody holds a lock"
    ledger.close()
    assert is_full(other)
    other.close()


def test_a_system_without_locks_of_open_files_tells_nothing_of_a_gateway(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsql.ledger.sqlite.LOCKS_OPEN_FILES", False)
    path = tmp_path / "ledger.sqlite"
    ledger, dead = new_ledger(path, clock), opened(path, clock)
    for key in range(3):
        begin(dead, key)
    dead.close()
    assert is_full(ledger)
    ledger.close()


def test_a_lock_that_is_not_to_be_had_refuses_the_charge(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "ledger.sqlite"
    path.with_name("ledger.sqlite-gateways").mkdir()
    with closing(new_ledger(path, clock)) as ledger:
        with pytest.raises(LedgerUnavailable, match="Is a directory"):
            begin(ledger, "a")
        assert ledger.history() == []
        path.with_name("ledger.sqlite-gateways").rmdir()
        begin(ledger, "a")


def test_threads_of_one_gateway_have_one_lock(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, opening = threading.Barrier(2), os.open

    def open_together(path: str, flags: int, mode: int) -> int:
        with suppress(threading.BrokenBarrierError):
            together.wait(0.5)
        return opening(path, flags, mode)

    monkeypatch.setattr("dpsql.ledger.sqlite.os.open", open_together)
    lock = GatewayLock(tmp_path / "ledger.sqlite")
    names = [pool.submit(lock.name) for _ in range(2)]
    assert len({name.result(SECONDS) for name in names}) == 1
    lock.close()


def test_two_gateways_never_have_the_same_lock(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.sqlite"
    monkeypatch.setattr("dpsql.ledger.sqlite.time.time_ns", lambda: 7)
    with closing(new_ledger(path, clock)) as ledger, closing(opened(path, clock)) as other:
        begin(ledger, "a")
        with pytest.raises(LedgerUnavailable):
            begin(other, "b")


def test_an_end_that_cannot_be_written_is_written_later(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    charges = [begin(ledger, key) for key in range(3)]

    def refuse() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._storage, "errors", (sqlite3.Error,))
        patch.setattr(ledger._storage, "begin", refuse)
        patch.setattr(ledger._storage, "unavailable", lambda error: LedgerUnavailable("no disk"))
        stop(ledger, charges[0])
        with pytest.raises(LedgerUnavailable):
            fail(ledger, charges[1])
    stop(ledger, charges[1])  # it did fail, so it does not end well
    begin(ledger, "in the place of the first")
    assert is_full(ledger)
    stop(ledger, charges[0])  # a second time it means nothing
    assert [record["kind"] for record in ledger.export()].count("read.ended") == 1


def test_an_interrupted_wait_leaves_no_trace(ledger: Ledger, pool: ThreadPoolExecutor) -> None:
    charges = [begin(ledger, key) for key in range(3)]
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise QueryCanceled("canceled")

    first = pool.submit(begin, ledger, "first", check=check)
    waits(ledger, 1)
    second = pool.submit(begin, ledger, "second")
    waits(ledger, 2)
    cancelled.set()
    with pytest.raises(QueryCanceled):
        first.result(SECONDS)
    finish(ledger, charges[0])
    assert second.result(SECONDS).releases[0].key == "second"
    assert not ledger._lines.waiting


# The price of a question

DELTA = Fraction(1, 10**6)
LARGE = {
    Accountant.PURE: (budget(5), laplace),
    Accountant.BASIC: (budget(5, Accountant.BASIC, DELTA), laplace),
    Accountant.ADVANCED: (budget(5, Accountant.ADVANCED, DELTA), laplace),
    Accountant.ZCDP: (budget(5, Accountant.ZCDP, DELTA), lambda epsilon: gaussian(epsilon**2 / 2)),
    Accountant.RDP: (budget(5, Accountant.RDP, DELTA), lambda epsilon: gaussian(epsilon**2 / 2)),
}


@pytest.mark.parametrize("accountant", LARGE)
def test_a_question_costs_a_part_of_the_budget_and_more_after_a_failure(
    sqlite_ledger: SqliteLedger, accountant: Accountant
) -> None:
    terms, event = LARGE[accountant]
    cap = policy(terms, budget(10**6, Accountant.ZCDP, DELTA) if terms.accountant.shares_rho else None)
    answered = 0
    for failed, most in ((False, 10_000), (True, 20)):
        if failed:
            sqlite_ledger.record_failure("ana", ["x"])

        def try_at(epsilon: Fraction, key: str) -> None:
            asked = [request(key, event(epsilon))]
            finish(sqlite_ledger, sqlite_ledger.charge("ana", cap, asked, sql=SQL, reading=Reading(100, proceed)))

        with pytest.raises(PolicyViolation, match=f"at least 1/{most} of the whole budget") as error:
            try_at(Fraction(1, 10**5), f"{most} cheap")
        hint = str(error.value.hint)
        assert ("look at the failure" in hint) is failed
        least = Fraction(hint.partition("SET dpsql.epsilon = ")[2])
        try_at(least, f"{most} least")
        with pytest.raises(PolicyViolation):
            try_at(least * Fraction(98, 100), f"{most} less")
        answered += 1
    assert len(sqlite_ledger.history()) == answered


def test_a_very_large_budget_is_spent_at_a_hundredth(sqlite_ledger: SqliteLedger) -> None:
    huge = policy(budget(1000), budget(10_000))
    for epsilon, fits in ((Fraction(1, 100), True), (Fraction(99, 10**4), False)):
        asked = [request(epsilon, laplace(epsilon))]
        if fits:
            finish(sqlite_ledger, sqlite_ledger.charge("ana", huge, asked, sql=SQL, reading=Reading(100, proceed)))
        else:
            with pytest.raises(PolicyViolation, match="1/10000"):
                sqlite_ledger.charge("ana", huge, asked, sql=SQL, reading=Reading(100, proceed))


def test_the_pure_clause_of_zcdp_is_counted_too(sqlite_ledger: SqliteLedger) -> None:
    """Where all noise is Laplace, more of it may fit than ρ says."""
    terms = policy(budget(5, Accountant.ZCDP, DELTA), budget(1000, Accountant.ZCDP, DELTA))
    sqlite_ledger.record_failure("ana", ["x"])
    asked = [request("a", laplace(Fraction(22, 100)))]
    with pytest.raises(PolicyViolation, match="1/20") as error:
        sqlite_ledger.charge("ana", terms, asked, sql=SQL, reading=Reading(100, proceed))
    assert "SET dpsql.epsilon = 0.239" in str(error.value.hint)


def test_a_gateway_cannot_forget_to_say_how_it_reads() -> None:
    """What is charged without is not admitted, and may cost as little as it likes."""
    assert inspect.signature(Ledger.charge).parameters["reading"].default is inspect.Parameter.empty


def test_what_costs_nothing_is_admitted_however_often(ledger: Ledger) -> None:
    """It is a list of public groups, and no row is read for it: a failure would tell nothing."""
    for user in ("ana", "ben"):
        charge = ledger.charge(
            user, POLICY, [ReleaseRequest("list", ())], sql=SQL, reuse=False, reading=Reading(100, proceed)
        )
        assert charge.free
        finish(ledger, charge)
