"""Limits suggested from the data: one unit moves one rank, cells hold their values, and the charge comes first."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.backends import ExactCells, open_backend
from dpsql.compiler.plan.suggestion import PlannedSearch, Wanted, plan_search, searchable
from dpsql.compiler.scope.tables import Catalog
from dpsql.errors import BackendFailure, BudgetExhausted, InvalidParameter
from dpsql.gateway.owner_reads import Suggester, Suggestion
from dpsql.ledger import Ledger, open_ledger
from dpsql.policy import Policy, load_policy
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Accountant, Adjacency, Mechanism
from dpsql.privacy.exponential_mechanism import Rank, RankChoice
from tests.examples import profile
from tests.strategies.data import REPLACEMENTS, UNITS, Database, Row, databases
from tests.strategies.distance import assert_neighbours, assert_same
from tests.strategies.world import SETTINGS, Rows, Survey

HALF = Decimal("0.5")
INFINITE = ("inf", "-inf", "nan")
UNIT = st.sampled_from([0, 0, *range(1, UNITS)])


@dataclass(frozen=True)
class Searched:
    """A world whose limits are searched for; the search is planned once."""

    world: Survey
    search: PlannedSearch

    def cells(self, rows: Rows) -> list[ExactCells]:
        self.world.fill(rows)
        return self.world.fetch(self.search.query.releases)


@pytest.fixture(scope="module")
def searched(survey: Survey) -> Searched:
    return Searched(survey, planned(survey.catalog))


@pytest.fixture(scope="module")
def searched_substituted(substituted: Survey) -> Searched:
    return Searched(substituted, planned(substituted.catalog))


@pytest.fixture(scope="module")
def each_searched(each_survey: Survey) -> Searched:
    return Searched(each_survey, planned(each_survey.catalog))


def everything(policy: Policy) -> list[Wanted]:
    return [searchable(policy, table, tighter=True) for table in policy.tables if not table.public]


def planned(catalog: Catalog) -> PlannedSearch:
    role = replace(catalog.role, tables=frozenset(table.name for table in catalog.policy.tables))
    return plan_search(everything(catalog.policy), HALF, replace(catalog, role=role), SETTINGS, "limits")


# What one unit moves


@profile(3)
@given(database=databases(), unit=UNIT, seed=st.integers(0, 99))
def test_a_unit_that_leaves(each_searched: Searched, database: Database, unit: int, seed: int) -> None:
    with_unit = each_searched.cells(database.tables())
    without = each_searched.cells(database.without(unit).tables())
    again = each_searched.cells(database.shuffled(seed).tables())
    planned = each_searched.search.query.releases
    for release, left, right, shuffled in zip(planned, with_unit, without, again, strict=True):
        assert_neighbours(release, left, right)
        assert_same(left, shuffled)


@profile(3)
@given(database=databases(), unit=UNIT, others=REPLACEMENTS)
def test_a_unit_that_another_replaces(
    searched_substituted: Searched, database: Database, unit: int, others: tuple[Row, ...]
) -> None:
    before = searched_substituted.cells(database.tables())
    after = searched_substituted.cells(database.replaced(unit, others).tables())
    for release, left, right in zip(searched_substituted.search.query.releases, before, after, strict=True):
        assert_neighbours(release, left, right, Adjacency.SUBSTITUTE)


def test_each_choice_is_of_one_rank_a_unit(searched: Searched) -> None:
    primitives = [primitive for release in searched.search.query.releases for primitive in release.primitives]
    assert primitives
    for primitive in primitives:
        assert isinstance(primitive.noise, RankChoice)
        assert primitive.noise.sensitivity.linf == max(primitive.noise.rank.below, primitive.noise.rank.above)
        assert primitive.primitive.cap == 1


def test_values_have_extremes_and_counts_the_part_asked_for(searched: Searched) -> None:
    ranks = {"lower": Rank.least(), "upper": Rank.greatest()}
    asked = Counter(ranks.get(limit.setting, Rank.quantile(Fraction(HALF))) for limit in searched.search.limits)
    assert asked == Counter(
        primitive.primitive.rank for release in searched.search.query.releases for primitive in release.primitives
    )


@pytest.mark.parametrize("accountant", [Accountant.PURE, Accountant.BASIC, Accountant.ZCDP, Accountant.RDP])
def test_the_price_is_what_was_asked(survey: Survey, accountant: Accountant) -> None:
    role = survey.catalog.role
    catalog = replace(survey.catalog, role=replace(role, budget=replace(role.budget, accountant=accountant)))
    spent: Spent = planned(catalog).query.spends
    asked = SETTINGS.epsilon
    exact = {Accountant.PURE: spent.pure_epsilon, Accountant.BASIC: spent.basic_epsilon}.get(accountant, spent.rho)
    wanted = asked if accountant in (Accountant.PURE, Accountant.BASIC) else asked**2 / 2
    assert exact is not None
    assert wanted * Fraction(999, 1000) < exact <= wanted + Fraction(1, 10**20)


# What is found


@pytest.fixture
def clinic(each_clinic: Path) -> Policy:
    policy = load_policy(each_clinic)
    return replace(
        policy, dataset=replace(policy.dataset, budget=replace(policy.dataset.budget, epsilon=Fraction(900)))
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
def suggester(clinic: Policy, ledger: Ledger) -> Iterator[Suggester]:
    backend = open_backend(clinic)
    yield Suggester(clinic, ledger, backend)
    backend.close()


def by_name(suggestions: tuple[Suggestion, ...]) -> dict[str, Any]:
    found = {}
    for each in suggestions:
        limit = each.limit
        parts = (limit.table.name, limit.column.name if limit.column is not None else None, limit.setting)
        found[" ".join(part for part in parts if part is not None)] = each.value
    return found


def test_limits_are_near_the_extremes(suggester: Suggester) -> None:
    found = by_name(suggester.search(everything(suggester.policy), Fraction(80), HALF).suggestions)
    exact = by_name(tuple(suggester.exact(everything(suggester.policy))))
    assert found.keys() == exact.keys()
    assert found["visits visited_on lower"] == exact["visits visited_on lower"]
    assert found["visits visited_on upper"] == exact["visits visited_on upper"]
    assert 60 <= found["patients age upper"] <= exact["patients age upper"]
    assert 0 < found["visits max_rows_per_group"] <= found["visits max_rows"] < exact["visits max_rows"]
    assert found["visits max_groups"] <= exact["visits max_groups"]


@pytest.mark.parametrize("part", ["0.5", "0.8"])
def test_so_many_people_have_no_more_rows(suggester: Suggester, clinic_file: Path, tmp_path: Path, part: str) -> None:
    (visits,) = (each for each in everything(suggester.policy) if each.table.name == "visits")
    found = by_name(suggester.search([replace(visits, columns=())], Fraction(80), Decimal(part)).suggestions)
    a_group = (
        "SELECT patient_id, max(n) AS n FROM (SELECT patient_id, count(*) AS n FROM visits GROUP BY {}) GROUP BY 1"
    )
    grouped = "UNION ALL ".join(a_group.format(f"1, {key} ") for key in ("city", "icd", "doctor_id", "visited_on"))
    rows = {
        "max_rows": "SELECT patient_id, count(*) AS n FROM visits GROUP BY 1",
        "max_rows_per_group": f"SELECT patient_id, max(n) AS n FROM ({grouped}) GROUP BY 1",
    }
    with duckdb.connect(shutil.copy(clinic_file, tmp_path / "copy.duckdb")) as database:
        for setting, numbers in rows.items():
            # The rank may be one person off, and the limit is the upper end of a quarter of an octave, to two digits.
            (exact,) = database.execute(
                f"SELECT quantile_disc(n, {part}) FROM ({numbers}) WHERE patient_id IS NOT NULL"
            ).fetchall()[0]
            assert exact / 2 <= found[f"visits {setting}"] <= 2 * exact, setting


def test_exact_limits_cut_nothing_off(suggester: Suggester, clinic_file: Path, tmp_path: Path) -> None:
    exact = by_name(tuple(suggester.exact(everything(suggester.policy))))
    # The other engine holds the same rows.
    with duckdb.connect(shutil.copy(clinic_file, tmp_path / "copy.duckdb")) as database:
        for name in ("visits.cost", "prescriptions.dose", "visits.visited_on", "patients.age", "patients.weight"):
            table, column = name.split(".")
            low, high = database.execute(
                f"SELECT min({column}), max({column}) FROM {table} WHERE CAST({column} AS VARCHAR) NOT IN {INFINITE}"
            ).fetchall()[0]
            assert exact[f"{table} {column} lower"] <= low
            assert high <= exact[f"{table} {column} upper"]
        (most,) = database.execute(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM visits WHERE patient_id IS NOT NULL GROUP BY patient_id)"
        ).fetchall()[0]
    assert most <= exact["visits max_rows"] <= Fraction(5, 4) * most


def test_columns_without_a_value_have_no_limits(survey: Survey, ledger: Ledger) -> None:
    survey.fill({})
    found = tuple(Suggester(survey.catalog.policy, ledger, survey.backend).exact(everything(survey.catalog.policy)))
    assert found
    assert {each.value for each in found} == {None}


# The charge


def test_the_cap_is_charged_and_nobody_else(suggester: Suggester) -> None:
    ledger, policy = suggester.ledger, suggester.policy
    ledger.add_account("ana", "analyst")
    found = suggester.search(everything(policy), Fraction(1), HALF)
    assert found.cap == ledger.cap(policy)
    assert found.cost.epsilon == 1
    assert Fraction(499, 1000) < found.cap.spent.rho <= Fraction(1, 2) + Fraction(1, 10**20)
    assert ledger.budget("ana", policy).spent == Spent.zero()
    (record,) = ledger.owner_history()
    assert record.kind == "cap.charged"
    assert "visits.cost; " in record.reason
    assert Spent.zero().add(record.price).rho == found.cap.spent.rho
    assert ledger.verify().ok


def test_a_charge_stands_though_the_engine_fails(
    suggester: Suggester, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def fail(*_: object) -> None:
        seen.append(ledger.cap(suggester.policy).spent.rho)
        raise BackendFailure

    monkeypatch.setattr(suggester.backend, "fetch", fail)
    with pytest.raises(BackendFailure):
        suggester.search(everything(suggester.policy), Fraction(1), HALF)
    assert seen == [ledger.cap(suggester.policy).spent.rho]
    assert seen[0] > 0


def test_what_the_cap_does_not_cover_reads_nothing(suggester: Suggester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggester.backend, "fetch", lambda *_: pytest.fail("rows were read"))
    with pytest.raises(BudgetExhausted, match=r"costs epsilon .* is left") as refused:
        suggester.search(everything(suggester.policy), Fraction(300), HALF)
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("Write: --epsilon ")
    assert suggester.ledger.cap(suggester.policy).spent == Spent.zero()
    assert suggester.ledger.owner_history() == []


@pytest.mark.parametrize("fraction", ["0", "1", "-0.5", "0.1234"])
def test_a_part_that_is_none(suggester: Suggester, fraction: str) -> None:
    with pytest.raises(InvalidParameter, match="the quantile must be between 0 and 1"):
        suggester.search(everything(suggester.policy), Fraction(1), Decimal(fraction))


def test_an_exact_search_is_recorded_before_it_reads(suggester: Suggester, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []

    def count(*_: object) -> None:
        kinds.extend(record.kind for record in suggester.ledger.owner_history())
        raise BackendFailure

    monkeypatch.setattr(suggester.backend, "count", count)
    with pytest.raises(BackendFailure):
        list(suggester.exact(everything(suggester.policy)))
    assert kinds == ["values.exact"]
    assert suggester.ledger.verify().ok


def test_a_role_with_wide_totals_pays_for_none(suggester: Suggester) -> None:
    policy = suggester.policy
    role = replace(policy.roles[0], query=replace(policy.roles[0].query, wide_share=Fraction(1, 2)))
    counting = replace(suggester, policy=replace(policy, roles=(role, *policy.roles[1:])))
    counting.search(everything(policy), Fraction(1), HALF)
    (record,) = suggester.ledger.owner_history()
    assert {event.mechanism for event in record.price} == {Mechanism.EXPONENTIAL}
