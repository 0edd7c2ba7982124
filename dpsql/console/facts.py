"""facts: all that the page shows, gathered at one moment from policy and ledger, as values.

Rule: what is here comes from the ledger, the policy, the engine's schema and the gateway's counters; never from a row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

from dpsql.console.health import EngineHealth, GatewayHealth, LedgerHealth
from dpsql.console.journal import NOTHING, Day, Journal, JournalReading, Paid
from dpsql.console.pace import Pace, pace
from dpsql.console.search import Found, Search, find, part, questions
from dpsql.console.view import LedgerView
from dpsql.errors import InvalidParameter, InvalidPolicy, PolicyViolation
from dpsql.gateway.system_relations import default_query, queries_that_fit
from dpsql.ledger import BudgetScope, BudgetStatus, Holder, OwnerRecord
from dpsql.ledger.owner_reads import EXACT_VALUES
from dpsql.policy import Policy
from dpsql.privacy.accounting import Limit

DAYS = 30
"""So many days are drawn, and added up for each user."""

CHANGES = 20
"""So many of the owner's changes are shown, the last ones."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A budget and whose it is.

    Attributes:
        kind: "user", "group" or "cap".
        name: Whose.
        about: The user's role, or nothing.
        group: The user's group; None without one.
        frozen: Whether every query is refused.
        status: The budget; or why there is none to be shown.
        short: Whether a query of one number at the epsilon of the user's role does not fit any more.
        pace: How long it lasts at the pace of the last days; None where there is no budget.
    """

    kind: str
    name: str
    about: str
    group: str | None
    frozen: bool
    status: BudgetStatus | str
    short: bool = False
    pace: Pace | None = None

    @property
    def refused(self) -> str | None:
        """Why queries are refused that ask for what is not paid for; None where they are not."""
        if self.frozen:
            return "frozen"
        if isinstance(self.status, str):
            return self.status
        if self.short:
            return "less is left than a query costs"
        return "nothing left" if self.pace is not None and self.pace.days == 0 else None


@dataclass(frozen=True, slots=True)
class Spender:
    """What a user's queries took in the last DAYS.

    Attributes:
        user: Who; nobody for the data owner.
        charges: How many charges the user's budget or the cap paid.
        own: The part of the user's budget that they took; in all its windows, so it may be more than one.
        cap: The part of the cap.
        dearest: The query that took most of the user's budget; None for the data owner, and where it is too old.
    """

    user: str
    charges: int
    own: Fraction
    cap: Fraction
    dearest: str | None


@dataclass(frozen=True)
class PageFacts:
    """What the page shows.

    Attributes:
        at: When it was gathered.
        policy: The policy.
        trouble: Why the policy file cannot be read as it is now, and an older reading is shown; or None.
        cap: The budget over all users.
        holdings: The cap, the users and the groups.
        days: What was charged to the cap on each day.
        spenders: What each user's queries took in the last DAYS, of the cap most first.
        is_all: Whether these are all the days until now; of a large ledger, the first view is not of all.
        search: Which queries are shown.
        found: These.
        unsearched: How many charges are too old to be searched.
        changes: What the owner changed last, newest first.
        exact: How often the owner took exact values from the data, which no budget covers.
    """

    at: datetime
    policy: Policy
    trouble: str | None
    cap: BudgetStatus
    holdings: Sequence[Holding]
    days: Mapping[date, Day]
    spenders: Sequence[Spender]
    is_all: bool
    search: Search
    found: Found
    unsearched: int
    changes: Sequence[OwnerRecord]
    exact: int


@dataclass(frozen=True, slots=True)
class Health:
    """How everything is.

    Attributes:
        ledger: The ledger; None while it is looked at for the first time.
        engine: The database; None likewise.
        gateway: The gateway; None where it is not asked.
    """

    ledger: LedgerHealth | None
    engine: EngineHealth | None
    gateway: GatewayHealth | None


class Gatherer:
    """Gathers the facts whenever it is asked.

    The ledger is opened and closed each time, as by any other of the owner's commands: what is shown is what lies under
    its name now, and nothing is held in between.

    Args:
        load: Loads the policy from its file.
        policy: The policy as it was loaded last.
        open_ledger: Opens the ledger.
        clock: The time, in UTC.
    """

    def __init__(
        self,
        load: Callable[[], Policy],
        policy: Policy,
        open_ledger: Callable[[], LedgerView],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._load = load
        self._clock = clock
        self._policy = policy
        self._open_ledger = open_ledger
        self._journal = Journal()

    def gather(self, search: Search) -> PageFacts:
        """Return the facts, with the queries that are asked for.

        Raises:
            Error: The ledger cannot be read, or holds what does not go with the policy.
        """
        trouble = None
        try:
            self._policy = self._load()
        except InvalidPolicy as error:
            trouble = error.message
        policy = self._policy
        name = policy.dataset.name
        with closing(self._open_ledger()) as ledger:
            cap = ledger.cap(policy)
            changes = [record for record in reversed(ledger.owner_history()) if record.dataset in (None, name)]
            reading, at = self._journal.read(ledger), self._clock()
            holdings = tuple(
                replace(each, pace=_pace(each.status, reading, at.date())) for each in _holdings(ledger, policy, cap)
            )
        paid = [(charge, again) for charge, again in reading.paid if charge.dataset == name]
        return PageFacts(
            at=at,
            policy=policy,
            trouble=trouble,
            cap=cap,
            holdings=holdings,
            days=reading.by_day(cap.numbers),
            spenders=_spenders(holdings, cap, reading, paid, at.date() - timedelta(days=DAYS - 1)),
            is_all=reading.is_all,
            search=search,
            found=find(paid, search, _limits(holdings), cap.limit),
            unsearched=reading.older,
            changes=changes[:CHANGES],
            exact=sum(record.kind == EXACT_VALUES for record in changes),
        )


def _spenders(
    holdings: Sequence[Holding],
    cap: BudgetStatus,
    reading: JournalReading,
    paid: Sequence[tuple[Paid, int]],
    since: date,
) -> Sequence[Spender]:
    limits = _limits(holdings)
    recent = [each for each in paid if each[0].at.date() >= since]
    dearest: dict[str, str] = {}
    for asked in questions(recent, Search(sort="dearest"), limits, cap.limit):
        dearest.setdefault(asked.user, asked.sql)
    by_cap = reading.by_user(cap.numbers, since)
    users = (each.status for each in holdings if each.kind == "user" and isinstance(each.status, BudgetStatus))
    own = reading.by_user([number for status in users for number in status.numbers], since)
    found = []
    for user in by_cap.keys() | dearest.keys():
        mine, all_users = own.get(user, NOTHING), by_cap.get(user, NOTHING)
        share = part(limits.get(user, cap.limit), mine.spent)
        charges = max(mine.charges, all_users.charges)
        found.append(Spender(user, charges, share, part(cap.limit, all_users.spent), dearest.get(user)))
    return sorted(found, key=lambda each: (-each.cap, -each.own, each.user))


def _limits(holdings: Sequence[Holding]) -> dict[str, Limit]:
    """The limit of each user's budget."""
    users = ((each.name, each.status) for each in holdings if each.kind == "user")
    return {name: status.limit for name, status in users if isinstance(status, BudgetStatus)}


