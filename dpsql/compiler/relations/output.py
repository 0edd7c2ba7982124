"""output: the SELECT list, and the names of its columns."""

from dataclasses import dataclass

from sqlglot import exp

from dpsql.compiler.expressions.casts import type_name
from dpsql.compiler.ir.nodes import Field
from dpsql.compiler.relations.clauses import Clauses
from dpsql.compiler.scope.lowering import refuse_other_arguments
from dpsql.compiler.scope.resolve import Scope, identifier
from dpsql.errors import InvalidSyntax
from dpsql.sqltypes import SqlType, parse_type


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
        sql: The query's text, for a function is named as it was written.
    """
    match node:
        case exp.Column():
            return identifier(node.this)
        case exp.Paren() | exp.Filter() | exp.Window() | exp.WithinGroup():
            return output_name(node.this, sql)
        case exp.Subquery():
            return _subquery_name(node.this, sql)
        case exp.Exists():
            return "exists"
        case exp.AtTimeZone():
            return "timezone"
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
