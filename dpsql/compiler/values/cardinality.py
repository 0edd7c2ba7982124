"""cardinality: how many values a source's fields can have at the most; limits of contributions rely on it.

Rule: a number follows from what the rows that are listed are made of and filtered by, never from what tables may hold.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from math import prod

from dpsql.compiler.ir.nodes import Column, Expr, Field, InList
from dpsql.compiler.ir.walk import fields_in
from dpsql.compiler.values.calendar import finest_units, narrow_moments
from dpsql.compiler.values.equalities import bare, compared, constants
from dpsql.compiler.values.lineage import Moments
from dpsql.compiler.values.sources import Source, series_length, truncated
from dpsql.sqltypes import SqlType


def product(sizes: Iterable[int | None]) -> int | None:
    """The product of numbers, or None where one is not known."""
    found = list(sizes)
    known = [size for size in found if size is not None]
    return prod(known) if len(known) == len(found) else None


def least(*sizes: int | None) -> int | None:
    """The least of the numbers that are known, or None."""
    return min((size for size in sizes if size is not None), default=None)


def combinations(sources: Iterable[Source], keys: Sequence[Expr], applied: Sequence[Expr]) -> int | None:
    """How many combinations of values keys can have.

    Args:
        sources: Where the keys' fields are.
        keys: Expressions over their fields.
        applied: Conditions that the rows of the sources are filtered by.
    """
    sizes = []
    for source in sources:
        used = [each for each in source.fields if any(each in fields_in(key) for key in keys)]
        sizes.append(least(source.most, product(_values(each, source, keys, applied) for each in used)))
    of_types = product(3 if key.type is SqlType.BOOLEAN else None for key in keys)
    return least(product(sizes), of_types)


def _values(each: Field, source: Source, keys: Sequence[Expr], applied: Sequence[Expr]) -> int | None:
    """How many values one field has, or the keys can tell apart."""
    own = [condition for condition in applied if fields_in(condition) == {each}]
    lists = [found[1] for found in map(constants, own) if found is not None and bare(found[0])[0] == Column(each)]
    nulls = not any(_rejects_null(condition, each) for condition in own)
    between = _numbers(each, source, own) if each.type.is_integer else _days(each, source, own, keys)
    return least(source.most, *map(len, lists), between + nulls if between is not None else None)


def _numbers(each: Field, source: Source, own: Sequence[Expr]) -> int | None:
    """The whole numbers between limits."""
    low, high = source.limits or (None, None)
    lows = [low] if isinstance(low, int) else []
    highs = [high] if isinstance(high, int) else []
    for condition in own:
        function, _, values = compared(condition) or ("", each, ())
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) == len(values) and numbers:
            lows += [] if function in ("lt", "le") else [numbers[0] + (function == "gt")]
            highs += [] if function in ("gt", "ge") else [numbers[-1] - (function == "lt")]
    return max(0, min(highs) - max(lows) + 1) if lows and highs else None


def _days(each: Field, source: Source, own: Sequence[Expr], keys: Sequence[Expr]) -> int | None:
    """The instants of the finest unit that the keys tell apart."""
    unit = finest_units(keys).get(each)
    low, high = source.limits or (None, None)
    moments: dict[Field, Moments] = {}
    if isinstance(low, date) and isinstance(high, date):
        moments[each] = low, high
    for condition in own:
        narrow_moments(moments, condition)
    first, last = moments.get(each, (None, None))
    if first is None or last is None or unit is None:
        return None
    return series_length(truncated(first, unit), truncated(last, unit), unit.upper())


def _rejects_null(condition: Expr, each: Field) -> bool:
    """True where a condition on a field is surely not true of NULL."""
    if isinstance(condition, InList):
        return bare(condition.argument)[0] == Column(each)
    return compared(condition) is not None
