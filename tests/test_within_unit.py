"""Joins on keys that the policy says lie within one unit compare the units, too, whatever the tables hold."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from dpsql.errors import InvalidPolicy, PolicyViolation, UndefinedColumn
from dpsql.gateway.session import Session
from tests.conftest import silent_engine
from tests.engines import HOSTS, Host
from tests.strategies.keys import Place

POLICY = """
version = 1
[dataset]
name = "hospital"
url = "{url}"
schema = "keys"
privacy_unit = "person"
budget = {{ epsilon = 100, delta = 1e-6 }}
[roles.analyst]
budget = {{ epsilon = 100, delta = 1e-6 }}
query = {{ epsilon = 1, delta = 1e-9, max_epsilon = 10 }}
[tables.visits]
unit_key = "pid"
max_rows = 40
within_unit = ["visit_id"]
columns = {{ cost = {{ type = "integer", lower = 0, upper = 9 }}, visit_id = {{ type = "integer" }} }}
[tables.notes]
unit_key = "pid"
max_rows = 40
within_unit = {within}
columns = {{ words = {{ type = "integer", lower = 0, upper = 9 }} }}
"""
JOINED = "visits JOIN notes USING (visit_id)"
Rows = Sequence[tuple[int, int, int]]
"""Person, visit, and a number."""


def _met(visits: Rows, notes: Rows) -> list[tuple[int, int]]:
    """The costs and words of rows of one visit and one person."""
    return [(cost, words) for p, v, cost in visits for person, visit, words in notes if (p, v) == (person, visit)]


def _noted(visits: Rows, notes: Rows) -> int:
    return sum((p, v) in {(person, visit) for person, visit, _ in notes} for p, v, _ in visits)


MEANINGS: Mapping[str, Callable[[Rows, Rows], int]] = {
    f"SELECT COUNT(*) FROM {JOINED}": lambda visits, notes: len(_met(visits, notes)),
    f"SELECT SUM(words * cost) FROM {JOINED}": lambda visits, notes: sum(a * b for a, b in _met(visits, notes)),
    "SELECT COUNT(words) FROM visits v LEFT JOIN notes n ON v.visit_id = n.visit_id": lambda visits, notes: len(
        _met(visits, notes)
    ),
    "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM notes n WHERE n.visit_id = v.visit_id)": _noted,
    "SELECT COUNT(*) FROM visits WHERE visit_id IN (SELECT visit_id FROM notes)": _noted,
    "SELECT COUNT(*) FROM (SELECT COUNT(*) AS n FROM visits GROUP BY visit_id) t": lambda visits, _: len(
        {(person, visit) for person, visit, _ in visits}
    ),
}
"""What is asked, and what it means."""


@pytest.fixture(params=HOSTS)
def place(request: pytest.FixtureRequest, hosts: Mapping[str, Host], tmp_path: Path) -> Iterator[Place]:
    with hosts[request.param].place(tmp_path) as opened:
        yield opened


def fill(place: Place, seed: int) -> tuple[Rows, Rows]:
    """Visits and notes of five persons, who share the numbers of their visits."""
    chance = random.Random(seed)
    visits, notes = ([(chance.randrange(5), chance.randrange(4), n % 10) for n in range(20)] for _ in range(2))
    place.fresh()
    place.run(
        "CREATE TABLE keys.visits (pid integer NOT NULL, visit_id integer, cost integer)",
        "CREATE TABLE keys.notes (pid integer NOT NULL, visit_id integer, words integer)",
        *(f"INSERT INTO keys.visits VALUES {row}" for row in visits),
        *(f"INSERT INTO keys.notes VALUES {row}" for row in notes),
    )
    return visits, notes


def execute(session: Session, query: str) -> object:
    (statement,) = session.parse(query)
    return session.execute(statement).rows[0][0]


def policy_of(place: Place, folder: Path, within: str = '["visit_id"]') -> Path:
    path = folder / "hospital.toml"
    path.write_text(POLICY.format(url=place.url, within=within), encoding="utf-8")
    return path


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_two_units_never_meet(place: Place, tmp_path: Path, seed: int) -> None:
    visits, notes = fill(place, seed)
    with silent_engine(policy_of(place, tmp_path), tmp_path) as opened:
        session = Session(opened, "ana")
        found = {query: execute(session, query) for query in MEANINGS}
    assert found == {query: meaning(visits, notes) for query, meaning in MEANINGS.items()}


def test_both_tables_must_name_the_key(place: Place, tmp_path: Path) -> None:
    fill(place, 0)
    path = policy_of(place, tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace('within_unit = ["visit_id"]\n', "", 1), encoding="utf-8")
    with silent_engine(path, tmp_path) as opened:
        session = Session(opened, "ana")
        with pytest.raises(UndefinedColumn, match="this key may only be used in joins"):
            execute(session, f"SELECT COUNT(*) FROM {JOINED}")


def test_the_values_of_a_key_that_is_no_column_are_not_shown(place: Place, tmp_path: Path) -> None:
    fill(place, 0)
    with silent_engine(policy_of(place, tmp_path), tmp_path) as opened:
        session = Session(opened, "ana")
        assert execute(session, f"SELECT COUNT(*) FROM {JOINED}")
        with pytest.raises(PolicyViolation, match="groups of one person cannot be selected"):
            execute(session, "SELECT visit_id, COUNT(*) FROM notes GROUP BY visit_id")
        with pytest.raises(UndefinedColumn, match="this key may only be used in joins"):
            execute(session, "SELECT MAX(visit_id) FROM notes")


@pytest.mark.parametrize("within", ["[]", "3", '["nothing"]', '"visit_id"'])
def test_a_key_that_is_none_is_refused(place: Place, tmp_path: Path, within: str) -> None:
    fill(place, 0)
    with (
        pytest.raises(InvalidPolicy, match=r"within_unit|no column"),
        silent_engine(policy_of(place, tmp_path, within), tmp_path),
    ):
        pass
