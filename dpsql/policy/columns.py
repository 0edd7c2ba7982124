"""`[tables.NAME.columns]`: types, limits, grids and domains."""

import re
import uuid
from collections.abc import Iterable
from datetime import UTC, date, datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

from dpsql.policy.model import Bound, PolicyColumn, RandomizedResponse, Value, can_be_key
from dpsql.policy.node import Node, Shape, did_you_mean
from dpsql.policy.source import quoted
from dpsql.privacy.conversion import exact_text
from dpsql.sqltypes import SqlType, parse_type

MAX_CELLS = 2**53
"""Grid points between lower and upper: more, and a single value would not be exact as a double."""

_COLUMN: Shape = {
    "type": 'type = "integer"',
    "lower": "lower = 0",
    "upper": "upper = 110",
    "step": "step = 0.01",
    "values": 'values = ["F", "M", "X"]',
    "values_from": 'values_from = "icd10.code"',
    "description": 'description = "kg at first visit"',
    "nullable": "nullable = false",
    "collected_by": "collected_by = { randomized_response = 0.75 }",
}
_COLLECTED_BY: Shape = {"randomized_response": "randomized_response = 0.75"}
_TYPE_NAMES = (
    "boolean", "smallint", "integer", "bigint", "real", "double", "decimal", "numeric", "text", "varchar", "char",
    "date", "time", "timestamp", "timestamptz", "interval", "uuid", "json", "bytea",
)  # fmt: skip
_FOREIGN_TYPES = {
    "string": "text", "str": "text", "datetime": "timestamp", "number": "decimal", "long": "bigint",
    "tinyint": "smallint", "hugeint": "decimal", "blob": "bytea", "enum": "text",
}  # fmt: skip
_MAX_TYPE_NAME = 64
_INTEGER_BITS = {SqlType.SMALLINT: 16, SqlType.INTEGER: 32, SqlType.BIGINT: 64}
_LIMIT_EXAMPLES = {
    SqlType.DATE: "2020-01-01",
    SqlType.TIMESTAMP: "2020-01-01T00:00:00",
    SqlType.TIMESTAMPTZ: "2020-01-01T00:00:00Z",
}
_DOMAIN_TYPES = frozenset(filter(can_be_key, SqlType)) - {
    SqlType.TIME,
    SqlType.TIMESTAMP,
    SqlType.TIMESTAMPTZ,
    SqlType.BYTEA,
}


def read_columns(node: Node, timezone: ZoneInfo) -> tuple[PolicyColumn, ...]:
    """Return the columns of a table; whether values_from points somewhere is checked when all tables are known."""
    return tuple(_column(name, member, timezone) for name, member in node.members("column").items())


def _column(name: str, node: Node, timezone: ZoneInfo) -> PolicyColumn:
    keys = node.fields(_COLUMN, required=("type",))
    sql_type = read_type(keys["type"])
    if ("lower" in keys) != ("upper" in keys):
        stated, lacking = ("lower", "upper") if "lower" in keys else ("upper", "lower")
        raise keys[stated].wrong(f"{stated} without {lacking}", f"write both: {stated} = …, {lacking} = …")
    lower, upper = _limits(keys["lower"], keys["upper"], sql_type, timezone) if "lower" in keys else (None, None)
    step = _step(keys["step"], sql_type, lower, upper) if "step" in keys else None
    if "values" in keys and "values_from" in keys:
        raise keys["values_from"].wrong("values and values_from cannot be used together", "remove one of the two")
    values = _values(keys["values"], sql_type, lower, upper) if "values" in keys else None
    return PolicyColumn(
        name=name,
        type=sql_type,
        lower=lower,
        upper=upper,
        step=step,
        values=values,
        values_from=_values_from(keys["values_from"], sql_type) if "values_from" in keys else None,
        description=keys["description"].text() if "description" in keys else None,
        nullable=keys["nullable"].flag() if "nullable" in keys else True,
        collected_by=_collected_by(keys["collected_by"], sql_type, values) if "collected_by" in keys else None,
    )


