"""DuckDB as the engine: a read-only database file, or other files as tables, locked down and with time limits.

Rule: the files are attached to an in-memory database that is shared under a name with the files' paths and states.
    DuckDB itself shares connections by path only: after a file is replaced, it would read the old one as long as that
    is open in this process.
"""

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from typing import Any, Final

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpsql.backends.backend import (
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
    are_lists,
    blocks_of,
    cell_names,
    fetching,
    group_limit,
    public_rows,
    public_share,
    together,
)
from dpsql.backends.duckdb_facts import read_schema
from dpsql.backends.duckdb_files import VIEWS, create_views, is_changed, list_files, open_folder
from dpsql.backends.duckdb_prepared import attach_prepared, create_prepared, prepared_file, read_prepared
from dpsql.backends.duckdb_running import RETURNS_MEMORY, is_several_rows, lock, rehearse, stoppable, text_rows
from dpsql.backends.duckdb_spill import Settings, load_cipher, spill_settings
from dpsql.backends.file_folders import FileFolder, FileState, Listed, file_state
from dpsql.compiler.bounding.prepared_tables import PreparedTablePlan, plan_prepared
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.ir.schema import EngineSchema
from dpsql.compiler.plan.query_plan import PlannedRelease, PublicRead
from dpsql.errors import (
    BackendFailure,
    CardinalityViolation,
    DatabaseUnavailable,
    InvalidPolicy,
    LimitExceeded,
)
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import Policy
from dpsql.policy.engines import engine_of

_LOG = logging.getLogger("dpsql.backend")
CHECK_SECONDS = 10.0
STATEMENT_SECONDS = 300.0
"""How long one engine query may run."""

_LOCKED: Settings = {
    **RETURNS_MEMORY,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_unsigned_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,  # no table is a variable of this process
    "temp_directory": "",  # no private row is spilled to disk, unless the policy says where
    # This one decides by a column's least and greatest value. In 2.0 a comparison of texts fails once it has decided
    # that one of them is NULL, as CASE WHEN age = 107 THEN 'a' END <> 'b' where nobody is so old: an error that depends
    # on data. It is switched on or off for all connections, not for one query. The other needs it.
    "disabled_optimizers": "statistics_propagation,compressed_materialization",
}
_OPENING = threading.Lock()
"""Connections to one state of a file share one database, which only the first of them may set up."""

_NAME_OF_FILE = (
    "SELECT database_name FROM duckdb_databases() WHERE path IS NOT NULL AND NOT starts_with(database_name, 'dpsql.')"
)

_REASONS: Final = (
    ("Could not set lock", "is open in another process, which may write to it", "End that process, or name a copy."),
    ("not a valid DuckDB", "is not a DuckDB file", 'url = "duckdb:///clinic.duckdb" names one.'),
    ("version", "was written by another version of DuckDB", "EXPORT DATABASE there, IMPORT DATABASE with this one's."),
    ("Permission denied", "may not be read by this user", "chmod or chown it, and look at its directory."),
)
"""What a part of DuckDB's message means, and its hint."""
_UNKNOWN: Final = ("cannot be read by DuckDB now", "Open it with DuckDB's own program, which shows more.")


