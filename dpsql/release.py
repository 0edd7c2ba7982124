"""release: exact cells in, noisy cells out; then the query's own post-processing on what was released.

Rule 1: this file alone makes released cells and rows of exact ones: selection first, noise on every cell kept.
Rule 2: rows come in the order of their keys, never in the engine's.
Rule 3: post-processing runs in an engine that holds no data and reaches none.
"""

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpsql.backends.backend import Cancellation, ExactCells, PublicRows, Texts
from dpsql.backends.duckdb import MAX_CHECKED, rehearse
from dpsql.compiler.plan import MAX_RESULT_ROWS, CompiledQuery, PlannedRelease
from dpsql.errors import InvalidParameter, LedgerUnavailable, QueryCanceled, QueryTooComplex
from dpsql.privacy.selection import Threshold
from dpsql.sqltypes import SqlType

MAX_CELL = 2**62 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
POST_SECONDS = 60.0
"""How long post-processing may take."""


@dataclass(frozen=True)
class ReleasedCells:
    """The noisy cells of one release: public from here on.

    Attributes:
        keys: One column a group key, as text.
        cells: One column a part, in grid units.
    """

    keys: tuple[Texts, ...]
    cells: tuple[NDArray[np.int64], ...]

    def to_bytes(self) -> bytes:
        """The form in which the ledger keeps it."""
        columns = [base64.b64encode(cell.astype("<i8").tobytes()).decode() for cell in self.cells]
        return json.dumps({"keys": [list(key) for key in self.keys], "cells": columns}).encode()

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


@dataclass(frozen=True)
class ReleasedRows:
    """The rows that leave."""

    rows: tuple[tuple[Any, ...], ...]


