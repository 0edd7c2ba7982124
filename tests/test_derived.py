"""Answers from answers: cells that the user has, added up, are those of the other question; nobody else has them."""

import json
import random
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpsql
from dpsql.backends.backend import Cancellation
from dpsql.compiler.derivation.derivation import derivation
from dpsql.errors import GuaranteeMismatch, InvalidParameter, LedgerUnavailable, QueryCanceled
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Result
from dpsql.gateway.reading import ReleaseReader
from dpsql.gateway.release import PostProcessor, stored_release
from dpsql.gateway.session import Session
from dpsql.ledger import HandedRelease, NotHeld, Reading, ReleaseRequest
from dpsql.policy import Policy, load_policy
from dpsql.policy.profile import Profile, RankGroups, RowRanks, TableProfile, coarse_bounds, table_facts
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Event, Mechanism, Sensitivity
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, combined, noise_of, variance
from tests.compiler.plans import Planner
from tests.conftest import Lend, MakeEngine, lent_post_processor
from tests.examples import profile as examples

DOCTORS = "FROM visits v JOIN doctors d USING (doctor_id)"
CODES = "FROM visits v JOIN icd10 i ON i.code = v.icd"
PAIRS = "events a JOIN events b USING (person)"
BY_DOCTOR = f"SELECT specialty, d.city, COUNT(*), SUM(cost), AVG(cost), COUNT(cost) {DOCTORS} GROUP BY 1, 2"
PEOPLE = "FROM patients WHERE age BETWEEN 0 AND 110 AND sex IN ('F', 'M', 'X')"
BY_PEOPLE = (
    "SELECT sex, age, COUNT(*), COUNT(DISTINCT patient_id), SUM(weight), STDDEV(weight), REGR_SLOPE(weight, age), "
    f"CORR(weight, age), COUNT(*) FILTER (WHERE weight > 60 AND sex IS NOT NULL) {PEOPLE} GROUP BY 1, 2"
)
IN_TIME = "FROM visits WHERE visited_on >= '2020-01-01' AND visited_on < '2025-01-01'"
BY_MONTH = f"SELECT DATE_TRUNC('month', visited_on), COUNT(*), SUM(cost) {IN_TIME} GROUP BY 1"

BY_DECADE = f"SELECT sex, FLOOR(age / 10), COUNT(*) {PEOPLE} GROUP BY 1, 2"
UNBORN = "FROM patients WHERE age BETWEEN -50 AND 50"
BY_TENS = f"SELECT age / 10, COUNT(*) {UNBORN} GROUP BY 1"

# What a release answers: pairs of it and a question, of which the second is free and the same as if it were asked.
ANSWERED = (
    (BY_DOCTOR, f"SELECT specialty, COUNT(*), AVG(cost) {DOCTORS} GROUP BY 1"),
    (BY_DOCTOR, f"SELECT COUNT(*), SUM(cost) {DOCTORS}"),
    (BY_DOCTOR, f"SELECT d.city, SUM(cost) / COUNT(*) {DOCTORS} GROUP BY d.city"),
    (BY_DOCTOR, f"SELECT LEFT(specialty, 2), SUM(cost) {DOCTORS} GROUP BY 1"),
    (BY_DOCTOR, f"SELECT specialty = 'cardiology', d.city, COUNT(cost) {DOCTORS} GROUP BY 1, 2"),
    (BY_DOCTOR, f"SELECT CASE WHEN d.city LIKE 'B%' THEN 'b' ELSE specialty END, COUNT(*) {DOCTORS} GROUP BY 1"),
    (BY_DOCTOR, f"SELECT specialty, COUNT(*), COUNT(*) {DOCTORS} GROUP BY 1 HAVING COUNT(*) > 10 ORDER BY 2 LIMIT 3"),
    (BY_PEOPLE, f"SELECT sex, COUNT(*), STDDEV(weight) {PEOPLE} GROUP BY sex"),
    (BY_PEOPLE, f"SELECT COUNT(DISTINCT patient_id) {PEOPLE} AND sex = 'F'"),
    (BY_PEOPLE, f"SELECT FLOOR(age / 10), VAR_POP(weight), SUM(weight) {PEOPLE} GROUP BY 1"),
    (BY_PEOPLE, f"SELECT sex, REGR_SLOPE(weight, age), CORR(weight, age) {PEOPLE} AND sex IN ('F', 'M') GROUP BY sex"),
    ("SELECT sex, COUNT(*) FROM patients GROUP BY sex", "SELECT COUNT(*) FROM patients WHERE sex IS NULL"),
    ("SELECT sex, COUNT(*) FROM patients GROUP BY sex", "SELECT COUNT(*) FROM patients WHERE sex = 'M'"),
    (BY_PEOPLE, f"SELECT WIDTH_BUCKET(age, 0, 100, 5), COUNT(*) {PEOPLE} AND age BETWEEN 20 AND 60 GROUP BY 1"),
    (BY_PEOPLE, f"SELECT age, COUNT(*) FILTER (WHERE sex = 'F'), COUNT(*) {PEOPLE} GROUP BY age"),
    (
        BY_PEOPLE,
        f"SELECT sex, COUNT(*) FILTER (WHERE weight > 60 AND age > 50 AND sex IS NOT NULL) {PEOPLE} GROUP BY 1",
    ),
    (f"SELECT FLOOR(age / 10), COUNT(*) {PEOPLE} GROUP BY 1", f"SELECT FLOOR(age / 20), COUNT(*) {PEOPLE} GROUP BY 1"),
    (BY_DECADE, f"SELECT sex, COUNT(*) {PEOPLE} AND age >= 20 AND age < 40 GROUP BY sex"),
    (BY_DECADE, f"SELECT COUNT(*) {PEOPLE} AND age > 29 AND 39 >= age"),
    (BY_TENS, f"SELECT COUNT(*) {UNBORN} AND age >= 20"),
    (BY_MONTH, f"SELECT DATE_TRUNC('year', visited_on), COUNT(*), SUM(cost) {IN_TIME} GROUP BY 1"),
    (BY_MONTH, f"SELECT EXTRACT(quarter FROM visited_on), COUNT(*) {IN_TIME} GROUP BY 1"),
    (BY_MONTH, f"SELECT COUNT(*) {IN_TIME}"),
    (
        f"SELECT LEFT(specialty, 3), COUNT(*) {DOCTORS} GROUP BY 1",
        f"SELECT LEFT(specialty, 1), COUNT(*) {DOCTORS} GROUP BY 1",
    ),
    ("SELECT ok, COUNT(*), SUM(n) FROM events GROUP BY ok", "SELECT COUNT(*), SUM(n) FROM events"),
    ("SELECT COUNT(*) FROM patients", "SELECT COUNT(*) FROM patients"),
    (
        f"SELECT a.ok, a.n, COUNT(*) FROM {PAIRS} WHERE a.n BETWEEN 1 AND 3 GROUP BY 1, 2",
        f"SELECT b.n, COUNT(*) FROM {PAIRS} WHERE b.n BETWEEN 1 AND 3 GROUP BY 1",  # a and b are names
    ),
)

