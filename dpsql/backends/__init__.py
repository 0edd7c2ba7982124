"""Engines that hold the data: the only readers of private rows."""

from dpsql.backends.backend import Backend, Cancellation, ExactCells, ExactRows, PublicRows
from dpsql.backends.duckdb import DuckDBBackend
from dpsql.errors import InvalidPolicy
from dpsql.policy import Policy

__all__ = ["Backend", "Cancellation", "DuckDBBackend", "ExactCells", "ExactRows", "PublicRows", "open_backend"]


def open_backend(policy: Policy) -> Backend:
    """Open the database that a policy names, for reading only.

    Raises:
        InvalidPolicy: There is no such engine or file, or its schema is not the policy's.
    """
    scheme, _, path = policy.dataset.url.partition("://")
    if scheme != "duckdb":
        raise InvalidPolicy(
            f'dataset.url: no engine for "{scheme}"', hint='url = "duckdb:///clinic.duckdb" names a DuckDB file.'
        )
    return DuckDBBackend(path, policy)
