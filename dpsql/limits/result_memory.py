"""result_memory: the rows of results, in memory while there is room, and beyond that in files without a name.

Rule 1: rows are counted while they are fetched, so that a result ends where its room ends, and not where memory does.
Rule 2: a result is counted for as long as anything refers to it: a client that does not read keeps its own room only.
Rule 3: a batch is small in bytes, not in rows, for a row may be large.
Rule 4: a file holds only rows that the user may have. It has no name, nobody else can open it, and it ends with the
    result.
Rule 5: what is read back is what was written, byte by byte, or it is not looked at: values are an analyst's own texts.
"""

import hashlib
import logging
import os
import pickle
import tempfile
import threading
from array import array
from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from itertools import repeat
from operator import itemgetter
from sys import getsizeof
from typing import Any, BinaryIO, Final, Protocol, overload

from dpsql.errors import LimitExceeded, ResultsTooLarge

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
_FIRST_ROWS: Final = 1
"""One value may take 16 MiB, and what is fetched at once is not counted before it is there."""
_BATCH_ROWS: Final = 5_000
_VALUE_BYTES: Final = 8
"""What a value takes in its column."""
_ROW_BYTES: Final = getsizeof(()) + 8
"""What a row of no values takes in a tuple of rows."""
_BYTES_OF: Final = {bool: 0, type(None): 0, int: 40, float: 24, date: 32, datetime: 48}
"""What else it takes, by its type."""
_CODES: Final = {int: "q", float: "d"}
"""The arrays of types, by the codes of the module `array`."""

Row = tuple[Any, ...]


class RowSource(Protocol):
    """Where rows come from, such as a cursor of an engine."""

    def fetchmany(self, size: int, /) -> list[Row]:
        """Return at most `size` rows; at the end none."""
        ...


@dataclass(frozen=True)
class RowBlock:
    """Some rows, column by column: values of one type are counted, stored and written faster than rows.

    Attributes:
        columns: The values of each column; an `array` if all are whole numbers of 64 bits, or all are floats.
        count: How many rows there are, for rows may have no columns.
    """

    columns: tuple[Sequence[Any], ...]
    count: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "RowBlock":
        """Rows that are there one by one."""
        width = len(rows[0]) if rows else 0
        return cls(tuple(packed(list(map(itemgetter(place), rows))) for place in range(width)), len(rows))

    @classmethod
    def fetched(cls, rows: RowSource, size: int) -> "RowBlock":
        """At most `size` rows of a source; at the end none."""
        return cls.of(rows.fetchmany(size))

    @cached_property
    def size(self) -> int:
        """Bytes that they take in memory."""
        return sum(_VALUE_BYTES * self.count + _bytes_behind(column) for column in self.columns)

    @property
    def extra_size_of_rows(self) -> int:
        """Bytes that all rows take as tuples, while the columns are in memory, too."""
        numbers = (self.count * _BYTES_OF[type(column[0])] for column in self.columns if isinstance(column, array))
        return self.count * (_ROW_BYTES + _VALUE_BYTES * len(self.columns)) + sum(numbers)

    def rows(self) -> Iterator[Row]:
        """The rows one by one."""
        return zip(*self.columns, strict=True) if self.columns else repeat((), self.count)


@dataclass(frozen=True)
class HeldWords:
    """What users hold, in the words of errors.

    Attributes:
        of_user: What one user holds.
        of_all: What all users hold.
        hint: What the user can do.
    """

    of_user: str
    of_all: str
    hint: str


_RESULTS: Final = HeldWords(
    "the results that you hold take", "the results that all users hold take", "Read or close the others first."
)
_READS: Final = HeldWords(
    "the public rows that your queries read take",
    "the public rows that all users' queries read take",
    "Run one query after another.",
)


def packed(column: list[Any]) -> Sequence[Any]:
    """The same values, in an array if that can hold them."""
    code = _CODES.get(type(column[0])) if column else None
    if code is not None and len(set(map(type, column))) == 1:
        with suppress(OverflowError):
            return array(code, column)
    return column


