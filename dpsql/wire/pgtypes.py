"""The table of types: PostgreSQL's OIDs and sizes, and how each type's values are written and read in both formats."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import compress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import InvalidParameter, UnsupportedQuery
from dpsql.sqltypes import SqlType, textformat, textinput
from dpsql.wire import binaryformat
from dpsql.wire.messages.rows import ColumnBytes

TEXT: Final = 0
BINARY: Final = 1

_TURN: Final = 1e15
"""From here on PostgreSQL prints doubles with an exponent, and Python does not."""
_MOST_DECIMALS: Final = 4
"""A number with a nonzero digit no later than this has no exponent."""
_POWERS: Final = 10 ** np.arange(1, 20, dtype=np.uint64)
_YEARS: Final = tuple(b"%04d-" % year for year in range(10_000))
_LETTERS: Final = bytes.maketrans(b"\0\1", b"ft")
_MONTHS_AND_DAYS: Final = tuple(b"%02d-%02d" % (number >> 5, number & 31) for number in range(13 << 5))

Writer = Callable[[Any], bytes]
Reader = Callable[[bytes], object]
ColumnWriter = Callable[[Sequence[Any]], ColumnBytes]
ColumnWriters = tuple[Mapping[type, ColumnWriter], Mapping[type, ColumnWriter]]


@dataclass(frozen=True, slots=True)
class PgType:
    """A type on the wire.

    Attributes:
        oid: The type's OID, as in pg_type.
        size: Bytes of a value, or -1 where values differ in size.
        type: What dpsql takes it for.
        write: Writers of a value by format: text, binary.
        read: Readers of a parameter by format: text, binary; they raise DataErrors.
        at_once: By format, and by the Python type that all values of a column have: what writes them faster than the
            writer of a value does, and the same.
    """

    oid: int
    size: int
    type: SqlType
    write: tuple[Writer, Writer]
    read: tuple[Reader, Reader]
    at_once: ColumnWriters = field(default=({}, {}), compare=False)

    def column(self, code: int, values: Sequence[Any]) -> ColumnBytes:
        """Return the values of a column as they go over the wire in a format; None is NULL."""
        types = set(map(type, values[:1] if isinstance(values, array) else values))
        if type(None) in types:
            are_there = [value is not None for value in values]
            return self.column(code, list(compress(values, are_there))).with_nulls(are_there)
        writer = self.at_once[code].get(types.pop()) if len(types) == 1 else None
        return writer(values) if writer is not None else ColumnBytes.of(list(map(self.write[code], values)))


def _texts(writer: Callable[[Any], str]) -> Writer:
    return lambda value: writer(value).encode("utf-8", "replace")


def _fixed(data: bytes, count: int) -> ColumnBytes:
    """Values that have as many bytes each."""
    return ColumnBytes(data, np.full(count, len(data) // count))


def _booleans_as_text(values: Sequence[bool]) -> ColumnBytes:
    return _fixed(bytes(values).translate(_LETTERS), len(values))


def _booleans(values: Sequence[bool]) -> ColumnBytes:
    return _fixed(bytes(values), len(values))


def _integers_as_text(values: Sequence[int]) -> ColumnBytes:
    try:
        numbers = np.asarray(values, dtype=np.int64)
    except OverflowError:
        return ColumnBytes.of([str(value).encode() for value in values])
    # The least number has no opposite in its own type.
    return _digits(np.abs(numbers).view(np.uint64), numbers < 0, np.zeros_like(numbers))


def _doubles_as_text(values: Sequence[float]) -> ColumnBytes:
    if round(values[0], _MOST_DECIMALS) != values[0]:  # no need to look at the others
        return _long_doubles_as_text(values)
    numbers = np.asarray(values, dtype=np.float64)
    decimals = np.zeros(len(numbers), dtype=np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        for scale in range(_MOST_DECIMALS + 1):
            units = np.rint(numbers * 10.0**scale)
            inexact = units / 10.0**scale != numbers
            if not inexact.any():
                break
            decimals[inexact] = scale + 1
    if inexact.any() or not (np.abs(units) < _TURN).all():
        return _long_doubles_as_text(values)
    # Two numbers of at most 15 digits are different floats, so these digits are the shortest.
    return _digits(np.abs(units).astype(np.uint64), np.signbit(numbers), decimals)


def _long_doubles_as_text(values: Sequence[float]) -> ColumnBytes:
    shown = "".join([f"{value!r}\n" for value in values])
    if "e" in shown or "n" in shown or max(values) >= _TURN or min(values) <= -_TURN:
        return _strings(list(map(textformat.double, values)))
    # What is left is printed by Python as by PostgreSQL, but for the fraction of whole numbers.
    lines = shown.replace(".0\n", "\n").encode()
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
    return ColumnBytes(lines.replace(b"\n", b""), np.diff(ends, prepend=-1) - 1)


def _digits(units: NDArray[np.uint64], negative: NDArray[np.bool_], decimals: NDArray[np.int64]) -> ColumnBytes:
    """Numbers, each with so many decimals, in units of the last place of the one that has most."""
    scale = int(decimals.max())
    whole_digits = 1 + np.searchsorted(_POWERS, units // 10**scale, side="right")
    point = 1 + int(whole_digits.max())
    shown = np.empty((len(units), point + (1 + scale if scale else 0)), dtype=np.uint8)
    rest = units
    for place in (*range(point + scale, point, -1), *range(point - 1, 0, -1)):
        tens = rest // 10
        shown[:, place] = rest - 10 * tens + ord("0")
        rest = tens
    begins, ends = point - whole_digits - negative, point + decimals + (decimals > 0)
    shown[negative, begins[negative]] = ord("-")
    shown[:, point : point + 1] = ord(".")
    places = np.arange(shown.shape[1])
    is_shown = (begins[:, np.newaxis] <= places) & (places < ends[:, np.newaxis])
    return ColumnBytes(shown[is_shown].tobytes(), ends - begins)


def _strings(values: Sequence[str]) -> ColumnBytes:
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    data = "".join(values).encode("utf-8", "replace")
    if len(data) > lengths.sum():  # some characters have several bytes
        return ColumnBytes.of([value.encode("utf-8", "replace") for value in values])
    return ColumnBytes(data, lengths)


def _days_as_text(values: Sequence[date]) -> ColumnBytes:
    shown = [_YEARS[value.year] + _MONTHS_AND_DAYS[value.month << 5 | value.day] for value in values]
    return _fixed(b"".join(shown), len(values))


def _doubles(values: Sequence[float]) -> ColumnBytes:
    return _fixed(np.asarray(values, dtype=">f8").tobytes(), len(values))


def _integers(layout: str, write: Writer, number: Callable[[Any], int] | None = None) -> ColumnWriter:
    """What writes values by a whole number of each; `write` refuses those that the struct layout has no place for."""

    def write_all(values: Sequence[Any]) -> ColumnBytes:
        with suppress(OverflowError):
            wide = np.asarray(values if number is None else list(map(number, values)), dtype=np.int64)
            written = wide.astype(f">{layout}")
            if (written == wide).all():
                return _fixed(written.tobytes(), len(values))
        return ColumnBytes.of(list(map(write, values)))

    return write_all


def _type(
    kind: SqlType,
    show: Callable[[Any], str],
    write: Writer,
    read: Reader,
    at_once: ColumnWriters = ({}, {}),
) -> PgType:
    """A type whose text is read as constants are; words such as 'today' are left to the compiler."""

    def read_shown(raw: bytes) -> object:
        shown = textinput.read_text(raw)
        return shown if textinput.day_word(kind, shown) else textinput.read(kind, shown)

    return PgType(kind.oid, kind.size, kind, (_texts(show), write), (read_shown, read), at_once)


def _integer(kind: SqlType, layout: str) -> PgType:
    write, read = binaryformat.integer(f"!{layout}"), binaryformat.read_integer(f"!{layout}")
    at_once: ColumnWriters = ({int: _integers_as_text}, {int: _integers(layout, write)})
    return _type(kind, textformat.integer, write, read, at_once)


def _string(kind: SqlType) -> PgType:
    return _type(kind, textformat.text, binaryformat.text, textinput.read_text, ({str: _strings}, {str: _strings}))


def _real() -> PgType:
    write, read = binaryformat.floating("!f"), binaryformat.read_floating("!f")
    real = _type(SqlType.REAL, textformat.real, write, read)

    def read_rounded(raw: bytes) -> object:
        number: Any = real.read[TEXT](raw)
        # Through four bytes, so that the value is the float4 that PostgreSQL would take it for.
        return read(write(number))

    return replace(real, read=(read_rounded, read))


def _interval() -> PgType:
    found = _type(SqlType.INTERVAL, textformat.interval, binaryformat.interval, binaryformat.read_interval)

    def read(raw: bytes) -> object:
        span: Any = found.read[TEXT](raw)
        return binaryformat.fixed(span)

    return replace(found, read=(read, binaryformat.read_interval))


def _read_oid(raw: bytes) -> int:
    return textinput.read_whole("oid", 0, 2**32 - 1, textinput.read_text(raw))


def _no_array(raw: bytes) -> object:
    raise UnsupportedQuery("parameters of array types are not supported", hint="Pass one parameter for each element.")


_RESULTS: Final = (
    _type(
        SqlType.BOOLEAN,
        textformat.boolean,
        binaryformat.boolean,
        binaryformat.read_boolean,
        ({bool: _booleans_as_text}, {bool: _booleans}),
    ),
    _integer(SqlType.SMALLINT, "h"),
    _integer(SqlType.INTEGER, "i"),
    _integer(SqlType.BIGINT, "q"),
    _type(SqlType.NUMERIC, textformat.numeric, binaryformat.numeric, binaryformat.read_numeric),
    _real(),
    _type(
        SqlType.DOUBLE,
        textformat.double,
        binaryformat.floating("!d"),
        binaryformat.read_floating("!d"),
        ({float: _doubles_as_text}, {float: _doubles}),
    ),
    *map(_string, (SqlType.TEXT, SqlType.VARCHAR, SqlType.CHAR, SqlType.UNKNOWN)),
    _type(
        SqlType.DATE,
        textformat.day,
        binaryformat.day,
        binaryformat.read_date,
        ({date: _days_as_text}, {date: _integers("i", binaryformat.day, binaryformat.day_number)}),
    ),
    _type(SqlType.TIME, textformat.time_of_day, binaryformat.time_of_day, binaryformat.read_time),
    _type(SqlType.TIMESTAMP, textformat.timestamp, binaryformat.timestamp, binaryformat.read_timestamp),
    _type(SqlType.TIMESTAMPTZ, textformat.timestamptz, binaryformat.timestamptz, binaryformat.read_timestamptz),
    _interval(),
    _type(SqlType.UUID, textformat.text, binaryformat.uuid, binaryformat.read_uuid),
    _type(SqlType.JSON, textformat.json_text, binaryformat.json, textinput.read_text),
    _type(SqlType.JSONB, textformat.json_text, binaryformat.jsonb, binaryformat.read_jsonb),
    _type(SqlType.BYTEA, textformat.bytea, binaryformat.bytea, bytes),
    # The type of its elements is not known here, and every element has a text.
    PgType(
        SqlType.ARRAY.oid,
        -1,
        SqlType.ARRAY,
        (_texts(textformat.array), binaryformat.array(SqlType.TEXT.oid, _texts(textformat.by_python_type))),
        (_no_array, _no_array),
    ),
)
_BY_TYPE: Final = {row.type: row for row in _RESULTS}
_OTHERS: Final = (
    replace(_integer(SqlType.BIGINT, "I"), oid=26, size=4, read=(_read_oid, binaryformat.read_integer("!I"))),  # oid
    replace(_string(SqlType.TEXT), oid=19, size=64),  # name
    replace(
        _type(SqlType.TEXT, textformat.text, binaryformat.letter, binaryformat.read_letter), oid=18, size=1
    ),  # "char"
)
"""Types that the catalog's columns have, and that clients declare for parameters."""
_BY_OID: Final = {row.oid: row for row in reversed(_RESULTS + _OTHERS)}
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
