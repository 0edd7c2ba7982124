"""relations: the relations of pg_catalog and information_schema in PostgreSQL 15, with their columns and rows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template
from typing import Final

from sqlglot import exp

from dpsql.catalog.kinds import Fact, Kind, facts, kind_of
from dpsql.catalog.reading import read_query

PG_CATALOG: Final = "pg_catalog"
INFORMATION_SCHEMA: Final = "information_schema"
_OTHER_FACTS: Final = {
    "keywords": {"word": 25, "catcode": 18, "barelabel": 16, "catdesc": 25, "baredesc": 25},
    "encodings": {"encoding": 23, "name": 25},
}
"""Files that are no relations: the OIDs of their columns' types."""

Value = object
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Attribute:
    """A column of a relation, and its default value; a domain has its base type."""

    name: str
    kind: Kind
    default: Value


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
def system_relations() -> Mapping[tuple[str, str], Relation]:
    """Tables and views by schema and name."""
    schemas = {row["oid"]: str(row["nspname"]) for row in facts("pg_namespace")}
    names = {row["oid"]: row["relname"] for row in facts("pg_class")}
    defaults = {(row["relation"], row["column"]): row["value"] for row in facts("defaults")}
    attributes: dict[str | None, list[Attribute]] = {}
    for row in facts("pg_attribute"):
        name, kind, relation = str(row["attname"]), kind_of(int(row["atttypid"] or 0)), row["attrelid"]
        known = defaults.get((names[relation], name))
        default = _emptiest(kind, row["attnotnull"] == "t") if known is None else _value(known, kind)
        attributes.setdefault(relation, []).append(Attribute(name, kind, default))
    found = {}
    for row in facts("pg_class"):
        if row["relkind"] in ("r", "v"):
            schema, name, columns = schemas[row["relnamespace"]], str(row["relname"]), attributes.get(row["oid"], ())
            found[schema, name] = Relation(int(row["oid"] or 0), schema, name, tuple(columns))
    return found


def _emptiest(kind: Kind, not_null: bool) -> Value:
    """The value of a column about which nothing is known: NULL, if the column allows it."""
    if not not_null or kind.category in "DTUZ":
        return None if kind.name != "char" else ""
    if kind.is_array:
        return []
    return False if kind.category == "B" else "" if kind.storage in ("VARCHAR", "BLOB") else 0


@cache
def _views() -> Mapping[str, str]:
    """The queries of views.sql by schema and name, and the parts that they include."""
    found: dict[str, str] = {}
    text = files("dpsql.catalog").joinpath("views.sql").read_text(encoding="utf-8")
    for match in re.finditer(r"^-- ([a-z_.]+)\n(.*?);$", text, re.S | re.M):
        found[match[1]] = Template(match[2]).substitute(found)
    return found


@cache
def view_query(key: str) -> exp.Query | None:
    """The query of a relation that is computed from others, by its schema and name."""
    sql = _views().get(key)
    return None if sql is None else read_query(sql)


@cache
def typed_rows(name: str) -> tuple[Row, ...]:
    """The rows of a file of facts as Python values."""
    kinds = {column: kind_of(oid) for column, oid in _OTHER_FACTS.get(name, {}).items()}
    kinds = kinds or {one.name: one.kind for one in system_relations()[PG_CATALOG, name].attributes}
    return tuple({column: _value(text, kinds[column]) for column, text in row.items()} for row in facts(name))


def keyword_kinds() -> Mapping[str, Kind]:
    """The columns of pg_get_keywords."""
    return {column: kind_of(oid) for column, oid in _OTHER_FACTS["keywords"].items()}


@cache
def _functions() -> Mapping[str | None, Fact]:
    return {row["proname"]: row for row in facts("pg_proc")}


def _value(text: str | None, kind: Kind) -> Value:
    if text is None:
        return None
    if kind.is_vector:
        return [int(part) for part in text.split()]
    if kind.is_array:
        inner, element = text[1:-1], kind_of(kind.element)
        return [_value(part.strip('"'), element) for part in inner.split(",")] if inner else []
    if kind.category == "B":
        return text == "t"
    if kind.name.startswith("reg") and not text.isdigit():
        return int(_functions().get(text.rpartition(".")[2], {}).get("oid") or 0)
    if kind.storage in ("BIGINT", "INTEGER", "SMALLINT"):
        return int(text)
    return float(text) if kind.storage in ("FLOAT", "DOUBLE") else text