# What it does not: rows that it lacks or cannot tell apart, cells that do not add up, groups that the data tell.
BY_AGE = "SELECT age, COUNT(*) FROM patients WHERE age BETWEEN 0 AND 110 GROUP BY 1"
BY_SEX = "SELECT sex, COUNT(*) FROM patients WHERE sex IN ('F', 'M', 'X') GROUP BY 1"
SAMPLED = "FROM events e JOIN samples s ON e.n = s.n"
BY_PRICE = f"SELECT s.price, COUNT(*) {SAMPLED} GROUP BY 1"
BY_HOUR = f"SELECT DATE_TRUNC('hour', s.day), COUNT(*) {SAMPLED} GROUP BY 1"
NOT_ANSWERED = (
    ("SELECT sex, COUNT(*) FROM patients GROUP BY sex", "SELECT COUNT(*) FROM patients"),  # other values may be there
    ("SELECT sex, COUNT(*) FROM patients GROUP BY sex", "SELECT COUNT(*) FROM patients WHERE sex = 'Z'"),
    ("SELECT age, COUNT(*) FROM patients GROUP BY age", "SELECT COUNT(*) FROM patients WHERE age > 20"),
    ("SELECT age, COUNT(*) FROM patients GROUP BY age", "SELECT COUNT(*) FROM patients WHERE age < 20"),
    ("SELECT doctor_id, COUNT(*) FROM visits GROUP BY 1", "SELECT COUNT(*) FROM visits"),
    (BY_DOCTOR, "SELECT COUNT(*) FROM visits"),  # a partner of a join
    (BY_DECADE, f"SELECT COUNT(*) {PEOPLE} AND age >= 25"),
    (BY_DECADE, f"SELECT COUNT(*) {PEOPLE} AND age < 41"),
    (BY_TENS, f"SELECT COUNT(*) {UNBORN} AND age >= 0"),  # -5 / 10 is 0
    (BY_TENS, f"SELECT COUNT(*) {UNBORN} AND age >= -20"),  # -25 / 10 is -2
    (BY_TENS, f"SELECT COUNT(*) {UNBORN} AND age < -20"),
    (BY_AGE, BY_AGE.replace("age,", "age / 7.0,")),  # a released numeric has other digits
    (BY_AGE, BY_AGE.replace("age,", "LN((age + 1)::float) > 3,")),  # engines differ in the last digits
    (BY_AGE, BY_AGE.replace("age,", "COSH(age / 7) > 3,")),
    (BY_AGE, BY_AGE.replace("age,", "DEGREES(SIN(age)) > 10,")),
    (BY_PRICE, BY_PRICE.replace("s.price,", "LENGTH(s.price::text),")),
    (BY_PRICE, f"SELECT COUNT(*) {SAMPLED} WHERE s.price / 3 > 1"),
    (BY_HOUR, f"SELECT COUNT(*) {SAMPLED} WHERE s.day > TIMESTAMP '2024-02-28 12:00'"),  # a day is at midnight
    (BY_SEX, BY_SEX.replace("sex,", "UPPER(sex),")),  # upper case follows the database's locale
    (BY_DOCTOR, f"SELECT specialty, COUNT(*) {DOCTORS} WHERE cost > 10 GROUP BY 1"),
    (f"SELECT specialty, COUNT(*) {DOCTORS} WHERE cost > 10 GROUP BY 1", f"SELECT COUNT(*) {DOCTORS}"),
    (BY_DOCTOR, f"SELECT COUNT(*) {DOCTORS} WHERE specialty = 'cardiology'"),  # bounds drop other rows of a unit
    (BY_MONTH, f"SELECT COUNT(*) {IN_TIME} AND visited_on >= '2021-03-02'"),  # not a function of months
    (BY_MONTH, f"SELECT DATE_TRUNC('week', visited_on), COUNT(*) {IN_TIME} GROUP BY 1"),
    (BY_DOCTOR, f"SELECT COUNT(DISTINCT patient_id) {DOCTORS}"),
    (
        f"SELECT specialty, COUNT(DISTINCT patient_id) {DOCTORS} GROUP BY 1",
        f"SELECT COUNT(DISTINCT patient_id) {DOCTORS}",
    ),
    ("SELECT ok, COUNT(DISTINCT person) FROM events GROUP BY ok", "SELECT COUNT(DISTINCT person) FROM events"),
    ("SELECT ok, COUNT(DISTINCT word) FROM events GROUP BY ok", "SELECT COUNT(DISTINCT word) FROM events"),
    ("SELECT ok, MAX(n) FROM events GROUP BY ok", "SELECT MAX(n) FROM events"),
    ("SELECT city, COUNT(*) FROM patients GROUP BY city", "SELECT COUNT(*) FROM patients WHERE city IS NOT NULL"),
    ("SELECT ok, SUM(n) FROM events GROUP BY ok", "SELECT SUM(n) FROM events WHERE n > 0"),
    ("SELECT ok, SUM(n) FROM events GROUP BY ok", "SELECT SUM(small) FROM events"),
    (
        "SELECT specialty, COUNT(*) FROM visits LEFT JOIN doctors USING (doctor_id) GROUP BY 1",
        "SELECT COUNT(*) FROM visits LEFT JOIN doctors USING (doctor_id)",
    ),
    (BY_DOCTOR, f"SELECT COUNT(*) {DOCTORS} WHERE d.city IN (SELECT city FROM doctors)"),
    (
        f"SELECT d.city IN (SELECT city FROM doctors WHERE doctor_id > 3), COUNT(*) {DOCTORS} GROUP BY 1",
        f"SELECT COUNT(*) {DOCTORS}",
    ),
    (BY_MONTH, f"SELECT COUNT(*) {IN_TIME} AND visited_on <= '9999-12-31'"),
    (BY_MONTH, f"SELECT COUNT(*) {IN_TIME} AND visited_on = '2021-01-01'"),
    (
        "SELECT EXTRACT(year FROM visited_on), COUNT(*) FROM visits "
        "WHERE visited_on >= TIMESTAMP '2020-01-01 01:00' GROUP BY 1",
        "SELECT COUNT(*) FROM visits WHERE visited_on >= TIMESTAMP '2020-01-01 01:00'",
    ),
    (f"SELECT LEFT(title, 3), COUNT(*) {CODES} GROUP BY 1", f"SELECT LEFT(title, -1), COUNT(*) {CODES} GROUP BY 1"),
    ("SELECT n, COUNT(*) FROM events WHERE n IN (1, 2) GROUP BY n", "SELECT COUNT(*) FROM events WHERE n IN (1, 2)"),
    (
        "SELECT word, COUNT(*) FROM events WHERE word IN ('beta', 'x') GROUP BY 1",
        "SELECT COUNT(*) FROM events WHERE word IN ('beta', 'x')",
    ),
    (
        f"SELECT a.ok, COUNT(*) FROM {PAIRS} WHERE a.n BETWEEN 1 AND 3 GROUP BY 1",
        f"SELECT b.ok, COUNT(*) FROM {PAIRS} WHERE a.n BETWEEN 1 AND 3 GROUP BY 1",
    ),
)


