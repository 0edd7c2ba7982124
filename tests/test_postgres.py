"""The whole engine over PostgreSQL: it charges before it reads, gives again what was given, and outlives its server."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.backends import Cancellation
from dpsql.backends.postgres import PostgresBackend
from dpsql.errors import BackendFailure, DatabaseUnavailable, Error, InvalidParameter, QueryCanceled
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from tests.conftest import MakeEngine, open_engine
from tests.postgres import OwnServer, Server, served_clinic, url_of
from tests.test_engine import BY_SEX, COUNT, cap, compiled, run, spent
from tests.waiting import HANG_SECONDS, wait_for

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


KINDS = """
    CREATE TYPE mood AS ENUM ('sad', 'glad');
    CREATE DOMAIN cents AS numeric(9, 2) CHECK (VALUE >= 0);
    CREATE TABLE visits (id int, person int, day date, mood mood, paid cents, tags text[], extra jsonb)
        PARTITION BY RANGE (day);
    CREATE TABLE visits_old PARTITION OF visits FOR VALUES FROM (MINVALUE) TO ('2025-01-01');
    CREATE TABLE visits_new PARTITION OF visits DEFAULT;
    INSERT INTO visits SELECT i, i % 10, DATE '2024-12-01' + i, (ARRAY['sad', 'glad'])[i % 2 + 1]::mood, i,
        ARRAY['a'], '{}' FROM generate_series(1, 60) AS i;
    CREATE SCHEMA "Other World";
    CREATE VIEW "Other World"."The View" AS SELECT person AS "Who ""else", mood, paid FROM visits;
    CREATE MATERIALIZED VIEW stored AS SELECT person, mood, paid FROM visits;
"""
KINDS_POLICY = """
version = 1
[dataset]
name = "kinds"
url = "{url}"
privacy_unit = "person"
budget = {{ epsilon = 1000, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 1000, delta = 1e-3 }}
query = {{ epsilon = 1, delta = 1e-9, max_epsilon = 10 }}
[tables.visits]
unit_key = "person"
max_rows = 100
max_groups = 100
max_rows_per_group = 100
[tables.visits.columns]
day = {{ type = "date", lower = 2024-01-01, upper = 2026-12-31 }}
mood = {{ type = "text", values = ["sad", "glad", "mad"] }}
paid = {{ type = "decimal", lower = 0, upper = 100, step = 0.01 }}
tags = {{ type = "text[]" }}
extra = {{ type = "json" }}
[tables.'Other World.The View']
unit_key = 'Who "else'
max_rows = 100
max_groups = 100
max_rows_per_group = 100
columns = {{ mood = {{ type = "text" }}, paid = {{ type = "decimal", lower = 0, upper = 100, step = 0.01 }} }}
[tables.stored]
unit_key = "person"
max_rows = 100
max_groups = 100
max_rows_per_group = 100
columns = {{ mood = {{ type = "text" }}, paid = {{ type = "decimal", lower = 0, upper = 100, step = 0.01 }} }}
"""


def test_partitions_views_enums_and_domains(
    no_noise: None, make_engine: MakeEngine, postgres_server: Server, tmp_path: Path
) -> None:
    with postgres_server.database(KINDS) as name:
        policy = tmp_path / "kinds.toml"
        policy.write_text(KINDS_POLICY.format(url=url_of(postgres_server.url, dbname=name)))
        engine = make_engine(policy)
        for table in ("visits", '"Other World"."The View"', "stored"):
            found = run(engine, f"SELECT mood, COUNT(*), SUM(paid) FROM {table} GROUP BY mood HAVING COUNT(*) > 0")
            assert {row[0]: tuple(map(int, row[1:])) for row in found.rows.rows} == {
                "sad": (30, 930),
                "glad": (30, 900),
            }
        in_year = run(engine, "SELECT COUNT(*) FROM visits WHERE day >= '2025-01-01' AND tags IS NOT NULL")
        assert in_year.rows.rows == ((30,),)
        engine.close()


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
            running.result(HANG_SECONDS)
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
            with pytest.raises(DatabaseUnavailable, match="cannot be reached"):
                engine.probe()
            assert spent(engine) == cap(engine) == Spent.zero()
        finally:
            each_postgres.start()
        engine.probe()
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
                assert recovered.wait(HANG_SECONDS)
                with suppress(InvalidParameter):  # nobody was reading for this user
                    engine.ledger.unfreeze(Holder(BudgetScope.USER, user), "the server crashed")
            except DatabaseUnavailable as error:  # not charged
                failures.append(error)
                assert recovered.wait(HANG_SECONDS)

    price = engine.explain(USERS[0], compiled(engine, question(USERS[0]), USERS[0]), Cancellation()).spends
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
            session.result(HANG_SECONDS)
    assert {type(failure) for failure in failures} == {BackendFailure, DatabaseUnavailable}
    assert sum(isinstance(failure, BackendFailure) for failure in failures) > 5
    for user in USERS:
        assert spent(engine, user).rho == asked[user] * price.rho, user
    assert cap(engine).rho == sum(asked.values()) * price.rho
    assert engine.ledger.verify().ok


def test_the_backend_is_that_of_the_url(engine: Engine) -> None:
    assert isinstance(engine._backend, PostgresBackend)
