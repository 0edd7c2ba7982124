"""Prices, shares and events: exact sums, closed forms, JSON without loss."""

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import InvalidParameter
from dpsql.privacy.conversion import rho_to_epsilon
from dpsql.privacy.cost import Accountant, Event, Loss, Mechanism, Price, Sensitivity, Share, loss, split

TENTH = Fraction(1, 10)
BILLIONTH = Fraction(1, 10**9)
SENSITIVITY = Sensitivity(l0=4, linf=3, l1=12, l2_squared=36)
POSITIVE = st.fractions(Fraction(1, 10**6), 10**6)
PRICES = st.builds(
    Price,
    st.sampled_from(Accountant),
    st.fractions(Fraction(1, 10**9), 100),
    st.one_of(st.just(Fraction(0)), st.fractions(Fraction(1, 10**20), Fraction(1, 2))),
)
EVENTS = st.one_of(
    st.builds(Event, st.just(Mechanism.LAPLACE), st.just(SENSITIVITY), POSITIVE),
    st.builds(
        Event, st.just(Mechanism.GAUSSIAN), st.just(SENSITIVITY), POSITIVE, st.just(Fraction(0)), st.just(BILLIONTH)
    ),
    st.builds(Event, st.just(Mechanism.SELECTION), st.just(SENSITIVITY), POSITIVE, st.just(BILLIONTH)),
    st.builds(Event, st.just(Mechanism.THRESHOLD), st.just(SENSITIVITY), st.just(Fraction(0)), st.just(BILLIONTH)),
)


def test_a_price_in_zcdp_is_half_its_square() -> None:
    assert Price(Accountant.ZCDP, TENTH, BILLIONTH).rho == Fraction(1, 200)
    assert Price(Accountant.BASIC, TENTH, BILLIONTH).rho == 0


@pytest.mark.parametrize("wrong", [Fraction(-1), Fraction(10) ** 308, Fraction(1, 10**400)])
def test_a_price_out_of_range_is_refused(wrong: Fraction) -> None:
    with pytest.raises(InvalidParameter):
        Price(Accountant.ZCDP, wrong, BILLIONTH)
    with pytest.raises(InvalidParameter):
        Price(Accountant.ZCDP, TENTH, wrong)


@settings(deadline=None)
@given(PRICES, st.lists(POSITIVE, min_size=1, max_size=6), st.data())
def test_shares_never_exceed_the_price(price: Price, weights: list[Fraction], data: st.DataObject) -> None:
    zero_or_more = st.one_of(st.just(Fraction(0)), POSITIVE)
    parts = data.draw(st.one_of(st.none(), st.lists(zero_or_more, min_size=len(weights), max_size=len(weights))))
    shares = split(price, weights, parts)
    assert len(shares) == len(weights)
    assert sum(share.rho for share in shares) == price.rho
    if not price.accountant.shares_rho:
        assert sum(share.epsilon for share in shares) == price.epsilon
    no_delta = not price.accountant.selects or (parts is not None and not any(parts))
    assert sum(share.delta for share in shares) == (0 if no_delta else price.delta)
    for share, other in zip(shares[1:], shares, strict=False):
        assert (share.epsilon + share.rho) * weights[shares.index(other)] == (other.epsilon + other.rho) * weights[
            shares.index(share)
        ]


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ([], None),
        ([Fraction(0)], None),
        ([Fraction(-1), Fraction(2)], None),
        ([Fraction(1)], []),
        ([Fraction(1)], [Fraction(-1)]),
    ],
)
def test_weights_that_share_nothing_are_refused(weights: list[Fraction], parts: list[Fraction] | None) -> None:
    with pytest.raises(InvalidParameter):
        split(Price(Accountant.ZCDP, TENTH, BILLIONTH), weights, parts)


