"""The exponential mechanism over the values of a grid, by their rank among the values that are there.

Rule 1: losses are integers, and a value is drawn with probability exactly proportional to exp(−loss/scale).
Rule 2: what is chosen from is the whole grid, whatever is there; values that nothing lies at are one step among others.
Rule 3: one more candidate is that there is no value. It weighs as much as the grid 19 times over where no row is, and
less with each row.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpsql.privacy import sampling
from dpsql.privacy.conversion import UP, decimal, ln, root_up
from dpsql.privacy.cost import Event, Mechanism, Share
from dpsql.privacy.exact import check_whole
from dpsql.privacy.mechanisms import modest_up
from dpsql.privacy.sampling import MIN_SCALE
from dpsql.privacy.sensitivity import Sensitivity

_MISSED = Fraction(1, 20)


@dataclass(frozen=True, slots=True)
class Rank:
    """Which rank is wanted.

    The loss of a value with L rows below it, E at it and G above it is the distance of 0 from the interval from
    below·L − above·(E + G) to below·(L + E) − above·G: 0 for a quantile of above : below.

    Attributes:
        below: The weight of rows below.
        above: The weight of rows above.
        is_extreme: True where the least or the greatest value is wanted, and `inset` rows may lie beyond it, or half of
            them all where there are fewer.
    """

    below: int
    above: int
    is_extreme: bool = False

    def __post_init__(self) -> None:
        check_whole(self.below, self.above)
        if min(self.below, self.above) < 0 or self.below + self.above < 1:
            raise ValueError("a rank has weights")

    @classmethod
    def quantile(cls, fraction: Fraction) -> "Rank":
        """The value below which that part of the rows lies; of 0 and 1 the extremes."""
        if fraction in (0, 1):
            return cls.greatest() if fraction else cls.least()
        return cls(fraction.denominator - fraction.numerator, fraction.numerator)

    @classmethod
    def least(cls) -> "Rank":
        """The least value."""
        return cls(2, 0, True)

    @classmethod
    def greatest(cls) -> "Rank":
        """The greatest value."""
        return cls(0, 2, True)

    @property
    def total(self) -> int:
        """How much the loss grows with a rank."""
        return self.below + self.above


@dataclass(frozen=True, slots=True)
class RankChoice:
    """Chooses a value of a grid for each group, or none, with P[v] ∝ size(v)·exp(−loss(v)/scale).

    The size of each value is 1. None has 19 times the size of the grid, and a loss of max(below, above) a row.

    Guarantee: with losses that move by Δ at the most in each of the groups that one neighbouring step touches, each
        choice is (2Δ/scale)-DP, and of bounded range, so (Δ²/2·scale²)-zCDP: (2·L1/scale, 0)-DP and
        (L2²/2·scale²)-zCDP for all of them, where the sensitivity is that of the vector of Δ.
    Assumes: the rows of one unit that count in a group are bounded in SQL by `cap`, and one neighbouring step moves
        cells to which one unit adds from −cap·above to cap·below by the sensitivity. For a unit with a rows below a
        value, e at it and b above it moves the ends of a quantile's interval by below·a − above·(e + b) and
        below·(a + e) − above·b. Of an extreme, 2·inset + 1 or the number of rows, whichever is less, is taken off 2L:
        that is the larger of two numbers, which one unit moves by 2·cap at the most, and so does one in its place.
        The loss of none moves by max(below, above)·cap at the most, also for one unit in another's place. Sizes do not
        depend on data.
    Reference: McSherry & Talwar 2007, also for sizes; Smith 2011 for quantiles; Cesar & Rogers 2021 for ε²/8-zCDP of
        mechanisms of bounded range ε (Dong, Durfee & Rogers 2020).
    """

    sensitivity: Sensitivity
    scale: Fraction
    rank: Rank
    lower: int
    upper: int

    def __post_init__(self) -> None:
        sampling.check_scale(self.scale)
        check_whole(self.lower, self.upper)

    @property
    def event(self) -> Event:
        """What the ledger stores."""
        return Event(Mechanism.EXPONENTIAL, self.sensitivity, self.scale)

    @property
    def values(self) -> int:
        """How many values there are to choose from."""
        return self.upper - self.lower + 1

    @property
    def nothing(self) -> int:
        """What stands for no value: where no row is, it is chosen in 95 % of cases."""
        return self.upper + 1

    @property
    def inset(self) -> int:
        """Rows that may lie beyond an extreme: with fewer, the values beyond it all would together outweigh it."""
        return self.reach if self.rank.is_extreme else 0

    @property
    def reach(self) -> int:
        """The distance in ranks, rounded up, that the chosen value keeps from the one wanted in 95 % of cases.

        P[loss ≥ r] ≤ values·exp(−r/scale), for a value without loss is always there.
        """
        missed = Fraction(ln(decimal(Fraction(self.values) / _MISSED, UP), UP)) * self.scale
        return math.ceil(missed / self.rank.total)

    def choose(self, values: NDArray[np.int64], counts: NDArray[np.int64]) -> int:
        """Choose one value, of rows that lie at some values of the grid, in order, each with how many do, or none."""
        steps = self.steps(values, counts)
        losses, sizes = (*steps.losses, self._loss_of_nothing(int(counts.sum()))), (*steps.sizes, self._size_of_nothing)
        chosen = sampling.exponential(losses, sizes, self.scale)
        if chosen == len(steps.firsts):
            return self.nothing
        return steps.firsts[chosen] + sampling.below(steps.sizes[chosen])

    def steps(self, values: NDArray[np.int64], counts: NDArray[np.int64]) -> "Steps":
        """The grid cut where the loss changes: at each value that rows lie at, and between them."""
        if values.size and (np.any(values[1:] <= values[:-1]) or values[0] < self.lower or values[-1] > self.upper):
            raise ValueError("values lie on the grid, in order")
        # Before, at and after each value; gaps may be empty.
        at = [int(value) for value in values]
        edges = [self.lower, *(edge for value in at for edge in (value, value + 1)), self.upper + 1]
        total, below = int(counts.sum()), 0
        firsts, sizes, losses = [], [], []
        held = [0, *(each for count in counts for each in (int(count), 0))]
        for first, end, here in zip(edges[:-1], edges[1:], held, strict=True):
            if end > first:
                firsts.append(first)
                sizes.append(end - first)
                losses.append(self._loss(below, here, total))
            below += here
        return Steps(tuple(firsts), tuple(sizes), tuple(losses))

    @property
    def _size_of_nothing(self) -> int:
        return int((1 - _MISSED) / _MISSED) * self.values

    def _loss_of_nothing(self, total: int) -> int:
        return max(self.rank.below, self.rank.above) * total

    def _loss(self, below: int, here: int, total: int) -> int:
        rank, beyond = self.rank, total - below - here
        # Wanted is the row after the inset, on the side that has the weight.
        taken = min(2 * self.inset + 1, total) if rank.is_extreme else 0
        taken = taken if rank.below else -taken
        low = rank.below * below - rank.above * (here + beyond) - taken
        high = rank.above * beyond - rank.below * (below + here) + taken
        return max(0, low, high)


@dataclass(frozen=True, slots=True)
class Steps:
    """Neighbouring values of one loss: the first one, how many they are, and the loss."""

    firsts: tuple[int, ...]
    sizes: tuple[int, ...]
    losses: tuple[int, ...]


def rank_choice(sensitivity: Sensitivity, share: Share, rank: Rank, lower: int, upper: int) -> RankChoice:
    """Return the choice that costs the share.

    Guarantee: pure, basic, advanced: scale = 2·L1/ε, so (ε, 0)-DP. zcdp, rdp: scale = L2/√(2ρ), rounded up, so ρ-zCDP.
    Assumes: the sensitivity holds for the policy's adjacency.
    Reference: as RankChoice.
    """
    if share.accountant.shares_rho:
        scale = root_up(sensitivity.l2_squared / (2 * share.rho))
    else:
        scale = 2 * sensitivity.l1 / share.epsilon
    return RankChoice(sensitivity, max(modest_up(scale), MIN_SCALE), rank, lower, upper)
