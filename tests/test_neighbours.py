"""The heart: whatever the data, the query and the unit, one unit moves the exact cells by no more than was claimed.

No noise and no statistics: the bounded vectors of two neighbours are fetched and compared in every norm. A query that
is refused makes no promise; one that is accepted must also never fail, whatever is in the rows.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC
from functools import cache

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dpsql.backends import Cancellation, ExactCells
from dpsql.compiler.ir.functions import FUNCTIONS
from dpsql.compiler.ir.nodes import Call, Expr, Filter, Project, Relation, Release
from dpsql.compiler.ir.walk import inputs, operands
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.relations.lower import lower
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.sql.literals import Parameters
from dpsql.compiler.sql.parse import parse_query
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import BackendFailure, Error
from dpsql.privacy.cost import Adjacency
from dpsql.privacy.exponential_mechanism import Picking
from tests.compiler.test_fuzz import GENERIC
from tests.compiler.trees import with_sql
from tests.examples import profile
from tests.strategies.data import REPLACEMENTS, UNITS, Database, Row, databases
from tests.strategies.distance import TooFar, assert_neighbours, assert_same, picked, vectors
from tests.strategies.queries import COLUMNS, CONSTANTS, FORMS
from tests.strategies.world import CONSTANTS as MEANINGS
from tests.strategies.world import SETTINGS, Rows, Survey
from tests.strategies.writer import SETTINGS_STRATEGY, queries

# Several queries of one database, for making a database takes longest.
ASKED = st.lists(st.tuples(queries(), SETTINGS_STRATEGY), min_size=6, max_size=10)
UNIT = st.sampled_from([0, 0, 0, *range(1, UNITS)])


def accepted(survey: Survey, asked: list[tuple[str, QuerySettings]]) -> list[PlannedRelease]:
    """What is read for those of the queries that are not refused."""
    planned: list[PlannedRelease] = []
    for sql, options in asked:
        try:
            query = survey.compile(sql, options)
            survey.backend.check(query.releases, query.public_reads, Cancellation())
            planned += query.releases
        except Error as error:
            assert not error.message.startswith(GENERIC), sql
            event(f"refused: {type(error).__name__}")
    event(f"accepted: {len(planned)}")
    return planned


def cells(survey: Survey, planned: list[PlannedRelease], rows: Rows, threads: int = 1) -> list[ExactCells]:
    """The cells over these rows; an engine that fails fails the test."""
    survey.fill(rows, threads)
    found = []
    for release in planned:
        try:
            found += survey.fetch([release])
        except BackendFailure:
            pytest.fail(f"the engine failed, which tells something about its rows: {survey.reason(release)}")
    return found


@dataclass(frozen=True)
class Order:
    """Rows in another order, read by so many threads."""

    seed: int
    threads: int


ORDERS = st.builds(Order, st.integers(0, 99), st.sampled_from([1, 2, 4]))


def leaves(survey: Survey, planned: list[PlannedRelease], database: Database, unit: int, order: Order) -> None:
    """The unit that leaves moves no cell too far, and another order of the rows none at all."""
    with_unit = cells(survey, planned, database.tables())
    without = cells(survey, planned, database.without(unit).tables())
    again = cells(survey, planned, database.shuffled(order.seed).tables(), order.threads)
    for release, left, right, shuffled in zip(planned, with_unit, without, again, strict=True):
        assert_neighbours(release, left, right)
        assert_same(left, shuffled)


def is_replaced(survey: Survey, planned: list[PlannedRelease], database: Database, after: Database) -> None:
    """A unit in the place of another moves no cell too far."""
    sides = (cells(survey, planned, each.tables()) for each in (database, after))
    for release, left, right in zip(planned, *sides, strict=True):
        assert_neighbours(release, left, right, Adjacency.SUBSTITUTE)


@profile(30)
@given(database=databases(), unit=UNIT, asked=ASKED, order=ORDERS)
def test_a_unit_that_leaves(
    each_survey: Survey, database: Database, unit: int, asked: list[tuple[str, QuerySettings]], order: Order
) -> None:
    leaves(each_survey, accepted(each_survey, asked), database, unit, order)


@profile(20)
@given(database=databases(), unit=UNIT, others=REPLACEMENTS, asked=ASKED)
def test_a_unit_that_another_replaces(
    each_substituted: Survey,
    database: Database,
    unit: int,
    others: tuple[Row, ...],
    asked: list[tuple[str, QuerySettings]],
) -> None:
    is_replaced(each_substituted, accepted(each_substituted, asked), database, database.replaced(unit, others))


@pytest.mark.parametrize(
    "key",
    [
        *("1e20 AS bigint", "-1e20 AS smallint", "CAST('1e308' AS float8) AS smallint"),
        "LEAST(GREATEST(age, 70000), 70003) AS smallint",
    ],
)
def test_a_key_that_is_beyond_its_type_is_null(each_survey: Survey, key: str) -> None:
    query = each_survey.compile(f"SELECT CAST({key}), COUNT(*) FROM people GROUP BY 1")
    each_survey.backend.check(query.releases, query.public_reads, Cancellation())
    (found,) = cells(each_survey, list(query.releases), CROWD.tables())
    assert [list(column) for column in found.keys] == [[None]]


@pytest.mark.parametrize(
    "sql",
    [
        # Constants that PostgreSQL's planner computes.
        "SELECT COUNT(MOD(ratio, CAST('1e300' AS float8))), COUNT(MOD(CAST('1e300' AS float8), ratio)) FROM visits",
        # Quarters that are listed are months to PostgreSQL.
        "SELECT CAST(DATE_TRUNC('quarter', seen) AS date) + INTERVAL '40 hours', COUNT(*) FROM people GROUP BY 1",
    ],
)
def test_the_engine_can_run_it(each_survey: Survey, sql: str) -> None:
    query = each_survey.compile(sql)
    each_survey.backend.check(query.releases, query.public_reads, Cancellation())


# Every form of the grammar by itself: accepted, and total on every poison


CROWD = Database(tuple(enumerate(Row(table, seed % UNITS, seed) for table in COLUMNS for seed in range(120))))


def simple_forms() -> list[tuple[str, str, str]]:
    """A table, an expression over its columns, its kind: for every form of the grammar."""
    found = []
    for kind, forms in FORMS.items():
        for form, kinds in forms:
            table = next(
                (t for t in ("visits", "people") if all(kind in COLUMNS[t] for kind in kinds)),
                "visits",
            )
            columns = [COLUMNS[table].get(each, CONSTANTS[each])[-1] for each in kinds]
            found.append((table, form.format(*columns), kind))
    return found


def test_every_form_is_total(each_survey: Survey) -> None:
    each_survey.fill(CROWD.tables())
    failures = []
    for table, expression, _ in simple_forms():
        sql = f"SELECT COUNT({expression}), COUNT(*) FILTER (WHERE ({expression}) IS NULL) FROM {table}"
        for release in each_survey.compile(sql).releases:
            try:
                each_survey.fetch([release])
            except BackendFailure:
                failures.append(f"{expression}: {each_survey.reason(release)}")
    assert not failures


def functions_of(survey: Survey, sql: str) -> set[str]:
    """The functions of the allow-list that a query's protected part calls."""
    parameters = Parameters(UTC, (), now=lambda: MEANINGS.now)
    lowered, _ = lower(parse_query(QueryStatement(sql)), survey.catalog, parameters, MEANINGS, sql)
    found: set[str] = set()

    def look(expression: Expr | None) -> None:
        if expression is None:
            return
        if isinstance(expression, Call):
            found.add(expression.function)
        for part in operands(expression):
            look(part)

    def walk(relation: Relation) -> None:
        if isinstance(relation, Release):
            for call in relation.aggregate.aggregates:
                look(call.argument)
                look(call.filter)
            walk(relation.protected.relation)
        elif isinstance(relation, Filter):
            look(relation.condition)
        elif isinstance(relation, Project):
            for expression in relation.expressions:
                look(expression)
        for part in inputs(relation):
            walk(part)

    walk(lowered.relation)
    return found


