"""snapshot: all rows of pg_catalog that a role sees, PostgreSQL's own and the policy's, and what names mean in them."""

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

    # Names

    @cached_property
    def schemas(self) -> Mapping[int, str]:
        """Schemas by OID."""
        return {_oid(row): str(row["nspname"]) for row in self.rows["pg_namespace"]}

    def _named(self, relation: str, name: str, schema: str) -> Mapping[int, Named]:
        return {
            _oid(row): Named(_oid(row), self.schemas.get(_int(row[schema]), ""), str(row[name]))
            for row in self.rows[relation]
        }

    @cached_property
    def classes(self) -> Mapping[int, Named]:
        """Tables, views and indexes by OID."""
        return self._named("pg_class", "relname", "relnamespace")

    @cached_property
    def types(self) -> Mapping[int, Named]:
        """Types by OID."""
        return self._named("pg_type", "typname", "typnamespace")

    @cached_property
    def functions(self) -> Mapping[int, Named]:
        """Functions by OID."""
        return self._named("pg_proc", "proname", "pronamespace")

    @cached_property
    def _others(self) -> Mapping[str, Mapping[int, Named]]:
        return {
            "collation": self._named("pg_collation", "collname", "collnamespace"),
            "opclass": self._named("pg_opclass", "opcname", "opcnamespace"),
            "opfamily": self._named("pg_opfamily", "opfname", "opfnamespace"),
            "ts_parser": self._named("pg_ts_parser", "prsname", "prsnamespace"),
        }

    def of_class(self, what: str) -> Mapping[int, Named]:
        """The named objects of a kind: table, type, function, collation and so on."""
        known = {"table": self.classes, "type": self.types, "function": self.functions, **self._others}
        return known.get(what, {})

    def is_visible(self, what: str, oid: int | None, path: str) -> bool | None:
        """Whether an object is found by its name alone; None where there is no such object."""
        found = self.of_class(what).get(oid or 0)
        if found is None:
            return None
        schemas = path.split(",")
        if found.schema not in schemas:
            return False
        if what == "function":
            return True
        before = schemas[: schemas.index(found.schema)]
        return not any((schema, found.name) in self._index(what) for schema in before)

    def _index(self, what: str) -> Mapping[tuple[str, str], int]:
        if what not in self._indexes:
            self._indexes[what] = {(one.schema, one.name): one.oid for one in self.of_class(what).values()}
        return self._indexes[what]

    @cached_property
    def _indexes(self) -> dict[str, Mapping[tuple[str, str], int]]:
        return {}

    def find(self, what: str, parts: Sequence[str], path: Iterable[str]) -> int | None:
        """The OID of a name, qualified or looked for along the path."""
        index = self._index(what)
        schemas = [parts[-2]] if len(parts) > 1 else list(path)
        return next((index[schema, parts[-1]] for schema in schemas if (schema, parts[-1]) in index), None)

    def oid_of(self, kind: str, text: str, path: str) -> int:
        """What a text means as a value of a reg type.

        Raises:
            UndefinedTable: There is no such relation.
            UndefinedFunction: There is no such function.
            UndefinedObject: There is no such type, schema or role.
            InvalidSyntax: It is no name.
        """
        if text.isdigit():
            return int(text)
        if text == "-":
            return 0
        found = self.look_up(kind, text, path)
        if found is not None:
            return found
        match kind:
            case "regclass":
                raise UndefinedTable(f'relation "{text}" does not exist')
            case "regproc" | "regprocedure":
                raise UndefinedFunction(f'function "{text}" does not exist')
            case _:
                what = {"regtype": "type", "regnamespace": "schema", "regrole": "role"}.get(kind, kind[3:])
                raise UndefinedObject(f'{what} "{text}" does not exist')

    def look_up(self, kind: str, text: str, path: str) -> int | None:
        """As oid_of, but None where there is none."""
        schemas = path.split(",")
        match kind:
            case "regclass":
                return self.find("table", split_name(text), schemas)
            case "regtype":
                return self._type_oid(text, schemas)
            case "regproc" | "regprocedure":
                return self.find("function", split_name(text.partition("(")[0]), schemas)
            case "regnamespace":
                return next((oid for oid, name in self.schemas.items() if (name,) == split_name(text)), None)
            case "regrole":
                return OWNER_OID if split_name(text) == (OWNER,) else None
            case "regcollation":
                return self.find("collation", split_name(text), schemas)
            case _:
                return None

    def _type_oid(self, text: str, path: Sequence[str]) -> int | None:
        name = " ".join(text.split())
        arrays = name.endswith("[]")
        name = re.sub(r"\s*\([^)]*\)", "", name.removesuffix("[]").strip())
        found = self.find("type", (_SHORT_NAMES[name.lower()],), path) if name.lower() in _SHORT_NAMES else None
        if found is None:
            try:
                found = self.find("type", split_name(name), path)
            except InvalidSyntax:
                return None
        return self._array_types.get(found or 0) if arrays else found

    @cached_property
    def _array_types(self) -> Mapping[int, int]:
        return {_oid(row): _int(row["typarray"]) for row in self.rows["pg_type"]}

    @cached_property
    def _elements(self) -> Mapping[int, int]:
        return {
            _oid(row): _int(row["typelem"])
            for row in self.rows["pg_type"]
            if row["typcategory"] == "A" and row["typlen"] == -1 and str(row["typname"]).startswith("_")
        }

    def name_of(self, kind: str, oid: int | None, path: str) -> str | None:
        """How a value of a reg type is printed."""
        if oid is None:
            return None
        if oid == 0:
            return "-"
        match kind:
            case "regtype":
                return self.format_type(oid, None, path) if oid in self.types else str(oid)
            case "regclass":
                return self._shown("table", oid, path)
            case "regproc":
                return self._shown("function", oid, path)
            case "regprocedure":
                shown = self._shown("function", oid, path)
                if oid not in self.functions:
                    return shown
                return f"{shown}({str(self.function_arguments(oid, path)).replace(', ', ',')})"
            case "regnamespace":
                return quote_identifier(self.schemas[oid]) if oid in self.schemas else str(oid)
            case "regrole":
                return OWNER if oid == OWNER_OID else str(oid)
            case "regcollation":
                return self._shown("collation", oid, path)
            case _:
                return str(oid)

    def _shown(self, what: str, oid: int, path: str) -> str:
        found = self.of_class(what).get(oid)
        if found is None:
            return str(oid)
        name = quote_identifier(found.name)
        return name if self.is_visible(what, oid, path) else f"{quote_identifier(found.schema)}.{name}"

    # Functions of the catalog

    def format_type(self, oid: int | None, modifier: int | None, path: str) -> str | None:
        """format_type."""
        if oid is None:
            return None
        if oid == 0:
            return "-"
        if oid in self._elements:
            return f"{self.format_type(self._elements[oid], modifier, path)}[]"
        found = self.types.get(oid)
        if found is None:
            return "???"
        if found.schema != "pg_catalog":
            return self._shown("type", oid, path)
        name = LONG_NAMES.get(found.name) or (found.name if found.name in _WORDS else quote_identifier(found.name))
        if modifier is None or modifier < 0:
            return name if modifier is None else _WITHOUT_LENGTH.get(found.name, name)
        return _with_modifier(found.name, name, modifier)

    @cached_property
    def _constraints(self) -> Mapping[int, Row]:
        return {_oid(row): row for row in self.rows["pg_constraint"]}

    @cached_property
    def _columns(self) -> Mapping[tuple[int, int], str]:
        return {(_int(row["attrelid"]), _int(row["attnum"])): str(row["attname"]) for row in self.rows["pg_attribute"]}

    def constraint_definition(self, oid: int | None, path: str) -> str | None:
        """pg_get_constraintdef."""
        row = self._constraints.get(oid or 0)
        if row is None:
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

    @cached_property
    def _indexes_by_oid(self) -> Mapping[int, Row]:
        return {_int(row["indexrelid"]): row for row in self.rows["pg_index"]}

    def index_definition(self, oid: int | None, column: int | None, path: str) -> str | None:
        """pg_get_indexdef; a column from 1 on gives that column alone."""
        row = self._indexes_by_oid.get(oid or 0)
        if row is None or column is None:
            return None
        relation, numbers = _int(row["indrelid"]), row["indkey"]
        listed = numbers if isinstance(numbers, list) else []
        if column:
            return quote_identifier(self._columns[relation, listed[column - 1]]) if column <= len(listed) else ""
        table = self.classes[relation]
        unique = "UNIQUE " if row["indisunique"] else ""
        name, on = quote_identifier(self.classes[oid or 0].name), f"{quote_identifier(table.schema)}.{table.name}"
        return f"CREATE {unique}INDEX {name} ON {on} USING btree ({self._column_list(relation, listed)})"

    @cached_property
    def _views(self) -> frozenset[int]:
        return frozenset(_oid(row) for row in self.rows["pg_class"] if row["relkind"] == "v")

    def view_definition(self, oid: int | None, path: str) -> str | None:
        """pg_get_viewdef: columns and types, and no row; the views of dpsql are no queries of tables."""
        if oid not in self._views:
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
        if found is None or (catalog is not None and self.classes[found[0]].name != catalog):
            return None
        return found[1]

    @cached_property
    def _procs(self) -> Mapping[int, Row]:
        return {_oid(row): row for row in self.rows["pg_proc"]}

    def function_result(self, oid: int | None, path: str) -> str | None:
        """pg_get_function_result."""
        row = self._procs.get(oid or 0)
        if row is None:
            return None
        shown = self.format_type(_int(row["prorettype"]), None, path)
        return f"SETOF {shown}" if row["proretset"] else shown

    def object_description(self, oid: int, path: str) -> str | None:
        """pg_describe_object, of tables, views, indexes and types."""
        kinds = {"r": "table", "v": "view", "i": "index"}
        for row in self.rows["pg_class"]:
            if row["oid"] == oid:
                return f"{kinds.get(str(row['relkind']), 'table')} {self._shown('table', oid, path)}"
        return f"type {self.format_type(oid, None, path)}" if oid in self.types else None

    def type_names(self, oids: Sequence[int], path: str) -> str:
        """Oidvectortypes."""
        return ", ".join(str(self.format_type(oid, None, path)) for oid in oids)

    def function_arguments(self, oid: int | None, path: str) -> str | None:
        """pg_get_function_arguments, without the arguments' names."""
        row = self._procs.get(oid or 0)
        if row is None:
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
    """Return a function that fills in what a row of a relation leaves out."""
    attributes = system_relations()["pg_catalog", name].attributes
    defaults = {attribute.name: attribute.default for attribute in attributes}
    static = _DEFAULTS.get(name, {})

    def complete(row: Row) -> Row:
        derived = _attribute_facts(_int(row["atttypid"])) if name == "pg_attribute" else {}
        return {**defaults, **static, **derived, **row}

    return complete


_DEFAULTS: Final[Mapping[str, Row]] = {
    "pg_class": {
        **{"relowner": OWNER_OID, "reltuples": -1.0, "relpersistence": "p", "relispopulated": True},
    },
    "pg_attribute": {
        **{"attstattarget": -1, "attcacheoff": -1, "attislocal": True},
    },
}


def _attribute_facts(type_oid: int) -> Row:
    """What a column has of its type."""
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
