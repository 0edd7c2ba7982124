"""verdict: what a query class showed on two neighbouring databases, against what was charged for it.

Rule 1: whatever is no noisy cell is the same on both sides: columns, notices, public keys, errors.
Rule 2: what noisy cells may tell is the charge, and nothing else is asked of the plan.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import isfinite, nan

import numpy as np

from dpsql.auditing.bound import Bound, Outcomes, Values, bound_of
from dpsql.auditing.claims import Claim, claims
from dpsql.auditing.draws import Cells
from dpsql.auditing.laws import attainable
from dpsql.auditing.transcript import EMPTY, Transcript
from dpsql.gateway.release import ReleasedCells
from dpsql.privacy.accounting import Limit, Spent

_CHOSEN_ON = 4
"""The part of the runs on which the event is chosen."""
_FEW = 2
"""Groups of a unit whose cells are looked at each by itself."""

Row = tuple[object, ...]
Key = int | str


@dataclass(frozen=True)
class Seen:
    """What one run showed.

    Attributes:
        frame: All that is no row: the same on both sides, whoever is in the data.
        rows: The rows.
        price: What was charged.
        released: The noisy cells that the rows are made of.
        limit: Of the budget that was charged; None where nothing was.
        refusal: Why there are no rows; None where there are.
    """

    frame: tuple[object, ...]
    rows: tuple[Row, ...]
    price: Spent
    released: tuple[ReleasedCells, ...] = ()
    limit: Limit | None = None
    refusal: str | None = None

    def beside(self, other: "Seen") -> "Seen":
        """Both answers as one, row beside row."""
        rows = tuple((*one, *more[1:]) for one, more in zip(self.rows, other.rows, strict=False))
        released = (*self.released, *other.released)
        frame, price = (self.frame, other.frame), self.price.merge(other.price)
        return Seen(frame, rows, price, released, self.limit, self.refusal or other.refusal)


@dataclass(frozen=True)
class Trials:
    """How rows are cut into trials, of which each concerns one unit alone.

    Attributes:
        keys: For each unit the keys of its groups; none where the rows of one run are one trial.
        public: Whether all keys are public, and so the same on both sides.
    """

    keys: tuple[tuple[Key, ...], ...] = ()
    public: bool = True

    def released(self, seen: Sequence[Seen]) -> Cells:
        """The noisy cells of each run and unit, without those that do not lie in its groups alone."""
        return np.stack([np.concatenate([*self._released(each)], axis=3) for each in seen])[:, 0]

    def rows(self, seen: Sequence[Seen]) -> Cells:
        """The columns of each run's and unit's rows, the numbers of their digits last; see `digits`."""
        found = [self._rows(each) for each in seen]
        return np.stack([_widened(each, max(each.shape[2] for each in found)) for each in found])

    def _released(self, seen: Seen) -> Iterator[Cells]:
        yield np.empty((1, max(1, len(self.keys)), len(self.keys[0]) if self.keys else 1, 0))
        for release in seen.released:
            rows = len(release.keys[0]) if release.keys else 1
            listed = [*([] if self.public else [np.ones(rows)]), *release.cells]
            cells = np.array(listed, dtype=np.float64).reshape(len(listed), rows)
            if not self.keys and self.public:
                yield cells.reshape(1, 1, 1, -1)
            elif self.keys and len(release.keys) == 1:
                places = {key: place for place, key in enumerate(release.keys[0])}
                missing = np.full((len(cells), 1), nan)
                found = [[places.get(str(key), -1) for key in keys] for keys in self.keys]
                yield np.hstack([cells, missing])[:, found].transpose(1, 2, 0)[None]

    def _rows(self, seen: Seen) -> Cells:
        width = max((len(row) for row in seen.rows), default=0) - bool(self.keys)
        nothing = (nan,) * 2 * max(0, width)
        if not self.keys:
            return np.array([[_numbers(seen.rows[0]) if seen.rows else nothing]], dtype=np.float64)
        by_key = {row[0]: _numbers(row[1:]) for row in seen.rows}
        return np.array([[by_key.get(key, nothing) for key in keys] for keys in self.keys], dtype=np.float64)


@dataclass(frozen=True)
class Finding:
    """What became of one query class.

    Attributes:
        name: The class.
        mechanism: The noise and the accountant.
        epsilon: What is claimed; of what is claimed in two ways, that whose bound is nearer. See `Claim`.
        delta: What is claimed.
        bound: What the runs prove.
        runs: Queries on each side.
        attainable: The most that any event on these databases could show, by the law of the noise; see `attainable`.
        faults: What is wrong, one sentence each.
        of_delta: Whether the bound is one on δ, and not on ε.
    """

    name: str
    mechanism: str
    epsilon: float
    delta: float
    bound: Bound
    runs: int
    attainable: float = 0.0
    faults: tuple[str, ...] = ()
    of_delta: bool = False

    @property
    def share(self) -> float:
        """Which part of its claim the bound reaches."""
        claimed = self.delta if self.of_delta else self.epsilon
        return self.bound.least / claimed if claimed else 0.0

    @property
    def share_of_attainable(self) -> float:
        """Which part of what is attainable the bound reaches."""
        return self.bound.least / self.attainable if self.attainable else 0.0

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def judge(
    name: str,
    mechanism: str,
    trials: Trials,
    sides: tuple[Sequence[Seen], Sequence[Seen]],
    error: float,
    claim: Claim | None = None,
    transcript: Transcript = EMPTY,
    times: int = 0,
    of_delta: bool = False,
) -> Finding:
    """Compare what two sides showed, run by run.

    Args:
        name: The class.
        mechanism: The noise and the accountant.
        trials: How rows are cut.
        sides: What was seen with the units and without them.
        error: The probability with which a sound class may be found faulty.
        claim: What is claimed, where that is not what the charge promises.
        transcript: The releases with their exact cells.
        times: How often the noise of all units is drawn besides.
        of_delta: Whether the bound is one on δ, which is all that there is to tell.
    """
    faults = [*_differences(sides, trials)]
    if any(seen.price != sides[0][0].price for seen in sides[0]):
        faults.append("the price of the same query changes")
    first = sides[0][0]
    claimed = [claim] if claim is not None else [*claims(first.price, first.limit)] if first.limit is not None else []
    if not claimed or any(seen.refusal is not None for side in sides for seen in side):
        nothing = Bound(0.0, None, 0)
        return Finding(
            name, mechanism, 0.0, 0.0, nothing, len(sides[0]), 0.0, tuple(dict.fromkeys(faults)) or ("no charge",)
        )
    seen = {
        "released": (trials.released(sides[0]), trials.released(sides[1])),
        "rows": (trials.rows(sides[0]), trials.rows(sides[1])),
    }
    evidence = [_outcomes(seen, transcript)]
    if transcript.pairs and times:
        evidence.append(_outcomes({"released": transcript.drawn(times)}, transcript))
    share = error / len(claimed) / len(evidence)
    least = [each.least_delta if of_delta else each.least for each in claimed]
    bounds = [max((bound_of(*of, each, share) for of in evidence), key=lambda bound: bound.least) for each in least]
    limits = [each.delta if of_delta else each.epsilon for each in claimed]
    letter = "δ" if of_delta else "ε"
    for bound, limit in zip(bounds, limits, strict=True):
        if bound.least > limit:
            faults.append(
                f"the {letter} of the observed answers is above {bound.least:.3g}, but {limit:.3g} is claimed"
            )
    best = max(range(len(bounds)), key=lambda place: bounds[place].least / limits[place] if limits[place] else 0.0)
    kept, of = tuple(dict.fromkeys(faults)), claimed[best]
    most = attainable(transcript.law, least[best])
    return Finding(name, mechanism, of.epsilon, of.delta, bounds[best], len(sides[0]), most, kept, of_delta)


def _outcomes(
    seen: Mapping[str, tuple[Cells, Cells]], transcript: Transcript
) -> tuple[tuple[Outcomes, Outcomes], tuple[Outcomes, Outcomes]]:
    """The runs on which the event is chosen, and the others, on which it is counted."""
    chosen_on = max(1, min(len(cells[0]) for cells in seen.values()) // _CHOSEN_ON)
    features: list[dict[str, Values]] = [{}, {}]
    for name, sides in seen.items():
        cells = [_widened(side, max(side.shape[3] for side in sides)) for side in sides]
        if not cells[0].shape[3]:
            continue
        for found, side in zip(features, cells, strict=True):
            found |= _single(name, side)
            losses = transcript.losses(side) if name == "released" else None
            if losses is not None:
                found["loss"] = losses
    chosen, counted = (
        [
            Outcomes(runs.size, {name: values[part].ravel() for name, values in found.items()})
            for found in features
            for runs in [next(iter(found.values()))[part]]
        ]
        for part in (slice(chosen_on), slice(chosen_on, None))
    )
    return (chosen[0], chosen[1]), (counted[0], counted[1])


def _widened(cells: Cells, width: int) -> Cells:
    """The same with as many cells as another has; a side that shows no private group has none."""
    return np.pad(cells, [(0, 0)] * (cells.ndim - 1) + [(0, width - cells.shape[-1])], constant_values=nan)


def _single(name: str, cells: Cells) -> Mapping[str, Values]:
    """Each cell of a unit's first groups alone, and the largest of all its groups."""
    found = {
        f"{name} {cell} of group {group}": cells[:, :, group, cell]
        for group, cell in np.ndindex(*cells.shape[2:])
        if group < _FEW
    }
    largest = np.where(np.isnan(cells), -np.inf, cells).max(axis=2)
    return found | {f"most of {name} {cell}": largest[:, :, cell] for cell in range(cells.shape[3])}


