"""The state machine: what may follow what, in both directions, whole and byte by byte."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.errors import ProtocolViolation
from dpsql.wire.messages import backend
from dpsql.wire.messages.backend import (
    AuthenticationOk,
    AuthenticationSASL,
    AuthenticationSASLContinue,
    AuthenticationSASLFinal,
    BackendMessage,
    CommandComplete,
    DataRow,
    ErrorResponse,
    NoticeResponse,
    ParseComplete,
    ReadyForQuery,
)
from dpsql.wire.messages.frontend import (
    Bind,
    CancelRequest,
    CopyData,
    CopyDone,
    CopyFail,
    Execute,
    Flush,
    FrontendMessage,
    FunctionCall,
    GSSENCRequest,
    MessageLimits,
    Parse,
    Query,
    SASLInitialResponse,
    SASLResponse,
    SSLRequest,
    StartupMessage,
    Sync,
    Terminate,
)
from dpsql.wire.messages.rows import ColumnBytes, data_rows
from dpsql.wire.protocol import (
    RECEIVED,
    SENT,
    Encryption,
    IllegalReply,
    ServerProtocol,
    State,
)
from tests.wire.replies import BACKEND, FRONTEND

STARTUP = StartupMessage(3, 0, (("user", "ana"),))
FIRST = SASLInitialResponse("SCRAM-SHA-256", b"n,,n=,r=x")
PROOF = SASLResponse(b"c=biws,r=x,p=y")
ERROR = ErrorResponse("ERROR", "42601", "no")
FATAL = ErrorResponse("FATAL", "08P01", "no")
READY = ReadyForQuery("I")
LOGIN: tuple[FrontendMessage | BackendMessage, ...] = (
    STARTUP,
    AuthenticationSASL(("SCRAM-SHA-256",)),
    FIRST,
    AuthenticationSASLContinue(b""),
    PROOF,
    AuthenticationSASLFinal(b""),
    AuthenticationOk(),
    READY,
)
Script = Sequence[FrontendMessage | BackendMessage | Encryption]

SCRIPTS: dict[str, Script] = {
    "login": LOGIN,
    "encryption": (GSSENCRequest(), Encryption.REFUSED, SSLRequest(), Encryption.ACCEPTED, *LOGIN),
    "cancel": (CancelRequest(1, b"1234"),),
    "simple": (*LOGIN, Query(b"select 1"), CommandComplete("SELECT 1"), READY, Query(b""), ERROR, READY, Terminate()),
    "function call": (*LOGIN, FunctionCall(b"x"), ERROR, READY),
    "extended": (
        *LOGIN,
        *(Parse(b"", b"select 1"), ParseComplete(), Bind(b"", b""), backend.BindComplete(), Flush()),
        *(Execute(b""), CommandComplete("SELECT 1"), Sync(), READY),
    ),
    "notice while idle": (*LOGIN, NoticeResponse("NOTICE", "00000", "hello"), Sync(), READY),
    "fatal": (*LOGIN, FATAL),
    "query within an extended exchange": (*LOGIN, Parse(b"", b"x"), ParseComplete(), Query(b"y"), READY),
}


def logged_in(limits: MessageLimits | None = None) -> ServerProtocol:
    protocol = ServerProtocol(limits)
    play(protocol, LOGIN)
    return protocol


def play(protocol: ServerProtocol, script: Script, step: int | None = None) -> None:
    """Play both sides of a script; the client's bytes come in pieces of `step`, or in one."""
    for message in script:
        if isinstance(message, Encryption):
            assert protocol.answer_encryption(message) == message.value
        elif isinstance(message, FrontendMessage):
            feed(protocol, message, step)
        else:
            assert protocol.send(message) == message.encode()


def feed(protocol: ServerProtocol, message: FrontendMessage, step: int | None) -> None:
    data = message.encode()
    pieces = [data[at : at + (step or len(data))] for at in range(0, len(data), step or len(data))]
    for piece in pieces[:-1]:
        protocol.receive_data(piece)
        assert protocol.next_event() is None
    protocol.receive_data(pieces[-1])
    assert protocol.next_event() == message
    assert protocol.next_event() is None


