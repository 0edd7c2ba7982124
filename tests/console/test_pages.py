"""The page says what the ledger, the policy and the gateway say, and obeys none of it."""

import re
import shutil
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from html import escape as escape_html
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.console.facts import CHANGES, BoundDrops, Gatherer, Health, PageFacts, TableDrop
from dpsql.console.health import EngineHealth, GatewayHealth, LedgerHealth
from dpsql.console.pace import Pace
from dpsql.console.pages import TEMPLATES, login_page, overview, trouble_page
from dpsql.console.search import ON_A_PAGE, Search
from dpsql.console.spending_history import Served
from dpsql.ledger import BoundDrop, BudgetScope, Holder, Reading, SqliteLedger, VerifyReport, open_ledger
from dpsql.policy import load_policy
from dpsql.policy.profile import Profile, RankGroups, RowRanks, TableProfile, table_facts
from dpsql.privacy.conversion import decimal_text
from tests.console.world import EVIL, QUERIES, Outline, Place, healthy_engine, words
from tests.ledger.world import SQL, Clock, charge_only, laplace, peopled, policy, request

NOW = datetime(2026, 1, 18, 13, tzinfo=UTC)
LEDGER = LedgerHealth("ledger.sqlite", 120_000, VerifyReport(40, "ab" * 32, ()), NOW, None)
GATEWAY = GatewayHealth("127.0.0.1:9187", True, 2, 12, {"42501": 3, "42P01": 1, "ZZZZZ": 1})
HEALTH = Health(LEDGER, healthy_engine(), GATEWAY)


@pytest.fixture(scope="module")
def facts(place: Place) -> PageFacts:
    policy = load_policy(place.policy)
    gatherer = Gatherer(lambda: policy, policy, lambda: open_ledger(place.url, make=False), lambda: NOW)
    return gatherer.gather(Search())


@pytest.fixture(scope="module")
def page(facts: PageFacts) -> str:
    return overview(facts, HEALTH).decode()


def test_budgets_are_those_of_the_ledger(place: Place, facts: PageFacts, page: str) -> None:
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
    assert page.count('<span class="badge alarm">frozen</span>') == 1
    assert 'aria-label="user ana: ε' in page


def test_days_add_up_to_what_the_cap_has_spent(facts: PageFacts, page: str) -> None:
    assert [str(day) for day in sorted(facts.days)] == ["2026-01-15", "2026-01-16", "2026-01-17"]
    assert sum(paid.charges for paid in facts.days.values()) == facts.cap.charges
    assert sum((paid.spent.rho for paid in facts.days.values()), Fraction(0)) == facts.cap.spent.rho
    chart = page.partition('<section id="spending">')[2].partition("</section>")[0]
    assert chart.count('class="day"') == 30
    assert "2026-01-15: 4 charges, ρ" in chart and "2026-01-14: nothing" in chart


def test_releases_have_price_reuse_and_query(facts: PageFacts, page: str) -> None:
    told = words(page)
    assert [(asked.user, len(asked.charges), asked.again) for asked in reversed(facts.found.questions)] == [
        *(("ana", 1, 2), ("ana", 1, 2), ("ana", 1, 2), ("ana", 1, 0)),
        *(("ana", 1, 0), ("ben", 1, 1), ("ben", 1, 1), ("ben", 1, 1), ("ben", 1, 0)),
        *(("ana", 1, 0), ("ben", 1, 0), *[(EVIL, 1, 0)] * 4),
    ]
    assert {asked.fresh == asked.spent for asked in facts.found.questions if asked.user == "ana"} == {True}
    assert {asked.fresh.rho for asked in facts.found.questions if asked.user == EVIL} == {0}
    assert all(query in told for query in QUERIES)
    assert "15 queries" in told and "another user's answer, handed out" in told
    assert "ε 0.1, ρ 0.005; record" in told and "δ for private keys 1e-09" in told
    rows = page.partition('<section id="queries">')[2].partition("</section>")[0]
    assert rows.count('data-head="ε"') == 15
    assert '<td role="cell" class="number" data-head="ε">0.1</td>' in rows and 'data-head="ε">–<' not in rows


