"""console_server: the data owner's view in a browser, next to the gateway, until it is told to stop."""

import asyncio
import logging
import signal
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import click

from dpsql.backends import open_backend
from dpsql.cli.logs import log_to_stderr, log_unhandled
from dpsql.cli.options import ledger_url
from dpsql.cli.passwords import read_password
from dpsql.cli.policy import copy_states
from dpsql.cli.serving import is_loopback, listen
from dpsql.console.background import Background
from dpsql.console.facts import Gatherer
from dpsql.console.health import EngineHealth, LedgerHealth, ask_gateway
from dpsql.console.login import Password
from dpsql.errors import Error, InvalidParameter
from dpsql.ledger import is_file, ledger_file, open_ledger
from dpsql.policy import load_policy
from dpsql.wire.http import HttpServer
from dpsql.wire.tls import ServerTls, load_tls

_LOG: Final = logging.getLogger("dpsql.console")
_LEDGER_SECONDS: Final = 600.0
_ENGINE_SECONDS: Final = 60.0
_HERE: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def serve_console(
    policy: Path,
    address: tuple[str, int, tuple[str, ...]],
    ledger: str | None,
    password_file: Path | None,
    certificate: tuple[Path, Path] | None,
    metrics: tuple[str, int] | None,
    log_format: str,
) -> None:
    """Serve the console until SIGTERM or SIGINT.

    Args:
        policy: The policy whose budgets are shown.
        address: Host, port, and further names of this host in browsers' URLs.
        ledger: URL of the ledger; None for the one next to the policy.
        password_file: Where the owner's password is; None to ask for it.
        certificate: Files of the PEM chain and its key; None for no TLS.
        metrics: Address of the gateway's metrics; None for none.
        log_format: "text" or "json".

    Raises:
        InvalidParameter: A package is not installed, or the host would need TLS.
    """
    host, port, names = address
    try:
        from dpsql.console.site import Site, Sources
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise InvalidParameter(
            f"the console needs {package}, which is not installed", hint='pip install "dpsql[console]"'
        ) from None
    tls = None if certificate is None else load_tls(*certificate)
    if tls is None and not is_loopback(host):
        raise InvalidParameter(
            f"the console requires TLS on {host}: the password would cross the network in plain text",
            hint="--tls-cert FILE --tls-key FILE; or leave --host out, and reach it by ssh -L 6580:127.0.0.1:6580",
        )
    loaded = load_policy(policy)
    url = ledger_url(ledger, [loaded])
    password = Password(read_password(password_file, confirm=False))
    open_ledger(url, make=False).close()
    log_to_stderr(log_format)
    gateway = None if metrics is None else partial(ask_gateway, *metrics)
    sources = Sources(
        Gatherer(partial(load_policy, policy), loaded, partial(open_ledger, url, make=False)),
        Background(partial(check_ledger, url), _LEDGER_SECONDS),
        Background(partial(look_at_engine, policy), _ENGINE_SECONDS),
        gateway,
    )
    sources.ledger.latest()
    sources.engine.latest()
    known = _HERE | {_bracketed(host.lower()), *(name.lower() for name in names)}
    site = Site(sources, password, known, secure=tls is not None)
    server = site.server(host, port, None if tls is None else tls.context)
    asyncio.run(_run(server, tls, f"http{'' if tls is None else 's'}://{names[0] if names else _bracketed(host)}"))


async def _run(server: HttpServer, tls: ServerTls | None, url: str) -> None:
    told_to_stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.set_exception_handler(log_unhandled)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop.set)
    # SIGHUP may be sent to every process named dpsql, also if only the gateway should reload its policies.
    loop.add_signal_handler(signal.SIGHUP, partial(_renew, server, tls))
    await listen(server.start, server.host, server.port)
    click.echo(f"console on {url}:{server.port}/")
    await told_to_stop.wait()
    await server.close()


def _renew(server: HttpServer, tls: ServerTls | None) -> None:
    """Read the certificate again, if there is one; the policy is read for each view."""
    if tls is not None:
        try:
            server.renew_tls(tls.renewed().context)
        except Error as error:
            _LOG.error("the certificate is unchanged: %s", error.message)
        else:
            _LOG.info("the certificate was reloaded")


def _bracketed(host: str) -> str:
    """An address as URLs write it."""
    return f"[{host}]" if ":" in host else host


def check_ledger(url: str) -> LedgerHealth:
    """Check the whole ledger, as `dpsql ledger verify` does."""
    place, size = "in PostgreSQL", None
    if is_file(url):
        path = ledger_file(url)
        files = (path, path.with_name(f"{path.name}-wal"))
        place, size = str(path), sum(each.stat().st_size for each in files if each.exists())
    try:
        with closing(open_ledger(url, make=False)) as opened:
            return LedgerHealth(place, size, opened.verify(), datetime.now(UTC), None)
    except Error as error:
        return LedgerHealth(place, size, None, datetime.now(UTC), error.message)


def look_at_engine(policy: Path) -> EngineHealth:
    """Open the database, read its schema, and close it; no row is read."""
    now = datetime.now(UTC)
    try:
        backend = open_backend(load_policy(policy))
    except Error as error:
        return EngineHealth(error.message, (), (), now)
    try:
        return EngineHealth(None, tuple(copy_states(backend.schema)), backend.warnings(), now)
    finally:
        backend.close()
