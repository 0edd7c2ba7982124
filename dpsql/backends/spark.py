"""Spark as the engine, through Spark Connect: one session for each query, which can be canceled and has a time limit.

Rule 1: engine SQL names tables by names of the backend. The backend adds a CTE for each name, with the columns that the
    policy needs.
Rule 2: no key and no NOT NULL is relied on, because Spark enforces none. Only the types of columns are facts: a
    statement that finds a column of another type finds no row.
Rule 3: only tables of Parquet are read, never a view, whose own SQL may fail over a row. Values that Spark may fail to
    read (`check_files`) are read only from files that Spark wrote.
Rule 4: once the server has a statement, a row may be the cause of any failure, also of lost executors, memory or disk.
    Spark's own retries read rows again within one charge.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame

from dpsql.backends.backend import (
    MAX_PUBLIC_ROWS,
    NO_INPUTS,
    TOO_MANY_ROWS,
    Cancellation,
    ExactCells,
    ExactRows,
    Inputs,
    PublicRows,
    Runnable,
    Take,
    Unreachable,
    are_lists,
    blocks_of,
    cell_names,
    fetching,
    group_limit,
    public_blocks,
    public_rows,
    public_share,
    together,
    unavailable,
)
from dpsql.backends.fit import TablePath, fitted, needed_columns, path_of
from dpsql.backends.spark_sessions import FAILURES, Session, SparkSessions, is_away
from dpsql.backends.spark_tables import check_files, full_name, read_tables, table_of
from dpsql.compiler.dialects.spark import Spark
from dpsql.compiler.ir.schema import EngineSchema
from dpsql.compiler.plan.query_plan import PlannedRelease, PublicRead
from dpsql.errors import BackendFailure, DatabaseUnavailable, InvalidPolicy, UnsupportedQuery
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import Policy
from dpsql.policy.engines import SPARK

_LOG = logging.getLogger("dpsql.backend")

STATEMENT_SECONDS: Final = 3600.0
"""How long one engine query may run: Spark has large tables."""
CHECK_SECONDS: Final = 60.0
_CHANGED: Final = "the database's tables have changed since the gateway was started"
_BATCH: Final = 10_000


class SparkBackend:
    """A catalog of a Spark Connect server."""

    def __init__(self, url: str, policy: Policy) -> None:
        """Connect, and read the schema.

        Args:
            url: Of the server, with the catalog.
            policy: Whose tables it must have.

        Raises:
            InvalidPolicy: The server cannot be reached or used, or a table or column of the policy is not in the
                catalog, or of another type.
        """
        if policy.dataset.prepared_schema is not None:
            what = "there are no prepared tables where Spark holds the data"
            raise policy.wrong(("dataset", "prepared_schema"), what, "Remove prepared_schema.")
        self._sessions = SparkSessions(url, policy.dataset.timezone)
        self._needed = {path_of(table, policy): needed_columns(table, policy) for table in policy.tables}
        try:
            with self._sessions.session(Cancellation(), CHECK_SECONDS) as session:
                self._found = read_tables(session, self._sessions.catalog, self._needed)
                self._types = {path: found.types for path, found in self._found.items()}
                self._fit(policy)
                for path in self._needed:
                    session.sql(self._source(path)).schema  # noqa: B018  resolving it takes the right to read it
        except Unreachable as error:
            raise InvalidPolicy(f"dataset.url: {error.what}", hint=error.hint) from None
        except FAILURES as error:
            raise InvalidPolicy(
                f"dataset.url: the tables cannot be read: {type(error).__name__}",
                hint="The token's user needs SELECT on the tables of the policy.",
            ) from None
        names = {path: f"{index}.{path[1]}" for index, path in enumerate(sorted(self._needed))}
        self._paths = {Spark.quote_name(name): path for path, name in names.items()}
        self._sources = {name: self._source(path) for name, path in self._paths.items()}
        self._shapes = {name: self._shape(path) for name, path in self._paths.items()}
        self.schema = EngineSchema(
            SPARK,
            {
                table.name: table_of((names[path],), self._types[path])
                for table in policy.tables
                for path in [path_of(table, policy)]
            },
        )
        self._checked = Runnable()

    def check(
        self, releases: tuple[PlannedRelease, ...], public: tuple[PublicRead, ...], cancellation: Cancellation
    ) -> None:
        """Plan engine SQL over no tables but their types, and see that tables have not changed; see Backend.

        A plan shows every cause of failure but rows. A plan over the tables themselves could fail because of a row: the
        names of folders are values of partitions, and Spark reads them when it plans.

        Raises:
            DatabaseUnavailable: The server cannot be reached, or a table has changed.
        """
        asked = {read.sql: _columns(read) for read in public} | {each.sql: _columns(each) for each in releases}
        if not asked:
            return
        try:
            with self._sessions.session(cancellation, CHECK_SECONDS) as session:
                if self._has_changed(session, asked):
                    raise DatabaseUnavailable(
                        f"{_CHANGED}; nothing was charged",
                        hint="The data owner checks the policy and starts the gateway again.",
                    )
                for sql in (each for each in asked if each not in self._checked):
                    frame = _frame(session, _with_tables(self._shapes, sql, asked[sql]), asked[sql])
                    frame._explain_string()  # type: ignore[operator]  # which raises where EXPLAIN would print
        except Unreachable as error:
            raise unavailable(error.what) from None
        except (*FAILURES, TypeError) as error:
            cancellation.check()
            if is_away(error):
                raise unavailable(type(error).__name__) from None
            _LOG.error("generated SQL cannot run: %s", type(error).__name__)
            raise UnsupportedQuery(
                "Spark cannot run this query; nothing was charged",
                hint="Write it in another way, and please report it: dpsql should have refused it with a reason.",
            ) from None
        self._checked.add(asked)

    def fetch(
        self,
        releases: Mapping[int, PlannedRelease],
        public: tuple[PublicRead, ...],
        cancellation: Cancellation,
        inputs: Inputs = NO_INPUTS,
        take: Take | None = None,
        share: MemoryShare | None = None,
    ) -> ExactRows:
        """Run engine queries of one plan; see Backend."""
        kept: dict[int, list[ExactCells]] = {}
        take = take or (lambda index, block: kept.setdefault(index, []).append(block))
        with fetching(cancellation, Exception) as hand_over:
            share = share or public_share("")
            blocks = ((read, self._public(read, cancellation, hand_over)) for read in public)
            rows = {read.sql: public_rows(each, read.width, share) for read, each in blocks}
            for index, planned in releases.items():
                self._read(planned, cancellation, hand_over, partial(take, index))
        return ExactRows({index: together(blocks) for index, blocks in kept.items()}, rows)

    def stream(self, read: PublicRead, cancellation: Cancellation) -> Generator[PublicRows]:
        """Run one engine query over public tables; see Backend."""
        with fetching(cancellation, Exception) as hand_over:
            yield from self._public(read, cancellation, hand_over)

    def count(self, sql: str, names: Sequence[str]) -> tuple[int, ...]:
        """Count for the data owner; see Backend."""
        try:
            with self._sessions.session(Cancellation(), STATEMENT_SECONDS) as session:
                (row,) = session.sql(self._statement(sql, names)).collect()
        except (*FAILURES, Unreachable) as error:
            _LOG.error("engine query failed: %s", type(error).__name__)
            raise BackendFailure() from None
        return tuple(map(int, row))

    def probe(self) -> None:
        """See whether queries could be answered now; see Backend."""
        try:
            with self._sessions.session(Cancellation(), CHECK_SECONDS) as session:
                is_changed = self._has_changed(session, self._paths)
        except (*FAILURES, Unreachable) as error:
            what = error.what if isinstance(error, Unreachable) else type(error).__name__
            raise DatabaseUnavailable(f"the database cannot be reached: {what}") from None
        if is_changed:
            raise DatabaseUnavailable(_CHANGED)

    def warnings(self) -> tuple[str, ...]:
        """Advice for the data owner: none, for no key is relied on; see Backend."""
        return ()

    def advice(self) -> tuple[str, ...]:
        """Statements that make queries faster: none; see Backend."""
        return ()

    def close(self) -> None:
        """Let go of the database: no connection is kept between queries."""

    def _public(
        self, read: PublicRead, cancellation: Cancellation, hand_over: Callable[[], None]
    ) -> Iterator[PublicRows]:
        columns = _columns(read)
        statement = f"{self._statement(read.sql, columns)} LIMIT {MAX_PUBLIC_ROWS + 1}"
        with self._sessions.session(cancellation, STATEMENT_SECONDS) as session:
            hand_over()
            yield from public_blocks(_Rows(session, statement, columns), read.width, TOO_MANY_ROWS)

    def _read(
        self,
        planned: PlannedRelease,
        cancellation: Cancellation,
        hand_over: Callable[[], None],
        take: Callable[[ExactCells], None],
    ) -> None:
        if planned.inputs:
            raise TypeError("the dialect writes no inputs")
        with self._sessions.session(cancellation, STATEMENT_SECONDS) as session:
            hand_over()
            columns = _columns(planned)
            rows = _Rows(session, self._statement(planned.sql, columns), columns)
            for block in blocks_of(planned, _pieces(planned, rows)):
                take(block)
            if self._has_changed(session, [planned.sql]):
                raise TypeError("tables were altered while they were read")

    def _fit(self, policy: Policy) -> None:
        """Refuse tables that are not what the policy says, and those that may fail over a row."""
        fitted(policy, {path: table_of(path, columns) for path, columns in self._types.items()}, SPARK)
        for table in policy.tables:
            path = path_of(table, policy)
            check_files(policy, table.name, ".".join(path), self._found[path], self._needed[path])

    def _statement(self, sql: str, names: Iterable[str]) -> str:
        """SQL with the tables that it names."""
        return _with_tables(self._sources, sql, names)

    def _source(self, path: TablePath) -> str:
        """The needed columns of a table; no rows once a column has another type than when the schema was read."""
        quoted = {name: Spark.quote_name(name) for name in sorted(self._needed[path])}
        types = self._types[path]
        same = [f"typeof({column}) = {Spark.quote_text(_plain(types[name]))}" for name, column in quoted.items()]
        columns = ", ".join(quoted.values()) or "1 AS one"
        return f"SELECT {columns} FROM {self._full_name(path)} WHERE {' AND '.join(same) or 'true'}"

    def _shape(self, path: TablePath) -> str:
        """The columns of a table with their types, without the table. The optimizer cannot compute these values."""
        types = {name: self._types[path][name] for name in sorted(self._needed[path])}
        columns = ", ".join(
            f"try_cast(string(id) AS {kind}) AS {Spark.quote_name(name)}" for name, kind in types.items()
        )
        return f"SELECT {columns or '1 AS one'} FROM range(1)"

    def _full_name(self, path: TablePath) -> str:
        return full_name(self._sessions.catalog, path)

    def _has_changed(self, session: Session, statements: Iterable[str]) -> bool:
        """Whether a table that is named in statements has changed."""
        read = [path for name, path in self._paths.items() if any(name in sql for sql in statements)]
        return read_tables(session, self._sessions.catalog, read) != {path: self._found[path] for path in read}


def _with_tables(tables: Mapping[str, str], sql: str, names: Iterable[str]) -> str:
    """SQL with a CTE for each table that it names."""
    named = [f"{name} AS ({source})" for name, source in tables.items() if name in sql]
    return f"WITH {', '.join([*named, f'answer AS ({sql})'])} SELECT {', '.join(names)} FROM answer"


class _Rows:
    """The rows of a statement, as they come from the server."""

    def __init__(self, session: Session, statement: str, columns: Mapping[str, str]) -> None:
        self._rows = _frame(session, statement, columns).toLocalIterator()

    def fetchmany(self, size: int, /) -> list[tuple[Any, ...]]:
        """Return at most `size` further rows; an empty list at the end."""
        return list(islice(self._rows, size))


def _pieces(planned: PlannedRelease, rows: _Rows) -> Iterator[ExactCells]:
    """The groups of a release, in pieces; the last may be empty."""
    limit, is_text = group_limit(planned) or _BATCH, are_lists(planned)
    while True:
        found = rows.fetchmany(limit)
        width = planned.keys + 1 + len(is_text)
        columns = list(zip(*found, strict=True)) or [()] * width
        units, *counted = columns[planned.keys :]
        yield ExactCells(
            tuple(np.array(column, dtype=object) for column in columns[: planned.keys]),
            np.array(units, dtype=np.int64),
            tuple(
                np.array(column, dtype=object if text else np.int64)
                for column, text in zip(counted, is_text, strict=True)
            ),
        )
        if len(found) < limit:
            return


def _frame(session: Session, statement: str, columns: Mapping[str, str]) -> DataFrame:
    """The answer of a statement; nothing is computed yet.

    Raises:
        TypeError: A column has an unexpected type.
    """
    frame = session.sql(statement)
    if frame.dtypes != list(columns.items()):
        raise TypeError("a column has an unexpected type")
    return frame


def _columns(asked: PlannedRelease | PublicRead) -> dict[str, str]:
    """The columns of engine SQL, with their types in Spark."""
    if isinstance(asked, PublicRead):
        return {f"v{index}": "string" for index in range(asked.width)} or {"one": "int"}
    kinds = ["string"] * asked.keys + ["bigint"]
    kinds += ["string" if is_list else "bigint" for is_list in are_lists(asked)]
    return dict(zip(cell_names(asked), kinds, strict=True))


def _plain(type_name: str) -> str:
    """The name that typeof gives a type: it has no length of text."""
    return "string" if type_name.startswith(("varchar", "char")) else type_name
