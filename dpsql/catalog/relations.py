"""relations: the relations of pg_catalog and information_schema in PostgreSQL 15, their columns and types."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from dpsql.sqltypes import SqlType

_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}
_ESCAPE: Final = re.compile(r"\\.")
STORED_SCALE: Final = 10
_STORAGE: Final = {
    "bool": "BOOLEAN",
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "numeric": f"DECIMAL(38, {STORED_SCALE})",
    "bytea": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP",  # of UTC
    "interval": "INTERVAL",
}
REG_TYPES: Final = (
    *("regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole", "regoper", "regoperator"),
    *("regconfig", "regdictionary", "regcollation"),
)
OID_TYPES: Final = ("oid", *REG_TYPES)
_SQL_TYPES: Final = {
    **{one.oid: one for one in SqlType if not (one.is_array or one.is_text or one in (SqlType.UUID, SqlType.UNKNOWN))},
    **{26: SqlType.BIGINT, 3802: SqlType.JSON},  # oid, jsonb
}
"""By the OID of the type; what is not here goes over the wire as text."""


@cache
def _facts(name: str) -> tuple[tuple[str, ...], tuple[tuple[str | None, ...], ...]]:
    """The columns and rows of a catalog of a fresh PostgreSQL 15, as benchmarks/catalog_facts.py has read it."""
    lines = files("dpsql.catalog").joinpath("facts", f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    header, *rows = lines
    return tuple(header.split("\t")), tuple(tuple(map(_fact, row.split("\t"))) for row in rows)


def _fact(text: str) -> str | None:
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
    def storage(self) -> str:
        """The type in DuckDB."""
        if self.is_array:
            return f"{kind_of(self.element).storage}[]"
        if self.fields:
            return "STRUCT(" + ", ".join(f'"{name}" {kind.storage}' for name, kind in self.fields) + ")"
        return "BIGINT" if self.name in OID_TYPES else _STORAGE.get(self.name, "VARCHAR")

    @property
    def sql_type(self) -> SqlType:
        """What the rest of dpsql takes it for."""
        plain = _SQL_TYPES.get(kind_of(self.element).oid if self.is_array else self.oid, SqlType.TEXT)
        return plain.array if self.is_array else plain


@cache
def _kinds() -> Mapping[int, Kind]:
    header, rows = _facts("pg_type")
    at = {name: header.index(name) for name in ("oid", "typname", "typcategory", "typelem", "typtype", "typbasetype")}
    found = {}
    for row in rows:
        category, element = str(row[at["typcategory"]]), int(row[at["typelem"]] or 0)
        oid = int(row[at["oid"]] or 0)
        found[oid] = Kind(oid, str(row[at["typname"]]), category, element if category == "A" else 0)
    for row in rows:
        if row[at["typtype"]] == "d":  # a domain's values go over the wire as its base type's
            found[int(row[at["oid"]] or 0)] = found[int(row[at["typbasetype"]] or 0)]
    return found


@cache
def _arrays() -> Mapping[int, Kind]:
    return {
        kind.element: kind for kind in _kinds().values() if kind.is_array and not kind.is_vector and kind.name[0] == "_"
    }


@cache
def _names() -> Mapping[str, Kind]:
    header, rows = _facts("pg_type")
    oid, name = header.index("oid"), header.index("typname")
    return {str(row[name]): _kinds()[int(row[oid] or 0)] for row in rows}


def kind_of(oid: int) -> Kind:
    """The type of an OID; text for those that only the policy's own relations have."""
    return _kinds().get(oid, TEXT)


def is_known(oid: int) -> bool:
    """True if there is a type of this OID."""
    return oid in _kinds()


def named(name: str) -> Kind:
    """The type of a name of pg_type.

    Raises:
        KeyError: There is none.
    """
    return _names()[name]


def value_kind(name: str) -> Kind | None:
    """The type of a name, if values can have it: pseudo-types are none."""
    kind = _names().get(name)
    return kind if kind is not None and kind.category != "P" else None


def array_of(kind: Kind) -> Kind:
    """The array type of a type; that of text where it has none."""
    return _arrays().get(kind.oid, _arrays()[TEXT.oid])


TEXT: Final = named("text")
UNKNOWN: Final = named("unknown")
BOOL: Final = named("bool")
INT2: Final = named("int2")
INT4: Final = named("int4")
INT8: Final = named("int8")
NUMERIC: Final = named("numeric")
FLOAT8: Final = named("float8")
OID: Final = named("oid")
NAME: Final = named("name")
RECORD_OID: Final = 2249


