"""The values that a ledger takes and returns: accounts, budgets, releases and charges."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from dpsql.policy import RenewalWindow
from dpsql.privacy.accounting import Limit, Remaining, Spent, remaining
from dpsql.privacy.cost import Event


class NotHeld(Exception):
    """A release for reuse is no longer stored, or the user never had it; nothing was charged."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the gateway.

    Attributes:
        name: 1 to 63 printable characters.
        role: Name of a role of the policy.
        verifier: SCRAM verifier, or None for a user without a password.
        frozen: Charges are refused until the data owner acts: the user, the group or everybody is frozen.
        created: When the name was first used.
        group: Name of a group of the policy, whose budget the user's queries are charged to as well; or None.
    """

    name: str
    role: str
    verifier: str | None
    frozen: bool
    created: datetime
    group: str | None = None


class BudgetScope(enum.StrEnum):
    """Whose budget or freeze is meant."""

    USER = "user"
    GROUP = "group"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Holder:
    """A user, a group of users, or all users, who have no name."""

    scope: BudgetScope
    name: str = ""

    def __str__(self) -> str:
        return "everybody" if self.scope is BudgetScope.ALL else f'{self.scope} "{self.name}"'


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """A noisy relation that a query needs.

    Attributes:
        key: Equal exactly when an earlier release may answer it.
        events: What it is charged with.
        inputs: Keys of earlier requests of the same charge that it is made of. A release made of others answers again
            only together with them: made anew, they would be further releases, and it would tell of both.
        held: It is wanted only if the user has it already, free.
    """

    key: str
    events: tuple[Event, ...]
    inputs: tuple[str, ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class HandedRelease:
    """A release that a user has paid for; the ledger may keep it, or not.

    Attributes:
        release: Its number in the ledger, which no user is told.
        key: What it answers.
        number: Its place among the releases of the dataset that this user has paid for, from 1 on.
    """

    release: int
    key: str
    number: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How private rows are read for a charge.

    Attributes:
        seconds: After which the reads are stopped, if they have not ended.
        check: Called again and again while the query waits; raises when it is to wait no longer.
    """

    seconds: float
    check: Callable[[], None]


@dataclass(frozen=True, slots=True)
class GrantedRelease:
    """The permission to make one release, or an earlier one to hand out.

    Attributes:
        key: The key that was asked for.
        release_id: What `store` is called with.
        payload: The earlier release, for which nothing may be read; None if it is to be made.
        reused: The user has this release already; never true of another user's.
    """

    key: str
    release_id: int
    payload: bytes | None
    reused: bool


@dataclass(frozen=True, slots=True)
class GroupBalance:
    """What the users of a group have spent of the budget that they share.

    Attributes:
        group: Name of the group.
        limit: Its limit.
        spent: What it has spent of it.
    """

    group: str
    limit: Limit
    spent: Spent

    @property
    def remaining(self) -> Remaining:
        """What the group has left, computed when it is asked for."""
        return remaining(self.limit, self.spent)


@dataclass(frozen=True, slots=True)
class Charge:
    """A durable charge.

    Attributes:
        id: Number of its record in the ledger; None where nothing was charged and the record is still to be written.
        user: Who was charged.
        releases: One per request, in their order.
        price: What the user's budget was charged.
        limit: The user's limit.
        spent: What the user has spent of it, this charge included.
        shared: The same of the user's group; None without one.
    """

    id: int | None
    user: str
    releases: tuple[GrantedRelease, ...]
    price: Spent
    limit: Limit
    spent: Spent
    shared: GroupBalance | None

    @property
    def free(self) -> bool:
        """Whether nothing was charged."""
        return self.price == Spent.zero()

    @property
    def reads(self) -> bool:
        """Whether it opens a read, which is to end: what another user has paid for opens one, too."""
        return not self.free

    @property
    def remaining(self) -> Remaining:
        """What the user has left, computed when it is asked for."""
        return remaining(self.limit, self.spent)


