"""routing: which queries are the catalog's: those over its relations, and those over none that need its engine.

A query over no relation needs it for its functions, and for arrays, JSON and bytes, which the compiler of private
queries has no expressions of.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Final

from dpsql.catalog.functions import functions
from dpsql.catalog.kinds import OID_TYPES
from dpsql.catalog.queries import system_relation
from dpsql.catalog.reading import read_query
from dpsql.catalog.relations import INFORMATION_SCHEMA, PG_CATALOG, system_relations
from dpsql.catalog.rowfunctions import RELATION_FUNCTIONS, empty_functions
from dpsql.catalog.syntax import ArrayOf, ArrayRows, CallExpr, CastExpr, ParsedQuery, Quantified, Subscript, TableSource
from dpsql.compiler.ir.functions import CALLS
from dpsql.compiler.sql.parse import tokenize
from dpsql.errors import Error, QueryTooComplex, UnsupportedQuery
from dpsql.sqltypes import SqlType

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL: Final = frozenset(
    {
        *("set_config", "pg_typeof", "_pg_expandarray", "pg_get_keywords", "json_build_object", "jsonb_build_object"),
        *("to_json", "to_jsonb", "json_agg", "jsonb_agg"),
    }
)
_TYPES: Final = frozenset({*OID_TYPES, "name", "char", "int2vector", "oidvector", "json", "jsonb", "bytea"})
_VALUES: Final = frozenset({SqlType.JSON, SqlType.BYTEA})


@cache
def _own_functions() -> frozenset[str]:
    """Functions that the compiler of private queries does not have."""
    session = {"current_schema", "current_database", "current_catalog", "current_role", "current_user", "session_user"}
    own = frozenset(functions()) | frozenset(empty_functions()) | frozenset(RELATION_FUNCTIONS) | _SPECIAL
    return own - (frozenset(CALLS) - session - {"version"})


@cache
def _telling_words() -> frozenset[str]:
    """Words without one of which no query is the catalog's."""
    relations = {name for schema, name in system_relations() if schema == PG_CATALOG}
    return _own_functions() | relations | {PG_CATALOG, INFORMATION_SCHEMA, "array"} | _TYPES


def catalog_query(sql: str, own: frozenset[str], types: Sequence[SqlType | None] = ()) -> ParsedQuery | None:
    """The tree of a query if it is the catalog's.

    Args:
        sql: The query.
        own: The tables that the user may name, with their schema and without.
        types: The types that the client has declared for placeholders.

    Raises:
        Error: It reads the catalog, and cannot be read itself.
        QueryTooComplex: It is too long or nests too deep, whoever reads it.
        UnsupportedQuery: It mixes relations of the catalog with others.
    """
    words = {word.lower() for word in _WORD.findall(sql)}
    declared = any(kind is not None and (kind.is_array or kind in _VALUES) for kind in types)
    if not (declared or "[" in sql or words & _telling_words() or any(word.startswith("pg_") for word in words)):
        return None
    try:
        query = read_query(sql)
    except QueryTooComplex:
        raise  # it is so to every reader
    except Error:
        if _reads_catalog(sql):
            raise
        return None
    named = list(_relations(query, frozenset()))
    known = [parts for parts in named if system_relation(parts) is not None or _is_system(parts)]
    others = [".".join(parts) for parts in named if parts not in known]
    mixed = [name for name in others if name in own]
    if known and mixed:
        raise UnsupportedQuery(
            f'"{mixed[0]}" and relations of the catalog cannot be used in one query',
            hint="Query the catalog first, then the tables.",
        )
    if known:
        return query
    return query if not named and (declared or _uses_catalog(query)) else None


def _reads_catalog(sql: str) -> bool:
    """Whether a text that cannot be read names a relation of the catalog after FROM or JOIN."""
    try:
        words = [token.text.lower() for token in tokenize(sql)]
    except Error:
        return False
    return any(first in ("from", "join") and _is_system((second,)) for first, second in itertools.pairwise(words))


def _is_system(parts: tuple[str, ...]) -> bool:
    return parts[0] in (PG_CATALOG, INFORMATION_SCHEMA) or (len(parts) == 1 and parts[0].startswith("pg_"))


def _children(node: object) -> Iterator[object]:
    if isinstance(node, tuple):
        yield from node
    elif is_dataclass(node):
        for one in fields(node):
            yield getattr(node, one.name)


def _relations(node: object, ctes: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """The relations that a query names, but for those of WITH."""
    if isinstance(node, TableSource):
        if len(node.parts) > 1 or node.parts[0] not in ctes:
            yield node.parts
        return
    if isinstance(node, ParsedQuery):
        ctes = ctes | {cte.name for cte in node.ctes}
    for child in _children(node):
        yield from _relations(child, ctes)


def _uses_catalog(node: object) -> bool:
    if isinstance(node, CallExpr) and (node.name in _own_functions() or PG_CATALOG in node.parts[:-1]):
        return True
    if isinstance(node, CastExpr) and (node.to.array or node.to.parts[-1] in _TYPES or node.to.parts[0] == PG_CATALOG):
        return True
    if isinstance(node, ArrayOf | ArrayRows | Subscript):
        return True
    if isinstance(node, Quantified) and not isinstance(node.over, ParsedQuery):
        return _uses_catalog(node.expr)  # the compiler knows arrays after ANY and ALL
    return any(_uses_catalog(child) for child in _children(node))
