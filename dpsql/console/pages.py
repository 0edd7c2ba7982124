"""pages: the form that asks for the password, and the page: values in, HTML out."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Final

from dpsql.console.facts import Facts, Health, Holding
from dpsql.console.figures import Bar, columns, gauge
from dpsql.console.health import EngineHealth, GatewayHealth, LedgerHealth
from dpsql.console.journal import Day
from dpsql.console.markup import Content, Html, document, element, joined
from dpsql.console.tables import Column, table
from dpsql.errors import reasons
from dpsql.ledger import BudgetStatus, OwnerRecord, PaidRelease
from dpsql.policy import Policy, Role, Table
from dpsql.policytext import budget_text, keys_text, limits_text
from dpsql.privacy.accounting import Limit, Spent
from dpsql.system import budget_note, decimal_text, times

_DAYS: Final = 30
_QUERY_CHARACTERS: Final = 2000
_SECTIONS: Final = ("Budgets", "Spending", "Releases", "Refusals", "Policy", "Changes", "Health")
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def login_page(trouble: str | None) -> bytes:
    """The form that asks for the password, and why it asks again."""
    form = element(
        "form",
        element("h1", "dpsql console"),
        # Password managers file the password under it.
        element("input", name="username", value="owner", autocomplete="username", hidden="hidden"),
        element("label", "The data owner's password", for_="password"),
        element(
            "input",
            id="password",
            name="password",
            type="password",
            required="required",
            autofocus="autofocus",
            autocomplete="current-password",
        ),
        None if trouble is None else element("p", trouble, class_="trouble", role="alert"),
        element("button", "Log in", type="submit"),
        method="post",
        action="/login",
        class_="login",
    )
    return document("dpsql console: log in", element("body", element("main", form)))


def trouble_page(message: str, hint: str | None) -> bytes:
    """What the owner is told where the facts cannot be gathered."""
    told = joined(element("p", message, class_="trouble", role="alert"), None if hint is None else element("p", hint))
    return document("dpsql console", element("body", _header(None), element("main", element("section", told))))


def overview(facts: Facts, health: Health) -> bytes:
    """The page."""
    bodies = (
        _budgets(facts),
        _spending(facts),
        _releases(facts),
        _refusals(health.gateway),
        _policy(facts.policy),
        _changes(facts.changes),
        _health(facts, health),
    )
    links = (element("a", name, href=f"#{name.lower()}") for name in _SECTIONS)
    sections = (
        element("section", element("h2", name), body, id=name.lower())
        for name, body in zip(_SECTIONS, bodies, strict=True)
    )
    main = element("main", *_warnings(facts, health), *sections)
    body = element("body", _header(facts), element("nav", *links, aria_label="Sections"), main)
    return document(f"dpsql console: {facts.policy.dataset.name}", body)


def _header(facts: Facts | None) -> Html:
    about = None
    if facts is not None:
        about = element("p", f"{facts.policy.dataset.name}, as of {_moment(facts.at)} UTC")
    leave = element("form", element("button", "Log out", type="submit"), method="post", action="/logout")
    return element("header", element("div", element("h1", "dpsql console"), about), leave)


def _warnings(facts: Facts, health: Health) -> Iterator[Html]:
    """What the owner should not have to look for."""
    told = []
    if facts.trouble is not None:
        told.append(f"The policy file cannot be read; what follows is by its last reading. {facts.trouble}")
    if health.ledger is not None and health.ledger.report is not None and not health.ledger.report.ok:
        told.append("The ledger is NOT whole: see Health.")
    if health.engine is not None and health.engine.trouble is not None:
        told.append("The database cannot be opened: see Health.")
    if health.gateway is not None and not health.gateway.ready:
        told.append("The gateway lets no clients in: see Health.")
    if facts.exact:
        told.append(f"Exact values were taken from the data {times(facts.exact)}. No budget covers what they tell.")
    yield from (element("p", text, class_="trouble", role="alert") for text in told)


def _budgets(facts: Facts) -> Html:
    notes = element(
        "p",
        "ε (epsilon) bounds what is lost of one ",
        facts.policy.dataset.privacy_unit,
        "; δ (delta) is the chance of more. Users never see what is left of the cap.",
        class_="note",
    )
    return joined(notes, element("div", *map(_holding, facts.holdings), class_="holdings"))


def _holding(holding: Holding) -> Html:
    badges = [element("span", holding.about, class_="badge")]
    badges += [] if holding.group is None else [element("span", f"group {holding.group}", class_="badge")]
    badges += [element("span", "frozen", class_="badge alarm")] if holding.frozen else []
    head = element("h3", f"{holding.kind} ", element("bdi", holding.name), " ", *badges)
    if isinstance(holding.status, str):
        return element("article", head, element("p", holding.status, class_="trouble"))
    return element("article", head, *_status(holding.status, f"{holding.kind} {holding.name}"))


def _status(status: BudgetStatus, whose: str) -> Iterator[Html]:
    limit, left = status.limit, status.remaining
    spent = limit.epsilon - left.epsilon
    told = f"ε {_number(spent)} of {_number(limit.epsilon)} spent, {_number(left.epsilon)} left"
    yield gauge(spent / limit.epsilon, f"{whose}: {told}")
    yield element("p", told, class_="figure")
    if limit.delta_selection:
        used = limit.delta_selection - left.delta
        keys = f"δ for private keys: {_number(used)} of {_number(limit.delta_selection)} spent"
        yield gauge(used / limit.delta_selection, f"{whose}: {keys}")
        yield element("p", keys, class_="figure")
    queries = f"{status.charges} {'query' if status.charges == 1 else 'queries'}"
    whole = f"δ {_number(limit.delta)} in all"
    yield element("p", f"{queries}; {limit.accountant.value}; {whole}; {budget_note(status)}", class_="note")


def _spending(facts: Facts) -> Html:
    limit, today = facts.cap.limit, facts.at.date()
    shown = [today - timedelta(days=back) for back in reversed(range(_DAYS))]
    bars = [Bar(_share(limit, facts.days.get(day)), _day_text(limit, day, facts.days.get(day))) for day in shown]
    highest = max(bar.value for bar in bars)
    about = element(
        "p",
        "What each day took of the cap over all users, by the calendar of UTC. ",
        f"The highest column is {_percent(highest)} of the cap." if highest else "Nothing in these days.",
        class_="note",
    )
    if not facts.is_all:
        about = joined(about, element("p", "The ledger is still being added up: look again.", class_="trouble"))
    chart = columns(bars, f"Share of the cap spent on each of the last {_DAYS} days")
    axis = element("p", element("span", shown[0].isoformat()), element("span", shown[-1].isoformat()), class_="axis")
    rows = [
        (
            day.isoformat(),
            str(facts.days[day].charges),
            _number(facts.days[day].spent.pure_epsilon),
            _number(facts.days[day].spent.rho),
            _number(facts.days[day].spent.delta),
            _percent(_share(limit, facts.days[day])),
        )
        for day in sorted(facts.days, reverse=True)
    ]
    heads = (
        Column("day"),
        Column("charges", number=True),
        Column("Σε", "the sum of epsilon, where all noise of the day was pure", number=True),
        Column("Σρ", "the sum of rho, zero-concentrated differential privacy's own unit", number=True),
        Column("Σδ", "the sum of delta for private keys", number=True),
        Column("of the cap", number=True),
    )
    every = table("Every day with a charge to the cap", heads, rows)
    return joined(about, chart, axis, element("details", element("summary", "Every day as numbers"), every))


def _share(limit: Limit, day: Day | None) -> Fraction:
    """The part of a limit that a day took; 0 where it has no price in the limit's currency."""
    return Fraction(0) if day is None else (limit.total(day.spent) or Fraction(0)) / limit.capacity


