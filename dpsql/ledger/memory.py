"""What a process has read of the ledger and need not read again, for every change is a record and moves the head.

Rule 1: it holds at one head of the chain; a transaction that meets another head forgets all of it.
Rule 2: the records named in CARRIED change totals and the numbers of releases, which are carried on here as in the
tables; every other record makes it forget.
Rule 3: the last record that is known to be durable is remembered whatever else is forgotten: it must stay.
Rule 4: it saves reading, not checking: a total is only written over the total that it was added to.
Rule 5: what is read of it outside a transaction (`owned`, `era`) was learnt of what is durable.
"""

from dataclasses import dataclass, field
from typing import Any

from dpsql.privacy.totals import Spent

CARRIED = frozenset({"charge", "reuse", "release.stored", "release.dropped", "read.ended"})
"""The kinds of records after which what is remembered still holds."""

MOST = 4096
"""So many budgets and users are remembered at most."""

MOST_OWNED = 1024
"""So many answers that users own are remembered at most."""


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
        coming: The same of the last that was about to be committed: it may be durable already.
        owned: What users may have again for nothing, by who they are and what they ask.
        learnt: What `owned` gets when the transaction is durable.
        era: A number that has changed whenever anything may have changed but totals and releases.
        stirred: Whether something was forgotten since the transaction began.
    """

    head: str | None = None
    totals: dict[int, Total] = field(default_factory=dict)
    facts: dict[object, Any] = field(default_factory=dict)
    durable: tuple[int, str] | None = None
    coming: tuple[int, str] | None = None
    owned: dict[object, Any] = field(default_factory=dict)
    learnt: dict[object, Any] = field(default_factory=dict)
    era: int = 0
    stirred: bool = False

    def meet(self, head: str) -> None:
        """Hold at this head from now on; a transaction begins."""
        self.learnt.clear()
        if head != self.head or len(self.facts) > MOST:
            self.forget()
            self.head = head

    def is_of(self, head: tuple[int, str] | None) -> bool:
        """Whether a head of the ledger is one that this process knows, so that nobody else has written since."""
        if head is None:
            return False
        return head == self.durable or (head == self.coming and not self.stirred)

    def forget(self) -> None:
        """Hold nothing."""
        self.totals.clear()
        self.facts.clear()
        self.disown()
        self.era += 1
        self.stirred = True

    def disown(self) -> None:
        """Hold nothing of what users have."""
        self.owned.clear()
        self.learnt.clear()

    def settle(self, number: int, head: str) -> None:
        """Note that all up to a record is durable."""
        while len(self.owned) + len(self.learnt) > MOST_OWNED and self.owned:
            self.owned.pop(next(iter(self.owned)), None)
        self.owned |= self.learnt
        self.learnt.clear()
        if self.stirred:
            # What was read beside the transaction, of the state before it, is no longer so.
            self.era += 1
            self.stirred = False
        self.durable = number, head
