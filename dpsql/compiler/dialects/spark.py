"""The SQL of Spark 4 in ANSI mode.

Rule 1: in ANSI mode a value that does not fit is an error, so an operation that may fail has a try_ form or a guard.
Rule 2: what this file does not name is refused by name: `lacking` is the one refusal.
Rule 3: nothing depends on the order in which rows arrive. Sums are of decimals, for sums of bigints may overflow.
Rule 4: every numeric has one type. Spark compares decimals of different scales by rounding one of them, and rounding
    to fewer digits may be an error.
Rule 5: a file may be replaced between two scans of one statement, and Spark computes a CTE again wherever it is named.
    So `computes_ctes_once` is False, and no bound compares two readings of a CTE.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

from dpsql.compiler.dialects.dialect import FIRST_DAY, LAST_DAY, Dialect, held
from dpsql.compiler.dialects.spark_functions import EPOCH, LIKE_FORMS, SPELLINGS
from dpsql.compiler.ir.functions import FUNCTIONS, JSON_FUNCTIONS, Spelling, leaves_most
from dpsql.compiler.ir.nodes import (
    COMPUTED_SCALE,
    Aggregate,
    AggregateCall,
    Call,
    Exists,
    Filter,
    Grid,
    InRelation,
    Join,
    Literal,
    Project,
    Relation,
    Scalar,
    Sort,
    UnitWindows,
    Value,
    Window,
)
from dpsql.compiler.ir.schema import EngineColumn, InputTable
from dpsql.compiler.ir.walk import expressions, free_fields, nodes, relations_in
from dpsql.errors import UnsupportedQuery
from dpsql.sqltypes import SqlType

_DIGITS = 38
_WHOLE_DIGITS = _DIGITS - COMPUTED_SCALE
"""Digits before the point of a numeric."""
_TYPES = {
    SqlType.BOOLEAN: "BOOLEAN",
    SqlType.SMALLINT: "SMALLINT",
    SqlType.INTEGER: "INT",
    SqlType.BIGINT: "BIGINT",
    SqlType.NUMERIC: f"DECIMAL({_DIGITS},{COMPUTED_SCALE})",
    SqlType.REAL: "DOUBLE",
    SqlType.DOUBLE: "DOUBLE",
    **dict.fromkeys((SqlType.TEXT, SqlType.VARCHAR, SqlType.CHAR, SqlType.UNKNOWN), "STRING"),
    SqlType.DATE: "DATE",
    SqlType.TIMESTAMP: "TIMESTAMP_NTZ",
    SqlType.TIMESTAMPTZ: "TIMESTAMP",
}
_FLOATS = (SqlType.REAL, SqlType.DOUBLE)
_SIZES = {SqlType.SMALLINT: "small", SqlType.INTEGER: "int", SqlType.BIGINT: "big"}
_EXACT = frozenset(
    {
        *("boolean", "tinyint", "smallint", "int", "bigint", "string", "varchar", "date", "timestamp", "timestamp_ntz"),
        *(
            f"decimal({whole + scale},{scale})"
            for whole in range(_WHOLE_DIGITS + 1)
            for scale in range(COMPUTED_SCALE + 1)
            if whole + scale > 0
        ),
    }
)
_AGGREGATES = frozenset({"count", "sum", "avg", "min", "max"})
_WINDOWS = _AGGREGATES | {"count_rows", "row_number", "rank", "dense_rank"}
_ZONED = frozenset(name.removeprefix("zoned_") for name in SPELLINGS if name.startswith("zoned_"))
"""Functions that are written differently for instants."""
_UNNAMED = {
    "like_pattern": "LIKE with this pattern",
    "numeric_modulo": "% of numerics",
    "numeric_width_bucket": "WIDTH_BUCKET",
    "shift_right": ">>",
    "trunc_digits": "TRUNC with digits",
    "float_to_text": "a cast of this type to text",
    "from_epoch": "TO_TIMESTAMP",
    "array_element": "a subscript of an array",
    "array_slice": "a slice of an array",
    "json_contains": "@> of JSON",
    "json_has_key": "? of JSON",
    "text_to_json": "JSON",
    "array_has": "= ANY of an array",
    **dict.fromkeys(("json_get", "json_element", "json_either", "json_scalar"), "-> or ->>"),
    **dict.fromkeys(("substring", "substring_for"), "SUBSTRING"),
    **dict.fromkeys(("number_digits", "month_name", "day_name"), "TO_CHAR"),
    **dict.fromkeys(("date_text", "time_text"), "a cast of text to this type"),
    **dict.fromkeys((name for name in FUNCTIONS if name.startswith("trunc_to_")), "DATE_TRUNC to this unit"),
}
"""Functions that queries call by no name, in words. What is in neither is arithmetic of dates, times or intervals."""
_WIDE = "DECIMAL(38,0)"
_ROUNDING = "0.49999999999999994D"
"""The greatest number below one half. A positive number plus this, cut to a whole number, is the rounded number."""


def lacking(what: str) -> UnsupportedQuery:
    """The refusal of what this dialect does not write."""
    return UnsupportedQuery(
        f"{what} is not supported where Spark holds the data",
        hint="Write the query without it: Spark is asked for counts, sums, averages, joins and comparisons.",
    )


class _Types(dict[SqlType, str]):
    """The engine's names of types."""

    def __missing__(self, sql_type: SqlType) -> str:
        raise lacking(f"the type {sql_type.value}")


