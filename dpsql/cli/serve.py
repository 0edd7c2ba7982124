"""`dpsql serve`: the gateway, until it is told to stop.

Rule: the log has users, databases, addresses and what went wrong; never a query's text, a row, or an exception's text.
"""

import asyncio
import hashlib
import ipaddress
import json
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from dpsql.backends import open_backend
from dpsql.cli.command import Command
from dpsql.cli.options import ledger_option, ledger_url
from dpsql.engine import Engine
from dpsql.errors import InvalidParameter, InvalidPolicy
from dpsql.ledger import Ledger, open_ledger
from dpsql.policy import Policy, load_policy
from dpsql.session import Session
from dpsql.wire.catalog.catalog import Catalogs
from dpsql.wire.report import log_bug
from dpsql.wire.server import GatewayServer
from dpsql.wire.tls import ServerTls, load_tls

_LOG: Final = logging.getLogger("dpsql.serve")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@click.command(cls=Command)
@click.argument("policies", metavar="POLICY...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=6543, show_default=True, help="0: any that is free.")
@ledger_option
@click.option("--tls-cert", metavar="FILE", type=click.Path(path_type=Path), help="PEM chain; TLS is then required.")
@click.option("--tls-key", metavar="FILE", type=click.Path(path_type=Path), help="The certificate's PEM key.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def serve(
    policies: tuple[Path, ...],
    host: str,
    port: int,
    ledger: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    log_format: str,
) -> None:
    """Serve the databases of one or more policies to PostgreSQL clients.

    Users and their budgets are in the ledger, which all the policies share. SIGTERM and Ctrl-C stop the gateway:
    it lets running queries end for ten seconds, and cancels the others.

    Example:
      dpsql user add ana --role analyst --policy clinic.toml
      dpsql serve clinic.toml --port 6543
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    loaded = [load_policy(path) for path in policies]
    tls = load_tls(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    opened = open_ledger(ledger_url(ledger, loaded))
    try:
        log_to_stderr(log_format)
        serve_gateway(loaded, opened, host=host, port=port, tls=tls)
    finally:
        opened.close()


def serve_gateway(
    policies: Sequence[Policy],
    ledger: Ledger,
    *,
    host: str,
    port: int,
    tls: ServerTls | None = None,
    announce: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        policies: What to serve; their dataset names differ.
        ledger: The accounts and budgets.
        host: The address to listen on.
        port: The port to listen on; 0 for any that is free.
        tls: The TLS that clients must use; None for none.
        announce: Called with the port once the gateway listens.

    Raises:
        InvalidPolicy: A database is not usable, or two policies have one name.
        InvalidParameter: The address cannot be listened on.
    """
    if tls is None and not _is_loopback(host):
        _LOG.warning("without TLS on %s: whoever sits between can read answers and alter them; see --tls-cert", host)
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for policy in policies:
            name = policy.dataset.name
            if name in engines:
                raise InvalidPolicy(f'{policy.path}: dataset.name: "{name}" is served already', hint="Rename one.")
            engines[name] = Engine(policy, ledger, open_backend(policy))
            stack.callback(engines[name].close)
        if not any(account.verifier for account in ledger.accounts()):
            _LOG.warning("nobody can connect yet: no user has a password; see dpsql user add --help")
        catalogs = Catalogs(engines)
        stack.callback(catalogs.close)
        asyncio.run(_run(engines, catalogs, ledger, host, port, tls, announce))


async def _run(
    engines: Mapping[str, Engine],
    catalogs: Catalogs,
    ledger: Ledger,
    host: str,
    port: int,
    tls: ServerTls | None,
    announce: Callable[[int], None],
) -> None:
    def lookup(user: str) -> str | None:
        account = ledger.account(user)
        return account.verifier if account is not None else None

    server = GatewayServer(
        lookup=lookup,
        open_session=lambda user, database: Session(engines[database], user, catalogs.browser(database, user)),
        databases=engines,
        host=host,
        port=port,
        tls=tls,
        require_tls=tls is not None,
        decoy_secret=_decoy_secret(ledger),
    )
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_unhandled)
    told_to_stop = asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, told_to_stop.set)
    try:
        await server.start()
    except OSError as error:
        reason = str(error.strerror or error).rpartition(": ")[2]
        raise InvalidParameter(
            f"cannot listen on {host}:{port}: {reason}", hint="--port N takes another port, --port 0 any that is free."
        ) from None
    announce(server.port)
    await told_to_stop.wait()
    for number in _SIGNALS:  # a second one ends the program at once
        loop.remove_signal_handler(number)
    _LOG.info("stopping")
    await server.close()
    _LOG.info("stopped")


def _decoy_secret(ledger: Ledger) -> bytes | None:
    """What unknown users' salts are derived from: the same after every start, and known to the ledger's owner alone."""
    first = next(iter(ledger.export()), None)
    return hashlib.sha256(f"decoy {first['hash']}".encode()).digest() if first is not None else None


def _log_unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, Exception):
        log_bug(error)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def log_to_stderr(log_format: str) -> None:
    """Write the log to standard error: what dpsql does from INFO on, what libraries say from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if log_format == "json" else _TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("dpsql").setLevel(logging.INFO)


class _TextLines(logging.Formatter):
    """Time, level and message; of an exception its type only."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(_fields(record).values())


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record), ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, str]:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields = {"time": moment, "level": record.levelname, "message": record.getMessage()}
    if record.exc_info and record.exc_info[0] is not None:
        fields["exception"] = record.exc_info[0].__name__
    return fields
