"""operands: constants, names, calls and what has parentheses: the tightest of PostgreSQL's grammar."""

from abc import ABC
from typing import Final

from dpsql.catalog.lexer import Token
from dpsql.catalog.reading import words
from dpsql.catalog.special_forms import SPECIAL_CALLS, WORDS, SpecialForms
from dpsql.catalog.syntax import (
    Call,
    Cast,
    Constant,
    Expr,
    Field,
    Name,
    Order,
    Parameter,
    Row,
    Scalar,
    Star,
    TypeName,
    Window,
)
from dpsql.errors import InvalidSyntax

_LITERAL_TYPES: Final = frozenset({"date", "time", "timestamp", "timestamptz", "interval", "name", "regclass", "oid"})


class Operands(SpecialForms, ABC):
    """Reads what operators stand between: constants, names, calls, and whatever has parentheses."""

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
            case "name" if token.text in WORDS and self._peek().text not in (".",):
                special = WORDS[token.text](self)
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
        parts = [self._identifier(words()[1])]
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
        if len(parts) == 1 and plain and parts[0] in words()[0]:
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
        if len(parts) == 1 and parts[0] in SPECIAL_CALLS:
            special = SPECIAL_CALLS[parts[0]](self, at)
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
