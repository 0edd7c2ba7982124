"""What is missing alone is bought: answers of a new release and of earlier ones, as exact as if asked anew."""

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dpsql.compiler.derivation.derivation import derivation, wider
from dpsql.compiler.plan.query_plan import OtherRelease
from dpsql.errors import LimitExceeded
from dpsql.gateway import derivations
from dpsql.gateway.answers import Answer
from dpsql.gateway.engine import Engine
from dpsql.gateway.means import Mean
from dpsql.gateway.query_run import Result
from dpsql.gateway.release import PostProcessor, ReleasedCells, weighed
from dpsql.gateway.session import Session
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Accountant, Sensitivity
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, combined, variance
from tests.compiler.plans import Planner
from tests.conftest import MakeEngine
from tests.examples import turns
from tests.test_derived import (
    DOCTORS,
    FINER,
    KEYS,
    LIMITS,
    PEOPLE,
    TERMS,
    VALUES,
    any_query,
    asks,
    plan_of,
    run,
    shown,
    spent,
)

FULL = Fraction(1, 200)
"""The price of a query at the clinic's ε of 0.1: ε²/2."""
OVERVIEW = f"SELECT sex, age, COUNT(*), AVG(weight) {PEOPLE} GROUP BY 1, 2"
BY_SEX = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"
OF_WOMEN = f"SELECT age, COUNT(*) {PEOPLE} AND sex = 'F' GROUP BY age"
BY_DECADE = f"SELECT FLOOR(age / 10), COUNT(*) {PEOPLE} GROUP BY 1"


def answered(result: Result) -> Answer:
    assert result.answer is not None
    return result.answer


def price(result: Result) -> Fraction:
    """What was charged for an answer."""
    charge = answered(result).charge
    assert charge is not None
    return charge.price.rho


def error(result: Result, column: int) -> tuple[float, float]:
    """The standard error of a column as it is announced, and as it would be if it were asked anew."""
    query = answered(result).query
    assert query.anew is not None
    mine, anew = query.columns[column].error, query.anew.columns[column].error
    assert mine is not None and mine.stderr is not None
    assert anew is not None and anew.stderr is not None
    return mine.stderr, anew.stderr


def test_what_is_missing_alone_is_bought(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """The overview pays for a mean, too: half of the price is missing for counts as exact as when asked alone."""
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, OVERVIEW)
    before = spent(engine, "ana").rho
    plan = plan_of(ana, OF_WOMEN)
    result = run(ana, OF_WOMEN)
    told = "combined with your release 1 (computed anew: epsilon 0.1)"
    assert told in plan and told in result.notices[0].message
    assert FULL / 2 < price(result) < FULL * Fraction(2, 3)
    assert spent(engine, "ana").rho == before + price(result)
    mine, anew = error(result, 1)
    assert 0.97 * anew < mine <= anew * 1.001
    assert answered(result).derived_from == (1,)
    assert not answered(result).reused


def test_what_is_charged_is_what_is_drawn(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, OVERVIEW)
    result = run(ana, OF_WOMEN)
    (bought,) = answered(result).query.bought
    (primitive,) = bought.primitives
    assert bought.events == (primitive.noise.event,)
    noise = primitive.noise
    assert isinstance(noise, DiscreteGaussian)
    assert price(result) == Fraction(noise.sensitivity.l2_squared) / (2 * noise.variance)
    charged = [record["body"] for record in engine.ledger.export() if record["kind"] == "charge"][-1]
    assert [release["events"] for release in charged["releases"]] == [[event.to_json() for event in bought.events]]
    assert engine.ledger.verify().ok


def test_a_filter_is_bought_for_all_values_of_its_key(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """At the same price: so the other values are free."""
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, OVERVIEW)
    (bought,) = answered(run(ana, OF_WOMEN)).query.bought
    assert bought.keys == 2
    for sex in ("M", "X"):
        assert price(run(ana, OF_WOMEN.replace("= 'F'", f"= '{sex}'"))) == 0
    assert price(run(ana, f"SELECT sex, age, COUNT(*) {PEOPLE} AND age < 20 GROUP BY 1, 2")) == 0
    assert price(run(ana, OF_WOMEN)) == 0