@pytest.mark.parametrize("step", [None, 1, 3])
@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, step: int | None) -> None:
    play(ServerProtocol(), SCRIPTS[name], step)


def test_pipelined_messages_come_one_by_one() -> None:
    protocol = logged_in()
    protocol.receive_data(Query(b"1").encode() + Query(b"2").encode())
    assert protocol.next_event() == Query(b"1")
    assert protocol.next_event() is None, "the second waits for the reply to the first"
    protocol.send(READY)
    assert protocol.next_event() == Query(b"2")


def test_only_a_login_leads_to_ready() -> None:
    """Over all sequences of legal steps: READY is reached by way of every state of the login, in order."""
    successors = {state: set(RECEIVED.get(state, {}).values()) | set(SENT.get(state, {}).values()) for state in State}
    successors[State.ENCRYPTION] = {State.STARTUP}
    chain = [
        *(State.STARTED, State.SASL_OFFERED, State.SASL_FIRST, State.SASL_CHALLENGED),
        *(State.SASL_PROOF, State.SASL_PROVED, State.OPENING),
    ]
    for left_out in chain:
        reached, front = {State.STARTUP}, [State.STARTUP]
        while front:
            for state in successors[front.pop()] - reached - {left_out}:
                reached.add(state)
                front.append(state)
        assert State.READY not in reached
    for state, following in itertools.pairwise(chain):
        assert successors[state] - {state} == {following}


@pytest.mark.parametrize("state", [State.STARTUP, State.SASL_OFFERED, State.SASL_CHALLENGED])
def test_nothing_but_login_messages_before_login(state: State) -> None:
    legal = {SSLRequest, GSSENCRequest, CancelRequest, StartupMessage, SASLInitialResponse, SASLResponse}
    assert set(RECEIVED[state]) <= legal
    assert set(RECEIVED) == {
        *(State.STARTUP, State.SASL_OFFERED, State.SASL_CHALLENGED, State.READY, State.EXTENDED, State.SKIPPING)
    }
    for kind in set(FRONTEND) - legal:
        protocol = ServerProtocol()
        for message in LOGIN[: {State.STARTUP: 0, State.SASL_OFFERED: 2, State.SASL_CHALLENGED: 4}[state]]:
            play(protocol, [message])
        assert protocol.state is state
        protocol.receive_data(kind.code + b"\0\0\0\4")
        with pytest.raises(ProtocolViolation):
            protocol.next_event()
        assert protocol.state is State.REFUSED


@pytest.mark.parametrize("state", [state for state in State if state not in RECEIVED])
def test_the_client_waits_where_the_server_moves(state: State) -> None:
    protocol = ServerProtocol()
    protocol.state = state
    protocol.receive_data(Sync().encode())
    assert protocol.next_event() is None


@pytest.mark.parametrize("kind", BACKEND)
def test_replies_stand_only_where_the_table_has_them(kind: type[BackendMessage]) -> None:
    message = _sample(kind)
    for state in State:
        protocol = ServerProtocol()
        protocol.state = state
        if kind in SENT.get(state, {}):
            assert protocol.send(message) == message.encode()
            assert protocol.state is SENT[state][kind]
        else:
            with pytest.raises(IllegalReply):
                protocol.send(message)
            assert protocol.state is state


def _sample(kind: type[BackendMessage]) -> BackendMessage:
    samples: tuple[BackendMessage, ...] = (
        *(ERROR, READY, NoticeResponse("NOTICE", "00000", ""), AuthenticationSASL(()), CommandComplete("")),
        *(AuthenticationSASLContinue(b""), AuthenticationSASLFinal(b""), backend.ParameterStatus("a", "b")),
        *(backend.BackendKeyData(1, b""), backend.NegotiateProtocolVersion(0, ()), backend.RowDescription(())),
        *(backend.DataRow(()), backend.ParameterDescription(()), backend.CopyOutResponse(0, 1), backend.CopyRow(b"")),
    )
    return next((message for message in samples if type(message) is kind), None) or kind()


