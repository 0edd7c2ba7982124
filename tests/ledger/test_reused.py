"""What a user has already is handed out again without waiting for the disk: no more than that, and it is recorded."""

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import LedgerUnavailable
from dpsql.ledger import Charge, SqliteLedger, reuse_records
from dpsql.ledger import transaction as ledger_commits
from dpsql.ledger.charging import charge
from dpsql.ledger.derived_tables import MOST_OWNED
from dpsql.ledger.ledger import Ledger
from dpsql.policy import Policy, RenewalWindow
from tests.ledger.world import (
    ANA,
    ROOT,
    SQL,
    UNREAD,
    Clock,
    budget,
    charge_only,
    laplace,
    opened,
    policy,
    request,
    requests,
    tamper,
)

POLICY = policy()


def again(
    ledger: Ledger, *keys: object, user: str = "ana", role: str = "analyst", under: Policy = POLICY
) -> Charge | None:
    return ledger.again(user, role, under, requests(*keys), sql=SQL)


def had(ledger: Ledger, *keys: str, user: str = "ana", under: Policy = POLICY) -> Charge:
    """Let a user have releases, and once more, so that it is known."""
    paid = charge_only(ledger, user, under, requests(*keys), sql=SQL)
    for release in paid.releases:
        if release.payload is None:
            ledger.store(release.release_id, release.key.encode())
    return charge_only(ledger, user, under, requests(*keys), sql=SQL)


def kinds(ledger: Ledger) -> list[str]:
    return [record["kind"] for record in ledger.export()]


def reused(ledger: Ledger, user: str = "ana") -> list[int]:
    return [release.reused for release in ledger.releases(user, "clinic")]


def test_it_is_what_a_charge_returns(sqlite_ledger: SqliteLedger) -> None:
    free = had(sqlite_ledger, "a", "b")
    for _ in range(3):
        assert again(sqlite_ledger, "a", "b") == replace(free, id=None)
    assert reused(sqlite_ledger) == [4, 4]
    assert sqlite_ledger.verify().ok


def test_the_shared_ledger_is_asked_each_time(ledger: Ledger) -> None:
    had(ledger, "a")
    assert (again(ledger, "a") is None) is not isinstance(ledger, SqliteLedger)


def test_what_is_told_of_the_budget_is_of_now(sqlite_ledger: SqliteLedger) -> None:
    team = policy(team=budget(1))
    sqlite_ledger.set_group("ana", "team")
    sqlite_ledger.set_group("ben", "team")
    charge_only(sqlite_ledger, "ben", team, requests("z"), sql=SQL)  # every budget that there will be is there
    had(sqlite_ledger, "a", under=team)
    charge_only(sqlite_ledger, "ana", team, requests("b"), sql=SQL)
    charge_only(sqlite_ledger, "ben", team, requests("c"), sql=SQL)
    told = again(sqlite_ledger, "a", under=team)
    assert told is not None and told.shared is not None
    assert told.free
    assert told.spent == sqlite_ledger.budget("ana", team).spent
    assert told.shared.spent == sqlite_ledger.group_budget("team", team).spent
    assert told.spent != told.shared.spent


def test_it_needs_a_free_charge_before(sqlite_ledger: SqliteLedger) -> None:
    assert again(sqlite_ledger, "a") is None
    fresh = charge_only(sqlite_ledger, "ana", POLICY, requests("a"), sql=SQL)
    assert again(sqlite_ledger, "a") is None
    sqlite_ledger.store(fresh.releases[0].release_id, b"a")
    assert again(sqlite_ledger, "a") is None


def test_another_users_release_is_paid_for(sqlite_ledger: SqliteLedger) -> None:
    had(sqlite_ledger, "a")
    assert again(sqlite_ledger, "a", user="ben") is None
    paid = charge_only(sqlite_ledger, "ben", POLICY, requests("a"), sql=SQL)
    assert not paid.free
    assert again(sqlite_ledger, "a", user="ben") is None
    charge_only(sqlite_ledger, "ben", POLICY, requests("a"), sql=SQL)
    told = again(sqlite_ledger, "a", user="ben")
    assert told is not None
    assert told.releases[0].release_id == paid.releases[0].release_id


