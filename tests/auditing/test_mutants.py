"""The audit accepts the program as it is, and refutes it with each of these faults planted.

The program as it is is refuted with a probability below 10⁻⁶, all claims of this file together: that is the error that
the audit is given. Noise is the system's own and is not seeded.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsql.auditing import Extent, audit
from dpsql.auditing.classes import query_classes
from dpsql.auditing.neighbours import datasets
from dpsql.backends import Cancellation, open_backend
from dpsql.compiler.bounding import printer
from dpsql.compiler.bounding.group_sampling import by_ranking_all, by_ranking_few
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.dialects.render import Renderer
from dpsql.compiler.ir import primitives
from dpsql.compiler.plan import verify
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.compiler.relations import joins
from dpsql.gateway.answers import Answer
from dpsql.gateway.engine import Engine
from dpsql.gateway.settings import Reuse
from dpsql.policy import Policy, load_policy
from dpsql.privacy import selection
from dpsql.privacy.cost import Sensitivity, cell_sensitivity
from dpsql.privacy.exponential_mechanism import Picking, RankChoice
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.selection import GaussianThreshold, TruncatedGeometric
from tests.auditing.conftest import write

CONFIDENCE = 1 - 1e-7
EXTENT = Extent(units=200, runs=6, single_runs=60, draws=2_000, confidence=CONFIDENCE, mechanisms=("laplace",))

Patch = pytest.MonkeyPatch


def sensitivity_of_a_quarter(patch: Patch) -> None:
    """The plan's own check would refuse it, so that is planted too."""

    def quarter(*arguments: Any, **named: Any) -> Sensitivity:
        whole = cell_sensitivity(*arguments, **named)
        return Sensitivity(whole.l0, -(-whole.linf // 4), -(-whole.l1 // 4), -(-whole.l2_squared // 16))

    patch.setattr(primitives, "cell_sensitivity", quarter)
    patch.setattr(verify, "_check_noise", lambda *_: None)


def scale_of_a_half(patch: Patch) -> None:
    _scales(patch, 2)


def _scales(patch: Patch, times: int) -> None:
    """Of all noise there is: sums, choices by ranks, picks, and the selection of groups."""
    for law, name, power in ((DiscreteLaplace, "scale", 1), (DiscreteGaussian, "variance", 2)):
        drawn = law.sample

        def less(self: Any, size: int, drawn: Any = drawn, name: str = name, power: int = power) -> NDArray[np.int64]:
            found: NDArray[np.int64] = drawn(replace(self, **{name: getattr(self, name) / times**power}), size)
            return found

        patch.setattr(law, "sample", less)
    for choice, name in ((RankChoice, "choose"), (Picking, "pick")):
        drawn = getattr(choice, name)
        patch.setattr(choice, name, lambda self, *of, drawn=drawn: drawn(replace(self, scale=self.scale / times), *of))
    table = selection._table
    patch.setattr(selection, "_table", lambda epsilon, delta: table(times * epsilon, delta))


def groups_without_a_cap(patch: Patch) -> None:
    patch.setattr(printer, "by_ranking_few", lambda most, same: by_ranking_few(10**6, same))
    patch.setattr(printer, "by_ranking_all", lambda most, keys, **lists: by_ranking_all(10**6, keys, **lists))
    ranked = printer._Printer._ranked_rows
    patch.setattr(printer._Printer, "_ranked_rows", lambda self, step: ranked(self, replace(step, groups=10**6)))


def rows_without_a_cap(patch: Patch) -> None:
    bounded = printer._Printer._amount
    patch.setattr(printer._Printer, "_amount", lambda self, amount: bounded(self, replace(amount, rows=10**6)))


def clamp_to_the_largest_value_there_is(patch: Patch) -> None:
    patch.setattr(DuckDB, "on_grid", lambda self, text, sql_type, grid: f"CAST({text} AS BIGINT)")


def delta_spent_twice(patch: Patch) -> None:
    table = selection._table
    patch.setattr(selection, "_table", lambda epsilon, delta: table(epsilon, 2 * delta))


def selection_without_noise(patch: Patch) -> None:
    for kind in (TruncatedGeometric, GaussianThreshold):
        patch.setattr(kind, "keep", lambda self, units: units > 0)


def noise_in_floating_point(patch: Patch) -> None:
    uniform = random.SystemRandom().random

    def double(self: DiscreteLaplace, size: int) -> NDArray[np.float64]:
        signs = np.array([1 if uniform() < 0.5 else -1 for _ in range(size)])
        noise: NDArray[np.float64] = signs * float(self.scale) * -np.log1p(-np.array([uniform() for _ in range(size)]))
        return noise

    patch.setattr(DiscreteLaplace, "sample", double)


def rows_without_a_unit_kept(patch: Patch) -> None:
    patch.setattr(
        Renderer, "_unit_key", lambda self, name, column, kind: (self.dialect.canonical(f'"{name}"', column, kind), "")
    )


def join_that_multiplies_rows_uncounted(patch: Patch) -> None:
    of_units = joins.Joiner._of_units
    patch.setattr(
        joins.Joiner, "_of_units", lambda self, *sides: replace(of_units(self, *sides), one_row=True, rows_per_unit=1)
    )


def charge_after_the_read(patch: Patch) -> None:
    """An error then costs nothing, which is what giving the price back comes to."""
    execute = Engine.execute

    def late(
        self: Engine, user: str, query: CompiledQuery, cancellation: Cancellation, *, reuse: Reuse, consistent: bool
    ) -> Answer:
        self._backend.fetch(dict(enumerate(query.releases)), (), cancellation)
        return execute(self, user, query, cancellation, reuse=reuse, consistent=consistent)

    patch.setattr(Engine, "execute", late)


def reuse_across_versions_of_the_data(patch: Patch) -> None:
    patch.setattr(Policy, "fingerprint", "one for all")


def reuse_with_fresh_noise(patch: Patch) -> None:
    """What was had is made again, for nothing."""
    again = Engine.execute

    def fresh(
        self: Engine, user: str, query: CompiledQuery, cancellation: Cancellation, *, reuse: Reuse, consistent: bool
    ) -> Answer:
        answer = again(self, user, query, cancellation, reuse=reuse, consistent=consistent)
        if not answer.reused or answer.charge is None:
            return answer
        forgotten = tuple(replace(granted, payload=None) for granted in answer.charge.releases)
        return replace(answer, rows=self._reader.read(user, query, forgotten, cancellation).rows)

    patch.setattr(Engine, "execute", fresh)


@dataclass(frozen=True)
class Mutant:
    """A fault, and the class that shows it."""

    plant: Callable[[Patch], None]
    shown_by: str
    extent: Extent = EXTENT


MUTANTS = [
    Mutant(sensitivity_of_a_quarter, "SUM people"),
    Mutant(groups_without_a_cap, "groups visits, 1 kept", replace(EXTENT, units=600)),
    Mutant(rows_without_a_cap, "COUNT visits"),
    Mutant(clamp_to_the_largest_value_there_is, "SUM people"),
    Mutant(delta_spent_twice, "delta", replace(EXTENT, units=600, runs=8)),
    Mutant(selection_without_noise, "delta"),
    Mutant(noise_in_floating_point, "COUNT people", replace(EXTENT, units=600)),
    Mutant(rows_without_a_unit_kept, "rows without a unit visits", replace(EXTENT, single_runs=80)),
    Mutant(join_that_multiplies_rows_uncounted, "join people visits"),
    Mutant(charge_after_the_read, "failure"),
    Mutant(reuse_across_versions_of_the_data, "reuse"),
    Mutant(reuse_with_fresh_noise, "reuse"),
]


@pytest.mark.statistical
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.plant.__name__} {mutant.extent.mechanisms[0]}")
def test_a_planted_fault_is_refuted(small: Policy, monkeypatch: Patch, mutant: Mutant) -> None:
    mutant.plant(monkeypatch)
    report = audit(small, replace(mutant.extent, only=(mutant.shown_by,)))
    assert report.findings
    assert not report.holds


FEW_UNITS = replace(EXTENT, units=50, runs=3, single_runs=6, draws=100_000)
"""Datasets that are small, and noise that is drawn often: a trial of either kind tells as much."""

HALVED = (
    *("COUNT people", "SUM people", "AVG people", "quantile people", "regression", "groups", "join people"),
    *(
        "selection",
        "threshold visits",
        "threshold of units",
        "noisy max",
        "top-k",
        "COUNT of all",
        "transcript",
        "reuse",
    ),
)
"""Each kind of class, but for those of δ: no noise is in what they show."""


THIRDS = (("threshold visits", "substitute", "gaussian"),)
"""Of what half of the noise shows hardly more than is claimed, however often it is drawn."""


def kind(name: str) -> str:
    """What a class asks, whichever table it asks it of."""
    return re.split(" (people|visits|drugs)", name)[0]


def test_each_kind_of_class_is_tested_for_half_of_the_noise(small: Policy) -> None:
    backend = open_backend(small)
    made = datasets(small, backend.schema, 2, 1)
    backend.close()
    tested = {*map(kind, HALVED), "delta of", "delta of threshold"} - {"reuse"}
    assert {kind(each.name) for each in query_classes(made)} == tested


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_half_of_the_noise_is_refuted(tmp_path: Path, monkeypatch: Patch, adjacency: str, mechanism: str) -> None:
    scale_of_a_half(monkeypatch)
    halved = tuple(name for name in HALVED if (name, adjacency, mechanism) not in THIRDS)
    extent = replace(FEW_UNITS, mechanisms=(mechanism,), only=halved)
    findings = audit(load_policy(write(tmp_path, adjacency)), extent).findings
    assert {kind(finding.name) for finding in findings} == {*map(kind, halved)}
    assert [finding for finding in findings if finding.holds] == []


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "adjacency", "mechanism"), THIRDS)
def test_a_third_of_the_noise_is_refuted(
    tmp_path: Path, monkeypatch: Patch, name: str, adjacency: str, mechanism: str
) -> None:
    _scales(monkeypatch, 3)
    extent = replace(FEW_UNITS, mechanisms=(mechanism,), only=(name,))
    (finding,) = audit(load_policy(write(tmp_path, adjacency)), extent).findings
    assert not finding.holds


