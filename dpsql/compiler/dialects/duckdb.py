"""DuckDB's SQL: TRY and TRY_CAST give NULL instead of errors, and floating-point arithmetic is silent."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from uuid import UUID

from dpsql.compiler.dialects.dialect import FIRST_DAY, LAST_DAY, Dialect, spelled, standard_name, standard_text
from dpsql.compiler.dialects.duckdb_functions import SPELLINGS, elements_of
from dpsql.compiler.ir.functions import MAX_ELEMENTS, MAX_NESTED, MAX_TEXT, Spelling, leaves_most
from dpsql.compiler.ir.nodes import COMPUTED_SCALE, AggregateCall, Call, Expr, Grid, Join, Literal, Value, Window
from dpsql.compiler.ir.schema import EngineColumn, InputTable
from dpsql.compiler.ir.walk import free_fields, relations_in
from dpsql.errors import UnsupportedQuery
from dpsql.sqltypes import ARRAYS, SqlType

TYPES = {
    SqlType.BOOLEAN: "BOOLEAN",
    SqlType.SMALLINT: "SMALLINT",
    SqlType.INTEGER: "INTEGER",
    SqlType.BIGINT: "BIGINT",
    SqlType.NUMERIC: f"DECIMAL(38, {COMPUTED_SCALE})",
    SqlType.REAL: "DOUBLE",
    SqlType.DOUBLE: "DOUBLE",
    SqlType.TEXT: "VARCHAR",
    SqlType.VARCHAR: "VARCHAR",
    SqlType.CHAR: "VARCHAR",
    SqlType.DATE: "DATE",
    SqlType.TIME: "TIME",
    SqlType.TIMESTAMP: "TIMESTAMP",
    SqlType.TIMESTAMPTZ: "TIMESTAMPTZ",
    SqlType.INTERVAL: "INTERVAL",
    SqlType.UUID: "UUID",
    SqlType.JSON: "VARCHAR",
    SqlType.JSONB: "VARCHAR",
    SqlType.BYTEA: "BLOB",
    **dict.fromkeys(ARRAYS, "VARCHAR"),  # JSON of the elements' texts
    SqlType.UNKNOWN: "VARCHAR",
}
_FLOATS = (SqlType.REAL, SqlType.DOUBLE)
_EXACT = frozenset(
    {
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
        *(f"DECIMAL({digits},{scale})" for digits in range(1, 39) for scale in range(digits + 1)),
        *("VARCHAR", "ENUM", "UUID", "BLOB", "DATE", "TIME"),
        *("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP WITH TIME ZONE"),
    }
)


MAX_COLLECTED = 16 << 20
"""Bytes of a value that all values of a group are put together in."""
_AROUND = {"string_agg": ("", ""), "json_agg": ("[", "]"), "json_object_agg": ("{ ", " }")}
_JSON = {
    "json_string": Spelling("CAST(to_json({0}) AS VARCHAR)"),
    "json_key": Spelling("CASE WHEN {0} IS NULL THEN error('null value not allowed for object key') ELSE {0} END"),
    "json_joined": Spelling("({all})", joiner=" || "),
}


def _pointer(key: object) -> str:
    """A path to the member of an object or the element of an array."""
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


_PATHS: dict[str, Callable[[Value], str]] = {
    "json_get": lambda key: f'$."{key}"' if key else "/",
    "json_element": lambda place: f"$[#{place}]" if isinstance(place, int) and place < 0 else f"$[{place}]",
    "json_either": _pointer,
    "array_element": lambda place: f"$[{place}]",
}
"""DuckDB's path to a key or a place in JSON; places are counted from 0, and from the end if they are negative."""


