"""memory_limit: the limit on the text of a catalog query, and the functions whose results can be much longer.

Rule: DuckDB's own memory limit counts stored data, but neither intermediate texts nor those in Python. So every text
that a function returns is counted, and none beyond the limit is created.
"""

import re
import threading
from collections.abc import Sequence
from typing import Final

from dpsql.catalog.snapshot import quote_identifier
from dpsql.errors import InvalidParameter, LimitExceeded

MOST: Final = 64 * 2**20
"""The most characters of the rows and of function results of one query."""
_ELEMENT: Final = 16
"""The characters that an element of a list counts in addition to its text."""


class MemoryLimit(threading.local):
    """The memory that is left for this thread's query; DuckDB with one thread runs in the caller's."""

    def __init__(self) -> None:
        self._left = 0

    def open(self) -> None:
        """Begin a query."""
        self._left = MOST

    def check(self, size: int) -> None:
        """Check that a size is left.

        Raises:
            LimitExceeded: It is not.
        """
        if size > self._left:
            raise LimitExceeded(
                f"the catalog query makes more than {MOST:,} characters of text", hint="Select fewer or shorter texts."
            )

    def take(self, size: int) -> None:
        """Take a size from the memory that is left.

        Raises:
            LimitExceeded: Less is left.
        """
        self.check(size)
        self._left -= size

    def fits(self, elements: int) -> bool:
        """Count a list with this number of elements."""
        self.take(elements * _ELEMENT)
        return True

    def concat(self, left: str, right: str) -> str:
        """Text || text."""
        self.check(len(left) + len(right))
        return left + right

    def repeat(self, text: str, times: int) -> str:
        """Repeat."""
        self.check(len(text) * times)
        return text * times

    def replace(self, text: str, old: str, new: str) -> str:
        """Replace."""
        if not old:
            return text
        self.check(len(text) + text.count(old) * len(new))
        return text.replace(old, new)

    def replaceable(self, text: str, new: str) -> str:
        """Return the text, if there is memory for `new` at every place where a regular expression can match."""
        self.take((len(text) + 1) * (len(new) + 1))
        return text

    def join(self, parts: Sequence[str | None] | None, separator: str | None, null: str | None) -> str | None:
        """array_to_string."""
        if parts is None or separator is None:
            return None
        shown = [null if part is None else part for part in parts]
        texts = [part for part in shown if part is not None]
        self.check(sum(map(len, texts)) + len(texts) * len(separator))
        return separator.join(texts)

    def split(self, text: str | None, separator: str | None) -> list[str] | None:
        """string_to_array."""
        if text is None:
            return None
        self.check(len(text) * _ELEMENT if not separator else text.count(separator) * _ELEMENT)
        if separator is None:
            return list(text)
        return [] if not text else text.split(separator) if separator else [text]

    def format(self, template: str | None, values: Sequence[str | None]) -> str | None:
        """Format."""
        if template is None:
            return None
        left, size = iter(values), len(template)

        def replace(match: re.Match[str]) -> str:
            nonlocal size
            position = match[1]
            value = None
            if match[2] != "%":
                value = values[int(position[:-1]) - 1] if position else next(left, None)
            shown = _formatted(match[2], value)
            size += len(shown)
            self.check(size)
            return shown

        try:
            return re.sub(r"%(\d+\$)?([sIL%])", replace, template)
        except IndexError:
            raise InvalidParameter("too few arguments for format()") from None


def _formatted(what: str, value: str | None) -> str:
    if what == "%":
        return "%"
    if what == "s":
        return value or ""
    if what == "L":
        return "NULL" if value is None else quote_literal(value)
    if value is None:
        raise InvalidParameter("null values cannot be formatted as an SQL identifier")
    return quote_identifier(value)


def quote_literal(text: str) -> str:
    """quote_literal."""
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f"E{quoted}" if "\\" in text else quoted


def size_of(value: object) -> int:
    """How much a value takes: characters, and something for each element of a list."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list):
        return sum(map(size_of, value)) + len(value) * _ELEMENT
    return 0
