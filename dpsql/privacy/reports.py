"""Reports: the privacy loss of a history under other analyses, for comparison only.

Rule 1: no number of this file admits or refuses a charge. The theorems assume that prices are fixed in advance. If
earlier answers influenced prices, only the limit of a privacy filter (accounting.py) is guaranteed.
Rule 2: numbers are rounded up. Where a method does not apply, the result is a Dash with the reason.

losses.py uses dp_accounting where that has the method. Its Rényi accountant only has continuous Laplace noise, which
has a smaller loss than the discrete noise of counts, so its report would be too low. Closed forms take one line each.

No analysis depends on the order of a history. The δ of selections and thresholds always adds up separately; the rest of
the whole δ, the slack δ′, is used by the analysis.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import assert_never

from dpsql.errors import InvalidParameter
from dpsql.privacy.accounting import Limit, Spent, grown_delta, up
from dpsql.privacy.conversion import DOWN, MIN_DELTA, UP, decimal, exp, ln, order_offset, rho_to_epsilon, root_up
from dpsql.privacy.cost import ZERO, Accountant, Event, Mechanism, Sensitivity, loss
from dpsql.privacy.losses import MAX_RHO, composed

_LARGE = 100
_ONE_CELL = Sensitivity(1, 1, 1, 1)
_ORDERS = tuple(1 + Fraction(Decimal(f"{10 ** (place / 40):.2e}")) for place in range(-200, 401))


@dataclass(frozen=True, slots=True)
class Dash:
    """No number, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class History:
    """What ran, in any order.

    Attributes:
        noise: How often each Laplace and Gaussian primitive ran. A selection stands here as the randomized response
            of each group that bounds it but for its δ.
        delta: Σδ of selections and thresholds; None where it is not known for several units.
    """

    noise: Mapping[Event, int]
    delta: Fraction | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """A way to add up a history.

    Attributes:
        name: For people.
        epsilon: From a history and the whole δ to ε.
    """

    name: str
    epsilon: Callable[[History, Fraction], Fraction | Dash]


def gate(limit: Limit, spent: Spent) -> Fraction | Dash:
    """Return the ε, rounded up, that a budget's own accountant counts as spent; it is not above the limit's.

    Guarantee: that of `create_limit`, with the limit's own split of δ and its own order. The limit binds whatever was
        asked and why; this number by itself holds for prices fixed beforehand.
    Assumes: the totals are of every charge against the limit.
    Reference: as `create_limit`.
    """
    total = limit.total(spent)
    if total is None:
        return Dash(f"some of the history has no price under {limit.accountant.value}")
    match limit.accountant:
        case Accountant.PURE | Accountant.BASIC:
            return total
        case Accountant.ADVANCED:
            return root_up(2 * _log_inverse(limit.delta_conversion) * total) + total / 2
        case Accountant.ZCDP:
            converted = rho_to_epsilon(total, limit.delta_conversion)
            return converted if spent.pure_epsilon is None else min(converted, spent.pure_epsilon)
        case Accountant.RDP:
            return total + order_offset(limit.order, limit.delta_conversion) if total > 0 else total
        case _:
            assert_never(limit.accountant)


def history(events: Iterable[Event] | Mapping[Event, int], units: int = 1) -> History:
    """Return the history of events, or of how often each ran, as it concerns so many privacy units together.

    Guarantee: k units move k·l0 cells, and L∞, L1 and L2 are k times as large. A group that m of them touch has a
        selection that is mε′-DP but for δ′(e^{mε′} − 1)/(e^ε′ − 1); Σm ≤ k·l0, m ≤ k, and ε, ρ, Rényi divergence and
        δ are convex in m: l0 groups that all k touch are the worst.
    Assumes: nothing of thresholds: the δ that one is recorded with says nothing of several units.
    Reference: the triangle inequality; Vadhan 2017, lemma 2.2.
    """
    counts = Counter(events)
    noise: Counter[Event] = Counter()
    for event, times in counts.items():
        primitive = _noise(event, units)
        if primitive is not None and loss(primitive).rho > 0:
            noise[primitive] += times
    if units > 1 and any(event.mechanism is Mechanism.THRESHOLD for event in counts):
        return History(noise, None)
    grown = (times * grown_delta(event.scale, event.delta, units) for event, times in counts.items())
    return History(noise, sum(grown, ZERO))


