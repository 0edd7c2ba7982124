"""special_forms: types, CASE and its like, and calls that have words between their arguments."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from dpsql.catalog.reading import Reader
from dpsql.catalog.syntax import ArrayOf, ArrayRows, Call, Case, Cast, Constant, Exists, Expr, Query, Row, TypeName

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


class SpecialForms(Reader, ABC):
    """Reads what has a grammar of its own: types, CASE and its like, and calls with words between the arguments."""

    @abstractmethod
    def query(self) -> Query:
        """A query."""

    @abstractmethod
    def expr(self) -> Expr:
        """An expression."""

    @abstractmethod
    def _other_operators(self) -> Expr:
        """An expression without comparisons."""

    # Types

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


WORD_CALLS: Final = frozenset(
    {
        *("current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"),
        *("current_user", "localtime", "localtimestamp", "session_user", "user"),
    }
)
WORDS: Final[dict[str, Callable[[SpecialForms], Expr | None]]] = {
    "case": SpecialForms._case,
    "cast": SpecialForms._cast,
    "exists": SpecialForms._exists,
    "array": SpecialForms._array,
    "row": SpecialForms._row,
    "null": SpecialForms._constant,
    "true": SpecialForms._constant,
    "false": SpecialForms._constant,
    **dict.fromkeys(WORD_CALLS, SpecialForms._word_call),
}
SPECIAL_CALLS: Final[dict[str, Callable[[SpecialForms, int], Expr | None]]] = {
    "extract": SpecialForms._extract,
    "position": SpecialForms._position,
    "substring": SpecialForms._substring,
    "trim": SpecialForms._trim,
}
