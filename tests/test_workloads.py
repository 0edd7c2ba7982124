"""Workloads: the queries of one message are planned together, charged once, and each answered as exactly as alone."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.backends.backend import Cancellation
from dpsql.compiler.derivation.derivation import union
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import BackendFailure, BudgetExhausted, CardinalityViolation, QueryCanceled, UnsupportedQuery
from dpsql.gateway import workloads
from dpsql.gateway.answers import Answer
from dpsql.gateway.derivations import Derivations, PlannedSource, ReleaseSearch
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import QueryParameters, QueryRequest, Result
from dpsql.gateway.release import listed_groups
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from tests.compiler.plans import Planner
from tests.conftest import MakeEngine
from tests.test_derived import DOCTORS, PEOPLE, asks, derived_from, run, shown, spent

FULL = Fraction(1, 200)
"""The price of a query at the clinic's ε of 0.1: ε²/2."""
TOGETHER = "planned together; price of all: epsilon 0.1 (rho 0.005); one after another: epsilon 0.173205 (rho 0.015)"

BY_FILTER = tuple(f"SELECT COUNT(*) FROM patients WHERE sex = '{sex}'" for sex in ("F", "M", "X"))
BY_TWO_FILTERS = tuple(
    f"SELECT COUNT(*) {PEOPLE} AND sex = '{sex}' AND age = {age}" for sex in ("F", "M") for age in (30, 40)
)
COARSE_FIRST = (
    f"SELECT sex, COUNT(*) {PEOPLE} GROUP BY sex",
    f"SELECT age / 50, sex, COUNT(*) {PEOPLE} GROUP BY 1, 2",
)
OF_BOTH_KINDS = (
    f"SELECT COUNT(*) {PEOPLE} AND sex = 'F'",
    f"SELECT AVG(weight) {PEOPLE} AND sex = 'M'",
    f"SELECT COUNT(*), AVG(weight) {PEOPLE} AND sex = 'X'",
)
BY_OTHER_KEYS = (
    f"SELECT age, COUNT(*) {PEOPLE} AND sex = 'F' GROUP BY age",
    f"SELECT age, COUNT(*) {PEOPLE} AND sex = 'M' GROUP BY age",
    f"SELECT sex, COUNT(*) {PEOPLE} GROUP BY sex",
)
FINE_AND_COARSE = (
    f"SELECT COUNT(*) {PEOPLE}",
    f"SELECT age / 40, COUNT(*) {PEOPLE} GROUP BY 1",
    f"SELECT age / 20, COUNT(*) {PEOPLE} GROUP BY 1",
)
UNRELATED = ("SELECT COUNT(*) FROM patients WHERE sex = 'F'", f"SELECT SUM(cost) {DOCTORS}")
WORKLOADS = (BY_FILTER, BY_TWO_FILTERS, COARSE_FIRST, OF_BOTH_KINDS, BY_OTHER_KEYS, FINE_AND_COARSE, UNRELATED)


def ask(session: Session, *queries: str) -> list[Result]:
    """What one message answers."""
    return [session.execute(statement) for statement in session.parse("; ".join(queries))]


def explained(session: Session, *queries: str) -> list[str]:
    (result,) = ask(session, f"EXPLAIN (WORKLOAD) {queries[0]}", *queries[1:])
    return [str(row[0]) for row in result.rows]


def in_json(session: Session, *queries: str) -> Mapping[str, object]:
    (result,) = ask(session, f"EXPLAIN (FORMAT JSON, WORKLOAD) {queries[0]}", *queries[1:])
    told: Mapping[str, object] = json.loads(str(result.rows[0][0]))
    return told


def notices(results: list[Result]) -> str:
    return "\n".join(notice.text for result in results for notice in result.notices)


def charges(engine: Engine, user: str) -> int:
    return engine.ledger.budget(user, engine.policy).charges


def errors(result: Result) -> list[float | None]:
    answer = result.answer
    assert isinstance(answer, Answer)
    return [None if column.error is None else column.error.stderr for column in answer.columns]


