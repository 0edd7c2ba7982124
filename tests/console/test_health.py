"""The gateway's counters, as its own monitor tells them; one that does not answer, or answers with anything."""

import asyncio
import socket
import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.console import asking
from dpsql.console.asking import ask_gateway
from dpsql.console.health import GatewayHealth, read_metrics
from dpsql.wire.metrics import Metrics
from dpsql.wire.monitor import Monitor


async def is_ready() -> bool:
    return True


def test_a_gateway_tells_what_it_refused_on_the_dataset() -> None:
    async def scenario() -> GatewayHealth:
        metrics = Metrics()
        metrics.gauge("dpsql_sessions", "Clients that are logged in.", lambda: 3)
        metrics.gauge("dpsql_accepting", "1 while new clients are let in.", lambda: 1)
        for kind in ("query", "query", "set"):
            metrics.statements.add('a"b\\c\nd', kind)
        metrics.statements.add("other", "query")
        for database, state in (('a"b\\c\nd', "42501"), ('a"b\\c\nd', "42501"), ("other", "42601")):
            metrics.refusals.add(database, state)
        monitor = Monitor(metrics, is_ready, "127.0.0.1", 0)
        await monitor.start()
        try:
            return await ask_gateway("127.0.0.1", monitor.port, 'a"b\\c\nd')
        finally:
            await monitor.close()

    found = asyncio.run(scenario())
    assert (found.ready, found.sessions, found.statements, found.refusals) == (True, 3, 3, {"42501": 2})


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 500 No\r\n\r\n", b"\xff" * 2_000_000, None])
def test_one_that_does_not_answer_as_a_gateway_is_said_not_to(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_SECONDS", 0.2)

    with socket.create_server(("127.0.0.1", 0)) as server:
        speaker = threading.Thread(target=_speak, args=(server, answer))
        speaker.start()
        found = asyncio.run(ask_gateway("127.0.0.1", server.getsockname()[1], "clinic"))
        speaker.join()
    assert found.ready is None
    assert asyncio.run(ask_gateway("127.0.0.1", 1, "clinic")).ready is None


def _speak(server: socket.socket, answer: bytes | None) -> None:
    """Answer one client, or wait until it has gone."""
    client, _ = server.accept()
    with client, suppress(ConnectionError):
        client.recv(1000)
        client.sendall(answer or b"")
        while answer is None and client.recv(1000):
            pass


@settings(max_examples=30)
@given(st.text() | st.from_regex(r'dpsql_[a-z_]*\{(sqlstate|database)="[^"]*"\} [0-9]*', fullmatch=True))
def test_any_metrics_are_read_or_passed_over(text: str) -> None:
    found = read_metrics("here", "clinic", text)
    assert all(len(state) == 5 for state in found.refusals)


def test_a_state_that_is_none_is_passed_over() -> None:
    lines = [f'dpsql_refusals_total{{database="clinic",sqlstate="{state}"}} 1' for state in ("<b>", "42501 ", "42P01")]
    assert read_metrics("here", "clinic", "\n".join([*lines, "dpsql_sessions 99999999999999999999"])).refusals == {
        "42P01": 1
    }
