"""array_elements: the elements of an array, which engines hold as JSON of their texts, as Python values."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, time, tzinfo
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from dpsql.compiler.ir.nodes import COMPUTED_SCALE
from dpsql.errors import DataError
from dpsql.sqltypes import SqlType
from dpsql.sqltypes.textformat import without_filling
from dpsql.sqltypes.textinput import read

_READERS: Final[Mapping[SqlType, Callable[[str], object]]] = {
    SqlType.BOOLEAN: lambda text: text == "true",
    SqlType.SMALLINT: int,
    SqlType.INTEGER: int,
    SqlType.BIGINT: int,
    SqlType.NUMERIC: lambda text: without_filling(Decimal(text), COMPUTED_SCALE),
    SqlType.REAL: float,
    SqlType.DOUBLE: float,
    SqlType.DATE: date.fromisoformat,
    SqlType.TIME: time.fromisoformat,
    SqlType.TIMESTAMP: datetime.fromisoformat,
    SqlType.INTERVAL: lambda text: read(SqlType.INTERVAL, text),
    SqlType.UUID: UUID,
    SqlType.BYTEA: lambda text: bytes.fromhex(text.removeprefix("\\x")),
}


def elements_of(kind: SqlType, zone: tzinfo, text: str) -> list[object]:
    """The elements of an array.

    Args:
        kind: Their type.
        zone: The zone of moments that have one.
        text: JSON, in which every element is its text or null.
    """
    reader: Callable[[str], object] = _READERS.get(kind, str)
    if kind is SqlType.TIMESTAMPTZ:
        reader = _moments(zone)
    return _read(json.loads(text), reader)


def _read(items: list[Any], reader: Callable[[str], object]) -> list[object]:
    found: list[object] = []
    for item in items:
        value: object = None
        with suppress(
            ValueError, ArithmeticError, DataError
        ):  # days before the year 1 and infinite ones have no Python value
            value = _read(item, reader) if isinstance(item, list) else None if item is None else reader(item)
        found.append(value)
    return found


def _moments(zone: tzinfo) -> Callable[[str], object]:
    return lambda text: datetime.fromisoformat(text).astimezone(zone)