OF_JSON = {name for name in FUNCTIONS if "json" in name}
"""Functions of a type that no column of the survey has: tests/test_nested_columns.py has them."""


def test_the_grammar_reaches_every_function(survey: Survey) -> None:
    reached: set[str] = set()
    for table, expression, _ in simple_forms():
        reached |= functions_of(survey, f"SELECT COUNT({expression}) FROM {table}")
    assert set(FUNCTIONS) - reached == OF_JSON


# A greedy unit: more rows, groups, values and extremes than it may bring, and the faults that would let it


GREEDY = """
INSERT INTO people SELECT i, 2147483647, 'F', 'town', 1e308, -2147483648, DATE '2000-01-05', true, NULL
    FROM range(4) t(i);
INSERT INTO visits (visit_id, pid, cost, huge, n, ratio, f, day, met, zoned, kind, grade, note, flag)
    SELECT 'v' || (i % 7), CASE WHEN i < 300 THEN 0 ELSE i % 4 END, 9999999, 170141183460469231731687303715884105727,
        9223372036854775807, 1e300, 1e30, DATE '2024-01-01' + CAST(i % 20 AS INTEGER),
        TIMESTAMP '2024-01-01 00:00:00' + to_hours(i % 48), TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_hours(i % 48),
        i % 6, 0.5 + (i % 10) / 10, 'note ' || i, i % 2 = 0
    FROM range(400) t(i);
INSERT INTO lines SELECT 'v' || (i % 7), 'drug ' || (i % 30), 32767, -1e300 FROM range(200) t(i);
INSERT INTO stays SELECT i, i % 4, 'ward ' || i, 99 FROM range(40) t(i);
INSERT INTO meals SELECT i % 40, 'soup', 2 FROM range(400) t(i);
INSERT INTO cards SELECT i % 4, 100, 'gold' FROM range(40) t(i);
INSERT INTO letters SELECT CASE WHEN i < 60 THEN 'ann' ELSE 'Ann' END, 'topic ' || (i % 15), -99 FROM range(80) t(i);
"""
WITHOUT_GREEDY = "; ".join(f"DELETE FROM {table} WHERE pid = 0" for table in ("people", "visits", "stays", "cards"))
WITHOUT_GREEDY += "; DELETE FROM letters WHERE who = 'ann'"

