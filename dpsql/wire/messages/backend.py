"""The messages that the gateway sends, frozen dataclasses with encode and decode, named as in the PostgreSQL manual."""

from dataclasses import dataclass, fields
from typing import ClassVar, Final, Self

from dpsql.errors import ProtocolViolation
from dpsql.wire.messages.fields import (
    REST,
    SIZED,
    TEXT,
    UINT32,
    Message,
    Reader,
    counted,
    cstring,
    int32,
    uint16,
    uint32,
)

FATAL: Final = "FATAL"


class BackendMessage(Message):
    """A message that servers send."""


def _expect(reader: Reader, kind: int) -> None:
    if reader.uint32() != kind:
        raise ProtocolViolation("unexpected authentication message type")


@dataclass(frozen=True, slots=True)
class AuthenticationOk(BackendMessage):
    """The client is who it says."""

    code: ClassVar[bytes] = b"R"

    def _body(self) -> bytes:
        return uint32(0)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        _expect(reader, 0)
        return cls()


@dataclass(frozen=True, slots=True)
class AuthenticationSASL(BackendMessage):
    """Offers SASL mechanisms."""

    code: ClassVar[bytes] = b"R"
    mechanisms: tuple[str, ...]

    def _body(self) -> bytes:
        return uint32(10) + b"".join(map(cstring, self.mechanisms)) + b"\0"

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        _expect(reader, 10)
        mechanisms = []
        while mechanism := reader.text():
            mechanisms.append(mechanism)
        return cls(tuple(mechanisms))


@dataclass(frozen=True, slots=True)
class AuthenticationSASLContinue(BackendMessage):
    """Carries the server's first SASL message."""

    code: ClassVar[bytes] = b"R"
    data: bytes

    def _body(self) -> bytes:
        return uint32(11) + self.data

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        _expect(reader, 11)
        return cls(reader.rest())


@dataclass(frozen=True, slots=True)
class AuthenticationSASLFinal(BackendMessage):
    """Carries the server's last SASL message: the client's proof was right."""

    code: ClassVar[bytes] = b"R"
    data: bytes

    def _body(self) -> bytes:
        return uint32(12) + self.data

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        _expect(reader, 12)
        return cls(reader.rest())


@dataclass(frozen=True, slots=True)
class NegotiateProtocolVersion(BackendMessage):
    """Names the version that is served (3.minor, as one number) and the protocol options that are not."""

    code: ClassVar[bytes] = b"v"
    formats: ClassVar = (UINT32, counted(TEXT, UINT32))
    version: int
    unrecognized: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackendKeyData(BackendMessage):
    """What a CancelRequest for this connection has to show."""

    code: ClassVar[bytes] = b"K"
    formats: ClassVar = (UINT32, REST)
    process_id: int
    secret_key: bytes


@dataclass(frozen=True, slots=True)
class ParameterStatus(BackendMessage):
    """Tells the value of a setting that drivers go by."""

    code: ClassVar[bytes] = b"S"
    formats: ClassVar = (TEXT, TEXT)
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ReadyForQuery(BackendMessage):
    """Ends a reply; the status is I (idle), T (in a transaction) or E (in a failed one)."""

    code: ClassVar[bytes] = b"Z"
    status: str

    def _body(self) -> bytes:
        return self.status.encode("ascii")

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.take(1).decode("latin-1"))


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """One column of a RowDescription; a column of no table has table 0 and number 0."""

    name: str
    type_oid: int
    size: int
    format: int = 0
    modifier: int = -1
    table_oid: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class RowDescription(BackendMessage):
    """Describes the columns of the rows that follow."""

    code: ClassVar[bytes] = b"T"
    fields: tuple[FieldDescription, ...]

    def _body(self) -> bytes:
        return uint16(len(self.fields)) + b"".join(
            b"".join(
                (
                    cstring(field.name) + uint32(field.table_oid) + uint16(field.number) + uint32(field.type_oid),
                    uint16(field.size & 0xFFFF) + int32(field.modifier) + uint16(field.format),
                )
            )
            for field in self.fields
        )

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(tuple(_read_field(reader) for _ in range(reader.uint16())))


