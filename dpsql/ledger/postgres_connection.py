"""A connection to a ledger in PostgreSQL, reopened when it is lost between two transactions.

Rule 1: each transaction sets every parameter that its meaning and its durability depend on. Defaults of the role, of
    the database or of a pooler in between have no effect.
Rule 2: every wait for another gateway has a limit: for its lock, for a statement, and for its next statement.
Rule 3: if the server did not confirm that a commit is durable, also on the standbys that it waits for, the commit is
    reported as in doubt, and the query is not answered.
Rule 4: no message contains the URL or libpq's text about it, because both may contain a password.

psycopg_pool would not shorten this file: a thread keeps one connection, and the file's task is to distinguish a lost
commit from a refused one, which a pool does not do.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import Diagnostic
from psycopg.pq import TransactionStatus

from dpsql.errors import InvalidParameter, LedgerUnavailable

SCHEMA: Final = "dpsql_ledger"
"""The schema of the ledger's tables."""

BUSY_SECONDS: Final = 30
"""How long one gateway waits for another's transaction before it gives up."""

_DEFAULTS: Final = {
    "connect_timeout": "5",
    "application_name": "dpsql ledger",
    # A server that is gone without a word is noticed within a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Parameters of a connection that a URL may say otherwise."""

_FIXED: Final = {
    "client_encoding": "UTF8",
    # Of several hosts, and after a failover, the one that is not a standby.
    "target_session_attrs": "read-write",
}

_PLACE: Final = f"SET LOCAL search_path = {SCHEMA}, pg_temp"

WRITE: Final = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; "  # so that what is read after the lock is what stands then
    f"{_PLACE}; SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '{BUSY_SECONDS}s'; "
    f"SET LOCAL statement_timeout = '{2 * BUSY_SECONDS}s'; "
    f"SET LOCAL idle_in_transaction_session_timeout = '{BUSY_SECONDS}s'"
)
"""Begins a write transaction; the server ends it if the gateway is idle for too long."""

READ: Final = (
    f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_PLACE}; SET LOCAL lock_timeout = '{BUSY_SECONDS}s'; "
    f"SET LOCAL statement_timeout = '{2 * BUSY_SECONDS}s'"
)
"""Begins a transaction that reads one state."""

SNAPSHOT: Final = f"{READ}; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
"""The same for as long as it takes."""

_TAKE_LOCK: Final = b"SELECT pg_advisory_lock_shared($1) WHERE pg_backend_pid() = $2"
"""Takes a lock that lasts as long as the connection, but not from a pooler, whose connections outlive their users.

It is a shared one: the server may not know yet that the connection before it is gone.
"""

_HINT_URL: Final = "postgresql://dpsql_gateway@host/ledger?sslmode=verify-full, and the password in a password file"


class PostgresConnection:
    """One connection, used by one thread at a time.

    Args:
        url: Of the database, as libpq reads it.
        lock: Number of an advisory lock that tells others that this process lives.

    Raises:
        InvalidParameter: libpq cannot read the URL.

    Attributes:
        is_locked: Whether the last connection that was made got the lock.
    """

    def __init__(self, url: str, lock: int | None = None) -> None:
        try:
            parameters = _DEFAULTS | conninfo_to_dict(url) | _FIXED
            self._target = make_conninfo("", **parameters)
        except psycopg.ProgrammingError:
            raise InvalidParameter("libpq cannot read the ledger's URL", hint=_HINT_URL) from None
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._warnings: list[str | None] = []
        self._is_closed = False
        self._lock = lock
        self.is_locked = False

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as far as is known here."""
        return self._status not in (None, TransactionStatus.IDLE, TransactionStatus.UNKNOWN)

    @property
    def _status(self) -> TransactionStatus | None:
        return None if self._connection is None else self._connection.info.transaction_status

    def begin(self, statements: str) -> Any:
        """Begin a transaction by several statements; return the first row of the last one.

        A connection that is found lost is replaced, once: nothing was done on it.
        """
        if self._is_closed:
            raise psycopg.InterfaceError("the connection is closed")
        if self._connection is not None:
            try:
                return self._begun(self._connection, statements)
            except psycopg.Error:
                if self.in_transaction:  # it is the statements that failed
                    raise
        return self._begun(self._connect(), statements)

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement of the transaction."""
        return self._live().execute(numbered(sql), values or None)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Run a statement for each of the rows."""
        for row in rows:
            self.execute(sql, row)

    def commit(self) -> None:
        """Commit the transaction durably.

        Raises:
            LedgerUnavailable: The connection was lost, or the server gave up waiting for a standby; it may stand.
            psycopg.Error: Nothing was written.
        """
        connection = self._live()
        self._warnings.clear()
        try:
            said = connection.execute(b"COMMIT").statusmessage
        except psycopg.Error as error:
            if error.sqlstate is not None and not connection.closed:  # the server refused to commit
                raise
            raise _doubt("the connection to the ledger was lost in a commit") from error
        if said != "COMMIT":
            raise psycopg.InternalError("the server rolled back what was to be committed")
        if self._warnings:  # "canceling wait for synchronous replication"
            raise _doubt("the ledger's server did not wait for its standby in a commit")

    def rollback(self) -> None:
        """Roll the transaction back; if the connection is lost, the server does."""
        try:
            if self._status is not TransactionStatus.ACTIVE:
                self._live().execute(b"ROLLBACK")
                return
        except psycopg.Error:
            pass
        self._drop()

    def close(self) -> None:
        """Close the connection for good."""
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _live(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            raise psycopg.InterfaceError("the connection is closed")
        return self._connection

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        self._drop()
        self._connection = connection = psycopg.connect(
            self._target,
            autocommit=True,
            prepare_threshold=None,  # a pooler may hand every transaction to another server process
            cursor_factory=psycopg.RawCursor,
        )
        connection.add_notice_handler(self._note)
        if self._lock is not None:
            taken = connection.execute(_TAKE_LOCK, [self._lock, connection.info.backend_pid])
            self.is_locked = taken.fetchone() is not None
        return connection

    def _note(self, notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.sqlstate)

    @staticmethod
    def _begun(connection: psycopg.Connection[tuple[Any, ...]], statements: str) -> Any:
        cursor = connection.execute(statements.encode())
        while cursor.nextset():
            pass
        return cursor.fetchone() if cursor.description else None


@lru_cache(maxsize=256)
def numbered(sql: str) -> bytes:
    """Return a statement with $1, $2, … for its question marks."""
    parts, numbers = iter(sql.split("?")), count(1)
    return (next(parts) + "".join(f"${next(numbers)}{part}" for part in parts)).encode()


def _doubt(what: str) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"{what}; the write may be in the ledger, and nothing is answered",
        hint="Look for it with `dpsql budget history`, or ask again.",
    )
