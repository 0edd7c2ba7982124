"""dpsql: ordinary SQL over people's data, answered with differential privacy.

This module is the PEP 249 face: `connect` opens a policy's database in this process. Over the network any
PostgreSQL driver connects to `dpsql serve`. `plot` draws a release; `%load_ext dpsql` brings queries into notebooks.
Its names are imported when they are first used: engines and parser take most of a second.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        IntegrityError,
        InterfaceError,
        InternalError,
        NotSupportedError,
        OperationalError,
        PriceEstimate,
        ProgrammingError,
        ReleaseReport,
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
    from dpsql.notebook import load_ipython_extension
    from dpsql.notebook.plots import plot

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
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "PriceEstimate",
    "ProgrammingError",
    "ReleaseReport",
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


if not TYPE_CHECKING:  # for mypy, no other name exists

    def __getattr__(name: str) -> object:
        """Import the module that has a public name."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "plot":
            from dpsql.notebook.plots import plot as found
        elif name == "load_ipython_extension":
            from dpsql.notebook import load_ipython_extension as found
        else:
            from dpsql import dbapi

            found = getattr(dbapi, name)
        return globals().setdefault(name, found)


def __dir__() -> list[str]:
    """Name what is public before it is imported."""
    return sorted({*globals(), *__all__})
