"""PostgreSQL's SQL for versions 13 and later.

Rule 1: text is compared, sorted and grouped by bytes; every computed text has that collation.
Rule 2: every entry of FROM has an alias.
"""

from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from uuid import UUID

from dpsql.compiler.dialects.dialect import Dialect, spelled, standard_name, standard_text
from dpsql.compiler.dialects.postgres_calls import adapted
from dpsql.compiler.dialects.postgres_functions import SHOWN, SPELLINGS
from dpsql.compiler.dialects.postgres_guards import (
    DAYS,
    HOURS,
    MONTHS,
    TYPES,
    binary_json,
    convertible,
    finite,
    moderate,
    narrowed,
    read,
    scaled,
    seen,
    whole_of_float,
    widens,
    within_years,
)
from dpsql.compiler.ir import intervals
from dpsql.compiler.ir.conditions import conjuncts
from dpsql.compiler.ir.functions import MAX_ELEMENTS, MAX_NESTED, MAX_TEXT, SPREADS
from dpsql.compiler.ir.nodes import (
    COMPUTED_SCALE,
    MAX_PRECISION,
    AggregateCall,
    Call,
    Cast,
    Column,
    Expr,
    Grid,
    Join,
    Literal,
    Value,
    Window,
)
from dpsql.compiler.ir.schema import EngineColumn, InputTable
from dpsql.compiler.ir.walk import fields_in
from dpsql.errors import UnsupportedQuery
from dpsql.sqltypes import SqlType

_FLOATS = (SqlType.REAL, SqlType.DOUBLE)
_BINARY = 'COLLATE "C"'
_ZERO = {
    SqlType.BOOLEAN: "false",
    **dict.fromkeys((SqlType.SMALLINT, SqlType.INTEGER, SqlType.BIGINT, SqlType.NUMERIC, *_FLOATS), "0"),
    **dict.fromkeys((SqlType.TEXT, SqlType.VARCHAR, SqlType.CHAR), "''"),
    SqlType.DATE: "DATE '2000-01-01'",
    SqlType.TIME: "TIME '00:00'",
    SqlType.TIMESTAMP: "TIMESTAMP '2000-01-01'",
    SqlType.TIMESTAMPTZ: "TIMESTAMPTZ '2000-01-01 00:00:00+00'",
    SqlType.UUID: "CAST('00000000-0000-0000-0000-000000000000' AS uuid)",
}
"""A value that stands for NULL where NULLs are told apart already."""
_SCALED = frozenset(
    f"numeric({digits},{scale})" for digits in range(1, MAX_PRECISION + 1) for scale in range(digits + 1)
)
"""Numerics whose values all have a decimal of their own on every engine."""
_EXACT = _SCALED | {
    *("boolean", "smallint", "integer", "bigint", "uuid", "bytea"),
    *("text", "character varying", "character", "bpchar", "name"),
    *("date", "time without time zone", "timestamp without time zone", "timestamp with time zone"),
}
_FILLED = rf"^(?=-?\d+\.\d{{{COMPUTED_SCALE}}}$)(-?\d+(?:\.\d*[1-9])?)\.?0*$"
"""A printed number with the zeros that fill it up where it has no scale of its own; its group has none."""
_ROUNDING = "0.49999999999999994"
"""The greatest number below a half: added to a number, it is cut to what the number is rounded to, halves up."""

_SMALL = 2**24
"""Below it 2^39 values have a sum that is a bigint: more than there are rows."""
_LONG = 200
"""Characters from which on an expression is computed once and named, which costs as much as a subquery does."""


