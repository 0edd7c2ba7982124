"""The bounded SQL of some sixty shapes, side by side with the query, so that a change of it is seen in review.

DPSQL_UPDATE_FIXTURES=1 pytest tests/compiler/test_rewrite.py writes tests/fixtures/rewrite*.sql anew.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.policy import load_policy
from dpsql.policy.engines import DUCKDB, POSTGRES, SPARK, EngineKind
from tests.compiler.plans import Planner
from tests.fixtures.load import HERE, Case, load, parse

FIXTURES = {DUCKDB: "rewrite.sql", POSTGRES: "rewrite_postgres.sql", SPARK: "rewrite_spark.sql"}
CASES = [(engine, case) for engine, fixture in FIXTURES.items() for case in load(fixture)]
Planners = dict[EngineKind, Planner]
Updates = dict[tuple[EngineKind, str], str]
_CLAUSE = re.compile(r"(?<=\)), (?=\w+ AS (?:NOT MATERIALIZED )?\()|(?<=\)) (?=SELECT )")


@pytest.fixture(scope="module")
def planners(clinic_policy: Path) -> Planners:
    policy = load_policy(clinic_policy)
    return {engine: Planner(policy, engine) for engine in FIXTURES}


def written(query: CompiledQuery) -> str:
    """Engine SQL as the fixture holds it: a line a step, then what it is noised for."""
    texts = []
    for release in query.releases:
        bounds = release.contribution
        kept = "all groups" if not release.private_keys else "groups that enough units are in"
        noised = ", ".join(f"p{i} [{p.primitive.lower}, {p.primitive.upper}]" for i, p in enumerate(release.primitives))
        texts.append(_CLAUSE.sub(lambda match: match.group(0).rstrip() + "\n", release.sql))
        texts.append(
            f"{bounds.groups_per_unit} x {bounds.rows_per_group}{' by schema' if bounds.one_row else ''}; "
            f"{kept if bounds.grouped else 'one group'}; {noised or 'no cells'}"
        )
    return "\n".join(texts)


def settings(case: Case) -> dict[str, str]:
    return dict(part.split(" = ") for part in case.marks.get("set", "").split(", ") if part)


@pytest.fixture(scope="module")
def updates() -> Iterator[Updates]:
    """SQL by query, written into the fixtures at the end."""
    found: Updates = {}
    yield found
    for engine in {engine for engine, _ in found}:
        path = HERE / FIXTURES[engine]
        known = {sql: text for (other, sql), text in found.items() if other is engine}
        blocks = [_updated(block.strip("\n"), known) for block in path.read_text(encoding="utf-8").split("\n\n")]
        path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def _updated(block: str, found: dict[str, str]) -> str:
    head = block.split("\n-- engine:")[0]
    sql = "".join(case.sql for case in parse(head))
    return f"{head}\n-- engine: {found[sql].replace(chr(10), chr(10) + '--   ')}" if sql else head


@pytest.mark.parametrize(("engine", "case"), CASES, ids=str)
def test_rewrite(engine: EngineKind, case: Case, planners: Planners, updates: Updates) -> None:
    text = written(planners[engine].compile(case.sql, **settings(case)))
    if "DPSQL_UPDATE_FIXTURES" in os.environ:
        updates[engine, case.sql] = text
    else:
        assert text == case.marks["engine"]


def test_equal_queries_have_equal_sql(planners: Planners) -> None:
    for engine, case in CASES:
        one, two = (planners[engine].compile(case.sql, **settings(case)) for _ in range(2))
        assert [release.key for release in one.releases] == [release.key for release in two.releases]
