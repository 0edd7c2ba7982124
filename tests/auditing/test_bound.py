"""Limits of probabilities against values known in closed form, and bounds of ε that hold and that find."""

import math

import numpy as np
import pytest

from dpsql.auditing.bound import Bound, Outcomes, OutcomeSet, lower_limit, upper_limit
from dpsql.auditing.bound import bound_of as bounded
from dpsql.auditing.claims import Claim


@pytest.mark.parametrize("trials", [1, 10, 400, 5000])
@pytest.mark.parametrize("error", [0.05, 1e-3, 1e-9])
def test_limits_where_all_or_none_hit(trials: int, error: float) -> None:
    """All of n hit: pⁿ = error. None: (1 − p)ⁿ = error."""
    assert lower_limit(0, trials, error) == 0
    assert lower_limit(trials, trials, error) == pytest.approx(error ** (1 / trials), abs=1e-8)
    assert upper_limit(0, trials, error) == pytest.approx(1 - error ** (1 / trials), abs=1e-8)
    assert upper_limit(trials, trials, error) == 1


def test_limits_that_are_published() -> None:
    """Clopper and Pearson's interval for 4 of 10 at 95 % is 0.122 to 0.738; for 1 of 20, 0.0013 to 0.249."""
    assert lower_limit(4, 10, 0.025) == pytest.approx(0.1216, abs=1e-4)
    assert upper_limit(4, 10, 0.025) == pytest.approx(0.7376, abs=1e-4)
    assert lower_limit(1, 20, 0.025) == pytest.approx(0.0013, abs=1e-4)
    assert upper_limit(1, 20, 0.025) == pytest.approx(0.2487, abs=1e-4)


@pytest.mark.parametrize("hits", [1, 7, 30, 59])
def test_a_limit_has_the_tail_it_promises(hits: int) -> None:
    """Summed term by term, in whole binomials."""
    limit = lower_limit(hits, 60, 1e-3)
    tail = math.fsum(math.comb(60, k) * limit**k * (1 - limit) ** (60 - k) for k in range(hits, 61))
    assert tail == pytest.approx(1e-3, rel=1e-4)
    assert tail <= 1e-3


def outcomes(*values: float | None) -> Outcomes:
    return Outcomes(len(values), {"x": np.array(values, dtype=np.float64)})


def epsilon_bound(
    chosen_on: tuple[Outcomes, Outcomes], counted_on: tuple[Outcomes, Outcomes], delta: float, error: float
) -> Bound:
    return bounded(chosen_on, counted_on, Claim(1.0, delta).least, error)


def test_a_bound_is_the_ratio_of_the_limits() -> None:
    one, other = outcomes(*[1] * 500, *[0] * 500), outcomes(*[1] * 50, *[0] * 950)
    bound = epsilon_bound((one, other), (one, other), 0.0, 0.002)
    expected = math.log(lower_limit(500, 1000, 1e-3) / upper_limit(50, 1000, 1e-3))
    assert bound.least == pytest.approx(expected)
    assert bound.trials == 1000
    claimed = epsilon_bound((one, other), (one, other), 0.3, 0.002)
    assert claimed.least == pytest.approx(math.log((lower_limit(500, 1000, 1e-3) - 0.3) / upper_limit(50, 1000, 1e-3)))


def test_either_side_may_be_the_likelier() -> None:
    one, other = outcomes(*[0] * 400), outcomes(*[0] * 200, *[3] * 200)
    for sides in ((one, other), (other, one)):
        assert epsilon_bound(sides, sides, 0.0, 1e-3).least > 2


def test_an_event_that_is_chosen_proves_nothing_if_it_does_not_come_again() -> None:
    """What was by chance in the runs that chose is not counted."""
    chance = outcomes(*[9] * 50, *[0] * 50)
    nothing = outcomes(*[0] * 100)
    bound = epsilon_bound((chance, nothing), (nothing, nothing), 0.0, 1e-3)
    assert bound.event == OutcomeSet("x", "=", 9, False) or bound.event == OutcomeSet("x", ">=", 9, False)
    assert bound.least == 0


def test_delta_takes_away_what_it_may() -> None:
    one, other = outcomes(*[1] * 30, *[0] * 970), outcomes(*[0] * 1000)
    assert epsilon_bound((one, other), (one, other), 0.0, 1e-3).least > 0
    assert epsilon_bound((one, other), (one, other), 0.03, 1e-3).least == 0


def test_values_and_what_is_missing_are_told_apart() -> None:
    one, other = outcomes(*[2] * 300), outcomes(*[1] * 150, *[None] * 150)
    assert epsilon_bound((one, other), (one, other), 0.0, 1e-3).least > 3
    bare = Outcomes(300, {})
    assert epsilon_bound((one, bare), (one, bare), 0.0, 1e-3).least > 3
    assert epsilon_bound((bare, bare), (bare, bare), 0.0, 1e-3).event is None
