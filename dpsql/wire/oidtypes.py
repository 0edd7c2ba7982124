"""Types by OID: those of the type table, and those that only the catalog has: arrays, vectors, reg types, and texts."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from dpsql.catalog.kinds import REG_TYPES, kind_of
from dpsql.errors import InvalidText, UnsupportedQuery
from dpsql.gateway.query_run import ObjectName, ResultColumn
from dpsql.sqltypes import SqlType
from dpsql.sqltypes.textformat import array, text
from dpsql.sqltypes.textinput import array_elements, read_text
from dpsql.wire import binaryformat
from dpsql.wire.messages.fields import uint32
from dpsql.wire.pgtypes import BINARY, TEXT, PgType, by_oid, of_parameter, of_type
from dpsql.wire.styles import PLAIN, Style, styled

_MAX_ELEMENTS: Final = 100_000
_AS_TEXT: Final = of_type(SqlType.TEXT)


@lru_cache(maxsize=4096)
def of_oid(oid: int, style: Style = PLAIN) -> PgType:
    """Return how results of a type go over the wire; a type that is not known goes as the text it is."""
    kind, known = kind_of(oid), by_oid(oid)
    if kind.is_vector:
        return _vector(oid, of_oid(kind.element))
    if kind.is_array:
        return _array(oid, of_oid(kind.element, style))
    if known is not None:
        return styled(known, style)
    return _reg_type(oid) if kind.name in REG_TYPES else replace(_AS_TEXT, oid=oid)


def of_sql_type(kind: SqlType, style: Style = PLAIN) -> PgType:
    """Return how values of a type go over the wire."""
    return styled(of_type(kind), style) if kind.element is None else of_oid(kind.oid, style)


def of_column(column: ResultColumn, style: Style = PLAIN) -> PgType:
    """Return how a column goes over the wire."""
    return of_sql_type(column.type, style) if column.oid is None else of_oid(column.oid, style)


def of_declared(oid: int) -> PgType | None:
    """Return the type that a client declares for a parameter; None if it leaves the type to be inferred.

    Raises:
        UnsupportedQuery: If dpsql has no such type.
    """
    kind = kind_of(oid)
    return of_oid(oid) if kind.is_array or kind.name in REG_TYPES else of_parameter(oid)


def _reg_type(oid: int) -> PgType:
    """A reg type: a name in text, an OID in binary; parameters are names either way, or the digits of an OID."""

    def write(value: object) -> bytes:
        return uint32(value.oid if isinstance(value, ObjectName) else int(text(value)))

    def read(raw: bytes) -> str:
        return str(struct.unpack("!I", raw)[0]) if len(raw) == 4 else read_text(raw)

    plain = _AS_TEXT.write[TEXT]
    return PgType(oid, 4, SqlType.TEXT, (plain, write), (read_text, read))


def _array(oid: int, element: PgType) -> PgType:
    def write(value: Sequence[Any]) -> bytes:
        return array(value, lambda one: element.write[TEXT](one).decode()).encode("utf-8", "replace")

    return PgType(
        oid,
        -1,
        element.type.array,
        (write, binaryformat.array(element.oid, element.write[BINARY])),
        (partial(_read_text, element), partial(_read_binary, element)),
    )


def _vector(oid: int, element: PgType) -> PgType:
    def write(value: Sequence[Any]) -> bytes:
        return b" ".join(map(element.write[TEXT], value))

    def read(raw: bytes) -> list[object]:
        return [element.read[TEXT](part) for part in raw.split()]

    binary = binaryformat.array(element.oid, element.write[BINARY], lower_bound=0)
    return PgType(oid, -1, SqlType.ARRAY, (write, binary), (read, partial(_read_binary, element)))


def _read_text(element: PgType, raw: bytes) -> list[object]:
    texts = array_elements(read_text(raw))
    return [None if text is None else element.read[TEXT](text.encode()) for text in texts]


def _read_binary(element: PgType, raw: bytes) -> list[object]:
    try:
        dimensions, _, kind = struct.unpack_from("!iiI", raw)
        if dimensions == 0:
            return []
        if dimensions > 1:
            raise UnsupportedQuery("multidimensional array parameters are not supported")
        (count,) = struct.unpack_from("!i", raw, 12)
        if not 0 <= count <= _MAX_ELEMENTS:
            raise InvalidText("incorrect binary data format in a parameter")
        reader = of_oid(kind).read[BINARY] if kind != element.oid else element.read[BINARY]
        found, at = list[object](), 20
        for _ in range(count):
            (size,) = struct.unpack_from("!i", raw, at)
            at += 4
            found.append(None if size < 0 else reader(raw[at : at + size]))
            at += max(size, 0)
    except struct.error:
        raise InvalidText("incorrect binary data format in a parameter") from None
    return found
