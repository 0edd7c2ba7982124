"""The embedded ledger: one SQLite file, shared by threads and by gateways on one machine."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from dpsql.errors import LedgerUnavailable
from dpsql.ledger.chain import ORIGIN
from dpsql.ledger.damage import flaws
from dpsql.ledger.file import FAILURES, check_files, open_file, open_reader, open_snapshot, unavailable
from dpsql.ledger.gateway_lock import GatewayLock
from dpsql.ledger.store import Store
from dpsql.ledger.stored import MAX_STORED_BYTES, StoredLedger, now
from dpsql.ledger.transaction import CLOCK_LIMIT


class SqliteStorage:
    """A SQLite file: threads share one connection that writes and one that reads.

    Args:
        path: The file.
        make: Whether it is made if nothing is there.
    """

    errors = FAILURES

    def __init__(self, path: Path, *, make: bool) -> None:
        self._path = path.absolute()
        self.writer, self._files = open_file(self._path, make=make)
        self._reader = open_reader(self._path)
        self._reader_lock = threading.Lock()
        self._watcher = open_reader(self._path, patience=0)
        self._watcher_lock = threading.Lock()
        self._gateway_lock = GatewayLock(self._path)
        self._seen: tuple[int, tuple[int, str]] | None = None

    def begin(self) -> None:
        """Begin a transaction of the writer's in which nobody else writes."""
        self.writer.execute("BEGIN IMMEDIATE")
        check_files(self._path, self._files)

    def head(self) -> tuple[int, str] | None:
        """Return number and hash of the last record that is durable; None where it cannot be read now.

        Its connection waits for no other: SQLite says by a number whether another one has written anything since.
        """
        with self._watcher_lock:
            try:
                (version,) = self._watcher.execute("PRAGMA data_version").fetchone()
                if self._seen is None or self._seen[0] != version:
                    row = self._watcher.execute("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
                    self._seen = version, row or (0, ORIGIN)
            except FAILURES:
                self._seen = None
        return None if self._seen is None else self._seen[1]

    def gateway(self) -> str:
        """Return where others find the lock that this process holds."""
        return self._gateway_lock.name()

    def is_dead(self, gateway: str) -> bool:
        """Return whether another process holds its lock no longer."""
        return self._gateway_lock.is_free(gateway)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Read one state of the ledger, without waiting for a commit."""
        with self._reader_lock:
            try:
                self._reader.execute("BEGIN")
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")

    @contextmanager
    def snapshot(self) -> Iterator[Store]:
        """Read one state of the whole ledger for as long as it takes."""
        with closing(open_snapshot(self._path)) as connection:
            yield connection

    def flaws(self, store: Store) -> list[str]:
        """Return what is wrong with the file and its schema."""
        return flaws(store)

    def unavailable(self, error: Exception) -> LedgerUnavailable:
        """Return what a refusal of SQLite or of the file system means for the ledger."""
        return unavailable(self._path, error)

    def close(self) -> None:
        """Close the connections that read, and let go of the gateway's lock."""
        with self._reader_lock:
            self._reader.close()
        with self._watcher_lock:
            self._watcher.close()
        self._gateway_lock.close()


class SqliteLedger(StoredLedger):
    """A Ledger in a SQLite file.

    Args:
        path: The file.
        make: Whether it is made if nothing is there.
        clock: Returns the time, aware of its zone.
        clock_limit: How far ahead of the last record the clock is believed.
        max_stored_bytes: Bound on the stored releases together.
    """

    _storage: SqliteStorage

    def __init__(
        self,
        path: Path,
        *,
        make: bool = True,
        clock: Callable[[], datetime] = now,
        clock_limit: timedelta = CLOCK_LIMIT,
        max_stored_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        super().__init__(
            SqliteStorage(path, make=make), clock=clock, clock_limit=clock_limit, max_stored_bytes=max_stored_bytes
        )