@dataclass(frozen=True, slots=True)
class BoundDrop:
    """How much a contribution bound dropped of an answer, of released cells alone.

    Attributes:
        bound: The bound, by its setting: "max_rows = 5".
        counted: What it dropped: "rows", "groups of units" or "sum".
        share: Which part of that.
        margin: Half the width of the 95 % interval of the share.
    """

    bound: str
    counted: str
    share: float
    margin: float

    @property
    def is_clear(self) -> bool:
        """Whether noise alone would rarely show as much."""
        return self.share > self.margin


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """The current state of a budget.

    Attributes:
        limit: What may be spent in a window.
        spent: What was, in this window.
        window_start: When the window began; None before the first charge.
        window_end: When the budget renews; None if it does not, or before the first charge.
        charges: How many charges the window has seen.
        window: How often it renews; None if it does not.
        resets: How often the data owner has set it to nothing spent.
        numbers: What the records call it; none before the first charge, two where two caps become one with the next.
    """

    limit: Limit
    spent: Spent
    window_start: datetime | None
    window_end: datetime | None
    charges: int
    window: RenewalWindow | None
    resets: int
    numbers: tuple[int, ...] = ()

    @property
    def remaining(self) -> Remaining:
        """What is left, computed when it is asked for."""
        return remaining(self.limit, self.spent)


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """A release that a user has paid for.

    Attributes:
        release_id: Its number.
        key: What it answers.
        sql: The query that first got it for this user.
        created: When that was.
        price: The events that this user was charged.
        reused: How often this user had it again, free.
        kept: True as long as the ledger keeps it: until then the same question is free.
    """

    release_id: int
    key: str
    sql: str
    created: datetime
    price: tuple[Event, ...]
    reused: int
    kept: bool


@dataclass(frozen=True, slots=True)
class ChargeRecord:
    """A charge in the history.

    Attributes:
        id: Number of its record.
        user: Who was charged.
        dataset: For which dataset.
        sql: The query.
        at: When.
        price: The events charged to the user.
    """

    id: int
    user: str
    dataset: str
    sql: str
    at: datetime
    price: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class UserBudgets:
    """The budgets that a user may see, at one moment.

    Attributes:
        own: The user's own budget.
        group: Name of the user's group; None if there is none.
        shared: The group's budget; None without a group.
        last: The last charge of this user and dataset; None before the first.
        failures: How many reads of the user failed since the owner looked at them last.
    """

    own: BudgetStatus
    group: str | None
    shared: BudgetStatus | None
    last: ChargeRecord | None
    failures: int = 0


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """What the data owner changed, or the gateway by the owner's rules.

    Attributes:
        id: Number of its record.
        at: When.
        kind: Kind of the record, such as "budget.granted".
        holder: Whom it concerns.
        dataset: Of which dataset the budget is; None where it concerns all of them.
        epsilon: By how much a budget was raised or lowered; None for other changes.
        delta: The same of delta.
        reason: Why, in the owner's words, or what happened.
        price: What the owner's own look at the data was charged to the cap; nothing for other changes.
    """

    id: int
    at: datetime
    kind: str
    holder: Holder
    dataset: str | None
    epsilon: Fraction | None
    delta: Fraction | None
    reason: str
    price: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """The time of the ledger and of this machine.

    Attributes:
        ledger: How a record that is written now is dated.
        machine: What the machine's clock says.
        held: The clock is so far ahead that it is not trusted: the ledger's time is that of its last record.
    """

    ledger: datetime
    machine: datetime
    held: bool


@dataclass(frozen=True, slots=True)
class Noted:
    """What a report of `verify` said, kept where those who can write the ledger cannot write.

    Attributes:
        head: Hash of the last record then.
        records: How many there were then; None to look for the hash anywhere.
    """

    head: str
    records: int | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found.

    Attributes:
        records: How many records were read.
        head: Hash of the last record: noted elsewhere, it proves later that none was cut off.
        problems: What is wrong, one sentence each; empty if the ledger holds.
    """

    records: int
    head: str
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems
