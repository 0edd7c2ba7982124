"""answered: what a cell gave, as a notebook shows it: a table with intervals, the price, and what is left.

Rule: what comes from data or from a query goes into a page as text, never as markup.
"""

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dpsql.dbapi import ReleaseReport
from dpsql.dbapi.frames import data_frame
from dpsql.dbapi.releases import release_of
from dpsql.gateway.confidence_intervals import AnswerColumn, ConfidenceInterval, NoisyRows
from dpsql.gateway.notices import bounding_notice, charge_text, choice_texts, covers_text, inexact_texts, value_text
from dpsql.gateway.query_run import Result
from dpsql.gateway.text_table import table_lines
from dpsql.notebook.plots import plot
from dpsql.wire.pgtypes import text_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_SHOWN_ROWS = 100


class Answered:
    """What a cell gave: rows, what they cost and how exact they are; a notebook shows it as a table.

    Attributes:
        release: Price, what is left, standard errors and reuse; None where nothing was released.
        noisy: The rows with the interval of each noisy number.
    """

    def __init__(self, result: Result, zone: str) -> None:
        """Hold what a statement gave; moments are in a zone."""
        self.release: ReleaseReport | None = release_of(result.answer) if result.answer is not None else None
        self.noisy = NoisyRows.of(result)
        self._result = result
        self._zone = zone

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.noisy.columns]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows, as Python values."""
        return list(self.noisy.rows)

    def __len__(self) -> int:
        return len(self.noisy.rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.noisy.rows)

    def df(self) -> "DataFrame":
        """The rows as a pandas frame; each noisy column is followed by the ends of its intervals, …_low and …_high.

        Raises:
            UnsupportedQuery: pandas is not installed.
        """
        return data_frame(self._zone, self._result.columns or (), self._result.rows)

    def plot(self, *, x: str | None = None, y: str | Sequence[str] | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw it, as `dpsql.plot` does."""
        return plot(self, x=x, y=y, ax=ax)

    def _notes(self) -> list[str]:
        """What is told below the rows: what bounding cuts, the price, how exact it is."""
        notices = [f"{notice.severity}: {notice.message}" for notice in self._result.notices]
        if self.release is None:
            return notices
        answer = self.release.answer
        paid = charge_text(answer)
        by_column = zip(self.noisy.columns, zip(*self.noisy.intervals, strict=True), strict=False)
        told = [column for column, intervals in by_column if any(intervals)]
        exact = [f"± is {covers_text(told)}"] if told else []
        cut = bounding_notice(answer.query, answer.rows.dropped)
        exact += inexact_texts(self.release.margins)
        exact += [*choice_texts(answer.columns), *([f"bounding: {cut}"] if cut is not None else [])]
        return [*([paid] if paid is not None else []), *(["; ".join(exact)] if exact else []), *notices]

    def __repr__(self) -> str:
        columns, rows = self.noisy.columns, self.noisy.rows
        right = [place for place, column in enumerate(columns) if column.type.is_number]
        texts = [[text for text, _ in cells] for cells in _cells(self.noisy)]
        lines = list(table_lines(self.columns, texts, right=right)) if columns else []
        more = [f"… {len(rows) - _SHOWN_ROWS} more rows"] if len(rows) > _SHOWN_ROWS else []
        return "\n".join([*lines, *more, *self._notes()])

    def _repr_html_(self) -> str:
        columns, rows = self.noisy.columns, self.noisy.rows
        heads = "".join(f'<th style="text-align: left">{html.escape(name)}</th>' for name in self.columns)
        body = "".join(f"<tr>{''.join(map(_html_cell, columns, cells))}</tr>" for cells in _cells(self.noisy))
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>" if columns else ""
        more = [f"… {len(rows) - _SHOWN_ROWS} more rows"] if len(rows) > _SHOWN_ROWS else []
        notes = "<br>".join(html.escape(note) for note in [*more, *self._notes()])
        return f"<div>{table}<small>{notes}</small></div>"


def _cells(noisy: NoisyRows) -> Iterator[list[tuple[str, str | None]]]:
    """Of each row that is shown the texts, each with the interval in words; None without one."""
    for row, intervals in zip(noisy.rows[:_SHOWN_ROWS], noisy.intervals, strict=False):
        yield [_cell(*of_cell) for of_cell in zip(noisy.columns, row, intervals, strict=True)]


def _cell(column: AnswerColumn, value: Any, interval: ConfidenceInterval | None) -> tuple[str, str | None]:
    if interval is None:
        text = text_of(column.type, value)
        return "NULL" if text is None else text, None
    return value_text(value, interval), f"95 %: {interval.low:.6g} to {interval.high:.6g}"


def _html_cell(column: AnswerColumn, cell: tuple[str, str | None]) -> str:
    text, interval = cell
    title = f' title="{html.escape(interval)}"' if interval is not None else ""
    side = "right" if column.type.is_number else "left"
    return f'<td style="text-align: {side}"{title}>{html.escape(text)}</td>'
