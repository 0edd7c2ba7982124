"""The table of types: PostgreSQL's OIDs and sizes, and how each type's values are written and read in both formats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from dpsql import textformat
from dpsql.errors import InvalidParameter, NumberOutOfRange, UnsupportedQuery
from dpsql.sqltypes import SqlType
from dpsql.wire import binaryformat

TEXT: Final = 0
BINARY: Final = 1

_TURN: Final = 1e15
"""From here on PostgreSQL prints doubles with an exponent, and Python does not."""
_YEARS: Final = tuple(b"%04d-" % year for year in range(10_000))
_MONTHS_AND_DAYS: Final = tuple(b"%02d-%02d" % (number >> 5, number & 31) for number in range(13 << 5))

Writer = Callable[[Any], bytes]
Reader = Callable[[bytes], object]
ColumnWriters = Mapping[type, Callable[[Sequence[Any]], list[bytes]]]


@dataclass(frozen=True, slots=True)
class PgType:
    """A type on the wire.

    Attributes:
        oid: The type's OID, as in pg_type.
        size: Bytes of a value, or -1 where values differ in size.
        type: What dpsql takes it for.
        write: Writers of a value by format: text, binary.
        read: Readers of a parameter by format: text, binary; they raise InvalidText or NumberOutOfRange.
        at_once: By the Python type that all values of a column have: what writes them as text faster than the writer
            of a value does, and the same.
    """

    oid: int
    size: int
    type: SqlType
    write: tuple[Writer, Writer]
    read: tuple[Reader, Reader]
    at_once: ColumnWriters = field(default_factory=dict, compare=False)

    def column(self, code: int, values: Sequence[Any]) -> Sequence[bytes | None]:
        """Return the values of a column as they go over the wire in a format; None is NULL."""
        if code == TEXT and self.at_once:
            types = set(map(type, values))
            writer = self.at_once.get(types.pop()) if len(types) == 1 else None
            if writer is not None:
                return writer(values)
        write = self.write[code]
        return [None if value is None else write(value) for value in values]


def _texts(writer: Callable[[Any], str]) -> Writer:
    return lambda value: writer(value).encode("utf-8", "replace")


def _booleans_at_once(values: Sequence[bool]) -> list[bytes]:
    return [b"t" if value else b"f" for value in values]


def _integers_at_once(values: Sequence[int]) -> list[bytes]:
    return [b"%d" % value for value in values]


def _doubles_at_once(values: Sequence[float]) -> list[bytes]:
    shown = "".join([f"{value!r}\n" for value in values])
    if "e" in shown or "n" in shown or max(values) >= _TURN or min(values) <= -_TURN:
        return list(map(str.encode, map(textformat.double, values)))
    # What is left is printed by Python as by PostgreSQL, but for the fraction of whole numbers.
    return shown.replace(".0\n", "\n").encode().split(b"\n")[:-1]


def _strings_at_once(values: Sequence[str]) -> list[bytes]:
    return [value.encode("utf-8", "replace") for value in values]


def _days_at_once(values: Sequence[date]) -> list[bytes]:
    return [_YEARS[value.year] + _MONTHS_AND_DAYS[value.month << 5 | value.day] for value in values]


def _ranged(reader: Callable[[bytes], int], low: int, high: int) -> Reader:
    def read(raw: bytes) -> int:
        number = reader(raw)
        if not low <= number <= high:
            raise NumberOutOfRange(f'value "{number}" is out of range')
        return number

    return read


def _integer(oid: int, size: int, kind: SqlType, layout: str) -> PgType:
    low, high = (0, 2 ** (8 * size) - 1) if layout.isupper() else (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)
    return PgType(
        oid,
        size,
        kind,
        (_texts(textformat.integer), binaryformat.integer(f"!{layout}")),
        (_ranged(textformat.read_integer, low, high), binaryformat.read_integer(f"!{layout}")),
        {int: _integers_at_once},
    )


def _string(oid: int, kind: SqlType, size: int = -1) -> PgType:
    return PgType(
        oid,
        size,
        kind,
        (_texts(textformat.text), binaryformat.text),
        (textformat.read_text, textformat.read_text),
        {str: _strings_at_once},
    )


_WRITE_FLOAT4: Final = binaryformat.floating("!f")
_READ_FLOAT4: Final = binaryformat.read_floating("!f")


def _read_real(raw: bytes) -> float:
    # Through four bytes, so that the value is the float4 that PostgreSQL would take it for.
    return _READ_FLOAT4(_WRITE_FLOAT4(textformat.read_float(raw)))


def _no_array(raw: bytes) -> object:
    raise UnsupportedQuery("parameters of array types are not supported", hint="Pass one parameter for each element.")


# The first row of an SqlType is the one that results use; the others are types that clients declare for parameters.
_TYPES: Final = (
    PgType(
        16,
        1,
        SqlType.BOOLEAN,
        (_texts(textformat.boolean), binaryformat.boolean),
        (textformat.read_boolean, binaryformat.read_boolean),
        {bool: _booleans_at_once},
    ),
    _integer(21, 2, SqlType.SMALLINT, "h"),
    _integer(23, 4, SqlType.INTEGER, "i"),
    _integer(20, 8, SqlType.BIGINT, "q"),
    _integer(26, 4, SqlType.BIGINT, "I"),  # oid
    PgType(
        1700,
        -1,
        SqlType.NUMERIC,
        (_texts(textformat.numeric), binaryformat.numeric),
        (textformat.read_numeric, binaryformat.read_numeric),
    ),
    PgType(
        700,
        4,
        SqlType.REAL,
        (_texts(textformat.real), _WRITE_FLOAT4),
        (_read_real, _READ_FLOAT4),
    ),
    PgType(
        701,
        8,
        SqlType.DOUBLE,
        (_texts(textformat.double), binaryformat.floating("!d")),
        (textformat.read_float, binaryformat.read_floating("!d")),
        {float: _doubles_at_once},
    ),
    _string(25, SqlType.TEXT),
    _string(19, SqlType.TEXT, 64),  # name
    PgType(
        18,  # "char"
        1,
        SqlType.TEXT,
        (_texts(textformat.text), binaryformat.letter),
        (textformat.read_text, binaryformat.read_letter),
    ),
    _string(1043, SqlType.VARCHAR),
    _string(1042, SqlType.CHAR),
    # A result of unknown type is text, as in PostgreSQL; 705 is what clients declare.
    _string(25, SqlType.UNKNOWN),
    PgType(
        1082,
        4,
        SqlType.DATE,
        (_texts(textformat.day), binaryformat.day),
        (textformat.read_date, binaryformat.read_date),
        {date: _days_at_once},
    ),
    PgType(
        1083,
        8,
        SqlType.TIME,
        (_texts(textformat.time_of_day), binaryformat.time_of_day),
        (textformat.read_time, binaryformat.read_time),
    ),
    PgType(
        1114,
        8,
        SqlType.TIMESTAMP,
        (_texts(textformat.timestamp), binaryformat.timestamp),
        (textformat.read_timestamp, binaryformat.read_timestamp),
    ),
    PgType(
        1184,
        8,
        SqlType.TIMESTAMPTZ,
        (_texts(textformat.timestamptz), binaryformat.timestamptz),
        (textformat.read_timestamptz, binaryformat.read_timestamptz),
    ),
    PgType(
        1186,
        16,
        SqlType.INTERVAL,
        (_texts(textformat.interval), binaryformat.interval),
        (textformat.read_interval, binaryformat.read_interval),
    ),
    PgType(
        2950,
        16,
        SqlType.UUID,
        (_texts(textformat.text), binaryformat.uuid),
        (textformat.read_uuid, binaryformat.read_uuid),
    ),
    PgType(
        114,
        -1,
        SqlType.JSON,
        (_texts(textformat.json_text), binaryformat.json),
        (textformat.read_text, textformat.read_text),
    ),
    PgType(
        3802,  # jsonb
        -1,
        SqlType.JSON,
        (_texts(textformat.json_text), binaryformat.json),
        (textformat.read_text, binaryformat.read_jsonb),
    ),
    PgType(
        17,
        -1,
        SqlType.BYTEA,
        (_texts(textformat.bytea), binaryformat.bytea),
        (textformat.read_bytea, bytes),
    ),
    PgType(
        1009,  # text[]: the element type is not known here, and every element has a text
        -1,
        SqlType.ARRAY,
        (_texts(textformat.array), binaryformat.array),
        (_no_array, _no_array),
    ),
)
_BY_TYPE: Final = {row.type: row for row in reversed(_TYPES)}
_BY_OID: Final = {row.oid: row for row in reversed(_TYPES)}
_UNDECLARED: Final = (0, 705)


def of_type(kind: SqlType) -> PgType:
    """Return how results of a type go over the wire."""
    return _BY_TYPE[kind]


def text_of(kind: SqlType, value: object) -> str | None:
    """Return a value of a result as PostgreSQL prints it; None for NULL."""
    return None if value is None else of_type(kind).write[TEXT](value).decode()


def by_oid(oid: int) -> PgType | None:
    """Return the type of an OID, or None."""
    return _BY_OID.get(oid)


def of_parameter(oid: int) -> PgType | None:
    """Return the type a client declares for a parameter; None if it leaves the type to be inferred.

    Raises:
        UnsupportedQuery: If dpsql has no such type.
    """
    if oid in _UNDECLARED:
        return None
    if oid not in _BY_OID:
        raise UnsupportedQuery(
            f"parameters of the type with OID {oid} are not supported",
            hint="Leave the type undeclared, or declare a built-in scalar type.",
        )
    return _BY_OID[oid]


def spread_formats(formats: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return one format for each of `count` values; none given means text for all, and one stands for all.

    Raises:
        InvalidParameter: If a format is neither text nor binary, or their number fits nothing.
    """
    if any(code not in (TEXT, BINARY) for code in formats):
        raise InvalidParameter("unsupported format code", hint="0 is text, 1 is binary.")
    if len(formats) <= 1:
        return (formats or (TEXT,)) * count
    if len(formats) != count:
        raise InvalidParameter(f"{len(formats)} format codes for {count} values")
    return formats
