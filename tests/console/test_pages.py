"""The page says what the ledger, the policy and the gateway say, and obeys none of it."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.console.facts import CHANGES, RELEASES, Facts, Gatherer, Health
from dpsql.console.figures import Bar, columns, gauge
from dpsql.console.health import EngineHealth, GatewayHealth, LedgerHealth
from dpsql.console.pages import login_page, overview, trouble_page
from dpsql.ledger import Holder, Scope, SqliteLedger, VerifyReport, open_ledger
from dpsql.policy import load_policy
from dpsql.system import decimal_text
from tests.console.world import EVIL, QUERIES, Outline, Place, healthy_engine, words
from tests.ledger.world import SQL, Clock, laplace, peopled, policy, request

NOW = datetime(2026, 1, 18, 13, tzinfo=UTC)
LEDGER = LedgerHealth("ledger.sqlite", 120_000, VerifyReport(40, "ab" * 32, ()), NOW, None)
GATEWAY = GatewayHealth("127.0.0.1:9187", True, 2, 12, {"42501": 3, "42P01": 1, "ZZZZZ": 1})
HEALTH = Health(LEDGER, healthy_engine(), GATEWAY)


@pytest.fixture(scope="module")
def facts(place: Place) -> Facts:
    gatherer = Gatherer(
        lambda: load_policy(place.policy), load_policy(place.policy), lambda: open_ledger(place.url, make=False)
    )
    return replace(gatherer.gather(None), at=NOW)


@pytest.fixture(scope="module")
def page(facts: Facts) -> str:
    return overview(facts, HEALTH).decode()


def test_budgets_are_those_of_the_ledger(place: Place, facts: Facts, page: str) -> None:
    told = words(page)
    with closing(SqliteLedger(place.ledger)) as ledger:
        for user in ("ana", "ben", EVIL):
            status = ledger.budget(user, facts.policy)
            left, limit = status.remaining, status.limit
            spent = decimal_text(limit.epsilon - left.epsilon, 4)
            line = f"ε {spent} of {decimal_text(limit.epsilon)} spent, {decimal_text(left.epsilon, 4)} left"
            assert f"user {user}" in told and line in told
        assert f"ε {decimal_text(20 - ledger.cap(facts.policy).remaining.epsilon, 4)} of 20 spent" in told
    assert "group team 1 member" in told
    assert "renews every 30 days" in told
    assert page.count("frozen</span>") == 1
    assert 'aria-label="user ana: ε' in page


def test_days_add_up_to_what_the_cap_has_spent(facts: Facts, page: str) -> None:
    assert [str(day) for day in sorted(facts.days)] == ["2026-01-15", "2026-01-16", "2026-01-17"]
    assert sum(paid.charges for paid in facts.days.values()) == facts.cap.charges
    assert sum((paid.spent.rho for paid in facts.days.values()), Fraction(0)) == facts.cap.spent.rho
    chart = page.partition('<section id="spending">')[2].partition("</section>")[0]
    assert chart.count('class="day"') == 30
    assert "2026-01-15: 4 charges, ρ" in chart and "2026-01-14: nothing" in chart


def test_releases_have_price_reuse_and_query(facts: Facts, page: str) -> None:
    told = words(page)
    assert facts.older is None
    assert [(paid.user, paid.made, paid.record.reused) for paid in reversed(facts.releases)] == [
        *(("ana", True, 2), ("ana", True, 2), ("ana", True, 2), ("ana", True, 0)),
        *(("ana", True, 0), ("ben", False, 1), ("ben", False, 1), ("ben", False, 1), ("ben", False, 0)),
        *(("ana", True, 0), ("ben", False, 0), *[(EVIL, False, 0)] * 4),
    ]
    assert all(query in told for query in QUERIES)
    assert "0.005" in told and "1e-09" in told


def test_policy_changes_refusals_and_health(page: str) -> None:
    told = words(page)
    assert "cost numeric 0 to 5000, step 0.01 private: costs delta euros" in told
    assert "sex text – public: F, M, X –" in told
    assert "icd10 public: its rows belong to nobody" in told
    assert "role analyst epsilon 5, delta 1e-06" in told
    assert 'account.frozen user "ben" – – left' in told and f"asked {EVIL}" in told
    assert "42501 PolicyViolation: The query asks for what the policy forbids" in told
    assert "ZZZZZ – 1" in told
    assert "whole : 40 records, checked 2026-01-18 13:00 UTC" in told
    assert f"dpsql ledger verify --head {'ab' * 32} --records 40" in told
    assert "117.2 KiB" in told and "prepared copy of visits: fresh" in told
    assert "lets clients in ; 2 logged in; 12 statements" in told


def test_what_is_wrong_is_said_above_all(facts: Facts) -> None:
    health = Health(
        LedgerHealth("l", None, VerifyReport(3, "0" * 64, ("record 3 was changed",)), NOW, None),
        EngineHealth("there is no file", (), (), NOW),
        GatewayHealth("here", None, 0, 0, {}),
    )
    told = words(overview(replace(facts, trouble="clinic.toml: line 3"), health).decode())
    head = told.partition("Budgets ε")[0]
    for part in ("clinic.toml: line 3", "NOT whole", "cannot be opened", "lets no clients in"):
        assert part in head
    assert "record 3 was changed" in told and "does not answer at here" in told and "there is no file" in told


def test_what_is_not_known_yet_is_said_so(facts: Facts, page: str) -> None:
    assert "look again" not in words(page)
    assert "still being added up" in words(overview(replace(facts, is_all=False), HEALTH).decode())
    told = words(overview(facts, Health(None, None, None)).decode())
    for part in ("is being checked", "is being looked at", "not asked", "The ledger does not hold refusals"):
        assert part in told
    unread = LedgerHealth("l", None, None, NOW, "cannot be read")
    closed = replace(GATEWAY, ready=False)
    told = words(overview(facts, Health(unread, healthy_engine(), closed)).decode())
    assert "cannot be read" in told and "lets no clients in ; 2 logged in" in told


def test_older_releases_are_on_other_pages(tmp_path: Path) -> None:
    path, small = tmp_path / "ledger.sqlite", policy()
    with closing(peopled(SqliteLedger(path, clock=Clock()))) as ledger:
        for number in range(RELEASES + 2):
            ledger.charge("ana", small, [request(number, laplace(Fraction(1, 100)))], sql=f"{SQL} -- {number}")
            ledger.freeze(Holder(Scope.USER, "ben"), f"reason {number}")
            ledger.unfreeze(Holder(Scope.USER, "ben"), "back")
    gatherer = Gatherer(lambda: small, small, lambda: open_ledger(f"sqlite:///{path}", make=False))
    newest = gatherer.gather(None)
    assert newest.older == newest.releases[-1].record.release_id == 3
    assert len(newest.changes) == CHANGES and newest.changes[0].reason == "back"
    assert 'href="/?before=3#releases"' in overview(newest, HEALTH).decode()
    assert "Exact values" not in overview(newest, HEALTH).decode()
    with closing(SqliteLedger(path, clock=Clock())) as ledger:
        for purpose in ("for ages", "for costs"):
            ledger.record_exact(small, purpose)
        ledger.record_exact(policy(name="trials"), "for weights")
        for _ in range(CHANGES):
            ledger.freeze(Holder(Scope.USER, "ben"), "again")
            ledger.unfreeze(Holder(Scope.USER, "ben"), "back")
    assert "taken from the data 2 times." in overview(gatherer.gather(None), HEALTH).decode()
    oldest = gatherer.gather(newest.older)
    assert [paid.record.release_id for paid in oldest.releases] == [2, 1]
    page = overview(oldest, HEALTH).decode()
    assert "Newest</a>" in page and "before=" not in page


def test_a_user_whose_group_the_policy_lacks_has_no_budget(place: Place, facts: Facts) -> None:
    lacking = replace(facts.policy, groups=())
    gatherer = Gatherer(lambda: lacking, lacking, lambda: open_ledger(place.url, make=False))
    told = words(overview(gatherer.gather(None), HEALTH).decode())
    assert 'has no group "team"' in told


def test_a_policy_that_cannot_be_read_leaves_the_one_before(place: Place, facts: Facts, tmp_path: Path) -> None:
    file = tmp_path / "clinic.toml"
    for text, trouble in (("version = 2", "version"), (None, "no such file")):
        if text is not None:
            file.write_text(text)
        else:
            file.unlink()
        gatherer = Gatherer(lambda: load_policy(file), facts.policy, lambda: open_ledger(place.url, make=False))
        assert trouble in str(gatherer.gather(None).trouble)


def test_long_queries_are_cut(facts: Facts) -> None:
    (paid, *_) = facts.releases
    long = replace(paid, record=replace(paid.record, sql="SELECT 1 " * 1000))
    page = overview(replace(facts, releases=[long]), HEALTH).decode()
    assert "… (9000 characters; dpsql budget history has all)" in page and "SELECT 1 " * 300 not in page


EVILS = st.text(max_size=30) | st.sampled_from(
    [EVIL, '"><script>', "' onload='x", "</title>", "&amp;", "javascript:x", "\0", "\ud800", "]]>", "<!--"]
)


@settings(max_examples=10)
@given(EVILS)
def test_no_text_changes_what_the_page_is_made_of(facts: Facts, evil: str) -> None:
    assert _outline(facts, evil) == _outline(facts, "x")


def _outline(facts: Facts, text: str) -> list[tuple[str, ...]]:
    """The tags of a page on which every text that somebody else chose is this one."""
    text = text or "x"
    paid = facts.releases[0]
    paid = replace(paid, user=text, record=replace(paid.record, sql=text))
    change = replace(facts.changes[0], reason=text, holder=Holder(Scope.USER, text), kind=text)
    dataset = replace(facts.policy.dataset, name=text, cap=text, privacy_unit=text, data_version=text, schema=text)
    tables = tuple(
        replace(
            each,
            name=text,
            description=text,
            unit_key=text if each.unit_key is not None else None,
            columns=tuple(replace(column, name=text, description=text) for column in each.columns),
        )
        for each in facts.policy.tables
    )
    changed = replace(
        facts,
        policy=replace(facts.policy, dataset=dataset, tables=tables),
        trouble=text,
        holdings=[replace(holding, name=text, about=text, group=text) for holding in facts.holdings]
        + [replace(facts.holdings[0], status=text)],
        releases=[paid],
        changes=[change],
    )
    health = Health(
        LedgerHealth(text, 1, VerifyReport(1, text, (text,)), NOW, None),
        EngineHealth(None, ((text, text),), (text,), NOW),
        GatewayHealth(text, True, 1, 1, {"42501": 1}),
    )
    pages = [overview(changed, health), login_page(text), trouble_page(text, text)]
    return [tag for page in pages for tag in Outline(page.decode()).tags]


def test_figures_are_within_their_frames_and_say_what_they_show() -> None:
    for part, state in ((-1, "low"), (0, "low"), (Fraction(4, 5), "high"), (1, "full"), (3, "full")):
        drawn = gauge(Fraction(part), "said")
        assert f'class="{state}"' in drawn.text and 'aria-label="said"' in drawn.text
        assert f'width="{float(min(max(part, 0), 1)) * 1000:.2f}"' in drawn.text
    drawn = columns([Bar(Fraction(0), "none"), Bar(Fraction(2), "two"), Bar(Fraction(1), "one")], "said")
    assert [f'height="{height}"' in drawn.text for height in ("100.00", "50.00", "0.00")] == [True] * 3
    assert "<title>two</title>" in drawn.text
    assert "rect" not in columns([], "said").text
    assert "style" not in drawn.text
