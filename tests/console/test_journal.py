"""The days of a budget add up to what it has spent, however the ledger was read."""

import itertools
import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.console.background import Background
from dpsql.console.journal import Journal
from dpsql.ledger.stored import StoredLedger
from dpsql.privacy.accounting import Spent
from tests.ledger.world import SQL, Clock, gaussian, laplace, opened, peopled, policy, request
from tests.wire.test_server import eventually

POLICY = policy()
TENTH = Fraction(1, 10)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[StoredLedger]:
    with closing(peopled(opened(tmp_path / "ledger.sqlite", clock))) as made:
        yield made


def spent(journal: Journal, ledger: StoredLedger) -> list[tuple[str, int, Fraction | None]]:
    days, is_all = journal.days(ledger, ledger.cap(POLICY).numbers)
    assert is_all
    return [(str(day), paid.charges, paid.spent.pure_epsilon) for day, paid in sorted(days.items())]


def test_each_day_has_what_was_charged_to_the_cap(ledger: StoredLedger, clock: Clock) -> None:
    journal = Journal()
    assert spent(journal, ledger) == []
    (made,) = ledger.charge("ana", POLICY, [request("a")], sql=SQL).releases
    ledger.store(made.release_id, b"cells")
    ledger.charge("ben", POLICY, [request("a")], sql=SQL)  # ben's budget pays, the cap does not
    assert spent(journal, ledger) == [("2026-01-15", 1, TENTH)]
    clock.move(days=2)
    ledger.charge("ana", POLICY, [request("a")], sql=SQL)  # free
    ledger.charge("ana", POLICY, [request("b"), request("c")], sql=SQL)
    ledger.charge_cap(POLICY, [laplace(TENTH)], "limits")
    told = [("2026-01-15", 1, TENTH), ("2026-01-17", 2, 3 * TENTH)]
    assert spent(journal, ledger) == told == spent(Journal(), ledger)
    total = Spent.zero()
    for day in journal.days(ledger, ledger.cap(POLICY).numbers)[0].values():
        total = total.merge(day.spent)
    assert total == ledger.cap(POLICY).spent
    assert journal.days(ledger, [99]) == ({}, True)


def test_a_day_without_a_pure_price_has_none(ledger: StoredLedger) -> None:
    wide = policy(cap=None)
    ledger.charge("ana", wide, [request("a", laplace(TENTH))], sql=SQL)
    journal = Journal()
    (day,) = journal.days(ledger, ledger.cap(wide).numbers)[0].values()
    assert day.spent.merge(Spent.zero().add([gaussian(TENTH)])).pure_epsilon is None


def test_a_large_ledger_is_read_on_when_it_is_asked_again(ledger: StoredLedger) -> None:
    for key in "abcde":
        ledger.charge("ana", POLICY, [request(key)], sql=SQL)
    ticks = itertools.count()
    journal = Journal(4, lambda: float(next(ticks)))
    seen = []
    while True:
        days, is_all = journal.days(ledger, ledger.cap(POLICY).numbers)
        seen.append(sum(day.charges for day in days.values()))
        if is_all:
            break
    assert len(seen) > 2 and seen == sorted(seen) and seen[-1] == 5
    assert spent(journal, ledger) == spent(Journal(), ledger)


def test_caps_that_become_one_have_their_days_together(ledger: StoredLedger) -> None:
    other = policy(name="trials", cap_name="others")
    for each in (POLICY, other):
        ledger.charge("ana", each, [request("a")], sql=SQL)
    journal = Journal()
    assert spent(journal, ledger) == [("2026-01-15", 1, TENTH)]
    ledger.charge("ana", policy(name="trials"), [request("b")], sql=SQL)
    assert spent(journal, ledger) == [("2026-01-15", 3, 3 * TENTH)] == spent(Journal(), ledger)


def test_a_ledger_that_was_put_back_is_read_anew(tmp_path: Path, clock: Clock) -> None:
    path, journal = tmp_path / "other.sqlite", Journal()
    with closing(peopled(opened(path, clock))) as ledger:
        ledger.charge("ana", POLICY, [request("a")], sql=SQL)
    shutil.copy(path, tmp_path / "old.sqlite")
    for key in "bc":
        with closing(opened(path, clock)) as ledger:
            ledger.charge("ana", POLICY, [request(key)], sql=SQL)
            assert spent(journal, ledger) == spent(Journal(), ledger)
    with closing(opened(tmp_path / "old.sqlite", clock)) as ledger:
        assert spent(journal, ledger) == [("2026-01-15", 1, TENTH)]
        clock.move(days=1)
        for key in "xyz":  # as many records as before, and others
            ledger.charge("ana", POLICY, [request(key)], sql=SQL)
        assert [day for day, *_ in spent(journal, ledger)] == [str(date(2026, 1, 15)), str(date(2026, 1, 16))]


def test_what_takes_long_is_asked_once_at_a_time_and_again_when_it_is_old() -> None:
    now, asked, fails = [0.0], list[float](), [False]

    def ask() -> float:
        asked.append(now[0])
        if fails[0]:
            raise RuntimeError("secret")
        return now[0]

    background = Background(ask, 10, lambda: now[0])
    assert background.latest() is None
    assert eventually(lambda: background.latest() is not None)
    now[0] = 10
    assert (background.latest(), asked) == (0, [0])
    now[0], fails[0] = 10.5, True
    assert background.latest() == 0
    assert eventually(lambda: not background._running)
    fails[0] = False
    now[0] = 30
    assert eventually(lambda: background.latest() == 30)
    assert asked == [0, 10.5, 30]
