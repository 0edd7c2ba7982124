"""claims: the guarantee of a charge in its budget's currency, and the claims that event probabilities contradict."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import assert_never

from dpsql.privacy.accounting import Limit, Spent
from dpsql.privacy.cost import Accountant

TESTED_DELTA = Fraction(1, 20)
"""δ at which Σε² is tested. Any value is valid; at a large one, few runs give a tight bound."""
_ORDERS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Orders at which ρ is tested."""


@dataclass(frozen=True)
class Claim:
    """A bound on the privacy loss.

    Attributes:
        epsilon: ε; under zcdp and rdp, the ε of a price, √(2ρ).
        delta: δ.
        orders: For a claim of ρ, the orders α at which the divergence is at most αρ; else empty.
    """

    epsilon: float
    delta: float
    orders: tuple[float, ...] = ()

    def least(self, p: float, q: float) -> float:
        """Return the least ε that allows an event to have probabilities p and q on the two sides; 0 if q ≥ p.

        Guarantee: of an (ε, δ)-DP mechanism ln((p − δ)/q) ≤ ε. Of one that is δ-approximately ρ-zCDP, outcomes can be
            left out of both sides with a probability of δ; of the rest, p′ ≥ (p − δ)/(1 − δ) and q′ ≤ q/(1 − δ), and
            the divergence of the event at each order α is αρ at the most.
        Reference: van Erven & Harremoës 2014, theorem 9 (data processing); Bun & Steinke 2016, definition 8.1.
        """
        if p - self.delta <= 0:
            return 0.0
        if not self.orders:
            return max(0.0, math.log((p - self.delta) / q))
        p, q = (p - self.delta) / (1 - self.delta), min(1.0, q / (1 - self.delta))
        if p <= q:
            return 0.0
        return math.sqrt(2 * max(0.0, *(_divergence(p, q, order) / order for order in self.orders)))

    def least_delta(self, p: float, q: float) -> float:
        """Return the least δ that allows an event to have probabilities p and q at the claimed ε.

        Guarantee: as of `least`, which falls as δ grows. The result is at most 2⁻⁴⁰ below the exact δ.
        """
        low, high = 0.0, 1.0
        if self.least_with(low, p, q) <= self.epsilon:
            return 0.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.least_with(middle, p, q) <= self.epsilon else (middle, high)
        return low

    def least_with(self, delta: float, p: float, q: float) -> float:
        """Return the least ε at another δ."""
        return replace(self, delta=delta).least(p, q)


def _divergence(p: float, q: float, order: float) -> float:
    """The Rényi divergence of an event of probability p from one of probability q, 0 < q < p ≤ 1."""
    pairs = [(one, other) for one, other in ((p, q), (1 - p, 1 - q)) if one > 0]
    if order == 1.0:
        return sum(one * math.log(one / other) for one, other in pairs)
    return math.log(sum(one**order * other ** (1 - order) for one, other in pairs)) / (order - 1)


def claims(price: Spent, limit: Limit) -> Iterator[Claim]:
    """Yield the guarantee of these charges in a budget, as one claim or as two that both hold.

    Raises:
        TypeError: The charges have no price in such a budget.
    """
    total = limit.total(price)
    if total is None:
        raise TypeError("a charge has a price in its budget")
    delta = float(limit.total_delta(price))
    match limit.accountant:
        case Accountant.PURE | Accountant.BASIC:
            yield Claim(float(total), delta)
        case Accountant.ADVANCED:
            logarithm = -math.log(TESTED_DELTA)
            converted = math.sqrt(2 * logarithm * float(total)) + float(total) / 2
            yield Claim(converted, float(TESTED_DELTA) + delta)
            # Each part is ε-DP and so ε²/2-zCDP: Bun & Steinke 2016, proposition 1.4.
            yield Claim(math.sqrt(float(total)), delta, _ORDERS)
        case Accountant.ZCDP:
            yield Claim(math.sqrt(2 * float(total)), delta, _ORDERS)
        case Accountant.RDP:
            order = float(limit.order)
            yield Claim(math.sqrt(2 * float(total) / order), delta, (order,))
        case _:
            assert_never(limit.accountant)
    if limit.accountant is Accountant.ZCDP and price.pure_epsilon is not None:
        yield Claim(float(price.pure_epsilon), delta)
