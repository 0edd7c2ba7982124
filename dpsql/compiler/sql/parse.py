"""parse: SQL text into statements; names are not resolved and privileges not checked yet.

Rule 1: text is bounded before it is parsed, and trees are bounded before they are walked.
    The parser's time is bounded in three ways: by the text's shape, by the nodes that it makes, and by a trial.
    It tries a text in one way and then in another. Where such places are nested, its time doubles with each level, and
    nothing can interrupt it. So such texts are refused before it sees them.
Rule 2: the first word determines the kind of statement; unknown ones are refused by name.
Rule 3: JOIN without ON or USING, and LIMIT with two numbers, are refused, as in PostgreSQL; the parser reads both.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.compiler.sql.commands import command
from dpsql.compiler.sql.postgres_syntax import TooManyNodes, read_both, read_catalog_tree, read_tree, tokens_of
from dpsql.compiler.sql.statements import (
    QUERY_WORDS,
    EmptyStatement,
    ExplainStatement,
    QueryStatement,
    Statement,
    WorkloadStatement,
)
from dpsql.errors import InvalidSyntax, LimitExceeded, UnsupportedQuery
from dpsql.limits.trial import Trial


def position(node: exp.Expr, offset: int = 0) -> int | None:
    """Return the 1-based character index of `node`'s first known token, or None."""
    # The token of a parameter is its number; the sign precedes it.
    starts = [
        part.meta["start"] - isinstance(part.parent, exp.Parameter) for part in node.walk() if "start" in part.meta
    ]
    # TABLE is parsed as a SELECT with words that the text does not contain.
    return max(offset + min(starts), 0) + 1 if starts else None


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
        LimitExceeded: Brackets, subscripts or joins without conditions are more than the limits of this file.
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


_NAMING: Final = {TokenType.ALIAS, TokenType.DOT}
"""Behind these a reserved word is a name."""


def check_limits(sql: str, tokens: Sequence[Token], offset: int = 0) -> None:
    """Refuse `LIMIT 10, 20`, in which MySQL has the offset first.

    Raises:
        InvalidSyntax: A comma follows LIMIT before its clause ends.
    """
    limits: list[int | None] = [None]
    before: TokenType | None = None
    for index, token in enumerate(tokens):
        kind, limit = token.token_type, limits[-1]
        if kind == TokenType.COMMA and limit is not None:
            start, skipped = tokens[limit].start, sql[tokens[limit].end + 1 : token.start].strip()
            query = f"{sql[:start]}OFFSET {skipped} LIMIT{sql[token.end + 1 :]}"
            what, hint = "LIMIT #,# syntax is not supported", "Use separate LIMIT and OFFSET clauses."
            raise InvalidSyntax(what, hint=hint, position=offset + start + 1, queries=(query,))
        if kind in _OPENING:
            limits.append(None)
        elif kind in _CLOSING:
            limits[1:] = limits[1:-1]
        elif kind == TokenType.LIMIT and before not in _NAMING:
            limits[-1] = index
        elif kind in _ENDS or kind == TokenType.FOR:
            limits[-1] = None
        before = kind


def _refusal(message: str, token: Token, offset: int) -> LimitExceeded:
    hint = "Give each join its condition with ON or USING." if "joins" in message else None
    return LimitExceeded(message, hint=hint, position=offset + token.start + 1)


_BEHIND_A_LIST = frozenset(
    {
        *(TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.LIMIT),
        *(TokenType.R_PAREN, TokenType.R_BRACKET),
    }
)
"""What stands behind a list."""
MAX_CHARACTERS = 100_000
MAX_TOKENS = 10_000
MAX_STATEMENTS = 100
MAX_DEPTH = 100
MAX_UNTRIED = 50
"""Words and signs of a query that is parsed without a trial: where time doubles with every second of them, a second."""
PARSER_SECONDS = 1.0
"""Processor time of a trial."""

