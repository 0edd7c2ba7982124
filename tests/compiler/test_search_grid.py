"""Cells of the search grid: each value lies within the limits of its own cell, on each engine."""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.render import Renderer
from dpsql.compiler.ir.nodes import Cast, Column, Expr, Field, Literal, Project, Values
from dpsql.compiler.ir.schema import EngineSchema
from dpsql.compiler.plan.suggestion import Magnitudes, Months, search_grid
from dpsql.policy import Bound, load_policy
from dpsql.policy.engines import ENGINES, EngineKind
from dpsql.sqltypes import SqlType
from tests.engines import HOSTS, Host, Run
from tests.examples import profile

NUMBERS: dict[SqlType, list[Any]] = {
    SqlType.SMALLINT: [0, 1, 2, 3, 7, 8, 9, -1, -2, 1023, 1024, 1025, 32767, -32768],
    SqlType.INTEGER: [0, 1, 5, 100, 65535, 65536, 65537, 2**31 - 1, -(2**31), -65536],
    SqlType.BIGINT: [0, 1, 2**40 - 1, 2**40, 2**40 + 1, 2**53 + 1, 2**63 - 1, -(2**63)],
    SqlType.DOUBLE: [0.0, 0.5, 1.0, -0.1, 1e-300, -5e-324, 1e300, -1.7976931348623157e308, 3.0, 96.5],
    SqlType.NUMERIC: [Decimal(text) for text in ("0", "0.01", "-0.0001", "5000", "99999999.99", "-12.5")],
}
DAYS = [date(1, 1, 1), date(1, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(9998, 12, 31), date(9999, 12, 31)]


def cells_of(policy: Any, engine: EngineKind, sql_type: SqlType, values: list[Any], run: Run) -> list[int | None]:
    """The cells that an engine computes of some values."""
    grid = search_grid(sql_type, "UTC")
    assert grid is not None
    source, cell = Field(1, sql_type), Field(2, SqlType.INTEGER)
    found: list[int | None] = []
    for value in values:
        rows = Values((source,), ((Literal(value, sql_type),),))
        project = Project(rows, (cell,), (Cast(grid.cell(_column(source)), SqlType.INTEGER),))
        sql = Renderer(DIALECTS[engine], EngineSchema(engine, {}), policy).relation(project, frozenset({cell}))
        found.append(run(sql)[0][0])
    return found


def _column(field: Field) -> Expr:
    return Column(field)


@pytest.fixture(params=HOSTS)
def engine(request: pytest.FixtureRequest, hosts: Mapping[str, Host]) -> Iterator[tuple[EngineKind, Run]]:
    with hosts[request.param].session() as run:
        yield ENGINES[request.param], run


@pytest.mark.parametrize("sql_type", NUMBERS)
def test_numbers_lie_within_their_cells(engine: tuple[EngineKind, Run], sql_type: SqlType, clinic_policy: Any) -> None:
    values = NUMBERS[sql_type]
    grid = Magnitudes(sql_type)
    cells = cells_of(load_policy(clinic_policy), engine[0], sql_type, values, engine[1])
    for value, cell in zip(values, cells, strict=True):
        assert cell is not None
        if abs(value) < 2**62:  # beyond, the limits are those of the type
            assert grid.lower(cell) <= Fraction(value) <= grid.upper(cell), value
    assert [cell for _, cell in sorted(zip(values, cells, strict=True))] == sorted(
        each for each in cells if each is not None
    )


def test_null_has_no_cell(engine: tuple[EngineKind, Run], clinic_policy: Any) -> None:
    policy = load_policy(clinic_policy)
    for sql_type in (*NUMBERS, SqlType.DATE, SqlType.TIMESTAMP):
        assert cells_of(policy, engine[0], sql_type, [None], engine[1]) == [None]


def test_days_lie_within_their_months(engine: tuple[EngineKind, Run], clinic_policy: Any) -> None:
    grid = Months(SqlType.DATE, "UTC")
    cells = cells_of(load_policy(clinic_policy), engine[0], SqlType.DATE, DAYS, engine[1])
    for day, cell in zip(DAYS, cells, strict=True):
        assert cell is not None
        if 1 < day.year < 9999:
            assert grid.lower(cell) == day.replace(day=1)
            upper = grid.upper(cell)
            assert isinstance(upper, date)
            assert day <= upper
            assert (upper.year, upper.month) == (day.year, day.month)
        assert _kind(grid.lower(cell)) is _kind(grid.upper(cell)) is date


def test_timestamps_are_cut_at_the_last_microsecond() -> None:
    cell = 2024 * 12 + 2
    naive = Months(SqlType.TIMESTAMP, "Europe/Berlin")
    assert (naive.lower(cell), naive.upper(cell)) == (
        datetime(2024, 2, 1),
        datetime(2024, 2, 29, 23, 59, 59, 999_999),
    )
    zoned = Months(SqlType.TIMESTAMPTZ, "Europe/Berlin")
    assert zoned.lower(cell) == datetime(2024, 1, 31, 23, tzinfo=UTC)
    assert zoned.upper(cell) == datetime(2024, 2, 29, 22, 59, 59, 999_999, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Midway"])
@pytest.mark.parametrize("cell", [0, 13, 25, 9998 * 12 + 12, 9999 * 12 + 12, 120_000])
def test_every_month_has_limits(cell: int, zone: str) -> None:
    for sql_type in (SqlType.DATE, SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ):
        grid = Months(sql_type, zone)
        assert grid.lower(cell) <= grid.upper(cell)  # type: ignore[operator]  # both are of one type


def _kind(bound: Bound) -> type:
    return type(bound)


@profile(200)
@given(st.sampled_from([*NUMBERS, SqlType.REAL]), st.integers(-10_000, 10_000))
def test_limits_of_cells_are_in_order(sql_type: SqlType, cell: int) -> None:
    grid = Magnitudes(sql_type)
    most = grid._cells
    cell = max(-most, min(most, cell))
    assert grid.lower(cell) <= grid.upper(cell)
    assert abs(grid.lower(-cell) + grid.upper(cell)) <= 1
    if cell < most:
        assert grid.upper(cell) <= grid.upper(cell + 1)
        assert grid.lower(cell + 1) <= grid.upper(cell) + 1
    if sql_type.is_integer:
        assert grid.upper(cell).denominator == grid.lower(cell).denominator == 1


@pytest.mark.parametrize("sql_type", [SqlType.TEXT, SqlType.UUID, SqlType.TIME, SqlType.BOOLEAN])
def test_other_types_have_no_grid(sql_type: SqlType) -> None:
    assert search_grid(sql_type, "UTC") is None