@pytest.mark.parametrize(
    "fields",
    [
        (Accountant.ZCDP, TENTH, Fraction(0), Fraction(0)),
        (Accountant.ZCDP, TENTH, TENTH, Fraction(0)),
        (Accountant.PURE, Fraction(0), TENTH, Fraction(0)),
        (Accountant.BASIC, TENTH, Fraction(0), Fraction(1)),
        (Accountant.BASIC, TENTH, Fraction(0), Fraction(-1)),
        (Accountant.PURE, -TENTH, Fraction(0), Fraction(0)),
    ],
)
def test_a_share_in_the_wrong_currency_is_refused(fields: tuple[Accountant, Fraction, Fraction, Fraction]) -> None:
    with pytest.raises(InvalidParameter):
        Share(*fields)


@given(EVENTS)
def test_an_event_survives_json(event: Event) -> None:
    assert Event.from_json(json.loads(json.dumps(event.to_json()))) == event


def test_the_shape_of_an_event_is_fixed() -> None:
    event = Event(Mechanism.GAUSSIAN, SENSITIVITY, Fraction(100, 3), Fraction(0), BILLIONTH)
    assert event.to_json() == {
        "mechanism": "gaussian",
        "l0": 4,
        "linf": 3,
        "l1": 12,
        "l2_squared": 36,
        "scale": "100/3",
        "delta": "0",
        "conversion_delta": "1/1000000000",
    }


@pytest.mark.parametrize(
    ("mechanism", "scale", "delta", "conversion"),
    [
        (Mechanism.LAPLACE, 0, 0, 0),
        (Mechanism.LAPLACE, -1, 0, 0),
        (Mechanism.LAPLACE, 1, BILLIONTH, 0),
        (Mechanism.LAPLACE, 1, 0, BILLIONTH),
        (Mechanism.GAUSSIAN, 0, 0, 0),
        (Mechanism.GAUSSIAN, 1, 0, 1),
        (Mechanism.GAUSSIAN, 1, 0, -1),
        (Mechanism.SELECTION, 1, 0, 0),
        (Mechanism.SELECTION, 1, 1, 0),
        (Mechanism.SELECTION, 0, BILLIONTH, 0),
        (Mechanism.THRESHOLD, 1, BILLIONTH, 0),
        (Mechanism.THRESHOLD, 0, 0, 0),
    ],
)
def test_an_impossible_event_is_refused(
    mechanism: Mechanism, scale: Fraction, delta: Fraction, conversion: Fraction
) -> None:
    with pytest.raises(InvalidParameter):
        Event(mechanism, SENSITIVITY, Fraction(scale), Fraction(delta), Fraction(conversion))


def test_losses_are_the_closed_forms() -> None:
    five = Fraction(5)
    assert loss(Event(Mechanism.LAPLACE, SENSITIVITY, five)) == Loss(
        epsilon=Fraction(12, 5),
        rho=Fraction(36, 50),
        delta=Fraction(0),
        basic_epsilon=Fraction(12, 5),
        basic_delta=Fraction(0),
    )
    assert loss(Event(Mechanism.GAUSSIAN, SENSITIVITY, five)) == Loss(
        epsilon=None, rho=Fraction(36, 10), delta=Fraction(0), basic_epsilon=None, basic_delta=Fraction(0)
    )
    assert loss(Event(Mechanism.SELECTION, SENSITIVITY, TENTH, BILLIONTH)) == Loss(
        epsilon=4 * TENTH, rho=4 * TENTH**2 / 2, delta=BILLIONTH, basic_epsilon=4 * TENTH, basic_delta=BILLIONTH
    )
    assert loss(Event(Mechanism.THRESHOLD, SENSITIVITY, Fraction(0), BILLIONTH)) == Loss(
        epsilon=Fraction(0), rho=Fraction(0), delta=BILLIONTH, basic_epsilon=Fraction(0), basic_delta=BILLIONTH
    )


def test_a_gaussian_in_basic_converts_at_its_own_delta() -> None:
    event = Event(Mechanism.GAUSSIAN, SENSITIVITY, Fraction(5), Fraction(0), BILLIONTH)
    cost = loss(event)
    assert (cost.basic_epsilon, cost.basic_delta) == (rho_to_epsilon(Fraction(36, 10), BILLIONTH), BILLIONTH)
    assert cost.epsilon is None
    assert cost.delta == 0
