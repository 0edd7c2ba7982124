"""The console over a real ledger; the browser that it is tried in may be missing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Lend
from tests.console.machine import missing
from tests.console.world import Place, RunningConsole, fill, logged_in, site

collect_ignore = sorted(missing())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not run: it is not skipped, there is nothing to run it with."""
    if lacking := missing():
        terminalreporter.write_line(f"browsers that are not on this machine, not run: {', '.join(lacking.values())}")


@pytest.fixture(scope="session")
def place(clinic_policy: Path, lend: Lend, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A policy and a ledger that no test changes."""
    return fill(tmp_path_factory.mktemp("console"), clinic_policy, lend)


@pytest.fixture(scope="module")
def console(place: Place) -> Iterator[RunningConsole]:
    """A console."""
    running = RunningConsole(site(place))
    yield running
    running.close()


@pytest.fixture(scope="module")
def cookie(console: RunningConsole) -> str:
    """That of a session of the owner's."""
    return logged_in(console)
