"""What an engine's own schema enforces: column types, NOT NULL and unique keys, never a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpsql.compiler.ir.nodes import Grid
from dpsql.policy.engines import EngineKind
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class EngineColumn:
    """A column as the engine declares it.

    Attributes:
        type_name: The engine's own spelling of the type, such as "DECIMAL(10,2)".
        sql_type: The PostgreSQL type its values have.
        not_null: True where the engine enforces NOT NULL.
        exact: True where two values are equal to the engine just if their canonical values are: its type is one of the
            dialect's `exact_types`, and its texts are compared byte by byte. False wherever that is not known.
    """

    type_name: str
    sql_type: SqlType
    not_null: bool
    exact: bool = False


@dataclass(frozen=True)
class EngineTable:
    """A table as the engine declares it.

    Attributes:
        path: Schema and table name, as the engine quotes them.
        columns: Columns by name.
        unique_keys: Column sets the engine enforces as PRIMARY KEY or UNIQUE.
        is_stored: True where every read in one statement finds the same rows: the engine itself keeps them. False of
            views and foreign tables, and wherever that is not known.
    """

    path: tuple[str, ...]
    columns: Mapping[str, EngineColumn]
    unique_keys: frozenset[frozenset[str]]
    is_stored: bool = False

    def is_unique(self, names: frozenset[str]) -> bool:
        """True where the engine enforces that no two rows agree on the canonical values of non-null `names`."""
        exact = frozenset(name for name in names if self.columns[name].exact)
        return any(key <= exact for key in self.unique_keys) and all(self.columns[name].not_null for name in names)


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
class PreparedTable:
    """A prepared table of a protected table's rows, whose constraints bound the rows of a unit.

    Attributes:
        path: Its name in engine SQL.
        rows_per_unit: The most rows of one unit.
        grids: The columns that it stores on their grid.
    """

    path: tuple[str, ...]
    rows_per_unit: int
    grids: tuple[StoredGrid, ...]


@dataclass(frozen=True)
class InputTable:
    """What was made before an engine query, as the query reads it.

    Attributes:
        index: Its place among the inputs.
        first: How many columns come with the inputs before it.
        width: How many come with it.
    """

    index: int
    first: int
    width: int


@dataclass(frozen=True)
class PreparedSource:
    """A prepared table, as an engine query reads it; `path` is what engine SQL calls it."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class EngineSchema:
    """The tables of a policy as the engine declares them, by their policy names.

    Attributes:
        engine: The kind of engine.
        tables: The tables.
        copies: For prepared tables, the copy, or the reason why it may not be read, such as other source data.
    """

    engine: EngineKind
    tables: Mapping[str, EngineTable]
    copies: Mapping[str, PreparedTable | str] = field(default_factory=dict)
