"""The profiles of a dataset: the current one, from which bounds are chosen, and the cost of all."""

from fractions import Fraction
from functools import partial
from typing import Protocol

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.ledger import Ledger
from dpsql.policy import Policy
from dpsql.policy.profile import Profile
from dpsql.privacy.accounting import Spent, standalone

_NONE = Fraction(0)


class HoldsProfiles(Protocol):
    """A ledger, or what reads of it."""

    def profiles(self, policy: Policy) -> tuple[str, ...]:
        """Return the profiles of the dataset, oldest first."""


def newest_profile(ledger: HoldsProfiles, policy: Policy) -> Profile | None:
    """Return the last profile of a dataset; None where there is none that tells of a table of the policy."""
    newest = reversed(_profiles(ledger, policy))
    return next((each for each in newest if any(map(partial(each.of, policy), policy.tables))), None)


def profiles_loss(ledger: Ledger, policy: Policy) -> tuple[Fraction, Fraction]:
    """Return the (ε, δ), rounded up, of all profiles of a dataset together; (0, 0) where there is none.

    Guarantee: with it, a user's (ε, δ) beyond the profiles adds up to what is told of a unit in all.
    Assumes: the profiles are those that the cap was charged for.
    Reference: Dwork & Roth 2014, theorem 3.16.
    """
    events = [event for each in _profiles(ledger, policy) for event in each.events]
    spent, converted = Spent.zero().add(events), ledger.cap(policy).limit.delta_conversion
    if not events:
        return _NONE, _NONE
    if not converted:
        if spent.basic_epsilon is None:
            raise TypeError("events of a budget without a conversion have a loss that adds up")
        return spent.basic_epsilon, spent.basic_delta
    return standalone(spent, converted)


def _profiles(ledger: HoldsProfiles, policy: Policy) -> list[Profile]:
    try:
        return list(map(Profile.from_json, ledger.profiles(policy)))
    except (KeyError, TypeError, ValueError):
        raise LedgerUnavailable("a profile in the ledger cannot be read", hint="Run dpsql ledger verify.") from None
