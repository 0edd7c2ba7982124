"""Sessions of a Spark Connect server: one for each query, with all settings that change the meaning of SQL.

Rule 1: a session is for one query, so stopping all that the session runs stops this query.
Rule 2: each setting is read back after it is set. A server that keeps another value gets no query.
Rule 3: no call waits forever. A query's calls end when its connection is closed, soon after its time limit. Calls that
    clean up have their own time limit, because a server may be there and not answer.
Rule 4: no message contains the URL's token or the server's own words.
Rule 5: a failed query leaves nothing behind. pyspark would start threads for each result, and those of a failed one
    would run until Python collects its garbage.
"""

import atexit
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from dpsql.backends.backend import CANCEL_AGAIN_SECONDS, Cancellation, Unreachable
from dpsql.backends.deadlines import after
from dpsql.errors import InvalidPolicy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about versions of pandas, which is not used here
    from grpc import RpcError, StatusCode
    from pyspark.errors import PySparkException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.logger import PySparkLogger
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

# They log the server's words about an error, which may quote a row.
for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "pyspark.sql.connect.logging"):
    PySparkLogger.getLogger(_name).disabled = True

_RELEASING: Final = 4
"""Threads that tell servers which parts of results have arrived."""
ExecutePlanResponseReattachableIterator._release_thread_pool = ThreadPoolExecutor(_RELEASING, "dpsql-spark")  # type: ignore[assignment]

Session = SparkSession
FAILURES: Final = (PySparkException, RpcError, ValueError)
"""What a failed statement raises; ValueError if its connection was closed."""
_AWAY: Final = (StatusCode.UNAVAILABLE, StatusCode.UNAUTHENTICATED, StatusCode.DEADLINE_EXCEEDED)

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
PORT: Final = 15002
RETRIES: Final = 3
_ALIVE: Final = (("grpc.keepalive_time_ms", 310_000), ("grpc.keepalive_timeout_ms", 20_000))
"""A server that is silent for so long is gone. gRPC servers in Java close connections with more frequent pings."""
STOP_SECONDS: Final = 10.0
"""How long a stopped query may go on before its connection is closed."""
TIDY_SECONDS: Final = 2.0
"""How long a call may take that stops or releases something on the server."""
_TIDYING: Final = ("Interrupt", "ReleaseExecute", "ReleaseSession", "FetchErrorDetails")
_HINT: Final = 'url = "spark://host:15002/spark_catalog?token=${SPARK_TOKEN}", with schema = "default" below it'
_CATALOG: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SETTINGS: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.variable.substitute": "false",  # it would read ${…} within constants
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.groupByAliases": "false",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.readSideCharPadding": "true",
    # Spark trusts that each row is in the file of its bucket; else a unit would be bounded once in each bucket.
    "spark.sql.sources.bucketing.enabled": "false",
    "spark.sql.sources.v2.bucketing.enabled": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.execution.sortBeforeRepartition": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.legacy.ctePrecedencePolicy": "CORRECTED",
}
_OTHERS: Final = ("spark.sql.legacy.", "spark.sql.parser.", "spark.sql.ansi.")
"""Prefixes of settings: only those above may be set. With one of the others, a backslash escapes nothing."""


class _Channel(DefaultChannelBuilder):
    """A token for localhost goes to one address, because another user may listen at the same port of ::1."""

    @property
    def endpoint(self) -> str:
        """Where the server is."""
        found: str = super().endpoint
        return found.replace("localhost:", "127.0.0.1:") if self.token and self.host == "localhost" else found


def is_away(error: Exception) -> bool:
    """True of an error that tells about the server, not about the statement."""
    return isinstance(error, SparkConnectGrpcException) and error.getGrpcStatusCode() in _AWAY


