"""The ledger's file: made once, private, and refused when it is anything but a ledger that can be written."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.ledger import BudgetScope, Holder, SqliteLedger, ledger_file, open_ledger
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.schema import DERIVED_TABLES, VERSION
from tests.ledger.world import ROOT, SQL, charge_only, new_ledger, policy, requests
from tests.waiting import HANG_SECONDS

POLICY = policy()


def refusal(path: Path) -> str:
    with pytest.raises(LedgerUnavailable) as error:
        SqliteLedger(path)
    assert error.value.hint
    return f"{error.value.message}; {error.value.hint}"


def closed_ledger(path: Path) -> Path:
    ledger = new_ledger(path)
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    ledger.close()
    return path


def change(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def test_a_url_names_a_relative_or_an_absolute_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///here.sqlite", f"sqlite:///{tmp_path}/a b?%#.sqlite"):
        open_ledger(url).close()
    assert {path.name for path in tmp_path.iterdir()} == {"here.sqlite", "a b?%#.sqlite"}


@pytest.mark.parametrize(
    "url",
    ["", "ledger.sqlite", "sqlite://", "sqlite:///", "sqlite:////tmp/", "sqlite:///:memory:", "sqlite:///a\0b", "x://"],
)
def test_other_urls_are_refused_and_told_what_is_accepted(url: str) -> None:
    with pytest.raises(InvalidParameter) as error:
        open_ledger(url)
    assert "sqlite:///ledger.sqlite" in str(error.value.hint)


def test_the_file_is_private_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    mask = os.umask(0)
    try:
        ledger = new_ledger(path)
        assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
        ledger.close()
    finally:
        os.umask(mask)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_a_commit_is_durable(sqlite_ledger: SqliteLedger) -> None:
    ledger = sqlite_ledger
    settings = {
        name: ledger._storage.writer.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync")
    }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "fullfsync": 1, "checkpoint_fullfsync": 1}


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    ledger = SqliteLedger(path)
    assert [record.sql for record in ledger.history()] == [SQL]
    assert ledger.verify().ok
    ledger.close()


def test_a_process_that_comes_second_takes_the_first_ones_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: self != path and exists(self))
    ledger = SqliteLedger(path)
    assert len(ledger.history()) == 1
    ledger.close()
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    assert "The directory must exist" in refusal(tmp_path / "none" / "ledger.sqlite")


def test_an_empty_file_is_no_new_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.touch()
    assert "is an empty file; Restore it from a backup" in refusal(path)
    assert path.stat().st_size == 0
    path.write_bytes(b"SQLite format 3")
    assert "is cut short; Restore it from a backup" in refusal(path)


def test_another_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be taken for the header of one" * 10)
    assert "Check the ledger's URL" in refusal(text)
    database = change(tmp_path / "shop.sqlite", "CREATE TABLE orders (id INTEGER)")
    before = database.read_bytes()
    assert "not a dpsql ledger" in refusal(database)
    assert database.read_bytes() == before


@pytest.mark.parametrize(("version", "hint"), [(VERSION - 1, "older"), (VERSION + 1, "Upgrade dpsql")])
def test_another_layout_is_refused(tmp_path: Path, version: int, hint: str) -> None:
    path = change(closed_ledger(tmp_path / "ledger.sqlite"), f"PRAGMA user_version = {version}")
    assert hint in refusal(path)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut in a page": lambda content: content[:5000],
    "cut by half": lambda content: content[: len(content) // 8192 * 4096],
    "cut by a page": lambda content: content[:-4096],
    "cut to nearly nothing": lambda content: content[:99],
    "random bytes": lambda content: random.Random(4).randbytes(len(content)),
    "another header": lambda content: b"\0" * 16 + content[16:],
    "a schema of ones": lambda content: content[:100] + b"\xff" * 3996 + content[4096:],
    "a page of zeros": lambda content: content[: 2 * 4096] + bytes(4096) + content[3 * 4096 :],
    "a page of ones": lambda content: content[: 2 * 4096] + b"\xff" * 4096 + content[3 * 4096 :],
    "a table that is no text": lambda content: content.replace(b"TABLE accounts", b"TABLE \xff\x84\xffounts"),
    "a name that is no text": lambda content: content.replace(b"tableaccounts", b"table\xff\x84\xffounts"),
    "nothing but its header": lambda content: content[:4096] + b"\xff" * (len(content) - 4096),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_at_the_start(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    whole = path.read_bytes()
    content = damage(whole)
    assert content != whole
    path.write_bytes(content)
    assert "from a backup" in refusal(path)
    assert path.read_bytes() == content


def test_a_ledger_that_is_gone_from_beside_its_log_is_not_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    for suffix in ("-wal", "-shm"):
        left = path.with_name(f"ledger.sqlite{suffix}")
        left.write_bytes(b"of another day")
        said = refusal(path)
        assert f'is gone, but "{left}" is still there' in said
        assert "from a backup" in said
        assert [file.name for file in tmp_path.iterdir()] == [left.name]
        left.unlink()
    SqliteLedger(path).close()


def test_a_ledger_is_made_only_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with pytest.raises(LedgerUnavailable, match="there is no ledger") as error:
        open_ledger(f"sqlite:///{path}", make=False)
    assert "dpsql ledger init" in str(error.value.hint)
    with pytest.raises(LedgerUnavailable, match="there is no ledger"):
        ledger_file(f"sqlite:///{path}", make=False)
    assert list(tmp_path.iterdir()) == []


def test_only_a_ledger_in_a_file_has_one(tmp_path: Path) -> None:
    assert ledger_file(f"sqlite:///{tmp_path}/new.sqlite") == tmp_path / "new.sqlite"
    with pytest.raises(InvalidParameter, match="this one is in PostgreSQL") as error:
        ledger_file("postgresql://dpsql@host/ledger")
    assert "pg_dump" in str(error.value.hint)


READING: dict[str, Callable[[SqliteLedger], object]] = {
    "export": lambda ledger: list(ledger.export()),
    "history": lambda ledger: ledger.history(),
    "releases": lambda ledger: ledger.releases("ana", POLICY.dataset.name),
    "owner": lambda ledger: ledger.owner_history(),
    "accounts": lambda ledger: ledger.accounts(),
    "budgets": lambda ledger: ledger.budgets("ana", POLICY),
    "charge": lambda ledger: charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL),
}
TEXTS = {
    "a body that is no JSON": (b'{"cap":', b'{"cap"!', {"export"}),
    "a body that lacks what it had": (b'"releases":', b'"releasez":', {"history", "releases"}),
    "a date that is none": (b"2026-01-15T12:00", b"2026-01-15T12!00", {"history", "owner", "accounts", "charge"}),
    "bytes that are no text": (b"analyst", b"ana\xffyst", {"accounts", "charge"}),
}


@pytest.mark.parametrize(("before", "after", "met"), TEXTS.values(), ids=TEXTS)
def test_a_damaged_text_is_told_as_damage_wherever_it_is_read(
    tmp_path: Path, before: bytes, after: bytes, met: set[str]
) -> None:
    ledger = new_ledger(tmp_path / "ledger.sqlite")
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    ledger.freeze(Holder(BudgetScope.USER, "ben"), "gone")
    ledger.close()
    path = tmp_path / "ledger.sqlite"
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after))
    with closing(SqliteLedger(path)) as damaged:
        for name in sorted(met):
            with pytest.raises(LedgerUnavailable) as error:
                READING[name](damaged)
            assert "verify" in str(error.value.hint)


def test_every_page_is_looked_at(tmp_path: Path) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    content = path.read_bytes()
    for start in range(0, len(content), 4096):
        path.write_bytes(content[:start] + bytes(4096) + content[start + 4096 :])
        assert "from a backup" in refusal(path)


@pytest.mark.parametrize("table", ["records", "payloads", *DERIVED_TABLES])
def test_a_missing_or_altered_table_is_refused_at_the_start(tmp_path: Path, table: str) -> None:
    path = change(closed_ledger(tmp_path / "ledger.sqlite"), f"ALTER TABLE {table} ADD COLUMN more TEXT")
    assert f"the table {table} is missing or altered" in refusal(path)
    change(path, f"DROP TABLE {table}")
    assert f"the table {table} is missing or altered" in refusal(path)


def test_the_log_of_another_ledger_is_refused_at_the_start(tmp_path: Path) -> None:
    path, other = tmp_path / "ledger.sqlite", tmp_path / "other.sqlite"
    ledger = new_ledger(path)
    for key in range(60):
        charge_only(ledger, "ana", POLICY, requests(key)[:0], sql=SQL * 20)
    ledger._storage.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for key in range(10):
        charge_only(ledger, "ana", POLICY, requests(key), sql=SQL * 20)
    log = path.with_name("ledger.sqlite-wal").read_bytes()
    ledger.close()
    closed_ledger(other)
    other.with_name("other.sqlite-wal").write_bytes(log)
    assert "from a backup" in refusal(other)


def test_a_directory_is_no_ledger(tmp_path: Path) -> None:
    assert "Name a file in it" in refusal(tmp_path)


def test_a_file_system_that_cannot_commit_durably_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = change(closed_ledger(tmp_path / "ledger.sqlite"), "PRAGMA journal_mode = DELETE")
    connect = sqlite3.connect

    def without_shared_memory(name: str, **options: Any) -> object:
        return connect(f"{name}&vfs=unix-dotfile", **options)

    monkeypatch.setattr(sqlite3, "connect", without_shared_memory)
    assert "a disk of this machine" in refusal(path)


def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path / "ledger.sqlite")
    ledger.close()
    with pytest.raises(LedgerUnavailable, match="is closed"):
        ledger.accounts()
    with pytest.raises(LedgerUnavailable, match="is closed"):
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)


def test_a_full_disk_grants_nothing(sqlite_ledger: SqliteLedger) -> None:
    ledger = sqlite_ledger
    pages = ledger._storage.writer.execute("PRAGMA page_count").fetchone()[0]
    ledger._storage.writer.execute(f"PRAGMA max_page_count = {pages}")
    granted = 0
    with pytest.raises(LedgerUnavailable, match="full") as error:
        for key in range(1000):
            charge_only(ledger, "ana", policy(), requests(key)[:0], sql=SQL * 20)
            granted += 1
    assert "make room" in str(error.value.hint)
    ledger._storage.writer.execute("PRAGMA max_page_count = 1000000")
    assert sum(record["kind"] == "reuse" for record in ledger.export()) == granted
    assert ledger.verify().ok


def test_a_ledger_that_another_process_holds_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.ledger.sqlite.BUSY_SECONDS", 0.05)
    path = closed_ledger(tmp_path / "ledger.sqlite")
    ledger = SqliteLedger(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="locked") as error:
            charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
        assert "Another process" in str(error.value.hint)
        assert "Another process" in refusal(path)
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    ledger.close()


def test_a_file_that_the_system_forbids_to_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    for forbidden in (path, tmp_path):
        monkeypatch.setattr(os, "access", lambda which, mode, forbidden=forbidden: which != forbidden)
        assert "able to write" in refusal(path)


def in_child(path: Path, before: str) -> str:
    """Charge in a process that has done something first; return the kind of error, or "granted"."""
    code = f"""
