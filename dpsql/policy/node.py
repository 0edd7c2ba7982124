"""A value of the policy file together with its key: every way to read it checks, and complains by line."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from fractions import Fraction

from dpsql.errors import InvalidPolicy
from dpsql.policy.lines import Key
from dpsql.policy.source import PolicySource, quoted

MAX_NAME_BYTES = 63
MAX_EXPONENT = 30
MAX_MEMBERS = 1600
"""As many as Postgres allows columns in a table; roles times tables stays a matter of seconds."""

Shape = Mapping[str, str]
"""The keys that a table of the file may have; with each, a line that would be right."""

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "an integer"),
    (Decimal, "a number"),
    (str, "a text"),
    (datetime, "a date with a time"),
    (date, "a date"),
    (time, "a time"),
    (list, "an array"),
    (dict, "a table"),
)


@dataclass(frozen=True)
class Node:
    """A value of the file.

    Attributes:
        source: The file.
        key: The key of the value.
        value: The value from tomllib.
        example: A valid line, for hints.
    """

    source: PolicySource
    key: Key
    value: object
    example: str

    def wrong(self, what: str, hint: str | None = None) -> InvalidPolicy:
        """Return the error that this value is; the hint is the example unless there is a better one."""
        return self.source.wrong(self.key, what, hint or f"write: {self.example}")

    def fields(self, shape: Shape, required: Collection[str] = ()) -> dict[str, "Node"]:
        """Return the entries of a table whose keys are known beforehand.

        Raises:
            InvalidPolicy: If it is no table, has another key, or lacks one that it must have.
        """
        table = self._table()
        for name in table:
            if name not in shape:
                raise self.source.wrong((*self.key, name), "unknown key", did_you_mean(name, shape))
        for name in required:
            if name not in table:
                raise self.wrong(f"{name} is missing", f"write: {shape[name]}")
        return {name: Node(self.source, (*self.key, name), value, shape[name]) for name, value in table.items()}

    def members(self, what: str) -> dict[str, "Node"]:
        """Return the entries of a table whose keys are names that the owner chose."""
        table = self._table()
        if len(table) > MAX_MEMBERS:
            raise self.wrong(f"more than {MAX_MEMBERS} {what}s", "split the policy: the two can name one cap")
        members = {name: Node(self.source, (*self.key, name), value, "") for name, value in table.items()}
        seen: dict[str, str] = {}
        for name, member in members.items():
            member.check_name(name, what)
            other = seen.setdefault(name.casefold(), name)
            if other != name:
                raise member.wrong(
                    f"{quoted(name)} and {quoted(other)} are the same {what} in a database that ignores case",
                    f"keep one of the two {what}s",
                )
        return members

    def elements(self) -> list["Node"]:
        """Return the elements of an array that has at least one."""
        if not isinstance(self.value, list):
            raise self._mistyped("an array")
        if not self.value:
            raise self.wrong("an empty array")
        return [Node(self.source, (*self.key, place), value, self.example) for place, value in enumerate(self.value)]

    def text(self) -> str:
        """Return a text that is not empty and has no control characters but line breaks and tabs."""
        if not isinstance(self.value, str):
            raise self._mistyped("a text")
        if not self.value.strip():
            raise self.wrong("an empty text")
        if any(ord(character) < 32 and character not in "\n\t" for character in self.value):
            raise self.wrong("a control character", "remove the control character (an escape such as \\u0000)")
        return self.value

    def name(self, what: str) -> str:
        """Return a text that can name something to SQL clients."""
        return self.check_name(self.text(), what)

    def check_name(self, name: str, what: str) -> str:
        """Return the name if SQL clients can name something by it."""
        if not name.strip() or not name.isprintable():
            raise self.wrong(
                f"{quoted(name)} cannot name a {what}", "use a name of letters, digits and _ as in the database"
            )
        if len(name.encode()) > MAX_NAME_BYTES:
            raise self.wrong(
                f"the name of a {what} is longer than {MAX_NAME_BYTES} bytes",
                f"give it a name of at most {MAX_NAME_BYTES} bytes in the database (a view will do)",
            )
        return name

    def flag(self) -> bool:
        """Return a boolean."""
        if not isinstance(self.value, bool):
            raise self._mistyped("true or false")
        return self.value

    def choice(self, names: Iterable[str]) -> str:
        """Return a text that is one of the names."""
        known = list(names)
        chosen = self.text()
        if chosen not in known:
            raise self.wrong(f"{quoted(chosen)} is none of {', '.join(known)}", did_you_mean(chosen, known))
        return chosen

    def count(self, most: int) -> int:
        """Return an integer from 1 to the most."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self._mistyped("a whole number")
        if not 1 <= self.value <= most:
            raise self.wrong(f"{self.shown()} is not between 1 and {most}")
        return self.value

    def number(self) -> Fraction:
        """Return an exact number; magnitudes that no quantity has are refused."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise self._mistyped("a number")
        # The exponent is checked first: Fraction(Decimal("1e999999")) would compute a million digits.
        number = Decimal(value) if isinstance(value, int) else value
        if not number.is_finite():
            raise self.wrong(f"{self.shown()} is not a finite number")
        if number and abs(number.adjusted()) > MAX_EXPONENT:
            raise self.wrong(f"{self.shown()} is beyond the range of 1e-{MAX_EXPONENT} to 1e{MAX_EXPONENT}")
        return Fraction(number)

    def number_between(self, least: str, most: str) -> Fraction:
        """Return a number from the least to the most, both written as in the file."""
        number = self.number()
        if not Fraction(least) <= number <= Fraction(most):
            raise self.wrong(f"{self.shown()} is not between {least} and {most}")
        return number

    def shown(self) -> str:
        """Return the value as a message may show it: short, and on one line."""
        if isinstance(self.value, int) and self.value.bit_length() > 128:
            return f"an integer of {self.value.bit_length()} bits"
        if isinstance(self.value, str):
            return quoted(self.value)
        if isinstance(self.value, datetime):
            return self.value.isoformat()
        shown = str(self.value)
        return shown if len(shown) <= 40 else f"{shown[:39]}…"

    def _table(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            raise self._mistyped("a table")
        return self.value

    def _mistyped(self, wanted: str) -> InvalidPolicy:
        # The value itself is not shown: it may be a url with a password.
        found = next((name for kind, name in _KINDS if isinstance(self.value, kind)), "something else")
        return self.wrong(f"{wanted} is expected here, not {found}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown name: the nearest known names, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(quoted(match) for match in near)}?"
    return f"one of: {', '.join(names[:30])}" if names else "no name is allowed here"