def _read_field(reader: Reader) -> FieldDescription:
    name, table_oid, number, type_oid = reader.text(), reader.uint32(), reader.uint16(), reader.uint32()
    size = reader.uint16()
    signed = size - 0x10000 if size & 0x8000 else size
    return FieldDescription(
        name, type_oid, signed, modifier=reader.int32(), format=reader.uint16(), table_oid=table_oid, number=number
    )


@dataclass(frozen=True, slots=True)
class DataRow(BackendMessage):
    """One row; None is NULL."""

    code: ClassVar[bytes] = b"D"
    formats: ClassVar = (counted(SIZED),)
    values: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class CommandComplete(BackendMessage):
    """A statement is done; the tag names it and, for SELECT, the number of rows."""

    code: ClassVar[bytes] = b"C"
    formats: ClassVar = (TEXT,)
    tag: str


@dataclass(frozen=True, slots=True)
class ParameterDescription(BackendMessage):
    """The types of a prepared statement's parameters."""

    code: ClassVar[bytes] = b"t"
    formats: ClassVar = (counted(UINT32),)
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmptyQueryResponse(BackendMessage):
    """The query had no statement in it."""

    code: ClassVar[bytes] = b"I"


@dataclass(frozen=True, slots=True)
class ParseComplete(BackendMessage):
    """A statement is prepared."""

    code: ClassVar[bytes] = b"1"


@dataclass(frozen=True, slots=True)
class BindComplete(BackendMessage):
    """A portal is made."""

    code: ClassVar[bytes] = b"2"


@dataclass(frozen=True, slots=True)
class CloseComplete(BackendMessage):
    """A statement or portal is forgotten, or was not there."""

    code: ClassVar[bytes] = b"3"


@dataclass(frozen=True, slots=True)
class NoData(BackendMessage):
    """What is described returns no rows."""

    code: ClassVar[bytes] = b"n"


@dataclass(frozen=True, slots=True)
class PortalSuspended(BackendMessage):
    """Execute's row limit was reached."""

    code: ClassVar[bytes] = b"s"


@dataclass(frozen=True, slots=True)
class CopyOutResponse(BackendMessage):
    """Rows follow as CopyRow: `format` and the format of each of `columns` is 0 for text, 1 for binary."""

    code: ClassVar[bytes] = b"H"
    format: int
    columns: int

    def _body(self) -> bytes:
        return bytes([self.format]) + uint16(self.columns) + self.columns * uint16(self.format)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        (kind,) = reader.take(1)
        formats = [reader.uint16() for _ in range(reader.uint16())]
        if any(each != kind for each in formats):
            raise ProtocolViolation("a copy of mixed formats")
        return cls(kind, len(formats))


@dataclass(frozen=True, slots=True)
class CopyRow(BackendMessage):
    """CopyData from the server: one row."""

    code: ClassVar[bytes] = b"d"
    formats: ClassVar = (REST,)
    data: bytes


@dataclass(frozen=True, slots=True)
class CopyEnd(BackendMessage):
    """CopyDone from the server: no row follows."""

    code: ClassVar[bytes] = b"c"


@dataclass(frozen=True, slots=True)
class _Report(BackendMessage):
    """The fields that errors and notices share."""

    severity: str
    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None
    position: int | None = None

    def _body(self) -> bytes:
        # V repeats S untranslated; drivers read whichever they know.
        pairs = [("S", self.severity), ("V", self.severity)]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value is not None:
                pairs.append((_REPORT_CODES[field.name], str(value)))
        return b"".join(code.encode() + cstring(value) for code, value in pairs) + b"\0"

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        found: dict[str, str] = {}
        while (code := reader.take(1)) != b"\0":
            found[code.decode("latin-1")] = reader.text()
        try:
            position = int(found["P"]) if "P" in found else None
            return cls(found["S"], found["C"], found["M"], found.get("D"), found.get("H"), position)
        except (KeyError, ValueError):
            raise ProtocolViolation("a report without severity, SQLSTATE or message") from None


_REPORT_CODES: Final = {"sqlstate": "C", "message": "M", "detail": "D", "hint": "H", "position": "P"}


class ErrorResponse(_Report):
    """An error; with severity FATAL the connection ends."""

    code = b"E"


class NoticeResponse(_Report):
    """Additional information about the result."""

    code = b"N"
