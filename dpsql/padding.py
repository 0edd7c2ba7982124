"""padding: how long a reply is held back, so that when it comes tells less of what it took."""


def held_back(took: float, quantum: int) -> float:
    """Seconds to wait after `took` seconds until the next multiple of `quantum` milliseconds; none where that is 0."""
    return quantum / 1000 - took % (quantum / 1000) if quantum > 0 else 0.0
