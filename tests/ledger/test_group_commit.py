"""Writes of many threads share a commit; whatever happens to one of them, nobody is told what is not on the disk."""

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dpsql.errors import BudgetExhausted, InvalidParameter, LedgerUnavailable, PolicyViolation
from dpsql.ledger import Charge, SqliteLedger
from dpsql.ledger.derived_tables import project
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.transaction import GroupCommit, LedgerClock, Transaction
from tests.ledger.world import ANY, ROOT, SQL, Place, charge_only, laplace, new_ledger, opened, policy, request, tamper
from tests.waiting import HANG_SECONDS

POLICY = policy()
Outcome = Charge | BaseException


def asks(ledger: Ledger, key: object, price: Fraction = Fraction(1, 10), user: str = "ana") -> Callable[[], Charge]:
    return lambda: charge_only(ledger, user, POLICY, [request(key, laplace(price))], sql=SQL)


def waits(ledger: Ledger, number: int) -> None:
    """Return when so many writes wait."""
    while sum(not work.over for work in list(ledger._commits._queue)) < number:
        time.sleep(0.001)


def outcome(future: Future[Charge]) -> Outcome:
    error = future.exception(timeout=HANG_SECONDS)
    return future.result() if error is None else error


def together(ledger: Ledger, *acts: Callable[[], Charge]) -> list[Outcome]:
    """Return what acts come to that wait for the ledger at once, in their order."""
    with ThreadPoolExecutor(len(acts)) as pool:
        futures = []
        with ledger._commits._lock:
            for number, act in enumerate(acts, 1):
                futures.append(pool.submit(act))
                waits(ledger, number)
        ledger._commits._wake_next()
        return [outcome(future) for future in futures]


@contextmanager
def commits(ledger: Ledger) -> Iterator[list[str]]:
    """Collect the commits that are made meanwhile."""
    seen: list[str] = []
    writer = ledger._storage.writer
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(writer, sqlite3.Connection):
            writer.set_trace_callback(lambda text: seen.append(text) if text == "COMMIT" else None)
        else:
            commit = writer.commit

            def counted() -> None:
                seen.append("COMMIT")
                commit()

            patch.setattr(writer, "commit", counted)
        yield seen
    if isinstance(writer, sqlite3.Connection):
        writer.set_trace_callback(None)


