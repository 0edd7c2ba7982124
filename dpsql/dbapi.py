"""dbapi: PEP 249 connections and cursors over an engine in this process.

Rule: a cursor runs the same session statements as the wire; nothing here reads data or spends budget by itself.
"""

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpsql.backends import open_backend
from dpsql.engine import Answer, Engine
from dpsql.errors import InterfaceError, InvalidParameter, PolicyViolation, ProgrammingError
from dpsql.explain import cost_json, remaining_json
from dpsql.ledger import Ledger, open_ledger
from dpsql.padding import held_back
from dpsql.policy import Policy, load_policy
from dpsql.results import Result
from dpsql.session import Session

apilevel = "2.0"
threadsafety = 2
paramstyle = "pyformat"

_PLACEHOLDER = re.compile(r"%(?:%|s|\((\w+)\)s|(.|\Z))", re.DOTALL)


@dataclass(frozen=True)
class Release:
    """What the last statement of a cursor released.

    Attributes:
        cost: Price: epsilon (in the budget's currency), delta, rho.
        remaining: What is left of the budget: epsilon, delta.
        error: Standard error of each column's noise by name; None where it depends on the size of the group.
        reused: True where this user had it already, and nothing was charged.
        answer: The released rows, and the plan that they came from.
    """

    cost: dict[str, float | None]
    remaining: dict[str, float]
    error: dict[str, float | None]
    reused: bool
    answer: Answer = field(repr=False)

    @classmethod
    def of(cls, answer: Answer) -> Self | None:
        """What an answer released; None where nothing was."""
        if answer.charge is None:
            return None
        errors = {column.name: column.error.stderr for column in answer.columns if column.error is not None}
        return cls(cost_json(answer.cost), remaining_json(answer.charge.remaining), errors, answer.reused, answer)


def connect(
    policy: str | Path,
    *,
    user: str,
    role: str | None = None,
    ledger: str | None = None,
    epsilon: float | str | None = None,
    delta: float | str | None = None,
    mechanism: str | None = None,
    target_error: float | str | None = None,
) -> "Connection":
    """Open a policy's database for one user, in this process.

    Args:
        policy: Path of the policy file.
        user: Who asks; a user the ledger does not know is added.
        role: The role such a user gets; not needed where the policy has one only.
        ledger: URL of the ledger; by default dpsql-ledger.sqlite beside the policy.
        epsilon: Price of a query, instead of the role's.
        delta: δ for private group keys, instead of the role's.
        mechanism: "auto", "laplace" or "gaussian".
        target_error: How exact answers are to be, such as "5 %" or 50: the least price that gives it is charged.

    Raises:
        InvalidPolicy: The policy or its database is not usable.
        LedgerUnavailable: The ledger is not usable.
        InvalidParameter: A setting is out of range.
    """
    loaded = load_policy(Path(policy))
    opened = open_ledger(ledger if ledger is not None else default_ledger(loaded))
    try:
        _ensure_account(opened, loaded, user, role)
        engine = Engine(loaded, opened, open_backend(loaded))
    except BaseException:
        opened.close()
        raise
    connection = Connection(engine, user)
    try:
        given = {"epsilon": epsilon, "delta": delta, "mechanism": mechanism, "target_error": target_error}
        connection.configure({f"dpsql.{name}": _text(value) for name, value in given.items() if value is not None})
    except BaseException:
        connection.close()
        raise
    return connection


def _text(value: object) -> str:
    """What SET would be given."""
    try:
        return str(value)
    except ValueError:  # a whole number of thousands of digits
        raise InvalidParameter("a setting has too many digits", hint="connect(…, epsilon=0.1), for example") from None


def default_ledger(policy: Policy) -> str:
    """The URL of the ledger beside a policy."""
    return f"sqlite:///{policy.path.resolve().parent / 'dpsql-ledger.sqlite'}"


def _ensure_account(ledger: Ledger, policy: Policy, user: str, role: str | None) -> None:
    if ledger.account(user) is not None:
        return
    if role is None and len(policy.roles) > 1:
        names = ", ".join(known.name for known in policy.roles)
        raise PolicyViolation(f'user "{user}" is new and needs a role', hint=f"connect(…, role=…) with one of: {names}")
    ledger.add_account(user, role if role is not None else policy.roles[0].name)


