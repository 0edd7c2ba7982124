"""examples/monitoring: the dashboard and the alerts ask for metrics and labels that a gateway shows."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Final

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import Program, Run
from tests.cli.test_operation import CERTIFICATES, COUNT, ledger, probe, reload
from tests.cli.test_serve import Start, connect

__all__ = ["ledger"]  # a fixture

FOLDER: Final = Path(__file__).parent.parent.parent / "examples" / "monitoring"
DASHBOARD: Final = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
RULES: Final = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
# What Prometheus adds to every sample.
ADDED: Final = {"job", "instance"}
FUNCTIONS: Final = {"sum", "by", "rate", "increase", "time", "or", "unless", "offset"}
PROMTOOL: Final = shutil.which("promtool")


def names(expression: str) -> Set[str]:
    """The metrics of an expression: words outside of braces, brackets and lists of labels that are no function."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", " ", expression)
    return set(re.findall(r"[a-z_]\w*", re.sub(r"\b\d[\w.]*", " ", bare))) - FUNCTIONS


def labels(text: str) -> Set[str]:
    """The labels that an expression or a legend has."""
    named = re.findall(r"(\w+)\s*(?:=|!=|=~)\s*\"", text) + re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text)
    return {*named, *(word for found in re.findall(r"\bby \(([^)]*)\)", text) for word in found.split(", "))}


@pytest.fixture(scope="module")
def asked() -> Mapping[str, tuple[str, str]]:
    """Every expression, by the panel or the alert that asks it, with the text that is shown beside it."""
    found = {
        f"{panel['title']} {target['refId']}": (target["expr"], target["legendFormat"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    }
    return found | {rule["alert"]: (rule["expr"], rule["annotations"]["summary"]) for rule in RULES}


def shown(program: Program) -> Mapping[str, Set[str]]:
    """The metrics of a gateway with their labels."""
    found: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(probe(program, "metrics")[1]):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


@pytest.fixture
def gateway(policy: Path, ledger: str, start: Start) -> Iterator[Program]:
    """A gateway that has counted one of everything."""
    files = ("--tls-cert", CERTIFICATES / "server.crt", "--tls-key", CERTIFICATES / "server.key")
    program = start("serve", policy, "--port", 0, "--ledger", ledger, "--metrics-port", 0, *files)
    with connect(program, sslmode="require") as connection:
        connection.execute(COUNT)
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT COUNT(*) FROM nothing")
    reload(program)
    yield program
    assert program.stop() == 0


def test_what_is_asked_is_shown(gateway: Program, asked: Mapping[str, tuple[str, str]]) -> None:
    known = {**shown(gateway), "up": ADDED}
    for place, (expression, text) in asked.items():
        wanted = names(expression)
        assert wanted, place
        assert wanted <= set(known), place
        given = ADDED.union(*(known[name] for name in wanted))
        assert labels(expression) | labels(text) - {"value"} <= given, place


def test_everything_that_the_gateway_counts_is_on_the_dashboard(
    gateway: Program, asked: Mapping[str, tuple[str, str]]
) -> None:
    used = set().union(*(names(expression) for expression, _ in asked.values()))
    assert {name for name in shown(gateway) if name.startswith("dpsql_")} - {"dpsql_accepting"} <= used


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on this machine")
@pytest.mark.parametrize("words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_prometheus_reads_the_rules_and_they_fire_on_what_they_are_for(words: tuple[str, ...]) -> None:
    done = subprocess.run([str(PROMTOOL), *words], cwd=FOLDER, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on this machine")
def test_prometheus_reads_what_the_dashboard_asks(asked: Mapping[str, tuple[str, str]], tmp_path: Path) -> None:
    expressions = [expression.replace("$__rate_interval", "5m") for expression, _ in asked.values()]
    rules = [{"record": f"asked:{number}", "expr": each} for number, each in enumerate(expressions)]
    file = tmp_path / "asked.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(
        [str(PROMTOOL), "check", "rules", str(file)], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0 and f"{len(rules)} rules found" in done.stdout, done.stdout + done.stderr


def test_each_alert_is_tried_where_it_fires_and_where_it_does_not() -> None:
    tries = [
        (each["alertname"], bool(each.get("exp_alerts")))
        for test in yaml.safe_load((FOLDER / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
        for each in test["alert_rule_test"]
    ]
    assert {*tries} == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}


def test_the_dashboard_is_of_the_form_that_grafana_imports() -> None:
    """The fields that panels need to find their place and their data; Grafana itself is not run."""
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= DASHBOARD.keys()
    assert DASHBOARD["schemaVersion"] >= 36  # since then a source is named by type and uid
    (source,) = DASHBOARD["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in ("stat", "timeseries")
        assert {"x", "y", "w", "h"} == panel["gridPos"].keys()
        assert panel["datasource"] == {"type": "prometheus", "uid": f"${{{source['name']}}}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_a_rule_names_who_is_to_be_told_and_what(run: Run) -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_the_panels_do_not_overlap() -> None:
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
