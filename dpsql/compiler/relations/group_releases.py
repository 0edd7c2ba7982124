"""group_releases: aggregate calls over groups of protected rows, and the releases that answer them.

The groups are one release; each aggregate that is released apart is another one.

SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 3 is three selections from the public values of icd.
One unit changes a count by at most its rows in that group, regardless of the number of groups it touches; a histogram
would have to bound the groups. A histogram is used if counts are shown, keys are private, or it is more exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any

from sqlglot import exp

from dpsql.compiler.aggregates.base import AggregateFunction
from dpsql.compiler.aggregates.mode import picked_groups
from dpsql.compiler.aggregates.registry import BY_NAME as NAMED
from dpsql.compiler.aggregates.registry import BY_NODE, FUNCTIONS, WITHIN_GROUP
from dpsql.compiler.ir.conditions import TRUE, all_of, negated
from dpsql.compiler.ir.intervals import span
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    Field,
    Frame,
    Join,
    Literal,
    Order,
    Picks,
    Project,
    Protected,
    Relation,
    Release,
    Values,
    Window,
)
from dpsql.compiler.ir.walk import fields_in, min_units, relations_in, windows_in
from dpsql.compiler.scope.lowering import Fields, Lowering, Method
from dpsql.compiler.scope.resolve import identifier
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.values.domain import enumerate_keys
from dpsql.errors import InvalidParameter, InvalidSyntax, UndefinedColumn, UnsupportedQuery
from dpsql.privacy.exponential_mechanism import worth_top_k
from dpsql.sqltypes import Span, SqlType

_WINDOWS: dict[type[exp.Expr], tuple[str, SqlType]] = {
    exp.RowNumber: ("row_number", SqlType.BIGINT),
    exp.Rank: ("rank", SqlType.BIGINT),
    exp.DenseRank: ("dense_rank", SqlType.BIGINT),
    exp.PercentRank: ("percent_rank", SqlType.DOUBLE),
    exp.CumeDist: ("cume_dist", SqlType.DOUBLE),
}
_WINDOW_VALUES: dict[type[exp.Expr], str] = {
    exp.Lag: "lag",
    exp.Lead: "lead",
    exp.FirstValue: "first_value",
    exp.LastValue: "last_value",
    exp.NthValue: "nth_value",
}


def _filtered(lowering: Lowering, node: exp.Filter) -> Expr:
    _check_filtered(lowering, node)
    lowering.collected(node)
    condition = lowering.inside_aggregate().condition(node.expression.this)
    return _aggregate(lowering, node.this, condition)


def _check_filtered(lowering: Lowering, node: exp.Filter) -> None:
    if _function(node.this) is None and not isinstance(node.this, exp.WithinGroup):
        raise UnsupportedQuery("FILTER is only allowed after an aggregate function", position=lowering.at(node))


def _aggregate(lowering: Lowering, node: exp.Expr, condition: Expr | None = None) -> Expr:
    aggregates = lowering.collected(node)
    return Column(aggregates.field_of(aggregate_call(lowering.inside_aggregate(), node, condition)))


def _function(node: exp.Expr) -> AggregateFunction | None:
    """The aggregate function that a node calls, if it is one."""
    if isinstance(node, exp.WithinGroup):
        return WITHIN_GROUP.get(type(node.this))
    if isinstance(node, exp.Anonymous):
        return NAMED.get(str(node.this).lower())
    return BY_NODE.get(type(node))


def aggregate_call(lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
    """The aggregate call that a node writes, its arguments lowered by this lowerer."""
    if isinstance(node, exp.WithinGroup):
        lowering.only(node, "this", "expression")
    function = _function(node)
    if function is None:
        raise lowering.refusal(node.this)
    return function.call(lowering, node, condition)


def _array_to_string(lowering: Lowering, node: exp.ArrayToString) -> Expr:
    """ARRAY_TO_STRING(ARRAY_AGG(x), ', '), which is STRING_AGG of the texts, and the empty text where all are NULL."""
    lowering.only(node, "this", "expression")
    aggregate = node.this.this if isinstance(node.this, exp.Filter) else node.this
    # Values that DISTINCT leaves are in their own order, which is not that of their texts.
    if not isinstance(aggregate, exp.ArrayAgg) or isinstance(aggregate.this, exp.Distinct):
        raise UnsupportedQuery("ARRAY_TO_STRING takes ARRAY_AGG(…)", hint="Use STRING_AGG.", position=lowering.at(node))
    lowering.collected(node)
    value, separator = aggregate.this, node.expression
    if isinstance(value, exp.Order):
        value, separator = value.this, exp.Order(this=separator, expressions=value.expressions)
    if lowering.inside_aggregate().value(value).type is SqlType.BOOLEAN:  # true is t in an array, and true as text
        raise UnsupportedQuery("ARRAY_TO_STRING takes no booleans", hint="Use STRING_AGG.", position=lowering.at(node))
    joined: exp.Expr = exp.Anonymous(this="string_agg", expressions=[exp.cast(value, "text"), separator])
    rows: exp.Expr = exp.Count(this=exp.Star())
    if isinstance(node.this, exp.Filter):
        joined, rows = (exp.Filter(this=each, expression=node.this.expression) for each in (joined, rows))
    has_rows = exp.GT(this=rows, expression=exp.Literal.number(0))
    of_nulls = exp.Case(ifs=[exp.If(this=has_rows, true=exp.Literal.string(""))])
    return lowering.lower(exp.Coalesce(this=joined, expressions=[of_nulls]))


def _window(lowering: Lowering, node: exp.Window) -> Expr:
    if not lowering.windows:
        raise UnsupportedQuery(f"window functions are not allowed {lowering.clause}", position=lowering.at(node))
    lowering.only(node, "this", "partition_by", "order", "over", "spec", "alias")
    parts = _window_parts(lowering, node)
    lowering = replace(lowering, windows=False, clause="in a window function")
    name, arguments, sql_type = _window_function(lowering, node.this)
    partition = tuple(lowering.value(part) for part in parts.get("partition_by") or ())
    order = parts.get("order")
    terms = tuple(lowering.order(term) for term in order.expressions) if order is not None else ()
    frame = _frame(lowering, parts.get("spec"), terms)
    return Window(name, arguments, partition, _with_room(terms) if frame and frame.is_near else terms, frame, sql_type)


def _with_room(terms: tuple[Order, ...]) -> tuple[Order, ...]:
    """Integers to order by as numerics, and times as those of one day: no sum with a frame's offset overflows."""

    def wide(value: Expr) -> Expr:
        if value.type is SqlType.TIME:
            return Call("date_at", (_SOME_DAY, value), SqlType.TIMESTAMP)
        return Cast(value, SqlType.NUMERIC, 0) if value.type.is_integer else value

    return tuple(replace(term, expression=wide(term.expression)) for term in terms)


