"""literals: quoted constants as values of a type, in DuckDB's SQL.

Rule: what a constant means is read here, as PostgreSQL reads it; DuckDB's own reading decides nothing.
"""

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

from dpsql.catalog.kinds import INTEGERS, MOMENTS, REG_TYPES, Kind, kind_of
from dpsql.catalog.session import CatalogSession
from dpsql.compiler.ir import intervals
from dpsql.errors import InvalidText, LimitExceeded, NumberOutOfRange
from dpsql.sqltypes import Span, SqlType
from dpsql.sqltypes.textformat import jsonb_text
from dpsql.sqltypes.textinput import array_elements, read, read_whole, zone

_ENDS: Final = frozenset({"infinity", "-infinity", "epoch"})
_JSON_TYPES: Final = {dict: "object", list: "array", bool: "boolean", type(None): "null", str: "string"}
_NOTHING: Final = object()


def quote(text: str) -> str:
    """A text as a constant."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """A name of the catalog's engine."""
    return '"' + name.replace('"', '""') + '"'


def null(kind: Kind) -> str:
    """NULL of a type."""
    return f"CAST(NULL AS {kind.storage})"


def interval(span: Span) -> str:
    """An interval."""
    return f"CAST({quote(intervals.constant(span))} AS INTERVAL)"


def literal(session: CatalogSession, text: str, kind: Kind) -> str:
    """Return the SQL of a constant of a type.

    Args:
        session: The session, for its search path and its time zone.
        text: The text between the quotes.
        kind: The type.

    Raises:
        InvalidText: The text is not of that type.
        NumberOutOfRange: The number is out of the range of the type.
        Error: It names something that does not exist.
    """
    if kind.is_array:
        element = kind_of(kind.element)
        parts = text.split() if kind.is_vector else array_elements(text)
        items = [null(element) if part is None else literal(session, part, element) for part in parts]
        return f"CAST([{', '.join(items)}] AS {kind.storage})"
    if kind.name in REG_TYPES:
        return f"CAST({session.snapshot.oid_of(kind.name, text, session.path_text)} AS BIGINT)"
    if kind.name == "oid":
        return f"CAST({read_whole('oid', -(2**32), 2**32 - 1, text)} AS {kind.storage})"
    if kind.name in MOMENTS:
        return f"CAST({quote(str(_moment(session, kind, text)))} AS {kind.storage})"
    if kind.name in (*INTEGERS, "bool", "float4", "float8", "time"):
        return f"CAST('{read(kind.sql_type, text)}' AS {kind.storage})"
    return _other(text, kind)


def _other(text: str, kind: Kind) -> str:
    match kind.name:
        case "numeric":
            number: Decimal = read(SqlType.NUMERIC, text)
            if not number.is_finite():
                raise NumberOutOfRange(f'"{text[:64]}" is not a finite number')
            return f"({number:f})"
        case "interval":
            return interval(read(SqlType.INTERVAL, text))
        case "bytea":
            return f"unhex('{read(SqlType.BYTEA, text).hex()}')"
        case "uuid":
            return quote(str(read(SqlType.UUID, text)))
        case "json" | "jsonb":
            _loaded(text)
            return quote(text if kind.name == "json" else _jsonb(text))
        case name:
            return quote(text[:1] if name == "char" else text)


def stored(session: CatalogSession, value: Any, kind: Kind) -> Any:
    """A placeholder's value as the catalog's engine takes it; a name is its OID there."""
    if isinstance(value, list | tuple):
        return [stored(session, one, kind_of(kind.element)) for one in value]
    if kind.name in REG_TYPES and isinstance(value, str):
        return session.snapshot.oid_of(kind.name, value, session.path_text)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return intervals.constant(value) if isinstance(value, Span) else value


def _moment(session: CatalogSession, kind: Kind, text: str) -> object:
    """Return a date or timestamp, or the word for infinity; a timestamptz is in UTC."""
    word = text.strip().lower()
    if word in _ENDS:
        return word
    if kind.name != "timestamptz":
        return read(kind.sql_type, text)
    moment = session.context.now if word == "now" else read(SqlType.TIMESTAMPTZ, text)
    local = zone(session.settings.get("TimeZone", "UTC"))
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=local)).astimezone(UTC).replace(tzinfo=None)


# JSON


class _Number(str):
    """A number in its original digits."""


def _loaded(text: str) -> Any:
    """JSON as Python values."""
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidText(f'invalid input syntax for type json: "{text[:64]}"') from None


def _no_constant(text: str) -> None:
    raise ValueError(text)


def _jsonb(text: str) -> str:
    try:
        return jsonb_text(text, partial(read, SqlType.NUMERIC))
    except RecursionError:
        raise LimitExceeded("the JSON nests too deep") from None


def json_part(text: str, key: str, name: str, plain: bool) -> str | None:
    """Return the part of JSON under a key or index, as JSON or as plain text; None if there is none."""
    value = _loaded(text)
    found: Any = _NOTHING
    if isinstance(value, dict):
        found = value.get(key, _NOTHING)
    elif isinstance(value, list) and re.fullmatch(r"-?[0-9]{1,9}", key):
        found = value[int(key)] if -len(value) <= int(key) < len(value) else _NOTHING
    if found is _NOTHING or (plain and found is None):
        return None
    if plain and isinstance(found, str):
        return str(found)
    return _jsonb(_json_text(found)) if name == "jsonb" else _json_text(found)


def _json_text(value: Any) -> str:
    """JSON without blanks."""
    match value:
        case _Number():
            return str(value)
        case dict():
            return "{" + ",".join(f"{_json_text(key)}:{_json_text(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_json_text, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def json_type(text: str) -> str:
    """The kind of a JSON value: object, array, number, string, boolean or null."""
    return _JSON_TYPES.get(type(_loaded(text)), "number")
