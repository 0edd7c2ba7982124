"""SQLite connections on which a chosen statement fails, before it ran or after."""

import sqlite3
from functools import partial
from typing import Any

import pytest


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

        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
        self._left = 0
        self._after = False
        self._error: BaseException | None = None
        self.failed: str | None = None

    def arm(self, number: int, error: BaseException, *, after: bool) -> None:
        """Let the n-th statement from now on fail by an error: instead of running it, or after it."""
        self._left, self._error, self._after = number, error, after
        self.failed = None

    def disarm(self) -> None:
        self._error = None

    def _meet(self, sql: str, run: Any) -> Any:
        self._left -= 1
        error = self._error if self._left == 0 else None
        result = run() if error is None or self._after else None
        if error is not None:
            self.failed = sql
            raise error
        return result
