"""Arithmetic of constant intervals is done when a query is compiled: one release, whichever way they are written."""

from pathlib import Path

import pytest

from dpsql.policy import load_policy
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


def key(planner: Planner, interval: str) -> str:
    sql = f"SELECT COUNT(*) FROM visits WHERE visited_on + {interval} < DATE '2024-01-01'"
    (release,) = planner.compile(sql).releases
    return release.key


@pytest.mark.parametrize(
    "interval",
    [
        "INTERVAL '1 day' * 2",
        "2 * INTERVAL '1 day'",
        "INTERVAL '1 day' * 2.0",
        "INTERVAL '4 days' / 2",
        "INTERVAL '1 day' / 0.5",
        "(INTERVAL '1 day' + INTERVAL '1 day')",
        "(INTERVAL '1 month 3 days' - INTERVAL '1 month 1 day')",
        "(-INTERVAL '-2 days')",
    ],
)
def test_what_is_two_days_is_one_release(planner: Planner, interval: str) -> None:
    assert key(planner, interval) == key(planner, "INTERVAL '2 days'")


@pytest.mark.parametrize(
    ("interval", "value"),
    [
        ("INTERVAL '1 day' * 1.5", "INTERVAL '1 day 12 hours'"),
        ("INTERVAL '1 day' / 2", "INTERVAL '12 hours'"),
        ("INTERVAL '1 day' * 0", "INTERVAL '0'"),
        ("INTERVAL '1 day' / 0", "INTERVAL '0'"),
        ("INTERVAL '900 years' * 2", "INTERVAL '1800 years'"),
        ("INTERVAL '1800 years' / 2", "INTERVAL '900 years'"),
    ],
)
def test_what_is_carried_over_or_beyond_a_range_is_left_to_the_engine(
    planner: Planner, interval: str, value: str
) -> None:
    assert key(planner, interval) != key(planner, value)


@pytest.mark.parametrize("factor", ["duration_min", "NULL"])
def test_what_is_no_constant_is_left_to_the_engine(planner: Planner, factor: str) -> None:
    sql = f"SELECT COUNT(*) FROM visits WHERE visited_on + INTERVAL '1 day' * {factor} < DATE '2024-01-01'"
    (release,) = planner.compile(sql).releases
    assert "AS INTERVAL) * " in release.sql


def test_what_is_not_known_yet_is_described(planner: Planner) -> None:
    sql = "SELECT COUNT(*) FROM visits WHERE visited_on + INTERVAL '1 day' * $1 < DATE '2024-01-01'"
    assert planner.describe(sql).parameters == (SqlType.DOUBLE,)


def test_a_width_may_be_computed(planner: Planner) -> None:
    sql = "SELECT DATE_BIN({}, visited_on, TIMESTAMP '2021-01-01') AS week, COUNT(*) FROM visits GROUP BY 1"
    computed, written = (planner.compile(sql.format(width)) for width in ("INTERVAL '1 day' * 7", "'7 days'"))
    assert computed.releases[0].key == written.releases[0].key
