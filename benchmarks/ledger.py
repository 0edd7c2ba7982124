"""How long a durable charge takes beside a bare durable insert on the same disk, and with a long history.

Run: python -m benchmarks.ledger [--history 100000] [--directory DIR]
"""

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from itertools import count
from pathlib import Path

from dpsql.ledger import ReleaseRequest, SqliteLedger
from dpsql.policy import Budget, Dataset, MechanismChoice, Policy, QueryDefaults, Role
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.cost import Event, Mechanism
from dpsql.privacy.sensitivity import Adjacency, Sensitivity

ROUNDS = 1000
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


def milliseconds(acts: list[Callable[[], object]]) -> list[float]:
    """Return the median time of each act; they take turns, so that a slow moment of the disk hits all of them."""
    taken: list[list[float]] = [[] for _ in acts]
    for _ in range(ROUNDS):
        for act, times in zip(acts, taken, strict=True):
            start = time.perf_counter()
            act()
            times.append(1000 * (time.perf_counter() - start))
    return [statistics.median(times) for times in taken]


def bare(connection: sqlite3.Connection) -> None:
    """Insert one row of a record's size, durably."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO records (body) VALUES (?)", ("x" * 700,))
    connection.execute("COMMIT")


def measure(directory: Path, history: int) -> None:
    """Print the medians at the start and after a history of so many charges."""
    keys = count()
    ledger = SqliteLedger(directory / "ledger.sqlite")
    ledger.add_account("ana", "analyst")

    def charge() -> None:
        ledger.charge("ana", POLICY, [ReleaseRequest(f"{next(keys):064x}", (EVENT,))], sql=SQL)

    with closing(sqlite3.connect(directory / "bare.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE records (seq INTEGER PRIMARY KEY, body TEXT)")
        for length in (0, history):
            ledger._connection.execute("PRAGMA synchronous = OFF")  # filling needs no disk
            for _ in range(length):
                charge()
            ledger._connection.execute("PRAGMA synchronous = FULL")
            insert, paid = milliseconds([lambda: bare(connection), charge])
            print(f"history {length:>7}: insert {insert:.3f} ms, charge {paid:.3f} ms, {paid / insert:.2f}x")
    start = time.perf_counter()
    report = ledger.verify()
    print(f"verify: {report.records} records in {time.perf_counter() - start:.1f} s, ok: {report.ok}")
    ledger.close()


def main() -> None:
    """Measure in a new directory on the disk in question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--history", type=int, default=100_000)
    parser.add_argument("--directory", default=".")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        measure(Path(directory), arguments.history)


if __name__ == "__main__":
    main()
