"""The ledger fails at every statement of a query in turn: nothing is read that is not charged, and nothing sticks."""

import itertools
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dpsql.backends import DuckDBBackend
from dpsql.errors import InvalidParameter, LedgerUnavailable
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder, SqliteLedger
from tests.conftest import MakeEngine
from tests.faults.reads import Notes, noting
from tests.faults.statements import Saboteur
from tests.faults.world import charges, question, write_policy

SESSIONS = 6
ERRORS = {
    "an error of SQLite": sqlite3.OperationalError("disk I/O error"),
    "no memory": MemoryError(),
    "Ctrl-C": KeyboardInterrupt(),
}


def is_answered(engine: Engine, number: int, error: BaseException) -> bool:
    """Ask a query that meets the error, or does not any more; what SQLite says has to become a refusal."""
    try:
        session = Session(engine, "ana")
        (statement,) = session.parse(question(number))
        session.execute(statement)
    except LedgerUnavailable as refusal:
        assert refusal.hint
        return False
    except (MemoryError, KeyboardInterrupt) as met:
        assert type(met) is type(error)
        return False
    return True


@pytest.mark.parametrize("after", [False, True], ids=["instead of it", "after it"])
@pytest.mark.parametrize("error", ["an error of SQLite", "Ctrl-C"])
def test_every_statement_fails_in_turn(
    make_engine: MakeEngine,
    clinic_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: str,
    after: bool,
) -> None:
    saboteur, notes = Saboteur(monkeypatch), Notes(tmp_path / "notes")
    monkeypatch.setattr(DuckDBBackend, "fetch", noting(DuckDBBackend.fetch, notes.add))
    policy, ledger = write_policy(tmp_path / "statements.toml", clinic_file, answers=1000), tmp_path / "ledger.sqlite"
    engine = make_engine(policy, ledger=ledger, users=("ana",))
    other = SqliteLedger(ledger)  # as of another gateway
    numbers = itertools.count()
    charged, read, failed = 0, 0, set()
    for _ in ("the first charge, which makes the budgets", "a later one"):
        for place, others_write in ((n // 2, n % 2 == 1) for n in itertools.count(2)):
            if others_write:  # then what this process knows of the ledger is not all
                other.set_role("ana", "analyst")
            saboteur.arm(place, ERRORS[error], after=after)
            answered = is_answered(engine, next(numbers), ERRORS[error])
            saboteur.disarm()
            with suppress(LedgerUnavailable):  # a transaction whose end failed is ended now
                engine.ledger.accounts()
            with suppress(InvalidParameter):  # where no read failed or stayed open
                engine.ledger.unfreeze(Holder(BudgetScope.USER, "ana"), "faults of the test")
            before = charged, read
            charged, read = len(engine.ledger.history()), len(notes.lines())
            assert before[1] <= read <= charged <= before[0] + 1
            assert read - before[1] <= charged - before[0]
            if saboteur.failed is not None:
                failed.add((saboteur.failed.split()[0], charged - before[0], read - before[1]))
            elif others_write:
                break
        assert answered
        # What was left half done would still not agree.
        assert len(charges(engine.ledger, engine.policy)) == charged
    other.close()
    # It failed where nothing was written, where it was charged and not read, and where the release was to be stored.
    assert {("BEGIN", 0, 0), ("COMMIT", int(after), 0), ("COMMIT", 1, 1), ("INSERT", 1, 1)} <= failed


@pytest.mark.parametrize("after", [False, True], ids=["instead of it", "after it"])
@pytest.mark.parametrize("error", ["an error of SQLite", "no memory"])
def test_a_statement_fails_while_many_ask(
    make_engine: MakeEngine,
    clinic_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: str,
    after: bool,
) -> None:
    """Where charges share a commit they share its failure; whoever is answered was charged all the same."""
    saboteur, notes = Saboteur(monkeypatch), Notes(tmp_path / "notes")
    monkeypatch.setattr(DuckDBBackend, "fetch", noting(DuckDBBackend.fetch, notes.add))
    engine = make_engine(write_policy(tmp_path / "statements.toml", clinic_file, answers=1000), users=("ana",))
    numbers = itertools.count()
    charged, read, answered = 0, 0, 0
    with ThreadPoolExecutor(SESSIONS) as pool:
        for place in range(1, 200, 9):
            saboteur.arm(place, ERRORS[error], after=after)
            asked = list(itertools.islice(numbers, SESSIONS))
            told = list(pool.map(lambda number: is_answered(engine, number, ERRORS[error]), asked))
            saboteur.disarm()
            with suppress(LedgerUnavailable):
                engine.ledger.accounts()
            with suppress(InvalidParameter):  # where no read failed or stayed open
                engine.ledger.unfreeze(Holder(BudgetScope.USER, "ana"), "faults of the test")
            before = charged, read
            queries = [record.sql for record in engine.ledger.history()]
            charged, read = len(queries), len(notes.lines())
            assert {question(number) for number, answer in zip(asked, told, strict=True) if answer} <= set(queries)
            assert sum(told) <= read - before[1] <= charged - before[0] <= SESSIONS
            answered += sum(told)
    assert charges(engine.ledger, engine.policy) == queries
    assert 0 < answered < next(numbers)
