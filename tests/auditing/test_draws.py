"""What is drawn anew is what `release` makes of the same exact cells, each unit's in its own place."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpsql.auditing.draws import Drawable
from dpsql.auditing.verdict import Trials
from dpsql.backends import ExactCells
from dpsql.policy import load_policy
from tests.compiler.plans import Planner

BY_AGE = "SELECT age, COUNT(*) FROM patients GROUP BY age"
BY_CITY = "SELECT city, COUNT(*) FROM patients GROUP BY city"
IN_ALL = "SELECT COUNT(*), SUM(age) FROM patients"
MODES = "SELECT doctor_id, MODE() WITHIN GROUP (ORDER BY icd) FROM visits GROUP BY doctor_id"
TOP = "SELECT icd FROM visits GROUP BY icd ORDER BY COUNT(*) DESC LIMIT 1"
FEW = "SELECT cost > 100, COUNT(*) FROM visits GROUP BY 1"

pytestmark = pytest.mark.usefixtures("no_noise")


@pytest.fixture(scope="module")
def planner(clinic_policy: Path) -> Planner:
    return Planner(load_policy(clinic_policy))


def drawable(planner: Planner, sql: str, keys: tuple[list[str | None], ...], *cells: list[int]) -> Drawable:
    planned = planner.compile(sql, mechanism="laplace").releases[0]
    names = tuple(np.array(key, dtype=object) for key in keys)
    units = np.array([1] * len(cells[0]))
    return Drawable(planned, ExactCells(names, units, tuple(map(np.array, cells))))


def test_cells_lie_where_their_unit_s_groups_are(planner: Planner) -> None:
    drawn = drawable(planner, BY_AGE, (["5", "6", "7"],), [50, 60, 70]).drawn(((7, 5), (8, 6)), 3)
    assert drawn.shape == (3, 2, 2, 1)
    wanted = np.array([[70, 50], [np.nan, 60]])
    assert all(np.array_equal(each, wanted, equal_nan=True) for each in drawn[..., 0])


def test_private_groups_are_shown_or_not(planner: Planner) -> None:
    of = drawable(planner, BY_CITY, (["Ulm", "Bonn"],), [4, 5])
    gone = replace(of, exact=replace(of.exact, units=np.array([1, 0])))
    drawn = gone.drawn((("Ulm",), ("Bonn",)), 2)
    wanted = np.array([[1, 4], [np.nan, np.nan]])
    assert all(np.array_equal(each, wanted, equal_nan=True) for each in drawn[:, :, 0])


def test_whole_results_are_one_trial(planner: Planner) -> None:
    drawn = drawable(planner, IN_ALL, (), [3], [9]).drawn((), 4)
    assert drawn.reshape(4, 2).tolist() == [[3, 9]] * 4


def test_groups_that_nothing_limits_are_drawn_one_after_another(planner: Planner) -> None:
    """More copies of them at once would be more groups than the noise is made for."""
    drawn = drawable(planner, FEW, (["f", "t", None],), [1, 2, 3]).drawn((("t",),), 5)
    assert drawn.ravel().tolist() == [2] * 5


def test_what_is_picked_first_is_named(planner: Planner) -> None:
    keys: tuple[list[str | None], ...] = (["1", "1", "2", "2"], ["A", "B", "A", "B"])
    drawn = drawable(planner, MODES, keys, [5, 1, 0, 7]).drawn(((2,), (1,)), 2)
    assert drawn.shape == (2, 2, 1, 1)
    assert drawn[0, 0, 0, 0] != drawn[0, 1, 0, 0]
    top = drawable(planner, TOP, (["A", "B"],), [1, 5]).drawn((), 2)
    assert len(set(top.ravel())) == 1
    assert Trials().keys == ()


def test_a_release_without_groups_of_units_lies_in_none(planner: Planner) -> None:
    whole = drawable(planner, IN_ALL, (), [3], [9])
    assert whole.lies_in(()) and not whole.lies_in(((1,),))
