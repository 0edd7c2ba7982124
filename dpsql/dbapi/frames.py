"""frames: released rows as pandas, Arrow and numpy hold them.

Rule 1: a column's type follows from its SQL type, whether there is a NULL in it or not; an Arrow decimal's digits alone
    follow from the values.
Rule 2: no value changes: a column with a value that its type has no room for has Python's own values; in Arrow, texts.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np

from dpsql.errors import UnsupportedQuery
from dpsql.gateway.query_run import ResultColumn
from dpsql.sqltypes import Span, SqlType

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Columns = Sequence[ResultColumn]
Rows = Sequence[tuple[Any, ...]]
Values = Sequence[Any]

_NUMPY = {
    **{SqlType.BOOLEAN: "bool", SqlType.SMALLINT: "int16", SqlType.INTEGER: "int32", SqlType.BIGINT: "int64"},
    **{SqlType.REAL: "float32", SqlType.DOUBLE: "float64"},
    **{SqlType.DATE: "datetime64[D]", SqlType.TIMESTAMP: "datetime64[us]", SqlType.TIMESTAMPTZ: "datetime64[us]"},
}
"""Moments that have a zone are in UTC; what is not listed is held as objects."""
_PANDAS = {
    **{SqlType.BOOLEAN: "boolean", SqlType.SMALLINT: "Int16", SqlType.INTEGER: "Int32", SqlType.BIGINT: "Int64"},
    **{SqlType.REAL: "float32", SqlType.DOUBLE: "float64", SqlType.DATE: "datetime64[s]"},
    **{SqlType.TIMESTAMP: "datetime64[us]", SqlType.TEXT: "string", SqlType.VARCHAR: "string", SqlType.CHAR: "string"},
    SqlType.UNKNOWN: "string",
}
"""All of them have room for NULL; what is not listed is held as objects."""
_NO_ROOM = (ValueError, TypeError, OverflowError)


def masked_arrays(columns: Columns, rows: Rows) -> dict[str, Any]:
    """A masked array for each column, by name; as in DuckDB, a second column n is called n_1."""
    arrays: dict[str, Any] = {}
    for name, kind, values in _columns(columns, rows):
        arrays[next(free for free in _names(name) if free not in arrays)] = _masked(kind, values)
    return arrays


def _names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in count(1))


def _masked(kind: SqlType, values: Values) -> Any:
    mask = [value is None for value in values]
    dtype = np.dtype(_NUMPY.get(kind, "object") if _has_room(kind, values) else "object")
    try:
        if kind is SqlType.TIMESTAMPTZ and dtype.kind == "M":
            values = [None if value is None else _in_utc(value) for value in values]
        nothing = np.zeros((), dtype)[()]
        data = np.array([nothing if value is None else value for value in values], dtype)
    except _NO_ROOM:
        data = _objects(values)
    if data.ndim != 1:  # lists of one length
        data = _objects(values)
    return np.ma.MaskedArray(data, mask=mask)


def _objects(values: Values) -> Any:
    held = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        held[place] = value
    return held


def data_frame(zone: str, columns: Columns, rows: Rows) -> "pd.DataFrame":
    """A pandas DataFrame; moments that have a zone are in `zone`.

    Raises:
        UnsupportedQuery: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise _missing("fetch_df", "pandas") from None
    types: dict[SqlType, Any] = {**_PANDAS, SqlType.TIMESTAMPTZ: pd.DatetimeTZDtype("us", ZoneInfo(zone))}

    def series(kind: SqlType, values: Values) -> "pd.Series":
        try:
            return pd.Series(list(values), dtype=types.get(kind, "object") if _has_room(kind, values) else "object")
        except _NO_ROOM:
            return pd.Series(list(values), dtype="object")

    if not columns:
        return pd.DataFrame(index=range(len(rows)))
    frame = pd.concat([series(kind, values) for _, kind, values in _columns(columns, rows)], axis=1)
    frame.columns = [column.name for column in columns]
    return frame


def arrow_table(zone: str, columns: Columns, rows: Rows) -> "pa.Table":
    """A table of Arrow; moments that have a zone are in `zone`.

    Raises:
        UnsupportedQuery: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise _missing("fetch_arrow_table", "pyarrow") from None

    def array(kind: SqlType, values: Values) -> "pa.Array":
        if _has_room(kind, values):
            with suppress(*_NO_ROOM, pa.ArrowException):
                return pa.array([_for_arrow(value) for value in values], type=_arrow_type(pa, kind, values, zone))
        return pa.array([None if value is None else str(value) for value in values], type=pa.string())

    arrays = [array(kind, values) for _, kind, values in _columns(columns, rows)]
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def _arrow_type(pa: Any, kind: SqlType, values: Values, zone: str) -> Any:
    if kind.element is not None:
        return pa.list_(_arrow_type(pa, kind.element, [item for value in values for item in value or ()], zone))
    match kind:
        case SqlType.NUMERIC:
            return _decimal_type(pa, [value for value in values if value is not None])
        case SqlType.TIMESTAMP:
            return pa.timestamp("us")
        case SqlType.TIMESTAMPTZ:
            return pa.timestamp("us", tz=zone)
        case SqlType.TIME:
            return pa.time64("us")
        case SqlType.INTERVAL:
            return pa.month_day_nano_interval()
    simple = {
        **{SqlType.BOOLEAN: pa.bool_(), SqlType.SMALLINT: pa.int16(), SqlType.INTEGER: pa.int32()},
        **{SqlType.BIGINT: pa.int64(), SqlType.REAL: pa.float32(), SqlType.DOUBLE: pa.float64()},
        **{SqlType.DATE: pa.date32(), SqlType.BYTEA: pa.binary()},
    }
    return simple.get(kind, pa.string())


def _decimal_type(pa: Any, values: Sequence[Decimal]) -> Any:
    """A type with as many digits after the point as any value has."""
    scale = max((-int(value.as_tuple().exponent) for value in values), default=0)
    before = max((value.adjusted() + 1 for value in values), default=0)
    scale, before = max(scale, 0), max(before, 0)
    return pa.decimal128(38, scale) if before + scale <= 38 else pa.decimal256(76, scale)


def _for_arrow(value: Any) -> Any:
    if isinstance(value, Span):
        return value.months, value.days, 1000 * value.microseconds
    is_list_or_known = value is None or isinstance(value, list | bool | int | float | Decimal | bytes)
    return value if is_list_or_known or hasattr(value, "isoformat") else str(value)


def _has_room(kind: SqlType, values: Values) -> bool:
    """False where a moment lies beyond the years of Python: a library would take it in its own way, or fail late."""
    if not kind.is_moment:
        return True
    moments = [value for value in values if value is not None]
    try:
        return all(isinstance(_in_utc(value) if kind is SqlType.TIMESTAMPTZ else value, date) for value in moments)
    except (AttributeError, OverflowError):  # a text, or the last hours of a zone's year 9999
        return False


def _in_utc(value: datetime) -> datetime:
    return value.astimezone(UTC).replace(tzinfo=None)


def _columns(columns: Columns, rows: Rows) -> list[tuple[str, SqlType, Values]]:
    """Name, type and values of each column."""
    return [(column.name, column.type, [row[place] for row in rows]) for place, column in enumerate(columns)]


def _missing(method: str, package: str) -> UnsupportedQuery:
    return UnsupportedQuery(f"{method} needs {package}, which is not installed", hint=f"pip install {package}")
