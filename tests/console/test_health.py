"""The gateway's counters, as its own monitor tells them; one that does not answer, or answers with anything."""

import asyncio
import socket
import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.console import health
from dpsql.console.health import GatewayHealth, ask_gateway, read_metrics
from dpsql.wire.metrics import Metrics
from dpsql.wire.monitor import monitor


async def no_failures() -> frozenset[str]:
    return frozenset()


def test_a_gateway_tells_what_it_refused_on_the_dataset() -> None:
    async def scenario() -> GatewayHealth:
        metrics = Metrics()
        metrics.gauge("dpsql_sessions", "Clients that are logged in.", lambda: 3)
        metrics.gauge("dpsql_accepting", "1 while new clients are accepted.", lambda: 1)
        for kind in ("query", "query", "set"):
            metrics.statements.labels('a"b\\c\nd', kind).inc()
        metrics.statements.labels("other", "query").inc()
        for database, state in (('a"b\\c\nd', "42501"), ('a"b\\c\nd', "42501"), ("other", "42601")):
            metrics.refusals.labels(database, state).inc()
        server = monitor(metrics.text, no_failures, "127.0.0.1", 0)
        await server.start()
        try:
            return await ask_gateway("127.0.0.1", server.port, 'a"b\\c\nd')
        finally:
            await server.close()

    found = asyncio.run(scenario())
    assert (found.ready, found.sessions, found.statements, found.refusals) == (True, 3, 3, {"42501": 2})


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 500 No\r\n\r\n", b"\xff" * 2_000_000, None])
def test_one_that_does_not_answer_as_a_gateway_is_said_not_to(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_SECONDS", 0.2)

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
def test_any_text_is_read_or_said_to_be_no_gateways(text: str) -> None:
    found = read_metrics("here", "clinic", text)
    assert all(len(state) == 5 and count > 0 for state, count in found.refusals.items())


def test_numbers_that_count_nothing_are_passed_over() -> None:
    lines = [
        f'dpsql_refusals_total{{database="clinic",sqlstate="42P0{place}"}} {value}'
        for place, value in enumerate(("0", "-1", "NaN", "+Inf", "2"))
    ]
    assert read_metrics("here", "clinic", "\n".join(lines)).refusals == {"42P04": 2}
    assert read_metrics("here", "clinic", "dpsql_sessions {").ready is None


def test_a_state_that_is_none_is_passed_over() -> None:
    lines = [f'dpsql_refusals_total{{database="clinic",sqlstate="{state}"}} 1' for state in ("<b>", "42501 ", "42P01")]
    assert read_metrics("here", "clinic", "\n".join([*lines, "dpsql_sessions 99999999999999999999"])).refusals == {
        "42P01": 1
    }
