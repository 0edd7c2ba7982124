"""Tables that are objects of an S3 bucket: read as a folder's files are, each in the version that was listed."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import duckdb
import numpy as np
import pytest

from dpsql.backends import object_store, open_backend, prepare_tables, read_outline
from dpsql.backends.file_folders import FileState
from dpsql.backends.object_store import ObjectFolder
from dpsql.errors import BackendFailure, DatabaseUnavailable, InvalidParameter, InvalidPolicy
from dpsql.gateway.session import Session
from dpsql.policy import load_policy
from tests.backends.test_duckdb_files import CSV, HIVE, JSON, ROWS, THREE, Folder
from tests.backends.test_postgres import read
from tests.conftest import MakeEngine, silence_noise
from tests.s3 import Bucket, ask_there, s3_server

_NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


class Cloud(Folder):
    """A policy, and the bucket that it is about; files are written to a folder, and uploaded."""

    def __init__(self, path: Path, bucket: Bucket) -> None:
        super().__init__(path)
        self.bucket = bucket

    def policy(self, files: str = "", **changes: str) -> Path:
        return super().policy(files, **{"url": f'url = "{self.bucket.url}"'} | changes)

    def upload(self) -> None:
        """Upload the folder's files."""
        for path in self.data.rglob("*"):
            if path.is_file():
                self.bucket.put(path.relative_to(self.data).as_posix(), path)


@pytest.fixture
def cloud(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    ask_there(monkeypatch, server)
    made = Cloud(tmp_path, Bucket(server, f"bucket-{next(_NUMBERS)}"))
    yield made
    for backend in made.opened:
        backend.close()


# What is read


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ("", ["visits.parquet"]),
        ("", ["visits/b.parquet", "visits/2024/a.parquet", "visits/notes.txt", "visitors.parquet"]),
        ('files = { format = "parquet", paths = ["*/v*.parquet"] }', ["a/v1.parquet", "a/b/v2.parquet"]),
    ],
)
def test_objects_are_found_as_files_of_a_folder_are(cloud: Cloud, files: str, names: list[str]) -> None:
    for number, name in enumerate(names):
        cloud.parquet(name, f"({number}, 2)")
    cloud.upload()
    local = Folder.policy(cloud, files, url='url = "parquet:///data"')
    expected = read(open_backend(load_policy(local)), ROWS).columns[0].tolist()
    assert cloud.rows(files) == sorted(expected)


def test_texts_and_partitions(cloud: Cloud) -> None:
    cloud.text("a.csv", "patient_id,cost\n1,2.5\n1,3\n2,4\n")
    cloud.text("a.json", '{"patient_id": 1, "cost": 2.5}\n{"patient_id": 1, "cost": 3}\n{"patient_id": 2, "cost": 4}\n')
    cloud.parquet("visits/year=2024/a.parquet", "(1, 2)")
    cloud.parquet("visits/year=none/a.parquet", "(2, 2)")
    cloud.upload()
    assert cloud.rows(CSV) == cloud.rows(JSON) == THREE
    years = 'SELECT CAST(year AS VARCHAR) AS v0 FROM "dpsql.files".main.visits ORDER BY v0'
    assert read(cloud.open(HIVE), years).columns[0].tolist() == ["2024", None]


def test_a_query_is_answered(cloud: Cloud, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    silence_noise(monkeypatch)
    cloud.parquet()
    cloud.upload()
    session = Session(make_engine(cloud.policy()), "ana")
    (statement,) = session.parse("SELECT COUNT(*), SUM(cost) FROM visits")
    rows, costs = session.execute(statement).rows[0]
    assert (str(rows), float(str(costs))) == ("3", 9.5)


def test_threads_that_read_one_object_get_their_own_bytes(cloud: Cloud) -> None:
    body = np.random.default_rng(7).bytes(1 << 20)
    cloud.bucket.put("large", body)
    folder = ObjectFolder(cloud.bucket.url)
    together = threading.Barrier(8)
    with folder.open(f"{folder.name}/large") as opened:

        def part(start: int) -> bytes:
            opened.seek(start)
            together.wait()
            return opened.read(1000) + opened.read(1000)

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(part, range(0, 8_000, 1000))) == [
                body[at : at + 2000] for at in range(0, 8_000, 1000)
            ]
        opened.seek(len(body) - 10)
        assert opened.read(1000) == body[-10:] and opened.read(1000) == b""
        with pytest.raises(OSError, match="counts from the start"):
            opened.seek(0, 2)


def test_many_row_groups_are_read_in_parallel(cloud: Cloud) -> None:
    sql = "SELECT i % 1000 AS patient_id, CAST(i % 50 AS DECIMAL(10, 2)) AS cost FROM range(300000) t(i)"
    duckdb.execute(f"COPY ({sql}) TO '{cloud.data}/visits.parquet' (ROW_GROUP_SIZE 4096)")
    cloud.upload()
    summed = 'SELECT CAST(sum(cost * patient_id) AS VARCHAR) AS v0 FROM "dpsql.files".main.visits'
    expected = duckdb.execute(f"SELECT CAST(sum(cost * patient_id) AS VARCHAR) FROM ({sql})").fetchall()[0][0]
    assert read(cloud.open(), summed).columns[0].tolist() == [expected]


