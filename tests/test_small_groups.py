"""Groups of few units: NULL where PostgreSQL has NULL, what notices tell of the worst, and what is not shown at all."""

import re
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpsql
from dpsql.backends import ExactCells, open_backend
from dpsql.compiler.aggregates.error_propagation import with_margins
from dpsql.compiler.ir.conditions import is_null, negated
from dpsql.compiler.ir.nodes import Aggregate, AggregateCall, Call, Column, Expr, Filter, Literal, Released
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.plan.suggestion import searchable
from dpsql.compiler.scope.lowering import Fields, Lowered
from dpsql.gateway.confidence_intervals import ColumnMargin
from dpsql.gateway.engine import Engine
from dpsql.gateway.owner_reads import Suggester
from dpsql.gateway.query_run import Notice, Result
from dpsql.gateway.release import release
from dpsql.gateway.session import Session
from dpsql.ledger import open_ledger
from dpsql.policy import Policy, load_policy
from dpsql.privacy.exponential_mechanism import RankChoice
from dpsql.privacy.mechanisms import DiscreteGaussian
from dpsql.sqltypes import SqlType
from tests.compiler.plans import Planner
from tests.conftest import silence_noise

NOBODY = "FROM patients WHERE city = 'Nowhere'"
STATISTICS = (
    "AVG(age), AVG(DISTINCT age), MIN(age), MAX(age), MEDIAN(weight), "
    "PERCENTILE_CONT(ARRAY[0.25, 0.5]) WITHIN GROUP (ORDER BY age), "
    "STDDEV(age), VAR_POP(age), CORR(age, weight), REGR_SLOPE(age, weight), REGR_AVGX(age, weight)"
)
DRAWS = 20_000


@pytest.fixture
def session(clinic_policy: Path, make_engine: Any) -> Session:
    return Session(make_engine(clinic_policy), "ana")


def ask(session: Session, sql: str) -> Result:
    (statement,) = session.parse(sql)
    return session.execute(statement)


# NULL, as PostgreSQL has for no rows


