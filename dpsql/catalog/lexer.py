"""lexer: text into PostgreSQL's tokens: names, constants, operators, parameters and signs."""

import re
from dataclasses import dataclass
from typing import Final

from dpsql.errors import InvalidSyntax

MAX_TOKENS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Attributes:
        kind: name, quoted (name), string, integer, numeric, parameter, operator, sign or end.
        text: A name in lower case where it is not quoted; a constant's value; the characters of the others.
        at: Where it begins, counted from 0.
    """

    kind: str
    text: str
    at: int


_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|--[^\n]*)
    |(?P<comment>/\*)
    |(?P<escaped>[eE]'(?:[^'\\]|''|\\.)*')
    |(?P<string>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")+")
    |(?P<dollar>\$(?P<tag>(?:[A-Za-z_][A-Za-z0-9_]*)?)\$)
    |(?P<parameter>\$[0-9]+)
    |(?P<numeric>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<integer>[0-9]+)
    |(?P<name>[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*)
    |(?P<sign>::|:=|=>|[.,;:()\[\]])
    |(?P<operator>[-+*/<>=~!@\#%^&|`?]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE: Final = re.compile(r"''|\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.S)


def tokenize(sql: str) -> list[Token]:
    """Return the tokens of a text, with one of kind end behind them.

    Raises:
        InvalidSyntax: A character or an unclosed quotation cannot be read, or there are too many tokens.
    """
    tokens: list[Token] = []
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            raise InvalidSyntax(f'syntax error at or near "{sql[at]}"', position=at + 1)
        token, end = _token(sql, match)
        if token is not None:
            tokens.append(token)
            if len(tokens) > MAX_TOKENS:
                raise InvalidSyntax(f"the text has more than {MAX_TOKENS:,} words and signs")
        at = end
    return [*tokens, Token("end", "", len(sql))]


def _token(sql: str, match: re.Match[str]) -> tuple[Token | None, int]:
    at, text = match.start(), match[0]
    match match.lastgroup:
        case "blank":
            return None, match.end()
        case "comment":
            return None, _comment_end(sql, at)
        case "escaped":
            return Token("string", _unescape(text[2:-1]), at), match.end()
        case "string":
            return Token("string", text[1:-1].replace("''", "'"), at), match.end()
        case "quoted":
            return Token("quoted", text[1:-1].replace('""', '"')[:63], at), match.end()
        case "dollar" | "tag":
            return _dollar(sql, match["dollar"], at)
        case "name":
            return Token("name", text.lower()[:63], at), match.end()
        case "parameter":
            return Token("parameter", text[1:], at), match.end()
        case "operator":
            shown = _operator(text)
            return (Token("operator", shown, at), at + len(shown)) if shown else (None, _comment_or_end(sql, at))
        case kind:
            return Token(str(kind), text, at), match.end()


def _comment_end(sql: str, at: int) -> int:
    """Where a comment ends; comments nest."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(sql, at):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    raise InvalidSyntax("unterminated /* comment", position=at + 1)


def _comment_or_end(sql: str, at: int) -> int:
    if sql.startswith("/*", at):
        return _comment_end(sql, at)
    newline = sql.find("\n", at)
    return len(sql) if newline < 0 else newline


def _dollar(sql: str, tag: str, at: int) -> tuple[Token, int]:
    end = sql.find(tag, at + len(tag))
    if end < 0:
        raise InvalidSyntax("unterminated dollar-quoted string", position=at + 1)
    return Token("string", sql[at + len(tag) : end], at), end + len(tag)


def _operator(text: str) -> str:
    """The operator that a run of operator characters begins with: a comment ends it, and + and - seldom do."""
    for start in ("--", "/*"):
        if start in text:
            text = text[: text.index(start)]
    while len(text) > 1 and text[-1] in "+-" and not set(text) & set("~!@#%^&|`?"):
        text = text[:-1]
    return text


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        for group, base in ((1, 16), (2, 16), (3, 16), (4, 8)):
            if match[group]:
                return chr(int(match[group], base))
        return "'" if match[5] is None else _ESCAPES.get(match[5], match[5])

    return _ESCAPE.sub(replace, text)
