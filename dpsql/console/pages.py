"""pages: renders the login form and the console's page as HTML.

The templates contain the structure, this file the computed sentences.

Rule: texts of users, queries and policies are data: templates escape every value, and invisible characters and those
that change the direction of text are written as escapes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from fractions import Fraction
from math import inf
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpsql.console.facts import DAYS, Health, Holding, PageFacts
from dpsql.console.health import GatewayHealth
from dpsql.console.pace import WEEK, Pace
from dpsql.console.search import SORTS, Search, part
from dpsql.console.spending_history import OWNER, Day, Paid, Served
from dpsql.errors import reasons
from dpsql.gateway.policy_summary import budget_text, keys_text, limits_text
from dpsql.gateway.system_relations import budget_note, times
from dpsql.policy import Policy, Role, Table
from dpsql.privacy.accounting import Limit, Spent, asked_epsilon
from dpsql.privacy.conversion import decimal_text

_QUERY_CHARACTERS: Final = 20_000
_BEGINNING: Final = 160
_LINES: Final = 4
_SOON: Final = 7
_SECTIONS: Final = ("Overview", "Budgets", "Spending", "Queries", "Bounds", "Refusals", "Policy", "Changes", "Health")
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_UNUSUAL: Final = re.compile("[^\n -~]")

_REASONS: Final = {kind.sqlstate: (kind.__name__, (kind.__doc__ or "").partition("\n\n")[0]) for kind in reasons()}
_UNKNOWN: Final = ("", "")
_HELP: Final = {
    "42501": "The policy forbids it, or the account is frozen: see Policy, Changes.",
    "53400": "A larger budget (dpsql budget grant), a smaller dpsql.epsilon, or its renewal: see Budgets.",
    "58030": "The ledger fails: see Health, and the gateway's log.",
    "58000": "The database fails: see Health, and the gateway's log.",
    "57P03": "The database fails: see Health, and the gateway's log.",
    "F0000": "The policy file does not fit the database: dpsql policy check.",
    "0A000": "dpsql does not answer this kind of query; its error names one that works.",
}


def login_page(trouble: str | None) -> bytes:
    """Return the login form, with the reason if it appears again."""
    return _rendered("login.html", trouble=trouble)


def trouble_page(message: str, hint: str | None) -> bytes:
    """The page for an error: the facts cannot be read."""
    return _rendered("trouble.html", message=message, hint=hint)


def overview(facts: PageFacts, health: Health) -> bytes:
    """The page."""
    return _rendered("overview.html", sections=_SECTIONS, facts=facts, health=health)


def _rendered(name: str, **values: object) -> bytes:
    return _UNUSUAL.sub(_seen, TEMPLATES.get_template(name).render(values)).encode()


def _seen(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else found[0].encode("unicode_escape").decode()


def _warnings(facts: PageFacts, health: Health) -> Iterator[str]:
    """What the owner should not have to look for."""
    if facts.trouble is not None:
        yield f"The policy file cannot be read; what follows is by its last reading. {facts.trouble}"
    if health.ledger is not None and health.ledger.report is not None and not health.ledger.report.ok:
        yield "The ledger is NOT whole: see Health."
    if health.engine is not None and health.engine.trouble is not None:
        yield "The database cannot be opened: see Health."
    if health.gateway is not None and not health.gateway.ready:
        yield "The gateway lets no clients in: see Health."
    if facts.exact:
        yield f"Exact values were taken from the data {times(facts.exact)}. No budget covers what they tell."


def _gone_first(holdings: Sequence[Holding]) -> str:
    dated = [(each.pace.gone, each) for each in holdings if each.pace is not None and each.pace.days > 0]
    soon = sorted((gone, f"{each.kind} {each.name}") for gone, each in dated if gone is not None)
    if not soon:
        return f"no budget, at the pace of the last {WEEK} days"
    return "; ".join(f"{whose} on {gone}" for gone, whose in soon[:3])


def _chief_refusals(gateway: GatewayHealth | None) -> str:
    if gateway is None or gateway.ready is None:
        return "not known: see Refusals"
    chief = [f"{state} {_REASONS.get(state, _UNKNOWN)[0]} {many}" for state, many in _refusals(gateway)[:3]]
    told = f"{sum(gateway.refusals.values())} of {gateway.statements} statements"
    return told + (f": {', '.join(chief)}" if chief else "")


def _refusals(gateway: GatewayHealth) -> list[tuple[str, int]]:
    return sorted(gateway.refusals.items(), key=lambda item: (-item[1], item[0]))


def _reason(state: str) -> tuple[str, str, str]:
    """The name of an SQLSTATE, what it means, and what helps."""
    name, about = _REASONS.get(state, _UNKNOWN)
    helps = _HELP.get(state, "The query itself is at fault: its error says what would work.")
    return name, about, helps if name else ""


def _lasting(pace: Pace) -> tuple[str, bool]:
    """How long a budget lasts, and whether that is alarming."""
    if pace.days == 0:
        return "Nothing is left.", True
    so = f"At the pace of {'today' if pace.span == 1 else f'the last {pace.span} days'} it "
    if pace.renews:
        return f"{so}lasts until it renews.", False
    if pace.gone is None:
        return f"{so}lasts." if pace.days < inf else f"Nothing was spent in the last {WEEK} days.", False
    days = int(pace.days)
    about = f"in about {_counted(days, 'day', 'days')}" if days else "in less than a day"
    return f"{so}is gone {about}: {pace.gone}.", days < _SOON


def _drawn(facts: PageFacts) -> list[tuple[date, Day | None, Fraction]]:
    """The last DAYS, what each paid, and the part of the cap that this is."""
    today = facts.at.date()
    shown = [today - timedelta(days=back) for back in reversed(range(DAYS))]
    return [(day, facts.days.get(day), _share(facts.cap.limit, facts.days.get(day))) for day in shown]


def _share(limit: Limit, day: Day | None) -> Fraction:
    """The part of a limit that a day took."""
    return Fraction(0) if day is None else part(limit, day.spent)


def _day_text(day: date, paid: Day | None, share: Fraction) -> str:
    if paid is None:
        return f"{day}: nothing"
    charges = _counted(paid.charges, "charge", "charges")
    return f"{day}: {charges}, ρ {_number(paid.spent.rho)}, {_percent(share)} of the cap"


def _chief_drop(facts: PageFacts) -> str:
    """The bound that drops most, of the tables or of an answer."""
    tables = sorted(facts.profiled or (), key=lambda each: each.share, reverse=True)
    told = [f"{_dropped(each.share, each.margin)} of the rows of {each.table} by {each.bound}" for each in tables[:1]]
    told += [f"{_dropped(each.most.share, each.most.margin)} of an answer by {each.bound}" for each in facts.bounds[:1]]
    return "; ".join(told) or "not known: see Bounds"


def _askers(facts: PageFacts) -> list[str]:
    """Whose queries may be asked for."""
    names = {each.name for each in facts.holdings if each.kind == "user"} | {each.user for each in facts.spenders}
    return sorted((names | {facts.search.user or OWNER}) - {OWNER})


def _begun(sql: str) -> str:
    """Return the beginning of a query, with an ellipsis if it is cut."""
    begun = "\n".join(sql[:_BEGINNING].split("\n")[:_LINES])
    return sql if begun == sql else f"{begun} …"


def _whole(sql: str) -> str:
    """A query, as far as a page shows it."""
    if len(sql) <= _QUERY_CHARACTERS:
        return sql
    return f"{sql[:_QUERY_CHARACTERS]} … ({len(sql)} characters; dpsql budget history has all)"


def _charge(paid: Paid, limit: Limit) -> str:
    """A charge, with what it is called in the ledger."""
    prices = [
        ("ε", asked_epsilon(limit, paid.spent)),
        ("ρ", paid.spent.rho),
        ("δ for private keys", paid.spent.delta),
    ]
    costs = ", ".join(f"{name} {_number(value)}" for name, value in prices if value)
    releases = f"release {', '.join(map(str, paid.releases))}"
    made = "" if paid.fresh != Spent.zero() else "; another user's answer, handed out"
    more = f"; together with release {', '.join(map(str, paid.combined))}" if paid.combined else ""
    return f"{_moment(paid.at)}: {costs}; record {paid.number}, {releases}{more}{made}"


def _served(each: Served) -> str:
    """When and how often another query was answered from releases of a charge."""
    times_text = f", {each.answers} times" if each.answers > 1 else ""
    return f"{_moment(each.at)}: from release {', '.join(map(str, each.releases))}{times_text}"


def _policy(policy: Policy) -> Mapping[str, str]:
    """Return the policy's settings, except its tables."""
    dataset = policy.dataset
    changes = "is present or absent" if dataset.adjacency.value == "add_remove" else "has these data or any other"
    place = f"{dataset.name}; data version {dataset.data_version}; schema {dataset.schema}; {dataset.timezone}"
    return {
        "dataset": place,
        "protects": f"whether one {dataset.privacy_unit} {changes}, in all protected tables together",
        "cap": f"{dataset.cap}: {budget_text(dataset.budget)}",
        **{f"role {role.name}": _role(role, policy) for role in policy.roles},
        **{f"group {each.name}": f"shared by its members: {budget_text(each.budget)}" for each in policy.groups},
    }


