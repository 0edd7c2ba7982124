"""sqlalchemy: the dialect of dpsql:// URLs: SQLAlchemy over an engine in this process.

Rule 1: queries are written, and tables reflected, as SQLAlchemy does both for PostgreSQL.
Rule 2: each connection of the pool is one of `dpsql.connect`; the ledger alone knows what all of them have spent.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import types
from sqlalchemy.dialects.postgresql import INTERVAL
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import ConnectArgsType, IsolationLevel
from sqlalchemy.exc import ArgumentError

import dpsql
from dpsql.sqltypes import Span

_EXAMPLE: Final = "dpsql:///policies/clinic.toml?user=ana"
_OPTIONS: Final = ("user", "role", "ledger", "epsilon", "delta", "mechanism", "target_error")
_LEVELS: Final[Sequence[IsolationLevel]] = (
    *("SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED", "AUTOCOMMIT"),
)


class _Interval(INTERVAL):
    """An interval: a timedelta where it is of one length, a `Span` where months are in it."""

    @classmethod
    def adapt_emulated_to_native(cls, interval: types.Interval, **kw: Any) -> "_Interval":  # type: ignore[override]
        return cls(precision=interval.second_precision)

    def result_processor(self, dialect: Any, coltype: object) -> Callable[[Any], Any]:
        return _of_one_length


def _of_one_length(value: Span | None) -> timedelta | Span | None:
    if value is None or value.months:
        return value
    return timedelta(days=value.days, microseconds=value.microseconds)


class DpsqlDialect(PGDialect):
    """What SQLAlchemy asks of a database, asked of `dpsql.connect`."""

    name = "dpsql"
    driver = "dpsql"
    supports_statement_cache = True
    colspecs = PGDialect.colspecs | {types.Interval: _Interval, INTERVAL: _Interval}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._autocommitting: WeakSet[dpsql.Connection] = WeakSet()

    @classmethod
    def import_dbapi(cls) -> Any:
        """The module that connects."""
        return dpsql

    def create_connect_args(self, url: URL) -> ConnectArgsType:
        """Read dpsql:///POLICY?user=NAME; a relative path is one from the folder of now.

        Raises:
            ArgumentError: The URL says something else.
        """
        if not url.database or url.host or url.port or url.username or url.password:
            raise ArgumentError(f"the URL has a policy's path and no host, such as {_EXAMPLE}")
        for name, value in url.query.items():
            if name not in _OPTIONS:
                raise ArgumentError(f'there is no option "{name}"; those of dpsql:// are {", ".join(_OPTIONS)}')
            if not isinstance(value, str):
                raise ArgumentError(f'the option "{name}" is given twice')
        if "user" not in url.query:
            raise ArgumentError(f"the URL names no user, as {_EXAMPLE} does")
        return [str(Path(url.database).absolute())], dict(url.query)

    def is_disconnect(self, e: Exception, connection: Any, cursor: Any) -> bool:
        """Whether an error says that the connection is closed."""
        return isinstance(e, dpsql.InterfaceError) and connection is not None and connection.closed

    def do_begin(self, dbapi_connection: Any) -> None:
        """Begin a transaction: a SET in it is undone by a rollback, and savepoints may be set."""
        if dbapi_connection.dbapi_connection not in self._autocommitting:
            dbapi_connection.cursor().execute("BEGIN")

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        """Run a statement; a percent sign in text that came as it is, without parameters, is one."""
        as_it_is = not parameters and (context is None or context.compiled is None)
        cursor.execute(statement, None if as_it_is else parameters)

    def get_isolation_level_values(self, dbapi_conn: Any) -> Sequence[IsolationLevel]:
        """The levels that are taken and told; nothing that is answered depends on them."""
        return _LEVELS

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        """Take a level for the transactions that follow; AUTOCOMMIT begins none."""
        if level == "AUTOCOMMIT":
            self._autocommitting.add(dbapi_connection)
        else:
            self._autocommitting.discard(dbapi_connection)
            super().set_isolation_level(dbapi_connection, level)  # type: ignore[no-untyped-call]

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        """Whether no transactions are begun."""
        return dbapi_conn in self._autocommitting
