"""The catalog in process: a connection of dpsql.connect browses as one over the wire does, and for nothing."""

from pathlib import Path

from dpsql.dbapi import Connection
from dpsql.gateway.engine import Engine
from tests.conftest import MakeEngine
from tests.wire.catalog.conftest import SilentBackend

COLUMNS = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s ORDER BY 1"


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