def test_filters_are_cells_of_one_release(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    assert [line for line in explained(session, *BY_FILTER) if not line.startswith("    ")] == [
        "All 3 statements together: epsilon 0.1 (rho 0.005), within the budget",
        "Remaining after them: epsilon 4.9434 of 5, delta for private keys 5e-07",
        "Workload: planned together; one query after another would cost epsilon 0.173205 (rho 0.015)",
        "Release 1: contribution bound: 1 row per patient, all in one group, enforced by the schema",
        *(
            line
            for number, query in enumerate(BY_FILTER, start=1)
            for line in (
                f"Statement {number}: {query}",
                "  from release 1",
                "  Column count (bigint): ± 20 at 95 %, gaussian noise, L0 1, L1 1, L2 1",
            )
        ),
        "SQL of release 1:",
        "  engine SQL:",
    ]
    assert spent(engine, "cleo") == Spent.zero()
    results = ask(session, *BY_FILTER)
    assert notices(results).count(TOGETHER) == 1
    assert [derived_from(result) for result in results] == [(1,)] * 3
    assert spent(engine, "cleo").rho == FULL
    assert charges(engine, "cleo") == 1
    (released,) = engine.ledger.releases("cleo", engine.policy.dataset.name)
    assert released.sql == "; ".join(BY_FILTER)
    assert TOGETHER not in notices(ask(session, *BY_FILTER))  # all of it is there
    assert spent(engine, "cleo").rho == FULL


@pytest.mark.parametrize("queries", WORKLOADS)
def test_what_is_explained_is_charged_and_as_exact(
    make_engine: MakeEngine, clinic_policy: Path, queries: tuple[str, ...]
) -> None:
    engine = make_engine(clinic_policy)
    together, alone, fresh = (asks(engine, user) for user in ("cleo", "dora", "emil"))
    told = in_json(together, *queries)
    for query in queries:
        run(alone, query)
    one_after_another = told["one_after_another"]
    assert isinstance(one_after_another, dict)
    assert one_after_another["rho"] == float(spent(engine, "dora").rho)
    run(fresh, "SET dpsql.reuse = off")
    results = ask(together, *queries)
    assert told["price"] == {"epsilon": pytest.approx(float(2 * spent(engine, "cleo").rho) ** 0.5), "delta": 0.0} | {
        "rho": float(spent(engine, "cleo").rho)
    }
    saves = spent(engine, "cleo").rho < spent(engine, "dora").rho
    assert saves is told["together"]
    assert charges(engine, "cleo") == (1 if saves else charges(engine, "dora"))
    for query, result in zip(queries, results, strict=True):
        for mine, theirs in zip(errors(result), errors(run(fresh, query)), strict=True):
            assert (mine is None) == (theirs is None)
            assert mine is None or theirs is None or mine <= theirs * 1.01


@pytest.mark.parametrize("queries", WORKLOADS)
def test_greedy_is_not_far_from_the_best(
    make_engine: MakeEngine, clinic_policy: Path, queries: tuple[str, ...]
) -> None:
    engine = make_engine(clinic_policy)
    asks(engine, "cleo")
    planner = engine._planner("cleo", Cancellation())
    session = Session(engine, "cleo")
    compiled = [
        QueryRequest(engine, "cleo", session._settings, QueryStatement(query), QueryParameters()).compile_shown()
        for query in queries
    ]
    plan = planner.plan(compiled)
    sources = [
        source
        for offer in planner.offers(compiled)
        for ratio in {*offer.ratios.values(), Fraction(1)}
        if (source := planner.scaled(offer, ratio)) is not None
    ]
    best = min(
        Spent.zero().add(event for planned in made.bought for event in planned.events).rho
        for size in range(min(3, len(sources)) + 1)
        for chosen in itertools.combinations(sources, size)
        for order in (range(len(compiled)), *(planner.finest_first(dict(enumerate(compiled))),))
        for made in [planner.answered({place: compiled[place] for place in order}, chosen)]
    )
    assert plan.cost.spent.rho <= best * Fraction(105, 100)
    assert plan.cost.spent.rho <= plan.alone.spent.rho


# What ends the row, and what is charged when something fails.


@pytest.mark.parametrize(
    "change", ["SET dpsql.reuse = exact", "SET dpsql.reuse = off", "SET dpsql.target_error = '50 %'"]
)
def test_other_settings_plan_nothing_together(make_engine: MakeEngine, clinic_policy: Path, change: str) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    run(session, change)
    told = "planned together only with dpsql.reuse = derived and without dpsql.target_error"
    assert f"Workload: {told}" in explained(session, *BY_FILTER)
    assert in_json(session, *BY_FILTER)["together"] is False
    assert "together" not in notices(ask(session, *BY_FILTER))


def test_what_may_have_no_error_is_planned_with_nothing(make_engine: MakeEngine, clinic_policy: Path) -> None:
    session = asks(make_engine(clinic_policy), "cleo")
    run(session, "SET dpsql.max_error_ratio = 0")
    assert "together" not in notices(ask(session, *BY_FILTER))


def test_releases_of_many_groups_are_planned_with_nothing(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = asks(make_engine(clinic_policy), "cleo")
    monkeypatch.setattr(workloads, "_MOST_GROUPS", 2)
    assert "together" not in notices(ask(session, *BY_FILTER))


def test_a_setting_between_ends_the_row(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    results = ask(session, BY_FILTER[0], "SET dpsql.notices = on", BY_FILTER[1])
    assert "together" not in notices(results)
    assert charges(engine, "cleo") == 2


def test_notices_are_switched_off(make_engine: MakeEngine, clinic_policy: Path) -> None:
    session = asks(make_engine(clinic_policy), "cleo")
    run(session, "SET dpsql.notices = off")
    assert not notices(ask(session, *BY_FILTER))


def test_what_is_refused_ends_the_row(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    statements = session.parse("; ".join((BY_FILTER[0], "SELECT COUNT(missing) FROM patients", *BY_FILTER[1:])))
    assert "together" not in notices([session.execute(statements[0])])
    assert spent(engine, "cleo").rho == FULL


def test_what_fails_later_leaves_the_rest_stored(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    several = "SELECT COUNT(*) FROM patients WHERE age > (SELECT COUNT(*) FROM visits GROUP BY icd)"
    statements = session.parse("; ".join((BY_FILTER[0], several, *BY_FILTER[1:])))
    assert TOGETHER in notices([session.execute(statements[0])])
    with pytest.raises(CardinalityViolation):
        session.execute(statements[1])
    paid = spent(engine, "cleo")
    assert [derived_from(result) for result in ask(session, *BY_FILTER[1:])] == [(1,), (1,)]
    assert spent(engine, "cleo") == paid


def test_what_does_not_fit_together_is_answered_as_far_as_it_fits(make_engine: MakeEngine, clinic_policy: Path) -> None:
    policy = load_policy(clinic_policy)
    (role, *others) = policy.roles
    less = replace(role, budget=replace(role.budget, epsilon=Fraction(1, 2)))
    engine = make_engine(replace(policy, roles=(less, *others)))
    session = asks(engine, "cleo")
    statements = session.parse("; ".join(COARSE_FIRST))
    assert explained(session, *COARSE_FIRST)[0].endswith("over the budget; statement 1 is the first that exceeds it")
    assert "together" not in notices([session.execute(statements[0])])
    with pytest.raises(BudgetExhausted):
        session.execute(statements[1])
    assert charges(engine, "cleo") == 1


def test_a_failed_read_keeps_the_charge_and_is_no_second_failure(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")

    def fails(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr("dpsql.gateway.reading.release", fails)
        with pytest.raises(BackendFailure, match="charge"):
            ask(session, *BY_FILTER)
    assert spent(engine, "cleo").rho == FULL
    assert engine.ledger.budgets("cleo", engine.policy).failures == 1
    engine.ledger.unfreeze(Holder(BudgetScope.USER, "cleo"), "looked at")
    # The release is quarantined: each query is asked by itself.
    assert "together" not in notices(ask(session, *BY_FILTER))
    assert spent(engine, "cleo").rho == 4 * FULL


def test_a_cancel_stops_the_plan(make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    ratio = Derivations.ratio

    def stopped(
        derivations: Derivations, search: ReleaseSearch, planned: PlannedRelease, source: PlannedSource
    ) -> Fraction | None:
        session.cancel()
        return ratio(derivations, search, planned, source)

    monkeypatch.setattr(Derivations, "ratio", stopped)
    with pytest.raises(QueryCanceled):
        ask(session, *BY_FILTER)
    assert spent(engine, "cleo") == Spent.zero()


def test_private_keys_nested_releases_and_wide_totals_are_asked_alone(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    others = (
        "SELECT city, COUNT(*) FROM patients GROUP BY city",
        "SELECT COUNT(*) FROM visits WHERE cost > (SELECT AVG(cost) FROM visits)",
        "SELECT COUNT(*) FROM doctors",
    )
    told = in_json(session, *others, *BY_FILTER)
    assert told["together"] is True
    ask(session, *others, *BY_FILTER)
    price = told["price"]
    assert isinstance(price, dict)
    assert price["rho"] == pytest.approx(float(spent(engine, "cleo").rho))


def test_what_tells_the_owner_of_drops_is_charged_by_itself(make_engine: MakeEngine, clinic_policy: Path) -> None:
    policy = load_policy(clinic_policy)
    (role, *others) = policy.roles
    wide = replace(role, query=replace(role.query, wide_share=Fraction(1, 10)))
    engine = make_engine(replace(policy, roles=(wide, *others)))
    session = asks(engine, "cleo")
    ask(session, "SELECT COUNT(*) FROM visits", *BY_FILTER)
    assert charges(engine, "cleo") == 2  # wide totals are read with their own query


def test_only_the_first_queries_are_planned_together(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    counts = [f"SELECT COUNT(*) {PEOPLE} AND age = {age}" for age in range(22)]
    ask(session, *counts)
    assert spent(engine, "cleo").rho == FULL  # the last two are cells of the same release


def test_queries_of_many_releases_are_planned_with_nothing(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = asks(make_engine(clinic_policy), "cleo")
    monkeypatch.setattr(workloads, "_MOST_RELEASES", 1)
    assert "together" not in notices(ask(session, *BY_FILTER))


def test_nothing_is_charged_for_what_post_processing_cannot_run(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    bad = f"SELECT (ARRAY_AGG(c))[99999999999999999999] FROM (SELECT COUNT(*) AS c {PEOPLE} AND age = 3) AS t"
    statements = session.parse("; ".join((bad, *BY_FILTER)))
    with pytest.raises(UnsupportedQuery, match="nothing was charged"):
        session.execute(statements[0])
    assert charges(engine, "cleo") == 0


def test_no_release_costs_more_than_a_query_may(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """The union answers both at twice the price, which the role does not permit."""
    policy = load_policy(clinic_policy)
    (role, *others) = policy.roles
    engine = make_engine(
        replace(policy, roles=(replace(role, query=replace(role.query, max_epsilon=Fraction(1, 10))), *others))
    )
    session = asks(engine, "cleo")
    ask(session, *OF_BOTH_KINDS)
    for record in engine.ledger.releases("cleo", engine.policy.dataset.name):
        assert Spent.zero().add(record.price).rho <= FULL


# The law: a workload is the user's own.


def test_a_workload_is_charged_to_each_user_in_full(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    cleo, dora = asks(engine, "cleo"), asks(engine, "dora")
    plan = explained(dora, *BY_FILTER)
    mine = ask(cleo, *BY_FILTER)
    assert explained(dora, *BY_FILTER) == plan
    theirs = ask(dora, *BY_FILTER)
    assert spent(engine, "dora").rho == spent(engine, "cleo").rho == FULL
    assert [shown(result) for result in mine] == [shown(result) for result in theirs]
    assert engine.ledger.verify().ok


def test_unions(wide_policy: Path) -> None:
    planner = Planner(load_policy(wide_policy))

    def described(sql: str) -> PlannedRelease:
        return planner.compile(sql).releases[0]

    by_sex = described("SELECT sex, COUNT(*) FROM patients GROUP BY sex")
    women = described("SELECT COUNT(*) FROM patients WHERE sex = 'F'")
    some = described("SELECT COUNT(*) FROM patients WHERE patient_id IN (SELECT patient_id FROM visits)")
    visits = described("SELECT COUNT(*) FROM visits")
    both = described("SELECT sex, age, COUNT(*) FROM patients GROUP BY sex, age")
    assert by_sex.described and women.described and some.described and visits.described and both.described
    assert union(women.described, visits.described) is None  # of other rows
    assert union(both.described, by_sex.described) is None  # the first one itself
    assert union(women.described, some.described) is None  # no columns tell the rows
    query = planner.compile("SELECT COUNT(*) FROM patients WHERE sex = 'F'")
    found = union(women.described, by_sex.described)
    assert found is not None and query.planned is not None and query.price is not None
    (made,) = query.planned(query.price.epsilon, found, ()).releases
    assert (made.key, made.sql) == (by_sex.key, by_sex.sql)


def test_groups_that_are_listed_have_no_cells_yet(wide_policy: Path) -> None:
    planned = Planner(load_policy(wide_policy)).compile("SELECT COUNT(*), SUM(age) FROM patients").releases[0]
    assert [cell.tolist() for cell in listed_groups(planned, None).cells] == [[0]] * len(planned.primitives)
