"""Which charges make up the spending of each budget, read from the records.

Rule: a budget's charges count from the last time that its total was set to zero, as in derived_tables.py.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dpsql.ledger.chain import canonical
from dpsql.ledger.derived_tables import Body, load_events
from dpsql.privacy.cost import Event

Events = tuple[Event, ...]


def spending(records: Iterable[Mapping[str, Any]]) -> dict[int, list[Events]]:
    """Return what each budget paid by its number, charge by charge, from the records as `export` yields them."""
    charges: defaultdict[int, dict[int, Events]] = defaultdict(dict)
    for record in records:
        body: Body = record["body"]
        if record["kind"] in ("budget.renewed", "budget.reset"):
            charges[body["budget"]].clear()
        elif record["kind"] == "cap.merged":
            charges[body["into"]] |= charges.pop(body["budget"], {})
        elif record["kind"] == "cap.charged":
            charges[body["budget"]][record["seq"]] = load_events(canonical(body["events"]))
        elif record["kind"] == "charge":
            for budget, events in parts(body):
                charges[budget][record["seq"]] = events
    return {budget: [paid[number] for number in sorted(paid)] for budget, paid in charges.items()}


def parts(body: Body) -> Iterator[tuple[int, Events]]:
    """Yield each budget's part of a charge: the user's pays all, the cap what is new, the group's what is new to it."""
    releases = {release["id"]: load_events(canonical(release["events"])) for release in body["releases"]}
    made = [release["id"] for release in body["releases"] if release["origin"] == release["id"]]
    payers = [(body["budget"], releases), (body["cap"], made)]
    if "group" in body:
        payers.append((body["group"]["budget"], body["group"]["releases"]))
    for budget, paid in payers:
        if paid:
            yield budget, tuple(event for release in paid for event in releases[release])
