"""calls: functions that are called by name, with their arguments in a row.

Rule: a call with another number of arguments, or with arguments of other types, names no function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from sqlglot import exp

from dpsql.compiler.ir.functions import CALLS, arity, example_calls
from dpsql.compiler.ir.nodes import Cast, Expr, Literal
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.compiler.sql.postgres_syntax import print_sql
from dpsql.compiler.sql.rewriting import replaced
from dpsql.errors import InvalidParameter, UndefinedFunction, UnsupportedQuery
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class Arguments:
    """The lowered arguments of one call.

    Attributes:
        lowering: What lowered them.
        node: The call.
        name: Its name.
        nodes: The arguments as written.
        values: The arguments, lowered.
    """

    lowering: Lowering
    node: exp.Expr
    name: str
    nodes: tuple[exp.Expr, ...]
    values: tuple[Expr, ...]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.values)

    def mismatch(self) -> UndefinedFunction:
        """The error for arguments of other types, or another number of them, than the function has."""
        types = ", ".join(value.type.value for value in self.values)
        return UndefinedFunction(
            f"function {self.name}({types}) does not exist",
            hint=self._usage(),
            position=self.lowering.at(self.node),
            queries=self._examples(),
        )

    def _usage(self) -> str | None:
        return f"Usage: {CALLS[self.name]}." if self.name in CALLS else None

    def _examples(self) -> tuple[str, ...]:
        """The query with as many arguments as there must be, and with constants for all."""
        if self.name not in CALLS:
            return ()
        calls = example_calls(CALLS[self.name], [print_sql(node) for node in self.nodes])
        return replaced(self.node, *dict.fromkeys(calls))

    def at(self, index: int) -> int | None:
        """Return the position of an argument, or else of the call."""
        place = self.lowering.at(self.nodes[index])
        return place if place is not None else self.lowering.at(self.node)

    def _as(self, index: int, target: SqlType, fits: bool) -> Expr:
        """An argument whose type fits; a quoted constant as a value of `target`."""
        value = self.values[index]
        if value.type is SqlType.UNKNOWN:
            return self.lowering.coercion.to(value, target, self.at(index))
        if not fits:
            raise self.mismatch()
        return value

    def number(self, index: int) -> Expr:
        """A number, of whichever type."""
        return self._as(index, SqlType.DOUBLE, self.values[index].type.is_number)

    def double(self, index: int) -> Expr:
        """A number, in double precision."""
        return self.lowering.coercion.to(self.number(index), SqlType.DOUBLE)

    def bigint(self, index: int) -> Expr:
        """A whole number, as bigint."""
        value = self._as(index, SqlType.BIGINT, self.values[index].type.is_integer)
        if isinstance(value, Literal):
            return replace(value, type=SqlType.BIGINT)
        return self.lowering.coercion.to(value, SqlType.BIGINT)

    def integer(self, index: int) -> Expr:
        """A whole number that is no bigint, as bigint: sums of a few of them fit."""
        if self.values[index].type is SqlType.BIGINT:
            raise self.mismatch()
        if self.values[index].type is SqlType.UNKNOWN:
            self._as(index, SqlType.INTEGER, True)
        return self.bigint(index)

    def text(self, index: int) -> Expr:
        """Text."""
        return self._as(index, SqlType.TEXT, self.values[index].type.is_text)

    def json(self, index: int) -> Expr:
        """JSON; a quoted constant is of the type that the function's name begins with."""
        kind = SqlType.JSONB if self.name.startswith("jsonb") else SqlType.JSON
        return self._as(index, kind, self.values[index].type.is_json)

    def moment(self, index: int) -> Expr:
        """A date or a timestamp."""
        return self._as(index, SqlType.TIMESTAMP, self.values[index].type.is_moment)

    def timestamp(self, index: int) -> Expr:
        """A date or a timestamp, as the local time it is."""
        return as_timestamp(self.moment(index))

    def interval(self, index: int) -> Expr:
        """An interval."""
        return self._as(index, SqlType.INTERVAL, self.values[index].type is SqlType.INTERVAL)

    def whole(self, index: int, low: int, high: int) -> int | None:
        """Return a constant integer between `low` and `high`; None if it is NULL or an unbound parameter.

        Raises:
            InvalidParameter: The number is out of range.
            UnsupportedQuery: The argument is not a constant.
        """
        value = self._constant(index, SqlType.INTEGER, self.values[index].type.is_integer).value
        if value is None or (isinstance(value, int) and low <= value <= high):
            return value
        raise InvalidParameter(
            f"{self.name.upper()} takes an integer from {low} to {high} here", position=self.at(index)
        )

    def fixed(self, index: int) -> str | None:
        """Return a constant text; None if it is NULL or an unbound parameter."""
        value = self._constant(index, SqlType.TEXT, self.values[index].type.is_text).value
        return value if value is None else str(value)

    def fixed_number(self, index: int, whole: bool) -> int | float | Decimal | None:
        """Return a constant number; None if it is NULL or an unbound parameter."""
        given = self.values[index].type
        target, fits = (SqlType.INTEGER, given.is_integer) if whole else (SqlType.DOUBLE, given.is_number)
        value = self._constant(index, target, fits).value
        if value is not None and not isinstance(value, int | float | Decimal):
            raise TypeError("a constant of a type of numbers is a number")
        return value

    def _constant(self, index: int, target: SqlType, fits: bool) -> Literal:
        value = self._as(index, target, fits)
        if not isinstance(value, Literal):
            raise UnsupportedQuery(
                f"this argument of {self.name.upper()} must be a constant",
                hint=self._usage(),
                position=self.at(index),
                queries=self._examples(),
            )
        return value


Called = Callable[[Arguments], Expr]
"""Lowers the function it is listed under."""


def as_timestamp(moment: Expr) -> Expr:
    """A date or timestamp as a timestamp without a zone: the clock's time where the zone is pinned."""
    return moment if moment.type is SqlType.TIMESTAMP else Cast(moment, SqlType.TIMESTAMP)


def arguments(lowering: Lowering, node: exp.Expr, name: str, nodes: list[exp.Expr]) -> Arguments:
    """Lower the arguments of a call whose syntax node is special."""
    return Arguments(lowering, node, name, tuple(nodes), tuple(lowering.lower(each) for each in nodes))


def method(functions: Mapping[str, Called], methods: Mapping[str, Method]) -> Method:
    """The method that lowers a call by its name; `methods` lower those whose arguments may have names."""

    def lower(lowering: Lowering, node: exp.Anonymous) -> Expr:
        name = str(node.this).lower()
        if name in methods:
            return methods[name](lowering, node)
        if name not in functions:
            raise lowering.refusal(node)
        return in_a_row(lowering, node, functions[name])

    return lower


def in_a_row(lowering: Lowering, node: exp.Anonymous, function: Called) -> Expr:
    """Lower a call by the function that it names."""
    lowering.only(node, "this", "expressions")
    name = str(node.this).lower()
    call = arguments(lowering, node, name, node.expressions)
    least, most = arity(CALLS[name])
    if len(call) < least or (most is not None and len(call) > most):
        raise call.mismatch()
    return function(call)
