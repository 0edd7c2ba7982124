"""One write transaction: it holds the ledger alone, and appends records with their effects."""

import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.chain import ORIGIN, link
from dpsql.ledger.projection import project
from dpsql.ledger.windows import moment, stamp

LAST_YEAR = 2200
"""A clock beyond it is wrong: what it dates would be the ledger's time for ever, and windows could not end."""


def latest(clock: Callable[[], datetime], last: str | None) -> datetime:
    """Return the time, never before that of the last record: a clock that moved back renews nothing."""
    told = clock()
    if told.year > LAST_YEAR:
        raise LedgerUnavailable(
            f"the clock says year {told.year}", hint="set the clock of this machine, then ask again"
        )
    now = moment(stamp(told))
    return now if last is None else max(now, moment(last))


class Transaction:
    """The state of the ledger between BEGIN IMMEDIATE and COMMIT.

    Attributes:
        connection: For reading.
        now: The time of all that is written.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], datetime]) -> None:
        self.connection = connection
        row = connection.execute("SELECT seq, hash, at FROM records ORDER BY seq DESC LIMIT 1").fetchone()
        self._seq: int
        self._head: str
        self._seq, self._head, last = row or (0, ORIGIN, None)
        self.now = latest(clock, last)

    def one(self, sql: str, *values: object) -> Any:
        """Return the first row of a query, or None."""
        return self.connection.execute(sql, values).fetchone()

    def append(self, kind: str, body: dict[str, Any]) -> int:
        """Write a record and what follows from it; return its number."""
        record = link(self._seq + 1, stamp(self.now), kind, body, self._head)
        self.connection.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
            (record.seq, record.at, record.kind, record.body, record.previous, record.hash),
        )
        project(self.connection, record, body)
        self._seq, self._head = record.seq, record.hash
        return record.seq
