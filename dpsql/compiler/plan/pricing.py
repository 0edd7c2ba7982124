"""pricing: share a query's price over its noisy primitives, and calibrate each to its share.

Rule: shares depend only on plans, never on data or on noisy numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dpsql.compiler.ir.primitives import UNITS, Contribution, Primitive
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.errors import PolicyViolation
from dpsql.privacy.cost import ZERO, Adjacency, Price, Share, proportions, split
from dpsql.privacy.exponential_mechanism import CellMechanism
from dpsql.privacy.mechanisms import added
from dpsql.privacy.selection import GaussianThreshold, Threshold, TruncatedGeometric, select, threshold_for

Selection = TruncatedGeometric | GaussianThreshold | Threshold


@dataclass(frozen=True)
class PlannedPrimitive:
    """A primitive with the noise that is added to its cells, or with the mechanism that chooses from them."""

    primitive: Primitive
    noise: CellMechanism


@dataclass(frozen=True)
class UnpricedRelease:
    """What a release draws noise for.

    Attributes:
        primitives: Its cells.
        contribution: What one unit may contribute.
        private_keys: True where data tells which groups there are.
        weights: How much the noise of each primitive is seen.
        min_units: Groups of fewer units are not shown.
        is_wide: True where it is a total of another release's cell.
    """

    primitives: tuple[Primitive, ...]
    contribution: Contribution
    private_keys: bool
    weights: tuple[Fraction, ...]
    min_units: int = 1
    is_wide: bool = False

    @property
    def selects(self) -> bool:
        """True where groups are shown only if enough units are in them."""
        return self.private_keys or self.min_units > 1


@dataclass(frozen=True)
class Calibrated:
    """What a release draws.

    Attributes:
        primitives: The cells with their noise.
        selection: Which groups are kept, by their units; None where all are.
        threshold_primitive: The primitive whose noisy cell the selection cuts off; None for a selection of its own.
    """

    primitives: tuple[PlannedPrimitive, ...]
    selection: Selection | None
    threshold_primitive: int | None


def calibrate(
    releases: Sequence[UnpricedRelease],
    price: Price,
    settings: QuerySettings,
    adjacency: Adjacency,
    wide_share: Fraction = ZERO,
    parts: Sequence[Fraction] = (),
) -> tuple[Calibrated, ...]:
    """Split a price over the noisy primitives of a query so that the visible error is least.

    Args:
        releases: The releases.
        price: What they cost together.
        settings: The mechanism that is asked for.
        adjacency: What neighbours are.
        wide_share: The part of the price for cells that tell what bounds drop.
        parts: Of each primitive, and of each selection with a share of its own, how much of its share is wanted beside
            what others want of theirs; none where all is.

    Raises:
        PolicyViolation: Private groups have no δ to be selected with.
    """
    return Pricing(price, settings, adjacency, wide_share, tuple(parts)).calibrate(releases)


def error_ratio(one: Calibrated, other: Calibrated) -> float:
    """How many times as large the announced error of the same cells is, where it is largest, drawn one way and another.

    What selection announces is the size of group that is likely to be shown.
    """
    pairs = zip(one.primitives, other.primitives, strict=True)
    ratios = [added(mine.noise).stderr / added(theirs.noise).stderr for mine, theirs in pairs]
    if one.selection is not None and other.selection is not None:
        ratios.append(_shown(one.selection) / _shown(other.selection))
    return max(ratios, default=1.0)


def _shown(selection: Selection) -> int:
    return selection.cutoff if isinstance(selection, Threshold) else selection.smallest_likely


@dataclass(frozen=True)
class Pricing:
    """Calibrates the releases of one query.

    Attributes:
        price: What the query costs.
        settings: The mechanism that is asked for.
        adjacency: What neighbours are.
        wide_share: The part of the price for cells that tell what bounds drop.
        parts: How much of its share each primitive gets; none where all get all.
    """

    price: Price
    settings: QuerySettings
    adjacency: Adjacency
    wide_share: Fraction
    parts: tuple[Fraction, ...] = ()

    def calibrate(self, releases: Sequence[UnpricedRelease]) -> tuple[Calibrated, ...]:
        """Give every primitive its share, in order."""
        needs = [(release, self._selects(release)) for release in releases]
        noise_delta = Fraction(self._converts and self.settings.mechanism != "laplace")
        deltas: list[Fraction] = []
        for release, selects in needs:
            deltas += [noise_delta] * len(release.primitives) + [Fraction(1)] * selects
            if release.selects and not selects:
                deltas[-1] = Fraction(1)
        shares = tuple(share for each in self._shares(releases) for share, _ in each)
        if self.parts:
            shares = tuple(share * part for share, part in zip(shares, self.parts, strict=True))
        parts = split(self.price, shares, deltas) if shares else ()
        calibrated = []
        for release, selects in needs:
            count = len(release.primitives) + selects
            calibrated.append(self._calibrated(release, parts[:count]))
            parts = parts[count:]
        return tuple(calibrated)

    def wide_share_of(self, releases: Sequence[UnpricedRelease], place: int) -> Fraction:
        """The part of one release's price that is for cells that tell what bounds drop; all of it for a wide total."""
        shares = self._shares(releases)[place]
        apart = sum((share for share, is_apart in shares if is_apart), ZERO)
        return apart / sum(share for share, _ in shares) if apart else ZERO

    def _shares(self, releases: Sequence[UnpricedRelease]) -> list[list[tuple[Fraction, bool]]]:
        """The shares of each release's primitives and selection, and whether they tell what bounds drop."""
        weights: list[Fraction] = []
        apart: list[list[bool]] = []
        for release in releases:
            selects = self._selects(release)
            weights += [*self._weights(release, selects), *[Fraction(1)] * selects]
            own = [release.is_wide or primitive.sampled for primitive in release.primitives]
            apart.append(own + [release.is_wide] * selects)
        parts = iter(self._proportions(weights, [each for own in apart for each in own]) if weights else ())
        return [[(next(parts), each) for each in own] for own in apart]

    @property
    def _converts(self) -> bool:
        return self.price.accountant.converts

    def _selects(self, release: UnpricedRelease) -> bool:
        """True where the selection has a share of its own.

        Where Gaussians convert, a primitive spends the δ of its share, so there a selection always has one.
        """
        return release.selects and (self._converts or UNITS not in release.primitives)

    def _proportions(self, weights: Sequence[Fraction], apart: Sequence[bool]) -> tuple[Fraction, ...]:
        """The answer's primitives share most of the price; wide totals have a separate part, unless they are alone."""
        if all(apart):
            return proportions(self.price.accountant, weights)
        seen = [weight for weight, is_apart in zip(weights, apart, strict=True) if not is_apart]
        shared = iter(proportions(self.price.accountant, seen))
        parts = [ZERO if is_apart else next(shared) for is_apart in apart]
        each = sum(parts, ZERO) * self.wide_share / (1 - self.wide_share) / max(1, sum(apart))
        return tuple(each if is_apart else part for part, is_apart in zip(parts, apart, strict=True))

    @staticmethod
    def _weights(release: UnpricedRelease, selects: bool) -> list[Fraction]:
        """How much each primitive matters; a count that decides which groups there are is seen in that, too."""
        decides = release.selects and not selects
        pairs = zip(release.primitives, release.weights, strict=True)
        return [weight + 1 if decides and primitive == UNITS else weight for primitive, weight in pairs]

    def _calibrated(self, release: UnpricedRelease, shares: tuple[Share, ...]) -> Calibrated:
        primitives = tuple(
            PlannedPrimitive(
                primitive, primitive.noise(release.contribution, self.adjacency, share, self.settings.mechanism)
            )
            for primitive, share in zip(release.primitives, map(self._for_noise, shares), strict=False)
        )
        if not release.selects:
            return Calibrated(primitives, None, None)
        return Calibrated(primitives, *self._selection(release, primitives, shares))

    def _for_noise(self, share: Share) -> Share:
        return share if self._converts else replace(share, delta=ZERO)

    def _selection(
        self, release: UnpricedRelease, primitives: tuple[PlannedPrimitive, ...], shares: tuple[Share, ...]
    ) -> tuple[Selection, int | None]:
        share = shares[-1]
        if share.delta == 0 and not release.private_keys:
            raise PolicyViolation(
                f"delta is 0, and groups of fewer than {release.min_units} units, which are not shown, need one",
                hint="Run SET dpsql.delta = 1e-9",
            )
        if share.delta == 0:
            raise PolicyViolation(
                "cannot group by private keys when delta is 0",
                hint=("Run SET dpsql.delta = 1e-9, or g" if self.price.accountant.selects else "G")
                + "roup by a column whose domain the policy declares.",
            )
        groups = release.contribution.groups_per_unit
        if self.adjacency is Adjacency.SUBSTITUTE:
            groups *= 2
        if len(shares) == len(primitives):
            index = release.primitives.index(UNITS)
            return threshold_for(added(primitives[index].noise), groups, share.delta), index
        return select(groups, share), None
