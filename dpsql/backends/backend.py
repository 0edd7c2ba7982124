"""The interface of an engine: its schema, read once, and the exact cells of planned queries.

Rule: exact cells have their own type. Only release.py accepts it, and nothing sends it to a client.
"""

import logging
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import chain
from sys import getsizeof
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpsql.compiler.ir.functions import MAX_TEXT
from dpsql.compiler.ir.schema import EngineSchema
from dpsql.compiler.plan.query_plan import PlannedRelease, PublicRead
from dpsql.errors import (
    BackendFailure,
    CardinalityViolation,
    DatabaseUnavailable,
    LimitExceeded,
    QueryCanceled,
    ResultsTooLarge,
)
from dpsql.limits.result_memory import READ, MemoryShare, RowBlock, RowSource, batches

_LOG = logging.getLogger("dpsql.backend")

MAX_PUBLIC_BYTES = 256 << 20
"""What the rows take that a query reads of public tables to make others of them."""
MAX_PUBLIC_ROWS = 1_000_000
"""How many rows a query may read of public tables."""
TOO_MANY_ROWS = "the query reads more than {:,} rows of public tables"
MAX_CHECKED = 10_000
"""Statements remembered as runnable."""
BLOCK_BYTES = 2**26
"""What a block of groups of private keys may take in memory."""
_NUMBER = re.compile(r"CAST\('?-?[0-9.]+'? AS ")
"""The beginning of a number, as dialects write constants."""
_CHARACTER_BYTES = 4
_VALUE_BYTES = 64
"""What a value takes beside its characters."""

Texts = NDArray[np.object_]
"""A column that travels as text: str, or None for NULL."""


@dataclass(frozen=True)
class ExactCells:
    """The bounded, exact cells of one release: never shown, never stored, never logged.

    Attributes:
        keys: One column a group key, as text.
        units: The number of units in each group.
        cells: One column a primitive: numbers; of a primitive whose values are chosen by rank, texts of value:count, ….
    """

    keys: tuple[Texts, ...]
    units: NDArray[np.int64]
    cells: tuple[NDArray[Any], ...]

    def __repr__(self) -> str:
        """Hide the cells, wherever an exact value might be printed."""
        return f"ExactCells({len(self.keys)} keys, {len(self.cells)} cells)"


@dataclass(frozen=True)
class PublicRows:
    """Public rows as text: of public tables, or computed from released cells."""

    columns: tuple[Texts, ...]
    count: int

    @classmethod
    def empty(cls, width: int) -> "PublicRows":
        """No rows of so many columns."""
        return cls(tuple(np.array([], dtype=object) for _ in range(width)), 0)

    def table(self) -> dict[str, NDArray[Any]]:
        """The columns as v0, v1 …; rows without columns are still so many rows."""
        named: dict[str, NDArray[Any]] = {f"v{index}": column for index, column in enumerate(self.columns)}
        return named or {"one": np.ones(self.count, dtype=np.int64)}


def public_share(user: str) -> MemoryShare:
    """Where the public rows are counted that a query of a user holds."""
    return MemoryShare(user, READ, MAX_PUBLIC_BYTES, "what the query reads takes")


def public_blocks(source: RowSource, width: int, too_many: str) -> Iterator[PublicRows]:
    """The rows of a source, in blocks of a few mebibytes.

    Args:
        source: Of one more row than there may be, at the most.
        width: How many columns they have, all texts.
        too_many: Says that there are more than a million, with a place for this number.

    Raises:
        LimitExceeded: There are too many.
    """
    count = 0
    for block in batches(partial(RowBlock.fetched, source)):
        count += block.count
        if count > MAX_PUBLIC_ROWS:
            raise LimitExceeded(too_many.format(MAX_PUBLIC_ROWS), hint="Filter, aggregate or LIMIT them.")
        columns = np.empty((width, block.count), dtype=object)
        for index in range(width):
            columns[index] = block.columns[index]
        yield PublicRows(tuple(columns), block.count)


