"""Waiting for what another thread, process or server does.

A test waits for a state, never for a time. `HANG_SECONDS` only ends a test that would hang: on a machine however busy
nothing else takes so long.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

HANG_SECONDS: Final = 300


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once a condition holds."""
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        threading.Event().wait(0.01)
