"""facts: what a fresh PostgreSQL 15 has in its own catalogs, as benchmarks/catalog_facts.py has read it."""

import re
from functools import cache
from importlib.resources import files
from typing import Final

_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}
_ESCAPE: Final = re.compile(r"\\.")


@cache
def read(name: str) -> tuple[tuple[str, ...], tuple[tuple[str | None, ...], ...]]:
    """The column names and rows of a file, in COPY's text format."""
    lines = files(__name__).joinpath(f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    header, *rows = lines
    return tuple(header.split("\t")), tuple(tuple(map(_value, row.split("\t"))) for row in rows)


def _value(text: str) -> str | None:
    return None if text == "\\N" else _ESCAPE.sub(lambda match: _ESCAPES.get(match[0], match[0][1]), text)
