"""The 22 queries of TPC-H, nobody's rows shown: without noise they are what DuckDB gives, and each has its price.

The data is of scale factor 0.01, and the bounds of policies/tpch.toml cut nothing there. Expressions are rounded to a
grid of a millionth of their range, which is all that may differ. Beside it, the customer with the most lines is taken
away, and no cell may move further than its noise is made for; there, narrow bounds cut much.
"""

import shutil
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpsql.backends import Cancellation, DuckDBBackend, ExactRows
from dpsql.backends.backend import NO_INPUTS, Inputs, Take
from dpsql.compiler.aggregates.total import MeanEstimate
from dpsql.compiler.plan.query_plan import PlannedRelease, PublicRead
from dpsql.errors import Error
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import load_policy
from examples.load_tpch import load as load_tpch
from tests.compiler.test_accepted import is_same
from tests.conftest import ROOT, silent_engine
from tests.engines import Host
from tests.fixtures.load import Case, load
from tests.strategies.distance import assert_neighbours

CASES = load("tpch.sql")
REFUSED = [case for case in CASES if "error" in case.marks]
ANSWERED = [case for case in CASES if case not in REFUSED]
PUBLIC = {2, 11, 16}
"""Queries that touch no customer: they are answered as they are, for nothing."""

WITHIN = 1e-6

NARROW = "SET dpsql.max_rows = 3; SET dpsql.max_groups = 2; SET dpsql.max_rows_per_group = 2"

Row = tuple[Any, ...]


def number(case: Case) -> int:
    return int(case.marks["query"])


def name(case: Case) -> str:
    return f"Q{case.marks['query']}"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpch")
    load_tpch(folder / "tpch.duckdb", 0.01)
    return Path(shutil.copy(ROOT / "policies" / "tpch.toml", folder))


