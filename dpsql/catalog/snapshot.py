"""snapshot: all rows of pg_catalog that a role sees, PostgreSQL's own and the policy's, and how names resolve."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from dpsql.catalog.kinds import LONG_NAMES
from dpsql.catalog.objects import OWNER, OWNER_OID, PolicyObjects
from dpsql.catalog.relations import Row, system_relations, typed_rows
from dpsql.errors import InvalidSyntax, UndefinedFunction, UndefinedObject, UndefinedTable

_STATIC: Final = (
    *("pg_type", "pg_namespace", "pg_am", "pg_language", "pg_collation", "pg_cast", "pg_opclass", "pg_opfamily"),
    *("pg_range", "pg_tablespace", "pg_ts_parser", "pg_proc", "pg_class", "pg_attribute", "pg_index", "pg_constraint"),
)
_WORDS: Final = frozenset({"bit", "interval", "numeric"})
"""Types whose names are words of the grammar, and stand unquoted all the same."""
_WITHOUT_LENGTH: Final = {"bpchar": "bpchar", "bit": '"bit"'}
"""How types are shown whose name alone means a length of 1."""
_SHORT_NAMES: Final = {
    **{long: short for short, long in LONG_NAMES.items() if short != "char"},
    **{"int": "int4", "decimal": "numeric", "dec": "numeric", "float": "float8", "char": "bpchar"},
    **{"time": "time", "timestamp": "timestamp"},
}
_NAMED: Final = {
    **{"table": ("pg_class", "rel"), "type": ("pg_type", "typ"), "function": ("pg_proc", "pro")},
    **{"collation": ("pg_collation", "coll"), "opclass": ("pg_opclass", "opc"), "opfamily": ("pg_opfamily", "opf")},
    **{"ts_parser": ("pg_ts_parser", "prs")},
}
"""Kinds of objects with a schema and a name: their relation, and the prefix of its columns."""
_FUNCTIONS: Final = ("regproc", "regprocedure")
_PART: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([A-Za-z_\u0080-\uffff][\w$]*))\s*(\.|$)')
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_$]*")


def quote_identifier(name: str) -> str:
    """A name as it has to be written."""
    if _PLAIN.fullmatch(name) and name not in _reserved():
        return name
    return '"' + name.replace('"', '""') + '"'


@cache
def _reserved() -> frozenset[str]:
    return frozenset(str(row["word"]) for row in typed_rows("keywords") if row["catcode"] != "U")


def split_name(text: str) -> tuple[str, ...]:
    """The parts of a qualified name.

    Raises:
        InvalidSyntax: It is not one.
    """
    parts, at = [], 0
    while True:
        match = _PART.match(text, at)
        if match is None:
            raise InvalidSyntax("invalid name syntax")
        parts.append(match[1].replace('""', '"') if match[1] else match[2].lower())
        at = match.end()
        if not match[3]:
            return tuple(parts)


@dataclass(frozen=True)
class Named:
    """Something that has a schema and a name."""

    oid: int
    schema: str
    name: str


class Snapshot:
    """The catalog of one role.

    Args:
        objects: What the policy adds.
    """

    def __init__(self, objects: PolicyObjects) -> None:
        self.objects = objects
        added = objects.rows()
        self.rows: dict[str, Sequence[Row]] = {
            name: [*map(_completed(name), (*_static(name), *added.get(name, ())))] for name in {*_STATIC, *added}
        }
        self._named: dict[str, Mapping[int, Named]] = {}
        self._indexes: dict[str, Mapping[tuple[str, str], int]] = {}

    # Names

    @cached_property
    def schemas(self) -> Mapping[int, str]:
        """Schemas by OID."""
        return {_oid(row): str(row["nspname"]) for row in self.rows["pg_namespace"]}

    def named(self, what: str) -> Mapping[int, Named]:
        """The objects of a kind by OID: table, type, function, collation and so on."""
        if what not in self._named:
            relation, prefix = _NAMED.get(what, ("", ""))
            self._named[what] = {
                _oid(row): Named(
                    _oid(row), self.schemas.get(_int(row[f"{prefix}namespace"]), ""), str(row[f"{prefix}name"])
                )
                for row in self.rows.get(relation, ())
            }
        return self._named[what]

    def is_visible(self, what: str, oid: int | None, path: str) -> bool | None:
        """Return whether an object is found without its schema; None if there is no such object."""
        found = self.named(what).get(oid or 0)
        if found is None:
            return None
        schemas = path.split(",")
        if found.schema not in schemas:
            return False
        before = schemas[: schemas.index(found.schema)]
        return what == "function" or not any((schema, found.name) in self._index(what) for schema in before)

    def _index(self, what: str) -> Mapping[tuple[str, str], int]:
        if what not in self._indexes:
            self._indexes[what] = {(one.schema, one.name): one.oid for one in self.named(what).values()}
        return self._indexes[what]

    def _find(self, what: str, parts: Sequence[str], path: Iterable[str]) -> int | None:
        """Return the OID of a name, qualified or searched along the path."""
        index = self._index(what)
        schemas = [parts[-2]] if len(parts) > 1 else list(path)
        return next((index[schema, parts[-1]] for schema in schemas if (schema, parts[-1]) in index), None)

    def oid_of(self, kind: str, text: str, path: str) -> int:
        """The OID of a text as a value of a reg type.

        Raises:
            UndefinedTable: There is no such relation.
            UndefinedFunction: There is no such function.
            UndefinedObject: There is no such type, schema or role.
            InvalidSyntax: It is no name.
        """
        if text.isdigit() or text == "-":
            return int(text.replace("-", "0"))
        found = self.look_up(kind, text, path)
        if found is not None:
            return found
        error = {"regclass": UndefinedTable, **dict.fromkeys(_FUNCTIONS, UndefinedFunction)}.get(kind, UndefinedObject)
        names = {"regclass": "relation", "regnamespace": "schema", **dict.fromkeys(_FUNCTIONS, "function")}
        raise error(f'{names.get(kind, kind[3:])} "{text}" does not exist')

    def look_up(self, kind: str, text: str, path: str) -> int | None:
        """Return the OID as oid_of does, but None if there is none."""
        schemas = path.split(",")
        match kind:
            case "regtype":
                return self._type_oid(text, schemas)
            case "regclass" | "regcollation":
                return self._find({"regclass": "table"}.get(kind, "collation"), split_name(text), schemas)
            case "regproc" | "regprocedure":
                return self._find("function", split_name(text.partition("(")[0]), schemas)
            case "regnamespace":
                return next((oid for oid, name in self.schemas.items() if (name,) == split_name(text)), None)
            case "regrole":
                return OWNER_OID if split_name(text) == (OWNER,) else None
        return None

    def _type_oid(self, text: str, path: Sequence[str]) -> int | None:
        name = " ".join(text.split())
        arrays = name.endswith("[]")
        name = re.sub(r"\s*\([^)]*\)", "", name.removesuffix("[]").strip())
        found = self._find("type", (_SHORT_NAMES[name.lower()],), path) if name.lower() in _SHORT_NAMES else None
        if found is None:
            try:
                found = self._find("type", split_name(name), path)
            except InvalidSyntax:
                return None
        return _int(self._row("pg_type", found).get("typarray")) or None if arrays else found

    def name_of(self, kind: str, oid: int | None, path: str) -> str | None:
        """How a value of a reg type is printed."""
        if oid is None:
            return None
        if oid == 0:
            return "-"
        match kind:
            case "regtype":
                return self.format_type(oid, None, path) if oid in self.named("type") else str(oid)
            case "regclass" | "regcollation":
                return self._shown({"regclass": "table"}.get(kind, "collation"), oid, path)
            case "regproc" | "regprocedure":
                arguments = self.function_arguments(oid, path) if kind == "regprocedure" else None
                shown = self._shown("function", oid, path)
                return shown if arguments is None else f"{shown}({arguments.replace(', ', ',')})"
            case "regnamespace":
                return quote_identifier(self.schemas[oid]) if oid in self.schemas else str(oid)
            case "regrole":
                return OWNER if oid == OWNER_OID else str(oid)
        return str(oid)

    def _shown(self, what: str, oid: int, path: str) -> str:
        found = self.named(what).get(oid)
        if found is None:
            return str(oid)
        name = quote_identifier(found.name)
        return name if self.is_visible(what, oid, path) else f"{quote_identifier(found.schema)}.{name}"

    @cached_property
    def _by_oid(self) -> Mapping[str, Mapping[int, Row]]:
        keys = {"pg_type": "oid", "pg_class": "oid", "pg_proc": "oid", "pg_constraint": "oid", "pg_index": "indexrelid"}
        return {name: {_int(row[key]): row for row in self.rows.get(name, ())} for name, key in keys.items()}

    def _row(self, relation: str, oid: int | None) -> Row:
        """The row of an OID; an empty row if there is none."""
        return self._by_oid[relation].get(oid or 0, {})

    # Functions of the catalog

    def format_type(self, oid: int | None, modifier: int | None, path: str) -> str | None:
        """format_type."""
        if oid is None:
            return None
        if oid == 0:
            return "-"
        row = self._row("pg_type", oid)
        if row.get("typcategory") == "A" and row["typlen"] == -1 and str(row["typname"]).startswith("_"):
            return f"{self.format_type(_int(row['typelem']), modifier, path)}[]"
        found = self.named("type").get(oid)
        if found is None:
            return "???"
        if found.schema != "pg_catalog":
            return self._shown("type", oid, path)
        name = LONG_NAMES.get(found.name) or (found.name if found.name in _WORDS else quote_identifier(found.name))
        if modifier is None or modifier < 0:
            return name if modifier is None else _WITHOUT_LENGTH.get(found.name, name)
        return _with_modifier(found.name, name, modifier)

    @cached_property
    def _columns(self) -> Mapping[tuple[int, int], str]:
        return {(_int(row["attrelid"]), _int(row["attnum"])): str(row["attname"]) for row in self.rows["pg_attribute"]}

    def constraint_definition(self, oid: int | None, path: str) -> str | None:
        """pg_get_constraintdef."""
        row = self._row("pg_constraint", oid)
        if not row:
            return None
        relation = _int(row["conrelid"])
        columns = self._column_list(relation, row["conkey"])
        if row["contype"] != "f":
            return f"{'PRIMARY KEY' if row['contype'] == 'p' else 'UNIQUE'} ({columns})"
        parent = _int(row["confrelid"])
        there = self._column_list(parent, row["confkey"])
        return f"FOREIGN KEY ({columns}) REFERENCES {self._shown('table', parent, path)}({there})"

    def _column_list(self, relation: int, numbers: object) -> str:
        listed = numbers if isinstance(numbers, list) else []
        return ", ".join(quote_identifier(self._columns[relation, number]) for number in listed)

    def index_definition(self, oid: int | None, column: int | None, path: str) -> str | None:
        """pg_get_indexdef; with a column number from 1, only that column."""
        row = self._row("pg_index", oid)
        if not row or column is None:
            return None
        relation, numbers = _int(row["indrelid"]), row["indkey"]
        listed = numbers if isinstance(numbers, list) else []
        if column:
            return quote_identifier(self._columns[relation, listed[column - 1]]) if column <= len(listed) else ""
        table = self.named("table")[relation]
        unique = "UNIQUE " if row["indisunique"] else ""
        name, on = (
            quote_identifier(self.named("table")[oid or 0].name),
            f"{quote_identifier(table.schema)}.{table.name}",
        )
        return (
            f"CREATE {unique}INDEX {quote_identifier(name)} ON {on} USING btree ({self._column_list(relation, listed)})"
        )

    def view_definition(self, oid: int | None, path: str) -> str | None:
        """pg_get_viewdef: columns and types, and no row; the views of dpsql are no queries of tables."""
        if self._row("pg_class", oid).get("relkind") != "v":
            return None
        columns = [row for row in self.rows["pg_attribute"] if row["attrelid"] == oid]
        listed = (
            f"NULL::{self.format_type(_int(row['atttypid']), _int(row['atttypmod']), path)} "
            f"AS {quote_identifier(str(row['attname']))}"
            for row in columns
        )
        return f" SELECT {', '.join(listed)}\n  WHERE false;"

    @cached_property
    def _descriptions(self) -> Mapping[tuple[int, int], tuple[int, str]]:
        return {
            (_int(row["objoid"]), _int(row["objsubid"])): (_int(row["classoid"]), str(row["description"]))
            for row in self.rows.get("pg_description", ())
        }

    def description(self, oid: int | None, number: int | None, catalog: str | None) -> str | None:
        """obj_description and col_description."""
        found = self._descriptions.get((oid or 0, -1 if number is None else number))
        if found is None or (catalog is not None and self.named("table")[found[0]].name != catalog):
            return None
        return found[1]

    def function_result(self, oid: int | None, path: str) -> str | None:
        """pg_get_function_result."""
        row = self._row("pg_proc", oid)
        if not row:
            return None
        shown = self.format_type(_int(row["prorettype"]), None, path)
        return f"SETOF {shown}" if row["proretset"] else shown

    def object_description(self, oid: int, path: str) -> str | None:
        """pg_describe_object, of tables, views, indexes and types."""
        kind = self._row("pg_class", oid).get("relkind")
        if kind is not None:
            return f"{ {'v': 'view', 'i': 'index'}.get(str(kind), 'table') } {self._shown('table', oid, path)}"
        return f"type {self.format_type(oid, None, path)}" if oid in self.named("type") else None

    def type_names(self, oids: Sequence[int], path: str) -> str:
        """Oidvectortypes."""
        return ", ".join(str(self.format_type(oid, None, path)) for oid in oids)

    def function_arguments(self, oid: int | None, path: str) -> str | None:
        """pg_get_function_arguments, without the arguments' names."""
        row = self._row("pg_proc", oid)
        if not row:
            return None
        types = row["proargtypes"] if isinstance(row["proargtypes"], list) else []
        return ", ".join(str(self.format_type(one, None, path)) for one in types)


