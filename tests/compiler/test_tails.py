"""Tails of noise against sums of its law's own terms, and against what thresholds are calibrated by."""

import math
from fractions import Fraction

import pytest

from dpsql.compiler.plan.verify import tail_of
from dpsql.errors import GuaranteeMismatch
from dpsql.privacy.cost import Mechanism, Sensitivity
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace

ONE = Sensitivity(1, 1, 1, 1)
SCALES = [Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(40)]


def weight(mechanism: Mechanism, scale: Fraction, z: int) -> float:
    return math.exp(-abs(z) / scale) if mechanism is Mechanism.LAPLACE else math.exp(-(z**2) / (2 * scale))


@pytest.mark.parametrize("mechanism", [Mechanism.LAPLACE, Mechanism.GAUSSIAN])
@pytest.mark.parametrize("scale", SCALES)
def test_a_tail_is_the_sum_of_its_terms(mechanism: Mechanism, scale: Fraction) -> None:
    whole = math.fsum(weight(mechanism, scale, z) for z in range(-2000, 2001))
    for least in (1, 2, 9):
        terms = math.fsum(weight(mechanism, scale, z) for z in range(least, 2001))
        slack = 1e-9 if scale > 1 or mechanism is Mechanism.LAPLACE else 1e-2
        assert terms / whole <= float(tail_of(mechanism, scale, least)) * (1 + 1e-12)
        assert float(tail_of(mechanism, scale, least)) == pytest.approx(terms / whole, rel=slack)


@pytest.mark.parametrize("scale", [*SCALES, Fraction(12345, 7), Fraction(10**12)])
@pytest.mark.parametrize("delta", [Fraction(1, 20), Fraction(1, 10**9), Fraction(1, 10**30)])
def test_what_thresholds_are_calibrated_to_is_within_their_delta(scale: Fraction, delta: Fraction) -> None:
    for noise in (DiscreteGaussian(ONE, scale), DiscreteLaplace(ONE, min(scale, Fraction(1000)))):
        event = noise.event
        assert tail_of(event.mechanism, event.scale, noise.tail(delta)) <= delta


def test_what_is_surely_reached_has_no_tail() -> None:
    assert tail_of(Mechanism.LAPLACE, Fraction(1), 0) == tail_of(Mechanism.GAUSSIAN, Fraction(1), -3) == 1


def test_other_laws_have_no_threshold() -> None:
    with pytest.raises(GuaranteeMismatch, match="noise of another distribution"):
        tail_of(Mechanism.EXPONENTIAL, Fraction(1), 3)