def record(*fields: tuple[str, Kind]) -> Kind:
    """A record of these fields."""
    return Kind(RECORD_OID, "record", "P", 0, fields)


PG_CATALOG = "pg_catalog"
INFORMATION_SCHEMA = "information_schema"

Value = object
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Attribute:
    """A column of a relation; `type` is its OID in pg_attribute, which may be that of a domain."""

    name: str
    kind: Kind
    type: int
    not_null: bool

    @property
    def default(self) -> Value:
        """What stands where nothing is known: NULL, or the emptiest value of a column that is never NULL."""
        if not self.not_null or self.kind.category in "DTUZ":
            return None if self.kind.name != "char" else ""
        if self.kind.is_array:
            return []
        if self.kind.category == "B":
            return False
        return 0 if self.kind.storage not in ("VARCHAR", "BLOB") else ""


@dataclass(frozen=True)
class Relation:
    """A relation of PostgreSQL's own."""

    oid: int
    schema: str
    name: str
    attributes: tuple[Attribute, ...]

    @property
    def key(self) -> str:
        """Its name in the catalog's engine."""
        return f"{self.schema}.{self.name}"


@cache
def schema_names() -> Mapping[int, str]:
    """PostgreSQL's own schemas by OID."""
    header, rows = _facts("pg_namespace")
    oid, name = header.index("oid"), header.index("nspname")
    return {int(row[oid] or 0): str(row[name]) for row in rows}


@cache
def system_relations() -> Mapping[tuple[str, str], Relation]:
    """Tables and views by schema and name."""
    attributes: dict[int, list[Attribute]] = {}
    for row in typed_rows("pg_attribute"):
        kind = kind_of(int(str(row["atttypid"])))
        attributes.setdefault(int(str(row["attrelid"])), []).append(
            Attribute(str(row["attname"]), kind, int(str(row["atttypid"])), row["attnotnull"] is True)
        )
    found = {}
    for row in typed_rows("pg_class"):
        if row["relkind"] in ("r", "v"):
            oid, schema = int(str(row["oid"])), schema_names()[int(str(row["relnamespace"]))]
            name = str(row["relname"])
            found[schema, name] = Relation(oid, schema, name, tuple(attributes.get(oid, ())))
    return found


_FACT_KINDS = {"word": 25, "catcode": 18, "barelabel": 16, "catdesc": 25, "baredesc": 25, "encoding": 23, "name": 25}


@cache
def typed_rows(name: str) -> tuple[Row, ...]:
    """The rows of a file of facts as Python values."""
    header, rows = _facts(name)
    kinds = [kind_of(oid) for oid in _column_types(name, header)]
    return tuple(
        {column: _value(text, kind) for column, text, kind in zip(header, row, kinds, strict=True)} for row in rows
    )


def _column_types(name: str, header: tuple[str, ...]) -> list[int]:
    """The types of a file's columns; they are in the facts themselves."""
    if name in ("keywords", "encodings"):
        return [_FACT_KINDS[column] for column in header]
    class_header, classes = _facts("pg_class")
    oid, relname = class_header.index("oid"), class_header.index("relname")
    relation = next(row[oid] for row in classes if row[relname] == name)
    head, attributes = _facts("pg_attribute")
    relid, attname, atttypid = (head.index(column) for column in ("attrelid", "attname", "atttypid"))
    types = {str(row[attname]): int(row[atttypid] or 0) for row in attributes if row[relid] == relation}
    return [types[column] for column in header]


@cache
def _procs() -> Mapping[str, int]:
    header, rows = _facts("pg_proc")
    oid, name = header.index("oid"), header.index("proname")
    return {str(row[name]): int(row[oid] or 0) for row in rows}


def _value(text: str | None, kind: Kind) -> Value:
    if text is None:
        return None
    if kind.is_vector:
        return [int(part) for part in text.split()]
    if kind.is_array:
        inner = text[1:-1]
        element = kind_of(kind.element)
        return [_value(part.strip('"'), element) for part in inner.split(",")] if inner else []
    if kind.category == "B":
        return text == "t"
    if kind.name.startswith("reg"):
        return _procs().get(text.rpartition(".")[2], 0) if not text.isdigit() else int(text)
    if kind.storage in ("BIGINT", "INTEGER", "SMALLINT"):
        return int(text)
    return float(text) if kind.storage in ("FLOAT", "DOUBLE") else text
