"""The Rényi divergence of each event, against the exact laws of small vectors."""

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import InvalidParameter
from dpsql.privacy.accounting import randomized_response, renyi
from dpsql.privacy.cost import Adjacency, Event, Mechanism, Sensitivity, cell_sensitivity, loss

ORDERS = st.sampled_from([Fraction(11, 10), Fraction(2), Fraction(442, 100), Fraction(16), Fraction(300)])


def divergence(scale: float, shift: int, order: float) -> float:
    """The divergence of discrete Laplace noise from itself, shifted: summed over all that weighs anything."""
    reach = int(60 * scale) + 3 * abs(shift) + 60
    norm = math.tanh(1 / (2 * scale))
    logs = [-(order * abs(z) + (1 - order) * abs(z - shift)) / scale for z in range(-reach, reach + 1)]
    top = max(logs)
    total = math.fsum(math.exp(each - top) for each in logs)
    return (top + math.log(norm * total)) / (order - 1)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 6), ORDERS)
def test_no_shift_of_one_cell_diverges_further(scale: int, reach: int, order: Fraction) -> None:
    bound = renyi(Event(Mechanism.LAPLACE, Sensitivity(1, reach, reach, reach**2), Fraction(scale)), order)
    assert bound is not None
    for shift in range(-reach, reach + 1):
        assert divergence(scale, shift, float(order)) <= float(bound) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("order", [Fraction(3, 2), Fraction(8)])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_no_shift_of_several_cells_diverges_further(order: Fraction, adjacency: Adjacency) -> None:
    sensitivity = cell_sensitivity(adjacency, l0=2, lower=-1, upper=2)
    bound = renyi(Event(Mechanism.LAPLACE, sensitivity, Fraction(3)), order)
    assert bound is not None
    alone = {shift: divergence(3, shift, float(order)) for shift in range(-3, 4)}
    for shifts in product(range(-3, 4), repeat=4):
        within = (
            sum(map(bool, shifts)) <= sensitivity.l0
            and max(map(abs, shifts)) <= sensitivity.linf
            and sum(map(abs, shifts)) <= sensitivity.l1
            and sum(s * s for s in shifts) <= sensitivity.l2_squared
        )
        assert not within or sum(alone[s] for s in shifts) <= float(bound) * (1 + 1e-9)


def test_one_cell_that_moves_by_one_is_exact() -> None:
    for scale, order in ((1, 2.0), (10, 4.42), (3, 1.25)):
        bound = renyi(Event(Mechanism.LAPLACE, Sensitivity(1, 1, 1, 1), Fraction(scale)), Fraction(str(order)))
        assert bound is not None
        assert float(bound) == pytest.approx(divergence(scale, 1, order), rel=1e-9)


@settings(deadline=None)
@given(st.fractions(Fraction(1, 10**9), 10**6), ORDERS)
def test_randomized_response_is_within_what_is_known(epsilon: Fraction, order: Fraction) -> None:
    found = randomized_response(epsilon, order)
    assert 0 <= found <= epsilon
    assert found <= order * epsilon**2 / 2 * (1 + Fraction(1, 10**20))
    if epsilon < 100:
        a, e = float(order) - 0.5, float(epsilon)
        log_cosh = [x + math.log1p(math.exp(-2 * x)) for x in (a * e, e / 2)]
        assert float(found) == pytest.approx((log_cosh[0] - log_cosh[1]) / (float(order) - 1), rel=1e-5, abs=1e-12)


@settings(deadline=None)
@given(st.fractions(Fraction(1, 10**6), 50), st.fractions(Fraction(1, 10), 1), ORDERS)
def test_divergence_over_epsilon_grows_with_epsilon(epsilon: Fraction, part: Fraction, order: Fraction) -> None:
    smaller = randomized_response(part * epsilon, order)
    assert smaller <= part * randomized_response(epsilon, order) + Fraction(1, 10**50)


def test_gaussian_noise_diverges_in_proportion_to_the_order() -> None:
    event = Event(Mechanism.GAUSSIAN, Sensitivity(3, 2, 6, 12), Fraction(50))
    assert renyi(event, Fraction(5)) == 5 * loss(event).rho == Fraction(60, 100)


def test_a_vector_that_its_l2_bounds_more_closely_than_l1_and_l_infinity_costs_no_more_than_rho_says() -> None:
    event = Event(Mechanism.LAPLACE, Sensitivity(8, 4, 8, 16), Fraction(100))
    assert renyi(event, Fraction(3, 2)) == Fraction(3, 2) * loss(event).rho


def test_a_cell_that_cannot_move_costs_nothing() -> None:
    assert renyi(Event(Mechanism.LAPLACE, Sensitivity(1, 0, 0, 0), Fraction(1)), Fraction(2)) == 0


@pytest.mark.parametrize("mechanism", [Mechanism.SELECTION, Mechanism.THRESHOLD])
def test_what_has_a_delta_has_no_divergence(mechanism: Mechanism) -> None:
    scale = Fraction(mechanism is Mechanism.SELECTION)
    event = Event(mechanism, Sensitivity(1, 1, 1, 1), scale, Fraction(1, 10**9))
    assert renyi(event, Fraction(2)) is None


@pytest.mark.parametrize("order", [Fraction(0), Fraction(1), Fraction(1, 2), Fraction(-3), Fraction(10) ** 16])
def test_an_order_out_of_range_is_refused(order: Fraction) -> None:
    with pytest.raises(InvalidParameter, match="order"):
        renyi(Event(Mechanism.LAPLACE, Sensitivity(1, 1, 1, 1), Fraction(1)), order)
