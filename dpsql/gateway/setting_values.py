"""setting_values: the values that settings may have, checked, each in the one spelling in which SHOW tells it."""

import re
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from zoneinfo import ZoneInfoNotFoundError, available_timezones

from dpsql.errors import Error, InvalidParameter
from dpsql.privacy.conversion import exact_text
from dpsql.sqltypes import Span, SqlType
from dpsql.sqltypes.textinput import offset_name, read, zone

_STYLES = {"iso": "ISO", "sql": "SQL", "german": "German"}
_ORDERS = {
    **{"ymd": "YMD", "dmy": "DMY", "euro": "DMY", "european": "DMY", "mdy": "MDY", "us": "MDY", "noneuro": "MDY"},
    "noneuropean": "MDY",
}
_ZONE_INTERVAL = re.compile(r"\s*interval\s*'([^']*)'\s*(hour(?:\s+to\s+minute)?)?\s*", re.IGNORECASE)
_ZONE_HOURS = re.compile(r"\s*[+-]?(?:\d{1,4}(?:\.\d{0,9})?|\.\d{1,9})\s*")


def number(name: str, text: str) -> Fraction:
    """An exact number of at most 30 digits."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or abs(value.adjusted()) > 100 or len(value.as_tuple().digits) > 30:
        raise InvalidParameter(f'invalid value for parameter "{name}": "{text[:40]}"', hint=f"Write: SET {name} = 0.1")
    return Fraction(value)


def error_ratio(name: str, value: str) -> str:
    """How much larger the error over a prepared table may be."""
    ratio = number(name, value)
    if not 0 <= ratio <= 1000:
        raise InvalidParameter(
            f"{name} must be between 0, for no prepared tables, and 1000", hint=f"Write: SET {name} = 1.5"
        )
    return exact_text(ratio)


def target(name: str, value: str) -> str:
    """The canonical spelling of a target: off, a number, or a percentage."""
    text = value.strip().lower()
    if text == "off":
        return text
    percent = text.endswith("%")
    try:
        bound = number(name, text.removesuffix("%"))
    except InvalidParameter:
        bound = Fraction(0)
    if not Fraction(1, 10**30) <= bound <= (100 if percent else 10**30):
        raise InvalidParameter(
            f'invalid value for parameter "{name}": "{value[:40]}"',
            detail="It is half the width of a 95 % interval: in the column's unit, or up to 100 % of its median size.",
            hint=f"A percentage, a number and off are values. Write: SET {name} = '5 %'",
        )
    return f"{exact_text(bound)} %" if percent else exact_text(bound)


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in choices:
        raise InvalidParameter(
            f'invalid value for parameter "{name}": "{value[:40]}"', hint="Available values: " + ", ".join(choices)
        )
    return value


def boolean(name: str, value: str) -> str:
    """On or off, by any word that PostgreSQL takes for it."""
    word = value.strip().lower()
    if word in ("on", "true", "yes", "1", "t"):
        return "on"
    if word in ("off", "false", "no", "0", "f"):
        return "off"
    raise InvalidParameter(f'parameter "{name}" requires a Boolean value', hint=f"Write: SET {name} = on")


def count(name: str, value: str) -> str:
    """A whole number from 1 on."""
    digits = value.strip().lstrip("0")
    if not digits.isdecimal() or len(digits) > 9:
        raise InvalidParameter(f'invalid value for parameter "{name}": "{value[:40]}"', hint=f"Write: SET {name} = 4")
    return digits


def date_style(value: str, current: str) -> str:
    """A style, an order or both; what is not said stays unchanged, but German has the day first."""
    if not value.strip():
        return current
    style, _, order = current.partition(", ")
    said: dict[str, str] = {}
    for word in value.lower().split(","):
        word = word.strip()
        # PostgreSQL, too, goes by the first letters of these.
        known = "Postgres" if word.startswith("postgres") else _STYLES.get(word)
        kind, meant = ("style", known) if known is not None else ("order", _ORDERS.get(word))
        if meant is None or said.setdefault(kind, meant) != meant:
            raise InvalidParameter(
                f'invalid value for parameter "DateStyle": "{value[:40]}"', hint="Write: SET DateStyle = 'ISO, DMY'"
            )
    if said.get("style") == "German":
        order = "DMY"
    return f"{said.get('style', style)}, {said.get('order', order)}"


def float_digits(_: str, value: str) -> str:
    """Digits more or fewer than the shortest text of a double has."""
    sign, digits = ("-", value.strip()[1:]) if value.strip().startswith("-") else ("", value.strip())
    if not digits.isdecimal() or not -15 <= int(sign + digits[:9]) <= 3:
        raise InvalidParameter(
            f'invalid value for parameter "extra_float_digits": "{value[:40]}"',
            detail="It is a whole number from -15 to 3.",
            hint="Write: SET extra_float_digits = 1",
        )
    return str(int(sign + digits[:9]))


def zone_name(_: str, value: str) -> str:
    """A zone's name: an IANA name, hours east of UTC, or an interval of them."""
    name = value.strip("'")
    if (match := _ZONE_INTERVAL.fullmatch(value)) is not None:
        return _offset_zone(value, _zone_interval(value, match[1], (match[2] or "").lower()))
    if _ZONE_HOURS.fullmatch(name):
        return _offset_zone(value, timedelta(seconds=int(float(name) * 3600)))
    try:
        zone(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        known = next((one for one in sorted(available_timezones()) if one.lower() == name.lower()), None)
        if known is None:
            raise _no_zone(value) from None
        return known
    return name


def _zone_interval(value: str, text: str, unit: str) -> timedelta:
    """The span of INTERVAL 'text' unit; a mere number is of hours, and what is finer than the unit is cut off."""
    if unit and _ZONE_HOURS.fullmatch(text):
        text = f"{text} {'minutes' if unit != 'hour' else 'hours'}"
    try:
        span: Span = read(SqlType.INTERVAL, text)
    except Error:
        raise _no_zone(value) from None
    if span.months:
        raise _no_zone(value, "Cannot specify months in time zone interval.")
    seconds = (span.days * 86_400_000_000 + span.microseconds) / 1_000_000
    if abs(seconds) >= 86_400:
        raise _no_zone(value, "It is less than a day.")
    step = {"hour": 3600}.get(unit, 60 if unit else 1)
    return timedelta(seconds=int(seconds / step) * step)


def _offset_zone(value: str, offset: timedelta) -> str:
    try:
        return offset_name(int(offset.total_seconds()))
    except ValueError:
        raise _no_zone(value, "UTC timezone offset is out of range.") from None


def _no_zone(value: str, detail: str | None = None) -> InvalidParameter:
    return InvalidParameter(
        f'invalid value for parameter "TimeZone": "{value[:40]}"',
        detail=detail,
        hint="Write: SET TIME ZONE 'Europe/Berlin'",
    )
