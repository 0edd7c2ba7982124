"""Whatever the query and however it is spelled: equal keys for one question, and equal answers to what is written.

A query is generated, and its words are changed where PostgreSQL gives them the same meaning; the keys must agree. Its
answer without noise, over generated rows, must be that of the query as it is written: the form that is run is another,
the meaning is not.
"""

import re
from collections.abc import Iterator

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from dpsql.backends import Cancellation
from dpsql.compiler.plan import compile as planning
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.errors import Error, InvalidParameter
from dpsql.gateway.engine import Engine
from dpsql.gateway.settings import Reuse
from dpsql.ledger import open_ledger
from tests.compiler.test_accepted import Rows, is_same, sort_key
from tests.compiler.test_canonical import AsWritten
from tests.conftest import silence_noise
from tests.examples import profile
from tests.strategies.data import Database, databases
from tests.strategies.spellings import respelled
from tests.strategies.world import Survey, open_survey
from tests.strategies.writer import queries

SEEDS = st.integers(0, 10**6)
OPEN = re.compile(r"OVER \(|LIMIT|DISTINCT ON")
"""What may leave rows in an order that the query does not tell: any of them may come first, as in PostgreSQL."""


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    opened = open_survey(tmp_path_factory.mktemp("survey"), "add_remove", most=2000)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def engine(survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine over the survey, without noise."""
    ledger = open_ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.sqlite'}")
    ledger.add_account("ana", "analyst")
    with pytest.MonkeyPatch.context() as patch:
        silence_noise(patch)
        yield Engine(survey.catalog.policy, ledger, survey.backend)
    ledger.close()


def planned(survey: Survey, sql: str) -> CompiledQuery | None:
    """The plan, or None for a query that is refused."""
    try:
        return survey.compile(sql)
    except Error as error:
        event(f"refused: {type(error).__name__}")
        return None


@profile(80)
@given(sql=queries(), seed=SEEDS)
def test_one_question_has_one_key(survey: Survey, sql: str, seed: int) -> None:
    query = planned(survey, sql)
    assume(query is not None)  # a query that cannot be read has no other spelling
    other = planned(survey, respelled(sql, seed))
    assume(other is not None)
    assert query is not None
    assert other is not None
    event(f"releases: {len(query.releases)}")
    assert sorted(release.key for release in other.releases) == sorted(release.key for release in query.releases)


def rows_of(engine: Engine, query: CompiledQuery) -> Rows | None:
    """The answer, or None where post-processing has none."""
    try:
        return list(engine.execute("ana", query, Cancellation(), reuse=Reuse.OFF).rows.rows)
    except InvalidParameter:
        return None


def grids(query: CompiledQuery) -> set[object]:
    """The grids of all sums and means: where they differ, so does what is rounded to them."""
    return {planned.primitive.grid for release in query.releases for planned in release.primitives}


@profile(10)
@given(database=databases(), asked=st.lists(queries(), min_size=6, max_size=10))
def test_the_form_means_what_is_written(engine: Engine, survey: Survey, database: Database, asked: list[str]) -> None:
    survey.fill(database.tables())
    for sql in asked:
        formed = planned(survey, sql)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planning, "Canonical", AsWritten)
            written = planned(survey, sql)
        assert formed is not None or written is None, sql
        if formed is not None and written is not None and grids(formed) == grids(written):
            assert_same(sql, rows_of(engine, formed), rows_of(engine, written))


def assert_same(sql: str, found: Rows | None, truth: Rows | None) -> None:
    if found is None or truth is None:
        assert found is truth, sql
        return
    rows, others = sorted(found, key=sort_key), sorted(truth, key=sort_key)
    if len(rows) < len(others):
        event("fewer public groups")  # more is known of which there are; those that are not listed are empty
        others = [other for other in others if any(are_same(row, other) for row in rows)]
    if OPEN.search(sql):
        event("open")
        return
    assert len(rows) == len(others) and all(map(are_same, rows, others)), f"{sql}: {rows} is not {others}"


def are_same(row: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return all(is_same(a, b, 1e-9) for a, b in zip(row, other, strict=True))
