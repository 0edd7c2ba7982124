"""settings: what SET and SHOW know: dpsql's own settings, checked, and PostgreSQL's that clients expect.

Rule 1: no setting weakens the guarantee. Prices stay below the role's limit and bounds only narrow.
Rule 2: each value has one spelling, in which SHOW tells it.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dpsql.compiler.scope.settings import QuerySettings
from dpsql.compiler.scope.tables import SYSTEM_TABLES
from dpsql.errors import InvalidParameter, UndefinedObject
from dpsql.gateway.setting_values import (
    boolean,
    count,
    date_style,
    error_ratio,
    float_digits,
    number,
    one_of,
    target,
    zone_name,
)
from dpsql.policy import Policy, Role
from dpsql.privacy.conversion import exact_text

REUSE = "dpsql.reuse"
CONSISTENT = "dpsql.consistent"
TARGET = "dpsql.target_error"
RATIO = "dpsql.max_error_ratio"


class Reuse(enum.StrEnum):
    """What may answer a query: releases that the user has, as they are or added up; as they are; or none of them."""

    DERIVED = "derived"
    EXACT = "exact"
    OFF = "off"


@lru_cache(maxsize=256)
def fraction(text: str) -> Fraction:
    """The exact number of a setting that was checked."""
    return Fraction(text)


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
    "synchronize_seqscans": "on",
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
        *("jit", "row_security", "synchronize_seqscans", "escape_string_warning", "geqo"),
    }
)
_CHOICES = {
    "dpsql.mechanism": ("auto", "laplace", "gaussian"),
    "transaction_isolation": _ISOLATION,
    "default_transaction_isolation": _ISOLATION,
    "standard_conforming_strings": ("on",),
    "IntervalStyle": ("postgres", "postgres_verbose", "sql_standard", "iso_8601"),
    "bytea_output": ("escape", "hex"),
}
_PARSED = ("TimeZone", "DateStyle", "extra_float_digits", "client_encoding")
"""Settings of PostgreSQL whose values are read and told in one spelling."""
_OUTPUT = ("DateStyle", "TimeZone", "IntervalStyle", "bytea_output", "extra_float_digits")
_BOOLEANS = {CONSISTENT: "off", "dpsql.intervals": "off", "dpsql.notices": "on", "dpsql.calibrate": "on"}
_BOUNDS = ("dpsql.max_rows", "dpsql.max_groups", "dpsql.max_rows_per_group")
_TRANSACTIONS = ("isolation", "deferrable")
"""What a transaction has of its own; a new one has the default_transaction_… of the session."""
_OWN = ("dpsql.epsilon", "dpsql.delta", "dpsql.mechanism", REUSE, TARGET, RATIO, *_BOOLEANS, *_BOUNDS)
_SPELLINGS = {name.lower(): name for name in sorted((*_OWN, *_PARSED, *_FIXED, *_FREE, *_CHOICES), key=str.lower)}
"""Every setting there is, found by any spelling."""
_DEFAULTS = {
    REUSE: Reuse.DERIVED.value,
    TARGET: "off",
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


def _encoding(name: str, value: str) -> str:
    one_of(name, value.strip("'").upper(), ("UTF8", "UTF-8", "UNICODE"))
    return "UTF8"


def _choice(name: str, value: str) -> str:
    return one_of(name, value.lower(), _CHOICES[name])


def _reuse(name: str, value: str) -> str:
    """What may answer; on and off, by any word for them, are the most and nothing."""
    word = value.strip().lower()
    if word in tuple(Reuse):
        return word
    try:
        return (Reuse.DERIVED if boolean(name, value) == "on" else Reuse.OFF).value
    except InvalidParameter:
        return one_of(name, word, tuple(Reuse))


_CHECKS: Final[Mapping[str, Callable[[str, str], str]]] = {
    **dict.fromkeys(_CHOICES, _choice),
    **dict.fromkeys((*_BOOLEANS, *_SWITCHES), boolean),
    **dict.fromkeys(_BOUNDS, count),
    REUSE: _reuse,
    TARGET: target,
    RATIO: error_ratio,
    "client_encoding": _encoding,
    "extra_float_digits": float_digits,
    "TimeZone": zone_name,
}
"""How a value is checked, and spelled anew; what is not here is any short text."""


@dataclass(frozen=True)
class ErrorTarget:
    """How wide half of a 95 % interval may be.

    Attributes:
        text: As it was set.
        bound: The width in the column's unit; or relative to the median size of the column's values.
        relative: Which of the two.
    """

    text: str
    bound: float
    relative: bool


@dataclass(frozen=True)
class SettingsSnapshot:
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

    def spelling(self, name: str) -> str:
        """How PostgreSQL writes a setting's name; what is no setting stays unchanged."""
        return _SPELLINGS.get(name.lower(), name)

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

    def snapshot(self) -> SettingsSnapshot:
        """What is set, for a transaction that may roll back."""
        return SettingsSnapshot(dict(self._values), dict(self._local))

    def restore(self, snapshot: SettingsSnapshot) -> None:
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

    @property
    def reuse(self) -> Reuse:
        """What may answer a query; nothing is derived for a role whose policy says so."""
        reuse = Reuse(self.show(REUSE))
        return Reuse.EXACT if reuse is Reuse.DERIVED and not self.role.query.derives else reuse

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
        text = self.show(TARGET)
        if text == "off":
            return None
        bound = float(text.removesuffix(" %"))
        return ErrorTarget(text, bound / 100, True) if text.endswith("%") else ErrorTarget(text, bound, False)

    def schemas(self, user: str) -> tuple[str, ...]:
        """The schemas of search_path for a user; the dataset's own is called public."""
        parts = [part.strip() for part in self.show("search_path").split(",")]
        names = [part[1:-1].replace('""', '"') if part.startswith('"') else part.lower() for part in parts]
        known = {"$user": user, self.policy.dataset.schema: "public"}
        return tuple(dict.fromkeys(known.get(name, name) for name in names))

    def query(self, now: datetime, user: str) -> QuerySettings:
        """The settings that a user's query is compiled under.

        Raises:
            InvalidParameter: The price was set under another role, and this one's limit is lower.
        """
        if (price := self._set_to("dpsql.epsilon")) is not None:
            self._epsilon(price)
        bounds = [None if (bound := self._set_to(name)) is None else int(bound) for name in _BOUNDS]
        return QuerySettings(
            epsilon=fraction(self.show("dpsql.epsilon")),
            delta=fraction(self.show("dpsql.delta")),
            mechanism=self.show("dpsql.mechanism"),
            now=now,
            intervals=self.is_on("dpsql.intervals"),
            max_rows=bounds[0],
            max_groups=bounds[1],
            max_rows_per_group=bounds[2],
            max_error_ratio=Fraction(self.show(RATIO)),
            # A target is about noise: what bounding drops is no reason to buy more of it.
            wide_totals=self.target_error is None,
            calibrate=self.is_on("dpsql.calibrate"),
            schemas=self.schemas(user),
        )

    def _spelling(self, name: str) -> str:
        known = _SPELLINGS.get(name.lower())
        if known is None:
            raise UndefinedObject(f'unrecognized configuration parameter "{name}"', hint=_hint(name.lower()))
        return known

    def _default(self, name: str) -> str:
        if name.startswith("transaction_") and name not in _FIXED:
            return self.show(f"default_{name}")
        if name in _DEFAULTS:
            return _DEFAULTS[name]
        query = self.role.query
        match name:
            case "dpsql.epsilon":
                return exact_text(query.epsilon)
            case "dpsql.delta":
                return exact_text(query.delta)
            case "dpsql.mechanism":
                return str(query.mechanism)
            case "dpsql.max_error_ratio":
                return exact_text(self.policy.dataset.max_error_ratio)
            case "TimeZone":
                return self.policy.dataset.timezone
            case _:
                return "policy"

    def _checked(self, name: str, value: str) -> str:
        match name:
            case "dpsql.epsilon":
                return self._epsilon(value)
            case "dpsql.delta":
                return self._delta(value)
            case "DateStyle":
                return date_style(value, self._value(name))
        if name in _CHECKS:
            return _CHECKS[name](name, value)
        if len(value) > 10_000 or "\x00" in value:
            raise InvalidParameter(f'invalid value for parameter "{name}"')
        return value

    def _epsilon(self, value: str) -> str:
        epsilon, limit = number("dpsql.epsilon", value), self.role.query.max_epsilon
        if not Fraction(1, 1000) <= epsilon <= limit:
            raise InvalidParameter(
                f"dpsql.epsilon must be between 0.001 and {exact_text(limit)}, the limit of role "
                f'"{self.role.name}" for one query',
                hint=f"Write: SET dpsql.epsilon = {exact_text(min(limit, self.role.query.epsilon))}",
            )
        return exact_text(epsilon)

    def _delta(self, value: str) -> str:
        delta = number("dpsql.delta", value)
        if delta != 0 and not Fraction(1, 10**30) <= delta <= Fraction(1, 1000):
            raise InvalidParameter(
                "dpsql.delta must be 0, or between 1e-30 and 0.001", hint="Write: SET dpsql.delta = 1e-9"
            )
        return exact_text(delta)


def _hint(name: str) -> str:
    """The hint for a name that is no setting."""
    if name in ("tables", "columns"):
        return "Write: SELECT * FROM dpsql.columns"
    if name.startswith("dpsql.") and name.removeprefix("dpsql.") in SYSTEM_TABLES:
        return f"It is a relation. Write: SELECT * FROM {name}"  # noqa: S608  # a name of ours
    names = {spelling.lower().removeprefix("dpsql."): spelling for spelling in _SPELLINGS.values()}
    close = get_close_matches(name.removeprefix("dpsql."), names, n=1, cutoff=0.85)
    return f'Perhaps you mean "{names[close[0]]}". Write: SHOW {names[close[0]]}' if close else "Write: SHOW ALL"
