"""settings: what SET and SHOW know: dpsql's own settings, checked, and PostgreSQL's that clients expect.

Rule: no setting weakens the guarantee. Prices stay below the role's limit and bounds only narrow.
"""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from dpsql.compiler.settings import QuerySettings
from dpsql.errors import InvalidParameter, UndefinedObject
from dpsql.policy import Policy, Role
from dpsql.target import ErrorTarget

REPORTED = (
    *("client_encoding", "DateStyle", "IntervalStyle", "TimeZone", "application_name", "standard_conforming_strings"),
    *("default_transaction_read_only", "search_path"),
)
"""Settings that clients are told of, and told again when they change, by PostgreSQL's spelling."""

_FIXED = {
    "server_version": "15.0",
    "server_version_num": "150000",
    "server_encoding": "UTF8",
    "integer_datetimes": "on",
    "is_superuser": "off",
    "in_hot_standby": "off",
    "max_identifier_length": "63",
    "transaction_read_only": "on",
    "lc_collate": "C",
    "lc_ctype": "C",
}
_FREE = {
    "application_name": "",
    "client_min_messages": "notice",
    "search_path": '"$user", public',
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "transaction_deferrable": "off",
    "default_transaction_deferrable": "off",
    "default_transaction_read_only": "on",
    "jit": "off",
    "synchronous_commit": "on",
    "row_security": "on",
    "default_tablespace": "",
    "session_authorization": "",
    "escape_string_warning": "on",
    "geqo": "on",
    "work_mem": "4MB",
}
_ISOLATION = ("serializable", "repeatable read", "read committed", "read uncommitted")
_SWITCHES = frozenset(
    {
        *("default_transaction_read_only", "default_transaction_deferrable", "transaction_deferrable"),
        *("jit", "row_security", "escape_string_warning", "geqo"),
    }
)
_CHOICES = {
    "transaction_isolation": _ISOLATION,
    "default_transaction_isolation": _ISOLATION,
    "standard_conforming_strings": ("on",),
    "client_encoding": ("UTF8", "UTF-8", "UNICODE"),
    "IntervalStyle": ("postgres", "postgres_verbose", "sql_standard", "iso_8601"),
    "bytea_output": ("escape", "hex"),
}
_PARSED = ("TimeZone", "DateStyle", "extra_float_digits")
"""Settings of PostgreSQL whose values are read and told in one spelling."""
_OUTPUT = ("DateStyle", "TimeZone", "IntervalStyle", "bytea_output", "extra_float_digits")
_BOOLEANS = {"dpsql.intervals": "off", "dpsql.reuse": "on", "dpsql.notices": "on"}
_BOUNDS = ("dpsql.max_rows", "dpsql.max_groups", "dpsql.max_rows_per_group")
_TRANSACTIONS = ("isolation", "deferrable")
"""What a transaction has of its own; a new one has the default_transaction_… of the session."""
_TARGET = "dpsql.target_error"
_RATIO = "dpsql.max_error_ratio"
_MECHANISMS = ("auto", "laplace", "gaussian")
_OWN = ("dpsql.epsilon", "dpsql.delta", "dpsql.mechanism", _TARGET, _RATIO, *_BOOLEANS, *_BOUNDS)
_SPELLINGS = {name.lower(): name for name in sorted((*_OWN, *_PARSED, *_FIXED, *_FREE, *_CHOICES), key=str.lower)}
"""Every setting there is, found by any spelling."""
_DEFAULTS = {
    _TARGET: "off",
    "standard_conforming_strings": "on",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "default_transaction_isolation": "read committed",
    **_BOOLEANS,
    **_FIXED,
    **_FREE,
}
"""Defaults that no policy says."""


@dataclass(frozen=True)
class Snapshot:
    """What was set at some time, for the session and for the transaction."""

    values: dict[str, str]
    local: dict[str, str | None]