def release(planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
    """Select groups and add noise: the only door through which cells leave.

    Guarantee: the events of `planned`, for cells whose sensitivity is that of its parts.
    Assumes: `exact` is what the engine gave for `planned.sql`.
    Reference: Dwork & Roth 2014, section 3; Wilson et al. 2020 for the selection of groups by their units.
    """
    if planned.selection is None:
        cells = [_noised(cell, planned, index) for index, cell in enumerate(exact.cells)]
        return ReleasedCells(exact.keys, tuple(cells))
    if isinstance(planned.selection, Threshold):
        return _cut_off(planned, planned.selection, exact)
    kept = planned.selection.keep(exact.units)
    cells = [_noised(cell[kept], planned, index) for index, cell in enumerate(exact.cells)]
    return _sorted(ReleasedCells(tuple(key[kept] for key in exact.keys), tuple(cells)))


def _cut_off(planned: PlannedRelease, threshold: Threshold, exact: ExactCells) -> ReleasedCells:
    """Keep the groups whose noisy cell reaches the threshold; that cell is released as it was compared."""
    if planned.threshold_part is None:
        raise TypeError("a threshold cuts off a part")
    compared = _noised(exact.cells[planned.threshold_part], planned, planned.threshold_part)
    kept = (compared >= threshold.cutoff) & (exact.units > 0)
    cells = [
        compared[kept] if index == planned.threshold_part else _noised(cell[kept], planned, index)
        for index, cell in enumerate(exact.cells)
    ]
    return _sorted(ReleasedCells(tuple(key[kept] for key in exact.keys), tuple(cells)))


def _sorted(cells: ReleasedCells) -> ReleasedCells:
    """The same rows by their keys as text, NULLs last: nothing of the engine's order is left."""
    rows = list(zip(*cells.keys, strict=True))
    order = sorted(range(len(rows)), key=lambda i: [(text is None, text or "") for text in rows[i]])
    return ReleasedCells(tuple(key[order] for key in cells.keys), tuple(cell[order] for cell in cells.cells))


def _noised(cell: NDArray[np.int64], planned: PlannedRelease, index: int) -> NDArray[np.int64]:
    """Cells lie within ±2^62, and noise beyond that has a probability below 2^-128."""
    noise = np.clip(planned.parts[index].noise.sample(len(cell)), -MAX_CELL, MAX_CELL)
    noisy: NDArray[np.int64] = np.clip(np.clip(cell, -MAX_CELL, MAX_CELL) + noise, -MAX_CELL, MAX_CELL)
    return noisy


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
        self._checked: frozenset[str] = frozenset()
        self._database.execute(f"SET GLOBAL TimeZone = '{timezone}'")
        self._database.execute("SET lock_configuration = true")

    def check(self, query: CompiledQuery, cancellation: Cancellation) -> None:
        """Run the post-processing SQL of a query on empty relations, before anything is charged.

        Raises:
            UnsupportedQuery: The engine cannot run it.
        """
        if query.post_sql in self._checked:
            return
        cursor = self._database.cursor()
        nothing = np.array([], dtype=np.int64)
        try:
            for planned in query.releases:
                keys = tuple(np.array([], dtype=object) for _ in range(planned.keys))
                cells = ReleasedCells(keys, (nothing,) * len(planned.parts))
                cursor.register(planned.table, _released_columns(cells))
            widths = {read.table: read.width for read in query.public_reads}
            widths |= {read.table: read.width for read in query.system_reads}
            for table, width in widths.items():
                columns = tuple(np.array([], dtype=object) for _ in range(width))
                cursor.register(table, _text_columns(columns, 0))
            if widths or query.releases:
                rehearse(cursor, query.post_sql, cancellation)
        finally:
            cursor.close()
        known = {query.post_sql}
        self._checked = self._checked | known if len(self._checked) < MAX_CHECKED else frozenset(known)

    def run(
        self,
        query: CompiledQuery,
        releases: Sequence[ReleasedCells],
        public: Mapping[str, PublicRows],
        system: Mapping[str, Sequence[Sequence[str | None]]],
        cancellation: Cancellation,
    ) -> ReleasedRows:
        """Run the post-processing SQL of a query.

        Args:
            query: The planned query.
            releases: The released cells, one a release of the query.
            public: Public rows by table name.
            system: Relations of schema dpsql by name, each a list of columns as text.
            cancellation: Stops it.

        Raises:
            InvalidParameter: A value has no place in its type.
            QueryTooComplex: It needs more memory than it may have.
            QueryCanceled: The user or the time limit stopped it.
        """
        cursor = self._database.cursor()
        deadline = threading.Timer(POST_SECONDS, cancellation.cancel)
        deadline.daemon = True
        deadline.start()
        try:
            cancellation.enter(cursor.interrupt)
            for planned, cells in zip(query.releases, releases, strict=True):
                cursor.register(planned.table, _released_columns(cells))
            for read in query.public_reads:
                cursor.register(read.table, _text_columns(public[read.table].columns, public[read.table].count))
            for wanted in query.system_reads:
                rows = system[wanted.name]
                columns = tuple(np.array(column, dtype=object) for column in rows)
                cursor.register(wanted.table, _text_columns(columns, len(columns[0])))
            found = cursor.execute(query.post_sql).fetchmany(MAX_RESULT_ROWS + 1)
            if len(found) > MAX_RESULT_ROWS:
                raise QueryTooComplex(f"the result has more than {MAX_RESULT_ROWS:,} rows", hint="Add a LIMIT.")
            return ReleasedRows(self._with_zones(query, found))
        except duckdb.OutOfMemoryException:
            raise QueryTooComplex("the result of this query is too large") from None
        except duckdb.Error as error:
            if cancellation.is_cancelled:
                raise QueryCanceled("canceling statement due to user request or time limit") from None
            # Everything here is released or public, so its text may be told.
            raise InvalidParameter(f"the result cannot be computed: {str(error).splitlines()[0]}") from None
        finally:
            deadline.cancel()
            cancellation.leave()
            cursor.close()

    def _with_zones(self, query: CompiledQuery, rows: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
        """Turn microseconds since 1970 into moments, where the type has a time zone."""
        at = {index for index, column in enumerate(query.columns) if column.type is SqlType.TIMESTAMPTZ}
        if not at:
            return tuple(rows)

        def moment(value: int | None) -> datetime | None:
            if value is None:
                return None
            instant = _EPOCH + timedelta(microseconds=value)
            try:
                return instant.astimezone(self._zone)
            except OverflowError:  # at the ends of time, where the zone's own year does not exist
                return instant

        return tuple(tuple(moment(v) if i in at else v for i, v in enumerate(row)) for row in rows)

    def close(self) -> None:
        """Let go of the engine."""
        self._database.close()


def _released_columns(cells: ReleasedCells) -> dict[str, NDArray[Any]]:
    count = len((*cells.cells, *cells.keys)[0])
    columns = _text_columns(cells.keys, count)
    named = {f"k{index}": columns[f"v{index}"] for index in range(len(cells.keys))}
    return named | {f"p{index}": cell for index, cell in enumerate(cells.cells)} or {"one": np.ones(count, np.int64)}


def _text_columns(columns: tuple[Texts, ...], count: int) -> dict[str, NDArray[Any]]:
    """Columns as the engine registers them; a row too many is not needed, an empty relation still has columns."""
    return {f"v{index}": column for index, column in enumerate(columns)} or {"one": np.ones(count, dtype=np.int64)}
