"""The audit accepts the program as it is, and refutes it with each of these faults planted.

The program as it is is refuted with a probability below 10⁻⁶, all claims of this file together: that is the error that
the audit is given. Noise is the system's own and is not seeded.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsql.auditing import Extent, audit
from dpsql.backends import Cancellation
from dpsql.compiler import joins, pricing, rewrite, verify
from dpsql.compiler.engines.duckdb import DuckDB
from dpsql.compiler.kept_groups import by_ranking_all, by_ranking_few
from dpsql.compiler.planned import CompiledQuery
from dpsql.compiler.render import Renderer
from dpsql.engine import Answer, Engine
from dpsql.policy import Policy
from dpsql.privacy import selection
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.selection import GaussianThreshold, TruncatedGeometric
from dpsql.privacy.sensitivity import Sensitivity, cell_sensitivity

CONFIDENCE = 1 - 1e-7
EXTENT = Extent(units=150, runs=4, single_runs=50, confidence=CONFIDENCE, mechanisms=("laplace",))

Patch = pytest.MonkeyPatch


def sensitivity_of_a_quarter(patch: Patch) -> None:
    """The plan's own check would refuse it, so that is planted too."""

    def quarter(*arguments: Any, **named: Any) -> Sensitivity:
        whole = cell_sensitivity(*arguments, **named)
        return Sensitivity(whole.l0, -(-whole.linf // 4), -(-whole.l1 // 4), -(-whole.l2_squared // 16))

    patch.setattr(pricing, "cell_sensitivity", quarter)
    patch.setattr(verify, "_check_noise", lambda *_: None)


def scale_of_a_quarter(patch: Patch) -> None:
    for law, power in ((DiscreteLaplace, 1), (DiscreteGaussian, 2)):
        drawn, name = law.sample, "scale" if power == 1 else "variance"

        def less(self: Any, size: int, drawn: Any = drawn, name: str = name, power: int = power) -> NDArray[np.int64]:
            found: NDArray[np.int64] = drawn(replace(self, **{name: getattr(self, name) / 4**power}), size)
            return found

        patch.setattr(law, "sample", less)


def groups_without_a_cap(patch: Patch) -> None:
    patch.setattr(rewrite, "by_ranking_few", lambda most, same: by_ranking_few(10**6, same))
    patch.setattr(rewrite, "by_ranking_all", lambda most, keys, **lists: by_ranking_all(10**6, keys, **lists))
    ranked = rewrite._Rewrite._ranked_rows
    patch.setattr(rewrite._Rewrite, "_ranked_rows", lambda self: ranked(self).replace("r <=", "r >= 1 OR r <="))


def rows_without_a_cap(patch: Patch) -> None:
    bounded = rewrite._Rewrite._bounded
    patch.setattr(
        rewrite._Rewrite, "_bounded", lambda self, part, inner: bounded(self, replace(part, cap=10**6), inner)
    )


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


def rows_of_nobody_kept(patch: Patch) -> None:
    patch.setattr(
        Renderer, "_unit_key", lambda self, name, column, kind: (self.dialect.canonical(f'"{name}"', column, kind), "")
    )


def join_that_multiplies_rows_uncounted(patch: Patch) -> None:
    of_units = joins.Joiner._of_units
    patch.setattr(
        joins.Joiner, "_of_units", lambda self, *sides: replace(of_units(self, *sides), one_row=True, max_rows=1)
    )


def charge_after_the_read(patch: Patch) -> None:
    """An error then costs nothing, which is what giving the price back comes to."""
    execute = Engine.execute

    def late(
        self: Engine, user: str, query: CompiledQuery, cancellation: Cancellation, *, reuse: bool = True
    ) -> Answer:
        self._backend.fetch(dict(enumerate(query.releases)), (), cancellation)
        return execute(self, user, query, cancellation, reuse=reuse)

    patch.setattr(Engine, "execute", late)


def reuse_across_versions_of_the_data(patch: Patch) -> None:
    patch.setattr(Policy, "fingerprint", "one for all")


def reuse_with_fresh_noise(patch: Patch) -> None:
    """What was had is made again, for nothing."""
    again = Engine.execute

    def fresh(
        self: Engine, user: str, query: CompiledQuery, cancellation: Cancellation, *, reuse: bool = True
    ) -> Answer:
        answer = again(self, user, query, cancellation, reuse=reuse)
        if not answer.reused or answer.charge is None:
            return answer
        forgotten = tuple(replace(granted, payload=None) for granted in answer.charge.releases)
        return replace(answer, rows=self._read(user, query, forgotten, cancellation))

    patch.setattr(Engine, "execute", fresh)


@dataclass(frozen=True)
class Mutant:
    """A fault, and the class that shows it."""

    plant: Callable[[Patch], None]
    shown_by: str
    extent: Extent = EXTENT


MUTANTS = [
    Mutant(sensitivity_of_a_quarter, "SUM people"),
    Mutant(scale_of_a_quarter, "COUNT people"),
    Mutant(scale_of_a_quarter, "COUNT people", replace(EXTENT, mechanisms=("gaussian",))),
    Mutant(groups_without_a_cap, "groups visits, 1 kept", replace(EXTENT, units=600)),
    Mutant(rows_without_a_cap, "COUNT visits"),
    Mutant(clamp_to_the_largest_value_there_is, "SUM people"),
    Mutant(delta_spent_twice, "selection", replace(EXTENT, units=600, runs=8)),
    Mutant(selection_without_noise, "selection"),
    Mutant(noise_in_floating_point, "COUNT people", replace(EXTENT, units=600)),
    Mutant(rows_of_nobody_kept, "rows of nobody visits", replace(EXTENT, single_runs=80)),
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


@pytest.mark.statistical
def test_the_program_as_it_is_is_not_refuted(small: Policy) -> None:
    """By the same classes; refuted with a probability of 10⁻⁷ at the most."""
    shown = tuple(dict.fromkeys(mutant.shown_by for mutant in MUTANTS))
    report = audit(small, replace(EXTENT, only=shown, mechanisms=("laplace", "gaussian")))
    assert [finding for finding in report.findings if not finding.holds] == []
