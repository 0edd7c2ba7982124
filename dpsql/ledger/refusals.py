"""Refusals for lack of budget: the price, the rest of the user's budget, and a price that would fit."""

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from math import isqrt

from dpsql.errors import BudgetExhausted, PolicyViolation
from dpsql.privacy.accounting import Accountant, Limit, Spent, affordable_epsilon, asked_epsilon, remaining
from dpsql.privacy.conversion import decimal

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
    epsilon, delta = asked_epsilon(limit, asked), limit.total_delta(asked)
    pure_ratio = asked.pure_epsilon / epsilon if asked.pure_epsilon and epsilon else None
    return affordable_epsilon(limit, spent, selection_delta=delta, pure_ratio=pure_ratio)


def _exhausted(
    whose: str, epsilon: Fraction, affordable: Fraction | None, limit: Limit, spent: Spent, asked: Spent
) -> BudgetExhausted:
    delta, left = limit.total_delta(asked), remaining(limit, spent).delta
    if delta > left:
        message = f"costs delta {_rounded(delta)} for private keys; {_down(left)} is left"
        hint = "Columns with a declared domain need no delta."
        hint = f"{hint} Write: SET dpsql.delta = {_down(left)}" if left > 0 else hint
    elif affordable is None:
        counts = f"as the {limit.accountant.value} accountant counts"
        message = f"costs epsilon {_rounded(epsilon)}; less than that is left, {counts}"
        hint = "Try a smaller dpsql.epsilon. What is left is in dpsql.budget. Write: SELECT * FROM dpsql.budget"
    else:
        message = f"costs epsilon {_rounded(epsilon)}; at most {_down(affordable)} is left for one query"
        hint = "Ask the data owner for a larger budget, or wait until it renews. Write: SELECT * FROM dpsql.budget"
        pure = _pure_left(limit, spent)
        if affordable >= _LEAST:
            hint = f"Write: SET dpsql.epsilon = {_down(affordable)}"
        elif asked.pure_epsilon is None and pure >= _LEAST:
            hint = f"Epsilon {_down(pure)} is left for Laplace noise. Write: SET dpsql.mechanism = 'laplace'"
    return BudgetExhausted(
        f"{whose} does not cover this query: it {message}",
        requested=epsilon,
        remaining=affordable,
        hint=hint,
    )


def _pure_left(limit: Limit, spent: Spent) -> Fraction:
    """Return the epsilon that the second clause of zcdp leaves for Laplace noise only."""
    if limit.accountant is not Accountant.ZCDP or spent.pure_epsilon is None:
        return Fraction(0)
    return limit.epsilon - spent.pure_epsilon


def cap_exhausted(dataset: str, limit: Limit, asked: Spent) -> BudgetExhausted:
    """Return the refusal of a charge that exceeds the cap over all users; it has no numbers."""
    return BudgetExhausted(
        f'the cap of "{dataset}" over all users does not cover this query',
        requested=asked_epsilon(limit, asked),
        remaining=None,
        hint="Ask the data owner: the cap never renews.",
    )


def owner_exhausted(dataset: str, limit: Limit, spent: Spent, asked: Spent) -> BudgetExhausted:
    """Return the refusal of an owner's read that exceeds the cap; it may show the rest.

    Args:
        dataset: Whose cap.
        limit: Its limit.
        spent: Its totals before the charge.
        asked: What it costs.
    """
    epsilon, left = asked_epsilon(limit, asked), _affordable(limit, spent, asked)
    return BudgetExhausted(
        f'the cap of "{dataset}" does not cover this: '
        f"it costs epsilon {_rounded(epsilon)}; at most {_down(left)} is left",
        requested=epsilon,
        remaining=left,
        hint=f"Write: --epsilon {_down(left)}"
        if left >= _LEAST
        else "The cap never renews; to raise it, change [dataset] budget in the policy.",
    )


def too_cheap(limit: Limit, asked: Spent, price: Spent, most: int, *, failed: bool) -> PolicyViolation:
    """Return the refusal of a release that is a smaller part of the user's budget than it has to be.

    Args:
        limit: Of the user's budget.
        asked: What the query costs.
        price: What the release costs.
        most: How many such releases the whole budget may pay.
        failed: Whether that is because a query of the user has failed.
    """
    epsilon = asked_epsilon(limit, asked) * _scale(limit, price, most + 1)
    why, hint = ("after a query that failed, ", "The data owner can look at the failure. ") if failed else ("", "")
    return PolicyViolation(
        f"{why}each release of a query must cost at least 1/{most} of the whole budget; nothing was charged",
        detail="A failure may depend on the data, so the number of queries is limited.",
        hint=f"{hint}Write: SET dpsql.epsilon = {_up(epsilon)}",
    )


def _scale(limit: Limit, price: Spent, times: int) -> Fraction:
    """Return what ε must be multiplied by so that an unspent limit does not cover `times` queries of it."""
    total, pure = limit.total(price), price.pure_epsilon
    scale = limit.capacity / (times * total) if total else Fraction(0)
    if limit.accountant not in (Accountant.PURE, Accountant.BASIC):
        scale = Fraction(isqrt(int(scale * _ROOT_GRID**2)) + 1, _ROOT_GRID)
    if limit.accountant is Accountant.ZCDP and pure:
        scale = max(scale, limit.epsilon / (times * pure))
    return scale * (1 + Fraction(1, _ROOT_GRID))


def _down(value: Fraction) -> str:
    return _written(value, Context(prec=3, rounding=ROUND_FLOOR))


def _up(value: Fraction) -> str:
    return _written(value, Context(prec=3, rounding=ROUND_CEILING))


def _rounded(value: Fraction) -> str:
    return _written(value, Context(prec=6, rounding=ROUND_HALF_EVEN))


def _written(value: Fraction, context: Context) -> str:
    quotient = decimal(value, context).normalize()
    return f"{quotient:f}" if quotient == 0 or quotient >= Decimal("1e-6") else f"{quotient:e}"
