"""serving: runs the gateway until it is stopped, as one process or as one of several (`worker`)."""

import asyncio
import atexit
import ctypes
import hashlib
import ipaddress
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from dpsql.cli.logs import log_unhandled
from dpsql.cli.reloading import Reloading, load_policies, open_engines
from dpsql.compiler.sql.parse import start_trial
from dpsql.errors import Error, InvalidParameter, LedgerUnavailable, log_bug
from dpsql.ledger import Ledger, check_anchor
from dpsql.policy import Policy
from dpsql.wire.client_limits import ClientLimits, Network
from dpsql.wire.client_register import ClientRegister
from dpsql.wire.databases import MAINTENANCE, Databases
from dpsql.wire.gateway_sessions import Gateway
from dpsql.wire.metrics import Metrics
from dpsql.wire.monitor import Readiness, monitor
from dpsql.wire.rate_limit import RateLimit
from dpsql.wire.server import LEAST_GRACE, THREADS, GatewayServer
from dpsql.wire.tls import ServerTls

_LOG: Final = logging.getLogger("dpsql.serve")
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_ANCHOR_SECONDS: Final = 60.0
"""The interval at which the ledger's last record is noted."""
LAST_SECONDS: Final = 0.5
"""The time after its grace in which a process must end."""
_LOOK_SECONDS: Final = 2.0
_LEAST_LOGINS: Final = 2
_LEAST_THREADS: Final = 2
"""One more than one user may take."""
_TRIM_SECONDS: Final = 5.0
"""The interval at which freed memory is returned to the system."""


@dataclass(frozen=True)
class ServeOptions:
    """The options of a gateway.

    Attributes:
        host: The address to listen on.
        port: The port to listen on; 0 for any free port.
        tls: The TLS that clients must use; None for none.
        limits: The limits on clients.
        user_rate: The most queries per minute of one user; None for no limit.
        grace: Seconds that running statements have to end when the gateway is stopped.
        log_text: Whether the log has the text of statements.
        metrics: Address and port of /metrics, /healthz and /readyz; None for none.
        anchor: The file in which the ledger's last record is noted; None for none.
        trusted_proxies: Networks of proxies, which begin each connection with a PROXY header.
        workers: The number of processes that serve clients; they share the limits of the policies and of clients.
        log_format: "text" or "json".
    """

    host: str
    port: int
    tls: ServerTls | None = None
    limits: ClientLimits = field(default_factory=ClientLimits)
    user_rate: int | None = None
    grace: float = 10.0
    log_text: bool = False
    metrics: tuple[str, int] | None = None
    anchor: Path | None = None
    trusted_proxies: tuple[Network, ...] = ()
    workers: int = 1
    log_format: str = "text"


