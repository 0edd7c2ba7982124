"""The samplers: exact laws, exact decisions, and one source of randomness.

Chi-square tests use a critical value that the chi-square law with k degrees of freedom exceeds with probability
e^-17 < 5e-8 at most, k + 2·√(17k) + 34 (Laurent & Massart 2000, lemma 1). Bins expect 300 draws or more, where
Pearson's statistic follows that law closely: a false alarm below 1e-7 a test, and below 1e-6 over all of them.
"""

import ast
import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import dpsql.privacy
from dpsql.errors import InvalidParameter, LimitExceeded
from dpsql.privacy import sampling
from dpsql.privacy.sampling import MAX_SCALE, MIN_SCALE, bernoulli, discrete_gaussian, discrete_laplace

DRAWS = 100_000
BINS = 40
LAPLACE_SCALES = [Fraction(1, 2), Fraction(7, 3), Fraction(10), Fraction(10**6), Fraction(2**41), Fraction(MAX_SCALE)]
VARIANCES = [
    Fraction(1, 3),
    Fraction(1),
    Fraction(29, 4),
    Fraction(10**4),
    Fraction(10**12),
    Fraction(2**84),
    Fraction(MAX_SCALE**2),
]

Cdf = Callable[[int], float]


def laplace_cdf(scale: float) -> Cdf:
    q = math.exp(-1 / scale)

    def cdf(z: int) -> float:
        return 1 - math.exp(-(z + 1) / scale) / (1 + q) if z >= 0 else math.exp(z / scale) / (1 + q)

    return cdf


def gaussian_cdf(sigma: float) -> Cdf:
    """Return the law's distribution function: by summing where it is narrow, else by the normal law at z + ½."""
    if sigma > 200:
        return lambda z: 0.5 * math.erfc(-(z + 0.5) / (sigma * math.sqrt(2)))
    reach = int(20 * sigma) + 20
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    sums = np.cumsum(weights) / weights.sum()
    return lambda z: float(sums[min(max(z + reach, 0), 2 * reach)])


def critical(freedom: int) -> float:
    return freedom + 2 * math.sqrt(17 * freedom) + 34


def edges(cdf: Cdf, scale: float) -> list[int]:
    """Return bin ends, at quantiles of the law, between which it has 1 % or more."""
    ends: list[int] = []
    covered = 0.0
    low, high = -int(40 * scale) - 2, int(40 * scale) + 2
    for k in range(1, BINS):
        left, right = low, high
        while right - left > 1:
            middle = (left + right) // 2
            left, right = (middle, right) if cdf(middle) < k / BINS else (left, middle)
        if cdf(right) - covered > 0.01 and 1 - cdf(right) > 0.01:
            ends.append(right)
            covered = cdf(right)
    return ends


def chi_square(drawn: NDArray[np.int64], cdf: Cdf, ends: list[int]) -> float:
    sums = [0.0, *(cdf(end) for end in ends), 1.0]
    expected = np.diff(sums) * drawn.size
    observed = np.bincount(np.searchsorted(ends, drawn), minlength=len(ends) + 1)
    return float(((observed - expected) ** 2 / expected).sum())


def check_law(drawn: NDArray[np.int64], law: Callable[[float], Cdf], scale: float) -> None:
    """Accept the law at its own scale and reject it at 10 % less and 10 % more."""
    ends = edges(law(scale), scale)
    limit = critical(len(ends))
    assert chi_square(drawn, law(scale), ends) <= limit
    for wrong in (0.9 * scale, 1.1 * scale):
        assert chi_square(drawn, law(wrong), ends) > limit


@pytest.mark.statistical
@pytest.mark.parametrize("scale", LAPLACE_SCALES)
def test_laplace_follows_its_mass_function(scale: Fraction) -> None:
    check_law(discrete_laplace(scale, DRAWS), laplace_cdf, float(scale))


@pytest.mark.statistical
@pytest.mark.parametrize("variance", VARIANCES)
def test_gaussian_follows_its_mass_function(variance: Fraction) -> None:
    check_law(discrete_gaussian(variance, DRAWS), gaussian_cdf, math.sqrt(variance))


@pytest.mark.statistical
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_samples_agree_with_opendp(law: str) -> None:
    """A chi-square test of two samples in one table."""
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=int))
    draws = 30_000
    if law == "laplace":
        ours, cdf = discrete_laplace(Fraction(10), draws), laplace_cdf(10)
        theirs = dp.m.make_laplace(domain, dp.l1_distance(T=int), scale=10.0)([0] * draws)
    else:
        ours, cdf = discrete_gaussian(Fraction(100), draws), gaussian_cdf(10)
        theirs = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=10.0)([0] * draws)
    ends = edges(cdf, 10)
    a, b = (np.bincount(np.searchsorted(ends, drawn), minlength=len(ends) + 1) for drawn in (ours, theirs))
    assert float(((a - b) ** 2 / (a + b)).sum()) <= critical(len(ends))


