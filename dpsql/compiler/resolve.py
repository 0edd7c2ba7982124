"""resolve: names that analysts write, to the fields they mean.

Rule 1: what a role may not see does not exist: the message is the same as for a name nobody has.
Rule 2: unquoted names are lower case, as in PostgreSQL.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.compiler.ir import Column, Field
from dpsql.compiler.position import position
from dpsql.errors import AmbiguousColumn, UndefinedColumn, UndefinedTable


@dataclass(frozen=True)
class Source:
    """One entry of FROM.

    Attributes:
        alias: The name its columns may be qualified with.
        columns: Visible names with their fields, in order; a name may repeat.
        hidden: The unit key where the policy does not list it: it resolves, but `*` leaves it out.
    """

    alias: str
    columns: tuple[tuple[str, Field], ...]
    hidden: tuple[tuple[str, Field], ...] = ()


@dataclass(frozen=True)
class Scope:
    """The sources that the names of one SELECT may refer to."""

    sources: tuple[Source, ...]
    offset: int = 0

    def column(self, node: exp.Column) -> Column:
        """Resolve a column reference.

        Raises:
            UndefinedColumn: No source has it.
            UndefinedTable: The qualifier names no source.
            AmbiguousColumn: More than one column of the sources has the name.
        """
        name = identifier(node.this)
        sources = self._qualified(node)
        found = [field for source in sources for column, field in source.columns if column == name]
        found = found or [field for source in sources for column, field in source.hidden if column == name]
        if len(found) == 1:
            return Column(found[0])
        if found:
            raise AmbiguousColumn(
                f'column reference "{name}" is ambiguous',
                hint="Qualify it, as in " + " or ".join(f"{source.alias}.{name}" for source in sources[:2]),
                position=position(node, self.offset),
            )
        known = [column for source in sources for column, _ in source.columns]
        raise UndefinedColumn(
            f'column "{name}" does not exist', hint=_hint(name, known), position=position(node, self.offset)
        )

    def star(self, node: exp.Expr) -> tuple[tuple[str, Field], ...]:
        """The columns that `*` or `alias.*` stands for."""
        sources = self._qualified(node) if isinstance(node, exp.Column) else self.sources
        return tuple(column for source in sources for column in source.columns)

    def _qualified(self, node: exp.Column) -> Sequence[Source]:
        table = node.args.get("table")
        if table is None:
            return self.sources
        alias = identifier(table)
        sources = [source for source in self.sources if source.alias == alias]
        if not sources:
            raise UndefinedTable(
                f'missing FROM-clause entry for table "{alias}"',
                hint=_hint(alias, [source.alias for source in self.sources]),
                position=position(node, self.offset),
            )
        return sources


def identifier(node: exp.Expr) -> str:
    """The name an identifier means: exact where quoted, else in lower case; of 63 characters at the most."""
    name = str(node.this)[:63]
    return name if node.args.get("quoted") else name.lower()


def undefined_table(name: str, known: Iterable[str], at: int | None) -> UndefinedTable:
    """The error for a relation that does not exist for this user."""
    return UndefinedTable(f'relation "{name}" does not exist', hint=_hint(name, sorted(known)), position=at)


def _hint(name: str, known: Sequence[str]) -> str | None:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f'Perhaps you mean "{close[0]}".'
    return "There are: " + ", ".join(dict.fromkeys(known)) if known else None
