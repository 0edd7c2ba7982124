"""subqueries: EXISTS, IN and scalar subqueries.

Rule 1: in an expression over a protected row, a subquery over protected rows sees only the rows of that row's unit.
Rule 2: to the query around it, a released or public subquery is a constant of unknown value.
"""

from dataclasses import replace

from sqlglot import exp

from dpsql.compiler.expressions.arrays import array_items
from dpsql.compiler.expressions.logic import COMPARISONS, comparison, in_list
from dpsql.compiler.ir.conditions import negated
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Case,
    Column,
    Exists,
    Expr,
    Field,
    Filter,
    InRelation,
    Literal,
    Project,
    Protected,
    Relation,
    Scalar,
)
from dpsql.compiler.ir.walk import free_fields
from dpsql.compiler.relations.empty_results import is_beside_people, refuse_undetermined
from dpsql.compiler.relations.joins import (
    Equalities,
    is_single,
    linking,
    refuse_unlisted,
    shows_absence,
    with_same_unit,
)
from dpsql.compiler.scope.lowering import Lowered, Lowering, Method
from dpsql.compiler.sql.rewriting import counted, linked
from dpsql.errors import InvalidSyntax, PolicyViolation, UnsupportedQuery
from dpsql.sqltypes import SqlType


def _in(lowering: Lowering, node: exp.In) -> Expr:
    if node.args.get("query") is None:
        return in_list(lowering, node)
    lowering.only(node, "this", "query")
    return _member(lowering, node.this, node.args["query"], node)


def _quantifier(node: exp.Expr) -> tuple[str, exp.Expr] | None:
    """The kind ("any" or "all") and the operand of ANY (…), SOME (…) or ALL (…); None for other expressions."""
    if isinstance(node, exp.Any | exp.All):
        return node.key, node.this.this if isinstance(node.this, exp.Paren) else node.this
    if isinstance(node, exp.Anonymous) and node.name.upper() in ("ALL", "SOME") and len(node.expressions) == 1:
        return "all" if node.name.upper() == "ALL" else "any", node.expressions[0]
    return None


def _comparison(lowering: Lowering, node: exp.Binary) -> Expr:
    quantifier = _quantifier(node.expression)
    return comparison(lowering, node) if quantifier is None else _quantified(lowering, node, *quantifier)


def _quantified(lowering: Lowering, node: exp.Binary, kind: str, items: exp.Expr) -> Expr:
    """Lower `x = ANY (…)`, which is IN, and `x <> ALL (…)`, which is NOT IN."""
    excluded = {(exp.EQ, "any"): False, (exp.NEQ, "all"): True}.get((type(node), kind))
    listed = array_items(lowering, items) if excluded is not None else None
    if excluded is None or (listed is None and not isinstance(items, exp.Subquery | exp.Select)):
        raise UnsupportedQuery(
            "only = ANY and <> ALL are supported",
            hint="Use IN, or compare with MIN or MAX of the subquery.",
            position=lowering.at(node),
        )
    if listed == []:
        lowering.lower(node.this)
        return Literal(excluded, SqlType.BOOLEAN)
    if listed is not None:
        found = lowering.lower(exp.In(this=node.this, expressions=listed))
    else:
        found = _member(lowering, node.this, items, node)
    return negated(found) if excluded else found


def _member(lowering: Lowering, value: exp.Expr, query: exp.Expr, node: exp.Expr) -> Expr:
    if isinstance(value, exp.Tuple):
        raise UnsupportedQuery(
            "comparing a row with a subquery is not supported", hint="Use EXISTS.", position=lowering.at(node)
        )
    argument = lowering.value(value)
    inner = _query(lowering, query)
    field = _only_column(lowering, inner, node)
    places = (lowering.at(value), lowering.at(query))
    left, right = lowering.coercion.unify_compared((argument, Column(field)), places)
    if _asks_for_keys(lowering, argument, inner):
        inner = _of_same_unit(lowering, (left, right), inner)
    else:
        refuse_unlisted(argument, lowering.scope, lowering.at(value))
    _check(lowering, inner, node)
    lowering.need_comparable(left.type, node)
    target = lowering.fields.new(right.type)
    return InRelation(left, Project(inner.relation, (target,), (right,)))


def _exists(lowering: Lowering, node: exp.Exists) -> Expr:
    lowering.only(node, "this")
    inner = _query(lowering, node.this)
    _check(lowering, inner, node)
    return Exists(inner.relation)


