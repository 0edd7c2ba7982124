"""Workloads: the queries of one message are planned together, charged once, and each answered as exactly as alone."""

import itertools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from threading import Barrier
from typing import Any

import duckdb
import pytest

from dpsql.backends import open_backend
from dpsql.backends.backend import Cancellation, ExactCells
from dpsql.compiler.canonical.descriptions import DescribedRelease
from dpsql.compiler.derivation.derivation import derivation, union
from dpsql.compiler.derivation.derivation import errors as derivation_errors
from dpsql.compiler.plan.query_plan import CompiledQuery, OtherRelease, PlannedRelease, Written
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import BackendFailure, BudgetExhausted, CardinalityViolation, QueryCanceled, UnsupportedQuery
from dpsql.gateway import workloads
from dpsql.gateway.answers import Answer
from dpsql.gateway.derivations import Derivations, PlannedSource, ReleaseSearch
from dpsql.gateway.engine import Engine
from dpsql.gateway.notices import cost_text
from dpsql.gateway.prices import together
from dpsql.gateway.query_run import QueryParameters, QueryRequest, Result
from dpsql.gateway.release import ReleasedCells, listed_groups, release
from dpsql.gateway.session import Session
from dpsql.gateway.settings import Settings
from dpsql.ledger import BudgetScope, Charge, Holder
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.policy import load_policy
from dpsql.policy.model import RenewalWindow
from dpsql.privacy.accounting import Spent
from dpsql.privacy.mechanisms import added, variance
from tests.compiler.plans import Planner
from tests.conftest import MakeEngine
from tests.ledger.world import Clock
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
BY_BANDS = tuple(
    f"SELECT sex, COUNT(*) {PEOPLE} AND age >= {age} AND age < {age + 20} GROUP BY sex" for age in (20, 40)
)
"""Bands of age begin at twenties: they are groups of age / 20."""
UNRELATED = ("SELECT COUNT(*) FROM patients WHERE sex = 'F'", f"SELECT SUM(cost) {DOCTORS}")
WORKLOADS = (
    BY_FILTER,
    BY_TWO_FILTERS,
    COARSE_FIRST,
    OF_BOTH_KINDS,
    BY_OTHER_KEYS,
    FINE_AND_COARSE,
    BY_BANDS,
    UNRELATED,
)


def ask(session: Session, *queries: str) -> list[Result]:
    """What one message answers."""
    session.begin_implicit(several=True)
    try:
        return [session.execute(statement) for statement in session.parse("; ".join(queries))]
    finally:
        session.end_implicit()


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


@pytest.mark.parametrize("consistent", ["on", "off"])
def test_sums_of_many_groups_are_explained_as_they_are_charged(
    make_engine: MakeEngine, clinic_policy: Path, consistent: str
) -> None:
    """After an overview, both counts are estimated from what is bought, or none is."""
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    run(session, f"SET dpsql.consistent = {consistent}")
    run(session, f"SELECT sex, age, COUNT(*) {PEOPLE} GROUP BY 1, 2")
    before = spent(engine, "cleo").rho
    queries = [
        f"SELECT sex, COUNT(*) {PEOPLE} AND age BETWEEN {ages} GROUP BY sex" for ages in ("9 AND 50", "9 AND 51")
    ]
    told = in_json(session, *queries)["price"]
    results = ask(session, *queries)
    assert isinstance(told, dict) and told["rho"] == float(spent(engine, "cleo").rho - before)
    assert all("estimated from" in notices([result]) for result in results) is (consistent == "off")


