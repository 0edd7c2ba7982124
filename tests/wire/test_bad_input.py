"""A client that sends what it likes at any point: messages cut short, too long, out of order, before login and after.

DPSQL_BAD_INPUT_STREAMS=200000 plays so many conversations instead of the suite's few.
"""

import asyncio
import contextlib
import logging
import os
import random
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dpsql.errors import ProtocolViolation
from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.messages.backend import (
    AuthenticationOk,
    AuthenticationSASL,
    AuthenticationSASLContinue,
    AuthenticationSASLFinal,
    BackendKeyData,
    CommandComplete,
    ErrorResponse,
    ReadyForQuery,
)
from dpsql.wire.messages.frontend import (
    CancelRequest,
    FrontendMessage,
    FunctionCall,
    GSSENCRequest,
    MessageLimits,
    Query,
    SASLInitialResponse,
    SASLResponse,
    SSLRequest,
    StartupMessage,
    Sync,
    Terminate,
)
from dpsql.wire.protocol import Encryption, IllegalReply, ServerProtocol, State
from dpsql.wire.session import WireSession
from tests.waiting import HANG_SECONDS, wait_for
from tests.wire.conftest import RunningServer
from tests.wire.rawclient import RawClient
from tests.wire.replies import read_replies
from tests.wire.scripted import ScriptedSession
from tests.wire.test_fuzz import SQL, SQLSTATE
from tests.wire.test_messages import FRONTEND

STREAMS: Final = int(os.environ.get("DPSQL_BAD_INPUT_STREAMS", "500"))
LIMITS: Final = MessageLimits(startup=300, login=200, query=2_000, other=200)
# What may be kept: the longest message that may come; once logged in, what is sent ahead too.
KEPT: Final = {False: 301, True: 2_000 + (64 << 10)}
PROOF: Final = b"the proof"
CODES: Final = sorted({kind.code[0] for kind in FRONTEND})
LOGIN: Final = [StartupMessage, "offer", SASLInitialResponse, "challenge", SASLResponse, "final", "ok"]

openings = st.sampled_from(
    [
        StartupMessage(3, 0, (("user", "ana"),)),
        StartupMessage(3, 2, (("user", "ana"), ("_pq_.x", "1"))),
        StartupMessage(2, 0, ()),
        SSLRequest(),
        GSSENCRequest(),
        CancelRequest(7, b"1234"),
    ]
)
answers = st.sampled_from(
    [SASLInitialResponse("SCRAM-SHA-256", b"n,,n=,r=x"), SASLResponse(PROOF), SASLResponse(b"no")]
)
queries = SQL.map(Query)
messages: st.SearchStrategy[FrontendMessage] = st.one_of(openings, answers, queries, *FRONTEND.values())


