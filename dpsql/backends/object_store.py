"""A folder of an object store: the objects of an S3 bucket, which DuckDB reads through this process.

Rule 1: each read asks for the version of the object that was listed when the policy was loaded, and compares what it
    gets with it. All scans of an answer see the same bytes, or fail.
Rule 2: only objects that were listed are opened, and only for reading.
Rule 3: rows travel over TLS, or do not leave this machine.

Reference:
    RFC 9110, section 13.1.1 (If-Match).
"""

import ipaddress
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Self

import duckdb
import obstore
from fsspec.spec import AbstractFileSystem
from obstore.exceptions import BaseError
from obstore.store import S3Store

from dpsql.backends.file_folders import FileState, Matching
from dpsql.errors import DatabaseUnavailable

_LOG = logging.getLogger("dpsql.backend")

_ENVIRONMENT: Final = (
    "The operator looks at the bucket, and at AWS_REGION, AWS_ENDPOINT_URL and the credentials in the environment of "
    "the gateway."
)
_OWN_FOLDER: Final = "The data owner moves the objects of the tables to a folder of their own."
_BAD_NAME: Final = "The data owner removes the object whose name has an empty part, or one that is . or .."

MAX_OBJECTS: Final = 100_000
"""Below the url: each query lists them."""
_SECONDS: Final = 30.0
"""How long a request may take, and its repetitions: a statement that was canceled waits for it."""
_ENDPOINT: Final = re.compile(r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?/?")
_ENDPOINTS: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


class ObjectFolder:
    """The objects of a bucket below a prefix.

    Args:
        url: The bucket and the prefix.
    """

    def __init__(self, url: str) -> None:
        self.name = url

    def look(self, patterns: Iterable[str]) -> Matching:
        """Look at the objects that there are now; see FileFolder."""
        wanted = re.compile("|".join(f"(?:{_expression('', pattern)})" for pattern in patterns))
        found: dict[str, FileState] = {}
        count, end = 0, time.monotonic() + _SECONDS
        try:
            for block in obstore.list(self._store):
                found |= {
                    f"{self.name}/{each['path']}": _state_of(each) for each in block if wanted.fullmatch(each["path"])
                }
                count += len(block)
                if count > MAX_OBJECTS:
                    raise self._unavailable(f"there are more than {MAX_OBJECTS:,}", _OWN_FOLDER)
                if time.monotonic() > end:
                    raise self._unavailable(f"this takes more than {_SECONDS:g} seconds", _OWN_FOLDER)
        except BaseError as error:
            hint = _BAD_NAME if type(error).__name__ == "InvalidPathError" else _ENVIRONMENT
            raise self._unavailable(type(error).__name__, hint) from None

        def matching(pattern: str) -> Iterator[tuple[str, FileState | None]]:
            wanted = re.compile(_expression(f"{self.name}/", pattern))
            return ((path, state) for path, state in found.items() if wanted.fullmatch(path))

        return matching

    def open(self, path: str) -> AbstractContextManager["_Object"]:
        """Open the current version of an object; see FileFolder."""
        key = path.removeprefix(f"{self.name}/")
        try:
            state = _state_of(obstore.head(self._store, key))
        except BaseError as error:
            raise OSError(f"{path}: {type(error).__name__}") from None
        return _Object(self._store, key, path, state)

    def attach(self, database: duckdb.DuckDBPyConnection, files: Mapping[str, FileState]) -> None:
        """Let a database read objects in these states; see FileFolder."""
        database.register_filesystem(_Objects(self._store, self.name, files))

    @cached_property
    def _store(self) -> S3Store:
        endpoints = [url for name in _ENDPOINTS if (url := os.environ.get(name))]
        if not all(map(_is_endpoint, endpoints)):
            raise self._unavailable(
                "AWS_ENDPOINT_URL is not https://HOST, or http://HOST of this machine", _ENVIRONMENT
            )
        limit = timedelta(seconds=_SECONDS)
        try:
            return S3Store.from_url(
                self.name,
                client_options={
                    "allow_http": any(url.startswith("http://") for url in endpoints),
                    "allow_invalid_certificates": False,
                    "connect_timeout": timedelta(seconds=5),
                    "timeout": limit,
                },
                retry_config={"max_retries": 3, "retry_timeout": limit},
            )
        except (BaseError, ValueError) as error:  # a value of the environment is none of its kind
            raise self._unavailable(type(error).__name__, _ENVIRONMENT) from None

    def _unavailable(self, what: str, hint: str) -> DatabaseUnavailable:
        """The error for analysts, too: only the log names the bucket."""
        _LOG.error("%s cannot be listed: %s", self.name, what)
        return DatabaseUnavailable(f"the objects of the data cannot be listed now: {what}", hint=hint)


def _is_endpoint(url: str) -> bool:
    """Return whether a url names a server, whom other machines cannot overhear."""
    found = _ENDPOINT.fullmatch(url)
    if found is None or found["scheme"] == "https":
        return found is not None
    try:
        return found["host"] == "localhost" or ipaddress.ip_address(found["host"].strip("[]")).is_loopback
    except ValueError:
        return False


def _state_of(meta: Any) -> FileState:
    """The state of an object, of which nothing but the tag is compared when it is read."""
    written: datetime = meta["last_modified"]
    return FileState((meta["path"],), (meta["e_tag"] or "", meta["size"], written.isoformat()))


def _expression(folder: str, pattern: str) -> str:
    """A regular expression for the paths that match a pattern: `*` is any name, `**` any folders."""
    parts = [
        "(?:[^/]+/)*" if part == "**" else re.escape(part).replace(r"\*", "[^/]*") + "/" for part in pattern.split("/")
    ]
    return re.escape(folder) + "".join(parts).removesuffix("/")


class _Object:
    """An object that is open for reading, by several threads of DuckDB: each has a position of its own.

    DuckDB sets the position and reads in two calls, between which another thread may run.
    """

    def __init__(self, store: S3Store, key: str, path: str, state: FileState) -> None:
        self._store, self._key, self._path = store, key, path
        self._tag, self.size = str(state.version[0]), int(state.version[1])
        self._threads = threading.local()

    def seek(self, position: int, whence: int = os.SEEK_SET, /) -> int:
        """Set this thread's position, from the start of the object."""
        if whence != os.SEEK_SET:
            raise OSError(f"{self._path}: a position counts from the start")
        self._threads.position = position
        return position

    def tell(self) -> int:
        """Return this thread's position."""
        return int(getattr(self._threads, "position", 0))

    def read(self, size: int, /) -> bytes:
        """Return the bytes from this thread's position on.

        Raises:
            OSError: The object is no longer the one that was listed, or the store does not answer.
        """
        start = self.tell()
        end = min(start + size, self.size)
        if start >= end:
            return b""
        if not self._tag:
            raise OSError(f"{self._path}: the store tells no version of it")
        try:
            found = obstore.get(self._store, self._key, options={"range": (start, end), "if_match": self._tag})
            if found.meta["e_tag"] != self._tag:
                raise OSError(f"{self._path} was changed")
            read = bytes(found.bytes())
        except BaseError as error:
            raise OSError(f"{self._path}: {type(error).__name__}") from None
        if len(read) != end - start:
            raise OSError(f"{self._path} ended early")
        self._threads.position = end
        return read

    def close(self) -> None:
        """Nothing is held open: each read is a request of its own."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Objects(AbstractFileSystem):  # type: ignore[misc]  # DuckDB asks for this class, and fsspec has no types
    """The objects that were listed, as a file system that DuckDB asks for them."""

    protocol = "s3"
    cachable = False

    def __init__(self, store: S3Store, folder: str, files: Mapping[str, FileState]) -> None:
        super().__init__()
        self._store, self._folder, self._files = store, folder, files

    def open(self, path: str, mode: str = "rb", **_: object) -> _Object:
        """Open an object that was listed."""
        if mode != "rb":
            raise PermissionError(f"{path} is only read")
        return _Object(self._store, path.removeprefix(f"{self._folder}/"), path, self._state(path))

    def info(self, path: str, **_: object) -> dict[str, object]:
        """Return the size of an object that was listed."""
        return {"name": path, "type": "file", "size": self._state(path).version[1]}

    def modified(self, path: str) -> datetime:
        """Return when an object was written, as it was listed."""
        return datetime.fromisoformat(str(self._state(path).version[2]))

    def glob(self, path: str, **_: object) -> list[str]:
        """Return the path itself: no listed path is a pattern."""
        return [path] if path in self._files else []

    def exists(self, path: str, **_: object) -> bool:
        """Return whether an object was listed."""
        return path in self._files

    def _state(self, path: str) -> FileState:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(f"{path} was not listed") from None
