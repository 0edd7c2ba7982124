"""Group commit: writes that threads ask for at once share one durable commit.

Rule 1: nobody is told anything before the commit that holds his write is on the disk, a refusal neither: it was
decided on what was written before it. What nobody is told of (`later`) stands in the same queue, in its order.
Rule 2: a write that is refused is undone alone; where the commit fails, every write in it fails.
Rule 3: to lead is to hold the lock, so the lead cannot be lost with an interrupted thread; a wake-up can, and costs
a moment's patience then.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any, Generic, TypeVar

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.store import Store
from dpsql.ledger.transaction import Transaction

T = TypeVar("T")

LARGEST_BATCH = 128
"""So many writes share a commit at most: the first in it waits for all of them."""

MOST_WAITING = 128
"""So many writes wait at most before a further one is not taken that nobody waits for."""

_LOG = logging.getLogger("dpsql.ledger")

PATIENCE = 0.25
"""Seconds after which a waiting thread looks for itself whether anybody leads."""


GATHERING = 0.02
"""Seconds for which what nobody waits for gathers, unless somebody writes meanwhile, who takes it along."""


class _Work(Generic[T]):
    """One write and what became of it.

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

    A thread that finds nobody leading takes all that wait, in their order, into one transaction, each write under its
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
        """Return what `act` returns, or raise what it raises, once that is on the disk.

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
        """Have a thread of its own write what nobody waits for, in its turn; what it raises is logged.

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
        """Return once all is written, or logged as lost, that nobody waited for until now."""
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
        """Lead whenever something waits that nobody waits for."""
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
        """Hold the ledger alone; what was written is on the disk when this ends, or never was."""
        try:
            with self._lock:
                self._write_unawaited()
                with self._transaction() as transaction:
                    yield transaction
                    transaction.commit()
        finally:
            self._wake_next()

    def close(self) -> None:
        """Close the connection; what nobody waits for is written before, what somebody waits for may fail."""
        with self._lock:
            self._write_unawaited()
            self._closed = True
            self._connection.close()
        self._wake_next()
        with suppress(RuntimeError):
            self._writer_bell.release()

    def _lead(self, own: _Work[Any] | None) -> None:
        """Commit what waits; unless the queue is long, the leader's own write is in it."""
        if own is not None and own.over:
            raise LedgerUnavailable(
                "another thread was interrupted while it wrote this to the ledger; it may stand",
                hint="look for it with `dpsql budget history`, or ask again",
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
                _LOG.error("the ledger could not write what nobody waits for: %s", type(work.error).__name__)
            if work is not own and work.awaited:
                work.wake()
        while self._queue and self._queue[0].over:
            self._queue.popleft()

    def _commit(self, batch: list[_Work[Any]]) -> None:
        with self._transaction() as transaction:
            for work in batch:
                work.attempt(transaction)
            for work in batch:
                work.over = True  # whatever happens now, it may be on the disk: nobody may begin it again
            transaction.commit()

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Begin a transaction; undo it, and what was remembered of it, if it is not committed."""
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
