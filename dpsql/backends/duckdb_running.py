"""Runs SQL on DuckDB: locked down, with time limits, and first tried on empty tables."""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import duckdb

from dpsql.backends.backend import CANCEL_AGAIN_SECONDS, MAX_PUBLIC_ROWS, Cancellation, PublicRows, public_blocks
from dpsql.backends.deadlines import after
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.errors import UnsupportedQuery

_LOG = logging.getLogger("dpsql.backend")

RETURNS_MEMORY: Final = {"allocator_background_threads": True}
"""DuckDB's allocator gives freed memory back to the system only while it is called, unless it has a thread for that.

It is one for the whole process, and the instance that was opened last decides: each instance says so.
"""


def lock(
    database: duckdb.DuckDBPyConnection,
    timezone: str,
    limits: Mapping[str, str] = MappingProxyType({}),
    files: Iterable[str] = (),
) -> None:
    """Set time zone and limits, let nothing but files be read, and lock that, for all connections to one database."""
    for name, value in limits.items():
        database.execute(f"SET GLOBAL {name} = '{value}'")
    database.execute(f"SET GLOBAL TimeZone = '{timezone}'")
    database.execute(f"SET GLOBAL allowed_paths = [{', '.join(map(DuckDB.quote_text, files))}]")
    # What is attached already may still be read.
    database.execute("SET GLOBAL enable_external_access = false")
    database.execute("SET lock_configuration = true")


def rehearse(cursor: duckdb.DuckDBPyConnection, sql: str, cancellation: Cancellation) -> None:
    """Run a statement where there are no rows: what fails there fails for reasons of its own.

    Raises:
        UnsupportedQuery: It cannot run.
        QueryCanceled: It was stopped.
    """
    try:
        cursor.execute(sql).fetchall()
    except duckdb.Error as error:
        cancellation.check()
        _LOG.error("generated SQL cannot run: %s", type(error).__name__)
        raise UnsupportedQuery(
            "the engine cannot run this query; nothing was charged",
            hint="Write it in another way, and please report it: dpsql should have refused it with a reason.",
        ) from None


@contextmanager
def stoppable(cursor: duckdb.DuckDBPyConnection, cancellation: Cancellation, seconds: float) -> Iterator[None]:
    """Let the user and a time limit stop what runs on a cursor."""
    interrupts = _Interrupts(cursor)
    try:
        with after(seconds, cancellation.cancel), cancellation.stopping(interrupts.insist):
            yield
    finally:
        interrupts.end()


class _Interrupts:
    """Interrupts what runs on a cursor.

    Args:
        cursor: The cursor.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._changing = threading.Lock()
        self._is_over = False

    def insist(self) -> None:
        """Interrupt until it is over: an interrupt that comes between two statements, or before the first, is lost."""
        with self._changing:
            if not self._is_over:
                self._cursor.interrupt()
                after(CANCEL_AGAIN_SECONDS, self.insist)

    def end(self) -> None:
        """Interrupt nothing any more."""
        with self._changing:
            self._is_over = True


def text_rows(cursor: duckdb.DuckDBPyConnection, sql: str, width: int, too_many: str) -> Iterator[PublicRows]:
    """The rows of SQL whose columns are texts named v0, v1 and so on, in blocks.

    Raises:
        LimitExceeded: There are more than a million of them; `too_many` says so, with a place for this number.
    """
    return public_blocks(cursor.execute(f"SELECT * FROM ({sql}) LIMIT {MAX_PUBLIC_ROWS + 1}"), width, too_many)


def is_several_rows(error: duckdb.Error) -> bool:
    """True if a scalar subquery returned several rows."""
    return str(error).startswith("Invalid Input Error: More than one row returned by a subquery")
