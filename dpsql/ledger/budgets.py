"""Budgets: created at first use, adapted to the policy, renewed with their window.

Rule 1: a change of limit, accountant, window or cap keeps what is already spent. It is a record, not a new budget.
Rule 2: a cap never renews. If a dataset is moved from one cap to another, the two are one cap from then on.
Rule 3: what the owner grants or takes away is stored as a difference to the policy's limit.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpsql.errors import InvalidPolicy, PolicyViolation
from dpsql.ledger.chain import canonical
from dpsql.ledger.derived_tables import load_spent, read
from dpsql.ledger.model import BudgetScope, BudgetStatus, Holder
from dpsql.ledger.store import Store
from dpsql.ledger.transaction import Transaction, moment, stamp, window_end, window_start
from dpsql.policy import Budget, Dataset, Policy, RenewalWindow
from dpsql.policy.budgets import changed
from dpsql.privacy.accounting import Limit, Spent, create_limit
from dpsql.privacy.conversion import read_signed
from dpsql.privacy.cost import ZERO

_STATE = (
    "SELECT b.id, b.anchor, b.window_start, b.spent, b.charges, b.last_charge, b.resets, b.granted_epsilon, "
    "b.granted_delta, t.terms, t.fixed "
    "FROM budgets b LEFT JOIN terms t ON t.budget = b.id AND t.dataset = ?"
)


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget's row, with the terms under which one dataset charges it.

    Attributes:
        id: Its number.
        anchor: When its windows began to be counted.
        start: When the present window began.
        spent: What was charged in it, as JSON.
        charges: How often.
        last_charge: Number of the record that charged it last; None if none did.
        resets: How often the owner set it to nothing spent.
        granted_epsilon: What the owner gave on top of the policy's epsilon, or took away from it.
        granted_delta: The same of delta.
        terms: The policy's budget as it was adopted; None before the dataset's first charge.
        fixed: The limit made from them, as JSON.
    """

    id: int
    anchor: datetime
    start: datetime
    spent: str
    charges: int
    last_charge: int | None
    resets: int
    granted_epsilon: Fraction
    granted_delta: Fraction
    terms: str | None
    fixed: str | None

    @property
    def limit(self) -> Limit:
        """The limit that was fixed when the terms were adopted."""
        return load_limit(str(self.fixed))

    def granted(self, budget: Budget) -> Budget:
        """Return a policy's budget with the owner's grants and reductions."""
        if self.granted_epsilon == self.granted_delta == 0:
            return budget
        return changed(budget, self.granted_epsilon, self.granted_delta)


def role_budget(policy: Policy, role: str) -> Budget:
    """Return the budget that a policy gives a role."""
    found = policy.role(role)
    if found is None:
        raise PolicyViolation(
            f'the policy of "{policy.dataset.name}" has no role "{role}"',
            hint="Ask the data owner for a role that the policy names.",
        )
    return found.budget


def group_budget(policy: Policy, group: str) -> Budget:
    """Return the budget that a policy gives a group of users."""
    found = policy.group(group)
    if found is None:
        raise PolicyViolation(
            f'the policy of "{policy.dataset.name}" has no group "{group}"',
            hint=f"The data owner adds [groups.{group}] with its budget, or: dpsql user group NAME --none",
        )
    return found.budget


def open_budget(transaction: Transaction, holder: Holder, dataset: Dataset, budget: Budget) -> BudgetState:
    """Return the budget of a user or a group for a dataset, brought up to date with the time and the policy."""
    state = _find_budget(transaction.connection, holder, dataset.name)
    if state is None:
        number = _next_number(transaction)
        body = {"id": number, holder.scope.value: holder.name, "dataset": dataset.name}
        transaction.append("budget.created", body)
        state = _find(transaction.connection, number, dataset.name)
    start = renewal(state, transaction.now)
    if start is not None:
        transaction.append("budget.renewed", {"budget": state.id, "start": stamp(start)})
        state = _find(transaction.connection, state.id, dataset.name)
    return _adopt(transaction, state, dataset, budget)


