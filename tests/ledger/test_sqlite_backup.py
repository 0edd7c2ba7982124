"""A backup is one whole state of a ledger in use, in a new and private file, durable when the command ends."""

import os
import sqlite3
import threading
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import InvalidParameter, LedgerUnavailable, PolicyViolation
from dpsql.ledger import BudgetScope, Holder, Noted, SqliteLedger, backup
from dpsql.ledger.chain import ORIGIN
from tests.ledger.test_file import change, closed_ledger
from tests.ledger.world import SQL, charge_only, laplace, new_ledger, policy, request, requests

POLICY = policy()
EVERYBODY = Holder(BudgetScope.ALL)
SMALL = Fraction(1, 10**6)


def test_a_backup_is_the_ledger_again(tmp_path: Path) -> None:
    path, copy = tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite"
    with closing(new_ledger(path)) as ledger:
        ledger.set_verifier("ana", "SCRAM-SHA-256$4096:salt$stored:server")
        charge = charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
        ledger.store(charge.releases[0].release_id, b"rows")
        report = backup(path, copy)
        assert report == ledger.verify()
        records, accounts = list(ledger.export()), ledger.accounts()
    with closing(SqliteLedger(copy)) as restored:
        restored.unfreeze(EVERYBODY, "compared with what was noted")
        assert (list(restored.export())[:-2], restored.accounts()) == (records, accounts)
        assert charge_only(restored, "ana", POLICY, requests("a"), sql=SQL).releases[0].payload == b"rows"


def test_a_backup_is_private_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    (tmp_path / "there").mkdir()
    mask = os.umask(0)
    try:
        backup(path, tmp_path / "there" / "copy.sqlite")
    finally:
        os.umask(mask)
    (copy,) = (tmp_path / "there").iterdir()
    assert (copy.name, copy.stat().st_mode & 0o777) == ("copy.sqlite", 0o600)


def test_a_backup_and_its_name_are_on_the_disk_when_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    synced: list[str] = []
    sync = os.fsync

    def recorded(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    backup(path, tmp_path / "copy.sqlite")
    assert synced[0].startswith(f"{tmp_path}/.copy.sqlite.")  # before it has its name
    assert synced[1:] == [str(tmp_path)]


def test_a_backup_overwrites_nothing(tmp_path: Path) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    target = tmp_path / "notes.txt"
    target.write_text("mine")
    for there in (target, path):
        before = there.read_bytes()
        with pytest.raises(InvalidParameter, match="exists") as error:
            backup(path, there)
        assert "a new file" in str(error.value.hint)
        assert there.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"ledger.sqlite", "notes.txt"}


def test_backups_are_whole_while_threads_charge(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ended = threading.Event()
    with closing(new_ledger(path)) as ledger:

        def charge(name: int) -> None:
            number = 0
            while not ended.is_set():
                charge_only(ledger, "ana", POLICY, [request(f"{name}-{number}", laplace(SMALL))], sql=SQL)
                number += 1

        threads = [threading.Thread(target=charge, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        reports = [backup(path, tmp_path / f"copy{number}.sqlite") for number in range(5)]
        ended.set()
        for thread in threads:
            thread.join()
        assert all(report.ok for report in reports)
        counts = [report.records for report in reports]
        assert counts == sorted(counts)
        assert counts[-1] > counts[0]
        for number, report in enumerate(reports):
            with closing(SqliteLedger(tmp_path / f"copy{number}.sqlite")) as copy:
                assert copy.verify(Noted(report.head, report.records)).ok
                assert copy.head().records == report.records + 1
            assert ledger.verify(Noted(report.head, report.records)).ok  # each is how the ledger once was


def test_an_old_backup_put_back_is_found_by_the_noted_hash(tmp_path: Path) -> None:
    path, copy = tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite"
    with closing(new_ledger(path)) as ledger:
        backup(path, copy)
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
        noted = ledger.verify()
    os.replace(copy, path)
    with closing(SqliteLedger(path)) as ledger:
        assert ledger.budget("ana", POLICY).charges == 0  # the budget is back
        assert ledger.verify().ok
        assert not ledger.verify(Noted(noted.head, noted.records)).ok


def test_a_backup_that_is_put_back_answers_nobody_until_the_owner_says_so(tmp_path: Path) -> None:
    """It has forgotten what was spent since: who puts it back in haste must not give every budget back."""
    path, copies = tmp_path / "ledger.sqlite", [tmp_path / "one.sqlite", tmp_path / "two.sqlite"]
    with closing(new_ledger(path)) as ledger:
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
        backup(path, copies[0])
        charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL)
    backup(copies[0], copies[1])  # frozen already
    for copy in copies:
        os.replace(copy, path)
        with closing(SqliteLedger(path)) as ledger:
            before = ledger.head()
            for key in ("a", "b"):
                with pytest.raises(PolicyViolation, match="all accounts are frozen"):
                    charge_only(ledger, "ana", POLICY, requests(key), sql=SQL)
            assert ledger.head() == before
            (frozen,) = ledger.owner_history()
            assert (frozen.kind, "not in it" in frozen.reason) == ("all.frozen", True)
            ledger.unfreeze(EVERYBODY, "compared with what was noted")
            assert charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL).price.pure_epsilon == Fraction(1, 10)
            assert ledger.verify().ok


def test_nothing_is_kept_of_a_ledger_that_is_not_whole(tmp_path: Path) -> None:
    path = change(closed_ledger(tmp_path / "ledger.sqlite"), "UPDATE budgets SET charges = 0")
    with pytest.raises(LedgerUnavailable, match="not whole: budgets holds") as error:
        backup(path, tmp_path / "copy.sqlite")
    assert "the backup before this one" in str(error.value.hint)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [("PRAGMA application_id = 7", "not a dpsql ledger"), ("PRAGMA user_version = 1", "dpsql ledger migrate")],
)
def test_what_is_no_ledger_of_this_layout_is_not_copied(tmp_path: Path, statement: str, problem: str) -> None:
    path = change(closed_ledger(tmp_path / "ledger.sqlite"), statement)
    with pytest.raises(LedgerUnavailable) as error:
        backup(path, tmp_path / "copy.sqlite")
    assert problem in f"{error.value.message} {error.value.hint}"
    assert not (tmp_path / "copy.sqlite").exists()


def test_a_backup_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerUnavailable, match="none") as error:
        backup(path, tmp_path / "none" / "copy.sqlite")
    assert "The directory must exist" in str(error.value.hint)


def test_a_full_disk_leaves_no_half_of_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    connect = sqlite3.connect

    def small(name: str, **options: object) -> object:
        connection = connect(name, **options)  # type: ignore[call-overload]
        if "copy.sqlite" in name:
            connection.execute("PRAGMA max_page_count = 3")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(LedgerUnavailable) as error:
        backup(path, tmp_path / "copy.sqlite")
    assert "make room" in str(error.value.hint)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_an_empty_ledger_has_a_backup_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(SqliteLedger(path)):
        report = backup(path, tmp_path / "copy.sqlite")
    assert (report.records, report.head, report.ok) == (0, ORIGIN, True)