def test_the_overview_tells_who_spends_and_who_is_refused(facts: PageFacts, page: str) -> None:
    told = words(page.partition('<section id="overview">')[2].partition("</section>")[0])
    assert "spends most ana 100 % of what the last 30 days took of the cap" in told  # the others had what she had
    nobody = overview(replace(facts, spenders=[]), HEALTH).decode()
    assert "spends most nobody in the last 30 days" in words(nobody)
    assert "refused now user ben: frozen" in told
    assert "5 of 12 statements: 42501 PolicyViolation 3, 42P01 UndefinedTable 1" in told
    idle = words(overview(facts, Health(None, None, None)).decode())
    assert "refusals not known: see Refusals" in idle
    gone = date(2026, 2, 1)
    paces = {
        "is gone in about 3 days: 2026-02-01": Pace(3.2, gone, False, 7),
        "is gone in less than a day: 2026-02-01": Pace(0.2, gone, False, 1),
        "is gone in about 1 day": Pace(1.5, gone, False, 2),
        "lasts until it renews": Pace(3.2, None, True, 7),
        "At the pace of the last 7 days it lasts.": Pace(40_000.0, None, False, 7),
        "Nothing was spent in the last 7 days.": Pace(inf, None, False, 7),
        "Nothing is left.": Pace(0.0, gone, False, 7),
    }
    for line, pace in paces.items():
        users = [replace(each, pace=pace) for each in facts.holdings if each.name == "ana"]
        shown = words(overview(replace(facts, holdings=users), HEALTH).decode())
        assert line in shown
        assert ("gone first user ana on 2026-02-01" in shown) == (pace.gone is not None and pace.days > 0)
        assert ("user ana: nothing left" in shown) == (pace.days == 0)


def test_who_has_less_left_than_a_query_costs_is_among_the_refused(tmp_path: Path) -> None:
    path, small = tmp_path / "ledger.sqlite", policy()
    with closing(peopled(SqliteLedger(path, clock=Clock()))) as ledger:
        charge_only(ledger, "ana", small, [request("a", laplace(Fraction(19, 20)))], sql=SQL)
        charge_only(ledger, "ben", small, [request("b", laplace(Fraction(1, 20)))], sql=SQL)
    gatherer = Gatherer(lambda: small, small, lambda: open_ledger(f"sqlite:///{path}", make=False))
    told = words(overview(gatherer.gather(Search()), HEALTH).decode())
    assert "user ana: less is left than a query costs" in told and "user ben: less" not in told


def test_the_form_keeps_the_search_and_users_lead_to_their_queries(facts: PageFacts) -> None:
    search = Search(user=EVIL, day=date(2026, 1, 17), find="a & b", sort="often", page=3)
    shown = overview(replace(facts, search=search), HEALTH).decode()
    assert 'selected="selected"' in shown and 'value="2026-01-17"' in shown and 'value="a &amp; b"' in shown
    assert "15 queries found" in shown and ">Show all</a>" in shown
    assert 'href="/?user=ana#queries"' in shown
    assert ">Show all</a>" not in overview(facts, HEALTH).decode()
    nothing = replace(facts.found, questions=[], count=0)
    for search, line in (
        (Search(page=2), "There is no page 2: the last one is 1."),
        (Search(find="x"), "Nothing was charged that this search wants."),
        (Search(), "Nothing was charged yet."),
    ):
        assert line in words(overview(replace(facts, found=nothing, search=search), HEALTH).decode())
    assert "7 older charges are not searched" in words(overview(replace(facts, unsearched=7), HEALTH).decode())


def test_policy_changes_refusals_and_health(page: str) -> None:
    told = words(page)
    assert "cost numeric 0 to 5000, step 0.01 private: costs delta euros" in told
    assert "sex text – public: F, M, X –" in told
    assert "icd10 public: its rows belong to nobody" in told
    assert "role analyst epsilon 5, delta 1e-06" in told
    assert 'account.frozen user "ben" – – left' in told and f"asked {EVIL}" in told
    assert "42501 PolicyViolation The policy does not permit the query" in told
    assert "1 ZZZZZ – –" in told
    assert "whole : 40 records, checked 2026-01-18 13:00 UTC" in told
    assert f"dpsql ledger verify --head {'ab' * 32} --records 40" in told
    assert "117.2 KiB" in told and "prepared table of visits: fresh" in told
    assert "lets clients in ; 2 logged in; 12 statements" in told


def test_what_is_wrong_is_said_above_all(facts: PageFacts) -> None:
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


