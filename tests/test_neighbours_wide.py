"""The heart, for wide totals: one unit moves them by no more than was claimed, either."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given

from dpsql.backends import ExactCells
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedRelease
from dpsql.compiler.scope.settings import QuerySettings
from tests.engines import Host
from tests.examples import profile
from tests.strategies.data import REPLACEMENTS, Database, Row, databases
from tests.strategies.distance import TooFar, assert_neighbours
from tests.strategies.world import Survey
from tests.test_neighbours import ASKED, ORDERS, UNIT, Order, accepted, cases, greedy, is_replaced, leaves


def counting(opened: Survey) -> Survey:
    """The survey with half of each price for wide totals."""
    role = opened.catalog.role
    opened.catalog = replace(opened.catalog, role=replace(role, query=replace(role.query, wide_share=Fraction(1, 2))))
    return opened


@pytest.fixture(scope="module")
def each_counting(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    with host.survey(tmp_path_factory.mktemp("survey"), "add_remove") as opened:
        yield counting(opened)


@pytest.fixture(scope="module")
def each_substituted(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    with host.survey(tmp_path_factory.mktemp("survey"), "substitute") as opened:
        yield counting(opened)


def totals(planned: list[PlannedRelease]) -> list[PlannedRelease]:
    """Those that may be totals, without groups, or that tell where units are of whose rows some are left out."""
    several = [each for each in planned if not each.contribution.one_row]
    return [each for each in several if not each.keys or any(cell.primitive.sampled for cell in each.primitives)]


@profile(8)
@given(database=databases(), unit=UNIT, asked=ASKED, order=ORDERS)
def test_a_unit_that_leaves(
    each_counting: Survey, database: Database, unit: int, asked: list[tuple[str, QuerySettings]], order: Order
) -> None:
    leaves(each_counting, totals(accepted(each_counting, asked)), database, unit, order)


@profile(8)
@given(database=databases(), unit=UNIT, others=REPLACEMENTS, asked=ASKED)
def test_a_unit_that_another_replaces(
    each_substituted: Survey,
    database: Database,
    unit: int,
    others: tuple[Row, ...],
    asked: list[tuple[str, QuerySettings]],
) -> None:
    planned = totals(accepted(each_substituted, asked))
    is_replaced(each_substituted, planned, database, database.replaced(unit, others))


FEW = (
    *("ROW_NUMBER() OVER (PARTITION BY pid", "RANK() OVER (PARTITION BY pid", "LIMIT 3", "v.c = p.age"),
    *("(n, flag) IN", "OVERLAPS", "GROUP BY p.pid", "DISTINCT ON (visit_id)"),
)
"""In the cases that say this, the greedy unit has no more than half as many rows as a wide total counts."""


def doubled(side: ExactCells, place: int) -> ExactCells:
    return replace(side, cells=tuple(2 * cell if place == index else cell for index, cell in enumerate(side.cells)))


def totals_of(query: CompiledQuery) -> list[int]:
    """The places of wide totals of rows: of those of units, and of bounded ones, it may have fewer than half."""
    cells = (query.releases[each.release].primitives[each.cell] for each in query.wide_totals)
    of_rows = [each for each, cell in zip(query.wide_totals, cells, strict=True) if not cell.primitive.counts_units]
    return sorted({each.wide for each in of_rows})


def test_a_greedy_unit(each_counting: Survey) -> None:
    """It moves wide totals by no more than is claimed, and by more than half as much: twice the step is too far."""
    queries = [(sql, each_counting.compile(sql)) for sql in cases(each_counting)]
    asked = [(sql, query.releases[i]) for sql, query in queries for i in totals_of(query)]
    # Files would let it have more rows among people than its one.
    few = FEW if each_counting.catalog.schema.tables["people"].unique_keys else (*FEW, "FROM people")
    moved = 0
    for (sql, release), left, right in zip(asked, *greedy(each_counting, [each for _, each in asked]), strict=True):
        assert_neighbours(release, left, right)
        differing = [i for i, (one, other) in enumerate(zip(left.cells, right.cells, strict=True)) if any(one != other)]
        for place in differing if not any(part in sql for part in few) else ():
            moved += 1
            with pytest.raises(TooFar):
                assert_neighbours(release, doubled(left, place), doubled(right, place))
    assert moved > 45, moved


def test_a_greedy_unit_that_is_sampled(each_counting: Survey) -> None:
    """All rows that count of it are counted as those of such a unit, and no more: twice the step is too far."""
    queries = [each_counting.compile(sql) for sql in cases(each_counting)]
    asked = [query.releases[each.release] for query in queries for each in query.wide_totals if each.sampled]
    moved = 0
    for release, left, right in zip(asked, *greedy(each_counting, asked), strict=True):
        assert_neighbours(release, left, right)
        for place, planned in enumerate(release.primitives):
            if planned.primitive.sampled and is_too_far(release, doubled(left, place), doubled(right, place)):
                moved += 1
    assert moved > 5, (moved, len(asked))


def is_too_far(release: PlannedRelease, left: ExactCells, right: ExactCells) -> bool:
    try:
        assert_neighbours(release, left, right)
    except TooFar:
        return True
    return False
