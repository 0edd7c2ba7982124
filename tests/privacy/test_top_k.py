"""Picks: the two laws exactly, how far one unit moves them, and what they cost."""

import math
from collections import Counter
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsql.privacy import sampling
from dpsql.privacy.accounting import renyi
from dpsql.privacy.cost import Accountant, Adjacency, Event, Mechanism, Sensitivity, Share, cell_sensitivity, loss
from dpsql.privacy.exponential_mechanism import Picking, Places, picking, top_k_sensitivity, worth_top_k
from dpsql.privacy.losses import composed
from dpsql.privacy.mechanisms import best
from dpsql.privacy.reports import history

DRAWS = 6_000
SCORES = (4, 3, 9, 4, 5)
"""With these the two laws, and those of other scales, are so far apart that one is taken for another once in 1e9."""
ONE = Sensitivity(1, 1, 1, 1)


def array(scores: tuple[int, ...] | list[int]) -> NDArray[np.int64]:
    return np.array(scores, dtype=np.int64)


def of(count: int, scale: Fraction, *, least: bool = False, flips: bool = False) -> Picking:
    return Picking(ONE, scale, Places(count, least), flips)


# The laws


def weights_law(losses: list[int], scale: float) -> list[float]:
    """The exponential mechanism, by its definition."""
    weights = [math.exp(-each / scale) for each in losses]
    return [weight / sum(weights) for weight in weights]


def coins_law(losses: list[int], scale: float) -> list[float]:
    """Permute and flip, by its definition: over all orders, the first candidate whose coin shows heads."""
    found = [0.0] * len(losses)
    for order in permutations(range(len(losses))):
        left = 1.0 / math.factorial(len(losses))
        for candidate in order:
            heads = math.exp(-losses[candidate] / scale)
            found[candidate] += left * heads
            left *= 1 - heads
    return found


def statistic(drawn: Counter[int], law: list[float]) -> tuple[float, float]:
    """Chi-square, and what it stays below but for 1 case in 1e7."""
    found = sum((drawn[i] - DRAWS * p) ** 2 / (DRAWS * p) for i, p in enumerate(law))
    freedom = len(law) - 1
    return found, freedom + 2 * math.sqrt(17 * freedom) + 34


@pytest.mark.parametrize("flips", [False, True])
def test_one_pick_follows_its_law(*, flips: bool) -> None:
    """Accepted at its scale, and refused at another."""
    made, law = of(1, Fraction(16, 3), flips=flips), coins_law if flips else weights_law
    drawn = Counter(int(np.argmax(made.pick(array(SCORES)))) for _ in range(DRAWS))
    losses = [2 * (9 - score) for score in SCORES]
    found, critical = statistic(drawn, law(losses, 16 / 3))
    assert found < critical
    for factor in (0.7, 1.4):
        found, critical = statistic(drawn, law(losses, 16 / 3 * factor))
        assert found > critical
    other = weights_law if flips else coins_law
    found, critical = statistic(drawn, other(losses, 16 / 3))
    assert found > critical


@pytest.mark.parametrize("flips", [False, True])
def test_the_second_pick_is_made_of_those_that_are_left(*, flips: bool) -> None:
    made, law = of(2, Fraction(4), least=True, flips=flips), coins_law if flips else weights_law
    scores = [2, 0, 3]
    drawn: Counter[int] = Counter()
    for _ in range(DRAWS):
        places = made.pick(array(scores)).tolist()
        drawn[3 * places.index(1) + places.index(2)] += 1
    expected = [0.0] * 9
    for first, p in enumerate(law([4, 0, 6], 4)):
        left = [i for i in range(3) if i != first]
        best_left = min(scores[i] for i in left)
        for second, q in zip(left, law([2 * (scores[i] - best_left) for i in left], 4), strict=True):
            expected[3 * first + second] = p * q
    pairs = [i for i, p in enumerate(expected) if p]
    renamed = Counter({place: drawn[i] for place, i in enumerate(pairs)})
    assert sum(renamed.values()) == DRAWS
    found, critical = statistic(renamed, [expected[i] for i in pairs])
    assert found < critical


