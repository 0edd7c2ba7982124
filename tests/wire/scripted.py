"""A session without an engine: a few statements with fixed answers, and records of what was called."""

import re
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from dpsql.compiler.sql.statements import DeallocateStatement, EmptyStatement
from dpsql.errors import (
    FailedTransaction,
    InvalidParameter,
    InvalidSyntax,
    QueryCanceled,
    UndefinedTable,
    UnknownPortal,
    UnknownStatement,
)
from dpsql.gateway.query_run import Description, Notice, Result, ResultColumn
from dpsql.gateway.session import Session, Statement
from dpsql.sqltypes import SqlType
from tests.waiting import HANG_SECONDS

ROW: dict[SqlType, object] = {
    SqlType.BOOLEAN: True,
    SqlType.SMALLINT: -7,
    SqlType.INTEGER: 42,
    SqlType.BIGINT: 2**40,
    SqlType.NUMERIC: Decimal("-1234.5600"),
    SqlType.REAL: 1.5,
    SqlType.DOUBLE: 1e20,
    SqlType.TEXT: "naïve",
    SqlType.VARCHAR: "v",
    SqlType.DATE: date(2024, 2, 29),
    SqlType.TIME: time(1, 2, 3, 40),
    SqlType.TIMESTAMP: datetime(2024, 2, 29, 12, 30, 0, 500000),
    SqlType.TIMESTAMPTZ: datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    SqlType.INTERVAL: timedelta(days=2, seconds=3),
    SqlType.UUID: UUID(int=7),
    SqlType.JSON: '{"a": 1}',
    SqlType.BYTEA: b"\x00\xff",
    SqlType.ARRAY: ["a", None, "b c"],
}
_TYPES = tuple(ROW)


