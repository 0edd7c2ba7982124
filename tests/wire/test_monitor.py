"""/metrics, /healthz and /readyz over a socket."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib.metadata import version

import pytest

from dpsql.wire.http import HttpServer
from dpsql.wire.metrics import Metrics, add_up, counters
from dpsql.wire.monitor import BOUNDS, monitor
from tests.waiting import HANG_SECONDS


async def ask(port: int, request: bytes, rest: bytes = b"") -> tuple[bytes, bytes]:
    """Return the status line and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request + rest)
    head, _, body = (await asyncio.wait_for(reader.read(), HANG_SECONDS)).partition(b"\r\n\r\n")
    writer.close()
    return head.partition(b"\r\n")[0], body


Scenario = Callable[[HttpServer, Metrics, set[str]], Awaitable[None]]


def with_monitor(scenario: Scenario, seconds: float = BOUNDS.request_seconds) -> None:
    async def run() -> None:
        metrics, failing = Metrics(), set[str]()

        async def failures() -> set[str]:
            return failing

        server = monitor(metrics.text, failures, "127.0.0.1", 0, replace(BOUNDS, request_seconds=seconds))
        await server.start()
        try:
            await scenario(server, metrics, failing)
        finally:
            await server.close()

    asyncio.run(run())


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def test_metrics_are_in_the_text_format() -> None:
    async def scenario(server: HttpServer, metrics: Metrics, failing: set[str]) -> None:
        metrics.gauge("dpsql_sessions", "Clients that are logged in.", lambda: 3)
        metrics.statements.labels("clinic", "query").inc(2_000_001)
        metrics.statements.labels('a"b\\c\nd', "set").inc()
        status, body = await ask(server.port, get("/metrics?x=1"))
        assert status == b"HTTP/1.1 200 OK"
        lines = body.decode().splitlines()
        for line in (
            "# HELP dpsql_statements_total Statements begun, by kind.",
            "# TYPE dpsql_statements_total counter",
            'dpsql_statements_total{database="a\\"b\\\\c\\nd",kind="set"} 1.0',
            'dpsql_statements_total{database="clinic",kind="query"} 2.000001e+06',
            "# TYPE dpsql_sessions gauge",
            "dpsql_sessions 3.0",
            f'dpsql_build_info{{version="{version("dpsql")}"}} 1.0',
            "dpsql_ledger_failures_total 0.0",
        ):
            assert line in lines
        told = {line.partition(" ")[0]: line.rpartition(" ")[2] for line in lines}
        assert float(told["process_resident_memory_bytes"]) > 1 << 20
        assert 0 < float(told["process_open_fds"]) <= float(told["process_max_fds"])
        assert not any("_created" in line for line in lines)

    with_monitor(scenario)


def test_health_and_readiness() -> None:
    async def scenario(server: HttpServer, metrics: Metrics, failing: set[str]) -> None:
        assert await ask(server.port, get("/healthz")) == (b"HTTP/1.1 200 OK", b"ok\n")
        assert await ask(server.port, get("/readyz")) == (b"HTTP/1.1 200 OK", b"ready\n")
        failing |= {"ledger", "database clinic"}
        said = b"not ready: database clinic, ledger\n"
        assert await ask(server.port, get("/readyz")) == (b"HTTP/1.1 503 Service Unavailable", said)
        assert await ask(server.port, get("/healthz", "HEAD")) == (b"HTTP/1.1 200 OK", b"")

    with_monitor(scenario)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/"), b"HTTP/1.1 404 Not Found"),
        (get("/metrics", "POST"), b"HTTP/1.1 405 Method Not Allowed"),
        (b"\x00\x00\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"x" * 20_000, b"HTTP/1.1 431 Request Header Fields Too Large"),
    ],
)
def test_anything_else_is_refused(request_: bytes, status: bytes) -> None:
    async def scenario(server: HttpServer, metrics: Metrics, failing: set[str]) -> None:
        assert (await ask(server.port, request_))[0] == status
        assert (await ask(server.port, get("/healthz")))[0] == b"HTTP/1.1 200 OK"

    with_monitor(scenario)


def test_who_says_nothing_is_let_go_and_others_only_so_many() -> None:
    async def scenario(server: HttpServer, metrics: Metrics, failing: set[str]) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        assert await ask(server.port, b"") == (b"", b"")
        assert [await asyncio.wait_for(reader.read(), HANG_SECONDS) for reader, _ in silent] == [b""] * 20
        for _, writer in silent:
            writer.close()
        assert (await ask(server.port, get("/healthz")))[0] == b"HTTP/1.1 200 OK"

    with_monitor(scenario, 2)


def test_the_metrics_of_processes_are_added_up_and_states_hold_for_all() -> None:
    texts = []
    for logins, is_up in ((2, 1), (3, 0)):
        metrics = Metrics()
        metrics.logins.labels("00000").inc(logins)
        metrics.ledger_up.set(is_up)
        metrics.gauge("dpsql_clients", "Connections.", lambda: 4)
        texts.append(metrics.text())
    lines = add_up([*texts, counters(texts[0]), ""]).splitlines()
    assert {'dpsql_logins_total{sqlstate="00000"} 7.0', "dpsql_clients 8.0", "dpsql_ledger_up 0.0"} <= {*lines}
    assert [line.partition("}")[2] for line in lines if line.startswith("dpsql_build_info")] == [" 1.0"]
    assert "# TYPE dpsql_logins_total counter" in lines
