"""Draws ε by the number of queries: the accountant's value, its limit, and the reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings

from dpsql.errors import InvalidParameter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Once the colours are used up, the dashes change.
_DASHES = ((0, ()), (0, (5, 1.5)))
_MARKERS = "osv^DXPd<>"
_MARKS = 8  # on each curve, not at the same places: of curves that coincide both are seen
_FAR = 2.5


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of the drawing.

    Attributes:
        name: What the legend calls it.
        points: Numbers of queries, rising, and ε; not a number where there is none.
    """

    name: str
    points: Sequence[tuple[int, float]]

    @property
    def highest(self) -> float:
        """The largest ε; 0 if there is none."""
        return max((height for _, height in self.points if not isnan(height)), default=0.0)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The drawing.

    Attributes:
        title: Whose budget.
        height: What the vertical axis shows.
        note: What the reader must know, below the axes.
        limit: Where the gate refuses.
        gate: What the gate counts.
        reports: What gates nothing.
    """

    title: str
    height: str
    note: str
    limit: float
    gate: Curve
    reports: Sequence[Curve]


def check_plot(path: Path) -> None:
    """Refuse a plot that cannot be drawn, before anything is computed.

    Raises:
        InvalidParameter: The suffix is not that of a picture, or matplotlib is not installed.
    """
    if path.suffix not in (".png", ".svg"):
        raise InvalidParameter(
            f'"{path}" is not the name of a .png or .svg file', hint="--plot budget.png, or --plot budget.svg"
        )
    from dpsql.notebook.plots import need_matplotlib

    need_matplotlib()


def draw(drawing: Drawing, path: Path) -> None:
    """Write the drawing to a file, without a display."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10.5, 6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(0, 1.02 * drawing.gate.points[-1][0])
    axes.set_ylim(0, _top(drawing))
    _draw_gate(axes, drawing)
    _draw_reports(axes, drawing)
    axes.set_title(drawing.title, loc="left", parse_math=False)
    axes.set_xlabel("number of queries")
    axes.set_ylabel(drawing.height)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(drawing.note, fontsize="small", color="0.3")
    with catch_warnings(action="ignore", category=UserWarning):  # the font may lack signs of a name
        figure.savefig(path)


def _top(drawing: Drawing) -> float:
    """Return the height of the axes; lines far above the others leave the picture, so that the others are legible."""
    highest = max(curve.highest for curve in (drawing.gate, *drawing.reports))
    if drawing.limit > _FAR * highest:
        return 1.05 * (highest or drawing.limit)
    return 1.05 * max(drawing.limit, min(highest, _FAR * drawing.limit))


def _draw_gate(axes: "Axes", drawing: Drawing) -> None:
    limit = axes.axhline(drawing.limit, color="black", linewidth=1.2, linestyle=(0, (8, 4)))
    (gate,) = axes.plot(*zip(*drawing.gate.points, strict=True), color="black", linewidth=3.2, zorder=2.5)
    above = " (above)" if drawing.limit > axes.get_ylim()[1] else ""
    labels = [f"limit: ε = {drawing.limit:g}{above}", drawing.gate.name]
    legend = axes.legend([limit, gate], labels, title="Gate", loc="upper left", bbox_to_anchor=(1.01, 1))
    legend.set(frame_on=False, alignment="left")
    axes.add_artist(legend)
    legend.set_clip_on(False)  # else the layout leaves no room for it


def _draw_reports(axes: "Axes", drawing: Drawing) -> None:
    from dpsql.notebook.plots import COLOURS

    # The legend lists the lines from top to bottom at the right end.
    ranked = sorted(filter(lambda curve: curve.highest, drawing.reports), key=lambda curve: -curve.highest)
    lines = []
    for place, curve in enumerate(ranked):
        every = max(1, len(curve.points) // _MARKS)
        lines += axes.plot(
            *zip(*curve.points, strict=True),
            color=COLOURS[place % len(COLOURS)],
            linestyle=_DASHES[place // len(COLOURS) % len(_DASHES)],
            linewidth=1.6,
            marker=_MARKERS[place % len(_MARKERS)],
            markersize=5,
            markevery=(place % every, every),
        )
    names = [curve.name for curve in ranked]
    legend = axes.legend(lines, names, title="Report only", loc="upper left", bbox_to_anchor=(1.01, 0.82))
    legend.set(frame_on=False, alignment="left")
