"""judge: what a query class showed on two neighbouring databases, against what was charged for it.

Rule 1: whatever is no noisy cell is the same on both sides: columns, notices, public keys, errors.
Rule 2: what noisy cells may tell is the charge, and nothing else is asked of the plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import isfinite

from dpsql.auditing.bound import Bound, Feature, Outcomes, epsilon_bound
from dpsql.privacy.accounting import standalone
from dpsql.privacy.cost import Accountant
from dpsql.privacy.totals import Spent

TESTED_DELTA = Fraction(1, 20)
"""δ at which a ρ is put to the test: any will do, and at a large one few runs tell much."""

Row = tuple[object, ...]
Key = int | str


@dataclass(frozen=True)
class Seen:
    """What one run showed.

    Attributes:
        frame: All that is no row: the same on both sides, whoever is in the data.
        rows: The rows.
        price: What was charged.
        refusal: Why there are no rows; None where there are.
    """

    frame: tuple[object, ...]
    rows: tuple[Row, ...]
    price: Spent
    refusal: str | None = None


@dataclass(frozen=True)
class Trials:
    """How rows are cut into trials, of which each concerns one unit alone.

    Attributes:
        keys: For each unit the keys of its groups; none where the rows of one run are one trial.
        public: Whether all keys are public, and so the same on both sides.
    """

    keys: tuple[tuple[Key, ...], ...] = ()
    public: bool = True

    def outcomes(self, runs: Iterable[Sequence[Row]]) -> Outcomes:
        """What was seen, by feature, trial after trial."""
        found = [features(trial) for rows in runs for trial in self._cut(rows)]
        names = dict.fromkeys(name for each in found for name in each)
        return Outcomes(len(found), {name: [each.get(name) for each in found] for name in names})

    def _cut(self, rows: Sequence[Row]) -> Iterable[Sequence[Row | None]]:
        if not self.keys:
            return [rows]
        by_key = {row[0]: row[1:] for row in rows}
        return [[by_key.get(key) for key in keys] for keys in self.keys]


@dataclass(frozen=True)
class Finding:
    """What became of one query class.

    Attributes:
        name: The class.
        mechanism: The noise.
        epsilon: What is claimed.
        delta: What is claimed, or the δ at which a claim of ρ was put to the test.
        bound: What the runs prove.
        runs: Queries on each side.
        faults: What is wrong, one sentence each.
    """

    name: str
    mechanism: str
    epsilon: float
    delta: float
    bound: Bound
    runs: int
    faults: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def judge(
    name: str,
    mechanism: str,
    accountant: Accountant,
    trials: Trials,
    sides: tuple[Sequence[Seen], Sequence[Seen]],
    error: float,
    claim: tuple[Fraction, Fraction] | None = None,
) -> Finding:
    """Compare what two sides showed, run by run.

    Args:
        name: The class.
        mechanism: The noise.
        accountant: How the charge is read.
        trials: How rows are cut.
        sides: What was seen with the units and without them.
        error: The probability with which a sound class may be found faulty.
        claim: ε and δ, where they are not those of the charge.
    """
    epsilon, delta = claim or claimed(sides[0][0].price, accountant)
    half = len(sides[0]) // 2
    chosen, counted = (
        tuple(trials.outcomes(seen.rows for seen in side[part]) for side in sides)
        for part in (slice(half), slice(half, None))
    )
    bound = epsilon_bound((chosen[0], chosen[1]), (counted[0], counted[1]), float(delta), error)
    faults = [*_differences(sides, trials)]
    if any(seen.price != sides[0][0].price for seen in sides[0]):
        faults.append("the price of one question changes")
    if bound.epsilon > epsilon:
        faults.append(f"the ε of what was seen is above {bound.epsilon:.3g}, and {float(epsilon):.3g} is claimed")
    return Finding(name, mechanism, float(epsilon), float(delta), bound, len(sides[0]), tuple(dict.fromkeys(faults)))


def claimed(price: Spent, accountant: Accountant) -> tuple[Fraction, Fraction]:
    """The ε and δ that a charge promises; under zcdp at the δ at which it is put to the test."""
    if accountant.converts:
        if price.basic_epsilon is None:
            raise TypeError("a charge to such a budget has an ε")
        return price.basic_epsilon, price.basic_delta
    return standalone(price, TESTED_DELTA)


def _differences(sides: tuple[Sequence[Seen], Sequence[Seen]], trials: Trials) -> Iterable[str]:
    for one, other in zip(*sides, strict=True):
        yield from (f"it is not answered: {seen.refusal}" for seen in (one, other) if seen.refusal is not None)
        if one.frame != other.frame:
            yield "what comes beside the rows differs"
        if one.price != other.price:
            yield "the price differs"
        if trials.keys and trials.public and [row[0] for row in one.rows] != [row[0] for row in other.rows]:
            yield "public keys differ"


def features(trial: Sequence[Row | None]) -> Mapping[str, Feature]:
    """What is looked at in one trial: each cell, sums over groups, whether groups are there, and the last digits."""
    found: dict[str, Feature] = {"groups": sum(row is not None for row in trial)}
    for place, row in enumerate(trial):
        for column, cell in enumerate(row or ()):
            found[f"cell {place}.{column}"] = _feature(cell)
    for column in range(max((len(row) for row in trial if row is not None), default=0)):
        cells = [None if row is None else _feature(row[column]) for row in trial]
        numbers = [cell for cell in cells if cell is not None and not isinstance(cell, str)]
        if len(numbers) == len(cells):
            half = len(numbers) // 2
            found[f"sum {column}"] = sum(numbers)
            found[f"most {column}"] = max(numbers)
            found[f"contrast {column}"] = sum(numbers[:half]) - sum(numbers[half:])
        digits = [_digits(row[column]) for row in trial if row is not None]
        found[f"digits {column}"] = max(digits)
    return found


def _feature(cell: object) -> Feature:
    if cell is None or isinstance(cell, int | str):
        return cell
    if isinstance(cell, float) and isfinite(cell):
        return cell
    return Fraction(cell) if isinstance(cell, Decimal) and cell.is_finite() else str(cell)


def _digits(cell: object) -> int:
    """Binary digits after the point: what floating-point noise betrays of the value that it was added to.

    Reference: Mironov 2012, "On significance of the least significant bits for differential privacy".
    """
    return Fraction(cell).denominator.bit_length() - 1 if isinstance(cell, float | Decimal) and isfinite(cell) else 0
