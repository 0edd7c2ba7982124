"""The hash chain: each record carries the digest of everything before it.

Rule 1: a record's hash covers the exact text that is stored, so nothing is re-encoded to check it.
Rule 2: what a record says is enough to rebuild every table that is derived from it.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

ORIGIN = "0" * 64
"""What the first record names as its predecessor."""

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True, slots=True)
class Record:
    """One change of state, as it is stored.

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
        return f"record {expected} is missing: record {record.seq} stands in its place"
    if record.hash != digest(record.seq, record.at, record.kind, record.body, record.previous):
        return f"record {record.seq} was changed after it was written"
    if record.previous != (before.hash if before else ORIGIN):
        return f"record {record.seq} does not follow record {record.seq - 1}: records were replaced or reordered"
    if before and record.at < before.at:
        return f"record {record.seq} is dated before record {before.seq}"
    return None
