"""What a ledger is: accounts, budgets and releases, durable before any private row is read.

Rule 1: a charge is decided and written in one durable transaction; what follows it never gives anything back.
Rule 2: another user's release is charged to whom it is handed, and nothing tells it from a fresh one.
Rule 3: what is left of a dataset's cap is never told to users.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from dpsql.policy import Policy
from dpsql.privacy.accounting import Limit, Remaining, Spent, remaining
from dpsql.privacy.cost import Event


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the gateway.

    Attributes:
        name: 1 to 63 printable characters.
        role: Name of a role of the policy.
        verifier: SCRAM verifier, or None for a user without a password.
        frozen: Charges are refused until the data owner acts.
        created: When the name was first used.
    """

    name: str
    role: str
    verifier: str | None
    frozen: bool
    created: datetime


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """A noisy relation that a query needs.

    Attributes:
        key: Equal exactly when an earlier release may answer it.
        events: What it is charged with.
        inputs: Keys of earlier requests of the same charge that it is made of. A release made of others answers again
            only together with them: made anew, they would be further releases, and it would tell of both.
    """

    key: str
    events: tuple[Event, ...]
    inputs: tuple[str, ...] = ()


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
class Charge:
    """A durable charge.

    Attributes:
        id: Number of its record in the ledger.
        user: Who was charged.
        releases: One per request, in their order.
        price: What the user's budget was charged.
        limit: The user's limit.
        spent: What the user has spent of it, this charge included.
    """

    id: int
    user: str
    releases: tuple[GrantedRelease, ...]
    price: Spent
    limit: Limit
    spent: Spent

    @property
    def free(self) -> bool:
        """Whether nothing was charged."""
        return self.price == Spent.zero()

    @property
    def remaining(self) -> Remaining:
        """What the user has left, computed when it is asked for."""
        return remaining(self.limit, self.spent)


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A budget as it stands.

    Attributes:
        limit: What may be spent in a window.
        spent: What was, in this window.
        window_start: When the window began; None before the first charge.
        window_end: When the budget renews; None if it does not, or before the first charge.
        charges: How many charges the window has seen.
    """

    limit: Limit
    spent: Spent
    window_start: datetime | None
    window_end: datetime | None
    charges: int

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
    """

    release_id: int
    key: str
    sql: str
    created: datetime
    price: tuple[Event, ...]
    reused: int


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
        self, user: str, policy: Policy, requests: Sequence[ReleaseRequest], *, sql: str, reuse: bool = True
    ) -> Charge:
        """Charge a query durably, or raise and write nothing.

        Args:
            user: Who asks.
            policy: Whose budgets are charged.
            requests: The releases that the query needs; one key asked twice is charged once.
            sql: The query, for the history.
            reuse: Whether earlier releases may answer; otherwise each request is a fresh, paid release.

        Raises:
            BudgetExhausted: The user's budget or the dataset's cap does not cover it.
            PolicyViolation: No such account or role, a frozen account, or a quarantined query.
        """

    def store(self, release_id: int, payload: bytes) -> None:
        """Keep a release durably, so that it may answer again; the first one stored for a key stays."""

    def record_failure(self, user: str, keys: Sequence[str]) -> None:
        """Quarantine what failed on private data, and freeze the user at the third failure."""

    def add_account(self, name: str, role: str, verifier: str | None = None) -> None:
        """Add a user; a name used before comes back with its history and its spent budgets."""

    def set_verifier(self, name: str, verifier: str | None) -> None:
        """Change a user's SCRAM verifier."""

    def set_role(self, name: str, role: str) -> None:
        """Change a user's role; what was spent stays spent."""

    def remove_account(self, name: str) -> None:
        """Remove a user; history and budgets stay."""

    def account(self, name: str) -> Account | None:
        """Return a user, or None if there is none of that name."""

    def accounts(self) -> tuple[Account, ...]:
        """Return all users by name."""

    def unfreeze(self, name: str, reason: str) -> None:
        """Let a frozen user ask again; the reason is recorded."""

    def budget(self, user: str, policy: Policy) -> BudgetStatus:
        """Return a user's budget as it stands now."""

    def cap(self, policy: Policy) -> BudgetStatus:
        """Return the dataset's cap over all users: for the data owner, never for users."""

    def releases(self, user: str) -> list[ReleaseRecord]:
        """Return the releases that a user has paid for, oldest first."""

    def history(self, user: str | None = None) -> list[ChargeRecord]:
        """Return the charges of a user, or of all, oldest first."""

    def verify(self, noted: Noted | None = None) -> VerifyReport:
        """Recompute the hash chain, and every balance from the records; look for what was noted elsewhere."""

    def export(self) -> Iterator[dict[str, Any]]:
        """Yield every record, oldest first, with its hash."""

    def close(self) -> None:
        """Close the ledger's file."""
