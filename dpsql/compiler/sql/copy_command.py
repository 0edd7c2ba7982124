"""copy_command: COPY … TO STDOUT with its options in today's and in older words, as in the PostgreSQL manual."""

from dataclasses import replace

from dpsql.compiler.sql.statements import CopyOptions, CopyStatement, QueryStatement
from dpsql.compiler.sql.tokens import Words
from dpsql.errors import InvalidParameter, PolicyViolation

_EXAMPLE = "COPY (SELECT * FROM dpsql.columns) TO STDOUT WITH (FORMAT csv, HEADER)"
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
