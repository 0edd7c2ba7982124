"""What queries would be charged, alone and together: as the ledger then charges, and nothing of what others asked."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from itertools import takewhile
from pathlib import Path

import pytest

from dpsql.errors import BudgetExhausted, PolicyViolation, UnsupportedQuery
from dpsql.gateway.engine import Engine
from dpsql.gateway.explain import joint_lines
from dpsql.gateway.prices import Quotation, request
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Session
from dpsql.ledger import Reading
from dpsql.ledger.ledger import Ledger
from dpsql.policy import Policy, UserGroup, load_policy
from dpsql.privacy.accounting import Accountant, Spent
from dpsql.privacy.cost import Event, Mechanism, Sensitivity
from dpsql.sqltypes import SqlType
from tests.conftest import Lend, MakeEngine
from tests.ledger.world import charge_only

COUNT = "SELECT COUNT(*) FROM patients"
BY_SEX = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"
BY_CITY = "SELECT city, COUNT(*) FROM patients GROUP BY city"
NESTED = "SELECT COUNT(*) FROM visits WHERE cost > (SELECT AVG(cost) FROM visits)"
PUBLIC = "SELECT COUNT(*) FROM doctors"
CHEAP = Event(Mechanism.LAPLACE, Sensitivity(1, 1, 1, 1), Fraction(10**5))


def run(session: Session, sql: str) -> Result:
    """Run the statements of a text as one message, and return the last one's result."""
    return [session.execute(statement) for statement in session.parse(sql)][-1]


def lines_before_sql(explained: Result) -> list[str]:
    """The lines of EXPLAIN before its SQL."""
    lines = (str(row[0]) for row in explained.rows)
    return list(takewhile(lambda line: not re.fullmatch(r"SQL of release 1:|.* SQL:", line), lines))


def plan(session: Session, sql: str) -> list[str]:
    return lines_before_sql(run(session, sql))


def joint(session: Session, *queries: str) -> Quotation:
    statements = session.parse("; ".join(queries))
    return session.quote([session.explain(statement) for statement in statements])


def charged(session: Session, sql: str) -> Spent:
    answer = run(session, sql).answer
    return Spent.zero() if answer is None or answer.cost is None else answer.cost.spent


def with_budget(path: Path, accountant: str, epsilon: str) -> Policy:
    loaded = load_policy(path)
    role = loaded.roles[0]
    delta = Fraction(0) if accountant == "pure" else role.budget.delta
    budget = replace(role.budget, accountant=Accountant(accountant), epsilon=Fraction(epsilon), delta=delta)
    return replace(loaded, roles=(replace(role, budget=budget),))


BATCHES = [
    (COUNT,),
    (COUNT, COUNT),
    (COUNT, BY_SEX, COUNT, BY_SEX),
    (PUBLIC, COUNT, PUBLIC),
    (f"{BY_SEX} ORDER BY 2", BY_SEX, f"SELECT * FROM ({BY_SEX}) AS t UNION ALL {BY_SEX}"),
    (NESTED, "SELECT AVG(cost) FROM visits", NESTED),
    (f"{COUNT} WHERE age > 10", f"{COUNT} WHERE age > 20", f"{COUNT} WHERE age > 30", f"{COUNT} WHERE age > 10"),
]


@pytest.mark.parametrize("batch", BATCHES, ids=len)
@pytest.mark.parametrize(
    ("accountant", "epsilon"),
    [("zcdp", "5"), ("zcdp", "0.6"), ("pure", "5"), ("pure", "0.2"), ("basic", "0.2"), ("advanced", "1"), ("rdp", "1")],
)
@pytest.mark.parametrize("reuse", ["exact", "off"])
def test_what_is_quoted_is_charged_and_what_is_refused_does_not_fit(
    make_engine: MakeEngine,
    lend: Lend,
    clinic_policy: Path,
    batch: tuple[str, ...],
    accountant: str,
    epsilon: str,
    reuse: str,
) -> None:
    engine = make_engine(with_budget(clinic_policy, accountant, epsilon), backend=lend(clinic_policy))
    session = Session(engine, "ana")
    run(session, f"SET dpsql.reuse = {reuse}")
    quoted = joint(session, *batch)
    assert engine.ledger.history() == []
    refused = None
    for index, sql in enumerate(batch):
        try:
            assert charged(session, sql) == quoted.charges[index].spent
        except BudgetExhausted:
            refused = index
            break
    assert quoted.refused == refused
    if refused is None:
        assert quoted.spent == engine.ledger.budget("ana", engine.policy).spent
        assert quoted.remaining == engine.ledger.budget("ana", engine.policy).remaining