class Spark(Dialect):
    """Spark."""

    types = _Types(_TYPES)
    functions = SPELLINGS
    exact_types = _EXACT
    codes_text = False
    orders_groups = False
    turns_of_rows = False
    ranks_few = False
    computes_ctes_once = False

    # Names and texts

    @staticmethod
    def quote_name(name: str) -> str:
        """An identifier between backticks."""
        return "`" + held(name).replace("`", "``") + "`"

    @staticmethod
    def quote_text(text: str) -> str:
        """A string constant, in which a backslash escapes the next character."""
        return "'" + held(text).replace("\\", "\\\\").replace("'", "\\'") + "'"

    # Expressions

    def constant(self, value: Value, sql_type: SqlType) -> str:
        """A typed constant."""
        target = self.types[sql_type]
        if value is None:
            return f"CAST(NULL AS {target})"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, float | Decimal) and value == 0:
            value = type(value)(0)  # -0 equals 0, and must have the same text
        if isinstance(value, Decimal) and sql_type is SqlType.NUMERIC:
            return _decimal_constant(value)
        if isinstance(value, str) and (sql_type.is_text or sql_type is SqlType.UNKNOWN):
            return self.quote_text(value)
        if isinstance(value, int | Decimal | float | str | date | datetime):
            return f"CAST({self.quote_text(str(value))} AS {target})"
        raise TypeError(f"no constant of type {type(value).__name__}")

    def guarded(self, text: str, sql_type: SqlType) -> str:
        """A raw number or moment, NULL if no value may be like it. NaN is greater than all numbers in Spark."""
        if sql_type.is_moment:
            kind = self.types[sql_type]
            return f"CASE WHEN {text} BETWEEN {kind}'{FIRST_DAY}' AND {kind}'{LAST_DAY}' THEN {text} END"
        return f"CASE WHEN abs({text}) <= 1.7976931348623157E308D THEN {text} + 0D END"

    def cast(self, text: str, source: SqlType, target: SqlType, scale: int | None) -> str:
        """A conversion that gives NULL where the value does not fit."""
        kind = self.types[target]
        if target is SqlType.NUMERIC and scale is not None:
            # PostgreSQL converts the fifteen digits of a float that are certain.
            number = f"format_string('%.14e', {text})" if source in _FLOATS else text
            return f"try_cast(try_cast({number} AS DECIMAL({_DIGITS},{scale})) AS {kind})"
        if target.is_text and (source is SqlType.NUMERIC or source is SqlType.TIMESTAMPTZ):
            raise lacking(f"a cast of {source.value} to text")
        if target.is_integer and source in _FLOATS:
            text = f"rint({text})"
        if target.is_integer and source is SqlType.NUMERIC:
            text = f"round({text}, 0)"  # its result has room for one digit more
        return f"try_cast({text} AS {kind})"

    def as_text(self, text: str, sql_type: SqlType) -> str:
        """A value as text that can be read again: instants in UTC, numbers without trailing zeros."""
        if sql_type is SqlType.NUMERIC:
            return f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM CAST({text} AS STRING)))"
        if sql_type is SqlType.TIMESTAMPTZ:
            clock = f"timestampadd(MICROSECOND, unix_micros({text}), {EPOCH})"
            return f"CAST({clock} AS STRING) || '+00'"
        return f"CAST({text} AS STRING)"

    def array(self, text: str) -> str:
        """Arrays are not written."""
        raise lacking("an array")

    def adapted(self, call: Call) -> Call:
        """Division depends on the size of integers, functions of moments on their type, LIKE on its pattern."""
        if call.function == "int_divide":
            return replace(call, function=f"{_SIZES[call.type]}_divide")
        if call.function in _ZONED and call.arguments[0].type is SqlType.TIMESTAMPTZ:
            return replace(call, function=f"zoned_{call.function}")
        if call.function == "like":
            return _like(call)
        return replace(call, function="beginning") if leaves_most(call) else call

    def spelling(self, call: Call) -> Spelling:
        """How Spark writes a call; others are refused by the name that queries use."""
        if call.function in self.functions or call.function in JSON_FUNCTIONS:
            return super().spelling(call)
        known = FUNCTIONS.get(call.function)
        if known is not None and known.usages:
            raise lacking(known.usages[0].partition("(")[0])
        raise lacking(_UNNAMED.get(call.function, "this arithmetic of dates, times or intervals"))

    def named_arguments(self, call: Call) -> frozenset[int]:
        """None: a name would take a subquery."""
        return frozenset()

    def with_names(self, text: str, given: Sequence[str]) -> str:
        """No argument asks for a name."""
        raise TypeError("arguments have no names here")

    # Numbers on their grid

    def on_grid(self, text: str, sql_type: SqlType, grid: Grid) -> str:
        """A number as a grid value within the grid's limits. NULL stays NULL, although least and greatest ignore it.

        Limits are below 2^50, so the nearest double of a limit rounds to that limit: clamping first is enough.
        """
        if sql_type.is_integer and grid.step == 1:
            inside = f"CAST(least(greatest({text}, {self.whole(grid.lower)}), {self.whole(grid.upper)}) AS BIGINT)"
            return f"CASE WHEN {text} IS NOT NULL THEN {inside} END"
        low, high = (self.double(end * grid.step) for end in (grid.lower, grid.upper))
        number = f"least(greatest(CAST({text} AS DOUBLE), {low}), {high})"
        place = f"{number} * {self.double(1 / grid.step)} + signum({number}) * {_ROUNDING}"
        return f"CASE WHEN {text} IS NOT NULL THEN CAST({place} AS BIGINT) END"

    def grid_type(self, grid: Grid) -> str:
        """Values of any grid fit a bigint; their sums are decimals."""
        return "BIGINT"

    # Aggregates

    def check_call(self, call: AggregateCall | Window) -> None:
        """Refuse aggregates and window functions that are not exact, or that depend on the order of rows."""
        known = _AGGREGATES if isinstance(call, AggregateCall) else _WINDOWS
        if call.function not in known:
            raise lacking(call.function.upper())
        if isinstance(call, Window) and call.frame is not None and call.frame.mode == "GROUPS":
            raise lacking("GROUPS in a frame")

    def aggregate(self, call: AggregateCall | Window, argument: str, behind: str) -> str:
        """An aggregate of an argument, with its FILTER or OVER behind it."""
        source = call.argument if isinstance(call, AggregateCall) else call.arguments[0]
        kind = source.type if source is not None else SqlType.BIGINT
        if call.function not in ("sum", "avg"):
            text = f"{call.function}({argument}){behind}"
        elif call.grid is None and not kind.is_integer:
            raise lacking(f"{call.function.upper()} of numbers without declared bounds")
        else:
            text = f"{self.total(argument)}{behind}"
            if call.function == "avg":
                text = f"try_divide(CAST({text} AS DOUBLE), count({argument}){behind})"
            elif call.grid is None:
                text = f"try_cast({text} AS {self.types[call.type]})"
        return self.off_grid(text, call.grid) if call.grid is not None else text

    def pairs(self, function: str, first: str, second: str, behind: str) -> str:
        """Refused: the last digits of these aggregates depend on the order of rows."""
        raise lacking(function.upper())

    def total(self, value: str, *, distinct: bool = False) -> str:
        """An exact sum: 10^38 is more than 2^62 times 10^19 rows."""
        return f"sum({'DISTINCT ' if distinct else ''}CAST({value} AS {_WIDE}))"

    def wide(self, value: int) -> str:
        """A whole constant of a type in which its product with any count is exact."""
        return f"CAST({value} AS {_WIDE})"

    def quotient(self, number: str, by: str) -> str:
        """A whole number divided by another, cut."""
        return f"{number} DIV {by}"

    def share(self, total: str, part: int | str, count: str) -> str:
        """A part of a sum of grid values, cut towards zero; cells end long before 2^62."""
        return f"CAST({total} AS {_WIDE}) * {part} DIV {count}"

    def histogram(self, value: str, count: str) -> str:
        """How often each whole number occurs, as a text of value:count, … in order of values."""
        pairs = f"array_sort(collect_list(struct({value} AS v, {count} AS n)))"
        text = "CAST(e.v AS STRING) || ':' || CAST(e.n AS STRING)"
        return f"array_join(transform({pairs}, e -> {text}), ',')"

    def numbered(self, partition: str, keys: Sequence[str]) -> str:
        """Row numbers in the order of the keys: without an order, they could change when a task is repeated."""
        order = ", ".join(f"{key} NULLS LAST" for key in keys) or "1"
        return f"row_number() OVER ({partition} ORDER BY {order})"

    # Relations

    def cte(self, name: str, select: str, *, lazy: bool = False) -> str:
        """A SELECT with a name; Spark decides whether to materialize it."""
        return f"{name} AS ({select})"

    def derived(self, select: str, alias: str = "s", *, lateral: bool = False) -> str:
        """A SELECT as a table of FROM."""
        return f"({select}) AS {alias}"

    def check_join(self, join: Join) -> None:
        """Refuse LATERAL, and subqueries in conditions: Spark runs only some forms of both."""
        if not free_fields(join.right).isdisjoint(join.left.fields):
            raise lacking("LATERAL")
        if join.condition is not None and relations_in(join.condition):
            raise lacking("a subquery in the condition of a join")

    def check_subquery(self, subquery: Exists | InRelation | Scalar) -> None:
        """Refuse one value of several rows, over which Spark would fail, and what Spark cannot convert to a join."""
        if isinstance(subquery, Scalar) and not _is_one_row(subquery.relation):
            raise lacking("a subquery that is used as one value and may have several rows")
        outside = free_fields(subquery.relation)
        for node in nodes(subquery.relation):
            is_cut = isinstance(node, Sort) and (node.limit is not None or node.offset > 0)
            if outside and (is_cut or isinstance(node, UnitWindows)):
                raise lacking("LIMIT, OFFSET or a window function in a subquery that names outer columns")
            inner = (each for expression in expressions(node) for each in relations_in(expression))
            if any(not outside.isdisjoint(free_fields(each)) for each in inner):
                raise lacking("a subquery within a subquery that names columns outside both")

    def input_table(self, table: InputTable) -> str:
        """Refused: rows that were read before are not sent to Spark."""
        raise lacking("a comparison of protected rows with other results, or with limited public rows")

    def series(self, start: int | date, stop: int | date, unit: str | None) -> str:
        """A table of whole numbers, or of the first moments of a unit, as its only column s."""
        if not isinstance(start, date):
            return f"(SELECT id AS s FROM range({start}, {int(str(stop)) + 1})) AS g"
        step = "INTERVAL 3 MONTH" if unit == "QUARTER" else f"INTERVAL 1 {unit}"
        ends = ", ".join(f"TIMESTAMP_NTZ'{end}'" for end in (start, stop))
        return f"(SELECT explode(sequence({ends}, {step})) AS s) AS g"

    def elements(self, arrays: Sequence[str], numbered: bool) -> str:
        """Refused: Spark runs only some forms of LATERAL."""
        raise lacking("UNNEST of arrays")

    def canonical(self, column: str, engine: EngineColumn, target: SqlType) -> str:
        """A table's column as its canonical value, or NULL if it has none: bytes that are not UTF-8 are no text."""
        if target.is_text:
            text = column if engine.sql_type.is_text else f"CAST({column} AS STRING)"
            return f"try_validate_utf8({text} COLLATE UTF8_BINARY)"
        kind = self.stored_type(engine, target)
        value = column if engine.type_name.upper() == kind else self.cast(column, engine.sql_type, target, None)
        return self.guarded(value, target) if target in _FLOATS or target.is_moment else value

    def stored_type(self, engine: EngineColumn, target: SqlType) -> str:
        """The type of canonical values: one for all numerics."""
        return self.types[target]

    # Groups

    def keyed_hash(self, columns: Sequence[tuple[str, SqlType]], salt: int) -> str:
        """The hash ignores NULLs, so it is also given whether each column is NULL."""
        told = ", ".join(f"{name}, {name} IS NULL" for name, _ in columns)
        return f"xxhash64({self.whole(salt)}, {told})"

    def same(self, left: str, right: str, sql_type: SqlType) -> str:
        """A join condition: equal, or both NULL. Both sides get one type; Spark might choose one that merges values."""
        kind = self.types[sql_type]
        return f"CAST({left} AS {kind}) <=> CAST({right} AS {kind})"


def _is_one_row(relation: Relation) -> bool:
    """True of an aggregation without keys, and of projections and filters over it."""
    while isinstance(relation, Project | Filter):
        relation = relation.input
    return isinstance(relation, Aggregate) and not relation.keys


def _decimal_constant(value: Decimal) -> str:
    """A numeric, or a double if a numeric cannot have so many digits."""
    exponent = value.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) else 0
    is_held = scale <= COMPUTED_SCALE and value.adjusted() < _WHOLE_DIGITS
    return f"CAST('{value:f}' AS {_TYPES[SqlType.NUMERIC]})" if is_held else f"CAST('{value}' AS DOUBLE)"


def _like(call: Call) -> Call:
    """LIKE with % only at the ends of its pattern: Spark matches others by regular expressions that may backtrack."""
    subject, pattern = call.arguments
    if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
        raise TypeError("the pattern of LIKE is a constant")
    words = pattern.value
    inside = words.removeprefix("%").removesuffix("%") if words != "%" else ""
    if "%" in inside:
        raise lacking("LIKE with % between other characters")
    form = LIKE_FORMS[words.startswith("%"), words.endswith("%")]
    return Call(form, (subject, Literal(inside, SqlType.TEXT)), call.type)