_SOME_DAY = Literal(date(2000, 1, 1), SqlType.DATE)


def _window_parts(lowering: Lowering, node: exp.Window) -> Mapping[str, Any]:
    """PARTITION BY, ORDER BY and the frame: written here, or where WINDOW names them."""
    alias = node.args.get("alias")
    if alias is None:
        return node.args
    if any(node.args.get(part) for part in ("partition_by", "order", "spec")):
        raise UnsupportedQuery(
            "a named window cannot be extended",
            hint="Write the whole window definition.",
            position=lowering.at(node),
        )
    named = lowering.named.get(identifier(alias))
    if named is None:
        raise UndefinedColumn(f'window "{identifier(alias)}" does not exist', position=lowering.at(node))
    lowering.only(named, "this", "partition_by", "order", "spec")
    return named.args


def _window_function(lowering: Lowering, node: exp.Expr) -> tuple[str, tuple[Expr, ...], SqlType]:
    kind = type(node)
    if kind in _WINDOWS:
        lowering.only(node)
        name, sql_type = _WINDOWS[kind]
        return name, (), sql_type
    if isinstance(node, exp.Filter) or _function(node) is not None:
        return _window_aggregate(lowering, node)
    if kind in _WINDOW_VALUES:
        return _window_value(lowering, node)
    if isinstance(node, exp.Ntile) and node.this is not None:
        return "ntile", (lowering.whole(node.this, "NTILE", 1, 1_000_000),), SqlType.INTEGER
    raise lowering.refusal(node)


