"""That results are bounded in bytes: each of them, those of one user, and all together."""

import gc
import threading
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import psycopg
import pytest
from psycopg.generators import fetch_many
from psycopg.waiting import wait

from dpsql.errors import QueryTooComplex, ResultsTooLarge
from dpsql.gateway.engine import Engine
from dpsql.gateway.results import Result
from dpsql.gateway.session import Session
from dpsql.limits.result_memory import HELD, Held, MemoryShare, size_of
from dpsql.wire.connection import ClientConnection
from tests.conftest import MakeEngine
from tests.waiting import wait_for
from tests.wire.conftest import RunningServer

MEBIBYTE = 1 << 20


class Source:
    """Rows without end, and how many were asked for."""

    def __init__(self) -> None:
        self.fetched = 0

    def fetchmany(self, size: int, /) -> list[tuple[str]]:
        self.fetched += size
        return [("x" * 10_000,)] * size


def test_a_result_ends_where_its_room_ends() -> None:
    held, source = Held(), Source()
    share = MemoryShare("ana", held, most=50 * MEBIBYTE)
    with pytest.raises(QueryTooComplex, match="the result takes more than 50 MiB"):
        for _ in share.fetch(source):
            pass
    assert source.fetched == 6000
    assert 40 * MEBIBYTE < held.bytes <= 50 * MEBIBYTE
    del share
    assert held.bytes == 0


def test_a_user_has_room_for_some_results_and_others_for_theirs() -> None:
    held = Held(of_user=25 * MEBIBYTE, of_all=45 * MEBIBYTE)
    shares = {user: MemoryShare(user, held) for user in ("ana", "bob", "cleo")}
    for user in ("ana", "bob"):
        next(shares[user].fetch(Source()))
        next(shares[user].fetch(Source()))
    with pytest.raises(ResultsTooLarge, match="you hold take more than 25 MiB"):
        next(shares["ana"].fetch(Source()))
    with pytest.raises(ResultsTooLarge, match="all users hold take more than 45 MiB"):
        next(shares["cleo"].fetch(Source()))
    del shares["ana"]
    next(shares["cleo"].fetch(Source()))


def test_what_is_given_back_by_many_threads_is_counted() -> None:
    held = Held()

    def hold() -> None:
        for _ in range(200):
            held.take("ana", 3)
            held.give_back("ana", 3)

    threads = [threading.Thread(target=hold) for _ in repeat(None, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held.bytes == 0


def test_the_bytes_of_rows_are_those_of_their_values() -> None:
    assert size_of([("x" * 1000, None), (1, b"y" * 500)]) > 1500
    assert size_of([]) == 0


WIDE = "SELECT repeat('x', 10000) FROM doctors, generate_series(1, {})"


def query(session: Session, sql: str) -> Result:
    (statement,) = session.parse(sql)
    return session.execute(statement)


def held_by_others() -> int:
    """What results of earlier tests still hold, once nothing is left that nobody refers to."""
    gc.collect()
    return HELD.bytes


@pytest.fixture
def clinic(make_engine: MakeEngine, clinic_policy: Path) -> Engine:
    return make_engine(clinic_policy)


@pytest.fixture
def roomy(clinic: Engine) -> Iterator[Session]:
    with_room = HELD._of_user
    HELD._of_user = 60 * MEBIBYTE
    yield Session(clinic, "ana")
    HELD._of_user = with_room


def test_a_session_is_refused_what_is_too_large_and_holds_its_cursors(roomy: Session) -> None:
    before = held_by_others()
    assert len(query(roomy, WIDE.format(5)).rows) >= 1000
    assert HELD.bytes == before
    with pytest.raises((QueryTooComplex, ResultsTooLarge)):
        query(roomy, WIDE.format(100))
    assert HELD.bytes == before
    query(roomy, f"DECLARE c CURSOR WITH HOLD FOR {WIDE.format(10)}")
    assert HELD.bytes > 15 * MEBIBYTE
    query(roomy, "CLOSE c")
    assert HELD.bytes == before


def test_clients_that_do_not_read_hold_their_users_room_and_nobody_up(roomy: Session, clinic: Engine) -> None:
    before = held_by_others()
    server = RunningServer(open_session=lambda user, database: Session(clinic, user))
    clients = []
    try:
        for _ in range(6):
            client = psycopg.connect(server.dsn, autocommit=True)
            client.pgconn.send_query(WIDE.format(10).encode())
            client.pgconn.flush()
            clients.append(client)
        wait_for(lambda: HELD.bytes > 35 * MEBIBYTE)
        with psycopg.connect(server.dsn, autocommit=True) as other:
            assert other.execute("SELECT COUNT(*) FROM doctors").fetchone()
        states = set()
        for client in clients:
            for result in wait(fetch_many(client.pgconn), client.pgconn.socket):
                states.add(result.error_field(psycopg.pq.DiagnosticField.SQLSTATE))
            assert HELD.bytes <= 60 * MEBIBYTE
        assert states == {None, b"53200"}
    finally:
        for client in clients:
            client.close()
        server.close()
    wait_for(lambda: HELD.bytes == before)


def test_wide_rows_are_written_a_chunk_at_a_time(
    roomy: Session, clinic: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write = ClientConnection.write

    async def note(connection: ClientConnection, data: bytes) -> None:
        written.append(len(data))
        await write(connection, data)

    monkeypatch.setattr(ClientConnection, "write", note)
    server = RunningServer(open_session=lambda user, database: Session(clinic, user))
    try:
        with psycopg.connect(server.dsn, autocommit=True) as client:
            rows = client.execute(WIDE.format(10)).fetchall()
    finally:
        server.close()
    assert all(row == ("x" * 10_000,) for row in rows)
    assert sum(written) > len(rows) * 10_000
    assert max(written) < MEBIBYTE
