"""journal: what was charged to each cap on each day, kept up with the ledger record by record.

Rule: a ledger that is not the one that was read before (a backup was put back, say) is read from its beginning.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

from dpsql.console.view import LedgerView
from dpsql.ledger.chain import ORIGIN
from dpsql.ledger.spending import parts
from dpsql.ledger.windows import moment
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Event


@dataclass(frozen=True, slots=True)
class Day:
    """What was charged to a cap on one day, by the calendar of UTC.

    Attributes:
        charges: For how many queries.
        spent: What they cost together.
    """

    charges: int
    spent: Spent


_NOTHING = Day(0, Spent.zero())


class Journal:
    """The days of all caps, by their numbers in the ledger.

    Args:
        seconds: So long it reads on at a time; of a large ledger, the rest when it is asked again.
        clock: Seconds from some moment on.
    """

    def __init__(self, seconds: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._last, self._head = 0, ORIGIN
        self._days: defaultdict[int, dict[date, Day]] = defaultdict(dict)

    def days(self, ledger: LedgerView, caps: Iterable[int]) -> tuple[dict[date, Day], bool]:
        """Return what was charged to caps together on each day, and whether that is all until now."""
        with self._lock:
            is_all = self._follow(ledger)
            total: dict[date, Day] = {}
            for cap in caps:
                _merge(total, self._days.get(cap, {}))
        return total, is_all

    def _follow(self, ledger: LedgerView) -> bool:
        """Read the records that came since; return whether these were all."""
        until = self._clock() + self._seconds
        records = ledger.export(self._last - 1 if self._last else None)
        if self._last and next(records, {}).get("hash") != self._head:
            self._forget()
            records = ledger.export()
        for record in records:
            self._read(record)
            self._last, self._head = record["seq"], record["hash"]
            if self._clock() > until:
                return False
        return True

    def _read(self, record: Mapping[str, Any]) -> None:
        body = record["body"]
        if record["kind"] == "cap.merged":
            _merge(self._days[body["into"]], self._days.pop(body["budget"], {}))
        for cap, events in _charged(record["kind"], body):
            _merge(self._days[cap], {moment(record["at"]).date(): Day(1, _cost(events))})


def _charged(kind: str, body: Mapping[str, Any]) -> Iterator[tuple[int, tuple[Event, ...]]]:
    """Yield what a record charged to a cap."""
    if kind == "charge":
        yield from ((budget, events) for budget, events in parts(dict(body)) if budget == body["cap"])
    elif kind == "cap.charged":
        yield body["budget"], tuple(map(Event.from_json, body["events"]))


@lru_cache(maxsize=4096)
def _cost(events: tuple[Event, ...]) -> Spent:
    return Spent.zero().add(events)


def _merge(into: dict[date, Day], days: Mapping[date, Day]) -> None:
    for day, more in days.items():
        known = into.get(day, _NOTHING)
        into[day] = Day(known.charges + more.charges, known.spent.merge(more.spent))
