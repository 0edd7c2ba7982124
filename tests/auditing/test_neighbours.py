"""What is made up has the policy's shape, exceeds its limits, and differs by the units that come and go."""

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from dpsql.auditing.neighbours import (
    CROWD,
    PROBE,
    RESIDENTS,
    SPREAD,
    Database,
    DatasetRows,
    Datasets,
    NotAuditable,
    datasets,
    neighbours,
)
from dpsql.backends import open_backend
from dpsql.policy import Policy, load_policy
from dpsql.privacy.cost import Accountant
from dpsql.sqltypes import SqlType
from tests.auditing.conftest import write

UNITS = 20


def made(policy: Policy, *, with_rows: bool = False) -> Datasets:
    backend = open_backend(policy)
    found = datasets(policy, backend.schema, UNITS, runs=4, with_rows=with_rows)
    backend.close()
    return found


@pytest.fixture(scope="module")
def of_small(small: Policy) -> Datasets:
    return made(small)


def counted(path: Path, sql: str) -> tuple[int, ...]:
    with duckdb.connect(str(path), read_only=True) as database:
        row = database.execute(sql).fetchone()
    assert row is not None
    return row


def test_units_exceed_every_limit(of_small: Datasets, tmp_path: Path) -> None:
    path = of_small.write(tmp_path, neighbours(of_small)[0])
    per_unit = (
        f"SELECT person, count(*) AS n, count(DISTINCT audit_block) AS b FROM visits WHERE {PROBE} >= 0 GROUP BY 1"
    )
    assert counted(path, f"SELECT count(*), min(n), min(b) FROM ({per_unit})") == (UNITS, 2 * SPREAD, SPREAD)
    assert counted(path, f"SELECT count(*) FROM visits WHERE {PROBE} >= 0 AND cost >= -50") == (0,)
    assert counted(path, f"SELECT count(*) FROM people WHERE {PROBE} >= 0 AND age <= 100") == (0,)
    joined = "FROM drugs JOIN visits USING (visit)"
    assert counted(path, f"SELECT count(*) {joined}") == (2 * UNITS * 2 * SPREAD + RESIDENTS * UNITS + 5,)
    assert counted(path, f"SELECT count(*) {joined} WHERE drugs.{PROBE} <> visits.{PROBE}") == (0,)


def test_neighbours_differ_by_those_units_alone(of_small: Datasets, tmp_path: Path) -> None:
    one, other = (of_small.write(tmp_path, rows) for rows in neighbours(of_small))
    for table in ("people", "visits", "drugs"):
        own = f"SELECT count(*) FROM {table} WHERE {PROBE} IS NOT NULL"
        rest = f"SELECT count(*), count(DISTINCT hash({table})) FROM {table} WHERE {PROBE} IS NULL"
        assert counted(one, own) > (0,)
        assert counted(other, own) == (0,)
        assert counted(one, rest) == counted(other, rest)
    assert counted(one, "SELECT count(*) FROM wards") == counted(other, "SELECT count(*) FROM wards")


def test_each_unit_has_a_resident_at_the_other_end_on_both_sides(of_small: Datasets, tmp_path: Path) -> None:
    one, other = (of_small.write(tmp_path, rows) for rows in neighbours(of_small))
    crowds = (
        "SELECT audit_crowd, audit_secret, count(DISTINCT person) AS n FROM visits WHERE audit_crowd >= 0 GROUP BY 1, 2"
    )
    for path, there in ((one, RESIDENTS + 1), (other, RESIDENTS)):
        assert counted(path, f"SELECT count(*), min(n), max(n) FROM ({crowds})") == (UNITS, there, there)
    assert counted(other, "SELECT min(cost) FROM visits WHERE audit_crowd >= 0") > (10,)
    places = "SELECT min(audit_place), max(audit_place) FROM visits WHERE audit_choice = '{}' AND audit_place >= 0"
    assert counted(one, places.format("a")) == (1, RESIDENTS)
    assert counted(one, places.format("b")) == (0, 0)


def test_a_unit_and_the_one_in_its_place_share_a_crowd_alone(tmp_path: Path) -> None:
    found = made(load_policy(write(tmp_path, "substitute")))
    crowd = "SELECT count(*), min(n), max(n) FROM (SELECT count(DISTINCT person) AS n FROM visits {} GROUP BY {})"
    for path in (found.write(tmp_path, rows) for rows in neighbours(found)):
        crowds = crowd.format("WHERE audit_crowd >= 0", "audit_crowd")
        assert counted(path, crowds) == (UNITS, RESIDENTS + 1, RESIDENTS + 1)
        secrets = crowd.format("WHERE audit_place >= 0", "audit_secret")
        assert counted(path, secrets) == (2 * UNITS, RESIDENTS, RESIDENTS + 1)


def test_substitutes_are_as_many_and_elsewhere(tmp_path: Path) -> None:
    found = made(load_policy(write(tmp_path, "substitute")))
    one, other = (found.write(tmp_path, rows) for rows in neighbours(found))
    for table in ("people", "visits", "drugs"):
        assert counted(one, f"SELECT count(*) FROM {table}") == counted(other, f"SELECT count(*) FROM {table}")
    assert counted(one, f"SELECT min({PROBE}), max({PROBE}), max(cost) FROM visits WHERE {PROBE} >= 0") < (0, UNITS)
    assert counted(other, f"SELECT min({PROBE}) FROM visits WHERE {PROBE} >= 0") == (UNITS,)


