"""The law of the privacy loss against closed forms and enumeration, and the losses of what was drawn."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from dpsql.auditing.draws import Drawable
from dpsql.auditing.laws import Masses, attainable
from dpsql.auditing.transcript import Pair, Transcript
from dpsql.backends import ExactCells
from dpsql.compiler.plan.pricing import Selection
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.policy import load_policy
from dpsql.privacy.cost import Sensitivity
from dpsql.privacy.exponential_mechanism import CellMechanism, Picking, Places, Rank, RankChoice
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.selection import GaussianThreshold, TruncatedGeometric, threshold_for
from tests.compiler.plans import Planner

ONE = Sensitivity(1, 1, 1, 1)
COUNTS = "SELECT age, COUNT(*) FROM patients GROUP BY age"
CITIES = "SELECT city, COUNT(*) FROM patients GROUP BY city"
TOP = "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 1"


def by_epsilon(p: float, q: float) -> float:
    return math.log(p / q) if p > q else 0.0


def by_distance(p: float, q: float) -> float:
    return p - q


def divergence(law: Masses) -> float:
    """Of Kullback and Leibler."""
    one, other = law[:, law.all(axis=0)]
    return float(np.sum(one * np.log(one / other)))


@pytest.fixture(scope="module")
def planned(clinic_policy: Path) -> Callable[..., PlannedRelease]:
    planner = Planner(load_policy(clinic_policy))

    def of(sql: str, *noises: CellMechanism, selection: Selection | None = None, cuts: int | None = None) -> Any:
        release = planner.compile(sql, mechanism="laplace").releases[0]
        primitives = tuple(replace(release.primitives[0], noise=noise) for noise in noises)
        return replace(release, primitives=primitives, selection=selection, threshold_primitive=cuts)

    return of


def pair(planned: PlannedRelease, one: dict[str, tuple[Any, ...]], other: dict[str, tuple[Any, ...]]) -> Pair:
    """One unit whose groups are all keys; of each group its units and its cells."""

    def side(groups: dict[str, tuple[Any, ...]]) -> Drawable:
        units, *cells = (np.array(each) for each in zip(*groups.values(), strict=True))
        return Drawable(planned, ExactCells((np.array([*groups], dtype=object),), units, tuple(cells)))

    return Pair((side(one), side(other)), (tuple(dict.fromkeys([*one, *other])),))


def test_laplace_noise_that_hides_one_step_is_randomized_response(planned: Callable[..., PlannedRelease]) -> None:
    """Of k cells each that moves by 1 loses ε/k, and the divergence is ε·tanh(ε/2k)."""
    for k in (1, 3):
        release = planned(COUNTS, *[DiscreteLaplace(ONE, Fraction(k))] * k)
        law = pair(release, {"7": (1, *[5] * k)}, {"7": (1, *[4] * k)}).law()
        assert attainable(law, by_epsilon) == pytest.approx(1)
        assert divergence(law) == pytest.approx(math.tanh(1 / 2 / k), abs=1e-4)


@pytest.mark.parametrize("step", [1, 10**6])
def test_gaussian_noise_loses_what_the_normal_law_does(planned: Callable[..., PlannedRelease], step: int) -> None:
    """Of a cell that moves by d the total variation is 2Φ(d/2σ) − 1, the divergence d²/2σ²."""
    release = planned(COUNTS, DiscreteGaussian(ONE, Fraction(400 * step**2)))
    law = pair(release, {"7": (1, 30 * step)}, {"7": (1, 0)}).law()
    assert attainable(law, by_distance) == pytest.approx(2 * NormalDist().cdf(0.75) - 1, abs=1e-3)
    assert divergence(law) == pytest.approx(1.5**2 / 2, abs=1e-3)


def test_fine_laplace_noise_is_as_good_as_continuous(planned: Callable[..., PlannedRelease]) -> None:
    """The divergence of cells that lose ε is ε − 1 + e^−ε."""
    release = planned(COUNTS, DiscreteLaplace(ONE, Fraction(10**9)))
    law = pair(release, {"7": (1, 2 * 10**9)}, {"7": (1, 0)}).law()
    assert attainable(law, by_epsilon) == pytest.approx(2, abs=0.01)
    assert divergence(law) == pytest.approx(1 + math.exp(-2), abs=1e-3)


def test_groups_and_releases_add_up(planned: Callable[..., PlannedRelease]) -> None:
    release = planned(COUNTS, DiscreteLaplace(ONE, Fraction(2)))
    two = pair(release, {"7": (1, 5), "8": (0, 0)}, {"7": (0, 4), "8": (1, 1)})
    assert attainable(two.law(), by_epsilon) == pytest.approx(1)
    assert attainable(Transcript((two, two, two)).law, by_epsilon) == pytest.approx(3)
    assert attainable(Transcript().law, by_epsilon) == 0


SELECTION = TruncatedGeometric(1, Fraction(1), Fraction(1, 20))


def test_a_group_of_one_unit_is_shown_with_delta(planned: Callable[..., PlannedRelease]) -> None:
    law = pair(planned(CITIES, selection=SELECTION), {"Ulm": (1,), "Bonn": (9,)}, {"Bonn": (9,)}).law()
    assert attainable(law, by_distance) == pytest.approx(1 / 20)
    other = pair(planned(CITIES, selection=SELECTION), {"Ulm": (4,)}, {"Ulm": (3,)}).law()
    four, three = (SELECTION.probabilities()[units] / 2**128 for units in (4, 3))
    assert attainable(other, by_epsilon) == pytest.approx(math.log((1 - three) / (1 - four)))


@pytest.mark.parametrize("noise", [DiscreteLaplace(ONE, Fraction(3)), DiscreteGaussian(ONE, Fraction(9))])
def test_a_threshold_shows_a_group_by_the_tail_of_its_noise(
    planned: Callable[..., PlannedRelease], noise: DiscreteLaplace | DiscreteGaussian
) -> None:
    cut = threshold_for(noise, 1, Fraction(1, 20))
    values = np.arange(-400, 401)
    weights = np.exp([-abs(z) / 3 if isinstance(noise, DiscreteLaplace) else -(z**2) / 18 for z in values.tolist()])
    tail = weights[values >= cut.cutoff - 1].sum() / weights.sum()
    laws = [pair(planned(CITIES, noise, selection=cut, cuts=0), {"Ulm": (1, 1)}, {"Ulm": (0, 0)}).law()]
    if isinstance(noise, DiscreteGaussian):
        by_units = planned(CITIES, selection=GaussianThreshold(noise, cut))
        laws.append(pair(by_units, {"Ulm": (1,)}, {"Ulm": (0,)}).law())
    for law in laws:
        assert law[0, law[1] == 0].sum() == pytest.approx(tail)


def test_the_loss_of_what_was_drawn_is_the_ratio_of_its_probabilities(planned: Callable[..., PlannedRelease]) -> None:
    """Two cells of a private group that a unit joins, one Laplace and one Gaussian."""
    release = planned(
        CITIES, DiscreteLaplace(ONE, Fraction(2)), DiscreteGaussian(ONE, Fraction(4)), selection=SELECTION
    )
    of = pair(release, {"Ulm": (3, 7, 10)}, {"Ulm": (2, 5, 10)})
    one, other = (SELECTION.probabilities()[units] / 2**128 for units in (3, 2))
    drawn = np.array([[1, 9, 12], [1, 6, 0], [math.nan] * 3]).reshape(3, 1, 1, 3)
    shown = math.log(one / other)
    expected = [shown + 1, shown, math.log((1 - one) / (1 - other))]
    assert of.losses(drawn).ravel() == pytest.approx(expected)
    assert Transcript((of, of)).losses(np.concatenate([drawn, drawn], axis=3)) == pytest.approx(2 * of.losses(drawn))


def test_a_group_that_one_side_alone_shows_loses_without_bound(planned: Callable[..., PlannedRelease]) -> None:
    of = pair(planned(CITIES, selection=SELECTION), {"Ulm": (1,)}, {"Bonn": (9,)})
    lost = of.losses(np.array([[[[1.0], [1.0]]], [[[math.nan], [1.0]]]])).ravel()
    assert lost[0] == 0  # each side alone shows one of them
    assert lost[1] < -20


def test_a_choice_by_rank_is_in_proportion_to_its_weights(planned: Callable[..., PlannedRelease]) -> None:
    choice = RankChoice(ONE, Fraction(2), Rank.quantile(Fraction(1, 2)), 0, 9)
    of = pair(planned(COUNTS, choice), {"7": (2, "2:1,6:1")}, {"7": (1, "6:1")})
    # By hand: the distance of 0 from [L − E − G, L + E − G] at each value; no value weighs 190, and loses 1 a row.
    one = np.exp(-np.array([2, 2, 0, 0, 0, 0, 0, 2, 2, 2, 2]) / 2) * [*[1] * 10, 190]
    other = np.exp(-np.array([1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1]) / 2) * [*[1] * 10, 190]
    expected = max(np.abs(np.log(one / one.sum()) - np.log(other / other.sum())))
    law = of.law()
    assert law.sum(axis=1) == pytest.approx([1, 1])
    most = max(attainable(law, by_epsilon), attainable(law[::-1], by_epsilon))
    assert most == pytest.approx(expected, abs=1e-6)
    assert not of.adds_noise
    assert Transcript((of,)).losses(np.zeros((1, 1, 1, 1))) is None


@pytest.mark.parametrize("flips", [True, False])
def test_picks_have_the_law_of_their_mechanism(planned: Callable[..., PlannedRelease], flips: bool) -> None:
    """By coins: in each order of the candidates, the first whose coin shows heads."""
    scores = [5, 4, 2]
    release = planned(TOP, Picking(ONE, Fraction(3), Places(1), flips))
    of = pair(release, {key: (1, score) for key, score in zip("ABC", scores, strict=True)}, {"A": (1, 1)})
    heads = [math.exp(-2 * (5 - score) / 3) for score in scores]
    expected = [head / sum(heads) for head in heads]
    if flips:
        expected = [0.0] * 3
        for order in permutations(range(3)):
            left = 1 / 6
            for place in order:
                expected[place] += left * heads[place]
                left *= 1 - heads[place]
    alone = of.sides[0]
    found = Transcript((Pair((alone, alone), ()),)).law
    assert found.shape == (2, 1)  # equal sides tell nothing
    moved = pair(release, {"A": (1, 5), "B": (1, 4), "C": (1, 2)}, {"A": (1, 5), "B": (1, 4), "C": (1, 10**6)})
    assert np.sort(moved.law()[0]) == pytest.approx(np.sort([expected[2], expected[0] + expected[1]]), abs=1e-6)