OF_A_KEY = (
    "SELECT sex, AVG(n) FROM (SELECT sex, COUNT(*) n FROM people p JOIN visits USING (pid) GROUP BY p.pid) GROUP BY 1"
)
"""In a group of one person, a column of people has one value where a key of the engine says so, and else none."""
CASES = (
    "SELECT COUNT(*), SUM(cost), AVG(cost), COUNT(DISTINCT note), COUNT(DISTINCT pid), AVG(n), SUM(huge) FROM visits",
    "SELECT day, COUNT(*), SUM(n), AVG(n), COUNT(DISTINCT note) FROM visits GROUP BY day",
    "SELECT VAR_POP(n), STDDEV(cost), VARIANCE(huge) FROM visits",
    OF_A_KEY,
    "SELECT COUNT(*) FROM visits WHERE (n, flag) IN ((1, true), (2, false)) OR (n, cost) < (3, 5)",
    "SELECT flag, COUNT(*) FROM visits WHERE (day, day + 3) OVERLAPS (DATE '2020-01-01', DATE '2022-02-01') GROUP BY 1",
    "SELECT flag, STDDEV(ratio), VAR_SAMP(n) FILTER (WHERE n > 3), AVG(n) FROM visits GROUP BY flag",
    "SELECT sex, VAR_POP(age), CORR(age, weight), REGR_SLOPE(debt, age) FROM people GROUP BY sex",
    "SELECT CORR(n, cost), REGR_R2(ratio, n), COVAR_POP(n, n), REGR_AVGX(huge, ratio), REGR_COUNT(n, f) FROM visits",
    "SELECT note, REGR_SXX(n, ratio), REGR_SYY(n, cost), REGR_SXY(cost, ratio) FROM visits GROUP BY note",
    "SELECT REGR_INTERCEPT(points, points), COVAR_SAMP(points, 3) FROM cards",
    "SELECT SUM(DISTINCT n), AVG(DISTINCT n), COUNT(DISTINCT n), AVG(DISTINCT cost) FROM visits",
    "SELECT MIN(met), MAX(zoned) FILTER (WHERE flag), MAX(day + n) FROM visits",
    "SELECT VARIANCE(DISTINCT n), STDDEV_POP(DISTINCT cost) FROM visits",
    "SELECT k, SUM(x), COUNT(DISTINCT pid), MAX(x) FROM visits, LATERAL (VALUES ('n', n), ('half', n / 2)) AS u (k, x) "
    "GROUP BY k",
    "SELECT SUM(x), COUNT(x) FROM visits, UNNEST(ARRAY[n, cost, huge]) AS u (x) WHERE x > 1",
    "SELECT w, COUNT(*), SUM(n), COUNT(DISTINCT day) FROM visits, UNNEST(STRING_TO_ARRAY(note, ' ')) AS w GROUP BY w",
    "SELECT w, COUNT(*), SUM(age), COUNT(DISTINCT pid) FROM people, UNNEST(STRING_TO_ARRAY(city || ' b c', ' ')) AS w "
    "GROUP BY w",
    "SELECT sex, COUNT(*), COUNT(w), AVG(age) FROM people LEFT JOIN UNNEST(STRING_TO_ARRAY(city, ' ')) w ON w > 'a' "
    "GROUP BY sex",
    "SELECT sex, COUNT(DISTINCT CASE WHEN age > 30 THEN pid END), COUNT(CASE WHEN city = 'a' THEN pid END) FROM people "
    "GROUP BY sex",
    "SELECT COUNT(DISTINCT CASE WHEN flag THEN pid END), AVG(cost / n), SUM(cost / NULLIF(n, 0)) FROM visits",
    "SELECT FLOOR(n), COUNT(*), SUM(ROUND(n) / 2) FROM visits WHERE n BETWEEN 0 AND 9 GROUP BY 1",
    "SELECT SUM(n) FROM visits WHERE n > 3 AND n < 7",
    "SELECT note, VAR_POP(DISTINCT n) FILTER (WHERE flag), COUNT(DISTINCT n) FROM visits GROUP BY note",
    "SELECT sex, STDDEV(DISTINCT age) FROM people GROUP BY sex",
    "SELECT note, SUM(DISTINCT n), AVG(DISTINCT cost) FILTER (WHERE flag) FROM visits GROUP BY note",
    "SELECT sex, SUM(DISTINCT age), AVG(DISTINCT age) FROM people GROUP BY sex",
    "SELECT sex, APPROX_COUNT_DISTINCT(city) FILTER (WHERE member), COUNT(*) FROM people GROUP BY sex",
    "SELECT HISTOGRAM(n, 0, 9, 3) FILTER (WHERE flag) FROM visits",
    "SELECT sex, HISTOGRAM(age, 90, 0, 4) FROM people GROUP BY sex",
    "SELECT flag, HISTOGRAM(ratio, -1, 1, 5) FROM visits GROUP BY flag",
    "SELECT BOOL_AND(flag), BOOL_OR(n > 3), EVERY(cost < 0) FROM visits",
    "SELECT day, BOOL_AND(flag), BOOL_OR(flag) FILTER (WHERE n > 3) FROM visits GROUP BY day",
    "SELECT MIN(n), MAX(cost), MEDIAN(ratio), PERCENTILE_DISC(0.9) WITHIN GROUP (ORDER BY huge) FROM visits",
    "SELECT day, MIN(n), MAX(ratio) FILTER (WHERE flag), MEDIAN(cost), COUNT(DISTINCT n) FROM visits GROUP BY day",
    "SELECT note, PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY n), MAX(n), AVG(n) FROM visits GROUP BY note",
    "SELECT note, day, MEDIAN(n) FROM visits GROUP BY note, day",
    "SELECT MIN(day), MAX(CAST(met AS date)), PERCENTILE_DISC(0.2) WITHIN GROUP (ORDER BY CAST(zoned AS date)) FROM "
    "visits",
    "SELECT sex, MAX(born), MIN(CAST(seen AS date)) FROM people GROUP BY sex",
    "SELECT PERCENTILE_DISC(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY n), MIN(n), MAX(ratio), COUNT(DISTINCT n) FROM "
    "visits",
    "SELECT sex, PERCENTILE_CONT(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY age), COUNT(DISTINCT city) FROM people "
    "GROUP BY sex",
    "SELECT sex, MIN(age), MAX(debt), MEDIAN(weight) FROM people GROUP BY sex",
    "SELECT MAX(points), PERCENTILE_DISC(0.3) WITHIN GROUP (ORDER BY points) FROM cards",
    "SELECT SUM(CASE WHEN flag THEN n ELSE -5 END), SUM((n > 3)::int), SUM(n * cost) / SUM(n) FROM visits",
    "SELECT note, COUNT(*), SUM(cost), COUNT(DISTINCT day) FROM visits GROUP BY note",
    "SELECT note, day, COUNT(*) FROM visits GROUP BY note, day",
    "SELECT flag, COUNT(*), AVG(ratio), SUM(f) FROM visits GROUP BY flag",
    "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
    "SELECT kind, COUNT(*) FROM visits WHERE kind BETWEEN 0 AND 1 GROUP BY kind",
    "SELECT CAST(grade * 10 AS integer), COUNT(*) FROM visits WHERE CAST(grade AS integer) = 1 GROUP BY 1",
    "SELECT CAST(CEIL(grade) AS integer), COUNT(*) FROM visits WHERE CAST(grade AS integer) = 1 GROUP BY 1",
    "SELECT DATE_TRUNC('hour', met)::date, COUNT(*) FROM visits GROUP BY 1",
    "SELECT CAST(DATE_TRUNC('hour', met) AS text), COUNT(*) FROM visits GROUP BY 1",
    "SELECT DATE_TRUNC('hour', met), COUNT(*) FROM visits GROUP BY 1",
    "SELECT DATE_TRUNC('week', day), EXTRACT(dow FROM day), COUNT(*) FROM visits GROUP BY 1, 2",
    "SELECT EXTRACT(year FROM day), COUNT(*) FROM visits GROUP BY 1",
    "SELECT CASE WHEN kind > 3 THEN 'a' WHEN flag THEN 'b' END, SUM(n) FROM visits GROUP BY 1",
    "SELECT CAST(zoned AS date), COUNT(*) FROM visits GROUP BY 1",
    "SELECT DISTINCT note FROM visits",
    "SELECT DISTINCT flag, kind FROM visits",
    "SELECT drug, COUNT(*), SUM(boxes), SUM(dose), AVG(dose) FROM lines GROUP BY drug",
    "SELECT COUNT(*), SUM(dose), COUNT(DISTINCT drug) FROM lines",
    "SELECT dish, COUNT(*), COUNT(DISTINCT price) FROM meals GROUP BY dish",
    "SELECT price, COUNT(*), SUM(price) FROM meals GROUP BY price",
    "SELECT tag, COUNT(*) FROM visits GROUP BY tag",
    "SELECT level, COUNT(*), SUM(points), AVG(points) FROM cards GROUP BY level",
    "SELECT SUM(points) FILTER (WHERE level = 'tin'), AVG(points) FROM cards",
    "SELECT topic, SUM(words), AVG(words), COUNT(*) FILTER (WHERE words < 0) FROM letters GROUP BY topic",
    "SELECT sex, COUNT(*), SUM(age), AVG(weight), SUM(debt), AVG(debt) FROM people GROUP BY sex",
    "SELECT born, COUNT(DISTINCT city) FROM people GROUP BY born",
    "SELECT COUNT(*), SUM(r) FROM (SELECT pid, LEAST(GREATEST(n, 0), 4) AS r FROM visits WHERE flag) s WHERE r > 1",
    "SELECT p, COUNT(*) FROM (SELECT pid + 0 AS p, n FROM visits) s GROUP BY p",
    "SELECT COUNT(DISTINCT p) FROM (SELECT pid + 0 AS p FROM visits) s",
    "SELECT ROUND(cost, 2), COUNT(*) FROM visits GROUP BY 1",
    "SELECT CAST(n * 4000 AS smallint), COUNT(*) FROM visits GROUP BY 1",
    "SELECT CAST(FLOOR(ratio + 9223372036854775807) AS bigint), COUNT(*) FROM visits GROUP BY 1",
    "SELECT COUNT(*) FROM visits WHERE ratio > 0.000000000000000000000000000001234567890123",
    "SELECT COUNT(DISTINCT note) FROM visits WHERE LEAST(clock, clock, TIME '12:00') < GREATEST(clock, clock, clock)",
    "SELECT COUNT(*), SUM(v.n), COUNT(DISTINCT p.city) FROM visits v JOIN people p ON v.pid = p.pid",
    "SELECT p.city, COUNT(*), AVG(v.n) FROM people p LEFT JOIN visits v ON v.pid = p.pid GROUP BY p.city",
    "SELECT p.sex, COUNT(*) FROM people p FULL JOIN cards c ON c.pid = p.pid AND c.points > 5 GROUP BY p.sex",
    "SELECT COUNT(*), SUM(l.boxes) FROM visits v JOIN lines l ON l.visit_id = v.visit_id",
    "SELECT l.drug, COUNT(*) FROM visits v JOIN lines l USING (visit_id) GROUP BY l.drug",
    "SELECT COUNT(*) FROM lines a JOIN lines b ON a.visit_id = b.visit_id",
    "SELECT COUNT(*) FROM visits a, visits b WHERE a.pid = b.pid AND a.n < b.n",
    "SELECT k.title, COUNT(*) FROM visits v JOIN kinds k ON v.kind = k.code GROUP BY k.title",
    "SELECT k.code, k.title, COUNT(v.n), SUM(v.n) FROM kinds k LEFT JOIN visits v ON v.kind = k.code GROUP BY 1, 2",
    "SELECT k.title, g.value, COUNT(*) FROM visits v CROSS JOIN kinds k LEFT JOIN grades g ON g.value = v.grade "
    "GROUP BY k.title, g.value",
    "SELECT AVG(c), SUM(s) FROM (SELECT pid, COUNT(*) AS c, SUM(cost) AS s FROM visits GROUP BY pid) t",
    "SELECT c, COUNT(*) FROM (SELECT pid, COUNT(*) AS c FROM visits GROUP BY pid) t GROUP BY c",
    "SELECT note, COUNT(*), SUM(m) FROM (SELECT pid, note, MAX(n) AS m FROM visits GROUP BY pid, note) t GROUP BY note",
    "SELECT COUNT(*), AVG(a) FROM (SELECT AVG(ratio) AS a FROM visits GROUP BY pid HAVING COUNT(*) > 1) t",
    "SELECT COUNT(*) FROM (SELECT DISTINCT pid, note FROM visits) t",
    "SELECT k.title, (SELECT COUNT(*) FROM visits v WHERE v.kind = k.code) FROM kinds k",
    "SELECT COUNT(*) FROM visits v WHERE (note, n) IN (SELECT note, MAX(n) FROM visits WHERE pid = v.pid GROUP BY 1)",
    "SELECT b, COUNT(*) FROM (SELECT BOOL_OR(n > 1) FILTER (WHERE n < 4) OVER (PARTITION BY pid ORDER BY n) AS b "
    "FROM visits) t GROUP BY b",
    "SELECT r, COUNT(*) FROM (SELECT ROW_NUMBER() OVER (PARTITION BY pid ORDER BY n) AS r FROM visits) t GROUP BY r",
    "SELECT note, COUNT(*) FROM (SELECT note, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY n) AS r FROM visits) t "
    "WHERE r <= 2 GROUP BY note",
    "SELECT SUM(x), AVG(y) FROM (SELECT SUM(ratio) OVER w AS x, LAG(n) OVER w AS y FROM visits "
    "WINDOW w AS (PARTITION BY pid ORDER BY day)) t",
    "SELECT r, COUNT(*) FROM (SELECT ROW_NUMBER() OVER (PARTITION BY visit_id ORDER BY drug) AS r FROM lines) t "
    "GROUP BY r",
    "SELECT note, COUNT(*) FROM (SELECT DISTINCT ON (pid) pid, note FROM visits ORDER BY pid, n) t GROUP BY note",
    "SELECT drug, COUNT(*) FROM (SELECT DISTINCT ON (visit_id) drug FROM lines ORDER BY visit_id, drug) t "
    "GROUP BY drug",
    "SELECT COUNT(*) FROM people WHERE pid IN (SELECT pid FROM visits WHERE n > 3)",
    "SELECT COUNT(*) FROM people p WHERE NOT EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid)",
    "SELECT COUNT(*) FROM visits v WHERE n > (SELECT AVG(w.n) FROM visits w WHERE w.pid = v.pid)",
    "SELECT SUM(LEAST((SELECT COUNT(*) FROM visits v WHERE v.pid = p.pid), 50)) FROM people p",
    "SELECT SUM(n) FROM people p, LATERAL (SELECT v.n FROM visits v WHERE v.pid = p.pid ORDER BY v.n LIMIT 3) x",
    "SELECT note, COUNT(*) FROM (SELECT pid, note FROM visits UNION ALL SELECT pid, ward FROM stays) t GROUP BY note",
    "SELECT COUNT(*) FROM (SELECT pid FROM visits EXCEPT SELECT pid FROM stays) t",
    "SELECT COUNT(*) FROM visits v WHERE (SELECT k.title FROM kinds k WHERE k.code = v.kind) = 'b'",
    "SELECT FLOOR(ratio * 4) * 10, COUNT(*) FROM visits GROUP BY FLOOR(ratio * 4) * 10",
    "SELECT COUNT(DISTINCT v.pid), COUNT(v.pid) FROM people p LEFT JOIN visits v ON v.pid = p.pid AND v.n > 5",
    "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM kinds k WHERE (SELECT j.title FROM kinds j WHERE "
    "j.code = v.kind) = 'b')",
    "SELECT COUNT(*) FROM visits p JOIN kinds k ON k.code = (SELECT j.code FROM kinds j WHERE j.code = p.kind)",
    "SELECT COUNT(CASE WHEN kind >= 0 THEN huge END) FROM visits",
    "SELECT COUNT(x) FROM (SELECT pid, huge AS x FROM visits UNION ALL SELECT pid, NULL::numeric FROM stays) t",
    "SELECT COUNT(*) FROM (SELECT DISTINCT ON (pid) pid, CASE WHEN flag THEN INTERVAL '1 month' ELSE "
    "INTERVAL '30 days' END AS i FROM visits) t WHERE EXTRACT(day FROM i) = 30",
    "SELECT COUNT(*) FROM (SELECT DISTINCT pid, RANK() OVER (PARTITION BY pid ORDER BY n) AS r FROM visits) t",
    "SELECT DISTINCT ROW_NUMBER() OVER (PARTITION BY pid ORDER BY note) FROM visits",
    "SELECT kind FROM visits GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 2",
    "SELECT day, flag FROM visits GROUP BY day, flag ORDER BY SUM(huge), day LIMIT 5",
    "SELECT kind FROM visits GROUP BY kind ORDER BY COUNT(DISTINCT note) FILTER (WHERE n > 3) DESC LIMIT 1",
    "SELECT sex FROM people GROUP BY sex ORDER BY SUM(age) DESC LIMIT 2",
    "SELECT k.title, g.value FROM visits v JOIN kinds k ON v.kind = k.code JOIN grades g ON g.value = v.grade "
    "GROUP BY k.title, g.value ORDER BY SUM(v.n) DESC LIMIT 3 OFFSET 1",
    "SELECT MODE() WITHIN GROUP (ORDER BY kind) FROM visits",
    "SELECT MODE() WITHIN GROUP (ORDER BY born) FROM people",
    "SELECT day, MODE() WITHIN GROUP (ORDER BY kind) FROM visits GROUP BY day",
    "SELECT EXTRACT(day FROM day), MODE() WITHIN GROUP (ORDER BY grade) FILTER (WHERE flag) FROM visits GROUP BY 1",
    "SELECT kind, MODE() WITHIN GROUP (ORDER BY flag) FROM visits GROUP BY kind",
    "SELECT COUNT(*) FROM people p, kinds k",
    "SELECT COUNT(*) FROM people p JOIN kinds k ON k.code < 3",
    "SELECT COUNT(*) FROM people p FULL JOIN (SELECT pid, COUNT(*) AS c FROM visits GROUP BY pid) v ON v.pid = p.pid "
    "AND v.c = p.age",
    "SELECT COUNT(*) FROM visits v WHERE (SELECT COUNT(*) FROM kinds k WHERE k.code <= v.kind) > 2",
    "SELECT COUNT(*) FROM visits v WHERE (SELECT MAX(k.title) FROM kinds k WHERE k.code <= v.kind) > 'b'",
    "SELECT COUNT(*) FROM visits WHERE LEFT(note, 0) || 'nan' = 'nan' AND CAST(LEFT(note, 0) || 'nan' AS real) > 5",
)
"""Accepted, each."""