def _differences(sides: tuple[Sequence[Seen], Sequence[Seen]], trials: Trials) -> Iterable[str]:
    for one, other in zip(*sides, strict=True):
        yield from (f"the query is refused: {seen.refusal}" for seen in (one, other) if seen.refusal is not None)
        if one.frame != other.frame:
            yield "notices, columns or errors differ between the neighbours"
        if one.price != other.price:
            yield "the price differs between the neighbours"
        if trials.keys and trials.public and [row[0] for row in one.rows] != [row[0] for row in other.rows]:
            yield "public keys differ between the neighbours"


def _numbers(cells: Sequence[object]) -> tuple[float, ...]:
    """A number for each cell, another for each text; and the binary digits after the point of each."""
    return tuple(map(_number, cells)) + tuple(map(digits, cells))


def _number(cell: object) -> float:
    if cell is None:
        return nan
    is_number = isinstance(cell, int | float) or (isinstance(cell, Decimal) and cell.is_finite())
    return float(cell) if is_number else float(zlib.crc32(str(cell).encode()))  # type: ignore[arg-type]


def digits(cell: object) -> int:
    """Binary digits after the point: what floating-point noise betrays of the value that it was added to.

    Reference: Mironov 2012, "On significance of the least significant bits for differential privacy".
    """
    return Fraction(cell).denominator.bit_length() - 1 if isinstance(cell, float | Decimal) and isfinite(cell) else 0
