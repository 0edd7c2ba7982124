"""Which charges make up what each budget has spent, read from the records.

Rule: a budget's charges count from where its total was last set to nothing, as projection.py has it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dpsql.ledger.chain import canonical
from dpsql.ledger.projection import Body, load_events
from dpsql.privacy.cost import Event

Events = tuple[Event, ...]


def spending(records: Iterable[Mapping[str, Any]]) -> dict[int, list[Events]]:
    """Return what each budget paid by its number, charge by charge, from the records as `export` yields them."""
    charges: defaultdict[int, dict[int, Events]] = defaultdict(dict)
    for record in records:
        body: Body = record["body"]
        if record["kind"] == "budget.renewed":
            charges[body["budget"]].clear()
        elif record["kind"] == "cap.merged":
            charges[body["into"]] |= charges.pop(body["budget"], {})
        elif record["kind"] == "charge":
            for budget, events in _parts(body):
                charges[budget][record["seq"]] = events
    return {budget: [paid[number] for number in sorted(paid) if paid[number]] for budget, paid in charges.items()}


def _parts(body: Body) -> Iterator[tuple[int, Events]]:
    """Yield what each budget pays of a charge: the user's for every release, the cap for those that are new."""
    releases = [(load_events(canonical(release["events"])), release) for release in body["releases"]]
    yield body["budget"], _joined(events for events, _ in releases)
    yield body["cap"], _joined(events for events, release in releases if release["origin"] == release["id"])


def _joined(parts: Iterable[Events]) -> Events:
    return tuple(event for events in parts for event in events)