REFUSED = (
    "SELECT COUNT(*) FROM (SELECT ROW_NUMBER() OVER (ORDER BY n) AS r FROM visits) s WHERE r <= 10",
    "SELECT DISTINCT ROW_NUMBER() OVER (ORDER BY note) FROM visits",
    "SELECT note, COUNT(*) OVER () FROM visits GROUP BY ROW_NUMBER() OVER (ORDER BY note), note",
    "SELECT COUNT(*) FROM (SELECT note FROM visits ORDER BY note LIMIT 5) s",
    "SELECT COUNT(*) FROM (SELECT note FROM visits UNION ALL SELECT 'x') s",
    "SELECT COUNT(*) FROM visits v JOIN people p ON v.n = p.age",
    "SELECT COUNT(*) FROM visits v CROSS JOIN people p",
    "SELECT COUNT(*) FROM visits v JOIN people p ON v.pid >= p.pid",
    "SELECT COUNT(*) FROM visits v LEFT JOIN people p ON TRUE WHERE v.pid = p.pid",
    "SELECT COUNT(*) FROM visits v JOIN people p ON v.pid = p.pid OR v.n = p.age",
    "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.note = v.note AND w.pid <> v.pid)",
    "SELECT COUNT(*) FROM visits WHERE note IN (SELECT note FROM visits)",
    "SELECT COUNT(*) FROM visits v WHERE n > (SELECT AVG(w.n) FROM visits w WHERE w.note < v.note)",
    "SELECT COUNT(*) FROM visits v WHERE n = (SELECT w.n FROM visits w ORDER BY w.n DESC LIMIT 1)",
    "SELECT (SELECT COUNT(*) FROM visits v WHERE v.kind > k.code) FROM kinds k",
    "SELECT title FROM kinds k WHERE EXISTS (SELECT 1 FROM visits v WHERE v.kind = k.code)",
    "SELECT title FROM kinds WHERE code IN (SELECT kind FROM visits)",
    "SELECT title FROM kinds k LEFT JOIN visits v ON v.kind = k.code WHERE v.n IS NULL",
    "SELECT k.code, COUNT(*) FROM kinds k LEFT JOIN visits v ON v.kind = k.code GROUP BY k.code",
    "SELECT COUNT(*) FROM kinds k LEFT JOIN visits v ON v.kind = k.code WHERE v.n IS NULL",
    "SELECT k.code, COUNT(COALESCE(v.n, 0)) FROM kinds k LEFT JOIN visits v ON v.kind = k.code GROUP BY k.code",
    "SELECT COUNT(*) FROM (SELECT note FROM visits UNION SELECT ward FROM stays) t",
    "SELECT COUNT(*) FROM (SELECT note FROM visits EXCEPT SELECT ward FROM stays) t",
    "SELECT COUNT(*) FROM (SELECT DISTINCT ON (note) pid, note FROM visits ORDER BY note) t",
    "SELECT COUNT(*) FROM (SELECT COUNT(*) OVER (PARTITION BY note ORDER BY n) AS c FROM visits) t WHERE c = 1",
    "SELECT pid, COUNT(*) FROM visits GROUP BY pid",
    "SELECT pid FROM visits UNION ALL SELECT pid FROM stays",
    "SELECT COUNT(*) FROM people p, LATERAL (SELECT v.n FROM visits v WHERE v.n = p.age) x",
    "SELECT COUNT(*) FROM people p WHERE EXISTS (SELECT 1 FROM kinds k LEFT JOIN (SELECT v.kind FROM visits v WHERE "
    "v.pid = p.pid) x ON x.kind = k.code)",
    "SELECT COUNT(*) FROM (SELECT pid, INTERVAL '1 day' FROM visits UNION SELECT pid, INTERVAL '1 day' FROM stays) t",
    "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM kinds k WHERE k.code > v.kind GROUP BY k.code * "
    "INTERVAL '1 day')",
    "SELECT COUNT(*) FROM visits v WHERE (SELECT SUM(g.value) FROM grades g WHERE g.value <= v.grade) > 1",
    "SELECT COUNT(*) FROM visits v WHERE (SELECT k.title FROM kinds k WHERE k.code >= v.kind LIMIT 1) = 'a'",
    "SELECT COUNT(*) FROM visits v, LATERAL (SELECT k.title, RANK() OVER (ORDER BY k.code) AS r FROM kinds k "
    "WHERE k.code > v.kind) x",
    "SELECT COUNT(*) FROM visits v, LATERAL (SELECT DISTINCT ON (title) code FROM kinds k WHERE k.code > v.kind) x",
    "SELECT COUNT(*) FROM (SELECT MAX(INTERVAL '1 day' * n) AS i FROM visits GROUP BY pid) t",
    "SELECT COUNT(*) FROM (SELECT MIN(INTERVAL '1 day') OVER (PARTITION BY pid) AS i FROM visits) t",
    "SELECT COUNT(*) FROM people p, LATERAL (SELECT v.n FROM visits v ORDER BY v.n LIMIT 1) x",
)
"""Each would let one unit move what others bring."""


