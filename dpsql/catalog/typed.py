"""typed: expressions in DuckDB's SQL, each with its PostgreSQL type, and what casts do to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dpsql.catalog import literals
from dpsql.catalog.literals import null, quote
from dpsql.catalog.relations import (
    BOOL,
    INT2,
    INT4,
    INT8,
    OID,
    OID_TYPES,
    REG_TYPES,
    TEXT,
    UNKNOWN,
    Kind,
    array_of,
    kind_of,
)
from dpsql.catalog.snapshot import Snapshot
from dpsql.catalog.syntax import Constant, Parameter
from dpsql.catalog.visitor import Visitor
from dpsql.errors import DatatypeMismatch, LimitExceeded, UndefinedParameter

MAX_WRITTEN: Final = 10_000_000
"""Characters of SQL that are written for one query: what stands in several places makes much of a short query."""


@dataclass(frozen=True)
class Typed:
    """An expression.

    Attributes:
        sql: In DuckDB's SQL.
        kind: Its type; UNKNOWN for what takes the type of its place.
        constant: What it is, where it is a constant of unknown type.
        parameter: Which placeholder it is, where its type is not known yet.
    """

    sql: str
    kind: Kind
    constant: Constant | None = None
    parameter: int | None = None


@dataclass
class TranslationContext:
    """What the translation of one statement is about.

    Attributes:
        snapshot: The catalog.
        visitor: Whose session it is.
        parameters: The placeholders' types as far as they are known.
        arrays: Those that the client has declared arrays; what of, their place may say otherwise.
        values: The placeholders' values; None where the statement is only described.
        count: How many names were made.
        written: How many characters expressions have so far, those inside them counted again.
    """

    snapshot: Snapshot
    visitor: Visitor
    parameters: dict[int, Kind] = field(default_factory=dict)
    arrays: Mapping[int, Kind] = field(default_factory=dict)
    values: Sequence[object] | None = None
    count: int = 0
    written: int = 0

    def check_given(self, parameter: Parameter) -> None:
        """Refuse a placeholder that is to be executed without a value.

        Raises:
            UndefinedParameter: There are fewer values.
        """
        if self.values is not None and parameter.index >= len(self.values):
            raise UndefinedParameter(f"there is no parameter ${parameter.index + 1}", position=parameter.at + 1)

    def fresh(self, letter: str) -> str:
        """A name that nothing else has."""
        self.count += 1
        return f"{letter}{self.count}"

    def counted(self, typed: Typed) -> Typed:
        """The expression, if not too much is written with it.

        Raises:
            LimitExceeded: It is too much.
        """
        self.written += len(typed.sql)
        if self.written > MAX_WRITTEN:
            raise LimitExceeded("the catalog query is too long or repeats too much", hint="Ask for less at once.")
        return typed

    def declare(self, index: int, kind: Kind) -> None:
        """Note the type of a placeholder; the first one said holds."""
        if self.parameters.get(index, UNKNOWN) == UNKNOWN:
            self.parameters[index] = kind


def quote_name(name: str) -> str:
    """A name of the catalog's engine."""
    return '"' + name.replace('"', '""') + '"'


def is_text(kind: Kind) -> bool:
    """True for types whose values are stored as texts."""
    return not kind.is_array and not kind.fields and kind.storage == "VARCHAR"


def placeholder(index: int, kind: Kind) -> str:
    """A placeholder of a type."""
    return f"CAST($p{index + 1} AS {kind.storage})"


def settled(statement: TranslationContext, typed: Typed) -> Typed:
    """The expression with a type: text where its place says nothing, but an array where the client has declared one."""
    declared = TEXT if typed.parameter is None else statement.arrays.get(typed.parameter, TEXT)
    return coerced(statement, typed, declared) if typed.kind == UNKNOWN else typed


def coerced(statement: TranslationContext, typed: Typed, kind: Kind, *, modifier: int = -1) -> Typed:
    """The expression cast to a type.

    Raises:
        InvalidText: It is a constant that is none of the type.
        DatatypeMismatch: There is no such cast.
    """
    if typed.parameter is not None and typed.kind == UNKNOWN:
        statement.declare(typed.parameter, kind)
        held = statement.parameters[typed.parameter]
        known = Typed(placeholder(typed.parameter, held), held)
        return coerced(statement, known, kind, modifier=modifier)
    if typed.constant is not None and typed.kind == UNKNOWN:
        sql = null(kind) if typed.constant.kind == "null" else literal(statement, typed.constant.text, kind)
        return Typed(_cut(sql, kind, modifier), kind)
    return Typed(_cut(_cast(statement, typed, kind), kind, modifier), kind)


def _cut(sql: str, kind: Kind, modifier: int) -> str:
    if kind.name == "bit":  # of a number, the last bits
        return f"right({sql}, {modifier})" if modifier >= 0 else sql
    return f"left({sql}, {modifier})" if modifier >= 0 and kind.name in ("varchar", "bpchar") else sql


def _cast(statement: TranslationContext, typed: Typed, kind: Kind) -> str:
    source = typed.kind
    if source == kind or (source.storage == kind.storage and not _prints_otherwise(source, kind)):
        return typed.sql
    if kind.is_array:
        return _cast_to_array(typed, kind)
    if source.fields or kind.fields:
        raise DatatypeMismatch(f"cannot cast type {source.name} to {kind.name}")
    if kind.name == "bit":
        return f"CAST(CAST(CAST({typed.sql} AS BIGINT) AS BIT) AS VARCHAR)"
    if source.name == "bit" and kind.name in ("int4", "int8"):
        return f"CAST(CAST(CAST(lpad({typed.sql}, 64, '0') AS BIT) AS BIGINT) AS {kind.storage})"
    if is_text(kind):
        return f"left({as_text(statement, typed)}, 1)" if kind.name == "char" else as_text(statement, typed)
    if kind.name in REG_TYPES and is_text(source):
        return f"catalog_oid({quote(kind.name)}, {typed.sql}, {path(statement)})"
    return f"CAST({typed.sql} AS {kind.storage})"


