"""clauses: the SELECT list, GROUP BY, ordinals and limits, and what all clauses need to lower their expressions.

Keys are named by expression, ordinal or alias; ROLLUP, CUBE and GROUPING SETS make several sets of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product

from sqlglot import exp

from dpsql.compiler.expressions import (
    arithmetic,
    arrays,
    calls,
    casts,
    containment,
    datetimes,
    formats,
    json_access,
    json_values,
    logic,
    patterns,
    texts,
)
from dpsql.compiler.expressions.casts import type_name
from dpsql.compiler.ir.nodes import Call, Cast, Expr, Field, Literal, Protected, Status
from dpsql.compiler.ir.walk import fields_in, windows_in
from dpsql.compiler.relations import group_releases, subqueries
from dpsql.compiler.scope.coercion import Coercion
from dpsql.compiler.scope.lowering import (
    NAME_METHODS,
    Constants,
    Fields,
    Lowering,
    Method,
    Subquery,
    refuse_other_arguments,
)
from dpsql.compiler.scope.resolve import FromItem, Scope, identifier
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.constant_folding import converted
from dpsql.compiler.sql.parse import position
from dpsql.compiler.sql.rewriting import changed
from dpsql.errors import GroupingError, InvalidParameter, InvalidSyntax, LimitExceeded, UnsupportedQuery
from dpsql.sqltypes import SqlType, parse_type


@dataclass(frozen=True)
class Clauses:
    """Lowers the small clauses of one statement.

    Attributes:
        catalog: What may be named.
        coercion: Implicit conversions, and the placeholders they give types to.
        constants: What now(), CURRENT_USER and the like mean.
        fields: The source of fields.
        offset: Where the statement starts in the text that was sent.
        sql: The statement's own text.
        subquery: Lowers a query inside an expression.
    """

    catalog: Catalog
    coercion: Coercion
    constants: Constants
    fields: Fields
    offset: int
    sql: str
    subquery: Subquery

    def at(self, node: exp.Expr) -> int | None:
        """The position of a node in the analyst's text."""
        return position(node, self.offset)

    def scope(self, sources: tuple[FromItem, ...], outer: Scope | None, status: Status | None = None) -> Scope:
        """The scope of expressions over these sources, whose rows have this status."""
        return Scope(sources, self.offset, outer, status if isinstance(status, Protected) else None)

    def expressions(self, scope: Scope, clause: str) -> Lowering:
        """A lowerer of expressions in a scope."""
        return lowering(scope, self.coercion, self.constants, self.fields, self.subquery, clause)

    def ordinal(self, node: exp.Expr, width: int, clause: str) -> int | None:
        """The 0-based output column that a bare number in GROUP BY, ORDER BY or DISTINCT ON means."""
        if not isinstance(node, exp.Literal):
            return None
        if node.is_string:
            raise InvalidSyntax(f"non-integer constant in {clause}", position=self.at(node))
        text = str(node.this).lstrip("0")
        if not text.isdecimal() or len(text) > 9 or int(text) > width:
            raise InvalidSyntax(
                f"{clause} position {str(node.this)[:20]} is not in select list", position=self.at(node)
            )
        return int(text) - 1

    def limits(self, node: exp.Expr, *, ties: bool = False) -> tuple[int | None, int]:
        """LIMIT (or FETCH FIRST) and OFFSET; where `ties` is False, FETCH … WITH TIES is refused."""
        limit = node.args.get("limit")
        offset = node.args.get("offset")
        rows = None
        if isinstance(limit, exp.Fetch):
            self._plain_limit(limit, ties=ties)
            rows = self._row_count(limit.args.get("count") or exp.Literal.number(1), "FETCH")
        elif limit is not None:
            self._plain_limit(limit, ties=ties)
            if not (isinstance(limit.expression, exp.Var) and str(limit.expression.this).upper() == "ALL"):
                rows = self._row_count(limit.expression, "LIMIT")
        skipped = self._row_count(offset.expression, "OFFSET") if offset is not None else 0
        return rows, skipped or 0

    @staticmethod
    def has_ties(node: exp.Expr) -> bool:
        """Return whether the query has FETCH … WITH TIES."""
        limit = node.args.get("limit")
        options = limit.args.get("limit_options") if limit is not None else None
        return options is not None and bool(options.args.get("with_ties"))

    def _plain_limit(self, limit: exp.Expr, *, ties: bool) -> None:
        options = limit.args.get("limit_options")
        if options is not None and (options.args.get("percent") or (options.args.get("with_ties") and not ties)):
            raise UnsupportedQuery("LIMIT with PERCENT or WITH TIES is not supported here", position=self.at(limit))
        refuse_other_arguments(limit, "expression", "count", "direction", "limit_options", offset=self.offset)

    def _row_count(self, node: exp.Expr, clause: str) -> int | None:
        lowered = self.coercion.to(
            self.expressions(Scope(()), f"in {clause}").lower(node), SqlType.BIGINT, self.at(node)
        )
        constant = _constant(lowered)
        if isinstance(constant, Cast) and isinstance(constant.argument, Literal):
            raise InvalidParameter(f"{clause} must be an integer", position=self.at(node))
        if not isinstance(constant, Literal):
            raise UnsupportedQuery(f"{clause} must be a constant", position=self.at(node))
        value = constant.value
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise InvalidParameter(f"{clause} must not be negative", position=self.at(node))
        return value


