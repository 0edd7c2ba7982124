"""The records of reused answers, which are free and are written shortly after the answers.

Rule 1: no thread waits for them, so they share records and commits. If the process dies, only free reuses are lost.
Rule 2: they are written after all earlier writes and before all later ones.
"""

import threading
from dataclasses import replace

from dpsql.ledger.chain import Receipt
from dpsql.ledger.transaction import GroupCommit, Transaction

_MOST = 4096
"""How many answers share a commit at most; `add` returns False while more wait."""


class _Batch:
    """Reused answers, one after another with nothing written between them; each kind with its number."""

    def __init__(self) -> None:
        self._numbers: dict[Receipt, int] = {}
        self._total = 0
        self._closed = False
        self._lock = threading.Lock()

    def add(self, receipt: Receipt) -> bool:
        """Take one more, unless they are being written."""
        with self._lock:
            if self._closed or self._total >= _MOST:
                return False
            self._numbers[receipt] = self._numbers.get(receipt, 0) + 1
            self._total += 1
            return True

    def write(self, transaction: Transaction) -> None:
        """Append a record for each kind, which names a release as often as it was reused."""
        with self._lock:
            self._closed = True
        for receipt, number in self._numbers.items():
            transaction.append("reuse", replace(receipt, reused=receipt.reused * number))


class ReuseRecords:
    """What is to be recorded of reused answers.

    Args:
        commits: How it is written.
    """

    def __init__(self, commits: GroupCommit) -> None:
        self._commits = commits
        self._lock = threading.Lock()
        self._last: tuple[_Batch, object] | None = None

    def add(self, receipt: Receipt) -> bool:
        """Have a record written soon; return False, and do nothing, while too much waits to be written."""
        with self._lock:
            if self._last is not None and self._commits.is_last(self._last[1]) and self._last[0].add(receipt):
                return True
            batch = _Batch()
            batch.add(receipt)
            work = self._commits.later(batch.write)
            self._last = None if work is None else (batch, work)
            return work is not None
