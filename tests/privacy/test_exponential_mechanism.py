"""Choices by rank: the law exactly, and how far one unit moves the losses."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsql.privacy import sampling
from dpsql.privacy.accounting import renyi
from dpsql.privacy.cost import Accountant, Adjacency, Event, Mechanism, Sensitivity, Share, cell_sensitivity, loss
from dpsql.privacy.exponential_mechanism import Rank, RankChoice, rank_choice
from dpsql.privacy.losses import composed
from dpsql.privacy.reports import history, rdp, zcdp
from tests.privacy import laws

DRAWS = 40_000
LOSSES, SIZES, SCALE = np.array([4, 0, 9, 3, 3, 40]), np.array([3, 1, 30, 2, 5, 10**6]), Fraction(10, 3)
RANKS = (Rank.quantile(Fraction(1, 2)), Rank.quantile(Fraction(9, 10)), Rank.least(), Rank.greatest())


def chi_square(drawn: Counter[int], weights: dict[int, float]) -> tuple[float, float]:
    """The statistic, and what it stays below but for 1 case in 1e7."""
    total = sum(weights.values())
    expected = {key: DRAWS * weight / total for key, weight in weights.items()}
    likely = [key for key, count in expected.items() if count >= 5]
    rest = DRAWS - sum(expected[key] for key in likely)
    found = sum((drawn[key] - expected[key]) ** 2 / expected[key] for key in likely)
    if rest > 5:
        found += (DRAWS - sum(drawn[key] for key in likely) - rest) ** 2 / rest
    freedom = len(likely)
    return found, freedom + 2 * math.sqrt(17 * freedom) + 34


def law(scale: float) -> dict[int, float]:
    return {i: size * math.exp(-gap / scale) for i, (gap, size) in enumerate(zip(LOSSES, SIZES, strict=True))}


@pytest.mark.statistical
def test_choices_follow_their_weights() -> None:
    drawn = Counter(sampling.exponential(LOSSES, SIZES, SCALE) for _ in range(DRAWS))
    found, critical = chi_square(drawn, law(float(SCALE)))
    assert found < critical
    for factor in (0.9, 1.1):
        found, critical = chi_square(drawn, law(float(SCALE) * factor))
        assert found > critical


@pytest.mark.statistical
def test_values_follow_the_exponential_mechanism() -> None:
    values, counts = np.array([2, 3, 7]), np.array([4, 1, 6])
    choice = RankChoice(Sensitivity(1, 1, 1, 1), Fraction(3), Rank.quantile(Fraction(1, 2)), 0, 9)
    drawn = Counter(choice.choose(values, counts) for _ in range(DRAWS))

    def weights(scale: float) -> dict[int, float]:
        of_values = {v: math.exp(-by_definition(choice, values, counts, v) / scale) for v in range(10)}
        return of_values | {10: 19 * 10 * math.exp(-11 / scale)}  # no value, of 11 rows

    found, critical = chi_square(drawn, weights(3))
    assert found < critical
    for factor in (0.9, 1.1):
        found, critical = chi_square(drawn, weights(3 * factor))
        assert found > critical


GAPS = st.integers(0, 2**61) | st.integers(0, 2**100)
SCALES = st.fractions(Fraction(1, 64), Fraction(2**56), max_denominator=1000)


def exact_share(gap: int, scale: Fraction, halvings: int) -> Fraction:
    """The part of a bound 2^-halvings that exp(-gap/scale) is."""
    with localcontext() as context:
        context.prec = 200
        return Fraction((-Decimal(gap) * scale.denominator / scale.numerator).exp()) * (1 << halvings)


@given(GAPS, SCALES)
def test_bounds_are_above_weights_and_at_most_about_twice_as_much(gap: int, scale: Fraction) -> None:
    (halvings,) = sampling._halvings(np.array([gap], dtype=np.int64 if gap < 2**62 else object), scale)
    share = exact_share(gap, scale, int(halvings))
    assert share <= 1 and (share > Fraction(49, 100) or halvings == 128)
    for bits in (64, 128):
        lower, upper = sampling._share_of_bound(gap, int(halvings), scale, bits)
        assert lower <= share * 2**bits <= upper <= lower + 2


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**40)), min_size=1, max_size=9), SCALES)
def test_numbers_of_any_length_have_the_same_bounds(candidates: list[tuple[int, int]], scale: Fraction) -> None:
    gaps = np.array([gap for gap, _ in candidates])
    short, long = (sampling._halvings(gaps.astype(kind), scale).tolist() for kind in (np.int64, object))
    assert short == long


@pytest.mark.statistical
def test_values_of_a_grid_too_wide_for_64_bits_follow_their_weights() -> None:
    """Half a grid of 2^63 values, or more, loses 2 in 3: as wide is what no value weighs, where one row is."""
    choice = RankChoice(Sensitivity(1, 1, 1, 1), Fraction(3), Rank.quantile(Fraction(1, 2)), -(2**62), 2**62)
    steps = choice.steps(np.array([0]), np.array([1]))
    assert steps.sizes.tolist() == [2**62, 1, 2**62] and steps.losses.tolist() == [1, 0, 1]
    drawn = Counter(int(np.sign(value)) if value <= 2**62 else 2 for value in (
        choice.choose(np.array([0]), np.array([1])) for _ in range(DRAWS)
    ))  # fmt: skip
    found, critical = chi_square(drawn, {-1: 1.0, 0: 2.0**-62, 1: 1.0, 2: 38.0})
    assert found < critical


@pytest.fixture
def entropy(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], None]:
    """Let os.urandom give these numbers."""

    def give(numbers: list[int]) -> None:
        stream: Iterator[int] = iter(numbers)
        monkeypatch.setattr(os, "urandom", lambda count: next(stream).to_bytes(count, "little"))

    return give


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([0], True),
        ([2**63 - 1, 0], True),
        ([2**63 - 1, 2**64 - 1, 2**63], True),  # all digits of a half but the last that are known
        ([2**63, 2**63], False),
        ([2**64 - 1], False),
    ],
)
def test_a_number_between_the_bounds_of_a_share_gets_more_digits(
    entropy: Callable[[list[int]], None], monkeypatch: pytest.MonkeyPatch, numbers: list[int], found: bool
) -> None:
    def a_half(_gap: int, _halvings: int, _scale: Fraction, bits: int) -> tuple[int, int]:
        return 2 ** (bits - 1) - 1, 2 ** (bits - 1) + 1

    monkeypatch.setattr(sampling, "_share_of_bound", a_half)
    entropy(numbers)
    assert sampling._is_taken(1, 1, Fraction(1)) is found


def test_what_is_not_taken_is_drawn_again(entropy: Callable[[list[int]], None]) -> None:
    """Of two candidates with bounds of 1 and a half, the second is drawn, not taken, and the first is drawn."""
    drawn = [2**128 + 5, 2**64 - 1, 5, 0]
    entropy(drawn)
    assert sampling.exponential(np.array([0, 2]), np.array([1, 1]), Fraction(2)) == 0


def test_a_uniform_number_is_drawn_again_until_it_fits(entropy: Callable[[list[int]], None]) -> None:
    assert sampling.below(1) == 0
    assert Counter(sampling.below(3) for _ in range(3000)).keys() == {0, 1, 2}
    entropy([3, 7, 250])
    assert sampling.below(3) == 2


# Losses


def by_definition(choice: RankChoice, values: NDArray[np.int64], counts: NDArray[np.int64], value: int) -> int:
    """How far a value's rank is from the one asked for."""
    rows = [int(v) for v, n in zip(values, counts, strict=True) for _ in range(n)]
    below, upto, total = sum(row < value for row in rows), sum(row <= value for row in rows), len(rows)
    rank = choice.rank
    wanted = Fraction(rank.above, rank.total) * total
    if rank.is_extreme:
        wanted = Fraction(min(2 * choice.inset + 1, total), 2)
        below, upto = (total - upto, total - below) if rank.above else (below, upto)
    return int(max(Fraction(0), below - wanted, wanted - upto) * rank.total)