def public_rows(blocks: Iterable[PublicRows], width: int, share: MemoryShare) -> PublicRows:
    """Blocks of rows put together.

    Args:
        blocks: The blocks.
        width: How many columns they have.
        share: Where they are counted, before the next block is fetched.

    Raises:
        LimitExceeded: They take too many bytes.
        ResultsTooLarge: All that is held takes too much.
    """
    held: list[PublicRows] = []
    try:
        for block in blocks:
            share.take(sum(map(getsizeof, chain.from_iterable(block.columns))))
            held.append(block)
    except BaseException:  # whoever keeps it keeps this frame
        held.clear()
        share.give_back()
        raise
    if not held:
        return PublicRows.empty(width)
    columns = zip(*(block.columns for block in held), strict=True)
    return PublicRows(tuple(map(np.concatenate, columns)), sum(block.count for block in held))


@dataclass(frozen=True)
class ExactRows:
    """What one call reads: the exact cells of releases by index, and public rows by the SQL that reads them."""

    releases: Mapping[int, ExactCells]
    public: Mapping[str, PublicRows]


Take = Callable[[int, ExactCells], None]
"""Takes a block of groups of a release by index; it holds no block when the next one comes."""


class Runnable:
    """Statements that an engine is known to run: their digests, for the texts may be long.

    Rule: an engine that runs a statement runs it with other numbers of the same types in it. Constants of other types
        are compared as they are: a regular expression, for one, may be one that the engine cannot read.
    """

    def __init__(self) -> None:
        self._known: frozenset[bytes] = frozenset()

    def __contains__(self, sql: object) -> bool:
        return isinstance(sql, str) and _digest(sql) in self._known

    def add(self, statements: Iterable[str]) -> None:
        """Note statements; where they would be too many, those that were known are forgotten."""
        added = frozenset(map(_digest, statements))
        self._known = self._known | added if len(self._known) < MAX_CHECKED else added


def _digest(sql: str) -> bytes:
    return sha256(_NUMBER.sub("CAST(0 AS ", sql).encode("utf-8", "surrogatepass")).digest()


def together(blocks: Sequence[ExactCells]) -> ExactCells:
    """Put one or more blocks of a release together."""
    return ExactCells(
        tuple(map(np.concatenate, zip(*(block.keys for block in blocks), strict=True))),
        np.concatenate([block.units for block in blocks]),
        tuple(map(np.concatenate, zip(*(block.cells for block in blocks), strict=True))),
    )