def open_cap(transaction: Transaction, dataset: Dataset) -> BudgetState:
    """Return the cap that a dataset is under, brought up to date with the policy."""
    row = transaction.one(
        "SELECT d.cap, c.budget, c.adjacency FROM datasets d JOIN caps c ON c.name = d.cap WHERE d.name = ?",
        dataset.name,
    )
    former, number, adjacency = row or (None, 0, dataset.adjacency.value)
    _check_adjacency(dataset, former, adjacency)
    if former != dataset.cap:
        number = _join(transaction, dataset, number)
    return _adopt(transaction, _find(transaction.connection, number, dataset.name), dataset, dataset.budget)


def budget_status(connection: Store, holder: Holder, dataset: Dataset, budget: Budget, now: datetime) -> BudgetStatus:
    """Return the budget of a user or a group as a charge would find it now; nothing is written."""
    state = _find_budget(connection, holder, dataset.name)
    if state is None:
        return BudgetStatus(_fix(budget), Spent.zero(), None, None, 0, budget.window, 0)
    budget = state.granted(budget)
    terms = write_terms(budget, dataset.timezone)
    limit = state.limit if state.terms == terms else _fix(budget, _order(state))
    start = renewal(state, now)
    spent, charges = (load_spent(state.spent), state.charges) if start is None else (Spent.zero(), 0)
    begun = start or state.start
    if _window(terms) != _window(state.terms):
        begun = now  # the new window begins with the next charge
    end = None if budget.window is None else window_end(budget.window, begun, dataset.timezone)
    return BudgetStatus(limit, spent, begun, end, charges, budget.window, state.resets, (state.id,))


def group_status(connection: Store, group: str, policy: Policy, now: datetime) -> BudgetStatus:
    """Return a group's current budget."""
    return budget_status(connection, Holder(BudgetScope.GROUP, group), policy.dataset, group_budget(policy, group), now)


def cap_status(connection: Store, dataset: Dataset) -> BudgetStatus:
    """Return a dataset's cap as a charge would find it; nothing is written.

    If the policy names another cap than it did, what was spent under the former one comes along with the next charge.
    """
    rows = connection.execute(
        "SELECT name, budget FROM caps WHERE name IN (?, (SELECT cap FROM datasets WHERE name = ?))",
        (dataset.cap, dataset.name),
    ).fetchall()
    found = dict.fromkeys(budget for _, budget in sorted(rows, key=lambda row: row[0] != dataset.cap))
    if not found:
        return BudgetStatus(_fix(dataset.budget), Spent.zero(), None, None, 0, None, 0)
    state, *former = (_find(connection, number, dataset.name) for number in found)
    known = state.terms == write_terms(dataset.budget, dataset.timezone)
    limit = state.limit if known else _fix(dataset.budget, _order(state))
    spent, charges = load_spent(state.spent), state.charges
    for each in former:
        spent, charges = spent.merge(load_spent(each.spent)), charges + each.charges
    numbers = (state.id, *(each.id for each in former))
    return BudgetStatus(limit, spent, state.start, None, charges, None, 0, numbers)


def last_charge(connection: Store, user: str, dataset: Dataset) -> int | None:
    """Return the number of the record that charged a user last for a dataset; None if none did."""
    state = _find_budget(connection, Holder(BudgetScope.USER, user), dataset.name)
    return None if state is None else state.last_charge


def renewal(state: BudgetState, now: datetime) -> datetime | None:
    """Return the start of the window that contains `now` if it is a new one."""
    window, timezone = _window(state.terms)
    if window is None:
        return None
    start = window_start(window, state.anchor, now, timezone)
    return start if start > state.start else None


def renews(state: BudgetState) -> datetime | None:
    """Return when the window ends that a budget is in; None if it does not."""
    window, timezone = _window(state.terms)
    return None if window is None else window_end(window, state.start, timezone)


def _find_budget(connection: Store, holder: Holder, dataset: str) -> BudgetState | None:
    row = connection.execute(
        f"{_STATE} WHERE b.scope = ? AND b.holder = ? AND b.dataset = ?",
        (dataset, holder.scope.value, holder.name, dataset),
    ).fetchone()
    return None if row is None else _state(row)


def _find(connection: Store, number: int, dataset: str) -> BudgetState:
    return _state(connection.execute(f"{_STATE} WHERE b.id = ?", (dataset, number)).fetchone())


