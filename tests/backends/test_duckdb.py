"""DuckDB as the engine: one zone, bounded in rows and in time; typed failures that tell nothing of a row."""

import gc
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from dpsql.backends import Cancellation, DuckDBBackend, duckdb_running
from dpsql.backends import backend as backend_module
from dpsql.backends import duckdb as duckdb_module
from dpsql.backends.duckdb_running import stoppable
from dpsql.compiler.ir.nodes import Values
from dpsql.compiler.plan.query_plan import PublicRead
from dpsql.errors import BackendFailure, DatabaseUnavailable, InvalidPolicy, LimitExceeded, QueryCanceled
from dpsql.policy import load_policy
from tests.backends.test_fetching import CutAfterFirst
from tests.backends.test_postgres import read
from tests.compiler.plans import Planner

POLICY = """
version = 1
[dataset]
name = "people"
url = "duckdb:///people.duckdb"
privacy_unit = "person"
timezone = "{zone}"
budget = {{ epsilon = 1, accountant = "pure" }}
[roles.analyst]
budget = {{ epsilon = 1, accountant = "pure" }}
query = {{ epsilon = 1 }}
[tables.people]
unit_key = "id"
max_rows = 1
"""
ENDLESS = "SELECT CAST(SUM(a.range * b.range) AS VARCHAR) AS v0 FROM range(100000) AS a, range(100000) AS b"


def opened(folder: Path, zone: str = "UTC") -> DuckDBBackend:
    policy = folder / "people.toml"
    policy.write_text(POLICY.format(zone=zone), encoding="utf-8")
    return DuckDBBackend(str(folder / "people.duckdb"), load_policy(policy))


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[DuckDBBackend]:
    with duckdb.connect(str(tmp_path / "people.duckdb")) as database:
        database.execute("CREATE TABLE people AS SELECT i AS id, 'of 4711' AS note FROM range(30) r (i)")
    made = opened(tmp_path)
    yield made
    made.close()


def test_a_cancel_before_the_statement_begins_is_not_lost() -> None:
    cancellation = Cancellation()
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        with stoppable(connection, cancellation, 3600), pytest.raises(duckdb.InterruptException):
            cancellation.cancel()
            connection.execute("SELECT SUM(range % 7) FROM range(3000000000)").fetchall()  # for seconds
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_what_has_run_is_let_go_without_a_collector_of_garbage() -> None:
    with duckdb.connect() as connection:
        cursor = connection.cursor()
        left = weakref.ref(cursor)
        gc.disable()
        try:
            with stoppable(cursor, Cancellation(), 3600):
                cursor.execute("SELECT 1").fetchall()
            del cursor
            assert left() is None
        finally:
            gc.enable()


def test_who_cancels_twice_stops_once() -> None:
    cancellation, stops = Cancellation(), list[str]()
    with cancellation.stopping(lambda: stops.append("stop")):
        cancellation.cancel()
        cancellation.cancel()
    assert stops == ["stop"]


def test_the_engine_takes_what_the_policy_says(backend: DuckDBBackend, tmp_path: Path) -> None:
    asked = "SELECT current_setting('threads')::VARCHAR, current_setting('memory_limit')"
    policy = tmp_path / "people.toml"
    backend.close()
    text = POLICY.format(zone="UTC").replace("timezone =", 'memory = "150 MB"\nthreads = 3\ntimezone =')
    policy.write_text(text, encoding="utf-8")
    limited = DuckDBBackend(str(tmp_path / "people.duckdb"), load_policy(policy))
    try:
        assert limited._database.execute(asked).fetchall() == [("3", "143.0 MiB")]
        with pytest.raises(LimitExceeded, match="take too much memory"):
            read(limited, "SELECT string_agg(repeat('x', 10000) || i, '') AS v0 FROM range(100000) r (i)")
    finally:
        limited.close()


