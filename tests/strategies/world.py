"""A small world in which everything that can go wrong does: its tables, its policy, and the engines that hold it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import duckdb
import numpy as np

from dpsql.backends import Backend, Cancellation, DuckDBBackend, ExactCells, PublicRows, prepare_tables
from dpsql.backends.duckdb_prepared import create_prepared
from dpsql.compiler.bounding.prepared_tables import PreparedTablePlan, plan_prepared
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.ir.schema import PreparedTable
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedInput, PlannedRelease
from dpsql.compiler.scope.lowering import Constants
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.policy import load_policy
from dpsql.sqltypes import SqlType

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONSTANTS = Constants(NOW, "ana", "survey", "PostgreSQL 15.0 (dpsql)")
SETTINGS = QuerySettings(Fraction(1), Fraction(1, 10**6), "auto", NOW)

TABLES: dict[str, str] = {
    "people": "pid INTEGER PRIMARY KEY, age INTEGER, sex VARCHAR, city VARCHAR, weight DOUBLE, debt INTEGER, "
    "born DATE, member BOOLEAN, seen TIMESTAMP",
    "visits": "visit_id VARCHAR, pid INTEGER, cost DECIMAL(12, 2), huge HUGEINT, n BIGINT, ratio DOUBLE, f FLOAT, "
    "day DATE, met TIMESTAMP, zoned TIMESTAMPTZ, kind INTEGER, grade DECIMAL(4, 1), note VARCHAR, flag BOOLEAN, "
    "tag UUID, clock TIME",
    "lines": "visit_id VARCHAR, drug VARCHAR, boxes SMALLINT, dose DOUBLE",
    "stays": "stay_id INTEGER PRIMARY KEY, pid INTEGER, ward VARCHAR COLLATE NOCASE, nights INTEGER",
    "meals": "stay_id INTEGER, dish VARCHAR, price DECIMAL(6, 2)",
    "cards": "pid INTEGER, points INTEGER, level VARCHAR",
    "letters": "who VARCHAR, topic VARCHAR, words INTEGER",
    "kinds": "code INTEGER, title VARCHAR",
    "grades": "value DECIMAL(4, 1)",
}

POLICY = """
version = 1

[dataset]
name = "survey"
url = "duckdb:///{file}"
privacy_unit = "person"
adjacency = "{adjacency}"
timezone = "Europe/Berlin"
budget = {{ epsilon = 1e4, delta = 1e-2 }}

[roles.analyst]
budget = {{ epsilon = 1e4, delta = 1e-2 }}
query = {{ epsilon = 1, delta = 1e-6, max_epsilon = 10 }}

[tables.people]
unit_key = "pid"
max_rows = 1
[tables.people.columns]
age = {{ type = "integer", lower = 0, upper = 110 }}
sex = {{ type = "text", values = ["F", "M", "X"] }}
city = {{ type = "text" }}
weight = {{ type = "double", lower = 1, upper = 300, step = 0.1 }}
debt = {{ type = "integer", lower = -90, upper = -10 }}
born = {{ type = "date", lower = 2000-01-01, upper = 2000-02-10 }}
member = {{ type = "boolean" }}
seen = {{ type = "timestamp", lower = 2024-01-01T00:00:00, upper = 2024-01-02T12:00:00 }}

[tables.visits]
unit_key = "pid"
max_rows = 9
max_groups = 3
max_rows_per_group = 3
[tables.visits.columns]
pid = {{ type = "integer" }}
cost = {{ type = "decimal", lower = 0, upper = 50, step = 0.01 }}
huge = {{ type = "decimal", lower = -1000, upper = 1000, step = 1 }}
n = {{ type = "bigint", lower = 3, upper = 9 }}
ratio = {{ type = "double", lower = -1, upper = 1 }}
f = {{ type = "real", lower = 0, upper = 1, step = 0.3 }}
day = {{ type = "date", lower = 2024-01-01, upper = 2024-01-20 }}
met = {{ type = "timestamp", lower = 2024-01-01T00:00:00, upper = 2024-01-03T00:00:00 }}
zoned = {{ type = "timestamptz", lower = 2024-01-01T00:00:00Z, upper = 2024-01-03T00:00:00Z }}
kind = {{ type = "integer", values_from = "kinds.code", lower = 0, upper = 1 }}
grade = {{ type = "decimal", values_from = "grades.value" }}
note = {{ type = "text" }}
flag = {{ type = "boolean" }}
tag = {{ type = "uuid", values = ["00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"] }}
clock = {{ type = "time" }}

