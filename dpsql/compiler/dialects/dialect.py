"""dialect: the interface of an engine's SQL, with the parts that all engines share.

Rule 1: the SQL of a dialect is total for every value of its argument types, and gives equal numbers on every engine.
Rule 2: constants are quoted here; nowhere else is text put into SQL.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import date
from fractions import Fraction

from dpsql.compiler.ir.functions import FUNCTIONS, Spelling
from dpsql.compiler.ir.nodes import (
    AggregateCall,
    Call,
    Cast,
    Exists,
    Expr,
    Grid,
    InRelation,
    Join,
    Scalar,
    Value,
    Window,
)
from dpsql.compiler.ir.schema import EngineColumn, InputTable
from dpsql.errors import InvalidText, UnsupportedQuery
from dpsql.sqltypes import SqlType

FIRST_DAY, LAST_DAY = "0001-01-01", "9999-12-31"
"""Moments outside these days are NULL, and so are those of the last day after its midnight."""


def standard_name(name: str) -> str:
    """An identifier as the SQL standard quotes it."""
    return '"' + held(name).replace('"', '""') + '"'


def standard_text(text: str) -> str:
    """A string constant as the SQL standard quotes it, in which a backslash is a character like others."""
    return "'" + held(text).replace("'", "''") + "'"


def held(text: str) -> str:
    """Return the text if SQL can contain it: NUL and unpaired surrogates are refused.

    Raises:
        InvalidText: The text has such a character.
    """
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidText("a text or a name has a character that SQL cannot hold: NUL, or half of a surrogate pair")
    return text


def spelled(own: Mapping[str, Spelling]) -> Mapping[str, Spelling]:
    """The allow-list with an engine's own spellings, and the shared ones for the rest.

    Raises:
        ValueError: An own spelling equals the shared one, which must be the only one.
    """
    shared = {name: function.spelling for name, function in FUNCTIONS.items() if function.spelling is not None}
    if alike := sorted(own.items() & shared.items(), key=str):
        raise ValueError(f'"{alike[0][0]}" is spelled as in the table of functions: leave it out')
    return shared | dict(own)


def _only_above(what: str) -> UnsupportedQuery:
    return UnsupportedQuery(
        f"{what} is not supported over rows of protected tables",
        hint="Aggregate them in a subquery, and make it of the result.",
    )


class Dialect(ABC):
    """The SQL of one engine.

    Attributes:
        types: The engine's names of types.
        functions: The allow-list with the engine's spellings.
        exact_types: The engine's types, by name without a length, for which two values are equal exactly if their
            `canonical` values are. Keys that lead to a unit must have one of these types, and unique keys of other
            types are ignored.
        codes_text: True if long text keys are ranked by codes instead.
        orders_groups: True if aggregating a unit's groups in their order is fastest.
        turns_of_rows: True if a prepared table is best laid out in turns: a row of each unit, then a second of each.
        ranks_few: True if ranking only the groups of units with too many of them is worth the extra joins.
        computes_ctes_once: True if a CTE that is not lazy is computed once, although a statement names it twice. Where
            it is False, no bound may compare two readings of a CTE. Whether two readings of a table find the same rows
            is a fact of the table: `EngineTable.is_stored`.
    """

    types: Mapping[SqlType, str]
    functions: Mapping[str, Spelling]
    exact_types: frozenset[str]
    codes_text: bool
    orders_groups: bool
    turns_of_rows: bool
    ranks_few: bool
    computes_ctes_once: bool

    @staticmethod
    @abstractmethod
    def quote_name(name: str) -> str:
        """Return a quoted identifier; it may contain any character that SQL allows.

        Raises:
            InvalidText: SQL cannot contain a character of it.
        """

    @staticmethod
    @abstractmethod
    def quote_text(text: str) -> str:
        """Return a quoted string constant; it may contain any character that SQL allows.

        Raises:
            InvalidText: SQL cannot contain a character of it.
        """

    def where_shown(self) -> "Dialect":
        """The dialect for rows of public tables that are shown, of which JSON keeps its text."""
        return self

    def quote_path(self, path: Sequence[str]) -> str:
        """A name of several parts, each quoted."""
        return ".".join(map(self.quote_name, path))

    # Expressions

    @abstractmethod
    def constant(self, value: Value, sql_type: SqlType) -> str:
        """A typed constant."""

    @abstractmethod
    def guarded(self, text: str, sql_type: SqlType) -> str:
        """A raw number or moment, NULL where it is none that a value may be."""

    @abstractmethod
    def cast(self, text: str, source: SqlType, target: SqlType, scale: int | None) -> str:
        """A conversion that gives NULL where the value does not fit."""

    @abstractmethod
    def as_text(self, text: str, sql_type: SqlType) -> str:
        """A value as the text from which it is read again."""

    @abstractmethod
    def array(self, text: str) -> str:
        """An array of numbers as what the type holds: JSON of the elements' texts."""

    def is_raw(self, expression: Expr) -> bool:
        """True where a value must be guarded."""
        if isinstance(expression, Call):
            return self.spelling(self.adapted(expression)).raw
        if isinstance(expression, Cast):
            of_floats = expression.type in (SqlType.DOUBLE, SqlType.REAL)
            return expression.argument.type.is_text and (of_floats or expression.type.is_moment)
        return False

    def spelling(self, call: Call) -> Spelling:
        """Return the engine's spelling of a call.

        Raises:
            UnsupportedQuery: Only post-processing computes this function.
        """
        if call.function not in self.functions:
            raise _only_above("JSON")
        return self.functions[call.function]

    @abstractmethod
    def adapted(self, call: Call) -> Call:
        """A call as the engine's spellings take it: its constants in the engine's words."""

    @abstractmethod
    def named_arguments(self, call: Call) -> frozenset[int]:
        """The arguments that must have a name before the call is written."""

    @abstractmethod
    def with_names(self, text: str, given: Sequence[str]) -> str:
        """A value in which some expressions have names: each given as `expression AS name`."""

    # Numbers on their grid

    @abstractmethod
    def on_grid(self, text: str, sql_type: SqlType, grid: Grid) -> str:
        """A number as a grid value within the grid's limits; NULL stays NULL."""

    @abstractmethod
    def grid_type(self, grid: Grid) -> str:
        """The type in which the values of a grid are best added up."""

    def off_grid(self, text: str, grid: Grid) -> str:
        """A sum or mean of grid values as a double; the sum itself was exact."""
        number = f"CAST({text} AS {self.types[SqlType.DOUBLE]})"
        if grid.step.numerator != 1:
            number = f"{number} * {grid.step.numerator}"
        denominator = Fraction(grid.step.denominator)
        return number if denominator == 1 else f"{number} / {self.double(denominator)}"

    def whole(self, value: int) -> str:
        """A constant as a bigint."""
        return f"CAST({value} AS BIGINT)"

    def double(self, value: Fraction) -> str:
        """A constant in double precision."""
        return f"CAST('{float(value)!r}' AS {self.types[SqlType.DOUBLE]})"

    # Aggregates

    def check_call(self, call: AggregateCall | Window) -> None:  # noqa: B027
        """Refuse an aggregate or a window function that the engine does not have.

        Raises:
            UnsupportedQuery: The engine does not have it.
        """

    @abstractmethod
    def aggregate(self, call: AggregateCall | Window, argument: str, behind: str) -> str:
        """An aggregate of an argument, with its FILTER or OVER behind it."""

    def pairs(self, function: str, first: str, second: str, behind: str) -> str:
        """An aggregate of pairs of numbers in double precision; NULL where it is no number, as of equal values."""
        double = self.types[SqlType.DOUBLE]
        text = f"{function}(CAST({first} AS {double}), CAST({second} AS {double})){behind}"
        return text if function == "regr_count" else self.guarded(text, SqlType.DOUBLE)

    def collected(self, function: str, arguments: str, behind: str) -> str:
        """All values of a group put together, given with their separator and their order.

        Raises:
            UnsupportedQuery: It is not post-processing that would do it.
        """
        raise _only_above(function.upper())

    def total(self, value: str, *, distinct: bool = False) -> str:
        """The exact sum of whole numbers, or of the distinct ones."""
        return f"sum({'DISTINCT ' if distinct else ''}{value})"

    @abstractmethod
    def wide(self, value: int) -> str:
        """A whole constant of a type in which its product with any count is exact."""

    @abstractmethod
    def quotient(self, number: str, by: str) -> str:
        """A whole number that is not negative divided by one that is positive, cut; both are sums of counts."""

    @abstractmethod
    def share(self, total: str, part: int | str, count: str) -> str:
        """A part of a sum of grid values in a number of them, exact and cut towards zero, as far as cells go."""

    def histogram(self, value: str, count: str) -> str:
        """How often there is each whole number, as a text of value:count, … in any order."""
        pair = f"{self.as_text(value, SqlType.BIGINT)} || ':' || {self.as_text(count, SqlType.BIGINT)}"
        return f"string_agg({pair}, ',')"

    def numbered(self, partition: str, keys: Sequence[str]) -> str:
        """Row numbers in any order within a partition. Rows with equal keys must be alike."""
        return f"row_number() OVER ({partition})"

    # Relations

    def cte(self, name: str, select: str, *, lazy: bool = False) -> str:
        """A SELECT with a name; a lazy one is not made as a whole before it is read."""
        return f"{name} AS {'NOT MATERIALIZED ' if lazy else ''}({select})"

    @abstractmethod
    def derived(self, select: str, alias: str = "s", *, lateral: bool = False) -> str:
        """A SELECT as a table of FROM."""

    @abstractmethod
    def check_join(self, join: Join) -> None:
        """Refuse a join that the engine has not.

        Raises:
            UnsupportedQuery: It has no such join.
        """

    def check_subquery(self, subquery: Exists | InRelation | Scalar) -> None:  # noqa: B027
        """Refuse a subquery in an expression that the engine cannot run.

        Raises:
            UnsupportedQuery: The engine cannot run it.
        """

    @abstractmethod
    def input_table(self, table: InputTable) -> str:
        """What was made first, as a table of texts v0, v1 and so on."""

    @abstractmethod
    def series(self, start: int | date, stop: int | date, unit: str | None) -> str:
        """A table of whole numbers, or of the first moments of a unit, as its only column s."""

    @abstractmethod
    def canonical(self, column: str, engine: EngineColumn, target: SqlType) -> str:
        """Return a table's column as its canonical value, or NULL if it has none."""

    def limited(self, column: str, engine: EngineColumn, target: SqlType) -> str:
        """Return JSON or an array of protected rows, as much of it as may be read: here whether it is NULL."""
        return self.presence(column)

    def presence(self, column: str) -> str:
        """Return NULL where a column is NULL, else an empty text: no stored value is converted, which may fail."""
        return f"CASE WHEN {column} IS NOT NULL THEN {self.constant('', SqlType.TEXT)} END"

    @abstractmethod
    def elements(self, arrays: Sequence[str], numbered: bool) -> str:
        """A table of the texts of arrays' elements, as columns e0, e1 and so on, and of their places from 1, as n."""

    @abstractmethod
    def stored_type(self, engine: EngineColumn, target: SqlType) -> str:
        """Return the type of a column that stores canonical values unchanged."""

    # Groups

    @abstractmethod
    def keyed_hash(self, columns: Sequence[tuple[str, SqlType]], salt: int) -> str:
        """A number that looks random, of the values of columns and a salt."""

    @abstractmethod
    def same(self, left: str, right: str, sql_type: SqlType) -> str:
        """A condition of a join: equal, or both NULL."""
