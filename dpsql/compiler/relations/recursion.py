"""recursion: WITH RECURSIVE over constants: date spines, sequences, and the like.

Rule: its rows are computed when the query is compiled, so their number is known before anything is read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from itertools import islice

from sqlglot import exp

from dpsql.compiler.ir.nodes import (
    Column,
    Expr,
    Field,
    Filter,
    Literal,
    Project,
    Protected,
    Public,
    Relation,
    SetOperation,
    Value,
    Values,
)
from dpsql.compiler.ir.walk import expressions, nodes, operands
from dpsql.compiler.relations.clauses import Clauses
from dpsql.compiler.relations.empty_results import no_rows_of
from dpsql.compiler.relations.from_clause import renamed
from dpsql.compiler.relations.series import MAX_LISTED
from dpsql.compiler.scope.coercion import common_type
from dpsql.compiler.scope.lowering import Lowered
from dpsql.compiler.scope.resolve import identifier
from dpsql.compiler.sql.rewriting import replaced
from dpsql.compiler.values.evaluation import NotConstant, evaluated
from dpsql.errors import DatatypeMismatch, InvalidSyntax, LimitExceeded, NumberOutOfRange, UnsupportedQuery
from dpsql.sqltypes import SqlType

_MOST_VALUES = 2_000_000
"""Values that are computed for the rows of one query: some seconds, which nothing interrupts."""

Row = tuple[Value, ...]
Query = Callable[[exp.Expr, Mapping[str, Lowered]], Lowered]
"""Lowers a query whose WITH and those around it name some relations."""


def names_itself(cte: exp.Expr) -> bool:
    """True of a WITH query that reads its own rows."""
    name = identifier(cte.args["alias"].this)
    return any(
        isinstance(table.this, exp.Identifier) and identifier(table.this) == name and not table.args.get("db")
        for table in cte.this.find_all(exp.Table)
    )


def recursive(clauses: Clauses, cte: exp.Expr, ctes: Mapping[str, Lowered], query: Query) -> Lowered:
    """Lower `first UNION [ALL] next`, where `next` makes further rows of those that were made last.

    Raises:
        Error: A typed refusal.
    """
    body, alias, at = cte.this, cte.args["alias"], clauses.at(cte.this)
    if not isinstance(body, exp.Union) or any(body.args.get(part) for part in ("order", "limit", "offset")):
        raise _refused(clauses, cte, "a recursive query must have the form: first UNION ALL next")
    first = renamed(clauses, query(body.this, ctes), alias)
    types = [common_type([Column(field)]) for _, field in first.columns]
    working = Values(tuple(map(clauses.fields.new, types)), (tuple(Literal(None, each) for each in types),))
    named = tuple((name, field) for (name, _), field in zip(first.columns, working.fields, strict=True))
    following = query(body.expression, {**ctes, identifier(alias.this): Lowered(Public(working), named)})
    if any(isinstance(each.status, Protected) for each in (first, following)):
        raise _refused(clauses, cte, "WITH RECURSIVE over protected rows is not supported")
    _check_types(clauses, cte, following, named)
    parts = (_projected(clauses, first, types), _projected(clauses, following, types))
    steps = _Steps(working, parts, bool(body.args.get("distinct")), clauses.coercion.parameters.zone)
    try:
        found = steps.rows()
    except NotConstant:
        raise _refused(
            clauses, cte, "WITH RECURSIVE must begin with constants, and compute each row of the row before it"
        ) from None
    except (OverflowError, ValueError):
        raise NumberOutOfRange("a value of WITH RECURSIVE is out of range", position=at) from None
    if found is None:
        what, hint = f"WITH RECURSIVE may compute at most {steps.most:,} rows", "End it by a condition in its WHERE."
        raise LimitExceeded(what, hint=hint, position=at)
    rows = tuple(tuple(map(Literal, row, types)) for row in found)
    return Lowered(Public(replace(working, rows=rows) if rows else no_rows_of(working)), named)


def _check_types(clauses: Clauses, cte: exp.Expr, following: Lowered, named: Sequence[tuple[str, Field]]) -> None:
    """Refuse columns of the rows that follow whose types the first rows do not have."""
    at, written = clauses.at(cte.this), cte.this.expression
    if len(following.columns) != len(named):
        raise InvalidSyntax("each UNION query must have the same number of columns", position=at)
    items = written.expressions if isinstance(written, exp.Select) and len(written.expressions) == len(named) else []
    for place, ((name, first), (_, field)) in enumerate(zip(named, following.columns, strict=True)):
        if common_type([Column(first), Column(field)], at) is not first.type:
            raise DatatypeMismatch(
                f'column "{name}" of a recursive query has type {first.type.value} in its first rows, and '
                f"{field.type.value} in those that follow",
                hint="Cast it to the type of the first rows.",
                position=at,
                queries=replaced(items[place], f"CAST({{}} AS {first.type.value})") if items else (),
            )


def _projected(clauses: Clauses, lowered: Lowered, types: Sequence[SqlType]) -> Project:
    """The columns of a query in some types."""
    pairs = zip(lowered.columns, types, strict=True)
    found = tuple(clauses.coercion.to(Column(field), kind) for (_, field), kind in pairs)
    return Project(lowered.relation, tuple(map(clauses.fields.new, types)), found)


@dataclass(frozen=True)
class _Steps:
    """Makes the rows of a recursive query.

    Attributes:
        working: The placeholder of the rows of the last step.
        parts: The non-recursive and the recursive term.
        distinct: Whether rows that an earlier step made are dropped (UNION without ALL).
        zone: The session's time zone.
    """

    working: Values
    parts: tuple[Relation, Relation]
    distinct: bool
    zone: tzinfo

    @property
    def most(self) -> int:
        """How many rows may be computed: fewer where each takes longer."""
        weight = sum(map(_weight, (each for node in nodes(self.parts[1]) for each in expressions(node))))
        return min(MAX_LISTED, _MOST_VALUES // max(weight, 1))

    def rows(self) -> Sequence[Row] | None:
        """Return all rows; None if computing them takes more rows than the limit, repeated rows included."""
        found: list[Row] = []
        seen: set[Row] = set()
        (relation, following), last, left = self.parts, tuple[Row, ...](), self.most
        while True:
            made = list(islice(self._of(relation, last), left + 1))
            left -= len(made)
            if left < 0:
                return None
            last = self._new(made, seen)
            if not last:
                return found
            found += last
            relation = following

    def _new(self, made: Sequence[Row], seen: set[Row]) -> tuple[Row, ...]:
        if not self.distinct:
            return tuple(made)
        fresh = tuple(row for row in dict.fromkeys(made) if row not in seen)
        seen.update(fresh)
        return fresh

    def _of(self, relation: Relation, last: Sequence[Row]) -> Iterator[Row]:
        """The rows of a relation, whose columns are in the order of its fields."""
        match relation:
            case Values() if relation.fields == self.working.fields:
                yield from last
            case Values():
                yield from (tuple(cell.value for cell in row) for row in relation.rows)
            case Filter():
                for row in self._of(relation.input, last):
                    if evaluated(relation.condition, self._known(relation.input, row), self.zone) is True:
                        yield row
            case Project():
                for row in self._of(relation.input, last):
                    known = self._known(relation.input, row)
                    yield tuple(evaluated(each, known, self.zone) for each in relation.expressions)
            case SetOperation(kind="union", all=True):
                yield from self._of(relation.left, last)
                yield from self._of(relation.right, last)
            case _:
                raise NotConstant

    @staticmethod
    def _known(relation: Relation, row: Row) -> Mapping[Field, Value]:
        return dict(zip(relation.fields, row, strict=True))


def _weight(expression: Expr) -> int:
    """How many values are computed for one of an expression."""
    return 1 + sum(map(_weight, operands(expression)))


def _refused(clauses: Clauses, cte: exp.Expr, what: str) -> UnsupportedQuery:
    spine = "SELECT * FROM generate_series(DATE '2024-01-01', DATE '2024-12-01', INTERVAL '1 month')"
    return UnsupportedQuery(
        what,
        hint="Use generate_series for numbers and dates in a row.",
        position=clauses.at(cte.this),
        queries=replaced(cte.this, "SELECT * FROM generate_series(1, 12)", spine),
    )
