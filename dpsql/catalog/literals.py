"""literals: quoted constants as values of a type, in DuckDB's SQL.

Rule: what a constant means is read here, as PostgreSQL reads it; DuckDB's own reading decides nothing.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from dpsql.catalog.relations import REG_TYPES, Kind, kind_of
from dpsql.catalog.visitor import Visitor
from dpsql.compiler.ir import intervals
from dpsql.errors import InvalidText, LimitExceeded, NumberOutOfRange
from dpsql.sqltypes import Span, SqlType, textformat
from dpsql.sqltypes.textinput import array_elements, read, read_whole, zone

_ENDS: Final = frozenset({"infinity", "-infinity", "epoch"})
LookUp = Callable[[str, str], int]


def quote(text: str) -> str:
    """A text as a constant."""
    return "'" + text.replace("'", "''") + "'"


def null(kind: Kind) -> str:
    """NULL of a type."""
    return f"CAST(NULL AS {kind.storage})"


def literal(visitor: Visitor, look_up: LookUp, text: str, kind: Kind) -> str:
    """A constant of a type.

    Args:
        visitor: Whose session it is: of its time zone are moments that name none.
        look_up: Gives the OID of a name as a value of a reg type.
        text: What stands between the quotes.
        kind: The type.

    Raises:
        InvalidText: The text is none of that type.
        NumberOutOfRange: It is a number that the type has not.
        Error: It names something that is not there.
    """
    if kind.is_array:
        element = kind_of(kind.element)
        parts = text.split() if kind.is_vector else array_elements(text)
        items = [null(element) if part is None else literal(visitor, look_up, part, element) for part in parts]
        return f"CAST([{', '.join(items)}] AS {kind.storage})"
    if kind.name in REG_TYPES:
        return f"CAST({look_up(kind.name, text)} AS BIGINT)"
    if kind.name == "oid":
        return f"CAST({read_whole('oid', -(2**32), 2**32 - 1, text)} AS {kind.storage})"
    if kind.sql_type.is_integer:
        return f"CAST({read(kind.sql_type, text)} AS {kind.storage})"
    if kind.name == "timestamptz":
        return f"TIMESTAMP {quote(str(_instant(visitor, text)))}"
    reader = _READERS.get(kind.name)
    return reader(text) if reader is not None else quote(text[:1] if kind.name == "char" else text)


def stored(visitor: Visitor, value: Any) -> Any:
    """A placeholder's value as the catalog's engine takes it."""
    if isinstance(value, list | tuple):
        return [stored(visitor, one) for one in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return intervals.constant(value) if isinstance(value, Span) else value


def _instant(visitor: Visitor, text: str) -> datetime | str:
    """A moment in UTC; one without an offset is of the session's time zone."""
    word = text.strip().lower()
    if word in _ENDS:
        return word
    moment = visitor.now if word == "now" else read(SqlType.TIMESTAMPTZ, text)
    local = zone(visitor.setting("TimeZone") or "UTC")
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=local)).astimezone(UTC).replace(tzinfo=None)


def _ended(kind: SqlType, name: str) -> Callable[[str], str]:
    def written(text: str) -> str:
        word = text.strip().lower()
        return f"CAST({quote(word if word in _ENDS else str(read(kind, text)))} AS {name})"

    return written


def _numeric(text: str) -> str:
    number: Decimal = read(SqlType.NUMERIC, text)
    if not number.is_finite():
        raise NumberOutOfRange(f'"{text[:64]}" is not a finite number')
    return f"({number:f})"


def _json(text: str) -> str:
    _loaded(text)
    return quote(text)


def _jsonb(text: str) -> str:
    try:
        return quote(jsonb_text(_loaded(text)))
    except RecursionError:
        raise LimitExceeded("the JSON nests too deep") from None


def _loaded(text: str) -> Any:
    """JSON as Python values; a number is its text, so that no digit is lost."""
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidText(f'invalid input syntax for type json: "{text[:64]}"') from None


class _Number(str):
    """A number as it was written."""


def _no_constant(text: str) -> None:
    raise ValueError(text)


def jsonb_text(value: Any) -> str:
    """JSON as jsonb prints it: shorter keys first, of equal ones the last, a blank behind colon and comma."""
    match value:
        case _Number():
            return textformat.numeric(read(SqlType.NUMERIC, value))
        case dict():
            keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
            return "{" + ", ".join(f"{jsonb_text(key)}: {jsonb_text(value[key])}" for key in keys) + "}"
        case list():
            return "[" + ", ".join(map(jsonb_text, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def json_part(text: str, key: str, name: str, plain: bool) -> str | None:
    """What stands under a key or at a place of JSON: as JSON, or as the text that it is; None where nothing does."""
    value = _loaded(text)
    found: Any = None
    if isinstance(value, dict):
        found = value.get(key, _NOTHING)
    elif isinstance(value, list) and re.fullmatch(r"-?[0-9]{1,9}", key):
        found = value[int(key)] if -len(value) <= int(key) < len(value) else _NOTHING
    if found is _NOTHING or not isinstance(value, dict | list) or (plain and found is None):
        return None
    if plain and isinstance(found, str):
        return str(found)
    return jsonb_text(found) if name == "jsonb" else _json_text(found)


_NOTHING: Final = object()


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
    """What a JSON value is: object, array, number, string, boolean or null."""
    match _loaded(text):
        case _Number():
            return "number"
        case bool():
            return "boolean"
        case dict():
            return "object"
        case list():
            return "array"
        case None:
            return "null"
        case _:
            return "string"


def _simple(kind: SqlType, storage: str) -> Callable[[str], str]:
    return lambda text: f"CAST('{read(kind, text)}' AS {storage})"


_READERS: Final[Mapping[str, Callable[[str], str]]] = {
    "bool": lambda text: str(read(SqlType.BOOLEAN, text)).upper(),
    "float4": _simple(SqlType.REAL, "FLOAT"),
    "float8": _simple(SqlType.DOUBLE, "DOUBLE"),
    "numeric": _numeric,
    "bytea": lambda text: f"unhex('{read(SqlType.BYTEA, text).hex()}')",
    "date": _ended(SqlType.DATE, "DATE"),
    "time": _simple(SqlType.TIME, "TIME"),
    "timestamp": _ended(SqlType.TIMESTAMP, "TIMESTAMP"),
    "interval": lambda text: f"CAST({quote(intervals.constant(read(SqlType.INTERVAL, text)))} AS INTERVAL)",
    "uuid": lambda text: quote(str(read(SqlType.UUID, text))),
    "json": _json,
    "jsonb": _jsonb,
}
