"""engine: compile, charge, fetch, release. The program in four lines, and what surrounds them.

Rule 1: a charge is durable before a private row is read, and nothing gives it back.
Rule 2: what leaves depends on SQL text, policy, ledger, public tables and noisy releases, and on nothing else.
Rule 3: what is remembered of a query is a pure function of its key: the text and place of the query, the constants in
    it, the settings, the user with the role; a query that asks for the time is compiled anew.
Rule 4: nobody is told how a read of private rows ended before the ledger knows it.
Rule 5: a release that is made of another is made of its noisy cells, and given again only together with them.
Rule 6: where replies are padded, the end of a read is padded before anything can tell of it: the ledger, the user's
    other sessions, and queries that wait for it.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from time import monotonic
from typing import Generic, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from dpsql.backends.backend import Backend, Cancellation, PublicRows, public_share
from dpsql.backends.deadlines import after
from dpsql.compiler.plan.compile import Described, compile_query, describe_query
from dpsql.compiler.plan.query_plan import CompiledQuery, OutputColumn, PlannedInput, PlannedRelease, PublicRead
from dpsql.compiler.scope.lowering import Constants
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import (
    BackendFailure,
    CardinalityViolation,
    DatabaseUnavailable,
    GuaranteeMismatch,
    PolicyViolation,
    QueryCanceled,
    QueryTooComplex,
    ResultsTooLarge,
)
from dpsql.gateway.prices import Cost, Quotation, of_query, quote, request, together, too_cheap_to_read
from dpsql.gateway.release import PostProcessor, ReleasedCells, ReleasedRows, dropped_shares, merged, release
from dpsql.gateway.response_padding import read_held_back
from dpsql.gateway.reuse import Derivations, derived_from
from dpsql.gateway.settings import Reuse
from dpsql.gateway.system_relations import budget_columns, column_columns, release_columns
from dpsql.ledger import BoundDrop, BudgetStatus, Charge, GrantedRelease, Ledger, NotHeld, Reading
from dpsql.ledger.profiles import newest_profile
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import Policy, Role
from dpsql.privacy.accounting import Spent
from dpsql.sqltypes import SqlType

_MAX_PLANS = 1000
"""Compiled queries, and descriptions, remembered."""
_MAX_TEXT = 10_000
"""Characters of a query that is remembered."""
_MAX_ANSWERS = 256
"""Results of stored releases remembered."""
_MAX_VALUES = 1000
"""Values of a result that is remembered."""

_READ_SECONDS = 330.0
"""How long one release may take to be read and made: longer than an engine query may run."""

_LOG = logging.getLogger("dpsql.engine")
SERVER_VERSION = "15.0"
_SOME_TIME = datetime(2000, 1, 1, tzinfo=UTC)
VERSION_TEXT = f"PostgreSQL {SERVER_VERSION} (dpsql)"


@dataclass(frozen=True)
class Answer:
    """A query's released rows, what they cost and how exact they are.

    Attributes:
        columns: The columns, with the error of each noisy one.
        rows: The rows.
        query: The plan they came from.
        charge: What was charged; None where nothing was released.
        earlier: What was charged before for less exact answers to the same question.
        full: The rows with the limits of their intervals, where these are not among the columns.
    """

    columns: tuple[OutputColumn, ...]
    rows: ReleasedRows
    query: CompiledQuery
    charge: Charge | None
    earlier: tuple[Charge, ...] = ()
    full: ReleasedRows | None = None

    @property
    def limited(self) -> tuple[int, ...]:
        """Places of the columns followed by their limits; none where a target has had the limits taken out."""
        return self.query.limited if len(self.columns) == len(self.query.columns) else ()

    @property
    def cost(self) -> Cost | None:
        """What was charged, for the earlier answers too; None where nothing was released."""
        if self.charge is None:
            return None
        if self.earlier:
            return together(self.charge.limit, [charge.price for charge in (*self.earlier, self.charge)])
        return of_query(self.query, self.charge.price, self.charge.limit)

    @property
    def derived_from(self) -> tuple[int, ...]:
        """The user's numbers of the releases whose cells were added up for it; none where it was asked as it is."""
        return derived_from(self.query)

    @property
    def reused(self) -> bool:
        """True where every release is one that this user had already."""
        return self.charge is not None and all(
            granted.reused for charge in (*self.earlier, self.charge) for granted in charge.releases
        )


