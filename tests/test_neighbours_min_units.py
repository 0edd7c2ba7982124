"""The heart, under a minimum frequency rule: public groups and ungrouped cells are selected by their units, too."""

import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from dpsql.backends import ExactCells
from dpsql.compiler.plan.pricing import Selection
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.plan.verify import verify
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.errors import GuaranteeMismatch, PolicyViolation
from dpsql.gateway.release import ReleasedCells, release
from dpsql.privacy.cost import Accountant, Adjacency, Mechanism, Share
from dpsql.privacy.selection import GaussianThreshold, Threshold, gaussian_threshold, truncated_geometric
from tests.examples import profile
from tests.strategies.data import REPLACEMENTS, Database, Row, databases
from tests.strategies.distance import assert_neighbours, assert_within, vectors
from tests.strategies.world import SETTINGS, Survey, open_survey
from tests.test_neighbours import ASKED, ORDERS, UNIT, Order, accepted, cases, greedy, is_replaced, leaves

LEAST = 3
PUBLIC = "SELECT kind, COUNT(*), SUM(n) FROM visits GROUP BY kind"
WHOLE = "SELECT COUNT(*), SUM(n) FROM visits"
PRIVATE = "SELECT note, COUNT(*), SUM(n) FROM visits GROUP BY note"
UNITS = "SELECT kind, COUNT(DISTINCT pid) FROM visits GROUP BY kind"
DRAWS = 4000
BEYOND = 5.5
"""Standard deviations of a count of draws; one draw of the noise is further off in 4e-8 of cases."""


def ruled(survey: Survey, least: int = LEAST) -> Survey:
    """The same rows under a policy that shows no group of fewer units."""
    policy = survey.catalog.policy
    tables = tuple(table if table.public else replace(table, min_units=least) for table in policy.tables)
    found = copy.copy(survey)
    found.catalog = replace(survey.catalog, policy=replace(policy, tables=tables))
    return found


def selected(planned: PlannedRelease, left: ExactCells, right: ExactCells, adjacency: Adjacency) -> None:
    """What the selection sees of two neighbours moves by no more than it is calibrated to."""
    assert planned.selection is not None
    (event,) = (e for e in planned.events if e.mechanism in (Mechanism.SELECTION, Mechanism.THRESHOLD))
    one, other = (
        {key: max(0, int(units) - planned.min_units + 1) for key, units in vectors(side)[0].items()}
        for side in (left, right)
    )
    # The sensitivity of a threshold is that of the cell it cuts off.
    limit = replace(event.sensitivity, linf=1, l1=event.sensitivity.l0, l2_squared=event.sensitivity.l0)
    assert_within("units above the minimum", one, other, limit)


@profile(15)
@given(database=databases(), unit=UNIT, asked=ASKED, order=ORDERS)
def test_a_unit_that_leaves(
    each_survey: Survey, database: Database, unit: int, asked: list[tuple[str, QuerySettings]], order: Order
) -> None:
    survey = ruled(each_survey)
    leaves(survey, accepted(survey, asked), database, unit, order)


@profile(10)
@given(database=databases(), unit=UNIT, others=REPLACEMENTS, asked=ASKED)
def test_a_unit_that_another_replaces(
    each_substituted: Survey,
    database: Database,
    unit: int,
    others: tuple[Row, ...],
    asked: list[tuple[str, QuerySettings]],
) -> None:
    survey = ruled(each_substituted)
    is_replaced(survey, accepted(survey, asked), database, database.replaced(unit, others))


def test_a_greedy_unit_and_what_selections_see_of_it(each_survey: Survey) -> None:
    survey = ruled(each_survey)
    planned = [
        each for sql in cases(survey) if "MODE()" not in sql and "HISTOGRAM" not in sql for each in plan(survey, sql)
    ]
    assert {type(each.selection) for each in planned} >= {GaussianThreshold, Threshold}
    assert sum(not each.private_keys for each in planned) > len(planned) / 2
    for each, left, right in zip(planned, *greedy(survey, planned), strict=True):
        assert_neighbours(each, left, right)
        selected(each, left, right, Adjacency.ADD_REMOVE)


