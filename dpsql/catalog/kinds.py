"""kinds: the types of pg_type, their storage in DuckDB, and implicit conversions between them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from dpsql.errors import DatatypeMismatch
from dpsql.sqltypes import SqlType

_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}
_ESCAPE: Final = re.compile(r"\\.")
STORED_SCALE: Final = 10
_STORAGE: Final = {
    **{"bool": "BOOLEAN", "int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT", "float4": "FLOAT"},
    **{"float8": "DOUBLE", "numeric": f"DECIMAL(38, {STORED_SCALE})", "bytea": "BLOB", "date": "DATE", "time": "TIME"},
    **{"timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMP", "interval": "INTERVAL"},
}
"""A timestamptz is stored in UTC; other types are stored as text."""
NUMBERS: Final = ("int2", "int4", "int8", "numeric", "float4", "float8")
"""Each is cast implicitly to those behind it."""
INTEGERS: Final = NUMBERS[:3]
MOMENTS: Final = ("date", "timestamp", "timestamptz")
REG_TYPES: Final = (
    *("regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole", "regoper", "regoperator"),
    *("regconfig", "regdictionary", "regcollation"),
)
OID_TYPES: Final = ("oid", *REG_TYPES)
_SQL_TYPES: Final = {
    **{one.oid: one for one in SqlType if not (one.is_array or one.is_text or one in (SqlType.UUID, SqlType.UNKNOWN))},
    **{26: SqlType.BIGINT, 3802: SqlType.JSON},  # oid, jsonb
}
"""By the OID of the type; other types are sent as text."""

Fact = Mapping[str, str | None]


@cache
def facts(name: str) -> tuple[Fact, ...]:
    """The rows of a catalog of a fresh PostgreSQL 15, as benchmarks/catalog_facts.py has read it.

    `defaults` is ours: the values that columns have in all rows of a policy or a session.
    """
    lines = files("dpsql.catalog").joinpath("facts", f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    header, *rows = (line.split("\t") for line in lines)
    return tuple(dict(zip(header, map(_fact, row), strict=True)) for row in rows)


def _fact(text: str) -> str | None:
    if "\\" not in text:
        return text
    return None if text == "\\N" else _ESCAPE.sub(lambda match: _ESCAPES.get(match[0], match[0][1]), text)


@dataclass(frozen=True)
class Kind:
    """A type.

    Attributes:
        oid: As in pg_type.
        name: As in pg_type.
        category: The type category: N numbers, S strings, A arrays and so on.
        element: The OID of an array's elements; 0 for others.
        fields: The fields of a record.
    """

    oid: int
    name: str
    category: str
    element: int = 0
    fields: tuple[tuple[str, "Kind"], ...] = ()

    @property
    def is_array(self) -> bool:
        """True for arrays, int2vector and oidvector among them."""
        return self.category == "A"

    @property
    def is_vector(self) -> bool:
        """True where subscripts begin at 0."""
        return self.name in ("int2vector", "oidvector")

    @property
    def is_text(self) -> bool:
        """True for types whose values are stored as texts."""
        return not self.is_array and self.storage == "VARCHAR"

    @property
    def storage(self) -> str:
        """The type in DuckDB."""
        if self.is_array:
            return f"{kind_of(self.element).storage}[]"
        if self.fields:
            return "STRUCT(" + ", ".join(f'"{name}" {kind.storage}' for name, kind in self.fields) + ")"
        return "BIGINT" if self.name in OID_TYPES else _STORAGE.get(self.name, "VARCHAR")

    @property
    def sql_type(self) -> SqlType:
        """Its type in the rest of dpsql."""
        plain = _SQL_TYPES.get(kind_of(self.element).oid if self.is_array else self.oid, SqlType.TEXT)
        return plain.array if self.is_array else plain

    @property
    def shown(self) -> str:
        """The name of the type in messages."""
        if self.is_array and not self.is_vector:
            return f"{kind_of(self.element).shown}[]"
        return LONG_NAMES.get(self.name, self.name)


@cache
def _kinds() -> tuple[Mapping[int, Kind], Mapping[str, Kind]]:
    """The types by OID and by name; a domain is its base type, as which its values go over the wire."""
    found, names = dict[int, Kind](), dict[str, Kind]()
    for row in sorted(facts("pg_type"), key=lambda row: row["typtype"] == "d"):
        oid, category = int(row["oid"] or 0), str(row["typcategory"])
        kind = Kind(oid, str(row["typname"]), category, int(row["typelem"] or 0) if category == "A" else 0)
        found[oid] = names[kind.name] = kind if row["typtype"] != "d" else found[int(row["typbasetype"] or 0)]
    return found, names


@cache
def _arrays() -> Mapping[int, Kind]:
    return {kind.element: kind for kind in _kinds()[0].values() if kind.is_array and kind.name[0] == "_"}


def kind_of(oid: int) -> Kind:
    """The type of an OID; text for those that only the policy's own relations have."""
    return _kinds()[0].get(oid, TEXT)