class ScriptedSession(Session):
    """Knows select n, rows n, growing, arrays, flood, types, echo $1, wait, broken, set, transactions and others.

    "charged" fails with a notice. `parsed`, `described` and `executed` list what was.
    """

    def __init__(self, user: str = "ana", database: str = "clinic") -> None:
        self.names = (user, database)
        self.quantum = 0
        self.parsed: list[str] = []
        self.executed: list[str] = []
        self.described: list[str] = []
        self.settings: dict[str, str] = {}
        self.started = threading.Event()
        self.cancelled = threading.Event()
        self.cancels = 0
        self.released = threading.Event()
        self.closed = threading.Event()
        self.wide = False
        self.set = 0
        self._types: dict[str, tuple[SqlType, ...]] = {}
        self._status = "I"

    @property
    def reply_quantum(self) -> int:
        return self.quantum

    @property
    def parameters(self) -> dict[str, str]:
        return self.settings

    @property
    def changes(self) -> int:
        return self.set

    def begin_implicit(self, *, several: bool = False) -> None:
        pass

    def end_implicit(self) -> tuple[tuple[str, str], ...]:
        return ()

    @property
    def output_settings(self) -> dict[str, str]:
        return {
            "DateStyle": "ISO, MDY",
            "TimeZone": "UTC",
            "IntervalStyle": "postgres",
            "bytea_output": "hex",
            "extra_float_digits": "1",
        }

    @property
    def transaction(self) -> str:
        return self._status

    def configure(self, name: str, value: str) -> None:
        if name == "impossible":
            raise InvalidParameter("impossible")
        self.settings[name] = value

    def parse(self, sql: str) -> tuple[Statement, ...]:
        self.parsed.append(sql)
        if "syntax" in sql:
            raise InvalidSyntax("syntax error", position=sql.index("syntax") + 1)
        parts = [part.strip() for part in sql.split(";")]
        return tuple(Statement(part, _parsed(part)) for part in parts if part)

    def recall(
        self, statement: Statement, parameters: Sequence[object] = (), types: Sequence[SqlType | None] = ()
    ) -> Result | None:
        return None

    def describe(self, statement: Statement, parameter_types: Sequence[SqlType | None] = ()) -> Description:
        self.described.append(statement.sql)
        count = len(set(re.findall(r"\$\d+", statement.sql)))
        guess = SqlType.INTEGER if statement.sql.startswith("select") else SqlType.TEXT
        given = [kind or guess for kind in parameter_types]
        parameters = tuple(given[:count]) + (guess,) * (count - len(given))
        self._types[statement.sql] = parameters
        return Description(parameters, self._shape(statement.sql, parameters))

    def _shape(self, sql: str, parameters: Sequence[SqlType]) -> tuple[ResultColumn, ...] | None:
        word = sql.split()[0].upper()
        if word == "MISSING":
            raise UndefinedTable('relation "missing" does not exist', position=9, hint="Try another.")
        if word == "CHARGED":
            failure = FailedTransaction("it failed")
            failure.notices = ("charged 0.2",)
            raise failure
        if word == "TYPES":
            return tuple(ResultColumn(kind.name.lower(), kind) for kind in _TYPES)
        if word == "ECHO":
            return tuple(ResultColumn(f"p{index}", kind) for index, kind in enumerate(parameters, 1))
        if word == "SELECT":
            extra = (ResultColumn("low", SqlType.BIGINT),) if self.wide else ()
            return (ResultColumn("n", SqlType.BIGINT), *extra)
        if word in ("FLOOD", "GROWING"):
            return (ResultColumn("t", SqlType.TEXT),)
        if word == "ARRAYS":
            return (ResultColumn("a", SqlType.TEXT_ARRAY),)
        if word in ("ROWS", "WAIT", "STUBBORN", "BROKEN", "BADVALUE"):
            return (ResultColumn("n", SqlType.BIGINT),)
        return None

    def execute(
        self, statement: Statement, parameters: Sequence[object] = (), types: Sequence[SqlType | None] = ()
    ) -> Result:
        sql = statement.sql
        word, *rest = sql.split()
        self.executed.append(sql)
        if self._status == "E" and word.upper() not in ("ROLLBACK", "COMMIT"):
            raise FailedTransaction("current transaction is aborted, commands ignored until end of transaction block")
        columns = self._shape(sql, self._types.get(sql, ()))
        match word.upper():
            case "TYPES":
                return Result("SELECT 1", columns, (tuple(ROW.values()),), (), ())
            case "ECHO":
                return Result("SELECT 1", columns, (tuple(parameters),), (), ())
            case "SELECT":
                notice = Notice("charged 0.1", detail="of 5", hint="EXPLAIN is free")
                number = parameters[0] if parameters else int(rest[0])
                row = (number, 0) if self.wide else (number,)
                return Result("SELECT 1", columns, (row,), (notice,), ())
            case "ROWS":
                rows = tuple((number,) for number in range(int(rest[0])))
                return Result(f"SELECT {len(rows)}", columns, rows, (), ())
            case "GROWING":
                growing = (None,) * 3_000, ("x",) * 3_000, ("x" * 1_000,) * 3_000
                return Result("SELECT 9000", columns, tuple((text,) for texts in growing for text in texts), (), ())
            case "ARRAYS":
                return Result("SELECT 100", columns, ((["", "", None] * 5_000,),) * 100, (), ())
            case "FLOOD":
                return Result("SELECT 300", columns, (("x" * 100_000,),) * 300, (), ())
            case "WAIT":
                self.started.set()
                if self.cancelled.wait(HANG_SECONDS):
                    self.cancelled.clear()
                    raise QueryCanceled("canceling statement due to user request")
                return Result("SELECT 0", columns, (), (), ())
            case "STUBBORN":
                self.started.set()
                assert self.released.wait(HANG_SECONDS)
            case "BROKEN":
                raise RuntimeError("row data: secret")
            case "BADVALUE":
                return Result("SELECT 1", columns, (("secret",),), (), ())
            case "BEGIN":
                self._status = "T"
            case "COMMIT" | "ROLLBACK":
                self._status = "I"
            case "SET":
                self.set += 1
                if rest[0] == "wide":
                    self.wide = rest[-1] == "on"
                return Result("SET", None, (), (), ((rest[0], rest[-1]),))
            case "DISCARD":
                return Result("DISCARD ALL", None, (), (), ())
            case "DEALLOCATE":
                if rest[0] != "all":
                    raise UnknownStatement(f"prepared statement {rest[0]} does not exist")
                return Result("DEALLOCATE ALL", None, (), (), ())
        return Result(word.upper(), columns, (), (), ())

    def fail(self) -> None:
        if self._status == "T":
            self._status = "E"

    def describe_cursor(self, name: str) -> tuple[ResultColumn, ...]:
        raise UnknownPortal(f'portal "{name}" does not exist')

    def cancel(self) -> None:
        self.cancels += 1
        self.cancelled.set()

    def close(self) -> None:
        self.closed.set()


def _parsed(sql: str) -> DeallocateStatement | EmptyStatement:
    """Return what the wire looks at; all else may pass for an empty statement."""
    word, _, name = sql.partition(" ")
    if word != "deallocate":
        return EmptyStatement()
    return DeallocateStatement(None if name == "all" else name, sql)
