"""The registry of engines: for each its dialect, its backend, and how its tables are prepared and outlined."""

from collections.abc import Callable
from dataclasses import dataclass

from dpsql.backends.backend import Backend
from dpsql.backends.duckdb import DuckDBBackend
from dpsql.backends.duckdb_outline import outline_of_bucket, outline_of_duckdb, outline_of_folder
from dpsql.backends.duckdb_prepared import write_prepared
from dpsql.backends.outline import Outline
from dpsql.compiler.bounding.prepared_tables import plan_prepared
from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.dialect import Dialect
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.dialects.postgres import Postgres
from dpsql.compiler.dialects.spark import Spark
from dpsql.errors import InvalidParameter, InvalidPolicy
from dpsql.policy import Policy
from dpsql.policy.engines import DUCKDB, ENGINES, PARQUET, POSTGRES, S3, SPARK, EngineKind, UnknownEngine, engine_of

_NO_CLIENT = "the client of Spark Connect is not installed"
_SPARK_EXTRA = "pip install 'dpsql[spark]'"

Prepared = tuple[str, dict[str, int]]
"""Where bounded copies are, and how many rows each has."""


@dataclass(frozen=True)
class Entry:
    """All that dpsql knows of an engine.

    Attributes:
        dialect: Its SQL.
        backend: Opens a database, given its location and the policy.
        outline: Reads the outline of a database, given its location.
        prepare: Makes the bounded copies of a policy's tables, given the url of a role that may write, if any; None
            where there are no prepared tables.
    """

    dialect: Dialect
    backend: Callable[[str, Policy], Backend]
    outline: Callable[[str], Outline]
    prepare: Callable[[Policy, str | None], Prepared] | None


_ENTRIES: dict[EngineKind, Entry] = {}


def register(engine: EngineKind, entry: Entry) -> None:
    """Let policies name an engine."""
    ENGINES.update(dict.fromkeys(engine.schemes, engine))
    DIALECTS[engine] = entry.dialect
    _ENTRIES[engine] = entry


def open_backend(policy: Policy) -> Backend:
    """Open the database that a policy names, for reading only.

    Raises:
        InvalidPolicy: There is no such file or server, or its schema is not the policy's.
    """
    engine = engine_of(policy.dataset.url)
    return _ENTRIES[engine].backend(engine.location(policy.dataset.url), policy)


def prepare_tables(policy: Policy, url: str | None = None) -> Prepared:
    """Make the bounded copies of a policy's tables, in the place of those there were.

    Args:
        policy: The policy.
        url: Of its database on a server, as a role that may write there; None for the policy's own.

    Returns:
        Where they are, and the rows that each table's has, for the data owner alone.

    Raises:
        InvalidPolicy: The database is not the policy's, or its engine has no prepared tables.
        DatabaseUnavailable: The copies cannot be made now.
    """
    engine = engine_of(policy.dataset.url)
    prepare = _ENTRIES[engine].prepare
    if prepare is None:
        raise InvalidPolicy(f"there are no prepared tables where {engine} holds the data", hint="Queries need none.")
    return prepare(policy, url)


def has_prepared_tables(engine: EngineKind) -> bool:
    """Return whether tables of an engine can be prepared."""
    return _ENTRIES[engine].prepare is not None


def read_outline(url: str) -> Outline:
    """Read the outline of a database.

    Raises:
        InvalidParameter: The URL names no database that can be read, or the database has no table.
    """
    try:
        engine = engine_of(url)
        if not engine.has_location(url):
            raise UnknownEngine
    except UnknownEngine as error:
        raise InvalidParameter(str(error), hint=error.hint) from None
    outline = _ENTRIES[engine].outline(engine.location(url))
    if not outline.tables:
        raise InvalidParameter(f'the database "{outline.name}" contains no readable table')
    return outline


def _prepare_in_file(policy: Policy, _: str | None) -> Prepared:
    path = engine_of(policy.dataset.url).location(policy.dataset.url)
    backend = DuckDBBackend(path, policy)
    try:
        plans = plan_prepared(policy, backend.schema)
    finally:
        backend.close()
    file, rows = write_prepared(path, policy, plans)
    return str(file), rows


# psycopg takes a tenth of a second to import, so a policy over a DuckDB file does without.


def _open_server(url: str, policy: Policy) -> Backend:
    from dpsql.backends.postgres import PostgresBackend

    return PostgresBackend(url, policy)


def _outline_of_server(url: str) -> Outline:
    from dpsql.backends.postgres_outline import outline_of_postgres

    return outline_of_postgres(url)


def _prepare_on_server(policy: Policy, url: str | None) -> Prepared:
    from dpsql.backends.postgres import PostgresBackend

    backend = PostgresBackend(policy.dataset.url, policy)
    try:
        return f"schema {policy.dataset.prepared_schema}", backend.prepare(url)
    finally:
        backend.close()


def _open_spark(url: str, policy: Policy) -> Backend:
    try:
        from dpsql.backends.spark import SparkBackend
    except ImportError:
        raise InvalidPolicy(f"dataset.url: {_NO_CLIENT}", hint=_SPARK_EXTRA) from None
    return SparkBackend(url, policy)


def _outline_of_spark(url: str) -> Outline:
    try:
        from dpsql.backends.spark_tables import outline_of_spark
    except ImportError:
        raise InvalidParameter(_NO_CLIENT, hint=_SPARK_EXTRA) from None
    return outline_of_spark(url)


register(DUCKDB, Entry(DuckDB(), DuckDBBackend, outline_of_duckdb, _prepare_in_file))
register(PARQUET, Entry(DuckDB(), DuckDBBackend, outline_of_folder, _prepare_in_file))
register(S3, Entry(DuckDB(), DuckDBBackend, outline_of_bucket, _prepare_in_file))
register(POSTGRES, Entry(Postgres(), _open_server, _outline_of_server, _prepare_on_server))
register(SPARK, Entry(Spark(), _open_spark, _outline_of_spark, None))
