"""The example for Kubernetes: its parts name each other, and the node and its agent take its options."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.process.settings import Settings
from tailrace.cli import agent, serve
from tailrace.protocol.address import split_address
from tests.cli.process import tailrace

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).resolve().parents[2] / "deploy"
PARTS: dict[tuple[str, str], dict[str, Any]] = {
    (part["kind"], part["metadata"]["name"]): part
    for part in yaml.safe_load_all((FOLDER / "kubernetes" / "tailrace-cluster.yml").read_text())
}
SETS = [part for (kind, _), part in PARTS.items() if kind == "StatefulSet"]
VERSIONS = {"ConfigMap": "v1", "Service": "v1", "PodDisruptionBudget": "policy/v1", "StatefulSet": "apps/v1"}


def containers(part: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in part["spec"]["template"]["spec"]["containers"]}


def test_each_part_is_of_a_kind_and_a_version_that_there_is() -> None:
    assert {kind: part["apiVersion"] for (kind, _), part in PARTS.items()} == VERSIONS


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