def _noise(event: Event, units: int) -> Event | None:
    """Return the primitive that stands for an event in a history; None for a threshold."""
    if event.mechanism is Mechanism.THRESHOLD:
        return None
    one = event.sensitivity
    if event.mechanism is Mechanism.SELECTION:
        groups = Sensitivity(one.l0 * units, 1, one.l0, one.l0)
        return Event(Mechanism.LAPLACE, groups, 1 / (units * event.scale))
    moved = Sensitivity(one.l0 * units, one.linf * units, one.l1 * units, one.l2_squared * units**2)
    return Event(event.mechanism, moved, event.scale, conversion_delta=event.conversion_delta)


def epsilon_of_group(
    analysis: Analysis, events: Iterable[Event] | Mapping[Event, int], delta: Fraction, units: int
) -> Fraction | Dash:
    """Return the ε of an analysis for so many privacy units together.

    Guarantee: the analysis of the history as it concerns them: kε where noise is pure, k²ρ. With a threshold, kε of
        the analysis for one unit at a δ₁ with δ₁(e^{kε} − 1)/(e^ε − 1) ≤ δ, which is cautious.
    Assumes: as `history` and the analysis.
    Reference: Vadhan 2017, lemma 2.2; Bun & Steinke 2016, proposition 1.9.
    """
    ran = Counter(events)
    try:
        together = history(ran, units)
        if together.delta is not None:
            return analysis.epsilon(together, delta)
    except InvalidParameter as beyond:  # so many units may move it beyond the range of ρ
        return Dash(beyond.message)
    one, part = history(ran), delta
    while isinstance(epsilon := analysis.epsilon(one, part), Fraction):
        if grown_delta(epsilon, part, units) <= delta:
            return units * epsilon
        part /= 2
    return epsilon if part == delta else Dash("the delta of thresholds grows too fast with so many units")


def basic(history: History, delta: Fraction) -> Fraction | Dash:
    """Return Σε.

    Guarantee: (Σε, Σδ)-DP, where Σδ ≤ δ.
    Assumes: Gaussian noise was calibrated to an (ε, δ) of its own.
    Reference: Dwork & Roth 2014, theorem 3.16.
    """
    pairs = _pairs(history, delta, least=ZERO)
    return pairs if isinstance(pairs, Dash) else pairs.total


def notes_of_eight(history: History, delta: Fraction) -> Fraction | Dash:
    """Return √(8 ln(1/δ′)·Σε²): for k equal ε the lecture notes' first form, ε√(8k ln(1/δ′)).

    Guarantee: (ε, δ′ + Σδ)-DP where Σε² ≤ 8 ln(1/δ′). In that range it is not below √(2 ln(1/δ′)·Σε²) + Σε²/2, which
        holds everywhere. Having no term in kε² it is false before long beyond it: there, a Dash.
    Assumes: as `whitehouse`.
    Reference: Dwork & Roth 2014, corollary 3.21, which states it for totals below 1.
    """
    pairs = _pairs(history, delta)
    return (
        pairs if isinstance(pairs, Dash) else _beyond(pairs) or root_up(8 * _log_inverse(pairs.slack) * pairs.squares)
    )


def notes_of_two(history: History, delta: Fraction) -> Fraction | Dash:
    """Return 2√(2 ln(1/δ′)·Σε²): for k equal ε the lecture notes' second form, 2ε√(2k ln(1/δ′)).

    Guarantee: that of `notes_of_eight`, of which it is another spelling.
    Assumes: as `whitehouse`.
    Reference: Dwork & Roth 2014, corollary 3.21.
    """
    pairs = _pairs(history, delta)
    return pairs if isinstance(pairs, Dash) else _beyond(pairs) or 2 * pairs.spread()


def notes_of_squares(history: History, delta: Fraction) -> Fraction | Dash:
    """Return √(2 ln(1/δ)·Σε²) + Σε²: for k equal ε the lecture notes' third form, ε√(2k ln(1/δ)) + kε².

    Guarantee: (ε, δ + Σδ)-DP for every ε. It does not follow from Dwork, Rothblum & Vadhan, for ε(e^ε − 1) > ε², but
        it is above √(2 ln(1/δ)·Σε²) + Σε²/2.
    Assumes: as `whitehouse`. Its δ is the slack here: the whole δ where nothing else spends any.
    Reference: Bun & Steinke 2016, propositions 1.3 and 1.4.
    """
    pairs = _pairs(history, delta)
    return pairs if isinstance(pairs, Dash) else pairs.spread() + pairs.squares


