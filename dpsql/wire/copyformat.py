"""Rows as COPY TO STDOUT writes them: text, csv or binary, each row the body of one CopyData message.

The formats are those of the PostgreSQL manual, page COPY, under "File Formats".
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from dpsql.compiler.sql.statements import CopyOptions
from dpsql.gateway.query_run import ResultColumn
from dpsql.wire.oidtypes import of_column
from dpsql.wire.pgtypes import BINARY, TEXT
from dpsql.wire.styles import PLAIN, Style

Rows = Sequence[tuple[object, ...]]

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_TRAILER: Final = struct.pack("!h", -1)
_NULL: Final = struct.pack("!i", -1)
_ESCAPES: Final = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def format_code(options: CopyOptions) -> int:
    """Return what CopyOutResponse says of all columns."""
    return BINARY if options.format == "binary" else TEXT


def copy_rows(
    options: CopyOptions, columns: Sequence[ResultColumn], rows: Rows, style: Style = PLAIN
) -> Iterator[bytes]:
    """Yield the bodies of the CopyData messages: the header goes with the first row, as PostgreSQL sends it."""
    if options.format == "binary":
        yield from _binary(columns, rows)
        return
    write = _csv_field if options.format == "csv" else _text_field
    names = [column.name for column in columns]
    forced = [_is_forced(options, name) for name in names]
    if options.header:
        yield _line(options, (write(options, name, False) for name in names))
    writers = [of_column(column, style).write[TEXT] for column in columns]
    for row in rows:
        texts = (None if value is None else writer(value).decode() for writer, value in zip(writers, row, strict=True))
        fields = zip(texts, forced, strict=True)
        yield _line(options, (options.null if text is None else write(options, text, force) for text, force in fields))


def _is_forced(options: CopyOptions, name: str) -> bool:
    return options.force_quote is None or name in options.force_quote


def _line(options: CopyOptions, fields: Iterator[str]) -> bytes:
    line = options.delimiter.join(fields)
    # Alone on a line it would end the copy for whoever reads the text again.
    return (
        f"{options.quote}\\.{options.quote}" if line == "\\." and options.format == "csv" else line
    ).encode() + b"\n"


def _text_field(options: CopyOptions, text: str, force: bool) -> str:
    special = {**_ESCAPES, options.delimiter: f"\\{options.delimiter}"} if options.delimiter != "\t" else _ESCAPES
    return "".join(special.get(character, character) for character in text)


def _csv_field(options: CopyOptions, text: str, force: bool) -> str:
    quote, escape = options.quote, options.escape
    if not (force or text == options.null or any(sign in text for sign in (options.delimiter, quote, "\n", "\r"))):
        return text
    doubled = "".join(escape + sign if sign in (quote, escape) else sign for sign in text)
    return f"{quote}{doubled}{quote}"


def _binary(columns: Sequence[ResultColumn], rows: Rows) -> Iterator[bytes]:
    writers = [of_column(column).write[BINARY] for column in columns]
    count = struct.pack("!h", len(columns))
    before = _SIGNATURE
    for row in rows:
        fields = [before, count]
        for writer, value in zip(writers, row, strict=True):
            raw = None if value is None else writer(value)
            fields += [_NULL] if raw is None else [struct.pack("!i", len(raw)), raw]
        yield b"".join(fields)
        before = b""
    yield before + _TRAILER
