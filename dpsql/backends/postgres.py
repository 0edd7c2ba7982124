"""PostgreSQL as the engine: read-only transactions on a live server, cancellable and bounded in time.

Rule 1: engine SQL refers to tables by names that the backend defines in a WITH clause: each selects the columns that
    the policy needs, or, for a trial, the same columns without rows. So the role needs SELECT on these columns only.
Rule 2: the constraints that the server enforces are read again at the end of the transaction that read private rows,
    and must be those with which the query was planned. PostgreSQL locks a query's tables before it takes the snapshot,
    and no constraint can be dropped while they are locked. So constraints found at the end held when the rows were
    read.
Rule 3: results come in the order of the SQL. Cells come as arrays, column by column. Public rows come through a cursor,
    so that they are counted while they are fetched.
Rule 4: arrays are bounded, because PostgreSQL fails at one gigabyte. The schema and the policy bound most of them.
    Groups with private keys, whose number depends on rows, come in blocks that fit even if all keys have the maximum
    length.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, cast

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

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
    Texts,
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
from dpsql.backends.fit import TablePath, fitted, key_columns, needed_columns, path_of
from dpsql.backends.postgres_advice import excess_rights, missing_indexes, unenforced
from dpsql.backends.postgres_connections import Connections, Transaction
from dpsql.backends.postgres_facts import Facts, read_facts
from dpsql.backends.postgres_prepared import STALE, copy_name, copy_path, read_prepared, write_prepared
from dpsql.compiler.bounding.prepared_tables import plan_prepared
from dpsql.compiler.dialects.postgres import Postgres
from dpsql.compiler.ir.functions import MAX_SCANNED
from dpsql.compiler.ir.schema import EngineSchema, PreparedTable
from dpsql.compiler.plan.query_plan import PlannedRelease, PublicRead
from dpsql.errors import (
    BackendFailure,
    CardinalityViolation,
    DatabaseUnavailable,
    Error,
    InvalidPolicy,
    QueryCanceled,
    UnsupportedQuery,
)
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import Policy
from dpsql.policy.engines import POSTGRES

_LOG = logging.getLogger("dpsql.backend")

VERSIONS: Final = range(13, 19)
"""Major versions of the server whose catalog is understood."""
STATEMENT_SECONDS: Final = 300.0
"""How long one engine query may run."""
CHECK_SECONDS: Final = 10.0

_SERVER: Final = (
    b"SELECT version(), current_setting('server_version_num')::int / 10000, current_setting('server_encoding')"
)
_BY_SORTING: Final = b"SET LOCAL enable_hashagg = off"
"""How the rows of each unit are best brought together where nothing else is grouped: an index has them in order, and
without one a sort takes no longer than hashing."""
_NAME_BYTES: Final = 63
_CHANGED: Final = "the database's tables have changed since the gateway was started"
_STOPPED: Final = "canceling statement due to user request or time limit"
_ANY_LENGTH: Final = ("text", "character varying")
"""Types of texts without a declared length."""
_TEXT: Final = psycopg.postgres.types["text"].oid
_TEXTS: Final = psycopg.postgres.types["text"].array_oid
_BIGINTS: Final = psycopg.postgres.types["int8"].array_oid
_CELL: Final = np.dtype([("size", ">i4"), ("value", ">i8")])
_NOW: Final = ("08", "53", "57", "58")
"""Classes of SQLSTATE that say how the server is, and nothing of the statement."""


class _Changed(Exception):
    """The server no longer enforces constraints that queries were planned with."""


class PostgresBackend:
    """A PostgreSQL database."""

    def __init__(self, url: str, policy: Policy) -> None:
        """Connect, and read the schema.

        Args:
            url: Of the database, as libpq reads it.
            policy: Whose tables it must have.

        Raises:
            InvalidPolicy: The server cannot be reached or used, or a table or column of the policy is not in the
                database, of another type, or not to be read by this role.
        """
        self._policy = policy
        self._connections = Connections(url, policy.dataset.timezone)
        self._needed = {path_of(table, policy): needed_columns(table, policy) for table in policy.tables}
        try:
            with self._connections.transaction(Cancellation(), CHECK_SECONDS) as transaction:
                _check_server(transaction)
                found = read_facts(transaction, self._needed)
            fitted(policy, found.tables, POSTGRES)
            self._facts = found.narrowed(self._needed)
            _check_readable(self._facts)
        except Unreachable as error:
            raise InvalidPolicy(f"dataset.url: {error.what}", hint=error.hint) from None
        except psycopg.Error as error:
            self._connections.close()
            what = f"dataset.url: the server's catalog cannot be read: {type(error).__name__}"
            raise InvalidPolicy(what, hint="Use PostgreSQL itself, whose catalog every role may read.") from None
        except InvalidPolicy:
            self._connections.close()
            raise
        paths = {table.name: path_of(table, policy) for table in sorted(policy.tables, key=lambda table: table.name)}
        names = {name: _name(index, path) for index, (name, path) in enumerate(paths.items())}
        whole = {
            table.name: self._needed[paths[table.name]] if table.public else key_columns(table, policy)
            for table in policy.tables
        }
        self._sources = {
            Postgres.quote_name(names[name]): self._source(path, whole[name]) for name, path in paths.items()
        }
        tables = {name: replace(self._facts.tables[path], path=(names[name],)) for name, path in paths.items()}
        plain = EngineSchema(POSTGRES, tables)
        self._plans = plan_prepared(policy, plain) if policy.dataset.prepared_schema is not None else ()
        self.schema = replace(plain, copies=self._copies())
        self._copy_sources = {
            Postgres.quote_name(
                copy_name(plan.table)
            ): f"SELECT * FROM {copy_path(plan.table, policy.dataset.prepared_schema or '')}"
            for plan in self._plans
        }
        self._checked = Runnable()
        self._has_changed = self._suspects_copies = False

    def check(
        self, releases: tuple[PlannedRelease, ...], public: tuple[PublicRead, ...], cancellation: Cancellation
    ) -> None:
        """Run engine SQL on empty tables of the same schema; see Backend.

        Raises:
            DatabaseUnavailable: The server cannot be reached, or its tables have changed.
        """
        statements: dict[str, tuple[list[str], int | None, int]]
        statements = {read.sql: (_public_names(read), None, 0) for read in public}
        statements |= {each.sql: (cell_names(each), group_limit(each), _width(each)) for each in releases}
        unknown = {sql: asked for sql, asked in statements.items() if sql not in self._checked}
        try:
            with self._connections.transaction(cancellation, CHECK_SECONDS) as transaction:
                if unknown or self._has_changed or self._suspects_copies:
                    self._verify(transaction, "".join(statements))
                for sql, (names, size, width) in unknown.items():
                    statement = self._statement(sql, names, empty=True, size=size, width=width)
                    list(_run(transaction, statement, [[]] * width))
        except _Changed:
            _LOG.error(_CHANGED)
            raise DatabaseUnavailable(
                f"{_CHANGED}; nothing was charged",
                hint="The data owner checks the policy and starts the gateway again.",
            ) from None
        except Unreachable as error:
            raise unavailable(error.what) from None
        except (psycopg.Error, ValueError, TypeError) as error:
            raise _refusal(error, cancellation) from None
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
        with fetching(cancellation, psycopg.Error) as hand_over:
            share = share or public_share("")
            blocks = ((read, self._public(read, cancellation, hand_over)) for read in public)
            rows = {read.sql: public_rows(each, read.width, share) for read, each in blocks}
            try:
                for index, planned in releases.items():
                    self._read(planned, inputs.get(index, ()), cancellation, hand_over, partial(take, index))
            except psycopg.errors.QueryCanceled:
                raise QueryCanceled(_STOPPED) from None
            except psycopg.Error:
                self._suspects_copies = bool(self._copy_sources)  # one may be gone
                raise
        return ExactRows({index: together(blocks) for index, blocks in kept.items()}, rows)

    def stream(self, read: PublicRead, cancellation: Cancellation) -> Generator[PublicRows]:
        """Run one engine query over public tables; see Backend."""
        with fetching(cancellation, psycopg.Error) as hand_over:
            yield from self._public(read, cancellation, hand_over)

    def count(self, sql: str, names: Sequence[str]) -> tuple[int, ...]:
        """Count for the data owner; see Backend."""
        statement = self._statement(sql, names)
        try:
            with self._connections.transaction(Cancellation(), STATEMENT_SECONDS) as transaction:
                (row,) = _run(transaction, statement, [])
            return tuple(int(_integers(row, place)[0]) for place in range(1, len(names) + 1))
        except (psycopg.Error, Unreachable, ValueError, TypeError) as error:
            _LOG.error("engine query failed: %s", type(error).__name__)
            raise BackendFailure() from None

    def probe(self) -> None:
        """See whether queries could be answered now; see Backend."""
        try:
            with self._connections.transaction(Cancellation(), CHECK_SECONDS) as transaction:
                self._verify(transaction, "")
        except _Changed:
            raise DatabaseUnavailable(_CHANGED) from None
        except (psycopg.Error, Unreachable) as error:
            what = error.what if isinstance(error, Unreachable) else type(error).__name__
            raise DatabaseUnavailable(f"the database cannot be reached: {what}") from None

    def warnings(self) -> tuple[str, ...]:
        """What the data owner should know; see Backend."""
        try:
            with self._connections.transaction(Cancellation(), CHECK_SECONDS) as transaction:
                return (*excess_rights(transaction, self._needed), *unenforced(self._facts))
        except (psycopg.Error, Unreachable) as error:
            raise unavailable(type(error).__name__) from None

    def advice(self) -> tuple[str, ...]:
        """Indexes that make queries faster; see Backend."""
        try:
            with self._connections.transaction(Cancellation(), CHECK_SECONDS) as transaction:
                return missing_indexes(transaction, self._policy, self._facts)
        except (psycopg.Error, Unreachable) as error:
            raise unavailable(type(error).__name__) from None

    def prepare(self, url: str | None) -> dict[str, int]:
        """Make the bounded copies by another role, if one is named; see `write_prepared`."""
        dataset = self._policy.dataset
        if dataset.prepared_schema is None:
            raise InvalidPolicy(
                "dataset.prepared_schema is missing: it names the schema for prepared tables",
                hint='prepared_schema = "dpsql_copies"',
            )
        try:
            with self._connections.transaction(Cancellation(), CHECK_SECONDS) as transaction:
                reader = transaction.execute(b"SELECT current_user").fetchone() or ("",)
        except (psycopg.Error, Unreachable) as error:
            raise unavailable(type(error).__name__) from None
        written, place = url or dataset.url, dataset.prepared_schema
        return write_prepared(written, dataset.timezone, place, self._plans, self._sources, reader[0])

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _public(
        self, read: PublicRead, cancellation: Cancellation, hand_over: Callable[[], None]
    ) -> Iterator[PublicRows]:
        limited = f"SELECT {', '.join(_public_names(read))} FROM answer LIMIT {MAX_PUBLIC_ROWS + 1}"
        statement = self._with_sources(read.sql, limited)
        try:
            with self._connections.transaction(cancellation, STATEMENT_SECONDS) as transaction:
                hand_over()
                with transaction.cursor("public", binary=True) as cursor:  # the server keeps what is not fetched
                    cursor.execute(statement)
                    if any(column.type_code != _TEXT for column in cursor.description or ()):
                        raise TypeError("a column is not text")
                    yield from public_blocks(cursor, read.width, TOO_MANY_ROWS)
        except psycopg.errors.CardinalityViolation:
            raise CardinalityViolation() from None
        except psycopg.errors.QueryCanceled:
            raise QueryCanceled(_STOPPED) from None

    def _read(
        self,
        planned: PlannedRelease,
        inputs: tuple[PublicRows, ...],
        cancellation: Cancellation,
        hand_over: Callable[[], None],
        take: Callable[[ExactCells], None],
    ) -> None:
        names, size, width = cell_names(planned), group_limit(planned), _width(planned)
        statement = self._statement(planned.sql, names, size=size, width=width)
        with self._connections.transaction(cancellation, STATEMENT_SECONDS) as transaction:
            hand_over()
            if not planned.keys:
                transaction.execute(_BY_SORTING)
            with closing(_run(transaction, statement, _parameters(planned, inputs))) as rows:
                for block in blocks_of(planned, _pieces(planned, rows)):
                    take(block)
            self._verify(transaction, planned.sql)

    def _statement(
        self,
        sql: str,
        names: Sequence[str],
        *,
        empty: bool = False,
        size: int | None = None,
        width: int = 0,
    ) -> bytes:
        """A statement whose rows have the number of rows of some SQL, and each of its columns as an array.

        Args:
            sql: The SQL.
            names: Its columns.
            empty: Whether tables have no rows.
            size: How many of its rows a row stands for at the most; None where one row stands for all.
            width: How many parameters it has; the SQL of public groups alone has none of them.
        """
        columns = ", ".join(["count(*)", *(f"array_agg({name})" for name in names)])
        rows = "answer"
        if size is not None:
            # In their order they are grouped without being held, however many they are.
            numbered = f"SELECT *, (row_number() OVER () - 1) / {size} AS block FROM answer ORDER BY block"
            rows = f"({numbered}) AS a GROUP BY block ORDER BY block"
        return self._with_sources(sql, f"SELECT {columns} FROM {rows}", empty=empty, width=width)

    def _with_sources(self, sql: str, asked: str, *, empty: bool = False, width: int = 0) -> bytes:
        """A statement that asks something of the rows of some SQL, whose name is answer."""
        sources = [
            f"{name} AS NOT MATERIALIZED ({source}{' WHERE false' if empty else ''})"
            for name, source in (self._sources | self._copy_sources).items()
            if name in sql
        ]
        given = ", ".join(f"CAST(${place} AS text[])" for place in range(1, width + 1))
        sources += [f"given AS (SELECT {given})"] if width else []  # never run: it says the parameters' types
        # Kept apart, for the rows of what is merged into an outer query may come in another order.
        answer = f"answer AS MATERIALIZED ({sql})"
        return f"WITH {', '.join([*sources, answer])} {asked}".encode()

    def _source(self, path: TablePath, whole: frozenset[str]) -> str:
        """The needed columns: those in `whole` as they are, of others that a row would hold itself the beginning.

        A table's rows refer to long texts. Those of a view or a foreign table hold them, and PostgreSQL fails at a
        gigabyte in one row.
        """
        columns = []
        for name in sorted(self._needed[path]):
            column = quoted = Postgres.quote_name(name)
            is_text = self._facts.tables[path].columns[name].type_name in _ANY_LENGTH
            if is_text and self._facts.kinds[path] in "vf" and name not in whole:
                column = f"left({quoted}, {MAX_SCANNED}) AS {quoted}"
            columns.append(column)
        return f"SELECT {', '.join(columns)} FROM {'.'.join(map(Postgres.quote_name, path))}"

    def _copies(self) -> dict[str, PreparedTable | str]:
        try:
            with self._connections.transaction(Cancellation(), CHECK_SECONDS) as transaction:
                return read_prepared(transaction, self._policy.dataset.prepared_schema, self._plans)
        except (psycopg.Error, Unreachable):
            return {plan.table: STALE for plan in self._plans}

    def _verify(self, transaction: Transaction, sql: str) -> None:
        """Rule 2, for what some SQL reads."""
        reads_copies = any(name in sql for name in self._copy_sources)
        if reads_copies:
            self._suspects_copies = True  # whatever goes wrong now
            try:
                found = read_prepared(transaction, self._policy.dataset.prepared_schema, self._plans)
            except psycopg.Error:
                raise _Changed from None
            self._suspects_copies = found != self.schema.copies
        self._has_changed = read_facts(transaction, self._needed).narrowed(self._needed) != self._facts
        if self._has_changed or (reads_copies and self._suspects_copies):
            raise _Changed


class _Bigints(Loader):
    """Reads an array of bigint as the bytes it is."""

    format = Format.BINARY

    def load(self, data: Buffer) -> NDArray[np.int64]:
        """The array, which has no NULL in it."""
        dimensions, has_null = np.frombuffer(data, dtype=">i4", count=2)
        if dimensions != 1 or has_null:
            raise ValueError("a cell is NULL")
        cells: NDArray[np.int64] = np.frombuffer(data, dtype=_CELL, offset=20)["value"].astype(np.int64)
        return cells


def _run(transaction: Transaction, statement: bytes, parameters: Sequence[object]) -> Generator[tuple[Any, ...]]:
    """Rows of arrays: the number of rows that each stands for, and their columns; one is read at a time."""
    with transaction.cursor(binary=True) as cursor:
        cursor.adapters.register_loader(_BIGINTS, _Bigints)
        # Closed here, for the connection is used again.
        with closing(cast(Generator[tuple[Any, ...]], cursor.stream(statement, parameters))) as rows:
            first = next(rows, None)
            if any(column.type_code not in (_TEXTS, _BIGINTS) for column in (cursor.description or ())[1:]):
                raise TypeError("a column is neither text nor bigint")
            if first is not None:
                yield first
            yield from rows


def _pieces(planned: PlannedRelease, rows: Iterator[tuple[Any, ...]]) -> Iterator[ExactCells]:
    """The groups of a release, one piece after another; an empty one where there are none."""
    for row in chain([next(rows, (0, *[None] * len(cell_names(planned))))], rows):
        cells = (
            _texts(row, place) if is_list else _integers(row, place)
            for place, is_list in enumerate(are_lists(planned), planned.keys + 2)
        )
        keys = (_texts(row, place) for place in range(1, planned.keys + 1))
        yield ExactCells(tuple(keys), _integers(row, planned.keys + 1), tuple(cells))


def _texts(row: tuple[Any, ...], place: int) -> Texts:
    """A column of texts."""
    column = np.array([] if row[place] is None else row[place], dtype=object)
    if isinstance(row[place], np.ndarray) or column.ndim != 1:
        raise TypeError("a key is not text")
    return column


def _integers(row: tuple[Any, ...], place: int) -> NDArray[np.int64]:
    """A column of bigints."""
    column: NDArray[np.int64] = np.array([], dtype=np.int64) if row[place] is None else row[place]
    if not isinstance(column, np.ndarray):
        raise TypeError("a cell is not a bigint")
    return column


def _public_names(read: PublicRead) -> list[str]:
    return [f"v{index}" for index in range(read.width)]


def _width(planned: PlannedRelease) -> int:
    """The number of parameters that engine SQL has: one an input's column, and one an input without columns."""
    return sum(max(1, len(made.types)) for made in planned.inputs)


