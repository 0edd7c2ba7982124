"""The engine charges before it reads, pays back nothing, and gives again what was given."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpsql.backends import Cancellation, DuckDBBackend, ExactRows, PublicRows
from dpsql.backends.backend import NO_INPUTS, Inputs, Take
from dpsql.compiler.ir.nodes import Values
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedRelease, PublicRead
from dpsql.compiler.sql.parse import parse
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import BackendFailure, BudgetExhausted, PolicyViolation, QueryCanceled
from dpsql.gateway.answers import Answer
from dpsql.gateway.engine import Engine
from dpsql.gateway.explain import explanation_json, explanation_lines
from dpsql.gateway.session import Session
from dpsql.gateway.settings import Reuse, Settings
from dpsql.ledger import BudgetScope, Holder, open_ledger
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from tests.compiler.plans import changed_policy
from tests.compiler.trees import with_sql
from tests.conftest import ROOT, MakeEngine
from tests.waiting import HANG_SECONDS, wait_for

COUNT = "SELECT COUNT(*) FROM patients"
BY_SEX = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"


def compiled(engine: Engine, sql: str, user: str = "ana", **changes: str) -> CompiledQuery:
    (statement,) = parse(sql)
    assert isinstance(statement, QueryStatement)
    settings = Settings(engine.policy, engine.role(user))
    for name, value in changes.items():
        settings.set(f"dpsql.{name}", value)
    return engine.compile(user, statement, settings.query(engine.now(), user))


def run(engine: Engine, sql: str, user: str = "ana", *, reuse: Reuse = Reuse.EXACT, **changes: Any) -> Answer:
    return engine.execute(user, compiled(engine, sql, user, **changes), Cancellation(), reuse=reuse)


def spent(engine: Engine, user: str = "ana") -> Spent:
    return engine.ledger.budget(user, engine.policy).spent


def cap(engine: Engine) -> Spent:
    return engine.ledger.cap(engine.policy).spent


class WatchedBackend(DuckDBBackend):
    """A DuckDB file that counts how often it is read, and fails, or waits, when told to."""

    def __init__(self, policy: Path) -> None:
        loaded = load_policy(policy)
        super().__init__(loaded.dataset.url.partition("://")[2], loaded)
        self.reads = 0
        self.spent_at_read: list[Spent] = []
        self.engine: Engine | None = None
        self.failing = False
        self.failure = "SELECT error('a row: 4711')"
        self.gate: threading.Event | None = None

    def fetch(
        self,
        releases: Mapping[int, PlannedRelease],
        public: tuple[PublicRead, ...],
        cancellation: Cancellation,
        inputs: Inputs = NO_INPUTS,
        take: Take | None = None,
        share: MemoryShare | None = None,
    ) -> ExactRows:
        self.reads += len(releases)
        if self.engine is not None:
            self.spent_at_read.append(spent(self.engine))
        if self.gate is not None:
            assert self.gate.wait(HANG_SECONDS)
        if self.failing:
            return super().fetch({}, (self._bad,), cancellation)
        return super().fetch(releases, public, cancellation, inputs, take, share)

    def stream(self, read: PublicRead, cancellation: Cancellation) -> Generator[PublicRows]:
        return super().stream(self._bad if self.failing else read, cancellation)

    @property
    def _bad(self) -> PublicRead:
        return PublicRead("q0", Values((), ((),)), self.failure, 0)


@pytest.fixture
def backend(clinic_policy: Path) -> Iterator[WatchedBackend]:
    opened = WatchedBackend(clinic_policy)
    yield opened
    opened.close()


@pytest.fixture
def watched(make_engine: MakeEngine, clinic_policy: Path, backend: WatchedBackend) -> Engine:
    engine = make_engine(clinic_policy, backend=backend)
    backend.engine = engine
    return engine


# Charging


def test_the_charge_is_in_the_ledger_before_a_private_row_is_read(watched: Engine, backend: WatchedBackend) -> None:
    answer = run(watched, COUNT)
    assert backend.reads == 1
    assert answer.charge is not None
    assert backend.spent_at_read == [answer.charge.spent]
    assert backend.spent_at_read[0].rho > 0
    assert cap(watched).rho == spent(watched).rho


def test_a_query_costs_its_price(engine: Engine) -> None:
    answer = run(engine, BY_SEX, epsilon="0.5")
    assert answer.query.price is not None
    assert answer.query.price.epsilon == Fraction(1, 2)
    assert Fraction(1, 8) * Fraction(999, 1000) < spent(engine).rho <= Fraction(1, 8) + Fraction(1, 10**20)


def test_compiling_describing_and_explaining_cost_nothing_and_read_nothing(
    watched: Engine, backend: WatchedBackend
) -> None:
    (statement,) = parse("SELECT city, COUNT(*), AVG(age) FROM patients GROUP BY city")
    assert isinstance(statement, QueryStatement)
    watched.describe("ana", statement)
    explanation = watched.explain("ana", compiled(watched, statement.sql), Cancellation())
    assert explanation.spends.rho > 0
    assert any("private keys" in line for line in explanation_lines(explanation))
    told = explanation_json(explanation)
    assert {"price", "remaining", "columns", "engine_sql", "post_sql"} <= set(told)
    assert {"name", "mechanism", "sensitivity", "stderr", "plus_minus_95"} <= set(told["columns"][1])
    json.dumps(told)
    assert backend.reads == 0
    assert spent(watched) == cap(watched) == Spent.zero()
    assert watched.ledger.history() == []


def test_a_query_over_public_tables_is_free(watched: Engine, backend: WatchedBackend) -> None:
    answer = run(watched, "SELECT COUNT(*) FROM doctors")
    assert answer.rows.rows == ((200,),)
    assert answer.charge is None
    assert not answer.reused
    assert backend.reads == 0
    assert watched.ledger.history() == []


def test_what_does_not_fit_is_refused_before_anything_is_read(watched: Engine, backend: WatchedBackend) -> None:
    with pytest.raises(BudgetExhausted) as caught:
        for index in range(100):
            run(watched, f"{COUNT} WHERE age > {index}", epsilon="0.5")
    assert caught.value.requested == Fraction(1, 2)
    assert caught.value.remaining is not None
    assert 0 <= caught.value.remaining < Fraction(1, 2)
    before = backend.reads
    assert before == 3
    with pytest.raises(BudgetExhausted):
        run(watched, f"{COUNT} WHERE age > 999", epsilon="0.5")
    assert backend.reads == before
    # What was had stays to be had.
    assert run(watched, f"{COUNT} WHERE age > 0", epsilon="0.5").reused


def test_two_releases_of_one_query_share_its_price(engine: Engine) -> None:
    one = compiled(engine, COUNT)
    sql = "SELECT a.n, b.n FROM (SELECT COUNT(*) AS n FROM patients) AS a, (SELECT COUNT(*) AS n FROM visits) AS b"
    two = compiled(engine, sql)
    assert len(two.releases) == 2
    costs = [engine.explain("ana", query, Cancellation()).spends.rho for query in (one, two)]
    assert costs[0] * Fraction(99, 100) < costs[1] <= costs[0] + Fraction(1, 10**20)


def test_the_same_release_twice_in_one_query_is_one(engine: Engine) -> None:
    answer = run(
        engine,
        "WITH t AS (SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex) SELECT a.n - b.n FROM t AS a JOIN t AS b "
        "ON a.sex = b.sex",
    )
    assert {row[0] for row in answer.rows.rows} == {0}


# Reuse


def test_an_answer_is_given_again_for_nothing_to_the_same_user(watched: Engine, backend: WatchedBackend) -> None:
    first = run(watched, BY_SEX)
    paid = spent(watched), cap(watched)
    again = run(watched, BY_SEX)
    assert again.rows == first.rows
    assert again.reused
    assert not first.reused
    assert again.charge is not None
    assert again.charge.free
    assert (spent(watched), cap(watched)) == paid
    assert backend.reads == 1


def test_equal_queries_in_other_words_are_one_release(watched: Engine, backend: WatchedBackend) -> None:
    first = run(watched, "SELECT sex, COUNT(*) FROM patients WHERE age > 30 GROUP BY sex ORDER BY sex")
    again = run(
        watched,
        "select  P.sex as gender, count(*) n from patients AS p /* words */ where (p.age > 30) group by 1 order by 1",
    )
    assert again.reused
    assert again.rows == first.rows
    assert backend.reads == 1


def test_another_user_pays_for_it_and_is_not_told(watched: Engine, backend: WatchedBackend) -> None:
    first = run(watched, BY_SEX)
    paid = cap(watched)
    other = run(watched, BY_SEX, "ben")
    assert other.rows == first.rows
    assert not other.reused
    assert other.charge is not None
    assert not other.charge.free
    assert spent(watched, "ben") == spent(watched, "ana")
    assert cap(watched) == paid
    assert backend.reads == 1
    assert run(watched, BY_SEX, "ben").reused


def test_without_reuse_the_answer_is_fresh_and_paid(watched: Engine, backend: WatchedBackend) -> None:
    first = run(watched, BY_SEX)
    once = spent(watched).rho
    fresh = run(watched, BY_SEX, reuse=Reuse.OFF)
    assert not fresh.reused
    assert fresh.rows != first.rows
    assert spent(watched).rho == 2 * once
    assert backend.reads == 2
    # The first answer remains the one that is given again.
    assert run(watched, BY_SEX).rows == first.rows
    assert backend.reads == 2


@pytest.mark.parametrize(
    "changes", [{"epsilon": "0.2"}, {"mechanism": "laplace"}, {"max_groups": "1"}, {"max_rows_per_group": "1"}]
)
def test_other_settings_are_another_release(watched: Engine, backend: WatchedBackend, changes: dict[str, Any]) -> None:
    sql = "SELECT icd, COUNT(*) FROM visits GROUP BY icd"
    run(watched, sql, mechanism="gaussian")
    assert not run(watched, sql, **({"mechanism": "gaussian"} | changes)).reused
    assert backend.reads == 2


def test_other_data_or_another_policy_are_another_release(
    make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "kept.sqlite"
    first = run(make_engine(clinic_policy, ledger=ledger), BY_SEX)
    for before, after in (
        ('data_version = "', 'data_version = "after '),
        ("lower = 0, upper = 110", "lower = 0, upper = 100"),
        ("[roles.analyst]", "# a comment\n[roles.analyst]"),
    ):
        with changed_policy(clinic_policy, "changed", {before: after}) as changed:
            again = run(make_engine(changed, ledger=ledger), BY_SEX)
        assert again.reused == after.startswith("#")
        assert (again.rows == first.rows) == again.reused


def test_rows_come_in_the_order_of_the_keys_as_they_are_written(engine: Engine, no_noise: None) -> None:
    """In the form that is run keys stand in the order of their names."""
    for keys in ("sex, city", "city, sex", "sex, age > 50", "age > 50, sex"):
        rows = run(engine, f"SELECT {keys}, COUNT(*) FROM patients GROUP BY {keys}").rows.rows
        found = [tuple((value is None, value) for value in row[:2]) for row in rows]
        assert found == sorted(found)


def test_a_release_outlives_the_engine(make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "kept.sqlite"
    engine = make_engine(clinic_policy, ledger=ledger)
    first = run(engine, BY_SEX)
    engine.close()
    again = run(make_engine(clinic_policy, ledger=ledger), BY_SEX)
    assert again.reused
    assert again.rows == first.rows


def test_concurrent_equal_queries_pay_once(
    watched: Engine, backend: WatchedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.gate = threading.Event()
    came: list[str] = []
    lock_of = watched._lock_of
    monkeypatch.setattr(watched, "_lock_of", lambda key: came.append(key) or lock_of(key))  # type: ignore[func-returns-value]
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(run, watched, BY_SEX) for _ in range(8)]
        try:
            wait_for(lambda: len(came) == 8)  # none has ended: one reads, and the others wait for it
        finally:
            backend.gate.set()
        rows = {answer.result().rows for answer in answers}
    assert len(rows) == 1
    assert backend.reads == 1
    assert sum(1 for record in watched.ledger.history("ana") if record.price) == 1


def test_many_sessions_never_overspend(make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path) -> None:
    """64 sessions ask distinct queries against a budget for ten: ten are answered."""
    text = clinic_policy.read_text(encoding="utf-8")
    text = text.replace(
        'epsilon = 5, delta = 1e-6, accountant = "zcdp", selection_share = 0.5', 'epsilon = 5, accountant = "pure"'
    )
    text = text.replace("epsilon = 0.1, delta = 1e-9, mechanism", "epsilon = 0.5, delta = 0, mechanism")
    text = text.replace("duckdb:///clinic.duckdb", f"duckdb:///{clinic_policy.with_name('clinic.duckdb')}")
    policy = tmp_path / "ten.toml"
    policy.write_text(text, encoding="utf-8")
    engine = make_engine(policy)
    start = threading.Barrier(64)

    def ask(index: int) -> bool:
        session = Session(engine, "ana")
        (statement,) = session.parse(f"{COUNT} WHERE age > {index}")
        start.wait(HANG_SECONDS)
        try:
            session.execute(statement)
        except BudgetExhausted:
            return False
        return True

    with ThreadPoolExecutor(64) as pool:
        answered = sum(pool.map(ask, range(64)))
    assert answered == 10
    assert spent(engine).pure_epsilon == 5
    assert len(engine.ledger.history("ana")) == 10


# Failure


def test_a_failure_keeps_the_charge_tells_one_sentence_and_quarantines(
    watched: Engine, backend: WatchedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.failing = True
    with pytest.raises(BackendFailure) as caught:
        run(watched, COUNT)
    assert str(caught.value) == "the query failed in the database; its charge is kept"
    assert (caught.value.detail, caught.value.hint, caught.value.position) == (None, None, None)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "4711" not in caplog.text
    assert spent(watched).rho > 0
    backend.failing = False
    with pytest.raises(PolicyViolation):
        run(watched, COUNT)
    assert backend.reads == 1
    # Another query is answered, if it is no cheap one.
    run(watched, BY_SEX, epsilon="0.25")


def test_three_failures_freeze_the_user(watched: Engine, backend: WatchedBackend) -> None:
    backend.failing = True
    for index in range(3):
        with pytest.raises(BackendFailure):
            run(watched, f"{COUNT} WHERE age > {index}", epsilon="0.25")
    backend.failing = False
    with pytest.raises(PolicyViolation) as caught:
        run(watched, f"{COUNT} WHERE age > 77", epsilon="0.25")
    assert "frozen" in caught.value.message
    assert run(watched, f"{COUNT} WHERE age > 77", "ben").rows.rows
    watched.ledger.unfreeze(Holder(BudgetScope.USER, "ana"), "looked at")
    assert run(watched, f"{COUNT} WHERE age > 78").rows.rows


def test_a_failure_of_public_tables_quarantines_nobody(watched: Engine, backend: WatchedBackend) -> None:
    backend.failing = True
    for _ in range(4):
        with pytest.raises(BackendFailure, match="nothing was charged"):
            run(watched, "SELECT COUNT(*) FROM doctors")
    backend.failing = False
    assert run(watched, COUNT).rows.rows


def test_cancelling_keeps_the_charge(watched: Engine, backend: WatchedBackend) -> None:
    backend.gate = threading.Event()
    cancellation = Cancellation()
    query = compiled(watched, COUNT)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(watched.execute, "ana", query, cancellation)
        try:
            wait_for(lambda: backend.reads > 0)
        finally:
            cancellation.cancel()
            backend.gate.set()
        with pytest.raises(QueryCanceled):
            answer.result()
    assert spent(watched).rho > 0
    # Cancelled is not failed: asked again, it is charged again and answered.
    before = spent(watched).rho
    assert run(watched, COUNT).rows.rows
    assert spent(watched).rho == 2 * before


def test_cancelling_stops_a_query_that_runs(watched: Engine, backend: WatchedBackend) -> None:
    backend.failing = True
    backend.failure = "SELECT COUNT(*) FROM range(100000000) a, range(100000000) b WHERE a.range % 7 = b.range % 3"
    cancellation = Cancellation()
    timer = threading.Timer(0.3, cancellation.cancel)
    timer.start()
    with pytest.raises(QueryCanceled):
        watched.execute("ana", compiled(watched, COUNT), cancellation)
    timer.join()


def test_what_is_cancelled_before_it_begins_costs_nothing(watched: Engine, backend: WatchedBackend) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(QueryCanceled):
        watched.execute("ana", compiled(watched, COUNT), cancellation)
    assert backend.reads == 0
    assert spent(watched) == Spent.zero()


@pytest.mark.parametrize("cell", ["CAST(NULL AS BIGINT)", "1.5", "CAST(5 AS HUGEINT)", "'x'", "error('x')"])
def test_a_cell_that_is_no_bigint_is_a_failure(watched: Engine, backend: WatchedBackend, cell: str) -> None:
    (release,) = compiled(watched, COUNT).releases
    other = with_sql(release, f"SELECT CAST(1 AS BIGINT) AS units, {cell} AS p0")
    with pytest.raises(BackendFailure):
        backend.fetch({0: other}, (), Cancellation())


# A killed process

CHILD = """
    import sys
    from pathlib import Path
    from dpsql.backends.backend import NO_INPUTS
    from tests.test_engine import COUNT, WatchedBackend, run
    from tests.conftest import open_engine

    class Hanging(WatchedBackend):
        def fetch(self, releases, public, cancellation, inputs=NO_INPUTS, take=None):
            print("reading", flush=True)
            sys.stdin.read()

    policy, ledger = map(Path, sys.argv[1:])
    run(open_engine(policy, ledger, backend=Hanging(policy)), COUNT)