def _role(role: Role, policy: Policy) -> str:
    query = role.query
    cut = "Its answers do not tell how many rows bounds drop; with wide_share in its query they would."
    if query.wide_share:
        cut = f"A part of each price, {_percent(query.wide_share)}, has the answer tell how many rows bounds drop."
    tables = ", ".join(each.name for each in policy.tables if each.name in role.tables)
    return (
        f"{budget_text(role.budget)}. One query: epsilon {_number(query.epsilon)}, {_number(query.max_epsilon)} at the "
        f"most; delta {_number(query.delta)} with private keys; {query.mechanism} noise. {cut} Tables: {tables}"
    )


def _table(each: Table, unit: str) -> str:
    if each.public:
        return "public: its rows belong to nobody"
    way = each.unit_key or f"by way of {' or '.join(via.table for via in each.unit_via)}"
    return (
        f"rows of one {unit} ({way}) that count: {each.rows_per_unit}; "
        f"in GROUP BY {each.rows_per_group} in each of {each.groups_per_unit} groups"
        + (f"; groups of fewer than {each.min_units} {unit}s are not shown" if each.min_units > 1 else "")
    )


def _dropped(share: float, margin: float) -> str:
    """Return a share with half its 95 % interval; or the interval's end if noise alone could explain the share."""
    if share > margin:
        return f"{100 * share:.2g} % (± {100 * margin:.2g} %)"
    return f"at most {100 * min(share + margin, 1):.3g} %"


