"""monitor: a small HTTP server for the operator: /metrics, /healthz and /readyz.

Rule: a request changes nothing, and is answered from counters and yes or no alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from dpsql.wire.metrics import CONTENT_TYPE, Metrics
from dpsql.wire.report import logger

_HEAD_BYTES: Final = 8 << 10
_SECONDS: Final = 5.0
_CLIENTS: Final = 20
_PLAIN: Final = "text/plain; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class Monitor:
    """Answers the operator's probes.

    Args:
        metrics: What /metrics shows.
        ready: Tells whether clients can be served now; /readyz says 503 if not, or if it takes too long to tell.
        host: The address to listen on.
        port: The port to listen on; 0 for any that is free.
    """

    def __init__(self, metrics: Metrics, ready: Callable[[], Awaitable[bool]], host: str, port: int) -> None:
        self._metrics = metrics
        self._ready = ready
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._clients = 0

    @property
    def port(self) -> int:
        """The port that is listened on; where 0 was asked for, known once started."""
        return self._port

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._answer, self._host, self._port, limit=_HEAD_BYTES)
        self._port = self._server.sockets[0].getsockname()[1]
        logger.info("metrics on http://%s:%d/metrics", self._host, self._port)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= _CLIENTS:
                async with asyncio.timeout(_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_response(head, *await self._page(head)))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            self._clients -= 1
            writer.close()

    async def _page(self, head: bytes) -> tuple[int, str, str]:
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return 400, _PLAIN, "not a request\n"
        if words[0] not in (b"GET", b"HEAD"):
            return 405, _PLAIN, "only GET\n"
        match words[1].partition(b"?")[0]:
            case b"/metrics":
                return 200, CONTENT_TYPE, self._metrics.text()
            case b"/healthz":
                return 200, _PLAIN, "ok\n"
            case b"/readyz":
                return (200, _PLAIN, "ready\n") if await self._ready() else (503, _PLAIN, "not ready\n")
            case _:
                return 404, _PLAIN, "/metrics, /healthz, /readyz\n"


def _response(head: bytes, status: int, kind: str, text: str) -> bytes:
    body = text.encode()
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    shown = b"" if head.startswith(b"HEAD ") else body
    return "\r\n".join((*lines, "", "")).encode() + shown
