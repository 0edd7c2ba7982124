"""health: the health of ledger, engine and gateway; reads the gateway's metrics over HTTP.

The port is that of `dpsql serve --metrics-port`.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from dpsql.ledger import VerifyReport

_SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 20
_REQUEST: Final = b"GET /metrics HTTP/1.0\r\nHost: gateway\r\n\r\n"
_SQLSTATE: Final = re.compile("[0-9A-Z]{5}")


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """The health of the ledger.

    Attributes:
        place: Its place, without a password.
        size: The size of its files in bytes; None for a ledger without files.
        report: The result of the last full check; None until the first one ends.
        checked: The time of that check.
        trouble: Why it could not be checked; None if it could.
    """

    place: str
    size: int | None
    report: VerifyReport | None
    checked: datetime | None
    trouble: str | None


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """The health of the database with the data; its schema was read, but no row.

    Attributes:
        trouble: Why it cannot be opened; None if it can.
        copies: Each table with a prepared table, and whether that is read.
        warnings: Warnings for the owner.
        checked: The time of the check.
    """

    trouble: str | None
    copies: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    checked: datetime


@dataclass(frozen=True, slots=True)
class GatewayHealth:
    """The gateway's own report since its start.

    Attributes:
        place: The address of its metrics.
        ready: Whether it accepts clients; None if it does not answer.
        sessions: The number of clients that are logged in.
        statements: The number of statements on the dataset.
        refusals: Statements refused without reading a row, by SQLSTATE.
    """

    place: str
    ready: bool | None
    sessions: int
    statements: int
    refusals: Mapping[str, int]


async def ask_gateway(host: str, port: int, dataset: str) -> GatewayHealth:
    """Return a gateway's health for a dataset; `ready` is None if it does not answer within three seconds."""
    place = f"{host}:{port}"
    try:
        async with asyncio.timeout(_SECONDS):
            answer = await _answer(host, port)
    except (OSError, TimeoutError):
        answer = b""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.0 200 ")):
        return GatewayHealth(place, None, 0, 0, {})
    return read_metrics(place, dataset, body.decode("utf-8", "replace"))


async def _answer(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUEST)
        answer = b""
        while len(answer) <= _MOST_BYTES and (more := await reader.read(1 << 16)):
            answer += more
        return answer
    finally:
        writer.close()


def read_metrics(place: str, dataset: str, text: str) -> GatewayHealth:
    """Return a gateway's health for a dataset from its metrics; `ready` is None if the text has no metrics."""
    statements, sessions, accepting = 0, 0, False
    refusals: dict[str, int] = {}
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError:
        return GatewayHealth(place, None, 0, 0, {})
    for sample in samples:
        if not 0 < sample.value < inf:
            continue
        value, state = int(sample.value), sample.labels.get("sqlstate", "")
        if sample.name == "dpsql_sessions":
            sessions = value
        elif sample.name == "dpsql_accepting":
            accepting = value == 1
        elif sample.labels.get("database") != dataset:
            continue
        elif sample.name == "dpsql_statements_total":
            statements += value
        elif sample.name == "dpsql_refusals_total" and _SQLSTATE.fullmatch(state):
            refusals[state] = value
    return GatewayHealth(place, accepting, sessions, statements, refusals)
