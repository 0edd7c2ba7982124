"""casts: expressions in DuckDB's SQL with their PostgreSQL types, and their casts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from dpsql.catalog.kinds import BOOL, REG_TYPES, TEXT, UNKNOWN, Kind, kind_of
from dpsql.catalog.literals import literal, null, quote
from dpsql.catalog.session import CatalogSession
from dpsql.errors import DatatypeMismatch, LimitExceeded

MAX_WRITTEN: Final = 10_000_000
"""The most characters of SQL for one query; a short query can become long if parts are repeated."""


@dataclass(frozen=True)
class Typed:
    """An expression.

    Attributes:
        sql: In DuckDB's SQL.
        kind: Its type; UNKNOWN for what takes the type of its place.
        constant: What it is, where it is a quoted constant or NULL.
        parameter: Which placeholder it is, where its type is not known yet.
    """

    sql: str
    kind: Kind
    constant: exp.Expr | None = None
    parameter: int | None = None


@dataclass
class TranslationContext:
    """The state of the translation of one statement.

    Attributes:
        session: The session of the statement.
        parameters: The known types of the parameters.
        arrays: Parameters that the client declared as arrays; their use may determine the element type.
        values: The values of the parameters; None if the statement is only described.
        count: The number of names created.
        written: The number of characters in expressions so far; nested ones count again.
    """

    session: CatalogSession
    parameters: dict[int, Kind] = field(default_factory=dict)
    arrays: Mapping[int, Kind] = field(default_factory=dict)
    values: Sequence[object] | None = None
    count: int = 0
    written: int = 0

    def fresh(self, letter: str) -> str:
        """A new name, unique in the query."""
        self.count += 1
        return f"{letter}{self.count}"

    def counted(self, typed: Typed) -> Typed:
        """The expression, if not too much is written with it.

        Raises:
            LimitExceeded: It is too much.
        """
        self.written += len(typed.sql)
        if self.written > MAX_WRITTEN:
            raise LimitExceeded("the query is too long or repeats too much", hint="Ask for less at once.")
        return typed

    def declare(self, index: int, kind: Kind) -> Kind:
        """Note the type of a placeholder, and return it; the first one said holds."""
        if self.parameters.get(index, UNKNOWN) == UNKNOWN:
            self.parameters[index] = kind
        return self.parameters[index]


def placeholder(index: int, kind: Kind) -> str:
    """A placeholder of a type."""
    return f"CAST($p{index + 1} AS {kind.storage})"


class Casts:
    """Casts expressions.

    Args:
        statement: What the translation is about.
    """

    def __init__(self, statement: TranslationContext) -> None:
        self.statement = statement
        self.session = statement.session

    def settled(self, typed: Typed) -> Typed:
        """Return the expression with a type: if it is unknown, text or the array type that the client declared."""
        declared = TEXT if typed.parameter is None else self.statement.arrays.get(typed.parameter, TEXT)
        return self.coerced(typed, declared) if typed.kind == UNKNOWN else typed

    def coerced(self, typed: Typed, kind: Kind, *, modifier: int = -1) -> Typed:
        """Return the expression cast to a type.

        Raises:
            InvalidText: A constant is not of the type.
            DatatypeMismatch: There is no such cast.
        """
        if typed.kind == UNKNOWN and typed.parameter is not None:
            declared = self.statement.declare(typed.parameter, kind)
            typed = Typed(placeholder(typed.parameter, declared), declared)
        if typed.kind != UNKNOWN or typed.constant is None:
            sql = self._cast(typed, kind)
        elif isinstance(typed.constant, exp.Null):
            sql = null(kind)
        else:
            sql = literal(self.session, typed.constant.name, kind)
        if modifier >= 0:  # of a number that becomes bits, the last ones
            sql = f"{'right' if kind.name == 'bit' else 'left'}({sql}, {modifier})"
        return Typed(sql, kind)

    def _cast(self, typed: Typed, kind: Kind) -> str:
        source = typed.kind
        # Equal storage is not enough for "char", which has one character only.
        if source == kind or (source.storage == kind.storage and (kind.name != "char" or not source.is_text)):
            return typed.sql
        if kind.is_array and source.is_text:
            return f"CAST(catalog_array_in({typed.sql}) AS {kind.storage})"
        if source.fields or kind.fields or (kind.is_array and not source.is_array):
            raise DatatypeMismatch(f"cannot cast type {source.shown} to {kind.shown}")
        if kind.name == "bit":
            return f"CAST(CAST(CAST({typed.sql} AS BIGINT) AS BIT) AS VARCHAR)"
        if source.name == "bit" and kind.name in ("int4", "int8"):
            return f"CAST(CAST(CAST(lpad({typed.sql}, 64, '0') AS BIT) AS BIGINT) AS {kind.storage})"
        if kind.is_text:
            return f"left({self.as_text(typed)}, 1)" if kind.name == "char" else self.as_text(typed)
        if kind.name in REG_TYPES and source.is_text:
            return f"catalog_oid({quote(kind.name)}, {typed.sql}, {quote(self.session.path_text)})"
        return f"CAST({typed.sql} AS {kind.storage})"

    def text(self, typed: Typed) -> str:
        """The SQL of an expression as text."""
        return self.coerced(typed, TEXT).sql

    def as_text(self, typed: Typed) -> str:
        """The text that PostgreSQL prints for a value."""
        kind, sql = typed.kind, typed.sql
        if kind.is_text:
            return sql
        if kind.is_array:
            return f"catalog_{'vector' if kind.is_vector else 'array'}_out({self.element_texts(typed)})"
        if kind.name in REG_TYPES:
            return f"catalog_name({quote(kind.name)}, {sql}, {quote(self.session.path_text)})"
        if kind.name == "timestamptz":
            return f"(CAST({sql} AS VARCHAR) || '+00')"
        if kind.name == "bytea":
            return f"('\\x' || lower(hex({sql})))"
        return f"catalog_{kind.name}({sql})" if kind.name in ("float4", "float8") else f"CAST({sql} AS VARCHAR)"

    def element_texts(self, typed: Typed) -> str:
        """The elements of an array as texts; a boolean is t or f there."""
        element = kind_of(typed.kind.element)
        shown = "CASE e WHEN TRUE THEN 't' WHEN FALSE THEN 'f' END"
        texts = shown if element == BOOL else self.as_text(Typed("e", element))
        return typed.sql if texts == "e" else f"list_transform({typed.sql}, lambda e: {texts})"
