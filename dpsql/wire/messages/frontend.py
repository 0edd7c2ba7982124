"""The messages that clients send, each a frozen dataclass with encode and decode, named as in the PostgreSQL manual.

Rule 1: `decode` takes a whole body and returns a message or raises ProtocolViolation; it never looks beyond the body.
Rule 2: SQL and the names of statements and portals stay bytes; whether they are UTF-8 is for the session to say.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from dpsql.errors import ProtocolViolation
from dpsql.wire.messages.fields import (
    INT32,
    RAW_TEXT,
    REST,
    SIZED,
    TEXT,
    UINT16,
    UINT32,
    FieldFormat,
    Message,
    Reader,
    counted,
    cstring,
    uint16,
    uint32,
)

SSL_REQUEST_CODE: Final = 80877103
GSSENC_REQUEST_CODE: Final = 80877104
CANCEL_REQUEST_CODE: Final = 80877102


class FrontendMessage(Message):
    """A message that clients send."""


@dataclass(frozen=True, slots=True)
class SSLRequest(FrontendMessage):
    """Asks for TLS, before anything else."""

    def _body(self) -> bytes:
        return uint32(SSL_REQUEST_CODE)


@dataclass(frozen=True, slots=True)
class GSSENCRequest(FrontendMessage):
    """Asks for GSSAPI encryption, before anything else."""

    def _body(self) -> bytes:
        return uint32(GSSENC_REQUEST_CODE)


@dataclass(frozen=True, slots=True)
class CancelRequest(FrontendMessage):
    """Asks to cancel the statement of another connection."""

    process_id: int
    secret_key: bytes

    def _body(self) -> bytes:
        return uint32(CANCEL_REQUEST_CODE) + uint32(self.process_id) + self.secret_key


@dataclass(frozen=True, slots=True)
class StartupMessage(FrontendMessage):
    """Names the protocol version, the user, the database and settings."""

    major: int
    minor: int
    parameters: tuple[tuple[str, str], ...]

    def _body(self) -> bytes:
        pairs = b"".join(cstring(name) + cstring(value) for name, value in self.parameters)
        return uint16(self.major) + uint16(self.minor) + pairs + b"\0"

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        major, minor = reader.uint16(), reader.uint16()
        if major != 3:
            # Nothing is known of the rest of a packet of another protocol: its version is all that matters.
            reader.rest()
            return cls(major, minor, ())
        parameters = []
        while name := reader.text():
            parameters.append((name, reader.text()))
        return cls(major, minor, tuple(parameters))


def decode_startup(body: bytes) -> FrontendMessage:
    """Return the message of a packet that has no code byte: a connection's first ones."""
    code = Reader(body).uint32()
    fields = Reader(body[4:])
    if code == SSL_REQUEST_CODE:
        fields.finish()
        return SSLRequest()
    if code == GSSENC_REQUEST_CODE:
        fields.finish()
        return GSSENCRequest()
    if code == CANCEL_REQUEST_CODE:
        return CancelRequest(fields.uint32(), fields.rest())
    return StartupMessage.decode(body)


@dataclass(frozen=True, slots=True)
class SASLInitialResponse(FrontendMessage):
    """Chooses a SASL mechanism and may carry its first message."""

    code: ClassVar[bytes] = b"p"
    formats: ClassVar = (TEXT, SIZED)
    mechanism: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class SASLResponse(FrontendMessage):
    """Carries a further message of the SASL mechanism."""

    code: ClassVar[bytes] = b"p"
    formats: ClassVar = (REST,)
    data: bytes


@dataclass(frozen=True, slots=True)
class Query(FrontendMessage):
    """Runs one or more statements (the simple protocol)."""

    code: ClassVar[bytes] = b"Q"
    formats: ClassVar = (RAW_TEXT,)
    sql: bytes


@dataclass(frozen=True, slots=True)
class Parse(FrontendMessage):
    """Prepares a statement."""

    code: ClassVar[bytes] = b"P"
    formats: ClassVar = (RAW_TEXT, RAW_TEXT, counted(UINT32))
    statement: bytes
    sql: bytes
    parameter_oids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bind(FrontendMessage):
    """Makes a portal from a prepared statement and the values of its parameters."""

    code: ClassVar[bytes] = b"B"
    formats: ClassVar = (RAW_TEXT, RAW_TEXT, counted(UINT16), counted(SIZED), counted(UINT16))
    portal: bytes
    statement: bytes
    parameter_formats: tuple[int, ...] = ()
    parameters: tuple[bytes | None, ...] = ()
    result_formats: tuple[int, ...] = ()


def _read_kind(reader: Reader) -> bytes:
    kind = reader.take(1)
    if kind not in (b"S", b"P"):
        raise ProtocolViolation("neither a prepared statement nor a portal is named")
    return kind


_KIND: Final = FieldFormat(bytes, _read_kind)


@dataclass(frozen=True, slots=True)
class Describe(FrontendMessage):
    """Asks for the shape of a prepared statement (kind S) or a portal (kind P)."""

    code: ClassVar[bytes] = b"D"
    formats: ClassVar = (_KIND, RAW_TEXT)
    kind: bytes
    name: bytes


@dataclass(frozen=True, slots=True)
class Close(FrontendMessage):
    """Forgets a prepared statement (kind S) or a portal (kind P)."""

    code: ClassVar[bytes] = b"C"
    formats: ClassVar = (_KIND, RAW_TEXT)
    kind: bytes
    name: bytes


@dataclass(frozen=True, slots=True)
class Execute(FrontendMessage):
    """Runs a portal; at most `max_rows` rows, or all if it is 0 or less."""

    code: ClassVar[bytes] = b"E"
    formats: ClassVar = (RAW_TEXT, INT32)
    portal: bytes
    max_rows: int = 0


@dataclass(frozen=True, slots=True)
class Sync(FrontendMessage):
    """Ends an exchange of the extended protocol."""

    code: ClassVar[bytes] = b"S"


@dataclass(frozen=True, slots=True)
class Flush(FrontendMessage):
    """Asks for the replies so far."""

    code: ClassVar[bytes] = b"H"


@dataclass(frozen=True, slots=True)
class Terminate(FrontendMessage):
    """Ends the connection."""

    code: ClassVar[bytes] = b"X"


@dataclass(frozen=True, slots=True)
class Opaque(FrontendMessage):
    """A message whose body is of no interest to a read-only server."""

    formats: ClassVar = (REST,)
    data: bytes = b""


class FunctionCall(Opaque):
    """Calls a function by its OID; an error answers it, for functions are called in SELECT."""

    code = b"F"


class CopyData(Opaque):
    """Rows for COPY FROM, which the gateway does not have."""

    code = b"d"


class CopyDone(Opaque):
    """The end of COPY FROM."""

    code = b"c"


class CopyFail(Opaque):
    """The failure of COPY FROM."""

    code = b"f"


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """The most bytes of a message, its length word included.

    Attributes:
        startup: The first packets of a connection.
        login: SASL messages.
        query: Messages that carry SQL, parameters or copied rows.
        other: All others: names of statements and portals.
    """

    startup: int = 10_000
    login: int = 8_192
    query: int = 4 << 20
    other: int = 10_000

    def of(self, message: type[FrontendMessage]) -> int:
        """Return the limit of one type of message."""
        if message in (SASLInitialResponse, SASLResponse):
            return self.login
        return self.query if message in (Query, Parse, Bind, FunctionCall, CopyData, CopyFail) else self.other
