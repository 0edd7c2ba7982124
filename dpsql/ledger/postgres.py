"""The shared ledger: a schema in a PostgreSQL database, for gateways on several machines."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.ledger import MAX_STORED_BYTES, Ledger, now
from dpsql.ledger.model import VerifyReport
from dpsql.ledger.postgres_connection import READ, SCHEMA, SNAPSHOT, WRITE, PostgresConnection
from dpsql.ledger.postgres_schema import LOCK, LOOK, altered, migration, missing_rights, tables
from dpsql.ledger.schema import APPLICATION_ID, VERSION
from dpsql.ledger.sqlite import no_ledger
from dpsql.ledger.store import Store
from dpsql.ledger.transaction import CLOCK_LIMIT
from dpsql.ledger.verification import verify

_NAMED: Final = "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ?"
_STATE: Final = (
    f"SELECT EXISTS (SELECT 1 {_NAMED}), EXISTS (SELECT 1 {_NAMED} AND c.relname = 'layout'), "
    "current_setting('server_encoding')"
)
"""Whether there is anything in the schema, and a ledger; asked of the tables, for what a cache says may be old."""

_BUSY: Final = "Another gateway holds the ledger: end it, or try again."
_RIGHTS: Final = (
    f"Run as the ledger's owner: GRANT USAGE ON SCHEMA {SCHEMA} TO …; "
    f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA} TO …; "
    f"REVOKE UPDATE, DELETE ON {SCHEMA}.records FROM …; REVOKE INSERT, DELETE ON {SCHEMA}.layout FROM …"
)
_OLDER: Final = (
    "Stop the gateways, then run as its owner: dpsql ledger migrate --ledger postgresql://ledger_owner@host/ledger"
)
_HINTS: Final = {
    "55P03": ("a lock could not be acquired in time", _BUSY),
    "57014": ("a statement was cancelled or took too long", _BUSY),
    "53100": ("the server's disk is full", "Make room, then ask again."),
    "25P03": ("the gateway was idle for too long in a write transaction", "Run the query again."),
    "42501": ("the role lacks a right", _RIGHTS),
}
"""What a SQLSTATE means, and its hint."""
_LOCK_NAME: Final = re.compile(r"lock (\d{1,18}|[1-8]\d{18})$")
"""In the name of a gateway, the number of its advisory lock: a bigint."""
_UNREACHABLE: Final = (
    "the server cannot be reached with this URL, or went away before anything was written",
    "The server must run, be the primary and accept the role. psql with the same URL shows more: psql URL",
)


class PostgresStorage:
    """A schema in a PostgreSQL database: threads share one connection that writes and one that reads.

    Args:
        url: Of the database, as libpq reads it.
        make: Whether a ledger is made if there is none.

    Raises:
        InvalidParameter: libpq cannot read the URL.
        LedgerUnavailable: The server cannot be reached, or what is there is not this version's ledger.
    """

    errors = (psycopg.Error,)

    def __init__(self, url: str, *, make: bool) -> None:
        self._url = url
        self._lock = time.time_ns()
        self.writer = PostgresConnection(url, lock=self._lock)
        self._reader = PostgresConnection(url)
        self._reader_lock = threading.Lock()
        target = conninfo_to_dict(url)
        self._name = f"{target.get('dbname', '')} on {target.get('host', 'this machine')}"
        try:
            self._make_once(make)
            self._check()
        except psycopg.Error as error:
            self.writer.close()
            raise self.unavailable(error) from error
        except BaseException:
            self.writer.close()
            raise

    def begin(self) -> None:
        """Begin a transaction of the writer's that excludes all other writers."""
        self._check_layout(self.writer.begin(f"{WRITE}; {LOCK}"))

    def head(self) -> None:
        """Tell nothing: to ask the server takes as long as to ask it for more."""

    def gateway(self) -> str:
        """Return the number of the lock that this process holds, if it holds one."""
        return f"lock {self._lock}" if self.writer.is_locked else f"{self._lock}"

    def is_dead(self, gateway: str) -> bool:
        """Return whether another process holds its lock no longer; it is free again after this transaction."""
        found = _LOCK_NAME.search(gateway)
        if found is None or int(found[1]) == self._lock:
            return False
        row = self.writer.execute("SELECT pg_try_advisory_xact_lock(?)", [int(found[1])]).fetchone()
        return row == (True,)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Read one state of the ledger, without waiting for a commit."""
        with self._reader_lock:
            try:
                self._check_layout(self._reader.begin(f"{READ}; {LOOK}"))
                yield self._reader
            finally:
                self._reader.rollback()

    @contextmanager
    def snapshot(self) -> Iterator[Store]:
        """Read one state of the whole ledger for as long as it takes, on a connection of its own."""
        connection = PostgresConnection(self._url)
        try:
            self._check_layout(connection.begin(f"{SNAPSHOT}; {LOOK}"))
            yield connection
        finally:
            connection.close()

    def flaws(self, store: Store) -> list[str]:
        """Return the faults of the schema."""
        return altered(store)

    def unavailable(self, error: Exception) -> LedgerUnavailable:
        """Return the ledger's error for an error of PostgreSQL."""
        state = getattr(error, "sqlstate", None) or ""
        if isinstance(error, psycopg.InterfaceError):
            return LedgerUnavailable(f'ledger "{self._name}" is closed', hint="Open it again.")
        known = next((told for start, told in _HINTS.items() if state.startswith(start)), None)
        if known is None and (not state or state[:2] in ("08", "53", "57")):
            known = _UNREACHABLE
        what, hint = known or (
            f"{type(error).__name__} ({state})",
            "Run `dpsql ledger verify`; the server's log has more.",
        )
        return LedgerUnavailable(f'ledger "{self._name}" failed: {what}', hint=hint)

    def close(self) -> None:
        """Close the connection that reads."""
        with self._reader_lock:
            self._reader.close()

    def _make_once(self, wanted: bool) -> None:
        """Create the tables if they do not exist; a concurrent creator waits."""
        self.writer.begin(WRITE)
        if not self._is_there():
            if not wanted:
                raise no_ledger(self._name)
            self.writer.execute("SELECT pg_advisory_xact_lock(?)", [APPLICATION_ID])
            if not self._is_there():
                if self.writer.execute("SELECT 1 FROM pg_namespace WHERE nspname = ?", [SCHEMA]).fetchone() is None:
                    self.writer.execute(f"CREATE SCHEMA {SCHEMA}")
                self.writer.execute(tables())
        self.writer.commit()

    def _is_there(self) -> bool:
        """Return whether there is a ledger; refuse a database that cannot have one."""
        has_tables, is_there, encoding = self.writer.execute(_STATE, [SCHEMA, SCHEMA]).fetchall()[0]
        if encoding != "UTF8":
            raise LedgerUnavailable(
                f'ledger "{self._name}": the database\'s encoding is {encoding}, not UTF8',
                hint="Create one: CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'",
            )
        if has_tables and not is_there:
            raise LedgerUnavailable(
                f'the schema {SCHEMA} of "{self._name}" holds something other than a ledger',
                hint="Name another database: a ledger has a schema of this name for itself.",
            )
        return bool(is_there)

    def _check(self) -> None:
        """Refuse a damaged or read-only ledger now, and not at the first charge."""
        self.begin()
        problems = altered(self.writer)
        if problems:
            raise LedgerUnavailable(
                f'ledger "{self._name}" is not whole: {problems[0]}',
                hint="Stop the gateways, restore the ledger from a backup and run `dpsql ledger verify`.",
            )
        lacking = missing_rights(self.writer)
        if lacking:
            table, right = lacking[0]
            raise LedgerUnavailable(
                f'ledger "{self._name}": the role may not {right} on {SCHEMA}.{table}',
                hint=f"Run as the ledger's owner: GRANT {right} ON {SCHEMA}.{table} TO …",
            )
        self.writer.rollback()

    def _check_layout(self, row: Any) -> None:
        version, fsync = row or (0, "on")
        if version != VERSION:
            raise LedgerUnavailable(
                f'ledger "{self._name}" has layout {version}, this dpsql has layout {VERSION}',
                hint="Upgrade dpsql on every gateway." if version > VERSION else _OLDER,
            )
        if fsync != "on":
            raise LedgerUnavailable(
                f'ledger "{self._name}": the server runs with fsync = {fsync}, so its commits are not durable',
                hint="ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();",
            )


