"""catalog: the relations one user may name, and what is known of each before any data is read."""

from dataclasses import dataclass

from dpsql.compiler.ir.schema import EngineSchema
from dpsql.policy import Policy, Role, Table
from dpsql.policy.profile import Profile
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class SystemTable:
    """A relation of schema dpsql: the gateway's own rows, made from policy and ledger for one user."""

    name: str
    columns: tuple[tuple[str, SqlType], ...]


SYSTEM_TABLES = {
    table.name: table
    for table in (
        SystemTable(
            "budget",
            (
                ("scope", SqlType.TEXT),
                ("accountant", SqlType.TEXT),
                ("epsilon_limit", SqlType.DOUBLE),
                ("epsilon_spent", SqlType.DOUBLE),
                ("epsilon_remaining", SqlType.DOUBLE),
                ("delta_limit", SqlType.DOUBLE),
                ("delta_remaining", SqlType.DOUBLE),
                ("queries", SqlType.BIGINT),
                ("queries_that_fit", SqlType.BIGINT),
                ("window_start", SqlType.TIMESTAMPTZ),
                ("window_end", SqlType.TIMESTAMPTZ),
                ("last_query_fits", SqlType.BIGINT),
                ("note", SqlType.TEXT),
            ),
        ),
        SystemTable(
            "columns",
            (
                ("table_name", SqlType.TEXT),
                ("column_name", SqlType.TEXT),
                ("data_type", SqlType.TEXT),
                ("status", SqlType.TEXT),
                ("lower", SqlType.TEXT),
                ("upper", SqlType.TEXT),
                ("domain", SqlType.TEXT),
                ("description", SqlType.TEXT),
            ),
        ),
        SystemTable(
            "releases",
            (
                ("release", SqlType.BIGINT),
                ("created", SqlType.TIMESTAMPTZ),
                ("query", SqlType.TEXT),
                ("epsilon", SqlType.DOUBLE),
                ("rho", SqlType.DOUBLE),
                ("delta", SqlType.DOUBLE),
                ("reused", SqlType.BIGINT),
                ("price", SqlType.TEXT),
                ("kept", SqlType.BOOLEAN),
            ),
        ),
    )
}


@dataclass(frozen=True)
class Catalog:
    """A policy as one role sees it, with the facts that the engine's schema enforces.

    Attributes:
        policy: The policy.
        schema: The facts.
        role: The role.
        profile: What the data owner has had released of rows per unit, by which bounds may be chosen; None without.
    """

    policy: Policy
    schema: EngineSchema
    role: Role
    profile: Profile | None = None

    def table(self, name: str) -> Table | None:
        """The table of that policy name, if the role may see it."""
        table = self.policy.table(name)
        return table if table is not None and name in self.role.tables else None

    def names(self) -> tuple[str, ...]:
        """What may stand in FROM."""
        return tuple(sorted(self.role.tables)) + tuple(f"dpsql.{name}" for name in SYSTEM_TABLES)

    @property
    def unit_key(self) -> str:
        """The name of a column that is the unit's key, for hints."""
        tables = (table for table in self.policy.tables if table.name in self.role.tables)
        return next((table.unit_key for table in tables if table.unit_key is not None), "unit_key")

    def is_not_null(self, table: Table, column: str) -> bool:
        """True where the engine enforces NOT NULL."""
        return self.schema.tables[table.name].columns[column].not_null
