"""facts: the content of the page at one moment, as values.

Rule: facts come from the ledger, the policy, the engine's schema and the gateway's counters; never from a row.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

from dpsql.console.health import EngineHealth, GatewayHealth, LedgerHealth
from dpsql.console.pace import Pace, pace
from dpsql.console.search import Found, Search, find, part, questions
from dpsql.console.spending_history import NOTHING, Day, HistoryReading, Paid, SpendingHistory
from dpsql.console.view import LedgerView
from dpsql.errors import InvalidParameter, InvalidPolicy, PolicyViolation
from dpsql.gateway.system_relations import default_query, queries_that_fit
from dpsql.ledger import BoundDrop, BudgetScope, BudgetStatus, Holder, OwnerRecord
from dpsql.ledger.owner_records import EXACT_VALUES
from dpsql.ledger.profiles import newest_profile
from dpsql.policy import Policy
from dpsql.policy.profile import Profile
from dpsql.privacy.accounting import Limit

DAYS = 30
"""The number of days that are drawn, and summed for each user."""

CHANGES = 20
"""The number of the owner's last changes that are shown."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A budget and its holder.

    Attributes:
        kind: "user", "group" or "cap".
        name: The holder's name.
        about: The user's role, or an empty text.
        group: The user's group; None without one.
        frozen: Whether every query is refused.
        status: The budget; or the reason why it cannot be shown.
        short: Whether a query of one number at the epsilon of the user's role no longer fits.
        pace: How long it lasts at the pace of the last days; None without a budget.
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
        """Return why queries that need payment are refused; None if they are not."""
        if self.frozen:
            return "frozen"
        if isinstance(self.status, str):
            return self.status
        if self.short:
            return "less is left than a query costs"
        return "nothing left" if self.pace is not None and self.pace.days == 0 else None


@dataclass(frozen=True, slots=True)
class Spender:
    """The cost of a user's queries in the last DAYS.

    Attributes:
        user: The user; an empty name for the data owner.
        charges: The number of charges to the user's budget or the cap.
        own: The share of the user's budget; it covers all windows, so it may exceed one.
        cap: The share of the cap.
        dearest: The query that took most of the user's budget; None for the data owner, and where it is too old.
    """

    user: str
    charges: int
    own: Fraction
    cap: Fraction
    dearest: str | None


@dataclass(frozen=True, slots=True)
class TableDrop:
    """What a bound of the policy drops of a table, by the newest profile.

    Attributes:
        table: The table.
        bound: The bound, by its key in the policy: "max_rows = 5".
        grouping: The rows of a unit that it bounds: "in all", "in one icd".
        share: The share of the table's rows that it drops.
        margin: Half the width of the 95 % interval of the share.
    """

    table: str
    bound: str
    grouping: str
    share: float
    margin: float


@dataclass(frozen=True, slots=True)
class BoundDrops:
    """The drops of one bound in the answers of the last DAYS.

    Attributes:
        bound: The bound's setting.
        answers: The number of answers that measured it.
        clear: The number of answers with a drop larger than noise explains.
        most: The largest drop in one answer.
        user: The user of that answer.
        sql: The query of that answer.
    """

    bound: str
    answers: int
    clear: int
    most: BoundDrop
    user: str
    sql: str


@dataclass(frozen=True)
class PageFacts:
    """The content of the page.

    Attributes:
        at: The time of the facts.
        policy: The policy.
        trouble: Why the current policy file cannot be read, so that an older one is shown; or None.
        cap: The budget over all users.
        holdings: The cap, the users and the groups.
        days: The charges to the cap on each day.
        spenders: The cost of each user's queries in the last DAYS, largest share of the cap first.
        profiled: The drops of the policy's bounds in each table, by the newest profile; None without one.
        bounds: The drops of bounds in the answers of the last DAYS, largest first.
        is_all: Whether these are all days until now; the first view of a large ledger is not complete.
        search: The search for queries.
        found: The queries found.
        unsearched: The number of charges that are too old to be searched.
        changes: The owner's last changes, newest first.
        exact: How often the owner read exact values, which no budget covers.
    """

    at: datetime
    policy: Policy
    trouble: str | None
    cap: BudgetStatus
    holdings: Sequence[Holding]
    days: Mapping[date, Day]
    spenders: Sequence[Spender]
    profiled: Sequence[TableDrop] | None
    bounds: Sequence[BoundDrops]
    is_all: bool
    search: Search
    found: Found
    unsearched: int
    changes: Sequence[OwnerRecord]
    exact: int


