"""Under dpsql.consistent answers add up with all that the user was told before; nothing else changes."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.backends import Cancellation
from dpsql.compiler.derivation import cell_sums
from dpsql.compiler.derivation.cell_sums import told_sums
from dpsql.errors import QueryCanceled
from dpsql.gateway import consistency, derivations, histories
from dpsql.gateway.engine import Engine
from dpsql.gateway.histories import ToldRelease, made_of_histories, with_histories
from dpsql.gateway.means import always_valid
from dpsql.gateway.query_run import Result
from dpsql.gateway.release import ReleasedCells
from dpsql.gateway.session import Session
from dpsql.policy import load_policy
from dpsql.privacy.mechanisms import added, variance
from tests.compiler.plans import Planner
from tests.conftest import MakeEngine
from tests.examples import turns
from tests.test_combined import FULL, answered, price
from tests.test_derived import DOCTORS, PEOPLE, asks, plan_of, run, shown, spent

BY_SEX = f"SELECT sex, COUNT(*) {PEOPLE} GROUP BY sex"
BY_AGE = f"SELECT age, COUNT(*) {PEOPLE} GROUP BY age"
BY_BOTH = f"SELECT age, sex, COUNT(*), AVG(weight) {PEOPLE} GROUP BY 1, 2"
ALL = f"SELECT COUNT(*) {PEOPLE}"
OF_WOMEN = f"SELECT age, COUNT(*) {PEOPLE} AND sex = 'F' GROUP BY age"
QUESTIONS = (BY_SEX, BY_AGE, ALL, BY_BOTH, OF_WOMEN)
"""The last is a filter: if it is bought before there is a release by its key, it is a question of its own."""


def consistent(engine: Engine, user: str) -> Session:
    session = asks(engine, user)
    run(session, "SET dpsql.consistent = on")
    return session


def counts(result: Result, *keys: int, value: int) -> dict[tuple[Any, ...], int]:
    """The counts of an answer, added up by some of its columns."""
    found: dict[tuple[Any, ...], int] = {}
    for row in result.rows:
        key, count = tuple(row[each] for each in keys), row[value]
        assert isinstance(count, int)
        found[key] = found.get(key, 0) + count
    return found


def add_up(session: Session) -> None:
    """Ask everything, and see whether it adds up."""
    for sql in QUESTIONS:
        run(session, sql)  # what is bought now changes what was told before
    told = {sql: run(session, sql) for sql in QUESTIONS}
    assert all(price(each) == 0 for each in told.values())
    by_both = told[BY_BOTH]
    assert counts(told[BY_SEX], 0, value=1) == counts(by_both, 1, value=2)
    assert counts(told[BY_AGE], 0, value=1) == counts(by_both, 0, value=2)
    assert counts(told[ALL], value=0) == counts(by_both, value=2)
    women = {key[:1]: count for key, count in counts(by_both, 0, 1, value=2).items() if key[1] == "F"}
    assert counts(told[OF_WOMEN], 0, value=1) == women


@pytest.mark.parametrize("seed", range(3))
def test_answers_add_up_in_whatever_order_they_were_asked(
    make_engine: MakeEngine, clinic_policy: Path, seed: int
) -> None:
    session = consistent(make_engine(clinic_policy), "new")
    for sql in random.Random(seed).sample(QUESTIONS[:-1], len(QUESTIONS) - 1):
        run(session, sql)
    run(session, "SET dpsql.epsilon = 0.3")
    run(session, BY_AGE)
    run(session, "RESET dpsql.epsilon")
    add_up(session)


def test_two_answers_of_which_neither_has_the_others_keys_have_one_total(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    session = consistent(make_engine(clinic_policy), "new")
    for sql in (BY_SEX, BY_AGE):
        run(session, sql)
    assert counts(run(session, BY_SEX), value=1) == counts(run(session, BY_AGE), value=1)


def test_a_repeated_question_may_change_and_names_the_last_release(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    engine = make_engine(clinic_policy)
    session = consistent(engine, "new")
    first = run(session, BY_AGE)
    assert "adds up" not in first.notices[0].message and answered(first).consistent_with == ()
    run(session, "SET dpsql.epsilon = 0.2")
    run(session, BY_AGE)
    run(session, "RESET dpsql.epsilon")
    paid = spent(engine, "new")
    plan = run(session, f"EXPLAIN {BY_AGE}")
    assert ("Consistent: adjusted to add up with your releases 2",) in plan.rows
    again = run(session, BY_AGE)
    assert spent(engine, "new") == paid and answered(again).reused
    assert list(again.rows) != list(first.rows)
    assert "asked 2 times" in again.notices[0].message
    assert "adds up with your releases up to 2" in again.notices[0].message
    assert answered(again).consistent_with == (2,)
    run(session, "SET dpsql.consistent = off")
    assert list(run(session, BY_AGE).rows) == list(first.rows)
    (statement,) = session.parse(BY_AGE)
    assert session.recall(statement) is not None
    run(session, "SET dpsql.consistent = on")
    assert session.recall(statement) is None
    for reuse in ("exact", "off"):
        run(session, f"SET dpsql.reuse = {reuse}")
        run(session, "SET dpsql.consistent = on")
        assert "Consistent" not in plan_of(session, BY_AGE)
    run(session, "SET dpsql.reuse = exact")
    assert list(run(session, BY_AGE).rows) == list(first.rows)


def test_what_is_charged_and_stored_is_what_it_would_be_without(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    sessions = [consistent(engine, "one"), asks(engine, "two")]
    for sql in QUESTIONS:
        mine, other = (run(session, sql) for session in sessions)
        assert price(mine) == price(other)
        assert answered(mine).derived_from == answered(other).derived_from
    for number in range(1, len(engine.ledger.handed("one", engine.policy)) + 1):
        (one, two) = (engine.ledger.handed(user, engine.policy)[number - 1].release for user in ("one", "two"))
        assert engine.ledger.cells("one", one) == engine.ledger.cells("two", two)
    assert engine.ledger.verify().ok


def test_only_the_own_releases_are_used_and_each_is_recorded(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    other, session = asks(engine, "other"), consistent(engine, "new")
    for sql in (BY_AGE, ALL):
        run(other, sql)
    first = run(session, BY_SEX)
    assert answered(first).consistent_with == () and price(first) == FULL
    run(session, BY_AGE)
    run(session, BY_SEX)
    (record,) = [each["body"] for each in engine.ledger.export() if each["kind"] == "reuse"]
    handed = [each.release for each in engine.ledger.handed("new", engine.policy)]
    assert sorted(record["reused"]) == handed


ROWS = {
    "patients WHERE age BETWEEN 0 AND 110 AND sex IN ('F', 'M')": ("sex", "age / 40", "COUNT(*)", "SUM(weight)"),
    "visits v JOIN doctors d USING (doctor_id)": ("specialty", "d.city", "COUNT(*)", "SUM(cost)"),
    "events": ("ok", "ok IS NULL", "COUNT(*)", "COUNT(*) FILTER (WHERE ok)"),
}


@pytest.mark.parametrize("rows", list(ROWS))
@pytest.mark.parametrize("bound", ["max_rows = 3", "max_rows_per_group = 2", "max_groups = 400"])
def test_without_noise_nothing_changes(each_wide_engine: Engine, rows: str, bound: str) -> None:
    """Cells that are taken for sums are sums, whatever bounds cut; the draws are the same in each run."""
    *keys, count, total = ROWS[rows]
    session = consistent(each_wide_engine, f"{list(ROWS).index(rows)} {bound}")
    run(session, f"SET dpsql.{bound}")
    chance = random.Random(5)
    asked = [(), (keys[0],), (keys[1],), tuple(keys)]
    for _ in turns(6):
        by = chance.choice(asked)
        sql = f"SELECT {', '.join([*by, count, total])} FROM {rows}"
        sql += f" GROUP BY {', '.join(map(str, range(1, len(by) + 1)))}" if by else ""
        run(session, "SET dpsql.reuse = exact")
        alone = run(session, sql)
        run(session, "SET dpsql.reuse = derived")
        assert shown(run(session, sql)) == shown(alone), sql


def test_answers_lie_within_what_is_announced(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """Of 40 independent draws within 95 %, at most 27 lie inside with a probability of 4e-8; for seven kinds, 3e-7.

    A kind is one cell of each ledger, whose users share releases.
    """
    with duckdb.connect(str(clinic_policy.with_name("clinic.duckdb")), read_only=True) as database:
        truth = {sql: {row[:-1]: row[-1] for row in database.execute(sql).fetchall()} for sql in (BY_SEX, BY_AGE, ALL)}
    inside: dict[tuple[str, object], list[bool]] = {}
    halves: dict[str, float] = {}
    for _ in range(40):
        engine = make_engine(clinic_policy)
        session = consistent(engine, "new")
        for sql in (BY_SEX, BY_AGE, ALL):
            run(session, sql)
        for sql in (BY_SEX, BY_AGE, ALL):
            told = run(session, sql)
            error = answered(told).columns[-1].error
            assert error is not None and error.plus_minus_95 is not None
            halves[sql] = error.plus_minus_95
            for row in list(told.rows)[:3]:
                value = row[-1]
                assert isinstance(value, int)
                strayed = abs(value - truth[sql].get(tuple(row[:-1]), 0))
                inside.setdefault((sql, row[0] if len(row) > 1 else None), []).append(strayed <= halves[sql])
    assert len(inside) == 7 and all(sum(each) > 27 for each in inside.values())
    drawn = variance(added(answered(run(asks(engine, "one"), BY_SEX)).query.releases[0].primitives[0].noise))
    assert halves[BY_SEX] < 1.96 * math.sqrt(drawn)


# What cannot be made to add up.


def test_what_is_too_much_is_answered_without(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(clinic_policy)
    session = consistent(engine, "new")
    first = run(session, BY_SEX)
    run(session, BY_BOTH)
    monkeypatch.setattr(histories, "MOST_WORK", 1)
    again = run(session, BY_SEX)
    assert list(again.rows) == list(first.rows)
    assert answered(again).consistent_with == ()
    assert "totals are separate releases" in again.notices[0].message


def test_the_newest_releases_are_made_to_add_up(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who buys hundreds of releases for little shall not keep the gateway busy with each later answer."""
    session = consistent(make_engine(clinic_policy), "new")
    for sql in (BY_SEX, BY_AGE, BY_BOTH):
        run(session, sql)
    assert answered(run(session, BY_BOTH)).consistent_with == (1, 2)
    assert "not used" not in run(session, BY_BOTH).notices[0].message
    monkeypatch.setattr(derivations, "_MOST_ADDED_UP", 2)
    fewer = run(session, BY_BOTH)
    assert answered(fewer).consistent_with == (2,)
    assert "; 1 older release over the same rows not used: only the newest add up" in fewer.notices[0].message
    plan = [str(row[0]) for row in run(session, f"EXPLAIN {BY_BOTH}").rows]
    assert "Consistent: 1 older release over the same rows not used" in plan
    monkeypatch.setattr(derivations, "_MOST_GROUPS", 300)
    none = run(session, BY_BOTH)
    assert answered(none).consistent_with == ()
    assert "; 2 older releases over the same rows not used" in none.notices[0].message


