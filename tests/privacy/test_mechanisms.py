"""Laws of noise: calibrated within their share, and closed forms against sums over the mass function."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import InvalidParameter, LimitExceeded
from dpsql.privacy.conversion import rho_to_epsilon
from dpsql.privacy.cost import Accountant, Adjacency, Event, Mechanism, Sensitivity, Share, cell_sensitivity, loss
from dpsql.privacy.mechanisms import MAX_SCALE, AddedNoise, DiscreteGaussian, DiscreteLaplace, best, gaussian, laplace

ZERO = Fraction(0)
TENTH = Fraction(1, 10)
BILLIONTH = Fraction(1, 10**9)
ONE_CELL = Sensitivity(1, 1, 1, 1)
WIDE = Sensitivity(l0=4, linf=3, l1=12, l2_squared=36)
SCALES = [Fraction(1, 3), Fraction(1), Fraction(17, 5), Fraction(50)]

SENSITIVITIES = st.builds(
    lambda adjacency, l0, lower, width: cell_sensitivity(
        adjacency, l0=l0, lower=lower, upper=lower + width, grouped=True
    ),
    st.sampled_from(Adjacency),
    st.integers(1, 50),
    st.integers(-(10**6), 10**6),
    st.integers(0, 10**6),
)
PARTS = st.fractions(Fraction(1, 10**6), 100)


def zcdp(rho: Fraction) -> Share:
    return Share(Accountant.ZCDP, ZERO, rho, ZERO)


def basic(epsilon: Fraction, delta: Fraction) -> Share:
    return Share(Accountant.BASIC, epsilon, ZERO, delta)


def pure(epsilon: Fraction) -> Share:
    return Share(Accountant.PURE, epsilon, ZERO, ZERO)


def masses(noise: AddedNoise) -> tuple[list[int], list[Decimal]]:
    """Return integers around 0 and their exact probabilities, far enough out to sum to 1."""
    reach = 150 if isinstance(noise, DiscreteLaplace) else 20
    width = int(reach * max(1, noise.stderr)) + 1
    integers = list(range(-width, width + 1))
    exponents = [
        Fraction(abs(z)) / noise.scale if isinstance(noise, DiscreteLaplace) else Fraction(z * z) / (2 * noise.variance)
        for z in integers
    ]
    weights = [(-Decimal(x.numerator) / Decimal(x.denominator)).exp() for x in exponents]
    total = sum(weights)
    return integers, [weight / total for weight in weights]


def laws() -> list[AddedNoise]:
    return [DiscreteLaplace(ONE_CELL, scale) for scale in SCALES] + [
        DiscreteGaussian(ONE_CELL, scale**2) for scale in SCALES
    ]


@pytest.mark.parametrize("noise", laws(), ids=str)
def test_standard_error_is_that_of_the_mass_function(noise: AddedNoise) -> None:
    integers, mass = masses(noise)
    variance = sum(z * z * p for z, p in zip(integers, mass, strict=True))
    assert noise.stderr == pytest.approx(math.sqrt(variance), rel=1e-9)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("noise", laws(), ids=str)
def test_half_width_is_the_least(noise: AddedNoise, confidence: float) -> None:
    integers, mass = masses(noise)
    half = noise.half_width(confidence)

    def covered(width: float) -> float:
        return float(sum(p for z, p in zip(integers, mass, strict=True) if abs(z) <= width))

    assert covered(half) >= confidence - 1e-12
    assert covered(half - 1) < confidence


def test_half_width_of_wide_noise_takes_no_walk_over_it() -> None:
    assert DiscreteGaussian(ONE_CELL, Fraction(10**12)).half_width() == pytest.approx(1.959964e6, rel=1e-6)
    assert DiscreteLaplace(ONE_CELL, Fraction(10**12)).half_width() == pytest.approx(math.log(20) * 1e12, rel=1e-9)
    assert DiscreteGaussian(ONE_CELL, Fraction(MAX_SCALE) ** 2).half_width() > MAX_SCALE
    just_below, just_above = (DiscreteGaussian(ONE_CELL, Fraction(sigma**2)) for sigma in (1000, 1001))
    assert 0 <= just_above.half_width() - just_below.half_width() <= 3


@pytest.mark.parametrize("probability", [Fraction(1, 3), Fraction(1, 100), BILLIONTH, Fraction(1, 10**20)])
@pytest.mark.parametrize("noise", laws(), ids=str)
def test_tail_is_the_least_by_the_discrete_law(noise: AddedNoise, probability: Fraction) -> None:
    integers, mass = masses(noise)
    t = noise.tail(probability)

    def beyond(threshold: int) -> Decimal:
        return sum((p for z, p in zip(integers, mass, strict=True) if z >= threshold), Decimal(0))

    assert beyond(t) <= Decimal(probability.numerator) / Decimal(probability.denominator)
    # The bound may be above the law by what the normaliser and the geometric series leave: little, far out.
    assert (
        t == 1
        or probability > Fraction(1, 100)
        or beyond(t - 1) > Decimal("0.999") * probability.numerator / probability.denominator
    )


def test_tail_of_wide_noise() -> None:
    sigma = 10**9
    exact = 5.997807015
    found = DiscreteGaussian(ONE_CELL, Fraction(sigma**2)).tail(BILLIONTH) / sigma
    assert exact < found < exact * 1.001
    wide = DiscreteLaplace(ONE_CELL, Fraction(sigma)).tail(BILLIONTH) / sigma
    assert wide == pytest.approx(math.log(1e9 / 2), rel=1e-9)


def test_the_continuous_quantile_would_have_been_too_low() -> None:
    noise = DiscreteGaussian(ONE_CELL, Fraction(1))
    integers, mass = masses(noise)
    by_quantile = math.ceil(2.3263)
    beyond = float(sum(p for z, p in zip(integers, mass, strict=True) if z >= by_quantile))
    assert noise.tail(Fraction(1, 200)) == 3
    assert beyond < 0.005 < float(sum(p for z, p in zip(integers, mass, strict=True) if z >= 2))


@settings(deadline=None)
@given(SENSITIVITIES, PARTS)
def test_noise_in_zcdp_costs_no_more_than_its_share(sensitivity: Sensitivity, rho: Fraction) -> None:
    for noise in (laplace(sensitivity, zcdp(rho)), gaussian(sensitivity, zcdp(rho)), best(sensitivity, zcdp(rho))):
        assert loss(noise.event).rho <= rho
    floor = max(sensitivity.l2_squared, 1) / (2 * rho)
    assert laplace(sensitivity, zcdp(rho)).scale ** 2 <= max(floor, Fraction(1, 64) ** 2) * (1 + Fraction(1, 2**50))
    assert gaussian(sensitivity, zcdp(rho)).variance <= max(floor, Fraction(1, 64) ** 2) * (1 + Fraction(1, 2**50))


@settings(deadline=None)
@given(SENSITIVITIES, PARTS, st.fractions(Fraction(1, 10**20), Fraction(1, 2)))
def test_noise_in_pure_and_basic_costs_no_more_than_its_share(
    sensitivity: Sensitivity, epsilon: Fraction, delta: Fraction
) -> None:
    for share in (pure(epsilon), basic(epsilon, delta)):
        cost = loss(laplace(sensitivity, share).event)
        assert cost.epsilon is not None
        assert cost.epsilon <= epsilon
    for noise in (gaussian(sensitivity, basic(epsilon, delta)), best(sensitivity, basic(epsilon, delta))):
        cost = loss(noise.event)
        assert cost.basic_epsilon is not None
        assert cost.basic_epsilon <= epsilon
        assert cost.basic_delta <= delta


def test_calibration_by_closed_form() -> None:
    assert laplace(WIDE, pure(TENTH)).scale == 120
    assert laplace(WIDE, basic(TENTH, BILLIONTH)).scale == 120
    assert laplace(WIDE, zcdp(Fraction(1, 200))).scale == 60
    assert gaussian(WIDE, zcdp(Fraction(1, 200))) == DiscreteGaussian(WIDE, Fraction(3600))
    in_basic = gaussian(WIDE, basic(TENTH, BILLIONTH))
    assert in_basic.conversion_delta == BILLIONTH
    assert rho_to_epsilon(36 / (2 * in_basic.variance), BILLIONTH) <= TENTH


def test_wild_fractions_are_rounded_up_to_modest_ones() -> None:
    epsilon = Fraction(3**200, 7**113)
    for noise, exact in (
        (laplace(ONE_CELL, pure(epsilon)), 1 / epsilon),
        (laplace(ONE_CELL, pure(1 / epsilon * 2**40)), epsilon / 2**40),
    ):
        assert noise.scale.numerator.bit_length() <= 128
        assert noise.scale.denominator.bit_length() <= 192
        assert exact < noise.scale <= max(exact * (1 + Fraction(1, 2**60)), Fraction(1, 64))
    variance = gaussian(ONE_CELL, zcdp(epsilon)).variance
    assert 1 / (2 * epsilon) < variance <= max(1 / (2 * epsilon) * (1 + Fraction(1, 2**60)), Fraction(1, 4096))


def test_no_noise_is_too_small_to_draw() -> None:
    assert laplace(ONE_CELL, pure(Fraction(10**6))).scale == Fraction(1, 64)
    assert gaussian(ONE_CELL, zcdp(Fraction(10**11))).variance == Fraction(1, 4096)
    assert laplace(ONE_CELL, pure(Fraction(10**6))).stderr < 1e-12
    assert gaussian(ONE_CELL, zcdp(Fraction(10**11))).half_width() == 0
    assert laplace(ONE_CELL, pure(Fraction(10**6))).half_width() == 0


def test_a_cell_that_cannot_move_is_noised_all_the_same() -> None:
    still = Sensitivity(1, 0, 0, 0)
    assert laplace(still, pure(TENTH)).scale == 10
    assert laplace(still, zcdp(Fraction(1, 200))).scale == 10
    assert gaussian(still, zcdp(Fraction(1, 200))).variance == 100


def test_best_has_the_less_standard_error() -> None:
    assert isinstance(best(WIDE, zcdp(TENTH)), DiscreteGaussian)
    assert isinstance(best(WIDE, pure(TENTH)), DiscreteLaplace)
    assert isinstance(best(ONE_CELL, basic(TENTH, ZERO)), DiscreteLaplace)
    assert isinstance(best(ONE_CELL, basic(TENTH, BILLIONTH)), DiscreteLaplace)
    many = Sensitivity(l0=400, linf=1, l1=400, l2_squared=400)
    assert isinstance(best(many, basic(TENTH, BILLIONTH)), DiscreteGaussian)


def test_gaussian_noise_needs_a_delta() -> None:
    for share in (pure(TENTH), basic(TENTH, ZERO)):
        with pytest.raises(InvalidParameter) as caught:
            gaussian(ONE_CELL, share)
        assert caught.value.hint


@pytest.mark.parametrize("factor", [1, -1])
def test_scales_that_cannot_be_drawn_are_refused(factor: int) -> None:
    with pytest.raises(LimitExceeded if factor > 0 else InvalidParameter):
        DiscreteLaplace(ONE_CELL, Fraction(MAX_SCALE * 2 * factor))
    with pytest.raises(LimitExceeded if factor > 0 else InvalidParameter):
        DiscreteGaussian(ONE_CELL, Fraction(MAX_SCALE**2 * 2 * factor))
    assert DiscreteLaplace(ONE_CELL, Fraction(MAX_SCALE)).stderr > MAX_SCALE
    assert DiscreteGaussian(ONE_CELL, Fraction(MAX_SCALE**2)).stderr == MAX_SCALE


def test_events_document_the_noise() -> None:
    assert DiscreteLaplace(WIDE, Fraction(5)).event == Event(Mechanism.LAPLACE, WIDE, Fraction(5))
    noise = DiscreteGaussian(WIDE, Fraction(5), BILLIONTH)
    assert noise.event == Event(Mechanism.GAUSSIAN, WIDE, Fraction(5), ZERO, BILLIONTH)


def test_losses_agree_with_opendp() -> None:
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=int))
    oracle = dp.m.make_laplace(domain, dp.l1_distance(T=int), scale=7.0)
    cost = loss(DiscreteLaplace(WIDE, Fraction(7)).event)
    assert float(cost.epsilon or 0) == pytest.approx(oracle.map(12))  # type: ignore[no-untyped-call]
    oracle = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=7.0)
    cost = loss(DiscreteGaussian(WIDE, Fraction(49)).event)
    assert float(cost.rho) == pytest.approx(oracle.map(6.0))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("noise", [DiscreteLaplace(WIDE, Fraction(20)), DiscreteGaussian(WIDE, Fraction(400))])
def test_samples_have_the_stated_spread(noise: AddedNoise) -> None:
    drawn = noise.sample(20_000)
    assert drawn.dtype == np.int64
    # Six standard errors of the sample's deviation for the heavier tail (kurtosis 6): below 1e-8.
    assert float(drawn.std()) == pytest.approx(noise.stderr, rel=6 * math.sqrt(5 / (4 * 20_000)))
    assert noise.sensitivity == WIDE
