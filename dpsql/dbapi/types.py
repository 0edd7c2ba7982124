"""types: PEP 249's type objects and constructors, and what a description says of a type beside its name."""

from datetime import date, datetime, time

from dpsql.errors import NumberOutOfRange
from dpsql.gateway.query_run import ResultColumn
from dpsql.sqltypes import SqlType

Described = tuple[str, str, int | None, int | None, int | None, int | None, bool | None]
"""Of a column: name, type name, display size, internal size, precision, scale, whether it may be NULL."""


class TypeObject:
    """What the type code of some columns, the name of a PostgreSQL type, compares equal to.

    It has no hash: it is equal to several names, which have a hash each.

    Args:
        name: Its name in PEP 249.
        types: The types.
    """

    def __init__(self, name: str, *types: SqlType) -> None:
        self._name = name
        self._codes = frozenset(kind.value for kind in types)

    def __eq__(self, other: object) -> bool:
        return other in self._codes if isinstance(other, str) else self is other

    def __repr__(self) -> str:
        return f"dpsql.{self._name}"


STRING = TypeObject("STRING", SqlType.TEXT, SqlType.VARCHAR, SqlType.CHAR, SqlType.JSON, SqlType.JSONB, SqlType.UNKNOWN)
BINARY = TypeObject("BINARY", SqlType.BYTEA)
NUMBER = TypeObject("NUMBER", *(kind for kind in SqlType if kind.is_number))
DATETIME = TypeObject("DATETIME", *(kind for kind in SqlType if kind.is_moment), SqlType.TIME, SqlType.INTERVAL)
ROWID = TypeObject("ROWID")
"""Equal to no type: a row that is released has no identity."""

Date = date
Time = time
Timestamp = datetime
Binary = bytes

_DIGITS = {SqlType.SMALLINT: 5, SqlType.INTEGER: 10, SqlType.BIGINT: 19}


def described(column: ResultColumn) -> Described:
    """What `Cursor.description` says of a column; precision and scale are known of integers alone."""
    digits = _DIGITS.get(column.type)
    scale = None if digits is None else 0
    size = column.type.size if column.type.size > 0 else None
    return column.name, column.type.value, None, size, digits, scale, None


def DateFromTicks(ticks: float) -> date:
    """The local date, so many seconds after 1970 began in UTC.

    Raises:
        NumberOutOfRange: There is no such date.
    """
    return TimestampFromTicks(ticks).date()


def TimeFromTicks(ticks: float) -> time:
    """The local time of day, so many seconds after 1970 began in UTC.

    Raises:
        NumberOutOfRange: There is no such time.
    """
    return TimestampFromTicks(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime:
    """The local date and time, so many seconds after 1970 began in UTC.

    Raises:
        NumberOutOfRange: There is no such time.
    """
    try:
        return datetime.fromtimestamp(ticks)
    except (ValueError, OverflowError, OSError):
        raise NumberOutOfRange("the timestamp is outside the years 1 to 9999") from None
