"""What a user is told when a charge does not fit: the price, what is left of the own budget, what would fit."""

from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from math import isqrt

from dpsql.errors import BudgetExhausted
from dpsql.privacy.accounting import Accountant, Limit, Spent, affordable_epsilon, remaining

_LEAST = Fraction(1, 10**6)
"""Below it an answer would be nothing but noise: not worth a hint."""

_ROOT_GRID = 10**15


def budget_exhausted(user: str, limit: Limit, spent: Spent, asked: Spent) -> BudgetExhausted:
    """Return the refusal of a charge that does not fit the user's own budget.

    Args:
        user: Whose budget.
        limit: Its limit.
        spent: Its totals before the charge.
        asked: What the query costs.
    """
    epsilon = asked_epsilon(limit, asked)
    return _exhausted(f'the budget of "{user}"', epsilon, _affordable(limit, spent, asked), limit, spent, asked)


def group_exhausted(group: str, limit: Limit, spent: Spent, own: Limit, asked: Spent) -> BudgetExhausted:
    """Return the refusal of a charge that does not fit the shared budget of the user's group.

    Epsilon is told in the currency of the user's own budget: that is what SET dpsql.epsilon means to the user.

    Args:
        group: Whose budget.
        limit: The group's limit.
        spent: The group's totals before the charge.
        own: The user's own limit.
        asked: What the query costs, releases that the group has paid for already included: at another epsilon they
            would be others.
    """
    epsilon, shared = asked_epsilon(own, asked), asked_epsilon(limit, asked)
    affordable: Fraction | None = Fraction(0)
    if shared:
        # Parts that are pure, or counted alike, grow with the price; Gaussian noise that is counted otherwise does not.
        alike = asked.pure_epsilon is not None or own.accountant.shares_rho == limit.accountant.shares_rho
        affordable = _affordable(limit, spent, asked) * epsilon / shared if alike else None
    return _exhausted(f'the budget of group "{group}"', epsilon, affordable, limit, spent, asked)


def _affordable(limit: Limit, spent: Spent, asked: Spent) -> Fraction:
    epsilon, delta = asked_epsilon(limit, asked), _asked_delta(limit, asked)
    pure_ratio = asked.pure_epsilon / epsilon if asked.pure_epsilon and epsilon else None
    return affordable_epsilon(limit, spent, selection_delta=delta, pure_ratio=pure_ratio)


def _exhausted(
    whose: str, epsilon: Fraction, affordable: Fraction | None, limit: Limit, spent: Spent, asked: Spent
) -> BudgetExhausted:
    delta, left = _asked_delta(limit, asked), remaining(limit, spent).delta
    if delta > left:
        message = f"asks delta {_rounded(delta)} for private keys, and {_down(left)} is left"
        hint = "group by columns with a declared domain: they need no delta"
        if left > 0:
            hint = f"SET dpsql.delta = {_down(left)}; or {hint}"
    elif affordable is None:
        message = f"asks epsilon {_rounded(epsilon)}, and what is left, counted as {limit.accountant.value}, is less"
        hint = "a smaller dpsql.epsilon may fit: SELECT * FROM dpsql.budget tells what is left"
    else:
        message = f"asks epsilon {_rounded(epsilon)}, and {_down(affordable)} would still fit"
        hint = "ask the data owner for a larger budget, or wait until it renews: SELECT * FROM dpsql.budget"
        pure = _pure_left(limit, spent)
        if affordable >= _LEAST:
            hint = f"SET dpsql.epsilon = {_down(affordable)};"
        elif asked.pure_epsilon is None and pure >= _LEAST:
            hint = f"SET dpsql.mechanism = 'laplace'; as all noise was so far, epsilon {_down(pure)} of it still fits"
    return BudgetExhausted(
        f"{whose} does not cover this query: it {message}",
        requested=epsilon,
        remaining=affordable,
        hint=hint,
    )


def _pure_left(limit: Limit, spent: Spent) -> Fraction:
    """Return what the second clause of zcdp leaves to those who ask for Laplace noise alone."""
    if limit.accountant is not Accountant.ZCDP or spent.pure_epsilon is None:
        return Fraction(0)
    return limit.epsilon - spent.pure_epsilon


def cap_exhausted(dataset: str, limit: Limit, asked: Spent) -> BudgetExhausted:
    """Return the refusal of a charge that does not fit what all users together may spend; it tells no number."""
    return BudgetExhausted(
        f'the cap of "{dataset}" over all users does not cover this query',
        requested=asked_epsilon(limit, asked),
        remaining=None,
        hint="ask the data owner: the cap never renews",
    )


def owner_exhausted(dataset: str, limit: Limit, spent: Spent, asked: Spent) -> BudgetExhausted:
    """Return the refusal of what the data owner asks at the cap's expense; it may tell what is left.

    Args:
        dataset: Whose cap.
        limit: Its limit.
        spent: Its totals before the charge.
        asked: What it costs.
    """
    epsilon, left = asked_epsilon(limit, asked), _affordable(limit, spent, asked)
    return BudgetExhausted(
        f'the cap of "{dataset}" does not cover this: it asks epsilon {_rounded(epsilon)}, and {_down(left)} would fit',
        requested=epsilon,
        remaining=left,
        hint=f"--epsilon {_down(left)}" if left >= _LEAST else "the cap never renews: [dataset] budget in the policy",
    )


def asked_epsilon(limit: Limit, asked: Spent) -> Fraction:
    """Return a price as the ε of one query in the limit's currency; 0 if it has none there."""
    if limit.accountant is Accountant.PURE:
        return asked.pure_epsilon or Fraction(0)
    if limit.accountant.converts:
        return asked.basic_epsilon or Fraction(0)
    return Fraction(isqrt(int(2 * asked.rho * _ROOT_GRID**2)), _ROOT_GRID)


def _asked_delta(limit: Limit, asked: Spent) -> Fraction:
    return limit.total_delta(asked)


def _down(value: Fraction) -> str:
    return _written(value, Context(prec=3, rounding=ROUND_FLOOR))


def _rounded(value: Fraction) -> str:
    return _written(value, Context(prec=6, rounding=ROUND_HALF_EVEN))


def _written(value: Fraction, context: Context) -> str:
    quotient = context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize()
    return f"{quotient:f}" if quotient == 0 or quotient >= Decimal("1e-6") else f"{quotient:e}"
