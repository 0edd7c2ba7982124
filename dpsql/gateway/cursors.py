"""cursors: results that a session keeps, scrolled forward and backward by FETCH and MOVE as in the PostgreSQL manual.

Rule: a cursor's query is answered, and charged, when it is declared; what is fetched is what was released then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dpsql.compiler.sql.statements import DeclareStatement, FetchStatement
from dpsql.errors import CursorState, DuplicateCursor, LimitExceeded, UnknownPortal
from dpsql.gateway.query_run import Result, ResultColumn

MAX_CURSORS = 100
Rows = Sequence[tuple[object, ...]]


@dataclass
class Place:
    """A position in rows: 0 is before the first row, n is on row n, and the number of rows + 1 is after the last."""

    rows: Rows
    at: int = 0

    def read(self, direction: str, count: int | None) -> Rows:
        """Return the rows that a FETCH reads, and move along."""
        if direction in ("absolute", "relative"):
            return self._row(direction, count or 0)
        if count == 0:
            return self._current()
        forward = (direction == "forward") == (count is None or count > 0)
        steps = len(self.rows) + 1 if count is None else abs(count)
        return self._ahead(steps) if forward else self._back(steps)

    def _ahead(self, steps: int) -> Rows:
        read = self.rows[self.at : self.at + steps]
        self.at = min(self.at + steps, len(self.rows) + 1)
        return read

    def _back(self, steps: int) -> Rows:
        end = max(0, self.at - 1)
        read = self.rows[max(0, end - steps) : end][::-1]
        self.at = max(0, self.at - steps)
        return read

    def _row(self, direction: str, number: int) -> Rows:
        end = len(self.rows) + 1
        target = self.at + number if direction == "relative" else number if number >= 0 else end + number
        self.at = min(max(target, 0), end)
        return self._current()

    def _current(self) -> Rows:
        return self.rows[self.at - 1 : self.at] if self.at else ()


@dataclass(frozen=True)
class DeclaredCursor:
    """A declared cursor, its result and its position."""

    declared: DeclareStatement
    result: Result
    place: Place

    @property
    def columns(self) -> tuple[ResultColumn, ...]:
        """The columns of its rows."""
        return self.result.columns or ()

    def fetch(self, asked: FetchStatement) -> Rows:
        """Return the rows asked for.

        Raises:
            CursorState: It was declared NO SCROLL and would have to go back.
        """
        moved = replace(self.place)
        rows = moved.read(asked.direction, asked.count)
        if self.declared.scroll is False and (moved.at < self.place.at or (rows and moved.at == self.place.at)):
            raise CursorState(
                "cursor can only scan forward", hint="Declare it with SCROLL option to enable backward scan."
            )
        self.place.at = moved.at
        return rows


@dataclass
class Cursors:
    """The cursors of one session, by name."""

    _open: dict[str, DeclaredCursor] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """Those that are open."""
        return frozenset(self._open)

    def check_free(self, name: str) -> None:
        """Refuse a name that is taken, or one more than there may be: before its query is answered.

        Raises:
            DuplicateCursor: There is one of that name.
            LimitExceeded: There are too many.
        """
        if name in self._open:
            raise DuplicateCursor(f'cursor "{name}" already exists', hint=f"Write: CLOSE {name}")
        if len(self._open) >= MAX_CURSORS:
            raise LimitExceeded(f"more than {MAX_CURSORS} cursors", hint="Write: CLOSE ALL")

    def add(self, declared: DeclareStatement, result: Result) -> None:
        """Open a cursor before its first row."""
        self._open[declared.name] = DeclaredCursor(declared, result, Place(result.rows))

    def columns(self, name: str) -> tuple[ResultColumn, ...]:
        """The columns of a cursor.

        Raises:
            UnknownPortal: There is none of that name.
        """
        return self._named(name).columns

    def fetch(self, asked: FetchStatement) -> Result:
        """Run FETCH or MOVE.

        Raises:
            UnknownPortal: There is none of that name.
            CursorState: It only goes forward.
        """
        cursor = self._named(asked.name)
        rows = cursor.fetch(asked)
        if asked.move:
            return Result(f"MOVE {len(rows)}")
        return Result(f"FETCH {len(rows)}", cursor.columns, rows)

    def close(self, name: str | None) -> None:
        """Close one, or all.

        Raises:
            UnknownPortal: There is none of that name.
        """
        if name is None:
            self._open.clear()
        else:
            self._named(name)
            del self._open[name]

    def keep(self, names: frozenset[str]) -> None:
        """Close all but these: what a transaction or savepoint that is rolled back has opened goes with it."""
        self._open = {name: cursor for name, cursor in self._open.items() if name in names}

    def commit(self) -> None:
        """Close those that were declared without WITH HOLD."""
        self._open = {name: cursor for name, cursor in self._open.items() if cursor.declared.hold}

    def _named(self, name: str) -> DeclaredCursor:
        if name not in self._open:
            raise UnknownPortal(f'cursor "{name}" does not exist')
        return self._open[name]