def test_a_greedy_unit_in_wide_totals(each_survey: Survey) -> None:
    """They tell of units, too: none is shown of fewer than the rule's, and one unit moves them by what is claimed."""
    survey = ruled(each_survey)
    role = survey.catalog.role
    wide = replace(role, query=replace(role.query, wide_share=Fraction(1, 2)))
    survey.catalog = replace(survey.catalog, role=wide)
    found = [survey.compile(sql) for sql in (PUBLIC, WHOLE, PRIVATE, UNITS)]
    pairs = [(query, place) for query in found for each in query.wide_totals for place in (each.wide, each.bounded)]
    totals = [query.releases[place] for query, place in pairs if place is not None]
    assert len(totals) > len(found) and all(each.min_units == LEAST for each in totals)
    for each, left, right in zip(totals, *greedy(survey, totals), strict=True):
        assert_neighbours(each, left, right)
        selected(each, left, right, Adjacency.ADD_REMOVE)


def plan(survey: Survey, sql: str, settings: QuerySettings = SETTINGS) -> list[PlannedRelease]:
    """The releases of a query that have noise."""
    return [each for each in survey.compile(sql, settings).releases if each.events]


def test_prepared_tables_have_the_rule_of_their_table(tmp_path_factory: pytest.TempPathFactory) -> None:
    survey = open_survey(tmp_path_factory.mktemp("prepared"), "add_remove", prepared=True)
    for sql in (PUBLIC, WHOLE, PRIVATE):
        (planned,) = plan(ruled(survey), sql, replace(SETTINGS, max_error_ratio=Fraction(100)))
        assert planned.contribution.copied and planned.min_units == LEAST
    survey.close()


# What is shown


def exact(planned: PlannedRelease, units: list[int], times: int) -> ExactCells:
    """Groups of so many units, each so often, with a row a unit."""
    counts = np.repeat(np.array(units, dtype=np.int64), times)
    keys = tuple(np.array([str(place) for place in range(len(counts))], dtype=object) for _ in range(planned.keys))
    return ExactCells(keys, counts, (counts,) * len(planned.primitives))