def _bytes_behind(column: Sequence[Any]) -> int:
    """Bytes of the values themselves and of their elements; of most types all values have as many."""
    if isinstance(column, array):
        return 0
    kinds = set(map(type, column))
    sizes = [_BYTES_OF.get(kind) for kind in kinds]
    if None not in sizes:
        return len(column) * max(filter(None, sizes), default=0)
    if kinds == {str} and (joined := "".join(column)).isascii():
        return getsizeof("") * len(column) + len(joined)
    size = sum(map(getsizeof, column))
    if kinds.isdisjoint((list, tuple)):
        return size
    # Python has one object for each letter and for each small number, however often it is an element.
    lists = ({id(one): one for one in value} for value in column if isinstance(value, list | tuple))
    return size + sum(_bytes_behind(list(elements.values())) for elements in lists)


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

    def divide(self, processes: int) -> None:
        """Leave their parts of the room to other processes."""
        self._of_user //= processes
        self._of_all //= processes

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
                    hint=f"{self._words.hint} What was charged is not charged again.",
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


def divide_room(processes: int) -> None:
    """Leave their parts of the room for results to other processes of one gateway."""
    for held in (HELD, IN_MEMORY, READ):
        held.divide(processes)


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
        self.give_back()

    def give_back(self) -> None:
        """Count nothing of it any more."""
        self._held.give_back(self.user, self._size)
        self._size = 0

    def take(self, size: int) -> None:
        """Count some more bytes.

        Raises:
            LimitExceeded: There are more than there may be.
            ResultsTooLarge: The user, or all users together, hold too much.
        """
        if self._size + size > self._most:
            raise LimitExceeded(
                f"{self._what} more than {self._most >> 20:,} MiB",
                hint="Add a LIMIT, or ask for fewer or shorter columns. What was charged is not charged again.",
            )
        self._held.take(self.user, size)
        self._size += size


