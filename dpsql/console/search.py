"""search: the owner's search for charges, read from the page's address, and the queries of these charges.

Rule: charges of one user for one text are one query, such as the rounds of a dpsql.target_error.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Final
from urllib.parse import parse_qsl, urlencode

from dpsql.console.spending_history import Paid, Served
from dpsql.errors import InvalidParameter
from dpsql.ledger import BoundDrop
from dpsql.privacy.accounting import Limit, Spent, asked_epsilon

ON_A_PAGE: Final = 25
"""The number of queries on a page."""

_MOST_SERVED: Final = 10
"""The most other queries that are shown per query."""

_EXAMPLE: Final = "/?user=ana&day=2026-01-31&find=visits&sort=dearest&page=2"
_PAGE: Final = re.compile("[1-9][0-9]{0,5}")
_DAY: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Search:
    """The owner's search.

    Attributes:
        user: The user; None for all users.
        day: The day in UTC; None for all days.
        find: Words that the query must contain, in upper or lower case.
        sort: A name of SORTS.
        page: 1 for the first.
    """

    user: str | None = None
    day: date | None = None
    find: str | None = None
    sort: str = "newest"
    page: int = 1

    @property
    def narrows(self) -> bool:
        """Whether it leaves anything out."""
        return any(each is not None for each in (self.user, self.day, self.find))

    def address(self) -> str:
        """The address of its results."""
        told = {"user": self.user, "day": self.day and self.day.isoformat(), "find": self.find}
        told |= {
            "sort": None if self.sort == "newest" else self.sort,
            "page": str(self.page) if self.page > 1 else None,
        }
        fields = urlencode({name: value for name, value in told.items() if value is not None}, errors="replace")
        return f"/?{fields}#queries"

    def wants(self, paid: Paid) -> bool:
        """Return whether a charge matches the search."""
        text = paid.sql.casefold()
        return (
            self.user in (None, paid.user)
            and self.day in (None, paid.at.date())
            and all(word in text for word in (self.find or "").casefold().split())
        )


def read_search(query: str) -> Search:
    """Return the search in the query part of an address.

    Raises:
        InvalidParameter: It is not a valid search; the message repeats nothing of it.
    """
    try:
        fields = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=10)
    except ValueError as error:
        raise _wrong("it is not UTF-8, or has more than ten fields") from error
    told = {name: value.strip() for name, value in fields}
    if len(told) < len(fields) or not told.keys() <= {"user", "day", "find", "sort", "page"}:
        raise _wrong("it has user, day, find, sort and page, each at most once")
    sort, page = told.get("sort") or "newest", told.get("page") or "1"
    if sort not in SORTS:
        raise _wrong(f"sort is one of {', '.join(SORTS)}")
    if not _PAGE.fullmatch(page):
        raise _wrong("page is a number from 1 on")
    return Search(told.get("user") or None, _day(told.get("day", "")), told.get("find") or None, sort, int(page))


def _day(text: str) -> date | None:
    if not text:
        return None
    if _DAY.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    raise _wrong("day is a day of the calendar, as 2026-01-31")


def _wrong(why: str) -> InvalidParameter:
    return InvalidParameter(f"the page's address cannot be read: {why}", hint=_EXAMPLE)


@dataclass(frozen=True)
class AskedQuery:
    """A query of a user, with its cost.

    Attributes:
        user: The user.
        sql: The query.
        charges: Its charges that match the search, newest first; at least one.
        again: How often the user received an answer again for free.
        limit: The limit of the user's budget; the cap's for a user without one.
    """

    user: str
    sql: str
    charges: tuple[Paid, ...]
    again: int
    limit: Limit

    @property
    def spent(self) -> Spent:
        """Return the total cost for the user."""
        return _together([paid.spent for paid in self.charges])

    @property
    def fresh(self) -> Spent:
        """Return the total cost for the cap."""
        return _together([paid.fresh for paid in self.charges])

    @property
    def served(self) -> tuple[Served, ...]:
        """Return other queries that were answered from its releases, newest first."""
        found = [each for paid in self.charges for each in paid.served]
        return tuple(sorted(found, key=lambda each: each.at, reverse=True)[:_MOST_SERVED])

    @property
    def epsilon(self) -> Fraction:
        """The ε of one query that would cost as much."""
        return asked_epsilon(self.limit, self.spent)

    @property
    def dropped(self) -> BoundDrop | None:
        """Return the largest drop of a bound in the newest answer that measured one."""
        newest = next((paid.dropped for paid in self.charges if paid.dropped), ())
        return max(newest, key=lambda each: each.share, default=None)

    @property
    def part(self) -> Fraction:
        """The share of the user's budget that it cost."""
        return part(self.limit, self.spent)


def part(limit: Limit, spent: Spent) -> Fraction:
    """The share of a limit that was spent; 0 if the spending has no price in the limit's currency."""
    return (limit.total(spent) or Fraction(0)) / limit.capacity


SORTS: Final[Mapping[str, Callable[[AskedQuery], tuple[Fraction, int]]]] = {
    "newest": lambda asked: (Fraction(0), asked.charges[0].number),
    "dearest": lambda asked: (asked.part, asked.charges[0].number),
    "often": lambda asked: (Fraction(len(asked.charges) + asked.again), asked.charges[0].number),
}
"""The orders of queries, largest first."""


@dataclass(frozen=True)
class Found:
    """A page of the queries found.

    Attributes:
        questions: The queries on the page.
        count: The number of queries on all pages.
    """

    questions: Sequence[AskedQuery]
    count: int

    @property
    def pages(self) -> int:
        """The number of pages, at least one."""
        return max(1, -(-self.count // ON_A_PAGE))


def find(paid: Sequence[tuple[Paid, int]], search: Search, limits: Mapping[str, Limit], cap: Limit) -> Found:
    """Return the requested page of the queries that match; the arguments are those of `questions`."""
    found = questions(paid, search, limits, cap)
    first = (search.page - 1) * ON_A_PAGE
    return Found(found[first : first + ON_A_PAGE], len(found))


def questions(
    paid: Sequence[tuple[Paid, int]], search: Search, limits: Mapping[str, Limit], cap: Limit
) -> list[AskedQuery]:
    """Return the queries that match the search, on all pages.

    Args:
        paid: The charges of the dataset, oldest first, each with how often its answer was reused.
        search: The search.
        limits: The limit of each user's budget.
        cap: The limit of the cap.
    """
    asked: defaultdict[tuple[str, str], list[tuple[Paid, int]]] = defaultdict(list)
    for charge, again in reversed(paid):
        if search.wants(charge):
            asked[charge.user, charge.sql].append((charge, again))
    found = [
        AskedQuery(
            user, sql, tuple(charge for charge, _ in each), sum(again for _, again in each), limits.get(user, cap)
        )
        for (user, sql), each in asked.items()
    ]
    return sorted(found, key=SORTS[search.sort], reverse=True)


def _together(spent: Sequence[Spent]) -> Spent:
    total = Spent.zero()
    for each in spent:
        total = total.merge(each)
    return total