def _collected_by(node: Node, sql_type: SqlType, values: tuple[Value, ...] | None) -> RandomizedResponse:
    keys = node.fields(_COLLECTED_BY, required=("randomized_response",))
    listed = values is not None and (sql_type.is_text or sql_type.is_integer)
    if sql_type is not SqlType.BOOLEAN and not listed:
        raise node.wrong(
            "randomized_response needs a boolean column, or a domain of texts or integers",
            'write: values = ["yes", "no"]',
        )
    count = len(values) if values is not None else 2
    if count < 2:
        raise node.wrong("randomized_response needs at least two values", 'write: values = ["yes", "no"]')
    truth = keys["randomized_response"]
    probability = truth.number()
    if not 0 < probability <= 1:
        raise truth.wrong(
            f"{truth.shown()} is not the probability of a true answer", _COLLECTED_BY["randomized_response"]
        )
    if probability * count == 1:
        what = f"with {truth.shown()} and {count} values, randomized_response carries no information"
        raise truth.wrong(what, "remove the column, or state how likely a true answer was")
    return RandomizedResponse(probability, count)


def read_type(node: Node) -> SqlType:
    """Return the type that a text names."""
    name = node.text()
    try:
        # parse_type peels "[]" off one by one: a long name would exhaust the stack.
        if len(name) <= _MAX_TYPE_NAME:
            return parse_type(name)
    except ValueError:
        pass
    bare = re.sub(r"\(.*", "", name[:_MAX_TYPE_NAME]).strip().lower()
    if bare != name and bare in _TYPE_NAMES:
        hint = f'write it without a length: type = "{bare}"'
    elif bare in _FOREIGN_TYPES:
        hint = f'write: type = "{_FOREIGN_TYPES[bare]}"'
    else:
        hint = did_you_mean(bare, _TYPE_NAMES)
    raise node.wrong(f"{quoted(name)} is not a type", hint)


def _limits(low: Node, high: Node, sql_type: SqlType, timezone: ZoneInfo) -> tuple[Bound, Bound]:
    if sql_type.is_number:
        lower: Bound = _number(low, sql_type)
        upper: Bound = _number(high, sql_type)
    elif sql_type.is_moment:
        lower, upper = _moment(low, sql_type, timezone), _moment(high, sql_type, timezone)
    else:
        raise low.wrong(
            f"{sql_type.value} has no lower and upper: only numbers, dates and timestamps do",
            "remove both; declare a domain with: values = [...]",
        )
    if _above(lower, upper):
        raise low.wrong(
            f"lower = {low.shown()} is above upper = {high.shown()}",
            f"write: lower = {high.shown()}, upper = {low.shown()}",
        )
    return lower, upper


def _above(one: Bound, other: Bound) -> bool:
    # Both are of the column's type; the three cases are for the type checker, and datetime is a date.
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one > other
    if isinstance(one, datetime) and isinstance(other, datetime):
        return one > other
    return isinstance(one, date) and isinstance(other, date) and one > other


def _number(node: Node, sql_type: SqlType) -> Fraction:
    number = node.number()
    if not sql_type.is_integer:
        return number
    name = node.key[-1] if isinstance(node.key[-1], str) else "value"
    if number.denominator != 1:
        raise node.wrong(
            f"{node.shown()} is not an integer, and the column is {sql_type.value}",
            f'write: {name} = {round(number)}, or type = "decimal"',
        )
    largest = 2 ** (_INTEGER_BITS[sql_type] - 1) - 1
    if not -largest - 1 <= number <= largest:
        raise node.wrong(
            f"{node.shown()} is beyond {sql_type.value}",
            f"stay between {-largest - 1} and {largest}, or use a wider type",
        )
    return number


def _moment(node: Node, sql_type: SqlType, timezone: ZoneInfo) -> date | datetime:
    value, name = node.value, node.key[-1]
    hint = f"write without quotes: {name} = {_LIMIT_EXAMPLES[sql_type]}"
    if sql_type is SqlType.DATE:
        if isinstance(value, date) and not isinstance(value, datetime):
            return value
        raise node.wrong("a date is expected here", hint)
    # A bare date would be midnight: as an upper limit it would cut off the last day, so it must be said.
    if not isinstance(value, datetime):
        raise node.wrong("a date with a time is expected here", hint)
    if sql_type is SqlType.TIMESTAMP:
        if value.tzinfo is not None:
            raise node.wrong("a timestamp without time zone has no offset", hint)
        return value
    local = value if value.tzinfo is not None else value.replace(tzinfo=timezone)
    try:
        return local.astimezone(UTC)
    except OverflowError:
        raise node.wrong("in UTC this is outside the years 1 to 9999", hint) from None


