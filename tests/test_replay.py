"""Record and replay: with the outputs of the mechanisms frozen, neighbours give the same transcript, byte for byte.

What is left to differ is everything that no charge covers: errors, the order of rows, row counts, tags, types,
notices, EXPLAIN and Describe. Frozen cells depend on the release, the group and the column, and on nothing in the rows.
Of private groups those are shown that both neighbours have: one that only one of them has is what δ is for.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.backends import ExactCells
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.errors import Error
from dpsql.gateway import reading
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.release import ReleasedCells, release
from dpsql.gateway.session import Session
from dpsql.ledger import open_ledger
from dpsql.policy import Policy
from dpsql.policy.profile import Profile
from tests.conftest import silence_noise
from tests.engines import Host
from tests.examples import profile as drawing
from tests.strategies.data import UNITS, Database, Row, databases
from tests.strategies.profiles import frozen_profile
from tests.strategies.world import Rows, Survey
from tests.strategies.writer import queries

Key = tuple[str | None, ...]
Groups = dict[str, set[Key]]
"""By release, the groups that an engine found."""

Release = Callable[[PlannedRelease, ExactCells], ReleasedCells]

SCRIPT = (
    "SELECT COUNT(*) FROM people",
    "SELECT sex, COUNT(*), AVG(age) FROM people GROUP BY sex",
    "SELECT city, COUNT(*) FROM people GROUP BY city ORDER BY 2 DESC, 1 LIMIT 3",
    "SELECT note, flag, SUM(cost) FROM visits GROUP BY note, flag",
    "SELECT sex, member, COUNT(*), SUM(debt) FROM people WHERE sex IN ('F', 'M', 'X') AND member GROUP BY CUBE (1, 2)",
    "SELECT flag, COUNT(*), SUM(cost) FROM visits GROUP BY ROLLUP (1)",
    "SELECT DISTINCT note FROM visits",
    "SELECT kind, flag, COUNT(*), SUM(cost) FROM visits GROUP BY kind, flag",
    "SET dpsql.max_error_ratio = 100",
    "EXPLAIN SELECT kind, SUM(cost) FROM visits GROUP BY kind",
    "SELECT kind, SUM(cost), COUNT(*) FROM visits GROUP BY kind ORDER BY 2, 1",  # derived of the release before
    "RESET dpsql.max_error_ratio",
    "EXPLAIN (VERBOSE) SELECT flag, COUNT(*) FROM visits WHERE kind = 1 GROUP BY flag",
    "SELECT flag, COUNT(*) FROM visits WHERE kind = 1 GROUP BY flag",  # combined with the release before
    "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
    "EXPLAIN (WORKLOAD) SELECT SUM(debt) FROM people WHERE sex = 'F'; SELECT SUM(debt) FROM people WHERE sex = 'M'",
    "SELECT SUM(debt) FROM people WHERE sex = 'F'; SELECT SUM(debt) FROM people WHERE sex = 'M'; SELECT 1 / 0",
    "SET dpsql.consistent = on",
    "SELECT flag, COUNT(*) FROM visits WHERE kind = 1 GROUP BY flag; SELECT kind, COUNT(*) FROM visits GROUP BY kind",
    "SELECT sex, COUNT(*), AVG(age) FROM people GROUP BY sex",
    "RESET dpsql.consistent",
    "SELECT kind FROM visits GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 3",
    "EXPLAIN SELECT kind FROM visits GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 3",
    "SELECT flag, MODE() WITHIN GROUP (ORDER BY kind), COUNT(*) FROM visits GROUP BY flag",
    "SELECT PERCENTILE_CONT(ARRAY[0.75, 0.25]) WITHIN GROUP (ORDER BY n) FROM visits",
    "SELECT drug, COUNT(*), SUM(dose) / COUNT(*) FROM lines GROUP BY drug HAVING COUNT(*) > 100",
    "WITH t AS (SELECT day, COUNT(*) AS n FROM visits GROUP BY day) "
    "SELECT k.title, t.n, RANK() OVER (ORDER BY t.n, t.day) "
    "FROM t JOIN kinds k ON k.code = t.n % 6 WHERE t.day IS NOT NULL",
    "SELECT topic, SUM(words) FROM letters GROUP BY topic UNION ALL SELECT 'all', COUNT(*) FROM cards ORDER BY 1, 2",
    "EXPLAIN SELECT note, AVG(cost) FROM visits GROUP BY note",
    "SET dpsql.max_groups = 1",
    "SELECT note, COUNT(*) FROM visits GROUP BY note",
    "SET dpsql.intervals = on",
    "SELECT kind, SUM(n) FROM visits GROUP BY kind",
    "SELECT * FROM kinds ORDER BY code, title",
    "SELECT note FROM visits",
    "SELECT COUNT(*) FROM nowhere",
    "SELECT SUM(nothing) FROM visits",
    "SELECT MAX(n) FROM visits",
    "SELECT CAST(note AS integer), COUNT(*) FROM visits WHERE 1 / n > 0 AND CAST(note AS date) > met GROUP BY 1",
    "SELECT 1 / COUNT(*) FROM cards",
    "SET dpsql.epsilon = 9",
    "SELECT AVG(weight) FROM people WHERE city LIKE '%o%'",
    "SELECT sex, COUNT(*), AVG(age) FROM people GROUP BY sex",  # refines the release at the first price
    "SELECT COUNT(*) FILTER (WHERE CASE WHEN age = 107 THEN 'a' END <> 'b') FROM people",
    "SELECT scope, epsilon_spent, epsilon_remaining, delta_remaining, queries, queries_that_fit FROM dpsql.budget",
    "SELECT * FROM dpsql.columns",
    "SELECT release, query, epsilon, reused FROM dpsql.releases ORDER BY release",
)


@pytest.fixture(scope="module", params=["duckdb", "parquet"])
def survey(
    request: pytest.FixtureRequest, hosts: Mapping[str, Host], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Survey]:
    with hosts[request.param].survey(tmp_path_factory.mktemp("survey"), "add_remove") as opened:
        yield opened


def _keys(cells: ReleasedCells | ExactCells) -> list[Key]:
    return list(zip(*cells.keys, strict=True)) if cells.keys else [()]


def frozen(found: Groups, shown: Groups | None) -> Release:
    """A release in which outputs are frozen; `shown` are the private groups that pass, None for all."""

    def released(planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
        cells = release(planned, exact)
        keys = _keys(cells)
        found.setdefault(planned.key, set()).update(keys)
        rows = [
            index
            for index, key in enumerate(keys)
            if not planned.private_keys or shown is None or key in shown.get(planned.key, set())
        ]
        kept = [keys[index] for index in rows]
        outputs = tuple(
            np.array([output(planned.key, key, column) for key in kept], dtype=np.int64)
            for column in range(len(planned.primitives))
        )
        return ReleasedCells(tuple(key[rows] for key in cells.keys), outputs)

    return released


def output(key: str, group: Key, column: int) -> int:
    """What the mechanism gave, whatever was in the rows."""
    return int.from_bytes(hashlib.sha256(repr((key, group, column)).encode()).digest()[:2], "big") - 1000


def told(session: Session, sql: str) -> Iterator[str]:
    """Everything that a client is told of a statement: what it would return, then what it does."""
    try:
        statements = session.parse(sql)
    except Error as error:
        yield error_text(error)
        return
    for statement in statements:
        for ask in (session.describe, session.execute):
            try:
                answer = ask(statement)
            except Error as error:
                yield error_text(error)
            else:
                yield result_text(answer) if isinstance(answer, Result) else repr(answer)


def result_text(result: Result) -> str:
    shown = (result.tag, result.columns, list(result.rows), result.notices, result.parameters)
    return repr(shown)


def error_text(error: Error) -> str:
    return repr((type(error).__name__, str(error), vars(error)))


def transcript(
    survey: Survey,
    database: Database,
    script: Sequence[str],
    ledger: Path,
    shown: Groups | None,
    profile: Profile | None = None,
    policy: Policy | None = None,
) -> tuple[list[str], Groups]:
    """What ana's client is told, and the groups that the engine found."""
    survey.fill(database.tables())
    opened = open_ledger(f"sqlite:///{ledger}")
    if profile is not None:
        opened.store_profile(survey.catalog.policy, profile.to_json())
    opened.add_account("ana", "analyst")
    engine = Engine(policy or survey.catalog.policy, opened, survey.backend)
    found: Groups = {}
    with pytest.MonkeyPatch.context() as patch:
        silence_noise(patch)
        patch.setattr(reading, "release", frozen(found, shown))
        session = Session(engine, "ana")
        lines = [line for sql in script for line in told(session, sql)]
    opened.close()
    return lines, found


