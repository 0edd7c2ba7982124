"""The database interface of a ledger, with SQL that SQLite and PostgreSQL both accept.

Rule: damage is reported before anything in the ledger is used, and whenever something in it is read.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dpsql.errors import LedgerUnavailable


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
        """Commit the transaction durably."""

    def rollback(self) -> None:
        """Roll the transaction back."""

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
        """Begin a transaction of the writer's that excludes all other writers."""

    def head(self) -> tuple[int, str] | None:
        """Return number and hash of the last durable record; None if it is not known at once."""

    def gateway(self) -> str:
        """Return a name of this process by which others find whether it lives."""

    def is_dead(self, gateway: str) -> bool:
        """Return whether another process has ended for sure; asked while a transaction of the writer's is open."""

    def reading(self) -> AbstractContextManager[Store]:
        """Read one state of the ledger, without waiting for a commit."""

    def snapshot(self) -> AbstractContextManager[Store]:
        """Read one state of the whole ledger for as long as it takes; other reads go on."""

    def flaws(self, store: Store) -> list[str]:
        """Return the faults of the tables before anything in them is used, one sentence each."""

    def unavailable(self, error: Exception) -> LedgerUnavailable:
        """Return the ledger's error for one of `errors`."""

    def close(self) -> None:
        """Close all connections but the writer."""
