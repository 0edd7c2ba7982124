"""Time of bounded SQL and of the same raw query, interleaved: the tables of docs/benchmarks.md and docs/scale.md.

    python -m benchmarks.engines [--rows 1000000] [--units 50000] [--rounds 9] [--engine duckdb|parquet|postgres|spark]
        [--url URL] [--only PART] [--processor-time] [--memory GB] [--spill] [--queries 1-8]

"engine" is the bounded SQL alone, as the gateway runs and fetches it; "answer" is the whole way: compile, durable
charge, engine, noise, store, post-processing. On PostgreSQL all is measured again with the indexes that `dpsql policy
check --advise` names. "prepared" is the steady state once `dpsql prepare` has made copies, read whatever the error:
under a policy that declares days and regions, so that groups need no selection, and under one that does not.
"declared" is the policy that declares them without copies, with 50 rows of a person in all groups together, wherever
they are. With `--processor-time`, times on DuckDB are those of the processor, which other processes hardly change.
`--queries 1-5` asks the first five queries alone, and `--spill` lets DuckDB spill: it needs the extension httpfs.
Spark is measured only with `--engine spark`: a local server over the same Parquet files. Its times are processor time
of the server and of the gateway, without the rest of the answer. `--rounds 0` asks each query once, in cold caches.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import duckdb

from benchmarks.incomes import connect, make_file, make_folder, make_policy, served
from dpsql.backends import Backend, Cancellation, open_backend, prepare_tables
from dpsql.cli.clinic_spark import local_server
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.gateway.engine import Engine
from dpsql.gateway.settings import Reuse
from dpsql.ledger import open_ledger
from dpsql.policy import load_policy

Raw = Callable[[str], object]
Gateway = tuple[Engine, Backend]
Clock = Callable[[], float]
"""Of time, or of processor time of all threads, which says more where other programs want the processors."""
Bounds = tuple[int | None, int | None, int | None]
"""Rows, groups, and rows in a group: narrower than the policy's, or None."""

AS_THEY_ARE: Final = (None, None, None)
FIVE_GROUPS: Final = (None, 5, None)
TWO_ROWS: Final = (None, None, 2)

QUERIES: Final[tuple[tuple[str, str, Bounds], ...]] = (
    ("COUNT(*)", "SELECT COUNT(*) FROM incomes", AS_THEY_ARE),
    ("COUNT(*) by region", "SELECT region, COUNT(*) FROM incomes GROUP BY region", FIVE_GROUPS),
    (
        "SUM, AVG(income) by region",
        "SELECT region, SUM(income), AVG(income) FROM incomes GROUP BY region",
        FIVE_GROUPS,
    ),
    ("COUNT(DISTINCT user_id)", "SELECT COUNT(DISTINCT user_id) FROM incomes", AS_THEY_ARE),
    (
        "COUNT(*) by day, region",
        "SELECT day, region, COUNT(*) FROM incomes GROUP BY day, region",
        TWO_ROWS,
    ),
    ("one row a unit: COUNT(*)", "SELECT COUNT(*) FROM people", AS_THEY_ARE),
    ("one row a unit: COUNT(*) by region", "SELECT region, COUNT(*) FROM people GROUP BY region", AS_THEY_ARE),
    (
        "one row a unit: SUM, AVG(income) by region",
        "SELECT region, SUM(income), AVG(income) FROM people GROUP BY region",
        AS_THEY_ARE,
    ),
)
"""A name, the query, and the bounds that are narrowed."""
DECLARED: Final = tuple((name, sql, AS_THEY_ARE) for name, sql, _ in QUERIES if sql.endswith("region"))[:3]
"""Those of groups, where a person's rows are limited over all of them alone."""
PREPARED: Final = tuple((name, sql, AS_THEY_ARE) for name, sql, _ in QUERIES[:5])
"""Those of many rows a unit, under the bounds of the copies."""

SPARK_TABLES: Final = {
    "incomes": "user_id INT, day DATE, region STRING, income INT",
    "people": "user_id INT, region STRING, income INT",
}
"""The tables and their columns in Spark."""

FORMS: Final = (
    ("many", "units with few rows apart"),
    ("many_rows", "units with few rows apart"),
    ("many_groups", "units with too many groups ranked"),
    ("coded", "rows ranked"),
    ("ranked", "all units' groups ranked"),
    ("per_unit", "put together by unit"),
)
"""A step of the bounded SQL, and the form that has it; the first that is there."""


def form_of(sql: str) -> str:
    """Return how the units' contributions are bounded in engine SQL."""
    return next((form for step, form in FORMS if f" {step} AS " in sql), "values clamped")


def milliseconds(run: Callable[[], object], clock: Clock) -> float:
    """Return how long a call takes."""
    start = clock()
    run()
    return (clock() - start) * 1000


