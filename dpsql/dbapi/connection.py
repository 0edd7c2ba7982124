"""connection: PEP 249 connections and cursors over an engine in this process, and how far a result was fetched.

Rule 1: a cursor runs the same session statements as the wire; nothing here reads data or spends budget by itself.
Rule 2: whatever goes wrong is an `Error`; a fault of dpsql's own is told by its kind alone: its text may quote data,
    and frames may hold it.
Rule 3: threads that share a connection take turns, one statement each, and every reply is held back as on the wire.
"""

import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dpsql import errors
from dpsql.catalog.catalog import Catalogs
from dpsql.compiler.sql.statements import (
    CharacteristicsStatement,
    CloseStatement,
    DeallocateStatement,
    DiscardStatement,
    EmptyStatement,
    ListenStatement,
    ResetStatement,
    SetStatement,
    TransactionStatement,
)
from dpsql.dbapi.binding import Values, bind
from dpsql.dbapi.frames import arrow_table, data_frame, masked_arrays
from dpsql.dbapi.releases import PriceEstimate, ReleaseReport, estimate_of, release_of
from dpsql.dbapi.types import Described, described
from dpsql.errors import (
    Error,
    InterfaceError,
    InternalError,
    InvalidParameter,
    InvalidSyntax,
    LimitExceeded,
    RowOutOfRange,
    UnsupportedQuery,
)
from dpsql.gateway.answers import Explanation
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result, ResultColumn
from dpsql.gateway.response_padding import held_back
from dpsql.gateway.session import Session, Statement

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Row = tuple[Any, ...]
Made = TypeVar("Made")