class PostgresLedger(Ledger):
    """A Ledger in a PostgreSQL database.

    Args:
        url: Of the database, as libpq reads it.
        make: Whether a ledger is made if there is none.
        clock: Returns the time, aware of its zone.
        clock_limit: How far ahead of the last record the clock is believed.
        max_stored_bytes: Bound on the stored releases together.
    """

    _storage: PostgresStorage

    def __init__(
        self,
        url: str,
        *,
        make: bool = True,
        clock: Callable[[], datetime] = now,
        clock_limit: timedelta = CLOCK_LIMIT,
        max_stored_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        super().__init__(
            PostgresStorage(url, make=make), clock=clock, clock_limit=clock_limit, max_stored_bytes=max_stored_bytes
        )


def migrate_database(url: str) -> tuple[int, VerifyReport] | None:
    """Bring the ledger of a database to this dpsql's layout, in one transaction; the records stay unchanged.

    Returns:
        The layout that it had, and what `verify` says of it now; None if it has this one.

    Raises:
        InvalidParameter: libpq cannot read the URL.
        LedgerUnavailable: There is no ledger of a layout that is known, it is not whole, or it cannot be written.
    """
    connection = PostgresConnection(url)
    try:
        version = (connection.begin(f"{WRITE}; {LOCK}") or (0,))[0]
        if version == VERSION:
            return None
        statements = migration(version)
        if statements is None:
            raise LedgerUnavailable(f"no ledger of layout {version} is known", hint="Upgrade dpsql.")
        connection.execute(statements)
        report = verify(connection, altered(connection))
        if not report.ok:
            raise LedgerUnavailable(
                f"the ledger is not whole, and is unchanged: {report.problems[0]}",
                hint="Restore it from a backup, then migrate that.",
            )
        connection.commit()
        return version, report
    except psycopg.Error as error:
        raise LedgerUnavailable(
            f"the ledger cannot be migrated: {type(error).__name__} ({error.sqlstate})",
            hint="The URL must name its database, and its owner as the role.",
        ) from error
    finally:
        connection.close()