def run(session: Session, sql: str) -> Result:
    (statement,) = session.parse(sql)
    return session.execute(statement)


def derived_from(result: Result) -> tuple[int, ...]:
    return () if result.answer is None else result.answer.derived_from


def plan_of(session: Session, sql: str) -> str:
    return str(run(session, f"EXPLAIN {sql}").rows[0][0])


def shown(result: Result) -> list[tuple[Any, ...]]:
    return [tuple(round(value, 6) if isinstance(value, float) else value for value in row) for row in result.rows]


def asks(engine: Engine, user: str) -> Session:
    """A new user's session."""
    engine.ledger.add_account(user, engine.policy.roles[0].name)
    return Session(engine, user)


def spent(engine: Engine, user: str) -> Spent:
    return engine.ledger.budget(user, engine.policy).spent


def ask_twice(session: Session, first: str, then: str) -> tuple[Result, Result]:
    """Ask dearly, then cheaply; and then the second question anew."""
    run(session, "SET dpsql.epsilon = 10")
    run(session, first)
    run(session, "SET dpsql.epsilon = 0.01")
    derived = run(session, then)
    run(session, "SET dpsql.reuse = off")
    return derived, run(session, then)


@pytest.fixture
def people(each_wide_engine: Engine) -> Engine:
    """The wide world, of which nothing is cut, without noise, on each engine."""
    return each_wide_engine


