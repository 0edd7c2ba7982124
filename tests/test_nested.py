"""Released results inside other queries: made first, paid together, and seen with their noise by what reads them."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest

from dpsql.backends import Cancellation, DuckDBBackend, ExactCells, ExactRows, PublicRows
from dpsql.backends.backend import NO_INPUTS, Inputs, Take
from dpsql.compiler.ir.nodes import Values
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedInput, PlannedRelease, PublicRead
from dpsql.errors import (
    BackendFailure,
    BudgetExhausted,
    CardinalityViolation,
    InvalidParameter,
    PolicyViolation,
    QueryCanceled,
    UnsupportedQuery,
)
from dpsql.gateway import reading
from dpsql.gateway.engine import Engine
from dpsql.gateway.explain import explanation_json, sql_lines
from dpsql.gateway.release import PostProcessor, ReleasedCells, release
from dpsql.gateway.settings import Reuse
from dpsql.ledger import BudgetScope, Holder
from dpsql.limits.result_memory import MemoryShare
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner, changed_policy
from tests.compiler.test_verify import ACCOUNTANTS
from tests.compiler.trees import with_sql
from tests.conftest import MakeEngine
from tests.test_engine import cap, compiled, run, spent

AVERAGE = "SELECT AVG(cost) FROM visits"
ABOVE = f"SELECT COUNT(*) FROM visits WHERE cost > ({AVERAGE})"
BELOW = f"SELECT COUNT(*) FROM visits WHERE cost < ({AVERAGE})"
TOP = "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC, icd LIMIT 3"
SEVERAL = "SELECT COUNT(*) FROM patients WHERE age > (SELECT COUNT(*) FROM visits GROUP BY city)"
Seen = tuple[str, Inputs]


class Stages(DuckDBBackend):
    """A DuckDB file that notes what is read, and does something before a stage when told to."""

    def __init__(self, policy: Path) -> None:
        loaded = load_policy(policy)
        super().__init__(loaded.dataset.url.partition("://")[2], loaded)
        self.seen: list[Seen] = []
        self.before: dict[int, Callable[[], object]] = {}

    def fetch(
        self,
        releases: Mapping[int, PlannedRelease],
        public: tuple[PublicRead, ...],
        cancellation: Cancellation,
        inputs: Inputs = NO_INPUTS,
        take: Take | None = None,
        share: MemoryShare | None = None,
    ) -> ExactRows:
        for planned in releases.values():
            self.seen.append((planned.sql, inputs))
        self.before.get(len(self.seen), lambda: None)()
        return super().fetch(releases, public, cancellation, inputs, take, share)

    @property
    def rows(self) -> list[list[list[str | None]]]:
        """For each engine query, the columns of its one input; none where it has none."""
        return [[list(column) for rows in inputs[0] for column in rows.columns] for _, inputs in self.seen]


@pytest.fixture
def stages(clinic_policy: Path) -> Iterator[Stages]:
    opened = Stages(clinic_policy)
    yield opened
    opened.close()


@pytest.fixture
def nested(make_engine: MakeEngine, clinic_policy: Path, stages: Stages) -> Engine:
    return make_engine(clinic_policy, backend=stages)


def fail() -> None:
    raise duckdb.Error("a row: 4711")


# Stages


def test_inner_releases_are_made_first_and_all_is_charged_before(nested: Engine, stages: Stages) -> None:
    charged: list[Spent] = []
    stages.before = {1: lambda: charged.append(spent(nested)), 2: lambda: charged.append(spent(nested))}
    answer = run(nested, ABOVE)
    assert [sql for sql, _ in stages.seen] == [planned.sql for planned in answer.query.releases]
    assert answer.charge is not None
    assert charged == [answer.charge.spent] * 2
    assert cap(nested) == spent(nested)
    assert len(nested.ledger.history("ana")) == 1


def test_what_an_engine_query_reads_is_the_noisy_value(
    nested: Engine, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frozen(planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
        cells = (-5_000, 40) if len(planned.primitives) == 2 else tuple(int(cell[0]) for cell in exact.cells)
        return ReleasedCells((), tuple(np.array([cell], dtype=np.int64) for cell in cells))

    monkeypatch.setattr(reading, "release", frozen)
    answer = run(nested, ABOVE)
    # The mean of 40 noisy values is 5,000 hundredths below the middle of the column's bounds, 0 and 5,000.
    assert stages.rows == [[], [["2498.75"]]]
    assert answer.rows.rows == run(nested, "SELECT COUNT(*) FROM visits WHERE cost > 2498.75").rows.rows


def test_two_levels(nested: Engine, stages: Stages, no_noise: None) -> None:
    minutes = "SELECT AVG(duration_min) FROM visits"
    inner = f"{AVERAGE} WHERE duration_min > ({minutes})"
    answer = run(nested, f"SELECT COUNT(*) FROM visits WHERE cost > ({inner})")
    assert len(stages.seen) == 3
    (duration,), (cost,) = (rows[0] for rows in stages.rows[1:])
    plain = run(nested, f"{AVERAGE} WHERE duration_min > {duration}").rows.rows
    assert plain == ((float(str(cost)),),)
    assert run(nested, f"SELECT COUNT(*) FROM visits WHERE cost > {cost}").rows == answer.rows


def test_a_released_table_is_joined_and_filtered_by(nested: Engine, no_noise: None) -> None:
    codes = [row[0] for row in run(nested, TOP).rows.rows]
    listed = ", ".join(f"'{code}'" for code in codes)
    for template in (
        "SELECT COUNT(*) FROM visits WHERE icd IN ({})",
        "SELECT COUNT(*) FROM visits WHERE icd NOT IN ({})",
        "SELECT sex, COUNT(*) FROM patients WHERE patient_id IN (SELECT patient_id FROM visits WHERE icd IN ({})) "
        "GROUP BY sex",
    ):
        assert run(nested, template.format(TOP)).rows == run(nested, template.format(listed)).rows
    joined = run(nested, f"WITH t AS ({TOP}) SELECT COUNT(*) FROM visits v JOIN t ON t.icd = v.icd")
    assert joined.rows == run(nested, f"SELECT COUNT(*) FROM visits WHERE icd IN ({listed})").rows


COLUMNS = ("n", "big", "small", "price", "word", "ok", "day", "clock", "tag")


@pytest.mark.parametrize("column", COLUMNS)
def test_values_of_every_type_reach_the_engine_as_they_were_released(wide_engine: Engine, column: str) -> None:
    inner = f"SELECT {column} FROM events GROUP BY {column}"
    (found,) = run(wide_engine, f"SELECT COUNT(*) FROM events WHERE {column} IN ({inner})").rows.rows
    (there,) = run(wide_engine, f"SELECT COUNT({column}) FROM events").rows.rows
    assert found == there
    assert there[0] > 0


@pytest.mark.parametrize("column", ["moment", "zoned"])
def test_moments_reach_the_engine_as_they_were_released(wide_engine: Engine, column: str) -> None:
    inner = f"SELECT DATE_TRUNC('day', {column}) AS t FROM events GROUP BY 1"
    sql = f"SELECT COUNT(*) FROM events WHERE DATE_TRUNC('day', {column}) IN ({inner})"
    (found,) = run(wide_engine, sql).rows.rows
    assert found == run(wide_engine, f"SELECT COUNT({column}) FROM events").rows.rows[0]


def test_a_subquery_may_give_nothing(nested: Engine, no_noise: None) -> None:
    assert run(nested, f"SELECT COUNT(*) FROM visits WHERE icd IN ({TOP[:-1]}0)").rows.rows == ((0,),)
    sql = "SELECT COUNT(*) FROM visits WHERE cost > (SELECT n FROM (SELECT COUNT(*) AS n FROM patients) t WHERE n < 0)"
    assert run(nested, sql).rows.rows == ((0,),)


def test_public_rows_and_constants_are_made_first_too(nested: Engine, stages: Stages, no_noise: None) -> None:
    found = run(nested, "SELECT COUNT(*) FROM patients WHERE age > (SELECT MAX(doctor_id) / 4 FROM doctors)")
    assert stages.rows == [[["50"]]]
    assert found.rows == run(nested, "SELECT COUNT(*) FROM patients WHERE age > 50").rows
    assert run(nested, "SELECT COUNT(*) FROM patients WHERE age > (SELECT 50)").rows == found.rows


# Charging and reuse


def test_all_or_nothing(nested: Engine, stages: Stages) -> None:
    run(nested, "SELECT COUNT(*) FROM patients", epsilon="0.7")
    before, reads = (spent(nested), cap(nested)), len(stages.seen)
    with pytest.raises(BudgetExhausted) as caught:
        run(nested, ABOVE, epsilon="0.7")
    assert (spent(nested), cap(nested)) == before
    assert len(stages.seen) == reads
    # The inner release alone would have fitted.
    inner = Spent.zero().add(compiled(nested, ABOVE, epsilon="0.7").releases[0].events)
    assert caught.value.remaining is not None
    assert inner.rho < caught.value.remaining**2 / 2


def test_a_second_run_is_free_and_the_same(nested: Engine, stages: Stages) -> None:
    first, again = run(nested, ABOVE), run(nested, ABOVE)
    assert again.rows == first.rows
    assert again.reused
    assert again.charge is not None
    assert again.charge.free
    assert len(stages.seen) == 2
    other = run(nested, ABOVE, "ben")
    assert other.rows == first.rows
    assert spent(nested, "ben") == spent(nested, "ana")
    assert len(stages.seen) == 2


def test_an_inner_release_is_used_again_by_another_outer_one(nested: Engine, stages: Stages) -> None:
    run(nested, ABOVE)
    once = spent(nested).rho
    answer = run(nested, BELOW)
    assert len(stages.seen) == 3
    assert not answer.reused
    assert answer.charge is not None
    assert [granted.reused for granted in answer.charge.releases] == [True, False]
    # Three primitives share the price, the mean's count less than the others; the mean's two are there already.
    assert spent(nested).rho - once == pytest.approx(float(once) / (2 + (1 / 3) ** 0.5), rel=1e-3)
    # What is read again from the ledger is what was read the first time.
    assert stages.rows[1] == stages.rows[2]


def test_an_inner_release_that_was_asked_for_by_itself(make_engine: MakeEngine, clinic_policy: Path) -> None:
    changes = ACCOUNTANTS["pure"]
    with changed_policy(clinic_policy, "nested-pure", changes) as policy:
        engine = make_engine(policy)
        # Of three shares, 65536 to 45440 to 65536, the mean has two.
        mean = run(engine, AVERAGE, epsilon="0.110976", mechanism="laplace")
        answer = run(engine, f"SELECT COUNT(*), ({AVERAGE}) FROM visits WHERE cost > ({AVERAGE})", epsilon="0.176512")
        assert answer.rows.rows[0][1] == mean.rows.rows[0][0]
        assert spent(engine).pure_epsilon == Fraction(176_512, 10**6)


def test_without_reuse_all_is_fresh_and_pairs_do_not_mix(nested: Engine, stages: Stages) -> None:
    first = run(nested, ABOVE)
    fresh = run(nested, ABOVE, reuse=Reuse.OFF)
    assert len(stages.seen) == 4
    assert not fresh.reused
    assert run(nested, ABOVE).rows == first.rows
    # The stored inner release is the first one; what was made of the second does not answer beside it.
    run(nested, BELOW, reuse=Reuse.OFF)
    below = run(nested, BELOW)
    assert not below.reused
    assert stages.rows[-1] == stages.rows[1] != stages.rows[-3]


def test_equal_queries_at_the_same_time_make_everything_once(nested: Engine, stages: Stages) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(run, nested, sql) for sql in [ABOVE, BELOW] * 4]
        rows = [answer.result().rows for answer in answers]
    assert len(stages.seen) == 3
    assert rows[::2] == rows[:1] * 4
    assert rows[1::2] == rows[1:2] * 4


# Failure


def test_a_failure_of_the_outer_query_keeps_the_charge_and_the_inner_release(nested: Engine, stages: Stages) -> None:
    stages.before = {2: fail}
    with pytest.raises(BackendFailure) as caught:
        run(nested, ABOVE)
    assert str(caught.value) == BackendFailure.SENTENCE
    assert caught.value.__cause__ is None
    once = spent(nested).rho
    assert once > 0
    stages.before = {}
    with pytest.raises(PolicyViolation, match="failed before"):
        run(nested, ABOVE)
    assert spent(nested).rho == once
    nested.ledger.unfreeze(Holder(BudgetScope.USER, "ana"), "the owner has looked at the failure")
    # The inner one is there, is not quarantined, and is free.
    answer = run(nested, BELOW)
    assert answer.charge is not None
    assert [granted.reused for granted in answer.charge.releases] == [True, False]
    assert len(stages.seen) == 3


def test_a_failure_of_the_inner_query_is_not_the_outer_ones(nested: Engine, stages: Stages) -> None:
    stages.before = {1: fail}
    with pytest.raises(BackendFailure):
        run(nested, ABOVE)
    assert len(stages.seen) == 1
    with pytest.raises(PolicyViolation):
        run(nested, BELOW)


def test_several_rows_for_one_value_are_told_and_are_no_failure(nested: Engine, stages: Stages, no_noise: None) -> None:
    for _ in range(4):
        with pytest.raises(CardinalityViolation, match="more than one row returned by a subquery") as caught:
            run(nested, SEVERAL)
        assert (caught.value.sqlstate, caught.value.__cause__) == ("21000", None)
    # Paid once: what was asked was made, and the rest is still to be made.
    assert spent(nested).rho > 0
    assert len(stages.seen) == 1
    assert run(nested, "SELECT COUNT(*) FROM patients").rows.rows
    public = "SELECT COUNT(*) FROM patients WHERE age > (SELECT doctor_id FROM doctors)"
    for sql in (public, "SELECT (SELECT doctor_id FROM doctors)", f"{public.replace('age', '7')}"):
        with pytest.raises(CardinalityViolation):
            run(nested, sql)
    sql = "SELECT COUNT(*), (SELECT n FROM (SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex) t) FROM visits"
    with pytest.raises(CardinalityViolation):
        run(nested, sql)


def test_a_failure_of_public_tables_is_no_failure_of_what_reads_them(nested: Engine, stages: Stages) -> None:
    stages.before = {0: fail}
    for _ in range(4):
        with pytest.raises(BackendFailure):
            run(nested, "SELECT COUNT(*) FROM patients WHERE age > (SELECT MAX(doctor_id) FROM doctors)")
    stages.before = {}
    assert stages.seen == []
    assert run(nested, "SELECT COUNT(*) FROM patients WHERE age > (SELECT MAX(doctor_id) FROM doctors)").rows.rows


def test_what_cannot_be_computed_between_the_stages_is_told_and_is_no_failure(
    nested: Engine, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = compiled(nested, ABOVE)
    outer = query.releases[1]
    (made,) = outer.inputs
    broken = replace(outer, inputs=(replace(made, sql="SELECT CAST(p0 || 'x' AS INTEGER) AS v0 FROM r0"),))
    for _ in range(4):
        with pytest.raises(InvalidParameter, match="cannot be computed"):
            nested.execute("ana", replace(query, releases=(query.releases[0], broken)), Cancellation())
    assert len(stages.seen) == 1
    assert run(nested, ABOVE).rows.rows


def test_a_plan_that_cannot_run_costs_nothing(nested: Engine, stages: Stages) -> None:
    query = compiled(nested, ABOVE)
    outer = query.releases[1]
    (made,) = outer.inputs
    for broken in (
        replace(outer, inputs=(replace(made, sql="SELECT nothing AS v0 FROM r0"),)),
        with_sql(outer, outer.sql.replace("input.0", "input.1")),
        with_sql(outer, outer.sql.replace("v0", "v1")),
        replace(outer, inputs=()),
    ):
        with pytest.raises(UnsupportedQuery):
            nested.execute("ana", replace(query, releases=(query.releases[0], broken)), Cancellation())
    assert spent(nested) == Spent.zero()
    assert stages.seen == []


def test_cancelling_between_the_stages(nested: Engine, stages: Stages) -> None:
    cancellation = Cancellation()
    query = compiled(nested, ABOVE)

    def cancelling(planned: PlannedRelease, exact: ExactCells) -> ReleasedCells:
        cancellation.cancel()
        return release(planned, exact)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "release", cancelling)
        with pytest.raises(QueryCanceled):
            nested.execute("ana", query, cancellation)
    assert len(stages.seen) == 1
    once = spent(nested).rho
    assert once > 0
    # The inner release was made and kept; the outer one is paid again and made.
    answer = run(nested, ABOVE)
    assert answer.charge is not None
    assert [granted.reused for granted in answer.charge.releases] == [True, False]
    assert spent(nested).rho - once == pytest.approx(float(once) / (2 + (1 / 3) ** 0.5), rel=1e-3)


# The engine's tables


@pytest.fixture(scope="module")
def counting(clinic_policy: Path) -> PlannedRelease:
    """A release of one number, which is made of one input."""
    (planned,) = Planner(load_policy(clinic_policy)).compile("SELECT COUNT(*) FROM patients").releases
    made = PlannedInput("input.0", "", (SqlType.BIGINT,), False, (), ())
    return with_sql(replace(planned, inputs=(made,)), COUNTED)


COUNTED = 'SELECT count(*) AS units, coalesce(sum(CAST(v0 AS BIGINT)), 0)::BIGINT AS p0 FROM temp.main."input.0"'


def texts(*values: str | None) -> PublicRows:
    return PublicRows((np.array(values, dtype=object),), len(values))


def test_an_input_is_there_for_one_query_alone(stages: Stages, counting: PlannedRelease) -> None:
    def fetch(number: int) -> tuple[int, int]:
        rows = texts(*[str(number)] * number, None)
        exact = DuckDBBackend.fetch(stages, {0: counting}, (), Cancellation(), {0: (rows,)}).releases[0]
        return int(exact.units[0]), int(exact.cells[0][0])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(fetch, range(40)))
    assert found == [(number + 1, number * number) for number in range(40)]
    with pytest.raises(BackendFailure):
        DuckDBBackend.fetch(stages, {0: replace(counting, inputs=())}, (), Cancellation())
    with pytest.raises(BackendFailure):
        DuckDBBackend.fetch(
            stages, {}, (PublicRead("q0", Values((), ((),)), 'SELECT * FROM "input.0"', 1),), Cancellation()
        )


def test_an_input_may_have_no_rows_no_values_or_no_columns(stages: Stages, counting: PlannedRelease) -> None:
    late = [None] * 5000 + ["7"]
    for rows, expected in ((texts(), 0), (texts(None, None), 0), (texts(*late), 7)):
        exact = DuckDBBackend.fetch(stages, {0: counting}, (), Cancellation(), {0: (rows,)}).releases[0]
        assert (exact.units[0], exact.cells[0][0]) == (rows.count, expected)
    no_columns = with_sql(counting, 'SELECT count(*) AS units, count(*) AS p0 FROM temp.main."input.0"')
    exact = DuckDBBackend.fetch(stages, {0: no_columns}, (), Cancellation(), {0: (PublicRows((), 3),)}).releases[0]
    assert exact.units[0] == 3


def test_rows_must_be_there_for_every_input(stages: Stages, counting: PlannedRelease) -> None:
    with pytest.raises(BackendFailure):
        DuckDBBackend.fetch(stages, {0: counting}, (), Cancellation())


def test_the_files_own_tables_are_not_mistaken_for_inputs(
    clinic_policy: Path, tmp_path: Path, make_engine: MakeEngine, counting: PlannedRelease
) -> None:
    source = str(clinic_policy.with_name("clinic.duckdb"))
    with duckdb.connect(str(tmp_path / "clinic.duckdb")) as copy:
        copy.execute(f"ATTACH '{source}' AS old (READ_ONLY)")
        copy.execute("COPY FROM DATABASE old TO clinic")
        copy.execute('CREATE TABLE "input.0" AS SELECT 1000000 AS v0')
    policy = tmp_path / "clinic.toml"
    policy.write_text(clinic_policy.read_text(encoding="utf-8"), encoding="utf-8")
    backend = Stages(policy)
    engine = make_engine(policy, backend=backend)
    assert run(engine, ABOVE).rows.rows
    exact = DuckDBBackend.fetch(backend, {0: counting}, (), Cancellation(), {0: (texts("1"),)}).releases[0]
    assert exact.cells[0][0] == 1
    with pytest.raises(BackendFailure):
        DuckDBBackend.fetch(backend, {0: replace(counting, inputs=())}, (), Cancellation())
    backend.close()


# Between the stages


@pytest.fixture(scope="module")
def processor() -> Iterator[PostProcessor]:
    opened = PostProcessor("UTC")
    yield opened
    opened.close()


def made(sql: str, width: int = 1, *, single: bool = False) -> PlannedInput:
    return PlannedInput(
        "input.0", sql, (SqlType.TEXT,) * width, single, (), (PublicRead("q0", Values((), ((),)), "", 1),)
    )


def test_an_input_is_text(processor: PostProcessor) -> None:
    cells = ReleasedCells((np.array(["a", None], dtype=object),), (np.array([5, 6], dtype=np.int64),))
    sql = "SELECT k0 AS v0, CAST(p0 AS VARCHAR) AS v1 FROM r0 JOIN q0 ON v0 = '1' ORDER BY p0"
    rows = processor.make(made(sql, 2), [cells], [texts("1", "2")], Cancellation())
    assert [list(column) for column in rows.columns] == [["a", None], ["5", "6"]]
    assert rows.count == 2
    nothing = processor.make(made("SELECT 1 AS one FROM q0", 0), [], [texts("1", "2")], Cancellation())
    assert (nothing.columns, nothing.count) == ((), 2)


def test_one_value_has_one_row_at_the_most(processor: PostProcessor) -> None:
    sql = "SELECT v0 FROM q0"
    for rows in (texts(), texts("1"), texts(None)):
        assert processor.make(made(sql, single=True), [], [rows], Cancellation()).count == rows.count
    assert processor.make(made(sql), [], [texts("1", "2")], Cancellation()).count == 2
    with pytest.raises(CardinalityViolation):
        processor.make(made(sql, single=True), [], [texts("1", "2")], Cancellation())
    with pytest.raises(CardinalityViolation) as caught:
        processor.make(made("SELECT (SELECT v0 FROM q0) AS v0"), [], [texts("1", "2")], Cancellation())
    assert caught.value.__suppress_context__


def test_an_input_has_its_limits(processor: PostProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="a subquery of the query has more than 1,000,000 rows"):
        processor.make(made("SELECT CAST(range AS VARCHAR) AS v0 FROM range(1000001)"), [], [texts()], Cancellation())
    with pytest.raises(Exception, match="too large"):
        text = "SELECT list(a.range || 'some text that is long')::VARCHAR AS v0 FROM range(100000000) AS a"
        processor.make(made(text), [], [texts()], Cancellation())
    slow = "SELECT COUNT(*)::VARCHAR AS v0 FROM range(10000000) a, range(10000000) b WHERE a.range % 7 > b.range"
    cancellation = Cancellation()
    timer = threading.Timer(0.2, cancellation.cancel)
    timer.start()
    with pytest.raises(QueryCanceled):
        processor.make(made(slow), [], [texts()], cancellation)
    timer.join()
    monkeypatch.setattr("dpsql.gateway.release.POST_SECONDS", 0.2)
    with pytest.raises(QueryCanceled):
        processor.make(made(slow), [], [texts()], Cancellation())


# EXPLAIN


def test_stages_are_explained(nested: Engine, stages: Stages) -> None:
    query = compiled(
        nested, f"SELECT ({ABOVE}), COUNT(*) FROM patients WHERE age > (SELECT MAX(doctor_id) FROM doctors)"
    )
    lines = sql_lines(query)
    assert [line for line in lines if "computed first" in line] == [
        "  computed first, of public rows: input.0",
        "  computed first, of release 2: input.0",
    ]
    assert sum(line.strip() == "engine SQL:" for line in lines) == 3
    assert lines.count("Public SQL:") == 1
    told = explanation_json(nested.explain("ana", query, Cancellation()))
    json.dumps(told)
    assert told["engine_sql"] == [
        *(planned.sql for planned in query.releases),
        query.releases[0].inputs[0].public_reads[0].sql,
    ]
    assert told["made_first"] == [
        {"release": 0, "table": "input.0", "of_releases": [], "sql": query.releases[0].inputs[0].sql},
        {"release": 2, "table": "input.0", "of_releases": [1], "sql": query.releases[2].inputs[0].sql},
    ]
    constant = compiled(nested, "SELECT COUNT(*) FROM patients WHERE age > (SELECT 50)")
    assert "  computed first, of constants: input.0" in sql_lines(constant)
    assert stages.seen == []


def test_plans_do_not_depend_on_what_was_released(nested: Engine) -> None:
    queries: list[CompiledQuery] = []
    for _ in range(2):
        queries.append(compiled(nested, ABOVE))
        run(nested, ABOVE, reuse=Reuse.OFF)
    assert queries[0] == queries[1]


NULL_KEYS = """
version = 1
[dataset]
name = "keys"
url = "duckdb:///keys.duckdb"
privacy_unit = "person"
budget = { epsilon = 100, delta = 1e-6 }
[roles.analyst]
budget = { epsilon = 100, delta = 1e-6 }
query = { epsilon = 1, delta = 1e-9, max_epsilon = 10 }
[tables.visits]
unit_key = "person"
max_rows = 2
max_groups = 1
columns = { kind = { type = "text" } }
"""


def test_a_group_of_null_takes_no_place_of_a_group_that_rows_look_up(
    tmp_path: Path, make_engine: MakeEngine, no_noise: None
) -> None:
    """Each person has two groups, of which one may count: that of NULL, which equals no row's key, must not."""
    with duckdb.connect(str(tmp_path / "keys.duckdb")) as connection:
        columns = "i // 2 AS person, CASE i % 2 WHEN 0 THEN 'a' END AS kind"
        connection.execute(f"CREATE TABLE visits AS SELECT {columns} FROM range(80) r(i)")
    (tmp_path / "keys.toml").write_text(NULL_KEYS, encoding="utf-8")
    looked_up = "SELECT COUNT(*) FROM visits w WHERE w.kind = v.kind"
    answer = run(make_engine(tmp_path / "keys.toml"), f"SELECT COUNT(*) FROM visits v WHERE ({looked_up}) = 40")
    assert answer.rows.rows == ((40,),)
