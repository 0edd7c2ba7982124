"""kept_rows: the rows of a result, in memory while there is room, and beyond that in a file without a name.

Rule 1: what the results of all users take in memory is bounded, whoever reads them slowly or never.
Rule 2: only rows that the user may have are kept here. The file has no name, nobody else can open it, and it ends with
    the result.
Rule 3: what is read back is what was written, byte by byte, or it is not looked at: values are an analyst's own texts.
"""

import hashlib
import logging
import os
import pickle
import tempfile
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, overload

from dpsql.errors import QueryTooComplex, ResultsTooLarge
from dpsql.limits.result_memory import IN_MEMORY, MemoryShare, size_of

RESULT_MEMORY = 16 << 20
"""What one result takes in memory at the most."""

Row = tuple[Any, ...]

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


class RowStore:
    """Rows in the order in which they were added.

    Args:
        share: Where their bytes are counted.
    """

    def __init__(self, share: MemoryShare) -> None:
        self._share = share
        self._memory = MemoryShare(share.user, IN_MEMORY, RESULT_MEMORY)
        self._batches: list[list[Row] | _Written] = []
        self._starts: list[int] = []
        self._count = 0
        self._file: BinaryIO | None = None
        self._end = 0
        self._read: tuple[int, list[Row]] = (0, [])

    def __len__(self) -> int:
        return self._count

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, rows: list[Row]) -> None:
        """Keep some more rows.

        Raises:
            QueryTooComplex: The result takes more bytes than it may.
            ResultsTooLarge: The user, or all users together, hold too much, or the disk is full.
        """
        size = size_of(rows)
        self._share.take(size)
        self._batches.append(rows if self._is_in_memory(size) else self._write(rows))
        self._starts.append(self._count)
        self._count += len(rows)

    @property
    def shares(self) -> tuple[MemoryShare, MemoryShare]:
        """What the rows take; to be held as long as the rows are."""
        return self._share, self._memory

    def rows(self) -> Sequence[Row]:
        """Return all rows, as a tuple where they are in memory."""
        if self._file is None:
            return tuple(row for batch in self._batches if isinstance(batch, list) for row in batch)
        return KeptRows(self, range(self._count))

    def row(self, place: int) -> Row:
        """Return the row at a place, counted from 0; of a batch that is in the file, the others come with it."""
        start, batch = self._read
        if not start <= place < start + len(batch):
            number = bisect(self._starts, place) - 1
            start, found = self._starts[number], self._batches[number]
            batch = found if isinstance(found, list) else self._read_back(found)
            self._read = start, batch
        return batch[place - start]

    def _is_in_memory(self, size: int) -> bool:
        """Take memory, if there is some."""
        try:
            self._memory.take(size)
        except (QueryTooComplex, ResultsTooLarge):
            return False
        return True

    def _write(self, rows: list[Row]) -> _Written:
        data = memoryview(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL))
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

    def _read_back(self, written: _Written) -> list[Row]:
        assert self._file is not None  # noqa: S101
        data = os.pread(self._file.fileno(), written.length, written.place)
        if _digest(data) != written.digest:
            raise _no_room("other bytes came back than were written")
        rows: list[Row] = pickle.loads(data)  # noqa: S301  # by this store, for the digest is its own
        return rows


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
        row = self._store.row(self._places[index])
        return row if self._columns is None else tuple(row[column] for column in self._columns)