def _day_text(limit: Limit, day: date, paid: Day | None) -> str:
    if paid is None:
        return f"{day}: nothing"
    charges = f"{paid.charges} {'charge' if paid.charges == 1 else 'charges'}"
    return f"{day}: {charges}, ρ {_number(paid.spent.rho)}, {_percent(_share(limit, paid))} of the cap"


def _releases(facts: Facts) -> Html:
    about = element(
        "p",
        "Answers that were paid for, newest first; whoever has one has it again for nothing. Queries are shown as they "
        "were asked, with the constants in them.",
        class_="note",
    )
    heads = (
        Column("№", "the release's number in the ledger", number=True),
        Column("first asked, UTC"),
        Column("user"),
        Column("ε", "epsilon, where the noise is pure", number=True),
        Column("ρ", "rho, zero-concentrated differential privacy's own unit", number=True),
        Column("δ", "delta for private keys", number=True),
        Column("again", "how often the same user had it again, free", number=True),
        Column("state"),
        Column("query"),
    )
    pages = [] if facts.newest else [element("a", "Newest", href="/#releases")]
    if facts.older is not None:
        pages.append(element("a", "Older", href=f"/?before={facts.older}#releases", rel="next"))
    rows = [_release(paid) for paid in facts.releases]
    return joined(about, table("Releases", heads, rows), element("p", *pages, class_="pages") if pages else None)


