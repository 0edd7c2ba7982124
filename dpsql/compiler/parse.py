"""parse: SQL text into statements; nothing is looked up and nothing is allowed yet.

Rule 1: text is bounded before it is parsed, and trees are bounded before they are walked.
Rule 2: a statement is known by its first word; what is not known is refused by name.
"""

from collections.abc import Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.compiler.commands import command
from dpsql.compiler.dialect import PlainPostgres, tokens_of
from dpsql.compiler.statements import QUERY_WORDS, EmptyStatement, ExplainStatement, QueryStatement, Statement
from dpsql.errors import InvalidSyntax, QueryTooComplex, UnsupportedQuery

MAX_CHARACTERS = 100_000
MAX_TOKENS = 10_000
MAX_STATEMENTS = 100
MAX_DEPTH = 100


_OFF = frozenset({"OFF", "FALSE", "0"})
_OPTIONS = {
    "FORMAT": frozenset({"TEXT", "JSON"}),
    **dict.fromkeys(("VERBOSE", "COSTS", "SUMMARY"), _OFF | {"", "ON", "TRUE", "1"}),
    **dict.fromkeys(("ANALYZE", "BUFFERS", "GENERIC_PLAN", "MEMORY", "SERIALIZE", "SETTINGS", "TIMING", "WAL"), _OFF),
}
"""What each option of EXPLAIN may be: what is told, or off."""


def parse(sql: str) -> tuple[Statement, ...]:
    """Split text into statements.

    Returns:
        At least one statement; text without any is one EmptyStatement.

    Raises:
        InvalidSyntax: The text cannot be read as SQL.
        QueryTooComplex: It is longer than the limits of this file.
        UnsupportedQuery: A statement is of a kind that dpsql does not run.
    """
    tokens = _tokenize(sql)
    groups: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            groups.append([])
        else:
            groups[-1].append(token)
    filled = [group for group in groups if group]
    if len(filled) > MAX_STATEMENTS:
        raise QueryTooComplex(
            f"more than {MAX_STATEMENTS} statements in one text", hint="Send them one at a time, or in smaller scripts."
        )
    return tuple(_statement(sql, group) for group in filled) or (EmptyStatement(),)


def parse_query(statement: QueryStatement) -> exp.Query:
    """Return the syntax tree of one query.

    Raises:
        InvalidSyntax: The text is not a query.
        QueryTooComplex: The tree is deeper than MAX_DEPTH.
    """
    try:
        tree = sqlglot.parse_one(statement.sql, dialect=PlainPostgres)
        deep = _depth(tree) > MAX_DEPTH
    except ParseError as error:
        raise _syntax_error(statement, error) from None
    except RecursionError:
        deep = True
    except Exception:  # of any kind: it is the parser's own
        raise InvalidSyntax("the query cannot be read", position=statement.offset + 1) from None
    if deep:
        raise QueryTooComplex(
            f"the query nests deeper than {MAX_DEPTH} levels", hint="Use an IN list instead of nested conditions."
        )
    if not isinstance(tree, exp.Query | exp.Values):
        raise InvalidSyntax("this is not a query", position=statement.offset + 1, hint="Begin with SELECT.")
    return tree  # type: ignore[return-value]  # Values answers like a query


def _tokenize(sql: str) -> Sequence[Token]:
    if len(sql) > MAX_CHARACTERS:
        raise QueryTooComplex(f"the text is longer than {MAX_CHARACTERS:,} characters")
    for position, character in enumerate(sql, 1):
        if character == "\x00" or "\ud800" <= character <= "\udfff":
            raise InvalidSyntax("a NUL character or half a character may not stand in SQL", position=position)
    try:
        tokens = tokens_of(sql)
    except (TokenError, ValueError):
        raise InvalidSyntax("a quoted string, identifier or comment is not closed") from None
    if len(tokens) > MAX_TOKENS:
        raise QueryTooComplex(f"the text has more than {MAX_TOKENS:,} words and signs")
    return tokens


def _depth(tree: exp.Expr) -> int:
    """The depth of a tree, in which a chain of the same connector or UNION counts as one level."""
    deepest = 0
    stack: list[tuple[exp.Expr, int]] = [(tree, 1)]
    while stack:
        node, level = stack.pop()
        deepest = max(deepest, level)
        for child in node.iter_expressions():
            chained = isinstance(node, exp.Connector) and type(child) is type(node)
            stack.append((child, level if chained else level + 1))
    return deepest


def _syntax_error(statement: QueryStatement, error: ParseError) -> InvalidSyntax:
    details = error.errors[0] if error.errors else {}
    near = str(details.get("highlight") or "").strip()
    line, column = int(details.get("line") or 1), int(details.get("col") or 0)
    start = sum(len(part) for part in statement.sql.splitlines(keepends=True)[: line - 1])
    position = statement.offset + max(1, start + column - len(near) + 1)
    return InvalidSyntax(f'syntax error at or near "{near}"' if near else "syntax error", position=position)


def _statement(sql: str, tokens: list[Token]) -> Statement:
    start = tokens[0].start
    text = sql[start : tokens[-1].end + 1]
    words = [token.text for token in tokens]
    first = words[0].upper()
    if tokens[0].token_type in (TokenType.STRING, TokenType.IDENTIFIER):
        raise InvalidSyntax(f'syntax error at or near "{words[0]}"', position=start + 1)
    if first in QUERY_WORDS:
        return QueryStatement(text, start)
    if first == "EXPLAIN":
        return _explain(sql, tokens, text)
    other = command(sql, tokens)
    if other is not None:
        return other
    raise UnsupportedQuery(
        f"{first} is not supported: dpsql answers queries only",
        hint="SELECT COUNT(*) FROM …; SELECT * FROM dpsql.columns; shows the tables and columns.",
        position=start + 1,
    )


def _explain(sql: str, tokens: list[Token], text: str) -> ExplainStatement:
    words = [token.text.upper() for token in tokens]
    at, json = 1, False
    if words[1:2] == ["("] and words[2:3] and words[2] not in QUERY_WORDS:
        at = words.index(")") + 1 if ")" in words else len(words)
        json = _explain_options(words[2 : at - 1], tokens[2].start + 1)
    if words[at : at + 1] == [] or words[at] not in QUERY_WORDS:
        raise UnsupportedQuery(
            "EXPLAIN takes a query", hint="EXPLAIN SELECT COUNT(*) FROM …", position=tokens[0].start + 1
        )
    inner = sql[tokens[at].start : tokens[-1].end + 1]
    return ExplainStatement(QueryStatement(inner, tokens[at].start), text, json)


def _explain_options(words: list[str], position: int) -> bool:
    """Whether the options of EXPLAIN ask for JSON.

    Raises:
        UnsupportedQuery: One asks for what is not told.
    """
    options = " ".join(words).split(" , ")
    for option in options:
        name, _, value = option.partition(" ")
        if value not in _OPTIONS.get(name, ()):
            raise UnsupportedQuery(
                f"EXPLAIN does not take the option {option}",
                hint="EXPLAIN (FORMAT JSON) SELECT COUNT(*) FROM …",
                position=position,
            )
    return "FORMAT JSON" in options
