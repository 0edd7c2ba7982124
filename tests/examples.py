"""How many examples tests draw: a few; a third by HYPOTHESIS_PROFILE=short, as in `make test`; many by `long`."""

import os
from fractions import Fraction

from hypothesis import HealthCheck, Phase, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE")
LONG = PROFILE == "long"
TIMES = {"short": Fraction(1, 3), "long": Fraction(100)}.get(PROFILE or "", Fraction(1))


def turns(count: int) -> range:
    """Turns of a test that draws by itself, the same in every run; a third of them in a short one."""
    return range(int(count * min(TIMES, Fraction(1))))


def profile(examples: int) -> settings:
    """The same examples in every run, a third in a short one; in a long one a hundred times as many, drawn anew."""
    return settings(
        max_examples=max(1, int(examples * TIMES)),
        deadline=None,
        derandomize=not LONG,
        phases=tuple(Phase) if LONG else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
