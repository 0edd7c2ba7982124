"""What an engine is asked: its schema, once, and the exact cells of planned queries.

Rule: an exact cell has a type of its own. Nothing but release.py takes it, and nothing sends it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpsql.compiler.plan import PlannedRelease, PublicRead
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
        cells: One column a part.
    """

    keys: tuple[Texts, ...]
    units: NDArray[np.int64]
    cells: tuple[NDArray[np.int64], ...]

    def __repr__(self) -> str:
        """Hide the cells, wherever an exact value might be printed."""
        return f"ExactCells({len(self.keys)} keys, {len(self.cells)} cells)"


@dataclass(frozen=True)
class PublicRows:
    """The rows of a query over public tables, as text."""

    columns: tuple[Texts, ...]
    count: int


@dataclass(frozen=True)
class ExactRows:
    """All that one query reads: the exact cells of its releases by index, and public rows by table name."""

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


class Backend(Protocol):
    """A database, read only."""

    @property
    def schema(self) -> EngineSchema:
        """What the engine enforces, read when it was opened."""
        ...

    def check(self, statements: tuple[str, ...], cancellation: Cancellation) -> None:
        """Run engine SQL on empty tables of the same schema, so that what cannot run is refused before a charge.

        Raises:
            UnsupportedQuery: The engine cannot run it; that depends on SQL and schema alone.
            QueryCanceled: The user or the time limit stopped it.
        """
        ...

    def fetch(
        self, releases: Mapping[int, PlannedRelease], public: tuple[PublicRead, ...], cancellation: Cancellation
    ) -> ExactRows:
        """Run the engine queries of one plan.

        Raises:
            BackendFailure: The engine failed, whatever the cause: one fixed sentence.
            QueryCanceled: The user or the time limit stopped it.
        """
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...
