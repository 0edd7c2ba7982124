"""A replay of what clients sent to a real PostgreSQL 15: every browsing statement answers with its columns and types.

DPSQL_CLIENT_RECORDINGS names a folder of JSON lines, one statement each, recorded with a server that held the shop's
tables and more. Without it, a few statements of our own in the same form are replayed.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpsql.catalog.catalog import catalog_query
from dpsql.errors import Error, InvalidSyntax
from dpsql.wire.oidtypes import of_declared
from dpsql.wire.pgtypes import BINARY, TEXT
from tests.wire.catalog.shops import Visitors

_QUERY = re.compile(r"\s*(--[^\n]*\n\s*)*\(*(select|with|values)\b", re.I)
# Statements about what the shop's policy has not: a function, and a type named where an OID belongs.
_ABSENT = ("'sales.add1'", "c.relnamespace='public'")
_OWN: list[dict[str, Any]] = [
    {
        "client": "own",
        "sql": "SELECT oid, relname, relkind FROM pg_catalog.pg_class WHERE relname = 'pg_class'",
        "params": [],
        "result_columns": [
            {"name": "oid", "type_oid": 26},
            {"name": "relname", "type_oid": 19},
            {"name": "relkind", "type_oid": 18},
        ],
        "n_rows": 1,
        "result_rows": [["1259", "pg_class", "r"]],
    },
    {
        "client": "own",
        "sql": "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = $1::regclass AND attnum = 1",
        "params": ["pg_am"],
        "param_oids_inferred": [2205],
        "result_columns": [{"name": "format_type", "type_oid": 25}],
        "n_rows": 1,
        "result_rows": [["oid"]],
    },
    {
        "client": "own",
        "sql": "SELECT typname, typarray FROM pg_type WHERE oid = ANY($1)",
        "params": ["{16,23}"],
        "param_oids_inferred": [1028],
        "result_columns": [{"name": "typname", "type_oid": 19}, {"name": "typarray", "type_oid": 26}],
        "n_rows": 2,
        "result_rows": [["bool", "1000"], ["int4", "1007"]],
    },
]


def recordings() -> Iterator[dict[str, Any]]:
    folder = os.environ.get("DPSQL_CLIENT_RECORDINGS")
    if folder is None:
        yield from _OWN
        return
    for path in sorted(Path(folder).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


class Names:
    """The recorded server's OIDs, as far as recorded rows tell whose they were, and ours for the same names."""

    def __init__(self, shop: Visitors) -> None:
        self._ours: dict[int, int] = {}
        known = {shown.path for shown in shop.objects.shown}
        for recorded in recordings():
            columns = [column["name"] for column in recorded.get("result_columns") or []]
            if columns == ["oid", "nspname", "relname"]:
                for oid, schema, name in recorded["result_rows"]:
                    if f"{schema}.{name}" in known:
                        self._ours[int(oid)] = shop.objects.table_oid(f"{schema}.{name}")

    def number(self, oid: int) -> int:
        return self._ours.get(oid, oid)

    def text(self, text: str) -> str:
        return re.sub(r"\b\d{5}\b", lambda match: str(self.number(int(match[0]))), text)


def browsing(shop: Visitors) -> Iterator[dict[str, Any]]:
    """The recorded statements that are the catalog's and that a server could answer."""
    seen = set()
    for recorded in recordings():
        sql = recorded.get("sql_run") or recorded["sql"]
        key = (sql, json.dumps(recorded.get("params")))
        done = key in seen or not _QUERY.match(sql) or recorded.get("error") or "result_columns" not in recorded
        seen.add(key)
        if not done and not any(absent in sql for absent in _ABSENT) and is_catalog_query(sql):
            yield {**recorded, "sql": sql}


def is_catalog_query(sql: str) -> bool:
    """False for a query of tables, and for a template of a client's source, which is no statement yet."""
    try:
        return catalog_query(sql, frozenset()) is not None
    except InvalidSyntax:
        assert "<EXPR>" in sql or sql.rstrip().endswith("WHERE"), sql
        return False


def values(recorded: dict[str, Any], names: Names) -> list[object]:
    """The values of a statement's placeholders as the wire reads them."""
    oids = recorded.get("param_oids_inferred") or recorded.get("param_oids_declared") or []
    found: list[object] = []
    for place, value in enumerate(recorded.get("params") or []):
        kind = of_declared(oids[place] if place < len(oids) else 25) or of_declared(25)
        assert kind is not None
        if value is None:
            found.append(None)
            continue
        binary = isinstance(value, dict)
        raw = bytes.fromhex(value["hex"]) if binary else names.text(str(value)).encode()
        read = kind.read[BINARY if binary else TEXT](raw)
        found.append(names.number(read) if isinstance(read, int) else read)
    return found


def test_every_browsing_statement_answers(shop: Visitors, capsys: pytest.CaptureFixture[str]) -> None:
    names, wrong, rows_alike, total = Names(shop), list[str](), 0, 0
    for recorded in browsing(shop):
        total += 1
        sql = names.text(recorded["sql"])
        shown = re.sub(r"\s+", " ", sql)[:200]
        try:
            described = shop.describe(sql)
            assert described is not None
            result = shop.run(sql, values(recorded, names), described.parameters)
        except Error as error:
            wrong.append(f"{recorded['client']}: {error.sqlstate} {error}: {shown}")
            continue
        assert result is not None and result.columns is not None
        told = [(column["name"], column["type_oid"]) for column in recorded["result_columns"] or []]
        ours = [(column.name, column.oid) for column in result.columns]
        if told and told != ours:
            wrong.append(f"{recorded['client']}: columns {told} became {ours}: {shown}")
        inferred = recorded.get("param_oids_inferred")
        if inferred and list(described.parameter_oids) != inferred:
            wrong.append(f"{recorded['client']}: parameters {inferred} became {described.parameter_oids}: {shown}")
        rows_alike += recorded["n_rows"] == len(result.rows)
    with capsys.disabled():
        print(f"\n{total} browsing statements: {len(wrong)} wrong, {rows_alike} with as many rows as recorded")
    assert total and wrong == []