import os, resource
from pathlib import Path
from tests.ledger.world import SQL, Clock, charge_only, policy, requests
from dpsql.errors import LedgerUnavailable
from dpsql.ledger import SqliteLedger
{before}
try:
    ledger = SqliteLedger(Path({str(path)!r}), clock=Clock())
    for key in range(9):
        charge_only(ledger, "ana", policy(), requests(key), sql=SQL * 20)
        {"resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))" if "no room" in before else ""}
    print("granted", end="")
except LedgerUnavailable as error:
    print(error.hint, end="")
"""
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert child.stderr == ""
    return child.stdout


def test_a_file_that_may_not_grow_grants_nothing(tmp_path: Path) -> None:
    path = closed_ledger(tmp_path / "ledger.sqlite")
    assert in_child(path, "# no room after the first charge") != "granted"
    ledger = SqliteLedger(path)
    assert 2 <= len(ledger.history()) < 9
    assert ledger.verify().ok
    ledger.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("replaced", [False, True])
def test_files_that_are_taken_away_under_it_grant_nothing(
    sqlite_ledger: SqliteLedger, tmp_path: Path, suffix: str, replaced: bool
) -> None:
    ledger = sqlite_ledger
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    path = tmp_path / f"ledger.sqlite{suffix}"
    kept = path.rename(path.with_name("kept"))
    if replaced:
        shutil.copy(kept, path)
    for act in (
        lambda: charge_only(ledger, "ana", POLICY, requests("b"), sql=SQL),
        lambda: ledger.add_account("eva", "analyst"),
    ):
        with pytest.raises(LedgerUnavailable, match="moved, deleted or replaced while it was open") as error:
            act()
        assert "Put the same files back" in str(error.value.hint)
    kept.rename(path)
    charge_only(ledger, "ana", POLICY, requests("c"), sql=SQL)
    assert len(ledger.history()) == 2
    assert ledger.verify().ok


def test_a_ledger_that_is_replaced_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = closed_ledger(tmp_path / "ledger.sqlite"), closed_ledger(tmp_path / "other.sqlite")
    connect = sqlite3.connect

    def too_late(name: str, **options: Any) -> object:
        connection = connect(name, **options)
        if "mode=rw" in name:
            connection.execute("SELECT * FROM records").fetchall()
            os.replace(other, path)
        return connection

    monkeypatch.setattr(sqlite3, "connect", too_late)
    assert "replaced while it was open" in refusal(path)


def test_a_relative_path_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = new_ledger(Path("ledger.sqlite"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    assert ledger.verify().ok
    ledger.close()


def test_a_probe_writes_as_a_charge_does_and_leaves_no_record(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = new_ledger(path)
    before, log = ledger.verify(), path.with_name("ledger.sqlite-wal").read_bytes()
    ledger.probe()
    assert ledger.verify() == before
    assert path.with_name("ledger.sqlite-wal").read_bytes() != log, "something goes to the disk"
    path.rename(tmp_path / "away")
    with pytest.raises(LedgerUnavailable, match="moved, deleted or replaced"):
        ledger.probe()
    ledger.close()


def test_reading_does_not_wait_for_writing_elsewhere(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    export = ledger.export()
    first = next(export)
    done = threading.Thread(target=charge_only, args=(ledger, "ben", POLICY, requests("b")), kwargs={"sql": SQL})
    done.start()
    done.join()
    rest = list(export)
    assert first["seq"] == 1
    assert sum(record["kind"] == "charge" for record in rest) == 1
    assert len(ledger.history()) == 2