@pytest.mark.parametrize("flips", [False, True])
def test_places_are_given_once_and_in_order(*, flips: bool) -> None:
    """With hardly any noise the order is that of the scores; with fewer candidates than places all have one."""
    made = of(3, Fraction(1, 64), flips=flips)
    assert made.pick(array([5, 900, -3, 40])).tolist() == [3, 1, 0, 2]
    assert of(3, Fraction(1, 64), least=True, flips=flips).pick(array([5, 900, -3, 40])).tolist() == [2, 0, 1, 3]
    assert of(9, Fraction(1, 64), flips=flips).pick(array([5, 900])).tolist() == [2, 1]
    assert of(9, Fraction(1, 64), flips=flips).pick(array([])).tolist() == []
    assert sorted(of(4, Fraction(50), flips=flips).pick(array([5, 5, 5, 5])).tolist()) == [1, 2, 3, 4]
    # Whatever an engine adds up, distances fit.
    assert of(1, Fraction(2), flips=flips).pick(array([2**62, -(2**62)])).tolist() == [1, 0]


def test_somebody_is_picked() -> None:
    with pytest.raises(ValueError, match="somebody"):
        Places(0)


# Sensitivity


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-10, 10), min_size=1, max_size=4),
    st.lists(st.integers(-2, 3), min_size=4, max_size=4),
    st.lists(st.integers(-2, 3), min_size=4, max_size=4),
    st.sampled_from([(-2, 3), (0, 3)]),
    st.sampled_from([Fraction(7), Fraction(20)]),
)
def test_one_unit_changes_no_probability_more_than_its_event_says(
    scores: list[int], own: list[int], instead: list[int], limits: tuple[int, int], scale: Fraction
) -> None:
    """Of one list: ε, and ρ at several orders, for both laws and both relations of neighbours."""
    lower, upper = limits
    count = len(scores)
    own, instead = ([min(max(each, lower), upper) for each in unit[:count]] for unit in (own, instead))
    before = [score + each for score, each in zip(scores, own, strict=True)]
    for adjacency, after in (
        (Adjacency.ADD_REMOVE, scores),
        (Adjacency.SUBSTITUTE, [score + each for score, each in zip(scores, instead, strict=True)]),
    ):
        claimed = top_k_sensitivity(adjacency, Places(1), lists=1, lower=lower, upper=upper, grouped=False)
        for law, flips in ((weights_law, False), (coins_law, True)):
            cost = loss(Picking(claimed, scale, Places(1), flips).event)
            p, q = (np.array(law([2 * (max(s) - each) for each in s], float(scale))) for s in (before, after))
            assert max(np.abs(np.log(p / q))) <= float(cost.epsilon or 0) + 1e-9
            for order in (1.5, 4, 32):
                for left, right in ((p, q), (q, p)):
                    divergence = math.log(np.sum(left**order * right ** (1 - order))) / (order - 1)
                    assert divergence <= order * float(cost.rho) + 1e-9


@pytest.mark.parametrize("flips", [False, True])
def test_the_claimed_loss_is_nearly_reached(*, flips: bool) -> None:
    """A unit that is one row of the candidate that everybody else has."""
    claimed = top_k_sensitivity(Adjacency.ADD_REMOVE, Places(1), lists=1, lower=0, upper=1, grouped=False)
    law = coins_law if flips else weights_law
    cost = loss(Picking(claimed, Fraction(4), Places(1), flips).event)
    before, after = (law([2 * (50 - 0), 0], 4), law([2 * (51 - 0), 0], 4))
    assert math.log(before[0] / after[0]) == pytest.approx(float(cost.epsilon or 0), abs=1e-6)


def test_sensitivities_of_picks() -> None:
    def found(adjacency: Adjacency, lists: int, lower: int, upper: int, *, grouped: bool) -> tuple[int, ...]:
        made = top_k_sensitivity(adjacency, Places(3), lists=lists, lower=lower, upper=upper, grouped=grouped)
        return made.l0, made.linf, made.l1, made.l2_squared

    assert found(Adjacency.ADD_REMOVE, 1, 0, 5, grouped=False) == (3, 5, 15, 75)
    assert found(Adjacency.ADD_REMOVE, 1, -2, 5, grouped=False) == (3, 7, 21, 147)
    assert found(Adjacency.ADD_REMOVE, 4, 0, 5, grouped=True) == (12, 5, 60, 300)
    assert found(Adjacency.SUBSTITUTE, 1, 0, 5, grouped=False) == (3, 10, 30, 300)
    assert found(Adjacency.SUBSTITUTE, 4, 0, 5, grouped=True) == (24, 10, 120, 1200)


