"""What a logged-in client is answered, without a socket: exact sequences of messages."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from dpsql.errors import BackendFailure
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Statement
from dpsql.wire.client import Disconnected
from dpsql.wire.messages.backend import (
    BackendMessage,
    BindComplete,
    CloseComplete,
    CommandComplete,
    DataRow,
    EmptyQueryResponse,
    ErrorResponse,
    FieldDescription,
    NoData,
    NoticeResponse,
    ParameterDescription,
    ParameterStatus,
    ParseComplete,
    PortalSuspended,
    ReadyForQuery,
    RowDescription,
)
from dpsql.wire.messages.frontend import (
    Bind,
    Close,
    Describe,
    Execute,
    Flush,
    FrontendMessage,
    FunctionCall,
    Parse,
    Query,
    Sync,
)
from dpsql.wire.protocol import IllegalReply, ServerProtocol, State
from dpsql.wire.report import BUG_SENTENCE
from dpsql.wire.session import WireSession
from tests.waiting import HANG_SECONDS
from tests.wire.replies import names, read_replies
from tests.wire.scripted import ScriptedSession

T = TypeVar("T")
NUMBER = RowDescription((FieldDescription("n", 20, 8),))
NOTICE = NoticeResponse("NOTICE", "00000", "charged 0.1", "of 5", "EXPLAIN is free")
IDLE, BUSY, FAILED = ReadyForQuery("I"), ReadyForQuery("T"), ReadyForQuery("E")


def row(*values: bytes | None) -> DataRow:
    return DataRow(values)


def error(message: BackendMessage) -> str:
    assert isinstance(message, ErrorResponse) and message.severity == "ERROR"
    return message.sqlstate


class Dialogue:
    """A client in memory: says messages, and holds what was answered."""

    def __init__(self, session: ScriptedSession | None = None, max_names: int = 1000) -> None:
        self.session = session or ScriptedSession()
        self.protocol = ServerProtocol()
        self.protocol.state = State.READY
        self.gone = False
        self.written: list[bytes] = []
        self._wire = WireSession(self.protocol, self.session, self, max_names)

    async def write(self, data: bytes) -> None:
        if self.gone:
            raise Disconnected
        self.written.append(data)

    async def call(self, function: Callable[[], T]) -> T:
        return function()

    def say(self, *messages: FrontendMessage) -> list[BackendMessage]:
        return asyncio.run(self._say(messages))

    async def _say(self, messages: tuple[FrontendMessage, ...]) -> list[BackendMessage]:
        self.written.clear()
        for message in messages:
            self.protocol.receive_data(message.encode())
            while (event := self.protocol.next_event()) is not None:
                await self.handle(event)
        return self.replies()

    async def handle(self, message: FrontendMessage) -> None:
        await self._wire.handle(message)

    def replies(self) -> list[BackendMessage]:
        return read_replies(b"".join(self.written))


@pytest.fixture
def dialogue() -> Dialogue:
    return Dialogue()


def run(sql: bytes, *parameters: bytes | None) -> tuple[FrontendMessage, ...]:
    return Parse(b"", sql), Bind(b"", b"", (), parameters), Describe(b"P", b""), Execute(b""), Sync()


def test_simple_query(dialogue: Dialogue) -> None:
    assert dialogue.say(Query(b"select 1")) == [NOTICE, NUMBER, row(b"1"), CommandComplete("SELECT 1"), IDLE]


def test_simple_query_of_many_statements(dialogue: Dialogue) -> None:
    replies = dialogue.say(Query(b"begin; rows 2; missing x; select 3"))
    assert replies[:5] == [CommandComplete("BEGIN"), NUMBER, row(b"0"), row(b"1"), CommandComplete("SELECT 2")]
    assert replies[5] == ErrorResponse(
        "ERROR", "42P01", 'relation "missing" does not exist', hint="Try another.", position=9
    )
    assert replies[6:] == [FAILED]
    assert dialogue.session.executed == ["begin", "rows 2", "missing x"]


@pytest.mark.parametrize("sql", [b"", b" ; ;"])
def test_empty_query(dialogue: Dialogue, sql: bytes) -> None:
    assert dialogue.say(Query(sql)) == [EmptyQueryResponse(), IDLE]
    assert dialogue.say(*run(sql)) == [ParseComplete(), BindComplete(), NoData(), EmptyQueryResponse(), IDLE]


def test_a_result_with_an_empty_tag_is_an_empty_query(dialogue: Dialogue) -> None:
    class Silent(ScriptedSession):
        def execute(self, statement: Statement, parameters: object = (), types: object = ()) -> Result:
            return Result("", None, (), (), ())

    assert Dialogue(Silent()).say(Query(b"x")) == [EmptyQueryResponse(), IDLE]


def test_settings_are_told(dialogue: Dialogue) -> None:
    assert dialogue.say(Query(b"set a = b")) == [ParameterStatus("a", "b"), CommandComplete("SET"), IDLE]


def test_transaction_status(dialogue: Dialogue) -> None:
    assert dialogue.say(Query(b"begin"))[-1] == BUSY
    assert error(dialogue.say(Query(b"syntax"))[0]) == "42601"
    assert [error(dialogue.say(Query(b"select 1"))[0]), dialogue.session.transaction] == ["25P02", "E"]
    assert dialogue.say(Query(b"rollback"))[-1] == IDLE


def test_extended_query(dialogue: Dialogue) -> None:
    assert dialogue.say(*run(b"select $1", b"5")) == [
        ParseComplete(),
        BindComplete(),
        NUMBER,
        NOTICE,
        row(b"5"),
        CommandComplete("SELECT 1"),
        IDLE,
    ]


def test_parse_bind_and_describe_never_execute(dialogue: Dialogue) -> None:
    replies = dialogue.say(
        Parse(b"s", b"select $1"),
        Describe(b"S", b"s"),
        Bind(b"p", b"s", (), (b"1",), (1,)),
        Describe(b"P", b"p"),
        Sync(),
    )
    binary = RowDescription((FieldDescription("n", 20, 8, 1),))
    assert replies == [ParseComplete(), ParameterDescription((23,)), NUMBER, BindComplete(), binary, IDLE]
    assert dialogue.session.executed == []


def test_declared_parameter_types_are_kept(dialogue: Dialogue) -> None:
    declared = Parse(b"", b"echo $1 $2", (26, 0, 1043))
    replies = dialogue.say(declared, Describe(b"S", b""), Sync())
    assert replies[1] == ParameterDescription((26, 25, 1043))
    bound = Bind(b"", b"", (1, 0, 0), (b"\0\0\0\7", None, b"extra"))
    assert dialogue.say(declared, bound, Execute(b""), Sync())[2] == row(b"7", None)


def test_results_in_binary(dialogue: Dialogue) -> None:
    messages = (Parse(b"", b"rows 1"), Bind(b"", b"", (), (), (1,)), Execute(b""), Sync())
    assert dialogue.say(*messages)[2] == row(bytes(8))


def test_a_row_limit_suspends_the_portal(dialogue: Dialogue) -> None:
    replies = dialogue.say(
        Parse(b"", b"rows 4"),
        Bind(b"p", b""),
        Execute(b"p", 2),
        Execute(b"p", 2),
        Execute(b"p", 2),
        Execute(b"p"),
        Sync(),
    )
    assert replies[2:] == [
        *(row(b"0"), row(b"1"), PortalSuspended()),
        *(row(b"2"), row(b"3"), PortalSuspended()),
        *(CommandComplete("SELECT 0"), CommandComplete("SELECT 0"), IDLE),
    ]
    assert dialogue.session.executed == ["rows 4"], "one execution, however many Execute messages"


def test_the_rest_of_a_suspended_portal(dialogue: Dialogue) -> None:
    dialogue.say(Query(b"begin"))
    dialogue.say(Parse(b"", b"rows 3"), Bind(b"p", b""), Execute(b"p", 2), Sync())
    assert dialogue.say(Execute(b"p", 2), Sync()) == [row(b"2"), CommandComplete("SELECT 1"), BUSY]


def test_portals_end_with_their_transaction(dialogue: Dialogue) -> None:
    dialogue.say(Parse(b"", b"rows 3"), Bind(b"p", b""), Execute(b"p", 1), Sync())
    assert error(dialogue.say(Execute(b"p"), Sync())[0]) == "34000"


def test_a_statement_without_rows_runs_once(dialogue: Dialogue) -> None:
    replies = dialogue.say(Parse(b"", b"begin"), Bind(b"", b""), Execute(b""), Execute(b""), Sync())
    assert [replies[2], error(replies[3])] == [CommandComplete("BEGIN"), "34000"]
    assert dialogue.session.executed == ["begin"]


def test_after_an_error_messages_up_to_sync_are_skipped(dialogue: Dialogue) -> None:
    replies = dialogue.say(Parse(b"", b"missing"), Bind(b"", b""), Execute(b""), Query(b"select 1"), Sync())
    assert names(replies) == ["ErrorResponse", "ReadyForQuery"]
    assert dialogue.session.executed == []


def test_an_error_in_a_pipeline_keeps_what_came_before(dialogue: Dialogue) -> None:
    replies = dialogue.say(*run(b"rows 0")[:-1], *run(b"missing")[:-1], *run(b"rows 0"), *run(b"rows 0"))
    assert names(replies) == [
        *("ParseComplete", "BindComplete", "RowDescription", "CommandComplete", "ErrorResponse", "ReadyForQuery"),
        *("ParseComplete", "BindComplete", "RowDescription", "CommandComplete", "ReadyForQuery"),
    ]


def test_flush_sends_what_there_is(dialogue: Dialogue) -> None:
    assert dialogue.say(Parse(b"", b"select 1")) == []
    assert dialogue.say(Flush()) == [ParseComplete()]
    assert dialogue.say(Flush()) == []


def test_errors_are_sent_at_once(dialogue: Dialogue) -> None:
    assert names(dialogue.say(Parse(b"", b"missing"))) == ["ErrorResponse"]


def test_several_statements_cannot_be_prepared(dialogue: Dialogue) -> None:
    assert error(dialogue.say(Parse(b"", b"select 1; select 2"), Sync())[0]) == "42601"


@pytest.mark.parametrize(
    ("messages", "sqlstate"),
    [
        ((Bind(b"", b"x"),), "26000"),
        ((Bind(b"", b""),), "26000"),
        ((Describe(b"S", b"x"),), "26000"),
        ((Describe(b"P", b"x"),), "34000"),
        ((Execute(b"\xff"),), "34000"),
        ((Parse(b"", b"x", (600,)),), "0A000"),
        ((Parse(b"", b"\xff"),), "22P02"),
        ((Parse(b"", b"select $1"), Bind(b"", b"")), "08P01"),
        ((Parse(b"", b"select $1"), Bind(b"", b"", (2,), (b"1",))), "22023"),
        ((Parse(b"", b"select $1"), Bind(b"", b"", (0, 0), (b"1",))), "22023"),
        ((Parse(b"", b"select $1"), Bind(b"", b"", (), (b"x",))), "22P02"),
        ((Parse(b"", b"select $1"), Bind(b"", b"", (1,), (b"x",))), "22P02"),
        ((Parse(b"", b"select $1"), Bind(b"", b"", (), (b"1",), (0, 0))), "22023"),
        ((Parse(b"s", b"select 1"), Parse(b"s", b"select 1")), "08P01"),
        ((Parse(b"", b"rows 1"), Bind(b"p", b""), Bind(b"p", b"")), "08P01"),
    ],
)
def test_refusals(dialogue: Dialogue, messages: tuple[FrontendMessage, ...], sqlstate: str) -> None:
    replies = dialogue.say(*messages, Sync())
    assert error(replies[-2]) == sqlstate
    assert dialogue.say(*run(b"rows 0"))[-2:] == [CommandComplete("SELECT 0"), IDLE], "and the session goes on"


def test_sql_that_is_not_utf8_is_refused(dialogue: Dialogue) -> None:
    assert error(dialogue.say(Query(b"select '\xff'"))[0]) == "22P02"


def test_function_calls_are_refused(dialogue: Dialogue) -> None:
    replies = dialogue.say(FunctionCall(b""))
    assert [error(replies[0]), replies[1]] == ["0A000", IDLE]


def test_closed_names_are_forgotten(dialogue: Dialogue) -> None:
    dialogue.say(Query(b"begin"))
    dialogue.say(Parse(b"s", b"rows 0"), Bind(b"p", b"s"), Sync())
    replies = dialogue.say(Close(b"P", b"p"), Close(b"S", b"s"), Close(b"S", b"never"), Sync())
    assert replies == [CloseComplete()] * 3 + [BUSY]
    assert error(dialogue.say(Execute(b"p"), Sync())[0]) == "34000"
    dialogue.say(Query(b"rollback"))
    assert error(dialogue.say(Bind(b"", b"s"), Sync())[0]) == "26000"


def test_a_simple_query_forgets_the_unnamed(dialogue: Dialogue) -> None:
    dialogue.say(Parse(b"", b"rows 0"), Parse(b"s", b"rows 0"), Sync())
    dialogue.say(Query(b"rows 0"))
    assert error(dialogue.say(Bind(b"", b""), Sync())[0]) == "26000"
    assert dialogue.say(Bind(b"", b"s"), Sync()) == [BindComplete(), IDLE]


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        (b"deallocate all", []),
        (b"discard all", []),
        (b"deallocate one", [b"two"]),
        (b"deallocate three", [b"one", b"two"]),
        (b"begin; missing; rollback", [b"one", b"two"]),
    ],
)
def test_statements_deallocated_by_sql_are_forgotten(dialogue: Dialogue, sql: bytes, left: list[bytes]) -> None:
    dialogue.say(Parse(b"one", b"rows 0"), Parse(b"two", b"rows 0"), Sync())
    replies = dialogue.say(Query(sql))
    found = [
        name for name in (b"one", b"two") if names(dialogue.say(Describe(b"S", name), Sync()))[0] != "ErrorResponse"
    ]
    assert found == left
    if sql == b"deallocate three":
        assert error(replies[0]) == "26000"


def test_nothing_is_deallocated_in_a_failed_transaction(dialogue: Dialogue) -> None:
    dialogue.say(Parse(b"one", b"rows 0"), Sync())
    dialogue.say(Query(b"begin; missing"))
    assert error(dialogue.say(Query(b"deallocate one"))[0]) == "25P02"
    dialogue.say(Query(b"rollback"))
    assert dialogue.say(Bind(b"", b"one"), Sync()) == [BindComplete(), IDLE]


def test_names_are_limited() -> None:
    dialogue = Dialogue(max_names=2)
    dialogue.say(Parse(b"a", b"rows 0"), Parse(b"b", b"rows 0"), Sync())
    assert error(dialogue.say(Parse(b"c", b"rows 0"), Sync())[0]) == "54001"
    assert dialogue.say(Parse(b"", b"rows 0"), Sync()) == [ParseComplete(), IDLE]
    portals = [Bind(name, b"a") for name in (b"1", b"2", b"3")]
    assert error(dialogue.say(*portals, Sync())[2]) == "54001"


def test_a_changed_setting_cannot_change_the_shape_of_a_prepared_statement(dialogue: Dialogue) -> None:
    dialogue.say(Parse(b"s", b"select 1"), Sync())
    dialogue.say(Query(b"set other = on"))
    assert dialogue.say(Bind(b"", b"s"), Execute(b""), Sync())[2] == row(b"1")
    dialogue.say(Query(b"set wide = on"))
    dialogue.session.executed.clear()
    assert error(dialogue.say(Bind(b"", b"s"), Execute(b""), Sync())[1]) == "0A000"
    assert dialogue.session.executed == [], "refused before it could be charged"


def test_a_result_of_another_shape_than_described_is_not_sent(dialogue: Dialogue) -> None:
    dialogue.say(Parse(b"s", b"select 1"), Sync())
    dialogue.session.wide = True
    replies = dialogue.say(Bind(b"", b"s"), Execute(b""), Sync())
    assert error(replies[-2]) == "0A000"
    assert "DataRow" not in names(replies)


@pytest.mark.parametrize("sql", [b"broken", b"badvalue"])
def test_a_bug_is_one_fixed_sentence_and_its_text_is_not_logged(
    dialogue: Dialogue, sql: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    dialogue.say(Query(b"begin"))
    report = dialogue.say(Query(sql))[-2]
    assert report == ErrorResponse("ERROR", "XX000", BUG_SENTENCE, "The gateway's log has the cause.")
    assert dialogue.session.transaction == "E"
    assert "Error at" in caplog.text and "session.py:" in caplog.text
    assert "secret" not in caplog.text


def test_a_backend_failure_is_told_as_it_is(dialogue: Dialogue) -> None:
    class Failing(ScriptedSession):
        def execute(self, statement: Statement, parameters: object = (), types: object = ()) -> Result:
            raise BackendFailure

    replies = Dialogue(Failing()).say(Query(b"select 1"))
    assert replies == [ErrorResponse("ERROR", "58000", BackendFailure.SENTENCE), IDLE]


def test_a_client_that_is_gone_is_told_nothing(dialogue: Dialogue) -> None:
    dialogue.gone = True
    with pytest.raises(Disconnected):
        dialogue.say(Query(b"select 1"))


def test_a_reply_that_breaks_the_protocol_ends_the_session(dialogue: Dialogue) -> None:
    wire = WireSession(ServerProtocol(), dialogue.session, dialogue)
    with pytest.raises(IllegalReply):
        asyncio.run(wire.handle(Query(b"select 1")))


def test_large_results_are_sent_in_pieces(dialogue: Dialogue) -> None:
    replies = dialogue.say(Query(b"rows 20000"))
    assert len(replies) == 20_003
    assert len(dialogue.written) > 3
    assert max(map(len, dialogue.written)) < 100_000


def test_rows_that_grow_are_sent_in_pieces(dialogue: Dialogue) -> None:
    """Other clients wait for each piece."""
    assert len(dialogue.say(Query(b"growing"))) == 9_003
    assert max(map(len, dialogue.written)) < 1_200_000


def test_arrays_are_sent_in_pieces_by_their_elements(dialogue: Dialogue) -> None:
    """Elements take long to write, however short they are."""
    replies = dialogue.say(Query(b"arrays"))
    assert replies[1] == DataRow((b"{" + b",".join([b'""', b'""', b"NULL"] * 5_000) + b"}",))
    assert len(replies) == 103
    assert max(map(len, dialogue.written)) < 500_000


@pytest.mark.parametrize("sql", [b"select 1", b"missing", b"broken"])
def test_replies_are_padded_to_the_quantum(dialogue: Dialogue, sql: bytes) -> None:
    dialogue.session.quantum = 60
    for messages in ((Query(sql),), run(sql)):
        begun = time.monotonic()
        dialogue.say(*messages)
        refused_at_parse = messages[0] != Query(sql) and sql == b"missing"
        assert time.monotonic() - begun >= 0.06 or refused_at_parse


def test_who_is_gone_is_not_waited_for(dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that stops ends what runs at once, however long replies are held back."""
    dialogue.session.quantum = 60_000

    async def called_off(_function: Callable[[], T]) -> T:
        raise asyncio.CancelledError

    monkeypatch.setattr(dialogue, "call", called_off)
    parsed = dialogue.session.parse("select 1")[0]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(dialogue._wire._run(parsed, ()), HANG_SECONDS))
