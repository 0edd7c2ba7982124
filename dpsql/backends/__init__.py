"""Engines that hold the data: the only readers of private rows."""

from dpsql.backends.backend import Backend, Cancellation, ExactCells, ExactRows, PublicRows
from dpsql.backends.duckdb import DuckDBBackend
from dpsql.backends.postgres import PostgresBackend
from dpsql.policy import Policy

__all__ = [
    "Backend",
    "Cancellation",
    "DuckDBBackend",
    "ExactCells",
    "ExactRows",
    "PostgresBackend",
    "PublicRows",
    "open_backend",
]


def open_backend(policy: Policy) -> Backend:
    """Open the database that a policy names, for reading only.

    Raises:
        InvalidPolicy: There is no such file or server, or its schema is not the policy's.
    """
    url = policy.dataset.url
    scheme, _, path = url.partition("://")
    return DuckDBBackend(path, policy) if scheme == "duckdb" else PostgresBackend(url, policy)
