"""An answer from memory is the answer that asking again gives; where memory is not enough, there is none."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from dpsql.errors import Error
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder
from dpsql.ledger.ledger import Ledger
from dpsql.wire.databases import Databases
from dpsql.wire.gateway_sessions import Gateway
from dpsql.wire.messages.frontend import Bind, Describe, Execute, FrontendMessage, Parse, Query, Sync
from dpsql.wire.metrics import Metrics
from dpsql.wire.protocol import ServerProtocol, State
from dpsql.wire.rate_limit import RateLimit
from dpsql.wire.session import WireSession
from tests.conftest import Lend, MakeEngine

T = TypeVar("T")

BY_SEX = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"


@pytest.fixture
def engine(make_engine: MakeEngine, clinic_policy: Path, lend: Lend) -> Engine:
    return make_engine(clinic_policy, backend=lend(clinic_policy))


@pytest.fixture
def session(engine: Engine) -> Session:
    return Session(engine, "ana")


def run(session: Session, sql: str, *values: object) -> Result:
    (statement,) = session.parse(sql)
    return session.execute(statement, values)


def recalled(session: Session, sql: str = BY_SEX, *values: object) -> Result | None:
    (statement,) = session.parse(sql)
    return session.recall(statement, values)


def shown(result: Result | None) -> tuple[object, ...]:
    assert result is not None
    return result.tag, result.columns, result.rows, result.notices, result.parameters


def test_it_is_the_answer_that_asking_again_gives(session: Session) -> None:
    assert recalled(session) is None
    run(session, BY_SEX)
    assert recalled(session) is None  # that it is free is known from the second time on
    again = run(session, BY_SEX)
    assert shown(recalled(session)) == shown(again)
    assert "free, your earlier release" in again.notices[0].message
    assert shown(recalled(session)) == shown(run(session, BY_SEX))
    assert run(session, "SELECT reused FROM dpsql.releases").rows == ((4,),)


def test_what_the_process_itself_writes_meanwhile_is_known(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        run(session, BY_SEX)
    assert isinstance(engine.ledger, Ledger)
    storage = engine.ledger._storage
    look = storage.head

    def late() -> tuple[int, str] | None:
        head = look()
        monkeypatch.undo()
        run(session, "SELECT COUNT(*) FROM patients")
        return head

    monkeypatch.setattr(storage, "head", late)
    assert recalled(session) is not None


def test_its_notice_tells_of_the_budget_as_it_is(session: Session) -> None:
    for _ in range(2):
        run(session, BY_SEX)
    before = recalled(session)
    run(session, "SELECT COUNT(*) FROM patients")
    after = recalled(session)
    assert before is not None and after is not None
    assert before.rows == after.rows
    assert before.notices != after.notices
    assert after.notices == run(session, BY_SEX).notices


@pytest.mark.parametrize(
    "change",
    [
        "SET dpsql.reuse = off",
        "SET dpsql.epsilon = 0.2",
        "SET dpsql.mechanism = 'laplace'",
        "SET dpsql.intervals = on",
        "SET dpsql.max_groups = 1",
        "SET dpsql.target_error = '5 %'",
        "BEGIN; SELECT nothing",
    ],
)
def test_other_settings_are_another_question(session: Session, change: str) -> None:
    for _ in range(2):
        run(session, BY_SEX)
    for statement in session.parse(change):
        try:
            session.execute(statement)
        except Error:
            assert session.transaction == "E"
    assert recalled(session) is None


def test_notices_are_switched_off(session: Session) -> None:
    for _ in range(2):
        run(session, BY_SEX)
    assert recalled(session) is not None
    run(session, "SET dpsql.notices = off")
    result = recalled(session)
    assert result is not None
    assert result.notices == ()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT now(), COUNT(*) FROM patients",
        "SELECT * FROM dpsql.budget",
        "SELECT relname FROM pg_catalog.pg_class",
        "SHOW dpsql.epsilon",
        "SELECT code, (SELECT COUNT(*) FROM patients) FROM icd10",
    ],
)
def test_what_is_not_of_stored_releases_alone_is_asked_anew(session: Session, sql: str) -> None:
    for _ in range(2):
        with suppress(Error):
            run(session, sql)
    assert recalled(session, sql) is None


def test_other_constants_are_another_question(session: Session) -> None:
    sql = "SELECT COUNT(*) FROM patients WHERE age > $1"
    for _ in range(2):
        run(session, sql, 40)
    assert recalled(session, sql, 40) is not None
    assert recalled(session, sql, 41) is None


def test_users_have_nothing_of_each_other(engine: Engine, session: Session) -> None:
    for _ in range(2):
        run(session, BY_SEX)
    engine.ledger.add_account("eve", "analyst")
    other = Session(engine, "eve")
    assert recalled(other) is None
    paid = run(other, BY_SEX)
    assert recalled(other) is None
    assert "free" not in paid.notices[0].message
    run(other, BY_SEX)
    assert recalled(other) is not None


def test_columns_have_the_names_of_who_asks(engine: Engine, session: Session) -> None:
    """The same release under other names: nobody is told what another user calls a column."""
    engine.ledger.add_account("eve", "analyst")
    other = Session(engine, "eve")
    for name in ("mine", "mine", "again"):
        for asking, own in ((session, name), (other, f"other_{name}")):
            result = run(asking, f"SELECT sex AS {own}, COUNT(*) AS {own}_count FROM patients GROUP BY ROLLUP (1)")
            assert result.columns is not None and result.answer is not None
            assert [column.name for column in result.columns] == [own, f"{own}_count"]
            assert f"{own}_count ±" in result.notices[0].message
            assert own in result.answer.query.sql


def test_a_frozen_user_is_refused(engine: Engine, session: Session) -> None:
    for _ in range(2):
        run(session, BY_SEX)
    engine.ledger.freeze(Holder(BudgetScope.USER, "ana"), "why")
    assert recalled(session) is None
    with pytest.raises(Error, match="frozen"):
        run(session, BY_SEX)


# On the wire


class HereClient:
    """A client whose calls are made at once, and counted."""

    def __init__(self) -> None:
        self.calls = 0
        self.sent = b""

    async def write(self, data: bytes) -> None:
        self.sent += data

    async def call(self, function: Callable[[], T]) -> T:
        self.calls += 1
        return function()


class Wire:
    """A session of the gateway, with messages in and bytes out."""

    def __init__(self, gateway: Gateway) -> None:
        self._protocol = ServerProtocol()
        self._protocol.state = State.READY
        self.client = HereClient()
        self.gateway = gateway
        self._session = WireSession(self._protocol, gateway.session("ana", "clinic"), self.client)

    def ask(self, *messages: FrontendMessage) -> bytes:
        async def answer() -> None:
            self._protocol.receive_data(b"".join(message.encode() for message in messages))
            while (message := self._protocol.next_event()) is not None:
                await self._session.handle(message)

        asyncio.run(answer())
        sent, self.client.sent = self.client.sent, b""
        return sent


@pytest.fixture
def wires(make_engine: MakeEngine, clinic_policy: Path) -> Iterator[Callable[..., Wire]]:
    made: list[Databases] = []

    def make(**options: object) -> Wire:
        made.append(Databases({"clinic": make_engine(clinic_policy)}))
        return Wire(replace(Gateway(made[-1]), **options))  # type: ignore[arg-type]

    yield make
    for databases in made:
        databases.close()


ASKED = (Bind(b"", b"s", (), (), ()), Describe(b"P", b""), Execute(b"", 0), Sync())


@pytest.mark.parametrize("messages", [(Query(BY_SEX.encode()),), ASKED, (*ASKED[:-1], *ASKED)])
def test_the_bytes_are_the_same(
    wires: Callable[..., Wire], messages: tuple[FrontendMessage, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dpsql.statement")
    metrics = Metrics()
    wire = wires(metrics=metrics)
    wire.ask(Parse(b"s", BY_SEX.encode(), ()), Sync())
    wire.ask(*messages)
    anew = wire.ask(*messages)
    calls, logged, counted = wire.client.calls, len(caplog.records), metrics.text().count("query")
    assert wire.ask(*messages) == anew
    executed = sum(isinstance(message, Query | Execute) for message in messages)
    assert wire.client.calls - calls == sum(isinstance(message, Query) for message in messages)  # for its text
    assert len(caplog.records) - logged == executed
    assert "query of 'ana' on 'clinic': 00000" in caplog.text
    assert metrics.text().count("query") == counted


def test_a_user_has_no_more_of_them_than_of_others(wires: Callable[..., Wire]) -> None:
    wire = wires(rate_limit=RateLimit(3))
    sent = [wire.ask(Query(BY_SEX.encode())) for _ in range(5)]
    assert [b"too many statements" in each for each in sent] == [False] * 3 + [True] * 2


def test_a_message_of_several_queries_is_planned_together(wires: Callable[..., Wire]) -> None:
    wire = wires()
    message = "; ".join(f"SELECT COUNT(*) FROM patients WHERE sex = '{sex}'" for sex in ("F", "M"))
    assert b"Workload: planned together" in wire.ask(Query(f"EXPLAIN (WORKLOAD) {message}".encode()))
    sent = wire.ask(Query(f"BEGIN; {message}; COMMIT".encode()))
    assert sent.count(b"planned together") == 1
    assert sent.count(b"SELECT 1\0") == 2
    again = wire.ask(Query(message.encode()))
    assert b"planned together" not in again
    assert again.count(b"SELECT 1\0") == 2


def test_what_follows_an_answer_from_memory_is_planned_together(wires: Callable[..., Wire]) -> None:
    wire = wires()
    counts = [f"SELECT COUNT(*) FROM patients WHERE sex = '{sex}'" for sex in ("F", "M", "X")]
    for _ in range(3):
        wire.ask(Query(counts[0].encode()))
    assert b"planned together" in wire.ask(Query("; ".join(counts).encode()))


def test_new_policies_are_asked_anew(wires: Callable[..., Wire], make_engine: MakeEngine, clinic_policy: Path) -> None:
    wire = wires()
    for _ in range(3):
        wire.ask(Query(BY_SEX.encode()))
    calls = wire.client.calls
    wire.gateway.databases.replace({"clinic": make_engine(clinic_policy)})
    wire.ask(Query(BY_SEX.encode()))
    assert wire.client.calls - calls == 2


def test_a_portal_does_not_fetch_from_itself(wires: Callable[..., Wire]) -> None:
    wire = wires()
    for sql in ("BEGIN", f"DECLARE b CURSOR FOR {BY_SEX}"):
        wire.ask(Query(sql.encode()))
    wire.ask(Parse(b"s", b"FETCH 1 FROM b", ()), Sync())
    wire.ask(Query(b"CLOSE b"))
    assert b"a portal cannot fetch from itself" in wire.ask(Bind(b"b", b"s", (), (), ()), Execute(b"b", 0), Sync())


def test_columns_keep_the_names_that_each_query_gives_them(session: Session) -> None:
    named = "SELECT sex AS gender, COUNT(*) AS n FROM patients GROUP BY gender"
    names = {BY_SEX: ("sex", "count"), named: ("gender", "n")}
    # The second time, both have the release and its rows are remembered.
    for sql in (named, BY_SEX, named, BY_SEX):
        assert tuple(column.name for column in run(session, sql).columns or ()) == names[sql]
