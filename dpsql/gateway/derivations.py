"""derivations: answers a query from releases that the user has; a cheaper release is bought where these are not enough.

Rule 1: cells are derived only from releases that the ledger has given to this user. They are computed for each query
from raw cells and are not stored; another user with the same query pays for a release.
Rule 2: the choice depends on keys, noise distributions and the expected share of dropped rows, never on noisy values.
A choice by values would be biased, and intervals would cover less than they claim.
Rule 3: a bought release is planned, verified, charged and stored like any other release.

Guarantee: none is needed: the user is told a function of what the user was told before, and of what is charged now.
Assumes: the ledger hands the releases out once more, free, with the record that says so, before a cell of them is used.
Reference: Dwork & Roth 2014, proposition 2.1, for post-processing.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from functools import cached_property
from math import ceil, sqrt

from dpsql.backends.backend import Cancellation
from dpsql.compiler.canonical.descriptions import ReleaseDescription
from dpsql.compiler.derivation.derivation import (
    Derivation,
    derivation,
    errors,
    may_answer,
    merges_sums,
    wider,
    with_merged_groups,
)
from dpsql.compiler.ir.nodes import Expr
from dpsql.compiler.plan.query_plan import CompiledQuery, HeldRelease, MergedGroups, OtherRelease, PlannedRelease
from dpsql.compiler.scope.tables import Catalog
from dpsql.errors import Error, GuaranteeMismatch, InvalidParameter, LimitExceeded
from dpsql.gateway.caches import LruCache
from dpsql.gateway.histories import ToldRelease, with_histories
from dpsql.gateway.means import ROUNDING, Mean, MeanPart
from dpsql.gateway.merged_groups import (
    Ints,
    SumsOfGroups,
    fits,
    groups_of,
    least_squares,
    merged_places,
    sums_of_groups,
)
from dpsql.gateway.prices import request
from dpsql.gateway.release import PostProcessor, ReleasedCells, StoredRelease, stored_release
from dpsql.ledger import HandedRelease, Ledger, NotHeld
from dpsql.privacy.accounting import Spent
from dpsql.privacy.conversion import decimal
from dpsql.privacy.cost import Price
from dpsql.privacy.mechanisms import added, combined, variance

_MOST_RELEASES = 300
"""Releases of a family that are looked at: the newest."""
_MOST_LOOKED_AT = 30
"""Descriptions of them of which it is found out whether they answer the one that is asked: the most exact ones."""
_MOST_TRIED = 12
"""Releases whose groups are counted for one that is asked."""
_MOST_GROUPS = 300_000
"""Groups that these may have together, which bounds the time that it takes."""
_MOST_ADDED_UP = 30
"""Releases of a family that are made to add up: the newest, with no more groups than these."""
_MOST_COMBINED = 8
"""Releases that are combined for one that is asked."""
_MOST_EXTENDED = 6
"""Those to which a bought one is added: fewer, so that what was enough is still found when others have come."""
_MOST_ESTIMATED = 2000
"""Groups of a release that is estimated from others of the same groups, which bounds the time that it takes."""
_MOST_MERGED = 300
"""Merged groups of all these others, which bounds the time, too."""
_MOST_MERGED_BY_ONE = 100
"""Merged groups of one of them: one with more would take the places of many."""
_SOME_OTHERS = (10, 30, 100)
"""How many of them are used: the first number that is enough."""
_LEAST_PART = Fraction(1, 20)
"""The least part of a price that is paid for what is missing: little more exactness is bought often otherwise."""
_STEPS = 1000
"""Parts of shares are multiples of one over this."""
_MOST_KNOWN = 10_000
"""Releases that are remembered, and users."""
_PRICES_TRIED = 3
"""So many prices, from the least that seems enough on, are tried for what is bought."""
_PRICES = Context(prec=3, rounding=ROUND_CEILING)
"""Prices of three digits: few enough that a question asked again has the price that it had."""


@dataclass(frozen=True)
class _Handed:
    """The releases that a user has: the last one, and the newest ones of each family in ascending order."""

    last: HandedRelease | None = None
    families: Mapping[str, tuple[HandedRelease, ...]] = field(default_factory=dict)

    def and_then(self, more: Sequence[HandedRelease]) -> "_Handed":
        """Return these releases and later ones."""
        found: dict[str, list[HandedRelease]] = {}
        for each in more:
            found.setdefault(each.key.partition(".")[0], []).append(each)
        newest = {f: (*self.families.get(f, ()), *each)[-_MOST_RELEASES:] for f, each in found.items()}
        return _Handed(more[-1], {**self.families, **newest})


@dataclass(frozen=True)
class PlannedSource:
    """A release that is bought together with others, and the groups that it will have."""

    release: PlannedRelease
    listed: ReleasedCells

    @cached_property
    def stored(self) -> StoredRelease | None:
        """What it will say of itself; None if it answers no other release."""
        if self.release.described is None:
            return None
        return StoredRelease(self.release.described.description, self.release.events, self.groups)

    @property
    def groups(self) -> int:
        """How many groups it will have."""
        return len(self.listed.cells[0])


@dataclass(frozen=True)
class ReleaseSearch:
    """What releases are looked for with.

    Attributes:
        user: The user.
        catalog: The relations that the user may name.
        cancellation: Stops it.
        estimates: Whether cells are estimated from several releases of the same groups.
        ahead: The releases that are bought together, which count as the user's, by their keys.
    """

    user: str
    catalog: Catalog
    cancellation: Cancellation
    estimates: bool = True
    ahead: Mapping[str, PlannedSource] = field(default_factory=dict)


@dataclass(frozen=True)
class _Candidate:
    """A release that may answer another one; `number` is that of the stored one in the ledger."""

    release: HeldRelease | PlannedRelease
    stored: StoredRelease
    number: int | None

    def rank(self, asked: ReleaseDescription) -> tuple[int, float]:
        """Candidates are tried in ascending order: those with more of the cells first, then those with less noise."""
        told = [self.stored.variances[text] for text in asked.cell_texts if text in self.stored.variances]
        return len(asked.cell_texts) - len(told), sum(told)


@dataclass(frozen=True)
class Derivations:
    """Finds releases from which a query can be derived.

    Attributes:
        ledger: The record of releases and their users.
        post: Counts the cells that are added up.
        handed: By user, the releases that the ledger is known to have given to the user.
        stored: The stored releases with their descriptions, by number.
        terms: The most cells that are added up for one cell, and the number of groups that result.
        groups: The places of a release's groups among those of another one that merges some of them.
    """

    ledger: Ledger
    post: PostProcessor
    handed: LruCache[_Handed] = field(default_factory=lambda: LruCache(_MOST_KNOWN))
    stored: LruCache[_Candidate] = field(default_factory=lambda: LruCache(_MOST_KNOWN))
    terms: LruCache[tuple[tuple[int, ...], int]] = field(default_factory=lambda: LruCache(_MOST_KNOWN))
    groups: LruCache[Ints] = field(default_factory=lambda: LruCache(_MOST_KNOWN // 10))

    def derived(self, search: ReleaseSearch, query: CompiledQuery) -> CompiledQuery | None:
        """Rewrite a query over releases that the user has, and over bought ones where the error requires it.

        Args:
            search: Who asks, and which releases count as the user's.
            query: The planned query.

        Returns:
            The query; None if everything that the user lacks must be released in full.
        """
        enough = query.max_error_ratio**2
        if not enough:
            return None
        # Errors of several estimates depend on each other.
        alone = not query.combines_cells and not query.sums
        search = replace(search, estimates=search.estimates and alone)
        held = self.held(search, query.releases)
        means = {
            place: self._mean(search, planned, enough)
            for place, planned in enumerate(query.releases)
            if not held[place]
        }
        lacking = [place for place, mean in means.items() if mean is None or mean.worst > enough]
        if lacking and any(planned.inputs for planned in query.releases):
            return None  # a release with other releases as inputs is given out together with these only
        means = _with_noise_of_their_own(query, means, enough, lacking)
        bought, price = self._bought(search, query, {place: means[place] for place in lacking})
        means |= bought
        means |= _with_noise_of_their_own(query, means, min(enough, Fraction(1)))
        derived = _over(query, _derived(query, means), price)
        own = {place: mean.bought or mean for place, mean in means.items() if mean is not None}
        if derived is None or all(own[place] is means[place] for place in own):
            return derived
        return replace(derived, fresh=query.announcing(tuple(_sharing(query, _derived(query, own)))))

    def consistent(self, search: ReleaseSearch, query: CompiledQuery) -> CompiledQuery:
        """Return the query with the user's newest releases that its cells must be consistent with."""
        unread: set[str] = set()

        def told_of(family: str) -> list[ToldRelease]:
            handed = self._handed(search, family)
            told, older = self._told(search.user, handed)
            unread.update(each.key for each in older)
            return told

        found = with_histories(query, told_of, search.catalog, search.cancellation)
        return replace(found, unread=len(unread - {source.key for source in query.sources}))

    def held(self, search: ReleaseSearch, releases: Sequence[PlannedRelease | HeldRelease]) -> tuple[bool, ...]:
        """Tell which releases the user has, or will have with those that are bought ahead."""
        held = self.ledger.held(search.user, search.catalog.policy, [request(planned) for planned in releases])
        return tuple(has or each.key in search.ahead for has, each in zip(held, releases, strict=True))

    def dearer(
        self, search: ReleaseSearch, planned: PlannedRelease, source: PlannedSource, enough: Fraction
    ) -> Fraction | None:
        """How many times as precise a source must be for a release to be derived of it alone.

        Args:
            search: Who asks.
            planned: The release.
            source: The source.
            enough: The largest ratio of a cell's squared error to that in a full release.

        Returns:
            The ratio of precisions; None if the source does not answer the release.
        """
        stored, alone = source.stored, replace(search, ahead={source.release.key: source})
        if stored is None:
            return None
        found = next(self._sources(alone, planned, [_Candidate(source.release, stored, None)]), None)
        return None if found is None else Mean((found,)).dearer(enough)

    # What the user has

    def _mean(self, search: ReleaseSearch, planned: PlannedRelease, enough: Fraction) -> Mean | None:
        """An estimate of a release from as few of the user's releases as are needed; None if none is suitable."""
        candidates = self._candidates(search, planned)
        found = self._mean_of(search, planned, candidates, enough)
        if found is None or found.worst <= enough:
            return found
        return self._bought_before(search, planned, candidates, enough) or found

    def _bought_before(
        self, search: ReleaseSearch, planned: PlannedRelease, candidates: Sequence[_Candidate], enough: Fraction
    ) -> Mean | None:
        """A mean that was exact enough when one of its releases was bought; None without any.

        Later releases may take the places of those that it is made of. So they are left out.
        """
        owned = [(each.release.number, each) for each in candidates if isinstance(each.release, HeldRelease)]
        bought = (number for number, each in owned if _may_be_bought_for(planned, each))
        for last in sorted(bought, reverse=True)[:_MOST_TRIED]:
            search.cancellation.check()
            earlier = [each for number, each in owned if number <= last]
            made = self._mean_of(search, planned, earlier, enough)
            if made is not None and made.worst <= enough:
                return replace(made, leaves_out=True)
        return None

    def _mean_of(
        self, search: ReleaseSearch, planned: PlannedRelease, candidates: Sequence[_Candidate], enough: Fraction
    ) -> Mean | None:
        """An estimate of a release from as few of some candidates as are needed; None if none is suitable."""
        rest: list[MeanPart] = []
        for each in self._sources(search, planned, candidates):
            alone = Mean((each,), leaves_out=len(candidates) > 1)
            if alone.worst <= enough:
                return alone
            rest.append(each)
        if not rest:
            return None
        found = _combined(rest, enough)
        for part in self._estimates(search, planned, rest, candidates, enough):
            if found.worst <= enough:
                break
            known = {source.key for source in part.sources}
            more = _combined([part, *(each for each in rest if each.release.key not in known)], enough)
            found = min(found, more, key=lambda mean: (mean.worst > enough, mean.lacks(enough)))
        return replace(found, leaves_out=len(found.sources) < len(candidates))

    # What several releases of the same groups tell

    def _estimates(
        self,
        search: ReleaseSearch,
        planned: PlannedRelease,
        parts: Sequence[MeanPart],
        candidates: Sequence[_Candidate],
        enough: Fraction,
    ) -> Iterator[MeanPart]:
        """Yield parts whose cells are estimated from as many releases of their groups as are needed.

        Those that merge the groups of the sums that are asked for come first, the more exact ones before others.
        """
        ranked = sorted(candidates, key=lambda each: not _merges_sums(planned, each))
        for base in parts if search.estimates else ():
            same = (each for each in ranked if fits(base.description, each.stored.description))
            others = [each for each in same if each.release.key != base.release.key]
            merges = any(each.stored.description.merges_groups for each in others)
            if base.groups[0] > _MOST_ESTIMATED or not merges:
                continue
            held = self.held(search, [each.release for each in others])
            try:
                told = _few(self._places(search, base, each) for each, has in zip(others, held, strict=True) if has)
                sums = self._sums(search, base)
            except (NotHeld, InvalidParameter, LimitExceeded):
                continue  # it is derived without the others
            made = base
            for most in _SOME_OTHERS:
                if Mean((made,)).worst > enough and len(made.merged) < len(told):
                    made = _estimated(base, sums, told[:most])
            yield made

    def _places(self, search: ReleaseSearch, base: MeanPart, other: _Candidate) -> tuple[MergedGroups, Ints]:
        """Another release of the groups of a part, and their places there.

        Raises:
            NotHeld: One of them is not stored.
        """
        pair = search.user, base.release.key, other.release.key
        told, known = other.stored.description, self.groups.get(pair)
        if known is None:
            mine = self._cells(search, base.release.key, base.number)
            known = groups_of(base.description, mine, told, self._cells(search, other.release.key, other.number))
            self.groups.put(pair, known)
        return MergedGroups(other.release, told, other.stored.noises), known

    def _sums(self, search: ReleaseSearch, base: MeanPart) -> SumsOfGroups:
        """Which groups of a part are added up.

        Raises:
            NotHeld: The release is not stored.
            InvalidParameter: As `PostProcessor.members`.
            LimitExceeded: As `PostProcessor.members`.
            QueryCanceled: As `PostProcessor.members`.
        """
        cells = self._cells(search, base.release.key, base.number)
        rows = self.post.members(base.found, cells, search.cancellation)
        return sums_of_groups(rows, cells, len(base.found.places))

    def _cells(self, search: ReleaseSearch, key: str, number: int | None) -> ReleasedCells:
        """The cells of a release that the user has; the groups of one that is bought ahead.

        Raises:
            NotHeld: The release is not stored.
        """
        if number is None:
            return search.ahead[key].listed
        return ReleasedCells.from_bytes(self.ledger.cells(search.user, number))

    # Which releases the user has

    def _sources(
        self, search: ReleaseSearch, planned: PlannedRelease, candidates: Sequence[_Candidate]
    ) -> Iterator[MeanPart]:
        """Yield the user's releases from which another one can be computed."""
        listed = tried = 0
        derivations: dict[ReleaseDescription, Derivation | None] = {}
        texts: dict[Expr, str] = {}
        for each in candidates:
            told = each.stored.description
            if told.merges_groups:
                continue  # most sums are not made of its groups alone
            if told not in derivations:
                search.cancellation.check()
                looks = len(derivations) < _MOST_LOOKED_AT
                derivations[told] = derivation(told, planned, search.catalog, texts) if looks else None
            found = derivations[told]
            if found is None:
                continue
            listed, tried = listed + each.stored.groups, tried + 1
            if listed > _MOST_GROUPS or tried > _MOST_TRIED:
                return
            if each.number is not None and not self._is_stored(search, each.release):
                continue
            try:
                terms, asked = self._most_terms(search, each.release.key, each.number, told, found)
            except (NotHeld, InvalidParameter, LimitExceeded):
                continue  # it is released in full, or derived from another one
            groups = each.stored.groups, asked
            pairs = errors(told, each.stored.noises, found, terms, planned, groups)
            if pairs is not None:
                yield MeanPart(each.release, told, each.stored.noises, found, terms, groups, pairs, each.number)

    def _is_stored(self, search: ReleaseSearch, release: HeldRelease | PlannedRelease) -> bool:
        return self.ledger.held(search.user, search.catalog.policy, [request(release)]) == (True,)

    def _candidates(self, search: ReleaseSearch, planned: PlannedRelease) -> list[_Candidate]:
        """Return the user's releases that may answer another one, in the order in which they are tried."""
        if planned.described is None:
            return []
        asked = planned.described.description
        found = [each for each in self._owned(search, asked.family) if may_answer(each.stored.description, asked)]
        return sorted(found, key=lambda each: each.rank(asked))

    def _owned(self, search: ReleaseSearch, family: str) -> Iterator[_Candidate]:
        """Yield the releases of a family that the user has, and those that are bought ahead."""
        for handed in self._handed(search, family):
            known = self._stored(search.user, handed)
            if known is not None and known.stored.has_all_noises:
                yield known
        for source in search.ahead.values():
            if source.stored is not None and source.stored.has_all_noises:
                yield _Candidate(source.release, source.stored, None)

    def _most_terms(
        self, search: ReleaseSearch, key: str, number: int | None, told: ReleaseDescription, found: Derivation
    ) -> tuple[tuple[int, ...], int]:
        """Return the most cells that are added up for one, and the number of groups, which the description determines.

        Raises:
            NotHeld: The release is not stored.
            InvalidParameter: As `PostProcessor.most_terms`.
            LimitExceeded: As `PostProcessor.most_terms`.
            QueryCanceled: As `PostProcessor.most_terms`.
        """
        user = search.user
        counted = user, told, found.terms  # for each user: the time that it takes must not reveal the queries of others
        known = self.terms.get(counted)
        if known is None:
            known = self.post.most_terms(found, self._cells(search, key, number), search.cancellation)
            self.terms.put(counted, known)
        return known

    def _handed(self, search: ReleaseSearch, family: str) -> tuple[HandedRelease, ...]:
        """Return the releases of a family that a user has; only newer ones than those known are read."""
        known = self.handed.get(search.user) or _Handed()
        more = self.ledger.handed(search.user, search.catalog.policy, known.last)
        if more:
            known = known.and_then(more)
            self.handed.put(search.user, known)
        return known.families.get(family, ())

    def _told(self, user: str, handed: Sequence[HandedRelease]) -> tuple[list[ToldRelease], Sequence[HandedRelease]]:
        """Return the newest releases whose descriptions are stored, and the older ones, which are not read."""
        told: list[ToldRelease] = []
        groups = 0
        for place in reversed(range(len(handed))):
            each = handed[place]
            known = self._stored(user, each)
            if known is None:
                continue
            groups += known.stored.groups
            if groups > _MOST_GROUPS:
                return told, handed[: place + 1]
            if known.stored.has_all_noises:
                told.append(ToldRelease(known.release, known.stored.description, known.stored.noises))
            if len(handed) - place == _MOST_ADDED_UP:
                return told, handed[:place]
        return told, ()

    def _stored(self, user: str, handed: HandedRelease) -> _Candidate | None:
        """A stored release with its description; None if it is not stored, or not yet."""
        known = self.stored.get(handed.release)
        if known is None:
            try:
                stored = stored_release(self.ledger.cells(user, handed.release))
            except NotHeld:
                return None
            known = _Candidate(HeldRelease(handed.key, stored.events, handed.number), stored, handed.release)
            self.stored.put(handed.release, known)
        return known

    # What is bought

    def _bought(
        self, search: ReleaseSearch, query: CompiledQuery, lacking: Mapping[int, Mean | None]
    ) -> tuple[dict[int, Mean | None], Price | None]:
        """Combine the user's releases with cheaper bought ones; without means if the result would be less exact.

        Returns:
            The means by the places of releases, and the price of the plan if it buys a part of every release.
        """
        if query.max_error_ratio < 1:
            return dict.fromkeys(lacking), None  # a bought release is as exact as a full one, which is not enough here
        short = {place: mean.only(mean.parts[:_MOST_EXTENDED]) for place, mean in lacking.items() if mean is not None}
        for offer in _offers(query, short, estimates=search.estimates) if len(short) == len(lacking) else ():
            found: dict[int, Mean | None] = {}
            for place, mean in short.items():
                made = self._with(search, mean, query.releases[place], offer.releases[place])
                if made is not None and made.worst <= 1:
                    found[place] = made
            if len(found) == len(lacking):
                return found, offer.price if len(found) == len(query.releases) else None
        return dict.fromkeys(lacking), None

    def _with(self, search: ReleaseSearch, mean: Mean, planned: PlannedRelease, offered: PlannedRelease) -> Mean | None:
        """A mean extended by a bought release; None if that release does not fit, or is in the mean already."""
        if planned.described is None or offered.described is None:
            return None
        told, asked = offered.described.description, planned.described.description
        if any(source.key == offered.key for source in mean.sources):
            return None
        if told.merges_groups:
            return self._with_merged(search, mean, offered, told)
        found = derivation(told, planned, search.catalog)
        if found is None:
            return None
        terms, groups = (1,) * len(planned.primitives), (mean.parts[0].groups[1],) * 2
        if (told.keys, told.terms) != (asked.keys, asked.terms):
            # A release with the same keys and conditions shows which groups it has.
            alike = [s for s in mean.parts if (s.description.keys, s.description.terms) == (told.keys, told.terms)]
            if not alike:
                return None
            try:
                first = alike[0]
                terms, _ = self._most_terms(search, first.release.key, first.number, first.description, found)
                groups = first.groups
            except (NotHeld, InvalidParameter, LimitExceeded):
                return None
        noises = tuple(added(primitive.noise) for primitive in offered.primitives)
        pairs = errors(told, noises, found, terms, planned, groups)
        if pairs is None:
            return None
        return replace(mean, parts=(*mean.parts, MeanPart(offered, told, noises, found, terms, groups, pairs)))

    def _with_merged(
        self, search: ReleaseSearch, mean: Mean, offered: PlannedRelease, told: ReleaseDescription
    ) -> Mean | None:
        """A mean of which a part is estimated from a bought release, too; None if it has the groups of none."""
        base = next((part for part in mean.parts if fits(part.description, told)), None)
        if base is None or base.groups[0] > _MOST_ESTIMATED:
            return None
        try:
            sums = self._sums(search, base)
        except (NotHeld, InvalidParameter, LimitExceeded):
            return None
        noises = tuple(added(primitive.noise) for primitive in offered.primitives)
        others = _few(((MergedGroups(offered, told, noises), sums.merged), *base.merged))
        if not others or others[0][0].source is not offered:
            return None  # it merges too many groups
        made = _estimated(base, sums, others)
        return replace(mean, parts=tuple(made if part is base else part for part in mean.parts))


