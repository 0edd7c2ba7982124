"""dialect: PostgreSQL as the parser reads it, without what it would rewrite or drop while it reads.

Rule 1: a function of ours stays a plain call with its arguments as written; the parser would rename, reorder and
cut off some.
Rule 2: INTERVAL 'text' is read as 'text'::interval, for the parser keeps only a part of the text.
Rule 3: a dot stands behind a name; the parser would leave out one that stands before the first.
Rule 4: $1,$2 are two parameters; the parser's words would begin a text with the delimiter $1,$ there.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.dialect import DialectType
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.compiler.functions import CALLS, INTERVAL_FIELDS

_MARK = "\x00"
"""Stands behind a name that the parser must not know; no text that is parsed holds it."""
_BEFORE_NAMES = frozenset({"FROM", "JOIN", "ONLY", "LATERAL", ",", "(", "."})
"""Behind these a relation may be named."""
_DOLLAR_QUOTE = re.compile(r"(?<![\w$])\$(?:[^\W\d]\w*)?\$")


class _Words(Postgres.Tokenizer):
    """PostgreSQL's lexical structure, without the words after which sqlglot takes all text as one."""

    COMMANDS: ClassVar[set[TokenType]] = set()


class _WordsAndParameters(_Words):
    """The same, without texts between dollar signs."""

    HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
    SINGLE_TOKENS: ClassVar[dict[str, TokenType]] = {**_Words.SINGLE_TOKENS, "$": TokenType.PARAMETER}


def tokens_of(sql: str) -> list[Token]:
    """The tokens of a text; where it has texts between dollar signs, parameters stand apart from one another."""
    kind = _Words if _DOLLAR_QUOTE.search(sql) else _WordsAndParameters
    return kind(dialect=Postgres()).tokenize(sql)


class PlainPostgres(Postgres):
    """PostgreSQL's dialect, by the rules of this file."""

    def tokenize(self, sql: str, dialect: DialectType = None) -> list[Token]:
        """The tokens of a text, arranged so that the parser keeps to the rules."""
        tokens = tokens_of(sql)
        _check_dots(tokens)
        return _with_plain_calls(_with_cast_intervals(tokens))

    def parse(self, sql: str, **opts: Any) -> list[exp.Expr | None]:
        """The trees of a text, in which the marks are gone."""
        trees = super().parse(sql, **opts)
        for tree in trees:
            for node in tree.walk() if tree is not None else ():
                if isinstance(node, exp.Anonymous | exp.Identifier) and isinstance(node.this, str):
                    node.set("this", node.this.removesuffix(_MARK))
        return trees


def _check_dots(tokens: Sequence[Token]) -> None:
    """Refuse a dot where a name belongs; one before digits is a part of their number."""
    for before, token, following in zip(tokens, tokens[1:], tokens[2:], strict=False):
        of_name = token.token_type == TokenType.DOT and following.token_type != TokenType.NUMBER
        quoted = before.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        if of_name and not quoted and before.text.upper() in _BEFORE_NAMES:
            raise ParseError.new("a dot without a name", line=token.line, col=token.col, highlight=token.text)


def _with_plain_calls(tokens: Sequence[Token]) -> list[Token]:
    """Mark each name of a function of ours that stands before a parenthesis; * REPLACE (…) is no call."""
    found = []
    for before, token, following in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        called = following is not None and following.token_type == TokenType.L_PAREN
        literal = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        of_star = before is not None and before.token_type == TokenType.STAR and token.text.upper() == "REPLACE"
        if called and not literal and not of_star and token.text.lower() in CALLS:
            token = _at(token, TokenType.VAR, token.text + _MARK)
        found.append(token)
    return found


def _with_cast_intervals(tokens: Sequence[Token]) -> list[Token]:
    """Write INTERVAL 'text' field TO field as ('text'::INTERVAL field TO field)."""
    found: list[Token] = []
    index = 0
    while index < len(tokens):
        token, rest = tokens[index], tokens[index + 1 :]
        if token.token_type != TokenType.INTERVAL or not rest or rest[0].token_type != TokenType.STRING:
            found.append(token)
            index += 1
            continue
        fields = list(rest[1 : 1 + _fields(rest[1:])])
        opening = [_at(token, TokenType.L_PAREN, "("), rest[0], _at(token, TokenType.DCOLON, "::"), token]
        found += [*opening, *fields, _at(rest[0], TokenType.R_PAREN, ")")]
        index += 2 + len(fields)
    return found


def _fields(tokens: Sequence[Token]) -> int:
    """How many of the tokens name the fields of an interval: none, one, or three as in YEAR TO MONTH."""
    words = [token.text.lower() for token in tokens[:3]]
    if not words or words[0] not in INTERVAL_FIELDS:
        return 0
    return 3 if words[1:2] == ["to"] and words[2:] and words[2] in INTERVAL_FIELDS else 1


def _at(token: Token, token_type: TokenType, text: str) -> Token:
    """A token with the place of another."""
    return Token(token_type, text, token.line, token.col, token.start, token.end, token.comments)
