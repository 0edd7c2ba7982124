"""dpsql: ordinary SQL over people's data, answered with differential privacy.

This module is the PEP 249 face: `connect` opens a policy's database in this process. Over the network any
PostgreSQL driver connects to `dpsql serve`. `plot` draws a release; `%load_ext dpsql` brings queries into notebooks.
"""

from typing import TYPE_CHECKING

from dpsql.dbapi import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Connection,
    Cursor,
    DatabaseError,
    DataError,
    Date,
    DateFromTicks,
    Error,
    Estimate,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Release,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
    Warning,
    apilevel,
    connect,
    paramstyle,
    threadsafety,
)
from dpsql.plots import plot

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "Estimate",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Release",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "load_ipython_extension",
    "paramstyle",
    "plot",
    "threadsafety",
]


def load_ipython_extension(ipython: "InteractiveShell") -> None:
    """Bring %dpsql and %%dpsql into a notebook: what `%load_ext dpsql` calls."""
    from dpsql.notebook.magics import DpsqlMagics

    ipython.register_magics(DpsqlMagics)
