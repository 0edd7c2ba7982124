"""postgres_syntax: sqlglot's PostgreSQL parser, without the rewrites that lose parts of the text.

Rule 1: a function of dpsql stays a plain call with its arguments; the parser would rename, reorder and drop some.
Rule 2: INTERVAL 'text' is parsed as 'text'::interval, because the parser keeps only a part of the text.
Rule 3: a dot must follow a name; the parser would ignore a dot before the first name.
Rule 4: $1,$2 are two parameters; the parser's tokenizer would start a string with the delimiter $1,$ there.

Catalog queries of clients need more. In these, every function is a plain call. The parser refuses three constructs that
clients were seen to use: arrays of object identifier types (oid[]), lock as an alias, and words such as SELECT after AS
or a dot. These words are turned into names first.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import DialectType
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.compiler.ir.functions import CALLS, INTERVAL_FIELDS

_MARK = "\x00"
"""Stands behind a name that the parser must not know; no text that is parsed holds it."""
WRITTEN = "written"
"""In a function's meta: its name as the analyst wrote it."""
_BEFORE_NAMES = frozenset({"FROM", "JOIN", "ONLY", "LATERAL", ",", "(", "."})
"""Behind these a relation may be named."""
_NODES, _NODES_PER_TOKEN = 1000, 10
"""The parser may make so many nodes, those of attempts that it gives up included; a tree has at most one a token."""
_GRAMMAR = frozenset(
    {
        *("cast", "extract", "position", "substring", "trim"),
        *("all", "any", "array", "collate", "exists", "filter", "group", "ilike", "like", "materialized", "null"),
        *("offset", "some", "table", "union", "window", "within"),
    }
)
"""Words that the parser must know before a parenthesis."""
_CALLED = Postgres.parser_class.FUNC_TOKENS | {TokenType.TRIGGER}
_WORD_CALLS = frozenset(
    {
        *("current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"),
        *("current_user", "localtime", "localtimestamp", "session_user", "user"),
    }
)
"""Functions that are called without parentheses."""
_WORD_TYPES = frozenset({TokenType.VAR, *Postgres.parser_class.NO_PAREN_FUNCTIONS})
_JSON_OPERATORS = frozenset({TokenType.ARROW, TokenType.DARROW, TokenType.HASH_ARROW, TokenType.DHASH_ARROW})
_KEY_OPERATORS = frozenset({TokenType.QMARK_PIPE, TokenType.QMARK_AMP})
_PLAIN_OPERATORS = frozenset(
    {
        *_JSON_OPERATORS,
        *(TokenType.CARET_AT, TokenType.AT_GT, TokenType.LT_AT, TokenType.DAMP),
    }
)
"""Operators that the parser would give a meaning of its own."""
_NAMES = frozenset({TokenType.UNKNOWN, TokenType.LOCK})
"""Words that are names to PostgreSQL, and more to the parser."""
_LABELS = frozenset(Postgres.Tokenizer.KEYWORDS.values()) - Postgres.parser_class.ID_VAR_TOKENS - {TokenType.NOT}
"""Words that can be names only behind AS and a dot."""
_DOLLAR_QUOTE = re.compile(r"(?<![\w$])\$(?:[^\W\d]\w*)?\$")


_PARSED_CALLS = {name.lower() for name in Postgres.parser_class.FUNCTION_PARSERS}
_PLAIN_CALLS = CALLS.keys() | {"generate_series"} | _PARSED_CALLS - _GRAMMAR - {"overlay", "char"}
"""Functions of ours, and those for which the parser has a grammar and a name of its own; char(n) is a type."""


class _Words(Postgres.Tokenizer):
    """PostgreSQL's lexical structure, without the words after which sqlglot takes all text as one."""

    COMMANDS: ClassVar[set[TokenType]] = set()


class _WordsAndParameters(_Words):
    """The same, without texts between dollar signs."""

    HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
    SINGLE_TOKENS: ClassVar[dict[str, TokenType]] = {**_Words.SINGLE_TOKENS, "$": TokenType.PARAMETER}


def tokens_of(sql: str) -> list[Token]:
    """Return the tokens of a text; if it has dollar-quoted strings, parameters are read without the workaround."""
    kind = _Words if _DOLLAR_QUOTE.search(sql) else _WordsAndParameters
    return kind(dialect=Postgres()).tokenize(sql)


class PlainPostgres(Postgres):
    """PostgreSQL's dialect, by the rules of this file."""

    INDEX_OFFSET = 0  # subscripts stay as written: the parser would count only some arrays from 0

    def tokenize(self, sql: str, dialect: DialectType = None) -> list[Token]:
        """The tokens of a text, arranged so that the parser keeps to the rules."""
        tokens = tokens_of(sql)
        _check_dots(tokens)
        return self._arranged(_with_cast_intervals(tokens))

    def _arranged(self, tokens: Sequence[Token]) -> list[Token]:
        return _with_plain_calls(tokens)

    def parse(self, sql: str, **opts: Any) -> list[exp.Expr | None]:
        """The trees of a text, in which the marks are gone."""
        tokens = self.tokenize(sql)
        parser = self.parser(max_nodes=_NODES + _NODES_PER_TOKEN * len(tokens), **opts)
        try:
            trees = parser.parse(tokens, sql)
        except ParseError as error:
            if str(error).startswith("Maximum number of AST nodes"):
                raise TooManyNodes from None
            raise
        for tree in trees:
            for node in tree.walk() if tree is not None else ():
                if isinstance(node, exp.Anonymous | exp.Identifier) and isinstance(node.this, str):
                    node.set("this", node.this.removesuffix(_MARK))
                if isinstance(node, exp.Func) and "start" in node.meta:
                    node.meta[WRITTEN] = sql[node.meta["start"] : node.meta["end"] + 1]
        return trees


