"""shape: texts that the parser would read for very long are refused before it sees them.

The parser tries a text in one way and then in another. Where such places stand within one another, its time doubles
with each of them, and nothing can interrupt it.

It would also take JOIN without ON or USING for a comma, which PostgreSQL does not.

Rule: one look at each token, in their order; what is too large is far beyond what people and their tools write.
"""

from collections.abc import Sequence
from typing import Final

from sqlglot.dialects.postgres import Postgres
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.errors import InvalidSyntax, QueryTooComplex

MAX_BRACKETS: Final = 100
"""Brackets of any kind within one another."""
MAX_TRIED: Final = 8
"""Among them, those that are tried in two ways: subscripts, arrays, and parentheses behind the name of a type."""
MAX_SUBSCRIPTS: Final = 16
"""Subscripts in a row; the parser copies all of them for each."""
MAX_OPEN_JOINS: Final = 8
"""Joins that wait for their ON or USING; each is tried with and without those behind it."""

_OPENING: Final = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING: Final = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
_JOINS: Final = {TokenType.JOIN, TokenType.STRAIGHT_JOIN}
_CONDITIONS: Final = {TokenType.ON, TokenType.USING}
_ENDS: Final = {
    *(TokenType.COMMA, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.WINDOW, TokenType.ORDER_BY),
    *(TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH, TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT),
}
"""Behind these no ON or USING of a join comes; nor behind a closing bracket."""
_TYPES: Final = frozenset(Postgres.parser_class.TYPE_TOKENS)


def check_shape(tokens: Sequence[Token], offset: int = 0) -> None:
    """Refuse what the parser would read for too long.

    Args:
        tokens: Of one query.
        offset: Where its text starts in what was sent.

    Raises:
        QueryTooComplex: Brackets, subscripts or joins without conditions are more than the limits of this file.
        InvalidSyntax: A join has no condition.
    """
    tried: list[bool] = []
    joins = [0]
    subscripts = 0
    natural = False
    before: TokenType | None = None
    for token in tokens:
        kind = token.token_type
        if kind in _OPENING:
            subscript = kind == TokenType.L_BRACKET and before == TokenType.R_BRACKET
            subscripts = subscripts + 1 if subscript else 0
            tried.append(kind != TokenType.L_PAREN or before in _TYPES)
            joins.append(0)
            if len(tried) > MAX_BRACKETS:
                raise _refusal(f"brackets nest deeper than {MAX_BRACKETS} levels", token, offset)
            if tried[-1] and sum(tried) > MAX_TRIED:
                raise _refusal(f"arrays, subscripts or types nest deeper than {MAX_TRIED} levels", token, offset)
            if subscripts >= MAX_SUBSCRIPTS:
                raise _refusal(f"more than {MAX_SUBSCRIPTS} subscripts follow each other", token, offset)
        elif (kind in _CLOSING or kind in _ENDS) and joins[-1]:
            place = offset + token.start + 1
            raise InvalidSyntax(f'a join needs ON or USING before "{token.text[:63]}"', position=place)
        elif kind in _CLOSING and tried:
            tried.pop()
            joins.pop()
        elif kind in _JOINS:
            joins[-1] += before != TokenType.CROSS and not natural
            natural = False
            if joins[-1] > MAX_OPEN_JOINS:
                raise _refusal(f"more than {MAX_OPEN_JOINS} joins have no ON or USING", token, offset)
        elif kind in _CONDITIONS:
            joins[-1] = max(joins[-1] - 1, 0)
        natural = natural or kind == TokenType.NATURAL
        before = kind
    if joins[0]:
        raise InvalidSyntax("a join needs ON or USING", position=offset + tokens[-1].end + 2)


def _refusal(message: str, token: Token, offset: int) -> QueryTooComplex:
    hint = "Give each join its condition with ON or USING." if "joins" in message else None
    return QueryTooComplex(message, hint=hint, position=offset + token.start + 1)
