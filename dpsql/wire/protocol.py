"""The server's side of protocol 3.0 as a state machine: bytes in, messages out, no I/O.

Rule 1: this file alone decides whether a message is allowed in the current state, by its two tables where possible.
Rule 2: authentication is a state. The only way to READY is startup, SASL offered, challenged, answered, proved and
    AuthenticationOk, in this order; no row of RECEIVED before READY has a message that runs anything.
Rule 3: a client's message that is not allowed raises ProtocolViolation, after which only a FATAL ErrorResponse can be
    sent. A reply that is not allowed is a bug in dpsql and raises IllegalReply.
Rule 4: the type byte and the length are checked before the body is read, so a client cannot make the gateway buffer
    more than the limit of the next allowed message.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Final

from dpsql.errors import ProtocolViolation
from dpsql.wire.messages import backend, frontend
from dpsql.wire.messages.rows import ColumnBytes, data_rows


class IllegalReply(Exception):
    """The gateway tried to send a message that is not allowed in this state."""


class State(enum.Enum):
    """Where the connection is; the comment names who moves next."""

    STARTUP = enum.auto()  # client: asks for encryption or starts
    ENCRYPTION = enum.auto()  # server: accepts or refuses encryption
    STARTED = enum.auto()  # server: offers SASL
    SASL_OFFERED = enum.auto()  # client: first message
    SASL_FIRST = enum.auto()  # server: challenge
    SASL_CHALLENGED = enum.auto()  # client: proof
    SASL_PROOF = enum.auto()  # server: judges the proof
    SASL_PROVED = enum.auto()  # server: lets the client in
    OPENING = enum.auto()  # server: settings, key, ready
    READY = enum.auto()  # client: anything
    SIMPLE = enum.auto()  # server: replies to Query or FunctionCall
    EXTENDED = enum.auto()  # server replies while the client may already send on
    SKIPPING = enum.auto()  # client: Sync; all else is thrown away after an error
    SYNCING = enum.auto()  # server: one ReadyForQuery
    REFUSED = enum.auto()  # server: the FATAL error that ends it
    CLOSED = enum.auto()  # nobody


class Encryption(enum.Enum):
    """The one-byte answers to SSLRequest and GSSENCRequest."""

    ACCEPTED = b"S"
    REFUSED = b"N"


_EXTENDED: Final[dict[type[frontend.FrontendMessage], State]] = {
    frontend.Parse: State.EXTENDED,
    frontend.Bind: State.EXTENDED,
    frontend.Describe: State.EXTENDED,
    frontend.Execute: State.EXTENDED,
    frontend.Close: State.EXTENDED,
    frontend.Flush: State.EXTENDED,
    frontend.Sync: State.SYNCING,
    frontend.Query: State.SIMPLE,
    frontend.FunctionCall: State.SIMPLE,
    frontend.Terminate: State.CLOSED,
}

RECEIVED: Final[dict[State, dict[type[frontend.FrontendMessage], State]]] = {
    State.STARTUP: {
        frontend.SSLRequest: State.ENCRYPTION,
        frontend.GSSENCRequest: State.ENCRYPTION,
        frontend.StartupMessage: State.STARTED,
        frontend.CancelRequest: State.CLOSED,
    },
    State.SASL_OFFERED: {frontend.SASLInitialResponse: State.SASL_FIRST},
    State.SASL_CHALLENGED: {frontend.SASLResponse: State.SASL_PROOF},
    # A failed COPY FROM leaves the client's CopyData under way; PostgreSQL throws them away, and so do we.
    State.READY: {
        **_EXTENDED,
        frontend.CopyData: State.READY,
        frontend.CopyDone: State.READY,
        frontend.CopyFail: State.READY,
    },
    State.EXTENDED: {
        **_EXTENDED,
        frontend.CopyData: State.EXTENDED,
        frontend.CopyDone: State.EXTENDED,
        frontend.CopyFail: State.EXTENDED,
    },
    State.SKIPPING: {
        **dict.fromkeys((*_EXTENDED, frontend.CopyData, frontend.CopyDone, frontend.CopyFail), State.SKIPPING),
        frontend.Sync: State.SYNCING,
        frontend.Terminate: State.CLOSED,
    },
}

_ANY_TIME: Final = (backend.NoticeResponse, backend.ParameterStatus)
_COPY: Final = (backend.CopyOutResponse, backend.CopyRow, backend.CopyEnd)
_RESULTS: Final = (backend.RowDescription, backend.DataRow, backend.CommandComplete, backend.EmptyQueryResponse, *_COPY)
_REPLIES: Final = (
    backend.ParseComplete,
    backend.BindComplete,
    backend.CloseComplete,
    backend.NoData,
    backend.ParameterDescription,
    backend.PortalSuspended,
)

SENT: Final[dict[State, dict[type[backend.BackendMessage], State]]] = {
    State.STARTED: {
        backend.NegotiateProtocolVersion: State.STARTED,
        backend.AuthenticationSASL: State.SASL_OFFERED,
    },
    State.SASL_FIRST: {backend.AuthenticationSASLContinue: State.SASL_CHALLENGED},
    State.SASL_PROOF: {backend.AuthenticationSASLFinal: State.SASL_PROVED},
    State.SASL_PROVED: {backend.AuthenticationOk: State.OPENING},
    State.OPENING: {
        **dict.fromkeys((*_ANY_TIME, backend.BackendKeyData), State.OPENING),
        backend.ReadyForQuery: State.READY,
    },
    State.READY: dict.fromkeys(_ANY_TIME, State.READY),
    State.SIMPLE: {
        **dict.fromkeys((*_ANY_TIME, *_RESULTS, backend.ErrorResponse), State.SIMPLE),
        backend.ReadyForQuery: State.READY,
    },
    State.EXTENDED: {
        **dict.fromkeys((*_ANY_TIME, *_RESULTS, *_REPLIES), State.EXTENDED),
        backend.ErrorResponse: State.SKIPPING,
    },
    State.SYNCING: {
        **dict.fromkeys(_ANY_TIME, State.SYNCING),
        backend.ReadyForQuery: State.READY,
    },
}

_IGNORED: Final = (frontend.CopyData, frontend.CopyDone, frontend.CopyFail)
_READ_AHEAD: Final = 64 << 10
_ADMITTED: Final = frozenset({State.READY, State.SIMPLE, State.EXTENDED, State.SKIPPING, State.SYNCING})
_ENDED: Final = frozenset({State.REFUSED, State.CLOSED})


class ServerProtocol:
    """One connection as the server sees it.

    Feed it with `receive_data`, take messages with `next_event`, turn replies into bytes with `send`.
    """

    def __init__(self, limits: frontend.MessageLimits | None = None) -> None:
        self.state = State.STARTUP
        self._limits = limits or frontend.MessageLimits()
        self.unread = 0
        """Bytes still to come of a message that was refused for its length; they are thrown away."""
        self._buffer = bytearray()
        self._requested: set[type[frontend.FrontendMessage]] = set()

    @property
    def room(self) -> int:
        """The bytes that `receive_data` would still take: the longest message that may come and, once in, some more."""
        if self.state in _ENDED:
            return _READ_AHEAD
        if self.state in _ADMITTED:
            return self._limits.query + _READ_AHEAD - len(self._buffer)
        return max(self._limits.startup, self._limits.login) + 1 - len(self._buffer)

    def receive_data(self, data: bytes) -> None:
        """Take bytes that came from the client; after the end they are thrown away.

        Raises:
            ProtocolViolation: If they are more than there is `room` for.
        """
        if self.state in _ENDED:
            self.unread = max(self.unread - len(data), 0)
            return
        if len(data) > self.room:
            self.state = State.REFUSED
            raise ProtocolViolation("too many pipelined messages")
        self._buffer += data

    def next_event(self) -> frontend.FrontendMessage | None:
        """Return the client's next message, or None while more bytes, or our own reply, are awaited.

        What is to be thrown away (after an error, up to Sync; stray CopyData) is thrown away here.

        Raises:
            ProtocolViolation: If the client's bytes are not a message that may stand here.
        """
        try:
            while (expected := RECEIVED.get(self.state)) and (message := self._take(expected)):
                self.state = expected[type(message)]
                if self.state is not State.SKIPPING and not isinstance(message, _IGNORED):
                    return message
        except ProtocolViolation:
            self.state = State.REFUSED
            self._buffer.clear()
            raise
        return None

    def send(self, message: backend.BackendMessage) -> bytes:
        """Return a reply's bytes and go where it leads.

        Raises:
            IllegalReply: If the reply may not stand here.
        """
        if (
            isinstance(message, backend.ErrorResponse)
            and message.severity == backend.FATAL
            and self.state is not State.CLOSED
        ):
            self.state = State.CLOSED
            return message.encode()
        try:
            self.state = SENT[self.state][type(message)]
        except KeyError:
            raise IllegalReply(f"{type(message).__name__} in state {self.state.name}") from None
        return message.encode()

    def send_rows(self, columns: Sequence[ColumnBytes], count: int) -> bytes:
        """Return the bytes of many DataRow messages, each allowed in this state.

        Args:
            columns: The values of the rows, column by column.
            count: How many rows there are.

        Raises:
            IllegalReply: If rows may not stand here.
        """
        leads_to = SENT.get(self.state, {}).get(backend.DataRow)
        if leads_to is not self.state:  # what holds for one holds for all
            raise IllegalReply(f"rows in state {self.state.name}")
        return data_rows(columns, count)

    def answer_encryption(self, answer: Encryption) -> bytes:
        """Return the byte that answers SSLRequest or GSSENCRequest.

        Raises:
            ProtocolViolation: If encryption is accepted and the client has sent on in the clear: what comes before
                the handshake could be anybody's, and must not pass for what comes after it.
        """
        if self.state is not State.ENCRYPTION:
            raise IllegalReply(f"{answer.name} in state {self.state.name}")
        if answer is Encryption.ACCEPTED and self._buffer:
            self.state = State.REFUSED
            raise ProtocolViolation("received unencrypted data after SSL request")
        self.state = State.STARTUP
        return answer.value

    def _take(self, expected: Mapping[type[frontend.FrontendMessage], State]) -> frontend.FrontendMessage | None:
        if self.state is State.STARTUP:
            body = self._take_body(0, self._limits.startup)
            return None if body is None else self._first(frontend.decode_startup(body))
        if not self._buffer:
            return None
        kind = _coded(self._buffer[0], expected)
        body = self._take_body(1, self._limits.of(kind))
        return None if body is None else kind.decode(body)

    def _take_body(self, start: int, limit: int) -> bytes | None:
        """Return the body behind the length word at `start`, or None if it is not whole yet."""
        if len(self._buffer) < start + 4:
            return None
        length = int.from_bytes(self._buffer[start : start + 4], "big")
        end = start + length
        if not 4 <= length <= limit:
            if self.state in _ADMITTED:
                self.unread = max(end - len(self._buffer), 0)
            raise ProtocolViolation("invalid message length", detail=f"The limit here is {limit} bytes.")
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[start + 4 : end])
        del self._buffer[:end]
        return body

    def _first(self, message: frontend.FrontendMessage) -> frontend.FrontendMessage:
        """Return a startup packet; each kind of encryption may be asked for once."""
        if isinstance(message, frontend.SSLRequest | frontend.GSSENCRequest):
            if type(message) in self._requested:
                raise ProtocolViolation("encryption was requested twice")
            self._requested.add(type(message))
        return message


def _coded(code: int, expected: Mapping[type[frontend.FrontendMessage], State]) -> type[frontend.FrontendMessage]:
    """Return the type that a code byte has where `expected` may come; a byte that may not stand there is refused."""
    for kind in expected:
        if kind.code[0] == code:
            return kind
    raise ProtocolViolation(f"invalid frontend message type {code}")
