"""formats: TO_CHAR, TO_DATE and TO_TIMESTAMP with constant formats, from the parts that dates and numbers have."""

import re
from dataclasses import dataclass
from datetime import datetime

from dpsql.compiler.expressions.calls import Arguments, Called, as_timestamp
from dpsql.compiler.expressions.patterns import escaped
from dpsql.compiler.ir.conditions import all_of, is_null, negated
from dpsql.compiler.ir.nodes import Call, Case, Cast, Expr, Literal
from dpsql.compiler.sql import formats
from dpsql.compiler.sql.constant_folding import converted
from dpsql.compiler.sql.rewriting import replaced
from dpsql.errors import InvalidParameter, LimitExceeded, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_NUMBER_DIGITS = 15
MAX_WRITTEN = 2_500
"""Parts of what TO_CHAR comes to: an engine plans so many within a second."""


def _to_char(call: Arguments) -> Expr:
    form = call.fixed(1)
    subject = call.values[0].type
    if form is not None and len(form) > formats.MAX_FORMAT:
        raise formats.too_long(call.at(1))
    if not subject.is_moment and not subject.is_number:
        raise call.mismatch()
    if form is None:
        return Literal(None, SqlType.TEXT)
    written = _moment_text(call, form) if subject.is_moment else _number_text(call, form)
    if call.lowering.sizes.of(written) > MAX_WRITTEN:
        raise LimitExceeded(
            "TO_CHAR with this format and argument is too complex",
            hint="Shorten the format or simplify the argument: TO_CHAR evaluates it once for each pattern.",
            position=call.at(1),
        )
    return written


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


def _extracted(part: str, moment: Expr) -> Expr:
    return Call(f"extract_{part}", (moment,), SqlType.BIGINT)


def _shown(shape: formats.Number, moment: Expr) -> Expr:
    """The number that a pattern shows."""
    found = _extracted(shape.part, moment)
    for operation, constant in shape.steps:
        found = Call(f"int_{operation}", (found, _number(constant)), SqlType.BIGINT)
    return found


def _moment_text(call: Arguments, form: str) -> Expr:
    moment = as_timestamp(call.moment(0)) if call.values[0].type is SqlType.DATE else call.moment(0)
    # The empty text, NULL where the moment is.
    parts: list[Expr] = [_called("left", Cast(moment, SqlType.TEXT), _number(0))]
    for piece in formats.pieces(form, at=call.at(1)):
        parts.append(_word(moment, piece) if piece.pattern else _text(piece.text))
        if piece.ordinal:
            parts.append(_ordinal(_shown(formats.NUMBERS[piece.pattern], moment), upper=piece.ordinal == "TH"))
    return _joined(parts)


def _word(moment: Expr, piece: formats.Piece) -> Expr:
    """One pattern of a moment as text, in the case of the pattern's letters."""
    if piece.pattern in formats.NUMBERS:
        shape = formats.NUMBERS[piece.pattern]
        digits = Cast(_shown(shape, moment), SqlType.TEXT)
        return _filled(digits, shape.width, "0") if piece.keeps_width else digits
    if piece.pattern in formats.HALVES:
        halves = (text if piece.text.isupper() else text.lower() for text in formats.HALVES[piece.pattern])
        is_morning = Call("lt", (_extracted("hour", moment), _number(12)), SqlType.BOOLEAN)
        is_evening = negated(is_morning)
        cases = tuple(zip((is_morning, is_evening), map(_text, halves), strict=True))
        return Case(cases, Literal(None, SqlType.TEXT), SqlType.TEXT)
    function, width = formats.NAMES[piece.pattern]
    name = _called(function, moment)
    if width == 3:
        name = _called("left", name, _number(3))
    if case := piece.case:
        name = _called(case, name)
    return _called("rpad", name, Literal(width, SqlType.INTEGER), _text(" ")) if piece.filled and width > 3 else name


def _filled(digits: Expr, width: int, sign: str) -> Expr:
    return _called("lpad", digits, Literal(width, SqlType.INTEGER), _text(sign))


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
        before: 9 and 0 for the digits before the decimal point, and commas between them.
        behind: 9 and 0 for the digits after it.
        point: True if the format has a decimal point.
        filled: False under FM.
        sign: The kind of sign: "" for one that floats before the digits, or S, MI or PR.
        sign_first: True if S or MI precedes the digits.
        prefix: The text before the number.
        suffix: The text after the number.
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
        """Return the number of digits before the decimal point."""
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
            hint=f"Supported: 9 and 0 (at most {MAX_NUMBER_DIGITS}), one point or D, commas or G, FM, S, MI, PR.",
            queries=replaced(call.nodes[1], "'FM999,990.00'"),
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
        negative = all_of(negative, negated(zero))
    printed = _arranged(shape, _joined([_grouped(shape, whole), _behind(shape, text, zero)]), negative)
    hashes = re.sub("[09]", "#", shape.before) + "." * shape.point + "#" * places
    overflow = _arranged(shape, _text(hashes), negative)
    missing = is_null(number)
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
        digits = _filled(digits, width, " ")
    parts = [_text(shape.prefix), digits]
    if not floats:
        parts.insert(1 if shape.sign_first else 2, sign)
    if shape.sign == "PR":
        parts.append(Case(((negative, _text(">")),), _text(blank), SqlType.TEXT))
    return _joined([*parts, _text(shape.suffix)])


