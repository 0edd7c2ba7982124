"""One write transaction: it holds the ledger alone, and appends records with their effects."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.chain import ORIGIN, canonical, link
from dpsql.ledger.memory import Memory
from dpsql.ledger.projection import project
from dpsql.ledger.receipt import Receipt
from dpsql.ledger.store import Store
from dpsql.ledger.windows import moment, stamp

LAST_YEAR: Final = 2200
"""A clock beyond it is wrong: what it dates would be the ledger's time for ever, and windows could not end."""

CLOCK_LIMIT: Final = timedelta(days=31)
"""Longer than a holiday in which nobody asks, and so short that a jump within it renews a window of a month once."""


@dataclass(frozen=True, slots=True)
class LedgerClock:
    """Dates what is written to a ledger.

    Rule 1: nothing is dated before the last record: a clock that moved back renews nothing.
    Rule 2: a clock further ahead of the last record than the limit is not believed. All is dated as that record, so no
        window renews and the ledger does not get into that time, until the data owner confirms the clock.

    Attributes:
        read: Returns the time of this machine, aware of its zone.
        limit: How far ahead of the last record it is believed.
    """

    read: Callable[[], datetime]
    limit: timedelta

    def told(self) -> datetime:
        """Return what the machine's clock says.

        Raises:
            LedgerUnavailable: It cannot be right.
        """
        told = self.read()
        if told.year > LAST_YEAR:
            raise LedgerUnavailable(
                f"the clock says year {told.year}", hint="set the clock of this machine, then ask again"
            )
        return told

    def date(self, last: str | None) -> tuple[str, bool]:
        """Return the stamp of what follows the record of stamp `last`, and whether the clock is not believed."""
        told = self.told()
        if last is None:
            return stamp(told), False
        held = stamp(told - self.limit) > last
        return last if held else max(stamp(told), last), held


class Transaction:
    """The state of the ledger between BEGIN and COMMIT.

    Attributes:
        connection: For reading.
        memory: What need not be read.
        at: The stamp of all that is written.
        held: Whether it is that of the last record because the clock is not believed.
    """

    def __init__(self, connection: Store, clock: LedgerClock, memory: Memory) -> None:
        self.connection = connection
        self.memory = memory
        self._clock = clock
        row = connection.execute("SELECT seq, hash, at FROM records ORDER BY seq DESC LIMIT 1").fetchone()
        self._seq: int
        self._head: str
        self._seq, self._head, last = row or (0, ORIGIN, None)
        self.at, self.held = clock.date(last)
        memory.meet(self._head)
        self._check_durable()

    @property
    def now(self) -> datetime:
        """The time of all that is written."""
        return moment(self.at)

    def believe_clock(self) -> None:
        """Date what is written from here on by the machine's clock."""
        self.at, self.held = stamp(self._clock.told()), False

    def one(self, sql: str, *values: object) -> Any:
        """Return the first row of a query, or None."""
        return self.connection.execute(sql, values).fetchone()

    def mark(self) -> tuple[int, str]:
        """Begin a part of the transaction that can be undone alone; return where the records stand."""
        self.connection.execute("SAVEPOINT part")
        return self._seq, self._head

    def keep(self) -> None:
        """End the part that `mark` began."""
        self.connection.execute("RELEASE part")

    def undo(self, before: tuple[int, str]) -> None:
        """Take back all that was written since `mark` returned this."""
        self.connection.execute("ROLLBACK TO part")
        self.keep()
        self._seq, self._head = before
        self.memory.forget()  # a write that comes after this one may be of the same user

    def commit(self) -> None:
        """Make all this durable."""
        self.memory.coming = self._seq, self._head
        self.connection.commit()
        self.committed()

    def committed(self) -> None:
        """Remember that all this is durable."""
        self.memory.settle(self._seq, self._head)

    def _check_durable(self) -> None:
        """Refuse to go on where a record that was durable is gone: what it charged could be spent again."""
        known = self.memory.durable
        if known not in (None, (0, ORIGIN), (self._seq, self._head)):
            number, digest = known
            if self.one("SELECT hash FROM records WHERE seq = ?", number) != (digest,):
                raise LedgerUnavailable(
                    "records that this gateway has met are not in the ledger any more",
                    hint="a failover or an old backup lost them, and what they charged: `dpsql ledger verify --head` "
                    "tells; lower the budgets by it, then start the gateway again",
                )
        self.committed()

    def append(self, kind: str, body: dict[str, Any] | Receipt) -> int:
        """Write a record and what follows from it; return its number."""
        text = body.text() if isinstance(body, Receipt) else canonical(body)
        record = link(self._seq + 1, self.at, kind, text, self._head)
        self.connection.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
            (record.seq, record.at, record.kind, record.body, record.previous, record.hash),
        )
        self.memory.head = None  # what is interrupted here is rolled back, and nothing of it may be remembered
        project(self.connection, record, body, self.memory)
        self._seq, self._head = record.seq, record.hash
        self.memory.head = record.hash
        return record.seq
