"""unit_rows: what stays protected: rows of units, filtered, projected, and aggregated or numbered unit by unit.

Rule 1: everything here is a function of the multiset of one unit's rows.
Rule 2: sums are exact, and what the analyst's order leaves open is decided by values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.compiler.aggregates.registry import FUNCTIONS
from dpsql.compiler.expressions.null_rejection import becomes_null
from dpsql.compiler.ir.functions import COLLECTED
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Column,
    Expr,
    Field,
    Filter,
    Link,
    Literal,
    Order,
    Project,
    Protected,
    UnitWindows,
    Window,
)
from dpsql.compiler.ir.walk import fields_in, rewrite_expression, windows_in
from dpsql.compiler.relations.clauses import Clauses, Item
from dpsql.compiler.relations.empty_results import has_no_rows, no_rows_of
from dpsql.compiler.relations.joins import plain_column, refuse_unlisted, shows_absence
from dpsql.compiler.scope.lowering import Lowered
from dpsql.compiler.scope.resolve import Scope
from dpsql.compiler.sql.rewriting import (
    asked_of_each,
    averaged,
    counted,
    distinct_counted,
    grouped,
    partitioned,
    quantiles,
    rounded_keys,
    unordered,
)
from dpsql.compiler.values.grids import can_be_key, grid_of
from dpsql.errors import DatatypeMismatch, PolicyViolation, UnsupportedQuery
from dpsql.sqltypes import SqlType

_INSTEAD_OF_ALL = "BOOL_OR tells what occurs there, COUNT how often, and MIN and MAX the first and the last value."
"""What to use for all values of a unit, which could be of any size."""


@dataclass(frozen=True)
class UnitRows:
    """Lowers the part of a SELECT after WHERE whose rows stay protected.

    Attributes:
        clauses: The statement's clauses.
        scope: What names mean.
        node: The SELECT.
    """

    clauses: Clauses
    scope: Scope
    node: exp.Select

    # Groups within one unit

    def grouped(
        self, status: Protected, keys: tuple[Expr, ...], calls: dict[AggregateCall, Field]
    ) -> tuple[Protected, tuple[Field, ...]]:
        """One row a unit, or a unit and keys; for a subquery about one unit, one row or one a group.

        Returns:
            The rows, and the fields of the keys.
        """
        at = self.clauses.at(self.node)
        if status.absent is not None:
            raise shows_absence(at)
        for key in keys:
            self._check_key(status, key)
        named = len(keys)
        keys = _by_unit(status, keys)
        exact = tuple(self._exact_call(status, call) for call in calls)
        key_fields = tuple(self.clauses.fields.new(key.type) for key in keys)
        relation = Aggregate(status.relation, key_fields, keys, tuple(calls.values()), exact, status.rows_per_unit)
        renewed = {key.field: field for key, field in zip(keys, key_fields, strict=True) if isinstance(key, Column)}
        units = [field for key, field in zip(keys, key_fields, strict=True) if status.is_unit(key)]
        links = {
            replace(link, fields=tuple(renewed[field] for field in link.fields))
            for link in status.links
            if all(field in renewed for field in link.fields)
        }
        if status.linked is not None:
            links.add(Link((), (status.linked,)))
        unit = units[0] if units else status.linked
        if unit is None:
            raise TypeError("groups of one unit are by the unit, or of the unit around")
        grouped = replace(status, relation=relation, unit=unit, links=frozenset(links))
        if len(units) == len(keys):
            grouped = replace(grouped, rows_per_unit=1, groups_per_unit=1, rows_per_group=1, one_row=True)
        return grouped, key_fields[:named]

    @property
    def _unit(self) -> str:
        return self.clauses.catalog.policy.dataset.privacy_unit

    def _check_key(self, status: Protected, key: Expr) -> None:
        if plain_column(key) is None:
            refuse_unlisted(key, self.scope, self.clauses.at(self.node))
        if not _parts_rows(key, status):
            raise DatatypeMismatch(
                f"a value of type {key.type.value} cannot be a group key",
                hint="Group by a rounded value.",
                queries=rounded_keys(self.node),
                position=self.clauses.at(self.node),
            )

    def _exact_call(self, status: Protected, call: AggregateCall) -> AggregateCall:
        for part in call.operands:
            is_counted = part is call.argument and call.function == "count"
            is_key = status.is_unit_or_null(part) or plain_column(part) in self.scope.unlisted
            if not (is_counted and is_key):
                refuse_unlisted(part, self.scope, self.clauses.at(self.node))
        if not FUNCTIONS[call.function].of_one_unit:
            is_collected = call.function in COLLECTED
            raise UnsupportedQuery(
                f"{call.function.upper()} is not supported in groups of one {self._unit}",
                hint=_INSTEAD_OF_ALL if is_collected else "COUNT, SUM, AVG, MIN and MAX are supported there.",
                position=self.clauses.at(self.node),
                queries=asked_of_each(self.node) if is_collected else (),
            )
        if call.distinct and call.function in ("sum", "avg"):
            raise UnsupportedQuery(
                f"{call.function.upper()}(DISTINCT …) of protected rows is not supported",
                hint="Group by the unit and the value first, then aggregate again.",
                position=self.clauses.at(self.node),
            )
        if call.distinct and call.argument is not None and not _parts_rows(call.argument, status):
            raise DatatypeMismatch(
                f"values of type {call.argument.type.value} cannot be counted as distinct",
                position=self.clauses.at(self.node),
            )
        if call.function not in ("sum", "avg") or call.argument is None or call.argument.type.is_integer:
            return call
        return replace(call, grid=grid_of(call, status.relation, status.rows_per_unit))

    # Rows

    def rows(
        self,
        status: Protected,
        items: Sequence[Item],
        outputs: list[Expr],
        order: tuple[Order, ...],
        on: tuple[Expr, ...] | None,
    ) -> Lowered:
        """Project rows of units; their unit travels along."""
        for term in order:
            if plain_column(term.expression) is None:
                refuse_unlisted(term.expression, self.scope, self.clauses.at(self.node))
        status, found = self.with_windows(status, [*outputs, *(term.expression for term in order)])
        order = tuple(replace(term, expression=e) for term, e in zip(order, found[len(outputs) :], strict=True))
        outputs = found[: len(outputs)]
        if on is not None:
            status = self._first_of_each(status, on, order)
        elif self.node.args.get("limit") is not None or self.node.args.get("offset") is not None or order:
            status = self._limited(status, order)
        return self._projected(status, items, outputs)

    def with_windows(self, status: Protected, expressions: list[Expr]) -> tuple[Protected, list[Expr]]:
        """Window functions in a relation of their own, each over the rows of one unit, and expressions over that."""
        found = {w: self.clauses.fields.new(w.type) for e in expressions for w in windows_in(e)}
        if not found:
            return status, expressions
        if status.absent is not None:
            raise shows_absence(self.clauses.at(self.node))
        for window in found:
            if not parts_units(status, window.partition):
                key = self.clauses.catalog.unit_key
                raise UnsupportedQuery(
                    f"window functions over protected rows must have PARTITION BY {key}",
                    hint="Partition by it, aggregate first and use the window over the result, or ask for quantiles.",
                    position=self.clauses.at(self.node),
                    queries=(*quantiles(self.node), *partitioned(self.node, key)),
                )
            refuse_unlisted(window, self.scope, self.clauses.at(self.node))
        exact = tuple(self._exact_window(status, window) for window in found)
        relation = UnitWindows(status.relation, tuple(found.values()), exact, status.rows_per_unit)
        return replace(status, relation=relation), [_above(expression, found) for expression in expressions]

    def _exact_window(self, status: Protected, window: Window) -> Window:
        window = replace(window, partition=_by_unit(status, window.partition))
        if window.frame is not None and window.frame.is_near:
            raise UnsupportedQuery(
                "RANGE and GROUPS frames with offsets are not supported over protected rows",
                hint="Use ROWS, or join the rows with those that are near.",
                position=self.clauses.at(self.node),
            )
        if window.function == "last_value" and window.frame is None:
            raise UnsupportedQuery(
                "LAST_VALUE over protected rows needs a frame",
                hint="Add ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING.",
                position=self.clauses.at(self.node),
            )
        if window.function in FUNCTIONS and not FUNCTIONS[window.function].of_one_unit:
            raise UnsupportedQuery(
                f"{window.function.upper()} is not supported as a window function over protected rows",
                hint="COUNT, SUM, AVG, MIN, MAX, BOOL_AND and BOOL_OR are supported there.",
                position=self.clauses.at(self.node),
            )
        if window.function not in ("sum", "avg") or window.arguments[0].type.is_integer:
            return window
        call = AggregateCall(window.function, window.arguments[0], False, None, window.type)
        return replace(window, grid=grid_of(call, status.relation, status.rows_per_unit))

    def _first_of_each(self, status: Protected, on: tuple[Expr, ...], order: tuple[Order, ...]) -> Protected:
        """DISTINCT ON: the first row of each group within a unit."""
        if not parts_units(status, on):
            key = self.clauses.catalog.unit_key
            raise UnsupportedQuery(
                f"DISTINCT ON over protected rows must contain {key}",
                hint=f"Add {key} to DISTINCT ON and to ORDER BY.",
                position=self.clauses.at(self.node),
            )
        limit, offset = self.clauses.limits(self.node)
        if limit is not None or offset:
            raise self._unlimited()
        first = self._numbered(status, _by_unit(status, on), order, (1, 1))
        only_units = status.linked is None and all(status.is_unit(part) for part in on)
        if only_units:
            return replace(first, rows_per_unit=1, groups_per_unit=1, rows_per_group=1, one_row=True)
        return first

    def _limited(self, status: Protected, order: tuple[Order, ...]) -> Protected:
        """LIMIT in a subquery about one unit; over rows of all units there is none."""
        limit, offset = self.clauses.limits(self.node)
        if limit == 0 or has_no_rows(status.relation):
            return replace(status, relation=no_rows_of(status.relation))
        if status.linked is None and isinstance(status.relation, Aggregate):
            raise group_of_one(self.clauses, self.clauses.at(self.node), self.node)
        if status.linked is None:
            raise self._unlimited()
        if limit is None and offset == 0:
            return status
        last = offset + limit if limit is not None else 2**63 - 1
        numbered = self._numbered(status, (), order, (offset + 1, min(last, 2**63 - 1)))
        return replace(numbered, one_row=numbered.one_row or limit == 1)

    def _unlimited(self) -> UnsupportedQuery:
        clauses, node = self.clauses, self.node
        clause = next(name for name in ("limit", "offset", "order") if node.args.get(name) is not None)
        return UnsupportedQuery(
            f"{'ORDER BY' if clause == 'order' else clause.upper()} over rows of protected tables is not supported",
            hint="Aggregate first, then order and limit the result.",
            position=clauses.at(node.args[clause]) or clauses.at(node),
            queries=(*unordered(node), *grouped(node), *counted(node)),
        )

    def _numbered(
        self, status: Protected, partition: tuple[Expr, ...], order: tuple[Order, ...], places: tuple[int, int]
    ) -> Protected:
        """The rows at some places of the order."""
        if status.absent is not None:
            raise shows_absence(self.clauses.at(self.node))
        number = self.clauses.fields.new(SqlType.BIGINT)
        window = Window("row_number", (), partition, order, None, SqlType.BIGINT)
        numbered = UnitWindows(status.relation, (number,), (window,), status.rows_per_unit)
        low, high = (Literal(place, SqlType.BIGINT) for place in places)
        inside = Call("between", (Column(number), low, high), SqlType.BOOLEAN)
        return replace(status, relation=Filter(numbered, inside))

    def _projected(self, status: Protected, items: Sequence[Item], outputs: list[Expr]) -> Lowered:
        clauses, hidden = self.clauses, self.scope.unlisted
        unit = clauses.fields.new(status.unit.type)
        assigned: dict[Field, Expr] = {unit: Column(status.unit)}
        columns: list[tuple[str, Field]] = []
        unlisted: set[Field] = set()
        renewed: dict[Field, list[Field]] = {status.unit: [unit]}
        for item, expression in zip(items, outputs, strict=True):
            field = clauses.fields.new(expression.type)
            if isinstance(expression, Column):
                renewed.setdefault(expression.field, []).append(field)
            if isinstance(expression, Column) and expression.field in hidden:
                unlisted.add(field)
            else:
                refuse_unlisted(expression, self.scope, clauses.at(item.node))
            assigned[field] = expression
            columns.append((item.name, field))
        omitted: list[tuple[str, Field]] = []
        for name, key in self._omitted_by_stars():
            field = clauses.fields.new(key.type)
            renewed.setdefault(key, []).append(field)
            assigned[field] = Column(key)
            omitted.append((name, field))
        relation = Project(status.relation, tuple(assigned), tuple(assigned.values()))
        projected = replace(
            status,
            relation=relation,
            unit=unit,
            links=_carried_links(status, renewed),
            absent=self._absent(status, assigned, items),
        )
        unlisted |= {field for _, field in omitted}
        return Lowered(projected, tuple(columns), tuple(omitted), frozenset(unlisted))

    def _omitted_by_stars(self) -> tuple[tuple[str, Field], ...]:
        """The keys that the stars of the SELECT list omit, and hand on."""
        stars = (node for node in self.node.expressions if node.is_star and not isinstance(node, exp.Func))
        return tuple(dict.fromkeys(pair for star in stars for pair in self.scope.omitted_by_star(star)))

    def _absent(self, status: Protected, assigned: dict[Field, Expr], items: Sequence[Item]) -> frozenset[Field] | None:
        """The fields that stay NULL in rows without a unit; what would get a value there is refused."""
        if status.absent is None:
            return None
        gone = {field for field, expression in assigned.items() if becomes_null(expression, status.absent)}
        for expression in assigned.values():
            if fields_in(expression) & status.absent and not becomes_null(expression, status.absent):
                raise shows_absence(self.clauses.at(items[0].node))
        return frozenset(gone)


def parts_units(status: Protected, keys: tuple[Expr, ...]) -> bool:
    """True where rows that agree on the keys are of one unit."""
    return status.linked is not None or status.leads_to_unit(keys)


def _by_unit(status: Protected, keys: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The keys, and the unit where it is not among them; each key keeps its type."""
    if status.linked is not None or any(map(status.is_unit, keys)):
        return keys
    return (*keys, Column(status.unit))


