"""The workloads of Turbo, over departures from New York in 2013: counts of rows under random conditions.

Reference: Kostopoulou et al., Turbo: Effective Caching in Differentially-Private Databases, SOSP 2023, section 6. One
table there has four attributes of 2, 2, 4 and 8 values; its pool of 34,425 queries has each combination of non-empty
sets of values. Queries are drawn from the pool by a Zipf law of exponent 0 (each alike) or 1. The other workload counts
rows between two values of an attribute. Turbo's own data are not used: these attributes have as many values, and a unit
has one row, as there.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

from dpsql.backends import DuckDBBackend
from dpsql.gateway.engine import Engine
from dpsql.ledger import open_ledger
from dpsql.policy import load_policy
from examples.load_flights import load

ATTRIBUTES = {
    "late": ("no", "yes"),
    "far": ("no", "yes"),
    "season": ("1", "2", "3", "4"),
    "carrier": ("9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US"),
}
_TABLE = f"""CREATE TABLE departures AS
    SELECT CAST(row_number() OVER () AS INTEGER) AS id, CASE WHEN dep_delay > 15 THEN 'yes' ELSE 'no' END AS late,
        CASE WHEN distance > 1000 THEN 'yes' ELSE 'no' END AS far, CAST((month + 2) // 3 AS VARCHAR) AS season, carrier,
        date_diff('day', DATE '2013-01-01', make_date(2013, month, day)) AS day
    FROM flights WHERE carrier IN {ATTRIBUTES["carrier"]}"""
_POLICY = """version = 1
[dataset]
name = "departures"
url = "duckdb:///departures.duckdb"
privacy_unit = "departure"
adjacency = "add_remove"
data_version = "1"
budget = { epsilon = 10000, delta = 1e-3 }
[roles.analyst]
budget = { epsilon = 10000, delta = 1e-3, accountant = "zcdp" }
query = { epsilon = 0.1, delta = 1e-9 }
[tables.departures]
unit_key = "id"
max_rows = 1
[tables.departures.columns]
day = { type = "bigint", lower = 0, upper = 364 }
"""


def make_engine(folder: Path) -> tuple[Engine, DuckDBBackend]:
    """Return an engine over the departures, with a budget that the benchmark does not exhaust."""
    path = folder / "departures.duckdb"
    load(path)
    with duckdb.connect(str(path)) as connection:
        connection.execute(_TABLE)
        connection.execute("ALTER TABLE departures ADD PRIMARY KEY (id)")
    columns = (f'{name} = {{ type = "text", values = {list(values)} }}\n' for name, values in ATTRIBUTES.items())
    (folder / "departures.toml").write_text(_POLICY + "".join(columns))
    policy = load_policy(folder / "departures.toml")
    backend = DuckDBBackend(policy.dataset.url.removeprefix("duckdb://"), policy)
    return Engine(policy, open_ledger(f"sqlite:///{folder / 'departures.sqlite'}"), backend), backend


def _drawn(pool: Sequence[str], exponent: int, count: int) -> Iterator[str]:
    """Queries of a pool, drawn by a Zipf law: the same in each run."""
    lots = random.Random(2)
    ranked = lots.sample(pool, len(pool))
    yield from lots.choices(ranked, [(place + 1) ** -exponent for place, _ in enumerate(ranked)], k=count)


def _sets(values: Sequence[str]) -> list[str]:
    """A condition for each set of values."""
    places = range(1, 2 ** len(values))
    chosen = ([value for place, value in enumerate(values) if bits >> place & 1] for bits in places)
    return [", ".join(f"'{value}'" for value in each) for each in chosen]


def subsets(exponent: int, count: int) -> Iterator[str]:
    """An overview by all attributes, then counts under sets of their values."""
    names = ", ".join(ATTRIBUTES)
    everything = " AND ".join(f"{name} IN ({_sets(values)[-1]})" for name, values in ATTRIBUTES.items())
    yield f"SELECT {names}, COUNT(*) FROM departures WHERE {everything} GROUP BY {names}"
    pool = [""]
    for name, values in ATTRIBUTES.items():
        pool = [f"{each} AND {name} IN ({some})" for each in pool for some in _sets(values)]
    yield from (f"SELECT COUNT(*) FROM departures WHERE {everything}{each}" for each in _drawn(pool, exponent, count))


def ranges(exponent: int, count: int) -> Iterator[str]:
    """An overview by day, then counts between two days."""
    yield "SELECT day, COUNT(*) FROM departures GROUP BY day"
    pool = [f"day BETWEEN {low} AND {high}" for low in range(365) for high in range(low, 365)]
    yield from (f"SELECT COUNT(*) FROM departures WHERE {each}" for each in _drawn(pool, exponent, count))
