"""`dpsql policy check` compares a policy with its database, on both engines, and tells the owner what it found."""

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from dpsql.backends import open_backend
from dpsql.backends.duckdb import DuckDBBackend
from dpsql.backends.postgres import PostgresBackend
from dpsql.policy import load_policy
from tests.cli.conftest import Run
from tests.compiler.plans import Planner
from tests.engines import Host
from tests.postgres import Server, role_of, served_clinic

TABLES = """
    CREATE TABLE people (id INTEGER PRIMARY KEY, age INTEGER, weight DOUBLE, height DECIMAL(5, 2), sex VARCHAR,
        town VARCHAR, seen TIMESTAMP, note VARCHAR);
    INSERT INTO people VALUES
        (1, 30, 70.5, 1.75, 'F', 'A', '2024-01-01', 'x'),
        (2, -1, 'NaN', 0.5, 'M', 'B', '1999-12-31', NULL),
        (3, 200, 'inf', 3.01, '?', 'C', 'infinity', 'x'),
        (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        (5, 110, 300, 3, 'F', 'Z', '2030-01-01', 'x');
    CREATE TABLE towns (town VARCHAR);
    INSERT INTO towns VALUES ('A'), ('B'), ('C'), (NULL);
    CREATE TABLE events (number INTEGER, person INTEGER, kind INTEGER);
    INSERT INTO events VALUES (1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 1), (5, NULL, 1), (6, 1, 9), (7, 3, NULL);
    CREATE TABLE details (number INTEGER);
    INSERT INTO details VALUES (1), (1), (5), (99), (NULL), (4), (8);
    INSERT INTO events VALUES (8, 1, 1), (8, 2, 1);
    CREATE TABLE lone (id INTEGER);
"""
POLICY = """
version = 1
[dataset]
name = "people"
url = "{url}"
schema = "main"
privacy_unit = "person"
budget = {{ epsilon = 10, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 10, delta = 1e-3 }}
query = {{ epsilon = 1, delta = 1e-9, max_epsilon = 10 }}
[tables.people]
unit_key = "id"
max_rows = 1
[tables.people.columns]
age = {{ type = "integer", lower = 0, upper = 110 }}
weight = {{ type = "double", lower = 1, upper = 299.5, step = 0.1 }}
height = {{ type = "decimal", lower = 0.5, upper = 3, step = 0.01 }}
sex = {{ type = "text", values = ["F", "M"] }}
town = {{ type = "text", values_from = "towns.town" }}
seen = {{ type = "timestamp", lower = 2000-01-01T00:00:00, upper = 2029-12-31T00:00:00 }}
note = {{ type = "text", nullable = false }}
[tables.towns]
public = true
columns = {{ town = {{ type = "text" }} }}
[tables.events]
unit_key = "person"
max_rows = 3
columns = {{ kind = {{ type = "integer", values = [1, 2] }} }}
[tables.details]
unit_via = {{ table = "events", on = {{ number = "number" }} }}
[tables.lone]
unit_key = "id"
max_rows = 1
"""
CHECKED = """
people: 5 rows, 5 units (person); {bound}
  age: values outside lower and upper (clamped): 2
  weight: values that are not finite values of their type (counted as NULL): 2
  weight: values outside lower and upper (clamped): 1
  height: values outside lower and upper (clamped): 1
  sex: values outside the domain (their rows are in no group): 1
  town: values outside the domain (their rows are in no group): 1
  seen: values that are not finite values of their type (counted as NULL): 1
  seen: values outside lower and upper (clamped): 2
  note: NULL values despite nullable = false: 2

events: 9 rows, 3 units (person); max_rows = 3 is enforced in SQL
  rows without a person (dropped): 1
  persons with more than 3 rows; their other rows are dropped: 1
  kind: values outside the domain (their rows are in no group): 1

details: 7 rows, 2 units (person); max_rows = 3 is enforced in SQL
  rows without a person (dropped): 2

lone: 0 rows, 0 units (person); max_rows = 1 is enforced in SQL{hint}
"""
DROPPED = """
events: share of rows that a contribution bound drops
  rows of one unit |   1    |   2    |   3    | ± (95 %)
  -----------------+--------+--------+--------+---------
  in all           | 62.5 % | 37.5 % | 25.0 % |    0.0 %
  in one kind      | 37.5 % | 12.5 % |  0.0 % |    0.0 %

details: share of rows that a contribution bound drops
  rows of one unit |   1    |   2    |   3   | ± (95 %)
  -----------------+--------+--------+-------+---------
  in all           | 60.0 % | 20.0 % | 0.0 % |    0.0 %
"""