def _step(node: Node, sql_type: SqlType, lower: Bound | None, upper: Bound | None) -> Fraction:
    if not sql_type.is_number:
        raise node.wrong(f"{sql_type.value} has no step: only numbers do", "remove step")
    step = _number(node, sql_type)
    if step <= 0:
        raise node.wrong(f"step = {node.shown()} is not above 0", f"write: step = {1 if sql_type.is_integer else 0.01}")
    if isinstance(lower, Fraction) and isinstance(upper, Fraction) and (upper - lower) / step > MAX_CELLS:
        raise node.wrong(
            f"step = {node.shown()} puts more than 2^53 steps between lower and upper",
            f"write: step = {exact_text(_power_of_ten_above((upper - lower) / MAX_CELLS))}",
        )
    return step


def _power_of_ten_above(number: Fraction) -> Fraction:
    power = Fraction(10) ** -40
    while power < number:
        power *= 10
    return power


def _values(node: Node, sql_type: SqlType, lower: Bound | None, upper: Bound | None) -> tuple[Value, ...]:
    _check_domain_type(node, sql_type)
    values: dict[Value, None] = {}
    for element in node.elements():
        value = _value(element, sql_type)
        if value in values:
            raise element.wrong(f"{element.shown()} stands twice", "remove one of the two")
        if _outside(value, lower, upper):
            raise element.wrong(
                f"{element.shown()} is outside lower and upper", "widen the limits, remove them, or remove the value"
            )
        values[value] = None
    return tuple(values)


def _outside(value: Value, lower: Bound | None, upper: Bound | None) -> bool:
    if lower is None or upper is None or isinstance(value, str):
        return False
    bound = value if isinstance(value, date) else Fraction(value)
    return _above(lower, bound) or _above(bound, upper)


def _check_domain_type(node: Node, sql_type: SqlType) -> None:
    if sql_type not in _DOMAIN_TYPES:
        hint = 'use type = "decimal" for exact numbers' if sql_type.is_number else "remove this key"
        raise node.wrong(f"{sql_type.value} cannot have a domain of listed values", hint)


def _value(node: Node, sql_type: SqlType) -> Value:
    node = Node(node.source, node.key, node.value, _value_example(sql_type))
    if sql_type.is_number:
        number = _number(node, sql_type)
        return int(number) if sql_type.is_integer else number
    if sql_type is SqlType.BOOLEAN:
        return node.flag()
    if sql_type is SqlType.DATE:
        if isinstance(node.value, date) and not isinstance(node.value, datetime):
            return node.value
        raise node.wrong("a date is expected here")
    return _text_value(node, sql_type)


def _text_value(node: Node, sql_type: SqlType) -> str:
    if not isinstance(node.value, str) or "\0" in node.value:
        raise node.wrong(f"a value of type {sql_type.value} is expected here")
    if sql_type is SqlType.UUID:
        try:
            return str(uuid.UUID(node.value))
        except ValueError:
            raise node.wrong(f"{node.shown()} is not a uuid") from None
    # The padding of char is no part of the value.
    return node.value.rstrip(" ") if sql_type is SqlType.CHAR else node.value


def _value_example(sql_type: SqlType) -> str:
    examples: Iterable[tuple[bool, str]] = (
        (sql_type.is_integer, "values = [1, 2, 3]"),
        (sql_type.is_number, "values = [0.5, 1, 1.5]"),
        (sql_type is SqlType.BOOLEAN, "values = [true, false]"),
        (sql_type is SqlType.DATE, "values = [2020-01-01, 2020-01-02]"),
        (sql_type is SqlType.UUID, 'values = ["123e4567-e89b-12d3-a456-426614174000"]'),
    )
    return next((example for fits, example in examples if fits), 'values = ["F", "M", "X"]')


def _values_from(node: Node, sql_type: SqlType) -> tuple[str, str]:
    _check_domain_type(node, sql_type)
    table, _, column = node.text().rpartition(".")
    if not table or not column:
        raise node.wrong(f"{node.shown()} is not of the form table.column")
    return table, column
