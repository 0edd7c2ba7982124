"""The figures of docs/accounting.md, from the code: `python -m benchmarks.accounting`."""

from collections.abc import Iterator
from fractions import Fraction

from dpsql.cli.compare import shown
from dpsql.privacy.accounting import Limit, Spent, admits, create_limit
from dpsql.privacy.cost import ZERO, Accountant, Event, Mechanism, Sensitivity
from dpsql.privacy.reports import ANALYSES, history

EPSILON, DELTA = Fraction(8), Fraction(1, 10**6)
TIMES = (10, 100, 1000)


def moving(steps: int) -> Sensitivity:
    """Return the sensitivity of one cell that one unit moves by so many steps of its grid."""
    return Sensitivity(1, steps, steps, steps**2)


LAPLACE = Event(Mechanism.LAPLACE, moving(1), Fraction(10))
GAUSSIAN = Event(Mechanism.GAUSSIAN, moving(1), Fraction(200))
FINE_LAPLACE = Event(Mechanism.LAPLACE, moving(10**4), Fraction(10**5))
GATES = (
    (Accountant.BASIC, LAPLACE),
    (Accountant.ADVANCED, LAPLACE),
    (Accountant.ZCDP, LAPLACE),
    (Accountant.ZCDP, GAUSSIAN),
    (Accountant.RDP, LAPLACE),
    (Accountant.RDP, GAUSSIAN),
)


def fits(limit: Limit, event: Event) -> int:
    """Return how many such queries a fresh budget admits, one after another."""
    spent = Spent.zero().keeping(limit.order) if limit.order else Spent.zero()
    count = 0
    while admits(limit, spent := spent.add([event])):
        count += 1
    return count


def queries_that_fit() -> Iterator[str]:
    """Yield the lines of the table of gates."""
    yield "| accountant | noise | all of δ to the conversion | half of δ for private keys |"
    yield "|---|---|---|---|"
    for accountant, event in GATES:
        whole = fits(create_limit(accountant, EPSILON, DELTA, ZERO), event)
        split = fits(create_limit(accountant, EPSILON, DELTA, Fraction(1, 2)), event) if accountant.selects else "–"
        yield f"| `{accountant.value}` | {event.mechanism.value.capitalize()} | {whole} | {split} |"


def what_queries_amount_to() -> Iterator[str]:
    """Yield the lines of the table of reports: counts first, and sums where their law makes a difference."""
    yield f"| analysis | {' | '.join(f'k = {times}' for times in TIMES)} |"
    yield f"|---{'|---' * len(TIMES)}|"
    for analysis in ANALYSES:
        counts, sums = (
            [shown(analysis.epsilon(history([event] * times), DELTA)) for times in TIMES]
            for event in (LAPLACE, FINE_LAPLACE)
        )
        yield f"| {analysis.name} | {' | '.join(counts)} |"
        if sums != counts:
            yield f"| {analysis.name}, a sum of 10,000 steps | {' | '.join(sums)} |"


def main() -> None:
    """Print how many queries fit, and what k queries amount to, as the page has them."""
    print("\n".join(queries_that_fit()))
    print()
    print("\n".join(what_queries_amount_to()))


if __name__ == "__main__":
    main()