def shown(planned: PlannedRelease, units: int) -> int:
    """In how many of the draws a group of so many units is shown."""
    if planned.keys:
        # The rank of a group's place tells nothing: each is kept or dropped by itself.
        return len(within(planned, exact(planned, [units], DRAWS)).cells[0])
    return sum(len(within(planned, exact(planned, [units], 1)).cells[0]) for _ in range(DRAWS // 4)) * 4


def within(planned: PlannedRelease, cells: ExactCells) -> ReleasedCells:
    """Release any number of groups, as if SQL had limited those of a unit."""
    return release(replace(planned, contribution=replace(planned.contribution, ranked=True)), cells)


SHARE = Share(Accountant.ZCDP, Fraction(0), Fraction(1, 2), Fraction(1, 10**6))
SELECTIONS: dict[str, Selection | None] = {
    "gaussian": gaussian_threshold(3, SHARE),
    "geometric": truncated_geometric(3, SHARE),
    "planned": None,
}


@pytest.mark.parametrize(
    ("sql", "kind"),
    [(PUBLIC, "gaussian"), (WHOLE, "geometric"), (PUBLIC, "geometric"), (PRIVATE, "planned"), (UNITS, "planned")],
)
def test_groups_of_fewer_units_are_never_shown_and_others_as_if_they_had_fewer(
    survey: Survey, sql: str, kind: str
) -> None:
    """A group of n units is shown as often as one of n - k + 1 without the rule: half of the time at `smallest_likely`.

    False alarms: 5.5 standard deviations of the difference of two counts of draws, in less than 1e-7 of cases.
    """
    least = 20
    with_rule, without = (
        replace(planned, selection=SELECTIONS[kind] or planned.selection)
        for k in (least, 2)
        for planned in plan(ruled(survey, k), sql)
    )
    assert isinstance(with_rule.selection, Threshold) == (sql == UNITS)
    assert shown(with_rule, least - 1) == 0
    assert with_rule.smallest_likely is not None and without.smallest_likely is not None
    assert with_rule.smallest_likely == without.smallest_likely + least - 2
    one, other = shown(with_rule, with_rule.smallest_likely), shown(without, without.smallest_likely)
    spread = (2 * DRAWS * 0.25 * (4 if not with_rule.keys else 1)) ** 0.5
    assert one > DRAWS / 2 - BEYOND * spread
    assert abs(one - other) < BEYOND * spread
    assert shown(with_rule, with_rule.smallest_likely + 60) == DRAWS


def test_no_noise_lets_a_group_of_fewer_units_pass_a_threshold(survey: Survey) -> None:
    """The count that is released is compared, and somebody has to be there beside."""
    (planned,) = plan(ruled(survey), UNITS)
    assert isinstance(planned.selection, Threshold)
    open_to_all = replace(planned, selection=replace(planned.selection, cutoff=-(10**9)))
    assert shown(open_to_all, LEAST - 1) == 0
    assert shown(open_to_all, LEAST) == DRAWS


def test_a_count_that_was_shown_has_the_minimum_for_its_low_limit(survey: Survey) -> None:
    (planned,) = plan(ruled(survey), UNITS, replace(SETTINGS, intervals=True))
    size = planned.smallest_likely
    sql = ruled(survey).compile(UNITS, replace(SETTINGS, intervals=True)).post_sql
    assert f" >= {size} THEN " in sql and f"ELSE {LEAST} END" in sql


def test_public_groups_stay_in_their_order(survey: Survey) -> None:
    (planned,) = plan(ruled(survey), "SELECT age, COUNT(*) FROM people GROUP BY age")
    names = np.array(["9", "10", "100", "11"], dtype=object)
    counts = np.array([500, 500, 1, 500], dtype=np.int64)
    assert within(planned, ExactCells((names,), counts, (counts,))).keys[0].tolist() == ["9", "10", "11"]


def test_the_rule_is_that_of_all_tables_that_are_read(survey: Survey) -> None:
    policy = survey.catalog.policy
    tables = tuple(replace(table, min_units=7) if table.name == "stays" else table for table in policy.tables)
    found = copy.copy(survey)
    found.catalog = replace(survey.catalog, policy=replace(policy, tables=tables))
    of = {
        "SELECT COUNT(*) FROM visits": 1,
        "SELECT COUNT(*) FROM stays": 7,
        "SELECT COUNT(*) FROM visits v JOIN stays s ON s.pid = v.pid": 7,
        "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM stays s WHERE s.pid = v.pid)": 7,
        "SELECT COUNT(*) FROM visits v WHERE v.n > (SELECT AVG(nights) FROM stays)": 1,
    }
    assert {sql: plan(found, sql)[-1].min_units for sql in of} == of
    # Public keys alone tell of nobody, and cost nothing.
    assert found.compile("SELECT DISTINCT sex FROM people JOIN stays USING (pid)").releases[0].events == ()


def test_another_minimum_is_another_release_and_none_is_as_before(survey: Survey) -> None:
    keys = {plan(each, PUBLIC)[0].key for each in (survey, ruled(survey, 1), ruled(survey, 2), ruled(survey, 3))}
    assert len(keys) == 3
    (free,), (paid,) = plan(survey, PUBLIC), plan(ruled(survey), PUBLIC)
    assert sum(event.delta for event in free.events) == 0 < sum(event.delta for event in paid.events)
    # Units are counted, so groups of a unit are limited.
    days = "SELECT day, COUNT(*) FROM visits GROUP BY day"
    (free,), (paid,) = plan(survey, days), plan(ruled(survey), days)
    assert free.contribution.groups_per_unit > paid.contribution.groups_per_unit == 3


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT MODE() WITHIN GROUP (ORDER BY kind) FROM visits", "fewer than 3 units have"),
        ("SELECT HISTOGRAM(n, 0, 9, 3) FROM visits", "requires public group keys"),
    ],
)
def test_what_cannot_leave_groups_out_is_refused(survey: Survey, sql: str, says: str) -> None:
    survey.compile(sql)
    with pytest.raises(PolicyViolation, match=says):
        ruled(survey).compile(sql)


def test_first_keys_are_those_of_groups_that_are_shown(survey: Survey) -> None:
    sql = "SELECT kind FROM visits GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 1"
    assert plan(survey, sql)[0].contribution.lists is not None
    (planned,) = plan(ruled(survey), sql)
    assert planned.contribution.lists is None and planned.selection is not None


def test_without_delta_nothing_is_selected(survey: Survey) -> None:
    with pytest.raises(PolicyViolation, match="delta is 0, and groups of fewer than 3 units"):
        ruled(survey).compile(PUBLIC, replace(SETTINGS, delta=Fraction(0)))


# The check of a finished plan


@pytest.mark.parametrize("sql", [PUBLIC, WHOLE, PRIVATE])
def test_verify_finds_a_rule_that_is_left_out(survey: Survey, sql: str) -> None:
    found = ruled(survey)
    query = found.compile(sql)
    verify(query, found.catalog)
    (planned,) = query.releases
    for faulty in (
        replace(planned, min_units=LEAST - 1),
        replace(planned, min_units=1),
        replace(planned, selection=None),
        replace(planned, selection=None, min_units=1),
    ):
        with pytest.raises(GuaranteeMismatch, match="groups"):
            verify(replace(query, releases=(faulty,)), found.catalog)