def test_what_is_not_known_yet_is_said_so(facts: PageFacts, page: str) -> None:
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
        for number in range(ON_A_PAGE + 2):
            charge_only(ledger, "ana", small, [request(number, laplace(Fraction(1, 100)))], sql=f"{SQL} -- {number}")
            ledger.freeze(Holder(BudgetScope.USER, "ben"), f"reason {number}")
            ledger.unfreeze(Holder(BudgetScope.USER, "ben"), "back")
    gatherer = Gatherer(lambda: small, small, lambda: open_ledger(f"sqlite:///{path}", make=False))
    newest = gatherer.gather(Search())
    assert newest.found.questions[-1].charges[0].releases == (3,)
    assert len(newest.changes) == CHANGES and newest.changes[0].reason == "back"
    page = overview(newest, HEALTH).decode()
    assert 'href="/?page=2#queries"' in page and ">Before</a>" not in page
    assert "Exact values" not in overview(newest, HEALTH).decode()
    with closing(SqliteLedger(path, clock=Clock())) as ledger:
        for purpose in ("for ages", "for costs"):
            ledger.record_exact(small, purpose)
        ledger.record_exact(policy(name="trials"), "for weights")
        for _ in range(CHANGES):
            ledger.freeze(Holder(BudgetScope.USER, "ben"), "again")
            ledger.unfreeze(Holder(BudgetScope.USER, "ben"), "back")
    assert "taken from the data 2 times." in overview(gatherer.gather(Search()), HEALTH).decode()
    oldest = gatherer.gather(Search(page=2))
    assert [asked.charges[0].releases for asked in oldest.found.questions] == [(2,), (1,)]
    page = overview(oldest, HEALTH).decode()
    assert ">Before</a>" in page and ">Next</a>" not in page


PROFILE = Profile(
    (
        TableProfile(
            "visits",
            "",
            (1, 5, 20),
            (
                RowRanks(RankGroups(), (500, 300, 100, 100), Fraction(25), 1),
                RowRanks(RankGroups("icd"), (600, 300, 90, 10), Fraction(25), 8),
            ),
        ),
    ),
    (),
)
DROPS = (BoundDrop("max_rows = 5", "rows", 0.31, 0.04), BoundDrop("max_rows = 5", "sum", 0.01, 0.03))


def test_what_bounds_drop_is_told_of_tables_and_of_answers(place: Place, facts: PageFacts, tmp_path: Path) -> None:
    tables = {each.name: replace(each, rows_per_unit=20, rows_per_group=20) for each in facts.policy.tables}
    tables["visits"] = replace(tables["visits"], rows_per_group=5)
    policy = replace(facts.policy, tables=tuple(tables.values()))
    known = tuple(
        replace(PROFILE.tables[0], facts=table_facts(policy, tables[name])) for name in ("visits", "patients")
    )
    profile = replace(PROFILE, tables=known)
    copied = Path(shutil.copy(place.ledger, tmp_path))
    with closing(SqliteLedger(copied, clock=lambda: NOW)) as ledger:
        ledger.store_profile(policy, profile.to_json())
        asked = [request("dropped", laplace(Fraction(1, 10)))]
        charge = ledger.charge("ana", policy, asked, sql=SQL, reading=Reading(100, lambda: None))
        ledger.store(charge.releases[0].release_id, b"cells", ends=charge.id, dropped=DROPS)
    gatherer = Gatherer(lambda: policy, policy, lambda: SqliteLedger(copied), lambda: NOW)
    gathered = gatherer.gather(Search())
    told = words(overview(gathered, HEALTH).decode())
    # Two standard errors of 5 rows of 1,000, and of twice as many numbers where a bound drops two.
    assert "visits max_rows = 20 in all 10 % (± 0.98 %)" in told
    assert "visits max_rows_per_group = 5 in one icd 10 % (± 1.4 %)" in told
    assert "patients max_rows = 20 in all" in told and "patients max_rows_per_group" not in told
    assert f"max_rows = 5 2 1 31 % (± 4 %) of the rows {SQL} ana" in told
    assert f"{SQL} 1 charge" in told and "31 % (± 4 %) by max_rows = 5" in told
    assert "10 % (± 0.98 %) of the rows of patients by max_rows = 20; 31 % (± 4 %) of an answer by max_rows = 5" in told
    later = gatherer.gather(Search(user="ben"))
    assert later.bounds == gathered.bounds and all(asked.dropped is None for asked in later.found.questions)


@pytest.mark.parametrize(
    ("share", "margin", "told"), [(0.31, 0.04, "31 % (± 4 %)"), (0.2, 0.2, "at most 40 %"), (0.1, 2, "at most 100 %")]
)
def test_a_share_that_may_be_noise_is_told_by_its_limit(share: float, margin: float, told: str) -> None:
    assert TEMPLATES.from_string("{{ dropped(share, margin) }}").render(share=share, margin=margin) == told


