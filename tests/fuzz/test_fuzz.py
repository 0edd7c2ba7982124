"""The fuzzed functions on what fuzzing has found, on some seeds, and on seeds changed here and there.

`python -m tests.fuzz` goes on from here, guided by coverage.
"""

import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsql.backends import DuckDBBackend
from dpsql.compiler.plan import compile as compile_module
from dpsql.errors import BackendFailure, Error, GuaranteeMismatch
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.policy import load_policy
from dpsql.wire.messages.backend import ErrorResponse
from dpsql.wire.messages.frontend import Query
from tests.compiler.plans import Planner
from tests.fuzz import targets
from tests.fuzz.inputs import CORPUS, FORMS, Mutator, found
from tests.fuzz.targets import Finding, Target, analyst, check_replies, compiler, parsing, policy_loader, stranger
from tests.fuzz.worlds import WORLDS, wide_engine, wide_policy

CHANGED = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
mutator = cache(lambda name: Mutator(FORMS[name]))
seeds = cache(lambda name: FORMS[name].seeds())


@pytest.fixture(scope="module", params=sorted(FORMS))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Target]]:
    """Each target, with its name."""
    name = request.param
    with WORLDS[name](tmp_path_factory.mktemp(name)) as target:
        yield name, target


def test_what_was_found_is_mended(opened: tuple[str, Target]) -> None:
    name, target = opened
    for path in found(name):
        target(path.read_bytes())


@CHANGED
@given(data=st.data(), number=st.integers(0, 2**32 - 1))
def test_seeds_and_what_becomes_of_them(opened: tuple[str, Target], data: st.DataObject, number: int) -> None:
    name, target = opened
    seed = data.draw(st.sampled_from(seeds(name)))
    target(seed)
    target(mutator(name).mutate(seed, number))
    target(data.draw(st.binary(max_size=60)))


def test_every_target_has_a_world_and_seeds_that_are_whole() -> None:
    assert set(WORLDS) == set(FORMS) >= {path.name for path in CORPUS.iterdir()}
    for name, form in FORMS.items():
        assert len(seeds(name)) > 5
        assert all(b"".join(form.split(seed)) == seed for seed in seeds(name))


def test_seeds_of_policies_are_policies(tmp_path: Path) -> None:
    """A fuzzer that starts from what is refused at once gets nowhere."""
    for number, seed in enumerate(seeds("policy")):
        path = tmp_path / f"{number}.toml"
        path.write_bytes(seed)
        assert load_policy(path).tables


# That a finding is one

SQL = b"SELECT COUNT(*) FROM visits"


def _raise(error: Exception, *_: object, **__: object) -> None:
    raise error


def test_a_failure_of_the_compiler_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiler(Planner(wide_policy(tmp_path)))
    for error in (GuaranteeMismatch("no"), KeyError("no")):
        monkeypatch.setattr(targets, "compile_query", partial(_raise, error))
        with pytest.raises((Finding, KeyError)):
            compiled(SQL)
    monkeypatch.undo()
    monkeypatch.setattr(compile_module, "plan", partial(_raise, KeyError("no")))
    with pytest.raises(Finding, match="this query shape is not supported"):
        compiled(SQL)


def test_a_text_that_takes_long_to_parse_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    parsing()(SQL)

    def slow(_: str) -> None:
        begun = time.process_time()
        while time.process_time() - begun <= 0.1:
            pass

    monkeypatch.setattr(targets, "PARSE_SECONDS", 0.1)
    monkeypatch.setattr(targets, "parse_catalog_query", slow)
    with pytest.raises(Finding, match="of processor time"):
        parsing()(SQL)


def test_a_failure_of_the_engine_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with wide_engine(tmp_path) as engine:
        asked = analyst(lambda: Session(engine, "ana"))
        for error in (GuaranteeMismatch("no"), BackendFailure(), KeyError("no")):
            monkeypatch.setattr(Engine, "compile", partial(_raise, error))
            with pytest.raises(Finding):
                asked(Query(SQL).encode())
        monkeypatch.undo()
        monkeypatch.setattr(DuckDBBackend, "fetch", partial(_raise, KeyError("no")))
        with pytest.raises(Finding, match="58000"):
            asked(Query(SQL).encode())


def test_an_error_of_the_gateways_own_is_found() -> None:
    with pytest.raises(Finding):
        check_replies([ErrorResponse("ERROR", GuaranteeMismatch.sqlstate, "no")])


def test_a_loader_that_raises_something_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "load_policy", partial(_raise, Error("no")))
    with pytest.raises(Error):
        policy_loader(tmp_path)(b"")


def test_a_stranger_who_is_let_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_door(*_: object) -> str:
        return "ana"

    monkeypatch.setattr(targets, "log_in", open_door)
    with pytest.raises(Finding, match="let in"):
        stranger()(b"")