@dataclass
class Settings:
    """The settings of one session; what is set for a transaction alone goes with it.

    Attributes:
        policy: Whose time zone applies.
        role: Whose prices apply, as of the last query.
        changes: How often something was set or unset: what was described before may have another shape by now.
    """

    policy: Policy
    role: Role
    changes: int = 0
    _values: dict[str, str] = field(default_factory=dict)
    _local: dict[str, str | None] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Every setting there is."""
        return tuple(_SPELLINGS.values())

    def show(self, name: str) -> str:
        """A setting's value.

        Raises:
            UndefinedObject: There is no such setting.
        """
        return self._value(self._spelling(name))

    def _value(self, name: str) -> str:
        value = self._set_to(name)
        return self._default(name) if value is None else value

    def _set_to(self, name: str) -> str | None:
        return self._local[name] if name in self._local else self._values.get(name)

    def set(self, name: str, value: str | None, *, local: bool = False) -> None:
        """Change a setting, for the transaction alone if `local`; None is its default.

        Raises:
            UndefinedObject: There is no such setting.
            InvalidParameter: The value is out of range.
        """
        known = self._spelling(name)
        if known in _FIXED:
            raise InvalidParameter(f'parameter "{known}" cannot be changed')
        checked = None if value is None else self._checked(known, value)
        self.changes += 1
        if local:
            self._local[known] = checked
            return
        self._local.pop(known, None)
        self._values.pop(known, None)
        if checked is not None:
            self._values[known] = checked

    def reset(self) -> None:
        """Give every setting its default again, but for those of the transaction itself."""
        self.changes += 1
        self._values.clear()
        self._local = {name: value for name, value in self._local.items() if name.startswith("transaction_")}

    def commit(self) -> None:
        """Forget what was set for the transaction alone."""
        self.changes += bool(self._local)
        self._local.clear()

    def transaction_modes(self) -> tuple[tuple[str, str], ...]:
        """What the transaction has of its own."""
        return tuple((name, self.show(f"transaction_{name}")) for name in _TRANSACTIONS)

    def snapshot(self) -> Snapshot:
        """What is set, for a transaction that may roll back."""
        return Snapshot(dict(self._values), dict(self._local))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot."""
        self.changes += self.snapshot() != snapshot
        self._values, self._local = dict(snapshot.values), dict(snapshot.local)

    def reported(self) -> dict[str, str]:
        """The settings that clients are told of."""
        return {name: self._value(name) for name in REPORTED}

    def output(self) -> dict[str, str]:
        """The settings that say how values are printed."""
        return {name: self._value(name) for name in _OUTPUT}

    def reported_since(self, before: dict[str, str]) -> tuple[tuple[str, str], ...]:
        """The settings that clients are told of and that are not what they were."""
        return tuple((name, value) for name, value in self.reported().items() if before[name] != value)

    def is_on(self, name: str) -> bool:
        """The value of a boolean setting."""
        return self.show(name) == "on"

    @property
    def statement_timeout(self) -> float:
        """Seconds a statement may take; 0 for no limit of the session's own."""
        text = self.show("statement_timeout")
        units = {"ms": 1e-3, "s": 1.0, "min": 60.0}
        unit = next((u for u in units if text.endswith(u) and text.removesuffix(u).strip().isdecimal()), "")
        number = text.removesuffix(unit).strip()
        return min(float(number[:9]) * units.get(unit, 1e-3), 86_400.0) if number.isdecimal() else 0.0

    @property
    def target_error(self) -> ErrorTarget | None:
        """How exact answers are to be; None to ask the price that is set."""
        text = self.show(_TARGET)
        if text == "off":
            return None
        bound = float(text.removesuffix(" %"))
        return ErrorTarget(text, bound / 100, True) if text.endswith("%") else ErrorTarget(text, bound, False)

    def query(self, now: datetime) -> QuerySettings:
        """The settings that a query is compiled under.

        Raises:
            InvalidParameter: The price was set under another role, and this one's limit is lower.
        """
        if (price := self._set_to("dpsql.epsilon")) is not None:
            self._epsilon(price)
        bounds = [None if (bound := self._set_to(name)) is None else int(bound) for name in _BOUNDS]
        return QuerySettings(
            epsilon=_fraction(self.show("dpsql.epsilon")),
            delta=_fraction(self.show("dpsql.delta")),
            mechanism=self.show("dpsql.mechanism"),
            now=now,
            intervals=self.is_on("dpsql.intervals"),
            max_rows=bounds[0],
            max_groups=bounds[1],
            max_rows_per_group=bounds[2],
            max_error_ratio=Fraction(self.show(_RATIO)),
        )

    def _spelling(self, name: str) -> str:
        known = _SPELLINGS.get(name.lower())
        if known is None:
            raise UndefinedObject(
                f'unrecognized configuration parameter "{name}"', hint="SHOW ALL lists the settings there are."
            )
        return known

    def _default(self, name: str) -> str:
        if name.startswith("transaction_") and name not in _FIXED:
            return self.show(f"default_{name}")
        if name in _DEFAULTS:
            return _DEFAULTS[name]
        query = self.role.query
        match name:
            case "dpsql.epsilon":
                return _decimal_text(query.epsilon)
            case "dpsql.delta":
                return _decimal_text(query.delta)
            case "dpsql.mechanism":
                return str(query.mechanism)
            case "dpsql.max_error_ratio":
                return _decimal_text(self.policy.dataset.max_error_ratio)
            case "TimeZone":
                return self.policy.dataset.timezone
            case _:
                return "policy"

    def _checked(self, name: str, value: str) -> str:
        if name == "dpsql.epsilon":
            return self._epsilon(value)
        if name == "dpsql.delta":
            return self._delta(value)
        if name == "dpsql.mechanism":
            return _one_of(name, value.lower(), _MECHANISMS)
        if name == _TARGET:
            return _target(value)
        if name == _RATIO:
            return _error_ratio(value)
        if name in _BOOLEANS or name in _SWITCHES:
            return _boolean(name, value)
        if name in _BOUNDS:
            return _count(name, value)
        if name == "DateStyle":
            return _date_style(value, self._value(name))
        if name == "extra_float_digits":
            return _float_digits(value)
        if name == "client_encoding":
            _one_of(name, value.strip("'").upper(), _CHOICES[name])
            return "UTF8"
        if name == "TimeZone":
            return _zone(value)
        if name in _CHOICES:
            return _one_of(name, value.lower(), _CHOICES[name])
        if len(value) > 10_000 or "\x00" in value:
            raise InvalidParameter(f'invalid value for parameter "{name}"')
        return value

    def _epsilon(self, value: str) -> str:
        epsilon, limit = _number("dpsql.epsilon", value), self.role.query.max_epsilon
        if not Fraction(1, 1000) <= epsilon <= limit:
            raise InvalidParameter(
                f"dpsql.epsilon must lie between 0.001 and {_decimal_text(limit)}, the limit of role "
                f'"{self.role.name}" for one query',
                hint=f"SET dpsql.epsilon = {_decimal_text(min(limit, self.role.query.epsilon))}",
            )
        return _decimal_text(epsilon)

    def _delta(self, value: str) -> str:
        delta = _number("dpsql.delta", value)
        if delta != 0 and not Fraction(1, 10**30) <= delta <= Fraction(1, 1000):
            raise InvalidParameter(
                "dpsql.delta must be 0, or lie between 1e-30 and 0.001", hint="SET dpsql.delta = 1e-9"
            )
        return _decimal_text(delta)


