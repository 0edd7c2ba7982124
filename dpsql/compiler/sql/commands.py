"""commands: session statements other than queries: settings, prepared statements, transactions, cursors and COPY.

The grammar is that of the PostgreSQL manual. COPY … TO STDOUT takes its options in the current and the old syntax.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from dpsql.compiler.sql.statements import (
    CharacteristicsStatement,
    CloseStatement,
    CopyOptions,
    CopyStatement,
    DeallocateStatement,
    DeclareStatement,
    DiscardStatement,
    ExecuteStatement,
    FetchStatement,
    ListenStatement,
    LockStatement,
    Modes,
    PrepareStatement,
    QueryStatement,
    ResetStatement,
    SetStatement,
    ShowStatement,
    Statement,
    TransactionStatement,
)
from dpsql.compiler.sql.tokens import Words
from dpsql.errors import InvalidParameter, InvalidSyntax, PolicyViolation, UnsupportedQuery
from dpsql.sqltypes import SqlType, parse_type

_MODES: Final = {
    "ISOLATION LEVEL SERIALIZABLE": ("isolation", "serializable"),
    "ISOLATION LEVEL REPEATABLE READ": ("isolation", "repeatable read"),
    "ISOLATION LEVEL READ COMMITTED": ("isolation", "read committed"),
    "ISOLATION LEVEL READ UNCOMMITTED": ("isolation", "read uncommitted"),
    "READ ONLY": ("read_only", "on"),
    "READ WRITE": ("read_only", "off"),
    "DEFERRABLE": ("deferrable", "on"),
    "NOT DEFERRABLE": ("deferrable", "off"),
}


def begin(words: Words) -> TransactionStatement:
    """Read BEGIN [WORK | TRANSACTION] [modes] and START TRANSACTION [modes]."""
    words.example = "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY"
    starts = words.take("START")
    if starts:
        words.need("TRANSACTION")
    else:
        words.need("BEGIN")
        words.choice("WORK", "TRANSACTION")
    modes = () if words.ended else _modes(words)
    return TransactionStatement("start transaction" if starts else "begin", words.text, modes=modes)


def commit(words: Words) -> TransactionStatement:
    """Read COMMIT and END."""
    words.example = "COMMIT"
    words.choice("COMMIT", "END")
    _refuse_prepared(words)
    words.choice("WORK", "TRANSACTION")
    return TransactionStatement("commit", words.text, chain=_chain(words))


def rollback(words: Words) -> TransactionStatement:
    """Read ROLLBACK, ABORT and ROLLBACK TO [SAVEPOINT] name."""
    words.example = "ROLLBACK TO SAVEPOINT s"
    aborts = words.choice("ROLLBACK", "ABORT") == "ABORT"
    _refuse_prepared(words)
    words.choice("WORK", "TRANSACTION")
    if not aborts and words.take("TO"):
        return _savepoint(words, "rollback to")
    return TransactionStatement("rollback", words.text, chain=_chain(words))


def savepoint(words: Words) -> TransactionStatement:
    """Read SAVEPOINT name."""
    words.example = "SAVEPOINT s"
    return _savepoint(words, "savepoint")


def release(words: Words) -> TransactionStatement:
    """Read RELEASE [SAVEPOINT] name."""
    words.example = "RELEASE SAVEPOINT s"
    words.need("RELEASE")
    return _savepoint(words, "release")


def characteristics(words: Words) -> CharacteristicsStatement | None:
    """Read SET [LOCAL] TRANSACTION modes and SET SESSION CHARACTERISTICS AS TRANSACTION modes; None for another SET."""
    words.example = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"
    session = words.take("SET", "SESSION", "CHARACTERISTICS", "AS", "TRANSACTION")
    if not session and not words.take("SET", "TRANSACTION") and not words.take("SET", "LOCAL", "TRANSACTION"):
        return None
    if words.follows("SNAPSHOT"):
        raise UnsupportedQuery("snapshots are not shared between transactions")
    return CharacteristicsStatement(_modes(words), session, words.text)


def _savepoint(words: Words, action: str) -> TransactionStatement:
    words.take("SAVEPOINT")
    name = words.name()
    words.end()
    return TransactionStatement(action, words.text, name)


def _modes(words: Words) -> Modes:
    """Take modes, with commas between them or without, up to the end; there must be one."""
    modes = [_mode(words)]
    while not words.ended:
        words.take(",")
        modes.append(_mode(words))
    return tuple(modes)


def _mode(words: Words) -> tuple[str, str]:
    for spelled, mode in _MODES.items():
        if words.take(*spelled.split()):
            return mode
    raise words.wrong()


def _chain(words: Words) -> bool:
    chained = words.take("AND", "CHAIN")
    if not chained:
        words.take("AND", "NO", "CHAIN")
    words.end()
    return chained


def _refuse_prepared(words: Words) -> None:
    if words.follows("PREPARED"):
        raise UnsupportedQuery("prepared transactions are not supported: dpsql is read-only", hint="Write: COMMIT")


TRANSACTION_READERS: Final[dict[str, Callable[[Words], TransactionStatement]]] = {
    "BEGIN": begin,
    "START": begin,
    "COMMIT": commit,
    "END": commit,
    "ROLLBACK": rollback,
    "ABORT": rollback,
    "SAVEPOINT": savepoint,
    "RELEASE": release,
}
"""What reads each command, by its first word."""


_ONE = {"NEXT": ("forward", 1), "PRIOR": ("backward", 1), "FIRST": ("absolute", 1), "LAST": ("absolute", -1)}


def declare(words: Words) -> DeclareStatement:
    """Read DECLARE name [BINARY] [INSENSITIVE] [[NO] SCROLL] CURSOR [WITH|WITHOUT HOLD] FOR query."""
    words.example = "DECLARE c CURSOR FOR SELECT …"
    words.need("DECLARE")
    name = words.name()
    scroll: bool | None = None
    while not words.take("CURSOR"):
        if words.follows("BINARY"):
            raise UnsupportedQuery(
                "binary cursors are not supported",
                hint="Leave BINARY out.",
            )
        if words.take("NO", "SCROLL"):
            scroll = False
        elif words.take("SCROLL"):
            scroll = True
        elif words.choice("INSENSITIVE", "ASENSITIVE") is None:
            raise words.wrong()
    hold = words.take("WITH", "HOLD")
    if not hold:
        words.take("WITHOUT", "HOLD")
    words.need("FOR")
    return DeclareStatement(name, words.query(), hold, scroll, words.text)


def fetch(words: Words) -> FetchStatement:
    """Read FETCH or MOVE [direction] [FROM | IN] name."""
    words.example = "FETCH FORWARD 100 FROM c"
    move = words.choice("FETCH", "MOVE") == "MOVE"
    direction, count = _direction(words)
    words.choice("FROM", "IN")
    name = words.name()
    words.end()
    return FetchStatement(name, direction, count, move, words.text)


def _direction(words: Words) -> tuple[str, int | None]:
    one = words.choice(*_ONE)
    if one is not None:
        return _ONE[one]
    row = words.choice("ABSOLUTE", "RELATIVE")
    if row is not None:
        number = words.integer()
        if number is None:
            raise words.wrong()
        return row.lower(), number
    direction = (words.choice("FORWARD", "BACKWARD") or "FORWARD").lower()
    if words.take("ALL"):
        return direction, None
    count = words.integer()
    return direction, 1 if count is None else count


def close(words: Words) -> CloseStatement:
    """Read CLOSE name or CLOSE ALL."""
    words.example = "CLOSE c"
    words.need("CLOSE")
    name = None if words.take("ALL") else words.name()
    words.end()
    return CloseStatement(name, words.text)


_EXAMPLE = "COPY (SELECT * FROM dpsql.columns) TO STDOUT WITH (FORMAT csv, HEADER)"
_LISTED = "This lists the tables and columns. Write: SELECT * FROM dpsql.columns"
_HINT = f"Write: {_EXAMPLE}"
_ON, _OFF = ("TRUE", "ON", "1"), ("FALSE", "OFF", "0")


def copy(words: Words) -> CopyStatement:
    """Read COPY { (query) | table [(columns)] } TO { STDOUT | STDIN } [[WITH] options].

    Raises:
        PolicyViolation: It would write, or read or write a file of the server.
        InvalidParameter: Options that do not go together.
    """
    words.example = _EXAMPLE
    words.need("COPY")
    query = _source(words)
    if words.take("FROM"):
        raise PolicyViolation("COPY FROM is not allowed: dpsql is read-only", hint=_HINT)
    words.need("TO")
    if words.choice("STDOUT", "STDIN") is None:  # PostgreSQL takes either for the client, and PDO writes STDIN
        raise PolicyViolation("COPY to a file or program on the server is not allowed", hint=_HINT)
    words.take("WITH")
    options = _parenthesised(words) if words.follows("(") else _older(words)
    words.end()
    return CopyStatement(query, _checked(options), words.text)


def _source(words: Words) -> QueryStatement:
    if words.take("("):
        query = words.query(")")
        words.need(")")
        return query
    table = _quoted(words.name())
    while words.take("."):
        table += f".{_quoted(words.name())}"
    columns = ", ".join(map(_quoted, words.names())) if words.follows("(") else "*"
    return QueryStatement(f"SELECT {columns} FROM {table}")  # noqa: S608 - read again as any query is


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


Options = dict[str, object]


def _parenthesised(words: Words) -> Options:
    """Read (FORMAT csv, HEADER, DELIMITER ';', …)."""
    options: Options = {}
    for name, value in words.listed(lambda: _option(words)):
        if name in options:
            raise InvalidParameter(f'option "{name}" is specified more than once', hint=_HINT)
        options[name] = value
    return options


def _option(words: Words) -> tuple[str, object]:
    name = words.name()
    if name == "format":
        return name, words.name_or_string().lower()
    if name == "header":
        return name, _boolean(words)
    if name in ("delimiter", "null", "quote", "escape"):
        return name, words.string()
    if name == "force_quote":
        return name, None if words.take("*") else words.names()
    if name == "encoding":
        return name, words.string()
    raise InvalidParameter(f'COPY TO has no option "{name}"', hint=_HINT)


def _boolean(words: Words) -> bool:
    if words.choice(*_OFF) is not None:
        return False
    if words.choice(*_ON) is None and not (words.follows(",") or words.follows(")")):
        raise words.wrong()
    return True


def _older(words: Words) -> Options:
    """Read BINARY, CSV, HEADER, DELIMITER AS ';' and so on, in any order."""
    options: Options = {}
    while not words.ended:
        if words.take("FORCE", "QUOTE"):
            options["force_quote"] = None if words.take("*") else _bare_names(words)
            continue
        word = words.choice("BINARY", "CSV", "HEADER", "DELIMITER", "NULL", "QUOTE", "ESCAPE", "ENCODING")
        if word is None:
            raise words.wrong()
        if word in ("BINARY", "CSV"):
            options["format"] = word.lower()
        elif word == "HEADER":
            options["header"] = True
        else:
            words.take("AS")
            options[word.lower()] = words.string()
    return options


def _bare_names(words: Words) -> tuple[str, ...]:
    names = [words.name()]
    while words.take(","):
        names.append(words.name())
    return tuple(names)


def _checked(options: Options) -> CopyOptions:
    kind = options.pop("format", "text")
    encoding = str(options.pop("encoding", "UTF8"))
    if kind not in ("text", "csv", "binary"):
        raise InvalidParameter(f'COPY format "{kind}" not recognized', hint=f"Use FORMAT text, csv or binary. {_HINT}")
    if encoding.upper().replace("-", "") != "UTF8":
        raise InvalidParameter(f'COPY has no encoding "{encoding[:40]}"', hint=f"Use ENCODING 'UTF8'. {_HINT}")
    if kind == "binary" and options:
        raise InvalidParameter(f"cannot specify {next(iter(options)).upper()} in BINARY mode", hint=_HINT)
    only_csv = [name for name in ("quote", "escape", "force_quote") if name in options and kind != "csv"]
    if only_csv:
        raise InvalidParameter(f"COPY {only_csv[0].upper().replace('_', ' ')} requires CSV mode", hint=_HINT)
    usual = CopyOptions() if kind != "csv" else CopyOptions(delimiter=",", null="")
    made = replace(usual, format=str(kind), **options)  # type: ignore[arg-type]  # each was read as its field's type
    if kind == "csv" and "escape" not in options:
        made = replace(made, escape=made.quote)
    _check_signs(made)
    return made


def _check_signs(options: CopyOptions) -> None:
    """Refuse signs that could not be told apart when the rows are read."""
    for name in ("delimiter", "quote", "escape"):
        sign = getattr(options, name)
        if len(sign) != 1 or not sign.isascii() or sign in "\r\n":
            raise InvalidParameter(f"COPY {name} must be a single one-byte character", hint=_HINT)
    if any(sign in options.null for sign in "\r\n"):
        raise InvalidParameter("COPY null representation cannot use newline or carriage return", hint=_HINT)
    if options.format == "text" and options.delimiter in "\\.abcdefghijklmnopqrstuvwxyz0123456789":
        raise InvalidParameter(f'COPY delimiter cannot be "{options.delimiter}"', hint=_HINT)
    if options.delimiter in options.null:
        raise InvalidParameter("COPY delimiter must not appear in the NULL specification", hint=_HINT)
    if options.format == "csv" and (options.delimiter == options.quote or options.quote in options.null):
        raise InvalidParameter("COPY quote must differ from the delimiter and not appear in NULL", hint=_HINT)


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
    """Read a command, which its first word determines; None if there is no such command.

    Raises:
        InvalidSyntax: Its syntax is wrong.
        InvalidParameter: Its options are incompatible.
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
    several = any(word != "." for word in rest[1::2])
    if several or not name.replace(".", "").replace("_", "").isalnum():
        hint = _LISTED if several and upper[0] == "SHOW" else "Write: SHOW dpsql.epsilon"
        raise InvalidSyntax(f"{upper[0]} must be followed by one name", hint=hint, position=len(text))
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
    # Signs are joined to their numbers, and list items as PostgreSQL prints them.
    value = "".join(word + " " if word == "," else word for word in words)
    return SetStatement(name, value, text)