def _window_aggregate(lowering: Lowering, node: exp.Expr) -> tuple[str, tuple[Expr, ...], SqlType]:
    """An aggregate over the frame; a row that FILTER excludes has a NULL argument, which no aggregate counts."""
    called, condition = node, None
    if isinstance(node, exp.Filter):
        _check_filtered(lowering, node)
        called, condition = node.this, lowering.condition(node.expression.this)
    call = aggregate_call(lowering, called, condition)
    condition = call.filter
    if not FUNCTIONS[call.function].in_windows:
        raise UnsupportedQuery(
            f"{call.function.upper()} is not supported as a window function", position=lowering.at(node)
        )
    if call.distinct or call.order:
        part = "DISTINCT" if call.distinct else "ORDER BY among the arguments"
        raise UnsupportedQuery(f"{part} is not supported in a window function", position=lowering.at(node))
    if call.function == "array_agg" and condition is not None:
        raise UnsupportedQuery(
            "FILTER before OVER is not supported for ARRAY_AGG, of which NULLs are elements",
            hint="Filter the rows in a subquery.",
            position=lowering.at(node),
        )
    argument = call.argument
    if argument is None and condition is None:
        return "count_rows", (), SqlType.BIGINT
    if condition is not None:
        kept = argument if argument is not None else Literal(1, SqlType.INTEGER)
        argument = Case(((condition, kept),), Literal(None, kept.type), kept.type)
    arguments = tuple(part for part in (argument, call.other) if part is not None)
    return call.function, arguments, call.type


def _window_value(lowering: Lowering, node: exp.Expr) -> tuple[str, tuple[Expr, ...], SqlType]:
    """LAG and LEAD with how far and what else, FIRST_VALUE, LAST_VALUE and NTH_VALUE."""
    lowering.only(node, "this", "offset", "default")
    name = _WINDOW_VALUES[type(node)]
    value = lowering.value(node.this)
    offset, default = node.args.get("offset"), node.args.get("default")
    if offset is None:
        return name, (value,), value.type
    extra: tuple[Expr, ...] = (lowering.whole(offset, name.upper(), 0 if name in ("lag", "lead") else 1, 1_000_000),)
    if default is not None:
        value, other = lowering.coercion.unify((value, lowering.lower(default)), lowering.at(node))
        extra += (other,)
    return name, (value, *extra), value.type


def _frame(lowering: Lowering, spec: exp.Expr | None, order: Sequence[Order]) -> Frame | None:
    if spec is None:
        return None
    lowering.only(spec, "kind", "start", "start_side", "end", "end_side")
    kind = str(spec.args.get("kind")).upper()
    if kind not in ("ROWS", "RANGE", "GROUPS"):
        raise TypeError("a frame has one of three modes")
    if kind == "GROUPS" and not order:
        raise InvalidSyntax("GROUPS mode requires an ORDER BY clause", position=lowering.at(spec))
    by = [term.expression.type for term in order] if kind == "RANGE" else None
    start = _frame_end(lowering, spec, "start", by)
    end = _frame_end(lowering, spec, "end", by) if spec.args.get("end") is not None else 0
    if isinstance(start, int | Decimal) and isinstance(end, int | Decimal) and start > end:
        raise InvalidSyntax("frame starts after it ends", position=lowering.at(spec))
    return Frame(kind, start, end)


