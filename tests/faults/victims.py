"""Gateways that are killed: whenever it pleases a test, or at a point of their own."""

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import psycopg

import dpsql.gateway.reading
from dpsql.backends import DuckDBBackend
from dpsql.cli import main
from dpsql.cli.reloading import Reloading
from dpsql.cli.worker import work
from dpsql.errors import BackendFailure
from dpsql.gateway.session import Session
from dpsql.ledger import SqliteLedger
from dpsql.ledger.postgres_connection import PostgresConnection
from dpsql.wire.connection import ClientConnection
from tests.faults.calls import DURABLE, WRITING, kill_at
from tests.faults.forks import Fork
from tests.faults.reads import Notes, noting
from tests.faults.world import PASSWORD, new_ledger

Change = Callable[..., object]

GATHERING = 2
"""Seconds for which reads wait for each other."""

_ANSWERED = b"SELECT 1"
"""In the bytes of an answer, behind its row."""


def serve(policy: str, ledger: str) -> None:
    """Be `dpsql serve`, with a ledger in a file or at a URL."""
    main(["serve", policy, "--port", "0", "--ledger", ledger if "://" in ledger else f"sqlite:///{ledger}"])


def begin_ledger(path: str) -> None:
    """Begin a ledger and die, so that its log is still beside it."""
    new_ledger(Path(path))
    die()


def serve_and_die(policy: str, ledger: str, notes: str, point: str) -> None:
    """Be `dpsql serve`, and die at a point of the first query."""
    note_reads(notes)
    POINTS[point]()
    serve(policy, ledger)


def note_reads(notes: str) -> None:
    """Let this process note in a file what it is about to read of private rows."""
    DuckDBBackend.fetch = noting(DuckDBBackend.fetch, Notes(Path(notes)).add)  # type: ignore[method-assign]


def serve_and_fail(policy: str, ledger: str, number: int) -> None:
    """Be `dpsql serve` with an engine that fails on private rows."""
    fail_together(number)
    serve(policy, ledger)


def fail_together(number: int) -> None:
    """Let reads of private rows fail in this process, when so many are under way or none has come for a while."""
    together = threading.Barrier(number)

    def fetch(function: Callable[..., Any], backend: Any, releases: Any, *arguments: Any, **options: Any) -> Any:
        if not releases:
            return function(backend, releases, *arguments, **options)
        with suppress(threading.BrokenBarrierError):
            together.wait(GATHERING)
        raise BackendFailure

    _change(DuckDBBackend, "fetch", fetch)


def serve_and_hang(policy: str, ledger: str) -> None:
    """Be `dpsql serve` with an engine that reads private rows for ever, and say so whenever it begins to."""
    hang()
    serve(policy, ledger)


def work_and_hang(calls: int, orders: int) -> None:
    """Be a worker of `dpsql serve` with such an engine."""
    hang()
    work(calls, orders)


def work_and_adopt_nothing(calls: int, orders: int) -> None:
    """Be a worker of `dpsql serve` that never serves the policies that it has loaded again."""
    _change(Reloading, "adopt", lambda function, *arguments: threading.Event().wait())
    work(calls, orders)


def hang() -> None:
    """Let reads of private rows last for ever in this process, and say so whenever one begins."""

    def fetch(function: Callable[..., Any], backend: Any, *arguments: Any, **options: Any) -> None:
        sys.stdout.write("reading\n")  # in one piece: print() writes the end of a line by itself, and two may mingle
        sys.stdout.flush()
        threading.Event().wait()

    _change(DuckDBBackend, "fetch", fetch)


def port_of(gateway: Fork) -> int:
    """Return where a gateway listens, once it does."""
    return int(gateway.line_with("listening on").rpartition(":")[2])


def connect(gateway: Fork | int, user: str = "ana") -> "psycopg.Connection[tuple[Any, ...]]":
    """Return a client's connection to a gateway, or to a port."""
    port = gateway if isinstance(gateway, int) else port_of(gateway)
    return psycopg.connect(f"postgresql://{user}:{PASSWORD}@127.0.0.1:{port}/clinic", autocommit=True)


def die(*_: object) -> None:
    """End as by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str) -> None:
    _change(owner, name, lambda function, *arguments, **options: die())


def _after(owner: Any, name: str) -> None:
    _change(owner, name, lambda function, *arguments, **options: die(function(*arguments, **options)))


def _change(owner: Any, name: str, change: Change) -> None:
    function = getattr(owner, name)
    setattr(owner, name, wraps(function)(lambda *arguments, **options: change(function, *arguments, **options)))


def act_at_commit(kind: str, act: Callable[[], object]) -> None:
    """Act when SQLite or PostgreSQL is told to commit a record of a kind."""

    def connect(function: Callable[..., sqlite3.Connection], *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = function(*arguments, **options)
        written: list[str] = []

        def trace(statement: str) -> None:
            if statement.startswith("INSERT INTO records") and f"'{kind}'" in statement:
                written.append(kind)
            elif statement == "COMMIT" and written:
                act()

        connection.set_trace_callback(trace)
        return connection

    _change(sqlite3, "connect", connect)
    inserted: list[str] = []

    def execute(function: Callable[..., Any], store: Any, sql: str, values: Any = ()) -> Any:
        if sql.startswith("INSERT INTO records") and kind in values:
            inserted.append(kind)
        return function(store, sql, values)

    def commit(function: Callable[..., Any], store: Any) -> None:
        if inserted:
            act()
        function(store)

    _change(PostgresConnection, "execute", execute)
    _change(PostgresConnection, "commit", commit)


def _in_the_reply() -> None:
    """Die when half of the bytes of an answer are sent."""

    async def write(function: Callable[..., Any], connection: ClientConnection, data: bytes) -> None:
        if _ANSWERED not in data:
            await function(connection, data)
            return
        await function(connection, data[: len(data) // 2])
        die()

    _change(ClientConnection, "write", write)


def _after_the_reply() -> None:
    """Die when the bytes of an answer are sent."""

    async def write(function: Callable[..., Any], connection: ClientConnection, data: bytes) -> None:
        await function(connection, data)
        if _ANSWERED in data:
            die()

    _change(ClientConnection, "write", write)


POINTS: dict[str, Callable[[], None]] = {
    "before the charge": partial(_before, SqliteLedger, "charge"),
    "the charge is to be committed": partial(act_at_commit, "charge", die),
    "the charge is to be written": partial(act_at_commit, "charge", partial(kill_at, *WRITING)),
    "the charge is to be synced": partial(act_at_commit, "charge", partial(kill_at, *DURABLE)),
    "charged": partial(_after, SqliteLedger, "charge"),
    "before the read": partial(_before, DuckDBBackend, "fetch"),
    "read": partial(_after, DuckDBBackend, "fetch"),
    "released": partial(_after, dpsql.gateway.reading, "release"),
    "the release is to be stored": partial(act_at_commit, "release.stored", die),
    "stored": partial(_after, SqliteLedger, "store"),
    "answered": partial(_after, Session, "execute"),
    "in the reply": _in_the_reply,
    "after the reply": _after_the_reply,
}
"""Where a gateway may die, in the order in which a query gets there."""
