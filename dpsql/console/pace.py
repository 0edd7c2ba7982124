"""pace: estimates when a budget is exhausted at the pace of the last days; it limits nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from math import inf

from dpsql.console.spending_history import Day
from dpsql.ledger import BudgetStatus
from dpsql.privacy.accounting import Accountant, Spent

WEEK = 7
"""The number of days that the pace is measured over."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace at which a budget is spent.

    Attributes:
        days: The days that it lasts at this pace; infinite if nothing was spent, 0 if nothing is left.
        gone: The day on which it is exhausted; None if that is beyond a hundred years, or beyond its renewal.
        renews: Whether it lasts until it renews.
        span: The number of days that the pace covers; fewer than WEEK if the first charge was later.
    """

    days: float
    gone: date | None
    renews: bool
    span: int


def pace(status: BudgetStatus, days: Mapping[date, Day], today: date) -> Pace:
    """Return how long a budget lasts.

    Args:
        status: The budget.
        days: The charges to it on each day.
        today: The current day, which counts as a whole day.
    """
    recent, span = Spent.zero(), max(1, min(WEEK, (today - min(days, default=today)).days + 1))
    for day, paid in days.items():
        if day > today - timedelta(days=WEEK):
            recent = recent.merge(paid.spent)
    lasts = _lasts(status, recent) * span
    gone = today + timedelta(days=int(lasts)) if lasts < 36_500 else None
    renews = status.window_end is not None and lasts > 0 and (gone is None or gone >= status.window_end.date())
    return Pace(lasts, None if renews else gone, renews, span)


def _lasts(status: BudgetStatus, recent: Spent) -> float:
    """Return how many times the recent spending still fits."""
    limit, spent = status.limit, status.spent
    fits = _times(limit.capacity, limit.total(spent), limit.total(recent))
    if limit.accountant is Accountant.ZCDP and spent.pure_epsilon is not None and recent.pure_epsilon is not None:
        fits = max(fits, _times(limit.epsilon, spent.pure_epsilon, recent.pure_epsilon))
    return min(fits, _times(limit.delta_selection, limit.total_delta(spent), limit.total_delta(recent)))


def _times(limit: Fraction, spent: Fraction | None, recent: Fraction | None) -> float:
    if not limit:
        return inf  # a part that the budget does not have is never charged
    left = limit - (spent or 0)
    return 0.0 if left <= 0 else float(left / recent) if recent else inf
