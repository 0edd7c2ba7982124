"""Engines that hold the data: the only readers of private rows."""

from dpsql.backends.backend import Backend, Cancellation, ExactCells, ExactRows, PublicRows
from dpsql.backends.duckdb import DUCKDB, DuckDBBackend
from dpsql.backends.outline import Outline
from dpsql.backends.postgres import POSTGRES, PostgresBackend
from dpsql.backends.registry import open_backend, prepare_tables, read_outline

__all__ = [
    "DUCKDB",
    "POSTGRES",
    "Backend",
    "Cancellation",
    "DuckDBBackend",
    "ExactCells",
    "ExactRows",
    "Outline",
    "PostgresBackend",
    "PublicRows",
    "open_backend",
    "prepare_tables",
    "read_outline",
]
