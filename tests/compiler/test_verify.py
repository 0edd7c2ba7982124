"""Plans that were tampered with are not run: the guarantee is computed again from the plan alone."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpsql.compiler.plan.pricing import PlannedPrimitive
from dpsql.compiler.plan.query_plan import CompiledQuery, PlannedRelease
from dpsql.compiler.plan.verify import verify
from dpsql.errors import GuaranteeMismatch, PolicyViolation
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from dpsql.privacy.cost import Accountant, Event, Sensitivity
from dpsql.privacy.exponential_mechanism import Rank, RankChoice
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.selection import GaussianThreshold, Threshold, TruncatedGeometric
from tests.compiler.plans import Planner, changed_policy

PRIVATE = "SELECT city, COUNT(*), SUM(age) FROM patients GROUP BY city"
PUBLIC = (
    "SELECT icd, COUNT(*), AVG(cost), SUM(cost), COUNT(DISTINCT doctor_id), "
    "COUNT(DISTINCT patient_id) FROM visits GROUP BY icd"
)
TOTAL = "SELECT COUNT(*), SUM(cost), AVG(duration_min - 100), SUM(-cost) FROM visits"
SINGLE = "SELECT SUM(age - 50), AVG(age), COUNT(*) FROM patients"
DRUGS = "SELECT drug, COUNT(*), AVG(dose) FROM prescriptions GROUP BY drug"
DISTINCT = "SELECT city, COUNT(DISTINCT patient_id) FROM visits GROUP BY city"
SPREAD = "SELECT VAR_POP(cost), COVAR_POP(cost, duration_min) FROM visits"
OF_DISTINCT = "SELECT SUM(DISTINCT duration_min), AVG(DISTINCT duration_min) FROM visits"
RANKS = "SELECT PERCENTILE_DISC(0.75) WITHIN GROUP (ORDER BY duration_min) FROM visits"
QUERIES = [PRIVATE, PUBLIC, TOTAL, SINGLE, DRUGS, DISTINCT, SPREAD, OF_DISTINCT]

ACCOUNTANTS = {
    "zcdp": {},
    "basic": {'accountant = "zcdp"': 'accountant = "basic"'},
    "advanced": {'accountant = "zcdp"': 'accountant = "advanced"'},
    "rdp": {
        'accountant = "zcdp", selection_share = 0.5': 'accountant = "rdp"',
        "epsilon = 0.1, delta = 1e-9": "epsilon = 0.1, delta = 0",
    },
    "pure": {
        'epsilon = 5, delta = 1e-6, accountant = "zcdp", selection_share = 0.5': 'epsilon = 5, accountant = "pure"',
        "epsilon = 0.1, delta = 1e-9": "epsilon = 0.1, delta = 0",
    },
}
WITHOUT_KEYS = ("pure", "rdp")
ADJACENCIES = {"add_remove": {}, "substitute": {'adjacency = "add_remove"': 'adjacency = "substitute"'}}


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


@pytest.fixture(scope="module", params=list(ADJACENCIES))
def adjacency(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=list(ACCOUNTANTS))
def accountant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def variant(clinic_policy: Path, accountant: str, adjacency: str) -> Planner:
    with changed_policy(
        clinic_policy, f"{accountant}-{adjacency}", ACCOUNTANTS[accountant] | ADJACENCIES[adjacency]
    ) as p:
        return Planner(load_policy(p))


@pytest.mark.parametrize("mechanism", ["auto", "laplace", "gaussian"])
@pytest.mark.parametrize("sql", QUERIES)
def test_every_plan_costs_its_price_and_hardly_less(
    variant: Planner, accountant: str, adjacency: str, sql: str, mechanism: str
) -> None:
    """compile_query verifies what it makes; here the price is also nearly used up."""
    private = "GROUP BY city" in sql or "GROUP BY drug" in sql
    if (private and accountant in WITHOUT_KEYS) or (accountant == "pure" and mechanism == "gaussian"):
        with pytest.raises(Exception, match=r"delta|pure"):
            variant.compile(sql, mechanism=mechanism)
        return
    query = variant.compile(sql, mechanism=mechanism)
    assert query.price is not None
    spent = Spent.zero().add([event for release in query.releases for event in release.events])
    loss = {
        Accountant.ZCDP: (spent.rho, query.price.epsilon**2 / 2),
        Accountant.RDP: (spent.rho, query.price.epsilon**2 / 2),
        Accountant.BASIC: (spent.basic_epsilon, query.price.epsilon),
        Accountant.ADVANCED: (spent.basic_epsilon, query.price.epsilon),
        Accountant.PURE: (spent.pure_epsilon, query.price.epsilon),
    }[query.price.accountant]
    assert loss[0] is not None
    # Each unit of a pure or basic primitive is rounded to whole cells, so a little may be left.
    assert loss[1] * Fraction(9, 10) < loss[0] <= loss[1] + Fraction(1, 10**20)
    # Under basic and advanced composition a Gaussian has a delta of its own, and with auto it may be chosen.
    noise_delta = accountant in ("basic", "advanced") and mechanism != "laplace"
    assert not private or spent.basic_delta > 0
    assert private or noise_delta or spent.delta == spent.basic_delta == 0
    for release in query.releases:
        assert release.private_keys == private
        for planned in release.primitives:
            groups = release.contribution.groups_per_unit * (
                2 if adjacency == "substitute" and release.contribution.grouped else 1
            )
            assert planned.noise.sensitivity.l0 == groups
            if mechanism != "auto":
                kind = DiscreteLaplace if mechanism == "laplace" else DiscreteGaussian
                assert isinstance(planned.noise, kind)


def test_choices_cost_their_price_and_hardly_less(variant: Planner, adjacency: str) -> None:
    """Whatever dpsql.mechanism says: one choice of a group, and the scale that the adjacency asks for."""
    query = variant.compile("SELECT sex, MEDIAN(age) FROM patients GROUP BY sex", mechanism="laplace")
    (release,) = query.releases
    (planned,) = release.primitives
    assert isinstance(planned.noise, RankChoice) and query.price is not None
    # Of a unit that another replaces, one leaves a group and the other enters one, the same or another.
    replaced = adjacency == "substitute"
    assert planned.noise.sensitivity == Sensitivity(*((2, 2, 2, 4) if replaced else (1, 1, 1, 1)))
    spent = Spent.zero().add(release.events)
    if query.price.accountant.shares_rho:
        assert query.price.rho * Fraction(99, 100) < spent.rho <= query.price.rho
    else:
        assert spent.pure_epsilon == spent.basic_epsilon == query.price.epsilon
    assert spent.delta == spent.basic_delta == 0


def tamper(query: CompiledQuery, change: Callable[[PlannedRelease], PlannedRelease]) -> CompiledQuery:
    return replace(query, releases=tuple(change(release) for release in query.releases))


def with_noise(index: int, change: Callable[[Any], Any]) -> Callable[[PlannedRelease], PlannedRelease]:
    def changed(release: PlannedRelease) -> PlannedRelease:
        primitives = list(release.primitives)
        primitives[index] = PlannedPrimitive(primitives[index].primitive, change(primitives[index].noise))
        return replace(release, primitives=tuple(primitives))

    return changed


def with_primitive(index: int, **changes: Any) -> Callable[[PlannedRelease], PlannedRelease]:
    def changed(release: PlannedRelease) -> PlannedRelease:
        primitives = list(release.primitives)
        primitives[index] = PlannedPrimitive(replace(primitives[index].primitive, **changes), primitives[index].noise)
        return replace(release, primitives=tuple(primitives))

    return changed


def less(name: str) -> Callable[[Any], Any]:
    def change(noise: Any) -> Any:
        value = getattr(noise.sensitivity, name)
        return replace(noise, sensitivity=replace(noise.sensitivity, **{name: value - 1}))

    return change


def half_scale(noise: Any) -> Any:
    return (
        replace(noise, scale=noise.scale / 2)
        if hasattr(noise, "scale")
        else replace(noise, variance=noise.variance / 2)
    )


def touching(groups: int) -> Callable[[PlannedRelease], PlannedRelease]:
    return lambda release: replace(release, contribution=replace(release.contribution, groups_per_unit=groups))


def more_groups_of_less(noise: Any) -> Any:
    """Sensitivities that are larger in one norm and smaller in another."""
    sensitivity = noise.sensitivity
    return replace(noise, sensitivity=replace(sensitivity, l0=sensitivity.l0 + 1, l1=sensitivity.l1 - 1))


class UnderstatedLaplace(DiscreteLaplace):
    """Noise that charges less than it costs."""

    @property
    def event(self) -> Event:
        """The event of twice the noise."""
        return replace(super().event, scale=2 * self.scale)


def understated(noise: Any) -> Any:
    return UnderstatedLaplace(noise.sensitivity, noise.scale)


def as_laplace(choice: Any) -> DiscreteLaplace:
    return DiscreteLaplace(choice.sensitivity, choice.scale)


def narrower(function: str, bound: str) -> Callable[[PlannedRelease], PlannedRelease]:
    """Products on a grid that ends before they do."""

    def changed(release: PlannedRelease) -> PlannedRelease:
        products = [index for index, planned in enumerate(release.primitives) if planned.primitive.factors]
        index = next(
            i for i in products if (len(set(release.primitives[i].primitive.factors)) == 1) == (function == "square")
        )
        primitive = release.primitives[index].primitive
        assert primitive.grid is not None
        grid = replace(primitive.grid, **{bound: getattr(primitive.grid, bound) // 2})
        return with_primitive(index, grid=grid)(release)

    return changed


TAMPERED: dict[str, tuple[str, Callable[[PlannedRelease], PlannedRelease]]] = {
    "half the noise": (PUBLIC, with_noise(0, half_scale)),
    "half the noise of a single cell": (SINGLE, with_noise(0, half_scale)),
    "half the noise of a mean": (TOTAL, with_noise(2, half_scale)),
    "a larger l0 and a smaller l1": (PUBLIC, with_noise(1, more_groups_of_less)),
    "noise that is not what is charged": (SINGLE, with_noise(2, understated)),
    "a smaller l0": (PUBLIC, with_noise(0, less("l0"))),
    "a smaller linf": (PUBLIC, with_noise(1, less("linf"))),
    "a smaller l1": (PUBLIC, with_noise(1, less("l1"))),
    "a smaller l2": (PUBLIC, with_noise(1, less("l2_squared"))),
    "a smaller linf of an ungrouped sum": (TOTAL, with_noise(1, less("linf"))),
    "more groups than are noised for": (PUBLIC, touching(11)),
    "more rows than are noised for": (PUBLIC, with_primitive(0, cap=6)),
    "more distinct values than are noised for": (PUBLIC, with_primitive(4, cap=6)),
    "squares beyond their grid": (SPREAD, narrower("square", "upper")),
    "products below their grid": (SPREAD, narrower("product", "lower")),
    "more distinct values than are noised for in a sum": (OF_DISTINCT, with_primitive(0, cap=51)),
    "half the scale of a choice": (RANKS, with_noise(0, half_scale)),
    "a choice by another rank": (RANKS, with_noise(0, lambda choice: replace(choice, rank=Rank.least()))),
    "a choice from another grid": (RANKS, with_noise(0, lambda choice: replace(choice, upper=choice.upper + 1))),
    "more rows than a choice is made for": (RANKS, with_primitive(0, cap=51)),
    "a rank that moves further": (RANKS, with_primitive(0, rank=Rank(1, 9))),
    "noise instead of a choice": (RANKS, with_noise(0, as_laplace)),
    "no selection": (PRIVATE, lambda release: replace(release, selection=None)),
    "keys that are private after all": (PUBLIC, lambda release: replace(release, private_keys=True)),
    "keys that are public after all": (PRIVATE, lambda release: replace(release, private_keys=False)),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered_plans_are_not_run(planner: Planner, name: str) -> None:
    sql, change = TAMPERED[name]
    query = planner.compile(sql, mechanism="laplace")
    verify(query, planner.catalog)
    with pytest.raises(GuaranteeMismatch):
        verify(tamper(query, change), planner.catalog)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("bound", ["lower", "upper"])
def test_a_wider_grid_is_noticed(variant: Planner, index: int, bound: str) -> None:
    query = variant.compile(TOTAL)
    (release,) = query.releases
    primitive = release.primitives[index].primitive
    if primitive.grid is None:
        return
    size = 10 * max(abs(primitive.grid.lower), abs(primitive.grid.upper))
    wider = replace(primitive.grid, lower=-size) if bound == "lower" else replace(primitive.grid, upper=size)
    with pytest.raises(GuaranteeMismatch):
        verify(tamper(query, with_primitive(index, grid=wider)), variant.catalog)


@pytest.mark.parametrize("name", ["l0", "linf", "l1", "l2_squared"])
@pytest.mark.parametrize("sql", [PUBLIC, TOTAL, SINGLE])
def test_smaller_sensitivities_are_noticed(variant: Planner, sql: str, name: str) -> None:
    query = variant.compile(sql)
    for index in range(len(query.releases[0].primitives)):
        if name == "l0" and query.releases[0].primitives[index].noise.sensitivity.l0 == 1:
            continue
        with pytest.raises(GuaranteeMismatch):
            verify(tamper(query, with_noise(index, less(name))), variant.catalog)


def test_a_price_that_is_not_the_plans(planner: Planner) -> None:
    query = planner.compile(PUBLIC)
    assert query.price is not None
    for price in (
        None,
        replace(query.price, epsilon=query.price.epsilon / 2),
        replace(query.price, epsilon=Fraction(2)),
        replace(query.price, accountant=Accountant.PURE),
    ):
        with pytest.raises(GuaranteeMismatch):
            verify(replace(query, price=price), planner.catalog)
    private = planner.compile(PRIVATE)
    assert private.price is not None
    with pytest.raises(GuaranteeMismatch):
        verify(replace(private, price=replace(private.price, delta=Fraction(0))), planner.catalog)


def with_fewer_groups(release: PlannedRelease) -> PlannedRelease:
    """A selection calibrated to one group less than a unit may touch."""
    selection = release.selection
    if isinstance(selection, Threshold):
        sensitivity = selection.event.sensitivity
        event = replace(selection.event, sensitivity=replace(sensitivity, l0=sensitivity.l0 - 1))
        return replace(release, selection=replace(selection, event=event))
    if isinstance(selection, GaussianThreshold):
        sensitivity = selection.threshold.event.sensitivity
        event = replace(selection.threshold.event, sensitivity=replace(sensitivity, l0=sensitivity.l0 - 1))
        return replace(release, selection=replace(selection, threshold=replace(selection.threshold, event=event)))
    assert isinstance(selection, TruncatedGeometric)
    return replace(release, selection=replace(selection, l0=selection.l0 - 1))


def with_less_noise_in_the_selection(release: PlannedRelease) -> PlannedRelease:
    """A selection whose own noise is for one group less than a unit may touch."""
    selection = release.selection
    assert isinstance(selection, GaussianThreshold)
    sensitivity = selection.noise.sensitivity
    less = replace(sensitivity, l0=sensitivity.l0 - 1, l1=sensitivity.l1 - 1, l2_squared=sensitivity.l2_squared - 1)
    return replace(release, selection=replace(selection, noise=replace(selection.noise, sensitivity=less)))


@pytest.mark.parametrize("sql", [DRUGS, "SELECT drug, COUNT(DISTINCT patient_id) FROM prescriptions GROUP BY drug"])
def test_selections_for_fewer_groups_are_noticed(variant: Planner, accountant: str, sql: str) -> None:
    if accountant in WITHOUT_KEYS:
        with pytest.raises(PolicyViolation):
            variant.compile(sql)
        return
    query = variant.compile(sql)
    with pytest.raises(GuaranteeMismatch):
        verify(tamper(query, with_fewer_groups), variant.catalog)


def test_a_selection_with_too_little_noise_is_noticed(planner: Planner) -> None:
    query = planner.compile(DRUGS)
    with pytest.raises(GuaranteeMismatch):
        verify(tamper(query, with_less_noise_in_the_selection), planner.catalog)


def passing_sooner(release: PlannedRelease) -> PlannedRelease:
    """A threshold that is lower by one."""
    selection = release.selection
    if isinstance(selection, Threshold):
        return replace(release, selection=replace(selection, cutoff=selection.cutoff - 1))
    assert isinstance(selection, GaussianThreshold)
    threshold = replace(selection.threshold, cutoff=selection.threshold.cutoff - 1)
    return replace(release, selection=replace(selection, threshold=threshold))


OF_UNITS = "SELECT drug, COUNT(DISTINCT patient_id) FROM prescriptions GROUP BY drug"


@pytest.mark.parametrize(
    ("sql", "mechanism", "kind"),
    [(OF_UNITS, "laplace", Threshold), (OF_UNITS, "gaussian", Threshold), (DRUGS, "auto", GaussianThreshold)],
)
def test_a_threshold_lower_by_one_is_noticed(planner: Planner, sql: str, mechanism: str, kind: type) -> None:
    query = planner.compile(sql, mechanism=mechanism)
    assert isinstance(query.releases[0].selection, kind)
    with pytest.raises(GuaranteeMismatch, match="a probability above its delta"):
        verify(tamper(query, passing_sooner), planner.catalog)


def test_a_selection_by_a_cell_that_it_is_not_made_for_is_noticed(planner: Planner) -> None:
    """A threshold is compared with a noisy cell, and a selection of its own with none."""
    query = planner.compile(OF_UNITS, mechanism="laplace")
    own = TruncatedGeometric(40, Fraction(1), Fraction(1, 10**9))
    for changes in ({"threshold_primitive": None}, {"selection": own}):
        with pytest.raises(GuaranteeMismatch, match=r"unknown kind of selection|not calibrated"):
            verify(tamper(query, partial(replace, **changes)), planner.catalog)


def test_a_release_that_is_there_twice_is_noticed(planner: Planner) -> None:
    """The ledger would charge it once."""
    query = planner.compile(PUBLIC)
    assert query.price is not None
    twice = replace(query, releases=query.releases * 2, price=replace(query.price, epsilon=2 * query.price.epsilon))
    with pytest.raises(GuaranteeMismatch):
        verify(twice, planner.catalog)


NESTED = "SELECT COUNT(*) FROM visits WHERE cost > (SELECT AVG(cost) FROM visits)"


def test_what_a_release_is_made_of_is_made_before_it_and_charged(planner: Planner) -> None:
    query = planner.compile(NESTED)
    verify(query, planner.catalog)
    for releases in (query.releases[::-1], query.releases[1:]):
        with pytest.raises(GuaranteeMismatch, match="computed before it"):
            verify(replace(query, releases=releases), planner.catalog)


def test_a_plan_without_releases_is_free(planner: Planner) -> None:
    query = planner.compile("SELECT COUNT(*) FROM doctors")
    assert query.releases == ()
    assert query.price is None
    verify(query, planner.catalog)