def cases(survey: Survey) -> list[str]:
    """The cases that an engine can say: files have no keys."""
    keyed = survey.catalog.schema.tables["people"].unique_keys
    return [sql for sql in CASES if keyed or sql != OF_A_KEY]


@cache
def release_of(survey: Survey, sql: str, options: QuerySettings = SETTINGS) -> PlannedRelease:
    (planned,) = survey.compile(sql, options).releases
    return planned


def greedy(survey: Survey, planned: list[PlannedRelease]) -> tuple[list[ExactCells], list[ExactCells]]:
    """Cells with the greedy unit, and without it."""
    survey.fill({})
    survey.change(GREEDY)
    left = survey.fetch(planned)
    survey.change(WITHOUT_GREEDY)
    return left, survey.fetch(planned)


def test_a_greedy_unit(each_survey: Survey) -> None:
    options = [replace(SETTINGS, max_groups=groups) for groups in (None, 1)]
    plans = [release_of(each_survey, sql, each) for sql in cases(each_survey) for each in options]
    for planned, left, right in zip(plans, *greedy(each_survey, plans), strict=True):
        assert_neighbours(planned, left, right)


@pytest.mark.parametrize(
    ("sql", "groups", "lists"),
    [
        ("SELECT kind FROM visits GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 2", False, ()),
        ("SELECT day, MODE() WITHIN GROUP (ORDER BY kind) FROM visits GROUP BY day", True, (0,)),
    ],
)
def test_picks_are_calibrated_to_what_a_greedy_unit_reaches(
    survey: Survey, sql: str, groups: bool, lists: tuple[int, ...]
) -> None:
    """The greedy unit moves all scores there are, and each by as much as is claimed; less would be too little."""
    planned = release_of(survey, sql)
    (primitive,) = planned.primitives
    assert isinstance(primitive.noise, Picking) and planned.contribution.lists == lists
    ((left, right),) = zip(*greedy(survey, [planned]), strict=True)
    moved = picked(planned, vectors(left)[1], vectors(right)[1])
    reached, touched = max(moved.values()), sum(step > 0 for step in moved.values())
    assert (reached, touched) == (primitive.noise.sensitivity.linf, planned.contribution.groups_per_unit)
    cells = sum(vectors(left)[1][key] != vectors(right)[1][key] for key in vectors(left)[1])
    assert cells > planned.contribution.groups_per_unit or groups