def _pace(status: BudgetStatus | str, reading: JournalReading, today: date) -> Pace | None:
    return None if isinstance(status, str) else pace(status, reading.by_day(status.numbers), today)


def _holdings(ledger: LedgerView, policy: Policy, cap: BudgetStatus) -> Iterator[Holding]:
    accounts, frozen = ledger.accounts(), ledger.frozen()
    everybody = Holder(BudgetScope.ALL) in frozen
    yield Holding("cap", policy.dataset.cap, "all users together", None, everybody, cap)
    for account in accounts:
        role = policy.role(account.role)
        status = _budget(ledger, account.name, policy)
        short = (
            role is not None
            and isinstance(status, BudgetStatus)
            and not queries_that_fit(status, [default_query(role)])
        )
        yield Holding("user", account.name, account.role, account.group, account.frozen, status, short)
    for group in policy.groups:
        members = sum(account.group == group.name for account in accounts)
        about = f"{members} {'member' if members == 1 else 'members'}"
        stopped = everybody or Holder(BudgetScope.GROUP, group.name) in frozen
        yield Holding("group", group.name, about, None, stopped, ledger.group_budget(group.name, policy))


def _budget(ledger: LedgerView, user: str, policy: Policy) -> BudgetStatus | str:
    """A user's budget; or why there is none: the policy lacks the user's role or group."""
    try:
        return ledger.budget(user, policy)
    except (PolicyViolation, InvalidParameter) as error:
        return error.message