def test_all_cells_of_an_answer_share_the_time_for_it(clinic_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(load_policy(clinic_policy))
    two = f"SELECT {{}} COUNT(*), COUNT(age) {PEOPLE}"
    first = planner.compile(two.format("sex,") + " GROUP BY sex")
    told = told_by(planner, two.format(""))
    query = with_histories(first, lambda _: told, planner.catalog, Cancellation())
    sexes = ReleasedCells((np.array(["F", "M"], dtype=object),), (np.array([10, 20]),) * 2)
    cells = {first.releases[0].key: sexes, told[0].release.key: ReleasedCells((), (np.array([40]),) * 2)}
    (work,) = {
        consistency.work_of({place: np.arange(1 + place) for place in range(2)}, each.sums) for each in query.histories
    }
    assert len(query.histories) == 2
    for room, is_made in ((2, True), (1.5, False)):
        monkeypatch.setattr(histories, "MOST_WORK", room * work)
        made, _ = made_of_histories(query, cells, Cancellation())
        assert bool(made.histories) is is_made and made.sums_differ is not is_made


def test_making_answers_add_up_can_be_stopped(clinic_policy: Path) -> None:
    planner, stopped = Planner(load_policy(clinic_policy)), Cancellation()
    first = planner.compile(BY_SEX)
    query = with_histories(first, lambda _: told_by(planner, ALL), planner.catalog, stopped)
    stopped.cancel()
    with pytest.raises(QueryCanceled):
        with_histories(first, lambda _: told_by(planner, ALL), planner.catalog, stopped)
    with pytest.raises(QueryCanceled):
        made_of_histories(query, {}, stopped)


def told_by(planner: Planner, *queries: str, **settings: str) -> list[ToldRelease]:
    found = []
    for sql in queries:
        (planned,) = planner.compile(sql, **settings).releases
        assert planned.described is not None
        noises = tuple(added(each.noise) for each in planned.primitives)
        found.append(ToldRelease(planned, planned.described.description, noises))
    return found


def test_rows_under_other_bounds_are_no_parts(wide_policy: Path) -> None:
    """Sums are cut by group, so those of a total are others."""
    planner = Planner(load_policy(wide_policy))
    by = f"SELECT specialty, COUNT(*), SUM(cost) {DOCTORS} GROUP BY 1"
    total = f"SELECT COUNT(*), SUM(cost) {DOCTORS}"
    query = planner.compile(total)
    found = with_histories(query, lambda _: told_by(planner, by), planner.catalog, Cancellation())
    assert [bool(history.sums) for history in found.histories] == [True, False]
    assert found.sums_differ
    narrow = told_by(planner, by, max_rows_per_group="2")
    apart = with_histories(query, lambda _: narrow, planner.catalog, Cancellation())
    assert not any(history.sums for history in apart.histories) and apart.earlier == ()
    same = with_histories(planner.compile(by), lambda _: narrow, planner.catalog, Cancellation())
    assert [[len(each) for each in history.told] for history in same.histories] == [[1], [1]]


def test_keys_outside_their_domain_are_in_no_part(wide_policy: Path) -> None:
    planner = Planner(load_policy(wide_policy))
    asked = planner.compile("SELECT COUNT(*) FROM patients").releases[0].described
    told = told_by(planner, "SELECT sex, COUNT(*) FROM patients GROUP BY 1", "SELECT COUNT(*) FROM patients")
    assert asked is not None
    cell = told[0].description.cells[0]
    assert told_sums([each.description for each in told], cell, asked, planner.catalog) == (2, (), True)


def test_a_cell_in_too_many_releases_is_left(clinic_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(load_policy(clinic_policy))
    asked = planner.compile(BY_SEX).releases[0].described
    told = [each.description for each in told_by(planner, BY_SEX, BY_AGE)]
    assert asked is not None
    for most, sums in ((3, 2), (2, 0)):  # their total, which nobody was told, is the third
        monkeypatch.setattr(cell_sums, "_MOST_TOLD", most)
        count, found, differ = told_sums(told, told[0].cells[0], asked, planner.catalog)
        assert (len(found), differ, count) == (sums, not sums, most)


def test_what_is_raised_by_wide_totals_is_left(wide_policy: Path) -> None:
    text = wide_policy.read_text(encoding="utf-8").replace(
        "epsilon = 1, delta = 1e-9,", "epsilon = 1, delta = 1e-9, wide_share = 0.1,"
    )
    path = wide_policy.with_name("wide_share.toml")
    path.write_text(text, encoding="utf-8")
    planner = Planner(load_policy(path))
    query = planner.compile(f"SELECT specialty, COUNT(*) {DOCTORS} GROUP BY 1")
    assert query.wide_totals
    assert with_histories(query, lambda _: [], planner.catalog, Cancellation()).histories == ()


def test_groups_that_differ_are_left(clinic_policy: Path) -> None:
    planner = Planner(load_policy(clinic_policy))
    first, other = planner.compile(BY_SEX), planner.compile(BY_SEX, epsilon="0.2")
    query = with_histories(first, lambda _: told_by(planner, BY_SEX, epsilon="0.2"), planner.catalog, Cancellation())
    assert [len(each) for each in query.histories[0].told] == [2]

    def cells(*names: str) -> ReleasedCells:
        return ReleasedCells((np.array(names, dtype=object),), (np.arange(len(names)) * 100,))

    keys = first.releases[0].key, other.releases[0].key
    fine: Mapping[str, ReleasedCells] = dict(zip(keys, (cells("F", "M", "X"), cells("X", "F", "M")), strict=True))
    told, made = made_of_histories(query, fine, Cancellation())
    for key, names in zip(keys, (["F", "M", "X"], ["X", "F", "M"]), strict=True):
        assert made[key].keys[0].tolist() == names
    assert dict(zip(made[keys[0]].keys[0], made[keys[0]].cells[0], strict=True)) == dict(
        zip(made[keys[1]].keys[0], made[keys[1]].cells[0], strict=True)
    )
    assert not told.sums_differ
    for others in (cells("F", "M"), cells("F", "M", "Y"), cells("F", "M", "M")):
        told, made = made_of_histories(query, {keys[0]: fine[keys[0]], keys[1]: others}, Cancellation())
        assert told.sums_differ and made[keys[0]] is fine[keys[0]]


# Asked again.


def test_python_is_told_what_is_new_and_how_often_it_was_asked(clinic_policy: Path, tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    with dpsql.connect(str(clinic_policy), user="ana", ledger=ledger) as connection:
        cursor = connection.cursor()
        cursor.execute(BY_SEX)
        assert cursor.release is not None
        assert cursor.release.asked == 1 and cursor.release.fresh is None
        assert cursor.release.always_valid_95 == {"count": None}
        cursor.execute("SET dpsql.epsilon = 0.2")
        cursor.execute(BY_SEX)
        report = cursor.release
        assert report is not None and report.asked == 2
        nominal, valid = report.plus_minus_95["count"], report.always_valid_95["count"]
        assert nominal is not None and valid is not None
        assert 1.5 < valid / nominal < 1.7  # of 4 times the precision of the first: √(5/4·ln(5/0.05²))/1.96
        assert report.fresh is not None and list(report.fresh.rows) != list(cursor.fetchall())
        fresh = report.fresh.plus_minus_95["count"]
        assert fresh is not None and nominal < fresh < 1.3 * nominal
        engine = connection.session._engine
        bought = engine.ledger.handed("ana", engine.policy)[-1].release
        cells = ReleasedCells.from_bytes(engine.ledger.cells("ana", bought))
        assert [row[1] for row in report.fresh.rows] == cells.cells[0].tolist()
        cursor.execute(BY_SEX)
        assert cursor.release is not None
        assert cursor.release.fresh is None and cursor.release.cost["epsilon"] == 0


def test_an_interval_that_holds_however_often_is_known_where_nothing_is_left_out(
    make_engine: MakeEngine, clinic_policy: Path
) -> None:
    session = asks(make_engine(clinic_policy), "new")
    for sql in (BY_SEX, BY_AGE):
        run(session, sql)
    query = answered(run(session, ALL)).query
    (planned,), (column,) = query.releases, query.columns
    assert column.error is not None and column.error.stderr is not None
    told = always_valid(query, column.error)
    assert told is not None
    variances = [float(each.variances[0]) for each in planned.derived]
    first, precision = 1 / variances[0], sum(1 / each for each in variances)
    whole = math.sqrt((precision + first) * math.log((precision + first) / (first * 0.05**2))) / precision
    assert told == pytest.approx(whole, rel=0.01)  # but for what rounding adds
    left = replace(query, releases=(replace(planned, leaves_out=True),))
    assert always_valid(left, column.error) is None
    run(session, "SET dpsql.mechanism = laplace")
    run(session, "SET dpsql.epsilon = 0.3")
    laplace = answered(run(session, BY_SEX)).query
    assert len(laplace.releases[0].derived) == 2
    (_, counted) = laplace.columns
    assert counted.error is not None and always_valid(laplace, counted.error) is None


def test_who_asks_until_something_shows_is_within_the_valid_interval_alone() -> None:
    """Of 20,000 users who ask up to 50 times, and stop when 0 is outside: more than 5.7 % has a probability below 1e-5.

    The interval that is told for a fixed number of releases holds for less than 80 % of them.
    """
    chance = np.random.default_rng(3)
    means = np.cumsum(chance.normal(size=(20_000, 50)), axis=1) / np.arange(1, 51)
    gained = np.arange(1, 51, dtype=np.float64)
    valid = np.sqrt((1 + 1 / gained) * np.log((1 + gained) / 0.05**2) / gained)
    assert np.mean((np.abs(means) > valid).any(axis=1)) <= 0.057
    assert np.mean((np.abs(means) > 1.96 / np.sqrt(gained)).any(axis=1)) > 0.2
