"""That results are bounded in bytes: each of them, those of one user, and all together."""

import errno
import gc
import os
import resource
import threading
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import partial
from itertools import repeat
from pathlib import Path
from sys import getsizeof
from typing import NoReturn

import psycopg
import pytest
from psycopg.generators import fetch_many
from psycopg.waiting import wait

from dpsql.errors import LimitExceeded, ResultsTooLarge
from dpsql.gateway.confidence_intervals import ColumnMargin, column_margins
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.release import ReleasedRows
from dpsql.gateway.session import Session
from dpsql.limits import result_memory
from dpsql.limits.result_memory import (
    BATCH_BYTES,
    HELD,
    IN_MEMORY,
    READ,
    Held,
    KeptRows,
    MemoryShare,
    RowBlock,
    RowStore,
    batches,
    block_of,
)
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
    store = RowStore(MemoryShare("ana", held, most=50 * MEBIBYTE))
    with pytest.raises(LimitExceeded, match="the result takes more than 50 MiB"):
        for batch in batches(partial(RowBlock.fetched, source)):
            store.add(batch)
    assert 45 * MEBIBYTE < held.bytes <= 50 * MEBIBYTE
    assert source.fetched * 10_000 < held.bytes + 2 * BATCH_BYTES
    del store
    assert held.bytes == 0


