"""The heart, where the unit determines the keys: its rows are in one group, which it may change.

The claim is that of the schema: `people.pid` is a primary key, so a person has one sex, one city, one age.
"""

from dataclasses import replace
from itertools import product

import pytest

from dpsql.backends import ExactCells
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.plan.verify import verify
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import GuaranteeMismatch
from dpsql.gateway.release import release
from dpsql.privacy.cost import Adjacency
from tests.strategies.distance import TooFar, assert_neighbours, vectors
from tests.strategies.world import CONSTANTS, SETTINGS, Survey
from tests.test_neighbours import GREEDY, greedy, release_of

VISITS = "visits v JOIN people p ON v.pid = p.pid"
ALL = "COUNT(*), SUM(v.n), AVG(v.n), COUNT(DISTINCT v.pid), COUNT(DISTINCT v.note), MEDIAN(v.n), BOOL_OR(v.flag)"

DETERMINED = (
    f"SELECT p.sex, {ALL} FROM {VISITS} GROUP BY p.sex",
    f"SELECT p.city, COUNT(*), SUM(v.n) FROM {VISITS} GROUP BY p.city",
    f"SELECT p.age / 10 * 10, p.sex, COUNT(*) FROM {VISITS} GROUP BY 1, 2",
    f"SELECT CASE WHEN p.member THEN p.sex ELSE 'other' END, COUNT(*) FROM {VISITS} GROUP BY 1",
    f"SELECT 1, COUNT(*) FROM {VISITS} GROUP BY 1",
    "SELECT v.flag, COUNT(*), SUM(v.n) FROM visits v WHERE v.flag GROUP BY v.flag",
    "SELECT p.sex, COUNT(*) FROM visits v JOIN people p USING (pid) WHERE v.n > 3 GROUP BY p.sex",
    "SELECT p.sex, COUNT(v.n) FROM people p LEFT JOIN visits v ON v.pid = p.pid AND v.n > 3 GROUP BY p.sex",
    "SELECT p.sex, COUNT(*) FROM visits v LEFT JOIN people p ON p.pid = v.pid AND p.age > 50 GROUP BY p.sex",
    "SELECT p.sex, COUNT(*) FROM people p RIGHT JOIN visits v ON p.pid = v.pid GROUP BY p.sex",
    "SELECT p.sex, COUNT(*) FROM visits v, people p WHERE v.pid = p.pid GROUP BY p.sex",
    "SELECT p.sex, SUM(l.boxes) FROM lines l JOIN visits v ON l.visit_id = v.visit_id JOIN people p ON p.pid = v.pid "
    "GROUP BY p.sex",
    "SELECT t.c, COUNT(*) FROM visits v JOIN (SELECT pid, COUNT(*) AS c FROM visits GROUP BY pid) t ON t.pid = v.pid "
    "GROUP BY t.c",
    "SELECT t.c > 3, SUM(v.n) FROM visits v JOIN (SELECT pid, COUNT(*) AS c FROM visits GROUP BY pid) t "
    "ON t.pid = v.pid GROUP BY 1",
    "SELECT c > 4, COUNT(*), SUM(n) FROM (SELECT n, COUNT(*) OVER (PARTITION BY pid) AS c FROM visits) t GROUP BY 1",
    "SELECT f.flag, COUNT(*) FROM visits v JOIN (SELECT DISTINCT ON (pid) pid, flag FROM visits ORDER BY pid, day) f "
    "ON f.pid = v.pid GROUP BY f.flag",
    "SELECT f.flag, COUNT(*) FROM visits v JOIN (SELECT * FROM (SELECT pid, flag, ROW_NUMBER() OVER (PARTITION BY pid "
    "ORDER BY day) AS r FROM visits) t WHERE r = 1) f ON f.pid = v.pid GROUP BY f.flag",
    "SELECT p.age > (SELECT AVG(age) FROM people), COUNT(*) FROM visits v JOIN people p ON p.pid = v.pid GROUP BY 1",
    "SELECT p.sex, COUNT(*) FROM visits v JOIN (SELECT pid, sex FROM people WHERE age > 20) p USING (pid) GROUP BY 1",
    "SELECT EXISTS (SELECT 1 FROM stays s WHERE s.pid = v.pid), COUNT(*) FROM visits v GROUP BY 1",
    "SELECT p.sex, MODE() WITHIN GROUP (ORDER BY v.kind) FROM visits v JOIN people p USING (pid) GROUP BY p.sex",
)
"""Aggregations whose keys the unit determines."""

