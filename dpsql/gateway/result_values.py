"""result_values: the Python values of a result, of which post-processing holds some types in another form."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

from dpsql.compiler.ir.nodes import COMPUTED_SCALE
from dpsql.errors import DataError
from dpsql.limits.result_memory import RowBlock
from dpsql.sqltypes import Span, SqlType
from dpsql.sqltypes.textformat import jsonb_text, without_filling
from dpsql.sqltypes.textinput import read

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
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


def as_values(types: Sequence[SqlType], zone: tzinfo, block: RowBlock) -> RowBlock:
    """Return rows as results have them.

    Post-processing holds a moment as microseconds since 1970, an interval as three numbers, an array as JSON, and
    numerics that have no scale of their own with zeros at their end.

    Args:
        types: Of the columns.
        zone: The zone of moments that have one.
        block: The rows of post-processing.
    """
    readers = [_reader(kind, zone) for kind in types]
    if not block.count or not any(readers):
        return block
    pairs = zip(block.columns, readers, strict=True)
    return RowBlock(
        tuple(column if reader is None else _converted(column, reader) for column, reader in pairs), block.count
    )


def _converted(column: Sequence[Any], reader: Callable[[Any], object]) -> tuple[object, ...]:
    return tuple(None if value is None else reader(value) for value in column)


def _reader(kind: SqlType, zone: tzinfo) -> Callable[[Any], object] | None:
    """What makes a value of one that post-processing holds in another form; None where it is the value."""
    if kind.element is not None:
        return partial(_elements, kind.element, zone)
    match kind:
        case SqlType.NUMERIC:
            return _number
        case SqlType.JSONB:
            return jsonb_text
        case SqlType.TIMESTAMPTZ:
            return partial(_moment, zone)
        case SqlType.INTERVAL:
            return lambda parts: Span(*parts)
    return None


def _number(value: object) -> object:
    return without_filling(value, COMPUTED_SCALE) if isinstance(value, Decimal) else value


def _moment(zone: tzinfo, value: int) -> datetime:
    span = timedelta(microseconds=value)
    try:
        instant = _EPOCH + span
    except OverflowError:  # at the ends of time, where UTC's year does not exist
        end = datetime.min if value < 0 else datetime.max
        offset = zone.utcoffset(end) or timedelta()
        return (_EPOCH.replace(tzinfo=None) + (span + offset)).replace(tzinfo=zone)
    try:
        return instant.astimezone(zone)
    except OverflowError:  # … or the zone's own
        return instant


def _elements(kind: SqlType, zone: tzinfo, text: str) -> list[object]:
    """The elements of an array, of JSON in which every element is its text or null."""
    return _read(json.loads(text), _element_reader(kind, zone))


def _element_reader(kind: SqlType, zone: tzinfo) -> Callable[[str], object]:
    if kind is SqlType.TIMESTAMPTZ:
        return lambda text: datetime.fromisoformat(text).astimezone(zone)
    return _READERS.get(kind, str)


def _read(items: list[Any], reader: Callable[[str], object]) -> list[object]:
    return [None if item is None else _read_item(item, reader) for item in items]


def _read_item(item: Any, reader: Callable[[str], object]) -> object:
    try:
        return _read(item, reader) if isinstance(item, list) else reader(item)
    except (ValueError, ArithmeticError, DataError):
        return None  # days before the year 1 and infinite ones have no Python value
