"""Records of the data owner's own reads: with noise and charged to the cap only, or exact.

Rule 1: a noisy read is durably charged to the cap before it happens, because it adds to what users learn.
Rule 2: an exact read costs nothing and has no guarantee; its record in the ledger says so permanently.
Rule 3: a profile is a record like any other: the hash chain shows if it is changed or lost.
"""

from collections.abc import Sequence

from dpsql.ledger.budgets import open_cap
from dpsql.ledger.chain import write_events
from dpsql.ledger.derived_tables import charged, load_spent, write_total
from dpsql.ledger.model import BudgetScope
from dpsql.ledger.refusals import owner_exhausted
from dpsql.ledger.transaction import Transaction
from dpsql.policy import Policy
from dpsql.privacy.accounting import Spent, admits
from dpsql.privacy.cost import Event

CAP_CHARGED, EXACT_VALUES, PROFILE_MADE = "cap.charged", "values.exact", "profile.made"
"""Kinds of records."""


def charge_cap(transaction: Transaction, policy: Policy, events: Sequence[Event], purpose: str) -> None:
    """Charge a look with noise to the cap.

    Raises:
        BudgetExhausted: The cap does not cover it.
    """
    cap = open_cap(transaction, policy.dataset)
    spent = load_spent(cap.spent)
    after = charged(write_total(spent), write_events(tuple(events)))
    if not admits(cap.limit, after.spent):
        raise owner_exhausted(policy.dataset.name, cap.limit, spent, Spent.zero().add(events))
    body = _body(policy, purpose) | {"budget": cap.id, "events": [event.to_json() for event in events]}
    transaction.append(CAP_CHARGED, body)


def record_exact(transaction: Transaction, policy: Policy, purpose: str) -> None:
    """Record an exact look."""
    transaction.append(EXACT_VALUES, _body(policy, purpose))


def store_profile(transaction: Transaction, dataset: str, profile: str) -> None:
    """Record a profile that the cap was charged for."""
    transaction.append(PROFILE_MADE, {"dataset": dataset, "profile": profile})


def _body(policy: Policy, purpose: str) -> dict[str, object]:
    return {"scope": BudgetScope.ALL.value, "name": "", "dataset": policy.dataset.name, "reason": purpose}
