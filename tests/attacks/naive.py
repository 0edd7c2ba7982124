"""The gateway that one writes in an afternoon: aggregates only, small groups hidden, noise on numbers, a counter."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import numpy as np

Rows = Sequence[tuple[object, ...]]
Ask = Callable[[str], Rows]


class Refused(Exception):
    """Whatever a client is told where there is no answer."""


class NaiveGateway:
    """DuckDB behind a regular expression, with Laplace noise of numpy."""

    def __init__(self, database: Path, *, scale: int = 0, smallest: int = 0, queries: int = sys.maxsize) -> None:
        self.database = duckdb.connect(str(database), read_only=True)
        self.scale, self.smallest, self.queries = scale, smallest, queries
        self.running: duckdb.DuckDBPyConnection | None = None
        self.random = np.random.default_rng()

    def ask(self, sql: str) -> Rows:
        if not re.search(r"\b(count|sum|avg|min|max)\(", sql, re.I) or self.queries < 1:
            raise Refused("only aggregates are answered, as long as the budget lasts")
        try:
            self.running = self.database.cursor()
            rows = self.running.execute(sql).fetchall()
        except duckdb.Error as error:
            raise Refused(str(error)) from None
        self.queries -= 1
        return [tuple(map(self._shown, row)) for row in rows]

    def cancel(self) -> None:
        if self.running is not None:
            self.running.interrupt()

    def _shown(self, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        return value + self.random.laplace(0, self.scale) if value >= self.smallest else None
