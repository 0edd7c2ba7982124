"""The whole engine over PostgreSQL: it charges before it reads, gives again what was given, and outlives its server."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.backends import Cancellation, PostgresBackend
from dpsql.engine import Engine
from dpsql.errors import BackendFailure, DatabaseUnavailable, Error, QueryCanceled
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from dpsql.session import Session
from tests.conftest import MakeEngine, open_engine
from tests.postgres import OwnServer, Server, served_clinic, wait_for
from tests.test_engine import BY_SEX, COUNT, cap, compiled, run, spent

USERS = tuple(f"user{index}" for index in range(32))


@pytest.fixture
def engine(make_engine: MakeEngine, postgres_clinic: Path) -> Engine:
    return make_engine(postgres_clinic)


def test_a_query_is_answered_charged_and_given_again(engine: Engine) -> None:
    answer = run(engine, BY_SEX, epsilon="0.5")
    assert [row[0] for row in answer.rows.rows] == ["F", "M", "X", None]
    assert Fraction(1, 8) * Fraction(999, 1000) < spent(engine).rho <= Fraction(1, 8) + Fraction(1, 10**20)
    paid = spent(engine), cap(engine)
    again = run(engine, BY_SEX, epsilon="0.5")
    assert again.reused
    assert again.rows == answer.rows
    assert (spent(engine), cap(engine)) == paid


def test_the_answers_are_those_of_duckdb(
    no_noise: None, make_engine: MakeEngine, engine: Engine, clinic_policy: Path
) -> None:
    other = make_engine(clinic_policy)
    for sql in (
        COUNT,
        BY_SEX,
        "SELECT sex, SUM(weight), AVG(age) FROM patients GROUP BY sex",
        "SELECT city, COUNT(*) FROM patients GROUP BY city ORDER BY 2 DESC, 1",
        "SELECT COUNT(*) FROM patients WHERE age > (SELECT AVG(age) FROM patients)",
        "SELECT COUNT(DISTINCT patient_id) FROM visits JOIN doctors USING (doctor_id) WHERE specialty = 'surgery'",
        "SELECT COUNT(*) FROM doctors",
        "SELECT code, title FROM icd10 ORDER BY code",
    ):
        assert run(engine, sql).rows == run(other, sql).rows, sql


def test_what_a_cancelled_query_was_charged_stands(
    engine: Engine, postgres_server: Server, postgres_clinic: Path
) -> None:
    query = compiled(engine, COUNT)
    cancellation = Cancellation()
    name = load_policy(postgres_clinic).dataset.url.partition("dbname=")[2].partition("&")[0]
    engine._backend.check(query.releases, (), Cancellation())
    with postgres_server.connect(name) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE patients IN ACCESS EXCLUSIVE MODE")
        running = pool.submit(engine.execute, "ana", query, cancellation)
        wait_for(lambda: spent(engine).rho > 0)
        cancellation.cancel()
        with pytest.raises(QueryCanceled):
            running.result(20)
    charged = spent(engine).rho
    # Who asks again pays again: nothing was stored.
    assert not engine.execute("ana", query, Cancellation()).reused
    assert spent(engine).rho == 2 * charged


def test_a_server_that_is_away_costs_nothing(
    each_postgres: OwnServer, make_engine: MakeEngine, clinic_file: Path, tmp_path: Path
) -> None:
    with served_clinic(each_postgres, clinic_file, tmp_path) as policy:
        engine = make_engine(policy)
        query = compiled(engine, COUNT)
        each_postgres.crash()
        try:
            with pytest.raises(DatabaseUnavailable):
                engine.execute("ana", query, Cancellation())
            assert spent(engine) == cap(engine) == Spent.zero()
        finally:
            each_postgres.start()
        assert not engine.execute("ana", query, Cancellation()).reused
        engine.close()


@pytest.fixture
def crowded(each_postgres: OwnServer, clinic_file: Path, tmp_path: Path) -> Iterator[tuple[OwnServer, str, Engine]]:
    """A server of its own, its database, and an engine over it with 32 users."""
    with served_clinic(each_postgres, clinic_file, tmp_path) as policy:
        engine = open_engine(policy, tmp_path / "crowded.sqlite", USERS)
        name = engine.policy.dataset.url.partition("dbname=")[2].partition("&")[0]
        yield each_postgres, name, engine
        engine.close()
        engine.ledger.close()


def question(user: str, number: int = 0) -> str:
    """A question of the user's own: of those who ask the same, one at a time is answered."""
    return f"SELECT COUNT(*) FROM visits WHERE cost > {USERS.index(user)} AND duration_min > {number}"


def test_a_server_that_crashes_under_32_sessions(crowded: tuple[OwnServer, str, Engine]) -> None:
    server, name, engine = crowded
    asked = dict.fromkeys(USERS, 0)
    failures: list[Error] = []
    recovered = threading.Event()

    def ask(user: str) -> None:
        """Ask until the server is back and has answered three times more."""
        session = Session(engine, user)
        session.configure("dpsql.reuse", "off")
        answered = number = 0
        while answered < 3:
            (statement,) = session.parse(question(user, number))
            try:
                session.execute(statement)
                asked[user] += 1
                answered += recovered.is_set()
            except BackendFailure as error:  # charged, and no refund; this question is not put again
                asked[user] += 1
                number += 1
                failures.append(error)
                recovered.wait(60)
            except DatabaseUnavailable as error:  # not charged
                failures.append(error)
                recovered.wait(60)

    price = engine.explain(USERS[0], compiled(engine, question(USERS[0]), USERS[0])).spends
    with closing(server.connect(name)) as holder, ThreadPoolExecutor(len(USERS)) as pool:
        sessions = [pool.submit(ask, user) for user in USERS]
        wait_for(lambda: all(asked.values()))
        # Whoever reads now waits here, and is hit by the crash while it reads.
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE visits IN ACCESS EXCLUSIVE MODE")
        wait_for(lambda: server.run("SELECT count(*) > 5 FROM pg_locks WHERE NOT granted", database=name) == [(True,)])
        server.crash()
        wait_for(lambda: len(failures) >= len(USERS))
        server.start()
        recovered.set()
        for session in sessions:
            session.result(120)
    assert {type(failure) for failure in failures} == {BackendFailure, DatabaseUnavailable}
    assert sum(isinstance(failure, BackendFailure) for failure in failures) > 5
    for user in USERS:
        assert spent(engine, user).rho == asked[user] * price.rho, user
    assert cap(engine).rho == sum(asked.values()) * price.rho
    assert engine.ledger.verify().ok


def test_the_backend_is_that_of_the_url(engine: Engine) -> None:
    assert isinstance(engine._backend, PostgresBackend)