def of_sql_type(kind: SqlType) -> Kind:
    """The type that values of one of dpsql's types have in the catalog."""
    return kind_of(kind.oid)


def named(name: str) -> Kind:
    """The type of a name of pg_type.

    Raises:
        KeyError: There is none.
    """
    return _kinds()[1][name]


def value_kind(name: str) -> Kind | None:
    """The type of a name, if values can have it: pseudo-types are none."""
    kind = _kinds()[1].get(name)
    return kind if kind is not None and kind.category != "P" else None


def array_of(kind: Kind) -> Kind:
    """The array type of a type; that of text where it has none."""
    return _arrays().get(kind.oid, _arrays()[TEXT.oid])


TEXT: Final = named("text")
UNKNOWN: Final = named("unknown")
BOOL: Final = named("bool")
INT4: Final = named("int4")
INT8: Final = named("int8")
NUMERIC: Final = named("numeric")
FLOAT8: Final = named("float8")
OID: Final = named("oid")
_RECORD_OID: Final = 2249
LONG_NAMES: Final[Mapping[str, str]] = {
    **{kind_of(one.oid).name: one.value for one in SqlType if not one.is_array and one is not SqlType.UNKNOWN},
    **{"char": '"char"', "varbit": "bit varying", "timetz": "time with time zone"},
}
"""Types that format_type and messages do not call by their name in pg_type."""


def record(*fields: tuple[str, Kind]) -> Kind:
    """A record of these fields."""
    return Kind(_RECORD_OID, "record", "P", 0, fields)


def integer_kind(text: str) -> Kind:
    """The type of a whole number as written."""
    number = int(text)
    if -(2**31) <= number < 2**31:
        return INT4
    return INT8 if -(2**63) <= number < 2**63 else NUMERIC


def common_kind(kinds: Sequence[Kind], what: str) -> Kind:
    """Return the common type of several expressions, as for CASE, UNION and ARRAY.

    Raises:
        DatatypeMismatch: They have no common type.
    """
    known = [kind for kind in kinds if kind != UNKNOWN]
    chosen = known[0] if known else TEXT
    for kind in known[1:]:
        if kind == chosen:
            continue
        if kind.name in NUMBERS and chosen.name in NUMBERS:
            chosen = max(kind, chosen, key=lambda one: NUMBERS.index(one.name))
        elif {kind.name, chosen.name} <= {*OID_TYPES, *INTEGERS}:
            chosen = OID
        elif kind.is_text and chosen.is_text:
            # A type is replaced if it casts to the other one implicitly, and not the other way round.
            chosen = kind if chosen.name == "char" or (chosen.name != "text" and kind.name == "name") else chosen
        elif kind.is_array and chosen.is_array:
            chosen = array_of(common_kind([kind_of(kind.element), kind_of(chosen.element)], what))
        elif kind.storage != chosen.storage:
            raise DatatypeMismatch(f"{what} types {chosen.shown} and {kind.shown} cannot be matched")
    return chosen


def comparable(left: Kind, right: Kind) -> bool:
    """True if values of two types can be compared."""
    if left == right or (left.is_text and right.is_text):
        return True
    groups = (NUMBERS, (*OID_TYPES, *INTEGERS), MOMENTS)
    if any(left.name in group and right.name in group for group in groups):
        return True
    if left.is_array and right.is_array:
        return comparable(kind_of(left.element), kind_of(right.element))
    return "regclass" in (left.name, right.name) and (left.is_text or right.is_text)


def implicit(source: Kind, kind: Kind) -> bool:
    """Whether an argument of one type can be passed for a parameter of another."""
    if source in (kind, UNKNOWN) or (source.is_text and (kind.is_text or kind.name in REG_TYPES)):
        return True
    if source.is_array and kind.is_array:
        return implicit(kind_of(source.element), kind_of(kind.element))
    if source.name in OID_TYPES or kind.name in OID_TYPES:
        return source.name in (*OID_TYPES, *INTEGERS) and (kind.name in OID_TYPES or kind == INT8)
    if source.name in NUMBERS and kind.name in NUMBERS:
        return NUMBERS.index(source.name) <= NUMBERS.index(kind.name)
    return {source.name, kind.name} <= {*MOMENTS}
