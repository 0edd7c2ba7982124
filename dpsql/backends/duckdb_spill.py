"""The directory in which DuckDB spills: private rows on a disk, encrypted, for this process only.

Rule 1: DuckDB encrypts what it spills, with a key that it never writes to disk. This is tested before any data is
    opened; otherwise DuckDB would fail at the first spill, within a query that is already charged.
Rule 2: no other user may read the directory. Files of processes that have ended are removed.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import duckdb

from dpsql.errors import InvalidPolicy

Settings = dict[str, str | bool | int | float | list[str]]

_PREFIX: Final = "dpsql-spill-"
_MARK: Final = "what is spilled must not be read "
_LARGE: Final = f"SELECT text FROM (SELECT '{_MARK}' || range AS text FROM range(1000000)) ORDER BY hash(text)"
"""It takes some eighty megabytes."""


def spill_settings(spill: str, settings: Settings, processes: int = 1) -> Settings:
    """The settings of an engine that may spill, below the directory that a policy names.

    Args:
        spill: The directory.
        settings: The engine's others.
        processes: How many share the disk.

    Raises:
        InvalidPolicy: It may not be written, or DuckDB cannot spill encrypted.
    """
    try:
        directory, room = _own_directory(spill, processes)
    except OSError as error:
        what = f"dataset.spill: {spill} cannot be written: {error.strerror}"
        raise InvalidPolicy(what, hint=f"mkdir -p -m 700 {spill}, as the user of the gateway.") from None
    spilling: Settings = {"temp_directory": directory, "temp_file_encryption": True}
    _rehearse({**settings, **spilling}, directory)
    return {**spilling, "max_temp_directory_size": f"{room}B"}


def load_cipher(database: duckdb.DuckDBPyConnection) -> None:
    """Load the extension that brings OpenSSL, if the operator installed it: DuckDB's own cipher only decrypts."""
    with suppress(duckdb.IOException):
        database.execute("LOAD httpfs")


@cache
def _own_directory(spill: str, processes: int = 1) -> tuple[str, int]:
    """This process's own, on which it holds a lock to its end, and the bytes for it; what nobody holds is removed."""
    place = os.open(spill, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)  # who makes one meanwhile has not locked it yet
        for left in Path(spill).glob(f"{_PREFIX}*"):
            _remove_unheld(left)
        own = tempfile.mkdtemp(prefix=_PREFIX, dir=spill)  # for its owner alone
        fcntl.flock(os.open(own, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)
    finally:
        os.close(place)
    return own, shutil.disk_usage(own).free // 2 // processes


def _remove_unheld(left: Path) -> None:
    try:
        held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return  # it is somebody else's, or no directory
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(left)
    except BlockingIOError:
        pass
    finally:
        os.close(held)


def _rehearse(settings: Settings, directory: str) -> None:
    """Make an engine spill, and look for what it spilled."""
    # Beside it, other engines of this process may have spilled.
    with (
        tempfile.TemporaryDirectory(dir=directory) as place,
        duckdb.connect(config={**settings, "temp_directory": place, "memory_limit": "40MB", "threads": 1}) as database,
    ):
        try:
            load_cipher(database)
            database.execute(_LARGE).fetchone()
        except duckdb.Error as error:
            raise _refused(str(error).partition(". ")[0].strip()) from None
        spilled = b"".join(path.read_bytes() for path in Path(place).iterdir())
    if not spilled or _MARK.encode() in spilled:
        raise _refused("it can be read" if spilled else "nothing was spilled")


def _refused(why: str) -> InvalidPolicy:
    return InvalidPolicy(
        f"dataset.spill: DuckDB {duckdb.__version__} does not spill encrypted here: {why}",
        hint="Install its extension httpfs of this very version beforehand, or remove spill: "
        "python3 -c \"import duckdb; duckdb.execute('INSTALL httpfs')\"",
    )
