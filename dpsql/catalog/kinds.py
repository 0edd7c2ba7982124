"""kinds: PostgreSQL's types as the catalog knows them, and how their values are stored in DuckDB."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from dpsql.catalog import facts
from dpsql.sqltypes import SqlType

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
    header, rows = facts.read("pg_type")
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
    header, rows = facts.read("pg_type")
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
