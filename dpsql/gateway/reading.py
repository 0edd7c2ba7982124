"""reading: computes the rows of a query whose releases the ledger has granted.

Stored releases come from the ledger, the others from private rows.

Rule 1: the output depends only on SQL text, policy, ledger, public tables and noisy releases.
Rule 2: a release that uses another one uses its noisy cells, and is reused only together with them.
Rule 3: with padded replies, the end of a read is delayed before anything can reveal it: the ledger, the user's other
    sessions, or queries that wait for it.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from time import monotonic

from dpsql.backends.backend import Backend, Cancellation, PublicRows, public_share
from dpsql.compiler.plan.query_plan import CompiledQuery, HeldRelease, PlannedInput, PlannedRelease, PublicRead
from dpsql.errors import (
    BackendFailure,
    CardinalityViolation,
    DatabaseUnavailable,
    GuaranteeMismatch,
    InvalidParameter,
    LimitExceeded,
    QueryCanceled,
    ResultsTooLarge,
)
from dpsql.gateway.caches import LruCache
from dpsql.gateway.consistency import made_consistent
from dpsql.gateway.dropped import dropped_shares
from dpsql.gateway.histories import made_of_histories
from dpsql.gateway.merged_groups import estimates
from dpsql.gateway.release import PostProcessor, ReleasedCells, ReleasedRows, merged, release, weighed
from dpsql.gateway.response_padding import read_held_back
from dpsql.ledger import BoundDrop, GrantedRelease, Ledger
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import Policy

_MAX_ANSWERS = 256
"""Results of stored releases remembered."""
_MAX_VALUES = 1000
"""Values of a result that is remembered."""

_LOG = logging.getLogger("dpsql.engine")

System = Callable[[str, CompiledQuery], Mapping[str, Sequence[Sequence[str | None]]]]
"""The relations of schema dpsql that a query reads, for a user."""


@dataclass(frozen=True)
class Made:
    """A query, with the intervals that were made for its cells, and its rows.

    Attributes:
        query: The query.
        rows: Its rows.
        fresh: Where what was bought was combined with what the user had: what is made of the first alone.
    """

    query: CompiledQuery
    rows: ReleasedRows
    fresh: "Made | None" = None


class NotDerived(Exception):
    """The user's releases do not suffice, so the query is released in full; internal, never sent to a client."""


