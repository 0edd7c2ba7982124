"""response_padding: delays replies to multiples of a quantum, so that their time tells less about the query.

Rule 1: a cancel or a time limit takes effect at a multiple, too: whether a statement has ended by then tells no more
    than its reply does.
Rule 2: so does the end of a read. Other sessions can see it: an answer is free of charge, a place is free.
"""

from math import ceil


def held_back(took: float, quantum: int) -> float:
    """Seconds to wait after `took` seconds until the next multiple of `quantum` milliseconds; none where that is 0."""
    return quantum / 1000 - took % (quantum / 1000) if quantum > 0 else 0.0


def read_held_back(took: float, quantum: int) -> float:
    """Seconds to wait before the end of a read may show; what is made of it has the last quarter of the quantum."""
    return held_back(took + quantum / 4000, quantum)


def whole_quanta(seconds: float, quantum: int) -> float:
    """Return a time limit as the next multiple of `quantum` milliseconds that is no less; unchanged where that is 0."""
    return ceil(seconds * 1000 / quantum) * quantum / 1000 if quantum > 0 else seconds
