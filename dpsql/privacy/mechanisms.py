"""The two noise laws, calibrated to a share of a price.

Rule 1: the loss of a calibrated mechanism's event never exceeds the share; an irrational scale is rounded up.
Rule 2: noise is always added: a vector of sensitivity 0 gets noise as if one cell could change by one grid unit, and no
scale is below 1/64 of a unit for any ε.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import InvalidParameter
from dpsql.privacy import sampling
from dpsql.privacy.conversion import DOWN, UP, decimal, epsilon_to_rho, exp, ln, root_up
from dpsql.privacy.cost import ZERO, Accountant, Event, Mechanism, Sensitivity, Share
from dpsql.privacy.sampling import MAX_SCALE as MAX_SCALE
from dpsql.privacy.sampling import MIN_SCALE

_MODEST_BITS = 192
_TAIL_TERMS = 64


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """Integer noise with P[Z = z] ∝ exp(−|z|/scale).

    Guarantee: (L1/scale, 0)-DP and (L2²/2·scale²)-zCDP for a vector of that sensitivity.
    Assumes: integer cells on a fixed grid; noise independent from cell to cell.
    Reference: Ghosh, Roughgarden & Sundararajan 2009; Bun & Steinke 2016, proposition 1.4, cell by cell.
    """

    sensitivity: Sensitivity
    scale: Fraction

    def __post_init__(self) -> None:
        sampling.check_scale(self.scale)

    @property
    def event(self) -> Event:
        """What the ledger stores."""
        return Event(Mechanism.LAPLACE, self.sensitivity, self.scale)

    @property
    def stderr(self) -> float:
        """Standard deviation, √(2q)/(1 − q) with q = exp(−1/scale)."""
        rate = float(1 / self.scale)
        return math.sqrt(2) * math.exp(-rate / 2) / -math.expm1(-rate)

    def half_width(self, confidence: float = 0.95) -> float:
        """Return the least h with P[|Z| ≤ h] = 1 − 2qʰ⁺¹/(1 + q) ≥ confidence."""
        log_tail = math.log((1 - confidence) * (1 + math.exp(-float(1 / self.scale))) / 2)
        return float(max(0, math.ceil(-log_tail * float(self.scale) - 1)))

    def tail(self, probability: Fraction) -> int:
        """Return the least t ≥ 1 with P[Z ≥ t] = qᵗ/(1 + q) ≤ probability, from bounds rounded up."""
        q = exp(UP.minus(decimal(1 / self.scale, UP)), DOWN)
        log = UP.minus(DOWN.add(ln(decimal(probability, DOWN), DOWN), ln(DOWN.add(1, q), DOWN)))
        return max(1, math.ceil(UP.multiply(decimal(self.scale, UP), log))) if log > 0 else 1

    def sample(self, size: int) -> NDArray[np.int64]:
        """Return fresh noise for that many cells."""
        return sampling.discrete_laplace(self.scale, size)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """Integer noise with P[Z = z] ∝ exp(−z²/2·variance).

    Guarantee: (L2²/2·variance)-zCDP for a vector of that sensitivity; by conversion at `conversion_delta`, (ε, δ)-DP.
    Assumes: integer cells on a fixed grid; noise independent from cell to cell. Any variance, any ε: the classic
        σ = √(2 ln(1.25/δ))·L2/ε, which holds for ε ≤ 1 only, is not used.
    Reference: Canonne, Kamath & Steinke 2020, theorems 4 and 14.
    """

    sensitivity: Sensitivity
    variance: Fraction
    conversion_delta: Fraction = ZERO

    def __post_init__(self) -> None:
        sampling.check_scale(self.variance, power=2)

    @property
    def event(self) -> Event:
        """What the ledger stores."""
        return Event(Mechanism.GAUSSIAN, self.sensitivity, self.variance, ZERO, self.conversion_delta)

    @property
    def stderr(self) -> float:
        """Standard deviation; that of the continuous law where σ is large, a little less where it is small."""
        return _gaussian_stderr(self.variance)

    def half_width(self, confidence: float = 0.95) -> float:
        """Return the least h with P[|Z| ≤ h] ≥ confidence; for σ above 1000 by the normal law, off by 1 at most."""
        return _gaussian_half_width(self.variance, confidence)

    def tail(self, probability: Fraction) -> int:
        """Return the least t ≥ 1 for which P[Z ≥ t] ≤ probability is proved, by bisection on a bound from above."""
        least = decimal(probability, DOWN)
        low, high = 0, math.isqrt(int(self.variance)) + 1
        while self._tail_bound(high) > least:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._tail_bound(middle) > least else (low, middle)
        return high

    def _tail_bound(self, t: int) -> Decimal:
        """Return a number above P[Z ≥ t], by the law's own terms.

        The terms fall by ratios that fall themselves, so what follows the first 64 is less than a geometric series.
        """
        rate = decimal(1 / (2 * self.variance), DOWN)
        term = _decay(t * t, rate)
        ratio, factor = _decay(2 * t + 1, rate), _decay(2, rate)
        total = Decimal(0)
        for _ in range(_TAIL_TERMS):
            total = UP.add(total, term)
            term, ratio = UP.multiply(term, ratio), UP.multiply(ratio, factor)
        total = UP.add(total, UP.divide(term, DOWN.subtract(1, ratio)))
        return UP.divide(total, _normaliser(self.variance))

    def sample(self, size: int) -> NDArray[np.int64]:
        """Return fresh noise for that many cells."""
        return sampling.discrete_gaussian(self.variance, size)


AddedNoise = DiscreteLaplace | DiscreteGaussian
"""Noise that is added to a cell; the other mechanisms choose one."""


def added(mechanism: object) -> AddedNoise:
    """Return the mechanism of a cell as noise that is added; a cell that is chosen has none.

    Guarantee: that of the mechanism, which is returned unchanged.
    Assumes: the mechanism adds noise.
    Reference: that of the mechanism.
    """
    if not isinstance(mechanism, AddedNoise):
        raise TypeError("nothing is added to a cell that is chosen")
    return mechanism


def variance(noise: AddedNoise) -> Fraction:
    """Return the variance of the continuous law, in grid units squared: that of the discrete law is not above it."""
    return 2 * noise.scale**2 if isinstance(noise, DiscreteLaplace) else noise.variance


def noise_of(event: Event) -> AddedNoise | None:
    """Return the noise that an event was charged for; None where it chose something.

    Guarantee: that of the event, whose fields tell the law completely.
    Assumes: nothing; it is for intervals of what was released.
    Reference: `Event`, rule 2.
    """
    if event.mechanism is Mechanism.LAPLACE:
        return DiscreteLaplace(event.sensitivity, event.scale)
    if event.mechanism is Mechanism.GAUSSIAN:
        return DiscreteGaussian(event.sensitivity, event.scale, event.conversion_delta)
    return None


def combined(noises: Sequence[AddedNoise], variance: Fraction) -> AddedNoise:
    """Return a law for intervals of a weighted sum of noises with a variance; it is never drawn or charged.

    Such a sum has lighter tails than a Laplace noise that is as wide, so that where one of them is Laplace, a 95 %
    interval by that law covers as much or more.

    Guarantee: none: what is added up is released already.
    Assumes: the noises are independent.
    Reference: Canonne, Kamath & Steinke 2020, section 3, for sums of discrete Gaussians, which are close to one.
    """
    widest = next((each for each in noises if isinstance(each, DiscreteLaplace)), noises[0])
    if isinstance(widest, DiscreteGaussian):
        return replace(widest, variance=max(modest_up(variance), MIN_SCALE**2))
    return replace(widest, scale=max(root_up(variance / 2), MIN_SCALE))


def laplace(sensitivity: Sensitivity, share: Share) -> DiscreteLaplace:
    """Return Laplace noise that costs the share.

    Guarantee: pure, basic, advanced: b = L1/ε, so (ε, 0)-DP. zcdp, rdp: b = L2/√(2ρ), rounded up, so ρ-zCDP.
    Assumes: the sensitivity holds for the policy's adjacency.
    Reference: Ghosh, Roughgarden & Sundararajan 2009; Bun & Steinke 2016, proposition 1.4, cell by cell.
    """
    if share.accountant.shares_rho:
        scale = root_up(max(sensitivity.l2_squared, 1) / (2 * share.rho))
    else:
        scale = max(sensitivity.l1, 1) / share.epsilon
    return DiscreteLaplace(sensitivity, max(modest_up(scale), MIN_SCALE))


def gaussian(sensitivity: Sensitivity, share: Share) -> DiscreteGaussian:
    """Return Gaussian noise that costs the share.

    Guarantee: zcdp, rdp: σ² = L2²/2ρ, so ρ-zCDP. basic, advanced: the same with the largest ρ that is (ε, δ)-DP, so
        (ε, δ)-DP.
    Assumes: the sensitivity holds for the policy's adjacency; basic, advanced: the share has a δ. Never pure.
    Reference: Canonne, Kamath & Steinke 2020, theorem 14 and corollary 13.
    """
    if share.accountant is Accountant.PURE:
        raise InvalidParameter("Gaussian noise is not for a pure budget", hint="Write: SET dpsql.mechanism = 'laplace'")
    if share.accountant.shares_rho:
        rho, conversion_delta = share.rho, ZERO
    elif share.delta == 0:
        raise InvalidParameter(
            f"Gaussian noise needs a delta under the {share.accountant.value} accountant",
            hint="Laplace noise needs none. Write: SET dpsql.mechanism = 'laplace'",
        )
    else:
        rho, conversion_delta = epsilon_to_rho(share.epsilon, share.delta), share.delta
    variance = modest_up(max(sensitivity.l2_squared, 1) / (2 * rho))
    return DiscreteGaussian(sensitivity, max(variance, MIN_SCALE**2), conversion_delta)


def best(sensitivity: Sensitivity, share: Share) -> AddedNoise:
    """Return the mechanism of less standard error among those that the share allows; Laplace if they are equal.

    Guarantee: that of the mechanism returned; the choice uses the plan alone.
    Assumes: as laplace and gaussian.
    Reference: design choice: compared at equal charge, before any data is read.
    """
    candidate = laplace(sensitivity, share)
    if share.accountant is Accountant.PURE or (share.accountant.converts and share.delta == 0):
        return candidate
    other = gaussian(sensitivity, share)
    return candidate if candidate.stderr <= other.stderr else other


def modest_up(value: Fraction) -> Fraction:
    """Return the value, rounded up by less than 2⁻⁶⁰ of itself if it takes many digits to write."""
    bits = value.numerator.bit_length() - value.denominator.bit_length()
    if max(value.numerator.bit_length(), value.denominator.bit_length()) <= _MODEST_BITS:
        return value
    shift = max(0, 64 - bits)
    return Fraction(-(-(value.numerator << shift) // value.denominator), 1 << shift)


@lru_cache(maxsize=1024)
def _gaussian_stderr(exact: Fraction) -> float:
    variance = float(exact)
    if variance > 100:
        return math.sqrt(variance)
    z = np.arange(1, 400)
    weights = np.exp(-(z**2) / (2 * variance))
    return math.sqrt(float(2 * np.sum(z**2 * weights) / (1 + 2 * np.sum(weights))))


@lru_cache(maxsize=1024)
def _gaussian_half_width(variance: Fraction, confidence: float) -> float:
    sigma = math.sqrt(variance)
    if sigma > 1000:
        return float(math.ceil(sigma * NormalDist().inv_cdf((1 + confidence) / 2) - 0.5))
    weights = np.exp(-(np.arange(0, int(40 * sigma) + 40) ** 2) / (2 * sigma**2))
    weights[1:] *= 2
    return float(np.searchsorted(np.cumsum(weights), confidence * np.sum(weights)))


def _decay(factor: int, rate: Decimal) -> Decimal:
    """Return exp(−factor·rate), rounded up, for a rate that was rounded down."""
    return exp(UP.minus(DOWN.multiply(factor, rate)), UP)


@lru_cache(maxsize=256)
def _normaliser(variance: Fraction) -> Decimal:
    """Return a number below Σ exp(−z²/2σ²) over the integers.

    By Poisson summation the sum exceeds √(2πσ²), by less than 10⁻⁸ of itself for σ ≥ 1; below that, four terms do.
    """
    if variance >= 1:
        two_pi = Decimal("6.28318530717958647692528676655900576839433879875021164194988")
        return DOWN.multiply(two_pi, decimal(variance, DOWN)).sqrt(DOWN).next_minus(DOWN)
    rate = decimal(1 / (2 * variance), UP)
    total = Decimal(1)
    for z in range(1, 5):
        total = DOWN.add(total, DOWN.multiply(2, exp(DOWN.minus(UP.multiply(z * z, rate)), DOWN)))
    return total
