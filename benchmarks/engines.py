"""Time of bounded SQL beside the same raw query on both engines, interleaved: the tables of docs/benchmarks.md.

    python -m benchmarks.engines [--rows 1000000] [--units 50000] [--rounds 9] [--engine duckdb|postgres] [--url URL]
        [--prepared]

"engine" is the bounded SQL alone, as the gateway runs and fetches it; "answer" is the whole way: compile, durable
charge, engine, noise, store, post-processing. On PostgreSQL all is measured again with the indexes that `dpsql policy
check --advise` names. "prepared" is the steady state once `dpsql prepare` has made copies, read whatever the error:
under a policy that declares days and regions, so that groups need no selection, and under one that does not;
`--prepared` measures it alone.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Final

import duckdb

from benchmarks.incomes import connect, make_file, make_policy, served
from dpsql.backends import Backend, Cancellation, open_backend, prepare_tables
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.gateway.engine import Engine
from dpsql.gateway.settings import Reuse
from dpsql.ledger import open_ledger
from dpsql.policy import load_policy

Raw = Callable[[str], object]
Gateway = tuple[Engine, Backend]
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
PREPARED: Final = tuple((name, sql, AS_THEY_ARE) for name, sql, _ in QUERIES[:5])
"""Those of many rows a unit, under the bounds of the copies."""


FORMS: Final = (
    ("many_groups", "units with too many groups ranked"),
    ("coded", "rows ranked"),
    ("ranked", "all units' groups ranked"),
    ("per_unit", "put together by unit"),
)
"""A step of the bounded SQL, and the form that has it; the first that is there."""


def form_of(sql: str) -> str:
    """Return how the units' contributions are bounded in engine SQL."""
    return next((form for step, form in FORMS if f" {step} AS " in sql), "values clamped")


def milliseconds(run: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1000


def measure(gateway: Gateway, raw: Raw, sql: str, bounds: Bounds, rounds: int) -> tuple[str, float, float, float]:
    """Return the form, and median milliseconds of the raw query, the bounded SQL, and the whole answer beside it.

    The last is the median of answer − engine over the rounds, for the engine's own time varies more than the rest.
    """
    engine, backend = gateway
    ratio = engine.policy.dataset.max_error_ratio
    settings = QuerySettings(
        Fraction(1, 10), Fraction(1, 10**9), "auto", engine.now(), False, *bounds, max_error_ratio=ratio
    )
    statement = QueryStatement(sql)
    releases = dict(enumerate(engine.compile("bench", statement, settings).releases))

    def answer() -> None:
        engine.execute("bench", engine.compile("bench", statement, settings), Cancellation(), reuse=Reuse.OFF)

    times = []
    for turn in range(rounds + 1):
        taken = (
            milliseconds(lambda: raw(sql)),
            milliseconds(lambda: backend.fetch(releases, (), Cancellation())),
            milliseconds(answer),
        )
        times += [taken] if turn else []  # the first warms the caches
    of_raw, of_engine, whole = zip(*times, strict=True)
    beside = statistics.median(answered - fetched for answered, fetched in zip(whole, of_engine, strict=True))
    return form_of(releases[0].sql), statistics.median(of_raw), statistics.median(of_engine), beside


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
    title: str, gateway: Gateway, raw: Raw, rounds: int, queries: Sequence[tuple[str, str, Bounds]] = QUERIES
) -> None:
    """Measure and print queries on one engine."""
    print(f"\n{title}\n\n| query | form | raw, ms | engine, ms | engine / raw | answer − engine, ms |\n{'|---' * 6}|")
    for name, sql, bounds in queries:
        form, of_raw, of_engine, beside = measure(gateway, raw, sql, bounds, rounds)
        ratio = f"{of_engine / of_raw:.1f}×"
        print(f"| {name} | {form} | {of_raw:.1f} | {of_engine:.1f} | {ratio} | {beside:.1f} |", flush=True)


def print_prepared(title: str, path: Path, url: str, schema: str, raw: Callable[[Backend], Raw], rounds: int) -> None:
    """Prepare copies, and measure and print the queries of many rows a unit over them."""
    for told, declared in (("", True), ("; days and regions are private", False)):
        policy = make_policy(path, url, schema, prepared=True, declared=declared)
        start = time.perf_counter()
        prepare_tables(load_policy(policy))
        took = time.perf_counter() - start
        with opened(policy) as gateway:
            print_table(f"{title}, prepared in {took:.1f} s{told}", gateway, raw(gateway[1]), rounds, PREPARED)


def measure_duckdb(file: Path, size: str, rounds: int, *, prepared: bool) -> None:
    """Print the tables of DuckDB, or that of copies alone."""
    title = f"DuckDB {duckdb.__version__}, {size}"
    url, path = f"duckdb:///{file}", file.with_name("duckdb.toml")

    def raw(backend: Backend) -> Raw:
        # The file is open in this process already, with the gateway's settings.
        cursor = backend._database.cursor()  # type: ignore[attr-defined]  # the engine's own settings, raw
        cursor.execute(backend._use)  # type: ignore[attr-defined]
        return lambda sql: cursor.execute(sql).fetchnumpy()

    if not prepared:
        with opened(make_policy(path, url, "main")) as gateway:
            print_table(title, gateway, raw(gateway[1]), rounds)
    print_prepared(title, path, url, "main", raw, rounds)


def measure_postgres(
    file: Path, size: str, rounds: int, server_url: str | None, version: int, *, prepared: bool
) -> None:
    """Print the tables of PostgreSQL, without and with the advised indexes, or that of copies alone."""
    with served(file, server_url, version) as url, connect(url) as connection:
        name = f"PostgreSQL {connection.info.server_version // 10_000}, {size}"

        def raw(sql: str) -> object:
            return connection.execute(sql.encode(), binary=True).fetchall()

        policy = make_policy(file.with_name("postgres.toml"), url, "public")
        if not prepared:
            with opened(policy) as gateway:
                print_table(name, gateway, raw, rounds)
                for statement in gateway[1].advice():
                    connection.execute(statement.encode())
            connection.execute("VACUUM ANALYZE")
            with opened(policy) as gateway:
                print_table(f"{name}, with the advised indexes", gateway, raw, rounds)
        print_prepared(name, policy, url, "public", lambda _: raw, rounds)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--units", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--engine", choices=("duckdb", "postgres"), help="one of them alone")
    parser.add_argument("--url", help="of a PostgreSQL server, as a role that may make databases")
    parser.add_argument("--version", type=int, default=18, help="of the PostgreSQL server that is made without --url")
    parser.add_argument("--prepared", action="store_true", help="prepared tables alone")
    arguments = parser.parse_args()
    size = f"{arguments.rows:,} rows of {arguments.units:,} units"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "incomes.duckdb"
        make_file(file, arguments.rows, arguments.units)
        if arguments.engine != "duckdb":
            server = (arguments.url, arguments.version)
            measure_postgres(file, size, arguments.rounds, *server, prepared=arguments.prepared)
        if arguments.engine != "postgres":
            measure_duckdb(file, size, arguments.rounds, prepared=arguments.prepared)


if __name__ == "__main__":
    main()
