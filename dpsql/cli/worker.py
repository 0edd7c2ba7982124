"""worker: one of several processes that serve the clients of one gateway. Their parent accepts clients (`workers`).

A worker calls its parent and waits for the answer, which comes from memory at once. The parent sends orders, and waits
for nothing: what a worker has to answer to an order is a call of its own.

Rule: a worker whose parent is gone ends at once, for nobody counts its clients any more; what was charged is durable.
"""

import asyncio
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

from dpsql.cli.logs import log_to_stderr
from dpsql.cli.reloading import open_engines
from dpsql.cli.serving import STOP_SIGNALS, ServeOptions, Service
from dpsql.errors import AuthenticationFailed, Error, log_bug
from dpsql.ledger import open_ledger
from dpsql.limits.result_memory import divide_room
from dpsql.policy import Policy
from dpsql.wire.client_register import ClientRegister, FailedGuess, Seat
from dpsql.wire.databases import Databases
from dpsql.wire.rate_limit import RateLimit

_ORDER_BYTES: Final = 4096


@dataclass(frozen=True)
class WorkerStart:
    """The start message to a worker; it is no argument or variable, because other users could see these.

    Attributes:
        policies: The policies to serve.
        ledger: The ledger's URL.
        operation: How to serve.
        decoy_secret: Equal for all workers, so that unknown users have the same salts at each.
    """

    policies: Sequence[Policy]
    ledger: str = field(repr=False)
    operation: ServeOptions
    decoy_secret: bytes = field(repr=False)


class Parent(ClientRegister):
    """The calls of a worker to its parent, from any thread.

    Args:
        calls: The connection to the parent.
    """

    def __init__(self, calls: "Connection[Any, Any]") -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self.on_cancel = lambda process_id: None

    def call(self, name: str, *arguments: object) -> Any:
        """Return the parent's answer, or raise it if it is an error."""
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

    def judge(self, user: str, address: str, verify: Callable[[], bytes]) -> bytes | FailedGuess:
        """Return the result of `verify` in the parent, or the failure."""
        judged: bytes | FailedGuess = self.call("judge", user, address, verify)
        return judged

    def cancel(self, process_id: int, secret_key: bytes, address: str) -> FailedGuess | None:
        """Cancel the statement of a client of any worker."""
        failed: FailedGuess | None = self.call("cancel", process_id, secret_key, address)
        return failed

    def fail(self, user: str, address: str, error: AuthenticationFailed) -> FailedGuess:
        """Count a failure."""
        failed: FailedGuess = self.call("fail", user, address, error)
        return failed

    def end_failure(self, user: str, address: str) -> None:
        """Count the end of a failed login's delay."""
        self.call("end_failure", user, address)

    def enter(self, user: str) -> Seat:
        """Give a place to a client that has logged in."""
        seat: Seat = self.call("enter", user)
        return seat

    def leave(self, process_id: int) -> None:
        """Take back a client's place."""
        self.call("leave", process_id)


class _SharedRateLimit(RateLimit):
    """The rate limit of all workers, which the parent counts."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent

    def take(self, user: str) -> None:
        self._parent.call("take", user)


def end_at_once() -> NoReturn:
    """End without the parent."""
    os._exit(1)


def work(calls: int, orders: int) -> None:
    """Serve the clients that the parent hands over until it says to stop; a program of its own.

    Args:
        calls: The descriptor of the socket by which the parent is called.
        orders: That of the socket by which it sends orders.
    """
    for number in (*STOP_SIGNALS, signal.SIGHUP):
        # Ctrl-C and supervisors may signal all processes of a gateway; workers wait for the parent's order.
        signal.signal(number, lambda *_: None)
    parent = Parent(Connection(calls))
    start: WorkerStart = parent.call("begin")
    log_to_stderr(start.operation.log_format)
    divide_room(start.operation.workers)
    try:
        with (
            closing(open_ledger(start.ledger, make=False)) as ledger,
            closing(Databases(open_engines(start.policies, ledger))) as databases,
        ):
            rate = start.operation.user_rate
            rate_limit = RateLimit(None) if rate is None else _SharedRateLimit(parent)
            service = Service(databases, ledger, start.operation, rate_limit, start.decoy_secret, parent)
            asyncio.run(_Worker(service, parent, socket.socket(fileno=orders)).run())
    except Exception as error:
        if isinstance(error, Error):
            parent.call("failed", error)
        else:
            log_bug(error)
        sys.exit(1)


class _Worker:
    def __init__(self, service: Service, parent: Parent, orders: socket.socket) -> None:
        self._service, self._parent, self._orders = service, parent, orders
        self._told_to_stop = asyncio.Event()
        self._reloading = asyncio.Lock()  # a loading that the parent waits for no more is dropped once it has ended
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        async with self._service.prepared():
            asyncio.get_running_loop().add_reader(self._orders.fileno(), self._read_order)
            self._service.server.open()
            self._parent.call("ready")
            await self._told_to_stop.wait()
            await self._service.stop()

    def _read_order(self) -> None:
        data, descriptors, *_ = socket.recv_fds(self._orders, _ORDER_BYTES, 1)
        if not data:
            end_at_once()
        number, name, arguments = pickle.loads(data)  # noqa: S301  # of the parent
        task = asyncio.get_running_loop().create_task(self._obey(number, name, arguments, descriptors))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _obey(self, number: int, name: str, arguments: tuple[Any, ...], descriptors: Sequence[int]) -> None:
        service: Service = self._service
        answer: object = None
        match name:
            case "client":
                await self._serve(descriptors)
            case "cancel":
                self._parent.on_cancel(*arguments)
            case "stop":
                self._told_to_stop.set()
            case "health":
                answer = await service.failures(), service.metrics.text()
            case "load":
                answer = await self._reload(partial(service.reloading.load, self._policies))
            case "adopt":
                await self._reload(service.reloading.adopt)
            case "drop":
                await self._reload(service.reloading.drop)
        if number:
            self._parent.call("answer", number, answer)

    async def _reload(self, step: Callable[[], object]) -> object:
        """Take one step of a reload, after the earlier ones."""
        async with self._reloading:
            return await asyncio.to_thread(step)

    async def _serve(self, descriptors: Sequence[int]) -> None:
        """Serve a client until it leaves; `descriptors` is empty if this process can open no more files."""
        try:
            for descriptor in descriptors:
                await self._service.server.serve(socket.socket(fileno=descriptor))
        finally:
            self._parent.call("gone")

    def _policies(self) -> Sequence[Policy]:
        policies: Sequence[Policy] = self._parent.call("policies")
        return policies
