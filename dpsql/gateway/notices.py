"""notices: what an answer says of itself, in words: its price, its 95 % intervals, and what bounding may cut."""

import math
from collections.abc import Sequence
from typing import Any

from dpsql.compiler.aggregates.base import margin_text, number_text
from dpsql.compiler.plan.query_plan import CompiledQuery, OutputColumn, PlannedRelease
from dpsql.gateway.answers import Answer
from dpsql.gateway.confidence_intervals import AnswerColumn, ColumnMargin, ConfidenceInterval, column_margins
from dpsql.gateway.dropped import Dropped
from dpsql.gateway.prices import Cost
from dpsql.gateway.settings import ErrorTarget
from dpsql.gateway.target import Measure, Pursuit
from dpsql.gateway.workloads import Workload
from dpsql.privacy.conversion import decimal_text

_MOST_PLACES = 12
_MOST_NUMBERS = 5
"""Releases whose numbers are told."""


def value_text(value: Any, interval: ConfidenceInterval) -> str:
    """A noisy number and half its interval; the number has the decimal places of the half."""
    number = float(value)
    margin = interval.margin(number)
    if margin == 0 or not math.isfinite(margin):
        return f"{number:,.6g} ± {margin_text(margin)}"
    whole = number.is_integer() and margin.is_integer()
    places = min(max(0, 1 - math.floor(math.log10(margin))), _MOST_PLACES)
    return f"{number:,.{0 if whole else places}f} ± {margin_text(margin)}"


def cost_text(cost: Cost) -> str:
    """A cost for people."""
    text = f"epsilon {decimal_text(cost.epsilon)}"
    if cost.accountant.shares_rho:
        text += f" (rho {decimal_text(cost.spent.rho)})"
    return text + (f", delta {decimal_text(cost.delta)}" if cost.delta else "")


def charge_text(answer: Answer) -> str | None:
    """The cost of an answer and the remaining budget; None if nothing was released."""
    charge, cost = answer.charge, answer.cost
    if charge is None or cost is None:
        return None
    price = paid_text(answer.query, cost)
    if cost.free:
        price = f"free, {free_text(answer.query, reused=answer.reused)}"
    price += f" for {len(answer.earlier) + 1} rounds" if answer.earlier else ""
    left = decimal_text(charge.remaining.epsilon, 4)
    parts = [f"price: {price}", f"remaining: epsilon {left} of {decimal_text(charge.limit.epsilon)}"]
    if charge.shared is not None:
        shared, name = decimal_text(charge.shared.remaining.epsilon, 4), charge.shared.group
        parts.append(f'remaining of group "{name}": epsilon {shared} of {decimal_text(charge.shared.limit.epsilon)}')
    return "; ".join(parts)


def workload_notice(workload: Workload) -> str:
    """What queries that are planned together were charged."""
    now = "" if workload.paid == workload.cost else f"; charged now: {cost_text(workload.paid)}"
    return (
        f"{len(workload.queries)} queries planned together; price of all: {cost_text(workload.cost)}; "
        f"one after another: {cost_text(workload.alone)}{now}"
    )


def free_text(query: CompiledQuery, *, reused: bool) -> str:
    """Why an answer is free, or which releases it is derived from, and the error and price of a full release."""
    anew = query.anew
    if anew is None or anew.price is None:
        return "your earlier release" if reused else "the answer has no noise"
    widths = [f"{c.name} ± {margin_text(e.plus_minus_95)}" for c in anew.columns if (e := c.error) and e.plus_minus_95]
    told = f"{', '.join(widths)} " if widths else ""
    return f"derived from {_releases(query)} (computed anew: {told}for epsilon {decimal_text(anew.price.epsilon)})"


def paid_text(query: CompiledQuery, cost: Cost) -> str:
    """The price of an answer, and the user's releases that it is combined with."""
    anew = query.anew
    if anew is None or anew.price is None:
        return cost_text(cost)
    price = decimal_text(anew.price.epsilon)
    return f"{cost_text(cost)} combined with {_releases(query, 'your ')} (computed anew: epsilon {price})"


