"""A policy of a shop, its catalog without any database behind it, and DDL for a PostgreSQL that holds the same."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dpsql.backends import Cancellation
from dpsql.catalog.catalog import PolicyCatalogProvider, RoleCatalog
from dpsql.catalog.objects import PolicyObjects, Shown
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.gateway.catalog_provider import CatalogContext
from dpsql.gateway.query_run import Description, Result
from dpsql.gateway.settings import Settings
from dpsql.policy import Policy, load_policy
from dpsql.sqltypes import SqlType

SHOP = """
version = 1
[dataset]
name = "shop"
url = "duckdb:///shop.duckdb"
privacy_unit = "customer"
budget = { epsilon = 20, delta = 1e-6 }
[roles.analyst]
budget = { epsilon = 5, delta = 1e-6 }
query = { epsilon = 0.1, delta = 1e-9, max_epsilon = 1.0 }
[roles.clerk]
budget = { epsilon = 5, delta = 1e-6 }
query = { epsilon = 0.1, delta = 1e-9, max_epsilon = 1.0 }
tables = ["sales.orders", "hr.departments"]
[tables."sales.customers"]
unit_key = "id"
max_rows = 1
description = "One row per customer"
[tables."sales.customers".columns]
id = { type = "integer", nullable = false }
name = { type = "text", nullable = false }
email = { type = "varchar", description = "Contact e-mail" }
region = { type = "text", values = ["APAC", "EU", "US"] }
created_at = { type = "timestamptz", nullable = false }
birth = { type = "date", lower = 1900-01-01, upper = 2030-01-01 }
vip = { type = "boolean", nullable = false }
[tables."sales.orders"]
unit_key = "customer_id"
max_rows = 50
max_groups = 10
max_rows_per_group = 5
description = "Orders"
[tables."sales.orders".columns]
id = { type = "bigint", nullable = false }
customer_id = { type = "integer", nullable = false }
total = { type = "numeric", nullable = false, lower = 0, upper = 5000 }
status = { type = "text" }
placed = { type = "timestamp" }
tags = { type = "text[]" }
meta = { type = "jsonb" }
uid = { type = "uuid" }
[tables."sales.items"]
unit_via = { table = "sales.orders", on = { order_id = "id" } }
max_rows = 50
max_groups = 10
max_rows_per_group = 5
[tables."sales.items".columns]
price = { type = "numeric" }
[tables."hr.departments"]
public = true
[tables."hr.departments".columns]
id = { type = "smallint", nullable = false }
title = { type = "text", nullable = false }
[tables."hr.employees"]
public = true
[tables."hr.employees".columns]
id = { type = "integer", nullable = false }
dept_id = { type = "smallint" }
full_name = { type = "text", nullable = false }
salary = { type = "double", description = "Annual salary" }
hired = { type = "date" }
photo = { type = "bytea" }
shift_start = { type = "time" }
bonus = { type = "real" }
iv = { type = "interval" }
[tables."sales.order_totals"]
public = true
description = "Totals per region"
[tables."sales.order_totals".columns]
region = { type = "text" }
n = { type = "bigint" }
total = { type = "numeric" }
"""


def shop_policy(folder: Path) -> Policy:
    """The policy of the shop."""
    path = folder / "shop.toml"
    path.write_text(SHOP, encoding="utf-8")
    return load_policy(path)


class Visitors:
    """Asks a catalog as a session would, without a session."""

    def __init__(self, policy: Policy, role: str = "analyst", user: str = "analyst") -> None:
        found = policy.role(role)
        assert found is not None
        self.objects = PolicyObjects(policy, found, lambda table, column: SqlType.BIGINT)
        self._role = RoleCatalog(self.objects)
        self.catalog = PolicyCatalogProvider(self._role, ("shop",))
        self.settings = Settings(policy, found)
        self.snapshot = self._role.snapshot
        self._user = user

    def close(self) -> None:
        self._role.close()

    def _change(self, name: str, value: str, local: bool) -> str:
        self.settings.set(name, value)
        return self.settings.show(name)

    def context(self) -> CatalogContext:
        def settings() -> dict[str, str]:
            return {name: self.settings.show(name) for name in self.settings.names()}

        schemas = self.settings.schemas(self._user)
        return CatalogContext(self._user, "shop", schemas, settings, datetime.now(UTC), self._change)

    def describe(self, sql: str, types: Sequence[SqlType | None] = ()) -> Description | None:
        return self.catalog.describe(QueryStatement(sql), types, self.context())

    def run(self, sql: str, values: Sequence[object] = (), types: Sequence[SqlType | None] = ()) -> Result | None:
        return self.catalog.execute(QueryStatement(sql), values, types, self.context(), Cancellation())

    def rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        described = self.describe(sql)
        assert described is not None, f"not a catalog query: {sql}"
        result = self.run(sql, values, described.parameters)
        assert result is not None and result.columns == described.columns
        return list(result.rows)


def ddl(visitors: Visitors) -> Iterator[str]:
    """Statements that make a PostgreSQL hold what the catalog shows."""
    shown = visitors.objects.shown
    for schema in visitors.objects.schemas:
        if schema != "public":
            yield f'CREATE SCHEMA "{schema}"'
            yield f'GRANT USAGE ON SCHEMA "{schema}" TO PUBLIC'
    for one in shown:
        yield from _relation(visitors, one)
    for kind in "pf":  # a foreign key needs the key that it refers to
        for one in shown:
            yield from (_key(shown, one, key.name) for key in one.keys if key.kind == kind)


def _relation(visitors: Visitors, one: Shown) -> Iterator[str]:
    def kind(oid: int) -> str | None:
        return visitors.snapshot.format_type(oid, None, "pg_catalog")

    if one.relkind == "v":
        columns = ", ".join(f'NULL::{kind(column.kind.oid)} AS "{column.name}"' for column in one.columns)
        yield f'CREATE VIEW "{one.schema}"."{one.name}" AS SELECT {columns}'
    else:
        columns = ", ".join(
            f'"{column.name}" {kind(column.kind.oid)}{" NOT NULL" if column.not_null else ""}' for column in one.columns
        )
        yield f'CREATE TABLE "{one.schema}"."{one.name}" ({columns})'
    yield f'GRANT SELECT ON "{one.schema}"."{one.name}" TO PUBLIC'
    if one.comment is not None:
        yield f'COMMENT ON TABLE "{one.schema}"."{one.name}" IS $c${one.comment}$c$'
    for column in one.columns:
        if column.comment is not None:
            yield f'COMMENT ON COLUMN "{one.schema}"."{one.name}"."{column.name}" IS $c${column.comment}$c$'


def _key(shown: Sequence[Shown], one: Shown, name: str) -> str:
    key = next(key for key in one.keys if key.name == name)
    here = ", ".join(f'"{one.columns[number - 1].name}"' for number in key.columns)
    begin = f'ALTER TABLE "{one.schema}"."{one.name}" ADD CONSTRAINT "{key.name}"'
    if key.kind == "p":
        return f"{begin} PRIMARY KEY ({here})"
    parent = next(other for other in shown if other.path == key.refers)
    there = ", ".join(f'"{parent.columns[number - 1].name}"' for number in key.there)
    return f'{begin} FOREIGN KEY ({here}) REFERENCES "{parent.schema}"."{parent.name}" ({there})'
