"""advice: a query that works, for the hint of a refusal.

Rule: the query of a hint was compiled for the same user and with the same settings.
"""

from collections.abc import Callable, Iterator
from itertools import chain, islice

from sqlglot import exp

from dpsql.compiler.scope.resolve import identifier, quoted
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.parse import position
from dpsql.compiler.sql.postgres_syntax import print_sql
from dpsql.compiler.sql.rewriting import counted, inner_joins, is_small, reduced, replaced
from dpsql.errors import Error, InvalidText

_MAX_TRIED = 10
"""Changes of the refused query that are compiled for one hint; two counts may follow."""
_MAX_LENGTH = 1000
"""Characters of a query in a hint."""
_OF_NUMBERS = (exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Stddev, exp.StddevPop, exp.Variance, exp.VariancePop)
_WAYS = ("LEAST(GREATEST({}, 0), 100)", "CAST({} AS date)", "LEAST(GREATEST(LENGTH({}), 0), 100)")
"""What makes an argument one that aggregates take."""
_CONSTANTS = ("'2026-01-31'", "'1 day'", "'12:00'", "'true'", "'1'")
"""Constants of the types that texts are read as."""
_PATTERNS = ("'^[A-Z]+'", "'YYYY-MM-DD'")
"""A regular expression, and a format of dates."""


def advise(
    error: Error, tree: exp.Query | None, offset: int, catalog: Catalog, compiles: Callable[[str], bool]
) -> None:
    """Add to an error's hint the first query that compiles.

    Args:
        error: The refusal; one without queries stays unchanged where it has no hint, or its text is not SQL.
        tree: The refused query; None where its text is not SQL.
        offset: Where its text starts in what was sent.
        catalog: What the user may name.
        compiles: Whether a query is accepted.
    """
    if not error.queries and (tree is None or error.hint is None):
        return
    candidates = (query for query in _candidates(error, tree, offset, catalog) if len(query) <= _MAX_LENGTH)
    found = next(filter(compiles, dict.fromkeys(candidates)), None)
    if found is not None:
        error.hint = " ".join(part for part in (error.hint, f"Write: {found}") if part)


def _candidates(error: Error, tree: exp.Query | None, offset: int, catalog: Catalog) -> Iterator[str]:
    """What the rule that refuses proposes, then less of the query, then its rows counted, then those of a table."""
    if tree is None:
        yield from error.queries
    elif is_small(tree):
        changes = chain(
            error.queries or _altered(error, tree, offset), inner_joins(tree), reduced(tree, error.position, offset)
        )
        yield from islice(changes, _MAX_TRIED)
        if isinstance(tree, exp.SetOperation | exp.Subquery):
            yield f"SELECT COUNT(*) FROM ({print_sql(tree)}) AS t"  # never run for the user
    if isinstance(tree, exp.Select) and tree.args.get("from_") is not None:
        yield from counted(tree)
    tables = tree.find_all(exp.Table) if tree is not None else ()
    named = [identifier(table.this) for table in tables if isinstance(table.this, exp.Identifier)]
    for name in (*named, *sorted(catalog.role.tables)):
        table = catalog.table(name)
        if table is not None and not table.public:
            yield f"SELECT COUNT(*) FROM {quoted(name)}"
            return


def _altered(error: Error, tree: exp.Expr, offset: int) -> Iterator[str]:
    """The query with another constant at the error's place, or another argument of an aggregate, or key that counts."""
    for literal in tree.find_all(exp.Literal):
        if literal.is_string and position(literal, offset) == error.position:
            yield from replaced(literal, *(_CONSTANTS if isinstance(error, InvalidText) else _PATTERNS))
    outer = next((join for join in tree.find_all(exp.Join) if join.side), None)
    if outer is not None:
        for count in tree.find_all(exp.Count):
            columns = (column for column in outer.find_all(exp.Column) if column.table == outer.this.alias_or_name)
            yield from (query for column in columns for query in replaced(count, f"COUNT({print_sql(column)})"))
    for argument in _arguments(tree):
        yield from replaced(argument, *_WAYS)
        yield from replaced(argument, *_WAYS, everywhere=True)


def _arguments(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The arguments of aggregates of numbers."""
    yield from (call.this for call in tree.find_all(*_OF_NUMBERS))
    for within in tree.find_all(exp.WithinGroup):
        yield from (term.this for term in within.find_all(exp.Ordered))
