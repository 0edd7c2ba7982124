"""explain: plans, prices and errors in words and as JSON; from policy, plan and ledger alone."""

import textwrap
from typing import Any

from dpsql.compiler.parts import MeanOutput
from dpsql.compiler.plan import CompiledQuery, OutputColumn, PlannedInput, PlannedRelease
from dpsql.engine import Answer, Explanation
from dpsql.privacy.accounting import Remaining, Spent
from dpsql.privacy.cost import Price
from dpsql.privacy.selection import Threshold
from dpsql.system import decimal_text


def number(value: float) -> str:
    """A number for people."""
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def price_json(price: Price | None, spent: Spent) -> dict[str, float | None]:
    """A price as JSON: what is asked in the budget's currency, and what the events come to."""
    if price is None:
        return {"epsilon": 0.0, "delta": 0.0, "rho": 0.0}
    delta = spent.basic_delta if price.accountant.converts else spent.delta
    return {"epsilon": float(price.epsilon), "delta": float(delta), "rho": float(spent.rho)}


def remaining_json(remaining: Remaining) -> dict[str, float]:
    """What is left, as JSON."""
    return {"epsilon": float(remaining.epsilon), "delta": float(remaining.delta)}


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """The shape of `dpsql explain --format json`."""
    query = explanation.query
    return {
        "price": price_json(query.price, explanation.spends),
        "remaining": remaining_json(explanation.remaining),
        "columns": [_column_json(column) for column in query.columns],
        "engine_sql": [planned.sql for planned in query.releases] + [read.sql for read in query.reads(query.releases)],
        "made_first": [
            {"release": index, "table": made.table, "of_releases": _indexes(query, made), "sql": made.sql}
            for index, planned in enumerate(query.releases)
            for made in planned.inputs
        ],
        "post_sql": query.post_sql,
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
    }


def explanation_lines(explanation: Explanation) -> list[str]:
    """A plan for people, a line an item."""
    query = explanation.query
    lines = [f"Price: {price_text(query.price, explanation.spends)}"]
    left = explanation.remaining
    lines.append(
        f"Remaining: epsilon {decimal_text(left.epsilon)} of {decimal_text(explanation.status.limit.epsilon)}, "
        f"delta for private keys {decimal_text(left.delta)}"
    )
    for column in query.columns:
        lines.append(f"Column {column.name} ({column.type.value}): {_error_text(column)}")
    for index, planned in enumerate(query.releases):
        lines += _release_lines(index, planned)
        for made in planned.inputs:
            lines += _wrapped(f"  made first, {_sources(query, made)}: {made.table}", made.sql)
        lines += _wrapped("  engine SQL:", planned.sql)
    for read in query.reads(query.releases):
        lines += _wrapped("Public SQL:", read.sql)
    return lines + _wrapped("Post-processing SQL:", query.post_sql)


def _wrapped(title: str, sql: str) -> list[str]:
    """SQL over lines of a width that terminals have."""
    wrapped = textwrap.wrap(sql, 110, break_long_words=False, break_on_hyphens=False)
    return [title, *(f"    {line}" for line in wrapped)]


def _error_text(column: OutputColumn) -> str:
    error = column.error
    if error is None:
        return "not noisy by itself"
    l2 = f"L0 {error.l0}, L1 {number(error.l1)}, L2 {number(error.l2)}"
    if error.plus_minus_95 is None:
        return f"{error.mechanism} noise on a centred sum and a count, {l2}; its error falls with the group's size"
    return f"± {number(error.plus_minus_95)} at 95 %, {error.mechanism} noise, {l2}"


def _release_lines(index: int, planned: PlannedRelease) -> list[str]:
    bounds = planned.contribution
    if not bounds.grouped:
        counted = f"{bounds.max_rows} rows of one unit count"
    else:
        counted = f"one unit counts in {bounds.max_groups} groups, with {bounds.max_rows} rows in each"
    lines = [f"Release {index + 1}: {counted}{', enforced by the schema' if bounds.one_row else ''}"]
    if planned.selection is not None:
        size = planned.selection.cutoff if isinstance(planned.selection, Threshold) else None
        size = planned.selection.smallest_likely if not isinstance(planned.selection, Threshold) else size
        lines.append(f"  private keys: a group of {size} units is shown about every second time")
    return lines


def _sources(query: CompiledQuery, made: PlannedInput) -> str:
    """What an input of a release is made of, in words."""
    numbers = ", ".join(str(index + 1) for index in _indexes(query, made))
    named = [f"release {numbers}"] if numbers else []
    named += ["public rows"] if made.public_reads else []
    return "of " + (" and ".join(named) or "constants")


def _indexes(query: CompiledQuery, made: PlannedInput) -> list[int]:
    keys = [planned.key for planned in query.releases]
    return [keys.index(planned.key) for planned in made.releases]


def price_text(price: Price | None, spent: Spent) -> str:
    """A price for people."""
    if price is None:
        return "nothing, no private row is read"
    text = f"epsilon {decimal_text(price.epsilon)}"
    if price.accountant.shares_rho:
        text += f" (rho {decimal_text(spent.rho)})"
    delta = spent.basic_delta if price.accountant.converts else spent.delta
    return text + (f", delta {decimal_text(delta)}" if delta else "")


def answer_notice(answer: Answer, *, intervals: bool) -> str | None:
    """What an answer cost, what is left and how exact it is; None where nothing was released.

    Args:
        answer: The answer.
        intervals: Whether the rows say themselves how exact they are.
    """
    charge = answer.charge
    if charge is None:
        return None
    price = "free, your earlier release" if charge.free else price_text(answer.query.price, charge.price)
    left = decimal_text(charge.remaining.epsilon, 4)
    errors = [f"{c.name} ± {number(e.plus_minus_95)}" for c in answer.columns if (e := c.error) and e.plus_minus_95]
    means = [c.name for c in answer.columns if c.error is not None and isinstance(c.error.output, MeanOutput)]
    parts = [f"price: {price}", f"remaining: epsilon {left} of {decimal_text(charge.limit.epsilon)}"]
    if errors:
        parts.append("95 % of noise within: " + ", ".join(errors))
    if means and not intervals:
        parts.append(f"{', '.join(means)}: more exact in larger groups (SET dpsql.intervals = on)")
    return "; ".join(parts)


def bounding_notice(query: CompiledQuery) -> str | None:
    """What bounding may cut, from the policy alone; None where the schema rules it out."""
    for planned in query.releases:
        bounds = planned.contribution
        if bounds.one_row:
            continue
        if bounds.grouped:
            return f"of one unit at most {bounds.max_groups} groups and {bounds.max_rows} rows in each are counted"
        return f"of one unit at most {bounds.max_rows} rows are counted"
    return None
