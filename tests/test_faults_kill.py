"""kill -9 anywhere between charge and reply: no answer without its charge, no charge lost, no budget overspent."""

import itertools
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from dpsql.backends import DuckDBBackend
from dpsql.errors import InvalidParameter
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder, SqliteLedger
from tests.conftest import MakeEngine
from tests.examples import LONG
from tests.faults.forks import SECONDS, Fork, Forks
from tests.faults.reads import Notes, noting
from tests.faults.victims import POINTS, connect, port_of, serve
from tests.faults.world import charges, new_ledger, question, write_policy

KILLS = 2000 if LONG else 60
ANSWERS = 40
"""What a budget is for: some ten gateways are killed over one, then the next one is begun."""
CLIENTS = 3


@dataclass
class Round:
    """A ledger over which gateways are killed until its budget is spent.

    Attributes:
        ledger: Its file.
        policy: Of the gateways.
        answers: What clients were told, by query; each is asked once.
        charged: The queries that were charged, as the ledger had it after the last kill.
        spent: Whether a client was told that the budget is.
    """

    ledger: Path
    policy: Path
    answers: dict[str, int] = field(default_factory=dict)
    charged: list[str] = field(default_factory=list)
    spent: bool = False
    _records: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _asking: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _unexpected: list[BaseException] = field(default_factory=list)

    def live_and_die(self, gateway: Fork, answers: int, seconds: float) -> None:
        """Let clients have so many answers, kill the gateway a moment later, and look at what is left."""
        port = port_of(gateway)
        enough = len(self.answers) + answers
        self._asking = CLIENTS
        clients = [threading.Thread(target=self._ask, args=(port,)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.answers) >= enough or not self._asking, SECONDS)
        threading.Event().wait(seconds)
        assert gateway.stop() == -signal.SIGKILL
        for client in clients:
            client.join()
        assert self._unexpected == []
        self.check()

    def check(self) -> None:
        """The ledger opens and holds, no record of before is lost, and what clients were told was charged.

        So it does beside the gateway that waits, and where no process is left: the log is then recovered.
        """
        alone = Path(shutil.copy(self.ledger, self.ledger.with_name("alone.sqlite")))
        log = self.ledger.with_name(f"{self.ledger.name}-wal")
        if log.exists():
            shutil.copy(log, alone.with_name("alone.sqlite-wal"))
        self.charged, records = self._read(self.ledger)
        _, recovered = self._read(alone)
        assert records[: len(self._records)] == self._records
        assert recovered[: len(records)] == records
        self._records = records
        if self.spent:
            assert len(self.charged) == ANSWERS

    def _read(self, path: Path) -> tuple[list[str], list[str]]:
        """Return the queries that were charged, and the hashes of all records."""
        ledger = SqliteLedger(path)
        charged = charges(ledger, self.policy)
        records = [record["hash"] for record in ledger.export()]
        ledger.close()
        assert len(set(charged)) == len(charged) <= ANSWERS
        assert set(self.answers) <= set(charged)
        return charged, records

    def _ask(self, port: int) -> None:
        try:
            with connect(port) as connection:
                for number in self._numbers:
                    ((count,),) = connection.execute(question(number)).fetchall()
                    with self._changed:
                        self.answers[question(number)] = count
                        self._changed.notify()
        except psycopg.errors.ConfigurationLimitExceeded:
            self.spent = True
        except psycopg.OperationalError as error:
            if error.sqlstate is not None:  # it was not the connection that broke
                self._unexpected.append(error)
        except BaseException as error:
            self._unexpected.append(error)
        finally:
            with self._changed:
                self._asking -= 1
                self._changed.notify()


