"""Write transactions: each locks the ledger and appends records; concurrent writers share a commit.

Rule 1: a caller gets its result, or its refusal, only after the commit that has its write is durable. Writes without a
result (`later`) are in the same queue, in order.
Rule 2: a refused write is undone alone; if the commit fails, every write in it fails.
Rule 3: the thread that holds the lock leads the commit, so an interrupted thread cannot lose the lead. It can lose a
wake-up; then the waiting thread looks again after a moment.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar
from zoneinfo import ZoneInfo

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.chain import ORIGIN, Receipt, canonical, link
from dpsql.ledger.derived_tables import Memory, legible, project
from dpsql.ledger.store import Store
from dpsql.policy import RenewalWindow


def stamp(moment: datetime) -> str:
    """Return a moment as the ledger writes it: UTC, of one width, so that text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def moment(text: str) -> datetime:
    """Return the moment that `stamp` wrote.

    Raises:
        LedgerUnavailable: `stamp` wrote something else.
    """
    with legible():
        return datetime.fromisoformat(text)


def window_start(window: RenewalWindow, anchor: datetime, now: datetime, timezone: str) -> datetime:
    """Return when the window that contains `now` began.

    Args:
        window: The window's length.
        anchor: When windows of a number of days began to be counted.
        now: Not before the anchor.
        timezone: IANA name of the zone whose months count.
    """
    if window.days is not None:
        length = timedelta(days=window.days)
        return anchor + (now - anchor) // length * length
    local = now.astimezone(ZoneInfo(timezone))
    return local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0).astimezone(UTC)


def window_end(window: RenewalWindow, start: datetime, timezone: str) -> datetime:
    """Return when the window that began at `start` ends: the first moment of the next one."""
    if window.days is not None:
        return start + timedelta(days=window.days)
    local = start.astimezone(ZoneInfo(timezone))
    year, month = divmod(local.year * 12 + local.month, 12)
    return local.replace(
        year=year, month=month + 1, day=1, hour=0, minute=0, second=0, microsecond=0, fold=0
    ).astimezone(UTC)


LAST_YEAR: Final = 2200
"""A clock beyond it is wrong: the ledger's time would stay there for ever, and windows could not end."""

CLOCK_LIMIT: Final = timedelta(days=31)
"""Longer than a holiday without queries, and so short that a jump within it renews a window of a month once."""


@dataclass(frozen=True, slots=True)
class LedgerClock:
    """Assigns times to the records of a ledger.

    Rule 1: nothing is dated before the last record: a clock that moved back renews nothing.
    Rule 2: a clock further ahead of the last record than the limit is not trusted. All is dated as that record, so no
        window renews and the ledger does not get into that time, until the data owner confirms the clock.

    Attributes:
        read: Returns the time of this machine, aware of its zone.
        limit: How far ahead of the last record it is believed.
    """

    read: Callable[[], datetime]
    limit: timedelta

    def told(self) -> datetime:
        """Return the time of the machine's clock.

        Raises:
            LedgerUnavailable: It cannot be right.
        """
        told = self.read()
        if told.year > LAST_YEAR:
            raise LedgerUnavailable(
                f"the clock says year {told.year}", hint="Set the clock of this machine, then ask again."
            )
        return told

    def date(self, last: str | None) -> tuple[str, bool]:
        """Return the stamp of what follows the record of stamp `last`, and whether the clock is not trusted."""
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
        held: Whether it is that of the last record because the clock is not trusted.
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
        """The time of all records of the transaction."""
        return moment(self.at)

    def believe_clock(self) -> None:
        """Use the machine's clock for the following records."""
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
        """Refuse to continue if a durable record is gone: its charge could be spent again."""
        known = self.memory.durable
        if known not in (None, (0, ORIGIN), (self._seq, self._head)):
            number, digest = known
            if self.one("SELECT hash FROM records WHERE seq = ?", number) != (digest,):
                raise LedgerUnavailable(
                    "records that this gateway has met are not in the ledger any more",
                    hint="A failover or an old backup lost them, and their charges: `dpsql ledger verify --head` "
                    "shows them. Lower the budgets by them, then start the gateway again.",
                )
        self.committed()

    def append(self, kind: str, body: dict[str, Any] | Receipt) -> int:
        """Write a record and its changes of the derived tables; return its number."""
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


T = TypeVar("T")

LARGEST_BATCH = 128
"""How many writes share a commit at most: the first in it waits for all of them."""

MOST_WAITING = 128
"""How many writes wait at most; beyond that, a write that no thread waits for is not taken."""

_LOG = logging.getLogger("dpsql.ledger")

PATIENCE = 0.25
"""Seconds after which a waiting thread looks for itself whether anybody leads."""


GATHERING = 0.02
"""Seconds for which writes without a waiting thread are gathered, unless another thread writes before."""