def _constant(expression: Expr) -> Expr:
    """A constant through the conversions around it, as drivers write LIMIT $1::INTEGER; one that is NULL stays so."""
    if not isinstance(expression, Cast):
        return expression
    inner = _constant(expression.argument)
    is_null = isinstance(inner, Literal) and inner.value is None
    return inner if is_null else converted(replace(expression, argument=inner))


CALLED: Mapping[str, calls.Called] = (
    logic.CALLED
    | arithmetic.CALLED
    | texts.CALLED
    | patterns.CALLED
    | formats.CALLED
    | datetimes.CALLED
    | arrays.CALLED
    | json_access.CALLED
)
_BY_NAME: Mapping[str, Method] = arithmetic.BY_NAME | datetimes.BY_NAME | json_values.BY_NAME | group_releases.BY_NAME
METHODS: Mapping[type[exp.Expr], Method] = (
    NAME_METHODS
    | logic.METHODS
    | arithmetic.METHODS
    | texts.METHODS
    | patterns.METHODS
    | datetimes.METHODS
    | casts.METHODS
    | arrays.METHODS
    | json_access.METHODS
    | containment.METHODS
    | group_releases.METHODS
    | subqueries.METHODS
    | {exp.Anonymous: calls.method(CALLED, _BY_NAME)}
)


def lowering(
    scope: Scope, coercion: Coercion, constants: Constants, fields: Fields, subquery: Subquery, clause: str
) -> Lowering:
    """A lowering for the expressions of one clause; aggregates and windows must be allowed by `replace`."""
    return Lowering(scope, coercion, constants, fields, subquery, METHODS, clause=clause)


@dataclass(frozen=True)
class Item:
    """One output column: its name, its text, and the field it is where `*` stood."""

    name: str
    node: exp.Expr
    field: Field | None