def _oid(row: Row) -> int:
    return _int(row["oid"])


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _static(name: str) -> tuple[Row, ...]:
    return typed_rows(name) if name in _STATIC else ()


def _completed(name: str) -> Callable[[Row], Row]:
    """Return a function that adds the missing columns of a relation's row."""
    defaults = {one.name: one.default for one in system_relations()["pg_catalog", name].attributes}

    def complete(row: Row) -> Row:
        derived = _attribute_facts(_int(row["atttypid"])) if name == "pg_attribute" else {}
        return {**defaults, **derived, **row}

    return complete


def _attribute_facts(type_oid: int) -> Row:
    """The facts of a column that depend on its type."""
    row = _type_facts().get(type_oid)
    if row is None:
        return {"attlen": -1, "attalign": "d", "attstorage": "x"}
    return {
        "attlen": row["typlen"],
        "attbyval": row["typbyval"],
        "attalign": row["typalign"],
        "attstorage": row["typstorage"],
        "attcollation": row["typcollation"],
    }


@cache
def _type_facts() -> Mapping[int, Row]:
    return {_oid(row): row for row in typed_rows("pg_type")}


def _with_modifier(name: str, shown: str, modifier: int) -> str:
    if name in ("varchar", "bpchar"):
        return f"{shown}({modifier - 4})"
    if name == "numeric":
        return f"numeric({(modifier - 4) >> 16 & 0xFFFF},{(modifier - 4) & 0x7FF})"
    if name.startswith("time"):
        first, _, rest = shown.partition(" ")
        return f"{first}({modifier}) {rest}".strip()
    return shown