def test_what_was_released_is_the_same_to_both(survey: Survey) -> None:
    sql = "SELECT COUNT(*), SUM(n) FROM visits WHERE n > (SELECT AVG(n) FROM stays JOIN visits USING (pid)) OR note IN "
    planned = list(survey.compile(sql + "(SELECT note FROM visits GROUP BY note)").releases)
    assert [len(each.inputs) for each in planned] == [0, 0, 2]
    for each, left, right in zip(planned, *greedy(survey, planned), strict=True):
        assert_neighbours(each, left, right)


@pytest.mark.parametrize(
    "public",
    [
        "SELECT k.code, (SELECT j.title FROM kinds j WHERE j.code = k.code) AS s FROM kinds k, kinds l",
        "SELECT code, title AS s FROM kinds ORDER BY code LIMIT 3",
        "SELECT code, RANK() OVER (ORDER BY code)::text AS s FROM kinds",
        "SELECT code, SUM(g.value)::text AS s FROM kinds, grades g GROUP BY code",
    ],
)
def test_public_rows_that_leave_something_open_are_made_first(survey: Survey, public: str) -> None:
    """An engine that joins them may skip those that nobody matches, and with them their errors and their choices."""
    planned = release_of(
        survey, f"SELECT COUNT(*) FROM visits v JOIN ({public}) q ON q.code = v.kind + 0 AND q.s > 'a'"
    )
    assert len(planned.inputs) == 1
    assert "kinds" not in planned.sql