@pytest.mark.parametrize("queries", WORKLOADS)
def test_greedy_is_not_far_from_the_best(
    make_engine: MakeEngine, clinic_policy: Path, queries: tuple[str, ...]
) -> None:
    engine = make_engine(clinic_policy)
    asks(engine, "cleo")
    planner = engine.planner("cleo", Cancellation())
    settings = Settings(engine.policy, engine.role("cleo"))
    compiled = [
        QueryRequest(engine, "cleo", settings, QueryStatement(query), QueryParameters(), engine.now()).compile_shown()
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


def test_answers_are_those_of_the_queries_alone(engine: Engine, no_noise: None) -> None:
    """On each engine: cells of what is bought together add up to those of each query.

    Files have no keys, so a patient may have several rows, of which a filter may spare some.
    """
    together, alone = asks(engine, "cleo"), asks(engine, "dora")
    for queries in WORKLOADS:
        for query, result in zip(queries, ask(together, *queries), strict=True):
            mine, theirs = sorted(map(str, result.rows)), sorted(map(str, run(alone, query).rows))
            assert mine == theirs, query
    patients = run(alone, "SELECT COUNT(*) FROM patients").answer
    assert isinstance(patients, Answer)
    has_key = patients.query.releases[0].contribution.one_row
    saves = spent(engine, "cleo").rho < spent(engine, "dora").rho - FULL  # the last query is asked by itself
    assert saves is has_key


@pytest.mark.parametrize("since", ["NOW() - INTERVAL '9000 days'", "LOCALTIMESTAMP - INTERVAL '9000 days'"])
def test_queries_that_use_the_time_are_charged_once(make_engine: MakeEngine, clinic_policy: Path, since: str) -> None:
    """The time of a message is that of its beginning."""
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    queries = (*BY_FILTER, f"SELECT COUNT(*) FROM visits WHERE visited_on > {since}")
    told = in_json(session, *queries)["price"]
    results = ask(session, *queries)
    assert "together" in notices(results) and isinstance(told, dict)
    assert told["rho"] == pytest.approx(float(spent(engine, "cleo").rho))
    assert charges(engine, "cleo") == 1


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
    assert "planned together" in notices([session.execute(statements[0])])
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


def test_nothing_is_bought_that_leaves_too_little_for_another_query(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    """The filters would fit together, but the query before them, which shares nothing, would not fit then."""
    policy = load_policy(clinic_policy)
    (role, *others) = policy.roles
    nested = "SELECT COUNT(*) FROM visits WHERE cost > (SELECT AVG(cost) FROM visits)"
    less = replace(role, budget=replace(role.budget, epsilon=Fraction(1, 2)))
    engine = make_engine(replace(policy, roles=(less, *others)))
    session = asks(engine, "cleo")
    statements = session.parse("; ".join((nested, *BY_FILTER)))
    assert "together" not in notices([session.execute(statements[0])])
    with pytest.raises(BudgetExhausted):
        session.execute(statements[1])
    assert charges(engine, "cleo") == 1


def test_an_error_does_not_hide_what_was_bought(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    several = "SELECT COUNT(*) FROM patients WHERE age > (SELECT COUNT(*) FROM visits GROUP BY icd)"
    with pytest.raises(CardinalityViolation) as failed:
        ask(session, several, *BY_FILTER)
    (notice,) = failed.value.notices
    assert "queries planned together; price of all" in notice
    assert charges(engine, "cleo") == 2
    with pytest.raises(CardinalityViolation) as failed:
        ask(session, several, *BY_FILTER)
    assert failed.value.notices == ()


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
    dearer = Derivations.dearer

    def stopped(
        derivations: Derivations,
        search: ReleaseSearch,
        planned: PlannedRelease,
        source: PlannedSource,
        enough: Fraction,
    ) -> Fraction | None:
        session.cancel()
        return dearer(derivations, search, planned, source, enough)

    monkeypatch.setattr(Derivations, "dearer", stopped)
    with pytest.raises(QueryCanceled):
        ask(session, *BY_FILTER)
    assert spent(engine, "cleo") == Spent.zero()


def test_private_keys_and_nested_releases_are_asked_alone(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    others = (
        "SELECT city, COUNT(*) FROM patients GROUP BY city",
        "SELECT COUNT(*) FROM visits WHERE cost > (SELECT AVG(cost) FROM visits)",
        "SELECT COUNT(*) FROM doctors",
    )
    told = in_json(session, *others, *BY_FILTER)
    assert told["together"] is True
    results = ask(session, *others, *BY_FILTER)
    alone = asks(engine, "dora")
    for query in (*others, *BY_FILTER):
        run(alone, query)
    price, one_after_another = told["price"], told["one_after_another"]
    assert isinstance(price, dict) and isinstance(one_after_another, dict)
    assert price["rho"] == pytest.approx(float(spent(engine, "cleo").rho))
    assert one_after_another["rho"] == pytest.approx(float(spent(engine, "dora").rho))
    assert spent(engine, "dora").rho == spent(engine, "cleo").rho + 2 * FULL
    all_of_them = cost_text(together(engine.ledger.budget("cleo", engine.policy).limit, [spent(engine, "cleo")]))
    notice = notices(results[:1])
    assert f"6 queries planned together; price of all: {all_of_them}; one after another: " in notice
    assert "; charged now: epsilon 0.1 (rho 0.005)\n" in notice


def test_other_queries_are_explained_as_they_are_answered(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has too many groups to share anything; it is derived from a more exact release."""
    monkeypatch.setattr(workloads, "_MOST_GROUPS", 10)
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    by_age = f"SELECT age, COUNT(*) {PEOPLE} GROUP BY age"
    run(session, "SET dpsql.epsilon = 0.5")
    run(session, by_age)
    run(session, "SET dpsql.epsilon = 0.1")
    before = spent(engine, "cleo").rho
    told = in_json(session, by_age, *BY_FILTER)["price"]
    ask(session, by_age, *BY_FILTER)
    assert isinstance(told, dict) and told["rho"] == pytest.approx(float(spent(engine, "cleo").rho - before))
    assert spent(engine, "cleo").rho - before == FULL


def test_equal_private_groups_are_one_release(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    by_city = "SELECT city, COUNT(*) AS people FROM patients GROUP BY city"
    ask(session, by_city, *BY_FILTER, f"{by_city} ORDER BY people DESC LIMIT 3")
    assert spent(engine, "cleo").rho == 2 * FULL
    ask(session, "SELECT city, COUNT(*), AVG(age) FROM patients GROUP BY city")  # other cells select other groups
    assert spent(engine, "cleo").rho == 3 * FULL


# Queries that measure what bounds drop.


@pytest.fixture
def wide_engine(make_engine: MakeEngine, clinic_policy: Path) -> Engine:
    """An engine whose users pay for wide totals."""
    policy = load_policy(clinic_policy)
    (role, *others) = policy.roles
    wide = replace(role, query=replace(role.query, wide_share=Fraction(1, 10)))
    return make_engine(replace(policy, roles=(wide, *others)))


VISITS = "FROM visits JOIN patients USING (patient_id)"
BY_MONTH = tuple(
    f"SELECT DATE_TRUNC('month', visited_on), COUNT(*) {VISITS} WHERE sex = '{sex}' GROUP BY 1" for sex in "FMX"
)
"""A chart of each sex: all visits of a patient are in one of them."""


def test_wide_totals_are_cells_of_one_release(wide_engine: Engine) -> None:
    session, alone = asks(wide_engine, "cleo"), asks(wide_engine, "dora")
    told = in_json(session, *BY_MONTH)
    lines = explained(session, *BY_MONTH)
    assert lines.count("  measures how much the bounds drop (wide_share)") == 1
    results = ask(session, *BY_MONTH)
    assert told["together"] is True and charges(wide_engine, "cleo") == 1
    assert spent(wide_engine, "cleo").rho <= FULL * Fraction(1001, 1000)  # one after another it is three times FULL
    for query, result in zip(BY_MONTH, results, strict=True):
        theirs = run(alone, query)
        (_, shown_error), (_, full_error) = errors(result), errors(theirs)
        assert shown_error is not None and full_error is not None and 0.999 * full_error < shown_error <= full_error
        assert isinstance(result.answer, Answer) and isinstance(theirs.answer, Answer)
        (total,), (other,) = result.answer.query.wide_totals, theirs.answer.query.wide_totals
        mine, full = result.answer.query.releases[total.wide], theirs.answer.query.releases[other.wide]
        assert len(mine.derived) == 1 and variance_of(mine) <= variance_of(full)
    assert spent(wide_engine, "dora").rho == 3 * FULL


def variance_of(planned: PlannedRelease) -> Fraction:
    """The variance of the noise of the first cell."""
    return variance(added(planned.primitives[0].noise))


def test_calibrated_answers_are_those_of_the_queries_alone(wide_engine: Engine, no_noise: None) -> None:
    """The same exact cells and the same exact wide totals: intervals differ by the noise that they are made for."""

    def exactly(user: str) -> Session:
        session = asks(wide_engine, user)
        run(session, "SET dpsql.intervals = on")
        run(session, "SET dpsql.epsilon = 0.9")
        return session

    shares: list[float] = []
    results = ask(exactly("cleo"), *BY_MONTH)
    for user, query, result in zip(("dora", "emil", "fay"), BY_MONTH, results, strict=True):
        theirs = run(exactly(user), query)
        assert isinstance(result.answer, Answer) and isinstance(theirs.answer, Answer)
        assert result.answer.derived_from and len(result.rows) == len(theirs.rows)
        mine, full = ([each.share for each in told.rows.dropped] for told in (result.answer, theirs.answer))
        assert mine == full
        shares += mine
        for row, other in zip(result.rows, theirs.rows, strict=True):
            assert row[:2] == other[:2]
            widths = [float(str(each[3])) - float(str(each[2])) for each in (row, other)]
            assert widths[0] == pytest.approx(widths[1], rel=0.01)
    assert shares


def test_what_bounds_drop_is_told_to_the_owner_with_the_charge(wide_engine: Engine) -> None:
    session = asks(wide_engine, "cleo")
    run(session, "SET dpsql.epsilon = 0.5")
    ask(session, "SELECT COUNT(*) FROM visits", *BY_FILTER)
    assert charges(wide_engine, "cleo") == 1
    told = [record["body"]["dropped"] for record in wide_engine.ledger.export() if "dropped" in record["body"]]
    assert [[(bound, counted) for bound, counted, *_ in each] for each in told] == [[("max_rows = 50", "rows")]]
    ask(session, "SELECT COUNT(*) FROM visits", *BY_TWO_FILTERS)  # the first one is there
    assert charges(wide_engine, "cleo") == 2


def test_a_filter_that_spares_a_unit_some_rows_is_asked_alone(wide_engine: Engine) -> None:
    """Of all years bounds drop rows that they would not drop of one year or day alone."""
    session = asks(wide_engine, "cleo")
    spans = (("2020-01-01", "2021-01-01"), ("2021-01-01", "2022-01-01"))
    of_years = [f"SELECT COUNT(*) FROM visits WHERE visited_on >= '{a}' AND visited_on < '{b}'" for a, b in spans]
    of_days = [f"SELECT COUNT(*) FROM visits WHERE visited_on = '2021-05-0{day}'" for day in (4, 5)]
    for queries in (of_years, of_days):
        assert in_json(session, *queries)["together"] is False


FLAGS = """
version = 1
[dataset]
name = "flags"
url = "duckdb:///flags.duckdb"
privacy_unit = "person"
data_version = "1"
budget = { epsilon = 20, delta = 1e-6 }
[roles.analyst]
budget = { epsilon = 5, delta = 1e-6 }
query = { epsilon = 0.1, max_epsilon = 1 }
[tables.people]
unit_key = "id"
max_rows = 1
[tables.people.columns]
a = { type = "boolean", nullable = false }
b = { type = "boolean", nullable = false }
c = { type = "boolean", nullable = false }
"""


def test_filters_of_three_pairs_of_columns_are_cells_of_one_release(make_engine: MakeEngine, tmp_path: Path) -> None:
    """A union of two releases saves nothing: each of its answers adds two cells, so it must be twice as precise."""
    with duckdb.connect(str(tmp_path / "flags.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE people (id INTEGER PRIMARY KEY, a BOOLEAN NOT NULL, b BOOLEAN NOT NULL, c BOOLEAN NOT NULL)"
        )
        connection.execute("INSERT INTO people SELECT n, n % 2 = 0, n % 3 = 0, n % 5 = 0 FROM range(1000) t(n)")
    (tmp_path / "flags.toml").write_text(FLAGS, encoding="utf-8")
    engine = make_engine(tmp_path / "flags.toml")
    session = asks(engine, "cleo")
    pairs = [f"SELECT COUNT(*) FROM people WHERE {both}" for both in ("a AND b", "b AND c", "a AND c")]
    results = ask(session, *pairs)
    assert 2 * FULL <= spent(engine, "cleo").rho < 2 * FULL * Fraction(102, 100)  # a price has three digits
    assert [derived_from(result) for result in results] == [(1,)] * 3
    assert in_json(asks(engine, "dora"), *pairs[:2])["together"] is False


def test_only_the_first_queries_are_planned_together(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    counts = [f"SELECT COUNT(*) {PEOPLE} AND age = {age}" for age in range(22)]
    told = in_json(session, *counts)["price"]
    assert isinstance(told, dict) and told["rho"] == pytest.approx(float(FULL))
    ask(session, *counts)
    assert spent(engine, "cleo").rho == FULL  # the last two are cells of the same release


@pytest.mark.parametrize("limit", ["_MOST_RELEASES", "_MOST_CELLS"])
def test_queries_of_many_releases_are_planned_with_nothing(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    session = asks(make_engine(clinic_policy), "cleo")
    monkeypatch.setattr(workloads, limit, 1)
    assert "together" not in notices(ask(session, *BY_FILTER))


def test_nothing_is_charged_for_what_post_processing_cannot_run(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB itself refuses the SQL, which the compiler would have to get wrong."""
    engine, compiled = make_engine(clinic_policy), Engine.compile
    session = asks(engine, "cleo")
    bad = f"SELECT COUNT(*) {PEOPLE} AND age = 3"

    def wrong(engine: Engine, user: str, statement: QueryStatement, *asked: Any) -> CompiledQuery:
        query = compiled(engine, user, statement, *asked)
        written = query.written
        if statement.sql != bad or written is None:
            return query

        def of_no_table(releases: Sequence[PlannedRelease]) -> Written:
            sql, columns, copied = written(releases)
            return sql.replace("r0", "r9"), columns, copied

        return replace(query, written=of_no_table).announcing(query.releases)

    monkeypatch.setattr(Engine, "compile", wrong)
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


# What happens while a workload is planned, charged and read.


def test_two_connections_of_a_user_pay_once(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have planned before either is charged."""
    engine, both, buy = make_engine(clinic_policy), Barrier(2), Engine.buy

    def together(*given: Any) -> Charge | None:
        both.wait(60)
        return buy(*given)

    monkeypatch.setattr(Engine, "buy", together)
    sessions = [asks(engine, "cleo"), Session(engine, "cleo")]
    with ThreadPoolExecutor(2) as pool:
        mine, theirs = pool.map(lambda session: ask(session, *BY_FILTER), sessions)
    assert [result.rows for result in mine] == [result.rows for result in theirs]
    assert spent(engine, "cleo").rho == FULL and engine.ledger.verify().ok


def test_a_smaller_role_between_plan_and_charge_is_obeyed(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy(clinic_policy)
    (role, *others) = policy.roles
    poor = replace(role, name="poor", budget=replace(role.budget, epsilon=Fraction(1, 100)))
    engine, buy = make_engine(replace(policy, roles=(role, *others, poor))), Engine.buy
    session = asks(engine, "cleo")

    def after_the_change(*given: Any) -> Charge | None:
        engine.ledger.set_role("cleo", "poor")
        return buy(*given)

    monkeypatch.setattr(Engine, "buy", after_the_change)
    with pytest.raises(BudgetExhausted):
        ask(session, *BY_FILTER)
    assert spent(engine, "cleo") == Spent.zero()


def test_a_window_that_ends_between_two_answers_charges_nothing_again(clinic_policy: Path, tmp_path: Path) -> None:
    policy, clock = load_policy(clinic_policy), Clock()
    (role, *others) = policy.roles
    daily = replace(role, budget=replace(role.budget, window=RenewalWindow(1)))
    policy = replace(policy, roles=(daily, *others))
    with (
        closing(SqliteLedger(tmp_path / "ledger.sqlite", clock=clock)) as ledger,
        closing(Engine(policy, ledger, open_backend(policy))) as engine,
    ):
        session = asks(engine, "cleo")
        first, *rest = session.parse("; ".join(BY_FILTER))
        session.execute(first)
        assert spent(engine, "cleo").rho == FULL
        clock.move(days=2)
        for statement in rest:
            assert derived_from(session.execute(statement)) == (1,)
        assert spent(engine, "cleo") == Spent.zero()  # of the new window


def test_a_cancel_keeps_the_charge_and_what_was_read_before(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit for statements cancels in the same way. What was not read yet is paid again, as for any query."""
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    asked = (*OF_BOTH_KINDS, *BY_OTHER_KEYS)
    price = in_json(session, *asked)["price"]
    made: list[str] = []

    def stopped(planned: PlannedRelease, block: ExactCells) -> ReleasedCells:
        made.append(planned.key)
        if len(made) == 1:
            session.cancel()
        return release(planned, block)

    monkeypatch.setattr("dpsql.gateway.reading.release", stopped)
    with pytest.raises(QueryCanceled):
        ask(session, *asked)
    assert len(made) == 1 and charges(engine, "cleo") == 1 and isinstance(price, dict)
    assert float(spent(engine, "cleo").rho) == pytest.approx(price["rho"])
    ask(session, *asked)
    assert made.count(made[0]) == 1 and float(spent(engine, "cleo").rho) < 2 * price["rho"]
    assert engine.ledger.budgets("cleo", engine.policy).failures == 0


def test_describing_and_preparing_cost_nothing(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "cleo")
    statements = session.parse("; ".join((f"PREPARE women AS {BY_FILTER[0]}", *BY_FILTER, "EXECUTE women")))
    shapes = [session.describe(statement) for statement in statements[:-1]]
    assert spent(engine, "cleo") == Spent.zero()
    results = [session.execute(statement) for statement in statements]
    assert [shape.columns for shape in shapes] == [result.columns for result in results[:-1]]
    assert [result.rows for result in results[1::3]] == [results[1].rows] * 2  # the prepared one is the first one
    assert spent(engine, "cleo").rho == FULL


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
    narrow = planner.compile("SELECT COUNT(*) FROM visits WHERE cost > 5", max_rows="3").releases[0]
    assert narrow.described and union(visits.described, narrow.described) is None  # of other bounds
    query = planner.compile("SELECT COUNT(*) FROM patients WHERE sex = 'F'")
    found = union(women.described, by_sex.described)
    assert found is not None and query.planned is not None and query.price is not None
    (made,) = query.planned(query.price.epsilon, OtherRelease(found, 0), ()).releases
    assert (made.key, made.sql) == (by_sex.key, by_sex.sql)


@pytest.mark.parametrize(
    ("asked", "other", "keys"),
    [
        ("COUNT(*) FROM patients WHERE age >= 20", "COUNT(*) FROM patients WHERE age < 60", ["age / 20"]),
        ("COUNT(*) FROM patients WHERE age > 19", "COUNT(*) FROM patients WHERE age <= 29", ["age / 10"]),
        ("COUNT(*) FROM patients WHERE age >= 20", "age / 30, COUNT(*) FROM patients GROUP BY 1", ["age / 10"]),
        ("age / 30, COUNT(*) FROM patients GROUP BY 1", "COUNT(*) FROM patients WHERE age >= 20", ["age / 10"]),
        ("FLOOR(age / 30), COUNT(*) FROM patients GROUP BY 1", "COUNT(*) FROM patients WHERE age >= 60", None),
        (
            "COUNT(*) FROM patients WHERE age >= 60",
            "FLOOR(age / 30), COUNT(*) FROM patients GROUP BY 1",
            ["FLOOR(age / 30)"],
        ),
        ("COUNT(*) FROM patients WHERE age >= 20", "age, COUNT(*) FROM patients GROUP BY 1", ["age"]),
        ("COUNT(*) FROM patients WHERE age >= 20", "COUNT(*) FROM patients WHERE age = 60", ["age"]),
        ("COUNT(*) FROM patients WHERE age >= 0", "COUNT(*) FROM patients WHERE age < 60", ["age"]),
        ("COUNT(*) FROM patients WHERE age >= 20", "COUNT(*) FROM patients WHERE age < 61", ["age"]),
        (
            "COUNT(*) FROM visits WHERE visited_on >= '2021-01-01'",
            "COUNT(*) FROM visits WHERE visited_on <= '2022-12-31'",
            ["DATE_TRUNC('year', visited_on)"],
        ),
        (
            "COUNT(*) FROM visits WHERE visited_on >= '2021-01-01'",
            "EXTRACT(month FROM visited_on), COUNT(*) FROM visits GROUP BY 1",
            ["DATE_TRUNC('month', visited_on)"],
        ),
        (
            "COUNT(*) FROM visits WHERE visited_on >= '2021-01-01'",
            "COUNT(*) FROM visits WHERE visited_on < '2022-01-15'",
            ["DATE_TRUNC('day', visited_on)"],
        ),
    ],
)
def test_keys_of_a_union_are_as_coarse_as_what_they_decide(
    wide_policy: Path, asked: str, other: str, keys: list[str] | None
) -> None:
    planner = Planner(load_policy(wide_policy))

    def described(sql: str) -> DescribedRelease:
        found = planner.compile(sql).releases[0].described
        assert found is not None
        return found

    query = planner.compile(f"SELECT {asked}")
    mine = query.releases[0].described
    assert mine is not None and query.planned is not None and query.price is not None
    found = union(mine, described(f"SELECT {other}"))
    if keys is None:
        assert found is None
        return
    assert found is not None
    (made,) = query.planned(query.price.epsilon, OtherRelease(found, 0), ()).releases
    table = "visits" if "visits" in asked else "patients"
    same = described(f"SELECT {', '.join(keys)}, COUNT(*) FROM {table} GROUP BY {', '.join(keys)}").description
    assert made.described is not None and made.described.description.keys == same.keys


def test_finer_groups_promise_no_smaller_bias_of_the_same_rows(clinic_policy: Path) -> None:
    """A profile tells what bounds drop of a table, which is spread over all groups; a filter by sex spares no row."""
    planner = Planner(load_policy(clinic_policy))
    women, men = (planner.compile(query) for query in BY_MONTH[:2])
    mine, other = women.releases[0].described, men.releases[0].described
    assert mine is not None and other is not None and women.planned is not None
    found = union(mine, other)
    assert found is not None
    (made,) = women.planned(Fraction(1, 10), OtherRelease(found, 0), ()).releases
    assert made.described is not None
    dropped = Fraction(10**6)
    told = replace(made.described.description, bias=dropped)
    want = replace(women.releases[0], described=replace(mine, bias=dropped))
    how = derivation(told, want, planner.catalog)
    assert how is not None and not how.spares
    noises = [added(each.noise) for each in made.primitives]
    pairs = derivation_errors(told, noises, how, [1] * len(noises), want, (340, 85))
    assert pairs is not None and all(anew.bias == derived.bias > 0 for derived, anew in pairs)


def test_groups_that_are_listed_have_no_cells_yet(wide_policy: Path) -> None:
    planned = Planner(load_policy(wide_policy)).compile("SELECT COUNT(*), SUM(age) FROM patients").releases[0]
    assert [cell.tolist() for cell in listed_groups(planned, None).cells] == [[0]] * len(planned.primitives)
