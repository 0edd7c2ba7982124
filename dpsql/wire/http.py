"""http: serves an ASGI application: one request a connection, of bounded size, in bounded time.

One server for the operator's probes and for the console. h11 reads and writes HTTP. The sockets are handled here,
because uvicorn does not limit the time for a request's head or the connections of one address, cannot reload its
certificate, and ends the program if its port is in use.

Rule 1: a connection has one request. The number of connections is limited, in total and per address.
Rule 2: on an error the client gets one short sentence; the log gets its type and place.
Rule 3: every response has the server's headers, including refusals.

Reference: RFC 9112 (HTTP/1.1); https://asgi.readthedocs.io/en/latest/specs/www.html.
"""

import asyncio
import re
import ssl
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import h11

from dpsql.errors import log_bug

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
Application = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

PLAIN: Final = (b"Content-Type", b"text/plain; charset=utf-8")

_LINGER_SECONDS: Final = 1.0
_BARE_NEWLINE: Final = re.compile(rb"(?<!\r)\n")


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """What a server bears.

    Attributes:
        places: Connections at a time.
        address_places: Those of one address.
        head_bytes: Of a request's head.
        body_bytes: Of its body.
        request_seconds: Until the request has come, and likewise until the answer has gone.
        answer_seconds: Until the application has answered.
    """

    places: int = 40
    address_places: int = 20
    head_bytes: int = 16 << 10
    body_bytes: int = 4 << 10
    request_seconds: float = 10.0
    answer_seconds: float = 90.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a client is sent."""

    status: int
    headers: Headers
    body: bytes


class _Refused(Exception):
    """A request that does not reach the application."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.answer = sentence(status, text)


def sentence(status: HTTPStatus, text: str) -> HttpAnswer:
    """A short answer."""
    return HttpAnswer(status, [PLAIN], f"{text}\n".encode())


class HttpServer:
    """Serves an application.

    Args:
        application: What answers.
        host: The address to listen on.
        port: The port to listen on; 0 for any that is free.
        tls: What handshakes are made with; None for no TLS.
        bounds: What it bears.
        headers: What every answer carries.
    """

    def __init__(
        self,
        application: Application,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        bounds: HttpBounds | None = None,
        headers: Headers = (),
    ) -> None:
        self._application = application
        self.host = host
        self._port = port
        self._tls = tls
        self._bounds = bounds or HttpBounds()
        self._headers = (*headers, (b"Connection", b"close"))
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
        self._server = await asyncio.start_server(self._serve, self.host, self._port, limit=self._bounds.head_bytes)
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
        if self._taken.total() >= self._bounds.places or self._taken[address] >= self._bounds.address_places:
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
        connection, request, seconds = h11.Connection(h11.SERVER), None, self._bounds.request_seconds
        try:
            async with asyncio.timeout(seconds):
                if self._tls is not None:
                    await writer.start_tls(self._tls, ssl_handshake_timeout=seconds)
                request, body = await _read(reader, connection, self._bounds.body_bytes)
            answer = await self._answer(request, body, address)
        except _Refused as refused:
            connection, answer = h11.Connection(h11.SERVER), refused.answer
        with_body = request is None or request.method != b"HEAD"
        async with asyncio.timeout(seconds):
            writer.write(_encoded(connection, answer, self._headers, with_body=with_body))
            await writer.drain()
        if request is None:
            await _linger(reader)

    async def _answer(self, request: h11.Request, body: bytes, address: str) -> HttpAnswer:
        sent: list[AsgiMessage] = []

        async def receive() -> AsgiMessage:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: AsgiMessage) -> None:
            sent.append(message)

        try:
            async with asyncio.timeout(self._bounds.answer_seconds):
                await self._application(self._scope(request, address), receive, send)
        except TimeoutError:
            return sentence(HTTPStatus.SERVICE_UNAVAILABLE, "the answer takes too long; try again")
        except Exception as error:
            log_bug(error)
            return sentence(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says where")
        return HttpAnswer(sent[0]["status"], sent[0]["headers"], b"".join(part.get("body", b"") for part in sent[1:]))

    def _scope(self, request: h11.Request, address: str) -> AsgiMessage:
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http" if self._tls is None else "https",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": (address, 0),
            "server": (self.host, self._port),
        }


async def _read(reader: StreamReader, connection: h11.Connection, most: int) -> tuple[h11.Request, bytes]:
    """Return a client's request and its body.

    Raises:
        _Refused: It sent none.
    """
    body = b""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if _BARE_NEWLINE.search(head):  # h11 takes it for the end of a line, and a proxy in between may not
            raise h11.RemoteProtocolError("a newline alone")
        connection.receive_data(head)
        request = connection.next_event()
        if not isinstance(request, h11.Request) or not request.target.startswith(b"/"):
            raise h11.RemoteProtocolError("no request for a path")
        length = dict(request.headers).get(b"content-length", b"0")
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
            if len(body) > most or int(length) > most:
                raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too long")
            if event is h11.NEED_DATA:
                connection.receive_data(await _more(reader))
    except asyncio.LimitOverrunError:
        raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long") from None
    except h11.RemoteProtocolError:
        raise _Refused(HTTPStatus.BAD_REQUEST, "not a request") from None
    return request, body


async def _more(reader: StreamReader) -> bytes:
    """Return some further bytes of a client that has not gone yet."""
    data = await reader.read(1 << 16)
    if not data:
        raise asyncio.IncompleteReadError(data, None)
    return data


def _encoded(connection: h11.Connection, answer: HttpAnswer, headers: Headers, *, with_body: bool) -> bytes:
    told = [(name, value) for name, value in answer.headers if name.lower() != b"content-length"]
    told += [(b"Content-Length", str(len(answer.body)).encode()), *headers]
    start = h11.Response(status_code=answer.status, headers=told, reason=HTTPStatus(answer.status).phrase.encode())
    body = [h11.Data(data=answer.body)] if with_body else []
    return b"".join(connection.send(event) or b"" for event in (start, *body, h11.EndOfMessage()))


async def _linger(reader: StreamReader) -> None:
    """Read on for a moment: where bytes are left unread, closing would take the answer away from the client."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while await reader.read(1 << 16):
                pass