@pytest.mark.parametrize("sql", REFUSED)
def test_what_lets_one_unit_move_others_is_refused(survey: Survey, sql: str) -> None:
    with pytest.raises(Error):
        survey.compile(sql)


@pytest.mark.parametrize("factors", [1, 9, 11, 40])
def test_limits_beyond_a_double_are_refused_or_kept(survey: Survey, factors: int) -> None:
    tiny = " * ".join(["0.000000000000000000000000000001"] * factors)
    try:
        planned = release_of(survey, f"SELECT SUM(LEAST(GREATEST(ratio, 0), {tiny})) FROM visits")
    except Error:
        return
    (left,), (right,) = greedy(survey, [planned])
    assert_neighbours(planned, left, right)


def unclamped(sql: str) -> str:
    """Engine SQL in which greatest(least(x, …), …) is x, wherever it stands."""
    lead = "greatest(least("
    while lead in sql:
        start = sql.index(lead)
        inner = _closing(sql, start + len(lead))
        outer = _closing(sql, inner + 1)
        parts = sql[start + len(lead) : inner]
        sql = sql[:start] + "(" + parts[: _last_comma(parts)] + ")" + sql[outer + 1 :]
    return sql


def _closing(text: str, start: int) -> int:
    """Where the parenthesis closes that is open at `start`."""
    depth = 1
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise ValueError("unbalanced")


def _last_comma(text: str) -> int:
    depth, last = 0, -1
    for index, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            last = index
    return last


def without(pattern: str, instead: str = "") -> Callable[[str], str]:
    return lambda sql: re.sub(pattern, instead, sql)


_LIMIT = r"CAST\(-?\d+ AS BIGINT\)"
_VALUE = rf"CASE WHEN (c\d+) < {_LIMIT} THEN {_LIMIT} WHEN \1 > {_LIMIT} THEN {_LIMIT} ELSE \1 END"


@dataclass(frozen=True)
class Fault:
    """A guard of the rewrite, and engine SQL without it."""

    name: str
    sql: str
    change: Callable[[str], str]


