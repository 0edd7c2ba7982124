"""formats: TO_CHAR, TO_DATE and TO_TIMESTAMP with constant formats, from the parts that dates and numbers have."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from dpsql.compiler.calls import Arguments, Called, as_timestamp
from dpsql.compiler.folding import converted
from dpsql.compiler.ir import Call, Case, Cast, Expr, Literal
from dpsql.compiler.patterns import escaped
from dpsql.errors import InvalidParameter, QueryTooComplex, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_FORMAT = 100
MAX_NUMBER_DIGITS = 15


def _to_char(call: Arguments) -> Expr:
    form = call.fixed(1)
    if form is not None and len(form) > MAX_FORMAT:
        raise QueryTooComplex(f"a format has {MAX_FORMAT} characters at the most", position=call.at(1))
    subject = call.values[0].type
    if not subject.is_moment and not subject.is_number:
        raise call.mismatch()
    if form is None:
        return Literal(None, SqlType.TEXT)
    return _moment_text(call, form) if subject.is_moment else _number_text(call, form)


def _text(value: str) -> Expr:
    return Literal(value, SqlType.TEXT)


def _number(value: int) -> Expr:
    return Literal(value, SqlType.BIGINT)


def _called(name: str, *arguments: Expr, result: SqlType = SqlType.TEXT) -> Expr:
    return Call(name, arguments, result)


def _joined(parts: list[Expr]) -> Expr:
    """Texts one after the other, NULL where one is."""
    whole = parts[0]
    for part in parts[1:]:
        whole = _called("concat_operator", whole, part)
    return whole


# Moments


def _extracted(part: str) -> Callable[[Expr], Expr]:
    return lambda moment: Call(f"extract_{part}", (moment,), SqlType.BIGINT)


def _of(operation: str, first: Callable[[Expr], Expr], number: int) -> Callable[[Expr], Expr]:
    """An operation of a part and a constant."""
    return lambda moment: Call(f"int_{operation}", (first(moment), _number(number)), SqlType.BIGINT)


_YEAR, _WEEKYEAR = _extracted("year"), _extracted("isoyear")
_HOUR12 = _of("add", _of("modulo", _of("add", _extracted("hour"), 11), 12), 1)
_MICROSECOND = _of("modulo", _extracted("microseconds"), 1_000_000)

_NUMBERS: dict[str, tuple[Callable[[Expr], Expr], int]] = {
    "YYYY": (_YEAR, 4),
    "YYY": (_of("modulo", _YEAR, 1000), 3),
    "YY": (_of("modulo", _YEAR, 100), 2),
    "Y": (_of("modulo", _YEAR, 10), 1),
    "IYYY": (_WEEKYEAR, 4),
    "IYY": (_of("modulo", _WEEKYEAR, 1000), 3),
    "IY": (_of("modulo", _WEEKYEAR, 100), 2),
    "Q": (_extracted("quarter"), 1),
    "MM": (_extracted("month"), 2),
    "WW": (_of("add", _of("divide", _of("subtract", _extracted("doy"), 1), 7), 1), 2),
    "W": (_of("add", _of("divide", _of("subtract", _extracted("day"), 1), 7), 1), 1),
    "IW": (_extracted("week"), 2),
    "DDD": (_extracted("doy"), 3),
    "DD": (_extracted("day"), 2),
    "D": (_of("add", _extracted("dow"), 1), 1),
    "ID": (_extracted("isodow"), 1),
    "HH24": (_extracted("hour"), 2),
    "HH12": (_HOUR12, 2),
    "HH": (_HOUR12, 2),
    "MI": (_extracted("minute"), 2),
    "SS": (_of("divide", _extracted("microseconds"), 1_000_000), 2),
    "MS": (_of("divide", _MICROSECOND, 1000), 3),
    "US": (_MICROSECOND, 6),
}
"""Patterns of numbers: the number, and how many digits it has at the least."""

_NAMES = {"MONTH": ("month_name", 9), "MON": ("month_name", 3), "DAY": ("day_name", 9), "DY": ("day_name", 3)}
_HALVES = {"AM": ("AM", "PM"), "PM": ("AM", "PM"), "A.M.": ("A.M.", "P.M."), "P.M.": ("A.M.", "P.M.")}
_UNSUPPORTED = (
    *("CC", "J", "I", "IDDD", "SSSSS", "SSSS", "AD", "BC", "A.D.", "B.C.", "RM", "TZH", "TZM", "TZ", "OF", "FX", "TM"),
    *("Y,YYY", "SP", *(f"FF{digits}" for digits in range(1, 7))),
)
"""What PostgreSQL has besides: known, so that none of it is read as something shorter."""
_SUPPORTED = frozenset({*_NUMBERS, *_NAMES, *_HALVES})
_WORDS = sorted(
    {
        *(case for word in (*_SUPPORTED, *_UNSUPPORTED) for case in (word, word.lower())),
        *(word.capitalize() for word in _NAMES),
    },
    key=len,
    reverse=True,
)
"""Every pattern in the cases that PostgreSQL knows it in, the longest first."""
_HINT = "There are: " + ", ".join([*_NUMBERS, *_NAMES, "AM", "PM", "FM, TH, and text in double quotes"])


@dataclass(frozen=True)
class _Piece:
    """A piece of a format: a pattern, or text that stands for itself.

    Attributes:
        text: The pattern as written, or the text.
        pattern: True for a pattern.
        filled: False under FM.
        ordinal: TH or th where it stands behind.
    """

    text: str
    pattern: bool
    filled: bool = True
    ordinal: str = ""


def _moment_text(call: Arguments, form: str) -> Expr:
    moment = as_timestamp(call.moment(0)) if call.values[0].type is SqlType.DATE else call.moment(0)
    # The empty text, NULL where the moment is.
    parts: list[Expr] = [_called("left", Cast(moment, SqlType.TEXT), _number(0))]
    for piece in _pieces(call, form):
        parts.append(_word(moment, piece) if piece.pattern else _text(piece.text))
        if piece.ordinal:
            number = _NUMBERS[piece.text.upper()][0](moment)
            parts.append(_ordinal(number, upper=piece.ordinal == "TH"))
    return _joined(parts)


def _pieces(call: Arguments, form: str) -> list[_Piece]:
    """The patterns of a format, and the text between them."""
    found: list[_Piece] = []
    rest = form
    while rest:
        filled = rest[:2] not in ("FM", "fm")
        body = rest if filled else rest[2:]
        word = next((known for known in _WORDS if body.startswith(known)), "")
        quoted = re.match(r'"([^"\\]*)"', rest)
        if word.upper() in _SUPPORTED:
            behind = body[len(word) :]
            ordinal = behind[:2] if word.upper() in _NUMBERS and behind[:2] in ("TH", "th") else ""
            found.append(_Piece(word, True, filled, ordinal))
            rest = behind[len(ordinal) :]
        elif quoted is not None:
            found.append(_Piece(quoted[1], False))
            rest = rest[quoted.end() :]
        elif word or rest[0].isalnum() or rest[0] in '"\\':
            raise UnsupportedQuery(
                f'the format has "{rest[:20]}", which is not supported', hint=_HINT, position=call.at(1)
            )
        else:
            found.append(_Piece(rest[0], False))
            rest = rest[1:]
    return found


def _word(moment: Expr, piece: _Piece) -> Expr:
    """One pattern of a moment as text, in the case of its own letters."""
    word, upper = piece.text, piece.text.upper()
    if upper in _NUMBERS:
        number, width = _NUMBERS[upper]
        digits = Cast(number(moment), SqlType.TEXT)
        # PostgreSQL fills up parts of seconds under FM, too.
        if width == 1 or (not piece.filled and upper not in ("MS", "US")):
            return digits
        return _called("lpad", digits, Literal(width, SqlType.INTEGER), _text("0"))
    if upper in _HALVES:
        morning, evening = (text if word.isupper() else text.lower() for text in _HALVES[upper])
        is_morning = Call("lt", (_extracted("hour")(moment), _number(12)), SqlType.BOOLEAN)
        is_evening = Call("not", (is_morning,), SqlType.BOOLEAN)
        halves = ((is_morning, _text(morning)), (is_evening, _text(evening)))
        return Case(halves, Literal(None, SqlType.TEXT), SqlType.TEXT)
    function, width = _NAMES[upper]
    name = _called(function, moment)
    if width == 3:
        name = _called("left", name, _number(3))
    if word.isupper():
        name = _called("upper", name)
    elif word[0].islower():
        name = _called("lower", name)
    return _called("rpad", name, Literal(width, SqlType.INTEGER), _text(" ")) if piece.filled and width > 3 else name


def _ordinal(number: Expr, upper: bool) -> Expr:
    """st, nd, rd or th."""

    def ends(divisor: int, low: int, high: int) -> Expr:
        rest = Call("int_modulo", (number, _number(divisor)), SqlType.BIGINT)
        return Call("between", (rest, _number(low), _number(high)), SqlType.BOOLEAN)

    cases = ((ends(100, 11, 13), "th"), (ends(10, 1, 1), "st"), (ends(10, 2, 2), "nd"), (ends(10, 3, 3), "rd"))
    endings = tuple((condition, _text(text.upper() if upper else text)) for condition, text in cases)
    return Case(endings, _text("TH" if upper else "th"), SqlType.TEXT)


# Numbers


@dataclass(frozen=True)
class _NumberFormat:
    """A number's format.

    Attributes:
        before: 9 and 0 for the digits before the point, and commas between them.
        behind: 9 and 0 for the digits behind it.
        point: True where the point stands.
        filled: False under FM.
        sign: Where the sign stands: "" floats before the digits; S, MI or PR.
        sign_first: True where S or MI stands before the digits.
        prefix: Text before all.
        suffix: Text behind all.
    """

    before: str
    behind: str
    point: bool
    filled: bool
    sign: str
    sign_first: bool
    prefix: str
    suffix: str

    @property
    def digits(self) -> int:
        """How many digits stand before the point."""
        return len(self.before.replace(",", ""))


_NUMBER_FORMAT = re.compile(
    r"(?P<first>S|MI)?(?P<prefix>[^\w.,\"\\]*)(?P<before>[09]+(?:[,G][09]+)*)(?P<point>[.D](?P<behind>[09]+))?"
    r"(?P<last>S|MI|PR)?(?P<suffix>[^\w.,\"\\]*)",
    re.I,
)


def _read_number_format(call: Arguments, form: str) -> _NumberFormat:
    filled = not form.upper().startswith("FM")
    found = _NUMBER_FORMAT.fullmatch(form if filled else form[2:])
    parts = {name: (value or "") for name, value in found.groupdict().items()} if found is not None else {}
    digits = (parts.get("before", "") + parts.get("behind", "")).replace(",", "")
    signs = bool(parts.get("first")) + bool(parts.get("last"))
    if not digits or signs > 1 or len(digits) > MAX_NUMBER_DIGITS or (parts["prefix"] and parts["first"]):
        raise UnsupportedQuery(
            f'the format "{form[:40]}" is not supported for numbers',
            hint=f"There are 9 and 0 ({MAX_NUMBER_DIGITS} at the most), one point or D, commas or G, FM, S, MI, PR: "
            "'FM999,990.00'.",
            position=call.at(1),
        )
    before = parts["before"].upper().replace("G", ",")
    sign = (parts["first"] or parts["last"]).upper()
    return _NumberFormat(
        before,
        parts["behind"],
        bool(parts["point"]),
        filled,
        sign,
        bool(parts["first"]),
        parts["prefix"],
        parts["suffix"],
    )


def _number_text(call: Arguments, form: str) -> Expr:
    shape = _read_number_format(call, form)
    number = call.number(0)
    places = len(shape.behind)
    floating = number.type in (SqlType.DOUBLE, SqlType.REAL)
    if floating:
        size = _called("abs", call.double(0), result=SqlType.DOUBLE)
        text = _called("number_digits", size, _text(f"%.{places}f"))
    else:
        text = _called("ltrim", Cast(Cast(number, SqlType.NUMERIC, places), SqlType.TEXT), _text("-"))
    whole = _called("split_part", text, _text("."), Literal(1, SqlType.INTEGER))
    count = _called("length", _called("ltrim", whole, _text("0")), result=SqlType.BIGINT)
    fits = Call("le", (count, _number(shape.digits)), SqlType.BOOLEAN)
    zero = Call("eq", (_called("translate", text, _text("0."), _text("")), _text("")), SqlType.BOOLEAN)
    negative: Expr = Call("lt", (call.double(0), Literal(0.0, SqlType.DOUBLE)), SqlType.BOOLEAN)
    if not floating:
        # A numeric that is shown as 0 has lost its sign, a float has not.
        negative = Call("and", (negative, Call("not", (zero,), SqlType.BOOLEAN)), SqlType.BOOLEAN)
    printed = _arranged(shape, _joined([_grouped(shape, whole), _behind(shape, text, zero)]), negative)
    hashes = re.sub("[09]", "#", shape.before) + "." * shape.point + "#" * places
    overflow = _arranged(shape, _text(hashes), negative)
    missing = Call("is_null", (number,), SqlType.BOOLEAN)
    return Case(((missing, Literal(None, SqlType.TEXT)), (fits, printed)), overflow, SqlType.TEXT)


def _arranged(shape: _NumberFormat, digits: Expr, negative: Expr) -> Expr:
    """Digits, sign, blanks and the text around them."""
    floats = shape.sign in ("", "PR") or (shape.sign == "S" and shape.sign_first)
    blank = " " if shape.filled else ""
    minus, plus = "<" if shape.sign == "PR" else "-", "+" if shape.sign == "S" else blank
    sign = Case(((negative, _text(minus)),), _text(plus), SqlType.TEXT)
    width = len(shape.before) + shape.point + len(shape.behind) + floats
    if floats:
        digits = _joined([sign, digits])
    if shape.filled:
        digits = _called("lpad", digits, Literal(width, SqlType.INTEGER), _text(" "))
    parts = [_text(shape.prefix), digits]
    if not floats:
        parts.insert(1 if shape.sign_first else 2, sign)
    if shape.sign == "PR":
        parts.append(Case(((negative, _text(">")),), _text(blank), SqlType.TEXT))
    return _joined([*parts, _text(shape.suffix)])


def _grouped(shape: _NumberFormat, whole: Expr) -> Expr:
    """The digits before the point with their commas: without zeros in front but for those the format asks for."""
    digits = _called("lpad", _called("ltrim", whole, _text("0")), Literal(shape.digits, SqlType.INTEGER), _text("0"))
    zero = shape.before.find("0")
    if zero < 0:
        # The last digit of a number without a fraction is shown even if it is 0.
        zero = len(shape.before) if shape.point else len(shape.before) - 1
    pieces = {True: list[Expr](), False: list[Expr]()}
    place = 1
    for index, sign in enumerate(shape.before):
        if sign == ",":
            piece: Expr = _text(",")
        else:
            piece = _called("substring", digits, _number(place), _number(1))
            place += 1
        pieces[index >= zero].append(piece)
    front = _called("ltrim", _joined([_text(""), *pieces[False]]), _text("0,"))
    if not pieces[True]:
        return front
    return _joined([front, *pieces[True]])


def _behind(shape: _NumberFormat, text: Expr, zero: Expr) -> Expr:
    """The point and the digits behind it; under FM, 9 is left out where only zeros follow."""
    if not shape.point:
        return _text("")
    fraction = _called("split_part", text, _text("."), Literal(2, SqlType.INTEGER))
    if shape.filled:
        return _joined([_text("."), fraction])
    kept = shape.behind.rfind("0") + 1
    front = _called("substring", fraction, _number(1), _number(kept))
    rest = _called("rtrim", _called("substring", fraction, _number(kept + 1)), _text("0"))
    # Of 0 something is shown.
    shown = not kept and "0" not in shape.before
    point = Case(((zero, _text("0.")),), _text("."), SqlType.TEXT) if shown else _text(".")
    return _joined([point, front, rest])


# Text to moments


_READ: dict[str, tuple[str, str]] = {
    "YYYY": ("%Y", "([0-9]{4})"),
    "MM": ("%m", "([0-9]{1,2})"),
    "DD": ("%d", "([0-9]{1,2})"),
    "HH24": ("%H", "([0-9]{1,2})"),
    "MI": ("%M", "([0-9]{1,2})"),
    "SS": ("%S", "([0-9]{1,2})"),
    "US": ("%f", "([0-9]{1,6})"),
    "MON": ("%b", "([A-Za-z]{3})"),
    "MONTH": ("%B", "([A-Za-z]{3,9})"),
}
"""Words of formats: the engine's word, and what text of it looks like, as a group of the whole pattern."""
_READ_ORDER = sorted(_READ, key=len, reverse=True)


