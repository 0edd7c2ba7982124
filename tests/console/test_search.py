"""What the owner searches for is found, rounds stand together, a wrong address is told so; how long a budget lasts."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.console.facts import Gatherer, PageFacts
from dpsql.console.pace import pace
from dpsql.console.search import ON_A_PAGE, AskedQuery, Search, read_search
from dpsql.console.spending_history import Day
from dpsql.errors import InvalidParameter
from dpsql.ledger import BudgetStatus
from dpsql.ledger.ledger import Ledger
from dpsql.policy import RenewalWindow
from dpsql.privacy.accounting import Accountant, Spent, create_limit
from tests.ledger.world import (
    SQL,
    Clock,
    budget,
    charge_only,
    gaussian,
    laplace,
    opened,
    peopled,
    policy,
    request,
    selection,
)

MILLIONTH = Fraction(1, 10**6)
ZCDP: dict[str, Any] = {"user": budget(5, Accountant.ZCDP, MILLIONTH), "cap": budget(20, Accountant.ZCDP, MILLIONTH)}
POLICY = policy(**ZCDP)
ROUNDS = "SELECT SUM(cost) FROM visits"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with closing(peopled(opened(tmp_path / "ledger.sqlite", clock))) as made:
        yield made


@pytest.fixture
def asked(ledger: Ledger, clock: Clock, look: Callable[[str], PageFacts]) -> Callable[[str], PageFacts]:
    """A target's three rounds by ana, what ben and ana asked after it on the next day, and another dataset."""
    for number, rho in enumerate((1, 4, 16)):
        charge_only(ledger, "ana", POLICY, [request(number, gaussian(Fraction(rho, 10_000)))], sql=ROUNDS)
    clock.move(days=1)
    charge_only(
        ledger, "ben", POLICY, [request("b", gaussian(Fraction(2, 10_000)))], sql="SELECT COUNT(*) FROM Patients"
    )
    mean = [request("c", gaussian(Fraction(1, 10_000)))]
    for _ in range(6):
        (release,) = charge_only(ledger, "ana", POLICY, mean, sql="SELECT AVG(age) FROM patients").releases
        if release.payload is None:
            ledger.store(release.release_id, b"cells")
    charge_only(ledger, "ana", policy(**ZCDP, name="trials"), [request("t")], sql="SELECT 7")
    return look


@pytest.fixture
def look(tmp_path: Path, clock: Clock, ledger: Ledger) -> Callable[[str], PageFacts]:
    """What the page shows of the ledger at an address."""
    gatherer = Gatherer(lambda: POLICY, POLICY, lambda: opened(tmp_path / "ledger.sqlite", clock), clock)
    return lambda address: gatherer.gather(read_search(address))


def texts(facts: PageFacts) -> list[tuple[str, str]]:
    return [(each.user, each.sql.split()[1]) for each in facts.found.questions]


def test_the_rounds_of_a_target_are_one_query(asked: Callable[[str], PageFacts]) -> None:
    (rounds,) = asked("find=SUM").found.questions
    assert (rounds.user, len(rounds.charges), rounds.spent.rho) == ("ana", 3, Fraction(21, 10_000))
    assert rounds.fresh == rounds.spent
    assert float(rounds.epsilon) == pytest.approx((2 * 0.0021) ** 0.5)
    assert rounds.part == rounds.spent.rho / rounds.limit.capacity
    assert [paid.number for paid in rounds.charges] == sorted((paid.number for paid in rounds.charges), reverse=True)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("", [("ana", "AVG(age)"), ("ben", "COUNT(*)"), ("ana", "SUM(cost)")]),
        ("user=ana", [("ana", "AVG(age)"), ("ana", "SUM(cost)")]),
        ("user=nobody", []),
        ("day=2026-01-15", [("ana", "SUM(cost)")]),
        ("user=ben&day=2026-01-15", []),
        ("find=PATIENTS", [("ana", "AVG(age)"), ("ben", "COUNT(*)")]),
        ("find=patients+avg", [("ana", "AVG(age)")]),
        ("user=&day=&find=&sort=&page=", [("ana", "AVG(age)"), ("ben", "COUNT(*)"), ("ana", "SUM(cost)")]),
        ("sort=dearest", [("ana", "SUM(cost)"), ("ben", "COUNT(*)"), ("ana", "AVG(age)")]),
        ("sort=often", [("ana", "AVG(age)"), ("ana", "SUM(cost)"), ("ben", "COUNT(*)")]),
        ("page=2", []),
    ],
)
def test_what_is_asked_for_is_found_and_sorted(
    asked: Callable[[str], PageFacts], address: str, found: list[tuple[str, str]]
) -> None:
    assert texts(asked(address)) == found


def test_who_spends_what_on_what(asked: Callable[[str], PageFacts]) -> None:
    ana, ben = asked("").spenders
    assert (ana.charges, ben.charges) == (5, 1) and ana.cap == 36 * ben.cap  # the other dataset is under the same cap
    assert (ana.user, ana.dearest, ben.user, ben.dearest) == ("ana", ROUNDS, "ben", "SELECT COUNT(*) FROM Patients")