def _prints_otherwise(source: Kind, kind: Kind) -> bool:
    """True where values stored alike are not the same: "char" has one character."""
    return kind.name == "char" and source.name != "char" and is_text(source)


def _cast_to_array(typed: Typed, kind: Kind) -> str:
    if is_text(typed.kind):
        return f"CAST(catalog_array_in({typed.sql}) AS {kind.storage})"
    if not typed.kind.is_array:
        raise DatatypeMismatch(f"cannot cast type {typed.kind.name} to {kind.name}")
    return f"CAST({typed.sql} AS {kind.storage})"


def as_text(statement: TranslationContext, typed: Typed) -> str:
    """The text that PostgreSQL prints for a value."""
    kind, sql = typed.kind, typed.sql
    if is_text(kind):
        return sql
    if kind.is_array:
        return f"catalog_{'vector' if kind.is_vector else 'array'}_out({element_texts(statement, typed)})"
    if kind.name in REG_TYPES:
        return f"catalog_name({quote(kind.name)}, {sql}, {path(statement)})"
    if kind.name == "timestamptz":
        return f"(CAST({sql} AS VARCHAR) || '+00')"
    if kind.name == "bytea":
        return f"('\\x' || lower(hex({sql})))"
    if kind.name in ("float4", "float8"):
        return f"catalog_{kind.name}({sql})"
    return f"CAST({sql} AS VARCHAR)"


def element_texts(statement: TranslationContext, typed: Typed) -> str:
    """The elements of an array as texts; a boolean is t or f there."""
    element = kind_of(typed.kind.element)
    shown = "CASE e WHEN TRUE THEN 't' WHEN FALSE THEN 'f' END"
    texts = shown if element == BOOL else as_text(statement, Typed("e", element))
    return typed.sql if texts == "e" else f"list_transform({typed.sql}, lambda e: {texts})"


def path(statement: TranslationContext) -> str:
    """The schemas that names are looked for in, as a constant."""
    return quote(",".join(statement.visitor.path(statement.snapshot)))


def literal(statement: TranslationContext, text: str, kind: Kind) -> str:
    """A constant of a type.

    Raises:
        Error: The text is none of that type, or names something that is not there.
    """
    visitor, snapshot = statement.visitor, statement.snapshot
    return literals.literal(
        visitor, lambda what, name: snapshot.oid_of(what, name, visitor.path_text(snapshot)), text, kind
    )


_NUMBERS: Final = ("int2", "int4", "int8", "numeric", "float4", "float8")


def common_kind(kinds: Sequence[Kind], what: str) -> Kind:
    """The one type that CASE, UNION, ARRAY and their like give to several expressions.

    Raises:
        DatatypeMismatch: There is none.
    """
    known = [kind for kind in kinds if kind != UNKNOWN]
    if not known:
        return TEXT
    chosen = known[0]
    for kind in known[1:]:
        if kind == chosen:
            continue
        if kind.name in _NUMBERS and chosen.name in _NUMBERS:
            chosen = max(kind, chosen, key=lambda one: _NUMBERS.index(one.name))
        elif {kind.name, chosen.name} <= {*OID_TYPES, "int2", "int4", "int8"}:
            chosen = OID
        elif is_text(kind) and is_text(chosen):
            # A type gives way where it casts to the other implicitly, and the other not to it.
            chosen = kind if chosen.name == "char" or (chosen.name != "text" and kind.name == "name") else chosen
        elif kind.is_array and chosen.is_array:
            chosen = array_of(common_kind([kind_of(kind.element), kind_of(chosen.element)], what))
        elif kind.storage != chosen.storage:
            raise DatatypeMismatch(f"{what} types {_long(chosen)} and {_long(kind)} cannot be matched")
    return chosen


def _long(kind: Kind) -> str:
    return {"bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint"}.get(kind.name, kind.name)


def integer_kind(text: str) -> Kind:
    """The type of a whole number as written."""
    number = int(text)
    if -(2**31) <= number < 2**31:
        return INT4
    return INT8 if -(2**63) <= number < 2**63 else kind_of(1700)


def implicit(source: Kind, kind: Kind) -> bool:
    """True if a function's argument of one type may be given where another is asked for."""
    if source in (kind, UNKNOWN):
        return True
    if is_text(source) and is_text(kind):
        return True
    numbers = ("int2", "int4", "int8", "numeric", "float4", "float8")
    if source.name in numbers and kind.name in numbers:
        return numbers.index(source.name) <= numbers.index(kind.name)
    if source.name in OID_TYPES and kind.name in OID_TYPES:
        return True
    if source in (INT2, INT4, INT8) and kind.name in OID_TYPES:
        return True
    if source.name in OID_TYPES and kind == INT8:
        return True
    if source.is_array and kind.is_array:
        return implicit(kind_of(source.element), kind_of(kind.element))
    if is_text(source) and kind.name in REG_TYPES:
        return True
    return {source.name, kind.name} <= {"date", "timestamp", "timestamptz"}
