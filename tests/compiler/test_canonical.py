"""Equal questions have one key, unlike ones have not; and the form that is keyed costs no more than what is written."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from itertools import combinations
from pathlib import Path

import pytest

from dpsql.compiler.canonical.releases import Canonical
from dpsql.compiler.ir.nodes import Release
from dpsql.compiler.plan import compile as planning
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.scope.lowering import Fields
from dpsql.errors import Error
from dpsql.policy import load_policy
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner
from tests.fixtures.load import HERE, load

ROOT = Path(__file__).parent.parent.parent


def blocks(name: str) -> list[list[str]]:
    """The queries of a fixture, a list for each block, a query for each line."""
    text = (HERE / name).read_text(encoding="utf-8")
    lines = [
        [line for line in block.splitlines() if line and not line.startswith("--")] for block in text.split("\n\n")
    ]
    return [block for block in lines if block]


ALIKE, UNLIKE = blocks("alike.sql"), blocks("unlike.sql")


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


@pytest.fixture(scope="module")
def wide(wide_policy: Path) -> Planner:
    return Planner(load_policy(wide_policy))


def keys(planner: Planner, sql: str, **settings: str) -> list[str]:
    return sorted(release.key for release in planner.compile(sql, **settings).releases)


@pytest.mark.parametrize(
    ("first", "other"), [(block[0], other) for block in ALIKE for other in block[1:]], ids=lambda sql: sql[:80]
)
def test_alike(planner: Planner, first: str, other: str) -> None:
    assert keys(planner, other) == keys(planner, first)


@pytest.mark.parametrize("block", UNLIKE, ids=lambda block: block[0][:80])
def test_unlike(planner: Planner, block: list[str]) -> None:
    found = [(sql, planner.compile(sql).releases[-1].key) for sql in block]
    assert not [(one, other) for (one, a), (other, b) in combinations(found, 2) if a == b]


def test_blocks_are_unlike_one_another(planner: Planner) -> None:
    firsts = {block[0]: planner.compile(block[0]).releases[-1].key for block in ALIKE}
    assert len(set(firsts.values())) == len(firsts)


def test_a_value_is_what_is_written_for_it(planner: Planner) -> None:
    written = keys(planner, "SELECT COUNT(*) FROM patients WHERE age > 5 AND weight < 70.5 AND city = 'a'")
    sql = "SELECT COUNT(*) FROM patients WHERE city = $3 AND $2 > weight AND age > $1"
    for values, types in (
        ([5, 70.5, "a"], [SqlType.SMALLINT, SqlType.DOUBLE, SqlType.TEXT]),
        ([5, 70.5, "a"], [None, None, None]),
        (["5", "70.50", "a"], [None, None, SqlType.VARCHAR]),
    ):
        assert [release.key for release in planner.bind(sql, values, types).releases] == written


def test_a_moment_is_an_instant(planner: Planner) -> None:
    sql = "SELECT COUNT(*) FROM visits WHERE visited_on < $1"
    east, first = timezone(timedelta(hours=5)), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
    values = [datetime(2024, 1, 1, 5, tzinfo=east), "2024-01-01 00:00:00+00", datetime(2024, 1, 1, tzinfo=UTC)]
    found = {planner.bind(sql, [value], [SqlType.TIMESTAMPTZ]).releases[0].key for value in values}
    assert len(found) == 1
    assert planner.bind(sql, [first], [None]).releases[0].key not in found  # UTC has no such year


@pytest.mark.parametrize(
    "change", [{"epsilon": "0.2"}, {"delta": "1e-10"}, {"mechanism": "gaussian"}, {"max_groups": "2"}]
)
def test_settings_are_part_of_the_question(planner: Planner, change: dict[str, str]) -> None:
    sql = "SELECT city, COUNT(*) FROM visits GROUP BY city"
    assert keys(planner, sql, mechanism="laplace") != keys(planner, sql, **({"mechanism": "laplace"} | change))


def test_what_changes_nothing_is_not(planner: Planner) -> None:
    sql = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"
    assert keys(planner, sql) == keys(planner, sql, max_groups="4", intervals="on", notices="off", reuse="off")


PRINT_KEYS = """
import sys
from pathlib import Path
from dpsql.policy import load_policy
from tests.compiler.plans import Planner
from tests.compiler.test_canonical import ALIKE, keys
planner = Planner(load_policy(Path(sys.argv[1])))
print([keys(planner, block[0]) for block in ALIKE])
"""


def test_keys_are_the_same_in_every_process(clinic_policy: Path) -> None:
    found = set()
    for seed in ("1", "2"):
        command = [sys.executable, "-W", "ignore", "-c", PRINT_KEYS, str(clinic_policy)]
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=ROOT)
        found.add(done.stdout.splitlines()[0])
    assert len(found) == 1


# Against what is written


class AsWritten:
    """Leaves releases as they are."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields

    def release(self, release: Release) -> Release:
        return release


