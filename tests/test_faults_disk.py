"""A disk that is full, broken or read-only: the query is refused, and nothing is read that was not durably charged."""

import errno
import json
import os
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from dpsql.cli import main
from dpsql.errors import LedgerUnavailable
from dpsql.gateway.session import Session
from dpsql.ledger import SqliteLedger
from tests.conftest import MakeEngine, open_engine
from tests.faults import calls
from tests.faults.forks import Forks
from tests.faults.reads import Notes
from tests.faults.victims import connect, note_reads, serve
from tests.faults.world import charges, new_ledger, question, write_policy

SESSIONS = 8
FAULTS = {
    "full": (errno.ENOSPC, calls.WRITING),
    "over its quota": (errno.EDQUOT, calls.WRITING),
    "read-only": (errno.EROFS, calls.WRITING),
    "broken where it is written": (errno.EIO, calls.WRITING),
    "broken where it is synced": (errno.EIO, calls.DURABLE),
}
REFUSED = "58030"


def ask(session: Session, number: int) -> str:
    """Return the SQLSTATE of a refusal by the ledger, or that there was an answer."""
    (statement,) = session.parse(question(number))
    try:
        session.execute(statement)
    except LedgerUnavailable as error:
        assert error.hint
        return error.sqlstate
    return "answered"


def ask_before_and_after(policy: str, ledger: str, notes: str, fault: str) -> list[str]:
    """Ask a query, meet the fault, and ask others from several sessions at once; return what became of those."""
    note_reads(notes)
    engine = open_engine(Path(policy), Path(ledger), ())
    assert ask(Session(engine, "ana"), 0) == "answered"
    error, broken = FAULTS[fault]
    calls.fail(error, *broken)
    with ThreadPoolExecutor(SESSIONS) as pool:
        return list(pool.map(lambda number: ask(Session(engine, "ana"), number), range(1, SESSIONS + 1)))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_charged_durably_is_not_read(
    forks: Forks, make_engine: MakeEngine, clinic_file: Path, tmp_path: Path, fault: str
) -> None:
    policy = write_policy(tmp_path / "disk.toml", clinic_file, answers=100)
    path, notes = tmp_path / "ledger.sqlite", Notes(tmp_path / "notes")
    users = ("ana", "ben")
    new_ledger(path, users).close()
    outcomes = forks.run("tests.test_faults_disk:ask_before_and_after", policy, path, notes.path, fault)
    assert outcomes == [REFUSED] * SESSIONS
    assert len(notes.lines()) == 1

    # The disk works again. All charges are there; those that could not be synced may be, and their reads may be open.
    # Up to three open reads can make ana wait for minutes, so ben asks.
    engine = make_engine(policy, ledger=path, users=())
    charged = charges(engine.ledger, policy, users)
    unsynced = {question(number) for number in range(1, SESSIONS + 1)} if FAULTS[fault][1] is calls.DURABLE else set()
    assert charged[0] == question(0)
    assert set(charged[1:]) <= unsynced
    assert ask(Session(engine, "ben"), 1) == "answered"
    assert charges(engine.ledger, policy, users) == [*charged, question(1)]


def serve_until_the_disk_breaks(policy: str, ledger: str, notes: str, fault: str) -> None:
    """Be `dpsql serve`, and meet the fault when told by a signal."""

    def meet(*_: object) -> None:
        error, broken = FAULTS[fault]
        calls.fail(error, *broken)
        print("broken", flush=True)

    note_reads(notes)
    signal.signal(signal.SIGUSR1, meet)
    serve(policy, ledger)


@pytest.mark.parametrize("fault", ["full", "broken where it is synced"])
def test_a_gateway_refuses_and_goes_on(forks: Forks, clinic_file: Path, tmp_path: Path, fault: str) -> None:
    policy = write_policy(tmp_path / "disk.toml", clinic_file, answers=100)
    path, notes = tmp_path / "ledger.sqlite", Notes(tmp_path / "notes")
    new_ledger(path).close()
    gateway = forks.start("tests.test_faults_disk:serve_until_the_disk_breaks", policy, path, notes.path, fault)
    with connect(gateway) as connection:
        told = connection.execute(question(0)).fetchall()
        os.kill(gateway.pid, signal.SIGUSR1)
        assert gateway.line_with("broken")
        for number in range(1, 4):
            with pytest.raises(psycopg.OperationalError) as refusal:
                connection.execute(question(number))
            assert refusal.value.sqlstate == REFUSED
            assert refusal.value.diag.message_hint
        # Even what was paid for is not given again: that it was is a record too.
        with pytest.raises(psycopg.OperationalError):
            connection.execute(question(0))
        # What needs no charge is told as ever.
        assert connection.execute("SELECT epsilon_spent FROM dpsql.budget").fetchall() == [(0.1,)]
    assert gateway.stop() == -signal.SIGKILL
    assert len(notes.lines()) == len(told) == 1


def query(policy: str, ledger: str, notes: str, fault: str) -> None:
    """Be `dpsql query` on a broken disk."""
    note_reads(notes)
    error, broken = FAULTS[fault]
    calls.fail(error, *broken)
    url = f"sqlite:///{ledger}"
    main(["query", policy, question(0), "--user", "ana", "--ledger", url, "--format", "json"])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("begun", [True, False], ids=["a ledger", "no ledger"])
def test_the_command_is_refused(forks: Forks, clinic_file: Path, tmp_path: Path, fault: str, begun: bool) -> None:
    policy = write_policy(tmp_path / "disk.toml", clinic_file, answers=100)
    (folder := tmp_path / "ledger").mkdir()
    path, notes = folder / "ledger.sqlite", Notes(tmp_path / "notes")
    if begun:
        new_ledger(path).close()
    command = forks.start("tests.test_faults_disk:query", policy, path, notes.path, fault)
    error = json.loads(command.rest())["error"]
    assert command.end() == 1
    assert error["sqlstate"] == REFUSED
    assert error["hint"]
    assert notes.lines() == []
    if begun:
        ledger = SqliteLedger(path)
        assert charges(ledger, policy) == []
        ledger.close()
    else:  # what could not be made whole was not made at all
        assert list(folder.iterdir()) == []


def ask_with_little_room(policy: str, ledger: str, notes: str, room: int) -> str:
    """Ask when no file may grow by more than so many bytes beyond the size that the ledger's log now has."""
    note_reads(notes)
    engine = open_engine(Path(policy), Path(ledger), ())
    session = Session(engine, "ana")
    assert ask(session, 0) == "answered"
    limit = Path(f"{ledger}-wal").stat().st_size + room
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return ask(session, 1)


def test_room_that_ends_anywhere_within_a_charge(forks: Forks, clinic_file: Path, tmp_path: Path) -> None:
    """The room ends at every page of the log in turn: in the charge, or after it in the release that is stored."""
    policy = write_policy(tmp_path / "disk.toml", clinic_file, answers=100)
    page = 4096 + 24
    met = set()
    for pages in range(40):
        path, notes = tmp_path / f"ledger{pages}.sqlite", Notes(tmp_path / f"notes{pages}")
        new_ledger(path).close()
        room = pages * page + page // 2
        outcome = forks.run("tests.test_faults_disk:ask_with_little_room", policy, path, notes.path, room)
        ledger = SqliteLedger(path)
        charged, read = len(charges(ledger, policy)) - 1, len(notes.lines()) - 1
        ledger.close()
        assert read <= charged <= 1
        assert charged == read or outcome == REFUSED
        met.add((outcome, read))
        if outcome == "answered":
            break
    assert met == {(REFUSED, 0), (REFUSED, 1), ("answered", 1)}
