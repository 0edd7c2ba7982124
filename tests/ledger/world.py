"""A small policy, events of a known price, and a clock that a test moves."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from dpsql.ledger import BudgetScope, Charge, Holder, ReleaseRequest, SqliteLedger
from dpsql.ledger.charging import charge
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.postgres import PostgresLedger
from dpsql.ledger.reads import Admission
from dpsql.policy import Budget, Dataset, MechanismChoice, Policy, QueryDefaults, RenewalWindow, Role, UserGroup
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.cost import Adjacency, Event, Mechanism, Sensitivity

Place = Path | str
"""A file, or the URL of a database."""

T = TypeVar("T", bound=Ledger)

ANY = timedelta(days=365_000)
"""How far the clock of a test is believed that is not about clocks: it may move by months."""

ROOT = Path(__file__).parent.parent.parent
SQL = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"
ANA, BEN, TEAM = Holder(BudgetScope.USER, "ana"), Holder(BudgetScope.USER, "ben"), Holder(BudgetScope.GROUP, "team")
UNIT = Sensitivity(l0=1, linf=1, l1=1, l2_squared=1)


class Clock:
    """Returns the time that a test sets."""

    def __init__(self, now: datetime = datetime(2026, 1, 15, 12, tzinfo=UTC)) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def move(self, **parts: float) -> None:
        self.now += timedelta(**parts)


def budget(
    epsilon: Fraction | int = 1,
    accountant: Accountant = Accountant.PURE,
    delta: Fraction | int = 0,
    window: RenewalWindow | None = None,
) -> Budget:
    return Budget(Fraction(epsilon), Fraction(delta), accountant, window, Fraction(1, 2))


def policy(
    user: Budget | None = None,
    cap: Budget | None = None,
    *,
    team: Budget | None = None,
    cap_name: str = "people",
    **dataset: Any,
) -> Policy:
    """Return a policy with the roles analyst (the given budget) and guest (epsilon 1/10), and the groups team and lab.

    The groups' budget is epsilon 3/10 unless one is given.
    """
    facts = Dataset(
        name="clinic",
        url="duckdb:///clinic.duckdb",
        schema="main",
        privacy_unit="patient",
        adjacency=Adjacency.ADD_REMOVE,
        data_version="1",
        budget=cap or budget(20),
        cap=cap_name,
        reply_quantum=0,
        timezone="UTC",
    )
    query = QueryDefaults(Fraction(1, 10), Fraction(0), MechanismChoice.AUTO, Fraction(1))
    roles = (
        Role("analyst", user or budget(), query, frozenset()),
        Role("guest", budget(Fraction(1, 10)), query, frozenset()),
    )
    groups = tuple(UserGroup(name, team or budget(Fraction(3, 10)), None) for name in ("team", "lab"))
    return Policy(replace(facts, **dataset), roles, (), Path("clinic.toml"), groups)


def laplace(epsilon: Fraction | int) -> Event:
    """Return an event that costs exactly this pure epsilon."""
    return Event(Mechanism.LAPLACE, UNIT, 1 / Fraction(epsilon))


def gaussian(rho: Fraction | int) -> Event:
    """Return an event that costs exactly this rho, and no pure epsilon."""
    return Event(Mechanism.GAUSSIAN, UNIT, 1 / (2 * Fraction(rho)))


def selection(epsilon: Fraction | int, delta: Fraction) -> Event:
    return Event(Mechanism.SELECTION, UNIT, Fraction(epsilon), delta)


def request(key: object, *events: Event) -> ReleaseRequest:
    return ReleaseRequest(f"{key}", events or (laplace(Fraction(1, 10)),))


def requests(*keys: object) -> Sequence[ReleaseRequest]:
    return [request(key) for key in keys]


class Unread(Admission):
    """Lets everything be charged; nothing is read."""

    def begin(self, *_: object, **__: object) -> Any:
        """No read begins."""


UNREAD = Unread("tests", 0, True, lambda _: False)


def charge_only(
    ledger: Ledger, user: str, policy: Policy, requests: Sequence[ReleaseRequest], *, sql: str, reuse: bool = True
) -> Charge:
    """Charge a query, of whatever price, for which nothing is read."""
    return ledger._grouped(lambda transaction: charge(transaction, user, policy, requests, sql, reuse, UNREAD))


def opened(place: Place, clock: Clock | None = None, *, clock_limit: timedelta = ANY, **options: Any) -> Ledger:
    """Return the ledger of a file or a URL."""
    options |= {"clock": clock or Clock(), "clock_limit": clock_limit}
    return SqliteLedger(place, **options) if isinstance(place, Path) else PostgresLedger(place, **options)


def peopled(ledger: T) -> T:
    """Add the users ana and ben."""
    for name in ("ana", "ben"):
        ledger.add_account(name, "analyst")
    return ledger


def tamper(place: Place, *statements: str) -> None:
    """Run statements on a ledger's tables, past the ledger."""
    if isinstance(place, Path):
        with closing(sqlite3.connect(place, isolation_level=None)) as file:
            for statement in statements:
                file.execute(statement)
        return
    with psycopg.connect(place, autocommit=True) as connection:
        for statement in ("SET search_path = dpsql_ledger", *statements):
            connection.execute(statement.encode())


def new_ledger(path: Path, clock: Clock | None = None, *, clock_limit: timedelta = ANY, **options: Any) -> SqliteLedger:
    """Return a ledger in a file, with the users ana and ben."""
    return peopled(SqliteLedger(path, clock=clock or Clock(), clock_limit=clock_limit, **options))
