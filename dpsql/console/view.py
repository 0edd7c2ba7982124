"""view: the part of a ledger that the console uses: what reads, and nothing that writes."""

from collections.abc import Iterator
from typing import Any, Protocol

from dpsql.ledger import Account, BudgetStatus, Holder, OwnerRecord, VerifyReport
from dpsql.policy import Policy


class LedgerView(Protocol):
    """A ledger that is read."""

    def accounts(self) -> tuple[Account, ...]:
        """Return all users by name."""

    def budget(self, user: str, policy: Policy) -> BudgetStatus:
        """Return a user's current budget."""

    def group_budget(self, group: str, policy: Policy) -> BudgetStatus:
        """Return a group's current budget."""

    def cap(self, policy: Policy) -> BudgetStatus:
        """Return the dataset's cap over all users."""

    def frozen(self) -> frozenset[Holder]:
        """Return who is frozen: users, groups, or everybody."""

    def profiles(self, policy: Policy) -> tuple[str, ...]:
        """Return the profiles of the dataset, oldest first."""

    def owner_history(self) -> list[OwnerRecord]:
        """Return all that the owner changed, oldest first."""

    def verify(self) -> VerifyReport:
        """Recompute the hash chain, and every balance from the records."""

    def export(self, after: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield every record, oldest first, or those after one of them."""

    def close(self) -> None:
        """Close the ledger."""