_COLUMNS = "This lists the tables and columns. Write: SELECT * FROM dpsql.columns"
_PLAN = "Leave ANALYZE out: a query is not run to explain it. "
_NOT_STORED = (
    "Results are not stored. Name the query in WITH. Write: WITH t AS (SELECT * FROM dpsql.columns) SELECT * FROM t"
)
_BEFORE_NAMES = frozenset({"SELECT", "FROM", "WHERE", "BY", "AND", "OR", "(", "."})
"""Behind these, a bracket does not belong to an array."""
_FOREIGN_NAME = re.compile(r"`([^`]*)`|(?<=[\s(.])\[(\w+)\]")
"""A name as MySQL or SQL Server quotes it."""
_QUOTED = re.compile(
    r"""'[^']*'|"[^"]*"|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$|(?P<opened>'|"|/\*|\$\w*\$)""", re.DOTALL
)
_WHOLE = "SELECT * FROM "
"""What TABLE stands for."""
_STATEMENTS = frozenset(
    {
        *("ALTER", "ANALYZE", "ATTACH", "CALL", "CHECKPOINT", "CLUSTER", "COMMENT", "COPY", "CREATE", "DELETE", "DESC"),
        *("DESCRIBE", "DETACH", "DO", "DROP", "EXPORT", "FORCE", "FROM", "GRANT", "IMPORT", "INSERT", "INSTALL"),
        *("LISTEN", "LOAD", "LOCK", "MERGE", "NOTIFY", "PIVOT", "PRAGMA", "REASSIGN", "REFRESH", "REINDEX", "REPLACE"),
        *("REVOKE", "SECURITY", "SUMMARIZE", "TRUNCATE", "UNLISTEN", "UNPIVOT", "UPDATE", "USE", "VACUUM"),
    }
)
"""What statements of PostgreSQL and DuckDB begin with that are not supported; other words begin none."""
_OFF = frozenset({"OFF", "FALSE", "0"})
_ON = frozenset({"", "ON", "TRUE", "1"})
_OPTIONS = {
    "FORMAT": frozenset({"TEXT", "JSON"}),
    **dict.fromkeys(("VERBOSE", "COSTS", "SUMMARY", "WORKLOAD"), _OFF | _ON),
    **dict.fromkeys(("ANALYZE", "BUFFERS", "GENERIC_PLAN", "MEMORY", "SERIALIZE", "SETTINGS", "TIMING", "WAL"), _OFF),
}
"""What each option of EXPLAIN may be: what is told, or off."""


def parse(sql: str) -> tuple[Statement, ...]:
    """Split text into statements.

    Returns:
        At least one statement; text without any is one EmptyStatement.

    Raises:
        InvalidSyntax: The text cannot be read as SQL.
        LimitExceeded: It is longer than the limits of this file.
        UnsupportedQuery: A statement is of a kind that dpsql does not run.
    """
    tokens = tokenize(sql)
    groups: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            groups.append([])
        else:
            groups[-1].append(token)
    filled = [group for group in groups if group]
    if len(filled) > MAX_STATEMENTS:
        raise LimitExceeded(
            f"more than {MAX_STATEMENTS} statements in one text", hint="Send fewer statements at a time."
        )
    return _with_workloads(_statement(sql, group) for group in filled) or (EmptyStatement(),)


def _with_workloads(statements: Iterable[Statement]) -> tuple[Statement, ...]:
    """Statements in which EXPLAIN (WORKLOAD) has all queries that follow it.

    Raises:
        UnsupportedQuery: It has one query only.
    """
    found: list[Statement] = []
    for each in statements:
        last = found[-1] if found else None
        if isinstance(last, WorkloadStatement) and isinstance(each, QueryStatement):
            found[-1] = replace(last, queries=(*last.queries, each), sql=f"{last.sql}; {each.sql}")
        else:
            found.append(each)
    for each in found:
        if isinstance(each, WorkloadStatement) and len(each.queries) < 2:
            raise UnsupportedQuery(
                "EXPLAIN (WORKLOAD) needs several queries in one message; in psql, separate them by \\;",
                hint="Write: EXPLAIN (WORKLOAD) SELECT * FROM dpsql.budget; SELECT * FROM dpsql.columns",
                position=each.queries[0].offset + 1,
            )
    return tuple(found)


def parse_query(statement: QueryStatement) -> exp.Query:
    """Return the syntax tree of one query.

    Raises:
        InvalidSyntax: The text is not a query.
        LimitExceeded: The tree is deeper than MAX_DEPTH, or the parser would take too long.
    """
    return _bounded(statement, read_tree)


def parse_catalog_query(sql: str) -> exp.Query:
    """Return the syntax tree of a query as the catalog reads it.

    Raises:
        InvalidSyntax: The text is not a query.
        LimitExceeded: The tree is deeper than MAX_DEPTH, or the parser would take too long.
    """
    return _bounded(QueryStatement(sql), read_catalog_tree)


