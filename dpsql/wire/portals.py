"""Prepared statements and portals of the extended protocol, in registers of bounded size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dpsql.errors import Error, LimitExceeded, ProtocolViolation, UnknownPortal, UnknownStatement
from dpsql.gateway.query_run import Description, Result, ResultColumn
from dpsql.gateway.session import Statement
from dpsql.wire.messages.backend import FieldDescription
from dpsql.wire.oidtypes import of_column
from dpsql.wire.pgtypes import PgType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A statement, its parameters and the shape of its result.

    Attributes:
        statement: None if the text had no statement in it.
        parameters: The parameters' types on the wire: as the client declared them, else as inferred.
        description: What Describe says, as of when the statement was prepared.
        age: How often the session's settings, and the policies, had changed by then.
    """

    statement: Statement | None
    parameters: tuple[PgType, ...]
    description: Description
    age: tuple[int, int]


@dataclass(slots=True)
class Portal:
    """A statement with its parameters; whether it runs; once executed, its result and how much of it was sent."""

    prepared: PreparedStatement
    parameters: tuple[object, ...]
    formats: tuple[int, ...]
    result: Result | None = None
    sent: int = 0
    running: bool = False

    def take(self, result: Result, max_rows: int) -> Sequence[tuple[object, ...]]:
        """Return the next rows, at most `max_rows` of them, or all if that is 0 or less."""
        end = self.sent + max_rows if max_rows > 0 else len(result.rows)
        batch = result.rows[self.sent : end]
        self.sent += len(batch)
        return batch


class Register(Generic[T]):
    """Prepared statements or portals by name; the name that is empty may be taken again.

    Args:
        kind: What is registered, in the words of error messages.
        unknown: The error that a name which is not registered raises.
        limit: How many may be registered at a time.
    """

    def __init__(self, kind: str, unknown: type[Error], limit: int) -> None:
        self._kind = kind
        self._unknown = unknown
        self._limit = limit
        self._entries: dict[bytes, T] = {}

    def __getitem__(self, name: bytes) -> T:
        if name not in self._entries:
            raise self._unknown(f"{self._called(name)} does not exist")
        return self._entries[name]

    def __contains__(self, name: bytes) -> bool:
        return name in self._entries

    def check_free(self, name: bytes) -> None:
        """Refuse a name that is taken, or one more than there may be."""
        if not name:
            return
        if name in self._entries:
            raise ProtocolViolation(f"{self._called(name)} already exists")
        if len(self._entries) >= self._limit:
            raise LimitExceeded(f"more than {self._limit} {self._kind}s", hint="Close those no longer needed.")

    def add(self, name: bytes, entry: T) -> None:
        """Register an entry under a name that is free."""
        self.check_free(name)
        self._entries[name] = entry

    def discard(self, name: bytes) -> None:
        """Forget a name, if it is there."""
        self._entries.pop(name, None)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()

    def _called(self, name: bytes) -> str:
        return f'{self._kind} "{name.decode("utf-8", "replace")}"' if name else f"unnamed {self._kind}"


def statement_register(limit: int) -> Register[PreparedStatement]:
    """Return an empty register of prepared statements."""
    return Register("prepared statement", UnknownStatement, limit)


def portal_register(limit: int) -> Register[Portal]:
    """Return an empty register of portals."""
    return Register("portal", UnknownPortal, limit)


def row_fields(columns: Sequence[ResultColumn], formats: Sequence[int]) -> tuple[FieldDescription, ...]:
    """Return the fields of a RowDescription."""
    return tuple(
        FieldDescription(column.name, of_column(column).oid, of_column(column).size, code)
        for column, code in zip(columns, formats, strict=True)
    )
