"""The heart again, where PostgreSQL holds the rows: a unit moves the exact cells by no more than was claimed."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dpsql.backends import Cancellation, ExactCells
from dpsql.compiler.planned import PlannedRelease
from dpsql.compiler.settings import QuerySettings
from dpsql.errors import BackendFailure, Error
from dpsql.privacy.sensitivity import Adjacency
from tests.compiler.test_fuzz import GENERIC
from tests.examples import profile
from tests.postgres import Server
from tests.strategies.data import REPLACEMENTS, Database, Row, databases
from tests.strategies.distance import TooFar, assert_neighbours, assert_same
from tests.strategies.elephant import Elephant, open_elephant
from tests.strategies.world import Rows
from tests.test_neighbours import ASKED, CASES, CROWD, UNIT, simple_forms
from tests.test_neighbours_rows import FIVE


@pytest.fixture(scope="module")
def survey(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elephant]:
    with open_elephant(postgres_server, tmp_path_factory.mktemp("survey"), "add_remove") as opened:
        yield opened


@pytest.fixture(scope="module")
def substituted(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elephant]:
    with open_elephant(postgres_server, tmp_path_factory.mktemp("survey"), "substitute") as opened:
        yield opened


def accepted(survey: Elephant, asked: list[tuple[str, QuerySettings]]) -> list[PlannedRelease]:
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


def cells(survey: Elephant, planned: list[PlannedRelease], rows: Rows) -> list[ExactCells]:
    """The cells over these rows; an engine that fails fails the test."""
    survey.fill(rows)
    found = []
    for release in planned:
        try:
            found += survey.fetch([release])
        except BackendFailure:
            pytest.fail(f"the engine failed, which tells something about its rows: {release.sql}")
    return found


@profile(10)
@given(database=databases(), unit=UNIT, asked=ASKED, seed=st.integers(0, 99))
def test_a_unit_that_leaves(
    survey: Elephant, database: Database, unit: int, asked: list[tuple[str, QuerySettings]], seed: int
) -> None:
    planned = accepted(survey, asked)
    with_unit = cells(survey, planned, database.tables())
    without = cells(survey, planned, database.without(unit).tables())
    again = cells(survey, planned, database.shuffled(seed).tables())
    for release, left, right, shuffled in zip(planned, with_unit, without, again, strict=True):
        assert_neighbours(release, left, right)
        assert_same(left, shuffled)


@profile(6)
@given(database=databases(), unit=UNIT, others=REPLACEMENTS, asked=ASKED)
def test_a_unit_that_another_replaces(
    substituted: Elephant,
    database: Database,
    unit: int,
    others: tuple[Row, ...],
    asked: list[tuple[str, QuerySettings]],
) -> None:
    planned = accepted(substituted, asked)
    before = cells(substituted, planned, database.tables())
    after = cells(substituted, planned, database.replaced(unit, others).tables())
    for release, left, right in zip(planned, before, after, strict=True):
        assert_neighbours(release, left, right, Adjacency.SUBSTITUTE)


def test_constants_that_the_planner_computes_raise_no_error(survey: Elephant) -> None:
    number = "CAST('1e300' AS float8)"
    query = survey.compile(f"SELECT COUNT(MOD(ratio, {number})), COUNT(MOD({number}, ratio)) FROM visits")
    survey.backend.check(query.releases, query.public_reads, Cancellation())


def test_every_form_is_total(survey: Elephant) -> None:
    survey.fill(CROWD.tables())
    failures = []
    for table, expression, _ in simple_forms():
        sql = f"SELECT COUNT({expression}), COUNT(*) FILTER (WHERE ({expression}) IS NULL) FROM {table}"
        for release in survey.compile(sql).releases:
            try:
                survey.fetch([release])
            except BackendFailure:
                failures.append(f"{expression}: {release.sql}")
    assert not failures


# Rows of tables without a unit of their own stay: whose they are is for other rows to say.
OTHERS = Database(tuple((i, row) for i, row in CROWD.rows if row.unit != 0 or row.table in ("lines", "meals")))


def test_rows_that_are_limited_over_all_groups(survey: Elephant) -> None:
    found = [each for sql in CASES for each in survey.compile(sql, FIVE).releases]
    planned = [each for each in found if each.contribution.all_rows is not None]
    assert len(planned) >= 25
    faulty = replace(planned[0], sql=planned[0].sql.replace("HAVING sum(n) > 5)", "HAVING sum(n) > 5000)"))
    assert faulty != planned[0]
    left, right = (cells(survey, [*planned, faulty], rows.tables()) for rows in (CROWD, OTHERS))
    for release, one, other in zip(planned, left, right, strict=False):
        assert_neighbours(release, one, other)
    with pytest.raises(TooFar):
        assert_neighbours(faulty, left[-1], right[-1])
