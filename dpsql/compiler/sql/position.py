"""position: where in the analyst's text a piece of the syntax tree stands."""

from sqlglot import exp


def position(node: exp.Expr, offset: int = 0) -> int | None:
    """Return the 1-based character index of `node`'s first known token, or None."""
    # The token of a placeholder is its number; the sign stands before it.
    starts = [
        part.meta["start"] - isinstance(part.parent, exp.Parameter) for part in node.walk() if "start" in part.meta
    ]
    return offset + min(starts) + 1 if starts else None
