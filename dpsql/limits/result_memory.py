"""result_memory: how many bytes results take, of one result, of one user's, and of all in this process.

Rule 1: rows are counted while they are fetched, so that a result ends where its room ends, and not where memory does.
Rule 2: a result is counted for as long as anything refers to it: a client that does not read keeps its own room only.
Rule 3: a batch is small in bytes, not in rows, for a row may be large.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Final, Protocol

from dpsql.errors import QueryTooComplex, ResultsTooLarge

MAX_RESULT_BYTES: Final = 256 << 20
MAX_USER_BYTES: Final = 512 << 20
MAX_BYTES: Final = 2 << 30
"""Of the results that all users hold in one process."""
MAX_MEMORY: Final = 64 << 20
"""Of these, what all take in memory; the others are in files."""
MAX_USER_READ_BYTES: Final = 256 << 20
"""Of the public rows that one user's queries hold until they are made into results."""
MAX_READ_BYTES: Final = 512 << 20
"""Of those of all users."""
BATCH_BYTES: Final = 2 << 20
_FIRST_ROWS: Final = 100
_BATCH_ROWS: Final = 10_000


class RowSource(Protocol):
    """Where rows come from, such as a cursor of an engine."""

    def fetchmany(self, size: int, /) -> list[tuple[Any, ...]]:
        """Return the next rows, at most so many; none at the end."""
        ...


@dataclass(frozen=True)
class HeldWords:
    """What users hold, in the words of errors.

    Attributes:
        of_user: What one user holds.
        of_all: What all users hold.
        mend: What the user can do.
    """

    of_user: str
    of_all: str
    mend: str


_RESULTS: Final = HeldWords(
    "the results that you hold take", "the results that all users hold take", "Read or close the others first."
)
_READS: Final = HeldWords(
    "the public rows that your queries read take",
    "the public rows that all users' queries read take",
    "Run one query after another.",
)


class Held:
    """What users hold; to be used from any thread.

    Args:
        of_user: Bytes that one user may hold.
        of_all: Bytes that all may hold together.
        words: What they hold.
    """

    def __init__(self, of_user: int = MAX_USER_BYTES, of_all: int = MAX_BYTES, words: HeldWords = _RESULTS) -> None:
        self._of_user = of_user
        self._of_all = of_all
        self._words = words
        self._bytes: Counter[str] = Counter()
        self._given_back: deque[tuple[str, int]] = deque()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """What all hold now."""
        with self._lock:
            self._settle()
            return self._bytes.total()

    def take(self, user: str, size: int) -> None:
        """Count bytes that a user is about to hold.

        Raises:
            ResultsTooLarge: It would be too many; they are not counted.
        """
        with self._lock:
            self._settle()
            if self._bytes[user] + size > self._of_user:
                raise ResultsTooLarge(
                    f"{self._words.of_user} more than {self._of_user >> 20:,} MiB",
                    hint=f"{self._words.mend} What was charged is not charged again.",
                )
            if self._bytes.total() + size > self._of_all:
                raise ResultsTooLarge(
                    f"{self._words.of_all} more than {self._of_all >> 20:,} MiB",
                    hint="Try again in a moment. What was charged is not charged again.",
                )
            self._bytes[user] += size

    def give_back(self, user: str, size: int) -> None:
        """Count bytes no more; called where an object ends, which may be in the midst of anything: it takes no lock."""
        self._given_back.append((user, size))

    def _settle(self) -> None:
        while self._given_back:
            user, size = self._given_back.popleft()
            self._bytes[user] -= size
            if not self._bytes[user]:
                del self._bytes[user]


HELD: Final = Held()
"""The results of this process, in memory and in files."""
IN_MEMORY: Final = Held(MAX_MEMORY // 4, MAX_MEMORY)
"""What these results take in memory."""
READ: Final = Held(MAX_USER_READ_BYTES, MAX_READ_BYTES, _READS)
"""The public rows that queries of this process are made of."""


class MemoryShare:
    """The bytes of one thing, held until nothing refers to this any more.

    Args:
        user: Whose.
        held: Where they are counted.
        most: Bytes that there may be.
        what: Whose they are, in the words of the error.
    """

    def __init__(
        self, user: str = "", held: Held = HELD, most: int = MAX_RESULT_BYTES, what: str = "the result takes"
    ) -> None:
        self.user = user
        self._what = what
        self._held = held
        self._most = most
        self._size = 0

    def __del__(self) -> None:
        self._held.give_back(self.user, self._size)

    def take(self, size: int) -> None:
        """Count some more bytes.

        Raises:
            QueryTooComplex: There are more than there may be.
            ResultsTooLarge: The user, or all users together, hold too much.
        """
        if self._size + size > self._most:
            raise QueryTooComplex(
                f"{self._what} more than {self._most >> 20:,} MiB",
                hint="Add a LIMIT, or ask for fewer or shorter columns. What was charged is not charged again.",
            )
        self._held.take(self.user, size)
        self._size += size


def batches(rows: RowSource) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all rows, some at a time: a few at first, then as many as take about two mebibytes."""
    size = _FIRST_ROWS
    while batch := rows.fetchmany(size):
        yield batch
        size = max(1, min(BATCH_BYTES * len(batch) // size_of(batch), 4 * size, _BATCH_ROWS))


def size_of(rows: Iterable[Sequence[Any]]) -> int:
    """Bytes that rows take in memory."""
    return sum(getsizeof(row) + sum(map(getsizeof, row)) for row in rows)
