"""SET dpsql.target_error: the least ε that is announced to be exact enough, found from the plan or round by round."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import inf
from pathlib import Path
from statistics import median_high, median_low
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.backends import Cancellation
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.dbapi import Connection
from dpsql.errors import BudgetExhausted, InvalidParameter, QueryCanceled
from dpsql.gateway.answers import Answer
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Notice, Result
from dpsql.gateway.session import Session
from dpsql.gateway.settings import ErrorTarget, Settings
from dpsql.gateway.target import Course, Measure, chart
from dpsql.ledger import Charge
from dpsql.policy import Budget, Policy, load_policy
from dpsql.privacy.accounting import Accountant, Spent
from tests.conftest import Lend, MakeEngine, open_engine

COUNT = "SELECT COUNT(*) FROM patients"
BY_SEX = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"
MEANS = "SELECT sex, AVG(age) AS a, COUNT(*) AS n FROM patients GROUP BY sex ORDER BY sex"
FLOOR = Fraction(1, 1000)
LEAST = Fraction("0.0094")
"""The least ε of the grid at which a count may be read: more than 1/10,001 of the analyst's whole budget."""


def run(session: Session, sql: str, *values: object) -> Result:
    (statement,) = session.parse(sql)
    return session.execute(statement, values)


def aim(session: Session, target: str) -> None:
    run(session, f"SET dpsql.target_error = '{target}'")


def told(result: Result) -> str:
    """The notice of an answer."""
    return next(notice.message for notice in result.notices if notice.severity == "NOTICE")


def warning(result: Result) -> Notice | None:
    return next((notice for notice in result.notices if notice.severity == "WARNING"), None)


def charges(result: Result) -> list[Charge]:
    """The charges of an answer's rounds, in their order."""
    assert result.answer is not None and result.answer.charge is not None
    return [*result.answer.earlier, result.answer.charge]


def epsilons(engine: Engine, user: str = "ana") -> list[Fraction]:
    """ε of each charge of a user under zcdp, to six digits."""
    rhos = [Spent.zero().add(record.price).rho for record in engine.ledger.history(user)]
    return [Fraction(f"{float(2 * rho) ** 0.5:.6g}") for rho in rhos]


def spent(engine: Engine, user: str = "ana") -> Spent:
    return engine.ledger.budget(user, engine.policy).spent


def rich(policy: Path, **budget: Any) -> Policy:
    """The clinic's policy with another budget for analysts, and a cap that nobody reaches."""
    loaded = load_policy(policy)
    role = loaded.roles[0]
    terms = replace(role.budget, **({"epsilon": Fraction(50)} | budget))
    vast = Budget(Fraction(1000), Fraction(1, 100), Accountant.ZCDP, None, Fraction(1, 2))
    return replace(loaded, roles=(replace(role, budget=terms),), dataset=replace(loaded.dataset, budget=vast))


@pytest.fixture
def rich_session(make_engine: MakeEngine, clinic_policy: Path, lend: Lend) -> Session:
    """A session whose budget covers whatever a test asks."""
    return Session(make_engine(rich(clinic_policy), backend=lend(clinic_policy)), "ana")


def compiler(engine: Engine, sql: str, **changes: str) -> Callable[[Fraction], CompiledQuery]:
    """Return a function that plans a query for an ε, with intervals."""
    session = Session(engine, "ana")
    (statement,) = session.parse(sql)
    assert isinstance(statement.parsed, QueryStatement)
    parsed = statement.parsed
    chosen = Settings(engine.policy, engine.role("ana"))
    for name, value in changes.items():
        chosen.set(f"dpsql.{name}", value)
    asked = replace(chosen.query(engine.now(), "ana"), intervals=True)
    return lambda epsilon: engine.compile("ana", parsed, replace(asked, epsilon=epsilon))


def announced(query: CompiledQuery) -> float:
    """The widest interval that the plan announces."""
    return max(c.error.plus_minus_95 for c in query.columns if c.error is not None and c.error.plus_minus_95)


def lesser(epsilon: Fraction) -> Fraction:
    """The number of three digits below one of three digits."""
    step = Fraction(1, 10**12)
    while epsilon >= 1000 * step:
        step *= 10
    return epsilon - step if epsilon > 100 * step else epsilon - step / 10


# A number, and intervals that follow from the plan