def test_what_is_not_known_of_bounds_is_said_so(facts: PageFacts) -> None:
    told = words(overview(replace(facts, profiled=None, bounds=()), HEALTH).decode())
    assert "bounds drop most not known: see Bounds" in told
    assert "there is no profile of these data. dpsql policy profile makes one" in told
    assert "No answer of the last 30 days told what bounds dropped of it." in told


def test_a_user_whose_group_the_policy_lacks_has_no_budget(place: Place, facts: PageFacts) -> None:
    lacking = replace(facts.policy, groups=())
    gatherer = Gatherer(lambda: lacking, lacking, lambda: open_ledger(place.url, make=False))
    told = words(overview(gatherer.gather(Search()), HEALTH).decode())
    assert 'has no group "team"' in told


def test_a_user_whose_role_the_policy_lacks_is_shown(place: Place, facts: PageFacts) -> None:
    lacking = replace(facts.policy, roles=tuple(replace(role, name="nurse") for role in facts.policy.roles))
    gatherer = Gatherer(lambda: lacking, lacking, lambda: open_ledger(place.url, make=False))
    gathered = gatherer.gather(Search())
    assert [each.name for each in gathered.holdings if each.kind == "user"] == sorted(["ana", "ben", EVIL])
    told = words(overview(gathered, HEALTH).decode())
    assert "user ana analyst" in told and 'user ana: the policy of "clinic" has no role "analyst"' in told


@pytest.mark.parametrize(
    ("holder", "kinds"),
    [
        (Holder(BudgetScope.GROUP, "team"), ["group", "user"]),
        (Holder(BudgetScope.ALL), ["cap", "group", "user", "user", "user"]),
    ],
)
def test_a_freeze_of_a_group_or_of_all_is_on_its_card(
    place: Place, facts: PageFacts, tmp_path: Path, holder: Holder, kinds: list[str]
) -> None:
    shutil.copy(place.ledger, tmp_path)
    copied = f"sqlite:///{tmp_path / place.ledger.name}"
    with closing(open_ledger(copied, make=False)) as ledger:
        ledger.unfreeze(Holder(BudgetScope.USER, "ben"), "back")
        ledger.freeze(holder, "checked")
    gathered = Gatherer(lambda: facts.policy, facts.policy, lambda: open_ledger(copied, make=False)).gather(Search())
    assert sorted(each.kind for each in gathered.holdings if each.frozen) == kinds
    assert overview(gathered, HEALTH).decode().count('<span class="badge alarm">frozen</span>') == len(kinds)


def test_a_policy_that_cannot_be_read_leaves_the_one_before(place: Place, facts: PageFacts, tmp_path: Path) -> None:
    file = tmp_path / "clinic.toml"
    for text, trouble in (("version = 2", "version"), (None, "no such file")):
        if text is not None:
            file.write_text(text)
        else:
            file.unlink()
        gatherer = Gatherer(lambda: load_policy(file), facts.policy, lambda: open_ledger(place.url, make=False))
        assert trouble in str(gatherer.gather(Search()).trouble)


def shown_query(facts: PageFacts, **changes: object) -> str:
    found = replace(facts.found, questions=[replace(facts.found.questions[0], **changes)])  # type: ignore[arg-type]
    page = overview(replace(facts, found=found, spenders=[]), HEALTH).decode()
    return page.partition('<section id="queries">')[2].partition("</section>")[0]


def test_a_long_query_shows_its_beginning_and_opens(facts: PageFacts) -> None:
    text = "SELECT " + ", ".join(f"SUM(c{number})" for number in range(40)) + " FROM t"
    page = shown_query(facts, sql=text)
    assert '<details class="query"><summary><code>SELECT SUM(c0)' in page
    assert f' …</code><span class="more">all {len(text)} characters</span></summary><code>{text}</code>' in page
    assert '<details class="query"' in shown_query(facts, sql="SELECT\n1\n+\n2\n+ 3")
    assert "<code>SELECT 1</code>" in shown_query(facts, sql="SELECT 1")
    endless = shown_query(facts, sql="SELECT 1 " * 10_000)
    assert "… (90000 characters; dpsql budget history has all)" in endless and "SELECT 1 " * 3000 not in endless


def test_many_charges_of_one_query_are_cut(facts: PageFacts) -> None:
    page = shown_query(facts, charges=facts.found.questions[0].charges * 60)
    assert "60 charges" in page and "… and 10 older ones" in page and page.count("; record ") == 50


