"""Whose budget pays, from SQL to refusal: the role's default, the limit for one query, the group's budget, the cap."""

import json
from pathlib import Path

import pytest

import dpsql
from dpsql.errors import BudgetExhausted, InvalidParameter, PolicyViolation
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder
from dpsql.privacy.accounting import Spent
from tests.conftest import MakeEngine

COUNT = "SELECT COUNT(*) FROM patients"
GROUP = '\n[groups.team]\nbudget = { epsilon = 1, delta = 1e-6, window = "30 days" }\n'
CAP = "budget = { epsilon = 20, delta = 1e-6 }"


def run(session: Session, sql: str) -> Result:
    (statement,) = session.parse(sql)
    return session.execute(statement)


def budgets(session: Session) -> list[dict[str, object]]:
    result = run(session, "SELECT * FROM dpsql.budget")
    assert result.columns is not None
    return [dict(zip([column.name for column in result.columns], row, strict=True)) for row in result.rows]


def written(clinic_policy: Path, folder: Path, old: str, new: str) -> Path:
    """Return the clinic's policy with a change."""
    text = clinic_policy.read_text(encoding="utf-8")
    assert old in text
    text = text.replace("duckdb:///clinic.duckdb", f"duckdb:///{clinic_policy.with_suffix('.duckdb')}")
    policy = folder / "clinic.toml"
    policy.write_text(text.replace(old, new, 1), encoding="utf-8")
    return policy


@pytest.fixture
def team(make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path) -> Engine:
    """The clinic with ana and ben in one group."""
    engine = make_engine(written(clinic_policy, tmp_path, "\n[tables.patients]", f"{GROUP}\n[tables.patients]"))
    for user in ("ana", "ben"):
        engine.ledger.set_group(user, "team")
    return engine


def test_a_query_costs_what_the_role_says_unless_the_session_does(engine: Engine, session: Session) -> None:
    run(session, COUNT)
    run(session, "SET dpsql.epsilon = 0.5")
    run(session, f"{COUNT} WHERE age > 30")
    prices = [Spent.zero().add(charge.price).rho for charge in engine.ledger.history("ana")]
    assert [float(rho) for rho in prices] == pytest.approx([0.1**2 / 2, 0.5**2 / 2], rel=1e-3)


@pytest.mark.parametrize("epsilon", ["1.01", "20", "1e300"])
def test_no_way_leads_beyond_the_limit_for_one_query(engine: Engine, clinic_policy: Path, epsilon: str) -> None:
    session = Session(engine, "ana")
    with pytest.raises(InvalidParameter):
        run(session, f"SET dpsql.epsilon = {epsilon}")
    run(session, "BEGIN")
    with pytest.raises(InvalidParameter):
        run(session, f"SET LOCAL dpsql.epsilon = '{epsilon}'")
    run(session, "ROLLBACK")
    with pytest.raises(InvalidParameter):
        session.configure("dpsql.epsilon", epsilon)  # as a connection's options do
    ledger = f"sqlite:///{clinic_policy.with_name('limit.sqlite')}"
    with pytest.raises(dpsql.DataError):
        dpsql.connect(clinic_policy, user="ana", ledger=ledger, epsilon=epsilon)
    assert engine.ledger.history() == []
    run(session, "SET dpsql.epsilon = 0.9")
    run(session, COUNT)


def test_a_session_that_is_open_does_not_outlive_its_roles_limit(
    make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path
) -> None:
    guest = "[roles.guest]\nbudget = { epsilon = 1, delta = 1e-6 }\nquery = { epsilon = 0.01, max_epsilon = 0.05 }\n\n"
    engine = make_engine(written(clinic_policy, tmp_path, "[tables.patients]", f"{guest}[tables.patients]"))
    sessions = [Session(engine, "ana") for _ in range(3)]
    run(sessions[1], "SET dpsql.epsilon = 0.06")
    run(sessions[2], "SET dpsql.target_error = 50")
    engine.ledger.set_role("ana", "guest")
    run(sessions[0], COUNT)
    (charge,) = engine.ledger.history("ana")
    assert float(Spent.zero().add(charge.price).rho) == pytest.approx(0.01**2 / 2, rel=1e-3)
    for sql in (COUNT, f"EXPLAIN {COUNT}"):
        with pytest.raises(InvalidParameter, match=r'and 0\.05, the limit of role "guest"') as refusal:
            run(sessions[1], sql)
        assert refusal.value.hint == "Write: SET dpsql.epsilon = 0.01"
    with pytest.raises(InvalidParameter, match=r"epsilon 0\.05, the limit for one query"):
        run(sessions[2], "SELECT COUNT(*), COUNT(city) FROM patients")
    assert len(engine.ledger.history()) == 1
    run(sessions[1], "SET dpsql.epsilon = 0.05")
    run(sessions[1], COUNT)


