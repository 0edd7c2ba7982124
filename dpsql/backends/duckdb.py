"""DuckDB as the engine: one read-only file, locked down, queries cancellable and bounded in time."""

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpsql.backends.backend import NO_INPUTS, Cancellation, ExactCells, ExactRows, Inputs, PublicRows, Texts
from dpsql.backends.deadlines import after
from dpsql.backends.duckdb_copies import attach_copies, copies_file, create_copies, read_copies
from dpsql.backends.fit import TablePath, fitted
from dpsql.compiler.bounded_copies import CopyPlan, plan_copies
from dpsql.compiler.engines.dialect import quote_name
from dpsql.compiler.planned import PlannedRelease, PublicRead
from dpsql.compiler.schema import Engine, EngineColumn, EngineSchema, EngineTable
from dpsql.errors import (
    BackendFailure,
    CardinalityViolation,
    InvalidPolicy,
    QueryCanceled,
    QueryTooComplex,
    UnsupportedQuery,
)
from dpsql.policy import Policy
from dpsql.sqltypes import SqlType

_LOG = logging.getLogger("dpsql.backend")
MAX_CHECKED = 10_000
"""Statements remembered as runnable."""
CHECK_SECONDS = 10.0
MAX_PUBLIC_ROWS = 1_000_000
"""Rows that a query may read of public tables."""
STATEMENT_SECONDS = 300.0
"""How long one engine query may run."""

_LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_unsigned_extensions": False,
    "python_enable_replacements": False,  # no table is a variable of this process
    "temp_directory": "",  # no private row is spilled to disk
    "memory_limit": "50%",
    # This one decides by a column's least and greatest value, and in 2.0 its decisions can fail: an error that
    # depends on data. The other needs it.
    "disabled_optimizers": "statistics_propagation,compressed_materialization",
}
_OPENING = threading.Lock()
"""Connections to one file are to one database, which only the first of them may set up."""

_OPENING = threading.Lock()
"""Connections of one process to one file share its settings, which the first of them sets and locks."""

_TYPES = {
    "BOOLEAN": SqlType.BOOLEAN,
    "TINYINT": SqlType.SMALLINT,
    "UTINYINT": SqlType.SMALLINT,
    "SMALLINT": SqlType.SMALLINT,
    "USMALLINT": SqlType.INTEGER,
    "INTEGER": SqlType.INTEGER,
    "UINTEGER": SqlType.BIGINT,
    "BIGINT": SqlType.BIGINT,
    "UBIGINT": SqlType.NUMERIC,
    "HUGEINT": SqlType.NUMERIC,
    "UHUGEINT": SqlType.NUMERIC,
    "FLOAT": SqlType.REAL,
    "DOUBLE": SqlType.DOUBLE,
    "VARCHAR": SqlType.TEXT,
    "DATE": SqlType.DATE,
    "TIME": SqlType.TIME,
    "TIMESTAMP": SqlType.TIMESTAMP,
    "TIMESTAMP_S": SqlType.TIMESTAMP,
    "TIMESTAMP_MS": SqlType.TIMESTAMP,
    "TIMESTAMP_NS": SqlType.TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": SqlType.TIMESTAMPTZ,
    "INTERVAL": SqlType.INTERVAL,
    "UUID": SqlType.UUID,
    "BLOB": SqlType.BYTEA,
    "JSON": SqlType.JSON,
}


def sql_type(type_name: str) -> SqlType:
    """The PostgreSQL type of a DuckDB type name; ARRAY for whatever nests otherwise than in lists."""
    element = re.sub(r"(\[\d*\])+$", "", type_name)
    if element != type_name:
        return sql_type(element).array
    if type_name.startswith("DECIMAL"):
        return SqlType.NUMERIC
    if type_name.startswith("ENUM"):
        return SqlType.TEXT
    return _TYPES.get(type_name, SqlType.ARRAY)


