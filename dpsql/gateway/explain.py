"""explain: plans and prices in words and as JSON; from policy, plan and ledger alone."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dpsql.compiler.plan.profiled_bounds import ProfiledBounds
from dpsql.compiler.plan.query_plan import CompiledQuery, HeldRelease, OutputColumn, PlannedInput, PlannedRelease
from dpsql.gateway.answers import Explanation
from dpsql.gateway.notices import bounding_notice, contribution_text, cost_text, free_text, number_of, paid_text
from dpsql.gateway.prices import Cost, Quotation
from dpsql.gateway.workloads import Workload
from dpsql.ledger import GroupBalance
from dpsql.privacy.accounting import Limit, Remaining
from dpsql.privacy.conversion import decimal_text


def cost_json(cost: Cost | None) -> dict[str, float | None]:
    """A cost as JSON: ε in the budget's currency, and what the charge comes to."""
    if cost is None or cost.free:
        return {"epsilon": 0.0, "delta": 0.0, "rho": 0.0}
    return {"epsilon": float(cost.epsilon), "delta": float(cost.delta), "rho": float(cost.spent.rho)}


def remaining_json(remaining: Remaining) -> dict[str, float]:
    """What is left, as JSON."""
    return {"epsilon": float(remaining.epsilon), "delta": float(remaining.delta)}


def group_json(shared: GroupBalance | None) -> dict[str, Any]:
    """What the user's group has left, as a part of JSON; nothing without a group."""
    return {} if shared is None else {"group": {"name": shared.group, "remaining": remaining_json(shared.remaining)}}


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """The shape of `dpsql explain --format json`, and of EXPLAIN (FORMAT JSON)."""
    query = explanation.query
    target = {"target": _target_json(explanation)} if explanation.target is not None else {}
    return {
        "price": cost_json(explanation.cost),
        "remaining": remaining_json(explanation.status.remaining),
        **group_json(explanation.quotation.shared),
        "reused": explanation.reused,
        "derived_from": list(query.derived_from),
        "consistent_with": list(query.consistent_with),
        "older_not_used": query.unread,
        "fits": explanation.quotation.fits,
        **target,
        "columns": [_column_json(column) for column in query.columns],
        "forms": [{"prepared": each.contribution.copied, "why": each.form} for each in query.releases],
        "profiled": [_profiled_json(each.profiled) for each in query.releases],
        "engine_sql": [
            *(planned.sql for planned in query.bought),
            *(read.sql for read in query.reads(query.releases)),
        ],
        "made_first": [
            {"release": index, "table": made.table, "of_releases": _indexes(query, made), "sql": made.sql}
            for index, planned in enumerate(query.releases)
            for made in planned.inputs
        ],
        "bounding": bounding_notice(query),
        "post_sql": query.post_sql,
    }


def _profiled_json(bounds: ProfiledBounds | None) -> dict[str, Any] | None:
    if bounds is None:
        return None
    chosen = {"max_rows": bounds.rows, "max_rows_per_group": bounds.per_group}
    return {"profile": bounds.profile, **chosen, "why": bounds.why}


def _target_json(explanation: Explanation) -> dict[str, Any]:
    most = explanation.dearest
    fits, rounds = explanation.most.fits, len(explanation.charged)
    return {"error": explanation.target, "rounds": rounds, "most": cost_json(most), "fits": fits}


def joint_json(joint: Quotation) -> dict[str, Any]:
    """What several statements would be charged together; `first_refused` counts from 1."""
    return {
        "price": cost_json(joint.cost),
        "remaining": remaining_json(joint.remaining),
        **group_json(joint.after),
        "fits": joint.fits,
        "first_refused": None if joint.refused is None else joint.refused + 1,
    }


def _column_json(column: OutputColumn) -> dict[str, Any]:
    error = column.error
    if error is None:
        return {"name": column.name, "mechanism": None, "sensitivity": None, "stderr": None, "plus_minus_95": None}
    return {
        "name": column.name,
        "mechanism": error.mechanism,
        "sensitivity": {"l0": error.l0, "linf": error.linf, "l1": error.l1, "l2": error.l2},
        "stderr": error.stderr,
        "plus_minus_95": error.plus_minus_95,
        **({"ranks_95": error.ranks} if error.ranks is not None else {}),
        **({"apart_95": error.apart} if error.apart is not None else {}),
    }


