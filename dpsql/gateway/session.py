"""session: the statements of one user, one after another: the same for the wire, the DB-API and the CLI.

Rule: describing never executes and never charges.
"""

import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from dpsql.backends import Cancellation
from dpsql.backends.deadlines import after
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.sql.parse import parse
from dpsql.compiler.sql.statements import (
    CharacteristicsStatement,
    CloseStatement,
    CopyStatement,
    DeallocateStatement,
    DeclareStatement,
    DiscardStatement,
    EmptyStatement,
    ExecuteStatement,
    ExplainStatement,
    FetchStatement,
    ListenStatement,
    LockStatement,
    PrepareStatement,
    QueryStatement,
    ResetStatement,
    SetStatement,
    ShowStatement,
    TransactionStatement,
    WorkloadStatement,
)
from dpsql.compiler.sql.statements import Statement as ParsedStatement
from dpsql.errors import (
    Error,
    NoTransaction,
    UndefinedColumn,
    UnsupportedQuery,
)
from dpsql.gateway.answers import Answer, Explanation
from dpsql.gateway.catalog_provider import CatalogContext, CatalogProvider, NoCatalog
from dpsql.gateway.cursors import Cursors
from dpsql.gateway.engine import Engine
from dpsql.gateway.explain import (
    explanation_json,
    explanation_lines,
    joint_json,
    joint_lines,
    sql_lines,
    workload_json,
    workload_lines,
)
from dpsql.gateway.notices import answer_notice, bounding_notice, target_text, workload_notice
from dpsql.gateway.prepared_statements import PreparedQuery, PreparedStatements, arguments_query
from dpsql.gateway.prices import Quotation
from dpsql.gateway.query_run import Description, Notice, QueryParameters, QueryRequest, Result, ResultColumn
from dpsql.gateway.response_padding import held_back, whole_quanta
from dpsql.gateway.settings import CONSISTENT, Reuse, Settings
from dpsql.gateway.target import Pursuit
from dpsql.gateway.transactions import Transactions
from dpsql.gateway.workloads import Workload
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class Statement:
    """A statement, parsed but not looked into.

    Attributes:
        sql: Its text.
        parsed: What it is.
        before: Of the last EXPLAIN of several in a row: the others' queries, which it is priced together with.
        following: Of the first query of several in a row: the others, which it is planned together with.
    """

    sql: str
    parsed: ParsedStatement
    before: tuple[QueryStatement, ...] = ()
    following: tuple[QueryStatement, ...] = ()


_REMEMBERED_TEXT = 10_000
"""Characters of a text that is parsed once."""
_PLAN_COLUMNS = (ResultColumn("QUERY PLAN", SqlType.TEXT),)
_JSON_PLAN_COLUMNS = (ResultColumn("QUERY PLAN", SqlType.JSON),)
_SHOW_ALL = (ResultColumn("name", SqlType.TEXT), ResultColumn("setting", SqlType.TEXT))


