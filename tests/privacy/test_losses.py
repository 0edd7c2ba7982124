"""Privacy losses composed by dp-accounting: never below the exact laws, and hardly above."""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import pytest

from dpsql.privacy import losses
from dpsql.privacy.cost import Adjacency, Event, Mechanism, Sensitivity, cell_sensitivity
from dpsql.privacy.losses import composed
from tests.privacy import laws

MICRO = Fraction(1, 10**6)


def laplace(steps: int, scale: int) -> Event:
    return Event(Mechanism.LAPLACE, Sensitivity(1, steps, steps, steps**2), Fraction(scale))


def gaussian(steps: int, variance: int) -> Event:
    return Event(Mechanism.GAUSSIAN, Sensitivity(1, steps, steps, steps**2), Fraction(variance))


def epsilon(noise: dict[Event, int], delta: Fraction = MICRO) -> float:
    found = composed(noise, delta)
    assert found is not None
    return float(found)


HISTORIES = [
    ({laplace(1, 10): 30}, [(laws.laplace_loss(1, 10), 30)]),
    ({laplace(3, 10): 12}, [(laws.laplace_loss(3, 10), 12)]),
    ({laplace(1, 2): 4, laplace(2, 5): 3}, [(laws.laplace_loss(1, 2), 4), (laws.laplace_loss(2, 5), 3)]),
    ({gaussian(1, 30): 5}, [(laws.gaussian_loss(1, 30), 5)]),
    ({gaussian(2, 3): 3}, [(laws.gaussian_loss(2, 3), 3)]),
    ({gaussian(1, 9): 2, laplace(1, 4): 5}, [(laws.gaussian_loss(1, 9), 2), (laws.laplace_loss(1, 4), 5)]),
]


@pytest.mark.parametrize(("noise", "parts"), HISTORIES, ids=range(len(HISTORIES)))
@pytest.mark.parametrize("delta", [MICRO, Fraction(1, 10**9), Fraction(1, 100)])
def test_it_is_that_of_the_exact_laws(
    noise: dict[Event, int], parts: list[tuple[laws.Loss, int]], delta: Fraction
) -> None:
    law = laws.composed(one for one, times in parts for _ in range(times))
    found, exact = epsilon(noise, delta), laws.epsilon_of(law, float(delta))
    assert laws.delta_of(law, found) <= float(delta)
    assert exact <= found <= exact * 1.005 + 2e-6


@pytest.mark.parametrize(("steps", "scale"), [(257, 600), (1000, 10_000)])
def test_the_law_of_fine_grids_is_above_the_discrete_one_and_hardly(steps: int, scale: int) -> None:
    from dp_accounting.pld import privacy_loss_distribution as google  # with scipy, which few tests need

    law = google.from_discrete_laplace_mechanism(
        1 / scale, steps, value_discretization_interval=1e-4, use_connect_dots=True
    )
    exact = law.self_compose(50).get_epsilon_for_delta(1e-6)
    assert exact * (1 - 1e-6) <= epsilon({laplace(steps, scale): 50}) <= exact * 1.0001


@pytest.fixture
def continuous(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let continuous laws stand for discrete ones however coarse the grid is."""
    monkeypatch.setattr(losses, "_FINE_STEPS", 0)
    monkeypatch.setattr(losses, "_FINE_VARIANCE", 0)
    losses._composition.cache_clear()
    yield
    losses._composition.cache_clear()


COARSE = [
    *((laplace(steps, scale), laws.laplace_loss(steps, scale)) for steps, scale in ((1, 1), (3, 5), (4, 2))),
    *(
        (gaussian(steps, variance), laws.gaussian_loss(steps, variance))
        for steps, variance in ((1, 5), (3, 9), (9, 30))
    ),
]


@pytest.mark.parametrize(("event", "law"), COARSE, ids=range(len(COARSE)))
def test_continuous_noise_that_stands_for_discrete_noise_is_above_it(
    event: Event, law: laws.Loss, continuous: None
) -> None:
    """Above all between two losses, where the discrete curve is a chord."""
    for low, high in pairwise(sorted(law)):
        between = math.log((math.exp(low) + math.exp(high)) / 2)
        delta = laws.delta_of(law, between)
        if 0 < between < 5 and delta > 1e-9:
            assert epsilon({event: 1}, Fraction(delta)) >= between


def test_the_gaussian_of_less_variance_is_hardly_above_the_discrete_one() -> None:
    """Above a variance of 2500 continuous noise stands for discrete noise."""
    law = laws.gaussian_loss(50, 2500)
    found, exact = epsilon({gaussian(50, 2500): 1}), laws.epsilon_of(law, 1e-6)
    assert exact <= found <= exact * 1.003
    assert epsilon({gaussian(49, 2401): 1}) == pytest.approx(found, rel=0.01)


def test_cells_are_composed_one_by_one() -> None:
    groups = Event(Mechanism.LAPLACE, cell_sensitivity(Adjacency.ADD_REMOVE, l0=4, lower=0, upper=3), Fraction(10))
    assert epsilon({groups: 5}) == epsilon({laplace(3, 10): 20})
    many = Event(Mechanism.GAUSSIAN, cell_sensitivity(Adjacency.ADD_REMOVE, l0=4, lower=0, upper=3), Fraction(100))
    assert epsilon({many: 5}) == epsilon({gaussian(3, 100): 20})


def test_few_cells_that_may_move_far_are_randomized_response() -> None:
    """L1 = L∞ with many cells: the loss is L1/b at the most, not that of each cell alone."""
    either = Event(Mechanism.LAPLACE, Sensitivity(10, 5, 5, 25), Fraction(20))
    assert epsilon({either: 9}) == epsilon({laplace(1, 4): 9})


def test_few_cells_that_may_move_far_are_one_gaussian() -> None:
    either = Event(Mechanism.GAUSSIAN, Sensitivity(10, 5, 5, 25), Fraction(100))
    assert epsilon({either: 9}) == pytest.approx(epsilon({gaussian(5, 100): 9}), rel=0.04)
    assert epsilon({either: 9}) > epsilon({gaussian(5, 100): 9})


@pytest.mark.parametrize("mechanism", [Mechanism.LAPLACE, Mechanism.GAUSSIAN])
def test_no_move_that_the_sensitivity_allows_loses_more(mechanism: Mechanism) -> None:
    """Substitute with negative values: one cell by 4, or two by 2, or anything between."""
    sensitivity = cell_sensitivity(Adjacency.SUBSTITUTE, l0=1, lower=-2, upper=2)
    scale = 6 if mechanism is Mechanism.LAPLACE else 36
    found = epsilon({Event(mechanism, sensitivity, Fraction(scale)): 2})
    one = laws.laplace_loss if mechanism is Mechanism.LAPLACE else laws.gaussian_loss
    for shifts in ((4, 0), (3, 1), (2, 2), (1, 1)):
        law = laws.composed([one(shift, scale) for shift in shifts if shift] * 2)
        assert laws.delta_of(law, found) <= 1e-6


def test_losses_of_a_large_and_many_small_ones_are_discretised_finely_enough() -> None:
    mixed = {laplace(1, 1): 1, laplace(1, 1000): 500}
    law = laws.composed([laws.selection_loss(1.0), *[laws.selection_loss(0.001)] * 500])
    assert epsilon(mixed) == pytest.approx(laws.epsilon_of(law, 1e-6), rel=2e-3)
    assert laws.delta_of(law, epsilon(mixed)) <= 1e-6