class DuckDB(Dialect):
    """DuckDB, as the engine that holds the data."""

    quote_name = staticmethod(standard_name)
    quote_text = staticmethod(standard_text)

    types = TYPES
    functions = spelled(SPELLINGS)
    exact_types = _EXACT
    codes_text = True
    orders_groups = False
    turns_of_rows = True
    ranks_few = True
    computes_ctes_once = True

    # Expressions

    def constant(self, value: Value, sql_type: SqlType) -> str:
        """A typed constant."""
        target = TYPES[sql_type]
        if value is None:
            # The scale of a NULL would apply to the other values of its column, and might not fit them.
            return "NULL" if sql_type is SqlType.NUMERIC else f"CAST(NULL AS {target})"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, float | Decimal) and value == 0:
            value = type(value)(0)  # -0 is equal to 0 and must look the same
        if isinstance(value, Decimal) and sql_type is SqlType.NUMERIC:
            return _decimal_constant(value)
        if isinstance(value, int | Decimal | float):
            return f"CAST({self.quote_text(str(value))} AS {target})"
        if isinstance(value, str):
            return self.quote_text(value) if sql_type.is_text else f"CAST({self.quote_text(value)} AS {target})"
        if isinstance(value, date | datetime | time | UUID):
            return f"CAST({self.quote_text(str(value))} AS {target})"
        raise TypeError(f"no constant of type {type(value).__name__}")

    def guarded(self, text: str, sql_type: SqlType) -> str:
        """A raw number or moment, NULL where it is none that a value may be."""
        if sql_type.is_moment:
            kind = TYPES[sql_type]
            return f"CASE WHEN {text} BETWEEN {kind} '{FIRST_DAY}' AND {kind} '{LAST_DAY}' THEN {text} END"
        return f"CASE WHEN isfinite({text}) THEN {text} + 0::DOUBLE END"

    def cast(self, text: str, source: SqlType, target: SqlType, scale: int | None) -> str:
        """A conversion that gives NULL where the value does not fit."""
        if target is SqlType.NUMERIC and scale is not None:
            # PostgreSQL makes a numeric of the digits that a float surely has; halves are rounded in decimals.
            number = f"printf('%.15g', TRY_CAST({text} AS DOUBLE))" if source in _FLOATS else text
            return f"TRY_CAST({number} AS DECIMAL(38, {scale}))"
        if source is SqlType.NUMERIC and target.is_text:
            return _without_filling(f"CAST({text} AS VARCHAR)")
        if source is SqlType.TIMESTAMPTZ and target is SqlType.TIME:
            text = f"TRY_CAST({text} AS TIMESTAMP)"  # there is no such conversion at once
        return f"TRY_CAST({text} AS {TYPES[target]})"

    def as_text(self, text: str, sql_type: SqlType) -> str:
        """A value as the text from which it is read again."""
        return f"CAST({text} AS VARCHAR)"

    def array(self, text: str) -> str:
        """An array of numbers as JSON of their texts."""
        return f"CAST(to_json(CAST({text} AS VARCHAR[])) AS VARCHAR)"

    def adapted(self, call: Call) -> Call:
        """Return LEFT of a very long prefix as a check of the text's bytes, because most texts are shorter."""
        if call.function in _PATHS:
            container, place = call.arguments
            if not isinstance(place, Literal):
                raise TypeError("a place in JSON is a constant")
            return replace(call, arguments=(container, Literal(_PATHS[call.function](place.value), SqlType.TEXT)))
        return replace(call, function="beginning") if leaves_most(call) else call

    def spelling(self, call: Call) -> Spelling:
        """The spelling of a call; JSON is asked for each part of the constant that it must contain."""
        found = super().spelling(call)
        if call.function != "json_contains":
            return found
        return replace(found, template=found.template.replace("{1}", _containing(call.arguments[1])))

    def named_arguments(self, call: Call) -> frozenset[int]:
        """TRY takes no subqueries: its arguments are named outside it."""
        within = "TRY(" in self.spelling(call).template
        named = within and any(relations_in(argument) for argument in call.arguments)
        return frozenset(range(len(call.arguments))) if named else frozenset()

    def with_names(self, text: str, given: Sequence[str]) -> str:
        """A value in which some expressions have names."""
        return f"(SELECT {text} FROM (SELECT {', '.join(given)}))"

    # Numbers on their grid

    def on_grid(self, text: str, sql_type: SqlType, grid: Grid) -> str:
        """A number as a grid value within the grid's limits; NULL stays NULL.

        Limits are below 2^50, so the nearest double of a limit rounds to that limit: clamping first is enough.
        """
        if sql_type.is_integer and grid.step == 1:
            return _inside(text, self.whole(grid.lower), self.whole(grid.upper))
        low, high = (self.double(end * grid.step) for end in (grid.lower, grid.upper))
        number = _inside(f"CAST({text} AS DOUBLE)", low, high)
        return f"CAST(round({number} * {self.double(1 / grid.step)}) AS BIGINT)"

    def grid_type(self, grid: Grid) -> str:
        """Sums of either type are hugeints."""
        return "INTEGER" if max(abs(grid.lower), abs(grid.upper)) < 2**31 else "BIGINT"

    # Aggregates

    def aggregate(self, call: AggregateCall | Window, argument: str, behind: str) -> str:
        """An aggregate of an argument, with its FILTER or OVER behind it."""
        text = f"{call.function}({argument}){behind}"
        if call.grid is not None:
            return self.off_grid(text, call.grid)
        if call.function == "sum" and call.type.is_integer:
            return f"TRY_CAST({text} AS {TYPES[call.type]})"
        return text

    def wide(self, value: int) -> str:
        """A whole constant of a type in which its product with any count is exact."""
        return f"CAST({value} AS HUGEINT)"

    def quotient(self, number: str, by: str) -> str:
        """A whole number divided by another, cut."""
        return f"{number} // {by}"

    def share(self, total: str, part: int | str, count: str) -> str:
        """A part of a sum of grid values, cut towards zero."""
        return f"{total} * {part} // {count}"

    # Relations

    def derived(self, select: str, alias: str = "s", *, lateral: bool = False) -> str:
        """Return a SELECT as a table of FROM; in DuckDB it may always refer to entries to its left."""
        return f"({select})"

    def check_join(self, join: Join) -> None:
        """Refuse subqueries in the condition of a LATERAL outer join, as DuckDB does once it binds one."""
        is_lateral = not free_fields(join.right).isdisjoint(join.left.fields)
        if join.kind == "left" and is_lateral and join.condition is not None and relations_in(join.condition):
            raise UnsupportedQuery(
                "LEFT JOIN LATERAL is only supported without subqueries in its condition",
                hint="Move the subquery into the LATERAL subquery, or to WHERE.",
            )

    def input_table(self, table: InputTable) -> str:
        """What was made first: no table of a policy has a dot in its name."""
        return f'temp.main."input.{table.index}"'

    def series(self, start: int | date, stop: int | date, unit: str | None) -> str:
        """A table of whole numbers, or of the first moments of a unit, as its only column s."""
        step = "1" if unit is None else f"INTERVAL 1 {unit}"
        low, high = (str(end) if unit is None else f"TIMESTAMP '{end}'" for end in (start, stop))
        return f"(SELECT unnest(generate_series({low}, {high}, {step})) AS s)"

    def canonical(self, column: str, engine: EngineColumn, target: SqlType) -> str:
        """Return a table's column as its canonical value, or NULL if it has none."""
        if target.is_text:
            return f'CAST({column} AS VARCHAR) COLLATE "C"'
        if target.is_array and not engine.sql_type.is_text:
            return f"CAST(to_json({_element_texts(column, engine)}) AS VARCHAR)"
        if target.is_array or target in (SqlType.JSON, SqlType.JSONB):
            return f"CAST({column} AS VARCHAR)"
        kind = self.stored_type(engine, target)
        value = column if engine.type_name == kind else f"TRY_CAST({column} AS {kind})"
        return self.guarded(value, target) if target in _FLOATS or target.is_moment else value

    def limited(self, column: str, engine: EngineColumn, target: SqlType) -> str:
        """JSON as text, and the first elements of an array; files may hold texts that are no JSON."""
        if target is SqlType.JSON:
            return f"CASE WHEN json_valid({column}) AND {_is_short(column)} THEN CAST({column} AS VARCHAR) END"
        text = "hex(e)" if engine.sql_type is SqlType.BYTEA_ARRAY else "CAST(e AS VARCHAR)"
        first = f"({_flat(column, engine)})[1:{MAX_ELEMENTS}]"
        array = f"CAST(to_json(list_transform({first}, lambda e: left({text}, {MAX_TEXT}))) AS VARCHAR)"
        return f"CASE WHEN {_is_short(array)} THEN {array} END"

    def elements(self, arrays: Sequence[str], numbered: bool) -> str:
        """A table of the texts of arrays' elements, as columns e0, e1 and so on, and of their places from 1, as n."""
        columns = [f"unnest({elements_of(array)}) AS e{place}" for place, array in enumerate(arrays)]
        sizes = ", ".join(f"json_array_length({array})" for array in arrays)
        places = [f"unnest(range(1, CAST(greatest({sizes}) AS BIGINT) + 1)) AS n"] * numbered
        return f"(SELECT {', '.join(columns + places)})"

    def stored_type(self, engine: EngineColumn, target: SqlType) -> str:
        """The type of canonical values."""
        both = target is SqlType.NUMERIC and engine.sql_type is SqlType.NUMERIC
        return engine.type_name if both else TYPES[target]

    # Groups

    def keyed_hash(self, columns: Sequence[tuple[str, SqlType]], salt: int) -> str:
        """Twice, for DuckDB's hash of several columns mixes the last one too little to be uniform over salts."""
        return f"hash(hash({', '.join(name for name, _ in columns)}, {salt}))"

    def same(self, left: str, right: str, sql_type: SqlType) -> str:
        """A condition of a join: equal, or both NULL."""
        return f"{left} IS NOT DISTINCT FROM {right}"