def test_kill_9_at_random_moments(forks: Forks, make_engine: MakeEngine, clinic_file: Path, tmp_path: Path) -> None:
    moments = random.Random(4)
    policy = write_policy(tmp_path / "kill.toml", clinic_file, answers=ANSWERS)
    rounds: list[Round] = []
    waiting: list[Fork] = []

    def begin() -> Round:
        path = tmp_path / f"killed{len(rounds)}.sqlite"
        new_ledger(path).close()
        rounds.append(Round(path, policy))
        return rounds[-1]

    present = begin()
    for _ in range(KILLS):
        # The next gateway starts while this one is asked, so that two are on the ledger.
        while len(waiting) < 2:
            waiting.append(forks.start("tests.faults.victims:serve", policy, present.ledger))
        present.live_and_die(waiting.pop(0), moments.randrange(6), moments.uniform(0, 0.04))
        with closing(SqliteLedger(present.ledger)) as ledger, suppress(InvalidParameter):  # nothing was being read
            ledger.unfreeze(Holder(BudgetScope.USER, "ana"), "killed by the owner")
        if present.spent:
            waiting.pop().stop()
            present.check()
            present = begin()
    if waiting:
        waiting.pop().stop()

    finished = rounds[:-1]
    assert len(finished) > 1
    # Some were charged for answers that they never got: the kills met queries on their way.
    assert any(len(each.charged) > len(each.answers) for each in finished)
    for each in finished:
        session = Session(make_engine(policy, ledger=each.ledger, users=()), "ana")
        for sql, count in list(each.answers.items())[:3]:
            (statement,) = session.parse(sql)
            assert session.execute(statement).rows == ((count,),)  # it was stored before it was told


@dataclass(frozen=True)
class Death:
    """What is left of a query whose gateway died.

    Attributes:
        charged: Whether it was charged.
        read: Whether private rows were read.
        stored: Whether its release is there to be had again.
        told: Whether the client may have its answer.
    """

    charged: bool = False
    read: bool = False
    stored: bool = False
    told: bool = False


DEATHS = {
    "before the charge": Death(),
    "the charge is to be committed": Death(),
    "the charge is to be written": Death(),
    "the charge is to be synced": Death(charged=True),  # by luck: the system has it, and did not die
    "charged": Death(charged=True),
    "before the read": Death(charged=True),
    "read": Death(charged=True, read=True),
    "released": Death(charged=True, read=True),
    "the release is to be stored": Death(charged=True, read=True),
    "stored": Death(charged=True, read=True, stored=True),
    "answered": Death(charged=True, read=True, stored=True),
    "in the reply": Death(charged=True, read=True, stored=True),
    "after the reply": Death(charged=True, read=True, stored=True, told=True),
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(forks: Forks, make_engine: MakeEngine, clinic_file: Path, tmp_path: Path, point: str) -> None:
    death = DEATHS[point]
    policy = write_policy(tmp_path / "kill.toml", clinic_file, answers=ANSWERS)
    path, notes = tmp_path / "ledger.sqlite", Notes(tmp_path / "notes")
    # Nobody has the ledger open when the gateway dies, so that what it leaves is recovered.
    forks.start("tests.faults.victims:begin_ledger", path).end()
    gateway = forks.start("tests.faults.victims:serve_and_die", policy, path, notes.path, point)
    try:
        with connect(gateway) as connection:
            connection.execute(question(1))
            told = True
    except psycopg.OperationalError as error:
        assert error.sqlstate is None
        told = False
    assert gateway.end() in (-signal.SIGKILL, -signal.SIGSYS)
    assert told <= death.told
    ledger = SqliteLedger(path)
    assert charges(ledger, policy) == [question(1)] * death.charged
    assert len(notes.lines()) == death.read

    session = Session(make_engine(policy, ledger=path, users=()), "ana")
    (statement,) = session.parse(question(1))
    again = session.execute(statement).answer
    assert again is not None
    assert again.reused == death.stored
    assert charges(ledger, policy) == [question(1)] * (death.charged + (not death.stored))
    ledger.close()


def serve_and_wait(policy: str, ledger: str) -> None:
    """Be `dpsql serve`, and wait for a line before each read of private rows."""

    def wait(_key: str) -> None:
        print("reading", flush=True)
        input()

    DuckDBBackend.fetch = noting(DuckDBBackend.fetch, wait)  # type: ignore[method-assign]
    serve(policy, ledger)


def ask(port: int, number: int) -> int:
    """Be a client."""
    with connect(port) as connection:
        ((count,),) = connection.execute(question(number)).fetchall()
        return int(count)


def test_a_client_that_is_killed_has_paid(forks: Forks, clinic_file: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path / "kill.toml", clinic_file, answers=ANSWERS)
    ledger = new_ledger(tmp_path / "ledger.sqlite")
    gateway = forks.start("tests.test_faults_kill:serve_and_wait", policy, tmp_path / "ledger.sqlite")
    port = port_of(gateway)
    client = forks.start("tests.test_faults_kill:ask", port, 0)
    assert gateway.line_with("reading")
    assert client.stop() == -signal.SIGKILL
    gateway.tell()
    assert gateway.line_with("ended")
    assert charges(ledger, policy) == [question(0)]
    assert gateway.stop(signal.SIGTERM) == 0
    ledger.close()