@contextmanager
def no_commits(ledger: Ledger, place: Place) -> Iterator[None]:
    """Let every statement succeed but the commit."""

    def authorize(action: int, name: str | None, *rest: str | None) -> int:
        denied = action == sqlite3.SQLITE_TRANSACTION and name == "COMMIT"
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    writer = ledger._storage.writer
    if isinstance(writer, sqlite3.Connection):
        writer.set_authorizer(authorize)
        yield
        writer.set_authorizer(None)
        return
    tamper(
        place,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no'; END$$",
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON records DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    yield
    tamper(place, "DROP TRIGGER refuse ON records", "DROP FUNCTION refuse()")


def recorded(ledger: Ledger) -> list[str]:
    """Return the keys of the releases that were charged, in their order."""
    return [
        release["key"]
        for record in ledger.export()
        if record["kind"] == "charge"
        for release in record["body"]["releases"]
    ]


def test_writes_that_wait_together_share_one_commit_in_their_order(ledger: Ledger) -> None:
    with commits(ledger) as seen:
        outcomes = together(ledger, *(asks(ledger, key, Fraction(1, 100)) for key in range(32)))
    assert len(seen) == 1
    assert [charge.id for charge in outcomes if isinstance(charge, Charge)] == sorted(
        record["seq"] for record in ledger.export() if record["kind"] == "charge"
    )
    assert recorded(ledger) == [str(key) for key in range(32)]
    assert ledger.verify().ok


def test_a_commit_is_bounded_and_the_rest_follows(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.ledger.transaction.LARGEST_BATCH", 4)
    with commits(ledger) as seen:
        outcomes = together(ledger, *(asks(ledger, key, Fraction(1, 100)) for key in range(10)))
    assert len(seen) == 3
    assert all(isinstance(each, Charge) for each in outcomes)
    assert recorded(ledger) == [str(key) for key in range(10)]


def test_a_refusal_within_a_commit_is_undone_alone(ledger: Ledger) -> None:
    outcomes = together(
        ledger,
        asks(ledger, "a", user="ben"),
        asks(ledger, "b", Fraction(2)),  # its budget is made before it is refused
        asks(ledger, "c", user="nobody"),
        asks(ledger, "d"),
        lambda: ledger.store(77, b""),  # type: ignore[arg-type, return-value]
        asks(ledger, "e"),
    )
    kinds = [type(each) for each in outcomes]
    assert kinds == [Charge, BudgetExhausted, PolicyViolation, Charge, InvalidParameter, Charge]
    assert recorded(ledger) == ["a", "d", "e"]
    assert ledger.budget("ana", POLICY).spent.pure_epsilon == Fraction(1, 5)
    assert ledger.verify().ok


def test_nothing_is_remembered_of_a_write_that_was_interrupted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    asks(ledger, "a")()

    def interrupted(*arguments: Any) -> None:
        project(*arguments)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("dpsql.ledger.transaction.project", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asks(ledger, "b")()
    assert asks(ledger, "b")().spent.pure_epsilon == Fraction(1, 5)
    assert ledger.verify().ok


def test_a_write_that_breaks_off_in_the_middle_is_undone_alone(ledger: Ledger) -> None:
    def broken(transaction: Transaction) -> Charge:
        transaction.append("account.frozen", {"name": "ana"})
        raise ZeroDivisionError

    outcomes = together(ledger, asks(ledger, "a"), lambda: ledger._grouped(broken), asks(ledger, "b"))
    assert [type(each) for each in outcomes] == [Charge, ZeroDivisionError, Charge]
    account = ledger.account("ana")
    assert account is not None
    assert not account.frozen
    assert ledger.verify().ok


def test_budgets_see_what_waits_in_the_same_commit(ledger: Ledger) -> None:
    outcomes = together(ledger, *(asks(ledger, key) for key in range(12)))
    assert [type(each) for each in outcomes] == [Charge] * 10 + [BudgetExhausted] * 2


def test_where_the_commit_fails_everybody_fails_refusals_too(ledger: Ledger, place: Place) -> None:
    before = list(ledger.export())
    with no_commits(ledger, place):
        outcomes = together(ledger, asks(ledger, "a", Fraction(1)), asks(ledger, "b"), asks(ledger, "c"))
    assert [type(each) for each in outcomes] == [LedgerUnavailable] * 3
    assert len({id(each) for each in outcomes}) == 3  # each thread raises its own
    assert list(ledger.export()) == before
    assert charge_only(ledger, "ana", POLICY, [request("b")], sql=SQL)  # "a" was not charged


def test_a_write_in_which_the_transaction_ended_fails_all_of_them(sqlite_ledger: SqliteLedger) -> None:
    """SQLite ends it itself where it cannot undo a statement."""
    ledger = sqlite_ledger

    def ends(transaction: Transaction) -> Charge:
        transaction.connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("the disk is full")

    before = list(ledger.export())
    outcomes = together(ledger, asks(ledger, "a"), lambda: ledger._grouped(ends), asks(ledger, "b"))
    assert ["the disk is full" in str(each) for each in outcomes] == [True] * 3
    assert list(ledger.export()) == before


def test_each_thread_raises_an_error_of_its_own(ledger: Ledger) -> None:
    clock, ledger._clock = ledger._clock, LedgerClock(lambda: 1 / 0, ANY)  # type: ignore[arg-type, return-value]
    outcomes = together(ledger, asks(ledger, "a"), asks(ledger, "b"))
    ledger._clock = clock
    assert [type(each) for each in outcomes] == [ZeroDivisionError] * 2
    assert outcomes[0] is not outcomes[1]


FULL_DISK = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.ledger.test_group_commit import asks, outcome, waits
from tests.ledger.world import Clock
from dpsql.ledger import SqliteLedger
ledger = SqliteLedger(Path(sys.argv[1]), clock=Clock())
asks(ledger, "first")()
size = Path(sys.argv[1] + "-wal").stat().st_size
with ThreadPoolExecutor(8) as pool:
    with ledger._writing():
        futures = [pool.submit(asks(ledger, key)) for key in range(8)]
        waits(ledger, 8)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
print({type(outcome(future)).__name__ for future in futures}, end="")
"""


def test_a_disk_that_is_full_at_the_commit_grants_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    new_ledger(path).close()
    child = subprocess.run(
        [sys.executable, "-c", FULL_DISK, path], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert (child.stdout, child.stderr) == ("{'LedgerUnavailable'}", "")
    with closing(SqliteLedger(path)) as ledger:
        assert recorded(ledger) == ["first"]
        assert ledger.verify().ok


def test_a_file_that_may_not_grow_grants_nothing_of_the_commit_in_which_it_ends(sqlite_ledger: SqliteLedger) -> None:
    ledger = sqlite_ledger
    pages = ledger._storage.writer.execute("PRAGMA page_count").fetchone()[0]
    ledger._storage.writer.execute(f"PRAGMA max_page_count = {pages + 1}")
    acts = [lambda key=key: charge_only(ledger, "ana", POLICY, [], sql=f"{key}" * 3000) for key in range(1, 9)]
    outcomes = together(ledger, *acts)
    granted = sum(isinstance(each, Charge) for each in outcomes)
    assert {type(each) for each in outcomes if not isinstance(each, Charge)} == {LedgerUnavailable}
    assert sum(record["kind"] == "reuse" for record in ledger.export()) == granted
    assert ledger.verify().ok


class Alarm(BaseException):
    """Stands for KeyboardInterrupt: raised in the main thread, wherever it is."""


@pytest.fixture
def alarms() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_code is ring.__code__:
            return  # it rang while it rang
        if Path(frame.f_code.co_filename).parent.name == "ledger":
            raise Alarm
        signal.setitimer(signal.ITIMER_REAL, 1e-4)  # soon, but not in a destructor, which would swallow it

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def behind(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Future[Any]]]]:
    """Return a function that lets other threads wait with writes; the next write of this thread leads them."""
    monkeypatch.setattr("dpsql.ledger.transaction.PATIENCE", 600)
    with ThreadPoolExecutor(8) as pool:

        def wait(*acts: Callable[[], Any]) -> list[Future[Any]]:
            futures = []
            with ledger._commits._lock:
                for number, act in enumerate(acts, 1):
                    futures.append(pool.submit(act))
                    waits(ledger, number)
            return futures

        yield wait


def rings_in_main(transaction: Transaction) -> str:
    transaction.append("failure", {"user": "ben", "keys": []})
    if threading.current_thread() is threading.main_thread():
        signal.raise_signal(signal.SIGALRM)
    return "done"


@pytest.mark.usefixtures("alarms")
def test_an_interrupted_leader_leaves_the_lead_to_the_next(
    ledger: Ledger, behind: Callable[..., list[Future[Charge]]]
) -> None:
    futures = behind(*(asks(ledger, key) for key in range(3)))
    with pytest.raises(Alarm):
        ledger._grouped(rings_in_main)
    assert [type(outcome(future)) for future in futures] == [Charge] * 3
    assert recorded(ledger) == ["0", "1", "2"]
    assert ledger.verify().ok


@pytest.mark.usefixtures("alarms")
def test_a_leader_interrupted_in_the_write_of_another_does_it_no_harm(
    ledger: Ledger, behind: Callable[..., list[Future[Any]]]
) -> None:
    futures = behind(asks(ledger, "a"), lambda: ledger._grouped(rings_in_main), asks(ledger, "b"))
    with pytest.raises(Alarm):
        asks(ledger, "mine")()
    charged, done, last = (outcome(future) for future in futures)
    assert [type(charged), type(last)] == [Charge, Charge]
    assert str(done) == "done"
    assert recorded(ledger) == ["a", "b"]  # nobody waits for the leader's own any more
    assert sum(record["kind"] == "failure" for record in ledger.export()) == 1


@pytest.mark.usefixtures("alarms")
def test_a_leader_interrupted_after_the_commit_tells_nobody_that_it_failed_or_held(
    ledger: Ledger, behind: Callable[..., list[Future[Charge]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsql.ledger.transaction.PATIENCE", 0.01)
    futures = behind(asks(ledger, "a"))
    commit = GroupCommit._commit

    def rings(self: GroupCommit, batch: list[Any]) -> None:
        commit(self, batch)
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(GroupCommit, "_commit", rings)
    with pytest.raises(Alarm):
        asks(ledger, "mine")()
    told = outcome(futures[0])
    assert isinstance(told, LedgerUnavailable)
    assert "the write may be in the ledger" in told.message
    assert recorded(ledger) == ["a", "mine"]  # once each: a charge that nobody was told of stands
    assert ledger.verify().ok


@pytest.mark.usefixtures("alarms")
def test_a_thread_interrupted_while_it_waits_takes_its_write_back(ledger: Ledger) -> None:
    def ring() -> None:
        with ledger._writing():
            holding.set()
            waits(ledger, 1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            assert gone.wait(HANG_SECONDS)

    holding, gone = threading.Event(), threading.Event()
    other = threading.Thread(target=ring)
    other.start()
    assert holding.wait(HANG_SECONDS)
    with pytest.raises(Alarm):
        asks(ledger, "mine")()
    gone.set()
    other.join()
    asks(ledger, "a")()
    assert recorded(ledger) == ["a"]


@pytest.mark.usefixtures("alarms")
def test_interrupts_at_any_moment_lose_nothing_and_leave_nobody_waiting(ledger: Ledger) -> None:
    """The main thread charges and is interrupted again and again, while others charge."""
    ended = threading.Event()
    told: list[int] = []
    doubted: list[str] = []

    def charge_until_the_end(name: int) -> None:
        number = 0
        while not ended.is_set():
            try:
                told.append(asks(ledger, f"{name}-{number}", Fraction(1, 10**6))().id or 0)
            except LedgerUnavailable as error:  # the main thread was interrupted while it led the commit
                doubted.append(error.message)
            number += 1

    threads = [threading.Thread(target=charge_until_the_end, args=(name,)) for name in range(4)]
    # They inherit the mask: the signal reaches the main thread alone, so none is on its way once the timer is off.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    for thread in threads:
        thread.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    moments = random.Random(7)
    interrupts = 0
    try:
        for number in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-6, 2e-3))
                told.append(asks(ledger, f"main-{number}", Fraction(1, 10**6))().id or 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Alarm:
                interrupts += 1
    finally:
        ended.set()
        for thread in threads:
            thread.join(HANG_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert interrupts > 0
    charges = {record["seq"] for record in ledger.export() if record["kind"] == "charge"}
    assert len(told) == len(set(told))
    assert set(told) <= charges
    assert len(charges) - len(told) <= interrupts + len(doubted)  # these may stand, another may not be there twice
    assert all("the write may be in the ledger" in message for message in doubted)
    assert ledger.verify().ok


def test_a_transaction_that_an_interrupted_leader_left_open_is_not_committed(ledger: Ledger) -> None:
    for write in (asks(ledger, "a"), lambda: ledger.add_account("eve", "analyst")):
        ledger._storage.begin()
        ledger._storage.writer.execute("DELETE FROM accounts WHERE name = 'ben'")
        write()
    assert {account.name for account in ledger.accounts()} == {"ana", "ben", "eve"}
    assert ledger.verify().ok


class Told:
    """A lock that tells when somebody has seen it locked, and so waits to be woken."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.seen = threading.Event()

    def locked(self) -> bool:
        if locked := self._lock.locked():
            self.seen.set()
        return locked

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_who_waits_is_woken_when_the_owner_has_written(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.ledger.transaction.PATIENCE", 600)
    lock = Told(ledger._commits._lock)
    monkeypatch.setattr(ledger._commits, "_lock", lock)
    with ThreadPoolExecutor(1) as pool:
        with ledger._writing():
            future = pool.submit(asks(ledger, "a"))
            assert lock.seen.wait(HANG_SECONDS)
        assert isinstance(outcome(future), Charge)


def test_a_wake_up_that_was_lost_only_costs_patience(ledger: Ledger) -> None:
    with ThreadPoolExecutor(1) as pool:
        with ledger._commits._lock:
            future = pool.submit(asks(ledger, "a"))
            waits(ledger, 1)
        assert isinstance(outcome(future), Charge)


class Unseen:
    """A lock that looks free until it is asked for."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def locked(self) -> bool:
        return False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_who_comes_to_lead_when_all_is_written_leads_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Unseen(ledger._commits._lock)
    monkeypatch.setattr(ledger._commits, "_lock", lock)
    with commits(ledger) as seen, ThreadPoolExecutor(2) as pool:
        with lock:
            futures = [pool.submit(asks(ledger, key)) for key in "ab"]
            waits(ledger, 2)
        assert [type(outcome(future)) for future in futures] == [Charge] * 2
    assert len(seen) == 1


def test_what_waits_when_the_ledger_is_closed_is_told_so(ledger: Ledger) -> None:
    with ThreadPoolExecutor(3) as pool:
        with ledger._commits._lock:
            futures = []
            for key in range(3):
                futures.append(pool.submit(asks(ledger, key)))
                waits(ledger, key + 1)
            ledger._storage.writer.close()
        told = [outcome(future) for future in futures]
    assert [type(each) for each in told] == [LedgerUnavailable] * 3
    assert all("is closed" in str(each) for each in told)


def test_closing_waits_for_the_commit_under_way(ledger: Ledger, place: Place) -> None:
    with ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(asks(ledger, key, Fraction(1, 100))) for key in range(8)]
        pool.submit(ledger.close).result()
        told = [outcome(future) for future in futures]
    with closing(opened(place)) as again:
        assert sorted(recorded(again)) == sorted(str(key) for key, each in enumerate(told) if isinstance(each, Charge))
    assert {type(each) for each in told} <= {Charge, LedgerUnavailable}


def test_reading_waits_for_no_commit(ledger: Ledger) -> None:
    with ledger._writing() as transaction:
        transaction.append("account.frozen", {"name": "ana"})
        account = ledger.account("ana")
        assert account is not None
        assert not account.frozen  # nor does it see what is not on the disk


CHILD = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.ledger.test_group_commit import asks
from dpsql.errors import BudgetExhausted
from dpsql.ledger import SqliteLedger
from tests.ledger.world import Clock
ledger = SqliteLedger(Path(sys.argv[1]), clock=Clock())
def ask(number):
    try:
        asks(ledger, sys.argv[2] + str(number))()
    except BudgetExhausted:
        return 0
    return 1
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(16) as pool:
    print(sum(pool.map(ask, range(16))))
"""


def test_processes_with_threads_cannot_overspend(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    new_ledger(path).close()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, path, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        granted = [child.communicate("\n", timeout=HANG_SECONDS)[0] for child in children]
    finally:
        for child in children:
            with child:
                child.kill()
    assert sum(map(int, granted)) == 10
    with closing(SqliteLedger(path)) as ledger:
        assert len(recorded(ledger)) == 10
        assert ledger.verify().ok