ABSOLUTE = [
    (COUNT, "50"),
    (COUNT, "7.5"),
    (BY_SEX, "20"),
    ("SELECT city, COUNT(*) FROM patients GROUP BY city", "12"),
    ("SELECT SUM(cost) FROM visits", "3000000"),
    ("SELECT sex, COUNT(*), SUM(age) FROM patients GROUP BY sex", "4000"),
    ("SELECT COUNT(*) FROM patients UNION ALL SELECT COUNT(*) FROM visits", "400"),
    ("SELECT COUNT(*) FROM visits WHERE cost > (SELECT AVG(cost) FROM visits)", "900"),
]


@pytest.mark.parametrize("mechanism", ["auto", "laplace", "gaussian"])
@pytest.mark.parametrize(("sql", "target"), ABSOLUTE)
def test_the_least_epsilon_that_meets_a_number_is_asked(
    rich_session: Session, sql: str, target: str, mechanism: str
) -> None:
    engine = rich_session._engine
    run(rich_session, f"SET dpsql.mechanism = '{mechanism}'")
    aim(rich_session, target)
    explained = rich_session.explain(rich_session.parse(sql)[0])
    result = run(rich_session, sql)
    (charge,) = charges(result)
    assert result.answer is not None and result.answer.query.price is not None
    epsilon = result.answer.query.price.epsilon
    plan = compiler(engine, sql, mechanism=mechanism)
    assert announced(result.answer.query) <= float(target) < announced(plan(lesser(epsilon)))
    assert warning(result) is None
    assert f"target {target} met: " in told(result)
    assert explained.cost.epsilon == epsilon
    assert explained.cost.spent == charge.price == spent(engine)
    assert len(engine.ledger.history("ana")) == 1


@pytest.mark.parametrize(
    ("accountant", "delta"), [("pure", 0), ("basic", "1e-6"), ("advanced", "1e-6"), ("rdp", "1e-6")]
)
def test_every_accountant_has_a_least_epsilon(
    make_engine: MakeEngine, clinic_policy: Path, accountant: str, delta: str
) -> None:
    policy = rich(clinic_policy, accountant=Accountant(accountant), delta=Fraction(delta))
    engine = make_engine(policy)
    plan = compiler(engine, BY_SEX)
    course = chart(ErrorTarget("40", 40.0, False), Fraction(1), plan)
    assert course is not None and course.settled
    assert announced(course.first) <= 40 < announced(plan(lesser(course.epsilon)))


@pytest.fixture(scope="module")
def planner(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    engine = open_engine(rich(clinic_policy), tmp_path_factory.mktemp("target") / "ledger.sqlite")
    yield compiler(engine, "SELECT sex, COUNT(*), SUM(age) FROM patients GROUP BY sex")
    engine.close()
    engine.ledger.close()


@settings(max_examples=40, deadline=None)
@given(target=st.floats(min_value=1, max_value=1e8), limit=st.fractions(FLOOR / 10, 10, max_denominator=10**6))
def test_no_number_is_met_by_less(planner: Callable[[Fraction], CompiledQuery], target: float, limit: Fraction) -> None:
    wanted = ErrorTarget(f"{target}", target, False)
    # The policy lets one query have ε = 1 at the most.
    limit = min(limit, Fraction(1))
    if announced(planner(limit)) > target:
        with pytest.raises(InvalidParameter):
            chart(wanted, limit, planner)
        return
    course = chart(wanted, limit, planner)
    assert course is not None and course.settled
    assert announced(course.first) <= target
    assert course.epsilon <= limit
    assert course.epsilon <= FLOOR or announced(planner(lesser(course.epsilon))) > target or course.epsilon == limit


def test_what_no_epsilon_meets_is_refused_and_the_hint_works(rich_session: Session) -> None:
    engine, session = rich_session._engine, rich_session
    aim(session, "1.5")
    sql = "SELECT COUNT(*) AS n, SUM(age) FROM patients"
    for refused in (sql, f"EXPLAIN {sql}"):
        with pytest.raises(InvalidParameter) as caught:
            run(session, refused)
        assert caught.value.sqlstate == "22023"
        assert '"sum" is within ± ' in caught.value.message
        assert "at epsilon 1, the limit for one query" in caught.value.message
    assert engine.ledger.history() == []
    assert caught.value.hint is not None
    run(session, caught.value.hint.removeprefix("Write: "))
    assert warning(run(session, sql)) is None


@pytest.mark.parametrize("sql", ["SELECT COUNT(*) FROM doctors", "SELECT 1", "SELECT DISTINCT sex FROM patients"])
def test_what_has_no_noise_has_no_target(engine: Engine, session: Session, sql: str) -> None:
    aim(session, "1 %")
    explained = session.explain(session.parse(sql)[0])
    assert explained.target is None and explained.cost.free and not explained.reused
    result = run(session, sql)
    assert result.rows and warning(result) is None
    assert spent(engine) == Spent.zero()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) * 2 FROM patients",
        "SELECT sex FROM patients GROUP BY sex HAVING COUNT(*) > 10",
        "SELECT DISTINCT a FROM (SELECT sex, AVG(age) AS a FROM patients GROUP BY sex) AS t",
    ],
)
@pytest.mark.parametrize("target", ["5 %", "50"])
def test_a_query_without_an_announced_interval_is_refused(
    engine: Engine, session: Session, sql: str, target: str
) -> None:
    aim(session, target)
    with pytest.raises(InvalidParameter, match="this query has none") as caught:
        run(session, sql)
    assert caught.value.hint is not None and "dpsql.target_error = off" in caught.value.hint
    assert engine.ledger.history() == []
    run(session, "SET dpsql.target_error = off")
    run(session, sql)