class ReleaseReader:
    """Fetches, releases and post-processes."""

    def __init__(self, policy: Policy, ledger: Ledger, backend: Backend, post: PostProcessor, system: System) -> None:
        """Bring them together; nothing is read yet."""
        self._policy = policy
        self._ledger = ledger
        self._backend = backend
        self._post = post
        self._system = system
        self._answers: LruCache[Made] = LruCache(_MAX_ANSWERS)

    def known(self, query: CompiledQuery, granted: tuple[GrantedRelease, ...]) -> Made | None:
        """The query and its rows, where they are remembered and all releases are stored."""
        return self._answers.get(_answer_key(query, granted))

    def read_for_nothing(
        self,
        user: str,
        query: CompiledQuery,
        granted: tuple[GrantedRelease, ...],
        cancellation: Cancellation,
        charge: int | None = None,
    ) -> Made:
        """Read a query that was not charged now: a failure does not claim that a charge was kept."""
        try:
            return self.read(user, query, granted, cancellation, charge)
        except BackendFailure:
            raise BackendFailure(charged=False) from None

    def read(
        self,
        user: str,
        query: CompiledQuery,
        granted: tuple[GrantedRelease, ...],
        cancellation: Cancellation,
        charge: int | None = None,
    ) -> Made:
        """Fetch releases that are not stored yet, stage by stage; release and store them, then run the post-processing.

        Args:
            user: Who asks.
            query: What is asked.
            granted: The releases that it needs.
            cancellation: Stops it.
            charge: Number of the charge that lets private rows be read; None where all releases are stored.
        """
        self._hold_back_for_others(granted, cancellation)
        known = self.known(query, granted)
        if known is not None:
            cancellation.check()
            return known
        lacking = [source for source, grant in zip(query.sources, granted, strict=True) if grant.payload is None]
        reads = query.reads(each for each in lacking if isinstance(each, PlannedRelease))
        public = self._public(user, reads, cancellation)
        cells = self._made(user, query.sources, granted, public, cancellation, charge, partial(_drops, query))
        made = self._answer(user, query, cells, public, cancellation, charge)
        if len(made.rows.rows) * len(query.columns) <= _MAX_VALUES:
            self._answers.put(_answer_key(query, granted), made)
        if query.fresh is not None:
            with suppress(InvalidParameter, LimitExceeded, NotDerived):  # the answer itself is made
                made = replace(made, fresh=self._answer(user, query.fresh, cells, public, cancellation, charge))
        return made

    def store(
        self,
        user: str,
        releases: Sequence[PlannedRelease],
        granted: tuple[GrantedRelease, ...],
        cancellation: Cancellation,
        charge: int | None,
        queries: Sequence[CompiledQuery],
    ) -> None:
        """Fetch, release and store releases that are computed from no others, in their order; nothing is returned.

        Args:
            user: Who asks.
            releases: The releases.
            granted: The same, as the ledger has granted them.
            cancellation: Stops it.
            charge: Number of the charge that lets private rows be read.
            queries: What they are bought for: the owner is told what bounds drop of these.
        """
        self._hold_back_for_others(granted, cancellation)

        def drops(cells: Mapping[str, ReleasedCells]) -> Iterator[BoundDrop]:
            return chain.from_iterable(_drops(query, cells) for query in queries)

        self._made(user, releases, granted, {}, cancellation, charge, drops)

    def _hold_back_for_others(self, granted: tuple[GrantedRelease, ...], cancellation: Cancellation) -> None:
        """Another user's release takes a quantum, like one that is read."""
        for grant in granted:
            if grant.payload is not None and not grant.reused:
                self._hold_back(monotonic(), cancellation)

    def _made(
        self,
        user: str,
        sources: Sequence[PlannedRelease | HeldRelease],
        granted: tuple[GrantedRelease, ...],
        public: Mapping[str, PublicRows],
        cancellation: Cancellation,
        charge: int | None,
        drops: Callable[[Mapping[str, ReleasedCells]], Iterable[BoundDrop]],
    ) -> dict[str, ReleasedCells]:
        """The cells of releases by their keys; those that are not stored yet are made in their order and stored."""
        pairs = tuple(zip(sources, granted, strict=True))
        missing = [(source, grant.release_id) for source, grant in pairs if grant.payload is None]
        fresh = [(source, number) for source, number in missing if isinstance(source, PlannedRelease)]
        if len(fresh) < len(missing):
            raise GuaranteeMismatch("a release that the user has would be read")
        cells = {
            source.key: ReleasedCells.from_bytes(grant.payload) for source, grant in pairs if grant.payload is not None
        }
        for planned, number in fresh:
            inputs = tuple(self._input(user, made, cells, public, cancellation) for made in planned.inputs)
            cells[planned.key] = self._make(user, planned, inputs, cancellation, charge)
            ends, dropped = (charge, tuple(drops(cells))) if planned is fresh[-1][0] else (None, ())
            self._ledger.store(number, cells[planned.key].to_bytes(planned), ends=ends, dropped=dropped)
        return cells

    def _answer(
        self,
        user: str,
        query: CompiledQuery,
        cells: Mapping[str, ReleasedCells],
        public: Mapping[str, PublicRows],
        cancellation: Cancellation,
        charge: int | None,
    ) -> Made:
        """Make the rows of a query of the cells of its sources."""
        tables = {read.table: public[read.sql] for read in query.public_reads}
        query, cells = made_of_histories(query, cells, cancellation)
        try:
            released = tuple(self._released(user, planned, cells, cancellation) for planned in query.releases)
        except (InvalidParameter, LimitExceeded):
            if charge is None:
                raise NotDerived from None
            raise
        told, released = made_consistent(query, released, cancellation)
        rows = self._post.run(told, released, tables, self._system(user, query), cancellation, MemoryShare(user))
        return Made(told, rows)

    def _released(
        self, user: str, planned: PlannedRelease, cells: Mapping[str, ReleasedCells], cancellation: Cancellation
    ) -> ReleasedCells:
        """The cells of a release: its own, or their mean from other releases."""
        if not planned.derived:
            return cells[planned.key]
        domain, listed = planned.derived[0].domain, None
        if domain is not None:
            listed = self._public(user, (domain,), cancellation)[domain.sql]
        parts = [
            self._post.derive(each, cells[each.source.key], listed, cancellation, estimates(each, cells))
            for each in planned.derived
        ]
        return weighed(parts, [each.variances for each in planned.derived])

    def pass_on(self, user: str, query: CompiledQuery, cancellation: Cancellation) -> ReleasedRows:
        """Answer a query whose rows are those of one public read, without ever holding all of them."""
        (read,) = query.public_reads
        try:
            with closing(self._backend.stream(read, cancellation)) as blocks:
                return self._post.pass_on(query, blocks, cancellation, MemoryShare(user))
        except BackendFailure:
            raise BackendFailure(charged=False) from None

    def listed(self, user: str, read: PublicRead, cancellation: Cancellation) -> PublicRows:
        """The groups of a release, which are public.

        Raises:
            BackendFailure: They cannot be read; nothing was charged.
        """
        try:
            return self._public(user, (read,), cancellation)[read.sql]
        except BackendFailure:
            raise BackendFailure(charged=False) from None

    def _public(self, user: str, reads: tuple[PublicRead, ...], cancellation: Cancellation) -> Mapping[str, PublicRows]:
        """Rows of public tables by the SQL that reads them; a failure here has nothing to do with private rows."""
        if not reads:
            return {}
        try:
            return self._backend.fetch({}, reads, cancellation, share=public_share(user)).public
        except (CardinalityViolation, QueryCanceled, LimitExceeded, ResultsTooLarge):
            raise
        except Exception as error:
            raise _failure(error) from None

    def _input(
        self,
        user: str,
        planned: PlannedInput,
        cells: Mapping[str, ReleasedCells],
        public: Mapping[str, PublicRows],
        cancellation: Cancellation,
    ) -> PublicRows:
        """What a release reads of others; errors here are about public values, and may be told."""
        releases = [cells[release.key] for release in planned.releases]
        return self._post.make(
            planned, releases, [public[read.sql] for read in planned.public_reads], cancellation, user
        )

    def _make(
        self,
        user: str,
        planned: PlannedRelease,
        inputs: tuple[PublicRows, ...],
        cancellation: Cancellation,
        charge: int | None,
    ) -> ReleasedCells:
        """Read private rows and release them; every error is one and the same failure."""
        begun = monotonic()
        try:
            blocks: list[ReleasedCells] = []
            # Of each block only what is released stays, so memory does not grow with the groups that are not shown.
            self._backend.fetch(
                {0: planned}, (), cancellation, {0: inputs}, lambda _, block: blocks.append(release(planned, block))
            )
            made = merged(blocks)
        except QueryCanceled:
            raise
        except DatabaseUnavailable as error:  # no row of anybody's has a part in that
            raise _failure(error) from None
        except Exception as error:
            self._hold_back(begun, cancellation)
            self._ledger.record_failure(user, [planned.key], charge)
            raise _failure(error) from None
        self._hold_back(begun, cancellation)
        return made

    def _hold_back(self, begun: float, cancellation: Cancellation) -> None:
        """Wait until a read has taken whole quanta: a cancel meanwhile is as one while it was being read.

        Raises:
            QueryCanceled: The user or the time limit stopped it.
        """
        wait = read_held_back(monotonic() - begun, self._policy.dataset.reply_quantum)
        if not wait:
            return
        stopped = threading.Event()
        with cancellation.stopping(stopped.set):
            stopped.wait(wait)
        cancellation.check()


def _answer_key(query: CompiledQuery, granted: tuple[GrantedRelease, ...]) -> Hashable:
    """The cache key of an answer from stored releases only; None if it depends on anything else.

    It holds the whole query: two queries of the same rows can name their columns differently.
    """
    payloads = tuple(grant.payload for grant in granted)
    if query.anew is not None or query.histories:
        return None  # the same cells may be added up in many ways
    if not payloads or None in payloads or query.public_reads or query.system_reads:
        return None
    return query, payloads


def _drops(query: CompiledQuery, cells: Mapping[str, ReleasedCells]) -> Iterator[BoundDrop]:
    """What the cells of a query tell the data owner of its bounds; nothing if some of them are not among these."""
    if query.anew is not None or any(planned.key not in cells for planned in query.releases):
        return
    for each in dropped_shares(query, [cells[planned.key].cells for planned in query.releases]):
        planned = query.releases[each.release]
        yield BoundDrop(planned.bounds_text(each.cell), planned.counted(each.cell), each.share, each.margin)


def _failure(error: Exception) -> BackendFailure:
    """The one error that clients get for any failure; the log has its kind."""
    if not isinstance(error, BackendFailure):
        _LOG.error("an answer could not be made: %s", type(error).__name__)
    return BackendFailure()
