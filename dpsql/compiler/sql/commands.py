"""commands: what a session is told beside queries: settings, transactions, prepared statements, cursors, COPY."""

import re
from collections.abc import Callable
from dataclasses import replace

from sqlglot.tokenizer_core import Token, TokenType

from dpsql.compiler.sql.copy_command import copy
from dpsql.compiler.sql.cursor_commands import close, declare, fetch
from dpsql.compiler.sql.statements import (
    DeallocateStatement,
    DiscardStatement,
    ExecuteStatement,
    ListenStatement,
    LockStatement,
    PrepareStatement,
    ResetStatement,
    SetStatement,
    ShowStatement,
    Statement,
)
from dpsql.compiler.sql.tokens import Words
from dpsql.compiler.sql.transaction_commands import READERS as TRANSACTION_READERS
from dpsql.compiler.sql.transaction_commands import characteristics
from dpsql.errors import InvalidSyntax, UnsupportedQuery
from dpsql.sqltypes import SqlType, parse_type

_INFERRED = frozenset({"unknown", "oid", "name", "regclass", "regtype", "regproc", "regprocedure", "regnamespace"})
"""Types that a placeholder has only beside columns of the catalog, and has there anyway."""
_LENGTH = re.compile(r"\([^()]*\)")
_READERS: dict[str, Callable[[Words], Statement]] = {
    "DECLARE": declare,
    "FETCH": fetch,
    "MOVE": fetch,
    "CLOSE": close,
    "COPY": copy,
    **TRANSACTION_READERS,
}


def command(sql: str, tokens: list[Token]) -> Statement | None:
    """Read a command by its first word; None where there is none of that name.

    Raises:
        InvalidSyntax: It is not written as it must be.
        InvalidParameter: Options do not go together.
        PolicyViolation: It would write.
    """
    first = tokens[0].text.upper()
    words = Words(sql, tokens)
    if first in _READERS:
        return _READERS[first](words)
    if first == "PREPARE":
        return _prepare(words)
    if first == "EXECUTE":
        return _execute(words)
    if first == "SET" and (modes := characteristics(words)) is not None:
        return modes
    if first == "LOCK":
        return _lock(words)
    if first in ("LISTEN", "UNLISTEN"):
        words.need(first)
        if not (first == "UNLISTEN" and words.take("*")):
            words.name()
        words.end()
        return ListenStatement(first, words.text)
    return _session_statement(first, [token.text for token in tokens], tokens, words.text)


def _lock(words: Words) -> LockStatement:
    words.example = "LOCK TABLE t IN ACCESS SHARE MODE"
    words.need("LOCK")
    words.take("TABLE")
    words.take("ONLY")
    words.until("IN")
    words.need("IN", "ACCESS", "SHARE", "MODE")
    words.take("NOWAIT")
    words.end()
    return LockStatement(words.text)


def _prepare(words: Words) -> PrepareStatement:
    words.example = "PREPARE p (integer) AS SELECT $1 + 1"
    words.need("PREPARE")
    name = words.name()
    types = tuple(words.listed(lambda: _type(words))) if words.follows("(") else ()
    words.need("AS")
    return PrepareStatement(name, types, words.query(), words.text)


def _type(words: Words) -> SqlType | None:
    name = words.until(",", ")")
    bare = _LENGTH.sub("", name).strip().replace('"', "").lower().removeprefix("pg_catalog.")
    try:
        return None if bare.removesuffix("[]") in _INFERRED else parse_type(bare)
    except ValueError:
        raise UnsupportedQuery(
            f'type "{bare[:40]}" is not supported for parameters', hint="Leave the types out: dpsql infers them."
        ) from None


def _execute(words: Words) -> ExecuteStatement:
    words.example = "EXECUTE p (40)"
    words.need("EXECUTE")
    name = words.name()
    arguments = tuple(words.listed(lambda: words.until(",", ")"))) if words.follows("(") else ()
    words.end()
    return ExecuteStatement(name, arguments, words.text)


def _session_statement(first: str, words: list[str], tokens: list[Token], text: str) -> Statement | None:
    upper = [word.upper() for word in words]
    if first == "SET":
        statement = _set(words, tokens, text)
        return replace(statement, local=upper[1:2] == ["LOCAL"])
    if first == "SHOW":
        return ShowStatement(_name(upper, words, 1, text), text)
    if first == "RESET":
        name = _name(upper, words, 1, text)
        return ResetStatement(None if name == "all" else name, text)
    if first == "DISCARD":
        return DiscardStatement(_name(upper, words, 1, text), text)
    if first == "DEALLOCATE":
        at = 2 if upper[1:2] == ["PREPARE"] else 1
        quoted = len(tokens) == at + 1 and tokens[at].token_type == TokenType.IDENTIFIER
        name = words[at] if quoted else _name(upper, words, at, text)
        return DeallocateStatement(None if name == "all" and not quoted else name, text)
    return None


def _name(upper: list[str], words: list[str], at: int, text: str) -> str:
    """The setting that words[at:] name, in lower case: `dpsql . epsilon`, TIME ZONE and the like joined."""
    rest = upper[at:]
    special = {
        ("TIME", "ZONE"): "timezone",
        ("TRANSACTION", "ISOLATION", "LEVEL"): "transaction_isolation",
        ("SESSION", "AUTHORIZATION"): "session_authorization",
    }
    if tuple(rest) in special:
        return special[tuple(rest)]
    name = "".join(words[at:]).lower()
    if not name or not name.replace(".", "").replace("_", "").isalnum():
        raise InvalidSyntax(
            f"{upper[0]} must be followed by one name", hint="Write: SHOW dpsql.epsilon", position=len(text)
        )
    return name


def _set(words: list[str], tokens: list[Token], text: str) -> SetStatement:
    upper = [word.upper() for word in words]
    at = 2 if upper[1:2] in (["SESSION"], ["LOCAL"]) else 1
    if upper[at : at + 2] == ["TIME", "ZONE"]:
        return _set_value("timezone", words[at + 2 :], tokens[at + 2 :], text)
    if upper[at : at + 1] == ["NAMES"]:
        return _set_value("client_encoding", words[at + 1 :], tokens[at + 1 :], text)
    for index in range(at, len(words)):
        if words[index] == "=" or upper[index] == "TO":
            name = _name(upper[:index], words[:index], at, text)
            return _set_value(name, words[index + 1 :], tokens[index + 1 :], text)
    raise InvalidSyntax(
        "SET must be followed by a name and a value", hint="Write: SET dpsql.epsilon = DEFAULT", position=len(text)
    )


def _set_value(name: str, words: list[str], tokens: list[Token], text: str) -> SetStatement:
    if not words:
        raise InvalidSyntax(
            f"SET {name} must be followed by a value", hint=f"Write: SET {name} = DEFAULT", position=len(text)
        )
    quoted = tokens[0].token_type in (TokenType.STRING, TokenType.IDENTIFIER)
    if len(words) == 1 and not quoted and words[0].upper() == "DEFAULT":
        return SetStatement(name, None, text)
    if name == "timezone" and len(words) == 1 and not quoted and words[0].upper() == "LOCAL":
        return SetStatement(name, None, text)
    if name == "timezone" and not quoted and words[0].upper() == "INTERVAL":
        return SetStatement(name, text[tokens[0].start - tokens[-1].end - 1 :], text)
    # A sign stands against its number and list items are joined as PostgreSQL prints them.
    value = "".join(word + " " if word == "," else word for word in words)
    return SetStatement(name, value, text)
