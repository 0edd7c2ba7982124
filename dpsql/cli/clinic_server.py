"""A PostgreSQL server with the demo clinic on it, and with a role that may read the clinic and no more."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from dpsql.cli.clinic import generate_clinic
from dpsql.cli.clinic_postgres import load_clinic
from dpsql.errors import InvalidParameter
from dpsql.policy.environment import filled_in

_DATABASE: Final = "clinic"
_ROLE: Final = "reader"
_PLACE: Final = ("host", "hostaddr", "port", "sslmode", "sslrootcert")
"""What the reader's URL has of the owner's."""
_RIGHTS: Final = f"""
REVOKE ALL ON DATABASE {_DATABASE} FROM PUBLIC;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT CONNECT ON DATABASE {_DATABASE} TO {_ROLE};
GRANT USAGE ON SCHEMA public TO {_ROLE};
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {_ROLE};
"""


@dataclass(frozen=True)
class ClinicServer:
    """A server.

    Attributes:
        url: Of a role that may make databases and roles.
        password: The reader's, as the policy writes it: "${NAME}" for one of the environment; None for none.
    """

    url: str
    password: str | None = None

    def has_clinic(self) -> bool:
        """True where the clinic is on the server already; its database is made where it is missing."""
        with self._connected("postgres") as connection:
            if connection.execute(f"SELECT FROM pg_database WHERE datname = '{_DATABASE}'".encode()).fetchone() is None:
                connection.execute(f"CREATE DATABASE {_DATABASE} ENCODING 'UTF8' TEMPLATE template0".encode())
        with self._connected(_DATABASE) as connection:
            return connection.execute("SELECT to_regclass('public.visits') IS NOT NULL").fetchone() == (True,)

    def make_clinic(self, patients: int, progress: Callable[[float], None]) -> None:
        """Invent the clinic, and put it on the server with its reader, whole or not at all."""
        password = None if self.password is None else filled_in(self.password)
        role = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(_ROLE), sql.Literal(password))
        with tempfile.TemporaryDirectory() as folder, self._connected(_DATABASE) as connection:
            file = Path(folder) / "clinic.duckdb"
            generate_clinic(file, patients=patients, progress=lambda share: progress(share * 0.7))
            with connection.transaction():
                load_clinic(file, connection)
                connection.execute(role)
                connection.execute(_RIGHTS.encode())
            progress(1.0)

    def reader_url(self) -> str:
        """The URL by which the gateway reads the clinic."""
        known: dict[str, object] = {**conninfo_to_dict(self.url)}
        place = urlencode([(name, known[name]) for name in _PLACE if name in known], safe="/")
        password = "" if self.password is None else f":{self.password}"
        return f"postgresql://{_ROLE}{password}@/{_DATABASE}?{place}"

    @contextmanager
    def _connected(self, database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        try:
            with psycopg.connect(self.url, dbname=database, autocommit=True) as connection:
                yield connection
        except psycopg.Error as error:
            raise InvalidParameter(
                f"the server cannot be used: {type(error).__name__}",
                hint="Try the same URL with psql, which tells more.",
            ) from None
