"""The wheel has all that dpsql reads, and works in an environment of its own, in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parent.parent
READ = {".css", ".html", ".py", ".sql", ".svg", ".toml", ".tsv", ".typed"}
"""Endings of what is part of the program."""
SUITE = ("tests/compiler/test_rejected.py", "tests/compiler/test_rewrite.py", "tests/test_engine.py")
"""What a version of the parser or of DuckDB must pass."""
OLDEST = (
    *(f"tests/compiler/test_{name}.py" for name in ("edges", "expressions", "accepted")),
    *(f"tests/backends/test_{name}.py" for name in ("duckdb", "duckdb_files", "duckdb_lakes", "duckdb_spill", "fit")),
    *("tests/test_neighbours.py", "tests/attacks/test_nested_errors.py", "tests/wire/catalog/test_reading.py"),
)
"""What the oldest DuckDB must pass besides; all other tests run on the newest."""
EXTENSIONS = "1.5.5"
"""The newest DuckDB whose extensions are packages: with them, it spills and reads lakes as it does for an operator."""
INSTALL = "import duckdb_extensions as e; [e.import_extension(n) for n in ('httpfs', 'delta', 'avro', 'iceberg')]"


def run(folder: Path, *command: str | Path, more: Mapping[str, str] | None = None) -> str:
    """Run a program that must end well; gives what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DPSQL_"))}
    ended = subprocess.run(
        command,
        cwd=folder,
        env=environment | dict(more or {}),
        capture_output=True,
        text=True,
        timeout=4 * HANG_SECONDS,
    )
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy: a build leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "dpsql", source / "dpsql", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(folder, sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", source)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def test_the_wheel_has_every_file_of_the_program(wheel: Path) -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "dpsql").rglob("*") if path.suffix in READ}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == files


def test_the_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-m", "venv", "own")
    run(tmp_path, tmp_path / "own" / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
    dpsql, empty = tmp_path / "own" / "bin" / "dpsql", tmp_path / "empty"
    empty.mkdir()
    assert run(empty, dpsql, "--version").startswith("dpsql, version ")
    assert "generating 50 patients" in run(empty, dpsql, "demo", "--no-serve", "--patients", "50")
    counted = run(
        empty,
        *(dpsql, "query", "demo/clinic.toml", "SELECT COUNT(*) AS n FROM patients", "--format", "csv"),
        *("--user", "ana", "--ledger", "sqlite:///demo/ledger.sqlite"),
    )
    assert counted.splitlines()[0] == "n"


@pytest.mark.parametrize("end", ["oldest", "newest"])
def test_the_ranges_of_duckdb_and_sqlglot_hold(end: str, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ranges = dict(re.findall(r"(duckdb|sqlglot)(?:\[c\])?(>=\S+)", "\n".join(project["dependencies"])))
    ranges["sqlglotc"] = ranges["sqlglot"]
    wanted = {
        name: each.partition(",")[0].replace(">=", "==") if end == "oldest" else each for name, each in ranges.items()
    }
    packages = [name + each for name, each in wanted.items()]
    if has_extensions := wanted["duckdb"] == f"=={EXTENSIONS}":
        packages += [f"duckdb-extensions=={EXTENSIONS}"]
        packages += [f"duckdb-extension-{name}=={EXTENSIONS}" for name in ("httpfs", "delta", "avro", "iceberg")]
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", "versions", *packages)
    run(tmp_path, *pip)
    more = {"PYTHONPATH": str(tmp_path / "versions"), "PYTHONHASHSEED": "0", "HOME": str(tmp_path)}
    shown = run(tmp_path, sys.executable, "-c", "import sqlglot; print(sqlglot.__file__)", more=more)
    assert shown.startswith(str(tmp_path))
    if has_extensions:
        run(tmp_path, sys.executable, "-c", INSTALL, more=more)
        run(tmp_path, *pip[:5], "--target", "lakes", "pyiceberg[sql-sqlite]>=0.12,<1")
        more["PYTHONPATH"] += f":{tmp_path / 'lakes'}"
    suite = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-cov", "-n", "2")
    files = SUITE + (OLDEST if end == "oldest" else ())
    tested = run(ROOT, *suite, *files, "-k", "not postgres and not parquet", more=more)
    assert " passed" in tested and ("extension is installed" in tested) == has_extensions
    assert "extension is not installed" not in tested or not has_extensions
