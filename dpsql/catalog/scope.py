"""scope: resolves names in a query: the entries of FROM, the queries of WITH, and the outer queries."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from dpsql.catalog.kinds import Kind
from dpsql.catalog.reading import name_of, parts_of, place
from dpsql.errors import AmbiguousColumn, UndefinedColumn, UndefinedTable


@dataclass(frozen=True)
class Out:
    """A column of a query or of an entry of FROM: its name, its type, and how it is written outside."""

    name: str
    kind: Kind
    sql: str


@dataclass(frozen=True)
class Rendered:
    """A query in DuckDB's SQL with its columns; the `sql` of each is its name there."""

    sql: str
    columns: tuple[Out, ...]


@dataclass(frozen=True)
class Binding:
    """An entry of FROM: its names, its columns, and the columns that * omits."""

    names: tuple[tuple[str, ...], ...]
    columns: tuple[Out, ...]
    hidden: tuple[Out, ...] = ()

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

    def _outward(self) -> Iterator["NameScope"]:
        """This scope and those around, from the inside."""
        scope: NameScope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def cte(self, name: str) -> Rendered | None:
        """The query of WITH of a name, here or outside."""
        return next((scope.ctes[name] for scope in self._outward() if name in scope.ctes), None)

    def find(self, node: exp.Column) -> Out:
        """The column that a name means.

        Raises:
            UndefinedColumn: There is none.
            UndefinedTable: Its qualifier means nothing.
            AmbiguousColumn: There are several.
        """
        *before, name = parts_of(node)
        qualifier, shown = tuple(before), ".".join((*before, name))
        for scope in self._outward():
            known = scope._qualified(qualifier) if qualifier else []
            found = [column for binding in known for column in binding.having(name)]
            found = found if qualifier else scope._plain(name)
            if len(found) > 1:
                raise AmbiguousColumn(f'column reference "{name}" is ambiguous', position=place(node))
            if found:
                return found[0]
            if known:
                raise UndefinedColumn(f"column {shown} does not exist", position=place(node))
        if qualifier:
            raise _no_entry(qualifier, node)
        raise UndefinedColumn(f'column "{shown}" does not exist', position=place(node))

    def _plain(self, name: str) -> list[Out]:
        merged = [column for column in self.merged if column.name == name]
        shown = merged or [column for one in self.bindings for column in one.columns if column.name == name]
        return shown or [column for one in self.bindings for column in one.having(name)][:1]

    def _qualified(self, qualifier: tuple[str, ...]) -> list[Binding]:
        return [binding for binding in self.bindings if qualifier in binding.names]

    def star(self, node: exp.Expr) -> Sequence[Out]:
        """Return the columns of *.

        Raises:
            UndefinedTable: There is no entry of its qualifier.
        """
        if not isinstance(node, exp.Column):
            names = {column.name for column in self.merged}
            rest = [c for binding in self.bindings for c in binding.columns if c.name not in names]
            return [*self.merged, *rest]
        qualifier = tuple(map(name_of, node.parts[:-1]))
        columns = self.entry(qualifier)
        if columns is None:
            raise _no_entry(qualifier, node)
        return columns

    def entry(self, qualifier: tuple[str, ...]) -> Sequence[Out] | None:
        """Return the columns of an entry of FROM, here or in an outer query; None if there is none."""
        found = (binding for scope in self._outward() for binding in scope._qualified(qualifier))
        return next((binding.columns for binding in found), None)


def _no_entry(qualifier: Sequence[str], node: exp.Expr) -> UndefinedTable:
    return UndefinedTable(f'missing FROM-clause entry for table "{".".join(qualifier)}"', position=place(node))