@lru_cache(maxsize=256)
def _fraction(text: str) -> Fraction:
    return Fraction(text)


def _number(name: str, text: str) -> Fraction:
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or abs(value.adjusted()) > 100 or len(value.as_tuple().digits) > 30:
        raise InvalidParameter(f'invalid value for parameter "{name}": "{text[:40]}"', hint=f"SET {name} = 0.1")
    return Fraction(value)


def _error_ratio(value: str) -> str:
    ratio = _number(_RATIO, value)
    if not 0 <= ratio <= 1000:
        raise InvalidParameter(
            f"{_RATIO} must lie between 0, for no prepared copies, and 1000", hint=f"SET {_RATIO} = 1.5"
        )
    return _decimal_text(ratio)


def _target(value: str) -> str:
    """The canonical spelling of a target: off, a number, or a percentage."""
    text = value.strip().lower()
    if text == "off":
        return text
    percent = text.endswith("%")
    try:
        number = _number(_TARGET, text.removesuffix("%"))
    except InvalidParameter:
        number = Fraction(0)
    if not Fraction(1, 10**30) <= number <= (100 if percent else 10**30):
        raise InvalidParameter(
            f'invalid value for parameter "{_TARGET}": "{value[:40]}"',
            detail="It is half the width of a 95 % interval: in the column's unit, or up to 100 % of its median size.",
            hint=f"SET {_TARGET} = '5 %'; SET {_TARGET} = '50'; SET {_TARGET} = off",
        )
    return f"{_decimal_text(number)} %" if percent else _decimal_text(number)


