"""An engine is a line in the registry: policies, errors, drafts and copies know it from there alone."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsql.backends import DuckDBBackend, Outline, open_backend, prepare_tables, read_outline, registry
from dpsql.backends.registry import Entry, register
from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.errors import InvalidParameter, InvalidPolicy
from dpsql.gateway.session import Session
from dpsql.policy import load_policy
from dpsql.policy.engines import ENGINES, EngineKind
from tests.conftest import silent_engine

HERON = EngineKind("Heron", ("heron", "egret"), "heron://host/nest", "nest")


@pytest.fixture
def third(clinic_policy: Path) -> Iterator[None]:
    """A third engine, which keeps the small clinic in a file of DuckDB."""
    file = str(clinic_policy.with_suffix(".duckdb"))

    def outline(location: str) -> Outline:
        return Outline(location, location, "nest", ())

    register(HERON, Entry(DuckDB(), lambda _, policy: DuckDBBackend(file, policy), outline, lambda *_: ("there", {})))
    yield
    for scheme in HERON.schemes:
        del ENGINES[scheme]
    del DIALECTS[HERON], registry._ENTRIES[HERON]


def heron(clinic_policy: Path, folder: Path, url: str = "heron://host/clinic", more: str = "") -> Path:
    text = clinic_policy.read_text(encoding="utf-8").replace("duckdb:///clinic.duckdb", url)
    path = folder / "heron.toml"
    path.write_text(text.replace("[dataset]\n", f"[dataset]\n{more}\n"), encoding="utf-8")
    return path


@pytest.mark.usefixtures("third")
@pytest.mark.parametrize("url", ["heron://host/clinic", "egret://host/clinic?a=b"])
def test_it_answers_queries(url: str, clinic_policy: Path, tmp_path: Path) -> None:
    with silent_engine(heron(clinic_policy, tmp_path, url), tmp_path) as engine:
        (statement,) = Session(engine, "ana").parse("SELECT COUNT(*) FROM patients")
        assert Session(engine, "ana").execute(statement).rows == ((500,),)


@pytest.mark.usefixtures("third")
def test_its_schema_is_the_one_that_policies_need_not_name(clinic_policy: Path, tmp_path: Path) -> None:
    path = heron(clinic_policy, tmp_path)
    path.write_text(re.sub(r'\nschema = "main".*', "", path.read_text(encoding="utf-8")), encoding="utf-8")
    policy = load_policy(path)
    assert (policy.dataset.schema, policy.dataset.url) == ("nest", "heron://host/clinic")


@pytest.mark.usefixtures("third")
def test_what_files_alone_have_is_refused(clinic_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidPolicy, match="this is for DuckDB, which runs in the gateway's process; a server has its own limits"
    ):
        load_policy(heron(clinic_policy, tmp_path, more='memory = "1 GB"'))
    assert load_policy(heron(clinic_policy, tmp_path, more='prepared_schema = "copies"')).dataset.prepared_schema


@pytest.mark.usefixtures("third")
def test_errors_name_it(clinic_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidPolicy, match="must start with duckdb:///, parquet:///, s3://, postgresql://, spark:// or heron://"
    ) as refused:
        load_policy(heron(clinic_policy, tmp_path, "stork://host/clinic"))
    assert refused.value.hint == (
        'write: url = "duckdb:///clinic.duckdb" or "parquet:///data" or "s3://bucket/clinic" or '
        '"postgresql://reader@host/db" or "spark://localhost:15002/spark_catalog" or "heron://host/nest"'
    )
    with pytest.raises(
        InvalidParameter, match="must start with duckdb:///, parquet:///, s3://, postgresql://, spark:// or heron://"
    ):
        read_outline("stork://host/clinic")


@pytest.mark.usefixtures("third")
def test_it_is_outlined_and_prepared(clinic_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match='the database "heron://host/clinic" contains no readable table'):
        read_outline("heron://host/clinic")
    assert prepare_tables(load_policy(heron(clinic_policy, tmp_path))) == ("there", {})


def test_without_its_line_there_is_none(clinic_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidPolicy, match="must start with duckdb:///, parquet:///, s3://, postgresql:// or spark://"
    ):
        open_backend(load_policy(heron(clinic_policy, tmp_path)))


def test_what_spark_does_not_have(clinic_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its client nothing is opened or outlined; no table is prepared."""
    text = clinic_policy.read_text(encoding="utf-8")
    path = tmp_path / "spark.toml"
    path.write_text(text.replace("duckdb:///clinic.duckdb", "spark://localhost:1/spark_catalog"), encoding="utf-8")
    policy = load_policy(path)
    for name in ("spark", "spark_tables"):
        monkeypatch.setitem(sys.modules, f"dpsql.backends.{name}", None)
    with pytest.raises(InvalidPolicy, match="the client of Spark Connect is not installed") as refused:
        open_backend(policy)
    assert refused.value.hint == "pip install 'dpsql[spark]'"
    with pytest.raises(InvalidPolicy, match="there are no prepared tables"):
        prepare_tables(policy)
    with pytest.raises(InvalidParameter, match="the client of Spark Connect is not installed"):
        read_outline(policy.dataset.url)
