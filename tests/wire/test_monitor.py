"""/metrics, /healthz and /readyz over a socket."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dpsql.wire.metrics import Metrics
from dpsql.wire.monitor import Monitor


async def ask(port: int, request: bytes, rest: bytes = b"") -> tuple[bytes, bytes]:
    """Return the status line and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request + rest)
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    writer.close()
    return head.partition(b"\r\n")[0], body


def with_monitor(scenario: Callable[[Monitor, Metrics, list[bool]], Awaitable[None]]) -> None:
    async def run() -> None:
        metrics, ready = Metrics(), [True]

        async def is_ready() -> bool:
            return ready[0]

        monitor = Monitor(metrics, is_ready, "127.0.0.1", 0)
        await monitor.start()
        try:
            await scenario(monitor, metrics, ready)
        finally:
            await monitor.close()

    asyncio.run(run())


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def test_metrics_are_in_the_text_format() -> None:
    async def scenario(monitor: Monitor, metrics: Metrics, ready: list[bool]) -> None:
        metrics.gauge("dpsql_sessions", "Clients that are logged in.", lambda: 3)
        metrics.statements._counts["clinic", "query"] = 2_000_000
        metrics.statements.add("clinic", "query")
        metrics.statements.add('a"b\\c\nd', "set")
        status, body = await ask(monitor.port, get("/metrics?x=1"))
        assert status == b"HTTP/1.1 200 OK"
        assert body.decode() == (
            "# HELP dpsql_logins_total Logins, by the SQLSTATE they ended with.\n"
            "# TYPE dpsql_logins_total counter\n"
            "# HELP dpsql_statements_total Statements begun, by kind.\n"
            "# TYPE dpsql_statements_total counter\n"
            'dpsql_statements_total{database="a\\"b\\\\c\\nd",kind="set"} 1\n'
            'dpsql_statements_total{database="clinic",kind="query"} 2000001\n'
            "# HELP dpsql_refusals_total Statements refused without reading a row.\n"
            "# TYPE dpsql_refusals_total counter\n"
            "# HELP dpsql_policy_reloads_total Loads of the policies on SIGHUP.\n"
            "# TYPE dpsql_policy_reloads_total counter\n"
            "# HELP dpsql_sessions Clients that are logged in.\n"
            "# TYPE dpsql_sessions gauge\n"
            "dpsql_sessions 3\n"
        )

    with_monitor(scenario)


def test_health_and_readiness() -> None:
    async def scenario(monitor: Monitor, metrics: Metrics, ready: list[bool]) -> None:
        assert await ask(monitor.port, get("/healthz")) == (b"HTTP/1.1 200 OK", b"ok\n")
        assert await ask(monitor.port, get("/readyz")) == (b"HTTP/1.1 200 OK", b"ready\n")
        ready[0] = False
        assert await ask(monitor.port, get("/readyz")) == (b"HTTP/1.1 503 Service Unavailable", b"not ready\n")
        assert await ask(monitor.port, get("/healthz", "HEAD")) == (b"HTTP/1.1 200 OK", b"")

    with_monitor(scenario)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/"), b"HTTP/1.1 404 Not Found"),
        (get("/metrics", "POST"), b"HTTP/1.1 405 Method Not Allowed"),
        (b"\x00\x00\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"x" * 20_000, b""),
    ],
)
def test_anything_else_is_refused(request_: bytes, status: bytes) -> None:
    async def scenario(monitor: Monitor, metrics: Metrics, ready: list[bool]) -> None:
        try:
            assert (await ask(monitor.port, request_))[0] == status
        except ConnectionResetError:
            assert status == b""
        assert (await ask(monitor.port, get("/healthz")))[0] == b"HTTP/1.1 200 OK"

    with_monitor(scenario)


def test_who_says_nothing_is_let_go_and_others_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.wire.monitor._SECONDS", 0.3)

    async def scenario(monitor: Monitor, metrics: Metrics, ready: list[bool]) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", monitor.port) for _ in range(20)]
        assert await ask(monitor.port, b"") == (b"", b"")
        assert [await asyncio.wait_for(reader.read(), 10) for reader, _ in silent] == [b""] * 20
        for _, writer in silent:
            writer.close()
        assert (await ask(monitor.port, get("/healthz")))[0] == b"HTTP/1.1 200 OK"

    with_monitor(scenario)
