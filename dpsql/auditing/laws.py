"""laws: the distributions of a mechanism's outcomes for two exact values, one on each side.

Rule: no bound rests on this file. It names the event to count and the most that any event can show. If the plan is
wrong, the event is weak, and the bound that is counted still holds.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsql.privacy.exponential_mechanism import Picking, RankChoice
from dpsql.privacy.mechanisms import AddedNoise, DiscreteLaplace

Floats = NDArray[np.float64]
Masses = NDArray[np.float64]
"""2 × outcomes: the probability of each outcome on the two sides."""

MOST = 50.0
"""Larger losses are treated as infinite."""
_STEP = 1 / 40
"""Outcomes whose losses are closer than this are merged."""
_FINE = 64
"""The most grid steps per scale of the noise; finer noise is treated as continuous."""
_SCALES = 40
"""Laplace noise beyond this many scales has a probability below 10⁻¹⁷, as has Gaussian noise beyond a quarter."""
_RAREST = 1e-9
"""Events below this probability are ignored, because no audit can count them."""
_LEAST = 1e-15
"""Smaller probabilities are rounding errors."""
NOTHING: Masses = np.ones((2, 1))
"""The distribution of a constant."""


def attainable(law: Masses, least: Callable[[float, float], float]) -> float:
    """Return the largest lower bound on a claim that any event can give, with any number of trials.

    Guarantee: no event has a pair of probabilities (p, q) beyond the convex hull of those of the events "the loss is t
        or more" and "t or less". `least` grows with p, falls with q, and on a segment of the hull it is greatest at
        one of the ends. Merging outcomes loses at most a share of _STEP²/8.
    Assumes: the event has a probability above 10⁻⁹ on the more likely side.
    Reference: Neyman & Pearson 1933; Kairouz, Oh & Viswanath 2015, section 2, for the region of (p, q).

    Args:
        law: The distributions of the two sides, in the order of losses, as `merged` returns them.
        least: The least claim that allows an event to have two probabilities.
    """
    best = 0.0
    for masses in (law[:, ::-1], law[::-1]):
        likely, rare = np.cumsum(masses, axis=1).tolist()
        best = max(best, *(least(p, max(q, _LEAST)) for p, q in zip(likely, rare, strict=True) if p > _RAREST))
    return best


def log_ratio(one: NDArray[Any], other: NDArray[Any]) -> Floats:
    """Return the loss of outcomes with these probabilities; 0 where both are 0."""
    found: Floats = np.log(np.maximum(one, 1e-300)) - np.log(np.maximum(other, 1e-300))
    return np.clip(found, -MOST, MOST)


def merged(masses: Masses) -> Masses:
    """Return the outcomes in the order of their losses; outcomes of one loss are merged."""
    places = np.rint(log_ratio(*masses) / _STEP).astype(int)
    found = np.stack([np.bincount(places - places.min(), weights=side) for side in masses])
    return np.asarray(found[:, found.any(axis=0)], dtype=np.float64)


def together(one: Masses, other: Masses) -> Masses:
    """Return the distributions of two independent outcomes together; their losses add up."""
    return merged((one[:, :, None] * other[:, None, :]).reshape(2, -1))


def noisy(noise: AddedNoise, one: int, other: int, cutoff: int | None = None) -> Masses:
    """Return the distributions of a noisy cell for two exact values; cells below a cutoff are not shown.

    A fine grid is replaced by a coarser one on which the values differ by the same multiple of the noise's scale.
    """
    if one == other and cutoff is None:
        return NOTHING
    spread, moved = _spread(noise), abs(one - other)
    if cutoff is None and spread > _FINE:
        steps = max(1, round(moved * _FINE / spread))
        noise, one, other = _scaled(noise, Fraction(steps, moved)), steps * (one > other), steps * (other > one)
    reach = _reach(noise)
    values = np.arange(min(one, other) - reach, max(one, other) + reach + 1)
    found = np.stack([_mass(noise, values - one), _mass(noise, values - other)])
    return found if cutoff is None else found[:, values >= cutoff]


def tail(noise: AddedNoise, least: NDArray[np.int64]) -> Floats:
    """Return the probability that the noise is at least this large."""
    reach = _reach(noise)
    tails = np.append(np.cumsum(_mass(noise, np.arange(reach, -reach - 1, -1)))[::-1], 0)
    found: Floats = np.minimum(tails, 1)[np.clip(least + reach, 0, 2 * reach + 1)]
    return found


def log_mass(noise: AddedNoise, values: NDArray[Any]) -> Floats:
    """Return the logarithm of the probability of noise, but for a term that all values share."""
    if isinstance(noise, DiscreteLaplace):
        return np.asarray(-np.abs(values) / float(noise.scale), dtype=np.float64)
    return np.asarray(-(values**2) / float(2 * noise.variance), dtype=np.float64)


def chosen(choice: RankChoice, one: "Counted", other: "Counted") -> Masses:
    """Return the distributions of a choice by rank for two sets of rows: P ∝ exp(−loss/scale), also for no value."""
    sides = [choice.steps(*rows) for rows in (one, other)]
    firsts = sorted({first for side in sides for first in side.firsts})
    sizes = np.append(np.diff([*firsts, choice.upper + 1]), choice.size_of_nothing)
    losses = [np.array(side.losses)[np.searchsorted(side.firsts, firsts, side="right") - 1] for side in sides]
    absent = [choice.loss_of_nothing(int(counts.sum())) for _, counts in (one, other)]
    weights = sizes * np.exp(-np.column_stack([np.stack(losses), absent]) / float(choice.scale))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)


Counted = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Sorted values of a grid, and the number of rows of each."""


def picked(picking: Picking, scores: NDArray[np.int64]) -> Floats:
    """Return the probability that each candidate is selected first.

    Under permute and flip, candidate i is first with probability pᵢ·∫Π(1 − pⱼt)dt from 0 to 1 over j ≠ i, because its
    place in the permutation is uniform.

    Reference: McKenna & Sheldon 2020, section 3.
    """
    better = np.asarray(-scores if picking.places.least else scores, dtype=np.float64)
    heads = np.exp(-2 * (better.max() - better) / float(picking.scale))
    if not picking.flips:
        return np.asarray(heads / heads.sum(), dtype=np.float64)
    # Π(1 − pⱼt) as a polynomial in t, from its factors.
    others = [reduce(np.polymul, [np.array([-p, 1.0]) for p in np.delete(heads, i)]) for i in range(len(heads))]
    return np.array([p * np.poly1d(missed).integ()(1.0) for p, missed in zip(heads, others, strict=True)])


def _mass(noise: AddedNoise, values: NDArray[np.int64]) -> Floats:
    reach = _reach(noise)
    total = np.exp(log_mass(noise, np.arange(-reach, reach + 1))).sum()
    return np.asarray(np.exp(log_mass(noise, values)) / total, dtype=np.float64)


def _spread(noise: AddedNoise) -> float:
    return float(noise.scale) if isinstance(noise, DiscreteLaplace) else math.sqrt(noise.variance)


def _reach(noise: AddedNoise) -> int:
    """The largest noise that is considered."""
    return math.ceil(_spread(noise) * (_SCALES if isinstance(noise, DiscreteLaplace) else _SCALES / 4)) + 1


def _scaled(noise: AddedNoise, factor: Fraction) -> AddedNoise:
    if isinstance(noise, DiscreteLaplace):
        return replace(noise, scale=noise.scale * factor)
    return replace(noise, variance=noise.variance * factor**2)
