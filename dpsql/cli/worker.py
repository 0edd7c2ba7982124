"""worker: one of several processes that serve the clients of one gateway; their parent accepts them (`workers`).

Rule: a worker whose parent is gone ends at once, for nobody counts its clients any more; what was charged is durable.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn, TypeAlias

from dpsql.cli.serving import STOP_SIGNALS, ServeOptions, Service, with_databases
from dpsql.errors import Error, log_bug
from dpsql.ledger import Ledger
from dpsql.policy import Policy
from dpsql.wire.client_register import ClientRegister, Seat
from dpsql.wire.databases import Databases

Pipe: TypeAlias = "Connection[Any, Any]"

CLIENT: Final = "client"
"""The order that a client's socket follows."""


class Parent(ClientRegister):
    """What a worker asks of its parent, from any thread; the parent answers at once, and asks nothing back meanwhile.

    Args:
        calls: To the parent and back.
    """

    def __init__(self, calls: Pipe) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self.on_cancel = lambda process_id: None

    def call(self, name: str, *arguments: object) -> Any:
        """Return what the parent answers, or raise the error."""
        try:
            with self._lock:
                self._calls.send((name, arguments))
                answer = self._calls.recv()
        except (OSError, EOFError):
            end_at_once()
        if isinstance(answer, Error):
            raise answer
        return answer

    def check(self, user: str, address: str) -> None:
        """Let a client try a password."""
        self.call("check", user, address)

    def begin_failure(self, user: str, address: str) -> float:
        """Count a failure."""
        return float(self.call("begin_failure", user, address))

    def end_failure(self, user: str, address: str) -> None:
        """Count a failure among those that wait no more."""
        self.call("end_failure", user, address)

    def enter(self, user: str) -> Seat:
        """Give a client that is logged in a place."""
        seat: Seat = self.call("enter", user)
        return seat

    def leave(self, process_id: int) -> None:
        """Take the place back."""
        self.call("leave", process_id)

    def take(self, user: str) -> None:
        """Count a statement of a user."""
        self.call("take", user)

    def cancel(self, process_id: int, secret_key: bytes, address: str) -> str | None:
        """Cancel what a client of any worker runs."""
        user: str | None = self.call("cancel", process_id, secret_key, address)
        return user


def end_at_once() -> NoReturn:
    """End without the parent."""
    os._exit(1)


def serve_worker(
    policies: Sequence[Policy], ledger: Ledger, operation: ServeOptions, calls: Pipe, orders: Pipe
) -> None:
    """Serve the clients that the parent hands over until it says to stop, or SIGTERM does.

    Args:
        policies: What to serve.
        ledger: The accounts and budgets.
        operation: How.
        calls: Where the parent is asked.
        orders: Where the parent says what to do.

    Raises:
        InvalidPolicy: A database is not usable.
    """
    parent = Parent(calls)

    async def run(databases: Databases) -> None:
        await _Worker(Service(databases, policies, ledger, operation, parent), parent, orders).run()

    with_databases(policies, ledger, operation, run)


class _Worker:
    def __init__(self, service: Service, parent: Parent, orders: Pipe) -> None:
        self._service = service
        self._parent = parent
        self._orders = orders
        self._told_to_stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            # A terminal sends Ctrl-C to the workers too: their parent tells them.
            loop.add_signal_handler(number, self._told_to_stop.set if number == signal.SIGTERM else lambda: None)
        async with self._service.tended():
            loop.add_reader(self._orders.fileno(), self._read_order)
            self._service.server.open()
            self._parent.call("ready")
            await self._told_to_stop.wait()
            await self._service.stop()
            loop.remove_reader(self._orders.fileno())

    def _read_order(self) -> None:
        try:
            number, name, arguments = self._orders.recv()
        except (OSError, EOFError):
            end_at_once()
        work = self._serve_client(self._receive()) if name == CLIENT else self._obey(number, name, arguments)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _receive(self) -> socket.socket | None:
        """The socket that comes with an order; None where this process has no room for it."""
        try:
            client = socket.socket(fileno=reduction.recv_handle(self._orders))
        except (OSError, RuntimeError) as error:
            log_bug(error)
            return None
        client.setblocking(False)
        return client

    async def _serve_client(self, client: socket.socket | None) -> None:
        try:
            if client is not None:
                await self._service.server.serve(client)
        finally:
            self._parent.call("gone")

    async def _obey(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        reloading = self._service.reloading
        answer: object = None
        match name:
            case "stop":
                self._told_to_stop.set()
            case "cancel":
                self._parent.on_cancel(*arguments)
            case "health":
                answer = await self._service.failures(), self._service.metrics.text()
            case "load":
                answer = await asyncio.to_thread(reloading.load)
            case "adopt":
                await asyncio.to_thread(reloading.adopt)
            case "drop":
                await asyncio.to_thread(reloading.drop)
        self._orders.send((number, answer))


def become_worker(serve: Callable[[], None], calls: Pipe) -> NoReturn:
    """Serve in a process that was just forked, and end with it; the parent is told why it could not."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent says when policies are loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = 1
    try:
        serve()
        status = 0
    except Error as error:
        with suppress(OSError):
            calls.send(("fail", (error,)))
    except BaseException as error:
        if isinstance(error, Exception):
            log_bug(error)
    finally:
        os._exit(status)
