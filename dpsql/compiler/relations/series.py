"""series: generate_series and UNNEST of constants, in FROM and in a SELECT list.

Rule: a series depends on its ends and its step only, so its length is known before anything is read.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import zip_longest

from sqlglot import exp

from dpsql.compiler.aggregates.registry import BY_NAME as AGGREGATES
from dpsql.compiler.expressions.arrays import array_items, element_type, of_text
from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.nodes import (
    Cast,
    Column,
    Expr,
    Literal,
    Project,
    Public,
    Relation,
    Series,
    Unnest,
    Value,
    Values,
)
from dpsql.compiler.ir.walk import relations_in
from dpsql.compiler.relations.clauses import Clauses
from dpsql.compiler.relations.empty_results import no_rows_of
from dpsql.compiler.scope.lowering import Lowered, Lowering
from dpsql.compiler.scope.resolve import Scope
from dpsql.compiler.sql.rewriting import replaced
from dpsql.compiler.values.evaluation import NotConstant, after, evaluated
from dpsql.errors import InvalidParameter, LimitExceeded, UnsupportedQuery
from dpsql.sqltypes import Span, SqlType

MAX_SERIES = 100_000
"""Values of a series of whole numbers, hours, days, weeks, months or years, which the engine makes."""
MAX_LISTED = 10_000
"""Values of any other, which stand in the SQL."""
_UNITS = {
    Span(0, 0, 3_600_000_000): "HOUR",
    Span(0, 1, 0): "DAY",
    Span(0, 7, 0): "WEEK",
    Span(1, 0, 0): "MONTH",
    Span(12, 0, 0): "YEAR",
}
_ALWAYS_THERE = 28
"""The last day that every month has: from later ones on, months are not added one by one."""


def is_series(node: exp.Expr) -> bool:
    """True of a call of generate_series."""
    return isinstance(node, exp.Anonymous) and str(node.this).lower() == "generate_series"


def series(clauses: Clauses, node: exp.Anonymous) -> Lowered:
    """Lower generate_series(start, stop[, step]).

    Raises:
        UnsupportedQuery: The ends or the step are no constants.
        InvalidParameter: The step is zero.
        LimitExceeded: There are too many values.
    """
    lowerer = clauses.expressions(Scope(()), "in generate_series")
    if len(node.expressions) not in (2, 3):
        raise UnsupportedQuery("generate_series takes two or three arguments", position=clauses.at(node))
    if any(part.find(exp.Column) is not None for part in node.expressions):
        raise _needs_constants(clauses, node)
    zone, at = clauses.coercion.parameters.zone, clauses.at(node)
    ends = [lowerer.lower(end) for end in node.expressions[:2]]
    kind = _type_of(ends)
    if kind is not None and not kind.is_integer:
        ends = [_as_moment(clauses, end, kind) for end in ends]
    try:
        start, stop = (_constant(end, zone) for end in ends)
        step = _step(lowerer, node.expressions[2] if len(node.expressions) > 2 else None, kind)
        relation = None if kind is None else _relation(clauses, kind, (start, stop), step, zone, at)
    except (OverflowError, ValueError):
        raise InvalidParameter("a value of generate_series is out of range", position=at) from None
    if relation is None:
        raise _needs_constants(clauses, node)
    return Lowered(Public(relation), (("generate_series", relation.fields[0]),))


def _needs_constants(clauses: Clauses, node: exp.Anonymous) -> UnsupportedQuery:
    return UnsupportedQuery(
        "generate_series needs constants, and for dates an interval as its step",
        hint="Give the ends and the step as constants.",
        position=clauses.at(node),
        queries=replaced(
            node,
            "generate_series(1, 12)",
            "generate_series(DATE '2024-01-01', DATE '2024-12-01', INTERVAL '1 month')",
        ),
    )


def unnested(clauses: Clauses, node: exp.Unnest, scope: Scope) -> list[tuple[Expr, ...]] | Relation:
    """The columns of UNNEST(array, …): items, which are constants or computed of them, or the elements of arrays.

    Raises:
        UnsupportedQuery: Some arrays are written in the query and others not, or one is of a subquery.
    """
    lowerer = clauses.expressions(scope, "in UNNEST")
    lowerer.only(node, "expressions", "alias", "offset")
    is_numbered = bool(node.args.get("offset"))
    items = [array_items(lowerer, each) for each in node.expressions]
    listed = [each for each in items if each is not None]
    if len(listed) == len(items):
        size = max(map(len, listed))
        columns = [_padded(clauses, tuple(map(lowerer.lower, each)), size) for each in listed]
        places = [tuple(Literal(place, SqlType.BIGINT) for place in range(1, size + 1))]
        return columns + places * is_numbered
    arrays = tuple(map(lowerer.lower, node.expressions)) if not listed else ()
    if not arrays or any(not array.type.is_array or relations_in(array) for array in arrays):
        raise UnsupportedQuery(
            "UNNEST takes arrays without subqueries, all of them columns or all written in the query",
            hint="Use UNNEST(ARRAY[…]), or VALUES.",
            position=clauses.at(node),
            queries=replaced(node, "(VALUES (1), (2)) AS u (x)"),
        )
    texts = tuple(clauses.fields.new(SqlType.TEXT) for _ in arrays)
    place = (clauses.fields.new(SqlType.BIGINT),) * is_numbered
    rows = Unnest(texts + place, arrays, is_numbered)
    types = [element_type(lowerer, array, node) for array in arrays]
    values = [of_text(Column(text), element) for text, element in zip(texts, types, strict=True)]
    fields = tuple(clauses.fields.new(element) for element in types)
    return Project(
        rows, (*fields, *map(clauses.fields.new, [SqlType.BIGINT] * is_numbered)), (*values, *map(Column, place))
    )


def _padded(clauses: Clauses, items: tuple[Expr, ...], size: int) -> tuple[Expr, ...]:
    """Items in one type, and NULL behind the last."""
    return clauses.coercion.unify([*items, *[Literal(None, SqlType.UNKNOWN)] * (size - len(items))])


def listed_in_rows(node: exp.Select) -> exp.Select:
    """Return the SELECT with UNNEST(ARRAY[a, b]) of columns as a VALUES list, LATERAL if entries precede it."""
    entries = [node.args["from_"].this] if node.args.get("from_") is not None else []
    entries += [join.this for join in node.args.get("joins") or ()]
    if not any(_array_of_columns(entry) is not None for entry in entries):
        return node
    copy = node.copy()
    first: exp.Expr = copy.args["from_"]
    for place in [first, *(copy.args.get("joins") or [])]:
        call = _array_of_columns(place.this)
        if call is None:
            continue
        values = exp.Values(expressions=[exp.Tuple(expressions=list(row)) for row in _rows_of(call)])
        entry = exp.Subquery(this=values) if place is first else exp.Lateral(this=exp.Subquery(this=values))
        entry.set("alias", _alias_of(call, place.this.args.get("alias")))
        place.set("this", entry)
    return copy


def _rows_of(call: exp.Unnest) -> Iterator[tuple[exp.Expr, ...]]:
    """The rows of arrays that the query writes, as UNNEST makes them."""
    rows = zip_longest(*(array.expressions for array in call.expressions), fillvalue=exp.Null())
    for place, row in enumerate(rows, 1):
        items = tuple(item.copy() for item in row)
        yield (
            (*items, exp.Cast(this=exp.Literal.number(place), to=exp.DataType(this=exp.DType.BIGINT)))
            if call.args.get("offset")
            else items
        )


def _alias_of(call: exp.Unnest, named: exp.TableAlias | None) -> exp.TableAlias:
    """The alias of UNNEST with the names of all its columns."""
    table = named.this if named is not None and named.this is not None else exp.to_identifier("unnest")
    given = (named and named.args.get("columns")) or ([table] if len(call.expressions) == 1 else [])
    columns = [*given, *[exp.to_identifier("unnest")] * (len(call.expressions) - len(given))]
    place = call.args.get("offset")
    columns += [place if isinstance(place, exp.Identifier) else exp.to_identifier("ordinality")] if place else []
    return exp.TableAlias(this=table, columns=columns)


def _array_of_columns(entry: exp.Expr) -> exp.Unnest | None:
    """Return the UNNEST that an entry of FROM is, if it is of arrays that the query writes of columns; else None."""
    call = entry.this if isinstance(entry, exp.Lateral) else entry
    if not isinstance(call, exp.Unnest) or not all(isinstance(each, exp.Array) for each in call.expressions):
        return None
    return call if any(each.find(exp.Column) is not None for each in call.expressions) else None


def moved_to_from(clauses: Clauses, node: exp.Select) -> exp.Select:
    """Return the SELECT with its series, or its arrays, moved to FROM, so that each row is repeated for each value.

    Raises:
        UnsupportedQuery: There are several series, or an aggregate, a window or GROUP BY, which are computed first.
    """
    found = _that_give_rows(node)
    if not found:
        return node
    parts = [*node.expressions, *(node.args[name] for name in ("order", "distinct") if node.args.get(name))]
    grouped = node.args.get("group") or node.args.get("having")
    several = len(found) > 1 and any(map(is_series, found))
    if several or grouped or any(_comes_before(each) for part in parts for each in _own(part)):
        raise UnsupportedQuery(
            "a series in a SELECT list must stand alone there, without aggregates, windows and GROUP BY",
            hint="Use generate_series in FROM.",
            position=clauses.at(found[1] if len(found) > 1 else found[0]),
        )
    star = next((item for item in node.expressions if item.is_star), None)
    if star is not None:
        raise UnsupportedQuery(
            "* is not supported beside a series in a SELECT list",
            hint="Name the columns, or use generate_series in FROM.",
            position=clauses.at(star),
        )
    place = found[0]
    table = "generate_series" if is_series(place) else "unnest"
    names = [f"{table}_{number}" if number else table for number, _ in enumerate(found)]
    copy = node.copy()
    for moved, name in zip(_that_give_rows(copy), names, strict=True):
        column = exp.column(name, table=table)
        is_item = moved.parent is copy
        moved.replace(exp.alias_(column, table) if is_item and name != table else column)
    alias = exp.TableAlias(this=exp.to_identifier(table), columns=[exp.to_identifier(name) for name in names])
    entry: exp.Expr = exp.Table(this=place.copy(), alias=alias)
    if isinstance(place, exp.Explode):
        entry = exp.Unnest(expressions=[each.this.copy() for each in found], alias=alias)
    if copy.args.get("from_") is None:
        copy.set("from_", exp.From(this=entry))
    else:
        copy.append("joins", exp.Join(this=entry, kind="CROSS"))
    return copy


def _that_give_rows(node: exp.Select) -> list[exp.Expr]:
    return [
        each for item in node.expressions for each in _own(item) if isinstance(each, exp.Explode) or is_series(each)
    ]


def _own(part: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of an expression that are not in its subqueries."""
    return part.walk(prune=lambda node: isinstance(node, exp.Query))


