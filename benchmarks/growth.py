"""What each operation adds to a gateway's memory: one gateway for each kind, which does the same thousands of times.

    python -m benchmarks.growth [--counts 1000 2000 4000] [--only KIND ...] [--types]

Resident memory is read after a collection of garbage and malloc_trim. Caches fill at first, so the last stretch tells
what an operation leaves behind. `--types` prints the types of which there are more objects after it, and `--sites` the
lines that allocated what is left, by tracemalloc, which takes four times as long.
"""

import argparse
import ctypes
import gc
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.queries import make_engine
from dpsql.cli import main as run_command
from dpsql.wire.scram import make_verifier

Connection = psycopg.Connection[tuple[object, ...]]

_USER: Final = "ana"
_FRESH: Final = "SELECT COUNT(*) FROM patients WHERE age > 5 AND weight < {}"
_REUSED: Final = b"SELECT sex, COUNT(*) FROM patients GROUP BY sex"
_PUBLIC: Final = b"SELECT d.doctor_id, repeat('x', 1000) FROM doctors d, generate_series(1, 20)"
_TABLES: Final = b"""
    SELECT n.nspname, c.relname, c.relkind FROM pg_catalog.pg_class c
    LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v') ORDER BY 1, 2
"""
_SHOWN: Final = 12