def measure(
    gateway: Gateway, raw: Raw, sql: str, bounds: Bounds, rounds: int, clock: Clock, *, whole: bool = True
) -> tuple[str, float, float, float]:
    """Return the form, and median milliseconds of the raw query, the bounded SQL, and what the gateway adds to it.

    The last is the median of answer − engine over the rounds, for the engine's own time varies more than the rest. It
    is 0 unless `whole`.
    """
    engine, backend = gateway
    ratio = engine.policy.dataset.max_error_ratio
    settings = QuerySettings(
        Fraction(1, 10), Fraction(1, 10**9), "auto", engine.now(), False, *bounds, max_error_ratio=ratio
    )
    statement = QueryStatement(sql)
    releases = dict(enumerate(engine.compile("bench", statement, settings).releases))

    def fetch() -> None:
        backend.fetch(releases, (), Cancellation())

    def answer() -> None:
        engine.execute("bench", engine.compile("bench", statement, settings), Cancellation(), reuse=Reuse.OFF)

    runs = (lambda: raw(sql), fetch, answer) if whole else (lambda: raw(sql), fetch)
    times = [[milliseconds(run, clock) for run in runs] for _ in range(rounds + 1)]
    # The first round warms the caches.
    of_raw, of_engine, *answers = zip(*times[1:] or times, strict=True)
    added = [answered - fetched for each in answers for answered, fetched in zip(each, of_engine, strict=True)]
    return (
        form_of(releases[0].sql),
        statistics.median(of_raw),
        statistics.median(of_engine),
        statistics.median(added or [0]),
    )


@contextmanager
def opened(policy: Path) -> Iterator[Gateway]:
    """An engine over a new ledger, with a budget that the benchmark does not exhaust."""
    loaded = load_policy(policy)
    backend: Backend = open_backend(loaded)
    with (
        tempfile.TemporaryDirectory(dir=policy.parent) as folder,
        closing(open_ledger(f"sqlite:///{folder}/ledger.sqlite")) as ledger,
        closing(Engine(loaded, ledger, backend)) as engine,
    ):
        ledger.add_account("bench", "analyst")
        yield engine, backend


def print_table(
    title: str,
    gateway: Gateway,
    raw: Raw,
    rounds: int,
    queries: Sequence[tuple[str, str, Bounds]] = QUERIES,
    clock: Clock = time.perf_counter,
    *,
    whole: bool = True,
) -> None:
    """Measure and print queries on one engine."""
    print(f"\n{title}\n\n| query | form | raw, ms | engine, ms | engine / raw | answer − engine, ms |\n{'|---' * 6}|")
    for name, sql, bounds in queries:
        form, of_raw, of_engine, added = measure(gateway, raw, sql, bounds, rounds, clock, whole=whole)
        ratio = f"{of_engine / of_raw:.1f}×"
        rest = f"{added:.1f}" if whole else "–"
        print(f"| {name} | {form} | {of_raw:.1f} | {of_engine:.1f} | {ratio} | {rest} |", flush=True)


def print_prepared(
    title: str,
    path: Path,
    url: str,
    schema: str,
    raw: Callable[[Backend], Raw],
    rounds: int,
    clock: Clock = time.perf_counter,
) -> None:
    """Prepare copies, and measure and print the queries of many rows a unit over them."""
    for told, declared in (("", True), ("; days and regions are private", False)):
        policy = make_policy(path, url, schema, prepared=True, declared=declared)
        start = time.perf_counter()
        prepare_tables(load_policy(policy))
        took = time.perf_counter() - start
        with opened(policy) as gateway:
            print_table(f"{title}, prepared in {took:.1f} s{told}", gateway, raw(gateway[1]), rounds, PREPARED, clock)


def raw_in_duckdb(backend: Backend) -> Raw:
    """What runs queries as they are in the very engine that the gateway asks, with its settings."""
    cursor = backend._database.cursor()  # type: ignore[attr-defined]
    cursor.execute(backend._use)  # type: ignore[attr-defined]
    return lambda sql: cursor.execute(sql).fetchnumpy()


def measure_duckdb(file: Path, size: str, rounds: int, only: str | None, clock: Clock) -> None:
    """Print the tables of DuckDB, or some of them."""
    title = f"DuckDB {duckdb.__version__}, {size}"
    url, path = f"duckdb:///{file}", file.with_name("duckdb.toml")
    raw = raw_in_duckdb
    if only in (None, "private"):
        with opened(make_policy(path, url, "main")) as gateway:
            print_table(title, gateway, raw(gateway[1]), rounds, QUERIES, clock)
    if only in (None, "declared"):
        with opened(make_policy(path, url, "main", declared=True, rows_per_group=50)) as gateway:
            print_table(f"{title}, declared", gateway, raw(gateway[1]), rounds, DECLARED, clock)
    if only in (None, "prepared"):
        print_prepared(title, path, url, "main", raw, rounds, clock)


def measure_parquet(
    folder: Path, size: str, rounds: int, memory: int | None, spill: Path | None, queries: slice
) -> None:
    """Print the table of DuckDB over Parquet files, in processor time."""
    path = folder.with_name("parquet.toml")
    policy = make_policy(path, f"parquet:///{folder}", "main", memory=memory, spill=spill)
    with opened(policy) as gateway:
        title = f"DuckDB {duckdb.__version__} over Parquet, {size}, processor time"
        print_table(title, gateway, raw_in_duckdb(gateway[1]), rounds, QUERIES[queries], time.process_time)
    print(f"\n{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB at most")


