"""HTML and SVG, built of elements.

Rule: a text becomes HTML in `_escaped` alone, so whatever a user, a query or a policy says is shown and never obeyed.
"""

import html
from dataclasses import dataclass
from typing import Final

_EMPTY: Final = frozenset({"input", "link", "meta", "rect"})
_KEPT: Final = frozenset("\n")


@dataclass(frozen=True, slots=True)
class Html:
    """HTML that was built of elements; `element` and `joined` alone make it."""

    text: str


Content = Html | str | None


def element(name: str, /, *content: Content, **attributes: str | None) -> Html:
    """Return an element.

    Args:
        name: Its name.
        content: What is in it; texts are escaped, None is left out.
        attributes: Its attributes, with `_` for `-`, and one more at the end of a word of Python; None is left out.
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY:
        return Html(f"<{name}{told}>" if name != "rect" else f"<{name}{told}/>")
    return Html(f"<{name}{told}>{joined(*content).text}</{name}>")


def joined(*content: Content) -> Html:
    """Return one after another; texts are escaped, None is left out."""
    return Html(
        "".join(part.text if isinstance(part, Html) else _escaped(part) for part in content if part is not None)
    )


def document(title: str, body: Html) -> bytes:
    """Return a page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="icon", href="/icon.svg"),
        element("link", rel="stylesheet", href="/style.css"),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en').text}\n".encode()


def _escaped(text: str) -> str:
    """A text as HTML shows it; a character that would not be seen, or would turn others around, is spelt out."""
    seen = "".join(c if c.isprintable() or c in _KEPT else c.encode("unicode_escape").decode() for c in text)
    return html.escape(seen)
