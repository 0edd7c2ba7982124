"""select: the part of a SELECT after WHERE: its list, GROUP BY, HAVING, DISTINCT, ORDER BY and LIMIT.

Rule: an aggregation of protected rows becomes a Release; rows that are only filtered and projected stay protected.
"""

from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.compiler.casts import type_name
from dpsql.compiler.clauses import Clauses, Lowered
from dpsql.compiler.ir import (
    Aggregate,
    AggregateCall,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Order,
    Project,
    Protected,
    Relation,
    Release,
    Released,
    Sort,
    Status,
    Window,
    fields_in,
    rewrite_expression,
    windows_in,
)
from dpsql.compiler.lowering import Aggregates, Lowering, refuse_other_arguments
from dpsql.compiler.resolve import Scope, Source, identifier
from dpsql.errors import (
    AmbiguousColumn,
    DatatypeMismatch,
    GroupingError,
    InvalidSyntax,
    PolicyViolation,
    UndefinedColumn,
    UnsupportedQuery,
)
from dpsql.sqltypes import SqlType, parse_type

_NOT_KEYS = frozenset({SqlType.REAL, SqlType.DOUBLE, SqlType.INTERVAL, SqlType.JSON, SqlType.BYTEA, SqlType.ARRAY})


@dataclass(frozen=True)
class Item:
    """One output column: its name, its text, and the field it is where `*` stood."""

    name: str
    node: exp.Expr
    field: Field | None


def select_list(clauses: Clauses, select: exp.Select, sources: tuple[Source, ...]) -> tuple[Item, ...]:
    """The SELECT list with `*` written out."""
    items: list[Item] = []
    for node in select.expressions:
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            refuse_other_arguments(node, "this", "table", offset=clauses.offset)
            if not sources:
                raise InvalidSyntax("SELECT * with no tables specified is not valid", position=clauses.at(node))
            items += [Item(name, node, field) for name, field in Scope(sources, clauses.offset).star(node)]
        elif isinstance(node, exp.Alias):
            items.append(Item(identifier(node.args["alias"]), node.this, None))
        else:
            items.append(Item(output_name(node, clauses.sql), node, None))
    if not items:
        raise InvalidSyntax("SELECT needs a list of columns", position=clauses.at(select))
    return tuple(items)


_TYPE_NAMES = {
    SqlType.BOOLEAN: "bool",
    SqlType.SMALLINT: "int2",
    SqlType.INTEGER: "int4",
    SqlType.BIGINT: "int8",
    SqlType.REAL: "float4",
    SqlType.DOUBLE: "float8",
    SqlType.CHAR: "bpchar",
    SqlType.VARCHAR: "varchar",
    SqlType.TIME: "time",
    SqlType.TIMESTAMP: "timestamp",
    SqlType.TIMESTAMPTZ: "timestamptz",
}
_UNNAMED = "?column?"


def output_name(node: exp.Expr, sql: str) -> str:
    """The name PostgreSQL gives a column without an alias.

    Args:
        node: The column's expression.
        sql: The query's text, for a function is named as it was written.
    """
    match node:
        case exp.Column():
            return identifier(node.this)
        case exp.Paren() | exp.Filter() | exp.Window():
            return output_name(node.this, sql)
        case exp.Cast():
            inner = output_name(node.this, sql)
            return inner if inner != _UNNAMED else _type_name(node.args["to"])
        case exp.Case():
            default = node.args.get("default")
            otherwise = output_name(default, sql) if default is not None else _UNNAMED
            return otherwise if otherwise != _UNNAMED else "case"
        case exp.Trim():
            return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position")).upper(), "btrim")
        case exp.Boolean() | exp.Connector():
            return _UNNAMED
        case exp.Func():
            written = _as_written(node, sql)
            return written if written is not None else _unwritten(node)
    return _UNNAMED


def _as_written(node: exp.Expr, sql: str) -> str | None:
    start, end = node.meta.get("start"), node.meta.get("end")
    return sql[start : end + 1].lower() if isinstance(start, int) and isinstance(end, int) else None


def _unwritten(node: exp.Func) -> str:
    """The name of a function whose place in the text is not known: a word without parentheses, or an operator."""
    if isinstance(node, exp.StrPosition):
        return "position"
    return _UNNAMED if isinstance(node, exp.Binary) else node.sql_name().lower()