class Postgres(Dialect):
    """PostgreSQL."""

    quote_name = staticmethod(standard_name)
    quote_text = staticmethod(standard_text)

    types = TYPES
    functions = spelled(SPELLINGS)
    exact_types = _EXACT
    codes_text = False
    orders_groups = True
    turns_of_rows = False
    ranks_few = False
    computes_ctes_once = True
    json = "jsonb"

    def where_shown(self) -> Dialect:
        """The dialect in which JSON is text."""
        return _SHOWN

    # Expressions

    def constant(self, value: Value, sql_type: SqlType) -> str:
        """A typed constant."""
        target = TYPES[sql_type]
        if value is None:
            # JSON is jsonb, or text where it is shown.
            return "NULL" if sql_type.is_json else f"CAST(NULL AS {target})"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, str) and sql_type is SqlType.UNKNOWN:
            return self.quote_text(value)
        if isinstance(value, str) and sql_type.is_json:
            return f"CAST({self.quote_text(value)} AS {self.json})"
        if isinstance(value, str) and sql_type is SqlType.INTERVAL:
            return _interval(value)
        if isinstance(value, str) and sql_type.is_text:
            return f"CAST({self.quote_text(value)} AS text) {_BINARY}"
        if isinstance(value, float | Decimal) and value == 0:
            value = type(value)(0)  # -0 is equal to 0 and must look the same
        written = f"{value:f}" if isinstance(value, Decimal) else str(value)
        if isinstance(value, int | Decimal | float | str | date | datetime | time | UUID):
            return f"CAST({self.quote_text(written)} AS {target})"
        raise TypeError(f"no constant of type {type(value).__name__}")

    def guarded(self, text: str, sql_type: SqlType) -> str:
        """A raw number or moment, NULL where it is none that a value may be."""
        return within_years(text, sql_type) if sql_type.is_moment else finite(text)

    def cast(self, text: str, source: SqlType, target: SqlType, scale: int | None) -> str:
        """A conversion that gives NULL where the value does not fit."""
        if source.is_json:
            return text
        if target.is_text:
            shown = text if source.is_text else self.as_text(text, source)
            return f"regexp_replace({shown}, '{_FILLED}', '\\1')" if source is SqlType.NUMERIC else shown
        if target is SqlType.NUMERIC:
            number = read(text, target) if source.is_text else f"CAST({text} AS numeric)"
            return scaled(number, COMPUTED_SCALE if scale is None else scale)
        if source.is_text:
            return read(text, target)
        if target.is_integer and source in _FLOATS:
            return whole_of_float(text, target)
        if target.is_integer and source is SqlType.NUMERIC:
            return narrowed(f"round({text})", target)
        if target.is_integer and source.is_integer and not widens(source, target):
            return narrowed(text, target)
        return f"CAST({text} AS {TYPES[target]})"

    def as_text(self, text: str, sql_type: SqlType) -> str:
        """A value as the text from which it is read again."""
        if sql_type is not SqlType.INTERVAL:
            return f"CAST({text} AS text) {_BINARY}"
        year, month, day, hour, minute, micros = (
            f"CAST(date_part('{part}', {text}) AS bigint)"
            for part in ("year", "month", "day", "hour", "minute", "microseconds")
        )
        months, clock = f"{year} * 12 + {month}", f"{hour} * 3600000000 + {minute} * 60000000 + {micros}"
        return f"({months} || ' months ' || {day} || ' days ' || {clock} || ' microseconds') {_BINARY}"

    def array(self, text: str) -> str:
        """An array of numbers as JSON of their texts."""
        return f"CAST(to_json(CAST({text} AS text[])) AS text) {_BINARY}"

    def adapted(self, call: Call) -> Call:
        """A call as the spellings of this engine take it."""
        return adapted(call)

    def named_arguments(self, call: Call) -> frozenset[int]:
        """Arguments that a spelling uses several times get a name: nested spellings would grow exponentially."""
        template = self.functions[call.function].template
        places = range(len(call.arguments))
        return frozenset(i for i in places if template.count(f"{{{i}}}") > 1 and not _is_atom(call.arguments[i]))

    def with_names(self, text: str, given: Sequence[str]) -> str:
        """A value in which some expressions have names; OFFSET keeps the planner from writing them out again."""
        return f"(SELECT {text} FROM (SELECT {', '.join(given)} OFFSET 0) AS s)"

    # Numbers on their grid

    def on_grid(self, text: str, sql_type: SqlType, grid: Grid) -> str:
        """A number as a grid value within the grid's limits; NULL stays NULL.

        Limits are below 2^50, so the nearest double of a limit rounds to that limit: clamping first is enough.
        """
        if len(text) > _LONG:
            return self.with_names(self.on_grid("v", sql_type, grid), [f"{text} AS v"])
        kind = self.grid_type(grid)
        if sql_type.is_integer and grid.step == 1:
            inside = f"CAST(least(greatest({text}, {grid.lower}), {grid.upper}) AS {kind})"
            return f"CASE WHEN {text} IS NOT NULL THEN {inside} END"
        low, high = (self.double(end * grid.step) for end in (grid.lower, grid.upper))
        number = f"least(greatest(CAST({text} AS float8), {low}), {high})"
        # With large steps, a small number divided by the step would underflow, which is an error.
        product = f"{number if grid.step <= 1 else f'({number} + 1e-200)'} * {self.double(1 / grid.step)}"
        return f"CASE WHEN {text} IS NOT NULL THEN CAST(trunc({product} + sign({number}) * {_ROUNDING}) AS {kind}) END"

    def grid_type(self, grid: Grid) -> str:
        """Integers are added up as bigints, bigints as numerics, which takes longer."""
        return "integer" if max(abs(grid.lower), abs(grid.upper)) < _SMALL else "bigint"

    # Aggregates

    def aggregate(self, call: AggregateCall | Window, argument: str, behind: str) -> str:
        """An aggregate of an argument, with its FILTER or OVER behind it."""
        source = call.argument if isinstance(call, AggregateCall) else call.arguments[0]
        kind = source.type if source is not None else SqlType.BIGINT
        text = f"{call.function}({argument}){behind}"
        if call.function in ("min", "max") and kind in (SqlType.BOOLEAN, SqlType.UUID):
            return _extreme(call.function, argument, behind, kind)
        if call.function == "avg" and (call.grid is not None or kind.is_integer):
            text = f"CAST(sum({argument}){behind} AS float8) / nullif(count({argument}){behind}, 0)"
        elif call.function == "avg":
            text = f"CAST({text} AS float8)"
        elif call.function in SPREADS:
            text = finite(text)
        if call.grid is None:
            return text
        number = self.off_grid(text, call.grid)
        # Functions of numerics take no double.
        return self.cast(number, SqlType.DOUBLE, call.type, None) if call.type is SqlType.NUMERIC else number

    def wide(self, value: int) -> str:
        """A whole constant of a type in which its product with any count is exact."""
        return f"CAST({value} AS numeric)"

    def quotient(self, number: str, by: str) -> str:
        """A whole number divided by another, cut; sums of counts are numeric."""
        return f"div({number}, {by})"

    def share(self, total: str, part: int | str, count: str) -> str:
        """A part of a sum of grid values, cut towards zero; cells end long before 2^62."""
        quotient = f"div(CAST({total} AS numeric) * {part}, {count})"
        return f"CAST(least(greatest({quotient}, {-(2**62)}), {2**62}) AS bigint)"

    # Relations

    def derived(self, select: str, alias: str = "s", *, lateral: bool = False) -> str:
        """A SELECT as a table of FROM."""
        return f"{'LATERAL ' if lateral else ''}({select}) AS {alias}"

    def check_join(self, join: Join) -> None:
        """Refuse a FULL JOIN without an equation of both sides, as PostgreSQL does once it plans one."""
        terms = conjuncts(join.condition) if join.condition is not None else ()
        if join.kind == "full" and not any(_equates(term, join) for term in terms):
            raise UnsupportedQuery(
                "FULL JOIN is only supported with merge-joinable or hash-joinable join conditions",
                hint="Join on equality of keys, and move other conditions to WHERE or into subqueries.",
            )

    def input_table(self, table: InputTable) -> str:
        """What was made first, as arrays of texts that come as parameters."""
        arrays = ", ".join(f"${table.first + place + 1}::text[]" for place in range(max(1, table.width)))
        names = ", ".join(f"v{place}" for place in range(max(1, table.width)))
        return f"unnest({arrays}) AS input{table.index}({names})"

    def series(self, start: int | date, stop: int | date, unit: str | None) -> str:
        """A table of whole numbers, or of the first moments of a unit, as its only column s."""
        # PostgreSQL reads no quarters in intervals.
        step = "1" if unit is None else "INTERVAL '3 MONTH'" if unit == "QUARTER" else f"INTERVAL '1 {unit}'"
        low, high = (str(end) if unit is None else f"TIMESTAMP '{end}'" for end in (start, stop))
        return f"generate_series({low}, {high}, {step}) AS g(s)"

    def canonical(self, column: str, engine: EngineColumn, target: SqlType) -> str:
        """Return a table's column as its canonical value, or NULL if it has none."""
        if target.is_text and engine.type_name == "citext":
            return f'lower({seen(f"CAST({column} AS text)")} COLLATE "default") {_BINARY}'
        if target.is_array and not engine.sql_type.is_text:
            return f"CAST(to_json(CAST({column} AS text[])) AS text) {_BINARY}"
        if target.is_json and engine.sql_type.is_text:
            return binary_json(column)  # made by post-processing
        if target.is_text or target.is_array or target is SqlType.JSON:
            return self.as_text(column, engine.sql_type) if engine.type_name != "text" else f"{column} {_BINARY}"
        source = engine.sql_type
        if target.is_moment:
            moment = column if source is target else self._converted(column, source, target)
            return within_years(moment, target)
        if source is target is SqlType.INTERVAL:
            return moderate(column)
        value = _clean(column, engine)
        return value if source is target else self.cast(value, source, target, None)

    def limited(self, column: str, engine: EngineColumn, target: SqlType) -> str:
        """JSON as jsonb, which reads all values without an error, and the first elements of an array."""
        if target is SqlType.JSON:
            return column if engine.type_name == "jsonb" else binary_json(column)
        first = f"array_lower({column}, 1)"
        last = f"least({first}, {2**31 - MAX_ELEMENTS}) + {MAX_ELEMENTS - 1}"
        elements = f"unnest(({column})[{first}:{last}]) AS u(e) LIMIT {MAX_ELEMENTS}"
        texts = f"SELECT left(CAST(e AS text), {MAX_TEXT}) FROM {elements}"
        array = f"CAST(to_json(ARRAY({texts})) AS text)"
        is_short = f"{column} IS NOT NULL AND octet_length({array}) <= {MAX_NESTED}"
        return f"CASE WHEN {is_short} THEN {array} {_BINARY} END"

    def elements(self, arrays: Sequence[str], numbered: bool) -> str:
        """A table of the texts of arrays' elements, as columns e0, e1 and so on, and of their places from 1, as n."""
        names = [f"j{place}" for place, _ in enumerate(arrays)]
        # An array within an array is no element.
        texts = [
            f"(CASE WHEN json_typeof({name}) = 'string' THEN {name} #>> '{{}}' END) {_BINARY} AS e{place}"
            for place, name in enumerate(names)
        ]
        calls = ", ".join(f"json_array_elements(CAST({array} AS json))" for array in arrays)
        rows = f"ROWS FROM ({calls}) WITH ORDINALITY AS u({', '.join([*names, 'n'])})"
        return f"(SELECT {', '.join(texts + ['n'] * numbered)} FROM {rows}) AS s"

    def _converted(self, column: str, source: SqlType, target: SqlType) -> str:
        moment = convertible(column, source) if source.is_moment else column
        return self.cast(moment, source, target, None)

    def stored_type(self, engine: EngineColumn, target: SqlType) -> str:
        """Return the type of canonical values; texts keep the byte-wise collation."""
        if target is SqlType.JSON:
            return "jsonb"
        return f"text {_BINARY}" if target.is_text or target.is_array else TYPES[target]

    # Groups

    def keyed_hash(self, columns: Sequence[tuple[str, SqlType]], salt: int) -> str:
        """One column after the other, each with the hash of those before it as its seed."""
        found = str(salt)
        for name, sql_type in columns:
            if sql_type.is_json:
                found = f"jsonb_hash_extended(coalesce({name}, 'null'), {found})"
            elif sql_type.is_integer or sql_type is SqlType.DATE:
                number = name if sql_type.is_integer else f"{name} - {_ZERO[sql_type]}"
                found = f"hashint8extended(coalesce({number}, 0), {found})"
            else:
                # Equal numerics may be of unlike scales; they have one hash.
                value = f"trim_scale({name})" if sql_type is SqlType.NUMERIC else name
                text = name if sql_type.is_text else self.as_text(value, sql_type)
                found = f"hashtextextended(coalesce({text}, ''), {found})"
        return found

    def same(self, left: str, right: str, sql_type: SqlType) -> str:
        """A condition of a join: equal, or both NULL; IS NOT DISTINCT FROM would compare every pair of rows."""
        zero = _ZERO[sql_type]
        return f"({left} IS NULL) = ({right} IS NULL) AND coalesce({left}, {zero}) = coalesce({right}, {zero})"


