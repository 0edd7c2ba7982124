"""fair_pool: runs blocking calls in a bounded pool of threads, fairly among users.

Rule 1: the next call is that of the user with the fewest running calls; users with equally many take turns.
Rule 2: the last free thread is reserved for users without a running call, so one user cannot block the others.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class FairPool:
    """Threads that users share; to be used from one event loop.

    Args:
        workers: How many threads there are.
    """

    def __init__(self, workers: int) -> None:
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="dpsql-statement")
        self._workers = workers
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self.ended = 0
        """Calls that have given their thread back."""

    @property
    def running(self) -> int:
        """Calls that have a thread."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """Calls that wait for one."""
        return sum(map(len, self._waiting.values()))

    async def run(self, user: str, function: Callable[[], T]) -> T:
        """Return what a function of a user returns, called in a thread when it is the user's turn."""
        if user in self._waiting or not self._may_start(user):
            await self._turn(user)
        else:
            self._running[user] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function)
        finally:
            self._leave(user)

    def shutdown(self) -> None:
        """Start no further calls; running calls continue."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _may_start(self, user: str) -> bool:
        free = self._workers - self.running
        return free > 1 or (free == 1 and self._running[user] == 0)

    async def _turn(self, user: str) -> None:
        """Wait until the user's call is given a thread."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(user, turn)
            else:
                self._leave(user)
            raise

    def _leave(self, user: str) -> None:
        self.ended += 1
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        self._start_waiting()

    def _start_waiting(self) -> None:
        while ready := [user for user in self._waiting if self._may_start(user)]:
            user = min(ready, key=self._running.__getitem__)
            turn = self._waiting[user][0]
            self._forget(user, turn)
            if not turn.cancelled():
                self._running[user] += 1
                turn.set_result(None)

    def _forget(self, user: str, turn: "asyncio.Future[None]") -> None:
        """Take a call out of its queue; the user, if there are more, goes to the end of the line."""
        queue = self._waiting.get(user)
        if queue is None or turn not in queue:
            return
        queue.remove(turn)
        del self._waiting[user]
        if queue:
            self._waiting[user] = queue
