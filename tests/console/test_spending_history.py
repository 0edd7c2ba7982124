"""The days of a budget add up to what it has spent, however the ledger was read."""

import itertools
import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.console.background import Background
from dpsql.console.spending_history import OWNER, SpendingHistory
from dpsql.gateway.session import Session
from dpsql.ledger.ledger import Ledger
from dpsql.privacy.accounting import Spent
from tests.conftest import MakeEngine
from tests.ledger.world import SQL, Clock, charge_only, gaussian, laplace, opened, peopled, policy, request
from tests.waiting import wait_for

POLICY = policy()
TENTH = Fraction(1, 10)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with closing(peopled(opened(tmp_path / "ledger.sqlite", clock))) as made:
        yield made


def spent(history: SpendingHistory, ledger: Ledger) -> list[tuple[str, int, Fraction | None]]:
    reading = history.read(ledger)
    assert reading.is_all
    days = reading.by_day(ledger.cap(POLICY).numbers)
    return [(str(day), paid.charges, paid.spent.pure_epsilon) for day, paid in sorted(days.items())]


def test_each_day_has_what_was_charged_to_the_cap(ledger: Ledger, clock: Clock) -> None:
    history = SpendingHistory()
    assert spent(history, ledger) == []
    (made,) = charge_only(ledger, "ana", POLICY, [request("a")], sql=SQL).releases
    ledger.store(made.release_id, b"cells")
    charge_only(ledger, "ben", POLICY, [request("a")], sql=SQL)  # ben's budget pays, the cap does not
    assert spent(history, ledger) == [("2026-01-15", 1, TENTH)]
    clock.move(days=2)
    charge_only(ledger, "ana", POLICY, [request("a")], sql=SQL)  # free
    charge_only(ledger, "ana", POLICY, [request("b"), request("c")], sql=SQL)
    ledger.charge_cap(POLICY, [laplace(TENTH)], "limits")
    told = [("2026-01-15", 1, TENTH), ("2026-01-17", 2, 3 * TENTH)]
    assert spent(history, ledger) == told == spent(SpendingHistory(), ledger)
    total = Spent.zero()
    reading = history.read(ledger)
    for day in reading.by_day(ledger.cap(POLICY).numbers).values():
        total = total.merge(day.spent)
    assert total == ledger.cap(POLICY).spent
    assert reading.by_day([99]) == {}
    users = reading.by_user(ledger.cap(POLICY).numbers, date(2026, 1, 17))
    assert {user: (paid.charges, paid.spent.pure_epsilon) for user, paid in users.items()} == {
        "ana": (1, 2 * TENTH),
        OWNER: (1, TENTH),
    }
    ben = reading.by_day(ledger.budget("ben", POLICY).numbers)
    assert [(str(day), paid.charges, paid.spent.pure_epsilon) for day, paid in ben.items()] == [
        ("2026-01-15", 1, TENTH)
    ]


def test_charges_have_their_texts_and_how_often_they_were_had_again(ledger: Ledger) -> None:
    history = SpendingHistory(most=3)
    for user, keys, sql in (
        ("ana", "a", "1"),
        ("ana", "bc", "2"),
        ("ben", "a", "3"),
        ("ana", "abc", "4"),
        ("ana", "a", "5"),
    ):
        for release in charge_only(ledger, user, POLICY, [request(key) for key in keys], sql=sql).releases:
            if release.payload is None:
                ledger.store(release.release_id, b"cells")
    reading = history.read(ledger)
    told = [(paid.user, paid.sql, paid.spent.pure_epsilon, paid.fresh.pure_epsilon, n) for paid, n in reading.paid]
    assert told == [("ana", "1", TENTH, TENTH, 2), ("ana", "2", 2 * TENTH, 2 * TENTH, 1), ("ben", "3", TENTH, 0, 0)]
    assert [paid.releases for paid, _ in reading.paid] == [(1,), (2, 3), (4,)]
    assert (reading.older, reading.paid) == (0, SpendingHistory().read(ledger).paid)
    short = SpendingHistory(characters=3).read(ledger)  # those of the queries that the charges served are counted, too
    assert ([(paid.sql, [each.sql for each in paid.served]) for paid, _ in short.paid], short.older) == (
        [("2", ["4"]), ("3", [])],
        1,
    )
    assert [paid.sql for paid, _ in SpendingHistory(characters=0).read(ledger).paid] == ["3"]
    charge_only(ledger, "ben", POLICY, [request("z")], sql="6")
    charge_only(ledger, "ana", POLICY, [request("a")], sql="7")  # of a charge that is not kept any more
    later = history.read(ledger)
    assert ([paid.sql for paid, _ in later.paid], later.older) == (["2", "3", "6"], 1)


