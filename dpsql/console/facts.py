"""facts: all that the page shows, gathered at one moment from policy and ledger, as values.

Rule: what is here comes from the ledger, the policy, the engine's schema and the gateway's counters; never from a row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime

from dpsql.console.health import EngineHealth, GatewayHealth, LedgerHealth
from dpsql.console.journal import Day, Journal
from dpsql.console.view import LedgerView
from dpsql.errors import InvalidParameter, InvalidPolicy, PolicyViolation
from dpsql.ledger import BudgetStatus, OwnerRecord, PaidRelease
from dpsql.ledger.looks import EXACT_VALUES
from dpsql.policy import Policy

RELEASES = 25
"""So many releases are shown at a time."""

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
    """

    kind: str
    name: str
    about: str
    group: str | None
    frozen: bool
    status: BudgetStatus | str


@dataclass(frozen=True)
class Facts:
    """What the page shows.

    Attributes:
        at: When it was gathered.
        policy: The policy.
        trouble: Why the policy file cannot be read as it is now, and an older reading is shown; or None.
        cap: The budget over all users.
        holdings: The cap, the users and the groups.
        days: What was charged to the cap on each day.
        is_all: Whether these are all the days until now; of a large ledger, the first view is not of all.
        releases: Some of the releases, newest first.
        older: What is asked for to see the next older ones; None if there are none.
        newest: Whether these are the newest.
        changes: What the owner changed last, newest first.
        exact: How often the owner took exact values from the data, which no budget covers.
    """

    at: datetime
    policy: Policy
    trouble: str | None
    cap: BudgetStatus
    holdings: Sequence[Holding]
    days: Mapping[date, Day]
    is_all: bool
    releases: Sequence[PaidRelease]
    older: int | None
    newest: bool
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
    """

    def __init__(self, load: Callable[[], Policy], policy: Policy, open_ledger: Callable[[], LedgerView]) -> None:
        self._load = load
        self._policy = policy
        self._open_ledger = open_ledger
        self._journal = Journal()

    def gather(self, before: int | None) -> Facts:
        """Return the facts, with the releases that are older than one of a number.

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
            found = ledger.paid(name, RELEASES + 1, before)
            changes = [record for record in reversed(ledger.owner_history()) if record.dataset in (None, name)]
            days, is_all = self._journal.days(ledger, cap.numbers)
            return Facts(
                at=datetime.now(UTC),
                policy=policy,
                trouble=trouble,
                cap=cap,
                holdings=tuple(_holdings(ledger, policy, cap)),
                days=days,
                is_all=is_all,
                releases=found[:RELEASES],
                older=found[RELEASES - 1].record.release_id if len(found) > RELEASES else None,
                newest=before is None,
                changes=changes[:CHANGES],
                exact=sum(record.kind == EXACT_VALUES for record in changes),
            )


def _holdings(ledger: LedgerView, policy: Policy, cap: BudgetStatus) -> Iterator[Holding]:
    accounts = ledger.accounts()
    yield Holding("cap", policy.dataset.cap, "all users together", None, False, cap)
    for account in accounts:
        if policy.role(account.role) is not None:
            status = _budget(ledger, account.name, policy)
            yield Holding("user", account.name, account.role, account.group, account.frozen, status)
    for group in policy.groups:
        members = sum(account.group == group.name for account in accounts)
        about = f"{members} {'member' if members == 1 else 'members'}"
        yield Holding("group", group.name, about, None, False, ledger.group_budget(group.name, policy))


def _budget(ledger: LedgerView, user: str, policy: Policy) -> BudgetStatus | str:
    """A user's budget; or why there is none: the policy lacks the user's group, say."""
    try:
        return ledger.budget(user, policy)
    except (PolicyViolation, InvalidParameter) as error:
        return error.message