def _releases(query: CompiledQuery, whose: str = "") -> str:
    """The releases that a query is derived of: their numbers, or how many they are."""
    numbers = query.derived_from
    if len(numbers) > _MOST_NUMBERS:
        return f"{len(numbers)} of your releases"
    return f"{whose}release{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def choice_texts(columns: Sequence[OutputColumn]) -> list[str]:
    """How exact values are that were chosen, not counted."""
    ranks = [f"{c.name} ± {e.ranks} ranks" for c in columns if (e := c.error) and e.ranks is not None]
    apart = [f"{margin_text(e.apart)} in {c.name}" for c in columns if (e := c.error) and e.apart is not None]
    texts = []
    if ranks:
        texts.append(f"{', '.join(ranks)} (95 %)")
    if apart:
        texts.append(
            f"the order of two keys is reliable if their counts or sums differ by at least {', '.join(apart)} (95 %)"
        )
    return texts


def answer_notice(answer: Answer, pursuit: Pursuit | None = None, *, calibrated: bool) -> str | None:
    """The notice: first what makes an answer worse than it looks, then price, remaining budget and errors; or None.

    Args:
        answer: The answer.
        pursuit: The rounds it is the last of, if there was a target.
        calibrated: Whether values are raised by what bounds drop.
    """
    paid = charge_text(answer)
    if paid is None:
        return None
    margins = column_margins(answer)
    told = {margin.name for margin in margins}
    means = [c.name for c in answer.columns if (e := c.error) and e.plus_minus_95 is e.ranks is e.apart is None]
    untold = [name for name in means if name not in told]
    target = [] if pursuit is None else [target_text(pursuit)]
    missed = pursuit is not None and pursuit.failure is not None
    drops = dropped_text(answer.query, answer.rows.dropped, calibrated=calibrated)
    first = [empty_text(answer), compared_text(answer), drops]
    worse = [text for text in first if text is not None]
    parts = [*(target if missed else []), *worse, *inexact_texts(margins), *_caveats(answer.query), paid]
    if margins:
        parts.append(f"{', '.join(map(_margin_text, margins))} ({covers_text(margins)})")
    parts += choice_texts(answer.columns)
    parts += [] if missed else target
    if untold:
        parts.append(f"the ± of {', '.join(untold)} depends on the group's size")
    if others := answer.query.consistent_with:
        parts.append(f"adds up with your releases up to {max(others + answer.query.derived_from)}")
    if unread := answer.query.unread:
        parts.append(f"{number_of(unread, 'older release')} over the same rows not used: only the newest add up")
    return "; ".join(parts)


def _margin_text(margin: ColumnMargin) -> str:
    """The least and the largest half of the intervals of a column."""
    ends = map(margin_text, (margin.least, margin.greatest))
    return f"{margin.name} ± {' to ± '.join(dict.fromkeys(ends))}"


def covers_text(columns: Sequence[ColumnMargin | AnswerColumn]) -> str:
    """What a ± or an error bar covers, and for which columns it covers the noise only."""
    alone = list(dict.fromkeys(column.name for column in columns if not column.covers_drops))
    if not alone:
        return "95 %"
    if not any(column.covers_drops for column in columns):
        return "95 %, noise only"
    return f"95 %; for {', '.join(alone)}: noise only"


def inexact_texts(margins: Sequence[ColumnMargin]) -> list[str]:
    """In how many rows a column's ± is large, where it differs from row to row."""
    return [
        f"{margin.name} is worse than ± 10 % in {margin.inexact} of {margin.rows} rows"
        for margin in margins
        if margin.inexact and margin.least < margin.greatest
    ]


def compared_text(answer: Answer) -> str | None:
    """That rows were compared with released groups of which none is shown, or most may be noise alone; or None."""
    if answer.rows.compared is None:
        return None
    faint, groups = answer.rows.compared
    if not groups:
        return "none of the groups that rows are compared with is shown"
    told = f"{faint:,} of the {groups:,} released groups that rows are compared with may be noise alone"
    return told if 2 * faint > groups else None


def empty_text(answer: Answer) -> str | None:
    """Why an answer with selected groups has no row; None if it has one, or if all groups are shown."""
    sizes = [size for planned in answer.query.releases if (size := planned.smallest_likely) is not None]
    if answer.rows.rows or not sizes:
        return None
    likely = number_of(max(sizes), answer.query.privacy_unit)
    return f"no group is shown: a group of {likely} is shown with probability about 1/2"