@dataclass(frozen=True)
class Explanation:
    """What a query would do and cost; nothing was read and nothing spent.

    Attributes:
        query: The query.
        quotation: What it would be charged now.
        target: What dpsql.target_error asks for; None where it asks for nothing.
        rounds: The dearest queries that there may be until the target is met; none where the query is all there is.
        most: What these would be charged now.
    """

    query: CompiledQuery
    quotation: Quotation
    target: str | None
    rounds: tuple[CompiledQuery, ...]
    most: Quotation

    @property
    def charged(self) -> tuple[CompiledQuery, ...]:
        """What is charged at the most, one after another."""
        return self.rounds or (self.query,)

    @property
    def dearest(self) -> Cost:
        """What all rounds to the target would be charged at the most; the cost where there is no target."""
        return self.most.cost if self.rounds else self.cost

    @property
    def spends(self) -> Spent:
        """What the query's releases cost one who has none of them."""
        return self.query.spends

    @property
    def derived_from(self) -> tuple[int, ...]:
        """The user's numbers of the releases whose cells would be added up for it."""
        return derived_from(self.query)

    @property
    def reused(self) -> bool:
        """True where the user would have earlier releases again, for nothing."""
        return self.cost.free and (self.spends != Spent.zero() or self.query.anew is not None)

    @property
    def cost(self) -> Cost:
        """What the query would be charged."""
        return of_query(self.query, self.quotation.charges[0].spent, self.status.limit)

    @property
    def status(self) -> BudgetStatus:
        """The budget as it is."""
        return self.quotation.status


