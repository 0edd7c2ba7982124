"""plain_calls: calls of aggregates whose arguments stand in parentheses, lowered.

Rule: a call with another number of arguments, or of another type, names no function.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from dpsql.compiler.ir.nodes import AggregateCall, Expr
from dpsql.compiler.scope.lowering import Lowering
from dpsql.compiler.sql.postgres_syntax import print_sql
from dpsql.compiler.sql.rewriting import replaced
from dpsql.errors import UndefinedFunction, UnsupportedQuery
from dpsql.sqltypes import SqlType

TypeOf = Callable[[SqlType], SqlType]


@dataclass(frozen=True)
class PlainCall:
    """Lowers the calls of one aggregate.

    Attributes:
        name: The aggregate.
        type_of: The type of its value, by that of its argument.
        arguments: How many it takes.
        numbers: True where the arguments must be numbers.
        distinct: True where DISTINCT may stand before the argument.
    """

    name: str
    type_of: TypeOf
    arguments: int = 1
    numbers: bool = False
    distinct: bool = True

    def __call__(self, lowering: Lowering, node: exp.Expr, condition: Expr | None) -> AggregateCall:
        """The call that a node writes."""
        is_distinct, nodes = self._nodes(lowering, node)
        argument, *others = map(lowering.value, nodes)
        for each in (argument, *others) if self.numbers else ():
            if not each.type.is_number:
                raise UndefinedFunction(
                    f"function {self.name}({each.type.value}) does not exist",
                    hint=f"{self.name.upper()} needs numbers.",
                    position=lowering.at(node),
                    queries=_counts(node, nodes[0]),
                )
        other = others[0] if others else None
        return AggregateCall(self.name, argument, is_distinct, condition, self.type_of(argument.type), other=other)

    def _nodes(self, lowering: Lowering, node: exp.Expr) -> tuple[bool, list[exp.Expr]]:
        is_distinct, nodes = arguments_of(lowering, node, self.name, self.arguments)
        if is_distinct and not self.distinct:
            raise UnsupportedQuery(
                f"{self.name.upper()}(DISTINCT …) is not supported",
                hint="DISTINCT is supported in COUNT, SUM and AVG.",
                position=lowering.at(node),
                queries=_without_distinct(node),
            )
        return is_distinct, nodes


def arguments_of(lowering: Lowering, node: exp.Expr, name: str, count: int = 1) -> tuple[bool, list[exp.Expr]]:
    """Whether DISTINCT stands before the arguments of a call, and the arguments.

    Raises:
        UnsupportedQuery: There is another number of arguments.
    """
    is_unknown = isinstance(node, exp.Anonymous)  # to the parser: `this` is the name of the function
    lowering.only(node, "this", "expressions" if is_unknown else "expression" if count > 1 else "big_int")
    given = node.expressions if is_unknown else [node.this, node.args.get("expression")]
    given = [part for part in given if part is not None]
    is_distinct = any(isinstance(part, exp.Distinct) for part in given)
    nodes = [each for part in given for each in (part.expressions if isinstance(part, exp.Distinct) else [part])]
    if len(nodes) != count:
        wanted = "two arguments" if count > 1 else "one argument"
        raise UnsupportedQuery(f"{name.upper()} takes {wanted}", position=lowering.at(node))
    return is_distinct, nodes


def _counts(node: exp.Expr, argument: exp.Expr) -> tuple[str, ...]:
    """The query with a count in the place of an aggregate of numbers."""
    written = print_sql(argument)
    return replaced(node, f"COUNT(*) FILTER (WHERE {written})", f"COUNT(DISTINCT {written})", f"COUNT({written})")


def _without_distinct(node: exp.Expr) -> tuple[str, ...]:
    """The query without DISTINCT before the arguments of an aggregate."""
    return tuple(
        query
        for distinct in node.find_all(exp.Distinct)
        for query in replaced(distinct, ", ".join(print_sql(each) for each in distinct.expressions))
    )


def always(sql_type: SqlType) -> TypeOf:
    """A value of one type, whatever the argument's."""
    return lambda _: sql_type