class Fetching(ABC):
    """The half of a PEP 249 cursor that hands out rows."""

    def __init__(self) -> None:
        self._result: Result | None = None
        self._next = 0
        self._arraysize = 1

    @property
    def arraysize(self) -> int:
        """Rows that `fetchmany` fetches unless told."""
        return self._arraysize

    @arraysize.setter
    def arraysize(self, size: int) -> None:
        self._arraysize = _count(size, "arraysize")

    @property
    def description(self) -> list[Described] | None:
        """Name, PostgreSQL type name and sizes of each column; None unless the last statement returned rows."""
        if self._result is None or self._result.columns is None:
            return None
        return [described(column) for column in self._result.columns]

    @property
    def rowcount(self) -> int:
        """Rows of the last result; -1 where there is none."""
        return -1 if self._result is None or self._result.columns is None else len(self._result.rows)

    @property
    def rownumber(self) -> int | None:
        """Index of the row that is fetched next."""
        return self._next if self._result is not None and self._result.columns is not None else None

    @property
    def lastrowid(self) -> None:
        """None: nothing is written, and released rows have no identity."""
        return None

    def fetchone(self) -> Row | None:
        """The next row, or None after the last."""
        rows = self._rows()
        if self._next >= len(rows):
            return None
        self._next += 1
        return rows[self._next - 1]

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next `size` rows, `arraysize` by default."""
        return self._take(self._arraysize if size is None else _count(size, "size"))

    def fetchall(self) -> list[Row]:
        """All rows that are left."""
        return self._take(len(self._rows()))

    def scroll(self, value: int, mode: str = "relative") -> None:
        """Move to another row of the result.

        Args:
            value: Rows to go on by, or back where it is negative; or the index of the row to be fetched next.
            mode: "relative" or "absolute".

        Raises:
            RowOutOfRange: It would leave the result; an IndexError, too. The cursor stays where it is.
        """
        rows = self._rows()
        if mode not in ("relative", "absolute"):
            raise InterfaceError(f"invalid scroll mode: {mode!r:.40}", hint='scroll(1, "relative")')
        place = _whole(value, "value") + (self._next if mode == "relative" else 0)
        if not 0 <= place < len(rows):
            raise RowOutOfRange("the row is outside the result", hint="scroll(0, 'absolute')")
        self._next = place

    def nextset(self) -> None:
        """Skip what is left: a statement has one result, so there is no next one."""
        self._next = len(self._rows())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    @abstractmethod
    def _check_open(self) -> None:
        """Raise InterfaceError if the cursor or its connection is closed."""

    def _keep(self, result: Result | None) -> None:
        self._result, self._next = result, 0

    def _hand_over(self, make: Callable[[Sequence[ResultColumn], Sequence[Row]], Made]) -> Made:
        """What is made of the rows that are left; they stay where they are if it cannot be made."""
        rows = self._rows()
        columns = self._result.columns if self._result is not None else None
        made = make(columns or (), rows[self._next :])
        self._next = len(rows)
        return made

    def _take(self, count: int) -> list[Row]:
        taken = list(self._rows()[self._next : self._next + count])
        self._next += len(taken)
        return taken

    def _rows(self) -> Sequence[Row]:
        self._check_open()
        if self._result is None or self._result.columns is None:
            raise InterfaceError("there is no result to fetch", hint="Call execute with a query first.")
        return self._result.rows


def _whole(number: object, name: str) -> int:
    try:
        return index(number)  # type: ignore[arg-type]  # what is none is told so
    except TypeError:
        raise InterfaceError(f"{name} must be an integer, not {type(number).__name__}") from None


def _count(number: object, name: str) -> int:
    count = _whole(number, name)
    if count < 0:
        raise InterfaceError(f"{name} must not be negative", hint="Call fetchall() for all remaining rows.")
    return count


Message = tuple[type[Exception], Exception]

_LOG = logging.getLogger("dpsql.dbapi")
_PAUSE = 0.05
"""Seconds between two tries to stop what runs on a connection that closes."""
_WITHOUT_RESULT = (
    *(CharacteristicsStatement, CloseStatement, DeallocateStatement, DiscardStatement, EmptyStatement),
    *(ListenStatement, ResetStatement, SetStatement, TransactionStatement),
)


class Connection:
    """A PEP 249 connection; threads may share it."""

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    def __init__(self, engine: Engine, user: str, *, new_user: bool = False) -> None:
        """Wrap an engine; use `connect`."""
        self._engine = engine
        self._new_user = new_user
        database = engine.policy.dataset.name
        self._catalogs = Catalogs({database: engine})
        self._session = Session(engine, user, self._catalogs.provider(database, user))
        self._lock = threading.Lock()
        self._busy: int | None = None
        self._closed = False
        self._shut = False

    @property
    def engine(self) -> Engine:
        """The engine under the connection."""
        return self._engine

    @property
    def session(self) -> Session:
        """The session under the connection, for what PEP 249 has no words for."""
        return self._session

    @property
    def new_user(self) -> bool:
        """Whether the ledger did not know the user when the connection was opened."""
        return self._new_user

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def zone(self) -> str:
        """The time zone that moments are in."""
        return self._engine.policy.dataset.timezone

    def configure(self, settings: Mapping[str, object]) -> None:
        """Change settings as SET does."""
        with self._turn():
            for name, value in settings.items():
                self._session.configure(name, _text(value))

    def cursor(self) -> "Cursor":
        """A new cursor."""
        self.check_open()
        return Cursor(self)

    def commit(self) -> None:
        """End a transaction that BEGIN began; charges stand in any case."""
        self.run("COMMIT")

    def rollback(self) -> None:
        """End a transaction that BEGIN began, and undo its SETs; charges stand."""
        self.run("ROLLBACK")

    def cancel(self) -> None:
        """Stop what runs on this connection, from any thread; its charge stands."""
        self._session.cancel()

    def close(self) -> None:
        """Stop what runs, and close the connection with the engine under it; once is enough, and twice does no harm."""
        self._closed = True
        if self._busy == threading.get_ident():  # a signal's handler, amid a statement, which will see to it
            self._session.cancel()
            return
        while not self._lock.acquire(timeout=_PAUSE):
            self._session.cancel()
        try:
            self._shut_down()
        finally:
            self._lock.release()

    def check_open(self) -> None:
        """Raise InterfaceError if the connection is closed."""
        if self._closed:
            raise InterfaceError("the connection is closed", hint="dpsql.connect(…) opens another.")

    def run(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        *,
        many: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> Result:
        """Run one statement.

        Args:
            sql: The statement.
            parameters: Values for $1, $2 …
            many: Refuse a statement that has a result, which nobody would see.
            settings: Settings for this statement alone.
        """
        with self._turn(), self._session.configured(settings):
            statement = self._one(sql)
            if many and not isinstance(statement.parsed, _WITHOUT_RESULT):
                raise UnsupportedQuery(
                    "executemany would discard results that are charged", hint="Call execute once for each."
                )
            return self._session.execute(statement, parameters)

    def explain(
        self, sql: str, parameters: Sequence[object] = (), *, settings: Mapping[str, str] | None = None
    ) -> Explanation:
        """Explain one query; parameters and settings are as in `run`."""
        with self._turn(), self._session.configured(settings):
            return self._session.explain(self._one(sql), parameters)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _one(self, sql: str) -> Statement:
        statements = self._session.parse(sql)
        if len(statements) != 1:
            raise InvalidSyntax("execute takes one statement", hint="Call execute once for each.")
        return statements[0]

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One statement at a time: whatever goes wrong is an Error, and the reply is held back."""
        if self._busy == threading.get_ident():
            raise InterfaceError("this thread is already running a statement on the connection")
        with self._lock:
            self.check_open()
            self._busy = threading.get_ident()
            try:
                with self._replying():
                    yield
            finally:
                self._busy = None
                if self._closed:
                    self._shut_down()

    @contextmanager
    def _replying(self) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        except Error as error:
            _forget_values(error)
            raise
        except Exception as error:
            self._session.fail()
            fault = _fault(error)
            _forget_values(error)
            error.args = ()
            raise fault from None
        finally:
            time.sleep(held_back(time.monotonic() - begun, self._session.reply_quantum))

    def _shut_down(self) -> None:
        """Close what is under the connection; whoever calls has the turn."""
        if not self._shut:
            self._shut = True
            with ExitStack() as last_first:
                last_first.callback(self._engine.ledger.close)
                last_first.callback(self._engine.close)
                last_first.callback(self._catalogs.close)
                last_first.callback(self._session.close)


