"""subqueries: EXISTS, IN and scalar subqueries.

Rule 1: in an expression over a protected row, a subquery over protected rows sees only the rows of that row's unit.
Rule 2: to the query around it, a released or public subquery is a constant of unknown value.
"""

from dataclasses import replace

from sqlglot import exp

from dpsql.compiler.expressions.arrays import array_items, has_element, where_known
from dpsql.compiler.expressions.logic import COMPARISONS, MAX_TERMS, comparison, in_list
from dpsql.compiler.expressions.patterns import METHODS as PATTERNS
from dpsql.compiler.ir.conditions import FALSE, TRUE, all_of, any_of, is_null, negated
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
from dpsql.compiler.scope.lowering import MAX_PARTS, Lowered, Lowering, Method
from dpsql.compiler.scope.resolve import Scope
from dpsql.compiler.sql.rewriting import counted, linked, with_extreme
from dpsql.errors import DatatypeMismatch, InvalidSyntax, LimitExceeded, PolicyViolation, UnsupportedQuery
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


def _operator(lowering: Lowering, node: exp.Binary) -> Expr:
    quantifier = _quantifier(node.expression)
    return _OPERATORS[type(node)](lowering, node) if quantifier is None else _quantified(lowering, node, *quantifier)


def _quantified(lowering: Lowering, node: exp.Binary, kind: str, items: exp.Expr) -> Expr:
    """Lower `x = ANY (…)`, which is IN, `x <> ALL (…)`, which is NOT IN, and other comparisons with several values."""
    listed = array_items(lowering, items)
    if listed is not None:
        return _with_each(lowering, node, kind, listed)
    array = lowering.lower(items) if type(node) in _OPPOSITES and not isinstance(items, exp.Query) else None
    if array is not None and array.type.is_array:
        return _with_elements(lowering, node, kind, items, array)
    if type(node) not in _OPPOSITES or not isinstance(items, exp.Query):
        raise UnsupportedQuery(
            f"{kind.upper()} takes an array that the query writes, or after a comparison any array or a subquery",
            hint="Use ARRAY[…], or UNNEST the array in FROM.",
            position=lowering.at(node),
        )
    return _with_rows(lowering, node, kind, items)


def _with_rows(lowering: Lowering, node: exp.Binary, kind: str, query: exp.Query) -> Expr:
    if (type(node), kind) not in _MEMBERSHIP:
        return _with_query(lowering, node, kind, query)
    found = _member(lowering, node.this, query, node)
    return negated(found) if kind == "all" else found


def _with_elements(lowering: Lowering, node: exp.Binary, kind: str, items: exp.Expr, array: Expr) -> Expr:
    """Compare with each element of an array that the query does not write."""
    is_member = (type(node), kind) in _MEMBERSHIP
    found = has_element(lowering, node.this, array, node) if is_member else None
    if found is not None:
        return negated(found) if kind == "all" else found
    rows = exp.Select(expressions=[exp.Explode(this=items.copy())])
    return where_known([array], _with_rows(lowering, node, kind, rows))


def _with_each(lowering: Lowering, node: exp.Binary, kind: str, items: list[exp.Expr]) -> Expr:
    """Compare with each item of an array."""
    if not items:
        lowering.lower(node.this)
        return TRUE if kind == "all" else FALSE
    if (type(node), kind) in _MEMBERSHIP:
        found = lowering.lower(exp.In(this=node.this, expressions=items))
        return negated(found) if kind == "all" else found
    if len(items) > MAX_TERMS:
        raise LimitExceeded(f"an array may have at most {MAX_TERMS:,} items here", position=lowering.at(node))
    terms, parts = [], 0
    for item in items:
        each = type(node)(**{**node.args, "this": node.this.copy(), "expression": item.copy()})  # not the array
        terms.append(lowering.lower(each))
        parts += lowering.sizes.of(terms[-1])
        if parts > MAX_PARTS:
            what = f"the comparison has more than {MAX_PARTS:,} parts after expansion"
            raise LimitExceeded(what, hint="Compare with fewer items.", position=lowering.at(node))
    return (all_of if kind == "all" else any_of)(*terms)


_MEMBERSHIP = ((exp.EQ, "any"), (exp.NEQ, "all"))
_OPPOSITES: dict[type[exp.Expr], type[exp.Binary]] = {
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
}


def _with_query(lowering: Lowering, node: exp.Binary, kind: str, query: exp.Query) -> Expr:
    """Compare with each row of a subquery: `x > ANY (…)` is `NOT x <= ALL (…)`."""
    operator = type(node) if kind == "all" else _OPPOSITES[type(node)]
    inner = _query(lowering, query)
    field = _only_column(lowering, inner, node)
    if isinstance(inner.status, Protected) and inner.status.linked is None:
        extreme = "MIN" if isinstance(node, exp.LT | exp.LTE) == (kind == "all") else "MAX"
        raise UnsupportedQuery(
            f"this operator with {kind.upper()} is not supported over protected rows",
            hint="Compare with MIN or MAX of the subquery.",
            position=lowering.at(node),
            queries=with_extreme(node, extreme, query),
        )
    argument = lowering.lower(node.this)
    compared = Call(COMPARISONS[operator], (argument, Column(field)), SqlType.BOOLEAN)
    refuse_unlisted(compared, Scope((inner.source(""),), outer=lowering.scope), lowering.at(node.this))
    _check(lowering, inner, node)
    places = (lowering.at(node.this), lowering.at(query))
    left, right = lowering.coercion.unify_compared((argument, Column(field)), places)
    if not (left.type.is_number or left.type.is_text or left.type.is_moment):
        raise DatatypeMismatch(f"{kind.upper()} takes numbers, texts and moments here", position=lowering.at(node))
    found = _with_all(lowering, COMPARISONS[operator], left, right, inner.relation)
    return found if kind == "all" else negated(found)


