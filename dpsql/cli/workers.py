"""workers: the parent process of a gateway with several workers.

Each worker serves clients as a gateway of one process does; for the ledger it is a gateway of its own. The parent
accepts clients and hands each to the worker with the fewest. It keeps the register of clients and the rates of their
statements, adds up the metrics, and replaces a worker that has ended.

Rule 1: of the bytes of clients, the parent sees only proofs of passwords. It reads no private row, and never blocks on
    a worker.
Rule 2: when a worker ends, its entries in the register end.
Rule 3: new policies are read once, and served by all workers or by none.
"""

import asyncio
import itertools
import logging
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from dpsql.cli.logs import log_unhandled
from dpsql.cli.reloading import Loading, load_policies
from dpsql.cli.serving import (
    LAST_SECONDS,
    STOP_SIGNALS,
    ServeOptions,
    anchored,
    check_start,
    listening,
    make_decoy_secret,
    serve_probes,
    show_failures,
)
from dpsql.cli.worker import WorkerStart
from dpsql.errors import Error, InternalError, log_bug
from dpsql.ledger import Ledger
from dpsql.policy import Policy
from dpsql.wire.client_register import FailedGuess, LocalRegister
from dpsql.wire.metrics import Metrics, add_up, counters
from dpsql.wire.rate_limit import RateLimit
from dpsql.wire.server import LEAST_GRACE
from dpsql.wire.watchdog import Watchdog

_LOG: Final = logging.getLogger("dpsql.serve")
_HEALTH_SECONDS: Final = 4.0
"""The time in which a worker must report its health; its own checks take at most half of it."""
_LOAD_SECONDS: Final = 1800.0
"""The time in which a worker must open the databases of new policies."""
_ADOPT_SECONDS: Final = 10.0
"""The time in which a worker must adopt them."""
_PAUSE_SECONDS: Final = 2.0
"""The pause before a worker that did not become ready is replaced."""
_ENDING_SECONDS: Final = 2.0
"""The time after its grace in which a worker must end; then it is killed."""
_CODE: Final = "from dpsql.cli.worker import work; work({}, {})"


def serve_workers(policies: Sequence[Policy], ledger: Ledger, url: str, operation: ServeOptions) -> None:
    """Serve by several processes until SIGTERM or SIGINT.

    Args:
        policies: The policies to serve, with different dataset names.
        ledger: The accounts and budgets.
        url: The ledger's URL.
        operation: The options.

    Raises:
        InvalidPolicy: A database is not usable, or two policies have one name.
        InvalidParameter: The address cannot be listened on.
        SystemExit: A worker could not be started, or did not end in time.
    """
    check_start(ledger, operation)
    start = WorkerStart(policies, url, operation, make_decoy_secret(ledger) or secrets.token_bytes(32))
    asyncio.run(_Parent(start, ledger).run())


@dataclass(eq=False)
class _Worker:
    """One worker process, and its entries in the register.

    Attributes:
        number: The number of the worker.
        process: The process.
        calls: The connection for its calls.
        orders: The socket that carries the parent's orders.
        ready: Whether it serves clients.
        ended: Set when it has ended.
        clients: The number of its clients.
        served: The number of clients that it was given so far.
        waiting: Its failed logins whose answers are delayed, by user and address.
        seats: Process ids of its clients that are logged in.
        metrics: Its metrics at the last health check.
        answers: The answers that it owes, by number.
    """

    number: int
    process: "subprocess.Popen[bytes]"
    calls: "Connection[Any, Any]"
    orders: socket.socket
    ready: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    clients: int = 0
    served: int = 0
    waiting: Counter[tuple[str, str]] = field(default_factory=Counter)
    seats: set[int] = field(default_factory=set)
    metrics: str = ""
    answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    @classmethod
    def start(cls, number: int) -> "_Worker":
        """Start a worker. Its arguments and environment are told only which sockets to use."""
        calls, called = socket.socketpair()
        orders, ordered = socket.socketpair(type=socket.SOCK_SEQPACKET)
        orders.setblocking(False)
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        with called, ordered:
            descriptors = called.fileno(), ordered.fileno()
            process = subprocess.Popen(  # noqa: S603  # this interpreter, on code of ours
                [sys.executable, "-P", "-c", _CODE.format(*descriptors)],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
                pass_fds=descriptors,
            )
        return cls(number, process, Connection(calls.detach()), orders)

    def tell(self, name: str, *arguments: object, number: int = 0) -> bool:
        """Send an order; returns False if the worker has ended or does not read its orders."""
        return self._send((number, name, arguments), ())

    def take_client(self, client: socket.socket) -> None:
        """Hand over a client; if that fails, the client is disconnected."""
        if self._send((0, "client", ()), (client.fileno(),)):
            self.clients += 1
            self.served += 1

    def _send(self, order: object, descriptors: Sequence[int]) -> bool:
        try:
            socket.send_fds(self.orders, [pickle.dumps(order)], descriptors)
        except OSError:
            return False
        return True

    async def ask(self, name: str) -> Any:
        """Send an order, and return the answer.

        Raises:
            ConnectionError: The worker has ended.
        """
        number, answer = next(self.numbers), asyncio.get_running_loop().create_future()
        self.answers[number] = answer
        if not self.tell(name, number=number):
            raise ConnectionError
        return await answer

    def close(self) -> int:
        """Close the connections to a worker that has ended; returns its status."""
        self.calls.close()
        self.orders.close()
        for answer in self.answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError())
        return self.process.wait()


