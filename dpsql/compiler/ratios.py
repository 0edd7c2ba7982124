"""ratios: what is made of two noisy counts or sums, and the limits of its 95 % interval, as SQL."""

from collections.abc import Sequence
from fractions import Fraction

from dpsql.compiler.outputs import GroupOutput, ResponseOutput
from dpsql.compiler.spreads import Statistic

_QUANTILE = 1.959964
"""Of the normal law: half the width of a 95 % interval, in standard deviations."""


def fieller(total: str, count: str, squared: str, of_count: float) -> tuple[str, str]:
    """The least and the greatest ratio r for which total - r·count lies within what noise makes of nothing.

    That is exact however small the count is, as long as it is more than its noise.

    Args:
        total: A noisy sum.
        count: A noisy count.
        squared: The square of half the width of the sum's 95 % interval.
        of_count: Half the width of the count's.

    Reference: Fieller 1954; the widths of two independent noises add up by squares.
    """
    rest = f"({count} * {count} - {of_count**2!r})"
    root = f"sqrt({squared} * {rest} + pow({of_count!r} * {total}, 2))"
    low, high = (f"(({total} * {count} {sign} {root}) / {rest})" for sign in "-+")
    return low, high


def debiased(output: ResponseOutput | GroupOutput, prefix: str, widths: Sequence[float] | None, keys: int) -> Statistic:
    """What randomized answers say, over the cells p0, p1 … of a release.

    The interval is of the noise and of the answers' own randomness: of N answers, t of them truly of a value, as many
    name it as two binomials say, of variance t·p(1 - p) + (N - t)·q(1 - q).

    Args:
        output: What is asked.
        prefix: What the names of its columns begin with.
        widths: Half the width of a 95 % interval of each cell's noise; without them there are no limits.
        keys: How many keys the release has.
    """
    p, q = output.response.truth, output.response.lie
    columns: dict[str, str] = {}

    def named(text: str) -> str:
        columns[f"{prefix}{len(columns)}"] = text
        return f"{prefix}{len(columns) - 1}"

    count = f"CAST(p{output.cell} AS DOUBLE)"
    total = named(_total(output, keys))
    several = named(f"greatest({total}, 1)")
    share = named(f"greatest(least(({count} / {several} - {float(q)!r}) / {float(p - q)!r}, 1), 0)")
    answers = f"{several} * ({share} * {float(p * (1 - p))!r} + (1 - {share}) * {float(q * (1 - q))!r})"
    own = f"{_QUANTILE**2!r} * {answers}"
    if isinstance(output, ResponseOutput) and output.is_share:
        return Statistic(columns, share, _limits_of_share(output, (count, total), named(own), widths))
    value = named(f"({count} - {float(q)!r} * {total}) / {float(p - q)!r}")
    plain = f"k{output.key} IS NULL" if isinstance(output, GroupOutput) else "false"
    low = high = "CAST(NULL AS DOUBLE)"
    if widths is not None:
        square, width = _squared(output, widths), widths[output.cell]
        margin = named(f"CASE WHEN {plain} THEN {width!r} ELSE sqrt({square!r} + {own}) / {float(abs(p - q))!r} END")
        low, high = (f"CASE WHEN {plain} THEN {count} ELSE {value} END {sign} {margin}" for sign in "-+")
    return Statistic(columns, f"CAST(round(CASE WHEN {plain} THEN {count} ELSE {value} END) AS BIGINT)", (low, high))


def _total(output: ResponseOutput | GroupOutput, keys: int) -> str:
    """How many answered: of a group, over the groups that differ from it in its answer alone."""
    if isinstance(output, ResponseOutput):
        return f"CAST(p{output.total_cell} AS DOUBLE)"
    others = ", ".join(f"k{place}" for place in range(keys) if place != output.key)
    behind = f"PARTITION BY {others}" if others else ""
    return f"CAST(coalesce(sum(p{output.cell}) FILTER (WHERE k{output.key} IS NOT NULL) OVER ({behind}), 0) AS DOUBLE)"


def _squared(output: ResponseOutput | GroupOutput, widths: Sequence[float]) -> float:
    """The square of half the interval of c - q·N, of the noise of both."""
    q, of_count = output.response.lie, widths[output.cell]
    if isinstance(output, ResponseOutput):
        return of_count**2 + float(q) ** 2 * widths[output.total_cell] ** 2
    weight: Fraction = (1 - q) ** 2 + (output.response.values - 1) * q**2
    return float(weight) * of_count**2


def _limits_of_share(
    output: ResponseOutput, cells: tuple[str, str], own: str, widths: Sequence[float] | None
) -> tuple[str, str]:
    if widths is None:
        return "CAST(NULL AS DOUBLE)", "CAST(NULL AS DOUBLE)"
    p, q = output.response.truth, output.response.lie
    (count, total), of_total = cells, widths[output.total_cell]
    ends = fieller(count, total, f"({widths[output.cell] ** 2!r} + {own})", of_total)
    ends = ends if p > q else (ends[1], ends[0])
    inside = (f"greatest(least(({end} - {float(q)!r}) / {float(p - q)!r}, 1), 0)" for end in ends)
    low, high = (
        f"CASE WHEN {total} > {of_total!r} THEN {text} ELSE {end} END"
        for text, end in zip(inside, ("0.0", "1.0"), strict=True)
    )
    return low, high