FAULTS = (
    Fault("groups are not ranked", "SELECT day, COUNT(*), COUNT(DISTINCT pid) FROM visits GROUP BY day",
        without(r"\br <= \d+", "r > 0")),
    Fault("fine keys are not ranked", "SELECT note, n, day, COUNT(*) FROM visits GROUP BY 1, 2, 3",
        without(r"\br <= \d+", "r > 0")),
    Fault("private groups are not ranked", "SELECT DISTINCT note FROM visits", without(r"\br = \d+", "r < 0")),
    Fault("one group too many", "SELECT note, COUNT(*) FROM visits GROUP BY note", without(r"\br = 4\b", "r = 5")),
    Fault("units with too many groups are not found", "SELECT note, COUNT(*) FROM visits GROUP BY note",
        without(r"HAVING count\(\*\) > 3", "HAVING count(*) > 9000")),
    Fault("one fine group too many", "SELECT day, COUNT(*), COUNT(DISTINCT pid) FROM visits GROUP BY day",
        without(r"\br <= 3\b", "r <= 4")),
    Fault("ranks go over all units", "SELECT note, COUNT(*) FROM visits GROUP BY note",
        without(r"PARTITION BY unit ORDER", "ORDER")),
    Fault("groups are chosen anew each time", "SELECT day, COUNT(*), COUNT(DISTINCT pid) FROM visits GROUP BY day",
        without(r"hash\(hash\([^()]*\)\) AS h", "random() AS h")),
    Fault("counts are not capped", "SELECT COUNT(*) FROM visits", without(r"least\((a\d+), \d+\)", r"\1")),
    Fault("counts in groups are not capped", "SELECT flag, COUNT(n) FROM visits GROUP BY flag",
        without(r"least\((a\d+), \d+\)", r"\1")),
    Fault("units are counted by rows", "SELECT COUNT(DISTINCT pid) FROM visits", without(r"least\((a\d+), 1\)", r"\1")),
    Fault("a count is capped one too high", "SELECT COUNT(*) FROM visits", without(r"(least\(a\d+), 9\)", r"\1, 10)")),
    Fault("distinct values are not capped", "SELECT COUNT(DISTINCT note) FROM visits",
        without(r"c\.r <= \d+", "c.r > 0")),
    Fault("distinct values of any group count", "SELECT note, COUNT(DISTINCT day) FROM visits GROUP BY note",
        without(r"\br = \d+", "r < 0")),
    Fault("sums of a unit are not clamped", "SELECT SUM(n) FROM visits", unclamped),
    Fault("sums of a unit in a group are not clamped", "SELECT flag, SUM(cost) FROM visits GROUP BY flag", unclamped),
    Fault("sums via another table are not clamped", "SELECT SUM(dose) FROM lines", unclamped),
    Fault("values are not clamped", "SELECT SUM(age) FROM people", without(_VALUE, r"\1")),
    Fault("values below are not clamped", "SELECT sex, SUM(debt) FROM people GROUP BY sex", without(_VALUE, r"\1")),
    Fault("values of means are not clamped", "SELECT AVG(age) FROM people", without(_VALUE, r"\1")),
    Fault("means are not clamped at all", "SELECT AVG(n) FROM visits",
        lambda sql: re.sub(_VALUE, r"LEAST(\1, 1000)", unclamped(sql))),
    Fault("means are not measured from the centre", "SELECT AVG(n) FROM visits",
        without(rf" - least\(a\d+, \d+\) \* {_LIMIT}")),
    Fault("means are not measured from the centre, a row a unit", "SELECT AVG(age) FROM people",
        without(r" - CAST[^*]* \* count\(x\d+\)")),
    Fault("squares are not clamped, a row a unit", "SELECT VAR_POP(age) FROM people", without(_VALUE, r"\1")),
    Fault("squares are not measured from the centre", "SELECT VAR_POP(n) FROM visits",
        lambda sql: re.sub(rf"\(x\d+ - {_LIMIT}\)", "(x0 + 9)", unclamped(sql))),
    Fault("squares of a unit are not clamped", "SELECT VAR_POP(n) FROM visits",
        lambda sql: re.sub(_VALUE, r"LEAST(\1, 1000)", unclamped(sql))),
    Fault("products of a unit are not clamped", "SELECT flag, COVAR_POP(n, huge) FROM visits GROUP BY flag",
        lambda sql: re.sub(_VALUE, r"LEAST(\1, 1000)", unclamped(sql))),
    Fault("distinct values that are added up are not capped",
        "SELECT SUM(DISTINCT EXTRACT(hour FROM met)::integer) FROM visits WHERE pid = 0",
        without(r"c\.r <= \d+", "c.r > 0")),
    Fault("distinct values that are added up are not clamped", "SELECT AVG(DISTINCT n) FROM visits WHERE pid = 0",
        without(_VALUE, r"\1")),
    Fault("units for a truth are counted by rows", "SELECT BOOL_AND(flag) FROM visits",
        without(r"least\((a\d+), 1\)", r"\1")),
    Fault("rows that are ranked are not capped", "SELECT MEDIAN(n) FROM visits", without(r"c\.r <= \d+", "c.r > 0")),
    Fault("one row too many is ranked", "SELECT flag, MEDIAN(n) FROM visits GROUP BY flag",
        without(r"c\.r <= 3\b", "c.r <= 4")),
    Fault("rows of any group are ranked", "SELECT note, MIN(n) FROM visits GROUP BY note",
        without(r"\br = 4\b", "r < 0")),
    Fault("rows are ranked over all units", "SELECT MIN(cost) FROM visits", lambda sql: sql.replace(
        "row_number() OVER (PARTITION BY unit ORDER BY", "1 + 0 * row_number() OVER (PARTITION BY unit ORDER BY")),
    Fault("empty groups are left out", "SELECT n < 5, COUNT(*) FROM visits WHERE pid = 0 GROUP BY 1",
        without(r"LEFT JOIN \(", "JOIN (")),
    Fault("a public group stands twice", "SELECT flag, COUNT(*) FROM visits GROUP BY flag",
        lambda sql: sql.replace("(VALUES (", "(VALUES (TRUE), (").replace("SELECT DISTINCT", "SELECT")),
    Fault("rows of any two persons meet",
        "SELECT COUNT(*) FROM visits v JOIN stays s ON v.pid = s.pid AND v.note = 'note 5'",
        lambda sql: re.sub(r"ON \(c0 = c\d\)", "ON TRUE", sql)),
    Fault("rows are numbered over all persons",
        "SELECT COUNT(*) FROM (SELECT RANK() OVER (PARTITION BY pid ORDER BY note) AS r FROM visits) t WHERE r > 100",
        without(r"PARTITION BY c\d+ ORDER", "ORDER")),
    Fault("groups are over all persons",
        "SELECT COUNT(*) FROM (SELECT pid, COUNT(*) AS c FROM visits GROUP BY pid) t WHERE c > 200",
        without(r"count\(\*\) AS (c\d+) FROM \(", r"sum(count(*)) OVER () AS \1 FROM (")),
    Fault("any person's rows are there",
        "SELECT COUNT(*) FROM people p WHERE EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid AND v.note = 'note 5')",
        without(r"\(c0 = c1\) AND ")),
    Fault("a join's rows are not capped", "SELECT COUNT(*) FROM visits a JOIN visits b ON a.pid = b.pid",
        without(r"least\((a\d+), \d+\)", r"\1")),
    Fault("both arms of a union count in full",
        "SELECT COUNT(*) FROM (SELECT pid FROM visits UNION ALL SELECT pid FROM stays) t",
        without(r"least\((a\d+), \d+\)", r"\1")),
    Fault("units are what the rows say", "SELECT COUNT(*) FROM visits", without(r'"pid" AS (c\d+)', r"note AS \1")),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_faults_are_caught(survey: Survey, fault: Fault) -> None:
    planned = release_of(survey, fault.sql)
    faulty = with_sql(planned, fault.change(planned.sql))
    assert faulty.sql != planned.sql, f"there is no such guard any more:\n{planned.sql}"
    (left, wrong_left), (right, wrong_right) = greedy(survey, [planned, faulty])
    assert_neighbours(planned, left, right)
    with pytest.raises(TooFar):
        assert_neighbours(faulty, wrong_left, wrong_right)
