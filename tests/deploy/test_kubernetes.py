"""The example for Kubernetes: it is valid, its parts name each other, the node and its agent take their options."""

from __future__ import annotations

import copy
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tailrace.broker.process.settings import Settings
from tailrace.cli import agent, serve
from tailrace.protocol.address import split_address
from tests.cli.process import tailrace

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = [
    part for file in sorted(FOLDER.iterdir()) for part in yaml.safe_load_all(file.read_text())
]
PARTS: dict[tuple[str, str], dict[str, Any]] = {
    (part["kind"], part["metadata"]["name"]): part
    for part in yaml.safe_load_all((FOLDER / "tailrace-cluster.yml").read_text())
}
SETS = [part for (kind, _), part in PARTS.items() if kind == "StatefulSet"]
EARLIEST, LATEST = "1.25", "1.37"
"""Of the releases of Kubernetes whose schemas the validator has."""


def containers(part: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in part["spec"]["template"]["spec"]["containers"]}


@pytest.mark.parametrize("release", [EARLIEST, LATEST])
@pytest.mark.parametrize("part", DOCUMENTS, ids=lambda part: f"{part['kind']}-{part['metadata']['name']}")
def test_kubernetes_takes_each_document(part: dict[str, Any], release: str) -> None:
    assert kubernetes_validate.validate(part, release, strict=True) == release


def _mistaken(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The set of pods of nodes, with one other value; None removes it."""
    part = copy.deepcopy(PARTS["StatefulSet", "tailrace"])
    *folders, last = place
    found: Any = part
    for each in folders:
        found = found[each]
    found[last] = value
    if value is None:
        del found[last]
    return part


@pytest.mark.parametrize(
    ("place", "value", "path"),
    [
        (("spec", "replicas"), "three", "spec.replicas"),
        (("spec", "servicename"), "tailrace", "spec"),
        (("spec", "selector"), None, "spec"),
        (
            ("spec", "template", "spec", "containers", 0, "resource"),
            {"requests": {"memory": "1Gi"}},
            "spec.template.spec.containers.0",
        ),
    ],
)
def test_a_mistake_in_a_document_is_found(place: tuple[str | int, ...], value: Any, path: str) -> None:
    with pytest.raises(kubernetes_validate.ValidationError) as wrong:
        kubernetes_validate.validate(_mistaken(place, value), LATEST, strict=True)
    assert ".".join(map(str, wrong.value.path)) == path


def test_a_version_that_there_is_not_is_found() -> None:
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        kubernetes_validate.validate(PARTS["StatefulSet", "tailrace"] | {"apiVersion": "apps/v1beta1"}, LATEST)


@pytest.mark.parametrize("part", SETS, ids=lambda part: str(part["metadata"]["name"]))
def test_a_set_of_pods_fits_together(part: dict[str, Any]) -> None:
    name, spec = part["metadata"]["name"], part["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == PARTS["Service", spec["serviceName"]]["spec"]["selector"]
    assert PARTS["Service", spec["serviceName"]]["spec"]["clusterIP"] == "None", "each pod needs a name"
    budget = PARTS["PodDisruptionBudget", name]["spec"]
    assert budget["selector"]["matchLabels"] == labels and budget["maxUnavailable"] < spec["replicas"] / 2
    volumes = {each["name"] for each in spec["template"]["spec"].get("volumes", [])}
    volumes |= {each["metadata"]["name"] for each in spec["volumeClaimTemplates"]}
    assert {mount["name"] for each in containers(part).values() for mount in each["volumeMounts"]} == volumes
    named = {each["port"]: each["name"] for each in PARTS["Service", spec["serviceName"]]["spec"]["ports"]}
    ports = [port for each in containers(part).values() for port in each["ports"]]
    assert {each["containerPort"]: each["name"] for each in ports} == named


def test_the_node_takes_its_configuration(tmp_path: Path) -> None:
    spec = PARTS["StatefulSet", "tailrace"]["spec"]["template"]["spec"]
    assert {"name": "config", "configMap": {"name": "tailrace"}} in spec["volumes"]
    text = PARTS["ConfigMap", "tailrace"]["data"]["tailrace.toml"]
    assert tomllib.loads(text)["cluster"] == {"start_fenced": True}
    assert "umask 077\n" in containers(PARTS["StatefulSet", "tailrace"])["node"]["args"][0], "it has a secret"
    config = tmp_path / "node.toml"
    config.touch(0o600)
    config.write_text(text.replace("NODE_TOKEN", "0123456789abcdef"))
    checked = tailrace("serve", "--config", str(config), "--data", str(tmp_path), "--check-config")
    assert checked.returncode == 0, checked.stderr
    node = containers(PARTS["StatefulSet", "tailrace"])["node"]
    settings = Settings()
    assert [each["containerPort"] for each in node["ports"]] == [settings.port, settings.metrics_port]
    assert {node[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} == {"/readyz", "/healthz"}


@pytest.mark.parametrize(("name", "command"), [("node", serve.command), ("agent", agent.command)])
def test_the_commands_have_such_options(name: str, command: Any) -> None:
    script = containers(PARTS["StatefulSet", "tailrace"])[name]["args"][0]
    line = next(each for each in script.splitlines() if each.startswith("exec tailrace "))
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word for word in shlex.split(script.replace('"', " ")) if word.startswith("--")}
    assert used and used <= known, used - known
    assert command.name == line.split()[2]


def test_agents_find_etcd_and_nodes_each_other() -> None:
    found = containers(PARTS["StatefulSet", "tailrace"])["agent"]
    values = {each["name"]: each.get("value") for each in found["env"]}
    etcd = PARTS["StatefulSet", "etcd"]["spec"]
    members = [f"etcd-{number}.{etcd['serviceName']}" for number in range(etcd["replicas"])]
    assert [split_address(each) for each in values["TAILRACE_ETCD"].split(",")] == [(each, 2379) for each in members]
    initial = next(
        each for each in containers(PARTS["StatefulSet", "etcd"])["etcd"]["args"] if "initial-cluster=" in each
    )
    assert re.findall(r"http://([^:]+):2380", initial) == members
    for each in containers(PARTS["StatefulSet", "tailrace"]).values():
        assert f"$POD_NAME.tailrace:{Settings().port}" in each["args"][0]