def _combined(parts: Sequence[MeanPart], enough: Fraction) -> Mean:
    """A mean of as few of some parts as are needed: in each step the one is added that helps most."""
    grown, rest = Mean(()), list(parts)
    while rest and len(grown.parts) < _MOST_COMBINED and (not grown.parts or grown.worst > enough):
        more = [Mean((*grown.parts, each)) for each in rest]
        best = min(range(len(rest)), key=lambda place: more[place].lacks(enough))
        if grown.parts and more[best].lacks(enough) >= grown.lacks(enough):
            break
        grown = more[best]
        del rest[best]
    return grown


def _merges_sums(planned: PlannedRelease, each: _Candidate) -> bool:
    """Whether a release merges the groups of each sum that is asked for, as one that is bought for it does."""
    return planned.described is not None and merges_sums(each.stored.description, planned.described)


def _may_be_bought_for(planned: PlannedRelease, each: _Candidate) -> bool:
    """False for releases that were bought for other sums of groups."""
    return not each.stored.description.merges_groups or _merges_sums(planned, each)


def _few(others: Iterable[tuple[MergedGroups, Ints]]) -> list[tuple[MergedGroups, Ints]]:
    """The first of some releases, up to the bounds; a release that merges too many groups is left out.

    A new first one displaces the last ones alone. So a question that is asked again finds what was combined with it.
    """
    found, left = list[tuple[MergedGroups, Ints]](), _MOST_MERGED
    for each in others:
        merged = len(merged_places(each[1]))
        if merged > _MOST_MERGED_BY_ONE:
            continue
        left -= merged
        if left < 0 or len(found) == _SOME_OTHERS[-1]:
            break
        found.append(each)
    return found


