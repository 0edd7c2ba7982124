"""Connections to a PostgreSQL server, kept open and used for one transaction at a time.

Rule 1: every transaction is read-only, except those of the owner's commands that write. It sets every parameter that
    could change the meaning of SQL, and so depends on no default of the role, the database or a pooler.
Rule 2: a connection that is found dead before a query was sent is replaced. A connection on which anything failed or
    was cancelled is never used again, so that a late cancel cannot hit another query.
Rule 3: no message contains the URL or libpq's text about it, because both may contain a password.

psycopg_pool cannot replace this file. It connects in its own threads, so a caller who waits for an unreachable server
only learns that the time limit has passed, while this file reports the cause and the remedy at once. The pool also logs
libpq's text, against rule 3. It detects dead connections with an additional round trip, where BEGIN does it here.
Cancels and the settings of a transaction would still be needed.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dpsql.backends.backend import CANCEL_AGAIN_SECONDS, Cancellation, Unreachable
from dpsql.errors import InvalidPolicy

Transaction = psycopg.Connection[tuple[Any, ...]]

MAX_CONNECTIONS: Final = 16
CANCEL_SECONDS: Final = 5.0
"""How long a cancel may take to reach the server."""

_DEFAULTS: Final = {
    "connect_timeout": "5",
    "application_name": "dpsql",
    # A server that is gone without a word is noticed within a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Parameters of a connection that a URL may say otherwise."""

_SETTINGS: Final = {
    "search_path": "pg_catalog, pg_temp",
    "DateStyle": "'ISO, MDY'",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "lc_numeric": "'C'",
    "lc_time": "'C'",
    "lc_monetary": "'C'",
    "jit": "off",
    "random_page_cost": "1.1",  # with the default of 4, an index of (unit, key, value) is passed over
    "parallel_tuple_cost": "0.01",  # with the default of 0.1, no second process reads such an index: groups are many
}

_MEND_LOGIN: Final = 'url = "postgresql://reader:${PASSWORD}@host/db"; or a password file, by PGPASSFILE'
_REASONS: Final = (
    ("starting up", "the server is still starting", "Try again in a moment."),
    ("shutting down", "the server is shutting down", "Try again in a moment."),
    ("password authentication failed", "the server does not accept the password", _MEND_LOGIN),
    ("no password supplied", "the server asks for a password", _MEND_LOGIN),
    ("pg_hba.conf", "the server's pg_hba.conf does not let this user in from here", "Add a line to pg_hba.conf."),
    ("FATAL:  role", "the server has no such role, or it may not log in", "CREATE ROLE reader LOGIN PASSWORD '…'"),
    ("FATAL:  database", "the server has no such database", "Check the last part of the URL."),
    ("permission denied for database", "the role may not connect to the database", "GRANT CONNECT ON DATABASE …"),
    ("closed the connection", "the server closed the connection", "Look into its log, and try again."),
    ("too many", "the server has no free connection", "Raise its max_connections, or the role's CONNECTION LIMIT."),
    ("remaining connection slots", "the server has no free connection", "Raise its max_connections."),
    ("certificate", "the server's certificate is not trusted", "Check sslmode and sslrootcert of the URL."),
    ("SSL", "TLS fails", "Check sslmode and sslrootcert of the URL."),
    (
        "resolve host",
        "the host name cannot be resolved",
        "Check the host. In a password, write %40 for @, %2F for / and %3A for :.",
    ),
    ("refused", "connection refused", "Check host and port, and that the server runs."),
    ("No such file", "the socket does not exist", "Check the directory of the socket, and that the server runs."),
    (
        'parameter "TimeZone"',
        "the server does not know this time zone",
        "Set dataset.timezone, or update the server's tzdata.",
    ),
    ("timeout", "the server does not answer", "Check host and port, and the firewall."),
)
"""What a part of libpq's message means, and its hint."""


class Connections:
    """The connections to one database."""

    def __init__(self, url: str, timezone: str) -> None:
        """Read the URL; nothing is connected yet.

        Raises:
            InvalidPolicy: libpq cannot read the URL.
        """
        try:
            parameters = _DEFAULTS | conninfo_to_dict(url) | {"client_encoding": "UTF8"}
            self._target = make_conninfo("", **parameters)
        except psycopg.ProgrammingError:
            hint = 'url = "postgresql://reader:${PASSWORD}@host:5432/db?sslmode=verify-full"'
            raise InvalidPolicy("dataset.url: libpq cannot read it", hint=hint) from None
        settings = _SETTINGS | {"TimeZone": f"'{timezone}'"}
        self._settings = "; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items())
        self._idle: list[Transaction] = []
        self._is_closed = False
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @contextmanager
    def transaction(self, cancellation: Cancellation, seconds: float, *, writes: bool = False) -> Iterator[Transaction]:
        """A transaction that the user can cancel, each statement of it limited in time; read-only unless it `writes`.

        Raises:
            Unreachable: There is no connection to be had.
            QueryCanceled: It was cancelled before it began.
        """
        while not self._free.acquire(timeout=0.05):
            cancellation.check()
        try:
            connection = self._begun(
                f"BEGIN ISOLATION LEVEL {'REPEATABLE READ READ WRITE' if writes else 'READ COMMITTED READ ONLY'}; "
                f"{self._settings}; SET LOCAL statement_timeout = {round(seconds * 1000)}"
            )
            try:
                with _stoppable(connection, cancellation):
                    yield connection
                    connection.execute("COMMIT")
            finally:
                self._give_back(connection, cancellation)
        finally:
            self._free.release()

    def close(self) -> None:
        """Close idle connections, and those that are returned from now on."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def _begun(self, begin: str) -> Transaction:
        """A connection on which a transaction has begun: one at hand that still lives, or else a new one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            is_new = connection is None
            connection = connection or self._connect()
            try:
                connection.execute(begin.encode())
                return connection
            except psycopg.Error as error:
                connection.close()
                if is_new:
                    raise _reason(error) from None

    def _connect(self) -> Transaction:
        try:
            return psycopg.connect(
                self._target,
                autocommit=True,
                prepare_threshold=None,  # a plan that was kept would outlive the settings it was made under
                cursor_factory=psycopg.RawCursor,
            )
        except psycopg.Error as error:
            raise _reason(error) from None

    def _give_back(self, connection: Transaction, cancellation: Cancellation) -> None:
        is_idle = connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if is_idle and not cancellation.is_cancelled and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()


@contextmanager
def _stoppable(connection: Transaction, cancellation: Cancellation) -> Iterator[None]:
    """Let the user cancel the statement of a connection."""
    left = threading.Event()

    def insist() -> None:
        """Cancel until it is over: a cancel that comes between two statements, or before the first, is lost."""
        while not left.is_set():
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=CANCEL_SECONDS)
            left.wait(CANCEL_AGAIN_SECONDS)

    try:
        with cancellation.stopping(threading.Thread(target=insist, daemon=True).start):
            yield
    finally:
        left.set()


def _reason(error: psycopg.Error) -> Unreachable:
    text = str(error)
    known = ((what, hint) for part, what, hint in _REASONS if part in text)
    return Unreachable(*next(known, ("the connection failed", "try the same URL with psql, which shows more")))
