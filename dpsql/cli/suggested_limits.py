"""suggested_limits: bounds from the data, with noise and charged to the cap, or exact and recorded."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from dpsql.backends import open_backend
from dpsql.cli.exact import EXACT_WARNING
from dpsql.cli.options import exact_number, opened_ledger
from dpsql.cli.toml_text import key_text, limit_text, quoted_text, type_text
from dpsql.compiler.plan.suggestion import Wanted, searchable
from dpsql.errors import InvalidParameter
from dpsql.gateway.explain import cost_json, remaining_json
from dpsql.gateway.owner_reads import Suggested, Suggester, Suggestion
from dpsql.policy import Bound, Policy, PolicyColumn, Table, load_policy
from dpsql.policy.model import CONTRIBUTION_BOUNDS
from dpsql.privacy.conversion import decimal_text

_QUANTILE = "0.95"


def suggest_limits(
    policy: Path,
    ledger: str | None,
    epsilon: str | None,
    quantile: str | None,
    only: Sequence[str],
    *,
    tighter: bool,
    format: str,
) -> None:
    """Search for bounds and print them, with noise at the price ε; exactly if ε is None."""
    price = exact_number("epsilon", epsilon) if epsilon is not None else None
    part = _decimal(exact_number("quantile", quantile or _QUANTILE))
    loaded = load_policy(policy)
    wanted = _wanted(loaded, only, tighter=tighter)
    with closing(open_backend(loaded)) as backend, opened_ledger(ledger, policy) as opened:
        suggester = Suggester(loaded, opened, backend)
        if price is None:
            click.echo(EXACT_WARNING, err=True)
            _print(loaded, list(suggester.exact(wanted)), None, part, format)
        else:
            found = suggester.search(wanted, price, part)
            _print(loaded, found.suggestions, found, part, format)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


# What is searched for


def _wanted(policy: Policy, only: Sequence[str], *, tighter: bool) -> list[Wanted]:
    if only:
        wanted = _merged(_named(policy, name, tighter=tighter) for name in only)
    else:
        wanted = [searchable(policy, table, tighter=tighter) for table in policy.tables if not table.public]
    wanted = [each for each in wanted if each.columns or each.keys or each.rows]
    if not wanted:
        raise InvalidParameter(
            "there is nothing to suggest: every column that can have bounds has them",
            hint="--tighter includes columns that have bounds" if not tighter else None,
        )
    return wanted


def _named(policy: Policy, name: str, *, tighter: bool) -> Wanted:
    """The bounds that one --only asks for: those of a table, or of a column, also if it has bounds."""
    table, column = policy.table(name), ""
    if table is None:
        owner, _, column = name.rpartition(".")
        table = policy.table(owner)
    if table is None or (column and table.column(column) is None):
        known = ", ".join(each.name for each in policy.tables if not each.public)
        raise InvalidParameter(f'the policy has no "{name}"', hint=f"--only TABLE or TABLE.COLUMN, of: {known}")
    if table.public:
        raise InvalidParameter(f'"{table.name}" is public: its rows belong to no unit and need no bounds')
    if not column:
        return searchable(policy, table, tighter=tighter)
    found = searchable(policy, table, tighter=True)
    found = replace(
        found,
        columns=tuple(each for each in found.columns if each.name == column),
        keys=tuple(each for each in found.keys if each.name == column),
        rows=False,
    )
    if not found.columns and not found.keys:
        raise InvalidParameter(
            f'there is nothing to suggest for "{name}"',
            hint="lower and upper are for numbers, dates and timestamps without a list of values; groups are "
            "for texts, dates, booleans and columns with a domain, in tables with more than one row per person",
        )
    return found


def _merged(wanted: Iterable[Wanted]) -> list[Wanted]:
    """The wanted bounds, merged by table."""
    found: dict[str, Wanted] = {}
    for each in wanted:
        known = found.get(each.table.name, each)
        columns = tuple(dict.fromkeys(known.columns + each.columns))
        keys = tuple(dict.fromkeys(known.keys + each.keys))
        found[each.table.name] = Wanted(each.table, columns, keys, known.rows or each.rows)
    return list(found.values())


# What is printed


@dataclass(frozen=True)
class _Found:
    """The consistent bounds of one table."""

    table: Table
    counts: dict[str, Suggestion]
    columns: dict[str, tuple[Suggestion, Suggestion]]


def _print(
    policy: Policy, suggestions: Sequence[Suggestion], paid: Suggested | None, part: Decimal, format: str
) -> None:
    found = [_of_table(table, suggestions) for table in dict.fromkeys(each.limit.table for each in suggestions)]
    if format == "json":
        click.echo(json.dumps(_json(found, paid), ensure_ascii=False))
    else:
        click.echo("\n".join([*_head(policy, paid), *(line for each in found for line in _lines(each, part))]))


def _of_table(table: Table, suggestions: Sequence[Suggestion]) -> _Found:
    """Collect the bounds of a table, and make them consistent: noise may put `lower` above `upper`."""
    own = [each for each in suggestions if each.limit.table is table]
    counts = {each.limit.setting: each for each in own if each.limit.column is None}
    most = counts.get("max_rows")
    if most is not None:
        counts = {name: replace(each, value=_least(each.value, most.value)) for name, each in counts.items()}
    columns = {}
    for column in dict.fromkeys(each.limit.column for each in own if each.limit.column is not None):
        low, high = sorted(
            (each for each in own if each.limit.column == column), key=lambda each: each.limit.setting == "upper"
        )
        if low.value is not None and high.value is not None and _least(low.value, high.value) != low.value:
            low, high = replace(low, value=high.value), replace(high, value=low.value)
        columns[column.name] = (low, high)
    return _Found(table, {name: counts[name] for name in CONTRIBUTION_BOUNDS if name in counts}, columns)


def _least(one: Bound | None, other: Bound | None) -> Bound | None:
    """The smaller of two bounds of one type."""
    return min((limit for limit in (one, other) if limit is not None), key=lambda limit: limit, default=None)


def _head(policy: Policy, paid: Suggested | None) -> Iterator[str]:
    name = policy.dataset.name
    if paid is None:
        yield f'# EXACT limits of "{name}": no guarantee covers them.'
    else:
        accountant, left = paid.cap.limit.accountant.value, paid.cap.remaining
        yield f'# Limits of "{name}", searched for with differential privacy.'
        yield f"# Charged to the cap: epsilon {decimal_text(paid.cost.epsilon)} ({accountant})."
        yield f"# Left of the cap: epsilon {decimal_text(left.epsilon, 4)}, delta {decimal_text(left.delta)}."
    yield "# These lines replace those of the policy for the same tables and columns."


def _lines(found: _Found, part: Decimal) -> Iterator[str]:
    yield f"\n[tables.{key_text(found.table.name)}]"
    for name, each in found.counts.items():
        if each.value is not None:
            now = getattr(found.table, CONTRIBUTION_BOUNDS[name])
            yield f"{name} = {limit_text(each.value)}    # now {now}{_count_remark(each, part)}"
    if found.columns:
        yield f"[tables.{key_text(found.table.name)}.columns]"
    for name, (low, high) in found.columns.items():
        column = low.limit.column
        if column is None or low.value is None or high.value is None:
            yield f"# {key_text(name)}: no value was found"
        else:
            yield f"{_column_line(column, low.value, high.value)}    # {_now(column)}{_column_remark(low, high)}"


def _count_remark(each: Suggestion, part: Decimal) -> str:
    if each.ranks is None:
        return ""
    return f"; {float(part):.1%} of the people have at most this many (± {each.ranks} people at 95 %)"


def _column_remark(low: Suggestion, high: Suggestion) -> str:
    if low.ranks is None or high.ranks is None:
        return ""
    return f"; at 95 %, at most {low.ranks} people have values below, and at most {high.ranks} above"


def _now(column: PolicyColumn) -> str:
    if column.lower is None or column.upper is None:
        return "now without limits"
    return f"now {limit_text(column.lower)} to {limit_text(column.upper)}"


def _column_line(column: PolicyColumn, low: Bound, high: Bound) -> str:
    parts = [f"type = {quoted_text(type_text(column.type))}", f"lower = {limit_text(low)}, upper = {limit_text(high)}"]
    parts += [f"step = {limit_text(column.step)}"] if column.step is not None else []
    parts += ["nullable = false"] if not column.nullable else []
    parts += [f"description = {quoted_text(column.description)}"] if column.description is not None else []
    return f"{key_text(column.name)} = {{ {', '.join(parts)} }}"


def _json(found: Sequence[_Found], paid: Suggested | None) -> dict[str, Any]:
    """The shape of `dpsql policy suggest --format json`."""
    listed = [each for table in found for each in _all(table)]
    suggestions = [
        {
            "table": each.limit.table.name,
            "column": each.limit.column.name if each.limit.column is not None else None,
            "setting": each.limit.setting,
            "value": _json_value(each.value),
            "now": _json_value(_current(each)),
            "ranks": each.ranks,
        }
        for each in listed
    ]
    return {
        "suggestions": suggestions,
        "exact": paid is None,
        "cost": cost_json(paid.cost if paid is not None else None),
        "remaining": remaining_json(paid.cap.remaining) if paid is not None else None,
    }


def _all(found: _Found) -> Iterator[Suggestion]:
    yield from found.counts.values()
    for pair in found.columns.values():
        yield from pair


def _current(each: Suggestion) -> Bound | None:
    limit = each.limit
    setting = CONTRIBUTION_BOUNDS.get(limit.setting, limit.setting)
    now = getattr(limit.column if limit.column is not None else limit.table, setting)
    return Fraction(now) if isinstance(now, int) else now


def _json_value(value: Bound | None) -> int | float | str | None:
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return None if value is None else value.isoformat()