# Prices


SHARES = (
    Share(Accountant.PURE, Fraction(1, 10), Fraction(0), Fraction(0)),
    Share(Accountant.BASIC, Fraction(1, 10), Fraction(0), Fraction(1, 10**9)),
    Share(Accountant.ADVANCED, Fraction(1, 10), Fraction(0), Fraction(0)),
    Share(Accountant.ZCDP, Fraction(0), Fraction(1, 200), Fraction(0)),
    Share(Accountant.RDP, Fraction(0), Fraction(1, 200), Fraction(0)),
)


@pytest.mark.parametrize("share", SHARES)
def test_picks_cost_their_share(share: Share) -> None:
    sensitivity = top_k_sensitivity(Adjacency.ADD_REMOVE, Places(3), lists=1, lower=0, upper=5, grouped=False)
    made = picking(sensitivity, share, Places(3))
    cost = loss(made.event)
    assert made.flips == (share.rho == 0)
    assert made.event.mechanism is (Mechanism.PERMUTE_AND_FLIP if made.flips else Mechanism.EXPONENTIAL)
    assert Event.from_json(made.event.to_json()) == made.event
    # Three picks of 2·5/scale each; an eighth of its square, or half of it.
    each = 10 / made.scale
    assert cost.epsilon == cost.basic_epsilon == 3 * each
    assert cost.rho == 3 * each**2 / (2 if made.flips else 8)
    assert cost.delta == cost.basic_delta == 0
    if share.rho:
        assert share.rho * Fraction(999, 1000) < cost.rho <= share.rho
    else:
        assert cost.epsilon == share.epsilon


def test_reports_know_picks_by_coins() -> None:
    event = Picking(Sensitivity(3, 2, 6, 12), Fraction(60), Places(3), True).event
    (pair,) = history([event], 2).noise
    assert pair.sensitivity == Sensitivity(6, 4, 12, 48) and pair.mechanism is Mechanism.PERMUTE_AND_FLIP
    found = composed(history([event] * 5).noise, Fraction(1, 10**6))
    # Fifteen randomized responses of 4/60 each.
    assert found is not None and 0.5 < found <= 1
    assert renyi(event, Fraction(8)) == 8 * loss(event).rho


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("share", [SHARES[0], SHARES[3]])
@pytest.mark.parametrize("groups", [1, 3, 10])
def test_picks_are_taken_where_they_are_more_exact(adjacency: Adjacency, share: Share, groups: int) -> None:
    histogram = best(cell_sensitivity(adjacency, l0=groups, lower=0, upper=50), share).stderr

    def spread(count: int) -> float:
        places = Places(count)
        moved = top_k_sensitivity(adjacency, places, lists=1, lower=0, upper=50, grouped=False)
        return math.pi / math.sqrt(6) * float(picking(moved, share, places).scale) / 2

    counts = [count for count in range(1, 40) if worth_top_k(count, groups, share.accountant, adjacency)]
    assert counts == list(range(1, counts[-1] + 1))
    assert all(spread(count) < histogram for count in counts)
    assert spread(math.ceil(1.3 * counts[-1]) + 1) > histogram


@pytest.mark.parametrize("flips", [False, True])
def test_of_two_scores_that_are_apart_the_better_one_comes_first_in_95_of_100_cases(*, flips: bool) -> None:
    made, law = of(2, Fraction(9), flips=flips), coins_law if flips else weights_law
    assert made.apart == math.ceil(4.5 * math.log(19)) == 14
    for others in ([], [0, 3], [13, 14, 20]):
        chances = law([2 * (20 - score) for score in (20, 20 - made.apart, *others)], 9)
        assert chances[1] <= 0.05 * (chances[0] + chances[1])
    less = law([0, 2 * (made.apart - 2)], 9)
    assert flips or less[1] > 0.05


def test_a_coin_that_is_sure_is_always_heads() -> None:
    assert {sampling.permute_and_flip(array([0, 2**62]), Fraction(1)) for _ in range(50)} == {0}
