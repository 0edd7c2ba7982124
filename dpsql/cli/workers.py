"""workers: a gateway of several processes, as seen by their parent: it accepts clients, and counts what they share.

Each worker serves as a gateway of its own does, over the same ledger. The parent hands each client to the worker that
has fewest, keeps places, failed logins, rates and cancel keys, and gathers the metrics.

Rule 1: the parent reads no message of a client, no ledger and no private row, and waits for no worker.
Rule 2: if one worker ends, all do, with status 1, and whoever supervises the gateway starts it again, as PostgreSQL's
    server starts all its processes anew when one has crashed: nothing that they share is ever half of a dead one's.
Rule 3: new policies are served by all workers or by none.
"""

import asyncio
import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe as make_pipe
from multiprocessing import reduction
from select import select
from typing import Any, Final

from dpsql.cli.logs import log_unhandled
from dpsql.cli.reloading import LOADED, Loading
from dpsql.cli.serving import (
    LAST_SECONDS,
    STOP_SIGNALS,
    ServeOptions,
    anchored,
    check_start,
    listening,
    serve_probes,
    show_failures,
)
from dpsql.cli.worker import CLIENT, Pipe, become_worker, serve_worker
from dpsql.errors import Error, InternalError, log_bug
from dpsql.ledger import Ledger
from dpsql.policy import Policy
from dpsql.wire.client_register import LocalRegister
from dpsql.wire.metrics import Metrics, merged
from dpsql.wire.server import LEAST_GRACE
from dpsql.wire.watchdog import Watchdog

_LOG: Final = logging.getLogger("dpsql.serve")
_HEALTH_SECONDS: Final = 4.0
"""How long a worker may take to say how it is: its own checks take half of that at most."""
_BACKLOG: Final = 100
_PAUSE_SECONDS: Final = 1.0


@dataclass(eq=False)
class _Worker:
    number: int
    calls: Pipe
    orders: Pipe
    process: int = 0
    clients: int = 0
    served: int = 0
    metrics: str = ""
    status: int | None = None
    answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    def close(self) -> None:
        """Close the ends of the pipes that are the parent's."""
        self.calls.close()
        self.orders.close()

    def tell(self, name: str, *arguments: object, number: int = 0) -> None:
        """Say what to do."""
        with suppress(OSError):  # it ends, which is met where it is read
            self.orders.send((number, name, arguments))

    def ask(self, name: str) -> asyncio.Future[Any]:
        """Say what to do; returns the answer to come, a ConnectionError if the worker ends."""
        number, answer = next(self.numbers), asyncio.get_running_loop().create_future()
        self.answers[number] = answer
        self.tell(name, number=number)
        return answer

    def take_client(self, client: socket.socket) -> None:
        """Hand over a client."""
        self.clients += 1
        self.served += 1
        with suppress(OSError):
            self.orders.send((0, CLIENT, ()))
            reduction.send_handle(self.orders, client.fileno(), self.process)


def serve_workers(policies: Sequence[Policy], open_ledger: Callable[[], Ledger], operation: ServeOptions) -> None:
    """Serve by several processes until SIGTERM or SIGINT; for a program in which no other thread runs, for it forks.

    Args:
        policies: What to serve; their dataset names differ.
        open_ledger: Opens the ledger, in each process anew.
        operation: How.

    Raises:
        InvalidPolicy: A database is not usable, or two policies have one name.
        InvalidParameter: The address cannot be listened on.
        SystemExit: A worker ended by itself, or not in time.
    """
    with closing(open_ledger()) as ledger:
        check_start(ledger, operation)
    listeners = _listeners(operation.host, operation.port)
    workers: list[_Worker] = []
    for number in range(1, operation.workers + 1):
        (calls, asked), (orders, told) = make_pipe(), make_pipe()
        workers.append(_Worker(number, calls, orders))
        workers[-1].process = os.fork()
        if not workers[-1].process:
            for listener in listeners:
                listener.close()
            for worker in workers:  # a pipe ends only where nobody else has it
                worker.close()
            become_worker(partial(_serve_one, policies, open_ledger, operation, asked, told), asked)
        asked.close()
        told.close()
    names = [policy.dataset.name for policy in policies]
    asyncio.run(_Parent(listeners, workers, names, open_ledger, operation).run())


