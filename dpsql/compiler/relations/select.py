"""select: the part of a SELECT after WHERE: its list, GROUP BY, HAVING, DISTINCT, ORDER BY and LIMIT.

Rule: an aggregation of protected rows becomes a Release, unless its groups are of one unit each; rows that are only
filtered and projected stay protected.
"""

from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.compiler.aggregates.registry import FUNCTIONS
from dpsql.compiler.expressions.null_rejection import becomes_null, is_not_true
from dpsql.compiler.ir.conditions import all_of, conjuncts, is_null, negated
from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Column,
    Distinct,
    Expr,
    Field,
    Filter,
    Literal,
    Order,
    Project,
    Protected,
    Relation,
    Released,
    Scalar,
    SetOperation,
    Sort,
    Status,
    Window,
)
from dpsql.compiler.ir.walk import fields_in, free_fields, rewrite_expression, windows_in
from dpsql.compiler.relations.clauses import Clauses, GroupBy, Grouping, Item
from dpsql.compiler.relations.group_releases import Ordered, released_groups
from dpsql.compiler.relations.joins import plain_column, refuse_unlisted, shows_absence
from dpsql.compiler.relations.unit_rows import UnitRows, group_of_one, parts_units
from dpsql.compiler.scope.lowering import Aggregates, Lowered, Lowering, moved, refuse_other_arguments
from dpsql.compiler.scope.resolve import Scope, identifier
from dpsql.compiler.sql.rewriting import counted, in_where, replaced, rounded_keys, with_group_key
from dpsql.compiler.values.dependencies import Dependencies
from dpsql.compiler.values.grids import can_be_key
from dpsql.errors import (
    AmbiguousColumn,
    DatatypeMismatch,
    GroupingError,
    InvalidSyntax,
    PolicyViolation,
    UnsupportedQuery,
)
from dpsql.sqltypes import SqlType


@dataclass(frozen=True)
class _Above:
    """The clauses that are computed over groups: outputs, HAVING, ORDER BY and DISTINCT ON."""

    outputs: tuple[Expr, ...]
    condition: Expr | None
    order: tuple[Order, ...]
    on: tuple[Expr, ...] | None

    def expressions(self) -> tuple[Expr, ...]:
        """All of them."""
        having = (self.condition,) if self.condition is not None else ()
        return (*self.outputs, *having, *(term.expression for term in self.order), *(self.on or ()))


