"""from_clause: FROM: tables, subqueries and what joins them.

Rule: every way of writing a join (comma, CROSS, ON, USING, NATURAL, LATERAL) comes down to a kind and a condition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlglot import exp

from dpsql.compiler.ir.conditions import all_of
from dpsql.compiler.ir.nodes import Call, Column, Expr, Field, Project, Protected, Public, Status, Values
from dpsql.compiler.relations.clauses import Clauses
from dpsql.compiler.relations.empty_results import refuse_undetermined
from dpsql.compiler.relations.joins import Equalities, Joiner, refuse_unlisted
from dpsql.compiler.relations.series import is_series
from dpsql.compiler.scope.lowering import Lowered, refuse_other_arguments
from dpsql.compiler.scope.resolve import FromItem, Scope, identifier, one_unit
from dpsql.compiler.sql.rewriting import changed
from dpsql.errors import DatatypeMismatch, Error, InvalidSyntax, UndefinedColumn, UnsupportedQuery
from dpsql.sqltypes import SqlType

Entry = Callable[[exp.Expr, Scope | None], Lowered]
"""Lowers a table or a subquery of FROM, LATERAL ones in a scope."""


@dataclass(frozen=True)
class Joined:
    """What FROM has given so far: its sources by their names, the rows, and conditions that hold in all of them."""

    sources: tuple[FromItem, ...]
    status: Status
    holds: tuple[Expr, ...] = ()

    def with_holding(self, kind: str, condition: Expr | None) -> tuple[Expr, ...]:
        """The conditions that still hold after a join: an outer one fills up with NULLs."""
        if kind in ("right", "full"):
            return ()
        return self.holds if kind == "left" or condition is None else (*self.holds, condition)


@dataclass(frozen=True)
class From:
    """Lowers one FROM.

    Attributes:
        clauses: The statement's clauses.
        entry: Lowers one entry.
        outer: The scope around, for a subquery in an expression.
        where: WHERE, whose equations comma joins rely on.
    """

    clauses: Clauses
    entry: Entry
    outer: Scope | None
    where: exp.Expr | None

    def lower(self, node: exp.Expr | None, joins: Sequence[exp.Join]) -> Joined:
        """Lower FROM's first entry and its joins.

        Raises:
            Error: A typed refusal.
        """
        if node is None:
            return Joined((), Public(Values((), ((),))))
        while self._is_parenthesized(node):
            # (a JOIN b) JOIN c is a JOIN b JOIN c.
            joins = (*(node.this.args.get("joins") or ()), *joins)
            node = node.this.copy()
            node.set("joins", None)
        entries = {id(each): self._source(each, None) for each in self._entries(node, joins)}
        everything = tuple(source for source, _ in entries.values())
        source, status = entries[id(node)]
        joined = Joined((source,), status)
        for join in joins:
            joined = self._join(joined, join, entries.get(id(join.this)), everything)
        return joined

    @staticmethod
    def _is_parenthesized(node: exp.Expr) -> bool:
        inside = node.this if isinstance(node, exp.Subquery) and not node.args.get("alias") else None
        return isinstance(inside, exp.Table | exp.Subquery)

    @staticmethod
    def _entries(node: exp.Expr, joins: Sequence[exp.Join]) -> list[exp.Expr]:
        """Return the entries that can be lowered on their own; a LATERAL one refers to the entries before it."""
        return [node, *(join.this for join in joins if not _is_lateral(join.this))]

    def _source(self, node: exp.Expr, scope: Scope | None) -> tuple[FromItem, Status]:
        """Lower one entry under the name it is given."""
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
            if node.args.get("alias") is not None:
                # (a JOIN b USING (k)) AS q is (SELECT * FROM a JOIN b USING (k)) AS q.
                table, joins = node.this.copy(), node.this.args.get("joins")
                table.set("joins", None)
                query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=table), joins=joins)
                return self._source(exp.Subquery(this=query, alias=node.args["alias"]), scope)
            raise UnsupportedQuery(
                "a join in parentheses must be the first item of FROM, or have an alias",
                hint="Write the joins without parentheses, or use a subquery.",
                position=self.clauses.at(node),
            )
        lowered = self.entry(node, scope)
        alias_node = node.args.get("alias")
        alias = identifier(alias_node.this) if alias_node is not None and alias_node.this is not None else None
        if alias_node is not None:
            lowered = renamed(self.clauses, lowered, self._with_column(node, alias_node))
        named = node.this if isinstance(node, exp.Table) else None
        default = identifier(named) if isinstance(named, exp.Identifier) else ""
        return lowered.source(alias or default), lowered.status

    @staticmethod
    def _with_column(node: exp.Expr, alias: exp.TableAlias) -> exp.TableAlias:
        """The alias of a function's values, which names their only column too."""
        call = node if isinstance(node, exp.Unnest) else node.this
        is_function = (isinstance(call, exp.Unnest) and len(call.expressions) == 1) or is_series(call)
        if not is_function or alias.args.get("columns"):
            return alias
        return exp.TableAlias(this=alias.this, columns=[alias.this])

    # Joins

    def _join(
        self, left: Joined, join: exp.Join, entry: tuple[FromItem, Status] | None, everything: tuple[FromItem, ...]
    ) -> Joined:
        at = self.clauses.at(join)
        refuse_other_arguments(join, "this", "side", "kind", "on", "using", "method", offset=self.clauses.offset)
        kind = self._kind(join, at)
        source, status = entry if entry is not None else self._lateral(join.this, left, kind)
        if source.alias and source.alias in {other.alias for other in left.sources}:
            raise InvalidSyntax(f'table name "{source.alias}" specified more than once', position=at)
        merged = self._merged_names(join, left, source)
        if not merged and join.args.get("method"):
            raise InvalidSyntax(
                "NATURAL JOIN needs a column that both tables have", hint="Use JOIN with ON.", position=at
            )
        if merged:
            return self._joined_by_names(kind, left, (source, status), merged, at)
        condition = None
        if join.args.get("on") is not None:
            people = left.status if isinstance(left.status, Protected) else status
            scope = self.clauses.scope((*left.sources, source), self.outer, people)
            condition = self.clauses.expressions(scope, "in JOIN conditions").condition(join.args["on"])
            refuse_unlisted(condition, scope, self.clauses.at(join), self._links(left.status, status))
        elif kind not in ("inner", "cross"):
            raise TypeError("a join without ON or USING is a syntax error")
        known = self._known(kind, condition, everything, left)
        kind = "cross" if condition is None else kind
        try:
            relation = self._joiner.join(kind, (left.status, status), condition, known, at)
        except UnsupportedQuery as error:
            error.queries = self._on_unit(join, left.sources, source)
            raise
        return Joined((*left.sources, source), relation, left.with_holding(kind, condition))

    def _on_unit(self, join: exp.Join, left: tuple[FromItem, ...], right: FromItem) -> tuple[str, ...]:
        """The query with this join on the unit's key, if both sides have it, for each entry of the left side."""
        key = self.clauses.catalog.unit_key

        def on(alias: str) -> Callable[[exp.Expr], None]:
            condition = exp.EQ(this=exp.column(key, table=alias), expression=exp.column(key, table=right.alias))

            def change(copy: exp.Expr) -> None:
                copy.set("on", condition)
                if join.kind == "CROSS":
                    copy.set("kind", None)

            return change

        named = [source.alias for source in left if source.named(key, qualified=True)]
        return tuple(query for alias in named for query in changed(join, on(alias)))

    @property
    def _joiner(self) -> Joiner:
        catalog = self.clauses.catalog
        return Joiner(catalog.schema, self.clauses.fields, catalog.policy.dataset.privacy_unit, catalog.unit_key)

    def _kind(self, join: exp.Join, at: int | None) -> str:
        side = str(join.args.get("side") or "").lower()
        kind = str(join.args.get("kind") or "").lower()
        method = str(join.args.get("method") or "").lower()
        known = kind in ("", "inner", "outer", "cross") and side in ("", "left", "right", "full")
        if not known or method not in ("", "natural"):
            raise UnsupportedQuery(f"{(method or kind or side).upper()} joins are not supported", position=at)
        return side or ("cross" if kind == "cross" else "inner")

    @staticmethod
    def _links(*statuses: Status) -> frozenset[Field]:
        """The fields that lead to units."""
        protected = [status for status in statuses if isinstance(status, Protected)]
        return frozenset(field for status in protected for link in status.links for field in link.fields)

    def _known(self, kind: str, condition: Expr | None, everything: tuple[FromItem, ...], left: Joined) -> Equalities:
        """Return the equations that hold in this join's rows: ON, and for inner joins those in WHERE."""
        terms = [*left.holds, condition] if condition is not None else [*left.holds]
        if kind in ("inner", "cross") and self.where is not None:
            terms += self._equations(self.where, everything)
        return Equalities(terms)

    def _equations(self, where: exp.Expr, everything: tuple[FromItem, ...]) -> list[Expr]:
        """The equations of two columns that WHERE surely demands, as far as their names are known."""
        scope = self.clauses.scope(everything, None)
        found: list[Expr] = []
        pending = [where]
        while pending:
            term = pending.pop()
            if isinstance(term, exp.And):
                pending += [term.this, term.expression]
            elif isinstance(term, exp.Paren):
                pending.append(term.this)
            elif (
                isinstance(term, exp.EQ)
                and isinstance(term.this, exp.Column)
                and isinstance(term.expression, exp.Column)
            ):
                try:
                    sides = (scope.column(term.this), scope.column(term.expression))
                except Error:  # a name of an outer scope, or an unknown one: WHERE itself is lowered later
                    continue
                found.append(Call("eq", sides, SqlType.BOOLEAN))
        return found

    # USING and NATURAL

    def _merged_names(self, join: exp.Join, left: Joined, right: FromItem) -> list[str]:
        if str(join.args.get("method") or "").lower() == "natural":
            return self._natural_names(join, left, right)
        return list(dict.fromkeys(identifier(name) for name in join.args.get("using") or ()))

    def _natural_names(self, join: exp.Join, left: Joined, right: FromItem) -> list[str]:
        known = {name for each in left.sources for name, _ in (*each.columns, *each.hidden) if name not in each.merged}
        names = list(dict.fromkeys(name for name, _ in (*right.columns, *right.hidden) if name in known))
        if any(name in names for each in (*left.sources, right) for name, _ in each.hidden):
            raise UnsupportedQuery(
                "NATURAL JOIN on a key that the policy does not list as a column is not supported",
                hint="Use JOIN with USING.",
                position=self.clauses.at(join),
                queries=changed(join, partial(_use, names)),
            )
        return names

    def _joined_by_names(
        self, kind: str, left: Joined, right: tuple[FromItem, Status], names: list[str], at: int | None
    ) -> Joined:
        source, status = right
        sides = ((left.sources, left.status), ((source,), status))
        pairs = [(self._field(*sides[0], name, at), self._field(*sides[1], name, at)) for name in names]
        terms = tuple(self._equal(pair, at) for pair in pairs)
        condition = all_of(*terms)
        scope = self.clauses.scope((*left.sources, source), self.outer)
        for term in terms:
            refuse_unlisted(term, scope, at, self._links(left.status, status))
        known = Equalities((condition, *left.holds))
        joined = self._joiner.join(kind, (left.status, status), condition, known, at)
        joined, fields = self._merge(kind, joined, pairs)
        before = (*left.sources, source)
        columns = {name for each in before for name, _ in each.columns}
        shown = tuple(pair for pair in zip(names, fields, strict=True) if pair[0] in columns)
        hidden = tuple(pair for pair in zip(names, fields, strict=True) if pair[0] not in columns)
        unlisted = {field for (mine, _), field in zip(pairs, fields, strict=True) if mine in scope.unlisted}
        merged = FromItem("", shown, hidden, frozenset(unlisted))
        covered = tuple(replace(each, merged=each.merged | frozenset(names)) for each in before)
        return Joined((merged, *covered), joined, left.with_holding(kind, condition))

    def _field(self, sources: tuple[FromItem, ...], status: Status, name: str, at: int | None) -> Field:
        found = [field for source in sources for field in source.named(name, qualified=False)]
        found = one_unit(found, status)
        if len(found) != 1:
            what = "is ambiguous" if found else "does not exist on both sides"
            raise UndefinedColumn(f'column "{name}" of USING {what}', hint="Use JOIN with ON.", position=at)
        return found[0]

    def _equal(self, pair: tuple[Field, Field], at: int | None) -> Call:
        sides = self.clauses.coercion.unify_compared([Column(field) for field in pair], [at, at])
        kind = sides[0].type
        if kind.is_array or kind.is_json or kind is SqlType.BYTEA:
            raise DatatypeMismatch(f"values of type {sides[0].type.value} cannot be compared", position=at)
        return Call("eq", sides, SqlType.BOOLEAN)

    def _merge(self, kind: str, joined: Status, pairs: list[tuple[Field, Field]]) -> tuple[Status, list[Field]]:
        """Return the merged fields of both sides: the field that is never missing, or COALESCE of both."""
        if kind in ("inner", "left"):
            return joined, [left for left, _ in pairs]
        if kind == "right":
            return joined, [right for _, right in pairs]
        below = joined.relation
        assigned: dict[Field, Expr] = {field: Column(field) for field in below.fields}
        fields = []
        for pair in pairs:
            sides = self.clauses.coercion.unify([Column(field) for field in pair])
            fields.append(self.clauses.fields.new(sides[0].type))
            assigned[fields[-1]] = Call("coalesce", sides, sides[0].type)
        return replace(joined, relation=Project(below, tuple(assigned), tuple(assigned.values()))), fields

    # LATERAL

    def _lateral(self, node: exp.Expr, left: Joined, kind: str) -> tuple[FromItem, Status]:
        if kind not in ("inner", "cross", "left"):
            raise UnsupportedQuery("LATERAL is only supported in inner and left joins", position=self.clauses.at(node))
        scope = self.clauses.scope(left.sources, self.outer, left.status)
        source, status = self._source(node, scope)
        refuse_undetermined(Lowered(status, source.columns), scope, self.clauses.at(node))
        if isinstance(status, Protected) and status.linked is not None:
            of_left = isinstance(left.status, Protected) and left.status.is_unit(Column(status.linked))
            if not of_left:
                key = self.clauses.catalog.unit_key
                raise UnsupportedQuery(
                    f"a LATERAL subquery over protected rows must compare its {key} with that of the row before it",
                    hint=f"Compare {key} on both sides in its WHERE.",
                    position=self.clauses.at(node),
                )
        return source, status


def _use(names: list[str], join: exp.Expr) -> None:
    """Write USING for NATURAL."""
    join.set("method", None)
    join.set("using", [exp.to_identifier(name) for name in names])


def _is_lateral(entry: exp.Expr) -> bool:
    """True of LATERAL, and of UNNEST of columns, which PostgreSQL takes for LATERAL."""
    return isinstance(entry, exp.Lateral) or (isinstance(entry, exp.Unnest) and entry.find(exp.Column) is not None)


def renamed(clauses: Clauses, lowered: Lowered, alias: exp.TableAlias) -> Lowered:
    """A relation whose columns an alias names anew."""
    names = [identifier(column) for column in alias.args.get("columns") or ()]
    if len(names) > len(lowered.columns):
        raise InvalidSyntax("more column aliases than columns", position=clauses.at(alias))
    given = (*names, *(name for name, _ in lowered.columns[len(names) :]))
    columns = tuple((name, field) for name, (_, field) in zip(given, lowered.columns, strict=True))
    return replace(lowered, columns=columns, schemas=frozenset())
