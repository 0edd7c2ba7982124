"""A ledger of an older layout becomes one of today's: the same records and balances, at no moment half of each."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import LedgerUnavailable
from dpsql.ledger import SqliteLedger, migrate
from dpsql.ledger.schema import VERSION
from dpsql.ledger.sqlite_migration import Migration, _hold
from dpsql.ledger.verification import verify
from dpsql.policy import RenewalWindow
from dpsql.privacy.accounting import Accountant
from tests.ledger.test_file import change
from tests.ledger.world import ROOT, SQL, Clock, budget, charge_only, new_ledger, policy, request
from tests.waiting import HANG_SECONDS

LAYOUTS = Path(__file__).parent / "layouts"
WAS: dict[str, Any] = json.loads((LAYOUTS / "layout1.json").read_text())


def zcdp(epsilon: int, window: RenewalWindow | None = None) -> Any:
    return budget(epsilon, Accountant.ZCDP, Fraction(1, 10**6), window)


MONTH = RenewalWindow(None)
CLINIC = policy(zcdp(3, MONTH), zcdp(15))
TRIALS = policy(
    budget(3, Accountant.BASIC, Fraction(1, 10**5), MONTH), zcdp(20), name="trials", timezone="Europe/Berlin"
)
WARDS = policy(budget(4), budget(9), name="wards", cap_name="wards")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger of layout 1, from its dump."""
    path = tmp_path / "ledger.sqlite"
    path.touch(0o600)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((LAYOUTS / "layout1.sql").read_text())
        connection.execute("PRAGMA journal_mode = WAL")
    return path


