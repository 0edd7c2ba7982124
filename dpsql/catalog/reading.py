"""reading: the parser's tree of a query into the catalog's own, whose nodes are values and can be kept.

Rule: what has no entry here is refused; nothing is skipped and nothing is guessed.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from sqlglot import exp

from dpsql.catalog import syntax
from dpsql.catalog.reading_expressions import AROUND, ExpressionReader, filled
from dpsql.compiler.sql.parse import parse_catalog_query
from dpsql.errors import Error, InvalidSyntax, LimitExceeded

_KEPT: Final = 256
_MAX_KEPT: Final = 5_000
"""So many trees are kept, of texts of so many characters at most."""


def read_query(sql: str) -> syntax.ParsedQuery:
    """Return the tree of a query.

    Raises:
        InvalidSyntax: The text is not a query of PostgreSQL's grammar, or of a part of it that is not known here.
        LimitExceeded: It nests too deep, or takes too long to parse.
    """
    return _kept(sql) if len(sql) <= _MAX_KEPT else _read(sql)


def _read(sql: str) -> syntax.ParsedQuery:
    tree = parse_catalog_query(sql)
    try:
        return _QueryReader(sql).query(tree)
    except RecursionError:
        raise LimitExceeded("the query is nested too deeply", hint="Write long chains of operators in parts.") from None
    except Error:
        raise
    except Exception:  # the parser made a tree of another shape than it makes of what is understood here
        raise InvalidSyntax("syntax error") from None


_kept = lru_cache(maxsize=_KEPT)(_read)


class _QueryReader(ExpressionReader):
    """Reads queries, and the expressions in them."""

    def query(self, node: exp.Expr) -> syntax.ParsedQuery:
        """A query, with WITH before it and ORDER BY and LIMIT behind it."""
        ctes: tuple[syntax.Cte, ...] = ()
        recursive = False
        with_ = node.args.get("with_")
        if with_ is not None:
            self._known(with_, "expressions", "recursive")
            ctes, recursive = self._all(self._cte, with_.expressions), bool(with_.args.get("recursive"))
        body = self._body(node)
        order, limit, offset = (node.args.get(name) for name in AROUND[1:])
        return syntax.ParsedQuery(body, ctes, recursive, self._order(order), self._limit(limit), self._limit(offset))

    def _body(self, node: exp.Expr) -> syntax.Body:
        """A query without what stands around it."""
        match node:
            case exp.Subquery():
                self._known(node, "this", *AROUND)
                return self.query(node.this)
            case exp.Values():
                self._known(node, "expressions", *AROUND)
                return syntax.ValuesList(tuple(self._exprs(row.expressions) for row in node.expressions))
            case exp.SetOperation():
                self._known(node, "this", "expression", "distinct", *AROUND)
                word = type(node).__name__.lower()
                left = self._side(node.this)
                return syntax.CombinedQuery(word, not node.args.get("distinct"), left, self._side(node.expression))
            case exp.Select():
                return self._select(node)
        raise self._refusal(node)

    def _side(self, node: exp.Expr) -> syntax.Body:
        """A side of a set operation; only in parentheses has it an order and limits of its own."""
        return self._nested(node) if isinstance(node, exp.Subquery) else self._body(node)

    def _select(self, node: exp.Select) -> syntax.Select:
        known = ("distinct", "expressions", "from_", "joins", "where", "group", "having", "windows")
        self._known(node, *known, *AROUND)
        distinct, source, where, group, having = (
            node.args.get(name) for name in ("distinct", "from_", "where", "group", "having")
        )
        keys = (
            None
            if distinct is None
            else self._exprs(distinct.args["on"].expressions if distinct.args.get("on") else ())
        )
        items = self._all(self._item, node.expressions)
        sources = () if source is None else self._sources(source.this, node.args.get("joins") or ())
        condition = where and self.expr(where.this)
        if group is not None:
            self._known(group, "expressions")
        groups = () if group is None else self._exprs(group.expressions)
        chosen = having and self.expr(having.this)
        windows = self._all(lambda one: (self._name(one.this), self._window(one)), node.args.get("windows") or ())
        return syntax.Select(keys, items, sources, condition, groups, chosen, windows)

    def _cte(self, node: exp.Expr) -> syntax.Cte:
        self._known(node, "this", "alias", "materialized")
        alias = self._alias(node.args["alias"])
        return syntax.Cte(alias.name or "", alias.columns, self.query(node.this))

    def _item(self, node: exp.Expr) -> syntax.SelectItem:
        if isinstance(node, exp.Alias):
            return syntax.SelectItem(self.expr(node.this), self._name(node.args["alias"]))
        return syntax.SelectItem(self.expr(node), None)

    def _limit(self, node: exp.Expr | None) -> syntax.Expr | None:
        if isinstance(node, exp.Fetch):
            self._known(node, "direction", "count", "limit_options")
            if node.args.get("limit_options") is not None:
                self._known(node.args["limit_options"], "rows")
            return self.expr(node.args["count"]) if node.args.get("count") else syntax.Constant("integer", "1")
        if node is None or isinstance(node.expression, exp.Var):  # LIMIT ALL
            return None
        self._known(node, "expression")
        return self.expr(node.expression)

    # FROM

    def _sources(self, first: exp.Expr, joins: Iterable[exp.Expr]) -> tuple[syntax.Source, ...]:
        sources = [self._source(first)]
        for join in joins:
            if filled(join) == ["this"]:
                if self._word(self._find(",", "join")) != ",":  # a join without a condition
                    raise self._refusal(join)
                sources.append(self._source(join.this))
            else:
                sources[-1] = self._join(sources[-1], join)
        return tuple(sources)

    def _join(self, left: syntax.Source, node: exp.Expr) -> syntax.Source:
        self._known(node, "this", "method", "side", "kind", "on", "using")
        words = [str(node.args.get(name) or "").lower() for name in ("method", "side", "kind")]
        right = self._source(node.this)
        if words[2] == "cross":
            return syntax.JoinSource("cross", left, right, None, (), False)
        natural = words[0] == "natural"
        if words[0] not in ("", "natural") or words[2] not in ("", "inner", "outer"):
            raise self._refusal(node)
        on, using = node.args.get("on"), node.args.get("using") or ()
        return syntax.JoinSource(words[1] or "inner", left, right, on and self.expr(on), self._names(using), natural)

    def _source(self, node: exp.Expr) -> syntax.Source:
        """An entry of FROM with the joins that it begins."""
        plain = self._plain_source(node)
        joins = node.args.get("joins") or ()
        for join in joins:
            plain = self._join(plain, join)
        return plain

    def _plain_source(self, node: exp.Expr) -> syntax.Source:
        lateral = isinstance(node, exp.Lateral)
        match node.this if lateral else node:
            case exp.Subquery() as inner if (
                isinstance(inner.this, exp.Table | exp.Subquery) and not lateral and not inner.alias
            ):
                self._known(inner, "this", "joins")
                return self._source(inner.this)
            case exp.Subquery() as inner:
                self._known(inner, "this", "alias", "joins")
                self._known(node, "this", "alias", "joins")
                return syntax.QuerySource(self.query(inner.this), self._alias(node.args.get("alias")), lateral)
            case exp.Values() as inner:
                self._known(inner, "expressions", "alias", "joins")
                alias = self._alias(inner.args.get("alias"))
                return syntax.QuerySource(
                    syntax.ParsedQuery(
                        syntax.ValuesList(tuple(self._exprs(row.expressions) for row in inner.expressions))
                    ),
                    alias,
                    False,
                )
            case exp.Table() as inner if isinstance(inner.this, exp.Identifier):
                self._known(inner, "this", "db", "catalog", "alias", "joins", "only")
                at, parts = self._parts(inner.parts)
                return syntax.TableSource(parts, self._alias(inner.args.get("alias")), at)
            case exp.Table() as inner:
                self._known(inner, "this", "db", "catalog", "alias", "joins", "ordinality")
                names = [inner.args[name] for name in ("catalog", "db") if inner.args.get(name)]
                return self._called(inner.this, names, inner)
            case exp.Anonymous() | exp.Dot() as inner:
                self._known(node, "this", "alias", "joins", "ordinality")
                return self._called(inner, (), node)
        raise self._refusal(node)

    def _called(self, function: exp.Expr, schema: Sequence[exp.Expr], node: exp.Expr) -> syntax.Source:
        before = self._parts(schema) if schema else None
        call = self.expr(function)
        if not isinstance(call, syntax.CallExpr):
            raise self._refusal(function)
        if before is not None:
            call = syntax.CallExpr((*before[1], *call.parts), call.args, before[0])
        return syntax.CallSource(call, self._alias(node.args.get("alias")), bool(node.args.get("ordinality")))

    def _alias(self, node: exp.Expr | None) -> syntax.Alias:
        if node is None:
            return syntax.Alias()
        self._known(node, "this", "columns")
        name = node.this
        return syntax.Alias(None if name is None else self._name(name), self._names(node.args.get("columns") or ()))
