"""The hash chain: each record has the digest of all records before it. Also the text of a charge's record.

Rule 1: a record's hash covers the exact text that is stored, so nothing is re-encoded to check it.
Rule 2: the records suffice to rebuild every derived table.
Rule 3: the record of a charge is written directly as its canonical text, because a charge must not wait for an encoder.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dpsql.privacy.cost import Event

ORIGIN = "0" * 64
"""What the first record names as its predecessor."""

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True, slots=True)
class Record:
    """One stored change of state.

    Attributes:
        seq: 1 for the first record, then without gaps.
        at: UTC time in ISO 8601, never earlier than the record before.
        kind: What happened ("charge", "account.added", …).
        body: What exactly, as canonical JSON.
        previous: Hash of the record before, or ORIGIN.
        hash: Hash of this record.
    """

    seq: int
    at: str
    kind: str
    body: str
    previous: str
    hash: str


def canonical(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no blanks, ASCII."""
    return _ENCODER.encode(value)


def link(seq: int, at: str, kind: str, body: dict[str, Any] | str, previous: str) -> Record:
    """Return the record that follows the one whose hash is `previous`; its body may be canonical text already."""
    text = body if isinstance(body, str) else canonical(body)
    return Record(seq, at, kind, text, previous, digest(seq, at, kind, text, previous))


def digest(seq: int, at: str, kind: str, body: str, previous: str) -> str:
    """Return the hash that a record with these fields must carry."""
    # The canonical JSON of the five as a list; written so, it takes half the time.
    return sha256(f"[{seq},{canonical(at)},{canonical(kind)},{canonical(body)},{canonical(previous)}]")


def sha256(content: str | bytes) -> str:
    """Return the SHA-256 of a text or of bytes, in hex."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def flaw(record: Record, before: Record | None) -> str | None:
    """Say what is wrong with a record that follows `before`, or return None."""
    expected = before.seq + 1 if before else 1
    if record.seq != expected:
        return f"record {expected} is missing: record {record.seq} is in its place"
    if record.hash != digest(record.seq, record.at, record.kind, record.body, record.previous):
        return f"record {record.seq} was changed after it was written"
    if record.previous != (before.hash if before else ORIGIN):
        return f"record {record.seq} does not follow record {record.seq - 1}: records were replaced or reordered"
    if before and record.at < before.at:
        return f"record {record.seq} is dated before record {before.seq}"
    return None


@dataclass(frozen=True, slots=True)
class ReceiptItem:
    """A release that was paid for; a fresh one is its own origin.

    Attributes:
        id: Its number.
        key: What it is stored under.
        origin: Number of the release whose cells it shows.
        events: What it cost, as canonical JSON.
    """

    id: int
    key: str
    origin: int
    events: str

    def text(self) -> str:
        """Return its canonical JSON."""
        return f'{{"events":{self.events},"id":{self.id},"key":{canonical(self.key)},"origin":{self.origin}}}'


@dataclass(frozen=True, slots=True)
class GroupShare:
    """What a group paid.

    Attributes:
        name: The group.
        budget: Number of its budget.
        releases: Numbers of the releases that it had not paid for in this window.
    """

    name: str
    budget: int
    releases: tuple[int, ...]

    def text(self) -> str:
        """Return its canonical JSON."""
        return f'{{"budget":{self.budget},"name":{canonical(self.name)},"releases":{_numbers(self.releases)}}}'


@dataclass(frozen=True, slots=True)
class OpenRead:
    """A read of private rows that a charge begins, until the ledger says that it has ended.

    Attributes:
        gateway: The process that reads.
        until: Stamp of the moment after which it counts as lost.
    """

    gateway: str
    until: str

    def text(self) -> str:
        """Return its canonical JSON."""
        return f'{{"gateway":{canonical(self.gateway)},"until":{canonical(self.until)}}}'


@dataclass(frozen=True, slots=True)
class Receipt:
    """Who paid for what.

    Attributes:
        user: Who asked.
        dataset: For which dataset.
        sql: The query.
        budget: Number of the user's budget.
        cap: Number of the budget over all users.
        paid: The releases that the user paid for.
        reused: Numbers of those that the user has paid for before.
        group: What the user's group paid; None without one, and where it paid nothing.
        opens: The read that begins; None where nothing is read.
    """

    user: str
    dataset: str
    sql: str
    budget: int
    cap: int
    paid: tuple[ReceiptItem, ...]
    reused: tuple[int, ...]
    group: GroupShare | None
    opens: OpenRead | None = None

    def text(self) -> str:
        """Return its canonical JSON: `read` of it is the receipt again."""
        group = "" if self.group is None else f'"group":{self.group.text()},'
        read = "" if self.opens is None else f'"read":{self.opens.text()},'
        return (
            f'{{"budget":{self.budget},"cap":{self.cap},"dataset":{canonical(self.dataset)},{group}{read}'
            f'"releases":[{",".join(item.text() for item in self.paid)}],"reused":{_numbers(self.reused)},'
            f'"sql":{canonical(self.sql)},"user":{canonical(self.user)}}}'
        )

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "Receipt":
        """Return the receipt that a record's body is."""
        paid = (
            ReceiptItem(each["id"], each["key"], each["origin"], canonical(each["events"])) for each in body["releases"]
        )
        group, read = body.get("group"), body.get("read")
        return cls(
            body["user"],
            body["dataset"],
            body["sql"],
            body["budget"],
            body["cap"],
            tuple(paid),
            tuple(body["reused"]),
            None if group is None else GroupShare(group["name"], group["budget"], tuple(group["releases"])),
            None if read is None else OpenRead(read["gateway"], read["until"]),
        )


@lru_cache(maxsize=4096)
def write_events(events: tuple[Event, ...]) -> str:
    """Return the canonical JSON of what a release costs; queries repeat."""
    return canonical([event.to_json() for event in events])


@lru_cache(maxsize=4096)
def price_digest(events: str) -> str:
    """Return what a release is stored under, next to its key: one made under another currency has another price."""
    return sha256(events)


def _numbers(numbers: Sequence[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
