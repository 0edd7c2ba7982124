"""frames: released rows as pandas, Arrow and numpy hold them.

Rule 1: a column's type follows from its SQL type, whether there is a NULL in it or not; an Arrow decimal's digits alone
    follow from the values.
Rule 2: no value changes: a column with a value that its type has no room for has Python's own values; in Arrow, texts.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np

from dpsql.errors import UnsupportedQuery
from dpsql.results import Result
from dpsql.sqltypes import Span, SqlType

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

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


def masked_arrays(result: Result, rows: Rows) -> dict[str, Any]:
    """A masked array for each column, by name; as in DuckDB, a second column n is called n_1."""
    arrays: dict[str, Any] = {}
    for name, kind, values in _columns(result, rows):
        arrays[next(free for free in _names(name) if free not in arrays)] = _masked(kind, values)
    return arrays


def _names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in count(1))


def _masked(kind: SqlType, values: Values) -> Any:
    mask = [value is None for value in values]
    dtype = np.dtype(_NUMPY.get(kind, "object"))
    try:
        if kind is SqlType.TIMESTAMPTZ:
            values = [None if value is None else value.astimezone(UTC).replace(tzinfo=None) for value in values]
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


def data_frame(result: Result, rows: Rows, zone: str) -> "pd.DataFrame":
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
            return pd.Series(list(values), dtype=types.get(kind, "object"))
        except _NO_ROOM:
            return pd.Series(list(values), dtype="object")

    columns = _columns(result, rows)
    frame = pd.concat([series(kind, values) for _, kind, values in columns], axis=1)
    frame.columns = [name for name, _, _ in columns]
    return frame


def arrow_table(result: Result, rows: Rows, zone: str) -> "pa.Table":
    """A table of Arrow; moments that have a zone are in `zone`.

    Raises:
        UnsupportedQuery: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise _missing("fetch_arrow_table", "pyarrow") from None

    def array(kind: SqlType, values: Values) -> "pa.Array":
        try:
            return pa.array([_for_arrow(value) for value in values], type=_arrow_type(pa, kind, values, zone))
        except (*_NO_ROOM, pa.ArrowException):
            return pa.array([None if value is None else str(value) for value in values], type=pa.string())

    columns = _columns(result, rows)
    names = [name for name, _, _ in columns]
    return pa.Table.from_arrays([array(kind, values) for _, kind, values in columns], names=names)


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


def _columns(result: Result, rows: Rows) -> list[tuple[str, SqlType, Values]]:
    """Name, type and values of each column."""
    columns = result.columns or ()
    return [(column.name, column.type, [row[place] for row in rows]) for place, column in enumerate(columns)]


def _missing(method: str, package: str) -> UnsupportedQuery:
    return UnsupportedQuery(f"{method} needs {package}, which is not installed", hint=f"pip install {package}")
