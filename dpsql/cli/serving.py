"""serving: the gateway, until it is told to stop.

Rule: policies are loaded again all together; a mistake in one leaves all as they were.
"""

import asyncio
import atexit
import ctypes
import hashlib
import ipaddress
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from dpsql.backends import open_backend
from dpsql.cli.logs import log_unhandled
from dpsql.compiler.sql.parse import start_trial
from dpsql.errors import Error, InvalidParameter, InvalidPolicy, LedgerUnavailable, log_bug
from dpsql.gateway.engine import Engine
from dpsql.ledger import Ledger, check_anchor
from dpsql.policy import Policy, load_policy
from dpsql.wire.client_limits import ClientLimits, Network
from dpsql.wire.databases import MAINTENANCE, Databases
from dpsql.wire.gateway_sessions import Gateway
from dpsql.wire.metrics import Metrics
from dpsql.wire.monitor import Readiness, monitor
from dpsql.wire.rate_limit import RateLimit
from dpsql.wire.server import LEAST_GRACE, GatewayServer
from dpsql.wire.tls import ServerTls

_LOG: Final = logging.getLogger("dpsql.serve")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_ANCHOR_SECONDS: Final = 60.0
"""How often the ledger's last record is noted."""
_LAST_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 2.0
_TRIM_SECONDS: Final = 5.0
"""How often freed memory is given back to the system."""


@dataclass(frozen=True)
class ServeOptions:
    """How the operator wants a gateway run.

    Attributes:
        host: The address to listen on.
        port: The port to listen on; 0 for any that is free.
        tls: The TLS that clients must use; None for none.
        limits: What clients may take.
        user_rate: Queries a minute of one user; None for no limit.
        grace: Seconds in which the gateway ends when it is stopped, with the statements that run.
        log_text: The log has the text of statements.
        metrics: Address and port of /metrics, /healthz and /readyz; None for none.
        anchor: Where the ledger's last record is noted; None for nowhere.
        trusted_proxies: Networks of proxies, which begin each connection with a PROXY header.
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
    host = operation.host
    if operation.tls is None and not is_loopback(host):
        _LOG.warning("without TLS on %s: anyone on the network can read and alter answers; see --tls-cert", host)
    ledger.probe()  # what is wrong with the ledger or the clock is told now, not with the first query
    if not any(account.verifier for account in ledger.accounts()):
        _LOG.warning("no user can connect: none has a password; see dpsql user add --help")
    databases = Databases(_open_engines(policies, ledger))
    try:
        asyncio.run(_run(databases, [policy.path for policy in policies], ledger, operation, announce))
    finally:
        databases.close()


def _open_engines(policies: Sequence[Policy], ledger: Ledger) -> dict[str, Engine]:
    """Open all the databases, or none."""
    engines: dict[str, Engine] = {}
    with ExitStack() as stack:
        for policy in policies:
            name = policy.dataset.name
            if name in engines:
                raise InvalidPolicy(f'{policy.path}: dataset.name: "{name}" is served already', hint="Rename one.")
            engines[name] = Engine(policy, ledger, open_backend(policy))
            stack.callback(engines[name].close)
        stack.pop_all()
    return engines


async def _run(
    databases: Databases,
    paths: Sequence[Path],
    ledger: Ledger,
    operation: ServeOptions,
    announce: Callable[[int], None],
) -> None:
    gateway = Gateway(databases, RateLimit(operation.user_rate), log_text=operation.log_text)
    server = _make_server(gateway, ledger, operation)
    gateway.metrics.gauge(
        "dpsql_ledger_clock_held", "1 while the clock is not trusted and no budget renews.", lambda: ledger.clock_held
    )
    told_to_stop, told_to_load = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_unhandled)
    for number in _SIGNALS:
        loop.add_signal_handler(number, told_to_stop.set)
    loop.add_signal_handler(signal.SIGHUP, told_to_load.set)
    async with AsyncExitStack() as stack:
        if operation.metrics is not None:
            readiness = Readiness({"ledger": ledger.probe} | _engine_probes(databases))
            probe = partial(_failures, server, readiness, gateway.metrics, databases.names)
            probes = monitor(gateway.metrics, probe, *operation.metrics)
            await listen(probes.start, *operation.metrics)
            _LOG.info("metrics on http://%s:%d/metrics", probes.host, probes.port)
            stack.push_async_callback(probes.close)
        await asyncio.to_thread(start_trial)
        last, _ = ledger.ended_sessions(None)  # before there is a session that could be missed
        await listen(server.start, operation.host, operation.port)
        announce(server.port)
        load = partial(_reload, databases, paths, ledger, server, operation.tls)
        reloads = asyncio.create_task(_reload_when_told(told_to_load, load, gateway.metrics))
        stack.callback(reloads.cancel)
        watch = asyncio.create_task(server.watch())
        stack.callback(watch.cancel)
        if operation.anchor is not None:
            stack.callback(_anchor, operation.anchor, ledger)  # what was charged until the end is noted as well
            anchoring = asyncio.create_task(_anchor_again_and_again(operation.anchor, ledger))
            stack.callback(anchoring.cancel)
        endings = asyncio.create_task(_end_sessions(server, ledger, last))
        stack.callback(endings.cancel)
        trimming = asyncio.create_task(_return_memory_again_and_again())
        stack.callback(trimming.cancel)
        await told_to_stop.wait()
        for number in _SIGNALS:  # a second one ends the program at once
            loop.remove_signal_handler(number)
        _LOG.info("stopping")
        _end_after(max(operation.grace, LEAST_GRACE) + _LAST_SECONDS)
        await server.close(operation.grace)
    _LOG.info("stopped")


def _end_after(seconds: float) -> None:
    """End the program whatever still runs: who waits for it would kill it. What was charged is durable."""

    def end() -> None:
        _LOG.error("a worker did not end in time; the gateway exits without it")
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()

    def dismiss() -> None:
        timer.cancel()
        timer.join()  # a thread that runs when the interpreter ends keeps alive what it refers to

    # Called once the threads of workers have ended, for which the alarm is set.
    atexit.register(dismiss)


def _make_server(gateway: Gateway, ledger: Ledger, operation: ServeOptions) -> GatewayServer:
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
        limits=operation.limits,
        metrics=gateway.metrics,
        trusted_proxies=operation.trusted_proxies,
        decoy_secret=_decoy_secret(ledger),
    )


async def listen(start: Callable[[], Awaitable[None]], host: str, port: int) -> None:
    """Start a server.

    Raises:
        InvalidParameter: The address cannot be listened on.
    """
    try:
        await start()
    except OSError as error:
        reason = str(error.strerror or error).rpartition(": ")[2]
        raise InvalidParameter(
            f"cannot listen on {host}:{port}: {reason}", hint="--port N chooses another port, --port 0 any free port."
        ) from None


def _engine_probes(databases: Databases) -> dict[str, Callable[[], None]]:
    return {_engine_name(name): partial(databases.probe, name) for name in databases.names}


def _engine_name(database: str) -> str:
    return f"database {database}"


async def _failures(
    server: GatewayServer, readiness: Readiness, metrics: Metrics, databases: Collection[str]
) -> frozenset[str]:
    """Name what clients need and cannot have now, and show it in the metrics."""
    failing = await readiness.failures()
    metrics.ledger_up.set("ledger" not in failing)
    for name in databases:
        metrics.engine_up.labels(name).set(_engine_name(name) not in failing)
        metrics.engine_failures.labels(name)  # shown from 0 on: Prometheus sees no increase from nothing to 1
    return failing if server.accepting else failing | {"accepting clients"}


async def _end_sessions(server: GatewayServer, ledger: Ledger, last: int) -> None:
    """End the sessions of users whose password was changed, who were removed or who are to be sent away."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            last, users = await asyncio.to_thread(ledger.ended_sessions, last)
            server.end_sessions(users)
        except LedgerUnavailable:  # queries fail too, and tell; what was recorded meanwhile is still to be read
            continue
        except Exception as error:
            log_bug(error)