class Engine:
    """One policy, its database and its ledger."""

    def __init__(self, policy: Policy, ledger: Ledger, backend: Backend) -> None:
        """Bring the three together; the engine closes the backend, not the ledger."""
        self.policy = policy
        self.ledger = ledger
        self._backend = backend
        self._profile = newest_profile(ledger, policy)
        self._post = PostProcessor(policy.dataset.timezone)
        self._derivations = Derivations(ledger, self._post)
        self._making: dict[str, threading.Lock] = {}
        self._making_lock = threading.Lock()
        self._plans: LruCache[CompiledQuery] = LruCache(_MAX_PLANS)
        self._described: LruCache[Described] = LruCache(_MAX_PLANS)
        self._answers: LruCache[ReleasedRows] = LruCache(_MAX_ANSWERS)

    def close(self) -> None:
        """Let go of the database."""
        self._backend.close()
        self._post.close()

    def probe(self) -> None:
        """See whether the database answers; no row is read.

        Raises:
            DatabaseUnavailable: It does not.
        """
        self._backend.probe()

    def role(self, user: str) -> Role:
        """The role of a user.

        Raises:
            PolicyViolation: The ledger knows no such user, or the policy no such role.
        """
        account = self.ledger.account(user)
        role = self.policy.role(account.role) if account is not None else None
        if role is None:
            raise PolicyViolation(
                f'user "{user}" has no role in dataset "{self.policy.dataset.name}"',
                hint=f"The data owner adds one: dpsql user add {user} --role {self.policy.roles[0].name}",
            )
        return role

    def key_type(self, table: str, column: str) -> SqlType:
        """The declared type of a column of a table of the policy; it is known since the start, nothing is read."""
        return self._backend.schema.tables[table].columns[column].sql_type

    def now(self) -> datetime:
        """The time in the dataset's zone."""
        return datetime.now(ZoneInfo(self.policy.dataset.timezone))

    def describe(
        self,
        user: str,
        statement: QueryStatement,
        types: Sequence[SqlType | None] = (),
        *,
        intervals: bool = False,
    ) -> Described:
        """Tell the types of a query's placeholders and columns; nothing is read."""
        role, constants = self.role(user), self._constants(user)
        key = _key(user, role, statement, (), types, intervals)
        known = self._described.get(key) if key is not None else None
        if known is not None:
            return known
        catalog = self._catalog(role)
        described = describe_query(statement, catalog, constants, types, intervals=intervals)
        if key is not None and not constants.asked:
            self._described.put(key, described)
        return described

    def compile(
        self,
        user: str,
        statement: QueryStatement,
        settings: QuerySettings,
        values: Sequence[object] = (),
        types: Sequence[SqlType | None] = (),
    ) -> CompiledQuery:
        """Plan a query; nothing is read."""
        role, constants = self.role(user), self._constants(user)
        key = _plan_key(user, role, statement, settings, values, types)
        known = self._plans.get(key) if key is not None else None
        if known is not None:
            return known
        compiled = compile_query(statement, self._catalog(role), settings, constants, values, types)
        if key is not None and not constants.asked:
            self._plans.put(key, compiled)
        return compiled

    def explain(
        self,
        user: str,
        query: CompiledQuery,
        *,
        reuse: Reuse = Reuse.EXACT,
        target: str | None = None,
        rounds: tuple[CompiledQuery, ...] = (),
    ) -> Explanation:
        """Tell what a planned query would cost, and what further rounds to a target would; nothing is read."""
        again = reuse is not Reuse.OFF
        if reuse is Reuse.DERIVED:
            query = self._derivations.derived(user, query, self._catalog(self.role(user)), Cancellation()) or query
        quotation = self.quote(user, [[query]], reuse=again)
        most = self.quote(user, [rounds], reuse=again) if rounds else quotation
        return Explanation(query, quotation, target, rounds, most)

    def quote(self, user: str, statements: Sequence[Sequence[CompiledQuery]], *, reuse: bool = True) -> Quotation:
        """Tell what statements would be charged one after another, each for its queries; nothing is read."""
        return quote(self.ledger, user, self.policy, statements, reuse=reuse)

    def may_read(self, user: str, query: CompiledQuery) -> bool:
        """Tell whether each release of a query costs enough to be read."""
        budgets = self.ledger.budgets(user, self.policy)
        return too_cheap_to_read(budgets, (planned.events for planned in query.releases)) is None

    def execute(
        self, user: str, query: CompiledQuery, cancellation: Cancellation, *, reuse: Reuse = Reuse.EXACT
    ) -> Answer:
        """Answer a planned query.

        Args:
            user: Who asks.
            query: What is asked.
            cancellation: Stops it.
            reuse: What may answer it.

        Raises:
            UnsupportedQuery: The engine cannot run it; nothing was charged or read.
            BudgetExhausted: It does not fit; nothing was charged or read.
            BackendFailure: The engine failed; its sentence tells whether a charge stands.
            CardinalityViolation: A subquery that stands for one value has several; a charge made stands.
            QueryCanceled: It was stopped; a charge made stands.
        """
        cancellation.check()
        self._post.check(query, cancellation)
        reads = query.reads(query.releases)
        if query.releases or reads:
            self._backend.check(query.releases, reads, cancellation)
        if query.passes_on:
            return Answer(query.columns, self._pass_on(user, query, cancellation), query, None)
        if not query.releases:
            return Answer(query.columns, self._read_for_nothing(user, query, (), cancellation), query, None)
        requests = [request(planned) for planned in query.releases]
        if reuse is not Reuse.OFF:
            again = self.ledger.again(user, self.role(user).name, self.policy, requests, sql=query.sql)
            if again is not None:
                rows = self._read_for_nothing(user, query, again.releases, cancellation)
                return Answer(query.columns, rows, query, again)
        derived = self._derived(user, query, cancellation) if reuse is Reuse.DERIVED else None
        if derived is not None:
            return derived
        with ExitStack() as held:
            for key in sorted({planned.key for planned in query.releases}):
                held.enter_context(self._making_alone(key, cancellation))
            reading = Reading(_READ_SECONDS * len(requests), cancellation.check)
            charge = self.ledger.charge(
                user, self.policy, requests, sql=query.sql, reuse=reuse is not Reuse.OFF, reading=reading
            )
            with self._ended(charge, reading, cancellation) as number:
                rows = self._read(user, query, charge.releases, cancellation, number)
        return Answer(query.columns, rows, query, charge)

    def _derived(self, user: str, query: CompiledQuery, cancellation: Cancellation) -> Answer | None:
        """Answer a query of releases that the user has, free; None where it is to be asked anew."""
        derived = self._derivations.derived(user, query, self._catalog(self.role(user)), cancellation)
        if derived is None:
            return None
        requests = [replace(request(planned), held=True) for planned in derived.releases]
        try:
            charge = self.ledger.charge(
                user, self.policy, requests, sql=query.sql, reading=Reading(_READ_SECONDS, cancellation.check)
            )
        except NotHeld:
            return None
        rows = self._read_for_nothing(user, derived, charge.releases, cancellation)
        return Answer(derived.columns, rows, derived, charge)

    def recall(
        self,
        user: str,
        role: Role,
        statement: QueryStatement,
        settings: QuerySettings,
        values: Sequence[object] = (),
        types: Sequence[SqlType | None] = (),
    ) -> Answer | None:
        """Answer a query that this user asked before, under this role, from memory; None where that is not enough.

        Nothing is waited for: no engine, no disk, no thread.
        """
        key = _plan_key(user, role, statement, settings, values, types)
        query = self._plans.get(key) if key is not None else None
        if query is None or not query.releases:
            return None
        known: ReleasedRows | None = None

        def is_known(granted: tuple[GrantedRelease, ...]) -> bool:
            nonlocal known
            stored = _payloads(query, granted)
            known = self._answers.get(stored) if stored is not None else None
            return known is not None

        requests = [request(planned) for planned in query.releases]
        charge = self.ledger.again(user, role.name, self.policy, requests, sql=query.sql, wanted=is_known)
        return None if charge is None or known is None else Answer(query.columns, known, query, charge)

    @contextmanager
    def _making_alone(self, key: str, cancellation: Cancellation) -> Iterator[None]:
        """One at a time makes a release; the others wait, may be cancelled, and then have the same one."""
        lock = self._lock_of(key)
        while not lock.acquire(timeout=0.05):
            cancellation.check()
        try:
            cancellation.check()
            yield
        finally:
            lock.release()

    def _read_for_nothing(
        self, user: str, query: CompiledQuery, granted: tuple[GrantedRelease, ...], cancellation: Cancellation
    ) -> ReleasedRows:
        """Read what was charged nothing now: a failure does not say that a charge stands."""
        try:
            return self._read(user, query, granted, cancellation)
        except BackendFailure:
            raise BackendFailure(charged=False) from None

    @contextmanager
    def _ended(self, charge: Charge, reading: Reading, cancellation: Cancellation) -> Iterator[int | None]:
        """See to it that what a charge lets be read ends in time, and that the ledger knows that it has ended."""
        if charge.id is None or not charge.reads:
            yield None
            return
        try:
            with after(reading.seconds, cancellation.cancel):
                yield charge.id
        finally:
            self.ledger.end(charge.id)

    def _read(
        self,
        user: str,
        query: CompiledQuery,
        granted: tuple[GrantedRelease, ...],
        cancellation: Cancellation,
        charge: int | None = None,
    ) -> ReleasedRows:
        """Fetch what is not stored yet, stage by stage; release it, keep it, and post-process.

        Args:
            user: Who asks.
            query: What is asked.
            granted: The releases that it needs.
            cancellation: Stops it.
            charge: Number of the charge that lets private rows be read; None where all releases are stored.
        """
        for grant in granted:
            if grant.payload is not None and not grant.reused:
                self._hold_back(monotonic(), cancellation)  # another user's takes a quantum, as one that is read
        stored = _payloads(query, granted)
        known = self._answers.get(stored) if stored is not None else None
        if known is not None:
            cancellation.check()
            return known
        pairs = tuple(zip(query.releases, granted, strict=True))
        missing = [planned for planned, grant in pairs if grant.payload is None]
        if missing and query.anew is not None:
            raise GuaranteeMismatch("a derived answer would read private rows")
        public = self._public(user, query.reads(missing), cancellation)
        cells = {
            planned.key: self._kept(user, planned, grant.payload, cancellation)
            for planned, grant in pairs
            if grant.payload is not None
        }
        for planned, grant in pairs:
            if grant.payload is not None:
                continue
            inputs = tuple(self._input(user, made, cells, public, cancellation) for made in planned.inputs)
            cells[planned.key] = self._make(user, planned, inputs, cancellation, charge)
            is_last = planned is missing[-1]
            ends, dropped = (charge, tuple(_drops(query, cells))) if is_last else (None, ())
            self.ledger.store(grant.release_id, cells[planned.key].to_bytes(planned), ends=ends, dropped=dropped)
        tables = {read.table: public[read.sql] for read in query.public_reads}
        released = [cells[planned.key] for planned in query.releases]
        rows = self._post.run(query, released, tables, self._system(user, query), cancellation, MemoryShare(user))
        if stored is not None and len(rows.rows) * len(query.columns) <= _MAX_VALUES:
            self._answers.put(stored, rows)
        return rows

    def _kept(self, user: str, planned: PlannedRelease, payload: bytes, cancellation: Cancellation) -> ReleasedCells:
        """The cells of a stored release, or those that are derived of them."""
        cells, derived = ReleasedCells.from_bytes(payload), planned.derived
        if derived is None:
            return cells
        listed = None
        if derived.domain is not None:
            listed = self._public(user, (derived.domain,), cancellation)[derived.domain.sql]
        return self._post.derive(derived, cells, listed, cancellation)

    def _pass_on(self, user: str, query: CompiledQuery, cancellation: Cancellation) -> ReleasedRows:
        """Answer a query whose rows are those of one public read, without ever holding all of them."""
        (read,) = query.public_reads
        try:
            with closing(self._backend.stream(read, cancellation)) as blocks:
                return self._post.pass_on(query, blocks, cancellation, MemoryShare(user))
        except BackendFailure:
            raise BackendFailure(charged=False) from None

    def _public(self, user: str, reads: tuple[PublicRead, ...], cancellation: Cancellation) -> Mapping[str, PublicRows]:
        """Rows of public tables by the SQL that reads them; a failure here has nothing to do with private rows."""
        if not reads:
            return {}
        try:
            return self._backend.fetch({}, reads, cancellation, share=public_share(user)).public
        except (CardinalityViolation, QueryCanceled, QueryTooComplex, ResultsTooLarge):
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
        """What a release reads of others; whatever goes wrong here is over what is public, and may be told."""
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
        """Read private rows and release them; whatever goes wrong is one and the same failure."""
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
            self.ledger.record_failure(user, [planned.key], charge)
            raise _failure(error) from None
        self._hold_back(begun, cancellation)
        return made

    def _hold_back(self, begun: float, cancellation: Cancellation) -> None:
        """Wait until a read has taken whole quanta: a cancel meanwhile is as one while it was being read.

        Raises:
            QueryCanceled: The user or the time limit stopped it.
        """
        wait = read_held_back(monotonic() - begun, self.policy.dataset.reply_quantum)
        if not wait:
            return
        stopped = threading.Event()
        with cancellation.stopping(stopped.set):
            stopped.wait(wait)
        cancellation.check()

    def _system(self, user: str, query: CompiledQuery) -> Mapping[str, Sequence[Sequence[str | None]]]:
        makers = {
            "budget": lambda: budget_columns(self.ledger.budgets(user, self.policy), self.role(user)),
            "columns": lambda: column_columns(self.policy, self.role(user)),
            "releases": lambda: self._releases(user),
        }
        return {read.name: makers[read.name]() for read in query.system_reads}

    def _releases(self, user: str) -> Sequence[Sequence[str | None]]:
        records = self.ledger.releases(user, self.policy.dataset.name)
        return release_columns(records, self.ledger.budgets(user, self.policy).own.limit)

    def _catalog(self, role: Role) -> Catalog:
        return Catalog(self.policy, self._backend.schema, role, self._profile)

    def _constants(self, user: str) -> Constants:
        return Constants(self.now(), user, self.policy.dataset.name, VERSION_TEXT)

    def _lock_of(self, key: str) -> threading.Lock:
        with self._making_lock:
            if len(self._making) > 10_000:
                self._making = {name: lock for name, lock in self._making.items() if lock.locked()}
            return self._making.setdefault(key, threading.Lock())


