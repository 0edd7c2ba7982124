"""catalog: the catalog of each role, and which queries it answers.

The catalog answers queries over its own relations. It also answers queries over no relation that need functions,
arrays, JSON or bytes that the compiler of private queries does not have.

Rule 1: rows are made of the policy; the private engine, the ledger and its backend are never asked.
Rule 2: describing runs nothing.
"""

import itertools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final

from sqlglot import exp

from dpsql.backends import Cancellation
from dpsql.catalog.casts import TranslationContext
from dpsql.catalog.engine import CatalogEngine
from dpsql.catalog.expressions import type_parts
from dpsql.catalog.functions import RELATION_FUNCTIONS, functions
from dpsql.catalog.kinds import OID_TYPES, REG_TYPES, STORED_SCALE, TEXT, UNKNOWN, Kind, kind_of, of_sql_type
from dpsql.catalog.literals import quote, stored
from dpsql.catalog.objects import PolicyObjects
from dpsql.catalog.queries import Queries, system_relation
from dpsql.catalog.reading import call_of, parts_of, read_query
from dpsql.catalog.relations import INFORMATION_SCHEMA, PG_CATALOG, system_relations
from dpsql.catalog.scope import Out, Rendered
from dpsql.catalog.session import CatalogSession
from dpsql.catalog.snapshot import Snapshot
from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.functions import CALLS
from dpsql.compiler.sql.parse import tokenize
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import Error, InvalidSyntax, LimitExceeded, UnsupportedQuery, log_bug
from dpsql.gateway.catalog_provider import CatalogContext
from dpsql.gateway.engine import Engine
from dpsql.gateway.query_run import Description, ObjectName, Result, ResultColumn
from dpsql.policy import Role
from dpsql.sqltypes import SqlType
from dpsql.sqltypes.textformat import without_filling

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL: Final = frozenset(
    {
        *("set_config", "pg_typeof", "pg_get_keywords", "json_build_object", "jsonb_build_object"),
        *("to_json", "to_jsonb", "json_agg", "jsonb_agg"),
    }
)
_TYPES: Final = frozenset({*OID_TYPES, "name", "char", "int2vector", "oidvector", "json", "jsonb", "bytea"})
_VALUES: Final = frozenset({SqlType.JSON, SqlType.BYTEA})


@cache
def _own_functions() -> frozenset[str]:
    """Functions that the compiler of private queries does not have."""
    session = {"current_schema", "current_database", "current_catalog", "current_role", "current_user", "session_user"}
    plain = frozenset(name for name, known in functions().items() if known[0].manner in (None, "setof"))
    return (plain | frozenset(RELATION_FUNCTIONS) | _SPECIAL) - (frozenset(CALLS) - session - {"version"})


@cache
def _telling_words() -> frozenset[str]:
    """Return words of which every catalog query contains at least one."""
    relations = {name for schema, name in system_relations() if schema == PG_CATALOG}
    return _own_functions() | relations | {PG_CATALOG, INFORMATION_SCHEMA, "array"} | _TYPES


def catalog_query(sql: str, own: frozenset[str], types: Sequence[SqlType | None] = ()) -> exp.Query | None:
    """The tree of a query if it is the catalog's.

    Args:
        sql: The query.
        own: The tables that the user may name, with their schema and without.
        types: The types that the client has declared for placeholders.

    Raises:
        Error: It reads the catalog, and cannot be read itself.
        LimitExceeded: It is too long or nests too deep, whoever reads it.
        UnsupportedQuery: It mixes relations of the catalog with others.
    """
    words = {word.lower() for word in _WORD.findall(sql)}
    declared = any(kind is not None and (kind.is_array or kind in _VALUES) for kind in types)
    if not (declared or "[" in sql or words & _telling_words() or any(word.startswith("pg_") for word in words)):
        return None
    try:
        query = read_query(sql)
        named = list(_relations(query))
    except LimitExceeded:
        raise  # it is so to every reader
    except Error:
        if _reads_catalog(sql):
            raise
        return None
    known = [parts for parts in named if system_relation(parts) is not None or _is_system(parts)]
    mixed = [name for name in map(".".join, named) if name in own]
    if known and mixed:
        raise UnsupportedQuery(
            f'"{mixed[0]}" and relations of the catalog cannot be used in one query',
            hint="Query the catalog first, then the tables.",
        )
    return query if known or (not named and (declared or _uses_catalog(query))) else None


def _reads_catalog(sql: str) -> bool:
    """Whether a text that cannot be read names a relation of the catalog after FROM or JOIN."""
    try:
        words = [token.text.lower() for token in tokenize(sql)]
    except Error:
        return False
    return any(first in ("from", "join") and _is_system((second,)) for first, second in itertools.pairwise(words))


def _is_system(parts: tuple[str, ...]) -> bool:
    return parts[0] in (PG_CATALOG, INFORMATION_SCHEMA) or (len(parts) == 1 and parts[0].startswith("pg_"))


