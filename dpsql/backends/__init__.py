"""Engines that hold the data: the only readers of private rows."""

from dpsql.backends.backend import Backend, Cancellation, ExactCells, ExactRows, PublicRows
from dpsql.backends.duckdb import DuckDBBackend
from dpsql.backends.outline import Outline
from dpsql.backends.registry import has_prepared_tables, open_backend, prepare_tables, read_outline

__all__ = [
    "Backend",
    "Cancellation",
    "DuckDBBackend",
    "ExactCells",
    "ExactRows",
    "Outline",
    "PublicRows",
    "has_prepared_tables",
    "open_backend",
    "prepare_tables",
    "read_outline",
]