def _comes_before(node: exp.Expr) -> bool:
    """True of an aggregate or a window function, which is computed before its row is repeated."""
    named = isinstance(node, exp.Anonymous) and str(node.this).lower() in AGGREGATES
    return named or (isinstance(node, exp.AggFunc | exp.Window) and not isinstance(node, exp.Explode))


def _type_of(ends: list[Expr]) -> SqlType | None:
    """The type of the values, from the types of the ends; two dates give TIMESTAMPTZ, as in PostgreSQL."""
    types = [end.type for end in ends if end.type is not SqlType.UNKNOWN]
    if types and all(each.is_integer for each in types):
        return SqlType.BIGINT if SqlType.BIGINT in types else SqlType.INTEGER
    if types and all(each.is_moment for each in types):
        is_local = SqlType.TIMESTAMP in types and SqlType.TIMESTAMPTZ not in types
        return SqlType.TIMESTAMP if is_local else SqlType.TIMESTAMPTZ
    return None


def _as_moment(clauses: Clauses, end: Expr, kind: SqlType) -> Expr:
    return clauses.coercion.to(end, kind) if end.type is not kind else end


def _step(lowerer: Lowering, node: exp.Expr | None, kind: SqlType | None) -> int | Span | None:
    """The step; None if it is not a constant of the type that the series needs."""
    if kind is None or node is None:
        return 1 if node is None and kind is not None and kind.is_integer else None
    wanted = kind if kind.is_integer else SqlType.INTERVAL
    given = lowerer.lower(node)
    if (
        given.type is not SqlType.UNKNOWN
        and given.type is not wanted
        and not (wanted.is_integer and given.type.is_integer)
    ):
        return None
    found = lowerer.coercion.to(given, wanted, lowerer.at(node))
    value = _constant(found, UTC)
    if isinstance(value, str):
        return intervals.span(value)
    return value if isinstance(value, int) else None