def _frame_end(lowering: Lowering, spec: exp.Expr, name: str, by: list[SqlType] | None) -> int | Decimal | Span | None:
    """The distance of a frame's end, in rows or in sort values: negative before the row; None for the partition's end.

    Args:
        lowering: The lowering of the query.
        spec: The frame.
        name: "start" or "end".
        by: The types of the sort values for a RANGE frame; None for others.
    """
    offset, side = spec.args.get(name), str(spec.args.get(f"{name}_side")).upper()
    if isinstance(offset, str):
        is_wrong = (name, side) in (("start", "FOLLOWING"), ("end", "PRECEDING"))
        if offset.upper() == "UNBOUNDED" and is_wrong:
            raise InvalidSyntax(f"frame {name} cannot be UNBOUNDED {side}", position=lowering.at(spec))
        return None if offset.upper() == "UNBOUNDED" else 0
    if by is not None and len(by) != 1:
        raise InvalidSyntax("RANGE with an offset requires exactly one ORDER BY column", position=lowering.at(spec))
    if by is not None and (by[0].is_moment or by[0] is SqlType.TIME) and offset is not None:
        after = _span_after(lowering, offset)
        if by[0] is SqlType.TIME:  # of which PostgreSQL adds the hours alone
            after = Span(0, 0, after.microseconds)
        return Span(-after.months, -after.days, -after.microseconds) if side == "PRECEDING" else after
    if by is not None and not by[0].is_number:
        raise UnsupportedQuery(
            "RANGE with an offset needs a number, a moment or a time to order by", position=lowering.at(spec)
        )
    if by is not None and not by[0].is_integer and offset is not None:
        distance = _distance(lowering, offset)
        return -distance if side == "PRECEDING" else distance
    most = 1_000_000 if by is None else 2**31 - 1
    value = lowering.whole(offset, "a frame", 0, most).value if offset is not None else None
    if not isinstance(value, int):
        raise UnsupportedQuery("frame offsets must be constants", position=lowering.at(spec))
    return -value if side == "PRECEDING" else value


def _span_after(lowering: Lowering, offset: exp.Expr) -> Span:
    given = lowering.coercion.to(lowering.lower(offset), SqlType.INTERVAL, lowering.at(offset))
    if not isinstance(given, Literal) or not isinstance(given.value, str):
        raise UnsupportedQuery("frame offsets must be constants", position=lowering.at(offset))
    found = span(given.value)
    if min(found.months, found.days, found.microseconds) < 0:
        raise InvalidParameter("invalid preceding or following size in window function", position=lowering.at(offset))
    if 31 * found.months + found.days + found.microseconds // 86_400_000_000 > _MAX_FRAME_DAYS:
        raise InvalidParameter("a frame takes an interval of at most 4,000 years", position=lowering.at(offset))
    return found


_MAX_FRAME_DAYS = 4_000 * 12 * 31
"""From any date, so many days before it are days that PostgreSQL has: it begins in 4713 BC."""


def _distance(lowering: Lowering, offset: exp.Expr) -> Decimal:
    """A constant distance of fractional numbers."""
    given = lowering.number(offset)
    given = given.argument if isinstance(given, Cast) else given
    if not isinstance(given, Literal) or not isinstance(given.value, int | float | Decimal):
        raise UnsupportedQuery("frame offsets must be constants", position=lowering.at(offset))
    distance = Decimal(str(given.value))
    if not 0 <= distance < 2**31:
        raise InvalidParameter("a frame takes a distance from 0 to 2147483647 here", position=lowering.at(offset))
    return distance


def _grouping(lowering: Lowering, node: exp.Grouping) -> Expr:
    lowering.collected(node)
    lowering.only(node, "expressions")
    inside = lowering.inside_aggregate()
    return Call("grouping", tuple(inside.value(part) for part in node.expressions), SqlType.INTEGER)


BY_NAME: dict[str, Method] = dict.fromkeys(NAMED, _aggregate)
METHODS: dict[type[exp.Expr], Method] = {
    exp.Filter: _filtered,
    **dict.fromkeys((*BY_NODE, exp.WithinGroup), _aggregate),
    exp.ArrayToString: _array_to_string,
    exp.Window: _window,
    exp.Grouping: _grouping,
}