class Conversation(RuleBasedStateMachine):
    """One client's bytes, through the state machine, to a session without an engine; the gateway's part is played well.

    The model is small: who has logged in has gone through LOGIN, in this order, and nobody else is heard.
    """

    def __init__(self) -> None:
        super().__init__()
        self.protocol = ServerProtocol(LIMITS)
        self.session = ScriptedSession()
        self.wire = WireSession(self.protocol, self.session, self, max_names=5)
        self.loop = asyncio.new_event_loop()
        self.passed: list[object] = []
        self.heard = 0
        self.asked = 0
        self.replies = b""
        self.ended = False

    # The gateway's side

    async def write(self, data: bytes) -> None:
        self.replies += data

    async def call(self, function: Any) -> Any:
        return function()

    def _hear(self) -> None:
        """Take every message there is, and answer it as the gateway would."""
        try:
            while (event := self.protocol.next_event()) is not None:
                assert not self.ended
                self.heard += 1
                self._answer(event)
        except ProtocolViolation as violation:
            assert self.protocol.state is State.REFUSED
            fatal = ErrorResponse("FATAL", violation.sqlstate, violation.message)
            self.replies += self.protocol.send(fatal)
            self.ended = True

    def _answer(self, event: FrontendMessage) -> None:
        if isinstance(event, SSLRequest | GSSENCRequest):
            assert self.protocol.answer_encryption(Encryption.REFUSED) == b"N"
        elif isinstance(event, StartupMessage):
            self.passed = [StartupMessage]
            self._send_login("offer", AuthenticationSASL(("SCRAM-SHA-256",)))
        elif isinstance(event, SASLInitialResponse):
            self.passed.append(SASLInitialResponse)
            self._send_login("challenge", AuthenticationSASLContinue(b"r=xy"))
        elif isinstance(event, SASLResponse):
            self._judge(event)
        elif isinstance(event, CancelRequest | Terminate):
            self.ended = True
            assert self.protocol.state is State.CLOSED
        else:
            assert self.passed == LOGIN, f"{type(event).__name__} of nobody"
            self.asked += isinstance(event, Query | FunctionCall | Sync)
            self.loop.run_until_complete(self.wire.handle(event))

    def _judge(self, event: SASLResponse) -> None:
        if event.data != PROOF:
            self.replies += self.protocol.send(ErrorResponse("FATAL", "28P01", "no"))
            self.ended = True
            return
        self.passed.append(SASLResponse)
        self._send_login("final", AuthenticationSASLFinal(b"v=x"))
        self._send_login("ok", AuthenticationOk())
        self.replies += self.protocol.send(BackendKeyData(1, b"1234"))
        self.replies += self.protocol.send(ReadyForQuery("I"))
        self.asked += 1

    def _send_login(self, name: str, message: Any) -> None:
        self.replies += self.protocol.send(message)
        self.passed.append(name)

    # The client's side

    def _send(self, data: bytes, step: int = 1 << 20) -> None:
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            if len(piece) > self.protocol.room:
                return  # the gateway would not read it yet
            self.protocol.receive_data(piece)
            self._hear()

    @initialize(login=st.booleans())
    def begin(self, login: bool) -> None:
        if login:
            self._send(StartupMessage(3, 0, (("user", "ana"),)).encode())
            self._send(SASLInitialResponse("SCRAM-SHA-256", b"n,,n=,r=x").encode())
            self._send(SASLResponse(PROOF).encode())

    @rule(message=messages, step=st.integers(1, 60))
    def sends(self, message: FrontendMessage, step: int) -> None:
        self._send(message.encode(), step)

    @rule(several=st.lists(messages, min_size=2, max_size=5))
    def sends_many_at_once(self, several: list[FrontendMessage]) -> None:
        self._send(b"".join(message.encode() for message in several))

    @rule(message=messages, size=st.integers(1, 12))
    def sends_a_part(self, message: FrontendMessage, size: int) -> None:
        self._send(message.encode()[:size])

    @rule(code=st.sampled_from(CODES), length=st.integers(-(2**31), 2**31 - 1), body=st.binary(max_size=9))
    def sends_a_wrong_length(self, code: int, length: int, body: bytes) -> None:
        self._send(bytes([code]) + length.to_bytes(4, "big", signed=True) + body)

    @rule(code=st.sampled_from(CODES), more=st.integers(1, 1000))
    def sends_too_much(self, code: int, more: int) -> None:
        self._send(bytes([code]) + (2_000 + more).to_bytes(4, "big") + b"x" * 300)

    @rule(data=st.binary(min_size=1, max_size=40))
    def sends_noise(self, data: bytes) -> None:
        self._send(data)

    @precondition(lambda self: self.passed != LOGIN and not self.ended)
    @rule()
    def the_gateway_lets_nobody_in_by_mistake(self) -> None:
        before = self.protocol.state
        for reply in (AuthenticationOk(), ReadyForQuery("I"), CommandComplete("SELECT 1")):
            try:
                self.protocol.send(reply)
            except IllegalReply:
                continue
            raise AssertionError(f"{reply} in state {before.name}")
        assert self.protocol.state is before

    @invariant()
    def nothing_is_kept_without_limit(self) -> None:
        admitted = self.passed == LOGIN
        assert 0 <= self.protocol.room <= KEPT[admitted] or self.ended

    @invariant()
    def nothing_is_run_without_a_login(self) -> None:
        if self.passed != LOGIN:
            assert self.session.parsed == self.session.executed == self.session.described == []
            assert self.protocol.state not in (State.READY, State.SIMPLE, State.EXTENDED, State.SYNCING)

    @invariant()
    def whoever_was_sent_away_is_not_heard(self) -> None:
        if self.ended:
            assert self.protocol.state is State.CLOSED
            self.protocol.receive_data(b"Q\0\0\0\x0dselect 1\0")
            assert self.protocol.next_event() is None

    def teardown(self) -> None:
        self.loop.close()
        # Single bytes refuse encryption; they are not among the replies kept here.
        replies = read_replies(self.replies)
        for reply in replies:
            if isinstance(reply, ErrorResponse):
                assert SQLSTATE.fullmatch(reply.sqlstate) and reply.message
        assert sum(isinstance(reply, ReadyForQuery) for reply in replies) == self.asked
        fatal = [
            at for at, reply in enumerate(replies) if isinstance(reply, ErrorResponse) and reply.severity == "FATAL"
        ]
        assert fatal in ([], [len(replies) - 1])