@lru_cache(maxsize=256)
def _decimal_text(value: Fraction) -> str:
    """An exact decimal; every value here came from one."""
    text = f"{Decimal(value.numerator) / Decimal(value.denominator):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InvalidParameter(
            f'invalid value for parameter "{name}": "{value[:40]}"', hint="Available values: " + ", ".join(choices)
        )
    return value


def _boolean(name: str, value: str) -> str:
    word = value.strip().lower()
    if word in ("on", "true", "yes", "1", "t"):
        return "on"
    if word in ("off", "false", "no", "0", "f"):
        return "off"
    raise InvalidParameter(f'parameter "{name}" requires a Boolean value', hint=f"SET {name} = on")


_STYLES = {"iso": "ISO", "sql": "SQL", "german": "German"}
_ORDERS = {
    **{"ymd": "YMD", "dmy": "DMY", "euro": "DMY", "european": "DMY", "mdy": "MDY", "us": "MDY", "noneuro": "MDY"},
    "noneuropean": "MDY",
}


def _date_style(value: str, current: str) -> str:
    """A style, an order or both; what is not said stays as it is, but German has the day first."""
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
                f'invalid value for parameter "DateStyle": "{value[:40]}"', hint="SET DateStyle = 'ISO, DMY'"
            )
    if said.get("style") == "German":
        order = "DMY"
    return f"{said.get('style', style)}, {said.get('order', order)}"


def _float_digits(value: str) -> str:
    sign, digits = ("-", value.strip()[1:]) if value.strip().startswith("-") else ("", value.strip())
    if not digits.isdecimal() or not -15 <= int(sign + digits[:9]) <= 3:
        raise InvalidParameter(
            f'invalid value for parameter "extra_float_digits": "{value[:40]}"',
            detail="It is a whole number from -15 to 3.",
            hint="SET extra_float_digits = 1",
        )
    return str(int(sign + digits[:9]))


def _zone(value: str) -> str:
    name = value.strip("'")
    try:
        return ZoneInfo(name).key
    except (ValueError, OSError, ZoneInfoNotFoundError):
        known = next((zone for zone in sorted(available_timezones()) if zone.lower() == name.lower()), None)
        if known is not None:
            return known
        raise InvalidParameter(f'invalid value for parameter "TimeZone": "{value[:40]}"') from None


def _count(name: str, value: str) -> str:
    digits = value.strip().lstrip("0")
    if not digits.isdecimal() or len(digits) > 9:
        raise InvalidParameter(f'invalid value for parameter "{name}": "{value[:40]}"', hint=f"SET {name} = 4")
    return digits
