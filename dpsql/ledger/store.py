"""What a ledger needs of a database, with SQL that SQLite and PostgreSQL both understand; and damage.

Rule: damage is told before anything in the ledger is believed, and whenever something in it is read.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import lru_cache
from typing import Any, Protocol

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger.schema import TABLES


class ResultRows(Protocol):
    """What a statement gives."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows that are left."""


class Store(Protocol):
    """A connection to the tables; `sqlite3.Connection` is one."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> ResultRows:
        """Run a statement."""

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Run a statement for each of the rows."""

    def commit(self) -> None:
        """Make durable what the transaction wrote."""

    def rollback(self) -> None:
        """Take back what the transaction wrote."""

    def close(self) -> None:
        """Close the connection."""


class Storage(Protocol):
    """A database that holds one ledger."""

    @property
    def writer(self) -> Store:
        """The connection that all threads write through."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What is raised when something cannot be read or written."""

    def begin(self) -> None:
        """Begin a transaction of the writer's in which nobody else writes."""

    def head(self) -> tuple[int, str] | None:
        """Return number and hash of the last record that is durable; None where that cannot be told at once."""

    def gateway(self) -> str:
        """Return a name of this process by which others find whether it lives."""

    def is_dead(self, gateway: str) -> bool:
        """Return whether another process has ended for sure; asked while a transaction of the writer's is open."""

    def reading(self) -> AbstractContextManager[Store]:
        """Read one state of the ledger, without waiting for a commit."""

    def snapshot(self) -> AbstractContextManager[Store]:
        """Read one state of the whole ledger for as long as it takes, beside whatever else is read."""

    def flaws(self, store: Store) -> list[str]:
        """Return what is wrong with the tables before anything in them is believed, one sentence each."""

    def unavailable(self, error: Exception) -> LedgerUnavailable:
        """Return what one of `errors` means for the ledger."""

    def close(self) -> None:
        """Close all connections but the writer."""


_OBJECTS = "SELECT type, name, sql FROM sqlite_master"


@contextmanager
def legible() -> Iterator[None]:
    """Raise LedgerUnavailable where a text of the ledger is not what this dpsql writes."""
    try:
        yield
    except (InvalidParameter, LookupError, RecursionError, StopIteration, TypeError, ValueError):
        raise LedgerUnavailable(
            "invalid record in ledger",
            hint="Run `dpsql ledger verify` to find it, and restore the ledger from a backup.",
        ) from None


def flaws(store: Store) -> list[str]:
    """Return what is wrong with a file and with its schema; an altered one proves nothing."""
    return [*damage(store), *altered_schema(store)]


def damage(connection: Store) -> list[str]:
    """Return what SQLite finds wrong with pages, indexes and constraints, one sentence each."""
    found = [row[0] for row in connection.execute("PRAGMA integrity_check(10)")]
    return [] if found == ["ok"] else [f"the file is damaged: {sentence}" for sentence in found]


def altered_schema(connection: Store) -> list[str]:
    """Return the tables, indexes and triggers that are not as dpsql makes them."""
    found = set(connection.execute(_OBJECTS)) ^ _expected_schema()
    return [f"the {kind} {name} was altered, added or removed" for kind, name in sorted({row[:2] for row in found})]


def missing_tables(connection: Store) -> list[str]:
    """Return the tables that are not there, or not as dpsql makes them."""
    lacking = _expected_schema() - set(connection.execute(_OBJECTS))
    return [f"the table {name} is missing or altered" for kind, name, _ in sorted(lacking) if kind == "table"]


@lru_cache(maxsize=1)
def _expected_schema() -> frozenset[tuple[str, str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(TABLES)
        return frozenset(fresh.execute(_OBJECTS))