def is_of_files(engine: Engine) -> bool:
    """Whether nothing says that a patient has one row, without which less is derived."""
    return engine.policy.dataset.url.startswith("parquet")


@pytest.mark.parametrize(("first", "then"), ANSWERED)
def test_a_derived_answer_is_the_direct_one(people: Engine, first: str, then: str) -> None:
    session = asks(people, f"answered {ANSWERED.index((first, then))}")
    derived, direct = ask_twice(session, first, then)
    assert derived_from(derived) or is_of_files(people)
    assert not derived_from(direct)
    assert shown(derived) == shown(direct)
    assert derived.answer is not None
    assert derived.answer.reused == bool(derived_from(derived))


@pytest.mark.parametrize(("first", "then"), NOT_ANSWERED)
def test_what_a_release_does_not_answer_is_asked_anew(wide_engine: Engine, first: str, then: str) -> None:
    session = asks(wide_engine, f"asked {NOT_ANSWERED.index((first, then))}")
    derived, direct = ask_twice(session, first, then)
    assert not derived_from(derived)
    assert shown(derived) == shown(direct)


KEYS = {
    "patients": ("sex", "age", "FLOOR(age / 5)", "CASE WHEN age < 40 THEN 'a' ELSE 'b' END", "sex = 'F'", "age > 50"),
    "events": ("ok", "n % 3", "EXTRACT(year FROM day)", "DATE_TRUNC('month', day)", "DATE_TRUNC('quarter', day)"),
}
FINER = {"patients": ("sex", "age", "FLOOR(age / 5)"), "events": ("ok", "DATE_TRUNC('month', day)", "n % 3")}
VALUES = {
    "patients": ("COUNT(*)", "COUNT(weight)", "SUM(weight)", "AVG(weight)", "COUNT(*) FILTER (WHERE sex = 'M')"),
    "events": ("COUNT(*)", "SUM(x)", "AVG(price)", "COUNT(x) FILTER (WHERE ok)", "VAR_SAMP(x)"),
}
LIMITS = {
    "patients": ("age BETWEEN 0 AND 110", "age BETWEEN 0 AND 110 AND sex IN ('F', 'M')"),
    "events": ("day BETWEEN '2020-01-01' AND '2030-12-31'", "day BETWEEN '2020-01-01' AND '2030-12-31' AND n % 3 = 1"),
}
TERMS = {
    "patients": ("sex = 'F'", "age >= 30", "age IN (20, 40, 60)", "sex IS NULL", "FLOOR(age / 5) > 3", "sex LIKE 'F%'"),
    "events": ("ok", "ok IS NULL", "day >= '2024-01-01'", "day < '2024-04-01'", "day <= '2024-12-31'", "n % 3 = 0"),
}


def any_query(chance: random.Random, table: str, keys: Sequence[str], limit: str, values: int, terms: int) -> str:
    chosen = chance.sample(keys, chance.randint(0, 2))
    asked = chance.sample(VALUES[table], values)
    where = " AND ".join([limit, *chance.sample(TERMS[table], terms)])
    by = f" GROUP BY {', '.join(str(place + 1) for place, _ in enumerate(chosen))}" if chosen else ""
    return f"SELECT {', '.join([*chosen, *asked])} FROM {table} WHERE {where}{by}"


@pytest.mark.parametrize("table", list(KEYS))
def test_random_pairs(people: Engine, table: str) -> None:
    """Whatever is derived is what would be asked."""
    found = list[bool]()

    @examples(40)
    @given(chance=st.randoms(use_true_random=False), limit=st.sampled_from(LIMITS[table]))
    def is_the_direct_one(chance: random.Random, limit: str) -> None:
        first = any_query(chance, table, FINER[table], limit, len(VALUES[table]), 0)
        then = any_query(chance, table, KEYS[table], limit, chance.randint(1, 2), chance.randint(0, 1))
        derived, direct = ask_twice(asks(people, f"{table} {len(found)}"), first, then)
        found.append(bool(derived_from(derived)))
        assert shown(derived) == shown(direct), (first, then)

    is_the_direct_one()
    assert sum(found) >= (1 if is_of_files(people) else 2)


def test_a_release_answers_its_family_alone(wide_policy: Path) -> None:
    planner = Planner(load_policy(wide_policy))
    of_visits = "SELECT COUNT(*) FROM visits"
    assert answers(planner, of_visits, of_visits)
    assert not answers(planner, of_visits, "SELECT COUNT(*) FROM prescriptions")
    assert not answers(planner, of_visits, "SELECT city, COUNT(*) FROM visits GROUP BY city")


def answers(planner: Planner, first: str, then: str, **settings: str) -> bool:
    described = planner.compile(first, **settings).releases[0].described
    asked = planner.compile(then, **settings).releases[0]
    return described is not None and derivation(described.description, asked, planner.catalog) is not None