def dwork_rothblum_vadhan(history: History, delta: Fraction) -> Fraction | Dash:
    """Return √(2 ln(1/δ′)·Σε²) + Σε(e^ε − 1): for k equal ε, ε√(2k ln(1/δ′)) + kε(e^ε − 1).

    Guarantee: (ε, δ′ + Σδ)-DP for every ε.
    Assumes: the prices are fixed beforehand. Different ε: Azuma's inequality in the proof sums squares.
    Reference: Dwork, Rothblum & Vadhan 2010, theorem III.3; Dwork & Roth 2014, theorem 3.20.
    """
    pairs = _pairs(history, delta)
    if isinstance(pairs, Dash):
        return pairs
    if max(pairs.epsilons, default=ZERO) > _LARGE:
        return Dash(f"not useful with an epsilon above {_LARGE}")
    average = (up(epsilon * times * _exp_minus_1(epsilon)) for epsilon, times in pairs.epsilons.items())
    return pairs.spread() + sum(average, ZERO)


def whitehouse(history: History, delta: Fraction) -> Fraction | Dash:
    """Return √(2 ln(1/δ′)·Σε²) + Σε²/2.

    Guarantee: (ε, δ′ + Σδ)-DP for every ε.
    Assumes: the prices are fixed beforehand; the accountant `advanced` is its filter, with a δ′ fixed at creation.
    Reference: Whitehouse, Ramdas, Rogers & Wu 2023, theorem 1; Bun & Steinke 2016, propositions 1.3 and 1.4.
    """
    pairs = _pairs(history, delta)
    return pairs if isinstance(pairs, Dash) else pairs.spread() + pairs.squares / 2


def kairouz_oh_viswanath(history: History, delta: Fraction) -> Fraction | Dash:
    """Return the least ε for which any mechanisms that are ε-DP with these ε are together (ε, δ)-DP.

    Guarantee: that of `composed` for randomized response of each ε, the worst of all ε-DP mechanisms, which is
        discrete Laplace noise that moves by 1; and Σε.
    Assumes: the prices are fixed beforehand. δ′ + Σδ is a little more than the theorem's 1 − (1 − δ′)·Π(1 − δ).
    Reference: Kairouz, Oh & Viswanath 2015, theorems 2.4 and 3.3.
    """
    pairs = _pairs(history, delta)
    if isinstance(pairs, Dash):
        return pairs
    responses = {Event(Mechanism.LAPLACE, _ONE_CELL, 1 / epsilon): times for epsilon, times in pairs.epsilons.items()}
    together = pld(History(responses, ZERO), pairs.slack)
    return together if isinstance(together, Dash) else min(together, pairs.total)


def zcdp(history: History, delta: Fraction) -> Fraction | Dash:
    """Return ε(Σρ, δ′).

    Guarantee: that of `rho_to_epsilon`.
    Assumes: the prices are fixed beforehand; the accountant `zcdp` is its filter, with a δ′ fixed at creation.
    Reference: Bun & Steinke 2016, lemma 1.7 and section 8; Canonne, Kamath & Steinke 2020, proposition 12.
    """
    slack = _slack(history, delta)
    return slack if isinstance(slack, Dash) else rho_to_epsilon(_rho(history), slack)


def rdp(history: History, delta: Fraction) -> Fraction | Dash:
    """Return the least ε over orders of the Rényi divergence, infinity among them where all noise is pure.

    Guarantee: ΣR + ln(1/(αδ′))/(α−1) + ln(1−1/α) at the order α that is chosen, whichever it is; at infinity Σε.
    Assumes: the prices are fixed beforehand. The order is chosen afterwards; the accountant `rdp` fixes it at creation.
    Reference: Mironov 2017, proposition 1; Canonne, Kamath & Steinke 2020, proposition 12.
    """
    slack = _slack(history, delta)
    if isinstance(slack, Dash) or not history.noise:
        return slack if isinstance(slack, Dash) else ZERO

    def at(place: int) -> Fraction:
        divergence = sum((up(_divergence(e, _ORDERS[place]) * n) for e, n in history.noise.items()), ZERO)
        return divergence + order_offset(_ORDERS[place], slack)

    # With α it falls, then rises.
    best = at(bisect_left(range(len(_ORDERS) - 1), True, key=lambda place: at(place + 1) >= at(place)))
    pure = [(loss(event).epsilon, times) for event, times in history.noise.items()]
    total = sum((up(epsilon * times) for epsilon, times in pure if epsilon is not None), ZERO)
    return max(ZERO, best if any(epsilon is None for epsilon, _ in pure) else min(best, total))


