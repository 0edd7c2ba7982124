"""A small world to audit: one row a person, some rows a person, and rows that are reached along a key."""

from pathlib import Path

import duckdb
import pytest

from dpsql.policy import Policy, load_policy

POLICY = """
version = 1

[dataset]
name = "small"
url = "duckdb:///small.duckdb"
privacy_unit = "person"
adjacency = "{adjacency}"
budget = {{ epsilon = 1, delta = 1e-6 }}

[roles.analyst]
budget = {{ epsilon = 1, delta = 1e-6 }}
query = {{ epsilon = 0.1, delta = 1e-9 }}

[tables.people]
unit_key = "person"
max_rows = 1
[tables.people.columns]
age = {{ type = "integer", lower = 0, upper = 100 }}
town = {{ type = "text" }}

[tables.visits]
unit_key = "person"
max_rows = 4
max_groups = 2
max_rows_per_group = 2
[tables.visits.columns]
cost = {{ type = "decimal", lower = -50, upper = 10, step = 0.01 }}
minutes = {{ type = "double", lower = 0, upper = 60, step = 0.5 }}
day = {{ type = "date", lower = 2020-01-01, upper = 2026-12-31 }}
ward = {{ type = "text", values_from = "wards.ward" }}
kind = {{ type = "text", values = ["in", "out"] }}

[tables.drugs]
unit_via = {{ table = "visits", on = {{ visit = "visit" }} }}
[tables.drugs.columns]
dose = {{ type = "smallint", lower = 0, upper = 30000 }}

[tables.wards]
public = true
[tables.wards.columns]
ward = {{ type = "text" }}
"""


def write(folder: Path, adjacency: str = "add_remove") -> Path:
    """A policy and its database, which is empty: an audit reads no row of it."""
    with duckdb.connect(str(folder / "small.duckdb")) as database:
        database.execute("CREATE TABLE people (person INTEGER PRIMARY KEY, age INTEGER, town VARCHAR)")
        database.execute(
            "CREATE TABLE visits (visit UUID, person INTEGER, cost DECIMAL(10, 2), minutes DOUBLE, day DATE, "
            "ward VARCHAR, kind VARCHAR)"
        )
        database.execute("CREATE TABLE drugs (visit UUID, dose SMALLINT)")
        database.execute("CREATE TABLE wards (ward VARCHAR UNIQUE)")
    path = folder / "small.toml"
    path.write_text(POLICY.format(adjacency=adjacency), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """The policy of the small world."""
    return load_policy(write(tmp_path_factory.mktemp("small")))
