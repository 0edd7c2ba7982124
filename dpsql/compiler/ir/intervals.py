"""intervals: INTERVAL constants of the intermediate form, which carry their three numbers as text."""

import re

from dpsql.sqltypes import Span

_CONSTANT = re.compile(r"(-?\d+) months (-?\d+) days (-?\d+) microseconds")


def constant(span: Span) -> str:
    """The form in which a constant carries a span, for literals and for the engine."""
    return f"{span.months} months {span.days} days {span.microseconds} microseconds"


def span(text: str) -> Span:
    """The span that a constant carries."""
    found = _CONSTANT.fullmatch(text)
    if found is None:
        raise TypeError("no constant of an interval")
    months, days, micros = (int(part) for part in found.groups())
    return Span(months, days, micros)