@dataclass
class SelectOutput:
    """The part of a SELECT after WHERE: rows or groups."""

    clauses: Clauses
    node: exp.Select
    scope: Scope
    status: Status
    items: tuple[Item, ...]

    def lower(self) -> Lowered:
        """Project rows, or aggregate groups."""
        clauses, node = self.clauses, self.node
        aggregates = Aggregates(clauses.fields)
        selected = clauses.expressions(self.scope, "in the SELECT list")
        named = {identifier(window.this): window for window in node.args.get("windows") or ()}
        lowerer = replace(selected, aggregates=aggregates, windows=True, named=named)
        outputs = [Column(i.field) if i.field is not None else lowerer.value(i.node) for i in self.items]
        having = node.args.get("having")
        condition = lowerer.condition(having.this) if having is not None else None
        order = self._order(lowerer, outputs)
        distinct, on = self._distinct(lowerer, outputs)
        above = _Above(tuple(outputs), condition, order, on)
        if node.args.get("group") is not None:
            above = self._aggregate(
                GroupBy(clauses, self.scope, self.items, above.outputs).read(node), aggregates, above
            )
        elif aggregates.calls or condition is not None or any(map(_marks, above.expressions())):
            above = self._aggregate(Grouping((), ((),)), aggregates, above)
        elif isinstance(self.status, Protected) and distinct:
            above = self._over_windows(self.status, above)
            keys = tuple(dict.fromkeys(above.outputs))
            above, distinct = self._aggregate(Grouping(keys, (keys,)), aggregates, above), False
        if not isinstance(self.status, Protected):
            return self._finish(list(above.outputs), above.order, above.on, distinct=distinct)
        above = self._with_group_values(self.status, above)
        rows = UnitRows(clauses, self.scope, node)
        if distinct:
            raise UnsupportedQuery(
                f"DISTINCT is not supported in groups of one {clauses.catalog.policy.dataset.privacy_unit}",
                hint="Add the columns to GROUP BY.",
                position=clauses.at(node),
            )
        return rows.rows(self.status, self.items, list(above.outputs), above.order, above.on)

    def _over_windows(self, status: Protected, above: _Above) -> _Above:
        """The rows with their window functions, which DISTINCT compares."""
        above = self._with_group_values(status, above)
        expressions = [*above.outputs, *(term.expression for term in above.order)]
        self.status, found = UnitRows(self.clauses, self.scope, self.node).with_windows(status, expressions)
        pairs = zip(above.order, found[len(above.outputs) :], strict=True)
        order = tuple(replace(term, expression=expression) for term, expression in pairs)
        return replace(above, outputs=tuple(found[: len(above.outputs)]), order=order)

    def _distinct(self, lowerer: Lowering, outputs: list[Expr]) -> tuple[bool, tuple[Expr, ...] | None]:
        """Return whether the query is SELECT DISTINCT, and the expressions of DISTINCT ON (…), if any."""
        distinct = self.node.args.get("distinct")
        if distinct is None:
            return False, None
        refuse_other_arguments(distinct, "on", offset=self.clauses.offset)
        on = distinct.args.get("on")
        if on is None:
            return True, None
        lowerer = replace(lowerer, windows=False, clause="in DISTINCT ON")
        nodes = on.expressions if isinstance(on, exp.Tuple) else [on.this if isinstance(on, exp.Paren) else on]
        return False, tuple(self._meant(lowerer, node, outputs) for node in nodes)

    def _meant(self, lowerer: Lowering, node: exp.Expr, outputs: list[Expr]) -> Expr:
        """An expression of ORDER BY or DISTINCT ON: a place, an output's name, or an expression over columns."""
        index = self.clauses.ordinal(node, len(self.items), lowerer.clause.removeprefix("in "))
        if index is None and isinstance(node, exp.Column) and node.args.get("table") is None:
            name = identifier(node.this)
            named = [i for i, item in enumerate(self.items) if item.name == name]
            if len({outputs[i] for i in named}) > 1:
                raise AmbiguousColumn(
                    f'"{name}" is ambiguous {lowerer.clause}',
                    hint="Use the position of the column.",
                    position=self.clauses.at(node),
                    queries=replaced(node, str(named[0] + 1)),
                )
            index = named[0] if named else None
        return lowerer.value(node) if index is None else outputs[index]

    def _order(self, lowerer: Lowering, outputs: list[Expr]) -> tuple[Order, ...]:
        order = self.node.args.get("order")
        if order is None:
            return ()
        refuse_other_arguments(order, "expressions", offset=self.clauses.offset)
        lowerer = replace(lowerer, clause="in ORDER BY")
        terms = []
        for term in order.expressions:
            lowerer.only(term, "this", "desc", "nulls_first")
            meant = self._meant(lowerer, term.this, outputs)
            terms.append(Order(meant, bool(term.args.get("desc")), bool(term.args.get("nulls_first"))))
        return tuple(terms)

    # Groups

    def _aggregate(self, grouping: Grouping, aggregates: Aggregates, above: _Above) -> _Above:
        """Group the rows, and return the clauses rewritten over the groups."""
        own = frozenset(self.status.relation.fields)
        grouping = self._with_determined(grouping, above)
        marks = {call: self.clauses.fields.new(SqlType.INTEGER) for e in above.expressions() for call in _marks(e)}
        if not all(argument in grouping.keys for call in marks for argument in call.arguments):
            raise GroupingError(
                "arguments to GROUPING must be grouping expressions", position=self.clauses.at(self.node)
            )
        by_key = self._groups(grouping, aggregates.calls, marks)
        changed = by_key | {call: Column(field) for call, field in marks.items()}

        def regroup(expression: Expr, node: exp.Expr) -> Expr:
            regrouped = rewrite_expression(expression, changed.get)
            if fields_in(regrouped) & own:
                columns = list(node.find_all(exp.Column))
                named = columns[0] if len(columns) == 1 else None
                what = f'column "{named.name}"' if named is not None else "a column"
                in_having = isinstance(node, exp.Having)
                raise GroupingError(
                    f"{what} must appear in the GROUP BY clause or be used in an aggregate function",
                    hint="WHERE has the conditions on rows." if in_having else "Add it to GROUP BY, or aggregate it.",
                    position=self.clauses.at(named or node),
                    queries=in_where(self.node) if in_having else with_group_key(node),
                )
            return regrouped

        if above.condition is not None:
            grouped = regroup(above.condition, self.node.args["having"])
            self.status = replace(self.status, relation=Filter(self.status.relation, grouped))
        node = self.node.args.get("order") or self.node
        return _Above(
            tuple(regroup(e, item.node) for e, item in zip(above.outputs, self.items, strict=True)),
            None,
            tuple(replace(term, expression=regroup(term.expression, node)) for term in above.order),
            tuple(regroup(e, self.node) for e in above.on) if above.on is not None else None,
        )

    def _with_determined(self, grouping: Grouping, above: _Above) -> Grouping:
        """The grouping with the columns in use that its keys determine: as keys, they part no group."""
        keys: dict[Expr, Expr] = {key: Literal(None, key.type) for key in grouping.keys}
        used = frozenset(field for e in above.expressions() for field in fields_in(rewrite_expression(e, keys.get)))
        used &= frozenset(self.status.relation.fields)
        if not used or not all(grouping.sets):
            return grouping
        dependencies = Dependencies(self.clauses.catalog.schema)
        for chosen in grouping.sets:
            by = frozenset(key.field for key in chosen if isinstance(key, Column))
            used &= dependencies.fixed(self.status.relation, by)
        more = tuple(map(Column, sorted(used, key=lambda field: field.number)))
        return Grouping((*grouping.keys, *more), tuple((*chosen, *more) for chosen in grouping.sets))

    def _groups(
        self, grouping: Grouping, calls: dict[AggregateCall, Field], marks: dict[Call, Field]
    ) -> dict[Expr, Expr]:
        """Aggregate; give the field that each key has become."""
        status = self.status
        if isinstance(status, Protected) and self._is_per_unit(status, grouping):
            if len(grouping.sets) > 1:
                raise UnsupportedQuery(
                    f"groups of one {self.clauses.catalog.policy.dataset.privacy_unit} must have one grouping set",
                    hint="Use GROUP BY without ROLLUP, CUBE or GROUPING SETS.",
                    position=self.clauses.at(self.node),
                )
            self.status, key_fields = UnitRows(self.clauses, self.scope, self.node).grouped(
                status, grouping.keys, calls
            )
        elif len(grouping.sets) == 1:
            self.status, key_fields = self._group(status, grouping.keys, calls)
        else:
            key_fields = self._union_of_sets(grouping, calls, marks)
        if marks and len(grouping.sets) == 1:
            relation = self.status.relation
            assigned: dict[Field, Expr] = {field: Column(field) for field in relation.fields}
            assigned |= dict.fromkeys(marks.values(), Literal(0, SqlType.INTEGER))
            self.status = replace(self.status, relation=Project(relation, tuple(assigned), tuple(assigned.values())))
        return dict(zip(grouping.keys, map(Column, key_fields), strict=True))

    @staticmethod
    def _is_per_unit(status: Protected, grouping: Grouping) -> bool:
        return status.linked is not None or any(status.leads_to_unit(keys) for keys in grouping.sets)

    def _group(
        self, status: Status, keys: tuple[Expr, ...], calls: dict[AggregateCall, Field]
    ) -> tuple[Status, tuple[Field, ...]]:
        """One grouping: a release where rows are protected."""
        key_fields = tuple(self.clauses.fields.new(key.type) for key in keys)
        aggregate = Aggregate(status.relation, key_fields, keys, tuple(calls.values()), tuple(calls))
        if not isinstance(status, Protected):
            at = self.clauses.at(self.node)
            for part in (*keys, *(p for c in calls for p in c.operands)):
                refuse_unlisted(part, self.scope, at)
            for call in calls:
                if not FUNCTIONS[call.function].of_public_rows:
                    raise UnsupportedQuery(
                        f"{call.function.upper()} is only supported for protected rows",
                        hint="These rows are public or released: use GROUP BY and COUNT.",
                        position=at,
                    )
            return replace(status, relation=aggregate), key_fields
        if free_fields(aggregate):
            return self._group_of_outer_row(status, keys, calls)
        self._check_protected(status, keys, tuple(calls))
        return Released(released_groups(status, aggregate, calls, self.clauses.fields)), key_fields

    def _group_of_outer_row(
        self, status: Protected, keys: tuple[Expr, ...], calls: dict[AggregateCall, Field]
    ) -> tuple[Status, tuple[Field, ...]]:
        """Groups of the rows that WHERE equates with the row around, whose unit is another one.

        `(SELECT AVG(w.cost) FROM visits w WHERE w.icd = v.icd)` is a release by icd, in which each row finds its group.
        """
        rows, new = status.relation, self.clauses.fields.new
        terms = conjuncts(rows.condition) if isinstance(rows, Filter) else ()
        equations = {term: sides for term in terms if (sides := _inner_and_outer(term, rows)) is not None}
        if not isinstance(rows, Filter) or not equations:
            raise self._refers_outside()
        compared = tuple(dict.fromkeys(inner for inner, _ in equations.values()))
        by = {key: new(key.type) for key in (*keys, *compared)}
        # NULL equals nothing: its group would fill one of a unit's groups, and no row would find it.
        present = (negated(is_null(key)) for key in compared)
        own = Filter(rows.input, all_of(*(term for term in terms if term not in equations), *present))
        found = {call: new(field.type) for call, field in calls.items()}
        aggregate = Aggregate(own, tuple(by.values()), tuple(by), tuple(found.values()), tuple(found))
        if free_fields(aggregate):
            raise self._refers_outside()
        status = replace(status, relation=own)
        self._check_protected(status, tuple(by), tuple(calls))
        groups = released_groups(status, aggregate, found, self.clauses.fields)
        same = (Call("eq", (Column(by[inner]), outer), SqlType.BOOLEAN) for inner, outer in equations.values())
        relation: Relation = Filter(groups, all_of(*same))
        if not keys:
            relation = self._only_group(relation, found)
        named = {field: Column(found[call]) for call, field in calls.items()}
        shown = {by[key]: Column(by[key]) for key in keys}
        fields, expressions = zip(*(shown | named).items(), strict=True)
        return Released(Project(relation, fields, expressions)), tuple(by[key] for key in keys)

    def _only_group(self, group: Relation, found: dict[AggregateCall, Field]) -> Relation:
        """One row of the aggregates of a group, also where it is not there: counts and sums are 0 then, others NULL."""
        if any(call.type.is_array for call in found):
            raise self._refers_outside()
        picked = {field: self.clauses.fields.new(field.type) for field in found.values()}
        picks = tuple(
            AggregateCall(_PICKS.get(field.type, "min"), Column(field), False, None, field.type) for field in picked
        )
        one = Aggregate(group, (), (), tuple(picked.values()), picks)
        return Project(one, tuple(picked), tuple(_of_none_too(c, Column(picked[f])) for c, f in found.items()))

    def _with_group_values(self, status: Protected, above: _Above) -> _Above:
        """The clauses with a lookup for each aggregate over windows that are whole groups of all units' rows.

        `AVG(cost) OVER (PARTITION BY icd)` is a release by icd, in which each row finds its group.
        """
        calls: dict[tuple[Expr, ...], dict[Window, AggregateCall]] = {}
        for window in (window for expression in above.expressions() for window in windows_in(expression)):
            call = _aggregate_of(window)
            if call is not None and not parts_units(status, window.partition):
                calls.setdefault(window.partition, {})[window] = call
        if not calls or status.absent is not None or free_fields(status.relation):
            return above
        found: dict[Expr, Expr] = {}
        for keys, same in calls.items():
            found |= self._looked_up(status, keys, same)

        def changed(expression: Expr) -> Expr:
            return rewrite_expression(expression, found.get)

        return _Above(
            tuple(map(changed, above.outputs)),
            None,
            tuple(replace(term, expression=changed(term.expression)) for term in above.order),
            tuple(map(changed, above.on)) if above.on is not None else None,
        )

    def _looked_up(
        self, status: Protected, keys: tuple[Expr, ...], calls: dict[Window, AggregateCall]
    ) -> dict[Expr, Expr]:
        """The values of windows in the group that a row is in, among the groups of the same rows by some keys."""
        self._check_protected(status, keys, tuple(calls.values()))
        new = self.clauses.fields.new
        renewed = {field: new(field.type) for field in status.relation.fields}
        columns: dict[Expr, Expr] = {Column(field): Column(again) for field, again in renewed.items()}

        def again(expression: Expr | None) -> Expr | None:
            return rewrite_expression(expression, columns.get) if expression is not None else None

        rows = Project(status.relation, tuple(renewed.values()), tuple(columns))
        by = tuple(rewrite_expression(key, columns.get) for key in keys)
        key_fields = tuple(new(key.type) for key in by)
        values = {
            window: replace(call, argument=again(call.argument), other=again(call.other))
            for window, call in calls.items()
        }
        fields = {call: new(call.type) for call in values.values()}
        aggregate = Aggregate(rows, key_fields, by, tuple(fields.values()), tuple(fields))
        groups = released_groups(moved(status, rows, renewed), aggregate, fields, self.clauses.fields)
        pairs = zip(map(Column, key_fields), keys, strict=True)
        same = (negated(Call("distinct_from", pair, SqlType.BOOLEAN)) for pair in pairs)
        group = self._only_group(Filter(groups, all_of(*same)) if keys else groups, fields)
        return {
            window: Scalar(Project(group, (new(call.type),), (Column(fields[call]),)), call.type)
            for window, call in values.items()
        }

    def _refers_outside(self) -> UnsupportedQuery:
        return UnsupportedQuery(
            "an aggregate of protected rows can refer to a row outside its subquery by equations in WHERE only",
            hint="Group by the compared column in a CTE, and join the result.",
            position=self.clauses.at(self.node),
        )

    def _union_of_sets(
        self, grouping: Grouping, calls: dict[AggregateCall, Field], marks: dict[Call, Field]
    ) -> tuple[Field, ...]:
        """Group by each grouping set alone and return the fields of the UNION ALL of all sets."""
        status, new = self.status, self.clauses.fields.new
        whole: Status | None = None
        for number, chosen in enumerate(grouping.sets):
            last = number == len(grouping.sets) - 1
            fresh = {call: new(field.type) for call, field in calls.items()}
            arm, key_fields = self._group(status, chosen, fresh)
            by_key = dict(zip(chosen, key_fields, strict=True))
            written: list[Expr] = [
                Column(by_key[key]) if key in by_key else Literal(None, key.type) for key in grouping.keys
            ]
            written += [Column(field) for field in fresh.values()]
            written += [Literal(grouping.mask(call, chosen), SqlType.INTEGER) for call in marks]
            part: Relation = Project(arm.relation, tuple(new(e.type) for e in written), tuple(written))
            if whole is None:
                whole = replace(arm, relation=part)
                continue
            fields = tuple(new(e.type) for e in written)
            if last:
                fields = (*fields[: len(grouping.keys)], *calls.values(), *marks.values())
            whole = replace(whole, relation=SetOperation("union", True, whole.relation, part, fields))
        if whole is None:
            raise TypeError("there is a grouping set")
        self.status = whole
        return whole.relation.fields[: len(grouping.keys)]

    def _check_protected(self, status: Protected, keys: tuple[Expr, ...], calls: tuple[AggregateCall, ...]) -> None:
        whole = self.clauses.at(self.node)  # found once: it takes a walk over all of the text
        group = self.node.args.get("group")
        at = whole if group is None else self.clauses.at(group)
        arguments = [part for call in calls for part in call.operands]
        if any(windows_in(part) for part in (*keys, *arguments)):
            raise TypeError("windows are computed below, unit by unit")
        if not keys and not calls:
            raise UnsupportedQuery(
                "HAVING over protected rows needs an aggregate or GROUP BY",
                hint="Aggregate the rows.",
                position=at,
                queries=counted(self.node),
            )
        for key in keys:
            if status.is_unit_or_null(key):
                raise group_of_one(self.clauses, at, self.node)
            refuse_unlisted(key, self.scope, at)
            if not can_be_key(key, status.relation):
                raise PolicyViolation(
                    f"a value of type {key.type.value} cannot be a group key",
                    hint="Group by a rounded or truncated value.",
                    position=at,
                    queries=rounded_keys(self.node),
                )
        for call in calls:
            self._check_call(status, call, whole)

    def _check_call(self, status: Protected, call: AggregateCall, where: int | None) -> None:
        function, argument = FUNCTIONS[call.function], call.argument
        function.check(call, status, where)
        is_unit = argument is not None and call.function == "count" and status.is_unit_or_null(argument)
        is_key = call.function == "count" and self._is_hidden(argument)
        for part in call.operands[1:] if is_unit or is_key else call.operands:
            refuse_unlisted(part, self.scope, where)
        if status.absent is not None and not _counts_nobody(call, status.absent):
            raise shows_absence(where)
        if (
            call.distinct
            and not function.is_ranked
            and not is_unit
            and call.argument is not None
            and not can_be_key(call.argument, status.relation)
        ):
            raise DatatypeMismatch(
                f"values of type {call.argument.type.value} cannot be counted as distinct", position=where
            )

    def _is_hidden(self, argument: Expr | None) -> bool:
        return argument is not None and plain_column(argument) in self.scope.unlisted

    # Rows that are not protected

    def _windows_below(self, expressions: list[Expr]) -> list[Expr]:
        """Compute window functions in a projection of their own, so that any expression may hold their values."""
        found = {window: self.clauses.fields.new(window.type) for e in expressions for window in windows_in(e)}
        if not found:
            return expressions
        self._extend(found)

        def above(expression: Expr) -> Expr:
            return rewrite_expression(
                expression, lambda part: Column(found[part]) if isinstance(part, Window) and part in found else None
            )

        return [above(e) for e in expressions]

    def _extend(self, added: dict[Window, Field]) -> None:
        below = self.status.relation
        fields = below.fields + tuple(added.values())
        columns = tuple(Column(field) for field in below.fields)
        self.status = replace(self.status, relation=Project(below, fields, columns + tuple(added)))

    def _first_of_each(self, on: tuple[Expr, ...], order: tuple[Order, ...]) -> None:
        """DISTINCT ON: the first row of each group."""
        leading = {term.expression for term in order[: len(set(on))]}
        if order and leading != set(on):
            raise InvalidSyntax(
                "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
                position=self.clauses.at(self.node.args["order"]),
            )
        number = self.clauses.fields.new(SqlType.BIGINT)
        self._extend({Window("row_number", (), on, order, None, SqlType.BIGINT): number})
        first = Call("eq", (Column(number), Literal(1, SqlType.BIGINT)), SqlType.BOOLEAN)
        self.status = replace(self.status, relation=Filter(self.status.relation, first))

    def _with_ties(self, order: tuple[Order, ...], last: int) -> None:
        """FETCH … WITH TIES: the first rows, and those that the order does not part from the last of them."""
        rank = self.clauses.fields.new(SqlType.BIGINT)
        self._extend({Window("rank", (), (), order, None, SqlType.BIGINT): rank})
        among = Call("le", (Column(rank), Literal(last, SqlType.BIGINT)), SqlType.BOOLEAN)
        self.status = replace(self.status, relation=Filter(self.status.relation, among))

    def _finish(
        self, outputs: list[Expr], order: tuple[Order, ...], on: tuple[Expr, ...] | None, *, distinct: bool
    ) -> Lowered:
        clauses = self.clauses
        at = clauses.at(self.node)
        for expression in (*outputs, *(term.expression for term in order), *(on or ())):
            refuse_unlisted(expression, self.scope, at)
        fields = tuple(clauses.fields.new(e.type) for e in outputs)
        ties = clauses.has_ties(self.node)
        limit, offset = clauses.limits(self.node, ties=ties and bool(order) and not distinct)
        if not distinct and on is None and not ties:
            ordered = Ordered(self.status.relation, tuple(outputs), order, limit, offset)
            ordered = ordered.chosen(clauses.catalog, clauses.fields)
            self.status, order = replace(self.status, relation=ordered.relation), ordered.order
        expressions = self._windows_below([*outputs, *(term.expression for term in order)])
        outputs = expressions[: len(outputs)]
        pairs = zip(order, expressions[len(outputs) :], strict=True)
        order = tuple(replace(term, expression=expression) for term, expression in pairs)
        if on is not None:
            self._first_of_each(on, order)
        if ties and limit is not None:
            self._with_ties(order, offset + limit)
            limit = None
        hidden = tuple(dict.fromkeys(term.expression for term in order if term.expression not in outputs))
        if distinct and hidden:
            raise InvalidSyntax(
                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                position=clauses.at(self.node.args["order"]),
            )
        hidden_fields = tuple(clauses.fields.new(e.type) for e in hidden)
        relation: Relation = Project(self.status.relation, fields + hidden_fields, (*outputs, *hidden))
        if distinct:
            relation = Distinct(relation)
        if order or limit is not None or offset:
            by_expression = dict(zip((*hidden, *outputs), hidden_fields + fields, strict=True))
            terms = tuple(replace(term, expression=Column(by_expression[term.expression])) for term in order)
            relation = Sort(relation, fields, terms, limit, offset)
        names = tuple(item.name for item in self.items)
        return Lowered(replace(self.status, relation=relation), tuple(zip(names, fields, strict=True)))


