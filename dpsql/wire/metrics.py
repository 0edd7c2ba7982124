"""metrics: what the operator's Prometheus counts.

Rule: what is counted here tells no more of private rows than the replies do. Statements are counted when they begin,
    refusals where no row was read, and failures where the client is told of one; times are in the log alone. No label
    is made of what a client sends. What the system says of the process depends on rows: the page is the operator's.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_LEAST: Final = frozenset(
    {
        *("dpsql_accepting", "dpsql_ledger_up", "dpsql_engine_up"),
        *("dpsql_certificate_expiry_timestamp_seconds", "process_start_time_seconds"),
    }
)
"""Of several processes, what holds where it holds for all."""
_GREATEST: Final = frozenset({"dpsql_build_info", "dpsql_ledger_clock_held"})
"""What holds where it holds for one."""

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


def merged(texts: Iterable[str]) -> str:
    """The metrics of several processes as those of one: numbers are added up, and states are what holds for all."""
    registry = CollectorRegistry()
    registry.register(_Merged([family for text in texts for family in text_string_to_metric_families(text)]))
    return generate_latest(registry).decode()


class _Merged(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        first: dict[str, Metric] = {}
        values: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[float]] = {}
        for family in self._families:
            first.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                values.setdefault((family.name, sample.name, tuple(sample.labels.items())), []).append(sample.value)
        for (family_name, name, labels), found in values.items():
            merge = min if name in _LEAST else max if name in _GREATEST else sum
            first[family_name].add_sample(name, dict(labels), merge(found))
        return first.values()
