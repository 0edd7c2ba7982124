"""Clocks that jump: a window renews once, records stay in order, and nothing that was spent is given back.

A clock far ahead of the last record is not trusted until the data owner confirms it.
"""

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import BudgetExhausted, InvalidParameter, LedgerUnavailable
from dpsql.ledger import BudgetScope, Charge, ClockStatus, Holder, Reading, SqliteLedger
from dpsql.ledger.ledger import Ledger
from dpsql.ledger.transaction import CLOCK_LIMIT
from dpsql.policy import Policy, RenewalWindow
from tests.ledger.world import SQL, Clock, Place, budget, charge_only, new_ledger, opened, peopled, policy, request

CHARGES = 3
"""So many fit a window."""

DAYS = 30
BERLIN = ZoneInfo("Europe/Berlin")
WINDOWS = {"30 days": RenewalWindow(DAYS), "calendar month": RenewalWindow(None)}
# Hours by which a clock jumps: within a window, by one or two, and by years; back as well as on.
JUMPS = st.one_of(st.integers(-48, 48), st.integers(-2000, 2000), st.integers(-30_000, 30_000))
STEPS = st.lists(
    st.tuples(st.integers(0, 1), JUMPS, st.sampled_from(["ana", "ben", "ana", "ben", "the owner confirms"])),
    min_size=5,
    max_size=40,
)


def rules(window: str) -> Policy:
    return policy(budget(Fraction(CHARGES, 10), window=WINDOWS[window]), budget(1000), timezone="Europe/Berlin")


class Model:
    """What a window must grant: so many charges, counted anew only where the ledger's time has come to a later one.

    Attributes:
        time: Of the last record: it never goes back, and goes on by no more than the limit but where it is confirmed.
    """

    def __init__(self, window: str, time: datetime) -> None:
        self.time = time
        self._number = self._days if window == "30 days" else _month
        self._anchors: dict[str, datetime] = {}
        self._spent: dict[str, tuple[int, int]] = {}

    def spent(self, user: str, clock: datetime) -> int:
        """Return how many charges the window has seen into which the ledger's time falls."""
        number, charges = self._spent.get(user, (0, 0))
        return charges if self._at(user, clock) == number else 0

    def charge(self, user: str, clock: datetime) -> bool:
        """Return whether a charge fits, and count it."""
        self._anchors.setdefault(user, self._now(clock))
        charges = self.spent(user, clock)
        if charges == CHARGES:
            return False
        self._spent[user] = self._at(user, clock), charges + 1
        self.time = self._now(clock)
        return True

    def confirm(self, clock: datetime) -> bool:
        """Return whether there is something to confirm, and do it."""
        if not self.is_held(clock):
            return False
        self.time = clock
        return True

    def is_held(self, clock: datetime) -> bool:
        return clock - self.time > CLOCK_LIMIT

    def _now(self, clock: datetime) -> datetime:
        return self.time if self.is_held(clock) else max(clock, self.time)

    def _at(self, user: str, clock: datetime) -> int:
        time = self._now(clock)
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
        gateways = [new_ledger(path, clocks[0], clock_limit=CLOCK_LIMIT), SqliteLedger(path, clock=clocks[1])]
        for gateway in gateways:
            stack.callback(gateway.close)
        model = Model(window, clocks[0].now)
        for number, (which, hours, user) in enumerate(steps):
            clocks[which].move(hours=hours)
            now = clocks[which].now
            assert gateways[which].clock_status().held == model.is_held(now)
            if user == "the owner confirms":
                assert is_confirmed(gateways[which]) == model.confirm(now)
                continue
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


def is_confirmed(ledger: Ledger) -> bool:
    try:
        ledger.confirm_clock("it is right")
    except InvalidParameter:
        return False
    return True


def is_granted(ledger: Ledger, window: str, user: str, key: object) -> bool:
    try:
        charge_only(ledger, user, rules(window), [request(key)], sql=SQL)
    except BudgetExhausted:
        return False
    return True


@pytest.fixture
def careful(place: Place, clock: Clock) -> Iterator[Ledger]:
    """A ledger of either kind that believes a clock for as long as any does."""
    made = peopled(opened(place, clock, clock_limit=CLOCK_LIMIT))
    yield made
    made.close()


