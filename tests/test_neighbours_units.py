"""The heart, unit by unit: which of its groups and rows count, and that those of nobody and of others do not."""

import re
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from dpsql.backends import Cancellation, DuckDBBackend
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.policy import load_policy
from dpsql.privacy.cost import Adjacency
from tests.compiler.trees import with_sql
from tests.strategies.distance import TooFar, assert_neighbours, vectors
from tests.strategies.world import CONSTANTS as MEANINGS
from tests.strategies.world import SETTINGS, Survey
from tests.test_neighbours import greedy, release_of

# Which groups a unit keeps, whatever their hashes


BY_TEXT = "SELECT note, COUNT(*), SUM(n), MEDIAN(n), COUNT(DISTINCT day) FROM visits GROUP BY note"
BY_DAY = "SELECT day, COUNT(*), SUM(n), COUNT(DISTINCT note), COUNT(DISTINCT pid) FROM visits GROUP BY day"
KEY = {BY_TEXT: "k0", BY_DAY: "rows.k0"}
HASH = re.compile(r"hash\(hash\(unit, [^()]*\)\) AS h\b")


@pytest.mark.parametrize("sql", [BY_TEXT, BY_DAY])
@pytest.mark.parametrize("hashed", ["0", "unit", "length(CAST(k0 AS VARCHAR))"])
def test_groups_of_equal_hashes_are_no_more_than_may_be(survey: Survey, sql: str, hashed: str) -> None:
    planned = release_of(survey, sql)
    alike = with_sql(planned, HASH.sub(f"{hashed.replace('k0', KEY[sql])} AS h", planned.sql))
    assert alike.sql != planned.sql
    (left,), (right,) = greedy(survey, [alike])
    assert_neighbours(alike, left, right)


def test_groups_of_equal_hashes_are_kept_together_or_not_at_all(survey: Survey) -> None:
    planned = release_of(survey, BY_TEXT)
    alike = HASH.sub("0 AS h", planned.sql)
    (_, wrong_left), (_, wrong_right) = greedy(
        survey, [planned, with_sql(planned, alike.replace("per_unit.h < limits.h", "per_unit.h <= limits.h"))]
    )
    with pytest.raises(TooFar):
        assert_neighbours(planned, wrong_left, wrong_right)


def test_rows_of_nobody_would_be_bounded_as_those_of_one(survey: Survey) -> None:
    """They are dropped where tables are read; were they not, they would still be no more than one unit's."""
    planned = release_of(survey, BY_TEXT)
    unguarded = planned.sql.replace(' WHERE "pid" IS NOT NULL', "")
    assert unguarded != planned.sql
    survey.fill({})
    survey.memory.execute("INSERT INTO visits (note) SELECT 'note ' || i FROM range(50) t(i)")
    (found,) = survey.fetch([with_sql(planned, unguarded)])
    assert sum(found.units.tolist()) == 3