[tables.lines]
unit_via = {{ table = "visits", on = {{ visit_id = "visit_id" }} }}
max_groups = 3
max_rows_per_group = 2
[tables.lines.columns]
drug = {{ type = "text" }}
boxes = {{ type = "smallint", lower = 0, upper = 10 }}
dose = {{ type = "double", lower = -5, upper = 5, step = 0.25 }}

[tables.stays]
unit_key = "pid"
max_rows = 3
[tables.stays.columns]
ward = {{ type = "text" }}
nights = {{ type = "integer", lower = 1, upper = 30 }}

[tables.meals]
unit_via = {{ table = "stays", on = {{ stay_id = "stay_id" }} }}
max_rows = 4
max_groups = 1
max_rows_per_group = 4
[tables.meals.columns]
dish = {{ type = "text", values = ["soup", "Soup", "fish"] }}
price = {{ type = "decimal", values = [1.5, 2, 2.5] }}

[tables.cards]
unit_key = "pid"
max_rows = 1
[tables.cards.columns]
points = {{ type = "integer", lower = 3, upper = 9 }}
level = {{ type = "text" }}

[tables.letters]
unit_key = "who"
max_rows = 5
max_groups = 3
max_rows_per_group = 2
[tables.letters.columns]
topic = {{ type = "text" }}
words = {{ type = "integer", lower = -3, upper = 40 }}

[tables.kinds]
public = true
[tables.kinds.columns]
code = {{ type = "integer" }}
title = {{ type = "text" }}

[tables.grades]
public = true
[tables.grades.columns]
value = {{ type = "decimal" }}
"""

KINDS = "(0, 'a'), (1, 'b'), (2, 'c'), (3, 'd'), (4, 'e'), (5, NULL), (NULL, 'f'), (1, 'again')"
GRADES = "(0.5), (0.6), (0.7), (0.8), (0.9), (1.0), (1.1), (1.2), (1.3), (1.4), (NULL)"

_SETTINGS = ("TimeZone", "disabled_optimizers")
"""What the backend sets for its engine and the engine in memory takes over."""

Rows = Mapping[str, Sequence[Sequence[str]]]
"""By table, rows of SQL constants, in physical order."""


def create(connection: duckdb.DuckDBPyConnection, rows: Rows) -> None:
    """Make the tables anew and fill them."""
    filled = {name: ", ".join(f"({', '.join(row)})" for row in rows.get(name, ())) for name in TABLES}
    filled |= {"kinds": KINDS, "grades": GRADES}
    statements = [f"CREATE OR REPLACE TABLE {name} ({columns})" for name, columns in TABLES.items()]
    statements += [f"INSERT INTO {name} VALUES {values}" for name, values in filled.items() if values]
    connection.execute("; ".join(statements))


_WORDS = ("soup", None, "Soup", "é", "12", "", "\0", "v1")
_DAYS = ("2024-01-02", "2024-01-20", None, "0001-01-01", "9999-12-31", "2000-01-31")
_TEXTS: dict[SqlType, tuple[str | None, ...]] = {
    SqlType.BOOLEAN: ("true", "false", None),
    **dict.fromkeys((SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT), ("1", "7", "0", None, "-32768", "32767")),
    SqlType.NUMERIC: ("0.5", "2.0000000000", "-7", None, "9999999999.99"),
    **dict.fromkeys((SqlType.REAL, SqlType.DOUBLE), ("1.05", "-0.0", "1e308", None, "0.5", "nan", "inf")),
    SqlType.DATE: _DAYS,
    SqlType.TIMESTAMP: tuple(day and f"{day} 10:30:00" for day in _DAYS),
    SqlType.TIMESTAMPTZ: tuple(day and f"{day} 10:30:00+01" for day in _DAYS),
    SqlType.TIME: ("12:00:00", "23:59:59.999999", None),
    SqlType.UUID: ("00000000-0000-0000-0000-00000000000a", None),
    SqlType.INTERVAL: ("1 day", "-3 months", None),
}


def any_rows(made: PlannedInput) -> PublicRows:
    """Rows that an engine query may find where it reads releases: of its types, and made of nothing but its SQL."""
    count = 1 if made.single else 9
    seed = sha256(made.sql.encode()).digest()
    pools = [_TEXTS.get(sql_type, _WORDS) for sql_type in made.types]
    columns = [[pool[(seed[i % 32] + row) % len(pool)] for row in range(count)] for i, pool in enumerate(pools)]
    return PublicRows(tuple(np.array(column, dtype=object) for column in columns), count)


class Survey:
    """The policy over an engine whose rows a test changes at will, in a DuckDB database in memory.

    Of the survey's file only the schema is read. Other engines override `prepare`, which lets them hold the same rows.
    """

    def __init__(self, catalog: Catalog, backend: Backend, memory: duckdb.DuckDBPyConnection) -> None:
        self.catalog = catalog
        self.backend = backend
        self.memory = memory

    def compile(self, sql: str, settings: QuerySettings = SETTINGS) -> CompiledQuery:
        """Plan a query; raises the typed refusal."""
        return compile_query(QueryStatement(sql), self.catalog, settings, CONSTANTS)

    def fill(self, rows: Rows, threads: int = 1) -> None:
        """Let the engine hold these rows and no others."""
        create(self.memory, rows)
        self.memory.execute(f"SET threads = {threads}")
        self.prepare()

    def change(self, sql: str) -> None:
        """Run a statement of DuckDB's over the rows, whatever engine holds them."""
        self.memory.execute(sql)
        self.prepare()

    def run(self, sql: str) -> None:
        """Run a statement of the owner's on the engine that is asked."""
        self.memory.execute(sql)

    def reason(self, release: PlannedRelease) -> str:
        """The engine's own words for why it fails, and its SQL."""
        try:
            self.memory.cursor().execute(release.sql).fetchnumpy()
        except duckdb.Error as error:
            return f"{error}\n{release.sql}"
        return release.sql

    def prepare(self) -> None:
        """Let the engine hold the rows in memory, and copies of them where the survey has bounded copies."""
        for copy, plan in self.copies:
            name = ".".join(map(DuckDB.quote_name, copy.path))
            self.memory.execute(f"CREATE OR REPLACE TABLE {name} ({plan.columns}); INSERT INTO {name} {plan.rows}")

    @cached_property
    def copies(self) -> list[tuple[PreparedTable, PreparedTablePlan]]:
        """The bounded copies that queries may be answered from."""
        plans = {plan.table: plan for plan in plan_prepared(self.catalog.policy, self.catalog.schema)}
        found = self.catalog.schema.copies
        return [(copy, plans[name]) for name, copy in found.items() if isinstance(copy, PreparedTable)]

    def fetch(self, releases: Iterable[PlannedRelease]) -> list[ExactCells]:
        """The exact, bounded cells of releases, whatever the releases that they read gave."""
        planned = dict(enumerate(releases))
        inputs = {index: tuple(map(self.rows_for, release.inputs)) for index, release in planned.items()}
        exact = self.backend.fetch(planned, (), Cancellation(), inputs)
        return [exact.releases[index] for index in range(len(exact.releases))]

    def rows_for(self, made: PlannedInput) -> PublicRows:
        """Rows that a release may find where it reads another."""
        return any_rows(made)

    def close(self) -> None:
        """Let go of the engine."""
        self.backend.close()
        self.memory.close()