class PostProcessing(DuckDB):
    """DuckDB above release boundaries: with functions that only released and public rows may use."""

    functions = spelled(SPELLINGS | _JSON)

    def collected(self, function: str, arguments: str, behind: str) -> str:
        """Return all values of a group as one value of bounded size."""
        if function == "array_agg":
            text = self.array(f"array_agg({arguments}){behind}")
        else:
            opening, closing = (self.quote_text(each) for each in _AROUND[function])
            text = f"{opening} || string_agg({arguments}){behind} || {closing}"
        message = self.quote_text(f"a value has more than {MAX_COLLECTED:,} bytes")
        return f"CASE WHEN strlen({text}) > {MAX_COLLECTED} THEN error({message}) ELSE {text} END"


def _containing(wanted: Expr) -> str:
    """Whether JSON j0 contains a constant, by jsonb's rules: members of objects, elements of arrays in any order."""
    if not isinstance(wanted, Literal) or not isinstance(wanted.value, str):
        raise TypeError("what JSON must contain is a constant")
    part = json.loads(wanted.value, parse_int=Decimal, parse_float=Decimal)
    found = _contains("j0", part, 1)
    if not isinstance(part, dict | list):
        found = f"{found} OR {_has_elements('j0', [part], 1)}"  # an array contains a scalar, at the top alone
    return found.replace("{", "{{").replace("}", "}}")


