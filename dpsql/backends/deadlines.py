"""deadlines: calls a function at a given time unless it is canceled first; one thread serves all deadlines.

A thread per deadline, as in `threading.Timer`, takes longer to start than a small query takes to run.
"""

import os
import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

_MANY: Final = 1000
"""From so many deadlines on, those that were cancelled are taken out when they are the most."""


_MOMENT: Final = 0.05
"""Seconds after which it is tried again to call what no thread was to be had for."""


class Deadline:
    """A moment at which something is called; to be used by `with`, which cancels it at the end."""

    def __init__(self, watch: "_Watch", action: Callable[[], object]) -> None:
        self._watch = watch
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """See to it that nothing is called any more, unless it is being called."""
        self._watch.cancel(self)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self.cancel()


class _Watch:
    """The thread and what it waits for, the earliest first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Deadline]] = []
        self._numbers = count()
        self._cancelled = 0
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, seconds: float, action: Callable[[], object]) -> Deadline:
        deadline = Deadline(self, action)
        entry = time.monotonic() + seconds, next(self._numbers), deadline
        with self._changed:
            heappush(self._waiting, entry)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="dpsql-deadlines", daemon=True)
                thread.start()
                self._thread = thread  # not one that could not be started
            elif self._waiting[0] is entry:
                self._changed.notify()
        return deadline

    def cancel(self, deadline: Deadline) -> None:
        with self._changed:
            if deadline.action is None:
                return
            deadline.action = None
            self._cancelled += 1
            if self._cancelled > max(_MANY, len(self._waiting) // 2):
                self._waiting = [entry for entry in self._waiting if entry[2].action is not None]
                heapify(self._waiting)
                self._cancelled = 0

    def _run(self) -> None:
        while True:
            action = self._next()
            # Deadlines are seldom met, and what is called then may take its time: to reach a server, for one.
            try:
                threading.Thread(target=action, name="dpsql-deadline", daemon=True).start()
            except RuntimeError:  # there are as many threads as there may be: the watch goes on, a moment later
                self.add(_MOMENT, action)

    def _next(self) -> Callable[[], object]:
        """Wait for the next that is due, and return what it calls."""
        with self._changed:
            while True:
                left = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if left is not None and left <= 0:
                    deadline = heappop(self._waiting)[2]
                    if deadline.action is not None:
                        action, deadline.action = deadline.action, None
                        return action
                    self._cancelled -= 1
                else:
                    self._changed.wait(left)


_watch = _Watch()


def after(seconds: float, action: Callable[[], object]) -> Deadline:
    """Call a function after so many seconds, in a thread of its own, unless that is cancelled."""
    return _watch.add(seconds, action)


def _begin_anew() -> None:
    """In a forked process: the thread is not there any more, and the lock may be held for ever."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_begin_anew)
