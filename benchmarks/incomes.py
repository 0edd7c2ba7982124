"""Two tables for measuring, the same on both engines: many rows a unit, skewed, and one row a unit.

`incomes` has rows in the order in which they might have happened: a unit's rows lie anywhere. Four in five of them are
in the unit's home region; the busiest unit has hundreds of rows, and half of the units fewer than 20.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
import psycopg

from tests.postgres import Server, own_server, url_of

REGIONS: Final = 20
DAYS: Final = 365
_CHUNK: Final = 1 << 20

_INCOMES: Final = """
SELECT CAST({units} * pow(hash(i, 1) / 18446744073709551616.0, 1.5) AS INTEGER) AS user_id,
    DATE '2026-01-01' + CAST(hash(i, 2) % {days} AS INTEGER) AS day,
    'region ' || (CASE WHEN hash(i, 3) % 5 < 4 THEN hash(user_id, 5) ELSE hash(i, 4) END % {regions}) AS region,
    CAST(hash(i, 6) % 120000 AS INTEGER) AS income
FROM range({rows}) AS r(i)
"""
_PEOPLE: Final = """
SELECT CAST(i AS INTEGER) AS user_id, 'region ' || (hash(i, 7) % {regions}) AS region,
    CAST(hash(i, 8) % 120000 AS INTEGER) AS income
FROM range({rows}) AS r(i)
"""
_DEFINITIONS: Final = b"""
CREATE TABLE incomes (user_id integer, day date, region text, income integer);
CREATE TABLE people (user_id integer PRIMARY KEY, region text, income integer);
"""
_POLICY: Final = """
version = 1

[dataset]
name = "incomes"
url = "{url}"
schema = "{schema}"
privacy_unit = "user"
data_version = "1"
budget = {{ epsilon = 10000, delta = 1e-3 }}

[roles.analyst]
budget = {{ epsilon = 10000, delta = 1e-3 }}
query = {{ epsilon = 0.1, delta = 1e-9 }}

[tables.incomes]
unit_key = "user_id"
max_rows = 50
max_groups = 20
max_rows_per_group = {rows_per_group}
[tables.incomes.columns]
day = {{ type = "date" }}
region = {{ type = "text" }}
income = {{ type = "integer", lower = 0, upper = 100000 }}

[tables.people]
unit_key = "user_id"
max_rows = 1
[tables.people.columns]
region = {{ type = "text" }}
income = {{ type = "integer", lower = 0, upper = 100000 }}
"""


def make_file(path: Path, rows: int, units: int) -> None:
    """Make the tables in a DuckDB file."""
    with duckdb.connect(str(path)) as database:
        incomes, people = _generated(rows, units)
        database.execute(f"CREATE TABLE incomes AS {incomes}")
        database.execute("CREATE TABLE people (user_id INTEGER PRIMARY KEY, region VARCHAR, income INTEGER)")
        database.execute(f"INSERT INTO people {people}")


def make_folder(path: Path, rows: int, units: int) -> None:
    """Make the tables as Parquet files of a quarter of a gigabyte."""
    path.mkdir()
    with duckdb.connect() as database:
        database.execute("SET preserve_insertion_order = false; SET threads = 2")  # it takes less memory so
        for name, rows_of in zip(("incomes", "people"), _generated(rows, units), strict=True):
            database.execute(f"COPY ({rows_of}) TO '{path / name}' (FORMAT parquet, FILE_SIZE_BYTES '256MB')")


def _generated(rows: int, units: int) -> list[str]:
    return [each.format(rows=rows, units=units, days=DAYS, regions=REGIONS) for each in (_INCOMES, _PEOPLE)]


def make_policy(
    path: Path,
    url: str,
    schema: str,
    *,
    prepared: bool = False,
    declared: bool = False,
    rows_per_group: int = 10,
    memory: int | None = None,
    spill: Path | None = None,
) -> Path:
    """Write the policy of the tables.

    Args:
        path: Where to.
        url: Of the database.
        schema: Of the tables.
        prepared: Whether copies are read whatever the error.
        declared: Whether the policy says which days and regions there are.
        rows_per_group: How many rows of a person count in one group.
        memory: The engine's, in gigabytes; None for its default.
        spill: Where the engine may spill; None if it may not.
    """
    text = _POLICY.format(url=url, schema=schema, rows_per_group=rows_per_group)
    if prepared:
        copies = 'prepared_schema = "copies"\n' if url.startswith("postgres") else ""
        text = text.replace("[dataset]\n", f"[dataset]\n{copies}max_error_ratio = 1000\n")
    if memory is not None:
        text = text.replace("[dataset]\n", f'[dataset]\nmemory = "{memory}GB"\n')
    if spill is not None:
        text = text.replace("[dataset]\n", f'[dataset]\nspill = "{spill}"\n')
    if declared:
        regions = ", ".join(f'"region {region}"' for region in range(REGIONS))
        text = text.replace('region = { type = "text" }', f'region = {{ type = "text", values = [{regions}] }}')
        days = "lower = 2026-01-01, upper = 2026-12-31"
        text = text.replace('day = { type = "date" }', f'day = {{ type = "date", {days} }}')
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def served(file: Path, server_url: str | None, version: int) -> Iterator[str]:
    """The tables of a file in a database of their own, on the server of a URL or on a new one; gives its URL."""
    if server_url is not None:
        with Server(server_url).database() as name:
            yield _loaded(file, Server(server_url), name)
        return
    with own_server(version) as server, server.database() as name:
        yield _loaded(file, server, name)


def _loaded(file: Path, server: Server, name: str) -> str:
    with server.connect(name) as target, duckdb.connect(str(file), read_only=True) as source:
        target.execute(_DEFINITIONS)
        for table in ("incomes", "people"):
            path = file.with_name(f"{table}.csv")
            source.execute(f"COPY {table} TO '{path}' (HEADER false)")
            statement = f"COPY {table} FROM STDIN (FORMAT csv)".encode()
            with path.open("rb") as rows, target.cursor() as cursor, cursor.copy(statement) as copy:
                while chunk := rows.read(_CHUNK):
                    copy.write(chunk)
            path.unlink()
    server.run("VACUUM ANALYZE", database=name)
    return url_of(server.url, dbname=name)


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """A connection for raw queries, on the terms of dpsql's own."""
    connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
    connection.execute("SET jit = off")
    connection.execute("SET random_page_cost = 1.1")
    connection.execute("SET parallel_tuple_cost = 0.01")
    return connection