def test_who_has_asked_for_laplace_noise_alone_is_told_that_more_of_it_fits(session: Session) -> None:
    """What the second clause of zcdp admits, the first does not: the default's Gaussian noise no longer fits."""
    run(session, "SET dpsql.epsilon = 1")
    run(session, "SET dpsql.mechanism = 'laplace'")
    run(session, COUNT)
    run(session, "RESET dpsql.mechanism")
    run(session, "RESET dpsql.epsilon")
    with pytest.raises(BudgetExhausted, match="at most 0 is left for one query") as refusal:
        run(session, f"{COUNT} WHERE age > 30")
    why, _, hint = str(refusal.value.hint).partition(" Write: ")
    assert why == "Epsilon 4 is left for Laplace noise."
    run(session, hint)
    run(session, f"{COUNT} WHERE age > 30")
    assert budgets(session)[0]["epsilon_remaining"] == 3.9


def test_the_cap_stops_users_who_have_budget_left(make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path) -> None:
    engine = make_engine(written(clinic_policy, tmp_path, CAP, "budget = { epsilon = 1, delta = 1e-6 }"))
    sessions = [Session(engine, user) for user in ("ana", "ben")]
    run(sessions[0], COUNT)
    with pytest.raises(BudgetExhausted, match='the cap of "clinic" over all users') as refusal:
        for age in range(10):
            run(sessions[age % 2], f"{COUNT} WHERE age > {age}")
    assert refusal.value.remaining is None
    for session in sessions:
        (row,) = budgets(session)
        assert isinstance(row["epsilon_remaining"], float)
        assert row["epsilon_remaining"] > 4


def test_members_see_their_own_and_the_shared_budget(team: Engine) -> None:
    ana, ben = Session(team, "ana"), Session(team, "ben")
    run(ana, COUNT)
    run(ben, COUNT)  # a copy: nothing new to the group
    own, shared = budgets(ben)
    assert (own["scope"], own["epsilon_limit"], own["queries"]) == ("user", 5.0, 1)
    assert (shared["scope"], shared["epsilon_limit"], shared["queries"]) == ("group team", 1.0, 1)
    assert str(shared["note"]).startswith("renews every 30 days, next on ")
    assert str(own["note"]).startswith("never renews")
    assert isinstance(own["last_query_fits"], int)
    assert isinstance(shared["last_query_fits"], int)
    assert own["last_query_fits"] > shared["last_query_fits"]


def test_members_are_told_what_is_left_of_the_shared_budget(team: Engine) -> None:
    def left(which: int, digits: int = 4) -> str:
        return f"{budgets(ana)[which]['epsilon_remaining']:.{digits}g}"

    ana, ben = Session(team, "ana"), Session(team, "ben")
    run(ben, COUNT)
    notice = run(ana, f"{COUNT} WHERE age > 30").notices[0].message
    assert f'; remaining: epsilon {left(0)} of 5; remaining of group "team": epsilon {left(1)} of 1; ' in notice
    assert float(left(1)) < 1 < float(left(0))
    plan = [str(row[0]) for row in run(ana, f"EXPLAIN {COUNT} WHERE age > 40").rows]
    assert plan[1].startswith("Remaining: epsilon 4.9")
    assert plan[2].startswith(f'Remaining of group "team": epsilon {left(1, 6)} of 1, ')
    told = json.loads(str(run(ana, f"EXPLAIN (FORMAT JSON) {COUNT} WHERE age > 40").rows[0][0]))
    assert told["group"]["name"] == "team"
    assert f"{told['group']['remaining']['epsilon']:.4g}" == left(1)
    statements = ana.parse(f"EXPLAIN {COUNT} WHERE age > 40; EXPLAIN {COUNT} WHERE age > 50")
    together = [str(row[0]) for row in [ana.execute(statement) for statement in statements][-1].rows]
    for age in (40, 50):
        run(ana, f"{COUNT} WHERE age > {age}")
    told = f'Remaining after them of group "team": epsilon {left(1, 6)} of 1, '
    assert together[together.index("SQL of release 1:") - 1].startswith(told)


def test_who_is_in_no_group_is_told_of_none(session: Session) -> None:
    assert "group" not in run(session, COUNT).notices[0].message
    assert "group" not in str(run(session, f"EXPLAIN {COUNT}; ").rows).partition("SQL of release")[0]
    assert "group" not in json.loads(str(run(session, f"EXPLAIN (FORMAT JSON) {COUNT}").rows[0][0]))


def test_as_many_more_of_the_last_query_fit_as_is_said(team: Engine) -> None:
    session = Session(team, "ana")
    run(session, "SET dpsql.epsilon = 0.08")
    assert [row["last_query_fits"] for row in budgets(session)] == [None, None]
    run(session, "SELECT sex, COUNT(*), AVG(age) FROM patients GROUP BY sex")
    fits = budgets(session)[1]["last_query_fits"]
    assert isinstance(fits, int)
    assert fits > 1
    with pytest.raises(BudgetExhausted, match='the budget of group "team"'):
        for age in range(fits + 1):
            run(session, f"SELECT sex, COUNT(*), AVG(age) FROM patients WHERE age > {age} GROUP BY sex")
    assert len(team.ledger.history("ana")) == 1 + fits
    assert budgets(session)[1]["last_query_fits"] == 0


def test_a_frozen_user_may_look_but_not_ask(engine: Engine, session: Session) -> None:
    run(session, COUNT)
    engine.ledger.freeze(Holder(BudgetScope.ALL), "being checked")
    with pytest.raises(PolicyViolation, match="all accounts are frozen by the data owner"):
        run(session, COUNT)
    assert len(budgets(session)) == 1