@pytest.fixture(scope="module")
def engine(policy: Path, host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The same tables in each engine."""
    with host.serve(policy.with_suffix(".duckdb")) as url:
        path = tmp_path_factory.mktemp("tpch") / "tpch.toml"
        text = policy.read_text(encoding="utf-8")
        assert 'url = "duckdb:///tpch.duckdb"' in text
        path.write_text(text.replace('url = "duckdb:///tpch.duckdb"', f'url = "{url}"\nschema = "main"'), "utf-8")
        with silent_engine(path, path.parent) as opened:
            yield opened


class BothSides(DuckDBBackend):
    """A database and its neighbour: whatever is read of one is read of the other, and compared."""

    def __init__(self, path: Path, policy: Path, neighbour: Path) -> None:
        super().__init__(str(path), load_policy(policy))
        self.neighbour = DuckDBBackend(str(neighbour), load_policy(policy))

    def fetch(
        self,
        releases: Mapping[int, PlannedRelease],
        public: tuple[PublicRead, ...],
        cancellation: Cancellation,
        inputs: Inputs = NO_INPUTS,
        take: Take | None = None,
        share: MemoryShare | None = None,
    ) -> ExactRows:
        here = super().fetch(releases, public, cancellation, inputs, share=share)
        there = self.neighbour.fetch(releases, (), cancellation, inputs)
        for index, planned in releases.items():
            assert_neighbours(planned, here.releases[index], there.releases[index])
            if take is not None:
                take(index, here.releases[index])
        return here

    def close(self) -> None:
        super().close()
        self.neighbour.close()


@pytest.fixture(scope="module")
def neighbours(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that also reads the database without the customer who has the most lines."""
    folder = tmp_path_factory.mktemp("neighbours")
    here = folder / "here.duckdb"
    there = folder / "there.duckdb"
    for copy in (here, there):
        shutil.copy(policy.with_suffix(".duckdb"), copy)
    with duckdb.connect(str(there)) as connection:
        connection.execute(
            "SET VARIABLE leaver = (SELECT o_custkey FROM orders JOIN lineitem ON l_orderkey = o_orderkey "
            "GROUP BY o_custkey ORDER BY COUNT(*) DESC, o_custkey LIMIT 1)"
        )
        their = "(SELECT o_orderkey FROM orders WHERE o_custkey = getvariable('leaver'))"
        connection.execute(f"DELETE FROM lineitem WHERE l_orderkey IN {their}")
        connection.execute("DELETE FROM orders WHERE o_custkey = getvariable('leaver')")
        connection.execute("DELETE FROM customer WHERE c_custkey = getvariable('leaver')")
    backend = BothSides(here, policy, there)
    with silent_engine(policy, folder, backend) as opened:
        yield opened


@pytest.fixture(scope="module")
def truth(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    # A copy: DuckDB opens a file once in a process, or always with the same configuration.
    copy = shutil.copy(policy.with_suffix(".duckdb"), tmp_path_factory.mktemp("truth"))
    with duckdb.connect(copy, read_only=True) as connection:
        yield connection


def ask(engine: Engine, sql: str, user: str = "ana") -> Result:
    """The result of the last statement."""
    session = Session(engine, user)
    return [session.execute(statement) for statement in session.parse(sql)][-1]


def test_all_22_are_there() -> None:
    noisy = {number(case) for case in CASES if "noise" in case.marks}
    assert sorted(number(case) for case in ANSWERED if "noise" not in case.marks) == list(range(1, 23))
    assert {number(case) for case in ANSWERED if "adapted" in case.marks} == {*map(number, REFUSED), *noisy}
    assert {mark for case in CASES for mark in case.marks} <= {
        "query", "adapted", "error", "keys", "noise", "raw", "within", "settings",
    }  # fmt: skip


@pytest.mark.parametrize("case", ANSWERED, ids=name)
def test_the_bounded_answer_is_the_true_one(case: Case, engine: Engine, truth: duckdb.DuckDBPyConnection) -> None:
    result = ask(engine, case.sql)
    expected = truth.execute(case.marks.get("raw", case.sql)).fetchall()
    keys = int(case.marks.get("keys", "0"))
    found = without_empty_groups(result, {row[:keys] for row in expected}, keys) if keys else list(result.rows)
    within = float(case.marks.get("within", WITHIN))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert all(is_same(a, b, within) for a, b in zip(mine, theirs, strict=True)), f"{mine} is not {theirs}"


def without_empty_groups(result: Result, groups: set[Row], keys: int) -> list[Row]:
    """The rows of groups that have anybody in them; the others, which public keys show as well, say nothing."""
    assert result.answer is not None
    columns = result.answer.columns[keys:]
    found = []
    for row in result.rows:
        if row[:keys] in groups:
            found.append(row)
            continue
        for value, column in zip(row[keys:], columns, strict=True):
            is_mean = column.error is not None and isinstance(column.error.estimate, MeanEstimate)
            assert is_mean or not value, f"nobody is in {row[:keys]}"
    return found


@pytest.mark.parametrize("user, bounds", [("ana", "RESET dpsql.max_rows"), ("ben", NARROW)], ids=["policy", "narrow"])
@pytest.mark.parametrize("case", [case for case in CASES if case not in REFUSED], ids=name)
def test_one_customer_moves_no_cell_too_far(case: Case, user: str, bounds: str, neighbours: Engine) -> None:
    ask(neighbours, f"{bounds}; {case.sql}", user)


@pytest.mark.parametrize("case", ANSWERED, ids=name)
def test_each_has_its_price(case: Case, engine: Engine) -> None:
    session = Session(engine, "ana")
    (statement,) = session.parse(case.sql)
    query = session.explain(statement).query
    if number(case) in PUBLIC:
        assert query.price is None
    else:
        assert query.price is not None
        assert query.price.epsilon == Fraction(1, 2)
    # With private keys small groups would be missing, which an answer without noise does not show.
    assert not any(planned.private_keys for planned in query.releases)


@pytest.mark.parametrize("case", REFUSED, ids=name)
def test_persons_rows_are_refused(case: Case, engine: Engine) -> None:
    code, says = case.marks["error"].split(" | says: ")
    paid = len(engine.ledger.history("ana"))
    with pytest.raises(Error) as caught:
        ask(engine, case.sql)
    assert caught.value.sqlstate == code
    assert says in f"{caught.value.message}\n{caught.value.detail}\n{caught.value.hint}"
    assert caught.value.hint
    assert len(engine.ledger.history("ana")) == paid


def test_the_page_says_how_each_runs() -> None:
    page = (ROOT / "docs" / "tpch.md").read_text(encoding="utf-8")
    for case in ANSWERED:
        if "noise" in case.marks:
            assert f"\n| {case.marks['query']} | answered, {case.marks['noise']} | " in page
            continue
        how = case.marks.get("adapted", "as it is")
        assert f"\n| {case.marks['query']} | {how} | {case.marks.get('settings', '')} | " in page
    for case in REFUSED:
        assert f"\n| {case.marks['query']} | refused, {case.marks['error'][:5]} | " in page
