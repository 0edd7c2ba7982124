"""pgbouncer between clients and the gateway, in transaction mode: one connection of its own serves all of them."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dpsql.ledger.postgres import PostgresLedger
from tests.clients.conftest import CODES, COUNTS, HINT, ROWS
from tests.pgbouncer import pgbouncer
from tests.wire.conftest import RunningServer


@pytest.fixture(scope="module")
def pooled(gateway: RunningServer) -> Iterator[str]:
    """The URL of user ana by way of a pool of one connection."""
    target = f"host=127.0.0.1 port={gateway.port} dbname=clinic"
    with pgbouncer("clinic", target, further="default_pool_size = 1") as port:
        yield f"postgresql://ana:secret@127.0.0.1:{port}/clinic"


def test_clients_take_turns_on_one_connection(pooled: str, counts: list[Any], codes: list[str]) -> None:
    with (
        psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as one,
        psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as two,
    ):
        for _ in range(3):
            assert one.execute(COUNTS).fetchall() == counts
            assert [code for (code,) in two.execute(CODES)] == codes


def test_a_transaction_keeps_the_connection(pooled: str) -> None:
    with psycopg.connect(pooled, prepare_threshold=None) as one:
        one.execute("SET LOCAL dpsql.epsilon = 0.2")
        assert one.execute("SHOW dpsql.epsilon").fetchone() == ("0.2",)
        with one.cursor("named") as cursor:
            cursor.itersize = 2
            cursor.execute(CODES)
            assert len(cursor.fetchall()) > 2
        one.rollback()
        assert one.execute("SHOW dpsql.epsilon").fetchone() != ("0.2",)


def test_an_error_leaves_the_connection_to_the_next(pooled: str, counts: list[Any]) -> None:
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as one:
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as error:
            one.execute(ROWS)
        assert error.value.diag.message_hint == HINT
        assert one.execute(COUNTS).fetchall() == counts
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as two:
        assert two.execute(COUNTS).fetchall() == counts


def test_named_statements_on_the_one_connection(pooled: str) -> None:
    """pgbouncer knows nothing of them before version 1.21, but with one connection they are all there."""
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=0) as one:
        for number in range(4):
            assert one.execute("SELECT %s::int + 1", [number]).fetchone() == (number + 1,)


def test_asyncpg_without_its_cache_of_statements(pooled: str, counts: list[Any]) -> None:
    async def ask() -> list[Any]:
        connection = await asyncpg.connect(pooled, statement_cache_size=0)
        try:
            return [tuple(row) for row in await connection.fetch(COUNTS)]
        finally:
            await connection.close()

    assert asyncio.run(ask()) == counts


def test_a_wrong_password_is_refused_by_the_pooler(pooled: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        psycopg.connect(pooled.replace("secret", "wrong"))


@pytest.mark.parametrize("further", ["pool_mode = session", "server_reset_query_always = 1"])
def test_the_reset_query_takes_back_what_a_client_set(gateway: RunningServer, further: str) -> None:
    """In transaction mode it is sent only where server_reset_query_always says so."""
    target = f"host=127.0.0.1 port={gateway.port} dbname=clinic"
    with pgbouncer("clinic", target, further=f"default_pool_size = 1\n{further}") as port:
        url = f"postgresql://ana:secret@127.0.0.1:{port}/clinic"
        for number in range(2):
            with psycopg.connect(url, autocommit=True, prepare_threshold=None) as one:
                assert one.execute("SHOW dpsql.epsilon").fetchone() != ("0.2",)
                one.execute("PREPARE again AS SELECT 1")  # a second one of this name would be refused
                one.execute("SET dpsql.epsilon = 0.2")
                assert one.execute("SELECT %s::int", [number]).fetchone() == (number,)


def test_a_ledger_behind_it_is_written_and_its_gateway_claims_no_lock(postgres_places: list[str]) -> None:
    """The lock would be that of the pooler's connection, which others use next; without it the time alone tells."""
    there = conninfo_to_dict(postgres_places[0])
    host = str(there["host"])
    target = f"host={host} dbname={there['dbname']}"
    owner = Path(host).owner() if host.startswith("/") else "nobody"
    with pgbouncer("ledger", target, auth="trust", user=owner) as port:
        url = f"postgresql://{there['user']}@127.0.0.1:{port}/ledger?sslmode=disable"
        with closing(PostgresLedger(url)) as pooled, closing(PostgresLedger(postgres_places[0])) as direct:
            pooled.add_account("ana", "analyst")
            assert direct.account("ana") is not None and direct.verify().ok
            assert (pooled._storage.writer.is_locked, direct._storage.writer.is_locked) == (False, True)
            assert not direct._storage.is_dead(pooled._storage.gateway())
