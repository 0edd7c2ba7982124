"""Profiles made of the data: one unit moves the counts by no more than is charged, and the charge comes first."""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.backends import Backend, Cancellation, ExactCells, open_backend
from dpsql.compiler.plan.profile_plan import PlannedProfile, plan_profile
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.errors import BackendFailure, BudgetExhausted, Error, InvalidParameter, LedgerUnavailable
from dpsql.gateway.engine import Engine
from dpsql.gateway.owner_reads import exact_profile, make_profile, owner_catalog
from dpsql.gateway.session import Session
from dpsql.ledger import Ledger, open_ledger
from dpsql.ledger.profiles import newest_profile, profiles_loss
from dpsql.policy import Policy, load_policy
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Accountant, Adjacency
from tests.conftest import silence_noise
from tests.examples import profile
from tests.strategies.data import REPLACEMENTS, UNITS, Database, Row, databases
from tests.strategies.distance import assert_neighbours, assert_same
from tests.strategies.profiles import frozen_profile
from tests.strategies.world import SETTINGS, Rows, Survey
from tests.strategies.writer import queries

UNIT = st.sampled_from([0, 0, *range(1, UNITS)])
TENTH = Fraction(1, 10)


@dataclass(frozen=True)
class World:
    """A world whose profile is made; it is planned once."""

    survey: Survey
    planned: PlannedProfile

    def cells(self, rows: Rows) -> list[ExactCells]:
        self.survey.fill(rows)
        return self.survey.fetch(self.planned.query.releases)


def planned(catalog: Catalog) -> PlannedProfile:
    found = plan_profile(owner_catalog(catalog.policy, catalog.schema, SETTINGS.epsilon), SETTINGS)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def profiled(each_survey: Survey) -> World:
    return World(each_survey, planned(each_survey.catalog))


@pytest.fixture(scope="module")
def profiled_substituted(each_substituted: Survey) -> World:
    return World(each_substituted, planned(each_substituted.catalog))


# What one unit moves


@profile(4)
@given(database=databases(), unit=UNIT, seed=st.integers(0, 99))
def test_a_unit_that_leaves(profiled: World, database: Database, unit: int, seed: int) -> None:
    with_unit = profiled.cells(database.tables())
    without = profiled.cells(database.without(unit).tables())
    again = profiled.cells(database.shuffled(seed).tables())
    for release, left, right, same in zip(profiled.planned.query.releases, with_unit, without, again, strict=True):
        assert_neighbours(release, left, right)
        assert_same(left, same)


@profile(4)
@given(database=databases(), unit=UNIT, others=REPLACEMENTS)
def test_a_unit_that_another_replaces(
    profiled_substituted: World, database: Database, unit: int, others: tuple[Row, ...]
) -> None:
    before = profiled_substituted.cells(database.tables())
    after = profiled_substituted.cells(database.replaced(unit, others).tables())
    for release, left, right in zip(profiled_substituted.planned.query.releases, before, after, strict=True):
        assert_neighbours(release, left, right, Adjacency.SUBSTITUTE)


# Bounds by a profile, which is frozen


def frozen(catalog: Catalog) -> Catalog:
    return replace(catalog, profile=frozen_profile(catalog.policy))


def accepted(survey: Survey, asked: Sequence[str], settings: QuerySettings) -> list[PlannedRelease]:
    """The releases of the queries that are not refused, which a profile has bounded."""
    found: list[PlannedRelease] = []
    for sql in asked:
        try:
            query = survey.compile(sql, settings)
            survey.backend.check(query.releases, query.public_reads, Cancellation())
        except Error:
            continue
        found += [each for each in query.releases if each.profiled is not None]
    return found


FORMS = (
    "SELECT COUNT(*), SUM(cost), AVG(n) FROM visits",
    "SELECT flag, COUNT(*), SUM(ratio) FROM visits GROUP BY flag",
    "SELECT kind, COUNT(cost) FROM visits WHERE n > 4 GROUP BY kind",
    "SELECT day, COUNT(*) FROM visits GROUP BY day",
    "SELECT sex, COUNT(*) FROM visits JOIN people USING (pid) GROUP BY sex",
    "SELECT dish, COUNT(*), SUM(nights) FROM meals JOIN stays USING (stay_id) GROUP BY dish",
    "SELECT COUNT(*), SUM(words) FROM letters",
)


