"""Reads what the gateway sends: the client's half of the protocol, for tests."""

from types import ModuleType
from typing import Final, TypeVar

from dpsql.wire.messages import backend, frontend
from dpsql.wire.messages.backend import BackendMessage
from dpsql.wire.messages.fields import Message
from dpsql.wire.messages.frontend import FrontendMessage, Opaque

M = TypeVar("M", bound=Message)

_AUTHENTICATION: dict[int, type[BackendMessage]] = {
    0: backend.AuthenticationOk,
    10: backend.AuthenticationSASL,
    11: backend.AuthenticationSASLContinue,
    12: backend.AuthenticationSASLFinal,
}


def message_types(module: ModuleType, base: type[M]) -> list[type[M]]:
    """Return the messages that a module defines."""
    found = (value for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_"))
    return [kind for kind in found if issubclass(kind, base) and kind is not base and kind is not Opaque]


BACKEND: Final = message_types(backend, BackendMessage)
FRONTEND: Final = message_types(frontend, FrontendMessage)
_BY_CODE: Final = {kind.code: kind for kind in BACKEND if kind.code != b"R"}


def split_reply(data: bytes) -> tuple[BackendMessage, bytes] | None:
    """Return the first message and the bytes behind it, or None if it is not whole."""
    if len(data) < 5:
        return None
    end = 1 + int.from_bytes(data[1:5], "big")
    if len(data) < end:
        return None
    body = data[5:end]
    kind = _AUTHENTICATION[int.from_bytes(body[:4], "big")] if data[:1] == b"R" else _BY_CODE[data[:1]]
    return kind.decode(body), data[end:]


def read_replies(data: bytes) -> list[BackendMessage]:
    """Return all messages of bytes that end with a whole one."""
    replies = []
    while data:
        found = split_reply(data)
        assert found is not None, f"half a message: {data!r}"
        message, data = found
        replies.append(message)
    return replies


def names(replies: list[BackendMessage]) -> list[str]:
    """Return the names of messages."""
    return [type(message).__name__ for message in replies]