"""


def test_kill_between_charge_and_answer_keeps_the_charge(
    make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "killed.sqlite"
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(clinic_policy), str(ledger)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reading\n"
        child.send_signal(signal.SIGKILL)
    engine = make_engine(clinic_policy, ledger=ledger)
    charged = spent(engine).rho
    assert charged > 0
    assert engine.ledger.verify().ok
    # The release was not stored: asking again is paid again.
    assert not run(engine, COUNT).reused
    assert spent(engine).rho == 2 * charged


# Users


def test_two_engines_of_one_process_may_read_the_same_file(make_engine: MakeEngine, clinic_policy: Path) -> None:
    one, other = make_engine(clinic_policy), make_engine(clinic_policy)
    assert run(one, COUNT).rows.rows
    assert run(other, COUNT).rows.rows
    assert run(one, "SELECT COUNT(*) FROM doctors").rows == run(other, "SELECT COUNT(*) FROM doctors").rows


def test_a_stranger_has_no_role(engine: Engine) -> None:
    with pytest.raises(PolicyViolation) as caught:
        engine.role("eve")
    assert caught.value.hint == "The data owner adds one: dpsql user add eve --role analyst"


def test_a_role_that_the_policy_does_not_have_any_more(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    engine.ledger.add_account("old", "retired")
    with pytest.raises(PolicyViolation):
        engine.role("old")


def test_a_removed_user_is_charged_nothing(engine: Engine) -> None:
    query = compiled(engine, COUNT)
    engine.ledger.remove_account("ana")
    with pytest.raises(PolicyViolation):
        engine.execute("ana", query, Cancellation())


def test_tables_of_the_role_only(make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path) -> None:
    text = clinic_policy.read_text(encoding="utf-8").replace(
        '# tables = ["patients", "visits"]', 'tables = ["patients"] #'
    )
    text = text.replace("duckdb:///clinic.duckdb", f"duckdb:///{clinic_policy.with_name('clinic.duckdb')}")
    policy = tmp_path / "narrow.toml"
    policy.write_text(text, encoding="utf-8")
    session = Session(make_engine(policy), "ana")
    found = session.execute(session.parse("SELECT DISTINCT table_name FROM dpsql.columns")[0])
    assert found.rows == (("patients",),)
    hints = []
    for name in ("visits", "nothing"):
        with pytest.raises(Exception, match=f'relation "{name}" does not exist') as caught:
            session.execute(session.parse(f"SELECT COUNT(*) FROM {name}")[0])
        hints.append(getattr(caught.value, "hint", None))
    assert hints[0] == hints[1]


def test_the_ledger_is_whole_after_all_this(engine: Engine) -> None:
    run(engine, COUNT)
    run(engine, COUNT, "ben")
    run(engine, COUNT)
    report = engine.ledger.verify()
    assert report.ok, report.problems


def test_a_closed_ledger_answers_nothing(clinic_policy: Path, tmp_path: Path, backend: WatchedBackend) -> None:
    loaded = load_policy(clinic_policy)
    ledger = open_ledger(f"sqlite:///{tmp_path / 'closed.sqlite'}")
    ledger.add_account("ana", "analyst")
    engine = Engine(loaded, ledger, backend)
    query = compiled(engine, COUNT)
    ledger.close()
    with pytest.raises(Exception, match=r".+"):
        engine.execute("ana", query, Cancellation())
    assert backend.reads == 0
    engine.close()
