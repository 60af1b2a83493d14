"""The alerts of a cluster, checked by Prometheus's own tool, and the names of the agent's metrics that they use."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from tailrace.cluster.metrics import AgentCollector
from tailrace.cluster.view import AgentFigures
from tests.deploy.test_prometheus import PROMETHEUS, ROOT, alerts, promtool

RULES = PROMETHEUS / "tailrace-cluster.rules.yml"
RULES_TEST = Path(__file__).with_name("cluster_rules_test.yml")
DOCUMENT = (ROOT / "docs" / "cluster.md").read_text()
FIGURES = AgentFigures(True, True, 16, 5, 3, 2, 3, 0, 7, True, 0.5, False)


def served() -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(AgentCollector("orders", lambda: FIGURES))
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert all(sample.labels == {"cluster": "orders"} for sample in samples)
    return {sample.name: sample.value for sample in samples}


def test_an_agent_serves_its_figures() -> None:
    assert served()["tailrace_agent_term"] == 7 and served()["tailrace_agent_etcd_age_seconds"] == 0.5


def test_alerts_fire_when_they_should() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", RULES_TEST)


def test_every_alert_is_seen_firing_and_silent_and_explained() -> None:
    text = RULES_TEST.read_text()
    found = alerts(RULES.read_text())
    assert found
    for alert in found:
        assert re.search(rf"alertname: {alert}\n +exp_alerts:\n +- exp_labels", text), f"no test shows {alert} firing"
        assert re.search(rf"alertname: {alert}}}", text), f"no test shows {alert} silent"
        assert f"`{alert}`" in DOCUMENT, f"docs/cluster.md does not say what to do about {alert}"


def test_names_in_the_rules_and_in_the_document_are_served() -> None:
    used = set(re.findall(r"\btailrace_agent_[a-z_]+", RULES.read_text()))
    assert used and used <= served().keys()
    assert set(re.findall(r"\btailrace_agent_[a-z_]+", DOCUMENT)) == served().keys()
