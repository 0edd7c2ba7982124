"""release: exact cells in, noisy cells out; then the query's own post-processing on what was released.

Rule 1: this file alone makes released cells and rows of exact ones: selection first, noise on every cell kept.
Rule 2: rows come in the order of their keys, never in the engine's.
Rule 3: post-processing runs in an engine that holds no data and reaches none.
"""

import base64
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Final
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpsql.backends.backend import Cancellation, ExactCells, PublicRows, Runnable, Texts, public_rows, public_share
from dpsql.backends.duckdb_running import RETURNS_MEMORY, is_several_rows, rehearse, stoppable, text_rows
from dpsql.compiler.canonical.descriptions import ReleaseDescription
from dpsql.compiler.derivation.derivation import Derivation
from dpsql.compiler.dialects.render import CopiedText
from dpsql.compiler.ir.primitives import MAX_CELL
from dpsql.compiler.plan.query_plan import (
    MAX_RESULT_ROWS,
    CompiledQuery,
    CopiedRows,
    DerivedCells,
    PlannedInput,
    PlannedRelease,
)
from dpsql.errors import (
    CardinalityViolation,
    GuaranteeMismatch,
    InvalidParameter,
    LedgerUnavailable,
    LimitExceeded,
    QueryCanceled,
)
from dpsql.gateway.dropped import Dropped, compared_groups, dropped_shares
from dpsql.gateway.result_values import as_values
from dpsql.limits.result_memory import KeptRows, MemoryShare, RowBlock, RowStore, batches, packed
from dpsql.privacy.cost import Event
from dpsql.privacy.exponential_mechanism import Picking, RankChoice
from dpsql.privacy.mechanisms import AddedNoise, noise_of, variance
from dpsql.privacy.selection import Threshold
from dpsql.sqltypes import SqlType
from dpsql.sqltypes.textinput import read

POST_SECONDS = 60.0
"""How long post-processing may take."""
_FEW_ROWS: Final = 1_000

Tables = Mapping[str, Mapping[str, NDArray[Any]]]
"""What post-processing reads: columns by name, by the name of their table."""


@dataclass(frozen=True)
class ReleasedCells:
    """The noisy cells of one release: public from here on.

    Attributes:
        keys: One column a group key, as text.
        cells: One column a primitive, in grid units.
    """

    keys: tuple[Texts, ...]
    cells: tuple[NDArray[np.int64], ...]

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len((*self.keys, *self.cells)[0])

    def to_bytes(self, planned: PlannedRelease | None = None) -> bytes:
        """The form in which the ledger keeps it; of a planned release with what says which others it answers."""
        columns = [base64.b64encode(cell.astype("<i8").tobytes()).decode() for cell in self.cells]
        stored: dict[str, Any] = {"keys": [list(key) for key in self.keys], "cells": columns}
        if planned is not None and planned.described is not None:
            stored["of"] = planned.described.description.to_json()
            stored["noise"] = [event.to_json() for event in planned.events]
        return json.dumps(stored).encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> "ReleasedCells":
        """Read what to_bytes wrote.

        Raises:
            LedgerUnavailable: It is something else.
        """
        try:
            stored = json.loads(payload)
            cells = tuple(
                np.frombuffer(base64.b64decode(text), dtype="<i8").astype(np.int64) for text in stored["cells"]
            )
            return cls(tuple(np.array(key, dtype=object) for key in stored["keys"]), cells)
        except (ValueError, KeyError, TypeError):
            raise LedgerUnavailable("a stored release cannot be read", hint="Run dpsql ledger verify.") from None

    def changed(self, cells: Mapping[int, NDArray[np.int64]]) -> "ReleasedCells":
        """The same groups with other cells, which are made of released ones, at some places."""
        return replace(self, cells=tuple(cells.get(place, each) for place, each in enumerate(self.cells)))