def survey_file(folder: Path, rows: Rows) -> Path:
    """A DuckDB file with these rows."""
    path = folder / "survey.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("SET TimeZone = 'Europe/Berlin'")
        create(connection, rows)
    return path


def policy_file(folder: Path, adjacency: str, most: int | None = None) -> Path:
    """The policy of the survey, beside its database; with `most` rows and groups of a unit in place of its own."""
    path = folder / f"{adjacency}.toml"
    text = POLICY.format(file="survey.duckdb", adjacency=adjacency)
    if most is not None:
        limits = f"max_rows = {most}\nmax_groups = {most}\nmax_rows_per_group = {most}"
        text = re.sub(r"^max_\w+ = \d+\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"^(unit_(?:key|via) = .*)$", rf"\1\n{limits}", text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")
    return path


def open_survey(folder: Path, adjacency: str, most: int | None = None, *, prepared: bool = False) -> Survey:
    """The survey over an engine in memory, and with bounded copies if `prepared`."""
    if not (folder / "survey.duckdb").exists():
        survey_file(folder, {})
    policy = load_policy(policy_file(folder, adjacency, most))
    if prepared:
        prepare_tables(policy)
    backend = DuckDBBackend(str(folder / "survey.duckdb"), policy)
    memory = duckdb.connect(":memory:")
    for name in _SETTINGS:
        found = backend._database.execute(f"SELECT current_setting('{name}')").fetchone()
        memory.execute(f"SET GLOBAL {name} = '{found[0] if found else ''}'")
    backend._database.close()
    backend._database, backend._use = memory, "USE memory"
    if prepared:
        create_prepared(memory, policy, ())
    return Survey(Catalog(policy, backend.schema, policy.roles[0]), backend, memory)