def _serve_one(
    policies: Sequence[Policy], open_ledger: Callable[[], Ledger], operation: ServeOptions, calls: Pipe, orders: Pipe
) -> None:
    with closing(open_ledger()) as ledger:
        serve_worker(policies, ledger, operation, calls, orders)


def _listeners(host: str, port: int) -> list[socket.socket]:
    """Listen on each address of a host, all on one port."""
    listeners: list[socket.socket] = []
    with listening(host, port), ExitStack() as stack:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address[:2]) for family, *_, address in found):
            chosen = listeners[0].getsockname()[1] if listeners else port
            listener = socket.create_server((str(address[0]), chosen), family=family, backlog=_BACKLOG)
            stack.callback(listener.close)
            listener.setblocking(False)
            listeners.append(listener)
        stack.pop_all()
    return listeners


class _Parent:
    """The process that accepts clients.

    Args:
        listeners: Where they come.
        workers: Who serves them.
        databases: The names of what is served.
        open_ledger: Opens the ledger.
        operation: How to serve.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        workers: Sequence[_Worker],
        databases: Sequence[str],
        open_ledger: Callable[[], Ledger],
        operation: ServeOptions,
    ) -> None:
        self._listeners, self._workers = listeners, workers
        self._databases, self._open_ledger, self._operation = databases, open_ledger, operation
        self._metrics = Metrics()
        self._register = LocalRegister(operation.limits, operation.user_rate)
        self._register.on_cancel = self._cancel
        self._seated: dict[int, _Worker] = {}
        self._ready: set[_Worker] = set()
        self._accepting = self._stopping = self._broken = False
        self._failure: Error | None = None
        self._all_ready, self._all_ended = asyncio.Event(), asyncio.Event()
        self._told_to_stop, self._told_to_load = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Serve until told to stop, or until a worker ends."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_unhandled)
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._told_to_stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_load.set)
        for worker in self._workers:
            loop.add_reader(worker.calls.fileno(), self._answer, worker)
            loop.add_reader(worker.orders.fileno(), self._take_answer, worker)
        tasks = [loop.create_task(work) for work in (Watchdog(lambda: 0, lambda: 0).run(), self._begin())]
        async with AsyncExitStack() as stack:
            try:
                await serve_probes(stack, self._operation, self._gathered, self._failures)
                if self._operation.anchor is not None:
                    ledger = stack.enter_context(closing(self._open_ledger()))
                    stack.enter_context(anchored(self._operation.anchor, ledger))
                await self._told_to_stop.wait()
            finally:
                await self._stop()
        for task in tasks:
            task.cancel()
        if self._failure is not None:
            raise self._failure
        if self._broken or any(worker.status for worker in self._workers):
            sys.exit(1)

    async def _begin(self) -> None:
        """Accept clients once all workers are ready, and have policies loaded when that is asked for."""
        await self._all_ready.wait()
        for listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)
        self._accepting = True
        _LOG.info("workers: %s", ", ".join(f"process {worker.process}" for worker in self._workers))
        _LOG.info("listening on %s:%d", self._operation.host, self._listeners[0].getsockname()[1])
        while True:
            await self._told_to_load.wait()
            self._told_to_load.clear()
            with suppress(ConnectionError):  # a worker has ended: so does the gateway
                await self._reload()

    async def _reload(self) -> None:
        loadings = await asyncio.gather(*(worker.ask("load") for worker in self._workers))
        loading = next((loading for loading in loadings if loading.sqlstate != LOADED), Loading())
        decision = "adopt" if loading.sqlstate == LOADED else "drop"
        await asyncio.gather(*(worker.ask(decision) for worker in self._workers))
        loading.tell(self._metrics)

    async def _stop(self) -> None:
        """Let the workers end within the grace, and end those that do not."""
        self._stopping, self._accepting = True, False
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:  # a second one ends the program at once, and the workers with it
            loop.remove_signal_handler(number)
        _LOG.info("stopping")
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        for worker in self._workers:
            worker.tell("stop")
        try:
            async with asyncio.timeout(max(self._operation.grace, LEAST_GRACE) + 4 * LAST_SECONDS):
                await self._all_ended.wait()
        except TimeoutError:
            for worker in self._workers:
                if worker.status is None:
                    os.kill(worker.process, signal.SIGKILL)
            await self._all_ended.wait()
        _LOG.info("stopped")

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_BACKLOG):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # there is no room for more
                _LOG.error("no client can be accepted: %s", error.strerror)
                self._pause(listener)
                return
            with client:
                self._hand_over(client)

    def _pause(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())

        def go_on() -> None:
            if self._accepting:
                loop.add_reader(listener.fileno(), self._accept, listener)

        loop.call_later(_PAUSE_SECONDS, go_on)

    def _hand_over(self, client: socket.socket) -> None:
        """Give a client to the worker that has fewest; where that one does not read its orders, the client goes."""
        worker = min(self._workers, key=lambda worker: (worker.clients, worker.served))
        if select([], [worker.orders], [], 0)[1]:
            worker.take_client(client)

    def _answer(self, worker: _Worker) -> None:
        """Answer what a worker asks, or meet its end."""
        try:
            name, arguments = worker.calls.recv()
        except (OSError, EOFError):
            self._end(worker)
            return
        if name == "fail":  # it ends, and hears nothing
            self._failure = arguments[0]
            return
        try:
            answer = self._do(worker, name, arguments)
        except Error as error:
            answer = error
        except Exception as error:
            log_bug(error)
            answer = InternalError("the gateway failed to count this")
        with suppress(OSError):
            worker.calls.send(answer)

    def _do(self, worker: _Worker, name: str, arguments: Any) -> object:
        match name:
            case "ready":
                self._ready.add(worker)
                if len(self._ready) == len(self._workers):
                    self._all_ready.set()
            case "gone":
                worker.clients -= 1
            case "enter":
                seat = self._register.enter(*arguments)
                self._seated[seat.process_id] = worker
                return seat
            case "leave":
                self._register.leave(*arguments)
                del self._seated[arguments[0]]
            case "check" | "begin_failure" | "end_failure" | "take" | "cancel":
                return getattr(self._register, name)(*arguments)
            case _:
                raise ValueError(name)
        return None

    def _cancel(self, process_id: int) -> None:
        self._seated[process_id].tell("cancel", process_id)

    def _take_answer(self, worker: _Worker) -> None:
        try:
            number, answer = worker.orders.recv()
        except (OSError, EOFError):
            asyncio.get_running_loop().remove_reader(worker.orders.fileno())
            return
        waiting = worker.answers.pop(number, None)
        if waiting is not None and not waiting.done():  # nobody waits for ever
            waiting.set_result(answer)

    def _end(self, worker: _Worker) -> None:
        """Note that a worker has ended; if nobody told it to, all do."""
        loop = asyncio.get_running_loop()
        for pipe in (worker.calls, worker.orders):
            loop.remove_reader(pipe.fileno())
        worker.status = os.waitstatus_to_exitcode(os.waitpid(worker.process, 0)[1])
        for waiting in worker.answers.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError())
        if not self._stopping and self._failure is None:
            self._broken = True
            _LOG.error("worker process %d ended with status %d: the gateway stops", worker.process, worker.status)
        self._told_to_stop.set()
        if all(worker.status is not None for worker in self._workers):
            self._all_ended.set()

    async def _failures(self) -> frozenset[str]:
        """Name what clients need and cannot have now from one of the workers, and show it in the metrics."""
        workers = list(self._ready)
        asked = [asyncio.wait_for(worker.ask("health"), _HEALTH_SECONDS) for worker in workers]
        failing = set() if self._accepting else {"accepting clients"}
        for worker, health in zip(workers, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(health, BaseException):
                failing.add(f"worker {worker.number}")
            else:
                failing |= health[0]
                worker.metrics = health[1]
        show_failures(self._metrics, failing, self._databases)
        return frozenset(failing)

    def _gathered(self) -> str:
        return merged([self._metrics.text(), *(worker.metrics for worker in self._workers)])
