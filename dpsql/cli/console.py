"""`dpsql console`: its options; `console_server` does the work."""

from pathlib import Path

import click

from dpsql.cli.command import Command
from dpsql.cli.options import ledger_option, policy_argument
from dpsql.cli.passwords import password_file_option


@click.command(cls=Command)
@policy_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=6580, show_default=True, help="0 for any free port.")
@click.option("--name", "names", metavar="NAME", multiple=True, help="Another name of this host in browsers' URLs.")
@ledger_option
@password_file_option
@click.option("--tls-cert", metavar="FILE", type=click.Path(path_type=Path), help="PEM chain; TLS is then required.")
@click.option("--tls-key", metavar="FILE", type=click.Path(path_type=Path), help="The certificate's PEM key.")
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), help="The port of the gateway's metrics; none by default."
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address of the gateway's metrics.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def console(
    policy: Path,
    host: str,
    port: int,
    names: tuple[str, ...],
    ledger: str | None,
    password_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    metrics_port: int | None,
    metrics_host: str,
    log_format: str,
) -> None:
    """Show budgets, spending, releases and health in a browser, protected by the owner's password.

    The command asks for the password, or reads it from the first line of standard input if that is not a terminal. The
    console writes neither to the ledger nor to the policy. With --metrics-port, it also shows what the gateway refused,
    and why. SIGTERM and Ctrl-C stop the console. SIGHUP reloads the certificate.

    Example:
      dpsql console clinic.toml --metrics-port 9187
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key must be given together")
    from dpsql.cli.console_server import serve_console

    certificate = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    serve_console(policy, (host, port, names), ledger, password_file, certificate, metrics, log_format)
