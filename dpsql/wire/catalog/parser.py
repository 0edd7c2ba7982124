"""parser: PostgreSQL's grammar of queries, by recursive descent, with its precedence and its reserved words.

Rule: what is not known is a syntax error; nothing is skipped and nothing is guessed.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, TypeVar

from dpsql.errors import InvalidSyntax, QueryTooComplex
from dpsql.wire.catalog import facts
from dpsql.wire.catalog.lexer import Token, tokenize
from dpsql.wire.catalog.syntax import (
    Alias,
    Among,
    AmongRows,
    ArrayOf,
    ArrayRows,
    Between,
    Body,
    Call,
    CallSource,
    Case,
    Cast,
    Collate,
    Constant,
    Cte,
    Distinctness,
    Exists,
    Expr,
    Field,
    Item,
    JoinSource,
    Like,
    Logic,
    Name,
    Operation,
    Order,
    Parameter,
    Quantified,
    Query,
    QuerySource,
    Row,
    Scalar,
    Select,
    SetOperation,
    Source,
    Star,
    Subscript,
    TableSource,
    Test,
    TypeName,
    Values,
    Window,
)

T = TypeVar("T")

MAX_DEPTH: Final = 60
_COMPARISONS: Final = frozenset({"<", ">", "=", "<=", ">=", "<>", "!="})
_ADDITIONS: Final = frozenset({"+", "-"})
_PRODUCTS: Final = frozenset({"*", "/", "%"})
_WORD_CALLS: Final = frozenset(
    {
        *("current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"),
        *("current_user", "localtime", "localtimestamp", "session_user", "user"),
    }
)
_TYPE_ALIASES: Final = {
    "int": "int4",
    "integer": "int4",
    "smallint": "int2",
    "bigint": "int8",
    "real": "float4",
    "float": "float8",
    "boolean": "bool",
    "decimal": "numeric",
    "dec": "numeric",
    "char": "bpchar",
    "character": "bpchar",
    "nchar": "bpchar",
}
_LITERAL_TYPES: Final = frozenset({"date", "time", "timestamp", "timestamptz", "interval", "name", "regclass", "oid"})


@cache
def _words() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Words that cannot be a column, those that cannot be a function, those that need AS before a label."""
    header, rows = facts.read("keywords")
    at = [header.index(name) for name in ("word", "catcode", "barelabel")]
    words = [[row[i] for i in at] for row in rows]
    no_column = frozenset(str(word) for word, code, _ in words if code in ("R", "T"))
    no_function = frozenset(str(word) for word, code, _ in words if code == "R")
    no_label = frozenset(str(word) for word, _, bare in words if bare == "f")
    return no_column, no_function, no_label


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


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    # Tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _peek(self, ahead: int = 1) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _next(self) -> Token:
        token = self._token
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _fail(self) -> InvalidSyntax:
        token = self._token
        if token.kind == "end":
            return InvalidSyntax("syntax error at end of input", position=token.at + 1)
        return InvalidSyntax(f'syntax error at or near "{token.text}"', position=token.at + 1)

    def _is_word(self, *words: str) -> bool:
        return self._token.kind == "name" and self._token.text in words

    def _accept_word(self, *words: str) -> bool:
        """Take these words if they stand here, in this order."""
        for ahead, word in enumerate(words):
            token = self._peek(ahead)
            if token.kind != "name" or token.text != word:
                return False
        self._at += len(words)
        return True

    def _expect_word(self, word: str) -> None:
        if not self._accept_word(word):
            raise self._fail()

    def _is_sign(self, text: str) -> bool:
        return self._token.kind == "sign" and self._token.text == text

    def accept_sign(self, text: str) -> bool:
        """Take a sign if it stands here."""
        if self._is_sign(text):
            self._at += 1
            return True
        return False

    def _expect_sign(self, text: str) -> None:
        if not self.accept_sign(text):
            raise self._fail()

    def _is_operator(self, texts: frozenset[str] | None = None) -> bool:
        return self._token.kind == "operator" and (texts is None or self._token.text in texts)

    def end(self) -> None:
        """Nothing may follow."""
        if self._token.kind != "end":
            raise self._fail()

    def _list(self, read: Callable[[], T]) -> tuple[T, ...]:
        found = [read()]
        while self.accept_sign(","):
            found.append(read())
        return tuple(found)

    def _identifier(self, refused: frozenset[str] = frozenset()) -> str:
        token = self._token
        if token.kind == "quoted" or (token.kind == "name" and token.text not in refused):
            return self._next().text
        raise self._fail()

    def _column_name(self) -> str:
        return self._identifier(_words()[0])

    # Queries

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

    def _parenthesised(self, read: Callable[[], T]) -> tuple[T, ...]:
        self._expect_sign("(")
        found = self._list(read)
        self._expect_sign(")")
        return found

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
        if token.kind == "quoted" or (token.kind == "name" and token.text not in _words()[2]):
            return Item(expr, self._next().text)
        return Item(expr, None)

    def _order_by(self) -> tuple[Order, ...]:
        return self._list(self._order) if self._accept_word("order", "by") else ()

    def _order(self) -> Order:
        expr = self.expr()
        descending = self._accept_word("desc")
        if not descending:
            self._accept_word("asc")
        nulls_first = descending
        if self._accept_word("nulls", "first"):
            nulls_first = True
        elif self._accept_word("nulls", "last"):
            nulls_first = False
        return Order(expr, descending, nulls_first)

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

    # FROM

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
        word_call = self._token.kind == "name" and self._token.text in _WORD_CALLS
        parts = self._qualified(_words()[1])
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
            name = self._identifier(_words()[0])
        elif token.kind == "quoted" or (token.kind == "name" and token.text not in _words()[0]):
            name = self._next().text
        else:
            return Alias()
        return Alias(name, self._parenthesised(self._column_name) if self._is_sign("(") else ())

    def _qualified(self, refused: frozenset[str] | None = None) -> tuple[str, ...]:
        parts = [self._identifier(_words()[0] if refused is None else refused)]
        while self.accept_sign("."):
            parts.append(self._identifier())
        return tuple(parts)

    # Expressions, from the loosest to the tightest

    def expr(self) -> Expr:
        """An expression."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise QueryTooComplex(f"the query nests deeper than {MAX_DEPTH} levels")
        operands = [self._conjunction()]
        while self._accept_word("or"):
            operands.append(self._conjunction())
        self._depth -= 1
        return operands[0] if len(operands) == 1 else Logic("or", tuple(operands))

    def _conjunction(self) -> Expr:
        operands = [self._negation()]
        while self._accept_word("and"):
            operands.append(self._negation())
        return operands[0] if len(operands) == 1 else Logic("and", tuple(operands))

    def _negation(self) -> Expr:
        negations = 0
        while self._accept_word("not"):
            negations += 1
        expr = self._tests()
        for _ in range(negations):
            expr = Logic("not", (expr,))
        return expr

    def _tests(self) -> Expr:
        expr = self._comparison()
        while True:
            if self._accept_word("isnull"):
                expr = Test(expr, "null", False)
            elif self._accept_word("notnull"):
                expr = Test(expr, "null", True)
            elif self._accept_word("is"):
                expr = self._is(expr)
            else:
                return expr

    def _is(self, expr: Expr) -> Expr:
        negated = self._accept_word("not")
        if self._accept_word("distinct", "from"):
            return Distinctness(expr, self._comparison(), negated)
        if self._is_word("null", "true", "false", "unknown"):
            return Test(expr, self._next().text, negated)
        raise self._fail()

    def _comparison(self) -> Expr:
        expr = self._matching()
        while self._is_operator(_COMPARISONS):
            token = self._next()
            operator = "<>" if token.text == "!=" else token.text
            expr = self._quantified(operator, expr, token.at) or Operation(operator, (expr, self._matching()), token.at)
        return expr

    def _quantified(self, operator: str, expr: Expr, at: int) -> Expr | None:
        if not self._is_word("any", "some", "all") or self._peek().text != "(":
            return None
        every = self._next().text == "all"
        self._expect_sign("(")
        over = self.query() if self._begins_query() else self.expr()
        self._expect_sign(")")
        return Quantified(operator, expr, over, every, at)

    def _matching(self) -> Expr:
        expr = self._other_operators()
        while True:
            saved = self._at
            negated = self._accept_word("not")
            if self._accept_word("between"):
                expr = self._between(expr, negated)
            elif self._is_word("like", "ilike"):
                expr = self._like(expr, negated)
            elif self._accept_word("in"):
                expr = self._in(expr, negated)
            else:
                self._at = saved
                return expr

    def _between(self, expr: Expr, negated: bool) -> Expr:
        symmetric = self._accept_word("symmetric")
        low = self._other_operators()
        self._expect_word("and")
        high = self._other_operators()
        if not symmetric:
            return Between(expr, low, high, negated)
        either = Logic("or", (Between(expr, low, high, False), Between(expr, high, low, False)))
        return Logic("not", (either,)) if negated else either

    def _like(self, expr: Expr, negated: bool) -> Expr:
        token = self._next()
        ignore_case = token.text == "ilike"
        quantified = self._quantified("~~*" if ignore_case else "~~", expr, token.at)
        if quantified is not None:
            return quantified
        pattern = self._other_operators()
        escape = self._other_operators() if self._accept_word("escape") else None
        return Like(expr, pattern, escape, ignore_case, negated)

    def _in(self, expr: Expr, negated: bool) -> Expr:
        self._expect_sign("(")
        if self._begins_query():
            query = self.query()
            self._expect_sign(")")
            return AmongRows(expr, query, negated)
        items = self._list(self.expr)
        self._expect_sign(")")
        return Among(expr, items, negated)

    def _begins_query(self) -> bool:
        ahead = 0
        while self._peek(ahead).kind == "sign" and self._peek(ahead).text == "(":
            ahead += 1
        token = self._peek(ahead)
        return token.kind == "name" and token.text in ("select", "with", "values", "table")

    def _other_operators(self) -> Expr:
        expr = self._sum()
        while True:
            at = self._token.at
            if self._is_word("operator") and self._peek().text == "(":
                operator = self._named_operator()
            elif self._is_operator() and self._token.text not in _COMPARISONS | _ADDITIONS | _PRODUCTS | {"^"}:
                operator = self._next().text
            else:
                return expr
            expr = self._quantified(operator, expr, at) or Operation(operator, (expr, self._sum()), at)

    def _named_operator(self) -> str:
        self._expect_word("operator")
        self._expect_sign("(")
        while self._token.kind in ("name", "quoted"):
            self._next()
            self._expect_sign(".")
        if not self._is_operator():
            raise self._fail()
        operator = self._next().text
        self._expect_sign(")")
        return "<>" if operator == "!=" else operator

    def _sum(self) -> Expr:
        return self._chain(self._product, _ADDITIONS)

    def _product(self) -> Expr:
        return self._chain(self._power, _PRODUCTS)

    def _power(self) -> Expr:
        return self._chain(self._unary, frozenset("^"))

    def _chain(self, operand: Callable[[], Expr], operators: frozenset[str]) -> Expr:
        expr = operand()
        while self._is_operator(operators):
            token = self._next()
            expr = Operation(token.text, (expr, operand()), token.at)
        return expr

    def _unary(self) -> Expr:
        if self._is_operator(frozenset({"-", "+", "~", "@"})):
            token = self._next()
            operand = self._unary()
            if token.text == "-" and isinstance(operand, Constant) and operand.kind in ("integer", "numeric"):
                return Constant(operand.kind, "-" + operand.text)
            return operand if token.text == "+" else Operation(token.text, (operand,), token.at)
        return self._suffixed()

    def _suffixed(self) -> Expr:
        expr = self._casts(self._primary())
        while True:
            if self._accept_word("collate"):
                expr = Collate(expr, self._qualified(frozenset()))
            elif self._is_word("at") and self._peek().text == "time":
                token = self._next()
                self._accept_word("time")
                self._expect_word("zone")
                expr = Call(("timezone",), (self._casts(self._primary()), expr), token.at)
            else:
                return expr

    def _casts(self, expr: Expr) -> Expr:
        while True:
            if self.accept_sign("::"):
                expr = Cast(expr, self._type())
            elif self._is_sign("["):
                expr = self._subscript(expr)
            else:
                return expr

    def _subscript(self, expr: Expr) -> Expr:
        self._expect_sign("[")
        low = None if self._is_sign(":") else self.expr()
        if not self.accept_sign(":"):
            self._expect_sign("]")
            return Subscript(expr, low)
        high = None if self._is_sign("]") else self.expr()
        self._expect_sign("]")
        return Subscript(expr, low, high, slice=True)

    def _type(self) -> TypeName:
        quoted = self._token.kind == "quoted"
        parts = self._qualified(frozenset())
        if len(parts) == 1 and not quoted:
            parts = (self._long_type(parts[0]),)
        modifiers: tuple[int, ...] = ()
        if self._is_sign("("):
            modifiers = self._parenthesised(self._modifier)
        zone = self._accept_word("with", "time", "zone")
        if not zone:
            self._accept_word("without", "time", "zone")
        name = parts[-1] + ("tz" if zone else "")
        array = self._accept_word("array")
        while self.accept_sign("["):
            if self._token.kind == "integer":
                self._next()
            self._expect_sign("]")
            array = True
        return TypeName((*parts[:-1], name), modifiers, array)

    def _long_type(self, word: str) -> str:
        if word == "double":
            self._expect_word("precision")
            return "float8"
        if word in ("character", "char", "bit") and self._accept_word("varying"):
            return "varbit" if word == "bit" else "varchar"
        return _TYPE_ALIASES.get(word, word)

    def _modifier(self) -> int:
        if self._token.kind != "integer":
            raise self._fail()
        return int(self._next().text[:9])

    # The tightest

    def _primary(self) -> Expr:
        token = self._token
        match token.kind:
            case "string":
                return Constant("string", self._strings())
            case "integer" | "numeric":
                return Constant(token.kind, self._next().text)
            case "parameter":
                self._next()
                return self._parameter(token)
            case "sign" if token.text == "(":
                return self._fields(self._in_parentheses())
            case "name" if token.text in _WORDS and self._peek().text not in (".",):
                special = _WORDS[token.text](self)
                if special is not None:
                    return self._fields(special)
        return self._named()

    def _strings(self) -> str:
        text = self._next().text
        while self._token.kind == "string":
            text += self._next().text
        return text

    def _parameter(self, token: Token) -> Parameter:
        index = int(token.text[:9])
        if not 1 <= index <= 65535:
            raise InvalidSyntax(f"there is no parameter ${token.text}", position=token.at + 1)
        return Parameter(index - 1)

    def _in_parentheses(self) -> Expr:
        if self._peek().kind == "sign" and self._peek().text == ")":
            raise self._fail()
        if self._begins_query():
            saved = self._at
            self._expect_sign("(")
            try:
                query = self.query()
                self._expect_sign(")")
                return Scalar(query)
            except InvalidSyntax:
                # (SELECT 1) + 2 in parentheses begins like a query, and is none.
                self._at = saved
        items = self._parenthesised(self.expr)
        return items[0] if len(items) == 1 else Row(items)

    def _fields(self, expr: Expr) -> Expr:
        while self.accept_sign("."):
            if self._is_operator(frozenset("*")):
                raise self._fail()
            expr = Field(expr, self._identifier())
        return expr

    def _named(self) -> Expr:
        at = self._token.at
        if self._token.kind not in ("name", "quoted"):
            raise self._fail()
        plain = self._token.kind == "name"
        parts = [self._identifier(_words()[1])]
        if plain and parts[0] in _LITERAL_TYPES and self._token.kind == "string":
            return self._typed_literal(parts[0])
        while self._is_sign("."):
            self._next()
            if self._is_operator(frozenset("*")):
                self._next()
                return Star(tuple(parts), at)
            parts.append(self._identifier())
        if self._is_sign("("):
            return self._fields(self._call(tuple(parts), at))
        if len(parts) == 1 and plain and parts[0] in _words()[0]:
            raise self._fail()
        return Name(tuple(parts), at)

    def _typed_literal(self, name: str) -> Expr:
        text = self._strings()
        if name == "interval" and self._is_word("year", "month", "day", "hour", "minute", "second"):
            if not text.strip().lstrip("+-").isdecimal():
                raise self._fail()
            text = f"{text} {self._next().text}"
        return Cast(Constant("string", text), TypeName((name,)))

    def _call(self, parts: tuple[str, ...], at: int) -> Expr:
        if len(parts) == 1 and parts[0] in _SPECIAL_CALLS:
            special = _SPECIAL_CALLS[parts[0]](self, at)
            if special is not None:
                return special
        self._expect_sign("(")
        star = distinct = False
        args: tuple[Expr, ...] = ()
        order: tuple[Order, ...] = ()
        if self._is_operator(frozenset("*")):
            self._next()
            star = True
        elif not self._is_sign(")"):
            distinct = self._accept_word("distinct")
            if not distinct:
                self._accept_word("all")
            args = self._list(self._argument)
            order = self._order_by()
        self._expect_sign(")")
        condition = None
        if self._accept_word("filter"):
            self._expect_sign("(")
            self._expect_word("where")
            condition = self.expr()
            self._expect_sign(")")
        over = None
        if self._accept_word("over"):
            over = self._window() if self._is_sign("(") else Window(self._column_name(), (), ())
        return Call(parts, args, at, star, distinct, order, condition, over)

    def _argument(self) -> Expr:
        self._accept_word("variadic")
        return self.expr()

    def _window(self) -> Window:
        self._expect_sign("(")
        base = None
        if self._token.kind in ("name", "quoted") and not self._is_word("partition", "order", "rows", "range"):
            base = self._column_name()
        partition = self._list(self.expr) if self._accept_word("partition", "by") else ()
        order = self._order_by()
        frame = self._frame() if self._is_word("rows", "range", "groups") else ""
        self._expect_sign(")")
        return Window(base, partition, order, frame)

    def _frame(self) -> str:
        """Which rows around the current one a window takes, in so few words that they can be passed on."""
        unit = self._next().text
        if not self._accept_word("between"):
            return f"{unit} {self._bound()}"
        low = self._bound()
        self._expect_word("and")
        return f"{unit} BETWEEN {low} AND {self._bound()}"

    def _bound(self) -> str:
        if self._accept_word("current", "row"):
            return "CURRENT ROW"
        count = "UNBOUNDED" if self._accept_word("unbounded") else str(self._modifier())
        if not self._is_word("preceding", "following"):
            raise self._fail()
        return f"{count} {self._next().text}"

    # Words with a grammar of their own; None means that the word is a plain name here

    def _case(self) -> Expr:
        self._next()
        operand = None if self._is_word("when") else self.expr()
        branches = []
        while self._accept_word("when"):
            condition = self.expr()
            self._expect_word("then")
            branches.append((condition, self.expr()))
        default = self.expr() if self._accept_word("else") else None
        self._expect_word("end")
        if not branches:
            raise self._fail()
        return Case(operand, tuple(branches), default)

    def _cast(self) -> Expr:
        self._next()
        self._expect_sign("(")
        expr = self.expr()
        self._expect_word("as")
        to = self._type()
        self._expect_sign(")")
        return Cast(expr, to)

    def _exists(self) -> Expr:
        self._next()
        self._expect_sign("(")
        query = self.query()
        self._expect_sign(")")
        return Exists(query)

    def _array(self) -> Expr | None:
        self._next()
        if self._is_sign("("):
            self._expect_sign("(")
            query = self.query()
            self._expect_sign(")")
            return ArrayRows(query)
        if not self.accept_sign("["):
            raise self._fail()
        items = () if self._is_sign("]") else self._list(self.expr)
        self._expect_sign("]")
        return ArrayOf(items)

    def _row(self) -> Expr | None:
        if self._peek().text != "(":
            return None
        self._next()
        if self._peek().text == ")":
            self._at += 2
            return Row(())
        return Row(self._parenthesised(self.expr))

    def _constant(self) -> Expr:
        word = self._next().text
        return Constant("null", "") if word == "null" else Constant("bool", word)

    def _word_call(self) -> Expr | None:
        token = self._token
        if self._peek().text == "(":
            return None
        self._next()
        return Call((token.text,), (), token.at)

    # Calls with words between the arguments

    def _extract(self, at: int) -> Expr:
        self._expect_sign("(")
        field = self._next().text
        self._expect_word("from")
        expr = self.expr()
        self._expect_sign(")")
        return Call(("extract",), (Constant("string", field), expr), at)

    def _position(self, at: int) -> Expr:
        self._expect_sign("(")
        part = self._other_operators()
        self._expect_word("in")
        whole = self._other_operators()
        self._expect_sign(")")
        return Call(("position",), (whole, part), at)

    def _substring(self, at: int) -> Expr | None:
        saved = self._at
        self._expect_sign("(")
        args = [self.expr()]
        if not self._is_word("from", "for"):
            self._at = saved
            return None
        start: Expr = Constant("integer", "1")
        length: Expr | None = None
        while self._is_word("from", "for"):
            if self._next().text == "from":
                start = self.expr()
            else:
                length = self.expr()
        self._expect_sign(")")
        return Call(("substring",), (*args, start, *([] if length is None else [length])), at)

    def _trim(self, at: int) -> Expr:
        self._expect_sign("(")
        side = self._next().text if self._is_word("both", "leading", "trailing") else "both"
        name = {"both": "btrim", "leading": "ltrim", "trailing": "rtrim"}[side]
        args = [] if self._is_word("from") else [self.expr()]
        if self._accept_word("from"):
            args = [self.expr(), *args]
        elif self.accept_sign(","):
            args.append(self.expr())
        self._expect_sign(")")
        return Call((name,), tuple(args), at)


_WORDS: Final[dict[str, Callable[[_Parser], Expr | None]]] = {
    "case": _Parser._case,
    "cast": _Parser._cast,
    "exists": _Parser._exists,
    "array": _Parser._array,
    "row": _Parser._row,
    "null": _Parser._constant,
    "true": _Parser._constant,
    "false": _Parser._constant,
    **dict.fromkeys(_WORD_CALLS, _Parser._word_call),
}
_SPECIAL_CALLS: Final[dict[str, Callable[[_Parser, int], Expr | None]]] = {
    "extract": _Parser._extract,
    "position": _Parser._position,
    "substring": _Parser._substring,
    "trim": _Parser._trim,
}