async def _return_memory_again_and_again() -> None:
    """Give back what was freed: glibc keeps it for each thread that allocated it. Other C libraries do not say how."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_TRIM_SECONDS)
        await asyncio.to_thread(trim, 0)


async def _anchor_again_and_again(anchor: Path, ledger: Ledger) -> None:
    while True:
        await asyncio.sleep(_ANCHOR_SECONDS)
        await asyncio.to_thread(_anchor, anchor, ledger)


def _anchor(anchor: Path, ledger: Ledger) -> None:
    """Note the last record, unless the ledger has lost the one that was noted: the anchor is to tell that."""
    try:
        check_anchor(anchor, ledger, make=False)
    except (Error, OSError) as error:
        _LOG.error("the anchor is unchanged: %s", error)


async def _reload_when_told(told: asyncio.Event, load: Callable[[], str], metrics: Metrics) -> None:
    while True:
        await told.wait()
        told.clear()
        metrics.reloads.labels(await asyncio.to_thread(load)).inc()


def _reload(
    databases: Databases, paths: Sequence[Path], ledger: Ledger, server: GatewayServer, tls: ServerTls | None
) -> str:
    """Load the policies and the certificate again, all or nothing; return the SQLSTATE."""
    try:
        renewed = None if tls is None else tls.renewed()
        engines = _open_engines([load_policy(path) for path in paths], ledger)
        with ExitStack() as stack:
            for engine in engines.values():
                stack.callback(engine.close)
            databases.replace(engines)
            stack.pop_all()
        if renewed is not None:
            server.renew_tls(renewed)
    except Exception as error:
        if not isinstance(error, Error):
            log_bug(error)
        sqlstate, reason = (error.sqlstate, error.message) if isinstance(error, Error) else ("XX000", "a failure")
        told = {"event": "reload", "sqlstate": sqlstate}
        _LOG.error("the policies are unchanged: %s", reason, extra={"fields": told})
        return sqlstate
    _LOG.info("the policies were reloaded", extra={"fields": {"event": "reload", "sqlstate": "00000"}})
    return "00000"


def _decoy_secret(ledger: Ledger) -> bytes | None:
    """What unknown users' salts are derived from: the same after every start, and known to the ledger's owner alone."""
    first = next(iter(ledger.export()), None)
    return hashlib.sha256(f"decoy {first['hash']}".encode()).digest() if first is not None else None


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which nobody outside reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
