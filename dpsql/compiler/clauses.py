"""clauses: what the clauses of every query need: expressions, ordinals, limits, and where the text stands."""

from dataclasses import dataclass

from sqlglot import exp

from dpsql.compiler.catalog import Catalog
from dpsql.compiler.coerce import Coercion
from dpsql.compiler.expressions import lowering
from dpsql.compiler.ir import Cast, Field, Literal, Relation, Status
from dpsql.compiler.lowering import Constants, Fields, Lowering, refuse_other_arguments
from dpsql.compiler.position import position
from dpsql.compiler.resolve import Scope, Source
from dpsql.errors import InvalidParameter, InvalidSyntax, UnsupportedQuery
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class Lowered:
    """A relation with its privacy status and the names that stand over its columns.

    Attributes:
        status: The relation.
        columns: Names and fields, in order; a name may repeat.
        hidden: The unit's field where the policy does not list it as a column.
    """

    status: Status
    columns: tuple[tuple[str, Field], ...]
    hidden: Field | None = None

    def source(self, alias: str) -> Source:
        """The relation as an entry of FROM: what is hidden stays so."""
        shown = tuple((name, field) for name, field in self.columns if field != self.hidden)
        return Source(alias, shown, tuple((name, field) for name, field in self.columns if field == self.hidden))

    @property
    def relation(self) -> Relation:
        """The rows."""
        return self.status.relation


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
    """

    catalog: Catalog
    coercion: Coercion
    constants: Constants
    fields: Fields
    offset: int
    sql: str

    def at(self, node: exp.Expr) -> int | None:
        """The position of a node in the analyst's text."""
        return position(node, self.offset)

    def expressions(self, sources: tuple[Source, ...], clause: str) -> Lowering:
        """A lowerer of expressions over these sources."""
        return lowering(Scope(sources, self.offset), self.coercion, self.constants, clause)

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
            raise UnsupportedQuery("PERCENT and WITH TIES are not supported", position=self.at(limit))
        refuse_other_arguments(limit, "expression", "count", "direction", "limit_options", offset=self.offset)

    def _row_count(self, node: exp.Expr, clause: str) -> int | None:
        lowered = self.coercion.to(self.expressions((), f"in {clause}").lower(node), SqlType.BIGINT, self.at(node))
        constant = lowered.argument if isinstance(lowered, Cast) else lowered
        if not isinstance(constant, Literal):
            raise UnsupportedQuery(f"{clause} takes a constant", position=self.at(node))
        value = constant.value
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise InvalidParameter(f"{clause} must not be negative", position=self.at(node))
        return value
