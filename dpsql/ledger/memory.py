"""What a process has read of the ledger and need not read again, for every change is a record and moves the head.

Rule 1: it holds at one head of the chain; a transaction that meets another head forgets all of it.
Rule 2: the records named in CARRIED change totals and the numbers of releases, which are carried on here as in the
tables; every other record makes it forget.
Rule 3: the last record that is known to be durable is remembered whatever else is forgotten: it must stay.
Rule 4: it saves reading, not checking: a total is only written over the total that it was added to.
"""

from dataclasses import dataclass, field
from typing import Any

from dpsql.privacy.totals import Spent

CARRIED = frozenset({"charge", "reuse", "release.stored", "release.dropped"})
"""The kinds of records after which what is remembered still holds."""

MOST = 4096
"""So many budgets and users are remembered at most."""


@dataclass(frozen=True, slots=True)
class Total:
    """What a budget holds.

    Attributes:
        text: As its row has it, in canonical JSON.
        spent: The same as numbers.
    """

    text: str
    spent: Spent = field(compare=False)


@dataclass(slots=True)
class Memory:
    """What was read.

    Attributes:
        head: Hash of the last record then.
        totals: What the budgets hold, by their numbers.
        facts: Whatever else only the records that are not carried change, by whom or what it is about.
        durable: Number and hash of the last record that was met or committed; None before the first.
    """

    head: str | None = None
    totals: dict[int, Total] = field(default_factory=dict)
    facts: dict[object, Any] = field(default_factory=dict)
    durable: tuple[int, str] | None = None

    def meet(self, head: str) -> None:
        """Hold at this head from now on."""
        if head != self.head or len(self.facts) > MOST:
            self.forget()
            self.head = head

    def forget(self) -> None:
        """Hold nothing."""
        self.totals.clear()
        self.facts.clear()