def _bounded(statement: QueryStatement, read: Callable[[str], exp.Expr]) -> exp.Query:
    try:
        tokens = tokens_of(statement.sql)
        _check_words(statement, tokens)
        check_shape(tokens, statement.offset)
        check_limits(statement.sql, tokens, statement.offset)
        if len(tokens) > MAX_UNTRIED:
            _try(statement.sql)
        tree = read(statement.sql)
        deep = _depth(tree) > MAX_DEPTH
    except (LimitExceeded, InvalidSyntax):
        raise
    except TooManyNodes:
        raise _too_long() from None
    except ParseError as error:
        raise _syntax_error(statement, error) from None
    except RecursionError:
        deep = True
    except Exception:  # of any kind: it is the parser's own
        raise InvalidSyntax("syntax error", position=statement.offset + 1) from None
    if deep:
        raise LimitExceeded(
            f"the query nests deeper than {MAX_DEPTH} levels", hint="Use an IN list instead of nested conditions."
        )
    if not isinstance(tree, exp.Query | exp.Values):
        raise InvalidSyntax("expected a query", position=statement.offset + 1, hint=_COLUMNS)
    return tree  # type: ignore[return-value]  # Values answers like a query


def _check_words(statement: QueryStatement, tokens: Sequence[Token]) -> None:
    """Refuse what the parser takes and PostgreSQL does not: a comma behind the last item, and TOP.

    Raises:
        InvalidSyntax: One is there.
    """
    sql = statement.sql
    for place, token in enumerate(tokens):
        following = tokens[place + 1 : place + 5]
        if token.token_type == TokenType.COMMA and (not following or following[0].token_type in _BEHIND_A_LIST):
            raise InvalidSyntax(
                'syntax error at or near ","',
                hint="Leave out the comma behind the last item.",
                position=statement.offset + token.start + 1,
                queries=(sql[: token.start] + sql[token.end + 1 :],),
            )
        kinds = tuple(each.token_type for each in following)
        is_bracket = token.text == "[" and kinds[1:2] == (TokenType.R_BRACKET,)
        if token.text == "`" or (is_bracket and tokens[place - 1].text.upper() in _BEFORE_NAMES):
            name = sql[token.start + 1 : following[0].end + 1] if following else ""
            raise InvalidSyntax(
                f'syntax error at or near "{token.text}"',
                hint=f'PostgreSQL quotes names as in "{name}".',
                position=statement.offset + token.start + 1,
                queries=(_FOREIGN_NAME.sub(r'"\1\2"', sql),),
            )
        if token.token_type != TokenType.SELECT or not following or following[0].text.upper() != "TOP":
            continue
        bracket = kinds[1:4] == (TokenType.L_PAREN, TokenType.NUMBER, TokenType.R_PAREN)
        if bracket or kinds[1:2] == (TokenType.NUMBER,):
            count, last = (following[2], following[3]) if bracket else (following[1], following[1])
            end = _end_of_query(tokens, place, len(sql))
            raise InvalidSyntax(
                f'syntax error at or near "{following[0].text}"',
                hint="PostgreSQL has LIMIT at the end of a query in the place of TOP.",
                position=statement.offset + following[0].start + 1,
                queries=(f"{sql[: token.end + 1]}{sql[last.end + 1 : end]} LIMIT {count.text}{sql[end:]}",),
            )


def _end_of_query(tokens: Sequence[Token], place: int, end: int) -> int:
    """Return the position of the closing parenthesis around a token, or the end of the text."""
    open_brackets = 0
    for token in tokens[place:]:
        open_brackets += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if open_brackets < 0:
            return token.start
    return end


_trial = Trial(read_both, PARSER_SECONDS)


def start_trial() -> None:
    """Start the process of trials, for which the first long text would wait."""
    _trial.start()


@lru_cache(maxsize=100)
def _try(sql: str) -> None:
    """Refuse a text that the parser does not end with in time; what has passed is not tried again."""
    if not _trial(sql):
        raise _too_long()


def _too_long() -> LimitExceeded:
    return LimitExceeded(
        "the query takes too long to parse", hint="Use fewer levels of brackets, and fewer joins and CASE branches."
    )


