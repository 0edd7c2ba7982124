"""The ledger fails at every statement of a query in turn: nothing is read without a durable charge, and nothing sticks."""

import itertools
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from dpsql.backends import DuckDBBackend
from dpsql.errors import LedgerUnavailable
from dpsql.engine import Engine
from dpsql.session import Session
from tests.conftest import MakeEngine
from tests.faults.reads import Notes, noting
from tests.faults.statements import Saboteur
from tests.faults.world import charges, question, write_policy


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
        assert isinstance(error, sqlite3.Error)
        return False
    except (MemoryError, KeyboardInterrupt) as met:
        assert met is error
        return False
    return True


@pytest.mark.parametrize("after", [False, True], ids=["instead of it", "after it"])
@pytest.mark.parametrize("error", ERRORS)
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
    engine = make_engine(write_policy(tmp_path / "statements.toml", clinic_file, answers=1000), users=("ana",))
    numbers = itertools.count()
    charged, read, failed = 0, 0, set()
    for _ in ("the first charge, which makes the budgets", "a later one"):
        for place in itertools.count(1):
            saboteur.arm(place, ERRORS[error], after=after)
            answered = is_answered(engine, next(numbers), ERRORS[error])
            saboteur.disarm()
            with suppress(LedgerUnavailable):  # a transaction whose end failed is ended now
                engine.ledger.accounts()
            before = charged, read
            charged, read = len(charges(engine.ledger, engine.policy)), len(notes.lines())
            assert before[1] <= read <= charged <= before[0] + 1
            assert read - before[1] <= charged - before[0]
            if saboteur.failed is None:
                break
            failed.add((saboteur.failed.split()[0], charged - before[0], read - before[1]))
        assert answered
    # It failed where nothing was written, where it was charged and not read, and where the release was to be stored.
    assert {("BEGIN", 0, 0), ("COMMIT", int(after), 0), ("COMMIT", 1, 1), ("INSERT", 1, 1)} <= failed