def _release(paid: PaidRelease) -> Sequence[Content]:
    record, spent = paid.record, Spent.zero().add(paid.record.price)
    query = record.sql
    if len(query) > _QUERY_CHARACTERS:
        query = f"{query[:_QUERY_CHARACTERS]} … ({len(query)} characters; dpsql budget history has all)"
    state = ("made" if paid.made else "another user's") + ("" if record.kept else ", dropped")
    return (
        str(record.release_id),
        _moment(record.created),
        element("bdi", paid.user),
        *(_number(value) for value in (spent.pure_epsilon, spent.rho, spent.delta)),
        str(record.reused),
        state,
        element("code", query),
    )


def _refusals(gateway: GatewayHealth | None) -> Html:
    if gateway is None:
        return element(
            "p",
            "The ledger does not hold refusals: nothing was charged. The gateway counts them by reason: "
            "dpsql serve --metrics-port N, and dpsql console --metrics-port N.",
            class_="note",
        )
    if gateway.ready is None:
        return element("p", f"The gateway does not answer at {gateway.place}.", class_="trouble")
    about = f"Statements refused without reading a row, of {gateway.statements} begun since the gateway's start."
    heads = (Column("SQLSTATE"), Column("reason"), Column("refused", number=True))
    by_number = sorted(gateway.refusals.items(), key=lambda item: (-item[1], item[0]))
    rows = [(state, _REASONS.get(state, ""), str(count)) for state, count in by_number]
    return joined(element("p", about, class_="note"), table("Refusals", heads, rows))


_REASONS: Final = {kind.sqlstate: f"{kind.__name__}: {kind.__doc__ or ''}" for kind in reasons()}


def _policy(policy: Policy) -> Html:
    dataset = policy.dataset
    changes = "is there or not" if dataset.adjacency.value == "add_remove" else "has these data or any other"
    facts = (
        (
            "dataset",
            f"{dataset.name}; data version {dataset.data_version}; schema {dataset.schema}; {dataset.timezone}",
        ),
        ("protects", f"whether one {dataset.privacy_unit} {changes}, in all protected tables together"),
        ("cap", f"{dataset.cap}: {budget_text(dataset.budget)}"),
        *((f"role {role.name}", _role(role, policy)) for role in policy.roles),
        *((f"group {group.name}", f"shared by its members: {budget_text(group.budget)}") for group in policy.groups),
    )
    listed = element("dl", *(joined(element("dt", name), element("dd", text)) for name, text in facts))
    return joined(listed, *(_table(each, dataset.privacy_unit) for each in policy.tables))


def _role(role: Role, policy: Policy) -> str:
    query = role.query
    tables = ", ".join(each.name for each in policy.tables if each.name in role.tables)
    return (
        f"{budget_text(role.budget)}. One query: epsilon {_number(query.epsilon)}, {_number(query.max_epsilon)} at the "
        f"most; delta {_number(query.delta)} with private keys; {query.mechanism} noise. Tables: {tables}"
    )


