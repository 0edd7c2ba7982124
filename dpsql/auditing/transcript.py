"""transcript: the releases of a trial on two neighbours, their distributions, noise and privacy loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsql.auditing import laws
from dpsql.auditing.draws import Cells, Drawable, places_of
from dpsql.auditing.laws import MOST, NOTHING, Floats, Masses
from dpsql.backends import ExactCells
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.gateway.release import counted
from dpsql.privacy.exponential_mechanism import Picking, RankChoice
from dpsql.privacy.mechanisms import added
from dpsql.privacy.selection import GaussianThreshold, Threshold, TruncatedGeometric


@dataclass(frozen=True)
class Pair:
    """One release on two neighbouring databases.

    Attributes:
        sides: Its exact cells with the unit and without it.
        groups: The group keys of each unit; empty if all rows belong to one trial.
    """

    sides: tuple[Drawable, Drawable]
    groups: Sequence[Sequence[object]]

    @property
    def planned(self) -> PlannedRelease:
        """The planned release."""
        return self.sides[0].planned

    @property
    def adds_noise(self) -> bool:
        """Whether noise is added to all cells, as `losses` requires; cells of rank choices and top-k have no noise."""
        return not any(isinstance(each.noise, RankChoice | Picking) for each in self.planned.primitives)

    @property
    def width(self) -> int:
        """The number of drawn cells per group."""
        return self.planned.private_keys + len(self.planned.primitives)

    def law(self) -> Masses:
        """Return the distribution of the first unit's groups on both sides; all units are alike."""
        picking = self.planned.primitives[0].noise if self.planned.primitives else None
        if isinstance(picking, Picking):
            return laws.merged(np.stack([laws.picked(picking, self._scores(side.exact)) for side in self.sides]))
        units, cells = (np.stack(each)[:, 0] for each in zip(*map(self._exact, self.sides), strict=True))
        return reduce(laws.together, (self._of_group(units[:, g], cells[:, g]) for g in range(units.shape[1])))

    def losses(self, drawn: Cells) -> Cells:
        """Return the privacy loss of what was released, draws × units.

        Guarantee: it is the logarithm of the likelihood ratio if the noise is that of the plan. Losses of cells add up
            because their noise is independent.
        Reference: Dwork & Roth 2014, section 3.5.1.

        Args:
            drawn: Draws × units × groups × cells, as of `Drawable.drawn`.
        """
        sides = [self._exact(side) for side in self.sides]
        kept = [self._kept(*side) for side in sides]
        shown = [units > 0 for units, _ in sides] if isinstance(self.planned.selection, Threshold) else kept
        total = np.broadcast_to(laws.log_ratio(*shown), drawn.shape[:3]).copy()
        for place, primitive in enumerate(self.planned.primitives):
            noisy, noise = drawn[..., self.planned.private_keys + place], added(primitive.noise)
            one, other = (laws.log_mass(noise, noisy - cells[..., place].astype(np.float64)) for _, cells in sides)
            total += one - other
        hidden = laws.log_ratio(*(1 - each for each in kept))
        found: Cells = np.where(np.isnan(drawn).any(axis=3), hidden, np.clip(total, -MOST, MOST)).sum(axis=2)
        return found

    def _exact(self, side: Drawable) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The number of units per unit and group, and the cells of these groups; 0 for missing groups."""
        places = places_of(side.exact.keys[0], self.groups) if self.groups else np.zeros((1, 1), dtype=np.intp)
        cells = [np.append(cell.astype(object), 0)[places] for cell in side.exact.cells]
        return np.append(side.exact.units, 0)[places], np.stack([*cells, places], axis=-1)[..., :-1]

    def _scores(self, exact: ExactCells) -> NDArray[np.int64]:
        """The scores of the first unit's candidates, sorted by name."""
        lists = self.planned.contribution.lists
        rows = np.flatnonzero(exact.keys[lists[0]] == str(self.groups[0][0])) if lists else range(len(exact.units))
        names = {tuple(str(key[row]) for key in exact.keys): row for row in rows}
        return np.array([exact.cells[0][names[name]] for name in sorted(names)])

    def _of_group(self, units: NDArray[np.int64], cells: NDArray[Any]) -> Masses:
        """The distribution of one group's cells on both sides, from its exact cells."""
        selection, shown = self.planned.selection, NOTHING
        for place, primitive in enumerate(self.planned.primitives):
            if isinstance(primitive.noise, RankChoice):
                one, other = map(counted, cells[:, place])
                law = laws.chosen(primitive.noise, one, other)
            else:
                is_cut = isinstance(selection, Threshold) and place == self.planned.threshold_primitive
                cutoff = selection.cutoff if isinstance(selection, Threshold) and is_cut else None
                one, other = cells[:, place]
                law = laws.noisy(added(primitive.noise), one, other, cutoff)
            shown = laws.together(shown, law)
        if selection is None:
            return shown
        shown = shown * (units > 0 if isinstance(selection, Threshold) else self._kept(units, cells))[:, None]
        return laws.merged(np.hstack([shown, 1 - shown.sum(axis=1, keepdims=True)]))

    def _kept(self, units: NDArray[np.int64], cells: NDArray[Any]) -> Floats:
        """The probability that each group is shown."""
        match self.planned.selection:
            case None:
                return np.ones(units.shape)
            case TruncatedGeometric() as table:
                kept = np.array([probability / 2**128 for probability in table.probabilities()])
                return np.asarray(kept[np.clip(units, 0, len(kept) - 1)], dtype=np.float64)
            case GaussianThreshold(noise, threshold):
                found = laws.tail(noise, threshold.cutoff - units)
            case Threshold(cutoff):
                place = self.planned.threshold_primitive or 0
                compared = cells[..., place].astype(np.int64)
                found = laws.tail(added(self.planned.primitives[place].noise), cutoff - compared)
        return np.where(units > 0, found, 0.0)


@dataclass(frozen=True)
class Transcript:
    """All releases of a trial, whose noise is independent."""

    pairs: tuple[Pair, ...] = ()

    @property
    def law(self) -> Masses:
        """The distribution of a trial on both sides."""
        return reduce(laws.together, (pair.law() for pair in self.pairs), NOTHING)

    def drawn(self, times: int) -> tuple[Cells, Cells]:
        """Draw the noise of both sides `times` times; see `Drawable.drawn`."""
        one, other = (
            np.concatenate([pair.sides[side].drawn(pair.groups, times) for pair in self.pairs], axis=3)
            for side in (0, 1)
        )
        return one, other

    def losses(self, cells: Cells) -> Cells | None:
        """Return the privacy loss of each trial, draws × units; None if some cells have no added noise."""
        if not self.pairs or not all(pair.adds_noise for pair in self.pairs):
            return None
        ends = np.cumsum([pair.width for pair in self.pairs])[:-1]
        parts = zip(self.pairs, np.split(cells, ends, axis=3), strict=True)
        total: Cells = np.sum([pair.losses(part) for pair, part in parts], axis=0)
        # Infinite losses are one value, also after finite ones are added, so that no threshold separates them.
        return np.clip(total, -MOST / 2, MOST / 2)


EMPTY = Transcript()
