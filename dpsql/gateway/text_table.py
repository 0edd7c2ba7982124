"""Rows on a terminal, as psql aligns them."""

from collections.abc import Collection, Iterator, Sequence


def table_lines(
    names: Sequence[str], rows: Sequence[Sequence[str | None]], *, right: Collection[int] = ()
) -> Iterator[str]:
    """Yield the lines of a table.

    Args:
        names: The columns' names.
        rows: Texts; None is shown as nothing.
        right: The columns that are aligned to the right, by number.
    """
    cells = [[_printable(cell or "") for cell in row] for row in rows]
    heads = [_printable(name) for name in names]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    yield " | ".join(head.center(width) for head, width in zip(heads, widths, strict=True)).rstrip()
    yield "-+-".join("-" * width for width in widths)
    for row in cells:
        aligned = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield " | ".join(aligned).rstrip()


def _printable(text: str) -> str:
    # A value with a line break or an escape sequence must not take over the terminal.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