def _estimated(base: MeanPart, sums: SumsOfGroups, others: Sequence[tuple[MergedGroups, Ints]]) -> MeanPart:
    """A part whose cells are estimated from other releases of its groups, too."""
    pairs = []
    for place, summed, (mine, anew) in zip(base.found.places, sums.sums, base.errors, strict=True):
        if place is not None:
            least = least_squares(base.description, base.noises, place, others).variance(summed)
            mine = replace(mine, noise=Fraction(least) + ROUNDING)
        pairs.append((mine, anew))
    return replace(base, errors=tuple(pairs), merged=tuple(others))


def _with_noise_of_their_own(
    query: CompiledQuery, means: Mapping[int, Mean | None], enough: Fraction, lacking: Collection[int] = ()
) -> dict[int, Mean | None]:
    """Means of cells that are made consistent, without releases that are sources of others among them.

    Least squares need independent noise, and add the information that the parts have about their sums. A mean that is
    exact enough stays so; more is bought for those that are lacking.
    """
    found = dict(means)
    for sums in query.sums:
        places = dict.fromkeys([each.whole for each in sums] + [each.part for each in sums])
        for place in places:
            mean = found.get(place)
            if mean is None:
                continue
            others = {key for other in places if other != place for key in _keys_of(query, found, other)}
            own = mean.only(part for part in mean.parts if others.isdisjoint(source.key for source in part.sources))
            if own.parts and (place in lacking or own.worst <= enough):
                found[place] = own
    return found


