"""settings: what SET and SHOW know: dpsql's own settings, checked, and PostgreSQL's that clients expect.

Rule: no setting weakens the guarantee. Prices stay below the role's limit and bounds only narrow.
"""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

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
    "extra_float_digits": "1",
    "search_path": '"$user", public',
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "transaction_isolation": "read committed",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "on",
    "bytea_output": "hex",
    "IntervalStyle": "postgres",
    "jit": "off",
    "synchronous_commit": "on",
    "row_security": "on",
    "default_tablespace": "",
    "transaction_characteristics": "",
    "session_authorization": "",
    "escape_string_warning": "on",
    "geqo": "on",
    "work_mem": "4MB",
}
_CHOICES = {
    "standard_conforming_strings": ("on",),
    "client_encoding": ("UTF8", "UTF-8", "UNICODE"),
    "DateStyle": ("ISO", "ISO, MDY", "ISO, DMY", "ISO, YMD", "ISO,MDY", "ISO,DMY", "ISO,YMD"),
}
_BOOLEANS = {"dpsql.intervals": "off", "dpsql.reuse": "on", "dpsql.notices": "on"}
_BOUNDS = ("dpsql.max_rows", "dpsql.max_groups", "dpsql.max_rows_per_group")
_TARGET = "dpsql.target_error"
_MECHANISMS = ("auto", "laplace", "gaussian")


@dataclass
class Settings:
    """The settings of one session.

    Attributes:
        policy: Whose time zone applies.
        role: Whose prices apply.
    """

    policy: Policy
    role: Role
    _values: dict[str, str] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Every setting there is."""
        own = ("dpsql.epsilon", "dpsql.delta", "dpsql.mechanism", _TARGET, *_BOOLEANS, *_BOUNDS)
        return tuple(sorted((*own, "TimeZone", *_FIXED, *_FREE, *_CHOICES), key=str.lower))

    def show(self, name: str) -> str:
        """A setting's value.

        Raises:
            UndefinedObject: There is no such setting.
        """
        known = self._spelling(name)
        return self._values.get(known, self._default(known))

    def set(self, name: str, value: str | None) -> None:
        """Change a setting; None is its default.

        Raises:
            UndefinedObject: There is no such setting.
            InvalidParameter: The value is out of range.
        """
        known = self._spelling(name)
        if known in _FIXED:
            raise InvalidParameter(f'parameter "{known}" cannot be changed')
        if value is None:
            self._values.pop(known, None)
            return
        self._values[known] = self._checked(known, value)

    def reset(self) -> None:
        """Give every setting its default again."""
        self._values.clear()

    def snapshot(self) -> dict[str, str]:
        """What was set, for a transaction that may roll back."""
        return dict(self._values)

    def restore(self, snapshot: dict[str, str]) -> None:
        """Go back to a snapshot, as far as the policy, which may be another by now, lets it."""
        self._values = {name: value for name, value in snapshot.items() if self._is_allowed(name, value)}

    def adopt(self, policy: Policy, role: Role) -> None:
        """Go on under a policy that was loaded again: what it does not allow any more has its default."""
        self.policy, self.role = policy, role
        self.restore(self._values)

    def reported(self) -> dict[str, str]:
        """The settings that clients are told of."""
        return {name: self.show(name) for name in REPORTED}

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
        """The settings that a query is compiled under."""
        bounds = [int(self._values[name]) if name in self._values else None for name in _BOUNDS]
        return QuerySettings(
            epsilon=Fraction(self.show("dpsql.epsilon")),
            delta=Fraction(self.show("dpsql.delta")),
            mechanism=self.show("dpsql.mechanism"),
            now=now,
            intervals=self.is_on("dpsql.intervals"),
            max_rows=bounds[0],
            max_groups=bounds[1],
            max_rows_per_group=bounds[2],
        )

    def _spelling(self, name: str) -> str:
        for known in self.names():
            if known.lower() == name.lower():
                return known
        raise UndefinedObject(
            f'unrecognized configuration parameter "{name}"', hint="SHOW ALL lists the settings there are."
        )

    def _default(self, name: str) -> str:
        query = self.role.query
        own = {
            "dpsql.epsilon": _decimal_text(query.epsilon),
            "dpsql.delta": _decimal_text(query.delta),
            "dpsql.mechanism": str(query.mechanism),
            _TARGET: "off",
            "TimeZone": self.policy.dataset.timezone,
            "standard_conforming_strings": "on",
            "client_encoding": "UTF8",
            "DateStyle": "ISO, MDY",
        }
        for values in (own, _BOOLEANS, _FIXED, _FREE):
            if name in values:
                return values[name]
        return "policy"

    def _is_allowed(self, name: str, value: str) -> bool:
        try:
            self._checked(name, value)
        except InvalidParameter:
            return False
        return True

    def _checked(self, name: str, value: str) -> str:
        if name == "dpsql.epsilon":
            return self._epsilon(value)
        if name == "dpsql.delta":
            return self._delta(value)
        if name == "dpsql.mechanism":
            return _one_of(name, value.lower(), _MECHANISMS)
        if name == _TARGET:
            return _target(value)
        if name in _BOOLEANS:
            return _boolean(name, value)
        if name in _BOUNDS:
            return _count(name, value)
        if name == "DateStyle":
            _one_of(name, value.upper(), _CHOICES[name])
            return value.upper().replace(",", ", ").replace(",  ", ", ") if "," in value else "ISO, MDY"
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


def _number(name: str, text: str) -> Fraction:
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or abs(value.adjusted()) > 100 or len(value.as_tuple().digits) > 30:
        raise InvalidParameter(f'invalid value for parameter "{name}": "{text[:40]}"', hint=f"SET {name} = 0.1")
    return Fraction(value)


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


def _zone(value: str) -> str:
    try:
        return ZoneInfo(value.strip("'")).key
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise InvalidParameter(f'invalid value for parameter "TimeZone": "{value[:40]}"') from None


def _count(name: str, value: str) -> str:
    digits = value.strip().lstrip("0")
    if not digits.isdecimal() or len(digits) > 9:
        raise InvalidParameter(f'invalid value for parameter "{name}": "{value[:40]}"', hint=f"SET {name} = 4")
    return digits
