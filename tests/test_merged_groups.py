"""Sums of many groups: the groups of a sum are bought as one, with the others, and all that is known is combined."""

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dpsql.compiler.canonical.descriptions import ReleaseDescription
from dpsql.compiler.derivation.derivation import merges_sums, with_merged_groups
from dpsql.compiler.plan.query_plan import OtherRelease
from dpsql.gateway import derivations
from dpsql.gateway.engine import Engine
from dpsql.gateway.merged_groups import LeastSquares, fits, groups_of, merged_places
from dpsql.gateway.release import ReleasedCells
from dpsql.policy import load_policy
from dpsql.privacy.cost import Sensitivity
from dpsql.privacy.mechanisms import DiscreteGaussian
from tests.compiler.plans import Planner
from tests.conftest import MakeEngine
from tests.test_combined import FULL, answered, error, price
from tests.test_derived import PEOPLE, asks, run, shown, spent

OVERVIEW = f"SELECT sex, age, COUNT(*) {PEOPLE} GROUP BY 1, 2"
OF_ADULTS = f"SELECT sex, COUNT(*) {PEOPLE} AND age BETWEEN 18 AND 64 GROUP BY sex"


def ranges(count: int) -> list[str]:
    """Counts by sex between two ages, the same in each run."""
    chance = random.Random(5)
    ends = (sorted(chance.sample(range(111), 2)) for _ in range(count))
    return [OF_ADULTS.replace("18 AND 64", f"{low} AND {high}") for low, high in ends]


