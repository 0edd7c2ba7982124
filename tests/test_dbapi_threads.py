"""Threads that share a connection, as threadsafety 2 says; cancelling and closing from another thread."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.backends import DuckDBBackend
from tests.waiting import HANG_SECONDS

THREADS = 12
SLOW = ", ".join(f"doctors AS d{number}" for number in range(6))
SLOW_PUBLIC = f"SELECT COUNT(*) FROM {SLOW} WHERE d1.doctor_id + d5.doctor_id = d3.doctor_id"
SLOW_PRIVATE = (
    "SELECT COUNT(*) FROM patients AS p JOIN (SELECT d0.doctor_id % 7 AS key, COUNT(*) AS n FROM "
    f"{SLOW} WHERE d1.doctor_id + d5.doctor_id = d3.doctor_id GROUP BY 1) AS t ON p.age % 7 = t.key"
)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def connection(clinic_policy: Path, ledger: Path) -> Iterator[dpsql.Connection]:
    with dpsql.connect(clinic_policy, user="ana", ledger=f"sqlite:///{ledger}", epsilon=0.05) as opened:
        yield opened


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the engine is about to read."""
    begun = threading.Event()

    def noted(read: Callable[..., Any]) -> Callable[..., Any]:
        def reads(self: DuckDBBackend, *arguments: Any, **named: Any) -> Any:
            begun.set()
            return read(self, *arguments, **named)

        return reads

    for method in (DuckDBBackend.fetch, DuckDBBackend.stream):
        monkeypatch.setattr(DuckDBBackend, method.__name__, noted(method))
    return begun


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What a function gives in each of several threads that begin together."""
    barrier = threading.Barrier(threads)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


def spent(ledger: Path) -> int:
    with sqlite3.connect(ledger) as database:
        (count,) = database.execute("SELECT COUNT(*) FROM charges").fetchone()
    database.close()
    return int(count)


def test_each_thread_has_the_rows_and_the_price_of_its_own_query(connection: dpsql.Connection) -> None:
    def ask(number: int) -> tuple[Any, ...]:
        with connection.cursor() as cursor:
            for _ in range(3):
                cursor.execute("SELECT %s::int AS n, COUNT(*) FROM patients WHERE age > %s", [number, 20 + number])
                (row,) = cursor.fetchall()
                assert row[0] == number
                assert cursor.release is not None
            estimate = cursor.explain("SELECT COUNT(*) FROM patients WHERE age > %s", [20 + number])
            assert cursor.execute("SELECT %s", [number]).fetchall() == [(number,)]
            return (*row, estimate.reused)

    found = at_once(ask)
    assert [row[0] for row in found] == list(range(THREADS))
    (releases,) = connection.cursor().execute("SELECT COUNT(*) FROM dpsql.releases").fetchall()
    assert releases == (THREADS,)


def test_the_same_query_of_many_threads_is_paid_once(connection: dpsql.Connection) -> None:
    answers = at_once(lambda _: connection.cursor().execute("SELECT COUNT(*) FROM patients").fetchall())
    assert len({tuple(rows) for rows in answers}) == 1
    (budget,) = connection.cursor().execute("SELECT queries FROM dpsql.budget").fetchall()
    assert budget == (1,)


def test_transactions_are_the_connections(connection: dpsql.Connection) -> None:
    """Threads end a transaction together: one of them does, and for the others there is none."""
    connection.cursor().execute("BEGIN")
    at_once(lambda number: connection.rollback() if number % 2 else connection.commit())
    assert connection.session.transaction == "I"


@pytest.mark.parametrize("sql", [SLOW_PUBLIC, SLOW_PRIVATE], ids=["public", "private"])
def test_cancel_stops_what_runs(connection: dpsql.Connection, ledger: Path, reading: threading.Event, sql: str) -> None:
    before = connection.cursor().execute("SELECT epsilon_spent FROM dpsql.budget").fetchone()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(connection.cursor().execute, sql)
        assert reading.wait(HANG_SECONDS)
        with pytest.raises(dpsql.OperationalError) as caught:
            cancel_until_it_ends(connection, running.result)
    assert caught.value.sqlstate == "57014"
    after = connection.cursor().execute("SELECT epsilon_spent FROM dpsql.budget").fetchone()
    assert (after == before) == (sql is SLOW_PUBLIC)  # what was charged stays charged
    assert connection.cursor().execute("SELECT 1").fetchone() == (1,)


def cancel_until_it_ends(connection: dpsql.Connection, result: Callable[..., Any]) -> None:
    """Cancel until there is a result, for the engine may not have begun when it is first told."""
    while True:
        connection.cancel()
        try:
            result(timeout=0.05)
        except TimeoutError:
            continue
        return


def test_a_cancelled_statement_fails_its_transaction(connection: dpsql.Connection, reading: threading.Event) -> None:
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(connection.cursor().execute, SLOW_PUBLIC)
        assert reading.wait(HANG_SECONDS)
        with pytest.raises(dpsql.OperationalError):
            cancel_until_it_ends(connection, running.result)
    with pytest.raises(dpsql.InternalError) as caught:
        cursor.execute("SELECT 1")
    assert caught.value.sqlstate == "25P02"
    connection.rollback()
    assert cursor.execute("SELECT 1").fetchone() == (1,)


def test_cancel_where_nothing_runs(connection: dpsql.Connection) -> None:
    connection.cancel()
    assert connection.cursor().execute("SELECT 1").fetchone() == (1,)


def test_close_stops_what_runs_and_refuses_what_waits(connection: dpsql.Connection, reading: threading.Event) -> None:
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(connection.cursor().execute, SLOW_PUBLIC)
        assert reading.wait(HANG_SECONDS)
        cursors = [connection.cursor() for _ in range(2)]
        waiting = [pool.submit(cursor.execute, "SELECT 1") for cursor in cursors]
        connection.close()
        with pytest.raises(dpsql.OperationalError) as caught:
            running.result()
        assert caught.value.sqlstate == "57014"
        for one in waiting:
            with pytest.raises(dpsql.InterfaceError, match="closed"):
                one.result()


def test_a_thread_does_not_wait_for_itself(connection: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a handler of a signal would, which comes while a statement of the very thread runs."""
    fetch, told = DuckDBBackend.fetch, list[Exception]()

    def interrupted(self: DuckDBBackend, *arguments: Any, **named: Any) -> Any:
        try:
            connection.cursor().execute("SELECT 1")
        except dpsql.InterfaceError as error:
            told.append(error)
        connection.close()
        return fetch(self, *arguments, **named)

    def close(self: DuckDBBackend) -> None:
        shut.append(self)
        closing(self)

    closing, shut = DuckDBBackend.close, list[DuckDBBackend]()
    monkeypatch.setattr(DuckDBBackend, "fetch", interrupted)
    monkeypatch.setattr(DuckDBBackend, "close", close)
    with pytest.raises(dpsql.OperationalError) as caught:
        connection.cursor().execute("SELECT COUNT(*) FROM patients")
    assert caught.value.sqlstate == "57014"
    assert (len(told), len(shut)) == (1, 1)
    with pytest.raises(dpsql.InterfaceError):
        connection.cursor()


class Interrupted(BaseException):
    """As KeyboardInterrupt."""


def test_an_interrupt_leaves_the_connection_usable(
    connection: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: Any, **_named: Any) -> Any:
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(DuckDBBackend, "fetch", interrupted)
        connection.cursor().execute("SELECT COUNT(*) FROM patients WHERE age > 30")
    assert connection.cursor().execute("SELECT 1").fetchone() == (1,)
    (charged,) = connection.cursor().execute("SELECT COUNT(*) FROM dpsql.releases").fetchall()
    assert charged == (1,)  # its charge stands, and it was never made
    assert connection.cursor().execute("SELECT COUNT(*) FROM patients WHERE age > 30").rowcount == 1


def test_threads_open_connections_of_their_own(clinic_policy: Path, ledger: Path) -> None:
    def ask(number: int) -> Sequence[object]:
        with dpsql.connect(clinic_policy, user="ana", ledger=f"sqlite:///{ledger}", epsilon=0.05) as opened:
            return opened.cursor().execute("SELECT COUNT(*) FROM patients WHERE age > %s", [number]).fetchall()

    for _ in range(3):
        assert len(at_once(ask, threads=4)) == 4
