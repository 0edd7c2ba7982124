"""A great many broken queries: each is answered or refused with a typed error, and what is accepted runs."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsql.errors import BackendFailure, Error, GuaranteeMismatch, InternalError
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from tests.conftest import open_engine
from tests.examples import LONG
from tests.fixtures.load import load

SEED = 20261120
ROUNDS = 50_000 if LONG else 1_500
TOKEN = re.compile(r"\w+|'(?:[^']|'')*'|\"[^\"]*\"|<>|<=|>=|::|\|\||\S")
GENERIC = "the engine cannot run this query"
"""The engine's own refusal of SQL that should have been refused with a reason."""


def texts() -> list[list[str]]:
    queries = [case.sql for name in ("accepted.sql", "rejected.sql") for case in load(name)]
    return [TOKEN.findall(query) for query in queries if query.startswith(("SELECT", "WITH", "VALUES"))]


def kind_of(word: str) -> str:
    """Words of one kind may take one another's place, so that most broken queries still parse."""
    if word[0] in "'\"" or word[0].isdigit():
        return word[0] if word[0] == '"' else "constant"
    return "keyword" if word.isupper() else "name" if word[0].isalpha() else "sign"


def broken(random_: random.Random, queries: list[list[str]], words: list[str]) -> str:
    """A query of the fixtures with one to three words left out, put in or replaced."""
    query = list(random_.choice(queries))
    for _ in range(random_.randint(1, 3)):
        at, chance = random_.randint(1, len(query) - 1) if len(query) > 1 else 0, random_.random()
        word = random_.choice(words)
        if chance < 0.1 and len(query) > 2:
            del query[at]
        elif chance < 0.8:
            while kind_of(word) != kind_of(query[at]) and random_.random() < 0.98:
                word = random_.choice(words)
            query[at] = word
        else:
            query.insert(at, word)
    return " ".join(query)


@pytest.fixture
def analyst(wide_engine: Engine) -> Iterator[Session]:
    session = Session(wide_engine, "ana")
    session.configure("statement_timeout", "5s")
    yield session


def test_broken_queries_end_in_typed_errors(analyst: Session) -> None:
    random_ = random.Random(SEED)
    queries = texts()
    words = [word for query in queries for word in query]
    ended: dict[str, int] = {}
    for _ in range(ROUNDS):
        sql = broken(random_, queries, words)
        try:
            for statement in analyst.parse(sql):
                analyst.execute(statement)
            code = "00000"
        except (BackendFailure, GuaranteeMismatch, InternalError) as error:
            raise AssertionError(sql) from error
        except Error as error:
            assert not error.message.startswith(GENERIC), sql
            assert error.position is None or 1 <= error.position <= len(sql) + 1, sql
            code = error.sqlstate
        except Exception as error:
            raise AssertionError(sql) from error
        ended[code] = ended.get(code, 0) + 1
    # The test has power: queries get through to every stage.
    assert min(ended[code] for code in ("00000", "42601", "42703", "42804", "0A000")) > 5


def test_a_ledger_that_is_left_alone_stays_empty(clinic_policy: Path, tmp_path: Path) -> None:
    """Refusals of broken queries cost nothing."""
    engine = open_engine(clinic_policy, tmp_path / "ledger.sqlite")
    session = Session(engine, "ana")
    random_ = random.Random(SEED + 1)
    queries = [query for query in texts() if "patients" in query]
    for _ in range(200):
        sql = broken(random_, queries, ["nothing", "(", "'x'"])
        before = len(engine.ledger.history("ana"))
        try:
            for statement in session.parse(sql):
                session.describe(statement)
        except Error:
            pass
        assert len(engine.ledger.history("ana")) == before == 0
    engine.close()
    engine.ledger.close()
