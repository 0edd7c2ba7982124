"""The gateway under load: idle connections, reused answers, small queries, and many rows beside PostgreSQL itself.

    python -m benchmarks.server [--quick] [--patients 50000] [--seconds 5] [--connections 2000] [--rounds 21]

Gateway and clients are processes of their own. Where something is compared, the two sides take turns in one run. The
table has the aim beside what was measured; what must not depend on what else the machine does is the processor time.
"""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import psycopg

from benchmarks.queries import make_engine, milliseconds
from dpsql.wire.scram import make_verifier
from tests.postgres import own_server

_USER: Final = "ana"
_CLIENTS: Final = 32
_REUSED: Final = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"
_SMALL: Final = (
    "SELECT COUNT(*) FROM patients WHERE age > {}",
    "SELECT sex, COUNT(*) FROM patients WHERE age > {} GROUP BY sex",
    "SELECT AVG(age) FROM patients WHERE age > {}",
)
_ROWS: Final = 100_000
_MANY: Final = """
    SELECT n, n * 2.5::double precision AS half, 'row ' || n AS name, n % 7 = 0 AS seventh,
        DATE '2026-01-01' + n::int AS day
    FROM generate_series(1, 100000) AS g(n)
"""


@dataclass(frozen=True)
class Figure:
    """A line of the table.

    Attributes:
        name: What was measured.
        aim: What is aimed at.
        measured: What it came to.
        met: Whether that is within the aim.
        about: What stands behind it.
    """

    name: str
    aim: str
    measured: str
    met: bool
    about: str


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute's worth: fewer patients, rounds and seconds")
    parser.add_argument("--patients", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    patients, seconds, rounds = (5_000, 3.0, 7) if arguments.quick else (50_000, 5.0, 21)
    patients, seconds = arguments.patients or patients, arguments.seconds or seconds
    rounds, connections = arguments.rounds or rounds, arguments.connections
    _allow_open_files(connections + 200)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _make_clinic(folder, patients)
        with _gateway(folder, connections + 100) as gateway:
            idle = idle_connections(gateway, connections)
            reused = reused_answers(gateway, seconds)
            small = small_queries(gateway, folder / "clinic.duckdb", rounds)
            many = many_rows(gateway, rounds)
    print(f"{'':44} {'aim':>14} {'measured':>12}")
    for figure in (idle, reused, small, many):
        print(f"{figure.name:44} {figure.aim:>14} {figure.measured:>12}  {'met' if figure.met else 'not met'}")
        print(f"    {figure.about}")


class Gateway:
    """A gateway in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self._process = process
        self.url = f"postgresql://{_USER}:secret@127.0.0.1:{port}/clinic"

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """Return a client's connection."""
        return psycopg.connect(self.url, autocommit=True)

    def megabytes(self) -> float:
        """What it holds in memory."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

    def seconds(self) -> float:
        """What it has had of the processors."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def small_queries(gateway: Gateway, file: Path, rounds: int) -> Figure:
    """Fresh private answers over the wire beside the raw query in the same process as its client.

    All have been asked once before: the plan of a query is made once.
    """
    raw, fresh = [], []
    asked = [sql.format(age) for age in range(7) for sql in _SMALL]
    with gateway.connect() as connection, duckdb.connect(str(file), read_only=True) as engine:
        connection.execute("SET dpsql.reuse = off")
        for sql in asked:
            connection.execute(sql.encode()).fetchall()
        before = gateway.seconds()
        for number in range(rounds * len(_SMALL)):
            sql = asked[number % len(asked)]
            raw.append(milliseconds(lambda sql=sql: engine.execute(sql).fetchall()))  # type: ignore[misc]
            fresh.append(milliseconds(lambda sql=sql: connection.execute(sql).fetchall()))  # type: ignore[misc]
        spent = gateway.seconds() - before
    over = statistics.median(after - before for before, after in zip(raw, fresh, strict=True))
    about = f"raw {statistics.median(raw):.1f} ms, answer {statistics.median(fresh):.1f} ms, p50 of {len(fresh)}"
    about += f"; the gateway's processor time for each {spent / len(fresh) * 1000:.1f} ms"
    return Figure("small private queries, over the raw ones", "at most 5 ms", f"{over:.1f} ms", over <= 5, about)


def many_rows(gateway: Gateway, rounds: int) -> Figure:
    """100,000 rows of 5 columns, from the gateway and from PostgreSQL, to the same driver."""
    ours, theirs = [], []
    with own_server(16) as server, server.connect() as real, gateway.connect() as connection:
        _fetch(connection)
        before = gateway.seconds()
        for _ in range(rounds):
            theirs.append(milliseconds(lambda: _fetch(real)))
            ours.append(milliseconds(lambda: _fetch(connection)))
        spent = gateway.seconds() - before
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    about = f"PostgreSQL {statistics.median(theirs):.0f} ms, gateway {statistics.median(ours):.0f} ms, medians"
    about += f"; the gateway's processor time for each {spent / rounds * 1000:.0f} ms"
    return Figure(f"{_ROWS:,} rows x 5, beside PostgreSQL", "at most 2x", f"{ratio:.1f}x", ratio <= 2, about)


def reused_answers(gateway: Gateway, seconds: float) -> Figure:
    """One stored answer again and again over 32 connections, whose clients are a process of their own."""
    clients = subprocess.Popen(
        [sys.executable, "-c", "from benchmarks import server; server.ask_again()", gateway.url, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if clients.stdin is None or clients.stdout is None or clients.stdout.readline() != "ready\n":
        raise AssertionError("the clients are not ready")
    before = gateway.seconds()
    told, _ = clients.communicate("go\n")
    count, spent = int(told), gateway.seconds() - before
    about = f"the gateway's processor time for each {spent / max(count, 1) * 1000:.2f} ms"
    name = f"reused answers over {_CLIENTS} connections"
    return Figure(name, "1,500/s", f"{count / seconds:,.0f}/s", count >= 1500 * seconds, about)


def ask_again() -> None:
    """Be the clients; print how many answers came."""
    url, seconds = sys.argv[1], float(sys.argv[2])
    connections = [psycopg.connect(url, autocommit=True) for _ in range(_CLIENTS)]
    for connection in connections:
        connection.execute(_REUSED).fetchall()
    counts = [0] * _CLIENTS
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + seconds

    def ask(index: int) -> None:
        while time.monotonic() < end:
            connections[index].execute(_REUSED).fetchall()
            counts[index] += 1

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()
    print(sum(counts))


def idle_connections(gateway: Gateway, count: int) -> Figure:
    """Memory of the gateway with many clients that have logged in and asked one thing."""
    before = gateway.megabytes()
    megabytes = asyncio.run(_hold(gateway, count))
    about = f"of which {megabytes - before:.0f} MB for them"
    return Figure(f"{count:,} idle connections", "below 300 MB", f"{megabytes:.0f} MB", megabytes < 300, about)


async def _hold(gateway: Gateway, count: int) -> float:
    at_once = asyncio.Semaphore(16)

    async def connect() -> "psycopg.AsyncConnection[tuple[object, ...]]":
        async with at_once:
            connection = await psycopg.AsyncConnection.connect(gateway.url, autocommit=True)
            await connection.execute("SELECT 1")
            return connection

    connections = await asyncio.gather(*(connect() for _ in range(count)))
    await asyncio.sleep(1)
    megabytes = gateway.megabytes()
    for connection in connections:
        await connection.close()
    return megabytes


def _fetch(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    rows = connection.execute(_MANY).fetchall()
    if len(rows) != _ROWS:
        raise AssertionError(len(rows))


def _make_clinic(folder: Path, patients: int) -> None:
    engine, _ = make_engine(folder, folder, patients)
    with closing(engine.ledger), closing(engine):
        engine.ledger.add_account(_USER, engine.policy.roles[0].name, make_verifier("secret"))


@contextmanager
def _gateway(folder: Path, connections: int) -> Iterator[Gateway]:
    options = ["--ledger", f"sqlite:///{folder / 'ledger.sqlite'}", "--port", "0"]
    options += ["--max-connections", str(connections), "--user-connections", str(connections)]
    log = folder / "log"
    with log.open("w") as stderr:
        command = [sys.executable, "-m", "dpsql", "serve", str(folder / "clinic.toml"), *options]
        process = subprocess.Popen(command, stderr=stderr, text=True)
    try:
        yield Gateway(process, _port(log))
    finally:
        process.terminate()
        process.wait()


def _port(log: Path) -> int:
    _wait(lambda: "listening on" in log.read_text())
    return next(int(line.rpartition(":")[2]) for line in log.read_text().splitlines() if "listening on" in line)


def _wait(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("the gateway did not start")


def _allow_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))


if __name__ == "__main__":
    main()