def batches(fetch: Callable[[int], RowBlock]) -> Iterator[RowBlock]:
    """Yield all rows, some at a time: one at first, then as many as take about two mebibytes.

    Args:
        fetch: Returns at most as many rows as its argument; at the end none.
    """
    size = _FIRST_ROWS
    while (block := fetch(size)).count:
        yield block
        size = max(1, min(BATCH_BYTES * block.count // max(block.size, 1), 4 * size, _BATCH_ROWS))


RESULT_MEMORY = 16 << 20
"""What one result takes in memory at the most."""
_FEW_ROWS: Final = 1_000
"""So many rows are given out as a tuple."""

_LOG = logging.getLogger("dpsql.results")


@dataclass(frozen=True, slots=True)
class _Written:
    """Rows in the file.

    Attributes:
        place: Where they start.
        length: How many bytes they are.
        digest: Tells whether these are the bytes that were written.
    """

    place: int
    length: int
    digest: bytes


_NOTHING: Final = 0, RowBlock((), 0)


class RowStore:
    """Rows in the order in which they were added; to be filled by `with`, which lets go of them after an error.

    Whoever keeps an error keeps its frames, and these would keep the rows that were there by then.

    Args:
        share: Where their bytes are counted.
    """

    def __init__(self, share: MemoryShare) -> None:
        self._share = share
        self._memory = MemoryShare(share.user, IN_MEMORY, RESULT_MEMORY)
        self._blocks: list[RowBlock | _Written] = []
        self._starts: list[int] = []
        self._count = 0
        self._file: BinaryIO | None = None
        self._end = 0
        self._read: tuple[int, RowBlock] = _NOTHING

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> "RowStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self._blocks.clear()
            self._read = _NOTHING
            self._close()
            for share in self.shares:
                share.give_back()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, block: RowBlock) -> None:
        """Keep some more rows.

        Raises:
            LimitExceeded: The result takes more bytes than it may.
            ResultsTooLarge: The user, or all users together, hold too much, or the disk is full.
        """
        self._share.take(block.size)
        self._blocks.append(block if self._is_in_memory(block.size) else self._write(block))
        self._starts.append(self._count)
        self._count += block.count

    @property
    def shares(self) -> tuple[MemoryShare, MemoryShare]:
        """What the rows take; to be held as long as the rows are."""
        return self._share, self._memory

    def rows(self) -> Sequence[Row]:
        """Return all rows, as a tuple where they are few and there is memory for it."""
        kept = KeptRows(self, range(self._count))
        if self._count > _FEW_ROWS or self._file is not None:
            return kept
        blocks = (block for block in self._blocks if isinstance(block, RowBlock))
        return tuple(kept) if self._is_in_memory(sum(block.extra_size_of_rows for block in blocks)) else kept

    def block(self, place: int) -> tuple[int, RowBlock]:
        """Return where the block starts that has the row at a place, counted from 0, and the block."""
        start, block = self._read
        if not start <= place < start + block.count:
            number = bisect(self._starts, place) - 1
            start, found = self._starts[number], self._blocks[number]
            block = found if isinstance(found, RowBlock) else self._read_back(found)
            self._read = start, block
        return start, block

    def _is_in_memory(self, size: int) -> bool:
        """Take memory, if there is some."""
        try:
            self._memory.take(size)
        except (LimitExceeded, ResultsTooLarge):
            return False
        return True

    def _write(self, block: RowBlock) -> _Written:
        data = memoryview(pickle.dumps((block.columns, block.count), pickle.HIGHEST_PROTOCOL))
        written = 0
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # it ends with this store
            while written < len(data):  # a disk that is nearly full takes a part, and refuses the next
                written += os.pwrite(self._file.fileno(), data[written:], self._end + written)
        except OSError as error:
            raise _no_room(error.strerror) from None
        found = _Written(self._end, len(data), _digest(data))
        self._end += len(data)
        return found

    def _read_back(self, written: _Written) -> RowBlock:
        assert self._file is not None  # noqa: S101
        data = os.pread(self._file.fileno(), written.length, written.place)
        if _digest(data) != written.digest:
            raise _no_room("other bytes came back than were written")
        return RowBlock(*pickle.loads(data))  # noqa: S301  # by this store, for the digest is its own


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def _no_room(reason: str | None) -> ResultsTooLarge:
    _LOG.error("a result cannot be kept in %s: %s", tempfile.tempdir or "a temporary file", reason)
    return ResultsTooLarge(
        "there is no room on the gateway's disk for the result",
        hint="Add a LIMIT, or tell the data owner. What was charged is not charged again.",
    )


class KeptRows(Sequence[Row]):
    """Rows of a store. A slice is no copy, so that a reader of a few at a time holds no others.

    Args:
        store: The store.
        places: Which of its rows, in this order.
        columns: Which of their columns, in this order; None for all.
    """

    def __init__(self, store: RowStore, places: range, columns: tuple[int, ...] | None = None) -> None:
        self._store = store
        self._places = places
        self._columns = columns

    def only(self, columns: Sequence[int]) -> "KeptRows":
        """The same rows with some of their columns; no copy, either."""
        of_all = self._columns
        chosen = tuple(columns) if of_all is None else tuple(of_all[column] for column in columns)
        return KeptRows(self._store, self._places, chosen)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "KeptRows": ...
    def __getitem__(self, index: int | slice) -> "Row | KeptRows":
        if isinstance(index, slice):
            return KeptRows(self._store, self._places[index], self._columns)
        place = self._places[index]
        (row,) = self._part(range(place, place + 1)).rows()
        return row

    def __iter__(self) -> Iterator[Row]:
        start = 0
        while start < len(self):
            block = self.block(start, len(self))
            yield from block.rows()
            start += block.count

    def block(self, start: int, stop: int) -> RowBlock:
        """The rows from one index to before another, or the first of them: as many as are kept in one block."""
        return self._part(self._places[start:stop])

    def _part(self, places: range) -> RowBlock:
        """The first of one or more places, as many as are kept in one block."""
        begin, block = self._store.block(places[0])
        ahead, end = places.step > 0, begin + block.count
        inside = range(places.start, min(places.stop, end) if ahead else max(places.stop, begin - 1), places.step)
        cut = slice(inside.start - begin, inside.stop - begin if inside.stop >= begin else None, inside.step)
        chosen = block.columns if self._columns is None else [block.columns[column] for column in self._columns]
        return RowBlock(tuple(column[cut] for column in chosen), len(inside))


def block_of(rows: Sequence[Row], start: int, stop: int) -> RowBlock:
    """The rows from one index to before another, column by column, or the first of them."""
    return rows.block(start, stop) if isinstance(rows, KeptRows) else RowBlock.of(rows[start:stop])
