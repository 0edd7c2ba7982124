"""keys: which expressions may be group keys, and which values may be told apart as distinct."""

from dpsql.compiler.ir import Expr, Relation
from dpsql.compiler.whole import is_whole
from dpsql.sqltypes import ARRAYS, SqlType

_NOT_KEYS = ARRAYS | {SqlType.REAL, SqlType.DOUBLE, SqlType.INTERVAL, SqlType.JSON, SqlType.BYTEA}


def can_be_key(expression: Expr, relation: Relation) -> bool:
    """True where equal values over a relation have one spelling: floating-point numbers only where they are whole."""
    return expression.type not in _NOT_KEYS or is_whole(expression, relation)
