"""means: estimates one release from several others, weighted by the inverse of their variances.

Rule 1: each release is used once, so that the noises are independent.
Rule 2: the weights are those of the least exact group. They depend on plans and keys, never on noisy values. Groups
with fewer cells have less variance than announced.

Guarantee: none is needed: what is weighed is released already.
Assumes: the cells of the parts add up to those of what is asked, as `derivation` finds.
Reference: Hay et al., Boosting the Accuracy of Differentially Private Histograms, 2010, section 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf, log, sqrt

from dpsql.compiler.aggregates.base import ColumnError
from dpsql.compiler.canonical.descriptions import ReleaseDescription
from dpsql.compiler.derivation.derivation import CellError, Derivation
from dpsql.compiler.plan.query_plan import CompiledQuery, DerivedCells, HeldRelease, MergedGroups, PlannedRelease
from dpsql.gateway.merged_groups import Ints
from dpsql.privacy.mechanisms import AddedNoise, DiscreteGaussian, combined

_MISSED = 0.05
"""The share of 95 % intervals that may miss the truth."""
ROUNDING = Fraction(1, 4)
"""The greatest squared error of rounding a mean to an integer."""


@dataclass(frozen=True)
class MeanPart:
    """A release whose cells add up to those of another one, and how exactly.

    Attributes:
        release: The release: one that the user has, or one that is bought.
        description: Its description.
        noises: The noise of its cells.
        found: How its cells are added up.
        terms: For each cell, the most cells that are added up.
        groups: The numbers of its groups and of those of the other release.
        errors: The error of each cell: derived, and in a full release.
        number: Its number in the ledger; None if it is not bought yet.
        merged: Other releases of the same groups, from which its cells are estimated before they are added up, and the
            places of its groups there.
    """

    release: HeldRelease | PlannedRelease
    description: ReleaseDescription
    noises: tuple[AddedNoise, ...]
    found: Derivation
    terms: tuple[int, ...]
    groups: tuple[int, int]
    errors: tuple[tuple[CellError, CellError], ...]
    number: int | None = None
    merged: tuple[tuple[MergedGroups, Ints], ...] = field(default=(), compare=False, repr=False)

    @property
    def sources(self) -> tuple[HeldRelease | PlannedRelease, ...]:
        """The releases whose noise is in its cells."""
        return (self.release, *(each.source for each, _ in self.merged))

    def laws(self, cell: int) -> tuple[AddedNoise, ...]:
        """The noises that are added up for a cell."""
        place = self.found.places[cell]
        if place is None:
            return ()
        told = ((each, each.place(self.description.cells[place])) for each, _ in self.merged)
        return (self.noises[place], *(each.noises[other] for each, other in told if other is not None))

    def derived(self, width: int) -> DerivedCells:
        """How the cells of a release with this number of keys are computed from its cells."""
        variances = tuple(mine.noise for mine, _ in self.errors)
        found = self.found
        told = self.description, self.noises, tuple(each for each, _ in self.merged)
        return DerivedCells(self.release, found.cells, found.domain, width, found.places, self.terms, variances, *told)


@dataclass(frozen=True)
class Mean:
    """An estimate of one release from several others.

    Attributes:
        parts: These releases.
        leaves_out: Whether the user has more of them.
    """

    parts: tuple[MeanPart, ...]
    leaves_out: bool = False

    @property
    def sources(self) -> tuple[HeldRelease | PlannedRelease, ...]:
        """The releases whose noise is in it."""
        return tuple(source for part in self.parts for source in part.sources)

    @property
    def bought(self) -> "Mean | None":
        """The bought releases only; None if there are none, or if there are no others."""
        bought = self.only(part for part in self.parts if isinstance(part.release, PlannedRelease))
        return bought if 0 < len(bought.parts) < len(self.parts) else None

    def only(self, parts: Iterable[MeanPart]) -> "Mean":
        """Return the mean of some of its releases."""
        kept = tuple(parts)
        return Mean(kept, self.leaves_out or len(kept) < len(self.parts))

    @property
    def errors(self) -> tuple[tuple[CellError, CellError], ...]:
        """The error of each cell, and its error in a full release."""
        found = []
        for pairs in zip(*(part.errors for part in self.parts), strict=True):
            noise = 1 / sum(1 / mine.noise for mine, _ in pairs) + (ROUNDING if len(pairs) > 1 else 0)
            anew = min((anew for _, anew in pairs), key=lambda each: each.whole)
            found.append((CellError(noise, max(mine.bias for mine, _ in pairs)), anew))
        return tuple(found)

    @property
    def worst(self) -> Fraction:
        """The largest ratio of a cell's squared error to that in a full release."""
        return max((mine.whole / anew.whole for mine, anew in self.errors), default=Fraction(0))

    def dearer(self, enough: Fraction) -> Fraction | None:
        """Return how many times as precise its noise must be; None if what bounds drop is too much at any precision.

        Args:
            enough: The largest ratio of a cell's squared error to that in a full release.
        """
        rooms = [(mine.noise, enough * anew.whole - mine.bias) for mine, anew in self.errors]
        return None if any(room <= 0 for _, room in rooms) else max(noise / room for noise, room in rooms)

    def lacks(self, enough: Fraction) -> Fraction:
        """Return the sum over cells by which the ratio of squared errors exceeds `enough`.

        One release counts as rounded like a mean: several may be worth it although two are not.
        """
        rounding = Fraction(0) if len(self.parts) > 1 else ROUNDING
        ratios = ((mine.whole + rounding) / anew.whole for mine, anew in self.errors)
        return sum((max(ratio - enough, Fraction(0)) for ratio in ratios), Fraction(0))

    @property
    def missing(self) -> tuple[Fraction, ...]:
        """For each cell, the part of its price that buys a release so that the mean is as exact as a full release."""
        parts = []
        for mine, anew in self.errors:
            room = anew.whole - mine.bias - ROUNDING
            part = anew.noise * (1 / room - 1 / mine.noise) if room > 0 else Fraction(1)
            parts.append(min(max(part, Fraction(0)), Fraction(1)))
        return tuple(parts)

    def of(self, planned: PlannedRelease) -> PlannedRelease:
        """The release computed from the parts, with the noise of their mean."""
        primitives = []
        for place, (each, (mine, _)) in enumerate(zip(planned.primitives, self.errors, strict=True)):
            noises = [noise for part in self.parts for noise in part.laws(place)]
            primitives.append(replace(each, noise=combined(noises, mine.noise)))
        derived = tuple(part.derived(planned.keys) for part in self.parts)
        return replace(planned, primitives=tuple(primitives), derived=derived, leaves_out=self.leaves_out)