class Connection:
    """A PEP 249 connection."""

    def __init__(self, engine: Engine, user: str) -> None:
        """Wrap an engine; use `connect`."""
        self._engine = engine
        self._session = Session(engine, user)
        self._lock = threading.RLock()
        self._closed = False

    @property
    def engine(self) -> Engine:
        """The engine under the connection."""
        return self._engine

    @property
    def session(self) -> Session:
        """The session under the connection, for what PEP 249 has no words for."""
        return self._session

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings as SET does."""
        for name, value in settings.items():
            self._session.configure(name, value)

    @contextmanager
    def configured(self, settings: Mapping[str, str]) -> Iterator[None]:
        """For what this thread does inside, change settings as SET does; other threads wait for it to end."""
        with self._lock, self._session.configured(settings):
            yield

    def cursor(self) -> "Cursor":
        """A new cursor."""
        self._check_open()
        return Cursor(self)

    def commit(self) -> None:
        """End a transaction that BEGIN began; charges stand in any case."""
        self._end("COMMIT")

    def rollback(self) -> None:
        """End a transaction that BEGIN began, and undo its SETs; charges stand."""
        self._end("ROLLBACK")

    def cancel(self) -> None:
        """Stop what another thread runs on this connection; its charge stands."""
        self._session.cancel()

    def close(self) -> None:
        """Close the connection and the engine under it."""
        if not self._closed:
            self._closed = True
            self._session.close()
            self._engine.close()
            self._engine.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, sql: str) -> None:
        self._check_open()
        if self._session.transaction != "I":
            self.run(sql)

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed")

    def run(self, sql: str, parameters: Sequence[object] = ()) -> Result:
        """Run one statement, for what PEP 249 has no words for; threads that share the connection take turns.

        Args:
            sql: The statement.
            parameters: Values of $1, $2 …

        Raises:
            Error: A typed refusal or failure.
        """
        self._check_open()
        with self._lock:
            statements = self._session.parse(sql)
            if len(statements) != 1:
                raise ProgrammingError("execute takes one statement", hint="Call execute once for each.")
            begun = time.monotonic()
            try:
                return self._session.execute(statements[0], parameters)
            finally:
                time.sleep(held_back(time.monotonic() - begun, self._session.reply_quantum))


class Cursor:
    """A PEP 249 cursor."""

    def __init__(self, connection: Connection) -> None:
        """Wrap a connection; use `Connection.cursor`."""
        self.connection = connection
        self.arraysize = 1
        self._result: Result | None = None
        self._next = 0
        self._closed = False

    @property
    def description(self) -> list[tuple[str, str, None, None, None, None, None]] | None:
        """Name and PostgreSQL type name of each column; None before a statement that returns rows."""
        if self._result is None or self._result.columns is None:
            return None
        return [(column.name, column.type.value, None, None, None, None, None) for column in self._result.columns]

    @property
    def rowcount(self) -> int:
        """Rows of the last result; -1 where there is none."""
        if self._result is None or self._result.columns is None:
            return -1
        return len(self._result.rows)

    @property
    def rownumber(self) -> int | None:
        """Index of the row that is fetched next."""
        return self._next if self._result is not None and self._result.columns is not None else None

    @property
    def notices(self) -> list[str]:
        """What the last statement told beside its rows: price, what is left, how exact it is."""
        return [notice.message for notice in self._result.notices] if self._result is not None else []

    @property
    def release(self) -> Release | None:
        """What the last statement released; None where nothing was."""
        answer = self._result.answer if self._result is not None else None
        return Release.of(answer) if answer is not None else None

    def execute(self, operation: str, parameters: Sequence[object] | Mapping[str, object] | None = None) -> Self:
        """Run a statement; parameters are bound as typed values, never written into the text.

        Raises:
            Error: A typed refusal or failure.
        """
        self._check_open()
        self._result = None
        sql, values = bind(operation, parameters)
        self._result = self.connection.run(sql, values)
        self._next = 0
        return self

    def executemany(self, operation: str, seq_of_parameters: Sequence[Sequence[object] | Mapping[str, object]]) -> None:
        """Run a statement for each set of parameters; results are dropped, as PEP 249 leaves open."""
        for parameters in seq_of_parameters:
            self.execute(operation, parameters)
        self._result = None

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or None after the last."""
        rows = self._rows()
        if self._next >= len(rows):
            return None
        self._next += 1
        return rows[self._next - 1]

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next `size` rows, `arraysize` by default."""
        rows = self._rows()
        taken = list(rows[self._next : self._next + (self.arraysize if size is None else size)])
        self._next += len(taken)
        return taken

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        rows = self._rows()
        taken = list(rows[self._next :])
        self._next = len(rows)
        return taken

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """Do nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing, as PEP 249 allows."""

    def close(self) -> None:
        """Close the cursor."""
        self._closed = True
        self._result = None

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self) -> Sequence[tuple[Any, ...]]:
        self._check_open()
        if self._result is None or self._result.columns is None:
            raise InterfaceError("there is no result to fetch", hint="Call execute with a query first.")
        return self._result.rows

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed")
        self.connection._check_open()


def bind(operation: str, parameters: Sequence[object] | Mapping[str, object] | None) -> tuple[str, tuple[object, ...]]:
    """Turn pyformat placeholders into $1, $2 … and their values.

    Args:
        operation: SQL with %s or %(name)s; %% is a percent sign. Without parameters it is taken as it is.
        parameters: A sequence for %s, a mapping for %(name)s.

    Raises:
        ProgrammingError: Placeholders and parameters do not fit.
    """
    if parameters is None:
        return operation, ()
    values: list[object] = []
    places: dict[str, int] = {}
    named = isinstance(parameters, Mapping)

    def place(match: re.Match[str]) -> str:
        name, other = match.group(1), match.group(2)
        if match.group(0) == "%%":
            return "%"
        if other is not None or named != (name is not None):
            raise ProgrammingError(
                f"the placeholder {match.group(0)} does not fit the parameters",
                hint="Use %s with a sequence or %(name)s with a mapping; write %% for a percent sign.",
            )
        if isinstance(parameters, Mapping):
            if name not in parameters:
                raise ProgrammingError(f'there is no parameter "{name}"')
            if name not in places:
                values.append(parameters[name])
                places[name] = len(values)
            return f"${places[name]}"
        if len(values) >= len(parameters):
            raise ProgrammingError("there are more placeholders than parameters")
        values.append(parameters[len(values)])
        return f"${len(values)}"

    sql = _PLACEHOLDER.sub(place, operation)
    if not isinstance(parameters, Mapping) and len(values) != len(parameters):
        raise ProgrammingError("there are more parameters than placeholders")
    return sql, tuple(values)
