"""A release that is made of another answers again only together with the very one that it was made of.

The outer release tells of the inner one it read. Were it handed out beside an inner one made anew, a user would have
learned of two inner releases and paid for one.
"""

from collections.abc import Sequence
from fractions import Fraction

import pytest

from dpsql.errors import PolicyViolation
from dpsql.ledger import Charge, GrantedRelease, ReleaseRequest
from dpsql.ledger.ledger import Ledger
from tests.ledger.world import SQL, Place, charge_only, laplace, opened, peopled, policy, request

POLICY = policy()
INNER = request("inner")
OUTER = ReleaseRequest("outer", (laplace(Fraction(1, 10)),), ("inner",))
TOP = ReleaseRequest("top", (laplace(Fraction(1, 10)),), ("inner", "outer"))


def charge(ledger: Ledger, user: str, requests: Sequence[ReleaseRequest], *, reuse: bool = True) -> Charge:
    return charge_only(ledger, user, POLICY, requests, sql=SQL, reuse=reuse)


def make(ledger: Ledger, releases: Sequence[GrantedRelease], name: str) -> None:
    """Store what is not there yet."""
    for granted in releases:
        if granted.payload is None:
            ledger.store(granted.release_id, f"{granted.key} {name}".encode())


def payloads(made: Charge) -> list[bytes | None]:
    return [granted.payload for granted in made.releases]


def test_both_are_given_again_together(ledger: Ledger) -> None:
    first = charge(ledger, "ana", (INNER, OUTER, TOP))
    make(ledger, first.releases, "1")
    again = charge(ledger, "ana", (INNER, OUTER, TOP))
    assert payloads(again) == [b"inner 1", b"outer 1", b"top 1"]
    assert again.free
    other = charge(ledger, "ben", (INNER, OUTER, TOP))
    assert payloads(other) == payloads(again)
    assert other.price.pure_epsilon == Fraction(3, 10)
    assert [granted.key for granted in other.releases] == ["inner", "outer", "top"]
    assert ledger.verify().ok


def test_an_inner_one_that_is_there_already_is_used(ledger: Ledger) -> None:
    make(ledger, charge(ledger, "ben", (INNER,)).releases, "1")
    first = charge(ledger, "ana", (INNER, OUTER))
    assert payloads(first) == [b"inner 1", None]
    make(ledger, first.releases, "1")
    assert payloads(charge(ledger, "ben", (INNER, OUTER))) == [b"inner 1", b"outer 1"]


def test_an_outer_one_does_not_outlive_its_inner_one(place: Place) -> None:
    """The oldest are dropped first, so the inner one goes before what was made of it."""
    small = peopled(opened(place, max_stored_bytes=15))
    make(small, charge(small, "ana", (INNER, OUTER)).releases, "1")
    make(small, charge(small, "ana", (request("x"),)).releases, "1")
    found = charge(small, "ben", (INNER, OUTER))
    assert payloads(found) == [None, None]
    assert found.price.pure_epsilon == Fraction(2, 10)
    assert small.verify().ok
    small.close()


def test_a_fresh_pair_does_not_mix_with_the_stored_one(ledger: Ledger) -> None:
    make(ledger, charge(ledger, "ben", (INNER,)).releases, "1")
    make(ledger, charge(ledger, "ana", (INNER, OUTER), reuse=False).releases, "2")
    found = charge(ledger, "ben", (INNER, OUTER))
    assert payloads(found) == [b"inner 1", None]
    make(ledger, found.releases, "1")
    assert payloads(charge(ledger, "ana", (INNER, OUTER))) == [b"inner 1", b"outer 1"]


def test_two_gateways_that_make_the_same_do_not_mix(ledger: Ledger) -> None:
    one, other = charge(ledger, "ana", (INNER, OUTER)), charge(ledger, "ben", (INNER, OUTER))
    make(ledger, one.releases[:1], "1")
    make(ledger, other.releases, "2")
    assert payloads(charge(ledger, "ben", (INNER, OUTER))) == [b"inner 1", None]
    make(ledger, one.releases[1:], "1")
    assert payloads(charge(ledger, "ben", (INNER, OUTER))) == [b"inner 1", b"outer 1"]


def test_a_failure_of_the_outer_one_is_known_by_its_key(ledger: Ledger) -> None:
    ledger.record_failure("ana", ["outer"])
    with pytest.raises(PolicyViolation):
        charge(ledger, "ben", (INNER, OUTER))
    assert charge(ledger, "ben", (INNER,)).releases