class _Door(asyncio.Protocol):
    """Hands an accepted client to a worker before a byte is read."""

    def __init__(self, hand_over: Callable[[socket.socket], None]) -> None:
        self._hand_over = hand_over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._hand_over(transport.get_extra_info("socket"))
        transport.abort()  # this process's descriptor of it


class _Parent:
    """The process that accepts clients.

    Args:
        start: What workers are told when they begin.
        ledger: The accounts and budgets.
    """

    def __init__(self, start: WorkerStart, ledger: Ledger) -> None:
        self._paths = [policy.path for policy in start.policies]
        self._databases = [policy.dataset.name for policy in start.policies]
        self._start = replace(start, policies=self._divided(start.policies, start.operation.workers))
        self._loaded: Sequence[Policy] = ()
        self._operation, self._ledger = start.operation, ledger
        self._register = LocalRegister(start.operation.limits)
        self._register.on_cancel = self._cancel
        self._rate_limit = RateLimit(start.operation.user_rate)
        self._metrics, self._past = Metrics(), ""
        self._workers: dict[int, _Worker] = {}
        self._failure: Error | None = None
        self._broken = self._accepting = False
        self._all_ready, self._told_to_stop = asyncio.Event(), asyncio.Event()
        self._told_to_load = asyncio.Event()
        self._metrics.gauge(
            "dpsql_accepting", "1 while new clients are accepted.", lambda: int(self._accepting and bool(self._ready))
        )

    @property
    def _ready(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.ready and not worker.ended.is_set()]

    @staticmethod
    def _divided(policies: Sequence[Policy], workers: int) -> list[Policy]:
        """The policies for one worker, with its share of the engines' limits."""
        return [replace(policy, dataset=replace(policy.dataset, processes=workers)) for policy in policies]

    async def run(self) -> None:
        """Serve until told to stop."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_unhandled)
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._told_to_stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_load.set)
        async with AsyncExitStack() as stack:
            watch = asyncio.create_task(Watchdog(lambda: 0, lambda: 0).run())
            stack.callback(watch.cancel)
            await serve_probes(stack, self._operation, self._metrics_text, self._failures)
            with listening(self._operation.host, self._operation.port):
                server = await loop.create_server(
                    partial(_Door, self._hand_over), self._operation.host, self._operation.port, start_serving=False
                )
            stack.callback(server.close)
            if self._operation.anchor is not None:
                stack.enter_context(anchored(self._operation.anchor, self._ledger))
            keepers = [asyncio.create_task(self._keep(number + 1)) for number in range(self._operation.workers)]
            serving = asyncio.create_task(self._serve(server))
            await self._told_to_stop.wait()
            for number in STOP_SIGNALS:  # a second one ends the program at once, and the workers with it
                loop.remove_signal_handler(number)
            serving.cancel()
            self._accepting = False
            server.close()
            _LOG.info("stopping")
            await self._end(keepers)
        if self._failure is not None:
            raise self._failure
        if self._broken:
            sys.exit(1)
        _LOG.info("stopped")

    async def _serve(self, server: asyncio.Server) -> None:
        """Accept clients once all workers are ready, and load the policies when that is asked for."""
        await self._all_ready.wait()
        try:
            with listening(self._operation.host, self._operation.port):
                await server.start_serving()
        except Error as error:
            self._failure = error
            self._told_to_stop.set()
            return
        self._accepting = True
        _LOG.info("listening on %s:%d", self._operation.host, server.sockets[0].getsockname()[1])
        while True:
            await self._told_to_load.wait()
            self._told_to_load.clear()
            (await self._reload()).tell(self._metrics)

    async def _keep(self, number: int) -> None:
        """Run one worker, and replace it when it ends, until the gateway stops."""
        loop = asyncio.get_running_loop()
        while not self._told_to_stop.is_set():
            worker = self._workers[number] = _Worker.start(number)
            loop.add_reader(worker.calls.fileno(), self._answer, worker)
            await worker.ended.wait()
            status = self._forget(worker)
            if self._told_to_stop.is_set():
                self._broken = self._broken or (worker.ready and status != 0)
            elif not self._accepting:
                self._broken = True
                self._told_to_stop.set()
            else:
                self._metrics.worker_failures.inc()
                message = "worker %d, process %d, ended with status %d: another one is started"
                _LOG.error(message, number, worker.process.pid, status)
                if not worker.ready:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._told_to_stop.wait(), _PAUSE_SECONDS)

    async def _end(self, keepers: Sequence["asyncio.Task[None]"]) -> None:
        """Let the workers end within the grace, and kill those that do not."""
        for worker in self._workers.values():
            if not (worker.ready and worker.tell("stop")):
                worker.process.kill()
        grace = max(self._operation.grace, LEAST_GRACE) + LAST_SECONDS
        await asyncio.wait(keepers, timeout=grace + _ENDING_SECONDS)
        for worker in self._workers.values():
            worker.process.kill()
        await asyncio.gather(*keepers)

    def _hand_over(self, client: socket.socket) -> None:
        """Hand a client to the worker with the fewest clients."""
        if self._ready:
            min(self._ready, key=lambda worker: (worker.clients, worker.served)).take_client(client)

    def _answer(self, worker: _Worker) -> None:
        """Answer one call of a worker, or note that it has ended."""
        try:
            name, arguments = worker.calls.recv()
        except (OSError, EOFError):
            asyncio.get_running_loop().remove_reader(worker.calls.fileno())
            worker.ended.set()
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
            case "begin":
                return self._start
            case "policies":
                return self._loaded
            case "ready":
                worker.ready = True
                if len(self._ready) == self._operation.workers:
                    self._all_ready.set()
            case "failed":
                self._note_failure(worker, *arguments)
            case "gone":
                worker.clients -= 1
            case "answer":
                number, answer = arguments
                waiting = worker.answers.pop(number)
                if not waiting.done():  # nobody waits for ever
                    waiting.set_result(answer)
            case "take":
                self._rate_limit.take(*arguments)
            case "check" | "judge" | "cancel" | "fail" | "end_failure" | "enter" | "leave":
                return self._register_call(worker, name, arguments)
            case _:
                raise ValueError(name)
        return None

    def _register_call(self, worker: _Worker, name: str, arguments: Any) -> object:
        """Have the register do what a worker asks, and note what the worker then holds of it."""
        answer = getattr(self._register, name)(*arguments)
        if isinstance(answer, FailedGuess):
            worker.waiting[answer.user, answer.address] += 1
        match name:
            case "end_failure":
                worker.waiting -= Counter([arguments])
            case "enter":
                worker.seats.add(answer.process_id)
            case "leave":
                worker.seats.remove(*arguments)
        return answer

    def _cancel(self, process_id: int) -> None:
        for worker in self._workers.values():
            if process_id in worker.seats:
                worker.tell("cancel", process_id)

    def _note_failure(self, worker: _Worker, error: Error) -> None:
        if self._accepting:
            _LOG.error("worker %d cannot serve: %s", worker.number, error.message)
        else:
            self._failure = self._failure or error

    def _forget(self, worker: _Worker) -> int:
        """Remove an ended worker's entries from the register, and keep its counters; returns its status."""
        del self._workers[worker.number]
        for user, address in worker.waiting.elements():
            self._register.end_failure(user, address)
        for process_id in worker.seats:
            self._register.leave(process_id)
        self._past = add_up([self._past, counters(worker.metrics)])
        return worker.close()

    async def _reload(self) -> Loading:
        """Have all workers load the policies, and serve them if all could."""
        try:
            policies = await asyncio.to_thread(load_policies, self._paths)
        except Exception as error:
            return Loading.failed(error)
        self._loaded = self._divided(policies, self._operation.workers)
        workers = self._ready
        loadings = map(_loading, await _ask_all(workers, "load", _LOAD_SECONDS))
        loading = next((each for each in loadings if not each.succeeded), Loading())
        if not loading.succeeded:
            for worker in workers:
                worker.tell("drop")
            return loading
        self._start = replace(self._start, policies=self._loaded)
        answers = dict(zip(workers, await _ask_all(workers, "adopt", _ADOPT_SECONDS), strict=True))
        for worker in self._workers.values():
            # A worker that is new or has not answered may serve the old policies; it is replaced.
            if worker not in answers or isinstance(answers[worker], BaseException):
                worker.process.kill()
        return loading

    async def _failures(self) -> frozenset[str]:
        """Return what is not available at some worker, and show it in the metrics."""
        workers = self._ready
        failing = set() if self._accepting and workers else {"accepting clients"}
        for worker, health in zip(workers, await _ask_all(workers, "health", _HEALTH_SECONDS), strict=True):
            if isinstance(health, BaseException):
                failing.add(f"worker {worker.number}")
            else:
                failing |= health[0]
                worker.metrics = health[1]
        show_failures(self._metrics, failing, self._databases)
        return frozenset(failing)

    def _metrics_text(self) -> str:
        return add_up([self._metrics.text(), self._past, *(worker.metrics for worker in self._workers.values())])


def _loading(answer: object) -> Loading:
    """The result of a worker's reload, from its answer or the error."""
    if isinstance(answer, TimeoutError):
        return Loading("57P03", f"a worker took more than {_LOAD_SECONDS:g} seconds to load them")
    return answer if isinstance(answer, Loading) else Loading("57P03", "a worker ended while it loaded them")


async def _ask_all(workers: Sequence[_Worker], name: str, seconds: float) -> list[Any]:
    """Return each worker's answer or error; TimeoutError after `seconds`."""
    asked = [asyncio.wait_for(worker.ask(name), seconds) for worker in workers]
    return await asyncio.gather(*asked, return_exceptions=True)
