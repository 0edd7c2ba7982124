"""A DuckDB that notes each read of private rows before it happens."""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path

from dpsql.backends import DuckDBBackend, ExactRows
from dpsql.compiler.plan.query_plan import PlannedRelease

Fetch = Callable[..., ExactRows]


def noting(fetch: Fetch, note: Callable[[str], None]) -> Fetch:
    """Return a DuckDBBackend's `fetch` that first tells what it is about to read of private rows, by release."""

    @wraps(fetch)
    def noted(
        backend: DuckDBBackend, releases: Mapping[int, PlannedRelease], *arguments: object, **options: object
    ) -> ExactRows:
        for planned in releases.values():
            note(planned.key)
        return fetch(backend, releases, *arguments, **options)

    return noted


class Notes:
    """Lines in a file that several processes add to, and that a killed one leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: str) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