def _type_name(written: exp.Expr) -> str:
    name = type_name(written)
    try:
        return _TYPE_NAMES.get(parse_type(name), parse_type(name).value)
    except ValueError:
        return name


def refuse_hidden_unit(clauses: Clauses, expression: Expr, sources: tuple[Source, ...], node: exp.Expr) -> None:
    """A unit key that the policy does not list as a column stands in COUNT(DISTINCT …) and nowhere else."""
    hidden = {field for source in sources for _, field in source.hidden}
    if hidden & fields_in(expression):
        raise UndefinedColumn(
            "the unit key may only stand in COUNT(DISTINCT …) by itself",
            hint="The data owner can list it as a column in the policy to allow more.",
            position=clauses.at(node),
        )


def _window_refused(at: int | None) -> UnsupportedQuery:
    return UnsupportedQuery(
        "window functions over rows of protected tables are not supported",
        hint="Aggregate first; a window may stand over the result.",
        position=at,
    )


@dataclass
class Selection:
    """The part of a SELECT after WHERE: rows or groups."""

    clauses: Clauses
    node: exp.Select
    sources: tuple[Source, ...]
    status: Status
    items: tuple[Item, ...]

    def lower(self) -> Lowered:
        """Project rows, or aggregate groups."""
        clauses, node = self.clauses, self.node
        aggregates = Aggregates(clauses.fields)
        grouped = node.args.get("group") is not None
        protected = isinstance(self.status, Protected)
        selected = clauses.expressions(self.sources, "in the SELECT list")
        lowerer = replace(selected, aggregates=aggregates, windows=True)
        outputs = [Column(i.field) if i.field is not None else lowerer.value(i.node) for i in self.items]
        having = node.args.get("having")
        condition = lowerer.condition(having.this) if having is not None else None
        order = self._order(lowerer, outputs)
        keys = self._keys(outputs) if grouped else ()
        distinct = self._distinct()
        if grouped or aggregates.calls or condition is not None:
            outputs, order = self._aggregate(keys, aggregates, outputs, condition, order)
        elif protected and distinct:
            outputs, order = self._aggregate(tuple(dict.fromkeys(outputs)), aggregates, outputs, None, order)
            distinct = False
        if isinstance(self.status, Protected):
            return self._protected_rows(outputs)
        return self._finish(outputs, order, distinct)

    def _distinct(self) -> bool:
        distinct = self.node.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            raise UnsupportedQuery(
                "DISTINCT ON is not supported", hint="Use GROUP BY.", position=self.clauses.at(distinct)
            )
        return distinct is not None

    def _keys(self, outputs: list[Expr]) -> tuple[Expr, ...]:
        clauses, group = self.clauses, self.node.args["group"]
        refuse_other_arguments(group, "expressions", offset=clauses.offset)
        lowerer = clauses.expressions(self.sources, "in GROUP BY")
        if not group.expressions:
            raise InvalidSyntax("GROUP BY needs a list", hint="GROUP BY 1", position=clauses.at(self.node))
        keys: list[Expr] = []
        for node in group.expressions:
            if isinstance(node, exp.Tuple):
                keys += [lowerer.value(part) for part in node.expressions]
                continue
            if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
                raise UnsupportedQuery(f"{node.key.upper()} is not supported", position=clauses.at(node))
            ordinal = clauses.ordinal(node, len(self.items))
            alias = self._alias(node) if ordinal is None else None
            index = ordinal if ordinal is not None else alias
            if index is None:
                keys.append(lowerer.value(node))
                continue
            item = self.items[index]
            keys.append(Column(item.field) if item.field is not None else lowerer.value(item.node))
        return tuple(dict.fromkeys(keys))

    def _alias(self, node: exp.Expr) -> int | None:
        """The output a bare name means: in GROUP BY an input column of that name comes first."""
        if not isinstance(node, exp.Column) or node.args.get("table") is not None:
            return None
        name = identifier(node.this)
        if any(name == column for source in self.sources for column, _ in source.columns):
            return None
        found = [index for index, item in enumerate(self.items) if item.name == name]
        return found[0] if found else None

    def _order(self, lowerer: Lowering, outputs: list[Expr]) -> tuple[Order, ...]:
        order = self.node.args.get("order")
        if order is None:
            return ()
        refuse_other_arguments(order, "expressions", offset=self.clauses.offset)
        lowerer = replace(lowerer, clause="in ORDER BY")
        terms = []
        for term in order.expressions:
            inner = term.this if isinstance(term, exp.Ordered) else term
            index = self.clauses.ordinal(inner, len(self.items))
            if index is None and isinstance(inner, exp.Column) and inner.args.get("table") is None:
                name = identifier(inner.this)
                named = [i for i, item in enumerate(self.items) if item.name == name]
                if len({outputs[i] for i in named}) > 1:
                    raise AmbiguousColumn(
                        f'ORDER BY "{name}" is ambiguous', hint="ORDER BY 1", position=self.clauses.at(inner)
                    )
                index = named[0] if named else None
            if index is None:
                terms.append(lowerer.order(term))
            else:
                descending = bool(term.args.get("desc")) if isinstance(term, exp.Ordered) else False
                first = bool(term.args.get("nulls_first")) if isinstance(term, exp.Ordered) else False
                terms.append(Order(outputs[index], descending, first))
        return tuple(terms)

    def _aggregate(
        self,
        keys: tuple[Expr, ...],
        aggregates: Aggregates,
        outputs: list[Expr],
        condition: Expr | None,
        order: tuple[Order, ...],
    ) -> tuple[list[Expr], tuple[Order, ...]]:
        """Cut here: what stands above refers to groups only."""
        clauses = self.clauses
        key_fields = tuple(clauses.fields.new(key.type) for key in keys)
        calls = tuple(aggregates.calls)
        aggregate = Aggregate(self.status.relation, key_fields, keys, tuple(aggregates.calls.values()), calls)
        if isinstance(self.status, Protected):
            self._check_protected(self.status, keys, calls)
            margins = tuple(clauses.fields.new(SqlType.DOUBLE) for _ in calls)
            self.status = Released(Release(self.status, aggregate, margins))
        else:
            self.status = replace(self.status, relation=aggregate)
        by_key = dict(zip(keys, key_fields, strict=True))

        def regroup(expression: Expr, node: exp.Expr) -> Expr:
            regrouped = rewrite_expression(expression, lambda part: Column(by_key[part]) if part in by_key else None)
            if not fields_in(regrouped) <= set(aggregate.fields):
                raise GroupingError(
                    "a column must appear in the GROUP BY clause or be used in an aggregate function",
                    hint="Add it to GROUP BY, or put it into COUNT, SUM or AVG.",
                    position=clauses.at(node),
                )
            return regrouped

        if condition is not None:
            grouped = regroup(condition, self.node.args["having"])
            self.status = replace(self.status, relation=Filter(self.status.relation, grouped))
        outputs = [regroup(e, item.node) for e, item in zip(outputs, self.items, strict=True)]
        node = self.node.args.get("order") or self.node
        return outputs, tuple(replace(term, expression=regroup(term.expression, node)) for term in order)

    def _check_protected(self, status: Protected, keys: tuple[Expr, ...], calls: tuple[AggregateCall, ...]) -> None:
        clauses = self.clauses
        group = self.node.args.get("group") or self.node
        unit = status.unit
        arguments = [part for call in calls for part in (call.argument, call.filter) if part is not None]
        if any(windows_in(part) for part in (*keys, *arguments)):
            raise _window_refused(clauses.at(group))
        if not keys and not calls:
            raise UnsupportedQuery(
                "HAVING over rows of protected tables needs an aggregate or GROUP BY",
                hint="SELECT COUNT(*) FROM …",
                position=clauses.at(group),
            )
        for key in keys:
            if unit in fields_in(key):
                raise PolicyViolation(
                    f"a group of one {clauses.catalog.policy.dataset.privacy_unit} may not be shown",
                    hint="Leave the unit out of GROUP BY; COUNT(DISTINCT …) counts units.",
                    position=clauses.at(group),
                )
            if key.type in _NOT_KEYS:
                raise PolicyViolation(
                    f"a value of type {key.type.value} cannot be a group key",
                    hint="Group by a rounded or truncated value, as in FLOOR(x)::int or DATE_TRUNC('month', x).",
                    position=clauses.at(group),
                )
        for call in calls:
            self._check_call(call, unit)

    def _check_call(self, call: AggregateCall, unit: Field) -> None:
        clauses = self.clauses
        where = clauses.at(self.node)
        if call.function in ("min", "max"):
            raise UnsupportedQuery(
                f"{call.function.upper()} of protected rows is not supported",
                hint="Use AVG, or counts by ranges of the value.",
                position=where,
            )
        if call.distinct and call.function != "count":
            raise UnsupportedQuery(
                f"{call.function.upper()}(DISTINCT …) of protected rows is not supported", position=where
            )
        is_unit = call.argument == Column(unit)
        parts = ([] if is_unit or call.argument is None else [call.argument]) + ([call.filter] if call.filter else [])
        for part in parts:
            refuse_hidden_unit(self.clauses, part, self.sources, self.node)
        if is_unit and not call.distinct:
            return
        if call.distinct and call.argument is not None and call.argument.type in _NOT_KEYS:
            raise DatatypeMismatch(
                f"values of type {call.argument.type.value} are not counted as distinct", position=where
            )

    def _protected_rows(self, outputs: list[Expr]) -> Lowered:
        """A subquery that only filters and projects stays protected: its unit travels along."""
        clauses, node, status = self.clauses, self.node, self.status
        if not isinstance(status, Protected):
            raise TypeError("protected rows expected")
        for clause in ("order", "limit", "offset"):
            if node.args.get(clause) is not None:
                raise UnsupportedQuery(
                    f"{clause.upper()} over rows of protected tables is not supported, nor are such rows shown",
                    hint="Aggregate first, as in SELECT COUNT(*) FROM …; then order and limit the result.",
                    position=clauses.at(node.args[clause]) or clauses.at(node),
                )
        unit = clauses.fields.new(status.unit.type)
        assigned: dict[Field, Expr] = {unit: Column(status.unit)}
        columns = []
        for item, expression in zip(self.items, outputs, strict=True):
            if windows_in(expression):
                raise _window_refused(clauses.at(item.node))
            is_unit = expression == Column(status.unit)
            if not is_unit:
                refuse_hidden_unit(self.clauses, expression, self.sources, item.node)
            field = unit if is_unit else clauses.fields.new(expression.type)
            assigned[field] = expression
            columns.append((item.name, field))
        projected = Project(status.relation, tuple(assigned), tuple(assigned.values()))
        is_hidden = any(field == status.unit for source in self.sources for _, field in source.hidden)
        hidden = unit if is_hidden else None
        return Lowered(replace(status, relation=projected, unit=unit), tuple(columns), hidden)

    def _windows_below(self, outputs: list[Expr], order: tuple[Order, ...]) -> tuple[list[Expr], tuple[Order, ...]]:
        """Compute window functions in a projection of their own, so that any expression may hold their values."""
        expressions = [*outputs, *(term.expression for term in order)]
        found = {window: self.clauses.fields.new(window.type) for e in expressions for window in windows_in(e)}
        if not found:
            return outputs, order
        below = self.status.relation
        fields = below.fields + tuple(found.values())
        columns = tuple(Column(field) for field in below.fields)
        self.status = replace(self.status, relation=Project(below, fields, columns + tuple(found)))

        def above(expression: Expr) -> Expr:
            return rewrite_expression(
                expression, lambda part: Column(found[part]) if isinstance(part, Window) else None
            )

        return [above(e) for e in outputs], tuple(replace(t, expression=above(t.expression)) for t in order)

    def _finish(self, outputs: list[Expr], order: tuple[Order, ...], distinct: bool) -> Lowered:
        clauses = self.clauses
        fields = tuple(clauses.fields.new(e.type) for e in outputs)
        limit, offset = clauses.limits(self.node)
        outputs, order = self._windows_below(outputs, order)
        hidden = tuple(dict.fromkeys(term.expression for term in order if term.expression not in outputs))
        if distinct and hidden:
            raise InvalidSyntax(
                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                position=clauses.at(self.node.args["order"]),
            )
        hidden_fields = tuple(clauses.fields.new(e.type) for e in hidden)
        relation: Relation = Project(self.status.relation, fields + hidden_fields, (*outputs, *hidden))
        if distinct:
            relation = Distinct(relation)
        if order or limit is not None or offset:
            by_expression = dict(zip((*hidden, *outputs), hidden_fields + fields, strict=True))
            terms = tuple(replace(term, expression=Column(by_expression[term.expression])) for term in order)
            relation = Sort(relation, fields, terms, limit, offset)
        names = tuple(item.name for item in self.items)
        return Lowered(replace(self.status, relation=relation), tuple(zip(names, fields, strict=True)))
