"""The profiles in a ledger: which one tells of a policy, and what all of them cost."""

from dataclasses import replace
from fractions import Fraction

import pytest

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.profiles import newest_profile, profiles_loss
from dpsql.policy import Policy, Table
from dpsql.policy.profile import Profile, RankGroups, RowRanks, TableProfile, table_facts
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.conversion import rho_to_epsilon
from tests.ledger.world import budget, gaussian, laplace, policy

VISITS = Table("visits", None, False, "patient_id", (), None, 50, 10, 50, ())
POLICY = replace(policy(), tables=(VISITS,))


def profile(told: Policy, most: int) -> Profile:
    ranks = RowRanks(RankGroups(), (most, 1), Fraction(1), 1)
    return Profile((TableProfile("visits", table_facts(told, VISITS), (50,), (ranks,)),), (laplace(Fraction(1, 10)),))


def test_the_newest_that_tells_of_the_policy(ledger: Ledger) -> None:
    newer = replace(POLICY, dataset=replace(POLICY.dataset, data_version="2"))
    assert newest_profile(ledger, POLICY) is None
    for told, most in ((POLICY, 1), (newer, 2), (POLICY, 3), (newer, 4)):
        ledger.store_profile(told, profile(told, most).to_json())
    assert newest_profile(ledger, POLICY) == profile(POLICY, 3)
    assert newest_profile(ledger, newer) == profile(newer, 4)
    assert newest_profile(ledger, replace(POLICY, tables=())) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tables": 7, "events": []}', '{"tables": [[1]], "events": []}'])
def test_what_is_no_profile_is_told(ledger: Ledger, text: str) -> None:
    ledger.store_profile(POLICY, text)
    for asked in (newest_profile, profiles_loss):
        with pytest.raises(LedgerUnavailable, match="a profile in the ledger cannot be read"):
            asked(ledger, POLICY)


def test_what_all_cost_by_the_currency_of_the_cap(ledger: Ledger) -> None:
    assert not any(profiles_loss(ledger, POLICY))
    cap = budget(20, Accountant.ZCDP, Fraction(1, 10**6))
    told = replace(POLICY, dataset=replace(POLICY.dataset, budget=cap))
    for most in (1, 2):
        ledger.store_profile(told, replace(profile(told, most), events=(gaussian(Fraction(1, 50)),)).to_json())
    converted = ledger.cap(told).limit.delta_conversion
    assert profiles_loss(ledger, told) == (rho_to_epsilon(Fraction(1, 25), converted), converted)


def test_pure_losses_add_up(ledger: Ledger) -> None:
    for most in (1, 2, 3):
        ledger.store_profile(POLICY, profile(POLICY, most).to_json())
    assert profiles_loss(ledger, POLICY) == (Fraction(3, 10), Fraction(0))
