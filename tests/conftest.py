"""The demo clinic, a wider world for semantics, the German health panel; engines over temporary ledgers."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from dpsql.backends import Backend, open_backend
from dpsql.cli.clinic import generate_clinic
from dpsql.engine import Engine
from dpsql.ledger import open_ledger
from dpsql.policy import Policy, load_policy
from dpsql.privacy.choice import RankChoice
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.picking import Picking
from dpsql.privacy.selection import GaussianThreshold, Threshold, TruncatedGeometric
from dpsql.session import Session
from examples.load_german_health import load as load_german_health
from tests.copies import copied
from tests.faults.forks import Forks
from tests.postgres import VERSIONS, Connection, OwnServer, Server, own_server, served_clinic, url_of
from tests.strategies.world import Survey, open_survey
from tests.world import WIDE_POLICY, add_events

ROOT = Path(__file__).parent.parent
PATIENTS = 500
SEED = 7

COVERS = {"backends", "cli", "compiler", "ledger", "privacy", "test_protocol", "test_release", "test_system"} | {
    *("test_array_columns", "test_bias", "test_bounded_copies", "test_engine", "test_flights", "test_intervals"),
    *("test_neighbours", "test_neighbours_copies", "test_neighbours_rows", "test_nested", "test_previews"),
    *("test_prices", "test_probes", "test_replay", "test_responses", "test_scopes", "test_session"),
    *("test_shared_ledger", "test_target", "test_tpch", "test_transactions"),
}
"""The tests that answer for branches; the others, which run whole systems, are not slowed down by counting them."""

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

MakeEngine = Callable[..., Engine]
Lend = Callable[[Path], Backend]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count branches in the tests above only."""
    for item in items:
        parts = item.path.relative_to(ROOT / "tests").with_suffix("").parts
        if not COVERS & set(parts):
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
def clinic_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small demo clinic."""
    path = tmp_path_factory.mktemp("clinic") / "clinic.duckdb"
    generate_clinic(path, patients=PATIENTS, seed=SEED)
    return path


@pytest.fixture(scope="session")
def clinic_policy(clinic_file: Path) -> Path:
    """The demo's own policy, beside the small clinic."""
    return Path(shutil.copy(ROOT / "dpsql" / "cli" / "clinic.toml", clinic_file.with_name("clinic.toml")))


