"""SQLite connections on which a chosen statement fails, before it ran or after."""

import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class Saboteur:
    """Fails the n-th statement from when it is armed, once.

    Attributes:
        failed: The statement that failed; None if none has.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Watch every connection that this process opens from now on."""
        saboteur = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
                return saboteur._meet(sql, partial(super().execute, sql, *arguments))

            def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
                return saboteur._meet(sql, partial(super().executemany, sql, *arguments))

            def commit(self) -> None:
                saboteur._meet("COMMIT", super().commit)

        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
        self._left = 0
        self._counting = threading.Lock()
        self._after = False
        self._error: BaseException | None = None
        self.failed: str | None = None

    def arm(self, number: int, error: BaseException, *, after: bool) -> None:
        """Let the n-th statement from now on fail by an error: instead of running it, or after it."""
        self._left, self._error, self._after = number, error, after
        self.failed = None

    def disarm(self) -> None:
        self._error = None

    def _meet(self, sql: str, run: Callable[[], T]) -> T:
        with self._counting:
            self._left -= 1
            chosen = self._left == 0
        if not chosen or self._error is None:
            return run()
        if self._after:
            done = run()
            if isinstance(done, sqlite3.Cursor):
                done.close()
        self.failed = sql
        raise self._error