def _parts_rows(expression: Expr, status: Protected) -> bool:
    """True where rows of one unit are grouped by an expression: by any number, for no other unit meets it."""
    return expression.type.is_number or can_be_key(expression, status.relation)


def group_of_one(clauses: Clauses, at: int | None, node: exp.Expr) -> PolicyViolation:
    """The error for selecting groups that each belong to one unit."""
    unit = clauses.catalog.policy.dataset.privacy_unit
    return PolicyViolation(
        f"groups of one {unit} cannot be selected",
        detail=f"Each row here belongs to one {unit}.",
        hint="Aggregate over these groups.",
        position=at,
        queries=averaged(node) or distinct_counted(node) if isinstance(node, exp.Select) else (),
    )


def _above(expression: Expr, found: dict[Window, Field]) -> Expr:
    """An expression over the relation that holds its windows."""
    return rewrite_expression(
        expression, lambda part: Column(found[part]) if isinstance(part, Window) and part in found else None
    )


def _carried_links(status: Protected, renewed: dict[Field, list[Field]]) -> frozenset[Link]:
    """The ways to the unit whose fields are all handed on; a field may be handed on twice."""
    links: set[Link] = set()
    for link in status.links:
        if link.fields == (status.linked,):
            links.add(link)
        if all(field in renewed for field in link.fields):
            links.add(replace(link, fields=tuple(renewed[field][0] for field in link.fields)))
        again = renewed.get(link.fields[0], ()) if len(link.fields) == 1 else ()
        links |= {replace(link, fields=(field,)) for field in again}
    return frozenset(links)