class CatalogPostgres(PlainPostgres):
    """PostgreSQL's dialect for catalog queries."""

    def _arranged(self, tokens: Sequence[Token]) -> list[Token]:
        return _with_catalog_words(tokens)


class TooManyNodes(Exception):
    """The parser tries a text in too many ways."""


def print_sql(node: exp.Expr) -> str:
    """A syntax tree as text on one line."""
    return node.sql(dialect=PlainPostgres, comments=False)


def read_tree(sql: str) -> exp.Expr:
    """The syntax tree of a text.

    Raises:
        ParseError: The text is not SQL.
        TooManyNodes: The parser would take too long.
    """
    return sqlglot.parse_one(sql, dialect=PlainPostgres)


def read_catalog_tree(sql: str) -> exp.Expr:
    """The syntax tree of a text as catalog queries are read.

    Raises:
        ParseError: The text is not SQL.
        TooManyNodes: The parser would take too long.
    """
    return sqlglot.parse_one(sql, dialect=CatalogPostgres)


def read_both(sql: str) -> None:
    """Parse a text in both ways, to measure the time that they take.

    Raises:
        MemoryError: One takes too much memory; other errors are ignored.
    """
    for read in (read_tree, read_catalog_tree):
        try:
            read(sql)
        except MemoryError:
            raise
        except Exception:  # noqa: S112  # of any kind: it is the parser's own
            continue


def _check_dots(tokens: Sequence[Token]) -> None:
    """Refuse a dot where a name belongs; one before digits is a part of their number."""
    for before, token, following in zip(tokens, tokens[1:], tokens[2:], strict=False):
        of_name = token.token_type == TokenType.DOT and following.token_type != TokenType.NUMBER
        quoted = before.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        if of_name and not quoted and before.text.upper() in _BEFORE_NAMES:
            raise ParseError.new("a dot without a name", line=token.line, col=token.col, highlight=token.text)


def _with_plain_calls(tokens: Sequence[Token]) -> list[Token]:
    """Mark each name of a dpsql function before a parenthesis; * REPLACE (…) is no call. Name operators of JSON."""
    found = []
    for before, token, following in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        called = following is not None and following.token_type == TokenType.L_PAREN
        literal = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        of_star = before is not None and before.token_type == TokenType.STAR and token.text.upper() == "REPLACE"
        if called and not literal and not of_star and token.text.lower() in _PLAIN_CALLS:
            token = _at(token, TokenType.VAR, token.text + _MARK)
        ahead = following.token_type if following is not None else None
        is_key = token.token_type == TokenType.PLACEHOLDER and ahead in (TokenType.STRING, TokenType.PARAMETER)
        is_named = ahead == TokenType.R_PAREN  # the end of OPERATOR(->)
        is_operator = (is_key or token.token_type in _JSON_OPERATORS | _KEY_OPERATORS) and not is_named
        found += _operator(token) if is_operator else [token]
    return found


def _operator(token: Token) -> list[Token]:
    """An operator as OPERATOR(…), of which the parser keeps both sides as they are."""
    opening, closing = _at(token, TokenType.L_PAREN, "("), _at(token, TokenType.R_PAREN, ")")
    return [_at(token, TokenType.OPERATOR, "OPERATOR"), opening, token, closing]


def _with_catalog_words(tokens: Sequence[Token]) -> list[Token]:
    """Write each word and operator so that the parser takes it for what it is to PostgreSQL."""
    found: list[Token] = []
    for before, token, following in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        behind = None if before is None else before.token_type
        found += _catalog_words(behind, token, None if following is None else following.token_type)
    return found


def _catalog_words(behind: TokenType | None, token: Token, ahead: TokenType | None) -> list[Token]:
    """Return the tokens that replace a token between two others."""
    kind, word = token.token_type, token.text.lower()
    opening, closing = _at(token, TokenType.L_PAREN, "("), _at(token, TokenType.R_PAREN, ")")
    named = behind in (TokenType.DCOLON, TokenType.ALIAS)  # a type or an alias
    called = kind in _CALLED and word.isidentifier() and word not in _GRAMMAR
    if kind in _PLAIN_OPERATORS and ahead != TokenType.R_PAREN:  # the end of OPERATOR(pg_catalog.<@)
        return _operator(token)
    if ahead == TokenType.L_PAREN and not named and (called or kind == TokenType.IDENTIFIER):
        return [_at(token, kind if kind == TokenType.IDENTIFIER else TokenType.VAR, token.text + _MARK)]
    if word in _WORD_CALLS and kind in _WORD_TYPES and not named and behind != TokenType.DOT:
        return [_at(token, TokenType.VAR, word + _MARK), opening, closing]
    label = behind in (TokenType.ALIAS, TokenType.DOT) and kind in _LABELS
    if kind in _NAMES or label or (kind == TokenType.OBJECT_IDENTIFIER and ahead != TokenType.STRING):
        return [_at(token, TokenType.VAR, token.text)]
    return [token]


def _with_cast_intervals(tokens: Sequence[Token]) -> list[Token]:
    """Write INTERVAL 'text' field TO field as ('text'::INTERVAL field TO field)."""
    found: list[Token] = []
    index = 0
    while index < len(tokens):
        token, rest = tokens[index], tokens[index + 1 : index + 5]
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
