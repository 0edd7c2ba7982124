"""reading: the tokens of a query, and the words that PostgreSQL keeps to itself."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

from dpsql.catalog import facts
from dpsql.catalog.lexer import Token
from dpsql.errors import InvalidSyntax

T = TypeVar("T")


@cache
def words() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Words that cannot be a column, those that cannot be a function, those that need AS before a label."""
    header, rows = facts.read("keywords")
    at = [header.index(name) for name in ("word", "catcode", "barelabel")]
    words = [[row[i] for i in at] for row in rows]
    no_column = frozenset(str(word) for word, code, _ in words if code in ("R", "T"))
    no_function = frozenset(str(word) for word, code, _ in words if code == "R")
    no_label = frozenset(str(word) for word, _, bare in words if bare == "f")
    return no_column, no_function, no_label


class Reader:
    """Reads tokens one after another."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

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

    def _parenthesised(self, read: Callable[[], T]) -> tuple[T, ...]:
        self._expect_sign("(")
        found = self._list(read)
        self._expect_sign(")")
        return found

    def _identifier(self, refused: frozenset[str] = frozenset()) -> str:
        token = self._token
        if token.kind == "quoted" or (token.kind == "name" and token.text not in refused):
            return self._next().text
        raise self._fail()

    def _column_name(self) -> str:
        return self._identifier(words()[0])

    def _qualified(self, refused: frozenset[str] | None = None) -> tuple[str, ...]:
        parts = [self._identifier(words()[0] if refused is None else refused)]
        while self.accept_sign("."):
            parts.append(self._identifier())
        return tuple(parts)

    def _begins_query(self) -> bool:
        ahead = 0
        while self._peek(ahead).kind == "sign" and self._peek(ahead).text == "(":
            ahead += 1
        token = self._peek(ahead)
        return token.kind == "name" and token.text in ("select", "with", "values", "table")

    def _is_query(self) -> bool:
        """True if a query stands here, and not an expression that begins with one: (SELECT …)::oid[], for example.

        Behind each parenthesis around it then stands another's end, or a word such as UNION.
        """
        leading, depth, ahead = 0, 0, 0
        while self._peek(leading).text == "(":
            leading += 1
        while leading and (token := self._peek(ahead)).kind != "end":
            ahead += 1
            depth += {"(": 1, ")": -1}.get(token.text, 0) if token.kind == "sign" else 0
            if depth < leading and ahead > leading:
                leading, behind = depth, self._peek(ahead)
                if behind.kind != "name" and behind.text != ")":
                    return False
        return self._begins_query()