@pytest.mark.parametrize("batch", BATCHES, ids=len)
def test_what_statements_tell_of_one_another_is_charged_less_than_quoted(
    make_engine: MakeEngine, lend: Lend, clinic_policy: Path, batch: tuple[str, ...]
) -> None:
    """A quote is for what the user has by now; what a later statement may be derived of is not there yet."""
    engine = make_engine(clinic_policy, backend=lend(clinic_policy))
    session = Session(engine, "ana")
    quoted = joint(session, *batch)
    for sql, quote in zip(batch, quoted.charges, strict=True):
        assert charged(session, sql).rho <= quote.spent.rho


def test_the_gate_is_asked_to_the_last_charge(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """Twenty charges of 0.1 fit a pure budget of 2, the twenty-first does not."""
    session = Session(make_engine(with_budget(clinic_policy, "pure", "2")), "ana")
    queries = [f"{COUNT} WHERE age > {age}" for age in range(21)]
    assert joint(session, *queries[:20]).refused is None
    assert joint(session, *queries[:20]).remaining.epsilon == 0
    assert joint(session, *queries).refused == 20
    # What is refused is a statement, and what follows it may be free.
    assert joint(session, *queries, PUBLIC, queries[0]).refused == 20


def test_ones_own_earlier_release_is_free_and_said_to_be(engine: Engine, session: Session) -> None:
    fresh = plan(session, f"EXPLAIN {BY_SEX}")
    assert fresh[0] == "Price: epsilon 0.1 (rho 0.005)"
    run(session, BY_SEX)
    again = plan(session, f"EXPLAIN {BY_SEX}")
    assert again[0] == "Price: free, your earlier release"
    assert again[2:] == fresh[2:]
    both = plan(session, f"EXPLAIN {BY_SEX} ORDER BY 2 DESC LIMIT 1")
    assert both[0] == "Price: free, your earlier release"
    run(session, "SET dpsql.reuse = off")
    assert plan(session, f"EXPLAIN {BY_SEX}")[0] == fresh[0]
    assert len(engine.ledger.history("ana")) == 1


def test_part_of_a_price_may_be_an_earlier_release(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """Two counts have half of the price each, and the half of one of them was paid before."""
    session = Session(make_engine(with_budget(clinic_policy, "pure", "5")), "ana")
    sql = "SELECT n, m FROM (SELECT COUNT(*) AS n FROM patients) AS a, (SELECT COUNT(*) AS m FROM visits) AS b"
    assert plan(session, f"EXPLAIN {sql}")[0] == "Price: epsilon 0.1"
    run(session, "SET dpsql.epsilon = 0.05")
    run(session, "SELECT COUNT(*) FROM visits")
    run(session, "RESET dpsql.epsilon")
    assert plan(session, f"EXPLAIN {sql}")[0] == "Price: epsilon 0.05; the rest reuses your earlier releases"
    assert charged(session, sql).pure_epsilon == Fraction(1, 20)


def test_what_others_have_asked_does_not_show(engine: Engine, session: Session) -> None:
    other = Session(engine, "ben")
    text = f"EXPLAIN {BY_SEX}; EXPLAIN {BY_CITY}; EXPLAIN {NESTED}"
    before = [plan(session, one) for one in (f"EXPLAIN {BY_SEX}", f"EXPLAIN (FORMAT JSON) {BY_CITY}", text)]
    for sql in (BY_SEX, BY_CITY, NESTED):
        run(other, sql)
    assert [plan(session, one) for one in (f"EXPLAIN {BY_SEX}", f"EXPLAIN (FORMAT JSON) {BY_CITY}", text)] == before
    assert joint(session, BY_SEX, BY_CITY, NESTED).cost.spent == engine.ledger.budget("ben", engine.policy).spent


def test_a_query_that_does_not_fit_is_said_not_to(make_engine: MakeEngine, clinic_policy: Path) -> None:
    session = Session(make_engine(with_budget(clinic_policy, "pure", "0.05")), "ana")
    assert plan(session, f"EXPLAIN {COUNT}")[0] == "Price: epsilon 0.1, over the budget"
    assert json.loads(plan(session, f"EXPLAIN (FORMAT JSON) {COUNT}")[0])["fits"] is False


def test_what_is_free_fits_though_the_budget_be_exhausted(
    make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.sqlite"
    run(Session(make_engine(with_budget(clinic_policy, "pure", "5"), ledger=ledger), "ana"), COUNT)
    session = Session(make_engine(with_budget(clinic_policy, "pure", "0.05"), ledger=ledger), "ana")
    assert joint(session, COUNT, COUNT, PUBLIC).refused is None
    assert joint(session, COUNT, BY_SEX).refused == 1
    run(session, COUNT)


def test_the_budget_of_the_group_is_asked_too_and_does_not_tell_what_members_asked(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    policy = with_budget(clinic_policy, "pure", "5")
    shared = replace(policy.roles[0].budget, epsilon=Fraction("0.25"))
    engine = make_engine(replace(policy, groups=(UserGroup("team", shared, None),)))
    for user in ("ana", "ben"):
        engine.ledger.set_group(user, "team")
    session, other = Session(engine, "ana"), Session(engine, "ben")
    batch = (COUNT, BY_SEX, f"{COUNT} WHERE age > 30")
    assert joint(session, *batch).refused == 2
    run(other, COUNT)
    # The group would not pay for COUNT again; but that it would not is what ben has asked.
    assert joint(session, *batch).refused == joint(session, f"{COUNT} WHERE age > 40", *batch[1:]).refused == 1
    for sql in batch[:2]:
        run(session, sql)
    with pytest.raises(BudgetExhausted, match="group"):
        run(session, batch[2])
    assert joint(session, *batch).refused == 2
    assert plan(session, f"EXPLAIN {batch[2]}")[0] == "Price: epsilon 0.1, over the budget"


# Several EXPLAINs in one message


def test_the_last_of_several_tells_the_joint_price(engine: Engine, session: Session) -> None:
    run(session, COUNT)
    statements = session.parse(f"EXPLAIN {COUNT}; EXPLAIN {BY_SEX}; EXPLAIN {BY_CITY}; EXPLAIN {BY_SEX}")
    plans = [lines_before_sql(session.execute(statement)) for statement in statements]
    assert not any(line.startswith("All ") for lines in plans[:-1] for line in lines)
    assert plans[-1][:-2] == plan(session, f"EXPLAIN {BY_SEX}")
    assert plans[-1][-2:] == [
        "All 4 statements together: epsilon 0.141421 (rho 0.01), delta 1e-09, within the budget",
        "Remaining after them: epsilon 4.83021 of 5, delta for private keys 4.99e-07",
    ]
    assert len(engine.ledger.history("ana")) == 1


def test_the_first_that_does_not_fit_is_named(make_engine: MakeEngine, clinic_policy: Path) -> None:
    session = Session(make_engine(with_budget(clinic_policy, "pure", "0.15")), "ana")
    lines = plan(session, f"EXPLAIN {PUBLIC}; EXPLAIN {COUNT}; EXPLAIN {COUNT}; EXPLAIN {BY_SEX}")
    assert lines[-2] == (
        "All 4 statements together: epsilon 0.2, over the budget; statement 4 is the first that exceeds it"
    )
    assert lines[-1] == "Remaining after them: epsilon 0 of 0.15, delta for private keys 0"
    free = plan(session, f"EXPLAIN {PUBLIC}; EXPLAIN {PUBLIC}")
    assert free[-2] == "All 2 statements together: nothing, within the budget"


def test_another_statement_between_begins_anew(session: Session) -> None:
    between = ("SET dpsql.epsilon = 0.2", "SHOW dpsql.epsilon")
    texts = (f"EXPLAIN {COUNT}", between[0], f"EXPLAIN {COUNT}", f"EXPLAIN {BY_SEX}", between[1], f"EXPLAIN {COUNT}")
    statements = session.parse("; ".join(texts))
    assert [len(statement.before) for statement in statements] == [0, 0, 0, 1, 0, 0]
    plans = [lines_before_sql(session.execute(statement)) for statement in statements]
    assert plans[3][-2].startswith("All 2 statements together: epsilon 0.282843 (rho 0.04)")
    assert not plans[5][-1].startswith("Remaining after")


# EXPLAIN (FORMAT JSON)


@pytest.mark.parametrize(
    "options",
    [
        *("FORMAT JSON", "format json", "FORMAT 'json'", "VERBOSE, FORMAT JSON", "ANALYZE false, FORMAT JSON"),
        "FORMAT JSON, ANALYZE OFF, VERBOSE TRUE, COSTS 1, TIMING 0, BUFFERS false, SUMMARY, SETTINGS off, WAL false",
    ],
)
def test_explain_in_json(session: Session, options: str) -> None:
    (statement,) = session.parse(f"EXPLAIN ({options}) {BY_SEX}")
    described = session.describe(statement)
    result = session.execute(statement)
    assert result.columns == described.columns
    assert [(column.name, column.type) for column in result.columns or ()] == [("QUERY PLAN", SqlType.JSON)]
    ((text,),) = result.rows
    told = json.loads(str(text))
    assert told["price"] == {"epsilon": 0.1, "delta": 0.0, "rho": 0.005}
    assert (told["fits"], told["reused"]) == (True, False)
    assert {"remaining", "columns", "engine_sql", "post_sql"} <= set(told)
    assert "target" not in told and "joint" not in told


def test_the_last_of_several_in_json_has_the_joint_price(session: Session) -> None:
    *_, last = session.parse(f"EXPLAIN {COUNT}; EXPLAIN (FORMAT JSON) {BY_SEX}")
    told = json.loads(str(session.execute(last).rows[0][0]))
    assert told["joint"]["price"]["rho"] == 0.01
    assert (told["joint"]["fits"], told["joint"]["first_refused"]) == (True, None)


@pytest.mark.parametrize(
    "sql", [f"EXPLAIN (FORMAT TEXT) {COUNT}", f"EXPLAIN (COSTS OFF) {COUNT}", f"EXPLAIN ({COUNT})"]
)
def test_explain_in_text_with_options_and_parentheses(session: Session, sql: str) -> None:
    assert plan(session, sql) == plan(session, f"EXPLAIN {COUNT}")


@pytest.mark.parametrize(
    "options",
    [
        *("ANALYZE", "ANALYZE on", "FORMAT XML", "FORMAT", "BUFFERS", "SERIALIZE text", "", "FORMAT JSON,", "OFF"),
        *("FORMAT JSON FORMAT TEXT", "NOTHING off", "VERBOSE perhaps"),
    ],
)
def test_options_that_ask_for_what_is_not_told_are_refused(session: Session, options: str) -> None:
    with pytest.raises(UnsupportedQuery, match="EXPLAIN does not support the option") as caught:
        session.parse(f"EXPLAIN ({options}) {COUNT}")
    assert caught.value.hint is not None
    run(session, caught.value.hint.removeprefix("Write: "))


@pytest.mark.parametrize("sql", ["EXPLAIN (FORMAT JSON)", "EXPLAIN (FORMAT JSON) SET x = 1", "EXPLAIN (FORMAT JSON"])
def test_explain_of_no_query_is_refused(session: Session, sql: str) -> None:
    with pytest.raises(UnsupportedQuery, match="EXPLAIN"):
        session.parse(sql)


def test_a_price_that_is_too_little_is_said_to_be(engine: Engine, session: Session) -> None:
    """1/10,000 of the budget; 1/20 once a read has failed."""
    run(session, "SET dpsql.epsilon = 0.001")
    told = plan(session, f"EXPLAIN {COUNT}")[0]
    with pytest.raises(PolicyViolation, match="at least 1/10000 of the whole budget") as refused:
        run(session, COUNT)
    assert told == (
        "Price: epsilon 0.001 (rho 5e-07), which is too little: each release of a query must cost at least "
        f"1/10000 of the whole budget ({refused.value.hint})"
    )
    assert not json.loads(plan(session, f"EXPLAIN (FORMAT JSON) {COUNT}")[0])["fits"]
    run(session, str(refused.value.hint).removeprefix("Write: "))
    assert "too little" not in plan(session, f"EXPLAIN {COUNT}")[0]
    engine.ledger.record_failure("ana", ["a query"])
    assert (
        "after a query that failed, each release of a query must cost at least 1/20"
        in plan(session, f"EXPLAIN {COUNT}")[0]
    )


def test_statements_together_say_which_price_is_too_little(session: Session) -> None:
    run(session, "SET dpsql.epsilon = 0.001")
    explained = [session.explain(statement) for statement in session.parse(f"{COUNT}; {PUBLIC}")]
    joint = session.quote(explained)
    assert not joint.fits and joint.refused is None
    assert "one of them costs too little: each release" in joint_lines(explained, joint)[0]


def test_anothers_cheap_release_costs_too_little_too(engine: Engine, session: Session) -> None:
    """Whether another user has paid for it is not told."""
    query = session.explain(session.parse(COUNT)[0]).query
    cheap = [replace(request(planned), events=(CHEAP,)) for planned in query.releases]
    charge = charge_only(sqlite(engine), "ben", engine.policy, cheap, sql=COUNT)
    engine.ledger.store(charge.releases[0].release_id, b"cells")
    with pytest.raises(PolicyViolation, match="at least 1/10000"):
        engine.ledger.charge("ana", engine.policy, cheap, sql=COUNT, reading=Reading(60, lambda: None))


def sqlite(engine: Engine) -> Ledger:
    assert isinstance(engine.ledger, Ledger)
    return engine.ledger
