"""A machine without memory: a message that says so, no traceback, and nothing to report."""

import errno
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.cli.conftest import Run


def no_threads() -> Exception:
    return RuntimeError("can't start new thread")


FAULTS: dict[str, Callable[[], Exception]] = {
    "memory": MemoryError,
    "the engine's": lambda: duckdb.OutOfMemoryException("Out of Memory Error: of 'canary'"),
    "threads": no_threads,
    "the system's": lambda: OSError(errno.ENOMEM, "Cannot allocate memory"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_too_little_memory_is_told(
    run: Run, policy: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], Exception]
) -> None:
    def fail(*_: object) -> None:
        raise fault()

    monkeypatch.setattr("dpsql.backends.open_backend", fail)
    said = run("policy", "check", policy, status=1).stderr
    assert said.startswith("error: out of memory, or no more threads are allowed (53200)\nhint: ")
    assert "report it" not in said
    assert "canary" not in said
