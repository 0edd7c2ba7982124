"""A policy file as text and as data."""

import decimal
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from dpsql.errors import InvalidPolicy
from dpsql.policy.lines import Key, Oversized, check_size, key_lines

MAX_BYTES = 1024 * 1024

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_AT_LINE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_SHOWN = 60


@dataclass(frozen=True)
class PolicySource:
    """A TOML file that should be a policy; its content is not checked yet."""

    path: Path
    data: Mapping[str, object]
    text: str

    def wrong(self, key: Key, what: str, hint: str) -> InvalidPolicy:
        """Return the error for a key; see `wrong_at`."""
        return wrong_at(self.path, self.text, key, what, hint)


def wrong_at(path: Path, text: str, key: Key, what: str, hint: str) -> InvalidPolicy:
    """Return the error for a key: FILE:LINE: dotted.key: what is wrong.

    The lines of keys are looked for only here: in a large policy that takes a quarter of the time of loading it.
    """
    lines = key_lines(text)
    known = next((key[:end] for end in range(len(key), 0, -1) if key[:end] in lines), None)
    at = "" if known is None else f":{lines[known]}"
    name = f"{dotted(key)}: " if key else ""
    return InvalidPolicy(f"{path}{at}: {name}{what}", hint=hint)


def read_source(path: Path) -> PolicySource:
    """Return the file's text and data.

    Raises:
        InvalidPolicy: If the file cannot be read, is too big or too deep, or is not TOML.
    """
    text = _read_text(path)
    try:
        check_size(text)
        data = tomllib.loads(text, parse_float=_decimal)
    except Oversized as error:
        raise InvalidPolicy(f"{path}:{error.line}: {error}", hint=error.hint) from None
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(path, text, str(error)) from None
    return PolicySource(path, data, text)


def dotted(key: Key) -> str:
    """Return the key as TOML would spell it; a place in an array in brackets."""
    name = ""
    for part in key:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            bare = len(part) <= _SHOWN and _BARE.fullmatch(part)
            name += ("." if name else "") + (part if bare else quoted(part))
    return name


def quoted(text: str) -> str:
    """Return the text in double quotes, safe to print on a terminal, and cut if it is long."""
    cut = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return json.dumps(cut, ensure_ascii=not cut.isprintable())


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise InvalidPolicy(f"{path}: this is a directory", hint="name the policy file in it: DIR/policy.toml")
    if not path.exists():
        hint = "check the path, or draft a policy with: dpsql policy init DATABASE_URL"
        raise InvalidPolicy(f"{path}: no such file", hint=hint)
    if not path.is_file():  # a pipe or a device could keep the reader waiting, or never end
        raise InvalidPolicy(f"{path}: not a regular file", hint="copy the policy to a file")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidPolicy(f"{path}: cannot be read: {error.strerror}", hint="check the file's permissions") from None
    if len(content) > MAX_BYTES:
        hint = 'keep long domains in a public table and name its column: values_from = "icd10.code"'
        raise InvalidPolicy(f"{path}: larger than {MAX_BYTES // 1024} KiB", hint=hint)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidPolicy(f"{path}:{line}: not UTF-8 text", hint="save the file as UTF-8") from None


def _decimal(text: str) -> Decimal:
    # Decimal("1e99999999999999999999") raises; here it becomes NaN, refused where the key is read.
    return Decimal(text, decimal.Context(traps=[]))


def _syntax_error(path: Path, text: str, message: str) -> InvalidPolicy:
    at = _AT_LINE.search(message)
    line = int(at[1]) if at else text.count("\n") + 1
    what = message[: at.start()] if at else message.removesuffix(" (at end of document)")
    column = f", column {at[2]}" if at else ", at the end of the file"
    return InvalidPolicy(
        f"{path}:{line}: not valid TOML{column}: {_printable(what)}",
        hint="this is written twice: keep one of both"
        if what.startswith(("Cannot overwrite", "Cannot declare"))
        else 'a line is  key = value , texts in quotes: name = "clinic"',
    )


def _printable(text: str) -> str:
    # tomllib quotes an unexpected character with repr, but not a repeated key.
    return text if text.isprintable() else ascii(text)