def _read(call: Arguments) -> Expr:
    """Text of just the format as a timestamp; anything else is NULL."""
    form = call.fixed(1)
    if form is None:
        return Literal(None, SqlType.TIMESTAMP)
    rest = form
    if len(form) > MAX_FORMAT:
        raise QueryTooComplex(f"a format has {MAX_FORMAT} characters at the most", position=call.at(1))
    format_text, pattern, seen = "", "", set[str]()
    while rest:
        word = next((known for known in _READ_ORDER if rest.upper().startswith(known)), "")
        if not word and (rest[0].isalnum() or rest[0] in '"\\%'):
            raise UnsupportedQuery(
                f'the format has "{rest[:20]}", which is not supported',
                hint="There are: " + ", ".join(_READ),
                position=call.at(1),
            )
        if word in seen:
            raise InvalidParameter(f'the format has "{word}" twice', position=call.at(1))
        engine_word, engine_pattern = _READ.get(word, (rest[0], escaped(rest[0])))
        format_text, pattern = format_text + engine_word, pattern + engine_pattern
        seen |= {word} - {""}
        rest = rest[len(word) or 1 :]
    if "YYYY" not in seen:
        raise UnsupportedQuery("the format needs YYYY", hint="'YYYY-MM-DD'", position=call.at(1))
    text = call.text(0)
    known = _moment_at_once(text, format_text, pattern)
    if known is not None:
        return Literal(known, SqlType.TIMESTAMP)
    constants = (Literal(format_text, SqlType.TEXT), Literal(pattern, SqlType.TEXT))
    return Call("read_moment", (text, *constants), SqlType.TIMESTAMP)


def _moment_at_once(text: Expr, form: str, pattern: str) -> datetime | None:
    """What a constant text of numbers says; None where that is left to the engine."""
    if not isinstance(text, Literal) or not isinstance(text.value, str) or not re.fullmatch(pattern, text.value):
        return None
    if "%b" in form or "%B" in form:  # names of months would follow this process's locale
        return None
    try:
        return datetime.strptime(text.value, form)
    except ValueError:
        return None


def _to_date(call: Arguments) -> Expr:
    return converted(Cast(_read(call), SqlType.DATE))


def _to_timestamp(call: Arguments) -> Expr:
    if len(call) == 1:
        return Call("from_epoch", (call.double(0),), SqlType.TIMESTAMPTZ)
    return Cast(_read(call), SqlType.TIMESTAMPTZ)


CALLED: dict[str, Called] = {"to_char": _to_char, "to_date": _to_date, "to_timestamp": _to_timestamp}