class Twice(AsWritten):
    """Forms releases, and forms the form again."""

    def release(self, release: Release) -> Release:
        return Canonical(self.fields).release(Canonical(self.fields).release(release))


def compiled(planner: Planner, sql: str, canonical: type | None = None) -> CompiledQuery | Error:
    """A plan, under another canonical form perhaps, or the refusal."""
    with pytest.MonkeyPatch.context() as patch:
        if canonical is not None:
            patch.setattr(planning, "Canonical", canonical)
        try:
            return planner.compile(sql)
        except Error as error:
            return error


def test_the_form_is_its_own_form_and_costs_no_more(wide: Planner, planner: Planner) -> None:
    checked = 0
    for each, name in ((wide, "accepted.sql"), (planner, "rewrite.sql")):
        for case in load(name):
            formed, written = compiled(each, case.sql), compiled(each, case.sql, AsWritten)
            if isinstance(written, Error):
                assert repr(formed) == repr(written)
                continue
            again = compiled(each, case.sql, Twice)
            assert isinstance(formed, CompiledQuery), case.sql
            assert isinstance(again, CompiledQuery), case.sql
            assert [release.sql for release in again.releases] == [release.sql for release in formed.releases]
            assert_no_worse(formed, written)
            checked += len(formed.releases)
    assert checked > 400


def assert_no_worse(formed: CompiledQuery, written: CompiledQuery) -> None:
    """No more noisy primitives, groups or private keys; and no primitive that is wider than as written."""
    assert len(formed.releases) <= len(written.releases), written.sql
    primitives = [
        [primitive for release in query.releases for primitive in release.primitives] for query in (formed, written)
    ]
    assert len(primitives[0]) <= len(primitives[1]), written.sql
    if len(formed.releases) == len(written.releases) and len(primitives[0]) == len(primitives[1]):
        for mine, theirs in zip(formed.releases, written.releases, strict=True):
            assert mine.private_keys <= theirs.private_keys, written.sql
            assert mine.contribution.groups_per_unit <= theirs.contribution.groups_per_unit, written.sql
        widths = [
            sorted(
                planned.primitive.grid.step * planned.noise.sensitivity.linf
                for planned in each
                if planned.primitive.grid
            )
            for each in primitives
        ]
        assert all(mine <= theirs for mine, theirs in zip(*widths, strict=True)), written.sql


# What is left as it is


def test_a_large_column_is_computed_once(planner: Planner) -> None:
    """Written wherever it is named it would double at each level."""
    inner = "SELECT age AS x0, patient_id FROM patients"
    for level in range(1, 20):
        inner = f"SELECT x{level - 1} + x{level - 1} AS x{level}, patient_id FROM ({inner}) AS t"
    (release,) = planner.compile(f"SELECT COUNT(*) FROM ({inner}) AS t WHERE x19 > 5").releases
    assert len(release.sql) < 10_000


def test_relations_of_one_label_stay_as_they_are_written(planner: Planner) -> None:
    """Twenty that nothing tells apart: some order is taken, in time."""
    tables = ", ".join(f"visits v{n}" for n in range(20))
    equal = " AND ".join(f"v{n}.patient_id = v{n + 1}.patient_id" for n in range(19))
    (release,) = planner.compile(f"SELECT COUNT(*) FROM {tables} WHERE {equal}").releases
    assert release.sql.count('"main"."visits"') == 20
