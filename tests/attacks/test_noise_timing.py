"""Timing of noise: a sampler that takes longer for larger noise tells what to subtract (Jin et al. 2022).

A quick run counts the random bytes that a draw takes; a thorough one takes its time.
"""

import os
import time
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

from dpsql.privacy.sampling import discrete_gaussian, discrete_laplace
from tests.attacks.arena import Arena, Comparison, Verdict

SCALE = 300
DRAWS = 1000
TELLING = 0.2
"""A rank correlation that chance gives to so many draws less than once in a billion times."""

Sample = Callable[[], int]


def textbook() -> int:
    """Laplace noise as a geometric number of coins, with a sign."""
    magnitude = 0
    while int.from_bytes(os.urandom(4), "little") < 2**32 * (1 - 1 / SCALE):
        magnitude += 1
    return -magnitude if os.urandom(1) < b"\x80" else magnitude


def entropy_of(sample: Sample) -> tuple[int, int]:
    """A draw, and how many random bytes it took."""
    taken: list[int] = []
    genuine = os.urandom

    def counting(size: int) -> bytes:
        taken.append(size)
        return genuine(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", counting)
        return sample(), sum(taken)


def time_of(sample: Sample) -> tuple[int, int]:
    """A draw, and how many nanoseconds it took."""
    begun = time.perf_counter_ns()
    return sample(), time.perf_counter_ns() - begun


def ranks(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def correlation(sample: Sample, effort_of: Callable[[Sample], tuple[int, int]], draws: int) -> float:
    """Spearman's, of the size of the noise and the effort that it took; 0 where all efforts are the same."""
    noise, effort = zip(*(effort_of(sample) for _ in range(draws)), strict=True)
    if len(set(effort)) == 1:
        return 0.0
    return float(np.corrcoef(ranks([abs(drawn) for drawn in noise]), ranks(effort))[0, 1])


def compare(arena: Arena) -> Comparison:
    effort_of, draws = (time_of, 20 * DRAWS) if arena.thorough else (entropy_of, DRAWS)
    samplers: tuple[Sample, ...] = (
        lambda: int(discrete_laplace(Fraction(SCALE), 1)[0]),
        lambda: int(discrete_gaussian(Fraction(SCALE**2), 1)[0]),
    )
    naive = correlation(textbook, effort_of, DRAWS)
    dpsql = max((correlation(sample, effort_of, draws) for sample in samplers), key=abs)
    return Comparison(
        "timing of noise",
        Verdict(f"rank correlation {naive:.2f}", naive > TELLING),
        Verdict(f"rank correlation {dpsql:.2f}", abs(dpsql) > TELLING),
    )


def test_timing_of_noise(arena: Arena) -> None:
    compare(arena).check()
