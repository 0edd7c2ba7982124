"""values: SQL for generated values: distinct ones of any type, or ones beyond a column's bounds."""

from datetime import date, datetime
from fractions import Fraction

from dpsql.policy import PolicyColumn, Value
from dpsql.sqltypes import SqlType

_INTEGERS = {SqlType.SMALLINT: 2**15 - 1, SqlType.INTEGER: 2**31 - 1, SqlType.BIGINT: 2**63 - 1}
_ENGINE_TYPES = {
    SqlType.NUMERIC: "DECIMAL(38, 9)",
    SqlType.REAL: "REAL",
    SqlType.DOUBLE: "DOUBLE PRECISION",
    SqlType.TIME: "TIME",
    SqlType.TIMESTAMP: "TIMESTAMP",
    SqlType.TIMESTAMPTZ: "TIMESTAMPTZ",
    SqlType.BYTEA: "BYTEA",
}


def engine_type(sql_type: SqlType) -> str:
    """A name of a type that DuckDB and PostgreSQL read."""
    if sql_type.is_text:
        return "VARCHAR"
    if sql_type.is_array:
        return "INTEGER[]" if sql_type.element is None else f"{engine_type(sql_type.element)}[]"
    return _ENGINE_TYPES.get(sql_type, sql_type.value.upper())


def null(sql_type: SqlType) -> str:
    """SQL for a NULL of a type."""
    return f"CAST(NULL AS {engine_type(sql_type)})"


def number_as(number: str, sql_type: SqlType) -> str:
    """SQL that encodes a whole number in a type; NULL for types without such a value."""
    if sql_type.is_text:
        return f"'v' || {number}"
    if sql_type.is_number:
        return f"CAST({number} AS {engine_type(sql_type)})"
    if sql_type is SqlType.UUID:
        return f"CAST(md5(CAST({number} AS VARCHAR)) AS UUID)"
    if sql_type is SqlType.DATE:
        return f"DATE '2000-01-01' + CAST({number} AS INTEGER)"
    if sql_type in (SqlType.TIMESTAMP, SqlType.TIMESTAMPTZ):
        return f"CAST(TIMESTAMP '2000-01-01' + to_hours(CAST({number} AS BIGINT)) AS {engine_type(sql_type)})"
    if sql_type is SqlType.BOOLEAN:
        return f"({number}) % 2 = 0"
    return null(sql_type)


def is_above(column: PolicyColumn, *, high: bool) -> bool:
    """Whether `beyond` gives values above a column's numeric bounds; `high` chooses the bound farther from 0."""
    if not isinstance(column.lower, Fraction) or not isinstance(column.upper, Fraction):
        raise TypeError("a bounded number has limits that are numbers")
    return high == (abs(column.upper) >= abs(column.lower))


def beyond(column: PolicyColumn, high: bool) -> str:
    """SQL for a value beyond one bound of a column, within the range of its type."""
    lower, upper = column.lower, column.upper
    if lower is None or upper is None:
        return number_as("1", column.type)
    if isinstance(lower, Fraction) and isinstance(upper, Fraction):
        width = upper - lower + 1
        value = upper + 10 * width if is_above(column, high=high) else lower - 10 * width
        most = _INTEGERS.get(column.type)
        if most is not None:
            value = Fraction(max(-most, min(most, int(value))))
        return constant(value, column.type)
    bound = upper if high else lower
    if isinstance(bound, datetime):
        bound = bound.replace(tzinfo=None)
    return constant(bound, column.type)


def constant(value: Value | datetime, sql_type: SqlType) -> str:
    """SQL for a value of a type."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, Fraction) and value.denominator != 1:
        return f"CAST({value.numerator}::DOUBLE / {value.denominator} AS {engine_type(sql_type)})"
    text = value.isoformat() if isinstance(value, date) else str(value)
    quoted = text.replace("'", "''")
    return f"CAST('{quoted}' AS {engine_type(sql_type)})"