@dataclass(frozen=True, slots=True)
class Health:
    """The health of all parts.

    Attributes:
        ledger: The ledger; None until its first check.
        engine: The database; None until its first check.
        gateway: The gateway; None if the console does not query it.
    """

    ledger: LedgerHealth | None
    engine: EngineHealth | None
    gateway: GatewayHealth | None


class Gatherer:
    """Gathers the facts on request.

    The ledger is opened and closed each time, like by any other command of the owner: the page shows the ledger that
    currently has this name, and no file stays open.

    Args:
        load: Loads the policy from its file.
        policy: The policy that was loaded last.
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
        self._history = SpendingHistory()

    def gather(self, search: Search) -> PageFacts:
        """Return the facts, with the queries that match the search.

        Raises:
            Error: The ledger cannot be read, or contradicts the policy.
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
            profile = newest_profile(ledger, policy)
            reading, at = self._history.read(ledger), self._clock()
            holdings = tuple(
                replace(each, pace=_pace(each.status, reading, at.date())) for each in _holdings(ledger, policy, cap)
            )
        since = at.date() - timedelta(days=DAYS - 1)
        paid = [(charge, again) for charge, again in reading.paid if charge.dataset == name]
        return PageFacts(
            at=at,
            policy=policy,
            trouble=trouble,
            cap=cap,
            holdings=holdings,
            days=reading.by_day(cap.numbers),
            spenders=_spenders(holdings, cap, reading, paid, since),
            profiled=None if profile is None else tuple(_table_drops(profile, policy)),
            bounds=_bound_drops(charge for charge, _ in paid if charge.at.date() >= since),
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
    reading: HistoryReading,
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


def _table_drops(profile: Profile, policy: Policy) -> Iterator[TableDrop]:
    for table in policy.tables:
        known = profile.of(policy, table)
        if known is None:
            continue
        for place, ranks in enumerate(known.ranks):
            name, rows = ("max_rows_per_group", table.rows_per_group) if place else ("max_rows", table.rows_per_unit)
            if place and rows == table.rows_per_unit:
                continue  # max_rows drops as much
            bound = known.bounds.index(rows)
            told = ranks.share_dropped(bound), ranks.margin(bound)
            yield TableDrop(table.name, f"{name} = {rows}", str(ranks.grouping), *told)


def _bound_drops(charges: Iterable[Paid]) -> Sequence[BoundDrops]:
    told: defaultdict[str, list[tuple[BoundDrop, Paid]]] = defaultdict(list)
    for paid in charges:
        for drop in paid.dropped:
            told[drop.bound].append((drop, paid))
    found = []
    for bound, each in told.items():
        most, asked = max(each, key=lambda pair: (pair[0].is_clear, pair[0].share))
        clear = sum(drop.is_clear for drop, _ in each)
        found.append(BoundDrops(bound, len(each), clear, most, asked.user, asked.sql))
    return sorted(found, key=lambda each: (-each.most.is_clear, -each.most.share, each.bound))


def _limits(holdings: Sequence[Holding]) -> dict[str, Limit]:
    """The limit of each user's budget."""
    users = ((each.name, each.status) for each in holdings if each.kind == "user")
    return {name: status.limit for name, status in users if isinstance(status, BudgetStatus)}


def _pace(status: BudgetStatus | str, reading: HistoryReading, today: date) -> Pace | None:
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
    """A user's budget, or the reason why there is none: the policy lacks the user's role or group."""
    try:
        return ledger.budget(user, policy)
    except (PolicyViolation, InvalidParameter) as error:
        return error.message