def explanation_lines(explanation: Explanation) -> list[str]:
    """Price, errors and bounds of a query for people, one item a line; `sql_lines` has its SQL."""
    query = explanation.query
    lines = [f"Price: {_price_text(explanation)}", *_target_lines(explanation)]
    lines.append(f"Remaining: {_left(explanation.status.remaining, explanation.status.limit)}")
    lines += _group_lines("Remaining", explanation.quotation.shared)
    for column in query.columns:
        lines.append(f"Column {column.name} ({column.type.value}): {_error_text(column)}")
    for index, planned in enumerate(query.releases, start=1):
        lines += _release_lines(index, query, planned)
    told = query.consistent_with
    lines += [f"Consistent: adjusted to add up with your releases {', '.join(map(str, told))}"] if told else []
    lines += [f"Consistent: {number_of(query.unread, 'older release')} over the same rows not used"] * bool(
        query.unread
    )
    lines += [
        "Totals: adjusted by least squares to equal the sums of their parts; each ± is then smaller than shown here"
    ] * bool(query.sums)
    cut = bounding_notice(query)
    return lines + ([f"Bounding: {cut}"] if cut is not None else [])


def sql_lines(query: CompiledQuery) -> list[str]:
    """All SQL that a query runs, wrapped for a terminal."""
    lines: list[str] = []
    for index, planned in enumerate(query.releases, start=1):
        lines += [f"SQL of release {index}:", *_release_sql_lines(query, planned)]
    for read in query.reads(query.releases):
        lines += _wrapped("Public SQL:", read.sql)
    return lines + _wrapped("Post-processing SQL:", query.post_sql)


def joint_lines(explanations: Sequence[Explanation], joint: Quotation) -> list[str]:
    """What several statements would be charged together, and whether the budget covers them all."""
    asked = "nothing" if joint.cost.free else cost_text(joint.cost)
    if any(explanation.rounds for explanation in explanations):
        asked = f"at most {asked}"
    fits = "within the budget"
    if joint.refused is not None:
        fits = f"over the budget; statement {joint.refused + 1} is the first that exceeds it"
    if joint.cheap is not None:
        fits = f"one of them costs too little: {_least(joint)}"
    return [
        f"All {len(joint.charges)} statements together: {asked}, {fits}",
        f"Remaining after them: {_left(joint.remaining, joint.status.limit)}",
        *_group_lines("Remaining after them", joint.after),
    ]


def workload_lines(queries: Sequence[CompiledQuery], workload: Workload | None, joint: Quotation) -> list[str]:
    """What the queries of one message would buy, how each is answered from it, and the price of all."""
    lines = [*joint_lines((), joint), f"Workload: {_workload_text(workload)}"]
    bought = _bought(queries)
    for number, (query, planned) in enumerate(bought, start=1):
        lines += _release_lines(number, query, planned)
    places = {planned.key: number for number, (_, planned) in enumerate(bought, start=1)}
    for number, query in enumerate(queries, start=1):
        lines.append(f"Statement {number}: {' '.join(query.sql.split())}")
        lines.append(f"  {_sources_text(query, places)}")
        lines += [f"  Column {each.name} ({each.type.value}): {_error_text(each)}" for each in query.columns]
    for number, (query, planned) in enumerate(bought, start=1):
        lines += [f"SQL of release {number}:", *_release_sql_lines(query, planned)]
    return lines


def workload_json(queries: Sequence[CompiledQuery], workload: Workload | None, joint: Quotation) -> dict[str, Any]:
    """The same as JSON; `bought` of a statement counts its releases among those of the workload from 1."""
    bought = _bought(queries)
    places = {planned.key: number for number, (_, planned) in enumerate(bought, start=1)}
    return {
        **joint_json(joint),
        "together": workload is not None and workload.saves,
        "one_after_another": cost_json(joint.cost if workload is None else workload.alone),
        "engine_sql": [planned.sql for _, planned in bought],
        "statements": [
            {
                "sql": query.sql,
                "bought": sorted({places[planned.key] for planned in query.bought}),
                "derived_from": list(query.derived_from),
                "columns": [_column_json(column) for column in query.columns],
            }
            for query in queries
        ],
    }


def _bought(queries: Sequence[CompiledQuery]) -> list[tuple[CompiledQuery, PlannedRelease]]:
    """The releases that queries buy, each once, with a query that does."""
    pairs = {planned.key: (query, planned) for query in reversed(queries) for planned in reversed(query.bought)}
    return list(reversed(pairs.values()))


def _workload_text(workload: Workload | None) -> str:
    if workload is None:
        return "planned together only with dpsql.reuse = derived and without dpsql.target_error"
    if not workload.saves:
        return "no plan together costs less than one query after another"
    return f"planned together; one query after another would cost {cost_text(workload.alone)}"


def _sources_text(query: CompiledQuery, places: Mapping[str, int]) -> str:
    """Which releases of a workload, and which earlier ones, a query is answered from."""
    bought = sorted({places[planned.key] for planned in query.bought})
    told = [f"release {', '.join(map(str, bought))}"] if bought else []
    told += [f"your releases {', '.join(map(str, query.derived_from))}"] if query.derived_from else []
    return f"from {' and '.join(told)}" if told else "no private row is read"


