"""asyncpg: everything prepared and binary, portals as cursors, COPY, types looked up in the catalog."""

import asyncio
import io
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from tests.clients.conftest import CODES, COUNTS, HINT, ROW, ROWS, VALUES
from tests.wire.conftest import RunningServer


def connected(gateway: RunningServer, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """What a coroutine gives that is passed a connection."""

    async def run() -> Any:
        connection = await asyncpg.connect(gateway.dsn)
        try:
            return await ask(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def test_queries(gateway: RunningServer, counts: list[Any], elders: int) -> None:
    async def ask(connection: Any) -> None:
        assert [tuple(row) for row in await connection.fetch(VALUES)] == [ROW]
        assert [tuple(row) for row in await connection.fetch(COUNTS)] == counts
        counted = "SELECT COUNT(*) FROM patients WHERE age > $1 AND sex = $2"
        assert await connection.fetchval(counted, 60, "F") == elders
        assert await connection.fetchval("SELECT COUNT(*) FROM doctors WHERE doctor_id = ANY($1)", [1, 2, None]) == 2
        prepared = await connection.prepare("SELECT $1::integer + 1")
        assert [await prepared.fetchval(number) for number in range(10)] == list(range(1, 11))

    connected(gateway, ask)


def test_cursors(gateway: RunningServer, codes: list[str]) -> None:
    async def ask(connection: Any) -> None:
        async with connection.transaction():
            assert [row[0] async for row in connection.cursor(CODES, prefetch=7)] == codes
            cursor = await connection.cursor(CODES)
            await cursor.forward(2)
            assert [row[0] for row in await cursor.fetch(3)] == codes[2:5]

    connected(gateway, ask)


def test_copy(gateway: RunningServer, codes: list[str]) -> None:
    async def ask(connection: Any) -> bytes:
        target = io.BytesIO()
        assert await connection.copy_from_query(CODES, output=target, format="csv") == f"COPY {len(codes)}"
        return target.getvalue()

    assert connected(gateway, ask).decode().splitlines() == codes


def test_errors_and_savepoints(gateway: RunningServer) -> None:
    async def ask(connection: Any) -> None:
        async with connection.transaction(isolation="serializable", readonly=True):
            with pytest.raises(asyncpg.InsufficientPrivilegeError) as refused:
                async with connection.transaction():
                    await connection.fetch(ROWS)
            assert refused.value.hint == HINT
            assert await connection.fetchval("SELECT 1") == 1
        await connection.reset()

    connected(gateway, ask)


def test_pools_reset_their_connections(gateway: RunningServer, counts: list[Any]) -> None:
    async def run() -> None:
        async with asyncpg.create_pool(gateway.dsn, min_size=1, max_size=2) as pool:
            for _ in range(3):
                assert [tuple(row) for row in await pool.fetch(COUNTS)] == counts

    asyncio.run(run())