def test_what_so_little_epsilon_cannot_plan_begins_higher(planner: Callable[[Fraction], CompiledQuery]) -> None:
    """A selection of groups, or noise, may be out of reach at the least ε; that is no reason to refuse."""

    def fussy(epsilon: Fraction) -> CompiledQuery:
        if epsilon < Fraction(3, 100):
            raise InvalidParameter("too little")
        return planner(epsilon)

    course = chart(ErrorTarget("5 %", 0.05, True), Fraction(1), fussy)
    assert course is not None and course.epsilon == Fraction(3, 100)
    with pytest.raises(InvalidParameter, match="too little"):
        chart(ErrorTarget("5 %", 0.05, True), Fraction(2, 100), fussy)


# Percentages, and averages: round by round


@pytest.mark.usefixtures("no_noise")
def test_rounds_grow_to_what_the_released_cells_ask(engine: Engine, session: Session) -> None:
    """500 patients within 5 %, so ± 25: without noise the course is known.

    ± 209 at ε = 0.0094 tells no more than that there are 709 at the most: 209 / (5 % of 709) is 5.9 times ε.
    ± 35 at 0.0555 is more than 5 %, and a round asks for at least twice the ε of the one before.
    """
    aim(session, "5 %")
    result = run(session, COUNT)
    assert result.rows == ((500,),)
    assert epsilons(engine) == [LEAST, Fraction("0.0555"), Fraction("0.111")]
    assert "price: epsilon 0.124457 (rho 0.0077448" in told(result)
    assert "target 5 % of the median size met: count ± 3.6 %" in told(result)
    assert warning(result) is None


PERCENT = [
    (COUNT, "5 %"),
    (BY_SEX, "20 %"),
    (MEANS, "30 %"),
    (MEANS, "12"),
    ("SELECT AVG(age) FROM patients", "3"),
    ("SELECT AVG(age), COUNT(*) FROM patients", "60"),
    ("SELECT SUM(weight) FROM patients", "15 %"),
    ("SELECT city, COUNT(*) FROM patients GROUP BY city ORDER BY 2 DESC LIMIT 3", "25 %"),
]


def measured(rows: list[tuple[Any, ...]], place: int) -> tuple[float, float]:
    """The lower median of a column's margins, and the upper one of its sizes; its limits stand beside it."""
    values = [[float(cell) for cell in row[place : place + 3]] for row in rows if row[place] is not None]
    return median_low((high - low) / 2 for _, low, high in values), median_high(abs(row[0]) for row in values)


