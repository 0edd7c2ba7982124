"""parser: PostgreSQL's grammar of queries, by recursive descent, with its precedence and its reserved words.

Rule: what is not known is a syntax error; nothing is skipped and nothing is guessed.
"""

from dpsql.catalog.lexer import tokenize
from dpsql.catalog.operators import MAX_DEPTH, Operators
from dpsql.catalog.reading import words
from dpsql.catalog.special_forms import WORD_CALLS
from dpsql.catalog.syntax import (
    Alias,
    Body,
    Call,
    CallSource,
    Constant,
    Cte,
    Expr,
    Item,
    JoinSource,
    Query,
    QuerySource,
    Select,
    SetOperation,
    Source,
    Star,
    TableSource,
    Values,
    Window,
)
from dpsql.errors import InvalidSyntax, QueryTooComplex


def parse_catalog_query(sql: str) -> Query:
    """Return the tree of a query.

    Raises:
        InvalidSyntax: The text is not a query of PostgreSQL's grammar, or of a part of it that is not known here.
        QueryTooComplex: It nests too deep.
    """
    try:
        parser = _Parser(tokenize(sql))
        query = parser.query()
        parser.accept_sign(";")
        parser.end()
    except RecursionError:
        raise QueryTooComplex(f"the query nests deeper than {MAX_DEPTH} levels") from None
    return query