@pytest.mark.parametrize("state", list(State))
def test_a_fatal_error_ends_any_state_once(state: State) -> None:
    protocol = ServerProtocol()
    protocol.state = state
    if state is not State.CLOSED:
        assert protocol.send(FATAL) == FATAL.encode()
        assert protocol.state is State.CLOSED
    with pytest.raises(IllegalReply):
        protocol.send(FATAL)


def test_after_an_error_everything_up_to_sync_is_thrown_away() -> None:
    protocol = logged_in()
    play(protocol, [Parse(b"", b"x"), ERROR])
    for message in (Bind(b"", b""), Execute(b""), Query(b"x"), Flush(), CopyData(b"x"), FunctionCall(b"")):
        protocol.receive_data(message.encode())
    assert protocol.next_event() is None
    protocol.receive_data(Sync().encode() + Sync().encode())
    assert protocol.next_event() == Sync()
    assert protocol.next_event() is None, "one ReadyForQuery for each Sync"
    protocol.send(READY)
    assert protocol.next_event() == Sync()


def test_terminate_is_heard_while_skipping() -> None:
    protocol = logged_in()
    play(protocol, [Parse(b"", b"x"), ERROR, Terminate()])
    assert protocol.state is State.CLOSED


@pytest.mark.parametrize("message", [CopyData(b"1"), CopyDone(b""), CopyFail(b"no\0")])
def test_copied_rows_without_a_copy_are_thrown_away(message: FrontendMessage) -> None:
    protocol = logged_in()
    protocol.receive_data(message.encode() + Sync().encode())
    assert protocol.next_event() == Sync()


def test_an_unknown_type_is_refused_at_its_first_byte() -> None:
    for code in set(range(256)) - {*b"QPBDECSHXFdcf"}:
        protocol = logged_in()
        protocol.receive_data(bytes([code]))
        with pytest.raises(ProtocolViolation, match=f"type {code}"):
            protocol.next_event()
        with pytest.raises(IllegalReply):
            protocol.send(READY)
        protocol.send(FATAL)
        protocol.receive_data(Query(b"select 1").encode())
        assert protocol.next_event() is None


def test_what_is_left_of_a_message_that_is_too_long_is_counted_and_thrown_away() -> None:
    protocol = logged_in(MessageLimits(query=60))
    protocol.receive_data(b"Q" + (100).to_bytes(4, "big") + bytes(16))
    with pytest.raises(ProtocolViolation, match="invalid message length"):
        protocol.next_event()
    for part, left in ((30, 50), (49, 1), (20, 0)):
        protocol.receive_data(bytes(part))
        assert protocol.unread == left
    stranger = ServerProtocol(MessageLimits(startup=60))
    stranger.receive_data((100).to_bytes(4, "big") + bytes(16))
    with pytest.raises(ProtocolViolation, match="invalid message length"):
        stranger.next_event()
    assert stranger.unread == 0, "nothing more is read of who is not logged in"


LIMITS = MessageLimits(startup=100, login=80, query=60, other=40)


@pytest.mark.parametrize(
    ("place", "code", "limit"),
    [
        *((0, b"", 100), (2, b"p", 80), (4, b"p", 80)),
        *((8, b"Q", 60), (8, b"P", 60), (8, b"B", 60), (8, b"d", 60), (8, b"E", 40), (8, b"S", 40)),
    ],
)
def test_a_length_beyond_the_limit_is_refused_before_its_body_comes(place: int, code: bytes, limit: int) -> None:
    for length, refused in ((limit, False), (limit + 1, True), (2**32 - 1, True), (3, True), (0, True)):
        protocol = ServerProtocol(LIMITS)
        play(protocol, LOGIN[:place])
        protocol.receive_data(code + length.to_bytes(4, "big"))
        if refused:
            with pytest.raises(ProtocolViolation, match="length"):
                protocol.next_event()
        else:
            assert protocol.next_event() is None


