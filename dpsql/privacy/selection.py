"""Which groups with private keys may appear: partition selection on unit counts.

Rule 1: a group without a unit never appears, with any mechanism.
Rule 2: tables are fixed-point integers rounded down, so the inequalities of (ε′, δ′)-DP hold for the stored numbers,
not for numbers near them.

`l0` is the number of groups in which two neighbours may differ: `cell_sensitivity(...).l0`, which is twice max_groups
under substitute. Each of those counts differs by at most one unit.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import InvalidParameter, LimitExceeded, PolicyViolation
from dpsql.privacy import sampling
from dpsql.privacy.conversion import DOWN, check_exact, decimal, exp, root_down
from dpsql.privacy.cost import ZERO, Event, Mechanism, Sensitivity, Share
from dpsql.privacy.mechanisms import AddedNoise, DiscreteGaussian, gaussian

MAX_TABLE = 2**17

_BITS = 128
_ONE = 2**_BITS
_WORD = 2**64


class Selection(Protocol):
    """A rule that keeps or drops each group by its number of units."""

    @property
    def events(self) -> tuple[Event, ...]:
        """What the ledger stores."""
        ...

    @property
    def smallest_likely(self) -> int:
        """The least number of units with which a group is kept with probability ½ or more."""
        ...

    def keep(self, units: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each group's number of units, whether it may appear; fresh randomness at each call."""
        ...


