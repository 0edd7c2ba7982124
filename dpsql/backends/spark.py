"""Spark as the engine, through Spark Connect: a session a query, cancellable and bounded in time.

Rule 1: engine SQL names tables as the backend names them, and the backend puts in front what each name stands for: the
    columns that the policy needs, and under check the same without a row.
Rule 2: no key, and no NOT NULL, is believed: Spark enforces none. Of a table, types alone are facts, and a statement
    that finds a column of another type finds no row.
Rule 3: what is read is a table of files, never a view: a view's own SQL may fail over a row. Moments are read of files
    that Spark wrote, for a moment of another writer's may be none that Spark can hold, and to read it fails.
Rule 4: once the server has a statement, whatever fails may do so over a row: executors that are lost, memory and disk
    among it. Spark's own retries read again within one charge.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final

import numpy as np
from pyspark.errors import AnalysisException

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
from dpsql.compiler.dialects.spark import Spark
from dpsql.compiler.ir.schema import EngineColumn, EngineSchema, EngineTable
from dpsql.compiler.plan.query_plan import PlannedRelease, PublicRead
from dpsql.errors import BackendFailure, DatabaseUnavailable, InvalidPolicy, UnsupportedQuery
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import Policy
from dpsql.policy.engines import SPARK
from dpsql.sqltypes import SqlType

_LOG = logging.getLogger("dpsql.backend")

STATEMENT_SECONDS: Final = 3600.0
"""How long one engine query may run: tables are large where Spark is asked."""
CHECK_SECONDS: Final = 60.0
_CHANGED: Final = "the database's tables have changed since the gateway was started"
_DETAILS: Final = "# Detailed Table Information"
"""What stands before what Spark tells of a table beside its columns."""
_PROVIDERS: Final = ("parquet", "delta", "iceberg")
_MANAGED: Final = "MANAGED"
_BATCH: Final = 10_000
_TYPES: Final = {
    "boolean": SqlType.BOOLEAN,
    "tinyint": SqlType.SMALLINT,
    "smallint": SqlType.SMALLINT,
    "int": SqlType.INTEGER,
    "bigint": SqlType.BIGINT,
    "float": SqlType.REAL,
    "double": SqlType.DOUBLE,
    "string": SqlType.TEXT,
    "varchar": SqlType.TEXT,
    "char": SqlType.TEXT,
    "decimal": SqlType.NUMERIC,
    "date": SqlType.DATE,
    "timestamp": SqlType.TIMESTAMPTZ,
    "timestamp_ntz": SqlType.TIMESTAMP,
    "binary": SqlType.BYTEA,
}


@dataclass(frozen=True)
class Described:
    """What Spark tells of a table.

    Attributes:
        types: The type of each column, in Spark's words.
        kind: Whether it is a view, or a table whose files Spark manages.
        provider: What its files are.
    """

    types: Mapping[str, str]
    kind: str
    provider: str


Tables = dict[TablePath, Described]
"""By the path of a table, what it is."""


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
            raise InvalidPolicy(
                "dataset.prepared_schema: there are no prepared tables where Spark holds the data",
                hint="Remove prepared_schema.",
            )
        self._sessions = SparkSessions(url, policy.dataset.timezone)
        self._needed = {path_of(table, policy): needed_columns(table, policy) for table in policy.tables}
        try:
            with self._sessions.session(Cancellation(), CHECK_SECONDS) as session:
                self._found = self._read_tables(session, self._needed)
        except Unreachable as error:
            raise InvalidPolicy(f"dataset.url: {error.what}", hint=error.hint) from None
        except FAILURES as error:
            raise InvalidPolicy(
                f"dataset.url: the tables cannot be read: {type(error).__name__}",
                hint="The token's user needs SELECT on the tables of the policy.",
            ) from None
        self._types = {path: found.types for path, found in self._found.items()}
        fitted(policy, {path: _table(path, columns) for path, columns in self._types.items()}, SPARK)
        for table in policy.tables:
            path = path_of(table, policy)
            _check_files(f"{policy.path}: tables.{table.name}", ".".join(path), self._found[path], self._needed[path])
        names = {path: f"{index}.{path[1]}" for index, path in enumerate(sorted(self._needed))}
        self._paths = {Spark.quote_name(name): path for path, name in names.items()}
        self._sources = {name: self._source(path) for name, path in self._paths.items()}
        self.schema = EngineSchema(
            SPARK,
            {
                table.name: _table((names[path],), self._types[path])
                for table in policy.tables
                for path in [path_of(table, policy)]
            },
        )
        self._checked, self._has_changed = Runnable(), False

    def check(
        self, releases: tuple[PlannedRelease, ...], public: tuple[PublicRead, ...], cancellation: Cancellation
    ) -> None:
        """Run engine SQL on empty tables of the same schema; see Backend.

        Raises:
            DatabaseUnavailable: The server cannot be reached, or its tables have changed.
        """
        asked = {read.sql: _public_names(read) for read in public} | {each.sql: cell_names(each) for each in releases}
        unknown = {sql: names for sql, names in asked.items() if sql not in self._checked}
        if not unknown and not self._has_changed:
            return
        try:
            with self._sessions.session(cancellation, CHECK_SECONDS) as session:
                self._has_changed = self._read_tables(session, self._needed) != self._found
                if self._has_changed:
                    raise DatabaseUnavailable(
                        f"{_CHANGED}; nothing was charged",
                        hint="The data owner checks the policy and starts the gateway again.",
                    )
                for sql, names in unknown.items():
                    session.sql(self._statement(sql, names, empty=True)).toArrow()
        except Unreachable as error:
            raise unavailable(error.what) from None
        except FAILURES as error:
            cancellation.check()
            if is_away(error):
                raise unavailable(type(error).__name__) from None
            _LOG.error("generated SQL cannot run: %s", type(error).__name__)
            raise UnsupportedQuery(
                "Spark cannot run this query; nothing was charged",
                hint="Write it in another way, and please report it: dpsql should have refused it with a reason.",
            ) from None
        self._checked.add(unknown)

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
                is_changed = self._read_tables(session, self._needed) != self._found
        except (*FAILURES, Unreachable) as error:
            what = error.what if isinstance(error, Unreachable) else type(error).__name__
            raise DatabaseUnavailable(f"the database cannot be reached: {what}") from None
        if is_changed:
            raise DatabaseUnavailable(_CHANGED)

    def warnings(self) -> tuple[str, ...]:
        """What the data owner should know: nothing, for no key is believed anyway; see Backend."""
        return ()

    def advice(self) -> tuple[str, ...]:
        """Statements that make queries faster: none; see Backend."""
        return ()

    def close(self) -> None:
        """Let go of the database: nothing is held between queries."""

    def _public(
        self, read: PublicRead, cancellation: Cancellation, hand_over: Callable[[], None]
    ) -> Iterator[PublicRows]:
        statement = f"{self._statement(read.sql, _public_names(read))} LIMIT {MAX_PUBLIC_ROWS + 1}"
        with self._sessions.session(cancellation, STATEMENT_SECONDS) as session:
            hand_over()
            yield from public_blocks(_Rows(session, statement, ["string"] * read.width), read.width, TOO_MANY_ROWS)

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
            kinds = ["string"] * planned.keys + ["bigint"]
            kinds += ["string" if is_list else "bigint" for is_list in are_lists(planned)]
            rows = _Rows(session, self._statement(planned.sql, cell_names(planned)), kinds)
            for block in blocks_of(planned, _pieces(planned, rows)):
                take(block)
            read = [path for name, path in self._paths.items() if name in planned.sql]
            self._has_changed = self._read_tables(session, read) != {path: self._found[path] for path in read}
            if self._has_changed:
                raise TypeError("tables were altered while they were read")

    def _statement(self, sql: str, names: Sequence[str], *, empty: bool = False) -> str:
        """SQL with the tables that it names, or with none of their rows."""
        sources = [
            f"{name} AS ({source}{' AND false' if empty else ''})"
            for name, source in self._sources.items()
            if name in sql
        ]
        return f"WITH {', '.join([*sources, f'answer AS ({sql})'])} SELECT {', '.join(names)} FROM answer"

    def _source(self, path: TablePath) -> str:
        """The needed columns of a table, as long as they are of the types that the schema was read with."""
        quoted = {name: Spark.quote_name(name) for name in sorted(self._needed[path])}
        types = self._types[path]
        same = [f"typeof({column}) = {Spark.quote_text(_plain(types[name]))}" for name, column in quoted.items()]
        columns = ", ".join(quoted.values()) or "1 AS one"
        return f"SELECT {columns} FROM {self._full_name(path)} WHERE {' AND '.join(same) or 'true'}"

    def _full_name(self, path: TablePath) -> str:
        return Spark().quote_path((self._sessions.catalog, *path))

    def _read_tables(self, session: Session, paths: Iterable[TablePath]) -> Tables:
        """What tables are; those that there are not are left out."""
        found: Tables = {}
        for path in paths:
            described = session.sql(f"DESCRIBE TABLE EXTENDED {self._full_name(path)}")
            try:
                told = [tuple(row) for row in described.toLocalIterator()]
            except AnalysisException as error:
                if error.getCondition() not in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                    raise
                continue
            names = [name for name, *_ in told]
            details = {name: text for name, text, *_ in told[names.index(_DETAILS) :]} if _DETAILS in names else {}
            columns = takewhile(lambda row: row[0] and not row[0].startswith("# "), told)
            types = {name: text for name, text, *_ in columns}
            found[path] = Described(types, details.get("Type", "?"), details.get("Provider", "no").lower())
        return found


class _Rows:
    """The rows of a statement, as they come from the server."""

    def __init__(self, session: Session, statement: str, kinds: Sequence[str]) -> None:
        frame = session.sql(statement)
        if [kind for _, kind in frame.dtypes] != list(kinds):
            raise TypeError("a column is of another type than it should be")
        self._rows = frame.toLocalIterator()

    def fetchmany(self, size: int, /) -> list[tuple[Any, ...]]:
        """Return the next rows, at most so many; none at the end."""
        return list(islice(self._rows, size))


def _pieces(planned: PlannedRelease, rows: _Rows) -> Iterator[ExactCells]:
    """The groups of a release, one piece after another; the last may be empty."""
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


def _check_files(at: str, name: str, found: Described, needed: frozenset[str]) -> None:
    """Refuse what may fail over a row as it is read.

    Raises:
        InvalidPolicy: It is a view, or its files are of another kind, or have moments that Spark did not write.
    """
    copy = f"CREATE TABLE {name}_copy USING parquet AS SELECT * FROM {name}"
    if "VIEW" in found.kind or found.provider not in _PROVIDERS:
        what = "a view" if "VIEW" in found.kind else f"a table of {found.provider} files"
        raise InvalidPolicy(
            f'{at}: "{name}" is {what}; reading it could fail over a row, which tells of that row',
            hint=f"Name a table of Parquet, Delta or Iceberg, such as one made by {copy}",
        )
    moments = sorted(each for each in needed if found.types[each].startswith("timestamp"))
    if moments and found.kind != _MANAGED:
        raise InvalidPolicy(
            f'{at}: "{moments[0]}" of "{name}" is a {found.types[moments[0]]} in files that others may have written; '
            "reading one that Spark cannot hold fails, which tells of its row",
            hint=f"Name a table that Spark wrote and manages, such as one made by {copy}",
        )


def _public_names(read: PublicRead) -> list[str]:
    return [f"v{index}" for index in range(read.width)]


def _plain(type_name: str) -> str:
    """What typeof calls a type: a length is none of its."""
    return "string" if type_name.startswith(("varchar", "char")) else type_name


def _table(path: TablePath, columns: Mapping[str, str]) -> EngineTable:
    return EngineTable(path, {name: _column(kind) for name, kind in columns.items()}, frozenset())


def _column(type_name: str) -> EngineColumn:
    """A column of a type; a collation other than the binary one is told behind it."""
    kind, _, collation = type_name.partition(" ")
    bare = kind.partition("(")[0]
    sql_type = _TYPES.get(bare, SqlType.ARRAY)
    exact = not collation and (kind if bare == "decimal" else bare) in Spark.exact_types
    return EngineColumn(type_name, sql_type, not_null=False, exact=exact)
