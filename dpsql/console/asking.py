"""asking: a gateway's counters, asked over HTTP of the port that `dpsql serve --metrics-port` names."""

import asyncio
from typing import Final

from dpsql.console.health import GatewayHealth, read_metrics

_SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 20
_REQUEST: Final = b"GET /metrics HTTP/1.0\r\nHost: gateway\r\n\r\n"


async def ask_gateway(host: str, port: int, dataset: str) -> GatewayHealth:
    """Return what a gateway says of a dataset; one that does not answer soon is not ready."""
    place = f"{host}:{port}"
    try:
        async with asyncio.timeout(_SECONDS):
            answer = await _answer(host, port)
    except (OSError, TimeoutError):
        answer = b""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.0 200 ")):
        return GatewayHealth(place, None, 0, 0, {})
    return read_metrics(place, dataset, body.decode("utf-8", "replace"))


async def _answer(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUEST)
        answer = b""
        while len(answer) <= _MOST_BYTES and (more := await reader.read(1 << 16)):
            answer += more
        return answer
    finally:
        writer.close()