def _contains(whole: str, part: object, depth: int) -> str:
    if isinstance(part, dict):
        members = (
            _contains(f"json_extract({whole}, {standard_text(_pointer(key))})", value, depth)
            for key, value in part.items()
        )
        return " AND ".join((f"json_type({whole}) = 'OBJECT'", *members))
    if isinstance(part, list):
        return _has_elements(whole, part, depth)
    text = f"json_extract_string({whole}, '$')"
    if isinstance(part, Decimal):
        number = "TRY_CAST({} AS DECIMAL(38, 15))"
        is_number = f"json_type({whole}) NOT IN ('OBJECT', 'ARRAY', 'VARCHAR', 'BOOLEAN', 'NULL')"
        return f"{is_number} AND {number.format(text)} = {number.format(standard_text(f'{part:f}'))}"
    if isinstance(part, str):
        return f"json_type({whole}) = 'VARCHAR' AND {text} = {standard_text(part)}"
    kind, word = ("NULL", None) if part is None else ("BOOLEAN", "true" if part else "false")
    return f"json_type({whole}) = '{kind}'" + (f" AND {text} = '{word}'" if word is not None else "")


def _has_elements(array: str, parts: Sequence[object], depth: int) -> str:
    """Whether elements of a JSON array contain all parts; other JSON has no elements. The list of them is made once."""
    elements = f"CASE WHEN json_type({array}) = 'ARRAY' THEN CAST(json_extract({array}, '$[*]') AS JSON[]) END"
    each, name = f"j{depth}", f"l{depth}"
    found = (f"len(list_filter({name}, lambda {each}: {_contains(each, part, depth + 1)})) > 0" for part in parts)
    return f"list_transform([{elements}], lambda {name}: {' AND '.join((f'{name} IS NOT NULL', *found))})[1]"


def _decimal_constant(value: Decimal) -> str:
    """A decimal of just its digits, or a double where it has more than a decimal can."""
    exponent = value.as_tuple().exponent
    scale = max(0, -exponent) if isinstance(exponent, int) else 0
    precision = scale + max(value.adjusted() + 1, 1)
    if precision > 38:
        return f"CAST({standard_text(str(value))} AS DOUBLE)"
    return f"CAST({value:f} AS DECIMAL({precision}, {scale}))"


def _without_filling(text: str) -> str:
    """Return a printed number without trailing zeros, if its scale is the one of computed numbers."""
    plain = f"rtrim(rtrim({text}, '0'), '.')"
    return f"CASE WHEN regexp_full_match({text}, '-?\\d+\\.\\d{{{COMPUTED_SCALE}}}') THEN {plain} ELSE {text} END"


def _element_texts(column: str, engine: EngineColumn) -> str:
    """A list of texts, as deep as the column's lists are; bytes in hexadecimal digits."""
    if engine.sql_type is SqlType.BYTEA_ARRAY:
        return f"list_transform({column}, lambda e: hex(e))"
    nesting = "[]" * len(re.findall(r"\[\d*\]", engine.type_name))
    return f"CAST({column} AS VARCHAR{nesting})"


def _is_short(nested: str) -> str:
    return f"strlen(CAST({nested} AS VARCHAR)) <= {MAX_NESTED}"


def _flat(column: str, engine: EngineColumn) -> str:
    """A list of the elements of all dimensions."""
    listed = re.sub(r"\[\d+\]", "[]", engine.type_name)
    text = column if listed == engine.type_name else f"CAST({column} AS {listed})"
    for _ in range(listed.count("[]") - 1):
        text = f"flatten({text})"
    return text


def _inside(text: str, low: str, high: str) -> str:
    return f"CASE WHEN {text} < {low} THEN {low} WHEN {text} > {high} THEN {high} ELSE {text} END"