class DuckDBBackend:
    """A DuckDB file."""

    def __init__(self, path: str, policy: Policy) -> None:
        """Open the file and read its schema.

        Args:
            path: Of the file.
            policy: Whose tables it must have.

        Raises:
            InvalidPolicy: There is no such file, or a table or column of the policy is not in it or of another type.
        """
        if not Path(path).is_file():
            raise InvalidPolicy(f"dataset.url: there is no file {path}", hint="dpsql demo makes one to try.")
        try:
            with _OPENING:
                self._database = duckdb.connect(path, read_only=True, config=_LOCKED)
                if is_prepared := (file := copies_file(path, policy)).is_file():
                    attach_copies(self._database, file, policy)
                lock(self._database, policy.dataset.timezone)
        except duckdb.Error:
            raise InvalidPolicy(f"dataset.url: {path} is not a DuckDB file that can be read now") from None
        try:
            schema = _read_schema(self._database, policy)
            plans = plan_copies(policy, schema) if is_prepared else ()
            self._shadow = _shadow(schema, policy, plans)
            self.schema = replace(schema, copies=read_copies(self._database, self._shadow, policy, plans))
        except BaseException:
            self._database.close()
            raise
        self._checked: frozenset[str] = frozenset()

    def check(
        self, releases: tuple[PlannedRelease, ...], public: tuple[PublicRead, ...], cancellation: Cancellation
    ) -> None:
        """Run engine SQL on empty tables of the same schema; see Backend."""
        tables = {planned.sql: {made.table: len(made.types) for made in planned.inputs} for planned in releases}
        tables |= {read.sql: {} for read in public}
        unknown = {sql: widths for sql, widths in tables.items() if sql not in self._checked}
        for sql, widths in unknown.items():
            with _cursor(self._shadow, cancellation, CHECK_SECONDS) as cursor:
                for name, width in widths.items():
                    cursor.register(name, PublicRows.empty(width).table())
                rehearse(cursor, sql, cancellation)
        self._checked = self._checked.union(unknown) if len(self._checked) < MAX_CHECKED else frozenset(unknown)

    def fetch(
        self,
        releases: Mapping[int, PlannedRelease],
        public: tuple[PublicRead, ...],
        cancellation: Cancellation,
        inputs: Inputs = NO_INPUTS,
    ) -> ExactRows:
        """Run engine queries of one plan; see Backend."""
        try:
            rows = {read.sql: self._public(read, cancellation) for read in public}
            cells = {i: self._cells(planned, inputs.get(i, ()), cancellation) for i, planned in releases.items()}
        except duckdb.Error as error:
            if cancellation.is_cancelled:
                raise QueryCanceled("canceling statement due to user request or time limit") from None
            # The engine's own text may quote a row: only its kind is logged.
            _LOG.error("engine query failed: %s", type(error).__name__)
            raise BackendFailure() from None
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            _LOG.error("engine answer could not be read: %s", type(error).__name__)
            raise BackendFailure() from None
        return ExactRows(cells, rows)

    def count(self, sql: str, names: Sequence[str]) -> tuple[int, ...]:
        """Count for the data owner; see Backend."""
        try:
            with _cursor(self._database, Cancellation(), STATEMENT_SECONDS) as cursor:
                found = cursor.execute(f"SELECT {', '.join(names)} FROM ({sql})").fetchall()
        except duckdb.Error as error:
            _LOG.error("engine query failed: %s", type(error).__name__)
            raise BackendFailure() from None
        return tuple(map(int, found[0]))

    def warnings(self) -> tuple[str, ...]:
        """What the data owner should know: nothing, for a file is opened for reading alone; see Backend."""
        return ()

    def advice(self) -> tuple[str, ...]:
        """Statements that make queries faster: none, for DuckDB's own indexes do not; see Backend."""
        return ()

    def _public(self, read: PublicRead, cancellation: Cancellation) -> PublicRows:
        with _cursor(self._database, cancellation, STATEMENT_SECONDS) as cursor:
            try:
                return text_rows(cursor, read.sql, read.width, "the query reads more than {:,} rows of public tables")
            except duckdb.InvalidInputException as error:
                if is_several_rows(error):
                    raise CardinalityViolation() from None
                raise

    def _cells(self, planned: PlannedRelease, inputs: tuple[PublicRows, ...], cancellation: Cancellation) -> ExactCells:
        """Run one engine query on a connection of its own: its inputs are there for it alone, and go with it."""
        with _cursor(self._database, cancellation, STATEMENT_SECONDS) as cursor:
            for made, rows in zip(planned.inputs, inputs, strict=True):
                cursor.register(made.table, rows.table())
            found = cursor.execute(planned.sql).fetchnumpy()
        keys = tuple(_texts(found[f"k{index}"]) for index in range(planned.keys))
        cells = (
            _integers(found[f"p{index}"]) if made.part.rank is None else _texts(found[f"p{index}"])
            for index, made in enumerate(planned.parts)
        )
        return ExactCells(keys, _integers(found["units"]), tuple(cells))

    def close(self) -> None:
        """Close the file."""
        self._database.close()
        self._shadow.close()


def lock(database: duckdb.DuckDBPyConnection, timezone: str) -> None:
    """Set the time zone, let nothing outside be read, and lock that, once for all connections to one database.

    Raises:
        InvalidPolicy: It is locked already, with another time zone.
    """
    locked, current = database.execute(
        "SELECT current_setting('lock_configuration'), current_setting('TimeZone')"
    ).fetchall()[0]
    if not locked:
        database.execute(f"SET GLOBAL TimeZone = '{timezone}'")
        # What is attached already may still be read.
        database.execute("SET GLOBAL enable_external_access = false")
        database.execute("SET lock_configuration = true")
    elif current != timezone:
        raise InvalidPolicy(
            f"dataset.timezone: the database is open in this process already, in {current}",
            hint=f'timezone = "{current}", or serve the other policy by a process of its own.',
        )


