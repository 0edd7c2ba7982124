"""figures: bars and columns as SVG, drawn with attributes alone, for the page allows no scripts and no inline style."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dpsql.console.markup import Html, element

_WIDTH: Final = 1000
_HEIGHT: Final = 100
_GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Bar:
    """One column of a chart.

    Attributes:
        value: How high it is; not negative.
        label: What it says, to who points at it or has it read.
    """

    value: Fraction
    label: str


def gauge(part: Fraction, label: str) -> Html:
    """A bar that is filled to a part of it, from 0 to 1; the label says it in words."""
    filled = min(max(part, Fraction(0)), Fraction(1))
    state = "full" if filled == 1 else "high" if filled >= Fraction(4, 5) else "low"
    return _svg(
        "gauge",
        label,
        element("rect", class_="track", width=str(_WIDTH), height=str(_HEIGHT)),
        element("rect", class_=state, width=_number(filled * _WIDTH), height=str(_HEIGHT)),
    )


def columns(bars: Sequence[Bar], label: str) -> Html:
    """Columns side by side, the highest as high as there is room."""
    highest = max((bar.value for bar in bars), default=Fraction(0)) or Fraction(1)
    step = Fraction(_WIDTH, max(len(bars), 1))
    drawn = []
    for place, bar in enumerate(bars):
        height = bar.value / highest * _HEIGHT
        drawn.append(
            element(
                "g",
                element("title", bar.label),
                element("rect", class_="day", x=_number(place * step), width=_number(step - _GAP), height=str(_HEIGHT)),
                element(
                    "rect",
                    class_="low",
                    x=_number(place * step),
                    y=_number(_HEIGHT - height),
                    width=_number(step - _GAP),
                    height=_number(height),
                ),
            )
        )
    return _svg("columns", label, *drawn)


def _svg(kind: str, label: str, *content: Html) -> Html:
    return element(
        "svg",
        *content,
        class_=kind,
        role="img",
        aria_label=label,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
    )


def _number(value: Fraction) -> str:
    return f"{float(value):.2f}"
