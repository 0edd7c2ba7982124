"""formats: the patterns of TO_CHAR's formats of moments, one table for every query: of the data, and of the catalog.

Reference: the PostgreSQL manual, "Data Type Formatting Functions", its table of patterns for dates and times.
"""

import re
from dataclasses import dataclass

from dpsql.errors import LimitExceeded, UnsupportedQuery

MAX_FORMAT = 100
"""Characters of a format."""


@dataclass(frozen=True)
class Number:
    """The number that a pattern shows: a part of a moment, and operations on it.

    Attributes:
        part: The part, as EXTRACT calls it.
        width: The minimum number of digits.
        steps: Integer operations in order, each with its constant.
    """

    part: str
    width: int
    steps: tuple[tuple[str, int], ...] = ()


_HOUR12 = Number("hour", 2, (("add", 11), ("modulo", 12), ("add", 1)))
NUMBERS: dict[str, Number] = {
    "YYYY": Number("year", 4),
    "YYY": Number("year", 3, (("modulo", 1000),)),
    "YY": Number("year", 2, (("modulo", 100),)),
    "Y": Number("year", 1, (("modulo", 10),)),
    "IYYY": Number("isoyear", 4),
    "IYY": Number("isoyear", 3, (("modulo", 1000),)),
    "IY": Number("isoyear", 2, (("modulo", 100),)),
    "Q": Number("quarter", 1),
    "MM": Number("month", 2),
    "WW": Number("doy", 2, (("subtract", 1), ("divide", 7), ("add", 1))),
    "W": Number("day", 1, (("subtract", 1), ("divide", 7), ("add", 1))),
    "IW": Number("week", 2),
    "DDD": Number("doy", 3),
    "DD": Number("day", 2),
    "D": Number("dow", 1, (("add", 1),)),
    "ID": Number("isodow", 1),
    "HH24": Number("hour", 2),
    "HH12": _HOUR12,
    "HH": _HOUR12,
    "MI": Number("minute", 2),
    "SS": Number("microseconds", 2, (("divide", 1_000_000),)),
    "MS": Number("microseconds", 3, (("modulo", 1_000_000), ("divide", 1000))),
    "US": Number("microseconds", 6, (("modulo", 1_000_000),)),
}
NAMES = {"MONTH": ("month_name", 9), "MON": ("month_name", 3), "DAY": ("day_name", 9), "DY": ("day_name", 3)}
"""Patterns of names: the function that gives the name, and how many letters it is filled up or cut to."""
HALVES = {"AM": ("AM", "PM"), "PM": ("AM", "PM"), "A.M.": ("A.M.", "P.M."), "P.M.": ("A.M.", "P.M.")}
"""Patterns of the halves of a day: the morning's, the evening's."""
_OTHERS = (
    *("CC", "J", "I", "IDDD", "SSSSS", "SSSS", "AD", "BC", "A.D.", "B.C.", "RM", "TZH", "TZM", "TZ", "OF", "FX", "TM"),
    *("Y,YYY", "SP", *(f"FF{digits}" for digits in range(1, 7))),
)
"""What PostgreSQL has besides: known, so that none of it is read as something shorter."""
_SUPPORTED = frozenset({*NUMBERS, *NAMES, *HALVES})
_WORDS = sorted(
    {
        *(case for word in (*_SUPPORTED, *_OTHERS) for case in (word, word.lower())),
        *(word.capitalize() for word in NAMES),
    },
    key=len,
    reverse=True,
)
"""Every pattern in the cases that PostgreSQL knows it in, the longest first."""
_HINT = f"Supported patterns: {', '.join([*NUMBERS, *NAMES, 'AM', 'PM', 'FM', 'TH'])}, and text in double quotes."


@dataclass(frozen=True)
class Piece:
    """A piece of a format: a pattern, or literal text.

    Attributes:
        text: The pattern as written, or the text.
        pattern: The pattern in capital letters; empty for text.
        filled: False under FM.
        ordinal: The suffix TH or th, if any.
    """

    text: str
    pattern: str = ""
    filled: bool = True
    ordinal: str = ""

    @property
    def keeps_width(self) -> bool:
        """True where zeros fill up a number; parts of seconds have them under FM, too."""
        return NUMBERS[self.pattern].width > 1 and (self.filled or self.pattern in ("MS", "US"))

    @property
    def case(self) -> str:
        """Return the function that gives a name the case of the pattern; empty to leave it unchanged."""
        return "upper" if self.text.isupper() else "lower" if self.text[0].islower() else ""


def too_long(at: int | None) -> LimitExceeded:
    """The error for a format of too many characters."""
    return LimitExceeded(f"a format may have at most {MAX_FORMAT} characters", position=at)


def pieces(form: str, *, zones: bool = False, at: int | None = None) -> list[Piece]:
    """Return the patterns of a format, and the text between them.

    Args:
        form: The format.
        zones: True if TZ is allowed, because the moment has a zone.
        at: The position of the format.

    Raises:
        LimitExceeded: The format is too long.
        UnsupportedQuery: The format has an unsupported pattern.
    """
    if len(form) > MAX_FORMAT:
        raise too_long(at)
    found: list[Piece] = []
    rest = form
    while rest:
        filled = rest[:2] not in ("FM", "fm")
        body = rest if filled else rest[2:]
        word = next((known for known in _WORDS if body.startswith(known)), "")
        pattern = word.upper()
        quoted = re.match(r'"([^"\\]*)"', rest)
        if pattern in _SUPPORTED or (zones and pattern == "TZ"):
            behind = body[len(word) :]
            ordinal = behind[:2] if pattern in NUMBERS and behind[:2] in ("TH", "th") else ""
            found.append(Piece(word, pattern, filled, ordinal))
            rest = behind[len(ordinal) :]
        elif quoted is not None:
            found.append(Piece(quoted[1]))
            rest = rest[quoted.end() :]
        elif word or rest[0].isalnum() or rest[0] in '"\\':
            raise UnsupportedQuery(f'format pattern "{rest[:20]}" is not supported', hint=_HINT, position=at)
        else:
            found.append(Piece(rest[0]))
            rest = rest[1:]
    return found