class DuckDBBackend:
    """A DuckDB file, a folder of files that are tables, or both."""

    def __init__(self, path: str, policy: Policy) -> None:
        """Open the files and read their schema.

        Args:
            path: Of the DuckDB file, or of the folder.
            policy: Whose tables there must be.

        Raises:
            InvalidPolicy: There is no such file, or a table or column of the policy is not in it or of another type.
        """
        self._path, self._policy = path, policy
        self._state, copies = _file_states(path, policy)
        self._folder = open_folder(policy, path)
        self._listed = list_files(policy, self._folder)
        try:
            with _OPENING:
                self._database, self._use = _open(path, policy, self._state, copies, self._folder, self._listed)
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            what, hint = next((told for part, *told in _REASONS if part in str(error)), _UNKNOWN)
            raise InvalidPolicy(f"dataset.url: {path} {what}", hint=hint) from None
        try:
            schema = read_schema(self._database, policy)
            plans = plan_prepared(policy, schema) if copies is not None else ()
            self._shadow = _shadow(schema, policy, plans)
            self.schema = replace(schema, copies=read_prepared(self._database, self._shadow, policy, plans))
        except BaseException:
            self._database.close()
            raise
        self._checked = Runnable()

    def check(
        self, releases: tuple[PlannedRelease, ...], public: tuple[PublicRead, ...], cancellation: Cancellation
    ) -> None:
        """Run engine SQL on empty tables of the same schema; see Backend.

        Raises:
            DatabaseUnavailable: The data are not those that were opened.
        """
        if (what := self._changed()) is not None:
            raise DatabaseUnavailable(
                f"{what} while it was open; nothing was charged",
                hint="The data owner changes data_version in the policy, and has the gateway load it again.",
            )
        tables = {planned.sql: {made.table: len(made.types) for made in planned.inputs} for planned in releases}
        tables |= {read.sql: {} for read in public}
        unknown = {sql: widths for sql, widths in tables.items() if sql not in self._checked}
        for sql, widths in unknown.items():
            with _cursor(self._shadow, cancellation, CHECK_SECONDS) as cursor:
                for name, width in widths.items():
                    cursor.register(name, PublicRows.empty(width).table())
                rehearse(cursor, sql, cancellation)
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
        with fetching(cancellation, duckdb.Error):  # the engine is in this process: whatever fails may do so over a row
            share = share or public_share("")
            rows = {read.sql: public_rows(self._public(read, cancellation), read.width, share) for read in public}
            for index, planned in releases.items():
                self._read(planned, inputs.get(index, ()), cancellation, partial(take, index))
        self._check_unchanged()
        return ExactRows({index: together(blocks) for index, blocks in kept.items()}, rows)

    def stream(self, read: PublicRead, cancellation: Cancellation) -> Generator[PublicRows]:
        """Run one engine query over public tables; see Backend."""
        with fetching(cancellation, duckdb.Error):
            yield from self._public(read, cancellation)
        self._check_unchanged()

    def count(self, sql: str, names: Sequence[str]) -> tuple[int, ...]:
        """Count for the data owner; see Backend."""
        try:
            with self._reading(Cancellation()) as cursor:
                found = cursor.execute(f"SELECT {', '.join(names)} FROM ({sql})").fetchall()
        except duckdb.Error as error:
            _LOG.error("engine query failed: %s", type(error).__name__)
            raise BackendFailure() from None
        return tuple(map(int, found[0]))

    def probe(self) -> None:
        """See whether queries could be answered now; see Backend."""
        try:
            with _cursor(self._database, Cancellation(), CHECK_SECONDS) as cursor:
                cursor.execute("SELECT 1").fetchall()
        except duckdb.Error as error:
            raise DatabaseUnavailable(f"the database file fails: {type(error).__name__}") from None

    def warnings(self) -> tuple[str, ...]:
        """What the data owner should know: nothing, for a file is opened for reading alone; see Backend."""
        return ()

    def advice(self) -> tuple[str, ...]:
        """Statements that make queries faster: none, for DuckDB's own indexes do not; see Backend."""
        return ()

    def _public(self, read: PublicRead, cancellation: Cancellation) -> Iterator[PublicRows]:
        with self._reading(cancellation) as cursor:
            try:
                yield from text_rows(cursor, read.sql, read.width, TOO_MANY_ROWS)
            except duckdb.OutOfMemoryException:
                raise LimitExceeded(
                    "the rows of public tables that the query reads take too much memory",
                    hint="Filter, aggregate or LIMIT them.",
                ) from None
            except duckdb.InvalidInputException as error:
                if is_several_rows(error):
                    raise CardinalityViolation() from None
                raise

    def _read(
        self,
        planned: PlannedRelease,
        inputs: tuple[PublicRows, ...],
        cancellation: Cancellation,
        take: Callable[[ExactCells], None],
    ) -> None:
        """Run one engine query on a connection of its own: its inputs are there for it alone, and go with it."""
        with self._reading(cancellation) as cursor:
            for made, rows in zip(planned.inputs, inputs, strict=True):
                cursor.register(made.table, rows.table())
            cursor.execute(planned.sql)
            for block in blocks_of(planned, _pieces(planned, cursor)):
                take(block)

    @contextmanager
    def _reading(self, cancellation: Cancellation) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection of its own to the file."""
        with _cursor(self._database, cancellation, STATEMENT_SECONDS) as cursor:
            cursor.execute(self._use)
            yield cursor

    def _check_unchanged(self) -> None:
        """Fail where the data changed while they were read, or where nobody can tell."""
        try:
            what = self._changed()
        except DatabaseUnavailable:
            what = "the data could not be listed"
        if what is not None:
            _LOG.error("%s while a query read it", what)
            raise BackendFailure()

    def _changed(self) -> str | None:
        """What was done to the data since they were opened; a file that replaced the database is not read at all."""
        found = file_state(self._path)
        if (
            found is not None
            and self._state is not None
            and found.identity == self._state.identity
            and found != self._state
        ):
            return "the database file was written"
        if self._listed and is_changed(self._policy, self._folder, self._listed):
            return "a file of a table was changed, added or removed"
        return None

    def close(self) -> None:
        """Close the files."""
        self._database.close()
        self._shadow.close()


def _limits(policy: Policy) -> dict[str, str]:
    """The engine's settings: this process's part of what the policy says, or of the defaults."""
    memory, threads, processes = policy.dataset.memory, policy.dataset.threads, policy.dataset.processes
    if threads is None and processes > 1:
        threads = os.cpu_count() or 1
    limits = {"memory_limit": _half_of_memory(processes) if memory is None else f"{memory // processes}B"}
    return limits if threads is None else {**limits, "threads": str(max(1, threads // processes))}


@cache
def _half_of_memory(processes: int) -> str:
    """Half of what this process and others may take, of which DuckDB's own default is 80 %, divided among them.

    DuckDB 1 reads no percentages.
    """
    with duckdb.connect() as database:
        ((default,),) = database.execute("SELECT current_setting('memory_limit')").fetchall()
    number, unit = default.split()
    return f"{float(number) * 5 / 8 / processes:.3f} {unit}"


def _file_states(path: str, policy: Policy) -> tuple[FileState | None, FileState | None]:
    """The states of a database file and of the file of its copies; None where there is none.

    Raises:
        InvalidPolicy: There is no such file.
    """
    is_folder = engine_of(policy.dataset.url).is_folder
    state = None if is_folder else file_state(path)
    if state is None and not is_folder:
        hint = "A relative path starts at the policy's directory; an absolute one has four slashes: "
        hint += 'url = "duckdb:////srv/clinic.duckdb"'
        raise policy.wrong(("dataset", "url"), f"there is no file {path}", hint)
    return state, file_state(prepared_file(path, policy))


def _open(
    path: str,
    policy: Policy,
    state: FileState | None,
    copies: FileState | None,
    folder: FileFolder,
    listed: Listed,
) -> tuple[duckdb.DuckDBPyConnection, str]:
    """A connection to the database that reads these states of the files, and what makes one use the first.

    Raises:
        InvalidPolicy: A file was replaced or written meanwhile, or is none of the policy's table.
    """
    timezone, limits = policy.dataset.timezone, _limits(policy)
    spill = policy.dataset.spill
    settings = _LOCKED if spill is None else {**_LOCKED, **spill_settings(spill, _LOCKED, policy.dataset.processes)}
    read = (state, copies, timezone, limits, settings["temp_directory"], listed, policy.fingerprint if listed else "")
    database = duckdb.connect(f":memory:{sha256(repr(read).encode()).hexdigest()}", config=settings)
    try:
        if not _is_open(database):
            if spill is not None:
                load_cipher(database)
            create_views(database, policy, folder, listed)
            # The file keeps the name that DuckDB gives it, for its views may say it: no other may have that name.
            database.execute(f"USE {DuckDB.quote_name(VIEWS)}; DETACH memory")
            if state is not None:
                database.execute(f"ATTACH {DuckDB.quote_text(path)} (READ_ONLY)")
            database.execute(_use_of(database))
            if copies is not None:
                attach_prepared(database, prepared_file(path, policy), policy)
            lock(database, timezone, limits, [file for files in listed.values() for file in files])
            if _file_states(path, policy) != (state, copies) or is_changed(policy, folder, listed):
                raise InvalidPolicy(
                    f"dataset.url: {path} was replaced or written while it was opened", hint="Open it again."
                )
        use = _use_of(database)
        database.execute(use)
    except BaseException:
        database.close()
        raise
    return database, use


def _is_open(database: duckdb.DuckDBPyConnection) -> bool:
    """True if another connection has opened the files; else there is no database of views yet."""
    try:
        database.execute(f"USE {DuckDB.quote_name(VIEWS)}")
    except duckdb.CatalogException:
        return False
    return bool(database.execute("SELECT current_setting('lock_configuration')").fetchall()[0][0])


def _use_of(database: duckdb.DuckDBPyConnection) -> str:
    """What makes names without a database mean those of the attached file, if there is one, on the connection."""
    found = database.execute(_NAME_OF_FILE).fetchall()
    return f"USE {DuckDB.quote_name(found[0][0] if found else VIEWS)}"


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


def _shadow(schema: EngineSchema, policy: Policy, plans: tuple[PreparedTablePlan, ...]) -> duckdb.DuckDBPyConnection:
    """An engine with the same tables, and the copies that are planned of them, and not one row."""
    shadow = duckdb.connect(":memory:", config={**_LOCKED, "threads": 1, "memory_limit": "1GB"})
    shadow.execute(f"ATTACH ':memory:' AS {DuckDB.quote_name(VIEWS)}")
    for table in schema.tables.values():
        columns = ", ".join(f"{DuckDB.quote_name(name)} {column.type_name}" for name, column in table.columns.items())
        shadow.execute(f"CREATE SCHEMA IF NOT EXISTS {DuckDB().quote_path(table.path[:-1])}")
        shadow.execute(f"CREATE TABLE {DuckDB().quote_path(table.path)} ({columns})")
    create_prepared(shadow, policy, plans)
    lock(shadow, policy.dataset.timezone)
    return shadow


def _pieces(planned: PlannedRelease, cursor: duckdb.DuckDBPyConnection) -> Iterator[ExactCells]:
    """The groups of a release, one piece after another; the last may be empty."""
    names, is_text = cell_names(planned), are_lists(planned)
    types = {name: str(kind) for name, kind, *_ in cursor.description or ()}
    if any(
        types[name] != "BIGINT" for name, text in zip(names[planned.keys :], [False, *is_text], strict=True) if not text
    ):
        raise TypeError("a cell is not a bigint")
    limit = group_limit(planned)
    if limit is None:
        groups = cursor.fetchnumpy()
        keys, cells = names[: planned.keys], [_whole_numbers(groups[name]) for name in names[planned.keys :]]
        yield ExactCells(tuple(_texts(groups[name]) for name in keys), cells[0], tuple(cells[1:]))
        return
    places = [list(types).index(name) for name in names]
    while True:
        rows = cursor.fetchmany(limit)
        found = list(zip(*rows, strict=True)) or [()] * len(types)
        columns = [found[place] for place in places]
        units, *counted = columns[planned.keys :]
        yield ExactCells(
            tuple(np.array(column, dtype=object) for column in columns[: planned.keys]),
            np.array(units, dtype=np.int64),
            tuple(
                np.array(column, dtype=object if text else np.int64)
                for column, text in zip(counted, is_text, strict=True)
            ),
        )
        if len(rows) < limit:
            return


def _whole_numbers(column: NDArray[Any]) -> NDArray[np.int64]:
    """A column of bigints, in which there is no NULL."""
    if np.ma.is_masked(column):
        raise TypeError("a cell is NULL")
    return np.array(column, dtype=np.int64)


def _texts(column: NDArray[Any]) -> Texts:
    """A column of texts, with None for NULL."""
    texts = np.array(column, dtype=object)
    texts[np.ma.getmaskarray(column)] = None
    return texts
