"""tables: rows of a table, with heads that can be read aloud, in a box that scrolls where the page is narrow."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.console.markup import Content, Html, element


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: Its head.
        about: What the head stands for; None where it says so itself.
        number: Whether its cells are numbers, which are aligned.
    """

    name: str
    about: str | None = None
    number: bool = False


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Content]]) -> Html:
    """A table; a cell without content shows a dash.

    Where the page is narrow, cells stand below one another with their heads beside them, and browsers forget what rows
    and cells are: the roles say it.
    """
    if not rows:
        return element("p", "None.", class_="note")
    heads = element("tr", *map(_head, columns), role="row")
    body = (element("tr", *itertools.starmap(_cell, zip(columns, row, strict=True)), role="row") for row in rows)
    made = element(
        "table",
        element("caption", caption),
        element("thead", heads, role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        role="table",
    )
    return element("div", made, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _head(column: Column) -> Html:
    name = column.name if column.about is None else element("abbr", column.name, title=column.about)
    return element("th", name, scope="col", role="columnheader", class_=_aligned(column))


def _cell(column: Column, content: Content) -> Html:
    shown = "–" if content in (None, "") else content
    return element("td", shown, role="cell", class_=_aligned(column), data_head=column.name)


def _aligned(column: Column) -> str | None:
    return "number" if column.number else None