class Gateway:
    """A gateway in a process of its own, which tells of its memory when it is asked.

    Args:
        folder: Of the policy and the ledger.
        traced: Have tracemalloc note where memory is allocated.
    """

    def __init__(self, folder: Path, *, traced: bool) -> None:
        command = [sys.executable, "-m", "benchmarks.growth", "--serve", str(folder), *["--sites"] * traced]
        log = folder / "log"
        with log.open("w", encoding="utf-8") as written:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=written, text=True)
        self._log = log.open(encoding="utf-8")
        self._port = int(self._wait_for("listening on").rpartition(":")[2])

    def connect(self) -> Connection:
        """Return a client's connection."""
        url = f"postgresql://{_USER}:secret@127.0.0.1:{self._port}/clinic"
        return psycopg.connect(url, autocommit=True, prepare_threshold=None)

    def ask(self, what: str) -> dict[str, int]:
        """Ask the process of its `memory`, its objects by `types`, or the `sites` of what is allocated."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer

    def reload(self) -> None:
        """Have the policies loaded again."""
        self._process.send_signal(signal.SIGHUP)
        self._wait_for("loaded again")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.communicate()
        self._log.close()

    def _wait_for(self, words: str) -> str:
        """Return the next line of the log with some words in it."""
        line = ""
        while words not in line or not line.endswith("\n"):
            assert self._process.poll() is None, "the gateway has ended"
            line += self._log.readline()
            if not line.endswith("\n"):
                time.sleep(0.01)
            elif words not in line:
                line = ""
        return line.strip()


Operation = Callable[[Gateway, Connection, int], object]


def connect(gateway: Gateway, _: Connection, number: int) -> None:
    """A new connection, one query, and the end of the connection."""
    with gateway.connect() as connection:
        connection.execute(f"SELECT {number}".encode()).fetchall()


def refused(_: Gateway, connection: Connection, number: int) -> None:
    """A query that is refused."""
    with suppress(psycopg.Error):
        connection.execute(f"SELECT nothing{number} FROM patients".encode())


def prepared(_: Gateway, connection: Connection, number: int) -> None:
    """A statement that is prepared, executed with a value and deallocated."""
    connection.execute("SELECT doctor_id FROM doctors WHERE doctor_id > %s", (number,), prepare=True).fetchall()
    connection.execute(b"DEALLOCATE ALL")


def cursor(_: Gateway, connection: Connection, number: int) -> None:
    """A cursor within a transaction."""
    with connection.transaction():
        connection.execute(f"DECLARE c CURSOR FOR SELECT doctor_id + {number} FROM doctors".encode())
        connection.execute(b"FETCH 5 FROM c").fetchall()
        connection.execute(b"CLOSE c")


OPERATIONS: Final[dict[str, Operation]] = {
    "connection and query": connect,
    "reused answer": lambda _, connection, number: connection.execute(_REUSED).fetchall(),
    "fresh charged query": lambda _, connection, number: connection.execute(
        _FRESH.format(50 + number / 100).encode()
    ).fetchall(),
    "refused query": refused,
    "public rows, 400 KB": lambda _, connection, number: connection.execute(_PUBLIC).fetchall(),
    "catalog statement": lambda _, connection, number: connection.execute(_TABLES).fetchall(),
    "EXPLAIN": lambda _, connection, number: connection.execute(
        f"EXPLAIN {_FRESH.format(50 + number / 100)}".encode()
    ).fetchall(),
    "prepared statement": prepared,
    "cursor": cursor,
    "reload": lambda gateway, connection, number: gateway.reload(),
}
_SELDOM: Final = {"reload": 10}
"""By what the counts are divided."""


def measure(name: str, counts: list[int], *, told: str | None) -> None:
    """Print how the memory of a new gateway grows with one operation."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine, _ = make_engine(folder, folder, 1_000)
        with closing(engine.ledger), closing(engine):
            engine.ledger.add_account(_USER, engine.policy.roles[0].name, make_verifier("secret"))
        gateway = stack.enter_context(closing(Gateway(folder, traced=told == "sites")))
        connection = stack.enter_context(gateway.connect())
        done, seen = 0, []
        kept: dict[str, int] = {}
        for count in [0, *(count // _SELDOM.get(name, 1) for count in counts)]:
            for number in range(done, count):
                OPERATIONS[name](gateway, connection, number)
            done = count
            seen.append((count, gateway.ask("memory")["kilobytes"]))
            if told is not None:
                before, kept = kept, gateway.ask(told)
        (earlier, smaller), (later, larger) = seen[-2:]
        each = (larger - smaller) / (later - earlier) * 1024
        figures = " | ".join(f"{kilobytes / 1024:.1f}" for _, kilobytes in seen)
        print(f"| {name} | {figures} | {each:+,.0f} |", flush=True)
        if told is not None:
            for what, count in (Counter(kept) - Counter(before)).most_common(_SHOWN):
                print(f"    {count:+,} {what}", flush=True)


def serve(folder: Path, *, traced: bool) -> None:
    """Be the gateway, and answer questions on standard input about its memory."""
    if traced:
        tracemalloc.start(4)
    threading.Thread(target=_answer, daemon=True).start()
    ledger = f"sqlite:///{folder / 'ledger.sqlite'}"
    run_command(["serve", str(folder / "clinic.toml"), "--port", "0", "--ledger", ledger])


def _answer() -> None:
    told: dict[str, Callable[[], dict[str, int]]] = {"memory": _memory, "types": _types, "sites": _sites}
    for line in sys.stdin:
        print(json.dumps(told[line.strip()]()), flush=True)


def _memory() -> dict[str, int]:
    for _ in range(3):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return {"kilobytes": next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))}


def _types() -> dict[str, int]:
    return dict(Counter(type(each).__qualname__ for each in gc.get_objects()))


def _sites() -> dict[str, int]:
    found = tracemalloc.take_snapshot().statistics("traceback")[:2000]
    return {
        " < ".join(f"{frame.filename[-40:]}:{frame.lineno}" for frame in each.traceback): each.size for each in found
    }


def main() -> None:
    """Print a line for each operation, and serve where this is the gateway."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 2000, 4000])
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=list(OPERATIONS), metavar="KIND")
    told = parser.add_mutually_exclusive_group()
    told.add_argument("--types", dest="told", action="store_const", const="types")
    told.add_argument("--sites", dest="told", action="store_const", const="sites")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, traced=options.told == "sites")
        return
    print(f"| operation | {' | '.join(f'MiB at {count:,}' for count in [0, *options.counts])} | bytes each |")
    print(f"|---|{'---:|' * (len(options.counts) + 2)}")
    for name in options.only:
        measure(name, options.counts, told=options.told)


if __name__ == "__main__":
    main()
