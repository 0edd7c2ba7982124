"""How well two sets of outcomes can be distinguished: a lower bound on a claim, with a stated confidence.

Rule 1: the event is chosen on some of the runs and counted on the others, so that choosing costs no confidence.
Rule 2: any event is enough: the bound is valid for every choice, and only its tightness depends on the choice.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_CUTS = 64
"""The most thresholds, and the most single values, that are tried per feature."""
_DOUBT = 2.0
"""Standard errors that an event's probabilities are moved by when it is chosen, because it may do less well later."""
_STEPS = 60
_TERMS = 4096
"""The most terms of a tail that are added one by one."""
_SLACK = 1e-9
"""Bounds are moved outwards by this; the floating-point error of the sums is far smaller."""

Values = NDArray[np.float64]
Least = Callable[[float, float], float]
"""The least claim that allows an event's probabilities on the two sides."""


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of some trials.

    Attributes:
        trials: The number of trials.
        features: By name, one number per trial; NaN if a trial has none.
    """

    trials: int
    features: Mapping[str, Values]

    def of(self, feature: str) -> Values:
        """The values of one feature."""
        return self.features.get(feature, np.full(self.trials, np.nan))


@dataclass(frozen=True)
class OutcomeSet:
    """A set of outcomes.

    Attributes:
        feature: The observed feature.
        relation: "=", ">=" or "<="; a trial without a value is in none but "=" NaN.
        value: The value that it is compared with.
        swapped: True if the event is likelier without the unit than with it.
    """

    feature: str
    relation: str
    value: float
    swapped: bool

    def count(self, outcomes: Outcomes) -> int:
        """Return the number of trials in which it happened."""
        return int(np.count_nonzero(_holds(outcomes.of(self.feature), self.relation, self.value)))


@dataclass(frozen=True)
class Bound:
    """The result that the runs prove.

    Attributes:
        least: Claims below this are inconsistent with the runs; 0 if they prove nothing.
        event: The counted event; None if there was none.
        trials: The number of counted trials on each side.
    """

    least: float
    event: OutcomeSet | None
    trials: int


def lower_limit(hits: int, trials: int, error: float) -> float:
    """Return a lower confidence limit of a probability, which exceeds it with a probability of at most `error`.

    Guarantee: if trials hit independently, with probabilities whose mean is p, the result exceeds p with probability
        ≤ error.
    Reference: Clopper & Pearson 1934, one-sided; Hoeffding 1956, theorem 4, for probabilities that differ.
    """
    if hits == 0:
        return 0.0
    places = np.arange(hits, min(trials, hits + _TERMS) + 1)
    steps = np.log(trials - places[:-1]) - np.log(places[1:])
    weights = _log_binomial(trials, hits) + np.concatenate([[0.0], np.cumsum(steps)])

    def tail(probability: float) -> float:
        """The terms left out fall faster than a geometric series, because the limit is below the share of hits."""
        logs = weights + places * math.log(probability) + (trials - places) * math.log1p(-probability)
        terms = np.exp(logs)
        ratio = (trials - places[-1]) / (places[-1] + 1) * probability / (1 - probability)
        return float(terms.sum() + terms[-1] * ratio / (1 - ratio))

    low, high = 0.0, hits / trials
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if middle == 1.0 or tail(middle) > error else (middle, high)
    return max(0.0, low - _SLACK)


def upper_limit(hits: int, trials: int, error: float) -> float:
    """Return an upper confidence limit of a probability; see `lower_limit`."""
    return 1.0 - lower_limit(trials - hits, trials, error)


def _log_binomial(trials: int, hits: int) -> float:
    return math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)


def bound_of(
    chosen_on: tuple[Outcomes, Outcomes], counted_on: tuple[Outcomes, Outcomes], least: Least, error: float
) -> Bound:
    """Return a lower bound on the claims that are true of the two sides.

    Guarantee: it exceeds the least true claim with probability ≤ error.
    Assumes: within each side trials are independent; those of `counted_on` are independent of `chosen_on`.
    Reference: Jagielski, Ullman & Oprea 2020, section 3: Clopper-Pearson limits of p and q.

    Args:
        chosen_on: Outcomes with the unit and without it, on which the event is chosen.
        counted_on: The same, on which it is counted.
        least: The least claim that allows an event to have two probabilities.
        error: The probability that the bound is wrong.
    """
    trials = min(side.trials for side in counted_on)
    event = _best(chosen_on, trials, least, error)
    if event is None:
        return Bound(0.0, None, trials)
    sides = counted_on[::-1] if event.swapped else counted_on
    p = lower_limit(event.count(sides[0]), sides[0].trials, error / 2)
    q = upper_limit(event.count(sides[1]), sides[1].trials, error / 2)
    return Bound(least(p, q), event, trials)


def _best(sides: tuple[Outcomes, Outcomes], trials: int, least: Least, error: float) -> OutcomeSet | None:
    """The event with the largest expected bound on the counted trials; None if no bound is above 0."""
    chosen_on = min(side.trials for side in sides)
    width = NormalDist().inv_cdf(1 - min(error, 0.5) / 2) / math.sqrt(4 * trials) + _DOUBT / math.sqrt(4 * chosen_on)
    best, event = 0.0, None
    for feature in dict.fromkeys((*sides[0].features, *sides[1].features)):
        for relation, value, hits in _candidates(sides[0].of(feature), sides[1].of(feature)):
            for swapped in (False, True):
                shares = [count / side.trials for count, side in zip(hits, sides, strict=True)]
                likely, rare = shares[::-1] if swapped else shares
                promise = least(_moved(likely, -width), _moved(rare, width))
                if promise > best:
                    best, event = promise, OutcomeSet(feature, relation, value, swapped)
    return event


def _candidates(one: Values, other: Values) -> Iterator[tuple[str, float, tuple[int, int]]]:
    """Events of one feature, each with its counts on both sides."""
    pooled = np.concatenate([one, other])
    values, counts = np.unique(pooled, return_counts=True)
    common = values[np.argsort(-counts, kind="stable")[:_CUTS]]
    sides = [np.sort(side[~np.isnan(side)]) for side in (one, other)]
    finite = np.sort(np.concatenate(sides))
    cuts = np.unique(finite[_places(len(finite))]) if len(finite) else finite
    below, up_to = ([np.searchsorted(side, cuts, how) for side in sides] for how in ("left", "right"))
    for value in common:
        hits = [int(np.count_nonzero(_holds(side, "=", value))) for side in (one, other)]
        yield "=", float(value), (hits[0], hits[1])
    for place, cut in enumerate(cuts):
        yield ">=", float(cut), (len(sides[0]) - int(below[0][place]), len(sides[1]) - int(below[1][place]))
        yield "<=", float(cut), (int(up_to[0][place]), int(up_to[1][place]))


def _places(size: int) -> NDArray[np.intp]:
    """Positions in a sorted list of `size`, denser at both ends, because the best event may be rare."""
    odds = np.linspace(-math.log(size), math.log(size), _CUTS)
    found: NDArray[np.intp] = np.minimum(size - 1, size / (1 + np.exp(-odds))).astype(np.intp)
    return found


def _holds(values: Values, relation: str, wanted: float) -> NDArray[np.bool_]:
    if relation == "=":
        return np.isnan(values) if math.isnan(wanted) else values == wanted
    return values >= wanted if relation == ">=" else values <= wanted


def _moved(share: float, width: float) -> float:
    """A share, moved by `width` on the arcsine scale, where its variance is about 1/4 per trial."""
    return math.sin(min(math.pi / 2, max(0.0, math.asin(math.sqrt(share)) + width))) ** 2