def test_statistics_of_nobody_are_null(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    silence_noise(monkeypatch)
    (row,) = ask(session, f"SELECT {STATISTICS} {NOBODY}").rows
    assert row == (None,) * len(row) and len(row) == 11
    assert ask(session, "SELECT MIN(visited_on) FROM visits WHERE city = 'Nowhere'").rows == ((None,),)
    assert ask(session, f"SELECT COUNT(*), SUM(age) {NOBODY}").rows == ((0, 0),)
    ask(session, "SET dpsql.intervals = on")
    assert ask(session, f"SELECT AVG(age), STDDEV(age) {NOBODY}").rows == ((None,) * 6,)


@pytest.mark.parametrize(("count", "mean"), [(-1, None), (0, None), (1, 60.0), (2, 57.5)])
def test_a_mean_is_null_where_its_noisy_count_is_not_positive(
    session: Session, monkeypatch: pytest.MonkeyPatch, count: int, mean: float | None
) -> None:
    """The noise of the sum is 5, from the centre of the limits 0 and 110."""
    noises = iter([np.full(1, 5), np.full(1, count)])
    monkeypatch.setattr(DiscreteGaussian, "sample", lambda _self, size: next(noises))
    assert ask(session, f"SELECT AVG(age) {NOBODY}").rows == ((mean,),)


# What notices tell of the worst groups


def test_the_notice_tells_the_worst_groups(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    silence_noise(monkeypatch)
    result = ask(session, "SELECT sex, AVG(age) AS avg, COUNT(*) AS n FROM patients GROUP BY sex")
    (notice,) = result.notices
    # Two groups of some 250 patients, and two of a few, of whom any mean is as likely as another.
    assert re.search(r"; avg ± [5-9][.]\d+ to ± [5-9]\d[.0-9]*, n ± 31 \(95 %, noise only\)$", notice.message)
    assert notice.message.startswith("avg is worse than ± 10 % in 4 of 4 rows; price: ")


CORRELATED = "(SELECT {}(v.cost) FROM visits v WHERE v.icd = i.code)"


@pytest.mark.parametrize("function", ["AVG", "COUNT", "SUM"])
def test_a_correlated_aggregate_has_the_intervals_of_its_group(
    session: Session, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    silence_noise(monkeypatch)
    ask(session, "SET dpsql.intervals = on")
    grouped = ask(session, f"SELECT icd, {function}(cost) FROM visits WHERE icd IS NOT NULL GROUP BY icd")
    correlated = ask(session, f"SELECT i.code, {CORRELATED.format(function)} AS a FROM icd10 i")
    assert {row[0]: row[1:] for row in correlated.rows} == {row[0]: row[1:] for row in grouped.rows}
    assert "; a ± " in correlated.notices[0].message


def test_a_correlated_aggregate_of_a_group_that_is_not_listed_has_no_limits(session: Session) -> None:
    ask(session, "SET dpsql.intervals = on")
    unknown = "SELECT c, (SELECT COUNT(*) FROM visits v WHERE v.icd = c) AS n FROM (VALUES ('none')) AS t (c)"
    assert ask(session, unknown).rows == (("none", 0, None, None),)
    least = f"SELECT i.code, {CORRELATED.format('MIN')} FROM icd10 i"  # a least value has no interval anywhere
    assert len(ask(session, least).rows[0]) == 2


def test_the_least_of_several_noisy_groups_has_no_interval(session: Session) -> None:
    """Noise makes the least of them smaller."""
    ask(session, "SET dpsql.intervals = on")
    least = "SELECT MIN(n) FROM (SELECT icd, COUNT(*) AS n FROM visits GROUP BY icd) AS t"
    assert len(ask(session, least).rows[0]) == 1
    of_pairs = "SELECT icd, doctor_id, COUNT(*) AS n FROM visits GROUP BY 1, 2"
    some = f"SELECT i.code, (SELECT MIN(n) FROM ({of_pairs}) AS t WHERE t.icd = i.code) FROM icd10 i"
    assert len(ask(session, some).rows[0]) == 2


def test_one_group_is_left_only_where_each_key_is_equated(clinic_policy: Path) -> None:
    described = Planner(load_policy(clinic_policy)).compile("SELECT icd, COUNT(*) FROM visits GROUP BY icd")
    assert described.releases[0].described is not None
    release, fields = described.releases[0].described.release, Fields(10**6)
    key, count, *_ = release.fields

    def has_limits(condition: Expr) -> bool:
        least, found = AggregateCall("min", Column(count), False, None, count.type), fields.new(count.type)
        picked = Aggregate(Filter(release, condition), (), (), (found,), (least,))
        return with_margins(Lowered(Released(picked), (("least", found),)), fields).limited == (0,)

    assert has_limits(Call("eq", (Column(key), Literal("I10", key.type)), SqlType.BOOLEAN))
    assert not has_limits(Call("eq", (Column(key), Column(key)), SqlType.BOOLEAN))
    assert not has_limits(negated(is_null(Column(key))))


def test_the_notice_tells_of_comparisons_with_noise(session: Session) -> None:
    above = "SELECT COUNT(*) FROM visits v WHERE cost > (SELECT AVG(w.cost) FROM visits w WHERE {})"
    told = "released groups that rows are compared with may be noise alone"
    fine = ask(session, above.format("w.visited_on = v.visited_on")).notices[0].message
    found = re.match(rf"([\d,]+) of the ([\d,]+) {told}; ", fine)
    assert found is not None
    faint, groups = (int(number.replace(",", "")) for number in found.groups())
    assert (
        0.7 * groups < faint < groups
    )  # of noise alone 95 % of the counts and of the sums lie within: 90 % of the groups
    private = ask(session, above.format("w.icd = v.icd AND w.visited_on = v.visited_on")).notices[0].message
    assert private.startswith("none of the groups that rows are compared with is shown; ")
    people = "SELECT COUNT(*) FROM patients p WHERE age > (SELECT AVG(q.age) FROM patients q WHERE q.sex = p.sex)"
    assert told not in ask(session, people).notices[0].message
    assert (
        told not in ask(session, "SELECT COUNT(*) FROM visits WHERE icd = 'I10' AND city = 'none'").notices[0].message
    )


def test_it_is_the_same_from_python_and_in_the_notice(clinic_policy: Path, tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path}/ledger.sqlite"
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger, epsilon=0.1) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT sex, AVG(age) AS a, 100.0 * COUNT(*) FILTER (WHERE age > 60) / COUNT(*) AS p, "
                       "COUNT(*) AS n FROM patients GROUP BY sex")  # fmt: skip
        rows: Any = cursor.fetchall()
        assert cursor.release is not None
        of_mean, of_share, of_count = cursor.release.margins
        message = str(cursor.messages[0][1])
    assert [each.name for each in cursor.release.margins] == ["a", "p", "n"]
    assert of_mean.rows == sum(row[1] is not None for row in rows)
    assert 0 < of_mean.least < of_mean.greatest <= 110 and of_share.least < of_share.greatest
    assert of_count == ColumnMargin("n", of_count.least, of_count.least, 4, of_count.inexact)
    small = sum(abs(row[3]) * 0.1 < of_count.least for row in rows)
    assert of_count.inexact == small
    assert f"a is worse than ± 10 % in {of_mean.inexact} of {of_mean.rows} rows" in message


def test_without_rows_the_plan_tells_what_it_can(session: Session) -> None:
    sql = "SELECT sex, AVG(age) AS m, COUNT(*) AS n FROM patients GROUP BY sex HAVING COUNT(*) > 1000000"
    (notice,) = ask(session, sql).notices
    assert "the ± of m depends on the group's size" in notice.message
    assert "; n ± " in notice.message and "above" not in notice.message


# Derived tables


@pytest.mark.parametrize(
    ("sql", "listed"),
    [
        ("SELECT AVG(s) FROM (SELECT SUM(weight) AS s FROM patients GROUP BY age) t", True),
        ("SELECT COUNT(*) FROM (SELECT age FROM patients GROUP BY age HAVING COUNT(*) > 5) t", True),
        ("SELECT 1 WHERE (SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM patients GROUP BY sex) t) > 3", True),
        ("SELECT SUM(n) FROM (SELECT city, COUNT(*) AS n FROM patients GROUP BY city) t", False),
        ("SELECT AVG(n) FROM (SELECT COUNT(*) AS n FROM patients) t", False),
        ("SELECT s FROM (SELECT SUM(weight) AS s FROM patients GROUP BY age) t", False),
        ("SELECT age, SUM(weight) FROM patients GROUP BY age", False),
        ("SELECT age, COUNT(*) - AVG(COUNT(*)) OVER () AS more FROM patients GROUP BY age", True),
        ("SELECT n, LAG(n) OVER (ORDER BY age) FROM (SELECT age, COUNT(*) AS n FROM patients GROUP BY age) t", True),
        ("SELECT age, RANK() OVER (ORDER BY COUNT(*) DESC), SUM(COUNT(*)) OVER () FROM patients GROUP BY age", False),
        ("SELECT age, RANK() OVER (ORDER BY COUNT(*)) FROM patients GROUP BY age", True),
        ("SELECT age, ROW_NUMBER() OVER (ORDER BY COUNT(*), age DESC) FROM patients GROUP BY age", True),
        ("SELECT age, ROW_NUMBER() OVER (ORDER BY COUNT(*) DESC, age) FROM patients GROUP BY age", False),
        ("SELECT city, AVG(COUNT(*)) OVER () FROM patients GROUP BY city", False),
    ],
)
def test_groups_of_nobody_that_are_combined_are_told_of(session: Session, sql: str, listed: bool) -> None:
    (notice,) = ask(session, sql).notices
    assert ("all listed groups are combined, also those without rows" in notice.message) == listed


# Prevalence: one row a person


AGED = "visits v JOIN patients p ON p.patient_id = v.patient_id"
PREVALENCE = (
    "SELECT p.age / 10, 1.0 * COUNT(DISTINCT v.patient_id) FILTER (WHERE v.icd = 'I10') / "
    f"COUNT(DISTINCT v.patient_id) AS prevalence FROM {AGED} GROUP BY 1"
)


def test_a_prevalence_has_the_noise_of_one_row_per_person(clinic_policy: Path) -> None:
    """Of the age, which the person determines, a person is in one group, and counts once in each of the two cells.

    The variance of 20,000 draws is within 7 % of the law's but for 1 case in 1e11; a scale that is 10 % off moves it by
    19 % or more.
    """
    (planned,) = Planner(load_policy(clinic_policy)).compile(PREVALENCE).releases
    bounds = planned.contribution
    assert bounds.one_group and bounds.groups_per_unit == 1
    noises = [each.noise for each in planned.primitives]
    assert len(noises) == 2
    # ρ = 0.1²/2 for two cells of L2 = 1: σ² = 1/(2·ρ/2) = 200.
    for noise in noises:
        assert isinstance(noise, DiscreteGaussian)
        assert (noise.sensitivity.l0, noise.sensitivity.l1, noise.sensitivity.l2_squared) == (1, 1, 1)
        assert float(noise.variance) == pytest.approx(200, rel=1e-3)
    for drawn in draws(planned):
        assert np.mean(drawn.astype(float) ** 2) == pytest.approx(200, rel=0.07)
        for wrong in (0.9, 1.1):
            assert np.mean(drawn.astype(float) ** 2) != pytest.approx(200 * wrong**2, rel=0.07)


def draws(planned: PlannedRelease) -> tuple[np.ndarray[Any, np.dtype[np.int64]], ...]:
    """The noise of each cell, drawn so often."""
    nothing = np.zeros(DRAWS, dtype=np.int64)
    keys = tuple(np.array(["0"] * DRAWS, dtype=object) for _ in range(planned.keys))
    return release(planned, ExactCells(keys, nothing, (nothing,) * len(planned.primitives))).cells


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT p.sex, COUNT(DISTINCT p.patient_id) FROM {AGED} GROUP BY p.sex",
        f"SELECT p.age, COUNT(DISTINCT v.patient_id) FROM {AGED} GROUP BY p.age",
        f"SELECT p.city, COUNT(DISTINCT v.patient_id) FROM {AGED} GROUP BY p.city",
        f"SELECT COUNT(DISTINCT v.patient_id) FROM {AGED}",
    ],
)
def test_a_count_of_units_of_a_join_knows_their_one_group(clinic_policy: Path, sql: str) -> None:
    (planned,) = Planner(load_policy(clinic_policy)).compile(sql).releases
    (sensitivity,) = (each.noise.sensitivity for each in planned.primitives)
    assert (sensitivity.l0, sensitivity.linf, sensitivity.l1, sensitivity.l2_squared) == (1, 1, 1, 1)
    assert planned.contribution.one_group == (planned.keys > 0)


