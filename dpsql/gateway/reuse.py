"""reuse: which releases that a user has already answer a query, and whether they do so exactly enough.

Rule 1: cells are derived of releases that the ledger has handed to this user, and of no others. They are computed when
they are asked for, from raw cells, and stored nowhere: whoever else asks is charged for a release of the own.
Rule 2: it is chosen by keys, by what noises are made for and by what bounds are expected to drop, never by a noisy
number: a choice that looked at numbers would prefer some of them, and an interval would cover less than it says.

Guarantee: none is needed: the user is told a function of what the user was told before.
Assumes: the ledger hands the release out once more, free, with the record that says so, before a cell of it is used.
Reference: Dwork & Roth 2014, proposition 2.1, for post-processing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dpsql.backends.backend import Cancellation
from dpsql.compiler.derivation.derivation import Derivation, derivation, errors
from dpsql.compiler.plan.query_plan import CompiledQuery, DerivedCells, PlannedRelease
from dpsql.compiler.scope.tables import Catalog
from dpsql.errors import InvalidParameter, QueryTooComplex
from dpsql.gateway.caches import LruCache
from dpsql.gateway.prices import request
from dpsql.gateway.release import PostProcessor, ReleasedCells, StoredRelease, stored_release
from dpsql.ledger import HandedRelease, Ledger, NotHeld
from dpsql.privacy.exponential_mechanism import AddedNoise, added
from dpsql.privacy.mechanisms import noise_of, summed, variance

_MOST_RELEASES = 300
"""Releases of a family that are looked at: the newest."""
_MOST_TRIED = 8
"""Releases whose groups are counted for one that is asked."""
_MOST_KNOWN = 10_000
"""Releases, and families, that are remembered."""


@dataclass(frozen=True)
class _Candidate:
    """A release that answers another one, with the noise of its cells."""

    handed: HandedRelease
    stored: StoredRelease
    found: Derivation
    noises: tuple[AddedNoise, ...]

    @property
    def noise(self) -> Fraction:
        """The variances of its cells that are added up, one of each: candidates are tried from the least on."""
        return sum((variance(self.noises[place]) for place in self.found.places), Fraction(0))


@dataclass(frozen=True)
class Derivations:
    """Looks for what a query can be derived of.

    Attributes:
        ledger: What was handed to whom.
        post: Counts the cells that are added up.
        handed: By user and family, the releases that are known to have been handed out.
        stored: By their numbers, what releases say of themselves.
    """

    ledger: Ledger
    post: PostProcessor
    handed: LruCache[tuple[HandedRelease, ...]] = field(default_factory=lambda: LruCache(_MOST_KNOWN))
    stored: LruCache[StoredRelease] = field(default_factory=lambda: LruCache(_MOST_KNOWN))

    def derived(
        self, user: str, query: CompiledQuery, catalog: Catalog, cancellation: Cancellation
    ) -> CompiledQuery | None:
        """The query over releases that the user has, if these answer it as exactly as it would be asked anew.

        Args:
            user: Who asks.
            query: What is asked.
            catalog: What the user may name.
            cancellation: Stops it.
        """
        requests = [request(planned) for planned in query.releases]
        releases: list[PlannedRelease] = []
        for planned, held in zip(query.releases, self.ledger.held(user, catalog.policy, requests), strict=True):
            found = planned if held else self._best(user, planned, query.max_error_ratio, catalog, cancellation)
            if found is None:
                return None
            releases.append(found)
        sources = {planned.derived.key for planned in releases if planned.derived is not None}
        if not sources or any(planned.key in sources for planned in releases):
            return None  # a release beside sums of its own cells is not independent of them
        return query.over(tuple(_sharing(query, releases)))

    def _best(
        self, user: str, planned: PlannedRelease, ratio: Fraction, catalog: Catalog, cancellation: Cancellation
    ) -> PlannedRelease | None:
        """A release as it is derived with the least error; None where that is not exact enough."""
        best: tuple[Fraction, _Candidate, tuple[int, ...]] | None = None
        candidates = sorted(self._candidates(user, planned, catalog), key=lambda each: each.noise)
        for each in candidates[:_MOST_TRIED]:
            try:
                cells = ReleasedCells.from_bytes(self.ledger.cells(user, each.handed.release))
                terms, groups = self.post.most_terms(each.found, cells, cancellation)
            except (NotHeld, InvalidParameter, QueryTooComplex):
                continue  # it is asked anew, or derived of another
            groups_there = len(cells.keys[0]) if cells.keys else 1
            pairs = errors(each.stored.description, each.noises, groups_there, each.found, terms, planned, groups)
            if pairs is None or any(derived > ratio**2 * fresh for derived, fresh in pairs):
                continue
            worst = max((derived / fresh for derived, fresh in pairs), default=Fraction(0))
            if best is None or worst < best[0]:
                best = worst, each, terms
        if best is None:
            return None
        _, chosen, terms = best
        number = self.ledger.place(user, catalog.policy, chosen.handed.release)
        return _derived(planned, chosen, terms, number)

    def _candidates(self, user: str, planned: PlannedRelease, catalog: Catalog) -> Iterator[_Candidate]:
        if planned.described is None:
            return
        for handed in self._handed(user, planned.described.description.family, catalog)[-_MOST_RELEASES:]:
            stored = self._stored(user, handed)
            found = None if stored is None else derivation(stored.description, planned, catalog)
            if stored is None or found is None:
                continue
            noises = tuple(noise for event in stored.events if (noise := noise_of(event)) is not None)
            if len(noises) == len(stored.description.cells):
                yield _Candidate(handed, stored, found, noises)

    def _handed(self, user: str, family: str, catalog: Catalog) -> tuple[HandedRelease, ...]:
        """The releases of a family that a user has; those that are known are not asked for again."""
        known = self.handed.get((user, family)) or ()
        more = self.ledger.handed(user, catalog.policy, family, known[-1].release if known else 0)
        if more:
            known = (*known, *more)[-_MOST_RELEASES:]
            self.handed.put((user, family), known)
        return known

    def _stored(self, user: str, handed: HandedRelease) -> StoredRelease | None:
        """What a release says of itself; None where it is not kept, or not yet."""
        known = self.stored.get(handed.release)
        if known is None:
            try:
                known = stored_release(self.ledger.cells(user, handed.release))
            except NotHeld:
                return None
            self.stored.put(handed.release, known)
        return known


def _derived(planned: PlannedRelease, candidate: _Candidate, terms: Sequence[int], number: int) -> PlannedRelease:
    """A release whose noise is that of as many cells as are added up."""
    found, noises = candidate.found, candidate.noises
    primitives = tuple(
        replace(each, noise=summed(noises[place], max(1, count)))
        for each, place, count in zip(planned.primitives, found.places, terms, strict=True)
    )
    handed = candidate.handed
    made = DerivedCells(
        *(handed.release, number, handed.key, candidate.stored.events, found.cells, found.domain),
        *(planned.keys, found.places, tuple(terms)),
    )
    return replace(planned, primitives=primitives, derived=made)


def _sharing(query: CompiledQuery, releases: Sequence[PlannedRelease]) -> Iterator[PlannedRelease]:
    """Releases whose noise is wide enough for columns that are computed of several of their cells.

    Cells that are sums of the same noisy cells move together. Of k of them, the square of the sum of what each moves a
    column by is no more than k times the sum of the squares, by which intervals are made.
    """
    combines = any(query.columns[place].error is None for place in query.limited)
    uses = Counter((made.release, place) for each in releases if (made := each.derived) for place in made.places)
    for each in releases:
        made = each.derived
        if made is None or not combines:
            yield each
            continue
        noises = [
            summed(added(primitive.noise), uses[made.release, place])
            for primitive, place in zip(each.primitives, made.places, strict=True)
        ]
        pairs = zip(each.primitives, noises, strict=True)
        yield replace(each, primitives=tuple(replace(primitive, noise=noise) for primitive, noise in pairs))


def derived_from(query: CompiledQuery) -> tuple[int, ...]:
    """The user's numbers of the releases that a query is derived of, in rising order."""
    return tuple(sorted({planned.derived.number for planned in query.releases if planned.derived is not None}))
