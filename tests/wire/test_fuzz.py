"""Any bytes, before and after login: no crash, no silence, no growth, and an error with a SQLSTATE."""

import asyncio
import re
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import ProtocolViolation
from dpsql.wire.messages.backend import BackendMessage, ErrorResponse, ReadyForQuery
from dpsql.wire.messages.frontend import FrontendMessage, FunctionCall, Query, Sync, Terminate
from dpsql.wire.protocol import ServerProtocol, State
from tests.wire.conftest import RunningServer
from tests.wire.rawclient import RawClient
from tests.wire.replies import read_replies
from tests.wire.test_messages import FRONTEND, startups
from tests.wire.test_protocol import LOGIN, play
from tests.wire.test_session import Dialogue

SQL = st.sampled_from(
    [b"select 1", b"rows 3", b"missing", b"broken", b"syntax", b"begin", b"rollback", b"", b"echo $1", b"\xff"]
)
SQLSTATE = re.compile(r"[0-9A-Z]{5}")
frames = st.one_of(
    *(strategy.map(lambda message: message.encode()) for strategy in (*FRONTEND.values(), startups)),
    st.builds(
        lambda code, body: bytes([code]) + (len(body) + 4).to_bytes(4, "big") + body,
        st.integers(0, 255),
        st.binary(max_size=30),
    ),
    st.binary(max_size=30),
    SQL.map(lambda sql: b"Q" + (len(sql) + 5).to_bytes(4, "big") + sql + b"\0"),
    SQL.map(lambda sql: b"P" + (len(sql) + 8).to_bytes(4, "big") + b"\0" + sql + b"\0\0\0"),
)
streams = st.lists(frames, max_size=12).map(b"".join)


def check(replies: list[BackendMessage]) -> None:
    for message in replies:
        if isinstance(message, ErrorResponse):
            assert SQLSTATE.fullmatch(message.sqlstate) and message.message


@given(streams, st.integers(1, 40))
def test_the_protocol_takes_any_bytes_before_login(data: bytes, step: int) -> None:
    protocol = ServerProtocol()
    feed(protocol, data, step)
    assert protocol.state in {*(State.STARTUP, State.ENCRYPTION, State.STARTED, State.CLOSED, State.REFUSED)}, (
        "without replies of the server nothing leads further"
    )


@given(streams, st.integers(1, 40), st.integers(1, len(LOGIN)))
def test_the_protocol_takes_any_bytes_at_any_point_of_a_login(data: bytes, step: int, point: int) -> None:
    protocol = ServerProtocol()
    play(protocol, LOGIN[:point])
    before = protocol.state
    feed(protocol, data, step)
    if point < len(LOGIN):
        following = {State.SASL_OFFERED: State.SASL_FIRST, State.SASL_CHALLENGED: State.SASL_PROOF}
        assert protocol.state in {before, following.get(before, before), State.REFUSED}


def feed(protocol: ServerProtocol, data: bytes, step: int) -> None:
    try:
        for at in range(0, len(data), step):
            protocol.receive_data(data[at : at + step])
            while protocol.next_event() is not None:
                pass
    except ProtocolViolation:
        assert protocol.state is State.REFUSED


@given(streams)
@settings(deadline=None)
def test_a_session_answers_any_bytes(data: bytes) -> None:
    dialogue = Dialogue()
    events: list[FrontendMessage] = []

    async def converse() -> None:
        dialogue.protocol.receive_data(data)
        while (event := dialogue.protocol.next_event()) is not None:
            if isinstance(event, Terminate):
                return
            events.append(event)
            await dialogue.handle(event)

    try:
        asyncio.run(converse())
    except ProtocolViolation:
        assert dialogue.protocol.state is State.REFUSED
        return
    check(dialogue.replies())
    assert dialogue.protocol.state in (State.READY, State.EXTENDED, State.SKIPPING, State.CLOSED)
    asked = sum(isinstance(event, Query | FunctionCall | Sync) for event in events)
    assert sum(isinstance(message, ReadyForQuery) for message in dialogue.replies()) == asked


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    server = RunningServer()
    yield server
    server.close()


@given(streams)
@settings(max_examples=40, deadline=None)
def test_a_server_takes_any_bytes_before_login(shared_server: RunningServer, data: bytes) -> None:
    with RawClient(shared_server.port) as client:
        client.send(data)
        client.socket.shutdown(socket.SHUT_WR)
        received = client.drain()
    # Single bytes refuse encryption; no message starts with them before login.
    check(read_replies(received.lstrip(b"N")))
    assert shared_server.server.sessions == 0


@given(streams)
@settings(max_examples=40, deadline=None)
def test_a_server_takes_any_bytes_after_login(shared_server: RunningServer, data: bytes) -> None:
    with RawClient(shared_server.port) as client:
        client.log_in()
        client.send(data, Terminate())
        client.socket.shutdown(socket.SHUT_WR)
        check(client.until_end())
    with RawClient(shared_server.port) as client:
        client.log_in()