def test_no_more_is_buffered_than_there_is_room_for() -> None:
    before = ServerProtocol(LIMITS)
    assert before.room == 101
    before.receive_data(b"x" * 101)
    assert before.room == 0
    with pytest.raises(ProtocolViolation, match="too many pipelined messages"):
        before.receive_data(b"x")
    assert before.state is State.REFUSED
    after = logged_in(LIMITS)
    assert after.room == 60 + (64 << 10)
    after.receive_data(b"Q")
    assert after.room == 59 + (64 << 10)


def test_what_comes_after_the_end_is_thrown_away() -> None:
    protocol = logged_in(LIMITS)
    play(protocol, [Terminate()])
    for _ in range(10):
        protocol.receive_data(b"x" * protocol.room)
    assert protocol.room > 0


def test_bytes_in_the_clear_before_the_handshake_are_refused() -> None:
    protocol = ServerProtocol()
    protocol.receive_data(SSLRequest().encode() + STARTUP.encode())
    assert protocol.next_event() == SSLRequest()
    with pytest.raises(ProtocolViolation, match="unencrypted"):
        protocol.answer_encryption(Encryption.ACCEPTED)


def test_encryption_is_not_asked_for_twice() -> None:
    protocol = ServerProtocol()
    play(protocol, [SSLRequest(), Encryption.REFUSED])
    protocol.receive_data(SSLRequest().encode())
    with pytest.raises(ProtocolViolation, match="twice"):
        protocol.next_event()


def test_encryption_is_answered_only_when_asked_for() -> None:
    with pytest.raises(IllegalReply):
        ServerProtocol().answer_encryption(Encryption.REFUSED)


def test_a_malformed_body_is_refused() -> None:
    protocol = logged_in()
    protocol.receive_data(b"Q\0\0\0\5x")
    with pytest.raises(ProtocolViolation):
        protocol.next_event()


Rows = list[tuple[bytes | None, ...]]


def column_bytes(values: list[bytes | None]) -> ColumnBytes:
    there = [value for value in values if value is not None]
    return ColumnBytes.of(there).with_nulls([value is not None for value in values])


_CELLS = st.none() | st.binary(max_size=3) | st.integers(250, 260).map(bytes) | st.just(b"x" * 70_000)


@given(
    st.integers(0, 4).flatmap(
        lambda width: st.lists(st.tuples(*[_CELLS] * width), max_size=5).map(lambda rows: (width, rows))
    )
)
def test_rows_are_written_as_their_messages(case: tuple[int, Rows]) -> None:
    width, rows = case
    columns = [column_bytes([row[place] for row in rows]) for place in range(width)]
    assert data_rows(columns, len(rows)) == b"".join(DataRow(row).encode() for row in rows)


@pytest.mark.parametrize("row", [(b"1", None), (b"", b"x" * 70_000), ()], ids=["null", "long", "no columns"])
def test_many_rows_are_sent_as_one_by_one(row: tuple[bytes | None, ...]) -> None:
    sent = []
    for whole in (True, False):
        protocol = logged_in()
        protocol.receive_data(Query(b"x").encode())
        protocol.next_event()
        columns = [column_bytes([value] * 2) for value in row]
        sent.append(
            protocol.send_rows(columns, 2) if whole else b"".join(protocol.send(DataRow(row)) for _ in range(2))
        )
        assert protocol.state is State.SIMPLE
    assert sent[0] == sent[1]


@pytest.mark.parametrize("state", sorted(set(State) - {State.SIMPLE, State.EXTENDED}, key=str))
def test_rows_stand_only_in_replies(state: State) -> None:
    protocol = ServerProtocol()
    protocol.state = state
    with pytest.raises(IllegalReply):
        protocol.send_rows([], 0)
