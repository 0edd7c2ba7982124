"""engine: compiles a query, charges it, fetches its exact cells and releases them with noise.

Rule 1: a charge is durable before a private row is read, and nothing gives it back.
Rule 2: what is remembered of a query is a pure function of its key: the text and place of the query, the constants in
    it, the settings, the user with the role; a query that asks for the time is compiled anew.
Rule 3: no user is told how a read of private rows ended before the ledger has recorded it.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from weakref import WeakValueDictionary
from zoneinfo import ZoneInfo

from dpsql.backends.backend import Backend, Cancellation
from dpsql.backends.deadlines import after
from dpsql.compiler.derivation.cell_sums import cell_sums
from dpsql.compiler.plan.compile import Described, compile_query, describe_query
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.scope.lowering import Constants
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import BudgetExhausted, PolicyViolation, UnsupportedQuery
from dpsql.gateway.answers import Answer, Explanation, answer_of
from dpsql.gateway.caches import LruCache, plan_key, query_key
from dpsql.gateway.derivations import Derivations, ReleaseSearch
from dpsql.gateway.prices import Quotation, quote, request, too_cheap_to_read
from dpsql.gateway.reading import Made, NotDerived, ReleaseReader
from dpsql.gateway.release import PostProcessor
from dpsql.gateway.settings import Reuse
from dpsql.gateway.system_relations import budget_columns, column_columns, release_columns
from dpsql.gateway.workloads import Workload, WorkloadPlanner
from dpsql.ledger import Charge, GrantedRelease, Ledger, NotHeld, Reading
from dpsql.ledger.profiles import newest_profile
from dpsql.policy import Policy, Role
from dpsql.sqltypes import SqlType

_MAX_PLANS = 1000
"""Compiled queries, and descriptions, remembered."""

_READ_SECONDS = 330.0
"""How long one release may take to be read and made: longer than an engine query may run."""

SERVER_VERSION = "15.0"
VERSION_TEXT = f"PostgreSQL {SERVER_VERSION} (dpsql)"


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
        # A lock lasts for as long as somebody holds it or waits for it.
        self._making: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._making_lock = threading.Lock()
        self._plans: LruCache[CompiledQuery] = LruCache(_MAX_PLANS)
        self._described: LruCache[Described] = LruCache(_MAX_PLANS)
        self._reader = ReleaseReader(policy, ledger, backend, self._post, self._system)

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
        schemas: tuple[str, ...] = ("public",),
        intervals: bool = False,
    ) -> Described:
        """Tell the types of a query's placeholders and columns; nothing is read."""
        role, constants = self.role(user), self._constants(self.now(), user, schemas)
        key = query_key(user, role, statement, (), types, schemas, intervals)
        known = self._described.get(key)
        if known is not None:
            return known
        catalog = self._catalog(role)
        described = describe_query(statement, catalog, constants, types, intervals=intervals)
        if not constants.asked:
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
        role, constants = self.role(user), self._constants(settings.now, user, settings.schemas)
        key = plan_key(user, role, statement, settings, values, types)
        known = self._plans.get(key)
        if known is not None:
            return known
        catalog = self._catalog(role)
        compiled = compile_query(statement, catalog, settings, constants, values, types)
        sums, differ = cell_sums(compiled.releases, compiled.wide_totals, catalog)
        compiled = replace(compiled, sums=sums, sums_differ=differ)
        if not constants.asked:
            self._plans.put(key, compiled)
        return compiled

    def explain(
        self,
        user: str,
        query: CompiledQuery,
        cancellation: Cancellation,
        *,
        reuse: Reuse = Reuse.EXACT,
        consistent: bool = False,
        target: str | None = None,
        rounds: tuple[CompiledQuery, ...] = (),
    ) -> Explanation:
        """Return the price of a planned query and of further rounds to a target; nothing is read."""
        again = reuse is not Reuse.OFF
        if reuse is Reuse.DERIVED:
            query = self._derived(user, query, cancellation, consistent) or query
        quotation = self.quote(user, [[query]], reuse=again)
        most = self.quote(user, [rounds], reuse=again) if rounds else quotation
        return Explanation(query, quotation, target, rounds, most)

    def quote(self, user: str, statements: Sequence[Sequence[CompiledQuery]], *, reuse: bool = True) -> Quotation:
        """Return what statements would be charged one after another, each for its queries; nothing is read."""
        return quote(self.ledger, user, self.policy, statements, reuse=reuse)

    def may_read(self, user: str, query: CompiledQuery) -> bool:
        """Tell whether each release of a query costs enough to be read."""
        budgets = self.ledger.budgets(user, self.policy)
        return too_cheap_to_read(budgets, (planned.events for planned in query.releases)) is None

    def execute(
        self,
        user: str,
        query: CompiledQuery,
        cancellation: Cancellation,
        *,
        reuse: Reuse = Reuse.EXACT,
        consistent: bool = False,
    ) -> Answer:
        """Answer a planned query.

        Args:
            user: Who asks.
            query: What is asked.
            cancellation: Stops it.
            reuse: What may answer it.
            consistent: Whether derived answers are made to add up with all that the user has.

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
            return Answer(query.columns, self._reader.pass_on(user, query, cancellation), query, None)
        if not query.releases:
            return answer_of(self._reader.read_for_nothing(user, query, (), cancellation), None)
        requests = [request(planned) for planned in query.releases]
        if reuse is not Reuse.OFF and not consistent:
            again = self.ledger.again(user, self.role(user).name, self.policy, requests, sql=query.sql)
            if again is not None:
                return answer_of(self._reader.read_for_nothing(user, query, again.releases, cancellation), again)
        derived = self._derived(user, query, cancellation, consistent) if reuse is Reuse.DERIVED else None
        if derived is not None:
            self._post.check(derived, cancellation)
            self._backend.check(derived.bought, (), cancellation)
            with suppress(NotHeld, NotDerived):
                return self._charged(user, derived, cancellation, reuse)
        return self._charged(user, query, cancellation, reuse)

    def _derived(
        self, user: str, query: CompiledQuery, cancellation: Cancellation, consistent: bool
    ) -> CompiledQuery | None:
        """The query over the user's releases and bought ones; None if it needs full releases."""
        catalog = self._catalog(self.role(user))
        search = ReleaseSearch(user, catalog, cancellation, estimates=not consistent)
        derived = self._derivations.derived(search, query)
        if derived is not None and not self.may_read(user, derived):
            derived = None
        return self._derivations.consistent(search, derived or query) if consistent else derived

    def _charged(self, user: str, query: CompiledQuery, cancellation: Cancellation, reuse: Reuse) -> Answer:
        """Charge a query, read the releases that it pays for, and answer it.

        Raises:
            NotHeld: The user does not have a release that it is derived of; nothing was charged or read.
            NotDerived: Nothing can be computed of the releases that the user has; nothing was charged or read.
        """
        requests = [request(source) for source in query.sources]
        with ExitStack() as held:
            for key in sorted({planned.key for planned in query.bought}):
                held.enter_context(self._making_alone(key, cancellation))
            reading = Reading(_READ_SECONDS * len(requests), cancellation.check)
            charge = self.ledger.charge(
                user, self.policy, requests, sql=query.sql, reuse=reuse is not Reuse.OFF, reading=reading
            )
            with self._ended(charge, reading, cancellation) as number:
                read = self._reader.read if query.bought else self._reader.read_for_nothing
                made = read(user, query, charge.releases, cancellation, number)
        return answer_of(made, charge)

    def planner(self, user: str, cancellation: Cancellation, *, consistent: bool = False) -> WorkloadPlanner:
        """What plans the queries of a user together."""
        return WorkloadPlanner(
            self._derivations,
            ReleaseSearch(user, self._catalog(self.role(user)), cancellation, estimates=not consistent),
            self.ledger.budgets(user, self.policy).own.limit,
            partial(self.may_read, user),
            lambda read: self._reader.listed(user, read, cancellation),
        )

    def workload(
        self, user: str, queries: Sequence[CompiledQuery], cancellation: Cancellation, *, consistent: bool
    ) -> Workload:
        """Plan queries together, or one after another if that is not cheaper; no private row is read."""
        return self.planner(user, cancellation, consistent=consistent).plan(queries)

    def buy(self, user: str, workload: Workload, cancellation: Cancellation) -> Charge | None:
        """Charge the releases of queries that are planned together, read and store them.

        Returns:
            The charge; None if it is refused, so that the queries are to be answered one after another.

        Raises:
            BackendFailure: The engine failed; the charge stands, and what was stored before is reused.
            QueryCanceled: It was stopped; a charge made stands.
        """
        requests = [request(planned) for planned in workload.bought]
        sql = "; ".join(query.sql for query in workload.queries)
        with ExitStack() as held:
            for key in sorted(planned.key for planned in workload.bought):
                held.enter_context(self._making_alone(key, cancellation))
            reading = Reading(_READ_SECONDS * len(requests), cancellation.check)
            try:
                self._backend.check(workload.bought, (), cancellation)
                for query in workload.queries:
                    self._post.check(query, cancellation)
                charge = self.ledger.charge(user, self.policy, requests, sql=sql, reuse=True, reading=reading)
            except (BudgetExhausted, PolicyViolation, UnsupportedQuery):
                return None
            with self._ended(charge, reading, cancellation) as number:
                self._reader.store(user, workload.bought, charge.releases, cancellation, number, workload.queries)
        return charge

    def recall(
        self,
        user: str,
        role: Role,
        statement: QueryStatement,
        settings: QuerySettings,
        values: Sequence[object] = (),
        types: Sequence[SqlType | None] = (),
    ) -> Answer | None:
        """Answer a repeated query of this user and role from memory; None if memory does not suffice.

        Nothing is waited for: no engine, no disk, no thread.
        """
        key = plan_key(user, role, statement, settings, values, types)
        query = self._plans.get(key)
        if query is None or not query.releases:
            return None
        known: Made | None = None

        def is_known(granted: tuple[GrantedRelease, ...]) -> bool:
            nonlocal known
            known = self._reader.known(query, granted)
            return known is not None

        requests = [request(planned) for planned in query.releases]
        charge = self.ledger.again(user, role.name, self.policy, requests, sql=query.sql, wanted=is_known)
        if charge is None or known is None:
            return None
        return answer_of(known, charge)

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

    @contextmanager
    def _ended(self, charge: Charge, reading: Reading, cancellation: Cancellation) -> Iterator[int | None]:
        """Ensure that a charged read ends in time, and that the ledger records its end."""
        if charge.id is None or not charge.reads:
            yield None
            return
        try:
            with after(reading.seconds, cancellation.cancel):
                yield charge.id
        finally:
            self.ledger.end(charge.id)

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

    def _constants(self, now: datetime, user: str, schemas: tuple[str, ...]) -> Constants:
        return Constants(now, user, self.policy.dataset.name, VERSION_TEXT, schemas)

    def _lock_of(self, key: str) -> threading.Lock:
        with self._making_lock:
            return self._making.setdefault(key, threading.Lock())
