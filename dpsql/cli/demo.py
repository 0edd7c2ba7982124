"""`dpsql demo`: generates a clinic, adds two analysts and starts a gateway."""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dpsql.cli.command import Command
from dpsql.cli.logs import log_to_stderr
from dpsql.errors import InvalidParameter
from dpsql.ledger import Ledger, open_ledger
from dpsql.ledger.profiles import newest_profile
from dpsql.policy import Policy, load_policy
from dpsql.policy.environment import NotFilledIn, filled_in
from dpsql.wire.scram import Verifier, make_verifier

if TYPE_CHECKING:
    from dpsql.cli.clinic_server import ClinicServer

_ANALYSTS: Final = ("ana", "ben")
_ROLE: Final = "analyst"
_HOST: Final = "127.0.0.1"
_STEPS: Final = 1000
_PROFILE_EPSILON: Final = Fraction(1, 5)
_QUERIES: Final = (
    "SELECT sex, COUNT(*), AVG(age) FROM patients GROUP BY sex;",
    "SELECT city, COUNT(*) AS patients FROM patients GROUP BY city ORDER BY patients DESC LIMIT 5;",
    "EXPLAIN SELECT icd, SUM(cost) FROM visits GROUP BY icd;",
)


@click.command(cls=Command)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo"),
    show_default=True,
    help="The directory for the files.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=6543, show_default=True)
@click.option("--patients", type=click.IntRange(1, 5_000_000), default=50_000, show_default=True)
@click.option("--no-serve", is_flag=True, help="Make the files, and do not serve them.")
@click.option(
    "--engine",
    type=click.Choice(["duckdb", "postgres", "spark"]),
    default="duckdb",
    show_default=True,
    help="Keep the data in a file, or in a server of PostgreSQL or Spark that runs as long as the demo.",
)
@click.option(
    "--server",
    metavar="URL",
    help="A running PostgreSQL server, as a role that may create databases and roles; the clinic's reader gets "
    "the password ${READER_PASSWORD}.",
)
def demo(directory: Path, port: int, patients: int, no_serve: bool, engine: str, server: str | None) -> None:
    """Make a synthetic clinic to try dpsql on, and serve it on this machine.

    The demo writes clinic.duckdb, clinic.toml, ledger.sqlite and credentials.txt to DIR; with --engine postgres the
    directory postgres and clinic-postgres.toml, with --engine spark the directory spark and clinic-spark.toml. It
    makes a profile of rows per patient for epsilon 0.2 of the cap. Existing files are kept, except the directory
    spark: its server gets a copy of clinic.duckdb at each start. Its token is in spark/token.

    Example:
      dpsql demo --dir /tmp/clinic --port 6544
    """
    directory.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{(directory / 'ledger.sqlite').resolve()}"
    clinic = _CLINICS[engine](directory, patients) if server is None else _clinic_on(server, directory, patients)
    with clinic as policy, closing(open_ledger(url)) as ledger:
        if ledger.head().records == 0:
            click.echo(f"{directory / 'ledger.sqlite'} is a new ledger: nothing has been spent")
        passwords = _make_users(ledger, directory / "credentials.txt")
        click.echo(f"users, with their passwords (also in {directory / 'credentials.txt'}):")
        for user, password in passwords.items():
            click.echo(f"  {user} {password}")
        loaded = load_policy(policy)
        _make_profile(loaded, ledger)
        if no_serve:
            ends = engine != "duckdb" and server is None
            again = f"demo --engine {engine} --dir {directory}" if ends else f"serve {policy} --ledger {url}"
            click.echo(f"\nto serve the clinic:\n  dpsql {again}")
            return
        from dpsql.cli.serving import ServeOptions, serve_gateway

        log_to_stderr("text")
        serve_gateway(
            [loaded],
            ledger,
            ServeOptions(_HOST, port),
            announce=lambda chosen: click.echo(_welcome(_ANALYSTS[0], passwords[_ANALYSTS[0]], chosen)),
        )


@contextmanager
def _clinic_in_file(directory: Path, patients: int) -> Iterator[Path]:
    """Write the clinic as a DuckDB file; yields the policy."""
    from dpsql.cli.clinic import generate_clinic

    path = directory / "clinic.duckdb"
    if path.exists():
        click.echo(f"{path} exists and is kept")
    else:
        with _progress(patients) as progress:
            generate_clinic(path, patients=patients, progress=progress)
    yield _make_policy(directory / "clinic.toml", {})


@contextmanager
def _clinic_in_server(directory: Path, patients: int) -> Iterator[Path]:
    """Load the clinic into a server of its own, which runs until the end; yields the policy."""
    from dpsql.cli.clinic_server import ClinicServer, embedded_server

    folder = (directory / "postgres").resolve()
    with embedded_server(folder) as url:
        # Access to the socket of this server gives every right, so a password for the reader would add nothing.
        yield _make_clinic(ClinicServer(url), str(folder), directory, patients)