def select_list(clauses: Clauses, select: exp.Select, scope: Scope) -> tuple[Item, ...]:
    """The SELECT list with `*` written out."""
    items: list[Item] = []
    for node in select.expressions:
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            refuse_other_arguments(node, "this", "table", "db", offset=clauses.offset)
            if not scope.sources:
                raise InvalidSyntax("SELECT * with no tables specified is not valid", position=clauses.at(node))
            items += [Item(name, node, field) for name, field in scope.star(node)]
        elif isinstance(node, exp.Alias) and node.this.is_star and not isinstance(node.this, exp.Func):
            alias = node.args["alias"]
            raise InvalidSyntax(f'syntax error at or near "{alias.this}"', position=clauses.at(alias))
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
        sql: The query's text; a function's name is taken from it in its original case.
    """
    match node:
        case exp.Column():
            return identifier(node.this)
        case exp.Paren() | exp.Filter() | exp.Window() | exp.WithinGroup() | exp.Bracket():
            return output_name(node.this, sql)
        case exp.Subquery():
            return _subquery_name(node.this, sql)
        case exp.Exists() | exp.Overlaps():
            return type(node).__name__.lower()
        case exp.AtTimeZone():
            return "timezone"
        case exp.Cast():
            return output_name(node.this, sql) if _keeps_name(node.this, sql) else _type_name(node.args["to"])
        case exp.Case():
            default = node.args.get("default")
            return output_name(default, sql) if default is not None and _keeps_name(default, sql) else "case"
        case exp.Trim():
            return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position")).upper(), "btrim")
        case exp.Boolean() | exp.Connector():
            return _UNNAMED
        case exp.Func():
            written = _as_written(node, sql)
            return written if written is not None else _unwritten(node)
    return _UNNAMED


def _keeps_name(node: exp.Expr, sql: str) -> bool:
    """True where a cast and CASE around an expression have its name: it is not the name of a type, nor "case"."""
    match node:
        case exp.Paren() | exp.Cast():
            return _keeps_name(node.this, sql)
        case exp.Case():
            default = node.args.get("default")
            return default is not None and _keeps_name(default, sql)
        case exp.Subquery():
            return True
    return output_name(node, sql) != _UNNAMED


def _subquery_name(query: exp.Expr, sql: str) -> str:
    """A scalar subquery is named as its column is."""
    while isinstance(query, exp.Subquery | exp.SetOperation):
        query = query.this
    first = query.expressions[0] if isinstance(query, exp.Select) and query.expressions else None
    if isinstance(first, exp.Alias):
        return identifier(first.args["alias"])
    return output_name(first, sql) if first is not None else "column1"


def _as_written(node: exp.Expr, sql: str) -> str | None:
    start, end = node.meta.get("start"), node.meta.get("end")
    return sql[start : end + 1].lower() if isinstance(start, int) and isinstance(end, int) else None


def _unwritten(node: exp.Func) -> str:
    """The name of a function whose place in the text is not known: a word without parentheses, or an operator."""
    if isinstance(node, exp.StrPosition):
        return "position"
    is_operator = isinstance(node, exp.Binary | exp.Sqrt | exp.Cbrt | exp.StartsWith)
    return _UNNAMED if is_operator else node.sql_name().lower()


def _type_name(written: exp.Expr) -> str:
    name = type_name(written)
    try:
        return _TYPE_NAMES.get(parse_type(name), parse_type(name).value)
    except ValueError:
        return name


MAX_SETS = 64

Keys = tuple[Expr, ...]


@dataclass(frozen=True)
class Grouping:
    """The GROUP BY clause.

    Attributes:
        keys: Every key, in the order of the text.
        sets: The keys of each grouping set; without ROLLUP, CUBE or GROUPING SETS, one set of all keys.
    """

    keys: Keys
    sets: tuple[Keys, ...]

    def mask(self, call: Call, chosen: Keys) -> int:
        """What GROUPING(…) is in one of the sets: a bit for each argument, set where it is not grouped by."""
        value = 0
        for argument in call.arguments:
            value = 2 * value + (argument not in chosen)
        return value


@dataclass(frozen=True)
class GroupBy:
    """Reads a GROUP BY; `outputs` are the SELECT list's expressions, which keys may name."""

    clauses: Clauses
    scope: Scope
    items: tuple[Item, ...]
    outputs: tuple[Expr, ...]

    def read(self, node: exp.Select) -> Grouping:
        """The keys and sets of a SELECT's GROUP BY.

        Raises:
            Error: A typed refusal.
        """
        clauses, group = self.clauses, node.args["group"]
        refuse_other_arguments(group, "expressions", "all", offset=clauses.offset)
        if group.args.get("all"):
            raise UnsupportedQuery(
                "GROUP BY ALL is not supported",
                hint="Name the group keys.",
                position=clauses.at(node),
                queries=changed(node, lambda select: select.set("group", self._all_keys())),
            )
        if not group.expressions:
            raise InvalidSyntax(
                "GROUP BY must be followed by a list", hint="Name the group keys.", position=clauses.at(node)
            )
        alternatives = [self._alternatives(element) for element in group.expressions]
        count = 1
        for each in alternatives:
            count *= len(each)
            if count > MAX_SETS:
                raise LimitExceeded(f"GROUP BY has more than {MAX_SETS} grouping sets", position=clauses.at(node))
        sets = tuple(tuple(dict.fromkeys(key for part in chosen for key in part)) for chosen in product(*alternatives))
        return Grouping(tuple(dict.fromkeys(key for chosen in sets for key in chosen)), sets)

    def _all_keys(self) -> exp.Group | None:
        """The GROUP BY of all items of the SELECT list that have no aggregate."""
        known = self._fields()
        items = zip(self.items, self.outputs, strict=True)
        keys = [item.node.unalias().copy() for item, output in items if fields_in(output) <= known]
        return exp.Group(expressions=keys) if keys else None

    def _alternatives(self, node: exp.Expr) -> list[Keys]:
        """The grouping sets of one element of GROUP BY."""
        if isinstance(node, exp.Rollup):
            parts = [self._keys(part) for part in node.expressions]
            return [_joined(parts[:count]) for count in range(len(parts), -1, -1)]
        if isinstance(node, exp.Cube):
            parts = [self._keys(part) for part in node.expressions]
            if len(parts) > MAX_SETS.bit_length():
                raise LimitExceeded("CUBE has too many columns", position=self.clauses.at(node))
            sizes = range(len(parts), -1, -1)
            return [_joined(list(chosen)) for size in sizes for chosen in combinations(parts, size)]
        if isinstance(node, exp.GroupingSets):
            return [keys for part in node.expressions for keys in self._alternatives(part)]
        return [self._keys(node)]

    def _keys(self, node: exp.Expr) -> Keys:
        if isinstance(node, exp.Tuple):
            return _joined([self._keys(part) for part in node.expressions])
        if isinstance(node, exp.Paren):
            return self._keys(node.this)
        lowerer = self.clauses.expressions(self.scope, "in GROUP BY")
        ordinal = self.clauses.ordinal(node, len(self.items), "GROUP BY")
        index = ordinal if ordinal is not None else self._alias(node)
        if index is None:
            return (lowerer.value(node),)
        if not fields_in(self.outputs[index]) <= self._fields():
            raise GroupingError("aggregate functions are not allowed in GROUP BY", position=self.clauses.at(node))
        if windows_in(self.outputs[index]):
            raise UnsupportedQuery("window functions are not allowed in GROUP BY", position=self.clauses.at(node))
        return (self.outputs[index],)

    def _fields(self) -> frozenset[Field]:
        """The columns that may be named."""
        sources = [source for scope in (self.scope, *self.scope.around()) for source in scope.sources]
        return frozenset(field for source in sources for _, field in (*source.columns, *source.hidden))

    def _alias(self, node: exp.Expr) -> int | None:
        """The output a bare name means: in GROUP BY an input column of that name comes first."""
        if not isinstance(node, exp.Column) or node.args.get("table") is not None:
            return None
        name = identifier(node.this)
        if any(source.named(name, qualified=False) for source in self.scope.sources):
            return None
        found = [index for index, item in enumerate(self.items) if item.name == name]
        return found[0] if found else None


def _joined(parts: list[Keys]) -> Keys:
    return tuple(key for part in parts for key in part)