class Session:
    """One user's session; it runs one statement at a time, and may be cancelled from another thread."""

    def __init__(self, engine: Engine, user: str, provider: CatalogProvider | None = None) -> None:
        """Open a session.

        Args:
            engine: What answers queries over the policy's tables.
            user: Whose session it is.
            provider: What answers queries over the catalog; None where there is none.

        Raises:
            PolicyViolation: The user has no role in the policy.
        """
        self._engine = engine
        self._user = user
        self._provider: CatalogProvider = provider or NoCatalog()
        self._settings = Settings(engine.policy, engine.role(user))
        self._cursors = Cursors()
        self._transactions = Transactions(self._settings, self._cursors)
        self._prepared = PreparedStatements()
        self._last_told: tuple[tuple[object, ...], tuple[Notice, ...]] | None = None
        self._cancellation: Cancellation | None = None
        self._begun = 0.0
        self._lock = threading.Lock()

    @property
    def user(self) -> str:
        """Whose session it is."""
        return self._user

    @property
    def transaction(self) -> str:
        """I: none; T: in a transaction; E: in a failed one."""
        return self._transactions.status

    @property
    def parameters(self) -> dict[str, str]:
        """The settings that clients are told of."""
        return self._settings.reported()

    @property
    def output_settings(self) -> dict[str, str]:
        """The settings that say how values are printed."""
        return self._settings.output()

    @property
    def reply_quantum(self) -> int:
        """Milliseconds to a multiple of which replies are padded; 0 for none."""
        return self._engine.policy.dataset.reply_quantum

    @property
    def changes(self) -> int:
        """Grows when settings change; what was described before may have another shape then."""
        return self._settings.changes

    @property
    def generation(self) -> int:
        """Grows when policies are loaded again; what was described before may have another shape then."""
        return 0

    def adopt(self, engine: Engine, provider: CatalogProvider) -> None:
        """Go on over another engine of the same dataset, whose policy was loaded again.

        Raises:
            PolicyViolation: The user has no role in it; everything stays as it was.
        """
        self._settings.policy, self._settings.role = engine.policy, engine.role(self._user)
        self._engine, self._provider = engine, provider

    def configure(self, name: str, value: str) -> None:
        """Change a setting as SET does, outside any transaction.

        Raises:
            UndefinedObject: There is no such setting.
            InvalidParameter: The value is out of range.
        """
        self._settings.set(name, value)

    @contextmanager
    def configured(self, settings: Mapping[str, str] | None) -> Iterator[None]:
        """For what is done inside, change settings as SET does; after it all are what they were.

        Raises:
            UndefinedObject: There is no such setting.
            InvalidParameter: A value is out of range.
        """
        if not settings:  # what is set inside stays
            yield
            return
        before = self._settings.snapshot()
        try:
            for name, value in settings.items():
                self._settings.set(name, value)
            yield
        finally:
            self._settings.restore(before)

    def parse(self, sql: str) -> tuple[Statement, ...]:
        """Split text into statements.

        Raises:
            Error: It cannot be read, is too long, or holds a statement of a kind that is not run.
        """
        return _parsed(sql) if len(sql) > _REMEMBERED_TEXT else _remembered(sql)

    def describe(self, statement: Statement, parameter_types: Sequence[SqlType | None] = ()) -> Description:
        """Tell what a statement takes and returns; nothing is executed, charged or read.

        Raises:
            Error: As executing would, where it does not depend on values.
        """
        self._transactions.check(statement.parsed)
        match statement.parsed:
            case QueryStatement() as query:
                return self._describe(query, parameter_types)
            case ExplainStatement() as explained:
                schemas = self._settings.schemas(self._user)
                described = self._engine.describe(self._user, explained.query, parameter_types, schemas=schemas)
                return Description(described.parameters, _JSON_PLAN_COLUMNS if explained.json else _PLAN_COLUMNS)
            case WorkloadStatement() as explained:
                return Description((), _JSON_PLAN_COLUMNS if explained.json else _PLAN_COLUMNS)
            case ShowStatement() as shown:
                return Description((), self._show_columns(shown.name))
            case DeclareStatement() as declared:
                return Description(self._describe(declared.query, parameter_types).parameters, None)
            case FetchStatement(move=False) as fetched:
                return Description((), self._cursors.columns(fetched.name))
            case ExecuteStatement() as executed:
                return Description((), self._describe_prepared(self._prepared[executed.name]).columns)
            case _:
                return Description((), None)

    def _describe(self, query: QueryStatement, types: Sequence[SqlType | None]) -> Description:
        browsed = self._provider.describe(query, types, self._context())
        if browsed is not None:
            return browsed
        schemas, intervals = self._settings.schemas(self._user), self._settings.is_on("dpsql.intervals")
        described = self._engine.describe(self._user, query, types, schemas=schemas, intervals=intervals)
        return Description(described.parameters, self._columns(described.columns), elements=described.elements)

    def _describe_prepared(self, prepared: PreparedQuery) -> Description:
        return self._describe(prepared.query, prepared.types)

    def describe_cursor(self, name: str) -> tuple[ResultColumn, ...]:
        """Tell the columns of a cursor that SQL has declared.

        Raises:
            UnknownPortal: There is none of that name.
        """
        return self._cursors.columns(name)

    def execute(
        self, statement: Statement, parameters: Sequence[object] = (), types: Sequence[SqlType | None] = ()
    ) -> Result:
        """Run a statement.

        Args:
            statement: What to run.
            parameters: Values of $1, $2 …
            types: Their types as they were described, so that the columns are those described too.

        Raises:
            Error: A typed refusal or failure; in a transaction, it fails.
        """
        self._transactions.check(statement.parsed)
        self._transactions.begin_statement()
        try:
            return self._run(statement, QueryParameters(parameters, types))
        except Error:
            self.fail()
            raise

    def recall(
        self, statement: Statement, parameters: Sequence[object] = (), types: Sequence[SqlType | None] = ()
    ) -> Result | None:
        """Run a statement as `execute` does, if that takes no more than memory and waits for nothing; else do nothing.

        Args:
            statement: What to run.
            parameters: Values of $1, $2 …
            types: Their types as they were described.
        """
        if not isinstance(statement.parsed, QueryStatement) or statement.following or self.transaction == "E":
            return None
        question = QueryParameters(parameters, types)
        answer = self._asked(statement.parsed, question).recall()
        return None if answer is None else self._result(answer, None)

    def explain(self, statement: Statement, parameters: Sequence[object] = ()) -> Explanation:
        """Tell what a query would do and cost; nothing is read and nothing is spent.

        Raises:
            Error: As executing would, but for a budget that does not cover it.
        """
        parsed = statement.parsed
        query = parsed.query if isinstance(parsed, ExplainStatement) else parsed
        if not isinstance(query, QueryStatement):
            raise UnsupportedQuery("only a query can be explained", hint="Write: EXPLAIN SELECT * FROM dpsql.columns")
        self._transactions.begin_statement()
        with self._stoppable() as cancellation:
            return self._request(query, QueryParameters(parameters)).explain(cancellation)

    def quote(self, explanations: Sequence[Explanation]) -> Quotation:
        """Tell what explained queries would be charged one after another; nothing is read and nothing is spent."""
        statements = [explanation.charged for explanation in explanations]
        return self._engine.quote(self._user, statements, reuse=self._settings.reuse is not Reuse.OFF)

    def _quote(self, queries: Iterable[CompiledQuery]) -> Quotation:
        reuse = self._settings.reuse is not Reuse.OFF
        return self._engine.quote(self._user, [[query] for query in queries], reuse=reuse)

    def fail(self) -> None:
        """Note that something went wrong: a transaction that is open has failed."""
        self._transactions.fail()

    def begin_implicit(self, *, several: bool = False) -> None:
        """What follows is one transaction, up to `end_implicit`: `several` statements of one text, or a pipeline."""
        self._transactions.begin_implicit(several)

    def end_implicit(self) -> tuple[tuple[str, str], ...]:
        """End that transaction; what had failed is undone. Return the settings that clients are told of."""
        return self._transactions.end_implicit()

    def cancel(self) -> None:
        """Stop the statement that runs, if one does, at the end of its quantum; from any thread."""
        with self._lock:
            running, begun = self._cancellation, self._begun
        if running is None:
            return
        if self.reply_quantum:
            after(held_back(time.monotonic() - begun, self.reply_quantum), running.cancel)
        else:
            running.cancel()

    def close(self) -> None:
        """End the session."""
        with self._lock:
            if self._cancellation is not None:
                self._cancellation.cancel()

    def _run(self, statement: Statement, parameters: QueryParameters) -> Result:
        match parsed := statement.parsed:
            case QueryStatement():
                return self._query(parsed, parameters, statement.following)
            case ExplainStatement():
                return self._explain(parsed, parameters, statement.before)
            case WorkloadStatement():
                return self._explain_workload(parsed)
            case SetStatement():
                return self._set(parsed)
            case ShowStatement():
                return self._show(parsed.name)
            case ResetStatement():
                return self._transactions.changed("RESET", lambda: self._reset(parsed.name))
            case TransactionStatement():
                return self._transactions.run(parsed)
            case CharacteristicsStatement():
                return self._transactions.characterize(parsed)
            case DiscardStatement():
                return self._discard(parsed.what.upper())
            case PrepareStatement() | DeallocateStatement() | ExecuteStatement():
                return self._run_prepared(parsed)
            case DeclareStatement() | FetchStatement() | CloseStatement():
                return self._run_cursor(parsed, parameters)
            case CopyStatement():
                return self._copy(parsed, parameters)
            case ListenStatement():
                return Result(parsed.word)
            case LockStatement():
                return self._lock_nothing()
            case EmptyStatement():
                return Result("")

    def _lock_nothing(self) -> Result:
        if not self._transactions.is_block:
            raise NoTransaction("LOCK TABLE can only be used in transaction blocks", hint="BEGIN")
        return Result("LOCK TABLE")

    def _copy(self, parsed: CopyStatement, parameters: QueryParameters) -> Result:
        names = {column.name for column in self._describe(parsed.query, ()).columns or ()}
        for name in parsed.options.force_quote or ():
            if name not in names:
                raise UndefinedColumn(f'FORCE_QUOTE column "{name}" is not in the result', hint="FORCE_QUOTE *")
        result = self._query(parsed.query, parameters)
        return replace(result, tag=f"COPY {len(result.rows)}", copy=parsed.options)

    def _discard(self, what: str) -> Result:
        if what != "ALL":
            return Result(f"DISCARD {what}")
        self._cursors.close(None)
        self._prepared.forget(None)
        return self._transactions.changed("DISCARD ALL", self._settings.reset)

    def _run_prepared(self, parsed: PrepareStatement | DeallocateStatement | ExecuteStatement) -> Result:
        match parsed:
            case PrepareStatement():
                self._prepared.check_free(parsed.name)
                described = self._describe(parsed.query, parsed.types)
                self._prepared.add(parsed.name, PreparedQuery(parsed.query, described.parameters))
                return Result("PREPARE")
            case DeallocateStatement():
                self._prepared.forget(parsed.name)
                return Result("DEALLOCATE" if parsed.name is not None else "DEALLOCATE ALL")
            case ExecuteStatement():
                prepared = self._prepared[parsed.name]
                return self._query(prepared.query, QueryParameters(self._arguments(parsed, prepared), prepared.types))

    def _arguments(self, parsed: ExecuteStatement, prepared: PreparedQuery) -> Sequence[object]:
        """The values of EXECUTE's arguments, which are constants: whatever reads anything is refused."""
        query = arguments_query(parsed, prepared)
        if query is None:
            return ()
        compiled = self._request(query, QueryParameters()).compile()
        if compiled.releases or compiled.public_reads or compiled.system_reads:
            raise UnsupportedQuery("cannot use subquery in EXECUTE parameter", hint=f"EXECUTE {parsed.name} (40)")
        return self._engine.execute(self._user, compiled, Cancellation()).rows.rows[0]

    def _run_cursor(
        self, parsed: DeclareStatement | FetchStatement | CloseStatement, parameters: QueryParameters
    ) -> Result:
        match parsed:
            case DeclareStatement():
                if not parsed.hold and not self._transactions.is_block:
                    raise NoTransaction(
                        "DECLARE CURSOR can only be used in transaction blocks", hint="BEGIN; or DECLARE … WITH HOLD"
                    )
                self._cursors.check_free(parsed.name)
                result = self._query(parsed.query, parameters)
                self._cursors.add(parsed, result)
                return Result("DECLARE CURSOR", notices=result.notices, answer=result.answer)
            case FetchStatement():
                return self._cursors.fetch(parsed)
            case CloseStatement():
                self._cursors.close(parsed.name)
                return Result("CLOSE CURSOR" if parsed.name is not None else "CLOSE CURSOR ALL")

    def _request(self, query: QueryStatement, parameters: QueryParameters) -> QueryRequest:
        self._settings.role = self._engine.role(self._user)  # the data owner may have changed it
        return self._asked(query, parameters)

    def _asked(self, query: QueryStatement, parameters: QueryParameters) -> QueryRequest:
        return QueryRequest(self._engine, self._user, self._settings, query, parameters, self._now)

    @property
    def _now(self) -> datetime:
        """The time of the transaction, in the dataset's zone: equal queries are compiled to equal releases in it."""
        return self._transactions.began.astimezone(ZoneInfo(self._engine.policy.dataset.timezone))

    def _explain(
        self, statement: ExplainStatement, parameters: QueryParameters, before: tuple[QueryStatement, ...]
    ) -> Result:
        with self._stoppable() as cancellation:
            requests = (self._request(query, parameters) for query in (*before, statement.query))
            explained = [request.explain(cancellation) for request in requests]
        joint = self.quote(explained) if before else None
        if statement.json:
            told = explanation_json(explained[-1]) | ({"joint": joint_json(joint)} if joint is not None else {})
            return Result("EXPLAIN", _JSON_PLAN_COLUMNS, [(json.dumps(told, ensure_ascii=False),)])
        lines = explanation_lines(explained[-1]) + (joint_lines(explained, joint) if joint is not None else [])
        lines += sql_lines(explained[-1].query)
        return Result("EXPLAIN", _PLAN_COLUMNS, [(line,) for line in lines])

    def _explain_workload(self, statement: WorkloadStatement) -> Result:
        with self._stoppable() as cancellation:
            compiled = [self._request(query, QueryParameters()).compile_shown() for query in statement.queries]
            workload = self._workload(compiled, cancellation) if self._plans_together else None
        queries = compiled if workload is None else workload.queries
        joint = self._quote(queries)
        if statement.json:
            told = json.dumps(workload_json(queries, workload, joint), ensure_ascii=False)
            return Result("EXPLAIN", _JSON_PLAN_COLUMNS, [(told,)])
        return Result("EXPLAIN", _PLAN_COLUMNS, [(line,) for line in workload_lines(queries, workload, joint)])

    def _query(
        self, statement: QueryStatement, parameters: QueryParameters, following: tuple[QueryStatement, ...] = ()
    ) -> Result:
        with self._stoppable() as cancellation:
            bought = self._buy((statement, *following), cancellation) if following and self._plans_together else ()
            try:
                result = self._answer(statement, parameters, cancellation)
            except Error as error:
                error.notices = tuple(notice.text for notice in bought)
                raise
        return replace(result, notices=(*bought, *result.notices))

    def _answer(self, statement: QueryStatement, parameters: QueryParameters, cancellation: Cancellation) -> Result:
        browsed = self._ask_catalog(statement, parameters, cancellation)
        return browsed or self._result(*self._request(statement, parameters).answer(cancellation))

    @property
    def _plans_together(self) -> bool:
        """Whether queries of one message are planned together: their answers may be derived, and no target is set."""
        return self._settings.reuse is Reuse.DERIVED and self._settings.target_error is None

    def _buy(self, queries: Sequence[QueryStatement], cancellation: Cancellation) -> tuple[Notice, ...]:
        """Buy what queries in a row share, if that saves and the budget covers all; what is refused ends the row."""
        compiled: list[CompiledQuery] = []
        with suppress(Error):
            for query in queries:
                compiled.append(self._request(query, QueryParameters()).compile_shown())
        if len(compiled) < 2:
            return ()
        workload = self._workload(compiled, cancellation)
        if not workload.saves or not self._quote(workload.queries).fits:
            return ()
        if self._engine.buy(self._user, workload, cancellation) is None:
            return ()
        return (Notice(workload_notice(workload)),) if self._settings.is_on("dpsql.notices") else ()

    def _workload(self, queries: Sequence[CompiledQuery], cancellation: Cancellation) -> Workload:
        consistent = self._settings.is_on(CONSISTENT)
        return self._engine.workload(self._user, queries, cancellation, consistent=consistent)

    @contextmanager
    def _stoppable(self) -> Iterator[Cancellation]:
        """Let what runs here be stopped by `cancel`, and by the time limit for statements."""
        cancellation = Cancellation()
        with self._lock:
            self._cancellation, self._begun = cancellation, time.monotonic()
        timeout = whole_quanta(self._settings.statement_timeout, self.reply_quantum)
        try:
            with after(timeout, cancellation.cancel) if timeout else nullcontext():
                yield cancellation
        finally:
            with self._lock:
                self._cancellation = None

    def _result(self, answer: Answer, pursuit: Pursuit | None) -> Result:
        rows = answer.rows.rows
        columns = self._columns((column.name, column.type) for column in answer.columns)
        return Result(f"SELECT {len(rows)}", columns, rows, self._told(answer, pursuit), answer=answer)

    def _told(self, answer: Answer, pursuit: Pursuit | None) -> tuple[Notice, ...]:
        """The notices; those of the last answer where they tell of the very same things, as when it is asked again."""
        charge = answer.charge
        if charge is None or answer.earlier or pursuit is not None:
            return tuple(self._notices(answer, pursuit))
        shared = (charge.shared.limit, charge.shared.spent) if charge.shared is not None else ()
        switches = self._settings.is_on("dpsql.notices"), self._settings.is_on("dpsql.intervals"), answer.reused
        things = (answer.query, answer.rows, charge.price, charge.limit, charge.spent, *shared, *switches)
        if self._last_told is None or not _are_the_same(things, self._last_told[0]):
            self._last_told = things, tuple(self._notices(answer, None))
        return self._last_told[1]

    def _ask_catalog(
        self, statement: QueryStatement, parameters: QueryParameters, cancellation: Cancellation
    ) -> Result | None:
        """Answer a query over the catalog; it may have changed a setting by set_config."""
        before = self._settings.reported()
        context = self._context()
        result = self._provider.execute(statement, parameters.values, parameters.types, context, cancellation)
        return None if result is None else replace(result, parameters=self._settings.reported_since(before))

    def _context(self) -> CatalogContext:
        dataset, schemas = self._engine.policy.dataset.name, self._settings.schemas(self._user)
        return CatalogContext(self._user, dataset, schemas, self._all_settings, self._now, self._set_config)

    def _all_settings(self) -> dict[str, str]:
        return {name: self._settings.show(name) for name in self._settings.names()}

    def _set_config(self, name: str, value: str, local: bool) -> str:
        """set_config: as SET or SET LOCAL, with the value that the setting has then."""
        if local and not self._transactions.is_block:
            return value
        self._settings.set(name, value, local=local)
        return self._settings.show(name)

    def _notices(self, answer: Answer, pursuit: Pursuit | None) -> Iterator[Notice]:
        if answer.query.invented:
            # Nothing switches this off: nobody may take these rows for data.
            yield Notice(
                "these rows are synthetic: rows of protected tables are not shown",
                detail="They come from the bounds and domains of the policy only.",
                hint="Aggregate the rows for answers about the data.",
            )
        if answer.query.withheld:
            yield Notice(
                "rows of protected tables are not returned",
                hint="Aggregate the rows: SELECT COUNT(*) FROM the same table.",
            )
        if pursuit is not None and pursuit.failure is not None:
            # Nothing switches this off: the answer is less exact than was asked.
            yield _warning(target_text(pursuit), "01000", pursuit.failure)
        if self._settings.is_on("dpsql.notices"):
            message = answer_notice(answer, pursuit, calibrated=self._settings.is_on("dpsql.calibrate"))
            if message is not None:
                yield Notice(message, detail=bounding_notice(answer.query, answer.rows.dropped))

    def _show_columns(self, name: str) -> tuple[ResultColumn, ...]:
        return _SHOW_ALL if name == "all" else (ResultColumn(self._settings.spelling(name), SqlType.TEXT),)

    def _show(self, name: str) -> Result:
        if name == "all":
            rows: list[tuple[object, ...]] = [(known, self._settings.show(known)) for known in self._settings.names()]
        else:
            rows = [(self._settings.show(name),)]
        return Result("SHOW", self._show_columns(name), rows)

    def _set(self, parsed: SetStatement) -> Result:
        if parsed.local and not self._transactions.is_block:
            return Result("SET", notices=(_warning("SET LOCAL can only be used in transaction blocks", "25P01"),))
        of_transaction = parsed.name.startswith("transaction_")
        if of_transaction and not self._transactions.is_block:
            return Result("SET")  # of the transaction that this statement is by itself
        local = parsed.local or of_transaction
        return self._transactions.changed("SET", lambda: self._settings.set(parsed.name, parsed.value, local=local))

    def _reset(self, name: str | None) -> None:
        if name is None:
            self._settings.reset()
        else:
            self._settings.set(name, None)

    @staticmethod
    def _columns(columns: Iterable[tuple[str, SqlType]]) -> tuple[ResultColumn, ...]:
        return tuple(ResultColumn(name, sql_type) for name, sql_type in columns)


