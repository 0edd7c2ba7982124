"""What an engine's own schema enforces: column types, NOT NULL and unique keys, never a value."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from dpsql.compiler.ir import Grid
from dpsql.sqltypes import SqlType


class Engine(enum.Enum):
    """The engines that may hold the data."""

    DUCKDB = "duckdb"
    POSTGRES = "postgresql"


@dataclass(frozen=True)
class EngineColumn:
    """A column as the engine declares it.

    Attributes:
        type_name: The engine's own spelling of the type, such as "DECIMAL(10,2)".
        sql_type: The PostgreSQL type its values have.
        not_null: True where the engine enforces NOT NULL.
    """

    type_name: str
    sql_type: SqlType
    not_null: bool


@dataclass(frozen=True)
class EngineTable:
    """A table as the engine declares it.

    Attributes:
        path: Schema and table name, as the engine quotes them.
        columns: Columns by name.
        unique_keys: Column sets the engine enforces as PRIMARY KEY or UNIQUE.
    """

    path: tuple[str, ...]
    columns: Mapping[str, EngineColumn]
    unique_keys: frozenset[frozenset[str]]

    def is_unique(self, names: frozenset[str]) -> bool:
        """True where the engine enforces that no two rows agree on non-null `names`."""
        return any(key <= names for key in self.unique_keys) and all(self.columns[name].not_null for name in names)


@dataclass(frozen=True)
class StoredGrid:
    """A column of a bounded copy: the values of one of the table's columns on their grid, moved into its limits.

    Attributes:
        name: The copy's column, which a constraint of the engine keeps within the limits.
        column: The table's column.
        grid: The grid.
    """

    name: str
    column: str
    grid: Grid


@dataclass(frozen=True)
class BoundedCopy:
    """A prepared copy of a protected table's rows, of which the engine's own constraints leave a unit so many.

    Attributes:
        path: What engine SQL calls it.
        max_rows: Rows of one unit that there can be.
        grids: The columns that are on their grid in it.
    """

    path: tuple[str, ...]
    max_rows: int
    grids: tuple[StoredGrid, ...]


@dataclass(frozen=True)
class EngineSchema:
    """The tables of a policy as the engine declares them, by their policy names.

    Attributes:
        engine: Which engine it is.
        tables: The tables.
        copies: Of tables that were prepared the copy, or why it may not be read: it belongs to other data, say.
    """

    engine: Engine
    tables: Mapping[str, EngineTable]
    copies: Mapping[str, BoundedCopy | str] = field(default_factory=dict)