@pytest.mark.parametrize("said", ['memory = "600 MB"\nthreads = 3\n', ""])
def test_each_of_several_processes_takes_its_part(backend: DuckDBBackend, tmp_path: Path, said: str) -> None:
    asked = "SELECT current_setting('threads'), current_setting('memory_limit')"
    policy = tmp_path / "people.toml"
    backend.close()
    policy.write_text(POLICY.format(zone="UTC").replace("timezone =", f"{said}timezone ="), encoding="utf-8")
    loaded = load_policy(policy)
    taken = []
    for processes in (1, 3, 10):
        shared = replace(loaded, dataset=replace(loaded.dataset, processes=processes))
        with closing(DuckDBBackend(str(tmp_path / "people.duckdb"), shared)) as limited:
            ((threads, memory),) = limited._database.execute(asked).fetchall()
            number, unit = memory.split()
            taken.append((threads, float(number) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit]))
    (all_threads, all_memory), (threads, memory), (least, _) = taken
    assert (threads, least) == (max(1, all_threads // 3), 1)
    assert memory == pytest.approx(all_memory / 3, rel=0.05)
    assert shared.fingerprint == loaded.fingerprint, "answers are the same"


def test_public_rows_are_bounded_in_bytes(backend: DuckDBBackend) -> None:
    with pytest.raises(LimitExceeded, match="reads takes more than 256 MiB"):
        read(backend, "SELECT repeat('x', 10000) AS v0 FROM range(100000)")


def test_a_failure_tells_nothing_of_its_row(backend: DuckDBBackend, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BackendFailure) as failed:
        read(backend, "SELECT CAST(CAST(note AS INTEGER) AS VARCHAR) AS v0 FROM people")
    assert caplog.messages == ["engine query failed: ConversionException"]
    assert "4711" not in f"{failed.value!r} {failed.value.detail} {failed.value.hint}"
    assert failed.value.__cause__ is None and failed.value.__suppress_context__


def test_a_database_that_is_closed_is_a_failure_of_every_query(backend: DuckDBBackend) -> None:
    """It is in this process: another query over the same rows may have ended it."""
    reads = tuple(PublicRead(name, Values((), ((),)), f"SELECT '{name}' AS v0", 1) for name in ("q0", "q1"))
    with pytest.raises(BackendFailure):
        backend.fetch({}, reads, CutAfterFirst(backend._database.close))
    with pytest.raises(BackendFailure):
        backend.fetch({}, reads, Cancellation())


def test_a_database_that_fails_says_so_when_it_is_probed(backend: DuckDBBackend) -> None:
    backend.probe()
    backend.close()
    with pytest.raises(DatabaseUnavailable, match="fails: ConnectionException"):
        backend.probe()


def test_too_many_public_rows(backend: DuckDBBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT note AS v0 FROM people"
    monkeypatch.setattr(backend_module, "MAX_PUBLIC_ROWS", 30)
    assert read(backend, sql).count == 30
    monkeypatch.setattr(backend_module, "MAX_PUBLIC_ROWS", 29)
    with pytest.raises(LimitExceeded, match="more than 29 rows"):
        read(backend, sql)


def test_statements_are_limited_in_time(backend: DuckDBBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_module, "STATEMENT_SECONDS", 0.1)
    with pytest.raises(QueryCanceled):
        read(backend, ENDLESS)


def test_each_policy_reads_a_file_in_its_own_zone(backend: DuckDBBackend, tmp_path: Path) -> None:
    """Its settings are locked, and those of one database: policies of one zone share it, others have another."""
    sql = "SELECT current_setting('TimeZone') AS v0 FROM people LIMIT 1"
    with closing(opened(tmp_path, "Europe/Berlin")) as other, closing(opened(tmp_path)) as same:
        assert [read(each, sql).columns[0][0] for each in (backend, other, same)] == ["UTC", "Europe/Berlin", "UTC"]


def test_a_file_that_was_replaced_is_read_beside_the_old_one(backend: DuckDBBackend, tmp_path: Path) -> None:
    people = "SELECT CAST(COUNT(*) AS VARCHAR) AS v0 FROM people"
    with duckdb.connect(str(tmp_path / "new.duckdb")) as database:
        database.execute("CREATE TABLE people AS SELECT i AS id, '' AS note FROM range(12) r (i)")
    (tmp_path / "new.duckdb").replace(tmp_path / "people.duckdb")
    with closing(opened(tmp_path)) as new:
        assert [read(each, people).columns[0][0] for each in (backend, new)] == ["30", "12"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"not a database" * 99, "is not a DuckDB file"),
        (b"", "is not a DuckDB file"),
        (None, "is open in another process"),
    ],
)
def test_what_cannot_be_opened_is_told(
    backend: DuckDBBackend, tmp_path: Path, content: bytes | None, what: str
) -> None:
    file = tmp_path / "people.duckdb"
    backend.close()
    if content is not None:
        file.write_bytes(content)
        with pytest.raises(InvalidPolicy, match=what):
            opened(tmp_path)
        return
    code = f"import duckdb; c = duckdb.connect({str(file)!r}); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"open\n"
        with pytest.raises(InvalidPolicy, match=what) as refused:
            opened(tmp_path)
        assert refused.value.hint == "End that process, or name a copy."
        other.communicate(b"\n")
    opened(tmp_path).close()


def test_a_file_that_is_replaced_while_it_is_opened_is_refused(
    tmp_path: Path, backend: DuckDBBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "people.duckdb", tmp_path / "other.duckdb"
    for copy in (other, tmp_path / "third.duckdb"):
        shutil.copy(file, copy)
    (tmp_path / "third.duckdb").replace(file)  # nobody has it open yet
    lock = duckdb_running.lock

    def replaced(database: duckdb.DuckDBPyConnection, timezone: str, *limits: Mapping[str, str]) -> None:
        lock(database, timezone, *limits)
        if other.exists():
            other.replace(file)

    monkeypatch.setattr(duckdb_module, "lock", replaced)
    with pytest.raises(InvalidPolicy, match="was replaced or written while it was opened"):
        opened(tmp_path)
    opened(tmp_path).close()


def test_a_file_that_is_written_while_it_is_read_is_not_answered_from(
    backend: DuckDBBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.utime(tmp_path / "people.duckdb", (0, 0))
    with pytest.raises(BackendFailure):
        read(backend, "SELECT note AS v0 FROM people")
    assert caplog.messages == ["the database file was written while a query read it"]
    with pytest.raises(DatabaseUnavailable, match="nothing was charged") as refused:
        backend.check((), (), Cancellation())
    assert "data_version" in str(refused.value.hint)


def test_a_query_that_differs_from_another_in_numbers_alone_is_not_tried_again(
    backend: DuckDBBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(duckdb_module, "rehearse", lambda _cursor, sql, _cancellation: tried.append(sql))
    alike = ("CAST('3' AS INTEGER)", "CAST('-41' AS INTEGER)")
    others = ("CAST('3' AS BIGINT)", "CAST(3 AS BIGINT)", "CAST('10.5' AS DOUBLE)", "CAST('-0.25' AS DOUBLE)")
    texts = ("'3'", "'4'", "' CAST(''3'' AS '", "' CAST(''4'' AS '", "CAST('2024-01-01' AS DATE)", "'CAST(3'")
    for value in (*alike, *others, *texts):
        select = f"SELECT CAST(id = {value} AS VARCHAR) AS v0 FROM people"
        backend.check((), (PublicRead("q0", Values((), ()), select, 1),), Cancellation())
    assert [sql.partition(" = ")[2].partition(" AS VARCHAR")[0] for sql in tried] == [
        *(alike[0], others[0], others[2]),
        *texts,
    ]


@pytest.mark.parametrize(
    ("kind", "is_stored"),
    [
        ("TABLE people (id INTEGER, note VARCHAR DEFAULT 'a')", True),
        ("TABLE people (id INTEGER, note DOUBLE GENERATED ALWAYS AS (random()))", False),
        ("VIEW people AS SELECT id FROM rows WHERE random() < 0.5", False),
    ],
)
def test_each_read_finds_the_same_rows_of_a_table_that_computes_nothing(
    kind: str, is_stored: bool, tmp_path: Path
) -> None:
    with duckdb.connect(str(tmp_path / "people.duckdb")) as database:
        database.execute(f"CREATE TABLE rows (id INTEGER); CREATE {kind}")
    with closing(opened(tmp_path)) as made:
        assert made.schema.tables["people"].is_stored is is_stored


def test_cells_of_public_groups_are_whole_numbers_and_their_keys_texts(clinic_policy: Path) -> None:
    (planned,) = Planner(load_policy(clinic_policy)).compile("SELECT sex, COUNT(*) FROM patients GROUP BY sex").releases
    with duckdb.connect() as database:
        rows = "VALUES ('f', 0, 2::BIGINT), (NULL, 0, 9007199254740993), ('', 0, -1)"
        source = f"SELECT col0 AS k0, col1::BIGINT AS units, col2 AS p0 FROM ({rows})"
        (found,) = duckdb_module._pieces(planned, database.execute(source))
        assert [key.tolist() for key in found.keys] == [["f", None, ""]]
        assert [cell.tolist() for cell in (found.units, *found.cells)] == [[0, 0, 0], [2, 2**53 + 1, -1]]
        for cell, reason in (("NULL::BIGINT", "a cell is NULL"), ("2.0", "a cell is not a bigint")):
            cursor = database.execute(f"SELECT k0, units, {cell} AS p0 FROM ({source})")
            with pytest.raises(TypeError, match=reason):
                list(duckdb_module._pieces(planned, cursor))


def test_a_view_may_say_the_name_of_its_database(tmp_path: Path) -> None:
    for name in ("people", "memory"):
        with duckdb.connect(str(tmp_path / f"{name}.duckdb")) as database:
            database.execute("CREATE TABLE rows AS SELECT i AS id, 'a' AS note FROM range(5) r (i)")
            database.execute(f"CREATE VIEW people AS SELECT * FROM {name}.main.rows")
        (tmp_path / f"{name}.toml").write_text(POLICY.format(zone="UTC"), encoding="utf-8")
        with closing(DuckDBBackend(str(tmp_path / f"{name}.duckdb"), load_policy(tmp_path / f"{name}.toml"))) as made:
            assert read(made, "SELECT note AS v0 FROM people").count == 5
