"""Budget changes by the owner's commands: raise, lower or reset it; each needs a reason.

Rule 1: spending is never removed, except by a reset; then the guarantees before and after add up.
Rule 2: the cap over all users can only be changed in the policy.
"""

from fractions import Fraction

from dpsql.errors import InvalidParameter
from dpsql.ledger.accounts import check_holder, check_reason
from dpsql.ledger.budgets import BudgetState, group_budget, open_budget, role_budget
from dpsql.ledger.derived_tables import load_spent
from dpsql.ledger.model import BudgetScope, Holder
from dpsql.ledger.transaction import Transaction
from dpsql.policy import Budget, Policy
from dpsql.policy.budgets import LEAST_DELTA, LEAST_EPSILON, MOST_DELTA, MOST_EPSILON, changed
from dpsql.privacy.accounting import Spent
from dpsql.privacy.conversion import check_exact


def grant(
    transaction: Transaction, holder: Holder, policy: Policy, epsilon: Fraction, delta: Fraction, reason: str
) -> None:
    """Raise a budget above the policy's limit."""
    _change(transaction, holder, policy, 1, epsilon, delta, reason)


def lower(
    transaction: Transaction, holder: Holder, policy: Policy, epsilon: Fraction, delta: Fraction, reason: str
) -> None:
    """Lower a budget; the spending may then exceed it."""
    _change(transaction, holder, policy, -1, epsilon, delta, reason)


def reset(transaction: Transaction, holder: Holder, policy: Policy, reason: str) -> None:
    """Let a whole budget be spent again.

    Guarantee: n resets let n + 1 budgets be spent, whose losses add up; the cap counts them all, and is not reset.
    """
    check_reason(reason)
    budget = _policy_budget(transaction, holder, policy)
    state = open_budget(transaction, holder, policy.dataset, budget)
    if load_spent(state.spent) == Spent.zero():
        raise InvalidParameter(f"nothing has been spent from the budget of {holder}")
    transaction.append("budget.reset", _body(holder, policy, state, reason))


def _change(
    transaction: Transaction,
    holder: Holder,
    policy: Policy,
    sign: int,
    epsilon: Fraction,
    delta: Fraction,
    reason: str,
) -> None:
    check_reason(reason)
    _check_amounts(epsilon, delta)
    budget = _policy_budget(transaction, holder, policy)
    state = open_budget(transaction, holder, policy.dataset, budget)
    granted = state.granted_epsilon + sign * epsilon, state.granted_delta + sign * delta
    after = changed(budget, *granted)
    if (after.epsilon, after.delta) != (budget.epsilon + granted[0], budget.delta + granted[1]):
        raise _beyond(holder, state.granted(budget))
    body = {**_body(holder, policy, state, reason), "epsilon": str(epsilon), "delta": str(delta)}
    transaction.append("budget.granted" if sign > 0 else "budget.lowered", body)
    open_budget(transaction, holder, policy.dataset, budget)


def _policy_budget(transaction: Transaction, holder: Holder, policy: Policy) -> Budget:
    """Return a policy's budget for a known holder."""
    if holder.scope is BudgetScope.ALL:
        raise InvalidParameter(
            "the cap over all users cannot be changed by a command",
            hint="Change [dataset] budget in the policy: the next charge records it.",
        )
    if holder.scope is BudgetScope.GROUP:
        if policy.group(holder.name) is None:
            names = ", ".join(group.name for group in policy.groups)
            raise InvalidParameter(
                f'the policy has no group "{holder.name}"',
                hint=f"Its groups are {names}." if names else "It has no groups.",
            )
        return group_budget(policy, holder.name)
    check_holder(transaction.connection, holder)
    (role,) = transaction.one("SELECT role FROM accounts WHERE name = ?", holder.name)
    return role_budget(policy, role)


def _check_amounts(epsilon: Fraction, delta: Fraction) -> None:
    check_exact(epsilon, delta)
    if not Fraction(LEAST_EPSILON) <= epsilon <= Fraction(MOST_EPSILON):
        raise InvalidParameter(
            f"epsilon must be between {LEAST_EPSILON} and {MOST_EPSILON}", hint="Write: --epsilon 0.5"
        )
    if delta != 0 and not Fraction(LEAST_DELTA) <= delta <= Fraction(MOST_DELTA):
        raise InvalidParameter(
            f"delta must be 0, or between {LEAST_DELTA} and {MOST_DELTA}", hint="Write: --delta 1e-7"
        )


def _beyond(holder: Holder, budget: Budget) -> InvalidParameter:
    epsilon, delta = float(budget.epsilon), float(budget.delta)
    return InvalidParameter(
        f"the budget of {holder} is epsilon {epsilon:g} and delta {delta:g} ({budget.accountant.value}): the change "
        "would leave the range that a budget can have",
        detail=f"Epsilon is between {LEAST_EPSILON} and {MOST_EPSILON}, delta between {LEAST_DELTA} and "
        f"{MOST_DELTA}; the pure accountant has no delta.",
        hint="To stop all further queries, run: dpsql budget freeze",
    )


def _body(holder: Holder, policy: Policy, state: BudgetState, reason: str) -> dict[str, object]:
    return {
        "budget": state.id,
        "scope": holder.scope.value,
        "name": holder.name,
        "dataset": policy.dataset.name,
        "reason": reason,
    }
