"""The Rényi divergence of discrete Laplace noise from the same noise moved by so many steps, rounded up."""

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from dpsql.privacy.conversion import DOWN, UP, decimal, exp, ln
from dpsql.privacy.cost import ZERO


@lru_cache(maxsize=4096)
def laplace_divergence(steps: int, scale: Fraction, order: Fraction) -> Fraction:
    """Return D_α of the laws with P ∝ exp(−|z|/b) and P ∝ exp(−|z − s|/b).

    Guarantee: with q = e^(−1/b) and u = s/b, ΣP^α·Q^(1−α) over the integers is A·e^((α−1)u) + (1 − A)·e^(−αu), where
        A = (1 − q^(2α))/((1 + q)(1 − q^(2α−1))); the divergence is its logarithm over α − 1. For s = 1 that is
        randomized response; for fine grids A → α/(2α − 1), which is continuous Laplace noise.
        It is convex in s and 0 at s = 0, so that cells of L∞ each are the worst that L1 allows.
    Assumes: s ≥ 1, order α > 1.
    Reference: geometric sums over z ≤ 0, 0 < z < s and z ≥ s; Mironov 2017, proposition 6, for the continuous limit.
    """
    loss = steps / scale
    q = _power(scale, Fraction(1))
    weight = UP.divide(
        UP.subtract(1, _power(scale, 2 * order)[0]),
        DOWN.multiply(DOWN.add(1, q[0]), DOWN.subtract(1, _power(scale, 2 * order - 1)[1])),
    )
    other = _power(scale, (2 * order - 1) * steps)[1]
    # A·e^((α−1)u) + (1 − A)·e^(−αu) = e^((α−1)u)·(o + A·(1 − o)) with o = e^(−(2α−1)u); it grows with A and with o.
    inner = UP.add(other, UP.multiply(min(weight, Decimal(1)), UP.subtract(1, other)))
    return min(loss, max(ZERO, loss + Fraction(ln(inner, UP)) / (order - 1)))


def _power(scale: Fraction, exponent: Fraction) -> tuple[Decimal, Decimal]:
    """Return bounds from below and above on e^(−exponent/scale)."""
    rate = exponent / scale
    return exp(DOWN.minus(decimal(rate, UP)), DOWN), exp(UP.minus(decimal(rate, DOWN)), UP)