def test_a_filter_by_days_is_one_by_months_where_it_is_aligned(wide_policy: Path) -> None:
    planner = Planner(load_policy(wide_policy))
    for term, is_aligned in (
        *((">= '2021-03-01'", True), (">= '2021-03-02'", False), ("< '2021-03-01'", True), ("< '2021-02-28'", False)),
        *(("<= '2021-02-28'", True), ("<= '2021-03-01'", False), ("> '2021-02-28'", True), ("> '2021-03-01'", False)),
        *(("BETWEEN '2021-01-01' AND '2021-12-31'", True), ("BETWEEN '2021-01-01' AND '2021-12-30'", False)),
    ):
        assert answers(planner, BY_MONTH, f"SELECT COUNT(*) {IN_TIME} AND visited_on {term}") is is_aligned


def test_groups_of_which_a_unit_has_some_left_out_are_not_added_up(wide_policy: Path) -> None:
    planner = Planner(load_policy(wide_policy))
    pair = "SELECT ok, COUNT(*) FROM events GROUP BY ok", "SELECT COUNT(*) FROM events"
    assert answers(planner, *pair)
    assert answers(planner, *pair, max_groups="3")
    assert not answers(planner, *pair, max_groups="1")


# The law: what is derived is nobody else's, and is nowhere kept.


