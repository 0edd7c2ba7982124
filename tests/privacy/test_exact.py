"""Privacy numbers are exact, in reach, and read from text without surprise: whatever else is a typed refusal."""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpsql.errors import Error, InvalidParameter
from dpsql.privacy.accounting import (
    Limit,
    Spent,
    create_limit,
    epsilon_to_rho,
    group_privacy,
    rho_to_epsilon,
    standalone,
)
from dpsql.privacy.conversion import MAX_DIGITS, best_order, check_exact, check_whole, read_exact, read_signed
from dpsql.privacy.cost import (
    Accountant,
    Adjacency,
    Event,
    Mechanism,
    Price,
    Sensitivity,
    Share,
    cell_sensitivity,
    split,
)
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.sampling import discrete_gaussian, discrete_laplace
from dpsql.privacy.selection import TruncatedGeometric

UNIT = Sensitivity(l0=1, linf=1, l1=1, l2_squared=1)
ONE, BILLIONTH, ZERO = Fraction(1), Fraction(1, 10**9), Fraction(0)
ZCDP, PURE = Accountant.ZCDP, Accountant.PURE

POISON: dict[str, Any] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    "a float": 0.1,
    "1e308": 1e308,
    "1e308 exactly": Fraction(10) ** 308,
    "1e-400": Fraction(1, 10**400),
    "subnormal": 5e-324,
    "subnormal exactly": Fraction(5e-324),
    "Decimal NaN": Decimal("NaN"),
    "signalling NaN": Decimal("sNaN"),
    "Decimal Infinity": Decimal("Infinity"),
    "a Decimal": Decimal("0.1"),
    "numpy NaN": np.float64("nan"),
    "negative": Fraction(-1),
    "5000 digits": Fraction(10**5000),
    "5000 digits below": 1 + Fraction(1, 10**5000),
    "a truth": True,
    "a text": "0.1",
    "nothing": None,
}
Door = Callable[[Any], object]
DOORS: dict[str, Door] = {
    "Price, epsilon": lambda value: Price(ZCDP, value, BILLIONTH),
    "Price, delta": lambda value: Price(ZCDP, ONE, value),
    "Share, epsilon": lambda value: Share(PURE, value, ZERO, ZERO),
    "Share, rho": lambda value: Share(ZCDP, ZERO, value, ZERO),
    "Share, delta": lambda value: Share(ZCDP, ZERO, ONE, value),
    "split, weight": lambda value: split(Price(ZCDP, ONE, BILLIONTH), [value]),
    "split, weight of delta": lambda value: split(Price(ZCDP, ONE, BILLIONTH), [ONE], [value]),
    "Event, Laplace": lambda value: Event(Mechanism.LAPLACE, UNIT, value),
    "Event, Gaussian": lambda value: Event(Mechanism.GAUSSIAN, UNIT, value),
    "Event, conversion": lambda value: Event(Mechanism.GAUSSIAN, UNIT, ONE, ZERO, value),
    "Event, selection": lambda value: Event(Mechanism.SELECTION, UNIT, value, BILLIONTH),
    "Event, delta": lambda value: Event(Mechanism.SELECTION, UNIT, ONE, value),
    "Event, threshold": lambda value: Event(Mechanism.THRESHOLD, UNIT, ZERO, value),
    "Sensitivity, l0": lambda value: Sensitivity(value, 1, 1, 1),
    "Sensitivity, linf": lambda value: Sensitivity(1, value, 1, 1),
    "Sensitivity, l1": lambda value: Sensitivity(1, 1, value, 1),
    "Sensitivity, l2": lambda value: Sensitivity(1, 1, 1, value),
    "cell_sensitivity, l0": lambda value: cell_sensitivity(Adjacency.ADD_REMOVE, l0=value, lower=0, upper=1),
    "cell_sensitivity, lower": lambda value: cell_sensitivity(Adjacency.ADD_REMOVE, l0=1, lower=value, upper=2),
    "cell_sensitivity, upper": lambda value: cell_sensitivity(Adjacency.ADD_REMOVE, l0=1, lower=0, upper=value),
    "create_limit, epsilon": lambda value: create_limit(PURE, value, ZERO, ZERO),
    "create_limit, delta": lambda value: create_limit(ZCDP, ONE, value, ZERO),
    "create_limit, delta of basic": lambda value: create_limit(Accountant.BASIC, ONE, value, ZERO),
    "create_limit, share": lambda value: create_limit(ZCDP, ONE, BILLIONTH, value),
    "create_limit, order": lambda value: create_limit(Accountant.RDP, ONE, BILLIONTH, ZERO, value),
    "epsilon_to_rho, epsilon": lambda value: epsilon_to_rho(value, BILLIONTH),
    "epsilon_to_rho, delta": lambda value: epsilon_to_rho(ONE, value),
    "rho_to_epsilon, rho": lambda value: rho_to_epsilon(value, BILLIONTH),
    "rho_to_epsilon, delta": lambda value: rho_to_epsilon(ONE, value),
    "best_order": lambda value: best_order(value, BILLIONTH),
    "standalone": lambda value: standalone(Spent.zero(), value),
    "group_privacy": lambda value: group_privacy(create_limit(ZCDP, ONE, BILLIONTH, ZERO), value),
    "DiscreteLaplace": lambda value: DiscreteLaplace(UNIT, value),
    "DiscreteGaussian": lambda value: DiscreteGaussian(UNIT, value),
    "discrete_laplace": lambda value: discrete_laplace(value, 1),
    "discrete_gaussian": lambda value: discrete_gaussian(value, 1),
    "TruncatedGeometric, l0": lambda value: TruncatedGeometric(value, ONE, BILLIONTH),
    "TruncatedGeometric, epsilon": lambda value: TruncatedGeometric(1, value, BILLIONTH),
    "TruncatedGeometric, delta": lambda value: TruncatedGeometric(1, ONE, value),
}
MAY_BE_ZERO = {
    *("Price, delta", "Share, delta", "split, weight of delta", "Event, conversion", "create_limit, share"),
    *("create_limit, delta of basic", "create_limit, order", "rho_to_epsilon, rho"),
    *("Sensitivity, linf", "Sensitivity, l1", "Sensitivity, l2", "cell_sensitivity, lower", "cell_sensitivity, upper"),
}


