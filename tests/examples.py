"""How many examples tests draw: a few and the same in every run; with HYPOTHESIS_PROFILE=long a great many."""

import os

from hypothesis import HealthCheck, Phase, settings

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
TIMES = 100


def profile(examples: int) -> settings:
    """The same examples in every run; with HYPOTHESIS_PROFILE=long a hundred times as many, drawn anew, and shrunk."""
    return settings(
        max_examples=examples * TIMES if LONG else examples,
        deadline=None,
        derandomize=not LONG,
        phases=tuple(Phase) if LONG else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