def _table(each: Table, unit: str) -> Html:
    about = "public: its rows belong to nobody"
    if not each.public:
        way = each.unit_key or (f"by way of {each.unit_via.table}" if each.unit_via is not None else "")
        about = (
            f"rows of one {unit} ({way}) that count: {each.max_rows}; in GROUP BY {each.max_rows_per_group} in each of "
            f"{each.max_groups} groups"
        )
    heads = (Column("column"), Column("type"), Column("bounds"), Column("as a group key"), Column("description"))
    rows = [
        (column.name, column.type.value, limits_text(column), keys_text(column, each), column.description)
        for column in each.columns
    ]
    described = None if each.description is None else element("p", each.description)
    return element(
        "details",
        element("summary", element("code", each.name), f" {about}"),
        described,
        table(f"Columns of {each.name}", heads, rows),
    )


def _changes(changes: Sequence[OwnerRecord]) -> Html:
    if not changes:
        return element("p", "Nothing was granted, lowered, reset or frozen.", class_="note")
    heads = (
        Column("record", number=True),
        Column("at, UTC"),
        Column("what"),
        Column("whose"),
        Column("ε", "by how much epsilon was raised or lowered", number=True),
        Column("δ", "by how much delta was raised or lowered", number=True),
        Column("reason"),
    )
    rows = [
        (
            *(str(record.id), _moment(record.at), record.kind, element("bdi", str(record.holder))),
            *(_number(record.epsilon), _number(record.delta), record.reason),
        )
        for record in changes
    ]
    return table("What was changed, newest first", heads, rows)


def _health(facts: Facts, health: Health) -> Html:
    told: list[tuple[str, Content]] = [
        ("ledger", _ledger(health.ledger)),
        ("database", _engine(health.engine, facts.policy)),
        ("gateway", _gateway(health.gateway)),
    ]
    return element("dl", *(joined(element("dt", name), element("dd", text)) for name, text in told))


def _ledger(ledger: LedgerHealth | None) -> Content:
    if ledger is None:
        return "is being checked; look again in a moment"
    size = "" if ledger.size is None else f", {_size(ledger.size)}"
    place = element("p", element("code", ledger.place), size)
    if ledger.report is None:
        return joined(place, element("p", ledger.trouble, class_="trouble"))
    report = ledger.report
    state = element("strong", "whole" if report.ok else "NOT whole", class_="good" if report.ok else "trouble")
    checked = element("p", state, f": {report.records} records, checked {_moment(ledger.checked)} UTC")
    problems = element("ul", *(element("li", problem) for problem in report.problems[:20])) if report.problems else None
    noted = element("code", f"dpsql ledger verify --head {report.head} --records {report.records}")
    kept = element("p", "Noted elsewhere, this proves later that no record was cut off: ", noted)
    return joined(place, checked, problems, kept if report.ok else None)


def _engine(engine: EngineHealth | None, policy: Policy) -> Content:
    if engine is None:
        return "is being looked at; look again in a moment"
    if engine.trouble is not None:
        return element("p", engine.trouble, class_="trouble")
    version = f", data version {policy.dataset.data_version}, looked at {_moment(engine.checked)} UTC"
    lines = [f"prepared copy of {name}: {state}" for name, state in engine.copies] or ["no prepared copies"]
    lines += [f"warning: {warning}" for warning in engine.warnings]
    return joined(
        element("p", element("strong", "can be opened", class_="good"), version),
        element("ul", *(element("li", line) for line in lines)),
    )


def _gateway(gateway: GatewayHealth | None) -> Content:
    if gateway is None:
        return "not asked; dpsql console --metrics-port N names the port of its metrics"
    if gateway.ready is None:
        return element("p", f"does not answer at {gateway.place}", class_="trouble")
    state = ("lets clients in", "good") if gateway.ready else ("lets no clients in", "trouble")
    sessions = f"; {gateway.sessions} logged in; {gateway.statements} statements on this dataset since its start"
    return element("p", element("strong", state[0], class_=state[1]), sessions)


def _number(value: Fraction | None) -> str | None:
    return decimal_text(value, 4)


def _percent(share: Fraction) -> str:
    return f"{float(share * 100):.3g} %"


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def _size(size: int) -> str:
    for unit, name in _SIZES:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
