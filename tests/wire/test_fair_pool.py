"""Users take turns: what runs, and in what order, whoever came first."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial

import pytest

from dpsql.wire.fair_pool import FairPool
from tests.waiting import HANG_SECONDS

Scenario = Callable[[], Coroutine[None, None, None]]


def run(scenario: Scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))


class Calls:
    """Calls that hold their thread until they are let go, and the order in which they began."""

    def __init__(self, pool: FairPool) -> None:
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[str]] = {}
        self._pool = pool
        self._free: dict[str, threading.Event] = {}

    async def call(self, *names: str) -> None:
        """Begin calls: the letter is the user's."""
        for name in names:
            self._free[name] = threading.Event()
            self.tasks[name] = asyncio.create_task(self._pool.run(name[0], partial(self._hold, name)))
        await self.settle()

    async def free(self, *names: str) -> None:
        for name in names:
            self._free[name].set()
            assert await self.tasks[name] == name
        await self.settle()

    async def free_all(self) -> None:
        for event in self._free.values():
            event.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def settle(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            if len(self.begun) >= self._pool.running + sum(
                task.done() and not task.cancelled() for task in self.tasks.values()
            ):
                return

    def _hold(self, name: str) -> str:
        self.begun.append(name)
        assert self._free[name].wait(HANG_SECONDS)
        return name


def test_many_calls_of_one_user_leave_a_thread_to_the_others() -> None:
    async def scenario() -> None:
        pool = FairPool(4)
        calls = Calls(pool)
        await calls.call(*(f"a{number}" for number in range(50)))
        assert (pool.running, pool.waiting) == (3, 47)
        await calls.call("b0", "c0")
        assert calls.begun == ["a0", "a1", "a2", "b0"]
        await calls.free("a0")
        assert calls.begun[4:] == ["c0"], "who has none comes before who has some"
        await calls.free_all()
        assert (pool.running, pool.waiting) == (0, 0)
        pool.shutdown()

    run(scenario)


def test_users_take_turns() -> None:
    async def scenario() -> None:
        pool = FairPool(1)
        calls = Calls(pool)
        await calls.call("a0", "a1", "a2", "b0", "b1", "c0")
        for name in ("a0", "a1", "b0", "c0", "a2", "b1"):
            assert calls.begun[-1] == name
            await calls.free(name)
        pool.shutdown()

    run(scenario)


def test_who_has_fewest_calls_running_comes_first() -> None:
    async def scenario() -> None:
        pool = FairPool(5)
        calls = Calls(pool)
        await calls.call("c0", "c1", "c2", "a0", "c3", "a1")
        assert calls.begun == ["c0", "c1", "c2", "a0"]
        await calls.free("c0")
        assert calls.begun[4:] == ["a1"], "though c3 has waited longer"
        await calls.free_all()
        pool.shutdown()

    run(scenario)


def test_a_thread_is_not_given_to_a_call_that_was_just_given_up() -> None:
    async def scenario() -> None:
        pool = FairPool(1)
        calls = Calls(pool)
        await calls.call("a0", "b0", "c0")
        calls.tasks["b0"].cancel()  # it stands in line until its task runs on
        pool._leave("a")
        assert pool._running["c"] == 1
        pool._running["a"] += 1
        await calls.free("a0")
        assert calls.begun == ["a0", "c0"]
        await calls.free_all()
        assert (pool.running, pool.waiting) == (0, 0)
        pool.shutdown()

    run(scenario)


def test_one_user_alone_has_all_but_one() -> None:
    async def scenario() -> None:
        pool = FairPool(2)
        calls = Calls(pool)
        await calls.call("a0", "a1")
        assert calls.begun == ["a0"]
        await calls.free("a0")
        assert calls.begun == ["a0", "a1"]
        await calls.free_all()
        pool.shutdown()

    run(scenario)


def test_a_call_that_fails_makes_room() -> None:
    async def scenario() -> None:
        pool = FairPool(1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await pool.run("a", lambda: 1 // 0)
        assert (pool.running, pool.waiting) == (0, 0)
        pool.shutdown()

    run(scenario)


@pytest.mark.parametrize("when", ["waiting", "given a thread"])
def test_a_call_given_up_makes_room(when: str) -> None:
    async def scenario() -> None:
        pool = FairPool(1)
        calls = Calls(pool)
        await calls.call("a0", "b0", "b1")
        if when == "waiting":
            calls.tasks["b0"].cancel()
            await asyncio.sleep(0)
        else:
            pool._leave("a")  # b0's turn has come, and it has not run on since
            calls.tasks["b0"].cancel()
            pool._running["a"] += 1
        await asyncio.gather(calls.tasks["b0"], return_exceptions=True)
        assert calls.tasks["b0"].cancelled()
        assert pool.waiting == 1
        await calls.free("a0")
        assert calls.begun == ["a0", "b1"]
        await calls.free_all()
        assert (pool.running, pool.waiting) == (0, 0)
        pool.shutdown()

    run(scenario)
