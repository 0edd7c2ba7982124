"""One client's socket: bytes between the kernel and the protocol, TLS, and waiting in both directions.

Rule 1: reading stops when the protocol's buffer is full; the rest stays in the kernel, and the client waits.
Rule 2: writing stops when the client does not read; a client that reads too slowly for too long is disconnected.
"""

import asyncio
import socket
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dpsql.errors import ProtocolViolation, ServerShutdown
from dpsql.wire.client import Disconnected
from dpsql.wire.messages.backend import BackendMessage
from dpsql.wire.messages.frontend import FrontendMessage
from dpsql.wire.protocol import Encryption, ServerProtocol
from dpsql.wire.proxy import HEADER_BYTES, read_proxy_header
from dpsql.wire.report import logger
from dpsql.wire.tls import ServerTls

_READ_SIZE: Final = 16 << 10
_LINGER_SECONDS: Final = 5.0
_HEADER_SECONDS: Final = 5.0

# asyncio keeps a buffer of this size for each TLS connection as long as it lasts; its own choice is 256 KiB.
sslproto.SSLProtocol.max_size = _READ_SIZE


class ClientConnection(asyncio.BufferedProtocol):
    """A client's connection, as the event loop and the gateway see it.

    Args:
        protocol: The state machine that the bytes belong to.
        write_timeout: Seconds that a client may take to read what was written.
        on_made: Called with the connection once it is open and its address is known.
        is_proxy: Tells whether an address is that of a trusted proxy, which says whom it speaks for.

    Attributes:
        address: The client's address, as far as it is known.
        peer: The same with the port.
        held: A failed login waits for its answer.
        is_silent: The client has not sent anything yet.
        closed: Set once the connection has ended.
    """

    def __init__(
        self,
        protocol: ServerProtocol,
        write_timeout: float,
        on_made: Callable[["ClientConnection"], None],
        is_proxy: Callable[[str], bool] = lambda address: False,
    ) -> None:
        self.protocol = protocol
        self.on_lost: Callable[[], None] | None = None
        self.held = False
        self.is_silent = True
        self.closed = asyncio.Event()
        self.address = self.peer = "local"
        self.channel_binding: bytes | None = None
        self.encrypted = False
        self._write_timeout = write_timeout
        self._on_made = on_made
        self._is_proxy = is_proxy
        self._header: bytes | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_READ_SIZE)
        self._reading = True
        self._stopping = False
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._cut_off: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._name(peer[0], peer[1])
        raw = transport.get_extra_info("socket")
        if raw is not None:
            # A client whose machine has vanished must not hold its place until the idle limit.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._is_proxy(self.address):
            self._header = b""
            asyncio.get_running_loop().call_later(_HEADER_SECONDS, self._miss_header)
        else:
            self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the event loop puts what it reads: no larger than the protocol's room."""
        most = _READ_SIZE if self._header is None else HEADER_BYTES
        return memoryview(self._buffer)[: max(1, min(self.protocol.room, most))]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the bytes that were read; called by the event loop."""
        data = bytes(self._buffer[:nbytes])
        if self._header is not None:
            data = self._read_header(self._header + data)
        if not data:
            return
        self.is_silent = False
        self.protocol.receive_data(data)
        if self.protocol.room < 1 and self._transport is not None:
            self._transport.pause_reading()
            self._reading = False
        self._changed.set()

    def pause_writing(self) -> None:
        """Note that the client reads slowly; called by the event loop."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the client has caught up; called by the event loop."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; called by the event loop."""
        self._transport = None
        self.closed.set()
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._changed.set()
        self._writable.set()
        if self.on_lost is not None:
            self.on_lost()

    @property
    def lost(self) -> bool:
        """True once the client is gone, or was sent away."""
        return self._transport is None

    def stop(self) -> None:
        """Let the running statement end, and answer no more: the next `next_event` raises ServerShutdown."""
        self._stopping = True
        self._changed.set()

    async def next_event(self) -> FrontendMessage:
        """Return the client's next message.

        Raises:
            Disconnected: If the client is gone.
            ServerShutdown: If the gateway is stopping.
            ProtocolViolation: If the bytes are not the protocol.
        """
        while True:
            if self._stopping:
                raise ServerShutdown("terminating connection due to administrator command")
            if self.lost:
                raise Disconnected
            self._changed.clear()
            event = self.protocol.next_event()
            if event is not None:
                return event
            if not self._reading and self._transport is not None and self.protocol.room > 0:
                self._reading = True
                self._transport.resume_reading()
            await self._changed.wait()

    async def send(self, *messages: BackendMessage) -> None:
        """Send messages at once."""
        await self.write(b"".join(map(self.protocol.send, messages)))

    async def answer_encryption(self, tls: ServerTls | None) -> None:
        """Refuse encryption (None), or accept it and shake hands."""
        if tls is None:
            await self.write(self.protocol.answer_encryption(Encryption.REFUSED))
            return
        accepted = self.protocol.answer_encryption(Encryption.ACCEPTED)
        plain = self._open_transport()
        plain.write(accepted)
        try:
            # Nothing is awaited between the answer and the handshake, so that no byte is read in the clear after it.
            secure = await asyncio.get_running_loop().start_tls(plain, self, tls.context, server_side=True)
        except (OSError, asyncio.IncompleteReadError):
            raise Disconnected from None
        if secure is None or self.lost:
            raise Disconnected
        self._transport = secure
        self.encrypted = True
        self.channel_binding = tls.channel_binding

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the client reads slower than we write.

        Raises:
            Disconnected: If the client is gone, or has not read for too long and was cut off.
        """
        transport = self._open_transport()
        transport.write(data)
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._writable.wait()
        except TimeoutError:
            transport.abort()
            raise Disconnected from None
        self._open_transport()

    def drop(self) -> None:
        """Cut the client off without a word."""
        if self._transport is not None:
            self._transport.abort()

    async def throw_away(self) -> None:
        """Read on for some seconds what is left of a refused message.

        A socket that is closed with bytes unread resets the connection, and the client never reads why.
        """
        if not self.protocol.unread or self._transport is None:
            return
        if not self._reading:
            self._transport.resume_reading()
        if self._transport.can_write_eof():  # not under TLS
            self._transport.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while self.protocol.unread and not (self.lost or self._stopping):
                    self._changed.clear()
                    await self._changed.wait()

    def close(self) -> None:
        """Close when what was written is read, or soon in any case."""
        transport = self._transport
        if transport is not None:
            transport.close()
            self._cut_off = asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.abort)

    def _name(self, address: str, port: int) -> None:
        self.address, self.peer = address, f"{address}:{port}"

    def _read_header(self, data: bytes) -> bytes:
        """Read the header of a proxy; return the bytes that the client has sent after it."""
        try:
            header = read_proxy_header(data)
        except ProtocolViolation as error:
            logger.warning("the proxy %s was cut off: %s", self.peer, error.message)
            self.drop()
            return b""
        self._header = data if header is None else None
        if header is None:
            return b""
        if header.source is not None:
            self._name(*header.source)
        self._on_made(self)
        return data[header.size :]

    def _miss_header(self) -> None:
        if self._header is not None:
            self.drop()

    def _open_transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise Disconnected
        return self._transport