def _inner_and_outer(term: Expr, rows: Relation) -> tuple[Expr, Expr] | None:
    """The sides of an equation of a value of the rows with one of the row around; None for other conditions."""
    own = frozenset(rows.fields)
    sides = term.arguments if isinstance(term, Call) and term.function == "eq" else ()
    for inner, outer in (sides, sides[::-1]) if sides else ():
        found = fields_in(inner), fields_in(outer)
        if all(found) and found[0] <= own and not found[1] & own:
            return inner, outer
    return None


def _aggregate_of(window: Window) -> AggregateCall | None:
    """The aggregate that a window function computes of each whole partition; None for other windows."""
    function = "count" if window.function == "count_rows" else window.function
    frame = window.frame
    is_whole = not window.order if frame is None else frame.start is None and frame.end is None
    if not is_whole or function not in FUNCTIONS:
        return None
    argument, other = (*window.arguments, None, None)[:2]
    return AggregateCall(function, argument, False, None, window.type, other=other)


_PICKS = {SqlType.BOOLEAN: "bool_and"}
"""Aggregates that give the value of the only row, for types without MIN."""


def _of_none_too(call: AggregateCall, value: Expr) -> Expr:
    is_added = call.function in ("count", "regr_count", "sum")
    return Call("coalesce", (value, Literal(0, call.type)), call.type) if is_added else value


def _marks(expression: Expr) -> list[Call]:
    """The GROUPING(…) calls in an expression."""
    found: list[Call] = []

    def look(part: Expr) -> None:
        if isinstance(part, Call) and part.function == "grouping":
            found.append(part)

    rewrite_expression(expression, look)
    return found


def _counts_nobody(call: AggregateCall, absent: frozenset[Field]) -> bool:
    """True where a row without a unit adds nothing."""
    if call.filter is not None and is_not_true(call.filter, absent):
        return True
    return any(becomes_null(part, absent) for part in (call.argument, call.other) if part is not None)