@pytest.mark.parametrize("key", ["note", "day"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_unit_keeps_as_many_groups_as_it_may(survey: Survey, key: str, most: int) -> None:
    planned = release_of(
        survey, f"SELECT {key}, COUNT(*) FROM visits GROUP BY {key}", replace(SETTINGS, max_groups=most)
    )
    for there in range(1, 7):
        survey.fill({})
        survey.memory.execute(
            f"INSERT INTO visits (pid, note, day) SELECT i % 2, 'note ' || v, DATE '2024-01-01' + CAST(v AS INTEGER) "
            f"FROM (SELECT i, (i // 2) % {there} AS v FROM range({4 * there}) t(i))"
        )
        (found,) = survey.fetch([planned])
        assert sum(found.units.tolist()) == 2 * min(most, there)


def test_a_unit_that_moves_is_too_far_for_noise_made_for_one_that_leaves(survey: Survey) -> None:
    planned = release_of(survey, "SELECT day, COUNT(*) FROM visits GROUP BY day")
    survey.fill({})
    moved = "INSERT INTO visits (pid, day) SELECT 0, DATE '2024-01-{}' + CAST(i % 3 AS INTEGER) FROM range(99) t(i)"
    survey.memory.execute(moved.format("01"))
    (left,) = survey.fetch([planned])
    survey.memory.execute("UPDATE visits SET day = day + 10")
    (right,) = survey.fetch([planned])
    with pytest.raises(TooFar):
        assert_neighbours(planned, left, right, Adjacency.SUBSTITUTE)


def test_substitute_is_calibrated_for_a_unit_that_moves(substituted: Survey) -> None:
    planned = release_of(substituted, "SELECT day, COUNT(*), SUM(n), AVG(n) FROM visits GROUP BY day")
    substituted.fill({})
    moved = (
        "INSERT INTO visits (pid, day, n) SELECT 0, DATE '2024-01-01' + CAST(i % 3 AS INTEGER), 9 FROM range(99) t(i)"
    )
    substituted.memory.execute(moved)
    (left,) = substituted.fetch([planned])
    for change in ("SET day = day + 10, n = 3", "SET day = day - 10", "SET n = 9", "SET day = day + 2"):
        substituted.memory.execute(f"UPDATE visits {change}")
        (right,) = substituted.fetch([planned])
        assert_neighbours(planned, left, right, Adjacency.SUBSTITUTE)


# Whose rows count


def counts(survey: Survey, sql: str, rows: str) -> list[dict[tuple[str | None, ...], int]]:
    """The number of units and the cells, over rows that SQL makes."""
    survey.fill({})
    survey.change(rows)
    (found,) = survey.fetch([release_of(survey, sql)])
    return vectors(found)


NOBODY = (
    ("visits", "INSERT INTO visits (visit_id, pid) VALUES ('v', NULL), ('v', NULL)"),
    ("letters", "INSERT INTO letters VALUES (NULL, 'a', 1)"),
    ("lines", "INSERT INTO visits (visit_id, pid) VALUES ('v', NULL); INSERT INTO lines VALUES ('v', 'd', 1, 1)"),
    ("lines", "INSERT INTO visits (visit_id, pid) VALUES ('v', 1); INSERT INTO lines VALUES ('w', 'd', 1, 1)"),
    ("lines", "INSERT INTO visits (visit_id, pid) VALUES (NULL, 1); INSERT INTO lines VALUES (NULL, 'd', 1, 1)"),
    ("lines", "INSERT INTO visits (visit_id, pid) VALUES ('v', 1); INSERT INTO lines VALUES ('V ', 'd', 1, 1)"),
    ("meals", "INSERT INTO stays VALUES (1, NULL, 'w', 1); INSERT INTO meals VALUES (1, 'soup', 2), (NULL, 'soup', 2)"),
)


@pytest.mark.parametrize(("table", "rows"), NOBODY)
def test_rows_of_nobody_do_not_count(each_survey: Survey, table: str, rows: str) -> None:
    assert counts(each_survey, f"SELECT COUNT(*) FROM {table}", rows) == [{(): 0}, {(): 0}]


def test_a_unit_that_is_never_null_may_still_be_nobody(tmp_path: Path) -> None:
    path = tmp_path / "days.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (u DATE NOT NULL, n INTEGER)")
        connection.execute("INSERT INTO t VALUES ('infinity', 1), ('-infinity', 1), ('2024-01-01', 1)")
    policy = tmp_path / "days.toml"
    policy.write_text(
        """
        version = 1
        [dataset]
        name = "days"
        url = "duckdb:///days.duckdb"
        privacy_unit = "day"
        budget = { epsilon = 10, delta = 1e-6 }
        [roles.analyst]
        budget = { epsilon = 10, delta = 1e-6 }
        query = { epsilon = 1, delta = 1e-9 }
        [tables.t]
        unit_key = "u"
        max_rows = 1
        [tables.t.columns]
        n = { type = "integer", lower = 0, upper = 9 }
        """,
        encoding="utf-8",
    )
    loaded = load_policy(policy)
    backend = DuckDBBackend(str(path), loaded)
    query = compile_query(
        QueryStatement("SELECT COUNT(*) FROM t"), Catalog(loaded, backend.schema, loaded.roles[0]), SETTINGS, MEANINGS
    )
    found = backend.fetch(dict(enumerate(query.releases)), (), Cancellation()).releases[0]
    backend.close()
    assert found.units.tolist() == [1] and [cell.tolist() for cell in found.cells] == [[1]]


def test_a_row_counts_once_for_each_unit_it_belongs_to(each_survey: Survey) -> None:
    rows = "INSERT INTO visits (visit_id, pid) VALUES ('v', 1), ('v', 1), ('v', 2); "
    rows += "INSERT INTO lines (visit_id) VALUES ('v')"
    assert counts(each_survey, "SELECT COUNT(*) FROM lines", rows) == [{(): 2}, {(): 2}]


def test_rows_meet_within_a_unit_alone(each_survey: Survey) -> None:
    rows = "INSERT INTO visits (visit_id, pid) VALUES ('v', 1), ('v', 2); INSERT INTO lines (visit_id) VALUES ('v')"
    assert counts(each_survey, "SELECT COUNT(*) FROM visits JOIN lines USING (visit_id)", rows) == [{(): 2}, {(): 2}]
    inside = "(SELECT 1 FROM lines l WHERE l.visit_id = v.visit_id)"
    rows = rows.replace("VALUES ('v', 1), ('v', 2)", "VALUES ('v', 1), ('w', 2)")
    assert counts(each_survey, f"SELECT COUNT(*) FROM visits v WHERE EXISTS {inside}", rows) == [{(): 1}, {(): 1}]


def test_units_and_keys_are_compared_to_the_letter(each_survey: Survey) -> None:
    rows = "INSERT INTO letters VALUES ('ann', 't', 1), ('Ann', 'T', 1), ('ann ', 't ', 1), ('ann', 't', 1)"
    found = counts(each_survey, "SELECT topic, COUNT(*) FROM letters GROUP BY topic", rows)
    assert found == [{("t",): 1, ("T",): 1, ("t ",): 1}, {("t",): 2, ("T",): 1, ("t ",): 1}]
    assert counts(each_survey, "SELECT COUNT(DISTINCT who) FROM letters", rows) == [{(): 3}, {(): 3}]
    wards = "INSERT INTO stays VALUES (1, 1, 'North', 1), (2, 2, 'NORTH', 1), (3, 3, 'north', 1)"
    found = counts(each_survey, "SELECT ward, COUNT(*) FROM stays GROUP BY ward", wards)
    assert found[0] == {("North",): 1, ("NORTH",): 1, ("north",): 1}


@pytest.mark.parametrize(
    ("sql", "values", "cell"),
    [
        ("SELECT SUM(points) FILTER (WHERE level = 'tin') FROM cards", "(1, 9, 'gold')", 0),
        ("SELECT SUM(points) FROM cards", "(1, NULL, 'gold')", 0),
        ("SELECT SUM(-points) FROM cards", "(1, NULL, 'gold')", 0),
        ("SELECT SUM(points) FROM cards", "(1, 1, 'gold'), (2, 5, 'gold'), (3, 50, 'gold')", 17),
    ],
)
def test_a_unit_adds_nothing_where_it_has_no_value(each_survey: Survey, sql: str, values: str, cell: int) -> None:
    assert counts(each_survey, sql, f"INSERT INTO cards VALUES {values}")[1] == {(): cell}


def test_zero_has_no_sign_and_what_is_no_number_is_null(each_survey: Survey) -> None:
    rows = "INSERT INTO visits (pid, note, ratio) VALUES (1, '-0', '-0.0'), (1, 'nan', 'nan'), (1, 'inf', '-inf')"
    for number in ("CAST(note AS real)", "CAST(note AS float8)", "ratio", "-0.0::float8", "CAST('-0' AS real)"):
        signed = f"CAST({number} AS numeric(5, 1))::text LIKE '-%'"
        found = counts(each_survey, f"SELECT COUNT(*) FILTER (WHERE {signed}), COUNT({number}) FROM visits", rows)
        counted = 3 if "0'" in number or "0.0" in number else 1
        assert sorted(cell[()] for cell in found[1:]) == [0, counted], number


def test_time_is_that_of_the_policy(each_survey: Survey) -> None:
    rows = "INSERT INTO visits (pid, zoned) VALUES (1, TIMESTAMPTZ '2024-01-01 23:30:00+00')"
    found = counts(each_survey, "SELECT CAST(zoned AS date), COUNT(*) FROM visits GROUP BY 1", rows)
    assert found[1] == {("2024-01-02",): 1}
