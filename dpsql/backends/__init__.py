"""Engines that hold the data: the only readers of private rows."""

from pathlib import Path

from dpsql.backends.backend import Backend, Cancellation, ExactCells, ExactRows, PublicRows
from dpsql.backends.duckdb import DuckDBBackend
from dpsql.backends.duckdb_copies import write_copies
from dpsql.backends.duckdb_outline import outline_of_duckdb
from dpsql.backends.outline import Outline
from dpsql.backends.postgres import PostgresBackend
from dpsql.backends.postgres_outline import outline_of_postgres
from dpsql.compiler.bounded_copies import plan_copies
from dpsql.errors import InvalidParameter
from dpsql.policy import Policy

__all__ = [
    "Backend",
    "Cancellation",
    "DuckDBBackend",
    "ExactCells",
    "ExactRows",
    "Outline",
    "PostgresBackend",
    "PublicRows",
    "open_backend",
    "prepare_copies",
    "read_outline",
]


def open_backend(policy: Policy) -> Backend:
    """Open the database that a policy names, for reading only.

    Raises:
        InvalidPolicy: There is no such file or server, or its schema is not the policy's.
    """
    url = policy.dataset.url
    scheme, _, path = url.partition("://")
    return DuckDBBackend(path, policy) if scheme == "duckdb" else PostgresBackend(url, policy)


def prepare_copies(policy: Policy, url: str | None = None) -> tuple[str, dict[str, int]]:
    """Make the bounded copies of a policy's tables, in the place of those there were.

    Args:
        policy: The policy.
        url: Of its PostgreSQL database, as a role that may write there; None for the policy's own.

    Returns:
        Where they are, and the rows that each table's has, for the data owner alone.

    Raises:
        InvalidPolicy: The database is not the policy's.
        DatabaseUnavailable: The copies cannot be made now.
    """
    backend = open_backend(policy)
    try:
        if isinstance(backend, PostgresBackend):
            return f"schema {policy.dataset.prepared_schema}", backend.prepare(url)
        plans = plan_copies(policy, backend.schema)
    finally:
        backend.close()
    file, rows = write_copies(policy.dataset.url.partition("://")[2], policy, plans)
    return str(file), rows


def read_outline(url: str) -> Outline:
    """Read the outline of a database.

    Raises:
        InvalidParameter: The URL names no database that can be read, or the database has no table.
    """
    scheme, _, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        outline = outline_of_postgres(url)
    elif scheme == "duckdb" and len(rest) > 1 and rest.startswith("/"):
        outline = outline_of_duckdb(Path(rest[1:]).resolve())
    else:
        hint = "duckdb:///clinic.duckdb, or postgresql://reader@host/clinic"
        raise InvalidParameter("the URL starts with neither duckdb:/// nor postgresql://", hint=hint)
    if not outline.tables:
        raise InvalidParameter(f'the database "{outline.name}" has no table that may be read')
    return outline