def _relation(
    clauses: Clauses,
    kind: SqlType,
    ends: tuple[Value, Value],
    step: int | Span | None,
    zone: tzinfo,
    at: int | None,
) -> Relation | None:
    start, stop = ends
    if step == 0 or (isinstance(step, Span) and not _size(step)):
        raise InvalidParameter("step size cannot equal zero", position=at)
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
        if step != 1:
            return _listed(clauses, kind, _first(range(start, stop + (1 if step > 0 else -1), step), at))
        _check(stop - start, MAX_SERIES, at)
        return Series((clauses.fields.new(kind),), start, stop, None)
    if not isinstance(start, datetime) or not isinstance(stop, datetime) or not isinstance(step, Span):
        return None
    unit = _UNITS.get(step)
    is_even = step.months == 0 or start.day <= _ALWAYS_THERE
    if unit is not None and is_even and (kind is SqlType.TIMESTAMP or str(zone) == "UTC"):
        _check((stop.toordinal() - start.toordinal()) * (24 if unit == "HOUR" else 1), MAX_SERIES, at)
        clock = clauses.fields.new(SqlType.TIMESTAMP)
        series = Series((clock,), start.replace(tzinfo=None), stop.replace(tzinfo=None), unit)
        if kind is SqlType.TIMESTAMP:
            return series
        return Project(series, (clauses.fields.new(kind),), (Cast(Column(clock), kind),))
    return _listed(clauses, kind, _first(_moments(start, stop, step, zone), at))