def _key(
    user: str,
    role: Role,
    statement: QueryStatement,
    values: Sequence[object],
    types: Sequence[SqlType | None],
    *settings: Hashable,
) -> Hashable:
    """All that compiling depends on beside the policy, the schema and the time; None where that cannot be told."""
    constants = exact_key(values)
    if constants is None or len(statement.sql) > _MAX_TEXT:
        return None
    return user, role.name, statement, constants, tuple(types), settings


def _plan_key(
    user: str,
    role: Role,
    statement: QueryStatement,
    settings: QuerySettings,
    values: Sequence[object],
    types: Sequence[SqlType | None],
) -> Hashable:
    # The time zone alone is left of the time, beside it: moments of two zones may be equal.
    timeless = replace(settings, now=_SOME_TIME)
    return _key(user, role, statement, values, types, timeless, str(settings.now.tzinfo))


def _payloads(query: CompiledQuery, granted: tuple[GrantedRelease, ...]) -> Hashable:
    """All that a result of stored releases alone depends on; None where it is made of anything else."""
    payloads = tuple(grant.payload for grant in granted)
    if query.anew is not None:
        return None  # the same cells may be added up in many ways
    if not payloads or None in payloads or query.public_reads or query.system_reads:
        return None
    return query.post_sql, tuple(column.type for column in query.columns), payloads