@dataclass(frozen=True)
class StoredRelease:
    """What a stored release says of itself: what it adds up, the noise of its cells, and how many groups it has."""

    description: ReleaseDescription
    events: tuple[Event, ...]
    groups: int

    @cached_property
    def noises(self) -> tuple[AddedNoise, ...]:
        """The noise of its cells."""
        return tuple(noise for event in self.events if (noise := noise_of(event)) is not None)

    @cached_property
    def has_all_noises(self) -> bool:
        """Whether each of its cells has a noise that adds up."""
        return len(self.noises) == len(self.description.cells)

    @cached_property
    def variances(self) -> Mapping[str, float]:
        """About the variance of the sum of each of its cells over all groups, by what is added up there."""
        pairs = zip(self.description.cells, self.noises, strict=False)
        return {cell.text: self.groups * float(variance(noise)) for cell, noise in pairs}


def stored_release(payload: bytes) -> StoredRelease:
    """Read what says of a stored release which others it answers.

    Raises:
        LedgerUnavailable: There is nothing of that kind.
    """
    try:
        stored = json.loads(payload)
        groups = len(stored["keys"][0]) if stored["keys"] else 1
        events = tuple(map(Event.from_json, stored["noise"]))
        return StoredRelease(ReleaseDescription.from_json(stored["of"]), events, groups)
    except (ValueError, KeyError, TypeError):
        raise LedgerUnavailable("a stored release cannot be read", hint="Run dpsql ledger verify.") from None


@dataclass(frozen=True)
class ReleasedRows:
    """The rows that leave.

    Attributes:
        rows: The rows.
        dropped: What bounding dropped of them where wide totals tell it.
        shares: Their bytes.
        compared: Of the released groups that rows were compared with, those that may be noise alone, and all; None if
            rows were compared with none.
    """

    rows: Sequence[tuple[Any, ...]]
    dropped: tuple[Dropped, ...] = ()
    shares: tuple[MemoryShare, ...] = field(default=(), compare=False, repr=False)
    compared: tuple[int, int] | None = field(default=None, compare=False)

    def only(self, places: Sequence[int]) -> "ReleasedRows":
        """The same rows with some of their columns; rows in a file stay there."""
        if isinstance(self.rows, KeptRows):
            return replace(self, rows=self.rows.only(places))
        return replace(self, rows=tuple(tuple(row[place] for place in places) for row in self.rows))


