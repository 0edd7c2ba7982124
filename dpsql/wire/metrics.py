"""metrics: counters and gauges for the operator's Prometheus.

Rule: metrics reveal no more about private rows than the replies do. Statements are counted when they begin, refusals
    when no row was read, and failures when the client gets the error. Times are only in the log. No label has a
    client's text. The process metrics depend on rows, so only the operator may read the page.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The gateway's counters and gauges, and what the system knows of its process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.logins = self._counter("dpsql_logins_total", "Logins, by the SQLSTATE they ended with.", "sqlstate")
        self.statements = self._counter("dpsql_statements_total", "Statements begun, by kind.", "database", "kind")
        self.refusals = self._counter(
            "dpsql_refusals_total", "Statements refused without reading a row.", "database", "sqlstate"
        )
        self.reloads = self._counter("dpsql_policy_reloads_total", "Loads of the policies on SIGHUP.", "outcome")
        self.ledger_failures = self._counter("dpsql_ledger_failures_total", "Statements that the ledger failed.")
        self.engine_failures = self._counter(
            "dpsql_engine_failures_total", "Statements that the database failed.", "database"
        )
        self.ledger_up = Gauge("dpsql_ledger_up", "1 while the ledger can be written.", registry=self._registry)
        self.engine_up = Gauge(
            "dpsql_engine_up", "1 while the database answers.", ["database"], registry=self._registry
        )
        build = Gauge("dpsql_build_info", "The version of dpsql.", ["version"], registry=self._registry)
        build.labels(version("dpsql")).set(1)

    def gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        """Show a number that goes up and down, read when it is asked for."""
        Gauge(name, about, registry=self._registry).set_function(read)

    def text(self) -> str:
        """Everything in the text format."""
        return generate_latest(self._registry).decode()

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self._registry)