def test_what_releases_served_is_named(facts: PageFacts) -> None:
    assert "releases served" not in shown_query(facts)
    (asked, *_) = facts.found.questions
    served = tuple(Served(NOW - timedelta(days=5 - day), f"SELECT {day} < 2", (7, 9), day) for day in (1, 2))
    paid = replace(asked.charges[0], served=served, combined=(3, 4))
    page = shown_query(facts, charges=(paid,))
    assert "its releases served 2 other queries" in page
    assert "<li>2026-01-15 13:00: from release 7, 9, 2 times: <code>SELECT 2 &lt; 2</code></li>" in page
    assert page.index("SELECT 2 &lt;") < page.index("SELECT 1 &lt;")
    assert "<li>2026-01-14 13:00: from release 7, 9: <code>SELECT 1 &lt; 2</code></li>" in page
    assert "; together with release 3, 4" in page


EVILS = st.text(max_size=30) | st.sampled_from(
    [EVIL, '"><script>', "' onload='x", "</title>", "&amp;", "javascript:x", "\0", "\ud800", "]]>", "<!--"]
)


@settings(max_examples=10)
@given(EVILS)
def test_no_text_changes_what_the_page_is_made_of(facts: PageFacts, evil: str) -> None:
    assert _outline(facts, evil) == _outline(facts, "x")


def _outline(facts: PageFacts, text: str) -> list[tuple[str, ...]]:
    """The tags of a page on which every text that somebody else chose is this one."""
    text = text or "x"
    asked = replace(facts.found.questions[0], user=text, sql=text)
    change = replace(facts.changes[0], reason=text, holder=Holder(BudgetScope.USER, text), kind=text)
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
        found=replace(facts.found, questions=[asked]),
        search=Search(user=text, find=text),
        spenders=[replace(facts.spenders[0], user=text, dearest=text)],
        profiled=[TableDrop(text, text, text, 0.1, 0.1)],
        bounds=[BoundDrops(text, 1, 1, BoundDrop(text, text, 0.1, 0.1), text, text)],
        changes=[change],
    )
    health = Health(
        LedgerHealth(text, 1, VerifyReport(1, text, (text,)), NOW, None),
        EngineHealth(None, ((text, text),), (text,), NOW),
        GatewayHealth(text, True, 1, 1, {"42501": 1}),
    )
    pages = [overview(changed, health), login_page(text), trouble_page(text, text)]
    return [tag for page in pages for tag in Outline(page.decode()).tags]


@given(st.text() | EVILS)
def test_a_text_is_shown_as_it_is_and_what_would_not_be_seen_is_spelt_out(text: str) -> None:
    seen = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    assert (
        f">{escape_html(seen).replace('&#x27;', '&#39;').replace('&quot;', '&#34;')}</p>" in login_page(text).decode()
    )


def test_characters_that_hide_or_turn_others_are_spelt_out() -> None:
    shown = login_page("a\0b\x1b[31mc\N{RIGHT-TO-LEFT OVERRIDE}d\ud800e\N{NO-BREAK SPACE}f\ng").decode()
    assert "a\\x00b\\x1b[31mc\\u202ed\\ud800e\\xa0f\ng" in shown


def test_no_template_takes_a_text_for_markup() -> None:
    assert TEMPLATES.loader is not None
    names = TEMPLATES.list_templates()
    texts = [TEMPLATES.loader.get_source(TEMPLATES, name)[0] for name in names]
    assert len(names) > 10 and not any(re.search(r"\|\s*safe|autoescape|Markup", text) for text in texts)
    # An attribute without quotes ends at a space.
    assert not any(re.search(r"=\s*\{\{", re.sub(r"\{%.*?%\}", "", text, flags=re.DOTALL)) for text in texts)


def test_figures_are_within_their_frames_and_say_what_they_show() -> None:
    parts = TEMPLATES.get_template("parts.html").make_module()
    for part, state in ((-1, "low"), (0, "low"), (Fraction(4, 5), "high"), (1, "full"), (3, "full")):
        drawn = str(parts.gauge(Fraction(part), "said"))  # type: ignore[attr-defined]
        assert f'class="{state}"' in drawn and 'aria-label="said"' in drawn
        assert f'width="{float(min(max(part, 0), 1)) * 1000:.2f}"' in drawn
    bars = [(Fraction(0), "none", None), (Fraction(2), "two", "/?day=2026-01-01"), (Fraction(1), "one", None)]
    drawn = str(parts.columns(bars, "said"))  # type: ignore[attr-defined]
    assert [f'height="{height}"' in drawn for height in ("100.00", "50.00", "0.00")] == [True] * 3
    assert "<title>two</title>" in drawn and drawn.count('<a href="/?day=2026-01-01"') == 1
    assert "rect" not in str(parts.columns([], "said"))  # type: ignore[attr-defined]
    assert "style" not in drawn
