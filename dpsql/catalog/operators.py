"""operators: expressions, by the precedence of PostgreSQL's operators."""

from abc import ABC
from collections.abc import Callable
from typing import Final

from dpsql.catalog.operands import Operands
from dpsql.catalog.syntax import (
    Among,
    AmongRows,
    Between,
    Call,
    Cast,
    Collate,
    Constant,
    Distinctness,
    Expr,
    Like,
    Logic,
    Operation,
    Quantified,
    Subscript,
    Test,
)
from dpsql.errors import QueryTooComplex

MAX_DEPTH: Final = 60
_COMPARISONS: Final = frozenset({"<", ">", "=", "<=", ">=", "<>", "!="})
_ADDITIONS: Final = frozenset({"+", "-"})
_PRODUCTS: Final = frozenset({"*", "/", "%"})


class Operators(Operands, ABC):
    """Reads expressions, from the loosest operators to the tightest."""

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
        over = self.query() if self._is_query() else self.expr()
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
