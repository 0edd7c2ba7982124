"""examples/kubernetes: its names agree with each other, with the image and with what `dpsql serve` takes.

Against the schemas of Kubernetes it was validated by hand with the package kubernetes-validate, which takes 108 MB.
"""

import re
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from dpsql.cli.serve import serve
from tests.conftest import ROOT

SECRET, DEPLOYMENT, SERVICE, RULES = yaml.safe_load_all(
    (ROOT / "examples" / "kubernetes" / "gateway.yaml").read_text(encoding="utf-8")
)
POD: Final[dict[str, Any]] = DEPLOYMENT["spec"]["template"]["spec"]
(GATEWAY,) = POD["containers"]
PORTS: Final[dict[str, int]] = {port["name"]: port["containerPort"] for port in GATEWAY["ports"]}


def options(folder: Path) -> dict[str, Any]:
    """What the command's own parser makes of its words, with files in the place of what is mounted."""
    command, *words = GATEWAY["args"]
    assert command == "serve"
    for name in ("clinic.toml", "tls.crt", "tls.key"):
        (folder / name).touch()
    words = [re.sub(r"/(policy|tls)/", f"{folder}/", word) for word in words]
    return serve.make_context("serve", words).params


def test_the_gateway_understands_its_words(tmp_path: Path) -> None:
    said = options(tmp_path)
    assert (said["port"], said["metrics_port"]) == (PORTS["postgresql"], PORTS["metrics"])
    assert said["host"] == said["metrics_host"] == "0.0.0.0"  # what a pod's address is, it learns too late
    assert not said["init_ledger"]
    slept = int(GATEWAY["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > slept + said["grace"]


def test_the_probes_ask_for_pages_that_there_are() -> None:
    source = (ROOT / "dpsql" / "wire" / "monitor.py").read_text(encoding="utf-8")
    for probe, page in (("startupProbe", "/healthz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert GATEWAY[probe]["httpGet"] == {"path": page, "port": "metrics"}
        assert f'case "{page}"' in source


def test_names_agree() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert labels == DEPLOYMENT["spec"]["selector"]["matchLabels"] == SERVICE["spec"]["selector"]
    assert {port["targetPort"] for port in SERVICE["spec"]["ports"]} == {"postgresql"}, (
        "the metrics are not for clients"
    )
    from_secret = [each["valueFrom"]["secretKeyRef"] for each in GATEWAY["env"] if "valueFrom" in each]
    assert {each["name"] for each in from_secret} == {SECRET["metadata"]["name"]}
    assert {each["key"] for each in from_secret} == SECRET["stringData"].keys()
    assert {mount["name"] for mount in GATEWAY["volumeMounts"]} == {volume["name"] for volume in POD["volumes"]}


def test_the_gateway_is_confined() -> None:
    uid = re.search(r"useradd --uid (\d+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert uid is not None and POD["securityContext"]["runAsUser"] == int(uid[1])
    assert GATEWAY["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["securityContext"]["runAsNonRoot"] and not POD["automountServiceAccountToken"]


def test_clients_reach_no_figures_of_the_process() -> None:
    """Only the ports of clients are open to whoever asks."""
    assert RULES["spec"]["podSelector"]["matchLabels"] == SERVICE["spec"]["selector"]
    free, watched = RULES["spec"]["ingress"]
    assert [port["port"] for port in free["ports"]] == ["postgresql"] and "from" not in free
    assert watched["from"] and [port["port"] for port in watched["ports"]] == [PORTS["metrics"]]