def outcome(door: str, value: Any) -> str:
    """Return the kind of error, by which nothing could be charged; what is not dpsql's own is not caught."""
    try:
        DOORS[door](value)
    except Error as refusal:
        assert len(refusal.message) < 500
        return "refused"
    return "accepted"


@pytest.mark.parametrize("door", DOORS)
def test_no_door_of_the_privacy_core_takes_what_is_no_quantity_of_privacy(door: str) -> None:
    assert [name for name, value in POISON.items() if outcome(door, value) == "accepted"] == []


@pytest.mark.parametrize("door", DOORS)
def test_nothing_costs_nothing(door: str) -> None:
    """Zero is refused, but where it says that there is no δ, or that nothing moves."""
    whole = door.split(",")[0] in ("Sensitivity", "cell_sensitivity", "group_privacy") or door.endswith("l0")
    expected = "accepted" if door in MAY_BE_ZERO else "refused"
    assert outcome(door, 0 if whole else ZERO) == expected


def test_the_reach_of_exact_numbers() -> None:
    check_exact(0, ONE, Fraction(10) ** 100, Fraction(1, 10**100), -(10**100), Fraction(10**999 + 1, 10**999))
    check_whole(0, -7, 10**100)
    for value in (Fraction(10) ** 100 + 1, Fraction(1, 10**100 + 1), 1 + Fraction(1, 10**1000)):
        with pytest.raises(InvalidParameter):
            check_exact(value)
    with pytest.raises(InvalidParameter, match="Fraction is not a whole number"):
        check_whole(ONE)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [ZERO, ONE, Fraction(22, 7), Fraction(1, 10**90), Fraction(10**99 + 1, 3)])
def test_what_was_written_is_read(value: Fraction) -> None:
    assert read_exact(str(value)) == read_signed(str(value)) == value
    assert read_signed(str(-value)) == -value


UNREADABLE: list[Any] = [
    *(
        "",
        "nan",
        "NaN",
        "inf",
        "-Infinity",
        "1e999999999",
        "1e-400",
        "0.1",
        "1/0",
        "0/0",
        "1/-2",
        "-1",
        "+1",
        " 1",
        "1 ",
    ),
    *("1_000", "1/2/3", "/", "1/", "/2", "٣", "²", "0x1", "1" * 4301, "1" * (MAX_DIGITS + 1), f"1/{'9' * 5000}", "1\n"),
    *(f"1{'0' * 101}", f"1/1{'0' * 101}", None, math.nan, math.inf, 0.1, 1, True, [], {}, ["1"], {"1": 1}),
]
EVENT = Event(Mechanism.GAUSSIAN, UNIT, ONE, ZERO, BILLIONTH)
WRITTEN: dict[str, tuple[Callable[[Any], object], dict[str, Any]]] = {
    "an event": (Event.from_json, EVENT.to_json()),
    "totals": (Spent.from_json, Spent.zero().keeping(Fraction(16)).add([EVENT]).to_json()),
    "a limit": (Limit.from_json, create_limit(Accountant.RDP, ONE, BILLIONTH, ZERO).to_json()),
}


@pytest.mark.parametrize("value", UNREADABLE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("what", WRITTEN)
def test_foreign_fields_are_refused(what: str, value: Any) -> None:
    read, fields = WRITTEN[what]
    assert read(json.loads(json.dumps(fields)))
    for name in fields:
        # A total may say that there is no price in a currency; a whole number is written as one.
        if (value is None and fields[name] is None) or (value == 1 and isinstance(fields[name], int)):
            continue
        if what == "totals" and value is None and name in ("pure_epsilon", "basic_epsilon", "squares"):
            continue
        if what == "totals" and name == "renyi" and value == {}:
            continue
        with pytest.raises(InvalidParameter, match=f"not {what}|digits|range|exact"):
            read({**fields, name: value})
    for name in fields.keys() - {"capacity", "order"}:  # ledgers of layout 1 do without these
        with pytest.raises(InvalidParameter):
            read({key: kept for key, kept in fields.items() if key != name})
    with pytest.raises(InvalidParameter):
        read(value)


def test_totals_of_a_foreign_order_are_refused() -> None:
    fields = Spent.zero().to_json()
    for order in ("nan", "1e999999999", "1/0"):
        with pytest.raises(InvalidParameter):
            Spent.from_json({**fields, "renyi": {order: "0"}})
    with pytest.raises(InvalidParameter):
        Spent.from_json({**fields, "renyi": {"16": "-1"}})


def test_totals_between_two_units_are_refused() -> None:
    fields = Spent.zero().to_json()
    with pytest.raises(InvalidParameter):
        Spent.from_json({**fields, "rho": "1/3"})
