"""The Rényi divergence of an event at one order α > 1, rounded up.

Rule: a bound at one order adds up over adaptive queries; the order is chosen once, when a budget is created.
"""

from fractions import Fraction
from functools import lru_cache

from dpsql.errors import InvalidParameter
from dpsql.privacy.conversion import DOWN, UP, decimal, exp, ln
from dpsql.privacy.cost import ZERO, Event, Mechanism, loss
from dpsql.privacy.exact import check_exact

LEAST_ORDER, MOST_ORDER = 1 + Fraction(1, 10**12), Fraction(10**15)


def check_order(order: Fraction) -> None:
    """Refuse an order that is not above 1, by 10⁻¹² at least, and at most 10¹⁵."""
    check_exact(order)
    if not LEAST_ORDER <= order <= MOST_ORDER:
        raise InvalidParameter("the order is out of range", hint="use an order above 1, such as 16")


@lru_cache(maxsize=4096)
def renyi(event: Event, order: Fraction) -> Fraction | None:
    """Return a bound on the Rényi divergence of order α that the event may cause; None if it has a δ.

    Guarantee:
        gaussian: αL2²/2σ². laplace: the cells' mechanisms are (Δ/b)-DP with |Δ| ≤ L∞ and Σ|Δ| ≤ L1, so
        (L1/L∞)·f(L∞/b), where f(ε) is the divergence of randomized response, the worst of all ε-DP mechanisms; or
        αL2²/2b² if that is less. exponential: αL2²/2b². permute and flip: 2αL2²/b².
    Assumes: the sensitivity holds for the policy's adjacency; noise is independent from cell to cell. f(ε)/ε grows
        with ε (y·tanh y − ln cosh y does), so cells of L∞ each are the worst that L1 allows.
    Reference: Mironov 2017, proposition 5; Kairouz, Oh & Viswanath 2015, theorem 2.4 with the data-processing
        inequality; Canonne, Kamath & Steinke 2020, theorem 4.
    """
    check_order(order)
    if event.mechanism in (Mechanism.SELECTION, Mechanism.THRESHOLD):
        return None
    by_rho = order * loss(event).rho
    sensitivity = event.sensitivity
    if event.mechanism is not Mechanism.LAPLACE or sensitivity.linf == 0:
        return by_rho
    cells = Fraction(sensitivity.l1, sensitivity.linf)
    return min(by_rho, cells * randomized_response(sensitivity.linf / event.scale, order))


def randomized_response(epsilon: Fraction, order: Fraction) -> Fraction:
    """Return the Rényi divergence of ε-DP randomized response, rounded up.

    It is ln(cosh((α−½)ε)/cosh(ε/2))/(α−1), here as ε + (ln(1 + e^(−(2α−1)ε)) − ln(1 + e^−ε))/(α−1), which no ε
    overflows.
    """
    tail = ln(UP.add(1, exp(UP.minus(decimal((2 * order - 1) * epsilon, DOWN)), UP)), UP)
    head = ln(DOWN.add(1, exp(DOWN.minus(decimal(epsilon, UP)), DOWN)), DOWN)
    return min(epsilon, max(ZERO, epsilon + Fraction(UP.subtract(tail, head)) / (order - 1)))