def target_text(pursuit: Pursuit) -> str:
    """The announced intervals compared with the target, column by column."""
    told = ", ".join(f"{measure.name} {_reached(measure, pursuit.target)}" for measure in pursuit.measures)
    of_what = " of the median size" if pursuit.target.relative else ""
    return f"target {pursuit.target.text}{of_what} {'met' if pursuit.failure is None else 'missed'}: {told}"


def _reached(measure: Measure, target: ErrorTarget) -> str:
    if measure.margin is None or measure.size is None:
        return "without a value"
    if not target.relative:
        return f"± {number_text(measure.margin)}"
    return (
        f"± {number_text(100 * target.bound * measure.ratio)} %"
        if measure.size
        else f"± {number_text(measure.margin)} of 0"
    )


def bounding_notice(query: CompiledQuery, dropped: Sequence[Dropped] = ()) -> str | None:
    """What bounding may cut, from the policy alone, and how much it dropped where that is told; None for neither.

    Args:
        query: The query.
        dropped: What wide totals tell.
    """
    told = [text for text in (_rows_cut(query), _values_cut(query), _groups_hidden(query)) if text is not None]
    told += [_dropped_of(query, each) for each in dropped if each.is_material]
    return "; ".join(told) or None


def dropped_text(query: CompiledQuery, dropped: Sequence[Dropped], *, calibrated: bool) -> str | None:
    """How much bounds drop, or may drop where noise hides it, and which bound decides it; None where that is small.

    Args:
        query: The query.
        dropped: What wide totals tell.
        calibrated: Whether values are corrected for it.
    """
    worst = max((each for each in dropped if each.is_material), key=lambda each: each.share, default=None)
    if worst is not None:
        kinds = _raised(query, dropped) if calibrated else []
        raised = f"; {' and '.join(kinds)} are corrected for it" if kinds else ""
        return f"about {_share_text(worst)} {_dropped_by(query, worst)}{raised}"
    most = max((each for each in dropped if each.is_hidden), key=lambda each: each.share + each.margin, default=None)
    if most is None:
        return None
    at_most = f"{100 * (most.share + most.margin):.2g} %"
    return f"at most {at_most} {_dropped_by(query, most)}; intervals do not allow for it"


def _raised(query: CompiledQuery, dropped: Sequence[Dropped]) -> list[str]:
    """What is raised, in words: counts, sums, means."""
    told = {(each.release, each.cell) for each in dropped if each.is_material}
    errors = [error for column in query.columns for error in column.errors]
    raised = (e.estimate.kind for e in errors if (e.release, e.estimate.raised_cell) in told)
    return [f"{kind.removeprefix('a ')}s" for kind in dict.fromkeys(raised)]


def _dropped_by(query: CompiledQuery, dropped: Dropped) -> str:
    """What is dropped, and the bound that drops it."""
    planned = query.releases[dropped.release]
    what = planned.counted(dropped.cell)
    verb = "is" if what == "sum" else "are"
    return f"of the {what} {verb} dropped by {planned.bounds_text(dropped.cell)}"


def _dropped_of(query: CompiledQuery, dropped: Dropped) -> str:
    """The share that is dropped of a cell, which goes by the names of the columns that are made of it."""
    errors = ((column.name, error) for column in query.columns for error in column.errors)
    names = [n for n, e in errors if e.release == dropped.release and dropped.cell in e.estimate.cells]
    of_columns = f" of {', '.join(dict.fromkeys(names))}" if names else ""
    counted = query.releases[dropped.release].counted(dropped.cell)
    return f"dropped{of_columns}: about {_share_text(dropped)} of the {counted}"