def _scalar(lowering: Lowering, node: exp.Subquery) -> Expr:
    inner = _query(lowering, node)
    field = _only_column(lowering, inner, node)
    _check(lowering, inner, node)
    relation: Relation = Project(inner.relation, (lowering.fields.new(field.type),), (Column(field),))
    if isinstance(inner.status, Protected):
        if not (inner.status.one_row or is_single(relation)):
            raise UnsupportedQuery(
                "a subquery over protected rows must give at most one row here",
                hint="Aggregate it, or add ORDER BY and LIMIT 1.",
                position=lowering.at(node),
                queries=counted(node.this) if isinstance(node.this, exp.Select) else (),
            )
    elif free_fields(relation) and not is_single(relation) and is_beside_people(lowering.scope):
        relation = _at_most_one(lowering, relation)
    return Scalar(relation, field.type)


def _query(lowering: Lowering, node: exp.Expr) -> Lowered:
    return lowering.subquery(node, lowering.scope)


def _only_column(lowering: Lowering, inner: Lowered, node: exp.Expr) -> Field:
    if len(inner.columns) != 1:
        raise InvalidSyntax("subquery must return only one column", position=lowering.at(node))
    return inner.columns[0][1]


def _asks_for_keys(lowering: Lowering, argument: Expr, inner: Lowered) -> bool:
    """True if `argument IN (inner)` compares keys that lead to the unit of this row and of the inner rows."""
    outer, status = lowering.scope.protected, inner.status
    if outer is None or not isinstance(status, Protected) or status.absent is not None:
        return False
    compared = Call("eq", (argument, Column(inner.columns[0][1])), SqlType.BOOLEAN)
    return linking(outer, status, Equalities((compared,)))


def _of_same_unit(lowering: Lowering, compared: tuple[Expr, Expr], inner: Lowered) -> Lowered:
    """The inner rows of this row's unit; the units are compared unless both operands are the unit itself."""
    outer, status = lowering.scope.protected, inner.status
    if outer is None or not isinstance(status, Protected) or status.linked is not None:
        return inner
    relation: Relation = status.relation
    if not (outer.is_unit(compared[0]) and status.is_unit(compared[1])):
        relation = Filter(relation, with_same_unit(None, status.unit, outer.unit))
    return replace(inner, status=replace(status, relation=relation, linked=outer.unit))


def _check(lowering: Lowering, inner: Lowered, node: exp.Expr) -> None:
    """Refuse a subquery over rows of units that are not the unit of the row around it."""
    refuse_undetermined(inner, lowering.scope, lowering.at(node))
    if not isinstance(inner.status, Protected):
        return
    if lowering.scope.protected is None:
        raise PolicyViolation(
            "a query over public rows cannot test whether protected rows exist",
            hint="Aggregate them.",
            position=lowering.at(node),
        )
    if inner.status.absent is not None:
        raise shows_absence(lowering.at(node))
    if inner.status.linked is None:
        key = _unit_name(lowering)
        raise UnsupportedQuery(
            f"a subquery over protected rows must compare its {key} with that of the outer row",
            hint=f"Compare {key} on both sides in its WHERE, or aggregate the subquery.",
            position=lowering.at(node),
            queries=linked(node, key),
        )


def _unit_name(lowering: Lowering) -> str:
    """What the unit's key is called in the rows around a subquery."""
    outer = lowering.scope.protected
    named = [pair for source in lowering.scope.sources for pair in (*source.columns, *source.hidden)]
    return next((name for name, field in named if outer is not None and outer.is_unit(Column(field))), "unit_key")


def _at_most_one(lowering: Lowering, relation: Relation) -> Relation:
    """The value of the only row, or NULL if there are several: an error would reveal something about the outer row."""
    (field,) = relation.fields
    count, value = lowering.fields.new(SqlType.BIGINT), lowering.fields.new(field.type)
    calls = (
        AggregateCall("count", None, False, None, SqlType.BIGINT),
        AggregateCall("min", Column(field), False, None, field.type),
    )
    counted = Aggregate(relation, (), (), (count, value), calls)
    is_one = Call("le", (Column(count), Literal(1, SqlType.BIGINT)), SqlType.BOOLEAN)
    only = Case(((is_one, Column(value)),), Literal(None, field.type), field.type)
    return Project(counted, (lowering.fields.new(field.type),), (only,))


METHODS: dict[type[exp.Expr], Method] = {
    **dict.fromkeys(COMPARISONS, _comparison),
    exp.In: _in,
    exp.Exists: _exists,
    exp.Subquery: _scalar,
}
