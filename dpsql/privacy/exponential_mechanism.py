"""The exponential mechanism: values of a grid by their rank, and the first few of a list by a score.

Rule 1: losses and scores are integers, and a candidate is drawn with probability exactly proportional to
exp(−loss/scale).
Rule 2: the candidates are the whole grid or the whole list. Both are public and do not depend on data: values without
rows and keys without units are candidates, too.
Rule 3: a grid has one more candidate: no value. Without rows it weighs 19 times as much as the grid, and less with each
row.
Rule 4: scores are not released.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpsql.privacy import sampling
from dpsql.privacy.conversion import UP, check_whole, decimal, ln, root_up
from dpsql.privacy.cost import Accountant, Adjacency, Event, Mechanism, Sensitivity, Share, cell_sensitivity
from dpsql.privacy.mechanisms import AddedNoise, modest_up
from dpsql.privacy.sampling import MIN_SCALE, Whole

_MISSED = Fraction(1, 20)
_FARTHEST = 2**60
"""Scores are capped at it, so that twice their distance is a 64-bit integer; sums stay below it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Which candidates are wanted, in their order.

    Attributes:
        count: How many.
        least: True where those of the least scores are wanted, else those of the greatest.
    """

    count: int
    least: bool = False

    def __post_init__(self) -> None:
        check_whole(self.count)
        if self.count < 1:
            raise ValueError("somebody is picked")


@dataclass(frozen=True, slots=True)
class Picking:
    """Picks candidates by their scores: the first, then another of those that are left, and so on.

    A loss is twice the distance of a score from the best one; a pick has P ∝ exp(−loss/scale), or, where coins are
    flipped, is any one of those whose coin of probability exp(−loss/scale) shows heads.

    Guarantee: of one pick the losses are 2·score and something that all of them share. If one neighbouring step moves
        the scores of one list by d in [−a, b], then 2·score − (b − a) moves by a + b at the most. So each pick
        is (2Δ/scale)-DP for Δ = a + b, and of bounded range, so (Δ²/2·scale²)-zCDP; with coins it is (2Δ/scale)-DP and
        (2Δ²/scale²)-zCDP. Later picks are made of the candidates that are left, which what was picked decides: they
        compose. `sensitivity` is that of the vector of Δ over all picks of all lists that one step touches.
        Scores that only grow with a unit (a = 0) thus need half the scale of others: they are monotone.
    Assumes: one unit adds to each score of a list a number in [−a, b] or nothing, bounded in SQL; to how many scores it
        adds does not matter. Under substitute d is the difference of two such numbers.
    Reference: McSherry & Talwar 2007; Dwork & Roth 2014, section 3.4, and theorem 3.20 for their composition;
        Durfee & Rogers 2019 for peeling and monotone scores; Cesar & Rogers 2021 for ε²/8-zCDP of bounded range ε;
        McKenna & Sheldon 2020 for coins.
    """

    sensitivity: Sensitivity
    scale: Fraction
    places: Places
    flips: bool

    def __post_init__(self) -> None:
        sampling.check_scale(self.scale)

    @property
    def event(self) -> Event:
        """What the ledger stores."""
        mechanism = Mechanism.PERMUTE_AND_FLIP if self.flips else Mechanism.EXPONENTIAL
        return Event(mechanism, self.sensitivity, self.scale)

    @property
    def apart(self) -> int:
        """The distance, rounded up, of two scores of which the better one comes before the other in 95 % of cases.

        Each time one of two candidates is picked, it is the worse one with odds of exp(−2·distance/scale) at the most:
        by weights with just these; by coins with no more, for the other coin is the likelier one to show heads as well.
        """
        return math.ceil(Fraction(ln(decimal(1 / _MISSED - 1, UP), UP)) * self.scale / 2)

    def pick(self, scores: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give each candidate of one list its place, from 1 on; 0 to those that are not picked."""
        ordered = np.clip(scores, -_FARTHEST, _FARTHEST)
        left = -ordered if not self.places.least else ordered
        places = np.zeros(scores.size, dtype=np.int64)
        candidates = np.arange(scores.size)
        for place in range(1, min(self.places.count, scores.size) + 1):
            index = self.one(2 * (left - left.min()))
            places[candidates[index]] = place
            candidates, left = np.delete(candidates, index), np.delete(left, index)
        return places

    def one(self, losses: NDArray[np.int64]) -> int:
        """Pick one candidate by losses; the least loss is 0."""
        if self.flips:
            return sampling.permute_and_flip(losses, self.scale)
        return sampling.exponential(losses, np.ones_like(losses), self.scale)


