"""compile: SQL text, policy and settings into a planned query; pure, and always the same for the same input."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import TypeVar

from sqlglot import exp

from dpsql.compiler.aggregates.confidence_intervals import with_margins
from dpsql.compiler.plan.advice import advise
from dpsql.compiler.plan.build import plan
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.plan.verify import verify
from dpsql.compiler.relations.empty_results import has_no_rows, without_rows
from dpsql.compiler.relations.lower import lower
from dpsql.compiler.scope.catalog import Catalog
from dpsql.compiler.scope.lowering import Constants
from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.sql.literals import Parameters, element_of
from dpsql.compiler.sql.parse import parse_query
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import Error, QueryTooComplex, UnsupportedQuery
from dpsql.sqltypes import SqlType

T = TypeVar("T")


@dataclass(frozen=True)
class Described:
    """What Describe tells: the types of placeholders and of columns; of placeholders of arrays, those of the items."""

    parameters: tuple[SqlType, ...]
    columns: tuple[tuple[str, SqlType], ...]
    elements: tuple[SqlType | None, ...]


def compile_query(
    statement: QueryStatement,
    catalog: Catalog,
    settings: QuerySettings,
    constants: Constants,
    values: Sequence[object] = (),
    types: Sequence[SqlType | None] = (),
) -> CompiledQuery:
    """Compile one query.

    Args:
        statement: The query.
        catalog: What the user may name.
        settings: Price, mechanism and narrower bounds.
        constants: What now() and CURRENT_USER mean.
        values: Values of $1, $2 …
        types: Their declared types, where declared.

    Raises:
        Error: A typed refusal that depends on SQL, policy and settings alone.
    """
    tree = parse_query(statement)
    parameters = Parameters(settings.now.tzinfo or UTC, tuple(values), _declared(types))

    def compiled(query: QueryStatement, tree: exp.Query) -> CompiledQuery:
        return _compiled(query, tree, catalog, settings, constants, parameters)

    return _advised(compiled, statement, tree, catalog)


def _advised(
    run: Callable[[QueryStatement, exp.Query], T], statement: QueryStatement, tree: exp.Query, catalog: Catalog
) -> T:
    """Compile or describe a query; the hint of a refusal gets a query that is accepted."""
    try:
        return run(statement, tree)
    except Error as error:
        advise(error, tree, statement.offset, catalog, partial(_is_accepted, run))
        raise


def _compiled(
    statement: QueryStatement,
    tree: exp.Query,
    catalog: Catalog,
    settings: QuerySettings,
    constants: Constants,
    parameters: Parameters,
) -> CompiledQuery:
    try:
        lowered, fields = lower(tree, catalog, parameters, constants, statement.sql, statement.offset)
        if settings.intervals or settings.row_intervals:
            lowered = with_margins(lowered, fields, every=settings.intervals)
        if has_no_rows(lowered.relation):
            lowered = without_rows(lowered)
        compiled = plan(statement.sql, lowered, catalog, fields, settings)
    except Error:
        raise
    except Exception as error:
        raise _unreadable(error) from None
    verify(compiled, catalog)
    return compiled


def _is_accepted(run: Callable[[QueryStatement, exp.Query], object], sql: str) -> bool:
    """Whether a query that a hint may hold is read and run without a refusal."""
    statement = QueryStatement(sql)
    try:
        run(statement, parse_query(statement))
    except Error:
        return False
    return True


def describe_query(
    statement: QueryStatement,
    catalog: Catalog,
    constants: Constants,
    types: Sequence[SqlType | None] = (),
    *,
    intervals: bool = False,
) -> Described:
    """Tell the types of a query's placeholders and columns, without their values.

    Args:
        statement: The query.
        catalog: What the user may name.
        constants: What now() and CURRENT_USER mean.
        types: Declared types of $1, $2 …, where declared.
        intervals: Whether noisy columns get limits beside them.

    Raises:
        Error: A typed refusal of names, types or clauses; what depends on bounds or prices is refused on compiling.
    """
    tree = parse_query(statement)

    def described(query: QueryStatement, tree: exp.Query) -> Described:
        return _described(query, tree, catalog, constants, types, intervals)

    return _advised(described, statement, tree, catalog)


def _described(
    statement: QueryStatement,
    tree: exp.Query,
    catalog: Catalog,
    constants: Constants,
    types: Sequence[SqlType | None],
    intervals: bool,
) -> Described:
    parameters = Parameters(constants.clock.tzinfo or UTC, None, _declared(types))
    try:
        lowered, fields = lower(tree, catalog, parameters, constants, statement.sql, statement.offset)
        if intervals:
            lowered = with_margins(lowered, fields)
    except Error:
        raise
    except Exception as error:
        raise _unreadable(error) from None
    found = parameters.types
    count = max([len(types), *(index + 1 for index in found if index < element_of(0))], default=0)
    named = tuple(_known(found.get(index)) for index in range(count))
    elements = (found.get(element_of(index)) for index in range(count))
    return Described(
        named,
        tuple((name, field.type) for name, field in lowered.columns),
        tuple(None if element is None else _known(element) for element in elements),
    )


def _known(inferred: SqlType | None) -> SqlType:
    """A type that was inferred; text where nothing told."""
    return SqlType.TEXT if inferred is None or inferred is SqlType.UNKNOWN else inferred


def _unreadable(error: Exception) -> Error:
    """The refusal of a tree that no rule expected: closed, whatever it was."""
    if isinstance(error, RecursionError):
        return QueryTooComplex("the query nests too deeply")
    return UnsupportedQuery(
        "this query shape is not supported", hint="Please report it, and write the query in smaller steps, with WITH."
    )


def _declared(types: Sequence[SqlType | None]) -> dict[int, SqlType]:
    return {index: sql_type for index, sql_type in enumerate(types) if sql_type is not None}