def always_valid(query: CompiledQuery, error: ColumnError) -> float | None:
    """Return half an interval that holds in 95 % of cases for any number of repetitions; None if it is unknown.

    Let vᵢ be the variances of the n releases that are combined, I = Σ1/vᵢ and τ = 1/v₁, that of the first one drawn.
    Then |Σ(yᵢ − x)/vᵢ| is at most √((I + τ)·ln((I + τ)/(τ·0.05²))) for all n at once with a probability of 95 %.

    Guarantee: none is needed: plans alone decide.
    Assumes: each price was set before its noise was drawn, all releases that tell of a cell are in its mean, and noise
        is discrete Gaussian, whose tails are no heavier than a Gaussian's (Canonne, Kamath & Steinke 2020).
    Reference: Robbins, Statistical Methods Related to the Law of the Iterated Logarithm, 1970.
    """
    planned = query.releases[error.release]
    if len(planned.derived) < 2 or planned.leaves_out or query.histories or error.stderr is None:
        return None
    if any(each.merged for each in planned.derived):
        return None  # estimates weigh each cell of a release by itself
    cell = error.estimate.cells[0]
    if not isinstance(planned.primitives[cell].noise, DiscreteGaussian):
        return None
    told = (each for each in planned.derived if each.places[cell] is not None)
    first = min(told, key=lambda each: each.source.number if isinstance(each.source, HeldRelease) else inf)
    gained = float(first.variances[cell] * sum(1 / each.variances[cell] for each in planned.derived))
    return sqrt((1 + 1 / gained) * log((1 + gained) / _MISSED**2)) * error.stderr