@dataclass(frozen=True, slots=True)
class TruncatedGeometric:
    """Keeps a group of n units with probability π(n), the largest that (ε′, δ′)-DP allows at every n.

    Guarantee: per group, π₀ = 0 and π₍ₙ₊₁₎ = min(e^ε′·πₙ + δ′, 1 − e^−ε′·(1 − πₙ − δ′), 1), with a rational below
        e^ε′ and each πₙ rounded down to 2⁻¹²⁸: (ε′, δ′)-DP for one unit; (l0·ε′, l0·δ′)-DP and, but for l0·δ′,
        (l0·ε′²/2)-zCDP over the l0 groups.
    Assumes: one neighbouring step moves at most l0 groups' numbers of units, each by one.
    Reference: Desfontaines, Voss, Gipson & Mandayam 2020, "Differentially private partition selection".
    """

    l0: int
    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        unit_counts(self.l0)  # which refuses what is no number of groups
        check_exact(self.epsilon, self.delta)
        self.probabilities()

    def probabilities(self) -> tuple[int, ...]:
        """Return π(n) in units of 2⁻¹²⁸ for n = 0, 1, … up to the first n that is certain."""
        return self._table.probabilities

    @property
    def _table(self) -> "_Table":
        return _table(self.epsilon, int(self.delta / self.l0 * _ONE))

    @property
    def events(self) -> tuple[Event, ...]:
        """What the ledger stores: one event, of ε′ per group and δ over all of them."""
        return (Event(Mechanism.SELECTION, unit_counts(self.l0), self.epsilon, self.delta),)

    @property
    def smallest_likely(self) -> int:
        """The least n with π(n) ≥ ½."""
        return bisect_left(self.probabilities(), _ONE // 2)

    def keep(self, units: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each group's number of units, whether it may appear; fresh randomness at each call."""
        table = self._table
        index = np.clip(units, 0, table.high.size - 1)
        kept: NDArray[np.bool_] = sampling.bernoulli(table.high[index], table.low[index]) | (units >= table.high.size)
        return kept


@dataclass(frozen=True, slots=True)
class Threshold:
    """A cut-off for noisy unit counts: a group is kept if its noisy count is `cutoff` or more."""

    cutoff: int
    event: Event


@dataclass(frozen=True, slots=True)
class GaussianThreshold:
    """Keeps a group whose number of units plus discrete Gaussian noise reaches a cut-off.

    Guarantee: that of the noise and of its threshold, together; see `threshold_for`.
    Assumes: as `threshold_for`; the noisy counts are used for nothing else.
    Reference: Korolova, Kenthapadi, Mishra & Ntoulas 2009; the tail is that of the discrete law.
    """

    noise: DiscreteGaussian
    threshold: Threshold

    @property
    def events(self) -> tuple[Event, ...]:
        """What the ledger stores: the noise, and the δ of the threshold."""
        return (self.noise.event, self.threshold.event)

    @property
    def smallest_likely(self) -> int:
        """The cut-off: noise is symmetric, so a group of that many units passes with probability above ½."""
        return self.threshold.cutoff

    def keep(self, units: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each group's number of units, whether it may appear; fresh randomness at each call."""
        # Compared as noise against the distance, so that no count, however wrong, can overflow the sum.
        kept: NDArray[np.bool_] = (self.noise.sample(units.size) >= self.threshold.cutoff - units) & (units > 0)
        return kept


def unit_counts(l0: int) -> Sensitivity:
    """Return the sensitivity of unit counts of which one neighbouring step moves l0, each by one."""
    return Sensitivity(l0=l0, linf=1, l1=l0, l2_squared=l0)


def truncated_geometric(l0: int, share: Share) -> TruncatedGeometric:
    """Return the optimal selection that costs the share.

    Guarantee: basic, advanced: ε′ = ε/l0. zcdp: ε′ = √(2ρ/l0), rounded down. δ′ = δ/l0.
    Assumes: as TruncatedGeometric.
    Reference: Desfontaines et al. 2020; Bun & Steinke 2016, proposition 1.4 and section 8.
    """
    _check_share(share)
    epsilon = root_down(2 * share.rho / l0) if share.accountant.shares_rho else share.epsilon / l0
    return TruncatedGeometric(l0, epsilon, share.delta)


def gaussian_threshold(l0: int, share: Share) -> GaussianThreshold:
    """Return the Gaussian selection that costs the share; in basic and advanced, half of δ goes to the noise.

    Guarantee: zcdp: ρ for the noise, δ for the threshold. basic, advanced: (ε, δ/2) and (0, δ/2).
    Assumes: as GaussianThreshold.
    Reference: Korolova et al. 2009; Canonne, Kamath & Steinke 2020, theorem 14.
    """
    _check_share(share)
    delta = share.delta / 2 if share.accountant.converts else share.delta
    conversion = share.delta - delta
    noise = gaussian(unit_counts(l0), Share(share.accountant, share.epsilon, share.rho, conversion))
    return GaussianThreshold(noise, threshold_for(noise, l0, delta))


@lru_cache(maxsize=1024)
def select(l0: int, share: Share) -> TruncatedGeometric | GaussianThreshold:
    """Return the selection that keeps smaller groups at this share; the geometric one if they are equal.

    Guarantee: that of the selection returned; the choice uses the plan alone.
    Assumes: as TruncatedGeometric and GaussianThreshold.
    Reference: design choice: compared at equal charge, by the group kept with probability ½.
    """
    by_noise = gaussian_threshold(l0, share)
    try:
        by_table = truncated_geometric(l0, share)
    except LimitExceeded:
        return by_noise
    return by_table if by_table.smallest_likely <= by_noise.smallest_likely else by_noise


@lru_cache(maxsize=1024)
def threshold_for(noise: AddedNoise, l0: int, delta: Fraction) -> Threshold:
    """Return the cut-off for counts that are released anyway with this noise: keep a group iff noisy ≥ cutoff.

    Guarantee: cutoff = L∞ + t with P[Z ≥ t] ≤ δ/l0 by the discrete law's own tail, rounded up. A group that exists
        for the sake of one unit counts L∞ at most, so it passes with probability δ/l0; over l0 such groups, δ.
    Assumes: a group without units is not in the result at all; the cell counts units, or rows bounded by L∞.
    Reference: Korolova, Kenthapadi, Mishra & Ntoulas 2009; Wilson et al. 2020 (τ-thresholding).
    """
    if l0 < noise.sensitivity.l0:
        raise InvalidParameter(f"the noise is for {noise.sensitivity.l0} groups of one unit, the threshold for {l0}")
    cutoff = noise.sensitivity.linf + noise.tail(delta / l0)
    return Threshold(cutoff, Event(Mechanism.THRESHOLD, noise.sensitivity, ZERO, delta))


def _check_share(share: Share) -> None:
    domain = "the key's values or values_from in the policy: all groups of a public domain are shown without delta."
    if not share.accountant.selects:
        kind = share.accountant.value
        raise PolicyViolation(
            f"a {kind} budget has no delta to select groups, so private keys are not shown", hint=f"Declare {domain}"
        )
    if share.delta == 0:
        raise InvalidParameter(
            "groups with private keys need a delta", hint=f"Run SET dpsql.delta = 1e-9, or declare {domain}"
        )


@dataclass(frozen=True, slots=True)
class _Table:
    """Keeping probabilities in units of 2⁻¹²⁸; high and low words of all but the last, which is 1."""

    probabilities: tuple[int, ...]
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]


@lru_cache(maxsize=64)
def _table(epsilon: Fraction, delta: int) -> _Table:
    """Return π(n), rounded down, for n = 0, 1, … up to the first n that is certain; δ is in units of 2⁻¹²⁸."""
    if delta < 1:
        raise InvalidParameter("delta is too small for a selection", hint="Set a larger delta: SET dpsql.delta = 1e-9")
    # Any rational from 1 to e^ε′ is sound, so ε′ may be cut at 64 to keep the numbers short.
    growth = max(_ONE, math.floor(DOWN.multiply(exp(decimal(min(epsilon, Fraction(64)), DOWN), DOWN), _ONE)))
    shrinkage = -(-_ONE * _ONE // growth)
    table = [0]
    while table[-1] < _ONE:
        if len(table) > MAX_TABLE:
            raise LimitExceeded(
                "the selection of groups is too fine",
                detail=f"At this price a group would need more than {MAX_TABLE} units to be certain to appear.",
                hint="Set a larger dpsql.epsilon or dpsql.delta, or a smaller dpsql.max_groups.",
            )
        last = table[-1]
        rising = (growth * last >> _BITS) + delta
        # 1 − e^−ε′·(1 − π − δ′): a shift rounds to below, so what is taken off is rounded up.
        falling = _ONE + ((last + delta - _ONE) * shrinkage >> _BITS)
        table.append(min(rising, falling, _ONE))
    # The certain last one does not fit two words; `keep` takes it for granted.
    high = np.array([value // _WORD for value in table[:-1]], dtype=np.uint64)
    low = np.array([value % _WORD for value in table[:-1]], dtype=np.uint64)
    return _Table(tuple(table), high, low)
