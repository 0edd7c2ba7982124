"""tails: how often the noise of a threshold is large, computed again from its law alone.

Rule: nothing here shares code with the calibration of thresholds, and what is returned is rounded up.
"""

from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache

from dpsql.errors import GuaranteeMismatch
from dpsql.privacy.cost import Mechanism

_UP = Context(prec=60, rounding=ROUND_CEILING, Emin=MIN_EMIN, Emax=MAX_EMAX)
_DOWN = Context(prec=60, rounding=ROUND_FLOOR, Emin=MIN_EMIN, Emax=MAX_EMAX)
_ROOM = Decimal(1) + Decimal(10) ** -50
"""Far more than what all roundings of 60 digits amount to, exp and square root are rounded to the nearest."""
_TERMS = 256


@lru_cache(maxsize=1024)
def tail_of(mechanism: Mechanism, scale: Fraction, least: int) -> Fraction:
    """Return a number that P[Z ≥ least] of integer noise does not exceed; 1 where `least` is not positive.

    Guarantee: Laplace: qᵗ/(1 + q), q = e^(−1/b). Gaussian: Σ e^(−z²/2σ²) over z ≥ t by the largest of sum and √(2πσ²);
        the first terms are added up, and the rest is less than a geometric series, for their ratios fall.
    Reference: the discrete laws of Canonne, Kamath & Steinke 2020; Poisson summation for the Gaussian normaliser.

    Raises:
        GuaranteeMismatch: The noise is of another law.
    """
    if least <= 0:
        return Fraction(1)
    if mechanism is Mechanism.LAPLACE:
        q = _power(1, 1 / scale)
        return Fraction(_UP.multiply(_UP.divide(_power(least, 1 / scale), _DOWN.add(1, _less(q))), _ROOM))
    if mechanism is Mechanism.GAUSSIAN:
        return min(Fraction(1), _gaussian(scale, least))
    raise GuaranteeMismatch("groups are cut off by noise of a law that has no threshold")


def _gaussian(variance: Fraction, least: int) -> Fraction:
    rate = 1 / (2 * variance)
    term, ratio, falls = _power(least * least, rate), _power(2 * least + 1, rate), _power(2, rate)
    total = Decimal(0)
    for _ in range(_TERMS):
        total = _UP.add(total, term)
        term, ratio = _UP.multiply(term, ratio), _UP.multiply(ratio, falls)
    total = _UP.add(total, _UP.divide(term, _DOWN.subtract(1, ratio)))
    circle = Decimal("6.2831853071795864769252867665590057683943387987502116419498")
    root = _DOWN.multiply(circle, _DOWN.divide(variance.numerator, variance.denominator)).sqrt(_DOWN)
    middle = _DOWN.add(1, _DOWN.multiply(2, _less(_power(1, rate))))  # of z from −1 to 1
    return Fraction(_UP.multiply(_UP.divide(total, max(_less(root), middle)), _ROOM))


def _power(factor: int, rate: Fraction) -> Decimal:
    """e^(−factor·rate), not below it."""
    exponent = factor * rate
    return _UP.multiply(_UP.exp(-_DOWN.divide(exponent.numerator, exponent.denominator)), _ROOM)


def _less(value: Decimal) -> Decimal:
    """What is surely below a value that was rounded."""
    return _DOWN.divide(value, _UP.multiply(_ROOM, _ROOM))