def _parameters(planned: PlannedRelease, inputs: tuple[PublicRows, ...]) -> list[list[str | None]]:
    """The inputs' columns; of an input that has none, just as many texts as it has rows."""
    given = zip(planned.inputs, inputs, strict=True)
    return [column for _, rows in given for column in ([list(c) for c in rows.columns] or [[""] * rows.count])]


def _name(index: int, path: TablePath) -> str:
    """A table's name in engine SQL: unlike that of any other table, and of anything that SQL itself names."""
    return f"{index}.{path[1]}".encode()[:_NAME_BYTES].decode(errors="ignore")


def _check_server(transaction: Transaction) -> None:
    row = transaction.execute(_SERVER).fetchone()
    version, major, encoding = row or ("", 0, "")
    if not version.startswith("PostgreSQL ") or major not in VERSIONS:
        known = f"PostgreSQL {VERSIONS[0]} to {VERSIONS[-1]}"
        raise InvalidPolicy(f"dataset.url: the server is {version.partition(' on ')[0]}", hint=f"dpsql knows {known}.")
    if encoding != "UTF8":
        hint = "Copy it to one made by: CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'"
        raise InvalidPolicy(f"dataset.url: the database's encoding is {encoding}, not UTF8", hint=hint)


def _check_readable(facts: Facts) -> None:
    for path, column in sorted(facts.unreadable):
        schema, table = map(Postgres.quote_name, path)
        raise InvalidPolicy(
            f'dataset.url: the role may not read column "{column}" of {".".join(path)}',
            hint=f"GRANT USAGE ON SCHEMA {schema} TO reader; GRANT SELECT ON {schema}.{table} TO reader;",
        )


def _refusal(error: Exception, cancellation: Cancellation) -> Error:
    """What to tell where a statement could not be tried out on empty tables."""
    if cancellation.is_cancelled or isinstance(error, psycopg.errors.QueryCanceled):
        return QueryCanceled(_STOPPED)
    if isinstance(error, psycopg.errors.CardinalityViolation):
        return CardinalityViolation()
    if isinstance(error, psycopg.Error) and (error.sqlstate is None or error.sqlstate.startswith(_NOW)):
        return unavailable(type(error).__name__)
    _LOG.error("generated SQL cannot run: %s", type(error).__name__)
    return UnsupportedQuery(
        "the engine cannot run this query; nothing was charged",
        hint="Write it in another way, and please report it: dpsql should have refused it with a reason.",
    )
