"""SQL types, by PostgreSQL's names: shared by policy, compiler and wire, and knowing none of them."""

import enum


class SqlType(enum.Enum):
    """A PostgreSQL type; the value is the name that format_type prints."""

    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    NUMERIC = "numeric"
    REAL = "real"
    DOUBLE = "double precision"
    TEXT = "text"
    VARCHAR = "character varying"
    CHAR = "character"
    DATE = "date"
    TIME = "time without time zone"
    TIMESTAMP = "timestamp without time zone"
    TIMESTAMPTZ = "timestamp with time zone"
    INTERVAL = "interval"
    UUID = "uuid"
    JSON = "json"
    BYTEA = "bytea"
    ARRAY = "anyarray"
    UNKNOWN = "unknown"

    @property
    def is_integer(self) -> bool:
        """True for smallint, integer and bigint."""
        return self in _INTEGERS

    @property
    def is_number(self) -> bool:
        """True for integers, numeric and floating point."""
        return self in _NUMBERS

    @property
    def is_text(self) -> bool:
        """True for the character types."""
        return self in _TEXTS

    @property
    def is_moment(self) -> bool:
        """True for dates and timestamps: types with an order on a time line."""
        return self in _MOMENTS


_INTEGERS = frozenset({SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT})
_NUMBERS = _INTEGERS | {SqlType.NUMERIC, SqlType.REAL, SqlType.DOUBLE}
_TEXTS = frozenset({SqlType.TEXT, SqlType.VARCHAR, SqlType.CHAR})
_MOMENTS = frozenset({SqlType.DATE, SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ})

_ALIASES = {
    "bool": SqlType.BOOLEAN,
    "int2": SqlType.SMALLINT,
    "int": SqlType.INTEGER,
    "int4": SqlType.INTEGER,
    "int8": SqlType.BIGINT,
    "decimal": SqlType.NUMERIC,
    "float4": SqlType.REAL,
    "float8": SqlType.DOUBLE,
    "float": SqlType.DOUBLE,
    "double": SqlType.DOUBLE,
    "varchar": SqlType.VARCHAR,
    "char": SqlType.CHAR,
    "bpchar": SqlType.CHAR,
    "time": SqlType.TIME,
    "timestamp": SqlType.TIMESTAMP,
    "timestamptz": SqlType.TIMESTAMPTZ,
    "jsonb": SqlType.JSON,
}


def parse_type(name: str) -> SqlType:
    """Return the type a policy or a cast names, such as "int4", "decimal" or "text[]".

    Args:
        name: A PostgreSQL type name or alias, without a length.

    Raises:
        ValueError: If PostgreSQL has such a type but dpsql does not, or neither has.
    """
    word = " ".join(name.lower().split())
    element = word
    while element.endswith("[]"):
        element = element[:-2].rstrip()
    if element != word:
        parse_type(element)
        return SqlType.ARRAY
    if word in _ALIASES:
        return _ALIASES[word]
    if word in (SqlType.ARRAY.value, SqlType.UNKNOWN.value):
        raise ValueError(f'"{name}" is not a column type')
    return SqlType(word)
