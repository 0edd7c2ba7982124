"""metrics: counters and gauges for the operator's Prometheus.

Rule: metrics reveal no more about private rows than the replies do. Statements are counted when they begin, refusals
    when no row was read, and failures when the client gets the error. Times are only in the log. No label has a
    client's text. The process metrics depend on rows, so only the operator may read the page.
"""

import itertools
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
        self.worker_failures = self._counter("dpsql_worker_failures_total", "Workers that ended and were replaced.")
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


def add_up(texts: Iterable[str]) -> str:
    """The metrics of several processes as those of one: numbers are added up, and a state is what holds for all."""
    samples: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[float]] = {}
    families: dict[str, Metric] = {}
    for family in itertools.chain.from_iterable(map(text_string_to_metric_families, texts)):
        families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        for sample in family.samples:
            key = family.name, sample.name, tuple(sample.labels.items())
            samples.setdefault(key, []).append(sample.value)
    for (family_name, name, labels), found in samples.items():
        together = min if name in _LEAST else max if name in _GREATEST else sum
        families[family_name].add_sample(name, dict(labels), together(found))
    return _text(families.values())


def counters(text: str) -> str:
    """Of metrics in the text format, what counts on where a process has ended."""
    return _text(family for family in text_string_to_metric_families(text) if family.type == "counter")


def _text(families: Iterable[Metric]) -> str:
    registry = CollectorRegistry()
    registry.register(_Families(list(families)))
    return generate_latest(registry).decode()


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