def test_part_of_it_is_not_enough(sqlite_ledger: SqliteLedger) -> None:
    had(sqlite_ledger, "a")
    assert again(sqlite_ledger, "a", "b") is None
    assert not charge_only(sqlite_ledger, "ana", POLICY, requests("a", "b"), sql=SQL).free
    assert again(sqlite_ledger, "a", "b") is None


def test_other_events_are_another_release(sqlite_ledger: SqliteLedger) -> None:
    had(sqlite_ledger, "a")
    other = [request("a", laplace(Fraction(1, 5)))]
    assert sqlite_ledger.again("ana", "analyst", POLICY, other, sql=SQL) is None


def test_an_answer_that_is_not_wanted_is_not_recorded(sqlite_ledger: SqliteLedger) -> None:
    had(sqlite_ledger, "a")
    asked: list[object] = []

    def refuse(granted: object) -> bool:
        asked.append(granted)
        return False

    assert sqlite_ledger.again("ana", "analyst", POLICY, requests("a"), sql=SQL, wanted=refuse) is None
    assert len(asked) == 1
    assert reused(sqlite_ledger) == [1]


def _freeze(ledger: Ledger) -> None:
    ledger.freeze(ANA, "why")


def _fail(ledger: Ledger) -> None:
    ledger.record_failure("ana", ["a"])


def _dismiss(ledger: Ledger) -> None:
    ledger.remove_account("ana")


def _demote(ledger: Ledger) -> None:
    ledger.set_role("ana", "guest")


def _regroup(ledger: Ledger) -> None:
    ledger.set_group("ana", "team")


def _overwrite(ledger: Ledger) -> None:
    paid = charge_only(ledger, "ben", POLICY, requests("big"), sql=SQL)
    ledger.store(paid.releases[0].release_id, bytes(90))


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("change", [_freeze, _fail, _dismiss, _demote, _regroup, _overwrite])
def test_whatever_changes_a_charge_is_asked_again(
    tmp_path: Path, change: Callable[[Ledger], None], elsewhere: bool
) -> None:
    with (
        closing(opened(tmp_path / "ledger.sqlite", max_stored_bytes=100)) as ledger,
        closing(opened(tmp_path / "ledger.sqlite", max_stored_bytes=100)) as other,
    ):
        for name in ("ana", "ben"):
            ledger.add_account(name, "analyst")
        first = charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
        ledger.store(first.releases[0].release_id, bytes(50))
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
        assert again(ledger, "a") is not None
        change(other if elsewhere else ledger)
        assert again(ledger, "a") is None
        assert ledger.verify().ok


def test_a_change_of_the_policy_does_too(sqlite_ledger: SqliteLedger) -> None:
    had(sqlite_ledger, "a")
    assert again(sqlite_ledger, "a", under=policy()) is None
    assert again(sqlite_ledger, "a", role="guest") is None
    assert again(sqlite_ledger, "a") is not None


def test_and_the_end_of_a_window(sqlite_ledger: SqliteLedger, clock: Clock) -> None:
    renewed = policy(budget(1, window=RenewalWindow(10)))
    had(sqlite_ledger, "a", under=renewed)
    clock.move(days=9)
    assert again(sqlite_ledger, "a", under=renewed) is not None
    clock.move(days=1)
    assert again(sqlite_ledger, "a", under=renewed) is None


def test_nothing_is_known_that_is_not_durable(sqlite_ledger: SqliteLedger) -> None:
    had(sqlite_ledger, "b", user="ben")
    before = had(sqlite_ledger, "a")
    with pytest.raises(RuntimeError), sqlite_ledger._commits.alone() as transaction:
        # In one transaction that fails, ana pays for ben's release and has it again.
        charge(transaction, "ana", POLICY, requests("b"), SQL, True, UNREAD)
        assert charge(transaction, "ana", POLICY, requests("b"), SQL, True, UNREAD).free
        assert again(sqlite_ledger, "b") is None
        raise RuntimeError
    assert again(sqlite_ledger, "b") is None
    assert again(sqlite_ledger, "a") is None  # what is spent must be read again
    assert charge_only(sqlite_ledger, "ana", POLICY, requests("a"), sql=SQL).spent == before.spent
    assert again(sqlite_ledger, "a") is not None