def _grouped(shape: _NumberFormat, whole: Expr) -> Expr:
    """The digits before the decimal point with commas, without leading zeros that the format does not ask for."""
    digits = _filled(_called("ltrim", whole, _text("0")), shape.digits, "0")
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
    "YYYY": ("%Y", "[0-9]{4}"),
    "MM": ("%m", "[0-9]{1,2}"),
    "DD": ("%d", "[0-9]{1,2}"),
    "HH24": ("%H", "[0-9]{1,2}"),
    "MI": ("%M", "[0-9]{1,2}"),
    "SS": ("%S", "[0-9]{1,2}"),
    "US": ("%f", "[0-9]{1,6}"),
    "MON": ("%b", "[A-Za-z]{3}"),
    "MONTH": ("%B", "[A-Za-z]{5,9}|[Jj][Uu][A-Za-z]{2}|[Mm][Aa][Yy]"),
}
"""Words of formats: the engine's word, and what text of it looks like."""
_READ_ORDER = sorted(_READ, key=len, reverse=True)
_BLANK, _MARK, _EITHER = r"[\t-\r ]", r"[!-/:-@\[-`{-~]", r"[\t-\r -/:-@\[-`{-~]"
"""A blank, a mark of ASCII, and either."""


def _read(call: Arguments) -> Expr:
    """Text of just the format, with blanks around its words, as a timestamp; anything else is NULL."""
    form = call.fixed(1)
    if form is None:
        return Literal(None, SqlType.TIMESTAMP)
    words, between = _words_of(call, form)
    pattern = _gap(between[0])
    for word, behind, following in zip(words, between[1:], [*words[1:], ""], strict=True):
        looks = _READ[word][1]
        numbers = word in formats.NUMBERS and following in formats.NUMBERS
        if numbers and not behind:
            looks = looks.replace("{1,", "{")  # PostgreSQL demands all digits of a number directly before another
        pattern += f"({looks}){_gap(behind, may_be_empty=not numbers)}"
    # The engine reads the words with blanks between them, however close they are in the text.
    engine_form = " ".join(_READ[word][0] for word in words)
    text = call.text(0)
    known = _moment_at_once(text, engine_form, pattern)
    if known is not None:
        return Literal(known, SqlType.TIMESTAMP)
    found = " ".join(rf"\{index}" for index in range(1, len(words) + 1))
    return Call("read_moment", (text, *map(_text, (engine_form, pattern, found))), SqlType.TIMESTAMP)


def _words_of(call: Arguments, form: str) -> tuple[list[str], list[str]]:
    """Return the words of a format, and the characters before each word and behind the last."""
    if len(form) > formats.MAX_FORMAT:
        raise formats.too_long(call.at(1))
    words, between, rest = list[str](), [""], form
    while rest:
        word = next((known for known in _READ_ORDER if rest.upper().startswith(known)), "")
        if not word and (rest[0].isalnum() or rest[0] in '"\\%'):
            raise UnsupportedQuery(
                f'format pattern "{rest[:20]}" is not supported',
                hint=f"Supported patterns: {', '.join(_READ)}.",
                queries=replaced(call.nodes[1], "'YYYY-MM-DD'"),
                position=call.at(1),
            )
        if word in words:
            raise InvalidParameter(f'the format contains "{word}" twice', position=call.at(1))
        if word:
            words.append(word)
            between.append("")
        else:
            between[-1] += rest[0]
        rest = rest[len(word) or 1 :]
    if "YYYY" not in words:
        raise UnsupportedQuery(
            "the format must contain YYYY",
            hint="Write the year with four digits.",
            position=call.at(1),
            queries=replaced(call.nodes[1], "'YYYY-MM-DD'"),
        )
    return words, between


def _gap(between: str, may_be_empty: bool = True) -> str:
    """Return the pattern of what precedes or follows a word, given the format's characters there.

    A blank or mark of the format matches any blank or mark, or none, as in PostgreSQL. Each text matches in one
    way only: otherwise the time to match it would not be linear.
    """
    if not between:
        return f"{_BLANK}*"
    if not re.fullmatch(f"{_EITHER}*", between):
        return f"{escaped(between)}{_BLANK}*"
    more = f"(?:{_EITHER}{{0,{len(between) - 2}}}{_MARK})?" if len(between) > 1 else ""
    marks = f"{_MARK}{more}{_BLANK}*"
    return f"{_BLANK}*(?:{marks})?" if may_be_empty else f"(?:{_BLANK}+|{_BLANK}*{marks})"


def _moment_at_once(text: Expr, form: str, pattern: str) -> datetime | None:
    """The value of a constant text of numbers; None if the engine must read it."""
    if not isinstance(text, Literal) or not isinstance(text.value, str):
        return None
    found = re.fullmatch(pattern, text.value)
    if found is None or "%b" in form or "%B" in form:  # names of months would follow this process's locale
        return None
    try:
        return datetime.strptime(" ".join(found.groups()), form)
    except ValueError:
        return None


def _to_date(call: Arguments) -> Expr:
    return converted(Cast(_read(call), SqlType.DATE))


def _to_timestamp(call: Arguments) -> Expr:
    if len(call) == 1:
        return Call("from_epoch", (call.double(0),), SqlType.TIMESTAMPTZ)
    return Cast(_read(call), SqlType.TIMESTAMPTZ)


CALLED: dict[str, Called] = {"to_char": _to_char, "to_date": _to_date, "to_timestamp": _to_timestamp}