OPEN = (
    f"SELECT p.sex, v.flag, COUNT(*) FROM {VISITS} GROUP BY 1, 2",
    f"SELECT p.age + v.kind, COUNT(*) FROM {VISITS} GROUP BY 1",
    "SELECT v.flag, COUNT(*) FROM visits v WHERE v.flag OR v.n > 3 GROUP BY v.flag",
    # A person has one row in cards by the policy, and no key says so.
    "SELECT c.level, COUNT(*) FROM visits v JOIN cards c ON c.pid = v.pid GROUP BY c.level",
    "SELECT t.c, COUNT(*) FROM visits v LEFT JOIN LATERAL (SELECT COUNT(*) AS c FROM lines l "
    "WHERE l.visit_id = v.visit_id) t ON true GROUP BY t.c",
    # The visits of one person: some are matched, and some are not.
    "SELECT p.sex, COUNT(*) FROM visits v LEFT JOIN people p ON p.pid = v.pid AND v.n > 3 GROUP BY p.sex",
    "SELECT p.sex, COUNT(*) FROM visits v LEFT JOIN people p ON p.pid = v.pid AND v.n > p.age GROUP BY p.sex",
    "SELECT p.sex, COUNT(*) FROM people p FULL JOIN visits v ON v.pid = p.pid GROUP BY p.sex",
    "SELECT t.flag, COUNT(*) FROM visits v JOIN (SELECT pid, flag, COUNT(*) AS c FROM visits GROUP BY pid, flag) t "
    "ON t.pid = v.pid GROUP BY t.flag",
    "SELECT c, COUNT(*) FROM (SELECT COUNT(*) OVER (PARTITION BY pid ORDER BY n) AS c FROM visits) t GROUP BY c",
    "SELECT c, COUNT(*) FROM (SELECT COUNT(*) OVER (PARTITION BY pid, flag) AS c FROM visits) t GROUP BY c",
    "SELECT c, COUNT(*) FROM (SELECT ROW_NUMBER() OVER (PARTITION BY pid) AS c FROM visits) t GROUP BY c",
    "SELECT f.flag, COUNT(*) FROM visits v JOIN (SELECT * FROM (SELECT pid, flag, ROW_NUMBER() OVER (PARTITION BY pid "
    "ORDER BY day) AS r FROM visits) t WHERE r <= 2) f ON f.pid = v.pid GROUP BY f.flag",
    "SELECT f.flag, COUNT(*) FROM visits v JOIN (SELECT * FROM (SELECT pid, flag, RANK() OVER (PARTITION BY pid "
    "ORDER BY day) AS r FROM visits) t WHERE r = 1) f ON f.pid = v.pid GROUP BY f.flag",
    # Two kinds have one code.
    "SELECT k.title, COUNT(*) FROM people p JOIN kinds k ON k.code = p.age JOIN visits v ON v.pid = p.pid GROUP BY 1",
    "SELECT sex, COUNT(*) FROM (SELECT pid, sex FROM people UNION ALL SELECT pid, note FROM visits) t GROUP BY sex",
    "SELECT EXISTS (SELECT 1 FROM lines l WHERE l.visit_id = v.visit_id), COUNT(*) FROM visits v GROUP BY 1",
    # What is equal may be spelt in two ways: 1.50 and 1.5, 0 and -0.
    "SELECT m.price, COUNT(*) FROM meals m WHERE m.price = 1.5 GROUP BY m.price",
)
"""Aggregations like these whose keys it does not determine."""


def planned_of(survey: Survey, asked: tuple[str, ...]) -> list[PlannedRelease]:
    """The last release of each query; what it needs is made before it."""
    return [survey.compile(sql).releases[-1] for sql in asked]


@pytest.mark.parametrize("sql", DETERMINED)
def test_the_unit_determines_the_keys(survey: Survey, sql: str) -> None:
    bounds = survey.compile(sql).releases[-1].contribution
    assert bounds.one_group
    assert (bounds.groups_per_unit, bounds.ranked, bounds.rows_per_unit) == (1, False, None)


@pytest.mark.parametrize("sql", OPEN)
def test_it_does_not(survey: Survey, sql: str) -> None:
    assert not survey.compile(sql).releases[-1].contribution.one_group


def test_all_rows_of_a_unit_count(survey: Survey) -> None:
    bounds = release_of(survey, DETERMINED[0]).contribution
    assert bounds.rows_per_group == 9
    assert release_of(survey, DETERMINED[0], replace(SETTINGS, max_rows=5)).contribution.rows_per_group == 5
    assert release_of(survey, DETERMINED[0], replace(SETTINGS, max_rows_per_group=4)).contribution.rows_per_group == 4


