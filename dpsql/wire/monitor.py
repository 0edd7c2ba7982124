"""monitor: the operator's probes over HTTP: /metrics, /healthz and /readyz; and whether clients can be served now.

Rule 1: a request changes nothing; the reply has counters and the names of failing checks only.
Rule 2: a check that does not return counts as failed, and is not started a second time.
Rule 3: a cause is logged when a check begins to fail and when it works again, not for each probe.

It is a plain ASGI application of three paths, and needs no framework.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Set
from concurrent.futures import Future
from http import HTTPStatus
from typing import Final

from dpsql.errors import Error
from dpsql.wire.http import PLAIN, AsgiMessage, HttpAnswer, HttpBounds, HttpServer, Receive, Send, sentence
from dpsql.wire.metrics import CONTENT_TYPE
from dpsql.wire.report import logger

BOUNDS: Final = HttpBounds(places=20, address_places=20, head_bytes=8 << 10, request_seconds=5.0, answer_seconds=5.0)

_CHECK_SECONDS: Final = 2.0


def monitor(
    metrics: Callable[[], str],
    failures: Callable[[], Awaitable[Set[str]]],
    host: str,
    port: int,
    bounds: HttpBounds = BOUNDS,
) -> HttpServer:
    """A server of the operator's probes.

    Args:
        metrics: Returns what /metrics shows.
        failures: Names what clients need and cannot have now. /readyz answers 503 if there is anything; /metrics asks
            it first, so that its gauges are of now.
        host: The address to listen on.
        port: The port to listen on; 0 for any that is free.
        bounds: What it bears.
    """

    async def application(scope: AsgiMessage, receive: Receive, send: Send) -> None:
        answer = await _answer(scope["method"], scope["path"], metrics, failures)
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    return HttpServer(application, host, port, bounds=bounds)


async def _answer(
    method: str, path: str, metrics: Callable[[], str], failures: Callable[[], Awaitable[Set[str]]]
) -> HttpAnswer:
    if method not in ("GET", "HEAD"):
        return sentence(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
    match path:
        case "/metrics":
            await failures()
            return HttpAnswer(HTTPStatus.OK, [(PLAIN[0], CONTENT_TYPE.encode())], metrics().encode())
        case "/healthz":
            return sentence(HTTPStatus.OK, "ok")
        case "/readyz":
            failing = ", ".join(sorted(await failures()))
            status, text = (
                (HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {failing}") if failing else (HTTPStatus.OK, "ready")
            )
            return sentence(status, text)
        case _:
            return sentence(HTTPStatus.NOT_FOUND, "/metrics, /healthz, /readyz")


class Readiness:
    """Checks what clients need; to be used from one event loop.

    Args:
        checks: By name, what raises an error if something cannot be used now. May block.
        seconds: How long a check may take.
    """

    def __init__(self, checks: Mapping[str, Callable[[], object]], seconds: float = _CHECK_SECONDS) -> None:
        self._checks = checks
        self._seconds = seconds
        self._running: dict[str, Future[Exception | None]] = {}
        self._failing: set[str] = set()

    async def failures(self) -> frozenset[str]:
        """Return the names of the checks that fail."""
        for name, check in self._checks.items():
            if name not in self._running:
                self._running[name] = _begin(check)
        running = dict(self._running)
        if running:
            await asyncio.wait([asyncio.wrap_future(future) for future in running.values()], timeout=self._seconds)
        return frozenset(name for name, future in running.items() if not self._holds(name, future))

    def _holds(self, name: str, future: Future[Exception | None]) -> bool:
        """Judge one check, and log it if it changed."""
        if not future.done():
            cause: str | None = f"no answer within {self._seconds:g} seconds"
        else:
            if self._running.get(name) is future:
                del self._running[name]
            cause = _cause(future.result())
        if cause is not None and name not in self._failing:
            self._failing.add(name)
            logger.error("not ready: %s: %s", name, cause, extra={"fields": {"event": "readiness", "failing": name}})
        elif cause is None and name in self._failing:
            self._failing.remove(name)
            logger.info("%s works again", name, extra={"fields": {"event": "readiness"}})
        return cause is None


def _begin(check: Callable[[], object]) -> Future[Exception | None]:
    """Run a check in a thread that holds up neither the event loop nor the end of the program."""
    future: Future[Exception | None] = Future()

    def run() -> None:
        try:
            check()
        except Exception as error:
            future.set_result(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="dpsql-readiness", daemon=True).start()
    return future


def _cause(error: Exception | None) -> str | None:
    """What the log says of a failure: of a bug its type alone, whose text may quote anything."""
    if error is None:
        return None
    return error.message if isinstance(error, Error) else type(error).__qualname__
