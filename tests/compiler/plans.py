"""Compile a query under a policy file's text, with changes: no data is read but the schema."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dpsql.backends import open_backend
from dpsql.compiler.ir.schema import EngineColumn, EngineSchema, EngineTable
from dpsql.compiler.plan.compile import Described, compile_query, describe_query
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.scope.lowering import Constants
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.gateway.settings import Settings
from dpsql.policy import Policy
from dpsql.policy.engines import DUCKDB, PARQUET, POSTGRES, S3, SPARK, EngineKind
from dpsql.sqltypes import SqlType

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Planner:
    """Compiles under one policy."""

    def __init__(self, policy: Policy, engine: EngineKind = DUCKDB) -> None:
        self.policy = policy
        backend = open_backend(policy)
        schema = _DECLARED[engine](backend.schema)
        self.catalog = Catalog(policy, schema, policy.roles[0])
        backend.close()

    def settings(self, **changes: str) -> QuerySettings:
        """The role's settings, with changes."""
        settings = Settings(self.policy, self.catalog.role)
        for name, value in changes.items():
            settings.set(f"dpsql.{name}", value)
        return settings.query(NOW, "ana")

    def compile(self, sql: str, **changes: str) -> CompiledQuery:
        """Plan one query."""
        return compile_query(QueryStatement(sql), self.catalog, self.settings(**changes), self.constants)

    def bind(self, sql: str, values: Sequence[object], types: Sequence[SqlType | None]) -> CompiledQuery:
        """Plan one query with parameters of declared types."""
        return compile_query(QueryStatement(sql), self.catalog, self.settings(), self.constants, values, types)

    def describe(self, sql: str) -> Described:
        """Describe one query whose parameters are not known yet."""
        return describe_query(QueryStatement(sql), self.catalog, self.constants)

    @property
    def constants(self) -> Constants:
        """What now() and CURRENT_USER mean."""
        return Constants(NOW, "ana", self.policy.dataset.name, "PostgreSQL 15.0 (dpsql)")


def _in_postgres(schema: EngineSchema) -> EngineSchema:
    """The same tables as PostgreSQL would declare them."""
    names = {"VARCHAR": "text", "DOUBLE": "double precision"}

    def column(found: EngineColumn) -> EngineColumn:
        name = names.get(found.type_name, found.type_name.lower().replace("decimal", "numeric"))
        return replace(found, type_name=name)

    tables = {
        name: replace(table, columns={each: column(found) for each, found in table.columns.items()})
        for name, table in schema.tables.items()
    }
    return EngineSchema(POSTGRES, tables)


def _in_spark(schema: EngineSchema) -> EngineSchema:
    """The same tables as Spark would declare them: without keys."""
    names = {"VARCHAR": "string", "INTEGER": "int", "TIMESTAMP": "timestamp_ntz"}
    return _without_keys(SPARK, schema, lambda name: names.get(name, name.lower()))


def _without_keys(engine: EngineKind, schema: EngineSchema, named: Callable[[str], str]) -> EngineSchema:
    def column(found: EngineColumn) -> EngineColumn:
        return replace(found, type_name=named(found.type_name), not_null=False)

    tables = {
        name: EngineTable(table.path, {each: column(found) for each, found in table.columns.items()}, frozenset())
        for name, table in schema.tables.items()
    }
    return EngineSchema(engine, tables)


_DECLARED: Mapping[EngineKind, Callable[[EngineSchema], EngineSchema]] = {
    DUCKDB: lambda schema: schema,
    PARQUET: lambda schema: _without_keys(PARQUET, schema, str),
    S3: lambda schema: _without_keys(S3, schema, str),
    POSTGRES: _in_postgres,
    SPARK: _in_spark,
}

FIVE_IN_EACH = {"max_groups = 10 ": "max_rows_per_group = 5\nmax_groups = 10 "}
"""The clinic's policy with at most five visits of a patient in a group: ten groups are full then."""


@contextmanager
def changed_policy(source: Path, name: str, changes: Mapping[str, str]) -> Iterator[Path]:
    """A copy of a policy beside it, in which each text on the left is the one on the right."""
    text = source.read_text(encoding="utf-8")
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    path = source.with_name(f"{name}.toml")
    path.write_text(text, encoding="utf-8")
    yield path
    path.unlink()
