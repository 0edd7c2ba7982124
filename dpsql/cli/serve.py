"""`dpsql serve`: its options; `serving` does the work."""

import ipaddress
import sys
from pathlib import Path
from typing import Final

import click

from dpsql.cli.command import Command
from dpsql.cli.logs import log_to_stderr
from dpsql.cli.options import ledger_option, ledger_url
from dpsql.ledger import check_anchor, open_ledger
from dpsql.policy import load_policy
from dpsql.wire.client_limits import ClientLimits, Network
from dpsql.wire.tls import load_tls

_DEFAULTS: Final = ClientLimits()


class NetworkType(click.ParamType[Network]):
    """An address, or a network in CIDR notation."""

    name = "network"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Network:
        """Read it."""
        try:
            return ipaddress.ip_network(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(cls=Command)
@click.argument("policies", metavar="POLICY...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=6543, show_default=True, help="0 for any free port.")
@ledger_option
@click.option("--init-ledger", is_flag=True, help="Create the ledger and the anchor if they do not exist.")
@click.option(
    "--anchor",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Note the ledger's last record in FILE, on another disk, and refuse to start with a ledger that lacks it.",
)
@click.option("--tls-cert", metavar="FILE", type=click.Path(path_type=Path), help="PEM chain; TLS is then required.")
@click.option("--tls-key", metavar="FILE", type=click.Path(path_type=Path), help="The certificate's PEM key.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--log-queries", is_flag=True, help="Log the text of queries, including their constants.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="/metrics, /healthz and /readyz; none by default.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address for metrics.")
@click.option("--max-connections", type=click.IntRange(1), default=_DEFAULTS.connections, show_default=True)
@click.option("--user-connections", type=click.IntRange(1), default=_DEFAULTS.user_connections, show_default=True)
@click.option(
    "--user-rate", type=click.IntRange(1), metavar="N", help="Queries a minute of one user; no limit by default."
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    type=NetworkType(),
    multiple=True,
    metavar="NETWORK",
    help="A network of proxies, which must send a PROXY header; may be repeated.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds for running statements to end after SIGTERM.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that serve clients, each by one processor where Python computes.",
)
def serve(
    policies: tuple[Path, ...],
    host: str,
    port: int,
    ledger: str | None,
    init_ledger: bool,
    anchor: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    log_format: str,
    log_queries: bool,
    metrics_port: int | None,
    metrics_host: str,
    max_connections: int,
    user_connections: int,
    user_rate: int | None,
    trusted_proxies: tuple[Network, ...],
    grace: float,
    workers: int,
) -> None:
    """Serve the databases of one or more policies to PostgreSQL clients.

    The ledger holds users and budgets, and all the policies share it. It must exist, unless --init-ledger creates a
    new one. SIGTERM and Ctrl-C stop the gateway: running queries have --grace seconds to end, and are then cancelled.
    SIGHUP reloads the policies and the certificate.

    Example:
      dpsql user add ana --role analyst --policy clinic.toml
      dpsql serve clinic.toml --port 6543
      dpsql serve clinic.toml --init-ledger --anchor /mnt/elsewhere/clinic.anchor
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key must be given together")
    if workers > 1 and sys.platform != "linux":
        raise click.UsageError("--workers above 1 needs Linux")
    from dpsql.cli.serving import ServeOptions, serve_gateway
    from dpsql.cli.workers import serve_workers

    loaded = [load_policy(path) for path in policies]
    operation = ServeOptions(
        host,
        port,
        load_tls(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None,
        ClientLimits(connections=max_connections, user_connections=user_connections),
        user_rate,
        grace,
        log_queries,
        None if metrics_port is None else (metrics_host, metrics_port),
        anchor,
        trusted_proxies,
        workers,
        log_format,
    )
    url = ledger_url(ledger, loaded)
    # An anchor was noted of a ledger: where that is gone, another one would forget what was spent.
    opened = open_ledger(url, make=init_ledger and not (anchor is not None and anchor.exists()))
    try:
        log_to_stderr(log_format)
        if anchor is not None:
            check_anchor(anchor, opened, make=init_ledger)
        if workers == 1:
            serve_gateway(loaded, opened, operation)
        else:
            serve_workers(loaded, opened, url, operation)
    finally:
        opened.close()
