"""server: the console's sockets.

Rule 1: a connection has one request, of bounded size, in bounded time; places are bounded, and one address has half.
Rule 2: what goes wrong is one short sentence to the client, and a type and a place to the log.
"""

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from dpsql.console.messages import Request, Response, read_head, sentence
from dpsql.console.site import Site
from dpsql.errors import ProtocolViolation, TooManyConnections
from dpsql.wire.report import log_bug

_HEAD_BYTES: Final = 16 << 10
_BODY_BYTES: Final = 4 << 10
_REQUEST_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 90.0
_LINGER_SECONDS: Final = 1.0
_PLACES: Final = 40


class ConsoleServer:
    """Serves the console.

    Args:
        site: What it answers.
        host: The address to listen on.
        port: The port to listen on; 0 for any that is free.
        tls: What handshakes are made with; None for no TLS.
    """

    def __init__(self, site: Site, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._site = site
        self.host = host
        self._port = port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._taken: Counter[str] = Counter()

    @property
    def port(self) -> int:
        """The port that is listened on; where 0 was asked for, known once started."""
        return self._port

    def renew_tls(self, tls: ssl.SSLContext) -> None:
        """Meet the clients to come with another certificate."""
        self._tls = tls

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, self.host, self._port, limit=_HEAD_BYTES)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one client: all that it may do is to go away, or to take too long."""
        # Who has gone already has no name any more.
        address = (writer.get_extra_info("peername") or ("",))[0]
        try:
            with self._place(address) as is_free:
                if is_free:
                    await self._converse(reader, writer, address)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return
        except Exception as error:
            log_bug(error)
        finally:
            writer.close()

    @contextmanager
    def _place(self, address: str) -> Iterator[bool]:
        """Hold a place; False where there is none."""
        if self._taken.total() >= _PLACES or self._taken[address] >= _PLACES // 2:
            yield False
            return
        self._taken[address] += 1
        try:
            yield True
        finally:
            self._taken[address] -= 1
            if not self._taken[address]:
                del self._taken[address]

    async def _converse(self, reader: StreamReader, writer: StreamWriter, address: str) -> None:
        method = ""
        async with asyncio.timeout(_REQUEST_SECONDS):
            if self._tls is not None:
                await writer.start_tls(self._tls, ssl_handshake_timeout=_REQUEST_SECONDS)
            request = await _read(reader)
        if isinstance(request, Request):
            method = request.method
            response = await self._answer(request, address)
        else:
            response = request
        async with asyncio.timeout(_REQUEST_SECONDS):
            writer.write(response.encode(with_body=method != "HEAD"))
            await writer.drain()
        if not method:
            await _linger(reader)

    async def _answer(self, request: Request, address: str) -> Response:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._site.answer(request, address)
        except TimeoutError:
            return sentence(HTTPStatus.SERVICE_UNAVAILABLE, "the ledger does not answer in time")
        except TooManyConnections as error:
            return sentence(HTTPStatus.TOO_MANY_REQUESTS, error.message)
        except Exception as error:
            log_bug(error)
            return sentence(HTTPStatus.INTERNAL_SERVER_ERROR, "the console failed; its log says where")


async def _read(reader: StreamReader) -> Request | Response:
    """Return a client's request, or what it is told where it sent none."""
    try:
        request = read_head(await reader.readuntil(b"\r\n\r\n"))
        if request.length > _BODY_BYTES:
            return sentence(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too long")
        return replace(request, body=await reader.readexactly(request.length))
    except asyncio.LimitOverrunError:
        return sentence(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long")
    except ProtocolViolation as error:
        return sentence(HTTPStatus.BAD_REQUEST, error.message)


async def _linger(reader: StreamReader) -> None:
    """Read on for a moment: where bytes are left unread, closing would take the answer away from the client."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while await reader.read(1 << 16):
                pass
