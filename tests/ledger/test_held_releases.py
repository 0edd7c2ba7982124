"""Which releases a user has already is told of the user's own, as a charge would find them, and writes nothing."""

from fractions import Fraction

from dpsql.ledger import ReleaseRequest
from dpsql.ledger.ledger import Ledger
from tests.ledger.world import SQL, Place, charge_only, laplace, opened, peopled, policy, request, requests

POLICY = policy()
INNER = request("inner")
OUTER = ReleaseRequest("outer", (laplace(Fraction(1, 10)),), ("inner",))


def ask(ledger: Ledger, user: str, *asked: ReleaseRequest) -> None:
    """Charge, and store what is not there yet."""
    for granted in charge_only(ledger, user, POLICY, asked, sql=SQL).releases:
        if granted.payload is None:
            ledger.store(granted.release_id, b"cells")


def test_what_a_user_has_is_told_to_that_user_alone(ledger: Ledger) -> None:
    wanted = requests("a", "b", "a")
    assert ledger.held("ana", POLICY, wanted) == (False, False, False)
    ask(ledger, "ana", request("a"))
    assert ledger.held("ana", POLICY, wanted) == (True, False, True)
    assert ledger.held("ben", POLICY, wanted) == (False, False, False)
    ask(ledger, "ben", request("a"))
    assert ledger.held("ben", POLICY, wanted) == (True, False, True)
    assert ledger.held("ana", POLICY, ()) == ()
    assert ledger.held("nobody", POLICY, wanted) == (False, False, False)


def test_it_writes_nothing(ledger: Ledger) -> None:
    ask(ledger, "ana", request("a"))
    head = ledger.verify()
    ledger.held("ana", POLICY, requests("a", "b"))
    assert ledger.verify() == head


def test_the_price_and_the_dataset_belong_to_it(ledger: Ledger) -> None:
    ask(ledger, "ana", request("a"))
    assert ledger.held("ana", POLICY, (request("a", laplace(Fraction(1, 5))),)) == (False,)
    assert ledger.held("ana", policy(name="other"), (request("a"),)) == (False,)


def test_what_is_not_stored_is_not_held(ledger: Ledger) -> None:
    charge_only(ledger, "ana", POLICY, (request("a"),), sql=SQL)
    assert ledger.held("ana", POLICY, (request("a"),)) == (False,)


def test_an_outer_release_is_held_together_with_its_inner_one(ledger: Ledger, places: list[Place]) -> None:
    ask(ledger, "ana", INNER)
    assert ledger.held("ana", POLICY, (INNER, OUTER)) == (True, False)
    ask(ledger, "ana", INNER, OUTER)
    assert ledger.held("ana", POLICY, (INNER, OUTER)) == (True, True)
    small = peopled(opened(places[1], max_stored_bytes=9))
    ask(small, "ana", INNER, OUTER)
    assert small.held("ana", POLICY, (INNER, OUTER)) == (False, False)
    small.close()
