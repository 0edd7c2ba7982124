"""A Spark Connect server on this machine, with the demo clinic in it as tables of Parquet.

The server comes with PySpark and needs Java. dpsql itself needs neither.
"""

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import duckdb

from dpsql.backends import Cancellation
from dpsql.cli.clinic import generate_clinic
from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.dialects.spark import Spark
from dpsql.errors import InvalidParameter, NotSupportedError

if TYPE_CHECKING:
    from dpsql.backends.spark_sessions import Session

CATALOG: Final = "spark_catalog"
PORT: Final = 15002
_HOST: Final = "127.0.0.1"
_KEPT: Final = re.compile(r"PATH|HOME|JAVA_HOME|TMPDIR|LANG|LC_\w+|SPARK_(?!TOKEN)\w+")
"""Variables of the environment that Java and Spark use. Others may hold secrets."""
_STARTED: Final = re.compile(rf"Spark Connect server started at: {re.escape(_HOST)}:(\d+)\n")
_START_SECONDS: Final = 300
_MOMENT: Final = 0.1
_CAUSES: Final = 2
"""Lines of a server's log that are quoted if it does not start."""
_SCHEMA: Final = "clinic"
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@contextmanager
def clinic_in_spark(
    folder: Path, file: Path, patients: int, progress: Callable[[float], None]
) -> Iterator["LocalServer"]:
    """Start a server with the clinic in it, which runs until the end.

    Args:
        folder: The server's files. It is made anew, because a local server forgets its tables.
        file: The clinic as a DuckDB file; it is made if it is missing.
        patients: How many patients are invented then.
        progress: Called with the share that is done.

    Raises:
        NotSupportedError: PySpark or Java is missing.
        InvalidParameter: The server does not start.
    """
    check_tools()
    if not file.exists():
        generate_clinic(file, patients=patients, progress=progress)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with local_server(folder, PORT) as server:
        from dpsql.backends.spark_sessions import SparkSessions

        with SparkSessions(server.url, "UTC").session(Cancellation(), _START_SECONDS) as session:
            _load(session, file)
        yield server


def check_tools() -> None:
    """Check that a server can be started.

    Raises:
        NotSupportedError: PySpark or Java is missing.
    """
    if not (_home() / "jars").is_dir():
        raise NotSupportedError(
            "PySpark is not installed, which brings the Spark Connect server",
            hint="pip uninstall pyspark-client; pip install 'dpsql[spark-demo]'",
        )
    java = os.environ.get("JAVA_HOME")
    if not (java and Path(java, "bin", "java").exists()) and shutil.which("java") is None:
        raise NotSupportedError(
            "Java is not installed, which runs the Spark Connect server",
            hint="Install Java 17 or later, as by: apt-get install default-jre-headless. Or set JAVA_HOME.",
        )


@dataclass(frozen=True)
class LocalServer:
    """A server on this machine.

    Attributes:
        process: Its process.
        place: The url of its catalog, without the token.
        token: What a client must know.
    """

    process: subprocess.Popen[bytes]
    place: str
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        """Of its catalog, with the token."""
        return f"{self.place}?token={self.token}"


@contextmanager
def local_server(
    folder: Path, port: int | None = None, master: str = "local[2]", settings: Mapping[str, str] = _NONE
) -> Iterator[LocalServer]:
    """Run a server that this machine alone can reach, and only with a token: who reaches it can run code.

    Args:
        folder: For its files and its log.
        port: On which it listens; None for a free one.
        master: Of Spark: where queries run.
        settings: Further settings of Spark.

    Raises:
        InvalidParameter: The server does not start.
    """
    chosen = {
        "spark.connect.grpc.binding.address": _HOST,
        "spark.connect.grpc.binding.port": str(port or 0),
        "spark.connect.grpc.port.maxRetries": "0",  # it takes no other port than the policy names
        "spark.driver.host": _HOST,
        "spark.driver.memory": "1500m",
        "spark.ui.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **settings,
    }
    home = _home()
    words = [str(home / "bin" / "spark-submit"), "--master", master]
    words += [word for name, value in chosen.items() for word in ("--conf", f"{name}={value}")]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    token = secrets.token_urlsafe()
    environment = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
    environment |= {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        port = _started(process, folder / "server.log")
        yield LocalServer(process, f"spark://localhost:{port}/{CATALOG}", token)
    finally:
        process.terminate()
        process.wait(_START_SECONDS)


def _home() -> Path:
    """Where PySpark is installed, or would be."""
    found = find_spec("pyspark")
    return Path(found.origin).parent if found is not None and found.origin is not None else Path("pyspark")


def _started(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port on which the server says that it listens: who else listens there must not get the token."""
    until = time.monotonic() + _START_SECONDS
    while True:
        is_over = process.poll() is not None or time.monotonic() > until
        text = log.read_text(encoding="utf-8", errors="replace")
        if told := _STARTED.search(text):
            return int(told[1])
        if is_over:
            # The log may be removed with its folder.
            causes = [line for line in text.splitlines() if not line.startswith("\t") and " INFO " not in line]
            last = " / ".join(causes[-_CAUSES:])
            raise InvalidParameter("the Spark Connect server does not start", hint=f"Its log says: {last}")
        time.sleep(_MOMENT)


def _load(session: "Session", file: Path) -> None:
    """Have Spark write the tables of a DuckDB file."""
    session.sql(f"CREATE SCHEMA {_SCHEMA}").collect()
    with tempfile.TemporaryDirectory(prefix="dpsql-clinic-") as folder:
        with duckdb.connect(str(file), read_only=True) as source:
            tables = [name for (name,) in source.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
            for table in tables:
                place = DuckDB.quote_text(f"{folder}/{table}.parquet")
                source.execute(f"COPY {DuckDB.quote_name(table)} TO {place} (FORMAT parquet)")
        for table in tables:
            name = Spark().quote_path((_SCHEMA, table))
            place = Spark.quote_name(f"{folder}/{table}.parquet")
            session.sql(f"CREATE TABLE {name} USING parquet AS SELECT * FROM parquet.{place}").collect()
