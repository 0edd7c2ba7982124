"""likelihood: what cells say together: the sum of what each says, for their noise is independent.

Rule: what is learned here is learned on runs that are not counted; learned badly, bounds are weak and still hold.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.float64]
"""Runs × units × groups of a unit × cells of a group; NaN where there is none."""

_BINS = 24
_FEW = 2
"""Groups of a unit that are taken in their own order."""
_DOUBT = 2.5
"""Standard errors below which a logarithm of a ratio is taken for chance."""


@dataclass(frozen=True)
class Likelihood:
    """The logarithm of the likelihood ratio, learned.

    Attributes:
        order: For each unit the order in which its groups are looked at, by how much they seem to hold of it.
        edges: Between the values that are told apart, for each group and cell.
        ratios: What each says, that of no value last.
    """

    order: NDArray[np.intp]
    edges: list[list[Cells]]
    ratios: list[list[Cells]]

    def score(self, cells: Cells) -> Cells:
        """One number for each run and unit."""
        ordered = _ordered(cells, self.order)
        total = np.zeros(ordered.shape[:2])
        for group, (edges, ratios) in enumerate(zip(self.edges, self.ratios, strict=True)):
            for cell, (edge, ratio) in enumerate(zip(edges, ratios, strict=True)):
                total += ratio[_places(ordered[:, :, group, cell], edge)]
        return total


def learned(one: Cells, other: Cells) -> Likelihood:
    """Learn from both sides' runs.

    Which groups of a unit are kept is drawn by lot, once for all runs: where there are many, the first half of the runs
    tells which, and the second what their cells say.
    """
    half = len(one) // 2 if one.shape[2] > _FEW else 0
    units, groups = one.shape[1:3]
    order = np.tile(np.arange(groups), (units, 1))
    if half:
        moved = np.nan_to_num(one[:half]).mean(axis=0) - np.nan_to_num(other[:half]).mean(axis=0)
        order = np.argsort(moved.sum(axis=2), axis=1)
    sides = [_ordered(side[half:], order) for side in (one, other)]
    tables = [
        [_table(*(side[:, :, group, cell].ravel() for side in sides)) for cell in range(one.shape[3])]
        for group in range(groups)
    ]
    return Likelihood(
        order, [[edge for edge, _ in row] for row in tables], [[ratio for _, ratio in row] for row in tables]
    )


def _ordered(cells: Cells, order: NDArray[np.intp]) -> Cells:
    return np.take_along_axis(cells, order[None, :, :, None], axis=2)


def _table(one: Cells, other: Cells) -> tuple[Cells, Cells]:
    """Edges between values, and the logarithm of how much likelier each stretch is on the first side."""
    pooled = np.concatenate([one, other])
    values = np.unique(pooled[~np.isnan(pooled)])
    if len(values) > _BINS:
        values = np.unique(np.quantile(pooled[~np.isnan(pooled)], np.linspace(0, 1, _BINS), method="nearest"))
    edges = values[1:]
    counts = [np.bincount(_places(side, edges), minlength=len(edges) + 2) + 0.5 for side in (one, other)]
    ratios = np.log(counts[0] / counts[1]) - np.log(len(one) / len(other))
    doubt = _DOUBT * np.sqrt(1 / counts[0] + 1 / counts[1])
    return edges, np.where(np.abs(ratios) < doubt, 0.0, ratios)


def _places(values: Cells, edges: Cells) -> NDArray[np.intp]:
    return np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values, side="right"))