def group_limit(planned: PlannedRelease) -> int | None:
    """How many groups an engine hands over at once; None where that is all of them, whose keys are public."""
    if any(made.primitive.rank is not None for made in planned.primitives):
        return 1
    if not planned.private_keys:
        return None
    return max(1, BLOCK_BYTES // (_CHARACTER_BYTES * MAX_TEXT * planned.keys))


def blocks_of(planned: PlannedRelease, pieces: Iterable[ExactCells]) -> Iterator[ExactCells]:
    """Put what an engine hands over at once into blocks: one of all groups, unless they may be released in blocks.

    Args:
        planned: The release.
        pieces: One or more; each group is in one of them.

    Yields:
        One block or more.
    """
    held: list[ExactCells] = []
    size = 0
    for piece in _whole(pieces) if planned.query.tree.in_pieces else pieces:
        added = _size(piece) if planned.in_blocks else 0
        if held and size + added > BLOCK_BYTES:
            yield _repeated(planned, together(held))
            held, size = [], 0
        held.append(piece)
        size += added
    yield _repeated(planned, together(held))


def _whole(rows: Iterable[ExactCells]) -> Iterator[ExactCells]:
    """Groups, of rows one by one whose last cell numbers the pieces of a group."""
    held: list[ExactCells] = []
    for row in rows:
        if held and not row.cells[-1].any():
            yield _joined(held)
            held = []
        held.append(row)
    yield _joined(held)


def _joined(rows: Sequence[ExactCells]) -> ExactCells:
    """One group, with each of its lists in one text.

    Raises:
        TypeError: The rows are not the pieces of one group, in their order.
    """
    first = rows[0]
    keys = [[key.tolist() for key in row.keys] for row in rows]
    places = [place for row in rows for place in row.cells[-1]]
    if len(first.units) and (any(each != keys[0] for each in keys) or places != [*range(len(rows))]):
        raise TypeError("pieces of a group are out of order")
    cells = [
        np.array([",".join(row.cells[place][0] for row in rows if row.cells[place][0])], dtype=object)
        if len(rows) > 1 and cell.dtype == object
        else cell
        for place, cell in enumerate(first.cells[:-1])
    ]
    return replace(first, cells=tuple(cells))


def cell_names(planned: PlannedRelease) -> list[str]:
    """The columns of a release's engine SQL."""
    keys, primitives = range(planned.keys), range(len(planned.primitives))
    names = [*(f"k{index}" for index in keys), "units", *(f"p{index}" for index in primitives)]
    return [*names, "piece"] if planned.query.tree.in_pieces else names


def are_lists(planned: PlannedRelease) -> list[bool]:
    """Tell for each column behind the units whether it is a list of values, as a text."""
    lists = [made.primitive.rank is not None for made in planned.primitives]
    return [*lists, False] if planned.query.tree.in_pieces else lists


def _repeated(planned: PlannedRelease, block: ExactCells) -> ExactCells:
    """A block with the lists that were read once for several of its cells."""
    first = planned.query.tree.repeated
    return replace(block, cells=tuple(block.cells[first.get(place, place)] for place in range(len(block.cells))))


def _size(piece: ExactCells) -> int:
    """Bytes that a piece takes in memory, or some more."""
    columns = (*piece.keys, *piece.cells)
    characters = sum(sum(map(len, filter(None, column))) for column in columns if column.dtype == object)
    return _CHARACTER_BYTES * characters + _VALUE_BYTES * (len(columns) + 1) * len(piece.units)


CANCEL_AGAIN_SECONDS = 0.2
"""The interval after which an engine is interrupted again."""


@dataclass
class Cancellation:
    """Lets one running query be stopped from another thread."""

    _stops: list[Callable[[], Any]] = field(default_factory=list)
    _cancelled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Stop the running call and all following ones."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            for stop in self._stops:
                stop()

    @property
    def is_cancelled(self) -> bool:
        """True once cancelled."""
        return self._cancelled

    def check(self) -> None:
        """Raise QueryCanceled once cancelled."""
        if self._cancelled:
            raise QueryCanceled("canceling statement due to user request")

    @contextmanager
    def stopping(self, stop: Callable[[], Any]) -> Iterator[None]:
        """Let what runs here be stopped so, beside what runs already.

        Raises:
            QueryCanceled: It was cancelled before.
        """
        with self._lock:
            self._stops.append(stop)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._stops.remove(stop)


Inputs = Mapping[int, tuple[PublicRows, ...]]
"""For releases by index, the rows of each of their inputs."""
NO_INPUTS: Inputs = MappingProxyType({})


class Unreachable(Exception):
    """No connection is available, or no statement can begin on it; this does not depend on private rows.

    Attributes:
        what: Why.
        hint: What the data owner can do about it.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def unavailable(what: str) -> DatabaseUnavailable:
    """The error for an engine that cannot be reached; the log has the reason."""
    _LOG.error("the database cannot be reached: %s", what)
    return DatabaseUnavailable("the database cannot be reached now; nothing was charged", hint="Try again in a moment.")


@contextmanager
def fetching(cancellation: Cancellation, engine_error: type[Exception]) -> Iterator[Callable[[], None]]:
    """One fetch: the only place that distinguishes failures of the infrastructure from failures on private rows.

    Guarantee: DatabaseUnavailable, which counts as nobody's failure, is raised only for `Unreachable`, and only before
        the engine was given any query. Once it has one, a row may be the cause of whatever fails: a lost connection,
        memory, disk, an answer that cannot be read.
    Assumes: the backend calls what it is given here before it hands over the first query.

    Args:
        cancellation: Of the fetch.
        engine_error: What the engine raises where a query fails, or is cancelled.

    Yields:
        What the backend calls as soon as a connection stands.

    Raises:
        DatabaseUnavailable: The engine was given no query.
        QueryCanceled: The query was stopped.
        BackendFailure: Anything else failed.
    """
    is_handed_over = False

    def hand_over() -> None:
        nonlocal is_handed_over
        is_handed_over = True

    try:
        yield hand_over
    except (BackendFailure, CardinalityViolation, QueryCanceled, LimitExceeded, ResultsTooLarge):
        raise
    except Exception as error:
        if cancellation.is_cancelled and isinstance(error, engine_error):
            raise QueryCanceled("canceling statement due to user request or time limit") from None
        if isinstance(error, Unreachable) and not is_handed_over:
            raise unavailable(error.what) from None
        # The engine's own text may quote a row: only its kind is logged.
        _LOG.error("engine query failed: %s", type(error).__name__)
        raise BackendFailure() from None


class Backend(Protocol):
    """A database, read only."""

    @property
    def schema(self) -> EngineSchema:
        """What the engine enforces, read when it was opened."""
        ...

    def check(
        self, releases: tuple[PlannedRelease, ...], public: tuple[PublicRead, ...], cancellation: Cancellation
    ) -> None:
        """Run engine SQL on empty tables of the same schema, so that SQL that cannot run is refused before a charge.

        Raises:
            UnsupportedQuery: The engine cannot run it; that depends on SQL and schema alone.
            QueryCanceled: The user or the time limit stopped it.
        """
        ...

    def fetch(
        self,
        releases: Mapping[int, PlannedRelease],
        public: tuple[PublicRead, ...],
        cancellation: Cancellation,
        inputs: Inputs = NO_INPUTS,
        take: Take | None = None,
        share: MemoryShare | None = None,
    ) -> ExactRows:
        """Run engine queries of one plan.

        Args:
            releases: Those over protected tables, by index.
            public: Those over public tables.
            cancellation: Stops them.
            inputs: The rows that each release reads beside the database's; no other query sees them.
            take: Takes each block of groups as it comes, in place of the answer: one block or more of each release.
                What it raises ends the fetch as a failure of the engine would.
            share: Where the public rows are counted; by default for nobody.

        Raises:
            BackendFailure: The engine failed, whatever the cause: one fixed sentence. It may depend on private rows,
                and counts as a failure of the user who asked.
            DatabaseUnavailable: There was no connection to be had, and the engine was given no query: `fetching`
                alone raises it.
            CardinalityViolation: A public subquery that stands for one value has several.
            LimitExceeded: There are too many public rows.
            QueryCanceled: The user or the time limit stopped it.
        """
        ...

    def stream(self, read: PublicRead, cancellation: Cancellation) -> Generator[PublicRows]:
        """Run one engine query over public tables, and yield its rows in blocks of a few mebibytes.

        Raises:
            Error: As `fetch`.
        """
        ...

    def count(self, sql: str, names: Sequence[str]) -> tuple[int, ...]:
        """Count exactly, for the data owner only: `dpsql policy check` prints it, and no client sees it.

        Args:
            sql: SQL with one row.
            names: Its columns, each a bigint.

        Raises:
            BackendFailure: The engine failed.
        """
        ...

    def warnings(self) -> tuple[str, ...]:
        """Advice for the data owner: privileges that are not needed, and tables without enforced constraints."""
        ...

    def advice(self) -> tuple[str, ...]:
        """Statements for the data owner to run that make queries faster."""
        ...

    def probe(self) -> None:
        """See whether queries could be answered now; no row is read.

        Raises:
            DatabaseUnavailable: They could not.
        """
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...
