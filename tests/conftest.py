"""The demo clinic, a wider world for semantics, the German health panel; engines over temporary ledgers."""

import gc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from numpy.typing import NDArray

from dpsql.backends import Backend, open_backend
from dpsql.cli.clinic import generate_clinic
from dpsql.compiler.plan import verify
from dpsql.gateway.engine import Engine
from dpsql.gateway.release import PostProcessor
from dpsql.gateway.session import Session
from dpsql.ledger import open_ledger
from dpsql.policy import Policy, load_policy
from dpsql.privacy.exponential_mechanism import Picking, RankChoice
from dpsql.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dpsql.privacy.selection import GaussianThreshold, Threshold, TruncatedGeometric
from tests.engines import HOSTS, Host, SparkHost
from tests.examples import LONG, turns
from tests.faults.forks import Forks
from tests.postgres import VERSIONS, Connection, OwnServer, Server, own_server, url_of
from tests.spark import SparkServer, spark_server
from tests.strategies.world import Survey, open_survey
from tests.world import WIDE_POLICY, add_events

ROOT = Path(__file__).parent.parent
PATIENTS = 500
SEED = 7

COVERS = {
    *("backends", "cli", "compiler", "ledger", "privacy", "test_protocol", "test_literals", "test_reading"),
    *(
        "test_array_columns",
        "test_wide_totals",
        "test_workloads",
        "test_dropped",
        "test_small_groups",
        "test_prepared_tables",
        "test_column_probes",
        "test_within_unit",
        "test_several_ways",
        "test_combined",
        "test_consistent",
        "test_histories",
        "test_derived",
        "test_engine",
        "test_flights",
        "test_intervals",
        "test_merged_groups",
    ),
    *(
        "test_neighbours",
        "test_neighbours_engine",
        "test_neighbours_groups",
        "test_neighbours_min_units",
        "test_neighbours_prepared",
        "test_neighbours_rows",
        "test_neighbours_units",
        "test_nested",
        "test_nested_columns",
        "test_previews",
    ),
    *("test_prices", "test_probes", "test_release", "test_replay", "test_responses", "test_scopes", "test_session"),
    *(
        "test_shared_ledger",
        "test_sizes",
        "test_spellings",
        "test_system",
        "test_target",
        "test_tpch",
        "test_transactions",
    ),
}
"""The tests that answer for branches; the others, which run whole systems, are not slowed down by counting them."""

CLIENTS = {"clients", "test_clients", "test_analyst_notebook", "test_browser"}
"""The tests that start programs which pip does not bring, or which others wrote."""

