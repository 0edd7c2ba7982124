"""fetching: the result of a cursor's last statement, and how far it was fetched."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, Self, TypeVar

from dpsql.dbapi.types import Described, described
from dpsql.errors import InterfaceError, RowOutOfRange
from dpsql.gateway.results import Result, ResultColumn

Row = tuple[Any, ...]
Made = TypeVar("Made")


class Fetching(ABC):
    """The half of a PEP 249 cursor that hands out rows."""

    def __init__(self) -> None:
        self._result: Result | None = None
        self._next = 0
        self._arraysize = 1

    @property
    def arraysize(self) -> int:
        """Rows that `fetchmany` fetches unless told."""
        return self._arraysize

    @arraysize.setter
    def arraysize(self, size: int) -> None:
        self._arraysize = _count(size, "arraysize")

    @property
    def description(self) -> list[Described] | None:
        """Name, PostgreSQL type name and sizes of each column; None unless the last statement returned rows."""
        if self._result is None or self._result.columns is None:
            return None
        return [described(column) for column in self._result.columns]

    @property
    def rowcount(self) -> int:
        """Rows of the last result; -1 where there is none."""
        return -1 if self._result is None or self._result.columns is None else len(self._result.rows)

    @property
    def rownumber(self) -> int | None:
        """Index of the row that is fetched next."""
        return self._next if self._result is not None and self._result.columns is not None else None

    @property
    def lastrowid(self) -> None:
        """None: nothing is written, and released rows have no identity."""
        return None

    def fetchone(self) -> Row | None:
        """The next row, or None after the last."""
        rows = self._rows()
        if self._next >= len(rows):
            return None
        self._next += 1
        return rows[self._next - 1]

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next `size` rows, `arraysize` by default."""
        return self._take(self._arraysize if size is None else _count(size, "size"))

    def fetchall(self) -> list[Row]:
        """All rows that are left."""
        return self._take(len(self._rows()))

    def scroll(self, value: int, mode: str = "relative") -> None:
        """Move to another row of the result.

        Args:
            value: Rows to go on by, or back where it is negative; or the index of the row to be fetched next.
            mode: "relative" or "absolute".

        Raises:
            RowOutOfRange: It would leave the result; an IndexError, too. The cursor stays where it is.
        """
        rows = self._rows()
        if mode not in ("relative", "absolute"):
            raise InterfaceError(f"invalid scroll mode: {mode!r:.40}", hint='scroll(1, "relative")')
        place = _whole(value, "value") + (self._next if mode == "relative" else 0)
        if not 0 <= place < len(rows):
            raise RowOutOfRange("the row is outside the result", hint="scroll(0, 'absolute')")
        self._next = place

    def nextset(self) -> None:
        """Skip what is left: a statement has one result, so there is no next one."""
        self._next = len(self._rows())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    @abstractmethod
    def _check_open(self) -> None:
        """Raise InterfaceError if the cursor or its connection is closed."""

    def _keep(self, result: Result | None) -> None:
        self._result, self._next = result, 0

    def _hand_over(self, make: Callable[[Sequence[ResultColumn], Sequence[Row]], Made]) -> Made:
        """What is made of the rows that are left; they stay where they are if it cannot be made."""
        rows = self._rows()
        columns = self._result.columns if self._result is not None else None
        made = make(columns or (), rows[self._next :])
        self._next = len(rows)
        return made

    def _take(self, count: int) -> list[Row]:
        taken = list(self._rows()[self._next : self._next + count])
        self._next += len(taken)
        return taken

    def _rows(self) -> Sequence[Row]:
        self._check_open()
        if self._result is None or self._result.columns is None:
            raise InterfaceError("there is no result to fetch", hint="Call execute with a query first.")
        return self._result.rows


def _whole(number: object, name: str) -> int:
    try:
        return index(number)  # type: ignore[arg-type]  # what is none is told so
    except TypeError:
        raise InterfaceError(f"{name} is a whole number, not {type(number).__name__}") from None


def _count(number: object, name: str) -> int:
    count = _whole(number, name)
    if count < 0:
        raise InterfaceError(f"{name} is not negative", hint="Call fetchall() for all remaining rows.")
    return count
