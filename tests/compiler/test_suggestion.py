"""What is searched for: which columns, which keys, and how the search is written."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest

from dpsql.compiler.plan.suggestion import (
    NO_VALUE,
    Magnitudes,
    SearchedLimit,
    Wanted,
    exact_searches,
    plan_search,
    positive,
    searchable,
)
from dpsql.compiler.scope.tables import Catalog
from dpsql.policy import Policy, RandomizedResponse, Table
from dpsql.sqltypes import SqlType
from tests.strategies.world import SETTINGS, Survey, open_survey


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    opened: Survey = open_survey(tmp_path_factory.mktemp("survey"), "add_remove")
    yield opened.catalog
    opened.close()


def table(policy: Policy, name: str) -> Table:
    found = policy.table(name)
    assert found is not None
    return found


def test_what_has_limits_is_left_alone_unless_asked(catalog: Catalog) -> None:
    visits = table(catalog.policy, "visits")
    plain, tighter = (searchable(catalog.policy, visits, tighter=asked) for asked in (False, True))
    assert {column.name for column in plain.columns} == {
        column.name for column in tighter.columns if column.lower is None
    }
    assert "cost" in {column.name for column in tighter.columns}
    assert "note" in {column.name for column in plain.keys}
    assert "pid" not in {column.name for column in (*tighter.columns, *tighter.keys)}
    assert plain.rows


def test_a_table_of_one_row_has_nothing_to_count(catalog: Catalog) -> None:
    found = searchable(catalog.policy, table(catalog.policy, "people"), tighter=True)
    assert not found.rows
    assert found.keys == ()
    assert {column.name for column in found.columns} >= {"age", "weight", "born", "seen"}


def test_the_key_that_leads_to_the_unit_is_no_group(catalog: Catalog) -> None:
    lines = searchable(catalog.policy, table(catalog.policy, "lines"), tighter=True)
    assert [column.name for column in lines.keys] == ["drug"]


@pytest.mark.parametrize("part", ["columns", "keys", "rows"])
def test_each_part_alone(catalog: Catalog, part: str) -> None:
    whole = searchable(catalog.policy, table(catalog.policy, "visits"), tighter=True)
    nothing = Wanted(whole.table, (), (), rows=False)
    wanted = replace(nothing, **{part: getattr(whole, part)})
    search = plan_search([nothing, wanted], Decimal("0.9"), catalog, SETTINGS, "limits")
    settings = {limit.setting for limit in search.limits}
    assert (
        settings
        == {
            "columns": {"lower", "upper"},
            "keys": {"max_groups", "max_rows_per_group"},
            "rows": {"max_rows"},
        }[part]
    )
    exact = exact_searches([wanted], catalog)
    assert {limit.setting for each in exact for limit in each.limits} == settings
    assert all(str(NO_VALUE) in each.sql for each in exact)
    assert len(search.query.releases) == len(exact) == (2 if part == "keys" else 1)


def test_limits_are_those_of_the_cell(catalog: Catalog) -> None:
    visits = table(catalog.policy, "visits")
    grid = Magnitudes(SqlType.INTEGER)
    lower, upper = (SearchedLimit(visits, None, setting, grid) for setting in ("lower", "upper"))
    assert lower.value(-28) == -grid.upper(28)
    assert (lower.value(28), upper.value(28)) == (grid.lower(28), grid.upper(28))


def test_a_count_is_at_least_one() -> None:
    assert (positive(Fraction(-8)), positive(Fraction(0)), positive(Fraction(12))) == (1, 1, 12)
    with pytest.raises(TypeError):
        positive(date(2026, 1, 1))


def test_randomized_answers_are_left_alone(catalog: Catalog) -> None:
    visits = table(catalog.policy, "visits")
    asked = replace(visits.columns[-1], collected_by=RandomizedResponse(Fraction(3, 4), 2))
    plain, without = (
        searchable(catalog.policy, replace(visits, columns=(*visits.columns[:-1], last)), tighter=True)
        for last in (replace(asked, type=SqlType.TEXT, collected_by=None), replace(asked, type=SqlType.TEXT))
    )
    assert asked.name in {column.name for column in plain.keys}
    assert asked.name not in {column.name for column in without.keys}