SLOW = CLIENTS | {
    *("auditing/test_mutants", "auditing/test_served", "attacks", "test_faults_kill", "test_faults_statements"),
    *("cli/test_demo", "cli/test_monitoring", "cli/test_operation", "cli/test_replaced_data", "test_returned_memory"),
    *("test_wide_totals::test_one_unit_moves_a_wide_total_by_no_more", "test_compose", "tests/test_postgres"),
    *("test_sqlite_migration::test_kill_9_at_any_moment_leaves_one_layout_or_the_other", "test_replay_wire"),
    *(
        "test_packages",
        "test_site",
        "test_object_store",
        "tests/test_spark",
        "catalog/test_replay",
        "test_accepted::test_accepted_on_files",
        "test_accepted::test_engines_add_up_the_same_integers",
    ),
    *("test_composed", "test_parse_time::test_a_process_that_stands_still_is_killed"),
    *(
        "test_faults_gateways::test_two_gateways_spend_one_budget",
        "test_failures::test_three_of_many_queries_fail_over_all_gateways",
        "test_workloads::test_greedy_is_not_far_from_the_best",
        "test_postgres::test_an_interrupt_in_a_commit_leaves_what_the_server_makes_of_it",
    ),
    *(
        "test_watchdog::test_a_process_that_was_stopped_by_ctrl_z_goes_on",
        "test_watchdog::test_nothing_is_watched_any_more_once_it_has_ended",
        "test_watchdog::test_workers_that_are_idle_or_busy_do_not",
    ),
    *("test_audit::test_the_table_of_the_documentation", "test_nested::test_an_input_has_its_limits"),
    "test_canonical::test_the_form_is_its_own_form_and_costs_no_more",
    "test_combined::test_random_pairs",
    "test_derived_intervals",
    "test_combined::test_combined_answers_lie_within_what_is_announced",
    "test_histories::test_answers_lie_within_what_is_announced",
    *(
        "test_exponential_mechanism::test_choices_follow_their_weights",
        "test_exponential_mechanism::test_values_follow_the_exponential_mechanism",
        "test_exponential_mechanism::test_values_of_a_grid_too_wide_for_64_bits_follow_their_weights",
    ),
    *(
        "test_accountants::test_the_limit_refuses_where_the_theorem_does",
        "test_edges::test_engines_agree_at_the_edges",
        "test_expressions::test_what_is_let_through_as_a_pattern_can_be_run",
        "test_faults_race::test_processes_full_of_threads_cannot_overspend",
        "test_faults_race::test_threads_cannot_overspend",
        "test_postgres_prepared::test_a_copy_that_was_changed_is_not_read",
        "test_workloads::test_answers_are_those_of_the_queries_alone",
    ),
    "test_duckdb_spill::test_what_memory_does_not_hold_is_spilled",
    "test_neighbours_engine::test_threads_and_physical_order_change_nothing",
    "test_replay::test_a_profile_that_both_have_tells_no_more",
    "test_result_memory::test_the_error_of_rows_in_a_file_is_told_without_holding_them",
    "test_result_memory::test_who_keeps_an_error_keeps_no_rows",
    "test_tpch::test_one_customer_moves_no_cell_too_far",
    *(
        "test_sizes::test_a_row_of_a_view_holds_no_gigabyte_of_texts",
        "test_sizes::test_keys_that_no_array_could_hold_together_are_cut",
    ),
    *(
        "test_workers::test_what_runs_when_the_gateway_is_stopped_is_answered",
        "test_workers::test_failed_logins_at_all_workers_wait_together",
        "test_workers::test_failed_logins_of_a_dead_worker_wait_no_more",
        "test_workers::test_unknown_users_look_alike_at_all_workers",
        "test_workers::test_workers_end_with_their_parent",
        "test_workers::test_what_hinders_all_workers_is_told_once",
        "test_workers::test_systems_without_what_workers_need_are_told_so",
        "test_workers::test_a_port_in_use_is_told",
        "test_workers::test_a_rate_is_that_of_all_workers",
        "test_workers::test_places_are_those_of_all_workers",
        "test_workers::test_a_worker_that_does_not_load_new_policies_in_time_leaves_them_unchanged",
        "test_workers::test_a_worker_that_is_killed_is_replaced_and_its_reads_are_one_failure",
        "test_workers::test_nothing_secret_is_in_arguments_or_environment_of_workers",
        "test_workers::test_workers_that_do_not_serve_new_policies_in_time_are_replaced",
    ),
}
"""What `make test-all` alone runs: it takes more seconds than a change of one line should wait for."""
NEIGHBOURS = {
    "test_neighbours",
    "test_neighbours_engine",
    "test_neighbours_units",
    "test_neighbours_min_units",
    "test_neighbours_prepared",
    "test_neighbours_keys",
    "test_neighbours_rows",
    "test_neighbours_wide",
    "test_neighbours_groups",
    "test_profiles",
    "test_tpch",
}
"""Suites that `make test` runs on DuckDB, and of which it leaves the greater part on PostgreSQL to `make test-all`."""
FILES = {"test_neighbours_keys"}
"""Suites of which `make test` runs a part on Parquet files, too, which differ from DuckDB in the types of columns."""
SERVERS = {"postgres_server", "each_postgres"}
"""Fixtures that start a PostgreSQL server."""

# How long an example takes says how busy the machine is. Each run draws the same examples, so that it ends the same.
# Hypothesis also draws constants of the modules that happen to be loaded, which depends on the tests that ran before.
if not LONG:
    assert callable(providers._get_local_constants)
    providers._get_local_constants = Constants
settings.register_profile("same", deadline=None, derandomize=not LONG, max_examples=len(turns(100)))
settings.load_profile("same")

