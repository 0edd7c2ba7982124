"""Refused queries: the right SQLSTATE, the position of what is wrong, a hint; at no cost and in no time."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dpsql.errors import Error
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from tests.conftest import open_engine
from tests.fixtures.load import Case, load

CASES = load("rejected.sql")


@pytest.fixture(scope="module")
def engine(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine for all refusals: none of them leaves a trace in its ledger."""
    opened = open_engine(clinic_policy, tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    yield opened
    opened.close()
    opened.ledger.close()


def expectation(case: Case) -> Mapping[str, str]:
    """The parts of the mark `error`."""
    code, *others = case.marks["error"].split(" | ")
    return {"code": code} | dict(part.split(": ", 1) for part in others)


def refusal(session: Session, sql: str) -> Error:
    """The error that running the text ends in."""
    with pytest.raises(Error) as caught:
        for statement in session.parse(sql):
            session.execute(statement)
    return caught.value


def test_the_fixture_is_as_long_as_it_should_be() -> None:
    assert len(CASES) >= 400
    assert all(set(expectation(case)) <= {"code", "at", "says"} for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rejected(case: Case, engine: Engine, session: Session) -> None:
    expected = expectation(case)
    paid = len(engine.ledger.history("ana"))
    error = refusal(session, case.sql)
    assert (error.sqlstate, error.message) == (expected["code"], error.message)
    if "at" in expected:
        assert error.position is not None
        assert case.sql[error.position - 1 :].startswith(expected["at"])
    elif error.position is not None:
        assert 1 <= error.position <= len(case.sql) + 1
    assert expected.get("says", "") in f"{error.message}\n{error.detail}\n{error.hint}"
    assert len(engine.ledger.history("ana")) == paid
