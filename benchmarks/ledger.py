"""What a durable charge costs beside a bare durable insert on the same disk: alone, among sessions, after a history.

Run: python -m benchmarks.ledger [--history 100000] [--sessions 32] [--directory DIR]
"""

import argparse
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from itertools import count
from pathlib import Path

from dpsql.ledger import ReleaseRequest, SqliteLedger
from dpsql.policy import Budget, Dataset, MechanismChoice, Policy, QueryDefaults, Role
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.cost import Adjacency, Event, Mechanism, Sensitivity
from tests.ledger.world import charge_only

ROUNDS = 1000
TURNS = 7
SECONDS = 0.5
EVENT = Event(Mechanism.LAPLACE, Sensitivity(1, 1, 1, 1), Fraction(10**4))
BUDGET = Budget(Fraction(1000), Fraction(1, 10**6), Accountant.ZCDP, None, Fraction(1, 2))
QUERY = QueryDefaults(Fraction(1, 10), Fraction(1, 10**9), MechanismChoice.AUTO, Fraction(1))
SQL = "SELECT sex, COUNT(*) FROM patients WHERE age > 40 GROUP BY sex"
POLICY = Policy(
    Dataset("clinic", "duckdb:///clinic", "main", "patient", Adjacency.ADD_REMOVE, "1", BUDGET, "people", 0, "UTC"),
    (Role("analyst", BUDGET, QUERY, frozenset()),),
    (),
    Path("clinic.toml"),
)

Act = Callable[[], object]


def milliseconds(*acts: Act) -> list[float]:
    """Return the median time of each act; they take turns, so that a slow moment of the disk hits all of them."""
    taken: list[list[float]] = [[] for _ in acts]
    for _ in range(ROUNDS):
        for act, times in zip(acts, taken, strict=True):
            start = time.perf_counter()
            act()
            times.append(1000 * (time.perf_counter() - start))
    return [statistics.median(times) for times in taken]


def rate(*acts: Act) -> float:
    """Return how often a second the acts are done together, one a thread."""
    done = [0] * len(acts)
    start = time.perf_counter()

    def repeat(number: int) -> None:
        while time.perf_counter() < start + SECONDS:
            acts[number]()
            done[number] += 1

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - start)


def inserting(path: Path) -> tuple[sqlite3.Connection, Act]:
    """Return an act that inserts one row of a record's size, durably."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE records (seq INTEGER PRIMARY KEY, body TEXT)")

    def insert() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO records (body) VALUES (?)", ("x" * 700,))
        connection.execute("COMMIT")

    return connection, insert


def charging(ledger: SqliteLedger, user: str) -> Act:
    """Return an act that charges a user for a query that nobody has asked."""
    keys = count()
    ledger.add_account(user, "analyst")
    return lambda: charge_only(ledger, user, POLICY, [ReleaseRequest(f"{user}{next(keys):060x}", (EVENT,))], sql=SQL)


def fill(ledger: SqliteLedger, charge: Act, history: int) -> None:
    """Make so many charges, without waiting for the disk."""
    ledger._storage.writer.execute("PRAGMA synchronous = OFF")
    for _ in range(history):
        charge()
    ledger._storage.writer.execute("PRAGMA synchronous = FULL")


def latency(ledger: SqliteLedger, insert: Act, charge: Act, history: int) -> None:
    """Print what a charge alone takes at the start and after the history."""
    for length in (0, history):
        fill(ledger, charge, length)
        inserted, charged = milliseconds(insert, charge)
        print(
            f"history {length:>7}: insert {inserted:.3f} ms, charge {charged:.3f} ms, {charged / inserted:.2f}x",
            flush=True,
        )


def throughput(ledger: SqliteLedger, insert: Act, charge: Act, sessions: int) -> None:
    """Print how many charges a second all sessions together make; the three measurements take turns."""
    charges = [charging(ledger, f"user{number}") for number in range(sessions)]
    turns = [(rate(insert), rate(charge), rate(*charges)) for _ in range(TURNS)]
    inserted, alone, together = (statistics.median(each) for each in zip(*turns, strict=True))
    of_insert = statistics.median(turn[2] / turn[0] for turn in turns)
    of_alone = statistics.median(turn[2] / turn[1] for turn in turns)
    print(
        f"a second: {inserted:.0f} inserts, {alone:.0f} charges alone, {together:.0f} charges of {sessions} sessions: "
        f"{of_insert:.1f}x the inserts, {of_alone:.1f}x a charge alone"
    )


def measure(directory: Path, history: int, sessions: int) -> None:
    """Print latency, throughput, and how long the whole takes to verify."""
    with closing(SqliteLedger(directory / "ledger.sqlite")) as ledger:
        connection, insert = inserting(directory / "bare.sqlite")
        with closing(connection):
            charge = charging(ledger, "ana")
            latency(ledger, insert, charge, history)
            throughput(ledger, insert, charge, sessions)
        start = time.perf_counter()
        report = ledger.verify()
        print(f"verify: {report.records} records in {time.perf_counter() - start:.1f} s, ok: {report.ok}")


def main() -> None:
    """Measure in a new directory on the disk in question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--history", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--directory", default=".")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        measure(Path(directory), arguments.history, arguments.sessions)


if __name__ == "__main__":
    main()
