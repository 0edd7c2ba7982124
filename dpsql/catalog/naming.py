"""naming: the name that a column of a result has where the query gives it none, as PostgreSQL derives it."""

from dpsql.catalog.syntax import (
    ArrayOf,
    ArrayRows,
    Call,
    Case,
    Cast,
    Collate,
    Exists,
    Expr,
    Field,
    Name,
    Query,
    Row,
    Scalar,
    Select,
    SetOperation,
    Subscript,
)

_NONE, _WEAK, _STRONG = range(3)
NAMELESS = "?column?"


def column_name(expr: Expr) -> str:
    """The name of a column that is this expression."""
    return _figured(expr)[0] or NAMELESS


def _figured(expr: Expr) -> tuple[str | None, int]:
    """A name, and how strongly the expression suggests it."""
    match expr:
        case Name(parts):
            return parts[-1], _STRONG
        case Field(_, name):
            return name, _STRONG
        case Call():
            return expr.name, _STRONG
        case Subscript(inner) | Collate(inner):
            return _figured(inner)
        case Cast(inner, to):
            figured = _figured(inner)
            return figured if figured[1] == _STRONG else (to.parts[-1], _WEAK)
        case Case(_, _, default):
            figured = (None, _NONE) if default is None else _figured(default)
            return figured if figured[1] == _STRONG else ("case", _WEAK)
        case Exists():
            return "exists", _STRONG
        case ArrayOf() | ArrayRows():
            return "array", _STRONG
        case Row():
            return "row", _STRONG
        case Scalar(query):
            return _of_query(query)
        case _:
            return None, _NONE


def _of_query(query: Query) -> tuple[str | None, int]:
    """The name of a subquery's one column: that of its first SELECT."""
    body = query.body
    while isinstance(body, Query | SetOperation):
        body = body.body if isinstance(body, Query) else body.left
    if not isinstance(body, Select) or not body.items:
        return "column1", _STRONG
    item = body.items[0]
    return (item.alias, _STRONG) if item.alias is not None else _figured(item.expr)