ROWS = st.lists(st.integers(0, 20), max_size=30)


def histogram(rows: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    values, counts = np.unique(np.array(rows, dtype=np.int64), return_counts=True)
    return values, counts


def all_losses(choice: RankChoice, rows: list[int]) -> list[int]:
    steps = choice.steps(*histogram(rows))
    found = [loss for loss, size in zip(steps.losses, steps.sizes, strict=True) for _ in range(size)]
    assert len(found) == choice.values and steps.firsts[0] == choice.lower
    return found


@settings(max_examples=300, deadline=None)
@given(ROWS, st.lists(st.integers(0, 20), max_size=3), st.lists(st.integers(0, 20), max_size=3), st.sampled_from(RANKS))
def test_one_unit_moves_no_loss_further_than_its_rank_weighs(
    others: list[int], own: list[int], instead: list[int], rank: Rank
) -> None:
    """Of three rows at most, added or replaced; and of two where two are claimed, some move further."""
    cap = 3
    choice = RankChoice(Sensitivity(1, 1, 1, 1), Fraction(2), rank, 0, 20)
    losses = all_losses(choice, others)
    assert losses == [by_definition(choice, *histogram(others), value) for value in range(21)]
    low, high = -cap * rank.above, cap * rank.below
    added = [abs(a - b) for a, b in zip(losses, all_losses(choice, others + own), strict=True)]
    assert max(added) <= cell_sensitivity(Adjacency.ADD_REMOVE, l0=1, lower=low, upper=high).linf
    pairs = zip(all_losses(choice, others + own), all_losses(choice, others + instead), strict=True)
    moved = cell_sensitivity(Adjacency.SUBSTITUTE, l0=1, lower=low, upper=high, grouped=False).linf
    assert max(abs(a - b) for a, b in pairs) <= moved


@pytest.mark.parametrize("rank", RANKS)
def test_the_claimed_sensitivity_is_reached(rank: Rank) -> None:
    choice = RankChoice(Sensitivity(1, 1, 1, 1), Fraction(1, 10), rank, 0, 20)
    moved = 0
    for own in ([0] * 3, [20] * 3):
        before, after = all_losses(choice, [10] * 40), all_losses(choice, [10] * 40 + own)
        moved = max(moved, *(abs(a - b) for a, b in zip(before, after, strict=True)))
    assert moved == 3 * max(rank.below, rank.above)


def loss_of_nothing(choice: RankChoice, rows: list[int]) -> int:
    """The loss of the last candidate that a choice hands over, which stands for no value."""
    handed: list[tuple[list[int], list[int]]] = []

    def first(losses: sampling.Whole, sizes: sampling.Whole, scale: Fraction) -> int:
        handed.append((losses.tolist(), sizes.tolist()))
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "exponential", first)
        choice.choose(*histogram(rows))
    ((losses, sizes),) = handed
    assert sizes[-1] == 19 * sum(sizes[:-1]) == 19 * choice.values
    return losses[-1]