def release(planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
    """Select groups and add noise. Only this function turns exact cells into released cells.

    Guarantee: the events of `planned`, for cells whose sensitivity is that of its primitives. Under a minimum frequency
        of k, groups of n units are selected as groups of max(0, n - k + 1), which one unit moves by 1 at the most.
    Assumes: `exact` is what the engine gave for `planned.sql`.
    Reference: Dwork & Roth 2014, section 3; Wilson et al. 2020 for the selection of groups by their units.
    """
    bounds = planned.contribution
    groups = len(exact.units) if bounds.lists is None else len(_lists(planned, exact))
    bounded = bounds.ranked or bounds.one_row or bounds.one_group or not planned.limits_groups
    if bounds.grouped and not bounded and groups > bounds.groups_per_unit:
        # Nothing limits the groups of one unit then but that there are no more; how many there are is public.
        raise GuaranteeMismatch("number of groups exceeds the planned limit")
    if bounds.lists is not None:
        cells = [_picked(cell, planned, index, exact) for index, cell in enumerate(exact.cells)]
        return ReleasedCells(exact.keys, tuple(cells))
    if planned.selection is None:
        cells = [_noised(cell, planned, index) for index, cell in enumerate(exact.cells)]
        return ReleasedCells(exact.keys, tuple(cells))
    if isinstance(planned.selection, Threshold):
        return _cut_off(planned, planned.selection, exact)
    kept = planned.selection.keep(np.maximum(exact.units - (planned.min_units - 1), 0))
    cells = [_noised(cell[kept], planned, index) for index, cell in enumerate(exact.cells)]
    return _shown(planned, exact, kept, cells)


def listed_groups(planned: PlannedRelease, listed: PublicRows | None) -> ReleasedCells:
    """The public groups of a release that is not made yet, with zeros for its cells: no private row is read.

    Args:
        planned: The release.
        listed: Its groups; None if it has no keys.
    """
    count, keys = (1, ()) if listed is None else (listed.count, listed.columns)
    return ReleasedCells(keys, tuple(np.zeros(count, dtype=np.int64) for _ in planned.primitives))


def merged(blocks: Sequence[ReleasedCells]) -> ReleasedCells:
    """Put the blocks together in which the groups of one release were released.

    Guarantee: that of `release` for all groups at once. Only a release that selects groups comes in several blocks.
        Each group is selected, and has its noise, by itself and from fresh randomness, so which groups share a block
        has no part in what is released; and the rows are sorted by their keys.
    Assumes: each group is in one block.
    Reference: as `release`.
    """
    if len(blocks) == 1:
        return blocks[0]
    keys = zip(*(block.keys for block in blocks), strict=True)
    cells = zip(*(block.cells for block in blocks), strict=True)
    return _sorted(ReleasedCells(tuple(map(np.concatenate, keys)), tuple(map(np.concatenate, cells))))


def weighed(parts: Sequence[ReleasedCells], variances: Sequence[Sequence[Fraction]]) -> ReleasedCells:
    """The mean of what sources tell of the cells of a release, rounded to whole numbers.

    Args:
        parts: For each source, the cells; all have the same keys.
        variances: For each source, the variance of each cell.
    """
    pairs = zip(zip(*(part.cells for part in parts), strict=True), zip(*variances, strict=True), strict=True)
    return ReleasedCells(parts[0].keys, tuple(weighed_mean(cells, each) for cells, each in pairs))


def weighed_mean(cells: Sequence[NDArray[np.int64]], variances: Sequence[Fraction]) -> NDArray[np.int64]:
    """The mean of what sources tell of one cell in each group, rounded to whole numbers."""
    first = cells[min(range(len(cells)), key=lambda place: variances[place])]
    precisions = [1 / each for each in variances]
    # What two releases tell differs by noise alone: a small number, of which a float is exact enough.
    shift = np.zeros(len(first))
    for other, precision in zip(cells, precisions, strict=True):
        shift += float(precision / sum(precisions)) * (other - first)
    whole = np.clip(np.rint(shift), -MAX_CELL, MAX_CELL).astype(np.int64)
    mean: NDArray[np.int64] = np.clip(first + whole, -MAX_CELL, MAX_CELL)
    return mean


def _cut_off(planned: PlannedRelease, threshold: Threshold, exact: ExactCells) -> ReleasedCells:
    """Keep the groups whose noisy cell reaches the threshold; that cell is released as it was compared.

    Under a minimum frequency of k, it is the count less k - 1 that must reach it.
    """
    if planned.threshold_primitive is None:
        raise TypeError("a threshold cuts off a primitive")
    compared = _noised(exact.cells[planned.threshold_primitive], planned, planned.threshold_primitive)
    kept = (compared - (planned.min_units - 1) >= threshold.cutoff) & (exact.units >= planned.min_units)
    cells = [
        compared[kept] if index == planned.threshold_primitive else _noised(cell[kept], planned, index)
        for index, cell in enumerate(exact.cells)
    ]
    return _shown(planned, exact, kept, cells)


def _shown(
    planned: PlannedRelease, exact: ExactCells, kept: NDArray[np.bool_], cells: Sequence[NDArray[np.int64]]
) -> ReleasedCells:
    """The groups that are kept: private ones sorted, public ones in the order in which they are listed."""
    released = ReleasedCells(tuple(key[kept] for key in exact.keys), tuple(cells))
    return _sorted(released) if planned.private_keys else released


def _sorted(cells: ReleasedCells) -> ReleasedCells:
    """The same rows by their keys as text, NULLs last: nothing of the engine's order is left."""
    order = np.lexsort([_ranks(key.tolist()) for key in reversed(cells.keys)])
    return ReleasedCells(tuple(key[order] for key in cells.keys), tuple(cell[order] for cell in cells.cells))


def _ranks(values: list[Any], *, descending: bool = False, nulls_first: bool = False) -> NDArray[np.int64]:
    """The place of each value among the different ones in their order; NULL is before or behind them."""
    ordered = sorted(set(values) - {None}, reverse=descending)
    places: dict[Any, int] = {value: place for place, value in enumerate(ordered)}
    places[None] = -1 if nulls_first else len(places)
    return np.fromiter(map(places.__getitem__, values), dtype=np.int64, count=len(values))


def _noised(cell: NDArray[Any], planned: PlannedRelease, index: int) -> NDArray[np.int64]:
    """Cells lie within ±MAX_CELL, and noise beyond that has a probability below 2^-128."""
    drawn = planned.primitives[index].noise
    if isinstance(drawn, RankChoice):
        return np.array([drawn.choose(*counted(text)) for text in cell], dtype=np.int64)
    if isinstance(drawn, Picking):
        raise TypeError("a place is no noisy cell")
    noise = np.clip(drawn.sample(len(cell)), -MAX_CELL, MAX_CELL)
    noisy: NDArray[np.int64] = np.clip(np.clip(cell, -MAX_CELL, MAX_CELL) + noise, -MAX_CELL, MAX_CELL)
    return noisy


def _lists(planned: PlannedRelease, exact: ExactCells) -> list[NDArray[np.int64]]:
    """The rows of each list that groups are picked from."""
    found: dict[tuple[str | None, ...], list[int]] = {}
    keys = [exact.keys[place] for place in planned.contribution.lists or ()]
    for row in range(len(exact.units)):
        found.setdefault(tuple(key[row] for key in keys), []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in found.values()]


def _picked(cell: NDArray[Any], planned: PlannedRelease, index: int, exact: ExactCells) -> NDArray[np.int64]:
    """The place of each group in its list."""
    drawn = planned.primitives[index].noise
    if not isinstance(drawn, Picking):
        raise TypeError("groups of a list are picked")
    places = np.zeros(len(cell), dtype=np.int64)
    for rows in _lists(planned, exact):
        places[rows] = drawn.pick(cell[rows])
    return places


def counted(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values of a group in order, and how often each is there."""
    pairs = np.fromstring(text.replace(":", ","), dtype=np.int64, sep=",").reshape(-1, 2)
    order = np.argsort(pairs[:, 0])  # which costs less than an order in the engine
    return pairs[order, 0], pairs[order, 1]


class PostProcessor:
    """An in-memory engine for what stands above the releases; it holds no data but what one query hands it."""

    def __init__(self, timezone: str) -> None:
        """Open the engine and lock it down.

        Args:
            timezone: The zone of timestamptz values.
        """
        self._database = duckdb.connect(
            ":memory:",
            config={
                **RETURNS_MEMORY,
                "enable_external_access": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "python_enable_replacements": False,
                "memory_limit": "2GB",
                "temp_directory": "",
                "threads": 1,
            },
        )
        self._zone = ZoneInfo(timezone)
        self._checked = Runnable()
        self._database.execute(f"SET GLOBAL TimeZone = '{timezone}'")
        self._database.execute("SET lock_configuration = true")

    def check(self, query: CompiledQuery, cancellation: Cancellation) -> None:
        """Run all post-processing SQL of a query on empty relations, before anything is charged.

        Raises:
            UnsupportedQuery: The engine cannot run it.
        """
        widths = {read.table: read.width for read in query.public_reads}
        widths |= {read.table: read.width for read in query.system_reads}
        self._rehearse(query.post_sql, query.releases, widths, cancellation)
        for planned in query.releases:
            for made in planned.inputs:
                widths = {read.table: read.width for read in made.public_reads}
                self._rehearse(made.sql, made.releases, widths, cancellation)

    def _rehearse(
        self, sql: str, releases: Sequence[PlannedRelease], widths: Mapping[str, int], cancellation: Cancellation
    ) -> None:
        if sql in self._checked:
            return
        tables = {name: PublicRows.empty(width).table() for name, width in widths.items()}
        with self._cursor(_released_tables([_nothing(planned) for planned in releases]) | tables) as cursor:
            if widths or releases:
                rehearse(cursor, sql, cancellation)
        self._checked.add([sql])

    def make(
        self,
        planned: PlannedInput,
        releases: Sequence[ReleasedCells],
        public: Sequence[PublicRows],
        cancellation: Cancellation,
        user: str = "",
    ) -> PublicRows:
        """Make an input of an engine query, of released cells and public rows.

        Args:
            planned: The input.
            releases: The cells of the releases it is made of, in their order.
            public: The rows of its public reads, in their order.
            cancellation: Stops it.
            user: For whom the bytes of the rows are counted.

        Raises:
            CardinalityViolation: It stands for one value, or a subquery in it does, and there are several.
            InvalidParameter: A value has no place in its type.
            LimitExceeded: It has too many rows, or needs more memory than it may have.
            QueryCanceled: The user or the time limit stopped it.
        """
        names = [read.table for read in planned.public_reads]
        tables = {name: rows.table() for name, rows in zip(names, public, strict=True)}
        with self._running(_released_tables(releases) | tables, cancellation) as cursor:
            too_many = "a subquery of the query has more than {:,} rows"
            blocks = text_rows(cursor, planned.sql, len(planned.types), too_many)
            rows = public_rows(blocks, len(planned.types), public_share(user))
        if planned.single and rows.count > 1:
            raise CardinalityViolation
        return rows

    def most_terms(
        self, derivation: Derivation, cells: ReleasedCells, cancellation: Cancellation
    ) -> tuple[tuple[int, ...], int]:
        """How many cells of a release are added up at the most for each cell of another one, and for how many groups.

        Raises:
            InvalidParameter: The other groups cannot be computed of its keys.
            LimitExceeded: They need more memory than they may have.
            QueryCanceled: The user or the time limit stopped it.
        """
        with self._running(_released_tables([cells]), cancellation) as cursor:
            *terms, groups = cursor.execute(derivation.terms).fetchall()[0]
        return tuple(terms), groups

    def members(
        self, derivation: Derivation, cells: ReleasedCells, cancellation: Cancellation
    ) -> list[tuple[Any, ...]]:
        """Where the cells of a release are added up for those of another one, as `Derivation.members` has it.

        Raises:
            InvalidParameter: As `most_terms`.
            LimitExceeded: As `most_terms`.
            QueryCanceled: As `most_terms`.
        """
        with self._running(_released_tables([cells]), cancellation) as cursor:
            return cursor.execute(derivation.members).fetchall()

    def derive(
        self,
        derived: DerivedCells,
        cells: ReleasedCells,
        listed: PublicRows | None,
        cancellation: Cancellation,
        estimates: Mapping[int, NDArray[np.float64]] | None = None,
    ) -> ReleasedCells:
        """Make the cells of a release of those of another one.

        Args:
            derived: How they are made.
            cells: Those of the other release.
            listed: The groups that are listed; None where there are no groups.
            cancellation: Stops it.
            estimates: More exact estimates of some of its cells, by their places; their sums are rounded.

        Raises:
            InvalidParameter: As `most_terms`.
            LimitExceeded: As `most_terms`.
            QueryCanceled: As `most_terms`.
        """
        tables = _released_tables([cells]) | ({} if listed is None else {"q0": listed.table()})
        tables["r0"] = tables["r0"] | {f"p{place}": cell for place, cell in (estimates or {}).items()}
        with self._running(tables, cancellation) as cursor:
            rows = cursor.execute(derived.sql).fetchall()
        columns = list(zip(*rows, strict=True)) or [()] * (derived.width + len(derived.terms))
        keys = tuple(np.array(column, dtype=object) for column in columns[: derived.width])
        return ReleasedCells(keys, tuple(np.array(column, dtype=np.int64) for column in columns[derived.width :]))

    def run(
        self,
        query: CompiledQuery,
        releases: Sequence[ReleasedCells],
        public: Mapping[str, PublicRows],
        system: Mapping[str, Sequence[Sequence[str | None]]],
        cancellation: Cancellation,
        share: MemoryShare | None = None,
    ) -> ReleasedRows:
        """Run the post-processing SQL of a query.

        Args:
            query: The planned query.
            releases: The released cells, one a release of the query.
            public: Public rows by table name.
            system: Relations of schema dpsql by name, each a list of columns as text.
            cancellation: Stops it.
            share: Where the bytes of the rows are counted; by default for no user.

        Raises:
            CardinalityViolation: A subquery stands for one value and has several.
            InvalidParameter: A value has no place in its type.
            LimitExceeded: It needs more memory than it may have, or has too many rows or bytes.
            ResultsTooLarge: The user, or all users together, hold too much.
            QueryCanceled: The user or the time limit stopped it.
        """
        tables = {read.table: public[read.table].table() for read in query.public_reads}
        for wanted in query.system_reads:
            columns = tuple(np.array(column, dtype=object) for column in system[wanted.name])
            tables[wanted.table] = PublicRows(columns, len(columns[0])).table()
        with RowStore(share or MemoryShare()) as kept:
            copied = query.copied
            # Nothing stops Python while it sorts, so it sorts few rows.
            if copied is None or (copied.order and releases[copied.release].count > _FEW_ROWS):
                self._keep(kept, query, _released_tables(releases) | tables, cancellation)
            else:
                self._add(kept, query, _CopiedSource(query, copied, releases, cancellation).fetch)
        cells = [each.cells for each in releases]
        return ReleasedRows(
            kept.rows(), tuple(dropped_shares(query, cells)), kept.shares, compared_groups(query, cells)
        )

    def pass_on(
        self, query: CompiledQuery, blocks: Iterable[PublicRows], cancellation: Cancellation, share: MemoryShare
    ) -> ReleasedRows:
        """Run the post-processing SQL of a query that passes on the rows of one public read, block by block.

        Raises:
            InvalidParameter: A value has no place in its type.
            LimitExceeded: It has too many rows or bytes.
            ResultsTooLarge: The user, or all users together, hold too much.
            QueryCanceled: The user or the time limit stopped it.
        """
        (read,) = query.public_reads
        with RowStore(share) as kept:
            for block in blocks:
                self._keep(kept, query, {read.table: block.table()}, cancellation)
        return ReleasedRows(kept.rows(), shares=kept.shares)

    def _keep(self, kept: RowStore, query: CompiledQuery, tables: Tables, cancellation: Cancellation) -> None:
        """Add the rows of the post-processing SQL over some tables."""
        with self._running(tables, cancellation) as cursor:
            self._add(kept, query, partial(RowBlock.fetched, cursor.execute(query.post_sql)))

    def _add(self, kept: RowStore, query: CompiledQuery, fetch: Callable[[int], RowBlock]) -> None:
        """Add all rows that are fetched."""
        types = [column.type for column in query.columns]
        for batch in batches(lambda size: as_values(types, self._zone, fetch(size))):
            kept.add(batch)
            if len(kept) > MAX_RESULT_ROWS:
                raise LimitExceeded(f"the result has more than {MAX_RESULT_ROWS:,} rows", hint="Add a LIMIT.")

    @contextmanager
    def _running(self, tables: Tables, cancellation: Cancellation) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection that sees some tables, within the limits of time and memory; its errors are typed ones."""
        try:
            with self._cursor(tables) as cursor, stoppable(cursor, cancellation, POST_SECONDS):
                yield cursor
        except duckdb.OutOfMemoryException:
            raise LimitExceeded("the result of this query is too large") from None
        except duckdb.Error as error:
            if cancellation.is_cancelled:
                raise QueryCanceled("canceling statement due to user request or time limit") from None
            if is_several_rows(error):
                raise CardinalityViolation from None
            # Everything here is released or public, so its text may be told.
            raise InvalidParameter(f"the result cannot be computed: {str(error).splitlines()[0]}") from None

    @contextmanager
    def _cursor(self, tables: Tables) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection of its own that sees some tables, and takes them with it."""
        cursor = self._database.cursor()
        try:
            for name, columns in tables.items():
                cursor.register(name, columns)
            yield cursor
        finally:
            cursor.close()

    def close(self) -> None:
        """Let go of the engine."""
        self._database.close()


class _CopiedSource:
    """The rows that post-processing SQL would only copy, as its engine returns them.

    Args:
        query: The query.
        copied: Its rows.
        releases: The cells of its releases.
        cancellation: Stops it.
    """

    def __init__(
        self,
        query: CompiledQuery,
        copied: CopiedRows,
        releases: Sequence[ReleasedCells],
        cancellation: Cancellation,
    ) -> None:
        self._cancellation = cancellation
        self._cells = releases[copied.release]
        self._columns = tuple(zip(copied.columns, (column.type for column in query.columns), strict=True))
        self._places = self._in_order(copied)
        self._at = 0

    def _in_order(self, copied: CopiedRows) -> NDArray[np.int64]:
        """The places of the rows that are shown, in their order."""
        everything = slice(None)
        columns: list[NDArray[Any]] = [np.arange(self._cells.count)]
        for each in reversed(copied.order):
            if each.term.is_key:
                keys = self._keys(each.term, each.type, everything)
                columns.append(_ranks(keys, descending=each.descending, nulls_first=each.nulls_first))
            else:
                numbers = self._numbers(each.term, everything)
                columns.append(-numbers if each.descending else numbers)
        end = None if copied.limit is None else copied.offset + copied.limit
        return np.lexsort(columns)[copied.offset : end]

    def fetch(self, size: int) -> RowBlock:
        """Return the next rows: only their values are made, for all may take much more memory than the cells."""
        self._cancellation.check()
        part = self._places[self._at : self._at + size]
        self._at += size
        return RowBlock(tuple(self._values(text, sql_type, part) for text, sql_type in self._columns), len(part))

    def _values(self, text: CopiedText, sql_type: SqlType, part: NDArray[np.int64]) -> Sequence[Any]:
        if text.is_key:
            return packed(self._keys(text, sql_type, part))
        numbers = self._numbers(text, part)
        return array("d" if numbers.dtype.kind == "f" else "q", numbers.tobytes())

    def _keys(self, text: CopiedText, sql_type: SqlType, part: NDArray[np.int64] | slice) -> list[Any]:
        values: list[Any] = self._cells.keys[text.place][part].tolist()
        if sql_type.is_text:
            return values
        known = {each: read(sql_type, each) for each in set(values) - {None}}
        return list(map(known.get, values))

    def _numbers(self, text: CopiedText, part: NDArray[np.int64] | slice) -> NDArray[Any]:
        cell = self._cells.cells[text.place][part]
        return cell if text.added is None else cell.astype(np.float64) + text.added


def _released_tables(releases: Sequence[ReleasedCells]) -> dict[str, dict[str, NDArray[Any]]]:
    """Released cells as tables r0, r1 and so on."""
    tables = {}
    for index, cells in enumerate(releases):
        named: dict[str, NDArray[Any]] = {f"k{i}": key for i, key in enumerate(cells.keys)}
        tables[f"r{index}"] = named | {f"p{i}": cell for i, cell in enumerate(cells.cells)}
    return tables


def _nothing(planned: PlannedRelease) -> ReleasedCells:
    """Cells of no group."""
    keys = tuple(np.array([], dtype=object) for _ in range(planned.keys))
    return ReleasedCells(keys, (np.array([], dtype=np.int64),) * len(planned.primitives))
