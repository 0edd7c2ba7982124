"""Prepared tables of a DuckDB file: a separate file, written completely, renamed into place, and attached read-only.

Rule 1: a prepared table is used only if its file records this very plan, and its columns and constraints, as DuckDB
    prints them, are those of the plan.
Rule 2: the file has private rows: only its owner may read it, from before the first row is written.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import duckdb

from dpsql.backends.duckdb_files import create_views, list_files, open_folder
from dpsql.compiler.bounding.prepared_tables import PreparedTablePlan
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.ir.schema import PreparedTable
from dpsql.errors import DatabaseUnavailable
from dpsql.policy import Policy
from dpsql.policy.engines import engine_of

STALE: Final = "it was made for another policy or data_version, or cannot be read (dpsql prepare makes a new one)"
_DATA: Final = "dpsql.data"
_MADE: Final = "dpsql.made"
_MADE_BY: Final = "about.copies"
_FINGERPRINTS: Final = "name VARCHAR PRIMARY KEY, fingerprint VARCHAR NOT NULL"
_UNLIKE: Final = ("disabled_optimizers", "statistics_propagation,compressed_materialization")
"""As where queries are run: what these two decide by a column's values can fail."""


def prepared_file(path: str, policy: Policy) -> Path:
    """The file of the prepared tables: next to the database, or next to the policy for an object store."""
    if not engine_of(policy.dataset.url).is_file:
        return policy.path.with_name(f"{quote(path, safe='')}.{quote(policy.dataset.name, safe='')}.prepared")
    database = Path("/", path.lstrip("/"))  # with two slashes, it would be another path to some
    return database.with_name(f"{database.name}.{quote(policy.dataset.name, safe='')}.prepared")


def attach_prepared(database: duckdb.DuckDBPyConnection, file: Path, policy: Policy) -> None:
    """Attach the copies, for reading alone; where they cannot be, they are as good as stale."""
    with suppress(duckdb.Error):
        database.execute(f"ATTACH {DuckDB.quote_text(str(file))} AS {DuckDB.quote_name(_alias(policy))} (READ_ONLY)")


def create_prepared(database: duckdb.DuckDBPyConnection, policy: Policy, plans: tuple[PreparedTablePlan, ...]) -> None:
    """Make the copies' tables without a row, in memory."""
    database.execute(f"ATTACH ':memory:' AS {DuckDB.quote_name(_alias(policy))}")
    for plan in plans:
        database.execute(f"CREATE TABLE {_name(plan, policy)} ({plan.columns})")


def read_prepared(
    database: duckdb.DuckDBPyConnection,
    shadow: duckdb.DuckDBPyConnection,
    policy: Policy,
    plans: tuple[PreparedTablePlan, ...],
) -> dict[str, PreparedTable | str]:
    """The copies that may be read, and why others may not; `shadow` has their tables as they ought to be."""
    if not plans:
        return {}
    try:
        made = dict(
            database.execute(f"SELECT name, fingerprint FROM {DuckDB.quote_name(_alias(policy))}.{_MADE_BY}").fetchall()
        )
    except duckdb.Error:
        made = {}
    there, planned = _declared(database, policy), _declared(shadow, policy)
    return {
        plan.table: PreparedTable((_alias(policy), "main", plan.table), plan.rows_per_unit, plan.grids)
        if made.get(plan.table) == plan.fingerprint and there.get(plan.table) == planned[plan.table]
        else STALE
        for plan in plans
    }


def write_prepared(path: str, policy: Policy, plans: tuple[PreparedTablePlan, ...]) -> tuple[Path, dict[str, int]]:
    """Make the file of copies, in the place of the one there was.

    Returns:
        The file, and for each table the number of rows kept, for the data owner alone.

    Raises:
        DatabaseUnavailable: The database cannot be read, or its rows be written beside it; the old file stands.
    """
    file = prepared_file(path, policy)
    folder = Path(tempfile.mkdtemp(prefix=f".{file.name}.", dir=file.parent))  # for its owner alone
    try:
        made = folder / "copies"
        rows = _fill(made, path, policy, plans)
        made.chmod(0o600)
        with made.open("rb") as written:
            os.fsync(written.fileno())
        made.replace(file)
    except duckdb.Error as error:
        raise DatabaseUnavailable(
            f"the prepared tables could not be made: {type(error).__name__}; the old ones are unchanged",
            hint="No process may write to the database meanwhile, and its disk needs room for a copy of its rows.",
        ) from None
    finally:
        shutil.rmtree(folder)
    return file, rows


def _fill(made: Path, path: str, policy: Policy, plans: tuple[PreparedTablePlan, ...]) -> dict[str, int]:
    with duckdb.connect(":memory:", config={"autoinstall_known_extensions": False, "temp_directory": ""}) as database:
        database.execute(f"SET GLOBAL TimeZone = {DuckDB.quote_text(policy.dataset.timezone)}")
        database.execute(f"SET {_UNLIKE[0]} = {DuckDB.quote_text(_UNLIKE[1])}")
        database.execute(f"ATTACH {DuckDB.quote_text(str(made))} AS {DuckDB.quote_name(_MADE)}")
        made_by = f"{DuckDB.quote_name(_MADE)}.{_MADE_BY}"
        database.execute(f"CREATE SCHEMA {DuckDB.quote_name(_MADE)}.about; CREATE TABLE {made_by} ({_FINGERPRINTS})")
        folder = open_folder(policy, path)
        create_views(database, policy, folder, list_files(policy, folder))
        if not engine_of(policy.dataset.url).is_folder:
            database.execute(f"ATTACH {DuckDB.quote_text(path)} AS {DuckDB.quote_name(_DATA)} (READ_ONLY)")
            database.execute(f"USE {DuckDB.quote_name(_DATA)}")
        rows = {}
        for plan in plans:
            name = f"{DuckDB.quote_name(_MADE)}.main.{DuckDB.quote_name(plan.table)}"
            database.execute(f"CREATE TABLE {name} ({plan.columns})")
            found = database.execute(f"INSERT INTO {name} {plan.rows}").fetchall()
            rows[plan.table] = found[0][0]
            database.execute(f"INSERT INTO {made_by} VALUES (?, ?)", [plan.table, plan.fingerprint])
        database.execute(f"USE memory; DETACH {DuckDB.quote_name(_MADE)}")
    return rows


def _declared(database: duckdb.DuckDBPyConnection, policy: Policy) -> dict[str, list[tuple[object, ...]]]:
    """Columns and constraints of each copy, as DuckDB words them."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for listed in (
        "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns()",
        "SELECT table_name, constraint_type, constraint_text FROM duckdb_constraints()",
    ):
        of_copies = f"{listed} WHERE database_name = ? AND schema_name = 'main' ORDER BY ALL"
        for name, *declared in database.execute(of_copies, [_alias(policy)]).fetchall():
            found.setdefault(name, []).append(tuple(declared))
    return found


def _alias(policy: Policy) -> str:
    """What the file is called to the engine: no table of a policy has a dot in its name, or it is its schema's."""
    return f"dpsql.prepared.{policy.dataset.name}"


def _name(plan: PreparedTablePlan, policy: Policy) -> str:
    return f"{DuckDB.quote_name(_alias(policy))}.main.{DuckDB.quote_name(plan.table)}"