def test_nothing_else_is_read_and_nothing_is_written(cloud: Cloud) -> None:
    cloud.parquet()
    cloud.parquet("other.parquet")
    cloud.upload()
    database = cloud.open()._database  # type: ignore[attr-defined]
    for sql in (
        f"SELECT * FROM read_parquet('{cloud.bucket.url}/other.parquet')",
        f"SELECT * FROM read_parquet('{cloud.bucket.url}/*.parquet')",
        f"COPY (SELECT 1) TO '{cloud.bucket.url}/new.parquet'",
        f"COPY (SELECT 1) TO '{cloud.bucket.url}/visits.parquet'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SET enable_external_access = true",
    ):
        with pytest.raises(duckdb.Error):
            database.execute(sql)
    files = object_store._Objects(ObjectFolder(cloud.bucket.url)._store, cloud.bucket.url, {})
    with pytest.raises(PermissionError):
        files.open(f"{cloud.bucket.url}/visits.parquet", "wb")
    with pytest.raises(FileNotFoundError):
        files.open(f"{cloud.bucket.url}/visits.parquet", "rb")


def test_bounded_copies_lie_beside_the_policy(cloud: Cloud) -> None:
    cloud.parquet()
    cloud.upload()
    policy = load_policy(cloud.policy())
    place, rows = prepare_tables(policy)
    assert Path(place).parent == cloud.path and rows == {"visits": 3}
    backend = cloud.open()
    assert list(backend.schema.copies) == ["visits"]


def test_a_policy_is_drafted_from_a_bucket(cloud: Cloud) -> None:
    cloud.parquet()
    cloud.parquet("bills/year=2024/a.parquet")
    cloud.upload()
    outline = read_outline(cloud.bucket.url)
    assert [(table.name, [column.name for column in table.columns]) for table in outline.tables] == [
        ("bills", ["patient_id", "cost", "year"]),
        ("visits", ["patient_id", "cost"]),
    ]
    assert outline.url == cloud.bucket.url


# What is not what was listed


def rewrite(cloud: Cloud) -> None:
    cloud.parquet(rows="(1, 2.5), (1, 3), (2, 5)")
    cloud.upload()


def add(cloud: Cloud) -> None:
    cloud.bucket.put("visits/new.parquet", cloud.data / "visits.parquet")


def remove(cloud: Cloud) -> None:
    cloud.bucket.remove("visits.parquet")


CHANGES = (rewrite, add, remove)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_objects_are_refused_before_the_read(
    cloud: Cloud, make_engine: MakeEngine, change: Callable[[Cloud], None]
) -> None:
    cloud.parquet()
    cloud.upload()
    session = Session(make_engine(cloud.policy()), "ana")
    statement, budget = session.parse("SELECT COUNT(*) FROM visits; SELECT epsilon_spent FROM dpsql.budget")
    change(cloud)
    with pytest.raises(DatabaseUnavailable, match=r"was changed, added or removed .*nothing was charged"):
        session.execute(statement)
    assert session.execute(budget).rows[0][0] == 0