def top_k_sensitivity(
    adjacency: Adjacency, places: Places, *, lists: int, lower: int, upper: int, grouped: bool
) -> Sensitivity:
    """Return the sensitivity of all picks of all lists.

    Guarantee: with W = max(upper, 0) − min(lower, 0), Δ of a list is W under add_remove, and 2W or, in two
        lists that one unit leaves and the other enters, W each under substitute. Each list is picked from so often.
    Assumes: one unit adds a number in [lower, upper] or nothing to each score, in so many lists at the most.
    Reference: as Picking; the triangle inequality for substitute.

    Args:
        adjacency: The policy's neighbouring relation.
        places: What is picked from each list.
        lists: How many lists one unit may touch.
        lower: Least value that one unit adds to a score.
        upper: Greatest such value.
        grouped: False where there is one list.
    """
    width = max(upper, 0) - min(lower, 0)
    once = cell_sensitivity(adjacency, l0=lists, lower=-width, upper=width, grouped=grouped)
    count = places.count
    return replace(once, l0=once.l0 * count, l1=once.l1 * count, l2_squared=once.l2_squared * count)


def picking(sensitivity: Sensitivity, share: Share, places: Places) -> Picking:
    """Return the mechanism that costs the share.

    Guarantee: pure, basic, advanced: by coins with scale = 2·L1/ε, so (ε, 0)-DP. zcdp, rdp: by weights with
        scale = L2/√(2ρ), rounded up, so ρ-zCDP.
    Assumes: the sensitivity holds for the policy's adjacency.
    Reference: as Picking.
    """
    if share.accountant.shares_rho:
        scale, flips = root_up(sensitivity.l2_squared / (2 * share.rho)), False
    else:
        scale, flips = 2 * sensitivity.l1 / share.epsilon, True
    return Picking(sensitivity, max(modest_up(scale), MIN_SCALE), places, flips)


def worth_top_k(count: int, groups: int, accountant: Accountant, adjacency: Adjacency) -> bool:
    """Return whether so many picks are more exact than noise on all scores at the same price.

    A pick is a choice by scores with Gumbel noise of scale b = scale/2 each, whose variance is π²b²/6. A histogram
    has to bound the groups of one unit, which picks need not. For scores to which one unit adds up to 1:

    | price | adjacency | picks | histogram | picks are better up to |
    | ρ | add_remove | π²·count/48ρ | groups/2ρ | 24/π² = 2.4 times the groups |
    | ρ | substitute | π²·count/12ρ | groups/ρ | 12/π² = 1.2 times |
    | ε | add_remove | π²·count²/6ε² | 2·groups²/ε² | √12/π = 1.1 times |
    | ε | substitute | 4π²·count²/6ε² | 8·groups²/ε² | √12/π = 1.1 times |

    Args:
        count: Picks.
        groups: Groups that one unit would be left with in a histogram.
        accountant: The currency.
        adjacency: The policy's neighbouring relation.
    """
    twice = accountant.shares_rho and adjacency is Adjacency.ADD_REMOVE
    return count <= groups * (2 if twice else 1)


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
        losses = np.append(steps.losses, self.loss_of_nothing(int(counts.sum())))
        chosen = sampling.exponential(losses, np.append(steps.sizes, self.size_of_nothing), self.scale)
        if chosen == len(steps.firsts):
            return self.nothing
        return int(steps.firsts[chosen]) + sampling.below(int(steps.sizes[chosen]))

    def steps(self, values: NDArray[np.int64], counts: NDArray[np.int64]) -> "Steps":
        """The grid cut where the loss changes: at each value that rows lie at, and between them."""
        if values.size and (np.any(values[1:] <= values[:-1]) or values[0] < self.lower or values[-1] > self.upper):
            raise ValueError("values lie on the grid, in order")
        total = int(counts.sum())
        largest = max(-self.lower, self.upper, self.values + self.size_of_nothing, (self.rank.total + 1) * (total + 1))
        kind = np.int64 if largest < _FARTHEST else object
        # Before, at and after each value; gaps may be empty.
        at = values.astype(kind)
        edges = np.concatenate([[self.lower], np.column_stack([at, at + 1]).ravel(), [self.upper + 1]], dtype=kind)
        held = np.zeros(2 * len(at) + 1, dtype=kind)
        held[1::2] = counts
        losses = self._losses(np.cumsum(held) - held, held, total)
        sizes = np.diff(edges)
        there = sizes > 0
        return Steps(edges[:-1][there], sizes[there], losses[there])

    @property
    def size_of_nothing(self) -> int:
        """The weight of no value before its loss."""
        return int((1 - _MISSED) / _MISSED) * self.values

    def loss_of_nothing(self, total: int) -> int:
        """What no value loses where so many rows are."""
        return max(self.rank.below, self.rank.above) * total

    def _losses(self, below: Whole, here: Whole, total: int) -> Whole:
        rank, beyond = self.rank, total - below - here
        # Wanted is the row after the inset, on the side that has the weight.
        taken = min(2 * self.inset + 1, total) if rank.is_extreme else 0
        taken = taken if rank.below else -taken
        low = rank.below * below - rank.above * (here + beyond) - taken
        high = rank.above * beyond - rank.below * (below + here) + taken
        losses: Whole = np.maximum(np.maximum(low, high), 0)
        return losses


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Neighbouring values of one loss: the first one, how many they are, and the loss."""

    firsts: Whole
    sizes: Whole
    losses: Whole


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


CellMechanism = AddedNoise | RankChoice | Picking