def _group_lines(title: str, shared: GroupBalance | None) -> list[str]:
    return [] if shared is None else [f'{title} of group "{shared.group}": {_left(shared.remaining, shared.limit)}']


def _left(left: Remaining, limit: Limit) -> str:
    return (
        f"epsilon {decimal_text(left.epsilon)} of {decimal_text(limit.epsilon)}, "
        f"delta for private keys {decimal_text(left.delta)}"
    )


def _price_text(explanation: Explanation) -> str:
    if not explanation.query.releases:
        return "free, no private row is read"
    if explanation.cost.free:
        return f"free, {free_text(explanation.query, reused=explanation.reused)}"
    text = paid_text(explanation.query, explanation.cost)
    if explanation.cost.spent != explanation.spends:
        text += "; the rest reuses your earlier releases"
    if explanation.quotation.cheap is not None:
        return f"{text}, which is too little: {_least(explanation.quotation)}"
    return text if explanation.quotation.refused is None else f"{text}, over the budget"


def _least(quotation: Quotation) -> str:
    """Why a price is too small, and what would be enough."""
    refusal = quotation.cheap
    return "" if refusal is None else f"{refusal.message.removesuffix('; nothing was charged')} ({refusal.hint})"


def _target_lines(explanation: Explanation) -> list[str]:
    if explanation.target is None:
        return []
    if not explanation.rounds:
        return [f"Target {explanation.target}: met, at the smallest epsilon that is enough"]
    most, rounds = explanation.most, len(explanation.rounds)
    cost = "nothing" if most.cost.free else f"{cost_text(most.cost)} in {number_of(rounds, 'round')}"
    fits = "" if most.refused is None else ", over the budget"
    return [
        f"Target {explanation.target}: in rounds, each with at least twice the epsilon of the round before; "
        "price and plan are for the first",
        f"All rounds together: at most {cost}{fits}",
    ]


def _wrapped(title: str, sql: str) -> list[str]:
    """SQL over lines of a width that terminals have."""
    wrapped = textwrap.wrap(sql, 110, break_long_words=False, break_on_hyphens=False)
    return [title, *(f"    {line}" for line in wrapped)]


def _error_text(column: OutputColumn) -> str:
    return "no noise" if column.error is None else column.error.explained


def _release_lines(number: int, query: CompiledQuery, planned: PlannedRelease) -> list[str]:
    schema = ", enforced by the schema" if planned.contribution.one_row else ""
    lines = [f"Release {number}: {contribution_text(query, planned)}{schema}"]
    wide = (query.releases[total.wide] for total in query.wide_totals)
    if planned.key in {key for each in wide for key in (each.key, *(source.key for source in each.sources))}:
        lines.append("  measures how much the bounds drop (wide_share)")
    if planned.profiled is not None:
        lines.append(f"  bounds chosen by profile {planned.profiled.profile}: {planned.profiled.why}")
    if planned.form is not None:
        lines.append(f"  {planned.form}")
    if planned.selection is not None:
        why = "private keys" if planned.min_units == 1 else f"min_units = {planned.min_units}"
        never = f", and one of fewer than {planned.min_units} never" if planned.min_units > 1 else ""
        likely = number_of(planned.smallest_likely or 1, query.privacy_unit)
        lines.append(f"  {why}: a group of {likely} is shown with probability about 1/2{never}")
    return lines


def _release_sql_lines(query: CompiledQuery, planned: PlannedRelease) -> list[str]:
    lines: list[str] = []
    for each in planned.derived:
        first, *others = map(_name, each.sources)
        also = f", estimated also from {', '.join(others)}" if others else ""
        lines += _wrapped(f"  derived from {first} (r0{also}):", each.sql)
    if planned.derived:
        return [*lines, *(line for each in planned.bought for line in _release_sql_lines(query, each))]
    for made in planned.inputs:
        lines += _wrapped(f"  computed first, {_sources(query, made)}: {made.table}", made.sql)
    return lines + _wrapped("  engine SQL:", planned.sql)


def _name(source: PlannedRelease | HeldRelease) -> str:
    return "the purchased release" if isinstance(source, PlannedRelease) else f"release {source.number}"


def _sources(query: CompiledQuery, made: PlannedInput) -> str:
    """What an input of a release is made of, in words."""
    numbers = ", ".join(str(index + 1) for index in _indexes(query, made))
    named = [f"release {numbers}"] if numbers else []
    named += ["public rows"] if made.public_reads else []
    return "of " + (" and ".join(named) or "constants")


def _indexes(query: CompiledQuery, made: PlannedInput) -> list[int]:
    keys = [planned.key for planned in query.releases]
    return [keys.index(planned.key) for planned in made.releases]