def _keys_of(query: CompiledQuery, means: Mapping[int, Mean | None], place: int) -> tuple[str, ...]:
    """The keys of the releases that are the sources of one."""
    mean = means.get(place)
    return (query.releases[place].key,) if mean is None else tuple(source.key for source in mean.sources)


def _offers(query: CompiledQuery, short: Mapping[int, Mean], *, estimates: bool) -> Iterator[CompiledQuery]:
    """Plans of cheaper releases to combine with the user's own; those with more groups at the same price come first."""
    if not short or query.planned is None or query.price is None:
        return
    parts, part = _parts(query, {place: mean.missing for place, mean in short.items()})
    if part >= 1:
        return
    wide = None
    if len(query.releases) == 1 and (asked := query.releases[0].described) is not None:
        (mean,) = short.values()
        whole = (source for source in mean.parts if max(source.terms) == 1)
        wide = next((made for source in whole if (made := wider(source.description, asked)) is not None), None)
        if wide is None and estimates:
            sums = (with_merged_groups(source.description, asked) for source in mean.parts)
            wide = next((made for made in sums if made is not None), None)
    limit = query.price.epsilon
    enough = limit * Fraction(sqrt(part))
    epsilon = decimal(enough, _PRICES)
    for _ in range(_PRICES_TRIED):
        for other in (OtherRelease(wide, 0), None) if wide is not None else (None,):
            try:  # the query could be planned, but perhaps not at this price, or not with these keys
                offer = query.planned(Fraction(epsilon), other, parts)
            except GuaranteeMismatch:
                raise
            except Error:
                continue
            if Fraction(epsilon) < limit and len(offer.releases) == len(query.releases):
                yield offer
        epsilon = _PRICES.next_plus(epsilon)


