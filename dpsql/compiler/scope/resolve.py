"""resolve: the names of a query, and the fields that they mean.

Rule 1: a name that a role may not see is reported as a name that does not exist.
Rule 2: unquoted names are lower case, as in PostgreSQL.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from dpsql.compiler.ir.nodes import Column, Field, Protected, Status
from dpsql.compiler.sql.parse import position
from dpsql.compiler.sql.postgres_syntax import print_sql
from dpsql.compiler.sql.rewriting import replaced, with_expression, with_texts
from dpsql.errors import AmbiguousColumn, UndefinedColumn, UndefinedTable

_PLAIN = re.compile("[a-z_][a-z0-9_]*")
_OF_TEXTS = (exp.EQ, exp.NEQ, exp.In, exp.Like, exp.ILike)
"""Conditions in which a name that does not exist is likely a text."""


@dataclass(frozen=True)
class FromItem:
    """One entry of FROM.

    Attributes:
        alias: The name that may qualify its columns.
        columns: Visible names with their fields, in order; a name may repeat.
        hidden: Keys that lead to the unit: names find them, but `*` omits them.
        unlisted: The fields, of `columns` and `hidden`, that the policy does not list as columns.
        merged: Names that USING or NATURAL merged with another source's: they need the alias as a qualifier.
        schemas: The schema names that may qualify a table under its own name, as in public.patients.age.
    """

    alias: str
    columns: tuple[tuple[str, Field], ...]
    hidden: tuple[tuple[str, Field], ...] = ()
    unlisted: frozenset[Field] = frozenset()
    merged: frozenset[str] = frozenset()
    schemas: frozenset[str] = frozenset()

    def is_called(self, node: exp.Column) -> bool:
        """True if a column's qualifier, with a schema or without, is this entry's name."""
        schema = node.args.get("db")
        return self.alias == identifier(node.args["table"]) and (schema is None or identifier(schema) in self.schemas)

    def named(self, name: str, *, qualified: bool) -> tuple[Field, ...]:
        """The fields of a name: columns, or else hidden keys."""
        if name in self.merged and not qualified:
            return ()
        found = tuple(field for column, field in self.columns if column == name)
        return found or tuple(field for column, field in self.hidden if column == name)


@dataclass(frozen=True)
class Scope:
    """The sources that the names of one SELECT may refer to.

    Attributes:
        sources: The entries of FROM.
        offset: Where the statement starts in the text that was sent.
        outer: For a subquery, the scope around it.
        protected: What FROM gives, where it is protected: the rows that a subquery may be about.
    """

    sources: tuple[FromItem, ...]
    offset: int = 0
    outer: "Scope | None" = None
    protected: Protected | None = None

    def around(self) -> Iterator["Scope"]:
        """The scopes outside this one, the nearest first."""
        scope = self.outer
        while scope is not None:
            yield scope
            scope = scope.outer

    @cached_property
    def unlisted(self) -> frozenset[Field]:
        """The keys here and outside that the policy does not list."""
        scopes = (self, *self.around())
        return frozenset(field for scope in scopes for source in scope.sources for field in source.unlisted)

    def _owner(self, node: exp.Column) -> "Scope":
        """The nearest scope that has the name; this one where none has."""
        qualifier, name = node.args.get("table"), identifier(node.this)
        for scope in (self, *self.around()):
            if qualifier is not None:
                if any(source.is_called(node) for source in scope.sources):
                    return scope
            elif any(source.named(name, qualified=False) for source in scope.sources):
                return scope
        return self

    def column(self, node: exp.Column) -> Column:
        """Resolve a column reference.

        Raises:
            UndefinedColumn: No source has it.
            UndefinedTable: The qualifier names no source.
            AmbiguousColumn: More than one column of the sources has the name.
        """
        owner = self._owner(node)
        if owner is not self:
            return owner.column(node)
        name = identifier(node.this)
        sources = self._qualified(node)
        qualified = node.args.get("table") is not None
        having = [source for source in sources if source.named(name, qualified=qualified)]
        # A hidden key gives way to a column of that name.
        having = [source for source in having if any(column == name for column, _ in source.columns)] or having
        found = [field for source in having for field in source.named(name, qualified=qualified)]
        found = one_unit(found, self.protected)
        if len(found) == 1:
            return Column(found[0])
        if found:
            raise AmbiguousColumn(
                f'column reference "{name}" is ambiguous',
                hint="Qualify it: " + " or ".join(dict.fromkeys(f"{source.alias}.{name}" for source in having)) + ".",
                position=position(node, self.offset),
                queries=replaced(node, *(f"{quoted(source.alias)}.{quoted(name)}" for source in having)),
            )
        known = [column for source in sources for column, _ in source.columns]
        hint, queries = _hint(name, known, "Columns"), with_expression(node)
        if queries:
            hint = "Names of the SELECT list are known in GROUP BY and ORDER BY only. Repeat the expression."
        elif close := close_names(name, known):
            queries = replaced(node.this, *map(quoted, close), everywhere=True)
        elif not qualified and isinstance(node.parent, _OF_TEXTS) and node.arg_key != "this":
            text = print_sql(exp.Literal.string(node.name))
            hint = " ".join(part for part in (hint, f"String constants have single quotes: {text}.") if part)
            queries = with_texts(node, known)
        raise UndefinedColumn(
            f'column "{name}" does not exist', hint=hint, position=position(node, self.offset), queries=queries
        )

    def star(self, node: exp.Expr) -> tuple[tuple[str, Field], ...]:
        """Return the columns of `*` or `alias.*`."""
        return self._of_star(node, lambda source: source.columns)

    def omitted_by_star(self, node: exp.Expr) -> tuple[tuple[str, Field], ...]:
        """Return the keys that `*` or `alias.*` omits."""
        return self._of_star(node, lambda source: source.hidden)

    def _of_star(
        self, node: exp.Expr, named: Callable[[FromItem], tuple[tuple[str, Field], ...]]
    ) -> tuple[tuple[str, Field], ...]:
        if isinstance(node, exp.Column):
            return tuple(pair for source in self._qualified(node) for pair in named(source))
        return tuple((name, field) for each in self.sources for name, field in named(each) if name not in each.merged)

    def whole_row(self, node: exp.Expr) -> FromItem | None:
        """The entry of FROM that `alias` or `alias.*` names as a whole row; None for other expressions."""
        if not isinstance(node, exp.Column):
            return None
        table = node.args.get("table")
        if isinstance(node.this, exp.Star):
            return self._qualified(node)[0] if table is not None else None
        name = identifier(node.this)
        if table is not None or any(source.named(name, qualified=False) for source in self.sources):
            return None
        return next((source for source in self.sources if source.alias == name), None)

    def _qualified(self, node: exp.Column) -> Sequence[FromItem]:
        table = node.args.get("table")
        if table is None:
            return self.sources
        alias = identifier(table)
        sources = [source for source in self.sources if source.is_called(node)]
        if not sources:
            raise UndefinedTable(
                f'missing FROM-clause entry for table "{alias}"',
                hint=_hint(alias, [source.alias for source in self.sources], "Tables"),
                position=position(node, self.offset),
                queries=replaced(node, *(f"{quoted(source.alias)}.{print_sql(node.this)}" for source in self.sources)),
            )
        return sources


def one_unit(fields: list[Field], status: Status | None) -> list[Field]:
    """The fields of a name; the first of them where each is the unit of the row, which has one."""
    is_one = isinstance(status, Protected) and all(status.is_unit(Column(each)) for each in fields)
    return fields[:1] if is_one else fields


def identifier(node: exp.Expr) -> str:
    """The name an identifier means: exact where quoted, else in lower case; of 63 characters at the most."""
    name = str(node.this)[:63]
    return name if node.args.get("quoted") else name.lower()


def undefined_table(name: str, known: Iterable[str], at: int | None) -> UndefinedTable:
    """The error for a relation that does not exist for this user."""
    return UndefinedTable(
        f'relation "{name}" does not exist or is not available to you',
        hint=_hint(name, sorted(known), "Relations"),
        position=at,
    )


def close_names(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the known names that differ in upper and lower case only, else the closest one."""
    names = list(dict.fromkeys(known))
    same = [each for each in names if each.lower() == name.lower() and each != name]
    return same or difflib.get_close_matches(name, names, n=1, cutoff=cutoff)


def quoted(name: str) -> str:
    """Return a name in SQL, quoted if necessary."""
    parts = name.split(".") if name.startswith("dpsql.") else [name]
    return ".".join(each if _PLAIN.fullmatch(each) else '"' + each.replace('"', '""') + '"' for each in parts)


def _hint(name: str, known: Sequence[str], what: str) -> str | None:
    close = close_names(name, known)
    if close and quoted(close[0]) != close[0] and close[0].lower() == name.lower():
        return f"Names without quotes are folded to lower case. Quote it: {quoted(close[0])}."
    if close:
        return f'Perhaps you mean "{close[0]}".'
    return f"{what}: {', '.join(dict.fromkeys(known))}." if known else None
