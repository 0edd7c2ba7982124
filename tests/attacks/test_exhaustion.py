"""Exhaustion: queries without end, a statement of 100 MB, thousands of connections."""

import multiprocessing
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.synchronize import Barrier

import psycopg

from dpsql.wire.client_limits import ClientLimits
from tests.attacks.arena import Arena, Comparison, Verdict, asking
from tests.attacks.naive import Ask, Refused
from tests.attacks.test_login import STARTUP, naive_server
from tests.waiting import wait_for
from tests.wire.conftest import RunningServer

ENDLESS = (
    "SELECT a.n + 100000 * b.n AS k, COUNT(*) FROM people, generate_series(1, 100000) AS a (n), "
    "generate_series(1, 100000) AS b (n) GROUP BY 1",
    "SELECT n, COUNT(*) FROM people, generate_series(1, 10000000000) AS t (n) GROUP BY n",
    "SELECT COUNT(*) FROM people AS a, people AS b, people AS c, people AS d WHERE a.age + b.age + c.age + d.age > 0",
    "WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT COUNT(*) FROM t",
    "SELECT COUNT(*) FROM generate_series(1, 100000) AS a, generate_series(1, 100000) AS b (n), people WHERE age > n",
)
LARGE = 100_000_000
MANY, PROCESSES = 10_000, 4
SECONDS = 300
"""Longer than all processes take together."""
LOGINS = ClientLimits().logins // 2
"""So many places there are for those of one address."""
MOST = 10_000_000
"""So many bytes the kernel may have taken before anybody looks at them."""


def endless(ask: Ask, cancel: Callable[[], None]) -> int:
    """How many queries go on until they are called off."""
    done = threading.Event()

    def call_off() -> None:
        while not done.wait(1):
            cancel()

    caller = threading.Thread(target=call_off)
    caller.start()
    try:
        return sum("cancel" in told(ask, sql) for sql in ENDLESS)
    finally:
        done.set()
        caller.join()


def told(ask: Ask, sql: str) -> str:
    try:
        return f"{len(ask(sql))} rows"
    except Refused as refused:
        return str(refused).replace("INTERRUPT", "cancel")


def swallowed(port: int) -> int:
    """How many bytes of one statement are read, before a login."""
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(STARTUP)
        client.recv(65536)
        client.sendall(b"Q" + (LARGE + 4).to_bytes(4, "big"))
        sent = 0
        with suppress(ConnectionError):
            while sent < LARGE:
                sent += client.send(bytes(1 << 16))
        return sent


def kept(port: int, clients: int, at_once: Callable[[], object] = lambda: None) -> int:
    """How many connections are held for one who never logs in, of those that are open when `at_once` returns."""
    with ExitStack() as held:
        opened = [held.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(clients)]
        greeted = [client for client in opened if is_greeted(client)]
        at_once()
        return sum(map(is_waited_for, greeted))


def is_greeted(client: socket.socket) -> bool:
    """Whether the client is asked for its password."""
    with suppress(ConnectionError):
        client.sendall(STARTUP)
        return client.recv(65536).startswith(b"R")
    return False


def is_waited_for(client: socket.socket) -> bool:
    """Whether the client, who was asked, has not been sent away since."""
    client.setblocking(False)
    with suppress(ConnectionError):
        try:
            client.recv(1)
        except BlockingIOError:
            return True
    return False


def kept_of_many(port: int, clients: int) -> int:
    """The same, from several processes: one may not have so many sockets, and the gateway has its own."""
    fresh = multiprocessing.get_context("spawn")
    arguments = (fresh.Barrier(PROCESSES),)
    with ProcessPoolExecutor(PROCESSES, mp_context=fresh, initializer=_share, initargs=arguments) as pool:
        parts = [pool.submit(_kept_together, port, clients // PROCESSES) for _ in range(PROCESSES)]
        return sum(part.result() for part in parts)


_shared: list[Barrier] = []


def _share(barrier: Barrier) -> None:
    _shared.append(barrier)


def _kept_together(port: int, clients: int) -> int:
    return kept(port, clients, partial(_shared[0].wait, SECONDS))


def is_served(dsn: str) -> bool:
    try:
        with psycopg.connect(dsn) as client:
            return client.execute("select 1").fetchall() == [(1,)]
    except psycopg.OperationalError:
        return False


def verdict(unended: int, port: int, clients: int) -> Verdict:
    read, held = swallowed(port), (kept_of_many if clients >= MANY else kept)(port, clients)
    text = f"{unended} of {len(ENDLESS)} queries run on, {read / 1e6:.0f} MB read, {held} of {clients} clients kept"
    return Verdict(text, unended > 0 or read > MOST or held > LOGINS)


def compare(arena: Arena) -> Comparison:
    clients = MANY if arena.thorough else 4 * LOGINS
    gateway, session = arena.naive(True), arena.session(True, epsilon=900)
    with naive_server() as port:
        naive = verdict(endless(gateway.ask, gateway.cancel), port, 4 * LOGINS)
    server = RunningServer()
    try:
        dpsql = verdict(endless(asking(session), session.cancel), server.port, clients)
        wait_for(lambda: is_served(server.dsn))
    finally:
        server.close()
    return Comparison("exhaustion", naive, dpsql)


def test_exhaustion(arena: Arena) -> None:
    compare(arena).check()
