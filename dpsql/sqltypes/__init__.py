"""SQL types, by PostgreSQL's names: shared by policy, compiler and wire, and knowing none of them."""

import enum
from dataclasses import dataclass
from datetime import timedelta


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
    JSONB = "jsonb"
    BYTEA = "bytea"
    UNKNOWN = "unknown"
    ARRAY = "anyarray"
    BOOLEAN_ARRAY = "boolean[]"
    SMALLINT_ARRAY = "smallint[]"
    INTEGER_ARRAY = "integer[]"
    BIGINT_ARRAY = "bigint[]"
    NUMERIC_ARRAY = "numeric[]"
    REAL_ARRAY = "real[]"
    DOUBLE_ARRAY = "double precision[]"
    TEXT_ARRAY = "text[]"
    VARCHAR_ARRAY = "character varying[]"
    CHAR_ARRAY = "character[]"
    DATE_ARRAY = "date[]"
    TIME_ARRAY = "time without time zone[]"
    TIMESTAMP_ARRAY = "timestamp without time zone[]"
    TIMESTAMPTZ_ARRAY = "timestamp with time zone[]"
    INTERVAL_ARRAY = "interval[]"
    UUID_ARRAY = "uuid[]"
    JSON_ARRAY = "json[]"
    JSONB_ARRAY = "jsonb[]"
    BYTEA_ARRAY = "bytea[]"

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
    def is_json(self) -> bool:
        """True for json and jsonb."""
        return self in (SqlType.JSON, SqlType.JSONB)

    def is_alike(self, other: "SqlType") -> bool:
        """True for one type, two whole numbers, or two texts: in either, the same values are equal."""
        return self is other or (self.is_integer and other.is_integer) or (self.is_text and other.is_text)

    @property
    def is_moment(self) -> bool:
        """True for dates and timestamps: types with an order on a time line."""
        return self in _MOMENTS

    @property
    def is_array(self) -> bool:
        """True for arrays of any type, ARRAY among them, whose elements' type is not known."""
        return self in ARRAYS

    @property
    def element(self) -> "SqlType | None":
        """The type of an array's elements, whatever its dimensions; None where there is none, or none known."""
        return _ELEMENTS.get(self)

    @property
    def array(self) -> "SqlType":
        """The type of arrays of these."""
        return _ARRAYS.get(self, SqlType.ARRAY)

    @property
    def oid(self) -> int:
        """The OID under which results go over the wire; where a type is not known, that of text or of its arrays."""
        return _STORED[self][0] if self.element is None else _STORED[self.element][1]

    @property
    def size(self) -> int:
        """Bytes of a value, as in pg_type; -1 where values differ in size."""
        return -1 if self.is_array else _STORED[self][2]


_INTEGERS = frozenset({SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT})
_NUMBERS = _INTEGERS | {SqlType.NUMERIC, SqlType.REAL, SqlType.DOUBLE}
_TEXTS = frozenset({SqlType.TEXT, SqlType.VARCHAR, SqlType.CHAR})
_MOMENTS = frozenset({SqlType.DATE, SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ})

INTEGER_RANGES = {
    SqlType.SMALLINT: (-(2**15), 2**15 - 1),
    SqlType.INTEGER: (-(2**31), 2**31 - 1),
    SqlType.BIGINT: (-(2**63), 2**63 - 1),
}
_STORED = {
    SqlType.BOOLEAN: (16, 1000, 1),
    SqlType.SMALLINT: (21, 1005, 2),
    SqlType.INTEGER: (23, 1007, 4),
    SqlType.BIGINT: (20, 1016, 8),
    SqlType.NUMERIC: (1700, 1231, -1),
    SqlType.REAL: (700, 1021, 4),
    SqlType.DOUBLE: (701, 1022, 8),
    SqlType.TEXT: (25, 1009, -1),
    SqlType.VARCHAR: (1043, 1015, -1),
    SqlType.CHAR: (1042, 1014, -1),
    SqlType.DATE: (1082, 1182, 4),
    SqlType.TIME: (1083, 1183, 8),
    SqlType.TIMESTAMP: (1114, 1115, 8),
    SqlType.TIMESTAMPTZ: (1184, 1185, 8),
    SqlType.INTERVAL: (1186, 1187, 16),
    SqlType.UUID: (2950, 2951, 16),
    SqlType.JSON: (114, 199, -1),
    SqlType.JSONB: (3802, 3807, -1),
    SqlType.BYTEA: (17, 1001, -1),
    SqlType.UNKNOWN: (25, 1009, -1),
    SqlType.ARRAY: (1009, 1009, -1),
}
"""Of each type that is no array, as in pg_type: its OID, that of its arrays, and the size of a value."""
_ELEMENTS = {kind: SqlType(kind.value[:-2]) for kind in SqlType if kind.value.endswith("[]")}
_ARRAYS = {element: kind for kind, element in _ELEMENTS.items()}
ARRAYS = frozenset(_ELEMENTS) | {SqlType.ARRAY}

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
        return parse_type(element).array
    if word in _ALIASES:
        return _ALIASES[word]
    if word in (SqlType.ARRAY.value, SqlType.UNKNOWN.value):
        raise ValueError(f'"{name}" is not a column type')
    return SqlType(word)


@dataclass(frozen=True, slots=True)
class Span:
    """A value of type interval: three numbers that do not carry over, for months and days differ in length."""

    months: int
    days: int
    microseconds: int

    @classmethod
    def of(cls, value: timedelta) -> "Span":
        """A span of fixed length, its days and its time with the sign of the whole."""
        sign = -1 if value < timedelta() else 1
        days, left = divmod(abs(value), timedelta(days=1))
        return cls(0, sign * days, sign * (left // timedelta(microseconds=1)))

    def __str__(self) -> str:
        """The span as PostgreSQL prints it, under IntervalStyle postgres."""
        years = abs(self.months) // 12 * (-1 if self.months < 0 else 1)
        shown: list[str] = []
        negative = False
        for count, unit in ((years, "year"), (self.months - 12 * years, "mon"), (self.days, "day")):
            if count:
                # A plus sign stands where a part before was negative.
                shown.append(f"{'+' if negative and count > 0 else ''}{count} {unit}{'' if count == 1 else 's'}")
                negative = count < 0
        if self.microseconds or not shown:
            seconds, micros = divmod(abs(self.microseconds), 1_000_000)
            sign = "-" if self.microseconds < 0 else "+" if negative else ""
            fraction = f".{micros:06d}".rstrip("0") if micros else ""
            shown.append(f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}")
        return " ".join(shown)