def _relations(query: exp.Query) -> Iterator[tuple[str, ...]]:
    """Yield the relations that a query names, except CTEs."""
    for table in query.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier):
            parts = parts_of(table)
            if len(parts) > 1 or not _is_of_with(table, parts[0]):
                yield parts


def _is_of_with(table: exp.Table, name: str) -> bool:
    around = table.parent
    while around is not None:
        with_ = around.args.get("with_")
        if with_ is not None and any(parts_of(one.args["alias"].this) == (name,) for one in with_.expressions):
            return True
        around = around.parent
    return False


def _uses_catalog(query: exp.Query) -> bool:
    return any(_is_own(node) for node in query.walk(prune=_is_list))


def _is_list(node: exp.Expr) -> bool:
    """True for an array after ANY and ALL, which the compiler supports."""
    return isinstance(node, exp.Any | exp.All) and not isinstance(node.this, exp.Query | exp.Values)


def _is_own(node: exp.Expr) -> bool:
    """Whether a part of a query is one that the compiler of private queries does not have."""
    match node:
        case exp.Anonymous() | exp.Dot():
            call = call_of(node)
            return call is not None and (call.name in _own_functions() or PG_CATALOG in call.parts[:-1])
        case exp.Cast():
            parts = type_parts(node.args["to"])
            return node.args["to"].this == exp.DType.ARRAY or parts[-1] in _TYPES or parts[0] == PG_CATALOG
    return isinstance(node, exp.Array | exp.Bracket)