def serve_gateway(
    policies: Sequence[Policy],
    ledger: Ledger,
    operation: ServeOptions,
    announce: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        policies: What to serve; their dataset names differ.
        ledger: The accounts and budgets.
        operation: How.
        announce: Called with the port once the gateway listens.

    Raises:
        InvalidPolicy: A database is not usable, or two policies have one name.
        InvalidParameter: The address cannot be listened on.
    """
    check_start(ledger, operation)
    with closing(Databases(open_engines(policies, ledger))) as databases:
        service = Service(databases, ledger, operation, RateLimit(operation.user_rate), make_decoy_secret(ledger))
        asyncio.run(_run(service, [policy.path for policy in policies], announce))


def check_start(ledger: Ledger, operation: ServeOptions) -> None:
    """Check the ledger, the clock and the options at the start, not with the first query."""
    host = operation.host
    if operation.tls is None and not is_loopback(host):
        _LOG.warning("without TLS on %s: anyone on the network can read and alter answers; see --tls-cert", host)
    ledger.probe()
    if not any(account.verifier for account in ledger.accounts()):
        _LOG.warning("no user can connect: none has a password; see dpsql user add --help")


class Service:
    """The parts of a process that serves clients.

    Args:
        databases: The served databases.
        ledger: The accounts and budgets.
        operation: How to serve.
        rate_limit: How many statements a user may send.
        decoy_secret: As of GatewayServer.
        register: What clients of several processes share; None for a register of this process.

    Attributes:
        operation: How to serve.
        ledger: The accounts and budgets.
        metrics: The counters.
        server: Serves the clients.
        reloading: Loads the policies again.
    """

    def __init__(
        self,
        databases: Databases,
        ledger: Ledger,
        operation: ServeOptions,
        rate_limit: RateLimit,
        decoy_secret: bytes | None,
        register: ClientRegister | None = None,
    ) -> None:
        gateway = Gateway(databases, rate_limit, log_text=operation.log_text)
        self.operation, self.ledger, self.metrics = operation, ledger, gateway.metrics
        self.metrics.gauge("dpsql_workers", "Processes that serve clients.", lambda: 1)
        self.metrics.gauge(
            "dpsql_ledger_clock_held",
            "1 while the clock is not trusted and no budget renews.",
            lambda: ledger.clock_held,
        )
        self.server = _make_server(gateway, ledger, operation, decoy_secret, register)
        self.reloading = Reloading(databases, ledger, self.server, operation.tls)
        self._databases = databases.names
        self._readiness = Readiness({"ledger": ledger.probe} | _engine_probes(databases))

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """Prepare for clients, and run the periodic tasks while they are served."""
        asyncio.get_running_loop().set_exception_handler(log_unhandled)
        await asyncio.to_thread(start_trial)
        last, _ = self.ledger.ended_sessions(None)  # before the first session, so that none is missed
        works = (self.server.watch(), _end_sessions(self.server, self.ledger, last), _return_memory_again_and_again())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def failures(self) -> frozenset[str]:
        """Return what clients need and is not available, and show it in the metrics."""
        failing = await self._readiness.failures()
        show_failures(self.metrics, failing, self._databases)
        return failing if self.server.accepting else failing | {"accepting clients"}

    async def stop(self) -> None:
        """Let statements end within the grace; a process that takes longer exits."""
        _end_after(max(self.operation.grace, LEAST_GRACE) + LAST_SECONDS)
        await self.server.close(self.operation.grace)


async def _run(service: Service, paths: Sequence[Path], announce: Callable[[int], None]) -> None:
    operation = service.operation
    told_to_stop, told_to_load = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, told_to_stop.set)
    loop.add_signal_handler(signal.SIGHUP, told_to_load.set)
    async with AsyncExitStack() as stack:
        await serve_probes(stack, operation, service.metrics.text, service.failures)
        await stack.enter_async_context(service.prepared())
        await listen(service.server.start, operation.host, operation.port)
        announce(service.server.port)
        reloads = asyncio.create_task(_reload_when_told(told_to_load, service, paths))
        stack.callback(reloads.cancel)
        if operation.anchor is not None:
            stack.enter_context(anchored(operation.anchor, service.ledger))
        await told_to_stop.wait()
        for number in STOP_SIGNALS:  # a second one ends the program at once
            loop.remove_signal_handler(number)
        _LOG.info("stopping")
        await service.stop()
    _LOG.info("stopped")


async def serve_probes(
    stack: AsyncExitStack,
    operation: ServeOptions,
    metrics: Callable[[], str],
    failures: Callable[[], Awaitable[Set[str]]],
) -> None:
    """Serve /metrics, /healthz and /readyz until the stack ends, if the operator wants them."""
    if operation.metrics is not None:
        probes = monitor(metrics, failures, *operation.metrics)
        await listen(probes.start, *operation.metrics)
        _LOG.info("metrics on http://%s:%d/metrics", probes.host, probes.port)
        stack.push_async_callback(probes.close)


@contextmanager
def anchored(anchor: Path, ledger: Ledger) -> Iterator[None]:
    """Note the ledger's last record at intervals, and once more at the end."""
    anchoring = asyncio.create_task(_anchor_again_and_again(anchor, ledger))
    try:
        yield
    finally:
        anchoring.cancel()
        _anchor(anchor, ledger)


def show_failures(metrics: Metrics, failing: Set[str], databases: Collection[str]) -> None:
    """Show in the metrics what fails."""
    metrics.ledger_up.set("ledger" not in failing)
    for name in databases:
        metrics.engine_up.labels(name).set(_engine_name(name) not in failing)
        metrics.engine_failures.labels(name)  # begins at 0: Prometheus sees no increase if 1 is the first value


def _end_after(seconds: float) -> None:
    """End the program after a time, even if threads still run. Charges are durable."""

    def end() -> None:
        _LOG.error("a statement did not end in time; the process exits without it")
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()

    def dismiss() -> None:
        timer.cancel()
        timer.join()  # a thread that runs when the interpreter ends keeps its objects alive

    # Called when the threads of statements have ended; the timer is for these.
    atexit.register(dismiss)


def _make_server(
    gateway: Gateway,
    ledger: Ledger,
    operation: ServeOptions,
    decoy_secret: bytes | None,
    register: ClientRegister | None,
) -> GatewayServer:
    workers, limits = operation.workers, operation.limits

    def lookup(user: str) -> str | None:
        account = ledger.account(user)
        return account.verifier if account is not None else None

    return GatewayServer(
        lookup=lookup,
        open_session=gateway.session,
        databases=gateway.databases.names | {MAINTENANCE},
        host=operation.host,
        port=operation.port,
        tls=operation.tls,
        require_tls=operation.tls is not None,
        limits=replace(limits, logins=max(_LEAST_LOGINS, limits.logins // workers)),
        register=register,
        threads=max(_LEAST_THREADS, THREADS // workers),
        metrics=gateway.metrics,
        trusted_proxies=operation.trusted_proxies,
        decoy_secret=decoy_secret,
    )


async def listen(start: Callable[[], Awaitable[None]], host: str, port: int) -> None:
    """Start a server.

    Raises:
        InvalidParameter: The address cannot be listened on.
    """
    with listening(host, port):
        await start()


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Raise InvalidParameter if the address cannot be listened on."""
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error).rpartition(": ")[2]
        raise InvalidParameter(
            f"cannot listen on {host}:{port}: {reason}", hint="--port N chooses another port, --port 0 any free port."
        ) from None


def _engine_probes(databases: Databases) -> dict[str, Callable[[], None]]:
    return {_engine_name(name): partial(databases.probe, name) for name in databases.names}


def _engine_name(database: str) -> str:
    return f"database {database}"


async def _end_sessions(server: GatewayServer, ledger: Ledger, last: int) -> None:
    """End the sessions of users who were removed or disconnected, or whose password was changed."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            last, users = await asyncio.to_thread(ledger.ended_sessions, last)
            server.end_sessions(users)
        except LedgerUnavailable:  # failing queries report it; the records are read at the next attempt
            continue
        except Exception as error:
            log_bug(error)


async def _return_memory_again_and_again() -> None:
    """Return freed memory to the system, which glibc keeps per thread; other C libraries have no call for it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_TRIM_SECONDS)
        await asyncio.to_thread(trim, 0)


async def _anchor_again_and_again(anchor: Path, ledger: Ledger) -> None:
    while True:
        await asyncio.sleep(_ANCHOR_SECONDS)
        await asyncio.to_thread(_anchor, anchor, ledger)


def _anchor(anchor: Path, ledger: Ledger) -> None:
    """Note the last record, unless the ledger has lost the one noted before; then the anchor is the evidence."""
    try:
        check_anchor(anchor, ledger, make=False)
    except (Error, OSError) as error:
        _LOG.error("the anchor is unchanged: %s", error)


async def _reload_when_told(told: asyncio.Event, service: Service, paths: Sequence[Path]) -> None:
    while True:
        await told.wait()
        told.clear()
        loading = await asyncio.to_thread(service.reloading.load, partial(load_policies, paths))
        if loading.succeeded:
            await asyncio.to_thread(service.reloading.adopt)
        loading.tell(service.metrics)


def make_decoy_secret(ledger: Ledger) -> bytes | None:
    """The secret for salts of unknown users: equal after every start, and known only to the ledger's owner."""
    first = next(iter(ledger.export()), None)
    return hashlib.sha256(f"decoy {first['hash']}".encode()).digest() if first is not None else None


def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address, which other machines cannot reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