def layout(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def kept(path: Path) -> list[list[Any]]:
    """Return the records, the verifiers and the released answers."""
    with closing(sqlite3.connect(path)) as connection:
        return [
            connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("records", "verifiers", "payloads")
        ]


@contextmanager
def opened(path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(path, clock=Clock(datetime.fromisoformat(WAS["now"])))) as ledger:
        yield ledger


def test_an_older_layout_is_refused_and_told_how_to_migrate(old: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="layout 1, older than") as error:
        SqliteLedger(old)
    assert f"dpsql ledger migrate --ledger sqlite:///{old}" in str(error.value.hint)


def test_records_verifiers_and_answers_stay_and_the_whole_is_verified(old: Path) -> None:
    before = kept(old)
    done = migrate(old)
    assert done is not None
    assert (done.layout, layout(old)) == (1, VERSION)
    assert done.report.ok
    assert (done.report.records, done.report.head) == (WAS["records"], WAS["head"])
    assert kept(old) == before
    with opened(old) as ledger:
        assert ledger.verify().ok


def test_everything_reads_as_it_did_before(old: Path) -> None:
    migrate(old)
    with opened(old) as ledger:
        accounts = [[a.name, a.role, a.verifier, a.frozen, a.created.isoformat()] for a in ledger.accounts()]
        assert accounts == WAS["accounts"]
        for name, was in WAS["budgets"].items():
            user, dataset = name.split()
            under = next(each for each in (CLINIC, TRIALS, WARDS) if each.dataset.name == dataset)
            status = ledger.budget(user, under)
            now = {
                "charges": status.charges,
                "window_start": status.window_start and status.window_start.isoformat(),
                "spent": {name: status.spent.to_json()[name] for name in was["spent"]},
            }
            assert now == {key: was[key] for key in now}
            assert str(status.limit.epsilon) == was["limit"]["epsilon"]
            assert str(status.limit.delta_selection) == was["limit"]["delta_selection"]
        for under in (CLINIC, TRIALS, WARDS):
            cap, was = ledger.cap(under), WAS["caps"][under.dataset.name]
            assert {name: cap.spent.to_json()[name] for name in was["spent"]} == was["spent"]
            assert cap.charges == was["charges"]
        for user, releases in WAS["releases"].items():
            mine = [r for under in (CLINIC, TRIALS, WARDS) for r in ledger.releases(user, under.dataset.name)]
            assert [
                [r.release_id, r.key, r.sql, r.created.isoformat(), [e.to_json() for e in r.price], r.reused]
                for r in sorted(mine, key=lambda each: each.release_id)
            ] == releases
        assert [[c.id, c.user, c.dataset, c.at.isoformat()] for c in ledger.history()] == WAS["charges"]


def test_a_ledger_that_cannot_be_locked_for_another_reason_is_told_as_it_is(old: Path) -> None:
    connection = sqlite3.connect(f"file:{old}?mode=ro", uri=True)
    with closing(connection), pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        _hold(connection, old)


def test_charges_go_on_where_they_ended(old: Path) -> None:
    migrate(old)
    with opened(old) as ledger:
        before = ledger.budget("ben", WARDS).charges
        charge = charge_only(ledger, "ana", WARDS, [request("w")], sql=SQL)
        assert charge.id > WAS["records"]
        assert ledger.budget("ben", WARDS).charges == before
        assert ledger.verify().ok


def test_the_ledger_as_it_was_stays_beside_it_whole_and_private(old: Path) -> None:
    before = kept(old)
    done = migrate(old)
    assert done is not None
    assert done.backup == old.with_name("ledger.sqlite.layout-1")
    assert done.backup.stat().st_mode & 0o777 == 0o600
    assert (layout(done.backup), kept(done.backup)) == (1, before)
    names = {file.name for file in old.parent.iterdir()}
    assert names == {"ledger.sqlite", "ledger.sqlite.layout-1"}


def test_a_file_of_that_name_is_not_overwritten(old: Path) -> None:
    for name in ("ledger.sqlite.layout-1", "ledger.sqlite.layout-1-2"):
        old.with_name(name).write_text("mine")
    done = migrate(old)
    assert done is not None
    assert done.backup.name == "ledger.sqlite.layout-1-3"
    assert old.with_name("ledger.sqlite.layout-1").read_text() == "mine"


def test_a_ledger_of_this_layout_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    new_ledger(path).close()
    before = path.read_bytes()
    assert migrate(path) is None
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_a_newer_layout_is_refused(old: Path) -> None:
    change(old, f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(LedgerUnavailable, match="newer than"):
        migrate(old)


def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    shop = change(tmp_path / "shop.sqlite", "CREATE TABLE orders (id INTEGER)")
    before = shop.read_bytes()
    with pytest.raises(LedgerUnavailable, match="not a dpsql ledger"):
        migrate(shop)
    assert shop.read_bytes() == before
    shop.write_bytes(b"")
    with pytest.raises(LedgerUnavailable, match="empty file"):
        migrate(shop)


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["UPDATE records SET body = replace(body, 'ana', 'eve') WHERE seq = 1"], "record 1 was changed"),
        (["DELETE FROM records WHERE seq = 40"], "record 40 is missing"),
        (["DELETE FROM verifiers"], "the verifier of"),
        (["UPDATE payloads SET payload = x'00'"], "is not what was stored"),
    ],
)
def test_a_ledger_that_is_not_whole_is_not_migrated(old: Path, statements: list[str], problem: str) -> None:
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in (*statements, *(sql for _, sql in triggers)):
            connection.execute(statement)
    before = kept(old)
    with pytest.raises(LedgerUnavailable, match="and is unchanged") as error:
        migrate(old)
    assert problem in error.value.message
    assert (layout(old), kept(old)) == (1, before)