class _Parser(Operators):
    """Reads queries."""

    def query(self) -> Query:
        """A query, with WITH before it and ORDER BY and LIMIT behind it."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise QueryTooComplex(f"the query nests deeper than {MAX_DEPTH} levels")
        ctes: tuple[Cte, ...] = ()
        recursive = False
        if self._accept_word("with"):
            recursive = self._accept_word("recursive")
            ctes = self._list(self._cte)
        body = self._set_operations()
        order = self._order_by()
        limit, offset = self._limits()
        self._depth -= 1
        return Query(body, ctes, recursive, order, limit, offset)

    def _cte(self) -> Cte:
        name = self._column_name()
        columns = self._parenthesised(self._column_name) if self._is_sign("(") else ()
        self._expect_word("as")
        if not self._accept_word("materialized"):
            self._accept_word("not", "materialized")
        self._expect_sign("(")
        query = self.query()
        self._expect_sign(")")
        return Cte(name, columns, query)

    def _set_operations(self) -> Body:
        left = self._intersections()
        while self._is_word("union", "except"):
            word = self._next().text
            every = self._accept_word("all")
            self._accept_word("distinct")
            left = SetOperation(word, every, left, self._intersections())
        return left

    def _intersections(self) -> Body:
        left = self._primary_query()
        while self._accept_word("intersect"):
            every = self._accept_word("all")
            self._accept_word("distinct")
            left = SetOperation("intersect", every, left, self._primary_query())
        return left

    def _primary_query(self) -> Body:
        if self.accept_sign("("):
            query = self.query()
            self._expect_sign(")")
            return query
        if self._accept_word("values"):
            return Values(self._list(lambda: self._parenthesised(self.expr)))
        if self._accept_word("table"):
            at = self._token.at
            source = TableSource(self._qualified(), Alias(), at)
            return Select(None, (Item(Star(), None),), (source,), None, (), None, ())
        return self._select()

    def _select(self) -> Select:
        self._expect_word("select")
        distinct = self._distinct()
        empty = self._token.kind == "end" or self._is_word("from", "where", "limit") or self._is_sign(")")
        items = () if empty else self._list(self._item)
        sources = self._list(self._source) if self._accept_word("from") else ()
        where = self.expr() if self._accept_word("where") else None
        group = self._list(self._group_key) if self._accept_word("group", "by") else ()
        having = self.expr() if self._accept_word("having") else None
        windows = self._list(self._named_window) if self._accept_word("window") else ()
        return Select(distinct, items, sources, where, group, having, windows)

    def _distinct(self) -> tuple[Expr, ...] | None:
        if self._accept_word("distinct"):
            return self._parenthesised(self.expr) if self._accept_word("on") else ()
        self._accept_word("all")
        return None

    def _group_key(self) -> Expr:
        if self._is_word("grouping", "rollup", "cube") and self._peek().text in ("sets", "("):
            raise self._fail()
        return self.expr()

    def _named_window(self) -> tuple[str, Window]:
        name = self._column_name()
        self._expect_word("as")
        return name, self._window()

    def _item(self) -> Item:
        if self._is_operator(frozenset("*")):
            self._next()
            return Item(Star(), None)
        expr = self.expr()
        if self._accept_word("as"):
            return Item(expr, self._identifier())
        token = self._token
        if token.kind == "quoted" or (token.kind == "name" and token.text not in words()[2]):
            return Item(expr, self._next().text)
        return Item(expr, None)

    def _limits(self) -> tuple[Expr | None, Expr | None]:
        limit = offset = None
        while True:
            if self._accept_word("limit"):
                limit = None if self._accept_word("all") else self.expr()
            elif self._accept_word("offset"):
                offset = self.expr()
                if not self._accept_word("rows"):
                    self._accept_word("row")
            elif self._accept_word("fetch"):
                self._next()  # first or next
                limit = Constant("integer", "1") if self._is_word("row", "rows") else self.expr()
                self._next()  # row or rows
                self._expect_word("only")
            else:
                return limit, offset

    def _source(self) -> Source:
        left = self._plain_source()
        while True:
            if self._accept_word("cross", "join"):
                left = JoinSource("cross", left, self._plain_source(), None, (), False)
            elif self._is_word("natural", "inner", "left", "right", "full", "join"):
                left = self._join(left)
            else:
                return left

    def _join(self, left: Source) -> Source:
        natural = self._accept_word("natural")
        kind = "inner"
        if self._is_word("inner", "left", "right", "full"):
            kind = self._next().text
            self._accept_word("outer")
        self._expect_word("join")
        right = self._source() if self._nested_join() else self._plain_source()
        if natural:
            return JoinSource(kind, left, right, None, (), True)
        if self._accept_word("using"):
            return JoinSource(kind, left, right, None, self._parenthesised(self._column_name), False)
        self._expect_word("on")
        return JoinSource(kind, left, right, self.expr(), (), False)

    def _nested_join(self) -> bool:
        """True in `a JOIN b JOIN c ON … ON …`: the inner join's condition comes first."""
        saved = self._at
        self._plain_source()
        nested = self._is_word("inner", "left", "right", "full", "join", "natural", "cross")
        self._at = saved
        return nested

    def _plain_source(self) -> Source:
        at = self._token.at
        lateral = self._accept_word("lateral")
        if self.accept_sign("("):
            return self._parenthesised_source(lateral)
        self._accept_word("only")
        if self._is_word("rows") and self._peek().text == "from":
            raise self._fail()
        word_call = self._token.kind == "name" and self._token.text in WORD_CALLS
        parts = self._qualified(words()[1])
        if word_call or self._is_sign("("):
            call = Call(parts, (), at) if word_call and not self._is_sign("(") else self._call(parts, at)
            if not isinstance(call, Call):
                raise self._fail()
            ordinality = self._accept_word("with", "ordinality")
            return CallSource(call, self._alias(), ordinality)
        if self._is_operator(frozenset("*")):
            self._next()
        return TableSource(parts, self._alias(), at)

    def _parenthesised_source(self, lateral: bool) -> Source:
        saved = self._at
        try:
            query = self.query()
            self._expect_sign(")")
        except InvalidSyntax:
            self._at = saved
            self._depth = max(0, self._depth - 1)
            inner = self._source()
            self._expect_sign(")")
            return inner
        return QuerySource(query, self._alias(), lateral)

    def _alias(self) -> Alias:
        token = self._token
        if self._accept_word("as"):
            name = self._identifier(words()[0])
        elif token.kind == "quoted" or (token.kind == "name" and token.text not in words()[0]):
            name = self._next().text
        else:
            return Alias()
        return Alias(name, self._parenthesised(self._column_name) if self._is_sign("(") else ())
