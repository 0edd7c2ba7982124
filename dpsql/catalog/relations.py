"""relations: what relations pg_catalog and information_schema have, with their columns, as PostgreSQL 15 has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from dpsql.catalog import facts
from dpsql.catalog.kinds import Kind, kind_of

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
    header, rows = facts.read("pg_namespace")
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
    header, rows = facts.read(name)
    kinds = [kind_of(oid) for oid in _column_types(name, header)]
    return tuple(
        {column: _value(text, kind) for column, text, kind in zip(header, row, kinds, strict=True)} for row in rows
    )


def _column_types(name: str, header: tuple[str, ...]) -> list[int]:
    """The types of a file's columns; they are in the facts themselves."""
    if name in ("keywords", "encodings"):
        return [_FACT_KINDS[column] for column in header]
    class_header, classes = facts.read("pg_class")
    oid, relname = class_header.index("oid"), class_header.index("relname")
    relation = next(row[oid] for row in classes if row[relname] == name)
    head, attributes = facts.read("pg_attribute")
    relid, attname, atttypid = (head.index(column) for column in ("attrelid", "attname", "atttypid"))
    types = {str(row[attname]): int(row[atttypid] or 0) for row in attributes if row[relid] == relation}
    return [types[column] for column in header]


@cache
def _procs() -> Mapping[str, int]:
    header, rows = facts.read("pg_proc")
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
