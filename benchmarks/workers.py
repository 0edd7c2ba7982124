"""Answers a second of gateways with 1, 2 and 4 worker processes, fresh ones and reused ones.

    python -m benchmarks.workers [--patients 50000] [--rounds 9] [--answers 400] [--reused 4000]

The gateways share the data and the ledger, and take turns: in each round each of them gives as many answers, to the
clients of 8 users, 2 each. Clients are a process of their own, which sends ready-made bytes and reads to the end of
each answer. Ratios are to the gateway of one process in the same round; their median is printed. The processor time is
that of all the gateway's processes. On a machine that does other work, too, a gateway of more processes gets more of
it: then the processor time for each answer, and how many processors a gateway keeps busy, say more than the seconds.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.queries import make_engine
from dpsql.wire.messages.frontend import Query
from dpsql.wire.scram import make_verifier
from tests.waiting import wait_for
from tests.wire.rawclient import RawClient

_WORKERS: Final = (1, 2, 4)
_USERS: Final = 8
_CONNECTIONS: Final = 2
"""Of each user, of whom three queries may read at a time."""
_SQL: Final = {
    "fresh": "SELECT sex, COUNT(*) FROM patients WHERE age > {} GROUP BY sex",
    "reused": "SELECT sex, COUNT(*) FROM patients GROUP BY sex",
}
_READY: Final = b"Z\0\0\0\5I"


@dataclass(frozen=True)
class Round:
    """What one gateway did in one round.

    Attributes:
        answers: How many it gave.
        seconds: How long that took.
        busy: The processor time of its processes.
    """

    answers: int
    seconds: float
    busy: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds


class _Gateway:
    """A gateway and its clients."""

    def __init__(self, process: "subprocess.Popen[bytes]", clients: "subprocess.Popen[str]") -> None:
        self._process, self._clients = process, clients

    def ask(self, kind: str, answers: int) -> Round:
        before = _busy(self._process.pid)
        assert self._clients.stdin is not None and self._clients.stdout is not None
        self._clients.stdin.write(f"{kind} {answers}\n")
        self._clients.stdin.flush()
        seconds = float(self._clients.stdout.readline())
        return Round(answers, seconds, _busy(self._process.pid) - before)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--answers", type=int, default=400)
    parser.add_argument("--reused", type=int, default=4000)
    arguments = parser.parse_args()
    counts = {"fresh": arguments.answers, "reused": arguments.reused}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        _make_clinic(folder, arguments.patients)
        gateways = {workers: stack.enter_context(_gateway(folder, workers)) for workers in _WORKERS}
        print(f"{'':16} {'answers/s':>10} {'ratio':>6} {'ms of processor time each':>26} {'processors busy':>16}")
        for kind, count in counts.items():
            for gateway in gateways.values():
                gateway.ask(kind, count)
            rounds = [_round(gateways, kind, count) for _ in range(arguments.rounds)]
            for workers in _WORKERS:
                _show(f"{kind}, {workers} workers", [each[workers] for each in rounds], [each[1] for each in rounds])


def _round(gateways: dict[int, _Gateway], kind: str, count: int) -> dict[int, Round]:
    """Let each gateway answer, in an order drawn by lot."""
    order = random.Random(time.monotonic_ns()).sample(list(gateways), len(gateways))
    return {workers: gateways[workers].ask(kind, count) for workers in order}


def _show(name: str, rounds: list[Round], alone: list[Round]) -> None:
    rate = statistics.median(each.rate for each in rounds)
    ratio = statistics.median(each.rate / one.rate for each, one in zip(rounds, alone, strict=True))
    each = statistics.median(1000 * each.busy / each.answers for each in rounds)
    processors = statistics.median(each.busy / each.seconds for each in rounds)
    print(f"{name:16} {rate:>10,.0f} {ratio:>6.2f} {each:>26.2f} {processors:>16.2f}", flush=True)


def be_clients(port: int) -> None:
    """Answer each line of standard input, a kind of query and how many, by the seconds that all answers took."""
    clients = []
    for number in range(_USERS * _CONNECTIONS):
        client = RawClient(port)
        client.log_in(user=f"user{number % _USERS}")
        client.ask(Query(b"SET dpsql.epsilon = 0.01"))
        clients.append(client)
    print("ready", flush=True)
    for line in sys.stdin:
        kind, count = line.split()
        for client in clients:
            client.ask(Query(f"SET dpsql.reuse = {'off' if kind == 'fresh' else 'exact'}".encode()))
        left = iter(range(int(count)))
        lock = threading.Lock()
        threads = [threading.Thread(target=_ask, args=(client, kind, left, lock)) for client in clients]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(time.monotonic() - begun, flush=True)


def _ask(client: RawClient, kind: str, left: Iterator[int], lock: threading.Lock) -> None:
    while True:
        with lock:
            number = next(left, None)
        if number is None:
            return
        client.socket.sendall(Query(_SQL[kind].format(number % 7).encode()).encode())
        data = b""
        while not data.endswith(_READY):
            more = client.socket.recv(65536)
            data += more
            if not more or data[:1] == b"E":
                raise AssertionError(data)


def _busy(process: int) -> float:
    """The processor time that a process and those that it started have had."""
    parents, ticks = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(folder.name)], ticks[int(folder.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {process}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks[each] for each in family) / os.sysconf("SC_CLK_TCK")


def _make_clinic(folder: Path, patients: int) -> None:
    engine, _ = make_engine(folder, folder, patients)
    with closing(engine.ledger), closing(engine):
        for number in range(_USERS):
            engine.ledger.add_account(f"user{number}", engine.policy.roles[0].name, make_verifier("secret"))


@contextmanager
def _gateway(folder: Path, workers: int) -> Iterator[_Gateway]:
    log = folder / f"log{workers}"
    command = [sys.executable, "-m", "dpsql", "serve", str(folder / "clinic.toml"), "--port", "0"]
    command += ["--ledger", f"sqlite:///{folder / 'ledger.sqlite'}", "--workers", str(workers)]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    try:
        wait_for(lambda: "listening on" in log.read_text())
        line = next(line for line in log.read_text().splitlines() if "listening on" in line)
        clients = subprocess.Popen(
            [sys.executable, "-c", f"from benchmarks.workers import be_clients; be_clients({line.rpartition(':')[2]})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert clients.stdout is not None
        if clients.stdout.readline() != "ready\n":
            raise AssertionError("the clients are not ready")
        yield _Gateway(process, clients)
        clients.communicate()
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