def test_what_one_user_derives_is_charged_to_another_in_full(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """A refines ρ₁ + ρ₂; if that were stored, B would get it for ρ₂."""
    engine = make_engine(clinic_policy)
    ana, ben = Session(engine, "ana"), Session(engine, "ben")
    by_sex = "SELECT sex, COUNT(*) FROM patients WHERE age BETWEEN 0 AND 110 GROUP BY sex"
    of_women = "SELECT COUNT(*) FROM patients WHERE age BETWEEN 0 AND 110 AND sex = 'F'"
    (told,) = [row[1] for row in run(ana, by_sex).rows if row[0] == "F"]
    before = spent(engine, "ana")
    derived = run(ana, of_women)
    assert list(derived.rows) == [(told,)]
    assert spent(engine, "ana") == before
    paid = run(ben, of_women)
    assert not derived_from(paid)
    assert spent(engine, "ben").rho == Fraction(1, 200)  # ε²/2 in full
    assert paid.answer is not None and paid.answer.charge is not None
    assert not paid.answer.charge.free
    # Numbers count from 1 on for each user: the ledger's would tell how much others ask.
    run(ben, by_sex)
    men = of_women.replace("'F'", "'M'")
    assert derived_from(run(ana, men)) == (1,)
    assert derived_from(run(ben, men)) == (2,)
    plan = "\n".join(str(row[0]) for row in run(ben, f"EXPLAIN (VERBOSE) {men}").rows)
    assert "derived from release 2 (r0)" in plan
    # Ana is handed ben's release where she asks for it, and pays; hers stays what it was.
    assert list(run(ana, of_women).rows) == [(told,)]
    records = [record for record in engine.ledger.export() if record["kind"] == "release.stored"]
    assert len(records) == 2
    assert engine.ledger.verify().ok


def test_a_member_who_joins_a_group_derives_of_the_own_releases_alone(
    make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path
) -> None:
    text = clinic_policy.read_text(encoding="utf-8") + "\n[groups.team]\nbudget = { epsilon = 4, delta = 1e-6 }\n"
    path = clinic_policy.with_name("team.toml")
    path.write_text(text, encoding="utf-8")
    engine = make_engine(path)
    engine.ledger.set_group("ana", "team")
    ana, ben = Session(engine, "ana"), Session(engine, "ben")
    run(ana, "SELECT sex, COUNT(*) FROM patients GROUP BY sex")
    engine.ledger.set_group("ben", "team")
    of_women = "SELECT COUNT(*) FROM patients WHERE sex = 'F'"
    assert derived_from(run(ana, of_women))
    group = engine.ledger.group_budget("team", engine.policy).spent
    paid = run(ben, of_women)
    assert not derived_from(paid)
    assert spent(engine, "ben").rho == Fraction(1, 200)
    assert engine.ledger.group_budget("team", engine.policy).spent.rho == group.rho + Fraction(1, 200)


def test_only_raw_cells_are_stored_and_the_record_says_of_what_an_answer_is(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SELECT sex, COUNT(*) FROM patients GROUP BY sex")
    stored = [record for record in engine.ledger.export() if record["kind"] == "release.stored"]
    run(ana, "SET dpsql.max_error_ratio = 2")
    derived = run(ana, "SELECT COUNT(*) FROM patients WHERE sex IN ('F', 'M')")
    again = run(ana, "SELECT COUNT(*) FROM patients WHERE sex IN ('F', 'X')")
    assert derived_from(derived) == derived_from(again) == (1,)
    assert list(derived.rows) != list(again.rows)
    records = list(engine.ledger.export())
    assert [record for record in records if record["kind"] == "release.stored"] == stored
    reuses = [record["body"] for record in records if record["kind"] == "reuse"]
    assert [body["reused"] for body in reuses] == [[1], [1]]
    assert "sex IN ('F', 'M')" in reuses[0]["sql"]


def test_what_is_to_be_free_is_never_charged(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    event = Event(Mechanism.GAUSSIAN, Sensitivity(1, 1, 1, 1), Fraction(100))
    before = engine.ledger.head()
    asked = [ReleaseRequest("f.k", (event,), held=True)]
    with pytest.raises(NotHeld):
        engine.ledger.charge("ana", engine.policy, asked, sql="", reading=Reading(1.0, lambda: None))
    assert engine.ledger.head() == before
    with pytest.raises(NotHeld):
        engine.ledger.cells("ana", 1)


def test_cells_are_those_of_the_user_who_has_them(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    answer = run(Session(engine, "ana"), "SELECT sex, COUNT(*) FROM patients GROUP BY sex").answer
    assert answer is not None
    (planned,) = answer.query.releases
    assert planned.described is not None
    assert planned.key.startswith(planned.described.description.family)
    (first,) = engine.ledger.handed("ana", engine.policy)
    assert first == HandedRelease(1, planned.key, 1)
    assert engine.ledger.handed("ana", engine.policy, first) == ()
    assert engine.ledger.handed("ben", engine.policy) == ()
    run(Session(engine, "ben"), "SELECT COUNT(*) FROM patients")
    run(Session(engine, "ana"), "SELECT age, COUNT(*) FROM patients GROUP BY age")
    assert [(each.release, each.number) for each in engine.ledger.handed("ana", engine.policy, first)] == [(3, 2)]
    stored = stored_release(engine.ledger.cells("ana", 1))
    assert stored.description == planned.described.description
    assert stored.events == planned.events
    with pytest.raises(NotHeld):
        engine.ledger.cells("ben", 1)


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"of": {}}', b'{"of": {"bounds": [1]}, "noise": []}', b"{}"])
def test_a_payload_that_says_nothing_of_itself_is_refused(payload: bytes) -> None:
    with pytest.raises(LedgerUnavailable):
        stored_release(payload)


def test_a_derived_plan_reads_no_private_row(make_engine: MakeEngine, clinic_policy: Path, lend: Lend) -> None:
    """If the ledger handed out permission to read, the engine would refuse to."""
    backend = lend(clinic_policy)
    engine = make_engine(clinic_policy, backend=backend)
    ana = Session(engine, "ana")
    run(ana, "SELECT sex, COUNT(*) FROM patients GROUP BY sex")
    answer = run(ana, "SELECT COUNT(*) FROM patients WHERE sex = 'F'").answer
    assert answer is not None and answer.charge is not None
    assert all(planned.events == () for planned in answer.query.releases)
    (granted,) = answer.charge.releases
    unread = type(granted)(granted.key, granted.release_id, None, granted.reused)
    reader = ReleaseReader(engine.policy, engine.ledger, backend, lent_post_processor("UTC"), lambda *_: {})
    with pytest.raises(GuaranteeMismatch):
        reader.read("ana", answer.query, (unread,), Cancellation())


# The search.


def test_each_release_of_a_user_is_looked_at_once(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: of 10,000, a question reads those that came since the last one."""
    engine = make_engine(clinic_policy)
    ana, seen = Session(engine, "ana"), list[int]()
    handed = engine.ledger.handed

    def watched(user: str, policy: Policy, after: HandedRelease | None = None) -> tuple[HandedRelease, ...]:
        found = handed(user, policy, after)
        seen.extend(each.release for each in found)
        return found

    monkeypatch.setattr(engine.ledger, "handed", watched)
    for sql in ("SELECT sex, COUNT(*) FROM patients GROUP BY sex", "SELECT COUNT(*) FROM visits", BY_DOCTOR):
        run(ana, sql)
    run(ana, "SELECT COUNT(*) FROM patients WHERE sex = 'F'")
    plan_of(ana, "SELECT COUNT(*) FROM patients WHERE sex = 'M'")
    assert seen == [1, 2, 3]


def test_of_many_releases_few_are_read(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other rows none is read; of the same rows the newest 300, once, and few of them are looked at."""
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    by_sex = run(ana, "SELECT sex, COUNT(*) FROM patients GROUP BY sex").answer
    assert by_sex is not None
    family = by_sex.query.releases[0].key.partition(".")[0]
    little = Event(Mechanism.GAUSSIAN, Sensitivity(1, 1, 1, 1), Fraction(10_000))
    payload = json.dumps(json.loads(engine.ledger.cells("ana", 1)) | {"noise": [little.to_json()]}).encode()
    asked = [ReleaseRequest(f"{family if place % 2 else 'other'}.{place}", (little,)) for place in range(700)]
    charge = engine.ledger.charge("ana", engine.policy, asked, sql="", reading=Reading(60.0, lambda: None))
    for granted in charge.releases:
        engine.ledger.store(granted.release_id, payload)
    handed = engine.ledger.handed("ana", engine.policy)
    newest = [each.release for each in handed if each.key.startswith(f"{family}.")][-300:]
    read, counted = list[int](), list[object]()
    cells, most_terms = engine.ledger.cells, PostProcessor.most_terms

    def reads(user: str, release: int) -> bytes:
        read.append(release)
        return cells(user, release)

    def counts(*asked: Any) -> object:
        counted.append(asked)
        return most_terms(*asked)

    monkeypatch.setattr(engine.ledger, "cells", reads)
    monkeypatch.setattr(PostProcessor, "most_terms", counts)
    run(ana, "SET dpsql.max_error_ratio = 100")
    assert derived_from(run(ana, "SELECT COUNT(*) FROM patients WHERE sex = 'F'"))
    assert len(handed) == 701 and set(read) == set(newest)
    assert len(read) <= 301 and len(counted) == 1
    read.clear()
    assert derived_from(run(ana, "SELECT COUNT(*) FROM patients WHERE sex = 'M'"))
    assert len(read) <= 1


def test_the_search_of_explain_can_be_stopped(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SELECT sex, COUNT(*) FROM patients GROUP BY sex")
    handed = engine.ledger.handed

    def stopped(user: str, policy: Policy, after: HandedRelease | None = None) -> tuple[HandedRelease, ...]:
        ana.cancel()
        return handed(user, policy, after)

    monkeypatch.setattr(engine.ledger, "handed", stopped)
    with pytest.raises(QueryCanceled):
        run(ana, "EXPLAIN SELECT COUNT(*) FROM patients WHERE sex = 'F'")


# The choice.


def test_a_sum_that_is_less_exact_is_asked_anew_unless_that_is_allowed(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SELECT sex, age, COUNT(*) FROM patients WHERE age BETWEEN 0 AND 110 GROUP BY 1, 2")
    by_sex = "SELECT sex, COUNT(*) FROM patients WHERE age BETWEEN 0 AND 110 GROUP BY sex"
    run(ana, "SET dpsql.max_error_ratio = 10.5")  # the root of 111 is more
    assert "free" not in plan_of(ana, by_sex)
    run(ana, "SET dpsql.max_error_ratio = 10.6")
    assert "Price: free, derived from release 1 (computed anew: count ± " in plan_of(ana, by_sex)
    derived = run(ana, by_sex)
    assert derived_from(derived) == (1,)
    assert derived.answer is not None and derived.answer.query.anew is not None
    error, fresh = derived.answer.columns[1].error, derived.answer.query.anew.columns[1].error
    assert error is not None and fresh is not None
    assert error.stderr == pytest.approx(fresh.stderr * 111**0.5, rel=0.01)
    assert "price: free, derived from release 1 (computed anew: count ± " in derived.notices[0].message


def test_reuse_is_off_exact_or_derived(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    assert list(run(ana, "SHOW dpsql.reuse").rows) == [("derived",)]
    for told, meant in (("on", "derived"), ("'Exact'", "exact"), ("false", "off"), ("DEFAULT", "derived")):
        run(ana, f"SET dpsql.reuse = {told}")
        assert list(run(ana, "SHOW dpsql.reuse").rows) == [(meant,)]
    with pytest.raises(InvalidParameter, match="sometimes"):
        run(ana, "SET dpsql.reuse = 'sometimes'")
    run(ana, "SELECT sex, COUNT(*) FROM patients GROUP BY sex")
    of_women = "SELECT COUNT(*) FROM patients WHERE sex = 'F'"
    for reuse in ("exact", "off"):
        run(ana, f"SET dpsql.reuse = {reuse}")
        assert "free" not in plan_of(ana, of_women)
    run(ana, "SET dpsql.reuse = exact")
    assert not derived_from(run(ana, of_women))


def test_sums_of_a_release_do_not_stand_beside_it(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SET dpsql.max_error_ratio = 100")
    counts = [
        f"SELECT COUNT(*) AS n FROM patients WHERE sex {term}" for term in ("IN ('F', 'M', 'X')", "= 'F'", "= 'M'")
    ]
    by_sex = "SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex"
    totals = [f"({sql}) AS t{place}" for place, sql in enumerate(counts)]
    run(ana, by_sex)
    run(ana, "SET dpsql.epsilon = 0.2")  # four releases at a quarter of the price, as one at half of the epsilon
    apart = f"SELECT * FROM {', '.join(totals)}"
    beside = f"SELECT * FROM {', '.join([f'({by_sex}) AS s', *totals])}"
    assert "free, derived from release 1 (" in plan_of(ana, apart)
    assert "; the rest reuses your earlier releases" in plan_of(ana, beside)


def test_a_role_may_derive_nothing(make_engine: MakeEngine, clinic_policy: Path) -> None:
    text = clinic_policy.read_text(encoding="utf-8").replace("max_epsilon = 1.0", "max_epsilon = 1.0, derives = false")
    path = clinic_policy.with_name("derives.toml")
    path.write_text(text, encoding="utf-8")
    engine = make_engine(path)
    ana = Session(engine, "ana")
    run(ana, "SELECT sex, COUNT(*) FROM patients GROUP BY sex")
    of_women = "SELECT COUNT(*) FROM patients WHERE sex = 'F'"
    assert "free" not in plan_of(ana, of_women)
    assert not derived_from(run(ana, of_women))
    assert "free, your earlier release" in plan_of(ana, of_women)


def test_bounds_that_were_set_are_another_question(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SET dpsql.max_rows = 5")
    run(ana, f"SELECT specialty, COUNT(*) {DOCTORS} GROUP BY 1")
    run(ana, "SET dpsql.max_error_ratio = 100")
    assert derived_from(run(ana, f"SELECT COUNT(*) {DOCTORS}"))
    run(ana, "RESET dpsql.max_rows")
    run(ana, "SET dpsql.epsilon = 0.05")
    assert not derived_from(run(ana, f"SELECT COUNT(*) {DOCTORS} WHERE 1 = 1"))


@pytest.mark.parametrize("heavy", [False, True])
def test_a_filter_is_derived_where_a_profile_expects_bounds_to_drop_little(
    make_engine: MakeEngine, wide_policy: Path, tmp_path: Path, heavy: bool
) -> None:
    owner = make_engine(wide_policy, ledger=tmp_path / "shared.sqlite")
    (events,) = (table for table in owner.policy.tables if table.name == "events")
    bounds = coarse_bounds(20)
    rows = (1000, 1000, *([1000 if heavy else 0] * (len(bounds) - 1)))
    ranks = (RowRanks(RankGroups(), rows, Fraction(1), 3), RowRanks(RankGroups("ok"), rows, Fraction(1), 3))
    profile = Profile((TableProfile("events", table_facts(owner.policy, events), bounds, ranks),), ())
    owner.ledger.store_profile(owner.policy, profile.to_json())
    engine = make_engine(wide_policy, ledger=tmp_path / "shared.sqlite")
    session = Session(engine, "ana")
    run(session, "SELECT ok, COUNT(*) FROM events GROUP BY ok")
    run(session, "SET dpsql.epsilon = 0.5")
    assert bool(derived_from(run(session, "SELECT COUNT(*) FROM events WHERE ok"))) is not heavy


def test_python_is_told(clinic_policy: Path, tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    with dpsql.connect(str(clinic_policy), user="ana", ledger=ledger) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT sex, COUNT(*) FROM patients GROUP BY sex")
        assert cursor.release is not None
        assert not cursor.release.derived_from
        cursor.execute("SELECT COUNT(*) FROM patients WHERE sex = 'F'")
        assert cursor.release.derived_from == (1,)
        assert cursor.release.cost["epsilon"] == 0
        assert cursor.release.reused


# Intervals.


def summed(noise: DiscreteLaplace | DiscreteGaussian, cells: int) -> DiscreteLaplace | DiscreteGaussian:
    return combined([noise], variance(noise) * cells)


LAWS = (
    DiscreteLaplace(Sensitivity(1, 1, 1, 1), Fraction(12)),
    DiscreteGaussian(Sensitivity(1, 1, 1, 1), Fraction(300)),
)


@pytest.mark.parametrize("noise", LAWS, ids=["laplace", "gaussian"])
@pytest.mark.parametrize("cells", [1, 2, 12, 111])
def test_a_sum_of_noises_lies_within_its_interval(noise: DiscreteLaplace | DiscreteGaussian, cells: int) -> None:
    """In 20,000 draws, less than 94.1 % lie within a 95 % interval with a probability below 1e-7."""
    drawn = np.abs(noise.sample(20_000 * cells).reshape(20_000, cells).sum(axis=1))
    assert np.mean(drawn <= summed(noise, cells).half_width()) >= 0.941
    assert np.mean(drawn <= summed(noise, cells).half_width() / 1.2) < 0.941 or isinstance(noise, DiscreteLaplace)
    assert np.mean(drawn <= summed(noise, cells).half_width() / 1.5) < 0.941


@pytest.mark.parametrize("noise", LAWS, ids=["laplace", "gaussian"])
def test_an_event_tells_its_noise(noise: DiscreteLaplace | DiscreteGaussian) -> None:
    assert noise_of(noise.event) == noise
    assert noise_of(Event(Mechanism.SELECTION, Sensitivity(1, 1, 1, 1), Fraction(1), Fraction(1, 100))) is None


def test_cells_of_one_noise_that_a_column_combines_have_wider_intervals(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    """A share of counts that are sums of the same noisy cells: by squares alone its interval could be too narrow."""
    engine = make_engine(clinic_policy)
    ana = Session(engine, "ana")
    run(ana, "SET dpsql.max_error_ratio = 100")
    run(ana, f"SELECT sex, age, COUNT(*) {PEOPLE} GROUP BY 1, 2")
    two = "SELECT age, COUNT(*) FILTER (WHERE sex = 'F'){} COUNT(*)" + f" {PEOPLE} GROUP BY age"
    apart, share = (run(ana, two.format(sign)).answer for sign in (",", " +"))
    assert apart is not None and share is not None
    (plain,), (wide,) = apart.query.releases, share.query.releases
    for one, two_wide in zip(plain.primitives, wide.primitives, strict=True):
        assert isinstance(one.noise, DiscreteGaussian | DiscreteLaplace)
        assert two_wide.noise == summed(one.noise, 2)