def test_orphans_lead_to_no_unit(of_small: Datasets, tmp_path: Path) -> None:
    path = of_small.write(tmp_path, DatasetRows("orphans", None, orphans=True))
    assert counted(path, "SELECT count(*) FROM visits WHERE person IS NULL") == (2 * SPREAD,)
    assert counted(path, "SELECT count(*) FROM drugs WHERE visit IS NULL") == (2 * SPREAD,)
    assert not of_small.has_orphans(of_small.protected[0])


def test_the_engine_enforces_what_the_owner_s_does(of_small: Datasets, tmp_path: Path) -> None:
    file = of_small.write(tmp_path, neighbours(of_small)[1])
    policy = of_small.at(Database(f"duckdb:///{file}"), Accountant.BASIC)
    backend = open_backend(policy)
    for name, table in backend.schema.tables.items():
        if name in of_small.schema.tables:
            assert table.unique_keys == of_small.schema.tables[name].unique_keys
    assert backend.schema.tables["people"].is_unique(frozenset({"person"}))
    backend.close()


def test_a_name_of_the_audit_s_own_is_refused(small: Policy, of_small: Datasets) -> None:
    taken = replace(small, tables=tuple(replace(t, name="audit_probes") for t in small.tables))
    with pytest.raises(NotAuditable, match="audit_probes"):
        datasets(taken, of_small.schema, UNITS, runs=4)


def test_a_minimum_frequency_is_left_out(small: Policy, of_small: Datasets) -> None:
    """What is shown would follow another law than that by which events are chosen."""
    ruled = replace(small, tables=tuple(replace(table, min_units=5) for table in small.tables))
    found = datasets(ruled, of_small.schema, UNITS, runs=4)
    assert {table.min_units for table in found.policy.tables if not table.public} == {1}


def test_what_cannot_be_made_up_is_told(of_small: Datasets, tmp_path: Path) -> None:
    """A key of a type that has no value for each number."""
    tables = dict(of_small.schema.tables)
    people = tables["people"]
    columns = dict(people.columns) | {"person": replace(people.columns["person"], sql_type=SqlType.INTERVAL)}
    schema = replace(of_small.schema, tables=tables | {"people": replace(people, columns=columns)})
    with pytest.raises(NotAuditable, match='"people"'):
        replace(of_small, schema=schema).write(tmp_path, neighbours(of_small)[0])


@pytest.fixture
def peopled(tmp_path: Path) -> Policy:
    """The small world with rows of its own."""
    policy = load_policy(write(tmp_path))
    with duckdb.connect(str(tmp_path / "small.duckdb")) as database:
        database.execute("INSERT INTO people SELECT r, r % 90, 'Ulm' FROM range(7) AS rows (r)")
        database.execute("INSERT INTO visits (visit, person, cost) SELECT uuid(), r % 7, r FROM range(30) AS rows (r)")
        database.execute("INSERT INTO wards VALUES ('north')")
    return policy


def test_the_owner_s_rows_are_on_both_sides(peopled: Policy, tmp_path: Path) -> None:
    found = made(peopled, with_rows=True)
    one, other = (found.write(tmp_path, rows) for rows in neighbours(found))
    own = f"WHERE {CROWD} IS NULL"
    added = UNITS * (1 + RESIDENTS)
    assert counted(other, f"SELECT count(*), min(age), max(age) FROM people {own}") == (7, 0, 6)
    assert counted(one, "SELECT count(*) FROM people") == (7 + added,)
    assert counted(one, "SELECT count(DISTINCT person) FROM people") == (7 + added,)
    assert counted(other, f"SELECT count(*), sum(cost) FROM visits {own}") == (30, 435)
    assert counted(one, f"SELECT count(*) FROM visits {own}") == (30,)
    assert counted(one, "SELECT count(*) FROM wards WHERE ward = 'north'") == (1,)


def test_an_error_over_the_owner_s_rows_quotes_none_of_them(peopled: Policy, tmp_path: Path) -> None:
    """A key of 12345678901 fits the file's type, but not the one that is made of it."""
    found = made(peopled, with_rows=True)
    with duckdb.connect(str(tmp_path / "small.duckdb")) as database:
        database.execute("ALTER TABLE visits ALTER person TYPE BIGINT")
        database.execute("INSERT INTO visits (person) VALUES (12345678901)")
    with pytest.raises(NotAuditable, match="ConversionException") as refused:
        found.write(tmp_path, neighbours(found)[1])
    assert "12345" not in refused.value.message


def test_rows_of_a_server_are_not_copied(small: Policy, of_small: Datasets) -> None:
    there = replace(small, dataset=replace(small.dataset, url="postgresql://reader@host/db"))
    with pytest.raises(NotAuditable, match="DuckDB"):
        datasets(there, of_small.schema, UNITS, runs=4, with_rows=True)
