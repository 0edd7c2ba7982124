"""The heart over bounded copies, where PostgreSQL holds the rows: D and D∖u are prepared each, and compared."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import psycopg
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dpsql.backends import Cancellation
from dpsql.compiler.planned import PlannedRelease
from dpsql.errors import Error
from dpsql.privacy.sensitivity import Adjacency
from tests.examples import profile
from tests.postgres import Server
from tests.strategies.data import REPLACEMENTS, Database, Row, databases
from tests.strategies.distance import TooFar, assert_neighbours, assert_same
from tests.strategies.elephant import Elephant, open_elephant
from tests.strategies.world import SETTINGS
from tests.test_neighbours import CASES, CROWD, UNIT
from tests.test_neighbours_copies import ANY_ERROR, simple_queries
from tests.test_neighbours_postgres import cells

ASKED = st.lists(simple_queries(), min_size=8, max_size=12)


@pytest.fixture(scope="module")
def survey(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elephant]:
    with open_elephant(postgres_server, tmp_path_factory.mktemp("survey"), "add_remove", prepared=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def substituted(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elephant]:
    with open_elephant(postgres_server, tmp_path_factory.mktemp("survey"), "substitute", prepared=True) as opened:
        yield opened


def copied(survey: Elephant, asked: list[str]) -> list[PlannedRelease]:
    """What is read from copies for those of the queries that are not refused."""
    planned: list[PlannedRelease] = []
    for sql in asked:
        try:
            query = survey.compile(sql, ANY_ERROR)
            survey.backend.check(query.releases, query.public_reads, Cancellation())
        except Error:
            continue
        planned += [release for release in query.releases if release.contribution.copied]
    return planned


@profile(4)
@given(database=databases(), unit=UNIT, asked=ASKED, seed=st.integers(0, 99))
def test_a_unit_that_leaves(survey: Elephant, database: Database, unit: int, asked: list[str], seed: int) -> None:
    planned = copied(survey, asked)
    event(f"copied: {len(planned)}")
    with_unit = cells(survey, planned, database.tables())
    without = cells(survey, planned, database.without(unit).tables())
    again = cells(survey, planned, database.shuffled(seed).tables())
    for release, left, right, shuffled in zip(planned, with_unit, without, again, strict=True):
        assert_neighbours(release, left, right)
        assert_same(left, shuffled)


@profile(3)
@given(database=databases(), unit=UNIT, others=REPLACEMENTS, asked=ASKED)
def test_a_unit_that_another_replaces(
    substituted: Elephant, database: Database, unit: int, others: tuple[Row, ...], asked: list[str]
) -> None:
    planned = copied(substituted, asked)
    before = cells(substituted, planned, database.tables())
    after = cells(substituted, planned, database.replaced(unit, others).tables())
    for release, left, right in zip(planned, before, after, strict=True):
        assert_neighbours(release, left, right, Adjacency.SUBSTITUTE)


# Rows of tables without a unit of their own stay: whose they are is for other rows to say.
OTHERS = Database(tuple((i, row) for i, row in CROWD.rows if row.unit != 0 or row.table in ("lines", "meals")))


def test_a_unit_with_many_rows(survey: Elephant) -> None:
    planned = copied(survey, list(CASES))
    assert len(planned) >= 30
    left, right = (cells(survey, planned, rows.tables()) for rows in (CROWD, OTHERS))
    for release, one, other in zip(planned, left, right, strict=True):
        assert_neighbours(release, one, other)


def test_the_table_in_place_of_the_copy_is_too_far(survey: Elephant) -> None:
    (planned,) = copied(survey, ["SELECT flag, COUNT(*) FROM visits GROUP BY flag"])
    plain = survey.compile(
        "SELECT flag, COUNT(*) FROM visits GROUP BY flag", replace(SETTINGS, max_error_ratio=Fraction(0))
    )
    table = next(name for name in plain.releases[0].sql.split('"') if name.endswith(".visits"))
    faulty = replace(planned, sql=planned.sql.replace("dpsql.copy.visits", table).replace("dpsql.unit", "pid"))
    left, right = (cells(survey, [faulty], rows.tables()) for rows in (CROWD, OTHERS))
    with pytest.raises(TooFar):
        assert_neighbours(faulty, left[0], right[0])


def test_the_server_keeps_out_rows_beyond_the_bound(survey: Elephant) -> None:
    survey.fill(CROWD.tables())
    name = 'copies."dpsql.copy.visits"'
    more = f'INSERT INTO {name} ("dpsql.unit", "dpsql.row") SELECT "dpsql.unit", "dpsql.row" + {{}} FROM {name} LIMIT 1'
    for step, error in ((0, psycopg.errors.UniqueViolation), (9, psycopg.errors.CheckViolation)):
        with pytest.raises(error):
            survey.run(more.format(step))