def released_groups(
    status: Protected, aggregate: Aggregate, calls: Mapping[AggregateCall, Field], fields: Fields
) -> Relation:
    """The groups of an aggregation of protected rows.

    Args:
        status: The rows.
        aggregate: The aggregation.
        calls: Its aggregates, and the field that each gives.
        fields: The source of further fields.
    """
    separate = {call: field for call, field in calls.items() if FUNCTIONS[call.function].separate is not None}
    others = {call: field for call, field in calls.items() if call not in separate}
    chosen, numbers = _as_numbers(others, fields)
    limits = tuple((fields.new(SqlType.DOUBLE), fields.new(SqlType.DOUBLE)) for _ in chosen)
    rest = replace(aggregate, aggregate_fields=tuple(chosen.values()), aggregates=tuple(chosen))
    base = _as_moments(Release(status, rest, limits), numbers) if others or not separate else None
    return _with_separate(base, aggregate, separate, status, fields) if base is None or separate else base


def _with_separate(
    base: Relation | None, aggregate: Aggregate, calls: Mapping[AggregateCall, Field], status: Protected, fields: Fields
) -> Relation:
    """The groups of an aggregation, each with the values of such aggregates.

    Args:
        base: The release of all other aggregates, if there are any.
        aggregate: The aggregation; its keys are the groups'.
        calls: Aggregates that are releases of their own, and the field that each gives.
        status: The rows.
        fields: The source of further fields.
    """
    relation = base
    if relation is None and not aggregate.keys:
        # Without keys there is exactly one row.
        relation = Values((fields.new(SqlType.BOOLEAN),), ((TRUE,),))
    for call, field in calls.items():
        keys = tuple(fields.new(key.type) for key in aggregate.keys) if relation is not None else aggregate.key_fields
        separate = FUNCTIONS[call.function].separate
        if separate is None:
            raise TypeError(f"{call.function} is released with others")
        groups = separate(call, field, keys, aggregate.keys, status, fields)
        relation = groups if relation is None else Join("left", relation, groups, _same(aggregate.key_fields, keys))
    if relation is None:
        raise TypeError("there is an aggregate")
    return relation


def _same(left: tuple[Field, ...], right: tuple[Field, ...]) -> Expr:
    """True where two groups are one, NULLs included."""
    pairs = (tuple(map(Column, pair)) for pair in zip(left, right, strict=True))
    return all_of(*(negated(Call("distinct_from", pair, SqlType.BOOLEAN)) for pair in pairs))


_EPOCH = Literal(date(1970, 1, 1), SqlType.DATE)
_UTC = Literal("UTC", SqlType.TEXT)


def _as_numbers(
    calls: Mapping[AggregateCall, Field], fields: Fields
) -> tuple[dict[AggregateCall, Field], dict[Field, Field]]:
    """The calls, those that choose a moment as calls of numbers, and for each field of a moment that of its number."""
    found = {call: field for call, field in calls.items() if not _chooses_moment(call)}
    numbers: dict[Field, Field] = {}
    for call, field in calls.items():
        if call.argument is not None and _chooses_moment(call):
            number = _number_of(call.argument)
            chosen = replace(call, argument=number, type=number.type)
            numbers[field] = found.setdefault(chosen, fields.new(number.type))
    return found, numbers


def _as_moments(relation: Relation, numbers: Mapping[Field, Field]) -> Relation:
    """The relation with its numbers converted to dates and timestamps; unchanged if there are none."""
    if not numbers:
        return relation
    written: dict[Field, Expr] = {field: Column(field) for field in relation.fields}
    written |= {field: _moment_of(Column(number), field.type) for field, number in numbers.items()}
    return Project(relation, tuple(written), tuple(written.values()))


def _chooses_moment(call: AggregateCall) -> bool:
    return FUNCTIONS[call.function].is_ranked and call.type.is_moment


