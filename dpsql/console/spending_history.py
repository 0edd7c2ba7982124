"""spending_history: the charges to each budget on each day, with their queries, updated record by record.

Rule: if the ledger is not the one that was read before (for instance a restored backup), it is read from the beginning.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import lru_cache
from typing import Any, Final

from dpsql.console.view import LedgerView
from dpsql.ledger import BoundDrop
from dpsql.ledger.chain import ORIGIN, canonical
from dpsql.ledger.derived_tables import load_events
from dpsql.ledger.spending import parts
from dpsql.ledger.transaction import moment
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Event

OWNER: Final = ""
"""The user name that stands for the data owner, whose reads are charged to the cap alone."""
_MOST_SERVED: Final = 10
"""The most other queries that are kept per charge: the newest ones, each cut to its beginning."""
_BEGINNING: Final = 160


@dataclass(frozen=True, slots=True)
class Day:
    """The charges to a budget on one day in UTC.

    Attributes:
        charges: The number of charges.
        spent: Their total cost.
    """

    charges: int
    spent: Spent

    def merge(self, more: "Day") -> "Day":
        """The sum of both."""
        return Day(self.charges + more.charges, self.spent.merge(more.spent))


NOTHING: Final = Day(0, Spent.zero())


@dataclass(frozen=True, slots=True)
class Served:
    """Another query of the same user that was answered from releases of a charge, alone or with others.

    Attributes:
        at: The time of its last answer.
        sql: The beginning of the query.
        releases: The numbers of these releases.
        answers: The number of answers from them.
    """

    at: datetime
    sql: str
    releases: tuple[int, ...]
    answers: int


@dataclass(frozen=True, slots=True)
class Paid:
    """A charge to a user.

    Attributes:
        number: The number of its record.
        at: The time.
        user: The charged user.
        dataset: The dataset.
        sql: The query.
        spent: The cost for the user's budget.
        fresh: The cost for the cap, which excludes copies of other users' releases.
        releases: The numbers of its releases.
        dropped: The shares of its answer that bounds dropped, if they were measured.
        combined: The numbers of earlier releases that its answer also uses.
        served: The newest other queries that were answered from its releases, oldest first.
    """

    number: int
    at: datetime
    user: str
    dataset: str
    sql: str
    spent: Spent
    fresh: Spent
    releases: tuple[int, ...]
    dropped: tuple[BoundDrop, ...] = ()
    combined: tuple[int, ...] = ()
    served: tuple[Served, ...] = ()

    @property
    def characters(self) -> int:
        """How many characters of queries it has."""
        return len(self.sql) + sum(len(each.sql) for each in self.served)


@dataclass(frozen=True)
class HistoryReading:
    """The content of a history at one moment.

    Attributes:
        days: The charges to each budget, by its number, on each day, for each user.
        paid: The newest charges, oldest first, each with how often the user received its answer again for free.
        is_all: Whether this is everything until now; the first reading of a large ledger is not complete.
        older: The number of older charges that are not included.
    """

    days: Mapping[int, Mapping[tuple[date, str], Day]]
    paid: tuple[tuple[Paid, int], ...]
    is_all: bool
    older: int

    def by_day(self, budgets: Iterable[int]) -> dict[date, Day]:
        """The total charges to some budgets on each day."""
        return self._grouped(budgets, lambda day, user: day)

    def by_user(self, budgets: Iterable[int], since: date) -> dict[str, Day]:
        """The total charges to some budgets for each user since a day."""
        return self._grouped(budgets, lambda day, user: user if day >= since else None)

    def _grouped(self, budgets: Iterable[int], group: Callable[[date, str], Any]) -> dict[Any, Day]:
        found: dict[Any, Day] = {}
        for budget in budgets:
            for key, paid in self.days.get(budget, {}).items():
                place = group(*key)
                if place is not None:
                    found[place] = found.get(place, NOTHING).merge(paid)
        return found


class SpendingHistory:
    """The days of all budgets, by their numbers in the ledger, and the newest charges.

    Args:
        seconds: The most time for one reading; the rest of a large ledger is read the next time.
        clock: A monotonic clock in seconds.
        most: The most charges to keep.
        characters: The most characters of queries to keep, with those that charges served; the last charge is kept.
    """

    def __init__(
        self,
        seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        most: int = 20_000,
        characters: int = 2**25,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._most = most
        self._most_characters = characters
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._last, self._head = 0, ORIGIN
        self._days: defaultdict[int, dict[tuple[date, str], Day]] = defaultdict(dict)
        self._paid: dict[int, Paid] = {}
        self._payer: dict[int, int] = {}
        self._again: Counter[int] = Counter()
        self._older = 0
        self._characters = 0

    def read(self, ledger: LedgerView) -> HistoryReading:
        """Read the new records, and return the whole history."""
        with self._lock:
            is_all = self._follow(ledger)
            days = {budget: dict(paid) for budget, paid in self._days.items()}
            paid = tuple((each, self._again[number]) for number, each in self._paid.items())
            return HistoryReading(days, paid, is_all, self._older)

    def _follow(self, ledger: LedgerView) -> bool:
        """Read the new records; return whether all were read in time."""
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
        kind, body = record["kind"], record["body"]
        if kind == "cap.merged":
            _merge(self._days[body["into"]], self._days.pop(body["budget"], {}))
        for budget, events in _charged(kind, body):
            day = moment(record["at"]).date(), body.get("user", OWNER)
            _merge(self._days[budget], {day: Day(1, _cost(events))})
        if kind in ("charge", "reuse"):
            self._again.update({self._payer[each] for each in body["reused"] if each in self._payer})
            self._serve(moment(record["at"]), body["sql"], body["reused"])
        if kind == "charge":
            self._keep(_paid(record))
        if "dropped" in body:
            (charge,) = [body["ends"]] if "ends" in body else body["charges"]
            if charge in self._paid:
                dropped = tuple(BoundDrop(*each) for each in body["dropped"])
                self._paid[charge] = replace(self._paid[charge], dropped=dropped)

    def _serve(self, at: datetime, sql: str, releases: Iterable[int]) -> None:
        """Note the charges whose releases a query was answered from, other than those of the same text."""
        by_charge: defaultdict[int, list[int]] = defaultdict(list)
        for release in releases:
            if release in self._payer:
                by_charge[self._payer[release]].append(release)
        for number, used in by_charge.items():
            paid = self._paid[number]
            if paid.sql != sql:
                self._put(replace(paid, served=_with(paid.served, Served(at, _begun(sql), tuple(used), 1))))
        self._trim()

    def _keep(self, paid: Paid) -> None:
        """Keep a charge."""
        self._put(paid)
        self._payer |= dict.fromkeys(paid.releases, paid.number)
        self._trim()

    def _put(self, paid: Paid) -> None:
        known = self._paid.get(paid.number)
        self._characters += paid.characters - (0 if known is None else known.characters)
        self._paid[paid.number] = paid

    def _trim(self) -> None:
        """Drop the oldest charges above the limits."""
        while len(self._paid) > self._most or (len(self._paid) > 1 and self._characters > self._most_characters):
            oldest = self._paid.pop(next(iter(self._paid)))
            self._again.pop(oldest.number, None)
            for release in oldest.releases:
                del self._payer[release]
            self._older += 1
            self._characters -= oldest.characters


def _charged(kind: str, body: Mapping[str, Any]) -> Iterator[tuple[int, tuple[Event, ...]]]:
    """Yield what a record charged to each budget."""
    if kind == "charge":
        yield from parts(dict(body))
    elif kind == "cap.charged":
        yield body["budget"], tuple(map(Event.from_json, body["events"]))


def _paid(record: Mapping[str, Any]) -> Paid:
    body = record["body"]
    events = {each["id"]: load_events(canonical(each["events"])) for each in body["releases"]}
    made = [each["id"] for each in body["releases"] if each["origin"] == each["id"]]
    return Paid(
        record["seq"],
        moment(record["at"]),
        body["user"],
        body["dataset"],
        body["sql"],
        _cost(tuple(event for each in events.values() for event in each)),
        _cost(tuple(event for each in made for event in events[each])),
        tuple(events),
        combined=tuple(body["reused"]),
    )


def _with(served: tuple[Served, ...], more: Served) -> tuple[Served, ...]:
    """The newest queries, of which one is answered now, perhaps again."""
    same = [each for each in served if (each.sql, each.releases) == (more.sql, more.releases)]
    others = [each for each in served if each not in same]
    answers = more.answers + sum(each.answers for each in same)
    return (*others, replace(more, answers=answers))[-_MOST_SERVED:]


def _begun(sql: str) -> str:
    return sql if len(sql) <= _BEGINNING else f"{sql[:_BEGINNING]} …"


@lru_cache(maxsize=4096)
def _cost(events: tuple[Event, ...]) -> Spent:
    return Spent.zero().add(events)


def _merge(into: dict[tuple[date, str], Day], days: Mapping[tuple[date, str], Day]) -> None:
    for day, more in days.items():
        into[day] = into.get(day, NOTHING).merge(more)