def _caveats(query: CompiledQuery) -> list[str]:
    """What an answer is made of that its SQL does not tell.

    Sums lack rows that they would have without a prepared table: over a table, a unit's sum of all rows counts, clamped
    to what `max_rows` rows can add up to. A subquery has rows of groups that PostgreSQL would not have.
    """
    rows = [
        planned.contribution.rows_per_group
        for planned in query.releases
        if planned.contribution.copied and any(made.primitive.sums_values for made in planned.primitives)
    ]
    most = number_of(max(rows, default=0), "row")
    copied = (
        f"sums include at most {most} per {query.privacy_unit}, from the prepared table "
        "(SET dpsql.max_error_ratio = 0 reads all rows)"
    )
    listed = "all listed groups are combined, also those without rows (HAVING COUNT(*) > 0 drops half of these)"
    apart = (
        "totals are separate releases: they can differ from the sums of their parts, whose bounds can keep other rows"
    )
    times = query.combines
    estimated = any(made.merged for planned in query.releases for made in planned.derived)
    means = f"estimated from {times} releases" if estimated else f"asked {times} times"
    chosen = f"{means}: intervals are too narrow if this query was chosen because of earlier answers"
    reads_released = any(made.releases for planned in query.releases for made in planned.inputs)
    inner = "intervals do not include the noise of values that are released first"
    told = (bool(rows), query.adds_up_listed, query.sums_differ, reads_released, times > 1)
    texts = [text for text, is_told in zip((copied, listed, apart, inner, chosen), told, strict=True) if is_told]
    return [*_made_rows(query), *texts]


def _made_rows(query: CompiledQuery) -> list[str]:
    """That a unit has more rows than its table has, where bounds may drop most of them. No wide total tells this."""
    bounded = next((each for each in query.releases if not each.contribution.one_row), None)
    if query.copies == 1 or bounded is None:
        return []
    kept = contribution_text(query, bounded).removeprefix("contribution bound: ")
    return [f"series, VALUES or UNNEST make up to {query.copies:,} rows of each row, and bounds count these: {kept}"]


def _share_text(dropped: Dropped) -> str:
    return f"{100 * dropped.share:.2g} % (± {100 * dropped.margin:.2g} %)"


def _rows_cut(query: CompiledQuery) -> str | None:
    """Which rows may be cut off; None where the schema lets a unit have one only."""
    bounded = next((each for each in query.releases if not each.contribution.one_row), None)
    if bounded is None:
        return None
    drops = dict.fromkeys(each.profiled.dropped for each in query.releases if each.profiled is not None)
    return "; ".join(
        [contribution_text(query, bounded), *(f"the profile expects these bounds to drop {each}" for each in drops)]
    )


def contribution_text(query: CompiledQuery, planned: PlannedRelease) -> str:
    """What one unit, by the policy's word for it, contributes to a release."""
    bounds, per_unit = planned.contribution, f"per {query.privacy_unit}"
    rows, groups = number_of(bounds.rows_per_group, "row"), number_of(bounds.groups_per_unit, "group")
    if bounds.lists is not None:
        touched = f"{groups}, and " if bounds.grouped else ""
        told = f"{touched}{rows} {per_unit} of each candidate key"
    elif bounds.copied:
        told = f"{rows} {per_unit}, in all groups"
    elif not bounds.grouped:
        told = f"{rows} {per_unit}"
    elif bounds.one_group:
        told = f"{rows} {per_unit}, all in one group"
    elif bounds.rows_per_unit is not None:
        in_each = f", {bounds.rows_per_group} in each group" if bounds.rows_per_group != bounds.rows_per_unit else ""
        in_groups = f", in {groups}" if planned.limits_groups else ""
        told = f"{number_of(bounds.rows_per_unit, 'row')} {per_unit}{in_each}{in_groups}"
    else:
        told = f"{groups} {per_unit}, and {rows} in each"
    return f"contribution bound: {told}"


def number_of(count: int, noun: str) -> str:
    """A number of things, in the singular if it is one."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _groups_hidden(query: CompiledQuery) -> str | None:
    """The policy's minimum frequency rule; None where there is none."""
    least = max((planned.min_units for planned in query.releases), default=1)
    return None if least == 1 else f"min_units: groups of fewer than {least} {query.privacy_unit}s are not shown"


def _values_cut(query: CompiledQuery) -> str | None:
    """Whether values may be moved; None where nothing is added up."""
    primitives = (planned.primitive for release in query.releases for planned in release.primitives)
    return (
        "values are clamped to their declared bounds"
        if any(primitive.grid is not None for primitive in primitives)
        else None
    )
