"""Canceling: ask what takes for ever only where the target is, see whether it does, and call it off.

Time is outside of the guarantee: the attacker learns that bit. It has been paid for like an answer, so such bits are
as few as answers are, whatever calls the question off: a cancel, the time limit, or a connection that is lost.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
import pytest

from dpsql.backends import duckdb as duckdb_module
from dpsql.gateway.session import Session
from tests.attacks.arena import EPSILON, Arena, Comparison, Verdict, asking
from tests.attacks.naive import Ask, Refused, Rows
from tests.wire.conftest import RunningServer

QUESTION = (
    "SELECT COUNT(*) FROM visits AS a JOIN visits AS b ON a.person = b.person "
    "JOIN visits AS c ON a.person = c.person JOIN visits AS d ON a.person = d.person WHERE a.cost + d.cost > {number}"
)
TIMES = 4
TERMS = {"query": EPSILON}
LIMIT = 0.3
"""Seconds that an engine query may take, where the time limit is to call it off."""

IsReading = Callable[[], bool]


@dataclass(frozen=True)
class Client:
    """One who asks, can call off what was asked, and sees when it is under way: `watch` is called before."""

    ask: Ask
    watch: Callable[[], IsReading]
    cancel: Callable[[], None]


def called_off(client: Client) -> int:
    """How many questions were called off while private rows were read, until there was no budget for more."""
    for number in range(TIMES):
        done = threading.Event()
        caller = threading.Thread(target=_call_off, args=(client, client.watch(), done))
        caller.start()
        try:
            client.ask(QUESTION.format(number=number))
        except Refused as refused:
            if "budget" in str(refused):
                return number
        finally:
            done.set()
            caller.join()
    return TIMES


def _call_off(client: Client, is_reading: IsReading, done: threading.Event) -> None:
    while not done.wait(0.02):
        if is_reading():
            client.cancel()


def onlooker(arena: Arena, user: str) -> Callable[[], IsReading]:
    """What another session of the user sees: a charge, before the first private row is read."""
    look = asking(Session(arena.engine(True, **TERMS), user))

    def watch() -> IsReading:
        before = look("SELECT epsilon_spent FROM dpsql.budget")
        return lambda: look("SELECT epsilon_spent FROM dpsql.budget") != before

    return watch


@contextmanager
def cancel(arena: Arena) -> Iterator[Client]:
    """Call off by a cancel."""
    session = arena.session(True, **TERMS)
    yield Client(asking(session), onlooker(arena, session.user), session.cancel)


@contextmanager
def time_limit(arena: Arena) -> Iterator[Client]:
    """Wait until the gateway itself calls it off."""
    session = arena.session(True, **TERMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duckdb_module, "STATEMENT_SECONDS", LIMIT)
        yield Client(asking(session), onlooker(arena, session.user), lambda: None)


@contextmanager
def lost_connection(arena: Arena) -> Iterator[Client]:
    """Break the connection, and come back by another one."""
    user, engine = arena.session(True, **TERMS).user, arena.engine(True, **TERMS)
    server = RunningServer(open_session=lambda *_: Session(engine, user))
    connections: list[psycopg.Connection] = []

    def ask(sql: str) -> Rows:
        try:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connections.append(connection)
                return connection.execute(sql.encode()).fetchall()
        except psycopg.Error as error:
            raise Refused(str(error)) from None

    def lose() -> None:
        # It may be lost already.
        with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connections[-1].fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)

    try:
        yield Client(ask, onlooker(arena, user), lose)
    finally:
        server.close()


WAYS = {"cancels": cancel, "time-outs": time_limit, "lost connections": lost_connection}


def compare(arena: Arena) -> Comparison:
    gateway = arena.naive(True, queries=1)
    naive = called_off(Client(gateway.ask, lambda: lambda: gateway.running is not None, gateway.cancel))
    dpsql = {}
    for name, way in WAYS.items():
        with way(arena) as client:
            dpsql[name] = called_off(client)
    told = ", ".join(f"{times} {name}" for name, times in dpsql.items())
    return Comparison(
        "canceling, time-outs",
        Verdict(f"{naive} of {TIMES} cancels for the price of 1", naive > 1),
        Verdict(f"{told} of {TIMES} for the price of 1", max(dpsql.values()) > 1),
    )


def test_canceling(arena: Arena) -> None:
    compare(arena).check()
