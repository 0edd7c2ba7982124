"""The heart, where rows of a unit are limited over all groups together: within the claim, all of it, and by each guard.

Generated databases and queries meet this form in test_neighbours, under `max_rows` of 2 and 5.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dpsql.backends import ExactCells
from dpsql.compiler.bounding.steps import (
    ClampedSum,
    GroupSampling,
    Plain,
    RowLimit,
    RowSampling,
    RowsOfFew,
    RowsOfMany,
    RowSum,
    RowValues,
    Totals,
    Units,
    UnitTotal,
    ValueSampling,
)
from dpsql.compiler.ir.nodes import Literal
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.plan.verify import verify
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import GuaranteeMismatch
from dpsql.gateway.release import release
from dpsql.privacy.cost import Adjacency, row_sensitivity
from dpsql.sqltypes import SqlType
from tests.compiler.trees import dropped, everywhere, having, planted, with_sql
from tests.strategies.distance import TooFar, assert_neighbours, vectors
from tests.strategies.world import CONSTANTS, SETTINGS, Survey
from tests.test_neighbours import GREEDY, Fault, cases, greedy, release_of, unclamped, without

FIVE = replace(SETTINGS, max_rows=5)
"""With three rows in each of three groups, five in all are fewer."""
THREE = replace(SETTINGS, max_rows=3)
"""As many in all as in one group: of units that have no more, all rows count."""


MANY_UNITS = """
INSERT INTO visits (pid, n, cost, huge, kind, day, flag) SELECT i * i // 40, i % 11, i % 60, i * 7 % 2500 - 1200, i % 4,
    DATE '2024-01-01' + CAST(i % 9 AS INTEGER), i % 3 = 0 FROM range(400) t(i)"""
"""Units with one row to thirteen."""


def limited(survey: Survey) -> list[PlannedRelease]:
    """What is read with rows limited over all groups, for all of the cases."""
    found = [each for sql in cases(survey) for each in survey.compile(sql, FIVE).releases]
    return [each for each in found if each.contribution.rows_per_unit is not None]


def moved(left: ExactCells, right: ExactCells) -> list[list[int]]:
    """By how much each cell of each primitive moves, largest first."""
    pairs = zip(vectors(left)[1:], vectors(right)[1:], strict=True)
    return [sorted((abs(one.get(k, 0) - other.get(k, 0)) for k in one | other), reverse=True) for one, other in pairs]


def test_a_greedy_unit(each_survey: Survey) -> None:
    planned = limited(each_survey)
    assert len(planned) >= 25
    for each, left, right in zip(planned, *greedy(each_survey, planned), strict=True):
        assert_neighbours(each, left, right)


def test_rows_that_are_not_limited_are_too_many(each_survey: Survey) -> None:
    planned = limited(each_survey)[0]
    faulty = with_sql(planned, planned.sql.replace("HAVING sum(n) > 5)", "HAVING sum(n) > 5000)"))
    assert faulty != planned
    (left,), (right,) = greedy(each_survey, [faulty])
    with pytest.raises(TooFar):
        assert_neighbours(faulty, left, right)


def test_a_greedy_unit_that_another_replaces(substituted: Survey) -> None:
    planned = limited(substituted)
    left, _ = greedy(substituted, planned)
    substituted.memory.execute("INSERT INTO visits SELECT * REPLACE (0 AS pid, 5 - n % 9 AS n) FROM visits")
    for each, one, other in zip(planned, left, substituted.fetch(planned), strict=True):
        assert_neighbours(each, one, other, Adjacency.SUBSTITUTE)


@pytest.mark.parametrize("key", ["EXTRACT(day FROM day)", "day"])
def test_the_claim_is_no_larger_than_it_must_be(survey: Survey, key: str) -> None:
    planned = release_of(survey, f"SELECT {key}, COUNT(*), SUM(n) FROM visits GROUP BY {key}", FIVE)
    (left,), (right,) = greedy(survey, [planned])
    counts, sums = moved(left, right)
    assert (sum(counts), sum(sums)) == (5, 5 * 9)
    assert [primitive.noise.sensitivity.l1 for primitive in planned.primitives] == [5, 5 * 9]
    assert [primitive.noise.sensitivity.l2_squared for primitive in planned.primitives] == [5 * 3, 5 * 3 * 9**2]


def test_all_of_the_claim_is_reached_in_groups_that_are_full(survey: Survey) -> None:
    planned = release_of(survey, "SELECT flag, COUNT(*) FROM visits GROUP BY flag", replace(SETTINGS, max_rows=4))
    assert planned.contribution.rows_per_unit == 4 < 2 * 3
    survey.fill({})
    survey.memory.execute("INSERT INTO visits (pid, flag) SELECT 0, i % 3 = 0 FROM range(900) t(i)")
    (found,) = survey.fetch([planned])
    assert sorted(found.cells[0].tolist()) == [0, 2, 2]


HOUR = "DATE_TRUNC('hour', met)"
FAULTS = (
    Fault("rows are not limited over all groups", "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
        without(r"HAVING sum\(n\) > 5\)", "HAVING sum(n) > 5000000)")),
    Fault("a row too many", "SELECT day, COUNT(*) FROM visits GROUP BY day", without(r"\* 5 \+", "* 6 +")),
    Fault("rows are not limited in each", "SELECT kind > 100, COUNT(*) FROM visits GROUP BY 1",
        without(r"least\((a\d+), 3\) AS n", r"\1 AS n")),
    Fault("shares are of the rows of all units", "SELECT day, COUNT(*) FROM visits GROUP BY day",
        without(r"sum\(n\) AS total", "sum(sum(n)) OVER () AS total")),
    Fault("rows that are shared count beside their share", "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
        without(r"WHERE NOT EXISTS \(SELECT 1 FROM many_rows WHERE [^()]*\)")),
    Fault("shares go on over all units", f"SELECT {HOUR}, COUNT(*) FROM visits GROUP BY 1",
        without(r"PARTITION BY unit ORDER", "ORDER")),
    Fault("shares are drawn anew each time", f"SELECT {HOUR}, COUNT(*) FROM visits GROUP BY 1",
        without(r"hash\(hash\([^()]*\)\) % total", "CAST(1000 * random() AS BIGINT) % total")),
    Fault("shares begin at two places", f"SELECT {HOUR}, COUNT(*) FROM visits GROUP BY 1",
        without(r"abs\(hash\(hash\([^()]*\)\) % total\)", "CASE WHEN upto = n THEN total - 1 ELSE 0 END")),
    Fault("counts are not those of the share", "SELECT kind, COUNT(n) FROM visits GROUP BY kind",
        without(r"least\((a\d+), m\)", r"least(\1, 3)")),
    Fault("counts of means are not those of the share", "SELECT kind, AVG(n) FROM visits GROUP BY kind",
        without(r"least\((a\d+), m\)", r"least(\1, 3)")),
    Fault("sums are not those of the share", "SELECT kind, SUM(n) FROM visits GROUP BY kind", unclamped),
    Fault("sums are those of full groups", "SELECT kind, SUM(n) FROM visits GROUP BY kind",
        without(r"m \* CAST", "3 * CAST")),
    Fault("distinct values are not those of the share", "SELECT kind, COUNT(DISTINCT note) FROM visits GROUP BY kind",
        without(r"c\.r <= m", "c.r <= 3")),
    Fault("ranked rows are not those of the share", "SELECT kind, MEDIAN(n) FROM visits GROUP BY kind",
        without(r"c\.r <= m", "c.r <= 3")),
    Fault("groups of units that are counted are not ranked", "SELECT day, COUNT(DISTINCT pid), COUNT(*) FROM visits "
        "GROUP BY day", without(r"\br <= \d+", "r > 0")),
    Fault("private groups are not ranked", "SELECT note, COUNT(*) FROM visits GROUP BY note",
        without(r"\br = \d+", "r < 0")),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_faults_are_caught(survey: Survey, fault: Fault) -> None:
    planned = release_of(survey, fault.sql, FIVE)
    assert planned.contribution.rows_per_unit == 5
    faulty = with_sql(planned, fault.change(planned.sql))
    assert faulty.sql != planned.sql, f"there is no such guard any more:\n{planned.sql}"
    (left, wrong_left), (right, wrong_right) = greedy(survey, [planned, faulty])
    assert_neighbours(planned, left, right)
    with pytest.raises(TooFar):
        assert_neighbours(faulty, wrong_left, wrong_right)


@pytest.mark.parametrize("key", ["note", "kind", "day"])
@pytest.mark.parametrize("hashed", ["0", "18446744073709551615", "-9223372036854775807"])
def test_rows_are_no_more_whatever_the_hash(survey: Survey, key: str, hashed: str) -> None:
    planned = release_of(survey, f"SELECT {key}, COUNT(*), SUM(n), MEDIAN(n) FROM visits GROUP BY {key}", FIVE)
    alike = with_sql(planned, re.sub(r"hash\(hash\(unit, \d+\)\)", hashed, planned.sql))
    assert alike.sql != planned.sql
    (left,), (right,) = greedy(survey, [alike])
    assert_neighbours(alike, left, right)


@pytest.mark.parametrize("cell", ["SUM(n)", "SUM(cost)", "MEDIAN(n)", "COUNT(DISTINCT note)", "SUM(DISTINCT n)"])
def test_one_row_in_a_group_is_limited_over_all_groups_too(survey: Survey, cell: str) -> None:
    one = replace(FIVE, max_rows_per_group=1)
    planned = release_of(survey, f"SELECT day, {cell} FROM visits GROUP BY day", one)
    assert (planned.contribution.rows_per_unit, planned.contribution.rows_per_group) == (5, 1)
    (left,), (right,) = greedy(survey, [planned])
    assert_neighbours(planned, left, right)


# Units whose rows all count


def told_apart(survey: Survey) -> list[PlannedRelease]:
    """What is read with the units of few rows apart from the others, for all of the cases."""
    found = [each for sql in cases(survey) for each in survey.compile(sql, THREE).releases]
    return [each for each in found if each.query.tree.totals is not None and each.query.tree.totals.few is not None]


def test_a_greedy_unit_has_more_rows_than_the_few(each_survey: Survey) -> None:
    planned = told_apart(each_survey)
    assert (len(planned) >= 10) is each_survey.catalog.schema.tables["visits"].is_stored
    for each, left, right in zip(planned, *greedy(each_survey, planned), strict=True):
        assert_neighbours(each, left, right)


def test_a_unit_of_few_rows_that_another_replaces(substituted: Survey) -> None:
    planned = told_apart(substituted)
    left, _ = greedy(substituted, planned)
    for rows in (3, 4, 1000):
        substituted.memory.execute(
            "DELETE FROM visits WHERE pid = 0; INSERT INTO visits "
            f"SELECT * REPLACE (0 AS pid, 5 - n % 9 AS n) FROM visits ORDER BY kind, day LIMIT {rows}"
        )
        for each, one, other in zip(planned, left, substituted.fetch(planned), strict=True):
            assert_neighbours(each, one, other, Adjacency.SUBSTITUTE)


def unstored(survey: Survey) -> Catalog:
    """The same catalog, of tables that may be something else in each read."""
    schema = survey.catalog.schema
    tables = {name: replace(table, is_stored=False) for name, table in schema.tables.items()}
    return replace(survey.catalog, schema=replace(schema, tables=tables))


def test_cells_are_the_same_whether_few_are_told_apart(each_survey: Survey) -> None:
    apart = told_apart(each_survey)
    asked = [
        sql for sql in cases(each_survey) if any(each in apart for each in each_survey.compile(sql, THREE).releases)
    ]
    together = [compile_query(QueryStatement(sql), unstored(each_survey), THREE, CONSTANTS) for sql in asked]
    others = {each.contribution: each for query in together for each in query.releases}
    assert not any(each.query.tree.totals.few for each in others.values() if each.query.tree.totals is not None)
    each_survey.fill({})
    each_survey.change(GREEDY + MANY_UNITS)
    for sql, query in zip(asked, together, strict=True):
        one, other = (each_survey.fetch(each.releases) for each in (each_survey.compile(sql, THREE), query))
        # Nobody asks for the number of units.
        assert [vectors(each)[1:] for each in one] == [vectors(each)[1:] for each in other], sql


@pytest.mark.parametrize(
    ("sql", "options", "told"),
    [
        ("SELECT kind, COUNT(*), SUM(n), AVG(cost), CORR(n, cost) FROM visits GROUP BY kind", {"max_rows": 3}, True),
        ("SELECT day, COUNT(*) FROM visits WHERE n > 3 AND note = 'a' GROUP BY day", {"max_rows": 2}, True),
        ("SELECT day, COUNT(*) FROM visits GROUP BY day", {"max_rows": 4}, False),  # three in each group decide, too
        ("SELECT day, COUNT(*) FROM visits GROUP BY day", {"max_rows": 4, "max_rows_per_group": 4}, False),
        ("SELECT COUNT(*) FROM visits", {"max_rows": 3}, False),
        ("SELECT MEDIAN(n) FROM visits", {"max_rows": 3}, True),
        ("SELECT COUNT(DISTINCT note), COUNT(*), SUM(n), AVG(cost) FROM visits", {"max_rows": 3}, True),
        ("SELECT COUNT(DISTINCT pid), MEDIAN(n) FROM visits", {"max_rows": 3}, False),
        ("SELECT note, COUNT(*) FROM visits GROUP BY note", {"max_rows": 3}, False),
        ("SELECT day, COUNT(DISTINCT pid), COUNT(*) FROM visits GROUP BY day", {"max_rows": 3}, False),
        ("SELECT day, COUNT(DISTINCT note), COUNT(*) FROM visits GROUP BY day", {"max_rows": 3}, True),
        ("SELECT day, MEDIAN(n) FROM visits GROUP BY day", {"max_rows": 3}, True),
        ("SELECT day, MEDIAN(n) FROM visits GROUP BY day", {"max_rows": 4}, False),
        ("SELECT day, COUNT(DISTINCT UPPER(note)) FROM visits GROUP BY day", {"max_rows": 3}, False),
        ("SELECT kind, COUNT(*) FROM visits WHERE note LIKE '%a%' GROUP BY kind", {"max_rows": 3}, False),
        ("SELECT kind, COUNT(*) FROM visits WHERE n IN (SELECT code FROM kinds) GROUP BY 1", {"max_rows": 3}, False),
        ("SELECT kind, COUNT(*) FROM visits JOIN people USING (pid) GROUP BY kind", {"max_rows": 3}, False),
        ("SELECT boxes, COUNT(*) FROM lines GROUP BY boxes", {"max_rows": 2}, False),
    ],
)
def test_the_rule_by_which_units_are_told_apart(survey: Survey, sql: str, options: dict[str, Any], told: bool) -> None:
    planned = release_of(survey, sql, replace(SETTINGS, **options))
    assert planned.query.tree.totals is not None
    assert (planned.query.tree.totals.few is not None) is told
    verify(survey.compile(sql, replace(SETTINGS, **options)), survey.catalog)


OF_FEW = (
    Fault("units of many rows count among the few", "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
        without(r"p0 - \(a0\)", "p0")),
    Fault("sums of units of many rows count among the few", "SELECT kind, SUM(n) FROM visits GROUP BY kind",
        without(r"p0 - \(.*?\) AS p0 FROM bounded", "p0 FROM bounded")),
    Fault("units of many rows pass for units of few", "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
        without(r"count\(\*\) > 3\)", "count(*) > 30000)")),
    Fault("units of no more than a group pass for few", "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
        without(r"FROM rows GROUP BY unit HAVING", "FROM rows GROUP BY unit, k0 HAVING")),
    Fault("distinct values of all count among the few", "SELECT kind, COUNT(DISTINCT n) FROM visits GROUP BY kind",
        without(r"many\.unit IS NULL AND ")),
    Fault("ranked values of all count among the few", "SELECT kind, MEDIAN(n) FROM visits GROUP BY kind",
        without(r"many\.unit IS NULL AND ")),
    Fault("ranked values of all count among the few, in one group", "SELECT MEDIAN(n) FROM visits",
        without(r"many\.unit IS NULL AND ")),
    Fault("rows of all count beside distinct values", "SELECT COUNT(*), COUNT(DISTINCT note) FROM visits",
        without(r"p0 - \(a0\)", "p0")),
)  # fmt: skip


@pytest.mark.parametrize("fault", OF_FEW, ids=lambda fault: fault.name)
def test_faults_in_telling_units_apart_are_caught(survey: Survey, fault: Fault) -> None:
    planned = release_of(survey, fault.sql, THREE)
    faulty = with_sql(planned, fault.change(planned.sql))
    assert faulty.sql != planned.sql, f"there is no such guard any more:\n{planned.sql}"
    survey.fill({})
    survey.memory.execute("INSERT INTO visits (pid, kind, n) SELECT 0, i % 3, i FROM range(9) t(i)")
    wrong = survey.fetch([planned, faulty])
    survey.memory.execute("DELETE FROM visits")
    right = survey.fetch([planned, faulty])
    assert_neighbours(planned, wrong[0], right[0])
    with pytest.raises(TooFar):
        assert_neighbours(faulty, wrong[1], right[1])


def both(rows: int) -> Callable[[PlannedRelease], PlannedRelease]:
    """A plan that takes units of so many rows for units of few."""
    return lambda planned: having(RowsOfMany, rows=rows)(having(RowsOfFew, rows=rows)(planned))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (dropped(RowsOfMany), "omitted or counted twice"),
        (having(RowsOfMany, rows=2), "omitted or counted twice"),
        (having(RowsOfFew, rows=2), "omitted or counted twice"),
        (having(Totals, few=None), "omitted or counted twice"),
        (planted(RowsOfFew, lambda few: replace(few, input=replace(few.input, keys=()))), "omitted or counted twice"),
        (both(4), "change a cell by more"),
        (having(Totals, units=Units.ROWS), "would not be counted"),
        (having(RowsOfFew, cells=()), "would not be counted"),
        (having(RowsOfFew, cells=(UnitTotal(),) * 2), "unknown kind of cell"),
        (
            planted(RowSum, lambda cell: replace(cell, sum=replace(cell.sum, value=Plain(Literal(1, SqlType.BIGINT))))),
            "not clamped",
        ),
        (planted(RowSum, lambda cell: replace(cell, centre=9)), "change a cell by more"),
    ],
)
def test_a_plan_whose_units_are_told_apart_wrongly_is_not_run(
    survey: Survey, change: Callable[[PlannedRelease], PlannedRelease], why: str
) -> None:
    query = survey.compile("SELECT kind, COUNT(*), SUM(n) FROM visits GROUP BY kind", THREE)
    (planned,) = query.releases
    verify(query, survey.catalog)
    with pytest.raises(GuaranteeMismatch, match=why):
        verify(replace(query, releases=(change(planned),)), survey.catalog)


def all_units(values: ValueSampling) -> ValueSampling:
    """Values of the groups that all units keep, and not just those of many rows."""
    kept = everywhere(values.kept, lambda node: node.input if type(node) is RowsOfMany else node)
    return replace(values, kept=kept)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (dropped(RowsOfMany), "omitted or counted twice"),
        (planted(ValueSampling, all_units), "omitted or counted twice"),
        (having(RowValues, condition=Plain(Literal(True, SqlType.BOOLEAN))), "would add other values"),
        (having(RowsOfFew, cells=(RowValues(Plain(Literal(1, SqlType.BIGINT)), None),) * 3), "unknown kind of cell"),
        (both(4), "change a cell by more"),
    ],
)
def test_a_plan_whose_values_are_told_apart_wrongly_is_not_run(
    survey: Survey, change: Callable[[PlannedRelease], PlannedRelease], why: str
) -> None:
    query = survey.compile("SELECT kind, COUNT(*), COUNT(DISTINCT n), SUM(DISTINCT n) FROM visits GROUP BY kind", THREE)
    (planned,) = query.releases
    verify(query, survey.catalog)
    with pytest.raises(GuaranteeMismatch, match=why):
        verify(replace(query, releases=(change(planned),)), survey.catalog)


def test_rows_that_may_change_between_reads_are_read_once(survey: Survey) -> None:
    query = survey.compile("SELECT kind, COUNT(*) FROM visits GROUP BY kind", THREE)
    with pytest.raises(GuaranteeMismatch, match="can differ from read to read"):
        verify(query, unstored(survey))


# Which rows a unit keeps


@pytest.mark.parametrize("most", [2, 4, 5, 7])
@pytest.mark.parametrize("there", [1, 4, 7, 20])
def test_a_unit_keeps_as_many_rows_as_it_may(survey: Survey, most: int, there: int) -> None:
    planned = release_of(survey, "SELECT day, COUNT(*) FROM visits GROUP BY day", replace(SETTINGS, max_rows=most))
    survey.fill({})
    survey.memory.execute(
        f"INSERT INTO visits (pid, day) SELECT i % 2, DATE '2024-01-01' + CAST((i // 2) % {there} AS INTEGER) "
        f"FROM range({4 * there}) t(i)"
    )
    (found,) = survey.fetch([planned])
    assert found.cells[0].sum() == 2 * min(most, 2 * there)


def test_shares_are_in_proportion_and_fall_on_any_group(survey: Survey) -> None:
    """Of 300 units with rows on six days, two that may count on the first, two stay: by lot, as hashes decide."""
    planned = release_of(survey, "SELECT day, COUNT(*) FROM visits GROUP BY day", replace(SETTINGS, max_rows=2))
    survey.fill({})
    survey.memory.execute(
        "INSERT INTO visits (pid, day) SELECT i // 8, DATE '2024-01-01' + CAST(greatest(i % 8 - 2, 0) AS INTEGER) "
        "FROM range(2400) t(i)"
    )
    (found,) = survey.fetch([planned])
    first, *others = (int(count) for count in found.cells[0].tolist() if count)
    assert first + sum(others) == 600
    assert 145 <= first <= 200  # 2/7 of them are 171
    assert len(others) == 5 and all(60 <= count <= 112 for count in others)  # 1/7 are 86


def test_rows_of_few_units_are_all_there(survey: Survey) -> None:
    """Units with few enough rows lose none, whatever their neighbours in the table have."""
    planned = release_of(survey, "SELECT kind, COUNT(*), SUM(n) FROM visits GROUP BY kind", FIVE)
    survey.fill({})
    survey.memory.execute(
        "INSERT INTO visits (pid, kind, n) SELECT CASE WHEN i < 5 THEN i ELSE 9 END, i % 2, 4 FROM range(105) t(i)"
    )
    (found,) = survey.fetch([planned])
    assert (found.cells[0].sum(), found.cells[1].sum()) == (10, 5 * 4 + 5 * 9)


# The rule


@pytest.mark.parametrize(
    ("sql", "options", "rows", "groups"),
    [
        ("SELECT kind, COUNT(*) FROM visits GROUP BY kind", {}, None, 3),
        ("SELECT kind, COUNT(*) FROM visits GROUP BY kind", {"max_rows": 8}, 8, 3),
        ("SELECT day, COUNT(*) FROM visits GROUP BY day", {"max_rows": 8}, 8, 8),
        ("SELECT day, COUNT(*) FROM visits GROUP BY day", {"max_rows": 6, "max_groups": 2}, None, 2),
        ("SELECT day, COUNT(*) FROM visits GROUP BY day", {"max_rows": 5, "max_groups": 2}, 5, 5),
        ("SELECT day, COUNT(*) FROM visits GROUP BY day", {"max_rows": 3, "max_rows_per_group": 1}, None, 3),
        ("SELECT day, COUNT(*) FROM visits GROUP BY day", {"max_rows": 2}, 2, 2),
        ("SELECT day, COUNT(*), COUNT(DISTINCT pid) FROM visits GROUP BY day", {"max_rows": 8}, 8, 3),
        ("SELECT day, BOOL_OR(flag), COUNT(*) FROM visits GROUP BY day", {"max_rows": 8}, 8, 3),
        ("SELECT note, COUNT(*) FROM visits GROUP BY note", {"max_rows": 8}, 8, 3),
        ("SELECT note, COUNT(*) FROM visits GROUP BY note", {"max_rows": 2}, 2, 2),
        ("SELECT flag, COUNT(*) FROM visits GROUP BY flag", {"max_rows": 8}, 8, 3),
        ("SELECT topic, COUNT(*) FROM letters GROUP BY topic", {}, 5, 3),
        ("SELECT v.flag, COUNT(*) FROM visits v JOIN stays s ON v.pid = s.pid GROUP BY v.flag", {"max_rows": 8}, 8, 3),
        ("SELECT note, COUNT(*) FROM (SELECT pid, note FROM visits UNION ALL SELECT pid, ward FROM stays) t "
         "GROUP BY note", {"max_rows": 11}, 11, 6),
        ("SELECT COUNT(*) FROM visits", {"max_rows": 5}, None, 1),
        ("SELECT sex, COUNT(*) FROM people GROUP BY sex", {}, None, 1),
        ("SELECT kind FROM visits GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 1", {"max_rows": 5}, None, 1),
    ],
)  # fmt: skip
def test_the_form_of_less_noise_is_taken(
    survey: Survey, sql: str, options: dict[str, Any], rows: int | None, groups: int
) -> None:
    bounds = release_of(survey, sql, replace(SETTINGS, **options)).contribution
    assert (bounds.rows_per_unit, bounds.groups_per_unit) == (rows, groups)
    assert not bounds.copied


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
@pytest.mark.parametrize("most", [5, 8])
def test_it_takes_less_noise_than_groups_alone(survey: Survey, mechanism: str, most: int) -> None:
    def noises(options: QuerySettings) -> list[float]:
        sql = "SELECT day, COUNT(*), SUM(n), AVG(cost), MEDIAN(n), COUNT(DISTINCT note) FROM visits GROUP BY day"
        planned = release_of(survey, sql, replace(options, mechanism=mechanism))
        return [primitive.noise.sensitivity.l1 for primitive in planned.primitives]

    by_groups, by_rows = noises(SETTINGS), noises(replace(SETTINGS, max_rows=most))
    assert [9 * rows for rows in by_rows] == [most * groups for groups in by_groups]


def test_all_public_groups_may_be_there(survey: Survey) -> None:
    """Twenty days are more than the rows of a unit; where units are counted there may be no more than its groups."""
    survey.fill({})
    for counted, groups in (("COUNT(*)", 20), ("COUNT(*), COUNT(DISTINCT pid)", 20)):
        planned = release_of(survey, f"SELECT day, {counted} FROM visits GROUP BY day", FIVE)
        (exact,) = survey.fetch([planned])
        assert len(release(planned, exact).keys[0]) >= groups
        bounds = replace(planned.contribution, ranked=False)
        unranked = replace(planned, contribution=bounds)
        if "DISTINCT" in counted:
            with pytest.raises(GuaranteeMismatch):
                release(unranked, exact)


def test_a_row_in_each_group_is_as_if_units_were_counted() -> None:
    claimed = row_sensitivity(Adjacency.ADD_REMOVE, l0=3, rows=3, per_cell=1, lower=0, upper=1)
    assert (claimed.l0, claimed.linf, claimed.l1, claimed.l2_squared) == (3, 1, 3, 3)


# That a plan is checked


def of_rows(**changes: Any) -> Callable[[PlannedRelease], PlannedRelease]:
    return lambda planned: replace(planned, contribution=replace(planned.contribution, **changes))


def less(name: str) -> Callable[[PlannedRelease], PlannedRelease]:
    """A plan whose last sum is noised for one less."""

    def changed(planned: PlannedRelease) -> PlannedRelease:
        *others, last = planned.primitives
        limit = replace(last.noise.sensitivity, **{name: getattr(last.noise.sensitivity, name) - 1})
        return replace(planned, primitives=(*others, replace(last, noise=replace(last.noise, sensitivity=limit))))

    return changed


def of_two_rows(planned: PlannedRelease) -> PlannedRelease:
    """A plan whose last sum has two rows of a group."""
    *others, last = planned.primitives
    return replace(planned, primitives=(*others, replace(last, primitive=replace(last.primitive, cap=2))))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (of_rows(rows_per_unit=6), "a smaller sensitivity than one unit can cause"),
        (of_rows(rows_per_unit=4), "change a cell by more"),
        (of_rows(rows_per_unit=None), "a smaller sensitivity than one unit can cause"),
        (having(RowSampling, rows=50), "change a cell by more"),
        (dropped(RowSampling), "not limited over all groups"),
        (having(RowLimit, rows=30), "change a cell by more"),
        (dropped(RowLimit), "not limited over all groups"),
        (planted(ClampedSum, lambda amount: replace(amount, rows=3)), "change a cell by more"),
        (having(GroupSampling, groups=4), "change a cell by more"),
        (dropped(GroupSampling), "not bounded"),
        (of_two_rows, "change a cell by more"),
        (of_rows(grouped=False), "not bounded"),
        (of_rows(one_row=True), "more rows than the plan allows"),
        (less("l1"), "a smaller sensitivity than one unit can cause"),
        (less("l2_squared"), "a smaller sensitivity than one unit can cause"),
        (less("linf"), "a smaller sensitivity than one unit can cause"),
    ],
)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_plan_that_was_tampered_with_is_not_run(
    survey: Survey,
    substituted: Survey,
    adjacency: Adjacency,
    change: Callable[[PlannedRelease], PlannedRelease],
    why: str,
) -> None:
    asked = survey if adjacency is Adjacency.ADD_REMOVE else substituted
    query = asked.compile("SELECT note, COUNT(*), COUNT(DISTINCT pid), SUM(huge) FROM visits GROUP BY note", FIVE)
    (planned,) = query.releases
    verify(query, asked.catalog)
    changed = change(planned)
    assert changed != planned
    with pytest.raises(GuaranteeMismatch, match=why):
        verify(replace(query, releases=(changed,)), asked.catalog)