@pytest.mark.statistical
def test_bernoulli_has_its_probability() -> None:
    """Within six standard deviations: false alarms below 1e-8 for each."""
    for p in (Fraction(1, 3), Fraction(1, 100), Fraction(99, 100)):
        high, low = divmod(int(p * 2**128), 2**64)
        drawn = bernoulli(np.full(DRAWS, high, dtype=np.uint64), np.full(DRAWS, low, dtype=np.uint64))
        assert abs(int(drawn.sum()) - DRAWS * p) <= 6 * math.sqrt(DRAWS * p * (1 - p))


@pytest.mark.parametrize("size", [0, 1, 2, 20, 8192, 8193, 20_000])
def test_any_number_of_cells(size: int) -> None:
    for drawn in (discrete_laplace(Fraction(3), size), discrete_gaussian(Fraction(3), size)):
        assert drawn.shape == (size,)
        assert drawn.dtype == np.int64


def test_the_smallest_noise_is_almost_always_zero() -> None:
    assert not discrete_laplace(MIN_SCALE, 1000).any()
    assert not discrete_gaussian(MIN_SCALE**2, 1000).any()


@pytest.mark.parametrize("draw", [discrete_laplace, discrete_gaussian])
@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), Fraction(1, 10**9), Fraction(1, 10**400)])
def test_a_scale_too_small_is_refused(draw: Callable[[Fraction, int], object], scale: Fraction) -> None:
    with pytest.raises(InvalidParameter):
        draw(scale, 1)


def test_a_scale_too_large_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        discrete_laplace(Fraction(MAX_SCALE) + Fraction(1, 3), 1)
    with pytest.raises(LimitExceeded):
        discrete_gaussian(Fraction(MAX_SCALE**2) + Fraction(1, 3), 1)


# Exact decisions


def script(monkeypatch: pytest.MonkeyPatch, *parts: bytes) -> None:
    """Let os.urandom return these bytes, each asked for in its length, and no more."""
    queue = list(parts)

    def urandom(count: int) -> bytes:
        part = queue.pop(0)
        assert len(part) == count
        return part

    monkeypatch.setattr(os, "urandom", urandom)


def word(value: int) -> bytes:
    return value.to_bytes(8, "little")


@pytest.mark.parametrize("scale", [Fraction(1, 64), Fraction(22, 7), Fraction(10**6), Fraction(MAX_SCALE + 1)])
@pytest.mark.parametrize("bits", [64, 72, 200])
def test_fixed_point_probabilities_are_exact(scale: Fraction, bits: int) -> None:
    floors = sampling._floors(scale, bits)
    width = len(floors) - 1
    assert 2**width >= 63 * scale
    assert width <= 62
    with localcontext(prec=300):
        for row, found in enumerate(floors):
            power = (Decimal(2**row) * scale.denominator / scale.numerator).exp()
            assert found == math.floor(2**bits / (power + (1 if row < width else 0)))


def test_a_doubtful_floor_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = sampling._floors(Fraction(10), 72)
    sampling._floors.cache_clear()
    monkeypatch.setattr(sampling, "_GUARD_DIGITS", 0)
    assert sampling._floors(Fraction(10), 72) == exact
    sampling._floors.cache_clear()


@pytest.mark.parametrize(("extra", "bit"), [(-1, 1), (1, 0)])
def test_a_digit_in_doubt_is_settled_by_more_bits(monkeypatch: pytest.MonkeyPatch, extra: int, bit: int) -> None:
    scale = Fraction(10)
    floors = sampling._floors(scale, 72)
    longer = sampling._floors(scale, 72 + 64)[0] % 2**64
    # All digits but the lowest are surely 0; the lowest equals its probability in its first 72 bits.
    octets = bytes([floors[0] >> 64] + [255] * (len(floors) - 1))
    script(monkeypatch, octets, word(floors[0] % 2**64), word(longer + extra))
    assert sampling._geometric(scale, 1).tolist() == [bit]


def test_a_coin_goes_on_while_the_bits_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Fraction(10)
    for row in (0, 3, 5):
        first, second = (sampling._floors(scale, bits)[row] % 2**64 for bits in (64, 128))
        script(monkeypatch, word(first), word(second - 1))
        assert sampling._coin(scale, row, 0)
        script(monkeypatch, word(first), word(second + 1))
        assert not sampling._coin(scale, row, 0)


def test_a_digit_decided_by_its_second_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Fraction(10)
    floors = sampling._floors(scale, 72)
    octets = bytes([255] * 3 + [floors[3] >> 64] + [255] * (len(floors) - 4))
    for extra, value in ((-1, 8), (1, 0)):
        script(monkeypatch, octets, word(floors[3] % 2**64 + extra))
        assert sampling._geometric(scale, 1).tolist() == [value]


def test_what_lies_beyond_the_digits_is_drawn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Fraction(1024, 63)
    floors = sampling._floors(scale, 72)
    octets = bytes([255] * (len(floors) - 1) + [0])
    # The last row, of probability e^-63, is in doubt for 72 bits, then true; for the next block it is false at once.
    script(monkeypatch, octets, word(floors[-1] % 2**64), word(0), word(2**64 - 1))
    assert sampling._geometric(scale, 1).tolist() == [2 ** (len(floors) - 1)]