@contextmanager
def _clinic_on(url: str, directory: Path, patients: int) -> Iterator[Path]:
    """Load the clinic into an existing server; yields the policy."""
    from dpsql.cli.clinic_server import ClinicServer

    try:
        server = ClinicServer(filled_in(url), "${READER_PASSWORD}")
        policy = _make_clinic(server, "the clinic of the server", directory, patients)
    except NotFilledIn as error:
        raise InvalidParameter(error.what, hint=error.hint) from None
    yield policy


def _make_clinic(server: "ClinicServer", place: str, directory: Path, patients: int) -> Path:
    if server.has_clinic():
        click.echo(f"{place} exists and is kept")
    else:
        with _progress(patients) as progress:
            server.make_clinic(patients, progress)
    here = {"duckdb:///clinic.duckdb": server.reader_url(), 'schema = "main"': 'schema = "public"'}
    return _make_policy(directory / "clinic-postgres.toml", here)


@contextmanager
def _clinic_in_spark(directory: Path, patients: int) -> Iterator[Path]:
    """The clinic in a Spark Connect server of its own, which runs until the end; gives the policy."""
    from dpsql.cli.clinic_spark import clinic_in_spark

    file = directory / "clinic.duckdb"
    if file.exists():
        click.echo(f"{file} exists and is kept; Spark gets a copy of it")
    folder = (directory / "spark").resolve()
    with _progress(patients) as progress, clinic_in_spark(folder, file, patients, progress) as server:
        _write_private(folder / "token", server.token)  # for other commands, as SPARK_TOKEN_FILE
        os.environ["SPARK_TOKEN"] = server.token
        here = {
            "duckdb:///clinic.duckdb": f"{server.place}?token=${{SPARK_TOKEN}}",
            'schema = "main"': 'schema = "clinic"',
        }
        yield _make_policy(directory / "clinic-spark.toml", here)


_CLINICS: Final = {"duckdb": _clinic_in_file, "postgres": _clinic_in_server, "spark": _clinic_in_spark}


@contextmanager
def _progress(patients: int) -> Iterator[Callable[[float], None]]:
    with click.progressbar(length=_STEPS, label=f"generating {patients:,} patients") as bar:
        yield lambda share: bar.update(round(share * _STEPS) - bar.pos)


def _make_policy(path: Path, changes: Mapping[str, str]) -> Path:
    if not path.exists():
        text = files("dpsql.cli").joinpath("clinic.toml").read_text(encoding="utf-8")
        for before, after in changes.items():
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
    return path


def _make_profile(policy: Policy, ledger: Ledger) -> None:
    """Make a profile unless the ledger has one, so that bounds are chosen for each query."""
    if newest_profile(ledger, policy) is not None:
        return
    from dpsql.backends import open_backend
    from dpsql.gateway.owner_reads import make_profile

    with closing(open_backend(policy)) as backend:
        made = make_profile(policy, ledger, backend, _PROFILE_EPSILON)
    click.echo(f"profile {made.profile.id} of rows per patient: made for epsilon 0.2 of the cap over all users")


def _make_users(ledger: Ledger, path: Path) -> dict[str, str]:
    """Return the analysts' passwords from the credentials file; missing ones are generated and added to it."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    passwords = dict(line.split(" ", 1) for line in lines if " " in line)
    missing = [user for user in _ANALYSTS if user not in passwords]
    passwords |= {user: secrets.token_urlsafe(12) for user in missing}
    if missing:
        # The file is written first: if the program is stopped in between, the next run updates the ledger from it.
        _write_private(path, "".join(f"{user} {password}\n" for user, password in passwords.items()))
    for user in _ANALYSTS:
        account = ledger.account(user)
        if account is None:
            ledger.add_account(user, _ROLE, make_verifier(passwords[user]))
        elif not _is_verifier_of(account.verifier, passwords[user]):
            ledger.set_verifier(user, make_verifier(passwords[user]))
    return {user: passwords[user] for user in _ANALYSTS}


def _is_verifier_of(verifier: str | None, password: str) -> bool:
    if verifier is None:
        return False
    known = Verifier.parse(verifier)
    return make_verifier(password, known.salt, known.iterations) == verifier


def _write_private(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.partial")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def _welcome(user: str, password: str, port: int) -> str:
    url = f"postgresql://{user}:{password}@{_HOST}:{port}/clinic"
    return "\n".join(
        (
            "\nconnect:",
            f'  psql "{url}"',
            "\nask:",
            *(f"  {query}" for query in _QUERIES),
            "\nor from Python:",
            "  import psycopg",
            f'  with psycopg.connect("{url}") as connection:',
            '      print(connection.execute("SELECT COUNT(*) FROM visits WHERE cost > 100").fetchall())',
            "\nCtrl-C stops the gateway.",
        )
    )