def _number_of(moment: Expr) -> Expr:
    """The days of a date, or the seconds of a timestamp, since the first of January 1970."""
    if moment.type is SqlType.DATE:
        return Cast(Call("days_between", (moment, _EPOCH), SqlType.BIGINT), SqlType.INTEGER)
    seconds = Call("extract_epoch", (moment,), SqlType.DOUBLE)
    return Cast(Call("floor", (seconds,), SqlType.DOUBLE), SqlType.BIGINT)


def _moment_of(number: Expr, sql_type: SqlType) -> Expr:
    """The date or timestamp that is this number of days or seconds after the epoch."""
    if sql_type is SqlType.DATE:
        return Call("date_add", (_EPOCH, number), SqlType.DATE)
    moment = Call("from_epoch", (Cast(number, SqlType.DOUBLE),), SqlType.TIMESTAMPTZ)
    return moment if sql_type is SqlType.TIMESTAMPTZ else Call("at_zone", (moment, _UTC), SqlType.TIMESTAMP)


@dataclass(frozen=True)
class Ordered:
    """Ordered groups, some of which are shown.

    Attributes:
        relation: The groups.
        outputs: The output expressions.
        order: Their order.
        limit: The number of groups shown; None for all.
        offset: The number of groups skipped before them.
    """

    relation: Relation
    outputs: tuple[Expr, ...]
    order: tuple[Order, ...]
    limit: int | None
    offset: int

    def chosen(self, catalog: Catalog, fields: Fields) -> "Ordered":
        """Return these groups selected by top-k if an unshown score orders them and that pays off; else unchanged."""
        release = self.relation
        if not isinstance(release, Release) or not self._shows_keys(release) or self.limit is None:
            return self
        count, aggregate = self.limit + self.offset, release.aggregate
        if count < 1 or not _is_worth_it(count, release, catalog, fields):
            return self
        score, *others = self.order
        place = fields.new(SqlType.BIGINT)
        picking = replace(
            release,
            aggregate=replace(aggregate, aggregate_fields=(place,)),
            picks=Picks(count, least=not score.descending),
        )
        order = (replace(score, expression=Column(place), descending=False), *others)
        return replace(self, relation=picked_groups(picking), order=order)

    def _shows_keys(self, release: Release) -> bool:
        """True if one count or sum is the first sort key, and nothing else is computed from it."""
        aggregate = release.aggregate
        if not aggregate.keys or len(aggregate.aggregates) != 1 or not self.order:
            return False
        score, *others = (term.expression for term in self.order)
        is_score = (
            score == Column(aggregate.aggregate_fields[0]) and FUNCTIONS[aggregate.aggregates[0].function].orders_groups
        )
        return is_score and _are_of((*self.outputs, *others), aggregate.key_fields)


def _are_of(expressions: Sequence[Expr], keys: Sequence[Field]) -> bool:
    """True if the expressions depend only on the keys of their own row."""
    found = frozenset[Field]().union(*map(fields_in, expressions))
    return found <= frozenset(keys) and not any(windows_in(each) or relations_in(each) for each in expressions)


def _is_worth_it(count: int, release: Release, catalog: Catalog, fields: Fields) -> bool:
    """True if top-k over public keys is better than noisy counts; policy and SQL alone decide."""
    protected = release.protected
    domain = enumerate_keys(release.aggregate.keys, protected.relation, catalog, fields)
    if domain is None or min_units(release.aggregate) > 1:
        return False
    (score,) = release.aggregate.aggregates
    of_units = score.distinct and score.argument is not None and protected.is_unit_or_null(score.argument)
    # The noise of a histogram is for the groups that a unit's rows can fill, where these are fewer.
    filled = protected.groups_per_unit if of_units else protected.rows_per_unit // protected.rows_per_group
    touched = filled if domain[1] is None else min(filled, domain[1])
    fits = domain[1] is None or count <= domain[1]
    policy = catalog.policy.dataset
    return fits and worth_top_k(count, max(1, touched), catalog.role.budget.accountant, policy.adjacency)