def _state(row: tuple[Any, ...]) -> BudgetState:
    number, anchor, start, spent, charges, last, resets, epsilon, delta, terms, fixed = row
    return BudgetState(
        number,
        moment(anchor),
        moment(start),
        spent,
        charges,
        last,
        resets,
        read(read_signed, epsilon),
        read(read_signed, delta),
        terms,
        fixed,
    )


def _next_number(transaction: Transaction) -> int:
    number: int = transaction.one("SELECT coalesce(max(id), 0) + 1 FROM budgets")[0]
    return number


def _adopt(transaction: Transaction, state: BudgetState, dataset: Dataset, budget: Budget) -> BudgetState:
    """Adapt a budget to the policy and the owner's grants, if they have changed."""
    budget = state.granted(budget)
    terms = write_terms(budget, dataset.timezone)
    if state.terms == terms:
        return state
    body = {
        "budget": state.id,
        "dataset": dataset.name,
        "terms": json.loads(terms),
        "limit": _fix(budget, _order(state)).to_json(),
        # A window of another length begins now: what is spent stays so until it ends.
        "new_window": _window(terms) != _window(state.terms),
    }
    transaction.append("budget.terms", body)
    return _find(transaction.connection, state.id, dataset.name)


def _join(transaction: Transaction, dataset: Dataset, former: int) -> int:
    """Move a dataset to the cap that its policy names, together with its spending under the former cap.

    Args:
        transaction: Where it is written.
        dataset: The policy's dataset.
        former: Number of the former cap's budget; 0 if there is none.

    Returns:
        Number of the cap's budget.
    """
    row = transaction.one("SELECT budget, adjacency FROM caps WHERE name = ?", dataset.cap)
    if row is None:
        row = _next_number(transaction), dataset.adjacency.value
        transaction.append("cap.created", {"cap": dataset.cap, "budget": row[0], "adjacency": row[1]})
    number, adjacency = row
    _check_adjacency(dataset, dataset.cap, adjacency)
    if former not in (0, number):
        transaction.append("cap.merged", {"budget": former, "into": number, "dataset": dataset.name})
    transaction.append("dataset.joined", {"dataset": dataset.name, "cap": dataset.cap})
    return int(number)


def _check_adjacency(dataset: Dataset, cap: str | None, adjacency: str) -> None:
    if adjacency != dataset.adjacency.value:
        raise InvalidPolicy(
            f'the ledger counts the losses of cap "{cap}" for neighbours by "{adjacency}", '
            f'the policy of "{dataset.name}" for neighbours by "{dataset.adjacency.value}": they do not add up',
            hint=f'Write adjacency = "{adjacency}" in the policy, or begin a new ledger.',
        )


@lru_cache(maxsize=256)
def write_terms(budget: Budget, timezone: str) -> str:
    """Return a policy's terms of a budget as canonical JSON; the time zone matters for calendar months only."""
    window = budget.window
    return canonical(
        {
            "accountant": budget.accountant.value,
            "epsilon": str(budget.epsilon),
            "delta": str(budget.delta),
            "selection_share": str(budget.selection_share),
            "window": None if window is None else {"days": window.days, "timezone": "UTC" if window.days else timezone},
        }
    )


@lru_cache(maxsize=256)
def _window(terms: str | None) -> tuple[RenewalWindow | None, str]:
    window = None if terms is None else read(lambda known: json.loads(known)["window"], terms)
    return (None, "UTC") if window is None else (RenewalWindow(window["days"]), window["timezone"])


@lru_cache(maxsize=256)
def load_limit(text: str) -> Limit:
    """Return the limit that a budget's terms were fixed to."""
    return read(lambda known: Limit.from_json(json.loads(known)), text)


@lru_cache(maxsize=256)
def _fix(budget: Budget, order: Fraction = ZERO) -> Limit:
    return create_limit(budget.accountant, budget.epsilon, budget.delta, budget.selection_share, order)


def _order(state: BudgetState) -> Fraction:
    """Return the order that a budget was created with; a change of its terms does not move it."""
    return ZERO if state.fixed is None else state.limit.order
