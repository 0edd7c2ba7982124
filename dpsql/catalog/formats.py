"""formats: to_char of moments, for catalog queries: the patterns of the table, computed here."""

import operator
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from dpsql.compiler.sql.formats import HALVES, NAMES, NUMBERS, Piece, pieces

_PARTS: Final[Mapping[str, Callable[[datetime], int]]] = {
    "year": lambda moment: moment.year,
    "isoyear": lambda moment: moment.isocalendar().year,
    "quarter": lambda moment: (moment.month + 2) // 3,
    "month": lambda moment: moment.month,
    "week": lambda moment: moment.isocalendar().week,
    "day": lambda moment: moment.day,
    "doy": lambda moment: moment.timetuple().tm_yday,
    "dow": lambda moment: moment.isoweekday() % 7,
    "isodow": datetime.isoweekday,
    "hour": lambda moment: moment.hour,
    "minute": lambda moment: moment.minute,
    "microseconds": lambda moment: 1_000_000 * moment.second + moment.microsecond,
}
_STEPS: Final = {"add": operator.add, "subtract": operator.sub, "divide": operator.floordiv, "modulo": operator.mod}
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ENDINGS: Final = {1: "st", 2: "nd", 3: "rd"}


def moment_text(moment: datetime, zone: str, form: str) -> str:
    """A moment in a format such as YYYY-MM-DD HH24:MI:SS TZ.

    Args:
        moment: What to print.
        zone: What its time zone is called.
        form: The format.

    Raises:
        LimitExceeded: The format is too long.
        UnsupportedQuery: It has a pattern that is not in the table.
    """
    return "".join(_shown(moment, zone, piece) for piece in pieces(form, zones=True))


def _shown(moment: datetime, zone: str, piece: Piece) -> str:
    if piece.pattern in NUMBERS:
        return _number(moment, piece)
    if piece.pattern == "TZ" or piece.pattern in HALVES:
        text = zone if piece.pattern == "TZ" else HALVES[piece.pattern][moment.hour >= 12]
        return text.upper() if piece.text.isupper() else text.lower()
    if not piece.pattern:
        return piece.text
    function, width = NAMES[piece.pattern]
    name = _MONTHS[moment.month - 1] if function == "month_name" else _DAYS[moment.weekday()]
    cased: str = getattr(name[:width], piece.case)() if piece.case else name[:width]
    return cased.ljust(width) if piece.filled else cased


def _number(moment: datetime, piece: Piece) -> str:
    shape = NUMBERS[piece.pattern]
    number = _PARTS[shape.part](moment)
    for step, constant in shape.steps:
        number = _STEPS[step](number, constant)
    digits = f"{number:0{shape.width}d}" if piece.keeps_width else str(number)
    ending = "th" if 11 <= number % 100 <= 13 else _ENDINGS.get(number % 10, "th")
    return digits + {"": "", "TH": ending.upper(), "th": ending}[piece.ordinal]
