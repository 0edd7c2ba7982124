"""Checks of a SQLite ledger's file: damaged pages, and tables that differ from those that dpsql creates."""

import sqlite3
from contextlib import closing
from functools import lru_cache

from dpsql.ledger.schema import TABLES
from dpsql.ledger.store import Store

_OBJECTS = "SELECT type, name, sql FROM sqlite_master"


def flaws(store: Store) -> list[str]:
    """Return the faults of a file and of its schema; constraints of an altered schema prove nothing."""
    return [*damage(store), *altered_schema(store)]


def damage(connection: Store) -> list[str]:
    """Return SQLite's findings about pages, indexes and constraints, one sentence each."""
    found = [row[0] for row in connection.execute("PRAGMA integrity_check(10)")]
    return [] if found == ["ok"] else [f"the file is damaged: {sentence}" for sentence in found]


def altered_schema(connection: Store) -> list[str]:
    """Return the tables, indexes and triggers that are not as dpsql makes them."""
    found = set(connection.execute(_OBJECTS)) ^ _expected_schema()
    return [f"the {kind} {name} was altered, added or removed" for kind, name in sorted({row[:2] for row in found})]


def missing_tables(connection: Store) -> list[str]:
    """Return the tables that are not there, or not as dpsql makes them."""
    lacking = _expected_schema() - set(connection.execute(_OBJECTS))
    return [f"the table {name} is missing or altered" for kind, name, _ in sorted(lacking) if kind == "table"]


@lru_cache(maxsize=1)
def _expected_schema() -> frozenset[tuple[str, str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(TABLES)
        return frozenset(fresh.execute(_OBJECTS))
