"""Private groups come in blocks, of which only what is released stays in memory: on each engine."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

from dpsql.backends import ExactCells
from dpsql.backends import backend as backend_module
from dpsql.backends.backend import _whole
from dpsql.compiler.ir.functions import MAX_TEXT
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.errors import BackendFailure, PolicyViolation
from dpsql.gateway import reading
from dpsql.gateway.engine import Engine
from dpsql.gateway.release import ReleasedCells, release
from dpsql.gateway.session import Session
from tests.conftest import open_engine, silent_engine
from tests.postgres import Server, url_of

POLICY = """
version = 1
[dataset]
name = "towns"
url = "{url}"
schema = "{schema}"
privacy_unit = "person"
budget = {{ epsilon = 1000, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 1000, delta = 1e-3 }}
query = {{ epsilon = 1, delta = 1e-13, max_epsilon = 10 }}
[tables.loners]
unit_key = "id"
max_rows = 1
columns = {{ town = {{ type = "text" }}, age = {{ type = "integer", lower = 0, upper = 99 }} }}
[tables.people]
unit_key = "id"
max_rows = 1
columns = {{ town = {{ type = "text" }}, age = {{ type = "integer", lower = 0, upper = 99 }} }}
"""
LONERS = 100_000
TABLES = (
    f"CREATE TABLE loners AS SELECT i::integer AS id, 'town ' || i AS town, (i % 90)::integer AS age "
    f"FROM generate_series(1, {LONERS}) AS g (i)",
    "CREATE TABLE people AS SELECT i::integer AS id, nullif('town ' || (i * 7 % 11), 'town 4') AS town, "
    "(i % 90)::integer AS age FROM generate_series(1, 2200) AS g (i)",
)


@pytest.fixture(scope="module", params=["duckdb", "postgres"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("towns")
    path = folder / "towns.toml"
    if request.param == "duckdb":
        with duckdb.connect(str(folder / "towns.duckdb")) as connection:
            connection.execute("; ".join(TABLES))
        path.write_text(POLICY.format(url=f"duckdb:///{folder}/towns.duckdb", schema="main"), encoding="utf-8")
        yield path
        return
    server: Server = request.getfixturevalue("postgres_server")
    with server.database(*TABLES) as name:
        path.write_text(POLICY.format(url=url_of(server.url, dbname=name), schema="public"), encoding="utf-8")
        yield path


@pytest.fixture
def engine(policy: Path, tmp_path: Path) -> Iterator[Engine]:
    opened = open_engine(policy, tmp_path / "ledger.sqlite")
    yield opened
    opened.close()
    opened.ledger.close()


@pytest.mark.parametrize("cell", ["COUNT(*)", "SUM(age)"])
def test_groups_that_are_not_shown_take_no_more_memory_than_blocks(
    engine: Engine, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group has one person: one of them is shown with a probability of 1e-8 at the most."""
    monkeypatch.setattr(backend_module, "BLOCK_BYTES", 2_000_000)
    session = Session(engine, "ana")
    (statement,) = session.parse(f"SELECT town, {cell} FROM loners GROUP BY town")
    session.describe(statement)
    tracemalloc.start()
    try:
        result = session.execute(statement)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not list(result.rows)
    assert peak < 2 * 2_000_000


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT town, COUNT(*) FROM people GROUP BY town",
        "SELECT town, SUM(age) FROM people GROUP BY town",
        "SELECT town, MEDIAN(age), COUNT(*) FROM people GROUP BY town",
    ],
)
@pytest.mark.parametrize("groups", [1, 4])
def test_an_answer_does_not_depend_on_where_blocks_end(
    policy: Path, tmp_path: Path, sql: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(ledger: str) -> list[object]:
        (tmp_path / ledger).mkdir()
        with silent_engine(policy, tmp_path / ledger) as engine:
            session = Session(engine, "ana")
            (statement,) = session.parse(sql)
            return list(session.execute(statement).rows)

    whole = answer("whole")
    assert len(whole) == 11
    monkeypatch.setattr(backend_module, "BLOCK_BYTES", groups * 4 * MAX_TEXT)
    monkeypatch.setattr(backend_module, "_VALUE_BYTES", 4 * MAX_TEXT)  # so that few groups fill a block
    sizes: list[int] = []

    def released(planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
        sizes.append(len(exact.units))
        return release(planned, exact)

    monkeypatch.setattr(reading, "release", released)
    assert answer("blocks") == whole
    assert sum(sizes) == 11
    assert len(sizes) > 2


def test_a_failure_at_a_later_block_is_a_failure_of_the_whole_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the blocks before it is kept, the failure counts, and the engine can be asked again."""
    sizes: list[int] = []

    def broken(planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
        sizes.append(len(exact.units))
        if len(sizes) == 2:
            raise ValueError("town 4711")
        return release(planned, exact)

    session = Session(engine, "ana")
    (failing,) = session.parse("SELECT town, COUNT(*) FROM loners GROUP BY town")
    with monkeypatch.context() as patch:
        patch.setattr(backend_module, "BLOCK_BYTES", 2_000_000)
        patch.setattr(reading, "release", broken)
        with pytest.raises(BackendFailure, match="its charge is kept") as caught:
            session.execute(failing)
    assert "4711" not in str(caught.value)
    assert len(sizes) == 2
    with pytest.raises(PolicyViolation, match="failed before"):
        session.execute(failing)
    other = Session(engine, "ben")
    (fine,) = other.parse("SELECT town, COUNT(*) FROM people GROUP BY town")
    assert list(other.execute(fine).rows)


def piece(key: str, place: int) -> ExactCells:
    """A row that holds a piece of a group's list."""
    keys, cells = (np.array([key], dtype=object),), (np.array([f"{place}:2"], dtype=object), np.array([place]))
    return ExactCells(keys, np.array([3]), cells)


def test_pieces_of_one_group_are_put_together() -> None:
    first, second = _whole([piece("a", 0), piece("a", 1), piece("b", 0)])
    assert [(group.keys[0][0], group.cells[0][0]) for group in (first, second)] == [("a", "0:2,1:2"), ("b", "0:2")]


@pytest.mark.parametrize("pieces", [[("a", 0), ("b", 1)], [("a", 0), ("a", 2)], [("a", 1)]])
def test_pieces_out_of_order_are_refused(pieces: list[tuple[str, int]]) -> None:
    """Values of one group would be counted in another."""
    with pytest.raises(TypeError, match="out of order"):
        list(_whole(piece(*each) for each in pieces))