def _with_all(lowering: Lowering, operator: str, left: Expr, right: Expr, relation: Relation) -> Expr:
    """True where a comparison holds for each row: it then holds for the least value and for the greatest.

    It is true of no rows. It is NULL where it holds for some rows, and the value of others is NULL.
    """
    new = lowering.fields.new
    target, known, rows = new(right.type), new(SqlType.BIGINT), new(SqlType.BIGINT)
    extremes = {new(right.type): name for name in ("min", "max")}
    calls = [AggregateCall(name, Column(target), False, None, right.type) for name in extremes.values()]
    calls += [AggregateCall("count", part, False, None, SqlType.BIGINT) for part in (Column(target), None)]
    values = Project(relation, (target,), (right,))
    told = Aggregate(values, (), (), (*extremes, known, rows), tuple(calls))

    def value(field: Field) -> Expr:
        return Scalar(Project(told, (new(field.type),), (Column(field),)), field.type)

    holds = [Call(operator, (left, value(field)), SqlType.BOOLEAN) for field in extremes]
    is_complete = Call("eq", (value(known), value(rows)), SqlType.BOOLEAN)
    complete = Case(((is_complete, TRUE),), _UNKNOWN, SqlType.BOOLEAN)
    is_empty = Call("eq", (value(rows), Literal(0, SqlType.BIGINT)), SqlType.BOOLEAN)
    return Case(((is_empty, TRUE),), all_of(*holds, complete), SqlType.BOOLEAN)


def _member(lowering: Lowering, value: exp.Expr, query: exp.Expr, node: exp.Expr) -> Expr:
    if isinstance(value, exp.Tuple):
        return _row_member(lowering, value, query, node)
    argument = lowering.lower(value)
    inner = _query(lowering, query)
    field = _only_column(lowering, inner, node)
    places = (lowering.at(value), lowering.at(query))
    left, right = lowering.coercion.unify_compared((argument, Column(field)), places)
    if _asks_for_keys(lowering, Call("eq", (argument, Column(field)), SqlType.BOOLEAN), inner):
        inner = _of_same_unit(lowering, (left, right), inner)
    else:
        refuse_unlisted(argument, lowering.scope, lowering.at(value))
    _check(lowering, inner, node)
    lowering.need_comparable(left.type, node)
    target = lowering.fields.new(right.type)
    return InRelation(left, Project(inner.relation, (target,), (right,)))


def _row_member(lowering: Lowering, row: exp.Tuple, query: exp.Expr, node: exp.Expr) -> Expr:
    """`(a, b) IN (SELECT c, d …)`: true if a row equals it, NULL if a row might, else false."""
    arguments = [lowering.lower(part) for part in row.expressions]
    inner = _query(lowering, query)
    if len(inner.columns) != len(arguments):
        many = "many" if len(inner.columns) > len(arguments) else "few"
        raise InvalidSyntax(f"subquery has too {many} columns", position=lowering.at(node))
    terms = []
    for part, argument, (_, field) in zip(row.expressions, arguments, inner.columns, strict=True):
        places = (lowering.at(part), lowering.at(query))
        sides = lowering.coercion.unify_compared((argument, Column(field)), places)
        lowering.need_comparable(sides[0].type, node)
        terms.append(Call("eq", sides, SqlType.BOOLEAN))
    equal = all_of(*terms)
    keys = frozenset[Field]()
    if _asks_for_keys(lowering, equal, inner):
        statuses = [status for status in (lowering.scope.protected, inner.status) if isinstance(status, Protected)]
        keys = frozenset(field for status in statuses for link in status.links for field in link.fields)
        inner = _of_same_unit(lowering, None, inner)
    both = Scope((inner.source(""),), outer=lowering.scope)
    refuse_unlisted(equal, both, lowering.at(row), keys)
    _check(lowering, inner, node)
    found, unknown = (Exists(Filter(inner.relation, condition)) for condition in (equal, is_null(equal)))
    return Case(((found, TRUE), (unknown, _UNKNOWN)), FALSE, SqlType.BOOLEAN)


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


def _asks_for_keys(lowering: Lowering, equal: Expr, inner: Lowered) -> bool:
    """True if IN compares keys that lead to the unit of this row and of the inner rows."""
    outer, status = lowering.scope.protected, inner.status
    if outer is None or not isinstance(status, Protected) or status.absent is not None:
        return False
    return linking(outer, status, Equalities((equal,)))


def _of_same_unit(lowering: Lowering, compared: tuple[Expr, Expr] | None, inner: Lowered) -> Lowered:
    """The inner rows of this row's unit; the units are compared unless both operands are the unit itself."""
    outer, status = lowering.scope.protected, inner.status
    if outer is None or not isinstance(status, Protected) or status.linked is not None:
        return inner
    relation: Relation = status.relation
    if compared is None or not (outer.is_unit(compared[0]) and status.is_unit(compared[1])):
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


_UNKNOWN = Literal(None, SqlType.BOOLEAN)
_OPERATORS: dict[type[exp.Expr], Method] = {**dict.fromkeys(COMPARISONS, comparison), **PATTERNS}
"""Operators that ANY and ALL may follow."""
METHODS: dict[type[exp.Expr], Method] = {
    **dict.fromkeys(_OPERATORS, _operator),
    exp.In: _in,
    exp.Exists: _exists,
    exp.Subquery: _scalar,
}
