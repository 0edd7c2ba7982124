"""How much two sets of outcomes tell apart: a lower bound on ε that holds with a stated confidence.

Rule 1: the event is chosen on some of the runs and counted on the others, so that choosing costs no confidence.
Rule 2: any event will do: the bound is valid whatever is chosen, and how tight it is depends on the choice alone.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

_THRESHOLDS = 64
"""Cuts that are tried of one feature."""
_VALUES = 64
"""Single values that are tried of one feature."""
_STEPS = 60
_SLACK = 1e-9
"""Tails are summed in floating point, whose error is far below this; bounds are moved outwards by it."""
_CAUTION = 4.0
"""Standard errors by which an event must be better to be chosen."""

Feature = int | float | Fraction | str | None


@dataclass(frozen=True)
class Outcomes:
    """What was seen in some trials.

    Attributes:
        trials: How many there were.
        features: By name, one value a trial; None where a trial has no value of it.
    """

    trials: int
    features: Mapping[str, Sequence[Feature]]

    def of(self, feature: str) -> Sequence[Feature]:
        """The values of one feature."""
        return self.features.get(feature) or (None,) * self.trials


@dataclass(frozen=True)
class Event:
    """A set of outcomes.

    Attributes:
        feature: What is looked at.
        relation: "=", ">=" or "<=".
        value: What it is compared with.
        swapped: True where the event is likelier without the unit than with it.
    """

    feature: str
    relation: str
    value: Feature
    swapped: bool

    def count(self, outcomes: Outcomes) -> int:
        """In how many trials it happened."""
        holds = self._test()
        return sum(1 for value in outcomes.of(self.feature) if holds(value))

    def _test(self) -> Callable[[Feature], bool]:
        wanted = self.value
        if self.relation == "=" or wanted is None or isinstance(wanted, str):
            return lambda value: value == wanted and type(value) is type(wanted)
        if self.relation == ">=":
            return lambda value: value is not None and not isinstance(value, str) and value >= wanted
        return lambda value: value is not None and not isinstance(value, str) and value <= wanted


@dataclass(frozen=True)
class Bound:
    """What the runs prove.

    Attributes:
        epsilon: A mechanism with less is not consistent with the runs; 0 where they tell nothing.
        event: What was counted; None where there was nothing to count.
        trials: On each side, those that were counted.
    """

    epsilon: float
    event: Event | None
    trials: int


def lower_limit(hits: int, trials: int, error: float) -> float:
    """Return a probability that the true one is below with a probability of `error` at most.

    Guarantee: if each trial hits independently with probability p, the result exceeds p with probability ≤ error.
    Reference: Clopper & Pearson 1934, one-sided.
    """
    if hits == 0:
        return 0.0
    places = np.arange(hits, trials + 1)
    weights = np.array([_log_binomial(trials, int(k)) for k in places])

    def tail(probability: float) -> float:
        logs = weights + places * math.log(probability) + (trials - places) * math.log1p(-probability)
        return math.fsum(np.exp(logs))

    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if middle == 1.0 or tail(middle) > error else (middle, high)
    return max(0.0, low - _SLACK)


def upper_limit(hits: int, trials: int, error: float) -> float:
    """Return a probability that the true one is above with a probability of `error` at most; see `lower_limit`."""
    return 1.0 - lower_limit(trials - hits, trials, error)


def _log_binomial(trials: int, hits: int) -> float:
    return math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)


def epsilon_bound(
    chosen_on: tuple[Outcomes, Outcomes], counted_on: tuple[Outcomes, Outcomes], delta: float, error: float
) -> Bound:
    """Return a lower bound on the ε with which the two sides are (ε, δ)-indistinguishable.

    Guarantee: it exceeds the true ε with probability ≤ error.
    Assumes: within each side trials are independent and alike; those of `counted_on` are independent of `chosen_on`.
    Reference: Jagielski, Ullman & Oprea 2020, section 3: ln((p − δ)/q) with Clopper-Pearson limits of p and q.

    Args:
        chosen_on: Outcomes with the unit and without it, on which the event is chosen.
        counted_on: The same, on which it is counted.
        delta: The δ that is claimed.
        error: The probability that the bound is wrong.
    """
    event = _best(chosen_on, delta)
    trials = min(side.trials for side in counted_on)
    if event is None:
        return Bound(0.0, None, trials)
    sides = counted_on[::-1] if event.swapped else counted_on
    p = lower_limit(event.count(sides[0]), sides[0].trials, error / 2)
    q = upper_limit(event.count(sides[1]), sides[1].trials, error / 2)
    return Bound(max(0.0, math.log((p - delta) / q)) if p > delta else 0.0, event, trials)


def _best(sides: tuple[Outcomes, Outcomes], delta: float) -> Event | None:
    """The event that promises most, if any promises something."""
    best, event = -math.inf, None
    for feature in {**sides[0].features, **sides[1].features}:
        for swapped in (False, True):
            likely, rare = (side.of(feature) for side in (sides[::-1] if swapped else sides))
            for relation, value, hits, others in _candidates(likely, rare):
                promise = _promise(hits, len(likely), others, len(rare), delta)
                if promise > best:
                    best, event = promise, Event(feature, relation, value, swapped)
    return event


def _candidates(likely: Sequence[Feature], rare: Sequence[Feature]) -> list[tuple[str, Feature, int, int]]:
    """Events of one feature, each with how often it happened on both sides."""
    ones, others = Counter(likely), Counter(rare)
    values = [value for value, _ in ones.most_common(_VALUES)]
    found: list[tuple[str, Feature, int, int]] = [("=", value, ones[value], others[value]) for value in values]
    numbers, rest = _sorted(likely), _sorted(rare)
    pooled = sorted({*numbers, *rest})
    for cut in pooled[:: max(1, len(pooled) // _THRESHOLDS)]:
        above, below = len(rest) - bisect_left(rest, cut), bisect_right(rest, cut)
        found.append((">=", cut, len(numbers) - bisect_left(numbers, cut), above))
        found.append(("<=", cut, bisect_right(numbers, cut), below))
    return found


def _sorted(values: Sequence[Feature]) -> list[int | float | Fraction]:
    return sorted(value for value in values if value is not None and not isinstance(value, str))


def _promise(hits: int, trials: int, others: int, rest: int, delta: float) -> float:
    """About the bound that as many further trials would give; arcs of roots have nearly one variance for all p."""
    low = math.sin(max(0.0, math.asin(math.sqrt(hits / trials)) - _CAUTION / math.sqrt(4 * trials))) ** 2
    arc = math.asin(math.sqrt(min(1.0, (others + 1) / rest))) + _CAUTION / math.sqrt(4 * rest)
    high = math.sin(min(math.pi / 2, arc)) ** 2
    return math.log((low - delta) / high) if low > delta else -math.inf
