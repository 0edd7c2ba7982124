"""answered: what a cell gave, as a notebook shows it: a table with intervals, the price, and what is left.

Rule: what comes from data or from a query goes into a page as text, never as markup.
"""

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dpsql.dbapi import Release
from dpsql.errors import InvalidParameter
from dpsql.estimates import EstimateColumn, Estimates, Interval, estimate_text
from dpsql.explain import bounding_notice, charge_text, choice_texts
from dpsql.plots import plot
from dpsql.table import table_lines
from dpsql.wire.pgtypes import text_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_SHOWN_ROWS = 100
_COVERS = "± is 95 % of the noise alone"


class Answered:
    """What a cell gave: rows, what they cost and how exact they are; a notebook shows it as a table.

    Attributes:
        release: Price, what is left, standard errors and reuse; None where nothing was released.
        estimates: The rows with the interval of each noisy number.
    """

    def __init__(self, estimates: Estimates, release: Release | None, notices: Sequence[str]) -> None:
        """Hold what a statement gave."""
        self.release = release
        self.estimates = estimates
        self._notices = notices

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.estimates.columns]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows, as Python values."""
        return list(self.estimates.rows)

    def __len__(self) -> int:
        return len(self.estimates.rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.estimates.rows)

    def df(self) -> "DataFrame":
        """The rows as a pandas frame; each noisy column is followed by the ends of its intervals, …_low and …_high.

        Raises:
            InvalidParameter: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InvalidParameter(
                "a frame needs pandas, which is not installed", hint='pip install "dpsql[notebook]"'
            ) from None
        names, values = zip(*_frame(self.estimates), strict=True)
        frame = pandas.DataFrame(dict(enumerate(values)))
        return frame.set_axis(names, axis="columns")  # two may have one name

    def plot(self, *, x: str | None = None, y: str | Sequence[str] | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw it, as `dpsql.plot` does."""
        return plot(self, x=x, y=y, ax=ax)

    def _notes(self) -> list[str]:
        """What is told below the rows, the price first."""
        if self.release is None:
            return list(self._notices)
        answer = self.release.answer
        paid = charge_text(answer)
        exact = [_COVERS] if any(interval for row in self.estimates.intervals for interval in row) else []
        cut = bounding_notice(answer.query, answer.rows.cuts)
        told = "; ".join([*exact, *choice_texts(answer.columns), *([f"bounding: {cut}"] if cut is not None else [])])
        return [*([paid] if paid is not None else []), *([told] if told else []), *self._notices]

    def __repr__(self) -> str:
        columns, rows = self.estimates.columns, self.estimates.rows
        right = [place for place, column in enumerate(columns) if column.type.is_number]
        texts = [[text for text, _ in cells] for cells in _cells(self.estimates)]
        lines = list(table_lines(self.columns, texts, right=right)) if columns else []
        more = [f"… {len(rows) - _SHOWN_ROWS} more rows"] if len(rows) > _SHOWN_ROWS else []
        return "\n".join([*lines, *more, *self._notes()])

    def _repr_html_(self) -> str:
        columns, rows = self.estimates.columns, self.estimates.rows
        heads = "".join(f'<th style="text-align: left">{html.escape(name)}</th>' for name in self.columns)
        body = "".join(f"<tr>{''.join(map(_html_cell, columns, cells))}</tr>" for cells in _cells(self.estimates))
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>" if columns else ""
        more = [f"… {len(rows) - _SHOWN_ROWS} more rows"] if len(rows) > _SHOWN_ROWS else []
        notes = "<br>".join(html.escape(note) for note in [*more, *self._notes()])
        return f"<div>{table}<small>{notes}</small></div>"


def _cells(estimates: Estimates) -> Iterator[list[tuple[str, str | None]]]:
    """Of each row that is shown the texts, each with the interval in words; None without one."""
    for row, intervals in zip(estimates.rows[:_SHOWN_ROWS], estimates.intervals, strict=False):
        yield [_cell(*of_cell) for of_cell in zip(estimates.columns, row, intervals, strict=True)]


def _cell(column: EstimateColumn, value: Any, interval: Interval | None) -> tuple[str, str | None]:
    if interval is None:
        text = text_of(column.type, value)
        return "NULL" if text is None else text, None
    return estimate_text(value, interval), f"95 %: {interval.low:.6g} to {interval.high:.6g}"


def _html_cell(column: EstimateColumn, cell: tuple[str, str | None]) -> str:
    text, interval = cell
    title = f' title="{html.escape(interval)}"' if interval is not None else ""
    side = "right" if column.type.is_number else "left"
    return f'<td style="text-align: {side}"{title}>{html.escape(text)}</td>'


def _frame(estimates: Estimates) -> Iterator[tuple[str, list[Any]]]:
    for place, column in enumerate(estimates.columns):
        yield column.name, [row[place] for row in estimates.rows]
        ends = [row[place] for row in estimates.intervals]
        if any(ends):
            yield f"{column.name}_low", [interval and interval.low for interval in ends]
            yield f"{column.name}_high", [interval and interval.high for interval in ends]
