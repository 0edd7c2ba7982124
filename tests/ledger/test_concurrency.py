"""A budget for exactly ten grants exactly ten, whoever asks at once; what was charged survives kill -9."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpsql.errors import BudgetExhausted
from dpsql.ledger import SqliteLedger
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.transaction import LedgerClock
from tests.ledger.world import ANY, ROOT, SQL, charge_only, new_ledger, policy, request, requests
from tests.waiting import HANG_SECONDS

POLICY = policy()

CHILD = f"""
import sys
from pathlib import Path
from tests.ledger.world import SQL, charge_only, policy, request
from dpsql.errors import BudgetExhausted
from dpsql.ledger import SqliteLedger
from dpsql.ledger.ledger import Ledger
ledger = SqliteLedger(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
granted = 0
for number in range(int(sys.argv[3])):
    try:
        charge_only(ledger, "ana", policy(), [request(sys.argv[2] + str(number))], sql={SQL!r})
        granted += 1
    except BudgetExhausted:
        pass
print(granted, flush=True)
sys.stdin.readline()
"""


def start(path: Path, name: str, charges: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), name, str(charges)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def end(child: subprocess.Popen[str]) -> None:
    with child:
        child.kill()


def test_threads_cannot_overspend(ledger: Ledger) -> None:
    def ask(number: int) -> bool:
        try:
            charge_only(ledger, "ana", POLICY, [request(number)], sql=SQL)
        except BudgetExhausted:
            return False
        return True

    with ThreadPoolExecutor(64) as pool:
        assert sum(pool.map(ask, range(64))) == 10
    assert ledger.budget("ana", POLICY).spent.pure_epsilon == 1
    assert ledger.verify().ok


def test_processes_cannot_overspend(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    new_ledger(path).close()
    children = [start(path, name, 10) for name in "abcd"]
    try:
        assert [told(child) for child in children] == ["ready"] * 4
        for child in children:
            go(child)
        assert sum(int(told(child)) for child in children) == 10
    finally:
        for child in children:
            end(child)
    ledger = SqliteLedger(path)
    assert len(ledger.history()) == 10
    assert ledger.verify().ok
    ledger.close()


def test_processes_that_begin_a_ledger_at_once_share_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    children = [start(path, name, 0) for name in "abcd"]
    try:
        assert [told(child) for child in children] == ["ready"] * 4
        ledger = new_ledger(path)
        for child in children:
            go(child)
        assert [told(child) for child in children] == ["0"] * 4
    finally:
        for child in children:
            end(child)
    assert len(ledger.accounts()) == 2
    assert [file.name for file in tmp_path.iterdir() if not file.name.startswith("ledger.sqlite")] == []
    ledger.close()


def test_a_charge_survives_kill_9_before_its_release_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    new_ledger(path).close()
    child = start(path, "key", 3)
    try:
        assert told(child) == "ready"
        go(child)
        assert told(child) == "3"
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(HANG_SECONDS) == -signal.SIGKILL
    finally:
        end(child)
    assert path.with_name("ledger.sqlite-wal").exists()  # nothing was tidied up
    ledger = SqliteLedger(path)
    assert [record.user for record in ledger.history()] == ["ana"] * 3
    status = ledger.budget("ana", POLICY)
    assert (status.charges, status.spent.pure_epsilon) == (3, ledger.cap(POLICY).spent.pure_epsilon)
    again = charge_only(ledger, "ana", POLICY, requests("key0"), sql=SQL)
    assert again.releases[0].payload is None
    assert not again.free
    assert ledger.verify().ok
    ledger.close()


def test_an_interrupted_charge_leaves_nothing(ledger: Ledger) -> None:
    before = list(ledger.export())

    def interrupted() -> None:
        raise KeyboardInterrupt

    clock, ledger._clock = ledger._clock, LedgerClock(interrupted, ANY)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    ledger._clock = clock
    assert list(ledger.export()) == before
    assert charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
