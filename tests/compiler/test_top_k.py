"""Which queries pick keys, what that costs, and plans of picks that were tampered with."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.plan.verify import verify
from dpsql.errors import GuaranteeMismatch
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Mechanism
from dpsql.privacy.exponential_mechanism import Picking, Places
from dpsql.privacy.mechanisms import DiscreteLaplace
from tests.compiler.plans import FIVE_IN_EACH, Planner, changed_policy
from tests.compiler.test_verify import (
    ACCOUNTANTS,
    ADJACENCIES,
    half_scale,
    less,
    tamper,
    touching,
    with_noise,
    with_primitive,
)

TOP = "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3"
MODES = "SELECT doctor_id, MODE() WITHIN GROUP (ORDER BY icd) FROM visits GROUP BY doctor_id"
PICKED = (
    TOP,
    "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) LIMIT 1",
    "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC, icd LIMIT 10 OFFSET 10",
    "SELECT 'x' || icd FROM visits WHERE cost > 5 GROUP BY icd ORDER BY SUM(cost) DESC LIMIT 3",
    "SELECT icd FROM visits GROUP BY icd ORDER BY SUM(cost - 100) LIMIT 3",
    "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(DISTINCT patient_id) DESC FETCH FIRST ROW ONLY",
    "SELECT i.title FROM visits v JOIN icd10 i ON i.code = v.icd GROUP BY i.title ORDER BY COUNT(*) DESC LIMIT 3",
    "SELECT * FROM (SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3) t LIMIT 1000",
    "WITH t AS (SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3) SELECT COUNT(*) FROM t",
    "SELECT sex FROM patients GROUP BY sex ORDER BY COUNT(*) DESC LIMIT 2",
)
COUNTED = (
    "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC",
    "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC OFFSET 3",
    "SELECT icd FROM visits GROUP BY icd ORDER BY icd LIMIT 3",
    "SELECT icd, COUNT(*) FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3",
    "SELECT icd, RANK() OVER (ORDER BY COUNT(*)) FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3",
    "SELECT icd, RANK() OVER (ORDER BY icd) FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3",
    "SELECT icd, (SELECT COUNT(*) FROM icd10) FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3",
    "SELECT icd FROM visits GROUP BY icd HAVING COUNT(*) > 5 ORDER BY COUNT(*) DESC LIMIT 3",
    "SELECT icd FROM visits GROUP BY icd ORDER BY -COUNT(*) LIMIT 3",
    "SELECT icd FROM visits GROUP BY icd ORDER BY AVG(cost) DESC LIMIT 3",
    "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC, SUM(cost) LIMIT 3",
    "SELECT icd FROM visits GROUP BY icd ORDER BY icd, COUNT(*) LIMIT 3",
    "SELECT DISTINCT ON (icd) icd FROM visits GROUP BY icd ORDER BY icd, COUNT(*) LIMIT 3",
    "SELECT icd FROM visits GROUP BY ROLLUP (icd) ORDER BY COUNT(*) DESC LIMIT 3",
    # Noise on all counts of a unit's ten groups is less than that of twenty-one picks.
    "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 21",
    # More than there are to pick from.
    "SELECT sex FROM patients GROUP BY sex ORDER BY COUNT(*) DESC LIMIT 5",
    # Private keys.
    "SELECT city FROM visits GROUP BY city ORDER BY COUNT(*) DESC LIMIT 3",
)


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    with changed_policy(clinic_policy, "picks", FIVE_IN_EACH) as policy:
        return Planner(load_policy(policy))


@pytest.fixture(scope="module", params=[(a, b) for a in ACCOUNTANTS for b in ADJACENCIES], ids="-".join)
def variant(request: pytest.FixtureRequest, clinic_policy: Path) -> Iterator[Planner]:
    accountant, adjacency = request.param
    changes = ACCOUNTANTS[accountant] | ADJACENCIES[adjacency] | FIVE_IN_EACH
    with changed_policy(clinic_policy, f"picks-{accountant}-{adjacency}", changes) as policy:
        yield Planner(load_policy(policy))


def release_of(planner: Planner, sql: str) -> PlannedRelease:
    (release,) = planner.compile(sql).releases
    return release


@pytest.mark.parametrize("sql", PICKED)
def test_keys_are_picked(planner: Planner, sql: str) -> None:
    release = release_of(planner, sql)
    (primitive,) = release.primitives
    assert isinstance(primitive.noise, Picking) and release.contribution.lists == () and not release.private_keys
    # Whatever groups a unit touches, nothing is ranked.
    assert "rank" not in release.sql and primitive.noise.sensitivity.l0 == primitive.noise.places.count


@pytest.mark.parametrize("sql", COUNTED)
def test_keys_are_counted(planner: Planner, sql: str) -> None:
    for release in planner.compile(sql).releases:
        assert release.contribution.lists is None
        assert not any(isinstance(primitive.noise, Picking) for primitive in release.primitives)


def test_what_is_picked_by(planner: Planner) -> None:
    def picked(sql: str) -> tuple[Places, tuple[int, int]]:
        (primitive,) = release_of(planner, sql).primitives
        assert isinstance(primitive.noise, Picking)
        return primitive.noise.places, (primitive.noise.sensitivity.linf, primitive.noise.sensitivity.l1)

    assert picked(PICKED[0]) == (Places(3), (5, 15))
    assert picked(PICKED[1]) == (Places(1, least=True), (5, 5))
    assert picked(PICKED[2]) == (Places(20), (5, 100))
    # Five rows from 0 to 5000.00 euros; and from -100.000 to 4900.000, which is no wider.
    assert picked(PICKED[3]) == (Places(3), (2_500_000, 7_500_000))
    assert picked(PICKED[4]) == (Places(3, least=True), (25_000_000, 75_000_000))
    assert picked(PICKED[5]) == (Places(1), (1, 1))


def test_a_mode_is_picked_in_each_group_that_a_unit_touches(planner: Planner) -> None:
    release = release_of(planner, MODES)
    (primitive,) = release.primitives
    assert (
        isinstance(primitive.noise, Picking)
        and primitive.noise.sensitivity.l0 == 10 == release.contribution.groups_per_unit
    )
    assert len(release.contribution.lists or ()) == 1 and "dense_rank() OVER (PARTITION BY unit" in release.sql
    few = release_of(planner, "SELECT sex, MODE() WITHIN GROUP (ORDER BY age) FROM patients GROUP BY sex")
    assert few.contribution.groups_per_unit == 1 and "rank" not in few.sql
    # The same SQL for two questions, of different prices and answers.
    whole = planner.compile(
        "SELECT (SELECT MODE() WITHIN GROUP (ORDER BY sex) FROM patients), MODE() WITHIN GROUP "
        "(ORDER BY age) FROM patients"
    )
    assert len({each.key for each in whole.releases}) == 2


def test_questions_that_are_alike_in_sql_are_not_one(planner: Planner) -> None:
    """Of two keys both are picked, or one for each value of the other."""
    keys = "FROM patients WHERE age IS NOT NULL AND sex IS NOT NULL"
    both = f"SELECT age, sex {keys} GROUP BY age, sex ORDER BY COUNT(*) DESC LIMIT 1"
    by_sex = f"SELECT sex, MODE() WITHIN GROUP (ORDER BY age) {keys} GROUP BY sex"
    by_age = f"SELECT age, MODE() WITHIN GROUP (ORDER BY sex) {keys} GROUP BY age"
    releases = [release_of(planner, sql) for sql in (both, by_sex, by_age)]
    assert len({release.sql for release in releases}) == 1
    assert len({release.key for release in releases}) == 3
    together = planner.compile(
        f"SELECT (SELECT MAX(m) FROM ({by_sex}) t (s, m)), (SELECT MAX(m) FROM ({by_age}) t (a, m))"
    )
    assert len(together.releases) == 2


@pytest.mark.parametrize("sql", [TOP, MODES])
def test_picks_cost_their_price_and_hardly_less(variant: Planner, sql: str) -> None:
    query = variant.compile(sql)
    spent, price = query.spends, query.price
    assert price is not None and spent.delta == spent.basic_delta == 0
    (event,) = query.releases[0].events
    if price.accountant.shares_rho:
        assert event.mechanism is Mechanism.EXPONENTIAL
        assert price.rho * Fraction(99, 100) < spent.rho <= price.rho
    else:
        assert event.mechanism is Mechanism.PERMUTE_AND_FLIP
        assert spent.pure_epsilon == spent.basic_epsilon == price.epsilon


def test_picks_are_fewer_where_they_are_dearer(variant: Planner) -> None:
    """Up to twice the groups of a unit, or as many: of ten."""
    adjacency, shares = variant.policy.dataset.adjacency.value, variant.catalog.role.budget.accountant.shares_rho
    most = 20 if shares and adjacency == "add_remove" else 10
    for count in (most, most + 1):
        sql = f"SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT {count}"
        assert (release_of(variant, sql).contribution.lists is None) == (count > most)


@pytest.mark.parametrize(
    ("score", "picks"),
    [("COUNT(*)", 4), ("SUM(cost)", 4), ("COUNT(DISTINCT city)", 4), ("COUNT(DISTINCT patient_id)", 20)],
)
def test_picks_are_fewer_where_rows_fill_few_groups(clinic_policy: Path, score: str, picks: int) -> None:
    """Fifty rows fill two groups of 25, and a unit counts in ten all the same."""
    limits = {"max_groups = 10 ": "max_rows_per_group = 25\nmax_groups = 10 "}
    with changed_policy(clinic_policy, "filled", limits) as policy:
        planner = Planner(load_policy(policy))
    for count in (picks, picks + 1):
        release = release_of(planner, f"SELECT icd FROM visits GROUP BY icd ORDER BY {score} DESC LIMIT {count}")
        assert (release.contribution.lists is not None) == (count == picks)


def test_an_analyst_may_narrow_what_counts(planner: Planner) -> None:
    (primitive,) = planner.compile(TOP, max_rows_per_group="2").releases[0].primitives
    assert primitive.noise.sensitivity.linf == 2
    (primitive,) = planner.compile(MODES, max_groups="4", max_rows_per_group="2").releases[0].primitives
    assert (primitive.noise.sensitivity.l0, primitive.noise.sensitivity.l1) == (4, 8)


# Verification


def of_lists(lists: tuple[int, ...] | None, **changes: Any) -> Callable[[PlannedRelease], PlannedRelease]:
    return lambda release: replace(release, contribution=replace(release.contribution, lists=lists, **changes))


def as_laplace(picking: Any) -> DiscreteLaplace:
    return DiscreteLaplace(picking.sensitivity, picking.scale)


def twice(release: PlannedRelease) -> PlannedRelease:
    return replace(release, primitives=release.primitives * 2)


TAMPERED: dict[str, tuple[str, Callable[[PlannedRelease], PlannedRelease]]] = {
    "half the scale": (TOP, with_noise(0, half_scale)),
    "fewer picks than are made": (TOP, with_noise(0, less("l0"))),
    "a smaller linf": (TOP, with_noise(0, less("linf"))),
    "a smaller l1": (TOP, with_noise(0, less("l1"))),
    "a smaller l2": (MODES, with_noise(0, less("l2_squared"))),
    "more picks than are asked for": (TOP, with_noise(0, lambda noise: replace(noise, places=Places(4)))),
    "more picks than are paid": (TOP, with_primitive(0, places=Places(4))),
    "more rows than are paid": (TOP, with_primitive(0, cap=6)),
    "more groups than are paid": (MODES, touching(11)),
    "coins at the price of weights": (TOP, with_noise(0, lambda noise: replace(noise, flips=True))),
    "counts of groups that are not bounded": (TOP, with_primitive(0, places=None)),
    "noise instead of picks": (TOP, with_noise(0, as_laplace)),
    "picks instead of noise": (TOP, of_lists(None)),
    "groups that are not bounded": ("SELECT icd, COUNT(*) FROM visits GROUP BY icd", of_lists(None, grouped=False)),
    "noise on lists": ("SELECT icd, COUNT(*) FROM visits GROUP BY icd", of_lists((), grouped=False)),
    "one list that are many": (MODES, of_lists(())),
    "many lists that are one": (TOP, of_lists((0,))),
    "lists of nothing": (TOP, of_lists((0,), grouped=True)),
    "lists of a key that is not there": (TOP, of_lists((1,), grouped=True)),
    "something beside the picks": (TOP, twice),
    "rows that are limited over all groups": (TOP, of_lists((), copied=True)),
    "private keys": (TOP, lambda release: replace(release, private_keys=True)),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered_picks_are_not_made(planner: Planner, name: str) -> None:
    sql, change = TAMPERED[name]
    query = planner.compile(sql, mechanism="laplace")
    verify(query, planner.catalog)
    assert Spent.zero().add(query.releases[0].events).rho > 0
    with pytest.raises(GuaranteeMismatch):
        verify(tamper(query, change), planner.catalog)
