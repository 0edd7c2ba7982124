"""journal: what each budget paid on each day, kept up with the ledger record by record.

Rule: a ledger that is not the one that was read before (a backup was put back, say) is read from its beginning.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from dpsql.console.view import LedgerView
from dpsql.ledger.chain import ORIGIN, canonical
from dpsql.ledger.projection import price
from dpsql.ledger.spending import parts
from dpsql.ledger.windows import moment
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Event


@dataclass(frozen=True, slots=True)
class Day:
    """What a budget paid on one day, by the calendar of UTC.

    Attributes:
        charges: For how many queries.
        spent: What they cost together.
    """

    charges: int
    spent: Spent


_NOTHING = Day(0, Spent.zero())


class Journal:
    """The days of all budgets, by their numbers in the ledger."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._last, self._head = 0, ORIGIN
        self._days: defaultdict[int, dict[date, Day]] = defaultdict(dict)

    def days(self, ledger: LedgerView, budgets: Iterable[int]) -> dict[date, Day]:
        """Return what budgets paid together on each day until now."""
        with self._lock:
            self._follow(ledger)
            total: dict[date, Day] = {}
            for budget in budgets:
                _merge(total, self._days.get(budget, {}))
        return total

    def _follow(self, ledger: LedgerView) -> None:
        """Read the records that came since."""
        records = ledger.export(self._last - 1 if self._last else None)
        if self._last and next(records, {}).get("hash") != self._head:
            self._forget()
            records = ledger.export()
        for record in records:
            self._read(record)
            self._last, self._head = record["seq"], record["hash"]

    def _read(self, record: Mapping[str, Any]) -> None:
        body = record["body"]
        day = moment(record["at"]).date()
        if record["kind"] == "cap.merged":
            _merge(self._days[body["into"]], self._days.pop(body["budget"], {}))
        for budget, events in _paid(record["kind"], body):
            cost = price(canonical([event.to_json() for event in events]))
            _merge(self._days[budget], {day: Day(1, cost)})


def _paid(kind: str, body: Mapping[str, Any]) -> Iterator[tuple[int, tuple[Event, ...]]]:
    """Yield what each budget paid by a record."""
    if kind == "charge":
        yield from parts(dict(body))
    elif kind == "cap.charged":
        yield body["budget"], tuple(map(Event.from_json, body["events"]))


def _merge(into: dict[date, Day], days: Mapping[date, Day]) -> None:
    for day, more in days.items():
        known = into.get(day, _NOTHING)
        into[day] = Day(known.charges + more.charges, known.spent.merge(more.spent))