MakeEngine = Callable[..., Engine]
Places = Callable[[str], Path]
OpenedWides = Callable[[str], Engine]
Lend = Callable[[Path], Backend]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the tables above; count branches in some only."""
    for item in items:
        parts = set(item.path.relative_to(ROOT / "tests").with_suffix("").parts)
        postgres = needs_postgres(item)
        if not COVERS & parts:
            item.add_marker("no_cover")
        if CLIENTS & parts:
            item.add_marker("client")
        if postgres:
            item.add_marker("postgres")
        if is_on("parquet", item):
            other, leaves = True, "leaves" in item.name and bool(FILES & parts)
        else:
            other, leaves = postgres and bool(NEIGHBOURS & parts), "leaves" in item.name
        if is_slow(item.nodeid) or (other and not leaves) or needs_older_postgres(item):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Spare garbage collections the walk through what was collected: a tenth of all processor time."""
    gc.collect()
    gc.freeze()


def is_on(engine: str, item: pytest.Item) -> bool | None:
    """Tell whether a test runs on an engine, as its parameter says; None where it has none that is an engine."""
    given = getattr(item, "callspec", None)
    named = set(HOSTS) & {value for value in given.params.values() if isinstance(value, str)} if given else None
    return engine in named if named else None


def needs_postgres(item: pytest.Item) -> bool:
    """Tell whether a test starts a PostgreSQL server."""
    if (told := is_on("postgresql", item)) is not None:
        return told
    return bool(SERVERS & set(getattr(item, "fixturenames", ())))


def needs_older_postgres(item: pytest.Item) -> bool:
    """Tell whether a test is one of `each_postgres` on another version than the newest, which `make test` has."""
    engines = getattr(item, "callspec", None)
    return engines is not None and engines.params.get("each_postgres", VERSIONS[-1]) != VERSIONS[-1]


@cache
def is_slow(test: str) -> bool:
    """Tell whether `SLOW` names a test, its function, its file or its folder."""
    path, _, function = test.partition("[")[0].partition("::")
    places = ["tests", *Path(path).with_suffix("").parts[1:]]
    named = {"/".join(places[first:last]) for first in range(len(places)) for last in range(first + 1, len(places) + 1)}
    return not SLOW.isdisjoint(named | {f"{places[-1]}::{function}"})


@pytest.fixture(scope="session")
def clinic_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small demo clinic."""
    path = tmp_path_factory.mktemp("clinic") / "clinic.duckdb"
    generate_clinic(path, patients=PATIENTS, seed=SEED)
    return path


@pytest.fixture(scope="session")
def clinics(hosts: Mapping[str, Host], clinic_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """The demo's own policy over the small clinic, by the engine that holds it."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(hosts[name].clinic(clinic_file, tmp_path_factory.mktemp(name))))


@pytest.fixture(scope="session")
def clinic_policy(clinics: Places) -> Path:
    """That of DuckDB."""
    return clinics("duckdb")


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
    from examples.load_german_health import load as load_german_health  # with pandas, which few tests need

    folder = tmp_path_factory.mktemp("german")
    load_german_health(folder / "german_health.duckdb")
    return Path(shutil.copy(ROOT / "policies" / "german_health.toml", folder))


