"""What DuckDB spills is encrypted, for this process alone, and gone after it; or the policy is refused.

DuckDB encrypts with its extension httpfs, which is not always installed. Where it is not, a setting that the gateway
never makes lets DuckDB's own cipher encrypt, from a weaker source of randomness.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from dpsql.backends import DuckDBBackend, duckdb_spill
from dpsql.backends import duckdb as duckdb_module
from dpsql.backends.duckdb_spill import Settings, spill_settings
from dpsql.errors import InvalidPolicy, LimitExceeded
from dpsql.policy import load_policy
from tests.backends.test_duckdb import POLICY
from tests.backends.test_postgres import read


def has_cipher() -> bool:
    with duckdb.connect() as database:
        try:
            database.execute("LOAD httpfs")
        except duckdb.IOException:
            return False
        return True


CIPHER: Settings = {} if has_cipher() else {"force_mbedtls_unsafe": "true"}
SORTED = """SELECT CAST(count(*) AS VARCHAR) AS v0 FROM (SELECT row_number() OVER (ORDER BY text) AS place FROM (
SELECT hash(range) || repeat('x', 30) AS text FROM range(2000000))) WHERE place > 0"""


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "spilt"
    made.mkdir()
    yield made
    duckdb_spill._own_directory.cache_clear()


def opened(folder: Path, line: str) -> DuckDBBackend:
    if not (folder / "people.duckdb").exists():
        with duckdb.connect(str(folder / "people.duckdb")) as database:
            database.execute("CREATE TABLE people AS SELECT 1 AS id")
    policy = folder / "people.toml"
    text = POLICY.format(zone="UTC").replace("timezone =", f'memory = "100 MB"\nthreads = 1\n{line}\ntimezone =')
    policy.write_text(text, encoding="utf-8")
    return DuckDBBackend(str(folder / "people.duckdb"), load_policy(policy))


@pytest.mark.skipif(has_cipher(), reason="DuckDB's extension is installed")
def test_without_a_cipher_the_policy_is_refused(tmp_path: Path, spill: Path) -> None:
    with pytest.raises(InvalidPolicy, match=r"does not spill encrypted here: .*read-only crypto module") as refused:
        opened(tmp_path, 'spill = "spilt"')
    assert "force" not in str(refused.value)
    assert refused.value.hint is not None and "INSTALL httpfs" in refused.value.hint


def test_what_memory_does_not_hold_is_spilled(tmp_path: Path, spill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_module, "_LOCKED", {**duckdb_module._LOCKED, **CIPHER})
    backend = opened(tmp_path, "")
    with pytest.raises(LimitExceeded):
        read(backend, SORTED)
    backend.close()
    backend, second = opened(tmp_path, 'spill = "spilt"'), opened(tmp_path, 'spill = "spilt"')
    try:
        assert read(backend, SORTED).count == 1
        (own,) = spill.iterdir()
        assert own.stat().st_mode & 0o777 == 0o700
        with pytest.raises(duckdb.Error):
            backend._database.execute("SET temp_file_encryption = false")
    finally:
        backend.close()
        second.close()
    assert list(own.iterdir()) == []


def test_what_can_be_read_is_refused(spill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Settings = {"temp_directory": str(spill), "temp_file_encryption": False}
    with pytest.raises(InvalidPolicy, match="it can be read"):
        duckdb_spill._rehearse(plain, str(spill))
    monkeypatch.setattr(duckdb_spill, "_LARGE", "SELECT 1")
    with pytest.raises(InvalidPolicy, match="nothing was spilled"):
        duckdb_spill._rehearse(plain, str(spill))
    monkeypatch.undo()
    settings = spill_settings(str(spill), CIPHER)
    assert settings["temp_file_encryption"] is True and str(settings["max_temp_directory_size"]).endswith("B")


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(spill: Path) -> None:
    left, held = spill / "dpsql-spill-left", spill / "dpsql-spill-held"
    for directory in (left, held):
        directory.mkdir()
        (directory / "storage.tmp").write_bytes(b"rows")
    (spill / "other").mkdir()
    program = f"from dpsql.backends.duckdb_spill import _own_directory as own; print(own({str(spill)!r})[0])"
    lock = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        assert {path.name for path in spill.iterdir()} == {Path(ended.stdout.strip()).name, held.name, "other"}
    finally:
        os.close(lock)
    own = Path(duckdb_spill._own_directory(str(spill))[0])
    assert {path.name for path in spill.iterdir()} == {own.name, "other"}


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicy, match="gone cannot be written: No such file or directory") as refused:
        spill_settings(str(tmp_path / "gone"), CIPHER)
    assert refused.value.hint is not None and "mkdir -p -m 700" in refused.value.hint
