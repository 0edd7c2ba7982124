"""explain: plans, prices and errors in words and as JSON; from policy, plan and ledger alone."""

import textwrap
from collections.abc import Sequence
from typing import Any

from dpsql.compiler.outputs import GroupOutput, MeanOutput, ResponseOutput
from dpsql.compiler.planned import CompiledQuery, OutputColumn, PlannedInput, PlannedRelease
from dpsql.engine import Answer, Explanation
from dpsql.ledger import GroupBalance
from dpsql.prices import Cost, Quotation
from dpsql.privacy.accounting import Limit, Remaining
from dpsql.privacy.selection import Threshold
from dpsql.release import Cut
from dpsql.system import decimal_text
from dpsql.target import ErrorTarget, Measure, Pursuit


def number(value: float) -> str:
    """A number for people."""
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


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
        "fits": explanation.quotation.refused is None,
        **target,
        "columns": [_column_json(column) for column in query.columns],
        "forms": [{"prepared": each.contribution.copied, "why": each.form} for each in query.releases],
        "engine_sql": [planned.sql for planned in query.releases] + [read.sql for read in query.reads(query.releases)],
        "made_first": [
            {"release": index, "table": made.table, "of_releases": _indexes(query, made), "sql": made.sql}
            for index, planned in enumerate(query.releases)
            for made in planned.inputs
        ],
        "bounding": bounding_notice(query),
        "post_sql": query.post_sql,
    }


def _target_json(explanation: Explanation) -> dict[str, Any]:
    most = explanation.dearest
    fits, rounds = explanation.most.refused is None, len(explanation.charged)
    return {"error": explanation.target, "rounds": rounds, "most": cost_json(most), "fits": fits}