def _parts(query: CompiledQuery, missing: Mapping[int, Sequence[Fraction]]) -> tuple[tuple[Fraction, ...], Fraction]:
    """Return the part of its share that each primitive needs, and the part of the price that all of them need.

    Under ρ accounting, precision is proportional to ρ, and each primitive gets the part that it lacks. Under other
    accounting, and with a group selection, all get the part of the one that lacks most.
    """
    least = {place: [max(part, _LEAST_PART) for part in each] for place, each in missing.items()}
    most = max((max(each, default=_LEAST_PART) for each in least.values()), default=Fraction(1))
    planned = [(place, each) for place, release in enumerate(query.releases) for each in enumerate(release.primitives)]
    if query.price is None or not query.price.accountant.shares_rho or any(r.selection for r in query.releases):
        return (), most
    parts = []
    needed = Spent.zero().rho
    for place, (cell, primitive) in planned:
        told = least.get(place)
        part = _LEAST_PART if told is None else Fraction(ceil(told[cell] * _STEPS), _STEPS)
        parts.append(part)
        needed += part * Spent.zero().add([primitive.noise.event]).rho
    return tuple(parts), needed / query.spends.rho


def _derived(query: CompiledQuery, means: Mapping[int, Mean | None]) -> list[PlannedRelease]:
    """Return the releases of a query, computed from their means if they have one."""
    return [
        planned if (mean := means.get(place)) is None else mean.of(planned)
        for place, planned in enumerate(query.releases)
    ]


