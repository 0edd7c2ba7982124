"""Memory that large results took goes back to the system once nobody has them any more."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cli.test_operation import ledger
from tests.cli.test_serve import Start, connect
from tests.waiting import wait_for

__all__ = ["ledger"]  # a fixture

LARGE = b"SELECT repeat('x', 10000) FROM doctors, generate_series(1, 20)"
SPARE = 80
"""MB by which the gateway may have grown; where DuckDB's allocator and glibc kept what was freed it was 150 to 190."""


def resident(pid: int) -> int:
    """Resident MB of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmRSS"))


def test_memory_of_large_results_is_returned(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)

    def ask(_: int) -> None:
        with connect(program) as connection:
            assert len(connection.execute(LARGE).fetchall()) > 1000

    ask(0)
    before = resident(program.process.pid)
    with ThreadPoolExecutor(6) as clients:
        list(clients.map(ask, range(18)))
    wait_for(lambda: resident(program.process.pid) < before + SPARE)
    assert program.stop() == 0
