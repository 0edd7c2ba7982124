"""A ledger that may not be written answers nothing; one that becomes so while it is open loses nothing.

Modes bind everybody but root; where the tests run as root, who asks gives up root's capabilities first.
"""

import json
from pathlib import Path

import pytest

from dpsql.cli import main
from dpsql.gateway.session import Session
from dpsql.ledger import SqliteLedger
from tests.conftest import open_engine
from tests.faults.calls import be_bound_by_modes
from tests.faults.forks import Forks
from tests.faults.reads import Notes
from tests.faults.victims import note_reads, serve
from tests.faults.world import charges, new_ledger, question, write_policy
from tests.test_faults_disk import REFUSED, ask

FORBIDDEN = {
    "the file": {"ledger.sqlite": 0o400},
    "the directory": {".": 0o555},
    "the directory and the file": {".": 0o555, "ledger.sqlite": 0o400},
    "the file, to read too": {"ledger.sqlite": 0o000},
    "the log of a gateway that was killed": {"ledger.sqlite-wal": 0o400},
    "the index of its log": {"ledger.sqlite-shm": 0o400},
}


@pytest.fixture
def folder(clinic_file: Path, tmp_path: Path) -> Path:
    """A directory with a policy, and one in it for the ledger."""
    write_policy(tmp_path / "clinic.toml", clinic_file, answers=100)
    (tmp_path / "ledger").mkdir()
    return tmp_path


def query(folder: str, name: str) -> None:
    """Be `dpsql query`."""
    be_bound_by_modes()
    note_reads(f"{folder}/{name}")
    ledger = f"sqlite:///{folder}/ledger/ledger.sqlite"
    main(["query", f"{folder}/clinic.toml", question(0), "--user", "ana", "--ledger", ledger, "--format", "json"])


def serve_bound(folder: str) -> None:
    be_bound_by_modes()
    serve(f"{folder}/clinic.toml", f"{folder}/ledger/ledger.sqlite")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_ledger_that_may_not_be_written_answers_nothing(forks: Forks, folder: Path, what: str) -> None:
    path = folder / "ledger" / "ledger.sqlite"
    # Its writer is killed, so that the log and its index are left.
    forks.start("tests.faults.victims:begin_ledger", path).end()
    assert len(list(path.parent.iterdir())) == 3
    before = {name: (path.parent / name).stat().st_mode for name in FORBIDDEN[what]}
    for name, mode in FORBIDDEN[what].items():
        (path.parent / name).chmod(mode)

    command = forks.start("tests.test_faults_read_only:query", folder, "refused")
    refusal = json.loads(command.rest())["error"]
    assert command.end() == 1
    assert refusal["sqlstate"] == REFUSED, refusal
    assert refusal["hint"]
    assert Notes(folder / "refused").lines() == []
    gateway = forks.start("tests.test_faults_read_only:serve_bound", folder)
    told = gateway.rest()
    assert gateway.end() == 1
    assert f"({REFUSED})" in told
    assert "Traceback" not in told

    for name, mode in before.items():
        (path.parent / name).chmod(mode)
    command = forks.start("tests.test_faults_read_only:query", folder, "answered")
    assert json.loads(command.rest())["rows"]
    assert command.end() == 0
    assert len(Notes(folder / "answered").lines()) == 1
    ledger = SqliteLedger(path)
    assert charges(ledger, folder / "clinic.toml") == [question(0)]
    ledger.close()


def ask_when_told(folder: str) -> str:
    """Ask, let modes be changed, and ask again."""
    be_bound_by_modes()
    note_reads(f"{folder}/open")
    engine = open_engine(Path(folder, "clinic.toml"), Path(folder, "ledger", "ledger.sqlite"), ())
    print(ask(Session(engine, "ana"), 0), flush=True)
    input()
    return ask(Session(engine, "ana"), 1)


def test_a_ledger_that_may_not_be_written_any_more_loses_nothing(forks: Forks, folder: Path) -> None:
    """Who has it open may go on writing; then what is charged is there, as if nothing had been changed."""
    path = folder / "ledger" / "ledger.sqlite"
    new_ledger(path).close()
    asking = forks.start("tests.test_faults_read_only:ask_when_told", folder)
    assert asking.line() == "answered"
    files = [path.parent, *path.parent.iterdir()]
    modes = [file.stat().st_mode for file in files]
    for file in files:
        file.chmod(0o555)
    asking.tell()
    outcome = asking.result()
    for file, mode in zip(files, modes, strict=True):
        file.chmod(mode)
    ledger = SqliteLedger(path)
    answered = [question(0), question(1)] if outcome == "answered" else [question(0)]
    assert charges(ledger, folder / "clinic.toml") == answered
    assert len(Notes(folder / "open").lines()) == len(answered)
    ledger.close()