@pytest.mark.parametrize(
    ("rows", "key", "term"),
    [(DOCTORS, "specialty", "specialty = 'cardiology'"), ("FROM patients", "sex, age", "age > 30 AND sex = 'F'")],
)
def test_what_is_wider_is_the_other_release(wide_policy: Path, rows: str, key: str, term: str) -> None:
    planner = Planner(load_policy(wide_policy))
    whole = planner.compile(f"SELECT {key}, COUNT(*) {rows} GROUP BY {key}").releases[0]
    query = planner.compile(f"SELECT {key}, COUNT(*) {rows} WHERE {term} GROUP BY {key}")
    asked = query.releases[0].described
    assert whole.described is not None and asked is not None and query.planned is not None and query.price is not None
    found = wider(whole.described.description, asked)
    assert found is not None
    (made,) = query.planned(query.price.epsilon, OtherRelease(found, 0), ()).releases
    assert (made.key, made.sql) == (whole.key, whole.sql)
    assert wider(asked.description, whole.described) is None
    (again,) = query.planned(query.price.epsilon, None, ()).releases
    assert (again.key, again.sql) == (query.releases[0].key, query.releases[0].sql)


def test_an_answer_stays_free_when_others_have_come(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    questions = [OVERVIEW, OF_WOMEN, BY_DECADE]
    questions += [
        f"SELECT sex, FLOOR(age / {width}), COUNT(*), AVG(weight) {PEOPLE} GROUP BY 1, 2" for width in (5, 10)
    ]
    questions += [f"SELECT sex, COUNT(*) {PEOPLE} GROUP BY sex", f"SELECT COUNT(*), AVG(weight) {PEOPLE}"]
    paid = [price(run(ana, sql)) for sql in questions]
    assert all(paid[:1]) and sum(paid) < 6 * FULL
    assert sum(price(run(ana, sql)) for sql in questions) < FULL / 10


def test_what_several_releases_tell_together_is_found_again(make_engine: MakeEngine, wide_policy: Path) -> None:
    """No two of them tell more than the last alone, by what a mean is rounded; all of them do."""
    session = Session(make_engine(wide_policy), "ana")
    sql = "SELECT COUNT(*) FROM patients WHERE sex = 'F'"
    run(session, "SET dpsql.reuse = exact")
    for epsilon in ("0.3", "0.31", "0.32", "0.33"):
        run(session, f"SET dpsql.epsilon = {epsilon}")
        run(session, sql)
    run(session, "SET dpsql.reuse = derived")
    run(session, "SET dpsql.epsilon = 1")
    first = run(session, sql)
    assert 0 < price(first) < Fraction(1, 2)
    again = run(session, sql)
    assert price(again) == 0 and list(again.rows) == list(first.rows)


def test_nothing_is_bought_that_is_not_exact_enough(make_engine: MakeEngine, wide_policy: Path) -> None:
    """Where derived answers must be twice as exact as fresh ones, one fresh answer is bought, once."""
    session = Session(make_engine(wide_policy), "ana")
    rows = "FROM patients WHERE age BETWEEN 0 AND 110 AND sex IN ('F', 'M', 'X')"
    run(session, "SET dpsql.epsilon = 1")
    run(session, "SET dpsql.max_error_ratio = 0.5")
    run(session, f"SELECT sex, age, COUNT(*) {rows} GROUP BY 1, 2")
    paid = [price(run(session, f"SELECT COUNT(*) {rows} AND age = 20 AND sex = 'F'")) for _ in range(4)]
    assert paid[0] > 0 and paid[1:] == [0, 0, 0]


def test_many_releases_tell_as_much_when_one_more_has_come(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SET dpsql.reuse = exact")
    for width in range(2, 11):
        run(ana, f"SELECT FLOOR(age / {width}), COUNT(*) {PEOPLE} GROUP BY 1")
    run(ana, "SET dpsql.reuse = derived")
    total = f"SELECT COUNT(*) {PEOPLE}"
    assert 0 < price(run(ana, total)) < FULL
    assert price(run(ana, total)) == 0


def test_what_would_not_be_as_exact_is_asked_as_it_is(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price is only a guess: the plan for it tells the noise."""
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, OVERVIEW)
    monkeypatch.setattr(Mean, "missing", (Fraction(1, 4),))
    assert price(run(ana, OF_WOMEN)) == FULL


def test_higher_precision_costs_the_difference(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """And nobody else has it for less: the release that refines is handed on as it was drawn."""
    engine = make_engine(clinic_policy)
    ana, ben = Session(engine, "ana"), Session(engine, "ben")
    run(ana, BY_SEX)
    run(ana, "SET dpsql.epsilon = 0.2")
    result = run(ana, BY_SEX)
    assert 3 * FULL < price(result) < 3 * FULL * Fraction(105, 100)
    assert spent(engine, "ana").rho < 4 * FULL * Fraction(105, 100)
    mine, anew = error(result, 1)
    assert mine <= anew
    run(ben, "SET dpsql.epsilon = 0.2")
    assert price(run(ben, BY_SEX)) == 4 * FULL


def test_a_release_is_not_combined_with_itself(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """For half of the squared error the same release would do, if it were another one: the next price is taken."""
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SET dpsql.epsilon = 0.01")
    run(ana, BY_SEX)
    run(ana, "SET dpsql.epsilon = 0.01414")
    result = run(ana, BY_SEX)
    assert price(result) == Fraction("0.0101") ** 2 / 2
    assert len({source.key for source in answered(result).query.sources}) == 2


@pytest.mark.parametrize("accountant", list(Accountant))
def test_the_difference_is_less_under_every_accountant(
    make_engine: MakeEngine, clinic_policy: Path, accountant: Accountant
) -> None:
    loaded = load_policy(clinic_policy)
    budget = replace(loaded.roles[0].budget, accountant=accountant)
    if accountant is Accountant.PURE:
        budget = replace(budget, delta=Fraction(0))
    engine = make_engine(replace(loaded, roles=(replace(loaded.roles[0], budget=budget),)))
    ana = Session(engine, "ana")
    run(ana, BY_SEX)
    run(ana, "SET dpsql.epsilon = 0.2")
    result = run(ana, BY_SEX)
    mine, anew = error(result, 1)
    assert answered(result).derived_from == (1,)
    assert mine <= anew
    (bought,), asked = answered(result).query.bought, answered(result).query.anew
    assert asked is not None
    assert bought.primitives[0].noise.event.scale > asked.releases[0].primitives[0].noise.event.scale


def test_what_is_made_of_other_releases_is_asked_with_these_alone(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, f"SELECT sex, AVG(age) {PEOPLE} GROUP BY sex")
    nested = f"SELECT COUNT(*) FROM patients WHERE age > (SELECT AVG(age) {PEOPLE} AND sex = 'F')"
    result = run(ana, nested)
    assert answered(result).derived_from == ()
    assert price(result) == FULL
    assert price(run(ana, nested)) == 0


def test_a_target_pays_for_what_is_missing(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    ana, ben = Session(engine, "ana"), Session(engine, "ben")
    for session in (ana, ben):
        run(session, "SET dpsql.target_error = '60'")
    run(ana, "RESET dpsql.target_error")
    run(ana, OVERVIEW)
    run(ana, "SET dpsql.target_error = '60'")
    run(ana, "SET dpsql.max_error_ratio = 5")  # a target is met, whatever else may be less exact
    less, full = run(ana, OF_WOMEN), run(ben, OF_WOMEN)
    assert price(less) < price(full)
    assert "target 60 met" in less.notices[0].message
    run(ana, "SET dpsql.target_error = '25'")
    run(ben, "SET dpsql.target_error = '25'")
    assert price(run(ana, OF_WOMEN)) < price(run(ben, OF_WOMEN))


def test_of_several_releases_those_that_are_derived_are_free(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SET dpsql.epsilon = 0.2")
    run(ana, f"SELECT sex, COUNT(*) {PEOPLE} GROUP BY sex")
    of_women = f"SELECT COUNT(*) AS n {PEOPLE} AND sex = 'F'"
    two = f"SELECT n, m FROM ({of_women}) AS a, (SELECT MEDIAN(age) AS m FROM patients) AS b"
    assert "combined with your release 1" in plan_of(ana, two)
    result = run(ana, two)
    assert len(answered(result).query.bought) == 1
    assert 0 < price(result) < 4 * FULL


def test_what_would_be_too_cheap_is_asked_as_it_is(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, OVERVIEW)
    monkeypatch.setattr(engine, "may_read", lambda *_: False)
    result = run(ana, OF_WOMEN)
    assert price(result) == FULL
    assert answered(result).derived_from == ()


def test_what_cannot_be_added_up_after_all_is_asked_anew(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SELECT sex, COUNT(*) FROM patients GROUP BY sex")
    of_women = "SELECT COUNT(*) FROM patients WHERE sex = 'F'"

    def fails(*_: object) -> ReleasedCells:
        raise LimitExceeded("the result of this query is too large")

    assert "free" in plan_of(ana, of_women)
    monkeypatch.setattr(PostProcessor, "derive", fails)
    result = run(ana, of_women)
    assert price(result) == FULL
    assert answered(result).derived_from == ()
    run(ana, "RESET ALL")
    run(ana, OVERVIEW)
    with pytest.raises(LimitExceeded):  # it is charged: it is not charged again
        run(ana, OF_WOMEN)
    assert 3 * FULL < spent(engine, "ana").rho < 4 * FULL


@pytest.fixture
def people(each_wide_engine: Engine) -> Engine:
    """The wide world, of which nothing is cut, without noise, on each engine."""
    return each_wide_engine


@pytest.mark.parametrize("table", list(KEYS))
def test_random_pairs(people: Engine, table: str) -> None:
    """Whatever is combined is what would be asked; the draws are the same in each run."""
    chance, found = random.Random(23), 0
    for turn in turns(36):
        limit = chance.choice(LIMITS[table])
        first = any_query(chance, table, FINER[table], limit, len(VALUES[table]), 0)
        then = any_query(chance, table, KEYS[table], limit, chance.randint(1, 2), chance.randint(0, len(TERMS) - 1))
        session = asks(people, f"combined {table} {turn}")
        run(session, first)
        both = run(session, then)
        run(session, "SET dpsql.reuse = off")
        assert shown(both) == shown(run(session, then)), (first, then)
        query = answered(both).query
        found += bool(query.anew is not None and query.bought)
    assert found or people.policy.dataset.url.startswith("parquet")  # where nothing says that a patient has one row


# Means.


def cells(*values: Sequence[int]) -> ReleasedCells:
    keys = (np.array([str(place) for place, _ in enumerate(values[0])], dtype=object),)
    return ReleasedCells(keys, tuple(np.array(each, dtype=np.int64) for each in values))


def test_a_mean_is_weighed_by_inverse_variances() -> None:
    parts = [cells([100, -40], [7, 7]), cells([130, -10], [9, 8]), cells([160, 20], [7, 7])]
    variances = [(Fraction(1), Fraction(1)), (Fraction(1, 2), Fraction(1)), (Fraction(1), Fraction(10**9))]
    mean = weighed(parts, variances)
    assert [cell.tolist() for cell in mean.cells] == [[130, -10], [8, 7]]
    assert mean.keys is parts[0].keys
    assert weighed(parts[:1], variances[:1]).cells[0].tolist() == [100, -40]


def test_a_mean_of_far_cells_stays_within_them() -> None:
    ends = [cells([2**62 - 1, 1 - 2**62]), cells([1 - 2**62, 2**62 - 1])]
    mean = weighed(ends, [(Fraction(1),), (Fraction(1, 10**30),)])
    assert np.abs(mean.cells[0]).max() <= 2**62 - 1


LAPLACE = DiscreteLaplace(Sensitivity(1, 1, 1, 1), Fraction(8))
GAUSSIAN = DiscreteGaussian(Sensitivity(1, 1, 1, 1), Fraction(150))
MIXES: tuple[tuple[tuple[DiscreteLaplace | DiscreteGaussian, int], ...], ...] = (
    ((GAUSSIAN, 1), (GAUSSIAN, 3)),
    ((LAPLACE, 1), (LAPLACE, 2)),
    ((LAPLACE, 2), (GAUSSIAN, 1)),
    ((GAUSSIAN, 1), (LAPLACE, 12), (GAUSSIAN, 40)),
    ((GAUSSIAN, 400), (LAPLACE, 1)),
)


@pytest.mark.parametrize("mix", MIXES)
def test_a_mean_lies_within_its_interval(mix: Sequence[tuple[DiscreteLaplace | DiscreteGaussian, int]]) -> None:
    """In 20,000 draws, less than 94.1 % lie within a 95 % interval with a probability below 1e-7."""
    sums = [cells(noise.sample(20_000 * terms).reshape(20_000, terms).sum(axis=1)) for noise, terms in mix]
    variances = [variance(noise) * terms for noise, terms in mix]
    mean = weighed(sums, [(each,) for each in variances]).cells[0]
    whole = 1 / sum((1 / each for each in variances), Fraction(0)) + Fraction(1, 4)
    half = combined([noise for noise, _ in mix], whole).half_width()
    assert np.mean(np.abs(mean) <= half) >= 0.941
    assert np.mean(np.abs(mean) <= half / 1.5) < 0.941


def test_combined_answers_lie_within_what_is_announced(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """Of 3,330 independent cells fewer than 92.5 % lie within 95 % intervals with a probability below 1e-9."""
    with duckdb.connect(str(clinic_policy.with_name("clinic.duckdb")), read_only=True) as database:
        truth = dict(database.execute(OF_WOMEN).fetchall())
    strayed, announced = list[int](), set[float | None]()
    for _ in range(30):
        # Each has a ledger of its own, because users of one ledger share releases.
        session = asks(make_engine(clinic_policy), "new")
        run(session, OVERVIEW)
        result = run(session, OF_WOMEN)
        assert answered(result).query.bought and answered(result).derived_from
        column = answered(result).columns[1].error
        assert column is not None
        announced.add(column.plus_minus_95)
        for age, count in result.rows:
            assert isinstance(count, int)
            strayed.append(abs(count - truth.get(age, 0)))
    (half,) = announced
    assert half is not None and len(strayed) == 3330
    inside = np.array(strayed)
    assert np.mean(inside <= half) >= 0.925
    assert np.mean(inside <= half / 1.5) < 0.925


def test_what_tells_some_of_the_cells_is_used_for_these(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """A mean needs a count, too: one that is there need not be bought, and the others cost what they would alone."""
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    count, both = f"SELECT sex, COUNT(*) {PEOPLE} GROUP BY 1", f"SELECT sex, COUNT(*), SUM(weight) {PEOPLE} GROUP BY 1"
    run(ana, count)
    result = run(ana, both)
    assert answered(result).derived_from == (1,)
    (told,), asked = answered(result).query.releases, answered(result).query.anew
    assert asked is not None
    (of_one,) = [each for each in told.derived if None in each.places]
    shares = [Spent.zero().add([each.noise.event]).rho for each in asked.releases[0].primitives]
    (summed,) = [share for share, place in zip(shares, of_one.places, strict=True) if place is None]
    assert summed < price(result) < summed + (FULL - summed) / 10  # a twentieth of the count is bought with the sum
    for column in (1, 2):
        mine, anew = error(result, column)
        assert mine <= anew * 1.001
    run(ana, "SET dpsql.epsilon = 0.01")
    assert price(run(ana, both)) == 0


def test_a_query_without_noise_is_answered_after_releases_of_its_groups(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    session = Session(make_engine(clinic_policy), "ana")
    for sql in (BY_SEX, "SELECT DISTINCT sex FROM patients", "SELECT sex FROM patients GROUP BY sex"):
        assert len(run(session, sql).rows) == 4


def test_what_a_release_does_not_tell_has_no_part_in_a_sum(people: Engine) -> None:
    session = asks(people, "some cells")
    both = f"SELECT sex, COUNT(*), SUM(weight) {PEOPLE} GROUP BY 1"
    run(session, f"SELECT sex, age, COUNT(*) {PEOPLE} GROUP BY 1, 2")
    told = run(session, both)
    run(session, "SET dpsql.reuse = off")
    assert shown(told) == shown(run(session, both))


def test_releases_of_one_kind_are_looked_at_once(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many releases that answer a question, those that are enough are looked at, and each description once."""
    engine = make_engine(clinic_policy)
    ana, derived, counted = Session(engine, "ana"), list[object](), list[object]()
    run(ana, "SET dpsql.reuse = exact")
    for epsilon in ("0.3", "0.31", "0.32", "0.33", "0.34"):
        run(ana, f"SET dpsql.epsilon = {epsilon}")
        run(ana, BY_SEX)
    run(ana, "RESET ALL")
    most_terms = PostProcessor.most_terms

    def derives(*asked: Any) -> object:
        derived.append(asked)
        return derivation(*asked)

    def counts(*asked: Any) -> object:
        counted.append(asked)
        return most_terms(*asked)

    monkeypatch.setattr(derivations, "derivation", derives)
    monkeypatch.setattr(PostProcessor, "most_terms", counts)
    of_women = "SELECT COUNT(*) FROM patients WHERE sex = 'F'"
    run(ana, "SET dpsql.max_error_ratio = 0.2")
    run(ana, of_women)
    assert (len(derived), len(counted)) == (1, 1)
    run(ana, of_women.replace("'F'", "'M'"))
    assert (len(derived), len(counted)) == (2, 2)