def measure_spark(folder: Path, size: str, rounds: int, memory: int, queries: slice) -> None:
    """Print the table of a local Spark server over Parquet files, in processor time."""
    settings = {"spark.driver.memory": f"{memory}g", "spark.sql.shuffle.partitions": "64"}
    with local_server(folder.parent, settings=settings) as server:

        def run(*statements: str) -> list[Any]:
            from dpsql.backends.spark_sessions import SparkSessions  # its client is no part of a plain dpsql

            with SparkSessions(server.url, "UTC").session(Cancellation(), 3600) as session:
                return [session.sql(statement).collect() for statement in statements]

        def clock() -> float:
            """Processor time of the gateway and of the server; clock_getcpuclockid(3) numbers the server's clock so."""
            return time.process_time() + time.clock_gettime((~server.process.pid << 3) | 2)

        run(
            *(
                f"CREATE TABLE {table} ({columns}) USING parquet LOCATION '{folder / table}'"
                for table, columns in SPARK_TABLES.items()
            )
        )
        with opened(make_policy(folder.with_name("spark.toml"), server.url, "default")) as gateway:
            title = f"Spark {version('pyspark')} over Parquet, {size}, processor time"
            print_table(title, gateway, run, rounds, QUERIES[queries], clock, whole=False)


def measure_postgres(
    file: Path, size: str, rounds: int, server_url: str | None, version: int, only: str | None
) -> None:
    """Print the tables of PostgreSQL, without and with the advised indexes, or some of them."""
    with served(file, server_url, version) as url, connect(url) as connection:
        name = f"PostgreSQL {connection.info.server_version // 10_000}, {size}"

        def raw(sql: str) -> object:
            return connection.execute(sql.encode(), binary=True).fetchall()

        def print_tables(told: str) -> tuple[str, ...]:
            """What is not prepared; returns the advice."""
            if only in (None, "private"):
                with opened(make_policy(path, url, "public")) as gateway:
                    print_table(f"{name}{told}", gateway, raw, rounds)
            with opened(make_policy(path, url, "public", declared=True, rows_per_group=50)) as gateway:
                if only in (None, "declared"):
                    print_table(f"{name}, declared{told}", gateway, raw, rounds, DECLARED)
                return gateway[1].advice()

        path = file.with_name("postgres.toml")
        if only != "prepared":
            connection.execute("VACUUM ANALYZE")
            for statement in print_tables(""):
                connection.execute(statement.encode())
            connection.execute("VACUUM ANALYZE")
            print_tables(", with the advised indexes")
        if only in (None, "prepared"):
            print_prepared(name, path, url, "public", lambda _: raw, rounds)


def numbered(text: str) -> slice:
    """Some of the queries, numbered from 1: `5`, or `3-8`."""
    first, _, last = text.partition("-")
    return slice(int(first) - 1, int(last or first))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--units", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=9)
    engines = ("duckdb", "parquet", "postgres", "spark")
    parser.add_argument("--engine", choices=engines, help="one of them alone")
    parser.add_argument("--url", help="of a PostgreSQL server, as a role that may make databases")
    parser.add_argument("--version", type=int, default=18, help="of the PostgreSQL server that is made without --url")
    parser.add_argument("--memory", type=int, help="gigabytes of the engine over Parquet files, or of Spark")
    parser.add_argument("--spill", action="store_true", help="let the engine over Parquet files spill")
    parser.add_argument("--queries", type=numbered, default="1-8", help="over Parquet files and Spark: these alone")
    parser.add_argument("--processor-time", action="store_true", help="of DuckDB, which runs in this process")
    parser.add_argument("--only", choices=("private", "declared", "prepared"), help="some of the tables")
    arguments = parser.parse_args()
    size = f"{arguments.rows:,} rows of {arguments.units:,} units"
    with tempfile.TemporaryDirectory() as folder:
        if arguments.engine == "parquet":
            spill = Path(folder) / "spill" if arguments.spill else None
            if spill is not None:
                spill.mkdir(mode=0o700)
            made = Path(folder) / "incomes"
            make_folder(made, arguments.rows, arguments.units)
            measure_parquet(made, size, arguments.rounds, arguments.memory, spill, arguments.queries)
            return
        if arguments.engine == "spark":
            made = Path(folder) / "incomes"
            make_folder(made, arguments.rows, arguments.units)
            measure_spark(made, size, arguments.rounds, arguments.memory or 2, arguments.queries)
            return
        file = Path(folder) / "incomes.duckdb"
        make_file(file, arguments.rows, arguments.units)
        if arguments.engine != "duckdb":
            server = (arguments.url, arguments.version)
            measure_postgres(file, size, arguments.rounds, *server, arguments.only)
        if arguments.engine != "postgres":
            clock = time.process_time if arguments.processor_time else time.perf_counter
            measure_duckdb(file, size, arguments.rounds, arguments.only, clock)


if __name__ == "__main__":
    main()
