"""scope: what names mean inside a query: the entries of FROM, the queries of WITH, and those around."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dpsql.catalog.relations import Kind
from dpsql.catalog.syntax import Name, Star
from dpsql.errors import AmbiguousColumn, UndefinedColumn, UndefinedTable


@dataclass(frozen=True)
class Out:
    """A column of a query or of an entry of FROM: its name, its type, and how it is written outside."""

    name: str
    kind: Kind
    sql: str


@dataclass(frozen=True)
class Rendered:
    """A query in DuckDB's SQL with its columns; their `sql` is the name they have in it."""

    sql: str
    columns: tuple[Out, ...]


@dataclass(frozen=True)
class Binding:
    """An entry of FROM: what it may be called, its columns, and columns that * leaves out."""

    names: tuple[tuple[str, ...], ...]
    columns: tuple[Out, ...]
    hidden: tuple[Out, ...] = ()

    def called(self, parts: tuple[str, ...]) -> bool:
        """True if a qualifier means this entry."""
        return parts in self.names

    def having(self, name: str) -> list[Out]:
        """The columns of a name."""
        found = [column for column in self.columns if column.name == name]
        return found or [column for column in self.hidden if column.name == name]


@dataclass
class NameScope:
    """The names that a query may use.

    Attributes:
        outer: The scope of the query around.
        bindings: The entries of FROM.
        merged: Columns that USING or NATURAL made one.
        ctes: The queries of WITH.
        windows: The windows of WINDOW.
    """

    outer: "NameScope | None" = None
    bindings: list[Binding] = field(default_factory=list)
    merged: list[Out] = field(default_factory=list)
    ctes: dict[str, Rendered] = field(default_factory=dict)
    windows: Mapping[str, str] = field(default_factory=dict)

    def cte(self, name: str) -> Rendered | None:
        """The query of WITH of a name, here or outside."""
        scope: NameScope | None = self
        while scope is not None:
            if name in scope.ctes:
                return scope.ctes[name]
            scope = scope.outer
        return None

    def find(self, node: Name) -> Out:
        """The column that a name means.

        Raises:
            UndefinedColumn: There is none.
            UndefinedTable: Its qualifier means nothing.
            AmbiguousColumn: There are several.
        """
        scope: NameScope | None = self
        while scope is not None:
            found = scope._own(node)
            if len(found) > 1:
                raise AmbiguousColumn(f'column reference "{node.parts[-1]}" is ambiguous', position=node.at + 1)
            if found:
                return found[0]
            if len(node.parts) > 1 and scope._qualified(node.parts[:-1]):
                break
            scope = scope.outer
        raise self._missing(node)

    def _own(self, node: Name) -> list[Out]:
        *qualifier, name = node.parts
        if qualifier:
            return [column for binding in self._qualified(tuple(qualifier)) for column in binding.having(name)]
        merged = [column for column in self.merged if column.name == name]
        if merged:
            return merged
        shown = [column for binding in self.bindings for column in binding.columns if column.name == name]
        return shown or [column for binding in self.bindings for column in binding.having(name)][:1]

    def _qualified(self, qualifier: tuple[str, ...]) -> list[Binding]:
        return [binding for binding in self.bindings if binding.called(qualifier)]

    def _missing(self, node: Name) -> UndefinedColumn | UndefinedTable:
        shown = ".".join(node.parts)
        if len(node.parts) == 1:
            return UndefinedColumn(f'column "{shown}" does not exist', position=node.at + 1)
        scope: NameScope | None = self
        while scope is not None:
            if scope._qualified(node.parts[:-1]):
                return UndefinedColumn(f"column {shown} does not exist", position=node.at + 1)
            scope = scope.outer
        table = ".".join(node.parts[:-1])
        return UndefinedTable(f'missing FROM-clause entry for table "{table}"', position=node.at + 1)

    def star(self, node: Star) -> Sequence[Out]:
        """The columns that * stands for.

        Raises:
            UndefinedTable: Its qualifier means nothing.
        """
        if not node.qualifier:
            names = {column.name for column in self.merged}
            rest = [c for binding in self.bindings for c in binding.columns if c.name not in names]
            return [*self.merged, *rest]
        columns = self.entry(node.qualifier)
        if columns is None:
            table = ".".join(node.qualifier)
            raise UndefinedTable(f'missing FROM-clause entry for table "{table}"', position=node.at + 1)
        return columns

    def entry(self, qualifier: tuple[str, ...]) -> Sequence[Out] | None:
        """The columns of an entry of FROM, here or outside; None where there is none of the name."""
        scope: NameScope | None = self
        while scope is not None:
            found = scope._qualified(qualifier)
            if found:
                return found[0].columns
            scope = scope.outer
        return None
