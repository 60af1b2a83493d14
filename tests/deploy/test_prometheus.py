"""The scrape configuration and the alert rules, checked by Prometheus's own tool."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.broker.process.metric_cells import RowWriter
from tailrace.broker.process.metrics import (
    LABELS_SEPARATOR,
    ConsumerMeasures,
    SlaveMeasures,
    StreamMeasures,
    WorkerMetrics,
)
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings
from tailrace.supervisor.http import make_registry

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = PROMETHEUS / "tailrace.rules.yml"
RULES_TESTS = [Path(__file__).with_name(name) for name in ("rules_test.yml", "nights_test.yml")]
FAMILIES = Path(__file__).with_name("families.txt")
OPERATIONS = ROOT / "docs" / "operations.md"
# What prometheus adds to the name of a family: counters and histograms.
SUFFIXES = ("_total", "_bucket", "_count", "_sum")
HANGS_S = 300.0  # promtool takes some seconds of processor time


def promtool(*arguments: str | Path) -> None:
    """Runs promtool and shows its output on failure."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def rules_tests() -> str:
    return "".join(path.read_text() for path in RULES_TESTS)


def alerts(text: str) -> list[str]:
    return re.findall(r"^ +- alert: (\w+)$", text, re.MULTILINE)


def full_scrape(data: Path) -> str:
    """A scrape of a node of which everything has been counted, read by the metrics process in a test's own process."""
    board = Board(1)
    board.slot(0).beat()
    board.take_row(1)
    metrics = WorkerMetrics(parked={"turn": 1}, copies={"following": 1}, slaves={"b": SlaveMeasures(1)})
    metrics.upstream_links = metrics.upstream_links_up = {"127.0.0.1:1": 1}
    metrics.dropped.add("reset")
    metrics.user_connections = {"ann": 1}
    metrics.measured_streams = {"orders": StreamMeasures()}
    metrics.measured_consumers = {f"orders{LABELS_SEPARATOR}billing": ConsumerMeasures()}
    RowWriter(board.row_of(1)).store(metrics)
    return generate_latest(make_registry(Settings(data=data), board, os.getpid())).decode()


def described(scrape: str) -> list[str]:
    """A line for each family: name, type, labels, help."""
    lines = []
    for family in text_string_to_metric_families(scrape):
        labels = {",".join(sorted(sample.labels)) for sample in family.samples if not sample.name.endswith("_bucket")}
        (names,) = labels
        lines.append(f"{family.name} {family.type} {{{names}}} {family.documentation}")
    return sorted(lines)


def served_names() -> set[str]:
    """The names in a scrape, and those that a rollup leaves in its file."""
    written = (ROOT / "spark" / "rollup" / "metrics.py").read_text()
    families = {line.split()[0] for line in FAMILIES.read_text().splitlines()}
    return families | set(re.findall(r"\"(tailrace_[a-z_]+)\"", written))


def test_a_scrape_has_the_families_that_dashboards_were_made_for(tmp_path: Path) -> None:
    """Fails on any change of a name, type, label or help text: update `families.txt` and the documents with it."""
    assert described(full_scrape(tmp_path)) == FAMILIES.read_text().splitlines()


def test_labels_in_the_rules_are_served() -> None:
    labels = {label for line in FAMILIES.read_text().splitlines() for label in line.split()[2][1:-1].split(",")}
    used = set(re.findall(r"tailrace_[a-z_]+\{([a-z_]+)[=!]", RULES.read_text()))
    used |= set(re.findall(r"\$labels\.([a-z_]+)", RULES.read_text()))
    assert used and used <= labels | {"job", "instance", "le"}


def test_rules_are_valid() -> None:
    promtool("check", "rules", RULES)


def test_scrape_configuration_is_valid() -> None:
    promtool("check", "config", PROMETHEUS / "scrape.yml")


@pytest.mark.parametrize("path", RULES_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should(path: Path) -> None:
    promtool("test", "rules", path)


def test_every_alert_is_seen_firing_and_silent() -> None:
    text = rules_tests()
    for alert in alerts(RULES.read_text()):
        fires = re.search(rf"alertname: {alert}\n +exp_alerts:\n +- exp_labels", text)
        assert fires, f"no test shows {alert} firing"
        assert re.search(rf"alertname: {alert}}}", text), f"no test shows {alert} silent"


def test_names_in_the_rules_are_served() -> None:
    served = served_names()
    for name in set(re.findall(r"\btailrace_[a-z_]+", RULES.read_text())):
        family = name
        for suffix in SUFFIXES:
            family = family.removesuffix(suffix)
        assert {name, family} & served, f"{RULES.name} uses {name}, which no source serves"


def test_names_in_the_rules_test_are_used() -> None:
    """A renamed metric must not leave a test that proves nothing."""
    used = set(re.findall(r"\btailrace_[a-z_]+", RULES.read_text()))
    assert set(re.findall(r"\btailrace_[a-z_]+", rules_tests())) == used


def test_every_alert_is_explained() -> None:
    text = OPERATIONS.read_text()
    for alert in alerts(RULES.read_text()):
        assert f"`{alert}`" in text, f"docs/operations.md does not say what to do about {alert}"


def test_every_metric_is_documented() -> None:
    documented = set(re.findall(r"tailrace_[a-z_]+", OPERATIONS.read_text()))
    families = {name.removesuffix("_total") for name in documented}
    served = served_names()
    assert not served - families - documented
    assert not families - served, "these are no longer served"