def joint_json(joint: Quotation) -> dict[str, Any]:
    """What several statements would be charged together; `first_refused` counts from 1."""
    return {
        "price": cost_json(joint.cost),
        "remaining": remaining_json(joint.remaining),
        **group_json(joint.after),
        "fits": joint.refused is None,
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


def explanation_lines(explanation: Explanation, *, sql: bool = True) -> list[str]:
    """A plan for people, a line an item.

    Args:
        explanation: The plan, and what it would be charged.
        sql: Whether the SQL that would be run is told, too.
    """
    query = explanation.query
    lines = [f"Price: {_price_text(explanation)}", *_target_lines(explanation)]
    lines.append(f"Remaining: {_left(explanation.status.remaining, explanation.status.limit)}")
    lines += _group_lines("Remaining", explanation.quotation.shared)
    for column in query.columns:
        lines.append(f"Column {column.name} ({column.type.value}): {_error_text(column)}")
    for index, planned in enumerate(query.releases):
        lines += _release_lines(index, planned)
        lines += _release_sql_lines(query, planned) if sql else []
    for read in query.reads(query.releases) if sql else ():
        lines += _wrapped("Public SQL:", read.sql)
    cut = bounding_notice(query)
    lines += [f"Bounding: {cut}"] if cut is not None else []
    return lines + (_wrapped("Post-processing SQL:", query.post_sql) if sql else [])


def joint_lines(explanations: Sequence[Explanation], joint: Quotation) -> list[str]:
    """What several statements would be charged together, and whether the budget covers them all."""
    asked = "nothing" if joint.cost.free else cost_text(joint.cost)
    if any(explanation.rounds for explanation in explanations):
        asked = f"at most {asked}"
    fits = "which the budget covers"
    if joint.refused is not None:
        fits = f"which the budget does not cover; statement {joint.refused + 1} is the first that does not fit"
    return [
        f"All {len(joint.charges)} statements together: {asked}, {fits}",
        f"Remaining after them: {_left(joint.remaining, joint.status.limit)}",
        *_group_lines("Remaining after them", joint.after),
    ]


def _group_lines(title: str, shared: GroupBalance | None) -> list[str]:
    return [] if shared is None else [f'{title} of group "{shared.group}": {_left(shared.remaining, shared.limit)}']


def _left(left: Remaining, limit: Limit) -> str:
    return (
        f"epsilon {decimal_text(left.epsilon)} of {decimal_text(limit.epsilon)}, "
        f"delta for private keys {decimal_text(left.delta)}"
    )


def _price_text(explanation: Explanation) -> str:
    if not explanation.query.releases:
        return "nothing, no private row is read"
    if explanation.cost.free:
        return "free, your earlier release" if explanation.reused else "nothing, there is no noise"
    text = cost_text(explanation.cost)
    if explanation.cost.spent != explanation.spends:
        text += "; the rest is in your earlier releases"
    return text if explanation.quotation.refused is None else f"{text}, which the budget does not cover"


def _target_lines(explanation: Explanation) -> list[str]:
    if explanation.target is None:
        return []
    if not explanation.rounds:
        return [f"Target {explanation.target}: met, by the least epsilon that meets it"]
    most, rounds = explanation.most, len(explanation.rounds)
    cost = "nothing" if most.cost.free else f"{cost_text(most.cost)} in {rounds} round{'s' if rounds > 1 else ''}"
    fits = "" if most.refused is None else ", more than the budget covers"
    return [
        f"Target {explanation.target}: in rounds, each of at least twice the epsilon of the one before; "
        "the price and the plan are those of the first",
        f"All rounds together: at most {cost}{fits}",
    ]


def _wrapped(title: str, sql: str) -> list[str]:
    """SQL over lines of a width that terminals have."""
    wrapped = textwrap.wrap(sql, 110, break_long_words=False, break_on_hyphens=False)
    return [title, *(f"    {line}" for line in wrapped)]


def _error_text(column: OutputColumn) -> str:
    error = column.error
    if error is None:
        return "not noisy by itself"
    l2 = f"L0 {error.l0}, L1 {number(error.l1)}, L2 {number(error.l2)}"
    if error.ranks is not None:
        return f"a value within {error.ranks} ranks of the one asked for, at 95 %; chosen by rank, {l2}"
    if isinstance(error.output, ResponseOutput | GroupOutput):
        return f"{error.mechanism} noise on counts of randomized answers, {l2}; its error is that of the answers, too"
    if error.apart is not None:
        counts = f"of two whose counts or sums are {number(error.apart)} apart the right one comes first"
        return f"picked; {counts}, at 95 %; by the mechanism {error.mechanism}, {l2}"
    if error.plus_minus_95 is None:
        sums = "a centred sum" if isinstance(error.output, MeanOutput) else "centred sums"
        return f"{error.mechanism} noise on {sums} and a count, {l2}; its error falls with the group's size"
    return f"± {number(error.plus_minus_95)} at 95 %, {error.mechanism} noise, {l2}"


def _in_each(planned: PlannedRelease) -> str:
    """The limits in each group, where rows are limited over all of them, too."""
    bounds = planned.contribution
    return f"{bounds.max_rows} in each{f' of {bounds.max_groups} groups' if planned.limits_groups else ''}"


def _release_lines(index: int, planned: PlannedRelease) -> list[str]:
    bounds = planned.contribution
    if bounds.lists is not None:
        touched = f"{bounds.max_groups} groups, for each of their keys" if bounds.grouped else "each key"
        counted = f"keys are picked; one unit counts in {touched} with {bounds.max_rows} rows"
    elif bounds.copied:
        counted = f"{bounds.max_rows} rows of one unit count, in all groups together"
    elif not bounds.grouped:
        counted = f"{bounds.max_rows} rows of one unit count"
    elif bounds.all_rows is not None:
        counted = f"{bounds.all_rows} rows of one unit count in all groups together, {_in_each(planned)}"
    else:
        counted = f"one unit counts in {bounds.max_groups} groups, with {bounds.max_rows} rows in each"
    lines = [f"Release {index + 1}: {counted}{', enforced by the schema' if bounds.one_row else ''}"]
    if bounds.all_rows is not None:
        lines.append("  these are fewer rows than those that max_groups and max_rows_per_group allow: less noise")
    if planned.form is not None:
        lines.append(f"  {planned.form}")
    if planned.selection is not None:
        selection = planned.selection
        size = selection.cutoff if isinstance(selection, Threshold) else selection.smallest_likely
        lines.append(f"  private keys: a group of {size} units is shown about every second time")
    return lines


def _release_sql_lines(query: CompiledQuery, planned: PlannedRelease) -> list[str]:
    lines: list[str] = []
    for made in planned.inputs:
        lines += _wrapped(f"  made first, {_sources(query, made)}: {made.table}", made.sql)
    return lines + _wrapped("  engine SQL:", planned.sql)


def _sources(query: CompiledQuery, made: PlannedInput) -> str:
    """What an input of a release is made of, in words."""
    numbers = ", ".join(str(index + 1) for index in _indexes(query, made))
    named = [f"release {numbers}"] if numbers else []
    named += ["public rows"] if made.public_reads else []
    return "of " + (" and ".join(named) or "constants")


def _indexes(query: CompiledQuery, made: PlannedInput) -> list[int]:
    keys = [planned.key for planned in query.releases]
    return [keys.index(planned.key) for planned in made.releases]


def cost_text(cost: Cost) -> str:
    """A cost for people."""
    text = f"epsilon {decimal_text(cost.epsilon)}"
    if cost.accountant.shares_rho:
        text += f" (rho {decimal_text(cost.spent.rho)})"
    return text + (f", delta {decimal_text(cost.delta)}" if cost.delta else "")


def charge_text(answer: Answer) -> str | None:
    """What an answer cost and what is left; None where nothing was released."""
    charge, cost = answer.charge, answer.cost
    if charge is None or cost is None:
        return None
    price = cost_text(cost)
    if cost.free:
        price = "free, your earlier release" if answer.reused else "nothing, there is no noise"
    price += f" for {len(answer.earlier) + 1} rounds" if answer.earlier else ""
    left = decimal_text(charge.remaining.epsilon, 4)
    parts = [f"price: {price}", f"remaining: epsilon {left} of {decimal_text(charge.limit.epsilon)}"]
    if charge.shared is not None:
        shared, name = decimal_text(charge.shared.remaining.epsilon, 4), charge.shared.group
        parts.append(f'remaining of group "{name}": epsilon {shared} of {decimal_text(charge.shared.limit.epsilon)}')
    return "; ".join(parts)


def choice_texts(columns: Sequence[OutputColumn]) -> list[str]:
    """How exact values are that were chosen, not counted."""
    ranks = [f"{c.name} ± {e.ranks}" for c in columns if (e := c.error) and e.ranks is not None]
    apart = [f"{c.name} by {number(e.apart)}" for c in columns if (e := c.error) and e.apart is not None]
    texts = []
    if ranks:
        texts.append("95 % of choices within, in ranks: " + ", ".join(ranks))
    if apart:
        texts.append("95 % in the right order where counts or sums are apart: " + ", ".join(apart))
    return texts


def answer_notice(answer: Answer, pursuit: Pursuit | None = None, *, intervals: bool) -> str | None:
    """What an answer cost, what is left and how exact it is; None where nothing was released.

    Args:
        answer: The answer.
        pursuit: The rounds it is the last of, if there was a target.
        intervals: Whether the rows say themselves how exact they are.
    """
    paid = charge_text(answer)
    if paid is None:
        return None
    errors = [f"{c.name} ± {number(e.plus_minus_95)}" for c in answer.columns if (e := c.error) and e.plus_minus_95]
    means = [c.name for c in answer.columns if (e := c.error) and e.plus_minus_95 is e.ranks is e.apart is None]
    parts = [paid]
    if errors:
        parts.append("95 % of noise within: " + ", ".join(errors))
    parts += choice_texts(answer.columns)
    if pursuit is not None:
        parts.append(target_text(pursuit))
    if means and not intervals:
        parts.append(f"{', '.join(means)}: more exact in larger groups (SET dpsql.intervals = on)")
    return "; ".join(parts)


def target_text(pursuit: Pursuit) -> str:
    """How the announced intervals stand to the target, column by column."""
    told = ", ".join(f"{measure.name} {_reached(measure, pursuit.target)}" for measure in pursuit.measures)
    of_what = " of the median size" if pursuit.target.relative else ""
    return f"target {pursuit.target.text}{of_what} {'met' if pursuit.failure is None else 'missed'}: {told}"


def _reached(measure: Measure, target: ErrorTarget) -> str:
    if measure.margin is None or measure.size is None:
        return "without a value"
    if not target.relative:
        return f"± {number(measure.margin)}"
    return f"± {number(100 * target.bound * measure.ratio)} %" if measure.size else f"± {number(measure.margin)} of 0"


def bounding_notice(query: CompiledQuery, cuts: Sequence[Cut] = ()) -> str | None:
    """What bounding may cut, from the policy alone, and what it did cut where that was counted; None where nothing."""
    told = [text for text in (_rows_cut(query), _values_cut(query)) if text is not None]
    told += [f"that concerns about {number(cut.units)} units (± {number(cut.margin)})" for cut in cuts]
    return "; ".join(told) or None


def _rows_cut(query: CompiledQuery) -> str | None:
    """Which rows may be cut off; None where the schema lets a unit have one only."""
    for planned in query.releases:
        bounds = planned.contribution
        if bounds.one_row:
            continue
        if bounds.lists is not None:
            touched = f"{bounds.max_groups} groups and " if bounds.grouped else ""
            return f"of one unit at most {touched}{bounds.max_rows} rows of each key that is picked from are counted"
        if bounds.all_rows is not None:
            return f"of one unit at most {bounds.all_rows} rows are counted, and {_in_each(planned)}"
        if bounds.grouped and not bounds.copied:
            return f"of one unit at most {bounds.max_groups} groups and {bounds.max_rows} rows in each are counted"
        return f"of one unit at most {bounds.max_rows} rows are counted"
    return None


def _values_cut(query: CompiledQuery) -> str | None:
    """Whether values may be moved; None where nothing is added up."""
    parts = (planned.part for release in query.releases for planned in release.parts)
    return "values beyond their limits are moved to them" if any(part.grid is not None for part in parts) else None