def _drops(query: CompiledQuery, cells: Mapping[str, ReleasedCells]) -> Iterator[BoundDrop]:
    """What the released cells of a query tell the data owner of its bounds."""
    for each in dropped_shares(query, [cells[planned.key] for planned in query.releases]):
        planned = query.releases[each.release]
        yield BoundDrop(planned.bounds_text(each.cell), planned.counted(each.cell), each.share, each.margin)


def _failure(error: Exception) -> BackendFailure:
    """The one failure that is told; the log has its kind."""
    if not isinstance(error, BackendFailure):
        _LOG.error("an answer could not be made: %s", type(error).__name__)
    return BackendFailure()


V = TypeVar("V")

_TOLD_BY_REPR = frozenset({type(None), bool, int, float, str, bytes, Decimal, date, datetime, time, timedelta, UUID})
"""Types of which two values of one repr are the same in every respect; equal ones need not be: 1.0 and 1.00."""


class LruCache(Generic[V]):
    """A mapping of bounded size, which forgets what was not asked for longest; for several threads.

    Rule: a key says everything that what is remembered depends on; what cannot say so is made again each time.

    Args:
        entries: How many there may be.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._known: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Hashable) -> V | None:
        """What is remembered under a key."""
        with self._lock:
            if key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key]

    def put(self, key: Hashable, value: V) -> None:
        """Remember a value."""
        with self._lock:
            self._known[key] = value
            self._known.move_to_end(key)
            if len(self._known) > self._entries:
                self._known.popitem(last=False)


def exact_key(values: Sequence[object]) -> Hashable:
    """A key of constants that no others have; None where one is of a type whose repr does not tell all."""
    if not all(type(value) in _TOLD_BY_REPR for value in values):
        return None
    return tuple((type(value), repr(value)) for value in values)