def test_what_does_not_fit_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, True, True, False])
    monkeypatch.setattr(sampling, "_coin", lambda scale, row, known_bits: next(answers))
    assert sampling._beyond(Fraction(MAX_SCALE), 62, 5) == 2**63 - 1


@given(
    st.one_of(
        st.fractions(Fraction(1, 4096), 100),
        st.integers(0, 112).flatmap(
            lambda power: st.fractions(1, 2).map(lambda f: min(f * 2**power, Fraction(2**112)))
        ),
    ),
    st.floats(0, 80),
    st.integers(0, 3),
)
def test_bounds_of_the_rejection_step_hold(variance: Fraction, sigmas: float, offset: int) -> None:
    proposal = sampling._Proposal.of(variance)
    magnitude = min(int(sigmas * math.sqrt(variance)) + offset, 2**63 - 1)
    gamma = (magnitude - variance / proposal.scale) ** 2 / (2 * variance) * 2**16
    below, above = (int(bound[0]) for bound in proposal._bounds(np.array([magnitude])))
    assert below <= gamma <= above
    # Tight where proposals fall, so that hardly any are left open.
    assert magnitude > 10 * math.sqrt(variance) or above - below <= 4


def test_bounds_hold_where_low_bits_are_left_out() -> None:
    variance = Fraction(2**111, 3)
    proposal = sampling._Proposal.of(variance)
    assert proposal.shift > 0
    # Magnitudes with all those bits set, spread over 0 to 10 σ: the worst case for the bound from above.
    magnitudes = np.arange(1, 20_001) * (int(10 * math.sqrt(variance)) // 20_000) | (2**proposal.shift - 1)
    below, above = (bound.tolist() for bound in proposal._bounds(magnitudes))
    for magnitude, least, most in zip(magnitudes.tolist(), below, above, strict=True):
        gamma = (magnitude - variance / proposal.scale) ** 2 / (2 * variance) * 2**16
        assert least <= gamma <= most


@example(coin=18_063, fraction=0, variance=Fraction(50), proposed=1)
@example(coin=18_063, fraction=2**30 - 1, variance=Fraction(50), proposed=1)
@given(st.integers(0, 2**18), st.integers(0, 2**30 - 1), st.fractions(Fraction(1, 100), 10**6), st.integers(0, 2000))
def test_an_open_proposal_is_settled_by_comparing_numbers(
    coin: int, fraction: int, variance: Fraction, proposed: int
) -> None:
    proposal = sampling._Proposal.of(variance)
    gamma = (proposed - variance / proposal.scale) ** 2 / (2 * variance)
    digits = iter([int(digit) for digit in f"{fraction:030b}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_coin", lambda scale, row, known_bits: next(digits) == 1)
        settled = proposal._settle(proposed, coin)
    assert settled == ((coin + Fraction(2 * fraction + 1, 2**31)) / 2**16 >= gamma)


def test_open_proposals_are_settled_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def settle(self: object, proposed: int, coin: int) -> bool:
        asked.append((proposed, coin))
        return False

    everything_open = (np.zeros(1, dtype=np.int64), np.full(1, 2**62))
    monkeypatch.setattr(sampling._Proposal, "_bounds", lambda self, magnitude: everything_open)
    monkeypatch.setattr(sampling._Proposal, "_settle", settle)
    assert sampling._Proposal.of(Fraction(9)).draw(10).size == 0
    assert asked


# The source


def replayed() -> Iterator[bytes]:
    state = b"seed"
    while True:
        state = hashlib.sha256(state).digest()
        yield state


def test_all_randomness_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[list[int]]:
        stream = replayed()
        monkeypatch.setattr(os, "urandom", lambda count: b"".join(next(stream) for _ in range(count // 32 + 1))[:count])
        words = np.full(50, 2**63, dtype=np.uint64)
        return [
            discrete_laplace(Fraction(1000), 50).tolist(),
            discrete_gaussian(Fraction(10**6), 50).tolist(),
            bernoulli(words, words).tolist(),
        ]

    assert run() == run()
    monkeypatch.undo()
    assert discrete_laplace(Fraction(MAX_SCALE), 4).tolist() != discrete_laplace(Fraction(MAX_SCALE), 4).tolist()


def test_a_fork_repeats_nothing() -> None:
    discrete_laplace(Fraction(MAX_SCALE), 8)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12: fork beside numpy's threads
        child = os.fork()
    if child == 0:  # pragma: no cover
        os.write(writer, discrete_laplace(Fraction(MAX_SCALE), 8).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 64)
    os.close(reader)
    os.close(writer)
    assert len(theirs) == 64
    assert theirs != discrete_laplace(Fraction(MAX_SCALE), 8).tobytes()


def test_no_other_file_draws_randomness() -> None:
    for path in Path(dpsql.privacy.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        imports = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {"random", "secrets", "uuid", "numpy.random"} & imports
        assert "random" not in names
        assert ("urandom" in names) == (path.name == "sampling.py")