@pytest.mark.parametrize(("sql", "target"), PERCENT)
def test_what_is_announced_in_the_end_meets_the_target(rich_session: Session, sql: str, target: str) -> None:
    engine = rich_session._engine
    aim(rich_session, target)
    run(rich_session, "SET dpsql.intervals = on")
    explained = rich_session.explain(rich_session.parse(sql)[0])
    result = run(rich_session, sql)
    assert result.answer is not None and result.columns is not None
    assert warning(result) is None
    for place in result.answer.query.limited:
        margin, size = measured(list(result.rows), place)
        bound = float(target.removesuffix("%")) / 100 * size if "%" in target else float(target)
        assert margin <= bound * (1 + 1e-9)
    rounds = charges(result)
    # What is told is what was charged, once for each round.
    assert result.answer.cost is not None
    assert result.answer.cost.spent == spent(engine)
    assert spent(engine).rho == sum(charge.price.rho for charge in rounds)
    assert len(rounds) == len(engine.ledger.history("ana"))
    assert all(later >= 2 * former for former, later in itertools.pairwise(epsilons(engine)))
    assert spent(engine).rho <= Fraction(4, 3) * rounds[-1].price.rho
    # EXPLAIN knew the least and the most of it.
    assert explained.cost.spent == rounds[0].price
    assert explained.most.cost.spent.rho >= spent(engine).rho
    assert explained.most.cost.delta >= spent(engine).delta
    assert len(explained.charged) >= len(rounds)


def test_asked_again_all_rounds_are_free_and_the_answer_the_same(rich_session: Session) -> None:
    engine = rich_session._engine
    aim(rich_session, "20 %")
    first = run(rich_session, MEANS)
    before = spent(engine)
    again = run(rich_session, MEANS)
    assert again.rows == first.rows
    assert spent(engine) == before
    assert again.answer is not None and again.answer.reused
    assert again.answer.cost is not None and again.answer.cost.free
    assert f"price: free, your earlier release for {len(charges(first))} rounds" in told(again)
    assert rich_session.explain(rich_session.parse(MEANS)[0]).reused


def test_another_user_pays_for_the_same_rounds_and_is_not_told(rich_session: Session) -> None:
    engine = rich_session._engine
    other = Session(engine, "ben")
    for session in (rich_session, other):
        aim(session, "20 %")
    fresh = other.explain(other.parse(BY_SEX)[0])
    first = run(rich_session, BY_SEX)
    assert other.explain(other.parse(BY_SEX)[0]).quotation == fresh.quotation
    second = run(other, BY_SEX)
    assert second.rows == first.rows
    assert told(second) == told(first)
    assert spent(engine, "ben") == spent(engine)


def test_without_reuse_the_rounds_are_paid_again(rich_session: Session) -> None:
    engine = rich_session._engine
    aim(rich_session, "20 %")
    run(rich_session, COUNT)
    before = spent(engine).rho
    run(rich_session, "SET dpsql.reuse = off")
    assert not rich_session.explain(rich_session.parse(COUNT)[0]).cost.free
    again = run(rich_session, COUNT)
    assert again.answer is not None and again.answer.cost is not None
    assert again.answer.cost.spent.rho == spent(engine).rho - before > 0


@pytest.mark.usefixtures("no_noise")
def test_intervals_are_shown_to_those_who_ask_for_them(session: Session) -> None:
    aim(session, "30 %")
    (statement,) = session.parse(MEANS)
    plain = run(session, MEANS)
    assert plain.columns == session.describe(statement).columns
    assert [column.name for column in plain.columns or ()] == ["sex", "a", "n"]
    run(session, "SET dpsql.intervals = on")
    wide = run(session, MEANS)
    assert wide.columns == session.describe(statement).columns
    assert [column.name for column in wide.columns or ()] == ["sex", "a", "a_low", "a_high", "n", "n_low", "n_high"]
    assert [(row[0], row[1], row[4]) for row in wide.rows] == list(plain.rows)


@pytest.mark.usefixtures("no_noise")
def test_a_percentage_is_of_the_median_size(engine: Engine, session: Session) -> None:
    """Of an even number of rows it is the upper one: half of the groups are as exact as was asked."""
    aim(session, "20 %")
    result = run(session, BY_SEX)
    assert result.answer is not None
    sizes = sorted(abs(float(str(row[1]))) for row in result.rows)
    assert len(sizes) == 4 and sizes[1] < sizes[2]
    assert announced(result.answer.query) <= 0.2 * sizes[2]
    assert announced(result.answer.query) > 0.2 * sizes[1]


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize(("target", "second"), [("1 %", "0.0204"), ("10.45", "0.0203")])
def test_a_mean_tells_no_more_than_its_range_allows(engine: Engine, session: Session, target: str, second: str) -> None:
    """Its margin, here half the range of 110, is of a noisy count as well.

    Beside 1045 it would tell the ε that is needed; beside half the range it tells 2.6 times as much at the least.
    """
    aim(session, target)
    result = run(session, "SELECT AVG(age + 1000) FROM patients")
    assert 1040 < float(str(result.rows[0][0])) < 1050
    assert epsilons(engine)[:2] == [LEAST, Fraction(second)]