TestConversation = Conversation.TestCase
TestConversation.settings = settings(
    max_examples=40,
    stateful_step_count=14,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def drawn(count: int) -> list[FrontendMessage]:
    """Messages of every kind."""
    found: list[FrontendMessage] = []

    @settings(max_examples=count, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(messages)
    def draw(message: FrontendMessage) -> None:
        found.append(message)

    draw()
    return [*found, *(Query(sql) for sql in (b"select 1", b"rows 3", b"begin", b"missing"))]


def play(number: int, pool: list[FrontendMessage]) -> int:
    """Play one conversation, always the same for its number; returns how many messages were heard."""
    chance = random.Random(number)
    kinds = sorted({type(message).__name__ for message in pool if message.code not in (b"", b"p", b"X")})
    fitting = [chance.choice([one for one in pool if type(one).__name__ == kind]) for kind in kinds]
    talk = Conversation()
    talk.begin(chance.random() < 0.6)
    for _ in range(chance.randrange(1, 16)):
        # Mostly what fits: whoever sends anything else is not heard for long.
        message = chance.choice(pool if chance.random() < 0.1 else fitting)
        match chance.randrange(24):
            case 0:
                talk.sends_many_at_once(chance.choices(pool, k=chance.randrange(2, 6)))
            case 1:
                talk.sends_a_part(message, chance.randrange(1, 13))
            case 2:
                talk.sends_a_wrong_length(chance.choice(CODES), chance.randrange(-(2**31), 2**31), chance.randbytes(5))
            case 3:
                talk.sends_too_much(chance.choice(CODES), chance.randrange(1, 1000))
            case 4 | 5 | 6 | 7:
                talk.sends_many_at_once(chance.choices(fitting, k=chance.randrange(2, 6)))
            case number if number < 23:
                talk.sends(message, chance.choice((1, 3, 7, 1 << 20)))
            case _:
                talk.sends_noise(chance.randbytes(chance.randrange(1, 40)))
        talk.nothing_is_kept_without_limit()
        talk.nothing_is_run_without_a_login()
        talk.whoever_was_sent_away_is_not_heard()
    talk.teardown()
    return talk.heard


def test_many_conversations(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dpsql.wire")  # a scripted session breaks now and then
    pool = drawn(400)
    heard = [play(number, pool) for number in range(STREAMS)]
    assert max(heard) > 10, "somebody gets far"


SERVER: Final = ClientLimits(login_seconds=5, write_seconds=5, failure_delay=0, messages=LIMITS)


class Connections(RuleBasedStateMachine):
    """Several clients of one running gateway, of which one behaves: it is served whatever the others do."""

    server: RunningServer

    def __init__(self) -> None:
        super().__init__()
        self.good = RawClient(self.server.port)
        self.good.log_in()
        self.bad: list[RawClient] = []

    @precondition(lambda self: len(self.bad) < 4)
    @rule(login=st.booleans())
    def comes(self, login: bool) -> None:
        self.bad.append(RawClient(self.server.port))
        if login:
            self.bad[-1].log_in()

    def _to(self, which: int, data: bytes) -> None:
        if self.bad:
            with contextlib.suppress(OSError):  # it may have been sent away
                self.bad[which % len(self.bad)].send(data)

    @rule(which=st.integers(0, 3), several=st.lists(messages, min_size=1, max_size=6))
    def sends(self, which: int, several: list[FrontendMessage]) -> None:
        self._to(which, b"".join(message.encode() for message in several))

    @rule(which=st.integers(0, 3), message=messages, size=st.integers(1, 12))
    def sends_a_part(self, which: int, message: FrontendMessage, size: int) -> None:
        self._to(which, message.encode()[:size])

    @rule(which=st.integers(0, 3), code=st.sampled_from(CODES), length=st.integers(-(2**31), 2**31 - 1))
    def sends_a_wrong_length(self, which: int, code: int, length: int) -> None:
        self._to(which, bytes([code]) + length.to_bytes(4, "big", signed=True) + b"x" * 50)

    @rule(which=st.integers(0, 3))
    def goes(self, which: int) -> None:
        if self.bad:
            self.bad.pop(which % len(self.bad)).socket.close()

    @rule()
    def another_is_answered(self) -> None:
        assert self.good.ask(Query(b"select 1"))[-1] == ReadyForQuery("I")

    def teardown(self) -> None:
        self.another_is_answered()
        for client in (*self.bad, self.good):
            client.socket.close()
        wait_for(lambda: self.server.server.sessions == 0)


def test_a_running_gateway() -> None:
    server = RunningServer(limits=SERVER)
    try:
        Connections.server = server
        run_state_machine_as_test(
            Connections,
            settings=settings(
                max_examples=15,
                stateful_step_count=10,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert all(session.closed.wait(HANG_SECONDS) for session in server.sessions)
    finally:
        server.close()