def test_many_ranges_cost_as_much_as_a_few(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """Each is as exact as if it were asked alone, and none costs more."""
    engine = make_engine(clinic_policy)
    session = asks(engine, "ines")
    run(session, OVERVIEW)
    prices = []
    for sql in ranges(40):
        before = spent(engine, "ines").rho
        result = run(session, sql)
        mine, anew = error(result, 1)
        assert mine <= anew * 1.001, sql
        prices.append(spent(engine, "ines").rho - before)
        assert prices[-1] == price(result) <= FULL
    assert sum(prices) < 12 * FULL
    told = run(session, sql)
    assert f"derived from {len(answered(told).derived_from)} of your releases (" in told.notices[0].message
    assert sum(prices[20:]) < sum(prices[:20]) / 3
    assert engine.ledger.verify().ok


@pytest.mark.parametrize(("seed", "merged"), [(0, 12), (1, derivations._MOST_MERGED)])
def test_what_was_bought_is_free_again(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch, seed: int, merged: int
) -> None:
    """After other ranges, coarser and finer releases and more exact ones, even if they are too many to be combined."""
    monkeypatch.setattr(derivations, "_MOST_MERGED", merged)
    session, chance = asks(make_engine(clinic_policy), "ines"), random.Random(seed)
    run(session, OVERVIEW)
    bought = []
    for sql in ranges(25):
        if price(run(session, sql)):
            bought.append(sql)
        if chance.random() < 0.2:
            run(session, "SET dpsql.reuse = exact")
            run(session, OVERVIEW.replace("age, COUNT", f"age / {chance.randint(2, 20)}, COUNT"))
            run(session, "SET dpsql.reuse = derived")
        if chance.random() < 0.1:
            run(session, "SET dpsql.epsilon = 0.12")
            run(session, chance.choice(bought))
            run(session, "SET dpsql.epsilon = 0.1")
        assert price(run(session, chance.choice(bought))) == 0
    assert [price(run(session, sql)) for sql in bought] == [0] * len(bought)


def test_more_exact_releases_do_not_displace_what_was_enough(
    make_engine: MakeEngine, clinic_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four releases are combined at most, of which some were bought for other ages, and are less exact."""
    monkeypatch.setattr(derivations, "_MOST_MERGED", 12)
    session = asks(make_engine(clinic_policy), "ines")
    run(session, OVERVIEW)
    asked = [OF_ADULTS.replace("64", str(last)) for last in (64, 66, 67)]
    assert all(price(run(session, sql)) for sql in asked)
    run(session, "SET dpsql.epsilon = 0.12")
    for ages in ("70 AND 100", "70 AND 105", "71 AND 110", "75 AND 108", "73 AND 107"):
        assert price(run(session, OF_ADULTS.replace("18 AND 64", ages)))
    run(session, "SET dpsql.epsilon = 0.1")
    again = [run(session, sql) for sql in asked]
    assert [price(result) for result in again] == [0, 0, 0]
    assert "derived from releases 1, 2, 3, 4 (" in again[2].notices[0].message
    run(session, "SET dpsql.epsilon = 0.15")
    assert 4 in answered(run(session, asked[2])).derived_from


def test_a_coarser_release_makes_no_sum_dearer(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """What is known of the finer groups may be more exact than the sum of a few coarser groups."""
    prices = []
    for user in ("ines", "jan"):
        session = asks(make_engine(clinic_policy), user)
        run(session, OVERVIEW)
        run(session, OF_ADULTS.replace("18 AND 64", "20 AND 58"))
        run(session, "SET dpsql.reuse = exact")
        if user == "jan":
            run(session, OVERVIEW.replace("age, COUNT", "age / 10, COUNT"))
        run(session, "SET dpsql.reuse = derived")
        prices.append(price(run(session, OF_ADULTS.replace("18 AND 64", "20 AND 59"))))
    assert prices[1] < prices[0] < FULL


def test_the_groups_of_a_sum_are_bought_as_one(make_engine: MakeEngine, clinic_policy: Path) -> None:
    engine = make_engine(clinic_policy)
    session = asks(engine, "ines")
    run(session, OVERVIEW)
    result = run(session, OF_ADULTS)
    (bought,) = answered(result).query.bought
    assert bought.keys == 3
    stored = ReleasedCells.from_bytes(
        engine.ledger.cells("ines", engine.ledger.handed("ines", engine.policy)[-1].release)
    )
    assert stored.count == 3 * (111 - 47 + 1)
    again = run(session, OF_ADULTS)
    assert price(again) == 0 and again.rows == result.rows
    assert "combined with your release 1" in result.notices[0].message
    assert "estimated from 2 releases: intervals are too narrow if" in result.notices[0].message
    assert answered(again).derived_from == (1, 2)
    plan = [str(row[0]) for row in run(session, f"EXPLAIN (VERBOSE) {OF_ADULTS}").rows]
    assert "  derived from release 1 (r0, estimated also from release 2):" in plan


def test_no_release_counts_twice(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """At this price what is missing would cost what was paid, so the release would be the same, and be free."""
    session = asks(make_engine(clinic_policy), "ines")
    run(session, OVERVIEW)
    (first,) = answered(run(session, OF_ADULTS)).query.bought
    run(session, "SET dpsql.epsilon = 0.1404")
    result = run(session, OF_ADULTS)
    (planned,) = answered(result).query.releases
    keys = [source.key for source in planned.sources]
    assert len(set(keys)) == len(keys) == 3 and first.key in keys
    assert FULL * Fraction(9, 10) < price(result) < FULL


def test_other_users_pay_for_themselves(make_engine: MakeEngine, clinic_policy: Path) -> None:
    """What one user was told makes nothing cheaper or more exact for another one."""
    engine = make_engine(clinic_policy)
    first, second = asks(engine, "ines"), asks(engine, "jan")
    for session in (first, second):
        run(session, OVERVIEW)
    run(first, OF_ADULTS)
    other = OF_ADULTS.replace("18", "20")
    alone = asks(make_engine(clinic_policy), "jan")
    run(alone, OVERVIEW)
    assert price(run(second, other)) == price(run(alone, other)) > price(run(first, other))


VALUES = ("COUNT(*)", "COUNT(*), SUM(weight)", "AVG(weight)", "COUNT(weight), VAR_POP(weight)")


@pytest.fixture
def people(each_wide_engine: Engine) -> Engine:
    """The wide world, of which nothing is cut, without noise, on each engine."""
    return each_wide_engine


def test_estimates_are_the_direct_answers(people: Engine) -> None:
    """Without noise, an estimate is what would be asked; the draws are the same in each run."""
    chance, found = random.Random(7), 0
    for values in VALUES:
        session = asks(people, f"merged {values}")
        run(session, OVERVIEW.replace("COUNT(*)", "COUNT(*), COUNT(weight), SUM(weight), AVG(weight), VAR_POP(weight)"))
        for _ in range(5):
            low, high = sorted(chance.sample(range(111), 2))
            ages = chance.choice((f"age BETWEEN {low} AND {high}", f"age IN ({low}, {high}, 40)", f"age < {high}"))
            keys, also = chance.choice(
                (("sex", ""), ("", ""), ("", " AND sex IN ('F', 'X')"), ("sex", " AND sex = 'M'"))
            )
            by = f" GROUP BY {keys}" if keys else ""
            sql = f"SELECT {', '.join(filter(None, (keys, values)))} {PEOPLE} AND {ages}{also}{by}"
            both = run(session, sql)
            run(session, "SET dpsql.reuse = off")
            assert shown(both) == shown(run(session, sql)), sql
            run(session, "SET dpsql.reuse = derived")
            found += any(each.merged for planned in answered(both).query.releases for each in planned.derived)
    assert found >= 3 or people.policy.dataset.url.startswith("parquet")


@pytest.mark.parametrize(
    ("setting", "sql"),
    [
        ("consistent = on", OF_ADULTS),
        ("intervals = on", OF_ADULTS.replace("COUNT(*)", "SUM(weight) / COUNT(*)")),
        ("reuse = derived", OF_ADULTS.replace("GROUP BY sex", "GROUP BY ROLLUP (sex)")),
        ("reuse = derived", OF_ADULTS.replace("sex, COUNT(*)", "FLOOR(age / 10), COUNT(*)").replace("BY sex", "BY 1")),
        ("reuse = derived", f"SELECT age, COUNT(*) {PEOPLE} AND sex IN ('F', 'M') GROUP BY age"),  # 111 merged groups
        ("adjacency", f"SELECT COUNT(*) {PEOPLE} AND age BETWEEN 18 AND 64"),
    ],
)
def test_estimates_are_not_made(make_engine: MakeEngine, clinic_policy: Path, setting: str, sql: str) -> None:
    """Where cells are combined further as if they were independent, or where a merged group costs more."""
    policy = clinic_policy
    if setting == "adjacency":
        policy = clinic_policy.with_name("substitute.toml")
        policy.write_text(clinic_policy.read_text().replace('"add_remove"', '"substitute"'))
        setting = "reuse = derived"
    session = asks(make_engine(policy), "ines")
    run(session, OVERVIEW.replace("COUNT(*)", "COUNT(*), SUM(weight)"))
    run(session, f"SET dpsql.{setting}")
    for ages in ("18 AND 64", "18 AND 63", "20 AND 64"):
        query = answered(run(session, sql.replace("18 AND 64", ages))).query
        assert not any(each.merged for planned in query.releases for each in planned.derived)


# Which releases have merged groups


def described(planner: Planner, sql: str) -> ReleaseDescription:
    found = planner.compile(sql).releases[0].described
    assert found is not None
    return found.description


def merging(condition: str, *, flag: str | None = None, other: str | None = None) -> str:
    """A query by sex and age in which the ages of a condition are one group."""
    return (
        f"SELECT sex, CASE WHEN {flag or condition} THEN TRUE ELSE FALSE END, "
        f"CASE WHEN {condition} THEN {other or 'NULL'} ELSE age END, COUNT(*) {PEOPLE} GROUP BY 1, 2, 3"
    )


@pytest.mark.parametrize(
    ("sql", "is_merged"),
    [
        (merging("age BETWEEN 20 AND 39"), True),
        (merging("age IN (20, 30) AND sex = 'F'"), True),
        (merging("age > 20", flag="age > 21"), False),
        (merging("age > 20", other="-1"), False),
        (merging("age > 20").replace("age BETWEEN 0 AND 110 AND ", ""), False),  # some may be older than is listed
        (OVERVIEW, False),
    ],
)
def test_merged_groups_are_described(clinic_policy: Path, sql: str, is_merged: bool) -> None:
    planner = Planner(load_policy(clinic_policy))
    told = described(planner, sql)
    assert told.merges_groups is is_merged
    assert ReleaseDescription.from_json(told.to_json()) == told
    assert fits(described(planner, OVERVIEW), told) is (is_merged or sql == OVERVIEW)


def test_what_fits(clinic_policy: Path) -> None:
    planner = Planner(load_policy(clinic_policy))
    have, told = described(planner, OVERVIEW), described(planner, merging("age < 20"))
    assert fits(have, told)
    assert not fits(have, replace(told, rows=3))
    assert not fits(have, replace(told, one_group=False))
    assert not fits(replace(have, one_group=False), told)
    assert not fits(have, replace(told, keys=told.keys[1:]))
    two = tuple(replace(key, merged=("other", key.text)) if key.merged is None else key for key in told.keys)
    assert not fits(have, replace(told, keys=two))
    none = described(planner, f"SELECT COUNT(*) {PEOPLE}")
    assert not fits(none, none)


def test_places_of_groups(clinic_policy: Path) -> None:
    planner = Planner(load_policy(clinic_policy))
    have, told = described(planner, OVERVIEW), described(planner, merging("age < 2"))
    mine = groups([("F", "0"), ("F", "1"), ("F", "2"), ("M", "0"), ("M", "2"), ("X", "5"), ("X", None)])
    named = {
        "sex": ("F", "F", "M", "M", "X"),
        "flag": ("true", "false") * 2 + ("false",),
        "age": (None, "2", None, "2", None),
    }
    columns = [named[each] for each in names(told)]
    merged = ReleasedCells(tuple(np.array(column, dtype=object) for column in columns), (np.zeros(5, dtype=np.int64),))
    found = groups_of(have, ordered(have, mine), told, merged)
    assert found.tolist() == [0, 0, 1, 2, 3, -1, 4]
    assert merged_places(found) == [0]


def names(told: ReleaseDescription) -> list[str]:
    return ["age" if key.merged else "flag" if key.type.value == "boolean" else "sex" for key in told.keys]


def groups(rows: Sequence[tuple[str | None, ...]]) -> ReleasedCells:
    columns = tuple(np.array(each, dtype=object) for each in zip(*rows, strict=True))
    return ReleasedCells(columns, (np.zeros(len(rows), dtype=np.int64),))


def ordered(have: ReleaseDescription, cells: ReleasedCells) -> ReleasedCells:
    """Groups by sex and age, with the keys in the order of a description."""
    return cells if have.keys[0].type.is_text else replace(cells, keys=cells.keys[::-1])


@pytest.mark.parametrize(
    ("first", "then", "is_offered"),
    [
        (OVERVIEW, OF_ADULTS, True),
        (OVERVIEW, f"SELECT COUNT(*) {PEOPLE} AND age < 30 AND sex = 'F'", True),
        (OVERVIEW, f"SELECT sex, COUNT(*) {PEOPLE} GROUP BY sex", False),  # there is no condition
        (OVERVIEW, f"SELECT FLOOR(age / 10), COUNT(*) {PEOPLE} AND sex = 'F' GROUP BY 1", False),
        (OVERVIEW, OF_ADULTS.replace("COUNT(*)", "SUM(weight)"), False),
        (f"SELECT age, COUNT(*) {PEOPLE} GROUP BY 1", OF_ADULTS, False),
        (f"SELECT FLOOR(age / 10), sex, COUNT(*) {PEOPLE} GROUP BY 1, 2", OF_ADULTS, False),
    ],
)
def test_what_is_offered(clinic_policy: Path, first: str, then: str, is_offered: bool) -> None:
    planner = Planner(load_policy(clinic_policy))
    query = planner.compile(then)
    asked = query.releases[0].described
    assert asked is not None and query.planned is not None
    release = with_merged_groups(described(planner, first), asked)
    assert (release is not None) is is_offered
    if release is not None:
        assert merges_sums(described(planner, merging("age BETWEEN 18 AND 64")), asked) is (then == OF_ADULTS)
        assert not merges_sums(described(planner, merging("age BETWEEN 18 AND 63")), asked)
        assert not merges_sums(described(planner, first), asked)
        (planned,) = query.planned(Fraction(1, 10), OtherRelease(release, 0), ()).releases
        assert planned.described is not None and fits(described(planner, first), planned.described.description)
        assert [each.noise for each in planned.primitives] == [each.noise for each in query.releases[0].primitives]


# Least squares over random systems, the same in each run: these numbers are no noise


def system(chance: np.random.Generator, cells: int, others: int) -> tuple[LeastSquares, list[np.ndarray]]:
    """Least squares with random merged groups, and the matrices of what each release tells."""
    told, matrices = list[tuple[np.ndarray, float]](), [np.eye(cells)]
    for _ in range(others):
        groups = chance.permutation(cells)
        for _ in range(chance.integers(0, 4)):
            members = chance.choice(cells, chance.integers(1, cells), replace=False)
            groups[members] = groups[members[0]]
        groups[chance.random(cells) < 0.1] = -1
        matrices.append(np.array([groups == place for place in range(cells)], dtype=float))
        told.append((groups, float(chance.integers(1, 50))))
    return LeastSquares(cells, float(chance.integers(1, 50)), tuple(told)), matrices


@pytest.mark.parametrize("seed", range(8))
def test_least_squares_are_those_of_numpy(seed: int) -> None:
    chance = np.random.default_rng(seed)
    cells = int(chance.integers(2, 30))
    least, matrices = system(chance, cells, int(chance.integers(1, 6)))
    variances = [least.drawn, *(drawn for _, drawn in least.others)]
    told = [chance.integers(-1000, 1000, cells) for _ in matrices]
    precision = sum(matrix.T @ matrix / drawn for matrix, drawn in zip(matrices, variances, strict=True))
    right = sum(matrix.T @ own / drawn for matrix, own, drawn in zip(matrices, told, variances, strict=True))
    assert np.allclose(least.estimates(told[0], told[1:]), np.linalg.solve(precision, right))
    sums = chance.integers(-1, 3, cells)
    spread = [used @ np.linalg.solve(precision, used) for place in range(3) if (used := (sums == place) * 1.0).any()]
    assert least.variance(sums) == pytest.approx(max(spread, default=0.0))


NOISES = tuple(DiscreteGaussian(Sensitivity(1, 1, 1, 1), Fraction(each)) for each in (90, 400, 25, 900))


def test_estimates_lie_within_their_intervals() -> None:
    """Of 20,000 sums fewer than 94.1 % lie within 1.96 standard errors with a probability below 1e-8."""
    chance = np.random.default_rng(3)
    least, matrices = system(chance, 25, 3)
    others = ((groups, float(noise.variance)) for (groups, _), noise in zip(least.others, NOISES[1:], strict=True))
    least = replace(least, drawn=float(NOISES[0].variance), others=tuple(others))
    exact = chance.integers(0, 1000, 25)
    sums = np.where(np.arange(25) % 3 == 0, 0, -1)
    half = 1.96 * np.sqrt(least.variance(sums))
    parts = [(matrix @ exact).astype(np.int64) for matrix in matrices]
    draws = [noise.sample(20_000 * 25).reshape(20_000, 25) for noise in NOISES]
    strayed = []
    for turn in range(20_000):
        told = [part + drawn[turn] for part, drawn in zip(parts, draws, strict=True)]
        strayed.append(abs((least.estimates(told[0], told[1:]) - exact)[sums == 0].sum()))
    assert np.mean(np.array(strayed) <= half) >= 0.941
    assert np.mean(np.array(strayed) <= half / 1.5) < 0.941