# Neighbours


def test_a_greedy_unit(each_survey: Survey) -> None:
    planned = planned_of(each_survey, DETERMINED)
    for each, left, right in zip(planned, *greedy(each_survey, planned), strict=True):
        assert_neighbours(each, left, right)


MOVED = (
    "UPDATE people SET sex = 'M', city = 'village', age = 30, member = false WHERE pid = 0; "
    "INSERT INTO stays SELECT 99, 0, 'ward', 2 WHERE NOT EXISTS (SELECT 1 FROM stays WHERE pid = 0); "
    "UPDATE visits SET n = 5 WHERE pid = 0"
)


def test_a_greedy_unit_that_changes_its_group(each_substituted: Survey) -> None:
    planned = planned_of(each_substituted, DETERMINED)
    left, _ = greedy(each_substituted, planned)
    each_substituted.fill({})
    each_substituted.change(f"{GREEDY}; {MOVED}")
    for each, one, other in zip(planned, left, each_substituted.fetch(planned), strict=True):
        assert_neighbours(each, one, other, Adjacency.SUBSTITUTE)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_claim_is_what_all_small_neighbours_reach(
    survey: Survey, substituted: Survey, adjacency: Adjacency
) -> None:
    """Brute force: person 0 of each sex or none, with no row to three, of which two count, beside another person."""
    world = survey if adjacency is Adjacency.ADD_REMOVE else substituted
    planned = release_of(world, f"SELECT p.sex, COUNT(*), SUM(v.n) FROM {VISITS} GROUP BY p.sex", TWO)
    cells = [_of_person(world, planned, *each) for each in product(("'F'", "'M'", "NULL"), range(4), (3, 9))]
    nobody = [_of_person(world, planned, "NULL", 0, 3)]
    others = nobody if adjacency is Adjacency.ADD_REMOVE else cells
    reached = [(0, 0)] * 2
    for left, right in product(cells, others):
        assert_neighbours(planned, left, right, adjacency)
        for index, (one, other) in enumerate(zip(vectors(left)[1:], vectors(right)[1:], strict=True)):
            steps = [abs(one.get(key, 0) - other.get(key, 0)) for key in one | other]
            reached[index] = max(reached[index], (sum(steps), sum(step**2 for step in steps)))
    claimed = [(each.noise.sensitivity.l1, each.noise.sensitivity.l2_squared) for each in planned.primitives]
    assert reached == claimed


TWO = replace(SETTINGS, max_rows=2)


def _of_person(world: Survey, planned: PlannedRelease, sex: str, rows: int, value: int) -> ExactCells:
    visits = [("0", str(value))] * rows + [("1", "9")] * 4
    world.fill({})
    world.change(
        f"INSERT INTO people (pid, sex) VALUES (0, {sex}), (1, 'F'); "
        f"INSERT INTO visits (pid, n) VALUES {', '.join(f'({pid}, {n})' for pid, n in visits)}"
    )
    (found,) = world.fetch([planned])
    return found


# Rows that nobody matches

NOBODY = (
    "SELECT COUNT(*) FROM people p LEFT JOIN visits v ON v.pid = p.pid WHERE v.pid IS NULL",
    "SELECT p.sex, COUNT(*), AVG(p.age) FROM visits v RIGHT JOIN people p ON v.pid = p.pid AND v.n > 3 "
    "WHERE v.pid IS NULL AND p.age > 5 GROUP BY p.sex",
    "SELECT COUNT(*), COUNT(s.nights) FROM people p LEFT JOIN stays s USING (pid) WHERE s.pid IS NULL",
    "SELECT COUNT(*) FROM people p LEFT JOIN cards c ON c.pid = p.pid AND c.points = p.age WHERE c.points IS NULL",
)
"""An outer join that keeps the rows of a person that nothing matches: one row each."""
SOMEBODY = (
    "SELECT COUNT(*) FROM people p LEFT JOIN visits v ON v.pid = p.pid WHERE v.n IS NULL",
    "SELECT COUNT(*) FROM people p LEFT JOIN visits v ON v.pid = p.pid WHERE v.pid IS NULL OR v.n > 3",
    "SELECT COUNT(*) FROM people p LEFT JOIN visits v ON v.pid = p.pid WHERE p.pid IS NULL",
    "SELECT COUNT(*) FROM people p FULL JOIN visits v ON v.pid = p.pid WHERE p.sex IS NULL",
    "SELECT COUNT(*) FROM people p LEFT JOIN visits v ON v.pid = p.pid LEFT JOIN kinds k ON k.code = v.kind "
    "WHERE v.pid IS NULL",
    "SELECT COUNT(*) FROM people p LEFT JOIN LATERAL (SELECT * FROM visits w WHERE w.pid = p.pid) v ON v.pid = p.pid "
    "WHERE v.pid IS NULL",
)
"""Outer joins in which a person may have several rows that pass."""


