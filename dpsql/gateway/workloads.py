"""workloads: plans the releases of several queries together, where that costs less than one query after another.

The queries of one message are known together. A release from which several of them are derived can be cheaper than a
release for each: counts under seven filters are cells of one release by the filtered column. Releases are chosen
greedily: each time the one that saves most, among the queries' own releases and their unions, each at the price
at which those that it answers are exact enough. Afterwards each query is answered as always from what the user has.

Rule 1: the choice depends on queries, settings, policy, public tables and the user's releases, never on noisy values.
Rule 2: each answer is as exact as if its query were sent alone; `Derivations` decides that.
Rule 3: a plan that does not cost less is not used.

Guarantee: none is needed: each release is planned, verified, charged and stored like any other release.
Assumes: nothing for privacy. For the price, that all of it is charged before the first query is answered.
Reference: Harinarayan, Rajaraman & Ullman, Implementing Data Cubes Efficiently, 1996, for the greedy choice of views.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from itertools import accumulate, product
from math import sqrt

from dpsql.backends.backend import PublicRows
from dpsql.compiler.canonical.descriptions import DescribedRelease
from dpsql.compiler.derivation.derivation import union
from dpsql.compiler.ir.nodes import Release, Sort
from dpsql.compiler.plan.bounded_releases import public_read
from dpsql.compiler.plan.query_plan import CompiledQuery, OtherRelease, PlannedRelease, PublicRead
from dpsql.errors import Error, GuaranteeMismatch
from dpsql.gateway.derivations import Derivations, PlannedSource, ReleaseSearch
from dpsql.gateway.prices import Cost, together
from dpsql.gateway.release import listed_groups
from dpsql.privacy.accounting import Limit, Spent
from dpsql.privacy.conversion import decimal

MOST_QUERIES = 20
"""Queries that are planned together: the first ones of a message."""
_MOST_RELEASES = 60
"""Of all queries that are planned together: the releases of each two are compared."""
_MOST_CELLS = 200
"""Aggregates of these releases: the time that a comparison takes grows with them."""
_MOST_UNIONS = 12
"""Unions that are tried in each round: those of most pairs."""
_ROUNDS = 3
"""How often unions are made: in each round, those of the last round with one release more."""
_MOST_GROUPS = 10_000
"""Groups of a release that is planned together with others, which bounds the time that it takes."""
_PRICES = Context(prec=3, rounding=ROUND_CEILING)
"""Prices of three digits, as those of other bought releases."""


@dataclass(frozen=True)
class _Wanted:
    """A release that a query needs, or a union of several.

    Attributes:
        query: The query, or that whose cells the union has.
        place: The release of the query that it is, or that has the bounds of the union, by its place in the plan.
        planned: The release.
        described: Its description.
    """

    query: CompiledQuery
    place: int
    planned: PlannedRelease
    described: DescribedRelease


@dataclass(frozen=True)
class AnsweredQueries:
    """Queries as they are answered one after another, by their places, and what is bought for all of them."""

    queries: Mapping[int, CompiledQuery]
    bought: tuple[PlannedRelease, ...]


@dataclass(frozen=True)
class Workload:
    """Several queries and the releases that are bought for them.

    Attributes:
        queries: The queries, over these releases and those that the user has.
        bought: What is bought for them before the first one is answered.
        paid: What that costs.
        cost: What all queries cost: also those that are charged in their turn.
        alone: What the same queries cost one after another: more, or the same if they are not planned together.
    """

    queries: tuple[CompiledQuery, ...]
    bought: tuple[PlannedRelease, ...]
    paid: Cost
    cost: Cost
    alone: Cost

    @property
    def saves(self) -> bool:
        """Whether the queries are planned together."""
        return self.cost.epsilon < self.alone.epsilon


@dataclass(frozen=True)
class Offer:
    """A release that may be bought.

    Attributes:
        query: The query whose cells it has.
        other: The release.
        source: The same as it is planned at the price of that query's own release.
        ratios: By the keys of the releases that it answers: how many times as precise it must be for that.
    """

    query: CompiledQuery
    other: OtherRelease
    source: PlannedSource
    ratios: Mapping[str, Fraction]


@dataclass(frozen=True)
class WorkloadPlanner:
    """Plans queries together.

    Attributes:
        derivations: Finds what answers a query.
        search: Who asks, and what stops it.
        limit: The limit of the user's budget.
        may_read: Tells whether each release of a query costs enough to be read.
        listed: Reads the groups of a release, which are public.
        sources: What is known of releases, by their keys; None if they have too many groups.
    """

    derivations: Derivations
    search: ReleaseSearch
    limit: Limit
    may_read: Callable[[CompiledQuery], bool]
    listed: Callable[[PublicRead], PublicRows]
    sources: dict[str, PlannedSource | None] = field(default_factory=dict)

    def plan(self, queries: Sequence[CompiledQuery]) -> Workload:
        """Plan queries together, or one after another if that is not cheaper."""
        row = dict(enumerate(_first(queries)))
        sharing = {place: query for place, query in row.items() if self._may_share(query)}
        alone = self.answered(row)
        members = [query for place, query in sharing.items() if alone.queries[place].bought]
        one_by_one = self._with_rest(alone, queries)
        price = self._price(one_by_one)
        if len(members) > 1:
            plans = (self.answered(self.finest_first(sharing), each) for each in self._chosen(members))
            shared = min(plans, key=lambda each: self._cost(each.bought).epsilon)
            others = {place: query for place, query in row.items() if place not in sharing}
            turns = self.answered(others, self._sources(shared.bought))
            together = self._with_rest(AnsweredQueries({**shared.queries, **turns.queries}, shared.bought), queries)
            found = Workload(together, shared.bought, self._cost(shared.bought), self._price(together), price)
            if found.saves:
                return found
        return Workload(one_by_one, (), self._cost(()), price, price)

    def _with_rest(self, answered: AnsweredQueries, queries: Sequence[CompiledQuery]) -> tuple[CompiledQuery, ...]:
        """All queries in their order; the rest, which is not planned together, is derived from what is bought."""
        found, search = answered.queries, self._with(self._sources(answered.bought))
        return tuple(found.get(place) or self._derived(search, query) for place, query in enumerate(queries))

    def answered(self, queries: Mapping[int, CompiledQuery], chosen: Iterable[PlannedSource] = ()) -> AnsweredQueries:
        """Answer queries one after another from what the user has, the chosen releases, and what earlier ones buy."""
        search = self._with(chosen)
        found: dict[int, CompiledQuery] = {}
        for place, query in queries.items():
            found[place] = self._derived(search, query)
            search = replace(search, ahead={**search.ahead, **self._bought(search, found[place])})
        used = {planned.key for query in found.values() for planned in query.bought}
        return AnsweredQueries(found, tuple(each.release for key, each in search.ahead.items() if key in used))

    def _with(self, sources: Iterable[PlannedSource]) -> ReleaseSearch:
        return replace(self.search, ahead={each.release.key: each for each in sources})

    def _derived(self, search: ReleaseSearch, query: CompiledQuery) -> CompiledQuery:
        """A query over the releases that the user has when its turn comes."""
        search.cancellation.check()
        derived = self.derivations.derived(search, query)
        return derived if derived is not None and self.may_read(derived) else query

    def finest_first(self, queries: Mapping[int, CompiledQuery]) -> dict[int, CompiledQuery]:
        """Sort queries by their groups: coarse groups are derived from fine ones, as far as these are exact enough."""

        def groups(place: int) -> int:
            return sum(source.groups for source in map(self._source, queries[place].releases) if source is not None)

        return {place: queries[place] for place in sorted(queries, key=groups, reverse=True)}

    def offers(self, members: Iterable[CompiledQuery]) -> list[Offer]:
        """Return the releases among which is chosen: those of the queries, and unions of two or more of them."""
        wanted = list(self._wanted(members))
        offers = (self._offer(each, wanted) for each in (*wanted, *self._unions(wanted)))
        return [offer for offer in offers if offer is not None and len(offer.ratios) > 1]

    def _offer(self, each: _Wanted, wanted: Iterable[_Wanted]) -> Offer | None:
        """A release with what it answers; None if it has too many groups."""
        source = self._source(each.planned)
        if source is None:
            return None
        return Offer(each.query, OtherRelease(each.described.release, each.place), source, self._ratios(source, wanted))

    def _unions(self, wanted: Sequence[_Wanted]) -> Iterator[_Wanted]:
        """Yield unions of two releases, then of these with one release more, and so on."""
        known: set[Hashable] = set()
        merged = wanted
        for _ in range(_ROUNDS):
            merged = [
                made for each in self._merged(merged, wanted, known) if (made := self._planned(*each)) is not None
            ]
            yield from merged

    def _merged(
        self, some: Iterable[_Wanted], wanted: Sequence[_Wanted], known: set[Hashable]
    ) -> list[tuple[_Wanted, Release]]:
        """Return new unions of each of some releases with one that is wanted, those of most pairs, each once."""
        found: dict[Hashable, tuple[_Wanted, Release]] = {}
        pairs: Counter[Hashable] = Counter()
        for each, other in product(some, wanted):
            self.search.cancellation.check()
            release = union(each.described, other.described)
            if release is None:
                continue
            mine = each.described.description
            keys = frozenset(map(each.described.text, release.aggregate.keys))
            terms = mine.terms & other.described.description.terms
            same = mine.family, mine.rows, terms, keys, mine.cell_texts
            pairs[same] += 1
            found.setdefault(same, (each, release))
        new = [same for same, _ in pairs.most_common() if same not in known][:_MOST_UNIONS]
        known.update(new)
        return [found[same] for same in new]

    def _planned(self, like: _Wanted, release: Release) -> _Wanted | None:
        """A union at the price of the release whose cells it has; None if it cannot be planned."""
        source = self._at(like.query, OtherRelease(release, like.place), self._cost((like.planned,)).epsilon)
        if source is None or source.release.described is None:
            return None
        return _Wanted(like.query, like.place, source.release, source.release.described)

    def scaled(self, offer: Offer, ratio: Fraction) -> PlannedSource | None:
        """An offer at the price of so many times its precision; None if it may not cost so much."""
        if ratio == 1:
            return offer.source
        epsilon = self._cost((offer.source.release,)).epsilon * Fraction(sqrt(ratio))
        return self._at(offer.query, offer.other, epsilon)

    def _chosen(self, members: Sequence[CompiledQuery]) -> Iterator[list[PlannedSource]]:
        """Choose the release that saves most, again and again; what it answers is not bought by itself.

        Yields:
            The releases at the prices at which they are exact enough by themselves; the same at the prices of the
            queries that they are made of, so that what is missing is bought for others; and none.
        """
        left = {each.planned.key: self._weight(each.planned) for each in self._wanted(members)}
        offers = self.offers(members)
        chosen: list[tuple[Offer, PlannedSource]] = []
        while (best := max(self._savings(offers, left), key=lambda each: each[0], default=None)) is not None:
            saved, offer, ratio = best
            if saved <= 0:
                break
            source = self.scaled(offer, ratio)
            if source is None:
                offers.remove(offer)
                continue
            chosen.append((offer, source))
            left = {key: each for key, each in left.items() if offer.ratios.get(key, ratio + 1) > ratio}
        yield [source for _, source in chosen]
        yield [offer.source for offer, _ in chosen]
        yield []

    def _savings(
        self, offers: Iterable[Offer], left: Mapping[str, Fraction]
    ) -> Iterator[tuple[Fraction, Offer, Fraction]]:
        """Yield what each offer saves, at each price at which it is exact enough for one release more."""
        for offer in offers:
            own = self._weight(offer.source.release)
            ratios = {key: ratio for key, ratio in offer.ratios.items() if key in left}
            for ratio in dict.fromkeys(ratios.values()):
                price = own * (ratio if self.limit.accountant.shares_rho else Fraction(sqrt(ratio)))
                yield sum(left[key] for key, each in ratios.items() if each <= ratio) - price, offer, ratio

    def _wanted(self, members: Iterable[CompiledQuery]) -> Iterator[_Wanted]:
        """Yield the releases that queries need and that the user lacks, each once."""
        known: set[str] = set()
        for query in members:
            held = self.derivations.held(self.search, query.releases)
            for place, (planned, has) in enumerate(zip(query.releases, held, strict=True)):
                if not has and planned.key not in known and planned.described is not None:
                    known.add(planned.key)
                    yield _Wanted(query, place, planned, planned.described)

    def _ratios(self, source: PlannedSource, wanted: Iterable[_Wanted]) -> dict[str, Fraction]:
        found: dict[str, Fraction] = {}
        for each in wanted:
            self.search.cancellation.check()
            own, enough = each.planned.key == source.release.key, each.query.max_error_ratio**2
            ratio = Fraction(1) if own else self.derivations.dearer(self.search, each.planned, source, enough)
            if ratio is not None:
                found[each.planned.key] = max(ratio, Fraction(1))
        return found

    def _may_share(self, query: CompiledQuery) -> bool:
        """Whether a query can be planned with others: each of its releases may answer others, or be derived of them."""
        if not query.releases or not query.max_error_ratio:
            return False
        return all(each.described is not None and self._source(each) is not None for each in query.releases)

    def _bought(self, search: ReleaseSearch, query: CompiledQuery) -> dict[str, PlannedSource]:
        """What a query buys and others may be derived from, by its keys."""
        return {source.release.key: source for source in self._sources(self._lacking(search, query.bought))}

    def _lacking(self, search: ReleaseSearch, bought: Sequence[PlannedRelease]) -> list[PlannedRelease]:
        held = self.derivations.held(search, bought)
        return [planned for planned, has in zip(bought, held, strict=True) if not has]

    def _sources(self, bought: Iterable[PlannedRelease]) -> Iterator[PlannedSource]:
        return (source for planned in bought if (source := self._source(planned)) is not None)

    def _at(self, query: CompiledQuery, other: OtherRelease, epsilon: Fraction) -> PlannedSource | None:
        """Plan a release alone at a price; None if that is not possible, or if a query may not cost so much."""
        price = Fraction(decimal(epsilon, _PRICES))
        if query.planned is None or price > self.search.catalog.role.query.max_epsilon:
            return None
        try:
            (planned,) = query.planned(price, other, ()).releases
        except GuaranteeMismatch:
            raise
        except Error:
            return None
        return self._source(planned)

    def _source(self, planned: PlannedRelease) -> PlannedSource | None:
        """A release with its groups; None if it has too many."""
        if planned.key not in self.sources:
            enumeration, rows = planned.query.tree.enumeration, None
            if enumeration is not None:
                some = Sort(enumeration.relation, enumeration.relation.fields, (), _MOST_GROUPS + 1, 0)
                rows = self.listed(public_read(some, "q0", self.search.catalog))
            few = rows is None or rows.count <= _MOST_GROUPS
            self.sources[planned.key] = PlannedSource(planned, listed_groups(planned, rows)) if few else None
        return self.sources[planned.key]

    def _weight(self, planned: PlannedRelease) -> Fraction:
        """The price of a release in a currency in which prices add up."""
        epsilon = self._cost((planned,)).epsilon
        return epsilon**2 if self.limit.accountant.shares_rho else epsilon

    def _price(self, queries: Iterable[CompiledQuery]) -> Cost:
        """What queries are charged together: each release once, those that the user has not at all."""
        bought = {planned.key: planned for query in queries for planned in query.bought}
        return self._cost(self._lacking(self.search, tuple(bought.values())))

    def _cost(self, bought: Iterable[PlannedRelease]) -> Cost:
        return together(self.limit, [Spent.zero().add(event for planned in bought for event in planned.events)])


def _first(queries: Sequence[CompiledQuery]) -> list[CompiledQuery]:
    """The first queries, few enough to bound the time of planning."""
    counts = zip(
        accumulate(len(query.releases) for query in queries),
        accumulate(sum(len(planned.primitives) for planned in query.releases) for query in queries),
        strict=True,
    )
    few = ((releases, cells) for releases, cells in counts if releases <= _MOST_RELEASES and cells <= _MOST_CELLS)
    return [query for query, _ in zip(queries[:MOST_QUERIES], few, strict=False)]
