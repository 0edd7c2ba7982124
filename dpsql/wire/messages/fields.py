"""What messages are made of: a frame around integers, strings and byte runs; every length is checked before use."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Self

from dpsql.errors import ProtocolViolation

_UINT16 = struct.Struct("!H")
_INT32 = struct.Struct("!i")
_UINT32 = struct.Struct("!I")


def uint16(value: int) -> bytes:
    """Return a two-byte unsigned integer."""
    return _UINT16.pack(value)


def int32(value: int) -> bytes:
    """Return a four-byte signed integer."""
    return _INT32.pack(value)


def uint32(value: int) -> bytes:
    """Return a four-byte unsigned integer."""
    return _UINT32.pack(value)


def cstring(text: str | bytes) -> bytes:
    """Return a zero-terminated string; what cannot stand in one is replaced, so that no text breaks the frame."""
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return raw.replace(b"\0", b"?") + b"\0"


def sized(value: bytes | None) -> bytes:
    """Return a value behind its length; NULL is the length -1."""
    return int32(-1) if value is None else int32(len(value)) + value


class Reader:
    """Takes fields off the front of one message body."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        end = self._at + size
        if size < 0 or end > len(self._body):
            raise ProtocolViolation("insufficient data left in message")
        taken = self._body[self._at : end]
        self._at = end
        return taken

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self.take(len(self._body) - self._at)

    def uint16(self) -> int:
        """Return a two-byte unsigned integer."""
        return int(_UINT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        """Return a four-byte signed integer."""
        return int(_INT32.unpack(self.take(4))[0])

    def uint32(self) -> int:
        """Return a four-byte unsigned integer."""
        return int(_UINT32.unpack(self.take(4))[0])

    def cstring(self) -> bytes:
        """Return a zero-terminated string without its zero."""
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise ProtocolViolation("invalid string in message")
        text = self.take(end - self._at)
        self._at += 1
        return text

    def text(self) -> str:
        """Return a zero-terminated string of UTF-8."""
        try:
            return self.cstring().decode()
        except UnicodeDecodeError:
            raise ProtocolViolation("invalid byte sequence for encoding UTF8 in message") from None

    def sized(self) -> bytes | None:
        """Return a value that stands behind its length; None is NULL."""
        size = self.int32()
        return None if size == -1 else self.take(size)

    def finish(self) -> None:
        """Refuse a body that is longer than its fields."""
        if self._at != len(self._body):
            raise ProtocolViolation("invalid message format: bytes are left over")


@dataclass(frozen=True, slots=True)
class FieldFormat:
    """How one field of a message stands in its body."""

    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]


UINT16: Final = FieldFormat(uint16, Reader.uint16)
INT32: Final = FieldFormat(int32, Reader.int32)
UINT32: Final = FieldFormat(uint32, Reader.uint32)
TEXT: Final = FieldFormat(cstring, Reader.text)
RAW_TEXT: Final = FieldFormat(cstring, Reader.cstring)
SIZED: Final = FieldFormat(sized, Reader.sized)
REST: Final = FieldFormat(bytes, Reader.rest)


def counted(item: FieldFormat, count: FieldFormat = UINT16) -> FieldFormat:
    """Return the format of a tuple behind the number of its items."""
    return FieldFormat(
        lambda items: count.write(len(items)) + b"".join(map(item.write, items)),
        lambda reader: tuple(item.read(reader) for _ in range(count.read(reader))),
    )


class Message:
    """One message: a code byte, a length that counts itself, a body.

    A message has a format for each of its fields, in their order; or it says in `_body` and `_read` how its body is
    written and read.
    """

    code: ClassVar[bytes] = b""
    formats: ClassVar[tuple[FieldFormat, ...]] = ()

    def encode(self) -> bytes:
        """Return the message as it goes over the wire."""
        body = self._body()
        return self.code + int32(len(body) + 4) + body

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Return the message that has this body."""
        reader = Reader(body)
        message = cls._read(reader)
        reader.finish()
        return message

    def _body(self) -> bytes:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]  # each is a dataclass
        return b"".join(one.write(value) for one, value in zip(self.formats, values, strict=True))

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(*(one.read(reader) for one in cls.formats))