@pytest.fixture
def people(host: Host, tmp_path: Path) -> Iterator[Path]:
    """A policy with flaws, over a database of each engine."""
    file, policy = tmp_path / "people.duckdb", tmp_path / "people.toml"
    with duckdb.connect(str(file)) as connection:
        connection.execute(TABLES)
    with host.serve(file) as url:
        policy.write_text(POLICY.format(url=url))
        yield policy


def test_what_the_bounds_cut_off_is_counted(run: Run, people: Path) -> None:
    checked = run("policy", "check", people, "--exact")
    assert "WARNING: NO GUARANTEE covers them" in checked.stderr
    told = checked.stdout
    key = "PRIMARY KEY or UNIQUE NOT NULL (id)"
    by_key = {
        "bound": f"{key} allows one row each, so bounding is not needed",
        "hint": f"; {key} would make it unnecessary",
    }
    of_files = {"bound": "max_rows = 1 is enforced in SQL", "hint": ""}
    said = of_files if "parquet:///" in people.read_text(encoding="utf-8") else by_key
    assert told[told.index("\npeople: ") :] == CHECKED.format(**said) + DROPPED
    assert "WITHOUT a guarantee: what the policy's bounds drop" in run("budget", "show", "--policy", people).stdout


def test_a_value_that_duckdb_cannot_write_as_text_is_counted(run: Run, tmp_path: Path) -> None:
    """Seconds and milliseconds reach further than the microseconds that a text is made of."""
    seconds = [pa.array([0, 2**62, None], type=pa.timestamp(unit)) for unit in ("s", "ms")]
    moments = pa.table([pa.array([1, 2, 3]), *seconds], ["id", "seen", "left"])
    with duckdb.connect(str(tmp_path / "people.duckdb")) as connection:
        connection.register("moments", moments)
        connection.execute("CREATE TABLE people AS SELECT * FROM moments")
    text = POLICY.partition("[tables.people.columns]")[0].format(url="duckdb:///people.duckdb")
    policy = tmp_path / "people.toml"
    policy.write_text(f'{text}columns = {{ seen = {{ type = "timestamp" }}, left = {{ type = "timestamp" }} }}\n')
    told = run("policy", "check", policy, "--exact").stdout
    for name in ("seen", "left"):
        assert f"  {name}: values that are not finite values of their type (counted as NULL): 1\n" in told


