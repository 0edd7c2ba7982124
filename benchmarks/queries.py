"""Time of a differentially private answer beside the same raw query on the same DuckDB file, interleaved.

    python -m benchmarks.queries [--patients 50000] [--rounds 15] [--dir DIR] [--processor-time]

"engine" is the bounded SQL alone, "answer" is the whole way: compile, durable charge, engine, noise, post-processing.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from dpsql.backends import Cancellation, DuckDBBackend
from dpsql.cli.clinic import generate_clinic
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.gateway.engine import Engine
from dpsql.gateway.settings import Reuse
from dpsql.ledger import open_ledger
from dpsql.policy import load_policy

QUERIES = (
    ("patients: COUNT(*)", "SELECT COUNT(*) FROM patients"),
    ("patients: COUNT(*) by sex", "SELECT sex, COUNT(*) FROM patients GROUP BY sex"),
    ("patients: AVG(age) by city", "SELECT city, AVG(age) FROM patients GROUP BY city"),
    ("visits: COUNT(*)", "SELECT COUNT(*) FROM visits"),
    ("visits: COUNT(*) by icd", "SELECT icd, COUNT(*) FROM visits GROUP BY icd"),
    ("visits: SUM(cost), AVG(cost) by city", "SELECT city, SUM(cost), AVG(cost) FROM visits GROUP BY city"),
    ("visits: COUNT(DISTINCT patient_id)", "SELECT COUNT(DISTINCT patient_id) FROM visits"),
    (
        "visits: COUNT(*) by day and city",
        "SELECT visited_on, city, COUNT(*) FROM visits GROUP BY visited_on, city",
    ),
    ("visits: COUNT(DISTINCT doctor_id) by icd", "SELECT icd, COUNT(DISTINCT doctor_id) FROM visits GROUP BY icd"),
    ("visits: MEDIAN(cost) by icd", "SELECT icd, MEDIAN(cost) FROM visits GROUP BY icd"),
    (
        "visits: five percentiles of cost",
        f"SELECT {', '.join(f'PERCENTILE_CONT(0.{part}) WITHIN GROUP (ORDER BY cost)' for part in (1, 25, 5, 75, 9))} "
        "FROM visits",
    ),
    (
        "patients: a million public groups",
        "SELECT n, m, COUNT(p.patient_id) FROM generate_series(1, 1000) g(n) CROSS JOIN generate_series(1, 1000) h(m) "
        "LEFT JOIN patients p ON p.age = n AND p.age * 3 = m GROUP BY n, m",
    ),
)


Clock = Callable[[], float]


def milliseconds(run: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Return how long a call takes."""
    start = clock()
    run()
    return (clock() - start) * 1000


def make_engine(folder: Path, scratch: Path, patients: int) -> tuple[Engine, DuckDBBackend]:
    """Return an engine on a generated clinic, with a budget that the benchmark does not exhaust."""
    if not (folder / "clinic.duckdb").exists():
        generate_clinic(folder / "clinic.duckdb", patients=patients)
    text = (Path(__file__).parent.parent / "policies" / "clinic.toml").read_text()
    text = text.replace("epsilon = 20,", "epsilon = 10000,").replace("epsilon = 5,", "epsilon = 10000,")
    text = text.replace("delta = 1e-6", "delta = 1e-3")
    (folder / "clinic.toml").write_text(text)
    policy = load_policy(folder / "clinic.toml")
    ledger = open_ledger(f"sqlite:///{scratch / 'ledger.sqlite'}")
    ledger.add_account("bench", policy.roles[0].name)
    backend = DuckDBBackend(policy.dataset.url.removeprefix("duckdb://"), policy)
    return Engine(policy, ledger, backend), backend


def measure(engine: Engine, backend: DuckDBBackend, sql: str, rounds: int, clock: Clock) -> tuple[float, float, float]:
    """Return median milliseconds of the raw query, of the bounded SQL, and of the whole answer."""
    settings = QuerySettings(Fraction(1, 10), Fraction(1, 10**9), "auto", engine.now())
    statement = QueryStatement(sql)
    compiled = engine.compile("bench", statement, settings)
    raw, bounded, whole = [], [], []
    cursor = backend._database.cursor()
    cursor.execute(backend._use)

    def answer() -> None:
        engine.execute("bench", engine.compile("bench", statement, settings), Cancellation(), reuse=Reuse.OFF)

    for _ in range(rounds):
        raw.append(milliseconds(lambda: cursor.execute(sql).fetchnumpy(), clock))
        bounded.append(
            milliseconds(lambda: backend.fetch(dict(enumerate(compiled.releases)), (), Cancellation()), clock)
        )
        whole.append(milliseconds(answer, clock))
    return statistics.median(raw), statistics.median(bounded), statistics.median(whole)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--processor-time", action="store_true", help="count it instead of time")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.processor_time else time.perf_counter
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.dir or Path(temporary)
        engine, backend = make_engine(folder, Path(temporary), arguments.patients)
        print(f"{'query':40} {'raw':>8} {'engine':>8} {'answer':>8} {'answer-raw':>11} {'engine/raw':>11}   (ms)")
        for name, sql in QUERIES:
            raw, bounded, whole = measure(engine, backend, sql, arguments.rounds, clock)
            print(f"{name:40} {raw:8.1f} {bounded:8.1f} {whole:8.1f} {whole - raw:11.1f} {bounded / raw:10.1f}x")
        engine.close()
        engine.ledger.close()


if __name__ == "__main__":
    main()