def test_charges_name_the_other_queries_that_they_served(ledger: Ledger, clock: Clock) -> None:
    def ask(keys: str, sql: str) -> None:
        for release in charge_only(ledger, "ana", POLICY, [request(key) for key in keys], sql=sql).releases:
            if release.payload is None:
                ledger.store(release.release_id, b"cells")

    ask("ab", "whole")
    clock.move(days=1)
    ask("ab", "whole")  # the same query again is no other one
    ask("b", "part")
    ask("b", "part")
    ask("abc", "more")  # paid for in part
    whole, more = (paid for paid, _ in SpendingHistory().read(ledger).paid)
    assert [(each.sql, each.releases, each.answers) for each in whole.served] == [
        ("part", (2,), 2),
        ("more", (1, 2), 1),
    ]
    assert {str(each.at.date()) for each in whole.served} == {str((whole.at + timedelta(days=1)).date())}
    assert (more.combined, more.served, whole.combined) == ((1, 2), (), ())
    for number in range(12):
        ask("a", f"{number} {'long ' * 100}")
    (whole, _), *_ = SpendingHistory().read(ledger).paid
    assert [each.sql.split()[0] for each in whole.served] == [str(number) for number in range(2, 12)]
    assert max(len(each.sql) for each in whole.served) < 170


def test_a_query_that_is_derived_is_named_by_its_release(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = Session(engine, "ana")
    by_sex, women = "SELECT sex, COUNT(*) FROM patients GROUP BY sex", "SELECT COUNT(*) FROM patients WHERE sex = 'F'"
    for sql in (by_sex, women):
        session.execute(session.parse(sql)[0])
    ((paid, again),) = SpendingHistory().read(engine.ledger).paid
    assert (paid.sql, again, [(each.sql, each.releases) for each in paid.served]) == (by_sex, 1, [(women, (1,))])


def test_a_day_without_a_pure_price_has_none(ledger: Ledger) -> None:
    wide = policy(cap=None)
    charge_only(ledger, "ana", wide, [request("a", laplace(TENTH))], sql=SQL)
    history = SpendingHistory()
    (day,) = history.read(ledger).by_day(ledger.cap(wide).numbers).values()
    assert day.spent.merge(Spent.zero().add([gaussian(TENTH)])).pure_epsilon is None


def test_a_large_ledger_is_read_on_when_it_is_asked_again(ledger: Ledger) -> None:
    for key in "abcde":
        charge_only(ledger, "ana", POLICY, [request(key)], sql=SQL)
    ticks = itertools.count()
    history = SpendingHistory(4, lambda: float(next(ticks)))
    seen = []
    while True:
        reading = history.read(ledger)
        seen.append(sum(day.charges for day in reading.by_day(ledger.cap(POLICY).numbers).values()))
        if reading.is_all:
            break
    assert len(seen) > 2 and seen == sorted(seen) and seen[-1] == 5
    assert spent(history, ledger) == spent(SpendingHistory(), ledger)


def test_caps_that_become_one_have_their_days_together(ledger: Ledger) -> None:
    other = policy(name="trials", cap_name="others")
    for each in (POLICY, other):
        charge_only(ledger, "ana", each, [request("a")], sql=SQL)
    history = SpendingHistory()
    assert spent(history, ledger) == [("2026-01-15", 1, TENTH)]
    charge_only(ledger, "ana", policy(name="trials"), [request("b")], sql=SQL)
    assert spent(history, ledger) == [("2026-01-15", 3, 3 * TENTH)] == spent(SpendingHistory(), ledger)


def test_a_ledger_that_was_put_back_is_read_anew(tmp_path: Path, clock: Clock) -> None:
    path, history = tmp_path / "other.sqlite", SpendingHistory()
    with closing(peopled(opened(path, clock))) as ledger:
        charge_only(ledger, "ana", POLICY, [request("a")], sql=SQL)
    shutil.copy(path, tmp_path / "old.sqlite")
    for key in "bc":
        with closing(opened(path, clock)) as ledger:
            charge_only(ledger, "ana", POLICY, [request(key)], sql=SQL)
            assert spent(history, ledger) == spent(SpendingHistory(), ledger)
    with closing(opened(tmp_path / "old.sqlite", clock)) as ledger:
        assert spent(history, ledger) == [("2026-01-15", 1, TENTH)]
        clock.move(days=1)
        for key in "xyz":  # as many records as before, and others
            charge_only(ledger, "ana", POLICY, [request(key)], sql=SQL)
        assert [day for day, *_ in spent(history, ledger)] == [str(date(2026, 1, 15)), str(date(2026, 1, 16))]


def test_what_takes_long_is_asked_once_at_a_time_and_again_when_it_is_old() -> None:
    now, asked, fails = [0.0], list[float](), [False]

    def ask() -> float:
        asked.append(now[0])
        if fails[0]:
            raise RuntimeError("secret")
        return now[0]

    background = Background(ask, 10, lambda: now[0])
    assert background.latest() is None
    wait_for(lambda: background.latest() is not None)
    now[0] = 10
    assert (background.latest(), asked) == (0, [0])
    now[0], fails[0] = 10.5, True
    assert background.latest() == 0
    wait_for(lambda: not background._running)
    fails[0] = False
    now[0] = 30
    wait_for(lambda: background.latest() == 30)
    assert asked == [0, 10.5, 30]