def rehearse(cursor: duckdb.DuckDBPyConnection, sql: str, cancellation: Cancellation) -> None:
    """Run a statement where there are no rows: what fails there fails for reasons of its own.

    Raises:
        UnsupportedQuery: It cannot run.
        QueryCanceled: It was stopped.
    """
    try:
        cursor.execute(sql).fetchall()
    except duckdb.Error as error:
        cancellation.check()
        _LOG.error("generated SQL cannot run: %s", type(error).__name__)
        raise UnsupportedQuery(
            "the engine cannot run this query; nothing was charged",
            hint="Write it more simply, and tell dpsql's developers: it should have been refused with a reason.",
        ) from None


@contextmanager
def _cursor(
    database: duckdb.DuckDBPyConnection, cancellation: Cancellation, seconds: float
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of its own, on which the user and a time limit stop what runs."""
    cursor = database.cursor()
    try:
        with stoppable(cursor, cancellation, seconds):
            yield cursor
    finally:
        cursor.close()


@contextmanager
def stoppable(cursor: duckdb.DuckDBPyConnection, cancellation: Cancellation, seconds: float) -> Iterator[None]:
    """Let the user and a time limit stop what runs on a cursor."""
    with after(seconds, cancellation.cancel):
        try:
            cancellation.enter(cursor.interrupt)
            yield
        finally:
            cancellation.leave()


def _shadow(schema: EngineSchema, policy: Policy, plans: tuple[CopyPlan, ...]) -> duckdb.DuckDBPyConnection:
    """An engine with the same tables, and the copies that are planned of them, and not one row."""
    shadow = duckdb.connect(":memory:", config={**_LOCKED, "threads": 1, "memory_limit": "1GB"})
    for table in schema.tables.values():
        columns = ", ".join(f"{quote_name(name)} {column.type_name}" for name, column in table.columns.items())
        shadow.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_name(table.path[0])}")
        shadow.execute(f"CREATE TABLE {'.'.join(map(quote_name, table.path))} ({columns})")
    create_copies(shadow, policy, plans)
    lock(shadow, policy.dataset.timezone)
    return shadow


def text_rows(cursor: duckdb.DuckDBPyConnection, sql: str, width: int, too_many: str) -> PublicRows:
    """The rows of SQL whose columns are texts named v0, v1 and so on.

    Raises:
        QueryTooComplex: There are more than a million of them; `too_many` says so, with a place for the number.
    """
    found = cursor.execute(f"SELECT * FROM ({sql}) LIMIT {MAX_PUBLIC_ROWS + 1}").fetchnumpy()
    count = len(next(iter(found.values())))
    if count > MAX_PUBLIC_ROWS:
        raise QueryTooComplex(too_many.format(MAX_PUBLIC_ROWS), hint="Filter, aggregate or LIMIT them.")
    return PublicRows(tuple(_texts(found[f"v{index}"]) for index in range(width)), count)


def is_several_rows(error: duckdb.Error) -> bool:
    """True where a subquery that stands for one value gave several."""
    return str(error).startswith("Invalid Input Error: More than one row returned by a subquery")


def _texts(column: NDArray[Any]) -> Texts:
    values: Texts = np.asarray(np.ma.getdata(column), dtype=object)
    mask = np.ma.getmask(column)
    if mask is not np.ma.nomask:
        values = values.copy()
        values[mask] = None
    return values


def _integers(column: NDArray[Any]) -> NDArray[np.int64]:
    if np.ma.getmaskarray(column).any():
        raise ValueError("a cell is NULL")
    values: NDArray[Any] = np.ma.getdata(column)
    if values.dtype != np.int64:
        raise TypeError("a cell is not a bigint")
    return values


def _read_schema(database: duckdb.DuckDBPyConnection, policy: Policy) -> EngineSchema:
    columns: dict[TablePath, dict[str, EngineColumn]] = {}
    listed = database.execute(
        "SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
        "WHERE database_name = current_database()"
    ).fetchall()
    for schema, table, column, type_name, nullable in listed:
        columns.setdefault((schema, table), {})[column] = EngineColumn(type_name, sql_type(type_name), not nullable)
    unique: dict[TablePath, set[frozenset[str]]] = {}
    constraints = database.execute(
        "SELECT schema_name, table_name, constraint_column_names FROM duckdb_constraints() "
        "WHERE database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
    ).fetchall()
    for schema, table, names in constraints:
        if not any(columns[schema, table][name].type_name in _ROUNDED for name in names):
            unique.setdefault((schema, table), set()).add(frozenset(names))
    tables = {path: EngineTable(path, listed, frozenset(unique.get(path, ()))) for path, listed in columns.items()}
    rounded = {
        (path, name) for path, listed in columns.items() for name in listed if listed[name].type_name in _ROUNDED
    }
    return EngineSchema(Engine.DUCKDB, fitted(policy, tables, frozenset(rounded)))


_ROUNDED = frozenset({"TIMESTAMP_NS", "TIME_NS"})
"""Types whose values are read to the microsecond: two that the engine tells apart may become one."""
