"""What is counted for a profile, and which bounds a query gets by it."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.compiler.plan.profile_plan import RankedTable, plan_profile
from dpsql.compiler.plan.profiled_bounds import ProfiledBounds
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.plan.verify import verify
from dpsql.compiler.scope.tables import Catalog
from dpsql.policy import Policy, Table, load_policy
from dpsql.policy.profile import Profile, RankGroups, RowRanks, TableProfile, table_facts
from dpsql.privacy.cost import Adjacency, Event, Mechanism, Sensitivity
from tests.compiler.plans import Planner

BOUNDS = (1, 2, 5, 10, 20, 50)
# Of 1,000,000 rows, few are beyond the 20th of their patient, and hardly any beyond the 2nd of a month.
RANKS = {
    RankGroups(): ((200_000, 150_000, 300_000, 250_000, 99_900, 50, 50), 1),
    RankGroups("doctor_id"): ((990_000, 9_990, 10, 0, 0, 0, 0), 200),
    RankGroups("visited_on", "year"): ((400_000, 300_000, 280_000, 19_900, 100, 0, 0), 7),
    RankGroups("visited_on", "month"): ((990_000, 9_990, 10, 0, 0, 0, 0), 84),
    RankGroups("icd"): ((900_000, 90_000, 9_000, 990, 10, 0, 0), 40),
}
NOISELESS = Fraction(1, 100)


@pytest.fixture(scope="module")
def policy(clinic_policy: Path) -> Policy:
    return load_policy(clinic_policy)


def of_visits(policy: Policy, **rows: Sequence[int]) -> Profile:
    """A profile of visits; `rows` takes the place of the numbers in all."""
    visits = policy.table("visits")
    assert visits is not None
    ranks = tuple(
        RowRanks(groups, tuple(rows.get(str(groups.column), numbers)), NOISELESS, count)
        for groups, (numbers, count) in RANKS.items()
    )
    event = Event(Mechanism.GAUSSIAN, Sensitivity(l0=7, linf=200, l1=200, l2_squared=40000), Fraction(100))
    return Profile((TableProfile("visits", table_facts(policy, visits), BOUNDS, ranks),), (event,))


class Profiled(Planner):
    """Compiles under a policy with a profile."""

    def __init__(self, policy: Policy, profile: Profile | None = None) -> None:
        super().__init__(policy)
        self.catalog = replace(self.catalog, profile=profile or of_visits(policy))


@pytest.fixture(scope="module")
def planner(policy: Policy) -> Profiled:
    return Profiled(policy)


@pytest.fixture(scope="module")
def plain(policy: Policy) -> Planner:
    return Planner(policy)


def bounds(query: CompiledQuery) -> tuple[int, int] | None:
    """What the profile chose for the only release, and what the plan enforces of it."""
    (release,) = query.releases
    found = release.profiled
    return None if found is None else (found.rows, found.per_group)


# What is counted


def owners(catalog: Catalog, policy: Policy) -> Catalog:
    return replace(catalog, policy=policy)


def ranked(plain: Planner, policy: Policy) -> tuple[RankedTable, ...]:
    found = plan_profile(owners(plain.catalog, policy), plain.settings())
    assert found is not None
    assert len(found.query.releases) == len(found.ranked)
    for each, release in zip(found.ranked, found.query.releases, strict=True):
        most = 4 * each.bounds[-1]
        assert release.contribution.rows_per_unit == most
        assert release.primitives[0].noise.event.sensitivity.l1 == most
        assert release.selection is None
    return found.ranked


def test_rows_are_counted_in_all_and_by_public_keys(plain: Planner, policy: Policy) -> None:
    found = [(each.table.name, str(each.grouping)) for each in ranked(plain, policy)]
    assert found == [
        ("visits", "in all"),
        ("visits", "in one doctor_id"),
        ("visits", "in one year of visited_on"),
        ("visits", "in one month of visited_on"),
        ("visits", "in one icd"),
        ("prescriptions", "in all"),
    ]


def changed(policy: Policy, name: str, **fields: object) -> Policy:
    tables = tuple(replace(each, **fields) if each.name == name else each for each in policy.tables)  # type: ignore[arg-type]
    return replace(policy, tables=tables)


def test_ranks_are_told_apart_at_the_policys_bounds(plain: Planner, policy: Policy) -> None:
    found = ranked(plain, changed(policy, "visits", rows_per_unit=30, rows_per_group=3))
    assert found[0].bounds == (1, 2, 3, 5, 10, 20, 30)


@pytest.mark.parametrize("most", [10**4, 10**6])
def test_any_bound_has_its_ranks(plain: Planner, policy: Policy, most: int) -> None:
    found = ranked(plain, changed(policy, "visits", rows_per_unit=most, rows_per_group=most))
    assert found[0].bounds[-1] == most


def test_where_each_unit_has_one_row_there_is_no_profile(plain: Planner, policy: Policy) -> None:
    for name in ("visits", "prescriptions"):
        policy = changed(policy, name, rows_per_unit=1, rows_per_group=1)
    assert plan_profile(owners(plain.catalog, policy), plain.settings()) is None


# What is chosen


@pytest.mark.parametrize(
    ("sql", "chosen"),
    [
        ("SELECT COUNT(*) FROM visits", (20, 20)),
        ("SELECT AVG(cost), COUNT(cost) FROM visits", (20, 20)),
        ("SELECT COUNT(*) FROM visits WHERE cost > 10", (20, 20)),
        ("SELECT icd, COUNT(*) FROM visits GROUP BY icd", (20, 5)),
        ("SELECT icd + 1, COUNT(*) FROM (SELECT doctor_id AS icd FROM visits) AS v GROUP BY 1", (20, 20)),
        ("SELECT date_trunc('month', visited_on), COUNT(*) FROM visits GROUP BY 1", (20, 2)),
        ("SELECT visited_on, COUNT(*) FROM visits GROUP BY 1", (10, 2)),
        ("SELECT CAST(CAST(visited_on AS timestamp) AS date), COUNT(*) FROM visits GROUP BY 1", (10, 2)),
        ("SELECT m, COUNT(*) FROM (SELECT date_trunc('month', visited_on) AS m FROM visits) AS v GROUP BY 1", (20, 2)),
        (
            "SELECT m, COUNT(*) FROM (SELECT patient_id, date_trunc('month', visited_on) AS m FROM visits) AS v "
            "JOIN patients USING (patient_id) GROUP BY 1",
            (20, 2),
        ),
        ("SELECT EXTRACT(year FROM visited_on), COUNT(*) FROM visits GROUP BY 1", (20, 10)),
        ("SELECT date_trunc('quarter', visited_on), COUNT(*) FROM visits GROUP BY 1", (20, 10)),
        ("SELECT EXTRACT(month FROM visited_on), COUNT(*) FROM visits GROUP BY 1", (20, 20)),
        ("SELECT date_trunc('year', date_trunc('month', visited_on)), COUNT(*) FROM visits GROUP BY 1", (20, 10)),
        ("SELECT doctor_id, icd, COUNT(*) FROM visits GROUP BY 1, 2", (10, 2)),
        ("SELECT sex, COUNT(*) FROM visits JOIN patients USING (patient_id) GROUP BY sex", (20, 20)),
        ("SELECT sex, icd, COUNT(*) FROM visits JOIN patients USING (patient_id) GROUP BY 1, 2", (20, 5)),
    ],
)
def test_bounds_are_those_of_the_least_expected_error(planner: Profiled, sql: str, chosen: tuple[int, int]) -> None:
    query = planner.compile(sql)
    assert bounds(query) == chosen
    contribution = query.releases[0].contribution
    assert (contribution.rows_per_unit or contribution.rows_per_group, contribution.rows_per_group) == chosen


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM patients",
        "SELECT city, COUNT(*) FROM visits GROUP BY city",
        "SELECT COUNT(DISTINCT patient_id) FROM visits",
        "SELECT MAX(cost) FROM visits",
        "SELECT COUNT(DISTINCT icd) FROM visits",
        "SELECT COUNT(*) FROM prescriptions",
        "SELECT COUNT(*) FROM visits a JOIN visits b USING (patient_id)",
        "SELECT COUNT(*) FROM (SELECT COUNT(*) FROM visits GROUP BY patient_id) AS v",
        "SELECT COUNT(*) FROM visits JOIN doctors ON visits.doctor_id < doctors.doctor_id",
        "SELECT MODE() WITHIN GROUP (ORDER BY icd) FROM visits",
        "SELECT icd FROM visits GROUP BY icd",
    ],
)
def test_where_a_profile_tells_nothing_the_policy_bounds(planner: Profiled, plain: Planner, sql: str) -> None:
    query = planner.compile(sql)
    assert [each.profiled for each in query.releases] == [None] * len(query.releases)
    assert query == plain.compile(sql)


def test_what_the_analyst_sets_stands(planner: Profiled, plain: Planner) -> None:
    sql = "SELECT icd, COUNT(*) FROM visits GROUP BY icd"
    for setting in ("max_rows", "max_groups", "max_rows_per_group"):
        narrower = planner.compile(sql, **{setting: "7"})
        assert narrower == plain.compile(sql, **{setting: "7"})
        assert narrower.releases[0].profiled is None


def test_it_names_the_release(planner: Profiled, plain: Planner, policy: Policy) -> None:
    sql = "SELECT icd, COUNT(*) FROM visits GROUP BY icd"
    (mine,) = planner.compile(sql).releases
    (again,) = Profiled(policy).compile(sql).releases
    assert mine.key == again.key
    (other,) = Profiled(policy, of_visits(policy, icd=(900_000, 90_000, 9_000, 990, 10, 0, 1))).compile(sql).releases
    assert (other.sql, bounds(planner.compile(sql))) == (mine.sql, (20, 5))
    assert len({mine.key, other.key, plain.compile(sql, max_rows="20", max_rows_per_group="5").releases[0].key}) == 3


def test_verify_needs_no_profile(planner: Profiled, plain: Planner) -> None:
    query = planner.compile("SELECT icd, COUNT(*), SUM(cost) FROM visits GROUP BY icd")
    assert bounds(query) is not None
    verify(query, plain.catalog)


def test_what_is_expected_is_told(planner: Profiled, policy: Policy) -> None:
    by_month = "SELECT date_trunc('month', visited_on), COUNT(*) FROM visits GROUP BY 1"

    def why(planner: Planner, sql: str) -> str:
        found = planner.compile(sql).releases[0].profiled
        assert isinstance(found, ProfiledBounds)
        assert found.profile == (planner.catalog.profile and planner.catalog.profile.id)
        return found.why

    assert why(planner, "SELECT COUNT(*) FROM visits") == (
        "they drop about 0.01 % of the rows of visits; with 50 rows, the noise would be 2.5 times as large"
    )
    assert why(planner, by_month) == (
        "they drop about 0.011 % of the rows of visits; with 50 rows, 50 in each group, "
        "the noise would be 7.9 times as large"
    )
    heavy = Profiled(policy, of_visits(policy, **{"None": (1, 1, 1, 1, 1, 10**6, 10**6)}))
    assert why(heavy, "SELECT COUNT(*) FROM visits") == (
        "they drop about 50 % of the rows of visits; narrower bounds would make the error larger"
    )


@pytest.mark.parametrize(("epsilon", "chosen"), [("0.001", 5), ("0.01", 10), ("1", 50)])
def test_less_noise_asks_for_wider_bounds(policy: Policy, epsilon: str, chosen: int) -> None:
    few = Profiled(policy, of_visits(policy, **{"None": (2000, 1500, 3000, 2500, 999, 50, 50)}))
    assert bounds(few.compile("SELECT COUNT(*) FROM visits", epsilon=epsilon)) == (chosen, chosen)


def test_the_policys_own_bound_in_a_group_is_one_to_choose(policy: Policy) -> None:
    narrow = changed(policy, "visits", rows_per_group=5)
    visits = narrow.table("visits")
    assert isinstance(visits, Table)
    found = Profiled(narrow, of_visits(narrow)).compile("SELECT icd, COUNT(*) FROM visits GROUP BY icd")
    assert bounds(found) == (20, 5)


def test_substitute(policy: Policy) -> None:
    replaced = replace(policy, dataset=replace(policy.dataset, adjacency=Adjacency.SUBSTITUTE))
    planner = Profiled(replaced, of_visits(replaced))
    assert bounds(planner.compile("SELECT date_trunc('month', visited_on), COUNT(*) FROM visits GROUP BY 1")) == (20, 2)


def test_a_key_that_had_no_value_is_counted_as_one_group(policy: Policy) -> None:
    """Its public table may have been empty when the profile was made."""
    made = of_visits(policy)
    (table,) = made.tables
    ranks = tuple(replace(each, groups=0) if each.grouping.column == "icd" else each for each in table.ranks)
    empty = replace(made, tables=(replace(table, ranks=ranks),))
    assert bounds(Profiled(policy, empty).compile("SELECT icd, COUNT(*) FROM visits GROUP BY icd")) is not None


# Whether what they drop is told


def sharing(policy: Policy, profile: Profile) -> Profiled:
    """A planner of a role that buys wide totals with a tenth of each price."""
    found = Profiled(policy, profile)
    role = found.catalog.role
    found.catalog = replace(
        found.catalog, role=replace(role, query=replace(role.query, wide_share=Fraction(1, 10))), profile=profile
    )
    return found


@pytest.mark.parametrize(
    ("beyond", "bought"), [(0, False), (10, False), (100_000, True)], ids=["nothing", "little", "much"]
)
def test_totals_are_bought_where_more_is_dropped_than_they_cost(policy: Policy, beyond: int, bought: bool) -> None:
    planner = sharing(
        policy, of_visits(policy, **{"None": (200_000, 150_000, 300_000, 250_000, 50_000, 50_000, beyond)})
    )
    (release, *totals) = planner.compile("SELECT COUNT(*) FROM visits").releases
    assert release.profiled is not None and release.profiled.rows == 50
    assert bool(totals) == bought and release.profiled.drops_little != bought
