"""The heart, for keys of every type: a person moves the cells by no more than was claimed, or the type is refused."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dpsql.backends import fit
from dpsql.errors import InvalidPolicy
from dpsql.gateway.session import Session
from tests.conftest import silent_engine
from tests.engines import HOSTS, Host
from tests.examples import profile
from tests.strategies.distance import TooFar
from tests.strategies.keys import DUCKDB, KINDS, Keys, Kind, Place, judge

PLAIN = next(kind for kind in DUCKDB if kind.column == "INTEGER")
SEEDS = st.integers(0, 10**6)
Places = Callable[[str], Place]


@pytest.fixture(scope="module")
def places(hosts: Mapping[str, Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """By engine a place, made where it is asked for."""
    with ExitStack() as stack:
        yield cache(lambda engine: stack.enter_context(hosts[engine].place(tmp_path_factory.mktemp("keys"))))


@pytest.fixture(scope="module", params=HOSTS)
def place(request: pytest.FixtureRequest, places: Places) -> Place:
    return places(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policies")


def check(place: Place, keys: Keys, folder: Path) -> None:
    """The bounds hold where the types are accepted, which they are exactly where they should be."""
    if keys.is_accepted:
        assert judge(place, keys, folder) >= 8
        return
    with pytest.raises(InvalidPolicy, match=r"tables\.(people\.unit_key|visits\.unit_key|lines\.unit_via)") as caught:
        judge(place, keys, folder)
    assert caught.value.hint


def forms(kind: Kind) -> list[Keys]:
    """A type as the unit's key, and on each side of the way to it."""
    if kind.unit:
        return [Keys(kind, kind, kind, listed=True)]
    ways = [Keys(PLAIN, kind, kind)] if kind.way else [Keys(PLAIN, kind, PLAIN), Keys(PLAIN, PLAIN, kind)]
    return [Keys(kind, PLAIN, PLAIN), *ways]


@pytest.mark.parametrize(("engine", "kind"), [(engine, kind) for engine in KINDS for kind in KINDS[engine]], ids=str)
def test_each_type(engine: str, kind: Kind, places: Places, folder: Path) -> None:
    for keys in forms(there(places(engine), kind)):
        check(places(engine), keys, folder)


def there(place: Place, kind: Kind) -> Kind:
    """The type, if this server has it."""
    if kind not in place.kinds:
        pytest.skip("the server has no such type")
    return kind


@st.composite
def drawn(draw: st.DrawFn, kinds: tuple[Kind, ...]) -> Keys:
    """Types of which most may be keys, and both sides of a way most often of one."""
    may = [kind for kind in kinds if kind.way] + [PLAIN] * 4
    unit, there = draw(st.sampled_from([kind for kind in may if kind.unit])), draw(st.sampled_from(may))
    here = draw(st.sampled_from([there] * len(kinds) + list(kinds)))
    keys = Keys(unit, there, here, draw(st.booleans()), draw(SEEDS))
    event(f"accepted: {keys.is_accepted}")
    return keys


@profile(12)
@given(data=st.data())
def test_a_person_who_leaves(place: Place, folder: Path, data: st.DataObject) -> None:
    check(place, data.draw(drawn(place.kinds)), folder)


def moves_too_far(place: Place, keys: Keys, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether somebody does, once keys of every type are accepted."""
    monkeypatch.setattr(fit._Keys, "check", lambda _: None)
    try:
        judge(place, keys, folder)
    except TooFar:
        return True
    return False


@pytest.mark.parametrize(
    ("engine", "column", "is_unit"),
    [
        ("duckdb", "TIMESTAMP_NS", True),
        ("duckdb", "TIMESTAMP_NS", False),
        ("duckdb", "VARCHAR COLLATE NOCASE", True),
        ("postgresql", "numeric", True),
        ("postgresql", "numeric", False),
        ("postgresql", "numeric(50, 20)", True),
        ("postgresql", "text COLLATE keys.loose", True),
    ],
)
def test_what_would_have_leaked(
    engine: str, column: str, is_unit: bool, places: Places, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = there(places(engine), next(kind for kind in KINDS[engine] if kind.column == column))
    keys = [Keys(kind, PLAIN, PLAIN, seed=n) if is_unit else Keys(PLAIN, kind, kind, seed=n) for n in range(8)]
    assert any(moves_too_far(places(engine), each, folder, monkeypatch) for each in keys)


CLOSE = """
version = 1
[dataset]
name = "close"
url = "{url}"
schema = "keys"
privacy_unit = "person"
budget = {{ epsilon = 100, delta = 1e-6 }}
[roles.analyst]
budget = {{ epsilon = 100, delta = 1e-6 }}
query = {{ epsilon = 1, delta = 1e-9, max_epsilon = 10 }}
[tables.people]
unit_key = "pid"
max_rows = 1
columns = {{ pid = {{ type = "numeric" }} }}
[tables.visits]
unit_key = "pid"
max_rows = 1
columns = {{ pid = {{ type = "numeric" }} }}
"""
"""Numbers that are compared as doubles, of which two persons may have the same."""


def test_a_subquery_about_a_unit_never_asks_about_another(place: Place, tmp_path: Path) -> None:
    """One person's visit would decide over the rows of all whose keys are the same double."""
    place.fresh()
    place.run(*(f"CREATE TABLE keys.{table} (pid numeric(38, 0) NOT NULL)" for table in ("people", "visits")))
    place.run(f"INSERT INTO keys.people VALUES ({2**60}), ({2**60 + 1}), ({2**60 + 2})")
    place.run(f"INSERT INTO keys.visits VALUES ({2**60 + 1})")
    policy = tmp_path / "close.toml"
    policy.write_text(CLOSE.format(url=place.url), encoding="utf-8")
    with silent_engine(policy, tmp_path) as opened:
        session = Session(opened, "ana")
        for condition in ("pid IN (SELECT pid FROM visits)", "pid = ANY (SELECT pid FROM visits)"):
            (asked,) = session.parse(f"SELECT COUNT(*) FROM people WHERE {condition}")
            assert session.execute(asked).rows == ((1,),)
        (asked,) = session.parse("SELECT COUNT(*) FROM people, visits WHERE people.pid = visits.pid")
        assert session.execute(asked).rows == ((1,),)