@pytest.mark.parametrize("group", [None, "team"])
def test_what_is_forgotten_meanwhile_is_not_told(sqlite_ledger: SqliteLedger, group: str | None) -> None:
    if group is not None:
        sqlite_ledger.set_group("ana", group)
    had(sqlite_ledger, "a")
    assert again(sqlite_ledger, "a") is not None
    totals = sqlite_ledger._memory.totals
    if group is None:
        totals.clear()
    else:
        owned = next(iter(sqlite_ledger._memory.owned.values()))
        del totals[owned.payers.shared.id]
    assert again(sqlite_ledger, "a") is None


def test_a_large_release_is_not_kept_in_memory(sqlite_ledger: SqliteLedger) -> None:
    first = charge_only(sqlite_ledger, "ana", POLICY, requests("a"), sql=SQL)
    sqlite_ledger.store(first.releases[0].release_id, bytes(100_000))
    assert charge_only(sqlite_ledger, "ana", POLICY, requests("a"), sql=SQL).free
    assert again(sqlite_ledger, "a") is None


def test_no_more_is_kept_than_there_is_room_for(sqlite_ledger: SqliteLedger) -> None:
    had(sqlite_ledger, "a")
    memory = sqlite_ledger._memory
    memory.learnt = {number: None for number in range(MOST_OWNED)}
    memory.settle(*memory.durable or (0, ""))
    assert len(memory.owned) == MOST_OWNED
    assert again(sqlite_ledger, "a") is None


# The records


def test_records_keep_the_order_of_what_was_asked(sqlite_ledger: SqliteLedger) -> None:
    had(sqlite_ledger, "a")
    begun = len(kinds(sqlite_ledger))
    with sqlite_ledger._commits._lock:  # nothing is written until all of it waits
        for _ in range(3):
            assert again(sqlite_ledger, "a") is not None
        thread = threading.Thread(target=lambda: charge_only(sqlite_ledger, "ana", POLICY, requests("b"), sql=SQL))
        thread.start()
        while len(sqlite_ledger._commits._queue) < 2:
            pass
        for _ in range(2):
            assert again(sqlite_ledger, "a") is not None
    thread.join()
    assert kinds(sqlite_ledger)[begun:] == ["reuse", "charge", "reuse"]
    assert [len(record["body"]["reused"]) for record in list(sqlite_ledger.export())[begun:]] == [3, 0, 2]
    assert reused(sqlite_ledger) == [6, 0]
    assert sqlite_ledger.verify().ok


def test_what_waits_is_written_before_the_owner_acts(
    sqlite_ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    had(sqlite_ledger, "a")
    begun = len(kinds(sqlite_ledger))
    monkeypatch.setattr(ledger_commits.GroupCommit, "_start_writer", lambda self: None)  # nobody else writes it
    assert again(sqlite_ledger, "a") is not None
    sqlite_ledger.freeze(ANA, "why")
    assert kinds(sqlite_ledger)[begun:] == ["reuse", "account.frozen"]


def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(opened(path)) as ledger:
        ledger.add_account("ana", "analyst")
        had(ledger, "a")
        for _ in range(5):
            assert again(ledger, "a") is not None
    assert again(ledger, "a") is None
    with closing(opened(path)) as ledger:
        assert reused(ledger) == [6]


def test_while_too_much_waits_charges_are_asked_for(
    sqlite_ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    had(sqlite_ledger, "a")
    monkeypatch.setattr(reuse_records, "_MOST", 3)
    monkeypatch.setattr(ledger_commits, "MOST_WAITING", 2)
    with sqlite_ledger._commits._lock:
        assert [again(sqlite_ledger, "a") is not None for _ in range(7)] == [True] * 6 + [False]
    assert charge_only(sqlite_ledger, "ana", POLICY, requests("a"), sql=SQL).free
    assert reused(sqlite_ledger) == [8]


def test_what_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(opened(path)) as ledger:
        ledger.add_account("ana", "analyst")
        had(ledger, "a")
        caplog.set_level(logging.ERROR)
        tamper(path, "CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'full'); END")
        assert again(ledger, "a") is not None
        with pytest.raises(LedgerUnavailable):
            charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)
        assert "deferred records: IntegrityError" in caplog.text


def test_what_cannot_be_recorded_is_not_handed_out(tmp_path: Path) -> None:
    path, away = tmp_path / "ledger.sqlite", tmp_path / "away"
    with closing(opened(path)) as ledger:
        ledger.add_account("ana", "analyst")
        had(ledger, "a")
        assert again(ledger, "a") is not None
        path.rename(away)
        with pytest.raises(LedgerUnavailable):
            charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)
        assert again(ledger, "a") is None
        away.rename(path)
        assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).free
        assert again(ledger, "a") is not None