@settings(max_examples=100, deadline=None)
@given(ROWS, st.lists(st.integers(0, 20), max_size=3), st.lists(st.integers(0, 20), max_size=3), st.sampled_from(RANKS))
def test_one_unit_moves_the_loss_of_nothing_no_further(
    others: list[int], own: list[int], instead: list[int], rank: Rank
) -> None:
    choice = RankChoice(Sensitivity(1, 1, 1, 1), Fraction(2), rank, 0, 20)
    low, high = -3 * rank.above, 3 * rank.below
    without, one, other = (loss_of_nothing(choice, rows) for rows in (others, others + own, others + instead))
    assert abs(one - without) <= cell_sensitivity(Adjacency.ADD_REMOVE, l0=1, lower=low, upper=high).linf
    assert abs(one - other) <= cell_sensitivity(Adjacency.SUBSTITUTE, l0=1, lower=low, upper=high, grouped=False).linf


@pytest.mark.parametrize("rank", RANKS)
def test_of_nobody_nothing_is_chosen_and_of_many_a_value(rank: Rank) -> None:
    """19 of 20 draws are nothing: 4000 draws stay within 160 of 3800 but for 1 case in 1e25."""
    choice = RankChoice(Sensitivity(1, 1, 1, 1), Fraction(7, 2), rank, 5, 90)
    none = np.array([], dtype=np.int64)
    drawn = Counter(choice.choose(none, none) for _ in range(4000))
    assert abs(drawn[91] - 3800) < 160 and set(drawn) <= set(range(5, 92))
    many = np.arange(10, 60), np.full(50, 20)
    assert 91 not in {choice.choose(*many) for _ in range(500)}


def test_extremes_are_inset_so_that_the_limits_are_not_chosen() -> None:
    rows = list(range(300, 700))
    choice = RankChoice(Sensitivity(1, 2, 2, 4), Fraction(10), Rank.least(), 0, 1000)
    losses = all_losses(choice, rows)
    weights = np.exp(-np.array(losses) / 10)
    assert losses.index(0) == 300 + choice.inset and 0 < choice.inset == choice.reach < 60
    assert weights[:300].sum() / weights.sum() < 0.01
    # Nobody, and fewer rows than the inset: all values are as good, or the median is wanted.
    assert set(all_losses(choice, [])) == {0}
    assert all_losses(choice, [5, 6, 7]).index(0) == 6


@pytest.mark.parametrize("rank", RANKS)
def test_ranks_within_reach_are_chosen_in_95_of_100_cases(rank: Rank) -> None:
    choice = RankChoice(Sensitivity(1, 1, 1, 1), Fraction(7, 2), rank, 0, 5000)
    losses = np.array(all_losses(choice, list(range(0, 5000, 3))))
    weights = np.exp(-losses / 3.5)
    assert weights[losses > choice.reach * rank.total].sum() / weights.sum() < 0.05