# The minimum frequency rule


@pytest.fixture
def policy(clinic_policy: Path, tmp_path: Path) -> Policy:
    """A policy that shows no group of fewer than 100 patients."""
    text = clinic_policy.read_text(encoding="utf-8").replace("duckdb:///", f"duckdb:///{clinic_policy.parent}/")
    for table in ("patients", "visits"):
        text = text.replace(f"[tables.{table}]\n", f"[tables.{table}]\nmin_units = 100\n")
    file = tmp_path / "ruled.toml"
    file.write_text(
        re.sub("(, wide_share = [0-9.]+)?, max_epsilon", ", wide_share = 0.1, max_epsilon", text), encoding="utf-8"
    )
    return load_policy(file)


@pytest.fixture
def ruled(policy: Policy, tmp_path: Path) -> Iterator[Session]:
    with closing(open_ledger(f"sqlite:///{tmp_path}/ruled.sqlite")) as ledger:
        ledger.add_account("ana", "analyst")
        with closing(Engine(policy, ledger, open_backend(policy))) as engine:
            yield Session(engine, "ana")


def test_groups_of_fewer_units_are_not_shown(ruled: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    silence_noise(monkeypatch)
    result = ask(ruled, "SELECT sex, COUNT(*) FROM patients GROUP BY sex")
    assert [row[0] for row in result.rows] == ["F", "M"]
    (notice,) = result.notices
    assert notice.detail is not None and "min_units: groups of fewer than 100 patients are not shown" in notice.detail
    assert "delta" in notice.message
    assert result.answer is not None and result.answer.charge is not None
    # What has no groups is one row of NULLs.
    everything = f"COUNT(*), SUM(age), BOOL_OR(age > 3), COUNT(DISTINCT city), {STATISTICS}"
    (row,) = ask(ruled, f"SELECT {everything} {NOBODY}").rows
    assert set(row) == {None}
    (row,) = ask(ruled, "SELECT COUNT(*), AVG(age) FROM patients").rows
    assert row[0] == 500


def test_a_wide_total_of_fewer_units_is_not_shown_either(ruled: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    silence_noise(monkeypatch)
    ask(ruled, "SET dpsql.epsilon = 0.5")
    for where, shown in (("city = 'Nowhere'", False), ("cost >= 0", True)):
        answer = ask(ruled, f"SELECT COUNT(*), SUM(cost) FROM visits WHERE {where}").answer
        assert answer is not None and len(answer.query.wide_totals) == 1
        assert (answer.rows.rows[0][0] is not None) == (len(answer.rows.dropped) == 1) == shown
    (row,) = ask(ruled, "SELECT 1 + COUNT(*) FROM visits WHERE city = 'Nowhere'").rows
    assert row == (None,)


def test_the_owner_searches_for_limits_without_the_rule(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [searchable(policy, table, tighter=True) for table in policy.tables if table.name == "patients"]
    with closing(open_ledger(f"sqlite:///{tmp_path}/owner.sqlite")) as ledger, closing(open_backend(policy)) as backend:
        suggester = Suggester(policy, ledger, backend)
        found = suggester.search(wanted, Fraction(1), Decimal("0.95")).suggestions
        assert found and all(each.value is not None for each in found)
        monkeypatch.setattr(RankChoice, "choose", lambda choice, *_: choice.nothing)
        found = suggester.search(wanted, Fraction(1), Decimal("0.95")).suggestions
        assert found and all(each.value is None for each in found)


def test_explain_tells_of_the_rule(ruled: Session) -> None:
    lines = [str(row[0]) for row in ask(ruled, "EXPLAIN SELECT icd, COUNT(*) FROM visits v JOIN patients p "
             "ON p.patient_id = v.patient_id GROUP BY icd").rows]  # fmt: skip
    assert any(line.startswith("  min_units = 100: a group of ") for line in lines)
    assert any("in 10 groups" in line for line in lines)
    assert any("min_units: groups of fewer than 100 patients are not shown" in line for line in lines)


def test_derived_answers_are_made_of_groups_that_are_shown(ruled: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    silence_noise(monkeypatch)
    sql = "SELECT SUM(n), COUNT(*) FROM (SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex) t"
    parts: Any = ask(ruled, "SELECT sex, COUNT(*) FROM patients GROUP BY sex").rows
    assert ask(ruled, sql).rows == ((sum(row[1] for row in parts), 2),)


MADE = "FROM patients, generate_series(1, 12) AS m"


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        (f"SELECT COUNT(*) {MADE}", "12 rows of each row, and bounds count these: 1 row per patient"),
        (f"SELECT m, AVG(age) {MADE} GROUP BY m", "12 rows of each row"),
        (f"SELECT m, COUNT(*) {MADE} WHERE age > m GROUP BY m", "12 rows of each row"),
        ("SELECT COUNT(*) FROM visits, UNNEST(STRING_TO_ARRAY(city, 'n')) AS w", "1,000 rows of each row"),
        ("SELECT COUNT(*) FROM visits, generate_series(1, 3) AS s, (VALUES (1), (2)) AS v", "6 rows of each row"),
        ("SELECT COUNT(cost) FROM (VALUES (1), (2)) AS v (x) LEFT JOIN visits ON cost > x", "2 rows of each row"),
        (
            "SELECT COUNT(*) FROM (SELECT * FROM visits, generate_series(1, 3) UNION ALL SELECT *, 4 FROM visits) t",
            "3 rows",
        ),
        (
            "SELECT COUNT(*) FROM visits JOIN (VALUES ('I10'), ('I10'), ('J00')) AS v (x) ON x = icd",
            "2 rows of each row",
        ),
        # One of the rows that are made meets each row, or the bounds do not cut what is counted.
        (f"SELECT m, COUNT(*) {MADE} WHERE age = m GROUP BY m", None),
        (
            "SELECT n, COUNT(age) FROM (SELECT m + 20 AS n FROM generate_series(1, 9) m) s "
            "LEFT JOIN patients ON n = age GROUP BY n",
            None,
        ),
        (f"SELECT m, COUNT(DISTINCT patient_id) {MADE} GROUP BY m", "12 rows of each row"),
        (f"SELECT COUNT(DISTINCT patient_id) {MADE}", None),
        (
            "SELECT AVG(n) FROM (SELECT patient_id, COUNT(*) AS n FROM visits, generate_series(1, 3) GROUP BY 1) AS t",
            None,
        ),
        (
            "SELECT COUNT(*) FROM visits WHERE EXISTS (SELECT 1 FROM generate_series(1, 3) s WHERE s > duration_min)",
            None,
        ),
        ("SELECT COUNT(*) FROM visits, generate_series(1, 1)", None),
        ("SELECT COUNT(*) FROM visits JOIN (VALUES ('I10'), ('J00')) AS v (x) ON x = icd", None),
        ("SELECT COUNT(*) FROM visits", None),
    ],
)
def test_rows_that_a_query_makes_are_told_where_bounds_cut_them(session: Session, sql: str, says: str | None) -> None:
    _says_what_is_made(session, sql, says)


def test_no_wide_total_is_made_of_rows_that_a_query_makes(ruled: Session) -> None:
    sql = f"SELECT COUNT(*) {MADE.replace('patients', 'visits')}"
    notice = _says_what_is_made(ruled, sql, "12 rows of each row")
    assert "(95 %, noise only)" in notice.message and "dropped" not in notice.message


def _says_what_is_made(session: Session, sql: str, says: str | None) -> Notice:
    (notice,) = ask(session, sql).notices
    assert (f"series, VALUES or UNNEST make up to {says}" in notice.message) == (says is not None)
    assert says is not None or "of each row" not in notice.message
    return notice


# Values that are released first


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT SUM(x) FROM (SELECT cost - AVG(cost) OVER (PARTITION BY icd) AS x FROM visits) t", True),
        ("SELECT COUNT(*) FROM visits WHERE cost > (SELECT AVG(cost) FROM visits)", True),
        ("SELECT COUNT(*) FROM visits WHERE duration_min > (SELECT MAX(x) FROM (VALUES (1), (2)) v (x))", False),
        ("SELECT icd, AVG(cost) - (SELECT AVG(cost) FROM visits) FROM visits GROUP BY icd", False),
    ],
)
def test_intervals_without_the_noise_of_values_released_first_say_so(session: Session, sql: str, reads: bool) -> None:
    (notice,) = ask(session, sql).notices
    assert ("intervals do not include the noise of values that are released first" in notice.message) == reads
