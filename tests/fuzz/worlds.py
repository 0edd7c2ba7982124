"""What targets run over: the wide world with its poison, in a folder of its own, with a budget that hardly ends."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from dpsql.cli.clinic import generate_clinic
from dpsql.compiler.dialects import DIALECTS
from dpsql.gateway.engine import Engine
from dpsql.policy import Policy, load_policy
from dpsql.wire.databases import Databases
from dpsql.wire.gateway_sessions import Gateway
from tests.compiler.plans import Planner
from tests.conftest import open_engine
from tests.fuzz.targets import Target, analyst, compiler, parsing, policy_loader, stranger
from tests.world import WIDE_POLICY, add_events

PATIENTS = 30


def wide_policy(folder: Path) -> Policy:
    """The policy of the wide world, made anew."""
    generate_clinic(folder / "wide.duckdb", patients=PATIENTS, seed=1)
    add_events(folder / "wide.duckdb")
    path = folder / "wide.toml"
    path.write_text(WIDE_POLICY.replace("query = { epsilon = 1,", "query = { epsilon = 0.01,"), encoding="utf-8")
    return load_policy(path)


@contextmanager
def wide_engine(folder: Path) -> Iterator[Engine]:
    """An engine over the wide world."""
    engine = open_engine(wide_policy(folder), folder / "ledger.sqlite")
    yield engine
    engine.close()
    engine.ledger.close()


@contextmanager
def _compiler(folder: Path) -> Iterator[Target]:
    policy = wide_policy(folder)
    yield compiler(*(Planner(policy, engine) for engine in DIALECTS))


@contextmanager
def _parse(_: Path) -> Iterator[Target]:
    yield parsing()


@contextmanager
def _policy(folder: Path) -> Iterator[Target]:
    yield policy_loader(folder)


@contextmanager
def _login(_: Path) -> Iterator[Target]:
    yield stranger()


@contextmanager
def _session(folder: Path) -> Iterator[Target]:
    with wide_engine(folder) as engine:
        gateway = Gateway(Databases({"wide": engine}))
        yield analyst(lambda: gateway.session("ana", "wide"))


WORLDS: dict[str, Callable[[Path], AbstractContextManager[Target]]] = {
    "compile": _compiler,
    "parse": _parse,
    "policy": _policy,
    "login": _login,
    "session": _session,
}