def test_a_profile_narrows_these(each_survey: Survey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each_survey, "catalog", frozen(each_survey.catalog))
    found = [each.profiled for each in accepted(each_survey, FORMS, SETTINGS)]
    assert len(found) >= 5
    assert all(each is not None and each.rows < 9 for each in found)


@profile(8)
@given(
    database=databases(), unit=UNIT, asked=st.lists(queries(), min_size=4, max_size=8), price=st.sampled_from([1, 9])
)
def test_a_unit_that_leaves_what_a_profile_bounds(
    each_survey: Survey, database: Database, unit: int, asked: list[str], price: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(each_survey, "catalog", frozen(each_survey.catalog))
        releases = accepted(each_survey, [*FORMS, *asked], replace(SETTINGS, epsilon=Fraction(price, 9)))
    each_survey.fill(database.tables())
    with_unit = each_survey.fetch(releases)
    each_survey.fill(database.without(unit).tables())
    for release, left, right in zip(releases, with_unit, each_survey.fetch(releases), strict=True):
        assert_neighbours(release, left, right)


# What is made


@pytest.fixture
def clinic(each_clinic: Path) -> Policy:
    return load_policy(each_clinic)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
def backend(clinic: Policy) -> Iterator[Backend]:
    opened = open_backend(clinic)
    yield opened
    opened.close()


def test_it_is_the_exact_counts_with_noise(
    clinic: Policy, ledger: Ledger, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = make_profile(clinic, ledger, backend, Fraction(1))
    silence_noise(monkeypatch)
    silent = make_profile(clinic, ledger, backend, Fraction(1)).profile.tables
    exact = exact_profile(clinic, ledger, backend)
    for with_noise, without, counted in zip(noisy.profile.tables, silent, exact, strict=True):
        assert (with_noise.table, with_noise.bounds) == (counted.table, counted.bounds)
        for noise, none, true in zip(with_noise.ranks, without.ranks, counted.ranks, strict=True):
            assert (noise.grouping, noise.groups) == (true.grouping, true.groups)
            # Of nobody more than four times max_rows count; there are few who have so many.
            assert sum(none.rows) == pytest.approx(sum(true.rows), rel=0.02)
            assert none.rows[0] == pytest.approx(true.rows[0], rel=0.02)
            assert true.variance == 0
            assert all(abs(a - b) < 12 * noise.variance**0.5 for a, b in zip(noise.rows, none.rows, strict=True))
            assert noise.rows != none.rows
    visits = exact[0]
    assert visits.ranks[0].groups == 1
    assert {str(each.grouping): each.groups for each in visits.ranks}["in one month of visited_on"] == 84 + 1


def test_the_cap_pays_and_nobody_else(clinic: Policy, ledger: Ledger, backend: Backend) -> None:
    ledger.add_account("ana", "analyst")
    made = make_profile(clinic, ledger, backend, TENTH)
    assert float(made.cost.epsilon) == pytest.approx(0.1)
    assert Spent.zero().add(made.profile.events) == made.cap.spent == ledger.cap(clinic).spent
    assert ledger.budget("ana", clinic).spent == Spent.zero()
    assert newest_profile(ledger, clinic) == made.profile
    assert ledger.verify().ok


def test_what_the_cap_does_not_cover_is_not_read(
    clinic: Policy, ledger: Ledger, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(backend), "fetch", None)
    with pytest.raises(BudgetExhausted):
        make_profile(clinic, ledger, backend, Fraction(1000))
    assert ledger.profiles(clinic) == ()


def test_a_charge_is_durable_before_a_row_is_read(
    clinic: Policy, ledger: Ledger, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[Spent] = []

    def fail(*_: object, **__: object) -> None:
        spent.append(ledger.cap(clinic).spent)
        raise BackendFailure

    monkeypatch.setattr(type(backend), "fetch", fail)
    with pytest.raises(BackendFailure):
        make_profile(clinic, ledger, backend, TENTH)
    assert spent == [ledger.cap(clinic).spent]
    assert spent[0].rho > 0
    assert newest_profile(ledger, clinic) is None


def test_exact_counts_are_on_record_before_a_row_is_read(
    clinic: Policy, ledger: Ledger, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(backend), "count", None)
    with pytest.raises(TypeError):
        exact_profile(clinic, ledger, backend)
    (record,) = ledger.owner_history()
    assert record.kind == "values.exact"
    assert "WITHOUT a guarantee" in record.reason


def test_where_there_is_nothing_to_profile(clinic: Policy, ledger: Ledger, backend: Backend) -> None:
    tables = tuple(each for each in clinic.tables if each.public or each.name == "patients")
    with pytest.raises(InvalidParameter, match="there is nothing to profile"):
        make_profile(replace(clinic, tables=tables), ledger, backend, TENTH)
    assert ledger.cap(clinic).spent == Spent.zero()


# What becomes of it


def test_the_newest_that_tells_of_the_policy_is_read(clinic: Policy, ledger: Ledger, backend: Backend) -> None:
    assert newest_profile(ledger, clinic) is None
    first = make_profile(clinic, ledger, backend, TENTH).profile
    newer = replace(clinic, dataset=replace(clinic.dataset, data_version="2027"))
    assert newest_profile(ledger, newer) is None
    second = make_profile(newer, ledger, backend, TENTH).profile
    assert (newest_profile(ledger, newer), newest_profile(ledger, clinic)) == (second, first)
    third = make_profile(clinic, ledger, backend, TENTH).profile
    assert newest_profile(ledger, clinic) == third
    other = replace(clinic, dataset=replace(clinic.dataset, name="other"))
    assert newest_profile(ledger, other) is None


def test_what_is_no_profile_is_told(clinic: Policy, ledger: Ledger) -> None:
    ledger.store_profile(clinic, '{"tables": 7}')
    with pytest.raises(LedgerUnavailable, match="a profile in the ledger cannot be read"):
        newest_profile(ledger, clinic)


@pytest.mark.parametrize("accountant", Accountant)
def test_its_loss_adds_to_what_users_are_promised(
    clinic: Policy, ledger: Ledger, backend: Backend, accountant: Accountant
) -> None:
    budget = replace(clinic.dataset.budget, accountant=accountant, selection_share=Fraction(0))
    if accountant is Accountant.PURE:
        budget = replace(budget, delta=Fraction(0))
    policy = replace(clinic, dataset=replace(clinic.dataset, budget=budget))
    assert not any(profiles_loss(ledger, policy))
    for _ in range(2):
        make_profile(policy, ledger, backend, TENTH)
    epsilon, delta = profiles_loss(ledger, policy)
    if accountant in (Accountant.PURE, Accountant.BASIC):
        assert float(epsilon) == pytest.approx(0.2)
        assert delta == 0
    else:
        assert TENTH < epsilon < 10 * TENTH
        assert 0 <= delta <= budget.delta


def test_bounds_are_chosen_by_it(clinic: Policy, ledger: Ledger, backend: Backend) -> None:
    ledger.add_account("ana", "analyst")
    made = make_profile(clinic, ledger, backend, Fraction(3))
    engine = Engine(clinic, ledger, open_backend(clinic))
    session = Session(engine, "ana")

    def explained(sql: str) -> str:
        (statement,) = session.parse(sql)
        return "\n".join(str(row[0]) for row in session.execute(statement).rows)

    by_month = "SELECT date_trunc('month', visited_on), COUNT(*) FROM visits GROUP BY 1"
    told = explained(f"EXPLAIN {by_month}")
    assert f"bounds chosen by profile {made.profile.id}: they drop about " in told
    assert re.search(r"\d+ rows per patient, \d+ in each group", told)
    assert f'"profile": "{made.profile.id}"' in explained(f"EXPLAIN (FORMAT JSON) {by_month}")
    assert '"profiled": [null]' in " ".join(explained("EXPLAIN (FORMAT JSON) SELECT COUNT(*) FROM patients").split())
    (statement,) = session.parse(by_month)
    assert len(list(session.execute(statement).rows)) >= 84
    engine.close()


def test_a_copy_of_the_ledger_has_it(clinic: Policy, ledger: Ledger, backend: Backend, tmp_path: Path) -> None:
    made = make_profile(clinic, ledger, backend, TENTH)
    ledger.close()
    shutil.copy(tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite")
    again = open_ledger(f"sqlite:///{tmp_path / 'copy.sqlite'}", make=False)
    assert newest_profile(again, clinic) == made.profile
    again.close()