def _number(value: Fraction | None) -> str | None:
    return decimal_text(value, 4)


def _percent(share: Fraction) -> str:
    return f"{float(share * 100):.3g} %"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def _size(size: int) -> str:
    for unit, name in _SIZES:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def _address(search: Search | None = None, **changes: Any) -> str:
    return replace(search or Search(), **changes).address()


TEMPLATES: Final = Environment(
    loader=PackageLoader("dpsql.console"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=lambda value: "" if value is None else value,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""The templates of the page, with what they may call."""

TEMPLATES.filters |= {
    "number": _number,
    "percent": _percent,
    "counted": _counted,
    "moment": _moment,
    "size": _size,
    "begun": _begun,
    "whole": _whole,
}
TEMPLATES.globals |= {
    **{"DAYS": DAYS, "OWNER": OWNER, "SORTS": SORTS, "everything": Search(), "address": _address, "part": part},
    **{"warnings": _warnings, "gone_first": _gone_first, "chief_refusals": _chief_refusals, "refusals": _refusals},
    **{
        "reason": _reason,
        "dropped": _dropped,
        "chief_drop": _chief_drop,
        "budget_note": budget_note,
        "lasting": _lasting,
        "drawn": _drawn,
        "share": _share,
    },
    **{
        "day_text": _day_text,
        "askers": _askers,
        "charge_text": _charge,
        "served_text": _served,
        "policy_text": _policy,
        "table_text": _table,
    },
    **{"limits_text": limits_text, "keys_text": keys_text, "fraction": Fraction},
}
