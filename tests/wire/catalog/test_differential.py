"""The catalog beside a real PostgreSQL that holds the same tables, keys and comments: names, types, rows, SQLSTATEs."""

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpsql.errors import Error
from dpsql.wire.oidtypes import of_oid
from dpsql.wire.pgtypes import TEXT
from tests.postgres import Server
from tests.wire.catalog.shops import Visitors, ddl
from tests.wire.conftest import RunningServer

QUERIES = [
    query.strip()
    for query in Path(__file__).with_name("queries.sql").read_text(encoding="utf-8").partition("\n")[2].split(";\n")
    if query.strip()
]
# OIDs of views and of everything made later differ from server to server.
_FIRST_OWN_OID = 12000


@pytest.fixture(scope="module")
def postgres(shop: Visitors, start_postgres: Callable[[], Server]) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    server = start_postgres()
    server.run("CREATE DATABASE shop TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with server.connect("shop") as connection:
            for statement in ddl(shop):
                connection.execute(statement)
            connection.execute("CREATE ROLE analyst")
            connection.execute("SET SESSION AUTHORIZATION analyst")
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
    finally:
        server.run("DROP DATABASE shop", "DROP ROLE analyst")


def test_the_queries_are_the_catalogs(shop: Visitors) -> None:
    for query in QUERIES:
        try:
            assert shop.describe(query) is not None, query
        except Error:
            continue


@pytest.mark.parametrize("query", QUERIES)
def test_postgresql_answers_alike(shop: Visitors, postgres: psycopg.Connection[tuple[Any, ...]], query: str) -> None:
    assert ours(shop, query) == theirs(postgres, query)


COMMANDS = [
    *(
        "SET TIME ZONE INTERVAL '+00:00' HOUR TO MINUTE",
        "SHOW TIME ZONE",
        "SET TIME ZONE INTERVAL '+05:30' HOUR TO MINUTE",
    ),
    *("SHOW timezone", "SELECT timestamptz '2024-01-01 12:00+00'"),
    *("SET DateStyle = 'SQL, DMY'", "SELECT timestamptz '2024-01-01 12:00+00'", "RESET datestyle", "SHOW datestyle"),
    *("SET TIME ZONE INTERVAL '-8:00' HOUR TO MINUTE", "SHOW TimeZone", "SET TIME ZONE -7", "SHOW TIME ZONE"),
    *("SET TIME ZONE INTERVAL '-3:30:30'", "SHOW TIME ZONE", "SET TimeZone = '<-08>+08'", "SHOW TIME ZONE"),
    *(
        "SET TIME ZONE INTERVAL '1 month'",
        "SET TIME ZONE INTERVAL '1 day'",
        "SET TIME ZONE LOCAL",
        "SET TIME ZONE 'UTC'",
    ),
    *("SHOW transaction_isolation", "SHOW DATESTYLE", "SHOW Search_Path", "SHOW intervalstyle"),
    *("SET synchronize_seqscans TO off", "SHOW synchronize_seqscans", "RESET synchronize_seqscans"),
    "PREPARE by_oid(pg_catalog.oid) AS SELECT relname FROM pg_catalog.pg_class WHERE oid = $1",
    *("EXECUTE by_oid(1259)", "EXECUTE by_oid('1259')", "EXECUTE by_oid(1200 + 59)"),
    "PREPARE by_name(name, pg_catalog.int4) AS SELECT relname, $2 + 1 FROM pg_class WHERE relname = $1",
    *(
        "EXECUTE by_name('pg_class', 1)",
        "DEALLOCATE ALL",
        "COPY (SELECT 1) TO STDIN",
        "COPY (SELECT 'a', NULL) TO STDIN WITH CSV",
    ),
    *(
        "LOCK TABLE pg_class IN ACCESS SHARE MODE",
        "BEGIN",
        "LOCK pg_class, pg_am in access share mode nowait",
        "COMMIT",
    ),
]


def test_commands_are_answered_alike(gateway: RunningServer, postgres: psycopg.Connection[tuple[Any, ...]]) -> None:
    """What drivers send beside queries; one session on each side."""
    with psycopg.connect(gateway.dsn, autocommit=True) as connection:
        for command in COMMANDS:
            assert _told(connection, command) == _told(postgres, command), command


def _told(connection: psycopg.Connection[tuple[Any, ...]], command: str) -> object:
    """The SQLSTATE; or the tag, the columns' names and the rows as texts; or what is copied."""
    try:
        if command.startswith("COPY"):
            with connection.cursor().copy(command.encode()) as copy:
                return b"".join(bytes(block) for block in copy)
        result = connection.execute(command.encode()).pgresult
    except psycopg.Error as error:
        return error.sqlstate
    assert result is not None
    rows = [[result.get_value(row, at) for at in range(result.nfields)] for row in range(result.ntuples)]
    return result.command_status, [result.fname(at) for at in range(result.nfields)], rows


Answer = str | tuple[list[tuple[str, int]], list[list[str | None]]]


def theirs(postgres: psycopg.Connection[tuple[Any, ...]], query: str) -> Answer:
    """The SQLSTATE, or columns and rows as texts."""
    try:
        result = postgres.execute(query).pgresult
    except psycopg.Error as error:
        return str(error.sqlstate)
    assert result is not None
    columns = [((result.fname(at) or b"").decode(), result.ftype(at)) for at in range(result.nfields)]
    raw = [[result.get_value(row, at) for at in range(result.nfields)] for row in range(result.ntuples)]
    return columns, [normalised([None if one is None else one.decode() for one in row], columns) for row in raw]


def ours(shop: Visitors, query: str) -> Answer:
    """The same of the catalog, by way of the wire's text format."""
    try:
        result = shop.run(query)
    except Error as error:
        return error.sqlstate
    assert result is not None and result.columns is not None
    columns = [(column.name, column.oid or 0) for column in result.columns]
    texts = [
        [
            None if one is None else of_oid(oid).write[TEXT](one).decode()
            for one, (_, oid) in zip(row, columns, strict=True)
        ]
        for row in result.rows
    ]
    return columns, [normalised(row, columns) for row in texts]


def normalised(row: Sequence[str | None], columns: Sequence[tuple[str, int]]) -> list[str | None]:
    """Without what is each server's own: OIDs of what was made, and the owner's name."""
    shown = []
    for text, (_, oid) in zip(row, columns, strict=True):
        if text is not None:
            if oid == 1700:
                text = str(Decimal(text).normalize())
            text = re.sub(r"\b\d{5,}\b", lambda m: "OID" if int(m[0]) >= _FIRST_OWN_OID else m[0], text)
            text = re.sub(r"\bpostgres\b", "dpsql", text)
        shown.append(text)
    return shown