def pld(history: History, delta: Fraction) -> Fraction | Dash:
    """Return the ε of the composed distributions of the privacy loss, as far as floats carry.

    Guarantee: that of `composed`.
    Assumes: the prices are fixed beforehand.
    Reference: as `composed`.
    """
    slack = _slack(history, delta)
    if isinstance(slack, Dash) or not history.noise:
        return slack if isinstance(slack, Dash) else ZERO
    if _rho(history) > MAX_RHO:
        return Dash("the loss exceeds what floats can represent")
    try:
        epsilon = composed(history.noise, slack)
    except ImportError:
        return Dash('pip install "dpsql[reports]"')
    return Dash("floats cannot represent this delta") if epsilon is None else epsilon


ANALYSES = (
    Analysis("basic", basic),
    Analysis("notes, ε√(8k ln(1/δ′))", notes_of_eight),
    Analysis("notes, 2ε√(2k ln(1/δ′))", notes_of_two),
    Analysis("notes, ε√(2k ln(1/δ)) + kε²", notes_of_squares),
    Analysis("Dwork-Rothblum-Vadhan", dwork_rothblum_vadhan),
    Analysis("Whitehouse et al.", whitehouse),
    Analysis("Kairouz-Oh-Viswanath", kairouz_oh_viswanath),
    Analysis("zCDP", zcdp),
    Analysis("RDP, best order", rdp),
    Analysis("PLD", pld),
)
"""All that `dpsql budget show --compare` reports."""


@dataclass(frozen=True, slots=True)
class _Pairs:
    """A history as mechanisms that are (ε, δ)-DP each.

    Attributes:
        epsilons: How many mechanisms have each ε.
        slack: What their δ leaves of the whole.
    """

    epsilons: Mapping[Fraction, int]
    slack: Fraction

    @property
    def total(self) -> Fraction:
        """Σε."""
        return sum((up(epsilon * times) for epsilon, times in self.epsilons.items()), ZERO)

    @property
    def squares(self) -> Fraction:
        """Σε²."""
        return sum((up(epsilon**2 * times) for epsilon, times in self.epsilons.items()), ZERO)

    def spread(self) -> Fraction:
        """√(2 ln(1/slack)·Σε²), rounded up."""
        return root_up(2 * _log_inverse(self.slack) * self.squares)


def _pairs(history: History, delta: Fraction, least: Fraction = MIN_DELTA) -> _Pairs | Dash:
    """Return the history as (ε, δ)-DP mechanisms if these leave that much of δ."""
    epsilons: Counter[Fraction] = Counter()
    spent = ZERO
    for event, times in history.noise.items():
        cost = loss(event)
        if cost.basic_epsilon is None:
            return Dash("this Gaussian noise has no epsilon of its own")
        epsilons[cost.basic_epsilon] += times
        spent += cost.basic_delta * times
    slack = _slack(history, delta, least, spent)
    return slack if isinstance(slack, Dash) else _Pairs(epsilons, slack)


def _slack(history: History, delta: Fraction, least: Fraction = MIN_DELTA, spent: Fraction = ZERO) -> Fraction | Dash:
    """Return the δ that the history and other spending leave, if it is enough."""
    if delta < least:
        return Dash(f"needs a delta of {float(least):g} at least")
    if history.delta is None:
        return Dash("the delta of a threshold is known for one unit only")
    slack = delta - history.delta - spent
    return slack if slack >= least else Dash("the mechanisms leave too little of this delta")


def _beyond(pairs: _Pairs) -> Dash | None:
    """Return a Dash beyond the range of the lecture notes' forms that have no term in kε²."""
    log = Fraction(DOWN.minus(ln(decimal(pairs.slack, UP), UP)))
    return None if pairs.squares <= 8 * log else Dash("not valid here: the sum of squares of epsilon is too large")


def _log_inverse(value: Fraction) -> Fraction:
    """Return ln(1/value), rounded up."""
    return Fraction(UP.minus(ln(decimal(value, DOWN), DOWN)))


def _exp_minus_1(epsilon: Fraction) -> Fraction:
    """Return e^ε − 1, rounded up."""
    return Fraction(UP.subtract(exp(decimal(epsilon, UP), UP), 1))


def _rho(history: History) -> Fraction:
    return sum((up(loss(event).rho * times) for event, times in history.noise.items()), ZERO)


def _divergence(event: Event, order: Fraction) -> Fraction:
    """Return the Rényi divergence of a noisy primitive, rounded up."""
    by_rho = order * loss(event).rho
    if event.mechanism is not Mechanism.LAPLACE:
        return by_rho
    cells = Fraction(event.sensitivity.l1, event.sensitivity.linf)
    return min(by_rho, cells * laplace_divergence(event.sensitivity.linf, event.scale, order))


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