@pytest.fixture(scope="session")
def hosts(start_postgres: Callable[[], Server]) -> Mapping[str, Host]:
    """The engines; a server is started where a test asks for one."""
    return {name: make(start_postgres) for name, make in HOSTS.items()}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    """A Spark Connect server, which takes a quarter of a minute to start."""
    with spark_server(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture(scope="session")
def spark_host(spark: SparkServer) -> SparkHost:
    """Spark, as an engine that holds tables."""
    return SparkHost(lambda: spark)


@pytest.fixture(scope="session", params=HOSTS)
def host(request: pytest.FixtureRequest, hosts: Mapping[str, Host]) -> Host:
    """Each engine."""
    return hosts[request.param]


@pytest.fixture(scope="module")
def each_survey(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    """The survey on each engine, for a module's tests to fill, whose neighbours lack a unit."""
    with host.survey(tmp_path_factory.mktemp("survey"), "add_remove") as opened:
        yield opened


@pytest.fixture(scope="module")
def each_substituted(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    """The same, whose neighbours have another unit in the place of one."""
    with host.survey(tmp_path_factory.mktemp("survey"), "substitute") as opened:
        yield opened


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    """The survey on DuckDB alone: for what is the same on any engine, or is said in its SQL."""
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
    """An engine over a ledger file in which the users have the policy's first role, with a lent post-processor."""
    loaded = policy if isinstance(policy, Policy) else load_policy(policy)
    opened = open_ledger(f"sqlite:///{ledger}")
    for user in users:
        if opened.account(user) is None:
            opened.add_account(user, loaded.roles[0].name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpsql.gateway.engine.PostProcessor", lent_post_processor)
        return Engine(loaded, opened, backend if backend is not None else open_backend(loaded))


@cache
def lent_post_processor(timezone: str) -> PostProcessor:
    """One for all engines, which stays open: it holds nothing from one query to the next, and takes long to open."""
    opened = PostProcessor(timezone)
    opened.close = lambda: None  # type: ignore[method-assign]
    return opened


@pytest.fixture(scope="session")
def start_postgres() -> Iterator[Callable[[], Server]]:
    """Return a function that gives a PostgreSQL server: that of DPSQL_TEST_DSN, or one that its first call starts.

    The server runs until everything has ended that depends on this.
    """
    dsn = os.environ.get("DPSQL_TEST_DSN")
    with ExitStack() as stack:
        yield cache(lambda: Server(dsn) if dsn else stack.enter_context(own_server(VERSIONS[-1])))


@pytest.fixture(scope="session")
def postgres_server(start_postgres: Callable[[], Server]) -> Server:
    """A PostgreSQL server."""
    return start_postgres()


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
def postgres_clinic(clinics: Places) -> Path:
    """The small clinic on the PostgreSQL server."""
    return clinics("postgresql")


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


@pytest.fixture(scope="session", params=HOSTS)
def each_clinic(request: pytest.FixtureRequest, clinics: Places) -> Path:
    """The small clinic on each engine."""
    return clinics(request.param)


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
        """The value of the rank asked for: the middle of those that have it, or none where there is nobody."""
        if not values.size:
            return choice.nothing
        steps = choice.steps(values, counts)
        best = np.flatnonzero(steps.losses == steps.losses.min())
        return int((steps.firsts[best[0]] + steps.firsts[best[-1]] + steps.sizes[best[-1]] - 1) // 2)

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
    patch.setattr(verify, "_check_tail", lambda *_: None)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test: released cells are the exact ones."""
    silence_noise(monkeypatch)


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


@pytest.fixture(scope="session")
def wide_policies(
    wide_policy: Path, hosts: Mapping[str, Host], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Places]:
    """The wide world, by the engine that holds it."""
    with ExitStack() as stack:

        def policy(name: str) -> Path:
            if name == "duckdb":
                return wide_policy
            url = stack.enter_context(hosts[name].serve(wide_policy.with_suffix(".duckdb")))
            path = tmp_path_factory.mktemp("wide") / "wide.toml"
            text = WIDE_POLICY.replace('"duckdb:///wide.duckdb"', f'"{url}"\nschema = "main"')
            path.write_text(text, encoding="utf-8")
            return path

        yield cache(policy)


@pytest.fixture(scope="module")
def opened_wides(wide_policies: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedWides]:
    """For one test file: an engine over the wide world, by the engine that holds it."""
    with ExitStack() as stack:

        def opened(name: str) -> Engine:
            return stack.enter_context(closing_engine(wide_policies(name), tmp_path_factory.mktemp("ledger")))

        yield cache(opened)


# Noise is taken away for one test at a time: its neighbours in the file may count on it.
@pytest.fixture
def wide_engine(opened_wides: OpenedWides, no_noise: None) -> Engine:
    """An engine over the wide world in DuckDB, without noise."""
    return opened_wides("duckdb")


@pytest.fixture(params=HOSTS)
def each_wide_engine(request: pytest.FixtureRequest, opened_wides: OpenedWides, no_noise: None) -> Engine:
    """The same on each engine."""
    return opened_wides(request.param)
