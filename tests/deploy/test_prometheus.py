"""The scrape configuration and the alert rules, checked by Prometheus's own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = PROMETHEUS / "tailrace.rules.yml"
RULES_TESTS = [Path(__file__).with_name(name) for name in ("rules_test.yml", "nights_test.yml")]
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


def served_names() -> set[str]:
    """Every tailrace_… name in the sources; those made of a prefix and a part, too."""
    names: set[str] = set()
    sources = [path for package in ("broker", "supervisor") for path in (ROOT / package).rglob("*.py")]
    for path in [*sources, ROOT / "spark" / "rollup" / "metrics.py"]:
        text = path.read_text()
        names.update(re.findall(r"\"(tailrace_[a-z_]+)\"", text))
        for prefix in re.findall(r"\"(tailrace_[a-z_]+_)\{name\}\"", text):
            names.update(prefix + part for part in re.findall(r"(?:gauge\(|f\")\"?([a-z_]+)\"", text))
    return names


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
    # A name that ends in _ is the beginning of others.
    served = {name for name in served_names() if not name.endswith("_")}
    assert not served - families - documented
    assert not families - served, "these are no longer served"
