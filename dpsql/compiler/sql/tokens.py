"""tokens: the words and signs of one command, taken from its front; what does not fit is a syntax error there."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlglot.tokenizer_core import Token, TokenType

from dpsql.compiler.sql.statements import QUERY_WORDS, QueryStatement
from dpsql.errors import InvalidSyntax

_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)
T = TypeVar("T")


class Words:
    """A command's tokens and how far they were taken.

    Args:
        sql: The whole text that the tokens come from.
        tokens: At least one.

    Attributes:
        example: A command of the kind that is read, once that is known.
    """

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self.sql = sql
        self.example = ""
        self._tokens = tokens
        self._at = 0

    @property
    def text(self) -> str:
        """The command's own text."""
        return self.sql[self._tokens[0].start : self._tokens[-1].end + 1]

    def wrong(self) -> InvalidSyntax:
        """The error at the next word, or at the end."""
        hint = f"Write: {self.example}" if self.example else None
        if self._at == len(self._tokens):
            return InvalidSyntax("syntax error at end of input", position=self._tokens[-1].end + 2, hint=hint)
        token = self._tokens[self._at]
        shown = self.sql[token.start : token.end + 1]
        return InvalidSyntax(f'syntax error at or near "{shown}"', position=token.start + 1, hint=hint)

    def follows(self, *words: str) -> bool:
        """Whether these words come next, unquoted."""
        coming = self._tokens[self._at : self._at + len(words)]
        return len(coming) == len(words) and all(
            token.token_type not in _QUOTED and token.text.upper() == word
            for token, word in zip(coming, words, strict=True)
        )

    def take(self, *words: str) -> bool:
        """Take these words if they come next."""
        found = self.follows(*words)
        self._at += len(words) if found else 0
        return found

    def need(self, *words: str) -> None:
        """Take these words, which must come next."""
        if not self.take(*words):
            raise self.wrong()

    def choice(self, *words: str) -> str | None:
        """Take the next token if it is one of these words, and return it; else None."""
        return next((word for word in words if self.take(word)), None)

    @property
    def ended(self) -> bool:
        """Whether all was taken."""
        return self._at == len(self._tokens)

    def end(self) -> None:
        """Refuse remaining tokens."""
        if not self.ended:
            raise self.wrong()

    def name(self) -> str:
        """Take a name: a quoted one unchanged, others in lower case."""
        token = self._next()
        if token.token_type == TokenType.IDENTIFIER:
            return token.text
        if token.token_type == TokenType.STRING or not (token.text[0].isalpha() or token.text[0] == "_"):
            self._at -= 1
            raise self.wrong()
        return token.text.lower()

    def names(self) -> tuple[str, ...]:
        """Take names in parentheses."""
        return tuple(self.listed(self.name))

    def listed(self, take: Callable[[], T]) -> list[T]:
        """Take a list in parentheses, of one or more."""
        self.need("(")
        taken = [take()]
        while self.take(","):
            taken.append(take())
        self.need(")")
        return taken

    def string(self) -> str:
        """Take a string constant."""
        token = self._next()
        if token.token_type not in (TokenType.STRING, TokenType.BYTE_STRING):  # the latter is E'…'
            self._at -= 1
            raise self.wrong()
        return token.text

    def name_or_string(self) -> str:
        """Take a name or a string constant."""
        quoted = not self.ended and self._tokens[self._at].token_type == TokenType.STRING
        return self.string() if quoted else self.name()

    def integer(self) -> int | None:
        """Take a whole number with its sign, if one comes next."""
        start = self._at
        sign = {"+": 1, "-": -1}[self.choice("+", "-") or "+"]
        if self._at < len(self._tokens):
            digits = self._tokens[self._at].text
            if self._tokens[self._at].token_type == TokenType.NUMBER and digits.isdecimal() and len(digits) < 19:
                self._at += 1
                return sign * int(digits)
        self._at = start
        return None

    def until(self, *signs: str) -> str:
        """Take the text up to one of these signs, or words in capitals, outside parentheses; or to the end."""
        start, depth = self._at, 0
        while self._at < len(self._tokens):
            word = "" if self._tokens[self._at].token_type in _QUOTED else self._tokens[self._at].text.upper()
            if depth == 0 and word in signs:
                break
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)
            self._at += 1
        if self._at == start:
            raise self.wrong()
        return self.sql[self._tokens[start].start : self._tokens[self._at - 1].end + 1]

    def query(self, *signs: str) -> QueryStatement:
        """Take a query, up to one of these signs or to the end."""
        if self.ended or not any(self.follows(word) for word in QUERY_WORDS):
            raise self.wrong()
        start = self._tokens[self._at].start
        return QueryStatement(self.until(*signs), start)

    def _next(self) -> Token:
        if self.ended:
            raise self.wrong()
        self._at += 1
        return self._tokens[self._at - 1]
