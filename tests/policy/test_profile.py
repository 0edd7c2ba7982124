"""What a profile says of bounds, and which tables it tells of."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.policy import Policy, Table, UnitVia, load_policy
from dpsql.policy.profile import Profile, RankGroups, RowRanks, TableProfile, coarse_bounds, table_facts
from dpsql.privacy.cost import Event, Mechanism, Sensitivity

EVENT = Event(Mechanism.GAUSSIAN, Sensitivity(l0=7, linf=200, l1=200, l2_squared=40000), Fraction(12345, 67))
IN_ALL = RowRanks(RankGroups(), (100, 80, 200, -30, 50), Fraction(9, 2), 1)


@pytest.mark.parametrize(
    ("most", "bounds"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (50, (1, 2, 5, 10, 20, 50)), (64, (1, 2, 5, 10, 20, 50, 64))],
)
def test_bounds_end_in_the_policys(most: int, bounds: tuple[int, ...]) -> None:
    assert coarse_bounds(most) == bounds


def test_a_wider_bound_drops_no_more() -> None:
    dropped = [IN_ALL.dropped(place)[0] for place in range(4)]
    assert dropped == [300, 220, 50, 50]
    assert [IN_ALL.dropped(place)[1] for place in range(4)] == [Fraction(9, 2) * count for count in (4, 3, 2, 1)]
    assert IN_ALL.share_dropped(0) == 0.75


def test_noise_alone_drops_nothing() -> None:
    nothing = replace(IN_ALL, rows=(-3, -1))
    assert nothing.dropped(0)[0] == 0
    assert nothing.share_dropped(0) == 0


def test_groups_in_words() -> None:
    groups = [RankGroups(), RankGroups("icd"), RankGroups("visited_on", "month")]
    assert list(map(str, groups)) == ["in all", "in one icd", "in one month of visited_on"]


@pytest.fixture
def policy(clinic_policy: Path) -> Policy:
    return load_policy(clinic_policy)


def table(policy: Policy, name: str) -> Table:
    found = policy.table(name)
    assert found is not None
    return found


def made(policy: Policy, name: str) -> Profile:
    by_icd = replace(IN_ALL, grouping=RankGroups("icd"), groups=40)
    facts = table_facts(policy, table(policy, name))
    return Profile((TableProfile(name, facts, (1, 2, 5, 50), (IN_ALL, by_icd)),), (EVENT,))


def test_it_is_read_as_it_was_written(policy: Policy) -> None:
    profile = made(policy, "visits")
    assert Profile.from_json(profile.to_json()) == profile
    assert Profile.from_json(profile.to_json()).id == profile.id
    other = replace(profile.tables[0], ranks=(replace(IN_ALL, rows=(100, 80, 200, -30, 51)),))
    assert replace(profile, tables=(other,)).id != profile.id


def test_it_tells_of_a_table_as_long_as_nothing_is_changed(policy: Policy) -> None:
    profile, visits = made(policy, "visits"), table(policy, "visits")
    assert profile.of(policy, visits) == profile.tables[0]
    assert profile.of(policy, table(policy, "prescriptions")) is None
    newer = replace(policy, dataset=replace(policy.dataset, data_version="2027"))
    assert profile.of(newer, visits) is None
    for changed in (
        replace(visits, rows_per_unit=60),
        replace(visits, rows_per_group=5),
        replace(visits, unit_key="doctor_id"),
        replace(visits, unit_key=None, unit_via=(UnitVia("patients", (("patient_id", "patient_id"),)),)),
    ):
        assert profile.of(policy, changed) is None


def test_the_whole_way_to_the_unit_counts(policy: Policy) -> None:
    profile, prescriptions = made(policy, "prescriptions"), table(policy, "prescriptions")
    assert profile.of(policy, prescriptions) is not None
    tables = tuple(replace(each, unit_key="doctor_id") if each.name == "visits" else each for each in policy.tables)
    assert profile.of(replace(policy, tables=tables), prescriptions) is None
