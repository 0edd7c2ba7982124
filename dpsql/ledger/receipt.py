"""What the record of a charge says, written as its canonical text at once: a charge must not wait for an encoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dpsql.ledger.chain import canonical, sha256
from dpsql.privacy.cost import Event


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
    """Return what a release is stored under beside its key: one made under another currency has another price."""
    return sha256(events)


def _numbers(numbers: Sequence[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
