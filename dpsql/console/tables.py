"""tables: rows of a table, with heads that can be read aloud, in a box that scrolls where the page is narrow."""

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
    """A table; a cell without content shows a dash."""
    if not rows:
        return element("p", "None.", class_="note")
    heads = (
        element("th", _head(column), scope="col", class_="number" if column.number else None) for column in columns
    )
    body = (
        element(
            "tr",
            *(
                element("td", "–" if cell in (None, "") else cell, class_="number" if column.number else None)
                for column, cell in zip(columns, row, strict=True)
            ),
        )
        for row in rows
    )
    made = element(
        "table", element("caption", caption), element("thead", element("tr", *heads)), element("tbody", *body)
    )
    return element("div", made, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _head(column: Column) -> Content:
    return column.name if column.about is None else element("abbr", column.name, title=column.about)
