"""The catalog in process: a connection of dpsql.connect browses as one over the wire does, and for nothing."""

from pathlib import Path

import duckdb

from dpsql.dbapi import Connection
from dpsql.errors import UndefinedTable
from dpsql.gateway.engine import Engine
from tests.conftest import MakeEngine
from tests.wire.catalog.conftest import SilentBackend

COLUMNS = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s ORDER BY 1"

SHOP = """
version = 1
[dataset]
name = "shop"
url = "duckdb:///shop.duckdb"
privacy_unit = "customer"
budget = { epsilon = 1, delta = 1e-6 }
[roles.clerk]
budget = { epsilon = 1, delta = 1e-6 }
query = { epsilon = 0.1, delta = 1e-9 }
[tables.goods]
public = true
columns.a = { type = "integer" }
[tables."sales.goods"]
public = true
columns.b = { type = "integer" }
[tables."sales.shops"]
public = true
columns.c = { type = "integer" }
[tables.customers]
unit_key = "id"
max_rows = 1
"""


def silent(make_engine: MakeEngine, policy: Path) -> Engine:
    return make_engine(policy, backend=SilentBackend(policy))


def test_columns_are_told(make_engine: MakeEngine, clinic_policy: Path) -> None:
    cursor = Connection(silent(make_engine, clinic_policy), "ana").cursor()
    assert cursor.execute(COLUMNS, ["icd10"]).fetchall() == [("code", "text"), ("title", "text")]
    assert cursor.release is None
    assert cursor.execute("SELECT current_database(), current_schema()").fetchall() == [("clinic", "public")]
    assert cursor.execute("SELECT relkind FROM pg_class WHERE oid = 'patients'::regclass").fetchall() == [("r",)]


def test_browsing_is_not_charged(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = silent(make_engine, clinic_policy)
    assert Connection(engine, "ana").cursor().execute("SELECT * FROM pg_catalog.pg_class").fetchall()
    assert engine.ledger.history() == []


def test_names_are_looked_for_along_search_path(make_engine: MakeEngine, tmp_path: Path) -> None:
    """By queries and by the catalog alike; the first schema that has the name wins."""
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as database:
        for table in (
            "goods (a INTEGER)",
            "customers (id INTEGER)",
            "sales.goods (b INTEGER)",
            "sales.shops (c INTEGER)",
        ):
            database.execute(f"CREATE SCHEMA IF NOT EXISTS sales; CREATE TABLE {table}")
    (tmp_path / "shop.toml").write_text(SHOP, encoding="utf-8")
    cursor = Connection(make_engine(tmp_path / "shop.toml"), "ana").cursor()

    def found(path: str | None, name: str) -> object:
        cursor.execute("RESET search_path" if path is None else f"SET search_path = {path}")
        try:
            columns = cursor.execute(f"SELECT * FROM {name}").description
        except UndefinedTable:
            return None
        shown = cursor.execute("SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass", [name]).fetchall()
        assert columns is not None and (columns[0][0],) in shown
        return columns[0][0]

    assert [found(None, name) for name in ("goods", "sales.goods", "shops")] == ["a", "b", None]
    assert [found("sales, public", name) for name in ("goods", "shops", "public.goods")] == ["b", "c", "a"]
    assert [found("public, sales", name) for name in ("goods", "shops")] == ["a", "c"]
    assert [found("nowhere, MAIN", name) for name in ("goods", "shops", "sales.shops")] == ["a", None, "c"]
    assert [found("'\"$user\"'", name) for name in ("goods", "sales.goods")] == [None, "b"]
    cursor.execute("SET search_path = dpsql")
    assert len(cursor.execute("SELECT * FROM budget").fetchall()) == 1