@pytest.mark.parametrize("window", WINDOWS)
def test_a_clock_that_was_years_ahead_gives_nothing_then_nor_when_it_is_right_again(
    careful: Ledger, clock: Clock, window: str, caplog: pytest.LogCaptureFixture
) -> None:
    right = clock.now
    assert is_granted(careful, window, "ana", 0)
    assert not careful.clock_held
    clock.now = datetime(2150, 6, 1, tzinfo=UTC)
    assert [is_granted(careful, window, "ana", key) for key in (1, 2, 3)] == [True, True, False]
    assert careful.clock_held
    assert careful.clock_status() == ClockStatus(right, clock.now, True)
    assert careful.budget("ana", rules(window)).remaining.epsilon == 0
    (warning,) = [record for record in caplog.records if record.name == "dpsql.ledger"]
    assert warning.levelno == logging.WARNING
    assert "dpsql ledger clock --reason" in warning.getMessage()
    for days in (0, 10):
        clock.now = right + timedelta(days=days)
        assert not is_granted(careful, window, "ana", "back")
    assert not careful.clock_held
    clock.now = right + timedelta(days=31)
    assert is_granted(careful, window, "ana", "on")
    assert not careful.clock_held
    assert {record["at"][:4] for record in careful.export()} == {"2026"}
    assert careful.verify().ok


@pytest.mark.parametrize("window", WINDOWS)
def test_a_clock_that_is_confirmed_renews(careful: Ledger, place: Place, clock: Clock, window: str) -> None:
    assert [is_granted(careful, window, "ana", key) for key in range(4)] == [True] * CHARGES + [False]
    clock.move(days=31, microseconds=1)
    assert not is_granted(careful, window, "ana", "held")
    owners = opened(place, clock, clock_limit=CLOCK_LIMIT)
    assert owners.confirm_clock("a long holiday") == ClockStatus(clock.now, clock.now, False)
    owners.close()
    assert is_granted(careful, window, "ana", "renewed")
    assert not careful.clock_held
    (record,) = careful.owner_history()
    assert (record.kind, record.holder, record.reason) == ("clock.confirmed", Holder(BudgetScope.ALL), "a long holiday")
    assert record.at == clock.now
    assert careful.verify().ok


def test_a_clock_within_the_limit_or_behind_is_not_to_be_confirmed(careful: Ledger, clock: Clock) -> None:
    before = list(careful.export())
    first = clock.now
    for days in (0, 31, -400):
        clock.now = first + timedelta(days=days)
        assert not careful.clock_status().held
        with pytest.raises(InvalidParameter, match="nothing to confirm"):
            careful.confirm_clock("to be sure")
    clock.now = first + timedelta(days=400)
    with pytest.raises(InvalidParameter, match="a reason is required"):
        careful.confirm_clock(" ")
    assert list(careful.export()) == before


def test_a_new_ledger_begins_at_any_time(place: Place, clock: Clock) -> None:
    clock.now = datetime(2150, 6, 1, tzinfo=UTC)
    made = opened(place, clock, clock_limit=CLOCK_LIMIT)
    assert made.clock_status() == ClockStatus(clock.now, clock.now, False)
    peopled(made)
    assert made.account("ana") is not None
    assert [datetime.fromisoformat(record["at"]) for record in made.export()] == [clock.now] * 2
    made.close()


def begin(ledger: Ledger, key: object) -> Charge:
    """Charge what is to be read within 100 seconds; not to wait is part of the test."""

    def check() -> None:
        raise AssertionError("it waits")

    return ledger.charge("ana", rules("30 days"), [request(key)], sql=SQL, reading=Reading(100, check))


def test_a_read_that_is_open_when_the_clock_is_confirmed_has_not_failed(careful: Ledger, clock: Clock) -> None:
    open_read = begin(careful, "open")
    clock.move(days=400)
    careful.confirm_clock("a long holiday")
    finishing = begin(careful, "meanwhile")
    for each in (open_read, finishing):
        careful.store(each.releases[0].release_id, b"cells", ends=each.id)
    begin(careful, "after")
    clock.move(minutes=10)
    begin(careful, "lost meanwhile")
    kinds = [record["kind"] for record in careful.export()]
    assert kinds.count("read.lost") == 1, "that after the confirmation, which nobody ended"
    assert careful.verify().ok


@pytest.mark.parametrize("year", [2201, 9999])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_clock_at_the_end_of_time_is_refused_and_leaves_no_trace(
    ledger: Ledger, clock: Clock, window: str, year: int
) -> None:
    assert is_granted(ledger, window, "ana", "before")
    before = list(ledger.export())
    right, clock.now = clock.now, datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    acts: list[Callable[[], object]] = [
        lambda: charge_only(ledger, "ana", rules(window), [request("then")], sql=SQL),
        lambda: ledger.budget("ana", rules(window)),
        lambda: ledger.add_account("eve", "analyst"),
    ]
    for act in acts:
        with pytest.raises(LedgerUnavailable, match=f"the clock says year {year}") as refusal:
            act()
        assert "Set the clock" in str(refusal.value.hint)
    assert list(ledger.export()) == before
    clock.now = right
    assert is_granted(ledger, window, "ana", "after")
    assert ledger.budget("ana", rules(window)).window_end is not None