def test_who_keeps_an_error_keeps_no_rows(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error holds the frames in which the rows are; without a collector of garbage, so may a cycle."""
    session = Session(make_engine(clinic_policy), "ana")
    for sql in (
        "SELECT d.city FROM doctors d, doctors e, doctors f, doctors g",
        "SELECT repeat('x', 10000) FROM generate_series(1, 30000)",
        "SELECT repeat('x', 10000), (SELECT COUNT(*) FROM patients) FROM doctors, generate_series(1, 3000)",
    ):
        gc.collect()
        before = HELD.bytes, IN_MEMORY.bytes, READ.bytes
        (statement,) = session.parse(sql)
        with pytest.raises(LimitExceeded) as kept:
            session.execute(statement)
        assert (HELD.bytes, IN_MEMORY.bytes, READ.bytes) == before
        assert kept.traceback
    held = Held()
    monkeypatch.setattr(result_memory, "RESULT_MEMORY", MEBIBYTE)
    with pytest.raises(KeyError), RowStore(MemoryShare("ana", held)) as store:
        for _ in range(4):
            store.add(RowBlock.of(rows_of(400)))
        assert store._file is not None and held.bytes and len(store.block(0)[1].columns) == 5
        raise KeyError
    assert (
        store._file is not None
        and store._file.closed
        and not held.bytes
        and not store._blocks
        and not store._read[1].count
    )


def test_a_user_has_room_for_some_results_and_others_for_theirs() -> None:
    held = Held(of_user=25 * MEBIBYTE, of_all=45 * MEBIBYTE)
    shares = {user: MemoryShare(user, held) for user in ("ana", "bob", "cleo")}
    for user in ("ana", "bob"):
        shares[user].take(20 * MEBIBYTE)
    with pytest.raises(ResultsTooLarge, match="you hold take more than 25 MiB"):
        shares["ana"].take(10 * MEBIBYTE)
    with pytest.raises(ResultsTooLarge, match="all users hold take more than 45 MiB"):
        shares["cleo"].take(10 * MEBIBYTE)
    del shares["ana"]
    shares["cleo"].take(10 * MEBIBYTE)


def test_several_processes_have_parts_of_the_room() -> None:
    held = Held(of_user=4 * MEBIBYTE, of_all=6 * MEBIBYTE)
    held.divide(2)
    held.take("ana", 2 * MEBIBYTE)
    with pytest.raises(ResultsTooLarge, match="the results that you hold take more than 2 MiB"):
        held.take("ana", 1)
    held.take("ben", MEBIBYTE)
    with pytest.raises(ResultsTooLarge, match="all users hold take more than 3 MiB"):
        held.take("cyd", 1)


def test_batches_are_small_in_bytes_whatever_a_row_takes() -> None:
    class Wide(Source):
        def fetchmany(self, size: int, /) -> list[tuple[str]]:
            return [("x" * 100_000,)] * size

    for source in (Source(), Wide()):
        some = batches(partial(RowBlock.fetched, source))
        assert all(next(some).size <= max(BATCH_BYTES, 100 * 101_000) for _ in range(20))
        assert next(some).size > BATCH_BYTES // 2


def rows_of(count: int) -> list[tuple[object, ...]]:
    return [(n, Decimal(n) / 8, date(2026, 1, 1), None, "x" * 1000) for n in range(count)]


@pytest.mark.parametrize("memory", [0, 100_000, MEBIBYTE])
def test_rows_are_the_same_in_memory_and_in_a_file(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    monkeypatch.setattr(result_memory, "RESULT_MEMORY", memory)
    wanted = rows_of(500)
    store = RowStore(MemoryShare("ana", Held()))
    for start in range(0, 500, 60):
        store.add(RowBlock.of(wanted[start : start + 60]))
    rows = store.rows()
    assert isinstance(rows, tuple) == (memory == MEBIBYTE)
    assert (len(rows), list(rows), rows[-1], rows[77]) == (500, wanted, wanted[-1], wanted[77])
    for part in (slice(50, 130), slice(499, None), slice(130, 50, -1), slice(None, None, 7), slice(600, 700)):
        assert list(rows[part]) == wanted[part]
    assert list(rows[100:200][10:20][::-1]) == wanted[110:120][::-1]
    with pytest.raises(IndexError):
        rows[500]


@pytest.mark.parametrize("memory", [0, 60_000, MEBIBYTE])
def test_blocks_of_rows_are_the_same_rows(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    monkeypatch.setattr(result_memory, "RESULT_MEMORY", memory)
    wanted = [(n, -n / 2) for n in range(1_500)]
    store = RowStore(MemoryShare("ana", Held()))
    for start in range(0, 1_500, 400):
        store.add(RowBlock.of(wanted[start : start + 400]))
    rows = store.rows()
    assert isinstance(rows, KeptRows)
    for part in (slice(None), slice(399, 802), slice(1_499, 398, -1), slice(None, None, -7), slice(5, None, 13)):
        found: list[tuple[object, ...]] = []
        while len(found) < len(wanted[part]):
            block = block_of(rows[part], len(found), len(found) + 300)
            assert 1 <= block.count <= 300
            found += block.rows()
        assert found == wanted[part]
    assert list(block_of(wanted, 3, 5).rows()) == wanted[3:5]


def test_columns_of_rows_in_a_file_are_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_memory, "RESULT_MEMORY", 0)
    wanted = rows_of(500)
    store = RowStore(MemoryShare("ana", Held()))
    for start in range(0, 500, 60):
        store.add(RowBlock.of(wanted[start : start + 60]))
    some = ReleasedRows(store.rows()).only((4, 0, 2))
    assert isinstance(some.rows, KeptRows)
    assert list(some.rows) == [(row[4], row[0], row[2]) for row in wanted]
    assert list(some.only((1,)).rows[490::-7]) == [(row[0],) for row in wanted[490::-7]]
    assert ReleasedRows(tuple(wanted)).only((0,)).rows == tuple((row[0],) for row in wanted)


def test_the_error_of_rows_in_a_file_is_told_without_holding_them(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200,000 rows of 1,000 bytes, 1,000 in each read: what is held at once is below a twentieth of them."""
    monkeypatch.setattr(result_memory, "RESULT_MEMORY", 0)
    session = Session(make_engine(clinic_policy), "ana")
    for line in ("SET dpsql.intervals = on", "SELECT COUNT(*) AS n, 'x' AS t FROM patients"):
        (statement,) = session.parse(line)
        answer = session.execute(statement).answer
    assert answer is not None and answer.limited == (0,)
    store = RowStore(MemoryShare("ana", Held()))
    for start in range(0, 200_000, 1_000):
        store.add(RowBlock.of([(n, n - 5.0, n + 9.0, f"{n:0900}") for n in range(start, start + 1_000)]))
    large = replace(answer, rows=ReleasedRows(store.rows()))
    tracemalloc.start()
    try:
        given = large.without_limits()
        (margin,) = column_margins(given)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(given.rows.rows) == 200_000 and given.rows.rows[1][0] == 1
    assert margin == ColumnMargin("n", 9.0, 9.0, 200_000, 90)
    assert peak < 10 * MEBIBYTE


def test_what_results_take_in_memory_is_bounded_and_ends_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = IN_MEMORY.bytes
    monkeypatch.setattr(IN_MEMORY, "_of_all", before + 2 * MEBIBYTE)
    stores = []
    for user in ("ana", "bob"):
        store = RowStore(MemoryShare(user, Held()))
        for _ in range(10):
            store.add(RowBlock.of(rows_of(400)))
        stores.append(store)
        assert before < IN_MEMORY.bytes <= before + 2 * MEBIBYTE
    assert all(list(store.rows()) == rows_of(400) * 10 for store in stores)
    stores.clear()
    del store
    assert IN_MEMORY.bytes == before


def test_a_disk_without_room_is_told_without_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(result_memory, "RESULT_MEMORY", 0)

    def full(**_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    held = Held()
    with pytest.raises(ResultsTooLarge, match="no room on the gateway's disk for the result"):
        RowStore(MemoryShare("ana", held)).add(RowBlock.of(rows_of(10)))
    assert held.bytes == 0
    assert "No space left on device" in caplog.text


def test_a_file_that_takes_a_part_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills in the midst of a write says so at the next one; the rows behind would start elsewhere."""
    monkeypatch.setattr(result_memory, "RESULT_MEMORY", 0)
    store, most = RowStore(MemoryShare("ana", Held())), resource.getrlimit(resource.RLIMIT_FSIZE)
    store.add(RowBlock.of(rows_of(100)))
    one = store._end
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (one + 1_000, most[1]))
        with pytest.raises(ResultsTooLarge, match="no room on the gateway's disk"):
            store.add(RowBlock.of(rows_of(400)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    store.add(RowBlock.of(rows_of(100)))
    assert store._file is not None and store._end == 2 * one
    assert list(store.rows()) == rows_of(100) * 2


def test_other_bytes_than_were_written_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be a text of a row, which would be run."""
    monkeypatch.setattr(result_memory, "RESULT_MEMORY", 0)
    store = RowStore(MemoryShare("ana", Held()))
    store.add(RowBlock.of(rows_of(10)))
    assert store._file is not None
    os.pwrite(store._file.fileno(), b"cos\ngetpid\n(tR.", 0)
    with pytest.raises(ResultsTooLarge, match="no room on the gateway's disk"):
        store.block(0)


def test_public_rows_are_counted_for_who_asks(clinic: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that makes others of its public rows holds them; bob's are not counted for ana."""
    sorted_with_noise = f"SELECT * FROM ({WIDE.format(20)}) t(x) UNION ALL SELECT COUNT(*)::text FROM patients"
    gc.collect()
    READ.take("bob", 5 * MEBIBYTE)
    monkeypatch.setattr(READ, "_of_user", 5 * MEBIBYTE)
    with pytest.raises(ResultsTooLarge, match="your queries read take more than 5 MiB"):
        query(Session(clinic, "ana"), sorted_with_noise)
    READ.give_back("bob", 5 * MEBIBYTE)
    monkeypatch.setattr(READ, "_of_user", 500 * MEBIBYTE)
    assert len(query(Session(clinic, "ana"), sorted_with_noise).rows) > 1000
    assert READ.bytes == 0


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
    assert 1500 < RowBlock.of([("x" * 1000, None), (1, b"y" * 500)]).size < 2000
    assert RowBlock.of([]).size == RowBlock.of([(), ()]).size == 0


def test_numbers_are_kept_in_arrays_that_can_hold_them() -> None:
    values = [(1, 2.5, True, 1, 2**70, None, 3), (-(2**63), float("inf"), False, 2.0, 5, 6, False)]
    block = RowBlock.of(values)
    assert [isinstance(column, array) for column in block.columns] == [True, True, *[False] * 5]
    assert [list(map(type, row)) for row in block.rows()] == [list(map(type, row)) for row in values]
    assert list(block.rows()) == values
    assert RowBlock.of([(number, number / 2) for number in range(1000)]).size == 16_000


@pytest.mark.parametrize(
    ("count", "make", "is_tuple"),
    [
        (1_000, lambda n: (n + 10**6,), True),
        (1_000, lambda n: (n + 0.5, n + 10**6, None, date(2026, 1, 1 + n % 28), f"{n:010}"), True),
        (50, lambda n: tuple(n + column / 8 for column in range(1600)), True),
        (1_000, lambda n: tuple(n + column / 8 for column in range(1600)), False),
    ],
)
def test_rows_that_are_tuples_are_counted_as_tuples(
    count: int, make: Callable[[int], tuple[object, ...]], is_tuple: bool
) -> None:
    """What they take is at most 1.2 times what is counted."""
    tracemalloc.start()
    try:
        with RowStore(MemoryShare("ana", Held())) as store:
            for start in range(0, count, 100):
                store.add(RowBlock.of([make(n) for n in range(start, min(count, start + 100))]))
        rows, shares = store.rows(), store.shares
        del store
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(rows, tuple) == is_tuple
    assert taken < 1.2 * shares[1]._size + 10_000


def test_the_bytes_of_texts_are_those_that_python_takes() -> None:
    for texts in (["", "ab", "x" * 100], ["ä" * 100, "ab"], ["€" * 100]):
        assert RowBlock.of([(text,) for text in texts]).size == sum(8 + getsizeof(text) for text in texts)


def test_the_bytes_of_an_array_are_also_those_of_its_elements() -> None:
    """Python has one object for each letter, and another for each longer text."""
    texts = [str(number) for number in range(1000, 2000)]
    assert 55_000 < RowBlock.of([(texts,)]).size < 70_000
    assert 55_000 < RowBlock.of([([[texts], None],)]).size < 70_000
    assert 8_000 < RowBlock.of([(["a", None] * 500,)]).size < 9_000
    assert 48_000 < RowBlock.of([(list(range(1000)),)]).size < 50_000


def test_batches_of_arrays_are_small_once_they_are_read(roomy: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    add = RowStore.add

    def note(store: RowStore, block: RowBlock) -> None:
        sizes.append(block.size)
        add(store, block)

    monkeypatch.setattr(RowStore, "add", note)
    (row, *_) = query(roomy, "SELECT STRING_TO_ARRAY(REPEAT('ab,', 999), ',') FROM generate_series(1, 400)").rows
    assert row == (["ab"] * 999 + [""],)
    assert sum(sizes) > 400 * 999 * 58
    assert max(sizes) < 2 * BATCH_BYTES


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
    with pytest.raises((LimitExceeded, ResultsTooLarge)):
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