@pytest.mark.parametrize("rows", [[], [3], [3, 3, 9]])
def test_ranks_of_many_digits_are_chosen_whatever_is_there(rows: list[int]) -> None:
    for digits in (10, 18, 19, 60):
        rank = Rank.quantile(Fraction(10**digits // 3, 10**digits))
        choice = RankChoice(Sensitivity(1, 1, 1, 1), Fraction(2), rank, 0, 20)
        assert all_losses(choice, rows) == [by_definition(choice, *histogram(rows), value) for value in range(21)]
        assert 0 <= choice.choose(*histogram(rows)) <= choice.nothing


def test_ranks_and_grids_that_are_none_are_refused() -> None:
    for below, above in ((-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="weights"):
            Rank(below, above)
    assert Rank.quantile(Fraction(0)) == Rank.least() and Rank.quantile(Fraction(1)) == Rank.greatest()
    choice = RankChoice(Sensitivity(1, 1, 1, 1), Fraction(1), Rank.least(), 0, 20)
    for values in ([3, 2], [3, 3], [-1, 2], [2, 21]):
        with pytest.raises(ValueError, match="in order"):
            choice.choose(np.array(values), np.array([1, 1]))


# Prices


SHARES = (
    Share(Accountant.PURE, Fraction(1, 10), Fraction(0), Fraction(0)),
    Share(Accountant.BASIC, Fraction(1, 10), Fraction(0), Fraction(1, 10**9)),
    Share(Accountant.ZCDP, Fraction(0), Fraction(1, 200), Fraction(0)),
    Share(Accountant.RDP, Fraction(0), Fraction(1, 200), Fraction(0)),
)


@pytest.mark.parametrize("share", SHARES)
def test_a_choice_costs_its_share(share: Share) -> None:
    choice = rank_choice(Sensitivity(3, 20, 60, 1200), share, RANKS[0], 0, 100)
    cost = loss(choice.event)
    assert choice.event.mechanism is Mechanism.EXPONENTIAL and Event.from_json(choice.event.to_json()) == choice.event
    # In each of three groups 2·20/scale, and an eighth of its square.
    each = 40 / choice.scale
    assert cost.epsilon == cost.basic_epsilon == 3 * each and cost.rho == 3 * each**2 / 8
    assert cost.delta == cost.basic_delta == 0
    if share.rho:
        assert share.rho * Fraction(999, 1000) < cost.rho <= share.rho
    else:
        assert cost.epsilon == share.epsilon


def test_a_choice_loses_no_more_than_its_event_says() -> None:
    """The loss of every value between two neighbours, against ε and ρ at many orders."""
    choice = RankChoice(Sensitivity(1, 3, 3, 9), Fraction(5), RANKS[0], 0, 20)
    cost = loss(choice.event)
    for own in ([0, 0, 0], [20, 20, 20], [0, 10, 20], [9]):
        one, other = (np.exp(-np.array(all_losses(choice, rows)) / 5) for rows in ([10] * 9, [10] * 9 + own))
        nothing = (19 * 21 * math.exp(-rows / 5) for rows in (9, 9 + len(own)))
        one, other = (np.append(weights, weight) for weights, weight in zip((one, other), nothing, strict=True))
        p, q = one / one.sum(), other / other.sum()
        assert max(np.abs(np.log(p / q))) <= float(cost.epsilon or 0)
        for order in (1.5, 2, 8, 64):
            for left, right in ((p, q), (q, p)):
                divergence = math.log(np.sum(left**order * right ** (1 - order))) / (order - 1)
                assert divergence <= order * float(cost.rho)
                assert divergence <= float(renyi(choice.event, Fraction(order)) or 0)


def test_reports_know_choices() -> None:
    event = RankChoice(Sensitivity(2, 3, 6, 18), Fraction(60), RANKS[0], 0, 20).event
    delta = Fraction(1, 10**6)
    ran = history([event] * 5)
    assert ran.noise == {event: 5}
    # Two units move each loss twice as far.
    (pair,) = history([event], 2).noise
    assert pair.sensitivity == Sensitivity(4, 6, 12, 72) and pair.mechanism is Mechanism.EXPONENTIAL
    responses = laws.composed([laws.selection_loss(2 * 3 / 60)] * 10)
    found = composed(ran.noise, delta)
    assert found is not None and laws.epsilon_of(responses, 1e-6) <= found <= laws.epsilon_of(responses, 1e-6) * 1.01
    for analysis in (zcdp, rdp):
        assert 0 < float(analysis(ran, delta)) < 5 * float(loss(event).epsilon or 0) * 3  # type: ignore[arg-type]