def test_damage_is_not_migrated(old: Path) -> None:
    content = old.read_bytes()
    old.write_bytes(content[: 3 * 4096] + bytes(4096) + content[4 * 4096 :])
    with pytest.raises(LedgerUnavailable) as error:
        migrate(old)
    assert "from a backup" in str(error.value.hint)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.ledger.sqlite_migration.SECONDS", 0.05)


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM records").fetchone()
print("open", flush=True)
sys.stdin.readline()
"""


@pytest.mark.usefixtures("impatient")
def test_a_ledger_that_another_process_has_open_is_not_migrated(old: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, old], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"  # it reads nothing now, it only has it open
        with pytest.raises(LedgerUnavailable, match="another process has the ledger") as error:
            migrate(old)
        assert "Stop the gateway" in str(error.value.hint)
        assert layout(old) == 1
        holder.communicate("\n", timeout=HANG_SECONDS)
    assert migrate(old) is not None


@pytest.mark.usefixtures("impatient")
def test_nobody_opens_the_ledger_meanwhile(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.ledger.sqlite.BUSY_SECONDS", 0.05)
    refused: list[str] = []

    def meanwhile(*arguments: Any) -> Any:
        with pytest.raises(LedgerUnavailable) as error:
            SqliteLedger(old)
        refused.append(str(error.value.hint))
        return verify(*arguments)

    monkeypatch.setattr("dpsql.ledger.sqlite_migration.verify", meanwhile)
    migrate(old)
    assert ["Another process" in hint for hint in refused] == [True]


CHILD = """
import sys
from pathlib import Path
from dpsql.ledger import migrate
print("ready", flush=True)
sys.stdin.readline()
migrate(Path(sys.argv[1]))
"""


def test_kill_9_at_any_moment_leaves_one_layout_or_the_other(old: Path) -> None:
    before = kept(old)
    moments = random.Random(11)
    layouts = []
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, old], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with child:
            assert child.stdin is not None and child.stdout is not None
            child.stdout.readline()
            child.stdin.write("\n")
            child.stdin.flush()
            time.sleep(moments.uniform(0, 0.12))
            child.send_signal(signal.SIGKILL)
            child.wait(HANG_SECONDS)
        layouts.append(layout(old))
        assert kept(old) == before
    assert set(layouts) <= {1, VERSION}
    assert layouts == sorted(layouts)
    migrate(old)
    with opened(old) as ledger:
        assert ledger.verify().ok
    for copy in old.parent.glob("ledger.sqlite.layout-1*"):
        assert (layout(copy), kept(copy)) == (1, before)


def test_an_interrupt_leaves_the_old_layout(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(connection: sqlite3.Connection, flaws: list[str]) -> None:
        assert connection.in_transaction
        raise KeyboardInterrupt

    before = kept(old)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("dpsql.ledger.sqlite_migration.verify", interrupted)
        migrate(old)
    assert (layout(old), kept(old)) == (1, before)
    assert migrate(old) is not None


def test_a_disk_that_fills_up_leaves_the_old_layout(old: Path) -> None:
    code = f"""
import resource
from pathlib import Path
from dpsql.errors import LedgerUnavailable
from dpsql.ledger import migrate
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    migrate(Path({str(old)!r}))
except LedgerUnavailable as error:
    print(error.hint, end="")
"""
    before = kept(old)
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert child.stderr == ""
    assert "disk" in child.stdout
    assert (layout(old), kept(old)) == (1, before)
    assert [file.name for file in old.parent.iterdir()] == ["ledger.sqlite"]
    assert migrate(old) is not None


def test_every_derived_table_is_made_anew(old: Path) -> None:
    """A balance that somebody lowered in the old file is what the records say again."""
    change(old, "UPDATE budgets SET spent = replace(spent, '1', '0')", "DELETE FROM quarantine")
    migrate(old)
    with opened(old) as ledger:
        assert ledger.verify().ok
        assert ledger.cap(CLINIC).spent.to_json()["rho"] == WAS["caps"]["clinic"]["spent"]["rho"]


def test_a_ledger_of_layout_2_gets_the_table_of_reads(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(new_ledger(path)) as ledger:
        charge_only(ledger, "ana", policy(), [request("a")], sql=SQL)
        before, spent = list(ledger.export()), ledger.cap(policy()).spent
    change(path, "DROP TABLE reads", "PRAGMA user_version = 2")
    done = migrate(path)
    assert done is not None
    assert (done.layout, done.report.ok) == (2, True)
    with opened(path) as ledger:
        assert (list(ledger.export()), ledger.cap(policy()).spent) == (before, spent)
        assert ledger.verify().ok


def test_two_migrations_at_once_are_one(old: Path) -> None:
    """The one that comes second finds the work done, or gives up where the first takes its time."""

    def attempt(_: int) -> Migration | LedgerUnavailable | None:
        try:
            return migrate(old)
        except LedgerUnavailable as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        first, second = sorted(pool.map(attempt, range(2)), key=lambda each: not isinstance(each, Migration))
    assert isinstance(first, Migration)
    assert second is None or "another process has the ledger" in str(second)
    assert len(list(old.parent.glob("ledger.sqlite.layout-1*"))) == 1
    assert migrate(old) is None
