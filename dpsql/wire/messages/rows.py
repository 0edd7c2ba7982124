"""Many DataRow messages at once, from the bytes of their columns: no object is made for a row or a value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpsql.wire.messages.backend import DataRow

_HEAD: Final = np.dtype([("code", "S1"), ("length", ">i4"), ("width", ">u2")])
_SHORT: Final = 128
"""Up to so many bytes a value, on average, values are written all at once."""


@dataclass(frozen=True, slots=True)
class ColumnBytes:
    """The values of a column as they go over the wire.

    Attributes:
        data: The bytes of all of them, one after another.
        lengths: How many of these each value has; -1 is NULL.
    """

    data: bytes
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, values: Sequence[bytes]) -> "ColumnBytes":
        """Values that are there one by one."""
        return cls(b"".join(values), np.fromiter(map(len, values), dtype=np.int64, count=len(values)))

    def with_nulls(self, are_there: Sequence[bool]) -> "ColumnBytes":
        """The same values where the flags say so, and NULLs elsewhere."""
        lengths = np.full(len(are_there), -1)
        lengths[np.array(are_there, dtype=np.bool_)] = self.lengths
        return ColumnBytes(self.data, lengths)


def data_rows(columns: Sequence[ColumnBytes], count: int) -> bytes:
    """Return what so many DataRow messages encode to."""
    if not count:
        return b""
    sizes = np.full(count, _HEAD.itemsize + 4 * len(columns))
    for column in columns:
        sizes += np.maximum(column.lengths, 0)
    ends = np.cumsum(sizes)
    places, written = ends - sizes, np.empty(ends[-1], dtype=np.uint8)
    head = np.empty(count, dtype=_HEAD)
    head["code"], head["length"], head["width"] = DataRow.code, sizes - 1, len(columns)
    _put(written, places, head)
    places += _HEAD.itemsize
    for column in columns:
        _put(written, places, column.lengths.astype(">i4"))
        places += 4
        lengths = np.maximum(column.lengths, 0)
        _put_values(written, places, np.frombuffer(column.data, np.uint8), lengths)
        places += lengths
    return written.tobytes()


def _put_values(
    written: NDArray[np.uint8], places: NDArray[np.int64], data: NDArray[np.uint8], lengths: NDArray[np.int64]
) -> None:
    """Write values, each to its place."""
    width = int(lengths[0])
    if width and (lengths == width).all():
        _put(written, places, data.view(f"V{width}"))
        return
    begins = np.cumsum(lengths) - lengths
    if len(data) <= _SHORT * len(lengths):
        # Byte i of the data goes to where its value goes, and as far behind as it is in its value.
        written[np.repeat(places - begins, lengths) + np.arange(len(data))] = data
        return
    # The places of all bytes would take many times what the bytes do.
    for place, begin, length in zip(places.tolist(), begins.tolist(), lengths.tolist(), strict=True):
        written[place : place + length] = data[begin : begin + length]


def _put(written: NDArray[np.uint8], places: NDArray[np.int64], items: NDArray[Any]) -> None:
    """Write items of one size, each to its place."""
    width = items.itemsize
    # An item may start at any byte.
    starts = np.ndarray(len(written) - width + 1, f"V{width}", written, strides=(1,))
    starts[places] = items.view(f"V{width}")
