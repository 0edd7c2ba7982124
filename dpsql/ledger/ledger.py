"""What a ledger is: accounts, budgets and releases, durable before any private row is read.

Rule 1: a charge is decided and written in one durable transaction; what follows it never gives anything back. What
    a user has paid for and has again costs nothing: its record alone may be written after the answer (`again`).
Rule 2: another user's release is charged to whom it is handed, and nothing tells it from a fresh one.
Rule 3: what is left of a dataset's cap is never told to users.
Rule 4: each change of a budget, a group or a freeze by the owner is a record with the owner's reason.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any, Protocol

from dpsql.policy import Policy, RenewalWindow
from dpsql.privacy.accounting import Limit, Remaining, Spent, remaining
from dpsql.privacy.cost import Event


class NotHeld(Exception):
    """A release that was to be reused, free, is not kept any more, or the user never had it; nothing was charged."""


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
    """

    release: int
    key: str


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
        """Whether noise alone would hardly tell so much."""
        return self.share > self.margin


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A budget as it stands.

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
    """All that a user may know of budgets, at one moment.

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
        held: The clock is so far ahead that it is not believed: the ledger's time is that of its last record.
    """

    ledger: datetime
    machine: datetime
    held: bool


@dataclass(frozen=True, slots=True)
class Noted:
    """What a report of `verify` said, kept where nobody who can write the ledger can write.

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


class Ledger(Protocol):
    """Durable accounts, budgets and releases, shared by threads and processes.

    Every method raises LedgerUnavailable when the ledger cannot be read or durably written.
    """

    def charge(
        self,
        user: str,
        policy: Policy,
        requests: Sequence[ReleaseRequest],
        *,
        sql: str,
        reuse: bool = True,
        reading: Reading,
    ) -> Charge:
        """Charge a query durably, or raise and write nothing.

        Where private rows are to be read, it waits until few enough of the user's reads are open. The read that the
        charge begins is open until `store`, `record_failure` or `end` is told its number.

        Args:
            user: Who asks.
            policy: Whose budgets are charged.
            requests: The releases that the query needs; one key asked twice is charged once.
            sql: The query, for the history.
            reuse: Whether earlier releases may answer; otherwise each request is a fresh, paid release.
            reading: How what is fresh is read. Nobody reads private rows without: only then is the read counted.

        Raises:
            BudgetExhausted: The user's budget, that of the user's group, or the dataset's cap does not cover it.
            PolicyViolation: No such account, role or group, a frozen one, a quarantined query, or one that costs less
                than a part of the budget that it has to.
            TooManyStatements: It has waited too long.
            NotHeld: A release is wanted only if the user has it, and the user does not.
            Error: What `reading.check` raises.
        """

    def again(
        self,
        user: str,
        role: str,
        policy: Policy,
        requests: Sequence[ReleaseRequest],
        *,
        sql: str,
        wanted: Callable[[tuple[GrantedRelease, ...]], bool] = lambda _: True,
    ) -> Charge | None:
        """Hand out what this user has already, free, and wait for nothing; None where `charge` must be asked.

        That the user had it again is written soon after, before whatever this process is asked to write later. Nothing
        is charged, so a process that dies before loses a line of the user's history, and no budget differs.

        Args:
            user: Who asks.
            role: The role under which the query was compiled; None is returned where the user has another.
            policy: Whose budgets a charge would be made to.
            requests: The releases that the query needs.
            sql: The query, for the history.
            wanted: Told what would be handed out; where it says no, nothing is.
        """

    def charge_cap(self, policy: Policy, events: Sequence[Event], purpose: str) -> BudgetStatus:
        """Charge what the data owner asks to the dataset's cap alone, durably, and return the cap; or write nothing.

        Args:
            policy: Whose cap it is.
            events: What is charged.
            purpose: What it is for; it is recorded.

        Raises:
            BudgetExhausted: The cap does not cover it.
        """

    def record_exact(self, policy: Policy, purpose: str) -> None:
        """Record durably that the data owner takes exact values from the data, which no guarantee covers."""

    def store_profile(self, policy: Policy, profile: str) -> None:
        """Keep a profile of the dataset durably: what a release that the cap was charged for came to."""

    def profiles(self, policy: Policy) -> tuple[str, ...]:
        """Return the profiles of the dataset, oldest first, as they were given to `store_profile`."""

    def held(self, user: str, policy: Policy, requests: Sequence[ReleaseRequest]) -> tuple[bool, ...]:
        """Tell which of the requests this user has already and would not be charged for; nothing is written."""

    def handed(self, user: str, policy: Policy, family: str, after: int) -> tuple[HandedRelease, ...]:
        """Return the releases of a family that this user has paid for, oldest first.

        Args:
            user: Who has them.
            policy: Of whose dataset they are.
            family: What their keys begin with, before a full stop.
            after: The number of a release: those that came later are returned.
        """

    def place(self, user: str, policy: Policy, release: int) -> int:
        """Return the place of a release among those of the dataset that this user has paid for, from 1 on."""

    def cells(self, user: str, release: int) -> bytes:
        """Return what is stored of a release that this user has paid for.

        Args:
            user: Who has it.
            release: Its number in the ledger, which no user is told.

        Raises:
            LedgerUnavailable: It is not what was stored.
            NotHeld: It is not kept, or the user does not have it.
        """

    def store(
        self, release_id: int, payload: bytes, *, ends: int | None = None, dropped: Sequence[BoundDrop] = ()
    ) -> None:
        """Keep a release durably, so that it may answer again; the first one stored for a key stays.

        Args:
            release_id: The release.
            payload: Its cells.
            ends: Number of the charge whose read has ended with it, well.
            dropped: What the answer's released cells tell of its bounds: it is recorded with the end of the read.

        Raises:
            LedgerUnavailable: The read counts as lost already; the release is not kept, and nobody may be told of it.
        """

    def end(self, charge: int) -> None:
        """Let it be known soon that the read of a charge has ended, and did not fail; nothing if that is known."""

    def record_failure(self, user: str, keys: Sequence[str], charge: int | None = None) -> None:
        """Quarantine what failed on private data, end its read, and freeze the user at the third failure.

        Raises:
            LedgerUnavailable: The read counts as lost already, which nobody may tell from one that ended well.
        """

    def add_account(self, name: str, role: str, verifier: str | None = None, group: str | None = None) -> None:
        """Add a user; a name used before comes back with its history and its spent budgets, but not in its group."""

    def set_verifier(self, name: str, verifier: str | None) -> None:
        """Change a user's SCRAM verifier."""

    def end_sessions(self, name: str) -> None:
        """Have gateways end a user's sessions, as a change of the verifier does; the verifier stays."""

    def ended_sessions(self, after: int | None) -> tuple[int, frozenset[str]]:
        """Tell whose sessions are to end.

        Args:
            after: The number of a record; None to be told no user, and where the records end now.

        Returns:
            The number of the last record, and the users who were removed, got a verifier or were to be sent away in
            records after that one.
        """

    def set_role(self, name: str, role: str) -> None:
        """Change a user's role; what was spent stays spent."""

    def set_group(self, name: str, group: str | None) -> None:
        """Put a user into a group, or into none; what was spent stays spent, in both groups."""

    def remove_account(self, name: str) -> None:
        """Remove a user; history and budgets stay."""

    def account(self, name: str) -> Account | None:
        """Return a user, or None if there is none of that name."""

    def accounts(self) -> tuple[Account, ...]:
        """Return all users by name."""

    def freeze(self, holder: Holder, reason: str) -> None:
        """Refuse every charge of a user, of a group's members, or of everybody; the reason is recorded."""

    def unfreeze(self, holder: Holder, reason: str) -> None:
        """Let those who were frozen ask again; the reason is recorded."""

    def grant(self, holder: Holder, policy: Policy, epsilon: Fraction, delta: Fraction, reason: str) -> BudgetStatus:
        """Give a user or a group more than the policy says, from now on, and return the budget; with the reason.

        Raises:
            InvalidParameter: Nobody of that name, a number out of range, no reason, or the cap: that is the policy's.
        """

    def lower(self, holder: Holder, policy: Policy, epsilon: Fraction, delta: Fraction, reason: str) -> BudgetStatus:
        """Give a user or a group less than before, as `grant` gives more; what is spent stays spent."""

    def reset(self, holder: Holder, policy: Policy, reason: str) -> BudgetStatus:
        """Let a user or a group spend the whole budget again; what was spent before adds to the loss."""

    def budget(self, user: str, policy: Policy) -> BudgetStatus:
        """Return a user's own budget as it stands now."""

    def budgets(self, user: str, policy: Policy) -> UserBudgets:
        """Return all that a user may know of budgets: the own, the group's, and the last charge."""

    def group_budget(self, group: str, policy: Policy) -> BudgetStatus:
        """Return a group's budget as it stands now."""

    def cap(self, policy: Policy) -> BudgetStatus:
        """Return the dataset's cap over all users: for the data owner, never for users."""

    def releases(self, user: str, dataset: str) -> list[ReleaseRecord]:
        """Return the releases of a dataset that a user has paid for, oldest first."""

    def history(self, user: str | None = None) -> list[ChargeRecord]:
        """Return the charges of a user, or of all, oldest first."""

    def frozen(self) -> frozenset[Holder]:
        """Return who is frozen: users, groups, or everybody; a freeze of a group names the group alone."""

    def owner_history(self) -> list[OwnerRecord]:
        """Return all grants, resets, freezes and changes of group, oldest first."""

    @property
    def clock_held(self) -> bool:
        """Whether the clock was not believed when this process last wrote; nothing is read for it."""

    def clock_status(self) -> ClockStatus:
        """Tell the ledger's time, beside that of this machine."""

    def confirm_clock(self, reason: str) -> ClockStatus:
        """Have the ledger believe this machine's clock, though it is far ahead; the reason is recorded.

        Raises:
            InvalidParameter: No reason, or the clock is believed already.
        """

    def verify(self, noted: Noted | None = None) -> VerifyReport:
        """Recompute the hash chain, and every balance from the records; look for what was noted elsewhere."""

    def head(self) -> Noted:
        """Return the last record, to be noted elsewhere."""

    def check(self, noted: Noted) -> None:
        """Raise LedgerUnavailable where the record is not there that was noted elsewhere as the last."""

    def export(self, after: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield every record, oldest first, with its hash; or those after one of them, by its number."""

    def probe(self) -> None:
        """Commit durably what changes nothing: where this raises nothing, a charge would be durable too."""

    def close(self) -> None:
        """Close the ledger."""