@pytest.mark.usefixtures("no_noise")
def test_columns_that_are_not_announced_are_not_spoken_of(session: Session) -> None:
    aim(session, "50 %")
    result = run(session, "SELECT sex, COUNT(*) AS n, COUNT(*) / 2 AS half FROM patients GROUP BY sex")
    assert "target 50 % of the median size met: n ± " in told(result)
    target = told(result).partition("target")[2]
    assert "half ±" not in target


@pytest.mark.usefixtures("no_noise")
def test_private_groups_pay_delta_in_each_round_and_come_when_epsilon_suffices(
    engine: Engine, session: Session
) -> None:
    aim(session, "10 %")
    sql = "SELECT city, COUNT(*) AS n FROM patients GROUP BY city HAVING COUNT(*) > 1000000"
    result = run(session, sql)
    # No row, so nothing tells how exact: ε doubles to the end.
    assert result.rows == ()
    found = warning(result)
    assert found is not None and found.message == "target 10 % of the median size missed: n without a value"
    assert found.sqlstate == "01000"
    assert found.detail == "it needs more than epsilon 1, the limit for one query"
    asked = ("0.0094", "0.0188", "0.0376", "0.0752", "0.151", "0.302", "0.604")
    assert epsilons(engine) == [Fraction(epsilon) for epsilon in asked]
    assert spent(engine).delta == 7 * Fraction(1, 10**9)


# Ends before the target is met