class _ShownPostgres(Postgres):
    """PostgreSQL for public rows that are shown: JSON is text."""

    functions = spelled(SHOWN)
    json = "text"


_SHOWN = _ShownPostgres()


def _equates(term: Expr, join: Join) -> bool:
    if not isinstance(term, Call) or term.function != "eq":
        return False
    sides = [fields_in(argument) for argument in term.arguments]
    left, right = frozenset(join.left.fields), frozenset(join.right.fields)
    return all(sides) and any(one <= left and other <= right for one, other in (sides, sides[::-1]))


def _is_atom(expression: Expr) -> bool:
    """True for what costs nothing to write, and to compute, twice."""
    if isinstance(expression, Cast):
        expression = expression.argument if expression.argument.type.is_number else expression
    return isinstance(expression, Column | Literal)


def _interval(text: str) -> str:
    """An interval that can be added to and negated, in fields of a size that every version reads."""
    span = intervals.span(text)
    minutes, micros = divmod(abs(span.microseconds), 60_000_000)
    sign = "-" if span.microseconds < 0 else ""
    if abs(span.months) > MONTHS or abs(span.days) > DAYS or minutes > 60 * HOURS:
        return "CAST(NULL AS interval)"
    hours, minutes = divmod(minutes, 60)
    clock = f"{sign}{hours} hours {sign}{minutes} minutes {sign}{micros // 1_000_000}.{micros % 1_000_000:06d} seconds"
    return f"CAST('{span.months} months {span.days} days {clock}' AS interval)"


def _extreme(function: str, argument: str, behind: str, kind: SqlType) -> str:
    """The least or greatest of types for which PostgreSQL has no such function, or not in every version."""
    if kind is SqlType.BOOLEAN:
        return f"{'bool_and' if function == 'min' else 'bool_or'}({argument}){behind}"
    return f"CAST({function}(CAST({argument} AS text) {_BINARY}){behind} AS uuid)"


def _clean(column: str, engine: EngineColumn) -> str:
    """Return a finite number with digits that every engine supports; other values unchanged."""
    if engine.sql_type in _FLOATS:
        return finite(column if engine.type_name == "double precision" else f"CAST({column} AS float8)")
    if engine.sql_type is not SqlType.NUMERIC:
        return column
    if engine.type_name in _SCALED:
        return f"nullif({column}, 'NaN')"
    # One spelling a value: as many digits as it has.
    return f"trim_scale({scaled(column, COMPUTED_SCALE)})"
