"""Types by OID: those of the type table, and those that only the catalog has: arrays, vectors, reg types, and texts."""

import re
import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final

from dpsql.errors import InvalidText, UnsupportedQuery
from dpsql.results import ObjectName, ResultColumn
from dpsql.sqltypes import SqlType
from dpsql.textformat import read_text, text
from dpsql.wire.binaryformat import flattened
from dpsql.wire.fields import int32, sized, uint32
from dpsql.wire.pgtypes import BINARY, TEXT, PgType, by_oid, of_parameter, of_type
from dpsql.wire.styles import PLAIN, Style, styled

_ELEMENTS: Final = {
    **{1000: 16, 1001: 17, 1002: 18, 1003: 19, 1005: 21, 1007: 23, 1008: 24, 1009: 25, 1014: 1042, 1015: 1043},
    **{1016: 20, 1021: 700, 1022: 701, 1028: 26, 1034: 1033, 1115: 1114, 1182: 1082, 1183: 1083, 1185: 1184},
    **{1187: 1186, 1231: 1700, 2210: 2205, 2211: 2206, 2951: 2950, 199: 114, 3807: 3802},
}
_VECTORS: Final = {22: 21, 30: 26}
_REG_TYPES: Final = frozenset({24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191})
_MAX_ELEMENTS: Final = 100_000
_BARE: Final = re.compile(r'[^\s{}",\\]+')
_ELEMENT: Final = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^,{}"\\]+))\s*(,|$)', re.S)


@lru_cache(maxsize=4096)
def of_oid(oid: int, style: Style = PLAIN) -> PgType:
    """Return how results of a type go over the wire; a type that is not known goes as the text it is."""
    known = by_oid(oid)
    if known is not None and oid not in _ELEMENTS:
        return styled(known, style)
    if oid in _ELEMENTS:
        return _array(oid, of_oid(_ELEMENTS[oid], style))
    if oid in _VECTORS:
        return _vector(oid, of_oid(_VECTORS[oid]))
    return _reg_type(oid) if oid in _REG_TYPES else _as_text(oid)


def of_sql_type(kind: SqlType, style: Style = PLAIN) -> PgType:
    """Return how values of a type go over the wire."""
    if kind.element is None:
        return styled(of_type(kind), style)
    element = of_type(kind.element).oid
    return next(of_oid(oid, style) for oid, of in _ELEMENTS.items() if of == element)


def of_column(column: ResultColumn, style: Style = PLAIN) -> PgType:
    """Return how a column goes over the wire."""
    return of_sql_type(column.type, style) if column.oid is None else of_oid(column.oid, style)


def of_declared(oid: int) -> PgType | None:
    """Return the type that a client declares for a parameter; None if it leaves the type to be inferred.

    Raises:
        UnsupportedQuery: If dpsql has no such type.
    """
    if oid in _ELEMENTS or oid in _VECTORS or oid in _REG_TYPES:
        return of_oid(oid)
    return of_parameter(oid)


def _as_text(oid: int) -> PgType:
    def write(value: object) -> bytes:
        return text(value).encode("utf-8", "replace")

    return PgType(oid, -1, SqlType.TEXT, (write, write), (read_text, read_text))


def _reg_type(oid: int) -> PgType:
    """A reg type: a name in text, an OID in binary; parameters are names either way, or the digits of an OID."""

    def write(value: object) -> bytes:
        return text(value).encode("utf-8", "replace")

    def write_binary(value: object) -> bytes:
        return uint32(value.oid if isinstance(value, ObjectName) else int(text(value)))

    def read_binary(raw: bytes) -> str:
        return str(struct.unpack("!I", raw)[0]) if len(raw) == 4 else read_text(raw)

    return PgType(oid, 4, SqlType.TEXT, (write, write_binary), (read_text, read_binary))


def _array(oid: int, element: PgType) -> PgType:
    return PgType(
        oid,
        -1,
        element.type.array,
        (partial(_write_text, element), partial(_write_binary, element, 1)),
        (partial(_read_text, element), partial(_read_binary, element)),
    )


def _vector(oid: int, element: PgType) -> PgType:
    def write(value: Sequence[Any]) -> bytes:
        return b" ".join(map(element.write[TEXT], value))

    def read(raw: bytes) -> list[object]:
        return [element.read[TEXT](part) for part in raw.split()]

    binary = partial(_write_binary, element, 0)
    return PgType(oid, -1, SqlType.ARRAY, (write, binary), (read, partial(_read_binary, element)))


def _write_text(element: PgType, value: Sequence[Any]) -> bytes:
    return ("{" + ",".join(_shown(element, one) for one in value) + "}").encode("utf-8", "replace")


def _shown(element: PgType, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return "{" + ",".join(_shown(element, one) for one in value) + "}"
    shown = element.write[TEXT](value).decode()
    if _BARE.fullmatch(shown) and shown.upper() != "NULL":
        return shown
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_binary(element: PgType, lower_bound: int, value: Sequence[Any]) -> bytes:
    sizes, items = flattened(value)
    sizes = sizes or ([] if lower_bound else [0])
    head = int32(len(sizes)) + int32(any(one is None for one in items)) + uint32(element.oid)
    bounds = b"".join(int32(size) + int32(lower_bound) for size in sizes)
    return head + bounds + b"".join(sized(None if one is None else element.write[BINARY](one)) for one in items)


def _read_text(element: PgType, raw: bytes) -> list[object]:
    shown = read_text(raw).strip()
    if not (shown.startswith("{") and shown.endswith("}")):
        raise InvalidText(f'malformed array literal: "{shown[:64]}"')
    inner, found, at = shown[1:-1], list[object](), 0
    while inner.strip():
        match = _ELEMENT.match(inner, at)
        if match is None:
            raise InvalidText(f'malformed array literal: "{shown[:64]}"')
        plain = None if match[2] is None else match[2].strip()
        part = re.sub(r"\\(.)", r"\1", match[1]) if plain is None else plain
        null = plain is not None and plain.upper() == "NULL"
        found.append(None if null else element.read[TEXT](part.encode()))
        at = match.end()
        if not match[3]:
            break
    return found


def _read_binary(element: PgType, raw: bytes) -> list[object]:
    try:
        dimensions, _, kind = struct.unpack_from("!iiI", raw)
        if dimensions == 0:
            return []
        if dimensions > 1:
            raise UnsupportedQuery("parameters that are arrays of arrays are not supported")
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
