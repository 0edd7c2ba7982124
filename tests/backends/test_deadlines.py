"""Deadlines: met in their order, or cancelled; many of them need no more than one thread and no more memory."""

import os
import threading
from collections.abc import Iterator

import pytest

from dpsql.backends import deadlines
from dpsql.backends.deadlines import after
from tests.waiting import HANG_SECONDS


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Other tests have deadlines of their own, all of them far away."""
    deadlines._begin_anew()
    yield
    deadlines._begin_anew()


def test_a_deadline_is_met() -> None:
    met = threading.Event()
    after(0.01, met.set)
    assert met.wait(HANG_SECONDS)


def test_the_earliest_is_met_first_though_it_comes_last() -> None:
    early, late = threading.Event(), threading.Event()
    after(3600, late.set)
    after(0.01, early.set)
    assert early.wait(HANG_SECONDS)
    assert not late.is_set()


def test_one_that_fails_or_takes_long_holds_up_no_other() -> None:
    met, blocked = threading.Event(), threading.Event()
    after(0.01, lambda: blocked.wait(HANG_SECONDS))
    after(0.02, met.set)
    assert met.wait(HANG_SECONDS)
    blocked.set()


class _Scarce(threading.Thread):
    """Threads of which every other one cannot be started."""

    started = 0

    def start(self) -> None:
        _Scarce.started += 1
        if _Scarce.started % 2:
            raise RuntimeError("can't start new thread")
        super().start()


def test_while_there_are_no_threads_it_waits_and_the_watch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", _Scarce)
    with pytest.raises(RuntimeError):
        after(3600, lambda: None)
    for _ in range(2):
        met = threading.Event()
        after(0.01, met.set)
        assert met.wait(HANG_SECONDS)
    assert _Scarce.started == 6


def test_a_cancelled_one_is_not_met() -> None:
    met, later = threading.Event(), threading.Event()
    cancelled = after(2, met.set)
    cancelled.cancel()
    cancelled.cancel()
    with after(2, met.set):
        pass
    after(2, later.set)
    assert later.wait(HANG_SECONDS)
    assert not met.is_set()


def test_those_that_are_cancelled_take_no_room() -> None:
    kept = [after(3600, lambda: None) for _ in range(10)]
    for _ in range(20_000):
        after(3600, lambda: None).cancel()
    assert len(deadlines._watch) < 2 * deadlines._MANY + len(kept)
    for deadline in kept:
        deadline.cancel()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what a later Python says of it is what is tested
def test_a_forked_process_has_its_own() -> None:
    after(3600, lambda: None)
    child = os.fork()
    if child == 0:
        met = threading.Event()
        after(0.01, met.set)
        os._exit(0 if met.wait(HANG_SECONDS) else 1)
    assert os.waitpid(child, 0)[1] == 0
