"""clauses: what the clauses of every query need: expressions, ordinals, limits, and where the text stands."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.compiler.expressions import arithmetic, calls, casts, datetimes, formats, logic, patterns, texts
from dpsql.compiler.ir.nodes import Cast, Expr, Literal, Protected, Status
from dpsql.compiler.relations import aggregate_calls, subqueries
from dpsql.compiler.scope import names
from dpsql.compiler.scope.catalog import Catalog
from dpsql.compiler.scope.coercion import Coercion
from dpsql.compiler.scope.lowering import Constants, Fields, Lowering, Method, Subquery, refuse_other_arguments
from dpsql.compiler.scope.resolve import FromItem, Scope
from dpsql.compiler.sql.constant_folding import converted
from dpsql.compiler.sql.position import position
from dpsql.errors import InvalidParameter, InvalidSyntax, UnsupportedQuery
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class Clauses:
    """Lowers the small clauses of one statement.

    Attributes:
        catalog: What may be named.
        coercion: Implicit conversions, and the placeholders they give types to.
        constants: What now(), CURRENT_USER and the like mean.
        fields: The source of fields.
        offset: Where the statement starts in the text that was sent.
        sql: The statement's own text.
        subquery: Lowers a query inside an expression.
    """

    catalog: Catalog
    coercion: Coercion
    constants: Constants
    fields: Fields
    offset: int
    sql: str
    subquery: Subquery

    def at(self, node: exp.Expr) -> int | None:
        """The position of a node in the analyst's text."""
        return position(node, self.offset)

    def scope(self, sources: tuple[FromItem, ...], outer: Scope | None, status: Status | None = None) -> Scope:
        """The scope of expressions over these sources, whose rows have this status."""
        return Scope(sources, self.offset, outer, status if isinstance(status, Protected) else None)

    def expressions(self, scope: Scope, clause: str) -> Lowering:
        """A lowerer of expressions in a scope."""
        return lowering(scope, self.coercion, self.constants, self.fields, self.subquery, clause)

    def ordinal(self, node: exp.Expr, width: int) -> int | None:
        """The 0-based output column that a bare number in GROUP BY or ORDER BY means."""
        if not isinstance(node, exp.Literal):
            return None
        if node.is_string:
            raise InvalidSyntax(
                "a constant in ORDER BY or GROUP BY must be the position of a column", position=self.at(node)
            )
        text = str(node.this).lstrip("0")
        if not text.isdecimal() or len(text) > 9 or int(text) > width:
            raise InvalidSyntax(f"position {str(node.this)[:20]} is not in select list", position=self.at(node))
        return int(text) - 1

    def limits(self, node: exp.Expr) -> tuple[int | None, int]:
        """LIMIT (or FETCH FIRST) and OFFSET."""
        limit = node.args.get("limit")
        offset = node.args.get("offset")
        rows = None
        if isinstance(limit, exp.Fetch):
            self._plain_limit(limit)
            rows = self._row_count(limit.args.get("count") or exp.Literal.number(1), "FETCH")
        elif limit is not None:
            self._plain_limit(limit)
            if not (isinstance(limit.expression, exp.Var) and str(limit.expression.this).upper() == "ALL"):
                rows = self._row_count(limit.expression, "LIMIT")
        skipped = self._row_count(offset.expression, "OFFSET") if offset is not None else 0
        return rows, skipped or 0

    def _plain_limit(self, limit: exp.Expr) -> None:
        options = limit.args.get("limit_options")
        if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
            raise UnsupportedQuery("LIMIT with PERCENT or WITH TIES is not supported", position=self.at(limit))
        refuse_other_arguments(limit, "expression", "count", "direction", "limit_options", offset=self.offset)

    def _row_count(self, node: exp.Expr, clause: str) -> int | None:
        lowered = self.coercion.to(
            self.expressions(Scope(()), f"in {clause}").lower(node), SqlType.BIGINT, self.at(node)
        )
        constant = _constant(lowered)
        if isinstance(constant, Cast) and isinstance(constant.argument, Literal):
            raise InvalidParameter(f"{clause} must be an integer", position=self.at(node))
        if not isinstance(constant, Literal):
            raise UnsupportedQuery(f"{clause} must be a constant", position=self.at(node))
        value = constant.value
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise InvalidParameter(f"{clause} must not be negative", position=self.at(node))
        return value


def _constant(expression: Expr) -> Expr:
    """A constant through the conversions around it, as drivers write LIMIT $1::INTEGER; one that is NULL stays so."""
    if not isinstance(expression, Cast):
        return expression
    inner = _constant(expression.argument)
    is_null = isinstance(inner, Literal) and inner.value is None
    return inner if is_null else converted(replace(expression, argument=inner))


CALLED: Mapping[str, calls.Called] = (
    logic.CALLED | arithmetic.CALLED | texts.CALLED | patterns.CALLED | formats.CALLED | datetimes.CALLED
)
METHODS: Mapping[type[exp.Expr], Method] = (
    names.METHODS
    | logic.METHODS
    | arithmetic.METHODS
    | texts.METHODS
    | patterns.METHODS
    | datetimes.METHODS
    | casts.METHODS
    | aggregate_calls.METHODS
    | subqueries.METHODS
    | {exp.Anonymous: calls.method(CALLED, datetimes.BY_NAME | aggregate_calls.BY_NAME)}
)


def lowering(
    scope: Scope, coercion: Coercion, constants: Constants, fields: Fields, subquery: Subquery, clause: str
) -> Lowering:
    """A lowering for the expressions of one clause; aggregates and windows must be allowed by `replace`."""
    return Lowering(scope, coercion, constants, fields, subquery, METHODS, clause=clause)
