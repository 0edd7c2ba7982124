"""The distribution of the privacy loss of many noisy primitives, composed by Google's dp-accounting (extra `reports`).

Rule 1: each primitive is represented by a dominating distribution, and losses are discretised upwards ("connect the
dots"). The rest is floats and Fourier transforms, with an error of about 10⁻¹⁵ in probability: δ below MIN_FLOAT_DELTA
is not supported.
Rule 2: dp_accounting is imported when it is needed; ImportError means that it is not installed.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpsql.privacy.cost import ZERO, Event, Mechanism, Sensitivity, loss

MIN_FLOAT_DELTA = Fraction(1, 10**10)
MAX_RHO = 200
"""Beyond it e^ε comes near the end of the floats."""

_FINE_STEPS = 256
_FINE_VARIANCE = 2500
_SMOOTHING = 4


def composed(noise: Mapping[Event, int], delta: Fraction) -> Fraction | None:
    """Return an ε with which primitives, each so many times, are (ε, δ)-DP; None if floats find none.

    Guarantee: δ(ε) of the composed dominating laws, but for the rounding of floats; ε is rounded up to 10⁻⁶.
    Assumes: Σρ ≤ MAX_RHO; prices fixed beforehand.
    Reference: Koskela, Jälkö & Honkela 2020; Zhu, Dong & Wang 2022, theorem 10 (dominating pairs compose
        adaptively); Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022 (connect the dots).
    """
    epsilon = _composition(frozenset(noise.items())).get_epsilon_for_delta(float(delta))
    if delta < MIN_FLOAT_DELTA or not math.isfinite(epsilon):
        return None
    return Fraction(math.floor(epsilon * 10**6) + 1, 10**6)


@lru_cache(maxsize=4)
def _composition(noise: frozenset[tuple[Event, int]]) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import identity

    interval = _interval(noise)
    whole = identity(interval)
    for event, times in noise:
        distribution, cells = _dominating(event, interval)
        whole = whole.compose(distribution.self_compose(times * cells))
    return whole


def _interval(noise: frozenset[tuple[Event, int]]) -> float:
    """Return a step for the losses: a 20th of a primitive's spread, and a small part of the whole range."""
    rho = float(sum((loss(event).rho * times for event, times in noise), ZERO))
    primitives = sum(times * event.sensitivity.l0 for event, times in noise)
    return min(math.sqrt(rho / primitives) / 20, (rho + 12 * math.sqrt(rho)) / 20_000)


def _dominating(event: Event, interval: float) -> tuple[Any, int]:
    """Return the loss of one cell, and how many such cells dominate the event."""
    if event.mechanism in (Mechanism.EXPONENTIAL, Mechanism.PERMUTE_AND_FLIP):
        return _laplace(_responses(event), interval)
    return (_gaussian if event.mechanism is Mechanism.GAUSSIAN else _laplace)(event, interval)


def _responses(event: Event) -> Event:
    """Return what dominates choices by losses: in each of the groups a randomized response of its ε = 2·L∞/b.

    Guarantee: randomized response is the worst of all ε-DP mechanisms, and is a discrete Laplace noise that moves by 1.
    Assumes: nothing of bounded range, which no one law dominates.
    Reference: Kairouz, Oh & Viswanath 2015, theorem 2.4.
    """
    groups = event.sensitivity.l0
    return Event(Mechanism.LAPLACE, Sensitivity(groups, 1, groups, groups), event.scale / (2 * event.sensitivity.linf))


def _laplace(event: Event, interval: float) -> tuple[Any, int]:
    """Dominate discrete Laplace noise.

    Guarantee: l0 cells that move by L∞ each; or, where that would be more, one randomized response of ε = L1/b, the
        worst of all ε-DP mechanisms. Of a cell that moves by many steps s, δ(ε) agrees with that of continuous Laplace
        noise at ε = (s − 2t)/b and is the chord in e^ε between: at most that of a loss larger by 2 ln cosh(1/2b).
    Assumes: integer cells. Noise is log-concave, so a cell that moves less loses less.
    Reference: Kairouz, Oh & Viswanath 2015, theorem 2.4, for randomized response.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    sensitivity, rate = event.sensitivity, float(1 / event.scale)
    steps, cells = sensitivity.linf, sensitivity.l0
    if cells * steps**2 > sensitivity.l1**2:
        steps, cells, rate = 1, 1, rate * sensitivity.l1
    if steps <= _FINE_STEPS:
        law = pld.from_discrete_laplace_mechanism(
            rate, steps, value_discretization_interval=interval, use_connect_dots=True
        )
        return law, cells
    most = rate * steps + 2 * math.log(math.cosh(rate / 2))
    return pld.from_laplace_mechanism(1 / most, value_discretization_interval=interval, use_connect_dots=True), cells


def _gaussian(event: Event, interval: float) -> tuple[Any, int]:
    """Dominate discrete Gaussian noise.

    Guarantee: l0 cells that move by L∞ each; or continuous noise of variance σ² − 4 that moves by L2: rounding that at
        random to y + z with P ∝ exp(−(y + z − x)²/8) gives discrete noise of variance σ² but for a part of e^−78, by
        Poisson summation, and is post-processing. Whichever is less, and the latter on fine grids.
    Assumes: integer cells. Noise is log-concave, so a cell that moves less loses less.
    Reference: Canonne, Kamath & Steinke 2020; Peikert 2010, section 3, for rounding Gaussians to discrete ones.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    sensitivity, variance = event.sensitivity, event.scale
    by_cells = sensitivity.l0 * sensitivity.linf**2 * (variance - _SMOOTHING) <= sensitivity.l2_squared * variance
    if by_cells and variance < _FINE_VARIANCE:
        law = pld.from_discrete_gaussian_mechanism(
            math.sqrt(variance), sensitivity.linf, value_discretization_interval=interval, use_connect_dots=True
        )
        return law, sensitivity.l0
    spread = math.sqrt((variance - _SMOOTHING) / sensitivity.l2_squared)
    return pld.from_gaussian_mechanism(spread, value_discretization_interval=interval, use_connect_dots=True), 1