def _text(value: object) -> str:
    """What SET would be given."""
    try:
        return str(value)
    except ValueError:  # a whole number of thousands of digits
        raise InvalidParameter("a setting has too many digits", hint="connect(…, epsilon=0.1), for example") from None


def _forget_values(error: BaseException) -> None:
    """Empty the frames that an exception leads to, and cut off those it was raised for.

    Both may hold exact values, which debuggers and pages for errors would show to whoever sees these.
    """
    at: BaseException | None = error
    while at is not None:
        traceback.clear_frames(at.__traceback__)
        before, at.__cause__, at.__context__ = at.__cause__ or at.__context__, None, None
        at = before


def _fault(error: Exception) -> Error:
    """What a caller is told of an exception that nothing expected; the log has its place, and never its text."""
    if isinstance(error, RecursionError | MemoryError):
        return LimitExceeded("the statement is nested too deeply or is too large for the stack that is left")
    frames = traceback.extract_tb(error.__traceback__)
    _LOG.error("unexpected %s at %s", type(error).__name__, "; ".join(f"{at.filename}:{at.lineno}" for at in frames))
    return InternalError(f"dpsql itself failed: {type(error).__name__}", hint="Please report it, with the log.")


class Cursor(Fetching):
    """A PEP 249 cursor; one thread at a time uses it.

    Attributes:
        connection: The connection it is of.
        messages: PEP 249's list: the notices and warnings of the last statement, each with its class.
    """

    def __init__(self, connection: Connection) -> None:
        """Wrap a connection; use `Connection.cursor`."""
        super().__init__()
        self.connection = connection
        self.messages: list[Message] = []
        self._closed = False

    @property
    def notices(self) -> list[str]:
        """What the last statement told with its rows: bias, price, what is left, how exact it is, and the bounds."""
        return [notice.text for notice in self._result.notices] if self._result is not None else []

    @property
    def release(self) -> ReleaseReport | None:
        """What the last statement released; None where nothing was."""
        answer = self._result.answer if self._result is not None else None
        return release_of(answer) if answer is not None else None

    def execute(self, operation: str, parameters: Values | None = None) -> Self:
        """Run a statement; parameters are bound as typed values, never written into the text.

        Raises:
            Error: A typed refusal or failure.
        """
        self._run(operation, parameters)
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Values]) -> None:
        """Run a statement that has no result for each set of parameters.

        Raises:
            UnsupportedQuery: It has one; nothing was charged.
            Error: As `execute`.
        """
        for parameters in seq_of_parameters:
            self._run(operation, parameters, many=True)

    def explain(self, operation: str, parameters: Values | None = None) -> PriceEstimate:
        """Tell what a query would cost and how exact it would be; nothing is read and nothing is spent.

        The cursor keeps the result it has.

        Raises:
            Error: As `execute` would, but for a budget that does not cover it.
        """
        self._check_open()
        return estimate_of(self.connection.explain(*bind(operation, parameters)))

    def fetch_df(self) -> "pd.DataFrame":
        """The rows that are left, as a pandas DataFrame; NULL is missing in every type of column.

        Raises:
            UnsupportedQuery: pandas is not installed.
        """
        return self._hand_over(partial(data_frame, self.connection.zone))

    def fetch_arrow_table(self) -> "pa.Table":
        """The rows that are left, as a table of Arrow.

        Raises:
            UnsupportedQuery: pyarrow is not installed.
        """
        return self._hand_over(partial(arrow_table, self.connection.zone))

    def fetchnumpy(self) -> dict[str, Any]:
        """The rows that are left, as a masked array for each column; NULL is masked."""
        return self._hand_over(masked_arrays)

    def callproc(self, procname: str, parameters: Sequence[object] = ()) -> None:
        """Refuse: there are no procedures.

        Raises:
            UnsupportedQuery: Always.
        """
        self._check_open()
        raise UnsupportedQuery("stored procedures are not supported", hint="SELECT LOWER('FOO') calls a function.")

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """Do nothing, as PEP 249 allows: values tell their types."""
        self._check_open()

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing, as PEP 249 allows: values come whole."""
        self._check_open()

    def close(self) -> None:
        """Close the cursor; once is enough, and twice does no harm."""
        self._closed = True
        self._keep(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, operation: str, parameters: Values | None, *, many: bool = False) -> None:
        self._check_open()
        self._keep(None)
        self.messages.clear()
        result = self.connection.run(*bind(operation, parameters), many=many)
        self._keep(result)
        self.messages += [(errors.Warning, errors.Warning(notice.text)) for notice in result.notices]

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed", hint="connection.cursor() makes another.")
        self.connection.check_open()
