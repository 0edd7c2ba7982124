"""plots: a release as bars with error bars, by matplotlib, which is loaded when something is drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dpsql.compiler.aggregates.base import margin_text
from dpsql.dbapi import ReleaseReport
from dpsql.errors import InvalidParameter
from dpsql.gateway.confidence_intervals import AnswerColumn, ConfidenceInterval, NoisyRows
from dpsql.gateway.notices import covers_text, value_text
from dpsql.privacy.conversion import decimal_text
from dpsql.wire.pgtypes import text_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer

# Okabe & Ito's colours, told apart whatever one's colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

_INTERVALS = "SET dpsql.intervals = on, and ask again: an answer that you have is free"
_MOST_ROWS = 50
_TOLD_ROWS = 8  # so many bars have room for their numbers
_LABEL = 24


class HasRelease(Protocol):
    """A cursor, or the result of a notebook's cell."""

    @property
    def release(self) -> ReleaseReport | None:
        """What was released."""


@dataclass(frozen=True)
class _Bars:
    """The bars of one column: of each row the label, and the value with its interval; None where there is no value."""

    column: AnswerColumn
    labels: Sequence[str]
    values: Sequence[tuple[Any, ConfidenceInterval] | None]


def need_matplotlib() -> None:
    """Check that something can be drawn.

    Raises:
        InvalidParameter: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InvalidParameter(
            "a plot needs matplotlib, which is not installed", hint='pip install "dpsql[plots]"'
        ) from None


def plot(
    release: ReleaseReport | HasRelease,
    *,
    x: str | None = None,
    y: str | Sequence[str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw a release: for each row a bar, with its 95 % interval.

    The error bars cover the noise that was added to a number. A note says so where they do not allow for what bounding
    cut off, too. How far those who are in the data stand for others is never in them.

    Args:
        release: A cursor, its `release`, or the result of a notebook's cell.
        x: The column that labels the bars; by default all that have no noise.
        y: The column or columns whose values are the bars; by default all with error bars, if they are of one kind.
        ax: Where to draw; by default axes of their own.

    Returns:
        The axes; `.figure.savefig("bars.png")` writes them to a file.

    Raises:
        InvalidParameter: There is nothing to draw, it has no error bars, or matplotlib is not installed.
    """
    given = release if isinstance(release, ReleaseReport) else release.release
    if given is None:
        raise InvalidParameter(
            "there is no release to draw", hint="Ask for an aggregate: SELECT key, COUNT(*) FROM … GROUP BY key"
        )
    noisy = NoisyRows.of_answer(given.answer)
    keys = _keys(noisy, x)
    drawn = [_bars(noisy, column, _labels(noisy, keys)) for column in _drawn(noisy, y)]
    need_matplotlib()
    axes = ax if ax is not None else _axes(len(drawn[0].labels) * len(drawn))
    handles = [_draw(axes, bars, place, len(drawn)) for place, bars in enumerate(drawn)]
    if len(drawn) > 1:
        legend = axes.legend(
            handles, [bars.column.name for bars in drawn], frameon=False, loc="upper left", bbox_to_anchor=(1, 1)
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    _write(axes, drawn, [noisy.columns[key].name for key in keys], decimal_text(noisy.epsilon))
    return axes


def _place(noisy: NoisyRows, name: str) -> int:
    names = [column.name for column in noisy.columns]
    if names.count(name) != 1:
        told = "there is no column" if name not in names else "there are several columns"
        raise InvalidParameter(f'{told} "{name}"', hint=f"The columns are: {', '.join(names)}")
    return names.index(name)


def _keys(noisy: NoisyRows, x: str | None) -> list[int]:
    if x is not None:
        return [_place(noisy, x)]
    return [place for place, column in enumerate(noisy.columns) if not column.noisy]


def _labels(noisy: NoisyRows, keys: Sequence[int]) -> list[str]:
    """A label for each row, by its keys."""
    if not 0 < len(noisy.rows) <= _MOST_ROWS:
        raise InvalidParameter(
            f"there are {len(noisy.rows)} rows, and a plot is of 1 to {_MOST_ROWS}",
            hint=f"ORDER BY … LIMIT {_MOST_ROWS}" if noisy.rows else "Ask for groups that are shown.",
        )
    labels = [
        ", ".join("NULL" if row[key] is None else _text(noisy.columns[key], row[key]) for key in keys)
        for row in noisy.rows
    ]
    if len(set(labels)) < len(labels):
        names = ", ".join(column.name for column in noisy.columns if not column.noisy) or "nothing"
        raise InvalidParameter("rows have the same label, and bars of several rows are not added up", hint=_by(names))
    short = [label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…" for label in labels]
    return short if len(set(short)) == len(short) else labels


def _by(names: str) -> str:
    return f"Without x they are labelled by {names}; or ask with GROUP BY of one key."


def _text(column: AnswerColumn, value: object) -> str:
    text = text_of(column.type, value) or ""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _drawn(noisy: NoisyRows, y: str | Sequence[str] | None) -> list[int]:
    """The columns whose values are drawn."""
    if y is not None:
        places = [_place(noisy, name) for name in ([y] if isinstance(y, str) else y)]
        if not places:
            raise InvalidParameter("there is no column to draw", hint="Leave y out, or name a column.")
        return places
    places = [place for place, column in enumerate(noisy.columns) if column.noisy]
    kinds = {_kind(noisy.columns[place]) for place in places}
    if len(kinds) == 1:
        return places
    names = [noisy.columns[place].name for place in places]
    if not names:
        raise InvalidParameter("no column has error bars", hint=_INTERVALS)
    told = ", ".join(f'"{noisy.columns[place].name}" is {_kind(noisy.columns[place])}' for place in places)
    raise InvalidParameter(f"cannot mix column types in one plot: {told}", hint=f'plot(…, y="{names[-1]}")')


def _kind(column: AnswerColumn) -> str:
    return column.error.estimate.kind if column.error is not None else "computed"


def _bars(noisy: NoisyRows, place: int, labels: Sequence[str]) -> _Bars:
    column = noisy.columns[place]
    if column.error is not None and (column.error.ranks is not None or column.error.apart is not None):
        raise InvalidParameter(
            f'"{column.name}" is chosen, and how exact it is has no error bar',
            hint="Draw counts, sums, means and what is computed of them.",
        )
    values: list[tuple[Any, ConfidenceInterval] | None] = []
    for row, intervals in zip(noisy.rows, noisy.intervals, strict=True):
        value, interval = row[place], intervals[place]
        if value is not None and interval is None:
            raise InvalidParameter(f'the error of "{column.name}" is not known', hint=_INTERVALS)
        if interval is not None and not math.isfinite(interval.margin(float(value))):
            raise InvalidParameter(
                f'"{column.name}" has a value without an interval',
                hint="Ask for larger groups, or pay more for them.",
            )
        values.append(None if interval is None else (value, interval))
    return _Bars(column, labels, values)


def _axes(bars: int) -> "Axes":
    """Axes of a figure that is as wide as its bars want."""
    from matplotlib import pyplot

    _, axes = pyplot.subplots(figsize=(min(max(5.5, 1.6 + 0.75 * bars), 13), 4), layout="constrained")
    return axes


def _draw(axes: "Axes", bars: _Bars, place: int, of: int) -> "BarContainer":
    """Draw the bars of one column beside those of the others, and return them."""
    width = 0.64 / of
    shown = [(at, *pair) for at, pair in enumerate(bars.values) if pair is not None]
    middles = [at + (place - (of - 1) / 2) * width for at, _, _ in shown]
    heights = [float(value) for _, value, _ in shown]
    below = [max(0.0, height - interval.low) for height, (_, _, interval) in zip(heights, shown, strict=True)]
    above = [max(0.0, interval.high - height) for height, (_, _, interval) in zip(heights, shown, strict=True)]
    drawn = axes.bar(middles, heights, 0.94 * width, color=COLOURS[place % len(COLOURS)], alpha=0.75)
    axes.errorbar(middles, heights, [below, above], fmt="none", ecolor="0.15", elinewidth=1.3, capsize=4, capthick=1.3)
    if of == 1 and len(bars.labels) <= _TOLD_ROWS:
        for middle, (_, value, interval) in zip(middles, shown, strict=True):
            at = (middle, max(float(value), interval.high, 0.0))
            text = value_text(value, interval)
            axes.annotate(text, at, (0, 4), textcoords="offset points", ha="center", fontsize="small", color="0.25")
    return drawn


def _write(axes: "Axes", drawn: Sequence[_Bars], keys: Sequence[str], epsilon: str | None) -> None:
    """Write what is to be read beside the bars."""
    labels = drawn[0].labels
    names, by = ", ".join(bars.column.name for bars in drawn), ", ".join(keys)
    title = f"{names} by {by}" if by else names
    axes.set_title(f"{title}, ε = {epsilon}", loc="left", pad=22, parse_math=False)
    margins = "; ".join(f"{bars.column.name} {_margins(bars)}" for bars in drawn)
    held = covers_text([bars.column for bars in drawn])
    note = f"Error bars: {held}, {margins}"
    axes.text(0, 1.02, note, transform=axes.transAxes, fontsize="small", color="0.35", parse_math=False)
    axes.set_xticks(range(len(labels)), labels, parse_math=False)
    if max(map(len, labels)) * len(labels) > 60:
        axes.tick_params("x", rotation=30)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axes.set_xlabel(by, parse_math=False)
    axes.set_ylabel(names, parse_math=False)
    axes.axhline(0, color="0.2", linewidth=0.8)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.tick_params("x", length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.margins(y=0.12)


def _margins(bars: _Bars) -> str:
    margins = [interval.margin(float(value)) for value, interval in filter(None, bars.values)]
    if not margins:
        return "without a value"
    least, most = margin_text(min(margins)), margin_text(max(margins))
    return f"± {most}" if least == most else f"± {least} to {most}"