NEAR = (
    "COUNT people",
    "SUM people",
    "COUNT of all",
    "quantile people",
    "regression",
    "threshold",
    "delta",
    "transcript",
)
EXACT = ("COUNT people", "SUM people", "COUNT of all")


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_bounds_come_near_their_claims(tmp_path: Path, adjacency: str, mechanism: str) -> None:
    """Of counts and sums with Laplace noise 0.8 of the claim; of others 0.6, or 0.8 of what any event could show."""
    extent = replace(FEW_UNITS, draws=150_000, mechanisms=(mechanism,), only=NEAR)
    findings = audit(load_policy(write(tmp_path, adjacency)), extent).findings
    assert {kind(finding.name) for finding in findings} >= {*map(kind, NEAR)} - {"delta"}
    for finding in findings:
        least = 0.8 if mechanism == "laplace" and finding.name.startswith(EXACT) else 0.6
        if adjacency == "substitute" and finding.name.startswith("regression"):
            least = 0.5  # 0.68 with twice as many draws; with these it varies by some hundredths
        assert finding.holds and finding.bound.least <= finding.attainable, finding
        assert finding.share > least or finding.share_of_attainable > 0.8, finding


@pytest.mark.statistical
def test_the_program_as_it_is_is_not_refuted(small: Policy) -> None:
    """By the same classes; refuted with a probability of 10⁻⁷ at the most."""
    shown = tuple(dict.fromkeys(mutant.shown_by for mutant in MUTANTS))
    report = audit(small, replace(EXTENT, only=shown))
    assert [finding for finding in report.findings if not finding.holds] == []