@pytest.mark.usefixtures("no_noise")
def test_the_budget_may_end_between_rounds(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """The third round of ε = 0.104 does not fit; the second's answer is handed out, and is free from then on."""
    engine = make_engine(rich(clinic_policy, epsilon=Fraction("0.3")))
    session = Session(engine, "ana")
    aim(session, "5 %")
    run(session, "SET dpsql.notices = off")
    result = run(session, COUNT)
    assert result.rows == ((500,),)
    assert epsilons(engine) == [Fraction("0.001"), Fraction("0.016")]
    (only,) = result.notices  # notices are off, warnings are not
    assert only.severity == "WARNING"
    assert only.message == "target 5 % of the median size missed: count ± 24.4 %"
    assert only.detail is not None and only.detail.startswith('the budget of "ana" does not cover this query: it costs')
    before = spent(engine)
    assert run(session, COUNT).rows == result.rows
    assert spent(engine) == before
    explained = session.explain(session.parse(COUNT)[0])
    assert explained.quotation.refused is None
    assert explained.most.refused == 0


def test_a_first_round_that_does_not_fit_is_refused(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(rich(clinic_policy, epsilon=Fraction("0.3")))
    session = Session(engine, "ana")
    aim(session, "12")
    with pytest.raises(BudgetExhausted) as caught:
        run(session, COUNT)
    assert engine.ledger.history() == []
    assert caught.value.hint is not None
    for change in session.parse(caught.value.hint.removeprefix("Write: ")):
        session.execute(change)
    run(session, COUNT)


def test_a_cap_that_ends_the_first_round_tells_no_number(make_engine: MakeEngine, clinic_policy: Path) -> None:
    policy = rich(clinic_policy)
    spent_up = replace(policy.dataset.budget, accountant=Accountant.PURE, delta=Fraction(0))  # no Gaussian noise fits
    session = Session(make_engine(replace(policy, dataset=replace(policy.dataset, budget=spent_up))), "ana")
    aim(session, "5 %")
    with pytest.raises(BudgetExhausted, match="cap of") as caught:
        run(session, COUNT)
    assert caught.value.hint == "Ask the data owner: the cap never renews."


@pytest.mark.usefixtures("no_noise")
def test_what_the_limit_will_not_meet_ends_early_and_says_what_can_be_reached(engine: Engine, session: Session) -> None:
    """Of 500 patients ± 2 at ε = 1 is 0.4 %: ± 0.2 % is out of reach as soon as the count is told."""
    aim(session, "0.2 %")
    found = warning(run(session, COUNT))
    assert found is not None and found.detail is not None
    assert "more than epsilon 1, the limit for one query; about 0.393 % can be reached" in found.detail
    assert max(epsilons(engine)) <= Fraction(1, 4)
    run(session, f"SET dpsql.target_error = '{found.detail.split('about ')[1].split(' can')[0]}'")
    assert len(epsilons(engine)) < 10


@pytest.mark.usefixtures("no_noise")
def test_a_count_of_nobody_ends_early(engine: Engine, session: Session) -> None:
    aim(session, "5 %")
    found = warning(run(session, f"{COUNT} WHERE age > 200"))
    assert found is not None
    assert (
        found.message
        == f"target 5 % of the median size missed: count ± {round(1.96 / float(epsilons(engine)[-1])):,} of 0"
    )
    assert found.detail == "it needs more than epsilon 1, the limit for one query"
    assert spent(engine).rho < Fraction(1, 30)


@pytest.mark.usefixtures("no_noise")
def test_a_mean_out_of_reach_says_what_can_be_reached(session: Session) -> None:
    aim(session, "0.01")
    found = warning(run(session, "SELECT AVG(age) FROM patients"))
    assert found is not None and found.detail is not None
    assert "about 0." in found.detail and found.detail.endswith(" can be reached")


def test_a_cancel_between_rounds_keeps_the_charge_of_the_first(engine: Engine) -> None:
    may_read = partial(engine.may_read, "ana")
    course = chart(ErrorTarget("5 %", 0.05, True), Fraction(1), compiler(engine, COUNT), may_read)
    assert course is not None
    cancellation = Cancellation()

    def execute(query: CompiledQuery) -> Answer:
        answer = engine.execute("ana", query, cancellation)
        cancellation.cancel()
        return answer

    with pytest.raises(QueryCanceled):
        course.pursue(execute)
    assert epsilons(engine) == [LEAST]


# Placeholders, transactions, EXPLAIN


@pytest.mark.usefixtures("no_noise")
def test_a_prepared_statement_is_aimed_each_time_it_is_run(engine: Engine, session: Session) -> None:
    aim(session, "25")
    (statement,) = session.parse(f"{COUNT} WHERE age > $1")
    described = session.describe(statement)
    for age in (20, 40, 20):
        result = session.execute(statement, (age,), described.parameters)
        assert result.columns == described.columns
        assert "target 25 met: count ± 25" in told(result)
    assert epsilons(engine)[:2] == [Fraction("0.0769")] * 2


@pytest.mark.usefixtures("no_noise")
def test_cursors_and_prepared_statements_of_sql_are_aimed_too(engine: Engine, session: Session) -> None:
    aim(session, "25")
    run(session, f"PREPARE older AS {COUNT} WHERE age > $1")
    run(session, "EXECUTE older (30)")
    run(session, f"DECLARE c CURSOR WITH HOLD FOR {COUNT} WHERE age > 40")
    assert epsilons(engine) == [Fraction("0.0769")] * 2


def test_a_rollback_takes_the_target_back(session: Session) -> None:
    run(session, "BEGIN")
    aim(session, "5 %")
    assert run(session, "SHOW dpsql.target_error").rows == [("5 %",)]
    run(session, "ROLLBACK")
    assert run(session, "SHOW dpsql.target_error").rows == [("off",)]


def test_explain_tells_the_epsilon_that_meets_a_number(engine: Engine, session: Session) -> None:
    aim(session, "50")
    lines = [row[0] for row in run(session, f"EXPLAIN {COUNT}").rows]
    assert lines[0] == "Price: epsilon 0.0389 (rho 0.000756605)"
    assert lines[1] == "Target 50: met, at the smallest epsilon that is enough"
    assert lines[3].startswith("Column count (bigint): ± 50 at 95 %")  # type: ignore[attr-defined]
    told_as_json = json.loads(str(run(session, f"EXPLAIN (FORMAT JSON) {COUNT}").rows[0][0]))
    assert told_as_json["target"] == {"error": "50", "rounds": 1, "most": told_as_json["price"], "fits": True}
    assert engine.ledger.history() == []


def test_explain_tells_how_rounds_will_go_and_what_they_may_cost(engine: Engine, session: Session) -> None:
    aim(session, "5 %")
    lines = [str(row[0]) for row in run(session, f"EXPLAIN {MEANS}").rows]
    assert lines[0] == "Price: epsilon 0.0094 (rho 4.418e-05)"
    assert lines[1].startswith("Target 5 %: in rounds, each with at least twice the epsilon of the round before")
    # ρ of 1/2, 1/8, 1/32 … is more than the analyst's 0.44.
    assert lines[2] == "All rounds together: at most epsilon 1.15467 (rho 0.666626) in 7 rounds, over the budget"
    assert not any("_low" in line for line in lines if line.startswith("Column"))
    target = json.loads(str(run(session, f"EXPLAIN (FORMAT JSON) {MEANS}").rows[0][0]))["target"]
    assert (target["error"], target["rounds"], target["fits"]) == ("5 %", 7, False)
    assert 0.66 < target["most"]["rho"] < 0.67
    assert engine.ledger.history() == []


def test_a_course_of_one_round_may_still_miss(session: Session) -> None:
    """± 5 in counts takes more than half of the limit, so there is one round; its average tells how exact it is."""
    aim(session, "5")
    lines = [str(row[0]) for row in run(session, f"EXPLAIN {MEANS}").rows]
    assert lines[1].startswith("Target 5: in rounds")
    assert lines[2] == "All rounds together: at most epsilon 1 (rho 0.5) in 1 round, over the budget"


def test_explained_together_the_rounds_count_with_the_most_they_cost(session: Session) -> None:
    run(session, "SET dpsql.target_error = '5 %'")
    *_, last = session.parse(f"EXPLAIN SELECT COUNT(*) FROM doctors; EXPLAIN {COUNT}")
    lines = [str(row[0]) for row in session.execute(last).rows]
    assert lines[lines.index("SQL of release 1:") - 2] == (
        "All 2 statements together: at most epsilon 1.15467 (rho 0.666626), over the budget; "
        "statement 2 is the first that exceeds it"
    )


# Python


def test_the_dbapi_takes_a_target_and_tells_the_price_of_all_rounds(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    engine = make_engine(rich(clinic_policy))
    connection = Connection(engine, "ana")
    connection.configure({"dpsql.target_error": "10 %"})
    cursor = connection.cursor()
    cursor.execute(MEANS)
    assert cursor.release is not None
    assert cursor.release.cost["rho"] == float(spent(engine).rho)
    assert cursor.release.cost["epsilon"] == pytest.approx(float(2 * spent(engine).rho) ** 0.5)
    assert set(cursor.release.error) == {"a", "n"}
    cursor.execute(MEANS)
    assert cursor.release.cost == {"epsilon": 0.0, "delta": 0.0, "rho": 0.0}
    assert cursor.release.reused


# Measures


@pytest.mark.parametrize(
    ("margin", "size", "met", "ratio", "least", "most"),
    [
        (10.0, 100.0, True, 1.0, 10 / 11, 10 / 9),
        (20.0, 100.0, False, 2.0, 20 / 12, 20 / 8),
        (100.0, 100.0, False, 10.0, 5.0, inf),
        (100.0, 0.0, False, inf, 10.0, inf),
        (None, 100.0, False, inf, 0.0, inf),
        (10.0, None, False, inf, 0.0, inf),
    ],
)
def test_measures(margin: float | None, size: float | None, met: bool, ratio: float, least: float, most: float) -> None:
    measure = Measure("n", margin, 0.1, size)
    assert measure.met is met
    assert measure.ratio == pytest.approx(ratio)
    assert measure.least == pytest.approx(least)
    assert measure.most == pytest.approx(most)


def test_the_dearest_rounds_are_halves_of_the_limit(planner: Callable[[Fraction], CompiledQuery]) -> None:
    course = chart(ErrorTarget("5 %", 0.05, True), Fraction(7, 10), planner)
    assert isinstance(course, Course)
    asked = [query.price.epsilon for query in course.rounds() if query.price is not None]
    assert asked[-1] == Fraction(7, 10)
    assert all(later == 2 * former for former, later in itertools.pairwise(asked))
    assert FLOOR <= asked[0] < 2 * FLOOR
