"""What a budget's total is made of, over windows, other users' releases and caps that become one."""

from fractions import Fraction

from dpsql.ledger import BudgetStatus
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.spending import spending
from dpsql.policy import RenewalWindow
from dpsql.privacy.accounting import Accountant, Spent
from tests.ledger.world import ANA, SQL, Clock, budget, charge_only, laplace, policy, request

TENTH = Fraction(1, 10)


def paid(ledger: Ledger, status: BudgetStatus) -> list[Fraction | None]:
    """Return the price of each charge, after checking that they add up to the total."""
    assert status.numbers
    found = spending(ledger.export())
    charges = [charge for number in status.numbers for charge in found.get(number, [])]
    total = Spent.zero()
    for events in charges:
        total = total.add(events)
    assert total == status.spent
    assert len(charges) == status.charges
    return [Spent.zero().add(events).pure_epsilon for events in charges]


def test_a_budget_that_was_never_charged_has_no_number(ledger: Ledger) -> None:
    assert ledger.budget("ana", policy()).numbers == ()
    assert ledger.cap(policy()).numbers == ()
    assert spending(ledger.export()) == {}


def test_the_charges_of_a_user_are_in_their_order(ledger: Ledger) -> None:
    for part in (1, 2, 3):
        charge_only(ledger, "ana", policy(), [request(part, laplace(TENTH * part))], sql=SQL)
        charge_only(ledger, "ben", policy(), [request(("ben", part), laplace(TENTH))], sql=SQL)
    assert paid(ledger, ledger.budget("ana", policy())) == [TENTH, 2 * TENTH, 3 * TENTH]
    assert paid(ledger, ledger.budget("ben", policy())) == [TENTH] * 3
    assert len(paid(ledger, ledger.cap(policy()))) == 6


def test_a_charge_has_all_releases_of_the_query(ledger: Ledger) -> None:
    charge_only(ledger, "ana", policy(), [request("a"), request("b", laplace(TENTH), laplace(TENTH))], sql=SQL)
    assert paid(ledger, ledger.budget("ana", policy())) == [3 * TENTH]


def test_the_cap_pays_for_a_release_once(ledger: Ledger) -> None:
    charge = charge_only(ledger, "ana", policy(), [request("a")], sql=SQL)
    ledger.store(charge.releases[0].release_id, b"rows")
    charge_only(ledger, "ana", policy(), [request("a")], sql=SQL)  # free
    charge_only(ledger, "ben", policy(), [request("a")], sql=SQL)
    charge_only(ledger, "ben", policy(), [request("a"), request("b")], sql=SQL)
    assert paid(ledger, ledger.budget("ana", policy())) == [TENTH]
    assert paid(ledger, ledger.budget("ben", policy())) == [TENTH] * 2
    assert paid(ledger, ledger.cap(policy())) == [TENTH] * 2


def test_a_new_window_begins_with_nothing(ledger: Ledger, clock: Clock) -> None:
    rules = policy(budget(window=RenewalWindow(30)))
    charge_only(ledger, "ana", rules, [request("a", laplace(TENTH))], sql=SQL)
    clock.move(days=31)
    charge_only(ledger, "ana", rules, [request("b", laplace(2 * TENTH))], sql=SQL)
    assert paid(ledger, ledger.budget("ana", rules)) == [2 * TENTH]
    assert paid(ledger, ledger.cap(rules)) == [TENTH, 2 * TENTH]


def test_a_reset_begins_with_nothing(ledger: Ledger) -> None:
    charge_only(ledger, "ana", policy(), [request("a")], sql=SQL)
    ledger.reset(ANA, policy(), "a new study")
    assert paid(ledger, ledger.budget("ana", policy())) == []
    charge_only(ledger, "ana", policy(), [request("b", laplace(2 * TENTH))], sql=SQL)
    assert paid(ledger, ledger.budget("ana", policy())) == [2 * TENTH]
    assert paid(ledger, ledger.cap(policy())) == [TENTH, 2 * TENTH]


def test_a_group_pays_for_what_is_new_to_it(ledger: Ledger) -> None:
    alone = charge_only(ledger, "ana", policy(), [request("a")], sql=SQL)
    ledger.store(alone.releases[0].release_id, b"rows")
    for name in ("ana", "ben"):
        ledger.set_group(name, "team")
    shared = charge_only(ledger, "ana", policy(), [request("b")], sql=SQL)
    ledger.store(shared.releases[0].release_id, b"rows")
    charge_only(ledger, "ben", policy(), [request("a"), request("b")], sql=SQL)  # of these, the group has b
    assert paid(ledger, ledger.group_budget("team", policy())) == [TENTH] * 2
    assert paid(ledger, ledger.budget("ben", policy())) == [2 * TENTH]
    assert paid(ledger, ledger.cap(policy())) == [TENTH] * 2


def test_a_longer_window_keeps_what_was_spent(ledger: Ledger, clock: Clock) -> None:
    """The window begins anew, the total does not: dates alone would not tell which charges it has."""
    charge_only(ledger, "ana", policy(budget(window=RenewalWindow(30))), [request("a")], sql=SQL)
    clock.move(days=3)
    charge_only(ledger, "ana", policy(budget(window=RenewalWindow(60))), [request("b")], sql=SQL)
    status = ledger.budget("ana", policy(budget(window=RenewalWindow(60))))
    assert status.window_start == clock.now
    assert paid(ledger, status) == [TENTH] * 2


def test_caps_that_become_one_have_the_charges_of_both(ledger: Ledger) -> None:
    cap = budget(20, Accountant.PURE)
    north, south = (policy(cap=cap, name=name, cap_name=name) for name in ("north", "south"))
    for part, rules in enumerate((north, south, north), start=1):
        charge_only(ledger, "ana", rules, [request(part, laplace(TENTH * part))], sql=SQL)
    together = policy(cap=cap, name="south", cap_name="north")
    assert paid(ledger, ledger.cap(together)) == [TENTH * part for part in (1, 3, 2)]
    charge_only(ledger, "ana", together, [request(4, laplace(TENTH * 4))], sql=SQL)
    assert paid(ledger, ledger.cap(together)) == [TENTH * part for part in (1, 2, 3, 4)]
    assert ledger.cap(north) == ledger.cap(together)


def test_the_number_of_a_cap_that_is_gone_is_given_to_another_budget(ledger: Ledger) -> None:
    cap = budget(20, Accountant.PURE)
    north, south = (policy(cap=cap, name=name, cap_name=name) for name in ("north", "south"))
    for rules in (north, south):
        charge_only(ledger, "ana", rules, [request(rules.dataset.name)], sql=SQL)
    gone = ledger.cap(south).numbers
    charge_only(ledger, "ana", policy(cap=cap, name="south", cap_name="north"), [request("c")], sql=SQL)
    charge_only(ledger, "ben", north, [request("d", laplace(2 * TENTH))], sql=SQL)
    assert ledger.budget("ben", north).numbers == gone
    assert paid(ledger, ledger.budget("ben", north)) == [2 * TENTH]


def test_caps_that_become_one_before_a_charge(ledger: Ledger) -> None:
    cap = budget(20, Accountant.PURE)
    one, other = (policy(cap=cap, cap_name=name) for name in ("one", "other"))
    charge_only(ledger, "ana", one, [request("a")], sql=SQL)
    charge_only(ledger, "ana", other, [request("b")], sql=SQL)
    assert paid(ledger, ledger.cap(other)) == [TENTH] * 2