def _check(size: int, most: int, at: int | None) -> None:
    if size > most:
        raise LimitExceeded(f"generate_series may give at most {most:,} values", position=at)


def _first(values: Iterator[datetime] | range, at: int | None) -> list[Value]:
    """Return all values; refuse more than the SQL text may contain."""
    found: list[Value] = []
    for value in values:
        found.append(value)
        if len(found) > MAX_LISTED:
            raise LimitExceeded(f"generate_series may give at most {MAX_LISTED:,} values with this step", position=at)
    return found


def _listed(clauses: Clauses, kind: SqlType, values: list[Value]) -> Relation:
    fields = (clauses.fields.new(kind),)
    rows = tuple((Literal(value, kind),) for value in values)
    return Values(fields, rows) if rows else no_rows_of(Values(fields, ((Literal(None, kind),),)))


def _moments(start: datetime, stop: datetime, step: Span, zone: tzinfo) -> Iterator[datetime]:
    """Yield moments, one step apart, as PostgreSQL does: one month after 31 January is the last day of February."""
    rises, at = _size(step) > 0, start
    while at <= stop if rises else at >= stop:
        yield at
        at = after(at, step, zone)


def _size(step: Span) -> int:
    """Microseconds of an interval as PostgreSQL compares intervals: a month counts as 30 days."""
    return (30 * step.months + step.days) * 86_400_000_000 + step.microseconds


def _constant(expression: Expr, zone: tzinfo) -> Value:
    """The value of an expression of constants; None for other expressions."""
    try:
        return evaluated(expression, {}, zone)
    except NotConstant:
        return None
