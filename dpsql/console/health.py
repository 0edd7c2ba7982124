"""health: how ledger, engine and gateway are, as values; and the gateway's counters, read from its metrics."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dpsql.ledger import VerifyReport

_SAMPLE: Final = re.compile(r'([a-z_]{1,60})(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\})? ([0-9]{1,18})')
_LABEL: Final = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\.)*)"')
_ESCAPES: Final = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_SQLSTATE: Final = re.compile("[0-9A-Z]{5}")


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """How the ledger is.

    Attributes:
        place: Where it is, without a password.
        size: Bytes of its files; None where it is in no file.
        report: What the last check of the whole ledger found; None while the first one is under way.
        checked: When that was.
        trouble: Why it could not be checked; None if it could.
    """

    place: str
    size: int | None
    report: VerifyReport | None
    checked: datetime | None
    trouble: str | None


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """How the database is that holds the data; its schema was looked at, and no row.

    Attributes:
        trouble: Why it cannot be opened; None if it can.
        copies: Each table with a prepared copy, and whether it is read.
        warnings: What the owner should know of it.
        checked: When it was looked at.
    """

    trouble: str | None
    copies: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    checked: datetime


@dataclass(frozen=True, slots=True)
class GatewayHealth:
    """What the gateway says of itself, since it was started.

    Attributes:
        place: Where its metrics are.
        ready: Whether it lets clients in; None if it does not answer.
        sessions: Clients that are logged in.
        statements: Statements begun on the dataset.
        refusals: Statements refused without reading a row, by SQLSTATE.
    """

    place: str
    ready: bool | None
    sessions: int
    statements: int
    refusals: Mapping[str, int]


def read_metrics(place: str, dataset: str, text: str) -> GatewayHealth:
    """Return what a gateway's metrics say of a dataset; lines that are not its own are passed over."""
    statements, sessions, accepting = 0, 0, False
    refusals: dict[str, int] = {}
    for name, labels, value in _samples(text):
        state = labels.get("sqlstate", "")
        if name == "dpsql_sessions":
            sessions = value
        elif name == "dpsql_accepting":
            accepting = value == 1
        elif labels.get("database") != dataset:
            continue
        elif name == "dpsql_statements_total":
            statements += value
        elif name == "dpsql_refusals_total" and _SQLSTATE.fullmatch(state):
            refusals[state] = value
    return GatewayHealth(place, accepting, sessions, statements, refusals)


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], int]]:
    for line in text.split("\n"):
        found = _SAMPLE.fullmatch(line)
        if found is not None:
            labels = {name: _unescaped(value) for name, value in _LABEL.findall(found[2] or "")}
            yield found[1], labels, int(found[3])


def _unescaped(value: str) -> str:
    return re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), value)