@pytest.fixture(scope="session")
def wide_policy(clinic_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clinic with a table of many types, and bounds so wide that nothing is cut."""
    path = tmp_path_factory.mktemp("wide") / "wide.duckdb"
    shutil.copy(clinic_file, path)
    add_events(path)
    policy = path.with_name("wide.toml")
    policy.write_text(WIDE_POLICY, encoding="utf-8")
    return policy


@pytest.fixture(scope="session")
def german_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The German health panel with the policy of policies/."""
    folder = tmp_path_factory.mktemp("german")
    load_german_health(folder / "german_health.duckdb")
    return Path(shutil.copy(ROOT / "policies" / "german_health.toml", folder))


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    """The survey, for a module's tests to fill, whose neighbours lack a unit."""
    opened = open_survey(tmp_path_factory.mktemp("survey"), "add_remove")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def substituted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    """The same, whose neighbours have another unit in the place of one."""
    opened = open_survey(tmp_path_factory.mktemp("survey"), "substitute")
    yield opened
    opened.close()


def open_engine(
    policy: Path | Policy, ledger: Path, users: tuple[str, ...] = ("ana", "ben"), backend: Backend | None = None
) -> Engine:
    """An engine over a ledger file in which the users have the policy's first role."""
    loaded = policy if isinstance(policy, Policy) else load_policy(policy)
    opened = open_ledger(f"sqlite:///{ledger}")
    for user in users:
        if opened.account(user) is None:
            opened.add_account(user, loaded.roles[0].name)
    return Engine(loaded, opened, backend if backend is not None else open_backend(loaded))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A PostgreSQL server: that of DPSQL_TEST_DSN, or one for these tests."""
    if dsn := os.environ.get("DPSQL_TEST_DSN"):
        yield Server(dsn)
        return
    with own_server(VERSIONS[-1]) as server:
        yield server


@pytest.fixture(scope="session")
def ledger_databases(postgres_server: Server) -> Iterator[list[str]]:
    """Two databases for ledgers."""
    with ExitStack() as stack:
        yield [stack.enter_context(postgres_server.database()) for _ in range(2)]


@pytest.fixture
def postgres_places(postgres_server: Server, ledger_databases: list[str]) -> list[str]:
    """The URLs of two databases without a ledger."""
    for name in ledger_databases:
        postgres_server.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            "DROP SCHEMA IF EXISTS dpsql_ledger CASCADE",
            database=name,
        )
    return [url_of(postgres_server.url, dbname=name) for name in ledger_databases]


@pytest.fixture(scope="session")
def postgres(postgres_server: Server) -> Iterator[Connection]:
    """A connection to it, in UTC."""
    with postgres_server.connect() as connection:
        connection.execute("SET timezone = UTC")
        yield connection


@pytest.fixture(scope="session")
def postgres_clinic(
    postgres_server: Server, clinic_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The demo's policy over the small clinic on the PostgreSQL server."""
    with served_clinic(postgres_server, clinic_file, tmp_path_factory.mktemp("postgres_clinic")) as policy:
        yield policy


@pytest.fixture(scope="session", params=VERSIONS)
def each_postgres(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """A PostgreSQL server of each version that there is for tests, which they may break."""
    with own_server(request.param) as server:
        yield server


class Lent:
    """A backend that others have, too: it stays open when one of its engines closes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        """Leave it open."""


@pytest.fixture(scope="session")
def lend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lend]:
    """Return a function that lends the backend of a policy: to open a database takes longer than most tests do.

    It is for databases that are there for the whole session, and for engines that do nothing to them but read.
    """
    opened: dict[Path, Backend] = {}

    def lent(policy: Path) -> Backend:
        if policy not in opened:
            # Of a copy: DuckDB opens a file in one way at a time, and tests may open this one in another.
            folder = shutil.copytree(policy.parent, tmp_path_factory.mktemp("lent") / "folder")
            opened[policy] = open_backend(load_policy(folder / policy.name))
        return cast(Backend, Lent(opened[policy]))

    yield lent
    for backend in opened.values():
        backend.close()


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[MakeEngine]:
    """Return a function that opens engines, each over a new ledger unless told; all are closed at the end."""
    engines: list[Engine] = []

    def make(policy: Path | Policy, *, ledger: Path | None = None, **options: Any) -> Engine:
        engine = open_engine(policy, ledger or tmp_path / f"ledger{len(engines)}.sqlite", **options)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
        engine.ledger.close()


@pytest.fixture(params=["duckdb", "postgres"])
def each_clinic(request: pytest.FixtureRequest) -> Path:
    """The demo's policy over the small clinic, on each engine."""
    path: Path = request.getfixturevalue({"duckdb": "clinic_policy", "postgres": "postgres_clinic"}[request.param])
    return path


@pytest.fixture
def engine(make_engine: MakeEngine, each_clinic: Path, lend: Lend) -> Engine:
    """The clinic's engine, of each kind."""
    return make_engine(each_clinic, backend=lend(each_clinic))


@pytest.fixture
def session(engine: Engine) -> Session:
    """A session of user ana."""
    return Session(engine, "ana")


def silence_noise(patch: pytest.MonkeyPatch) -> None:
    """Take the noise away, and let every group pass that has a unit: what is left is the exact, bounded answer."""

    def nothing(_self: object, size: int) -> NDArray[np.int64]:
        return np.zeros(size, dtype=np.int64)

    def anybody(_self: object, units: NDArray[np.int64]) -> NDArray[np.bool_]:
        return units > 0

    def wanted(choice: RankChoice, values: NDArray[np.int64], counts: NDArray[np.int64]) -> int:
        """The value of the rank asked for: the middle of those that have it, or the limit where there is nobody."""
        if not values.size:
            return choice.lower
        steps = choice.steps(values, counts)
        best = [place for place, loss in enumerate(steps.losses) if loss == min(steps.losses)]
        return (steps.firsts[best[0]] + steps.firsts[best[-1]] + steps.sizes[best[-1]] - 1) // 2

    def first(picking: Picking, losses: NDArray[np.int64]) -> int:
        """Of the best candidates the first."""
        return int(np.argmin(losses))

    patch.setattr(Picking, "one", first)
    patch.setattr(RankChoice, "inset", 0)
    patch.setattr(RankChoice, "choose", wanted)
    for law in (DiscreteLaplace, DiscreteGaussian):
        patch.setattr(law, "sample", nothing)
    for selection in (TruncatedGeometric, GaussianThreshold):
        patch.setattr(selection, "keep", anybody)
    # A threshold is compared with the noisy cell itself, so it is read as the least there is; it is still kept as it
    # was planned, for plans may be remembered beyond the patch.
    kept = Threshold.__dict__["cutoff"]
    patch.setattr(Threshold, "cutoff", property(lambda _self: -(2**63), kept.__set__))


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test: released cells are the exact ones."""
    silence_noise(monkeypatch)


@pytest.fixture(scope="session")
def wide_postgres_policy(
    wide_policy: Path, postgres_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The same world in PostgreSQL."""
    with copied(wide_policy.with_suffix(".duckdb"), postgres_server) as url:
        policy = tmp_path_factory.mktemp("wide") / "wide.toml"
        policy.write_text(WIDE_POLICY.replace('"duckdb:///wide.duckdb"', f'"{url}"\nschema = "main"'), encoding="utf-8")
        yield policy


@contextmanager
def closing_engine(policy: Path, folder: Path, backend: Backend | None = None) -> Iterator[Engine]:
    """An engine over a new ledger."""
    engine = open_engine(policy, folder / "ledger.sqlite", backend=backend)
    yield engine
    engine.close()
    engine.ledger.close()


@contextmanager
def silent_engine(policy: Path, folder: Path, backend: Backend | None = None) -> Iterator[Engine]:
    """An engine, and no noise anywhere as long as it is open: for files that have none in any test."""
    with pytest.MonkeyPatch.context() as patch, closing_engine(policy, folder, backend) as engine:
        silence_noise(patch)
        yield engine


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Where processes are forked from that are killed, or that meet other faults."""
    with Forks() as started:
        yield started


@pytest.fixture(scope="module")
def opened_wide_postgres(wide_postgres_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """For one test file: an engine over the wide world in PostgreSQL."""
    with closing_engine(wide_postgres_policy, tmp_path_factory.mktemp("ledger")) as engine:
        yield engine


@pytest.fixture(scope="module")
def opened_wide(wide_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """For one test file: an engine over the wide world."""
    with closing_engine(wide_policy, tmp_path_factory.mktemp("ledger")) as engine:
        yield engine


# Noise is taken away for one test at a time: its neighbours in the file may count on it.
@pytest.fixture
def wide_postgres_engine(opened_wide_postgres: Engine, no_noise: None) -> Engine:
    """An engine over the wide world in PostgreSQL, without noise."""
    return opened_wide_postgres


@pytest.fixture
def wide_engine(opened_wide: Engine, no_noise: None) -> Engine:
    """An engine over the wide world, without noise."""
    return opened_wide
