"""A client that can also misbehave: logs in by SCRAM, sends any bytes, reads messages one by one."""

import base64
import hashlib
import hmac
import socket
from types import TracebackType
from typing import Self

from dpsql.wire.messages.backend import (
    AuthenticationOk,
    AuthenticationSASL,
    AuthenticationSASLContinue,
    AuthenticationSASLFinal,
    BackendKeyData,
    BackendMessage,
    ErrorResponse,
    ReadyForQuery,
)
from dpsql.wire.messages.frontend import FrontendMessage, SASLInitialResponse, SASLResponse, StartupMessage
from dpsql.wire.scram import PLAIN
from tests.waiting import HANG_SECONDS
from tests.wire.replies import split_reply


class RawClient:
    def __init__(self, port: int, timeout: float = HANG_SECONDS) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.key: BackendKeyData | None = None
        self._data = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, *messages: FrontendMessage | bytes) -> None:
        parts = (message if isinstance(message, bytes) else message.encode() for message in messages)
        self.socket.sendall(b"".join(parts))

    def receive(self) -> BackendMessage | None:
        """Return the next message, or None at the end of the connection."""
        message, self._data = self._next()
        return message

    def peek(self) -> BackendMessage | None:
        """Return the next message, and leave it to be received."""
        return self._next()[0]

    def _next(self) -> tuple[BackendMessage | None, bytes]:
        while (found := split_reply(self._data)) is None:
            more = self._more()
            if not more:
                assert not self._data, "the connection ended within a message"
                return None, b""
            self._data += more
        return found

    def _more(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except ConnectionError:
            return b""

    def drain(self) -> bytes:
        """Return all bytes up to the end of the connection."""
        return b"".join(iter(self._more, b""))

    def until_ready(self) -> list[BackendMessage]:
        replies: list[BackendMessage] = []
        while (message := self.receive()) is not None:
            replies.append(message)
            if isinstance(message, ReadyForQuery):
                return replies
        raise AssertionError(f"the connection ended after {replies}")

    def until_end(self) -> list[BackendMessage]:
        replies: list[BackendMessage] = []
        while (message := self.receive()) is not None:
            replies.append(message)
        return replies

    def ask(self, *messages: FrontendMessage | bytes) -> list[BackendMessage]:
        self.send(*messages)
        return self.until_ready()

    def fatal(self) -> ErrorResponse:
        """Return the FATAL error that has to be the last message."""
        last = self.until_end()[-1]
        assert isinstance(last, ErrorResponse) and last.severity == "FATAL"
        return last

    def start(self, **parameters: str) -> None:
        pairs = {"user": "ana", "database": "clinic"} | parameters
        self.send(StartupMessage(3, 0, tuple(pairs.items())))

    def prove(self, password: str = "secret", *, flag: str = "n", mechanism: str = PLAIN, binding: bytes = b"") -> None:
        """Go through SCRAM up to the proof."""
        assert isinstance(self.receive(), AuthenticationSASL)
        bare = "n=,r=clientnonce"
        self.send(SASLInitialResponse(mechanism, f"{flag},,{bare}".encode()))
        challenge = self.receive()
        assert isinstance(challenge, AuthenticationSASLContinue)
        first = challenge.data.decode()
        nonce, salt, iterations = (part[2:] for part in first.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(iterations))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        channel = base64.b64encode(f"{flag},,".encode() + binding).decode()
        unproved = f"c={channel},r={nonce}"
        signature = hmac.digest(hashlib.sha256(client_key).digest(), f"{bare},{first},{unproved}".encode(), "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.send(SASLResponse(f"{unproved},p={base64.b64encode(proof).decode()}".encode()))

    def log_in(self, **parameters: str) -> list[BackendMessage]:
        """Log in, and return what the gateway tells about the session."""
        self.start(**parameters)
        self.prove()
        assert isinstance(self.receive(), AuthenticationSASLFinal)
        assert isinstance(self.receive(), AuthenticationOk)
        replies = self.until_ready()
        self.key = next(message for message in replies if isinstance(message, BackendKeyData))
        return replies
