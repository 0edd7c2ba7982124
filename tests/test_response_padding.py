"""Replies come at multiples of the quantum, and never before they are made; nor does the end of a read show before."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.backends import DuckDBBackend
from dpsql.errors import BackendFailure, QueryCanceled
from dpsql.gateway import reading
from dpsql.gateway.engine import Engine
from dpsql.gateway.response_padding import held_back, read_held_back, whole_quanta
from dpsql.gateway.session import Session
from tests.conftest import MakeEngine

COUNT = "SELECT COUNT(*) FROM patients"


@given(took=st.floats(0, 1000), quantum=st.integers(1, 60_000))
def test_a_reply_comes_at_a_multiple_of_the_quantum(took: float, quantum: int) -> None:
    wait = held_back(took, quantum)
    multiples = (took + wait) / (quantum / 1000)
    assert 0 < wait <= quantum / 1000
    assert abs(multiples - round(multiples)) < 1e-6 * max(multiples, 1)


@given(took=st.floats(0, 1000))
def test_without_a_quantum_nothing_is_held_back(took: float) -> None:
    assert held_back(took, 0) == 0


def test_what_took_longer_within_a_quantum_comes_no_later() -> None:
    assert {round(took + held_back(took, 100), 9) for took in (0, 0.001, 0.05, 0.0999)} == {0.1}


@given(limit=st.floats(0, 1000), quantum=st.integers(1, 60_000))
def test_a_time_limit_ends_at_a_multiple_of_the_quantum(limit: float, quantum: int) -> None:
    padded = whole_quanta(limit, quantum)
    assert limit - 1e-9 <= padded < limit + quantum / 1000 + 1e-9
    assert abs(padded * 1000 / quantum - round(padded * 1000 / quantum)) < 1e-6
    assert whole_quanta(limit, 0) == limit


# The end of a read


@given(took=st.floats(0, 1000), quantum=st.integers(1, 60_000))
def test_a_read_ends_a_quarter_before_a_multiple_of_the_quantum(took: float, quantum: int) -> None:
    wait = read_held_back(took, quantum)
    multiples = (took + wait) / (quantum / 1000) + 0.25
    assert 0 < wait <= quantum / 1000
    assert abs(multiples - round(multiples)) < 1e-6 * max(multiples, 1)
    assert read_held_back(took, 0) == 0


class Held:
    """Reads that have ended, and whose end does not show as long as nobody lets it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ended = threading.Event()
        self.seconds = 3600.0
        patch.setattr(reading, "read_held_back", self._wait)

    def _wait(self, took: float, quantum: int) -> float:
        assert (took >= 0, quantum) == (True, 100)
        self.ended.set()
        return self.seconds


@pytest.fixture
def padded(make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path) -> Engine:
    text = clinic_policy.read_text(encoding="utf-8").replace('reply_quantum = "0 ms"', 'reply_quantum = "100 ms"')
    path = clinic_policy.with_name(f"{tmp_path.name}.toml")
    path.write_text(text, encoding="utf-8")
    return make_engine(path)


def run(session: Session, sql: str) -> list[tuple[Any, ...]]:
    (statement,) = session.parse(sql)
    return list(session.execute(statement).rows)


def seen(engine: Engine) -> tuple[object, ...]:
    """What another session of the user sees of a query: what it would cost now, and whether something failed."""
    other = Session(engine, "ana")
    (statement,) = other.parse(COUNT)
    budgets = engine.ledger.budgets("ana", engine.policy)
    return other.explain(statement).reused, budgets.failures, run(other, "SELECT * FROM dpsql.releases")


def failing(*_arguments: object, **_named: object) -> None:
    raise BackendFailure


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("stop", [Session.close, Session.cancel])
def test_the_end_of_a_read_does_not_show_before_its_quantum_has(
    padded: Engine, monkeypatch: pytest.MonkeyPatch, stop: Callable[[Session], None], fails: bool
) -> None:
    """Other sessions could look at any moment, or one could leave at any: that would tell the time to a millisecond."""
    held, session = Held(monkeypatch), Session(padded, "ana")
    if fails:
        monkeypatch.setattr(DuckDBBackend, "fetch", failing)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(run, session, COUNT)
        assert held.ended.wait(30)
        before = seen(padded)
        stop(session)
        with pytest.raises(QueryCanceled):
            asked.result(60)
    assert before[:2] == (False, 0)
    assert seen(padded) == before


def test_what_another_user_has_is_held_back_as_what_is_read(padded: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    held.seconds = 0.001
    padded.ledger.add_account("eve", "analyst")
    run(Session(padded, "eve"), COUNT)
    held.ended.clear()
    held.seconds = 3600.0
    session = Session(padded, "ana")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(run, session, COUNT)
        assert held.ended.wait(30)
        session.cancel()
        with pytest.raises(QueryCanceled):
            asked.result(60)
    held.ended.clear()
    assert len(run(session, COUNT)) == 1, "it is paid for, and had again"
    assert not held.ended.is_set()


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_read_shows_after_its_quantum(
    padded: Engine, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    Held(monkeypatch).seconds = 0.001
    session = Session(padded, "ana")
    if not fails:
        assert len(run(session, COUNT)) == 1
        assert seen(padded)[0] is True
        return
    monkeypatch.setattr(DuckDBBackend, "fetch", failing)
    with pytest.raises(BackendFailure):
        run(session, COUNT)
    assert seen(padded)[1] == 1