def _parsed(sql: str) -> tuple[Statement, ...]:
    statements = parse(sql)
    return tuple(
        Statement(one.sql, one, _explained_before(statements, at), _following(statements, at))
        for at, one in enumerate(statements)
    )


@lru_cache(maxsize=1000)
def _remembered(sql: str) -> tuple[Statement, ...]:
    """What a text parses to depends on nothing else."""
    return _parsed(sql)


def _explained_before(statements: Sequence[ParsedStatement], at: int) -> tuple[QueryStatement, ...]:
    """What is explained right before the last EXPLAIN of several in a row; nothing for any other statement."""
    queries = [one.query if isinstance(one, ExplainStatement) else None for one in statements]
    if queries[at] is None or (at + 1 < len(queries) and queries[at + 1] is not None):
        return ()
    before = list(itertools.takewhile(lambda query: query is not None, reversed(queries[:at])))
    return tuple(query for query in reversed(before) if query is not None)


def _following(statements: Sequence[ParsedStatement], at: int) -> tuple[QueryStatement, ...]:
    """What follows right after the first query of several in a row; nothing for any other statement."""
    if not isinstance(statements[at], QueryStatement) or (at and isinstance(statements[at - 1], QueryStatement)):
        return ()
    found: list[QueryStatement] = []
    for one in statements[at + 1 :]:
        if not isinstance(one, QueryStatement):
            break
        found.append(one)
    return tuple(found)


def _are_the_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _warning(message: str, sqlstate: str, detail: str | None = None) -> Notice:
    return Notice(message, severity="WARNING", sqlstate=sqlstate, detail=detail)