def tokenize(sql: str) -> Sequence[Token]:
    """Return the tokens of a text.

    Raises:
        InvalidSyntax: The text cannot be taken apart.
        LimitExceeded: It is longer than the limits of this file.
    """
    if len(sql) > MAX_CHARACTERS:
        raise LimitExceeded(f"the text is longer than {MAX_CHARACTERS:,} characters")
    for position, character in enumerate(sql, 1):
        if character == "\x00" or "\ud800" <= character <= "\udfff":
            raise InvalidSyntax("SQL must not contain a NUL character or half of a surrogate pair", position=position)
    try:
        tokens = tokens_of(sql)
    except (TokenError, ValueError):
        raise InvalidSyntax("a quoted string, identifier or comment is not closed", position=_opened(sql)) from None
    if len(tokens) > MAX_TOKENS:
        raise LimitExceeded(f"the text has more than {MAX_TOKENS:,} tokens")
    return tokens


def _opened(sql: str) -> int | None:
    """The position of the first quote or comment that is not closed; None if another part of the text is wrong."""
    return next((found.start() + 1 for found in _QUOTED.finditer(sql) if found.lastgroup == "opened"), None)


def _depth(tree: exp.Expr) -> int:
    """The depth of a tree, in which a chain of the same connector or UNION counts as one level."""
    deepest = 0
    stack: list[tuple[exp.Expr, int]] = [(tree, 1)]
    while stack:
        node, level = stack.pop()
        deepest = max(deepest, level)
        for child in node.iter_expressions():
            chained = isinstance(node, exp.Connector | exp.Union) and type(child) is type(node)
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
    if first == "TABLE" and len(tokens) > 1:
        rest = tokens[1].start
        return QueryStatement(f"{_WHOLE}{sql[rest : tokens[-1].end + 1]}", rest - len(_WHOLE))
    other = command(sql, tokens)
    if other is not None:
        return other
    if first not in _STATEMENTS:
        raise InvalidSyntax(f'syntax error at or near "{words[0]}"', position=start + 1)
    raise UnsupportedQuery(
        f"{first} is not supported: dpsql is read-only",
        hint=_NOT_STORED if first == "CREATE" and "AS" in map(str.upper, words) else _COLUMNS,
        position=start + 1,
    )


def _explain(sql: str, tokens: list[Token], text: str) -> ExplainStatement | WorkloadStatement:
    words = [token.text.upper() for token in tokens]
    at, json, workload = 1, False, False
    has_options = words[1:2] == ["("] and words[2:3] != [] and words[2] not in QUERY_WORDS
    if has_options:
        at = words.index(")") + 1 if ")" in words else len(words)
    first = next((token for token, word in zip(tokens[at:], words[at:], strict=True) if word in QUERY_WORDS), None)
    asked = sql[first.start : tokens[-1].end + 1] if first is not None else ""
    example = asked if 0 < len(asked) <= _MAX_EXAMPLE else "SELECT * FROM dpsql.columns"
    if has_options:
        json, workload = _explain_options(words[2 : at - 1], example, tokens[2].start + 1)
    if words[at : at + 1] == [] or words[at] not in QUERY_WORDS:
        raise UnsupportedQuery(
            "EXPLAIN must be followed by a query, without ANALYZE",
            hint=f"{_PLAN if words[at : at + 1] == ['ANALYZE'] else ''}Write: EXPLAIN {example}",
            position=tokens[0].start + 1,
        )
    inner = sql[tokens[at].start : tokens[-1].end + 1]
    query = QueryStatement(inner, tokens[at].start)
    return WorkloadStatement((query,), text, json) if workload else ExplainStatement(query, text, json)


_MAX_EXAMPLE = 1_000
"""Characters of a query that a hint repeats."""


def _explain_options(words: list[str], example: str, position: int) -> tuple[bool, bool]:
    """Return whether the options of EXPLAIN request JSON, and whether a workload is explained.

    Args:
        words: The options.
        example: The query that a hint explains.
        position: Where the options begin.

    Raises:
        UnsupportedQuery: An option is not supported.
    """
    found: dict[str, str] = {}
    for option in " ".join(words).split(" , "):
        name, _, value = option.partition(" ")
        if value not in _OPTIONS.get(name, ()):
            raise UnsupportedQuery(
                f"EXPLAIN does not support the option {option}",
                hint=f"Write: EXPLAIN {example}" if name != "FORMAT" else f"Write: EXPLAIN (FORMAT JSON) {example}",
                position=position,
            )
        found[name] = value
    return found.get("FORMAT") == "JSON", found.get("WORKLOAD") in _ON
