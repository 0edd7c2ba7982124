"""The outline of a database: tables, columns, keys, foreign keys and comments; a policy is drafted from it.

Rule: only catalogs are read. Labels of enums are left out, because they often come from data.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class ColumnOutline:
    """A column: its type, the engine's name of that, and the comment on it."""

    name: str
    type: SqlType
    type_name: str
    comment: str | None


@dataclass(frozen=True)
class ForeignKey:
    """Columns of a table, and those of another that they refer to.

    Attributes:
        table: Schema and name of the other.
        on: Pairs of a column here and a column there.
    """

    table: tuple[str, str]
    on: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TableOutline:
    """A table: its columns, its keys (the primary one first), its foreign keys and its comment.

    Attributes:
        hive: Of a folder of files the columns that are in folders' names.
    """

    schema: str
    name: str
    comment: str | None
    columns: tuple[ColumnOutline, ...]
    keys: tuple[tuple[str, ...], ...]
    foreign_keys: tuple[ForeignKey, ...]
    hive: tuple[str, ...] = ()

    @property
    def path(self) -> tuple[str, str]:
        """Schema and name."""
        return self.schema, self.name


@dataclass(frozen=True)
class Outline:
    """A database.

    Attributes:
        name: Its name.
        url: Where it is, without a password.
        schema: The schema of tables that name none.
        tables: Its tables and views.
    """

    name: str
    url: str
    schema: str
    tables: tuple[TableOutline, ...]

    def table(self, path: tuple[str, str]) -> TableOutline:
        """The table of that schema and name."""
        return next(table for table in self.tables if table.path == path)


def default_schema(tables: Iterable[TableOutline], usual: str) -> str:
    """The usual schema, or else the one that has most tables."""
    counts = Counter(table.schema for table in tables)
    return usual if usual in counts or not counts else counts.most_common(1)[0][0]
