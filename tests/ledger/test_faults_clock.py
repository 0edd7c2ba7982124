"""Clocks that jump: a window renews once, records stay in order, and nothing that was spent is given back."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import BudgetExhausted, LedgerUnavailable
from dpsql.ledger import SqliteLedger
from dpsql.ledger.stored import StoredLedger
from dpsql.policy import Policy, Window
from tests.ledger.world import SQL, Clock, budget, new_ledger, policy, request

CHARGES = 3
"""So many fit a window."""

DAYS = 30
BERLIN = ZoneInfo("Europe/Berlin")
WINDOWS = {"30 days": Window(DAYS), "calendar month": Window(None)}
# Hours by which a clock jumps: within a window, by one or two, and by years; back as well as on.
JUMPS = st.one_of(st.integers(-48, 48), st.integers(-2000, 2000), st.integers(-30_000, 30_000))
STEPS = st.lists(st.tuples(st.integers(0, 1), JUMPS, st.sampled_from(["ana", "ben"])), min_size=5, max_size=40)


def rules(window: str) -> Policy:
    return policy(budget(Fraction(CHARGES, 10), window=WINDOWS[window]), budget(1000), timezone="Europe/Berlin")


class Model:
    """What a window must grant: so many charges, counted anew only where the ledger's time has come to a later one.

    Attributes:
        time: Of the last record: it never goes back.
    """

    def __init__(self, window: str, time: datetime) -> None:
        self.time = time
        self._number = self._days if window == "30 days" else _month
        self._anchors: dict[str, datetime] = {}
        self._spent: dict[str, tuple[int, int]] = {}

    def spent(self, user: str, clock: datetime) -> int:
        """Return how many charges the window has seen into which the clock falls, were it trusted to go on only."""
        number, charges = self._spent.get(user, (0, 0))
        return charges if self._at(user, clock) == number else 0

    def charge(self, user: str, clock: datetime) -> bool:
        """Return whether a charge fits, and count it."""
        self._anchors.setdefault(user, max(clock, self.time))
        charges = self.spent(user, clock)
        if charges == CHARGES:
            return False
        self._spent[user] = self._at(user, clock), charges + 1
        self.time = max(clock, self.time)
        return True

    def _at(self, user: str, clock: datetime) -> int:
        time = max(clock, self.time)
        return self._number(time, self._anchors.get(user, time))

    @staticmethod
    def _days(time: datetime, anchor: datetime) -> int:
        return (time - anchor) // timedelta(days=DAYS)


def _month(time: datetime, _anchor: datetime) -> int:
    local = time.astimezone(BERLIN)
    return local.year * 12 + local.month


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=30, deadline=None)
@given(steps=STEPS)
def test_no_walk_of_two_gateways_clocks_renews_a_window_twice(window: str, steps: list[tuple[int, int, str]]) -> None:
    """Two gateways share the ledger; each has a clock of its own, and both clocks jump."""
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ledger.sqlite"
        clocks = Clock(), Clock()
        gateways = [new_ledger(path, clocks[0]), SqliteLedger(path, clock=clocks[1])]
        for gateway in gateways:
            stack.callback(gateway.close)
        model = Model(window, clocks[0].now)
        for number, (which, hours, user) in enumerate(steps):
            clocks[which].move(hours=hours)
            now = clocks[which].now
            assert gateways[which].budget(user, rules(window)).charges == model.spent(user, now)
            granted = is_granted(gateways[which], window, user, number)
            assert granted == model.charge(user, now)
            assert gateways[which].budget(user, rules(window)).charges == model.spent(user, now)
        dates = [record["at"] for record in gateways[0].export()]
        assert dates == sorted(dates)
        assert datetime.fromisoformat(dates[-1]) == model.time
        assert gateways[1].verify().ok
        charges = gateways[1].history()
        assert gateways[1].cap(rules(window)).spent.pure_epsilon == Fraction(len(charges), 10)


def is_granted(ledger: StoredLedger, window: str, user: str, key: object) -> bool:
    try:
        ledger.charge(user, rules(window), [request(key)], sql=SQL)
    except BudgetExhausted:
        return False
    return True


@pytest.mark.parametrize("window", WINDOWS)
def test_a_clock_that_was_years_ahead_gives_nothing_when_it_is_right_again(
    ledger: StoredLedger, clock: Clock, window: str
) -> None:
    right = clock.now
    clock.now = datetime(2150, 6, 1, tzinfo=UTC)
    assert [is_granted(ledger, window, "ana", key) for key in range(4)] == [True] * CHARGES + [False]
    for _ in range(3):
        clock.now = right
        assert not is_granted(ledger, window, "ana", "back")
        assert ledger.budget("ana", rules(window)).remaining.epsilon == 0
        right += timedelta(days=40)
    clock.now = datetime(2150, 7, 2, tzinfo=UTC)
    assert is_granted(ledger, window, "ana", "on")
    assert ledger.verify().ok


@pytest.mark.parametrize("year", [2201, 9999])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_clock_at_the_end_of_time_is_refused_and_leaves_no_trace(
    ledger: StoredLedger, clock: Clock, window: str, year: int
) -> None:
    assert is_granted(ledger, window, "ana", "before")
    before = list(ledger.export())
    right, clock.now = clock.now, datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    acts: list[Callable[[], object]] = [
        lambda: ledger.charge("ana", rules(window), [request("then")], sql=SQL),
        lambda: ledger.budget("ana", rules(window)),
        lambda: ledger.add_account("eve", "analyst"),
    ]
    for act in acts:
        with pytest.raises(LedgerUnavailable, match=f"the clock says year {year}") as refusal:
            act()
        assert "set the clock" in str(refusal.value.hint)
    assert list(ledger.export()) == before
    clock.now = right
    assert is_granted(ledger, window, "ana", "after")
    assert ledger.budget("ana", rules(window)).window_end is not None
