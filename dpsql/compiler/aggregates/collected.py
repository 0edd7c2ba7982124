"""collected: STRING_AGG, ARRAY_AGG and the aggregates of JSON: all values of a group as one value.

Over protected rows they would show the rows, so they are refused. Over public and released rows they are computed by
post-processing, for every engine.
"""

from functools import partial

from sqlglot import exp

from dpsql.compiler.aggregates.base import AggregateFunction, CallMaker
from dpsql.compiler.expressions.json_values import json_of, member, row_columns
from dpsql.compiler.ir.nodes import AggregateCall, Expr, Literal, Order, Protected
from dpsql.compiler.scope.lowering import Lowering
from dpsql.compiler.sql.rewriting import replaced
from dpsql.errors import DatatypeMismatch, PolicyViolation, UnsupportedQuery
from dpsql.sqltypes import SqlType


def _arguments(
    lowering: Lowering, node: exp.Expr, name: str, count: int
) -> tuple[list[exp.Expr], bool, tuple[Order, ...]]:
    """Return the arguments of a call, whether it has DISTINCT, and its ORDER BY."""
    lowering.only(node, "this", "expressions", "expression")
    given = list(node.expressions)
    if not isinstance(node, exp.Anonymous):
        given += [part for part in (node.this, node.args.get("expression")) if part is not None]
    terms: list[exp.Expr] = []
    if given and isinstance(given[-1], exp.Order):
        terms, given[-1] = given[-1].expressions, given[-1].this
    is_distinct = bool(given) and isinstance(given[0], exp.Distinct)
    if is_distinct:
        given[:1] = given[0].expressions
    if len(given) != count:
        wanted = "one argument" if count == 1 else "two arguments"
        raise UnsupportedQuery(f"{name.upper()} takes {wanted}", position=lowering.at(node))
    return given, is_distinct, tuple(map(lowering.order, terms))


def _only_once(
    lowering: Lowering, node: exp.Expr, argument: Expr, order: tuple[Order, ...], is_distinct: bool
) -> tuple[Order, ...]:
    """Return the order of the values: DISTINCT without ORDER BY sorts them in ascending order."""
    if not is_distinct:
        return order
    lowering.need_comparable(argument.type, node)
    if any(term.expression != argument for term in order):
        raise DatatypeMismatch(
            "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list",
            hint="Order by the argument, or select distinct rows in a subquery.",
            position=lowering.at(node),
        )
    return order or (Order(argument, False, False),)


def _string_agg(lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
    """STRING_AGG(text, separator): values that are NULL are left out."""
    (value, separator), is_distinct, order = _arguments(lowering, node, "string_agg", 2)
    argument, between = lowering.value(value), lowering.text(separator)
    if not argument.type.is_text:
        raise DatatypeMismatch(
            f"function string_agg({argument.type.value}, text) does not exist",
            hint="Cast the value to text.",
            position=lowering.at(node),
            queries=replaced(value, "CAST({} AS text)"),
        )
    if not isinstance(between, Literal):
        raise UnsupportedQuery("the separator of STRING_AGG must be a constant", position=lowering.at(separator))
    between = Literal("", SqlType.TEXT) if between.value is None else between
    order = _only_once(lowering, node, argument, order, is_distinct)
    return AggregateCall("string_agg", argument, is_distinct, condition, SqlType.TEXT, other=between, order=order)


def _array_agg(lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
    """ARRAY_AGG(value): NULLs are elements, too."""
    (value,), is_distinct, order = _arguments(lowering, node, "array_agg", 1)
    argument = lowering.value(value)
    if argument.type.is_array or argument.type.array is SqlType.ARRAY:
        raise DatatypeMismatch(
            f"arrays of type {argument.type.value} are not supported",
            hint="Collect single values.",
            position=lowering.at(node),
        )
    order = _only_once(lowering, node, argument, order, is_distinct)
    return AggregateCall("array_agg", argument, is_distinct, condition, argument.type.array, order=order)


def _json_agg(name: str, kind: SqlType, lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
    """JSON_AGG(value): whole rows are separated by line breaks, as in PostgreSQL."""
    (value,), is_distinct, order = _arguments(lowering, node, name, 1)
    _refuse_distinct(lowering, node, name, is_distinct)
    is_row = row_columns(lowering, value) is not None
    between = Literal(", \n " if is_row else ", ", SqlType.TEXT)
    argument = json_of(lowering, value, kind)
    return AggregateCall("json_agg", argument, False, condition, kind, other=between, order=order)


def _json_object_agg(
    name: str, kind: SqlType, lowering: Lowering, node: exp.Expr, condition: Expr | None
) -> AggregateCall:
    """JSON_OBJECT_AGG(key, value)."""
    (key, value), is_distinct, order = _arguments(lowering, node, name, 2)
    _refuse_distinct(lowering, node, name, is_distinct)
    argument, between = member(lowering, key, value, kind), Literal(", ", SqlType.TEXT)
    return AggregateCall("json_object_agg", argument, False, condition, kind, other=between, order=order)


def _refuse_distinct(lowering: Lowering, node: exp.Expr, name: str, is_distinct: bool) -> None:
    if is_distinct:
        raise UnsupportedQuery(
            f"{name.upper()}(DISTINCT …) is not supported",
            hint="Select distinct rows in a subquery.",
            position=lowering.at(node),
        )


def _refused(name: str, call: AggregateCall, status: Protected, position: int | None) -> None:
    """Refuse protected rows.

    Raises:
        PolicyViolation: Always.
    """
    raise PolicyViolation(
        f"{name.upper()} over rows of protected tables would show them",
        hint="Aggregate them in a subquery, and collect its rows.",
        position=position,
    )


def _function(name: str, call: CallMaker, *nodes: type[exp.Expr]) -> AggregateFunction:
    return AggregateFunction(name, call, nodes, check=partial(_refused, name), has_interval=False, in_windows=True)


FUNCTIONS = (
    _function("string_agg", _string_agg),
    _function("array_agg", _array_agg, exp.ArrayAgg),
    _function("json_agg", partial(_json_agg, "json_agg", SqlType.JSON)),
    _function("jsonb_agg", partial(_json_agg, "jsonb_agg", SqlType.JSONB)),
    _function("json_object_agg", partial(_json_object_agg, "json_object_agg", SqlType.JSON), exp.JSONObjectAgg),
    _function("jsonb_object_agg", partial(_json_object_agg, "jsonb_object_agg", SqlType.JSONB), exp.JSONBObjectAgg),
)