def test_rows_that_nobody_matches_are_one_each(each_survey: Survey) -> None:
    planned = [release_of(each_survey, sql) for sql in NOBODY]
    keyed = bool(each_survey.catalog.schema.tables["people"].unique_keys)
    assert {each.contribution.one_row for each in planned} == {keyed}
    for each, left, right in zip(planned, *greedy(each_survey, planned), strict=True):
        assert_neighbours(each, left, right)
    rows = [release_of(each_survey, sql) for sql in SOMEBODY]
    assert not any(each.contribution.one_row for each in rows)
    for each, left, right in zip(rows, *greedy(each_survey, rows), strict=True):
        assert_neighbours(each, left, right)


def test_they_are_those_that_match_nothing(each_survey: Survey) -> None:
    planned = [release_of(each_survey, NOBODY[0]), release_of(each_survey, NOBODY[3])]
    each_survey.fill({})
    each_survey.change(
        "INSERT INTO people (pid, age) VALUES (0, 20), (1, 20), (2, NULL), (3, 4); "
        "INSERT INTO visits (pid) VALUES (0), (0), (NULL), (3); "
        "INSERT INTO cards (pid, points) VALUES (0, 20), (3, NULL), (1, 3)"
    )
    assert [each.cells[0].tolist() for each in each_survey.fetch(planned)] == [[2], [3]]


# That a plan is checked


def _claiming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler believe that the unit determines all keys."""
    monkeypatch.setattr("dpsql.compiler.plan.bounded_releases.in_one_group", lambda *_: True)


@pytest.mark.parametrize("sql", OPEN)
def test_a_claim_that_does_not_follow_is_refused(survey: Survey, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _claiming(monkeypatch)
    with pytest.raises(GuaranteeMismatch):
        survey.compile(sql)


def test_a_false_claim_moves_cells_too_far(survey: Survey, monkeypatch: pytest.MonkeyPatch) -> None:
    _claiming(monkeypatch)
    monkeypatch.setattr("dpsql.compiler.plan.compile.verify", lambda *_: None)
    planned = [survey.compile(sql).releases[-1] for sql in (OPEN[0], OPEN[2])]
    for each, left, right in zip(planned, *greedy(survey, planned), strict=True):
        with pytest.raises(TooFar):
            assert_neighbours(each, left, right)


def test_keys_that_the_engine_does_not_enforce_determine_nothing(survey: Survey) -> None:
    """The plan is that of an engine with the key; verified against one without."""
    planned = survey.compile(DETERMINED[0])
    people = survey.catalog.schema.tables["people"]
    for changed in (
        replace(people, unique_keys=frozenset()),
        replace(people, columns={**people.columns, "pid": replace(people.columns["pid"], not_null=False)}),
        replace(people, columns={**people.columns, "pid": replace(people.columns["pid"], exact=False)}),
    ):
        schema = replace(survey.catalog.schema, tables={**survey.catalog.schema.tables, "people": changed})
        catalog = replace(survey.catalog, schema=schema)
        with pytest.raises(GuaranteeMismatch):
            verify(planned, catalog)
        assert (
            not compile_query(QueryStatement(DETERMINED[0]), catalog, SETTINGS, CONSTANTS)
            .releases[0]
            .contribution.one_group
        )


def test_a_greater_share_than_the_noise_is_made_for_is_refused(survey: Survey) -> None:
    query = survey.compile(DETERMINED[0])
    (planned,) = query.releases
    *others, last = planned.primitives
    less = replace(last.noise.sensitivity, l1=last.noise.sensitivity.l1 - 1)
    faulty = replace(planned, primitives=(*others, replace(last, noise=replace(last.noise, sensitivity=less))))
    with pytest.raises(GuaranteeMismatch):
        verify(replace(query, releases=(faulty,)), survey.catalog)


def test_all_groups_are_released(survey: Survey) -> None:
    survey.fill({})
    (planned,) = survey.compile(DETERMINED[0]).releases
    (exact,) = survey.fetch([planned])
    assert len(release(planned, exact).keys[0]) == 4
    with pytest.raises(GuaranteeMismatch):
        release(replace(planned, contribution=replace(planned.contribution, one_group=False)), exact)
