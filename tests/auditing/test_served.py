"""The audit on servers: what holds is not refuted, a fault is, and nothing is left on the server."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from dpsql.auditing import Extent, audit
from dpsql.auditing.neighbours import NotAuditable
from dpsql.cli import clinic_spark
from dpsql.policy import Policy, load_policy
from dpsql.policy.engines import SPARK
from tests.auditing.conftest import write
from tests.auditing.test_mutants import CONFIDENCE, scale_of_a_half
from tests.cli.conftest import Run, run  # noqa: F401
from tests.copies import copied
from tests.engines import SparkHost
from tests.postgres import Server
from tests.spark import SparkServer, adapted_policy, on_queries

EXTENT = Extent(units=200, runs=6, single_runs=6, confidence=CONFIDENCE, only=("COUNT people", "selection"))
DATABASES = "SELECT datname FROM pg_database WHERE datname LIKE 'dpsql-audit-%'"


@pytest.fixture(scope="module")
def of_postgres(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server) -> Iterator[Path]:
    """The small world's policy, over its tables on a server."""
    folder = tmp_path_factory.mktemp("served")
    path = write(folder)
    with duckdb.connect(str(folder / "small.duckdb")) as database:
        database.execute("INSERT INTO people VALUES (1, 2, 'Ulm')")
    with copied(folder / "small.duckdb", postgres_server) as url:
        text = path.read_text(encoding="utf-8").replace('"duckdb:///small.duckdb"', f'"{url}"\nschema = "main"')
        path.write_text(text, encoding="utf-8")
        yield path


@pytest.mark.statistical
def test_what_holds_is_not_refuted(of_postgres: Path, postgres_server: Server) -> None:
    """Refuted with a probability of 10⁻⁷ at the most; nothing is left on the server."""
    there: list[object] = []
    names = (
        "COUNT people",
        "quantile drugs",
        "selection",
        "join people",
        "reuse",
        "failure",
        "rows without a unit visits",
    )
    extent = replace(EXTENT, units=40, runs=3, only=names, mechanisms=("laplace",))
    report = audit(
        load_policy(of_postgres), extent, lambda _: there.extend(postgres_server.run(DATABASES)), postgres_server.url
    )
    assert [finding for finding in report.findings if not finding.holds] == []
    assert len(report.findings) == len(names)
    assert there
    assert postgres_server.run(DATABASES) == []


@pytest.mark.statistical
def test_a_planted_fault_is_refuted(
    of_postgres: Path, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_of_a_half(monkeypatch)
    report = audit(load_policy(of_postgres), EXTENT, server=postgres_server.url)
    assert {finding.name for finding in report.findings if not finding.holds} >= {"COUNT people"}


def test_a_policy_of_a_server_is_audited_in_duckdb_without_another(of_postgres: Path) -> None:
    report = audit(load_policy(of_postgres), replace(EXTENT, units=40, only=("COUNT people",)))
    assert report.holds


@pytest.fixture(scope="module")
def of_spark(tmp_path_factory: pytest.TempPathFactory, spark_host: SparkHost) -> Iterator[Path]:
    """The small world's policy, over its tables in two schemas of Spark."""
    path = write(tmp_path_factory.mktemp("served"))
    file = path.with_name("small.duckdb")
    with spark_host.serve(file) as url, spark_host.serve(file) as other:
        text = adapted_policy(path.read_text(encoding="utf-8"), url)
        schema = other.partition("#")[2]
        path.write_text(re.sub(r"^\[tables\.drugs", f'[tables."{schema}.drugs"', text, flags=re.M), encoding="utf-8")
        yield path


SPARK_EXTENT = replace(EXTENT, units=40, runs=3, draws=20_000, mechanisms=("laplace",))


@pytest.mark.spark
@pytest.mark.statistical
def test_the_sql_of_spark_is_audited_on_spark(
    run: Run,  # noqa: F811
    of_spark: Path,
    spark: SparkServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command has a server started, runs what Spark printed on it, and leaves nothing there."""
    drugs = next(table.name for table in load_policy(of_spark).tables if table.relation == "drugs")
    asked: list[str] = []

    def kept(statement: str) -> str:
        asked.append(statement)
        return statement

    @contextmanager
    def started(folder: Path) -> Iterator[SparkServer]:
        assert folder.is_dir()
        yield spark  # another would take half a minute to start

    on_queries(monkeypatch, kept)
    monkeypatch.setattr(clinic_spark, "local_server", started)
    before = spark.run("SHOW SCHEMAS")
    few = ("--units", "10", "--runs", "3", "--draws", "20000", "--confidence", str(CONFIDENCE))
    told = run("audit", of_spark, *few, "--only", f"COUNT {drugs}").stdout.splitlines()[-1]
    assert told.startswith("2 claims about small on Spark, none refuted")
    used = [set(schemas) for sql in asked if (schemas := re.findall(r"`spark_catalog`\.`(\w+)`\.", sql))]
    assert len(used) >= 12
    assert all(len(each) == 2 and all(name.startswith("dpsql_audit_") for name in each) for each in used)
    assert spark.run("SHOW SCHEMAS") == before


@pytest.mark.spark
@pytest.mark.statistical
def test_a_fault_in_the_sql_of_spark_is_refuted(
    of_spark: Path, spark: SparkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a unit count."""

    def unbounded(statement: str) -> str:
        wrong = re.sub(r"least\(a0, (?:m|\d+)\)", "a0", statement)
        assert wrong != statement
        return wrong

    on_queries(monkeypatch, unbounded)
    report = audit(load_policy(of_spark), replace(SPARK_EXTENT, only=("COUNT visits",)), server=spark.url)
    assert not report.holds


@pytest.mark.spark
def test_spark_alone_runs_the_sql_of_spark(of_spark: Path, small: Policy) -> None:
    policy = load_policy(of_spark)
    for server in (None, "postgresql://host/db"):
        with pytest.raises(NotAuditable, match="needs a Spark server") as refused:
            audit(policy, SPARK_EXTENT, server=server)
        assert refused.value.hint is not None and SPARK.example in refused.value.hint
    with pytest.raises(NotAuditable, match="needs a PostgreSQL server"):
        audit(small, SPARK_EXTENT, server=policy.dataset.url)
    with pytest.raises(NotAuditable, match="rows can be copied only from a DuckDB file"):
        audit(policy, replace(SPARK_EXTENT, with_rows=True), server=policy.dataset.url)


@pytest.mark.spark
def test_a_spark_server_that_is_not_there_is_told(of_spark: Path, spark: SparkServer) -> None:
    for server, what in (
        ("spark://localhost:1/spark_catalog", "the server does not answer"),
        ("spark://localhost:1/", "a Spark url names a host, a port and a catalog"),
        (spark.url.replace("spark_catalog", "nowhere"), "AnalysisException"),
    ):
        with pytest.raises(NotAuditable, match=f"databases cannot be made on the server: {what}"):
            audit(load_policy(of_spark), SPARK_EXTENT, server=server)


def test_rows_are_not_copied_to_a_server(small: Policy) -> None:
    with pytest.raises(NotAuditable, match="rows"):
        audit(small, replace(EXTENT, with_rows=True), server="postgresql://host/db")


def test_a_server_that_is_not_there_is_told(run: Run, of_postgres: Path, tmp_path: Path) -> None:  # noqa: F811
    told = run("audit", of_postgres, "--only", "COUNT", "--server", f"postgresql://?host={tmp_path}", status=1)
    assert "databases cannot be made on the server" in told.output
