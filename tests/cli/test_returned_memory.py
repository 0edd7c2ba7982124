"""Memory that large results take: bounded where nobody reads them, and given back once nobody has them any more."""

import os
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from dpsql.ledger import open_ledger
from dpsql.wire.scram import make_verifier
from tests.cli.test_operation import ledger
from tests.cli.test_serve import Start, connect
from tests.waiting import HANG_SECONDS, wait_for

__all__ = ["ledger"]  # a fixture

LARGE = b"SELECT repeat('x', 10000) FROM doctors, generate_series(1, 20)"
SPARE = 80
"""MB by which the gateway may have grown; where DuckDB's allocator and glibc kept what was freed it was 150 to 190."""


CLIENTS = 20
ROOM = 400
"""MB by which the gateway may have grown at the most; where results were held in memory it was 1,300."""


def resident(pid: int, field: str = "VmRSS") -> int:
    """Resident MB of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(field))


def test_clients_that_never_read_take_little_memory(policy: Path, ledger: str, start: Start) -> None:
    with closing(open_ledger(ledger)) as opened:
        for number in range(CLIENTS):
            opened.add_account(f"u{number}", "analyst", make_verifier("secret"))
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    pid = program.process.pid
    with connect(program) as connection:
        ((doctors,),) = connection.execute("SELECT COUNT(*) FROM doctors").fetchall()
    assert isinstance(doctors, int)
    query = f"SELECT repeat('x', 10000) FROM doctors, generate_series(1, {20_000 // doctors})"  # 190 MiB
    before = resident(pid)
    with ExitStack() as stack:
        clients = [connect(program, user=f"u{number}") for number in range(CLIENTS)]
        for client in clients:
            stack.callback(client.close)
            client.pgconn.send_query(query.encode())
            client.pgconn.flush()
        begun = [first_byte(client.pgconn.socket) for client in clients]
        # All of them together may hold two gibibytes; those that come then are refused.
        assert begun.count(b"E") < CLIENTS
        assert set(begun) <= {b"E", b"T"}
        assert resident(pid, "VmHWM") < before + ROOM
    assert program.stop() == 0


def first_byte(number: int) -> bytes:
    """Wait for the first byte of a reply, and leave it where it is."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    assert poll.poll(HANG_SECONDS * 1000)
    with socket.socket(fileno=os.dup(number)) as peeked:
        return peeked.recv(1, socket.MSG_PEEK)


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
