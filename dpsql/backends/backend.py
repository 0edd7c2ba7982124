"""What an engine is asked: its schema, once, and the exact cells of planned queries.

Rule: an exact cell has a type of its own. Nothing but release.py takes it, and nothing sends it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpsql.compiler.planned import PlannedRelease, PublicRead
from dpsql.compiler.schema import EngineSchema
from dpsql.errors import QueryCanceled

Texts = NDArray[np.object_]
"""A column that travels as text: str, or None for NULL."""


@dataclass(frozen=True)
class ExactCells:
    """The bounded, exact cells of one release: never shown, never stored, never logged.

    Attributes:
        keys: One column a group key, as text.
        units: The number of units in each group.
        cells: One column a part: numbers; of a part whose values are chosen by rank, texts of value:count, ….
    """

    keys: tuple[Texts, ...]
    units: NDArray[np.int64]
    cells: tuple[NDArray[Any], ...]

    def __repr__(self) -> str:
        """Hide the cells, wherever an exact value might be printed."""
        return f"ExactCells({len(self.keys)} keys, {len(self.cells)} cells)"


@dataclass(frozen=True)
class PublicRows:
    """Rows that anybody may see, as text: of public tables, or made of released cells."""

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


@dataclass(frozen=True)
class ExactRows:
    """What one call reads: the exact cells of releases by index, and public rows by the SQL that reads them."""

    releases: Mapping[int, ExactCells]
    public: Mapping[str, PublicRows]


@dataclass
class Cancellation:
    """Lets one running query be stopped from another thread."""

    _stop: Callable[[], Any] | None = None
    _cancelled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Stop what runs, and whatever would run next."""
        with self._lock:
            self._cancelled = True
            if self._stop is not None:
                self._stop()

    @property
    def is_cancelled(self) -> bool:
        """True once cancelled."""
        return self._cancelled

    def check(self) -> None:
        """Raise QueryCanceled once cancelled."""
        if self._cancelled:
            raise QueryCanceled("canceling statement due to user request")

    def enter(self, stop: Callable[[], Any]) -> None:
        """Say how to stop what begins now."""
        with self._lock:
            self._stop = stop
        self.check()

    def leave(self) -> None:
        """Nothing runs any more."""
        with self._lock:
            self._stop = None


Inputs = Mapping[int, tuple[PublicRows, ...]]
"""For releases by index, the rows of each of their inputs."""
NO_INPUTS: Inputs = MappingProxyType({})


class Backend(Protocol):
    """A database, read only."""

    @property
    def schema(self) -> EngineSchema:
        """What the engine enforces, read when it was opened."""
        ...

    def check(
        self, releases: tuple[PlannedRelease, ...], public: tuple[PublicRead, ...], cancellation: Cancellation
    ) -> None:
        """Run engine SQL on empty tables of the same schema, so that what cannot run is refused before a charge.

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
    ) -> ExactRows:
        """Run engine queries of one plan.

        Args:
            releases: Those over protected tables, by index.
            public: Those over public tables.
            cancellation: Stops them.
            inputs: The rows that each release reads beside the database's; no other query sees them.

        Raises:
            BackendFailure: The engine failed, whatever the cause: one fixed sentence.
            CardinalityViolation: A public subquery that stands for one value has several.
            QueryTooComplex: There are too many public rows.
            QueryCanceled: The user or the time limit stopped it.
        """
        ...

    def count(self, sql: str, names: Sequence[str]) -> tuple[int, ...]:
        """Count, exactly, for the data owner's own eyes: `dpsql policy check` prints it, and no client ever sees it.

        Args:
            sql: SQL with one row.
            names: Its columns, each a bigint.

        Raises:
            BackendFailure: The engine failed.
        """
        ...

    def warnings(self) -> tuple[str, ...]:
        """What the data owner should know: rights that are not needed, tables of which nothing is enforced."""
        ...

    def advice(self) -> tuple[str, ...]:
        """Statements for the data owner to run that make queries faster."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...
