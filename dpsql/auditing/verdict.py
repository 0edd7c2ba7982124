"""verdict: compares what a query class showed on two neighbours with what was charged.

Rule 1: all but noisy cells must be equal on both sides: columns, notices, public keys and errors.
Rule 2: noisy cells may reveal what was charged. Nothing else of the plan is trusted.
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
"""The event is chosen on one in this many runs."""
_FEW = 2
"""The number of a unit's groups whose cells are also tested one by one."""

Row = tuple[object, ...]
Key = int | str


@dataclass(frozen=True)
class Seen:
    """What one run shows a user, and its noisy cells.

    Attributes:
        frame: All but the rows; it must be equal on both sides.
        rows: The rows.
        price: The charge.
        released: The noisy cells that the rows are computed from.
        limit: The limit of the charged budget; None without a charge.
        refusal: The error message and code; None if the query was answered.
    """

    frame: tuple[object, ...]
    rows: tuple[Row, ...]
    price: Spent
    released: tuple[ReleasedCells, ...] = ()
    limit: Limit | None = None
    refusal: str | None = None

    def beside(self, other: "Seen") -> "Seen":
        """Join two answers row by row; the columns after the key are put next to each other."""
        rows = tuple((*one, *more[1:]) for one, more in zip(self.rows, other.rows, strict=False))
        released = (*self.released, *other.released)
        frame, price = (self.frame, other.frame), self.price.merge(other.price)
        return Seen(frame, rows, price, released, self.limit, self.refusal or other.refusal)


@dataclass(frozen=True)
class Trials:
    """Which rows belong to which trial; each trial concerns one unit.

    Attributes:
        keys: The group keys of each unit; empty if all rows of a run are one trial.
        public: Whether all keys are public, and so the same on both sides.
    """

    keys: tuple[tuple[Key, ...], ...] = ()
    public: bool = True

    def released(self, seen: Sequence[Seen]) -> Cells:
        """Return the noisy cells of each run and unit, from the releases that are grouped as `keys` says."""
        return np.stack([np.concatenate([*self._released(each)], axis=3) for each in seen])[:, 0]

    def rows(self, seen: Sequence[Seen]) -> Cells:
        """Return the columns of each run's and unit's rows, followed by their `digits`."""
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
    """The result for one query class.

    Attributes:
        name: The class.
        mechanism: The noise and the accountant.
        epsilon: The claimed ε; of two claims, the one that the bound comes nearer to. See `Claim`.
        delta: The claimed δ.
        bound: The lower bound that the runs prove.
        runs: The number of runs on each side.
        attainable: The largest lower bound that any event on these databases could give; see `attainable`.
        faults: The faults found, one sentence each.
        of_delta: Whether the bound is on δ instead of ε.
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
        """The bound as a share of the claim."""
        claimed = self.delta if self.of_delta else self.epsilon
        return self.bound.least / claimed if claimed else 0.0

    @property
    def share_of_attainable(self) -> float:
        """The bound as a share of what is attainable."""
        return self.bound.least / self.attainable if self.attainable else 0.0

    @property
    def holds(self) -> bool:
        """Whether no fault was found."""
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
    """Compare two sides run by run, and test the claim.

    Args:
        name: The class.
        mechanism: The noise and the accountant.
        trials: Which rows belong to which trial.
        sides: The runs on the first and on the second side.
        error: The largest probability that a bound of a sound class is wrong.
        claim: The claim, if it is not the one of the charge.
        transcript: The releases with their exact cells.
        times: The number of additional draws of the noise of all units.
        of_delta: Whether δ is tested instead of ε.
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
    """Split the runs of both sides: the event is chosen on the first part and counted on the second."""
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
    """The cells, padded with NaN to a width; a side that shows no private group has fewer."""
    return np.pad(cells, [(0, 0)] * (cells.ndim - 1) + [(0, width - cells.shape[-1])], constant_values=nan)


def _single(name: str, cells: Cells) -> Mapping[str, Values]:
    """Features of a unit: each cell of its first groups, and the largest cell over all its groups."""
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
    """Each cell as a number (a text as its checksum), followed by the binary digits of each after the point."""
    return tuple(map(_number, cells)) + tuple(map(digits, cells))


def _number(cell: object) -> float:
    if cell is None:
        return nan
    is_number = isinstance(cell, int | float) or (isinstance(cell, Decimal) and cell.is_finite())
    return float(cell) if is_number else float(zlib.crc32(str(cell).encode()))  # type: ignore[arg-type]


def digits(cell: object) -> int:
    """The number of binary digits after the point, by which floating-point noise can reveal the exact value.

    Reference: Mironov 2012, "On significance of the least significant bits for differential privacy".
    """
    return Fraction(cell).denominator.bit_length() - 1 if isinstance(cell, float | Decimal) and isfinite(cell) else 0
