"""names: column references, constants, placeholders, and words like CURRENT_DATE."""

from sqlglot import exp

from dpsql.compiler.ir.nodes import Expr, Literal
from dpsql.compiler.scope.lowering import MAX_PARAMETERS, Lowering, Method, placeholder
from dpsql.compiler.sql.literals import number
from dpsql.errors import UnsupportedQuery
from dpsql.sqltypes import SqlType


def _column(lowering: Lowering, node: exp.Column) -> Expr:
    if isinstance(node.this, exp.Star):
        raise UnsupportedQuery("* is not allowed in an expression", position=lowering.at(node))
    lowering.only(node, "this", "table", "db")
    return lowering.scope.column(node)


def _literal(lowering: Lowering, node: exp.Literal) -> Expr:
    if node.is_string:
        return Literal(str(node.this), SqlType.UNKNOWN)
    return number(str(node.this), lowering.at(node))


def _raw_string(lowering: Lowering, node: exp.RawString | exp.Heredoc | exp.ByteString) -> Expr:
    return Literal(str(node.this), SqlType.UNKNOWN)


def _boolean(lowering: Lowering, node: exp.Boolean) -> Expr:
    return Literal(bool(node.this), SqlType.BOOLEAN)


def _null(lowering: Lowering, _node: exp.Null) -> Expr:
    return Literal(None, SqlType.UNKNOWN)


def _parameter(lowering: Lowering, node: exp.Parameter) -> Expr:
    index = placeholder(node)
    if index is None or (index >= MAX_PARAMETERS and not lowering.parameters.is_element(index)):
        raise UnsupportedQuery("placeholders must be written $1, $2, …", position=lowering.at(node))
    return lowering.parameters.literal(index, lowering.at(node))


def _placeholder(lowering: Lowering, node: exp.Placeholder) -> Expr:
    raise UnsupportedQuery("placeholders must be written $1, $2, …", position=lowering.at(node))


def _now(lowering: Lowering, node: exp.Expr) -> Expr:
    lowering.only(node)
    return Literal(lowering.constants.now, SqlType.TIMESTAMPTZ)


def _today(lowering: Lowering, _node: exp.Expr) -> Expr:
    return Literal(lowering.constants.now.date(), SqlType.DATE)


def _localtimestamp(lowering: Lowering, _node: exp.Expr) -> Expr:
    return Literal(lowering.constants.now.replace(tzinfo=None), SqlType.TIMESTAMP)


def _session_word(lowering: Lowering, node: exp.Expr) -> Expr:
    words: dict[type[exp.Expr], str] = {
        exp.CurrentUser: lowering.constants.user,
        exp.SessionUser: lowering.constants.user,
        exp.CurrentDatabase: lowering.constants.database,
        exp.CurrentCatalog: lowering.constants.database,
        exp.CurrentSchema: "public",
        exp.CurrentVersion: lowering.constants.version,
    }
    lowering.only(node)
    return Literal(words[type(node)], SqlType.TEXT)


METHODS: dict[type[exp.Expr], Method] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.RawString: _raw_string,
    exp.ByteString: _raw_string,
    exp.Heredoc: _raw_string,
    exp.Boolean: _boolean,
    exp.Null: _null,
    exp.Parameter: _parameter,
    exp.Placeholder: _placeholder,
    exp.CurrentTimestamp: _now,
    exp.CurrentDate: _today,
    exp.Localtimestamp: _localtimestamp,
    exp.CurrentUser: _session_word,
    exp.SessionUser: _session_word,
    exp.CurrentDatabase: _session_word,
    exp.CurrentCatalog: _session_word,
    exp.CurrentSchema: _session_word,
    exp.CurrentVersion: _session_word,
}