def _over(query: CompiledQuery, releases: Sequence[PlannedRelease], price: Price | None) -> CompiledQuery | None:
    """The query over derived releases; None if nothing is derived, or if a source is itself a release of the query."""
    sources = {source.key for each in releases for made in each.derived for source in made.sources}
    if not sources or any(not each.derived and each.key in sources for each in releases):
        return None
    return query.over(tuple(_sharing(query, releases)), price)


def _sharing(query: CompiledQuery, releases: Sequence[PlannedRelease]) -> Iterator[PlannedRelease]:
    """Releases whose announced noise is wide enough for columns that combine several of their cells.

    Cells derived from the same noisy cells are correlated. For k of them, the squared sum of their effects on a column
    is at most k times the sum of their squares, from which intervals are computed.
    """
    made_of = (made for each in releases for made in each.derived)
    uses = Counter((made.source.key, place) for made in made_of for place in made.places if place is not None)
    for each in releases:
        if not each.derived or not query.combines_cells:
            yield each
            continue
        primitives = []
        for place, primitive in enumerate(each.primitives):
            noise = added(primitive.noise)
            told = ((made.source.key, made.places[place]) for made in each.derived)
            most = max(uses[key, cell] for key, cell in told if cell is not None)
            primitives.append(replace(primitive, noise=combined([noise], variance(noise) * most)))
        yield replace(each, primitives=tuple(primitives))
