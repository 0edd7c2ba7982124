"""metrics: what the operator's Prometheus may count.

Rule: nothing here depends on private rows: statements are counted when they begin, refusals where no row was read;
    failures and times of queries are in the log alone. No label is made of what a client sends.

Reference: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """A number that only grows, for each combination of labels."""

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name, self.about, self.labels = name, about, tuple(labels)
        self._counts: dict[tuple[str, ...], int] = {} if labels else {(): 0}
        self._lock = threading.Lock()

    def add(self, *values: str) -> None:
        """Count one."""
        with self._lock:
            self._counts[values] = self._counts.get(values, 0) + 1

    def lines(self) -> list[str]:
        """The counter in the text format."""
        with self._lock:
            counts = sorted(self._counts.items())
        return _lines(self.name, self.about, "counter", self.labels, counts)


class Metrics:
    """The gateway's counters, and gauges that are read when they are asked for."""

    def __init__(self) -> None:
        self.logins = Counter("dpsql_logins_total", "Logins, by the SQLSTATE they ended with.", ["sqlstate"])
        self.statements = Counter("dpsql_statements_total", "Statements begun, by kind.", ["database", "kind"])
        self.refusals = Counter(
            "dpsql_refusals_total", "Statements refused without reading a row.", ["database", "sqlstate"]
        )
        self.reloads = Counter("dpsql_policy_reloads_total", "Loads of the policies on SIGHUP.", ["outcome"])
        self._gauges: dict[str, tuple[str, Callable[[], int]]] = {}

    def gauge(self, name: str, about: str, read: Callable[[], int]) -> None:
        """Show a number that goes up and down."""
        self._gauges[name] = (about, read)

    def text(self) -> str:
        """Everything in the text format."""
        lines = [
            line for counter in (self.logins, self.statements, self.refusals, self.reloads) for line in counter.lines()
        ]
        for name, (about, read) in self._gauges.items():
            lines += _lines(name, about, "gauge", (), [((), read())])
        return "\n".join((*lines, ""))


def _lines(
    name: str, about: str, kind: str, labels: tuple[str, ...], values: Sequence[tuple[tuple[str, ...], int]]
) -> list[str]:
    head = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    return head + [f"{name}{_labelled(dict(zip(labels, given, strict=True)))} {value}" for given, value in values]


def _labelled(pairs: Mapping[str, str]) -> str:
    if not pairs:
        return ""
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in pairs.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