def test_no_row_is_read_unless_asked(run: Run, people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in (DuckDBBackend, PostgresBackend):
        monkeypatch.setattr(backend, "count", None)
        monkeypatch.setattr(backend, "fetch", None)
    assert (
        f"profile: none in {people.with_name('dpsql-ledger.sqlite')} (dpsql policy profile"
        in run("policy", "check", people).stdout
    )
    assert not people.with_name("dpsql-ledger.sqlite").exists()


def test_a_database_that_fails_while_it_is_counted_is_told(run: Run, people: Path, postgres_server: Server) -> None:
    text = people.read_text()
    if "postgresql" not in text:
        return
    name = text.partition("dbname=")[2].partition("&")[0].partition('"')[0]
    ruined = "CREATE VIEW main.ruined AS SELECT id, 1 / (id - id) AS n FROM main.people"
    postgres_server.run(ruined, database=name)
    people.write_text(text + '[tables.ruined]\nunit_key = "id"\nmax_rows = 1\ncolumns = { n = { type = "integer" } }\n')
    checked = run("policy", "check", people, "--exact", status=1)
    assert "main.ruined is a view: each of its rows must be computed from rows of one unit only" in checked.stdout
    assert "query failed in the database" in checked.stderr


# What a role may do beside reading


def warnings(policy: Path) -> list[str]:
    backend = open_backend(load_policy(policy))
    try:
        return list(backend.warnings())
    finally:
        backend.close()


def test_a_role_that_may_only_read_is_not_warned_of(postgres_clinic: Path) -> None:
    assert warnings(postgres_clinic) == []


def test_rights_that_are_not_needed_are_named(postgres_server: Server, clinic_file: Path, tmp_path: Path) -> None:
    with served_clinic(postgres_server, clinic_file, tmp_path) as policy:
        url = load_policy(policy).dataset.url
        name, role = url.partition("dbname=")[2].partition("&")[0], role_of(url)
        for grant, told in (
            (
                f"GRANT INSERT, UPDATE (age) ON patients TO {role}",
                'may INSERT, UPDATE on "public"."patients". REVOKE INSERT',
            ),
            ("GRANT DELETE, TRUNCATE ON icd10 TO PUBLIC", 'may DELETE, TRUNCATE on "public"."icd10"'),
            (f"ALTER TABLE visits OWNER TO {role}", 'owns "public"."visits". ALTER TABLE'),
            (f"GRANT CREATE ON SCHEMA public TO {role}", 'may make tables. REVOKE CREATE ON SCHEMA "public"'),
            (f"GRANT CREATE ON DATABASE {name} TO {role}", f'may make schemas. REVOKE CREATE ON DATABASE "{name}"'),
            (f"GRANT pg_read_server_files TO {role}", "is a member of pg_read_server_files. REVOKE"),
            (f"ALTER ROLE {role} CREATEROLE", "may make roles or databases"),
            (f"ALTER ROLE {role} REPLICATION", "may copy the whole server"),
            ("ALTER TABLE doctors ENABLE ROW LEVEL SECURITY", "row-level security filters the rows of public.doctors"),
        ):
            before = warnings(policy)
            postgres_server.run(grant, database=name)
            (new,) = set(warnings(policy)) - set(before)
            assert told in new
        postgres_server.run(f"ALTER ROLE {role} SUPERUSER", database=name)
        (only,) = [warning for warning in warnings(policy) if "the role" in warning]
        assert "is a superuser: it may do everything" in only
        postgres_server.run("REVOKE DELETE, TRUNCATE ON icd10 FROM PUBLIC", database=name)


def test_what_takes_a_right_back_does_so(postgres_server: Server, clinic_file: Path, tmp_path: Path) -> None:
    with served_clinic(postgres_server, clinic_file, tmp_path) as policy:
        url = load_policy(policy).dataset.url
        name, role = url.partition("dbname=")[2].partition("&")[0], role_of(url)
        postgres_server.run(
            f"GRANT INSERT ON patients TO {role}",
            f"GRANT CREATE ON SCHEMA public TO {role}",
            f"GRANT CREATE ON DATABASE {name} TO {role}",
            f"GRANT pg_signal_backend TO {role}",
            f"ALTER ROLE {role} CREATEDB REPLICATION",
            database=name,
        )
        told = warnings(policy)
        assert len(told) == 6
        postgres_server.run(*(re.split(r"\. (?=[A-Z])", warning)[1] for warning in told), database=name)
        assert warnings(policy) == []


# Advice


def test_advised_indexes_are_used_and_then_no_longer_advised(
    run: Run, postgres_server: Server, clinic_file: Path, tmp_path: Path
) -> None:
    with served_clinic(postgres_server, clinic_file, tmp_path) as policy:
        loaded = load_policy(policy)
        name = loaded.dataset.url.partition("dbname=")[2].partition("&")[0]
        advised = [
            line for line in run("policy", "check", policy, "--advise").stdout.splitlines() if line.startswith("CREATE")
        ]
        values = '"visited_on", "cost", "duration_min"'
        assert advised == [
            f'CREATE INDEX CONCURRENTLY ON "public"."visits" ("patient_id", {key}) INCLUDE ({values});'
            for key in ('"doctor_id"', '"icd" COLLATE "C"')
        ]
        postgres_server.run(*advised, "VACUUM ANALYZE", database=name)
        backend = open_backend(loaded)
        assert isinstance(backend, PostgresBackend)
        assert backend.advice() == ()
        for key in ("doctor_id", "icd"):
            for keys in (key, f"visited_on, {key}"):
                (release,) = Planner(loaded).compile(f"SELECT {keys}, SUM(cost) FROM visits GROUP BY {keys}").releases
                explain = f"EXPLAIN {backend._statement(release.sql, ['units']).decode()}"
                settings = "SET random_page_cost = 1.1", "SET parallel_tuple_cost = 0.01"
                rows = postgres_server.run(*settings, explain, database=name)
                steps = "\n".join(row[0] for row in rows)
                # Version 13 cannot sort further what a window finds sorted in part, and may read the table instead.
                if postgres_server.version > 13:
                    assert f"Index Only Scan using visits_patient_id_{key}" in steps
        backend.close()
        assert "no index would make queries faster" in run("policy", "check", policy, "--advise").stdout