class SparkSessions:
    """The sessions of one server."""

    def __init__(self, url: str, timezone: str) -> None:
        """Read the URL; nothing is connected yet.

        Raises:
            InvalidPolicy: It is not a URL for Spark, or it would send cells unencrypted.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or PORT
            options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        except ValueError:
            raise InvalidPolicy("dataset.url: it cannot be read", hint=_HINT) from None
        self.catalog = parts.path.removeprefix("/")
        if not host or parts.username is not None or parts.fragment or not _CATALOG.fullmatch(self.catalog):
            raise InvalidPolicy("dataset.url: a Spark url names a host, a port and a catalog", hint=_HINT)
        if options.keys() - {"token"}:
            raise InvalidPolicy("dataset.url: a Spark url takes token alone", hint=_HINT)
        token = options.get("token")
        if token is None and host not in LOOPBACK:
            what = "without a token exact cells would travel unencrypted, and anybody could run code there"
            raise InvalidPolicy(f"dataset.url: {what}", hint=_HINT)
        place = f"[{host}]" if ":" in host else host
        self.shown = url.partition("?")[0] + ("?token=${SPARK_TOKEN}" if token else "")
        is_here = token is None or host == "localhost"
        secret = f";token={quote(token, safe='')}" if token else ""
        self._target = f"sc://{place}:{port}/{'' if is_here else ';use_ssl=true'}{secret}"
        # Cells that must stay on this machine go through no proxy.
        self._options = [*_ALIVE, ("grpc.enable_http_proxy", 0)] if is_here else [*_ALIVE]
        self._settings = _SETTINGS | {"spark.sql.session.timeZone": timezone}

    @contextmanager
    def session(self, cancellation: Cancellation, seconds: float) -> Iterator[Session]:
        """A session for one query, stopped by its user or its time limit.

        Raises:
            Unreachable: The server does not answer, or does not take the settings.
            QueryCanceled: The query was canceled before.
        """
        cancellation.check()
        session = SparkSession(connection=_Channel(self._target, self._options))
        for name in _TIDYING:
            setattr(session.client._stub, name, partial(_in_time, getattr(session.client._stub, name)))
        session.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES)])
        left = threading.Event()

        def stop() -> None:
            """Interrupt again and again, for a query may begin after an interrupt; then close the connection."""
            until = time.monotonic() + STOP_SECONDS
            while time.monotonic() < until:
                with suppress(Exception):
                    session.interruptAll()
                if left.wait(CANCEL_AGAIN_SECONDS):
                    return
            session.client._channel.close()

        try:
            with after(seconds, cancellation.cancel), cancellation.stopping(lambda: _in_background(stop)):
                self._pin(session)
                cancellation.check()
                yield session
        except BaseException:
            _in_background(_abandon, session)
            raise
        else:
            _in_background(_release, session)  # the rows are here
        finally:
            left.set()

    def _pin(self, session: Session) -> None:
        """Set the settings, and read them back."""
        try:
            session.conf._set_all(dict(self._settings), silent=False)  # one call for all of them
            found: dict[str, Any] = session.conf.getAll
        except Exception:  # pyspark has many; no statement was sent yet, so each refuses before the charge
            raise Unreachable(
                "the server does not answer, or not to this token", "check host, port and token"
            ) from None
        for name in found:
            if found[name] != self._settings.get(name, found[name] if not name.startswith(_OTHERS) else None):
                raise Unreachable(f"the server keeps {name} = {found[name]}", f"unset {name} there")
        if missing := self._settings.keys() - found.keys():
            raise Unreachable(f"the server does not take {min(missing)}", "dpsql knows Spark 4")


def _in_time(call: Callable[..., Any], request: object, **options: object) -> Any:
    """Make a call that cleans up, with a time limit."""
    return call(request, **options | {"timeout": TIDY_SECONDS})


def _in_background(action: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=action, args=arguments, daemon=True).start()


def _release(session: Session) -> None:
    """Release a session on the server, and close its connection, which pyspark would keep until the process ends."""
    with suppress(Exception):
        session.client.release_session()
    with suppress(Exception):
        session.client.close()
    atexit.unregister(session.client._on_exit)


def _abandon(session: Session) -> None:
    """Stop what may still run on the server; nobody waits for that."""
    with suppress(Exception):
        session.interruptAll()
    _release(session)
