"""Folders with the files of a policy's tables: which files there are, in what state, and how they are opened."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

import duckdb


@dataclass(frozen=True)
class FileState:
    """The state of a file at one moment.

    Attributes:
        identity: Equal for two names of one file.
        version: Differs after each change of the file.
    """

    identity: tuple[int | str, ...]
    version: tuple[int | str, ...]


Listed = Mapping[str, Mapping[str, FileState]]
"""By table, the paths of its files, in their order, and their states."""
Matching = Callable[[str], Iterator[tuple[str, FileState | None]]]
"""Finds the files whose paths match a pattern: the path of each, and its state, None if it cannot be read."""


class FolderError(Exception):
    """Files cannot be listed.

    Attributes:
        what: What is wrong.
        hint: What the data owner can do about it.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


class Readable(Protocol):
    """An open file."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`."""


class FileFolder(Protocol):
    """A folder with all files of a policy's tables."""

    @property
    def name(self) -> str:
        """How messages name the folder."""

    def look(self, patterns: Iterable[str]) -> Matching:
        """Look at the files that there are now.

        Args:
            patterns: All that may be asked for.

        Raises:
            FolderError: From what is returned: a folder in it cannot be listed.
            DatabaseUnavailable: The folder cannot be listed now.
        """

    def open(self, path: str) -> AbstractContextManager[Readable]:
        """Open a file that was found.

        Raises:
            OSError: It cannot be read.
        """

    def attach(self, database: duckdb.DuckDBPyConnection, files: Mapping[str, FileState]) -> None:
        """Let a database read files, in these states."""


def file_state(path: str | Path) -> FileState | None:
    """Return the state of a file; None if there is none.

    Nobody opens the file for this: closing it would release DuckDB's lock on it.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    # The time of modification can be set back; that of the last change of the file's state cannot.
    version = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return FileState((found.st_dev, found.st_ino), version)


class LocalFolder:
    """A folder of this machine.

    Args:
        path: Its path.
    """

    def __init__(self, path: str) -> None:
        self.name = os.path.realpath(path)

    def look(self, patterns: Iterable[str]) -> Matching:
        """Look at the files that there are now; see FileFolder."""
        return self._matching

    def open(self, path: str) -> AbstractContextManager[Readable]:
        """Open a file that was found; see FileFolder."""
        return Path(path).open("rb")

    def attach(self, database: duckdb.DuckDBPyConnection, files: Mapping[str, FileState]) -> None:
        """DuckDB reads local files itself; see FileFolder."""

    def _matching(self, pattern: str) -> Iterator[tuple[str, FileState | None]]:
        try:
            for file in _files_below(self.name, pattern.split("/"), self.name):
                yield file, file_state(file)
        except FileNotFoundError:
            return  # a folder that the pattern names, or that was removed this moment
        except OSError as error:
            what = f'"{error.filename}" cannot be looked through: {error.strerror}'
            raise FolderError(what, "chmod or chown it.") from None
        except _LeadsOut as link:
            what = f'"{link}" is a link that leads out of {self.name}'
            raise FolderError(what, "Put the files themselves there, or a copy of them.") from None


class _LeadsOut(Exception):
    """A symbolic link leads out of the folder of the data."""


def _files_below(folder: str, parts: Sequence[str], root: str) -> Iterator[str]:
    """The files below a folder whose names match the parts of a pattern, by their own paths."""
    first, rest = parts[0], parts[1:]
    with os.scandir(folder) as entries:
        for entry in entries:
            if first == "**":  # it follows no links, of which one could lead up
                if entry.is_dir() and _within(entry, root) == entry.path:
                    yield from _files_below(entry.path, parts, root)
            elif fnmatchcase(entry.name, first) and (not rest or entry.is_dir()):
                path = _within(entry, root)
                yield from _files_below(path, rest, root) if rest else (path,)
    if first == "**":
        yield from _files_below(folder, rest, root)


def _within(entry: "os.DirEntry[str]", root: str) -> str:
    """Where an entry of a folder leads to."""
    if not entry.is_symlink():
        return entry.path
    target = os.path.realpath(entry.path)
    if os.path.commonpath((root, target)) != root:
        raise _LeadsOut(entry.path)
    return target
