"""Random histories against a plain model of who pays what: the two agree on every balance and on every refusal."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import BudgetExhausted, InvalidParameter
from dpsql.ledger import BudgetScope, Holder, SqliteLedger
from dpsql.policy import RenewalWindow
from tests.ledger.world import ANY, SQL, Clock, budget, charge_only, laplace, policy, request

TENTH = Fraction(1, 10)
USERS, GROUPS, KEYS = ("ana", "ben", "eva"), ("team", "lab"), "abcd"
PRICES = {key: TENTH * (number + 1) for number, key in enumerate(KEYS)}
RULES = policy(
    budget(10 * TENTH, window=RenewalWindow(20)), budget(30 * TENTH), team=budget(8 * TENTH, window=RenewalWindow(30))
)


@dataclass
class Book:
    """What one budget should hold.

    Attributes:
        limit: What it may spend in a window.
        days: The window; 0 for none.
        begun: When its windows began to be counted.
        window: The number of the window that the rest is of.
        spent: What was spent in it.
        paid: The releases that were paid for in it.
    """

    limit: Fraction
    days: int
    begun: datetime | None = None
    window: int = 0
    spent: Fraction = Fraction(0)
    paid: set[int] = field(default_factory=set)

    def at(self, now: datetime) -> "Book":
        """Bring it up to date: it is as new in each window."""
        window = (now - self.begun) // timedelta(days=self.days) if self.days and self.begun else 0
        if window != self.window:
            self.window = window
            self.clear()
        return self

    def clear(self) -> None:
        self.spent, self.paid = Fraction(0), set()

    def begin(self, now: datetime) -> None:
        self.begun = self.begun or now


@dataclass
class Model:
    """Every budget, who is in which group, who holds which release, and which of them are stored."""

    books: dict[str, Book]
    groups: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(USERS))
    held: dict[str, set[int]] = field(default_factory=lambda: {user: set() for user in USERS})
    stored: dict[str, int] = field(default_factory=dict)
    made: int = 0

    def charge(self, user: str, keys: list[str], reuse: bool, now: datetime) -> bool:
        """Charge it if each budget covers it, and tell whether."""
        own, cap = self.books[user].at(now), self.books["all"]
        group = self.groups[user]
        shared = None if group is None else self.books[group].at(now)
        releases = {
            key: self.stored[key] if reuse and key in self.stored else self.made + number + 1
            for number, key in enumerate(dict.fromkeys(keys))
        }
        new = {key: release for key, release in releases.items() if release not in self.held[user]}
        price = sum((PRICES[key] for key in new), Fraction(0))
        fresh = sum((PRICES[key] for key, release in new.items() if release > self.made), Fraction(0))
        unpaid = {release: PRICES[key] for key, release in new.items() if shared and release not in shared.paid}
        payments = [(own, price), (cap, fresh)] + ([(shared, sum(unpaid.values(), Fraction(0)))] if shared else [])
        if any(part and book.spent + part > book.limit for book, part in payments):
            return False
        for book, part in payments:
            book.begin(now)
            book.spent += part
        if shared:
            shared.paid |= set(unpaid)
        self.held[user] |= set(releases.values())
        self.made += len(keys) + 1
        self.stored.update({key: release for key, release in releases.items() if key not in self.stored})
        return True


names = st.sampled_from((*USERS, *GROUPS))
OPERATIONS = st.one_of(
    st.tuples(
        st.just("charge"),
        st.sampled_from(USERS),
        st.lists(st.sampled_from(KEYS), min_size=1, max_size=3),
        st.booleans(),
    ),
    st.tuples(st.just("charge"), st.sampled_from(USERS), st.lists(st.sampled_from(KEYS), max_size=1), st.just(True)),
    st.tuples(st.just("group"), st.sampled_from(USERS), st.sampled_from((None, *GROUPS))),
    st.tuples(st.just("days"), st.integers(1, 25)),
    st.tuples(st.sampled_from(("grant", "lower")), names, st.integers(1, 6)),
    st.tuples(st.just("reset"), names),
)


@contextmanager
def opened(clock: Clock) -> Iterator[SqliteLedger]:
    with tempfile.TemporaryDirectory() as folder:
        ledger = SqliteLedger(Path(folder, "ledger.sqlite"), clock=clock, clock_limit=ANY)
        for user in USERS:
            ledger.add_account(user, "analyst")
        yield ledger
        ledger.close()


def charge(ledger: SqliteLedger, user: str, keys: list[str], reuse: bool) -> bool:
    asked = [request(key, laplace(PRICES[key])) for key in keys]
    try:
        releases = charge_only(ledger, user, RULES, asked, sql=SQL, reuse=reuse).releases
    except BudgetExhausted:
        return False
    for release in releases:
        if release.payload is None:
            ledger.store(release.release_id, b"rows")
    return True


def holder(name: str) -> Holder:
    return Holder(BudgetScope.USER if name in USERS else BudgetScope.GROUP, name)


def change(ledger: SqliteLedger, model: Model, now: datetime, kind: str, name: str, tenths: int = 0) -> None:
    """Grant, lower or reset in both; what the model does not allow, the ledger refuses."""
    book, by = model.books[name].at(now), TENTH * tenths
    allowed = book.spent > 0 if kind == "reset" else kind == "grant" or book.limit - by >= Fraction(1, 10**9)
    try:
        if kind == "reset":
            ledger.reset(holder(name), RULES, "why")
        else:
            (ledger.grant if kind == "grant" else ledger.lower)(holder(name), RULES, by, Fraction(0), "why")
    except InvalidParameter:
        assert not allowed
        return
    assert allowed
    book.begin(now)
    if kind == "reset":
        book.clear()
    else:
        book.limit += by if kind == "grant" else -by


def agree(ledger: SqliteLedger, model: Model, now: datetime) -> None:
    """Compare every balance and limit."""
    for name, book in model.books.items():
        book.at(now)
        if name == "all":
            status = ledger.cap(RULES)
        else:
            status = ledger.budget(name, RULES) if name in USERS else ledger.group_budget(name, RULES)
        assert (name, status.spent.pure_epsilon, status.limit.epsilon) == (name, book.spent, book.limit)


@settings(max_examples=40, deadline=None)
@given(st.lists(OPERATIONS, min_size=5, max_size=30))
def test_histories_agree_with_the_model(operations: list[tuple[Any, ...]]) -> None:
    clock = Clock()
    books = {name: Book(10 * TENTH, 20) for name in USERS}
    books |= {name: Book(8 * TENTH, 30) for name in GROUPS} | {"all": Book(30 * TENTH, 0)}
    model = Model(books)
    with opened(clock) as ledger:
        for kind, *values in operations:
            if kind == "charge":
                user, keys, reuse = values
                before = {name: book.at(clock.now).spent for name, book in books.items()}
                assert charge(ledger, user, keys, reuse) == model.charge(user, keys, reuse, clock.now)
                # What a charge moved is within its limit; a lowered limit may be below what was spent before.
                assert all(book.spent in (before[name], min(book.spent, book.limit)) for name, book in books.items())
            elif kind == "group":
                user, group = values
                if model.groups[user] != group:
                    ledger.set_group(user, group)
                    model.groups[user] = group
            elif kind == "days":
                clock.move(days=values[0])
            else:
                change(ledger, model, clock.now, kind, *values)
            agree(ledger, model, clock.now)
        report = ledger.verify()
        assert report.problems == ()