_EXACT: Final = frozenset({"BOOLEAN", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP"})
"""Storages whose values the engine returns unchanged; a text column may return numbers."""
_ENDLESS: Final = frozenset({"DATE", "TIMESTAMP"})


class Catalogs:
    """The catalogs of the served policies, each made at its first use.

    Args:
        engines: The policies' engines by database name.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._made: dict[tuple[str, str], RoleCatalog] = {}
        self._lock = threading.Lock()

    def provider(self, database: str, user: str) -> "PolicyCatalogProvider":
        """The catalog as a user sees it.

        Raises:
            PolicyViolation: The user has no role in the policy.
        """
        role = self._engines[database].role(user)
        return PolicyCatalogProvider(self._of_role(database, role), self.databases(user))

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            for made in self._made.values():
                made.close()
            self._made.clear()

    def databases(self, user: str) -> tuple[str, ...]:
        """The databases that the user may open."""
        found = []
        for name, engine in self._engines.items():
            try:
                engine.role(user)
            except Error:
                continue
            found.append(name)
        return tuple(found)

    def _of_role(self, database: str, role: Role) -> "RoleCatalog":
        with self._lock:
            key = (database, role.name)
            if key not in self._made:
                engine = self._engines[database]
                self._made[key] = RoleCatalog(PolicyObjects(engine.policy, role, engine.key_type))
            return self._made[key]


class RoleCatalog:
    """A role's catalog; the first query loads it into an engine of its own."""

    def __init__(self, objects: PolicyObjects) -> None:
        self._objects = objects
        self._snapshot: Snapshot | None = None
        self._engine: CatalogEngine | None = None
        self._lock = threading.Lock()
        names = {shown.path for shown in objects.shown}
        self.own = frozenset(names | {shown.name for shown in objects.shown if shown.schema == "public"})

    @property
    def snapshot(self) -> Snapshot:
        """The rows, in which names are resolved."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = Snapshot(self._objects)
            return self._snapshot

    @property
    def engine(self) -> CatalogEngine:
        """The engine that runs queries over the rows."""
        snapshot = self.snapshot
        with self._lock:
            if self._engine is None:
                self._engine = CatalogEngine(snapshot)
            return self._engine

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
                self._engine = None


class PolicyCatalogProvider:
    """A CatalogProvider over one role's catalog for one user."""

    def __init__(self, role: RoleCatalog, databases: tuple[str, ...]) -> None:
        self._role = role
        self._databases = databases

    def describe(
        self, statement: QueryStatement, types: Sequence[SqlType | None], context: CatalogContext
    ) -> Description | None:
        """Describe a catalog query; nothing is executed."""
        translated = self._translate(statement, types, None, context)
        if translated is None:
            return None
        about, rendered = translated
        last = max(about.parameters, default=-1)
        kinds = [about.parameters.get(index, UNKNOWN) for index in range(max(last + 1, len(types)))]
        kinds = [TEXT if kind == UNKNOWN else kind for kind in kinds]
        return Description(
            tuple(kind.sql_type for kind in kinds), _columns(rendered.columns), tuple(kind.oid for kind in kinds)
        )

    def execute(
        self,
        statement: QueryStatement,
        values: Sequence[object],
        types: Sequence[SqlType | None],
        context: CatalogContext,
        cancellation: Cancellation,
    ) -> Result | None:
        """Answer a catalog query."""
        translated = self._translate(statement, types, values, context)
        if translated is None:
            return None
        about, rendered = translated
        used = {
            f"p{index + 1}": stored(about.session, values[index], kind)
            for index, kind in about.parameters.items()
            if f"$p{index + 1} " in rendered.sql
        }
        rows = self._role.engine.run(_fetched(rendered), used, cancellation)
        shown = self._shown(rows, rendered.columns, about)
        return Result(f"SELECT {len(shown)}", _columns(rendered.columns), shown)

    def _translate(
        self,
        statement: QueryStatement,
        types: Sequence[SqlType | None],
        values: Sequence[object] | None,
        context: CatalogContext,
    ) -> tuple[TranslationContext, Rendered] | None:
        """Return the query in the engine's SQL; None if it does not query the catalog."""
        try:
            query = catalog_query(statement.sql, self._role.own, types)
            return None if query is None else self._rendered(query, types, values, context)
        except Error as error:
            if error.position is not None:
                error.position += statement.offset
            raise
        except RecursionError:
            raise LimitExceeded(
                "the query is nested too deeply", hint="Write long chains of operators in parts."
            ) from None
        except Exception as error:  # the parser returned a tree of an unknown shape
            log_bug(error)
            raise InvalidSyntax("syntax error") from None

    def _rendered(
        self,
        query: exp.Query,
        types: Sequence[SqlType | None],
        values: Sequence[object] | None,
        context: CatalogContext,
    ) -> tuple[TranslationContext, Rendered]:
        # The type of an array depends on its use.
        declared = {
            index: UNKNOWN if kind is None or kind is SqlType.UNKNOWN or kind.is_array else of_sql_type(kind)
            for index, kind in enumerate(types)
        }
        arrays = {index: of_sql_type(kind) for index, kind in enumerate(types) if kind is not None and kind.is_array}
        session = CatalogSession(context, self._databases, self._role.snapshot)
        about = TranslationContext(session, declared, arrays, values)
        return about, Queries(about).query(query, None)

    def _shown(
        self, rows: list[tuple[Any, ...]], columns: Sequence[Out], about: TranslationContext
    ) -> Sequence[tuple[object, ...]]:
        """The rows as clients see them; most are unchanged."""
        kinds = [column.kind for column in columns]
        if all(_is_shown(rows, place, kind) for place, kind in enumerate(kinds)):
            return rows
        path = about.session.path_text
        return [tuple(self._value(value, kind, path) for value, kind in zip(row, kinds, strict=False)) for row in rows]

    def _value(self, value: Any, kind: Kind, path: str) -> object:
        if value is None:
            return None
        if kind.is_array:
            return [self._value(one, kind_of(kind.element), path) for one in value]
        if kind.name in REG_TYPES:
            return ObjectName.of(str(self._role.snapshot.name_of(kind.name, value, path)), value)
        if kind.fields:
            parts = value.values() if isinstance(value, dict) else value
            return "(" + ",".join("" if part is None else str(part) for part in parts) + ")"
        if kind.name == "interval":
            return intervals.span(value)
        if kind.name == "timestamptz" and isinstance(value, datetime):
            return value.replace(tzinfo=UTC)
        return without_filling(value, STORED_SCALE) if isinstance(value, Decimal) else value


def _is_shown(rows: Sequence[tuple[Any, ...]], place: int, kind: Kind) -> bool:
    """Whether a column's values are shown unchanged."""
    if kind.is_array or kind.name in REG_TYPES or kind.fields or kind.name in ("interval", "timestamptz"):
        return False
    return kind.storage in _EXACT or not any(isinstance(row[place], Decimal) for row in rows)


def _fetched(rendered: Rendered) -> str:
    """The query, changed for values that Python does not have.

    An interval becomes a text, because months are no number of days. An infinite date or timestamp is refused.
    """
    storages = {column.kind.storage.removesuffix("[]") for column in rendered.columns}
    if storages.isdisjoint({"INTERVAL", *_ENDLESS}):
        return rendered.sql
    items = (f"{_as_fetched(column.sql, column.kind)} AS {column.sql}" for column in rendered.columns)
    return f"SELECT {', '.join(items)} FROM ({rendered.sql})"


def _as_fetched(sql: str, kind: Kind) -> str:
    element = kind.storage.removesuffix("[]")
    if element in _ENDLESS:
        shown = kind_of(kind.element).name if kind.is_array else kind.name
        whole = f"list_bool_or(list_transform({sql}, lambda e: isinf(e)))" if kind.is_array else f"isinf({sql})"
        return f"CASE WHEN {whole} THEN CAST(catalog_infinite({quote(shown)}) AS {kind.storage}) ELSE {sql} END"
    if element != "INTERVAL":
        return sql
    return f"list_transform({sql}, lambda e: {_span('e')})" if kind.is_array else _span(sql)


def _span(sql: str) -> str:
    months, days = f"datepart('year', {sql}) * 12 + datepart('month', {sql})", f"datepart('day', {sql})"
    clock = f"datepart('hour', {sql}) * 3600000000 + datepart('minute', {sql}) * 60000000"
    micros = f"{clock} + datepart('microsecond', {sql})"
    return f"({months} || ' months ' || {days} || ' days ' || ({micros}) || ' microseconds')"


def _columns(columns: Sequence[Out]) -> tuple[ResultColumn, ...]:
    return tuple(ResultColumn(column.name, column.kind.sql_type, column.kind.oid) for column in columns)