def assert_same_transcripts(
    survey: Survey,
    left: Database,
    right: Database,
    script: Sequence[str],
    folder: Path,
    profile: Profile | None = None,
    policy: Policy | None = None,
) -> list[str]:
    """Both sides tell the same; returns what they tell."""
    _, here = transcript(survey, left, script, folder / "left.sqlite", None, profile, policy)
    _, there = transcript(survey, right, script, folder / "right.sqlite", None, profile, policy)
    shown = {key: groups & there.get(key, set()) for key, groups in here.items()}
    one, _ = transcript(survey, left, script, folder / "one.sqlite", shown, profile, policy)
    other, _ = transcript(survey, right, script, folder / "other.sqlite", shown, profile, policy)
    for mine, yours in zip(one, other, strict=True):
        assert mine == yours
    return one


@drawing(6)
@given(database=databases(), unit=st.sampled_from(range(UNITS)), asked=st.lists(queries(), min_size=3, max_size=6))
def test_neighbours_have_one_transcript(
    survey: Survey,
    tmp_path_factory: pytest.TempPathFactory,
    database: Database,
    unit: int,
    asked: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    together = "; ".join(asked)
    script = [f"EXPLAIN (WORKLOAD) {together}", together, *asked, *(f"EXPLAIN {sql}" for sql in asked)]
    assert_same_transcripts(survey, database.shuffled(1), database.without(unit), script, folder)


@drawing(3)
@given(database=databases(), unit=st.sampled_from(range(UNITS)))
def test_a_session_tells_nothing_but_what_is_released(
    survey: Survey, tmp_path_factory: pytest.TempPathFactory, database: Database, unit: int
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    lines = assert_same_transcripts(survey, database, database.without(unit), SCRIPT, folder)
    assert sum("BackendFailure" in line for line in lines) == 0
    is_of_files = survey.catalog.policy.dataset.url.startswith("parquet")  # without keys, bounds may drop rows
    assert any("Workload: planned together" in line for line in lines) is not is_of_files
    assert any("combined with your release" in line for line in lines)
    assert any("adds up with your releases" in line for line in lines)


VISITS_OF = "SELECT COUNT(*), SUM(n) FROM visits JOIN people USING (pid) WHERE sex = '{}'"


@drawing(3)
@given(database=databases(), unit=st.sampled_from(range(UNITS)))
def test_wide_totals_that_are_bought_together_tell_no_more(
    survey: Survey, tmp_path_factory: pytest.TempPathFactory, database: Database, unit: int
) -> None:
    policy = survey.catalog.policy
    (role,) = policy.roles
    policy = replace(policy, roles=(replace(role, query=replace(role.query, wide_share=Fraction(1, 10))),))
    together = "; ".join(map(VISITS_OF.format, "FMX"))
    script = (f"EXPLAIN (WORKLOAD) {together}", f"{together}; SELECT 1 / 0", "SET dpsql.intervals = on", together)
    folder = tmp_path_factory.mktemp("replay")
    lines = assert_same_transcripts(survey, database, database.without(unit), script, folder, policy=policy)
    is_of_files = policy.dataset.url.startswith("parquet")
    assert any("Workload: planned together" in line for line in lines) is not is_of_files
    assert any("measures how much the bounds drop" in line for line in lines)


@drawing(3)
@given(database=databases(), unit=st.sampled_from(range(UNITS)), asked=st.lists(queries(), min_size=3, max_size=6))
def test_a_profile_that_both_have_tells_no_more(
    survey: Survey, tmp_path_factory: pytest.TempPathFactory, database: Database, unit: int, asked: list[str]
) -> None:
    folder, profile = tmp_path_factory.mktemp("replay"), frozen_profile(survey.catalog.policy)
    script = [*asked, *(f"EXPLAIN {sql}" for sql in asked), "EXPLAIN SELECT COUNT(*) FROM letters", *SCRIPT]
    lines = assert_same_transcripts(survey, database, database.without(unit), script, folder, profile)
    assert any(f"bounds chosen by profile {profile.id}" in line for line in lines)


def some_rows() -> Database:
    tables = ("people", "visits", "cards", "letters", "stays")
    rows = [Row(table, unit, 10 * unit + seed) for table in tables for unit in range(UNITS) for seed in range(9)]
    return Database(tuple(enumerate(rows)))


def test_the_data_may_be_gone(survey: Survey, tmp_path: Path) -> None:
    lines = assert_same_transcripts(survey, some_rows(), Database(()), SCRIPT, tmp_path)
    assert sum(line.startswith("('SELECT") for line in lines) > 12


def present_groups(planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
    """A release that leaves out the public groups in which nobody is."""
    there = exact.units > 0
    return ReleasedCells(tuple(key[there] for key in exact.keys), tuple(cell[there] for cell in exact.cells))


def groups_by_size(planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
    """A release whose rows come in an order that the data makes."""
    order = np.argsort(exact.units, kind="stable")
    return ReleasedCells(tuple(key[order] for key in exact.keys), tuple(cell[order] for cell in exact.cells))


@pytest.mark.parametrize("leaky", [present_groups, groups_by_size])
def test_a_transcript_that_tells_of_rows_is_caught(
    survey: Survey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaky: Release
) -> None:
    monkeypatch.setattr(f"{__name__}.release", leaky)
    script = ["SELECT flag, COUNT(*) FROM visits GROUP BY flag", "SELECT sex, COUNT(*) FROM people GROUP BY sex"]
    with pytest.raises(AssertionError):
        assert_same_transcripts(survey, some_rows(), Database(some_rows().rows[:1]), script, tmp_path)


@pytest.mark.parametrize("survey", ["duckdb"], indirect=True)
def test_an_engine_that_fails_on_some_rows_is_caught(survey: Survey, tmp_path: Path) -> None:
    spoilt = Survey(survey.catalog, survey.backend, survey.memory)
    full = some_rows()

    def fill(rows: Rows, threads: int = 1) -> None:
        survey.fill(rows, threads)
        if len(rows["people"]) < UNITS:
            survey.memory.execute("DROP TABLE people")

    spoilt.fill = fill  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        assert_same_transcripts(spoilt, full, full.without(0), SCRIPT[:1], tmp_path)