_VICTIM = """
import os, signal, sys
from pathlib import Path
from tests.ledger.test_reused import POLICY, again, had
from tests.ledger.world import SQL, opened, requests

ledger = opened(Path(sys.argv[1]))
had(ledger, "a")
for number in range(2000):
    assert again(ledger, "a") is not None or charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).free
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_loses_nothing_but_lines_of_history(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(opened(path)) as ledger:
        ledger.add_account("ana", "analyst")
    victim = subprocess.run([sys.executable, "-c", _VICTIM, str(path)], cwd=ROOT, check=False)
    assert victim.returncode == -signal.SIGKILL
    with closing(opened(path)) as ledger:
        assert ledger.verify().ok
        assert 1 <= reused(ledger)[0] <= 2001
        assert ledger.budget("ana", POLICY).spent.pure_epsilon == Fraction(1, 10)
        assert ledger.cap(POLICY).spent.pure_epsilon == Fraction(1, 10)
        assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL).free


def test_many_threads_have_it_again_while_others_pay(sqlite_ledger: SqliteLedger) -> None:
    had(sqlite_ledger, "a")
    free = [0] * 4

    def ask(index: int) -> None:
        for number in range(200):
            if again(sqlite_ledger, "a") is None:
                assert charge_only(sqlite_ledger, "ana", POLICY, requests("a"), sql=SQL).free
            free[index] += 1
            if number % 40 == index:
                charge_only(
                    sqlite_ledger, "ben", POLICY, [request(f"{index}-{number}", laplace(Fraction(1, 1000)))], sql=SQL
                )

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reused(sqlite_ledger) == [1 + sum(free)]
    assert sqlite_ledger.budget("ben", POLICY).spent.pure_epsilon == Fraction(20, 1000)
    assert sqlite_ledger.verify().ok


# Accounts


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_an_account_is_what_it_is_now(tmp_path: Path, elsewhere: bool) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(opened(path)) as ledger, closing(opened(path)) as other:
        writer = other if elsewhere else ledger
        ledger.add_account("ana", "analyst", "old")
        assert [ledger.account("ana") for _ in range(2)] == [other.account("ana")] * 2
        changes: list[Callable[[], None]] = [
            lambda: writer.set_verifier("ana", "new"),
            lambda: writer.set_role("ana", "guest"),
            lambda: writer.freeze(ANA, "why"),
            lambda: writer.unfreeze(ANA, "why"),
            lambda: writer.set_group("ana", "team"),
            lambda: writer.remove_account("ana"),
            lambda: writer.add_account("ana", "analyst"),
        ]
        for change in changes:
            before = ledger.account("ana")
            change()
            with closing(opened(path)) as fresh:
                assert before != fresh.account("ana") == ledger.account("ana") == ledger.account("ana")


def test_an_account_that_is_read_while_it_changes_is_not_remembered(
    sqlite_ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge_only(sqlite_ledger, "ana", POLICY, requests("a"), sql=SQL)
    with sqlite_ledger._commits.alone() as transaction:
        transaction.append("account.role", {"name": "ana", "role": "guest"})
        before = sqlite_ledger.account("ana")
        assert before is not None and before.role == "analyst"
    after = sqlite_ledger.account("ana")
    assert after is not None and after.role == "guest"


def test_accounts_that_are_remembered_have_bounded_room(
    sqlite_ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsql.ledger.ledger.MOST", 1)
    for name in ("ana", "ben", "eve"):
        sqlite_ledger.account(name)
    assert list(sqlite_ledger._accounts) == ["ben"]
