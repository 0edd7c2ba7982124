"""The gateway under load: idle connections, reused answers, small queries, and many rows beside PostgreSQL itself.

    python -m benchmarks.server [--patients 50000] [--seconds 5] [--connections 2000] [--rounds 21]

Gateway and clients are processes of their own. Where something is compared, the two sides take turns in one run.
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
    FROM {}
"""


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    _allow_open_files(arguments.connections + 200)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _make_clinic(folder, arguments.patients)
        with _gateway(folder, arguments.connections + 100) as gateway:
            print(f"at rest: {gateway.megabytes():.0f} MB")
            small_queries(gateway, folder / "clinic.duckdb", arguments.rounds)
            many_rows(gateway, arguments.rounds)
            reused_answers(gateway, arguments.seconds)
            idle_connections(gateway, arguments.connections)


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


def small_queries(gateway: Gateway, file: Path, rounds: int) -> None:
    """Fresh private answers over the wire beside the raw query in the same process as its client."""
    raw, fresh = [], []
    with gateway.connect() as connection, duckdb.connect(str(file), read_only=True) as engine:
        connection.execute("SET dpsql.reuse = off")
        for number in range(rounds * len(_SMALL)):
            sql = _SMALL[number % len(_SMALL)].format(number % 7)
            raw.append(milliseconds(lambda sql=sql: engine.execute(sql).fetchall()))  # type: ignore[misc]
            fresh.append(milliseconds(lambda sql=sql: connection.execute(sql).fetchall()))  # type: ignore[misc]
    over = [after - before for before, after in zip(raw, fresh, strict=True)]
    print(
        f"small queries, {len(over)}, p50 in ms: raw {statistics.median(raw):.1f}, "
        f"answer {statistics.median(fresh):.1f}, over raw {statistics.median(over):.1f}"
    )


def many_rows(gateway: Gateway, rounds: int) -> None:
    """100,000 rows of 5 columns, from the gateway and from PostgreSQL, to the same driver."""
    ours, theirs = [], []
    series = f"generate_series(1, {_ROWS}) AS g(n)"
    with own_server(16) as server, server.connect() as real, gateway.connect() as connection:
        for _ in range(rounds):
            theirs.append(milliseconds(lambda: _fetch(real, _MANY.format(series))))
            ours.append(milliseconds(lambda: _fetch(connection, _MANY.format(series))))
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    print(
        f"{_ROWS:,} rows x 5, median ms: PostgreSQL {statistics.median(theirs):.0f}, gateway "
        f"{statistics.median(ours):.0f}, ratio {statistics.median(ratios):.1f}"
    )


def reused_answers(gateway: Gateway, seconds: float) -> None:
    """One stored answer again and again over 32 connections, whose clients are a process of their own."""
    before = gateway.seconds()
    done = subprocess.run(
        [sys.executable, "-c", "from benchmarks import server; server.ask_again()", gateway.url, str(seconds)],
        capture_output=True,
        text=True,
        check=True,
    )
    count, spent = int(done.stdout), gateway.seconds() - before
    print(
        f"reused answers over {_CLIENTS} connections: {count / seconds:.0f}/s; "
        f"the gateway's processor time for each, logins included: {spent / max(count, 1) * 1000:.2f} ms"
    )


def ask_again() -> None:
    """Be the clients; print how many answers came."""
    url, seconds = sys.argv[1], float(sys.argv[2])
    connections = [psycopg.connect(url, autocommit=True) for _ in range(_CLIENTS)]
    connections[0].execute(_REUSED)
    counts = [0] * _CLIENTS
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


def idle_connections(gateway: Gateway, count: int) -> None:
    """Memory of the gateway with many clients that have logged in and asked one thing."""
    before = gateway.megabytes()
    megabytes = asyncio.run(_hold(gateway, count))
    print(f"{count:,} idle connections: {megabytes:.0f} MB, of which {megabytes - before:.0f} MB for them")


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


def _fetch(connection: "psycopg.Connection[tuple[object, ...]]", sql: str) -> None:
    rows = connection.execute(sql.encode()).fetchall()
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
