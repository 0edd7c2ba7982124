"""background: runs slow checks in a thread; the page shows their last result."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from dpsql.errors import log_bug

T = TypeVar("T")


class Background(Generic[T]):
    """The last result of a function, which runs again in a thread when the result is old.

    Args:
        ask: The function; it may be slow.
        seconds: The maximal age of a result.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, ask: Callable[[], T], seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._running = False
        self._begun: float | None = None
        self._found: T | None = None

    def latest(self) -> T | None:
        """Return the last result, and start a new run if the last one is too old; None before the first result."""
        with self._lock:
            if not self._running and (self._begun is None or self._clock() - self._begun > self._seconds):
                self._running, self._begun = True, self._clock()
                threading.Thread(target=self._run, daemon=True).start()
            return self._found

    def _run(self) -> None:
        try:
            found = self._ask()
            with self._lock:
                self._found = found
        except Exception as error:
            log_bug(error)
        finally:
            with self._lock:
                self._running = False