@pytest.mark.parametrize("change", (rewrite, remove))
def test_another_version_is_never_read(
    cloud: Cloud, change: Callable[[Cloud], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody lists the objects anew: two scans of one answer see the same bytes."""
    cloud.parquet()
    cloud.upload()
    backend = cloud.open()
    change(cloud)
    monkeypatch.setattr("dpsql.backends.duckdb.is_changed", lambda *_: False)
    with pytest.raises(BackendFailure):
        read(backend, ROWS)


class _Careless(BaseHTTPRequestHandler):
    """A server that sends a version whatever it was asked for."""

    tag, length = '"other"', 10

    def do_GET(self) -> None:
        self.send_response(206)
        headers = {
            "ETag": self.tag,
            "Last-Modified": "Fri, 27 Nov 2026 00:00:00 GMT",
            "Content-Range": "bytes 0-9/10",
            "Content-Length": str(self.length),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"x" * self.length)

    def log_message(self, format: str, *_: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(("tag", "told"), [('"listed"', "10 bytes"), ('"other"', "was changed"), ("", "no version")])
def test_a_server_that_disregards_the_version_is_found_out(
    cloud: Cloud, tag: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless = type("Careless", (_Careless,), {"tag": tag or '"listed"'})
    with ThreadingHTTPServer(("127.0.0.1", 0), careless) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{http.server_port}")
            folder = ObjectFolder("s3://bucket/clinic")
            state = FileState(("a",), ('"listed"' if tag else "", 10, "2026-11-27T00:00:00+00:00"))
            files = object_store._Objects(folder._store, folder.name, {f"{folder.name}/a": state})
            read_all = partial(files.open(f"{folder.name}/a").read, 10)
            if told == "10 bytes":
                assert read_all() == b"x" * 10
            else:
                with pytest.raises(OSError, match=told):
                    read_all()
        finally:
            http.shutdown()
            thread.join()


# What cannot be read


def test_a_store_that_is_away(cloud: Cloud, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.parquet()
    cloud.upload()
    with s3_server() as other:
        monkeypatch.setenv("AWS_ENDPOINT_URL", other)
        bucket, cloud.bucket = cloud.bucket, Bucket(other, cloud.bucket.url.split("/")[2])
        cloud.upload()
        backend = cloud.open()
        session = Session(make_engine(cloud.policy(), backend=backend), "ana")
        statement, budget = session.parse("SELECT COUNT(*) FROM visits; SELECT epsilon_spent FROM dpsql.budget")
    with pytest.raises(
        DatabaseUnavailable, match="the objects of the data cannot be listed now: GenericError"
    ) as refused:
        session.execute(statement)
    assert refused.value.hint and "AWS_ENDPOINT_URL" in refused.value.hint
    assert session.execute(budget).rows[0][0] == 0
    with pytest.raises(BackendFailure):
        read(backend, ROWS)
    with pytest.raises(DatabaseUnavailable, match="cannot be listed now"):
        cloud.open()
    cloud.bucket = bucket


def test_rows_do_not_travel_in_the_clear(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.parquet()
    cloud.upload()
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert cloud.rows() == THREE
    for url in (
        "http://192.0.2.1",
        "http://minio:9000",
        "minio:9000",
        "no url",
        "http://[",
        "http://127.0.0.1.example",
    ):
        monkeypatch.setenv("AWS_ENDPOINT", url)
        with pytest.raises(DatabaseUnavailable, match="cannot be listed now"):
            cloud.open()


def test_a_bucket_without_the_tables(cloud: Cloud) -> None:
    assert "there is no file visits.parquet or visits/**/*.parquet in s3://bucket-" in cloud.refused()
    cloud.text("visits.parquet", "no parquet")
    cloud.upload()
    assert f'"{cloud.bucket.url}/visits.parquet" is not a whole Parquet file' in cloud.refused()
    with pytest.raises(InvalidParameter, match="is not a Parquet file"):
        read_outline(cloud.bucket.url)
    cloud.bucket.remove("visits.parquet")
    with pytest.raises(InvalidParameter, match="contains no readable table"):
        read_outline(cloud.bucket.url)


def test_too_many_objects(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.parquet()
    cloud.parquet("other.parquet")
    cloud.upload()
    monkeypatch.setattr(object_store, "MAX_OBJECTS", 1)
    with pytest.raises(DatabaseUnavailable, match="there are more than 1"):
        cloud.open()


def test_names_that_are_no_paths(cloud: Cloud) -> None:
    cloud.parquet()
    cloud.upload()
    cloud.bucket.put("a//b.parquet", b"x")
    with pytest.raises(DatabaseUnavailable, match="InvalidPathError") as refused:
        cloud.open()
    assert (
        refused.value.hint == "The data owner removes the object whose name has an empty part, or one that is . or .."
    )
    assert "bucket" not in str(refused.value)


def test_a_listing_without_end(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.parquet()
    cloud.upload()
    folder = ObjectFolder(cloud.bucket.url)
    assert list(folder.look(["*.parquet"])("*.parquet"))
    monkeypatch.setattr(object_store, "_SECONDS", -1.0)
    with pytest.raises(DatabaseUnavailable, match="this takes more than -1 seconds"):
        folder.look(["*.parquet"])


@pytest.mark.parametrize(
    "url", ["s3://", "s3://b", "s3://Bucket/x", "s3://bucket/../x", "s3://bucket/a*", "s3://bucket/x/"]
)
def test_urls_that_name_no_folder(cloud: Cloud, url: str) -> None:
    with pytest.raises(InvalidPolicy, match="a url of S3 is s3:// and a path"):
        load_policy(cloud.policy(url=f'url = "{url}"'))


def test_table_formats_are_for_local_folders(cloud: Cloud) -> None:
    with pytest.raises(InvalidPolicy, match="tables of format delta are not read from S3"):
        load_policy(cloud.policy('files = { format = "delta", paths = ["visits"] }'))


def test_what_is_not_installed(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dpsql.backends.object_store", None)
    with pytest.raises(InvalidPolicy, match="what reads S3 is not installed") as refused:
        cloud.open()
    with pytest.raises(InvalidParameter, match="what reads S3 is not installed") as also:
        read_outline("s3://bucket/clinic")
    assert refused.value.hint == also.value.hint == "pip install 'dpsql[s3]'"
