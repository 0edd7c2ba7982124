"""dpsql: ordinary SQL over people's data, answered with differential privacy.

This module is the PEP 249 face: `connect` opens a policy's database in this process. Over the network any
PostgreSQL driver connects to `dpsql serve`.
"""

from dpsql.dbapi import Connection, Cursor, Release, apilevel, connect, paramstyle, threadsafety
from dpsql.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)

__all__ = [
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Release",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]
