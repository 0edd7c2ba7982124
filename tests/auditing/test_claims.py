"""What budgets promise of charges, and what an event says of it: never more than is true of known mechanisms."""

import math
from fractions import Fraction
from statistics import NormalDist

import pytest

from dpsql.auditing.claims import Claim, claims
from dpsql.privacy.accounting import Spent, create_limit
from dpsql.privacy.cost import Accountant, Event, Mechanism, Sensitivity

ONE = Sensitivity(1, 1, 1, 1)
LAPLACE = Spent.zero().add([Event(Mechanism.LAPLACE, ONE, Fraction(1))])
GAUSSIAN = Spent.zero().add([Event(Mechanism.GAUSSIAN, ONE, Fraction(1))])
SHARED = (Accountant.ADVANCED, Accountant.ZCDP)


def promised(spent: Spent, accountant: Accountant) -> list[Claim]:
    delta = Fraction(0) if accountant is Accountant.PURE else Fraction(1, 10)
    share = Fraction(1, 2) if accountant in SHARED else Fraction(0)
    return [*claims(spent, create_limit(accountant, Fraction(100), delta, share))]


def test_charges_are_read_as_their_budget_reads_them() -> None:
    assert promised(LAPLACE, Accountant.PURE) == promised(LAPLACE, Accountant.BASIC) == [Claim(1.0, 0.0)]
    by_rho, pure = promised(LAPLACE, Accountant.ZCDP)
    assert by_rho.epsilon == pytest.approx(1)
    assert (by_rho.delta, pure) == (0, Claim(1.0, 0.0))
    assert by_rho.orders[0] == 1
    (only,) = promised(GAUSSIAN, Accountant.ZCDP)
    assert only.epsilon == pytest.approx(1)
    (at_one_order,) = promised(GAUSSIAN, Accountant.RDP)
    assert at_one_order.epsilon == pytest.approx(1)
    assert len(at_one_order.orders) == 1
    advanced, by_divergence = promised(LAPLACE, Accountant.ADVANCED)
    assert advanced.epsilon == pytest.approx(math.sqrt(2 * math.log(20)) + 1 / 2)
    assert advanced.delta == 0.05
    assert by_divergence.epsilon == pytest.approx(1)
    assert by_divergence.delta == 0


def test_what_has_no_price_in_a_budget_has_no_claim() -> None:
    with pytest.raises(TypeError):
        promised(GAUSSIAN, Accountant.PURE)


@pytest.mark.parametrize("delta", [0.0, 0.05])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_pure_mechanisms_reach_their_claim(epsilon: float, delta: float) -> None:
    q = 0.1 / math.exp(epsilon)
    assert Claim(epsilon, delta).least(0.1 + delta, q) == pytest.approx(epsilon)
    assert Claim(epsilon, delta).least(delta, q) == 0
    assert Claim(epsilon, delta).least(q, 0.1) == 0


@pytest.mark.parametrize("orders", [(1.0,), (1.5,), (6.0,), (1.0, 2.0, 4.0)])
@pytest.mark.parametrize("shift", [0.3, 1.0, 2.5])
def test_no_event_of_a_gaussian_shows_more_than_its_rho(orders: tuple[float, ...], shift: float) -> None:
    """Of noise with σ = 1 that hides a shift, ρ is half the square of the shift; some event shows three quarters."""
    claim, law = Claim(shift, 0.0, orders), NormalDist()
    shown = [claim.least(1 - law.cdf(cut - shift), 1 - law.cdf(cut)) for cut in (step / 20 for step in range(-60, 100))]
    assert max(shown) <= shift
    if 1.0 in orders:
        assert max(shown) > 0.75 * shift


def test_delta_is_left_out_of_both_sides() -> None:
    """A mechanism that tells all with a probability of δ, and else nothing."""
    claim = Claim(0.0, 0.05, (1.0, 2.0))
    assert claim.least(0.05 + 0.95 * 0.3, 0.95 * 0.3) == pytest.approx(0, abs=1e-6)
    assert claim.least(0.2 + 0.8 * 0.3, 0.8 * 0.3) > 0.1
    assert claim.least(0.3, 0.5) == 0
