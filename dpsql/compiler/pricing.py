"""pricing: share a query's price over its noisy primitives, and calibrate each to its share.

Rule: shares depend on the plan alone, never on data or on what was released before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dpsql.compiler.parts import UNITS, Contribution, Part, PartKind
from dpsql.compiler.settings import QuerySettings
from dpsql.errors import PolicyViolation
from dpsql.privacy.choice import RankChoice, rank_choice
from dpsql.privacy.cost import ZERO, Price, Share, split
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, best, gaussian, laplace
from dpsql.privacy.picking import Picking, picking, picking_sensitivity
from dpsql.privacy.selection import GaussianThreshold, Threshold, TruncatedGeometric, select, threshold_for
from dpsql.privacy.sensitivity import Adjacency, Sensitivity, cell_sensitivity, row_sensitivity
from dpsql.privacy.shares import proportions

Noise = DiscreteLaplace | DiscreteGaussian | RankChoice | Picking
Selection = TruncatedGeometric | GaussianThreshold | Threshold


@dataclass(frozen=True)
class PlannedPart:
    """A part with the noise that is added to its cells, or with the choice that is made of them."""

    part: Part
    noise: Noise


@dataclass(frozen=True)
class Unpriced:
    """What a release draws noise for.

    Attributes:
        parts: Its cells.
        contribution: What one unit may contribute.
        private_keys: True where its groups have to be selected.
        weights: How much the noise of each part is seen.
    """

    parts: tuple[Part, ...]
    contribution: Contribution
    private_keys: bool
    weights: tuple[Fraction, ...]


@dataclass(frozen=True)
class Calibrated:
    """What a release draws.

    Attributes:
        parts: The cells with their noise.
        selection: How private groups are kept; None where all groups are public.
        threshold_part: The part whose noisy cell the selection cuts off; None for a selection of its own.
    """

    parts: tuple[PlannedPart, ...]
    selection: Selection | None
    threshold_part: int | None


def calibrate(
    releases: Sequence[Unpriced],
    price: Price,
    settings: QuerySettings,
    adjacency: Adjacency,
    bias_share: Fraction = ZERO,
) -> tuple[Calibrated, ...]:
    """Split a price over all noisy primitives of all releases of a query, so that the error that is seen is least.

    Raises:
        PolicyViolation: Private groups have no δ to be selected with.
    """
    return Pricing(price, settings, adjacency, bias_share).calibrate(releases)


def error_ratio(one: Calibrated, other: Calibrated) -> float:
    """How many times as large the announced error of the same cells is, where it is largest, drawn one way and another.

    What selection announces is the size of group that is likely to be shown.
    """
    pairs = zip(one.parts, other.parts, strict=True)
    ratios = [_stderr(mine.noise) / _stderr(theirs.noise) for mine, theirs in pairs]
    if one.selection is not None and other.selection is not None:
        ratios.append(_shown(one.selection) / _shown(other.selection))
    return max(ratios, default=1.0)


def _stderr(noise: Noise) -> float:
    if isinstance(noise, RankChoice | Picking):
        raise TypeError("a value that is chosen has no standard error")
    return noise.stderr


def _shown(selection: Selection) -> int:
    return selection.cutoff if isinstance(selection, Threshold) else selection.smallest_likely


@dataclass(frozen=True)
class Pricing:
    """Calibrates the releases of one query.

    Attributes:
        price: What the query costs.
        settings: The mechanism that is asked for.
        adjacency: What neighbours are.
        bias_share: The part of the price for counts of what bounding cuts.
    """

    price: Price
    settings: QuerySettings
    adjacency: Adjacency
    bias_share: Fraction

    def calibrate(self, releases: Sequence[Unpriced]) -> tuple[Calibrated, ...]:
        """Give every primitive its share, in order."""
        needs = [(release, self._selects(release)) for release in releases]
        noise_delta = Fraction(self._converts and self.settings.mechanism != "laplace")
        weights: list[Fraction] = []
        cuts: list[bool] = []
        deltas: list[Fraction] = []
        for release, selects in needs:
            weights += [*self._weights(release, selects), *[Fraction(1)] * selects]
            cuts += [*(part.kind is PartKind.CUT for part in release.parts), *[False] * selects]
            deltas += [noise_delta] * len(release.parts) + [Fraction(1)] * selects
            if release.private_keys and not selects:
                deltas[-1] = Fraction(1)
        parts = split(self.price, self._proportions(weights, cuts), deltas) if weights else ()
        calibrated = []
        for release, selects in needs:
            count = len(release.parts) + selects
            calibrated.append(self._calibrated(release, parts[:count]))
            parts = parts[count:]
        return tuple(calibrated)

    @property
    def _converts(self) -> bool:
        return self.price.accountant.converts

    def _selects(self, release: Unpriced) -> bool:
        """True where the selection has a share of its own.

        Where Gaussians convert, a part spends the δ of its share, so there a selection always has one.
        """
        return release.private_keys and (self._converts or UNITS not in release.parts)

    def _proportions(self, weights: Sequence[Fraction], cuts: Sequence[bool]) -> tuple[Fraction, ...]:
        """What is seen in the answer shares most of the price; counts of what bounding cuts have a part set apart."""
        seen = [weight for weight, cut in zip(weights, cuts, strict=True) if not cut]
        shared = iter(proportions(self.price.accountant, seen))
        parts = [ZERO if cut else next(shared) for cut in cuts]
        each = sum(parts, ZERO) * self.bias_share / (1 - self.bias_share) / max(1, sum(cuts))
        return tuple(each if cut else part for part, cut in zip(parts, cuts, strict=True))

    @staticmethod
    def _weights(release: Unpriced, selects: bool) -> list[Fraction]:
        """How much each part matters; a count that decides which groups there are is seen in that, too."""
        decides = release.private_keys and not selects
        pairs = zip(release.parts, release.weights, strict=True)
        return [weight + 1 if decides and part == UNITS else weight for part, weight in pairs]

    def _calibrated(self, release: Unpriced, shares: tuple[Share, ...]) -> Calibrated:
        parts = tuple(
            PlannedPart(part, self._noise(part, release.contribution, share))
            for part, share in zip(release.parts, shares, strict=False)
        )
        if not release.private_keys:
            return Calibrated(parts, None, None)
        return Calibrated(parts, *self._selection(release, parts, shares))

    def _noise(self, part: Part, contribution: Contribution, share: Share) -> Noise:
        share = share if self._converts else replace(share, delta=ZERO)
        if part.places is not None:
            touched = picking_sensitivity(
                self.adjacency,
                part.places,
                lists=contribution.max_groups,
                lower=part.lower,
                upper=part.upper,
                grouped=contribution.grouped,
            )
            return picking(touched, share, part.places)
        sensitivity = self._sensitivity(part, contribution)
        if part.rank is not None and part.grid is not None:
            return rank_choice(sensitivity, share, part.rank, part.grid.lower, part.grid.upper)
        if self.settings.mechanism == "laplace":
            return laplace(sensitivity, share)
        if self.settings.mechanism == "gaussian":
            return gaussian(sensitivity, share)
        return best(sensitivity, share)

    def _sensitivity(self, part: Part, contribution: Contribution) -> Sensitivity:
        """How far one unit moves a part's cells; rows may be limited over all groups together, units are in each."""
        groups, grouped = contribution.max_groups, contribution.grouped
        rows = contribution.max_rows if contribution.copied else contribution.all_rows
        if rows is None or part.counts_units:
            return cell_sensitivity(self.adjacency, l0=groups, lower=part.lower, upper=part.upper, grouped=grouped)
        return row_sensitivity(
            self.adjacency,
            l0=groups,
            rows=rows,
            per_cell=part.cap,
            lower=part.lower // part.cap,
            upper=part.upper // part.cap,
            grouped=grouped,
        )

    def _selection(
        self, release: Unpriced, parts: tuple[PlannedPart, ...], shares: tuple[Share, ...]
    ) -> tuple[Selection, int | None]:
        share = shares[-1]
        if share.delta == 0:
            raise PolicyViolation(
                "these group keys are private, and the query has no delta to select groups with",
                hint=("SET dpsql.delta = 1e-9, or g" if self.price.accountant.selects else "G")
                + "roup by a column whose values the policy declares.",
            )
        groups = release.contribution.max_groups
        if self.adjacency is Adjacency.SUBSTITUTE:
            groups *= 2
        if len(shares) == len(parts):
            index = release.parts.index(UNITS)
            noise = parts[index].noise
            if isinstance(noise, RankChoice | Picking):
                raise TypeError("units are counted with noise")
            return threshold_for(noise, groups, share.delta), index
        return select(groups, share), None
