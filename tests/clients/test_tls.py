"""Under TLS drivers bind the channel (SCRAM-SHA-256-PLUS) if they can; without it they are told that they need it."""

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pg8000.dbapi
import psycopg
import psycopg2
import pytest

from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from tests.clients.machine import psqls
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import CERTIFICATE, RunningServer

HINT = "Connect with sslmode=require."


@pytest.fixture(scope="module")
def guarded(clinic: Engine) -> Iterator[RunningServer]:
    """A gateway that requires TLS."""
    server = RunningServer(tls=True, require_tls=True, open_session=lambda user, _database: Session(clinic, user))
    yield server
    server.close()


def context() -> ssl.SSLContext:
    """Trust the tests' own certificate, whatever host it names."""
    trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
    trusted.check_hostname = False
    return trusted


def test_libpq_binds_the_channel(guarded: RunningServer) -> None:
    dsn = f"{guarded.dsn}?sslmode=verify-ca&sslrootcert={CERTIFICATE}&channel_binding=require"
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    older = psycopg2.connect(dsn)
    with older.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    older.close()


def test_pg8000_binds_the_channel(guarded: RunningServer) -> None:
    connection = pg8000.dbapi.connect("ana", "127.0.0.1", "clinic", guarded.port, "secret", ssl_context=context())
    cursor = connection.cursor()
    cursor.execute("SELECT 1")
    assert cursor.fetchone() == [1]
    connection.close()


def test_asyncpg_comes_by_tls(guarded: RunningServer) -> None:
    async def ask() -> object:
        connection = await asyncpg.connect(guarded.dsn, ssl=context())
        try:
            return await connection.fetchval("SELECT 1")
        finally:
            await connection.close()

    assert asyncio.run(ask()) == 1


@pytest.mark.parametrize("program", psqls())
def test_psql_without_tls_is_told_what_to_do(guarded: RunningServer, program: str) -> None:
    command = [program, "-XAtc", "SELECT 1", f"{guarded.dsn}?sslmode=disable"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 2
    assert "FATAL:  this gateway requires TLS" in done.stderr and HINT in done.stderr


def test_drivers_without_tls_are_told_too(guarded: RunningServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="requires TLS"):
        psycopg.connect(f"{guarded.dsn}?sslmode=disable")
    with pytest.raises(pg8000.dbapi.DatabaseError) as refused:
        pg8000.dbapi.connect("ana", "127.0.0.1", "clinic", guarded.port, "secret", ssl_context=False)
    assert refused.value.args[0]["H"] == HINT
    with pytest.raises(asyncpg.PostgresError) as also:
        asyncio.run(asyncpg.connect(guarded.dsn, ssl=False))
    assert also.value.hint == HINT


def test_a_wrong_certificate_is_not_taken(guarded: RunningServer, tmp_path: Path) -> None:
    with pytest.raises(psycopg.OperationalError, match="certificate"):
        psycopg.connect(f"{guarded.dsn}?sslmode=verify-ca&sslrootcert={tmp_path / 'none.crt'}")
