"""Rows that are made of constants alone are not multiplied without end."""

from pathlib import Path

import pytest

from dpsql.errors import LimitExceeded
from dpsql.policy import load_policy
from tests.compiler.plans import Planner

THOUSAND = "generate_series(1, 1000)"
MORE = "generate_series(1, 1001)"


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM {a} AS a, {b} AS b",
        "SELECT COUNT(*) FROM patients, {a} AS a, {b} AS b",
        "SELECT COUNT(*) FROM {a} AS a (n) JOIN patients ON n = age JOIN {b} AS b (m) ON m = age",
        "SELECT COUNT(*) FROM {a} AS a (n) LEFT JOIN {b} AS b (n) USING (n)",
        "SELECT COUNT(*) FROM (SELECT n FROM {a} AS a (n) WHERE n > 5 GROUP BY n) AS t, "
        "(SELECT * FROM {b} AS b LIMIT 9) AS u",
        "SELECT COUNT(*) FROM {a} AS a, (SELECT * FROM generate_series(1, 500) AS b UNION ALL SELECT * FROM "
        "generate_series(500, {last}) AS c) AS u",
        "WITH r AS (SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex) SELECT * FROM r, {a} AS a, {b} AS b",
    ],
)
def test_a_million_rows_may_be_made_and_no_more(planner: Planner, sql: str) -> None:
    planner.compile(sql.format(a=THOUSAND, b=THOUSAND, last=999))
    with pytest.raises(LimitExceeded, match="more than 1,000,000 rows") as refused:
        planner.compile(sql.format(a=THOUSAND, b=MORE, last=1000))
    assert refused.value.hint and refused.value.position


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM {a} AS a, (SELECT SUM(n) FROM {a} AS b (n)) AS t, (SELECT MAX(n) FROM {a} AS c (n)) AS u",
        "SELECT COUNT(*) FROM {a} AS a LEFT JOIN generate_series(5, 4) AS b ON TRUE JOIN {a} AS c ON TRUE",
        "SELECT COUNT(*) FROM {a} AS a, {a} AS b, (VALUES (1)) AS v (x), icd10, doctors",
        "SELECT 1 WHERE 1 IN (SELECT n FROM {a} AS a (n))",
    ],
)
def test_what_makes_no_more_than_that_is_answered(planner: Planner, sql: str) -> None:
    planner.compile(sql.format(a=THOUSAND))
