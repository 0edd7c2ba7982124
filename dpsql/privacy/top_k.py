"""Picking the first few of a list of candidates by a score, one after another, without telling the scores.

Rule 1: what is picked from is the whole list, which is public: a candidate of nobody is one among others.
Rule 2: scores are integers, and a candidate is picked with exactly the probability that the law gives it.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpsql.privacy import sampling
from dpsql.privacy.conversion import UP, decimal, ln, root_up
from dpsql.privacy.cost import Accountant, Event, Mechanism, Share
from dpsql.privacy.exact import check_whole
from dpsql.privacy.mechanisms import modest_up
from dpsql.privacy.sampling import MIN_SCALE
from dpsql.privacy.sensitivity import Adjacency, Sensitivity, cell_sensitivity

_MISSED = Fraction(1, 20)
_FARTHEST = 2**60
"""Scores beyond it are not told apart, so that twice their distance is a 64-bit integer."""


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
        """Pick one candidate by losses of which the least is 0."""
        if self.flips:
            return sampling.permute_and_flip(losses, self.scale)
        values, inverse, sizes = np.unique(losses, return_inverse=True, return_counts=True)
        found = sampling.exponential(values.tolist(), sizes.tolist(), self.scale)
        alike = np.flatnonzero(inverse == found)
        return int(alike[sampling.below(alike.size)])


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
    """Tell whether so many picks know scores better than noise on all of them would at the same price.

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
