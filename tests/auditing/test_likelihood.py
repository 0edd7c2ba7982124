"""What is learned of cells tells the sides apart about as well as who knows the noise can."""

import numpy as np

from dpsql.auditing.likelihood import learned

RANDOM = np.random.default_rng(7)


def laplace(shift: float, *shape: int) -> np.ndarray:
    found: np.ndarray = RANDOM.laplace(size=shape) + shift
    return found


def apart(one: np.ndarray, other: np.ndarray, cut: float) -> float:
    """The logarithm of how much likelier a score above a cut is on the first side."""
    return float(np.log(np.mean(one >= cut) / np.mean(other >= cut)))


def test_cells_are_added_up() -> None:
    """Three cells that lose 1 each: there are outcomes that tell more than two of them could."""
    one, other = laplace(1, 40, 1000, 1, 3), laplace(0, 40, 1000, 1, 3)
    found = learned(one[:10], other[:10])
    scores = found.score(one[10:]), found.score(other[10:])
    assert 2.4 < apart(*scores, 2.5) < 3.3
    assert abs(float(scores[0].max()) - 3) < 0.6


def test_groups_that_are_kept_are_found() -> None:
    """One of twelve, another for each unit, the same in all runs."""
    one, other = laplace(0, 24, 500, 12, 1), laplace(0, 24, 500, 12, 1)
    kept = RANDOM.integers(12, size=500)
    one[:, np.arange(500), kept, 0] += 4
    found = learned(one[:12], other[:12])
    assert np.mean(found.order[:, -1] == kept) > 0.95
    assert apart(found.score(one[12:]), found.score(other[12:]), 2) > 2


def test_what_tells_nothing_scores_nothing() -> None:
    one, other = laplace(0, 10, 500, 1, 2), laplace(0, 10, 500, 1, 2)
    found = learned(one, other)
    assert np.mean(np.abs(found.score(laplace(0, 1, 500, 1, 2)))) < 0.1


def test_what_is_missing_tells_too() -> None:
    one, other = np.ones((4, 100, 1, 1)), np.full((4, 100, 1, 1), np.nan)
    found = learned(one, other)
    assert found.score(one).min() > 3 > -3 > found.score(other).max()