class _Work(Generic[T]):
    """One write and its result.

    Attributes:
        act: What it does.
        settled: Its thread may be told.
        over: No leader may begin it: it is about to be committed, or its thread is gone.
        result: What `act` returned, if it did.
        error: What is to be raised instead.
        bell: Held but while its thread is to wake up.
        awaited: A thread waits for it.
    """

    __slots__ = ("act", "awaited", "bell", "error", "over", "result", "settled")

    def __init__(self, act: Callable[[Transaction], T], bell: "threading.Lock | None" = None) -> None:
        self.act = act
        self.awaited = bell is None
        self.settled = False
        self.over = False
        self.result: T
        self.error: Exception | None = None
        self.bell = bell or _held()

    def attempt(self, transaction: Transaction) -> None:
        """Do it in a transaction with others; undo it alone if it raises."""
        self.error = None
        before = transaction.mark()
        try:
            self.result = self.act(transaction)
        except Exception as error:
            if not transaction.connection.in_transaction:  # the database has ended it, so all of it fails
                raise
            transaction.undo(before)
            self.error = error
        else:
            transaction.keep()

    def wake(self) -> None:
        """Let the thread look again."""
        with suppress(RuntimeError):  # it rings already
            self.bell.release()


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class GroupCommit:
    """The one way in which a connection is written through.

    A thread that finds no leader takes all that wait, in their order, into one transaction, each write under its
    own savepoint, commits and wakes the others.

    Args:
        connection: Used for nothing else.
        begin: Begins a transaction on it.
    """

    def __init__(self, connection: Store, begin: Callable[[], Transaction]) -> None:
        self._connection = connection
        self._begin = begin
        self._lock = threading.Lock()
        self._queue: deque[_Work[Any]] = deque()
        self._writer: threading.Thread | None = None
        self._writer_lock = threading.Lock()
        self._writer_bell = _held()
        self._closed = False

    def run(self, act: Callable[[Transaction], T]) -> T:
        """Return or raise the result of `act` after its commit is durable.

        Raises:
            LedgerUnavailable: Another thread was interrupted in the commit, or the commit was; it may stand.
            Exception: What the store raises; nothing was written.
        """
        work = _Work(act)
        try:
            self._queue.append(work)
            while not work.settled:
                if self._lock.locked():
                    work.bell.acquire(timeout=PATIENCE)
                else:
                    with self._lock:
                        if not work.settled:
                            self._lead(work)
                    self._wake_next()
        except BaseException:
            work.over = True
            self._wake_next()
            raise
        if work.error is not None:
            raise work.error
        return work.result

    def later(self, act: Callable[[Transaction], object]) -> object | None:
        """Queue a write that no thread waits for; a separate thread writes it in order, and logs its errors.

        Returns:
            What `is_last` is asked about; None if too much waits already: nothing is written then.
        """
        if len(self._queue) >= MOST_WAITING or self._closed:
            return None
        self._start_writer()
        work = _Work(act, self._writer_bell)
        self._queue.append(work)
        work.wake()
        return work

    def catch_up(self) -> None:
        """Return once everything without a waiting thread is written, or logged as lost."""
        if any(not (work.awaited or work.settled) for work in list(self._queue)):
            with self._lock:  # what is being committed is not there yet
                self._write_unawaited()
            self._wake_next()

    def is_last(self, work: object) -> bool:
        """Whether nothing was asked for after this."""
        try:
            return self._queue[-1] is work
        except IndexError:
            return False

    def _start_writer(self) -> None:
        """Start the thread, if that was not done yet; not under the lock that a commit is made under."""
        with self._writer_lock:
            if self._writer is None:
                writer = threading.Thread(target=self._write, name="dpsql-ledger", daemon=True)
                writer.start()
                self._writer = writer  # not one that could not be started

    def _write(self) -> None:
        """Lead whenever a write without a waiting thread is queued."""
        while not self._closed:
            self._writer_bell.acquire()
            time.sleep(GATHERING)
            with self._lock:
                self._write_unawaited()
            self._wake_next()

    def _write_unawaited(self) -> None:
        while self._has_unawaited():
            self._lead(None)

    def _has_unawaited(self) -> bool:
        return not self._closed and any(not (work.awaited or work.over) for work in list(self._queue))

    @contextmanager
    def alone(self) -> Iterator[Transaction]:
        """Lock the ledger; when this ends, the writes are durable, or have never happened."""
        try:
            with self._lock:
                self._write_unawaited()
                with self._transaction() as transaction:
                    yield transaction
                    transaction.commit()
        finally:
            self._wake_next()

    def close(self) -> None:
        """Close the connection; writes without a waiting thread are written before; the others may fail."""
        with self._lock:
            self._write_unawaited()
            self._closed = True
            self._connection.close()
        self._wake_next()
        with suppress(RuntimeError):
            self._writer_bell.release()

    def _lead(self, own: _Work[Any] | None) -> None:
        """Commit the queue; unless it is long, the leader's own write is in it."""
        if own is not None and own.over:
            raise LedgerUnavailable(
                "another thread was interrupted while it wrote this to the ledger; the write may be in the ledger",
                hint="Look for it with `dpsql budget history`, or ask again.",
            )
        batch = [work for work in list(self._queue)[:LARGEST_BATCH] if not work.over]
        try:
            self._commit(batch)
        except Exception as error:
            for work in batch:
                work.over, work.error = True, copy(error)  # each thread raises its own
        for work in batch:
            work.settled = True
            if not work.awaited and work.error is not None:
                _LOG.error("the ledger could not write deferred records: %s", type(work.error).__name__)
            if work is not own and work.awaited:
                work.wake()
        while self._queue and self._queue[0].over:
            self._queue.popleft()

    def _commit(self, batch: list[_Work[Any]]) -> None:
        with self._transaction() as transaction:
            for work in batch:
                work.attempt(transaction)
            for work in batch:
                work.over = True  # from here on it may be on the disk: it must not be begun again
            transaction.commit()

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Begin a transaction; undo it, and its changes of the cache, if it is not committed."""
        self._roll_back()
        begun: Transaction | None = None
        try:
            begun = self._begin()
            yield begun
        except BaseException:
            self._roll_back()
            if begun is not None:
                begun.memory.forget()
            raise

    def _roll_back(self) -> None:
        """End the transaction, if one is open: a leader who was interrupted twice may have left his."""
        if self._connection.in_transaction:  # the database itself may have ended it: a full disk, a lost connection
            self._connection.rollback()

    def _wake_next(self) -> None:
        """Wake the thread that waits longest, to lead."""
        for work in list(self._queue):
            if not work.over:
                work.wake()
                return