def test_there_are_pages(ledger: Ledger, look: Callable[[str], PageFacts]) -> None:
    for number in range(ON_A_PAGE + 2):
        charge_only(ledger, "ana", POLICY, [request(number, laplace(Fraction(1, 100)))], sql=f"{SQL} -- {number}")
    first, second = look("").found, look("page=2").found
    assert (first.count, first.pages, len(first.questions)) == (ON_A_PAGE + 2, 2, ON_A_PAGE)
    assert [each.sql for each in second.questions] == [f"{SQL} -- 1", f"{SQL} -- 0"]


@pytest.mark.parametrize(
    "address",
    [
        *("day=x", "day=2026-02-30", "day=20260101", "sort=cheapest", "page=0", "page=-1", "page=1e3", "page=9999999"),
        *("user=a&user=b", "before=3", "find=%ff", "&".join(["find=a"] * 20), "nonsense=%3Cscript%3E"),
    ],
)
def test_an_address_that_is_no_search_is_told_so(address: str) -> None:
    with pytest.raises(InvalidParameter, match="the page's address cannot be read") as refused:
        read_search(address)
    assert refused.value.hint is not None and "script" not in refused.value.message
    assert read_search(refused.value.hint.partition("?")[2]).user == "ana"


NAMES = st.none() | st.text(min_size=1).map(str.strip).filter(bool)


@given(NAMES, NAMES, st.none() | st.dates(), st.sampled_from(["newest", "dearest", "often"]), st.integers(1, 999_999))
def test_a_search_is_read_as_it_was_written(
    user: str | None, find: str | None, day: date | None, sort: str, page: int
) -> None:
    search = Search(user, day, find, sort, page)
    assert read_search(search.address().partition("?")[2].removesuffix("#queries")) == search


TODAY = date(2026, 1, 20)


def status(*events: object, accountant: Accountant = Accountant.ZCDP, end: datetime | None = None) -> BudgetStatus:
    pure = accountant is Accountant.PURE
    limit = create_limit(accountant, Fraction(5), Fraction(0 if pure else 1, 10**6), Fraction(0 if pure else 1, 2))
    spent = Spent.zero().add(events)  # type: ignore[arg-type]
    return BudgetStatus(limit, spent, None, end, 1, None if end is None else RenewalWindow(30), 0)


def test_a_budget_that_is_spent_evenly_is_gone_when_the_line_says() -> None:
    events = [gaussian(Fraction(1, 100))] * 10
    half = status(*events)
    days = {TODAY - timedelta(days=back): Day(1, Spent.zero().add(events[:1])) for back in range(10)}
    found = pace(half, days, TODAY)
    expected = float((half.limit.capacity - Fraction(1, 10)) / Fraction(1, 100))
    assert found.days == pytest.approx(expected) and found.span == 7
    assert found.gone == TODAY + timedelta(days=int(expected))
    assert pace(half, {TODAY: Day(1, Spent.zero().add(events))}, TODAY).span == 1


def test_a_budget_without_spending_lasts_and_a_spent_one_is_gone() -> None:
    assert (pace(status(), {}, TODAY).days, pace(status(), {}, TODAY).gone) == (inf, None)
    old = {TODAY - timedelta(days=7): Day(1, Spent.zero().add([gaussian(1)]))}
    assert pace(status(gaussian(Fraction(1, 10))), old, TODAY).days == inf
    assert pace(status(gaussian(10)), {TODAY: Day(1, Spent.zero().add([gaussian(10)]))}, TODAY).days == 0
    everything = Spent.zero().add([laplace(5)])
    spent = pace(status(laplace(5), accountant=Accountant.PURE), {TODAY: Day(1, everything)}, TODAY)
    assert (spent.days, spent.gone, spent.renews) == (0, TODAY, False)


def test_the_pure_clause_and_the_delta_of_keys_count() -> None:
    pure = [laplace(1)]
    assert pace(status(*pure), {TODAY: Day(1, Spent.zero().add(pure))}, TODAY).days == 4
    keys = [gaussian(Fraction(1, 10**6)), selection(Fraction(1, 10**6), Fraction(1, 4 * 10**6))]
    assert pace(status(*keys), {TODAY: Day(1, Spent.zero().add(keys))}, TODAY).days == 1


def test_a_budget_that_renews_before_lasts_until_then() -> None:
    events = [gaussian(Fraction(1, 100))]
    days = {TODAY: Day(1, Spent.zero().add(events))}
    soon, late = datetime(2026, 1, 21, tzinfo=UTC), datetime(2027, 1, 21, tzinfo=UTC)
    assert (pace(status(*events, end=soon), days, TODAY).renews, pace(status(*events, end=soon), days, TODAY).gone) == (
        *(True, None),
    )
    assert pace(status(*events, end=late), days, TODAY).gone is not None
    assert not pace(status(gaussian(10), end=soon), days, TODAY).renews


def test_a_price_without_a_meaning_here_is_no_part() -> None:
    limit = create_limit(Accountant.PURE, Fraction(5), Fraction(0), Fraction(0))
    assert AskedQuery("ana", SQL, (), 0, limit).part == 0
